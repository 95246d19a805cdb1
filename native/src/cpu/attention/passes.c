/* Attention on the CPU, forward and backward, in passes that store nothing of size n x n. See tiles.h.
 *
 *   queries   a task owns BLOCK queries: they, their running softmax and their sums lie in steps of lanes; a tile of keys and
 *             values (32 KiB at d = 64) stays in L1 while all steps of the task pass over it. Forward the sums are those of
 *             values. Backward they are Σ_j e^(s-m) (g·v_j - D) k_j, and m, 1/Σ and D of every query are left for the second
 *             pass
 *   keys      a task owns BLOCK keys and goes through the queries: P = e^(s-m)/Σ is made again, gV += Pᵀ g, gK += dSᵀ Q
 *
 * So no sum is shared between tasks and all are in a fixed order. A score has the same bits in all passes: one chain over d. */
#include "core/threads.h"
#include "cpu/attention/chain.h"
#include "cpu/attention/tiles.h"
#include "formula/integer.h"

/* What the second pass knows of a query. */
typedef struct statistics {
    float *base, *inverse, *dot; /* m, 1/Σ, D */
} statistics;

/* Forward g is NULL. */
typedef struct pass_args {
    problem p;
    const float *Q, *K, *V, *out, *g;
    float *result, *gQ, *gK, *gV;
    statistics of;
} pass_args;

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

/* Work of a task, in floats: scores, g·v and biases of a step; queries and sums in steps, backward cotangents and results. */
static int64_t query_work(const problem *p, int backward)
{
    const int64_t lanes = tl_ceil_div(tl_imin(BLOCK, p->owned), STEP) * STEP, d = p->of.d, v = p->of.v;
    return 3 * TILE * STEP + lanes * (backward ? 2 * (d + v) : d + v);
}

static void query_task(void *arg, int64_t task, int32_t worker)
{
    const pass_args *a = arg;
    const problem *p = &a->p;
    const int backward = a->g != NULL;
    const int64_t n = p->of.rows, d = p->of.d, v = p->of.v, blocks = tl_ceil_div(n, BLOCK);
    const int64_t b = task / blocks, i0 = task % blocks * BLOCK, count = tl_imin(BLOCK, n - i0), at = b * n + i0;
    const int64_t steps = tl_ceil_div(count, STEP), width = backward ? d : v;
    const float *const summed = backward ? a->K : a->V;
    float *const to = backward ? a->gQ : a->result;
    float *s = p->work + worker * p->work_size, *t = s + TILE * STEP, *room = t + TILE * STEP;
    float *queries = room + TILE * STEP, *sums = queries + steps * STEP * d;
    float *cotangents = sums + steps * STEP * width, *out = cotangents + steps * STEP * v;
    float dot[BLOCK], total[STEP];
    softmax states[BLOCK / STEP];

    turn_rows(a->Q + at * d, count, d, queries);
    if (backward) {
        turn_rows(a->g + at * v, count, v, cotangents);
        turn_rows(a->out + at * v, count, v, out);
        dot_products(cotangents, out, count, v, dot);
    }
    for (int64_t u = 0; u < steps; u++)
        start_softmax(&states[u], p->of.keys);
    for (int64_t tile = 0; tile < p->tiles && !tl_interrupted(); tile++) {
        const int64_t j0 = tile * TILE, keys = tl_imin(TILE, p->of.keys - j0), key = b * p->of.keys + j0;
        if (skips_tile(p, 0, tile, states, b, i0, count, j0, keys)) continue;
        for (int64_t u = 0; u < steps; u++) {
            const int64_t first = u * STEP, rows = tl_imin(STEP, count - first);
            const int vectors = vectors_of(count, first);
            const float *bias = find_bias(p, b, i0 + first, rows, j0, keys, 0, room);
            const float *factor = states[u].begun ? states[u].factor : NULL;
            tile_scores(vectors, keys, a->K + key * d, d, queries + first * d, s);
            if (backward && to) tile_scores(vectors, keys, a->V + key * v, v, cotangents + first * v, t);
            soften(vectors, &p->of, keys, bias, s, &states[u]);
            if (!to) continue;
            if (backward && vectors == 2)
                gradient_lanes(STEP, &p->of, keys, bias, s, dot + first, 0, t);
            else if (backward)
                gradient_lanes(TL_LANES, &p->of, keys, bias, s, dot + first, 0, t);
            tile_sums(vectors, keys, summed + key * width, width, backward ? t : s, factor, sums + first * width);
        }
    }
    for (int64_t u = 0; u < steps; u++) {
        const int64_t first = u * STEP, rows = tl_imin(STEP, count - first);
        const softmax *m = &states[u];
        float *sum = sums + first * width;
        find_totals(&states[u], p->of.keys, total);
        for (int64_t i = 0; backward && i < rows; i++) {
            a->of.base[at + first + i] = m->top[i] == -TL_INF ? 0.0f : m->top[i];
            a->of.inverse[at + first + i] = 1.0f / total[i];
            a->of.dot[at + first + i] = dot[first + i];
        }
        if (!to) continue;
        if (!m->begun) memset(sum, 0, (size_t)(STEP * width) * sizeof *sum);
        const float scale = backward ? p->of.scale : 1.0f;
        finish_rows(vectors_of(count, first), sum, rows, width, total, scale, to + (at + first) * width);
    }
}

/* ---- the pass over keys ------------------------------------------------------------------------------------------ */

/* Work of a task, in floats: weights, dS and biases of a step; keys, values and the sums of both gradients, in steps. */
static int64_t key_work(const problem *p)
{
    return 3 * TILE * STEP + tl_ceil_div(tl_imin(BLOCK, p->owned), STEP) * STEP * 2 * (p->of.d + p->of.v);
}

