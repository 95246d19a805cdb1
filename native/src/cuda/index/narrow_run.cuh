/* Long runs of narrow rows of a scatter-add: all columns of a run at once, in the order of the index list. Threads bring some hits of
 * all columns at a time to shared memory, neighbouring columns by neighbouring threads, from where a lane for each column adds them
 * while the next are on their way: a run costs the latency of its additions, and all columns no more than one. */
#pragma once

#include "cuda/device/async_copy.cuh"
#include "cuda/device/division.cuh"
#include "cuda/index/order.cuh"

/* Hits that a lane reads and adds together: the latency of shared memory is less than that of as many additions. */
constexpr uint32_t TL_NARROW_AT_ONCE = 16, TL_NARROW_COLUMNS = 31;

/* Hits of a row of several columns that are added in a chain rather than guessed (long_run.cuh). Of normal values the sum of some column is
 * near zero for most of its first 30,000 hits, goes through many powers of two there, and is guessed for longer than a chain takes; of
 * twice as many hits the slowest column takes about the same time. */
constexpr uint32_t TL_CHAINED_ROW = 1 << 16;

/* The size of a stage of threads·values values, in fours: hits of every column side by side, and four floats between columns, so
 * that the fours that lanes of several columns read lie in different banks. */
__host__ __device__ constexpr uint32_t tl_narrow_stage(uint32_t threads, uint32_t values)
{
    return threads * values / 4 + TL_NARROW_COLUMNS;
}

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
 * columns, no less than `cols`, of `size` hits, of which THREADS threads, of which the caller is number `member`, bring VALUES
 * values each. */
template <uint32_t THREADS, uint32_t VALUES, class Position> struct tl_narrow_run {
    const float *values;
    const tl_fastdiv &width;
    uint32_t stride, cols, hits, member, size;
    Position position;
    float next[VALUES];

    __device__ __forceinline__ tl_narrow_run(const float *values, uint32_t stride, const tl_fastdiv &width,
                                             uint32_t cols, uint32_t hits, uint32_t member, Position position)
        : values(values), width(width), stride(stride), cols(cols), hits(hits), member(member),
          size(width.div(THREADS * VALUES) & ~(TL_NARROW_AT_ONCE - 1)), position(position)
    {
        static_assert(THREADS * VALUES / TL_NARROW_COLUMNS >= TL_NARROW_AT_ONCE && VALUES % 8 == 0);
    }

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
        TL_UNROLL_FOR (uint32_t u = 0; u < VALUES; u++) {
            if (u % 8 == 0 && u * THREADS >= count) break;
            uint32_t col;
            const uint32_t hit = width.divmod(member + u * THREADS, &col);
            next[u] = values[(int64_t)position(min(from + hit, hits - 1)) * stride + min(col, cols - 1)];
        }
    }
    __device__ __forceinline__ void store(uint32_t from, float4 *stage) const
    {
        const uint32_t count = count_values(from);
        float *const column = reinterpret_cast<float *>(stage);
        TL_UNROLL_FOR (uint32_t u = 0; u < VALUES; u++) {
            if (u % 8 == 0 && u * THREADS >= count) break;
            uint32_t col;
            const uint32_t hit = width.divmod(member + u * THREADS, &col);
            if (member + u * THREADS < count) column[col * (size + 4) + hit] = from + hit < hits ? next[u] : -0.0f;
        }
    }
    __device__ __forceinline__ float add(uint32_t from, const float4 *stage, float sum) const
    {
        const uint32_t column = min(threadIdx.x % 32, cols - 1);
        return tl_add_column(sum, stage + column * (size / 4 + 1), min(hits - from, size));
    }
};

/* A warp's: lane c gets sum + the hits of column c, its own. */
constexpr uint32_t TL_WARP_VALUES = 32, TL_WARP_STAGE = tl_narrow_stage(32, TL_WARP_VALUES);

