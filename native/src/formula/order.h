/* The order that argmax, argmin and top-k follow, as integers: of two elements the one with the larger rank comes first. Ranks
 * within a row are distinct, so every way of finding the largest ones gives the same. */
#pragma once

#include "base.h"

/* NaN above everything, and zeros of both signs the same. */
TL_HD uint32_t tl_order_bits(float x)
{
    uint32_t b = tl_bits(x + 0.0f);
    return x != x ? UINT32_MAX : b >> 31 ? ~b : b | UINT32_C(0x80000000);
}

/* A number that has this order, or a NaN where none has. */
TL_HD float tl_order_number(uint32_t order) { return tl_from_bits(order >> 31 ? order & INT32_MAX : ~order); }

/* Of element i, whose number has this order. */
TL_HD uint64_t tl_rank_of(uint32_t order, uint32_t i) { return (uint64_t)order << 32 | (UINT32_MAX - i); }

/* Of element i: the larger number comes first, or with `smallest` the smaller one, and of equal ones the first. NaN is the largest
 * number, and `nan_first` puts it first even among the smallest. */
TL_HD uint64_t tl_rank(float x, uint32_t i, int smallest, int nan_first)
{
    uint32_t order = tl_order_bits(x);
    if (smallest && !(nan_first && x != x)) order = ~order;
    return tl_rank_of(order, i);
}

/* Whether v takes the lead from the first of the largest so far: it is larger, or it is the first NaN. */
TL_HD int32_t tl_takes_lead(float v, float best) { return (best == best) & !(v <= best); }

TL_HD uint32_t tl_rank_place(uint64_t rank) { return UINT32_MAX - (uint32_t)rank; }
