/* Concatenation, slices and permutations of axes on the CPU.
 *
 * Every permutation here exchanges two neighbouring groups of axes: an array (outer, rows, cols, inner) becomes (outer, cols,
 * rows, inner). The work is cut into panels of at most BAND rows by PANEL elements of a row (whole matrices where they are
 * small), a function of the shape alone; a panel touches few enough pages for the TLB and few enough lines for the L2 cache.
 *
 * Inside a panel with inner = 1, blocks are transposed in registers (blocks.h); a last band too thin for one is joined to the one
 * before it. */
#include <string.h>

#include "core/threads.h"
#include "cpu/blocks.h"
#include "cpu/spans.h"
#include "cpu/stream.h"
#include "generated/shape.h"

enum {
    BAND = 32,       /* rows of a panel */
    PANEL = 1024,    /* elements of a panel's rows */
    TASK = 65536,    /* elements of a task of matrices that are smaller; the most of a task that only copies */
    LONG_RUN = 8192, /* runs (inner) from this length on are cut by length rather than by rows and columns */
};

/* ---- copies: concatenation, slices ------------------------------------------------------------------------------- */

/* out = `zeros` zeros, then n elements of x, then zeros up to `total`. */
typedef struct window {
    const float *x;
    float *out;
    int64_t zeros, n, total, span; /* span: elements of a task */
} window;

static void window_task(void *arg, int64_t task, TL_UNUSED int32_t worker)
{
    const window *w = arg;
    const int64_t first = task * w->span, last = tl_imin(first + w->span, w->total);
    const int64_t from = tl_imin(last, first > w->zeros ? first : w->zeros);
    const int64_t end = w->zeros + w->n, to = from > tl_imin(last, end) ? from : tl_imin(last, end);
    if (from > first) memset(w->out + first, 0, (size_t)(from - first) * sizeof(float));
    if (to > from && w->n >= TL_STREAM_FROM) {
        tl_stream_copy(w->out + from, w->x + (from - w->zeros), to - from);
        tl_stream_end();
    } else if (to > from) {
        memcpy(w->out + from, w->x + (from - w->zeros), (size_t)(to - from) * sizeof(float));
    }
    if (last > to) memset(w->out + to, 0, (size_t)(last - to) * sizeof(float));
}

static int32_t copy_window(const float *x, int64_t zeros, int64_t n, int64_t total, float *out)
{
    window w = {x, out, zeros, n, total, tl_even_span(total, TASK)};
    tl_parallel(tl_ceil_div(total, w.span), window_task, &w);
    return TORCHLEAN_OK;
}

int32_t tl_cpu_concat1d(TL_UNUSED tl_context *ctx, const float *a, const float *b, int64_t n, int64_t m, float *out)
{
    if (n > 0) copy_window(a, 0, n, n, out);
    if (m > 0) copy_window(b, 0, m, m, out + n);
    return TORCHLEAN_OK;
}

int32_t tl_cpu_slice1d(TL_UNUSED tl_context *ctx, const float *x, TL_UNUSED int64_t n, int64_t start, int64_t len,
                       float *out)
{
    return copy_window(x + start, 0, len, len, out);
}

int32_t tl_cpu_slice1d_bwd(TL_UNUSED tl_context *ctx, const float *g, int64_t n, int64_t start, int64_t len, float *gx)
{
    return copy_window(g, start, len, n, gx);
}

/* ---- blocks of width by width elements in registers -------------------------------------------------------------- */

/* The same past the cache: TL_LINE rows by `width` columns at a time, so that every line of y is written whole. */
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
                        TL_STREAM(y + (c + k) * y_stride + r + h * (width), v[h][k]);                                  \
            }                                                                                                          \
        }                                                                                                              \
    }

#define STREAM_BLOCKS_OF(width) STREAM_BLOCKS(width)
STREAM_BLOCKS_OF(TL_BLOCK)

/* Whole matrices of two or three rows or columns: with constant counts gcc makes shuffles of the loops. */
#define STRIP(count)                                                                           \
    static void interleave##count(const float *x, int64_t x_stride, float *y, int64_t cols)    \
    {                                                                                          \
        _Pragma("GCC ivdep") for (int64_t c = 0; c < cols; c++)                                \
        {                                                                                      \
            for (int32_t r = 0; r < (count); r++)                                              \
                y[c * (count) + r] = x[r * x_stride + c];                                      \
        }                                                                                      \
    }                                                                                          \
    static void deinterleave##count(const float *x, float *y, int64_t y_stride, int64_t rows)  \
    {                                                                                          \
        _Pragma("GCC ivdep") for (int64_t r = 0; r < rows; r++)                                \
        {                                                                                      \
            for (int32_t c = 0; c < (count); c++)                                              \
                y[c * y_stride + r] = x[r * (count) + c];                                      \
        }                                                                                      \
    }
STRIP(2)
STRIP(3)

