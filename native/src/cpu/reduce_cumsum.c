/* Cumulative sums on the CPU, in the order of formula/cumsum.h.
 *
 * A unit is up to COLUMNS neighbouring columns of one (length, inner) slice. It goes through the axis once: level 0 are elements, level
 * k + 1 the totals of level k's chunks. */
#include <string.h>

#include "core/threads.h"
#include "formula/cumsum.h"
#include "formula/integer.h"
#include "generated/reduce.h"

enum {
    COLUMNS = 64,
    LEVELS = 8, /* 32^7 elements are more than a buffer has */
    CUMSUM_TASK = 65536,
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
    int64_t length, inner, blocks, units, per_task;
    int reverse;
    float *out;
} cumsum;

/* After `done` elements, the last of a chunk: its total goes to the level above, and on while that ends a chunk there; the next chunks
 * start behind what stands there. */
static void end_chunks(state *t, int64_t done)
{
    int32_t top = 0;
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

/* n elements of one column, `step` apart, whose sums stay in registers. */
static inline void add_column(const float *restrict x, int64_t step, int64_t n, state *t, float *restrict out)
{
    double sum = t->sum[0][0], total = t->total[0][0];
    for (int64_t k = 0; k < n; k++) {
        sum += (double)x[k * step];
        total += (double)x[k * step];
        out[k * step] = (float)sum;
    }
    t->sum[0][0] = sum, t->total[0][0] = total;
}

/* Columns c0 .. c0 + width - 1 of slice o. */
static void add_columns(const cumsum *a, state *t, int64_t o, int64_t c0)
{
    const int64_t step = a->reverse ? -a->inner : a->inner;
    int64_t at = (o * a->length + (a->reverse ? a->length - 1 : 0)) * a->inner + c0;
    for (int64_t i = 0; i < a->length; i += TL_CUMSUM_CHUNK) {
        const int64_t n = tl_imin(TL_CUMSUM_CHUNK, a->length - i);
        const float *const x = a->x + at;
        float *const out = a->out + at;
        if (t->width == 1)
            add_column(x, step, n, t, out);
        else
            for (int64_t k = 0; k < n; k++)
                if (t->width == COLUMNS) /* a constant, for a loop without a head and a rest */
                    add_row(x + k * step, t->sum[0], t->total[0], COLUMNS, out + k * step);
                else
                    add_row(x + k * step, t->sum[0], t->total[0], t->width, out + k * step);
        at += n * step;
        if (n == TL_CUMSUM_CHUNK) end_chunks(t, i + n);
    }
}

static void cumsum_task(void *arg, int64_t task, TL_UNUSED int32_t worker)
{
    const cumsum *a = arg;
    state t;
    for (int64_t u = task * a->per_task, end = tl_imin(a->units, u + a->per_task); u < end; u++) {
        const int64_t c0 = u % a->blocks * COLUMNS, o = u / a->blocks;
        start(&t, tl_imin(COLUMNS, a->inner - c0), a->length);
        add_columns(a, &t, o, c0);
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
    a.blocks = tl_ceil_div(a.inner, COLUMNS);
    a.units = outer * a.blocks;
    a.per_task = tl_imax(1, CUMSUM_TASK / tl_imax(1, a.length * tl_imin(a.inner, COLUMNS)));
    tl_parallel(tl_ceil_div(a.units, a.per_task), cumsum_task, &a);
    return TORCHLEAN_OK;
}
