/* Which algorithm an operation of the index family takes on CUDA: functions of lengths alone. */
#pragma once

#include <stdint.h>

#include "formula/sum_tree.h"

enum tl_scatter_algorithm {
    TL_SCATTER_SHORT, /* the thread of an element's first hit finds the others */
    TL_SCATTER_RUNS,  /* sorted hits are added to a copy of the base */
    TL_SCATTER_ROWS,  /* sorted hits are added by the owners of all rows */
};

/* Of lists of k indices, hits in all, to `rows` rows. A copy is faster than owners where at most one row of four is hit. */
static inline enum tl_scatter_algorithm tl_select_scatter(int64_t rows, int64_t k, int64_t hits)
{
    if (k <= TL_COLUMN_CHUNK) return TL_SCATTER_SHORT;
    return 4 * hits < rows ? TL_SCATTER_RUNS : TL_SCATTER_ROWS;
}

enum tl_top_algorithm {
    TL_TOP_LANES,  /* lanes of a warp hold a row */
    TL_TOP_LISTED, /* a block keeps a list of candidates in shared memory */
    TL_TOP_SORTED, /* all elements are sorted */
};

static inline enum tl_top_algorithm tl_select_top(int64_t n, int64_t k)
{
    return n <= 1024 ? TL_TOP_LANES : k <= 4096 ? TL_TOP_LISTED : TL_TOP_SORTED;
}
