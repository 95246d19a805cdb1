/* Attention on the CPU, forward. A task owns BLOCK queries: their panels, running softmax and weighted sums of V; a
 * tile of keys and values (32 KiB at d = 64) stays in L1 while all panels of the task pass over it. See
 * tiles.h. */
#include "core/threads.h"
#include "cpu/attention/chain.h"
#include "cpu/attention/tiles.h"
#include "formula/integer.h"

typedef struct forward_args {
    problem p;
    float *out;
} forward_args;

/* Work of a task, in floats: packed queries, weighted sums, a panel of scores. */
static int64_t forward_work(const problem *p) { return BLOCK * (p->of.d + whole_width(p->of.v)) + TL_PANEL * TILE; }

static void forward_task(void *arg, int64_t task, int32_t worker)
{
    const forward_args *a = (const forward_args *)arg;
    const problem *p = &a->p;
    const int64_t n = p->of.rows, d = p->of.d, v = p->of.v, width = whole_width(v), blocks = tl_ceil_div(n, BLOCK);
    const int64_t b = task / blocks, i0 = task % blocks * BLOCK, count = tl_imin(BLOCK, n - i0);
    float *panels = p->work + worker * p->work_size, *sums = panels + BLOCK * d, *s = sums + BLOCK * width;
    const packed *K = &p->side[0], *V = &p->side[1];
    row_state row[BLOCK];
    float factor[TL_PANEL];

    pack_panels(a->p.side[2].x + (b * n + i0) * d, count, d, panels);
    memset(sums, 0, (size_t)(panel_rows(count) * width) * sizeof *sums);
    start_rows(row, count);
    for (int64_t t = 0; t < p->tiles && !tl_interrupted(); t++) {
        const int64_t j0 = t * TILE, keys = tl_imin(TILE, p->of.keys - j0);
        if (V->finite[b * p->tiles + t] && all_blocked(&p->of, b, i0, i0 + count, j0, j0 + keys)) {
            int weightless = 1;
            for (int64_t i = 0; i < count && p->of.mode == FILL; i++)
                weightless &= row[i].top > TL_FILL_VANISHES;
            if (weightless) continue;
        }
        const float *across = across_tile(p, K, b, t), *along = along_tile(p, V, b, t);
        for (int64_t q = 0; q * TL_PANEL < count; q++) {
            const int64_t first = q * TL_PANEL, rows = tl_imin(TL_PANEL, count - first);
            panel_scores(panels + first * d, d, across, tile_columns(keys), s);
            panel_maxima(p, b, i0 + first, rows, j0, keys, s, row + first, factor);
            for (int64_t r = 0; r < rows; r++)
                softmax_weights(s + r * TILE, tile_columns(keys), &row[first + r], factor[r],
                                sums + (first + r) * width, width);
            for (int64_t r = rows; r < TL_PANEL; r++)
                memset(s + r * TILE, 0, TILE * sizeof *s);
            panel_accumulate(s, keys, along, width, sums + first * width);
        }
    }
    for (int64_t i = 0; i < count; i++) {
        const float total = softmax_total(&row[i]), *sum = sums + i * width;
        float *out = a->out + (b * n + i0 + i) * v;
        for (int64_t c = 0; c < v; c++)
            out[c] = sum[c] / total;
    }
}

static int32_t forward(tl_context *ctx, const float *Q, const float *K, const float *V, const geometry *of, float *out)
{
    if (tl_is_reproducible(ctx)) return tl_attention_chain(ctx, of, Q, K, V, out);
    forward_args a = {.p = make_problem(of, 0), .out = out};
    int64_t size = add_side(&a.p, K, of->d, ACROSS);
    size += add_side(&a.p, V, of->v, ALONG);
    a.p.side[2].x = Q;
    return run_pass(ctx, &a.p, &a, size, forward_work(&a.p), forward_task);
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
