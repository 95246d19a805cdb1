/* Layer normalisation and the normalisation of channels on the CPU, and their gradients.
 *
 * Phases (row_phases.h): the mean; the variance around it; the result, or the two means of the gradient and then the result. A
 * channel is a row whose gamma and beta are one number each.
 *
 * The gradients of layer_norm's gamma and beta are sums down the columns. With many rows a task is a chunk of the column tree: it
 * finishes one row after the other and adds each to its chain while the row is in cache. With few, the rows come first and a
 * second pass, over chunks and tiles of columns, computes xhat again from the saved statistics. Both add in the same order. */
#include "core/threads.h"
#include "cpu/row_phases.h"
#include "formula/integer.h"
#include "generated/norm.h"

typedef struct job {
    const float *x, *gamma, *beta, *g;
    float *out;                             /* or gx; NULL if it is not wanted */
    float *means, *istds;                   /* per row, where they are results or a later pass needs them */
    const float *given_means, *given_istds; /* a gradient's, where they are saved; no means are 0 */
    int64_t rows, cols;
    float eps;
    int stream, far; /* results too large for the caches, and inputs for the nearest */
} job;

/* The job of a forward; a gradient sets g besides. */
static job make_job(const float *x, const float *gamma, const float *beta, int64_t rows, int64_t cols, float eps,
                    float *out)
{
    job a = {.x = x, .gamma = gamma, .beta = beta, .out = out, .rows = rows, .cols = cols, .eps = eps};
    a.stream = rows * cols >= TL_STREAM_FROM, a.far = rows * cols >= TL_FETCH_FROM;
    return a;
}

/* Statistics of a row: the mean, 1/deviation, and the means of a and of a·xhat of the gradient. */
enum { MEAN, ISTD, MEAN_A, MEAN_AX };

/* ---- mean and variance ------------------------------------------------------------------------------------------- */

TL_LEAF(sum_leaf)
{
    const job *a = arg;
    *p->sum = tl_leaf_sum(a->x + p->at, p->n);
}

static void mean_row(const void *arg, const tl_row *r)
{
    const job *a = arg;
    TL_EACH_ROW(r, stat[MEAN] = tl_per_count(tl_sum_of_leaves(r, r->sum, k), a->cols);
                if (a->means) a->means[r->row + k] = stat[MEAN]);
}

TL_LEAF(squares_leaf)
{
    const job *a = arg;
    const float *x = a->x + p->at, mean = p->stat[MEAN];
    TL_LEAF_SUM(*p->sum, p->n, tl_square_of_difference(x[i], mean));
}

