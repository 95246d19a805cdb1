/* The quotient by a number of elements: means, and the equal shares of a maximum's gradient; what sums end as. */
#pragma once

#include "base.h"

enum { TL_EXACT_COUNT = 1 << 24 };

/* s / n for n >= 1. Up to 2^24 the count is a float32 and the quotient is rounded once. Beyond, it is taken in float64,
 * whose second rounding moves a result only if the first falls within 2^-29 of a tie. */
TL_HD float tl_per_count(float s, int64_t n)
{
    return n <= TL_EXACT_COUNT ? s / (float)n : (float)((double)s / (double)n);
}

/* The factor of numbers that are summed scaled, as their sum may overflow where their mean does not. */
#define TL_SUM_SCALE 0x1p-40f

/* What a sum ends as: itself, for n > 0 the mean of n numbers, for n < 0 that of -n numbers that were scaled. */
TL_HD float tl_end_sum(float s, int64_t n)
{
    return n > 0 ? tl_per_count(s, n) : n < 0 ? tl_per_count(s, -n) * (1.0f / TL_SUM_SCALE) : s;
}
