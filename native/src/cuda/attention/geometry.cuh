/* Attention of heads that share keys in groups, of any number of queries and keys: its shape, where its arrays lie, who attends to
 * whom, and which values are finite. */
#pragma once

#include "cuda/device/async_copy.cuh"
#include "cuda/device/division.cuh"
#include "cuda/device/grid.cuh"
#include "cuda/device/sum_tree.cuh"
#include "cuda/device/vector.cuh"
#include "cuda/runtime/launch.cuh"
#include "formula/attention.h"

namespace attention {

/* Rows to a flag that says that they hold no infinity and no NaN. */
constexpr int GRANULE = 32;

/* What a mask does: nothing; its zeros fill scores, or block them; it is added. */
constexpr int64_t UNLIMITED = INT64_MAX / 4;
enum Masking { UNMASKED, ZEROS_FILL, ZEROS_BLOCK, ADDED };

/* A member of the batch is a head of keys with the queries of its group, one head's after the other's: its rows. */
struct Geometry {
    int64_t members, rows, keys, d, v; /* members, queries and keys of one, elements of a key, of a value */
    int64_t kv_heads, group, queries;
    int64_t before, after, offset; /* query q of a head attends to the keys q + offset - before .. q + offset + after */
    int64_t mask_batch, mask_heads, mask_queries;
    const float *mask;
    int mode;
    float scale;
    bool limited; /* before or after limits anything */
};

/* The geometry of flash_attention, one head and as many queries as keys, and of grouped_attention. */
inline Geometry square_geometry(int64_t batch, int64_t n, int64_t d, int64_t mode, float scale, const float *mask)
{
    static constexpr int CAUSAL_MODE = 3;
    static constexpr int MASKING[] = {UNMASKED, ZEROS_FILL, ZEROS_BLOCK, UNMASKED};
    Geometry a = {};
    a.members = batch, a.rows = a.keys = a.queries = n, a.d = a.v = d;
    a.kv_heads = a.group = a.mask_heads = 1;
    a.mask_batch = batch, a.mask_queries = n, a.mask = mask;
    a.mode = MASKING[mode], a.scale = scale;
    a.limited = mode == CAUSAL_MODE;
    a.before = UNLIMITED, a.after = a.limited ? 0 : UNLIMITED;
    return a;
}

inline Geometry grouped_geometry(int64_t batch, int64_t heads, int64_t queries, int64_t d, int64_t kv_heads,
                                 int64_t keys, int64_t width, int64_t mask_mode, int64_t mask_batch, int64_t mask_heads,
                                 int64_t mask_queries, int64_t before, int64_t after, int64_t offset, float scale,
                                 const float *mask)
{
    static constexpr int MASKING[] = {UNMASKED, ZEROS_BLOCK, ADDED};
    Geometry a = {};
    a.members = batch * kv_heads, a.group = heads / kv_heads, a.rows = a.group * queries, a.keys = keys;
    a.d = d, a.v = width, a.kv_heads = kv_heads, a.queries = queries;
    a.before = before < UINT32_MAX ? before : UNLIMITED, a.after = after < UINT32_MAX ? after : UNLIMITED;
    a.offset = offset, a.mask_batch = mask_batch, a.mask_heads = mask_heads, a.mask_queries = mask_queries,
    a.mask = mask;
    a.mode = MASKING[mask_mode], a.scale = scale;
    a.limited = before < UINT32_MAX || after < UINT32_MAX;
    return a;
}

/* Where a member's row begins in an array: samples, heads of keys (for queries the groups of theirs) and rows are so far apart. */
struct Layout {
    int64_t batch, head, row;

    __host__ __device__ __forceinline__ int64_t member(const Geometry &a, int64_t b) const
    {
        const int64_t sample = (uint64_t)b >> 32 ? b / a.kv_heads : (int64_t)((uint32_t)b / (uint32_t)a.kv_heads);
        return sample * batch + (b - sample * a.kv_heads) * head;
    }
};

/* Of Q, K, V, the result, its cotangent, and the gradients. */
struct Layouts {
    Layout q, k, v, out, g, gq, gk, gv;

    static Layouts contiguous(const Geometry &of)
    {
        const auto lay = [&](int64_t rows, int64_t width) {
            return Layout{of.kv_heads * rows * width, rows * width, width};
        };
        const Layout q = lay(of.rows, of.d), k = lay(of.keys, of.d), out = lay(of.rows, of.v), v = lay(of.keys, of.v);
        return {q, k, v, out, out, q, k, v};
    }
};

/* The keys first .. end - 1: all that any row may attend to, as far as `before` and `after` go. */
struct Window {
    int64_t first, end;

    __host__ __device__ __forceinline__ bool meets(int64_t j0, int64_t j1) const { return first < j1 && j0 < end; }
};

inline Window window_of(const Geometry &a)
{
    const int64_t first = a.offset - a.before, end = a.queries + a.offset + a.after;
    const Window window = {first > 0 ? first : 0, end < a.keys ? end : a.keys};
    return window.first < window.end ? window : Window{0, 0};
}

/* x / y. Numbers of 32 bits divide several times as fast. */
__device__ __forceinline__ int64_t divide(int64_t x, int64_t y)
{
    return (uint64_t)(x | y) >> 32 ? x / y : (int64_t)((uint32_t)x / (uint32_t)y);
}

/* What rows may attend to: the keys first .. end - 1, and where their part of the mask, if there is one, begins. In
 * shared memory. */
struct Rows {
    int64_t *first, *end, *mask;

