/* Long runs of a scatter-add, which a block adds in the order of the index list. order.cuh has those of a warp. */
#pragma once

#include "cuda/device/async_copy.cuh"
#include "cuda/index/order.cuh"

constexpr int TL_LONG_THREADS = 256, TL_LONG_WARPS = TL_LONG_THREADS / 32, TL_LONG_HITS = 32; /* hits of a thread */
/* Of so many rounds each must settle so many threads, or the rest is added one after the other: on an H200 a round takes some 2,000
 * cycles, and a thread's values 130 to 160. Chains hardly move in the first few rounds, and most have settled after eight. */
constexpr uint32_t TL_LONG_ROUNDS = 8, TL_LONG_ADVANCE = 6;

/* Floats as integers in the same order, one apart for neighbours, -0 and +0 too: every float has its own. */
__device__ __forceinline__ uint32_t tl_place_of(float x)
{
    const uint32_t b = __float_as_uint(x);
    return b >> 31 ? ~b : b | 0x80000000u;
}
__device__ __forceinline__ float tl_float_at(uint32_t place)
{
    return __uint_as_float(place >> 31 ? place & 0x7fffffffu : ~place);
}

/* A guess stands for TL_STARTS neighbouring floats, whose places differ in their last bits. Where the values of a thread end after
 * each, in those bits, is a map of TL_STARTS such fields; maps of neighbouring threads make one. */
constexpr uint32_t TL_START_BITS = 2, TL_STARTS = 1 << TL_START_BITS;

__device__ __forceinline__ uint32_t tl_follow(uint32_t map, uint32_t start)
{
    return map >> (TL_START_BITS * start) & (TL_STARTS - 1);
}
__device__ __forceinline__ uint32_t tl_map_then(uint32_t first, uint32_t then)
{
    uint32_t map = 0;
    TL_UNROLL_FOR (uint32_t i = 0; i < TL_STARTS; i++)
        map |= tl_follow(then, tl_follow(first, i)) << (TL_START_BITS * i);
    return map;
}

struct tl_long_room {
    uint32_t map[TL_LONG_WARPS];
    double moved[TL_LONG_WARPS];                       /* what the warp's values add */
    uint32_t start[TL_LONG_WARPS], end[TL_LONG_WARPS]; /* places: of its first thread's guess, and where it ends */
    uint32_t
        wrong[TL_LONG_WARPS]; /* its first thread, but the first, of whose starts none is where the one before ends */
    float total[TL_LONG_WARPS], sum, end_of_chain;
};

/* s + the TL_LONG_HITS values of thread 0 + ... + those of thread `done` - 1, one after the other, with the bits of that chain. All
 * threads get it; mostly they are done, too.
 *
 * Every thread guesses where the chain enters its values, and adds them for good to the guess and to its neighbours. Which of these
 * is the start follows from where the thread before ends; where it is one of them for every thread, by induction from thread 0, which
 * knows its start, the ends are those of the chain. Else the next guesses follow from what the threads' values add to a sum: that
 * hardly depends on the start but for the last bits of its significand, which decide roundings to a power of two above, and ties.
 * Guesses settle in a few rounds, and in a round for every thread at the latest: of a sum that doubles more than once within the
 * values of a thread more bits matter. Where rounds have cost more than the additions that they are for, the rest is left. */
