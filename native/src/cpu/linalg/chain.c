/* Packed, blocked products of float64 chains. A task is a tile of C over all of n, or over one segment of n where there are few
 * tiles; its sums stay in a float64 tile of the worker's, and the micro-kernel of gemm.c goes on with them from one block of
 * KC terms to the next.
 *
 *   for q     segments: the tile begins anew, and is added to the total afterwards
 *   for k0    blocks of KC = 256: the rows of A are packed into panels of MR rows, in L2
 *   for j0    strips of columns of B, packed, in L1
 *   for i0    panels: the micro-kernel, which loads and stores whole vectors of the tile, whose rows have room for them */
#include <string.h>

#include "core/threads.h"
#include "cpu/linalg/chain.h"
#include "cpu/vector64.h"
#include "formula/chain.h"
#include "formula/integer.h"

#define KC TL_GEMM_KC
#define MR TL_GEMM_MR
#define NR TL_CHAIN_STRIP

/* A block of A and the tile take 256 KiB each: they share L2. */
#define CHAIN_ROWS 128
#define CHAIN_COLUMNS 256
/* With fewer tasks than MIN_TASKS, or than TASKS_PER_WORKER for each worker, tiles are halved, down to TASK_COST multiply-adds. Rows fewer than LEAST_ROWS take as
 * long as so many: the time is that of reading B. */
#define MIN_TASKS 8
#define TASKS_PER_WORKER 2
#define TASK_COST 5e5
#define LEAST_ROWS 8
/* Rows of a tile for which columns of B that are contiguous are not packed, which takes as long as to multiply 32 rows by them. */
#define DIRECT_ROWS 32

typedef struct {
    const tl_chain *x;
    tl_gemm_tiles tiles;
    int64_t segment, segments;
    int64_t a_elements, strip_elements, tile_elements, worker_elements;
    double *blocks; /* worker_elements for each worker: block of A, strip of B, tile, total */
    double *parts;  /* where segments are tasks: their sums, m·p each; else NULL */
} job_t;

typedef struct {
    int64_t q, row, column, rows, columns;
} tile_t;

/* The sums of a tile over the terms from .. to - 1. */
static void multiply_segment(const job_t *job, const tile_t *t, int64_t from, int64_t to, double *block, double *tile)
{
    const tl_chain *x = job->x;
    double *strip = block + job->a_elements;
    const int direct = x->multiply_rows && t->rows <= DIRECT_ROWS;
    const int64_t panels = tl_ceil_div(t->rows, direct ? TL_CHAIN_DIRECT : MR), height = t->rows / panels,
                  taller = t->rows % panels, ld = job->tiles.columns,
                  columns = direct ? t->columns / TL_CHAIN_LANES * TL_CHAIN_LANES : 0;
    if (from == to) memset(tile, 0, (size_t)(t->rows * ld) * sizeof *tile);
    for (int64_t k0 = from; k0 < to && !(k0 > from && tl_interrupted()); k0 += KC) {
        const int64_t kc = tl_imin(to - k0, KC);
        double *panel = block;
        for (int64_t p = 0, i = 0; p < panels; p++) {
            const int64_t h = height + (p < taller);
            x->pack_rows(x, panel, t->q, t->row + i, h, k0, kc);
            if (columns) x->multiply_rows(x, h, panel, t->q, t->column, columns, k0, kc, tile + i * ld, ld, k0 > from);
            panel += h * kc;
            i += h;
        }
        for (int64_t j = columns; j < t->columns; j += NR) {
            const int64_t w = tl_imin(t->columns - j, NR), vectors = w > TL_CHAIN_LANES ? 2 : 1;
            x->pack_columns(x, strip, vectors * TL_CHAIN_LANES, t->q, t->column + j, w, k0, kc);
            panel = block;
            for (int64_t p = 0, i = 0; p < panels; p++) {
                const int64_t h = height + (p < taller);
                tl_gemm_panel_f64(h, vectors, kc, panel, strip, vectors * TL_CHAIN_LANES, tile + i * ld + j, ld,
                                  k0 > from ? TL_GEMM_CONTINUE : TL_GEMM_STORE);
                panel += h * kc;
                i += h;
            }
        }
    }
}

