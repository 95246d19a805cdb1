/* Tiles of attention on the CPU, forward and backward.
 *
 * A task owns BLOCK rows of one member of the batch (queries; keys when the gradients of K and V are made) and goes
 * through the other side in tiles of TILE rows, in order. The lanes of a vector are owned rows, STEP of them side by
 * side: what belongs to them is turned once, coordinate by coordinate, and all sums of the task lie so until they are
 * turned back. The other side is read as it is, a scalar at a time, so that no width and no length but that of the
 * lanes is rounded up:
 *   scores   s[other][lane]     = sum over k of other[k] · owned[k][lane]
 *   sums     sum[c][lane]       = sum · factor + sum over the tile of x[other][c] · s[other][lane]
 * A panel of up to TL_PANEL rows has its sums in registers.
 *
 * No sum runs along lanes, so an element has the same chain of additions in every variant. The row sums of the softmax
 * run in 16 chains, key j in chain j mod 16, folded in halves at the end. */
#pragma once

#include "core/threads.h"
#include "cpu/attention/geometry.h"
#include "cpu/blocks.h"
#include "cpu/linalg/gemm.h"
#include "formula/attention.h"
#include "formula/integer.h"
#include "generated/attention.h"

enum {
    STEP = 2 * TL_LANES,
    BLOCK = 96, /* whole steps of every variant */
    TILE = 64,
    CHAINS = 16,
    SHORT_WORK = 1 << 18, /* multiply-adds of blocks that share a task, where one has fewer */
};

typedef struct problem {
    geometry of;
    int64_t owned, others, tiles; /* rows that tasks own, rows of the other side and their tiles */
    uint8_t *finite[2]; /* of the other side's arrays, per tile: no infinity, no NaN; where anything may be blocked */
    float *work;        /* per worker */
    int64_t work_size;
} problem;

/* The vectors of a step of which `count` rows exist from row u on. */
TL_INLINE int vectors_of(int64_t count, int64_t u) { return count - u > TL_LANES ? 2 : 1; }

/* ---- panels ------------------------------------------------------------------------------------------------------ */

/* s[r][lane] = sum over k of a[r*stride + k] · b[k][lane], r < R, V vectors of lanes. Rows are addressed three from a
 * pointer. */
TL_INLINE void multiply_rows(const int R, const int V, int64_t inner, const float *a, int64_t stride, const float *b,
                             float *s)
{
    tl_vec sum[TL_PANEL][2];
    const float *row[TL_PANEL / 3 + 1];
#pragma GCC unroll 5
    for (int r = 0; r < R; r += 3)
        row[r / 3] = a + r * stride;
#pragma GCC unroll 12
    for (int r = 0; r < R; r++)
        sum[r][0] = sum[r][1] = tl_vec_zero();
    for (int64_t k = 0; k < inner; k++, b += STEP) {
        const tl_vec left = tl_vec_load(b), right = V == 2 ? tl_vec_load(b + TL_LANES) : left;
#pragma GCC unroll 12
        for (int r = 0; r < R; r++) {
            const float x = row[r / 3][r % 3 * stride];
            sum[r][0] = tl_vec_fma(x, left, sum[r][0]);
            if (V == 2) sum[r][1] = tl_vec_fma(x, right, sum[r][1]);
        }
#pragma GCC unroll 5
        for (int r = 0; r < R; r += 3)
            row[r / 3]++;
    }
#pragma GCC unroll 12
    for (int r = 0; r < R; r++)
#pragma GCC unroll 2
        for (int v = 0; v < V; v++)
            tl_vec_store(s + r * STEP + v * TL_LANES, sum[r][v]);
}

/* sum[r][lane] = sum · factor[lane] + sum over j of a[j*stride + r] · s[j][lane], r < R, V vectors of lanes; NULL: a
 * factor of 0. */
