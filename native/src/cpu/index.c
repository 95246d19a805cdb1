/* Gathers and scatter-adds on the CPU.
 *
 * A gather is cut into runs of output rows. A scatter-add is cut by destination: a task owns a block of rows and one of columns of the
 * output. The indices of a large output are first grouped, stably, by blocks of rows, so that a block and the sums of its hits stay in
 * L2. A task goes along the hits in index order. It adds each to one of four chains of its row and counts it, which is the column tree of
 * the row's hits (formula/sum_tree.h), and then adds the chains to the input's elements. Sums of whole chunks become hits of the
 * next level. So neither the cut nor the thread that runs a task can change a bit. */
#include <string.h>

#include "core/threads.h"
#include "cpu/spans.h"
#include "formula/base.h"
#include "formula/sum_tree.h"
#include "generated/index.h"

enum {
    GATHER_TASK = 65536, /* output elements per task of a gather */
    BLOCK = 8192,        /* output elements of a block: with its chains 128 KiB, half an L2 or less */
    CACHED = 65536,      /* of an array that with its chains is in a cache */
    LARGE = 1 << 20,     /* of one whose chains would take too much memory */
    BLOCK_COLUMNS = 512, /* at most so many of them side by side */
    SMALL_TASK = 65536,  /* elements of small arrays and their values per task */
    MAX_BLOCKS = 2048,   /* destination blocks of the grouping: their write streams stay in L2 */
    CHUNK = 32768,       /* indices per task of the grouping, or k / MAX_CHUNKS if that is more */
    MAX_CHUNKS = 64,
    CHAINS = TL_COLUMN_CHAINS,
    MANY = 1 << 15 /* of a count: the row has had whole chunks */
};

/* ---- gathers ----------------------------------------------------------------------------------------------------- */

typedef struct {
    const float *x;
    const uint32_t *indices;
    float *out;
    int64_t outer, n, inner, io, k, ii, per_task;
} axis_job;

/* The index of (o, j, 0): indices are (io, k, ii), io = 1 or outer, ii = 1 or inner. */
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
    axis_job job = {x, indices, out, outer, n, inner, io, k, ii, .per_task = tl_imax(1, GATHER_TASK / inner)};
    tl_parallel(tl_ceil_div(outer * k, job.per_task), take_task, &job);
    return TORCHLEAN_OK;
}

int32_t tl_cpu_gather_rows(tl_context *ctx, const float *mat, const uint32_t *indices, int64_t rows, int64_t cols,
                           int64_t k, float *out)
{
    return tl_cpu_take_axis(ctx, mat, indices, 1, rows, cols, 1, k, 1, out);
}

/* ---- the sums of a block ----------------------------------------------------------------------------------------- */

/* A hit: its entry, a row of a block or an element, and the place of its values or, of one column, the value. */
typedef struct {
    uint32_t entry;
    union {
        uint32_t place;
        float value;
    };
} hit;

/* Entries of `width` numbers: rows of columns, of `stride` elements each in the output, or `run` neighbouring elements of each. */
typedef struct {
    const float *base; /* NULL for +0 */
    float *out;
    int64_t entries, width, run, stride;
    int sparse;      /* entries with hits are few: the output is begun before */
    float *chain;    /* [CHAINS][entries][width]: of a chain without a hit anything */
    uint16_t *count; /* hits of the chunk that is being added; 0 between the tasks */
    hit *more;       /* sums of chunks of entries with several, and their values */
    float *more_values;
    int64_t more_count;
} block;

/* Chain r of an entry. The first of a row is in the output, where most rows have few hits and nothing is left to do. */
static inline float *chain_of(const block *b, int64_t entry, int64_t r, int64_t width)
{
    if (r == 0 && width > 1) return b->out + entry * b->stride;
    return b->chain + (r * b->entries + entry) * width;
}

/* The sum of an entry's chunk of `hits`. A chain begins with its first hit + 0, so no sum is -0. */
static inline void fold_chains(const block *b, int64_t entry, int64_t hits, float *sum)
{
    const int64_t width = b->width;
    const float *x = chain_of(b, entry, 0, width), *y = chain_of(b, entry, 1, width), *z = chain_of(b, entry, 2, width),
                *t = chain_of(b, entry, 3, width);
    switch (hits) {
    case 1:
        if (sum != x) memcpy(sum, x, (size_t)width * sizeof *sum);
        return;
    case 2:
#pragma GCC ivdep
        for (int64_t c = 0; c < width; c++)
            sum[c] = x[c] + y[c];
        return;
    case 3:
#pragma GCC ivdep
        for (int64_t c = 0; c < width; c++)
            sum[c] = (x[c] + y[c]) + z[c];
        return;
    default:
#pragma GCC ivdep
        for (int64_t c = 0; c < width; c++)
            sum[c] = (x[c] + y[c]) + (z[c] + t[c]);
    }
}

