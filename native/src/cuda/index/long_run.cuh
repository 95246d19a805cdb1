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

/* A guess stands for TL_STARTS neighbouring floats, of which `guess` is the first place. */
constexpr uint32_t TL_STARTS = 4;
static_assert((TL_STARTS & (TL_STARTS - 1)) == 0);

/* Where chains end that enter the values of some neighbouring threads at a guess's starts: how many places behind the guess of the
 * thread that follows. While a chain stays between two powers of two, another that starts TL_STARTS units higher ends as much higher:
 * rounding depends on nothing but the last bits of the significand. So the ends say about where any chain ends; of which the ends
 * themselves, of chains from one of the starts, hold for good. */
struct tl_chain_ends {
    uint32_t place[TL_STARTS];
    int32_t finer; /* log2 of the places at the end for one at the start */

    /* Of the chain that starts `start` places behind the guess. */
    __device__ __forceinline__ uint32_t of(uint32_t start) const
    {
        const uint32_t which = start & (TL_STARTS - 1);
        const int32_t beyond = (int32_t)(start - which);
        uint32_t end = place[0];
        TL_UNROLL_FOR (uint32_t i = 1; i < TL_STARTS; i++)
            if (which == i) end = place[i];
        return end + (finer < 0 ? (uint32_t)(beyond >> min(-finer, 31)) : (uint32_t)beyond << min(finer, 31));
    }
    /* Of these threads and those that follow. */
    __device__ __forceinline__ tl_chain_ends then(const tl_chain_ends &next) const
    {
        tl_chain_ends both;
        TL_UNROLL_FOR (uint32_t i = 0; i < TL_STARTS; i++)
            both.place[i] = next.of(place[i]);
        both.finer = finer + next.finer;
        return both;
    }
    __device__ __forceinline__ tl_chain_ends of_lane_before(uint32_t distance) const
    {
        tl_chain_ends other;
        TL_UNROLL_FOR (uint32_t i = 0; i < TL_STARTS; i++)
            other.place[i] = __shfl_up_sync(~0u, place[i], distance);
        other.finer = __shfl_up_sync(~0u, finer, distance);
        return other;
    }
};

struct tl_long_room {
    tl_chain_ends ends[TL_LONG_WARPS]; /* of all threads of the warp, as places of floats */
    uint32_t guess[TL_LONG_WARPS];     /* of its first thread */
    uint32_t wrong[TL_LONG_WARPS];     /* its first thread whose starts the chain does not enter at, or 32 */
    uint32_t end;                      /* where the last thread's values end */
    float total[TL_LONG_WARPS], sum, end_of_chain;
};

/* The exponent's bits. */
__device__ __forceinline__ int32_t tl_exponent_of(float x) { return (int32_t)(__float_as_uint(x) >> 23 & 255); }

/* s + the TL_LONG_HITS values of thread 0 + ... + those of thread `done` - 1, one after the other, with the bits of that chain. All
 * threads get it; mostly they are done, too.
 *
 * Every thread guesses where the chain enters its values, and adds them for good to the guess and to its neighbours. Which of these
 * is the start follows from where the thread before ends; where it is one of them for every thread, by induction from thread 0, which
 * knows its start, the ends are those of the chain. Else the threads guess again: up to the first that was wrong it is known where
 * they start, and behind it about where, by what the ends say of other starts. Guesses settle in a few rounds, and in a round for
 * every thread at the latest: of a sum that crosses powers of two within the values of a thread more bits matter than the starts
 * have. Where rounds have cost more than the additions that they are for, the rest is left. */