/* No panel is thinner than four but one that has all rows, or all columns, of its matrix; one of those is no matrix. */
static void panel(const float *x, int64_t x_stride, float *y, int64_t y_stride, int64_t rows, int64_t cols, int stream)
{
    if (rows >= TL_BLOCK && cols >= TL_BLOCK)
        (stream ? stream_blocks : TL_BLOCKS)(x, x_stride, y, y_stride, rows, cols);
    else if (rows >= 4 && cols >= 4)
        blocks4(x, x_stride, y, y_stride, rows, cols);
    else if (rows == 2)
        interleave2(x, x_stride, y, cols);
    else if (rows == 3)
        interleave3(x, x_stride, y, cols);
    else if (cols == 2)
        deinterleave2(x, y, y_stride, rows);
    else
        deinterleave3(x, y, y_stride, rows);
}

/* ---- runs: inner > 1 --------------------------------------------------------------------------------------------- */

/* Columns in groups of TL_LINE, so that the lines of x a group shares are still in the cache for its next column. The last
 * argument copies a run of `length` elements. */
#define RUNS(name, length, ...)                                                                                     \
    static void name(const float *x, int64_t x_stride, float *y, int64_t y_stride, int64_t rows, int64_t cols, \
                     TL_UNUSED int64_t inner)                                                                            \
    {                                                                                                          \
        for (int64_t j = 0; j < cols; j += TL_LINE)                                                            \
            for (int64_t i = 0; i < rows; i += TL_LINE)                                                        \
                for (int64_t c = j; c < tl_imin(j + TL_LINE, cols); c++)                                       \
                    for (int64_t r = i; r < tl_imin(i + TL_LINE, rows); r++) {                                 \
                        float *const to = y + c * y_stride + r * (length);                                     \
                        const float *const from = x + r * x_stride + c * (length);                             \
                        __VA_ARGS__;                                                                           \
                    }                                                                                          \
    }
#define COPY(n) memcpy(to, from, (size_t)(n) * sizeof(float))
/* Two pieces that may overlap, without a call. */
#define PIECES(size) COPY(size), memcpy(to + inner - (size), from + inner - (size), (size) * sizeof(float))
RUNS(runs2, 2, COPY(2))
RUNS(runs3, 3, COPY(3))
RUNS(runs4, 4, COPY(4))
RUNS(runs_to8, inner, PIECES(4))
RUNS(runs_to16, inner, PIECES(8))
RUNS(runs_to32, inner, PIECES(16))
RUNS(runs_any, inner, COPY(inner))

static void runs(const float *x, int64_t x_stride, float *y, int64_t y_stride, int64_t rows, int64_t cols,
                 int64_t inner)
{
    switch (inner) {
    case 2: runs2(x, x_stride, y, y_stride, rows, cols, inner); break;
    case 3: runs3(x, x_stride, y, y_stride, rows, cols, inner); break;
    case 4: runs4(x, x_stride, y, y_stride, rows, cols, inner); break;
    default:
        (inner <= 8    ? runs_to8
         : inner <= 16 ? runs_to16
         : inner <= 32 ? runs_to32
                       : runs_any)(x, x_stride, y, y_stride, rows, cols, inner);
    }
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
        if (e->inner == 1)
            panel(x, x_stride, y, y_stride, rows, cols, e->stream);
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

static int32_t exchange_axes(const float *x, int64_t outer, int64_t rows, int64_t cols, int64_t inner, float *y)
{
    const int64_t matrix = rows * cols * inner;
    if (rows == 1 || cols == 1) return copy_window(x, 0, outer * matrix, outer * matrix, y);
    exchange e = {.x = x, .y = y, .outer = outer, .rows = rows, .cols = cols, .inner = inner, .together = 1};
    if (inner >= LONG_RUN) {
        tl_parallel(outer * rows * cols * (tl_ceil_div(inner, TASK)), long_run_task, &e);
        return TORCHLEAN_OK;
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
    return TORCHLEAN_OK;
}

int32_t tl_cpu_transpose2d(TL_UNUSED tl_context *ctx, const float *x, int64_t rows, int64_t cols, float *out)
{
    return exchange_axes(x, 1, rows, cols, 1, out);
}

int32_t tl_cpu_swap_adjacent_at_depth(TL_UNUSED tl_context *ctx, const float *x, const tl_dims *dims, int64_t depth,
                                      float *out)
{
    int64_t outer = 1, inner = 1;
    for (int32_t i = 0; i < depth; i++)
        outer *= dims->d[i];
    for (int32_t i = (int32_t)depth + 2; i < dims->rank; i++)
        inner *= dims->d[i];
    return exchange_axes(x, outer, dims->d[depth], dims->d[depth + 1], inner, out);
}

int32_t tl_cpu_transpose3d_bca(TL_UNUSED tl_context *ctx, const float *x, int64_t a, int64_t b, int64_t c, float *out)
{
    return exchange_axes(x, 1, a, b * c, 1, out);
}

int32_t tl_cpu_transpose3d_cab(TL_UNUSED tl_context *ctx, const float *x, int64_t a, int64_t b, int64_t c, float *out)
{
    return exchange_axes(x, 1, a * b, c, 1, out);
}

int32_t tl_cpu_transpose3d_acb(TL_UNUSED tl_context *ctx, const float *x, int64_t a, int64_t b, int64_t c, float *out)
{
    return exchange_axes(x, a, b, c, 1, out);
}
