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

/* D of some queries, each by the chain that g·v_j is: where a softmax is saturated, out is v_j, D is g·v_j to the bit, and what
 * should vanish does. The chains of a panel overlap. */
static void dot_products(const float *g, const float *out, int64_t count, int64_t d, float *dot)
{
    for (int64_t i = 0; i < count; i += TL_PANEL) {
        const int64_t rows = tl_imin(TL_PANEL, count - i);
        float t[TL_PANEL] = {0};
        for (int64_t k = 0; k < d; k++)
            for (int64_t r = 0; r < rows; r++)
                t[r] = fmaf(g[(i + r) * d + k], out[(i + r) * d + k], t[r]);
        memcpy(dot + i, t, (size_t)rows * sizeof *t);
    }
}

/* ---- the pass over queries --------------------------------------------------------------------------------------- */

/* Work of a task, in floats: packed queries and cotangents, sums, panels of scores and of g·v. */
static int64_t query_work(const problem *p)
{
    return BLOCK * (p->of.d + p->of.v + whole_width(p->of.d)) + 2 * TL_PANEL * TILE;
}

/* weights (of one query) times (g·v - D), 0 where blocked; in place of the weights. */
static void score_gradients(float *restrict w, const float *restrict t, float dot, const problem *p, const float *mask,
                            int64_t keys, span open)
{
    const int64_t columns = tile_columns(keys);
    for (int64_t j = 0; j < columns; j++)
        w[j] *= t[j] - dot;
    if (mask)
        for (int64_t j = 0; j < keys; j++)
            w[j] = mask[j] == p->of.blocks ? 0.0f : w[j];
    for (int64_t j = 0; j < open.first; j++)
        w[j] = 0.0f;
    for (int64_t j = open.end; j < keys; j++)
        w[j] = 0.0f;
}

static void query_task(void *arg, int64_t task, int32_t worker)
{
    const backward_args *a = (const backward_args *)arg;
    const problem *p = &a->p;
    const int64_t n = p->of.rows, d = p->of.d, v = p->of.v, width = whole_width(d), blocks = tl_ceil_div(n, BLOCK);
    const int64_t b = task / blocks, i0 = task % blocks * BLOCK, count = tl_imin(BLOCK, n - i0), at = b * n + i0;
    float *queries = p->work + worker * p->work_size, *cotangents = queries + BLOCK * d, *sums = cotangents + BLOCK * v;
    float *s = sums + BLOCK * width, *t = s + TL_PANEL * TILE;
    const packed *K = &p->side[0], *V = &p->side[1];
    row_state row[BLOCK];
    float dot[BLOCK], factor[TL_PANEL];

    pack_panels(a->Q + at * d, count, d, queries);
    if (a->gQ) {
        pack_panels(a->g + at * v, count, v, cotangents);
        memset(sums, 0, (size_t)(panel_rows(count) * width) * sizeof *sums);
    }
    dot_products(a->g + at * v, a->out + at * v, count, v, dot);
    start_rows(row, count);
    for (int64_t tile = 0; tile < p->tiles && !tl_interrupted(); tile++) {
        const int64_t j0 = tile * TILE, keys = tl_imin(TILE, p->of.keys - j0), columns = tile_columns(keys);
        if (skips_tile(p, K->finite[b * p->tiles + tile], row, b, i0, count, j0, keys)) continue;
        for (int64_t q = 0; q * TL_PANEL < count; q++) {
            const int64_t first = q * TL_PANEL, rows = tl_imin(TL_PANEL, count - first);
            panel_scores(queries + first * d, d, across_tile(p, K, b, tile), columns, s);
            if (a->gQ) panel_scores(cotangents + first * v, v, across_tile(p, V, b, tile), columns, t);
            panel_maxima(p, b, i0 + first, rows, j0, keys, s, row + first, factor);
            for (int64_t r = 0; r < rows; r++) {
                const int64_t i = i0 + first + r;
                float *sum = sums + (first + r) * width;
                softmax_weights(s + r * TILE, columns, &row[first + r], factor[r], sum, a->gQ ? width : 0);
                if (a->gQ)
                    score_gradients(s + r * TILE, t + r * TILE, dot[first + r], p, mask_row(&p->of, b, i, j0), keys,
                                    open_keys(&p->of, i, j0, keys));
            }
            if (a->gQ) accumulate_rows(s, rows, keys, along_tile(p, K, b, tile), width, sums + first * width);
        }
    }
    for (int64_t i = 0; i < count; i++) {
        const float total = softmax_total(&row[i]), *sum = sums + i * width;
        a->of.base[at + i] = row[i].top == -TL_INF ? 0.0f : row[i].top;
        a->of.inverse[at + i] = 1.0f / total;
        a->of.dot[at + i] = dot[i];
        for (int64_t c = 0; c < d && a->gQ; c++)
            a->gQ[(at + i) * d + c] = sum[c] / total * p->of.scale;
    }
}

