/* Attention on the CPU, backward, in two passes that store nothing of size n x n. See tiles.h.
 *
 *   queries   a task owns BLOCK queries and goes through the keys once: the softmax runs along as in the forward, the
 *             sum Σ_j e^(s-m) (g·v_j - D) k_j is rescaled with it and divided by Σ e^(s-m) at the end. Leaves m, 1/Σ
 *             and D of every query for the second pass
 *   keys      a task owns BLOCK keys and goes through the queries: P = e^(s-m)/Σ is made again, gV += Pᵀ g, gK += dSᵀ Q
 *
 * So no sum is shared between tasks and all are in a fixed order. A score has the same bits in both passes and in the
 * forward: one chain over d. */
#include "core/threads.h"
#include "cpu/attention/chain.h"
#include "cpu/attention/tiles.h"
#include "formula/integer.h"

/* What the second pass knows of a query. */
typedef struct statistics {
    float *base, *inverse, *dot; /* m, 1/Σ, D */
} statistics;

typedef struct backward_args {
    problem p;
    const float *Q, *K, *V, *out, *g;
    float *gQ, *gK, *gV;
    statistics of;
} backward_args;

/* D of some queries, from g and out in steps of lanes, each by the chain that g·v_j is: where a softmax is saturated,
 * out is v_j, D is g·v_j to the bit, and what should vanish does. */
static void dot_products(const float *restrict g, const float *restrict out, int64_t count, int64_t d,
                         float *restrict dot)
{
    memset(dot, 0, BLOCK * sizeof *dot);
    for (int64_t u = 0; u < count; u += STEP) {
        const int64_t lanes = vectors_of(count, u) * TL_LANES;
        for (int64_t k = 0; k < d; k++, g += STEP, out += STEP)
            for (int64_t l = 0; l < lanes; l++)
                dot[u + l] = fmaf(g[l], out[l], dot[u + l]);
    }
}

/* ---- the pass over queries --------------------------------------------------------------------------------------- */

/* Work of a task, in floats: queries, cotangents, results and sums, in steps; scores, g·v and the mask of one. */
static int64_t query_work(const problem *p)
{
    return tl_ceil_div(tl_imin(BLOCK, p->owned), STEP) * STEP * 2 * (p->of.d + p->of.v) +
           (p->of.mask ? 3 : 2) * TILE * STEP;
}

/* s, weights of queries in lanes, times (g·v - D), 0 where blocked. */
TL_INLINE void query_gradients(const int lanes, const geometry *g, int64_t keys, blockade block, float *restrict s,
                               const float *restrict t, const float *restrict dot)
{
    const float *restrict mask = block.mask;
    const int32_t *restrict first = block.first, *restrict end = block.end;
    const float blocks = g->blocks;
    for (int64_t j = 0; j < keys; j++)
        for (int l = 0; l < lanes; l++)
            s[j * STEP + l] *= t[j * STEP + l] - dot[l];
    if (mask)
        for (int64_t j = 0; j < keys; j++)
            for (int l = 0; l < lanes; l++)
                s[j * STEP + l] = mask[j * STEP + l] == blocks ? 0.0f : s[j * STEP + l];
    if (first)
        for (int64_t j = 0; j < keys; j++)
            for (int l = 0; l < lanes; l++)
                s[j * STEP + l] = (int32_t)j < first[l] || (int32_t)j >= end[l] ? 0.0f : s[j * STEP + l];
}

