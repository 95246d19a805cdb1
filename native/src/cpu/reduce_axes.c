/* Reductions over any set of axes on the CPU, and their gradients, in the order of formula/fold.h.
 *
 * A unit is a segment of the reduced elements and a tile of the kept elements that lie side by side. Its lanes stand in an array in L1,
 * so a loop runs over independent elements: over a row of the tile, and where the rows lie side by side over one of each lane. Where
 * the last axis is reduced the elements of a few results, or of a few segments of one, are turned first, so that they lie so. The
 * segments' values are folded in the same way until one is left. Deviations take the elements of a unit twice, for its mean too.
 *
 * An extreme has no order of additions, so that it is found as in reduce.c. */
#include "core/threads.h"
#include "cpu/fold_slopes.h"
#include "cpu/fold_units.h"
#include "cpu/sum_tree.h"
#include "formula/fold.h"
#include "generated/elementwise.h"
#include "generated/reduce.h"

static void fold_task(void *arg, int64_t task, TL_UNUSED int32_t worker)
{
    const fold *a = arg;
    const int64_t from = task * a->per_task, last = tl_imin(a->units, from + a->per_task);
    void (*const fold_one)(const fold *, int64_t) = a->from ? join_unit : a->f.inner == 1 ? fold_turned : fold_unit;
    for (int64_t u = from; u < last; u++)
        fold_one(a, u);
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
        a.width = a.from ? 1 : tl_imin(a.f.inner, FOLD_ROOM / (planes * a.lanes) / TAKE_WIDTH * TAKE_WIDTH);
        a.tiles = a.from ? 1 : tl_ceil_div(a.f.inner, a.width > 0 ? a.width : 1);
        int64_t units = (a.from ? a.results : a.f.outer * a.tiles) * a.segments;
        if (!a.from && a.f.inner == 1) {
            a.width = tl_imin(TL_GEMM_NR, FOLD_CELLS / tl_imin(tl_imax(a.length, 1), TL_FOLD_SEGMENT));
            a.along = a.segments > a.results;
            a.tiles = a.along ? tl_ceil_div(a.segments - 1, a.width) + 1 : a.segments;
            units = (a.along ? a.results : tl_ceil_div(a.results, a.width)) * a.tiles;
        }
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
        a.units = units;
        a.per_task = tl_even_units(units, a.width * tl_imin(a.length, TL_FOLD_SEGMENT), task_of(a.kind));
        tl_parallel(tl_ceil_div(units, a.per_task), fold_task, &a);
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

/* Products of rows of at most NARROW elements, a constant, which need no powers of two beside them: one of eight numbers of float32
 * is below 2^1024, and where one of seven is below the normal range the result is 0. */
enum { NARROW = 8 };

static inline __attribute__((always_inline)) void multiply_narrow(const float *restrict x, int64_t rows, int64_t n,
                                                                  float *restrict out)
{
    for (int64_t r = 0; r < rows; r++) {
        double product = (double)x[r * n];
        for (int64_t k = 1; k < n; k++)
            product *= (double)x[r * n + k];
        out[r] = (float)product;
    }
}

/* A task is `per_task` rows, which lie side by side. */
static void narrow_task(void *arg, int64_t task, TL_UNUSED int32_t worker)
{
    const fold *a = arg;
    const int64_t from = task * a->per_task, rows = tl_imin(a->results - from, a->per_task), n = a->f.length;
    const float *const x = a->x + from * n;
    float *const out = a->out + from;
    switch (n) {
    case 2: multiply_narrow(x, rows, 2, out); break;
    case 3: multiply_narrow(x, rows, 3, out); break;
    case 4: multiply_narrow(x, rows, 4, out); break;
    case 5: multiply_narrow(x, rows, 5, out); break;
    case 6: multiply_narrow(x, rows, 6, out); break;
    case 7: multiply_narrow(x, rows, 7, out); break;
    default: multiply_narrow(x, rows, NARROW, out);
    }
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
    b.a.per_task = tl_even_units(b.a.units, a.f.inner * tl_imin(a.f.length, TL_FOLD_SEGMENT), task_of(slope));
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
    if (a.f.length == 1) return tl_cpu_scale(ctx, x, a.f.outer * a.f.inner, 1.0f, out);
    if (a.f.length > 0 && a.f.length <= NARROW && a.f.inner == 1 && a.f.reduced == 1 && a.f.kept <= 1) {
        a.results = a.f.outer;
        a.per_task = FOLD_TASK / a.f.length;
        tl_parallel(tl_ceil_div(a.results, a.per_task), narrow_task, &a);
        return TORCHLEAN_OK;
    }
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
    if (a.f.length == 1) return tl_cpu_abs(ctx, x, a.f.outer * a.f.inner, out);
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