/* ---- the pass over keys ------------------------------------------------------------------------------------------ */

/* Work of a task, in floats: packed keys and values, sums of both gradients, panels of weights and of dS, and the
 * task's part of the mask, transposed, with what is added to the scores. */
static int64_t key_work(const problem *p)
{
    const int64_t d = p->of.d, v = p->of.v, bias = p->of.mode == ADDITIVE ? BLOCK * TILE : 0;
    return BLOCK * (d + v + whole_width(d) + whole_width(v)) + 2 * TL_PANEL * TILE + bias + BLOCK * TILE / 4;
}

/* Where the pairs of keys j0..j1-1 and queries i0..i1-1 are blocked: blocked[j][i]; what an additive mask has there: bias. */
static void transpose_mask(const problem *p, int64_t b, int64_t i0, int64_t i1, int64_t j0, int64_t j1,
                           uint8_t *blocked, float *bias)
{
    for (int64_t i = i0; i < i1; i++) {
        const span open = open_keys(&p->of, i, j0, j1 - j0);
        const float *mask = mask_row(&p->of, b, i, j0);
        for (int64_t j = 0; j < j1 - j0; j++) {
            const int shut = j < open.first || j >= open.end;
            blocked[j * TILE + i - i0] = (uint8_t)(shut || (mask && mask[j] == p->of.blocks));
            if (p->of.mode == ADDITIVE) bias[j * TILE + i - i0] = mask[j];
        }
    }
}

/* Products of one key with a tile of `count` queries into weights. */
static void key_weights(float *restrict s, const problem *p, const uint8_t *restrict blocked,
                        const float *restrict bias, const float *restrict base, const float *restrict inverse,
                        int64_t count)
{
    if (p->of.mode == ADDITIVE)
        for (int64_t i = 0; i < count; i++)
            s[i] = tl_attention_biased(s[i], p->of.scale, bias[i]);
    else
        for (int64_t i = 0; i < count; i++)
            s[i] = tl_attention_score(s[i], p->of.scale);
    const float fill = p->of.mode == FILL ? TL_FILL_SCORE : -TL_INF;
    if (p->of.masked)
        for (int64_t i = 0; i < count; i++)
            s[i] = blocked[i] ? fill : s[i];
    for (int64_t i = 0; i < count; i++)
        s[i] = tl_attention_weight(s[i] - base[i]) * inverse[i];
}

/* dS = P (g·v - D), 0 where blocked, in t's place. */
static void key_gradients(float *restrict t, const float *restrict weight, const problem *p,
                          const uint8_t *restrict blocked, const float *restrict dot, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        t[i] = weight[i] * (t[i] - dot[i]);
    if (p->of.masked)
        for (int64_t i = 0; i < count; i++)
            t[i] = blocked[i] ? 0.0f : t[i];
}

