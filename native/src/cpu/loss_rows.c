/* Cross-entropy on the CPU, and its gradient: of each row, with weights of classes, smoothed labels and ignored rows, or the mean over
 * the rows. It is a softmax whose result is one number per row (softmax_phases.h); smoothing adds a sum over the row. What the mean
 * adds are scaled losses, which are a row of their own. */
#include "cpu/softmax_phases.h"
#include "formula/integer.h"
#include "generated/loss.h"

typedef struct rows_job {
    tl_softmax_rows base; /* x: logits; out: the losses of the rows, or the gradient */
    const uint32_t *labels;
    const float *weights, *g; /* NULL: all weights are 1, and all cotangents `factor` */
    int64_t cols;
    struct tl_smoothing h;
    float total, factor; /* total: of the weights */
    int mean;            /* losses are scaled, and of a label that is no class NaN; else 0 */
    int stream;
} rows_job;

/* A constant, for loops that test nothing: classes other than the row's then have no weight in it. */
static const struct tl_smoothing unsmoothed = {1.0f, 0.0f};

static inline float weight_of(const rows_job *j, int64_t c) { return j->weights ? j->weights[c] : 1.0f; }

/* The loss of a row with the labelled element x, the maximum m and the logarithm of its sum of exponentials. */
static inline float loss_of(const rows_job *j, int64_t label, float x, float m, float log_s, float spread)
{
    if (j->mean) return tl_cross_entropy_row(label < j->cols ? x : TL_NAN, m, log_s);
    return label < j->cols ? tl_smoothed_loss(log_s, x, m, weight_of(j, label), spread, j->cols, j->h) : 0.0f;
}

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
    const float x = label < j->cols ? j->base.x[row * j->cols + label] : 0.0f;
    j->base.out[row] = loss_of(j, label, x, stat[MAXIMUM], stat[SUM], spread);
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
        j->base.out[row + r] =
            loss_of(j, label, label < cols ? x[label * TL_BUNDLE + r] : 0.0f, max[r], sum[r], spread[r]);
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
        if (label >= cols && !j->mean) continue;
        own[r] = weight_of(j, label);
        total[r] = tl_smoothed_total(own[r], j->total, cols, h);
        g[r] = j->g ? j->g[row + r] : j->factor;
        if (label < cols)
            hit[r] = tl_smoothed_grad(e[label * TL_BUNDLE + r], total[r], own[r], own[r], 1, cols, g[r], h);
    }
    if (h.share > 0.0f)
        TL_BUNDLE_EACH(cols, e[i] = tl_smoothed_grad(e[i], total[r], w ? w[k] : 1.0f, own[r], 0, cols, g[r], h));
    else
        TL_BUNDLE_EACH(cols, e[i] = tl_smoothed_grad(e[i], total[r], 0.0f, own[r], 0, cols, g[r], unsmoothed));
    for (int64_t r = 0; r < rows; r++) {
        const int64_t label = j->labels[row + r];
        for (int64_t k = 0; label >= cols && !j->mean && k < cols; k++)
            e[k * TL_BUNDLE + r] = 0.0f;
        if (label < cols) e[label * TL_BUNDLE + r] = hit[r];
    }
    tl_write_bundle(j->base.out + row * cols, rows, cols, e);
}

static int32_t losses(tl_context *ctx, const rows_job *j, int64_t rows)
{
    static const tl_row_phase plain[] = {{maximum_leaf, maximum_row}, {exponential_sum_leaf, plain_loss_row}};
    static const tl_row_phase smoothed[] = {
        {maximum_leaf, maximum_row}, {exponential_sum_leaf, logarithm_row}, {spread_leaf, smoothed_loss_row}};
    const int smooths = j->h.share > 0.0f;
    return tl_run_rows(ctx, j, smooths ? smoothed : plain, smooths ? 3 : 2, loss_bundle, rows, j->cols);
}

