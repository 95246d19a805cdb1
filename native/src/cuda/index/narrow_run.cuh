/* Runs of narrow rows of a scatter-add, which a warp adds: all columns of a run at once, in the order of the index list. Lanes bring some
 * hits of all columns at a time to shared memory, neighbouring columns by neighbouring lanes, from where a lane for each column adds them
 * while the next are on their way: a run costs the latency of its additions, and all columns no more than one. */
#pragma once

#include "cuda/device/division.cuh"
#include "cuda/index/order.cuh"

/* Hits that a lane reads and adds together: the latency of shared memory is less than that of as many additions. */
constexpr uint32_t TL_NARROW_AT_ONCE = 16, TL_NARROW_COLUMNS = 31;

/* Values that a lane brings to a stage, and fours of a stage: hits of every column side by side, and four floats between columns, so
 * that the fours that lanes of several columns read lie in different banks. */
constexpr uint32_t TL_WARP_VALUES = 32, TL_WARP_STAGE = 32 * TL_WARP_VALUES / 4 + TL_NARROW_COLUMNS;
static_assert(32 * TL_WARP_VALUES / TL_NARROW_COLUMNS >= TL_NARROW_AT_ONCE && TL_WARP_VALUES % 8 == 0);

/* sum + the first `hits` of a column, in order. Those behind the last, up to the next multiple of TL_NARROW_AT_ONCE, are -0, which
 * changes no sum. The next are read while these are added. */
__device__ __forceinline__ float tl_add_column(float sum, const float4 *column, uint32_t hits)
{
    constexpr uint32_t FOURS = TL_NARROW_AT_ONCE / 4;
    float4 now[FOURS];
    TL_UNROLL_FOR (uint32_t i = 0; i < FOURS; i++)
        now[i] = column[i];
#pragma unroll 2
    for (uint32_t hit = 0; hit < hits; hit += TL_NARROW_AT_ONCE) {
        const float4 *const then = column + (hit + TL_NARROW_AT_ONCE < hits ? hit / 4 + FOURS : 0);
        float4 next[FOURS];
        TL_UNROLL_FOR (uint32_t i = 0; i < FOURS; i++)
            next[i] = then[i];
        TL_UNROLL_FOR (uint32_t i = 0; i < FOURS; i++)
            sum = tl_add_quad(sum, now[i]);
        TL_UNROLL_FOR (uint32_t i = 0; i < FOURS; i++)
            now[i] = next[i];
    }
    return sum;
}

/* The `hits` hits of a row in `cols` columns: position(i) is that of hit i, and rows lie `stride` apart. A stage has room for `width`
 * columns, no less than `cols`, of `size` hits. */
template <class Position> struct tl_narrow_run {
    const float *values;
    const tl_fastdiv &width;
    uint32_t stride, cols, hits, size, lane;
    Position position;
    float next[TL_WARP_VALUES];

    __device__ __forceinline__ tl_narrow_run(const float *values, uint32_t stride, const tl_fastdiv &width,
                                             uint32_t cols, uint32_t hits, Position position)
        : values(values), width(width), stride(stride), cols(cols), hits(hits),
          size(width.div(32 * TL_WARP_VALUES) & ~(TL_NARROW_AT_ONCE - 1)), lane(threadIdx.x % 32), position(position)
    {}

    /* Values of the stage from hit `from` on; those behind the last hit are -0. */
    __device__ __forceinline__ uint32_t count_values(uint32_t from) const
    {
        const uint32_t rounded = (hits - from + TL_NARROW_AT_ONCE - 1) & ~(TL_NARROW_AT_ONCE - 1);
        return min(rounded, size) * width.divisor;
    }
    /* No load is under a condition of its own, or it would be waited for. */
    __device__ __forceinline__ void fetch(uint32_t from)
    {
        const uint32_t count = count_values(from);
        TL_UNROLL_FOR (uint32_t u = 0; u < TL_WARP_VALUES; u++) {
            if (u % 8 == 0 && u * 32 >= count) break;
            uint32_t col;
            const uint32_t hit = width.divmod(lane + u * 32, &col);
            next[u] = values[(int64_t)position(min(from + hit, hits - 1)) * stride + min(col, cols - 1)];
        }
    }
    __device__ __forceinline__ void store(uint32_t from, float4 *stage) const
    {
        const uint32_t count = count_values(from);
        float *const column = reinterpret_cast<float *>(stage);
        TL_UNROLL_FOR (uint32_t u = 0; u < TL_WARP_VALUES; u++) {
            if (u % 8 == 0 && u * 32 >= count) break;
            uint32_t col;
            const uint32_t hit = width.divmod(lane + u * 32, &col);
            if (lane + u * 32 < count) column[col * (size + 4) + hit] = from + hit < hits ? next[u] : -0.0f;
        }
    }
    __device__ __forceinline__ float add(uint32_t from, const float4 *stage, float sum) const
    {
        const uint32_t column = min(lane, cols - 1);
        return tl_add_column(sum, stage + column * (size / 4 + 1), min(hits - from, size));
    }
};

/* Lane c gets sum + the hits of column c, its own. */
template <class Position>
__device__ __forceinline__ float tl_add_narrow_warp(const float *values, uint32_t stride, const tl_fastdiv &width,
                                                    uint32_t cols, uint32_t hits, float sum, float4 *stage,
                                                    Position position)
{
    tl_narrow_run<Position> run(values, stride, width, cols, hits, position);
    for (uint32_t from = 0; from < hits + run.size; from += run.size) {
        if (from > 0) run.store(from - run.size, stage);
        __syncwarp();
        if (from < hits) run.fetch(from);
        if (from > 0) sum = run.add(from - run.size, stage, sum);
        __syncwarp();
    }
    return sum;
}
