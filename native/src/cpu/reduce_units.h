/* How reductions on the CPU are cut (reduce.c, reduce_axes.c): units of rows, or of columns, several to a task if they are small. */
#pragma once

#include "core/threads.h"
#include "cpu/spans.h"
#include "cpu/sum_tree.h"
#include "formula/integer.h"

enum {
    TASK = 65536 /* elements per task: 256 KiB, which pays for handing a task to a thread */
};

/* Runs fn over `units` units of about `size` elements each, several to a task if they are small. The argument starts
 * with a `grain`: fn handles units task*units .. of its task. */
typedef struct grain {
    int64_t units, per_task;
} grain;

static inline void run(tl_task_fn fn, void *arg, grain *g, int64_t units, int64_t size)
{
    g->units = units;
    g->per_task = tl_even_units(units, size, TASK);
    tl_parallel(tl_ceil_div(units, g->per_task), fn, arg);
}

#define EACH_UNIT(u, g, task) \
    for (int64_t u = (task) * (g).per_task, u##_end = tl_imin((g).units, u + (g).per_task); u < u##_end; u++)

/* One pass over the columns of a tile is a function of its own: left in a loop over rows, gcc 12 unrolls the outer loop
 * into the inner one and then cannot vectorise it. */
#define PASS static __attribute__((noinline)) void

/* ---- columns ----------------------------------------------------------------------------------------------------- */

typedef struct columns_args {
    grain g;
    const float *x;
    int64_t rows, cols;           /* of each outer slice */
    int64_t chunks, tiles, width; /* units of a slice; columns per tile */
    int64_t count;
    int smallest; /* of extremes */
    float *out;   /* (outer, chunks, cols) */
} columns_args;

/* The unit's corner: slice o, rows from r0, columns from c0. */
typedef struct corner {
    int64_t o, chunk, r0, rows, c0, cols;
} corner;

static inline corner find_corner(const columns_args *a, int64_t unit)
{
    corner p;
    p.c0 = unit % a->tiles * a->width;
    p.chunk = unit / a->tiles % a->chunks;
    p.o = unit / a->tiles / a->chunks;
    p.r0 = p.chunk * TL_COLUMN_CHUNK;
    p.rows = tl_imin(a->rows - p.r0, TL_COLUMN_CHUNK);
    p.cols = tl_imin(a->cols - p.c0, a->width);
    return p;
}

/* Tiles of equal width, whole cache lines except for the last; none is empty, as a full tile is whole lines. */
static inline void cut_columns(columns_args *a)
{
    a->chunks = a->rows > TL_COLUMN_CHUNK ? tl_ceil_div(a->rows, TL_COLUMN_CHUNK) : 1;
    a->tiles = tl_ceil_div(a->cols, TL_COLUMN_TILE);
    a->width = a->tiles > 1 ? tl_ceil_div(tl_ceil_div(a->cols, a->tiles), 16) * 16 : a->cols;
}