__device__ __forceinline__ float tl_guess_block(float s, const float (&v)[TL_LONG_HITS], tl_long_room &room,
                                                uint32_t &done)
{
    constexpr uint32_t LAST = TL_STARTS - 1;
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const float total = tl_about_sum(v);
    if (lane == 31) room.total[warp] = total;
    __syncthreads();
    float before = __shfl_up_sync(~0u, total, 1);
    if (lane == 0) before = 0.0f;
    float earlier = 0.0f;
    TL_UNROLL_FOR (uint32_t w = 0; w + 1 < TL_LONG_WARPS; w++)
        if (w < warp) earlier += room.total[w];
    float start = threadIdx.x ? s + (earlier + before) : s;

    for (uint32_t round = 0, settled = 0;; round++) {
        const uint32_t guess = tl_place_of(start) & ~LAST;
        float from[TL_STARTS];
        TL_UNROLL_FOR (uint32_t j = 0; j < TL_STARTS; j++)
            from[j] = tl_float_at(guess + j);
        TL_UNROLL_FOR (int i = 0; i < TL_LONG_HITS; i++)
            TL_UNROLL_FOR (uint32_t j = 0; j < TL_STARTS; j++)
                from[j] += v[i];
        uint32_t map = 0;
        TL_UNROLL_FOR (uint32_t j = 0; j < TL_STARTS; j++)
            map |= (tl_place_of(from[j]) & LAST) << (TL_START_BITS * j);
        TL_UNROLL_FOR (int d = 1; d < 32; d *= 2) {
            const uint32_t of_earlier = __shfl_up_sync(~0u, map, d);
            if (lane >= d) map = tl_map_then(of_earlier, map);
        }
        if (lane == 31) room.map[warp] = map;
        __syncthreads();

        uint32_t own = tl_place_of(s) & LAST; /* which of the starts, of the warp and then of the thread */
        TL_UNROLL_FOR (uint32_t w = 0; w + 1 < TL_LONG_WARPS; w++)
            if (w < warp) own = tl_follow(room.map[w], own);
        const uint32_t map_before = __shfl_up_sync(~0u, map, 1);
        if (lane > 0) own = tl_follow(map_before, own);
        float end = from[0];
        TL_UNROLL_FOR (uint32_t j = 1; j < TL_STARTS; j++)
            if (own == j) end = from[j];
        double moved = (double)end - tl_float_at(guess + own);
        const uint32_t end_before = __shfl_up_sync(~0u, tl_place_of(end), 1);
        const uint32_t wrong = __ballot_sync(~0u, lane > 0 && (end_before & ~LAST) != guess);
        TL_UNROLL_FOR (int d = 1; d < 32; d *= 2) {
            const double earlier_moved = __shfl_up_sync(~0u, moved, d);
            if (lane >= d) moved += earlier_moved;
        }
        if (lane == 0) {
            room.start[warp] = guess;
            room.wrong[warp] = wrong ? __ffs((int)wrong) - 1 : 32;
        }
        if (lane == 31) room.moved[warp] = moved, room.end[warp] = tl_place_of(end);
        __syncthreads();
        done = TL_LONG_THREADS; /* threads that start where the chain does, all before the first that does not */
        TL_UNROLL_FOR (uint32_t w = TL_LONG_WARPS; w-- > 0;) {
            if (room.wrong[w] < 32) done = w * 32 + room.wrong[w];
            if (w > 0 && room.start[w] != (room.end[w - 1] & ~LAST)) done = w * 32;
        }
        if (done == TL_LONG_THREADS) return tl_float_at(room.end[TL_LONG_WARPS - 1]);
        const bool look = round % TL_LONG_ROUNDS == TL_LONG_ROUNDS - 1;
        if (look && done < settled + TL_LONG_ROUNDS * TL_LONG_ADVANCE) {
            /* Thread done - 1 is the last whose start holds, hence its end. */
            if (threadIdx.x == done - 1) room.sum = end;
            __syncthreads();
            return room.sum;
        }
        if (look) settled = done;
        double inside = __shfl_up_sync(~0u, moved, 1);
        if (lane == 0) inside = 0.0;
        double of_warps = 0.0;
        TL_UNROLL_FOR (uint32_t w = 0; w + 1 < TL_LONG_WARPS; w++)
            if (w < warp) of_warps += room.moved[w];
        const float next = (float)(s + (of_warps + inside));
        /* A thread that is right stays so, and the next one starts at its end, whatever the sums say. */
        const float exact = lane ? tl_float_at(end_before) : warp ? tl_float_at(room.end[warp - 1]) : s;
        start = threadIdx.x <= done ? exact : next;
    }
}

/* The same of all threads. What is left the warps add in turns, and in a warp the lanes. */
__device__ __forceinline__ float tl_add_block(float s, const float (&v)[TL_LONG_HITS], tl_long_room &room)
{
    uint32_t done;
    s = tl_guess_block(s, v, room, done);
    if (done == TL_LONG_THREADS) return s;
    __syncthreads(); /* all have s */
    uint32_t lane = done % 32;
    for (uint32_t w = done / 32; w < TL_LONG_WARPS; w++, lane = 0) {
        if (threadIdx.x / 32 == w) {
            for (; lane < 32; lane++) {
                TL_UNROLL_FOR (int i = 0; i < TL_LONG_HITS; i++)
                    s += v[i];
                s = __shfl_sync(~0u, s, (int)lane);
            }
            room.sum = s; /* of all lanes */
        }
        __syncthreads();
        s = room.sum;
        __syncthreads();
    }
    return s;
}

