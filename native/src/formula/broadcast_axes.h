/* Broadcasting as both back ends see it: a short list of merged axes, and the order in which its adjoint sums them.
 *
 * Output axes of size 1 are dropped and neighbours of one kind are joined, so the list alternates between kept axes, along which
 * the input advances, and repeated axes, along which one input element is read again (inserted axes, and input axes of size 1).
 * Kept axes are contiguous in the input, those of size 1 taking no room, once they lie in the order in which the output reads
 * them: where the axis map is not ascending, tl_next_move gives the exchanges that bring them there, and those back.
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

/* Axes of the input larger than 1, as they lie, and the keys by which they are to lie in ascending order. */
typedef struct tl_axis_order {
    int32_t count;
    int64_t size[TL_BROADCAST_RANK], key[TL_BROADCAST_RANK];
} tl_axis_order;

/* Neighbours that stay neighbours, as no key lies between theirs, become one axis. */
static inline tl_axis_order tl_join_neighbours(tl_axis_order old)
{
    tl_axis_order order = {0, {0}, {0}};
    for (int32_t i = 0; i < old.count; i++) {
        int stay = i > 0 && old.key[i] > old.key[i - 1];
        for (int32_t j = 0; stay && j < old.count; j++)
            stay = old.key[j] <= old.key[i - 1] || old.key[j] >= old.key[i];
        if (!stay) order.size[order.count++] = 1;
        order.size[order.count - 1] *= old.size[i];
        order.key[order.count - 1] = old.key[i];
    }
    return order;
}

/* The input's axes as the input has them, to be ordered as the output reads them. */
static inline tl_axis_order tl_order_of_output(const int64_t *in, int32_t in_rank, const int64_t *map, int32_t rank)
{
    tl_axis_order order = {0, {0}, {0}};
    for (int32_t i = 0; i < in_rank; i++)
        for (int32_t j = 0; j < rank; j++)
            if (map[j] == i + 1 && in[i] != 1) {
                order.size[order.count] = in[i];
                order.key[order.count++] = j;
            }
    return tl_join_neighbours(order);
}

/* The same axes as the output reads them, to be ordered as the input has them. */
static inline tl_axis_order tl_order_of_input(const int64_t *in, const int64_t *map, int32_t rank)
{
    tl_axis_order order = {0, {0}, {0}};
    for (int32_t j = 0; j < rank; j++)
        if (map[j] != 0 && in[map[j] - 1] != 1) {
            order.size[order.count] = in[map[j] - 1];
            order.key[order.count++] = map[j];
        }
    return tl_join_neighbours(order);
}

static inline int tl_is_ordered(const tl_axis_order *order)
{
    for (int32_t i = 0; i + 1 < order->count; i++)
        if (order->key[i] > order->key[i + 1]) return 0;
    return 1;
}

/* Moves one axis to its place: 1 and the sizes (before, passed, moved, after), of which the middle two are to be exchanged, or 0
 * where all axes lie in order. */
static inline int tl_next_move(tl_axis_order *order, int64_t *sizes)
{
    for (int32_t i = 0; i < order->count; i++) {
        int32_t least = i;
        for (int32_t j = i + 1; j < order->count; j++)
            if (order->key[j] < order->key[least]) least = j;
        if (least == i) continue;
        const int64_t size = order->size[least], key = order->key[least];
        sizes[0] = tl_sizes_product(order->size, i);
        sizes[1] = tl_sizes_product(order->size + i, least - i);
        sizes[2] = size;
        sizes[3] = tl_sizes_product(order->size + least + 1, order->count - least - 1);
        for (int32_t j = least; j > i; j--) {
            order->size[j] = order->size[j - 1];
            order->key[j] = order->key[j - 1];
        }
        order->size[i] = size;
        order->key[i] = key;
        return 1;
    }
    return 0;
}
