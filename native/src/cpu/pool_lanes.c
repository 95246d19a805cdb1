/* Pooling of short rows: the lanes of a vector are channels, so that a window needs no neighbours.
 *
 *   unit        LANES channels, and of them a band of outputs along the first axis (forward) or whole planes
 *               (gradients): what it reads is turned, a vector for each cell, and the results are turned back
 *   for row     of outputs, in order
 *   for cells   a row of cells passes over the row's windows: an output keeps the order of its window's cells, and a
 *               cell's gradients that of its windows, row-major */
#include "cpu/pool.h"
#include "cpu/turn.h"

enum {
    SHORT_ROW = 64,    /* outputs of a row, below which lanes are channels */
    FEW_LANES = 4,     /* channels, below which most lanes are empty, */
    FEWEST_LANES = 2,  /* which two channels pay for, */
    TINY_ROW = 8,      /* in rows below this */
    CELLS = 2048,      /* of a band */
    MOST_CELLS = 8192, /* of a band of one row of outputs */
    PLANE = 16384,     /* cells of a plane whose gradients are made: with them they fill an L2 of 1 MiB and more */
    UNIT_WORK = 8192,  /* cells in windows, LANES channels each, that make a task */
};

typedef struct {
    const pool_call *f;
    int64_t band, bands, units, per_task; /* outputs of the first axis that a unit has, units of the same channels */
    int64_t cells, windows;               /* of a unit, at most */
    int64_t worker_floats;
    float *scratch;
} job_t;

/* Where a unit begins: its first channel, its lanes, and of the first axis outputs from .. to - 1 and cells low .. high
 * - 1. */
typedef struct {
    int64_t channel, lanes, from, to, low, high;
} unit_t;

static unit_t unit_at(const job_t *job, int64_t number)
{
    const pool_shape *v = &job->f->v;
    unit_t u = {.channel = number / job->bands * LANES, .from = number % job->bands * job->band};
    u.lanes = tl_imin(LANES, v->channels - u.channel);
    u.to = tl_imin(u.from + job->band, v->o[0]);
    u.low = tl_imin(tl_imax(u.from * v->s[0] - v->p[0], 0), v->n[0]);
    u.high = tl_imax(tl_imin((u.to - 1) * v->s[0] - v->p[0] + v->k[0], v->n[0]), u.low);
    return u;
}

/* The cells low .. high - 1 of window o on an axis. */
INLINE void window_of(const pool_shape *v, int32_t axis, int64_t o, int64_t *low, int64_t *high)
{
    const int64_t start = o * v->s[axis] - v->p[axis];
    *low = tl_imax(start, 0);
    *high = tl_imin(start + v->k[axis], v->n[axis]);
}

/* The cells of window `at` on the leading axes, and the first of them in c; 0 where it has none. */
INLINE int open_window(const pool_shape *v, const int64_t *at, int64_t *low, int64_t *high, int64_t *c)
{
    int some = 1;
    for (int32_t i = 0; i < v->lead; i++) {
        window_of(v, i, at[i], &low[i], &high[i]);
        some &= low[i] < high[i];
        c[i] = low[i];
    }
    return some;
}

/* All bits of a lane, or none. */
typedef int32_t lane_bits __attribute__((vector_size(4 * LANES)));

INLINE vec_f32 choose(lane_bits which, vec_f32 a, vec_f32 b)
{
    return (vec_f32)(((lane_bits)a & which) | ((lane_bits)b & ~which));
}

/* tl_max of each lane: what is less becomes all bits, which leaves the other; of two zeros the bits of both leave +0, and a NaN
 * becomes all bits. */
INLINE vec_f32 max_lanes(vec_f32 a, vec_f32 b)
{
    const lane_bits nan = (a != a) | (b != b);
    return (vec_f32)((((lane_bits)a | (b > a)) & ((lane_bits)b | (a > b))) | nan);
}

/* A row of cells passes over a row of outputs. */
INLINE void pass_row(const int is_max, const pool_shape *v, const float *restrict x, float *restrict out)
{
    for (int64_t o = 0; o < v->o[v->lead]; o++, out += LANES) {
        int64_t low, high;
        window_of(v, v->lead, o, &low, &high);
        vec_f32 a = load_f32(out);
        for (int64_t c = low; c < high; c++) {
            const vec_f32 cell = load_f32(x + c * LANES);
            if (is_max)
                a = max_lanes(a, cell);
            else
                a += cell;
        }
        store_f32(out, a);
    }
}