TL_INLINE void multiply_columns(const int R, const int V, int64_t inner, const float *a, int64_t stride, const float *s,
                                const float *factor, float *to)
{
    tl_vec sum[TL_PANEL][2];
#pragma GCC unroll 2
    for (int v = 0; v < V; v++) {
        const tl_vec f = factor ? tl_vec_load(factor + v * TL_LANES) : tl_vec_zero();
#pragma GCC unroll 12
        for (int r = 0; r < R; r++) {
            sum[r][v] = f;
            if (factor) sum[r][v] *= tl_vec_load(to + r * STEP + v * TL_LANES);
        }
    }
    for (int64_t j = 0; j < inner; j++, a += stride, s += STEP) {
        const tl_vec left = tl_vec_load(s), right = V == 2 ? tl_vec_load(s + TL_LANES) : left;
#pragma GCC unroll 12
        for (int r = 0; r < R; r++) {
            sum[r][0] = tl_vec_fma(a[r], left, sum[r][0]);
            if (V == 2) sum[r][1] = tl_vec_fma(a[r], right, sum[r][1]);
        }
    }
#pragma GCC unroll 12
    for (int r = 0; r < R; r++)
#pragma GCC unroll 2
        for (int v = 0; v < V; v++)
            tl_vec_store(to + r * STEP + v * TL_LANES, sum[r][v]);
}

#if defined(__AVX512F__)
#define EACH_PANEL(F) F(1) F(2) F(3) F(4) F(5) F(6) F(7) F(8) F(9) F(10) F(11) F(12)
#elif defined(__AVX2__) && defined(__FMA__)
#define EACH_PANEL(F) F(1) F(2) F(3) F(4) F(5) F(6)
#else
#define EACH_PANEL(F) F(1) F(2) F(3) F(4)
#endif

#define PANEL(R, V)                                                                                                    \
    static void rows_##R##x##V(int64_t inner, const float *a, int64_t stride, const float *b, float *s)                \
    {                                                                                                                  \
        multiply_rows(R, V, inner, a, stride, b, s);                                                                   \
    }                                                                                                                  \
    static void columns_##R##x##V(int64_t inner, const float *a, int64_t stride, const float *s, const float *factor,  \
                                  float *to)                                                                           \
    {                                                                                                                  \
        multiply_columns(R, V, inner, a, stride, s, factor, to);                                                       \
    }
#define PANELS(R) PANEL(R, 1) PANEL(R, 2)
EACH_PANEL(PANELS)
#undef PANEL
#undef PANELS

typedef void (*rows_fn)(int64_t, const float *, int64_t, const float *, float *);
typedef void (*columns_fn)(int64_t, const float *, int64_t, const float *, const float *, float *);
#define ROWS(R) {rows_##R##x1, rows_##R##x2},
#define COLUMNS(R) {columns_##R##x1, columns_##R##x2},
static const rows_fn rows_functions[TL_PANEL + 1][2] = {{0, 0}, EACH_PANEL(ROWS)};
static const columns_fn columns_functions[TL_PANEL + 1][2] = {{0, 0}, EACH_PANEL(COLUMNS)};
#undef ROWS
#undef COLUMNS

/* Scores of `count` rows of the other side, d apart, with a step of owned rows; panels share the rows evenly. */
static inline void tile_scores(int vectors, int64_t count, const float *others, int64_t d, const float *owned, float *s)
{
    const int64_t panels = tl_ceil_div(count, TL_PANEL), height = count / tl_imax(panels, 1);
    for (int64_t p = 0, r = 0; p < panels; p++) {
        const int64_t h = height + (p < count - panels * height);
        rows_functions[h][vectors - 1](d, others + r * d, d, owned, s + r * STEP);
        r += h;
    }
}

/* sum = sum · factor + s · the tile's `count` rows of `width` elements; NULL for the first tile. */
static inline void tile_sums(int vectors, int64_t count, const float *others, int64_t width, const float *s,
                             const float *factor, float *sum)
{
    const int64_t panels = tl_ceil_div(width, TL_PANEL), height = width / tl_imax(panels, 1);
    for (int64_t p = 0, c = 0; p < panels; p++) {
        const int64_t h = height + (p < width - panels * height);
        columns_functions[h][vectors - 1](count, others + c, width, s, factor, sum + c * STEP);
        c += h;
    }
}

/* ---- lanes ------------------------------------------------------------------------------------------------------- */

