/* Gathers on CUDA, and the entry points of the index family. The scatter-adds themselves are in scatter.cu. */
#include "cuda/device/division.cuh"
#include "cuda/device/vector.cuh"
#include "cuda/index/scatter.cuh"
#include "cuda/runtime/launch.cuh"
#include "generated/index.h"

namespace {

constexpr int THREADS = 256;

/* ---- gathers ----------------------------------------------------------------------------------------------------- */

/* Thread t of a block owns the output's vectors t, t + THREADS, ... of the block's 4·THREADS; `inner` and `total` count
 * vectors, of more than one float where columns share their indices. All index loads, then all loads of x are in flight together. A
 * result too large for L2 is written past it, which leaves the room to rows that are read again. */
template <class Vector>
__global__ void __launch_bounds__(THREADS) take_axis_kernel(const Vector *__restrict__ x, tl_axis_indices indices,
                                                            Vector *__restrict__ out, int64_t total, bool streaming)
{
    const int64_t first = (int64_t)blockIdx.x * (4 * THREADS) + threadIdx.x;
    uint32_t index[4], outer[4], column[4], j;
    Vector v[4];
    TL_UNROLL_FOR (int u = 0; u < 4; u++) {
        const int64_t t = first + u * THREADS;
        index[u] = indices.n;
        if (t < total) index[u] = indices.of((uint32_t)t, &outer[u], &j, &column[u]);
    }
    TL_UNROLL_FOR (int u = 0; u < 4; u++) {
        v[u] = Vector{};
        if (index[u] < indices.n)
            v[u] = x[((int64_t)outer[u] * indices.n + index[u]) * indices.inner.divisor + column[u]];
    }
    TL_UNROLL_FOR (int u = 0; u < 4; u++) {
        const int64_t t = first + u * THREADS;
        if (t >= total) continue;
        if (streaming)
            __stcs(out + t, v[u]);
        else
            out[t] = v[u];
    }
}

constexpr int64_t STREAMED = (int64_t)1 << 23; /* elements of a result that are written past L2 */

/* The indices lie on the device. */
int32_t take(tl_context *ctx, const char *name, const float *x, const uint32_t *indices, int64_t outer, int64_t n,
             int64_t inner, int64_t io, int64_t k, int64_t ii, float *out)
{
    const int64_t total = outer * k * inner;
    const bool streaming = total >= STREAMED;
    if (ii == 1 && inner % 4 == 0 && tl_aligned4(x) && tl_aligned4(out))
        return tl_launch(ctx, name, take_axis_kernel<float4>, tl_grid(total / 4, 4 * THREADS), THREADS,
                         (const float4 *)x, tl_axis_indices::make(indices, n, inner / 4, io, k, 1), (float4 *)out,
                         total / 4, streaming);
    return tl_launch(ctx, name, take_axis_kernel<float>, tl_grid(total, 4 * THREADS), THREADS, x,
                     tl_axis_indices::make(indices, n, inner, io, k, ii), out, total, streaming);
}

/* Sums into rows from indices on the host or the device. */
int32_t scatter_rows(tl_context *ctx, const char *name, const float *base, const float *values, const uint32_t *indices,
                     int64_t rows, int64_t cols, int64_t k, float *out)
{
    tl_scratch<uint32_t> list(ctx);
    if (k > 0) TL_TRY(list.stage(indices, k));
    return tl_scatter(ctx, name, base, values, list, 1, rows, cols, 1, k, 1, out);
}

/* A thread owns a column of a row. */
__global__ void __launch_bounds__(THREADS)
    add_row_kernel(const float *row, const float *added, float *out, int64_t cols)
{
    tl_wait_for_earlier();
    const int64_t c = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (c < cols) out[c] = row[c] + added[c];
}

} /* namespace */

/* ---- the operations ---------------------------------------------------------------------------------------------- */

extern "C" int32_t tl_cuda_gather_rows(tl_context *ctx, const float *mat, const uint32_t *indices, int64_t rows,
                                       int64_t cols, int64_t k, float *out)
{
    tl_scratch<uint32_t> list(ctx);
    TL_TRY(list.stage(indices, k));
    return take(ctx, "gather_rows", mat, list, 1, rows, cols, 1, k, 1, out);
}

extern "C" int32_t tl_cuda_gather_rows_bwd(tl_context *ctx, const uint32_t *indices, const float *g, int64_t rows,
                                           int64_t cols, int64_t k, float *gmat)
{
    return scatter_rows(ctx, "gather_rows_bwd", nullptr, g, indices, rows, cols, k, gmat);
}

extern "C" int32_t tl_cuda_scatter_add_rows(tl_context *ctx, const float *mat, const float *values,
                                            const uint32_t *indices, int64_t rows, int64_t cols, int64_t k, float *out)
{
    return scatter_rows(ctx, "scatter_add_rows", mat, values, indices, rows, cols, k, out);
}

extern "C" int32_t tl_cuda_take_axis(tl_context *ctx, const float *x, const uint32_t *indices, int64_t outer, int64_t n,
                                     int64_t inner, int64_t io, int64_t k, int64_t ii, float *out)
{
    return take(ctx, "take_axis", x, indices, outer, n, inner, io, k, ii, out);
}

extern "C" int32_t tl_cuda_take_axis_bwd(tl_context *ctx, const uint32_t *indices, const float *g, int64_t outer,
                                         int64_t n, int64_t inner, int64_t io, int64_t k, int64_t ii, float *gx)
{
    return tl_scatter(ctx, "take_axis_bwd", nullptr, g, indices, outer, n, inner, io, k, ii, gx);
}

extern "C" int32_t tl_cuda_scatter_add_axis(tl_context *ctx, const float *x, const float *values,
                                            const uint32_t *indices, int64_t outer, int64_t n, int64_t inner, int64_t k,
                                            int64_t io, int64_t ii, float *out)
{
    return tl_scatter(ctx, "scatter_add_axis", x, values, indices, outer, n, inner, io, k, ii, out);
}

extern "C" int32_t tl_cuda_scatter_add_row(tl_context *ctx, const float *mat, const float *row, int64_t rows,
                                           int64_t cols, int64_t i, float *out)
{
    TL_TRY(tl_cuda_copy(tl_context_cuda(ctx), out, mat, (size_t)(rows * cols) * sizeof *out));
    return tl_launch_ahead(ctx, "scatter_add_row", add_row_kernel, tl_grid(cols, THREADS), THREADS, 0, mat + i * cols,
                           row, out + i * cols, cols);
}
