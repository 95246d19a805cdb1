/* A task owns BLOCK rows of one member of the batch (queries; keys when the gradients of K and V are made), widened and packed
 * in panels, and goes through the other side in tiles, in order; a tile is widened once for all panels. The products of
 * panels and tiles are those of linalg/gemm.c in float64. */
#include "cpu/attention/chain.h"

#include <string.h>

#include "core/threads.h"
#include "cpu/linalg/gemm.h"
#include "formula/attention_chain.h"
#include "formula/chain.h"

#define LANES (TL_GEMM_LANES / 2)
#define STRIP (2 * LANES)
#define MR TL_GEMM_MR

enum { CHAIN_ROWS = 96, CHAIN_TILE = TL_ATTENTION_TILE };

/* Where rows of a block or a tile begin. */
typedef const float *row_list[CHAIN_ROWS];

/* Rows of doubles in whole strips. */
static int64_t whole(int64_t width) { return tl_ceil_div(width, STRIP) * STRIP; }

/* ---- panels and tiles -------------------------------------------------------------------------------------------- */

/* `count` rows as panels of MR rows: element (row r, coordinate k) of panel q at [q][k][r]; absent rows are 0. */
static void pack_panels(const row_list x, int64_t count, int64_t d, double *to)
{
    for (int64_t q = 0; q * MR < count; q++, to += MR * d)
        for (int64_t r = 0; r < MR; r++) {
            const float *row = q * MR + r < count ? x[q * MR + r] : NULL;
            for (int64_t k = 0; k < d; k++)
                to[k * MR + r] = row ? (double)row[k] : 0.0;
        }
}

/* `count` rows of a tile, coordinate by coordinate: [d][CHAIN_TILE]. */
static void pack_across(const row_list x, int64_t count, int64_t d, double *to)
{
    for (int64_t j = 0; j < CHAIN_TILE; j++)
        for (int64_t k = 0; k < d; k++)
            to[k * CHAIN_TILE + j] = j < count ? (double)x[j][k] : 0.0;
}

/* The same row by row: [count][whole(d)]. */
static void pack_along(const row_list x, int64_t count, int64_t d, double *to)
{
    const int64_t width = whole(d);
    for (int64_t j = 0; j < count; j++)
        for (int64_t k = 0; k < width; k++)
            to[j * width + k] = k < d ? (double)x[j][k] : 0.0;
}

/* Whether `count` rows hold no infinity and no NaN. */
static int rows_finite(const row_list x, int64_t count, int64_t width)
{
    for (int64_t j = 0; j < count; j++)
        if (!all_finite(x[j], width)) return 0;
    return 1;
}

/* out[MR][CHAIN_TILE] = panel · tile across. */
static void multiply_across(const double *panel, int64_t d, const double *across, double *out)
{
    if (d == 0) memset(out, 0, MR * CHAIN_TILE * sizeof *out);
    for (int64_t k = 0; k < d; k += TL_GEMM_KC)
        for (int64_t j = 0; j < CHAIN_TILE; j += STRIP)
            tl_gemm_panel_f64(MR, 2, tl_imin(d - k, TL_GEMM_KC), panel + k * MR, across + k * CHAIN_TILE + j,
                              CHAIN_TILE, out + j, CHAIN_TILE, k ? TL_GEMM_CONTINUE : TL_GEMM_STORE);
}

/* sums[MR][whole(d)] goes on with w[inner][MR] · tile along. */
static void accumulate_along(const double *w, int64_t inner, const double *along, int64_t width, double *sums)
{
    for (int64_t c = 0; c < width; c += STRIP)
        tl_gemm_panel_f64(MR, 2, inner, w, along + c, width, sums + c, width, TL_GEMM_CONTINUE);
}

/* ---- rows of queries --------------------------------------------------------------------------------------------- */

/* What a pass over queries keeps of each of them. */
typedef struct softmax_row {
    float top;
    double sum[TL_ATTENTION_SUMS];
} softmax_row;

typedef struct statistics {
    double *reference, *inverse, *dot; /* of the weights, 1/Σ of them, D */
} statistics;

typedef struct pass {
    geometry of;
    layouts at;
    const float *Q, *K, *V, *out, *g;
    float *result, *gQ, *gK, *gV;
    statistics kept;
    double *work; /* per worker */
    int64_t work_size;
} pass;