/* The sum of an entry's chunk becomes a hit of the next level. */
static __attribute__((noinline)) void close_chunk(block *b, int64_t entry)
{
    const int64_t at = b->more_count++;
    b->more[at] = (hit){(uint32_t)entry, {(uint32_t)at}};
    fold_chains(b, entry, b->count[entry] & ~MANY, b->more_values + at * b->width);
    b->count[entry] = MANY;
}

static inline __attribute__((always_inline)) void add_hit(block *b, int64_t entry, const float *restrict v,
                                                          int64_t width)
{
    if ((b->count[entry] & ~MANY) == TL_COLUMN_CHUNK) close_chunk(b, entry);
    const uint32_t before = b->count[entry]++ & ~MANY;
    float *restrict to = chain_of(b, entry, before % CHAINS, width);
    if (width < 16) /* which hits begin a chain is hard to foresee */
        for (int64_t c = 0; c < width; c++)
            to[c] = tl_from_bits(tl_bits(to[c]) & -(uint32_t)(before >= CHAINS)) + v[c];
    else if (before < CHAINS)
        for (int64_t c = 0; c < width; c++)
            to[c] = v[c] + 0.0f;
    else
        for (int64_t c = 0; c < width; c++)
            to[c] += v[c];
}

/* Begins elements from .. to - 1 of an output: with x's, or with +0 where x is NULL. */
static void begin_output(const float *x, float *out, int64_t from, int64_t to)
{
    if (x)
        memcpy(out + from, x + from, (size_t)(to - from) * sizeof *out);
    else
        memset(out + from, 0, (size_t)(to - from) * sizeof *out);
}

/* Ends an entry: writes the output, or leaves its last chunk to the next level. */
static inline void finish_entry(block *b, int64_t entry)
{
    const uint32_t count = b->count[entry];
    const int64_t width = b->width, at = entry / b->run * b->stride + entry % b->run;
    if (count > MANY) {
        close_chunk(b, entry);
    } else if (count) {
        float *restrict out = b->out + at;
        fold_chains(b, entry, count, out);
        for (int64_t c = 0; b->base && c < width; c++)
            out[c] = b->base[at + c] + out[c];
    } else if (!b->sparse) {
        begin_output(b->base, b->out, at, at + width);
    }
    b->count[entry] = 0;
}

/* The same for n neighbouring elements from `first` on, that have one chunk each, at `at` of the output. */
static void finish_elements(block *b, int64_t first, int64_t n, int64_t at)
{
    const float *restrict p = b->chain + first, *restrict q = p + b->entries, *restrict r = q + b->entries,
                          *restrict s = r + b->entries;
    uint16_t *restrict count = b->count + first;
    float *restrict out = b->out + at;
    for (int64_t i = 0; i < n; i++) {
        const float a = p[i], c = q[i], d = r[i], e = s[i];
        out[i] = ((count[i] > 0 ? a : 0.0f) + (count[i] > 1 ? c : 0.0f)) +
                 ((count[i] > 2 ? d : 0.0f) + (count[i] > 3 ? e : 0.0f));
    }
    for (int64_t i = 0; b->base && i < n; i++)
        out[i] = count[i] ? b->base[at + i] + out[i] : b->base[at + i];
    memset(count, 0, (size_t)n * sizeof *count);
}

/* The hits of a block: grouped ones, of values `cols` apart or, where `values` is NULL, with values of their own; or k rows of `run`
 * indices below n, `step` apart. */
typedef struct {
    const hit *hits, *end;
    const uint32_t *indices;
    const float *values;
    int64_t cols, k, n, run, step;
} hit_list;

