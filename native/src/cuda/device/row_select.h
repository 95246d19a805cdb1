/* Which algorithm a row of softmax, of a loss or of a norm takes: a pure function of its length. */
#pragma once

#include <stdint.h>

#include "formula/sum_tree.h"

enum tl_row_algorithm {
    TL_ROW_TILE,    /* device/row_tile.cuh */
    TL_ROW_CLUSTER, /* device/cluster_row.cuh */
    TL_ROW_LEAVES   /* reduce/long_rows.cuh */
};

static inline const char *tl_row_reason(int algorithm)
{
    static const char *const reasons[] = {
        "tile: threads or a block hold a row",
        "cluster: a cluster of blocks holds a row",
        "leaves: a block owns a leaf of a row and reads it once per pass",
    };
    return reasons[algorithm];
}

enum { TL_CLUSTER_LEAVES = 16 }; /* of the longest row that a cluster holds: half a warp folds their sums */

static inline enum tl_row_algorithm tl_select_row(int64_t cols)
{
    return cols <= TL_SUM_LEAF                                ? TL_ROW_TILE
           : cols <= TL_CLUSTER_LEAVES * (int64_t)TL_SUM_LEAF ? TL_ROW_CLUSTER
                                                              : TL_ROW_LEAVES;
}
