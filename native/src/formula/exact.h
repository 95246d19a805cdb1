/* The formulas IEEE 754 rounds correctly by itself, or that only select: abs, sqrt, max, min, clamp, relu, sign, floor, round,
 * where, 1/x, and their gradients together with those of a quotient.
 *
 * One rule for NaN: an argument that is NaN makes the result NaN; which NaN (sign, payload) is not specified and
 * differs between processors. A cotangent g that a rule discards ("else 0") is discarded even when it is NaN. */
#pragma once

#include "base.h"

/* |x|: the sign bit cleared. */
TL_HD float tl_abs(float x) { return fabsf(x); }

/* g sign(x) with sign(+-0) = 0: an honest product, so at 0 it is a zero with the sign of g (NaN for g infinite). */
TL_HD float tl_abs_bwd(float x, float g)
{
    float sign = x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : x == 0.0f ? 0.0f : x;
    return g * sign;
}

/* Correctly rounded root; sqrt(-0) = -0, NaN for x < 0. */
TL_HD float tl_sqrt(float x) { return sqrtf(x); }

/* g / (2y) where x > 0, y = sqrt(x) from the forward; else 0. 2y is exact. x decides because y alone does not tell a
 * negative x (gradient 0) from a NaN (gradient NaN). */
TL_HD float tl_sqrt_bwd(float x, float y, float g)
{
    float inside = g / (y + y);
    return x > 0.0f ? inside : x <= 0.0f ? 0.0f : x;
}

/* IEEE 754-2019 maximum and minimum: a NaN wins over everything, +0 is above -0. On the CPU both selections are an instruction that
 * gives its second operand where none is beyond the other: the same number twice, or both operands. Equal ones differ at most in the
 * sign of zero, which "and" resolves upwards and "or" downwards. A NaN with bits added stays one. The PTX instructions define the
 * same. */
TL_HD float tl_max(float a, float b)
{
#ifdef __CUDA_ARCH__
    float y;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
    return y;
#else
    float first = a > b ? a : b, second = b > a ? b : a;
    uint32_t nan = (a != a) | (b != b) ? ~0u : 0u;
    return tl_from_bits((tl_bits(first) & tl_bits(second)) | nan);
#endif
}

TL_HD float tl_min(float a, float b)
{
#ifdef __CUDA_ARCH__
    float y;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
    return y;
#else
    float first = a < b ? a : b, second = b < a ? b : a;
    return tl_from_bits(tl_bits(first) | tl_bits(second));
#endif
}

/* The winner takes g, the other 0; a tie (+0 and -0 tie) gives g/2 to each; a NaN on either side gives NaN to both. */
TL_HD void tl_max_bwd(float a, float b, float g, float *ga, float *gb)
{
    float half = 0.5f * g;
    float unordered = a + b;
    *ga = a > b ? g : a < b ? 0.0f : a == b ? half : unordered;
    *gb = a < b ? g : a > b ? 0.0f : a == b ? half : unordered;
}

TL_HD void tl_min_bwd(float a, float b, float g, float *ga, float *gb) { tl_max_bwd(-a, -b, g, ga, gb); }

/* min(hi, max(lo, x)), lo <= hi. On the CPU by two comparisons, which a NaN in x passes: a zero takes the place of a bound that is
 * the other zero where it lies beyond, so bounds at +0 from below and at -0 from above begin one subnormal further in. */
TL_HD float tl_clamp(float x, float lo, float hi)
{
#ifdef __CUDA_ARCH__
    return tl_min(hi, tl_max(lo, x));
#else
    const float low = tl_bits(lo) == 0u ? 0x1p-149f : lo;
    const float high = tl_bits(hi) == 0x80000000u ? -0x1p-149f : hi;
    float y = x < low ? lo : x;
    y = y > high ? hi : y;
    return lo != lo || hi != hi ? TL_NAN : y;
#endif
}

/* g strictly inside (lo, hi), else 0; NaN for a NaN in x, lo or hi. */
TL_HD float tl_clamp_bwd(float x, float lo, float hi, float g)
{
    float inside = x > lo && x < hi ? g : 0.0f;
    return x != x || lo != lo || hi != hi ? TL_NAN : inside;
}

/* max(x, 0): +0 for -0, NaN for NaN. */
TL_HD float tl_relu(float x) { return x > 0.0f ? x : x <= 0.0f ? 0.0f : x; }

