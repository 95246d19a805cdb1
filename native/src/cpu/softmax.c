/* Softmax and log-softmax on the CPU, and their gradients, in the phases of softmax_phases.h; forward, short rows in bundles. Large
 * results of long rows are written past the cache. */
#include "cpu/softmax_phases.h"
#include "generated/softmax.h"

typedef struct job {
    tl_softmax_rows base; /* x is the input, or the gradients' out */
    const float *g;
    int64_t rows, cols;
    int stream, far; /* results too large for the caches, and inputs for the nearest */
} job;

static int32_t run(tl_context *ctx, const tl_row_phase *phases, int32_t count, tl_bundle_fn bundle, const float *x,
                   const float *g, int64_t rows, int64_t cols, float *out)
{
    const job a = {{x, out}, g, rows, cols, rows * cols >= TL_STREAM_FROM, rows * cols >= TL_FETCH_FROM};
    return tl_run_rows(ctx, &a, phases, count, bundle, rows, cols);
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

static void logarithm_row(TL_UNUSED const void *arg, const tl_row *r) { tl_put_logarithms(r, DERIVED); }

TL_LEAF(softmax_leaf)
{
    const job *a = arg;
    const float s = p->stat[SUM], r = p->stat[DERIVED];
    const float *e = p->work ? p->work : a->base.out + p->at, *next = a->base.x + tl_next_row(p, a->rows, a->cols);
    TL_WRITE_WITH(a->stream && p->work, a->base.out + p->at, p->n, TL_FETCH_AHEAD(a->far, next), tl_quotient(e[i], s, r));
}

TL_LEAF(log_softmax_leaf)
{
    const job *a = arg;
    const float *x = a->base.x + p->at, *next = a->base.x + tl_next_row(p, a->rows, a->cols);
    const float m = p->stat[MAXIMUM], ln = p->stat[DERIVED];
    TL_WRITE_WITH(a->stream, a->base.out + p->at, p->n, TL_FETCH_AHEAD(a->far, next), (x[i] - m) - ln);
}

/* Short rows side by side. The bundle behind them is fetched: its rows are read in an order that no processor foresees. */
static inline __attribute__((always_inline)) void write_bundle(const job *a, int64_t row, int64_t rows, int logarithm)
{
    const int64_t cols = tl_short(a->cols), at = row * cols;
    tl_bundle x;
    tl_bundle_stat max, sum;
    for (int64_t i = 0; a->far && i < TL_BUNDLE * a->cols; i += TL_LINE)
        __builtin_prefetch(a->base.x + at + TL_BUNDLE * a->cols + i, 0, 3);
    if (logarithm) {
        tl_read_bundle(a->base.x + at, rows, cols, x);
        tl_bundle_max(x, cols, max);
        tl_bundle_exponential_sum(x, cols, max, sum);
        TL_BUNDLE_ROWS(sum[r] = tl_log(sum[r]));
        TL_BUNDLE_EACH(cols, x[i] = (x[i] - max[r]) - sum[r]);
    } else {
        tl_bundle_softmax(a->base.x + at, rows, cols, x);
    }
    tl_write_bundle(a->base.out + at, rows, cols, x);
}

static void softmax_bundle(const void *arg, int64_t row, int64_t rows) { write_bundle(arg, row, rows, 0); }
static void log_softmax_bundle(const void *arg, int64_t row, int64_t rows) { write_bundle(arg, row, rows, 1); }

int32_t tl_cpu_softmax(tl_context *ctx, const float *x, int64_t rows, int64_t cols, float *out)
{
    static const tl_row_phase phases[] = {
        {maximum_leaf, maximum_row}, {exponentials_leaf, reciprocal_row}, {softmax_leaf, NULL}};
    return run(ctx, phases, 3, softmax_bundle, x, NULL, rows, cols, out);
}

int32_t tl_cpu_log_softmax(tl_context *ctx, const float *x, int64_t rows, int64_t cols, float *out)
{
    static const tl_row_phase phases[] = {
        {maximum_leaf, maximum_row}, {exponential_sum_leaf, logarithm_row}, {log_softmax_leaf, NULL}};
    return run(ctx, phases, 3, log_softmax_bundle, x, NULL, rows, cols, out);
}

/* ---- gradients --------------------------------------------------------------------------------------------------- */

static void sum_row(TL_UNUSED const void *arg, const tl_row *r)
{
    TL_EACH_ROW(r, stat[SUM] = tl_sum_of_leaves(r, r->sum, k));
}

TL_LEAF(products_leaf)
{
    const job *a = arg;
    const float *y = a->base.x + p->at, *g = a->g + p->at;
    TL_LEAF_SUM(*p->sum, p->n, g[i] * y[i]);
}

TL_LEAF(cotangent_leaf)
{
    const job *a = arg;
    *p->sum = tl_leaf_sum(a->g + p->at, p->n);
}

TL_LEAF(softmax_grad_leaf)
{
    const job *a = arg;
    const float *y = a->base.x + p->at, *g = a->g + p->at, s = p->stat[SUM];
    const int64_t next = tl_next_row(p, a->rows, a->cols) - p->at;
    TL_WRITE_WITH(a->stream, a->base.out + p->at, p->n, TL_FETCH_AHEAD(a->far, y + next);
                  TL_FETCH_AHEAD(a->far, g + next), tl_softmax_grad(y[i], g[i], s));
}

TL_LEAF(log_softmax_grad_leaf)
{
    const job *a = arg;
    const float *y = a->base.x + p->at, *g = a->g + p->at, s = p->stat[SUM];
    const int64_t next = tl_next_row(p, a->rows, a->cols) - p->at;
    TL_WRITE_WITH(a->stream, a->base.out + p->at, p->n, TL_FETCH_AHEAD(a->far, g + next),
                  tl_log_softmax_grad(y[i], g[i], s));
}

int32_t tl_cpu_softmax_bwd(tl_context *ctx, const float *out, const float *g, int64_t rows, int64_t cols, float *gx)
{
    static const tl_row_phase phases[] = {{products_leaf, sum_row}, {softmax_grad_leaf, NULL}};
    return run(ctx, phases, 2, NULL, out, g, rows, cols, gx);
}

int32_t tl_cpu_log_softmax_bwd(tl_context *ctx, const float *out, const float *g, int64_t rows, int64_t cols, float *gx)
{
    static const tl_row_phase phases[] = {{cotangent_leaf, sum_row}, {log_softmax_grad_leaf, NULL}};
    return run(ctx, phases, 2, NULL, out, g, rows, cols, gx);
}
