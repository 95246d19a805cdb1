/* Angles of position encodings: position * base^(-2i/d), exactly reduced.
 *
 * A frequency is kept in turns (1 turn = 2 pi), as a fraction of 2^64; whole turns do not matter, since positions are integers.
 * Multiplying by the position modulo 2^64 is then the angle modulo a turn without any rounding, however large the position: what
 * is left is the error of the frequency, a double's, times the position. The quadrant and the rest are cut off the integer, so
 * the rest is rounded once, relative to itself, and sine and cosine keep their relative precision near their zeros. */
#pragma once

#include "explog.h"

/* The frequency of pair i in units of 2^-64 turns per position. On the host, for both back ends. */
static inline uint64_t tl_turn_rate(double base, int64_t i, int64_t d)
{
    double turns = pow(base, -2.0 * (double)i / (double)d) * 0.15915494309189535; /* 1 / (2 pi) */
    return (uint64_t)((turns - floor(turns)) * 0x1p64); /* finite, as base is a positive float32 */
}

/* The float nearest to i, |i| <= 2^62. Where a processor converts 64-bit integers one by one only, by way of a double that has them
 * exactly: beyond 2^53 the last 11 bits count as whether they are all 0, which is all that the rounding to 24 bits asks of them. */
TL_HD float tl_nearest_float(int64_t i)
{
#if defined(__AVX2__) && !defined(__AVX512DQ__)
    const int64_t last = i & 2047, kept = i - last;
    const int64_t whole = kept > (INT64_C(1) << 53) || kept < -(INT64_C(1) << 53) ? kept + (last ? 1024 : 0) : i;
    uint64_t word = UINT64_C(0x433) << 52 | ((uint64_t)whole & 0xffffffffu);
    double low;
    memcpy(&low, &word, sizeof low);
    return (float)((double)(int32_t)(uint32_t)((uint64_t)whole >> 32) * 0x1p32 + (low - 0x1p52));
#else
    return (float)i;
#endif
}

/* What `turns` 2^-64 turns leave of whole quarters, in turns: an eighth at most. */
TL_HD float tl_turn_rest(uint64_t turns, uint32_t *quarters)
{
    uint64_t q = (turns + (UINT64_C(1) << 61)) >> 62;
    *quarters = (uint32_t)q;
    return tl_nearest_float((int64_t)(turns - (q << 62))) * 0x1p-64f;
}

/* Cosine and sine of r turns and some quarters. */
TL_HD void tl_turn_wave(float r, uint32_t quarters, float *cosine, float *sine)
{
    float s, c;
    tl_circle(r, &s, &c);
    float y = quarters & 1u ? s : c;
    float z = quarters & 1u ? c : s;
    *cosine = tl_from_bits(tl_bits(y) ^ (((quarters + 1u) & 2u) << 30));
    *sine = tl_from_bits(tl_bits(z) ^ ((quarters & 2u) << 30));
}

/* Cosine and sine of `turns` 2^-64 turns. */
TL_HD void tl_turn(uint64_t turns, float *cosine, float *sine)
{
    uint32_t quarters;
    float r = tl_turn_rest(turns, &quarters);
    tl_turn_wave(r, quarters, cosine, sine);
}

/* The pair (x, y) turned: two products and two fused multiply-adds. */
TL_HD void tl_rotate(float x, float y, float c, float s, float *u, float *v)
{
    *u = fmaf(x, c, -(y * s));
    *v = fmaf(x, s, y * c);
}
