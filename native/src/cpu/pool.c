/* Pooling on the CPU: the lanes of a vector are channels, so that a window needs no neighbours, or outputs where rows are long
 * and a window has two cells of a row.
 *
 *   unit        LANES channels, and of them a band along one axis: of outputs (forward) or of cells (gradients). What it reads is
 *               turned, a vector for each cell, and the results are turned back
 *   for row     of outputs, in order
 *   for cells   a row of cells passes over the row's windows: an output keeps the order of its window's cells, and a cell's
 *               gradients that of its windows, row-major
 *
 * A unit of gradients visits the windows that meet its cells, computes what it needs of a window anew, and adds only to cells of
 * its own. Windows of padding alone are never visited. */
#include <string.h>

#include "core/threads.h"
#include "cpu/turn.h"
#include "formula/count.h"
#include "formula/pool.h"
#include "generated/pool.h"

enum {
    CELLS = 2048,  /* of a band of outputs */
    PLANE = 16384, /* of a band of gradients: with their windows they fill an L2 of 1 MiB and more */
    KERNELS = 8, /* that are at least as long as such a band; its neighbours compute the windows across its ends, too */
    UNIT_WORK = 8192, /* cells in windows, LANES channels each, that make a task */
    LOOK = 64,        /* rows between two looks for an interruption */
    LONG_ROW = 64,    /* outputs of a row, from which on lanes are outputs, where windows are pairs of cells: forward */
    TASK = 65536,     /* cells that make a task there */
};

/* The spatial axes; a single one is preceded by an axis of one cell, so there is always a leading axis. `step` is the
 * distance of neighbours on an axis. */
typedef struct {
    int32_t lead, cut; /* leading axes, axis `lead` being the last; the axis of bands, the first of several cells */
    int64_t channels, plane, windows, kernel;
    int64_t n[9], k[9], s[9], p[9], o[9], step[9];
} pool_shape;

enum pool_kind { POOL_MAX, POOL_MEAN, POOL_SMOOTH };

typedef struct {
    pool_shape v;
    enum pool_kind kind;
    float beta;
    const float *x, *g;
    float *out;
    int64_t band, bands, units, per_task; /* outputs or cells of a band, bands of the same channels */
    int64_t cells, windows;               /* of a unit, at most */
    int64_t worker_floats;
    float *scratch;
} pool_call;

/* Axes of one cell are left out, and if fewer than two are left, some of one cell precede them. */
static pool_shape view(int64_t channels, const tl_dims *spatial, const tl_dims *kernel, const tl_dims *stride,
                       const tl_dims *padding)
{
    pool_shape v = {.channels = channels, .plane = 1, .windows = 1, .kernel = 1};
    int32_t axes = 0;
    for (int32_t i = 0; i < spatial->rank; i++) {
        const int64_t n = spatial->d[i], k = kernel->d[i], s = stride->d[i], p = padding->d[i];
        const int64_t o = (n + 2 * p - k) / s + 1;
        v.kernel *= k;
        if (n == 1 && o == 1 && p < k) continue; /* one window, and the cell is in it */
        v.n[axes] = n, v.k[axes] = k, v.s[axes] = s, v.p[axes] = p, v.o[axes] = o;
        axes++;
    }
    v.cut = axes < 2;
    for (; axes < 2; axes++) {
        v.n[1] = v.n[0], v.k[1] = v.k[0], v.s[1] = v.s[0], v.p[1] = v.p[0], v.o[1] = v.o[0];
        v.n[0] = v.k[0] = v.s[0] = v.o[0] = 1, v.p[0] = 0;
    }
    v.lead = axes - 1;
    for (int32_t i = v.lead; i >= 0; i--) {
        v.step[i] = v.plane;
        v.plane *= v.n[i];
        v.windows *= v.o[i];
    }
    return v;
}

/* ---- units and windows -------------------------------------------------------------------------------------------- */

/* A unit: its first channel, its lanes, and on the axis of bands the cells that it owns, outputs from .. to - 1 and the cells low ..
 * high - 1 that these meet. */
typedef struct {
    int64_t channel, lanes, own, end, from, to, low, high;
} unit_t;

