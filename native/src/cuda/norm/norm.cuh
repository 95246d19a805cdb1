/* What norm/norm.cu and norm/columns.cu share: the statistics of a row. */
#pragma once

#include "cuda/device/row_select.h"
#include "cuda/device/row_tile.cuh"
#include "cuda/reduce/long_rows.cuh"
#include "generated/norm.h"

/* What is normalised: rows with gamma and beta of the column, channels with those of the row, or rows around 0, which have
 * no beta: their mean is 0 and their beta -0, with which a fused sum is the product. */
enum tl_norm_kind { TL_NORM_LAYER, TL_NORM_CHANNEL, TL_NORM_RMS };

/* Where the statistics of rows go as results, of rows around 0 istds alone; NULL where they are none. */
struct tl_kept_statistics {
    float *means, *istds;
    template <tl_norm_kind KIND>
    __device__ __forceinline__ void keep(bool leads, int64_t row, float mean, float istd) const
    {
        if (KIND == TL_NORM_CHANNEL || !istds || !leads) return;
        if (KIND == TL_NORM_LAYER) means[row] = mean;
        istds[row] = istd;
    }
};

/* The statistics that a gradient is given; of rows around 0 without means, and without both where they are computed. */
struct tl_given_statistics {
    const float *means, *istds;
    __device__ __forceinline__ float mean(int64_t row) const { return means ? means[row] : 0.0f; }
};

/* The sum of squares of a row held on chip, which is left as x - mean (0 past its end), its mean and the sum that this is of. */
template <tl_norm_kind KIND, class Row, class Held>
static __device__ __forceinline__ float tl_row_squares(const Row &r, Held &v, int64_t cols, float *mean,
                                                       float *row_sum = nullptr)
{
    typename Row::terms sum, squares;
    float w[Row::W], d[Row::W];
    *mean = 0.0f;
    if constexpr (KIND != TL_NORM_RMS) {
#pragma unroll(Held::UNROLL)
        for (int i = 0; i < Held::pieces(r); i++) {
            const int k = Row::order(i);
            v.get(k, w);
            sum.add(i, w);
        }
        const float s = sum.sum();
        if (row_sum) *row_sum = s;
        *mean = tl_per_count(s, cols);
    }
#pragma unroll(Held::UNROLL)
    for (int i = 0; i < Held::pieces(r); i++) {
        const int k = Row::order(i);
        v.get(k, w);
        TL_UNROLL_FOR (int j = 0; j < Row::W; j++) {
            w[j] = r.inside(k * Row::W + j) ? w[j] - *mean : 0.0f;
            d[j] = w[j] * w[j];
        }
        squares.add(i, d);
        v.put(k, w);
    }
    return squares.sum();
}

/* That mean and 1/deviation. */
template <tl_norm_kind KIND, class Row, class Held>
static __device__ __forceinline__ void tl_row_statistics(const Row &r, Held &v, int64_t cols, float eps, float *mean,
                                                         float *istd)
{
    *istd = tl_inverse_deviation(tl_row_squares<KIND>(r, v, cols, mean), cols, eps);
}

/* The same of row `row`, where they are GIVEN or are computed. */
template <tl_norm_kind KIND, bool GIVEN, class Row, class Held>
static __device__ __forceinline__ void tl_row_statistics(const Row &r, Held &v, int64_t cols, float eps,
                                                         const tl_given_statistics &given, int64_t row, float *mean,
                                                         float *istd)
{
    if constexpr (!GIVEN) {
        tl_row_statistics<KIND>(r, v, cols, eps, mean, istd);
    } else {
        *mean = r.n > 0 ? given.mean(row) : 0.0f;
        *istd = r.n > 0 ? given.istds[row] : 0.0f;
        if constexpr (KIND != TL_NORM_RMS) {
#pragma unroll(Held::UNROLL)
            for (int k = 0; k < Held::pieces(r); k++) {
                float w[Row::W];
                v.get(k, w);
                TL_UNROLL_FOR (int j = 0; j < Row::W; j++)
                    w[j] = r.inside(k * Row::W + j) ? w[j] - *mean : 0.0f;
                v.put(k, w);
            }
        }
    }
}

