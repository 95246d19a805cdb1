/* Convolutions' products by Hopper's wgmma (wgmma.cuh): what the kernel of the forward pass and the data gradient
 * (conv_wgmma_product.cu) and that of the weight gradient (conv_wgmma_weights.cu) share.
 *
 * A block owns tiles of WM·64 rows by COLUMNS columns, one after the other, and takes the inner dimension in steps of
 * STEP. Two warp groups produce, in turns, a stage per step: A as it is, B split into two TF32. Two warp groups
 * multiply, each 64 rows by BN columns: one below the other (WM = 2) or side by side (WM = 1). They split A in
 * registers.
 *
 * Each result is a sum of parts of STEP terms, each part one chain of wgmma.cuh, in order of steps. Per warp group, a
 * tile in which a value does not split or a result is not finite is computed again as chains of fused multiply-adds. */
#ifndef TL_CONV_WGMMA_CUH
#define TL_CONV_WGMMA_CUH

#include "../../generated/kernels.h"
#include "conv.cuh"
#include "wgmma.cuh"

/* Whether the kernels serve these arguments of tl_cuda_conv_product and tl_cuda_conv_weights, and the products. */
bool tl_conv_wgmma_serves_product(tl_context *ctx, const tl_conv_shape &s, bool spread, int64_t batch, int64_t channels,
                                  int64_t rows);
int32_t tl_conv_wgmma_product(tl_context *ctx, const tl_conv_shape &s, bool spread, int64_t batch, int64_t channels,
                              int64_t rows, const float *source, const float *w, const float *bias, float *target);
bool tl_conv_wgmma_serves_weights(tl_context *ctx, const tl_conv_shape &s, int64_t batch, int64_t channels,
                                  int64_t rows, const float *small);
int32_t tl_conv_wgmma_weights(tl_context *ctx, const tl_conv_shape &s, int64_t batch, int64_t channels, int64_t rows,
                              const float *large, const float *small, float *gw);

