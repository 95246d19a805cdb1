/* The error function, and gelu in its exact form, each followed by its gradient. */
#pragma once

#include "wide.h"

/* erf x = x + x p(x^2) below 1, and 1 - e^(-a q(a)), a = |x|, from there on: the exponential is below 0.16, and so are the
 * parts of the result that more than one rounding touches. From 4 on the result is +-1. Errors of the fits: 2^-29.6 and 2^-28.6.
 * Budget: 0.5 ulp for the last sum, 0.2 for what is added. */
TL_HD float tl_erf(float x)
{
    float a = fabsf(x);
    float z = a * a;
    float z2 = z * z;
    float p = fmaf(fmaf(0x1.496a28p-14f, z, -0x1.a3f6fcp-11f), z, 0x1.5405b2p-8f);
    p = fmaf(fmaf(p, z, -0x1.b7f91p-6f), z, 0x1.ce2cf8p-4f);
    p = fmaf(p, z2, fmaf(-0x1.81273ep-2f, z, 0x1.06eba8p-3f));
    float near = fmaf(x, p, x);
    float b = a > 4.0f ? 4.0f : a;
    float q = fmaf(fmaf(-0x1.b9c05ep-13f, b, 0x1.a1b842p-9f), b, -0x1.7587b6p-6f);
    q = fmaf(fmaf(fmaf(q, b, 0x1.ae8e46p-4f), b, 0x1.458bb4p-1f), b, 0x1.20e412p+0f);
    float t;
    float e = tl_exp_mantissa(-b * q, 127.0f, &t);
    float far = 1.0f - e * tl_from_bits(tl_bits(t) << 23);
    return a < 1.0f ? near : copysignf(far, x);
}

/* g (2/sqrt(pi)) e^(-x^2), whose exponent is exact in double; 0 at +-inf. */
TL_HD float tl_erf_bwd(float x, float g)
{
    double z = tl_hold((double)x * (double)x, 0.0, 700.0);
    double slope = fabsf(x) == TL_INF ? 0.0 : 0x1.20dd750429b6dp+0 * tl_exp64(-z);
    return (float)((double)g * slope);
}

/* ---- gelu, exact form --------------------------------------------------------------------------------------- */

/* x above 0, up to it a zero with its sign; a NaN stays. One instruction everywhere. */
TL_HD float tl_positive_part(float x)
{
#ifdef __CUDA_ARCH__
    float y;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(x), "f"(-0.0f));
    return y;
#else
    return -0.0f > x ? -0.0f : x;
#endif
}

/* x Phi(x), Phi the normal distribution function: -0 at -inf. With a = |x| the tail a Phi(-a) is e^(-a^2/2) a (1 + P)/(2 (1 + a)),
 * where P, below 0.15, is a polynomial in a/(a + 5) - 13/32, error below 2^-29: so one factor alone, a/(1 + a), needs its rounding
 * error, as do 1 + a and its reciprocal. The exponent of the exponential is added to the reciprocal's, with 64 more, which the last
 * product takes back. Budget: 0.5 ulp for the last sum, 0.4 for its addend, 0.3 for h and P. */
TL_HD float tl_gelu_erf(float x)
{
    float a = tl_at_most(fabsf(x), 15.0f);
    float t;
    float half = -0.5f * a;
    float z = half * a;
    float r = tl_exp_rest_two(z, fmaf(half, a, -z), 64.0f, &t);
    float r2 = r * r;
    float curve = r2 * tl_exp_tail(r, r2);
    float u = fmaf(a, tl_reciprocal(a + 5.0f), -0.40625f);
    float u2 = u * u;
    float even = fmaf(0x1.a7d09ap-2f, u2, -0x1.590cf0p-1f);
    float odd = fmaf(-0x1.c07ed0p-2f, u2, 0x1.234bfcp+1f);
    even = fmaf(even, u2, -0x1.9f36d8p+1f);
    odd = fmaf(odd, u2, 0x1.813adcp+1f);
    even = fmaf(even, u2, -0x1.e3bf74p+0f);
    odd = fmaf(odd, u2, 0x1.4db002p-1f);
    even = fmaf(even, u2, 0x1.2550d0p-3f);
    odd = fmaf(odd, u2, -0x1.9ec5bep-2f);
    float p = fmaf(odd, u, fmaf(even, u2, -0x1.4d1f4ep-5f));
    float d = 1.0f + a;
    float recip = tl_reciprocal(d);
    p += fmaf(-recip, a - (d - 1.0f), fmaf(-recip, d, 1.0f));
    float scaled = tl_from_bits(tl_bits(recip) + (tl_bits(t) << 23));
    float y = fmaf(scaled, r, scaled);
    float yl = fmaf(scaled, curve, fmaf(scaled, r, scaled - y));
    yl = fmaf(y + yl, p, yl);
    float tail = fmaf(a, y, a * yl) * 0x1p-65f;
    return tl_positive_part(x) - tail;
}