/* Adds all hits to their chains or, with `finish`, ends their entries. */
static inline __attribute__((always_inline)) void walk_hits(block *b, const hit_list *l, int64_t width, int finish)
{
    for (const hit *h = l->hits; h < l->end; h++) {
        if ((h - l->hits) % CHUNK == 0 && tl_interrupted()) return;
        const float *v = l->values ? l->values + h->place * l->cols : &h->value;
        for (int64_t c = 0; width >= 16 && !finish && h + 1 < l->end && c < width; c += 16)
            __builtin_prefetch(l->values + h[1].place * l->cols + c);
        if (!finish)
            add_hit(b, h->entry, v, width);
        else if (b->count[h->entry])
            finish_entry(b, h->entry);
    }
    for (int64_t j = 0; j < l->k; j++) {
        if (j % CHUNK == 0 && tl_interrupted()) return;
        for (int64_t c = 0; c < l->run; c++) {
            const int64_t row = l->indices[j * l->step + c], entry = row * l->run + c;
            if (row >= l->n) continue;
            if (!finish)
                add_hit(b, entry, l->values + j * l->cols + c, width);
            else if (b->count[entry])
                finish_entry(b, entry);
        }
    }
}

/* Writes the block: its input, with the sums of the hits. */
static void add_block(block *b, const hit_list *l)
{
    if (b->sparse)
        for (int64_t e = 0, at = 0; e < b->entries; e += b->run, at += b->stride)
            begin_output(b->base, b->out, at, at + b->run * b->width);
    switch (b->width) { /* with constants, numbers of a row need no loop */
    case 1: walk_hits(b, l, 1, 0); break;
    case 2: walk_hits(b, l, 2, 0); break;
    case 4: walk_hits(b, l, 4, 0); break;
    default: walk_hits(b, l, b->width, 0);
    }
    if (b->sparse)
        walk_hits(b, l, b->width, 1);
    else if (b->width > 1 || b->more_count > 0)
        for (int64_t e = 0; e < b->entries; e++)
            finish_entry(b, e);
    else
        for (int64_t e = 0, at = 0; e < b->entries; e += b->run, at += b->stride)
            finish_elements(b, e, b->run, at);
    b->sparse = 1;
    for (int64_t end; (end = b->more_count) > 0 && !tl_interrupted();) { /* the sums of chunks, level by level */
        const hit_list sums = {b->more, b->more + end, NULL, b->more_values, b->width, 0, 0, 0, 0};
        b->more += end, b->more_values += end * b->width, b->more_count = 0;
        walk_hits(b, &sums, b->width, 0);
        walk_hits(b, &sums, b->width, 1);
    }
}

/* ---- scatter-add ------------------------------------------------------------------------------------------------- */

/* The index of (o, j, c) is indices[(o, 0)·k·ii + j·ii + (c, 0)], the first of a pair where the indices have that axis. */
typedef struct {
    const float *base, *values; /* base is NULL for a sum that starts from +0 */
    const uint32_t *indices;
    float *out;
    int64_t outer, n, inner, io, k, ii;
    int64_t width, tiles, units,
        per_task;                  /* columns of a unit, and tiles of them: a unit is one of a block of an array */
    int64_t blocks, chunk, chunks; /* blocks of rows; 1 without a grouping */
    int shift;                     /* a block has 2^shift rows */
    hit *hits;                     /* grouped by block, in index order inside a block; else NULL */
    uint32_t *cursor; /* [chunks][blocks]: first the counts, then where the chunk's next hit of the block goes */
    uint32_t *start;  /* [blocks + 1]: where the block's hits begin */
    char *room;       /* of every worker: counts, chains, sums of chunks and their values */
    int64_t parts[4]; /* their bytes */
} scatter_job;

/* Whether a hit of a list of a vector has its value itself. */
static int is_carried(const scatter_job *job) { return job->inner == 1 && job->outer == 1; }

/* Grouping, first pass. Task t counts the hits of chunk t per block. */
static void count_task(void *arg, int64_t t, TL_UNUSED int32_t worker)
{
    const scatter_job *job = arg;
    uint32_t *count = job->cursor + t * job->blocks;
    const int shift = job->shift;
    memset(count, 0, (size_t)job->blocks * sizeof *count);
    for (int64_t j = t * job->chunk, end = tl_imin(j + job->chunk, job->k); j < end; j++)
        if (job->indices[j] < job->n) count[job->indices[j] >> shift]++;
}

/* Second pass. Task t writes the hits of chunk t; chunks before it have their places before its own, so the grouping is
 * stable. */
static void group_task(void *arg, int64_t t, TL_UNUSED int32_t worker)
{
    const scatter_job *job = arg;
    uint32_t *cursor = job->cursor + t * job->blocks;
    const int shift = job->shift;
    const uint32_t in_block = (uint32_t)((INT64_C(1) << shift) - 1);
    const int carried = is_carried(job);
    for (int64_t j = t * job->chunk, end = tl_imin(j + job->chunk, job->k); j < end; j++) {
        const uint32_t row = job->indices[j];
        if (row >= job->n) continue;
        hit *to = job->hits + cursor[row >> shift]++;
        to->entry = row & in_block;
        if (carried)
            to->value = job->values[j];
        else
            to->place = (uint32_t)j;
    }
}

