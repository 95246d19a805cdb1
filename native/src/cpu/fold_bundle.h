/* Products of short rows, TL_BUNDLE of them side by side (row_bundle.h): a row has too few lanes (formula/fold.h) for vectors of its own,
 * so a vector holds one lane of several rows. */
#pragma once

#include "cpu/fold_units.h"
#include "cpu/row_bundle.h"

enum { BUNDLE_VECTORS = TL_BUNDLE / TAKE_STEP, BUNDLE_LANES = TL_FOLD_LANES / 2 };

/* Whether a fold is of products of short rows that lie one behind the other. */
static int is_of_short_products(const fold *a)
{
    return a->kind == TL_FOLD_PRODUCT && !a->from && a->f.inner == 1 && a->f.reduced == 1 && a->f.kept <= 1 &&
           a->length <= TL_BUNDLE_COLS && a->lanes <= BUNDLE_LANES;
}

/* Lane l of the rows of a bundle: elements l, l + lanes, .., at most 16 of them. Bits of what is returned are set where a product may
 * have lost bits, by the rule of multiply_freely. */
static inline __attribute__((always_inline)) tl_power_vector multiply_bundle_lane(const float *t, int64_t n, int64_t l,
                                                                                  int64_t lanes, tl_vec64 *lane)
{
    tl_power_vector far = {0}, end = {0};
    tl_vec64 v[BUNDLE_VECTORS];
#pragma GCC unroll 8
    for (int32_t j = 0; j < BUNDLE_VECTORS; j++)
        v[j] = tl_vec64_widen(t + l * TL_BUNDLE + j * TAKE_STEP);
    for (int64_t k = l + lanes, next = l + 8 * lanes; k < n; next = n) {
        for (; k < tl_imin(next, n); k += lanes) {
#pragma GCC unroll 8
            for (int32_t j = 0; j < BUNDLE_VECTORS; j++)
                v[j] *= tl_vec64_widen(t + k * TL_BUNDLE + j * TAKE_STEP);
        }
#pragma GCC unroll 8
        for (int32_t j = 0; j < BUNDLE_VECTORS && k < n; j++)
            far |= (tl_power_vector)v[j] - TAKE_NARROW;
    }
#pragma GCC unroll 8
    for (int32_t j = 0; j < BUNDLE_VECTORS; j++) {
        end |= (tl_power_vector)v[j] - TAKE_WIDE;
        lane[j] = v[j];
    }
    return (far & TAKE_FAR) | (end & TAKE_FAR_END);
}

/* Products of TL_BUNDLE results from `first` on. Nothing is written unless all elements are of moderate size. */
static int multiply_bundle(const fold *a, int64_t first)
{
    const int64_t n = tl_short(a->length), lanes = a->lanes, plane = a->results;
    tl_bundle t;
    tl_vec64 lane[BUNDLE_LANES][BUNDLE_VECTORS];
    tl_power_vector far = {0};
    _Alignas(64) double v[TL_BUNDLE];
    _Alignas(64) int64_t e[TL_BUNDLE];
    tl_read_bundle(a->x + first * n, TL_BUNDLE, n, t);
    for (int64_t l = 0; l < lanes; l++)
        far |= multiply_bundle_lane(t, n, l, lanes, lane[l]);
    if (!join_products_side_by_side(lane[0], BUNDLE_VECTORS, lanes, far, v, e)) return 0;
    for (int64_t r = 0; r < TL_BUNDLE && a->out; r++)
        a->out[first + r] = tl_fold_end(TL_FOLD_PRODUCT, (tl_folded){v[r], (double)e[r], 0.0}, 0.0, a->rule);
    for (int64_t r = 0; r < TL_BUNDLE && !a->out; r++) {
        double *const to = a->values + first + r;
        to[0] = v[r], to[plane] = (double)e[r], to[2 * plane] = 0.0;
    }
    return 1;
}

/* The results from..last - 1 of is_of_short_products. */
static void multiply_short_rows(const fold *a, int64_t from, int64_t last)
{
    for (; from + TL_BUNDLE <= last; from += TL_BUNDLE)
        if (!multiply_bundle(a, from)) fold_groups(a, from, from + TL_BUNDLE);
    fold_groups(a, from, last);
}