static unit_t unit_at(const pool_call *f, int64_t number)
{
    const pool_shape *v = &f->v;
    const int64_t n = v->n[v->cut], k = v->k[v->cut], s = v->s[v->cut], p = v->p[v->cut];
    unit_t u = {.channel = number / f->bands * LANES, .end = n};
    const int64_t first = number % f->bands * f->band;
    u.lanes = tl_imin(LANES, v->channels - u.channel);
    if (f->g) {
        u.own = first, u.end = tl_imin(first + f->band, n);
        u.from = tl_imax(0, tl_ceil_div(u.own + p - k + 1, s));
        u.to = tl_imax(tl_imin((u.end - 1 + p) / s + 1, v->o[v->cut]), u.from);
    } else {
        u.from = first, u.to = tl_imin(first + f->band, v->o[v->cut]);
    }
    u.low = tl_imin(tl_imax(u.from * s - p, 0), n);
    u.high = tl_imax(tl_imin((u.to - 1) * s - p + k, n), u.low);
    return u;
}

/* The next coordinates in row-major order between low and high; 0 after the last. */
static inline int next(int64_t *c, const int64_t *low, const int64_t *high, int32_t axes)
{
    for (int32_t i = axes - 1; i >= 0; i--) {
        if (++c[i] < high[i]) return 1;
        c[i] = low[i];
    }
    return 0;
}

static inline int64_t offset(const pool_shape *v, const int64_t *c)
{
    int64_t sum = 0;
    for (int32_t i = 0; i < v->lead; i++)
        sum += c[i] * v->step[i];
    return sum;
}

/* The cells low .. high - 1 of window o on an axis. */
INLINE void window_of(const pool_shape *v, int32_t axis, int64_t o, int64_t *low, int64_t *high)
{
    const int64_t start = o * v->s[axis] - v->p[axis];
    *low = tl_imax(start, 0);
    *high = tl_imin(start + v->k[axis], v->n[axis]);
}

/* Outputs from .. to - 1 of a row; the rows of cells that they meet are those with leading coordinates low .. high - 1. */
typedef struct {
    const pool_shape *v;
    float beta;
    int64_t from, to, rows, low[8], high[8];
} row_t;

static void open_row(row_t *r, const int64_t *at)
{
    r->rows = 1;
    for (int32_t i = 0; i < r->v->lead; i++) {
        window_of(r->v, i, at[i], &r->low[i], &r->high[i]);
        r->rows *= tl_imax(r->high[i] - r->low[i], 0);
    }
}

/* Rows of outputs of a unit, whose leading coordinates are from .. to - 1. */
static row_t rows_of(const pool_call *f, const unit_t *u, int64_t *from, int64_t *to)
{
    const pool_shape *v = &f->v;
    memcpy(to, v->o, 8 * sizeof *to);
    if (!v->cut) from[0] = u->from, to[0] = u->to;
    return (row_t){.v = v, .beta = f->beta, .from = v->cut ? u->from : 0, .to = v->cut ? u->to : v->o[v->lead]};
}

/* ---- a row of cells passes over a row of outputs ------------------------------------------------------------------ */

enum pass { PASS_MAX, PASS_MIN, PASS_SUM, PASS_WEIGHT, PASS_WINNER };

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

/* x: the row's cell 0, which is number `base` of the plane; a: sums, extremes or the best cells; p: extremes of weights. */
INLINE void pass_row(const enum pass pass, const row_t *r, const float *restrict x, int32_t base, float *restrict a,
                     const float *restrict p, int32_t *restrict winner)
{
    const pool_shape *v = r->v;
    for (int64_t o = r->from, i = 0; o < r->to; o++, i += LANES) {
        int64_t low, high;
        window_of(v, v->lead, o, &low, &high);
        vec_f32 sum = load_f32(a + i);
        lane_bits w = {0};
        if (pass == PASS_WINNER) memcpy(&w, winner + i, sizeof w);
        for (int64_t c = low; c < high; c++) {
            const float *cell = x + c * LANES;
            if (pass == PASS_MAX) sum = max_lanes(sum, load_f32(cell));
            if (pass == PASS_SUM) sum += load_f32(cell);
            if (pass == PASS_MIN || pass == PASS_WEIGHT)
                for (int l = 0; l < LANES; l++)
                    a[i + l] = pass == PASS_MIN ? tl_min(a[i + l], cell[l])
                                                : a[i + l] + tl_pool_weight(cell[l], p[i + l], r->beta);
            if (pass == PASS_WINNER) { /* tl_pool_takes says who takes the lead */
                const lane_bits takes = (sum == sum) & ~(load_f32(cell) <= sum);
                sum = choose(takes, load_f32(cell), sum);
                w = ((base + (int32_t)c) & takes) | (w & ~takes);
            }
        }
        if (pass != PASS_MIN && pass != PASS_WEIGHT) store_f32(a + i, sum);
        if (pass == PASS_WINNER) memcpy(winner + i, &w, sizeof w);
    }
}

