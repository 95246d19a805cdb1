/* Cumulative sums on the CPU, in the order of formula/cumsum.h.
 *
 * A unit is up to COLUMNS neighbouring columns of one (length, inner) slice, or, where the axis is the last one, up to ROWS rows,
 * of which a panel at a time is transposed, so that they are neighbouring columns too. It goes through the axis once: level 0 are
 * elements, level k + 1 the totals of level k's chunks. Of a row by itself the chunks are side by side. */
#include <string.h>

#include "core/threads.h"
#include "cpu/blocks.h"
#include "cpu/stream.h"
#include "cpu/vector64.h"
#include "formula/cumsum.h"
#include "formula/integer.h"
#include "generated/reduce.h"

enum {
    COLUMNS = 64,
    ROWS = 16,
    FEW_ROWS = 8, /* which take longer one after the other, on two threads, than together on one */
    PANEL = 64,   /* columns of so many rows, transposed: 4 KiB */
    LEVELS = 8,   /* 32^7 elements are more than a buffer has */
    CUMSUM_TASK = 65536,
    GROUP = TL_CUMSUM_CHUNK * TL_CUMSUM_CHUNK, /* elements of a row whose chunks go side by side */
    FETCHED = 2048, /* elements of rows that are fetched while those before them are summed: 256 KiB of both arrays */
};

/* What stands before the next element at every level, and the totals so far; of a level, `width` numbers. */
typedef struct state {
    _Alignas(64) double sum[LEVELS][COLUMNS], total[LEVELS][COLUMNS];
    int64_t width;
} state;

/* As many levels as an axis of this length ends chunks of start at +0. */
static void start(state *t, int64_t width, int64_t length)
{
    t->width = width;
    int32_t level = 0;
    do {
        memset(t->sum[level], 0, (size_t)width * sizeof(double));
        memset(t->total[level], 0, (size_t)width * sizeof(double));
        length /= TL_CUMSUM_CHUNK;
    } while (++level < LEVELS && length > 0);
}

typedef struct cumsum {
    const float *x;
    int64_t length, inner, rows, together, blocks, units, per_task;
    int reverse;
    float *out;
} cumsum;

/* After `done` elements of a level, the last of a chunk: its total goes to the level above, and on while that ends a chunk there; the
 * next chunks start behind what stands there. */
static void end_chunks(state *t, int64_t done, int32_t level)
{
    int32_t top = level;
    for (; done % TL_CUMSUM_CHUNK == 0; done /= TL_CUMSUM_CHUNK, top++)
        for (int64_t j = 0; j < t->width; j++) {
            t->sum[top + 1][j] += t->total[top][j];
            t->total[top + 1][j] += t->total[top][j];
            t->total[top][j] = 0.0;
        }
    while (top-- > 0)
        memcpy(t->sum[top], t->sum[top + 1], (size_t)t->width * sizeof(double));
}

static inline __attribute__((always_inline)) void add_row(const float *restrict x, double *restrict sum,
                                                          double *restrict total, int64_t width, float *restrict out)
{
    for (int64_t j = 0; j < width; j++) {
        sum[j] += (double)x[j];
        total[j] += (double)x[j];
        out[j] = (float)sum[j];
    }
}

/* n <= TL_CUMSUM_CHUNK elements, `step` apart, of `width` <= ROWS columns, whose sums stay in registers: a constant. */
static inline __attribute__((always_inline)) void add_chunk(const float *restrict x, int64_t step, int64_t n, state *t,
                                                            int32_t width, float *restrict out)
{
    double sum[ROWS], total[ROWS];
    for (int32_t j = 0; j < width; j++)
        sum[j] = t->sum[0][j], total[j] = t->total[0][j];
    for (int64_t k = 0; k < n; k++)
        for (int32_t j = 0; j < width; j++) {
            const double d = (double)x[k * step + j];
            sum[j] += d;
            total[j] += d;
            out[k * step + j] = (float)sum[j];
        }
    for (int32_t j = 0; j < width; j++)
        t->sum[0][j] = sum[j], t->total[0][j] = total[j];
}

/* Columns c0 .. c0 + width - 1 of slice o, from element `first` of the axis on, which begins a chunk. */
static void add_columns(const cumsum *a, state *t, int64_t o, int64_t c0, int64_t first)
{
    const int64_t step = a->reverse ? -a->inner : a->inner;
    int64_t at = (o * a->length + (a->reverse ? a->length - 1 : 0)) * a->inner + c0 + first * step;
    for (int64_t i = first; i < a->length; i += TL_CUMSUM_CHUNK) {
        const int64_t n = tl_imin(TL_CUMSUM_CHUNK, a->length - i);
        const float *const x = a->x + at;
        float *const out = a->out + at;
        switch (t->width) {
        case 1: add_chunk(x, step, n, t, 1, out); break;
        case 2: add_chunk(x, step, n, t, 2, out); break;
        case 3: add_chunk(x, step, n, t, 3, out); break;
        case 4: add_chunk(x, step, n, t, 4, out); break;
        case 5: add_chunk(x, step, n, t, 5, out); break;
        case 6: add_chunk(x, step, n, t, 6, out); break;
        case 7: add_chunk(x, step, n, t, 7, out); break;
        case COLUMNS: /* a constant, for a loop without a head and a rest */
            for (int64_t k = 0; k < n; k++)
                add_row(x + k * step, t->sum[0], t->total[0], COLUMNS, out + k * step);
            break;
        default:
            for (int64_t k = 0; k < n; k++)
                add_row(x + k * step, t->sum[0], t->total[0], t->width, out + k * step);
        }
        at += n * step;
        if (n == TL_CUMSUM_CHUNK) end_chunks(t, i + n, 0);
    }
}

