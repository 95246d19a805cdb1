/* Counter-based random numbers: element i of a draw is a function of the draw's key and i alone, so a draw can be made by any
 * number of threads on any device, with the same bits. The key is hashed to a stream once a draw, stream + i once an
 * element: the streams of neighbouring keys have nothing in common.
 *
 * mix is the output function of SplitMix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA
 * 2014; constants of Stafford's variant 13 as in that generator's reference code). */
#pragma once

#include "explog.h"

TL_HD uint64_t tl_mix(uint64_t x)
{
    uint64_t z = x + UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

/* Where the words of a key begin. */
TL_HD uint64_t tl_random_stream(uint64_t key) { return tl_mix(key); }

/* The 24 bits element i draws from: the upper ones of the low word. */
TL_HD uint32_t tl_random_bits(uint64_t stream, uint64_t i) { return (uint32_t)tl_mix(stream + i) >> 8; }

/* In [0, 1), a multiple of 2^-24: exact. */
TL_HD float tl_uniform_of(uint32_t bits) { return (float)(int32_t)bits * 0x1p-24f; }

TL_HD float tl_random_uniform(uint64_t stream, uint64_t i) { return tl_uniform_of(tl_random_bits(stream, i)); }

/* 1 with probability keep: keep 1 always, keep 0 never. */
TL_HD float tl_bernoulli_of(uint32_t bits, float keep) { return tl_uniform_of(bits) < keep ? 1.0f : 0.0f; }

TL_HD float tl_random_bernoulli(uint64_t stream, uint64_t i, float keep)
{
    return tl_bernoulli_of(tl_random_bits(stream, i), keep);
}

/* -2 ln(n 2^-24), 1 <= n <= 2^24: n 2^-24 = 2^e (1 + f) with e ln2 and ln(1 + f) = f + f^2 c(f) as in tl_log, all doubled, but
 * nothing to be said of zeros, infinities and subnormals. error of c relative to ln(1 + f) below 2^-24.9: the
 * logarithm is within 2u of itself, its root within 1u. */
TL_HD float tl_random_log(int32_t n)
{
    uint32_t u = tl_bits((float)n) - (24u << 23);
    uint32_t exponent = (u - 0x3f3504f3u) & 0xff800000u;
    float twice = fmaf(2.0f, tl_from_bits(u - exponent), -2.0f);
    float c = fmaf(0x1.65f792p-12f, twice, -0x1.250e42p-10f);
    c = fmaf(c, twice, 0x1.317fa6p-9f);
    c = fmaf(c, twice, -0x1.535b18p-8f);
    c = fmaf(c, twice, 0x1.98d32ap-7f);
    c = fmaf(c, twice, -0x1.0004acp-5f);
    c = fmaf(c, twice, 0x1.5556f2p-4f);
    c = fmaf(c, twice, -0x1.fffffap-3f);
    return fmaf((float)(int32_t)exponent, -0x1p-22f * TL_LN2_HI, fmaf(-(twice * twice), c, -twice));
}

/* cos(2 pi u), u = n 2^-24 in [0, 1), from u - 1/2. The distance of u from 1/2, less 1/4, is an angle a in [-1/4, 1/4] whose sine
 * it is; a is exact. sin(2 pi a) = 2 pi a + a S(a^2), 2 pi in two parts, fit error below 2^-27.4 relative. */
TL_HD float tl_random_cosine(float from_half)
{
    float a = fabsf(from_half) - 0.25f;
    float z = a * a;
    float s = fmaf(0x1.3dceeap+5f, z, -0x1.324eep+6f);
    s = fmaf(s, z, 0x1.4668c6p+6f);
    s = fmaf(s, z, -0x1.4abbc2p+5f);
    s = fmaf(s, z, -0x1.bf2e0ep-23f);
    return fmaf(a, 0x1.921fb6p+2f, a * s);
}

/* mean + std z, z standard normal by Box and Muller's cosine branch on words 2i and 2i + 1; the logarithm's argument is in
 * (0, 1], so z is finite and at most 5.77. */
TL_HD float tl_normal_of(uint32_t even, float odd_from_half, float mean, float std)
{
    float z = tl_root(tl_random_log((int32_t)even + 1)) * tl_random_cosine(odd_from_half);
    return fmaf(std, z, mean);
}

TL_HD float tl_random_normal(uint64_t stream, uint64_t i, float mean, float std)
{
    float odd = (float)(int32_t)tl_random_bits(stream, 2 * i + 1);
    return tl_normal_of(tl_random_bits(stream, 2 * i), fmaf(odd, 0x1p-24f, -0.5f), mean, std);
}
