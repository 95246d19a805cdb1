/* Scatter-adds on CUDA, which the operations of the family share. */
#pragma once

#include "cuda/device/division.cuh"
#include "cuda/runtime/launch.cuh"

/* Indices (io, k, ii) of an array seen as (outer, n, inner). */
struct tl_axis_indices {
    const uint32_t *at;
    tl_fastdiv inner, k;
    uint32_t n;
    bool by_outer, by_column; /* else shared */

    static tl_axis_indices make(const uint32_t *at, int64_t n, int64_t inner, int64_t io, int64_t k, int64_t ii)
    {
        return {at, tl_fastdiv(inner), tl_fastdiv(k), (uint32_t)n, io > 1, ii > 1};
    }
    /* The list of (outer, column), whose indices lie step() apart. */
    __device__ __forceinline__ const uint32_t *list(uint32_t outer, uint32_t column) const
    {
        const int64_t first = by_outer ? (int64_t)outer * k.divisor : 0;
        return at + (by_column ? first * inner.divisor + column : first);
    }
    __device__ __forceinline__ int64_t step() const { return by_column ? inner.divisor : 1; }
    /* The index of element t of (outer, k, inner), and where that element is. */
    __device__ __forceinline__ uint32_t of(uint32_t t, uint32_t *outer, uint32_t *j, uint32_t *column) const
    {
        *outer = k.divmod(inner.divmod(t, column), j);
        return list(*outer, *column)[*j * step()];
    }
};

/* scatter.cu: out = base (NULL: +0) and to each element the column tree of its hits' values, in index order, added once. An array
 * without a hit keeps its bits. The indices lie on the device; `name` is the operation. */
int32_t tl_scatter(tl_context *ctx, const char *name, const float *base, const float *values, const uint32_t *indices,
                   int64_t outer, int64_t n, int64_t inner, int64_t io, int64_t k, int64_t ii, float *out);

/* sort.cu: sorts up to TL_SORTED_HITS indices by row, stably; an index to ignore counts as row `rows`, which is below UINT32_MAX. */
constexpr int64_t TL_SORTED_HITS = 1 << 17;
struct tl_hit_sort {
    const uint32_t *indices;
    uint32_t k, rows;
    uint32_t *keys, *positions;  /* the rows in order, and where they stand in the list */
    unsigned long long *cleared; /* one number, set to 0 */
    /* An array that the first launch copies besides; without `base` it is filled with +0. */
    const float *base;
    float *out;
    int64_t copied; /* its elements */
};
int32_t tl_sort_hits(tl_context *ctx, const char *name, const tl_hit_sort &s);
