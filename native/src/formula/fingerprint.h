/* What a word adds to a buffer's fingerprint: z to the first sum and z^2 to the second, modulo 2^64, so in any order. The words are
 * pairs of elements' bits, the first in the low half, as memory holds them on a little-endian machine. */
#pragma once

#include "random.h"

typedef struct tl_sums {
    uint64_t first, second;
} tl_sums;

/* The constants of all words, computed once for each piece. */
typedef struct tl_places {
    uint64_t stream, step;
} tl_places;

TL_HD tl_places tl_fingerprint_places(void)
{
    tl_places made = {tl_mix(0), tl_mix(1) | 1};
    return made;
}

/* An element's bits; those of every NaN are one, as which NaN an operation gives is nobody's claim. */
TL_HD uint32_t tl_fingerprint_bits(float x)
{
    const uint32_t bits = tl_bits(x);
    return (bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc00000u : bits;
}

/* z of word j. */
TL_HD uint64_t tl_fingerprint_word(tl_places p, uint64_t j, uint64_t word)
{
    return tl_mix(word ^ (p.stream + j * p.step));
}

/* z of a buffer's length. */
TL_HD uint64_t tl_fingerprint_length(int64_t n) { return tl_mix(tl_mix(2) ^ (uint64_t)n); }