static void deviation_row(const void *arg, const tl_row *r)
{
    const job *a = arg;
    TL_EACH_ROW(r, stat[ISTD] = tl_inverse_deviation(tl_sum_of_leaves(r, r->sum, k), a->cols, a->eps);
                if (a->istds) a->istds[r->row + k] = stat[ISTD]);
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

TL_LEAF(layer_leaf)
{
    const job *a = arg;
    const float *x = a->x + p->at, *gamma = a->gamma + p->first, *beta = a->beta + p->first;
    const float mean = p->stat[MEAN], istd = p->stat[ISTD], *next = a->x + tl_next_row(p, a->rows, a->cols);
    TL_WRITE_WITH(a->stream, a->out + p->at, p->n, TL_FETCH_AHEAD(a->far, next),
                  fmaf(tl_normalised(x[i], mean, istd), gamma[i], beta[i]));
}

TL_LEAF(channel_leaf)
{
    const job *a = arg;
    const float *x = a->x + p->at, gamma = a->gamma[p->row], beta = a->beta[p->row];
    const float mean = p->stat[MEAN], istd = p->stat[ISTD];
    TL_WRITE(a->stream, a->out + p->at, p->n, fmaf(tl_normalised(x[i], mean, istd), gamma, beta));
}

/* 1 for a gamma that is left out and -0 for such a beta, with which a fused sum is the product; *scratch is to be freed. A
 * gradient and rows around 0 read no beta. */
static int32_t fill_absent(tl_context *ctx, job *a, void **scratch)
{
    *scratch = NULL;
    if (a->gamma && a->beta) return TORCHLEAN_OK;
    const int32_t status = tl_pool_alloc(ctx, (size_t)(2 * a->cols) * sizeof(float), scratch);
    if (status) return status;
    float *const ones = *scratch, *const zeros = ones + a->cols;
    for (int64_t j = 0; j < a->cols; j++)
        ones[j] = 1.0f, zeros[j] = -0.0f;
    if (!a->gamma) a->gamma = ones;
    if (!a->beta) a->beta = zeros;
    return TORCHLEAN_OK;
}

/* A forward of three phases, whose statistics are kept where they are results; those of rows without elements are NaN. */
static int32_t forward(tl_context *ctx, job a, const tl_row_phase *phases, float *means, float *istds)
{
    void *scratch;
    for (int64_t r = 0; a.cols == 0 && r < a.rows; r++) {
        if (means) means[r] = NAN;
        if (istds) istds[r] = NAN;
    }
    a.means = means, a.istds = istds;
    int32_t status = fill_absent(ctx, &a, &scratch);
    if (!status) status = tl_run_rows(ctx, &a, phases, 3, NULL, a.rows, a.cols);
    tl_pool_free(ctx, scratch);
    return status;
}

static const tl_row_phase layer_phases[] = {{sum_leaf, mean_row}, {squares_leaf, deviation_row}, {layer_leaf, NULL}};

int32_t tl_cpu_layer_norm(tl_context *ctx, const float *x, const float *gamma, const float *beta, int64_t rows,
                          int64_t cols, float eps, float *out)
{
    return forward(ctx, make_job(x, gamma, beta, rows, cols, eps, out), layer_phases, NULL, NULL);
}

int32_t tl_cpu_layer_norm_stats(tl_context *ctx, const float *x, const float *gamma, const float *beta, int64_t rows,
                                int64_t cols, float eps, float *out, float *mean, float *istd)
{
    return forward(ctx, make_job(x, gamma, beta, rows, cols, eps, out), layer_phases, mean, istd);
}

static const tl_row_phase channel_phases[] = {
    {sum_leaf, mean_row}, {squares_leaf, deviation_row}, {channel_leaf, NULL}};

int32_t tl_cpu_batchnorm_channel_first(tl_context *ctx, const float *x, const float *gamma, const float *beta,
                                       int64_t channels, int64_t height, int64_t width, float eps, float *out)
{
    const int64_t cols = height * width;
    const job a = make_job(x, gamma, beta, channels, cols, eps, out);
    return tl_run_rows(ctx, &a, channel_phases, 3, NULL, channels, cols);
}

/* Rows around 0: the mean is 0 throughout, and beta is -0. */
static void no_leaf(TL_UNUSED const void *arg, TL_UNUSED const tl_leaf *first, TL_UNUSED int64_t rows) {}

static void zero_row(const void *arg, const tl_row *r)
{
    const job *a = arg;
    TL_EACH_ROW(r, stat[MEAN] = stat[MEAN_A] = 0.0f; if (a->means) a->means[r->row + k] = 0.0f);
}

static const tl_row_phase rms_phases[] = {{no_leaf, zero_row}, {squares_leaf, deviation_row}, {layer_leaf, NULL}};

int32_t tl_cpu_rms_norm(tl_context *ctx, const float *x, const float *gamma, int64_t rows, int64_t cols, float eps,
                        float *out)
{
    return forward(ctx, make_job(x, gamma, NULL, rows, cols, eps, out), rms_phases, NULL, NULL);
}

int32_t tl_cpu_rms_norm_stats(tl_context *ctx, const float *x, const float *gamma, int64_t rows, int64_t cols,
                              float eps, float *out, float *istd)
{
    return forward(ctx, make_job(x, gamma, NULL, rows, cols, eps, out), rms_phases, NULL, istd);
}

/* ---- gradients along rows ---------------------------------------------------------------------------------------- */

TL_LEAF(products_leaf)
{
    const job *a = arg;
    const float *x = a->x + p->at, *g = a->g + p->at, *gamma = a->gamma + p->first;
    const float mean = p->stat[MEAN], istd = p->stat[ISTD];
    TL_LEAF_SUM(*p->other, p->n, (g[i] * gamma[i]) * tl_normalised(x[i], mean, istd));
}

TL_LEAF(layer_means_leaf)
{
    const job *a = arg;
    const float *g = a->g + p->at, *gamma = a->gamma + p->first;
    TL_LEAF_SUM(*p->sum, p->n, g[i] * gamma[i]);
    products_leaf_of(arg, p);
}

static void means_row(const void *arg, const tl_row *r)
{
    const job *a = arg;
    TL_EACH_ROW(r, const float sum_a = tl_sum_of_leaves(r, r->sum, k), sum_ax = tl_sum_of_leaves(r, r->other, k);
                stat[MEAN_A] = tl_per_count(sum_a, a->cols); stat[MEAN_AX] = tl_per_count(sum_ax, a->cols));
}

static void product_mean_row(const void *arg, const tl_row *r)
{
    const job *a = arg;
    TL_EACH_ROW(r, stat[MEAN_AX] = tl_per_count(tl_sum_of_leaves(r, r->other, k), a->cols));
}

TL_LEAF(layer_grad_leaf)
{
    const job *a = arg;
    if (!a->out) return;
    const float *x = a->x + p->at, *g = a->g + p->at, *gamma = a->gamma + p->first;
    const float mean = p->stat[MEAN], istd = p->stat[ISTD], mean_a = p->stat[MEAN_A], mean_ax = p->stat[MEAN_AX];
    TL_WRITE(a->stream, a->out + p->at, p->n,
             tl_norm_grad(g[i] * gamma[i], tl_normalised(x[i], mean, istd), mean_a, mean_ax, istd));
}

/* In place of the phases that compute the statistics, where these are given. */
static void given_row(const void *arg, const tl_row *r)
{
    const job *a = arg;
    TL_EACH_ROW(r, stat[MEAN] = a->given_means ? a->given_means[r->row + k] : 0.0f; stat[MEAN_A] = 0.0f;
                stat[ISTD] = a->given_istds[r->row + k]; if (a->means) a->means[r->row + k] = stat[MEAN];
                if (a->istds) a->istds[r->row + k] = stat[ISTD]);
}

static const tl_row_phase given_layer_grad_phases[] = {
    {no_leaf, given_row}, {layer_means_leaf, means_row}, {layer_grad_leaf, NULL}};
static const tl_row_phase given_rms_grad_phases[] = {
    {no_leaf, given_row}, {products_leaf, product_mean_row}, {layer_grad_leaf, NULL}};
static const tl_row_phase layer_grad_phases[] = {
    {sum_leaf, mean_row}, {squares_leaf, deviation_row}, {layer_means_leaf, means_row}, {layer_grad_leaf, NULL}};
static const tl_row_phase rms_grad_phases[] = {
    {no_leaf, zero_row}, {squares_leaf, deviation_row}, {products_leaf, product_mean_row}, {layer_grad_leaf, NULL}};

int32_t tl_cpu_batchnorm_channel_first_bwd(tl_context *ctx, const float *x, const float *gamma, const float *g,
                                           int64_t channels, int64_t height, int64_t width, float eps, float *gx,
                                           float *ggamma, float *gbeta)
{
    const int64_t cols = height * width;
    void *scratch;
    int32_t status = tl_pool_alloc(ctx, (size_t)(2 * channels) * sizeof(float), &scratch);
    if (status) return status;
    job a = make_job(x, NULL, NULL, channels, cols, eps, NULL);
    a.means = scratch, a.istds = a.means + channels;
    status = tl_run_rows(ctx, &a, channel_phases, 2, NULL, channels, cols);
    if (!status)
        status =
            tl_cpu_batch_norm_stats_bwd(ctx, x, gamma, a.means, a.istds, g, 1, channels, cols, eps, gx, ggamma, gbeta);
    tl_pool_free(ctx, scratch);
    return status;
}

/* ---- gradients down the columns ---------------------------------------------------------------------------------- */

typedef struct columns_job {
    job rows;
    const tl_row_phase *phases; /* the last two are the gradient's */
    int32_t count;
    float *chains;                   /* of each worker: CHAINS rows for gamma, CHAINS rows for beta */
    float *gamma_parts, *beta_parts; /* (chunks, cols) */
} columns_job;

enum {
    MANY_CHUNKS = 8,
    GROUP = 8,  /* rows that are added to the chains together */
    TILE = 384, /* columns of a tile: two gradients' chains are 12 KiB of L1, and of the stack */
};

/* Adds g xhat and g of n columns of `rows` <= GROUP rows, `stride` apart, to the chains, `width` apart; the first row is one of chain 0.
 * A vector of columns of all chains stays in registers meanwhile. */
static void add_to_chains(const float *x, const float *g, int64_t stride, const float *means, const float *istds,
                          int64_t rows, int64_t n, float *gamma, float *beta, int64_t width)
{
    int64_t j = 0;
    for (; rows == GROUP && j + TL_LANES <= n; j += TL_LANES) {
        tl_vec u[TL_COLUMN_CHAINS], v[TL_COLUMN_CHAINS];
#pragma GCC unroll 4
        for (int c = 0; c < TL_COLUMN_CHAINS; c++) {
            u[c] = tl_vec_load(gamma + c * width + j);
            v[c] = tl_vec_load(beta + c * width + j);
        }
#pragma GCC unroll 8
        for (int r = 0; r < GROUP; r++) {
            const tl_vec xs = tl_vec_load(x + r * stride + j), gs = tl_vec_load(g + r * stride + j);
            u[r % TL_COLUMN_CHAINS] += gs * ((xs - means[r]) * istds[r]);
            v[r % TL_COLUMN_CHAINS] += gs;
        }
#pragma GCC unroll 4
        for (int c = 0; c < TL_COLUMN_CHAINS; c++) {
            tl_vec_store(gamma + c * width + j, u[c]);
            tl_vec_store(beta + c * width + j, v[c]);
        }
    }
    for (int64_t r = 0; r < rows; r++) {
        const float *const xs = x + r * stride, *const gs = g + r * stride, mean = means[r], istd = istds[r];
        float *const u = gamma + r % TL_COLUMN_CHAINS * width, *const v = beta + r % TL_COLUMN_CHAINS * width;
        TL_FOR_LINES(i, j, n, u[i] += gs[i] * tl_normalised(xs[i], mean, istd); v[i] += gs[i];);
    }
}

static inline void join_chains(const float *chains, int64_t n, float *restrict out)
{
    for (int64_t j = 0; j < n; j++)
        out[j] = (chains[j] + chains[n + j]) + (chains[2 * n + j] + chains[3 * n + j]);
}

/* A task is a chunk of rows of one leaf each. */
static void chunk_task(void *arg, int64_t chunk, int32_t worker)
{
    const columns_job *c = arg;
    const job *a = &c->rows;
    const int64_t cols = a->cols, from = chunk * TL_COLUMN_CHUNK;
    const int64_t rows = a->rows - from < TL_COLUMN_CHUNK ? a->rows - from : TL_COLUMN_CHUNK;
    float *gamma = c->chains + worker * (2 * TL_COLUMN_CHAINS + 1) * cols, *beta = gamma + TL_COLUMN_CHAINS * cols;
    for (int64_t j = 0; j < 2 * TL_COLUMN_CHAINS * cols; j++)
        gamma[j] = 0.0f;
    for (int64_t first = 0; first < rows; first += GROUP) {
        const int64_t count = tl_imin(rows - first, GROUP), at = (from + first) * cols;
        float sum[TL_ROW_BLOCK], other[TL_ROW_BLOCK], stat[GROUP * TL_ROW_STATS], means[GROUP], istds[GROUP];
        for (int32_t p = 0; p < c->count; p++) {
            if (p == c->count - 1)
                add_to_chains(a->x + at, a->g + at, cols, means, istds, count, cols, gamma, beta, cols);
            c->phases[p].leaf(a, &(tl_leaf){from + first, 0, cols, at, NULL, sum, other, stat, GROUP}, count);
            if (c->phases[p].row) c->phases[p].row(a, &(tl_row){from + first, count, 1, sum, other, stat});
            for (int64_t r = 0; r < count; r++)
                means[r] = stat[r * TL_ROW_STATS + MEAN], istds[r] = stat[r * TL_ROW_STATS + ISTD];
        }
    }
    join_chains(gamma, cols, c->gamma_parts + chunk * cols);
    join_chains(beta, cols, c->beta_parts + chunk * cols);
    tl_stream_end();
}

/* A task is a chunk of rows and a tile of columns. */
static void tile_task(void *arg, int64_t task, TL_UNUSED int32_t worker)
{
    const columns_job *c = arg;
    const job *a = &c->rows;
    const int64_t tiles = tl_ceil_div(a->cols, TILE), chunk = task / tiles;
    const int64_t from = chunk * TL_COLUMN_CHUNK, first = task % tiles * TILE;
    const int64_t rows = a->rows - from < TL_COLUMN_CHUNK ? a->rows - from : TL_COLUMN_CHUNK;
    const int64_t n = a->cols - first < TILE ? a->cols - first : TILE;
    _Alignas(64) float gamma[TL_COLUMN_CHAINS * TILE], beta[TL_COLUMN_CHAINS * TILE];
    for (int64_t j = 0; j < TL_COLUMN_CHAINS * n; j++)
        gamma[j] = beta[j] = 0.0f;
    for (int64_t r = from; r < from + rows; r += GROUP) {
        const int64_t at = r * a->cols + first;
        add_to_chains(a->x + at, a->g + at, a->cols, a->means + r, a->istds + r, tl_imin(from + rows - r, GROUP), n,
                      gamma, beta, n);
    }
    join_chains(gamma, n, c->gamma_parts + chunk * a->cols + first);
    join_chains(beta, n, c->beta_parts + chunk * a->cols + first);
}

static int32_t run_columns(tl_context *ctx, columns_job c, float *ggamma, float *gbeta)
{
    const int64_t rows = c.rows.rows, cols = c.rows.cols;
    if (!ggamma && !gbeta) return tl_run_rows(ctx, &c.rows, c.phases, c.count, NULL, rows, cols);
    const int64_t chunks = tl_ceil_div(rows, TL_COLUMN_CHUNK);
    const int fused = chunks >= MANY_CHUNKS && cols <= TL_SUM_LEAF;
    const int64_t state = fused ? tl_workers() * (2 * TL_COLUMN_CHAINS + 1) * cols : 2 * rows;
    void *scratch;
    int32_t status = tl_pool_alloc(ctx, (size_t)(2 * chunks * cols + state) * sizeof(float), &scratch);
    if (status) return status;
    c.gamma_parts = scratch;
    c.beta_parts = c.gamma_parts + chunks * cols;
    c.chains = c.beta_parts + chunks * cols;
    if (fused) {
        tl_parallel(chunks, chunk_task, &c);
    } else if (rows > 0) {
        c.rows.means = c.chains;
        c.rows.istds = c.chains + rows;
        status = tl_run_rows(ctx, &c.rows, c.phases, c.rows.out ? c.count : c.count - 2, NULL, rows, cols);
        if (!status) tl_parallel(chunks * tl_ceil_div(cols, TILE), tile_task, &c);
    }
    if (!status && ggamma) status = tl_column_sums(ctx, c.gamma_parts, 1, chunks, cols, 0, ggamma);
    if (!status && gbeta) status = tl_column_sums(ctx, c.beta_parts, 1, chunks, cols, 0, gbeta);
    tl_pool_free(ctx, scratch);
    return status;
}

int32_t tl_cpu_layer_norm_bwd(tl_context *ctx, const float *x, const float *gamma, const float *g, int64_t rows,
                              int64_t cols, float eps, float *gx, float *ggamma, float *gbeta)
{
    columns_job c = {.rows = make_job(x, gamma, NULL, rows, cols, eps, gx), .phases = layer_grad_phases, .count = 4};
    c.rows.g = g;
    return run_columns(ctx, c, ggamma, gbeta);
}

int32_t tl_cpu_rms_norm_bwd(tl_context *ctx, const float *x, const float *gamma, const float *g, int64_t rows,
                            int64_t cols, float eps, float *gx, float *ggamma)
{
    columns_job c = {.rows = make_job(x, gamma, NULL, rows, cols, eps, gx), .phases = rms_grad_phases, .count = 4};
    c.rows.g = g;
    return run_columns(ctx, c, ggamma, NULL);
}

/* A gradient from the statistics that a forward kept. */
static int32_t run_given(tl_context *ctx, columns_job c, const float *g, const float *means, const float *istds,
                         float *ggamma, float *gbeta)
{
    void *scratch;
    c.count = 3;
    c.rows.g = g, c.rows.given_means = means, c.rows.given_istds = istds;
    int32_t status = fill_absent(ctx, &c.rows, &scratch);
    if (!status) status = run_columns(ctx, c, ggamma, gbeta);
    tl_pool_free(ctx, scratch);
    return status;
}

int32_t tl_cpu_layer_norm_stats_bwd(tl_context *ctx, const float *x, const float *gamma, const float *mean,
                                    const float *istd, const float *g_out, int64_t rows, int64_t cols, float eps,
                                    float *gx, float *ggamma, float *gbeta)
{
    const columns_job c = {.rows = make_job(x, gamma, NULL, rows, cols, eps, gx), .phases = given_layer_grad_phases};
    return run_given(ctx, c, g_out, mean, istd, ggamma, gbeta);
}

int32_t tl_cpu_rms_norm_stats_bwd(tl_context *ctx, const float *x, const float *gamma, const float *istd,
                                  const float *g_out, int64_t rows, int64_t cols, float eps, float *gx, float *ggamma)
{
    const columns_job c = {.rows = make_job(x, gamma, NULL, rows, cols, eps, gx), .phases = given_rms_grad_phases};
    return run_given(ctx, c, g_out, NULL, istd, ggamma, NULL);
}
