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

/* The maximum of a leaf for shifting exponentials; -inf for n = 0. It passes NaN over: where a row has one, its sum of
 * exponentials is NaN whatever the shift. An operation whose result is the maximum itself needs one that keeps NaN
 * (reduce.c). The maximum has no order; 64 lanes are a few registers. */
static inline float tl_leaf_max(const float *x, int64_t n)
{
    enum { LANES = 64 };
    _Alignas(64) float t[LANES];
    int64_t i = 0;
    for (int l = 0; l < LANES; l++)
        t[l] = -TL_INF;
    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++)
            t[l] = x[i + l] > t[l] ? x[i + l] : t[l];
    for (int64_t l = 0; l < n - i; l++)
        t[l] = x[i + l] > t[l] ? x[i + l] : t[l];
    for (int s = LANES / 2; s > 0; s /= 2)
        for (int l = 0; l < s; l++)
            t[l] = t[l + s] > t[l] ? t[l + s] : t[l];
    return t[0];
}

static inline float max_of(const float *x, int64_t n)
{
    float m = -TL_INF;
    for (int64_t i = 0; i < n; i++)
        m = x[i] > m ? x[i] : m;
    return m;
}

static void maximum_leaf(const void *arg, const tl_leaf *p)
{
    *p->sum = tl_leaf_max(((const tl_softmax_rows *)arg)->x + p->at, p->n);
}

static void maximum_row(TL_UNUSED const void *arg, const tl_row *r) { r->stat[MAXIMUM] = max_of(r->sum, r->leaves); }

static void exponential_sum_leaf(const void *arg, const tl_leaf *p)
{
    const float *x = ((const tl_softmax_rows *)arg)->x + p->at, m = p->stat[MAXIMUM];
    TL_LEAF_SUM(*p->sum, p->n, tl_exp(x[i] - m));
}

static void exponentials_leaf(const void *arg, const tl_leaf *p)
{
    const tl_softmax_rows *a = arg;
    const float *x = a->x + p->at, m = p->stat[MAXIMUM];
    float *e = p->work ? p->work : a->out + p->at;
    TL_LEAF_SUM(*p->sum, p->n, (e[i] = tl_exp(x[i] - m)));
}

static void reciprocal_row(TL_UNUSED const void *arg, const tl_row *r)
{
    r->stat[SUM] = tl_sum_of_leaves(r->sum, r->leaves);
    r->stat[DERIVED] = 1.0f / r->stat[SUM];
}
