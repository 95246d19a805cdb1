/* Functions that are evaluated in double and rounded to float32 once: log1p, expm1, pow, and the activations elu, hardswish,
 * softsign and mish, each followed by its gradient. erf.h and trigonometry.h build on the same pieces.
 *
 * The intermediate keeps about 2^-34 of the result, so the last rounding decides nearly alone: the result is the correctly
 * rounded one but for one input in a thousand, and else its neighbour. Nothing over- or underflows on the way that does not in
 * float32: exponents are held at numbers beyond which the result is 0 or inf for every g.
 *
 * Every polynomial is our own fit: least squares on Chebyshev nodes, reweighted until the error is even; the error quoted is
 * relative to the whole function. */
#pragma once

#include "explog.h"

/* 1.5 * 2^52: added to a double below 2^51 it rounds it to the nearest integer, which it leaves in the low bits of the sum. */
#define TL_ROUNDER64 0x1.8p52
#define TL_LN2_64 0x1.62e42fefa39efp-1
#define TL_LOG2E_64 0x1.71547652b82fep+0
/* sqrt(1/2), by its bits */
#define TL_ROOT_HALF_BITS UINT64_C(0x3fe6a09e667f3bcd)

/* A function that CUDA's kernels call, lest it take registers of those who hardly ever do. */
#ifdef __CUDACC__
#define TL_RARELY_HD static inline __host__ __device__ __noinline__
#else
#define TL_RARELY_HD TL_HD
#endif

TL_HD uint64_t tl_bits64(double x)
{
#ifdef __CUDA_ARCH__
    return (uint64_t)__double_as_longlong(x);
#else
    uint64_t u;
    memcpy(&u, &x, sizeof u);
    return u;
#endif
}

TL_HD double tl_from_bits64(uint64_t u)
{
#ifdef __CUDA_ARCH__
    return __longlong_as_double((long long)u);
#else
    double x;
    memcpy(&x, &u, sizeof x);
    return x;
#endif
}

/* x held in [lo, hi]; a NaN stays. */
TL_HD double tl_hold(double x, double lo, double hi) { return x < lo ? lo : x > hi ? hi : x; }

/* 1/d to 2^-45 for 2^-100 <= |d| <= 2^100: the reciprocal in float, and a Newton step. Cheaper than a division, on CUDA by far. */
TL_HD double tl_reciprocal64(double d)
{
    double w = (double)tl_reciprocal((float)d);
    return fma(w, fma(-d, w, 1.0), w);
}

/* n/d, correctly rounded, for 2^-300 <= |d| <= 2^300 and n = 0 or in the same range. On CUDA as the compiler's own division does it
 * there, without the branch for other numbers. */
TL_HD double tl_quotient64(double n, double d)
{
#ifdef __CUDA_ARCH__
    double y;
    asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(y) : "d"(d));
    y = __hiloint2double(__double2hiint(y), 1);
    double e = fma(-d, y, 1.0);
    y = fma(y, fma(e, e, e), y);
    y = fma(y, fma(-d, y, 1.0), y);
    double q = n * y;
    return fma(y, fma(-d, q, n), q);
#else
    return n / d;
#endif
}

/* ---- e^x, 2^x and ln x -------------------------------------------------------------------------------------- */

/* The p of e^r = 1 + p for |r| <= ln2/2, error below 2^-34 of e^r and 2^-33 of p. */
TL_HD double tl_exp_rest_64(double r)
{
    double r2 = r * r;
    double low = fma(0x1.5555544292a2fp-3, r, 0x1.0000003a46ec8p-1);
    double middle = fma(0x1.111271424f26bp-7, r, 0x1.55548d731859fp-5);
    double high = fma(0x1.9f08611687c0cp-13, r, 0x1.6d8d5367423c0p-10);
    return fma(r2, fma(fma(high, r2, middle), r2, low), r);
}

/* e^x = scale (1 + p) for |x| <= 700. */
TL_HD double tl_exp_pieces(double x, double *scale)
{
    double t = fma(x, TL_LOG2E_64, TL_ROUNDER64);
    *scale = tl_from_bits64((tl_bits64(t) + 1023) << 52);
    return tl_exp_rest_64(fma(t - TL_ROUNDER64, -TL_LN2_64, x));
}

