/* Shape functions of the entry points: those of tlspec/shapes.py in C, same names, same results. They are total: an axis
 * that does not exist leaves the list unchanged, so a bad argument is refused by its own check, and nothing is read
 * beyond the list. */
#pragma once

#include <stddef.h>

#include "dims.h"

static inline uint64_t tl_rank(const tl_dims *dims) { return (uint64_t)dims->rank; }

static inline tl_dims tl_drop(const tl_dims *dims, uint64_t axis)
{
    tl_dims out = *dims;
    if (axis >= (uint64_t)dims->rank) return out;
    for (int32_t i = (int32_t)axis; i + 1 < out.rank; i++)
        out.d[i] = out.d[i + 1];
    out.rank--;
    return out;
}

static inline tl_dims tl_keep(const tl_dims *dims, uint64_t axes)
{
    tl_dims out = *dims;
    out.rank = 0;
    for (int32_t k = 0; k < dims->rank; k++)
        if (!(axes >> k & 1)) out.d[out.rank++] = dims->d[k];
    return out;
}

static inline int tl_are_axes(const tl_dims *dims, uint64_t axes) { return axes >> dims->rank == 0; }

static inline int tl_none_empty(const tl_dims *dims, uint64_t axes)
{
    for (int32_t k = 0; k < dims->rank; k++)
        if (dims->d[k] == 0 && axes >> k & 1) return 0;
    return 1;
}

static inline tl_dims tl_swap(const tl_dims *dims, uint64_t depth)
{
    tl_dims out = *dims;
    if (depth + 1 >= (uint64_t)dims->rank) return out;
    out.d[depth] = dims->d[depth + 1];
    out.d[depth + 1] = dims->d[depth];
    return out;
}

static inline tl_dims tl_swapped_axes(const tl_dims *dims, uint64_t depth)
{
    tl_dims axes = {dims->rank, {0, 1, 2, 3, 4, 5, 6, 7}};
    return tl_swap(&axes, depth);
}

static inline int tl_is_permutation(const tl_dims *dims, const tl_dims *axes)
{
    int named[TL_MAX_RANK] = {0};
    if (axes->rank != dims->rank) return 0;
    for (int32_t k = 0; k < axes->rank; k++)
        if (axes->d[k] >= dims->rank || named[axes->d[k]]++) return 0;
    return 1;
}

static inline tl_dims tl_permuted(const tl_dims *dims, const tl_dims *axes)
{
    tl_dims out = *dims;
    if (tl_is_permutation(dims, axes))
        for (int32_t k = 0; k < axes->rank; k++)
            out.d[k] = dims->d[axes->d[k]];
    return out;
}

static inline int tl_axis_map_ok(const tl_dims *in, const tl_dims *out, const tl_dims *map)
{
    int read[TL_MAX_RANK] = {0};
    if (map->rank != out->rank) return 0;
    for (int32_t j = 0; j < map->rank; j++) {
        if (map->d[j] == 0) continue;
        if (map->d[j] > in->rank || read[map->d[j] - 1]++) return 0;
        if (in->d[map->d[j] - 1] != 1 && in->d[map->d[j] - 1] != out->d[j]) return 0;
    }
    for (int32_t i = 0; i < in->rank; i++)
        if (!read[i] && in->d[i] != 1) return 0;
    return 1;
}

static inline int tl_positive(const tl_dims *dims)
{
    for (int32_t i = 0; i < dims->rank; i++)
        if (dims->d[i] < 1) return 0;
    return 1;
}

/* Indices are compared by a division, since (part - 1) * step may pass 64 bits. */
static inline int tl_slices_ok(const tl_dims *whole, const tl_dims *part, const tl_dims *starts, const tl_dims *steps,
                               uint32_t reversed)
{
    if (whole->rank != part->rank || whole->rank != starts->rank || whole->rank != steps->rank ||
        reversed >> whole->rank || !tl_positive(steps))
        return 0;
    for (int32_t k = 0; k < whole->rank; k++) {
        const int64_t size = whole->d[k], start = starts->d[k], count = part->d[k];
        if (start > size || (count > 0 && start == size)) return 0;
        if (count > 0 && count - 1 > (reversed >> k & 1 ? start : size - 1 - start) / steps->d[k]) return 0;
    }
    return 1;
}

/* Of `count` numbers (length, stride, length, stride, ...); at most 2^63, so that sums of it and lengths do not overflow. */
static inline uint64_t tl_extent_of(const uint64_t *axes, int count)
{
    const uint64_t most = (uint64_t)1 << 63;
    uint64_t last = 0;
    for (int i = 0; i < count; i += 2)
        if (axes[i] == 0) return 0;
    for (int i = 0; i < count; i += 2) {
        const uint64_t steps = axes[i] - 1, stride = axes[i + 1];
        if (stride > 0 && steps > (most - 1 - last) / stride) return most;
        last += steps * stride;
    }
    return last + 1;
}
#define tl_extent(...)                                                                                                 \
    tl_extent_of((const uint64_t[]){__VA_ARGS__}, (int)(sizeof((const uint64_t[]){__VA_ARGS__}) / sizeof(uint64_t)))