/* All rows of cells, in order; `cells` is the plane's cell 0. */
static void all_rows(enum pass pass, const row_t *r, const float *cells, float *a, const float *p, int32_t *winner)
{
    int64_t c[8];
    if (r->rows == 0) return;
    memcpy(c, r->low, sizeof c);
    do {
        const int64_t base = offset(r->v, c);
        const float *x = cells + base * LANES;
        switch (pass) {
        case PASS_MAX: pass_row(PASS_MAX, r, x, 0, a, p, winner); break;
        case PASS_MIN: pass_row(PASS_MIN, r, x, 0, a, p, winner); break;
        case PASS_SUM: pass_row(PASS_SUM, r, x, 0, a, p, winner); break;
        case PASS_WEIGHT: pass_row(PASS_WEIGHT, r, x, 0, a, p, winner); break;
        case PASS_WINNER: pass_row(PASS_WINNER, r, x, (int32_t)base, a, p, winner); break;
        }
    } while (next(c, r->low, r->high, r->v->lead) && !(c[r->v->lead - 1] % LOOK == 0 && tl_interrupted()));
}

INLINE void fill_lanes(float *a, int64_t n, float value)
{
    for (int64_t i = 0; i < n * LANES; i++)
        a[i] = value;
}

/* The extremes p, then the sums of weights a. The sums run over cells only; the padded ones come last. */
static void weigh(const row_t *r, const float *cells, float *a, float *p)
{
    const int64_t n = r->to - r->from;
    const float none = r->beta > 0.0f ? -TL_INF : TL_INF;
    for (int end = 0; end < 2; end++) {
        for (int64_t i = 0, low, high; i < n; i++) {
            window_of(r->v, r->v->lead, r->from + i, &low, &high);
            const float pads = tl_pool_padded(r->v->kernel, r->rows * (high - low));
            if (!end) fill_lanes(p + i * LANES, 1, pads > 0.0f ? 0.0f : none);
            for (int64_t l = i * LANES; end && l < (i + 1) * LANES; l++)
                a[l] = tl_pool_total(a[l], pads, p[l], r->beta);
        }
        if (end) return;
        all_rows(r->beta > 0.0f ? PASS_MAX : PASS_MIN, r, cells, p, NULL, NULL);
        fill_lanes(a, n, 0.0f);
        all_rows(PASS_WEIGHT, r, cells, a, p, NULL);
    }
}

/* ---- forward ------------------------------------------------------------------------------------------------------- */

static void forward_task(void *arg, int64_t task, int32_t worker)
{
    const pool_call *f = arg;
    const pool_shape *v = &f->v;
    const int64_t last = tl_imin((task + 1) * f->per_task, f->units), row_windows = v->windows / v->o[v->cut];
    float *cells = f->scratch + worker * f->worker_floats, *const sums = cells + f->cells * LANES;
    float *const extremes = sums + f->windows * LANES;
    for (int64_t number = task * f->per_task; number < last && !tl_interrupted(); number++) {
        const unit_t u = unit_at(f, number);
        const int64_t first = u.low * v->step[v->cut], count = (u.to - u.from) * row_windows;
        tl_turn_in(cells, f->x + u.channel * v->plane + first, v->plane, u.lanes, u.high * v->step[v->cut] - first);
        int64_t at[8], from[8] = {0}, to[8];
        row_t r = rows_of(f, &u, from, to);
        memcpy(at, from, sizeof at);
        const float *x = cells - first * LANES;
        const int64_t n = r.to - r.from;
        float *out = sums;
        do {
            open_row(&r, at);
            fill_lanes(out, n, f->kind == POOL_MAX ? -TL_INF : 0.0f);
            if (f->kind == POOL_SMOOTH)
                weigh(&r, x, out, extremes);
            else
                all_rows(f->kind == POOL_MAX ? PASS_MAX : PASS_SUM, &r, x, out, NULL, NULL);
            for (int64_t i = 0; f->kind == POOL_SMOOTH && i < n * LANES; i++)
                out[i] = tl_pool_smooth(out[i], extremes[i], f->beta);
            for (int64_t i = 0; f->kind == POOL_MEAN && i < n * LANES; i++)
                out[i] = tl_per_count(out[i], v->kernel);
            out += n * LANES;
        } while (next(at, from, to, v->lead));
        tl_turn_out(f->out + u.channel * v->windows + u.from * row_windows, sums, v->windows, u.lanes, count);
    }
}

