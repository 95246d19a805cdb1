/* Which algorithm a reduction or a cumulative sum takes on CUDA: pure functions of its shape and of the device's multiprocessors. */
#pragma once

#include "formula/cumsum.h"
#include "formula/fold.h"
#include "formula/integer.h"
#include "formula/sum_tree.h"

/* ---- sums and extremes down columns (reduce/trees.cu) --------------------------------------------------------------- */

enum tl_columns_algorithm {
    TL_COLUMNS_OF_THREAD,
    TL_COLUMNS_OF_BLOCK,
    TL_COLUMNS_OF_CHUNKS,
};

static inline const char *tl_columns_reason(int algorithm)
{
    static const char *const reasons[] = {
        "columns of a thread: few rows of many columns, which keep memory busy",
        "columns of a block: a block goes down all chunks of its columns in one launch",
        "columns of chunks: a block owns chunks of its columns, and another pass joins several",
    };
    return reasons[algorithm];
}
enum { TL_COLUMN_THREAD_ROWS = 16, TL_COLUMN_BLOCK_CHUNKS = 32, TL_COLUMN_BLOCK_BYTES = 1 << 21 };

/* A thread reads `width` columns at a time. Threads that own whole columns keep memory busy where each multiprocessor has eight blocks
 * of 256; another launch costs more than it saves up to TL_COLUMN_BLOCK_BYTES. */
static inline enum tl_columns_algorithm tl_select_columns(int64_t outer, int64_t rows, int64_t cols, int64_t width,
                                                          int64_t sms)
{
    const int64_t chunks = tl_ceil_div(rows, TL_COLUMN_CHUNK);
    if (rows <= TL_COLUMN_THREAD_ROWS && outer * cols >= width * 8 * 256 * sms) return TL_COLUMNS_OF_THREAD;
    return chunks > 1 && chunks <= TL_COLUMN_BLOCK_CHUNKS && 4 * outer * rows * cols <= TL_COLUMN_BLOCK_BYTES
               ? TL_COLUMNS_OF_BLOCK
               : TL_COLUMNS_OF_CHUNKS;
}

/* ---- folds over any set of axes (reduce/folds.cu) ------------------------------------------------------------------- */

enum tl_fold_algorithm {
    TL_FOLD_SEGMENTS,
    TL_FOLD_ROWS,
};

static inline const char *tl_fold_reason(int algorithm)
{
    static const char *const reasons[] = {
        "segments: a team of threads owns a segment of neighbouring results",
        "rows: a block owns a row of x, or a part of one",
    };
    return reasons[algorithm];
}
/* The longest row of a block, and the rows that its teams take at once. */
enum { TL_FOLD_ROW = TL_FOLD_SEGMENT * TL_FOLD_SEGMENT, TL_FOLD_TEAMS = 256 / TL_FOLD_LANES };

/* The elements of x that a row has: one segment of a long result where few blocks would read it alone. */
static inline int64_t tl_fold_extent(const tl_fold_axes *f, int64_t sms)
{
    const int64_t blocks = f->outer * tl_ceil_div(f->length, TL_FOLD_ROW);
    if (f->length <= 2 * TL_FOLD_TEAMS * TL_FOLD_SEGMENT || blocks >= 2 * sms) return TL_FOLD_ROW;
    return TL_FOLD_SEGMENT;
}

static inline enum tl_fold_algorithm tl_select_fold(const tl_fold_axes *f)
{
    if (f->inner != 1 || f->reduced < 1 || f->reduced > 2 || tl_fold_width(f->length) < TL_FOLD_LANES)
        return TL_FOLD_SEGMENTS;
    return TL_FOLD_ROWS;
}

/* ---- cumulative sums (reduce/cumsum.cu) ----------------------------------------------------------------------------- */

enum tl_cumsum_algorithm {
    TL_CUMSUM_ROWS,
    TL_CUMSUM_COLUMNS,
};

static inline const char *tl_cumsum_reason(int algorithm)
{
    static const char *const reasons[] = {
        "rows: a warp has a tile of a row",
        "columns: a block has a tile of columns, or short rows",
    };
    return reasons[algorithm];
}
enum { TL_CUMSUM_TILE = 1024 };

static inline enum tl_cumsum_algorithm tl_select_cumsum(int64_t length, int64_t inner)
{
    return inner == 1 && length > TL_CUMSUM_CHUNK ? TL_CUMSUM_ROWS : TL_CUMSUM_COLUMNS;
}
