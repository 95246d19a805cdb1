/* Broadcasting as both back ends see it: a short list of merged axes, and the order in which its adjoint sums them.
 *
 * Output axes of size 1 are dropped and neighbours of one kind are joined, so the list alternates between kept axes, along which
 * the input advances, and repeated axes, along which one input element is read again (inserted axes, and input axes of size 1).
 * Kept axes are contiguous in the input: its axes appear in order, and those of size 1 take no room.
 *
 * The adjoint sums the repeated axes one at a time, the innermost first, so only the first pass reads the large array. A pass is
 * a (outer, length, inner) sum: by the row tree of sum_tree.h where inner is 1, else by its column tree. tlspec.ops.shape mirrors
 * the plan to derive the height of the whole sum. */
#pragma once

#include <stdint.h>

enum { TL_BROADCAST_RANK = 8 };

typedef struct tl_broadcast_axes {
    int32_t count;
    int64_t size[TL_BROADCAST_RANK];
    int8_t repeated[TL_BROADCAST_RANK];
} tl_broadcast_axes;

/* in: sizes of the input's axes; out, map: sizes and axis-map entries of the `rank` output axes. */
static inline tl_broadcast_axes tl_merge_axes(const int64_t *in, const int64_t *out, const int64_t *map, int32_t rank)
{
    tl_broadcast_axes axes = {0, {0}, {0}};
    for (int32_t j = 0; j < rank; j++) {
        const int8_t repeated = map[j] == 0 || in[map[j] - 1] != out[j];
        if (out[j] == 1) continue;
        if (axes.count > 0 && axes.repeated[axes.count - 1] == repeated) {
            axes.size[axes.count - 1] *= out[j];
        } else {
            axes.size[axes.count] = out[j];
            axes.repeated[axes.count++] = repeated;
        }
    }
    return axes;
}

static inline int64_t tl_sizes_product(const int64_t *size, int32_t count)
{
    int64_t product = 1;
    for (int32_t j = 0; j < count; j++)
        product *= size[j];
    return product;
}

typedef struct tl_sum_pass {
    int64_t outer, length, inner;
} tl_sum_pass;

/* Takes the innermost repeated axis off the list: 1 and its pass, or 0 when none is left. */
static inline int tl_next_sum(tl_broadcast_axes *axes, tl_sum_pass *pass)
{
    for (int32_t j = axes->count - 1; j >= 0; j--) {
        if (!axes->repeated[j]) continue;
        pass->outer = tl_sizes_product(axes->size, j);
        pass->length = axes->size[j];
        pass->inner = tl_sizes_product(axes->size + j + 1, axes->count - j - 1);
        for (int32_t i = j; i + 1 < axes->count; i++) {
            axes->size[i] = axes->size[i + 1];
            axes->repeated[i] = axes->repeated[i + 1];
        }
        axes->count--;
        return 1;
    }
    return 0;
}
