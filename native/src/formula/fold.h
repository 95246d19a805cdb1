/* Reductions over any set of axes in double: extremes, products, variances, log-sum-exps and norms.
 *
 * An array is seen as merged axes, kept and reduced ones in turn; those of size 1 are dropped. The elements behind one result, in
 * row-major order, are cut into segments of TL_FOLD_SEGMENT. In a segment, lane l combines its elements l, l + L, l + 2L, ... in
 * this order, L = tl_fold_width(number of elements); the lanes are folded in halves, lane l with lane l + L/2 for l < L/2 and so
 * on. The segments' results, in order, are folded in the same way until one is left. So the order depends on the number of reduced
 * elements alone. Values are doubles, and the result is rounded to float32 once.
 *
 * Deviations are squared around the mean of their segment, whose sum stands beside them. A segment of segments takes each of theirs
 * around its own mean (tl_fold_around), and so on: so x is read once, and a mean far from 0 costs no bits.
 *
 * A product is a number and a power of two apart, so that nothing over- or underflows on the way, and a count of zeros beside it,
 * which its gradient needs: the product is that of the other elements. */
#pragma once

#include "base.h"
#include "count.h"
#include "integer.h"
#include "wide.h"

enum { TL_FOLD_RANK = 8, TL_FOLD_SEGMENT = 256, TL_FOLD_LANES = 8, TL_FOLD_PLANES = 3 };

/* What a fold does: the value made of an element x and, for some, of the value m of its result that an earlier fold left. */
enum tl_fold_kind {
    TL_FOLD_SUM,       /* x */
    TL_FOLD_ABS,       /* |x| */
    TL_FOLD_SQUARE,    /* x^2 */
    TL_FOLD_DEVIATION, /* (x - m)^2, m the mean of the segment; beside it the segment's sum */
    TL_FOLD_EXP,       /* e^(x - m), m the maximum */
    TL_FOLD_POWER,     /* |x/m|^p, m the maximum of |x| */
    TL_FOLD_EQUAL,     /* 1 where x = m */
    TL_FOLD_MAX,       /* the maximum; NaN wins, +0 is above -0 */
    TL_FOLD_MIN,       /* the maximum of -x */
    TL_FOLD_LARGEST,   /* the maximum of |x| */
    TL_FOLD_PRODUCT,
};

/* A value; of a product the power of two and the number of zeros too. */
typedef struct tl_folded {
    double v, e, zeros;
} tl_folded;

/* Parameters of a reduction: the number n of reduced elements, the p of a norm or the correction of a variance, and whether it
 * ends as its root. */
typedef struct tl_fold_rule {
    int64_t n;
    double p;
    int32_t root;
} tl_fold_rule;

/* ---- geometry -------------------------------------------------------------------------------------------------- */

/* One lane for 16 elements, at most TL_FOLD_LANES. */
static inline int64_t tl_fold_width(int64_t n)
{
    int64_t lanes = 1;
    while (lanes < TL_FOLD_LANES && 16 * lanes <= n)
        lanes *= 2;
    return lanes;
}

/* Element (k, j, r): its result is k * inner + j, with j < inner along the last merged axis if that one is kept, else inner = 1;
 * k runs over the other kept axes and r over the reduced ones. */
typedef struct tl_fold_axes {
    int32_t kept, reduced;
    int64_t kept_size[TL_FOLD_RANK], kept_stride[TL_FOLD_RANK], reduced_size[TL_FOLD_RANK],
        reduced_stride[TL_FOLD_RANK];
    int64_t outer, length, inner;
} tl_fold_axes;

/* Axis k is reduced where bit k of `axes` is set. */
static inline tl_fold_axes tl_fold_of(int32_t rank, const int64_t *dims, int64_t axes)
{
    tl_fold_axes f = {0, 0, {0}, {0}, {0}, {0}, 1, 1, 1};
    int64_t size[TL_FOLD_RANK];
    int8_t reduced[TL_FOLD_RANK];
    int32_t count = 0;
    for (int32_t k = 0; k < rank; k++) {
        const int8_t r = (int8_t)(axes >> k & 1);
        if (dims[k] == 1) continue;
        if (count > 0 && reduced[count - 1] == r) {
            size[count - 1] *= dims[k];
        } else {
            size[count] = dims[k];
            reduced[count++] = r;
        }
    }
    int64_t stride = 1;
    if (count > 0 && !reduced[count - 1]) f.inner = stride = size[--count];
    for (int32_t k = 0; k < count; k++)
        *(reduced[k] ? &f.length : &f.outer) *= size[k];
    /* The innermost axis comes first in the lists. */
    for (int32_t k = count - 1; k >= 0; k--) {
        int32_t *const n = reduced[k] ? &f.reduced : &f.kept;
        (reduced[k] ? f.reduced_size : f.kept_size)[*n] = size[k];
        (reduced[k] ? f.reduced_stride : f.kept_stride)[*n] = stride;
        ++*n;
        stride *= size[k];
    }
    return f;
}

