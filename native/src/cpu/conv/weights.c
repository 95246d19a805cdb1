/* The gradient of a convolution's weights: gw (rows, K) = g (rows, batch·positions)·gathered sourceᵀ, with K = channels·taps.
 * The file has what is common to both precisions; the algorithm is in weights_kernel.h, compiled here for float and, for
 * reproducible contexts, for double.
 *
 *   item        a tile of gw over all positions, or over one segment of them
 *   for tile    of positions, in the order of the batch: some slices (images), lines of one, or positions of a line. g is packed
 *               into panels of rows; the cells that the tile reads are copied once
 *   for column  of lanes: channels side by side, under one tap; or, where channels are few, taps side by side, on several lines
 *   for panel   the micro-kernel: a position's cells are at a constant offset from the first's
 *
 * Where the lanes would stay empty either way, they are rows: g is packed in strips, and a position's cells are the
 * scalars of a panel of channels and taps.
 *
 * Summation order: in float one chain of fused multiply-adds per block of TL_GEMM_KC positions, blocks added in order; with
 * several segments, which follow from the shape alone, their sums are added by the column tree. In double the chains are those of
 * formula/chain.h. */
#include "core/threads.h"
#include "cpu/conv/planes.h"
#include "cpu/sum_tree.h"
#include "formula/chain.h"
#include "formula/integer.h"

enum {
    MR = TL_GEMM_MR,
    KC = TL_GEMM_KC,
    TILE_ROWS = 256,
    TILE_COLUMNS = 256,
    TILE_POSITIONS = 256,
    LINES = 4,      /* vectors of taps at a time */
    LEAST_ROWS = 4, /* rows that are worth lanes */
    MANY_TASKS = 8
};
/* Multiply-adds that a task has at least, where there are few. */
#define TASK_COST 1e6
/* The share of the lanes below which they are rows. */
#define LEAST_SHARE 0.6

/* Taps of an axis stand side by side in a tile of n positions, which are then several cells apart; or each has cells of its own, where
 * all that lies between them would be more. */
static void join_taps(plane_axis *a, int64_t n)
{
    const int64_t spacing = tl_gcd(a->step, a->taps > 1 ? a->tap_step : 0), cells = a->step / spacing;
    a->apart = (n - 1) * cells + (a->taps - 1) * a->tap_step / spacing + 1 > a->taps * n;
    if (!a->apart) a->step = spacing, a->cells = cells;
}

#define REAL float
#define FN(name) name##_f32
#define VL LANES_F32
#include "cpu/conv/weights_kernel.h"
#undef REAL
#undef FN
#undef VL

#define REAL double
#define FN(name) name##_f64
#define VL LANES_F64
#include "cpu/conv/weights_kernel.h"

/* The positions of a segment in float: as many segments as make SEGMENTS tasks of tiles of 252 by 256, each of at least 8
 * blocks. */
static int64_t segment_of(int64_t rows, int64_t inner, int64_t positions)
{
    enum { SEGMENTS = 16, ROWS = 252, COLUMNS = 256, WIDTH = 32, LEAST = 8 * KC };
    const int64_t height = tl_ceil_div(rows, tl_ceil_div(rows, ROWS));
    const int64_t width = tl_ceil_div(tl_ceil_div(inner, tl_ceil_div(inner, COLUMNS)), WIDTH) * WIDTH;
    const int64_t tiles = tl_ceil_div(rows, height) * tl_ceil_div(inner, width);
    const int64_t segments = tl_imax(1, tl_imin(tl_ceil_div(SEGMENTS, tiles), positions / LEAST));
    return tl_ceil_div(tl_ceil_div(positions, segments), KC) * KC;
}

int32_t tl_conv_weights(tl_context *ctx, const conv_view *v, int64_t groups, const float *g, float *gw)
{
    const int64_t inner = v->channels * v->gather.taps_size, positions = v->batch * v->gather.positions;
    const int64_t segment = segment_of(v->rows, inner, positions), segments = tl_ceil_div(positions, segment);
    const int64_t weights = groups * v->rows * inner;
    job_f32 job;
    void *parts = NULL;
    int32_t status = TORCHLEAN_OK;
    open_job_f32(&job, v, groups, g, gw);
    if (segments > 1) status = tl_pool_alloc(ctx, sizeof(float) * (size_t)(segments * weights), &parts);
    if (!status) status = run_f32(ctx, &job, KC, segment, parts);
    if (parts && !status) status = tl_column_sums(ctx, parts, 1, segments, weights, 0, gw);
    tl_pool_free(ctx, parts);
    return status;
}

typedef struct {
    double *parts;
    float *gw;
    int64_t segments, weights;
} rounds_t;

/* Task: some weights, from the sums of their segments, in order. */
static void add_segments(void *arg, int64_t task, TL_UNUSED int32_t worker)
{
    const rounds_t *x = arg;
    const int64_t last = tl_imin((task + 1) * TILE_COLUMNS, x->weights);
    for (int64_t i = task * TILE_COLUMNS; i < last; i++) {
        double sum = x->parts[i];
        for (int64_t s = 1; s < x->segments; s++)
            sum += x->parts[s * x->weights + i];
        x->gw[i] = (float)sum;
    }
}

int32_t tl_conv_weights_reproducible(tl_context *ctx, const conv_view *v, int64_t groups, const float *g, float *gw)
{
    const int64_t inner = v->channels * v->gather.taps_size, positions = v->batch * v->gather.positions;
    const int64_t segment = tl_chain_segment(positions), segments = tl_ceil_div(positions, segment);
    rounds_t x = {.gw = gw, .segments = segments, .weights = groups * v->rows * inner};
    job_f64 job;
    open_job_f64(&job, v, groups, g, gw);
    if (segments == 1 ||
        (double)x.weights * (double)positions > MANY_TASKS * TILE_ROWS * TILE_COLUMNS * 2.0 * (double)segment)
        return run_f64(ctx, &job, segment, positions, NULL);
    void *parts;
    int32_t status = tl_pool_alloc(ctx, sizeof(double) * (size_t)(segments * x.weights), &parts);
    if (status) return status;
    status = run_f64(ctx, &job, segment, segment, parts);
    x.parts = parts;
    if (!status) tl_parallel(tl_ceil_div(x.weights, TILE_COLUMNS), add_segments, &x);
    tl_pool_free(ctx, parts);
    return status;
}
