/* Tiles of attention on the CPU, forward and backward.
 *
 * A task owns BLOCK rows of one member of the batch (queries; keys when the gradients of K and V are made) and goes
 * through the other side in tiles of TILE, in order. It keeps its rows packed in panels of TL_PANEL, so that a step is
 * a product of registers, and what it needs of the other side packed once for all tasks:
 *   across  [d][TILE] per tile: coordinate by coordinate, for products over d
 *   along   [TILE][width] per tile: row by row, for products over the tile; the array itself where d is a multiple
 *           of WIDTH
 * Lanes run across the other side or along d, never along a sum, so an element has the same chain of additions in every
 * variant. The row sums of the softmax run in 16 chains, key j in chain j mod 16, folded in halves at the end. */
#pragma once

#include "core/threads.h"
#include "cpu/attention/geometry.h"
#include "cpu/vector.h"
#include "formula/attention.h"
#include "formula/integer.h"
#include "generated/attention.h"

#define STEP (2 * TL_LANES)

/* BLOCK is a multiple of every variant's panel, WIDTH and TILE of every variant's step and of CHAINS. */
enum {
    BLOCK = 96,
    TILE = 64,
    WIDTH = 32,
    CHAINS = 16,
    SHORT_WORK = 1 << 18, /* multiply-adds of blocks that share a task, where one has fewer */
};

/* The columns of a tile that are computed where `count` exist: whole steps and chains of them. */
TL_INLINE int64_t tile_columns(int64_t count)
{
    const int64_t unit = STEP > CHAINS ? STEP : CHAINS;
    return tl_ceil_div(count, unit) * unit;
}

typedef struct packed {
    const float *x;   /* (batch, others, d) */
    int64_t d, width; /* width: d in whole steps of WIDTH */
    float *across;    /* NULL if not needed */
    float *along;     /* x where d is a multiple of WIDTH; NULL if not needed */
    uint8_t *finite;  /* per tile: no infinity, no NaN */
} packed;

typedef struct problem {
    geometry of;
    int64_t owned, others, tiles; /* rows that tasks own, rows of the other side and their tiles */
    packed side[4];               /* the arrays a pass needs packed */
    int sides;
    float *work; /* per worker */
    int64_t work_size;
} problem;

/* Address of tile t of member b in rows form, and the distance of its rows. */
TL_INLINE const float *along_tile(const problem *p, const packed *s, int64_t b, int64_t t)
{
    return s->along == s->x ? s->x + (b * p->others + t * TILE) * s->d
                            : s->along + (b * p->tiles + t) * TILE * s->width;
}

TL_INLINE const float *across_tile(const problem *p, const packed *s, int64_t b, int64_t t)
{
    return s->across + (b * p->tiles + t) * TILE * s->d;
}

/* Packs rows of x, `count` of them, into panels: element (row r, coordinate k) of panel q at [q][k][r]; absent rows are 0. */
static inline void pack_panels(const float *x, int64_t count, int64_t d, float *out)
{
    for (int64_t q = 0; q * TL_PANEL < count; q++) {
        float *to = out + q * TL_PANEL * d;
        int64_t r = 0, row = q * TL_PANEL;
        for (; r + 4 <= TL_PANEL && row + 4 <= count; r += 4, row += 4)
            tl_transpose_rows4(x + row * d, d, d, to + r, TL_PANEL);
        for (; r < TL_PANEL && row < count; r++, row++)
            for (int64_t k = 0; k < d; k++)
                to[k * TL_PANEL + r] = x[row * d + k];
        for (int64_t k = 0; r < TL_PANEL && k < d; k++)
            for (int64_t absent = r; absent < TL_PANEL; absent++)
                to[k * TL_PANEL + absent] = 0.0f;
    }
}

/* The rows of the panels that hold `count` rows. */
TL_INLINE int64_t panel_rows(int64_t count) { return tl_ceil_div(count, TL_PANEL) * TL_PANEL; }

/* C = A·B for a panel A in packed form: the first `columns` of out[TL_PANEL][TILE]. */
TL_INLINE void panel_scores(const float *panel, int64_t d, const float *across, int64_t columns, float *out)
{
    for (int64_t j = 0; j < columns; j += STEP)
        tl_panel_product(panel, 1, TL_PANEL, d, across + j, TILE, out + j, TILE, 0);
}

/* sum[TL_PANEL][width] += w[TL_PANEL][TILE] · the first `inner` rows of a tile. */
TL_INLINE void panel_accumulate(const float *w, int64_t inner, const float *along, int64_t width, float *sum)
{
    for (int64_t c = 0; c < width; c += STEP)
        tl_panel_product(w, TILE, 1, inner, along + c, width, sum + c, width, 1);
}

/* ---- the running softmax of a row -------------------------------------------------------------------------------- */

typedef struct row_state {
    float top, chain[CHAINS];
} row_state;

