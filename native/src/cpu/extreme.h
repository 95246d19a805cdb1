/* The maximum or minimum of elements that lie side by side, on the CPU; a NaN wins, and +0 is above -0. */
#pragma once

#include "cpu/vector.h"
#include "formula/base.h"
#include "formula/integer.h"

/* A row of floats read as their bit patterns. */
typedef uint32_t __attribute__((may_alias)) bits32;

/* A float as an integer of the same order, -0 below +0. NaNs land beyond the infinities, at the end their sign says, so
 * the least and the greatest key together tell the maximum and whether there was a NaN. */
static inline int32_t order_key(uint32_t bits)
{
    return (int32_t)(bits ^ ((uint32_t)((int32_t)bits >> 31) & 0x7fffffffu));
}

static inline int32_t greater(int32_t a, int32_t b) { return a > b ? a : b; }
static inline int32_t lesser(int32_t a, int32_t b) { return a < b ? a : b; }

static inline float from_keys(int32_t least, int32_t greatest, int smallest)
{
    const int nan = greatest > order_key(0x7f800000u) || least < order_key(0xff800000u);
    return nan ? TL_NAN : tl_from_bits((uint32_t)order_key((uint32_t)(smallest ? least : greatest)));
}

enum { EXTREME_VECTORS = 4, EXTREME_LANES = EXTREME_VECTORS * TL_LANES }; /* vectors in flight */
typedef int32_t extreme_mask __attribute__((vector_size(4 * TL_LANES)));

/* a where it is beyond b, else b. */
static inline float further(float a, float b, int smallest) { return (smallest ? a < b : a > b) ? a : b; }

static inline __attribute__((always_inline)) tl_vec further_lanes(tl_vec a, tl_vec b, int smallest)
{
#if defined(__AVX512F__)
    return smallest ? _mm512_min_ps(a, b) : _mm512_max_ps(a, b);
#elif defined(__AVX2__)
    return smallest ? _mm256_min_ps(a, b) : _mm256_max_ps(a, b);
#elif defined(__SSE2__)
    return smallest ? _mm_min_ps(a, b) : _mm_max_ps(a, b);
#else
    const extreme_mask beyond = smallest ? a < b : a > b;
    return (tl_vec)(((extreme_mask)a & beyond) | ((extreme_mask)b & ~beyond));
#endif
}

/* Whether a bit is set, and the extreme of the lanes, none of which is NaN; of zeros, any. */
static inline __attribute__((always_inline)) int any_lane(extreme_mask m)
{
#if defined(__AVX512F__)
    return _mm512_test_epi32_mask((__m512i)m, (__m512i)m) != 0;
#elif defined(__AVX2__)
    return !_mm256_testz_si256((__m256i)m, (__m256i)m);
#else
    int32_t any = 0;
    for (int32_t l = 0; l < TL_LANES; l++)
        any |= m[l];
    return any != 0;
#endif
}

static inline __attribute__((always_inline)) float furthest_lane(tl_vec v, int smallest)
{
#if defined(__AVX512F__)
    return smallest ? _mm512_reduce_min_ps(v) : _mm512_reduce_max_ps(v);
#else
    _Alignas(64) float lane[TL_LANES];
    tl_vec_store(lane, v);
    for (int32_t half = TL_LANES / 2; half > 0; half /= 2)
        for (int32_t l = 0; l < half; l++)
            lane[l] = further(lane[l], lane[l + half], smallest);
    return lane[0];
#endif
}

/* The extreme of n >= EXTREME_LANES elements, of which the last EXTREME_LANES may count twice. A comparison passes NaNs over, which
 * are looked for beside it, and takes zeros for equal: where the extreme is 0, no element lies beyond, so that a sign bit that is set
 * tells a -0, and one that is not a +0. */
static inline __attribute__((always_inline)) float extreme_on_lanes(const float *x, int64_t n, int smallest)
{
    tl_vec most[EXTREME_VECTORS];
    extreme_mask nan[EXTREME_VECTORS];
#pragma GCC unroll 4
    for (int32_t v = 0; v < EXTREME_VECTORS; v++) {
        most[v] = tl_vec_load(x + v * TL_LANES);
        nan[v] = most[v] != most[v];
    }
    for (int64_t i = EXTREME_LANES; i < n; i += EXTREME_LANES) {
        const float *const at = x + tl_imin(i, n - EXTREME_LANES);
#pragma GCC unroll 4
        for (int32_t v = 0; v < EXTREME_VECTORS; v++) {
            const tl_vec element = tl_vec_load(at + v * TL_LANES);
            most[v] = further_lanes(element, most[v], smallest);
            nan[v] |= element != element;
        }
    }
    nan[0] = (nan[0] | nan[1]) | (nan[2] | nan[3]);
    most[0] = further_lanes(most[0], most[1], smallest);
    most[2] = further_lanes(most[2], most[3], smallest);
    if (any_lane(nan[0])) return TL_NAN;
    const float found = furthest_lane(further_lanes(most[0], most[2], smallest), smallest);
    if (found != 0.0f) return found;
    uint32_t sign = smallest ? 0u : ~0u;
    for (int64_t i = 0; i < n; i++)
        sign = smallest ? sign | ((const bits32 *)x)[i] : sign & ((const bits32 *)x)[i];
    return tl_from_bits(sign & 0x80000000u);
}

/* The extreme of n >= 1 elements. Integers may be compared in any order, so gcc keeps as many lanes as it likes. */
static float leaf_extreme(const float *x, int64_t n, int smallest)
{
    if (n >= EXTREME_LANES) return smallest ? extreme_on_lanes(x, n, 1) : extreme_on_lanes(x, n, 0);
    const bits32 *bits = (const bits32 *)x;
    int32_t least = INT32_MAX, greatest = INT32_MIN;
    for (int64_t i = 0; i < n; i++) {
        const int32_t key = order_key(bits[i]);
        least = lesser(least, key);
        greatest = greater(greatest, key);
    }
    return from_keys(least, greatest, smallest);
}