namespace tl_conv_wgmma {

using namespace tl_wgmma_detail;

/* Axes; a shape of lower rank has axes of length 1 before its own. */
constexpr int AXES = 3;
/* Extents, paddings and strides below this keep coordinates within int32. */
constexpr int64_t EXTENT_MOST = INT64_C(1) << 28;

/* Multiprocessors of an H100 or H200. */
constexpr int64_t WAVE = 132;

template <int WM_, int BN_> struct Tile {
    static constexpr int WM = WM_, WN = GROUPS / WM, BN = BN_, ROWS = 64 * WM, COLUMNS = BN * WN;
    static constexpr int A_GROUP = 64 * ROW; /* bytes of A for one warp group */
    static constexpr int B_HI = WM * A_GROUP, B_LO = B_HI + COLUMNS * ROW, STAGE = B_LO + COLUMNS * ROW;
    /* As many as fit the 227 KiB of a block with two of them for the rest. */
    static constexpr int STAGES = 225 * 1024 / STAGE;
    static constexpr int BYTES = STAGES * STAGE + 1024; /* the swizzle's pattern starts on 1024 bytes */
    static_assert(STAGES >= 3 && B_HI % 1024 == 0 && BN * ROW % 1024 == 0, "layout");
};

/* Few enough, and not so large that a coordinate overflows. */
static inline bool small_enough(const tl_conv_shape &s)
{
    if (s.rank > AXES)
        return false;
    for (int d = 0; d < s.rank; d++)
        if (s.in[d] >= EXTENT_MOST || s.out[d] >= EXTENT_MOST || s.kernel[d] >= EXTENT_MOST ||
            s.stride[d] >= EXTENT_MOST || s.padding[d] >= EXTENT_MOST || s.out[d] * s.stride[d] >= 4 * EXTENT_MOST)
            return false;
    return true;
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* What a block's warp groups meet at. */
template <class T> struct Stages {
    char *data;
    uint32_t full, empty;
    uint8_t (*unsafe)[WARPS]; /* a producing warp met a value that does not split */

    __device__ __forceinline__ uint32_t full_of(int stage) const { return full + 8 * stage; }
    __device__ __forceinline__ uint32_t empty_of(int stage) const { return empty + 8 * stage; }
};

/* `full` takes the arrivals of the four producing warps and MORE. */
template <class T, int MORE>
__device__ __forceinline__ Stages<T> open_stages(char *dynamic, uint64_t (*barriers)[T::STAGES],
                                                 uint8_t (*unsafe)[WARPS])
{
    static_assert(WARPS == 4, "read as 4 bytes");
    const Stages<T> stages = {dynamic + (1024 - shared_address(dynamic) % 1024) % 1024, shared_address(barriers[0]),
                              shared_address(barriers[1]), unsafe};
    if (threadIdx.x == 0)
        for (int s = 0; s < T::STAGES; s++) {
            barrier_init(stages.full_of(s), WARPS * ARRIVALS + MORE);
            barrier_init(stages.empty_of(s), GROUPS * WARPS * ARRIVALS);
        }
    __syncthreads();
    return stages;
}

/* The block's nth tile; past all tiles there is none. Blocks take turns forwards and backwards, so that tiles in order
 * of falling length make nearly the same work for all. A block gets `run` neighbouring ones at a time. */
__device__ __forceinline__ uint32_t tile_of(uint32_t n, uint32_t run)
{
    const uint32_t turn = n / run, first = turn % 2 ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
    return (turn * gridDim.x + first) * run + (n - turn * run);
}

/* A producing group's loop. Of the steps of the block's tiles, one after the other, group 0 serves the even ones and
 * group 1 the odd ones. The loader provides
 *     steps(tile)
 *     open(tile, n)             the block's nth tile
 *     fill(step, to, empty, parity, full, guard)   waits for `empty` before it writes to `to` */
template <class T, class Loader>
__device__ __forceinline__ void produce(const Stages<T> &stages, Loader &loader, uint32_t tiles, uint32_t run,
                                        int group)
{
    const int thread = (int)threadIdx.x % GROUP;
    uint32_t tile = tile_of(0, run), n = 0, parity = 1; /* the stages are empty at first */
    int stage = group, s = group, steps = loader.steps(tile);
    bool open = true;
    while (true) {
        while (s >= steps) {
            tile = tile_of(++n, run);
            if (tile >= tiles)
                return;
            s -= steps;
            steps = loader.steps(tile);
            open = true;
        }
        if (open)
            loader.open(tile, n);
        open = false;
        Guard guard;
        loader.fill(s, stages.data + stage * T::STAGE, stages.empty_of(stage), parity, stages.full_of(stage), guard);
        const bool any = __any_sync(0xffffffffu, guard.unsafe());
        if (thread % 32 == 0)
            stages.unsafe[stage][thread / 32] = any;
        proxy_fence();
        warp_arrive(stages.full_of(stage), thread % 32);
        s += GROUPS;
        stage += GROUPS;
        if (stage >= T::STAGES) {
            stage -= T::STAGES;
            parity ^= 1;
        }
    }
}

/* A multiplying group's loop: finish(tile, n, redo, sum) gets the group's sums of the block's nth tile, arranged as
 * tl_wgmma's, and whether any thread of the group found that they do not count. */
template <class T, bool PACKED, class Steps, class Finish>
__device__ __forceinline__ void consume(const Stages<T> &stages, uint32_t tiles, uint32_t run, int group,
                                        const Steps &steps_of, const Finish &finish)
{
    constexpr int N = T::BN / 2;
    const int lane = threadIdx.x % 32, swizzle = 16 * (lane / 4), thread = threadIdx.x % GROUP;
    const char *a = stages.data + (T::WM == 2 ? group * T::A_GROUP : 0) +
                    (PACKED ? 16 * thread : (thread / 32 * 16 + lane / 4) * ROW + 4 * (lane % 4));
    const uint64_t b =
        descriptor(shared_address(stages.data) + T::B_HI + (T::WM == 2 ? 0 : group * T::BN * ROW));
    float part[N] = {}, sum[N];
    int stage = 0;
    uint32_t parity = 0, n = 0;
    /* The second group starts when the first has done its first stage, so that from then on one adds up its part while
     * the other keeps the tensor cores busy. */
    bool starting = true;
    for (uint32_t tile; (tile = tile_of(n, run)) < tiles; n++) {
        const int steps = steps_of(tile);
        bool redo = false;
#pragma unroll
        for (int r = 0; r < N; r++)
            sum[r] = 0.0f;
#pragma unroll 1
        for (int s = 0; s < steps; s++) {
            barrier_wait(stages.full_of(stage), parity);
            if (starting && group == 1)
                asm volatile("barrier.cta.sync 1, 256;" ::: "memory");
            Fragments fragments;
            if constexpr (PACKED)
                fragments.read_packed(a + stage * T::STAGE);
            else
                fragments.read(a + stage * T::STAGE, swizzle);
            multiply_stage<T::B_LO - T::B_HI>(part, fragments, b + stage * (T::STAGE / 16));
            if (starting && group == 0)
                asm volatile("barrier.cta.arrive 1, 256;" ::: "memory");
            starting = false;
            redo |= *reinterpret_cast<const volatile uint32_t *>(stages.unsafe[stage]) != 0;
            warp_arrive(stages.empty_of(stage), lane);
#pragma unroll
            for (int r = 0; r < N; r++)
                sum[r] += part[r];
            if (++stage == T::STAGES) {
                stage = 0;
                parity ^= 1;
            }
        }
#pragma unroll
        for (int r = 0; r < N; r++)
            redo |= !(fabsf(sum[r]) <= FLT_MAX);
        finish(tile, n, group_any(group, redo), sum);
    }
}

#endif

} /* namespace tl_conv_wgmma */

#endif