/* Values of a block in shared memory, those of a thread side by side. The next thread's lie four banks further, so that loads of 16
 * bytes are without conflicts. */
constexpr uint32_t TL_LONG_ALL = TL_LONG_THREADS * TL_LONG_HITS;
struct tl_long_values {
    float4 quads[TL_LONG_THREADS][TL_LONG_HITS / 4 + 1];

    __device__ __forceinline__ float &value(uint32_t i)
    {
        return reinterpret_cast<float *>(quads[i / TL_LONG_HITS])[i % TL_LONG_HITS];
    }
};

/* s + the values of a stage from `first`, a multiple of TL_LONG_HITS, to `count`, one after the other; all threads get it. Those
 * behind them, up to a multiple of 16, are -0. Warp 0 adds them, at the latency of an addition each, while it reads the next. */
__device__ __forceinline__ float tl_chain_values(float s, const tl_long_values &stage, uint32_t first, uint32_t count,
                                                 tl_long_room &room)
{
    if (threadIdx.x < 32) {
        constexpr uint32_t QUADS = 4, PARTS = TL_LONG_HITS / (4 * QUADS);
        const uint32_t parts = (count + 4 * QUADS - 1) / (4 * QUADS);
        const auto read = [&](uint32_t part, float4(&quads)[QUADS]) {
            TL_UNROLL_FOR (uint32_t q = 0; q < QUADS; q++)
                quads[q] = stage.quads[part / PARTS][part % PARTS * QUADS + q];
        };
        float4 now[QUADS];
        read(first / (4 * QUADS), now);
        for (uint32_t part = first / (4 * QUADS); part < parts; part++) {
            float4 after[QUADS];
            read(min(part + 1, parts - 1), after);
            TL_UNROLL_FOR (uint32_t q = 0; q < QUADS; q++) {
                s = tl_add_quad(s, now[q]);
                now[q] = after[q];
            }
        }
        if (threadIdx.x == 0) room.end_of_chain = s;
    }
    __syncthreads();
    return room.end_of_chain;
}

/* s + the first `count` values of a stage, one after the other; all threads get it. Those behind them are -0. What is left of the
 * chain warp 0 adds. */
__device__ __forceinline__ float tl_add_values(float s, const tl_long_values &stage, uint32_t count, tl_long_room &room)
{
    uint32_t done;
    {
        float v[TL_LONG_HITS];
        TL_UNROLL_FOR (int q = 0; q < TL_LONG_HITS / 4; q++)
            tl_unpack4(stage.quads[threadIdx.x][q], v + 4 * q);
        s = tl_guess_block(s, v, room, done);
    }
    return done * TL_LONG_HITS < count ? tl_chain_values(s, stage, done * TL_LONG_HITS, count, room) : s;
}

/* sum + the hits first .. end-1 of a column, in their order; all threads get it. Thread t owns TL_LONG_HITS neighbouring hits of
 * each chunk. Threads copy values of hits side by side to the stage, as the values of such hits often are near each other, and a
 * thread takes its own from there. Those behind the last hit are -0, which changes no sum. The values of the chunk behind and the
 * words of the one behind that are on their way meanwhile. */
