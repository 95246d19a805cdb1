/* Gradients of folds from the coefficients of their results (formula/fold.h). */
#pragma once

#include "formula/fold.h"

static inline __attribute__((always_inline)) void write_slopes_of(enum tl_fold_kind kind, const float *restrict x,
                                                                  const double *restrict c, int64_t plane, int one,
                                                                  int64_t n, tl_fold_rule rule, float *restrict gx)
{
    for (int64_t j = 0; j < n; j++) {
        const double *const at = one ? c : c + j;
        const tl_folded coefficients = {at[0], at[plane], at[2 * plane]};
        gx[j] = tl_fold_slope(kind, x[j], coefficients, rule);
    }
}

/* gx[0..n-1] from x and coefficients in planes: those of one result, or of one each. */
static void write_slopes(enum tl_fold_kind kind, const float *x, const double *c, int64_t plane, int one, int64_t n,
                         tl_fold_rule rule, float *gx)
{
#define WRITE(KIND)                                                  \
    case KIND:                                                       \
        if (one)                                                     \
            write_slopes_of(KIND, x, c, plane, 1, n, rule, gx);      \
        else                                                         \
            write_slopes_of(KIND, x, c, plane, 0, n, rule, gx);      \
        break;
    switch (kind) {
        WRITE(TL_FOLD_ABS)
        WRITE(TL_FOLD_SQUARE)
        WRITE(TL_FOLD_DEVIATION)
        WRITE(TL_FOLD_EXP)
        WRITE(TL_FOLD_POWER)
        WRITE(TL_FOLD_EQUAL)
        WRITE(TL_FOLD_PRODUCT)
    default: break;
    }
#undef WRITE
}
