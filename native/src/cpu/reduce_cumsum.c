/* Cumulative sums on the CPU, in the order of formula/cumsum.h.
 *
 * A unit is up to COLUMNS neighbouring columns of one (length, inner) slice. It goes through the axis once: level 0 are
 * elements, level k + 1 the totals of level k's chunks. */
#include <string.h>

#include "core/threads.h"
#include "formula/cumsum.h"
#include "formula/integer.h"
#include "generated/reduce.h"

enum { COLUMNS = 64, LEVELS = 8 /* 32^7 elements are more than a buffer has */, CUMSUM_TASK = 65536 };

typedef struct cumsum {
    const float *x;
    int64_t length, inner, blocks, units, per_task;
    int reverse;
    float *out;
} cumsum;

/* After `done` elements, the last of a chunk: its total goes to the level above, and on while that ends a chunk there; the next
 * chunks start behind what stands there. */
static void end_chunks(double (*sum)[COLUMNS], double (*total)[COLUMNS], int64_t done, int64_t width)
{
    int32_t top = 0;
    for (; done % TL_CUMSUM_CHUNK == 0; done /= TL_CUMSUM_CHUNK, top++)
        for (int64_t j = 0; j < width; j++) {
            sum[top + 1][j] += total[top][j];
            total[top + 1][j] += total[top][j];
            total[top][j] = 0.0;
        }
    while (top-- > 0)
        memcpy(sum[top], sum[top + 1], (size_t)width * sizeof(double));
}

static void add_row(const float *restrict x, double *restrict sum, double *restrict total, int64_t width,
                    float *restrict out)
{
    for (int64_t j = 0; j < width; j++) {
        sum[j] += (double)x[j];
        total[j] += (double)x[j];
        out[j] = (float)sum[j];
    }
}

static void cumsum_task(void *arg, int64_t task, TL_UNUSED int32_t worker)
{
    const cumsum *a = arg;
    for (int64_t u = task * a->per_task, end = tl_imin(a->units, u + a->per_task); u < end; u++) {
        double sum[LEVELS][COLUMNS], total[LEVELS][COLUMNS];
        memset(sum, 0, sizeof sum);
        memset(total, 0, sizeof total);
        const int64_t c0 = u % a->blocks * COLUMNS, width = tl_imin(COLUMNS, a->inner - c0);
        const int64_t base = u / a->blocks * a->length * a->inner + c0;
        for (int64_t i = 0; i < a->length; i++) {
            const int64_t at = base + (a->reverse ? a->length - 1 - i : i) * a->inner;
            add_row(a->x + at, sum[0], total[0], width, a->out + at);
            if ((i + 1) % TL_CUMSUM_CHUNK == 0) end_chunks(sum, total, i + 1, width);
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
    a.blocks = tl_ceil_div(a.inner, COLUMNS);
    a.units = outer * a.blocks;
    a.per_task = tl_imax(1, CUMSUM_TASK / tl_imax(1, a.length * tl_imin(a.inner, COLUMNS)));
    tl_parallel(tl_ceil_div(a.units, a.per_task), cumsum_task, &a);
    return TORCHLEAN_OK;
}