__device__ __forceinline__ float tl_add_long_run(const tl_hits &h, uint32_t first, uint32_t end, uint32_t col,
                                                 float sum, tl_long_values &stage, tl_long_room &room)
{
    uint32_t words[TL_LONG_HITS];
    const auto read_words = [&](int64_t from) { /* none is under a condition, or it would be waited for */
                                                if (!h.values || from >= end) return;
                                                const uint32_t *const list = h.list + from;
                                                const uint32_t last = (uint32_t)(end - from) - 1;
                                                TL_UNROLL_FOR (uint32_t i = 0; i < TL_LONG_HITS; i++)
                                                    words[i] = list[min(i * TL_LONG_THREADS + threadIdx.x, last)];
    };
    const auto copy_values = [&](int64_t from) {
        if (from >= end) return;
        const uint32_t *const list = h.list + from;
        const uint32_t hits = (uint32_t)(end - from);
        TL_UNROLL_FOR (uint32_t i = 0; i < TL_LONG_HITS; i++) {
            const uint32_t hit = i * TL_LONG_THREADS + threadIdx.x;
            const void *const value =
                h.values ? (const void *)(h.values + ((int64_t)(words[i] & h.mask) * h.cols + col)) : list + hit;
            if (hit < hits)
                tl_copy_async<4>(tl_shared_address(&stage.value(hit)), value, true);
            else
                stage.value(hit) = -0.0f;
        }
        tl_copy_commit();
    };
    read_words(first);
    copy_values(first);
    read_words((int64_t)first + TL_LONG_ALL);
    for (int64_t chunk = first; chunk < end; chunk += TL_LONG_ALL) {
        tl_copy_wait<0>();
        __syncthreads();
        float v[TL_LONG_HITS];
        TL_UNROLL_FOR (int q = 0; q < TL_LONG_HITS / 4; q++)
            tl_unpack4(stage.quads[threadIdx.x][q], v + 4 * q);
        __syncthreads();
        copy_values(chunk + TL_LONG_ALL);
        read_words(chunk + 2 * TL_LONG_ALL);
        sum = tl_add_block(sum, v, room);
    }
    return sum;
}

/* ---- runs of wide rows ----------------------------------------------------------------------------------------------- */

/* sum + the first `hits` of a stage's values of a column, in order and AT_ONCE at a time, while the next are read. Those behind
 * the last that a stage holds are -0, and `size`, its rows, is a multiple of AT_ONCE. */
template <uint32_t AT_ONCE, int COLUMNS>
__device__ __forceinline__ float tl_add_stage(float sum, const float (*stage)[COLUMNS], uint32_t size, uint32_t column,
                                              uint32_t hits)
{
    float now[AT_ONCE];
    TL_UNROLL_FOR (uint32_t i = 0; i < AT_ONCE; i++)
        now[i] = stage[i][column];
    for (uint32_t hit = 0; hit < hits; hit += AT_ONCE) {
        const uint32_t then = min(hit + AT_ONCE, size - AT_ONCE);
        float after[AT_ONCE];
        TL_UNROLL_FOR (uint32_t i = 0; i < AT_ONCE; i++)
            after[i] = stage[then + i][column];
        TL_UNROLL_FOR (uint32_t i = 0; i < AT_ONCE; i++)
            sum += now[i];
        TL_UNROLL_FOR (uint32_t i = 0; i < AT_ONCE; i++)
            now[i] = after[i];
    }
    return sum;
}

/* Lane l of warp 0 gets sum + the hits first .. end-1 of column `col`, its own. The block brings TL_LONG_STAGE rows of 32 columns
 * at a time to shared memory, from where warp 0 adds them while the next are on their way: a run costs the latency of its
 * additions, and no more. */
constexpr uint32_t TL_LONG_STAGE = TL_LONG_WARPS * 32;

__device__ __forceinline__ float tl_add_staged(const tl_hits &h, uint32_t first, uint32_t end, uint32_t col, float sum,
                                               float (*stage)[32])
{
    const uint32_t lane = threadIdx.x % 32, mine = threadIdx.x / 32 * 32; /* of a stage, the 32 hits of the warp */
    float next[32];
    uint32_t held = 0; /* hits of the warp in `next` */
    const auto fetch = [&](uint32_t at, uint32_t word) {
        held = at < end ? min(end - at, 32u) : 0;
        if (held) h.load_rows(word, held, col, next);
    };
    const auto word_at = [&](uint32_t at) { return at < end && lane < end - at ? h.list[at + lane] : 0; };
    uint32_t word = word_at(first + mine);
    fetch(first + mine, word);
    word = word_at(first + TL_LONG_STAGE + mine);
    for (uint32_t at = first; at < end; at += TL_LONG_STAGE) {
        TL_UNROLL_FOR (int i = 0; i < 32; i++)
            stage[mine + i][lane] = i < held ? next[i] : -0.0f;
        __syncthreads();
        if (at + TL_LONG_STAGE < end) {
            fetch(at + TL_LONG_STAGE + mine, word);
            word = word_at(at + 2 * TL_LONG_STAGE + mine);
        }
        if (threadIdx.x < 32) {
            const uint32_t hits = min(end - at, TL_LONG_STAGE); /* those behind the last are -0 */
            sum = tl_add_stage<16>(sum, stage, TL_LONG_STAGE, lane, hits);
        }
        __syncthreads();
    }
    return sum;
}
