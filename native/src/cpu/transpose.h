/* Transposes of a few rows, in vectors of four floats that every SIMD variant has. */
#pragma once

#include <stdint.h>
#include <string.h>

#define TL_INLINE static inline __attribute__((always_inline, unused))

/* Rows of x, `stride` apart, side by side: out[k*step + r] = x[r*stride + k], r = 0..3, k = 0..d-1. */
typedef float tl_quad __attribute__((vector_size(16)));
typedef int32_t tl_quad_index __attribute__((vector_size(16)));

TL_INLINE void tl_transpose_rows4(const float *x, int64_t stride, int64_t d, float *out, int64_t step)
{
    int64_t k = 0;
    for (; k + 4 <= d; k += 4) {
        tl_quad r[4];
        for (int i = 0; i < 4; i++)
            memcpy(&r[i], x + i * stride + k, sizeof r[i]);
        const tl_quad a = __builtin_shuffle(r[0], r[1], (tl_quad_index){0, 4, 1, 5});
        const tl_quad b = __builtin_shuffle(r[2], r[3], (tl_quad_index){0, 4, 1, 5});
        const tl_quad c = __builtin_shuffle(r[0], r[1], (tl_quad_index){2, 6, 3, 7});
        const tl_quad e = __builtin_shuffle(r[2], r[3], (tl_quad_index){2, 6, 3, 7});
        r[0] = __builtin_shuffle(a, b, (tl_quad_index){0, 1, 4, 5});
        r[1] = __builtin_shuffle(a, b, (tl_quad_index){2, 3, 6, 7});
        r[2] = __builtin_shuffle(c, e, (tl_quad_index){0, 1, 4, 5});
        r[3] = __builtin_shuffle(c, e, (tl_quad_index){2, 3, 6, 7});
        for (int i = 0; i < 4; i++)
            memcpy(out + (k + i) * step, &r[i], sizeof r[i]);
    }
    for (; k < d; k++)
        for (int i = 0; i < 4; i++)
            out[k * step + i] = x[i * stride + k];
}
