/* Packed, blocked matrix product in float; the micro-kernels of both precisions are in kernels.h.
 *
 *   task      one tile of C, at most 256 rows by 512 columns, over the whole of n; or, for small products, several
 *             whole products of the batch. Tiles follow from the shape alone and tasks share nothing, so no task waits
 *             for another and any number of workers gives the same bits.
 *   for k0    blocks of KC = 256: the rows of A are packed into panels of MR rows, a block that stays in L2
 *   for j0    strips of NR columns: the strip of B is packed (KC·NR elements, 32 KiB, in L1) and used at once for
 *             every panel
 *   for i0    panels of MR rows: the micro-kernel
 *   for k     MR·NR sums in registers; a step loads two vectors of B and broadcasts MR elements of A
 *
 * MR x NR is 14 x 32 floats or 14 x 16 doubles with AVX-512 (28 accumulators, 2 vectors of B, 1 broadcast of the 32 registers), 6
 * x 16 or 6 x 8 with AVX2 (12 + 2 + 1 of 16). A tile's rows are shared out evenly over its panels, and there is a kernel for
 * every number of rows, so 32 rows are 11 + 11 + 10 rather than 14 + 14 + 4. A last strip of at most one vector has kernels of
 * that width.
 *
 * Summation order: lanes run along columns, never along k, so each element has one chain of fused multiply-adds per block of KC,
 * in increasing k, starting from 0; blocks are added to C in order (gemm.h). Tile, panel and lane decide where an element is
 * computed, not how. Unused lanes hold zeros or copies of other lanes and are never stored.
 *
 * A product with few columns is computed transposed, which is only a change of strides. One row times a B with contiguous rows
 * streams B and keeps its sums in L1 (row_times_matrix); with contiguous columns, it transposes them in registers
 * (row_times_transpose). A small C with a long n runs its blocks of KC as a batch and adds them up in order (split_inner). */
#include <string.h>

#include "core/threads.h"
#include "cpu/blocks.h"
#include "cpu/linalg/gemm.h"
#include "cpu/vector64.h"
#include "formula/integer.h"

/* A block of A takes 256 KiB: it shares L2 with the strip of B and often a second hardware thread. */
#define TILE_ROWS 256
#define TILE_COLUMNS 512
#define TILE_COLUMNS_ONE_ROW 4096
/* A product no larger than a square of this, of a long inner dimension, is cut along it; neither side is four times longer, as there
 * would be tiles enough. */
#define TILE_SMALL 128
/* With fewer tasks than MIN_TASKS, or than TASKS_PER_WORKER for each worker, tiles are halved, down to TASK_COST multiply-adds (about 15 microseconds of one core). */
#define MIN_TASKS 8
#define TASKS_PER_WORKER 2
#define TASK_COST 1e6
/* Where B has contiguous rows and this few elements it is read in place: packing would not be paid back. */
#define DIRECT_CELLS 4096
#define DIRECT_CELLS_ONE_PANEL 131072
#define MR TL_GEMM_MR

#define fma_f64 tl_vec64_fma
#define REAL float
#define FN(name) name##_f32
#define VL TL_GEMM_LANES
#include "cpu/linalg/kernels.h"
KERNELS(panel)
#undef REAL
#undef FN
#undef VL

#define REAL double
#define FN(name) name##_f64
#define VL (TL_GEMM_LANES / 2)
#include "cpu/linalg/kernels.h"
KERNELS(panel)

void tl_gemm_panel_f64(int64_t rows, int64_t vectors, int64_t kc, const double *a, const double *b, int64_t ldb,
                       double *c, int64_t ldc, int mode)
{
    panel_kernels_f64[rows][vectors - 1](kc, a, b, ldb, NULL, NULL, c, ldc, mode);
}

enum { LANES = TL_GEMM_LANES, NR = TL_GEMM_NR, KC = TL_GEMM_KC };

/* Columns 0 .. n - 1 of LANES rows, row r at src + off[r], become vectors. A row is read as one whole cache line, because with a
 * large power of two between rows all the lines of a block compete for one set of L1. */
