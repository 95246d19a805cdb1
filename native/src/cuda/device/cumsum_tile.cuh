/* The tiles of cumulative sums along rows (reduce_cumsum.cu), in the order of formula/cumsum.h: a tile is 32 chunks of 32 elements,
 * which a warp turns over in shared memory, so that a lane owns a chunk and memory is read and written in lines. */
#pragma once

#include "cuda/device/async_copy.cuh"
#include "cuda/device/instructions.cuh"
#include "cuda/device/vector.cuh"
#include "cuda/device/widen.cuh"
#include "cuda/runtime/launch.cuh"
#include "formula/cumsum.h"

namespace tl_cumsum {

constexpr int CHUNK = TL_CUMSUM_CHUNK, TILE = CHUNK * CHUNK;

/* Elements are floats, and sums include theirs, or doubles, and sums leave theirs out. */
__device__ __forceinline__ double add_kept(double sum, double x, float *out)
{
    *out = (float)(sum + x);
    return sum + x;
}

__device__ __forceinline__ double add_kept(double sum, double x, double *out)
{
    *out = sum;
    return sum + x;
}

TL_DYNAMIC_SHARED(float, tl_cumsum_tiles);

/* Rows of `length` elements, summed from their ends on with `reverse`. */
struct Rows {
    const float *x;
    float *out;
    int64_t length;
    int reverse;

    /* Where element i of the row at `slice` lies. */
    __device__ __forceinline__ int64_t place(int64_t slice, int64_t i) const
    {
        return slice + (reverse ? length - 1 - i : i);
    }
    /* Where elements i .. i + 3 lie, the last first with `reverse`. */
    __device__ __forceinline__ int64_t place4(int64_t slice, int64_t i) const
    {
        return slice + (reverse ? length - 4 - i : i);
    }
    /* From an element to that `count` behind it. */
    __device__ __forceinline__ int step(int count) const { return reverse ? -count : count; }
    __device__ __forceinline__ float4 turn(float4 v) const { return reverse ? make_float4(v.w, v.z, v.y, v.x) : v; }
};

/* Floats from a chunk of a tile to the next in shared memory: with 4 in excess, accesses of 16 bytes along a chunk, and along the
 * tile, meet each bank once. */
constexpr int PITCH = CHUNK + 4, QUADS = TILE / 4 / 32; /* of a lane */
constexpr size_t TILE_BYTES = sizeof(float) * CHUNK * PITCH;

/* The warp's tile. */
__device__ __forceinline__ float (*own_tile())
    [PITCH] { return reinterpret_cast<float (*)[PITCH]>(tl_cumsum_tiles) + threadIdx.x / 32 * CHUNK; }

/* The n elements from `first` on to the warp's tile, and zeros behind them. VECTOR: whole groups of four are aligned, and n a
 * multiple of 4 or the last of all. */
template <bool VECTOR>
__device__ __forceinline__ void load_tile(const Rows &a, int64_t slice, int64_t first, int n, float (*x)[PITCH])
{
    const int lane = (int)threadIdx.x % 32;
    if (VECTOR && n % 4 == 0) {
        const float *const from = a.x + a.place4(slice, first + 4 * lane);
        const int step = a.step(128), left = n - 4 * lane;
        float4 v[QUADS];
        TL_UNROLL_FOR (int q = 0; q < QUADS; q++)
            v[q] = 128 * q < left ? tl_load4(from + q * step) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        TL_UNROLL_FOR (int q = 0; q < QUADS; q++)
            tl_store4(&x[4 * q + lane / 8][4 * (lane % 8)], a.turn(v[q]));
    } else {
        const float *const from = a.x + a.place(slice, first + lane);
        const int step = a.step(CHUNK), left = n - lane;
        TL_UNROLL_FOR (int k = 0; k < CHUNK; k++)
            tl_copy_async<4>(&x[k][lane], k * CHUNK < left ? from + k * step : a.x, k * CHUNK < left);
        tl_copy_commit();
        tl_copy_wait<0>();
    }
    __syncwarp();
}

template <bool VECTOR>
__device__ __forceinline__ void store_tile(const Rows &a, int64_t slice, int64_t first, int n, const float (*x)[PITCH])
{
    const int lane = (int)threadIdx.x % 32;
    __syncwarp();
    if (VECTOR && n % 4 == 0) {
        float *const to = a.out + a.place4(slice, first + 4 * lane);
        const int step = a.step(128), left = n - 4 * lane;
        TL_UNROLL_FOR (int q = 0; q < QUADS; q++)
            if (128 * q < left) tl_store4(to + q * step, a.turn(tl_load4(&x[4 * q + lane / 8][4 * (lane % 8)])));
    } else {
        float *const to = a.out + a.place(slice, first + lane);
        const int step = a.step(CHUNK), left = n - lane;
#pragma unroll 8
        for (int k = 0; k < CHUNK; k++)
            if (k * CHUNK < left) to[k * step] = x[k][lane];
    }
}

/* ---- sums of a chunk --------------------------------------------------------------------------------------------------- */

/* The total of the lane's chunk to chunks[lane], where the warp sees it. Gives out whether all elements are finite: others are
 * converted. */
__device__ __forceinline__ bool total_chunk(const float (*x)[PITCH], double *chunks)
{
    const int lane = (int)threadIdx.x % 32;
    double sum = 0.0;
    float zero = 0.0f; /* as long as all are */
    const auto add = [&](float v) { sum = tl_add_widened(v, sum), zero = fmaf(v, 0.0f, zero); };
    TL_UNROLL_FOR (int k = 0; k < CHUNK; k += 4) {
        const float4 v = tl_load4(&x[lane][k]);
        add(v.x), add(v.y), add(v.z), add(v.w);
    }
    const bool finite = zero == 0.0f;
    if (!finite) {
        sum = 0.0;
#pragma unroll 4
        for (int k = 0; k < CHUNK; k++)
            sum += (double)x[lane][k];
    }
    chunks[lane] = sum;
    __syncwarp();
    return finite;
}

/* Of the tile: all lanes read the same place, which takes less than an exchange. */
__device__ __forceinline__ double total_tile(const double *chunks)
{
    double sum = 0.0;
#pragma unroll 16
    for (int y = 0; y < CHUNK; y++)
        sum += chunks[y];
    return sum;
}

/* The sums of the lane's chunk, which total_chunk called `finite` or not, instead of its elements; `sum` stands before the tile. */
__device__ __forceinline__ void sum_chunk(double sum, const double *chunks, bool finite, float (*x)[PITCH])
{
    const int lane = (int)threadIdx.x % 32;
#pragma unroll 16
    for (int y = 0; y < CHUNK; y++) {
        const double next = sum + chunks[y];
        sum = y < lane ? next : sum;
    }
    if (finite && isfinite(sum)) {
        const auto add = [&](float &v) { sum = tl_add_widened(v, sum), v = (float)sum; };
        TL_UNROLL_FOR (int k = 0; k < CHUNK; k += 4) {
            float4 v = tl_load4(&x[lane][k]);
            add(v.x), add(v.y), add(v.z), add(v.w);
            tl_store4(&x[lane][k], v);
        }
    } else {
#pragma unroll 4
        for (int k = 0; k < CHUNK; k++)
            sum = add_kept(sum, (double)x[lane][k], &x[lane][k]);
    }
}

} /* namespace tl_cumsum */