static inline int tl_given(const void *handle) { return handle != NULL; }

/* Whether all n elements of a host array are below `bound`. */
static inline int tl_all_below(const uint32_t *values, uint64_t n, uint64_t bound)
{
    uint32_t greatest = 0;
    for (uint64_t i = 0; i < n; i++)
        greatest = values[i] > greatest ? values[i] : greatest;
    return n == 0 || greatest < bound;
}

static inline uint64_t tl_pool_size(const uint32_t size, const uint32_t kernel, const uint32_t stride,
                                    const uint32_t padding)
{
    const uint64_t padded = size + 2 * (uint64_t)padding;
    return size == 0 || stride == 0 || padded < kernel ? 0 : (padded - kernel) / stride + 1;
}

static inline int same_rank(const tl_dims *spatial, const tl_dims *kernel, const tl_dims *stride,
                            const tl_dims *padding)
{
    return spatial->rank == kernel->rank && spatial->rank == stride->rank && spatial->rank == padding->rank;
}

static inline tl_dims tl_pool_out(const tl_dims *spatial, const tl_dims *kernel, const tl_dims *stride,
                                  const tl_dims *padding)
{
    tl_dims out = *spatial;
    for (int32_t i = 0; i < out.rank; i++)
        out.d[i] = (int64_t)tl_pool_size((uint32_t)spatial->d[i], (uint32_t)kernel->d[i], (uint32_t)stride->d[i],
                                         (uint32_t)padding->d[i]);
    return out;
}

static inline int tl_pool_ok(const tl_dims *spatial, const tl_dims *kernel, const tl_dims *stride,
                             const tl_dims *padding)
{
    const tl_dims out = tl_pool_out(spatial, kernel, stride, padding);
    return spatial->rank >= 1 && same_rank(spatial, kernel, stride, padding) && tl_positive(&out) &&
           tl_dims_product(kernel) < UINT64_C(1) << 32;
}

/* Arguments are below 2^32, so n + 2p stays below 2^34 and (n - 1)s + k below 2^64. Sizes of 2^32 and more come out as
 * 2^32, which no buffer can have. */
static inline uint64_t tl_conv_size(const uint32_t size, uint32_t kernel, uint32_t stride, uint32_t padding)
{
    const uint64_t limit = UINT64_C(1) << 32, padded = (uint64_t)size + 2 * (uint64_t)padding;
    if (size == 0 || kernel == 0 || stride == 0 || padded < kernel) return 0;
    const uint64_t n = (padded - kernel) / stride + 1;
    return n < limit ? n : limit;
}

static inline uint64_t tl_conv_transpose_size(const uint32_t size, uint32_t kernel, uint32_t stride, uint32_t padding)
{
    const uint64_t limit = UINT64_C(1) << 32, cut = 2 * (uint64_t)padding;
    if (size == 0 || kernel == 0 || stride == 0) return 0;
    const uint64_t full = (uint64_t)(size - 1) * stride + kernel;
    return full <= cut ? 0 : full - cut < limit ? full - cut : limit;
}

/* With a dilation and a padding for either side. The span of a dilated kernel and (n - 1)s stay below 2^64, their sum need
 * not: each is cut at 2^62, as whatever is longer comes out as 2^32 anyway. */
static inline uint64_t tl_conv_grouped_size(const uint32_t size, uint32_t kernel, uint32_t stride, uint32_t dilation,
                                            uint32_t low, uint32_t high)
{
    const uint64_t limit = UINT64_C(1) << 32, padded = (uint64_t)size + low + high;
    if (size == 0 || kernel == 0 || stride == 0 || dilation == 0) return 0;
    const uint64_t span = (uint64_t)(kernel - 1) * dilation + 1;
    if (padded < span) return 0;
    const uint64_t n = (padded - span) / stride + 1;
    return n < limit ? n : limit;
}

static inline uint64_t tl_conv_transpose_grouped_size(const uint32_t size, uint32_t kernel, uint32_t stride,
                                                      uint32_t dilation, uint32_t low, uint32_t high, uint32_t extra)
{
    const uint64_t limit = UINT64_C(1) << 32, most = UINT64_C(1) << 62, cut = (uint64_t)low + high;
    if (size == 0 || kernel == 0 || stride == 0 || dilation == 0) return 0;
    const uint64_t steps = (uint64_t)(size - 1) * stride, span = (uint64_t)(kernel - 1) * dilation;
    const uint64_t full = (steps < most ? steps : most) + (span < most ? span : most) + 1 + extra;
    return full <= cut ? 0 : full - cut < limit ? full - cut : limit;
}