INLINE void transpose(const float *src, const int64_t *off, int64_t n, tl_vec *out)
{
#pragma GCC unroll 16
    for (int l = 0; l < LANES; l++)
        out[l] = n == LANES ? tl_vec_load(src + off[l]) : tl_load_first(src + off[l], n);
    TL_TURN(out);
}

/* Packs lanes 0 .. w-1 of kc steps: dst[k*width + l] = src[l*lane + k*step], where lane or step is 1. When w = width, whole
 * vectors are stored and may run LANES - 1 elements past a row: the next rows, then the next panel, overwrite that; the buffer
 * has room after the last. Where the width has two vectors the second is moved back to end with the row. */
void tl_gemm_pack_f32(float *restrict dst, int64_t width, int64_t w, int64_t kc, const float *restrict src,
                      int64_t lane, int64_t step)
{
    if (w < width) memset(dst, 0, (size_t)(width * kc) * sizeof *dst);
    if (width == 1) {
        for (int64_t k = 0; k < kc; k++)
            dst[k] = src[k * step];
        return;
    }
    if (lane == 1) {
        if (w >= LANES) {
            for (int64_t k = 0; k < kc; k++, dst += width, src += step) {
                tl_vec_store(dst, tl_vec_load(src));
                tl_vec_store(dst + w - LANES, tl_vec_load(src + w - LANES));
            }
        } else {
            for (int64_t k = 0; k < kc; k++, dst += width, src += step)
                tl_vec_store(dst, tl_load_first(src, w));
        }
        return;
    }
    int64_t k = 0, off[2][LANES];
    tl_vec t[LANES];
    for (int64_t l = 0; l < LANES; l++) {
        off[0][l] = tl_imin(l, w - 1) * lane;
        off[1][l] = tl_imax(w - LANES + l, 0) * lane;
    }
    for (; k + LANES <= kc; k += LANES)
        for (int64_t half = 0; half < (w > LANES ? 2 : 1); half++) {
            float *to = dst + k * width + half * (w - LANES);
            transpose(src + k, off[half], LANES, t);
#pragma GCC unroll 16
            for (int i = 0; i < LANES; i++)
                tl_vec_store(to + i * width, t[i]);
        }
    for (int64_t half = 0; k < kc && half < (w > LANES ? 2 : 1); half++) {
        transpose(src + k, off[half], kc - k, t);
        for (int64_t i = 0; i < kc - k; i++)
            tl_vec_store(dst + (k + i) * width + half * (w - LANES), t[i]);
    }
}

/* What the tasks of one call share. */
typedef struct {
    tl_gemm_args g;
    const float *a, *b, *bias;
    float *c, *blocks;
    tl_gemm_tiles tiles;
    int64_t a_elements, strip_elements, worker_elements;
    int direct;
} job_t;

/* C[rows, columns] = (or +=) tile, the latter with rows NR apart. */
static void store_tile(const float *tile, int64_t rows, int64_t columns, float *c, int64_t rsc, int64_t csc, int add)
{
    if (csc != 1) {
        for (int64_t j = 0; j < columns; j++)
            for (int64_t i = 0; i < rows; i++) {
                float *to = c + i * rsc + j * csc;
                *to = add ? *to + tile[i * NR + j] : tile[i * NR + j];
            }
        return;
    }
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j += LANES) {
            int64_t lanes = tl_imin(columns - j, LANES);
            tl_vec v = tl_vec_load(tile + i * NR + j);
            float *to = c + i * rsc + j;
            if (add) v = tl_load_first(to, lanes) + v;
            tl_store_first(to, v, lanes);
        }
}

/* sums[j] += x[r]·row r of B, one after the other, for R rows. */
INLINE void add_rows(const int R, const job_t *job, const float *x, const float *row, int64_t span, float *sums)
{
    int64_t j = 0;
    for (; j + LANES <= span; j += LANES) {
        tl_vec s = tl_vec_load(sums + j);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++)
            s = tl_vec_fma(x[r * job->g.csa], tl_vec_load(row + r * job->g.rsb + j), s);
        tl_vec_store(sums + j, s);
    }
    if (j == span) return;
    tl_vec s = tl_vec_load(sums + j);
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
        s = tl_vec_fma(x[r * job->g.csa], tl_load_first(row + r * job->g.rsb + j, span - j), s);
    tl_vec_store(sums + j, s);
}

