/* How a range of elements is cut into tasks by its length alone. */
#pragma once

#include "formula/integer.h"

enum { TL_SPAN_UNIT = 1024 }; /* elements: spans are whole lines and whole pages of 4 KiB */

/* Elements of a task where n are cut into spans of at most `most`, a multiple of TL_SPAN_UNIT. Several spans are at least about eight
 * and of equal length, so that no thread gets much more than another. */
static inline int64_t tl_even_span(int64_t n, int64_t most)
{
    if (n <= most) return most;
    return tl_ceil_div(tl_ceil_div(n, tl_imax(tl_ceil_div(n, most), 8)), TL_SPAN_UNIT) * TL_SPAN_UNIT;
}
