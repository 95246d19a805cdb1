/* The quotient by a number of elements: means, and the equal shares of a maximum's gradient. */
#pragma once

#include "base.h"

enum { TL_EXACT_COUNT = 1 << 24 };

/* s / n for n >= 1. Up to 2^24 the count is a float32 and the quotient is rounded once. Beyond, it is taken in float64,
 * whose second rounding moves a result only if the first falls within 2^-29 of a tie. */
TL_HD float tl_per_count(float s, int64_t n)
{
    return n <= TL_EXACT_COUNT ? s / (float)n : (float)((double)s / (double)n);
}
