/* Vectors of both precisions for convolutions: loads, stores, the fused multiply-add with a broadcast factor, and lanes that
 * are read in part. Both widths of a variant take the same registers. The product of two float32 is exact in
 * float64, so that a multiplication and an addition are a fused multiply-add where there is no instruction for it. */
#pragma once

#include <string.h>

#include "cpu/linalg/gemm.h"
#include "cpu/vector64.h"
#include "formula/integer.h"

enum { LANES = TL_GEMM_LANES, NR = TL_GEMM_NR, LANES_F32 = LANES, LANES_F64 = LANES / 2 };

/* Here factors are float32. */
INLINE vec_f64 fma_f64(double x, vec_f64 y, vec_f64 z)
{
#if defined(__FMA__) || !defined(__SSE2__)
    return tl_vec64_fma(x, y, z);
#else
    return x * y + z;
#endif
}

/* lanes_between: the lanes a <= l < b; read_lanes: those lanes of p, 0 elsewhere; fma_each: x·y + z in each lane;
 * even_lanes: lanes 0, 2, 4 and so on of x and then y;
 * narrow_f64: LANES sums, after an addend where there is one, rounded to float. */
#if defined(__AVX512F__)
INLINE vec_f32 narrow_f64(const double *p, const double *add)
{
    __m512d low = _mm512_loadu_pd(p), high = _mm512_loadu_pd(p + 8);
    if (add) low += *add, high += *add;
    return _mm512_insertf32x8(_mm512_castps256_ps512(_mm512_cvtpd_ps(low)), _mm512_cvtpd_ps(high), 1);
}
typedef __mmask16 lane_mask;
INLINE lane_mask lanes_between(int64_t a, int64_t b) { return (lane_mask)((1u << b) - (1u << a)); }
INLINE tl_vec read_lanes(const float *p, lane_mask m) { return _mm512_maskz_loadu_ps(m, p); }
INLINE tl_vec even_lanes(tl_vec x, tl_vec y)
{
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    return _mm512_permutex2var_ps(x, even, y);
}
#elif defined(__AVX2__) && defined(__FMA__)
typedef __m256i lane_mask;
INLINE lane_mask lanes_between(int64_t a, int64_t b)
{
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_andnot_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32((int)a), lane),
                               _mm256_cmpgt_epi32(_mm256_set1_epi32((int)b), lane));
}
INLINE tl_vec read_lanes(const float *p, lane_mask m) { return _mm256_maskload_ps(p, m); }
INLINE tl_vec even_lanes(tl_vec x, tl_vec y)
{
    const __m256d pairs = _mm256_castps_pd(_mm256_shuffle_ps(x, y, 0x88));
    return _mm256_castpd_ps(_mm256_permute4x64_pd(pairs, 0xd8));
}
INLINE vec_f32 narrow_f64(const double *p, const double *add)
{
    __m256d low = _mm256_loadu_pd(p), high = _mm256_loadu_pd(p + 4);
    if (add) low += *add, high += *add;
    return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm256_cvtpd_ps(low)), _mm256_cvtpd_ps(high), 1);
}
#else
INLINE vec_f32 narrow_f64(const double *p, const double *add)
{
    vec_f32 v;
    for (int l = 0; l < LANES; l++)
        v[l] = (float)(add ? p[l] + *add : p[l]);
    return v;
}
typedef struct {
    int64_t a, b;
} lane_mask;
INLINE lane_mask lanes_between(int64_t a, int64_t b) { return (lane_mask){a, b}; }
INLINE tl_vec read_lanes(const float *p, lane_mask m)
{
    tl_vec v = {0};
    for (int64_t l = m.a; l < m.b; l++)
        v[l] = p[l];
    return v;
}
INLINE tl_vec even_lanes(tl_vec x, tl_vec y) { return (tl_vec){x[0], x[2], y[0], y[2]}; }
#endif

INLINE tl_vec fma_each(tl_vec x, tl_vec y, tl_vec z)
{
    for (int l = 0; l < LANES; l++)
        z[l] = fmaf(x[l], y[l], z[l]);
    return z;
}

/* LANES floats, rounded once where they come from. */
INLINE void put_f32(float *to, vec_f32 v) { tl_vec_store(to, v); }
INLINE void put_f64(double *to, vec_f32 v)
{
    _Alignas(64) float part[LANES];
    tl_vec_store(part, v);
    for (int l = 0; l < LANES; l += LANES_F64)
        store_f64(to + l, tl_vec64_widen(part + l));
}
INLINE vec_f32 narrow_f32(const float *p, const float *add)
{
    vec_f32 v = tl_vec_load(p);
    if (add) v += *add;
    return v;
}

