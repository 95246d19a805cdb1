/* Convolution as a matrix product whose right factor is never stored: target (rows, positions) = w (rows, K)·gathered
 * source (K, positions), K = channels·taps, positions numbered through the whole batch.
 *
 *   before      the weights are packed once into panels for the micro-kernel of gemm.h, block by block
 *   task        a tile of at most 256 rows by 512 positions over all of K; tiles follow from the shape alone
 *   for k0      blocks of TL_GEMM_KC = 256 of K
 *   for strip   TL_GEMM_NR positions: kc rows are gathered into 32 KiB of L1 (conv_gather.h)
 *   for panel   the micro-kernel; sums go straight to the target where the strip is contiguous there, else through
 *               a buffer of one panel
 *
 * Summation order of an element: gemm.h's. One chain of fused multiply-adds per block of K, blocks added in order,
 * the bias last. Neither batch nor tile nor lane has a part in it. */
#include "core/threads.h"
#include "cpu/conv/gather.h"
#include "formula/integer.h"

enum { MR = TL_GEMM_MR, KC = TL_GEMM_KC, TILE_ROWS = 256, TILE_COLUMNS = 512, MANY_TASKS = 8 };
/* Tiles are halved for MANY_TASKS, down to this many multiply-adds. */
#define TASK_COST 1e6

typedef struct {
    const conv_view *v;
    const float *w, *bias;
    float *packed, *target, *gathered; /* a strip of each worker's */
    int64_t row_stride, channel_stride, inner, columns;
    int64_t blocks, row_tiles, tile_rows, column_tiles, tile_columns;
    int64_t region; /* floats of a packed (block, row tile); the packing may write a vector past its end */
    int dense;      /* consecutive positions are consecutive in the target */
} job_t;

static float *region_of(const job_t *job, int64_t block, int64_t tile)
{
    return job->packed + (block * job->row_tiles + tile) * job->region;
}

/* Task: one block of one row tile. Panels share the tile's rows out evenly. */
static void pack_weights(void *arg, int64_t task, TL_UNUSED int32_t worker)
{
    const job_t *job = arg;
    const tl_conv_gather *g = &job->v->gather;
    const int64_t block = task / job->row_tiles, tile = task % job->row_tiles, k0 = block * KC;
    const int64_t kc = tl_imin(job->inner - k0, KC);
    const int64_t rows = tl_imin(job->tile_rows, job->v->rows - tile * job->tile_rows);
    const int64_t panels = tl_ceil_div(rows, MR), height = rows / panels, taller = rows % panels;
    float *panel = region_of(job, block, tile);
    int64_t offset[KC];
    for (int64_t k = 0, known = -1, index = 0; k < kc; k++) { /* a kernel of one tap needs its index once */
        const int64_t t = (k0 + k) % g->taps_size;
        if (t != known) index = tl_conv_kernel_index(g, known = t);
        offset[k] = (k0 + k) / g->taps_size * job->channel_stride + index;
    }
    const int contiguous = offset[kc - 1] - offset[0] == kc - 1;
    for (int64_t q = 0, i = tile * job->tile_rows; q < panels; q++) {
        const int64_t h = height + (q < taller);
        const float *from = job->w + i * job->row_stride;
        if (contiguous)
            tl_gemm_pack_f32(panel, h, h, kc, from + offset[0], job->row_stride, 1);
        else
            for (int64_t k = 0; k < kc; k++)
                for (int64_t r = 0; r < h; r++)
                    panel[k * h + r] = from[r * job->row_stride + offset[k]];
        panel += h * kc;
        i += h;
    }
}

/* Adds a panel of sums to the target (or stores it), lane by lane where the strip's positions lie. */
static void scatter(const job_t *job, const conv_strip *strip, const float *sums, int64_t ld, int64_t row, int64_t rows,
                    int add, const float *bias)
{
    const tl_conv_gather *g = &job->v->gather;
    const int64_t step = g->to_step[g->rank - 1];
    for (int64_t r = 0; r < rows; r++)
        for (int32_t n = 0; n < strip->runs; n++) {
            const conv_run *run = &strip->run[n];
            const float *s = sums + r * ld + run->first;
            float *to = job->target + run->target + (row + r) * g->target_size;
            for (int64_t l = 0; l < run->length; l++) {
                float x = s[l];
                if (add) x = to[l * step] + x;
                to[l * step] = bias ? x + bias[row + r] : x;
            }
        }
}

