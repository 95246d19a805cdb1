/* Loads and stores of the first lanes of a variant's float vector. */
#pragma once

#include <stdint.h>
#include <string.h>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include "formula/base.h"

/* tl_store_first: the first n lanes of v to p, 1 <= n <= all of them. tl_load_first: the first n >= 0, the others being 0. */
#if defined(__AVX512F__)
static inline __attribute__((always_inline)) __m512 tl_load_first(const float *p, int64_t n)
{
    return _mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p);
}
static inline __attribute__((always_inline)) void tl_store_first(float *p, __m512 v, int64_t n)
{
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), v);
}
#elif defined(__AVX2__)
static inline __attribute__((always_inline)) __m256 tl_load_first(const float *p, int64_t n)
{
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_maskload_ps(p, _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), lane));
}
/* In halves: with AVX2 a store under a mask takes some processors as long as twelve others, even that of a whole vector. */
static inline __attribute__((always_inline)) void tl_store_first(float *p, __m256 v, int64_t n)
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
typedef float tl_four __attribute__((vector_size(16), may_alias));
static inline __attribute__((always_inline)) tl_four tl_load_first(const float *p, int64_t n)
{
    tl_four v = {0};
    memcpy(&v, p, (size_t)n * sizeof *p);
    return v;
}
static inline __attribute__((always_inline)) void tl_store_first(float *p, tl_four v, int64_t n)
{
    memcpy(p, &v, (size_t)n * sizeof *p);
}
#endif
