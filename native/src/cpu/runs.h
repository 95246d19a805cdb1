/* Copies of short runs of elements, which a call for each would take longer than. */
#pragma once

#include <stdint.h>
#include <string.h>

typedef float tl_floats4 __attribute__((vector_size(16), aligned(4), may_alias));
typedef float tl_floats8 __attribute__((vector_size(32), aligned(4), may_alias));

enum { SHORT_RUN = 32 }; /* the most elements of a run that is copied in pieces that may overlap, without a call */

/* `count` runs of n elements that lie side by side, y_step and x_step from one to the next. */
#define SHORT_RUNS(...)                                                                          \
    for (int64_t i = 0; i < count; i++, y += y_step, x += x_step) {                              \
        __VA_ARGS__;                                                                             \
    }
#define PIECE(type, at) *(type *)(y + (at)) = *(const type *)(x + (at))
#define PIECES(type, size) SHORT_RUNS(PIECE(type, 0); PIECE(type, n - (size)))
static inline void tl_copy_runs(float *restrict y, int64_t y_step, const float *restrict x, int64_t x_step, int64_t n,
                                int64_t count)
{
    switch (n) {
    case 1: SHORT_RUNS(y[0] = x[0]) break;
    case 2: SHORT_RUNS(memcpy(y, x, 2 * sizeof(float))) break;
    case 3: SHORT_RUNS(memcpy(y, x, 2 * sizeof(float)); y[2] = x[2]) break;
    case 4: SHORT_RUNS(PIECE(tl_floats4, 0)) break;
    default:
        if (n <= 8)
            PIECES(tl_floats4, 4)
        else if (n <= 16)
            PIECES(tl_floats8, 8)
        else if (n <= SHORT_RUN)
            SHORT_RUNS(PIECE(tl_floats8, 0); PIECE(tl_floats8, 8); PIECE(tl_floats8, n - 16); PIECE(tl_floats8, n - 8))
        else
            SHORT_RUNS(memcpy(y, x, (size_t)n * sizeof(float)))
    }
}
#undef SHORT_RUNS
#undef PIECE
#undef PIECES
