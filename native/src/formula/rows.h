/* The arithmetic of softmax, normalisation and the losses, one element or one row's statistic at a time. */
#pragma once

#include "base.h"
#include "count.h"
#include "explog.h"

/* e / s from r = 1/s, s >= 1: the product, and one Newton step on its residual, which fmaf gives exactly (Markstein, IBM J. Res.
 * Dev. 34, 1990). Within 1 ulp, nearly always the correctly rounded quotient, at a quarter of a division's cost. */
TL_HD float tl_quotient(float e, float s, float r)
{
    float q = e * r;
    return fmaf(fmaf(-q, s, e), r, q);
}

/* y (g - s), s = sum of g y. */
TL_HD float tl_softmax_grad(float y, float g, float s) { return y * (g - s); }

/* g - e^y s, s = sum of g. */
TL_HD float tl_log_softmax_grad(float y, float g, float s) { return fmaf(-tl_exp(y), s, g); }

/* The loss ln s - (x - m), scaled, of a row whose exponentials sum to s, with the labelled element x and the maximum m. It is 0
 * or above 2^-24, so neither the scale nor a sum of scaled losses costs a bit. A difference that overflows is taken scaled. */
TL_HD float tl_cross_entropy_row(float x, float m, float s)
{
    float at = x - m;
    float near = (tl_log(s) - at) * TL_SUM_SCALE;
    float far = tl_log(s) * TL_SUM_SCALE - (x * TL_SUM_SCALE - m * TL_SUM_SCALE);
    return at == -TL_INF ? far : near;
}

/* (y - onehot) c. */
TL_HD float tl_cross_entropy_grad(float y, int32_t hit, float c) { return (hit ? y - 1.0f : y) * c; }

/* 1 / sqrt(variance + eps) from the sum of n squares around the mean. */
TL_HD float tl_inverse_deviation(float squares, int64_t n, float eps)
{
    return 1.0f / sqrtf(tl_per_count(squares, n) + eps);
}

TL_HD float tl_normalised(float x, float mean, float istd) { return (x - mean) * istd; }

/* istd ((a - mean(a)) - xhat mean(a xhat)). */
TL_HD float tl_norm_grad(float a, float xhat, float mean_a, float mean_ax, float istd)
{
    return fmaf(-xhat, mean_ax, a - mean_a) * istd;
}

TL_HD float tl_square_of_difference(float a, float b)
{
    float d = a - b;
    return d * d;
}

/* g / n in two factors: a small g is raised first, so that the quotient does not underflow before an infinite or large
 * difference meets it. */
struct tl_mse_slope {
    float c, scale;
};

TL_HD struct tl_mse_slope tl_mse_slope_of(float g, int64_t n)
{
    int small = fabsf(g) < 0x1p-64f;
    struct tl_mse_slope s;
    s.c = tl_per_count(small ? g * 0x1p64f : g, n);
    s.scale = small ? 0x1p-64f : 1.0f;
    return s;
}

/* 2 (a - b) g / n. */
TL_HD float tl_mse_grad(float a, float b, struct tl_mse_slope s)
{
    float d = (a - b) * s.c * s.scale;
    return d + d;
}