/* A row of cells, two of each window side by side, passes over its outputs. */
INLINE void pass_pairs(const int is_max, const float *restrict x, int64_t n, float *restrict out)
{
#pragma GCC ivdep
    for (int64_t i = 0; i < n; i++)
        out[i] = is_max ? tl_max(tl_max(out[i], x[2 * i]), x[2 * i + 1]) : (out[i] + x[2 * i]) + x[2 * i + 1];
}

/* Units are rows of outputs. */
static void pairs_task(void *arg, int64_t task, TL_UNUSED int32_t worker)
{
    const pool_call *f = arg;
    const pool_shape *v = &f->v;
    const int64_t last = tl_imin((task + 1) * f->per_task, f->units), width = v->o[v->lead];
    const int is_max = f->kind == POOL_MAX;
    for (int64_t number = task * f->per_task; number < last && !tl_interrupted(); number++) {
        int64_t at[8], c[8], rest = number;
        for (int32_t i = v->lead - 1; i >= 0; i--)
            at[i] = rest % v->o[i], rest /= v->o[i];
        row_t r = {.v = v};
        open_row(&r, at);
        float *out = f->out + number * width;
        for (int64_t i = 0; i < width; i++)
            out[i] = is_max ? -TL_INF : 0.0f;
        memcpy(c, r.low, sizeof c);
        if (r.rows > 0) do {
                const float *x = f->x + rest * v->plane + offset(v, c);
                if (is_max)
                    pass_pairs(1, x, width, out);
                else
                    pass_pairs(0, x, width, out);
            } while (next(c, r.low, r.high, v->lead) && !(c[v->lead - 1] % LOOK == 0 && tl_interrupted()));
        for (int64_t i = 0; !is_max && i < width; i++)
            out[i] = tl_per_count(out[i], v->kernel);
    }
}

/* ---- gradients ----------------------------------------------------------------------------------------------------- */

/* What a row of outputs gives: `share` to all of its cells, by weights, or to the winners. */
typedef struct {
    const float *share, *extremes, *best;
    const int32_t *winner;
} shares;

/* Adds the gradients of a row of outputs to cells own .. end - 1 of a row of cells, which begins at cell `base`. tl_pool_prize says
 * what a winner receives. */
INLINE void spread_row(const enum pool_kind kind, const row_t *r, shares s, int32_t base, int64_t own, int64_t end,
                       const float *restrict x, float *restrict gx)
{
    const pool_shape *v = r->v;
    for (int64_t o = r->from, i = 0; o < r->to; o++, i += LANES) {
        int64_t low, high;
        window_of(v, v->lead, o, &low, &high);
        low = tl_imax(low, own), high = tl_imin(high, end);
        vec_f32 share = load_f32(s.share + i);
        const vec_f32 none = {0};
        lane_bits w = {0};
        if (kind == POOL_MAX) {
            const vec_f32 best = load_f32(s.best + i);
            share = choose(best != best, TL_NAN + none, share);
            memcpy(&w, s.winner + i, sizeof w);
        }
        for (int64_t c = low; c < high; c++) {
            float *to = gx + c * LANES;
            if (kind == POOL_MAX) store_f32(to, load_f32(to) + choose(w == base + (int32_t)c, share, none));
            if (kind == POOL_MEAN) store_f32(to, load_f32(to) + share);
            if (kind == POOL_SMOOTH)
                for (int l = 0; l < LANES; l++)
                    to[l] += tl_pool_weight(x[c * LANES + l], s.extremes[i + l], r->beta) * s.share[i + l];
        }
    }
}

