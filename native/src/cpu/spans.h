/* How a range of elements, or of units of several, is cut into tasks by its length alone. */
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

/* Units of a task where `units` of about `size` elements each are cut into tasks of at most about `most` elements, as even as spans. */
static inline int64_t tl_even_units(int64_t units, int64_t size, int64_t most)
{
    const int64_t per_task = tl_imax(1, most / tl_imax(size, 1));
    if (units <= per_task) return per_task;
    const int64_t tasks = tl_ceil_div(units, per_task);
    return tl_imax(1, tl_imin(tl_ceil_div(units, tasks), units / 8));
}
