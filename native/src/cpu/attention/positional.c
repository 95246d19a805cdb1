/* Position encodings on the CPU. A task is a run of positions and a run of the batch: it makes the cosines and sines of
 * its positions once and uses them for every member of the run. Each element is a function of its own inputs alone, so how tasks are cut
 * does not show in the result.
 *
 * What sinusoidal adds is the same in every call of a model, and making it takes several times as long as adding it: it is made for
 * all positions, and the context keeps it for the next call. */
#include "core/kept.h"
#include "core/threads.h"
#include "formula/integer.h"
#include "formula/rotary.h"
#include "generated/attention.h"

/* Elements of a task's run of positions: its tables and one member's rows stay in L1. */
enum { RUN = 4096, TASK = 65536 };
enum { MANY_RUNS = 16 }; /* tasks that occupy the threads */
/* Angles whose sines and cosines are made at once. */
enum { ANGLES = 64 };

typedef struct position_args {
    const float *x;
    float *out;
    int64_t batch, n, d, pairs, start;
    int64_t positions, members; /* of a task */
    int halves, back;
    const uint64_t *rate;
    float *table; /* 2 * positions * pairs for each worker: cosines, then sines */
    float *code;  /* of all positions: rows of d, sines and cosines in turn */
} position_args;

/* Cosines and sines of ANGLES angles; with 64-bit and 32-bit numbers in loops of their own, both become vectors. */
static void turn_all(const uint64_t *turns, float *restrict c, float *restrict s)
{
    float rest[ANGLES];
    uint32_t quarters[ANGLES];
    for (int64_t k = 0; k < ANGLES; k++)
        rest[k] = tl_turn_rest(turns[k], &quarters[k]);
    for (int64_t k = 0; k < ANGLES; k++)
        tl_turn_wave(rest[k], quarters[k], &c[k], &s[k]);
}

/* Those of pairs first .. of a position, and of the positions that follow: n of them are made. */
static void turn_pairs(const position_args *a, int64_t position, int64_t first, int64_t n, float *c, float *s)
{
    uint64_t turns[ANGLES];
    for (int64_t k = n; k < ANGLES; k++)
        turns[k] = 0;
    for (int64_t k = 0; k < n; first = 0, position++) {
        const int64_t end = tl_imin(n, k + a->pairs - first);
        for (const uint64_t *rate = a->rate + first; k < end; k++, rate++)
            turns[k] = (uint64_t)position * *rate;
    }
    turn_all(turns, c, s);
}

/* Fills the worker's table for positions p0 .. p1-1. */
static void fill_table(const position_args *a, float *table, int64_t p0, int64_t p1)
{
    float c[ANGLES], s[ANGLES];
    const int64_t all = (p1 - p0) * a->pairs;
    for (int64_t at = 0; at < all; at += ANGLES) {
        const int64_t n = tl_imin(ANGLES, all - at);
        turn_pairs(a, a->start + p0 + at / a->pairs, at % a->pairs, n, c, s);
        float *const to = table + at, *const beside = to + a->positions * a->pairs;
        for (int64_t k = 0; k < n; k++) {
            to[k] = c[k];
            beside[k] = a->back ? -s[k] : s[k];
        }
    }
}

static void rotate_row(const float *restrict x, float *restrict out, const float *c, const float *s, int64_t pairs,
                       int halves)
{
    if (halves)
        for (int64_t i = 0; i < pairs; i++)
            tl_rotate(x[i], x[pairs + i], c[i], s[i], &out[i], &out[pairs + i]);
    else
        for (int64_t i = 0; i < pairs; i++)
            tl_rotate(x[2 * i], x[2 * i + 1], c[i], s[i], &out[2 * i], &out[2 * i + 1]);
}

static void add_rows(const float *restrict x, const float *restrict rows, int64_t n, float *restrict out)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = x[i] + rows[i];
}

static void rotate_task(void *arg, int64_t task, int32_t worker)
{
    const position_args *a = arg;
    const int64_t parts = tl_ceil_div(a->batch, a->members), run = task / parts;
    const int64_t p0 = run * a->positions, p1 = tl_imin(p0 + a->positions, a->n);
    const int64_t b0 = task % parts * a->members, b1 = tl_imin(b0 + a->members, a->batch);
    float *table = a->table + worker * 2 * a->positions * a->pairs;
    fill_table(a, table, p0, p1);
    for (int64_t b = b0; b < b1 && !tl_interrupted(); b++)
        for (int64_t p = p0; p < p1; p++) {
            const float *c = table + (p - p0) * a->pairs, *s = c + a->positions * a->pairs;
            const int64_t at = (b * a->n + p) * a->d;
            rotate_row(a->x + at, a->out + at, c, s, a->pairs, a->halves);
        }
}

/* Pairs of a position, and positions of a run. */
static void cut_runs(position_args *a)
{
    a->pairs = (a->d + 1) / 2;
    a->positions = a->d < RUN ? tl_imin(RUN / a->d, a->n) : 1;
}

/* Runs tasks that have the rates of the pairs of rows of d, and a table for each worker. */
static int32_t run_tables(tl_context *ctx, position_args *a, float base, int64_t tasks, tl_task_fn fn)
{
    const int64_t workers = tasks == 1 ? 1 : tl_workers(), tables = workers * 2 * a->positions * a->pairs;
    void *scratch;
    const size_t bytes = (size_t)a->pairs * sizeof(uint64_t) + (size_t)tables * sizeof(float);
    const int32_t status = tl_pool_alloc(ctx, bytes, &scratch);
    if (status) return status;
    uint64_t *const rate = scratch;
    for (int64_t i = 0; i < a->pairs; i++)
        rate[i] = tl_turn_rate(base, i, a->d);
    a->rate = rate;
    a->table = (float *)(rate + a->pairs);
    tl_parallel(tasks, fn, a);
    tl_pool_free(ctx, scratch);
    return TORCHLEAN_OK;
}

