/* Rows of elements onto the lanes of folds (formula/fold.h). */
#pragma once

#include <string.h>

#include "formula/fold.h"

enum { TAKE_WIDTH = 32 }; /* lanes that stay in registers */

/* An element of each of four rows, one after the other, on one lane of a product. That of four numbers of float32 and one of
 * [1, 2) is far from the ends of float64, so that its power of two may be taken out once; where one of them is no number,
 * neither is the result, whatever its power of two. */
static inline __attribute__((always_inline)) void multiply_four(double *v, double *e, double *zeros, const float *x,
                                                                int64_t step)
{
    const uint64_t one = UINT64_C(1023) << 52, no_number = UINT64_C(2047) << 52;
    double product = *v, none = *zeros;
    for (int64_t r = 0; r < 4; r++) {
        const double d = (double)x[r * step];
        product *= d == 0.0 ? copysign(1.0, d) : d;
        none += d == 0.0 ? 1.0 : 0.0;
    }
    const uint64_t bits = tl_bits64(product), exponent = bits & no_number,
                   taken = exponent == no_number ? one : exponent;
    *v = tl_from_bits64(bits - taken + one);
    *e += tl_from_bits64(UINT64_C(1075) << 52 | taken >> 52) - (0x1p52 + 1023.0);
    *zeros = none;
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
    for (; kind == TL_FOLD_PRODUCT && r + 4 <= rows; r += 4)
#pragma GCC ivdep
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
