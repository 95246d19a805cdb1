/* Normalisation of channels over a batch and of groups of channels on the CPU, with the statistics as results, and the gradients
 * from them.
 *
 * A row's elements lie in runs (tl_norm_runs). A task has a leaf of a row, or neighbouring rows of one leaf: it gathers the leaf into
 * a buffer of at most 64 KiB, as the lanes of the row tree begin anywhere in a run, and so all sums are those of contiguous
 * elements. Rows of one leaf are done with then. Of longer rows each leaf leaves its sum, its squares around its own mean and
 * its differences from that, from one read; when the row has joined them a second pass over the leaves writes the results. */
#include "core/threads.h"
#include "cpu/row_phases.h"
#include "formula/integer.h"
#include "generated/norm.h"

typedef struct groups_job {
    struct tl_norm_runs at;
    const float *x, *gamma, *beta, *g;
    float eps;
    const float *given_means, *given_istds; /* a gradient's */
    float *out;                             /* or gx; NULL if it is not wanted */
    float *means, *vars, *istds;            /* per row; of vars there may be none */
    float *sums_a, *sums_ax;                /* per row, of a gradient: those of a and a xhat */
    int scaled;                             /* a is g times gamma; else gamma is a factor of the result */
    const struct steps *steps;
    int64_t leaves, per_task; /* of a row; rows of a task where a row is one leaf */
    float *parts[3];          /* (rows, leaves) each */
    float *totals[2];         /* of a gradient, per row: the sums of a and a xhat */
    float *buffers;           /* two leaves for each worker */
} groups_job;

/* What is done with a leaf of n elements, which begins with element `first` of its row, and with a row. `room` holds two leaves. */
typedef struct steps {
    void (*gather)(const groups_job *a, int64_t row, int64_t first, int64_t n, float *room);
    void (*sum)(const groups_job *a, int64_t leaf, int64_t n, const float *room); /* leaf: of all rows */
    void (*join)(const groups_job *a, int64_t row);
    void (*write)(const groups_job *a, int64_t row, int64_t first, int64_t n, float *room);
} steps;

/* A part of a run within a leaf of n elements: those from `begin` on. */
typedef struct piece {
    int64_t q, at; /* its run, and its first element in the array */
    int64_t begin, n;
} piece;

static inline piece first_piece(const groups_job *a, int64_t row, int64_t first, int64_t n)
{
    const int64_t q = first / a->at.run, p = first - q * a->at.run;
    return (piece){q, row * a->at.row_stride + q * (a->at.run + a->at.skip) + p, 0, tl_imin(a->at.run - p, n)};
}

static inline piece next_piece(const groups_job *a, piece p, int64_t n)
{
    const int64_t begin = p.begin + p.n;
    return (piece){p.q + 1, p.at + p.n + a->at.skip, begin, tl_imin(a->at.run, n - begin)};
}

/* statement for every piece `p` of a leaf, which begins with element `first` of its row. */
#define EACH_PIECE(a, row, first, n, ...)                                                        \
    for (piece p = first_piece(a, row, first, n); p.begin < (n); p = next_piece(a, p, n)) {      \
        __VA_ARGS__;                                                                             \
    }

static inline int64_t length_of(const groups_job *a, int64_t leaf)
{
    return tl_imin(a->at.cols - leaf * TL_SUM_LEAF, TL_SUM_LEAF);
}

static inline float gamma_of(const groups_job *a, int64_t row, int64_t q)
{
    return a->gamma ? a->gamma[tl_channel_of(&a->at, row, q)] : 1.0f;
}

/* Neighbouring rows whose runs share lines of memory are one task. */
static int64_t rows_of_task(const struct tl_norm_runs *at)
{
    const int64_t shared = at->run < TL_LINE ? TL_LINE / at->run : 1;
    return tl_imax(shared, tl_even_units(at->rows, at->cols, TL_ROW_SPAN));
}

static void row_task(void *arg, int64_t task, int32_t worker)
{
    const groups_job *a = arg;
    const int64_t last = tl_imin(a->at.rows, (task + 1) * a->per_task);
    float *const room = a->buffers + 2 * worker * TL_SUM_LEAF;
    for (int64_t row = task * a->per_task; row < last; row++) {
        a->steps->gather(a, row, 0, a->at.cols, room);
        a->steps->sum(a, row, a->at.cols, room);
        a->steps->join(a, row);
        if (a->out) a->steps->write(a, row, 0, a->at.cols, room);
    }
}

static void sum_task(void *arg, int64_t task, int32_t worker)
{
    const groups_job *a = arg;
    const int64_t leaf = task % a->leaves, n = length_of(a, leaf);
    float *const room = a->buffers + 2 * worker * TL_SUM_LEAF;
    a->steps->gather(a, task / a->leaves, leaf * TL_SUM_LEAF, n, room);
    a->steps->sum(a, task, n, room);
}

