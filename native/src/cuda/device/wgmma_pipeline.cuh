/* The producer/consumer loop of matrix products on Hopper's wgmma (device/wgmma.cuh), for products of matrices and of
 * convolutions. (Attention's loop is its own, since a consumer there turns one product's results into the next one's
 * operand; it shares rings, chains and barriers.) Machine code for sm_90a only.
 *
 * A block owns tiles of WM·64 rows by COLUMNS columns, one after the other, and takes the inner dimension in steps of
 * STEP. Two warp groups produce, in turns, a stage per step: A as it is, B split into two TF32. Two warp groups
 * multiply, each 64 rows by BN columns: one below the other (WM = 2) or side by side (WM = 1). They split A in
 * registers.
 *
 * Each result is a sum of parts of STEP terms, each part one chain of twelve wgmma, in order of steps. Per warp group, a
 * tile in which a value does not split or a result is not finite is handed to the kernel to be computed again. */
#pragma once

#include <float.h>

#include "cuda/device/wgmma.cuh"

namespace tl_wgmma {

/* Of a block's four warp groups two multiply and two produce. */
constexpr int GROUPS = 2, THREADS = 2 * GROUPS * GROUP;
/* 65536 registers: 128 per thread to begin with, then these. */
constexpr int PRODUCER_REGISTERS = 88, CONSUMER_REGISTERS = 168;
static_assert(GROUPS * GROUP * (PRODUCER_REGISTERS + CONSUMER_REGISTERS) <= 65536, "register file");

/* A stage holds A, B.hi and B.lo, each a row of STEP floats per row of A (column of B). STAGES_: 0 for as many as fit the
 * 227 KiB of a block with two of them for the rest. */
template <int WM_, int BN_, int STAGES_ = 0> struct Tile {
    static constexpr int WM = WM_, WN = GROUPS / WM, BN = BN_, ROWS = 64 * WM, COLUMNS = BN * WN;
    static constexpr int A_GROUP = 64 * ROW; /* bytes of A for one warp group */
    static constexpr int B_HI = WM * A_GROUP, B_LO = B_HI + COLUMNS * ROW, STAGE = B_LO + COLUMNS * ROW;
    static constexpr int STAGES = STAGES_ ? STAGES_ : 225 * 1024 / STAGE;
    static constexpr int BYTES = STAGES * STAGE + 1024; /* the swizzle's pattern starts on 1024 bytes */
    static_assert(STAGES >= 3 && B_HI % 1024 == 0 && BN * ROW % 1024 == 0, "layout");
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

using Guard = tl_split_guard;

/* What a block's warp groups meet at. */
template <class T> struct Stages {
    char *data;
    uint32_t full, empty;     /* the barriers of a ring */
    uint8_t (*unsafe)[WARPS]; /* a producing warp met a value that does not split */
};

/* `full` takes the arrivals of the four producing warps and MORE. */
template <class T, int MORE>
__device__ __forceinline__ Stages<T> open_stages(char *dynamic, uint64_t (*barriers)[T::STAGES],
                                                 uint8_t (*unsafe)[WARPS])
{
    static_assert(WARPS == 4, "read as 4 bytes");
    const Stages<T> stages = {align_to_swizzle(dynamic), tl_shared_address(barriers[0]), tl_shared_address(barriers[1]),
                              unsafe};
    if (threadIdx.x == 0)
        init_ring<T::STAGES>(stages.full, stages.empty, WARPS * ARRIVALS + MORE, GROUPS * WARPS * ARRIVALS);
    __syncthreads();
    return stages;
}

/* Which tiles a block gets: number n is tile_of(n); past `tiles` there is none. Blocks take turns. */
struct Schedule {
    uint32_t tiles;
    __device__ __forceinline__ uint32_t tile_of(uint32_t n) const { return n * gridDim.x + blockIdx.x; }
};
/* Blocks take turns forwards and backwards, so that tiles in order of falling length make nearly the same work for all. A
 * block gets `run` neighbouring ones at a time. */
struct AlternatingSchedule {
    uint32_t tiles, run;
    __device__ __forceinline__ uint32_t tile_of(uint32_t n) const
    {
        const uint32_t turn = n / run, first = turn % 2 ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
        return (turn * gridDim.x + first) * run + (n - turn * run);
    }
};

/* ---- producers --------------------------------------------------------------------------------------------------- */

/* Stores both parts of four values, each 16 bytes. */
__device__ __forceinline__ void store_split(char *hi, char *lo, const float4 &x)
{
    uint4 high, low;
    tl_split(x.x, high.x, low.x);
    tl_split(x.y, high.y, low.y);
    tl_split(x.z, high.z, low.z);
    tl_split(x.w, high.w, low.w);
    *reinterpret_cast<uint4 *>(hi) = high;
    *reinterpret_cast<uint4 *>(lo) = low;
}

/* A producing group's loop. Of the steps of the block's tiles, one after the other, group 0 serves the even ones and
 * group 1 the odd ones. The loader provides
 *     steps(tile)
 *     open(tile, n, s)            the block's nth tile, from step s on
 *     fill(s, to, ring, guard)    step s to the stage at `to`, after ring.wait_empty(); what it reads for it may be read
 *                                 before that */
template <class T, class Loader, class Schedule>
__device__ __forceinline__ void produce(const Stages<T> &stages, Loader &loader, const Schedule &schedule, int group)
{
    const int thread = (int)threadIdx.x % GROUP;
    uint32_t tile = schedule.tile_of(0), n = 0;
    Ring<T::STAGES> ring(stages.full, stages.empty, 1, group);
    int s = group, steps = loader.steps(tile);
    bool open = true;
    while (true) {
        while (s >= steps) {
            tile = schedule.tile_of(++n);
            if (tile >= schedule.tiles) return;
            s -= steps;
            steps = loader.steps(tile);
            open = true;
        }
        if (open) loader.open(tile, n, s);
        open = false;
        Guard guard;
        loader.fill(s, stages.data + ring.stage * T::STAGE, ring, guard);
        const bool any = __any_sync(0xffffffffu, guard.unsafe());
        if (thread % 32 == 0) stages.unsafe[ring.stage][thread / 32] = any;
        proxy_fence();
        ring.arrive_full(thread % 32);
        s += GROUPS;
        ring.template advance<GROUPS>();
    }
}

/* ---- consumers --------------------------------------------------------------------------------------------------- */

/* A warp's 16 rows of A over STEP columns, split. Element e of block q is row g + 8·(e % 2), column 8q + t + 4·(e / 2)
 * of lane 4g + t (PTX ISA, "Register Fragments for wgmma.mma_async"). */
struct Fragments {
    uint32_t hi[STEP / 8][4], lo[STEP / 8][4];

    /* From rows stored as in device/wgmma.cuh: `a` is the lane's first element, (g, t), `swizzle` 16·g. A warp's 32 loads
     * of one element lie in different banks. */
    __device__ __forceinline__ void read(const char *a, int swizzle)
    {
        TL_UNROLL_FOR (int q = 0; q < STEP / 8; q++)
            TL_UNROLL_FOR (int e = 0; e < 4; e++) {
                const int at = e % 2 * 8 * ROW + (swizzle ^ 16 * (2 * q + e / 2));
                tl_split(*reinterpret_cast<const float *>(a + at), hi[q][e], lo[q][e]);
            }
    }
    /* From [q][thread of the group][e]; `a` is this thread's of q = 0. */
    __device__ __forceinline__ void read_packed(const char *a)
    {
        TL_UNROLL_FOR (int q = 0; q < STEP / 8; q++) {
            const float4 x = *reinterpret_cast<const float4 *>(a + q * GROUP * 16);
            tl_split(x.x, hi[q][0], lo[q][0]);
            tl_split(x.y, hi[q][1], lo[q][1]);
            tl_split(x.z, hi[q][2], lo[q][2]);
            tl_split(x.w, hi[q][3], lo[q][3]);
        }
    }
};

/* A multiplying group's loop. PACKED: the stages hold A as Fragments::read_packed wants it. finish(tile, n, redo, sum)
 * gets the group's sums of the block's nth tile, arranged as wgmma's, and whether any thread of the group found that they
 * do not count. */
template <class T, bool PACKED, class Schedule, class Steps, class Finish>
__device__ __forceinline__ void consume(const Stages<T> &stages, const Schedule &schedule, int group,
                                        const Steps &steps_of, const Finish &finish)
{
    constexpr int N = T::BN / 2;
    const int lane = threadIdx.x % 32, swizzle = 16 * (lane / 4), thread = threadIdx.x % GROUP;
    const char *a = stages.data + (T::WM == 2 ? group * T::A_GROUP : 0) +
                    (PACKED ? 16 * thread : (thread / 32 * 16 + lane / 4) * ROW + 4 * (lane % 4));
    const uint64_t b = descriptor(tl_shared_address(stages.data) + T::B_HI + (T::WM == 2 ? 0 : group * T::BN * ROW));
    float part[N] = {}, sum[N];
    Ring<T::STAGES> ring(stages.full, stages.empty, 0);
    uint32_t n = 0;
    bool starting = true; /* start_second_group */
    for (uint32_t tile; (tile = schedule.tile_of(n)) < schedule.tiles; n++) {
        const int steps = steps_of(tile);
        bool redo = false;
        TL_UNROLL_FOR (int r = 0; r < N; r++)
            sum[r] = 0.0f;
#pragma unroll 1
        for (int s = 0; s < steps; s++) {
            ring.wait_full();
            if (starting && group == 1) wait_for_first_group();
            Fragments fragments;
            if constexpr (PACKED)
                fragments.read_packed(a + ring.stage * T::STAGE);
            else
                fragments.read(a + ring.stage * T::STAGE, swizzle);
            start_chain<T::B_LO - T::B_HI>(part, fragments.hi, fragments.lo, b + ring.stage * (T::STAGE / 16));
            wgmma_wait(part);
            if (starting && group == 0) start_second_group();
            starting = false;
            redo |= *reinterpret_cast<const volatile uint32_t *>(stages.unsafe[ring.stage]) != 0;
            ring.arrive_empty(lane);
            TL_UNROLL_FOR (int r = 0; r < N; r++)
                sum[r] += part[r];
            ring.advance();
        }
        TL_UNROLL_FOR (int r = 0; r < N; r++)
            redo |= !(fabsf(sum[r]) <= FLT_MAX);
        finish(tile, n, group_any(group, redo), sum);
    }
}

#endif

} /* namespace tl_wgmma */