/* Writes unit u. */
static void add_unit(const scatter_job *job, int64_t u, char *room)
{
    const int64_t tile = u % job->tiles, of = u / job->tiles, g = of % job->blocks, o = of / job->blocks;
    const int64_t first = tile * job->width, width = tl_imin(job->width, job->inner - first);
    const int64_t row = g << job->shift, rows = tl_imin(job->n - row, INT64_C(1) << job->shift);
    const int64_t begin = (o * job->n + row) * job->inner + first, own = job->ii > 1, vector = job->inner == 1;
    block b = {.base = job->base ? job->base + begin : NULL, .out = job->out + begin, .run = 1};
    b.entries = rows, b.width = width, b.stride = job->inner;
    if (own) b.entries = rows * width, b.width = 1, b.run = width;
    if (vector) b.run = b.stride = rows;
    b.count = (uint16_t *)room;
    b.chain = (float *)(room += job->parts[0]);
    b.more = (hit *)(room += job->parts[1]);
    b.more_values = (float *)(room + job->parts[2]);
    hit_list l = {.values = job->values + o * job->k * job->inner + first, .cols = job->inner};
    if (job->hits) {
        l.hits = job->hits + job->start[g], l.end = job->hits + job->start[g + 1];
        if (is_carried(job)) l.values = NULL;
    } else {
        l.indices = job->indices + (job->io == 1 ? 0 : o) * job->k * job->ii + (own ? first : 0);
        l.k = job->k, l.n = job->n, l.run = own ? width : 1, l.step = job->ii;
    }
    b.sparse = (b.width > 1 ? 1 : 4) * (l.k + (l.end - l.hits)) <= rows;
    add_block(&b, &l);
}

static void scatter_task(void *arg, int64_t t, int32_t worker)
{
    const scatter_job *job = arg;
    char *room = job->room + worker * (job->parts[0] + job->parts[1] + job->parts[2] + job->parts[3]);
    for (int64_t u = t * job->per_task, end = tl_imin(u + job->per_task, job->units); u < end && !tl_interrupted(); u++)
        add_unit(job, u, room);
}

/* Groups the hits of a large output by blocks of BLOCK elements; less where that leaves under eight units, more where the grouping
 * gets too wide. Gives out the most hits of a block. */
static int64_t group_hits(scatter_job *job)
{
    job->hits = (hit *)job->room;
    job->cursor = (uint32_t *)(job->hits + job->k);
    job->start = job->cursor + job->chunks * job->blocks;
    tl_parallel(job->chunks, count_task, job);
    uint32_t next = 0, most = 0;
    for (int64_t b = 0; b < job->blocks; b++) {
        job->start[b] = next;
        for (int64_t c = 0; c < job->chunks; c++) {
            const uint32_t count = job->cursor[c * job->blocks + b];
            job->cursor[c * job->blocks + b] = next;
            next += count;
        }
        most = next - job->start[b] > most ? next - job->start[b] : most;
    }
    job->start[job->blocks] = next;
    tl_parallel(job->chunks, group_task, job);
    return most;
}

/* Whether the hits are grouped: of one list, and an array that is large or, of few arrays, larger than a cache or of so many hits that
 * some threads share them. Those that are not come in the order of their values. */
static int is_grouped(const scatter_job *job)
{
    const int64_t size = job->n * job->width, values = job->k * job->width;
    if (job->io > 1 || job->ii > 1) return 0;
    if (job->outer >= 8) return size > LARGE;
    return size > CACHED || (values > 2 * CACHED && tl_workers() > 4);
}

