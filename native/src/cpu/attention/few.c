/* Attention of few queries to many keys on the CPU, forward: the lanes of a vector are keys while scores and weights
 * are made, and elements of the values while these are added. A task owns a member of the batch, up to FEW_QUERIES
 * rows, and goes through its keys in tiles. Chains of additions are those of tiles.h: over the elements of a key, in 16
 * chains over the weights, over the keys of a result; maxima and factors are renewed after the same keys. */
#include "cpu/attention/tiles.h"
#include "cpu/linalg/gemm.h"

enum { FEW_QUERIES = 4, MANY_KEYS = 16 };

typedef struct few_args {
    problem p;
    const float *Q, *K, *V;
    float *out;
} few_args;

/* A row: its maximum so far, the chains of its weights. */
typedef struct row_softmax {
    float top, factor, chain[CHAINS];
} row_softmax;

/* sum[r] = sum[r] · factor + sum over j of s[r][j] · x[j], for `lanes` elements of the values x, at most two vectors.
 * */
TL_INLINE void add_values(const int R, int64_t keys, const float *x, int64_t v, int64_t lanes, const float *s,
                          const row_softmax *rows, float *sums, int64_t width)
{
    tl_vec sum[FEW_QUERIES][2];
    const int64_t low = tl_imin(lanes, TL_LANES), high = tl_imin(tl_imax(lanes - TL_LANES, 0), TL_LANES);
#pragma GCC unroll 4
    for (int r = 0; r < R; r++) {
        sum[r][0] = tl_vec_load(sums + r * width) * rows[r].factor;
        sum[r][1] = tl_vec_load(sums + r * width + TL_LANES) * rows[r].factor;
    }
    for (int64_t j = 0; j < keys; j++, x += v) {
        const tl_vec left = tl_load_first(x, low), right = tl_load_first(x + TL_LANES, high);
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) {
            sum[r][0] = tl_vec_fma(s[r * TILE + j], left, sum[r][0]);
            sum[r][1] = tl_vec_fma(s[r * TILE + j], right, sum[r][1]);
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; r++) {
        tl_vec_store(sums + r * width, sum[r][0]);
        tl_vec_store(sums + r * width + TL_LANES, sum[r][1]);
    }
}

/* The same for R rows. */
static void add_rows(int64_t R, int64_t keys, const float *x, int64_t v, int64_t lanes, const float *s,
                     const row_softmax *rows, float *sums, int64_t width)
{
    switch (R) {
    case 1: add_values(1, keys, x, v, lanes, s, rows, sums, width); break;
    case 2: add_values(2, keys, x, v, lanes, s, rows, sums, width); break;
    case 3: add_values(3, keys, x, v, lanes, s, rows, sums, width); break;
    default: add_values(4, keys, x, v, lanes, s, rows, sums, width);
    }
}

/* Scores of `columns` keys, whole chains, into weights relative to the row's maximum; NaN is passed over by the
 * maximum. */
static void soften_row(float *restrict s, int64_t columns, row_softmax *restrict row)
{
    float lane[CHAINS];
    for (int l = 0; l < CHAINS; l++)
        lane[l] = row->top;
    for (int64_t j = 0; j < columns; j += CHAINS)
        for (int l = 0; l < CHAINS; l++)
            lane[l] = s[j + l] > lane[l] ? s[j + l] : lane[l];
    float top = lane[0];
    for (int l = 1; l < CHAINS; l++)
        top = lane[l] > top ? lane[l] : top;
    row->factor = top > row->top ? tl_attention_weight(row->top - top) : 1.0f;
    row->top = top;
    const float base = top == -TL_INF ? 0.0f : top;
    for (int l = 0; l < CHAINS; l++)
        row->chain[l] *= row->factor;
    for (int64_t j = 0; j < columns; j += CHAINS)
        for (int l = 0; l < CHAINS; l++) {
            s[j + l] = tl_attention_weight(s[j + l] - base);
            row->chain[l] += s[j + l];
        }
}

/* What a row's sums are divided by, as find_totals of tiles.h has it. */
static float row_total(row_softmax *row)
{
    for (int half = CHAINS / 2; half > 0; half /= 2)
        for (int l = 0; l < half; l++)
            row->chain[l] += row->chain[l + half];
    return row->top == -TL_INF ? 1.0f + row->chain[0] : row->top == TL_INFINITE_SCORE ? TL_NAN : row->chain[0];
}

static int64_t value_width(const problem *p) { return tl_ceil_div(p->of.v, STEP) * STEP; }

static void few_task(void *arg, int64_t b, int32_t worker)
{
    const few_args *a = (const few_args *)arg;
    const problem *p = &a->p;
    const int64_t rows = p->of.rows, d = p->of.d, v = p->of.v, width = value_width(p);
    float *s = p->work + worker * p->work_size, *sums = s + FEW_QUERIES * TILE, *turned = sums + FEW_QUERIES * width;
    float products[FEW_QUERIES * STEP];
    row_softmax row[FEW_QUERIES];
    for (int64_t r = 0; r < rows; r++)
        row[r] = (row_softmax){.top = -TL_INF};
    memset(sums, 0, (size_t)(rows * width) * sizeof *sums);
    for (int64_t t = 0; t < p->tiles && !tl_interrupted(); t++) {
        const int64_t j0 = t * TILE, keys = tl_imin(TILE, p->of.keys - j0), at = b * p->of.keys + j0;
        const int64_t columns = tl_ceil_div(keys, CHAINS) * CHAINS;
        if (p->of.masked && p->finite[0][b * p->tiles + t] && all_blocked(&p->of, b, 0, rows, j0, j0 + keys)) {
            int weightless = 1;
            for (int64_t r = 0; r < rows && p->of.mode == FILL; r++)
                weightless &= row[r].top > TL_FILL_VANISHES;
            if (weightless) continue;
        }
        for (int64_t j = 0; j < keys; j += STEP) {
            tl_gemm_pack_f32(turned, STEP, tl_imin(STEP, keys - j), d, a->K + (at + j) * d, d, 1);
            tile_scores(2, rows, a->Q + b * rows * d, d, turned, products);
            for (int64_t r = 0; r < rows; r++)
                memcpy(s + r * TILE + j, products + r * STEP, STEP * sizeof *s);
        }
        for (int64_t r = 0; r < rows; r++) {
            row_scores(s + r * TILE, columns, &p->of, mask_row(&p->of, b, r, j0), keys, open_keys(&p->of, r, j0, keys));
            soften_row(s + r * TILE, columns, &row[r]);
        }
        for (int64_t c = 0; c < v; c += STEP)
            add_rows(rows, keys, a->V + at * v + c, v, v - c, s, row, sums + c, width);
    }
    for (int64_t r = 0; r < rows; r++) {
        const float total = row_total(&row[r]);
        for (int64_t c = 0; c < v; c++)
            a->out[(b * rows + r) * v + c] = sums[r * width + c] / total;
    }
}

int tl_attention_few_serves(const geometry *of) { return of->rows <= FEW_QUERIES && of->keys >= MANY_KEYS; }

int32_t tl_attention_few(tl_context *ctx, const geometry *of, const float *Q, const float *K, const float *V,
                         float *out)
{
    few_args a = {.p = make_problem(of, 0), .Q = Q, .K = K, .V = V, .out = out};
    const int64_t work = FEW_QUERIES * (TILE + value_width(&a.p)) + STEP * of->d + STEP;
    return run_pass(ctx, &a.p, &a, V, of->v, NULL, 0, work, few_task);
}
