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
 * scalars of a panel of channels and taps. Where these are few, too, a block of 256 positions is gathered and turned
 * (weights_gathered below, and conv/chain.c for double).
 *
 * Summation order: in float one chain of fused multiply-adds per block of TL_GEMM_KC positions, blocks added in order; with
 * several segments, which follow from the shape alone, their sums are added by the column tree. In double the chains are those of
 * formula/chain.h. */
#include "core/threads.h"
#include "cpu/conv/gather.h"
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
    LEAST_ROWS = 4, /* rows that are worth lanes, where gathering is the other way */
    MANY_TASKS = 8,
    GATHERED = KC * NR + 16
};
/* Multiply-adds that a task has at least, where there are few. */
#define TASK_COST 1e6
/* Shares of the lanes below which gathering is faster. */
#define LEAST_SHARE 0.6
#define LEAST_SHARE_REPRODUCIBLE 0.3

/* dst[k*width + l] = src[l*lane + k] for n cells k of h lanes l <= width, 0 for the other l. In float whole vectors are stored, which
 * may run LANES - 1 elements past the end, into what is written later. */
static void turn_f32(float *dst, int64_t width, int64_t h, int64_t n, const float *src, int64_t lane)
{
    tl_gemm_pack_f32(dst, width, h, n, src, lane, 1);
}