/* Rows i0 .. i0 + count - 1 of member b of an array of queries, or of one of keys. */
static void find_queries(const geometry *of, const layout *at, const float *x, int64_t b, int64_t i0, int64_t count,
                         row_list to)
{
    for (int64_t i = 0; i < count; i++)
        to[i] = x + query_place(of, at, b, i0 + i);
}
static void find_keys(const geometry *of, const layout *at, const float *x, int64_t b, int64_t j0, int64_t count,
                      row_list to)
{
    for (int64_t j = 0; j < count; j++)
        to[j] = x + key_place(of, at, b, j0 + j);
}

static void start_row(softmax_row *row) { *row = (softmax_row){.top = -TL_INF}; }

/* The scores of one query with a tile of keys from j0 on, from their products; -inf where blocked. */
static void scores_of(const geometry *of, int64_t b, int64_t i, int64_t j0, int64_t keys,
                      const double *restrict product, float *restrict s)
{
    for (int j = 0; j < CHAIN_TILE; j++)
        s[j] = (float)product[j];
    row_scores(s, CHAIN_TILE, of, mask_row(of, b, i, j0), keys, open_keys(of, i, j0, keys));
}

/* Weights times g·v - D, 0 where blocked; in place of the weights. */
static void score_gradients(const pass *a, int64_t b, int64_t i, int64_t j0, int64_t keys, const float *restrict s,
                            const double *restrict t, double dot, double *restrict w)
{
    for (int j = 0; j < CHAIN_TILE; j++)
        w[j] = s[j] == -TL_INF ? 0.0 : tl_round_24(w[j] * (t[j] - dot));
    const float *mask = a->of.mode == FILL ? mask_row(&a->of, b, i, j0) : NULL;
    for (int64_t j = 0; mask && j < keys; j++)
        w[j] = mask[j] == 0.0f ? 0.0 : w[j];
}

/* Weights of a row's scores with the keys of a tile. */
static void row_weights(const float *restrict s, double reference, double *restrict w)
{
    const int32_t quick = tl_quick_reference(reference);
    int32_t all = 1;
    for (int j = 0; j < CHAIN_TILE; j++)
        all &= tl_is_quick(s[j]);
    for (int j = 0; j < CHAIN_TILE; j++)
        w[j] = tl_weight_quick(s[j], quick);
    for (int j = 0; j < CHAIN_TILE && !all; j++)
        w[j] = tl_is_quick(s[j]) ? w[j] : tl_weight_large(s[j], reference);
}

/* Turns scores into weights, and scales what the row accumulated before, `width` elements, to their reference. */
static void weigh(const float *restrict s, softmax_row *restrict row, double *restrict w, double *restrict accumulated,
                  int64_t width)
{
    float top = row->top;
    for (int j = 0; j < CHAIN_TILE; j++)
        top = s[j] > top ? s[j] : top;
    const double factor = tl_weight_rescale(row->top, top);
    if (factor != 1.0) {
        for (int64_t c = 0; c < width; c++)
            accumulated[c] *= factor;
        for (int l = 0; l < TL_ATTENTION_SUMS; l++)
            row->sum[l] *= factor;
    }
    row->top = top;
    row_weights(s, tl_weight_reference(top), w);
    for (int j = 0; j < CHAIN_TILE; j += TL_ATTENTION_SUMS)
        for (int l = 0; l < TL_ATTENTION_SUMS; l++)
            row->sum[l] += w[j + l];
}

/* Adds a segment's row to that of the segments before it. */
static void join_rows(softmax_row *total, const softmax_row *part, double *restrict sums, const double *restrict more,
                      int64_t width)
{
    const float top = part->top > total->top ? part->top : total->top;
    const double old = tl_weight_rescale(total->top, top), new = tl_weight_rescale(part->top, top);
    for (int64_t c = 0; c < width; c++)
        sums[c] = sums[c] * old + more[c] * new;
    for (int l = 0; l < TL_ATTENTION_SUMS; l++)
        total->sum[l] = total->sum[l] * old + part->sum[l] * new;
    total->top = top;
}

static double total_of(const softmax_row *row)
{
    return tl_weight_total(row->top, (row->sum[0] + row->sum[2]) + (row->sum[1] + row->sum[3]));
}

/* ---- the pass over queries: the result, or gQ and what the pass over keys needs -------------------------------------- */