/* One row of A times contiguous rows of B: eight rows of B at a time pass over sums kept in L1, then one. */
static void row_times_matrix(const job_t *job, const float *a, const float *b, float *c, int64_t columns)
{
    enum { SPAN = 8192 / sizeof(float) };
    _Alignas(64) float sums[SPAN + LANES];
    for (int64_t j0 = 0; j0 < columns; j0 += SPAN) {
        int64_t span = tl_imin(columns - j0, SPAN);
        for (int64_t k0 = 0; k0 < job->g.n && !(k0 && tl_interrupted()); k0 += KC) {
            int64_t kc = tl_imin(job->g.n - k0, KC);
            memset(sums, 0, sizeof(float) * (size_t)(span + LANES));
            for (int64_t k = 0, rows; k < kc; k += rows) {
                const float *row = b + (k0 + k) * job->g.rsb + j0, *x = a + (k0 + k) * job->g.csa;
                rows = kc - k >= 8 ? 8 : 1;
                if (rows == 8)
                    add_rows(8, job, x, row, span, sums);
                else
                    add_rows(1, job, x, row, span, sums);
            }
            for (int64_t j = 0; j < span; j++)
                c[j0 + j] = k0 > 0 ? c[j0 + j] + sums[j] : sums[j];
        }
    }
}

/* One row of A times contiguous columns of B, two vectors of columns at a time. */
static void row_times_transpose(const job_t *job, const float *a, const float *b, float *c, int64_t columns)
{
    for (int64_t j = 0; j < columns; j += NR) {
        int64_t w = tl_imin(columns - j, NR), off[NR];
        for (int64_t l = 0; l < NR; l++)
            off[l] = (j + tl_imin(l, w - 1)) * job->g.csb;
        for (int64_t k0 = 0; k0 < job->g.n && !(k0 && tl_interrupted()); k0 += KC) {
            int64_t kc = tl_imin(job->g.n - k0, KC), k = 0;
            const float *x = a + k0 * job->g.csa, *from = b + k0;
            tl_vec sum[2] = {{0}, {0}}, t[LANES];
            _Alignas(64) float sums[NR];
            for (; k + LANES <= kc; k += LANES)
                for (int64_t half = 0; half < (w > LANES ? 2 : 1); half++) {
                    transpose(from + k, off + half * LANES, LANES, t);
#pragma GCC unroll 16
                    for (int i = 0; i < LANES; i++)
                        sum[half] = tl_vec_fma(x[(k + i) * job->g.csa], t[i], sum[half]);
                }
            for (int64_t half = 0; k < kc && half < (w > LANES ? 2 : 1); half++) {
                transpose(from + k, off + half * LANES, kc - k, t);
                for (int64_t i = 0; i < kc - k; i++)
                    sum[half] = tl_vec_fma(x[(k + i) * job->g.csa], t[i], sum[half]);
            }
            tl_vec_store(sums, sum[0]);
            tl_vec_store(sums + LANES, sum[1]);
            store_tile(sums, 1, w, c + j * job->g.csc, 0, job->g.csc, k0 > 0);
        }
    }
}

static void add_bias(const job_t *job, float *c, const float *bias, int64_t rows, int64_t columns)
{
    for (int64_t i = 0; i < rows; i++) {
        float *restrict row = c + i * job->g.rsc;
        const float *restrict add = bias + i * job->g.bias_rows;
        if (job->g.csc == 1 && job->g.bias_columns == 1)
            for (int64_t j = 0; j < columns; j++)
                row[j] += add[j];
        else if (job->g.csc == 1 && job->g.bias_columns == 0)
            for (int64_t j = 0; j < columns; j++)
                row[j] += *add;
        else
            for (int64_t j = 0; j < columns; j++)
                row[j * job->g.csc] += add[j * job->g.bias_columns];
    }
}

/* A panel of h rows times w columns of B, whose rows have whole vectors, ldb apart. `bias`, that of the first row and column, is added
 * to sums that are complete, or is NULL. */
