/* The cross-entropy of each row on the CPU, with weights of classes, smoothed labels and ignored rows, and its gradient. The
 * phases are those of cross_entropy (loss.c); smoothing adds a sum over the row. */
#include "cpu/softmax_phases.h"
#include "generated/loss.h"

typedef struct rows_job {
    tl_softmax_rows base; /* x: logits; out: the losses of the rows, or the gradient */
    const uint32_t *labels;
    const float *weights, *g; /* weights NULL: all are 1 */
    int64_t cols;
    struct tl_smoothing h;
    float total; /* of the weights */
} rows_job;

static inline float weight_of(const rows_job *j, int64_t c) { return j->weights ? j->weights[c] : 1.0f; }

static void logarithm_row(TL_UNUSED const void *arg, const tl_row *r) { tl_put_logarithms(r, SUM); }

TL_LEAF(spread_leaf)
{
    const rows_job *j = arg;
    const float *x = j->base.x + p->at, *w = j->weights ? j->weights + p->first : NULL;
    const float m = p->stat[MAXIMUM], s = p->stat[SUM];
    if (w)
        TL_LEAF_SUM(*p->sum, p->n, w[i] * (s - (x[i] - m)));
    else
        TL_LEAF_SUM(*p->sum, p->n, s - (x[i] - m));
}

static void put_loss(const rows_job *j, int64_t row, const float *stat, float spread)
{
    const int64_t label = j->labels[row];
    j->base.out[row] = label >= j->cols ? 0.0f
                                        : tl_smoothed_loss(stat[SUM], j->base.x[row * j->cols + label], stat[MAXIMUM],
                                                           weight_of(j, label), spread, j->cols, j->h);
}

static void plain_loss_row(const void *arg, const tl_row *r)
{
    logarithm_row(arg, r);
    TL_EACH_ROW(r, put_loss(arg, r->row + k, stat, 0.0f));
}

static void smoothed_loss_row(const void *arg, const tl_row *r)
{
    TL_EACH_ROW(r, put_loss(arg, r->row + k, stat, tl_sum_of_leaves(r, r->sum, k)));
}

/* Short rows, as bundles: the losses, and the gradient. */
static void loss_bundle(const void *arg, int64_t row, int64_t rows)
{
    const rows_job *j = arg;
    const int64_t cols = tl_short(j->cols);
    const float *const w = j->weights;
    tl_bundle x;
    tl_bundle_stat max, sum, spread = {0};
    tl_read_bundle(j->base.x + row * cols, rows, cols, x);
    tl_bundle_max(x, cols, max);
    tl_bundle_exponential_sum(x, cols, max, sum);
    TL_BUNDLE_ROWS(sum[r] = tl_log(sum[r]));
    if (j->h.share > 0.0f && w)
        TL_BUNDLE_SUM(spread, cols, w[k] * (sum[r] - (x[i] - max[r])));
    else if (j->h.share > 0.0f)
        TL_BUNDLE_SUM(spread, cols, sum[r] - (x[i] - max[r]));
    for (int64_t r = 0; r < rows; r++) {
        const int64_t label = j->labels[row + r];
        j->base.out[row + r] = label >= cols ? 0.0f
                                             : tl_smoothed_loss(sum[r], x[label * TL_BUNDLE + r], max[r],
                                                                weight_of(j, label), spread[r], cols, j->h);
    }
}

