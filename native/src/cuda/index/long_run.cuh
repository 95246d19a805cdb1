/* Long runs of a scatter-add, which a block adds in the order of the index list. order.cuh has those of a warp. */
#pragma once

#include "cuda/index/order.cuh"

constexpr int TL_LONG_THREADS = 256, TL_LONG_WARPS = TL_LONG_THREADS / 32, TL_LONG_HITS = 32; /* hits of a thread */
/* Of so many rounds each must settle so many threads, or the rest is added one after the other: on an H200 a round takes 1,800 cycles, and
 * a thread's values 130 to 260. Chains hardly move in the first few rounds, and most have settled after eight. */
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

/* What some neighbouring hits do to a sum, of an even and of an odd place: how much they add, and whether it ends on an odd place
 * (bit 0 for an even start, bit 1 for an odd one). */
struct tl_shift {
    double even, odd;
    uint32_t ends;
};

__device__ __forceinline__ tl_shift tl_shift_then(const tl_shift &a, const tl_shift &b)
{
    return {a.even + (a.ends & 1 ? b.odd : b.even), a.odd + (a.ends & 2 ? b.odd : b.even),
            (b.ends >> (a.ends & 1) & 1) | (b.ends >> (a.ends >> 1) & 1) << 1};
}

struct tl_long_room {
    struct {
        double even[TL_LONG_WARPS], odd[TL_LONG_WARPS];
        uint32_t ends[TL_LONG_WARPS];
        uint32_t start[TL_LONG_WARPS], end[TL_LONG_WARPS]; /* of the warp's first and last thread, as bits */
        uint32_t wrong[TL_LONG_WARPS]; /* its first thread that starts elsewhere than the one before ends */
    } round[2];
    float total[TL_LONG_WARPS], sum, end;
};

/* s + the TL_LONG_HITS values of thread 0 + ... + those of thread `done` - 1, one after the other, with the bits of that chain. All
 * threads get it; mostly they are done, too.
 *
 * Every thread guesses where the chain enters its values, and adds them for good. Where every guess is the bits with which the
 * thread before ends, by induction from thread 0, whose guess is s, the ends are those of the chain. Else the next guesses follow
 * from what the threads' values add to a sum: that hardly depends on the start but for the parity of its significand (ties round to
 * even), so every thread adds its values to an even and to an odd neighbour of its guess, which is one of the two. Guesses settle
 * in a few rounds, and in a round for every thread at the latest: a sum that often crosses powers of two is rounded otherwise than
 * guessed there. Where rounds have cost more than the additions that they are for, the rest is left. */
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
    float start = threadIdx.x ? s + (earlier + before) : s;

    for (uint32_t round = 0, settled = 0;; round++) {
        auto &shared = room.round[round % 2];
        const uint32_t place = tl_place_of(start);
        const float even = tl_float_at(place & ~1u), odd = tl_float_at(place | 1u);
        float from_even = even, from_odd = odd;
        TL_UNROLL_FOR (int i = 0; i < TL_LONG_HITS; i++) {
            from_even += v[i];
            from_odd += v[i];
        }
        const uint32_t end = __float_as_uint(place & 1 ? from_odd : from_even);
        const uint32_t end_before = __shfl_up_sync(~0u, end, 1);
        const uint32_t wrong = __ballot_sync(~0u, lane > 0 && end_before != __float_as_uint(start));
        tl_shift shift = {(double)from_even - even, (double)from_odd - odd,
                          (tl_place_of(from_even) & 1) | (tl_place_of(from_odd) & 1) << 1};
        TL_UNROLL_FOR (int d = 1; d < 32; d *= 2) {
            const tl_shift earlier = {__shfl_up_sync(~0u, shift.even, d), __shfl_up_sync(~0u, shift.odd, d),
                                      __shfl_up_sync(~0u, shift.ends, d)};
            if (lane >= d) shift = tl_shift_then(earlier, shift);
        }
        if (lane == 0) {
            shared.start[warp] = __float_as_uint(start);
            shared.wrong[warp] = wrong ? __ffs((int)wrong) - 1 : 32;
        }
        if (lane == 31) {
            shared.even[warp] = shift.even, shared.odd[warp] = shift.odd, shared.ends[warp] = shift.ends;
            shared.end[warp] = end;
        }
        __syncthreads();
        done = TL_LONG_THREADS; /* threads that start where the chain does, all before the first that does not */
        TL_UNROLL_FOR (uint32_t w = TL_LONG_WARPS; w-- > 0;) {
            if (shared.wrong[w] < 32) done = w * 32 + shared.wrong[w];
            if (w > 0 && shared.start[w] != shared.end[w - 1]) done = w * 32;
        }
        if (done == TL_LONG_THREADS) return __uint_as_float(shared.end[TL_LONG_WARPS - 1]);
        const bool look = round % TL_LONG_ROUNDS == TL_LONG_ROUNDS - 1;
        if (look && done < settled + TL_LONG_ROUNDS * TL_LONG_ADVANCE) {
            /* Thread done - 1 is the last whose start holds, hence its end. */
            if (threadIdx.x == done - 1) room.sum = __uint_as_float(end);
            __syncthreads();
            return room.sum;
        }
        if (look) settled = done;
        double moved = 0.0;
        uint32_t parity = tl_place_of(s) & 1;
        TL_UNROLL_FOR (uint32_t w = 0; w + 1 < TL_LONG_WARPS; w++) {
            const double more = parity ? shared.odd[w] : shared.even[w];
            const uint32_t then = shared.ends[w] >> parity & 1;
            if (w < warp) moved += more, parity = then;
        }
        const double inside = __shfl_up_sync(~0u, parity ? shift.odd : shift.even, 1);
        const float next = (float)(s + (moved + (lane ? inside : 0.0)));
        /* A thread that is right stays so, and the next one starts at its end, whatever the sums of shifts say. */
        const float exact = __uint_as_float(lane ? end_before : warp ? shared.end[warp - 1] : __float_as_uint(s));
        start = threadIdx.x <= done ? exact : next;
    }
}

