/* Real Fourier transforms on CUDA: our own (spectral/own.cu, spectral/odd.cu, spectral/chirp.cu), or cuFFT between kernels that keep
 * the contract where cuFFT does not.
 *
 * cuFFT's inverse transform overwrites its input and is undefined for imaginary parts at bins 0 and n/2 other than 0,
 * so it gets a copy: with those set to 0, with the scale factor applied, and with both parts of a bin NaN where one is
 * not finite, which then reaches every element. The copies of a large batch are made and transformed in pieces that
 * stay in the L2 cache, so device memory sees the input and the output only. So do the complex rows as which cuFFT gets real ones
 * of odd lengths (spectral/plan.cu says why).
 *
 * After a forward transform every element is part of the real part of bin 0 with factor 1; a row where that is not
 * finite becomes NaN. Sums on the way may overflow from 4·n·max|x| = 2^128 on: the CPU path looks at its whole result and
 * transforms such a row again, scaled; here a look would cost a pass over device memory as large as the transform's own. */
#include <algorithm>

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
__global__ void __launch_bounds__(THREADS) finish_kernel(float2 *spec, int64_t rows, int64_t bins)
{
    tl_wait_for_earlier();
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
        X[bins - 1].y = 0.0f;
    }
}

__global__ void __launch_bounds__(THREADS)
    first_bins_kernel(const float2 *__restrict__ spec, int64_t rows, int64_t bins, float *__restrict__ out)
{
    const int64_t row = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (row < rows) out[row] = spec[row * bins].x;
}

/* ---- odd lengths: complex rows of their own ---------------------------------------------------------------------- */

/* In the four kernels below a thread owns UNROLL elements, THREADS apart: call(element) of those that exist. */
template <class Call> __device__ __forceinline__ void each_element(int64_t total, const Call &call)
{
    const int64_t first = (int64_t)blockIdx.x * (UNROLL * THREADS) + threadIdx.x;
    TL_UNROLL_FOR (int u = 0; u < UNROLL; u++)
        if (first + u * THREADS < total) call(first + u * THREADS);
}

__global__ void __launch_bounds__(THREADS)
    widen_kernel(const float *__restrict__ x, float2 *__restrict__ rows, int64_t total)
{
    each_element(total, [&](int64_t e) { rows[e] = make_float2(x[e], 0.0f); });
}

__global__ void __launch_bounds__(THREADS)
    narrow_kernel(const float2 *__restrict__ rows, float *__restrict__ x, int64_t total)
{
    each_element(total, [&](int64_t e) { x[e] = rows[e].x; });
}

/* The half spectra of transformed rows, weighted; a row whose bin 0 is not finite becomes NaN. */
__global__ void __launch_bounds__(THREADS)
    keep_kernel(const float2 *__restrict__ rows, float2 *__restrict__ spec, tl_fastdiv bins, int64_t n, int64_t total,
                float edge, float inner)
{
    each_element(total, [&](int64_t e) {
        uint32_t k;
        const float2 *const row = rows + (int64_t)bins.divmod((uint32_t)e, &k) * n;
        const float2 v = row[k];
        const float factor = k == 0 ? edge : inner;
        spec[e] = tl_not_finite(row[0].x) ? make_float2(TL_NAN, TL_NAN)
                                          : make_float2(v.x * factor, k == 0 ? 0.0f : v.y * factor);
    });
}

/* The whole spectra of rows from their halves, weighted: bin n - k is the conjugate of bin k. Both parts of a bin become NaN where
 * one is not finite. */
