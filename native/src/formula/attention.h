/* Scores and weights of attention. */
#pragma once

#include <float.h>

#include "explog.h"

/* What replaces a blocked score, and the maximum above which a row gives it a weight of exactly 0. */
#define TL_FILL_SCORE -1000.0f
#define TL_FILL_VANISHES (TL_FILL_SCORE + 104.0f)

/* A raw product as a score: -inf becomes the least finite float, so that a running maximum of -inf means that nothing
 * but blocked scores was seen. NaN stays. */
TL_HD float tl_attention_score(float product, float scale)
{
    float s = product * scale;
    return s < -FLT_MAX ? -FLT_MAX : s;
}

/* The same with a bias added, of which -inf blocks. */
TL_HD float tl_attention_biased(float product, float scale, float bias)
{
    const float s = product * scale + bias;
    return bias == -TL_INF ? -TL_INF : s < -FLT_MAX ? -FLT_MAX : s;
}

/* e^x for x <= 0, the bits of tl_exp: with the sign known, 2^k is 2^(k+64) 2^-64 always. -inf gives 0, NaN stays. */
TL_HD float tl_attention_weight(float x)
{
    float t;
    float p = tl_exp_mantissa(x, 191.0f, &t);
    float y = p * tl_from_bits(tl_bits(t) << 23) * TL_2M64;
    return x < -104.0f ? 0.0f : y;
}