/* The same of up to ROWS columns, two vectors of them at a time, in their place. */
static void add_panel(float *x, int64_t step, int64_t n, int64_t columns, state *t)
{
    const int32_t width = TL_LANES / 2;
    for (int64_t j = 0; j < columns; j += 2 * width) {
        double *const s = t->sum[0] + j, *const all = t->total[0] + j;
        tl_vec64 sum0 = tl_vec64_load(s), sum1 = tl_vec64_load(s + width);
        tl_vec64 total0 = tl_vec64_load(all), total1 = tl_vec64_load(all + width);
        for (int64_t k = 0; k < n; k++) {
            float *const at = x + k * step + j;
            const tl_vec64 d0 = tl_vec64_widen(at), d1 = tl_vec64_widen(at + width);
            sum0 += d0, sum1 += d1;
            total0 += d0, total1 += d1;
            tl_vec64_round(at, sum0);
            tl_vec64_round(at + width, sum1);
        }
        tl_vec64_store(s, sum0), tl_vec64_store(s + width, sum1);
        tl_vec64_store(all, total0), tl_vec64_store(all + width, total1);
    }
}

/* Fetches elements at .. at + n - 1 of both arrays. */
static void fetch_ahead(const cumsum *a, int64_t at, int64_t n)
{
    for (const int64_t end = tl_imin(at + n, a->rows * a->length); at < end; at += TL_LINE) {
        __builtin_prefetch(a->x + at, 0, 2);
        __builtin_prefetch(a->out + at, 1, 2);
    }
}

/* FEW_ROWS .. ROWS rows, from `row` on, of at least ROWS elements, which lie side by side. A panel of them is transposed, summed in
 * place and transposed back; the last one is not narrower than a block. The sums of rows that are missing are of zeros. */
static void add_rows(const cumsum *a, state *t, int64_t row, int64_t rows)
{
    _Alignas(64) float panel[PANEL * ROWS];
    void (*const turn)(const float *, int64_t, float *, int64_t, int64_t, int64_t) = rows < TL_BLOCK ? blocks4
                                                                                                     : TL_BLOCKS;
    const int far = a->rows * a->length >= TL_FETCH_FROM && a->length <= FETCHED;
    if (rows < ROWS) memset(panel, 0, sizeof panel);
    for (int64_t i = 0, width; i < a->length; i += width) {
        const int64_t left = a->length - i;
        width = left <= PANEL ? left : left < PANEL + ROWS ? PANEL - TL_CUMSUM_CHUNK : PANEL;
        const int64_t at = row * a->length + (a->reverse ? left - width : i);
        turn(a->x + at, a->length, panel, ROWS, rows, width);
        for (int64_t k = 0; k < width; k += TL_CUMSUM_CHUNK) {
            const int64_t n = tl_imin(TL_CUMSUM_CHUNK, width - k);
            if (far) fetch_ahead(a, (row + rows) * a->length + (i + k) * rows, n * rows);
            add_panel(panel + (a->reverse ? width - 1 - k : k) * ROWS, a->reverse ? -ROWS : ROWS, n, rows, t);
            if (n == TL_CUMSUM_CHUNK) end_chunks(t, i + k + n, 0);
        }
        turn(panel, ROWS, a->out + at, a->length, width, rows);
    }
}

/* A row of one chunk at most. */
static void add_short_row(const float *x, int64_t n, int64_t step, float *out)
{
    double sum = 0.0;
    for (int64_t k = 0; k < n; k++)
        out[k * step] = (float)(sum += (double)x[k * step]);
}

/* The next GROUP elements of a row, a chunk of the first level: x[k * CHUNK + c] becomes its cumulative sum. Lanes are chunks, which
 * do not wait for each other: their totals, of them what stands before each, and then its sums. */