/* ---- folding --------------------------------------------------------------------------------------------------- */

TL_HD int32_t tl_fold_is_extreme(enum tl_fold_kind kind) { return kind >= TL_FOLD_MAX && kind <= TL_FOLD_LARGEST; }

TL_HD double tl_fold_start(enum tl_fold_kind kind)
{
    return kind == TL_FOLD_MAX || kind == TL_FOLD_MIN ? -(double)TL_INF : kind == TL_FOLD_PRODUCT ? 1.0 : 0.0;
}

/* The maximum of a and b, of which none is 0; NaN wins. */
TL_HD double tl_fold_greater(double a, double b) { return (a > b) | (a != a) ? a : b; }

/* A float32 zero as a double below all others of its sign, so that +0 is above -0; rounded to float32 it is that zero again. */
TL_HD double tl_fold_ordered(double d) { return d == 0.0 ? copysign(0x1p-1000, d) : d; }

/* v 2^e with 1 <= |v| < 2, where v is finite and not 0. */
TL_HD void tl_fold_normalize(double *v, double *e)
{
    uint64_t bits = tl_bits64(*v);
    int32_t biased = (int32_t)(bits >> 52 & 0x7ff);
    int32_t usual = (biased != 0) & (biased != 0x7ff);
    *e += usual ? (double)(biased - 1023) : 0.0;
    *v = usual ? tl_from_bits64((bits & ~(UINT64_C(0x7ff) << 52)) | UINT64_C(1023) << 52) : *v;
}

/* v 2^e rounded to float32, for 2^-300 <= |v| <= 2^300, 0, inf and NaN. */
TL_HD float tl_fold_scaled(double v, double e)
{
    int64_t k = (int64_t)tl_hold(e, -450.0, 450.0);
    return (float)(v * tl_from_bits64((uint64_t)(k + 1023) << 52));
}

TL_HD double tl_fold_value(enum tl_fold_kind kind, float x, double m, tl_fold_rule rule)
{
    const double d = (double)x;
    switch (kind) {
    case TL_FOLD_SUM:
    case TL_FOLD_PRODUCT: return d;
    case TL_FOLD_MAX: return tl_fold_ordered(d);
    case TL_FOLD_MIN: return tl_fold_ordered(-d);
    case TL_FOLD_ABS:
    case TL_FOLD_LARGEST: return fabs(d);
    case TL_FOLD_SQUARE: return d * d;
    case TL_FOLD_DEVIATION: return (d - m) * (d - m);
    case TL_FOLD_EXP: return tl_exp64(tl_hold(d - m, -700.0, 0.0));
    case TL_FOLD_EQUAL: return d == m ? 1.0 : 0.0;
    case TL_FOLD_POWER: return tl_exp2_64(tl_hold(rule.p * (tl_log2_64(x) - m), -1000.0, 0.0));
    }
    return d;
}

/* The m that tl_fold_value takes, of what an earlier fold left. */
TL_HD double tl_fold_centre(enum tl_fold_kind kind, double m)
{
    return kind == TL_FOLD_POWER ? tl_log2_64((float)m) : m;
}

/* The sum of squares around m of `count` elements with the sum s, whose sum of squares around their own mean is q. */
TL_HD double tl_fold_around(double q, double s, double count, double m)
{
    const double d = s / count - m;
    return q + count * (d * d);
}

/* a and b together. */
TL_HD void tl_fold_join(enum tl_fold_kind kind, double *v, double *e, double *zeros, double v2, double e2,
                        double zeros2)
{
    if (kind == TL_FOLD_PRODUCT) {
        *v *= v2;
        *e += e2;
        *zeros += zeros2;
        tl_fold_normalize(v, e);
    } else {
        *v = tl_fold_is_extreme(kind) ? tl_fold_greater(*v, v2) : *v + v2;
    }
}

/* An element on top; a zero does not enter a product but is counted. */
TL_HD void tl_fold_take(enum tl_fold_kind kind, double *v, double *e, double *zeros, float x, double m,
                        tl_fold_rule rule)
{
    const double d = tl_fold_value(kind, x, m, rule);
    const int32_t zero = kind == TL_FOLD_PRODUCT && d == 0.0;
    tl_fold_join(kind, v, e, zeros, zero ? copysign(1.0, d) : d, 0.0, zero ? 1.0 : 0.0);
}

