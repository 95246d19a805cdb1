/* Which values of an array are finite, and which members of the batch have values that tensor cores do not take: by
 * kernels of their own (scan_values, attention/forward.cu), or by the blocks that attend, for short sequences. */
#pragma once

#include "cuda/attention/simt_tiles.cuh"
#include "cuda/device/tf32_split.cuh"
#include "cuda/device/vector.cuh"

namespace attention {

struct ValueScanArgs {
    ValueScan scans[5];
    int count;
    int64_t batch, n, d, granules;
    uint8_t *unsafe;
};

inline ValueScanArgs scan_args(const Problem &p, const ValueScan *scans, int count, uint8_t *unsafe)
{
    ValueScanArgs a{{}, count, p.batch, p.n, p.d, p.granules, unsafe};
    for (int i = 0; i < count; i++)
        a.scans[i] = scans[i];
    return a;
}

/* The thread's share of `count` contiguous floats, of THREADS. AHEAD loads are on their way at once, and nothing that is read
 * decides what is read next, so that the time is that of a few latencies. The last of them go back as far as is needed for
 * all to exist: what is seen twice changes nothing. All lanes of a warp go through it. */
template <int VECTOR, int THREADS, int AHEAD>
__device__ __forceinline__ void see_units(tl_split_guard &guard, const float *from, int64_t count, int thread)
{
    constexpr int APART = VECTOR * THREADS, SPAN = AHEAD * APART;
    const auto see = [&](const float *at, int last) {
        float x[AHEAD][VECTOR];
        TL_UNROLL_FOR (int e = 0; e < AHEAD; e++) {
            const int c = e * APART < last ? e * APART : last;
            if constexpr (VECTOR == 4)
                tl_load4(at + c, x[e]);
            else
                x[e][0] = at[c];
        }
        __syncwarp(); /* no load moves behind it, to the first use of another */
        TL_UNROLL_FOR (int e = 0; e < AHEAD; e++)
            TL_UNROLL_FOR (int k = 0; k < VECTOR; k++)
                guard.see(x[e][k]);
    };
    if (count < SPAN) { /* from the thread's first to the last of all, which some read again */
        const int last = (int)count - VECTOR, own = VECTOR * thread < last ? VECTOR * thread : last;
        see(from + own, last - own);
        return;
    }
#pragma unroll 1
    for (int64_t i = 0; i < count; i += SPAN)
        see(from + VECTOR * thread + (i < count - SPAN ? i : count - SPAN), SPAN);
}

template <int THREADS, int AHEAD = 8>
__device__ __forceinline__ void see_all(tl_split_guard &guard, const float *from, int64_t count, int thread)
{
    if (count == 0) return;
    if (count % 4 == 0 && tl_aligned4(from))
        see_units<4, THREADS, AHEAD>(guard, from, count, thread);
    else
        see_units<1, THREADS, AHEAD>(guard, from, count, thread);
}

/* What the thread began to copy by copy_rows<C, COUNT>, all of the row, and has waited for: what does not exist is 0. */
template <class C, int COUNT, int BYTES>
__device__ __forceinline__ void see_columns(tl_split_guard &guard, const float *rows, const Problem &p)
{
    using Place = CopyPlace<C, BYTES>;
    static_assert(COUNT % Place::APART == 0, "whole turns");
    const float *const own = rows + (int)threadIdx.x / Place::LANES * C::LD +
                             (int)threadIdx.x % Place::LANES * Place::EACH;
    TL_UNROLL_FOR (int u = 0; u < Place::UNITS; u += Place::LANES) {
        if (u * Place::EACH >= p.d) break;
#pragma unroll 4
        for (int r = 0; r < COUNT; r += Place::APART)
            if constexpr (BYTES == 16)
                guard.see(tl_load4(own + u * Place::EACH + r * C::LD));
            else
                guard.see(own[u * Place::EACH + r * C::LD]);
    }
}
template <class C, int COUNT>
__device__ __forceinline__ void see_copied(tl_split_guard &guard, const float *rows, const Problem &p)
{
    if (p.wide)
        see_columns<C, COUNT, 16>(guard, rows, p);
    else
        see_columns<C, COUNT, 4>(guard, rows, p);
}

/* Whether a thread saw a value that tensor cores do not take; of an array that is not `split` it may be too small. */
__device__ __forceinline__ bool is_unsafe(const tl_split_guard &guard, bool split)
{
    return !(guard.most < TENSOR_MOST) || (split && tl_split_too_small(guard.least));
}

struct ValueFlags {
    bool nonfinite, unsplittable;
};

/* What a warp finds out about a granule of member b, contiguous memory; the same in all lanes. */
__device__ __forceinline__ ValueFlags scan_granule(const ValueScan &scan, const ValueScanArgs &a, int64_t b,
                                                   int64_t granule)
{
    const int64_t first = granule * GRANULE, count = (a.n - first < GRANULE ? a.n - first : GRANULE) * a.d;
    tl_split_guard guard;
    see_all<32>(guard, scan.x + (b * a.n + first) * a.d, count, (int)threadIdx.x % 32);
    return {__any_sync(0xffffffffu, !(guard.most <= FLT_MAX)) != 0,
            __any_sync(0xffffffffu, is_unsafe(guard, scan.split)) != 0};
}

/* Whether member b is unsafe. The warps of the block take the granules of all arrays in turn, so that nothing needs to be
 * cleared before; with `leave` the flags are left in memory. */
__device__ __forceinline__ bool scan_member(const ValueScanArgs &a, int64_t b, bool leave)
{
    bool unsafe = false;
    for (int t = (int)threadIdx.x / 32; t < a.count * (int)a.granules; t += (int)blockDim.x / 32) {
        const ValueScan &scan = a.scans[t / (int)a.granules];
        const int64_t granule = t % (int)a.granules;
        const ValueFlags flags = scan_granule(scan, a, b, granule);
        if (leave && scan.finite && threadIdx.x % 32 == 0) scan.finite[b * a.granules + granule] = !flags.nonfinite;
        unsafe |= flags.unsplittable;
    }
    unsafe = __syncthreads_or(unsafe) != 0;
    if (leave && threadIdx.x == 0) a.unsafe[b] = unsafe;
    return unsafe;
}

/* Rows of a member up to which its blocks scan it: the keys of a turn of four teams. */
constexpr int64_t SCAN_ROWS = 128;

/* The same of a block that copies all keys and values of the member to shared memory, where they are 0 up to the next
 * multiple of 32 coordinates; `copied`: it does, and they are the last that it has begun to copy. Only what has found
 * something looks further, for what the others are to know. */
template <class C>
__device__ __forceinline__ bool scan_tiles(const ValueScanArgs &a, const Problem &p, int64_t b, const float *Ks,
                                           const float *Vs, bool copied, bool leave)
{
    constexpr int UNITS = C::DP / 4;
    if (copied) {
        tl_split_guard guard;
        see_all<C::THREADS>(guard, p.Q + b * p.n * p.d, p.n * p.d, (int)threadIdx.x);
        tl_copy_wait<0>();
        __syncthreads();
        const int end = (int)(p.d + 31) / 32 * 32;
#pragma unroll 2
        for (int t = threadIdx.x; t < (int)p.n * UNITS; t += C::THREADS) {
            const int c = t % UNITS * 4;
            if (c >= end) continue;
            guard.see(tl_load4(Ks + t / UNITS * C::LD + c));
            guard.see(tl_load4(Vs + t / UNITS * C::LD + c));
        }
        if (!__syncthreads_or(is_unsafe(guard, true))) {
            if (leave && threadIdx.x == 0) a.unsafe[b] = 0;
            return false;
        }
    }
    tl_copy_wait<0>();
    return scan_member(a, b, leave);
}

} /* namespace attention */
