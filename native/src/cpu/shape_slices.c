/* Slices of any rank, their adjoint and concatenation on the CPU: strided copies (formula/strided.h).
 *
 * The dense side is cut into tasks by its length alone. A task finds the run (the last merged axis) that it starts in and
 * counts from there on as an odometer does, so that short runs cost no division. */
#include <string.h>

#include "core/threads.h"
#include "cpu/stream.h"
#include "formula/integer.h"
#include "formula/strided.h"
#include "generated/shape.h"

enum { TASK = 65536 /* elements of a task */ };

typedef struct copy {
    tl_strided s;
    const float *x;
    float *y;
    int take; /* from the strided array to the dense one, or back */
} copy;

/* n elements between a dense run and one of a stride. */
static inline void copy_run(float *y, int64_t y_stride, const float *x, int64_t x_stride, int64_t n)
{
    if (x_stride == 1 && y_stride == 1) {
        memcpy(y, x, (size_t)n * sizeof(float));
    } else if (y_stride == 1) {
        for (int64_t i = 0; i < n; i++)
            y[i] = x[i * x_stride];
    } else {
        for (int64_t i = 0; i < n; i++)
            y[i * y_stride] = x[i];
    }
}

/* `count` runs of n elements that lie side by side. Short ones are copied as two pieces that may overlap, without a call. */
#define SHORT_RUNS(first, ...)                                                                   \
    for (int64_t i = 0; i < count; i++, y += y_step, x += x_step) {                              \
        memcpy(y, x, (first) * sizeof(float));                                                   \
        __VA_ARGS__;                                                                             \
    }
#define PIECES(size) SHORT_RUNS(size, memcpy(y + n - (size), x + n - (size), (size) * sizeof(float)))
static void copy_runs(float *restrict y, int64_t y_step, const float *restrict x, int64_t x_step, int64_t n,
                      int64_t count)
{
    switch (n) {
    case 1: SHORT_RUNS(1, (void)0) break;
    case 2: SHORT_RUNS(2, (void)0) break;
    case 3: SHORT_RUNS(2, y[2] = x[2]) break;
    case 4: SHORT_RUNS(4, (void)0) break;
    case 5: SHORT_RUNS(4, y[4] = x[4]) break;
    case 6: SHORT_RUNS(4, memcpy(y + 4, x + 4, 2 * sizeof(float))) break;
    default:
        if (n <= 8)
            PIECES(4)
        else if (n <= 16)
            PIECES(8)
        else if (n <= 32)
            PIECES(16)
        else
            SHORT_RUNS(n, (void)0)
    }
}

static void copy_task(void *arg, int64_t task, TL_UNUSED int32_t worker)
{
    const copy *c = arg;
    const tl_strided *s = &c->s;
    const int32_t last = s->count - 1;
    const int64_t first = task * TASK, end = tl_imin(first + TASK, s->n), stride = s->stride[last];
    int64_t place[TL_STRIDED_RANK], index = first, offset = s->base;
    for (int32_t k = last; k >= 0; k--) {
        place[k] = index % s->size[k];
        index /= s->size[k];
        offset += place[k] * s->stride[k];
    }
    const int64_t row = s->size[last], above = last > 0 ? s->stride[last - 1] : 0;
    for (int64_t at = first; at < end;) {
        const int64_t n = tl_imin(row - place[last], end - at);
        int64_t rows = 1;
        if (last > 0 && stride == 1 && n == row) { /* whole runs: as many as the axis above has */
            rows = tl_imin(s->size[last - 1] - place[last - 1], (end - at) / row);
            if (c->take)
                copy_runs(c->y + at, row, c->x + offset, above, row, rows);
            else
                copy_runs(c->y + offset, above, c->x + at, row, row, rows);
            place[last - 1] += rows - 1;
            offset += (rows - 1) * above;
        } else if (c->take) {
            copy_run(c->y + at, 1, c->x + offset, stride, n);
        } else {
            copy_run(c->y + offset, stride, c->x + at, 1, n);
        }
        at += n * rows;
        offset -= place[last] * stride;
        place[last] = 0;
        for (int32_t k = last - 1; k >= 0; k--) {
            offset += s->stride[k];
            if (++place[k] < s->size[k]) break;
            offset -= s->size[k] * s->stride[k];
            place[k] = 0;
        }
    }
}

static void run_copy(copy *c) { tl_parallel(tl_ceil_div(c->s.n, TASK), copy_task, c); }

int32_t tl_cpu_slice_axes(TL_UNUSED tl_context *ctx, const float *x, const tl_dims *in_dims, const tl_dims *out_dims,
                          const tl_dims *starts, const tl_dims *steps, int64_t reversed, float *out)
{
    run_copy(
        &(copy){tl_slice_strides(in_dims->rank, in_dims->d, out_dims->d, starts->d, steps->d, reversed), x, out, 1});
    return TORCHLEAN_OK;
}

typedef struct filling {
    float *y, value;
    int64_t n;
} filling;

static void fill_task(void *arg, int64_t task, TL_UNUSED int32_t worker)
{
    const filling *f = arg;
    const int64_t end = tl_imin((task + 1) * TASK, f->n);
    for (int64_t i = task * TASK; i < end; i++)
        f->y[i] = f->value;
}

int32_t tl_cpu_pad_axes(TL_UNUSED tl_context *ctx, const float *x, const tl_dims *in_dims, const tl_dims *out_dims,
                        const tl_dims *starts, const tl_dims *steps, int64_t reversed, float value, float *out)
{
    filling f = {out, value, (int64_t)tl_dims_product(out_dims)};
    copy c = {.x = x, .y = out};
    if (tl_dims_product(in_dims) > 0)
        c.s = tl_slice_strides(out_dims->rank, out_dims->d, in_dims->d, starts->d, steps->d, reversed);
    if (c.s.n < f.n) tl_parallel(tl_ceil_div(f.n, TASK), fill_task, &f);
    run_copy(&c);
    return TORCHLEAN_OK;
}

int32_t tl_cpu_concat_rows(TL_UNUSED tl_context *ctx, const float *a, const float *b, int64_t rows, int64_t n,
                           int64_t m, float *out)
{
    const int64_t whole[2] = {rows, n + m}, ones[2] = {1, 1}, count[2] = {n, m};
    for (int32_t i = 0; i < 2; i++) {
        const int64_t part[2] = {rows, count[i]}, starts[2] = {0, i * n};
        if (count[i] > 0) run_copy(&(copy){tl_slice_strides(2, whole, part, starts, ones, 0), i ? b : a, out, 0});
    }
    return TORCHLEAN_OK;
}