static void forward_task(void *arg, int64_t task, int32_t worker)
{
    const job_t *job = arg;
    const pool_call *f = job->f;
    const pool_shape *v = &f->v;
    const int64_t last = tl_imin((task + 1) * job->per_task, job->units), width = v->o[v->lead];
    const int64_t row_windows = v->windows / v->o[0];
    const int is_max = f->kind == POOL_MAX;
    float *cells = job->scratch + worker * job->worker_floats, *const sums = cells + job->cells * LANES;
    for (int64_t number = task * job->per_task; number < last && !tl_interrupted(); number++) {
        const unit_t u = unit_at(job, number);
        const int64_t first = u.low * v->step[0], count = (u.to - u.from) * row_windows;
        tl_turn_in(cells, f->x + u.channel * v->plane + first, v->plane, u.lanes, u.high * v->step[0] - first);
        for (int64_t i = 0; i < count * LANES; i++)
            sums[i] = is_max ? -TL_INF : 0.0f;
        int64_t at[8] = {u.from}, from[8] = {u.from}, to[8], low[8], high[8], c[8];
        memcpy(to, v->o, sizeof to);
        to[0] = u.to;
        float *out = sums;
        do {
            const int some = open_window(v, at, low, high, c);
            if (some) do {
                    const float *x = cells + (offset(v, c) - first) * LANES;
                    if (is_max)
                        pass_row(1, v, x, out);
                    else
                        pass_row(0, v, x, out);
                } while (next(c, low, high, v->lead));
            out += width * LANES;
        } while (next(at, from, to, v->lead));
        for (int64_t i = 0; !is_max && i < count * LANES; i++)
            sums[i] = tl_per_count(sums[i], v->kernel);
        tl_turn_out(f->out + u.channel * v->windows + u.from * row_windows, sums, v->windows, u.lanes, count);
    }
}

/* No winners of a row of outputs yet: the first cell of each window, `corner` and on, until another takes the lead. */
INLINE void start_winners(const pool_shape *v, int64_t corner, float *best, int32_t *winner)
{
    for (int64_t o = 0; o < v->o[v->lead]; o++) {
        const int32_t first = (int32_t)(corner + tl_imax(o * v->s[v->lead] - v->p[v->lead], 0));
        for (int l = 0; l < LANES; l++) {
            best[o * LANES + l] = -TL_INF;
            winner[o * LANES + l] = first;
        }
    }
}

/* The winners of a row of outputs among a row of cells, which begins at cell `base`; tl_pool_takes says who takes the lead. */
INLINE void find_winners(const pool_shape *v, int64_t base, const float *restrict x, float *restrict best,
                         int32_t *restrict winner)
{
    for (int64_t o = 0; o < v->o[v->lead]; o++, best += LANES, winner += LANES) {
        int64_t low, high;
        window_of(v, v->lead, o, &low, &high);
        vec_f32 b = load_f32(best);
        lane_bits w;
        memcpy(&w, winner, sizeof w);
        for (int64_t c = low; c < high; c++) {
            const vec_f32 cell = load_f32(x + c * LANES);
            const lane_bits takes = (b == b) & ~(cell <= b);
            b = choose(takes, cell, b);
            w = ((int32_t)(base + c) & takes) | (w & ~takes);
        }
        store_f32(best, b);
        memcpy(winner, &w, sizeof w);
    }
}

/* Adds the gradients of a row of outputs to a row of cells: to the winners, or without these to all. tl_pool_prize says what a
 * winner receives. */
INLINE void spread_row(const pool_shape *v, int64_t base, const float *restrict g, const float *restrict best,
                       const int32_t *restrict winner, float *restrict gx)
{
    for (int64_t o = 0; o < v->o[v->lead]; o++, g += LANES) {
        int64_t low, high;
        window_of(v, v->lead, o, &low, &high);
        vec_f32 share = load_f32(g);
        const vec_f32 none = {0};
        lane_bits w = {0};
        if (best) {
            const vec_f32 b = load_f32(best + o * LANES);
            share = choose(b != b, TL_NAN + (vec_f32){0}, share);
            memcpy(&w, winner + o * LANES, sizeof w);
        }
        for (int64_t c = low; c < high; c++) {
            const lane_bits wins = w == (int32_t)(base + c);
            store_f32(gx + c * LANES, load_f32(gx + c * LANES) + (best ? choose(wins, share, none) : share));
        }
    }
}

