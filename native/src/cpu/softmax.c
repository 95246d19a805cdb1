/* Softmax and log-softmax on the CPU, and their gradients.
 *
 * Phases (row_phases.h): maximum; exponentials and their sum; result. The exponentials of a row of one leaf wait in L1,
 * those of longer rows in the output. Large results are written past the cache. */
#include "cpu/row_phases.h"
#include "generated/softmax.h"

typedef struct job {
    const float *x, *g; /* the input, or the gradients' out and g */
    float *out;
    int64_t rows, cols;
    int stream; /* results too large for the caches */
} job;

/* The same leaf of the row that follows; of the last row, its own. */
static inline int64_t next_at(const job *a, const tl_leaf *p) { return p->row + 1 < a->rows ? p->at + a->cols : p->at; }

/* ---- forward ----------------------------------------------------------------------------------------------------- */

/* Statistics of a row: its maximum, the sum of its exponentials, and what that is needed as. */
enum { MAXIMUM, SUM, DERIVED };

static void maximum_leaf(const void *arg, const tl_leaf *p)
{
    const job *a = arg;
    *p->sum = tl_leaf_max(a->x + p->at, p->n);
}

static void maximum_row(const void *arg, int64_t row, const float *sum, const float *other, int64_t leaves, float *stat)
{
    (void)arg, (void)row, (void)other;
    stat[MAXIMUM] = tl_max_of(sum, leaves);
}

static void exponentials_leaf(const void *arg, const tl_leaf *p)
{
    const job *a = arg;
    const float *x = a->x + p->at, m = p->stat[MAXIMUM];
    float *e = p->work ? p->work : a->out + p->at;
    TL_LEAF_SUM(*p->sum, p->n, (e[i] = tl_exp(x[i] - m)));
}

static void exponential_sum_leaf(const void *arg, const tl_leaf *p)
{
    const job *a = arg;
    const float *x = a->x + p->at, m = p->stat[MAXIMUM];
    TL_LEAF_SUM(*p->sum, p->n, tl_exp(x[i] - m));
}

static void reciprocal_row(const void *arg, int64_t row, const float *sum, const float *other, int64_t leaves,
                           float *stat)
{
    (void)arg, (void)row, (void)other;
    stat[SUM] = tl_sum_of_leaves(sum, leaves);
    stat[DERIVED] = 1.0f / stat[SUM];
}

static void logarithm_row(const void *arg, int64_t row, const float *sum, const float *other, int64_t leaves,
                          float *stat)
{
    (void)arg, (void)row, (void)other;
    stat[DERIVED] = tl_log(tl_sum_of_leaves(sum, leaves));
}

static void softmax_leaf(const void *arg, const tl_leaf *p)
{
    const job *a = arg;
    const float s = p->stat[SUM], r = p->stat[DERIVED];
    const float *e = p->work ? p->work : a->out + p->at, *next = a->x + next_at(a, p);
    TL_WRITE_WITH(a->stream && p->work, a->out + p->at, p->n, TL_FETCH_AHEAD(next), tl_quotient(e[i], s, r));
}

static void log_softmax_leaf(const void *arg, const tl_leaf *p)
{
    const job *a = arg;
    const float *x = a->x + p->at, *next = a->x + next_at(a, p), m = p->stat[MAXIMUM], ln = p->stat[DERIVED];
    TL_WRITE_WITH(a->stream, a->out + p->at, p->n, TL_FETCH_AHEAD(next), (x[i] - m) - ln);
}

int32_t tl_cpu_softmax(tl_context *ctx, const float *x, int64_t rows, int64_t cols, float *out)
{
    static const tl_row_phase phases[] = {
        {maximum_leaf, maximum_row}, {exponentials_leaf, reciprocal_row}, {softmax_leaf, NULL}};
    const job a = {.x = x, .out = out, .rows = rows, .cols = cols, .stream = rows * cols >= TL_STREAM_FROM};
    return tl_run_phases(ctx, &a, phases, 3, rows, cols);
}

int32_t tl_cpu_log_softmax(tl_context *ctx, const float *x, int64_t rows, int64_t cols, float *out)
{
    static const tl_row_phase phases[] = {
        {maximum_leaf, maximum_row}, {exponential_sum_leaf, logarithm_row}, {log_softmax_leaf, NULL}};
    const job a = {.x = x, .out = out, .rows = rows, .cols = cols, .stream = rows * cols >= TL_STREAM_FROM};
    return tl_run_phases(ctx, &a, phases, 3, rows, cols);
}

/* ---- gradients --------------------------------------------------------------------------------------------------- */

static void sum_row(const void *arg, int64_t row, const float *sum, const float *other, int64_t leaves, float *stat)
{
    (void)arg, (void)row, (void)other;
    stat[SUM] = tl_sum_of_leaves(sum, leaves);
}

static void products_leaf(const void *arg, const tl_leaf *p)
{
    const job *a = arg;
    const float *y = a->x + p->at, *g = a->g + p->at;
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
    const float *y = a->x + p->at, *g = a->g + p->at, s = p->stat[SUM];
    TL_WRITE(a->stream, a->out + p->at, p->n, tl_softmax_grad(y[i], g[i], s));
}

static void log_softmax_grad_leaf(const void *arg, const tl_leaf *p)
{
    const job *a = arg;
    const float *y = a->x + p->at, *g = a->g + p->at, s = p->stat[SUM];
    TL_WRITE(a->stream, a->out + p->at, p->n, tl_log_softmax_grad(y[i], g[i], s));
}

int32_t tl_cpu_softmax_bwd(tl_context *ctx, const float *out, const float *g, int64_t rows, int64_t cols, float *gx)
{
    static const tl_row_phase phases[] = {{products_leaf, sum_row}, {softmax_grad_leaf, NULL}};
    const job a = {.x = out, .g = g, .out = gx, .rows = rows, .cols = cols, .stream = rows * cols >= TL_STREAM_FROM};
    return tl_run_phases(ctx, &a, phases, 2, rows, cols);
}

int32_t tl_cpu_log_softmax_bwd(tl_context *ctx, const float *out, const float *g, int64_t rows, int64_t cols, float *gx)
{
    static const tl_row_phase phases[] = {{cotangent_leaf, sum_row}, {log_softmax_grad_leaf, NULL}};
    const job a = {.x = out, .g = g, .out = gx, .rows = rows, .cols = cols, .stream = rows * cols >= TL_STREAM_FROM};
    return tl_run_phases(ctx, &a, phases, 2, rows, cols);
}
