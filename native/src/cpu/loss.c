/* Losses on the CPU, and their gradients.
 *
 * The mean squared error is one row: its leaves are tasks. Cross-entropy is a softmax whose result is one number per
 * row (row_phases.h); the losses of the rows are a row of their own. */
#include "core/threads.h"
#include "cpu/row_phases.h"
#include "formula/integer.h"
#include "generated/loss.h"

typedef struct job {
    const float *a, *b; /* yhat and target, or a: logits */
    const uint32_t *labels;
    float *out, *other; /* outputs; NULL if not wanted */
    float factor;       /* g / rows */
    struct tl_mse_slope slope;
    int64_t n, cols;
    int stream;
} job;

/* ---- mean squared error ------------------------------------------------------------------------------------------ */

static void squares_task(void *arg, int64_t task, int32_t worker)
{
    const job *j = arg;
    (void)worker;
    const int64_t first = task * TL_SUM_LEAF, left = j->n - first;
    const float *a = j->a + first, *b = j->b + first;
    TL_LEAF_SUM(j->out[task], left < TL_SUM_LEAF ? left : TL_SUM_LEAF, tl_square_of_difference(a[i], b[i]));
}

int32_t tl_cpu_mse_loss(tl_context *ctx, const float *yhat, const float *target, int64_t n, float *out)
{
    const int64_t leaves = tl_ceil_div(n, TL_SUM_LEAF);
    void *scratch;
    if (n == 0) {
        out[0] = TL_NAN;
        return TORCHLEAN_OK;
    }
    const int32_t status = tl_pool_alloc(ctx, (size_t)leaves * sizeof(float), &scratch);
    if (status)
        return status;
    job j = {.a = yhat, .b = target, .out = scratch, .n = n};
    tl_parallel(leaves, squares_task, &j);
    out[0] = tl_per_count(tl_sum_of_leaves(j.out, leaves), n);
    tl_pool_free(ctx, scratch);
    return TORCHLEAN_OK;
}

static void mse_grad_task(void *arg, int64_t task, int32_t worker)
{
    const job *j = arg;
    (void)worker;
    const int64_t first = task * TL_ROW_TASK, left = j->n - first, n = left < TL_ROW_TASK ? left : TL_ROW_TASK;
    const float *a = j->a + first, *b = j->b + first;
    const struct tl_mse_slope s = j->slope;
    if (j->out)
        TL_WRITE(j->stream, j->out + first, n, tl_mse_grad(a[i], b[i], s));
    if (j->other)
        TL_WRITE(j->stream, j->other + first, n, -tl_mse_grad(a[i], b[i], s));
}

int32_t tl_cpu_mse_loss_bwd(tl_context *ctx, const float *yhat, const float *target, const float *g, int64_t n,
                            float *gyhat, float *gtarget)
{
    (void)ctx;
    job j = {.a = yhat,
             .b = target,
             .out = gyhat,
             .other = gtarget,
             .n = n,
             .slope = tl_mse_slope_of(g[0], n),
             .stream = n >= TL_STREAM_FROM};
    tl_parallel(tl_ceil_div(n, TL_ROW_TASK), mse_grad_task, &j);
    return TORCHLEAN_OK;
}

/* ---- cross-entropy ----------------------------------------------------------------------------------------------- */

/* Statistics of a row. */
enum { MAXIMUM, SUM, RECIPROCAL };

static void maximum_leaf(const void *arg, const tl_leaf *p)
{
    const job *j = arg;
    *p->sum = tl_leaf_max(j->a + p->at, p->n);
}

static void maximum_row(const void *arg, int64_t row, const float *sum, const float *other, int64_t leaves, float *stat)
{
    (void)arg, (void)row, (void)other;
    stat[MAXIMUM] = tl_max_of(sum, leaves);
}

static void exponential_sum_leaf(const void *arg, const tl_leaf *p)
{
    const job *j = arg;
    const float *x = j->a + p->at, m = p->stat[MAXIMUM];
    TL_LEAF_SUM(*p->sum, p->n, tl_exp(x[i] - m));
}

static void exponentials_leaf(const void *arg, const tl_leaf *p)
{
    const job *j = arg;
    const float *x = j->a + p->at, m = p->stat[MAXIMUM];
    float *e = p->work ? p->work : j->out + p->at;
    TL_LEAF_SUM(*p->sum, p->n, (e[i] = tl_exp(x[i] - m)));
}

static void loss_row(const void *arg, int64_t row, const float *sum, const float *other, int64_t leaves, float *stat)
{
    const job *j = arg;
    (void)other;
    const float at = j->a[row * j->cols + j->labels[row]] - stat[MAXIMUM];
    j->out[row] = tl_cross_entropy_row(at, tl_sum_of_leaves(sum, leaves));
}

static void reciprocal_row(const void *arg, int64_t row, const float *sum, const float *other, int64_t leaves,
                           float *stat)
{
    (void)arg, (void)row, (void)other;
    stat[SUM] = tl_sum_of_leaves(sum, leaves);
    stat[RECIPROCAL] = 1.0f / stat[SUM];
}

static void grad_leaf(const void *arg, const tl_leaf *p)
{
    const job *j = arg;
    const float *e = p->work ? p->work : j->out + p->at, s = p->stat[SUM], r = p->stat[RECIPROCAL], c = j->factor;
    const int64_t label = (int64_t)j->labels[p->row] - p->first;
    const float hit = label >= 0 && label < p->n ? e[label] : 0.0f;
    TL_WRITE(j->stream && p->work, j->out + p->at, p->n, tl_cross_entropy_grad(tl_quotient(e[i], s, r), 0, c));
    if (label >= 0 && label < p->n)
        j->out[p->at + label] = tl_cross_entropy_grad(tl_quotient(hit, s, r), 1, c);
}

int32_t tl_cpu_cross_entropy(tl_context *ctx, const float *logits, const uint32_t *labels, int64_t rows, int64_t cols,
                             float *out)
{
    static const tl_row_phase phases[] = {{maximum_leaf, maximum_row}, {exponential_sum_leaf, loss_row}};
    void *scratch;
    if (rows == 0) {
        out[0] = TL_NAN;
        return TORCHLEAN_OK;
    }
    int32_t status = tl_pool_alloc(ctx, (size_t)rows * sizeof(float), &scratch);
    if (status)
        return status;
    const job j = {.a = logits, .labels = labels, .out = scratch, .cols = cols};
    status = tl_run_phases(ctx, &j, phases, 2, rows, cols);
    if (!status)
        status = tl_row_sums(ctx, j.out, 1, rows, rows, out);
    tl_pool_free(ctx, scratch);
    return status;
}

int32_t tl_cpu_cross_entropy_bwd(tl_context *ctx, const float *logits, const uint32_t *labels, const float *g,
                                 int64_t rows, int64_t cols, float *glogits)
{
    static const tl_row_phase phases[] = {
        {maximum_leaf, maximum_row}, {exponentials_leaf, reciprocal_row}, {grad_leaf, NULL}};
    const job j = {.a = logits,
                   .labels = labels,
                   .out = glogits,
                   .cols = cols,
                   .factor = tl_per_count(g[0], rows),
                   .stream = rows * cols >= TL_STREAM_FROM};
    return tl_run_phases(ctx, &j, phases, 3, rows, cols);
}
