/* Units of a fold on the CPU: segments of the reduced elements of one result or of several side by side, onto lanes, and the
 * segments of what earlier units left (reduce_axes.c says how they follow each other). */
#pragma once

#include <string.h>

#include "core/dims.h"
#include "cpu/fold_lanes.h"
#include "cpu/linalg/gemm.h"
#include "cpu/spans.h"
#include "formula/fold.h"
#include "formula/integer.h"

enum {
    FOLD_TASK = 65536, /* elements of a task */
    FOLD_HEAVY = 8,    /* of them that take as long as one that is an argument of exp or log */
    FOLD_ROOM = 896,   /* doubles in L1, all planes of a unit */
    FOLD_CELLS = 3072  /* elements that are turned at a time */
};

/* A fold of x: into values (planes of `count` doubles), or what they end as into out. `centre` are the values of an earlier fold of the
 * same geometry, `centre_out` the results of one; both may be missing. */
typedef struct fold {
    enum tl_fold_kind kind;
    tl_fold_axes f;
    tl_fold_rule rule;
    const float *x;
    const tl_dims *dims; /* of x, and the reduced axes, where the geometry does not say it */
    int64_t axes;
    const double *centre;
    const float *centre_out;
    double *values;
    float *out;
    /* of the present level */
    const double *from;
    int64_t each; /* elements of x that a value of `from` stands for; the last for what is left */
    int64_t results, length, lanes, segments, width, tiles, units, per_task;
    int along; /* columns of a unit are segments of a result */
    double *to;
} fold;

static int64_t planes_of(enum tl_fold_kind kind) { return kind == TL_FOLD_PRODUCT ? TL_FOLD_PLANES : 1; }

/* Of the values of a level: those of lanes, or what deviations are around, the sum, beside them. */
static int64_t value_planes_of(enum tl_fold_kind kind) { return kind == TL_FOLD_DEVIATION ? 2 : planes_of(kind); }

/* The most elements of a task. */
static int64_t task_of(enum tl_fold_kind kind)
{
    return kind == TL_FOLD_EXP || kind == TL_FOLD_POWER ? FOLD_TASK / FOLD_HEAVY : FOLD_TASK;
}

static double centre_of(const fold *a, int64_t result)
{
    const double m = a->centre ? a->centre[result] : a->centre_out ? (double)a->centre_out[result] : 0.0;
    return tl_fold_centre(a->kind, m);
}

static void start_lanes(enum tl_fold_kind kind, double *v, int64_t plane)
{
    for (int64_t i = 0; i < planes_of(kind) * plane; i++)
        v[i] = i < plane ? tl_fold_start(kind) : 0.0;
}

/* Folds the lanes of `width` columns: those of one lane stand side by side. */
static void fold_lanes(const fold *a, double *v, int64_t plane, int64_t width)
{
    for (int64_t half = a->lanes / 2; half > 0; half /= 2) {
        const int64_t n = half * width;
        const double *const other = v + n;
        if (plane == 0)
            for (int64_t i = 0; i < n; i++)
                tl_fold_join(a->kind, v + i, NULL, NULL, other[i], 0.0, 0.0);
        for (int64_t i = 0; plane > 0 && i < n; i++)
            tl_fold_join(TL_FOLD_PRODUCT, v + i, v + plane + i, v + 2 * plane + i, other[i], other[plane + i],
                         other[2 * plane + i]);
    }
}

/* Writes the sum beside the deviations of segment s of a result. */
static void write_sum(const fold *a, double sum, int64_t result, int64_t s)
{
    if (a->segments > 1 || !a->out) a->to[(a->results + result) * a->segments + s] = sum;
}

/* Writes the value of segment s of a result, whose planes lie `plane` apart. */
static void write_value(const fold *a, const double *v, int64_t plane, int64_t result, int64_t s)
{
    if (a->segments == 1 && a->out) {
        const tl_folded value = {v[0], plane == 0 ? 0.0 : v[plane], plane == 0 ? 0.0 : v[2 * plane]};
        a->out[result] = tl_fold_end(a->kind, value, centre_of(a, result), a->rule);
        return;
    }
    double *const to = a->to + result * a->segments + s;
    for (int64_t p = 0; p < planes_of(a->kind); p++)
        to[p * a->results * a->segments] = v[p * plane];
}

/* Where the reduced or kept element i lies, by its merged axes. */
static int64_t offset_of(int32_t count, const int64_t *size, const int64_t *stride, int64_t i, int64_t *place)
{
    int64_t offset = 0;
    for (int32_t k = 0; k < count; k++) {
        place[k] = i % size[k];
        i /= size[k];
        offset += place[k] * stride[k];
    }
    return offset;
}