TL_HD double tl_exp64(double x)
{
    double scale;
    double p = tl_exp_pieces(x, &scale);
    return fma(scale, p, scale);
}

/* e^x - 1, with the sign of x. */
TL_HD double tl_expm1_64(double x)
{
    double scale;
    double p = tl_exp_pieces(x, &scale);
    return copysign(fma(scale, p, scale - 1.0), x);
}

/* 2^t for |t| <= 1000. */
TL_HD double tl_exp2_64(double t)
{
    double k = t + TL_ROUNDER64;
    double scale = tl_from_bits64((tl_bits64(k) + 1023) << 52);
    return fma(scale, tl_exp_rest_64((t - (k - TL_ROUNDER64)) * TL_LN2_64), scale);
}

/* The e of a positive normal y = 2^e (1 + f), sqrt(1/2) <= 1 + f < sqrt(2). */
TL_HD double tl_log_pieces(double y, double *f)
{
    uint64_t biased = (tl_bits64(y) + (UINT64_C(1023) << 52) - TL_ROOT_HALF_BITS) >> 52;
    *f = tl_from_bits64(tl_bits64(y) - ((biased - 1023) << 52)) - 1.0;
    return tl_from_bits64(UINT64_C(0x433) << 52 | biased) - (0x1p52 + 1023.0);
}

/* ln(1 + f) = f + f^2 c(f) in that interval, error below 2^-38. */
TL_HD double tl_log_rest(double f)
{
    double f2 = f * f;
    double f4 = f2 * f2;
    double p0 = fma(0x1.555555651e7bcp-2, f, -0x1.fffffffeedffbp-2);
    double p1 = fma(0x1.999988aa3a7c3p-3, f, -0x1.00000158a045ep-2);
    double p2 = fma(0x1.2494e1106c7dcp-3, f, -0x1.555468eb66046p-3);
    double p3 = fma(0x1.c6e4896c97526p-4, f, -0x1.0022a81a0c0abp-3);
    double p4 = fma(0x1.71dea01f7ba0ap-4, f, -0x1.94b573db085dbp-4);
    double p5 = fma(0x1.77c8bee2699acp-4, f, -0x1.7da66335376f3p-4);
    double high = fma(fma(-0x1.8c9356883d669p-5, f2, p5), f2, p4);
    high = fma(high, f4, fma(p3, f2, p2));
    return fma(f2, fma(high, f4, fma(p1, f2, p0)), f);
}

/* ---- log1p and expm1 ---------------------------------------------------------------------------------------- */

/* g / (1 + x). */
TL_HD float tl_log1p_bwd(float x, float g) { return (float)((double)g / (1.0 + (double)x)); }

/* e^x - 1. */
TL_HD float tl_expm1(float x) { return (float)tl_expm1_64((double)tl_between(x, -150.0f, 150.0f)); }

/* s g e^x; 0 at -inf. */
TL_HD float tl_exp_times(float x, float g, double s)
{
    double slope = x == -TL_INF ? 0.0 : tl_exp64((double)tl_between(x, -700.0f, 700.0f));
    return (float)((double)g * (s * slope));
}

/* ---- powers ------------------------------------------------------------------------------------------------- */

/* y is an integer. */
TL_HD int32_t tl_integral(double y)
{
    double a = fabs(y);
    return !(a < 0x1p52) | ((a + 0x1p52) - 0x1p52 == a);
}

/* log2 a - down for a normal a > 0. Exponent and f come from float32, which has them exactly. On CUDA the exponent has 256 more, so that
 * it is not negative and neither its shift nor its conversion has to mind a sign; shifted back it flips that of the mantissa. */