static void grad_bundle(const void *arg, int64_t row, int64_t rows)
{
    const rows_job *j = arg;
    const int64_t cols = tl_short(j->cols);
    const float *const w = j->weights;
    const struct tl_smoothing h = j->h;
    tl_bundle e;
    tl_bundle_stat own = {0}, total = {0}, g = {0}, hit = {0};
    tl_bundle_softmax(j->base.x + row * cols, rows, cols, e);
    for (int64_t r = 0; r < rows; r++) {
        const int64_t label = j->labels[row + r];
        if (label >= cols) continue;
        own[r] = weight_of(j, label);
        total[r] = tl_smoothed_total(own[r], j->total, cols, h);
        g[r] = j->g[row + r];
        hit[r] = tl_smoothed_grad(e[label * TL_BUNDLE + r], total[r], own[r], own[r], 1, cols, g[r], h);
    }
    if (w)
        TL_BUNDLE_EACH(cols, e[i] = tl_smoothed_grad(e[i], total[r], w[k], own[r], 0, cols, g[r], h));
    else
        TL_BUNDLE_EACH(cols, e[i] = tl_smoothed_grad(e[i], total[r], 1.0f, own[r], 0, cols, g[r], h));
    for (int64_t r = 0; r < rows; r++) {
        const int64_t label = j->labels[row + r];
        for (int64_t k = 0; label >= cols && k < cols; k++)
            e[k * TL_BUNDLE + r] = 0.0f;
        if (label < cols) e[label * TL_BUNDLE + r] = hit[r];
    }
    tl_write_bundle(j->base.out + row * cols, rows, cols, e);
}

int32_t tl_cpu_cross_entropy_rows(tl_context *ctx, const float *logits, const uint32_t *labels, const float *weights,
                                  int64_t rows, int64_t cols, float smoothing, float *out)
{
    static const tl_row_phase plain[] = {{maximum_leaf, maximum_row}, {exponential_sum_leaf, plain_loss_row}};
    static const tl_row_phase smoothed[] = {
        {maximum_leaf, maximum_row}, {exponential_sum_leaf, logarithm_row}, {spread_leaf, smoothed_loss_row}};
    const rows_job j = {
        .base = {logits, out}, .labels = labels, .weights = weights, .cols = cols, .h = tl_smoothing_of(smoothing)};
    for (int64_t r = 0; cols == 0 && r < rows; r++)
        out[r] = 0.0f; /* no label is a class */
    return tl_run_rows(ctx, &j, smoothing > 0.0f ? smoothed : plain, smoothing > 0.0f ? 3 : 2, loss_bundle, rows, cols);
}

TL_LEAF(smoothed_grad_leaf)
{
    const rows_job *j = arg;
    float *const out = j->base.out + p->at;
    const float *e = p->work ? p->work : out, s = p->stat[SUM], r = p->stat[DERIVED], g = j->g[p->row];
    const float *w = j->weights ? j->weights + p->first : NULL;
    const int64_t label = (int64_t)j->labels[p->row], at = label - p->first;
    if (label >= j->cols) {
        memset(out, 0, (size_t)p->n * sizeof(float));
        return;
    }
    const float own = weight_of(j, label), total = tl_smoothed_total(own, j->total, j->cols, j->h);
    const float hit = at >= 0 && at < p->n ? e[at] : 0.0f;
    if (w)
        TL_FOR_LINES(i, 0, p->n,
                     out[i] = tl_smoothed_grad(tl_quotient(e[i], s, r), total, w[i], own, 0, j->cols, g, j->h););
    else
        TL_FOR_LINES(i, 0, p->n,
                     out[i] = tl_smoothed_grad(tl_quotient(e[i], s, r), total, 1.0f, own, 0, j->cols, g, j->h););
    if (at >= 0 && at < p->n) out[at] = tl_smoothed_grad(tl_quotient(hit, s, r), total, own, own, 1, j->cols, g, j->h);
}

int32_t tl_cpu_cross_entropy_rows_bwd(tl_context *ctx, const float *logits, const uint32_t *labels,
                                      const float *weights, const float *g, int64_t rows, int64_t cols, float smoothing,
                                      float *glogits)
{
    static const tl_row_phase phases[] = {
        {maximum_leaf, maximum_row}, {exponentials_leaf, reciprocal_row}, {smoothed_grad_leaf, NULL}};
    rows_job j = {{logits, glogits}, labels, weights, g, cols, tl_smoothing_of(smoothing), (float)cols};
    const int32_t status = weights ? tl_row_sums(ctx, weights, 1, cols, 0, &j.total) : TORCHLEAN_OK;
    return status ? status : tl_run_rows(ctx, &j, phases, 3, grad_bundle, rows, cols);
}
