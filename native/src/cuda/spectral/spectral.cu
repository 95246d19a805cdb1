/* Real Fourier transforms on CUDA: cuFFT between kernels that keep the contract where cuFFT does not.
 *
 * cuFFT's inverse transform overwrites its input and is undefined for imaginary parts at bins 0 and n/2 other than 0,
 * so it gets a copy: with those set to 0, with the scale factor applied, and with both parts of a bin NaN where one is
 * not finite, which then reaches every element. The copies of a large batch are made and transformed in pieces that
 * stay in the L2 cache, so device memory sees the input and the output only.
 *
 * After a forward transform every element is part of the real part of bin 0 with factor 1; a row where that is not
 * finite becomes NaN. Sums on the way may overflow from 4·n·max|x| = 2^128 on: the CPU path looks at its whole result and
 * transforms such a row again, scaled; here a look would cost a pass over device memory as large as the transform's own. */
#include "cuda/spectral/own.cuh"
#include "cuda/spectral/plan.cuh"
#include "formula/base.h"
#include "generated/spectral.h"

namespace {

constexpr int THREADS = 256, UNROLL = 4;

/* ---- around cuFFT ------------------------------------------------------------------------------------------------ */

/* Bin k of every row times `edge` at k = 0 and k = n/2, where the imaginary part becomes 0, else `inner`. The inverse
 * transform's input gets both parts of a bin NaN where one is not finite. A spectrum of the forward transform, scaled in
 * place, becomes NaN in the rows whose bin 0 is not finite; `first_bins` holds the real parts of these bins, which other
 * threads overwrite. A thread owns four bins, THREADS apart. */
template <bool FORWARD>
__global__ void __launch_bounds__(THREADS)
    weight_kernel(const float2 *from, const float *__restrict__ first_bins, float2 *to, tl_fastdiv bins, int64_t n,
                  int64_t total, float edge, float inner)
{
    const int64_t first = (int64_t)blockIdx.x * (UNROLL * THREADS) + threadIdx.x;
    float2 v[UNROLL];
    TL_UNROLL_FOR (int u = 0; u < UNROLL; u++)
        if (first + u * THREADS < total) v[u] = from[first + u * THREADS];
    TL_UNROLL_FOR (int u = 0; u < UNROLL; u++) {
        const int64_t e = first + u * THREADS;
        if (e < total) {
            uint32_t k;
            const uint32_t row = bins.divmod((uint32_t)e, &k);
            const bool end = k == 0 || 2 * (int64_t)k == n;
            const float factor = end ? edge : inner, r = v[u].x, i = end ? 0.0f : v[u].y;
            const bool bad = FORWARD ? tl_not_finite(first_bins[row]) : tl_not_finite(r) || tl_not_finite(i);
            to[e] = bad ? make_float2(TL_NAN, TL_NAN) : make_float2(r * factor, i * factor);
        }
    }
}

/* A warp owns a row after the forward transform: idle imaginary parts 0, a row that is not finite NaN. */
__global__ void __launch_bounds__(THREADS) finish_kernel(float2 *spec, int64_t rows, int64_t bins, bool even)
{
    const int64_t row = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / 32;
    const int lane = threadIdx.x % 32;
    if (row >= rows) return;
    float2 *X = spec + row * bins;
    const bool bad = tl_not_finite(X[0].x);
    __syncwarp();
    if (bad)
        for (int64_t k = lane; k < bins; k += 32)
            X[k] = make_float2(TL_NAN, TL_NAN);
    else if (lane == 0) {
        X[0].y = 0.0f;
        if (even) X[bins - 1].y = 0.0f;
    }
}

__global__ void __launch_bounds__(THREADS)
    first_bins_kernel(const float2 *__restrict__ spec, int64_t rows, int64_t bins, float *__restrict__ out)
{
    const int64_t row = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (row < rows) out[row] = spec[row * bins].x;
}

/* One point: the transform is the element itself. */
__global__ void __launch_bounds__(THREADS)
    point_kernel(const float *__restrict__ from, float *__restrict__ to, int64_t rows, bool inverse, float factor)
{
    const int64_t row = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (row >= rows) return;
    const float x = from[inverse ? 2 * row : row];
    const float v = tl_not_finite(x) ? TL_NAN : x * factor;
    to[inverse ? row : 2 * row] = v;
    if (!inverse) to[2 * row + 1] = tl_not_finite(x) ? v : 0.0f;
}

int32_t point(tl_context *ctx, const float *from, float *to, int64_t rows, bool inverse, double factor)
{
    return tl_launch(ctx, "point", point_kernel, tl_grid(rows, THREADS), THREADS, from, to, rows, inverse,
                     (float)factor);
}

int32_t forward(tl_context *ctx, const float *x, float *spec, int64_t batch, int64_t n, bool scaled, double edge,
                double inner)
{
    if (n == 1) return point(ctx, x, spec, batch, false, edge);
    const int64_t bins = n / 2 + 1, total = batch * bins;
    float2 *X = (float2 *)spec;
    TL_TRY(tl_fft_run(ctx, tl_fft_shape{n, batch, 1, n, 0}, (float *)x, X));
    if (!scaled)
        return tl_launch(ctx, "finish", finish_kernel, tl_grid(batch, THREADS / 32), THREADS, X, batch, bins,
                         n % 2 == 0);
    tl_scratch<float> first(ctx);
    TL_TRY(first.allocate(batch));
    TL_TRY(tl_launch(ctx, "scale", first_bins_kernel, tl_grid(batch, THREADS), THREADS, X, batch, bins, first));
    return tl_launch(ctx, "scale", weight_kernel<true>, tl_grid(total, UNROLL * THREADS), THREADS, X, first, X,
                     tl_fastdiv(bins), n, total, (float)edge, (float)inner);
}

/* Bytes of a piece's copy: it and the piece's input and output pass through an L2 of 50 MB. */
constexpr int64_t PIECE = (int64_t)12 << 20;

int32_t inverse(tl_context *ctx, const float *spec, float *x, int64_t batch, int64_t n, double edge, double inner)
{
    if (n == 1) return point(ctx, spec, x, batch, true, edge);
    const int64_t bins = n / 2 + 1, row = bins * (int64_t)sizeof(float2);
    const int64_t pieces = batch * row <= 2 * PIECE ? 1 : tl_ceil_div(batch * row, PIECE);
    const int64_t rows = tl_ceil_div(batch, pieces < batch ? pieces : batch);
    tl_scratch<float2> copy(ctx);
    TL_TRY(copy.allocate(rows * bins));
    for (int64_t b = 0; b < batch; b += rows) {
        const int64_t count = batch - b < rows ? batch - b : rows;
        TL_TRY(tl_launch(ctx, "prepare", weight_kernel<false>, tl_grid(count * bins, UNROLL * THREADS), THREADS,
                         (const float2 *)spec + b * bins, nullptr, copy, tl_fastdiv(bins), n, count * bins, (float)edge,
                         (float)inner));
        TL_TRY(tl_fft_run(ctx, tl_fft_shape{n, count, 1, n, 1}, x + b * n, copy));
    }
    return TORCHLEAN_OK;
}

/* Whether our own transform computes it: in the mode `reproducible`, and where cuFFT's would take a complex row for each odd real
 * one, and copies of it (spectral/plan.cu), though a row fits shared memory. */
bool own_serves(tl_context *ctx, int64_t n)
{
    constexpr int64_t ODD_MOST = 1024;
    return tl_is_reproducible(ctx) || (n % 2 != 0 && n <= ODD_MOST);
}

} /* namespace */

