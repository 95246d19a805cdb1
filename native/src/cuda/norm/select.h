/* Which algorithm sums the gradients of a norm's gamma and beta down the columns (norm/columns.cu): a pure function of the shape. */
#pragma once

#include "formula/integer.h"
#include "formula/sum_tree.h"

enum tl_norm_columns_algorithm {
    TL_NORM_CHAINS,
    TL_NORM_COLUMNS_OF_BLOCK,
    TL_NORM_COLUMNS_OF_CHUNKS,
};

static inline const char *tl_norm_columns_reason(int algorithm)
{
    static const char *const reasons[] = {
        "chains: a block finishes the rows of a chain and adds them, so that x and g are read once",
        "columns of a block: rows first; then a block sums all chunks of its columns",
        "columns of chunks: rows first; then a block sums chunks of its columns, and other launches join them",
    };
    return reasons[algorithm];
}

/* A warp holds rows of up to TL_CHAIN_MAX_COLUMNS in its registers, and fewer than TL_CHAIN_MIN_COLUMNS leave it little to load. Chains of
 * more than TL_CHAIN_MANY_COLUMNS take so long that few of them are no better than two launches. */
enum { TL_CHAIN_MIN_COLUMNS = 68, TL_CHAIN_MANY_COLUMNS = 512, TL_CHAIN_MAX_COLUMNS = 1024, TL_NORM_BLOCK_CHUNKS = 16 };

static inline enum tl_norm_columns_algorithm tl_select_norm_columns(int64_t rows, int64_t cols)
{
    const int64_t chunks = tl_ceil_div(rows, TL_COLUMN_CHUNK);
    if (cols % 4 == 0 && cols >= TL_CHAIN_MIN_COLUMNS && cols <= TL_CHAIN_MAX_COLUMNS &&
        chunks > (cols > TL_CHAIN_MANY_COLUMNS ? TL_NORM_BLOCK_CHUNKS : 1))
        return TL_NORM_CHAINS;
    return chunks <= TL_NORM_BLOCK_CHUNKS ? TL_NORM_COLUMNS_OF_BLOCK : TL_NORM_COLUMNS_OF_CHUNKS;
}