/* What a task packs and accumulates, in doubles. */
static int64_t query_work(const geometry *of, int backward)
{
    const int64_t d = of->d, v = of->v, width = whole(backward ? d : v), blocks = tl_ceil_div(CHAIN_ROWS, MR) * MR;
    return blocks * (d + (backward ? v : 0)) + CHAIN_TILE * (d + v + width) + 2 * blocks * width + 3 * MR * CHAIN_TILE;
}

/* D of some queries, by chains like those of g·v_j. */
static void dot_products(const row_list g, const row_list out, int64_t count, int64_t v, double *dot)
{
    for (int64_t i = 0; i < count; i++) {
        dot[i] = 0.0;
        for (int64_t c = 0; c < v; c++)
            dot[i] += (double)g[i][c] * (double)out[i][c];
    }
}

/* The tiles from j0 on of a segment, for the rows of a task. */
typedef struct query_block {
    int64_t b, i0, count, width;
    double *queries, *cotangents, *keys, *values, *along, *product, *t, *w;
    const double *dot;
} query_block;

static void query_segment(const pass *a, const query_block *x, int64_t from, int64_t to, softmax_row *row, double *sums)
{
    const geometry *of = &a->of;
    const int64_t d = of->d, v = of->v;
    const int gradient = a->gQ != NULL, weights_alone = !gradient && !a->result;
    row_list of_k, of_v;
    const row_list *const summed = gradient ? &of_k : &of_v;
    const int64_t summed_width = gradient ? d : v;
    for (int64_t i = 0; i < x->count; i++)
        start_row(&row[i]);
    memset(sums, 0, (size_t)(tl_ceil_div(x->count, MR) * MR * x->width) * sizeof *sums);
    for (int64_t j0 = from; j0 < to && !tl_interrupted(); j0 += CHAIN_TILE) {
        const int64_t keys = tl_imin(CHAIN_TILE, to - j0);
        find_keys(of, &a->at.k, a->K, x->b, j0, keys, of_k);
        find_keys(of, &a->at.v, a->V, x->b, j0, keys, of_v);
        if (of->mode != FILL && all_blocked(of, x->b, x->i0, x->i0 + x->count, j0, j0 + keys) &&
            rows_finite(*summed, keys, summed_width))
            continue;
        pack_across(of_k, keys, d, x->keys);
        if (gradient) pack_across(of_v, keys, v, x->values);
        if (!weights_alone) pack_along(*summed, keys, summed_width, x->along);
        for (int64_t first = 0; first < x->count; first += MR) {
            double *panel_sums = sums + first * x->width;
            float s[CHAIN_TILE];
            double w[CHAIN_TILE];
            multiply_across(x->queries + first * d, d, x->keys, x->product);
            if (gradient) multiply_across(x->cotangents + first * v, v, x->values, x->t);
            memset(x->w, 0, MR * CHAIN_TILE * sizeof *x->w);
            for (int64_t r = 0; r < tl_imin(MR, x->count - first); r++) {
                const int64_t i = x->i0 + first + r;
                scores_of(of, x->b, i, j0, keys, x->product + r * CHAIN_TILE, s);
                weigh(s, &row[first + r], w, panel_sums + r * x->width, x->width);
                if (gradient) score_gradients(a, x->b, i, j0, keys, s, x->t + r * CHAIN_TILE, x->dot[first + r], w);
                for (int j = 0; j < CHAIN_TILE; j++)
                    x->w[j * MR + r] = w[j];
            }
            if (!weights_alone) accumulate_along(x->w, keys, x->along, x->width, panel_sums);
        }
    }
}