/* The gradients of a row of outputs, of which g are the cotangents, to the unit's cells; `work` has room for three rows. */
static void spread(const pool_call *f, const row_t *r, const unit_t *u, const float *x, const float *g, float *gx,
                   float *work)
{
    const pool_shape *v = &f->v;
    const int64_t n = r->to - r->from;
    float *const best = work, *const extremes = best + n * LANES;
    int32_t *const winner = (int32_t *)(extremes + n * LANES);
    const shares s = {f->kind == POOL_SMOOTH ? best : g, extremes, best, winner};
    if (f->kind == POOL_MAX) { /* the first of a window until another takes the lead */
        const int64_t corner = offset(v, r->low);
        fill_lanes(best, n, -TL_INF);
        for (int64_t o = 0; o < n; o++) {
            const int32_t first = (int32_t)(corner + tl_imax((r->from + o) * v->s[v->lead] - v->p[v->lead], 0));
            for (int l = 0; l < LANES; l++)
                winner[o * LANES + l] = first;
        }
        all_rows(PASS_WINNER, r, x, best, NULL, winner);
    } else if (f->kind == POOL_SMOOTH) {
        weigh(r, x, best, extremes);
        for (int64_t i = 0; i < n * LANES; i++)
            best[i] = g[i] / best[i];
    }
    int64_t c[8], low[8], high[8];
    memcpy(low, r->low, sizeof low);
    memcpy(high, r->high, sizeof high);
    if (!v->cut) low[0] = tl_imax(low[0], u->own), high[0] = tl_imin(high[0], u->end);
    if (low[0] >= high[0]) return;
    memcpy(c, low, sizeof c);
    const int64_t own = v->cut ? u->own : 0, end = v->cut ? u->end : v->n[v->lead];
    do {
        const int64_t base = offset(v, c);
        const float *from = x + base * LANES;
        float *to = gx + base * LANES;
        switch (f->kind) {
        case POOL_MAX: spread_row(POOL_MAX, r, s, (int32_t)base, own, end, from, to); break;
        case POOL_MEAN: spread_row(POOL_MEAN, r, s, 0, own, end, from, to); break;
        case POOL_SMOOTH: spread_row(POOL_SMOOTH, r, s, 0, own, end, from, to); break;
        }
    } while (next(c, low, high, v->lead));
}

static void gradient_task(void *arg, int64_t task, int32_t worker)
{
    const pool_call *f = arg;
    const pool_shape *v = &f->v;
    const int64_t last = tl_imin((task + 1) * f->per_task, f->units), row_windows = v->windows / v->o[v->cut];
    float *const cells = f->scratch + worker * f->worker_floats, *const gx = cells + f->cells * LANES;
    float *const g = gx + f->cells * LANES, *const work = g + f->windows * LANES;
    for (int64_t number = task * f->per_task; number < last && !tl_interrupted(); number++) {
        const unit_t u = unit_at(f, number);
        const int64_t step = v->step[v->cut], first = u.low * step, own = u.own * step, count = (u.end - u.own) * step;
        if (f->x) tl_turn_in(cells, f->x + u.channel * v->plane + first, v->plane, u.lanes, u.high * step - first);
        tl_turn_in(g, f->g + u.channel * v->windows + u.from * row_windows, v->windows, u.lanes,
                   (u.to - u.from) * row_windows);
        fill_lanes(gx, count, 0.0f);
        int64_t at[8], from[8] = {0}, to[8];
        row_t r = rows_of(f, &u, from, to);
        memcpy(at, from, sizeof at);
        const float *row = g;
        if (u.from < u.to) do {
                open_row(&r, at);
                if (r.rows > 0) spread(f, &r, &u, cells - first * LANES, row, gx - own * LANES, work);
                row += (r.to - r.from) * LANES;
            } while (next(at, from, to, v->lead) && !(at[v->lead - 1] % LOOK == 0 && tl_interrupted()));
        for (int64_t i = 0; f->kind == POOL_MEAN && i < count * LANES; i++)
            gx[i] = tl_per_count(gx[i], v->kernel);
        tl_turn_out(f->out + u.channel * v->plane + own, gx, v->plane, u.lanes, count);
    }
}

/* ---- the operations ------------------------------------------------------------------------------------------------ */

