/* Vectors of one transform per lane, and the transposes that bring rows into lanes.
 *
 * A complex vector is TL_W real parts followed by TL_W imaginary parts. The width differs by variant; a lane's
 * arithmetic does not, so neither do the bits. */
#pragma once

#include "cpu/blocks.h"
#include "cpu/vector.h"
#include "formula/base.h"

#if defined(__AVX512F__)
#define TL_W 16
#define TL_INTERLEAVE(m) {0 + m, 16 + m, 1 + m, 17 + m, 2 + m, 18 + m, 3 + m, 19 + m, 4 + m, 20 + m, 5 + m, 21 + m, \
                          6 + m, 22 + m, 7 + m, 23 + m}
#define TL_EVERY_OTHER(m) {0 + m, 2 + m, 4 + m, 6 + m, 8 + m, 10 + m, 12 + m, 14 + m, 16 + m, 18 + m, 20 + m, 22 + m, \
                           24 + m, 26 + m, 28 + m, 30 + m}
#define TL_BACKWARDS {15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0}
#elif defined(__AVX2__)
#define TL_W 8
#define TL_INTERLEAVE(m) {0 + m, 8 + m, 1 + m, 9 + m, 2 + m, 10 + m, 3 + m, 11 + m}
#define TL_EVERY_OTHER(m) {0 + m, 2 + m, 4 + m, 6 + m, 8 + m, 10 + m, 12 + m, 14 + m}
#define TL_BACKWARDS {7, 6, 5, 4, 3, 2, 1, 0}
#else
#define TL_W 4
#define TL_INTERLEAVE(m) {0 + m, 4 + m, 1 + m, 5 + m}
#define TL_EVERY_OTHER(m) {0 + m, 2 + m, 4 + m, 6 + m}
#define TL_BACKWARDS {3, 2, 1, 0}
#endif

typedef float tl_vec_any __attribute__((vector_size(4 * TL_W), aligned(4), may_alias));
typedef int32_t tl_vec_mask __attribute__((vector_size(4 * TL_W)));
typedef double tl_vec_double __attribute__((vector_size(8 * TL_W)));

typedef struct tl_cvec {
    tl_vec r, i;
} tl_cvec;

/* The lower (high = 0) or upper halves of two vectors, element by element in turn. */
TL_INLINE tl_vec tl_interleave(tl_vec a, tl_vec b, int high)
{
    const tl_vec_mask low = TL_INTERLEAVE(0), up = TL_INTERLEAVE(TL_W / 2);
    return high ? __builtin_shuffle(a, b, up) : __builtin_shuffle(a, b, low);
}

/* x[0], x[2], ... (odd = 0) or x[1], x[3], ... of two vectors that follow each other. */
TL_INLINE tl_vec tl_every_other(tl_vec a, tl_vec b, int odd)
{
    const tl_vec_mask even_mask = TL_EVERY_OTHER(0), odd_mask = TL_EVERY_OTHER(1);
    return odd ? __builtin_shuffle(a, b, odd_mask) : __builtin_shuffle(a, b, even_mask);
}

/* Whether a lane is not 0. */
TL_INLINE int tl_any_lane(tl_vec v)
{
    int any = 0;
    for (int l = 0; l < TL_W; l++)
        any |= v[l] != 0.0f;
    return any;
}

/* buffer[c·step] of every lane = row[c], for c < cols; lane l reads the row at x + l·stride. Lanes from `lanes` on get 0. */
static inline void tl_lanes_in(const float *x, int64_t stride, int64_t lanes, int64_t cols, tl_vec *buffer,
                               int64_t step)
{
    for (int64_t c = 0; c < cols; c += TL_W) {
        const int64_t n = cols - c < TL_W ? cols - c : TL_W;
        tl_vec a[TL_W];
        for (int l = 0; l < TL_W; l++)
            a[l] = l < lanes ? tl_load_first(x + l * stride + c, n) : (tl_vec){0};
        TL_TURN(a);
        for (int l = 0; l < TL_W; l++)
            if (l < n) buffer[(c + l) * step] = a[l];
    }
}

/* The way back: row[c] = buffer[(c ^ flip)·step]; flip = 1 exchanges neighbours (an even number of columns then). */
static inline void tl_lanes_out(const tl_vec *buffer, int64_t step, int64_t flip, int64_t lanes, int64_t cols, float *x,
                                int64_t stride)
{
    for (int64_t c = 0; c < cols; c += TL_W) {
        const int64_t n = cols - c < TL_W ? cols - c : TL_W;
        tl_vec a[TL_W];
        for (int l = 0; l < TL_W; l++)
            a[l] = l < n ? buffer[((c + l) ^ flip) * step] : (tl_vec){0};
        TL_TURN(a);
        for (int l = 0; l < TL_W; l++)
            if (l < lanes) tl_store_first(x + l * stride + c, a[l], n);
    }
}

/* The parts exchanged with swap. */
TL_INLINE tl_cvec tl_exchanged(tl_cvec a, int swap) { return swap ? (tl_cvec){a.i, a.r} : a; }

/* A complex vector from `lanes` consecutive complex numbers, parts exchanged with swap. */
TL_INLINE tl_cvec tl_complex_in(const float *x, int64_t lanes, int swap)
{
    tl_cvec z = {{0}, {0}};
    if (lanes == TL_W) {
        const tl_vec a = *(const tl_vec_any *)x, b = *(const tl_vec_any *)(x + TL_W);
        z = (tl_cvec){tl_every_other(a, b, 0), tl_every_other(a, b, 1)};
    } else {
        for (int64_t l = 0; l < lanes; l++)
            z.r[l] = x[2 * l], z.i[l] = x[2 * l + 1];
    }
    return tl_exchanged(z, swap);
}

TL_INLINE void tl_complex_out(tl_cvec z, float *x, int64_t lanes, int swap)
{
    const tl_vec r = swap ? z.i : z.r, i = swap ? z.r : z.i;
    if (lanes == TL_W) {
        *(tl_vec_any *)x = tl_interleave(r, i, 0);
        *(tl_vec_any *)(x + TL_W) = tl_interleave(r, i, 1);
    } else {
        for (int64_t l = 0; l < lanes; l++)
            x[2 * l] = r[l], x[2 * l + 1] = i[l];
    }
}

/* The lanes in the other order. */
TL_INLINE tl_cvec tl_backwards(tl_cvec z)
{
    const tl_vec_mask mask = TL_BACKWARDS;
    return (tl_cvec){__builtin_shuffle(z.r, mask), __builtin_shuffle(z.i, mask)};
}