static void query_task(void *arg, int64_t task, int32_t worker)
{
    const pass *a = arg;
    const geometry *of = &a->of;
    const int backward = a->kept.dot != NULL;
    const int64_t d = of->d, v = of->v, blocks = tl_ceil_div(of->rows, CHAIN_ROWS),
                  panels = tl_ceil_div(CHAIN_ROWS, MR) * MR;
    query_block x = {.b = task / blocks, .i0 = task % blocks * CHAIN_ROWS, .width = whole(backward ? d : v)};
    x.count = tl_imin(CHAIN_ROWS, of->rows - x.i0);
    x.queries = a->work + worker * a->work_size;
    x.cotangents = x.queries + panels * d;
    x.keys = x.cotangents + (backward ? panels * v : 0);
    x.values = x.keys + CHAIN_TILE * d;
    x.along = x.values + CHAIN_TILE * v;
    x.product = x.along + CHAIN_TILE * x.width;
    x.t = x.product + MR * CHAIN_TILE;
    x.w = x.t + MR * CHAIN_TILE;
    double *sums = x.w + MR * CHAIN_TILE, *part = sums + panels * x.width, dot[CHAIN_ROWS];
    softmax_row row[CHAIN_ROWS], more[CHAIN_ROWS];
    const int64_t at = x.b * of->rows + x.i0, segment = tl_chain_segment(of->keys);
    row_list rows, of_out;

    find_queries(of, &a->at.q, a->Q, x.b, x.i0, x.count, rows);
    pack_panels(rows, x.count, d, x.queries);
    if (backward) {
        find_queries(of, &a->at.g, a->g, x.b, x.i0, x.count, rows);
        find_queries(of, &a->at.out, a->out, x.b, x.i0, x.count, of_out);
        dot_products(rows, of_out, x.count, v, dot);
        x.dot = dot;
        pack_panels(rows, x.count, v, x.cotangents);
    }
    query_segment(a, &x, 0, tl_imin(segment, of->keys), row, sums);
    for (int64_t from = segment; from < of->keys; from += segment) {
        query_segment(a, &x, from, tl_imin(from + segment, of->keys), more, part);
        for (int64_t i = 0; i < x.count; i++)
            join_rows(&row[i], &more[i], sums + i * x.width, part + i * x.width, x.width);
    }
    for (int64_t i = 0; i < x.count; i++) {
        const double total = total_of(&row[i]), *sum = sums + i * x.width;
        float *result = a->result ? a->result + query_place(of, &a->at.out, x.b, x.i0 + i) : NULL;
        float *gQ = a->gQ ? a->gQ + query_place(of, &a->at.gq, x.b, x.i0 + i) : NULL;
        for (int64_t c = 0; c < v && result; c++)
            result[c] = (float)(sum[c] / total) + 0.0f;
        for (int64_t c = 0; c < d && gQ; c++)
            gQ[c] = (float)(sum[c] / total * (double)of->scale) + 0.0f;
        if (backward) {
            a->kept.reference[at + i] = tl_weight_reference(row[i].top);
            a->kept.inverse[at + i] = 1.0 / total;
            a->kept.dot[at + i] = dot[i];
        }
    }
}

/* ---- the pass over keys ------------------------------------------------------------------------------------------ */

static int64_t key_work(const geometry *of)
{
    const int64_t d = of->d, v = of->v, widths = whole(d) + whole(v), blocks = tl_ceil_div(CHAIN_ROWS, MR) * MR;
    return blocks * (d + v) + CHAIN_TILE * (d + v + widths) + 2 * blocks * widths + 4 * MR * CHAIN_TILE +
           CHAIN_ROWS * CHAIN_TILE / 2;
}

typedef struct key_block {
    int64_t b, j0, count;
    double *keys, *values, *queries, *cotangents, *along_q, *along_g, *product, *t, *p, *ds;
    float *bias; /* [CHAIN_ROWS][CHAIN_TILE]: -inf where blocked */
} key_block;

/* Biases, a row for each key. */
static void transpose_bias(const pass *a, const key_block *x, int64_t i0, int64_t queries)
{
    float row[CHAIN_ROWS];
    for (int64_t i = 0; i < queries; i++) {
        bias_row(&a->of, x->b, i0 + i, x->j0, x->count, row);
        for (int64_t j = 0; j < x->count; j++)
            x->bias[j * CHAIN_TILE + i] = row[j];
    }
}

/* Weights of one key for a tile of queries, in p, and their gradients, in ds: products s = q·k and t = g·v are given. */
static void key_row(const pass *a, const float *restrict bias, const double *restrict product, const double *restrict t,
                    int64_t at, int64_t queries, double *restrict p, double *restrict ds)
{
    const geometry *of = &a->of;
    const int masked = of->masked, additive = of->mode == ADDITIVE, fill = of->mode == FILL;
    const double *reference = a->kept.reference + at, *inverse = a->kept.inverse + at, *dot = a->kept.dot + at;
    float s[CHAIN_TILE];
    int32_t blocked[CHAIN_TILE];
    for (int64_t i = 0; i < queries; i++) {
        const float plain = tl_attention_score((float)product[i], of->scale), b = masked ? bias[i] : 0.0f;
        const float biased = tl_attention_biased((float)product[i], of->scale, b);
        blocked[i] = b == -TL_INF || (fill && b != 0.0f);
        s[i] = b == -TL_INF ? -TL_INF : fill && b != 0.0f ? TL_FILL_SCORE : additive ? biased : plain;
    }
    for (int64_t i = 0; i < queries; i++)
        p[i] = tl_weight_quick(s[i], tl_quick_reference(reference[i]));
    for (int64_t i = 0; i < queries; i++)
        if (!tl_is_quick(s[i])) p[i] = tl_weight_large(s[i], reference[i]);
    for (int64_t i = 0; i < queries; i++) {
        p[i] = tl_round_24(p[i] * inverse[i]);
        ds[i] = blocked[i] ? 0.0 : tl_round_24(p[i] * (t[i] - dot[i]));
    }
}