/* g where x > 0, else 0; NaN for NaN x. */
TL_HD float tl_relu_bwd(float x, float g) { return x > 0.0f ? g : x <= 0.0f ? 0.0f : x; }

/* x above 0, else slope x. */
TL_HD float tl_leaky_relu(float x, float slope) { return x > 0.0f ? x : slope * x; }

/* g above 0, slope g up to it; NaN for NaN x. */
TL_HD float tl_leaky_relu_bwd(float x, float slope, float g) { return x > 0.0f ? g : x <= 0.0f ? slope * g : x; }

/* 1, -1, +0 for a zero, NaN for NaN. */
TL_HD float tl_sign(float x) { return x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : x == 0.0f ? 0.0f : x; }

/* The nearest integer, ties to even, with the sign of x. Where the processor has an instruction for it the compiler takes it; else
 * the addition of 2^23 rounds, from where on every float is integral. */
TL_HD float tl_round(float x)
{
#ifdef __SSE4_1__
    return rintf(x);
#else
    float a = fabsf(x);
    return a < 0x1p23f ? copysignf((a + 0x1p23f) - 0x1p23f, x) : x;
#endif
}

/* The largest integer up to x: -0 for -0. As above. */
TL_HD float tl_floor(float x)
{
#ifdef __SSE4_1__
    return floorf(x);
#else
    float y = tl_round(x);
    return y > x ? y - 1.0f : y;
#endif
}

/* Where the mask is not 0, a NaN included, it selects a, and a takes the gradient. */
TL_HD float tl_where(float mask, float a, float b) { return mask != 0.0f ? a : b; }

/* 1/x. */
TL_HD float tl_inv(float x) { return 1.0f / x; }

/* x = m 2^e with |m| in [1, 2) for a finite x other than 0, subnormals included; m = x, e = 0 for 0, inf and NaN. */
TL_HD float tl_mantissa(float x, int32_t *e)
{
    int32_t tiny = fabsf(x) < 0x1p-126f;
    uint32_t u = tl_bits(tiny ? x * 0x1p32f : x);
    int32_t field = (int32_t)(u >> 23 & 255u);
    int32_t ordinary = field != 0 && field != 255;
    *e = ordinary ? field - 127 - (tiny ? 32 : 0) : 0;
    return tl_from_bits(ordinary ? (u & 0x807fffffu) | 127u << 23 : u);
}

/* m 2^e for 2^-2 < |m| < 2^2 or m in {0, inf, NaN}: two factors, of which only the second can leave the normal range.
 * Beyond |e| = 250 the result is 0 or inf anyway. */
TL_HD float tl_scale_by_power(float m, int32_t e)
{
    e = e > 250 ? 250 : e < -250 ? -250 : e;
    int32_t first = e >> 1;
    int32_t second = e - first;
    return m * tl_from_bits((uint32_t)(first + 127) << 23) * tl_from_bits((uint32_t)(second + 127) << 23);
}

/* -g/x^2 from x: 1/x may have lost its bits to underflow, x has not. Neither (g/x)/x nor g/(x x) is safe: an
 * intermediate can overflow, vanish or turn subnormal although the result is ordinary. So the quotient is taken on
 * the mantissas and the powers of two put back at the end: two divisions, at most 1.5 ulp in the normal range.
 * x = 0: -g inf (NaN for g = 0). x = inf: -g 0. */
TL_HD float tl_inv_bwd(float x, float g)
{
    int32_t ex, eg;
    float mx = tl_mantissa(x, &ex);
    float mg = tl_mantissa(g, &eg);
    return tl_scale_by_power(-(mg / mx) / mx, eg - ex - ex);
}

/* Gradients of a/b: ga = g/b, gb = -g a/b^2. gb is evaluated on mantissas as in tl_inv_bwd: (g/b)(a/b) with three
 * roundings, at most 2 ulp in the normal range. b = 0: the IEEE result of the quotients. */
TL_HD void tl_div_bwd(float a, float b, float g, float *ga, float *gb)
{
    int32_t ea, eb, eg;
    float ma = tl_mantissa(a, &ea);
    float mb = tl_mantissa(b, &eb);
    float mg = tl_mantissa(g, &eg);
    *ga = g / b;
    *gb = tl_scale_by_power(-(mg / mb) * (ma / mb), ea + eg - eb - eb);
}
