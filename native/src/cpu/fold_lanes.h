/* Elements onto the lanes of folds (formula/fold.h): rows of many lanes, and the rows of a few units at once. */
#pragma once

#include <string.h>

#include "cpu/vector64.h"
#include "formula/fold.h"

/* TAKE_WIDTH lanes stay in registers: those of TAKE_UNITS units that have all lanes. Such units are read side by side, which the
 * hardware does not foresee. So lines are fetched TAKE_AHEAD elements ahead, in the order of memory: as many as a core reads
 * while one comes from the memory, and no more than the first cache holds. */
enum { TAKE_WIDTH = 32, TAKE_UNITS = TAKE_WIDTH / TL_FOLD_LANES, TAKE_AHEAD = 3072 };

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

/* The lanes of TAKE_UNITS products, and their powers of two, in as many vectors as a variant needs: wider ones would go through
 * memory. */
enum { TAKE_STEP = TL_LANES / 2, TAKE_VECTORS = TAKE_WIDTH / TAKE_STEP };
typedef uint64_t tl_power_vector __attribute__((vector_size(8 * TAKE_STEP)));
typedef struct tl_unit_lanes {
    tl_vec64 lane[TAKE_VECTORS];
    tl_power_vector power[TAKE_VECTORS];
} tl_unit_lanes;

/* lanes[8 g + l] *= x[g][r * step + l] for r < rows, all lanes in registers, and the powers of two taken out onto `powers`. These
 * are taken out of eight products at a time. Returns 0 where one of them is not within 2^+-511: of zeros, of what is no number and
 * of numbers at the ends of float32 the lanes are of no use. A product that leaves the range of float64 on the way does not return
 * to that of 2^+-511 within eight. */
static inline __attribute__((always_inline)) int multiply_units(tl_unit_lanes *lanes, const float *const *x,
                                                                int64_t step, int64_t rows)
{
    const int64_t at_once = 8;
    tl_vec64 lane[TAKE_VECTORS];
    tl_power_vector usual = ~(tl_power_vector){0};
    uint64_t within = ~UINT64_C(0);
    memcpy(lane, lanes->lane, sizeof lane);
    for (int64_t r = 0; r < rows; r += at_once) {
        for (int64_t k = r, end = tl_imin(r + at_once, rows); k < end; k++) {
#pragma GCC unroll 16
            for (int32_t v = 0; v < TAKE_VECTORS; v++)
                lane[v] *= tl_vec64_widen(x[v * TAKE_STEP / TL_FOLD_LANES] + k * step + v * TAKE_STEP % TL_FOLD_LANES);
        }
#pragma GCC unroll 16
        for (int32_t v = 0; v < TAKE_VECTORS; v++) {
            const tl_power_vector bits = (tl_power_vector)lane[v];
            usual &= bits ^ bits << 1; /* the first two bits of the exponent differ */
            lanes->power[v] += (bits >> 52 & 0x7ff) - 1023;
            lane[v] = (tl_vec64)((bits & ~(UINT64_C(0x7ff) << 52)) | UINT64_C(1023) << 52);
        }
    }
    memcpy(lanes->lane, lane, sizeof lane);
    for (int32_t l = 0; l < TAKE_STEP; l++)
        within &= usual[l];
    return (int)(within >> 62 & 1);
}

/* The bits of a float64 less these have TAKE_FAR, or TAKE_FAR_END, at 0 where the number is within 2^+-255, or 2^+-511. */
#define TAKE_NARROW (UINT64_C(768) << 52)
#define TAKE_FAR (UINT64_C(3) << 61)
#define TAKE_WIDE (UINT64_C(512) << 52)
#define TAKE_FAR_END (UINT64_C(1) << 62)

/* lanes[8 g + l] = the product of x[g][r * TL_FOLD_LANES + l] over r < rows, at least one, and of rest[g][l] unless rest is NULL, for
 * 8 lanes of each of TAKE_UNITS units, and no powers of two taken out on the way. Returns 0 where that may have cost bits: of zeros, of
 * what is no number and of numbers that are not all of moderate size the lanes are of no use. Every eight rows a product has to be
 * within 2^+-255, and at the end within 2^+-511: one that leaves the normal range of float64 from there needs six steps of 2^-149, and
 * four of 2^128 to return. */