/* Moves `by` elements on, not beyond the end of the first axis, and returns the change of the offset. */
static int64_t advance(const tl_fold_axes *f, int64_t *place, int64_t by)
{
    if (f->reduced == 0) return 0;
    int64_t moved = by * f->reduced_stride[0];
    place[0] += by;
    for (int32_t k = 0; place[k] == f->reduced_size[k] && k + 1 < f->reduced; k++) {
        moved += f->reduced_stride[k + 1] - place[k] * f->reduced_stride[k];
        place[k] = 0;
        place[k + 1]++;
    }
    return moved;
}

/* How many reduced elements from `place` on lie side by side. */
static int64_t run_from(const tl_fold_axes *f, const int64_t *place)
{
    return f->inner == 1 && f->reduced > 0 ? f->reduced_size[0] - place[0] : 1;
}

/* Elements begin..end - 1 of `width` columns from x on, whose axes are f, onto their lanes. whole: the rows of a lane each lie side by
 * side. */
static void take_unit(const fold *a, const tl_fold_axes *f, enum tl_fold_kind kind, const float *x, int64_t begin,
                      int64_t end, int64_t width, double *v, const double *m)
{
    const int whole = width == f->inner && f->reduced > 0 && f->reduced_stride[0] == f->inner;
    const int64_t stride = f->reduced > 0 ? f->reduced_stride[0] : 0, lanes = a->lanes;
    const int64_t plane = planes_of(kind) > 1 ? lanes * width : 0;
    int64_t place[TL_FOLD_RANK];
    start_lanes(kind, v, lanes * width);
    if (begin < end) x += offset_of(f->reduced, f->reduced_size, f->reduced_stride, begin, place);
    for (int64_t r = begin, run; r < end; r += run) {
        const int64_t lane = (r - begin) % lanes;
        run = tl_imin(end - r, f->reduced > 0 ? f->reduced_size[0] - place[0] : 1);
        if (lane == 0 && run >= lanes) {
            run -= run % lanes;
            for (int64_t l = 0; l < (whole ? 1 : lanes); l++)
                take_rows(kind, v + l * width, plane, x + l * stride, lanes * stride, m, whole ? lanes * width : width,
                          run / lanes, a->rule);
        } else {
            run = whole ? tl_imin(run, lanes - lane) : 1;
            take_rows(kind, v + lane * width, plane, x, stride, m, run * width, 1, a->rule);
        }
        x += advance(f, place, run);
    }
}

/* Columns side by side: segment `segment` of results from `result` on, or `along` a result segments from `segment` on. */
typedef struct columns {
    int64_t width, result, segment;
    int along;
} columns;

/* Folds elements begin..end - 1 of columns of x, whose axes are f, and writes their values. */
static __attribute__((noinline)) void fold_columns(const fold *a, const tl_fold_axes *f, const float *x, int64_t begin,
                                                   int64_t end, const columns *c)
{
    double v[FOLD_ROOM], m[FOLD_ROOM];
    const int64_t width = c->width, plane = planes_of(a->kind) > 1 ? a->lanes * width : 0;
    if (a->kind == TL_FOLD_DEVIATION) {
        memset(m, 0, (size_t)(a->lanes * width) * sizeof *m); /* sums have no centre */
        take_unit(a, f, TL_FOLD_SUM, x, begin, end, width, v, m);
        fold_lanes(a, v, 0, width);
    }
    for (int64_t j = 0; j < width; j++) {
        const int64_t result = c->result + (c->along ? 0 : j);
        if (a->kind == TL_FOLD_DEVIATION) write_sum(a, v[j], result, c->segment + (c->along ? j : 0));
        m[j] = a->kind == TL_FOLD_DEVIATION ? v[j] / (double)(end - begin) : centre_of(a, result);
    }
    for (int64_t j = width; j < a->lanes * width; j++)
        m[j] = m[j - width];
    take_unit(a, f, a->kind, x, begin, end, width, v, m);
    fold_lanes(a, v, plane, width);
    for (int64_t j = 0; j < width; j++)
        write_value(a, v + j, plane, c->result + (c->along ? 0 : j), c->segment + (c->along ? j : 0));
}

/* A unit of several kept elements side by side. */
static void fold_unit(const fold *a, int64_t unit)
{
    const tl_fold_axes *f = &a->f;
    const int64_t s = unit % a->segments, tile = unit / a->segments % a->tiles, k = unit / a->segments / a->tiles;
    const int64_t c0 = tile * a->width, begin = s * TL_FOLD_SEGMENT;
    int64_t place[TL_FOLD_RANK];
    const float *const x = a->x + c0 + offset_of(f->kept, f->kept_size, f->kept_stride, k, place);
    fold_columns(a, f, x, begin, tl_imin(f->length, begin + TL_FOLD_SEGMENT),
                 &(columns){tl_imin(a->width, f->inner - c0), k * f->inner + c0, s, 0});
}

