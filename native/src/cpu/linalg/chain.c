/* Packed, blocked products of float64 chains. A task is a tile of C over all of n, or over one segment of n where there are few
 * tiles; its sums stay in a float64 tile of the worker's, and the micro-kernel of gemm.c goes on with them from one block of
 * KC terms to the next. Packing widens float32 factors: the product of two is exact, so a fused multiply-add rounds once.
 *
 *   for q     segments: the tile begins anew, and is added to the total afterwards
 *   for k0    blocks of KC = 256: the rows of A are packed into panels of MR rows, in L2
 *   for j0    strips of NR columns of B, packed, in L1
 *   for i0    panels: the micro-kernel, which loads and stores whole vectors of the tile, whose rows have room for them */
#include <string.h>

#include "core/threads.h"
#include "cpu/linalg/chain.h"
#include "formula/chain.h"
#include "formula/integer.h"

#define KC TL_GEMM_KC
#define MR TL_GEMM_MR
#define LANES (TL_GEMM_LANES / 2)
#define NR (2 * LANES)

/* A block of A and the tile take 256 KiB each: they share L2. */
#define TILE_ROWS 128
#define TILE_COLUMNS 256
/* With fewer tasks than this, tiles are halved, down to TASK_COST multiply-adds. */
#define MANY_TASKS 8
#define TASK_COST 5e5

typedef struct job job;
/* Packs lanes 0 .. w-1 of kc steps as float64: dst[k*width + l] = src[l*lane + k*step], 0 for the lanes from w on. */
typedef void (*packer)(double *dst, int64_t width, int64_t w, int64_t kc, const void *src, int64_t at, int64_t lane,
                       int64_t step);
/* Row i of a tile, `columns` sums, plus the bias: elements of C from `at` on. */
typedef void (*finisher)(const job *x, const double *sums, int64_t columns, int64_t at, int64_t bias_at);

struct job {
    const void *a, *b, *bias;
    void *c;
    packer pack;
    finisher finish;
    int64_t batch, m, n, p, rsa, csa, rsb, csb, rsc, csc, sa, sb, sc, bias_rows, bias_columns;
    int64_t segment, segments, tile_rows, tile_columns, row_tiles, column_tiles, products_per_task;
    int64_t a_elements, strip_elements, tile_elements, worker_elements;
    double *blocks; /* worker_elements for each worker: block of A, strip of B, tile, total */
    double *parts;  /* where segments are tasks: their sums, m·p each; else NULL */
};

#define TYPE(NAME, REAL)                                                                                               \
    static void pack_##NAME(double *restrict dst, int64_t width, int64_t w, int64_t kc, const void *src, int64_t at,  \
                            int64_t lane, int64_t step)                                                               \
    {                                                                                                                  \
        const REAL *restrict from = (const REAL *)src + at;                                                           \
        if (w < width) memset(dst, 0, (size_t)(width * kc) * sizeof *dst);                                            \
        if (lane == 1)                                                                                                \
            for (int64_t k = 0; k < kc; k++)                                                                          \
                for (int64_t l = 0; l < w; l++)                                                                       \
                    dst[k * width + l] = (double)from[k * step + l];                                                  \
        else                                                                                                          \
            for (int64_t l = 0; l < w; l++)                                                                           \
                for (int64_t k = 0; k < kc; k++)                                                                      \
                    dst[k * width + l] = (double)from[l * lane + k * step];                                           \
    }                                                                                                                  \
                                                                                                                       \
    static void finish_##NAME(const job *x, const double *sums, int64_t columns, int64_t at, int64_t bias_at)         \
    {                                                                                                                  \
        REAL *c = (REAL *)x->c + at;                                                                                  \
        const REAL *bias = x->bias ? (const REAL *)x->bias + bias_at : NULL;                                          \
        for (int64_t j = 0; j < columns; j++)                                                                         \
            c[j * x->csc] = (REAL)(bias ? sums[j] + (double)bias[j * x->bias_columns] : sums[j]);                     \
    }
TYPE(f32, float)
TYPE(f64, double)

