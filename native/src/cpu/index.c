/* Gathers and scatter-adds on the CPU.
 *
 * A gather is cut into runs of output rows. A scatter-add is cut by destination: the indices are first grouped, stably, by blocks
 * of destination rows; then a task owns one block of rows and one block of columns of the output, copies the input's elements
 * there and adds the block's values in the order of the index list. The block stays in L2, no two tasks write the same element,
 * and since every element sees its values in index order, neither the cut nor the thread that runs a task can change a bit. */
#include <string.h>

#include "core/threads.h"
#include "cpu/spans.h"
#include "generated/index.h"

enum {
    GATHER_TASK = 65536,     /* output elements per task of a gather */
    BLOCK = 32768,           /* output elements per task of a scatter-add: 128 KiB, half an L2 or less */
    BLOCK_COLUMNS = 512,     /* at most so many of them side by side */
    MOST_BLOCKS = 2048,      /* destination blocks of the grouping: their write streams stay in L2 */
    DIRECT = 32768,          /* elements of the output and of the values together that are not worth grouping */
    DIRECT_OUTPUT = 1 << 20, /* elements of an output, 4 MiB, that stay in a cache */
    DIRECT_COLUMNS = 16,     /* a cache line */
    CHUNK = 32768,           /* indices per task of the grouping, or k / MOST_CHUNKS if that is more */
    MOST_CHUNKS = 64,
    SHORT = 256 /* values of an array that are added without a look whether the call is interrupted */
};

/* ---- gather ------------------------------------------------------------------------------------------------------ */

typedef struct {
    const float *table;
    const uint32_t *indices;
    float *out;
    int64_t rows, cols, k, per_task;
} gather_job;

/* Task t: output rows t*per_task .. (t+1)*per_task - 1. */
static void gather_task(void *arg, int64_t t, TL_UNUSED int32_t worker)
{
    const gather_job *job = arg;
    int64_t from = t * job->per_task, to = tl_imin(from + job->per_task, job->k), cols = job->cols;
    if (cols == 1) {
        for (int64_t j = from; j < to; j++)
            job->out[j] = job->indices[j] < job->rows ? job->table[job->indices[j]] : 0.0f;
        return;
    }
    for (int64_t j = from; j < to; j++) {
        int64_t row = job->indices[j];
        if (row < job->rows)
            memcpy(job->out + j * cols, job->table + row * cols, (size_t)cols * sizeof(float));
        else
            memset(job->out + j * cols, 0, (size_t)cols * sizeof(float));
    }
}

static int32_t gather(const float *table, const uint32_t *indices, int64_t rows, int64_t cols, int64_t k, float *out)
{
    gather_job job = {table, indices, out, rows, cols, k, tl_imax(1, GATHER_TASK / cols)};
    tl_parallel(tl_ceil_div(k, job.per_task), gather_task, &job);
    return TORCHLEAN_OK;
}

int32_t tl_cpu_gather_vec(TL_UNUSED tl_context *ctx, const float *vec, const uint32_t *indices, int64_t n, int64_t k,
                          float *out)
{
    return gather(vec, indices, n, 1, k, out);
}

int32_t tl_cpu_gather_rows(TL_UNUSED tl_context *ctx, const float *mat, const uint32_t *indices, int64_t rows,
                           int64_t cols, int64_t k, float *out)
{
    return gather(mat, indices, rows, cols, k, out);
}

/* ---- scatter-add ------------------------------------------------------------------------------------------------- */

/* An index that is in range: its destination row, and its place in the list or, for a vector, its value. */
typedef struct {
    uint32_t row;
    union {
        uint32_t place;
        float value;
    };
} hit;

typedef struct {
    const float *base, *values; /* base is NULL for a sum that starts from +0 */
    const uint32_t *indices;
    float *out;
    int64_t rows, cols, k;
    int64_t block_rows, block_cols, blocks, column_blocks, chunk, chunks;
    int block_shift;  /* block_rows is 2^block_shift */
    hit *hits;        /* grouped by block, in index order inside a block */
    uint32_t *cursor; /* [chunks][blocks]: first the counts, then where the chunk's next hit of the block goes */
    uint32_t *start;  /* [blocks + 1]: where the block's hits begin */
} scatter_job;

/* Begins elements from .. to - 1 of the output of a scatter-add: with x's, or with +0 where x is NULL. */
static void begin_output(const float *x, float *out, int64_t from, int64_t to)
{
    if (x)
        memcpy(out + from, x + from, (size_t)(to - from) * sizeof *out);
    else
        memset(out + from, 0, (size_t)(to - from) * sizeof *out);
}

