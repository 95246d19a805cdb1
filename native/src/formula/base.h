/* What every scalar formula builds on: TL_HD, which makes a function that both compilers inline, bit casts,
 * and the constants of float32.
 *
 * Formulas are compiled by gcc (once per SIMD variant) and by nvcc. They must give the same bits everywhere, so they use
 * only operations IEEE 754 rounds correctly: + - * / sqrtf fmaf, comparisons, integer arithmetic on the bit pattern.
 * Contraction is switched off in both compilers; a fused multiply-add is written fmaf. Branches are written as selects,
 * so that a loop over a formula vectorises. */
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define TL_HD static __host__ __device__ __forceinline__
#else
#define TL_HD static inline __attribute__((always_inline, unused))
#endif

#define TL_INF __builtin_inff()
#define TL_NAN __builtin_nanf("")

TL_HD uint32_t tl_bits(float x)
{
#ifdef __CUDA_ARCH__
    return __float_as_uint(x);
#else
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
#endif
}

TL_HD float tl_from_bits(uint32_t u)
{
#ifdef __CUDA_ARCH__
    return __uint_as_float(u);
#else
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
#endif
}
