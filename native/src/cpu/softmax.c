/* Softmax and log-softmax on the CPU, and their gradients, in the phases of softmax_phases.h. Large results are written
 * past the cache. */
#include "cpu/softmax_phases.h"
#include "generated/softmax.h"

typedef struct job {
    tl_softmax_rows base; /* x is the input, or the gradients' out */
    const float *g;
    int64_t rows, cols;
    int stream; /* results too large for the caches */
} job;

static int32_t run(tl_context *ctx, const tl_row_phase *phases, int32_t count, const float *x, const float *g,
                   int64_t rows, int64_t cols, float *out)
{
    const job a = {{x, out}, g, rows, cols, rows * cols >= TL_STREAM_FROM};
    return tl_run_phases(ctx, &a, phases, count, rows, cols);
}

/* The same leaf of the row that follows; of the last row, its own. */
static inline int64_t next_at(const job *a, const tl_leaf *p) { return p->row + 1 < a->rows ? p->at + a->cols : p->at; }

/* ---- forward ----------------------------------------------------------------------------------------------------- */

static void logarithm_row(TL_UNUSED const void *arg, const tl_row *r)
{
    r->stat[DERIVED] = tl_log(tl_sum_of_leaves(r->sum, r->leaves));
}

static void softmax_leaf(const void *arg, const tl_leaf *p)
{
    const job *a = arg;
    const float s = p->stat[SUM], r = p->stat[DERIVED];
    const float *e = p->work ? p->work : a->base.out + p->at, *next = a->base.x + next_at(a, p);
    TL_WRITE_WITH(a->stream && p->work, a->base.out + p->at, p->n, TL_FETCH_AHEAD(next), tl_quotient(e[i], s, r));
}

static void log_softmax_leaf(const void *arg, const tl_leaf *p)
{
    const job *a = arg;
    const float *x = a->base.x + p->at, *next = a->base.x + next_at(a, p), m = p->stat[MAXIMUM], ln = p->stat[DERIVED];
    TL_WRITE_WITH(a->stream, a->base.out + p->at, p->n, TL_FETCH_AHEAD(next), (x[i] - m) - ln);
}

int32_t tl_cpu_softmax(tl_context *ctx, const float *x, int64_t rows, int64_t cols, float *out)
{
    static const tl_row_phase phases[] = {
        {maximum_leaf, maximum_row}, {exponentials_leaf, reciprocal_row}, {softmax_leaf, NULL}};
    return run(ctx, phases, 3, x, NULL, rows, cols, out);
}

int32_t tl_cpu_log_softmax(tl_context *ctx, const float *x, int64_t rows, int64_t cols, float *out)
{
    static const tl_row_phase phases[] = {
        {maximum_leaf, maximum_row}, {exponential_sum_leaf, logarithm_row}, {log_softmax_leaf, NULL}};
    return run(ctx, phases, 3, x, NULL, rows, cols, out);
}

/* ---- gradients --------------------------------------------------------------------------------------------------- */

static void sum_row(TL_UNUSED const void *arg, const tl_row *r) { r->stat[SUM] = tl_sum_of_leaves(r->sum, r->leaves); }

static void products_leaf(const void *arg, const tl_leaf *p)
{
    const job *a = arg;
    const float *y = a->base.x + p->at, *g = a->g + p->at;
    TL_LEAF_SUM(*p->sum, p->n, g[i] * y[i]);
}

static void cotangent_leaf(const void *arg, const tl_leaf *p)
{
    const job *a = arg;
    *p->sum = tl_leaf_sum(a->g + p->at, p->n);
}

static void softmax_grad_leaf(const void *arg, const tl_leaf *p)
{
    const job *a = arg;
    const float *y = a->base.x + p->at, *g = a->g + p->at, s = p->stat[SUM];
    TL_WRITE(a->stream, a->base.out + p->at, p->n, tl_softmax_grad(y[i], g[i], s));
}

static void log_softmax_grad_leaf(const void *arg, const tl_leaf *p)
{
    const job *a = arg;
    const float *y = a->base.x + p->at, *g = a->g + p->at, s = p->stat[SUM];
    TL_WRITE(a->stream, a->base.out + p->at, p->n, tl_log_softmax_grad(y[i], g[i], s));
}

int32_t tl_cpu_softmax_bwd(tl_context *ctx, const float *out, const float *g, int64_t rows, int64_t cols, float *gx)
{
    static const tl_row_phase phases[] = {{products_leaf, sum_row}, {softmax_grad_leaf, NULL}};
    return run(ctx, phases, 2, out, g, rows, cols, gx);
}

int32_t tl_cpu_log_softmax_bwd(tl_context *ctx, const float *out, const float *g, int64_t rows, int64_t cols, float *gx)
{
    static const tl_row_phase phases[] = {{cotangent_leaf, sum_row}, {log_softmax_grad_leaf, NULL}};
    return run(ctx, phases, 2, out, g, rows, cols, gx);
}
