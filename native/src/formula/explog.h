/* Exponential, logarithm, and sine and cosine of an angle in turns: tl_exp, tl_log, tl_circle, with the gradients of exp and
 * log next to them.
 *
 * Coefficients. Every polynomial here and in activation.h is our own fit: a Remez exchange in 40-digit arithmetic on
 * the interval named at its constants, for the error relative to the whole function; the coefficients were then
 * rounded to float32 one after the other, the higher ones refitted by least squares each time, and the last bits
 * chosen by a random search over +-3 ulp. The error quoted is the largest one after that rounding. A constant with
 * the suffix LO is the rounded rest of the real number that its HI leaves.
 *
 * Accuracy. "Within 1 ulp" means: the result is the correctly rounded float32 or one of its two neighbours. It was
 * checked over all 2^32 arguments by `make exhaustive`. Subnormal arguments and results are handled as any
 * other; a result that underflows is rounded twice, which costs at most one unit of the smallest subnormal. */
#pragma once

#include "base.h"

/* 1.5 * 2^23. Added to a float of magnitude below 2^22 it rounds it to the nearest integer, ties to even, and leaves
 * that integer in the low bits of the sum. */
#define TL_ROUNDER 12582912.0f

#define TL_LOG2E 0x1.715476p+0f  /* log2(e) rounded */
#define TL_LN2_HI 0x1.62e43p-1f  /* ln 2 rounded */
#define TL_LN2_LO -0x1.05c61p-29f
#define TL_LN2_HI15 0x1.62e4p-1f /* ln 2 to 15 bits: its product with an integer below 512 is exact */
#define TL_LN2_LO15 0x1.7f7d1cp-20f

#define TL_2P64 0x1p64f
#define TL_2M64 0x1p-64f

/* hi + lo = a + b exactly, hi the rounded sum (Knuth's two-sum: no order of magnitudes assumed). Finite hi only. */
TL_HD void tl_two_sum(float a, float b, float *hi, float *lo)
{
    float s = a + b;
    float bb = s - a;
    *lo = (a - (s - bb)) + (b - bb);
    *hi = s;
}

/* ---- exp ------------------------------------------------------------------------------------------------- */

/* Coefficients of q in e^r = 1 + r + r^2 q(r). |r| <= 1.0005 ln2/2; error relative to e^r below 2^-28.2. */
#define TL_EXP_C0 0x1.fffffcp-2f
#define TL_EXP_C1 0x1.555492p-3f
#define TL_EXP_C2 0x1.5558aep-5f
#define TL_EXP_C3 0x1.12398ep-7f
#define TL_EXP_C4 0x1.6a4fc4p-10f

/* q(r), given r and r2 = r^2. Paired rather than nested (Estrin): the depth of the chain, not the count of
 * operations, limits a SIMD loop. */
TL_HD float tl_exp_tail(float r, float r2)
{
    float low = fmaf(TL_EXP_C1, r, TL_EXP_C0);
    float high = fmaf(TL_EXP_C3, r, TL_EXP_C2);
    high = fmaf(TL_EXP_C4, r2, high);
    return fmaf(high, r2, low);
}

/* The reduction x = k ln2 + r, k = round(x log2 e): returns x - k LN2_HI, from which the caller takes k LN2_LO. This first
 * step is exact: x and k LN2_HI are multiples of the same power of two and their difference needs no more than 24 bits.
 * The low bits of *t hold k + bias. */
TL_HD float tl_exp_reduce(float x, float bias, float *t, float *k)
{
    const float rounder = TL_ROUNDER + bias;
    *t = fmaf(x, TL_LOG2E, rounder);
    *k = *t - rounder;
    return fmaf(*k, -TL_LN2_HI, x);
}

/* r of x itself, and of x + xl with |xl| <= ulp(x). */
TL_HD float tl_exp_rest(float x, float bias, float *t)
{
    float k;
    float r = tl_exp_reduce(x, bias, t, &k);
    return fmaf(k, -TL_LN2_LO, r);
}

TL_HD float tl_exp_rest_two(float x, float xl, float bias, float *t)
{
    float k;
    float r = tl_exp_reduce(x, bias, t, &k);
    return r + fmaf(k, -TL_LN2_LO, xl);
}

/* e^r - 1, to about 2^-26. */
TL_HD float tl_exp_rise(float r)
{
    float r2 = r * r;
    return fmaf(r2, tl_exp_tail(r, r2), r);
}

/* The p in [sqrt(1/2), sqrt(2)] of e^x = 2^k p, p = 1 + r + r^2 q(r). The low bits of *t hold k + bias. */
TL_HD float tl_exp_mantissa(float x, float bias, float *t) { return 1.0f + tl_exp_rise(tl_exp_rest(x, bias, t)); }