/* The sums of a segment for a tile: A and B from `a` and `b` on. */
static void multiply_segment(const job *x, int64_t a, int64_t b, int64_t rows, int64_t columns, int64_t from,
                             int64_t to, double *block, double *tile)
{
    double *strip = block + x->a_elements;
    const int64_t panels = tl_ceil_div(rows, MR), height = rows / panels, taller = rows % panels, ld = x->tile_columns;
    if (from == to) memset(tile, 0, (size_t)(rows * ld) * sizeof *tile);
    for (int64_t k0 = from; k0 < to && !(k0 > from && tl_interrupted()); k0 += KC) {
        const int64_t kc = tl_imin(to - k0, KC);
        double *panel = block;
        for (int64_t q = 0, i = 0; q < panels; q++) {
            const int64_t h = height + (q < taller);
            x->pack(panel, h, h, kc, x->a, a + i * x->rsa + k0 * x->csa, x->rsa, x->csa);
            panel += h * kc;
            i += h;
        }
        for (int64_t j = 0; j < columns; j += NR) {
            const int64_t w = tl_imin(columns - j, NR), vectors = w > LANES ? 2 : 1;
            x->pack(strip, vectors * LANES, w, kc, x->b, b + k0 * x->rsb + j * x->csb, x->csb, x->rsb);
            panel = block;
            for (int64_t q = 0, i = 0; q < panels; q++) {
                const int64_t h = height + (q < taller);
                tl_gemm_panel_f64(h, vectors, kc, panel, strip, vectors * LANES, tile + i * ld + j, ld,
                                  k0 > from ? TL_GEMM_CONTINUE : TL_GEMM_STORE);
                panel += h * kc;
                i += h;
            }
        }
    }
}

/* A tile of product q of the batch, with all its segments or one. */
static void multiply_tile(const job *x, int64_t q, int64_t tile, int64_t segment, double *block)
{
    const int64_t i = tile / x->column_tiles * x->tile_rows, j = tile % x->column_tiles * x->tile_columns;
    const int64_t rows = tl_imin(x->m - i, x->tile_rows), columns = tl_imin(x->p - j, x->tile_columns);
    const int64_t a = q * x->sa + i * x->rsa, b = q * x->sb + j * x->csb, ld = x->tile_columns;
    double *sums = block + x->a_elements + x->strip_elements, *total = sums + x->tile_elements;
    if (x->parts) {
        const int64_t from = segment * x->segment;
        multiply_segment(x, a, b, rows, columns, from, tl_imin(x->n, from + x->segment), block, sums);
        for (int64_t r = 0; r < rows; r++)
            memcpy(x->parts + (segment * x->m + i + r) * x->p + j, sums + r * ld, sizeof *sums * (size_t)columns);
        return;
    }
    multiply_segment(x, a, b, rows, columns, 0, tl_imin(x->n, x->segment), block, x->segments > 1 ? total : sums);
    for (int64_t from = x->segment; from < x->n; from += x->segment) {
        multiply_segment(x, a, b, rows, columns, from, tl_imin(x->n, from + x->segment), block, sums);
        for (int64_t e = 0; e < rows * ld; e++)
            total[e] += sums[e];
    }
    for (int64_t r = 0; r < rows; r++)
        x->finish(x, (x->segments > 1 ? total : sums) + r * ld, columns, q * x->sc + (i + r) * x->rsc + j * x->csc,
                  (i + r) * x->bias_rows + j * x->bias_columns);
}

static void task(void *arg, int64_t t, int32_t worker)
{
    const job *x = arg;
    const int64_t tiles = x->row_tiles * x->column_tiles, first = t / tiles * x->products_per_task;
    double *block = x->blocks + worker * x->worker_elements;
    if (x->parts)
        multiply_tile(x, 0, t % tiles, t / tiles, block);
    else
        for (int64_t q = first; q < tl_imin(first + x->products_per_task, x->batch); q++)
            multiply_tile(x, q, t % tiles, 0, block);
}

/* Row i of C from the sums of its segments, in order. */
static void add_segments(void *arg, int64_t i, TL_UNUSED int32_t worker)
{
    const job *x = arg;
    double *sums = x->parts + i * x->p;
    for (int64_t s = 1; s < x->segments; s++)
        for (int64_t j = 0; j < x->p; j++)
            sums[j] += x->parts[(s * x->m + i) * x->p + j];
    x->finish(x, sums, x->p, i * x->rsc, i * x->bias_rows);
}