static void query_task(void *arg, int64_t task, int32_t worker)
{
    const backward_args *a = (const backward_args *)arg;
    const problem *p = &a->p;
    const int64_t n = p->of.rows, d = p->of.d, v = p->of.v, blocks = tl_ceil_div(n, BLOCK);
    const int64_t b = task / blocks, i0 = task % blocks * BLOCK, count = tl_imin(BLOCK, n - i0), at = b * n + i0;
    const int64_t steps = tl_ceil_div(count, STEP);
    float *s = p->work + worker * p->work_size, *t = s + TILE * STEP, *queries = t + TILE * STEP;
    float *sums = queries + steps * STEP * d, *cotangents = sums + steps * STEP * d;
    float *out = cotangents + steps * STEP * v;
    float *mask = out + steps * STEP * v, dot[BLOCK], total[STEP];
    int32_t spans[2 * STEP];
    softmax states[BLOCK / STEP];

    turn_rows(a->Q + at * d, count, d, queries);
    turn_rows(a->g + at * v, count, v, cotangents);
    turn_rows(a->out + at * v, count, v, out);
    dot_products(cotangents, out, count, v, dot);
    for (int64_t u = 0; u < steps; u++)
        start_softmax(&states[u], p->of.keys);
    for (int64_t tile = 0; tile < p->tiles && !tl_interrupted(); tile++) {
        const int64_t j0 = tile * TILE, keys = tl_imin(TILE, p->of.keys - j0), key = b * p->of.keys + j0;
        if (skips_tile(p, 0, tile, states, b, i0, count, j0, keys)) continue;
        for (int64_t u = 0; u < steps; u++) {
            const int64_t first = u * STEP, rows = tl_imin(STEP, count - first);
            const int vectors = vectors_of(count, first);
            const blockade block = find_blockade(p, b, i0 + first, rows, j0, keys, mask, spans);
            tile_scores(vectors, keys, a->K + key * d, d, queries + first * d, s);
            if (a->gQ) tile_scores(vectors, keys, a->V + key * v, v, cotangents + first * v, t);
            const float *factor = states[u].begun ? states[u].factor : NULL;
            soften(vectors, &p->of, keys, block, s, &states[u]);
            if (!a->gQ) continue;
            if (vectors == 2)
                query_gradients(STEP, &p->of, keys, block, s, t, dot + first);
            else
                query_gradients(TL_LANES, &p->of, keys, block, s, t, dot + first);
            tile_sums(vectors, keys, a->K + key * d, d, s, factor, sums + first * d);
        }
    }
    for (int64_t u = 0; u < steps; u++) {
        const int64_t first = u * STEP, rows = tl_imin(STEP, count - first);
        const softmax *m = &states[u];
        find_totals(&states[u], p->of.keys, total);
        for (int64_t i = 0; i < rows; i++) {
            a->of.base[at + first + i] = m->top[i] == -TL_INF ? 0.0f : m->top[i];
            a->of.inverse[at + first + i] = 1.0f / total[i];
            a->of.dot[at + first + i] = dot[first + i];
        }
        if (!a->gQ) continue;
        float *sum = sums + first * d;
        if (!m->begun) memset(sum, 0, (size_t)(STEP * d) * sizeof *sum);
        finish_rows(vectors_of(count, first), sum, rows, d, total, p->of.scale, a->gQ + (at + first) * d);
    }
}

/* ---- the pass over keys ------------------------------------------------------------------------------------------ */

/* Work of a task, in floats: keys, values and the sums of both gradients, in steps; weights, dS and the mask of one. */
static int64_t key_work(const problem *p)
{
    return tl_ceil_div(tl_imin(BLOCK, p->owned), STEP) * STEP * 2 * (p->of.d + p->of.v) +
           (p->of.masked ? 4 : 2) * TILE * STEP;
}

/* Products of a tile's queries with keys in lanes into weights P; blocked: which pairs are blocked, or NULL; bias: what
 * an additive mask has there. */
TL_INLINE void key_weights(const int lanes, const geometry *g, int64_t queries, float *restrict s,
                           const int32_t *restrict blocked, const float *restrict bias, const float *restrict base,
                           const float *restrict inverse)
{
    const float scale = g->scale, fill = g->mode == FILL ? TL_FILL_SCORE : -TL_INF;
    if (g->mode == ADDITIVE)
        for (int64_t i = 0; i < queries; i++)
            for (int l = 0; l < lanes; l++)
                s[i * STEP + l] = tl_attention_biased(s[i * STEP + l], scale, bias[i * STEP + l]);
    else
        for (int64_t i = 0; i < queries; i++)
            for (int l = 0; l < lanes; l++)
                s[i * STEP + l] = tl_attention_score(s[i * STEP + l], scale);
    if (blocked)
        for (int64_t i = 0; i < queries; i++)
            for (int l = 0; l < lanes; l++)
                s[i * STEP + l] = blocked[i * STEP + l] ? fill : s[i * STEP + l];
    for (int64_t i = 0; i < queries; i++)
        for (int l = 0; l < lanes; l++)
            s[i * STEP + l] = tl_attention_weight(s[i * STEP + l] - base[i]) * inverse[i];
}