template <class Position>
__device__ __forceinline__ float tl_add_narrow_warp(const float *values, uint32_t stride, const tl_fastdiv &width,
                                                    uint32_t cols, uint32_t hits, float sum, float4 *stage,
                                                    Position position)
{
    tl_narrow_run<32, TL_WARP_VALUES, Position> run(values, stride, width, cols, hits, threadIdx.x % 32, position);
    for (uint32_t from = 0; from < hits + run.size; from += run.size) {
        if (from > 0) run.store(from - run.size, stage);
        __syncwarp();
        if (from < hits) run.fetch(from);
        if (from > 0) sum = run.add(from - run.size, stage, sum);
        __syncwarp();
    }
    return sum;
}

/* A block's, of THREADS: lane c of warp 0 gets sum + the hits of column c, and does nothing but add. The others copy stages of hits to
 * a ring, past the registers. All but two stages, of which one is added and the next has come, are on their way or about to be: the
 * bytes that the latency of memory takes at the rate of a chain are more than one stage could be. */
constexpr uint32_t TL_RING_STAGES = 6, TL_RING_AT_ONCE = 4;

/* Fours of a ring of a size for which every column of TL_NARROW_COLUMNS has stages. */
__host__ __device__ constexpr bool tl_is_ring(uint32_t fours)
{
    return fours / TL_NARROW_COLUMNS > TL_RING_STAGES * TL_NARROW_AT_ONCE / 4;
}

/* Where the positions of hits lie in a list of their own, which is brought to shared memory too, as many stages ahead as the ring
 * has beside the one that is added: prepare(from, end, place) starts copies of the positions of hits from .. end - 1 to the places from
 * `place` on, of as many as the ring has for a column. position(hit, place) is that of a hit. */
struct tl_no_list {
    static constexpr bool PREPARES = false;
    __device__ __forceinline__ void operator()(uint32_t, uint32_t, uint32_t) const {}
};