/* Cuts the product into tasks of at least TASK_COST multiply-adds while there are few. */
static void plan(job *x)
{
    const double cost = (double)x->m * (double)x->n * (double)x->p;
    x->row_tiles = tl_ceil_div(x->m, TILE_ROWS);
    x->column_tiles = tl_ceil_div(x->p, TILE_COLUMNS);
    x->products_per_task = cost < TASK_COST ? (int64_t)(TASK_COST / (cost > 1 ? cost : 1)) : 1;
    for (;;) {
        const int64_t tiles = x->row_tiles * x->column_tiles;
        x->tile_rows = tl_ceil_div(tl_ceil_div(x->m, x->row_tiles), MR) * MR;
        x->tile_columns = tl_ceil_div(tl_ceil_div(x->p, x->column_tiles), NR) * NR;
        if (x->batch * tiles >= MANY_TASKS || cost / (double)tiles < 2 * TASK_COST) break;
        if (x->tile_columns > NR && x->tile_columns >= x->tile_rows)
            x->column_tiles *= 2;
        else if (x->tile_rows > MR)
            x->row_tiles *= 2;
        else
            break;
    }
    x->row_tiles = tl_ceil_div(x->m, x->tile_rows);
    x->column_tiles = tl_ceil_div(x->p, x->tile_columns);
}

static int32_t multiply(tl_context *ctx, const tl_gemm_args *g, job *x)
{
    if (g->batch == 0 || g->m == 0 || g->p == 0) return TORCHLEAN_OK;
    x->bias = g->bias, x->bias_columns = 1, x->batch = g->batch, x->m = g->m, x->n = g->n, x->p = g->p;
    x->sa = g->sa, x->sb = g->sb, x->sc = g->sc, x->rsc = g->ldc, x->csc = 1;
    x->rsa = g->rsa, x->csa = g->csa, x->rsb = g->rsb, x->csb = g->csb;
    if (4 * g->p <= 3 * LANES && g->p < g->m) { /* the lanes run along the rows of C */
        const void *a = x->a;
        x->a = x->b, x->m = g->p, x->rsa = g->csb, x->csa = g->rsb, x->sa = g->sb;
        x->b = a, x->p = g->m, x->rsb = g->csa, x->csb = g->rsa, x->sb = g->sa;
        x->rsc = 1, x->csc = g->ldc, x->bias_rows = 1, x->bias_columns = 0;
    }
    x->segment = tl_chain_segment(x->n);
    x->segments = tl_imax(tl_ceil_div(x->n, x->segment), 1);
    plan(x);
    const int64_t kc = tl_imin(x->n, KC), tiles = x->row_tiles * x->column_tiles;
    x->a_elements = tl_ceil_div(tl_imin(x->m, x->tile_rows) * kc, 8) * 8;
    x->strip_elements = NR * kc;
    x->tile_elements = tl_ceil_div(tl_imin(x->m, x->tile_rows) * x->tile_columns, 8) * 8;
    x->worker_elements = x->a_elements + x->strip_elements + x->tile_elements * (x->segments > 1 ? 2 : 1);
    const int split = x->segments > 1 && x->batch == 1 && tiles < MANY_TASKS;
    const int64_t tasks = tiles * (split ? x->segments : tl_ceil_div(x->batch, x->products_per_task));
    const int64_t workers = tasks == 1 ? 1 : tl_workers();
    const int64_t parts = split ? x->segments * x->m * x->p : 0;
    void *memory;
    const int32_t status = tl_pool_alloc(ctx, (size_t)(workers * x->worker_elements + parts) * sizeof(double), &memory);
    if (status) return status;
    x->blocks = memory;
    x->parts = split ? x->blocks + workers * x->worker_elements : NULL;
    if (tasks == 1)
        task(x, 0, 0);
    else
        tl_parallel(tasks, task, x);
    if (split && !tl_interrupted()) tl_parallel(x->m, add_segments, x);
    tl_pool_free(ctx, memory);
    return TORCHLEAN_OK;
}

int32_t tl_chain_f32(tl_context *ctx, const tl_gemm_args *g, const float *A, const float *B, float *C)
{
    job x = {.a = A, .b = B, .c = C, .pack = pack_f32, .finish = finish_f32};
    return multiply(ctx, g, &x);
}

int32_t tl_chain_f64(tl_context *ctx, const tl_gemm_args *g, const double *A, const double *B, double *C)
{
    job x = {.a = A, .b = B, .c = C, .pack = pack_f64, .finish = finish_f64};
    return multiply(ctx, g, &x);
}