/* The same of all threads. What is left the threads add in turns. */
__device__ __forceinline__ float tl_add_block(float s, const float (&v)[TL_LONG_HITS], tl_long_room &room)
{
    uint32_t done;
    s = tl_guess_block(s, v, room, done);
    if (done == TL_LONG_THREADS) return s;
    for (; done < TL_LONG_THREADS; done++) {
        __syncthreads();
        if (threadIdx.x == done) {
            float sum = room.sum;
            TL_UNROLL_FOR (int i = 0; i < TL_LONG_HITS; i++)
                sum += v[i];
            room.sum = sum;
        }
    }
    __syncthreads();
    return room.sum;
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

/* s + the first `count` values of a stage, one after the other; all threads get it. Those behind them are -0. What is left of the
 * chain warp 0 adds, at the latency of an addition each, while it reads the next values. */
__device__ __forceinline__ float tl_add_values(float s, tl_long_values &stage, uint32_t count, tl_long_room &room)
{
    uint32_t done;
    {
        float v[TL_LONG_HITS];
        TL_UNROLL_FOR (int q = 0; q < TL_LONG_HITS / 4; q++)
            tl_unpack4(stage.quads[threadIdx.x][q], v + 4 * q);
        s = tl_guess_block(s, v, room, done);
    }
    if (done * TL_LONG_HITS >= count) return s;
    if (threadIdx.x < 32) {
        constexpr uint32_t QUADS = 4, PARTS = TL_LONG_HITS / (4 * QUADS);
        const uint32_t parts = (count + 4 * QUADS - 1) / (4 * QUADS);
        const auto read = [&](uint32_t part, float4(&quads)[QUADS]) {
            TL_UNROLL_FOR (uint32_t q = 0; q < QUADS; q++)
                quads[q] = stage.quads[part / PARTS][part % PARTS * QUADS + q];
        };
        float4 now[QUADS];
        read(done * PARTS, now);
        for (uint32_t part = done * PARTS; part < parts; part++) {
            float4 after[QUADS];
            read(min(part + 1, parts - 1), after);
            TL_UNROLL_FOR (uint32_t q = 0; q < QUADS; q++) {
                s += now[q].x;
                s += now[q].y;
                s += now[q].z;
                s += now[q].w;
                now[q] = after[q];
            }
        }
        if (threadIdx.x == 0) room.end = s;
    }
    __syncthreads();
    return room.end;
}

/* sum + the hits first .. end-1 of a column, in their order; all threads get it. Thread t owns TL_LONG_HITS neighbouring hits of
 * each chunk, which begins at a multiple of four; hits outside the run are -0, which changes no sum. The values of the chunk behind
 * are on their way meanwhile. */
__device__ __forceinline__ float tl_add_long_run(const tl_hits &h, uint32_t first, uint32_t end, uint32_t col,
                                                 float sum, tl_long_room &room)
{
    constexpr int64_t CHUNK = TL_LONG_THREADS * TL_LONG_HITS;
    const int64_t from = first & ~3u;
    float next[TL_LONG_HITS];
    const auto fetch = [&](int64_t chunk) {
        const int64_t at = chunk + (int64_t)threadIdx.x * TL_LONG_HITS;
        uint32_t words[TL_LONG_HITS];
        tl_load_words(h, at, end, words);
        tl_load_values(h, at, first, end, col, words, next);
    };
    fetch(from);
    for (int64_t chunk = from; chunk < end; chunk += CHUNK) {
        float v[TL_LONG_HITS];
        tl_take_values(chunk + (int64_t)threadIdx.x * TL_LONG_HITS, first, end, next, v);
        if (chunk + CHUNK < end) fetch(chunk + CHUNK);
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