/* Takes the maximum of `columns` scores into the row's and returns the factor for what was accumulated before. NaN is passed over. */
static inline float softmax_top(const float *restrict s, int64_t columns, row_state *restrict row)
{
    float lane[CHAINS];
    for (int l = 0; l < CHAINS; l++)
        lane[l] = row->top;
    for (int64_t j = 0; j < columns; j += CHAINS)
        for (int l = 0; l < CHAINS; l++)
            lane[l] = s[j + l] > lane[l] ? s[j + l] : lane[l];
    for (int l = 0; l < 8; l++)
        lane[l] = lane[l + 8] > lane[l] ? lane[l + 8] : lane[l];
    for (int l = 0; l < 4; l++)
        lane[l] = lane[l + 4] > lane[l] ? lane[l + 4] : lane[l];
    const float left = lane[2] > lane[0] ? lane[2] : lane[0], right = lane[3] > lane[1] ? lane[3] : lane[1];
    const float top = right > left ? right : left;
    const float factor = top > row->top ? tl_attention_weight(row->top - top) : 1.0f;
    row->top = top;
    return factor;
}

/* Turns the scores into weights relative to the row's maximum (NaN into NaN) and rescales the row's accumulator of
 * `width` elements. */
static inline void softmax_weights(float *restrict s, int64_t columns, row_state *restrict row, float factor,
                                   float *restrict accumulator, int64_t width)
{
    if (factor != 1.0f) {
        for (int l = 0; l < CHAINS; l++)
            row->chain[l] *= factor;
        for (int64_t c = 0; c < width; c++)
            accumulator[c] *= factor;
    }
    const float base = row->top == -TL_INF ? 0.0f : row->top;
    for (int64_t j = 0; j < columns; j += CHAINS)
        for (int l = 0; l < CHAINS; l++)
            s[j + l] = tl_attention_weight(s[j + l] - base);
    for (int64_t j = 0; j < columns; j += CHAINS)
        for (int l = 0; l < CHAINS; l++)
            row->chain[l] += s[j + l];
}

/* What a row's accumulator is divided by: 1 if all was blocked, NaN if all scores were -inf or one was NaN. */
static inline float softmax_total(const row_state *row)
{
    float t[CHAINS];
    for (int l = 0; l < CHAINS; l++)
        t[l] = row->chain[l];
    for (int half = CHAINS / 2; half > 0; half /= 2)
        for (int l = 0; l < half; l++)
            t[l] += t[l + half];
    return row->top == -TL_INF ? 1.0f + t[0] : row->top == -FLT_MAX ? TL_NAN : t[0];
}

static inline void start_rows(row_state *row, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        row[i].top = -TL_INF;
        for (int l = 0; l < CHAINS; l++)
            row[i].chain[l] = 0.0f;
    }
}

/* Whether queries i0..i0+count-1, in states `row`, can pass over a tile: all pairs are blocked, none of them weighs
 * anything, and `finite` says that the tile holds nothing that 0 does not erase. */
static inline int skips_tile(const problem *p, int finite, const row_state *row, int64_t b, int64_t i0, int64_t count,
                             int64_t j0, int64_t keys)
{
    if (!finite || !all_blocked(&p->of, b, i0, i0 + count, j0, j0 + keys)) return 0;
    int weightless = 1;
    for (int64_t i = 0; i < count && p->of.mode == FILL; i++)
        weightless &= row[i].top > TL_FILL_VANISHES;
    return weightless;
}

/* Turns a panel of raw products into scores and takes their maxima into the rows'; factor[r] is for what row r
 * accumulated before. Queries i..i+rows-1 meet keys from j0 on. Weights come in a loop of their own (softmax_weights):
 * so neither waits for the other's latency. */
TL_INLINE void panel_maxima(const problem *p, int64_t b, int64_t i, int64_t rows, int64_t j0, int64_t keys, float *s,
                            row_state *row, float *factor)
{
    const int64_t columns = tile_columns(keys);
    for (int64_t r = 0; r < rows; r++) {
        row_scores(s + r * TILE, columns, &p->of, mask_row(&p->of, b, i + r, j0), keys,
                   open_keys(&p->of, i + r, j0, keys));
        factor[r] = softmax_top(s + r * TILE, columns, &row[r]);
    }
}

/* sum += w · a tile, for the first `rows` rows of a panel; the others of w become 0. */
TL_INLINE void accumulate_rows(float *w, int64_t rows, int64_t keys, const float *along, int64_t width, float *sum)
{
    for (int64_t r = rows; r < TL_PANEL; r++)
        memset(w + r * TILE, 0, TILE * sizeof *w);
    panel_accumulate(w, keys, along, width, sum);
}

/* ---- packing ----------------------------------------------------------------------------------------------------- */