/* The derivative Phi(x) + x e^(-x^2/2)/sqrt(2 pi), times g: 1 at inf, -0 at -inf. At -a it is e^(-a^2/2) (c - a) (1 + P)/2, where
 * c = 0.7518 is its zero, in two floats, and P, below 1/3, a polynomial in a/(a + 5) - 3/8, error below 2^-28.6; at a it is 1
 * less that. It stays in two floats until g is taken in. `deep`, a constant, is for x < TL_GELU_ERF_DEEP, where the power of two is
 * enlarged as in tl_logistic_steps. Budget: 0.5 ulp for the last sum, 0.3 for a/(a + 5), 0.3 for P and 0.3 for the exponential. */
#define TL_GELU_ERF_DEEP -11.0f

TL_HD float tl_gelu_erf_slope(float a, int32_t negative, int32_t deep, float g)
{
    float half = -0.5f * a;
    float z = half * a;
    float t, h, l;
    tl_exp_parts(z, fmaf(half, a, -z), deep ? 126.0f + 160.0f : 126.0f, &t, &h, &l);
    float u = fmaf(a, tl_reciprocal(a + 5.0f), -0.375f);
    float p = fmaf(0x1.71d8fcp-5f, u, -0x1.fee902p-5f);
    p = fmaf(p, u, -0x1.3a2a14p-4f);
    p = fmaf(p, u, 0x1.8730bep-2f);
    p = fmaf(p, u, -0x1.7353e8p-1f);
    p = fmaf(p, u, 0x1.e121f0p-1f);
    p = fmaf(p, u, -0x1.e0e896p-1f);
    p = fmaf(p, u, 0x1.858ea6p-1f);
    p = fmaf(p, u, -0x1.061720p-1f);
    p = fmaf(p, u, -0x1.639222p-5f);
    float d, dl;
    tl_two_sum(0x1.80ead2p-1f, -a, &d, &dl);
    dl += -0x1.a03fd4p-27f;
    float y = fmaf(d, p, d);
    float yl = fmaf(d, p, d - y) + fmaf(dl, p, dl);
    yl = fmaf(y, l, yl);
    yl = fmaf(y, h, fmaf(yl, h, yl));
    float power = tl_from_bits(tl_bits(t) << 23);
    if (deep) return fmaf(g * 0x1p-80f, y * power, g * 0x1p-80f * (yl * power)) * 0x1p-80f;
    float base = negative ? 0.0f : 1.0f;
    power = negative ? power : -power;
    y *= power;
    float slope = base + y;
    float lost = fmaf(yl, power, y - (slope - base));
    return fmaf(g, slope, g * lost);
}

/* For TL_GELU_ERF_DEEP <= x and a finite g. */
TL_HD float tl_gelu_erf_bwd(float x, float g) { return tl_gelu_erf_slope(tl_at_most(fabsf(x), 11.0f), x < 0.0f, 0, g); }

/* For the others: an infinite g takes the sign of the slope, which is positive above -c. */
TL_HD float tl_deep_gelu_erf_bwd(float x, float g)
{
    float far = tl_gelu_erf_slope(tl_at_most(fabsf(x), 19.8f), 1, 1, g);
    float edge = g * (x == -TL_INF ? -0.0f : x <= -0x1.80ead2p-1f ? -1.0f : x != x ? x : 1.0f);
    return (x < TL_GELU_ERF_DEEP) & (x > -TL_INF) & (fabsf(g) < TL_INF) ? far : edge;
}