/* F(name, r) for every height of a panel; the small heights leave registers for strips of four vectors. The tall ones,
 * up to TALLER times MR, are for strips of one vector alone, of which MR sums would be fewer than hide the latency of a fused
 * multiply-add: two begin in a cycle, and each takes four. */
#if TL_GEMM_MR == 14
enum { TALLER = 1 };
#define EACH_TALL_HEIGHT(F, n)
#define EACH_SMALL_HEIGHT(F, n) F(n, 1) F(n, 2) F(n, 3) F(n, 4) F(n, 5) F(n, 6) F(n, 7)
#define EACH_HEIGHT(F, n) EACH_SMALL_HEIGHT(F, n) F(n, 8) F(n, 9) F(n, 10) F(n, 11) F(n, 12) F(n, 13) F(n, 14)
#elif TL_GEMM_MR == 6
enum { TALLER = 2 };
#define EACH_TALL_HEIGHT(F, n) F(n, 7) F(n, 8) F(n, 9) F(n, 10) F(n, 11) F(n, 12)
#define EACH_SMALL_HEIGHT(F, n) F(n, 1) F(n, 2) F(n, 3)
#define EACH_HEIGHT(F, n) EACH_SMALL_HEIGHT(F, n) F(n, 4) F(n, 5) F(n, 6)
#else
enum { TALLER = 1 };
#define EACH_TALL_HEIGHT(F, n)
#define EACH_SMALL_HEIGHT(F, n) F(n, 1) F(n, 2)
#define EACH_HEIGHT(F, n) EACH_SMALL_HEIGHT(F, n) F(n, 3) F(n, 4)
#endif

/* The kinds of micro-kernels (kernels.h). */
enum { of_side, of_rows, of_terms };

/* dst[k*width + l] = src[l*lane + k*step] for n terms k of h lanes l <= width, 0 for the other l; lane or step is 1. In float
 * whole vectors are stored, which may run LANES - 1 elements past the end, into what is written later. */
INLINE void turn_f32(float *dst, int64_t width, int64_t h, int64_t n, const float *src, int64_t lane, int64_t step)
{
    tl_gemm_pack_f32(dst, width, h, n, src, lane, step);
}

static inline void turn_f64(double *restrict dst, int64_t width, int64_t h, int64_t n, const float *src, int64_t lane,
                            int64_t step)
{
    enum { PART = 4 * LANES };
    _Alignas(64) float part[PART * NR + LANES];
    for (int64_t k = 0; k < n; k += PART, dst += PART * width) {
        const int64_t m = tl_imin(n - k, PART);
        tl_gemm_pack_f32(part, width, h, m, src + k * step, lane, step);
        for (int64_t e = 0; e < m * width; e++)
            dst[e] = part[e];
    }
}

/* F(t) for every number of taps that are summed at a time: TAPS of them have their sums in registers. */
#if TL_GEMM_LANES == 16
#define TAPS 9
#define EACH_COUNT(F) F(1) F(2) F(3) F(4) F(5) F(6) F(7) F(8) F(9)
#elif TL_GEMM_LANES == 8
#define TAPS 6
#define EACH_COUNT(F) F(1) F(2) F(3) F(4) F(5) F(6)
#else
#define TAPS 3
#define EACH_COUNT(F) F(1) F(2) F(3)
#endif

/* n sums rounded to float, in place or in `to`, which has room for LANES - 1 more. */
INLINE const float *rounded_f32(const float *sums, int64_t n, float *to)
{
    (void)n, (void)to;
    return sums;
}
INLINE const float *rounded_f64(const double *sums, int64_t n, float *to)
{
    for (int64_t i = 0; i < n; i += LANES)
        tl_vec_store(to + i, narrow_f64(sums + i, NULL));
    return to;
}

/* The cells 0 <= i < n of first + i*step that lie inside 0 .. source - 1: *a <= i < *b. */
INLINE void cells_inside(int64_t first, int64_t step, int64_t source, int64_t n, int64_t *a, int64_t *b)
{
    const int64_t low = first < 0 ? (step == 1 ? -first : tl_ceil_div(-first, step)) : 0;
    const int64_t high = first >= source ? 0 : step == 1 ? source - first : (source - first - 1) / step + 1;
    *a = tl_imin(low, n);
    *b = tl_imax(*a, tl_imin(high, n));
}
