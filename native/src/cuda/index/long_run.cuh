/* Long runs of a scatter-add, which a block adds in the order of the index list. order.cuh has those of a warp. */
#pragma once

#include "cuda/device/async_copy.cuh"
#include "cuda/device/instructions.cuh"
#include "cuda/index/order.cuh"

constexpr int TL_LONG_THREADS = 256, TL_LONG_WARPS = TL_LONG_THREADS / 32;
/* Threads of a block that guess, and hits of each that they guess at once: more threads take longer to tell each other where they end than
 * to add fewer hits each. */
constexpr uint32_t TL_GUESSERS = 128, TL_GUESS_WARPS = TL_GUESSERS / 32, TL_LONG_HITS = 64;
constexpr int TL_GUESS_BARRIER = 15; /* behind those of run_relay.cuh */
/* Of so many rounds each must settle so many threads, or the rest is added one after the other: on an H200 a round takes some 1,200
 * cycles, and a thread's values 260 to 280. Chains hardly move in the first few rounds, and most have settled after eight. */
constexpr uint32_t TL_LONG_ROUNDS = 8, TL_LONG_ADVANCE = 4;
/* Hits that are guessed and verified in less time than they are added one after the other. */
constexpr uint32_t TL_LEAST_GUESSED = 1536;

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
    tl_chain_ends ends[TL_GUESS_WARPS]; /* of all threads of the warp, as places of floats */
    uint32_t guess[TL_GUESS_WARPS];     /* of its first thread */
    uint32_t wrong[TL_GUESS_WARPS];     /* its first thread whose starts the chain does not enter at, or 32 */
    uint32_t end;                       /* where the last thread's values end */
    float total[TL_GUESS_WARPS];
    float sum;     /* of the threads that have settled */
    uint32_t done; /* these threads */
};

/* The exponent's bits. */
__device__ __forceinline__ int32_t tl_exponent_of(float x) { return (int32_t)(__float_as_uint(x) >> 23 & 255); }

/* Values of a block in shared memory, those of a thread side by side. The next thread's lie four banks further, so that loads of 16
 * bytes are without conflicts. */
constexpr uint32_t TL_LONG_ALL = TL_GUESSERS * TL_LONG_HITS;
struct tl_long_values {
    float4 quads[TL_GUESSERS][TL_LONG_HITS / 4 + 1];

    __device__ __forceinline__ float &value(uint32_t i)
    {
        return reinterpret_cast<float *>(quads[i / TL_LONG_HITS])[i % TL_LONG_HITS];
    }
    /* Asks for value i, a float at `from`. */
    __device__ __forceinline__ void copy(uint32_t i, const void *from)
    {
        tl_copy_async<4>(tl_shared_address(&value(i)), from, true);
    }
    /* Waits until the first `count` values have come that threads of a block have asked for; those behind them, up to a whole warp's, are -0,
     * which changes no sum. All threads of the block call this. */
    __device__ __forceinline__ void complete(uint32_t count)
    {
        constexpr uint32_t WARP = 32 * TL_LONG_HITS;
        for (uint32_t i = count + threadIdx.x; i < (count + WARP - 1) / WARP * WARP; i += TL_LONG_THREADS)
            value(i) = -0.0f;
        tl_copy_wait<0>();
        __syncthreads();
    }
};

/* s + the TL_LONG_HITS values of thread 0 + ... + those of thread room.done - 1, one after the other, with the bits of that chain, to
 * room.sum. The first `warps` warps of a block call this, and mostly all of their threads are done.
 *
 * Every thread guesses where the chain enters its values, and adds them for good to the guess and to its neighbours. Which of these
 * is the start follows from where the thread before ends; where it is one of them for every thread, by induction from thread 0, which
 * knows its start, the ends are those of the chain. Else the threads guess again: up to the first that was wrong it is known where
 * they start, and behind it about where, by what the ends say of other starts. Guesses settle in a few rounds, and in a round for
 * every thread at the latest: of a sum that crosses powers of two within the values of a thread more bits matter than the starts
 * have. Where rounds have cost more than the additions that they are for, the rest is left. */