TL_HD double tl_log2_normal(float a, int32_t down)
{
    uint32_t u = tl_bits(a);
#ifdef __CUDA_ARCH__
    uint32_t e = (u - 0x3f3504f4u + 0x80000000u) >> 23;
    float f = -tl_from_bits(u - (e << 23)) - 1.0f;
    double whole = __hiloint2double(0x43300000, (int)(e - (uint32_t)down)) - (0x1p52 + 256.0);
#else
    int32_t e = (int32_t)(u - 0x3f3504f4u) >> 23;
    float f = tl_from_bits(u - ((uint32_t)e << 23)) - 1.0f;
    double whole = (double)(e - down);
#endif
    return fma(tl_log_rest((double)f), TL_LOG2E_64, whole);
}

/* log2 |x|, x finite and not 0. */
TL_HD double tl_log2_finite(float x)
{
    float a = fabsf(x);
    int32_t tiny = a < 0x1p-126f;
    return tl_log2_normal(tiny ? a * 0x1p32f : a, tiny ? 32 : 0);
}

/* log2 |x|: -inf at 0, inf at inf. */
TL_HD double tl_log2_64(float x)
{
    float a = fabsf(x);
    double y = tl_log2_finite(x);
    return a == 0.0f ? -(double)TL_INF : a < TL_INF ? y : (double)a;
}

/* 2^t with t held within +-1000, beyond which powers are 0 or inf in float32. On CUDA by the upper word alone, where 1000 may stay a
 * little larger and a NaN does not stay. */
TL_HD double tl_exp2_held(double t)
{
#ifdef __CUDA_ARCH__
    /* negative words are the largest ones without a sign, and the smallest with it */
    const int32_t held = min((int32_t)min((uint32_t)__double2hiint(t), 0xc08f4000u), 0x408f4000);
    return tl_exp2_64(__hiloint2double(held, __double2loint(t)));
#else
    return tl_exp2_64(tl_hold(t, -1000.0, 1000.0));
#endif
}

/* x^y by 2^(y log2 |x|), 2^-126 <= |x| < inf and |y| < 2^22: with the sign of x where y is odd, NaN for x < 0 and no integer y. The
 * rounder leaves whether y is odd in its last bit. What y alone decides are numbers, not branches: loops over x with one y stay
 * vectors. */
TL_HD float tl_pow(float x, float y)
{
    float p = (float)tl_exp2_held((double)y * tl_log2_normal(fabsf(x), 0));
    float t = y + TL_ROUNDER;
    float least = t - TL_ROUNDER == y ? -TL_INF : 0.0f;
    p = tl_from_bits(tl_bits(p) | (tl_bits(t) << 31 & tl_bits(x)));
    return x < least ? TL_NAN : p;
}

/* x^y is not what tl_pow computes. */
TL_HD int32_t tl_is_special_power(float x, float y)
{
    float a = fabsf(x);
    return !((a >= 0x1p-126f) & (a < TL_INF) & (fabsf(y) < 0x1p22f));
}

/* x^y with one y for many x: 1, 2 and 3 are products, of all x. A GPU then leaves the power out; on a processor masks keep loops
 * over x vectors. */
TL_HD int32_t tl_is_product_power(float y) { return (y == 1.0f) | (y == 2.0f) | (y == 3.0f); }
TL_HD float tl_pow_scalar(float x, float y)
{
    float square = x * x, cube = (float)((double)x * (double)x * (double)x);
#ifdef __CUDA_ARCH__
    return y == 1.0f ? x : y == 2.0f ? square : y == 3.0f ? cube : tl_pow(x, y);
#else
    uint32_t one = 0u - (y == 1.0f), two = 0u - (y == 2.0f), three = 0u - (y == 3.0f);
    return tl_from_bits((tl_bits(x) & one) | (tl_bits(square) & two) | (tl_bits(cube) & three) |
                        (tl_bits(tl_pow(x, y)) & ~(one | two | three)));
#endif
}

/* x^y for all numbers, with the special values of C99, F.9.4.4. */
TL_RARELY_HD float tl_special_power(float x, float y)
{
    float a = fabsf(x);
    float limit = (a == TL_INF) == (y > 0.0f) ? TL_INF : 0.0f;
    float p = (a == 0.0f) | (a == TL_INF) ? limit : (float)tl_exp2_held((double)y * tl_log2_finite(x));
    int32_t integral = tl_integral((double)y);
    p = integral & !tl_integral(0.5 * (double)y) ? copysignf(p, x) : p;
    p = (x != x) | (y != y) | ((x < 0.0f) & (x > -TL_INF) & !integral) ? TL_NAN : p;
    return (y == 0.0f) | (x == 1.0f) | ((x == -1.0f) & (fabsf(y) == TL_INF)) ? 1.0f : p;
}