/* A unit where the last axis is reduced: its elements are turned, so that those of its columns stand side by side. */
static void fold_turned(const fold *a, int64_t unit)
{
    _Alignas(64) float turned[FOLD_CELLS + TL_GEMM_LANES];
    const tl_fold_axes *f = &a->f;
    int64_t place[TL_FOLD_RANK];
    columns c = {.result = unit / a->tiles * (a->along ? 1 : a->width), .along = a->along};
    c.segment = unit % a->tiles * (a->along ? a->width : 1);
    c.width = a->along ? tl_imin(a->width, a->segments - 1 - c.segment) : tl_imin(a->width, a->results - c.result);
    if (a->along && unit % a->tiles == a->tiles - 1) c.segment = a->segments - 1, c.width = 1;
    const int64_t begin = c.segment * TL_FOLD_SEGMENT, n = tl_imin(f->length - begin, TL_FOLD_SEGMENT);
    const int even = a->along ? f->reduced <= 1 : f->kept <= 1; /* columns are equally far apart */
    const int64_t apart = a->along ? TL_FOLD_SEGMENT : f->kept_stride[0];
    for (int64_t j = 0; n > 0 && j < c.width; j += even ? c.width : 1) {
        const int64_t first = begin + (a->along ? j * TL_FOLD_SEGMENT : 0);
        const float *x = a->x + offset_of(f->kept, f->kept_size, f->kept_stride, c.result + (a->along ? 0 : j), place);
        x += offset_of(f->reduced, f->reduced_size, f->reduced_stride, first, place);
        for (int64_t r = 0, run; r < n; r += run) {
            run = tl_imin(n - r, run_from(f, place));
            if (even) tl_gemm_pack_f32(turned + r * c.width, c.width, c.width, run, x, apart, 1);
            for (int64_t i = 0; !even && i < run; i++)
                turned[(r + i) * c.width + j] = x[i];
            x += advance(f, place, run);
        }
    }
    const tl_fold_axes of = {.reduced = n > 0, .reduced_size = {n}, .reduced_stride = {c.width}, .inner = c.width};
    fold_columns(a, &of, turned, 0, n, &c);
}

/* A segment of the values of one result, which are deviations: around what their own elements' mean is. */
static void join_deviations(const fold *a, int64_t result, int64_t s)
{
    double v[TL_FOLD_LANES] = {0}, w[TL_FOLD_LANES] = {0};
    const int64_t begin = s * TL_FOLD_SEGMENT, n = tl_imin(a->length - begin, TL_FOLD_SEGMENT);
    const int64_t left = a->rule.n - begin * a->each; /* elements of x from the first value on */
    const double *const from = a->from + result * a->length + begin, *const sums = from + a->results * a->length;
    for (int64_t r = 0; r < n; r++)
        v[r % a->lanes] += sums[r];
    fold_lanes(a, v, 0, 1);
    const double m = v[0] / (double)tl_imin(n * a->each, left);
    for (int64_t r = 0; r < n; r++)
        w[r % a->lanes] += tl_fold_around(from[r], sums[r], (double)tl_imin(a->each, left - r * a->each), m);
    fold_lanes(a, w, 0, 1);
    write_sum(a, v[0], result, s);
    write_value(a, w, 0, result, s);
}

/* A unit of a later level: a segment of the values of one result. */
static void join_unit(const fold *a, int64_t unit)
{
    double v[TL_FOLD_PLANES * TL_FOLD_LANES];
    const int64_t s = unit % a->segments, result = unit / a->segments, many = planes_of(a->kind) > 1;
    if (a->kind == TL_FOLD_DEVIATION) {
        join_deviations(a, result, s);
        return;
    }
    const int64_t plane = many * a->lanes, apart = many * a->results * a->length;
    const int64_t begin = s * TL_FOLD_SEGMENT, end = tl_imin(a->length, begin + TL_FOLD_SEGMENT);
    start_lanes(a->kind, v, a->lanes);
    for (int64_t r = begin; r < end; r++) {
        const double *const from = a->from + result * a->length + r;
        double *const to = v + (r - begin) % a->lanes;
        tl_fold_join(a->kind, to, to + plane, to + 2 * plane, from[0], from[apart], from[2 * apart]);
    }
    fold_lanes(a, v, plane, 1);
    write_value(a, v, plane, result, s);
}