static void key_segment(const pass *a, const key_block *x, int64_t from, int64_t to, double *gK, double *gV)
{
    const geometry *of = &a->of;
    const int64_t d = of->d, v = of->v, width = whole(d), v_width = whole(v), panels = tl_ceil_div(x->count, MR) * MR;
    memset(gK, 0, (size_t)(panels * width) * sizeof *gK);
    memset(gV, 0, (size_t)(panels * v_width) * sizeof *gV);
    for (int64_t i0 = from; i0 < to && !tl_interrupted(); i0 += CHAIN_TILE) {
        const int64_t queries = tl_imin(CHAIN_TILE, to - i0), at = x->b * of->rows + i0;
        row_list of_q, of_g;
        find_queries(of, &a->at.q, a->Q, x->b, i0, queries, of_q);
        find_queries(of, &a->at.g, a->g, x->b, i0, queries, of_g);
        if (of->mode != FILL && all_blocked(of, x->b, i0, i0 + queries, x->j0, x->j0 + x->count) &&
            rows_finite(of_q, queries, d) && rows_finite(of_g, queries, v)) {
            int32_t counts = 0; /* the weights of a row that is NaN are NaN, blocked or not */
            for (int64_t i = 0; i < queries; i++)
                counts |= a->kept.inverse[at + i] != a->kept.inverse[at + i];
            if (!counts) continue;
        }
        if (of->masked) transpose_bias(a, x, i0, queries);
        pack_across(of_q, queries, d, x->queries);
        if (a->gK) pack_across(of_g, queries, v, x->cotangents);
        if (a->gK) pack_along(of_q, queries, d, x->along_q);
        if (a->gV) pack_along(of_g, queries, v, x->along_g);
        for (int64_t first = 0; first < x->count; first += MR) {
            multiply_across(x->keys + first * d, d, x->queries, x->product);
            if (a->gK) multiply_across(x->values + first * v, v, x->cotangents, x->t);
            memset(x->p, 0, 2 * MR * CHAIN_TILE * sizeof *x->p);
            for (int64_t r = 0; r < tl_imin(MR, x->count - first); r++) {
                double p[CHAIN_TILE], ds[CHAIN_TILE];
                key_row(a, x->bias + (first + r) * CHAIN_TILE, x->product + r * CHAIN_TILE, x->t + r * CHAIN_TILE, at,
                        queries, p, ds);
                for (int64_t i = 0; i < queries; i++) {
                    x->p[i * MR + r] = p[i];
                    x->ds[i * MR + r] = ds[i];
                }
            }
            if (a->gV) accumulate_along(x->p, queries, x->along_g, v_width, gV + first * v_width);
            if (a->gK) accumulate_along(x->ds, queries, x->along_q, width, gK + first * width);
        }
    }
}