INLINE void multiply_panel(const job_t *job, int64_t kc, const float *panel, const float *b, int64_t ldb, float *c,
                           int64_t h, int64_t w, int add, const float *bias)
{
    int64_t vectors = w > LANES ? 2 : 1;
    kernel_f32 kernel = panel_kernels_f32[h][vectors - 1];
    if (job->g.csc == 1 && w == vectors * LANES) {
        kernel(kc, panel, b, ldb, NULL, NULL, c, job->g.rsc, add);
    } else {
        _Alignas(64) float edge[MR * NR];
        kernel(kc, panel, b, ldb, NULL, NULL, edge, NR, 0);
        store_tile(edge, h, w, c, job->g.rsc, job->g.csc, add);
    }
    if (bias) add_bias(job, c, bias, h, w);
}

/* A tile of C at most TILE_ROWS high, over all of n >= 1; a_block and a strip of B are this worker's. Each strip meets
 * all panels; where B is read in place each panel meets all strips, so that rows of C are written from end to end. A bias is added to
 * what has just been stored. */
static void multiply_tile(const job_t *job, const float *a, const float *b, float *c, const float *bias, int64_t rows,
                          int64_t columns, float *a_block, float *strip)
{
    const int64_t panels = tl_ceil_div(rows, MR), height = rows / panels, taller = rows % panels;
    const int64_t strips = tl_ceil_div(columns, NR), rest = columns % NR == LANES ? 0 : columns % NR,
                  last = columns - rest;
    for (int64_t k0 = 0; k0 < job->g.n && !(k0 && tl_interrupted()); k0 += KC) {
        const int64_t kc = tl_imin(job->g.n - k0, KC);
        const float *const last_bias = k0 + kc == job->g.n ? bias : NULL, *const from = b + k0 * job->g.rsb;
        for (int64_t q = 0; q < panels; q++) {
            const int64_t i = q * height + tl_imin(q, taller), h = height + (q < taller);
            tl_gemm_pack_f32(a_block + i * kc, h, h, kc, a + i * job->g.rsa + k0 * job->g.csa, job->g.rsa, job->g.csa);
        }
        if (job->direct && rest)
            tl_gemm_pack_f32(strip, rest > LANES ? NR : LANES, rest, kc, from + last, 1, job->g.rsb);
        for (int64_t t = 0; t < panels * strips; t++) {
            const int64_t q = job->direct ? t / strips : t % panels, j = (job->direct ? t % strips : t / panels) * NR;
            const int64_t w = tl_imin(columns - j, NR), wide = w > LANES ? NR : LANES;
            const int64_t i = q * height + tl_imin(q, taller), h = height + (q < taller);
            const int in_place = job->direct && w == wide;
            if (!job->direct && q == 0)
                tl_gemm_pack_f32(strip, wide, w, kc, from + j * job->g.csb, job->g.csb, job->g.rsb);
            multiply_panel(job, kc, a_block + i * kc, in_place ? from + j : strip, in_place ? job->g.rsb : wide,
                           c + i * job->g.rsc + j * job->g.csc, h, w, k0 > 0,
                           last_bias ? last_bias + i * job->g.bias_rows + j * job->g.bias_columns : NULL);
        }
    }
}

/* An inner dimension of 1: rows of C from end to end. */
static void outer_product(const job_t *job, const float *a, const float *restrict b, float *c, int64_t rows,
                          int64_t columns)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++)
            c[i * job->g.rsc + j] = fmaf(a[i * job->g.rsa], b[j], 0);
}

