/* Scores and weights of attention. */
#pragma once

#include <float.h>

#include "explog.h"

/* What replaces a blocked score, and the maximum above which a row gives it a weight of exactly 0. */
#define TL_FILL_SCORE -1000.0f
#define TL_FILL_VANISHES (TL_FILL_SCORE + 104.0f)

/* What stands for an open score of -inf, so that a running maximum of -inf means that nothing but blocked scores was seen,
 * and where finite scores end: such a score is none of them. */
#define TL_INFINITE_SCORE -FLT_MAX
#define TL_LEAST_SCORE -0x1.fffffcp+127f

/* A raw product as a score. NaN stays. */
TL_HD float tl_attention_score(float product, float scale)
{
    const float s = product * scale, finite = s < TL_LEAST_SCORE ? TL_LEAST_SCORE : s;
    return s < -FLT_MAX ? TL_INFINITE_SCORE : finite;
}

/* The same with a bias added, of which -inf blocks. A sum of finite numbers is a finite score. */
TL_HD float tl_attention_biased(float product, float scale, float bias)
{
    const float x = product * scale, s = x + bias, finite = s < TL_LEAST_SCORE ? TL_LEAST_SCORE : s;
    return bias == -TL_INF ? -TL_INF : x < -FLT_MAX && s < -FLT_MAX ? TL_INFINITE_SCORE : finite;
}

/* e^x for x <= 0, the bits of tl_exp: with the sign known, 2^k is 2^(k+64) 2^-64 always. -inf gives 0, NaN stays. */
TL_HD float tl_attention_weight(float x)
{
    float t;
    float p = tl_exp_mantissa(x, 191.0f, &t);
    float y = p * tl_from_bits(tl_bits(t) << 23) * TL_2M64;
    return x < -104.0f ? 0.0f : y;
}