/* e^x = 2^k p. The factor 2^k does not fit one float at either end, so it is applied as 2^(k+64) 2^-64 for negative x and as
 * 2^(k-64) 2^64 otherwise; only the last multiplication can round. The exponent field is built without a separate
 * addition of the bias by letting the rounder carry it. Beyond |x| = 104 the result is 0 or inf, chosen by a select
 * at the end, off the critical path; what was computed for such an x is discarded.
 * Budget: 0.5 ulp for 1 + p, 0.25 for p, 0.1 for the fit.
 * e^-inf = 0, e^inf = inf; overflow to inf above 88.72, underflow to 0 below -103.97; NaN stays NaN. */
TL_HD float tl_exp(float x)
{
    float t;
    float p = tl_exp_mantissa(x, 63.0f, &t);
    uint32_t negative = (uint32_t)((int32_t)tl_bits(x) >> 31);
    uint32_t shift = negative & (128u << 23);
    float scale = tl_from_bits((tl_bits(t) << 23) + shift);
    float step = tl_from_bits((191u << 23) - shift);
    float limit = tl_from_bits(~negative & 0x7f800000u);
    return fabsf(x) > 104.0f ? limit : p * scale * step;
}

/* g y, y = e^x. */
TL_HD float tl_exp_bwd(float y, float g) { return g * y; }

/* 1/d, correctly rounded, for 2^-100 <= |d| <= 2^100 and NaN. On CUDA: the hardware's approximation and one Newton step
 * with an exact residual, which is what the compiler's own division does in this range, without the test for the
 * range and the branch behind it: neighbouring elements can then be interleaved. */
TL_HD float tl_reciprocal(float d)
{
#ifdef __CUDA_ARCH__
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(d));
    return fmaf(y, fmaf(-d, y, 1.0f), y);
#else
    return 1.0f / d;
#endif
}

/* The correctly rounded root of x = +-0 or 2^-100 <= x <= 2^100, on CUDA as the compiler's own in this range. */
TL_HD float tl_root(float x)
{
#ifdef __CUDA_ARCH__
    float y;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(fmaxf(x, 0x1p-100f)));
    float s = x * y;
    return fmaf(fmaf(-s, s, x), 0.5f * y, s);
#else
    return sqrtf(x);
#endif
}

/* s e^r as an unevaluated sum, s a power of two, |r| <= 1.0005 ln2/2. Good to 0.35 ulp of the high part. */
TL_HD void tl_exp_split(float r, float s, float *e, float *el)
{
    float h = tl_exp_rise(r);
    float y = fmaf(s, h, s);
    *el = fmaf(s, h, s - y);
    *e = y;
}

/* The pieces of e^z for the formulas that need more than float precision: e^(z + zl) = 2^k (1 + h + l), where h + l
 * is an unevaluated sum good to about 2^-28 and the low bits of t hold k + bias. zl is a correction with
 * |zl| <= ulp(z). |z| <= 300. The reduction keeps what the rounding of r lost. */
TL_HD void tl_exp_parts(float z, float zl, float bias, float *t, float *h, float *l)
{
    float k;
    float exact = tl_exp_reduce(z, bias, t, &k);
    float rest = fmaf(k, -TL_LN2_LO, zl);
    float r = exact + rest;
    float r2 = r * r;
    float u = fmaf(r2, tl_exp_tail(r, r2), rest - (r - exact));
    *h = r + u;
    *l = u - (*h - r);
}

/* ---- log ------------------------------------------------------------------------------------------------- */

/* c(f) of ln(1 + f) = f + f^2 c(f), c(f) = -1/2 + f R(f), f2 = f^2. sqrt(1/2) - 1 <= f <= sqrt(2) - 1, widened by
 * 2^-22; error relative to ln(1 + f) below 2^-29.5. */
TL_HD float tl_log_tail(float f, float f2)
{
    float p0 = fmaf(-0x1.ffffe6p-3f, f, 0x1.555548p-2f);
    float p1 = fmaf(-0x1.5564b8p-3f, f, 0x1.99a53cp-3f);
    float p2 = fmaf(-0x1.fae74cp-4f, f, 0x1.232848p-3f);
    float p3 = fmaf(-0x1.e5b092p-4f, f, 0x1.e7026ap-4f);
    p3 = fmaf(0x1.1c97cp-4f, f2, p3);
    p2 = fmaf(p3, f2, p2);
    p1 = fmaf(p2, f2, p1);
    p0 = fmaf(p1, f2, p0);
    return fmaf(p0, f, -0.5f);
}

/* e ln2 + (f + tail), e integral, |e| < 512: e ln2 is split so that e LN2_HI15 is exact; the rounding error of its sum with f is
 * recovered (|e ln2| > |f| unless e = 0, where the sum is exact). */