static void turn_f64(double *restrict dst, int64_t width, int64_t h, int64_t n, const float *src, int64_t lane)
{
    enum { PART = 4 * LANES };
    _Alignas(64) float part[PART * NR + LANES];
    for (int64_t k = 0; k < n; k += PART, dst += PART * width) {
        const int64_t m = tl_imin(n - k, PART);
        tl_gemm_pack_f32(part, width, h, m, src + k, lane, 1);
        for (int64_t e = 0; e < m * width; e++)
            dst[e] = part[e];
    }
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
#undef REAL
#undef FN
#undef VL

/* ---- gathered ------------------------------------------------------------------------------------------------------- */

typedef struct {
    const conv_view *v;
    const float *g;
    float *sums, *blocks;                        /* (segments, rows, inner); scratch per worker */
    int64_t inner, positions, segments, segment; /* positions of the batch, and of a segment */
    int64_t row_tiles, tile_rows, column_tiles, tile_columns, worker_floats;
} job_t;

/* Packs rows row .. row + h - 1 of g at positions q .. q + kc - 1 of the batch; an image is contiguous. */
static void pack_cotangent(const job_t *job, float *panel, int64_t row, int64_t h, int64_t q, int64_t kc)
{
    const int64_t size = job->v->gather.positions;
    for (int64_t k = 0; k < kc;) {
        const int64_t image = (q + k) / size, at = (q + k) % size, n = tl_imin(kc - k, size - at);
        const float *from = job->g + (image * job->v->target_rows + row) * size + at;
        tl_gemm_pack_f32(panel + k * h, h, h, n, from, size, 1);
        k += n;
    }
}

/* Task: tile `task % tiles` of gw over segment `task / tiles`. */
static void multiply_tile(void *arg, int64_t task, int32_t worker)
{
    const job_t *job = arg;
    const conv_view *v = job->v;
    const int64_t tiles = job->row_tiles * job->column_tiles, segment = task / tiles;
    const int64_t row0 = task % tiles / job->column_tiles * job->tile_rows;
    const int64_t j0 = task % job->column_tiles * job->tile_columns;
    const int64_t rows = tl_imin(job->tile_rows, v->rows - row0), columns = tl_imin(job->tile_columns, job->inner - j0);
    const int64_t panels = tl_ceil_div(rows, MR), height = rows / panels, taller = rows % panels;
    const int64_t q1 = tl_imin((segment + 1) * job->segment, job->positions);
    float *strip = job->blocks + worker * job->worker_floats, *packed = strip + GATHERED;
    float *lines = packed + job->tile_rows * KC + NR;
    float *sums = job->sums + (segment * v->rows + row0) * job->inner + j0;
    _Alignas(64) float edge[MR * NR];
    conv_strip positions;
    for (int64_t q0 = segment * job->segment; q0 < q1 && !tl_interrupted(); q0 += KC) {
        const int64_t kc = tl_imin(q1 - q0, KC);
        const int add = q0 > segment * job->segment;
        float *panel = packed;
        for (int64_t p = 0, row = row0; p < panels; p++) {
            const int64_t h = height + (p < taller);
            pack_cotangent(job, panel, row, h, q0, kc);
            panel += h * kc;
            row += h;
        }
        for (int64_t q = 0; q < kc; q += NR) {
            open_strip(v, q0 + q, tl_imin(kc - q, NR), &positions);
            gather_rows(v, &positions, kc - q > LANES ? 2 : 1, j0, columns, lines + q, KC);
        }
        for (int64_t j = 0; j < columns; j += NR) {
            const int64_t width = tl_imin(columns - j, NR), vectors = width > LANES ? 2 : 1, ld = vectors * LANES;
            tl_gemm_pack_f32(strip, ld, width, kc, lines + j * KC, KC, 1);
            panel = packed;
            for (int64_t p = 0, row = 0; p < panels; p++) {
                const int64_t h = height + (p < taller);
                float *to = sums + row * job->inner + j;
                if (width == ld) {
                    tl_gemm_panel_f32(h, vectors, kc, panel, strip, ld, to, job->inner, add);
                } else {
                    tl_gemm_panel_f32(h, vectors, kc, panel, strip, ld, edge, ld, 0);
                    for (int64_t r = 0; r < h; r++)
                        for (int64_t l = 0; l < width; l++)
                            to[r * job->inner + l] = add ? to[r * job->inner + l] + edge[r * ld + l] : edge[r * ld + l];
                }
                panel += h * kc;
                row += h;
            }
        }
    }
}

/* One group's gradient, or the sums of its segments (segments, rows, inner). */
static int32_t weights_gathered(tl_context *ctx, const conv_view *v, const float *g, int64_t segments, int64_t segment,
                                float *sums)
{
    job_t job = {.v = v, .g = g, .sums = sums, .segments = segments, .segment = segment};
    job.inner = v->channels * v->gather.taps_size, job.positions = v->batch * v->gather.positions;
    job.row_tiles = tl_ceil_div(v->rows, TILE_ROWS / MR * MR);
    job.tile_rows = tl_ceil_div(v->rows, job.row_tiles);
    job.row_tiles = tl_ceil_div(v->rows, job.tile_rows);
    job.column_tiles = tl_ceil_div(job.inner, TILE_COLUMNS);
    job.tile_columns = tl_ceil_div(tl_ceil_div(job.inner, job.column_tiles), NR) * NR;
    job.column_tiles = tl_ceil_div(job.inner, job.tile_columns);
    job.worker_floats = GATHERED + tl_ceil_div((job.tile_rows + job.tile_columns) * KC + 2 * NR, 16) * 16;
    void *blocks;
    const int32_t status = tl_pool_alloc(ctx, sizeof(float) * (size_t)(tl_workers() * job.worker_floats), &blocks);
    if (status) return status;
    job.blocks = blocks;
    tl_parallel(job.row_tiles * job.column_tiles * segments, multiply_tile, &job);
    tl_pool_free(ctx, blocks);
    return status;
}

/* ---- both modes ----------------------------------------------------------------------------------------------------- */

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

static int32_t weights_fast(tl_context *ctx, const conv_view *v, int64_t groups, int64_t segment, const float *g,
                            float *gw)
{
    const int64_t inner = v->channels * v->gather.taps_size, positions = v->batch * v->gather.positions;
    const int64_t segments = tl_ceil_div(positions, segment), weights = v->rows * inner;
    job_f32 job;
    const double share = open_job_f32(&job, v, groups, g, gw);
    void *parts = NULL;
    int32_t status = TORCHLEAN_OK;
    if (segments > 1) status = tl_pool_alloc(ctx, sizeof(float) * (size_t)(segments * groups * weights), &parts);
    if (status) return status;
    if (share >= LEAST_SHARE) {
        status = run_f32(ctx, &job, KC, segment, parts);
        if (parts && !status) status = tl_column_sums(ctx, parts, 1, segments, groups * weights, 0, gw);
    } else {
        conv_view of = *v;
        for (int64_t i = 0; i < groups && !status; i++, of.source += v->channels * v->gather.source_size) {
            const float *of_g = g + i * v->rows * v->gather.positions;
            status = weights_gathered(ctx, &of, of_g, segments, segment, parts ? parts : gw + i * weights);
            if (parts && !status) status = tl_column_sums(ctx, parts, 1, segments, weights, 0, gw + i * weights);
        }
    }
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

static int32_t weights_chain(tl_context *ctx, const conv_view *v, int64_t groups, int64_t segment, const float *g,
                             float *gw)
{
    const int64_t inner = v->channels * v->gather.taps_size, positions = v->batch * v->gather.positions;
    const int64_t segments = tl_ceil_div(positions, segment);
    job_f64 job;
    if (open_job_f64(&job, v, groups, g, gw) < LEAST_SHARE_REPRODUCIBLE)
        return tl_conv_chain_weights(ctx, v, groups, g, gw);
    rounds_t x = {.gw = gw, .segments = segments, .weights = groups * v->rows * inner};
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

/* ---- taps outside the source ----------------------------------------------------------------------------------------
 * */

/* Leaves out of a view the taps that no position finds inside the source, and then the axes of one cell. */
static void trim_view(conv_view *v)
{
    tl_conv_gather *g = &v->gather;
    int64_t low[TL_CONV_RANK];
    int32_t rank = 0;
    tl_conv_trim(g, low);
    for (int32_t d = 0; d < g->rank; d++) {
        const int one = g->count[d] == 1 && g->taps[d] == 1 && g->source[d] == 1 && g->base[d] == 0;
        if (one && (rank || d + 1 < g->rank)) continue;
        g->count[rank] = g->count[d], g->taps[rank] = g->taps[d], g->source[rank] = g->source[d];
        g->step[rank] = g->step[d], g->base[rank] = g->base[d], g->tap_step[rank] = g->tap_step[d];
        v->source_stride[rank++] = v->source_stride[d];
    }
    g->rank = rank;
}

/* The gradient by fn; weights whose taps no position finds inside the source are 0 and take no time, where g is finite.
 * */
static int32_t run_trimmed(tl_context *ctx, const conv_view *v, int64_t groups, int64_t segment, const float *g,
                           float *gw,
                           int32_t (*fn)(tl_context *, const conv_view *, int64_t, int64_t, const float *, float *))
{
    conv_view part = *v, whole = *v;
    int64_t low[TL_CONV_RANK];
    int32_t odd = 0;
    trim_view(&part);
    tl_conv_trim(&whole.gather, low);
    const int64_t taps = part.gather.taps_size, all = v->gather.taps_size, kernels = groups * v->rows * v->channels;
    for (int64_t i = 0; taps < all && i < v->batch * v->target_rows * v->gather.positions; i++)
        odd |= !(fabsf(g[i]) < TL_INF);
    if (taps == all || odd) return fn(ctx, v, groups, segment, g, gw);
    void *some;
    int32_t status = tl_pool_alloc(ctx, sizeof(float) * (size_t)(kernels * taps), &some);
    if (!status) status = fn(ctx, &part, groups, segment, g, some);
    if (!status) memset(gw, 0, sizeof(float) * (size_t)(kernels * all));
    for (int64_t t = 0; t < taps && !status; t++) {
        float *to = gw + tl_conv_kernel_index(&whole.gather, t);
        for (int64_t i = 0; i < kernels; i++)
            to[i * all] = ((const float *)some)[i * taps + t];
    }
    tl_pool_free(ctx, some);
    return status;
}

int32_t tl_conv_weights(tl_context *ctx, const conv_view *v, int64_t groups, const float *g, float *gw)
{
    const int64_t inner = v->channels * v->gather.taps_size, positions = v->batch * v->gather.positions;
    return run_trimmed(ctx, v, groups, segment_of(v->rows, inner, positions), g, gw, weights_fast);
}

int32_t tl_conv_weights_reproducible(tl_context *ctx, const conv_view *v, int64_t groups, const float *g, float *gw)
{
    const int64_t positions = v->batch * v->gather.positions;
    return run_trimmed(ctx, v, groups, tl_chain_segment(positions), g, gw, weights_chain);
}
