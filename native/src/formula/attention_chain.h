/* Weights of attention in the mode `reproducible`.
 *
 * A weight e^s is a float32 number near 1 times a power of two, and what a row's weights are relative to is a power of two as
 * well: the one nearest its greatest score so far. When that grows, sums made before are scaled by a power of two, which is
 * exact: so no weight and no sum depends on when it grew. Sums are float64 chains of products of float32 numbers
 * (formula/chain.h), and both devices renew the reference after the same keys, so that the two agree to the bit even where a
 * power of two is too small to count. */
#pragma once

#include "attention.h"
#include "wide.h"

enum {
    TL_ATTENTION_TILE = 32, /* keys after which a row's reference is renewed */
    TL_ATTENTION_SUMS = 4,  /* key j's weight joins sum j mod 4; the total is (0 + 2) + (1 + 3) */
};

/* Powers of two below this exponent count as 0. */
#define TL_ATTENTION_LEAST -800.0

/* The k of e^s = 2^k e^r with |r| <= ln2/2, an infinity or NaN if s is. */
TL_HD double tl_weight_power(double x)
{
    const double k = (x + TL_ROUNDER64) - TL_ROUNDER64;
    return fabs(x) < 0x1p51 ? k : x;
}

/* What a row whose greatest score is `top` refers to; 0 where all were blocked. */
TL_HD double tl_weight_reference(float top)
{
    return top == -TL_INF ? 0.0 : tl_weight_power((double)top * TL_LOG2E_64);
}

/* 2^k for k <= 0. */
TL_HD double tl_power_below_1(double k)
{
    const double power = tl_from_bits64(tl_bits64(k + (TL_ROUNDER64 + 1023.0)) << 52);
    return k < TL_ATTENTION_LEAST ? 0.0 : power;
}

/* Scores of which tl_weight_quick makes weights: what is blocked, and numbers that one step reduces. */
TL_HD int tl_is_quick(float s) { return fabsf(s) < 65536.0f || s == -TL_INF; }

/* A row's reference as tl_weight_quick takes it. */
TL_HD int32_t tl_quick_reference(double reference) { return (int32_t)tl_hold(reference, -0x1p30, 0x1p30); }

/* e^s 2^-reference, a number of 24 bits; 0 for s = -inf. */
TL_HD double tl_weight_quick(float s, int32_t reference)
{
    float t;
    const float p = tl_exp_mantissa(s, 0.0f, &t);
    /* without a sign: of other scores it may be anything */
    const uint32_t e = tl_bits(t) - tl_bits(TL_ROUNDER) - (uint32_t)reference;
    const uint64_t exponent = (uint64_t)(e + (1023 - 127)) << 52;
    const double w = tl_from_bits64(((uint64_t)tl_bits(p) << 29) + exponent);
    return s == -TL_INF || (int32_t)e < (int32_t)TL_ATTENTION_LEAST ? 0.0 : w;
}

/* The same for all other scores, of any size; NaN for NaN and for s = inf. */
TL_HD double tl_weight_large(float s, double reference)
{
    const double x = (double)s * TL_LOG2E_64, k = tl_weight_power(x), e = k - reference;
    const float r = (float)((x - k) * TL_LN2_64), r2 = r * r;
    const float p = 1.0f + fmaf(r2, tl_exp_tail(r, r2), r);
    return e < TL_ATTENTION_LEAST ? 0.0 : (double)p * tl_power_below_1(e);
}

/* The factor for what was accumulated while the greatest score was `before`. */
TL_HD double tl_weight_rescale(float before, float top)
{
    const double change = tl_weight_reference(before) - tl_weight_reference(top);
    return before == -TL_INF || before == top ? 1.0 : tl_power_below_1(change);
}

/* What the sums of a row are divided by: 1 where all was blocked, NaN where all scores were -inf. */
TL_HD double tl_weight_total(float top, double sum)
{
    return top == -TL_INF ? 1.0 + sum : top == TL_INFINITE_SCORE ? (double)TL_NAN : sum;
}

/* x rounded to 24 bits, ties away from 0: so that its product with a float32 number is exact. */
TL_HD double tl_round_24(double x)
{
    return tl_from_bits64((tl_bits64(x) + (UINT64_C(1) << 28)) & ~((UINT64_C(1) << 29) - 1));
}