/* ---- gradients of a row held on chip ----------------------------------------------------------------------------- */

/* Of a row with x - mean in v and g in second: leaves xhat in v, and gives the sums of a = g gamma (g for a channel) and of a xhat. In
 * registers a takes the place of g; in shared memory its stores would hold up the loads of gamma. */
template <tl_norm_kind KIND, class Row, class Held, class Second>
static __device__ __forceinline__ void tl_row_gradient_sums(const Row &r, Held &v, Second &second, const float *gamma,
                                                            float istd, float *sum_a, float *sum_ax)
{
    typename Row::terms terms_a, terms_ax;
    float xhat[Row::W], a[Row::W], ax[Row::W], factor[Row::W];
    TL_UNROLL_FOR (int i = 0; i < Row::K; i++) {
        const int k = Row::order(i);
        v.get(k, xhat);
        second.get(k, a);
        if constexpr (KIND != TL_NORM_CHANNEL) r.piece(gamma, k, factor);
        TL_UNROLL_FOR (int j = 0; j < Row::W; j++) {
            if constexpr (KIND != TL_NORM_CHANNEL) a[j] *= factor[j];
            xhat[j] = r.inside(k * Row::W + j) ? xhat[j] * istd : 0.0f;
            ax[j] = a[j] * xhat[j];
        }
        if constexpr (KIND != TL_NORM_RMS) terms_a.add(i, a);
        terms_ax.add(i, ax);
        v.put(k, xhat);
        if constexpr (KIND != TL_NORM_CHANNEL && !Second::IS_SHARED) second.put(k, a);
    }
    *sum_a = 0.0f;
    if constexpr (KIND == TL_NORM_RMS)
        *sum_ax = terms_ax.sum();
    else
        Row::sum2(terms_a, terms_ax, sum_a, sum_ax);
}

/* The gradient of that row from the sums: store(k, piece k). A channel has its gamma in istd. */
template <tl_norm_kind KIND, class Row, class Held, class Second, class Store>
static __device__ __forceinline__ void tl_row_gradient(const Row &r, const Held &v, const Second &second,
                                                       const float *gamma, int64_t cols, float sum_a, float sum_ax,
                                                       float istd, Store store)
{
    const float mean_a = tl_per_count(sum_a, cols), mean_ax = tl_per_count(sum_ax, cols);
    TL_UNROLL_FOR (int k = 0; k < Row::K; k++) {
        float xhat[Row::W], a[Row::W], factor[Row::W];
        v.get(k, xhat);
        second.get(k, a);
        if constexpr (KIND != TL_NORM_CHANNEL && Second::IS_SHARED) r.piece(gamma, k, factor);
        TL_UNROLL_FOR (int j = 0; j < Row::W; j++) {
            if constexpr (KIND != TL_NORM_CHANNEL && Second::IS_SHARED) a[j] *= factor[j];
            a[j] = tl_norm_grad(a[j], xhat[j], mean_a, mean_ax, istd);
        }
        store(k, a);
    }
}

/* 1 for a gamma that is left out and -0 for such a beta, with which a fused sum is the product. A gradient and rows around 0 read no
 * beta. */
int32_t tl_norm_absent(tl_context *ctx, tl_scratch<float> &scratch, int64_t cols, const float **gamma,
                       const float **beta);

/* The gradient along rows with a gamma of the column (norm/norm.cu). gx may be NULL; means and istds, both or neither, get
 * the rows' statistics. */
int32_t tl_norm_rows_bwd(tl_context *ctx, tl_norm_kind kind, const float *x, const float *gamma, const float *g,
                         tl_given_statistics given, int64_t rows, int64_t cols, float eps, float *gx, float *means,
                         float *istds);
