/* Long runs of few columns of a scatter-add, which a block adds: its warps bring values to shared memory, hits of a column side by side,
 * from where warp 0 adds them while the others bring the next. So a hit takes the latency of an addition, and nothing is handed over as
 * in run_relay.cuh; of more columns values come slower than they are added. */
#pragma once

#include "cuda/device/unroll.cuh"
#include "cuda/index/narrow_run.cuh"

constexpr uint32_t TL_STAGED_THREADS = 256, TL_STAGED_COLUMNS = 4;
/* Hits that a thread brings at once; so all but warp 0 bring a stage in the latency of a position and a value, in less than it is added. */
constexpr uint32_t TL_STAGED_AT_ONCE = 4, TL_STAGED_HITS = TL_STAGED_AT_ONCE * (TL_STAGED_THREADS - 32);
/* Fours of a column, between columns four banks, of a stage, and of the two that a block has. */
constexpr uint32_t TL_STAGED_COLUMN = TL_STAGED_HITS / 4 + 1, TL_STAGE = TL_STAGED_COLUMNS * TL_STAGED_COLUMN,
                   TL_STAGES = 2 * TL_STAGE;
static_assert(TL_STAGED_HITS % TL_NARROW_AT_ONCE == 0);

/* Lane c of warp 0 gets sum + the hits of column c, its own, in order; of hit i it is values[position(i) · stride + offset(c)]. A thread
 * calls position() for no smaller hits than before, and all TL_STAGED_THREADS of a block call this. The stages may be used anew then. */
template <class Offset, class Position>
__device__ __forceinline__ float tl_add_staged(const float *values, const Offset &offset, uint32_t stride,
                                               uint32_t cols, uint32_t hits, float sum, float4 *stages,
                                               Position &&position)
{
    constexpr uint32_t AT_ONCE = TL_STAGED_AT_ONCE, COLUMNS = TL_STAGED_COLUMNS, SIZE = TL_STAGED_HITS;
    const uint32_t own = min(threadIdx.x % 32, cols - 1) * TL_STAGED_COLUMN;
    const auto bring = [&](float4 *stage, uint32_t from, uint32_t first, uint32_t threads) {
        if (from + (first & ~31u) >= hits) return; /* none of the warp's is read */
        float *const to = reinterpret_cast<float *>(stage) + first;
        const float *row[AT_ONCE];
        float v[AT_ONCE][COLUMNS];
        TL_UNROLL_FOR (uint32_t u = 0; u < AT_ONCE; u++) /* past the last hit, that one again */
            row[u] = values + (int64_t)position(min(from + first + u * threads, hits - 1)) * stride;
        TL_UNROLL_FOR (uint32_t c = 0; c < COLUMNS; c++)
            if (c < cols)
                TL_UNROLL_FOR (uint32_t u = 0; u < AT_ONCE; u++)
                    v[u][c] = row[u][offset(c)];
        TL_UNROLL_FOR (uint32_t c = 0; c < COLUMNS; c++)
            if (c < cols)
                TL_UNROLL_FOR (uint32_t u = 0; u < AT_ONCE; u++) /* -0 changes no sum */
                    if (first + u * threads < SIZE)
                        to[c * (4 * TL_STAGED_COLUMN) + u * threads] = from + first + u * threads < hits ? v[u][c]
                                                                                                         : -0.0f;
    };
    if (hits == 0) return sum;
    bring(stages, 0, threadIdx.x, TL_STAGED_THREADS);
    __syncthreads();
    float4 *now = stages, *next = stages + TL_STAGE;
    for (uint32_t from = 0; from < hits; from += SIZE) {
        if (threadIdx.x < 32)
            sum = tl_add_column(sum, now + own, min(hits - from, SIZE));
        else if (from + SIZE < hits)
            bring(next, from + SIZE, threadIdx.x - 32, TL_STAGED_THREADS - 32);
        float4 *const last = now;
        now = next, next = last;
        __syncthreads();
    }
    return sum;
}