/* Task: a tile of rows and positions; row tiles are fastest, so neighbours share what they gather. */
static void multiply_tile(void *arg, int64_t task, int32_t worker)
{
    const job_t *job = arg;
    const conv_view *v = job->v;
    const int64_t tile = task % job->row_tiles, q0 = task / job->row_tiles * job->tile_columns;
    const int64_t row0 = tile * job->tile_rows, rows = tl_imin(job->tile_rows, v->rows - row0);
    const int64_t q1 = tl_imin(q0 + job->tile_columns, job->columns);
    const int64_t panels = tl_ceil_div(rows, MR), height = rows / panels, taller = rows % panels;
    float *gathered = job->gathered + worker * KC * NR;
    _Alignas(64) float edge[MR * NR];
    conv_strip strip;
    for (int64_t block = 0; block < job->blocks && !(block && tl_interrupted()); block++) {
        const int64_t k0 = block * KC, kc = tl_imin(job->inner - k0, KC);
        const float *bias = block + 1 == job->blocks ? job->bias : 0;
        for (int64_t q = q0; q < q1; q += NR) {
            const int64_t width = tl_imin(q1 - q, NR), vectors = width > LANES ? 2 : 1, ld = vectors * LANES;
            const float *panel = region_of(job, block, tile);
            open_strip(v, q, width, &strip);
            gather_rows(v, &strip, vectors, k0, kc, gathered, ld);
            const int direct = job->dense && strip.image >= 0 && width == ld;
            for (int64_t p = 0, row = row0; p < panels; p++) {
                const int64_t h = height + (p < taller);
                if (direct) {
                    float *to = job->target + strip.run[0].target + row * v->gather.target_size;
                    tl_gemm_panel_f32(h, vectors, kc, panel, gathered, ld, to, v->gather.target_size, block > 0);
                    for (int64_t r = 0; bias && r < h; r++)
                        for (int64_t l = 0; l < ld; l++)
                            to[r * v->gather.target_size + l] += bias[row + r];
                } else {
                    tl_gemm_panel_f32(h, vectors, kc, panel, gathered, ld, edge, ld, 0);
                    scatter(job, &strip, edge, ld, row, h, block > 0, bias);
                }
                panel += h * kc;
                row += h;
            }
        }
    }
}

int32_t tl_conv_product(tl_context *ctx, const conv_view *v, const float *w, int64_t row_stride, int64_t channel_stride,
                        const float *bias, float *target)
{
    const tl_conv_gather *g = &v->gather;
    job_t job = {.v = v, .w = w, .bias = bias, .target = target, .dense = 1};
    job.row_stride = row_stride, job.channel_stride = channel_stride;
    job.inner = v->channels * g->taps_size;
    job.columns = v->batch * g->positions;
    if (job.columns == 0) return TORCHLEAN_OK;
    for (int32_t d = 0; d < g->rank; d++)
        job.dense &= g->count[d] == g->target[d];
    job.blocks = tl_ceil_div(job.inner, KC);
    job.row_tiles = tl_ceil_div(v->rows, TILE_ROWS / MR * MR);
    job.tile_rows = tl_ceil_div(v->rows, job.row_tiles);
    job.row_tiles = tl_ceil_div(v->rows, job.tile_rows);
    job.tile_columns = tl_imin(TILE_COLUMNS, tl_ceil_div(job.columns, NR) * NR);
    while (job.tile_columns > NR && job.row_tiles * tl_ceil_div(job.columns, job.tile_columns) < MANY_TASKS &&
           (double)job.tile_rows * (double)job.inner * (double)job.tile_columns > 2 * TASK_COST)
        job.tile_columns = tl_ceil_div(job.tile_columns / 2, NR) * NR;
    job.column_tiles = tl_ceil_div(job.columns, job.tile_columns);
    job.region = tl_ceil_div(job.tile_rows * tl_imin(job.inner, KC) + LANES, 16) * 16;
    const int64_t weights = job.blocks * job.row_tiles * job.region;
    void *packed;
    const int32_t status = tl_pool_alloc(ctx, sizeof(float) * (size_t)(weights + tl_workers() * KC * NR), &packed);
    if (status) return status;
    job.packed = packed;
    job.gathered = job.packed + weights;
    tl_parallel(job.blocks * job.row_tiles, pack_weights, &job);
    tl_parallel(job.row_tiles * job.column_tiles, multiply_tile, &job);
    tl_pool_free(ctx, packed);
    return TORCHLEAN_OK;
}
