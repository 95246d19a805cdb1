/* Which values of attention's arrays are finite, and which members have values that tensor cores do not take. */
#include "cuda/attention/geometry.cuh"
#include "cuda/attention/wgmma.cuh"
#include "cuda/device/tf32_split.cuh"

namespace attention {
namespace {

constexpr int THREADS = 256, WARPS = THREADS / 32;

/* The lane's share of `count` contiguous floats, of a warp. AHEAD loads are on their way at once, and nothing that is read
 * decides what is read next, so that the time is that of a few latencies. The last of them go back as far as is needed for
 * all to exist: what is seen twice changes nothing. All lanes of a warp go through it. */
template <int VECTOR>
__device__ __forceinline__ void see_units(tl_split_guard &guard, const float *from, int64_t count, int lane)
{
    constexpr int AHEAD = 8, APART = VECTOR * 32, SPAN = AHEAD * APART;
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
    if (count < SPAN) { /* from the lane's first to the last of all, which some read again */
        const int last = (int)count - VECTOR, own = VECTOR * lane < last ? VECTOR * lane : last;
        see(from + own, last - own);
        return;
    }
#pragma unroll 1
    for (int64_t i = 0; i < count; i += SPAN)
        see(from + VECTOR * lane + (i < count - SPAN ? i : count - SPAN), SPAN);
}

__device__ __forceinline__ void see_all(tl_split_guard &guard, const float *from, int64_t count, int lane)
{
    if (count == 0) return;
    if (count % 4 == 0 && tl_aligned4(from))
        see_units<4>(guard, from, count, lane);
    else
        see_units<1>(guard, from, count, lane);
}

/* A warp owns a granule of a member's rows. */
__global__ void __launch_bounds__(THREADS) finite_kernel(const float *x, const Geometry a, const Layout at, int64_t n,
                                                         int64_t width, int64_t granules, uint8_t *finite)
{
    const int64_t item = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32, b = item / granules;
    if (b >= a.members) return;
    const int64_t first = (item - b * granules) * GRANULE, count = n - first < GRANULE ? n - first : GRANULE;
    const int lane = (int)threadIdx.x % 32;
    const float *const rows = x + at.member(a, b) + first * at.row;
    tl_split_guard guard;
    if (at.row == width) {
        see_all(guard, rows, count * width, lane);
    } else {
        for (int64_t i = 0; i < count; i++)
            for (int64_t c = lane; c < width; c += 32)
                guard.see(rows[i * at.row + c]);
    }
    const bool all = __all_sync(0xffffffffu, guard.most <= FLT_MAX);
    if (lane == 0) finite[item] = all;
}

struct Operands {
    Operand of[5];
};

/* A warp owns a granule of a member's rows in operand blockIdx.y. All that find an unsafe value write the same 1. */
__global__ void __launch_bounds__(THREADS) unsafe_kernel(const __grid_constant__ Operands operands, int64_t items,
                                                         int64_t granules, int64_t n, int64_t d, uint8_t *unsafe)
{
    const int64_t item = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32, b = item / granules;
    if (item >= items) return;
    const int64_t first = (item - b * granules) * GRANULE, count = n - first < GRANULE ? n - first : GRANULE;
    const Operand &operand = operands.of[blockIdx.y];
    tl_split_guard guard;
    see_all(guard, operand.x + (b * n + first) * d, count * d, (int)threadIdx.x % 32);
    const bool found = !(guard.most < MAX_SPLIT_VALUE) || (operand.split && tl_split_too_small(guard.least));
    if (__any_sync(0xffffffffu, found) && threadIdx.x % 32 == 0) unsafe[b] = 1;
}

} /* namespace */

int32_t scan_finite(tl_context *ctx, const Geometry &of, const float *x, const Layout &at, int64_t n, int64_t width,
                    uint8_t *finite)
{
    const int64_t granules = tl_ceil_div(n, GRANULE), items = of.members * granules;
    if (items == 0) return TORCHLEAN_OK;
    return tl_launch(ctx, "attention_finite", finite_kernel, tl_grid(items, WARPS), THREADS, x, of, at, n, width,
                     granules, finite);
}

int32_t scan_unsafe(tl_context *ctx, int64_t members, int64_t n, int64_t d, const Operand *operands, int count,
                    uint8_t *unsafe)
{
    Operands all = {};
    for (int i = 0; i < count; i++)
        all.of[i] = operands[i];
    const int64_t granules = tl_ceil_div(n, GRANULE), items = members * granules;
    TL_CUDA_TRY(ctx, cudaMemsetAsync(unsafe, 0, (size_t)unsafe_flags(members, n), tl_cuda_stream(ctx)));
    const dim3 grid(tl_grid(items, WARPS), (unsigned)count);
    return tl_launch(ctx, "attention_unsafe", unsafe_kernel, grid, THREADS, all, items, granules, n, d, unsafe);
}

} /* namespace attention */
