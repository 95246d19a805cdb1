/* Permutations of axes on the CPU.
 *
 * A permutation is a few exchanges of two neighbouring groups of axes, most often one: an array (outer, rows, cols, inner)
 * becomes (outer, cols, rows, inner). The work is cut into panels of at most BAND rows by PANEL elements of a row (whole
 * matrices where they are small), a function of the shape alone; a panel touches few enough pages for the TLB and few enough
 * lines for the L2 cache.
 *
 * Inside a panel with inner = 1, blocks are transposed in registers (blocks.h); a last band too thin for one is joined to the one
 * before it. */
#include <string.h>

#include "core/threads.h"
#include "cpu/blocks.h"
#include "cpu/runs.h"
#include "cpu/shape.h"
#include "cpu/spans.h"
#include "cpu/stream.h"

enum {
    BAND = 32,       /* rows of a panel */
    PANEL = 1024,    /* elements of a panel's rows */
    TASK = 65536,    /* elements of a task of matrices that are smaller, and of one that only copies */
    LONG_RUN = 8192, /* runs (inner) from this length on are cut by length rather than by rows and columns */
};

/* ---- blocks of width by width elements in registers -------------------------------------------------------------- */

/* Blocks of blocks.h past the cache: TL_LINE rows by `width` columns at a time, so that every line of y is written whole. */
#define STREAM_BLOCKS(width)                                                                                           \
    static void stream_blocks(const float *x, int64_t x_stride, float *y, int64_t y_stride, int64_t rows, int64_t cols)\
    {                                                                                                                  \
        for (int64_t j = 0; j < cols; j += (width)) {                                                                  \
            const int64_t c = tl_imin(j, cols - (width));                                                              \
            for (int64_t r = 0; r < rows; r += TL_LINE) {                                                              \
                floats##width v[TL_LINE / (width)][width];                                                             \
                _Pragma("GCC unroll 16") for (int32_t h = 0; h < TL_LINE / (width); h++)                               \
                    block##width(x + (r + h * (width)) * x_stride + c, x_stride, v[h]);                                \
                _Pragma("GCC unroll 16") for (int32_t k = 0; k < (width); k++)                                         \
                    _Pragma("GCC unroll 16") for (int32_t h = 0; h < TL_LINE / (width); h++)                           \
                        tl_vec_stream(y + (c + k) * y_stride + r + h * (width), (tl_vec)v[h][k]);                      \
            }                                                                                                          \
        }                                                                                                              \
    }

#define STREAM_BLOCKS_OF(width) STREAM_BLOCKS(width)
STREAM_BLOCKS_OF(TL_BLOCK)

/* y[i*y_next + k*y_step] = x[i*x_next + k*x_step] for i < n and k < count, two or three, a constant, so that gcc makes shuffles of the
 * loops. */
static inline __attribute__((always_inline)) void turn_thin(const float *x, int64_t x_next, int64_t x_step, float *y,
                                                            int64_t y_next, int64_t y_step, int64_t n, int32_t count)
{
#pragma GCC ivdep
    for (int64_t i = 0; i < n; i++)
        for (int32_t k = 0; k < count; k++)
            y[i * y_next + k * y_step] = x[i * x_next + k * x_step];
}

/* No panel is thinner than four but one that has all rows, or all columns, of its matrix; one of those is no matrix. */
static void panel(const float *x, int64_t x_stride, float *y, int64_t y_stride, int64_t rows, int64_t cols)
{
    if (rows >= 4 && cols >= 4)
        tl_transpose(x, x_stride, y, y_stride, rows, cols);
    else if (rows == 2)
        turn_thin(x, 1, x_stride, y, 2, 1, cols, 2);
    else if (rows == 3)
        turn_thin(x, 1, x_stride, y, 3, 1, cols, 3);
    else if (cols == 2)
        turn_thin(x, 2, 1, y, 1, y_stride, rows, 2);
    else
        turn_thin(x, 3, 1, y, 1, y_stride, rows, 3);
}

/* ---- runs: inner > 1 --------------------------------------------------------------------------------------------- */

/* Columns in groups of TL_LINE, so that the lines of x a group shares are still in the cache for its next column. */
static void runs(const float *x, int64_t x_stride, float *y, int64_t y_stride, int64_t rows, int64_t cols,
                 int64_t inner)
{
    for (int64_t j = 0; j < cols; j += TL_LINE)
        for (int64_t i = 0; i < rows; i += TL_LINE)
            for (int64_t c = j; c < tl_imin(j + TL_LINE, cols); c++)
                tl_copy_runs(y + c * y_stride + i * inner, inner, x + i * x_stride + c * inner, x_stride, inner,
                             tl_imin(TL_LINE, rows - i));
}

/* ---- the engine: (outer, rows, cols, inner) to (outer, cols, rows, inner) ---------------------------------------- */

typedef struct exchange {
    const float *x;
    float *y;
    int64_t outer, rows, cols, inner;
    int64_t band, width;   /* rows and columns of a panel */
    int64_t bands, panels; /* panels of a matrix, down and across */
    int64_t together;      /* matrices of a task where one panel is a whole matrix */
    int stream;            /* store past the cache */
} exchange;