typedef struct {
    const float *x;
    float *out;
    int64_t elements, span;
} begin_job;

/* Task t begins a span of the output. */
static void begin_task(void *arg, int64_t t, TL_UNUSED int32_t worker)
{
    const begin_job *job = arg;
    begin_output(job->x, job->out, t * job->span, tl_imin((t + 1) * job->span, job->elements));
}

/* Begins all of an output, cut evenly. */
static void begin_evenly(const float *x, float *out, int64_t elements)
{
    begin_job job = {x, out, elements, tl_even_span(elements, BLOCK)};
    tl_parallel(tl_ceil_div(elements, job.span), begin_task, &job);
}

/* Whether most of the work of a scatter-add is its output's beginning. */
static inline int is_sparse(int64_t hits, int64_t size) { return 4 * hits <= size; }

/* Grouping, first pass. Task t counts the hits of chunk t per block. */
static void count_task(void *arg, int64_t t, TL_UNUSED int32_t worker)
{
    const scatter_job *job = arg;
    uint32_t *count = job->cursor + t * job->blocks;
    uint32_t rows = (uint32_t)job->rows;
    int shift = job->block_shift;
    memset(count, 0, (size_t)job->blocks * sizeof *count);
    for (int64_t j = t * job->chunk, end = tl_imin(j + job->chunk, job->k); j < end; j++)
        if (job->indices[j] < rows) count[job->indices[j] >> shift]++;
}

/* Second pass. Task t writes the hits of chunk t; chunks before it have their places before its own, so the grouping is
 * stable. */
static void group_task(void *arg, int64_t t, TL_UNUSED int32_t worker)
{
    const scatter_job *job = arg;
    uint32_t *cursor = job->cursor + t * job->blocks;
    uint32_t rows = (uint32_t)job->rows;
    int shift = job->block_shift;
    for (int64_t j = t * job->chunk, end = tl_imin(j + job->chunk, job->k); j < end; j++) {
        uint32_t row = job->indices[j];
        if (row >= rows) continue;
        hit *to = job->hits + cursor[row >> shift]++;
        to->row = row;
        if (job->cols == 1)
            to->value = job->values[j];
        else
            to->place = (uint32_t)j;
    }
}

/* Adds the hits' values to `width` columns from `col` of their rows, in order. */
static void add_hits(const scatter_job *job, const hit *h, const hit *end, int64_t col, int64_t width)
{
    const int64_t cols = job->cols;
    if (cols == 1) {
        for (; h < end; h++)
            job->out[h->row] += h->value;
        return;
    }
    for (; h < end; h++) {
        float *restrict to = job->out + (int64_t)h->row * cols + col;
        const float *restrict from = job->values + (int64_t)h->place * cols + col;
        if (h + 1 < end) {
            const float *next = job->values + (int64_t)h[1].place * cols + col;
            for (int64_t j = 0; j < width; j += 16)
                __builtin_prefetch(next + j);
        }
        for (int64_t j = 0; j < width; j++)
            to[j] += from[j];
    }
}

/* Task t owns the output of row block t / column_blocks and column block t % column_blocks. */
static void scatter_task(void *arg, int64_t t, TL_UNUSED int32_t worker)
{
    const scatter_job *job = arg;
    int64_t block = t / job->column_blocks, cols = job->cols, col = t % job->column_blocks * job->block_cols;
    int64_t width = tl_imin(job->block_cols, cols - col);
    int64_t row = block * job->block_rows, row_end = tl_imin(row + job->block_rows, job->rows);
    int64_t runs = width == cols ? 1 : row_end - row, run = width == cols ? (row_end - row) * cols : width;
    for (int64_t r = 0; r < runs; r++)
        begin_output(job->base, job->out, (row + r) * cols + col, (row + r) * cols + col + run);
    const hit *h = job->hits + job->start[block], *end = job->hits + job->start[block + 1];
    for (const hit *stop; h < end && !tl_interrupted(); h = stop) {
        stop = h + tl_imin(end - h, CHUNK);
        add_hits(job, h, stop, col, width);
    }
}

/* Whether one thread does it all: a small scatter-add, or one to an output of a block, which stays in its L2: it adds there sooner than
 * four group and add. A row of less than a cache line takes longer to group than to add, also where it comes from the next cache: there
 * two threads are no faster. */
