/* Integers: the smaller, the larger, and the quotient rounded up. */
#pragma once

#include "base.h"

TL_HD int64_t tl_imin(int64_t a, int64_t b) { return a < b ? a : b; }

TL_HD int64_t tl_imax(int64_t a, int64_t b) { return a > b ? a : b; }

/* a / b rounded up, for a >= 0 and b >= 1. */
TL_HD int64_t tl_ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