/* What a fold of x, of centre m, ends as. */
TL_HD float tl_fold_end(enum tl_fold_kind kind, tl_folded a, double m, tl_fold_rule rule)
{
    double f;
    switch (kind) {
    case TL_FOLD_MAX: return a.v != a.v ? TL_NAN : (float)a.v;
    case TL_FOLD_MIN: return a.v != a.v ? TL_NAN : (float)-a.v;
    case TL_FOLD_PRODUCT: return tl_fold_scaled(a.zeros > 0.0 ? a.v * 0.0 : a.v, a.e);
    case TL_FOLD_SQUARE: return (float)sqrt(a.v);
    case TL_FOLD_DEVIATION: {
        const double freedom = (double)rule.n - rule.p, variance = a.v / (freedom > 0.0 ? freedom : 0.0);
        return (float)(rule.root ? sqrt(variance) : variance);
    }
    case TL_FOLD_EXP: { /* a.v is at least 1 where m is finite; log is finite for all bits */
        const double e = tl_log_pieces(a.v, &f), log = fma(e, TL_LN2_64, tl_log_rest(f));
        return (float)(m + log);
    }
    case TL_FOLD_POWER: { /* likewise; m is log2 of the largest, -inf for 0 */
        const double e = tl_log_pieces(a.v, &f), log = fma(tl_log_rest(f), TL_LOG2E_64, e);
        const double t = fma(1.0 / rule.p, log, m);
        return fabs(m) < (double)TL_INF ? (float)tl_exp2_64(tl_hold(t, -1000.0, 1000.0)) : m < 0.0 ? 0.0f : (float)m;
    }
    default: return (float)a.v;
    }
}

/* ---- gradients ------------------------------------------------------------------------------------------------- */

/* What tl_fold_slope needs of a result `out`, of its cotangent g and of the fold a behind it, for all of its elements. */
TL_HD tl_folded tl_fold_coefficients(enum tl_fold_kind kind, float out, float g, tl_folded a, tl_fold_rule rule)
{
    const double y = (double)out, d = (double)g;
    switch (kind) {
    case TL_FOLD_EQUAL: {
        const tl_folded c = {y, out != out ? (double)TL_NAN : (double)tl_per_count(g, (int64_t)a.v), 0.0};
        return c;
    }
    case TL_FOLD_DEVIATION: {
        const double freedom = (double)rule.n - rule.p, by = freedom > 0.0 ? freedom : 0.0;
        const tl_folded c = {a.v / (double)rule.n, rule.root ? (y == 0.0 ? 0.0 : d / (by * y)) : 2.0 * d / by, 0.0};
        return c;
    }
    case TL_FOLD_EXP: {
        const tl_folded c = {out == -TL_INF ? 0.0 : y, d, 0.0};
        return c;
    }
    case TL_FOLD_SQUARE: {
        const tl_folded c = {0.0, y == 0.0 ? 0.0 : d / y, 0.0};
        return c;
    }
    case TL_FOLD_POWER: {
        const tl_folded c = {tl_log2_64(out), y == 0.0 ? 0.0 : d, 0.0};
        return c;
    }
    case TL_FOLD_PRODUCT: {
        const tl_folded c = {a.v * d, a.e, a.zeros};
        return c;
    }
    default: {
        const tl_folded c = {0.0, d, 0.0};
        return c;
    }
    }
}

TL_HD double tl_fold_sign(float x) { return x > 0.0f ? 1.0 : x < 0.0f ? -1.0 : x == 0.0f ? 0.0 : (double)x; }

/* The gradient of an element. */
TL_HD float tl_fold_slope(enum tl_fold_kind kind, float x, tl_folded c, tl_fold_rule rule)
{
    const double d = (double)x;
    switch (kind) {
    case TL_FOLD_EQUAL: return (c.v != c.v) | (d == c.v) ? (float)c.e : 0.0f;
    case TL_FOLD_DEVIATION: return (float)((d - c.v) * c.e);
    case TL_FOLD_EXP: {
        const double t = d - c.v;
        return (float)(c.e * (t == -(double)TL_INF ? 0.0 : tl_exp64(tl_hold(t, -700.0, 700.0))));
    }
    case TL_FOLD_SQUARE: return (float)(d * c.e);
    case TL_FOLD_POWER: {
        const double t = (rule.p - 1.0) * (tl_log2_64(x) - c.v);
        const double slope = x == 0.0f ? 0.0 : tl_exp2_64(tl_hold(t, -1000.0, 1000.0));
        return (float)(tl_fold_sign(x) * c.e * slope);
    }
    case TL_FOLD_PRODUCT: {
        const int32_t alone = (c.zeros == 0.0) | ((c.zeros == 1.0) & (x == 0.0f));
        return tl_fold_scaled(alone ? (x == 0.0f ? c.v * copysign(1.0, d) : c.v / d) : c.v * 0.0, c.e);
    }
    default: return (float)(tl_fold_sign(x) * c.e);
    }
}
