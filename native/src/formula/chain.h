/* The segments of a reproducible inner product: its terms are added by chains of float64 fused multiply-adds, one chain
 * per segment, and the totals of the segments are added in order. The length of a segment follows from the number of
 * terms alone: short enough that long sums can be shared out, at most TL_CHAIN_SEGMENTS of them. */
#pragma once

#include "base.h"

enum {
    TL_CHAIN_SEGMENT = 2048, /* the least length, and what longer ones are multiples of */
    TL_CHAIN_SEGMENTS = 32,
};

TL_HD int64_t tl_chain_segment(int64_t terms)
{
    const int64_t most = (int64_t)TL_CHAIN_SEGMENT * TL_CHAIN_SEGMENTS;
    return TL_CHAIN_SEGMENT * (terms > most ? (terms - 1) / most + 1 : 1);
}
