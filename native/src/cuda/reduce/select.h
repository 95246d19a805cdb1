/* Which algorithm a reduction or a cumulative sum takes on CUDA: pure functions of its shape and of the device's multiprocessors. */
#pragma once

#include "formula/fold.h"
#include "formula/integer.h"
#include "formula/sum_tree.h"

/* ---- sums and extremes down columns (reduce/trees.cu) --------------------------------------------------------------- */

enum tl_columns_algorithm {
    TL_COLUMNS_OF_THREAD, /* a thread owns whole columns */
    TL_COLUMNS_OF_BLOCK,  /* a block goes down all chunks of its columns: one launch */
    TL_COLUMNS_OF_CHUNKS  /* a block owns chunks of its columns, and another pass joins them */
};
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
    TL_FOLD_SEGMENTS,   /* a team owns a segment of neighbouring results */
    TL_FOLD_ROWS,       /* a block owns a row of x */
    TL_FOLD_SHARED_ROWS /* several blocks share a row, which the last one ends where the context has tickets for them */
};
/* The longest row of a block, the rows that its teams take at once, and tickets of one launch: results that take more have groups enough
 * to be busy, or so many that another launch is nothing beside them. */
enum { TL_FOLD_ROW = TL_FOLD_SEGMENT * TL_FOLD_SEGMENT, TL_FOLD_TEAMS = 256 / TL_FOLD_LANES, TL_FOLD_TICKETS = 4096 };

/* The elements of x that a row has: one segment of a long result where few blocks would read it alone. */
static inline int64_t tl_fold_extent(const tl_fold_axes *f, int64_t sms)
{
    const int64_t blocks = f->outer * tl_ceil_div(f->length, TL_FOLD_ROW);
    if (f->length <= 2 * TL_FOLD_TEAMS * TL_FOLD_SEGMENT || blocks >= 2 * sms) return TL_FOLD_ROW;
    return TL_FOLD_SEGMENT;
}

static inline enum tl_fold_algorithm tl_select_fold(const tl_fold_axes *f, int64_t sms)
{
    const int64_t groups = tl_ceil_div(f->length, TL_FOLD_ROW), tickets = f->outer * (groups + 1);
    if (f->inner != 1 || f->reduced < 1 || f->reduced > 2 || tl_fold_width(f->length) < TL_FOLD_LANES)
        return TL_FOLD_SEGMENTS;
    return f->length > tl_fold_extent(f, sms) && groups <= TL_FOLD_SEGMENT && tickets <= TL_FOLD_TICKETS
               ? TL_FOLD_SHARED_ROWS
               : TL_FOLD_ROWS;
}

/* ---- cumulative sums (reduce/cumsum.cu) ----------------------------------------------------------------------------- */

enum tl_cumsum_algorithm {
    TL_CUMSUM_SLICES, /* a block has whole slices, a thread a chunk of one column */
    TL_CUMSUM_ROWS,   /* a warp has a tile of a row */
    TL_CUMSUM_COLUMNS /* a block has a tile of columns */
};
enum { TL_CUMSUM_TILE = 1024, TL_CUMSUM_SLICE_THREADS = 128, TL_CUMSUM_SLICE_COLUMNS = 64 };

static inline enum tl_cumsum_algorithm tl_select_cumsum(int64_t length, int64_t inner)
{
    if (inner < TL_CUMSUM_SLICE_COLUMNS && length <= TL_CUMSUM_TILE &&
        tl_ceil_div(length, 32) * inner <= TL_CUMSUM_SLICE_THREADS)
        return TL_CUMSUM_SLICES;
    return inner == 1 ? TL_CUMSUM_ROWS : TL_CUMSUM_COLUMNS;
}
