/* Attention on the CPU, forward. A task owns BLOCK queries: they, their running softmax and their weighted sums of V
 * lie in steps of lanes; a tile of keys and values (32 KiB at d = 64) stays in L1 while all steps of the task pass over
 * it. See tiles.h. */
#include "core/threads.h"
#include "cpu/attention/chain.h"
#include "cpu/attention/few.h"
#include "cpu/attention/tiles.h"
#include "formula/integer.h"

typedef struct forward_args {
    problem p;
    const float *Q, *K, *V;
    float *out;
} forward_args;

/* Work of a task, in floats: queries, weighted sums, scores and the mask of a step. */
static int64_t forward_work(const problem *p)
{
    const int64_t lanes = tl_ceil_div(tl_imin(BLOCK, p->owned), STEP) * STEP;
    return lanes * (p->of.d + p->of.v) + (p->of.mask ? 2 : 1) * TILE * STEP;
}

static void forward_task(void *arg, int64_t task, int32_t worker)
{
    const forward_args *a = (const forward_args *)arg;
    const problem *p = &a->p;
    const int64_t n = p->of.rows, d = p->of.d, v = p->of.v, blocks = tl_ceil_div(n, BLOCK);
    const int64_t b = task / blocks, i0 = task % blocks * BLOCK, count = tl_imin(BLOCK, n - i0);
    const int64_t steps = tl_ceil_div(count, STEP);
    float *s = p->work + worker * p->work_size, *queries = s + TILE * STEP, *sums = queries + steps * STEP * d;
    float *mask = sums + steps * STEP * v, total[STEP];
    int32_t spans[2 * STEP];
    softmax states[BLOCK / STEP];

    turn_rows(a->Q + (b * n + i0) * d, count, d, queries);
    for (int64_t u = 0; u < steps; u++)
        start_softmax(&states[u], p->of.keys);
    for (int64_t t = 0; t < p->tiles && !tl_interrupted(); t++) {
        const int64_t j0 = t * TILE, keys = tl_imin(TILE, p->of.keys - j0), at = b * p->of.keys + j0;
        if (skips_tile(p, 0, t, states, b, i0, count, j0, keys)) continue;
        for (int64_t u = 0; u < steps; u++) {
            const int64_t first = u * STEP, rows = tl_imin(STEP, count - first);
            const int vectors = vectors_of(count, first);
            const blockade block = find_blockade(p, b, i0 + first, rows, j0, keys, mask, spans);
            tile_scores(vectors, keys, a->K + at * d, d, queries + first * d, s);
            const float *factor = states[u].begun ? states[u].factor : NULL;
            soften(vectors, &p->of, keys, block, s, &states[u]);
            tile_sums(vectors, keys, a->V + at * v, v, s, factor, sums + first * v);
        }
    }
    for (int64_t u = 0; u < steps; u++) {
        const int64_t first = u * STEP, rows = tl_imin(STEP, count - first);
        float *sum = sums + first * v;
        if (!states[u].begun) memset(sum, 0, (size_t)(STEP * v) * sizeof *sum);
        find_totals(&states[u], p->of.keys, total);
        finish_rows(vectors_of(count, first), sum, rows, v, total, 1.0f, a->out + (b * n + i0 + first) * v);
    }
}

static int32_t forward(tl_context *ctx, const float *Q, const float *K, const float *V, const geometry *of, float *out)
{
    if (tl_is_reproducible(ctx)) return tl_attention_chain(ctx, of, NULL, Q, K, V, out);
    if (tl_attention_few_serves(of)) return tl_attention_few(ctx, of, Q, K, V, out);
    forward_args a = {.p = make_problem(of, 0), .Q = Q, .K = K, .V = V, .out = out};
    return run_pass(ctx, &a.p, &a, V, of->v, NULL, 0, forward_work(&a.p), forward_task);
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
