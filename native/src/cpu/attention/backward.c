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
static int64_t query_work(const problem *p) { return 2 * BLOCK * p->d + BLOCK * p->width + 2 * TL_PANEL * TILE; }

/* weights (of one query) times (g·v - D), 0 where blocked; in place of the weights. */
static void score_gradients(float *restrict w, const float *restrict t, float dot, const problem *p, const float *mask,
                            int64_t keys, int64_t allowed)
{
    for (int j = 0; j < TILE; j++)
        w[j] *= t[j] - dot;
    if (p->mode == FILL || p->mode == HARD)
        for (int64_t j = 0; j < keys; j++)
            w[j] = mask[j] == 0.0f ? 0.0f : w[j];
    if (p->mode == CAUSAL)
        for (int64_t j = allowed > 0 ? allowed : 0; j < keys; j++)
            w[j] = 0.0f;
}

static void query_task(void *arg, int64_t task, int32_t worker)
{
    const backward_args *a = (const backward_args *)arg;
    const problem *p = &a->p;
    const int64_t n = p->n, d = p->d, width = p->width, blocks = tl_ceil_div(n, BLOCK);
    const int64_t b = task / blocks, i0 = task % blocks * BLOCK, count = tl_imin(BLOCK, n - i0), at = (b * n + i0) * d;
    float *queries = p->work + worker * p->work_size, *cotangents = queries + BLOCK * d, *sums = cotangents + BLOCK * d;
    float *s = sums + BLOCK * width, *t = s + TL_PANEL * TILE;
    const packed *K = &p->side[0], *V = &p->side[1];
    row_state row[BLOCK];
    float dot[BLOCK], factor[TL_PANEL];

    pack_panels(a->Q + at, count, d, queries);
    if (a->gQ) {
        pack_panels(a->g + at, count, d, cotangents);
        memset(sums, 0, (size_t)(BLOCK * width) * sizeof *sums);
    }
    dot_products(a->g + at, a->out + at, count, d, dot);
    start_rows(row, BLOCK);
    for (int64_t tile = 0; tile < p->tiles && !tl_interrupted(); tile++) {
        const int64_t j0 = tile * TILE, keys = tl_imin(TILE, n - j0);
        if (skips_tile(p, K->finite[b * p->tiles + tile], row, b, i0, count, j0, keys)) continue;
        for (int64_t q = 0; q * TL_PANEL < count; q++) {
            const int64_t first = q * TL_PANEL, rows = tl_imin(TL_PANEL, count - first);
            panel_scores(queries + first * d, d, across_tile(p, K, b, tile), s);
            if (a->gQ) panel_scores(cotangents + first * d, d, across_tile(p, V, b, tile), t);
            panel_maxima(p, b, i0 + first, rows, j0, keys, s, row + first, factor);
            for (int64_t r = 0; r < rows; r++) {
                const int64_t i = i0 + first + r;
                float *sum = sums + (first + r) * width;
                softmax_weights(s + r * TILE, &row[first + r], factor[r], sum, a->gQ ? width : 0);
                if (a->gQ)
                    score_gradients(s + r * TILE, t + r * TILE, dot[first + r], p, mask_row(p, b, i, j0), keys,
                                    i + 1 - j0);
            }
            if (a->gQ) accumulate_rows(s, rows, keys, along_tile(p, K, b, tile), width, sums + first * width);
        }
    }
    for (int64_t i = 0; i < count; i++) {
        const float total = softmax_total(&row[i]), *sum = sums + i * width;
        a->of.base[b * n + i0 + i] = row[i].top == -TL_INF ? 0.0f : row[i].top;
        a->of.inverse[b * n + i0 + i] = 1.0f / total;
        a->of.dot[b * n + i0 + i] = dot[i];
        for (int64_t c = 0; c < d && a->gQ; c++)
            a->gQ[at + i * d + c] = sum[c] / total * p->scale;
    }
}

/* ---- the pass over keys ------------------------------------------------------------------------------------------ */

/* Work of a task, in floats: packed keys and values, sums of both gradients, panels of weights and of dS, and the
 * task's part of the mask, transposed. */
static int64_t key_work(const problem *p)
{
    return 2 * BLOCK * p->d + 2 * BLOCK * p->width + 2 * TL_PANEL * TILE + BLOCK * TILE / 4;
}

/* Where the pairs of keys j0..j1-1 and queries i0..i1-1 are blocked: blocked[j][i]. */
static void transpose_mask(const problem *p, int64_t b, int64_t i0, int64_t i1, int64_t j0, int64_t j1,
                           uint8_t *blocked)
{
    for (int64_t i = i0; i < i1; i++)
        for (int64_t j = j0; j < j1; j++)
            blocked[(j - j0) * TILE + i - i0] = p->mode == CAUSAL ? j > i : p->mask[(b * p->n + i) * p->n + j] == 0.0f;
}