template <uint32_t THREADS, uint32_t FOURS, class Position, class Prepare>
__device__ __forceinline__ float tl_add_ring(const float *values, uint32_t stride, const tl_fastdiv &width,
                                             uint32_t cols, uint32_t hits, float sum, float4 (&ring)[FOURS],
                                             Position position, Prepare prepare)
{
    static_assert(tl_is_ring(FOURS));
    constexpr uint32_t STEP = TL_NARROW_AT_ONCE / 4;
    /* Fours of a stage in a column, and from a column to the next: an odd number, so that those that lanes of neighbouring columns
     * read lie in different banks. */
    const uint32_t size = (width.div(FOURS) - 1) / (TL_RING_STAGES * STEP) * STEP, pitch = TL_RING_STAGES * size + 1;
    const uint32_t stages = (hits + 4 * size - 1) / (4 * size);
    const auto fours_of = [&](uint32_t stage) { /* those that are added: the last hits are followed by -0 */
                                                return min((hits - stage * 4 * size + TL_NARROW_AT_ONCE - 1) /
                                                               TL_NARROW_AT_ONCE * STEP,
                                                           size);
    };
    if (threadIdx.x >= 32) {
        uint32_t col;
        const uint32_t first = width.divmod(threadIdx.x - 32, &col), rows = width.div(THREADS - 32); /* together */
        const bool brings = first < rows && col < cols;
        float *const column = reinterpret_cast<float *>(ring + (brings ? col : 0) * pitch);
        const char *const from_column = reinterpret_cast<const char *>(values + col);
        const uint32_t row_bytes = stride * sizeof(float);
        const auto prepare_stage = [&](uint32_t stage, uint32_t slot) {
            const uint32_t from = stage * 4 * size;
            if (stage < stages) prepare(from, min(hits, from + 4 * size), slot * 4 * size);
        };
        const auto bring = [&](uint32_t stage, uint32_t slot) {
            if (stage < stages && brings) {
                const uint32_t from = stage * 4 * size, end = min(hits - from, 4 * size), place = slot * 4 * size;
                float *const to = column + place;
                for (uint32_t hit = first; hit < end; hit += TL_RING_AT_ONCE * rows) {
                    uint32_t of[TL_RING_AT_ONCE];
                    TL_UNROLL_FOR (uint32_t u = 0; u < TL_RING_AT_ONCE; u++)
                        of[u] = position(from + min(hit + u * rows, end - 1), place + min(hit + u * rows, end - 1));
                    TL_UNROLL_FOR (uint32_t u = 0; u < TL_RING_AT_ONCE; u++)
                        if (hit + u * rows < end)
                            tl_copy_async<4, false>(tl_shared_address(to + hit + u * rows),
                                                    from_column + (uint64_t)of[u] * row_bytes, true);
                }
                for (uint32_t hit = end + first; hit < 4 * fours_of(stage); hit += rows)
                    to[hit] = -0.0f; /* changes no sum */
            }
            tl_copy_commit();
        };
        if constexpr (Prepare::PREPARES) {
            for (uint32_t stage = 0; stage < TL_RING_STAGES; stage++)
                prepare_stage(stage, stage);
            tl_copy_commit();
            tl_copy_wait<0>();
            __syncthreads();
        }
        for (uint32_t stage = 0; stage + 1 < TL_RING_STAGES; stage++)
            bring(stage, stage);
        if constexpr (Prepare::PREPARES) { /* in the place of those whose values are on their way */
            __syncthreads();
            for (uint32_t stage = TL_RING_STAGES; stage < 2 * TL_RING_STAGES - 2; stage++)
                prepare_stage(stage, stage - TL_RING_STAGES);
            tl_copy_commit();
            tl_copy_wait<0>();
        }
        uint32_t slot = TL_RING_STAGES - 1;
        for (uint32_t stage = 0; stage < stages; stage++) {
            tl_copy_wait<TL_RING_STAGES - 3>(); /* for the stage behind this one */
            __syncthreads();
            if constexpr (Prepare::PREPARES)
                prepare_stage(stage + 2 * TL_RING_STAGES - 2, slot ? slot - 1 : TL_RING_STAGES - 1);
            bring(stage + TL_RING_STAGES - 1, slot);
            slot = slot + 1 < TL_RING_STAGES ? slot + 1 : 0;
        }
    } else {
        const float4 *const column = ring + min(threadIdx.x, cols - 1) * pitch;
        float4 now[STEP] = {};
        uint32_t slot = 0;
        if constexpr (Prepare::PREPARES) {
            __syncthreads();
            __syncthreads();
        }
        for (uint32_t stage = 0; stage < stages; stage++) {
            __syncthreads();
            const float4 *const own = column + slot * size;
            slot = slot + 1 < TL_RING_STAGES ? slot + 1 : 0;
            const float4 *const behind = stage + 1 < stages ? column + slot * size : own;
            const uint32_t end = fours_of(stage);
            if (stage == 0)
                TL_UNROLL_FOR (uint32_t i = 0; i < STEP; i++)
                    now[i] = own[i];
#pragma unroll 2
            for (uint32_t at = STEP; at <= end; at += STEP) {
                const float4 *const then = at < end ? own + at : behind;
                float4 next[STEP];
                TL_UNROLL_FOR (uint32_t i = 0; i < STEP; i++)
                    next[i] = then[i];
                TL_UNROLL_FOR (uint32_t i = 0; i < STEP; i++)
                    sum = tl_add_quad(sum, now[i]);
                TL_UNROLL_FOR (uint32_t i = 0; i < STEP; i++)
                    now[i] = next[i];
            }
        }
    }
    __syncthreads(); /* the ring was read */
    return sum;
}

/* The same of hits whose positions are at hand. */
template <uint32_t THREADS, uint32_t FOURS, class Position>
__device__ __forceinline__ float tl_add_narrow_block(const float *values, uint32_t stride, const tl_fastdiv &width,
                                                     uint32_t cols, uint32_t hits, float sum, float4 (&ring)[FOURS],
                                                     Position position)
{
    return tl_add_ring<THREADS>(
        values, stride, width, cols, hits, sum, ring, [&](uint32_t hit, uint32_t) { return position(hit); },
        tl_no_list{});
}