static inline __attribute__((always_inline)) int multiply_freely(tl_vec64 *lanes, const float *const *x, int64_t rows,
                                                                 const float *const *rest)
{
    const int64_t at_once = 8;
    tl_vec64 lane[TAKE_VECTORS];
    tl_power_vector far = {0};
    uint64_t any = 0;
    const float *ahead = x[0] + TAKE_AHEAD;
#define UNIT_ELEMENTS(from, v) ((from)[(v)*TAKE_STEP / TL_FOLD_LANES] + (v)*TAKE_STEP % TL_FOLD_LANES)
#pragma GCC unroll 16
    for (int32_t v = 0; v < TAKE_VECTORS; v++)
        lane[v] = tl_vec64_widen(UNIT_ELEMENTS(x, v));
    for (int64_t r = 1, next = at_once; r < rows; next += at_once) {
        for (const int64_t end = tl_imin(next, rows); r < end; r++, ahead += TAKE_WIDTH) {
            __builtin_prefetch(ahead, 0, 3);
            __builtin_prefetch(ahead + TAKE_WIDTH / 2, 0, 3);
#pragma GCC unroll 16
            for (int32_t v = 0; v < TAKE_VECTORS; v++)
                lane[v] *= tl_vec64_widen(UNIT_ELEMENTS(x, v) + r * TL_FOLD_LANES);
        }
#pragma GCC unroll 16
        for (int32_t v = 0; v < TAKE_VECTORS && r < rows; v++)
            far |= (tl_power_vector)lane[v] - TAKE_NARROW;
    }
#pragma GCC unroll 16
    for (int32_t v = 0; v < TAKE_VECTORS && rest; v++)
        lane[v] *= tl_vec64_widen(UNIT_ELEMENTS(rest, v));
#undef UNIT_ELEMENTS
    far &= TAKE_FAR;
#pragma GCC unroll 16
    for (int32_t v = 0; v < TAKE_VECTORS; v++)
        far |= ((tl_power_vector)lane[v] - TAKE_WIDE) & TAKE_FAR_END;
    for (int32_t l = 0; l < TAKE_STEP; l++)
        any |= far[l];
    memcpy(lanes, lane, sizeof lane);
    return any == 0;
}

/* Four numbers of float64 side by side, of every variant. */
typedef double tl_quad64 __attribute__((vector_size(32)));
typedef int64_t tl_quad_long __attribute__((vector_size(32)));

/* The lanes 0..3 of four units, joined in halves: the result of each. */
#define JOIN_QUADS(result, q, JOIN)                                                              \
    do {                                                                                         \
        __typeof__((q)[0]) half_[2];                                                                 \
        for (int32_t u_ = 0; u_ < 2; u_++)                                                       \
            half_[u_] = __builtin_shuffle((q)[2 * u_], (q)[2 * u_ + 1], (tl_quad_long){0, 1, 4, 5}) \
                JOIN __builtin_shuffle((q)[2 * u_], (q)[2 * u_ + 1], (tl_quad_long){2, 3, 6, 7}); \
        (result) = __builtin_shuffle(half_[0], half_[1], (tl_quad_long){0, 2, 4, 6})             \
            JOIN __builtin_shuffle(half_[0], half_[1], (tl_quad_long){1, 3, 5, 7});              \
    } while (0)

/* v = v 2^-e with 1 <= |v| < 2, and the e that are added to `powers`, of vectors of numbers within 2^+-1022. */
#define TAKE_POWERS(v, powers)                                                                   \
    do {                                                                                         \
        __typeof__(powers) bits_;                                                                    \
        memcpy(&bits_, &(v), sizeof bits_);                                                      \
        (powers) += (bits_ >> 52 & 0x7ff) - 1023;                                                \
        bits_ = (bits_ & ~(INT64_C(0x7ff) << 52)) | INT64_C(1023) << 52;                         \
        memcpy(&(v), &bits_, sizeof bits_);                                                      \
    } while (0)

/* Joins the lanes of products that lie side by side, `vectors` vectors of them on each lane, in halves: product[i] 2^power[i] of result
 * i. Returns 0, and writes nothing, where a bit of `far` says that a product may have lost bits. */
static inline __attribute__((always_inline)) int join_products_side_by_side(tl_vec64 *lane, int32_t vectors,
                                                                            int64_t lanes, tl_power_vector far,
                                                                            double *product, int64_t *power)
{
    uint64_t any = 0;
    for (int32_t s = 0; s < TAKE_STEP; s++)
        any |= far[s];
    if (any) return 0;
    for (int32_t j = 0; j < vectors; j++) {
        tl_vec64 *const v = lane + j; /* lane l of this vector is v[l * vectors] */
        tl_power_vector powers = {0};
        for (int64_t l = 0; l < lanes; l++)
            TAKE_POWERS(v[l * vectors], powers);
        for (int64_t half = lanes / 2; half > 0; half /= 2)
            for (int64_t l = 0; l < half; l++)
                v[l * vectors] *= v[(l + half) * vectors];
        TAKE_POWERS(v[0], powers);
        tl_vec64_store(product + j * TAKE_STEP, v[0]);
        memcpy(power + j * TAKE_STEP, &powers, sizeof powers);
    }
    return 1;
}

/* Joins the lanes of TAKE_UNITS products in halves, as numbers of [1, 2) and sums of powers of two: eight such numbers need none taken
 * out on the way. */