/* A tile with all its segments, or with one. */
static void multiply_tile(const job_t *job, const tile_t *t, int64_t segment, double *block)
{
    const tl_chain *x = job->x;
    const int64_t ld = job->tiles.columns;
    double *sums = block + job->a_elements + job->strip_elements, *total = sums + job->tile_elements;
    if (job->parts) {
        const int64_t from = segment * job->segment;
        multiply_segment(job, t, from, tl_imin(x->n, from + job->segment), block, sums);
        for (int64_t r = 0; r < t->rows; r++)
            memcpy(job->parts + (segment * x->m + t->row + r) * x->p + t->column, sums + r * ld,
                   sizeof *sums * (size_t)t->columns);
        return;
    }
    double *const whole = job->segments > 1 ? total : sums;
    multiply_segment(job, t, 0, tl_imin(x->n, job->segment), block, whole);
    for (int64_t from = job->segment; from < x->n; from += job->segment) {
        multiply_segment(job, t, from, tl_imin(x->n, from + job->segment), block, sums);
        for (int64_t e = 0; e < t->rows * ld; e++)
            total[e] += sums[e];
    }
    for (int64_t r = 0; r < t->rows; r++)
        x->finish(x, whole + r * ld, t->q, t->row + r, t->column, t->columns);
}

static void task(void *arg, int64_t number, int32_t worker)
{
    const job_t *job = arg;
    const tl_chain *x = job->x;
    const tl_gemm_tiles *of = &job->tiles;
    const int64_t tiles = of->down * of->across, at = number % tiles;
    const int64_t first = job->parts ? 0 : number / tiles * of->products;
    double *block = job->blocks + worker * job->worker_elements;
    tile_t t = {.row = at / of->across * of->rows, .column = at % of->across * of->columns};
    t.rows = tl_imin(x->m - t.row, of->rows), t.columns = tl_imin(x->p - t.column, of->columns);
    for (t.q = first; t.q < tl_imin(first + of->products, x->batch); t.q++)
        multiply_tile(job, &t, number / tiles, block);
}

/* Row i of C from the sums of its segments, in order. */
static void add_segments(void *arg, int64_t i, TL_UNUSED int32_t worker)
{
    const job_t *job = arg;
    const tl_chain *x = job->x;
    double *sums = job->parts + i * x->p;
    for (int64_t s = 1; s < job->segments; s++)
        for (int64_t j = 0; j < x->p; j++)
            sums[j] += job->parts[(s * x->m + i) * x->p + j];
    x->finish(x, sums, 0, i, 0, x->p);
}

