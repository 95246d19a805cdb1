/* Reductions over any set of axes on the CPU, and their gradients, in the order of formula/fold.h.
 *
 * A unit is a segment of the reduced elements and a tile of the kept elements that lie side by side (one where the last axis is
 * reduced). Its lanes stand in an array in L1, so a loop runs over independent elements: over a row of the tile, and where the
 * rows lie side by side over one of each lane. Where a tile is one element wide, its few lanes would wait for each other's
 * results; units are then taken in groups, packed so that a row holds an element of every lane of every unit. The segments'
 * values are folded in the same way until one is left. Deviations take the elements of a unit twice, for its mean too.
 *
 * An extreme has no order of additions, so that it is found as in reduce.c. */
#include <string.h>

#include "core/threads.h"
#include "cpu/fold_lanes.h"
#include "cpu/fold_slopes.h"
#include "cpu/reduce.h"
#include "formula/fold.h"
#include "generated/reduce.h"

enum {
    FOLD_TASK = 65536,                          /* elements of a task */
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
    for (int64_t half = a->lanes / 2; half > 0; half /= 2)
        for (int64_t i = 0; i < half * width; i++) {
            const int64_t o = i + half * width;
            tl_fold_join(a->kind, v + i, v + plane + i, v + 2 * plane + i, v[o], plane == 0 ? 0.0 : v[plane + o],
                         plane == 0 ? 0.0 : v[2 * plane + o]);
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
    fold_lanes(a, v, plane, width);
    for (int64_t j = 0; j < width; j++)
        write_value(a, v + j, plane, first + j, s);
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

/* A group whose elements `x` stand in place, or are packed; `end` gets the units' values, in planes. */
static void take_group(const fold *a, enum tl_fold_kind kind, const group *q, const float *const *x, const float *packed,
                       const double *m, double *end)
{
    _Alignas(64) double v[TL_FOLD_PLANES * TAKE_WIDTH];
    const int64_t lanes = a->lanes, count = q->count, width = lanes * count, rows = q->n / lanes;
    const int64_t planes = planes_of(kind), plane = planes > 1 ? width : 0;
    start_lanes(kind, v, planes == 1 ? TAKE_WIDTH : width);
    if (!packed) {
        take_units(kind, v, x, m, rows, a->rule);
        for (int64_t l = 0; kind == TL_FOLD_PRODUCT && l < width; l++)
            tl_fold_normalize(v + l, v + plane + l);
    } else {
        take_rows(kind, v, plane, packed, width, m, width, rows, a->rule);
    }
    const int64_t rest = q->n - rows * lanes;
    for (int64_t g = 0; rest > 0 && g < count; g++)
        take_rows(kind, v + g * lanes, plane, x[g] + rows * lanes, rest, m + g * lanes, rest, 1, a->rule);
    for (int64_t p = 0; p < planes; p++)
        for (int64_t g = 0; g < count; g++)
            for (int64_t l = 0; l < lanes; l++)
                end[p * width + l * count + g] = v[p * width + g * lanes + l];
    fold_lanes(a, end, plane, count);
}

static void fold_group(const fold *a, const group *q)
{
    _Alignas(64) float packed[GROUP_CELLS], room[GROUP_CELLS];
    _Alignas(64) double m[TAKE_WIDTH] = {0}, end[TL_FOLD_PLANES * TAKE_WIDTH];
    const int64_t lanes = a->lanes, count = q->count, width = lanes * count, rows = q->n / lanes;
    const int64_t plane = planes_of(a->kind) > 1 ? width : 0;
    const int product = a->kind ==
                        TL_FOLD_PRODUCT; /* of moderate numbers and all lanes, as their other planes lie behind them */
    int in_place = lanes == TL_FOLD_LANES && (product ? count == TAKE_UNITS : is_light(a->kind));
    const float *x[TAKE_WIDTH];
    for (int64_t g = 0; g < count; g++) {
        x[g] = unit_elements(a, q->result[g], q->segment[g], q->n, room + g * q->n);
        if (product) in_place = in_place && is_moderate(x[g], rows * lanes);
    }
    for (int64_t g = 0; !in_place && g < count; g++)
        (lanes == 8 ? pack8 : lanes == 4 ? pack4 : lanes == 2 ? pack2 : pack1)(packed + g * lanes, width, x[g], rows);
    for (int64_t g = count; g < TAKE_UNITS; g++) /* nobody reads the lanes of these */
        x[g] = x[0];
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
    group groups[2] = {{.n = TL_FOLD_SEGMENT}, {.n = tail}};
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
    const int64_t s = unit % a->segments, result = unit / a->segments;
    const int several = planes_of(a->kind) > 1;
    const int64_t plane = several ? a->lanes : 0, next = several ? a->results * a->length : 0;
    if (a->kind == TL_FOLD_DEVIATION) {
        join_deviations(a, result, s);
        return;
    }
    start_lanes(a->kind, v, a->lanes);
    const int64_t begin = s * TL_FOLD_SEGMENT, end = tl_imin(a->length, begin + TL_FOLD_SEGMENT);
    for (int64_t r = begin; r < end; r++) {
        const double *const from = a->from + result * a->length + r;
        double *const to = v + (r - begin) % a->lanes;
        tl_fold_join(a->kind, to, to + plane, to + 2 * plane, from[0], from[next], from[2 * next]);
    }
    fold_lanes(a, v, plane, 1);
    write_value(a, v, plane, result, s);
}

static void fold_task(void *arg, int64_t task, TL_UNUSED int32_t worker)
{
    const fold *a = arg;
    const int64_t from = task * a->per_task, last = tl_imin(a->units, from + a->per_task);
    if (!a->from && a->f.inner == 1) {
        fold_groups(a, from, last);
        return;
    }
    for (int64_t u = from; u < last; u++)
        (a->from ? join_unit : fold_unit)(a, u);
}

static void run_units(fold *a, int64_t units, int64_t size, tl_task_fn fn)
{
    a->units = units;
    a->per_task = tl_imax(1, FOLD_TASK / tl_imax(size, 1));
    tl_parallel(tl_ceil_div(units, a->per_task), fn, a);
}

static int32_t run_fold(tl_context *ctx, fold a)
{
    const int64_t planes = planes_of(a.kind);
    a.results = a.f.outer * a.f.inner;
    a.length = a.f.length;
    a.each = 1;
    void *scratch = NULL;
    for (;;) {
        a.lanes = tl_fold_width(a.length);
        a.segments = tl_imax(1, tl_ceil_div(a.length, TL_FOLD_SEGMENT));
        a.width = a.from ? 1 : tl_imin(a.f.inner, FOLD_ROOM / (planes * a.lanes));
        a.tiles = a.from ? 1 : tl_ceil_div(a.f.inner, a.width > 0 ? a.width : 1);
        a.to = a.values;
        void *next = NULL;
        if (a.segments > 1) {
            const size_t bytes = (size_t)(value_planes_of(a.kind) * a.results * a.segments) * sizeof(double);
            const int32_t status = tl_pool_alloc(ctx, bytes, &next);
            if (status) {
                tl_pool_free(ctx, scratch);
                return status;
            }
            a.to = next;
        }
        run_units(&a, (a.from ? a.results : a.f.outer * a.tiles) * a.segments,
                  a.width * tl_imin(a.length, TL_FOLD_SEGMENT), fold_task);
        tl_pool_free(ctx, scratch);
        if (a.segments == 1) return TORCHLEAN_OK;
        a.from = scratch = next;
        a.length = a.segments;
        a.each *= TL_FOLD_SEGMENT;
    }
}

/* The maximum or minimum of x over the axes, of at least one element each: from the last axis to the first, neighbours together. */
static int32_t run_extreme(tl_context *ctx, const float *x, const tl_dims *dims, int64_t axes, int smallest, float *out)
{
    int64_t size[TL_FOLD_RANK], outer = 1, inner = 1;
    int reduced[TL_FOLD_RANK], count = 0, left = 0;
    for (int32_t k = 0; k < dims->rank; k++) {
        const int r = (int)(axes >> k & 1);
        outer *= dims->d[k];
        if (dims->d[k] == 1) continue;
        if (count > 0 && reduced[count - 1] == r) {
            size[count - 1] *= dims->d[k];
        } else {
            size[count] = dims->d[k];
            reduced[count++] = r;
            left += r;
        }
    }
    if (outer == 0) return TORCHLEAN_OK;
    if (left == 0) return tl_extremes(ctx, x, outer, 1, 1, smallest, out);
    void *scratch = NULL;
    for (int k = count - 1; left > 0; k--) {
        outer /= size[k];
        if (!reduced[k]) {
            inner *= size[k];
            continue;
        }
        void *to = out;
        int32_t status = --left > 0 ? tl_pool_alloc(ctx, (size_t)(outer * inner) * sizeof(float), &to) : TORCHLEAN_OK;
        if (!status) status = tl_extremes(ctx, x, outer, size[k], inner, smallest, to);
        tl_pool_free(ctx, scratch);
        scratch = left > 0 ? to : NULL;
        x = to;
        if (status) {
            tl_pool_free(ctx, scratch);
            return status;
        }
    }
    return TORCHLEAN_OK;
}

/* The maxima of x as the values of a fold. The numbers of float32 stand at the end of the values, and each is read before the
 * last value that covers it is written. */
static int32_t find_maxima(tl_context *ctx, const float *x, const tl_dims *dims, int64_t axes, int64_t results,
                           double *values)
{
    float *const found = (float *)values + results;
    const int32_t status = run_extreme(ctx, x, dims, axes, 0, found);
    for (int64_t i = 0; !status && i < results; i++) {
        float largest;
        memcpy(&largest, found + i, sizeof largest);
        const double value = tl_fold_ordered((double)largest);
        memcpy(values + i, &value, sizeof value);
    }
    return status;
}

/* A fold into out, whose centre is an earlier fold, or the maxima if that is its kind. */
static int32_t fold_twice(tl_context *ctx, fold first, enum tl_fold_kind kind, float *out)
{
    const int64_t results = first.f.outer * first.f.inner;
    void *values;
    int32_t status = tl_pool_alloc(ctx, (size_t)results * sizeof(double), &values);
    if (status) return status;
    first.values = values;
    status = first.kind == TL_FOLD_MAX && first.f.length > 0
                 ? find_maxima(ctx, first.x, first.dims, first.axes, results, values)
                 : run_fold(ctx, first);
    fold second = first;
    second.kind = kind;
    second.centre = values;
    second.out = out;
    if (!status) status = run_fold(ctx, second);
    tl_pool_free(ctx, values);
    return status;
}

static fold fold_of(enum tl_fold_kind kind, const float *x, const tl_dims *dims, int64_t axes, double p, int64_t root)
{
    fold a = {.kind = kind, .f = tl_fold_of(dims->rank, dims->d, axes), .x = x, .dims = dims, .axes = axes};
    a.rule = (tl_fold_rule){a.f.length, p, (int32_t)root};
    return a;
}

/* ---- gradients --------------------------------------------------------------------------------------------------- */

typedef struct spread {
    fold a; /* its values become the coefficients */
    const float *result, *g;
    float *gx;
} spread;

static void spread_task(void *arg, int64_t task, TL_UNUSED int32_t worker)
{
    const spread *b = arg;
    const fold *a = &b->a;
    const tl_fold_axes *f = &a->f;
    for (int64_t u = task * a->per_task, last = tl_imin(a->units, u + a->per_task); u < last; u++) {
        const int64_t s = u % a->segments, k = u / a->segments, begin = s * TL_FOLD_SEGMENT;
        const int64_t end = tl_imin(f->length, begin + TL_FOLD_SEGMENT);
        int64_t place[TL_FOLD_RANK];
        int64_t at = offset_of(f->kept, f->kept_size, f->kept_stride, k, place);
        at += offset_of(f->reduced, f->reduced_size, f->reduced_stride, begin, place);
        for (int64_t r = begin, run; r < end; r += run) {
            run = tl_imin(end - r, run_from(f, place));
            write_slopes(a->kind, a->x + at, a->values + k * f->inner, a->results, f->inner == 1,
                         f->inner == 1 ? run : f->inner, a->rule, b->gx + at);
            at += advance(f, place, run);
        }
    }
}

/* gx of the kind `slope`, from a fold of `kind` (none where its values are not read) and the results. */
static int32_t run_spread(tl_context *ctx, fold a, int folds, enum tl_fold_kind slope, const float *out, const float *g,
                          float *gx)
{
    a.results = a.f.outer * a.f.inner;
    void *values;
    int32_t status = tl_pool_alloc(ctx, (size_t)(TL_FOLD_PLANES * a.results) * sizeof(double), &values);
    if (status) return status;
    a.values = values;
    if (folds) status = run_fold(ctx, a);
    const int64_t plane = a.results, more = planes_of(a.kind) > 1 ? plane : 0;
    for (int64_t o = 0; !status && o < plane; o++) {
        double *const v = a.values + o;
        const tl_folded value = {folds ? v[0] : 0.0, folds ? v[more] : 0.0, folds ? v[2 * more] : 0.0};
        const tl_folded c = tl_fold_coefficients(slope, out ? out[o] : 0.0f, g[o], value, a.rule);
        v[0] = c.v, v[plane] = c.e, v[2 * plane] = c.zeros;
    }
    spread b = {.a = a, .gx = gx};
    b.a.kind = slope;
    b.a.segments = tl_ceil_div(a.f.length, TL_FOLD_SEGMENT);
    b.a.units = a.f.outer * b.a.segments;
    b.a.per_task = tl_imax(1, FOLD_TASK / tl_imax(1, a.f.inner * tl_imin(a.f.length, TL_FOLD_SEGMENT)));
    if (!status && plane > 0) tl_parallel(tl_ceil_div(b.a.units, b.a.per_task), spread_task, &b);
    tl_pool_free(ctx, values);
    return status;
}

/* ---- the operations ---------------------------------------------------------------------------------------------- */

int32_t tl_cpu_amax(tl_context *ctx, const float *x, const tl_dims *dims, int64_t axes, float *out)
{
    return run_extreme(ctx, x, dims, axes, 0, out);
}

int32_t tl_cpu_amax_bwd(tl_context *ctx, const float *x, const float *out, const float *g, const tl_dims *dims,
                        int64_t axes, float *gx)
{
    fold a = fold_of(TL_FOLD_EQUAL, x, dims, axes, 0.0, 0);
    a.centre_out = out;
    return run_spread(ctx, a, 1, TL_FOLD_EQUAL, out, g, gx);
}

int32_t tl_cpu_amin(tl_context *ctx, const float *x, const tl_dims *dims, int64_t axes, float *out)
{
    return run_extreme(ctx, x, dims, axes, 1, out);
}

int32_t tl_cpu_amin_bwd(tl_context *ctx, const float *x, const float *out, const float *g, const tl_dims *dims,
                        int64_t axes, float *gx)
{
    return tl_cpu_amax_bwd(ctx, x, out, g, dims, axes, gx);
}

int32_t tl_cpu_prod(tl_context *ctx, const float *x, const tl_dims *dims, int64_t axes, float *out)
{
    fold a = fold_of(TL_FOLD_PRODUCT, x, dims, axes, 0.0, 0);
    a.out = out;
    return run_fold(ctx, a);
}

int32_t tl_cpu_prod_bwd(tl_context *ctx, const float *x, const float *g, const tl_dims *dims, int64_t axes, float *gx)
{
    return run_spread(ctx, fold_of(TL_FOLD_PRODUCT, x, dims, axes, 0.0, 0), 1, TL_FOLD_PRODUCT, NULL, g, gx);
}

int32_t tl_cpu_var(tl_context *ctx, const float *x, const tl_dims *dims, int64_t axes, float correction, int64_t root,
                   float *out)
{
    fold a = fold_of(TL_FOLD_DEVIATION, x, dims, axes, (double)correction, root);
    a.out = out;
    return run_fold(ctx, a);
}

int32_t tl_cpu_var_bwd(tl_context *ctx, const float *x, const float *out, const float *g, const tl_dims *dims,
                       int64_t axes, float correction, int64_t root, float *gx)
{
    const fold a = fold_of(TL_FOLD_SUM, x, dims, axes, (double)correction, root);
    return run_spread(ctx, a, 1, TL_FOLD_DEVIATION, out, g, gx);
}

int32_t tl_cpu_logsumexp(tl_context *ctx, const float *x, const tl_dims *dims, int64_t axes, float *out)
{
    return fold_twice(ctx, fold_of(TL_FOLD_MAX, x, dims, axes, 0.0, 0), TL_FOLD_EXP, out);
}

int32_t tl_cpu_logsumexp_bwd(tl_context *ctx, const float *x, const float *out, const float *g, const tl_dims *dims,
                             int64_t axes, float *gx)
{
    return run_spread(ctx, fold_of(TL_FOLD_EXP, x, dims, axes, 0.0, 0), 0, TL_FOLD_EXP, out, g, gx);
}

static enum tl_fold_kind norm_kind(float p)
{
    return p == 1.0f ? TL_FOLD_ABS : p == 2.0f ? TL_FOLD_SQUARE : TL_FOLD_POWER;
}

int32_t tl_cpu_vector_norm(tl_context *ctx, const float *x, const tl_dims *dims, int64_t axes, float p, float *out)
{
    fold a = fold_of(norm_kind(p), x, dims, axes, (double)p, 0);
    a.out = out;
    if (a.kind != TL_FOLD_POWER) return run_fold(ctx, a);
    a.kind = TL_FOLD_LARGEST;
    a.out = NULL;
    return fold_twice(ctx, a, TL_FOLD_POWER, out);
}

int32_t tl_cpu_vector_norm_bwd(tl_context *ctx, const float *x, const float *out, const float *g, const tl_dims *dims,
                               int64_t axes, float p, float *gx)
{
    const enum tl_fold_kind kind = norm_kind(p);
    return run_spread(ctx, fold_of(kind, x, dims, axes, (double)p, 0), 0, kind, out, g, gx);
}
