/* Affine maps of channels on the CPU, and their gradients.
 *
 * A row is one channel of one sample, its leaves as in row_phases.h. A row's sums come from the leaves, in one read of x and g, and
 * go down the batch by the column tree. Where a channel is one element, the rows are the samples instead, and what is summed
 * down the batch are the elements themselves: a tree of one element is that element. */
#include "cpu/row_phases.h"
#include "formula/integer.h"
#include "generated/norm.h"

typedef struct affine_job {
    const float *x, *g, *center, *slope, *shift;
    float *out;               /* or gx; NULL if it is not wanted */
    float *sums, *sums_times; /* per row of g, and of g (x - center); NULL if not wanted */
    int64_t channels;
    int stream;
} affine_job;

TL_LEAF(affine_leaf)
{
    const affine_job *a = arg;
    const int64_t c = p->row % a->channels;
    const float *x = a->x + p->at, center = a->center[c], slope = a->slope[c], shift = a->shift[c];
    TL_WRITE(a->stream, a->out + p->at, p->n, tl_channel_affine(x[i], center, slope, shift));
}

TL_LEAF(affine_sample)
{
    const affine_job *a = arg;
    const float *x = a->x + p->at, *center = a->center + p->first, *slope = a->slope + p->first;
    const float *shift = a->shift + p->first;
    TL_WRITE(a->stream, a->out + p->at, p->n, tl_channel_affine(x[i], center[i], slope[i], shift[i]));
}

int32_t tl_cpu_channel_affine(tl_context *ctx, const float *x, const float *center, const float *slope,
                              const float *shift, int64_t batch, int64_t channels, int64_t positions, float *out)
{
    static const tl_row_phase by_channel = {affine_leaf, NULL}, by_sample = {affine_sample, NULL};
    affine_job a = {.x = x, .center = center, .slope = slope, .shift = shift, .out = out, .channels = channels};
    a.stream = batch * channels * positions >= TL_STREAM_FROM;
    return positions == 1 ? tl_run_rows(ctx, &a, &by_sample, 1, NULL, batch, channels)
                          : tl_run_rows(ctx, &a, &by_channel, 1, NULL, batch * channels, positions);
}

TL_LEAF(affine_grad_leaf)
{
    const affine_job *a = arg;
    const int64_t c = p->row % a->channels;
    const float *x = a->x + p->at, *g = a->g + p->at, center = a->center[c], slope = a->slope[c];
    if (a->sums) *p->sum = tl_leaf_sum(g, p->n);
    if (a->sums_times) TL_LEAF_SUM(*p->other, p->n, g[i] * (x[i] - center));
    if (a->out) TL_WRITE(a->stream, a->out + p->at, p->n, g[i] * slope);
}

static void affine_grad_row(const void *arg, const tl_row *r)
{
    const affine_job *a = arg;
    for (int64_t k = 0; k < r->rows; k++) {
        if (a->sums) a->sums[r->row + k] = tl_sum_of_leaves(r, r->sum, k);
        if (a->sums_times) a->sums_times[r->row + k] = tl_sum_of_leaves(r, r->other, k);
    }
}

TL_LEAF(affine_grad_sample)
{
    const affine_job *a = arg;
    const float *x = a->x + p->at, *g = a->g + p->at, *center = a->center + p->first, *slope = a->slope + p->first;
    if (a->sums_times) TL_FOR_LINES(i, 0, p->n, a->sums_times[p->at + i] = g[i] * (x[i] - center[i]););
    if (a->out) TL_WRITE(a->stream, a->out + p->at, p->n, g[i] * slope[i]);
}

int32_t tl_cpu_channel_affine_bwd(tl_context *ctx, const float *x, const float *center, const float *slope,
                                  const float *g, int64_t batch, int64_t channels, int64_t positions, float *gx,
                                  float *gcenter, float *gslope, float *gshift)
{
    static const tl_row_phase by_channel = {affine_grad_leaf, affine_grad_row}, by_sample = {affine_grad_sample, NULL};
    const int64_t rows = positions > 0 ? batch * channels : 0;
    const int sums = gcenter || gshift;
    affine_job a = {.x = x, .g = g, .center = center, .slope = slope, .out = gx, .channels = channels};
    a.stream = batch * channels * positions >= TL_STREAM_FROM;
    void *scratch;
    int32_t status = tl_pool_alloc(ctx, (size_t)(2 * rows + channels) * sizeof(float), &scratch);
    if (status) return status;
    float *const total = gshift ? gshift : (float *)scratch + 2 * rows;
    if (sums && positions != 1) a.sums = scratch;
    if (gslope) a.sums_times = (float *)scratch + rows;
    if (positions == 1)
        status = tl_run_rows(ctx, &a, &by_sample, 1, NULL, batch, channels);
    else
        status = tl_run_rows(ctx, &a, &by_channel, 1, NULL, rows, positions);
    const int64_t samples = positions > 0 ? batch : 0;
    if (!status && sums) status = tl_column_sums(ctx, a.sums ? a.sums : g, 1, samples, channels, 0, total);
    if (!status && gslope) status = tl_column_sums(ctx, a.sums_times, 1, samples, channels, 0, gslope);
    for (int64_t c = 0; !status && gcenter && c < channels; c++)
        gcenter[c] = -(slope[c] * total[c]);
    tl_pool_free(ctx, scratch);
    return status;
}

/* ---- running statistics ---------------------------------------------------------------------------------------------------- */

int32_t tl_cpu_batch_norm_running(TL_UNUSED tl_context *ctx, const float *mean, const float *var,
                                  const float *running_mean, const float *running_var, int64_t n, float momentum,
                                  float correction, float *mean_out, float *var_out)
{
    const struct tl_running r = tl_running_of(momentum, correction);
    for (int64_t i = 0; i < n; i++) {
        const float new_mean = tl_running_value(r.kept, running_mean[i], r.mean, mean[i]);
        const float new_var = tl_running_value(r.kept, running_var[i], r.var, var[i]);
        mean_out[i] = new_mean, var_out[i] = new_var;
    }
    return TORCHLEAN_OK;
}
