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

/* The normal distribution function at -a: e^(-a^2/2) T(a), for 0 <= a <= 20, where T(a) (a + 5) is a polynomial in
 * (a - 5)/(a + 5), error below 2^-33. *gauss = e^(-a^2/2). */
TL_HD double tl_normal_tail(double a, double *gauss)
{
    double w = tl_reciprocal64(a + 5.0);
    double q = (a - 5.0) * w;
    double q2 = q * q;
    double q4 = q2 * q2;
    double p0 = fma(-0x1.54ad03e96e4adp-1, q, 0x1.89d3abe1b44bcp-1);
    double p1 = fma(-0x1.410ed97efa416p-2, q, 0x1.fb31657cafdb2p-2);
    double p2 = fma(-0x1.1b1b65eabfcacp-4, q, 0x1.51f6259e703b0p-3);
    double p3 = fma(-0x1.88db74ff433afp-9, q, 0x1.54b9336301aadp-6);
    double p4 = fma(0x1.225a8e64379fdp-11, q, -0x1.a54e5d973ce79p-11);
    double p5 = fma(-0x1.d15e4c5911c66p-15, q, -0x1.716ef5780598ep-15);
    double high = fma(fma(p5, q2, p4), q4, fma(p3, q2, p2));
    *gauss = tl_exp64(-0.5 * a * a);
    return *gauss * (w * fma(high, q4, fma(p1, q2, p0)));
}

/* x Phi(x), Phi the normal distribution function: -0 at -inf. */
TL_HD float tl_gelu_erf(float x)
{
    double gauss;
    double z = tl_hold((double)x, -20.0, 20.0);
    double y = z * tl_normal_tail(fabs(z), &gauss);
    return copysignf((float)(x < 0.0f ? y : (double)x - y), x);
}

/* The derivative Phi(x) + x e^(-x^2/2)/sqrt(2 pi), times g: 1 at inf, -0 at -inf. Its zero is at x = -0.7518. */
TL_HD float tl_gelu_erf_bwd(float x, float g)
{
    double gauss;
    double a = tl_hold(fabs((double)x), 0.0, 20.0);
    double tail = tl_normal_tail(a, &gauss);
    double below = fma(a * -0x1.9884533d43651p-2, gauss, tail);
    float y = (float)((double)g * (x < 0.0f ? below : 1.0 - below));
    return x == -TL_INF ? g * -0.0f : y;
}