/* dS = P (g·v - D), 0 where blocked, in t's place. */
TL_INLINE void key_gradients(const int lanes, int64_t queries, float *restrict t, const float *restrict weight,
                             const int32_t *restrict blocked, const float *restrict dot)
{
    for (int64_t i = 0; i < queries; i++)
        for (int l = 0; l < lanes; l++)
            t[i * STEP + l] = weight[i * STEP + l] * (t[i * STEP + l] - dot[i]);
    if (blocked)
        for (int64_t i = 0; i < queries; i++)
            for (int l = 0; l < lanes; l++)
                t[i * STEP + l] = blocked[i * STEP + l] ? 0.0f : t[i * STEP + l];
}

/* Where the pairs of `queries` queries from i0 on and `keys` keys from j0 on are blocked, and the additive mask;
 * whether any is. */
static int find_blocked(const problem *p, int64_t b, int64_t i0, int64_t queries, int64_t j0, int64_t keys,
                        int32_t *blocked, float *bias)
{
    int32_t any = 0;
    if (!p->of.mask && all_open(&p->of, i0, i0 + queries, j0, keys)) return 0;
    for (int64_t i = 0; i < queries; i++, blocked += STEP, bias += STEP) {
        const span open = open_keys(&p->of, i0 + i, j0, keys);
        const float *mask = mask_row(&p->of, b, i0 + i, j0);
        for (int32_t j = 0; j < STEP; j++)
            blocked[j] = j < (int32_t)open.first || j >= (int32_t)open.end;
        for (int64_t j = 0; mask && j < keys; j++)
            blocked[j] |= mask[j] == p->of.blocks;
        for (int64_t j = 0; p->of.mode == ADDITIVE && j < STEP; j++)
            bias[j] = j < keys ? mask[j] : 0.0f;
        for (int64_t j = 0; j < keys; j++)
            any |= blocked[j];
    }
    return any;
}

static void key_task(void *arg, int64_t task, int32_t worker)
{
    const backward_args *a = (const backward_args *)arg;
    const problem *p = &a->p;
    const int64_t n = p->of.keys, d = p->of.d, v = p->of.v, blocks = tl_ceil_div(n, BLOCK);
    const int64_t b = task / blocks, j0 = task % blocks * BLOCK, count = tl_imin(BLOCK, n - j0), at = b * n + j0;
    const int64_t steps = tl_ceil_div(count, STEP);
    float *s = p->work + worker * p->work_size, *t = s + TILE * STEP, *keys = t + TILE * STEP;
    float *gK = keys + steps * STEP * d, *values = gK + steps * STEP * d, *gV = values + steps * STEP * v;
    float *bias = gV + steps * STEP * v, same[STEP];
    int32_t *blocked = (int32_t *)(bias + TILE * STEP);
    for (int l = 0; l < STEP; l++)
        same[l] = 1.0f;

    turn_rows(a->K + at * d, count, d, keys);
    if (a->gK) turn_rows(a->V + at * v, count, v, values);
    int begun = 0; /* the sums */
    for (int64_t tile = 0; tile < p->tiles && !tl_interrupted(); tile++) {
        const int64_t i0 = tile * TILE, queries = tl_imin(TILE, p->of.rows - i0), of = b * p->of.rows + i0;
        const float *base = a->of.base + of, *inverse = a->of.inverse + of, *dot = a->of.dot + of;
        if (p->of.masked && p->finite[0][b * p->tiles + tile] && p->finite[1][b * p->tiles + tile] &&
            all_blocked(&p->of, b, i0, i0 + queries, j0, j0 + count)) {
            int weightless = 1; /* the weights of a row that is NaN are NaN, blocked or not */
            for (int64_t i = 0; i < queries; i++)
                weightless &= inverse[i] == inverse[i] && (p->of.mode != FILL || base[i] > TL_FILL_VANISHES);
            if (weightless) continue;
        }
        for (int64_t u = 0; u < steps; u++) {
            const int64_t first = u * STEP, lanes = tl_imin(STEP, count - first);
            const int vectors = vectors_of(count, first);
            const int any = p->of.masked && find_blocked(p, b, i0, queries, j0 + first, lanes, blocked, bias);
            tile_scores(vectors, queries, a->Q + of * d, d, keys + first * d, s);
            if (a->gK) tile_scores(vectors, queries, a->g + of * v, v, values + first * v, t);
            if (vectors == 2) {
                key_weights(STEP, &p->of, queries, s, any ? blocked : NULL, bias, base, inverse);
                if (a->gK) key_gradients(STEP, queries, t, s, any ? blocked : NULL, dot);
            } else {
                key_weights(TL_LANES, &p->of, queries, s, any ? blocked : NULL, bias, base, inverse);
                if (a->gK) key_gradients(TL_LANES, queries, t, s, any ? blocked : NULL, dot);
            }
            if (a->gV) tile_sums(vectors, queries, a->g + of * v, v, s, begun ? same : NULL, gV + first * v);
            if (a->gK) tile_sums(vectors, queries, a->Q + of * d, d, t, begun ? same : NULL, gK + first * d);
        }
        begun = 1;
    }
    if (!begun) {
        memset(gK, 0, (size_t)(steps * STEP * d) * sizeof *gK);
        memset(gV, 0, (size_t)(steps * STEP * v) * sizeof *gV);
    }
    for (int64_t u = 0; u < steps; u++) {
        const int64_t first = u * STEP, rows = tl_imin(STEP, count - first);
        if (a->gK) turn_back(gK + first * d, rows, d, a->gK + (at + first) * d);
        if (a->gV) turn_back(gV + first * v, rows, v, a->gV + (at + first) * v);
    }
    for (int64_t i = 0; a->gK && i < count * d; i++)
        a->gK[at * d + i] *= p->of.scale;
}