__device__ __forceinline__ float tl_guess_block(float s, const float (&v)[TL_LONG_HITS], tl_long_room &room,
                                                uint32_t &done)
{
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const float total = tl_about_sum(v);
    if (lane == 31) room.total[warp] = total;
    __syncthreads();
    float before = __shfl_up_sync(~0u, total, 1);
    if (lane == 0) before = 0.0f;
    float earlier = 0.0f;
    TL_UNROLL_FOR (uint32_t w = 0; w + 1 < TL_LONG_WARPS; w++)
        if (w < warp) earlier += room.total[w];
    uint32_t start = tl_place_of(threadIdx.x ? s + (earlier + before) : s);

    for (uint32_t round = 0, settled = 0;; round++) {
        const uint32_t guess = start & ~(TL_STARTS - 1);
        const uint32_t guess_behind = __shfl_down_sync(~0u, guess, 1), next = lane < 31 ? guess_behind : 0;
        float from[TL_STARTS];
        TL_UNROLL_FOR (uint32_t j = 0; j < TL_STARTS; j++)
            from[j] = tl_float_at(guess + j);
        const int32_t exponent = tl_exponent_of(from[0]);
        TL_UNROLL_FOR (int i = 0; i < TL_LONG_HITS; i++)
            TL_UNROLL_FOR (uint32_t j = 0; j < TL_STARTS; j++)
                from[j] += v[i];
        tl_chain_ends ends; /* of the lanes up to this one */
        TL_UNROLL_FOR (uint32_t j = 0; j < TL_STARTS; j++)
            ends.place[j] = tl_place_of(from[j]) - next;
        ends.finer = exponent - tl_exponent_of(from[0]);
        TL_UNROLL_FOR (int d = 1; d < 32; d *= 2) {
            const tl_chain_ends of_earlier = ends.of_lane_before(d);
            if (lane >= d) ends = of_earlier.then(ends);
        }
        if (lane == 0) room.guess[warp] = guess;
        if (lane == 31) room.ends[warp] = ends;
        __syncthreads();

        uint32_t own = tl_place_of(s) - room.guess[0]; /* where the warp is entered, and then the thread */
        TL_UNROLL_FOR (uint32_t w = 0; w + 1 < TL_LONG_WARPS; w++)
            if (w < warp) own = room.ends[w].of(own) - room.guess[w + 1];
        const uint32_t end = ends.of(own), end_before = __shfl_up_sync(~0u, end, 1);
        if (lane > 0) own = end_before;
        const uint32_t wrong = __ballot_sync(~0u, own >= TL_STARTS);
        if (lane == 0) room.wrong[warp] = wrong ? __ffs((int)wrong) - 1 : 32;
        if (threadIdx.x == TL_LONG_THREADS - 1) room.end = end;
        __syncthreads();
        done = TL_LONG_THREADS; /* threads that start where the chain does, all before the first that does not */
        TL_UNROLL_FOR (uint32_t w = TL_LONG_WARPS; w-- > 0;)
            if (room.wrong[w] < 32) done = w * 32 + room.wrong[w];
        if (done == TL_LONG_THREADS) return tl_float_at(room.end);
        start = guess + own;
        const bool look = round % TL_LONG_ROUNDS == TL_LONG_ROUNDS - 1;
        if (look && done < settled + TL_LONG_ROUNDS * TL_LONG_ADVANCE) {
            /* The start of thread `done` holds: it is the end of the last whose guess did. */
            if (threadIdx.x == done) room.sum = tl_float_at(start);
            __syncthreads();
            return room.sum;
        }
        if (look) settled = done;
    }
}

/* The same of all threads, of which the first `threads` have values. What is left the warps add in turns, and in a warp the lanes. */
__device__ __forceinline__ float tl_add_block(float s, const float (&v)[TL_LONG_HITS], tl_long_room &room,
                                              uint32_t threads = TL_LONG_THREADS)
{
    uint32_t done;
    s = tl_guess_block(s, v, room, done);
    if (done >= threads) return s;
    __syncthreads(); /* all have s */
    uint32_t lane = done % 32;
    for (uint32_t w = done / 32; w * 32 < threads; w++, lane = 0) {
        if (threadIdx.x / 32 == w) {
            for (; lane < min(threads - w * 32, 32u); lane++) {
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

/* s + the first `count` values of a stage, one after the other; all threads get it. Those behind them, up to a multiple of 16, are -0.
 * Warp 0 adds them, at the latency of an addition each, while it reads the next. */
__device__ __forceinline__ float tl_chain_values(float s, const tl_long_values &stage, uint32_t count,
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
        read(0, now);
        for (uint32_t part = 0; part < parts; part++) {
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
