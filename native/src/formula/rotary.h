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

/* Cosine and sine of `turns` 2^-64 turns. */
TL_HD void tl_turn(uint64_t turns, float *cosine, float *sine)
{
    uint64_t q = (turns + (UINT64_C(1) << 61)) >> 62;
    int64_t rest = (int64_t)(turns - (q << 62)); /* an eighth of a turn at most */
    float s, c;
    tl_circle((float)rest * 0x1p-64f, &s, &c);
    uint32_t quadrant = (uint32_t)q;
    float y = quadrant & 1u ? s : c;
    float z = quadrant & 1u ? c : s;
    *cosine = tl_from_bits(tl_bits(y) ^ (((quadrant + 1u) & 2u) << 30));
    *sine = tl_from_bits(tl_bits(z) ^ ((quadrant & 2u) << 30));
}

/* The pair (x, y) turned: two products and two fused multiply-adds. */
TL_HD void tl_rotate(float x, float y, float c, float s, float *u, float *v)
{
    *u = fmaf(x, c, -(y * s));
    *v = fmaf(x, s, y * c);
}