/* Tasks go down first: so the rows of y that a worker's range of tasks writes are its own but for a few. */
static void exchange_task(void *arg, int64_t task, TL_UNUSED int32_t worker)
{
    const exchange *e = arg;
    const int64_t matrix = e->rows * e->cols * e->inner, x_stride = e->cols * e->inner, y_stride = e->rows * e->inner;
    const int64_t down = task % e->bands, across = task / e->bands % e->panels;
    const int64_t first = task / (e->panels * e->bands) * e->together, last = tl_imin(first + e->together, e->outer);
    const int64_t r = down * e->band, rows = down == e->bands - 1 ? e->rows - r : e->band;
    const int64_t c = across * e->width, cols = across == e->panels - 1 ? e->cols - c : e->width;
    for (int64_t o = first; o < last; o++) {
        const float *x = e->x + o * matrix + r * x_stride + c * e->inner;
        float *y = e->y + o * matrix + c * y_stride + r * e->inner;
        if (e->stream)
            stream_blocks(x, x_stride, y, y_stride, rows, cols);
        else if (e->inner == 1)
            panel(x, x_stride, y, y_stride, rows, cols);
        else
            runs(x, x_stride, y, y_stride, rows, cols, e->inner);
    }
    if (e->stream) tl_stream_end();
}

/* Task = one piece of one run. */
static void long_run_task(void *arg, int64_t task, TL_UNUSED int32_t worker)
{
    const exchange *e = arg;
    const int64_t pieces = tl_ceil_div(e->inner, TASK), run = task / pieces, from = task % pieces * TASK;
    const int64_t r = run % e->rows, c = run / e->rows % e->cols, o = run / e->rows / e->cols;
    const float *x = e->x + ((o * e->rows + r) * e->cols + c) * e->inner;
    memcpy(e->y + run * e->inner + from, x + from, (size_t)tl_imin(TASK, e->inner - from) * sizeof(float));
}

static void exchange_axes(const float *x, int64_t outer, int64_t rows, int64_t cols, int64_t inner, float *y)
{
    const int64_t matrix = rows * cols * inner;
    exchange e = {.x = x, .y = y, .outer = outer, .rows = rows, .cols = cols, .inner = inner, .together = 1};
    if (inner >= LONG_RUN) {
        tl_parallel(outer * rows * cols * (tl_ceil_div(inner, TASK)), long_run_task, &e);
        return;
    }
    /* The last panel of each direction takes the remainder too, so none is thinner than a block. */
    e.band = BAND;
    e.width = PANEL / inner > 0 ? PANEL / inner : 1;
    if (rows < BAND / 4) e.width = PANEL * BAND / (rows * inner) > e.width ? PANEL * BAND / (rows * inner) : e.width;
    if (cols < e.width && PANEL * BAND / (cols * inner) > BAND)
        e.band = PANEL * BAND / (cols * inner) / TL_LINE * TL_LINE;
    e.bands = rows / e.band > 0 ? rows / e.band : 1;
    e.panels = cols / e.width > 0 ? cols / e.width : 1;
    if (e.bands * e.panels == 1 && matrix < TASK) e.together = TASK / matrix;
    /* rows of whole lines begin with one where y does, which borrowed memory may not */
    e.stream = inner == 1 && rows % TL_LINE == 0 && cols >= TL_BLOCK && outer * matrix >= TL_STREAM_FROM &&
               (uintptr_t)y % (TL_LINE * sizeof(float)) == 0;
    tl_parallel((outer + e.together - 1) / e.together * e.bands * e.panels, exchange_task, &e);
}

int32_t tl_order_axes(tl_context *ctx, tl_axis_order order, const float *x, float *out)
{
    const int64_t n = tl_sizes_product(order.size, order.count);
    int64_t size[4]; /* of an exchange: outer, rows, cols, inner */
    void *scratch[2] = {NULL};
    int32_t status = TORCHLEAN_OK;
    if (n == 0) return status;
    if (tl_is_ordered(&order)) { /* one run */
        exchange e = {.x = x, .y = out, .outer = 1, .rows = 1, .cols = 1, .inner = n};
        tl_parallel(tl_ceil_div(n, TASK), long_run_task, &e);
    }
    for (int32_t i = 0; !status && tl_next_move(&order, size); i ^= 1) {
        void *to = out;
        if (!tl_is_ordered(&order)) {
            if (!scratch[i]) status = tl_pool_alloc(ctx, (size_t)n * sizeof(float), &scratch[i]);
            to = scratch[i];
        }
        if (!status) exchange_axes(x, size[0], size[1], size[2], size[3], to);
        x = to;
    }
    tl_pool_free(ctx, scratch[0]);
    tl_pool_free(ctx, scratch[1]);
    return status;
}

int32_t tl_cpu_permute(tl_context *ctx, const float *x, const tl_dims *dims, const tl_dims *axes, float *out)
{
    int64_t map[TL_MAX_RANK];
    for (int32_t k = 0; k < axes->rank; k++)
        map[k] = axes->d[k] + 1;
    return tl_order_axes(ctx, tl_order_of_output(dims->d, dims->rank, map, axes->rank), x, out);
}
