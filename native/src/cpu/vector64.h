/* Vectors of float64 of one SIMD variant, as wide as its vectors of float32 (vector.h): loads, stores, those of
 * float32 that are widened or rounded, and the fused multiply-add with a broadcast factor. */
#pragma once

#include "cpu/vector.h"

#if defined(__AVX512F__)

typedef __m512d tl_vec64;
TL_INLINE tl_vec64 tl_vec64_load(const double *p) { return _mm512_loadu_pd(p); }
TL_INLINE void tl_vec64_store(double *p, tl_vec64 v) { _mm512_storeu_pd(p, v); }
TL_INLINE tl_vec64 tl_vec64_widen(const float *p) { return _mm512_cvtps_pd(_mm256_loadu_ps(p)); }
TL_INLINE void tl_vec64_round(float *p, tl_vec64 v) { _mm256_storeu_ps(p, _mm512_cvtpd_ps(v)); }
TL_INLINE tl_vec64 tl_vec64_fma(double x, tl_vec64 y, tl_vec64 z) { return _mm512_fmadd_pd(_mm512_set1_pd(x), y, z); }

#elif defined(__AVX2__) && defined(__FMA__)

typedef __m256d tl_vec64;
TL_INLINE tl_vec64 tl_vec64_load(const double *p) { return _mm256_loadu_pd(p); }
TL_INLINE void tl_vec64_store(double *p, tl_vec64 v) { _mm256_storeu_pd(p, v); }
TL_INLINE tl_vec64 tl_vec64_widen(const float *p) { return _mm256_cvtps_pd(_mm_loadu_ps(p)); }
TL_INLINE void tl_vec64_round(float *p, tl_vec64 v) { _mm_storeu_ps(p, _mm256_cvtpd_ps(v)); }
TL_INLINE tl_vec64 tl_vec64_fma(double x, tl_vec64 y, tl_vec64 z) { return _mm256_fmadd_pd(_mm256_set1_pd(x), y, z); }

#else

typedef double tl_vec64 __attribute__((vector_size(16)));
TL_INLINE tl_vec64 tl_vec64_load(const double *p)
{
    tl_vec64 v;
    memcpy(&v, p, sizeof v);
    return v;
}
TL_INLINE void tl_vec64_store(double *p, tl_vec64 v) { memcpy(p, &v, sizeof v); }
TL_INLINE tl_vec64 tl_vec64_widen(const float *p) { return (tl_vec64){p[0], p[1]}; }
TL_INLINE void tl_vec64_round(float *p, tl_vec64 v) { p[0] = (float)v[0], p[1] = (float)v[1]; }
TL_INLINE tl_vec64 tl_vec64_fma(double x, tl_vec64 y, tl_vec64 z)
{
    return (tl_vec64){fma(x, y[0], z[0]), fma(x, y[1], z[1])};
}

#endif

/* Names for code that is compiled for both precisions. */
#define INLINE TL_INLINE
typedef tl_vec vec_f32;
INLINE vec_f32 load_f32(const float *p) { return tl_vec_load(p); }
INLINE void store_f32(float *p, vec_f32 v) { tl_vec_store(p, v); }
INLINE vec_f32 fma_f32(float x, vec_f32 y, vec_f32 z) { return tl_vec_fma(x, y, z); }
typedef tl_vec64 vec_f64;
INLINE vec_f64 load_f64(const double *p) { return tl_vec64_load(p); }
INLINE void store_f64(double *p, vec_f64 v) { tl_vec64_store(p, v); }