extern "C" int32_t tl_cuda_rfft1d_packed(tl_context *ctx, const float *x, int64_t batch, int64_t n, float *spec)
{
    if (own_serves(ctx, n)) return tl_own_real(ctx, x, spec, batch, n, false, 1.0, 1.0);
    return forward(ctx, x, spec, batch, n, false, 1.0, 1.0);
}

extern "C" int32_t tl_cuda_rfft1d_packed_bwd(tl_context *ctx, const float *g, int64_t batch, int64_t n, float *gx)
{
    if (own_serves(ctx, n)) return tl_own_real(ctx, g, gx, batch, n, true, 1.0, 0.5);
    return inverse(ctx, g, gx, batch, n, 1.0, 0.5);
}

extern "C" int32_t tl_cuda_irfft1d_packed(tl_context *ctx, const float *spec, int64_t batch, int64_t n, float *x)
{
    if (own_serves(ctx, n)) return tl_own_real(ctx, spec, x, batch, n, true, 1.0 / (double)n, 1.0 / (double)n);
    return inverse(ctx, spec, x, batch, n, 1.0 / (double)n, 1.0 / (double)n);
}

extern "C" int32_t tl_cuda_irfft1d_packed_bwd(tl_context *ctx, const float *g, int64_t batch, int64_t n, float *gspec)
{
    if (own_serves(ctx, n)) return tl_own_real(ctx, g, gspec, batch, n, false, 1.0 / (double)n, 2.0 / (double)n);
    return forward(ctx, g, gspec, batch, n, true, 1.0 / (double)n, 2.0 / (double)n);
}