    static constexpr int FLOATS = 6; /* of memory for a row */
    __device__ __forceinline__ Rows(float *shared, int count)
        : first(reinterpret_cast<int64_t *>(shared)), end(first + count), mask(end + count)
    {}
    /* Of the `count` rows from i0 on; those that do not exist attend to nothing. The next barrier publishes it. */
    __device__ __forceinline__ void find(const Geometry &a, int64_t b, int64_t i0, int count)
    {
        for (int t = threadIdx.x; t < count; t += blockDim.x) {
            const int64_t i = i0 + t, head = divide(i, a.queries), at = i - head * a.queries + a.offset;
            int64_t from = at - a.before, to = at + a.after + 1;
            from = from < 0 ? 0 : from;
            to = to < a.keys ? to : a.keys;
            first[t] = from;
            end[t] = i < a.rows ? to : 0;
            if (a.mode == UNMASKED) continue;
            const int64_t outer = a.mask_batch > 1 ? b / a.kv_heads : 0;
            const int64_t inner = a.mask_heads > 1 ? b % a.kv_heads * a.group + head : 0;
            const int64_t query = a.mask_queries > 1 ? i - head * a.queries : 0;
            mask[t] = i < a.rows ? ((outer * a.mask_heads + inner) * a.mask_queries + query) * a.keys : 0;
        }
    }
    /* Whether the thread sees a row, of those that it found, that attends to one of the keys j0 .. j1-1. */
    __device__ __forceinline__ bool meet(int count, int64_t j0, int64_t j1) const
    {
        bool any = false;
        for (int t = threadIdx.x; t < count; t += blockDim.x)
            any |= (first[t] > j0 ? first[t] : j0) < (end[t] < j1 ? end[t] : j1);
        return any;
    }
    /* Whether nothing but the product of row r and any of the keys j0 .. j1-1 decides their score. */
    __device__ __forceinline__ bool opens(const Geometry &a, int r, int64_t j0, int64_t j1) const
    {
        return a.mode == UNMASKED && first[r] <= j0 && end[r] >= j1;
    }
    /* A raw product of row r and key j as a score, -inf where the pair is blocked; `shut`: whether no gradient passes. */
    __device__ __forceinline__ float score(const Geometry &a, int r, int64_t j, float product, bool *shut) const
    {
        *shut = j < first[r] || j >= end[r];
        if (*shut) return -TL_INF;
        if (a.mode == UNMASKED) return tl_attention_score(product, a.scale);
        const float m = a.mask[mask[r] + j];
        *shut = a.mode == ADDED ? m == -TL_INF : m == 0.0f;
        if (a.mode == ADDED) return tl_attention_biased(product, a.scale, m);
        return !*shut ? tl_attention_score(product, a.scale) : a.mode == ZEROS_FILL ? TL_FILL_SCORE : -TL_INF;
    }
};

/* Whether COUNT rows of n from `first` on, a multiple of COUNT, of member b are all finite, as far as flags tell. */
template <int COUNT>
__device__ __forceinline__ bool finite_rows(const uint8_t *finite, int64_t n, int64_t b, int64_t first)
{
    const int64_t granules = (n + GRANULE - 1) / GRANULE;
    bool yes = true;
    TL_UNROLL_FOR (int g = 0; g < (COUNT + GRANULE - 1) / GRANULE; g++)
        yes &= first / GRANULE + g >= granules || finite[b * granules + first / GRANULE + g] != 0;
    return yes;
}

/* What a row is divided by, of its greatest score and its sum of weights: 1 if all was blocked, NaN if all scores were
 * -inf or one was NaN. */
__device__ __forceinline__ float softmax_total(float top, float sum)
{
    return top == -TL_INF ? 1.0f + sum : top == TL_INFINITE_SCORE ? TL_NAN : sum;
}

/* Which rows of x are finite, n of `width` elements in each member, into `finite`: a flag per GRANULE. Defined in attention/scan.cu,
 * as what follows. */
int32_t scan_finite(tl_context *ctx, const Geometry &of, const float *x, const Layout &at, int64_t n, int64_t width,
                    uint8_t *finite);

/* A contiguous array (members, n, d) whose values are split for tensor cores, or read beside those. */
struct Operand {
    const float *x;
    bool split;
};

/* Which members have values in one of `count` operands, up to 5, that tensor cores do not take, into `unsafe`: a flag per member, and
 * behind them zeros, as many as scan_finite writes. */
inline int64_t unsafe_flags(int64_t members, int64_t n) { return members * (1 + tl_ceil_div(n, GRANULE)); }
int32_t scan_unsafe(tl_context *ctx, int64_t members, int64_t n, int64_t d, const Operand *operands, int count,
                    uint8_t *unsafe);

} /* namespace attention */
