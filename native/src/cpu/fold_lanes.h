/* Elements onto the lanes of folds (formula/fold.h): rows of many lanes, and the rows of a few units at once. */
#pragma once

#include "formula/fold.h"

enum {
    TAKE_WIDTH = 32,                         /* lanes that stay in registers: those of a group of units */
    TAKE_UNITS = TAKE_WIDTH / TL_FOLD_LANES, /* units of a group that have all lanes */
};

/* An element of each of four rows, one after the other, on one lane of a product. That of four numbers of float32 and one of
 * [1, 2) is far from the ends of float64, so that its power of two may be taken out once; where one of them is no number,
 * neither is the result, whatever its power of two. */
static inline __attribute__((always_inline)) void multiply_four(double *v, double *e, double *zeros, const float *x,
                                                                int64_t step)
{
    double product = *v, power = *e, none = *zeros;
    for (int64_t r = 0; r < 4; r++) {
        const double d = (double)x[r * step];
        product *= d == 0.0 ? copysign(1.0, d) : d;
        none += d == 0.0 ? 1.0 : 0.0;
    }
    tl_fold_normalize(&product, &power);
    *v = product, *e = power, *zeros = none;
}

/* Whether the magnitudes of n elements all lie in 2^+-30: so many of them that a segment has on a lane, and a number of [1, 2), may
 * be multiplied before their power of two is taken out, and the product is the same number. Zeros and what is no number do not. */
static inline __attribute__((always_inline)) int is_moderate(const float *x, int64_t n)
{
    const uint32_t least = tl_bits(0x1p-30f), reach = tl_bits(0x1p30f) - least;
    uint32_t beyond = 0;
    for (int64_t i = 0; i < n; i++)
        beyond |= (tl_bits(x[i]) & 0x7fffffffu) - least > reach;
    return !beyond;
}

/* The same of `rows` rows of n elements, `step` apart. */
static inline __attribute__((always_inline)) int are_moderate(const float *x, int64_t step, int64_t n, int64_t rows)
{
    int all = 1;
    for (int64_t r = 0; all && r < rows; r++)
        all = is_moderate(x + r * step, n);
    return all;
}

/* Multiplies them onto n lanes, and takes the powers of two out once. */
static inline __attribute__((always_inline)) void multiply_moderate(double *v, int64_t plane, const float *x,
                                                                    int64_t step, int64_t n, int64_t rows)
{
    for (int64_t c = 0; c < n; c += TAKE_WIDTH) {
        const int64_t width = tl_imin(TAKE_WIDTH, n - c);
        double lane[TAKE_WIDTH];
        for (int64_t j = 0; j < width; j++)
            lane[j] = v[c + j];
        for (int64_t r = 0; r < rows; r++)
            for (int64_t j = 0; j < width; j++)
                lane[j] *= (double)x[r * step + c + j];
        for (int64_t j = 0; j < width; j++) {
            tl_fold_normalize(lane + j, v + plane + c + j);
            v[c + j] = lane[j];
        }
    }
}

/* Kinds of which an element costs no more than reading and writing its lane. */
static inline __attribute__((always_inline)) int is_light(enum tl_fold_kind kind)
{
    return kind != TL_FOLD_EXP && kind != TL_FOLD_POWER && kind != TL_FOLD_PRODUCT;
}

/* `rows` rows of n elements, `step` apart, onto n lanes, each with its own centre. Of a light kind TAKE_WIDTH lanes at a time
 * stay in registers. */
static inline __attribute__((always_inline)) void take_rows_of(enum tl_fold_kind kind, double *restrict v,
                                                               int64_t plane, const float *restrict x, int64_t step,
                                                               const double *restrict m, int64_t n, int64_t rows,
                                                               tl_fold_rule rule)
{
    int64_t c = 0, r = 0;
    for (; is_light(kind) && c + TAKE_WIDTH <= n; c += TAKE_WIDTH) {
        double lane[TAKE_WIDTH];
        for (int32_t j = 0; j < TAKE_WIDTH; j++)
            lane[j] = v[c + j];
        for (int64_t k = 0; k < rows; k++)
            for (int32_t j = 0; j < TAKE_WIDTH; j++)
                tl_fold_take(kind, lane + j, NULL, NULL, x[k * step + c + j], m[c + j], rule);
        for (int32_t j = 0; j < TAKE_WIDTH; j++)
            v[c + j] = lane[j];
    }
    for (int64_t count; kind == TL_FOLD_PRODUCT && r < rows; r += count) {
        count = tl_imin(rows - r, TL_FOLD_SEGMENT / TL_FOLD_LANES);
        if (!are_moderate(x + r * step, step, n, count)) break;
        multiply_moderate(v, plane, x + r * step, step, n, count);
    }
    for (; kind == TL_FOLD_PRODUCT && r + 4 <= rows; r += 4)
        for (int64_t j = 0; j < n; j++)
            multiply_four(v + j, v + plane + j, v + 2 * plane + j, x + r * step + j, step);
    for (; r < rows; r++)
        for (int64_t j = c; j < n; j++)
            tl_fold_take(kind, v + j, v + plane + j, v + 2 * plane + j, x[r * step + j], m[j], rule);
}

