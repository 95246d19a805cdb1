/* Losses on the CPU, and their gradients.
 *
 * What is a sum over pairs of elements is one row: its leaves are tasks. Cross-entropy is a softmax whose result is one number per
 * row (softmax_phases.h); the losses of the rows are a row of their own. */
#include "core/threads.h"
#include "cpu/softmax_phases.h"
#include "formula/integer.h"
#include "generated/loss.h"

/* ---- sums over pairs of elements --------------------------------------------------------------------------------- */

typedef struct pair_job {
    const float *yhat, *target;
    float *out, *other; /* gradients of both, NULL if not wanted; or the sums of the leaves */
    int64_t n;
    struct tl_loss_slope slope;
    int stream;
} pair_job;

/* A task that writes the sum of a leaf of terms of a[i] and b[i]. */
#define LEAF_TASK(name, term) \
    static void name(void *arg, int64_t task, TL_UNUSED int32_t worker) \
    { \
        const pair_job *j = arg; \
        const int64_t first = task * TL_SUM_LEAF, left = j->n - first; \
        const float *a = j->yhat + first, *b = j->target + first; \
        TL_LEAF_SUM(j->out[task], left < TL_SUM_LEAF ? left : TL_SUM_LEAF, term); \
    }

/* The sum of the leaves, or their mean. */
static int32_t sum_pairs(tl_context *ctx, tl_task_fn leaf, const float *yhat, const float *target, int64_t n, int mean,
                         float *out)
{
    const int64_t leaves = tl_ceil_div(n, TL_SUM_LEAF);
    void *scratch;
    if (n == 0) {
        out[0] = mean ? TL_NAN : 0.0f;
        return TORCHLEAN_OK;
    }
    const int32_t status = tl_pool_alloc(ctx, (size_t)leaves * sizeof(float), &scratch);
    if (status) return status;
    pair_job j = {.yhat = yhat, .target = target, .out = scratch, .n = n};
    tl_parallel(leaves, leaf, &j);
    const float sum = tl_row_sum(j.out, leaves);
    out[0] = mean ? tl_per_count(sum, n) : sum;
    tl_pool_free(ctx, scratch);
    return TORCHLEAN_OK;
}

LEAF_TASK(squares_task, tl_square_of_difference(a[i], b[i]))
LEAF_TASK(bce_task, tl_bce(a[i], b[i]))

int32_t tl_cpu_mse_loss(tl_context *ctx, const float *yhat, const float *target, int64_t n, float *out)
{
    return sum_pairs(ctx, squares_task, yhat, target, n, 1, out);
}

int32_t tl_cpu_bce_with_logits(tl_context *ctx, const float *x, const float *target, int64_t n, int64_t mean,
                               float *out)
{
    return sum_pairs(ctx, bce_task, x, target, n, mean != 0, out);
}

/* A task that writes the gradients of a span of a[i] and b[i]. */
#define GRAD_TASK(name, gradient, other_gradient) \
    static void name(void *arg, int64_t task, TL_UNUSED int32_t worker) \
    { \
        const pair_job *j = arg; \
        const int64_t first = task * TL_ROW_TASK, n = tl_imin(j->n - first, TL_ROW_TASK); \
        const float *a = j->yhat + first, *b = j->target + first; \
        const struct tl_loss_slope s = j->slope; \
        if (j->out) TL_WRITE(j->stream, j->out + first, n, gradient); \
        if (j->other) TL_WRITE(j->stream, j->other + first, n, other_gradient); \
        tl_stream_end(); \
    }
GRAD_TASK(mse_grad_task, tl_mse_grad(a[i], b[i], s), -tl_mse_grad(a[i], b[i], s))
GRAD_TASK(bce_grad_task, tl_bce_grad(a[i], b[i], s), tl_slope_times(-a[i], s))

int32_t tl_cpu_mse_loss_bwd(TL_UNUSED tl_context *ctx, const float *yhat, const float *target, const float *g,
                            int64_t n, float *gyhat, float *gtarget)
{
    pair_job j = {yhat, target, gyhat, gtarget, n, tl_loss_slope_of(g[0], n), n >= TL_STREAM_FROM};
    tl_parallel(tl_ceil_div(n, TL_ROW_TASK), mse_grad_task, &j);
    return TORCHLEAN_OK;
}