/* Products of a tile's queries with keys in lanes into weights P. */
TL_INLINE void key_weights(const int lanes, const geometry *g, int64_t queries, const float *bias, float *restrict s,
                           const float *restrict base, const float *restrict inverse)
{
    score_lanes(lanes, g, queries, bias, s);
    for (int64_t i = 0; i < queries; i++)
        for (int l = 0; l < lanes; l++)
            s[i * STEP + l] = tl_attention_weight(s[i * STEP + l] - base[i]) * inverse[i];
}

static void key_task(void *arg, int64_t task, int32_t worker)
{
    const pass_args *a = arg;
    const problem *p = &a->p;
    const int64_t n = p->of.keys, d = p->of.d, v = p->of.v, blocks = tl_ceil_div(n, BLOCK);
    const int64_t b = task / blocks, j0 = task % blocks * BLOCK, count = tl_imin(BLOCK, n - j0), at = b * n + j0;
    const int64_t steps = tl_ceil_div(count, STEP);
    float *s = p->work + worker * p->work_size, *t = s + TILE * STEP, *room = t + TILE * STEP, same[STEP];
    float *keys = room + TILE * STEP, *gK = keys + steps * STEP * d, *values = gK + steps * STEP * d;
    float *gV = values + steps * STEP * v;
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
            const float *bias = find_bias(p, b, i0, queries, j0 + first, lanes, 1, room);
            tile_scores(vectors, queries, a->Q + of * d, d, keys + first * d, s);
            if (a->gK) tile_scores(vectors, queries, a->g + of * v, v, values + first * v, t);
            if (vectors == 2) {
                key_weights(STEP, &p->of, queries, bias, s, base, inverse);
                if (a->gK) gradient_lanes(STEP, &p->of, queries, bias, s, dot, 1, t);
            } else {
                key_weights(TL_LANES, &p->of, queries, bias, s, base, inverse);
                if (a->gK) gradient_lanes(TL_LANES, &p->of, queries, bias, s, dot, 1, t);
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

static int32_t forward(tl_context *ctx, const float *Q, const float *K, const float *V, const geometry *of, float *out)
{
    if (tl_is_reproducible(ctx)) return tl_attention_chain(ctx, of, NULL, Q, K, V, out);
    if (tl_attention_few_serves(of)) return tl_attention_few(ctx, of, Q, K, V, out);
    pass_args a = {.p = make_problem(of, 0), .Q = Q, .K = K, .V = V, .result = out};
    return run_pass(ctx, &a.p, &a, V, of->v, NULL, 0, query_work(&a.p, 0), query_task);
}

int32_t tl_cpu_flash_attention(tl_context *ctx, const float *Q, const float *K, const float *V, const float *mask,
                               int64_t batch, int64_t n, int64_t d, int64_t mask_mode, float scale, float *out)
{
    const geometry of = square_geometry(batch, n, d, mask_mode, scale, mask);
    return forward(ctx, Q, K, V, &of, out);
}

int32_t tl_cpu_grouped_attention(tl_context *ctx, const float *Q, const float *K, const float *V, const float *mask,
                                 int64_t batch, int64_t heads, int64_t queries, int64_t d, int64_t kv_heads,
                                 int64_t keys, int64_t width, int64_t mask_mode, int64_t mask_batch, int64_t mask_heads,
                                 int64_t mask_queries, int64_t before, int64_t after, int64_t offset, float scale,
                                 float *out)
{
    const geometry of = grouped_geometry(batch, heads, queries, d, kv_heads, keys, width, mask_mode, mask_batch,
                                         mask_heads, mask_queries, before, after, offset, scale, mask);
    return forward(ctx, Q, K, V, &of, out);
}

/* Everything of `a` but the problems and statistics is given. */
static int32_t backward(tl_context *ctx, pass_args *a, const geometry *of)
{
    if (tl_is_reproducible(ctx))
        return tl_attention_chain_bwd(ctx, of, NULL, a->Q, a->K, a->V, a->out, a->g, a->gQ, a->gK, a->gV);
    const int64_t rows = of->batch * of->rows;
    void *kept;
    int32_t status = tl_pool_alloc(ctx, (size_t)(3 * rows) * sizeof(float), &kept);
    if (status) return status;
    a->of = (statistics){kept, (float *)kept + rows, (float *)kept + 2 * rows};

    a->p = make_problem(of, 0);
    status = run_pass(ctx, &a->p, a, a->K, of->d, NULL, 0, query_work(&a->p, 1), query_task);
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
    pass_args a = {.Q = Q, .K = K, .V = V, .out = out, .g = g, .gQ = gQ, .gK = gK, .gV = gV};
    const geometry of = square_geometry(batch, n, d, mask_mode, scale, mask);
    return backward(ctx, &a, &of);
}

int32_t tl_cpu_grouped_attention_bwd(tl_context *ctx, const float *Q, const float *K, const float *V, const float *mask,
                                     const float *out, const float *g, int64_t batch, int64_t heads, int64_t queries,
                                     int64_t d, int64_t kv_heads, int64_t keys, int64_t width, int64_t mask_mode,
                                     int64_t mask_batch, int64_t mask_heads, int64_t mask_queries, int64_t before,
                                     int64_t after, int64_t offset, float scale, float *gQ, float *gK, float *gV)
{
    pass_args a = {.Q = Q, .K = K, .V = V, .out = out, .g = g, .gQ = gQ, .gK = gK, .gV = gV};
    const geometry of = grouped_geometry(batch, heads, queries, d, kv_heads, keys, width, mask_mode, mask_batch,
                                         mask_heads, mask_queries, before, after, offset, scale, mask);
    return backward(ctx, &a, &of);
}