int32_t tl_chain_multiply(tl_context *ctx, const tl_chain *x)
{
    if (x->batch == 0 || x->m == 0 || x->p == 0) return TORCHLEAN_OK;
    job_t job = {.x = x, .segment = tl_chain_segment(x->n)};
    job.segments = tl_imax(tl_ceil_div(x->n, job.segment), 1);
    const double cost = (double)tl_imax(x->m, LEAST_ROWS) * (double)x->n * (double)x->p;
    const int64_t wanted = tl_imax(MIN_TASKS, TASKS_PER_WORKER * tl_workers());
    job.tiles = (tl_gemm_tiles){.rows = CHAIN_ROWS, .columns = CHAIN_COLUMNS};
    const int64_t whole = tl_gemm_cut(&job.tiles, x->batch, x->m, x->p, NR, cost, TASK_COST, wanted);
    const int64_t kc = tl_imin(x->n, KC), rows = tl_imin(x->m, job.tiles.rows),
                  tiles = job.tiles.down * job.tiles.across;
    job.a_elements = tl_ceil_div(rows * kc, 8) * 8;
    job.strip_elements = NR * kc;
    job.tile_elements = tl_ceil_div(rows * job.tiles.columns, 8) * 8;
    job.worker_elements = job.a_elements + job.strip_elements + job.tile_elements * (job.segments > 1 ? 2 : 1);
    const int split = job.segments > 1 && x->batch == 1 && tiles < wanted;
    const int64_t tasks = split ? tiles * job.segments : whole;
    const int64_t workers = tasks == 1 ? 1 : tl_workers(), parts = split ? job.segments * x->m * x->p : 0;
    void *memory;
    const size_t bytes = (size_t)(workers * job.worker_elements + parts) * sizeof(double);
    const int32_t status = tl_pool_alloc(ctx, bytes, &memory);
    if (status) return status;
    job.blocks = memory;
    job.parts = split ? job.blocks + workers * job.worker_elements : NULL;
    tl_parallel(tasks, task, &job);
    if (split && !tl_interrupted()) tl_parallel(x->m, add_segments, &job);
    tl_pool_free(ctx, memory);
    return TORCHLEAN_OK;
}

/* ---- products of strided arrays ---------------------------------------------------------------------------------- */

typedef struct {
    tl_gemm_args g;
    const void *a, *b;
    void *c;
    int wide; /* float64 */
} strided;

/* ACCUMULATORS vectors of sums stay in registers: H rows of V vectors each, over which one row of B after the other is widened once. */
#if defined(__AVX512F__)
#define ACCUMULATORS 16
#else
#define ACCUMULATORS 8
#endif

