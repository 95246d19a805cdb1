/* Units of a fold on the CPU: segments of the reduced elements of one result or of several side by side, onto lanes, and the
 * segments of what earlier units left (reduce_axes.c says how they follow each other). */
#pragma once

#include <string.h>

#include "core/dims.h"
#include "cpu/fold_lanes.h"
#include "cpu/spans.h"
#include "formula/fold.h"
#include "formula/integer.h"

enum {
    FOLD_TASK = 65536,                          /* elements of a task */
    FOLD_HEAVY = 8,                             /* of them that take as long as one that is an argument of exp or log */
    FOLD_ROOM = 896,                            /* doubles in L1, all planes of a unit */
    GROUP_CELLS = TAKE_UNITS * TL_FOLD_SEGMENT, /* elements of a group at most */
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

/* Where the value of segment s of a result goes; its other planes lie a->results * a->segments apart. */
static double *value_at(const fold *a, int64_t result, int64_t s) { return a->to + result * a->segments + s; }

/* Writes the sum beside the deviations of segment s of a result. */
static void write_sum(const fold *a, double sum, int64_t result, int64_t s)
{
    if (a->segments > 1 || !a->out) value_at(a, result, s)[a->results * a->segments] = sum;
}

/* Writes the value of segment s of a result, whose planes lie `plane` apart. */
static void write_value(const fold *a, const double *v, int64_t plane, int64_t result, int64_t s)
{
    if (a->segments == 1 && a->out) {
        const tl_folded value = {v[0], plane == 0 ? 0.0 : v[plane], plane == 0 ? 0.0 : v[2 * plane]};
        a->out[result] = tl_fold_end(a->kind, value, centre_of(a, result), a->rule);
        return;
    }
    double *const to = value_at(a, result, s);
    for (int64_t p = 0; p < planes_of(a->kind); p++)
        to[p * a->results * a->segments] = v[p * plane];
}

/* Folds the lanes and writes the values of segment `s` of the results from `first` on. */
static void end_lanes(const fold *a, double *v, int64_t plane, int64_t width, int64_t first, int64_t s)
{
    fold_lanes(a, v, plane, width);
    for (int64_t j = 0; j < width; j++)
        write_value(a, v + j, plane, first + j, s);
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

/* Elements begin..end - 1 of `width` columns from x on onto their lanes. whole: the rows of a lane each lie side by side. */
static void take_unit(const fold *a, enum tl_fold_kind kind, const float *x, int64_t begin, int64_t end, int64_t width,
                      int whole, double *v, int64_t plane, const double *m)
{
    const tl_fold_axes *f = &a->f;
    const int64_t stride = f->reduced > 0 ? f->reduced_stride[0] : 0;
    int64_t place[TL_FOLD_RANK];
    if (begin < end) x += offset_of(f->reduced, f->reduced_size, f->reduced_stride, begin, place);
    for (int64_t r = begin, run; r < end; r += run) {
        const int64_t lane = (r - begin) % a->lanes;
        run = tl_imin(end - r, f->reduced > 0 ? f->reduced_size[0] - place[0] : 1);
        if (lane == 0 && run >= a->lanes) {
            run -= run % a->lanes;
            for (int64_t l = 0; l < (whole ? 1 : a->lanes); l++)
                take_rows(kind, v + l * width, plane, x + l * stride, a->lanes * stride, m,
                          whole ? a->lanes * width : width, run / a->lanes, a->rule);
        } else {
            run = whole ? tl_imin(run, a->lanes - lane) : 1;
            take_rows(kind, v + lane * width, plane, x, stride, m, run * width, 1, a->rule);
        }
        x += advance(f, place, run);
    }
}

/* A unit of several kept elements side by side. */
static void fold_unit(const fold *a, int64_t unit)
{
    double v[FOLD_ROOM], m[FOLD_ROOM];
    const tl_fold_axes *f = &a->f;
    const int64_t s = unit % a->segments, tile = unit / a->segments % a->tiles, k = unit / a->segments / a->tiles;
    const int64_t c0 = tile * a->width, width = tl_imin(a->width, f->inner - c0), first = k * f->inner + c0;
    const int64_t plane = planes_of(a->kind) > 1 ? a->lanes * width : 0;
    const int whole = width == f->inner && f->reduced > 0 && f->reduced_stride[0] == f->inner;
    const int64_t begin = s * TL_FOLD_SEGMENT, end = tl_imin(f->length, begin + TL_FOLD_SEGMENT);
    int64_t place[TL_FOLD_RANK];
    const float *const x = a->x + c0 + offset_of(f->kept, f->kept_size, f->kept_stride, k, place);
    if (a->kind == TL_FOLD_DEVIATION) {
        start_lanes(TL_FOLD_SUM, v, a->lanes * width);
        start_lanes(TL_FOLD_SUM, m, a->lanes * width); /* sums have no centre */
        take_unit(a, TL_FOLD_SUM, x, begin, end, width, whole, v, 0, m);
        fold_lanes(a, v, 0, width);
        for (int64_t j = 0; j < width; j++)
            write_sum(a, v[j], first + j, s);
    }
    for (int64_t j = 0; j < width; j++)
        m[j] = a->kind == TL_FOLD_DEVIATION ? v[j] / (double)(end - begin) : centre_of(a, first + j);
    for (int64_t j = width; whole && j < a->lanes * width; j++)
        m[j] = m[j - width];
    start_lanes(a->kind, v, a->lanes * width);
    take_unit(a, a->kind, x, begin, end, width, whole, v, plane, m);
    end_lanes(a, v, plane, width, first, s);
}

/* The n elements of segment s of a result where the last axis is reduced: in place, or copied to `room` if they lie in several
 * runs. */
static const float *unit_elements(const fold *a, int64_t result, int64_t s, int64_t n, float *room)
{
    const tl_fold_axes *f = &a->f;
    int64_t place[TL_FOLD_RANK], begin = s * TL_FOLD_SEGMENT;
    const float *x = a->x;
    if (n == 0) return x; /* of which nothing is read; an axis of size 0 gives no places */
    x += f->kept == 1 ? result * f->kept_stride[0] : offset_of(f->kept, f->kept_size, f->kept_stride, result, place);
    if (f->reduced <= 1) return x + begin;
    x += offset_of(f->reduced, f->reduced_size, f->reduced_stride, begin, place);
    for (int64_t r = 0, run; r < n; r += run) {
        run = tl_imin(n - r, f->reduced_size[0] - place[0]);
        for (int64_t j = 0; j < run; j++)
            room[r + j] = x[j];
        x += advance(f, place, run);
    }
    return room;
}

/* Units of equal length n: segment[g] of result[g]. */
typedef struct group {
    int64_t count, n, result[TAKE_WIDTH], segment[TAKE_WIDTH];
} group;

/* Joins the lanes of every unit of a group in halves, onto its first; of a constant number of lanes. */
#define JOIN_LANES_OF(lanes, v, JOIN)                                    \
    case lanes:                                                          \
        for (int32_t g_ = 0; g_ < TAKE_WIDTH; g_ += (lanes))             \
            for (int32_t half_ = (lanes) / 2; half_ > 0; half_ /= 2)     \
                for (int32_t l_ = g_; l_ < g_ + half_; l_++)             \
                    (v)[l_] JOIN (v)[l_ + half_];                        \
        break;
#define JOIN_LANES(lanes, v, JOIN)                                       \
    switch (lanes) {                                                     \
        JOIN_LANES_OF(2, v, JOIN)                                        \
        JOIN_LANES_OF(4, v, JOIN)                                        \
        JOIN_LANES_OF(8, v, JOIN)                                        \
    default: break;                                                      \
    }

/* The elements that do not fill a row of lanes, of all units of a group at once. */
static void take_rest(const fold *a, enum tl_fold_kind kind, const group *q, const float *const *x, const double *m,
                      double *v)
{
    _Alignas(64) float last[TAKE_WIDTH] = {0};
    _Alignas(64) double with[TAKE_WIDTH];
    const int64_t lanes = a->lanes, rest = q->n % lanes;
    if (rest == 0) return;
    for (int64_t g = 0; g < q->count; g++)
        for (int64_t l = 0; l < rest; l++)
            last[g * lanes + l] = x[g][q->n - rest + l];
    memcpy(with, v, sizeof with);
    take_rows(kind, with, 0, last, TAKE_WIDTH, m, TAKE_WIDTH, 1, a->rule);
    for (int64_t g = 0; g < q->count; g++)
        for (int64_t l = 0; l < rest; l++)
            v[g * lanes + l] = with[g * lanes + l];
}

/* A group whose elements `x` stand in place, or are packed; `end` gets the units' values, in planes of as many as there are lanes. A
 * function of its own: inlined twice, gcc 12 vectorises its loops by narrower vectors. */
static __attribute__((noinline)) void take_group(const fold *a, enum tl_fold_kind kind, const group *q,
                                                 const float *const *x, const float *packed, const double *m,
                                                 double *end)
{
    _Alignas(64) double v[TL_FOLD_PLANES * TAKE_WIDTH];
    const int64_t lanes = a->lanes, count = q->count, width = lanes * count, rows = q->n / lanes, rest = q->n % lanes;
    const int64_t planes = planes_of(kind), plane = planes > 1 ? width : 0;
    start_lanes(kind, v, planes == 1 ? TAKE_WIDTH : width);
    if (!packed)
        take_units(kind, v, x, m, rows, a->rule);
    else
        take_rows(kind, v, plane, packed, width, m, width, rows, a->rule);
    if (planes == 1) take_rest(a, kind, q, x, m, v);
    for (int64_t g = 0; planes > 1 && rest > 0 && g < count; g++)
        take_rows(kind, v + g * lanes, plane, x[g] + rows * lanes, rest, m + g * lanes, rest, 1, a->rule);
    if (planes == 1 && !tl_fold_is_extreme(kind)) {
        JOIN_LANES(lanes, v, +=)
        for (int64_t g = 0; g < count; g++)
            end[g] = v[g * lanes];
        return;
    }
    for (int64_t p = 0; p < planes; p++)
        for (int64_t g = 0; g < count; g++)
            for (int64_t l = 0; l < lanes; l++)
                end[p * width + l * count + g] = v[p * width + g * lanes + l];
    fold_lanes(a, end, plane, count);
}

static void fold_group(const fold *a, const group *q)
{
    _Alignas(64) float packed[GROUP_CELLS], room[GROUP_CELLS];
    _Alignas(64) double m[TAKE_WIDTH], end[TL_FOLD_PLANES * TAKE_WIDTH];
    const int64_t lanes = a->lanes, count = q->count, width = lanes * count, rows = q->n / lanes;
    const int64_t plane = planes_of(a->kind) > 1 ? width : 0;
    const int in_place = lanes == TL_FOLD_LANES && is_light(a->kind);
    const float *x[TAKE_WIDTH];
    for (int64_t g = 0; g < count; g++)
        x[g] = unit_elements(a, q->result[g], q->segment[g], q->n, room + g * q->n);
    for (int64_t g = count; g < TAKE_UNITS; g++) /* nobody reads the lanes of these */
        x[g] = x[0];
    memset(m, 0, sizeof m);
    for (int64_t g = 0; !in_place && g < count; g++)
        (lanes == 8 ? pack8 : lanes == 4 ? pack4 : lanes == 2 ? pack2 : pack1)(packed + g * lanes, width, x[g], rows);
    if (a->kind == TL_FOLD_DEVIATION) {
        take_group(a, TL_FOLD_SUM, q, x, in_place ? NULL : packed, m, end);
        for (int64_t g = 0; g < count; g++)
            write_sum(a, end[g], q->result[g], q->segment[g]);
    }
    for (int64_t g = 0; g < count; g++) {
        const double centre = a->kind == TL_FOLD_DEVIATION ? end[g] / (double)q->n : centre_of(a, q->result[g]);
        for (int64_t l = 0; l < lanes; l++)
            m[g * lanes + l] = centre;
    }
    take_group(a, a->kind, q, x, in_place ? NULL : packed, m, end);
    for (int64_t g = 0; g < count; g++)
        write_value(a, end + g, plane, q->result[g], q->segment[g]);
}

/* The units from..last - 1 of one element, in the order in which they lie: the segments before each result's last form groups, and so
 * do those. */
static void fold_groups(const fold *a, int64_t from, int64_t last)
{
    const int64_t most = TAKE_WIDTH / a->lanes, tail = a->f.length - (a->segments - 1) * TL_FOLD_SEGMENT;
    group groups[2];
    groups[0].n = TL_FOLD_SEGMENT, groups[1].n = tail;
    groups[0].count = groups[1].count = 0;
    int64_t result = from / a->segments, s = from % a->segments;
    for (int64_t u = from; u < last; u++) {
        group *const q = groups + (s == a->segments - 1);
        q->result[q->count] = result;
        q->segment[q->count++] = s;
        if (q->count == most) {
            fold_group(a, q);
            q->count = 0;
        }
        if (++s == a->segments) s = 0, result++;
    }
    for (int32_t ends = 0; ends < 2; ends++)
        if (groups[ends].count > 0) fold_group(a, groups + ends);
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
    end_lanes(a, v, plane, 1, result, s);
}
