/* The last launch of a scatter-add whose hits lie in order of rows: runs of many hits, which the one before leaves. */
#pragma once

#include "cuda/index/long_run.cuh"
#include "cuda/index/narrow_run.cuh"
#include "cuda/index/order.cuh"
#include "cuda/index/run_relay.cuh"
#include "cuda/index/scatter.cuh"
#include "cuda/runtime/launch.cuh"

namespace tl_sorted {

/* A scatter-add of hits in order of rows. */
struct Scatter {
    const float *base; /* NULL for a sum that starts from +0 */
    float *out;
    const uint32_t *keys;  /* sorted: the row, or `rows` for an index to ignore */
    const uint2 *segments; /* wide rows: begin and end of a row's run */
    tl_hits hits;          /* by place in the sorted list */
    tl_left_runs left;
    uint32_t rows, cols, k, outer; /* `outer` arrays of wide rows share the list */
};

/* ---- rows that are left ---------------------------------------------------------------------------------------------- */

constexpr uint32_t LONG_WIDE = 256; /* hits of a run of a wide row that are left to a block for 32 columns */
constexpr int WIDE_BLOCKS = 264;    /* of the last launch: two on every multiprocessor */
/* Columns, up to which each of two runs has a block for every column. Such a block reads a sector of 32 bytes for every value: those
 * of two runs are 8 KiB for a hit of each, which the L2 cache gives in the time of the chain's addition and of its staging. */
constexpr uint32_t STEP_COLUMNS = WIDE_BLOCKS / 2;

/* Leaves a row for the last launch. */
__device__ __forceinline__ void leave_wide(const Scatter &s, uint32_t row, uint32_t hits)
{
    if (hits > TL_CHAINED_STRIP && hits > s.k / 3 && s.cols * s.outer <= STEP_COLUMNS)
        s.left.leave_third(row);
    else
        s.left.leave(row, hits > LONG_WIDE);
}

/* ---- narrow rows ----------------------------------------------------------------------------------------------------- */

/* Blocks take the long runs from the front, warps the others from the last block on, so that these begin where no long run is.
 * The warps of a run sit in different blocks, hence on different multiprocessors. */
constexpr int NARROW_BLOCKS = 264, RUN = 16; /* two on every multiprocessor */

/* A block owns a column of a long run, a warp a column of another. */
__global__ void __launch_bounds__(TL_LONG_THREADS, 2) add_narrow_runs_kernel(Scatter s)
{
    __shared__ tl_long_room room;
    __shared__ union {
        tl_long_values values;
        float4 chunks[TL_LONG_WARPS][16 * RUN / 4];
    } stage;
    tl_wait_for_earlier();
    const uint32_t warp = threadIdx.x / 32;
    const auto end_of = [&](uint32_t i) {
        return tl_run_end(i, s.k, [&](uint32_t p) { return s.keys[p] == s.keys[i]; });
    };
    for (int64_t unit = blockIdx.x; unit < (int64_t)s.left.front[1] * s.cols; unit += NARROW_BLOCKS) {
        const uint32_t i = *(s.left.back - 1 - unit / s.cols), col = (uint32_t)(unit % s.cols);
        const int64_t element = (int64_t)s.keys[i] * s.cols + col;
        const float sum =
            tl_add_long_run(s.hits, i, end_of(i), col, s.base ? s.base[element] : 0.0f, stage.values, room);
        if (threadIdx.x == 0) s.out[element] = sum;
    }
    for (int64_t unit = (int64_t)warp * NARROW_BLOCKS + (NARROW_BLOCKS - 1 - blockIdx.x);
         unit < (int64_t)s.left.front[0] * s.cols; unit += (int64_t)NARROW_BLOCKS * TL_LONG_WARPS) {
        const uint32_t i = s.left.front[TL_LEFT_LISTS + unit / s.cols], col = (uint32_t)(unit % s.cols);
        const int64_t element = (int64_t)s.keys[i] * s.cols + col;
        const float sum =
            tl_add_run<RUN>(s.hits, i, end_of(i), col, s.base ? s.base[element] : 0.0f, stage.chunks[warp]);
        if (threadIdx.x % 32 == 0) s.out[element] = sum;
    }
}

/* ---- wide rows ------------------------------------------------------------------------------------------------------- */

constexpr uint32_t RELAY_HITS = 64; /* of a turn of a warp: of twice as many one block would fill the registers */

/* A block owns 32 columns of a long run of an array, a warp of another. Of the longest a block owns a column. */
__global__ void __launch_bounds__(TL_LONG_THREADS, 2) add_wide_runs_kernel(Scatter s)
{
    __shared__ tl_long_values values;
    __shared__ tl_long_room room;
    __shared__ float pass[32];
    tl_wait_for_earlier();
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, strips = (s.cols + 31) / 32;
    const int64_t units = (int64_t)strips * s.outer; /* of a run */
    const auto add_unit = [&](uint32_t row, uint32_t unit, bool is_long) {
        const uint32_t o = unit / strips, col = min(unit % strips * 32 + lane, s.cols - 1);
        const uint2 segment = s.segments[row];
        const int64_t element = ((int64_t)o * s.rows + row) * s.cols + col;
        tl_hits hits = s.hits;
        hits.values += (int64_t)o * s.k * s.cols;
        const float before = s.base ? s.base[element] : 0.0f;
        const float sum = is_long ? tl_add_relay<RELAY_HITS>(hits.values + col, s.cols, segment.y - segment.x, before,
                                                             pass, hits.positions_from(segment.x))
                                  : tl_add_walk(hits, segment.x, segment.y, col, before);
        if (!is_long || warp == 0) s.out[element] = sum;
    };
    static_assert(2 * STEP_COLUMNS <= WIDE_BLOCKS);
    const uint32_t columns = s.cols * s.outer; /* of a run */
    if (blockIdx.x < s.left.front[2] * columns) {
        const uint32_t row = s.left.front[TL_LEFT_COUNTS + blockIdx.x / columns], o = blockIdx.x % columns / s.cols,
                       col = blockIdx.x % columns % s.cols;
        const uint2 segment = s.segments[row];
        const int64_t element = ((int64_t)o * s.rows + row) * s.cols + col;
        tl_hits hits = s.hits;
        hits.values += (int64_t)o * s.k * s.cols;
        const float sum =
            tl_add_long_run(hits, segment.x, segment.y, col, s.base ? s.base[element] : 0.0f, values, room);
        if (threadIdx.x == 0) s.out[element] = sum;
    }
    for (int64_t at = blockIdx.x; at < s.left.front[1] * units; at += WIDE_BLOCKS)
        add_unit(*(s.left.back - 1 - at / units), (uint32_t)(at % units), true);
    for (int64_t unit = (int64_t)warp * WIDE_BLOCKS + (WIDE_BLOCKS - 1 - blockIdx.x); unit < s.left.front[0] * units;
         unit += (int64_t)WIDE_BLOCKS * TL_LONG_WARPS)
        add_unit(s.left.front[TL_LEFT_LISTS + unit / units], (uint32_t)(unit % units), false);
}

} /* namespace tl_sorted */
