/* The hits of one row of a scatter-add, added in the order of the index list, by a warp.
 *
 * (((x + v0) + v1) + v2) ... is a chain of any length, of four cycles an addition if it is formed as it is written. A long one is
 * guessed and then verified, which gives the same bits (tl_add_run below). */
#pragma once

#include "cuda/device/unroll.cuh"
#include "cuda/device/vector.cuh"
#include "cuda/device/warp_sum.cuh"
#include "formula/base.h"

/* The hits of a column: hit i is values[(list[i] & mask) · cols + col], or, where `values` is NULL, list[i] as a float. `list` is
 * aligned to 16 bytes, and words up to the next multiple of four may be read. */
struct tl_hits {
    const uint32_t *list;
    uint32_t mask;
    const float *values;
    uint32_t cols;

    __device__ __forceinline__ float value(uint32_t word, uint32_t col) const
    {
        return values ? values[(int64_t)(word & mask) * cols + col] : __uint_as_float(word);
    }
    /* The function of i that gives the position of hit first + i. */
    __device__ __forceinline__ auto positions_from(uint32_t first) const
    {
        return [from = list + first, own = mask](uint32_t i) { return from[i] & own; };
    }
    /* v[i] = the value in column `col` of a row at the hit of lane i, for i < n, and behind them that of lane n - 1, which a caller
     * leaves out when it uses them: a load under a condition is waited for at once, as a register takes its value or another. */
    __device__ __forceinline__ void load_rows(uint32_t word, uint32_t n, uint32_t col, float (&v)[32]) const
    {
        const char *const column = reinterpret_cast<const char *>(values + col);
        const uint32_t mine = __shfl_sync(~0u, word & mask, min(threadIdx.x % 32, n - 1));
        TL_UNROLL_FOR (int i = 0; i < 32; i++)
            v[i] =
                *reinterpret_cast<const float *>(column + (uint64_t)__shfl_sync(~0u, mine, i) * (cols * sizeof(float)));
    }
};

/* sum + the four, one after the other. */
__device__ __forceinline__ float tl_add_quad(float sum, float4 v)
{
    sum += v.x;
    sum += v.y;
    sum += v.z;
    return sum + v.w;
}

/* A value, or four columns': -0, which changes no sum, and an addition. */
__device__ __forceinline__ void tl_set_nothing(float &v) { v = -0.0f; }
__device__ __forceinline__ void tl_set_nothing(float4 &v) { v = make_float4(-0.0f, -0.0f, -0.0f, -0.0f); }
__device__ __forceinline__ void tl_add_to(float &sum, float v) { sum += v; }
__device__ __forceinline__ void tl_add_to(float4 &sum, float4 v)
{
    sum.x += v.x;
    sum.y += v.y;
    sum.z += v.z;
    sum.w += v.w;
}

/* The end of the run of a sorted list that holds place `first`: the warp looks at 32 places at once. same(i) says whether place i
 * belongs to the run; it holds up to its end and nowhere after. */
template <class Same> __device__ __forceinline__ uint32_t tl_run_end(uint32_t first, uint32_t length, Same same)
{
    int64_t low = first, high = length; /* same(low), not same(high) */
    while (high - low > 1) {
        const int64_t step = (high - low + 31) / 32, probe = low + (threadIdx.x % 32 + 1) * step;
        low += __popc(__ballot_sync(~0u, probe < high && same((uint32_t)probe))) * step;
        high = min(high, low + step);
    }
    return (uint32_t)high;
}

/* Lane l adds the hits first .. end-1 of column `col` of a row, its own, one after the other; 32 of them are on their way together. */
__device__ __forceinline__ float tl_add_walk(const tl_hits &h, uint32_t first, uint32_t end, uint32_t col, float sum)
{
    const uint32_t lane = threadIdx.x % 32;
    uint32_t next = lane < end - first ? h.list[first + lane] : 0;
    while (first < end) {
        const uint32_t n = min(end - first, 32u), word = next;
        float v[32];
        h.load_rows(word, n, col, v);
        first += n;
        next = lane < end - first ? h.list[first + lane] : 0;
        TL_UNROLL_FOR (int i = 0; i < 32; i++)
            if (i < n) sum += v[i];
    }
    return sum;
}

/* ---- long runs ------------------------------------------------------------------------------------------------------- */

/* Floats as integers in the same order, one apart for neighbours; parity is that of the significand. */
__device__ __forceinline__ uint32_t tl_ordinal(float x)
{
    const uint32_t b = __float_as_uint(x);
    return b >> 31 ? 0x80000000u - b : b;
}
__device__ __forceinline__ float tl_of_ordinal(uint32_t o) { return __uint_as_float(o >> 31 ? 0x80000000u - o : o); }