static void key_task(void *arg, int64_t task, int32_t worker)
{
    const pass *a = arg;
    const geometry *of = &a->of;
    const int64_t d = of->d, v = of->v, width = whole(d), v_width = whole(v),
                  blocks = tl_ceil_div(of->keys, CHAIN_ROWS);
    const int64_t panels = tl_ceil_div(CHAIN_ROWS, MR) * MR, segment = tl_chain_segment(of->rows);
    key_block x = {.b = task / blocks, .j0 = task % blocks * CHAIN_ROWS};
    x.count = tl_imin(CHAIN_ROWS, of->keys - x.j0);
    x.keys = a->work + worker * a->work_size;
    x.values = x.keys + panels * d;
    x.queries = x.values + panels * v;
    x.cotangents = x.queries + CHAIN_TILE * d;
    x.along_q = x.cotangents + CHAIN_TILE * v;
    x.along_g = x.along_q + CHAIN_TILE * width;
    x.product = x.along_g + CHAIN_TILE * v_width;
    x.t = x.product + MR * CHAIN_TILE;
    x.p = x.t + MR * CHAIN_TILE;
    x.ds = x.p + MR * CHAIN_TILE;
    double *gK = x.ds + MR * CHAIN_TILE, *gV = gK + panels * width, *more_K = gV + panels * v_width;
    double *more_V = more_K + panels * width;
    x.bias = (float *)(more_V + panels * v_width);
    row_list rows;

    find_keys(of, &a->at.k, a->K, x.b, x.j0, x.count, rows);
    pack_panels(rows, x.count, d, x.keys);
    find_keys(of, &a->at.v, a->V, x.b, x.j0, x.count, rows);
    pack_panels(rows, x.count, v, x.values);
    memset(x.t, 0, MR * CHAIN_TILE * sizeof *x.t);
    key_segment(a, &x, 0, tl_imin(segment, of->rows), gK, gV);
    for (int64_t from = segment; from < of->rows; from += segment) {
        key_segment(a, &x, from, tl_imin(from + segment, of->rows), more_K, more_V);
        for (int64_t e = 0; e < panels * width; e++)
            gK[e] += more_K[e];
        for (int64_t e = 0; e < panels * v_width; e++)
            gV[e] += more_V[e];
    }
    for (int64_t j = 0; j < x.count; j++) {
        float *to_k = a->gK ? a->gK + key_place(of, &a->at.gk, x.b, x.j0 + j) : NULL;
        float *to_v = a->gV ? a->gV + key_place(of, &a->at.gv, x.b, x.j0 + j) : NULL;
        for (int64_t c = 0; c < d && to_k; c++)
            to_k[c] = (float)(gK[j * width + c] * (double)of->scale) + 0.0f;
        for (int64_t c = 0; c < v && to_v; c++)
            to_v[c] = (float)gV[j * v_width + c] + 0.0f;
    }
}

/* ---- the operation ----------------------------------------------------------------------------------------------- */

static int32_t run(tl_context *ctx, pass *a, int64_t work, int64_t rows, tl_task_fn fn)
{
    void *scratch;
    a->work_size = tl_ceil_div(work, 8) * 8;
    const int32_t status = tl_pool_alloc(ctx, (size_t)(tl_workers() * a->work_size) * sizeof(double), &scratch);
    if (status) return status;
    a->work = scratch;
    tl_parallel(a->of.batch * tl_ceil_div(rows, CHAIN_ROWS), fn, a);
    tl_pool_free(ctx, scratch);
    return TORCHLEAN_OK;
}

static layouts contiguous_layouts(const geometry *of)
{
    const int64_t kv_heads = of->kv_heads, heads = kv_heads * of->group;
    const layout q = contiguous_layout(heads, of->queries, of->d, 0),
                 k = contiguous_layout(kv_heads, of->keys, of->d, 0);
    const layout out = contiguous_layout(heads, of->queries, of->v, 0),
                 v = contiguous_layout(kv_heads, of->keys, of->v, 0);
    const layouts all = {.q = q, .k = k, .v = v, .out = out, .g = out, .gq = q, .gk = k, .gv = v};
    return all;
}

int32_t tl_attention_chain(tl_context *ctx, const geometry *of, const layouts *at, const float *Q, const float *K,
                           const float *V, float *out)
{
    pass a = {.of = *of, .at = at ? *at : contiguous_layouts(of), .Q = Q, .K = K, .V = V, .result = out};
    return run(ctx, &a, query_work(of, 0), of->rows, query_task);
}

int32_t tl_attention_chain_bwd(tl_context *ctx, const geometry *of, const layouts *at, const float *Q, const float *K,
                               const float *V, const float *out, const float *g, float *gQ, float *gK, float *gV)
{
    const int64_t rows = of->batch * of->rows;
    void *kept;
    int32_t status = tl_pool_alloc(ctx, (size_t)(3 * rows) * sizeof(double), &kept);
    if (status) return status;
    pass a = {.of = *of, .Q = Q, .K = K, .V = V, .out = out, .g = g, .gQ = gQ, .gK = gK, .gV = gV};
    a.at = at ? *at : contiguous_layouts(of);
    a.kept = (statistics){kept, (double *)kept + rows, (double *)kept + 2 * rows};
    status = run(ctx, &a, query_work(of, 1), of->rows, query_task);
    if (!status && (gK || gV)) status = run(ctx, &a, key_work(of), of->keys, key_task);
    tl_pool_free(ctx, kept);
    return status;
}