/* Rows of x, `count` of them, side by side in steps: element (row i, coordinate k) at [i / STEP][k][i % STEP]; the lanes of absent rows
 * are 0 or those of others. */
static inline void turn_rows(const float *x, int64_t count, int64_t d, float *out)
{
    for (int64_t u = 0; u < count; u += STEP, out += STEP * d, x += STEP * d)
        tl_gemm_pack_f32(out, STEP, tl_imin(STEP, count - u), d, x, d, 1);
}

/* The rows of a step back to x: x[i][k] = sum[k][i]. */
static inline void turn_back(const float *sum, int64_t rows, int64_t d, float *x)
{
    tl_transpose(sum, STEP, x, d, d, rows);
}

/* Biases (geometry.h) of queries i .. i+queries-1 and keys j0 .. j0+keys-1, in room of a tile: a row for each key, a lane for each
 * query, or with `by_query` the other way round. NULL where they are all 0. */
static inline const float *find_bias(const problem *p, int64_t b, int64_t i, int64_t queries, int64_t j0, int64_t keys,
                                     int by_query, float *room)
{
    const geometry *g = &p->of;
    if (!g->mask && all_open(g, i, i + queries, j0, keys)) return NULL;
    if (by_query) {
        for (int64_t q = 0; q < queries; q++) {
            memset(room + q * STEP + keys, 0, (size_t)(STEP - keys) * sizeof *room);
            bias_row(g, b, i + q, j0, keys, room + q * STEP);
        }
        return room;
    }
    for (int64_t l = 0; g->mask && l < STEP; l += 8) {
        float rows[8][TILE];
        for (int64_t q = 0; q < 8; q++)
            memcpy(rows[q], mask_row(g, b, i + tl_imin(l + q, queries - 1), j0), (size_t)keys * sizeof *room);
        tl_transpose(rows[0], TILE, room + l, STEP, 8, keys);
    }
    const float blocked = g->mode == FILL ? TL_FILL_SCORE : -TL_INF;
    const int masked = g->mask != NULL, additive = g->mode == ADDITIVE;
    int32_t first[STEP], end[STEP];
    for (int64_t l = 0; l < STEP; l++) {
        const span open = open_keys(g, i + tl_imin(l, queries - 1), j0, keys);
        first[l] = (int32_t)open.first, end[l] = (int32_t)open.end;
    }
    for (int32_t j = 0; j < (int32_t)keys; j++, room += STEP)
        for (int l = 0; l < STEP; l++) {
            const float bias = !masked ? 0.0f : additive ? room[l] : room[l] == 0.0f ? blocked : 0.0f;
            room[l] = j < first[l] || j >= end[l] ? -TL_INF : bias;
        }
    return room - keys * STEP;
}

/* Turns the products of a tile into scores, in place: row j of s is one of the other side, its first `lanes` lanes count. */
TL_INLINE void score_lanes(const int lanes, const geometry *g, int64_t others, const float *restrict bias,
                           float *restrict s)
{
    const float scale = g->scale;
    if (bias && g->mode == ADDITIVE)
        for (int64_t j = 0; j < others; j++)
            for (int l = 0; l < lanes; l++)
                s[j * STEP + l] = tl_attention_biased(s[j * STEP + l], scale, bias[j * STEP + l]);
    else
        for (int64_t j = 0; j < others; j++)
            for (int l = 0; l < lanes; l++)
                s[j * STEP + l] = tl_attention_score(s[j * STEP + l], scale);
    if (bias && g->mode != ADDITIVE)
        for (int64_t j = 0; j < others; j++)
            for (int l = 0; l < lanes; l++)
                s[j * STEP + l] = bias[j * STEP + l] != 0.0f ? bias[j * STEP + l] : s[j * STEP + l];
}

