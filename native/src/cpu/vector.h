/* Float vectors of one SIMD variant: width, loads, stores, and the fused multiply-add with a broadcast factor.
 *
 * tl_load_first: the first n >= 0 lanes, the others being 0. tl_store_first: the first n lanes of v, 1 <= n <= all of them.
 * tl_vec_stream stores past the cache, to an aligned place, for results too large to stay in it: the processor then writes whole lines
 * and does not read them first, which saves a third of a copy's traffic and half of a fill's. Such stores should come in whole,
 * aligned lines, and nothing orders them but tl_stream_end, which a task calls before it returns. */
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "formula/base.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#define TL_INLINE static inline __attribute__((always_inline, unused))

#if defined(__AVX512F__)

/* TL_PANEL rows by two vectors of sums, two vectors and a broadcast fit the registers. */
enum { TL_LANES = 16, TL_PANEL = 12 };
typedef __m512 tl_vec;
TL_INLINE tl_vec tl_vec_load(const float *p) { return _mm512_loadu_ps(p); }
TL_INLINE void tl_vec_store(float *p, tl_vec v) { _mm512_storeu_ps(p, v); }
TL_INLINE tl_vec tl_vec_fma(float x, tl_vec y, tl_vec z) { return _mm512_fmadd_ps(_mm512_set1_ps(x), y, z); }
TL_INLINE tl_vec tl_vec_zero(void) { return _mm512_setzero_ps(); }
TL_INLINE void tl_vec_stream(float *p, tl_vec v) { _mm512_stream_ps(p, v); }
TL_INLINE tl_vec tl_load_first(const float *p, int64_t n)
{
    return _mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p);
}
TL_INLINE void tl_store_first(float *p, tl_vec v, int64_t n)
{
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), v);
}

#elif defined(__AVX2__) && defined(__FMA__)

enum { TL_LANES = 8, TL_PANEL = 6 };
typedef __m256 tl_vec;
TL_INLINE tl_vec tl_vec_load(const float *p) { return _mm256_loadu_ps(p); }
TL_INLINE void tl_vec_store(float *p, tl_vec v) { _mm256_storeu_ps(p, v); }
TL_INLINE tl_vec tl_vec_fma(float x, tl_vec y, tl_vec z) { return _mm256_fmadd_ps(_mm256_set1_ps(x), y, z); }
TL_INLINE tl_vec tl_vec_zero(void) { return _mm256_setzero_ps(); }
TL_INLINE void tl_vec_stream(float *p, tl_vec v) { _mm256_stream_ps(p, v); }
TL_INLINE tl_vec tl_load_first(const float *p, int64_t n)
{
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_maskload_ps(p, _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), lane));
}
/* In halves: with AVX2 a store under a mask takes some processors as long as twelve others, even that of a whole vector. */
TL_INLINE void tl_store_first(float *p, tl_vec v, int64_t n)
{
    if (n == 8) {
        _mm256_storeu_ps(p, v);
        return;
    }
    __m128 part = _mm256_castps256_ps128(v);
    if (n & 4) {
        _mm_storeu_ps(p, part);
        part = _mm256_extractf128_ps(v, 1);
        p += 4;
    }
    if (n & 2) {
        _mm_storel_pi((__m64 *)p, part);
        part = _mm_movehl_ps(part, part);
        p += 2;
    }
    if (n & 1) _mm_store_ss(p, part);
}

#else

enum { TL_LANES = 4, TL_PANEL = 4 };
typedef float tl_vec __attribute__((vector_size(16), may_alias));
TL_INLINE tl_vec tl_vec_load(const float *p)
{
    tl_vec v;
    memcpy(&v, p, sizeof v);
    return v;
}
TL_INLINE void tl_vec_store(float *p, tl_vec v) { memcpy(p, &v, sizeof v); }
TL_INLINE tl_vec tl_vec_zero(void) { return (tl_vec){0}; }
TL_INLINE tl_vec tl_load_first(const float *p, int64_t n)
{
    tl_vec v = {0};
    memcpy(&v, p, (size_t)n * sizeof *p);
    return v;
}
TL_INLINE void tl_store_first(float *p, tl_vec v, int64_t n) { memcpy(p, &v, (size_t)n * sizeof *p); }
TL_INLINE void tl_vec_stream(float *p, tl_vec v)
{
#if defined(__SSE2__)
    _mm_stream_ps(p, (__m128)v);
#else
    tl_vec_store(p, v);
#endif
}

#if defined(__FMA__) || !defined(__SSE2__)
TL_INLINE tl_vec tl_vec_fma(float x, tl_vec y, tl_vec z)
{
    return (tl_vec){fmaf(x, y[0], z[0]), fmaf(x, y[1], z[1]), fmaf(x, y[2], z[2]), fmaf(x, y[3], z[3])};
}
#else
/* Without the instruction. The product of two floats is exact in double, and rounding its sum with the addend twice, to
 * double and to float, is right unless the first result lies midway between two floats, or the second is below the normal
 * range. There the sum is rounded to odd first (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums: proved
 * algorithms using rounding to odd", IEEE Trans. Computers 57, 2008). For infinities and NaN the error term is NaN,
 * compares false both ways, and the sum passes as it is. */
typedef int64_t tl_longs __attribute__((vector_size(16)));

TL_INLINE __m128d tl_sum_to_odd(__m128d product, __m128d addend)
{
    const __m128d sum = product + addend, part = sum - product, none = {0};
    const __m128d error = (product - (sum - part)) + (addend - part);
    const tl_longs above = error > none, below = error < none, negative = sum < none;
    return (__m128d)(((tl_longs)sum + ((above & negative) | (below & ~negative))) | ((above | below) & 1));
}

TL_INLINE tl_vec tl_vec_fma(float x, tl_vec y, tl_vec z)
{
    const __m128d factor = _mm_set1_pd(x);
    const __m128d first = _mm_cvtps_pd(y) * factor, last = _mm_cvtps_pd(_mm_movehl_ps(y, y)) * factor;
    const __m128d add_first = _mm_cvtps_pd(z), add_last = _mm_cvtps_pd(_mm_movehl_ps(z, z));
    __m128d sum_first = first + add_first, sum_last = last + add_last;
    const __m128 rounded = _mm_movelh_ps(_mm_cvtpd_ps(sum_first), _mm_cvtpd_ps(sum_last));
    const __m128i cut = (__m128i)_mm_shuffle_ps((__m128)sum_first, (__m128)sum_last, _MM_SHUFFLE(2, 0, 2, 0));
    const __m128i midway = _mm_cmpeq_epi32(_mm_and_si128(cut, _mm_set1_epi32(0x1fffffff)), _mm_set1_epi32(0x10000000));
    const __m128i exponent = _mm_and_si128((__m128i)rounded, _mm_set1_epi32(0x7f800000));
    const __m128i doubt = _mm_or_si128(midway, _mm_cmpeq_epi32(exponent, _mm_setzero_si128()));
    if (__builtin_expect(_mm_movemask_epi8(doubt) == 0, 1)) return rounded;
    sum_first = tl_sum_to_odd(first, add_first), sum_last = tl_sum_to_odd(last, add_last);
    return _mm_movelh_ps(_mm_cvtpd_ps(sum_first), _mm_cvtpd_ps(sum_last));
}
#endif
#endif

static inline void tl_stream_end(void)
{
#if defined(__SSE2__)
    _mm_sfence();
#endif
}