/* The power of gradients, in double: |x|^y from log = log2 |x|, held within 2^+-1000 where x is finite and not 0 and y is finite,
 * with the sign and the special values of x^y. */
TL_HD double tl_power(float x, double log, double y)
{
    double t = y * log;
    double p = tl_exp2_held(t);
    p = fabs(t) < (double)TL_INF ? p : t < 0.0 ? 0.0 : t;
    int32_t integral = tl_integral(y);
    int32_t odd = integral & !tl_integral(0.5 * y);
    p = odd & (copysignf(1.0f, x) < 0.0f) ? -p : p;
    p = (x != x) | ((x < 0.0f) & (x > -TL_INF) & !integral) ? (double)TL_NAN : p;
    return (y == 0.0) | (x == 1.0f) | ((x == -1.0f) & (fabs(y) == (double)TL_INF)) ? 1.0 : p;
}

/* g y x^(y - 1); 0 where y = 0. */
TL_HD float tl_pow_bwd(float x, float y, float g)
{
    double slope = (double)y * tl_power(x, tl_log2_64(x), (double)y - 1.0);
    return y == 0.0f ? 0.0f : (float)((double)g * slope);
}

/* The same, and g x^y ln x by y; 0 where x = 0 and y >= 0. */
TL_HD void tl_pow_both_bwd(float x, float y, float g, float *gx, float *gy)
{
    double log = tl_log2_64(x);
    double slope = x >= 0.0f ? tl_power(x, log, (double)y) * (log * TL_LN2_64) : (double)TL_NAN;
    *gx = tl_pow_bwd(x, y, g);
    *gy = x == 0.0f && y >= 0.0f ? 0.0f : (float)((double)g * slope);
}

/* ---- activations -------------------------------------------------------------------------------------------- */

/* x above 0, else alpha (e^x - 1). */
TL_HD float tl_elu(float x, float alpha)
{
    double below = (double)alpha * tl_expm1_64((double)tl_between(x, -150.0f, 0.0f));
    return x > 0.0f ? x : (float)below;
}

/* g above 0, else g alpha e^x. */
TL_HD float tl_elu_bwd(float x, float alpha, float g) { return x > 0.0f ? g : tl_exp_times(x, g, (double)alpha); }

/* g (2x + 3) / 6 within (-3, 3), g above, 0 below. */
TL_HD float tl_hardswish_bwd(float x, float g)
{
    float inside = (float)((double)g * ((2.0 * (double)x + 3.0) / 6.0));
    return x >= 3.0f ? g : x <= -3.0f ? 0.0f : inside;
}

/* g / (1 + |x|)^2. */
TL_HD float tl_softsign_bwd(float x, float g)
{
    double d = 1.0 + fabs((double)x);
    return (float)((double)g / (d * d));
}

/* x tanh(softplus(x)) = x n / (n + 2) with n = e^x (e^x + 2); x itself above 30, -0 at -inf. */
TL_HD float tl_mish(float x)
{
    double z = (double)tl_at_least(x, -300.0f);
    double e = tl_exp64(z);
    double n = e * (e + 2.0);
    float y = (float)(z * (n * tl_reciprocal64(n + 2.0)));
    return x <= 30.0f ? y : x;
}

/* The derivative (n (n + 2) + 4 x e^x (e^x + 1)) / (n + 2)^2, times g: 1 at inf, -0 at -inf. Its zero is at x = -1.1925. */
TL_HD float tl_mish_bwd(float x, float g)
{
    double z = (double)tl_between(x, -300.0f, 30.0f);
    double e = tl_exp64(z);
    double n = e * (e + 2.0);
    double w = tl_reciprocal64(n + 2.0);
    double slope = fma(4.0 * z * (e * (e + 1.0)) * w, w, n * w);
    return x == -TL_INF ? g * -0.0f : (float)((double)g * slope);
}