/* What a tile's weights times g·v - D are, in place of the products t; 0 where blocked. D is a lane's, or with `by_query` a row's. */
TL_INLINE void gradient_lanes(const int lanes, const geometry *g, int64_t others, const float *restrict bias,
                              const float *restrict weight, const float *restrict dot, const int by_query,
                              float *restrict t)
{
    for (int64_t j = 0; j < others; j++)
        for (int l = 0; l < lanes; l++)
            t[j * STEP + l] = weight[j * STEP + l] * (t[j * STEP + l] - dot[by_query ? j : l]);
    const int additive = g->mode == ADDITIVE;
    if (bias)
        for (int64_t j = 0; j < others; j++)
            for (int l = 0; l < lanes; l++) {
                const float x = bias[j * STEP + l];
                t[j * STEP + l] = x == -TL_INF || (!additive && x != 0.0f) ? 0.0f : t[j * STEP + l];
            }
}

/* ---- the running softmax of a step ------------------------------------------------------------------------------- */

/* top: the lane's maximum; factor: for what was accumulated before the tile; begun: whether there is anything. */
typedef struct softmax {
    float top[STEP], factor[STEP], chain[CHAINS][STEP];
    int begun;
} softmax;

/* Chains that no key joins are neither kept nor added: they are 0. */
static inline void start_softmax(softmax *m, int64_t keys)
{
    m->begun = 0;
    for (int l = 0; l < STEP; l++)
        m->top[l] = -TL_INF;
    memset(m->chain, 0, sizeof m->chain[0] * (size_t)tl_imax(tl_imin(keys, CHAINS), 1));
}

/* Takes the maxima of the scores into the lanes'; NaN is passed over. Four of each lane run side by side. */
TL_INLINE void find_maxima(const int lanes, int64_t keys, const float *restrict s, softmax *restrict m)
{
    float top[4][STEP];
    for (int i = 0; i < 4; i++)
        for (int l = 0; l < lanes; l++)
            top[i][l] = m->top[l];
    for (int64_t j = 0; j < keys; j++)
        for (int l = 0; l < lanes; l++)
            top[j % 4][l] = s[j * STEP + l] > top[j % 4][l] ? s[j * STEP + l] : top[j % 4][l];
    for (int l = 0; l < lanes; l++) {
        const float left = top[2][l] > top[0][l] ? top[2][l] : top[0][l];
        const float right = top[3][l] > top[1][l] ? top[3][l] : top[1][l];
        const float most = right > left ? right : left;
        m->factor[l] = most > m->top[l] ? tl_attention_weight(m->top[l] - most) : 1.0f;
        m->top[l] = most;
    }
}

/* Turns the scores into weights relative to the lanes' maxima (NaN into NaN). */
TL_INLINE void weigh_lanes(const int lanes, int64_t keys, float *restrict s, softmax *restrict m)
{
    float base[STEP];
    int32_t grown = 0;
    for (int l = 0; l < lanes; l++) {
        base[l] = m->top[l] == -TL_INF ? 0.0f : m->top[l];
        grown |= m->factor[l] != 1.0f;
    }
    for (int i = 0; grown && m->begun && i < CHAINS; i++)
        for (int l = 0; l < lanes; l++)
            m->chain[i][l] *= m->factor[l];
    for (int64_t j = 0; j < keys; j++) {
        float *restrict chain = m->chain[j % CHAINS];
        for (int l = 0; l < lanes; l++) {
            const float w = tl_attention_weight(s[j * STEP + l] - base[l]);
            s[j * STEP + l] = w;
            chain[l] += w;
        }
    }
}

/* A tile's products into weights. */
static inline void soften(int vectors, const geometry *g, int64_t keys, const float *bias, float *s, softmax *m)
{
    if (vectors == 2) {
        score_lanes(STEP, g, keys, bias, s);
        find_maxima(STEP, keys, s, m);
        weigh_lanes(STEP, keys, s, m);
    } else {
        score_lanes(TL_LANES, g, keys, bias, s);
        find_maxima(TL_LANES, keys, s, m);
        weigh_lanes(TL_LANES, keys, s, m);
    }
    m->begun = 1;
}

/* What the lanes' sums are divided by: 1 if all was blocked, NaN if all scores were -inf or one was NaN. Folds the
 * chains. */
