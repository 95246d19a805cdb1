/* Sine, cosine and the angle of a point, each followed by its gradient.
 *
 * An angle is reduced to r in [-pi/4, pi/4] and the number of quarter turns. Below 2^30 two fused multiply-adds with pi/2 in two
 * parts do that exactly enough: their error is 2^-76, and no float32 comes nearer to a multiple of pi/2 than 2^-31. From 2^30 on
 * the fraction is taken from the product of the mantissa and 96 bits of 2/pi (Payne and Hanek, SIGNUM Newsletter 18, 1983). The
 * second way is slower; kernels take it for the elements, or for the blocks of elements, that need it (TL_FAR_ANGLE). */
#pragma once

#include "wide.h"

#define TL_FAR_ANGLE 0x1p30f
#define TL_HALF_PI 0x1.921fb54442d18p+0
#define TL_HALF_PI_LO 0x1.1a62633145c07p-54

/* From there on, or no number. */
TL_HD int32_t tl_is_far(float x) { return !(fabsf(x) < TL_FAR_ANGLE); }

/* r for |x| < 2^30; the low bits of *turns count the quarter turns. */
TL_HD double tl_quadrant(float x, uint64_t *turns)
{
    double t = fma((double)x, 0x1.45f306dc9c883p-1, TL_ROUNDER64);
    double k = t - TL_ROUNDER64;
    *turns = tl_bits64(t);
    return fma(k, -TL_HALF_PI_LO, fma(k, -TL_HALF_PI, (double)x));
}

/* The same for 2^30 <= |x|; NaN for an infinity. Word i of the table holds the bits of 2/pi that end 8 (i + 1) places after the
 * point. x = m 2^s with a mantissa below 2^31 once the rest of s is shifted into it, so that words i, i + 4 and i + 8 give
 * x 2/pi modulo 4 in units of 2^-62. */
TL_HD double tl_quadrant_far(float x, uint64_t *turns)
{
    static const uint32_t words[24] = {0x000000a2, 0x0000a2f9, 0x00a2f983, 0xa2f9836e, 0xf9836e4e, 0x836e4e44,
                                       0x6e4e4415, 0x4e441529, 0x441529fc, 0x1529fc27, 0x29fc2757, 0xfc2757d1,
                                       0x2757d1f5, 0x57d1f534, 0xd1f534dd, 0xf534ddc0, 0x34ddc0db, 0xddc0db62,
                                       0xc0db6295, 0xdb629599, 0x6295993c, 0x95993c43, 0x993c4390, 0x3c439041};
    uint32_t u = tl_bits(x);
    uint32_t i = u >> 26 & 15u;
    uint64_t m = (uint64_t)(((u & 0x7fffffu) | 0x800000u) << (u >> 23 & 7u));
    uint64_t product = ((m * words[i]) << 32) + m * words[i + 4] + ((m * words[i + 8]) >> 32);
    uint64_t quarters = (product + (UINT64_C(1) << 61)) >> 62;
    uint64_t rest = product - (quarters << 62);
    double high = (double)(int32_t)(uint32_t)(rest >> 32);
    double low = tl_from_bits64(UINT64_C(0x433) << 52 | (rest & 0xffffffffu)) - 0x1p52;
    double r = fma(high, 0x1p32, low) * (TL_HALF_PI * 0x1p-62);
    int32_t negative = u >> 31 != 0;
    *turns = negative ? 0 - quarters : quarters;
    return fabsf(x) < TL_INF ? (negative ? -r : r) : (double)TL_NAN;
}

/* sin r for an even number of quarter turns and cos r for an odd one, negated where two turns or three remain of four. Errors of
 * the fits: 2^-37 and 2^-33. Both are 1 + z p(z), z = r^2, times r or 1: a select of each coefficient takes less than a second
 * polynomial. */
TL_HD double tl_wave(double r, uint64_t turns)
{
    int32_t odd = (turns & 1) != 0;
    double z = r * r;
    double z2 = z * z;
    double high = fma(odd ? 0x1.99ea015c78c7bp-16 : 0x1.6cd0a77262f85p-19, z,
                      odd ? -0x1.6c0c2e247a999p-10 : -0x1.a00f79c017cadp-13);
    double low = fma(odd ? 0x1.55554a0879b32p-5 : 0x1.11110863ade94p-7, z, odd ? -0.5 : -0x1.5555554c689a0p-3);
    double y = fma(fma(high, z2, low), z, 1.0) * (odd ? 1.0 : r);
    return tl_from_bits64(tl_bits64(y) ^ (turns >> 1 & 1) << 63);
}

TL_HD double tl_sin_near(float x)
{
    uint64_t turns;
    double r = tl_quadrant(x, &turns);
    return tl_wave(r, turns);
}

TL_HD double tl_cos_near(float x)
{
    uint64_t turns;
    double r = tl_quadrant(x, &turns);
    return tl_wave(r, turns + 1);
}

TL_HD double tl_sin_far(float x)
{
    uint64_t turns;
    double r = tl_quadrant_far(x, &turns);
    return tl_wave(r, turns);
}

TL_HD double tl_cos_far(float x)
{
    uint64_t turns;
    double r = tl_quadrant_far(x, &turns);
    return tl_wave(r, turns + 1);
}

/* ---- the angle of a point ----------------------------------------------------------------------------------- */

/* atan2(y, x): the quotient of the smaller by the larger magnitude, above tan(pi/8) turned back by pi/4, has its arctangent
 * q + q^3 A(q^2), error below 2^-35; then the octant. Infinite coordinates count as 1 beside finite ones as 0. */
TL_HD float tl_atan2(float y, float x)
{
    float a = fabsf(y);
    float b = fabsf(x);
    int32_t steep = a > b;
    float larger = steep ? a : b;
    float smaller = steep ? b : a;
    int32_t endless = larger == TL_INF;
    double small = (double)(endless ? (smaller == larger ? 1.0f : 0.0f) : smaller);
    double large = (double)(endless || larger == 0.0f ? 1.0f : larger);
    double turned = small > 0x1.a827999fcef32p-2 * large ? 1.0 : 0.0;
    double q = tl_quotient64(fma(-turned, large, small), fma(turned, small, large));
    double z = q * q;
    double p = fma(0x1.84f5e6e7d137ap-5, z, -0x1.5b457468184f2p-4);
    p = fma(fma(p, z, 0x1.c46803f94cab3p-4), z, -0x1.247f0690d198ep-3);
    p = fma(fma(p, z, 0x1.99991a48912cep-3), z, -0x1.555554c89845fp-2);
    double angle = fma(turned, 0.5 * TL_HALF_PI, fma(q * z, p, q));
    angle = fma(steep ? 1.0 : 0.0, TL_HALF_PI, steep ? -angle : angle);
    int32_t behind = tl_bits(x) >> 31 != 0;
    angle = fma(behind ? 1.0 : 0.0, 2.0 * TL_HALF_PI, behind ? -angle : angle);
    return x != x || y != y ? TL_NAN : copysignf((float)angle, y);
}

/* g x / (x^2 + y^2) by y, and -g y / (x^2 + y^2) by x. */
TL_HD void tl_atan2_bwd(float y, float x, float g, float *gy, float *gx)
{
    double square = (double)x * (double)x + (double)y * (double)y;
    *gy = (float)((double)g * (double)x / square);
    *gx = (float)(-((double)g * (double)y) / square);
}