static void write_task(void *arg, int64_t task, int32_t worker)
{
    const groups_job *a = arg;
    const int64_t row = task / a->leaves, leaf = task % a->leaves, n = length_of(a, leaf);
    float *const room = a->buffers + 2 * worker * TL_SUM_LEAF;
    a->steps->gather(a, row, leaf * TL_SUM_LEAF, n, room);
    a->steps->write(a, row, leaf * TL_SUM_LEAF, n, room);
}

static int32_t run(tl_context *ctx, groups_job a)
{
    if (a.at.rows == 0 || a.at.cols == 0) return TORCHLEAN_OK;
    a.leaves = tl_ceil_div(a.at.cols, TL_SUM_LEAF);
    a.per_task = rows_of_task(&a.at);
    const int64_t buffers = 2 * (int64_t)tl_workers() * TL_SUM_LEAF, parts = a.at.rows * a.leaves;
    void *scratch;
    const int32_t status = tl_pool_alloc(ctx, (size_t)(buffers + 3 * parts + 2 * a.at.rows) * sizeof(float), &scratch);
    if (status) return status;
    a.buffers = scratch;
    for (int32_t k = 0; k < 3; k++)
        a.parts[k] = a.buffers + buffers + k * parts;
    a.totals[0] = a.parts[2] + parts, a.totals[1] = a.totals[0] + a.at.rows;
    if (a.leaves == 1) {
        tl_parallel(tl_ceil_div(a.at.rows, a.per_task), row_task, &a);
    } else {
        tl_parallel(parts, sum_task, &a);
        for (int64_t r = 0; r < a.at.rows; r++)
            a.steps->join(&a, r);
        if (a.out) tl_parallel(parts, write_task, &a);
    }
    tl_pool_free(ctx, scratch);
    return TORCHLEAN_OK;
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

static void gather_leaf(const groups_job *a, int64_t row, int64_t first, int64_t n, float *room)
{
    EACH_PIECE(a, row, first, n, for (int64_t i = 0; i < p.n; i++) room[p.begin + i] = a->x[p.at + i]);
}

static void sum_moments(const groups_job *a, int64_t leaf, int64_t n, const float *x)
{
    const float sum = tl_leaf_sum(x, n), mean = tl_per_count(sum, n);
    a->parts[0][leaf] = sum;
    TL_LEAF_SUM(a->parts[1][leaf], n, tl_square_of_difference(x[i], mean));
    if (a->leaves > 1) TL_LEAF_SUM(a->parts[2][leaf], n, x[i] - mean);
}

static void join_moments(const groups_job *a, int64_t row)
{
    const float *const sums = a->parts[0] + row * a->leaves, *const differences = a->parts[2] + row * a->leaves;
    float *const squares = a->parts[1] + row * a->leaves;
    const float mean = tl_per_count(a->leaves == 1 ? sums[0] : tl_row_sum(sums, a->leaves), a->at.cols);
    for (int64_t l = 0; a->leaves > 1 && l < a->leaves; l++) {
        const int64_t n = length_of(a, l);
        squares[l] = tl_squares_of_leaf(squares[l], differences[l], tl_per_count(sums[l], n), mean, n);
    }
    const float all = a->leaves == 1 ? squares[0] : tl_row_sum(squares, a->leaves);
    a->means[row] = mean;
    if (a->vars) a->vars[row] = tl_per_count(all, a->at.cols);
    a->istds[row] = tl_inverse_deviation(all, a->at.cols, a->eps);
}

/* The results of a leaf that x holds, which is used up. */
static void write_leaf(const groups_job *a, int64_t row, int64_t first, int64_t n, float *x)
{
    const float mean = a->means[row], istd = a->istds[row];
    TL_FOR_LINES(i, 0, n, x[i] = tl_normalised(x[i], mean, istd););
    EACH_PIECE(a, row, first, n, const float gamma = gamma_of(a, row, p.q), *from = x + p.begin;
               const float beta = a->beta ? a->beta[tl_channel_of(&a->at, row, p.q)] : -0.0f;
               float *restrict to = a->out + p.at;
               for (int64_t i = 0; i < p.n; i++) to[i] = fmaf(from[i], gamma, beta));
}

static int32_t forward(tl_context *ctx, groups_job a)
{
    static const steps of = {gather_leaf, sum_moments, join_moments, write_leaf};
    for (int64_t r = 0; a.at.cols == 0 && r < a.at.rows; r++) {
        a.means[r] = a.istds[r] = NAN;
        if (a.vars) a.vars[r] = NAN;
    }
    a.steps = &of;
    return run(ctx, a);
}

int32_t tl_cpu_batch_norm_stats(tl_context *ctx, const float *x, const float *gamma, const float *beta, int64_t batch,
                                int64_t channels, int64_t positions, float eps, float *out, float *mean, float *var,
                                float *istd)
{
    groups_job a = {.at = tl_channel_runs(batch, 1, channels, positions, 0), .x = x, .gamma = gamma, .beta = beta};
    a.eps = eps, a.out = out, a.means = mean, a.vars = var, a.istds = istd;
    return forward(ctx, a);
}

int32_t tl_cpu_group_norm_stats(tl_context *ctx, const float *x, const float *gamma, const float *beta, int64_t batch,
                                int64_t groups, int64_t channels, int64_t positions, float eps, float *out, float *mean,
                                float *istd)
{
    groups_job a = {.at = tl_group_runs(batch, groups, channels, positions), .x = x, .gamma = gamma, .beta = beta};
    a.eps = eps, a.out = out, a.means = mean, a.istds = istd;
    return forward(ctx, a);
}

/* ---- gradients --------------------------------------------------------------------------------------------------- */

/* A leaf of x as xhat, and behind it of g as a. */
static void gather_both(const groups_job *a, int64_t row, int64_t first, int64_t n, float *room)
{
    EACH_PIECE(a, row, first, n, const int64_t s = tl_statistic_of(&a->at, row, p.q);
               const float mean = a->given_means[s], istd = a->given_istds[s];
               const float gamma = a->scaled ? gamma_of(a, row, p.q) : 1.0f, *x = a->x + p.at, *g = a->g + p.at;
               float *restrict to = room + p.begin; float *restrict to_a = to + TL_SUM_LEAF;
               for (int64_t i = 0; i < p.n; i++) to[i] = tl_normalised(x[i], mean, istd), to_a[i] = g[i] * gamma);
}

static void sum_products(const groups_job *a, int64_t leaf, int64_t n, const float *xhat)
{
    const float *const as = xhat + TL_SUM_LEAF;
    a->parts[0][leaf] = tl_leaf_sum(as, n);
    TL_LEAF_SUM(a->parts[1][leaf], n, as[i] * xhat[i]);
}

static void keep_sums(const groups_job *a, int64_t row, float sum_a, float sum_ax)
{
    if (a->sums_a) a->sums_a[row] = sum_a;
    if (a->sums_ax) a->sums_ax[row] = sum_ax;
}

static void join_products(const groups_job *a, int64_t row)
{
    for (int32_t k = 0; k < 2; k++) {
        const float *const of = a->parts[k] + row * a->leaves;
        a->totals[k][row] = a->leaves == 1 ? of[0] : tl_row_sum(of, a->leaves);
    }
    keep_sums(a, row, a->totals[0][row], a->totals[1][row]);
}

static void write_gradient(const groups_job *a, int64_t row, int64_t first, int64_t n, float *xhat)
{
    const float mean_a = tl_per_count(a->totals[0][row], a->at.cols), *const as = xhat + TL_SUM_LEAF;
    const float mean_ax = tl_per_count(a->totals[1][row], a->at.cols);
    const float istd = a->given_istds[row], factor = a->scaled ? istd : istd * gamma_of(a, row, 0);
    EACH_PIECE(a, row, first, n, float *restrict to = a->out + p.at;
               const float *xs = xhat + p.begin, *of = as + p.begin;
               for (int64_t i = 0; i < p.n; i++) to[i] = tl_norm_grad(of[i], xs[i], mean_a, mean_ax, factor));
}

static int32_t backward(tl_context *ctx, groups_job a)
{
    static const steps of = {gather_both, sum_products, join_products, write_gradient};
    if (!a.out && !a.sums_a && !a.sums_ax) return TORCHLEAN_OK;
    for (int64_t r = 0; a.at.cols == 0 && r < a.at.rows; r++)
        keep_sums(&a, r, 0.0f, 0.0f);
    a.steps = &of;
    return run(ctx, a);
}

int32_t tl_cpu_batch_norm_stats_bwd(tl_context *ctx, const float *x, const float *gamma, const float *mean,
                                    const float *istd, const float *g_out, int64_t batch, int64_t channels,
                                    int64_t positions, TL_UNUSED float eps, float *gx, float *ggamma, float *gbeta)
{
    groups_job a = {.at = tl_channel_runs(batch, 1, channels, positions, 0), .x = x, .gamma = gamma, .g = g_out};
    a.given_means = mean, a.given_istds = istd, a.out = gx, a.sums_a = gbeta, a.sums_ax = ggamma;
    return backward(ctx, a);
}

int32_t tl_cpu_group_norm_stats_bwd(tl_context *ctx, const float *x, const float *gamma, const float *mean,
                                    const float *istd, const float *g_out, int64_t batch, int64_t groups,
                                    int64_t channels, int64_t positions, TL_UNUSED float eps, float *gx, float *ggamma,
                                    float *gbeta)
{
    groups_job a = {.at = tl_group_runs(batch, groups, channels, positions), .x = x, .gamma = gamma, .g = g_out};
    a.given_means = mean, a.given_istds = istd, a.out = gx, a.scaled = 1;
    const int32_t status = backward(ctx, a);
    if (status) return status;
    a.at = tl_channel_runs(batch, groups, channels, positions, 1);
    a.out = NULL, a.sums_a = gbeta, a.sums_ax = ggamma, a.scaled = 0;
    return backward(ctx, a);
}