TL_INLINE void rows_times(const int H, const int V, int64_t kc, const double *a, const float *b, int64_t ldb, double *c,
                          int64_t ldc, int goes_on)
{
    tl_vec64 sum[TL_CHAIN_DIRECT][ACCUMULATORS];
#pragma GCC unroll 4
    for (int r = 0; r < H; r++)
#pragma GCC unroll 16
        for (int v = 0; v < V; v++)
            sum[r][v] = goes_on ? tl_vec64_load(c + r * ldc + v * TL_CHAIN_LANES) : (tl_vec64){0};
    for (int64_t k = 0; k < kc; k++, a += H, b += ldb) {
#pragma GCC unroll 16
        for (int v = 0; v < V; v++) {
            const tl_vec64 y = tl_vec64_widen(b + v * TL_CHAIN_LANES);
#pragma GCC unroll 4
            for (int r = 0; r < H; r++)
                sum[r][v] = tl_vec64_fma(a[r], y, sum[r][v]);
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < H; r++)
#pragma GCC unroll 16
        for (int v = 0; v < V; v++)
            tl_vec64_store(c + r * ldc + v * TL_CHAIN_LANES, sum[r][v]);
}

TL_INLINE void rows_of_height(const int H, int64_t kc, const double *a, const float *b, int64_t ldb, int64_t columns,
                              double *c, int64_t ldc, int goes_on)
{
    const int V = ACCUMULATORS / H;
    int64_t j = 0;
    for (; j + V * TL_CHAIN_LANES <= columns; j += V * TL_CHAIN_LANES)
        rows_times(H, V, kc, a, b + j, ldb, c + j, ldc, goes_on);
    for (; j < columns; j += TL_CHAIN_LANES)
        rows_times(H, 1, kc, a, b + j, ldb, c + j, ldc, goes_on);
}

static void multiply_rows(const tl_chain *x, int64_t h, const double *a, int64_t q, int64_t column, int64_t columns,
                          int64_t k0, int64_t kc, double *c, int64_t ldc, int goes_on)
{
    const strided *s = x->data;
    const float *b = (const float *)s->b + q * s->g.sb + k0 * s->g.rsb + column;
    switch (h) {
    case 1: rows_of_height(1, kc, a, b, s->g.rsb, columns, c, ldc, goes_on); break;
    case 2: rows_of_height(2, kc, a, b, s->g.rsb, columns, c, ldc, goes_on); break;
    case 3: rows_of_height(3, kc, a, b, s->g.rsb, columns, c, ldc, goes_on); break;
    default: rows_of_height(4, kc, a, b, s->g.rsb, columns, c, ldc, goes_on);
    }
}

/* Number i of an array. */
TL_INLINE double number_at(const void *x, int64_t i, const int wide)
{
    return wide ? ((const double *)x)[i] : (double)((const float *)x)[i];
}

/* dst[k*width + l] = x[first + l*lane + k*step] for l < w, 0 for the other l. */
TL_INLINE void widen_as(const int wide, double *restrict dst, int64_t width, int64_t w, int64_t kc, const void *x,
                        int64_t first, int64_t lane, int64_t step)
{
    if (w < width) memset(dst, 0, (size_t)(width * kc) * sizeof *dst);
    if (lane == 1)
        for (int64_t k = 0; k < kc; k++)
            for (int64_t l = 0; l < w; l++)
                dst[k * width + l] = number_at(x, first + k * step + l, wide);
    else
        for (int64_t l = 0; l < w; l++)
            for (int64_t k = 0; k < kc; k++)
                dst[k * width + l] = number_at(x, first + l * lane + k * step, wide);
}

static void widen(const strided *s, double *dst, int64_t width, int64_t w, int64_t kc, const void *x, int64_t first,
                  int64_t lane, int64_t step)
{
    if (s->wide)
        widen_as(1, dst, width, w, kc, x, first, lane, step);
    else
        widen_as(0, dst, width, w, kc, x, first, lane, step);
}

static void pack_rows(const tl_chain *x, double *dst, int64_t q, int64_t row, int64_t h, int64_t k0, int64_t kc)
{
    const strided *s = x->data;
    const tl_gemm_args *g = &s->g;
    widen(s, dst, h, h, kc, s->a, q * g->sa + row * g->rsa + k0 * g->csa, g->rsa, g->csa);
}

static void pack_columns(const tl_chain *x, double *dst, int64_t width, int64_t q, int64_t column, int64_t w,
                         int64_t k0, int64_t kc)
{
    const strided *s = x->data;
    const tl_gemm_args *g = &s->g;
    widen(s, dst, width, w, kc, s->b, q * g->sb + k0 * g->rsb + column * g->csb, g->csb, g->rsb);
}

static void finish(const tl_chain *x, const double *sums, int64_t q, int64_t row, int64_t column, int64_t columns)
{
    const strided *s = x->data;
    const tl_gemm_args *g = &s->g;
    const int64_t at = q * g->sc + row * g->rsc + column * g->csc, bias = row * g->bias_rows + column * g->bias_columns;
    for (int64_t j = 0; j < columns; j++) {
        const double sum = g->bias ? sums[j] + number_at(g->bias, bias + j * g->bias_columns, s->wide) : sums[j];
        if (s->wide)
            ((double *)s->c)[at + j * g->csc] = sum;
        else
            ((float *)s->c)[at + j * g->csc] = (float)sum;
    }
}

int32_t tl_chain_strided(tl_context *ctx, const tl_gemm_args *g, const void *A, const void *B, void *C, int wide)
{
    strided s = {*g, A, B, C, wide};
    if (4 * g->p <= 3 * TL_CHAIN_LANES && g->p < g->m) /* the lanes run along the rows of C */
        s.g = tl_gemm_transposed(g), s.a = B, s.b = A;
    tl_chain x = {g->batch, s.g.m, g->n, s.g.p, &s, pack_rows, pack_columns, finish, NULL};
    if (!wide && s.g.csb == 1) x.multiply_rows = multiply_rows;
    return tl_chain_multiply(ctx, &x);
}