static void gradient_task(void *arg, int64_t task, int32_t worker)
{
    const job_t *job = arg;
    const pool_call *f = job->f;
    const pool_shape *v = &f->v;
    const int64_t last = tl_imin((task + 1) * job->per_task, job->units), width = v->o[v->lead];
    const int is_max = f->kind == POOL_MAX;
    float *const cells = job->scratch + worker * job->worker_floats, *const gx = cells + job->cells * LANES;
    float *const g = gx + job->cells * LANES, *const best = g + job->windows * LANES;
    int32_t *const winner = (int32_t *)(best + width * LANES);
    for (int64_t unit = task * job->per_task; unit < last && !tl_interrupted(); unit++) {
        const unit_t u = unit_at(job, unit);
        if (is_max) tl_turn_in(cells, f->x + u.channel * v->plane, v->plane, u.lanes, v->plane);
        tl_turn_in(g, f->g + u.channel * v->windows, v->windows, u.lanes, v->windows);
        memset(gx, 0, sizeof *gx * (size_t)(v->plane * LANES));
        int64_t at[8] = {0}, none[8] = {0}, low[8], high[8], c[8];
        const float *of_g = g;
        do {
            const int some = open_window(v, at, low, high, c);
            if (some && is_max) {
                start_winners(v, offset(v, low), best, winner);
                do {
                    const int64_t base = offset(v, c);
                    find_winners(v, base, cells + base * LANES, best, winner);
                } while (next(c, low, high, v->lead));
                memcpy(c, low, sizeof c);
            }
            if (some) do {
                    const int64_t base = offset(v, c);
                    if (is_max)
                        spread_row(v, base, of_g, best, winner, gx + base * LANES);
                    else
                        spread_row(v, base, of_g, NULL, NULL, gx + base * LANES);
                } while (next(c, low, high, v->lead));
            of_g += width * LANES;
        } while (next(at, none, v->o, v->lead));
        for (int64_t i = 0; !is_max && i < v->plane * LANES; i++)
            gx[i] = tl_per_count(gx[i], v->kernel);
        tl_turn_out(f->out + u.channel * v->plane, gx, v->plane, u.lanes, v->plane);
    }
}

int tl_pool_lanes_serve(const pool_call *f, int gradient)
{
    const pool_shape *v = &f->v;
    const int64_t width = v->o[v->lead];
    if (f->kind == POOL_SMOOTH || v->channels < FEWEST_LANES) return 0;
    if (gradient && (v->plane > PLANE || v->windows > PLANE)) return 0;
    if (gradient && f->kind == POOL_MAX && v->channels >= FEW_LANES)
        return 1; /* winners are found one by one elsewhere */
    if (width >= (v->channels >= FEW_LANES ? SHORT_ROW : TINY_ROW)) return 0;
    if (gradient) return 1;
    return tl_imin(v->k[0], v->n[0]) * v->step[0] <= MOST_CELLS && v->windows / v->o[0] <= MOST_CELLS;
}

int tl_pool_rows_serve(const pool_call *f, int64_t whole)
{
    const pool_shape *v = &f->v;
    if (f->kind == POOL_SMOOTH || v->o[v->lead] >= SHORT_ROW) return 0;
    if (2 * v->channels > LANES || whole < 2 * LANES) return 0;
    return v->k[0] * v->step[0] <= MOST_CELLS && v->windows / v->o[0] <= MOST_CELLS;
}

/* Runs fn over units of `band` outputs of the first axis and at most `cells` cells, for each of which it has `arrays`
 * vectors. */
static int32_t run(tl_context *ctx, const pool_call *f, int64_t band, int64_t cells, int64_t arrays, tl_task_fn fn)
{
    const pool_shape *v = &f->v;
    job_t job = {.f = f, .band = band, .bands = tl_ceil_div(v->o[0], band)};
    job.units = tl_ceil_div(v->channels, LANES) * job.bands;
    job.cells = cells + LANES;
    job.windows = band * (v->windows / v->o[0]) + LANES;
    job.per_task = tl_imax(1, UNIT_WORK / (job.windows * tl_imin(v->kernel, v->plane)));
    const int64_t tasks = tl_ceil_div(job.units, job.per_task), workers = tasks == 1 ? 1 : tl_workers();
    job.worker_floats = (arrays * (job.cells + job.windows) + 2 * v->o[v->lead]) * LANES;
    void *scratch;
    const int32_t status = tl_pool_alloc(ctx, sizeof(float) * (size_t)(workers * job.worker_floats), &scratch);
    if (status) return status;
    job.scratch = scratch;
    if (tasks == 1)
        fn(&job, 0, 0);
    else
        tl_parallel(tasks, fn, &job);
    tl_pool_free(ctx, scratch);
    return TORCHLEAN_OK;
}

int32_t tl_pool_lanes(tl_context *ctx, const pool_call *f)
{
    const pool_shape *v = &f->v;
    const int64_t rows = tl_imax(1, CELLS / tl_imax(v->step[0], v->windows / v->o[0]));
    const int64_t band = rows >= v->k[0] ? tl_imin((rows - v->k[0]) / v->s[0] + 1, v->o[0]) : 1;
    const int64_t cells = tl_imin((band - 1) * v->s[0] + v->k[0], v->n[0]) * v->step[0];
    return run(ctx, f, band, cells, 1, forward_task);
}

int32_t tl_pool_lanes_bwd(tl_context *ctx, const pool_call *f)
{
    return run(ctx, f, f->v.o[0], f->v.plane, 2, gradient_task);
}
