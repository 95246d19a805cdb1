/* The maximum or minimum of elements that lie side by side, on the CPU; a NaN wins, and +0 is above -0. */
#pragma once

#include "formula/base.h"

/* A row of floats read as their bit patterns. */
typedef uint32_t __attribute__((may_alias)) bits32;

/* A float as an integer of the same order, -0 below +0. NaNs land beyond the infinities, at the end their sign says, so
 * the least and the greatest key together tell the maximum and whether there was a NaN. */
static inline int32_t order_key(uint32_t bits)
{
    return (int32_t)(bits ^ ((uint32_t)((int32_t)bits >> 31) & 0x7fffffffu));
}

static inline int32_t greater(int32_t a, int32_t b) { return a > b ? a : b; }
static inline int32_t lesser(int32_t a, int32_t b) { return a < b ? a : b; }

static inline float from_keys(int32_t least, int32_t greatest, int smallest)
{
    const int nan = greatest > order_key(0x7f800000u) || least < order_key(0xff800000u);
    return nan ? TL_NAN : tl_from_bits((uint32_t)order_key((uint32_t)(smallest ? least : greatest)));
}

/* The extreme of n >= 1 elements. Integers may be compared in any order, so gcc keeps as many lanes as it likes. */
static float leaf_extreme(const float *x, int64_t n, int smallest)
{
    const bits32 *bits = (const bits32 *)x;
    int32_t least = INT32_MAX, greatest = INT32_MIN;
    for (int64_t i = 0; i < n; i++) {
        const int32_t key = order_key(bits[i]);
        least = lesser(least, key);
        greatest = greater(greatest, key);
    }
    return from_keys(least, greatest, smallest);
}
