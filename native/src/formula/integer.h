/* Integers: the smaller, the larger, the quotient rounded up, and the greatest common divisor. */
#pragma once

#include "base.h"

TL_HD int64_t tl_imin(int64_t a, int64_t b) { return a < b ? a : b; }

TL_HD int64_t tl_imax(int64_t a, int64_t b) { return a > b ? a : b; }

/* a / b rounded up, for a >= 0 and b >= 1. */
TL_HD int64_t tl_ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* Of a >= 1 and b >= 0. */
TL_HD int64_t tl_gcd(int64_t a, int64_t b)
{
    while (b) {
        const int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}
