/* Products of results that lie side by side (formula/fold.h), TAKE_WIDTH of them at a time: a row of elements is an element of each, so
 * that all are on one lane, which stays in registers over all of its rows. */
#pragma once

#include "cpu/fold_units.h"

/* Whether a fold is of such products, along one axis. */
static int is_of_columns(const fold *a)
{
    return a->kind == TL_FOLD_PRODUCT && !a->from && a->f.reduced == 1 && a->f.inner >= TAKE_WIDTH;
}

/* lane[v] = the products of `rows` rows from x on, `step` apart, at least one of them and no more than a lane has of a segment. Bits of
 * what is returned are set where a product may have lost bits, by the rule of multiply_freely. The rows of the next columns are fetched
 * meanwhile: rows are far apart, so that nothing else does. */
static inline __attribute__((always_inline)) tl_power_vector multiply_columns_lane(const float *x, int64_t step,
                                                                                   int64_t rows, tl_vec64 *lane)
{
    tl_power_vector far = {0}, end = {0};
    tl_vec64 v[TAKE_VECTORS];
#pragma GCC unroll 16
    for (int32_t j = 0; j < TAKE_VECTORS; j++)
        v[j] = tl_vec64_widen(x + j * TAKE_STEP);
    for (int64_t r = 1, next = 8; r < rows; next += 8) {
        for (const int64_t last = tl_imin(next, rows); r < last; r++) {
            x += step;
            __builtin_prefetch(x + TAKE_WIDTH, 0, 2);
            __builtin_prefetch(x + TAKE_WIDTH + TAKE_WIDTH / 2, 0, 2);
#pragma GCC unroll 16
            for (int32_t j = 0; j < TAKE_VECTORS; j++)
                v[j] *= tl_vec64_widen(x + j * TAKE_STEP);
        }
#pragma GCC unroll 16
        for (int32_t j = 0; j < TAKE_VECTORS && r < rows; j++)
            far |= (tl_power_vector)v[j] - TAKE_NARROW;
    }
#pragma GCC unroll 16
    for (int32_t j = 0; j < TAKE_VECTORS; j++) {
        end |= (tl_power_vector)v[j] - TAKE_WIDE;
        lane[j] = v[j];
    }
    return (far & TAKE_FAR) | (end & TAKE_FAR_END);
}

/* product[j] 2^power[j] = the product of the n elements of column j from x on. Returns 0 unless all are of moderate size. */
static int multiply_columns_at(const fold *a, const float *x, int64_t n, double *product, int64_t *power)
{
    const int64_t lanes = a->lanes, step = a->f.reduced_stride[0];
    tl_vec64 lane[TL_FOLD_LANES][TAKE_VECTORS];
    tl_power_vector far = {0};
    for (int64_t l = 0; l < lanes; l++) {
        if (l < n) {
            far |= multiply_columns_lane(x + l * step, lanes * step, (n - l + lanes - 1) / lanes, lane[l]);
        } else {
            for (int32_t j = 0; j < TAKE_VECTORS; j++)
                lane[l][j] = (tl_vec64){0} + 1.0;
        }
    }
    return join_products_side_by_side(lane[0], TAKE_VECTORS, lanes, far, product, power);
}

/* A unit of such products, of which some may be written although it returns 0: where not all elements are of moderate size. The last
 * columns are multiplied with some before them that have been. */
static int multiply_columns(const fold *a, int64_t unit)
{
    _Alignas(64) double product[TAKE_WIDTH];
    _Alignas(64) int64_t power[TAKE_WIDTH];
    const tl_fold_axes *f = &a->f;
    const int64_t s = unit % a->segments, tile = unit / a->segments % a->tiles, k = unit / a->segments / a->tiles;
    const int64_t begin = s * TL_FOLD_SEGMENT, n = tl_imin(f->length - begin, TL_FOLD_SEGMENT);
    const int64_t end = tl_imin((tile + 1) * a->width, f->inner), plane = a->results * a->segments;
    int64_t place[TL_FOLD_RANK];
    const float *const x = a->x + offset_of(f->kept, f->kept_size, f->kept_stride, k, place) +
                           begin * f->reduced_stride[0];
    for (int64_t c = tile * a->width; c < end; c += TAKE_WIDTH) {
        const int64_t at = tl_imin(c, f->inner - TAKE_WIDTH), last = tl_imin(at + TAKE_WIDTH, end);
        if (!multiply_columns_at(a, x + at, n, product, power)) return 0;
        if (a->segments == 1 && a->out) {
            float ends[TAKE_WIDTH];
            for (int32_t j = 0; j < TAKE_WIDTH; j++)
                ends[j] = tl_fold_scaled(product[j], (double)power[j]);
            memcpy(a->out + k * f->inner + c, ends + (c - at), (size_t)(last - c) * sizeof *ends);
            continue;
        }
        for (int64_t i = c; i < last; i++) {
            double *const to = value_at(a, k * f->inner + i, s);
            to[0] = product[i - at], to[plane] = (double)power[i - at], to[2 * plane] = 0.0;
        }
    }
    return 1;
}
