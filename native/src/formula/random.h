/* Counter-based random numbers: element i of a draw is a function of the draw's key and i alone, so a draw can be made by any
 * number of threads on any device, with the same bits.
 *
 * mix is the output function of SplitMix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA
 * 2014; constants of Stafford's variant 13 as in that generator's reference code). */
#ifndef TL_FORMULA_RANDOM_H
#define TL_FORMULA_RANDOM_H

#include "explog.h"

TL_HD uint64_t tl_mix(uint64_t x)
{
    uint64_t z = x + UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

/* The 24 bits element i draws from: the upper ones of the low word. */
TL_HD uint32_t tl_random_bits(uint64_t key, uint64_t i)
{
    return (uint32_t)tl_mix(key + i) >> 8;
}

/* In [0, 1), a multiple of 2^-24: exact. */
TL_HD float tl_random_uniform(uint64_t key, uint64_t i)
{
    return (float)(int32_t)tl_random_bits(key, i) * 0x1p-24f;
}

/* 1 with probability keep: keep 1 always, keep 0 never. */
TL_HD float tl_random_bernoulli(uint64_t key, uint64_t i, float keep)
{
    return tl_random_uniform(key, i) < keep ? 1.0f : 0.0f;
}

/* mean + std z, z standard normal by Box and Muller's cosine branch on words 2i and 2i + 1; the logarithm's argument is in
 * (0, 1], so z is finite and at most 5.77. */
TL_HD float tl_random_normal(uint64_t key, uint64_t i, float mean, float std)
{
    float radius_of = (float)(int32_t)(tl_random_bits(key, 2 * i) + 1) * 0x1p-24f;
    float angle = tl_random_uniform(key, 2 * i + 1);
    float z = sqrtf(-2.0f * tl_log(radius_of)) * tl_cospi2(angle);
    return fmaf(std, z, mean);
}

#endif
