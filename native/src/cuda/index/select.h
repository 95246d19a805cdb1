/* Which algorithm an operation of the index family takes on CUDA: functions of lengths alone. */
#pragma once

#include <stdint.h>

#include "formula/sum_tree.h"

enum tl_scatter_algorithm {
    TL_SCATTER_SHORT,
    TL_SCATTER_RUNS,
    TL_SCATTER_ROWS,
};

static inline const char *tl_scatter_reason(int algorithm)
{
    static const char *const reasons[] = {
        "short: the thread of an element's first hit finds the others in a short list",
        "runs: sorted hits are added to a copy of the base, as few rows are hit",
        "rows: sorted hits are added by the owners of all rows",
    };
    return reasons[algorithm];
}

/* Of lists of k indices, hits in all, to `rows` rows. A copy is faster than owners where at most one row of four is hit. */
static inline enum tl_scatter_algorithm tl_select_scatter(int64_t rows, int64_t k, int64_t hits)
{
    if (k <= TL_COLUMN_CHUNK) return TL_SCATTER_SHORT;
    return 4 * hits < rows ? TL_SCATTER_RUNS : TL_SCATTER_ROWS;
}

enum tl_top_algorithm {
    TL_TOP_LANES,
    TL_TOP_LISTED,
    TL_TOP_SORTED,
};

static inline const char *tl_top_reason(int algorithm)
{
    static const char *const reasons[] = {
        "lanes: lanes of a warp hold a row of up to 1024",
        "listed: a block keeps a list of up to 4096 candidates in shared memory",
        "sorted: all elements are sorted, as the list would not fit shared memory",
    };
    return reasons[algorithm];
}

static inline enum tl_top_algorithm tl_select_top(int64_t n, int64_t k)
{
    return n <= 1024 ? TL_TOP_LANES : k <= 4096 ? TL_TOP_LISTED : TL_TOP_SORTED;
}
