/* What the spectral kernels share: cuFFT plans of a context (spectral/plan.cu). */
#pragma once

#include <cufft.h>

#include "cuda/runtime/launch.cuh"

/* An infinity or NaN; the constant is the largest float32. */
__device__ __forceinline__ bool tl_not_finite(float x) { return !(fabsf(x) <= 3.402823466e38f); }

/* `batch` transforms of n points. Element t of transform b of the real side is at b·real_dist + t·real_stride; the
 * spectra are dense, n/2+1 complex numbers each. */
struct tl_fft_shape {
    int64_t n, batch, real_stride, real_dist;
    int inverse;
};

/* Forward: real -> spectrum. Inverse, unscaled: spectrum, which it overwrites and whose imaginary parts at bins 0 and
 * n/2 are 0, -> real. On the context's stream; the work area comes from the pool. n >= 2. */
int32_t tl_fft_run(tl_context *ctx, const tl_fft_shape &shape, float *real, float2 *spectrum);
/* Complex rows in place, unscaled: the same transforms of odd lengths, where each row is one of its own. */
int32_t tl_fft_run_complex(tl_context *ctx, int64_t n, int64_t batch, bool inverse, float2 *rows);
