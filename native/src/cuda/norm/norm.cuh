/* What norm/norm.cu and norm/columns.cu share: the statistics of a row. */
#pragma once

#include "cuda/device/cluster_row.cuh"
#include "generated/norm.h"

/* What is normalised: rows with gamma and beta of the column, channels with those of the row, or rows around 0, which have
 * no beta: their mean is 0 and their beta -0, with which a fused sum is the product. */
enum tl_norm_kind { TL_NORM_LAYER, TL_NORM_CHANNEL, TL_NORM_RMS };

/* The mean and 1/deviation of a row held on chip, which is left as x - mean (0 past its end). */
template <tl_norm_kind KIND, class Row, class Held>
static __device__ __forceinline__ void tl_row_statistics(const Row &r, Held &v, int64_t cols, float eps, float *mean,
                                                         float *istd)
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
        *mean = tl_per_count(sum.sum(), cols);
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
    *istd = tl_inverse_deviation(squares.sum(), cols, eps);
}

/* The same for array 0 of a cluster's row. The row is still to be read by other blocks until tl_cluster_wait(). */
template <tl_norm_kind KIND, class Row>
static __device__ __forceinline__ void tl_cluster_statistics(const Row &r, float eps, float *mean, float *istd)
{
    float *const v = r.array(0);
    float m = 0.0f;
    if constexpr (KIND != TL_NORM_RMS) m = tl_per_count(r.sum(0, [&](int slot, int) { return v[slot]; }), r.n);
    const float squares = r.sum(1, [&](int slot, int) {
        const float d = v[slot] - m;
        v[slot] = d;
        return d * d;
    });
    tl_cluster_arrive();
    *mean = m;
    *istd = tl_inverse_deviation(squares, r.n, eps);
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

/* The gradient along rows with a gamma of the column (norm/norm.cu). gx may be NULL; means and istds, both or neither, get
 * the rows' statistics. */
int32_t tl_norm_rows_bwd(tl_context *ctx, tl_norm_kind kind, const float *x, const float *gamma, const float *g,
                         int64_t rows, int64_t cols, float eps, float *gx, float *means, float *istds);