/* Task t: a tile of one product (column tiles fastest), or products_per_task whole products. */
static void task(void *arg, int64_t t, int32_t worker)
{
    const job_t *job = arg;
    const tl_gemm_tiles *of = &job->tiles;
    int64_t tiles = of->down * of->across, tile = t % tiles;
    int64_t first = t / tiles * of->products, last = tl_imin(first + of->products, job->g.batch);
    int64_t i = tile / of->across * of->rows, j = tile % of->across * of->columns;
    int64_t rows = tl_imin(job->g.m - i, of->rows), columns = tl_imin(job->g.p - j, of->columns);
    float *a_block = job->blocks + worker * job->worker_elements, *strip = a_block + job->a_elements;
    for (int64_t q = first; q < last; q++) {
        const float *a = job->a + q * job->g.sa + i * job->g.rsa, *b = job->b + q * job->g.sb + j * job->g.csb;
        const float *bias = job->bias ? job->bias + i * job->g.bias_rows + j * job->g.bias_columns : NULL;
        float *c = job->c + q * job->g.sc + i * job->g.rsc + j * job->g.csc;
        if (rows == 1 && job->g.csb == 1 && job->g.csc == 1)
            row_times_matrix(job, a, b, c, columns);
        else if (job->g.n == 1 && job->g.csb == 1 && job->g.csc == 1)
            outer_product(job, a, b, c, rows, columns);
        else if (rows == 1 && job->g.rsb == 1)
            row_times_transpose(job, a, b, c, columns);
        else if (job->g.n > 0) {
            multiply_tile(job, a, b, c, bias, rows, columns, a_block, strip);
            continue;
        }
        for (int64_t e = 0; job->g.n == 0 && e < rows * columns; e++)
            c[e / columns * job->g.rsc + e % columns * job->g.csc] = 0;
        if (bias) add_bias(job, c, bias, rows, columns);
    }
}

int64_t tl_gemm_cut(tl_gemm_tiles *t, int64_t batch, int64_t m, int64_t p, int64_t strip, double cost, double task_cost,
                    int64_t wanted)
{
    t->down = tl_ceil_div(m, t->rows), t->across = tl_ceil_div(p, t->columns);
    t->products = cost < task_cost ? (int64_t)(task_cost / (cost > 1 ? cost : 1)) : 1;
    for (;;) {
        const int64_t tiles = t->down * t->across;
        t->rows = tl_ceil_div(tl_ceil_div(m, t->down), MR) * MR;
        t->columns = tl_ceil_div(tl_ceil_div(p, t->across), strip) * strip;
        if (batch * tiles >= wanted || cost / (double)tiles < 2 * task_cost) break;
        if (t->columns > strip && t->columns >= t->rows)
            t->across *= 2;
        else if (t->rows > MR)
            t->down *= 2;
        else
            break;
    }
    t->down = tl_ceil_div(m, t->rows), t->across = tl_ceil_div(p, t->columns);
    return t->down * t->across * tl_ceil_div(batch, t->products);
}

static int32_t product(tl_context *ctx, const tl_gemm_args *g, const float *A, const float *B, float *C)
{
    job_t job = {.g = *g, .a = A, .b = B, .c = C, .bias = g->bias};
    if (4 * g->p <= 3 * LANES && g->p < g->m) /* the lanes run along the rows of C */
        job.g = tl_gemm_transposed(g), job.a = B, job.b = A;
    const int64_t wanted = tl_imax(MIN_TASKS, TASKS_PER_WORKER * tl_workers());
    const double m = (double)job.g.m, n = (double)job.g.n, p = (double)job.g.p, cost = m * n * p + 16 * n * (m + p);
    job.tiles = (tl_gemm_tiles){.rows = TILE_ROWS, .columns = job.g.m == 1 ? TILE_COLUMNS_ONE_ROW : TILE_COLUMNS};
    int64_t tasks = tl_gemm_cut(&job.tiles, job.g.batch, job.g.m, job.g.p, NR, cost, TASK_COST, wanted);
    int64_t kc = tl_imin(job.g.n, KC), rows = tl_imin(job.g.m, job.tiles.rows);
    int64_t cells = job.g.n * tl_imin(job.g.p, job.tiles.columns);
    job.direct = job.g.csb == 1 && (cells <= DIRECT_CELLS || (rows <= MR && cells <= DIRECT_CELLS_ONE_PANEL));
    job.a_elements = tl_ceil_div(rows * kc + LANES, 64) * 64;
    job.strip_elements = tl_ceil_div(NR * kc + LANES, 64) * 64;
    job.worker_elements = job.a_elements + job.strip_elements;
    enum { ON_STACK = 15360 / sizeof(float) };
    if (tasks == 1 && job.worker_elements <= ON_STACK) {
        _Alignas(64) float blocks[ON_STACK];
        job.blocks = blocks;
        task(&job, 0, 0);
        return 0;
    }
    void *blocks;
    int64_t workers = tasks == 1 ? 1 : tl_workers();
    int32_t status = tl_pool_alloc(ctx, (size_t)(workers * job.worker_elements) * sizeof(float), &blocks);
    if (status) return status;
    job.blocks = blocks;
    if (tasks <= 2 * wanted) /* in turn, as the last tiles are smaller */
        tl_parallel_in_order(tasks, tl_workers(), task, &job);
    else
        tl_parallel(tasks, task, &job);
    tl_pool_free(ctx, blocks);
    return 0;
}

