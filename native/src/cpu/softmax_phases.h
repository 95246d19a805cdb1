/* The phases that softmax and cross-entropy share (row_phases.h): the maximum, then the exponentials and their sum. The
 * exponentials of a row of one leaf wait in L1, those of longer rows in the output. */
#pragma once

#include "cpu/row_phases.h"

/* The first member of a job with these phases. */
typedef struct tl_softmax_rows {
    const float *x;
    float *out;
} tl_softmax_rows;

/* Statistics of a row: its maximum, the sum of its exponentials, and what that is needed as. */
enum { MAXIMUM, SUM, DERIVED };

static inline float greater_of(float a, float b) { return b > a ? b : a; }

/* The same of every lane: one instruction. */
TL_INLINE tl_vec greater_lanes(tl_vec a, tl_vec b)
{
#pragma GCC unroll 1
    for (int l = 0; l < TL_LANES; l++)
        a[l] = greater_of(a[l], b[l]);
    return a;
}

TL_INLINE tl_vec least_lanes(void) { return tl_vec_zero() - TL_INF; }

static inline float max_of(const float *x, int64_t n)
{
    float m = -TL_INF;
    for (int64_t i = 0; i < n; i++)
        m = greater_of(m, x[i]);
    return m;
}

/* The maximum of a leaf for shifting exponentials; -inf for n = 0. It passes NaN over: where a row has one, its sum of
 * exponentials is NaN whatever the shift. An operation whose result is the maximum itself needs one that keeps NaN
 * (reduce.c). The maximum has no order: the last vector may overlap those before it. */
static inline float tl_leaf_max(const float *x, int64_t n)
{
    enum { VECTORS = 4 };
    if (n < TL_LANES) return max_of(x, n);
    tl_vec best[VECTORS];
    for (int v = 0; v < VECTORS; v++)
        best[v] = least_lanes();
    int64_t i = 0;
    for (; i + VECTORS * TL_LANES <= n; i += VECTORS * TL_LANES) {
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; v++)
            best[v] = greater_lanes(best[v], tl_vec_load(x + i + v * TL_LANES));
    }
    for (; i < n; i += TL_LANES)
        best[0] = greater_lanes(best[0], tl_vec_load(x + tl_imin(i, n - TL_LANES)));
    float lane[TL_LANES];
    tl_vec_store(lane, greater_lanes(greater_lanes(best[0], best[1]), greater_lanes(best[2], best[3])));
#pragma GCC unroll 4
    for (int s = TL_LANES / 2; s > 0; s /= 2)
#pragma GCC unroll 8
        for (int l = 0; l < s; l++)
            lane[l] = greater_of(lane[l], lane[l + s]);
    return lane[0];
}

TL_LEAF(maximum_leaf) { *p->sum = tl_leaf_max(((const tl_softmax_rows *)arg)->x + p->at, p->n); }

static void maximum_row(TL_UNUSED const void *arg, const tl_row *r)
{
    TL_EACH_ROW(r, stat[MAXIMUM] = max_of(r->sum + k, r->leaves));
}

TL_LEAF(exponential_sum_leaf)
{
    const float *x = ((const tl_softmax_rows *)arg)->x + p->at, m = p->stat[MAXIMUM];
    TL_LEAF_SUM(*p->sum, p->n, tl_exp_at_most_1(x[i] - m));
}

TL_LEAF(exponentials_leaf)
{
    const tl_softmax_rows *a = arg;
    const float *x = a->x + p->at, m = p->stat[MAXIMUM];
    float *e = p->work ? p->work : a->out + p->at;
    TL_LEAF_SUM(*p->sum, p->n, (e[i] = tl_exp_at_most_1(x[i] - m)));
}

static void reciprocal_row(TL_UNUSED const void *arg, const tl_row *r)
{
    TL_EACH_ROW(r, stat[SUM] = tl_sum_of_leaves(r, r->sum, k); stat[DERIVED] = 1.0f / stat[SUM]);
}

/* The logarithms of the rows' sums, all at once, as statistic `which`. */
static inline void tl_put_logarithms(const tl_row *r, int32_t which)
{
    float log[TL_ROW_BLOCK] = {0};
    TL_EACH_ROW(r, (void)stat; log[k] = tl_sum_of_leaves(r, r->sum, k));
    for (int32_t k = 0; k < TL_ROW_BLOCK; k++)
        log[k] = tl_log(log[k]);
    TL_EACH_ROW(r, stat[which] = log[k]);
}

/* The maxima of the rows of a bundle of n columns, as tl_leaf_max. */
static inline void tl_bundle_max(const float *x, int64_t n, float *max)
{
    for (int32_t r = 0; r < TL_BUNDLE; r += TL_LANES) {
        tl_vec best = least_lanes();
        for (int64_t k = 0; k < n; k++)
            best = greater_lanes(best, tl_vec_load(x + k * TL_BUNDLE + r));
        tl_vec_store(max + r, best);
    }
}

/* sum[r] = the sum over k of e^(x - max), of a bundle of n columns. */
static inline void tl_bundle_exponential_sum(const float *x, int64_t n, const float *max, float *sum)
{
    TL_BUNDLE_SUM(sum, n, tl_exp_at_most_1(x[i] - max[r]));
}

/* Reads `rows` rows of n columns as a bundle, and leaves their softmax in it. */
static inline __attribute__((always_inline)) void tl_bundle_softmax(const float *x, int64_t rows, int64_t n, float *e)
{
    tl_bundle_stat max, sum, reciprocal;
    tl_read_bundle(x, rows, n, e);
    tl_bundle_max(e, n, max);
    TL_BUNDLE_SUM(sum, n, (e[i] = tl_exp_at_most_1(e[i] - max[r])));
    TL_BUNDLE_ROWS(reciprocal[r] = 1.0f / sum[r]);
    TL_BUNDLE_EACH(n, e[i] = tl_quotient(e[i], sum[r], reciprocal[r]));
}