static void take_rows(enum tl_fold_kind kind, double *v, int64_t plane, const float *x, int64_t step, const double *m,
                      int64_t n, int64_t rows, tl_fold_rule rule)
{
#define TAKE(KIND) \
    case KIND: take_rows_of(KIND, v, plane, x, step, m, n, rows, rule); break;
    switch (kind) {
        TAKE(TL_FOLD_SUM)
        TAKE(TL_FOLD_ABS)
        TAKE(TL_FOLD_SQUARE)
        TAKE(TL_FOLD_DEVIATION)
        TAKE(TL_FOLD_EXP)
        TAKE(TL_FOLD_POWER)
        TAKE(TL_FOLD_EQUAL)
        TAKE(TL_FOLD_LARGEST)
        TAKE(TL_FOLD_PRODUCT)
    default: break; /* extremes are found elsewhere */
    }
#undef TAKE
}

/* An element of a unit onto its lane, of a product without its power of two. */
static inline __attribute__((always_inline)) void take_light(enum tl_fold_kind kind, double *lane, float x, double m,
                                                             tl_fold_rule rule)
{
    if (kind == TL_FOLD_PRODUCT)
        *lane *= (double)x;
    else
        tl_fold_take(kind, lane, NULL, NULL, x, m, rule);
}

/* `rows` rows of TL_FOLD_LANES elements of each of TAKE_UNITS units onto their lanes, which stay in registers. The elements of a
 * product are moderate. */
static inline __attribute__((always_inline)) void take_units_of(enum tl_fold_kind kind, double *restrict v,
                                                                const float *const *x, const double *restrict m,
                                                                int64_t rows, tl_fold_rule rule)
{
    double lane[TAKE_WIDTH];
    const float *const a = x[0], *const b = x[1], *const c = x[2], *const d = x[3];
    for (int32_t j = 0; j < TAKE_WIDTH; j++)
        lane[j] = v[j];
    for (int64_t r = 0; r < rows * TL_FOLD_LANES; r += TL_FOLD_LANES) {
        for (int32_t l = 0; l < TL_FOLD_LANES; l++)
            take_light(kind, lane + l, a[r + l], m[l], rule);
        for (int32_t l = 0; l < TL_FOLD_LANES; l++)
            take_light(kind, lane + TL_FOLD_LANES + l, b[r + l], m[TL_FOLD_LANES + l], rule);
        for (int32_t l = 0; l < TL_FOLD_LANES; l++)
            take_light(kind, lane + 2 * TL_FOLD_LANES + l, c[r + l], m[2 * TL_FOLD_LANES + l], rule);
        for (int32_t l = 0; l < TL_FOLD_LANES; l++)
            take_light(kind, lane + 3 * TL_FOLD_LANES + l, d[r + l], m[3 * TL_FOLD_LANES + l], rule);
    }
    for (int32_t j = 0; j < TAKE_WIDTH; j++)
        v[j] = lane[j];
}

static void take_units(enum tl_fold_kind kind, double *v, const float *const *x, const double *m, int64_t rows,
                       tl_fold_rule rule)
{
#define TAKE(KIND) \
    case KIND: take_units_of(KIND, v, x, m, rows, rule); break;
    switch (kind) {
        TAKE(TL_FOLD_SUM)
        TAKE(TL_FOLD_ABS)
        TAKE(TL_FOLD_SQUARE)
        TAKE(TL_FOLD_DEVIATION)
        TAKE(TL_FOLD_EQUAL)
        TAKE(TL_FOLD_LARGEST)
        TAKE(TL_FOLD_PRODUCT)
    default: break;
    }
#undef TAKE
}

/* packed[r * step + l] = x[r * lanes + l] for r < n. */
#define PACK(lanes) \
    static void pack##lanes(float *restrict packed, int64_t step, const float *restrict x, int64_t n) \
    { \
        for (int64_t r = 0; r < n; r++) \
            for (int32_t l = 0; l < (lanes); l++) \
                packed[r * step + l] = x[r * (lanes) + l]; \
    }
PACK(1)
PACK(2)
PACK(4)
PACK(8)