static int32_t scatter(tl_context *ctx, const float *base, const float *values, const uint32_t *indices, float *out,
                       int64_t outer, int64_t n, int64_t inner, int64_t io, int64_t k, int64_t ii)
{
    if (outer * n * inner == 0) return TORCHLEAN_OK;
    scatter_job job = {.base = base, .values = values, .indices = indices, .out = out, .io = io, .k = k, .ii = ii};
    job.outer = outer, job.n = n, job.inner = inner;
    job.tiles = tl_ceil_div(job.inner, BLOCK_COLUMNS);
    job.width = tl_imin(job.inner, tl_ceil_div(tl_ceil_div(job.inner, job.tiles), 16) * 16);
    if (io > 1 || ii > 1) job.width = tl_imin(job.width, tl_imax(1, LARGE / n)); /* these are not grouped */
    job.tiles = tl_ceil_div(job.inner, job.width);
    const int grouped = is_grouped(&job);
    int64_t rows = job.n, most = job.k * (job.ii > 1 ? job.width : 1);
    if (grouped) {
        rows = tl_imin(tl_imax(1, BLOCK / job.width), tl_imax(1, job.outer * job.n * job.tiles / 8));
        rows = tl_imax(rows, tl_ceil_div(job.n, MAX_BLOCKS));
    }
    while ((INT64_C(1) << job.shift) < rows)
        job.shift++;
    job.blocks = tl_ceil_div(job.n, INT64_C(1) << job.shift);
    job.chunk = tl_imax(CHUNK, tl_ceil_div(job.k, MAX_CHUNKS));
    job.chunks = tl_ceil_div(job.k, job.chunk);
    void *groups = NULL, *room = NULL;
    int32_t status = TORCHLEAN_OK;
    if (grouped) {
        status =
            tl_pool_alloc(ctx, (size_t)job.k * sizeof(hit) + (size_t)((job.chunks + 1) * job.blocks + 1) * 4, &groups);
        if (status) return status;
        job.room = groups;
        most = group_hits(&job);
    }
    rows = tl_imin(job.n, INT64_C(1) << job.shift);
    const int64_t entries = job.ii > 1 ? rows * job.width : rows, numbers = job.ii > 1 ? 1 : job.width;
    /* A chunk that is closed has CHUNK hits or is the last of several: at most one for 64 hits, and of those sums likewise. */
    const int64_t sums = most / (TL_COLUMN_CHUNK / 2 - 1) + 1;
    const int64_t bytes[4] = {2 * entries, 4 * CHAINS * entries * numbers, (int64_t)sizeof(hit) * sums,
                              4 * numbers * sums};
    int64_t all = 0;
    for (int i = 0; i < 4; i++)
        all += job.parts[i] = tl_ceil_div(bytes[i], 64) * 64;
    job.units = job.outer * job.blocks * job.tiles;
    job.per_task = tl_imax(1, SMALL_TASK / tl_imax(1, (rows + most) * job.width));
    const int64_t tasks = tl_ceil_div(job.units, job.per_task), workers = tasks == 1 ? 1 : tl_workers();
    status = tl_pool_alloc(ctx, (size_t)(workers * all), &room);
    if (!status) {
        job.room = room;
        for (int64_t w = 0; w < workers; w++)
            memset(job.room + w * all, 0, (size_t)job.parts[0]);
        tl_parallel(tasks, scatter_task, &job);
    }
    tl_pool_free(ctx, room);
    tl_pool_free(ctx, groups);
    return status;
}

int32_t tl_cpu_gather_rows_bwd(tl_context *ctx, const uint32_t *indices, const float *g, int64_t rows, int64_t cols,
                               int64_t k, float *gmat)
{
    return scatter(ctx, NULL, g, indices, gmat, 1, rows, cols, 1, k, 1);
}

int32_t tl_cpu_scatter_add_rows(tl_context *ctx, const float *mat, const float *values, const uint32_t *indices,
                                int64_t rows, int64_t cols, int64_t k, float *out)
{
    return scatter(ctx, mat, values, indices, out, 1, rows, cols, 1, k, 1);
}

int32_t tl_cpu_scatter_add_axis(tl_context *ctx, const float *x, const float *values, const uint32_t *indices,
                                int64_t outer, int64_t n, int64_t inner, int64_t k, int64_t io, int64_t ii, float *out)
{
    return scatter(ctx, x, values, indices, out, outer, n, inner, io, k, ii);
}

int32_t tl_cpu_take_axis_bwd(tl_context *ctx, const uint32_t *indices, const float *g, int64_t outer, int64_t n,
                             int64_t inner, int64_t io, int64_t k, int64_t ii, float *gx)
{
    return tl_cpu_scatter_add_axis(ctx, NULL, g, indices, outer, n, inner, k, io, ii, gx);
}

/* ---- one row ----------------------------------------------------------------------------------------------------- */

int32_t tl_cpu_scatter_add_row(TL_UNUSED tl_context *ctx, const float *mat, const float *row, int64_t rows,
                               int64_t cols, int64_t i, float *out)
{
    tl_copy(out, mat, (size_t)(rows * cols) * sizeof(float), tl_workers());
    for (int64_t c = 0; c < cols; c++)
        out[i * cols + c] += row[c];
    return TORCHLEAN_OK;
}