/* Unit `task` is one tile of one array. */
static inline void pack_tile(void *arg, int64_t task, TL_UNUSED int32_t worker)
{
    const problem *p = (const problem *)arg;
    const packed *s = &p->side[task % p->sides];
    const int64_t tile = task / p->sides, b = tile / p->tiles, t = tile % p->tiles, d = s->d, width = s->width;
    const int64_t count = tl_imin(TILE, p->others - t * TILE), columns = tile_columns(count);
    const float *x = s->x + (b * p->others + t * TILE) * d;
    if (s->across) {
        float *to = s->across + tile * TILE * d;
        int64_t j = 0;
        for (; j + 4 <= count; j += 4)
            tl_transpose_rows4(x + j * d, d, d, to + j, TILE);
        for (; j < count; j++)
            for (int64_t k = 0; k < d; k++)
                to[k * TILE + j] = x[j * d + k];
        for (int64_t k = 0; j < columns && k < d; k++)
            memset(to + k * TILE + j, 0, (size_t)(columns - j) * sizeof *to);
    }
    if (s->along && s->along != s->x) {
        float *to = s->along + tile * TILE * width;
        for (int64_t j = 0; j < count; j++)
            for (int64_t k = 0; k < width; k++)
                to[j * width + k] = k < d ? x[j * d + k] : 0.0f;
    }
    s->finite[tile] = !p->of.masked || all_finite(x, count * d);
}

/* Units of a task: several where they are short. */
typedef struct sharing {
    tl_task_fn unit;
    void *arg;
    int64_t units, per_task;
} sharing;

static inline void shared_task(void *arg, int64_t task, int32_t worker)
{
    const sharing *a = (const sharing *)arg;
    const int64_t end = tl_imin(a->units, (task + 1) * a->per_task);
    for (int64_t u = task * a->per_task; u < end && !tl_interrupted(); u++)
        a->unit(a->arg, u, worker);
}

/* Runs fn for the units, each of about `work` multiply-adds. */
static inline void run_units(int64_t units, int64_t work, tl_task_fn fn, void *arg)
{
    sharing a = {fn, arg, units, tl_imax(1, SHORT_WORK / tl_imax(1, work))};
    tl_parallel(tl_ceil_div(units, a.per_task), shared_task, &a);
}

enum { ACROSS = 1, ALONG = 2 };

TL_INLINE int64_t whole_width(int64_t d) { return tl_ceil_div(d, WIDTH) * WIDTH; }

/* Adds an array with rows of d elements to those a pass packs; returns what it needs of the scratch, in floats. */
static inline int64_t add_side(problem *p, const float *x, int64_t d, int forms)
{
    const int64_t all = p->of.batch * p->tiles;
    packed *s = &p->side[p->sides++];
    s->x = x;
    s->d = d;
    s->width = whole_width(d);
    s->across = forms & ACROSS ? (float *)8 : NULL; /* placed by pack_sides */
    s->along = forms & ALONG ? (s->width == d ? (float *)(uintptr_t)x : (float *)8) : NULL;
    return (s->across ? all * TILE * d : 0) + (s->along && s->along != x ? all * TILE * s->width : 0) +
           tl_ceil_div(all, 64) * 16;
}

static inline void pack_sides(problem *p, float *scratch)
{
    const int64_t all = p->of.batch * p->tiles;
    for (int i = 0; i < p->sides; i++) {
        packed *s = &p->side[i];
        if (s->across) {
            s->across = scratch;
            scratch += all * TILE * s->d;
        }
        if (s->along && s->along != s->x) {
            s->along = scratch;
            scratch += all * TILE * s->width;
        }
        s->finite = (uint8_t *)scratch;
        scratch += tl_ceil_div(all, 64) * 16;
    }
    p->work = scratch;
    run_units(all * p->sides, 4 * tl_imin(TILE, p->others) * (p->of.d + p->of.v), pack_tile, p);
}

/* One pass: packs its sides, of `packed_size` floats, and runs a task per block of rows with `work` floats each. `arg`
 * begins with the problem. */
static inline int32_t run_pass(tl_context *ctx, problem *p, void *arg, int64_t packed_size, int64_t work, tl_task_fn fn)
{
    p->work_size = tl_ceil_div(work, 16) * 16;
    void *scratch;
    const size_t size = (size_t)(packed_size + tl_workers() * p->work_size) * sizeof(float);
    const int32_t status = tl_pool_alloc(ctx, size, &scratch);
    if (status) return status;
    pack_sides(p, scratch);
    const int64_t pairs = tl_imin(BLOCK, p->owned) * tl_imax(1, p->others);
    run_units(p->of.batch * tl_ceil_div(p->owned, BLOCK), (pairs + 4 * TILE) * (p->of.d + p->of.v + CHAINS), fn, arg);
    tl_pool_free(ctx, scratch);
    return TORCHLEAN_OK;
}

/* A pass whose tasks own queries, or keys. */
static inline problem make_problem(const geometry *of, int owns_keys)
{
    problem p = {.of = *of, .owned = owns_keys ? of->keys : of->rows, .others = owns_keys ? of->rows : of->keys};
    p.tiles = tl_ceil_div(p.others, TILE);
    return p;
}
