/* What the files of the family share: own transforms and their plans, cuFFT's transforms, the reproducible convolution. */
#pragma once

#include "cuda/device/division.cuh"
#include "cuda/runtime/launch.cuh"
#include "cuda/spectral/select.h"
#include "formula/butterfly.h"
#include "formula/fft_plan.h"

/* An infinity or NaN; the constant is the largest float32. */
__device__ __forceinline__ bool tl_not_finite(float x) { return !(fabsf(x) <= 3.402823466e38f); }

/* ---- own transforms ---------------------------------------------------------------------------------------------- */

__device__ __forceinline__ tl_complex tl_take(const float2 *x, int64_t at)
{
    const float2 v = x[at];
    return tl_complex_of(v.x, v.y);
}
__device__ __forceinline__ void tl_put(float2 *x, int at, tl_complex v) { x[at] = make_float2(v.r, v.i); }

/* A direct transform: passes over shared memory. */
struct tl_own_direct {
    enum { STAGES = 16 };
    int n, stages;
    int radix[STAGES];
    tl_fastdiv each[STAGES], span[STAGES]; /* by n/radix, and by the product of the radices before */
    /* Of every pass: for j = 1..radix-1 the roots e^(-2·pi·i·p·j/(m·radix)) of all p < m, so that neighbouring lanes read neighbours. */
    const float2 *twiddle;
};

/* Real rows and their half spectra, and the factors of bin 0 and the middle one, and of the others. */
struct tl_own_real_rows {
    const float *from;
    float *to;
    int64_t batch, n, bins;
    float edge, inner;
};

/* A plan with tables on the device, that of the CPU (cpu/spectral/plan.c). direct: of the length, of Bluestein's convolution, or of the columns of four steps; rows: of
 * the rows of four steps. */
struct tl_own_plan {
    int64_t n, m; /* m: of the convolution, else n */
    bool in_shared, bluestein;
    tl_own_direct direct, rows;
    const float *chirp, *kernel, *real; /* real: what splits a packed transform */
    tl_roots roots;
    const double *lane_roots;
    /* Of plans in place: where passes in place leave number k, and n/2. */
    const uint16_t *places;
    tl_fastdiv pairs;
};

/* The plan of n complex numbers, kept by the context. in_place: of a power of two (spectral/packed.cu), direct has the radices of passes
 * in place, the last pass's first, which is 16, as are the others but the one of the first pass. */
int32_t tl_own_find(tl_context *ctx, int64_t n, bool in_place, tl_own_plan *plan);

/* The tables of roots of a pass in place, and the powers that they hold, of a first power for each butterfly: all but 0, or of a radix
 * divisible by 4 those of which the others are products of two. */
__host__ __device__ constexpr int tl_packed_roots(int radix) { return radix % 4 == 0 ? radix / 4 + 2 : radix - 1; }
__host__ __device__ constexpr int tl_packed_power(int radix, int table)
{
    return radix % 4 == 0 && table > 2 ? 4 * (table - 2) : table + 1;
}

static inline int32_t tl_spectral_device_of(tl_context *ctx, tl_spectral_device *device)
{
    int which, bytes;
    TL_CUDA_TRY(ctx, cudaGetDevice(&which));
    TL_CUDA_TRY(ctx, cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, which));
    *device = tl_spectral_device{tl_cuda_sms(ctx), bytes};
    return TORCHLEAN_OK;
}

/* Real transforms as in cpu/spectral/spectral.c. batch > 0 in both. */
int32_t tl_own_real(tl_context *ctx, const tl_spectral_device &device, const tl_own_real_rows &t, bool inverse);
/* Rows that tl_select_real chooses for it (spectral/packed.cu). */
int32_t tl_packed_real(tl_context *ctx, const tl_own_real_rows &t, bool inverse);

/* ---- cuFFT's, of any length, of rows and spectra that lie in memory as the caller has them (spectral/library.cu) ---- */

/* Number t of row b is at[b·row + t·number]. */
struct tl_real_rows {
    float *at;
    int64_t row, number;
};

/* Part re or im of bin k of row b is [b·row + k·bin], for k < count: other bins are not kept, or are 0. Bins 0 and n/2 are multiplied
 * by edge, the others by inner. */
struct tl_half_spectra {
    float *re, *im;
    int64_t row, bin, count;
    float edge, inner;
};

/* n >= 2. A row that is not finite becomes NaN. */
int32_t tl_library_forward(tl_context *ctx, int64_t n, int64_t batch, const tl_real_rows &from,
                           const tl_half_spectra &to);
/* Imaginary parts of bins 0 and n/2 are ignored. */
int32_t tl_library_inverse(tl_context *ctx, int64_t n, int64_t batch, const tl_half_spectra &from,
                           const tl_real_rows &to);

/* ---- the spectral convolution in the mode `reproducible` (spectral/chain.cu): the sums of cpu/spectral/chain.h ------- */

/* modes > 0, width > 0. */
int32_t tl_spectral_chain(tl_context *ctx, const float *x, const float *wRe, const float *wIm, int64_t grid,
                          int64_t width, int64_t modes, float *y);
/* A gradient that is NULL is left out. */
int32_t tl_spectral_chain_bwd(tl_context *ctx, const float *x, const float *wRe, const float *wIm, const float *g,
                              int64_t grid, int64_t width, int64_t modes, float *gx, float *gwRe, float *gwIm);