static void key_task(void *arg, int64_t task, int32_t worker)
{
    const backward_args *a = (const backward_args *)arg;
    const problem *p = &a->p;
    const int64_t n = p->of.keys, d = p->of.d, v = p->of.v, width = whole_width(d), v_width = whole_width(v);
    const int64_t blocks = tl_ceil_div(n, BLOCK), b = task / blocks, j0 = task % blocks * BLOCK;
    const int64_t count = tl_imin(BLOCK, n - j0), at = b * n + j0;
    float *keys = p->work + worker * p->work_size, *values = keys + BLOCK * d, *gK = values + BLOCK * v;
    float *gV = gK + BLOCK * width, *s = gV + BLOCK * v_width, *t = s + TL_PANEL * TILE, *bias = t + TL_PANEL * TILE;
    uint8_t *blocked = (uint8_t *)(bias + (p->of.mode == ADDITIVE ? BLOCK * TILE : 0));
    const packed *Q = &p->side[0], *G = &p->side[1];

    pack_panels(a->K + at * d, count, d, keys);
    if (a->gK) pack_panels(a->V + at * v, count, v, values);
    memset(gK, 0, (size_t)(panel_rows(count) * width) * sizeof *gK);
    memset(gV, 0, (size_t)(panel_rows(count) * v_width) * sizeof *gV);
    if (p->of.masked) memset(blocked, 0, (size_t)(count * TILE));
    for (int64_t tile = 0; tile < p->tiles && !tl_interrupted(); tile++) {
        const int64_t i0 = tile * TILE, queries = tl_imin(TILE, p->of.rows - i0), of = b * p->of.rows + i0;
        const int64_t columns = tile_columns(queries);
        if (p->of.masked) {
            if (Q->finite[b * p->tiles + tile] && G->finite[b * p->tiles + tile] &&
                all_blocked(&p->of, b, i0, i0 + queries, j0, j0 + count)) {
                int weightless = 1; /* the weights of a row that is NaN are NaN, blocked or not */
                for (int64_t i = 0; i < queries; i++)
                    weightless &= a->of.inverse[of + i] == a->of.inverse[of + i] &&
                                  (p->of.mode != FILL || a->of.base[of + i] > TL_FILL_VANISHES);
                if (weightless) continue;
            }
            transpose_mask(p, b, i0, i0 + queries, j0, j0 + count, blocked, bias);
        }
        for (int64_t q = 0; q * TL_PANEL < count; q++) {
            const int64_t first = q * TL_PANEL;
            panel_scores(keys + first * d, d, across_tile(p, Q, b, tile), columns, s);
            if (a->gK) panel_scores(values + first * v, v, across_tile(p, G, b, tile), columns, t);
            for (int64_t r = 0; r < tl_imin(TL_PANEL, count - first);
                 r++) { /* the rows past the last key are dropped */
                const uint8_t *row = blocked + (first + r) * TILE;
                key_weights(s + r * TILE, p, row, bias + (p->of.mode == ADDITIVE ? (first + r) * TILE : 0),
                            a->of.base + of, a->of.inverse + of, queries);
                if (a->gK) key_gradients(t + r * TILE, s + r * TILE, p, row, a->of.dot + of, queries);
            }
            if (a->gV) panel_accumulate(s, queries, along_tile(p, G, b, tile), v_width, gV + first * v_width);
            if (a->gK) panel_accumulate(t, queries, along_tile(p, Q, b, tile), width, gK + first * width);
        }
    }
    for (int64_t j = 0; j < count; j++) {
        for (int64_t c = 0; c < d && a->gK; c++)
            a->gK[(at + j) * d + c] = gK[j * width + c] * p->of.scale;
        for (int64_t c = 0; c < v && a->gV; c++)
            a->gV[(at + j) * v + c] = gV[j * v_width + c];
    }
}

/* ---- the operation ----------------------------------------------------------------------------------------------- */

/* Everything of `a` but the problems and statistics is given. */
static int32_t backward(tl_context *ctx, backward_args *a, const geometry *of)
{
    if (tl_is_reproducible(ctx))
        return tl_attention_chain_bwd(ctx, of, a->Q, a->K, a->V, a->out, a->g, a->gQ, a->gK, a->gV);
    const int64_t rows = of->batch * of->rows;
    void *kept;
    int32_t status = tl_pool_alloc(ctx, (size_t)(3 * rows) * sizeof(float), &kept);
    if (status) return status;
    a->of = (statistics){kept, (float *)kept + rows, (float *)kept + 2 * rows};

    a->p = make_problem(of, 0);
    int64_t size = add_side(&a->p, a->K, of->d, a->gQ ? ACROSS | ALONG : ACROSS);
    if (a->gQ) size += add_side(&a->p, a->V, of->v, ACROSS);
    status = run_pass(ctx, &a->p, a, size, query_work(&a->p), query_task);

    if (!status && (a->gK || a->gV)) {
        a->p = make_problem(of, 1);
        size = add_side(&a->p, a->Q, of->d, a->gK ? ACROSS | ALONG : ACROSS);
        size += add_side(&a->p, a->g, of->v, (a->gK ? ACROSS : 0) | (a->gV ? ALONG : 0));
        status = run_pass(ctx, &a->p, a, size, key_work(&a->p), key_task);
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