int32_t tl_cpu_bce_with_logits_bwd(TL_UNUSED tl_context *ctx, const float *x, const float *target, const float *g,
                                   int64_t n, int64_t mean, float *gx, float *gtarget)
{
    pair_job j = {x, target, gx, gtarget, n, tl_loss_slope_of(g[0], mean ? n : 1), n >= TL_STREAM_FROM};
    tl_parallel(tl_ceil_div(n, TL_ROW_TASK), bce_grad_task, &j);
    return TORCHLEAN_OK;
}

/* ---- cross-entropy ----------------------------------------------------------------------------------------------- */

typedef struct entropy_job {
    tl_softmax_rows base; /* x: logits; out: the scaled losses of the rows, or the gradient */
    const uint32_t *labels;
    int64_t cols;
    float factor; /* g / rows */
    int stream;
} entropy_job;

static void loss_row(const void *arg, const tl_row *r)
{
    const entropy_job *j = arg;
    TL_EACH_ROW(r, const int64_t row = r->row + k; const uint32_t label = j->labels[row]; /* nobody has looked at it */
                const float labelled = label < j->cols ? j->base.x[row * j->cols + label] : TL_NAN;
                j->base.out[row] = tl_cross_entropy_row(labelled, stat[MAXIMUM], tl_sum_of_leaves(r, r->sum, k)));
}

TL_LEAF(grad_leaf)
{
    const entropy_job *j = arg;
    const float *e = p->work ? p->work : j->base.out + p->at, s = p->stat[SUM], r = p->stat[DERIVED], c = j->factor;
    const int64_t label = (int64_t)j->labels[p->row] - p->first;
    const float hit = label >= 0 && label < p->n ? e[label] : 0.0f;
    TL_WRITE(j->stream && p->work, j->base.out + p->at, p->n, tl_cross_entropy_grad(tl_quotient(e[i], s, r), 0, c));
    if (label >= 0 && label < p->n) j->base.out[p->at + label] = tl_cross_entropy_grad(tl_quotient(hit, s, r), 1, c);
}

/* Short rows, as bundles: the losses, and the gradient. */
static void loss_bundle(const void *arg, int64_t row, int64_t rows)
{
    const entropy_job *j = arg;
    const int64_t cols = tl_short(j->cols);
    tl_bundle x;
    tl_bundle_stat max, sum, labelled;
    tl_read_bundle(j->base.x + row * cols, rows, cols, x);
    tl_bundle_max(x, cols, max);
    for (int64_t r = 0; r < TL_BUNDLE; r++) {
        const uint32_t label = j->labels[row + (r < rows ? r : 0)];
        labelled[r] = label < cols ? x[label * TL_BUNDLE + r] : TL_NAN;
    }
    tl_bundle_exponential_sum(x, cols, max, sum);
    TL_BUNDLE_ROWS(sum[r] = tl_cross_entropy_row(labelled[r], max[r], sum[r]));
    memcpy(j->base.out + row, sum, (size_t)rows * sizeof(float));
}

static void grad_bundle(const void *arg, int64_t row, int64_t rows)
{
    const entropy_job *j = arg;
    const int64_t cols = tl_short(j->cols);
    const float c = j->factor;
    tl_bundle e;
    tl_bundle_softmax(j->base.x + row * cols, rows, cols, e);
    for (int64_t r = 0; r < rows; r++)
        if (j->labels[row + r] < cols) e[j->labels[row + r] * TL_BUNDLE + r] -= 1.0f;
    TL_BUNDLE_EACH(cols, e[i] = tl_cross_entropy_grad(e[i], 0, c));
    tl_write_bundle(j->base.out + row * cols, rows, cols, e);
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
    if (status) return status;
    const entropy_job j = {.base = {logits, scratch}, .labels = labels, .cols = cols};
    status = tl_run_rows(ctx, &j, phases, 2, loss_bundle, rows, cols);
    if (!status) status = tl_row_sums(ctx, scratch, 1, rows, -rows, out);
    tl_pool_free(ctx, scratch);
    return status;
}

int32_t tl_cpu_cross_entropy_bwd(tl_context *ctx, const float *logits, const uint32_t *labels, const float *g,
                                 int64_t rows, int64_t cols, float *glogits)
{
    static const tl_row_phase phases[] = {
        {maximum_leaf, maximum_row}, {exponentials_leaf, reciprocal_row}, {grad_leaf, NULL}};
    const entropy_job j = {{logits, glogits}, labels, cols, tl_per_count(g[0], rows), rows * cols >= TL_STREAM_FROM};
    return tl_run_rows(ctx, &j, phases, 3, grad_bundle, rows, cols);
}
