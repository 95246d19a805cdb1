/* Reductions on CUDA: sums, means and maxima along one axis or over everything, and their gradients.
 *
 * The reductions themselves are in reduce/trees.cu. Sums' gradients are broadcasts (the shape family), a mean's is a broadcast of
 * quotients, and a maximum's is that of amax (reduce/axes.cu). */
#include "cuda/device/sum_tree.cuh"
#include "generated/reduce.h"
#include "generated/shape.h"

#include "formula/count.h"

namespace {

constexpr int THREADS = 256;

/* Any axis: (outer, length, inner). */
struct axis_view {
    int64_t outer, length, inner;
};

axis_view view_axis(const tl_dims *dims, int64_t axis)
{
    axis_view v = {1, dims->d[axis], 1};
    for (int64_t i = 0; i < axis; i++)
        v.outer *= dims->d[i];
    for (int64_t i = axis + 1; i < dims->rank; i++)
        v.inner *= dims->d[i];
    return v;
}

int32_t sum_axis(tl_context *ctx, const float *x, axis_view v, int64_t count, float *out)
{
    return v.inner == 1 ? tl_cuda_row_sums(ctx, x, v.outer, v.length, count, out)
                        : tl_cuda_column_sums(ctx, x, v.outer, v.length, v.inner, count, out);
}

/* A thread owns a quotient. */
__global__ void __launch_bounds__(THREADS) quotients(const float *g, int64_t n, int64_t count, float *out)
{
    tl_wait_for_earlier();
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < n) out[i] = tl_per_count(g[i], count);
}

} // namespace

/* ---- the operations ---------------------------------------------------------------------------------------------- */

int32_t tl_cuda_reduce_sum(tl_context *ctx, const float *x, int64_t n, float *out)
{
    return tl_cuda_row_sums(ctx, x, 1, n, 0, out);
}

int32_t tl_cuda_reduce_sum_axis0(tl_context *ctx, const float *x, int64_t rows, int64_t cols, float *out)
{
    return sum_axis(ctx, x, axis_view{1, rows, cols}, 0, out);
}

int32_t tl_cuda_reduce_sum_axis1(tl_context *ctx, const float *x, int64_t rows, int64_t cols, float *out)
{
    return tl_cuda_row_sums(ctx, x, rows, cols, 0, out);
}

int32_t tl_cuda_reduce_sum_axis(tl_context *ctx, const float *x, const tl_dims *dims, int64_t axis, float *out)
{
    return sum_axis(ctx, x, view_axis(dims, axis), 0, out);
}

int32_t tl_cuda_reduce_mean(tl_context *ctx, const float *x, const tl_dims *dims, int64_t axis, float *out)
{
    const axis_view v = view_axis(dims, axis);
    if (v.length > 0) return sum_axis(ctx, x, v, v.length, out);
    return tl_cuda_fill(tl_context_cuda(ctx), out, TL_NAN, v.outer * v.inner);
}

int32_t tl_cuda_reduce_mean_bwd(tl_context *ctx, const float *g, const tl_dims *dims, int64_t axis, float *gx)
{
    const axis_view v = view_axis(dims, axis);
    const tl_dims one = {3, {v.outer, 1, v.inner}}, all = {3, {v.outer, v.length, v.inner}}, map = {3, {1, 2, 3}};
    const int64_t results = v.outer * v.inner;
    if (results * v.length == 0) return TORCHLEAN_OK;
    tl_scratch<float> scratch(ctx);
    TL_TRY(scratch.allocate(results));
    TL_TRY(tl_launch_ahead(ctx, "reduce_mean_bwd", quotients, tl_grid(results, THREADS), THREADS, 0, g, results,
                           v.length, scratch));
    return tl_cuda_broadcast_to(ctx, scratch, &one, &all, &map, gx);
}

int32_t tl_cuda_reduce_max_axis0(tl_context *ctx, const float *x, int64_t rows, int64_t cols, float *out)
{
    return cols == 1 ? tl_cuda_row_extremes(ctx, x, 1, rows, false, out)
                     : tl_cuda_column_extremes(ctx, x, 1, rows, cols, false, out);
}

/* The gradient of a maximum along an axis is that of amax. */
int32_t tl_cuda_reduce_max_axis0_bwd(tl_context *ctx, const float *x, const float *out, const float *g, int64_t rows,
                                     int64_t cols, float *gx)
{
    const tl_dims dims = {2, {rows, cols}};
    return tl_cuda_amax_bwd(ctx, x, out, g, &dims, 1, gx);
}

int32_t tl_cuda_reduce_max_axis1(tl_context *ctx, const float *x, int64_t rows, int64_t cols, float *out)
{
    return tl_cuda_row_extremes(ctx, x, rows, cols, false, out);
}

int32_t tl_cuda_reduce_max_axis1_bwd(tl_context *ctx, const float *x, const float *out, const float *g, int64_t rows,
                                     int64_t cols, float *gx)
{
    const tl_dims dims = {2, {rows, cols}};
    return tl_cuda_amax_bwd(ctx, x, out, g, &dims, 2, gx);
}
