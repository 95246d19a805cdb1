/* Transposes of panels, in blocks of TL_BLOCK by TL_BLOCK elements that are transposed in registers by log2(TL_BLOCK) rounds of
 * pairwise exchanges: round s swaps the off-diagonal s by s corners of every 2s by 2s square. At an edge the last block is moved
 * back inside, so some elements are written twice with the same value, and no scalar loop is needed. TL_BLOCK floats fill a vector
 * register. */
#pragma once

#include <stdint.h>

#include "formula/integer.h"

/* Lane k of the two results of an exchange at distance s: from the first vector, or (width +) from the second. */
#define LOW(width, s, k) ((k) & (s) ? (width) + (k) - (s) : (k))
#define HIGH(width, s, k) ((k) & (s) ? (width) + (k) : (k) + (s))
#define LANES4(f, s) f(4, s, 0), f(4, s, 1), f(4, s, 2), f(4, s, 3)
#define LANES8(f, s) f(8, s, 0), f(8, s, 1), f(8, s, 2), f(8, s, 3), f(8, s, 4), f(8, s, 5), f(8, s, 6), f(8, s, 7)
#define LANES16(f, s)                                                                   \
    f(16, s, 0), f(16, s, 1), f(16, s, 2), f(16, s, 3), f(16, s, 4), f(16, s, 5),       \
        f(16, s, 6), f(16, s, 7), f(16, s, 8), f(16, s, 9), f(16, s, 10), f(16, s, 11), \
        f(16, s, 12), f(16, s, 13), f(16, s, 14), f(16, s, 15)
#ifdef __clang__
#define SHUFFLE(width, a, b, f, s) __builtin_shufflevector(a, b, LANES##width(f, s))
#else
#define SHUFFLE(width, a, b, f, s) __builtin_shuffle(a, b, (lanes##width){LANES##width(f, s)})
#endif

#define EXCHANGE(width, s)                                         \
    _Pragma("GCC unroll 16") for (int32_t i = 0; i < (width); i++) \
    {                                                              \
        if (i & (s))                                               \
            continue;                                              \
        const floats##width a = v[i], b = v[i + (s)];              \
        v[i] = SHUFFLE(width, a, b, LOW, s);                       \
        v[i + (s)] = SHUFFLE(width, a, b, HIGH, s);                \
    }

/* Defines turn<width>, which transposes v in place, and block<width>: v[j][i] = x[i·x_stride + j] for i, j < width. */
#define BLOCK(width, rounds)                                                                                           \
    typedef float floats##width __attribute__((vector_size(4 * (width))));                                             \
    typedef float loose##width __attribute__((vector_size(4 * (width)), aligned(4), may_alias));                       \
    typedef int32_t lanes##width __attribute__((vector_size(4 * (width)), unused));                                    \
    static inline __attribute__((always_inline)) void turn##width(floats##width *v) { rounds }                         \
    static inline __attribute__((always_inline)) void block##width(const float *x, int64_t x_stride, floats##width *v) \
    {                                                                                                                  \
        _Pragma("GCC unroll 16") for (int32_t i = 0; i < (width); i++)                                                 \
            v[i] = *(const loose##width *)(x + i * x_stride);                                                          \
        turn##width(v);                                                                                                \
    }

/* Blocks over a panel, along the rows of x inside: the lines of y are then written from end to end. */
#define BLOCKS(width)                                                                                                  \
    __attribute__((unused)) static void blocks##width(const float *x, int64_t x_stride, float *y, int64_t y_stride, int64_t rows, int64_t cols)\
    {                                                                                                                  \
        for (int64_t j = 0; j < cols; j += (width)) {                                                                  \
            const int64_t c = tl_imin(j, cols - (width));                                                              \
            for (int64_t i = 0; i < rows; i += (width)) {                                                              \
                const int64_t r = tl_imin(i, rows - (width));                                                          \
                floats##width v[width];                                                                                \
                block##width(x + r * x_stride + c, x_stride, v);                                                       \
                _Pragma("GCC unroll 16") for (int32_t k = 0; k < (width); k++)                                         \
                    *(loose##width *)(y + (c + k) * y_stride + r) = v[k];                                              \
            }                                                                                                          \
        }                                                                                                              \
    }

BLOCK(4, EXCHANGE(4, 1) EXCHANGE(4, 2))
BLOCKS(4)
#if defined(__AVX512F__)
BLOCK(16, EXCHANGE(16, 1) EXCHANGE(16, 2) EXCHANGE(16, 4) EXCHANGE(16, 8))
BLOCKS(16)
#define TL_BLOCK 16
#define TL_BLOCKS blocks16
#define TL_TURN(v) turn16((floats16 *)(v))
#elif defined(__AVX2__)
BLOCK(8, EXCHANGE(8, 1) EXCHANGE(8, 2) EXCHANGE(8, 4))
BLOCKS(8)
#define TL_BLOCK 8
#define TL_BLOCKS blocks8
#define TL_TURN(v) turn8((floats8 *)(v))
#else
#define TL_BLOCK 4
#define TL_BLOCKS blocks4
#define TL_TURN(v) turn4((floats4 *)(v))
#endif

/* y[c·y_stride + r] = x[r·x_stride + c]. */
static inline void tl_transpose(const float *x, int64_t x_stride, float *y, int64_t y_stride, int64_t rows,
                                int64_t cols)
{
    if (rows >= TL_BLOCK && cols >= TL_BLOCK)
        TL_BLOCKS(x, x_stride, y, y_stride, rows, cols);
    else if (rows >= 4 && cols >= 4)
        blocks4(x, x_stride, y, y_stride, rows, cols);
    else
        for (int64_t c = 0; c < cols; c++)
            for (int64_t r = 0; r < rows; r++)
                y[c * y_stride + r] = x[r * x_stride + c];
}

#undef LOW
#undef HIGH
#undef LANES4
#undef LANES8
#undef LANES16
#undef SHUFFLE
#undef EXCHANGE
#undef BLOCK
#undef BLOCKS
