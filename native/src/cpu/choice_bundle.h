/* The first elements of short rows by the order of formula/order.h, TL_BUNDLE rows side by side (row_bundle.h): lanes run across rows,
 * so that a step of all of them is a few instructions, however short the rows are. */
#pragma once

#include "cpu/row_bundle.h"
#include "cpu/vector.h"
#include "formula/integer.h"
#include "formula/order.h"

enum { TL_CHOICES = 16 /* of a row at most */ };

/* The elements of a bundle as integers of which the larger comes first. */
typedef int32_t tl_bundle_keys[TL_BUNDLE_COLS * TL_BUNDLE] __attribute__((aligned(64)));
typedef int32_t tl_key_vector __attribute__((vector_size(4 * TL_LANES)));

/* Keys of sign * x; with `flip`, all bits, the smaller number comes first, and NaN last. */
static inline void tl_make_keys(const float *x, int64_t n, float sign, uint32_t flip, int32_t *key)
{
    for (int64_t i = 0; i < n * TL_BUNDLE; i++)
        key[i] = (int32_t)(tl_order_bits(sign * x[i]) ^ flip ^ UINT32_C(0x80000000));
}

/* place[s*TL_BUNDLE + r] = which element of row r comes s-th, for s < k <= n, k <= TL_CHOICES. An element is put before the first
 * that is less, and those behind it move on by a place; equal ones keep their order. */
static inline __attribute__((always_inline)) void tl_choose_of(const int32_t *key, int64_t n, int64_t k,
                                                               uint32_t *place)
{
    for (int32_t p = 0; p < TL_BUNDLE; p += TL_LANES) {
        tl_key_vector top[TL_CHOICES] = {{0}}, at[TL_CHOICES] = {{0}};
        for (int64_t j = 0; j < n; j++) {
            tl_key_vector v, i = (int32_t)j - (tl_key_vector){0}, moved = {0};
            memcpy(&v, key + j * TL_BUNDLE + p, sizeof v);
            for (int64_t s = 0; s < tl_imin(j, k); s++) {
                moved |= v > top[s];
                const tl_key_vector other = (v ^ top[s]) & moved, place_other = (i ^ at[s]) & moved;
                top[s] ^= other, v ^= other;
                at[s] ^= place_other, i ^= place_other;
            }
            if (j < k) top[j] = v, at[j] = i;
        }
        for (int64_t s = 0; s < k; s++)
            memcpy(place + s * TL_BUNDLE + p, at + s, sizeof *at);
    }
}

static inline void tl_choose(const int32_t *key, int64_t n, int64_t k, uint32_t *place)
{
    switch (k) { /* few stay in registers */
    case 1: tl_choose_of(key, n, 1, place); break;
    case 2: tl_choose_of(key, n, 2, place); break;
    case 3: tl_choose_of(key, n, 3, place); break;
    default: tl_choose_of(key, n, k, place);
    }
}