int32_t tl_cpu_cross_entropy_rows(tl_context *ctx, const float *logits, const uint32_t *labels, const float *weights,
                                  int64_t rows, int64_t cols, float smoothing, float *out)
{
    const rows_job j = {
        .base = {logits, out}, .labels = labels, .weights = weights, .cols = cols, .h = tl_smoothing_of(smoothing)};
    for (int64_t r = 0; cols == 0 && r < rows; r++)
        out[r] = 0.0f; /* no label is a class */
    return losses(ctx, &j, rows);
}

int32_t tl_cpu_cross_entropy(tl_context *ctx, const float *logits, const uint32_t *labels, int64_t rows, int64_t cols,
                             float *out)
{
    void *scratch;
    if (rows == 0) {
        out[0] = TL_NAN;
        return TORCHLEAN_OK;
    }
    int32_t status = tl_pool_alloc(ctx, (size_t)rows * sizeof(float), &scratch);
    if (status) return status;
    const rows_job j = {.base = {logits, scratch}, .labels = labels, .cols = cols, .h = unsmoothed, .mean = 1};
    status = losses(ctx, &j, rows);
    if (!status) status = tl_row_sums(ctx, scratch, 1, rows, -rows, out);
    tl_pool_free(ctx, scratch);
    return status;
}

TL_LEAF(grad_leaf)
{
    const rows_job *j = arg;
    float *const out = j->base.out + p->at;
    const float *e = p->work ? p->work : out, s = p->stat[SUM], r = p->stat[DERIVED],
                g = j->g ? j->g[p->row] : j->factor;
    const float *w = j->weights ? j->weights + p->first : NULL;
    const int64_t label = (int64_t)j->labels[p->row], at = label - p->first;
    if (label >= j->cols && !j->mean) {
        memset(out, 0, (size_t)p->n * sizeof(float));
        return;
    }
    const struct tl_smoothing h = j->h;
    const float own = weight_of(j, label), total = tl_smoothed_total(own, j->total, j->cols, h);
    const float hit = at >= 0 && at < p->n ? e[at] : 0.0f;
    const int stream = j->stream && p->work;
    if (h.share > 0.0f)
        TL_WRITE(stream, out, p->n,
                 tl_smoothed_grad(tl_quotient(e[i], s, r), total, w ? w[i] : 1.0f, own, 0, j->cols, g, h));
    else
        TL_WRITE(stream, out, p->n,
                 tl_smoothed_grad(tl_quotient(e[i], s, r), total, 0.0f, own, 0, j->cols, g, unsmoothed));
    if (at >= 0 && at < p->n) out[at] = tl_smoothed_grad(tl_quotient(hit, s, r), total, own, own, 1, j->cols, g, h);
}

static int32_t gradient(tl_context *ctx, const rows_job *j, int64_t rows)
{
    static const tl_row_phase phases[] = {
        {maximum_leaf, maximum_row}, {exponentials_leaf, reciprocal_row}, {grad_leaf, NULL}};
    return tl_run_rows(ctx, j, phases, 3, grad_bundle, rows, j->cols);
}

int32_t tl_cpu_cross_entropy_rows_bwd(tl_context *ctx, const float *logits, const uint32_t *labels,
                                      const float *weights, const float *g, int64_t rows, int64_t cols, float smoothing,
                                      float *glogits)
{
    rows_job j = {.base = {logits, glogits}, .labels = labels, .weights = weights, .g = g, .cols = cols};
    j.h = tl_smoothing_of(smoothing), j.total = (float)cols, j.stream = rows * cols >= TL_STREAM_FROM;
    const int32_t status = weights ? tl_row_sums(ctx, weights, 1, cols, 0, &j.total) : TORCHLEAN_OK;
    return status ? status : gradient(ctx, &j, rows);
}

int32_t tl_cpu_cross_entropy_bwd(tl_context *ctx, const float *logits, const uint32_t *labels, const float *g,
                                 int64_t rows, int64_t cols, float *glogits)
{
    rows_job j = {.base = {logits, glogits}, .labels = labels, .cols = cols, .mean = 1};
    j.h = unsmoothed, j.factor = tl_per_count(g[0], rows), j.stream = rows * cols >= TL_STREAM_FROM;
    return gradient(ctx, &j, rows);
}
