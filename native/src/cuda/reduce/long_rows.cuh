/* Rows that do not fit on chip, for softmax, losses and norms: cut into the leaves of the row tree (formula/sum_tree.h), a block each,
 * and read once per reduction and once for the result. */
#pragma once

#include "cuda/device/sum_tree.cuh"
#include "formula/rows.h"

/* A term or a result of a long row is a struct F with `void row(int64_t row)`, which reads the row's statistics once,
 * and `float at(int64_t i, int64_t column)`, element i of the array, in that column of its row. */

/* A block sums one leaf: thread t lanes t, t+256, t+512, t+768. */
template <class F>
__global__ void __launch_bounds__(TL_TREE_THREADS)
    tl_leaf_sums(F f, uint32_t per_row, int64_t cols, int64_t count, float *out)
{
    __shared__ float shared[TL_TREE_THREADS];
    tl_wait_for_earlier();
    const int64_t row = blockIdx.x / per_row, start = (int64_t)(blockIdx.x % per_row) * TL_SUM_LEAF;
    const int n = (int)min(cols - start, (int64_t)TL_SUM_LEAF);
    float lanes[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    f.row(row);
#pragma unroll 4
    for (int k = 0; k < n; k += TL_SUM_LANES)
        TL_UNROLL_FOR (int j = 0; j < 4; j++) {
            const int c = k + j * TL_TREE_THREADS + (int)threadIdx.x;
            lanes[j] += c < n ? f.at(row * cols + start + c, start + c) : 0.0f;
        }
    const float s = tl_fold_block<tl_sum_op>(tl_fold_array<tl_sum_op, 4>(lanes), shared);
    if (threadIdx.x == 0) out[blockIdx.x] = tl_end_sum(s, count);
}

template <class F>
__global__ void __launch_bounds__(TL_TREE_THREADS)
    tl_leaf_map(F f, uint32_t per_row, int64_t cols, float *__restrict__ out)
{
    const int64_t row = blockIdx.x / per_row, start = (int64_t)(blockIdx.x % per_row) * TL_SUM_LEAF;
    const int n = (int)min(cols - start, (int64_t)TL_SUM_LEAF);
    f.row(row);
#pragma unroll 8
    for (int c = (int)threadIdx.x; c < n; c += TL_TREE_THREADS)
        out[row * cols + start + c] = f.at(row * cols + start + c, start + c);
}

/* out[row] = the sum of f over the row; with count > 0 divided by it. */
template <class F>
static int32_t tl_long_row_sums(tl_context *ctx, const char *name, F f, int64_t rows, int64_t cols, int64_t count,
                                float *out)
{
    const int64_t per_row = tl_ceil_div(cols, TL_SUM_LEAF);
    const auto leaves = [&](int64_t last, float *to) {
        return tl_launch_ahead(ctx, name, tl_leaf_sums<F>, (unsigned)(rows * per_row), TL_TREE_THREADS, 0, f,
                               (uint32_t)per_row, cols, last, to);
    };
    if (per_row == 1) return leaves(count, out);
    tl_scratch<float> parts(ctx);
    TL_TRY(parts.allocate(rows * per_row));
    TL_TRY(leaves(0, parts));
    return tl_cuda_row_sums(ctx, parts, rows, per_row, count, out);
}

template <class F>
static int32_t tl_long_row_map(tl_context *ctx, const char *name, F f, int64_t rows, int64_t cols, float *out)
{
    const int64_t per_row = tl_ceil_div(cols, TL_SUM_LEAF);
    return tl_launch(ctx, name, tl_leaf_map<F>, (unsigned)(rows * per_row), TL_TREE_THREADS, f, (uint32_t)per_row, cols,
                     out);
}

struct tl_exponential {
    const float *x, *maximum;
    float m;
    __device__ void row(int64_t r) { m = maximum[r]; }
    __device__ float at(int64_t i, int64_t) const { return tl_exp(x[i] - m); }
};

/* The maxima of rows, and the sums of e^(x - maximum). A template, so that norms have no kernel of it. */
template <class Term = tl_exponential>
static int32_t tl_long_row_exponentials(tl_context *ctx, const char *name, const float *x, int64_t rows, int64_t cols,
                                        float *maximum, float *sum)
{
    TL_TRY(tl_cuda_row_extremes(ctx, x, rows, cols, false, maximum));
    return tl_long_row_sums(ctx, name, Term{x, maximum, 0.0f}, rows, cols, 0, sum);
}
