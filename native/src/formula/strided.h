/* Strided copies as both back ends see them: a dense array of merged axes, and where its elements lie in a larger one.
 *
 * Element (j_0, j_1, ...) of the dense array is element base + sum of j_k * stride[k] of the other; strides may be negative. Axes
 * of size 1 are dropped, and an axis is joined to the one before it where that one steps over it exactly. */
#pragma once

#include <stdint.h>

enum { TL_STRIDED_RANK = 8 };

typedef struct tl_strided {
    int32_t count; /* at least 1 */
    int64_t base, n;
    int64_t size[TL_STRIDED_RANK], stride[TL_STRIDED_RANK];
} tl_strided;

/* The slice of an array `whole` that takes part[k] indices from starts[k] on, steps[k] apart, backwards where bit k of
 * `reversed` is set. No size is 0. */
static inline tl_strided tl_slice_strides(int32_t rank, const int64_t *whole, const int64_t *part,
                                          const int64_t *starts, const int64_t *steps, int64_t reversed)
{
    tl_strided s = {0, 0, 1, {0}, {0}};
    int64_t size[TL_STRIDED_RANK], stride[TL_STRIDED_RANK], along = 1;
    for (int32_t k = rank - 1; k >= 0; k--) {
        size[k] = part[k];
        stride[k] = (reversed >> k & 1 ? -steps[k] : steps[k]) * along;
        s.base += starts[k] * along;
        s.n *= size[k];
        along *= whole[k];
    }
    for (int32_t k = 0; k < rank; k++) {
        if (size[k] == 1) continue;
        if (s.count > 0 && s.stride[s.count - 1] == size[k] * stride[k]) {
            s.size[s.count - 1] *= size[k];
            s.stride[s.count - 1] = stride[k];
        } else {
            s.size[s.count] = size[k];
            s.stride[s.count++] = stride[k];
        }
    }
    if (s.count == 0) s.size[s.count++] = 1;
    return s;
}