/* Products of one key with a tile of queries into weights; queries past `count` get what the next pass does not read. */
static void key_weights(float *restrict s, const problem *p, const uint8_t *restrict blocked,
                        const float *restrict base, const float *restrict inverse, int64_t count)
{
    for (int i = 0; i < TILE; i++)
        s[i] = tl_attention_score(s[i], p->scale);
    const float fill = p->mode == FILL ? TL_FILL_SCORE : -TL_INF;
    if (p->mode != NO_MASK)
        for (int i = 0; i < TILE; i++)
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
    if (p->mode != NO_MASK)
        for (int i = 0; i < TILE; i++)
            t[i] = blocked[i] ? 0.0f : t[i];
}

static void key_task(void *arg, int64_t task, int32_t worker)
{
    const backward_args *a = (const backward_args *)arg;
    const problem *p = &a->p;
    const int64_t n = p->n, d = p->d, width = p->width, blocks = tl_ceil_div(n, BLOCK);
    const int64_t b = task / blocks, j0 = task % blocks * BLOCK, count = tl_imin(BLOCK, n - j0), at = (b * n + j0) * d;
    float *keys = p->work + worker * p->work_size, *values = keys + BLOCK * d, *gK = values + BLOCK * d;
    float *gV = gK + BLOCK * width, *s = gV + BLOCK * width, *t = s + TL_PANEL * TILE;
    uint8_t *blocked = (uint8_t *)(t + TL_PANEL * TILE);
    const packed *Q = &p->side[0], *G = &p->side[1];

    pack_panels(a->K + at, count, d, keys);
    if (a->gK) pack_panels(a->V + at, count, d, values);
    memset(gK, 0, (size_t)(2 * BLOCK * width) * sizeof *gK);
    memset(blocked, 0, BLOCK * TILE);
    for (int64_t tile = 0; tile < p->tiles && !tl_interrupted(); tile++) {
        const int64_t i0 = tile * TILE, queries = tl_imin(TILE, n - i0), of = b * n + i0;
        if (p->mode != NO_MASK) {
            if (Q->finite[b * p->tiles + tile] && G->finite[b * p->tiles + tile] &&
                all_blocked(p, b, i0, i0 + queries, j0, j0 + count)) {
                int weightless = 1; /* the weights of a row that is NaN are NaN, blocked or not */
                for (int64_t i = 0; i < queries; i++)
                    weightless &= a->of.inverse[of + i] == a->of.inverse[of + i] &&
                                  (p->mode != FILL || a->of.base[of + i] > TL_FILL_VANISHES);
                if (weightless) continue;
            }
            transpose_mask(p, b, i0, i0 + queries, j0, j0 + count, blocked);
        }
        for (int64_t q = 0; q * TL_PANEL < count; q++) {
            const int64_t first = q * TL_PANEL;
            panel_scores(keys + first * d, d, across_tile(p, Q, b, tile), s);
            if (a->gK) panel_scores(values + first * d, d, across_tile(p, G, b, tile), t);
            for (int64_t r = 0; r < TL_PANEL; r++) { /* rows past the last key are worked on too, and dropped */
                const uint8_t *row = blocked + (first + r) * TILE;
                key_weights(s + r * TILE, p, row, a->of.base + of, a->of.inverse + of, queries);
                if (a->gK) key_gradients(t + r * TILE, s + r * TILE, p, row, a->of.dot + of, queries);
            }
            if (a->gV) panel_accumulate(s, queries, along_tile(p, G, b, tile), width, gV + first * width);
            if (a->gK) panel_accumulate(t, queries, along_tile(p, Q, b, tile), width, gK + first * width);
        }
    }
    for (int64_t j = 0; j < count; j++)
        for (int64_t c = 0; c < d; c++) {
            if (a->gK) a->gK[at + j * d + c] = gK[j * width + c] * p->scale;
            if (a->gV) a->gV[at + j * d + c] = gV[j * width + c];
        }
}

/* ---- the operation ----------------------------------------------------------------------------------------------- */

int32_t tl_cpu_flash_attention_bwd(tl_context *ctx, const float *Q, const float *K, const float *V, const float *mask,
                                   const float *out, const float *g, int64_t batch, int64_t n, int64_t d,
                                   int64_t mask_mode, float scale, float *gQ, float *gK, float *gV)
{
    backward_args a = {.Q = Q, .K = K, .V = V, .out = out, .g = g, .gQ = gQ, .gK = gK, .gV = gV};
    void *kept;
    int32_t status = tl_pool_alloc(ctx, (size_t)(3 * batch * n) * sizeof(float), &kept);
    if (status) return status;
    a.of = (statistics){kept, (float *)kept + batch * n, (float *)kept + 2 * batch * n};

    a.p = make_problem(batch, n, d, mask_mode, scale, mask);
    int64_t size = add_side(&a.p, K, gQ ? ACROSS | ALONG : ACROSS);
    if (gQ) size += add_side(&a.p, V, ACROSS);
    status = run_pass(ctx, &a.p, &a, size, query_work(&a.p), query_task);

    if (!status && (gK || gV)) {
        a.p = make_problem(batch, n, d, mask_mode, scale, mask);
        size = add_side(&a.p, Q, gK ? ACROSS | ALONG : ACROSS);
        size += add_side(&a.p, g, (gK ? ACROSS : 0) | (gV ? ALONG : 0));
        status = run_pass(ctx, &a.p, &a, size, key_work(&a.p), key_task);
    }
    tl_pool_free(ctx, kept);
    return status;
}