/* ---- the operation ----------------------------------------------------------------------------------------------- */

/* Everything of `a` but the problems and statistics is given. */
static int32_t backward(tl_context *ctx, backward_args *a, const geometry *of)
{
    if (tl_is_reproducible(ctx))
        return tl_attention_chain_bwd(ctx, of, NULL, a->Q, a->K, a->V, a->out, a->g, a->gQ, a->gK, a->gV);
    const int64_t rows = of->batch * of->rows;
    void *kept;
    int32_t status = tl_pool_alloc(ctx, (size_t)(3 * rows) * sizeof(float), &kept);
    if (status) return status;
    a->of = (statistics){kept, (float *)kept + rows, (float *)kept + 2 * rows};

    a->p = make_problem(of, 0);
    status = run_pass(ctx, &a->p, a, a->K, of->d, NULL, 0, query_work(&a->p), query_task);
    if (!status && (a->gK || a->gV)) {
        a->p = make_problem(of, 1);
        status = run_pass(ctx, &a->p, a, a->Q, of->d, a->g, of->v, key_work(&a->p), key_task);
    }
    tl_pool_free(ctx, kept);
    return status;
}

int32_t tl_cpu_flash_attention_bwd(tl_context *ctx, const float *Q, const float *K, const float *V, const float *mask,
                                   const float *out, const float *g, int64_t batch, int64_t n, int64_t d,
                                   int64_t mask_mode, float scale, float *gQ, float *gK, float *gV)
{
    backward_args a = {.Q = Q, .K = K, .V = V, .out = out, .g = g, .gQ = gQ, .gK = gK, .gV = gV};
    const geometry of = square_geometry(batch, n, d, mask_mode, scale, mask);
    return backward(ctx, &a, &of);
}

int32_t tl_cpu_grouped_attention_bwd(tl_context *ctx, const float *Q, const float *K, const float *V, const float *mask,
                                     const float *out, const float *g, int64_t batch, int64_t heads, int64_t queries,
                                     int64_t d, int64_t kv_heads, int64_t keys, int64_t width, int64_t mask_mode,
                                     int64_t mask_batch, int64_t mask_heads, int64_t mask_queries, int64_t before,
                                     int64_t after, int64_t offset, float scale, float *gQ, float *gK, float *gV)
{
    backward_args a = {.Q = Q, .K = K, .V = V, .out = out, .g = g, .gQ = gQ, .gK = gK, .gV = gV};
    const geometry of = grouped_geometry(batch, heads, queries, d, kv_heads, keys, width, mask_mode, mask_batch,
                                         mask_heads, mask_queries, before, after, offset, scale, mask);
    return backward(ctx, &a, &of);
}