__device__ __forceinline__ void tl_guess(float s, const tl_long_values &stage, uint32_t warps, tl_long_room &room)
{
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, threads = warps * 32;
    const float4 *const values = stage.quads[threadIdx.x];
    float part[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    TL_UNROLL_FOR (uint32_t q = 0; q < TL_LONG_HITS / 4; q++) {
        const float4 v = values[q];
        part[0] += v.x, part[1] += v.y, part[2] += v.z, part[3] += v.w;
    }
    const float total = tl_sum_to_lane((part[0] + part[1]) + (part[2] + part[3]), lane);
    if (lane == 31) room.total[warp] = total;
    tl_barrier_wait(TL_GUESS_BARRIER, (int)threads);
    float before = __shfl_up_sync(~0u, total, 1);
    if (lane == 0) before = 0.0f;
    float earlier = 0.0f;
    TL_UNROLL_FOR (uint32_t w = 0; w + 1 < TL_GUESS_WARPS; w++)
        if (w < warp) earlier += room.total[w];
    uint32_t start = tl_place_of(threadIdx.x ? s + (earlier + before) : s);

    for (uint32_t round = 0, settled = 0;; round++) {
        const uint32_t guess = start & ~(TL_STARTS - 1);
        const uint32_t guess_behind = __shfl_down_sync(~0u, guess, 1), next = lane < 31 ? guess_behind : 0;
        float from[TL_STARTS];
        TL_UNROLL_FOR (uint32_t j = 0; j < TL_STARTS; j++)
            from[j] = tl_float_at(guess + j);
        const int32_t exponent = tl_exponent_of(from[0]);
        TL_UNROLL_FOR (uint32_t q = 0; q < TL_LONG_HITS / 4; q++) {
            const float4 v = values[q];
            TL_UNROLL_FOR (uint32_t j = 0; j < TL_STARTS; j++)
                from[j] = tl_add_quad(from[j], v);
        }
        tl_chain_ends ends; /* of the lanes up to this one */
        TL_UNROLL_FOR (uint32_t j = 0; j < TL_STARTS; j++)
            ends.place[j] = tl_place_of(from[j]) - next;
        ends.finer = exponent - tl_exponent_of(from[0]);
        TL_UNROLL_FOR (int d = 1; d < 32; d *= 2) {
            const tl_chain_ends both = ends.of_lane_before(d).then(ends);
            if (lane >= (uint32_t)d) ends = both;
        }
        if (lane == 0) room.guess[warp] = guess;
        if (lane == 31) room.ends[warp] = ends;
        tl_barrier_wait(TL_GUESS_BARRIER, (int)threads);

        uint32_t own = tl_place_of(s) - room.guess[0]; /* where the warp is entered, and then the thread */
        TL_UNROLL_FOR (uint32_t w = 0; w + 1 < TL_GUESS_WARPS; w++) {
            const uint32_t behind = room.ends[w].of(own) - room.guess[w + 1];
            if (w < warp) own = behind;
        }
        const uint32_t end = ends.of(own), end_before = __shfl_up_sync(~0u, end, 1);
        if (lane > 0) own = end_before;
        const uint32_t wrong = __ballot_sync(~0u, own >= TL_STARTS);
        if (lane == 0) room.wrong[warp] = wrong ? __ffs((int)wrong) - 1 : 32;
        if (threadIdx.x == threads - 1) room.end = end;
        tl_barrier_wait(TL_GUESS_BARRIER, (int)threads);
        uint32_t done = threads; /* that start where the chain does, all before the first that does not */
        TL_UNROLL_FOR (uint32_t w = TL_GUESS_WARPS; w-- > 0;)
            if (w < warps && room.wrong[w] < 32) done = w * 32 + room.wrong[w];
        start = guess + own;
        const bool look = round % TL_LONG_ROUNDS == TL_LONG_ROUNDS - 1;
        if (done == threads || (look && done < settled + TL_LONG_ROUNDS * TL_LONG_ADVANCE)) {
            /* The start of thread `done` holds: it is the end of the last whose guess did. */
            if (threadIdx.x == min(done, threads - 1)) {
                room.sum = tl_float_at(done == threads ? room.end : start);
                room.done = done;
            }
            return;
        }
        if (look) settled = done;
    }
}

/* s + the values first .. count-1 of a stage, one after the other; all threads get it. The first is a thread's first, and those behind the
 * last, up to a multiple of 16, are -0. Warp 0 adds them, at the latency of an addition each, while it reads the next. */
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
        if (threadIdx.x == 0) room.sum = s;
    }
    __syncthreads();
    return room.sum;
}

/* s + the first `count` values of a complete stage, one after the other, with the bits of that chain; all threads of the block get it, and
 * may use the stage anew. */
__device__ __forceinline__ float tl_add_stage(float s, const tl_long_values &stage, uint32_t count, tl_long_room &room)
{
    if (count < TL_LEAST_GUESSED) {
        s = count ? tl_chain_values(s, stage, 0, count, room) : s;
    } else {
        const uint32_t warps = (count + 32 * TL_LONG_HITS - 1) / (32 * TL_LONG_HITS);
        if (threadIdx.x < warps * 32) tl_guess(s, stage, warps, room);
        __syncthreads();
        s = room.sum;
        const uint32_t first = room.done * TL_LONG_HITS;
        __syncthreads(); /* all have both */
        if (first < count) s = tl_chain_values(s, stage, first, count, room);
    }
    __syncthreads(); /* all have the sum */
    return s;
}

/* sum + the hits first .. end-1 of a column, in their order; all threads get it. Threads copy values of hits side by side to the stage, as
 * the values of such hits often are near each other. The words of the chunk behind are on their way meanwhile. */
__device__ __forceinline__ float tl_add_long_run(const tl_hits &h, uint32_t first, uint32_t end, uint32_t col,
                                                 float sum, tl_long_values &stage, tl_long_room &room)
{
    constexpr uint32_t WORDS = TL_LONG_ALL / TL_LONG_THREADS;
    uint32_t words[WORDS];
    const auto read_words = [&](int64_t from) { /* none is under a condition, or it would be waited for */
                                                if (!h.values || from >= end) return;
                                                const uint32_t *const list = h.list + from;
                                                const uint32_t last = (uint32_t)(end - from) - 1;
                                                TL_UNROLL_FOR (uint32_t i = 0; i < WORDS; i++)
                                                    words[i] = list[min(i * TL_LONG_THREADS + threadIdx.x, last)];
    };
    read_words(first);
    for (int64_t chunk = first; chunk < end; chunk += TL_LONG_ALL) {
        const uint32_t *const list = h.list + chunk;
        const uint32_t hits = (uint32_t)min(end - chunk, (int64_t)TL_LONG_ALL);
        TL_UNROLL_FOR (uint32_t i = 0; i < WORDS; i++) {
            const uint32_t hit = i * TL_LONG_THREADS + threadIdx.x;
            const void *const value =
                h.values ? (const void *)(h.values + ((int64_t)(words[i] & h.mask) * h.cols + col)) : list + hit;
            if (hit < hits) stage.copy(hit, value);
        }
        tl_copy_commit();
        read_words(chunk + TL_LONG_ALL);
        stage.complete(hits);
        sum = tl_add_stage(sum, stage, hits, room);
    }
    return sum;
}
