/* The terms of a buffer's fingerprint: two sums modulo 2^64, so in any order. The words are pairs of elements' bits, the
 * first in the low half, as 64 bits of memory hold them on a little-endian machine. */
#pragma once

#include "random.h"

/* A sum's constants: where its sequence of 64 bits begins, and its odd step from word to word. */
typedef struct tl_lane {
    uint64_t stream, step;
} tl_lane;

enum { TL_FINGERPRINT_SUMS = 2 };

TL_HD tl_lane tl_fingerprint_lane(int lane)
{
    tl_lane made = {tl_mix((uint64_t)lane), tl_mix((uint64_t)(TL_FINGERPRINT_SUMS + lane)) | 1};
    return made;
}

/* What a buffer of n elements begins with. */
TL_HD uint64_t tl_fingerprint_start(tl_lane lane, int64_t n) { return tl_mix(lane.stream ^ (uint64_t)n); }

/* What word j adds. */
TL_HD uint64_t tl_fingerprint_term(tl_lane lane, uint64_t j, uint64_t word)
{
    return tl_mix(word ^ (lane.stream + j * lane.step));
}
