/* Who attends to whom on CUDA, and rows in shared memory: for attention of heads that share keys in groups
 * (attention/grouped.cu) and for all attention in the mode `reproducible` (attention/chain.cu). */
#pragma once

#include "cuda/attention/simt_tiles.cuh"

namespace attention {

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
    static constexpr int MASKING[] = {UNMASKED, ZEROS_FILL, ZEROS_BLOCK, UNMASKED};
    Geometry a = {};
    a.members = batch, a.rows = a.keys = a.queries = n, a.d = a.v = d;
    a.kv_heads = a.group = a.mask_heads = 1;
    a.mask_batch = batch, a.mask_queries = n, a.mask = mask;
    a.mode = MASKING[mode], a.scale = scale;
    a.limited = mode == CAUSAL;
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

/* The terms that a block sums at least, and so where sums of `others` terms are cut, for each of `rows` rows of a
 * member, in the mode `fast`, which prescribes nothing: as many as give a member alone a block for each of about 128
 * multiprocessors, at least `least`, and whole tiles. It does not depend on the number of members, so that a member has
 * the same bits in every batch. */
inline int64_t terms_of_block(int64_t rows, int64_t others, int64_t least)
{
    const int64_t blocks = tl_ceil_div(rows, 64), wanted = blocks > 0 && blocks < 128 ? 128 / blocks : 1;
    const int64_t terms = tl_ceil_div(tl_ceil_div(others, wanted), 128) * 128;
    return terms > least ? terms : least;
}

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

/* Starts copying rows first .. first+COUNT-1 of x (n, width), which are `pitch` apart, coordinates from .. from+DP-1, those that exist and 0 up
 * to the next multiple of 4; rows that do not exist are 0. What is further right in shared memory stays as it is: it
 * only joins sums of columns that do not exist. */
template <class C, int COUNT>
__device__ __forceinline__ void copy(float *to, const float *x, int64_t first, int64_t n, int64_t width, bool wide,
                                     int64_t from, int64_t pitch)
{
    const float *source = x + first * pitch + from;
    const int64_t rows = n - first, rest = width - from;
    if (wide) {
#pragma unroll 4
        for (int t = threadIdx.x; t < COUNT * (C::DP / 4); t += C::THREADS) {
            const int r = t / (C::DP / 4), c = t % (C::DP / 4) * 4;
            if (c >= rest) continue;
            tl_copy_async<16>(to + r * C::LD + c, r < rows ? source + r * pitch + c : x, r < rows);
        }
        return;
    }
    const int end = (int)(rest < C::DP ? (rest + 3) / 4 * 4 : C::DP);
    auto start = [&](int r, int c) {
        const bool present = r < rows && c < rest;
        tl_copy_async<4>(to + r * C::LD + c, present ? source + r * pitch + c : x, present);
    };
    if constexpr (C::DP <= 32) { /* a thread copies elements of one column */
        const int c = (int)threadIdx.x % C::DP;
        if (c >= end) return;
#pragma unroll 4
        for (int r = (int)threadIdx.x / C::DP; r < COUNT; r += C::THREADS / C::DP)
            start(r, c);
    } else { /* a warp copies a row */
#pragma unroll 4
        for (int r = (int)threadIdx.x / 32; r < COUNT; r += C::THREADS / 32)
            for (int c = (int)threadIdx.x % 32; c < end; c += 32)
                start(r, c);
    }
}

template <class C, int COUNT>
__device__ __forceinline__ void copy(float *to, const float *x, int64_t first, int64_t n, int64_t width, bool wide,
                                     int64_t from)
{
    copy<C, COUNT>(to, x, first, n, width, wide, from, width);
}

/* Waits for all copies of the block. */
__device__ __forceinline__ void arrive()
{
    tl_copy_commit();
    tl_copy_wait<0>();
    __syncthreads();
}

/* Whether COUNT rows of n from `first` on, a multiple of COUNT, of member b are all finite, as far as granules tell. */
template <int COUNT>
__device__ __forceinline__ bool finite_rows(const uint8_t *finite, int64_t n, int64_t b, int64_t first)
{
    const int64_t granules = (n + GRANULE - 1) / GRANULE;
    bool yes = true;
    TL_UNROLL_FOR (int g = 0; g < (COUNT + GRANULE - 1) / GRANULE; g++)
        yes &= first / GRANULE + g >= granules || finite[b * granules + first / GRANULE + g] != 0;
    return yes;
}

/* Cuts the tiles of COLS keys from *j0 to *end down to those that hold a key which one of the block's `count` rows may attend to,
 * unless there is a value that is not finite: where most are shut, passing over them one by one would take longer than the
 * others. A barrier, after that behind limits.find(). */
template <int COLS>
__device__ __forceinline__ void cut_to_window(const Geometry &a, const Rows &limits, int count, const uint8_t *finite,
                                              int64_t b, int64_t *j0, int64_t *end)
{
    const int64_t granules = (a.keys + GRANULE - 1) / GRANULE;
    bool yes = true;
    for (int64_t g = *j0 / GRANULE + threadIdx.x; g * GRANULE < *end; g += blockDim.x)
        yes &= finite[b * granules + g] != 0;
    if (!__syncthreads_and(yes)) return;
    int64_t first = a.keys, last = 0;
    for (int t = (int)threadIdx.x % 32; t < count; t += 32) {
        if (limits.first[t] >= limits.end[t]) continue;
        first = limits.first[t] < first ? limits.first[t] : first;
        last = limits.end[t] > last ? limits.end[t] : last;
    }
    TL_UNROLL_FOR (int s = 16; s > 0; s /= 2) {
        const int64_t from = __shfl_xor_sync(0xffffffffu, first, s), to = __shfl_xor_sync(0xffffffffu, last, s);
        first = from < first ? from : first;
        last = to > last ? to : last;
    }
    if (first > *j0) *j0 += (first - *j0) / COLS * COLS;
    if (last < *end) *end = last;
}

/* Which rows of x (members, n, width) are finite, into `to`: a flag per GRANULE. */
inline int32_t scan(tl_context *ctx, const Geometry &a, const float *x, int64_t n, int64_t width, uint8_t *to)
{
    Problem p = {};
    p.batch = a.members, p.n = n, p.d = width, p.granules = tl_ceil_div(n, GRANULE);
    const ValueScan scans[1] = {{x, to, false}};
    return a.members > 0 && n > 0 ? scan_values(ctx, p, scans, 1, nullptr) : (int32_t)TORCHLEAN_OK;
}

} /* namespace attention */
