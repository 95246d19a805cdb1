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

/* The maximum of a leaf for shifting exponentials; -inf for n = 0. It passes NaN over: where a row has one, its sum of
 * exponentials is NaN whatever the shift. An operation whose result is the maximum itself needs one that keeps NaN
 * (reduce.c). The maximum has no order; 64 lanes are a few registers, 16 one. */
static inline float tl_leaf_max(const float *x, int64_t n)
{
    enum { LANES = 64, FEW = TL_SUM_FOLD };
    _Alignas(64) float t[LANES], few[FEW], a[8], b[4];
    int64_t i = 0;
    for (int l = 0; l < FEW; l++)
        few[l] = -TL_INF;
    if (n >= LANES) {
        for (int l = 0; l < LANES; l++)
            t[l] = -TL_INF;
        for (; i + LANES <= n; i += LANES)
            for (int l = 0; l < LANES; l++)
                t[l] = greater_of(t[l], x[i + l]);
        for (int l = 0; l < FEW; l++)
            few[l] = greater_of(greater_of(t[l], t[l + FEW]), greater_of(t[l + 2 * FEW], t[l + 3 * FEW]));
    }
    for (; i + FEW <= n; i += FEW)
        for (int l = 0; l < FEW; l++)
            few[l] = greater_of(few[l], x[i + l]);
    if (i < n) {
        for (int l = 0; l < FEW; l++)
            t[l] = l < n - i ? x[i + l] : -TL_INF;
        for (int l = 0; l < FEW; l++)
            few[l] = greater_of(few[l], t[l]);
    }
    for (int l = 0; l < 8; l++)
        a[l] = greater_of(few[l], few[l + 8]);
    for (int l = 0; l < 4; l++)
        b[l] = greater_of(a[l], a[l + 4]);
    return greater_of(greater_of(b[0], b[2]), greater_of(b[1], b[3]));
}

static inline float max_of(const float *x, int64_t n)
{
    float m = -TL_INF;
    for (int64_t i = 0; i < n; i++)
        m = x[i] > m ? x[i] : m;
    return m;
}

TL_LEAF(maximum_leaf) { *p->sum = tl_leaf_max(((const tl_softmax_rows *)arg)->x + p->at, p->n); }

static void maximum_row(TL_UNUSED const void *arg, const tl_row *r)
{
    TL_EACH_ROW(r, stat[MAXIMUM] = max_of(r->sum + k, r->leaves));
}

TL_LEAF(exponential_sum_leaf)
{
    const float *x = ((const tl_softmax_rows *)arg)->x + p->at, m = p->stat[MAXIMUM];
    TL_LEAF_SUM(*p->sum, p->n, tl_exp(x[i] - m));
}

TL_LEAF(exponentials_leaf)
{
    const tl_softmax_rows *a = arg;
    const float *x = a->x + p->at, m = p->stat[MAXIMUM];
    float *e = p->work ? p->work : a->out + p->at;
    TL_LEAF_SUM(*p->sum, p->n, (e[i] = tl_exp(x[i] - m)));
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
    TL_BUNDLE_ROWS(max[r] = -TL_INF);
    TL_BUNDLE_EACH(n, max[r] = greater_of(max[r], x[i]));
}

/* sum[r] = the sum over k of e^(x - max), of a bundle of n columns. */
static inline void tl_bundle_exponential_sum(const float *x, int64_t n, const float *max, float *sum)
{
    TL_BUNDLE_SUM(sum, n, tl_exp(x[i] - max[r]));
}

/* Reads `rows` rows of n columns as a bundle, and leaves their softmax in it. */
static inline __attribute__((always_inline)) void tl_bundle_softmax(const float *x, int64_t rows, int64_t n, float *e)
{
    tl_bundle_stat max, sum, reciprocal;
    tl_read_bundle(x, rows, n, e);
    tl_bundle_max(e, n, max);
    TL_BUNDLE_SUM(sum, n, (e[i] = tl_exp(e[i] - max[r])));
    TL_BUNDLE_ROWS(reciprocal[r] = 1.0f / sum[r]);
    TL_BUNDLE_EACH(n, e[i] = tl_quotient(e[i], sum[r], reciprocal[r]));
}
