/* Sums and means along one axis on CUDA, and the gradient of a mean.
 *
 * The reductions themselves are in reduce/trees.cu. The gradient of a sum is a broadcast (the shape family), that of a mean a
 * broadcast of quotients. */
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