static inline void find_totals(softmax *m, int64_t keys, float *total)
{
    for (int half = CHAINS / 2; half > 0; half /= 2)
        for (int i = 0; i < half && i + half < keys; i++)
            for (int l = 0; l < STEP; l++)
                m->chain[i][l] += m->chain[i + half][l];
    for (int l = 0; l < STEP; l++) {
        const float sum = m->chain[0][l];
        total[l] = m->top[l] == -TL_INF ? 1.0f + sum : m->top[l] == TL_INFINITE_SCORE ? TL_NAN : sum;
    }
}

/* x[i][k] = sum[k][i] / total[i] · scale, for a step's rows of d elements: divided where there are fewer vectors of
 * them. */
static inline void finish_rows(int vectors, float *sum, int64_t rows, int64_t d, const float *total, float scale,
                               float *x)
{
    const int64_t lanes = vectors * TL_LANES;
    const int turned = rows * tl_ceil_div(d, TL_LANES) < d * vectors;
    for (int64_t c = 0; !turned && c < d; c++)
        for (int64_t l = 0; l < lanes; l++)
            sum[c * STEP + l] = sum[c * STEP + l] / total[l] * scale;
    turn_back(sum, rows, d, x);
    for (int64_t i = 0; turned && i < rows; i++)
        for (int64_t c = 0; c < d; c++)
            x[i * d + c] = x[i * d + c] / total[i] * scale;
}

/* Whether queries i0..i0+count-1, in steps of states, can pass over a tile: all pairs are blocked, none of them weighs
 * anything, and `finite` says that the tile holds nothing that 0 does not erase. */
static inline int skips_tile(const problem *p, int side, int64_t tile, const softmax *states, int64_t b, int64_t i0,
                             int64_t count, int64_t j0, int64_t keys)
{
    if (!p->of.masked || !p->finite[side][b * p->tiles + tile]) return 0;
    if (!all_blocked(&p->of, b, i0, i0 + count, j0, j0 + keys)) return 0;
    int weightless = 1;
    for (int64_t i = 0; i < count && p->of.mode == FILL; i++)
        weightless &= states[i / STEP].top[i % STEP] > TL_FILL_VANISHES;
    return weightless;
}

/* ---- passes ------------------------------------------------------------------------------------------------------ */

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

/* The arrays of the other side, of whose tiles a pass may ask whether they are finite. */
typedef struct side_arrays {
    problem *p;
    const float *x[2];
    int64_t d[2];
} side_arrays;

/* Unit: one tile of both arrays. */
static inline void check_tile(void *arg, int64_t tile, TL_UNUSED int32_t worker)
{
    const side_arrays *a = (const side_arrays *)arg;
    const problem *p = a->p;
    const int64_t first = tile % p->tiles * TILE, row = tile / p->tiles * p->others + first;
    const int64_t rows = tl_imin(TILE, p->others - first);
    for (int i = 0; i < 2; i++)
        if (a->x[i]) p->finite[i][tile] = (uint8_t)all_finite(a->x[i] + row * a->d[i], rows * a->d[i]);
}

/* One pass: runs a task per block of rows with `work` floats each. `arg` begins with the problem. x and y: what a tile
 * must hold only finite numbers of to be passed over, NULL for none, dx and dy elements to a row. */
static inline int32_t run_pass(tl_context *ctx, problem *p, void *arg, const float *x, int64_t dx, const float *y,
                               int64_t dy, int64_t work, tl_task_fn fn)
{
    const int64_t tiles = p->of.masked ? p->of.batch * p->tiles : 0;
    p->work_size = tl_ceil_div(work, 16) * 16;
    void *scratch;
    const size_t floats = (size_t)(tl_workers() * p->work_size);
    const int32_t status = tl_pool_alloc(ctx, floats * sizeof(float) + 2 * (size_t)tiles, &scratch);
    if (status) return status;
    p->work = scratch;
    p->finite[0] = (uint8_t *)(p->work + floats);
    p->finite[1] = p->finite[0] + tiles;
    if (tiles) {
        side_arrays a = {p, {x, y}, {dx, dy}};
        run_units(tiles, tl_imin(TILE, p->others) * (dx + dy) / 4, check_tile, &a);
    }
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