static int32_t rotate(tl_context *ctx, position_args *a, float base)
{
    cut_runs(a);
    const int64_t runs = tl_ceil_div(a->n, a->positions);
    a->members = a->batch * a->n * a->d <= TASK ? a->batch : tl_ceil_div(a->batch, tl_ceil_div(MANY_RUNS, runs));
    return run_tables(ctx, a, base, runs * tl_ceil_div(a->batch, a->members), rotate_task);
}

int32_t tl_cpu_rotary(tl_context *ctx, const float *x, int64_t batch, int64_t n, int64_t d, float base, int64_t start,
                      int64_t halves, float *out)
{
    position_args a = {.x = x, .out = out, .batch = batch, .n = n, .d = d, .start = start, .halves = halves != 0};
    return rotate(ctx, &a, base);
}

int32_t tl_cpu_rotary_bwd(tl_context *ctx, const float *g, int64_t batch, int64_t n, int64_t d, float base,
                          int64_t start, int64_t halves, float *gx)
{
    position_args a = {
        .x = g, .out = gx, .batch = batch, .n = n, .d = d, .start = start, .halves = halves != 0, .back = 1};
    return rotate(ctx, &a, base);
}

/* ---- an encoding that is kept -------------------------------------------------------------------------------------- */

typedef struct sum_args {
    const float *x, *code;
    float *out;
    int64_t period, n, span; /* elements of the code, of x, and of a task */
} sum_args;

static void sum_task(void *arg, int64_t task, TL_UNUSED int32_t worker)
{
    const sum_args *a = arg;
    const int64_t end = tl_imin((task + 1) * a->span, a->n);
    for (int64_t i = task * a->span, piece; i < end; i += piece) {
        const int64_t at = i % a->period;
        piece = tl_imin(a->period - at, end - i);
        add_rows(a->x + i, a->code + at, piece, a->out + i);
    }
}

/* A task is a run of positions. */
static void code_task(void *arg, int64_t task, int32_t worker)
{
    const position_args *a = arg;
    const int64_t p0 = task * a->positions, p1 = tl_imin(p0 + a->positions, a->n);
    float *table = a->table + worker * 2 * a->positions * a->pairs;
    fill_table(a, table, p0, p1);
    for (int64_t p = p0; p < p1; p++) {
        const float *c = table + (p - p0) * a->pairs, *s = c + a->positions * a->pairs;
        for (int64_t i = 0; i < a->d; i++)
            a->code[p * a->d + i] = i % 2 ? c[i / 2] : s[i / 2];
    }
}

/* Makes the encoding of all positions in a->code, and repeats it up to `period` elements. */
static int32_t make_code(tl_context *ctx, position_args *a, float base, int64_t period)
{
    cut_runs(a);
    const int32_t status = run_tables(ctx, a, base, tl_ceil_div(a->n, a->positions), code_task);
    for (int64_t i = a->n * a->d; !status && i < period; i++)
        a->code[i] = a->code[i - a->n * a->d];
    return status;
}

/* Adds the encoding that is kept, or made now. One of less than a run is repeated, so that a sum has few pieces. */
static int32_t add_kept(tl_context *ctx, position_args *a, float base)
{
    const int64_t size = a->n * a->d, n = a->batch * size;
    const int64_t period = size * tl_imin(tl_imax(RUN / size, 1), a->batch);
    tl_content content = {{0, (uint64_t)a->start, (uint64_t)a->n << 32 | (uint64_t)a->d, (uint64_t)period}};
    memcpy(content.word, &base, sizeof base);
    void *code = tl_pool_kept(ctx, (size_t)period * sizeof(float), content);
    int32_t status = TORCHLEAN_OK;
    if (!code) {
        status = tl_pool_alloc(ctx, (size_t)period * sizeof(float), &code);
        if (status) return status;
        a->code = code;
        status = make_code(ctx, a, base, period);
    }
    const int64_t tasks = n <= TASK ? 1 : tl_imax(tl_ceil_div(n, TASK), MANY_RUNS);
    sum_args sum = {a->x, code, a->out, period, n, tl_ceil_div(n, tasks)};
    if (!status) tl_parallel(tasks, sum_task, &sum);
    if (status || tl_interrupted()) /* it may be made in part */
        tl_pool_free(ctx, code);
    else
        tl_pool_keep(ctx, code, content);
    return status;
}

int32_t tl_cpu_sinusoidal(tl_context *ctx, const float *x, int64_t batch, int64_t n, int64_t d, float base,
                          int64_t start, float *out)
{
    position_args a = {.x = x, .out = out, .batch = batch, .n = n, .d = d, .start = start};
    return add_kept(ctx, &a, base);
}

int32_t tl_cpu_sinusoidal_bwd(TL_UNUSED tl_context *ctx, const float *g, int64_t batch, int64_t n, int64_t d,
                              TL_UNUSED float base, TL_UNUSED int64_t start, float *gx)
{
    tl_copy(gx, g, (size_t)(batch * n * d) * sizeof *g, tl_workers());
    return TORCHLEAN_OK;
}
