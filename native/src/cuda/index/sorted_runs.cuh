/* The last launch of a scatter-add whose hits lie in order of rows: runs of many hits, which the one before leaves. */
#pragma once

#include "cuda/device/async_copy.cuh"
#include "cuda/device/division.cuh"
#include "cuda/index/long_run.cuh"
#include "cuda/index/narrow_run.cuh"
#include "cuda/index/order.cuh"
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
constexpr int WIDE_BLOCKS = 396;    /* of the last launch: three on every multiprocessor */
/* Columns, up to which each of two runs has a block for every column. Such a block reads a sector of 32 bytes for every value: those
 * of two runs are 12 KiB for a hit of each, which the L2 cache gives in the time of the chain's addition and of its staging. */
constexpr uint32_t STEP_COLUMNS = WIDE_BLOCKS / 2;

/* Leaves a row for the last launch. */
__device__ __forceinline__ void leave_wide(const Scatter &s, uint32_t row, uint32_t hits)
{
    if (hits > TL_CHAINED_ROW && hits > s.k / 3 && s.cols * s.outer <= STEP_COLUMNS)
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

/* Lane l of warp 0 gets sum + the hits first .. end-1 of column `col`, its own, and does nothing but add. A warp brings rows of 32
 * columns to a ring, past the registers, by a copy each: what a hit takes is few enough instructions that bringing a stage never
 * holds up the addition of another. All but two stages, of which one is added and the next has come, are on their way or about to be.
 * Warps whose number is a multiple of four share the scheduler of the one that adds, and leave it alone. A warp has WIDE_HITS hits
 * of a stage, and its lanes hold their positions for WIDE_LISTED stages, while those for as many behind come. */
constexpr uint32_t WIDE_HITS = 8, WIDE_LISTED = 32 / WIDE_HITS, WIDE_STAGES = 7,
                   WIDE_STAGE = WIDE_HITS * (TL_LONG_WARPS - TL_LONG_WARPS / 4), WIDE_ROWS = WIDE_STAGES * WIDE_STAGE;

__device__ __forceinline__ float add_ring(const tl_hits &h, uint32_t first, uint32_t end, uint32_t col, float sum,
                                          float (*ring)[32])
{
    constexpr uint32_t AT_ONCE = 16; /* the latency of shared memory is less than that of as many additions */
    static_assert(WIDE_STAGE % AT_ONCE == 0);
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, hits = end - first;
    const uint32_t stages = (hits + WIDE_STAGE - 1) / WIDE_STAGE;
    if (warp > 0) {
        const bool brings = warp % 4 != 0;
        const uint32_t mine = (warp - 1 - warp / 4) * WIDE_HITS; /* of a stage */
        const char *const column = reinterpret_cast<const char *>(h.values + col);
        const uint32_t row_bytes = h.cols * sizeof(float);
        const auto positions_from = [&](uint32_t stage) {
            const uint32_t hit = (stage + lane / WIDE_HITS) * WIDE_STAGE + mine + lane % WIDE_HITS;
            return brings ? h.list[first + min(hit, hits - 1)] : 0;
        };
        uint32_t now = positions_from(0) & h.mask, then = positions_from(WIDE_LISTED);
        const auto bring = [&](uint32_t stage, uint32_t slot) {
            if (brings && stage < stages) {
                const uint32_t hit = stage * WIDE_STAGE + mine, holder = stage % WIDE_LISTED * WIDE_HITS;
                float *const to = ring[slot * WIDE_STAGE + mine] + lane;
                const uint32_t address = tl_shared_address(to);
                uint32_t position[WIDE_HITS];
                TL_UNROLL_FOR (uint32_t e = 0; e < WIDE_HITS; e++)
                    position[e] = __shfl_sync(~0u, now, holder + e);
                const auto copy = [&](uint32_t e) {
                    tl_copy_async<4, false>(address + e * 32 * sizeof(float),
                                            column + (uint64_t)position[e] * row_bytes, true);
                };
                if (hit + WIDE_HITS <= hits) {
                    TL_UNROLL_FOR (uint32_t e = 0; e < WIDE_HITS; e++)
                        copy(e);
                } else {
                    TL_UNROLL_FOR (uint32_t e = 0; e < WIDE_HITS; e++)
                        if (hit + e < hits)
                            copy(e);
                        else
                            to[e * 32] = -0.0f; /* changes no sum */
                }
                if (stage % WIDE_LISTED == WIDE_LISTED - 1) {
                    now = then & h.mask; /* and not above, where it would be waited for */
                    then = positions_from(stage + 1 + WIDE_LISTED);
                }
            }
            tl_copy_commit();
        };
        for (uint32_t stage = 0; stage + 1 < WIDE_STAGES; stage++)
            bring(stage, stage);
        uint32_t slot = WIDE_STAGES - 1;
        for (uint32_t stage = 0; stage < stages; stage++) {
            tl_copy_wait<WIDE_STAGES - 3>(); /* for the stage behind this one */
            __syncthreads();
            bring(stage + WIDE_STAGES - 1, slot);
            slot = slot + 1 < WIDE_STAGES ? slot + 1 : 0;
        }
    } else {
        float now[AT_ONCE] = {};
        uint32_t slot = 0;
        for (uint32_t stage = 0; stage < stages; stage++) {
            __syncthreads();
            const float (*const own)[32] = ring + slot * WIDE_STAGE;
            slot = slot + 1 < WIDE_STAGES ? slot + 1 : 0;
            const float (*const behind)[32] = stage + 1 < stages ? ring + slot * WIDE_STAGE : own;
            if (stage == 0)
                TL_UNROLL_FOR (uint32_t i = 0; i < AT_ONCE; i++)
                    now[i] = own[i][lane];
            TL_UNROLL_FOR (uint32_t at = AT_ONCE; at <= WIDE_STAGE; at += AT_ONCE) {
                const float (*const next)[32] = at < WIDE_STAGE ? own + at : behind;
                float after[AT_ONCE];
                TL_UNROLL_FOR (uint32_t i = 0; i < AT_ONCE; i++)
                    after[i] = next[i][lane];
                TL_UNROLL_FOR (uint32_t i = 0; i < AT_ONCE; i++)
                    sum += now[i];
                TL_UNROLL_FOR (uint32_t i = 0; i < AT_ONCE; i++)
                    now[i] = after[i];
            }
        }
    }
    __syncthreads(); /* the ring was read */
    return sum;
}

/* A long run of many hits is added by a ring: a warp does nothing but add, while the others bring values, and a hit takes the latency of
 * an addition. Of that many hits there are MOST_CHAINS runs at most; where units are so few that each has a multiprocessor, all runs are.
 * Of others the rate of shared memory counts, and all warps bring values of 32 columns by rows, which it takes at once. */
constexpr int64_t LONE_UNITS = WIDE_BLOCKS / 3, MOST_CHAINS = 64;

/* A block owns 32 columns of a long run of an array, a warp of another. Of the longest a block owns a column. */
__global__ void __launch_bounds__(TL_LONG_THREADS, 3) add_wide_runs_kernel(Scatter s, tl_fastdiv strip, tl_fastdiv line)
{
    __shared__ union {
        tl_long_values values;
        float rows[TL_LONG_STAGE][32];
        float ring[WIDE_ROWS][32];
    } stage;
    __shared__ tl_long_room room;
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
        const float sum = is_long ? tl_add_staged(hits, segment.x, segment.y, col, before, stage.rows)
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
            tl_add_long_run(hits, segment.x, segment.y, col, s.base ? s.base[element] : 0.0f, stage.values, room);
        if (threadIdx.x == 0) s.out[element] = sum;
    }
    const auto units_of = [&](const tl_fastdiv &width) {
        return (s.cols + width.divisor - 1) / width.divisor * s.outer;
    };
    const bool lone = (int64_t)s.left.front[1] * units_of(strip) <= LONE_UNITS;
    const tl_fastdiv width = lone ? strip : line;
    const int64_t of_run = units_of(width);
    for (int64_t at = blockIdx.x; at < s.left.front[1] * of_run; at += WIDE_BLOCKS) {
        const uint32_t row = *(s.left.back - 1 - at / of_run), unit = (uint32_t)(at % of_run);
        const uint2 segment = s.segments[row];
        const uint32_t hits = segment.y - segment.x;
        if (!lone && hits * MOST_CHAINS <= s.k) {
            add_unit(row, unit, true);
            continue;
        }
        const uint32_t o = unit % s.outer, from = unit / s.outer * width.divisor,
                       here = min(width.divisor, s.cols - from);
        /* Lanes without a column of their own bring the last one once more. */
        const uint32_t col = from + min(lane, here - 1);
        const int64_t element = ((int64_t)o * s.rows + row) * s.cols + col;
        tl_hits of_array = s.hits;
        of_array.values += (int64_t)o * s.k * s.cols;
        const float before = s.base ? s.base[element] : 0.0f;
        __syncthreads(); /* the stage was read */
        const float sum = add_ring(of_array, segment.x, segment.y, col, before, stage.ring);
        if (threadIdx.x < here) s.out[element] = sum;
    }
    for (int64_t unit = (int64_t)warp * WIDE_BLOCKS + (WIDE_BLOCKS - 1 - blockIdx.x); unit < s.left.front[0] * units;
         unit += (int64_t)WIDE_BLOCKS * TL_LONG_WARPS)
        add_unit(s.left.front[TL_LEFT_LISTS + unit / units], (uint32_t)(unit % units), false);
}

} /* namespace tl_sorted */