/* The sizes of all axes by `size`, tl_conv_size or tl_conv_transpose_size. */
static inline tl_dims conv_sizes(uint64_t (*size)(uint32_t, uint32_t, uint32_t, uint32_t), const tl_dims *spatial,
                                 const tl_dims *kernel, const tl_dims *stride, const tl_dims *padding)
{
    tl_dims out = {0};
    for (int32_t i = 0; i < spatial->rank && i < kernel->rank && i < stride->rank && i < padding->rank; i++)
        out.d[out.rank++] = (int64_t)size((uint32_t)spatial->d[i], (uint32_t)kernel->d[i], (uint32_t)stride->d[i],
                                          (uint32_t)padding->d[i]);
    return out;
}

static inline tl_dims tl_conv_out(const tl_dims *spatial, const tl_dims *kernel, const tl_dims *stride,
                                  const tl_dims *padding)
{
    return conv_sizes(tl_conv_size, spatial, kernel, stride, padding);
}

static inline tl_dims tl_conv_transpose_out(const tl_dims *spatial, const tl_dims *kernel, const tl_dims *stride,
                                            const tl_dims *padding)
{
    return conv_sizes(tl_conv_transpose_size, spatial, kernel, stride, padding);
}

static inline int conv_sizes_ok(const tl_dims *spatial, const tl_dims *kernel, const tl_dims *stride,
                                const tl_dims *padding, const tl_dims *out)
{
    int ok = spatial->rank >= 1 && same_rank(spatial, kernel, stride, padding);
    for (int32_t i = 0; i < out->rank; i++)
        ok = ok && out->d[i] >= 1 && out->d[i] < INT64_C(1) << 32;
    return ok;
}

static inline int tl_conv_ok(const tl_dims *spatial, const tl_dims *kernel, const tl_dims *stride,
                             const tl_dims *padding)
{
    const tl_dims out = tl_conv_out(spatial, kernel, stride, padding);
    return conv_sizes_ok(spatial, kernel, stride, padding, &out);
}

static inline int tl_conv_transpose_ok(const tl_dims *spatial, const tl_dims *kernel, const tl_dims *stride,
                                       const tl_dims *padding)
{
    const tl_dims out = tl_conv_transpose_out(spatial, kernel, stride, padding);
    return conv_sizes_ok(spatial, kernel, stride, padding, &out);
}

static inline tl_dims tl_conv_grouped_out(const tl_dims *spatial, const tl_dims *kernel, const tl_dims *stride,
                                          const tl_dims *dilation, const tl_dims *low, const tl_dims *high)
{
    tl_dims out = {0};
    for (int32_t i = 0; i < spatial->rank && i < kernel->rank && i < stride->rank && i < dilation->rank &&
                        i < low->rank && i < high->rank;
         i++)
        out.d[out.rank++] = (int64_t)tl_conv_grouped_size((uint32_t)spatial->d[i], (uint32_t)kernel->d[i],
                                                          (uint32_t)stride->d[i], (uint32_t)dilation->d[i],
                                                          (uint32_t)low->d[i], (uint32_t)high->d[i]);
    return out;
}

static inline tl_dims tl_conv_transpose_grouped_out(const tl_dims *spatial, const tl_dims *kernel,
                                                    const tl_dims *stride, const tl_dims *dilation, const tl_dims *low,
                                                    const tl_dims *high, const tl_dims *extra)
{
    tl_dims out = {0};
    for (int32_t i = 0; i < spatial->rank && i < kernel->rank && i < stride->rank && i < dilation->rank &&
                        i < low->rank && i < high->rank && i < extra->rank;
         i++)
        out.d[out.rank++] = (int64_t)tl_conv_transpose_grouped_size(
            (uint32_t)spatial->d[i], (uint32_t)kernel->d[i], (uint32_t)stride->d[i], (uint32_t)dilation->d[i],
            (uint32_t)low->d[i], (uint32_t)high->d[i], (uint32_t)extra->d[i]);
    return out;
}

static inline int tl_conv_grouped_ok(const tl_dims *spatial, const tl_dims *kernel, const tl_dims *stride,
                                     const tl_dims *dilation, const tl_dims *low, const tl_dims *high)
{
    const tl_dims out = tl_conv_grouped_out(spatial, kernel, stride, dilation, low, high);
    return conv_sizes_ok(spatial, kernel, stride, dilation, &out) && same_rank(spatial, low, high, &out);
}

static inline int tl_conv_transpose_grouped_ok(const tl_dims *spatial, const tl_dims *kernel, const tl_dims *stride,
                                               const tl_dims *dilation, const tl_dims *low, const tl_dims *high,
                                               const tl_dims *extra)
{
    const tl_dims out = tl_conv_transpose_grouped_out(spatial, kernel, stride, dilation, low, high, extra);
    return conv_sizes_ok(spatial, kernel, stride, dilation, &out) && same_rank(spatial, low, high, extra);
}