static int is_direct(const scatter_job *job)
{
    const int64_t size = job->rows * job->cols, hits = job->k * job->cols;
    const int32_t workers = tl_workers();
    return size + hits <= DIRECT || (size <= BLOCK && (hits <= 4 * BLOCK || workers <= 4)) ||
           (job->cols < DIRECT_COLUMNS && size <= DIRECT_OUTPUT && workers <= 2);
}

static void scatter_directly(const scatter_job *job)
{
    const int64_t cols = job->cols;
    if (is_sparse(job->k, job->rows))
        begin_evenly(job->base, job->out, job->rows * cols);
    else
        begin_output(job->base, job->out, 0, job->rows * cols);
    for (int64_t first = 0, end; first < job->k && !tl_interrupted(); first = end) {
        end = tl_imin(first + CHUNK, job->k);
        if (cols == 1) {
            for (int64_t j = first; j < end; j++)
                if (job->indices[j] < job->rows) job->out[job->indices[j]] += job->values[j];
            continue;
        }
        for (int64_t j = first; j < end; j++) {
            const int64_t row = job->indices[j];
            if (row >= job->rows) continue;
            float *restrict to = job->out + row * cols;
            const float *restrict from = job->values + j * cols;
            for (int64_t c = 0; c < cols; c++)
                to[c] += from[c];
        }
    }
}

static int32_t scatter(tl_context *ctx, const float *base, const float *values, const uint32_t *indices, int64_t rows,
                       int64_t cols, int64_t k, float *out)
{
    scatter_job job = {
        .base = base, .values = values, .indices = indices, .out = out, .rows = rows, .cols = cols, .k = k};
    if (is_direct(&job)) {
        scatter_directly(&job);
        return TORCHLEAN_OK;
    }
    job.column_blocks = tl_ceil_div(cols, BLOCK_COLUMNS);
    job.block_cols = tl_ceil_div(tl_ceil_div(cols, job.column_blocks), 16) * 16;
    job.column_blocks = tl_ceil_div(cols, job.block_cols);
    /* Blocks of BLOCK elements; less where that leaves under eight tasks, more where the grouping gets too wide. */
    int64_t block_rows = tl_imax(1, BLOCK / tl_imin(job.block_cols, cols));
    block_rows = tl_imin(block_rows, tl_imax(1, rows * job.column_blocks / 8));
    block_rows = tl_imax(block_rows, tl_ceil_div(rows, MOST_BLOCKS));
    while ((INT64_C(1) << job.block_shift) < block_rows)
        job.block_shift++;
    job.block_rows = INT64_C(1) << job.block_shift;
    job.blocks = tl_ceil_div(rows, job.block_rows);
    job.chunk = tl_imax(CHUNK, tl_ceil_div(k, MOST_CHUNKS));
    job.chunks = tl_ceil_div(k, job.chunk);

    size_t hits = (size_t)k * sizeof(hit), cursors = (size_t)(job.chunks * job.blocks) * sizeof(uint32_t);
    void *scratch;
    int32_t status = tl_pool_alloc(ctx, hits + cursors + (size_t)(job.blocks + 1) * sizeof(uint32_t), &scratch);
    if (status) return status;
    job.hits = scratch;
    job.cursor = (uint32_t *)((char *)scratch + hits);
    job.start = (uint32_t *)((char *)scratch + hits + cursors);

    tl_parallel(job.chunks, count_task, &job);
    uint32_t next = 0;
    for (int64_t b = 0; b < job.blocks; b++) {
        job.start[b] = next;
        for (int64_t c = 0; c < job.chunks; c++) {
            uint32_t count = job.cursor[c * job.blocks + b];
            job.cursor[c * job.blocks + b] = next;
            next += count;
        }
    }
    job.start[job.blocks] = next;
    tl_parallel(job.chunks, group_task, &job);
    tl_parallel(job.blocks * job.column_blocks, scatter_task, &job);
    tl_pool_free(ctx, scratch);
    return TORCHLEAN_OK;
}

int32_t tl_cpu_gather_vec_bwd(tl_context *ctx, const uint32_t *indices, const float *g, int64_t n, int64_t k,
                              float *gvec)
{
    return scatter(ctx, NULL, g, indices, n, 1, k, gvec);
}

int32_t tl_cpu_gather_rows_bwd(tl_context *ctx, const uint32_t *indices, const float *g, int64_t rows, int64_t cols,
                               int64_t k, float *gmat)
{
    return scatter(ctx, NULL, g, indices, rows, cols, k, gmat);
}