/* The sums of a round of blocks, added to C in order. */
typedef struct {
    const tl_gemm_args *g;
    const float *sums, *bias;
    float *c;
    int64_t blocks, rows_per_task;
    int accumulate;
} round_t;

static void add_blocks(void *arg, int64_t t, TL_UNUSED int32_t worker)
{
    const round_t *round = arg;
    const tl_gemm_args *g = round->g;
    int64_t first = t * round->rows_per_task, last = tl_imin(first + round->rows_per_task, g->m);
    for (int64_t i = first; i < last; i++) {
        float *restrict c = round->c + i * g->rsc;
        for (int64_t block = 0; block < round->blocks; block++) {
            const float *restrict s = round->sums + (block * g->m + i) * g->p;
            if (block == 0 && !round->accumulate)
                memcpy(c, s, sizeof(float) * (size_t)g->p);
            else
                for (int64_t j = 0; j < g->p; j++)
                    c[j] += s[j];
        }
        for (int64_t j = 0; round->bias && j < g->p; j++)
            c[j] += round->bias[i * g->bias_rows + j * g->bias_columns];
    }
}

/* One small C with a long inner dimension: its blocks of KC are a batch of products, ROUND of them at a time. */
static int32_t split_inner(tl_context *ctx, const tl_gemm_args *g, const float *A, const float *B, float *C)
{
    enum { ROUND = 64 };
    int64_t blocks = tl_ceil_div(g->n, KC);
    void *sums;
    int32_t status = tl_pool_alloc(ctx, sizeof(float) * (size_t)(tl_imin(blocks, ROUND) * g->m * g->p), &sums);
    if (status) return status;
    round_t round = {.g = g, .sums = sums, .c = C, .rows_per_task = tl_ceil_div(1024, g->p)};
    for (int64_t first = 0; first < blocks && !status && !tl_interrupted(); first += ROUND) {
        round.blocks = tl_imin(ROUND, blocks - first);
        int64_t rest = tl_imin(g->n - first * KC, round.blocks * KC), whole = rest / KC;
        tl_gemm_args part = *g;
        part.batch = whole, part.n = KC, part.rsc = g->p, part.bias = 0;
        part.sa = KC * g->csa, part.sb = KC * g->rsb, part.sc = g->m * g->p;
        const float *a = A + first * part.sa, *b = B + first * part.sb;
        if (whole) status = product(ctx, &part, a, b, sums);
        if (rest > whole * KC && !status) {
            part.batch = 1, part.n = rest - whole * KC;
            status = product(ctx, &part, a + whole * part.sa, b + whole * part.sb, (float *)sums + whole * part.sc);
        }
        if (!status) {
            round.bias = first + ROUND >= blocks ? g->bias : 0;
            tl_parallel(tl_ceil_div(g->m, round.rows_per_task), add_blocks, &round);
            round.accumulate = 1;
        }
    }
    tl_pool_free(ctx, sums);
    return status;
}

int32_t tl_gemm_f32(tl_context *ctx, const tl_gemm_args *g, const float *A, const float *B, float *C)
{
    tl_gemm_args args = *g;
    if (args.batch == 0 || args.m == 0 || args.p == 0) return 0;
    if (args.sb == 0 && args.sa == args.m * args.rsa && args.sc == args.m * args.rsc && !args.bias_rows) {
        args.m *= args.batch;
        args.batch = 1;
    }
    /* One sum is a chain that waits for itself; side by side, its blocks and what is left of one take the time of two. */
    const int64_t long_from = args.m * args.p == 1 ? 4 * KC : 8 * KC;
    if (args.batch == 1 && args.n >= long_from && args.m * args.p <= TILE_SMALL * TILE_SMALL &&
        tl_imax(args.m, args.p) <= 4 * TILE_SMALL)
        return split_inner(ctx, &args, A, B, C);
    return product(ctx, &args, A, B, C);
}
