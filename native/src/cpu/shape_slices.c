/* Slices of any rank, their adjoint and concatenation on the CPU: strided copies (formula/strided.h).
 *
 * The dense side is cut into tasks by its length alone. A task finds the run (the last merged axis) that it starts in and
 * counts from there on as an odometer does, so that short runs cost no division. A padded array is cut by the length of the
 * result: a task fills its part, which stays in the cache, and writes the copies over it. */
#include <string.h>

#include "core/threads.h"
#include "cpu/runs.h"
#include "cpu/shape.h"
#include "cpu/spans.h"
#include "cpu/stream.h"

enum { TASK = 32768 }; /* the most elements of a task */

typedef struct copy {
    tl_strided s;
    const float *x;
    float *y;
    int64_t span; /* elements of a task */
    int take;     /* from the strided array to the dense one, or back */
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

static void copy_task(void *arg, int64_t task, TL_UNUSED int32_t worker)
{
    const copy *c = arg;
    const tl_strided *s = &c->s;
    const int32_t last = s->count - 1;
    const int64_t first = task * c->span, end = tl_imin(first + c->span, s->n), stride = s->stride[last];
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
                tl_copy_runs(c->y + at, row, c->x + offset, above, row, rows);
            else
                tl_copy_runs(c->y + offset, above, c->x + at, row, row, rows);
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

void tl_copy_strided(const float *x, tl_strided s, int take, float *y)
{
    copy c = {s, x, y, tl_even_span(s.n, TASK), take};
    tl_parallel(tl_ceil_div(s.n, c.span), copy_task, &c);
}

int32_t tl_cpu_slice_axes(TL_UNUSED tl_context *ctx, const float *x, const tl_dims *in_dims, const tl_dims *out_dims,
                          const tl_dims *starts, const tl_dims *steps, int64_t reversed, float *out)
{
    tl_copy_strided(x, tl_slice_strides(in_dims->rank, in_dims->d, out_dims->d, starts->d, steps->d, reversed), 1, out);
    return TORCHLEAN_OK;
}

/* ---- padding ----------------------------------------------------------------------------------------------------- */

/* The axes of the result, merged where the later one is not padded; the last two make a matrix. Index start + j * step of an axis
 * holds element j < part of the input. */
typedef struct padding {
    const float *x;
    float *y, value;
    int32_t outer; /* axes before the last two */
    int64_t size[TL_STRIDED_RANK + 1], part[TL_STRIDED_RANK + 1], start[TL_STRIDED_RANK + 1], step[TL_STRIDED_RANK + 1];
    int64_t n, span; /* elements of the result, and of a task */
} padding;

/* The j < part for which lo <= start + j * step < hi are *first .. *end - 1. */
static void find_indices(int64_t start, int64_t step, int64_t part, int64_t lo, int64_t hi, int64_t *first,
                         int64_t *end)
{
    if (step > 0) {
        *first = lo > start ? tl_ceil_div(lo - start, step) : 0;
        *end = hi > start ? tl_imin(part, tl_ceil_div(hi - start, step)) : 0;
    } else {
        *first = start >= hi ? (start - hi) / -step + 1 : 0;
        *end = start >= lo ? tl_imin(part, (start - lo) / -step + 1) : 0;
    }
}

/* The matrix of the input that matrix `index` of the result holds, or NULL. */
static const float *find_matrix(const padding *p, int64_t index)
{
    int64_t place = 0, stride = p->part[p->outer] * p->part[p->outer + 1];
    if (stride == 0) return NULL;
    for (int32_t k = p->outer - 1; k >= 0; k--) {
        int64_t j = (k ? index % p->size[k] : index) - p->start[k];
        if (p->step[k] != 1) {
            if (j % p->step[k]) return NULL;
            j /= p->step[k];
        }
        if (j < 0 || j >= p->part[k]) return NULL;
        place += j * stride;
        stride *= p->part[k];
        if (k) index /= p->size[k];
    }
    return p->x + place;
}

/* Elements from .. to - 1 of a matrix: padding, and over it what the input has of them. */
static void pad_matrix(const padding *p, float *y, const float *x, int64_t from, int64_t to)
{
    const int32_t h = p->outer, w = h + 1;
    const int64_t width = p->size[w], step = p->step[w];
    int64_t i, rows, j, cols;
    find_indices(p->start[h], p->step[h], p->part[h], from / width, tl_ceil_div(to, width), &i, &rows);
    for (; i < rows; i++) {
        const int64_t row = (p->start[h] + i * p->step[h]) * width;
        find_indices(p->start[w], step, p->part[w], from - row, to - row, &j, &cols);
        if (j < cols) copy_run(y + row + p->start[w] + j * step, step, x + i * p->part[w] + j, 1, cols - j);
    }
}

static void pad_task(void *arg, int64_t task, TL_UNUSED int32_t worker)
{
    const padding *p = arg;
    const int64_t matrix = p->size[p->outer] * p->size[p->outer + 1];
    const int64_t begin = task * p->span, end = tl_imin(begin + p->span, p->n);
    for (int64_t i = begin; i < end; i++)
        p->y[i] = p->value;
    for (int64_t index = begin / matrix, at = index * matrix; at < end; index++, at += matrix) {
        const float *x = find_matrix(p, index);
        if (x) pad_matrix(p, p->y + at, x, tl_imax(begin - at, 0), tl_imin(matrix, end - at));
    }
}

int32_t tl_cpu_pad_axes(TL_UNUSED tl_context *ctx, const float *x, const tl_dims *in_dims, const tl_dims *out_dims,
                        const tl_dims *starts, const tl_dims *steps, int64_t reversed, float value, float *out)
{
    padding p = {.x = x, .y = out, .value = value, .n = (int64_t)tl_dims_product(out_dims)};
    int32_t count = 1; /* an axis of one index comes first */
    p.size[0] = p.part[0] = p.step[0] = 1;
    for (int32_t k = 0; k < out_dims->rank; k++) {
        const int64_t size = out_dims->d[k], part = in_dims->d[k];
        const int64_t step = part == 1 ? 1 : reversed >> k & 1 ? -steps->d[k] : steps->d[k];
        if (part == size && step == 1 && p.step[count - 1] == 1) {
            p.size[count - 1] *= size, p.part[count - 1] *= size, p.start[count - 1] *= size;
            continue;
        }
        if (p.size[count - 1] == 1 && p.part[count - 1] == 1) count--; /* which takes no part */
        p.size[count] = size, p.part[count] = part, p.start[count] = starts->d[k], p.step[count] = step;
        count++;
    }
    if (count == 1) {
        p.size[1] = p.size[0], p.part[1] = p.part[0], p.start[1] = p.start[0], p.step[1] = p.step[0];
        p.size[0] = p.part[0] = p.step[0] = 1, p.start[0] = 0;
        count = 2;
    }
    p.outer = count - 2;
    p.span = tl_even_span(p.n, TASK);
    tl_parallel(tl_ceil_div(p.n, p.span), pad_task, &p);
    return TORCHLEAN_OK;
}

int32_t tl_cpu_slice1d(tl_context *ctx, const float *x, int64_t n, int64_t start, int64_t len, float *out)
{
    const tl_dims whole = {1, {n}}, part = {1, {len}}, starts = {1, {start}}, steps = {1, {1}};
    return tl_cpu_slice_axes(ctx, x, &whole, &part, &starts, &steps, 0, out);
}

int32_t tl_cpu_slice1d_bwd(tl_context *ctx, const float *g, int64_t n, int64_t start, int64_t len, float *gx)
{
    const tl_dims whole = {1, {n}}, part = {1, {len}}, starts = {1, {start}}, steps = {1, {1}};
    return tl_cpu_pad_axes(ctx, g, &part, &whole, &starts, &steps, 0, 0.0f, gx);
}

/* ---- concatenation ------------------------------------------------------------------------------------------------- */

int32_t tl_cpu_concat_rows(TL_UNUSED tl_context *ctx, const float *a, const float *b, int64_t rows, int64_t n,
                           int64_t m, float *out)
{
    const int64_t whole[2] = {rows, n + m}, ones[2] = {1, 1}, count[2] = {n, m};
    for (int32_t i = 0; i < 2; i++) {
        const int64_t part[2] = {rows, count[i]}, starts[2] = {0, i * n};
        if (count[i] > 0) tl_copy_strided(i ? b : a, tl_slice_strides(2, whole, part, starts, ones, 0), 0, out);
    }
    return TORCHLEAN_OK;
}