static inline __attribute__((always_inline)) void join_products_of_units(const tl_vec64 *lanes, double *product,
                                                                         int64_t *power)
{
    _Alignas(64) double lane[TAKE_WIDTH];
    _Alignas(64) int64_t powers[TAKE_WIDTH];
#pragma GCC unroll 16
    for (int32_t v = 0; v < TAKE_VECTORS; v++) {
        tl_vec64 number = lanes[v];
        tl_power_vector of = {0};
        TAKE_POWERS(number, of);
        tl_vec64_store(lane + v * TAKE_STEP, number);
        memcpy(powers + v * TAKE_STEP, &of, sizeof of);
    }
    tl_quad64 v[2 * TAKE_UNITS], products;
    tl_quad_long e[2 * TAKE_UNITS], sums;
    memcpy(v, lane, sizeof v);
    memcpy(e, powers, sizeof e);
#pragma GCC unroll 4
    for (int32_t u = 0; u < TAKE_UNITS; u++) {
        v[u] = v[2 * u] * v[2 * u + 1];
        e[u] = e[2 * u] + e[2 * u + 1];
    }
    JOIN_QUADS(products, v, *);
    JOIN_QUADS(sums, e, +);
    TAKE_POWERS(products, sums);
    memcpy(product, &products, sizeof products);
    memcpy(power, &sums, sizeof sums);
}

/* Multiplies `rows` rows of n <= TAKE_WIDTH elements, `step` apart, onto n lanes, at most as many rows as a segment has on a lane. A
 * row that is not full is filled with ones in a copy. */
static inline void multiply_rows(double *v, int64_t plane, const float *x, int64_t step, int64_t n, int64_t rows)
{
    tl_unit_lanes lanes;
    double *const lane = (double *)lanes.lane;
    _Alignas(64) float copy[TL_FOLD_SEGMENT / TL_FOLD_LANES * TAKE_WIDTH];
    const float *const from = n < TAKE_WIDTH ? copy : x;
    for (int64_t k = 0; n < TAKE_WIDTH && k < rows; k++)
        for (int64_t j = 0; j < TAKE_WIDTH; j++)
            copy[k * TAKE_WIDTH + j] = j < n ? x[k * step + j] : 1.0f;
    memset(lanes.power, 0, sizeof lanes.power);
    for (int64_t j = 0; j < TAKE_WIDTH; j++)
        lane[j] = j < n ? v[j] : 1.0;
    if (multiply_units(&lanes, (const float *const[]){from, from + 8, from + 16, from + 24},
                       n < TAKE_WIDTH ? TAKE_WIDTH : step, rows)) {
        for (int64_t j = 0; j < n; j++) {
            v[j] = lane[j];
            v[plane + j] += (double)((const int64_t *)lanes.power)[j];
        }
        return;
    }
    int64_t r = 0;
    for (; r + 4 <= rows; r += 4)
        for (int64_t j = 0; j < n; j++)
            multiply_four(v + j, v + plane + j, v + 2 * plane + j, x + r * step + j, step);
    for (; r < rows; r++)
        for (int64_t j = 0; j < n; j++)
            tl_fold_take(TL_FOLD_PRODUCT, v + j, v + plane + j, v + 2 * plane + j, x[r * step + j], 0.0,
                         (tl_fold_rule){0});
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
        for (int64_t j = 0; j < n; j += TAKE_WIDTH)
            multiply_rows(v + j, plane, x + r * step + j, step, tl_imin(TAKE_WIDTH, n - j), count);
    }
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

/* `rows` rows of TL_FOLD_LANES elements of each of TAKE_UNITS units onto their lanes, which stay in registers. */
static inline __attribute__((always_inline)) void take_units_of(enum tl_fold_kind kind, double *restrict v,
                                                                const float *const *x, const double *restrict m,
                                                                int64_t rows, tl_fold_rule rule)
{
    double lane[TAKE_WIDTH];
    const float *const a = x[0], *const b = x[1], *const c = x[2], *const d = x[3], *ahead = a + TAKE_AHEAD;
    for (int32_t j = 0; j < TAKE_WIDTH; j++)
        lane[j] = v[j];
    for (int64_t r = 0; r < rows * TL_FOLD_LANES; r += TL_FOLD_LANES, ahead += TAKE_WIDTH) {
        __builtin_prefetch(ahead, 0, 3);
        __builtin_prefetch(ahead + TAKE_WIDTH / 2, 0, 3);
        for (int32_t l = 0; l < TL_FOLD_LANES; l++)
            tl_fold_take(kind, lane + l, NULL, NULL, a[r + l], m[l], rule);
        for (int32_t l = 0; l < TL_FOLD_LANES; l++)
            tl_fold_take(kind, lane + TL_FOLD_LANES + l, NULL, NULL, b[r + l], m[TL_FOLD_LANES + l], rule);
        for (int32_t l = 0; l < TL_FOLD_LANES; l++)
            tl_fold_take(kind, lane + 2 * TL_FOLD_LANES + l, NULL, NULL, c[r + l], m[2 * TL_FOLD_LANES + l], rule);
        for (int32_t l = 0; l < TL_FOLD_LANES; l++)
            tl_fold_take(kind, lane + 3 * TL_FOLD_LANES + l, NULL, NULL, d[r + l], m[3 * TL_FOLD_LANES + l], rule);
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
