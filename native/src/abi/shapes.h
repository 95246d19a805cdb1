/* Shape functions of the entry points: the twins of tlspec/shapes.py, same names, same results. They are total: an axis
 * that does not exist leaves the list unchanged, so a bad argument is refused by its own check and never read past. */
#ifndef TL_SHAPES_H
#define TL_SHAPES_H

#include "internal.h"

static inline uint64_t tl_rank(const tl_dims *dims)
{
    return (uint64_t)dims->rank;
}

static inline tl_dims tl_drop(const tl_dims *dims, uint64_t axis)
{
    tl_dims out = *dims;
    if (axis >= (uint64_t)dims->rank)
        return out;
    for (int32_t i = (int32_t)axis; i + 1 < out.rank; i++)
        out.d[i] = out.d[i + 1];
    out.rank--;
    return out;
}

static inline tl_dims tl_swap(const tl_dims *dims, uint64_t depth)
{
    tl_dims out = *dims;
    if (depth + 1 >= (uint64_t)dims->rank)
        return out;
    out.d[depth] = dims->d[depth + 1];
    out.d[depth + 1] = dims->d[depth];
    return out;
}

static inline int tl_axis_map_ok(const tl_dims *in, const tl_dims *out, const tl_dims *map)
{
    int64_t next = 1;
    if (map->rank != out->rank)
        return 0;
    for (int32_t j = 0; j < map->rank; j++) {
        if (map->d[j] == 0)
            continue;
        if (map->d[j] != next || next > in->rank)
            return 0;
        if (in->d[next - 1] != 1 && in->d[next - 1] != out->d[j])
            return 0;
        next++;
    }
    return next == (int64_t)in->rank + 1;
}

static inline int tl_given(const void *handle)
{
    return handle != NULL;
}

/* Whether all n elements of a host array are below `bound`. */
static inline int tl_all_below(const uint32_t *values, uint64_t n, uint64_t bound)
{
    uint32_t greatest = 0;
    for (uint64_t i = 0; i < n; i++)
        greatest = values[i] > greatest ? values[i] : greatest;
    return n == 0 || greatest < bound;
}

#endif
