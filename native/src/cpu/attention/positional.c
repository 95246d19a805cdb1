/* Position encodings on the CPU. A task is a run of positions and a run of the batch: it makes the cosines and sines of
 * its positions once and uses them for every member of the batch. Each element is a function of its own inputs alone,
 * so how tasks are cut does not show in the result. */
#include "core/threads.h"
#include "formula/integer.h"
#include "formula/rotary.h"
#include "generated/attention.h"

/* Elements of a task's run of positions: its tables and one member's rows stay in L1. */
enum { RUN = 4096, TASK = 65536 };

typedef struct position_args {
    const float *x;
    float *out;
    int64_t batch, n, d, pairs, start;
    int64_t positions, members; /* of a task */
    int halves, back;
    const uint64_t *rate;
    float *table; /* 2 * positions * pairs for each worker: cosines, then sines */
} position_args;

/* Fills the worker's table for positions p0 .. p1-1. */
static void fill_table(const position_args *a, float *table, int64_t p0, int64_t p1)
{
    float *c = table, *s = table + a->positions * a->pairs;
    for (int64_t p = p0; p < p1; p++, c += a->pairs, s += a->pairs) {
        const uint64_t position = (uint64_t)(a->start + p);
        for (int64_t i = 0; i < a->pairs; i++)
            tl_turn(position * a->rate[i], &c[i], &s[i]);
        if (a->back)
            for (int64_t i = 0; i < a->pairs; i++)
                s[i] = -s[i];
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

static void add_row(const float *restrict x, float *restrict out, const float *c, const float *s, int64_t d)
{
    for (int64_t i = 0; i < d / 2; i++) {
        out[2 * i] = x[2 * i] + s[i];
        out[2 * i + 1] = x[2 * i + 1] + c[i];
    }
    if (d % 2) out[d - 1] = x[d - 1] + s[d / 2];
}

static void run_task(const position_args *a, int64_t task, int32_t worker, int rotate)
{
    const int64_t runs = tl_ceil_div(a->n, a->positions);
    const int64_t p0 = task % runs * a->positions, p1 = tl_imin(p0 + a->positions, a->n);
    const int64_t b0 = task / runs * a->members, b1 = tl_imin(b0 + a->members, a->batch);
    float *table = a->table + worker * 2 * a->positions * a->pairs;
    fill_table(a, table, p0, p1);
    for (int64_t b = b0; b < b1; b++)
        for (int64_t p = p0; p < p1; p++) {
            const float *c = table + (p - p0) * a->pairs, *s = c + a->positions * a->pairs;
            const int64_t at = (b * a->n + p) * a->d;
            if (rotate)
                rotate_row(a->x + at, a->out + at, c, s, a->pairs, a->halves);
            else
                add_row(a->x + at, a->out + at, c, s, a->d);
        }
}

static void rotate_task(void *arg, int64_t task, int32_t worker)
{
    run_task((const position_args *)arg, task, worker, 1);
}

static void add_task(void *arg, int64_t task, int32_t worker) { run_task((const position_args *)arg, task, worker, 0); }

static int32_t encode(tl_context *ctx, position_args *a, float base, tl_task_fn fn)
{
    a->pairs = (a->d + 1) / 2;
    a->positions = a->d < RUN ? tl_imin(RUN / a->d, a->n) : 1;
    a->members = tl_imin(tl_ceil_div(TASK, a->positions * a->d), a->batch);
    const int64_t tables = tl_workers() * 2 * a->positions * a->pairs;
    void *scratch;
    const size_t bytes = (size_t)a->pairs * sizeof(uint64_t) + (size_t)tables * sizeof(float);
    const int32_t status = tl_pool_alloc(ctx, bytes, &scratch);
    if (status) return status;
    uint64_t *rate = scratch;
    for (int64_t i = 0; i < a->pairs; i++)
        rate[i] = tl_turn_rate(base, i, a->d);
    a->rate = rate;
    a->table = (float *)(rate + a->pairs);
    tl_parallel(tl_ceil_div(a->n, a->positions) * tl_ceil_div(a->batch, a->members), fn, a);
    tl_pool_free(ctx, scratch);
    return TORCHLEAN_OK;
}

int32_t tl_cpu_rotary(tl_context *ctx, const float *x, int64_t batch, int64_t n, int64_t d, float base, int64_t start,
                      int64_t halves, float *out)
{
    position_args a = {.x = x, .out = out, .batch = batch, .n = n, .d = d, .start = start, .halves = halves != 0};
    return encode(ctx, &a, base, rotate_task);
}

int32_t tl_cpu_rotary_bwd(tl_context *ctx, const float *g, int64_t batch, int64_t n, int64_t d, float base,
                          int64_t start, int64_t halves, float *gx)
{
    position_args a = {
        .x = g, .out = gx, .batch = batch, .n = n, .d = d, .start = start, .halves = halves != 0, .back = 1};
    return encode(ctx, &a, base, rotate_task);
}

int32_t tl_cpu_sinusoidal(tl_context *ctx, const float *x, int64_t batch, int64_t n, int64_t d, float base,
                          int64_t start, float *out)
{
    position_args a = {.x = x, .out = out, .batch = batch, .n = n, .d = d, .start = start};
    return encode(ctx, &a, base, add_task);
}

int32_t tl_cpu_sinusoidal_bwd(TL_UNUSED tl_context *ctx, const float *g, int64_t batch, int64_t n, int64_t d,
                              TL_UNUSED float base, TL_UNUSED int64_t start, float *gx)
{
    tl_copy(gx, g, (size_t)(batch * n * d) * sizeof *g);
    return TORCHLEAN_OK;
}