TL_HD float tl_log_join(float e, float f, float tail)
{
    float whole = e * TL_LN2_HI15;
    float s = whole + f;
    float lost = f - (s - whole);
    return s + (fmaf(e, TL_LN2_LO15, tail) + lost);
}

/* ln(2^e (1 + f)).
 * Budget: 0.5 ulp for the last sum; the tail is below 0.25 of the result and adds 0.1, the fit 0.1. */
TL_HD float tl_log_product(float e, float f)
{
    float f2 = f * f;
    return tl_log_join(e, f, f2 * tl_log_tail(f, f2));
}

/* ln(2^e (1 + f + fl)), |fl| <= 2^-24: it enters with the derivative 1/(1 + f), of which three terms suffice. */
TL_HD float tl_log_sum(float e, float f, float fl)
{
    float f2 = f * f;
    return tl_log_join(e, f, fmaf(f2, tl_log_tail(f, f2), fl * fmaf(f, f - 1.0f, 1.0f)));
}

/* Exponent e and reduced mantissa m in [sqrt(1/2), sqrt(2)) of a positive normal float: bits = m 2^e. */
TL_HD int32_t tl_log_exponent(float x) { return (int32_t)(tl_bits(x) - 0x3f3504f3u) >> 23; }

/* ln x: x = 2^e m with m in [sqrt(1/2), sqrt(2)), f = m - 1 exact, ln x = e ln2 + ln(1 + f). Subnormals are scaled by
 * 2^32 first. ln(+-0) = -inf, ln(inf) = inf, NaN for x < 0 and for NaN; ln 1 = +0. */
TL_HD float tl_log(float x)
{
    int32_t tiny = x < 0x1p-126f;
    float z = tiny ? x * 0x1p32f : x;
    int32_t e = tl_log_exponent(z);
    float m = tl_from_bits(tl_bits(z) - ((uint32_t)e << 23));
    float y = tl_log_product((float)(e - (tiny ? 32 : 0)), m - 1.0f);
    float edge = x == 0.0f ? -TL_INF : x > 0.0f ? x : TL_NAN;
    return x > 0.0f && x < TL_INF ? y : edge;
}

/* ln x for 1 <= x < inf, which has none of these cases. The exponent, not negative, is that of a float from 2^23 on, less 2^23. */
TL_HD float tl_log_at_least_1(float x)
{
    uint32_t e = (tl_bits(x) - 0x3f3504f3u) >> 23;
    float m = tl_from_bits(tl_bits(x) - (e << 23));
    return tl_log_product(tl_from_bits(0x4b000000u | e) - 0x1p23f, m - 1.0f);
}

/* ln(1 + x): the sum with its rounding error, and then as ln x; where x is small f is 0 or nearly so, and the error counts. -inf at
 * -1, NaN below. Budget as for ln x. */
TL_HD float tl_log1p(float x)
{
    float y, yl;
    tl_two_sum(1.0f, x, &y, &yl);
    int32_t e = tl_log_exponent(y);
    float m = tl_from_bits(tl_bits(y) - ((uint32_t)e << 23));
    float fl = yl * tl_from_bits((uint32_t)(127 - (e > 64 ? 64 : e)) << 23);
    float edge = x == -1.0f ? -TL_INF : x < -1.0f ? TL_NAN : x;
    float log = copysignf(tl_log_sum((float)e, m - 1.0f, fl), x);
    return (x > -1.0f) & (x < TL_INF) ? log : edge;
}

/* g / x. */
TL_HD float tl_log_bwd(float x, float g) { return g / x; }

/* ---- sine and cosine ------------------------------------------------------------------------------------- */

/* sin(2 pi r) and cos(2 pi r), |r| <= 1/8. sin = 2 pi r + r^3 S(r^2) with 2 pi in two parts, fit error below 2^-33
 * relative; cos = 1 + r^2 C(r^2), below 2^-31. */
TL_HD void tl_circle(float r, float *sine, float *cosine)
{
    float z = r * r;
    float s = fmaf(0x1.465a3p+5f, z, -0x1.32b474p+6f);
    s = fmaf(s, z, 0x1.466b82p+6f);
    s = fmaf(s, z, -0x1.4abbcep+5f);
    s = fmaf(s, z, -0x1.777a5cp-23f);
    *sine = fmaf(r, 0x1.921fb6p+2f, r * s);
    float c = fmaf(0x1.d61d82p+5f, z, -0x1.55b69cp+6f);
    c = fmaf(c, z, 0x1.03c1b6p+6f);
    c = fmaf(c, z, -0x1.3bd3ccp+4f);
    *cosine = fmaf(c, z, 1.0f);
}
