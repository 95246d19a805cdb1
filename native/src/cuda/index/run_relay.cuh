/* Long runs of a scatter-add, which a block adds in the order of the index list: its warps take turns. */
#pragma once

#include "cuda/device/instructions.cuh"
#include "cuda/device/shared.cuh"
#include "cuda/device/unroll.cuh"
#include "cuda/index/order.cuh"

/* Hits of a row of several columns that are added in a chain rather than guessed (long_run.cuh), a column by a block. Those of 8,192 hits
 * take 13,000 to 21,000 cycles, the longest where a sum of normal values stays near zero; a chain takes 39,000. Of a strip of 32 columns
 * or more that many blocks read a sector for each value. */
constexpr uint32_t TL_CHAINED_ROW = 3072, TL_CHAINED_STRIP = 1 << 14;

/* Lane l of warp 0 gets sum + the hits of a column, its own, in order; hit i is column[position(i) · stride]. position() is called for
 * no smaller hits than before, and of a block of TL_LONG_THREADS threads all call this.
 *
 * A warp has HITS hits of a turn in registers, and adds them when the sum arrives from the warp whose turn it was, by `pass`. Those of
 * its next turn are then on their way while the other warps add: a hit takes the latency of an addition, and its share of that of
 * handing over, which is that of some twenty additions. The positions of the turn behind that come meanwhile, too. */
constexpr uint32_t TL_RELAY_WARPS = 8,
                   TL_RELAY_BARRIER = 1; /* the first of as many barriers: number 0 is the block's */

template <uint32_t HITS, class Position>
__device__ __forceinline__ float tl_add_relay(const float *column, uint32_t stride, uint32_t hits, float sum,
                                              float (&pass)[32], Position &&position)
{
    static_assert(HITS % 32 == 0, "a lane has a position for each 32 hits");
    constexpr uint32_t LISTS = HITS / 32, WARPS = TL_RELAY_WARPS;
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, turns = (hits + HITS - 1) / HITS;
    const char *const start = reinterpret_cast<const char *>(column);
    const uint32_t row_bytes = stride * sizeof(float);
    if (turns == 0) return sum;
    /* Neither is computed anew between two turns, where the chain would wait for it. */
    int own = TL_RELAY_BARRIER + warp, behind = TL_RELAY_BARRIER + (warp + 1) % WARPS,
        at = tl_shared_address(pass + lane);
    tl_forget_origin(own), tl_forget_origin(behind), tl_forget_origin(at);
    uint32_t positions[LISTS];
    float v[HITS];
    const auto list = [&](uint32_t turn) { /* past the last hit, that one again */
                                           TL_UNROLL_FOR (uint32_t i = 0; i < LISTS; i++)
                                               positions[i] = position(min(turn * HITS + i * 32 + lane, hits - 1));
    };
    const auto fetch = [&] {
        TL_UNROLL_FOR (uint32_t i = 0; i < HITS; i++)
            v[i] = *reinterpret_cast<const float *>(start +
                                                    (uint64_t)__shfl_sync(~0u, positions[i / 32], i % 32) * row_bytes);
    };
    list(warp);
    for (uint32_t turn = warp; turn < turns; turn += WARPS) {
        /* The values are of this turn alone: those that a turn kept for the next would be moved, and be waited for one after the other. */
        fetch();
        if (turn + WARPS < turns) list(turn + WARPS);
        const uint32_t here = hits - turn * HITS;
        if (here < HITS)
            TL_UNROLL_FOR (uint32_t i = 0; i < HITS; i++)
                v[i] = i < here ? v[i] : -0.0f; /* changes no sum */
        if (turn > 0) {
            tl_barrier_wait(own, 64);
            sum = tl_load_shared(at);
        }
        TL_UNROLL_FOR (uint32_t i = 0; i < HITS; i++)
            sum += v[i];
        if (turn + 1 == turns && warp == 0) return sum;
        tl_store_shared(at, sum);
        tl_barrier_arrive(turn + 1 < turns ? behind : (int)TL_RELAY_BARRIER, 64);
    }
    if (warp == 0) { /* another has the last turn */
        tl_barrier_wait(own, 64);
        sum = tl_load_shared(at);
    }
    return sum;
}