int32_t tl_cpu_scatter_add(tl_context *ctx, const float *x, const float *values, const uint32_t *indices, int64_t n,
                           int64_t k, float *out)
{
    return scatter(ctx, x, values, indices, n, 1, k, out);
}

int32_t tl_cpu_scatter_add_rows(tl_context *ctx, const float *mat, const float *values, const uint32_t *indices,
                                int64_t rows, int64_t cols, int64_t k, float *out)
{
    return scatter(ctx, mat, values, indices, rows, cols, k, out);
}

/* ---- along an axis --------------------------------------------------------------------------------------------- */

/* The index of (o, j, c) is indices[(o, 0)·k·ii + j·ii + (c, 0)], the first of a pair where the indices have that axis. */
typedef struct {
    const float *x, *values; /* of a scatter-add; x is NULL for one that starts from +0 */
    const uint32_t *indices;
    float *out;
    int64_t outer, n, inner, io, k, ii, per_task, units, tiles;
    int begun; /* the output, before the tasks */
} axis_job;

static const uint32_t *indices_of(const axis_job *job, int64_t o, int64_t j)
{
    return job->indices + ((job->io == 1 ? 0 : o) * job->k + j) * job->ii;
}

/* Rows of `inner` elements that lie side by side in the output and are taken from the same x. */
static inline void take_rows(const axis_job *job, const float *x, const uint32_t *at, int64_t rows, float *out)
{
    const int64_t inner = job->inner, n = job->n, ii = job->ii;
    for (int64_t j = 0; inner == 1 && j < rows; j++)
        out[j] = at[j] < n ? x[at[j]] : 0.0f;
    for (int64_t j = 0; inner > 1 && j < rows; j++, at += ii, out += inner) {
        if (ii > 1)
            for (int64_t c = 0; c < inner; c++)
                out[c] = at[c] < n ? x[at[c] * inner + c] : 0.0f;
        else if (at[0] < n)
            memcpy(out, x + at[0] * inner, (size_t)inner * sizeof *out);
        else
            memset(out, 0, (size_t)inner * sizeof *out);
    }
}

/* Task t owns rows t*per_task .. (t+1)*per_task - 1, of `inner` elements, of the output. */
static void take_task(void *arg, int64_t t, TL_UNUSED int32_t worker)
{
    const axis_job job = *(const axis_job *)arg;
    const int64_t end = tl_imin((t + 1) * job.per_task, job.outer * job.k);
    int64_t r = t * job.per_task, o = r / job.k, j = r % job.k;
    for (int64_t rows; r < end; r += rows, o++, j = 0) {
        rows = tl_imin(job.k - j, end - r);
        take_rows(&job, job.x + o * job.n * job.inner, indices_of(&job, o, j), rows, job.out + r * job.inner);
    }
}

int32_t tl_cpu_take_axis(TL_UNUSED tl_context *ctx, const float *x, const uint32_t *indices, int64_t outer, int64_t n,
                         int64_t inner, int64_t io, int64_t k, int64_t ii, float *out)
{
    axis_job job = {x, NULL, indices, out, outer, n, inner, io, k, ii, .per_task = tl_imax(1, GATHER_TASK / inner)};
    tl_parallel(tl_ceil_div(outer * k, job.per_task), take_task, &job);
    return TORCHLEAN_OK;
}

/* Adds rows first .. end - 1 of the values, `width` numbers of each, to those of out that `at` names, where these are in range. */
static inline void add_rows(const axis_job *job, float *restrict out, const uint32_t *at, const float *restrict values,
                            int64_t width, int64_t first, int64_t end)
{
    const int64_t n = job->n, inner = job->inner;
    for (int64_t j = first; j < end; j++) {
        if (at[j] >= n) continue;
        for (int64_t c = 0; c < width; c++)
            out[at[j] * inner + c] += values[j * inner + c];
    }
}

