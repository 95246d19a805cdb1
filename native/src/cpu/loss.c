/* Losses on the CPU that are a sum over pairs of elements, and their gradients. The pairs are one row: its leaves are tasks. */
#include "core/threads.h"
#include "cpu/row_phases.h"
#include "formula/integer.h"
#include "generated/loss.h"

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