static int32_t run(tl_context *ctx, pool_call f)
{
    const pool_shape *v = &f.v;
    const int64_t n = v->n[v->cut], k = v->k[v->cut], s = v->s[v->cut], o = v->o[v->cut], step = v->step[v->cut];
    const int64_t row_windows = v->windows / o;
    int64_t outputs;
    const int pairs = v->k[v->lead] == 2 && v->s[v->lead] == 2 && v->p[v->lead] == 0;
    if (!f.g && f.kind != POOL_SMOOTH && pairs && v->o[v->lead] >= LONG_ROW) {
        f.units = v->channels * (v->windows / v->o[v->lead]);
        f.per_task = tl_imax(1, TASK / (v->o[v->lead] * tl_imin(v->kernel, v->plane)));
        tl_parallel(tl_ceil_div(f.units, f.per_task), pairs_task, &f);
        return TORCHLEAN_OK;
    }
    if (f.g) {
        f.band = tl_imin(tl_imax(PLANE / tl_imax(step, row_windows), KERNELS * tl_imin(k, n)), n);
        f.bands = tl_ceil_div(n, f.band);
        outputs = tl_imin((f.band + k - 2) / s + 1, o);
    } else {
        const int64_t rows = tl_imax(1, CELLS / tl_imax(step, row_windows));
        outputs = f.band = rows >= k ? tl_imin((rows - k) / s + 1, o) : 1;
        f.bands = tl_ceil_div(o, f.band);
    }
    f.units = tl_ceil_div(v->channels, LANES) * f.bands;
    f.cells = tl_imin(tl_imax((outputs - 1) * s + k, f.g ? f.band : 0), n) * step + LANES;
    f.windows = outputs * row_windows + LANES;
    f.per_task = tl_imax(1, UNIT_WORK / (f.windows * tl_imin(v->kernel, v->plane)));
    const int64_t row = v->cut ? outputs : v->o[v->lead]; /* of outputs, of which a task holds up to three more */
    f.worker_floats = ((f.g ? 2 : 1) * f.cells + f.windows + 3 * row) * LANES;
    const int64_t tasks = tl_ceil_div(f.units, f.per_task), workers = tasks == 1 ? 1 : tl_workers();
    void *scratch;
    const int32_t status = tl_pool_alloc(ctx, sizeof(float) * (size_t)(workers * f.worker_floats), &scratch);
    if (status) return status;
    f.scratch = scratch;
    tl_parallel(tasks, f.g ? gradient_task : forward_task, &f);
    tl_pool_free(ctx, scratch);
    return TORCHLEAN_OK;
}

#define ND \
    int64_t channels, const tl_dims *spatial, const tl_dims *kernel, const tl_dims *stride, const tl_dims *padding
#define VIEW view(channels, spatial, kernel, stride, padding)

int32_t tl_cpu_max_pool(tl_context *ctx, const float *x, ND, float *out)
{
    return run(ctx, (pool_call){.v = VIEW, .kind = POOL_MAX, .x = x, .out = out});
}

int32_t tl_cpu_max_pool_bwd(tl_context *ctx, const float *x, const float *g, ND, float *gx)
{
    return run(ctx, (pool_call){.v = VIEW, .kind = POOL_MAX, .x = x, .g = g, .out = gx});
}

int32_t tl_cpu_avg_pool(tl_context *ctx, const float *x, ND, float *out)
{
    return run(ctx, (pool_call){.v = VIEW, .kind = POOL_MEAN, .x = x, .out = out});
}

int32_t tl_cpu_avg_pool_bwd(tl_context *ctx, const float *g, ND, float *gx)
{
    return run(ctx, (pool_call){.v = VIEW, .kind = POOL_MEAN, .g = g, .out = gx});
}

int32_t tl_cpu_smooth_max_pool(tl_context *ctx, const float *x, ND, float beta, float *out)
{
    return run(ctx, (pool_call){.v = VIEW, .kind = POOL_SMOOTH, .beta = beta, .x = x, .out = out});
}

int32_t tl_cpu_smooth_max_pool_bwd(tl_context *ctx, const float *x, const float *g, ND, float beta, float *gx)
{
    return run(ctx, (pool_call){.v = VIEW, .kind = POOL_SMOOTH, .beta = beta, .x = x, .g = g, .out = gx});
}
