/* The second launch of a scatter-add of narrow rows whose hits were dealt to buckets (scatter_bucket.cu). */
#pragma once

#include "cuda/device/division.cuh"
#include "cuda/index/bucket.cuh"
#include "cuda/index/narrow_run.cuh"
#include "cuda/index/rank.cuh"
#include "cuda/runtime/launch.cuh"

namespace tl_buckets {

constexpr int ROWS_ADDING = 2; /* blocks of a multiprocessor */
/* Hits of a row in a window: longer runs are left to a warp, or to the block; and those that a thread loads together. */
constexpr uint32_t MANY_OF_ROW = 32, LONG_OF_ROW = 256, ROW_AT_ONCE = 8;

/* Shared memory of a block: the positions of a window in order of rows, and what they are put in order with, then what the block or
 * its warps add. */
struct row_room {
    uint32_t list[WINDOW];
    union {
        uint4 tallies[WARPS * KINDS * sizeof(uint16_t) / sizeof(uint4)];
        float4 of_warp[WARPS][TL_WARP_STAGE];
        float4 ring[WARPS * TL_WARP_STAGE];
        tl_long_values heavy;
    };
};

/* Hits of a bucket, of two windows, above which other blocks add a row of it, a column each: they guess and verify sums, which is
 * faster than a chain, but all of them look through the bucket. */
constexpr uint32_t ROW_CROWD = 2 * WINDOW;

/* The first blocks take the heavy rows, each of those behind them owns all other rows of a bucket. It puts the positions of a window
 * in order of rows, stably, and reads the values by these. What a window adds is in the output, from where the next one goes on. */
__global__ void __launch_bounds__(THREADS, ROWS_ADDING) add_rows_kernel(buckets s)
{
    constexpr uint32_t LEFT = WINDOW / MANY_OF_ROW;
    TL_DYNAMIC_SHARED(uint4, shared);
    row_room &room = *reinterpret_cast<row_room *>(shared);
    __shared__ __align__(16) uint32_t first[MOST_PLACES + 2];
    __shared__ uint32_t left[LEFT]; /* places: of many hits from the front, long ones from the back */
    __shared__ uint32_t of_warps[2 * WARPS], many, longs;
    __shared__ tl_long_room heavy_room;
    __shared__ piece_list pieces;
    uint16_t *const tallies = reinterpret_cast<uint16_t *>(room.tallies);
    tl_wait_for_earlier();
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, count = s.count.divisor, cols = s.cols.divisor;
    const uint32_t first_blocks = gridDim.x - count;
    if (blockIdx.x < first_blocks) {
        add_heavy_rows<true>(s, first_blocks / cols, pieces, of_warps, room.heavy, heavy_room);
        return;
    }
    const uint32_t bucket = blockIdx.x - first_blocks, places = (s.rows - bucket - 1) / count + 1;
    uint16_t *const of_warp = tallies + warp * tl_tally_stride(places + 1);
    const float *base = s.base;
    bool is_first = true; /* window, which writes all rows */
    const auto element_of = [&](uint32_t place) { return (int64_t)(place * count + bucket) * cols; };
    uint32_t hits = list_pieces(s, bucket, 0, pieces, of_warps);
    const uint32_t heavy =
        choose_heavy(s, bucket, s.chunks > PIECES ? count_hits(s, bucket, of_warps) : hits, of_warps);
    for (uint32_t chunk = 0; chunk < s.chunks; chunk += PIECES) {
        if (chunk > 0) hits = list_pieces(s, bucket, chunk, pieces, of_warps);
        for (uint32_t from = 0; is_first || from < hits; from += WINDOW) {
            window w;
            w.load(s.hits, pieces, from, min(hits, from + WINDOW), heavy, places);
            tl_clear_tallies(tallies, places + 1);
            if (threadIdx.x == 0) many = longs = 0;
            __syncthreads();
            uint32_t to[WINDOW_ITEMS];
            tl_rank_hits(of_warp, places + 1, [&](int i) { return w.place[i]; }, w.rounds, to);
            __syncthreads();
            tl_place_kinds(tallies, places + 1, first, of_warps);
            TL_UNROLL_FOR (uint32_t i = 0; i < WINDOW_ITEMS; i++)
                if (i < w.rounds) room.list[of_warp[w.place[i]] + to[i]] = w.value[i];
            __syncthreads();
            for (uint32_t unit = threadIdx.x; unit < places * cols; unit += THREADS) {
                uint32_t col;
                const uint32_t place = s.cols.divmod(unit, &col), begin = first[place], end = first[place + 1];
                if (end - begin > MANY_OF_ROW) {
                    if (col > 0) continue;
                    if (end - begin > LONG_OF_ROW)
                        left[LEFT - 1 - atomicAdd(&longs, 1u)] = place;
                    else
                        left[atomicAdd(&many, 1u)] = place;
                    continue;
                }
                if (place == heavy || (begin == end && !is_first)) continue;
                const int64_t element = element_of(place) + col;
                float sum = base ? base[element] : 0.0f;
                for (uint32_t at = begin; at < end; at += ROW_AT_ONCE) {
                    float v[ROW_AT_ONCE];
                    TL_UNROLL_FOR (uint32_t e = 0; e < ROW_AT_ONCE; e++) {
                        v[e] = -0.0f; /* changes no sum */
                        if (at + e < end) v[e] = s.values[(int64_t)room.list[at + e] * cols + col];
                    }
                    TL_UNROLL_FOR (uint32_t e = 0; e < ROW_AT_ONCE; e++)
                        sum += v[e];
                }
                s.out[element] = sum;
            }
            __syncthreads();
            const auto base_at = [&](uint32_t place) {
                return base && lane < cols ? base[element_of(place) + lane] : 0.0f;
            };
            for (uint32_t run = 0; run < longs; run++) {
                const uint32_t place = left[LEFT - 1 - run], begin = first[place];
                const float sum = tl_add_narrow_block<THREADS>(s.values, cols, s.cols, cols, first[place + 1] - begin,
                                                               base_at(place), room.ring,
                                                               [&](uint32_t hit) { return room.list[begin + hit]; });
                if (warp == 0 && lane < cols) s.out[element_of(place) + lane] = sum;
            }
            for (uint32_t run = warp; run < many; run += WARPS) {
                const uint32_t place = left[run], begin = first[place];
                const float sum = tl_add_narrow_warp(s.values, cols, s.cols, cols, first[place + 1] - begin,
                                                     base_at(place), room.of_warp[warp],
                                                     [&](uint32_t hit) { return room.list[begin + hit]; });
                if (lane < cols) s.out[element_of(place) + lane] = sum;
            }
            __syncthreads();
            base = s.out, is_first = false;
        }
    }
}

} /* namespace tl_buckets */