/* Unit u is BLOCK_COLUMNS columns of one of the outer arrays; where these have no more the task has begun them. */
static void add_unit(const axis_job *job, int64_t u)
{
    const int64_t o = job->tiles == 1 ? u : u / job->tiles, first = (u - o * job->tiles) * BLOCK_COLUMNS;
    const int64_t width = tl_imin(BLOCK_COLUMNS, job->inner - first), begin = o * job->n * job->inner + first;
    float *out = job->out + begin;
    const float *values = job->values + o * job->k * job->inner + first;
    for (int64_t j = 0; !job->begun && job->tiles > 1 && j < job->n; j++)
        begin_output(job->x, job->out, begin + j * job->inner, begin + j * job->inner + width);
    for (int64_t j = 0; job->ii > 1 && j < job->k && !tl_interrupted(); j++) {
        const uint32_t *at = indices_of(job, o, j) + first;
        for (int64_t c = 0; c < width; c++)
            if (at[c] < job->n) out[at[c] * job->inner + c] += values[j * job->inner + c];
    }
    const uint32_t *at = indices_of(job, o, 0);
    const int64_t chunk = tl_imax(CHUNK / width, 1);
    for (int64_t j = 0; job->ii == 1 && j < job->k && !tl_interrupted(); j += chunk) {
        const int64_t end = tl_imin(j + chunk, job->k);
        switch (width) { /* with constants, numbers of a row need no loop */
        case 1: add_rows(job, out, at, values, 1, j, end); break;
        case 2: add_rows(job, out, at, values, 2, j, end); break;
        case 3: add_rows(job, out, at, values, 3, j, end); break;
        case 4: add_rows(job, out, at, values, 4, j, end); break;
        default: add_rows(job, out, at, values, width, j, end);
        }
    }
}

static void add_task(void *arg, int64_t task, TL_UNUSED int32_t worker)
{
    const axis_job *job = arg;
    const int64_t first = task * job->per_task, end = tl_imin(job->units, first + job->per_task), k = job->k;
    const int64_t array = job->n * job->inner;
    if (job->tiles == 1 && !job->begun) begin_output(job->x, job->out, first * array, end * array);
    if (job->inner == 1 && k < SHORT) /* an array takes less than finding a unit's place does */
        for (int64_t o = first; o < end; o++)
            add_rows(job, job->out + o * array, indices_of(job, o, 0), job->values + o * k, 1, 0, k);
    else
        for (int64_t u = first; u < end; u++)
            add_unit(job, u);
}

int32_t tl_cpu_scatter_add_axis(tl_context *ctx, const float *x, const float *values, const uint32_t *indices,
                                int64_t outer, int64_t n, int64_t inner, int64_t k, int64_t io, int64_t ii, float *out)
{
    if (outer == 1 && ii == 1) return scatter(ctx, x, values, indices, n, inner, k, out);
    axis_job job = {x, values, indices, out, outer, n, inner, io, k, ii, .tiles = tl_ceil_div(inner, BLOCK_COLUMNS)};
    job.units = outer * job.tiles;
    job.per_task = tl_imax(1, GATHER_TASK / tl_imax(1, (n + k) * tl_imin(inner, BLOCK_COLUMNS)));
    job.begun = is_sparse(k, n);
    if (job.begun) begin_evenly(x, out, outer * n * inner);
    tl_parallel(tl_ceil_div(job.units, job.per_task), add_task, &job);
    return TORCHLEAN_OK;
}

int32_t tl_cpu_take_axis_bwd(tl_context *ctx, const uint32_t *indices, const float *g, int64_t outer, int64_t n,
                             int64_t inner, int64_t io, int64_t k, int64_t ii, float *gx)
{
    return tl_cpu_scatter_add_axis(ctx, NULL, g, indices, outer, n, inner, k, io, ii, gx);
}

/* ---- one row ----------------------------------------------------------------------------------------------------- */

typedef struct {
    const float *mat, *row;
    float *out;
    int64_t total, from, to; /* row i is elements from .. to - 1 of the matrix */
} row_job;

/* Task t owns elements t*GATHER_TASK .. (t+1)*GATHER_TASK - 1 of the output. */
static void row_task(void *arg, int64_t t, TL_UNUSED int32_t worker)
{
    const row_job *job = arg;
    int64_t from = t * GATHER_TASK, to = tl_imin(from + GATHER_TASK, job->total);
    memcpy(job->out + from, job->mat + from, (size_t)(to - from) * sizeof(float));
    for (int64_t e = tl_imax(from, job->from), end = tl_imin(to, job->to); e < end; e++)
        job->out[e] += job->row[e - job->from];
}

int32_t tl_cpu_scatter_add_row(TL_UNUSED tl_context *ctx, const float *mat, const float *row, int64_t rows,
                               int64_t cols, int64_t i, float *out)
{
    row_job job = {mat, row, out, rows * cols, i * cols, (i + 1) * cols};
    tl_parallel(tl_ceil_div(job.total, GATHER_TASK), row_task, &job);
    return TORCHLEAN_OK;
}
