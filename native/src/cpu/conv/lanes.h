/* Vectors of both precisions for convolutions: loads, stores, the fused multiply-add with a broadcast factor, and every
 * other lane. Both widths of a variant take the same registers. The product of two float32 is exact in
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

typedef int32_t tl_lanes __attribute__((vector_size(4 * LANES)));

/* Lanes 0, 2, 4 and so on of x and then y. */
INLINE tl_vec even_lanes(tl_vec x, tl_vec y)
{
#if TL_GEMM_LANES == 16
    const tl_lanes even = {0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30};
#elif TL_GEMM_LANES == 8
    const tl_lanes even = {0, 2, 4, 6, 8, 10, 12, 14};
#else
    const tl_lanes even = {0, 2, 4, 6};
#endif
    return __builtin_shuffle(x, y, even);
}

/* x·y + z in each lane. */
INLINE tl_vec fma_each(tl_vec x, tl_vec y, tl_vec z)
{
    for (int l = 0; l < LANES; l++)
        z[l] = fmaf(x[l], y[l], z[l]);
    return z;
}

/* LANES floats, rounded once where they come from; narrow: LANES sums, after an addend where there is one, rounded to float. */
typedef double sums_f64 __attribute__((vector_size(8 * LANES), aligned(8), may_alias));
INLINE void put_f32(float *to, vec_f32 v) { tl_vec_store(to, v); }
INLINE void put_f64(double *to, vec_f32 v) { *(sums_f64 *)to = __builtin_convertvector(v, sums_f64); }
INLINE vec_f32 narrow_f32(const float *p, const float *add)
{
    vec_f32 v = tl_vec_load(p);
    if (add) v += *add;
    return v;
}
INLINE vec_f32 narrow_f64(const double *p, const double *add)
{
    const sums_f64 *const sums = (const sums_f64 *)p;
    return add ? __builtin_convertvector(*sums + *add, vec_f32) : __builtin_convertvector(*sums, vec_f32);
}

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