__global__ void __launch_bounds__(THREADS) spread_kernel(const float2 *__restrict__ spec, float2 *__restrict__ rows,
                                                         tl_fastdiv n, int64_t total, float edge, float inner)
{
    const int64_t length = n.divisor, bins = length / 2 + 1;
    each_element(total, [&](int64_t e) {
        uint32_t k;
        const int64_t row = n.divmod((uint32_t)e, &k);
        const bool upper = k >= bins;
        const float2 v = spec[row * bins + (upper ? length - k : k)];
        const float factor = k == 0 ? edge : inner, i = k == 0 ? 0.0f : upper ? -v.y : v.y;
        rows[e] = tl_not_finite(v.x) || tl_not_finite(i) ? make_float2(TL_NAN, TL_NAN)
                                                         : make_float2(v.x * factor, i * factor);
    });
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

/* Bytes of a piece's copy: it and the piece's input and output pass through an L2 of 50 MB. */
constexpr int64_t PIECE = (int64_t)12 << 20;

/* The rows of a piece whose copies have `bytes` each. */
int64_t rows_of_piece(int64_t batch, int64_t bytes)
{
    const int64_t pieces = batch * bytes <= 2 * PIECE ? 1 : tl_ceil_div(batch * bytes, PIECE);
    return tl_ceil_div(batch, std::min(pieces, batch));
}

int32_t transform_odd(tl_context *ctx, const float *from, float *to, int64_t batch, int64_t n, bool inverse, float edge,
                      float inner)
{
    const char *const name = "odd rows";
    const int64_t bins = n / 2 + 1, rows = rows_of_piece(batch, n * (int64_t)sizeof(float2));
    tl_scratch<float2> copy(ctx);
    TL_TRY(copy.allocate(rows * n));
    for (int64_t b = 0; b < batch; b += rows) {
        const int64_t count = std::min(rows, batch - b), total = count * n, halves = count * bins;
        const unsigned grid = tl_grid(total, UNROLL * THREADS);
        if (inverse) {
            TL_TRY(tl_launch(ctx, name, spread_kernel, grid, THREADS, (const float2 *)from + b * bins, copy,
                             tl_fastdiv(n), total, edge, inner));
            TL_TRY(tl_fft_run_complex(ctx, n, count, true, copy));
            TL_TRY(tl_launch(ctx, name, narrow_kernel, grid, THREADS, copy, to + b * n, total));
        } else {
            TL_TRY(tl_launch(ctx, name, widen_kernel, grid, THREADS, from + b * n, copy, total));
            TL_TRY(tl_fft_run_complex(ctx, n, count, false, copy));
            TL_TRY(tl_launch(ctx, name, keep_kernel, tl_grid(halves, UNROLL * THREADS), THREADS, copy,
                             (float2 *)to + b * bins, tl_fastdiv(bins), n, halves, edge, inner));
        }
    }
    return TORCHLEAN_OK;
}

int32_t forward(tl_context *ctx, const float *x, float *spec, int64_t batch, int64_t n, double edge, double inner)
{
    if (n == 1) return point(ctx, x, spec, batch, false, edge);
    if (n % 2 != 0) return transform_odd(ctx, x, spec, batch, n, false, (float)edge, (float)inner);
    const int64_t bins = n / 2 + 1, total = batch * bins;
    float2 *X = (float2 *)spec;
    TL_TRY(tl_fft_run(ctx, tl_fft_shape{n, batch, 1, n, 0}, (float *)x, X));
    if (edge == 1.0 && inner == 1.0)
        return tl_launch_ahead(ctx, "finish", finish_kernel, tl_grid(batch, THREADS / 32), THREADS, 0, X, batch, bins);
    tl_scratch<float> first(ctx);
    TL_TRY(first.allocate(batch));
    TL_TRY(tl_launch(ctx, "scale", first_bins_kernel, tl_grid(batch, THREADS), THREADS, X, batch, bins, first));
    return tl_launch(ctx, "scale", weight_kernel<true>, tl_grid(total, UNROLL * THREADS), THREADS, X, first, X,
                     tl_fastdiv(bins), n, total, (float)edge, (float)inner);
}

int32_t inverse(tl_context *ctx, const float *spec, float *x, int64_t batch, int64_t n, double edge, double inner)
{
    if (n == 1) return point(ctx, spec, x, batch, true, edge);
    if (n % 2 != 0) return transform_odd(ctx, spec, x, batch, n, true, (float)edge, (float)inner);
    const int64_t bins = n / 2 + 1, rows = rows_of_piece(batch, bins * (int64_t)sizeof(float2));
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

/* Whether a transform of our own computes it, then into *status: in the mode `reproducible`, for lengths with a large prime, and where
 * cuFFT's would take a complex row for each odd real one, and copies of it, though a row fits shared memory. */
bool own_serves(tl_context *ctx, const tl_own_real_rows &t, bool inverse, double edge, double inner, int32_t *status)
{
    constexpr int64_t ONE_PASS = 15;
    int radix[tl_own_direct::STAGES];
    if (!tl_is_reproducible(ctx) && tl_odd_radices(t.n, radix))
        *status = tl_odd_real(ctx, t, inverse);
    else if (!tl_is_reproducible(ctx) && tl_half_serves(t.n))
        *status = tl_half_real(ctx, t, inverse);
    else if (!tl_is_reproducible(ctx) && (inverse || edge != 1.0) && tl_packed_serves(ctx, t))
        *status = tl_packed_real(ctx, t, inverse);
    else if (tl_is_reproducible(ctx) || (t.n % 2 != 0 && t.n <= ONE_PASS))
        *status = tl_own_real(ctx, t.from, t.to, t.batch, t.n, inverse, edge, inner);
    else
        return false;
    return true;
}

int32_t real_to_half(tl_context *ctx, const float *x, int64_t batch, int64_t n, double edge, double inner, float *spec)
{
    int32_t status;
    const tl_own_real_rows t = {x, spec, batch, n, n / 2 + 1, (float)edge, (float)inner};
    if (own_serves(ctx, t, false, edge, inner, &status)) return status;
    return forward(ctx, x, spec, batch, n, edge, inner);
}

int32_t half_to_real(tl_context *ctx, const float *spec, int64_t batch, int64_t n, double edge, double inner, float *x)
{
    int32_t status;
    const tl_own_real_rows t = {spec, x, batch, n, n / 2 + 1, (float)edge, (float)inner};
    if (own_serves(ctx, t, true, edge, inner, &status)) return status;
    return inverse(ctx, spec, x, batch, n, edge, inner);
}

} /* namespace */

extern "C" int32_t tl_cuda_rfft1d_packed(tl_context *ctx, const float *x, int64_t batch, int64_t n, float *spec)
{
    return real_to_half(ctx, x, batch, n, 1.0, 1.0, spec);
}

extern "C" int32_t tl_cuda_rfft1d_packed_bwd(tl_context *ctx, const float *g, int64_t batch, int64_t n, float *gx)
{
    return half_to_real(ctx, g, batch, n, 1.0, 0.5, gx);
}

extern "C" int32_t tl_cuda_irfft1d_packed(tl_context *ctx, const float *spec, int64_t batch, int64_t n, float *x)
{
    return half_to_real(ctx, spec, batch, n, 1.0 / (double)n, 1.0 / (double)n, x);
}

extern "C" int32_t tl_cuda_irfft1d_packed_bwd(tl_context *ctx, const float *g, int64_t batch, int64_t n, float *gspec)
{
    return real_to_half(ctx, g, batch, n, 1.0 / (double)n, 2.0 / (double)n, gspec);
}