static void add_group(float *x, int reverse, state *t)
{
    enum { CHUNK = TL_CUMSUM_CHUNK, WIDTH = TL_LANES / 2, VECTORS = CHUNK / WIDTH };
    _Alignas(64) double total[CHUNK], before[CHUNK];
    const int64_t first = reverse ? CHUNK - 1 : 0, step = reverse ? -1 : 1;
    tl_vec64 sum[VECTORS] = {{0}};
    for (int64_t k = 0; k < CHUNK; k++) {
#pragma GCC unroll 16
        for (int32_t v = 0; v < VECTORS; v++)
            sum[v] += tl_vec64_widen(x + (first + k * step) * CHUNK + v * WIDTH);
    }
    memcpy(total, sum, sizeof total);
    double stand = t->sum[1][0], all = t->total[1][0];
    for (int64_t k = 0, c = first; k < CHUNK; k++, c += step) {
        before[c] = stand;
        stand += total[c];
        all += total[c];
    }
    t->sum[1][0] = stand, t->total[1][0] = all;
    memcpy(sum, before, sizeof before);
    for (int64_t k = 0; k < CHUNK; k++) {
#pragma GCC unroll 16
        for (int32_t v = 0; v < VECTORS; v++) {
            float *const at = x + (first + k * step) * CHUNK + v * WIDTH;
            sum[v] += tl_vec64_widen(at);
            tl_vec64_round(at, sum[v]);
        }
    }
}

/* A row by itself, in groups as long as there are whole ones. */
static void add_long_row(const cumsum *a, state *t, int64_t row)
{
    _Alignas(64) float group[GROUP];
    const float *const x = a->x + row * a->length;
    float *const out = a->out + row * a->length;
    int64_t i = 0;
    for (; i + GROUP <= a->length; i += GROUP) {
        const int64_t at = a->reverse ? a->length - i - GROUP : i;
        TL_BLOCKS(x + at, TL_CUMSUM_CHUNK, group, TL_CUMSUM_CHUNK, TL_CUMSUM_CHUNK, TL_CUMSUM_CHUNK);
        add_group(group, a->reverse, t);
        end_chunks(t, (i + GROUP) / TL_CUMSUM_CHUNK, 1);
        TL_BLOCKS(group, TL_CUMSUM_CHUNK, out + at, TL_CUMSUM_CHUNK, TL_CUMSUM_CHUNK, TL_CUMSUM_CHUNK);
    }
    add_columns(a, t, row, 0, i);
}

static void cumsum_task(void *arg, int64_t task, TL_UNUSED int32_t worker)
{
    const cumsum *a = arg;
    state t;
    for (int64_t u = task * a->per_task, end = tl_imin(a->units, u + a->per_task); u < end; u++) {
        const int64_t c0 = u % a->blocks * COLUMNS, o = u / a->blocks;
        start(&t, tl_imin(COLUMNS, a->inner - c0), a->length);
        add_columns(a, &t, o, c0, 0);
    }
}

/* A unit is `together` rows, as evenly as they divide: all of them at once, or one after the other. */
static void cumsum_rows_task(void *arg, int64_t task, TL_UNUSED int32_t worker)
{
    const cumsum *a = arg;
    state t;
    for (int64_t u = task * a->per_task, end = tl_imin(a->units, u + a->per_task); u < end; u++) {
        int64_t row = u * a->together;
        const int64_t last = tl_imin(row + a->together, a->rows);
        for (; a->length < ROWS && row < last; row++) {
            const int64_t at = row * a->length + (a->reverse ? a->length - 1 : 0);
            add_short_row(a->x + at, a->length, a->reverse ? -1 : 1, a->out + at);
        }
        if (a->length >= ROWS && last - row >= FEW_ROWS) {
            start(&t, ROWS, a->length);
            add_rows(a, &t, row, last - row);
            continue;
        }
        for (; row < last; row++) {
            start(&t, 1, a->length);
            add_long_row(a, &t, row);
        }
    }
}

int32_t tl_cpu_cumsum(TL_UNUSED tl_context *ctx, const float *x, const tl_dims *dims, int64_t axis, int64_t reverse,
                      float *out)
{
    cumsum a = {.x = x, .length = dims->d[axis], .inner = 1, .reverse = (int)reverse, .out = out};
    int64_t outer = 1;
    for (int64_t k = 0; k < dims->rank; k++)
        if (k != axis) *(k > axis ? &a.inner : &outer) *= dims->d[k];
    if (a.length == 1) a.inner *= outer, outer = 1;
    const int by_rows = a.inner == 1;
    a.rows = outer;
    a.together = outer < FEW_ROWS ? 1 : tl_ceil_div(outer, tl_ceil_div(outer, ROWS));
    a.blocks = tl_ceil_div(a.inner, COLUMNS);
    a.units = by_rows ? tl_ceil_div(outer, a.together) : outer * a.blocks;
    a.per_task = tl_imax(1, CUMSUM_TASK / tl_imax(1, a.length * (by_rows ? a.together : tl_imin(a.inner, COLUMNS))));
    tl_parallel(tl_ceil_div(a.units, a.per_task), by_rows ? cumsum_rows_task : cumsum_task, &a);
    return TORCHLEAN_OK;
}
