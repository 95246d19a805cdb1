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

/* x held at lo from below, lo < 0, or at hi from above, hi >= 0; what becomes of a NaN is the caller's to mend. On the CPU by minima
 * of bit patterns: one instruction of a vector, and no condition along which a compiler splits the formula. */
TL_HD float tl_at_least(float x, float lo)
{
#ifdef __CUDA_ARCH__
    return fmaxf(x, lo);
#else
    return tl_from_bits(tl_bits(x) > tl_bits(lo) ? tl_bits(lo) : tl_bits(x));
#endif
}

TL_HD float tl_at_most(float x, float hi)
{
#ifdef __CUDA_ARCH__
    return fminf(x, hi);
#else
    const int32_t u = (int32_t)tl_bits(x), bound = (int32_t)tl_bits(hi);
    return tl_from_bits((uint32_t)(u > bound ? bound : u));
#endif
}

/* x held between both; a NaN stays. */
TL_HD float tl_between(float x, float lo, float hi)
{
#ifdef __CUDA_ARCH__
    float y;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(x), "f"(lo));
    asm("min.NaN.f32 %0, %0, %1;" : "+f"(y) : "f"(hi));
    return y;
#else
    return x != x ? x : tl_at_most(tl_at_least(x, lo), hi);
#endif
}