/* About the sum of the values of the lanes up to this one, in no order that counts. */
template <int RUN> __device__ __forceinline__ float tl_about_sum(const float (&v)[RUN])
{
    const uint32_t lane = threadIdx.x % 32;
    float part[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    TL_UNROLL_FOR (int i = 0; i < RUN; i++)
        part[i % 4] += v[i];
    return tl_sum_to_lane((part[0] + part[1]) + (part[2] + part[3]), lane);
}

/* s + v of lane 0 + ... + v of lane 31, each lane's one after the other, with the bits of that chain. `room` is the warp's, of
 * 16·RUN floats.
 *
 * While a chain stays between two powers of two, a start that lies an even number of units higher ends as much higher: rounding
 * depends on nothing but the parity of the significand. So every lane walks its values from an even and from an odd neighbour of
 * about where it will start. Which of the two holds follows from the parities that the steps of the lanes before, in ordinals,
 * leave behind; the sum of these steps is the start. That is a guess: a chain may cross a power of two. Every lane then adds its
 * values to its start for good, and where all lanes end where the next one starts, by induction from lane 0, whose start is s, the
 * ends are those of the chain. The first lane that ends elsewhere has the right start, hence the right end, from which the lanes
 * behind it go on. What is left after TL_ROUNDS rounds, and chunks that cross more often than TL_CROSSINGS times, are added as they
 * are written. */
constexpr int TL_ROUNDS = 8, TL_CROSSINGS = 8;

template <int RUN> __device__ __forceinline__ float tl_add_chunk(float s, const float (&v)[RUN], float4 *room)
{
    const int lane = threadIdx.x % 32;
    const float total = tl_about_sum(v);
    const uint32_t about_end = __float_as_uint(s + total);
    uint32_t about = __shfl_up_sync(~0u, about_end, 1);
    if (lane == 0) about = __float_as_uint(s);

    int done = 0; /* lanes; s is the sum behind them */
    if (__popc(__ballot_sync(~0u, about >> 23 != about_end >> 23)) <= TL_CROSSINGS) {
        const float even = __uint_as_float(about & ~1u), odd = __uint_as_float(about | 1u);
        float from_even = even, from_odd = odd;
        TL_UNROLL_FOR (int i = 0; i < RUN; i++) {
            from_even += v[i];
            from_odd += v[i];
        }
        const uint32_t step_even = tl_ordinal(from_even) - tl_ordinal(even);
        const uint32_t step_odd = tl_ordinal(from_odd) - tl_ordinal(odd);
        /* Lanes that end odd after an even and after an odd start. */
        const uint32_t even_to_odd = __ballot_sync(~0u, step_even & 1), odd_to_odd = __ballot_sync(~0u, ~step_odd & 1);
        for (int round = 0; round < TL_ROUNDS && done < 32; round++) {
            const uint32_t origin = tl_ordinal(s);
            uint32_t between = (~0u << done) & ((1u << lane) - 1),
                     parity = origin & 1;                                 /* lanes from `done` to this one */
            const uint32_t fixed = ~(even_to_odd ^ odd_to_odd) & between; /* that end the same after both */
            if (fixed) {
                const int last = 31 - __clz((int)fixed);
                parity = even_to_odd >> last & 1;
                between &= ~((2u << last) - 1);
            }
            parity ^= __popc(even_to_odd & ~odd_to_odd & between) & 1;
            const uint32_t step = lane < done ? 0 : parity ? step_odd : step_even;
            const uint32_t end = tl_sum_to_lane(step, lane) + origin;
            const uint32_t start = __shfl_up_sync(~0u, end, 1);
            float sum = lane <= done ? s : tl_of_ordinal(start);
            TL_UNROLL_FOR (int i = 0; i < RUN; i++)
                sum += v[i];
            const uint32_t wrong =
                __ballot_sync(~0u, lane >= done && __float_as_uint(sum) != __float_as_uint(tl_of_ordinal(end)));
            const int last = wrong ? __ffs((int)wrong) - 1 : 31;
            s = __shfl_sync(~0u, sum, last);
            done = last + 1;
        }
    }
    /* The values of 16 lanes at a time move to shared memory, from where all lanes add the same. */
    constexpr int END = 16 * RUN / 4;
    for (int half = done / 16; half < 2; half++) {
        __syncwarp();
        if (lane / 16 == half) {
            TL_UNROLL_FOR (int i = 0; i < RUN; i += 4)
                room[(lane % 16 * RUN + i) / 4] = make_float4(v[i], v[i + 1], v[i + 2], v[i + 3]);
        }
        __syncwarp();
        int at = max(done - 16 * half, 0) * RUN / 4;
        float4 now[2] = {room[at], room[at + 1]};
        for (; at < END; at += 2) {
            const int then = min(at + 2, END - 2);
            const float4 next[2] = {room[then], room[then + 1]};
            TL_UNROLL_FOR (int i = 0; i < 2; i++) {
                s = tl_add_quad(s, now[i]);
                now[i] = next[i];
            }
        }
    }
    return s;
}

/* The words of hits at .. at+RUN-1, as far as they lie before `end`. */
template <int RUN>
__device__ __forceinline__ void tl_load_words(const tl_hits &h, int64_t at, uint32_t end, uint32_t (&words)[RUN])
{
    TL_UNROLL_FOR (int q = 0; q < RUN; q += 4) {
        uint4 w = make_uint4(0, 0, 0, 0);
        if (at + q < end) w = *reinterpret_cast<const uint4 *>(h.list + at + q);
        words[q] = w.x, words[q + 1] = w.y, words[q + 2] = w.z, words[q + 3] = w.w;
    }
}

/* The values at these words, whose hits are first .. end-1, and others beside them. None is under a condition, so that they are on
 * their way until tl_take_values, which makes those beside them -0. That changes no sum. */
template <int RUN>
__device__ __forceinline__ void tl_load_values(const tl_hits &h, int64_t at, uint32_t first, uint32_t end, uint32_t col,
                                               const uint32_t (&words)[RUN], float (&values)[RUN])
{
    if (h.values) {
        TL_UNROLL_FOR (int i = 0; i < RUN; i++) {
            const uint32_t row = at + i >= first && at + i < end ? words[i] & h.mask : 0;
            values[i] = h.values[(int64_t)row * h.cols + col];
        }
    } else {
        TL_UNROLL_FOR (int i = 0; i < RUN; i++)
            values[i] = __uint_as_float(words[i]);
    }
}
template <int RUN>
__device__ __forceinline__ void tl_take_values(int64_t at, uint32_t first, uint32_t end, const float (&values)[RUN],
                                               float (&v)[RUN])
{
    TL_UNROLL_FOR (int i = 0; i < RUN; i++)
        v[i] = at + i >= first && at + i < end ? values[i] : -0.0f;
}

/* sum + the hits first .. end-1 of a column, in their order; all lanes get it. `room` is as above. Lane l owns RUN neighbouring
 * hits of each chunk of 32·RUN, which begins at a multiple of four; hits outside the run are -0, which changes no sum. The values
 * of the chunk behind and the words of the one behind that are on their way meanwhile. */
template <int RUN>
__device__ __forceinline__ float tl_add_run(const tl_hits &h, uint32_t first, uint32_t end, uint32_t col, float sum,
                                            float4 *room)
{
    const int64_t from = first & ~3u;
    int64_t at = from + (int64_t)(threadIdx.x % 32) * RUN;
    uint32_t words[RUN];
    float next[RUN];
    const auto fetch = [&] {
        tl_load_values(h, at, first, end, col, words, next);
        at += 32 * RUN;
        tl_load_words(h, at, end, words);
    };
    tl_load_words(h, at, end, words);
    fetch();
    for (int64_t chunk = from; chunk < end; chunk += 32 * RUN) {
        float v[RUN];
        tl_take_values(at - 32 * RUN, first, end, next, v);
        fetch();
        sum = tl_add_chunk(sum, v, room);
    }
    return sum;
}

/* ---- rows of columns ------------------------------------------------------------------------------------------------- */

/* A group is 128 columns from `first` on, four per lane: consecutive ones and one 16-byte access where rows are
 * aligned (VECTORS), else 32 apart, so that a warp's accesses stay contiguous. Columns past the row read as 0 and
 * are not written. */
template <bool VECTORS> __device__ __forceinline__ float4 tl_load_group(const float *row, uint32_t first, uint32_t cols)
{
    const uint32_t lane = threadIdx.x % 32;
    float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if constexpr (VECTORS) {
        const uint32_t c = first + 4 * lane;
        if (c < cols) v = tl_load4(row + c);
    } else {
        const uint32_t c = first + lane;
        if (c < cols) v.x = row[c];
        if (c + 32 < cols) v.y = row[c + 32];
        if (c + 64 < cols) v.z = row[c + 64];
        if (c + 96 < cols) v.w = row[c + 96];
    }
    return v;
}

template <bool VECTORS>
__device__ __forceinline__ void tl_store_group(float *row, uint32_t first, uint32_t cols, float4 v)
{
    const uint32_t lane = threadIdx.x % 32;
    if constexpr (VECTORS) {
        const uint32_t c = first + 4 * lane;
        if (c < cols) tl_store4(row + c, v);
    } else {
        const uint32_t c = first + lane;
        if (c < cols) row[c] = v.x;
        if (c + 32 < cols) row[c + 32] = v.y;
        if (c + 64 < cols) row[c + 64] = v.z;
        if (c + 96 < cols) row[c + 96] = v.w;
    }
}

/* Adds the hits at p[0], p[1], ... p[n-1], n <= N, in this order; their loads are in flight together. Rows lie `stride` apart. */
template <bool VECTORS, int GROUPS, int N>
__device__ __forceinline__ void tl_add_hits(float4 (&sum)[GROUPS], const float *values, uint32_t stride,
                                            const uint32_t (&p)[N], uint32_t n, uint32_t first, uint32_t cols)
{
    float4 v[N][GROUPS];
    TL_UNROLL_FOR (int i = 0; i < N; i++)
        if (i < n)
            TL_UNROLL_FOR (int q = 0; q < GROUPS; q++)
                v[i][q] = tl_load_group<VECTORS>(values + (int64_t)p[i] * stride, first + 128 * q, cols);
    TL_UNROLL_FOR (int i = 0; i < N; i++)
        if (i < n)
            TL_UNROLL_FOR (int q = 0; q < GROUPS; q++)
                tl_add_to(sum[q], v[i][q]);
}
