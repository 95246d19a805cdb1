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

/* ---- long rows --------------------------------------------------------------------------------------------------- */

struct tl_square_term {
    const float *x, *means;
    float mean;
    __device__ void row(int64_t r) { mean = means[r]; }
    __device__ float at(int64_t i, int64_t) const { return tl_square_of_difference(x[i], mean); }
};

/* Means, and sums of squares around them. */
template <tl_norm_kind KIND>
static int32_t tl_long_row_squares(tl_context *ctx, const char *name, const float *x, int64_t rows, int64_t cols,
                                   float *means, float *squares)
{
    if (KIND == TL_NORM_RMS)
        TL_TRY(tl_cuda_fill(tl_context_cuda(ctx), means, 0.0f, rows));
    else
        TL_TRY(tl_cuda_row_sums(ctx, x, rows, cols, cols, means));
    return tl_long_row_sums(ctx, name, tl_square_term{x, means, 0.0f}, rows, cols, 0, squares);
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
