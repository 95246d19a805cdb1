/* The gradient of a convolution's weights: gw (rows, K) = g (rows, batch·positions)·gathered sourceᵀ, with K = channels·taps.
 *
 *   task        a tile of gw, at most 256 rows by 256 columns, over one segment of the positions; segments are cut only
 *               where gw alone gives too few tasks, and follow from the shape alone
 *   for q0      blocks of TL_GEMM_KC = 256 positions: g is packed into panels; the tile's rows of the gathered source
 *               are written to L2 (conv_gather.h), positions contiguous as they are in memory
 *   for strip   TL_GEMM_NR of those rows are transposed in registers into the strip
 *   for panel   the micro-kernel
 *
 * Summation order: one chain of fused multiply-adds per block, blocks added in order; with several segments their sums are added
 * by the column tree. */
#include "core/threads.h"
#include "cpu/conv/gather.h"
#include "cpu/sum_tree.h"
#include "formula/integer.h"

enum {
    MR = TL_GEMM_MR,
    KC = TL_GEMM_KC,
    TILE_ROWS = 256,
    TILE_COLUMNS = 256,
    MANY_TASKS = 16,
    SEGMENT = 8 * KC,
    STRIP = KC * NR + 16
};

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
    float *strip = job->blocks + worker * job->worker_floats, *packed = strip + STRIP;
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

int32_t tl_conv_weights(tl_context *ctx, const conv_view *v, const float *g, float *gw)
{
    job_t job = {
        .v = v, .g = g, .inner = v->channels * v->gather.taps_size, .positions = v->batch * v->gather.positions};
    job.row_tiles = tl_ceil_div(v->rows, TILE_ROWS / MR * MR);
    job.tile_rows = tl_ceil_div(v->rows, job.row_tiles);
    job.row_tiles = tl_ceil_div(v->rows, job.tile_rows);
    job.column_tiles = tl_ceil_div(job.inner, TILE_COLUMNS);
    job.tile_columns = tl_ceil_div(tl_ceil_div(job.inner, job.column_tiles), NR) * NR;
    job.column_tiles = tl_ceil_div(job.inner, job.tile_columns);
    const int64_t tiles = job.row_tiles * job.column_tiles;
    job.segments = tl_imax(1, tl_imin(tl_ceil_div(MANY_TASKS, tiles), job.positions / SEGMENT));
    job.segment = tl_ceil_div(tl_ceil_div(job.positions, job.segments), KC) * KC;
    job.segments = tl_ceil_div(job.positions, job.segment);
    job.worker_floats = STRIP + tl_ceil_div((job.tile_rows + job.tile_columns) * KC + 2 * NR, 16) * 16;
    void *blocks, *sums = 0;
    int32_t status = tl_pool_alloc(ctx, sizeof(float) * (size_t)(tl_workers() * job.worker_floats), &blocks);
    if (status) return status;
    if (job.segments > 1)
        status = tl_pool_alloc(ctx, sizeof(float) * (size_t)(job.segments * v->rows * job.inner), &sums);
    if (!status) {
        job.blocks = blocks;
        job.sums = sums ? sums : gw;
        tl_parallel(tiles * job.segments, multiply_tile, &job);
        if (sums) status = tl_column_sums(ctx, sums, 1, job.segments, v->rows * job.inner, 0, gw);
    }
    tl_pool_free(ctx, sums);
    tl_pool_free(ctx, blocks);
    return status;
}
