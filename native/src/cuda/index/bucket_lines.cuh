/* The second launch of a scatter-add into many rows whose hits were dealt to buckets (scatter_bucket.cu): nothing is put in order of
 * rows; a block deals the hits of a window to its warps by row, and a warp adds them as they come to the sums. */
#pragma once

#include "cuda/device/async_copy.cuh"
#include "cuda/device/division.cuh"
#include "cuda/device/instructions.cuh"
#include "cuda/device/unroll.cuh"
#include "cuda/device/vector.cuh"
#include "cuda/device/warp_sum.cuh"
#include "cuda/index/bucket.cuh"
#include "cuda/index/long_run.cuh"
#include "cuda/runtime/launch.cuh"

namespace tl_buckets {

constexpr int LINES_ADDING = 4, FAR_ADDING = 3; /* blocks of a multiprocessor */
/* Of so many lines that a multiprocessor does not hold as many, and some wait for others anyway: then more registers are worth more. */
constexpr int LARGE_ADDING = 3;
/* Hits of one place in a warp, besides its first, of more than which a lane looks at all 32 instead of one after the other. */
constexpr int FEW_TOGETHER = 2;

/* ---- owners --------------------------------------------------------------------------------------------------------- */

/* A warp for every owner among the rows of a block. */
constexpr uint32_t OWNER_BITS = 3, OWNERS = 1 << OWNER_BITS;
static_assert(OWNERS == WARPS);
/* Place and rank of a hit among the warp's hits of its owner share a word: of the last rank there is none. */
constexpr uint32_t RANK_AT = 22, LAST_RANK = UINT32_MAX >> RANK_AT;
static_assert(WINDOW_ITEMS * 32 <= LAST_RANK);

/* The lanes whose word has a bit. (A compiler that sees the comparison makes three instructions of it.) */
template <uint32_t BIT> __device__ __forceinline__ uint32_t lanes_with(uint32_t word)
{
#ifdef __CUDA_ARCH__
    uint32_t lanes;
    asm volatile(
        "{ .reg .pred p; .reg .b32 t; and.b32 t, %1, %2; setp.ne.u32 p, t, 0; vote.sync.ballot.b32 %0, p, -1; }"
        : "=r"(lanes)
        : "r"(word), "n"(BIT));
    return lanes;
#else
    return __ballot_sync(~0u, word & BIT);
#endif
}

/* The hits of a window on their way to the warps that own their rows. */
struct dealt_window : window {
    /* Finds how many hits of its owner the warp has before each hit; every lane gives out those of owner lane % OWNERS. `is_own`
     * makes of the place what the owner needs, below 1 << RANK_AT, and says whether it is the block's; owner_of(place) is the owner,
     * modulo OWNERS. The lanes of an owner follow from a vote for each bit of its number, and are found in a lane that stands for
     * it. Other hits are NONE then. */
    template <class Own, class Owner> __device__ __forceinline__ uint32_t rank(Own is_own, Owner owner_of)
    {
        const uint32_t lane = threadIdx.x % 32, below = (1u << lane) - 1;
        uint32_t other[OWNER_BITS], total = 0; /* `other` has all bits where the lane's number does not have this one */
        TL_UNROLL_FOR (uint32_t b = 0; b < OWNER_BITS; b++)
            other[b] = (lane >> b & 1) - 1;
        TL_UNROLL_FOR (uint32_t i = 0; i < WINDOW_ITEMS; i++) {
            if (i % 4 == 0 && i >= rounds) break;
            const bool here = is_own(place[i]);
            const uint32_t owner = owner_of(place[i]);
            uint32_t own = __ballot_sync(~0u, here);
            own &= lanes_with<1>(owner) ^ other[0];
            own &= lanes_with<2>(owner) ^ other[1];
            own &= lanes_with<4>(owner) ^ other[2];
            const uint32_t peers = __shfl_sync(~0u, own, (int)owner), before = __shfl_sync(~0u, total, (int)owner);
            place[i] = here ? place[i] + ((before + __popc(peers & below)) << RANK_AT) : NONE;
            total += __popc(own);
        }
        return total;
    }
    __device__ __forceinline__ bool has(uint32_t i) const { return place[i] < LAST_RANK << RANK_AT; }
    __device__ __forceinline__ uint32_t place_of(uint32_t i) const { return place[i] & ((1u << RANK_AT) - 1); }
    /* Where it goes, if there is one. `begin` is of place_owners, and `lane` one that is the owner's, modulo OWNERS. */
    __device__ __forceinline__ uint32_t to(uint32_t i, uint32_t begin, uint32_t lane) const
    {
        return __shfl_sync(~0u, begin, (int)lane) + (place[i] >> RANK_AT);
    }
};

/* Where the hits of owner lane % OWNERS of this warp begin, when those of an owner lie one behind the other, and the bounds of those of
 * the warp's own rows. The lanes have `total` hits of these owners. With a barrier. */
__device__ __forceinline__ uint32_t place_owners(uint32_t total, uint32_t (&counts)[WARPS][OWNERS], uint32_t &begin,
                                                 uint32_t &end)
{
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, owner = lane % OWNERS;
    if (lane < OWNERS) counts[warp][lane] = total;
    __syncthreads();
    /* Those of all warps, and in the upper half of the warps before. */
    static_assert(WARPS == 8 && OWNERS == 8 && WINDOW <= UINT16_MAX);
    uint32_t sum = 0;
    TL_UNROLL_FOR (uint32_t u = 0; u < 2; u++) {
        const uint32_t w = lane / OWNERS * 2 + u, hits = counts[w][owner];
        sum += hits | (w < warp ? hits << 16 : 0);
    }
    sum += __shfl_xor_sync(~0u, sum, 8);
    sum += __shfl_xor_sync(~0u, sum, 16);
    const uint32_t of_owner = sum & UINT16_MAX;
    uint32_t stop = of_owner;
    TL_UNROLL_FOR (uint32_t d = 1; d < OWNERS; d *= 2) {
        const uint32_t earlier = __shfl_up_sync(~0u, stop, d);
        if (owner >= d) stop += earlier;
    }
    begin = __shfl_sync(~0u, stop - of_owner, (int)warp), end = __shfl_sync(~0u, stop, (int)warp);
    return stop - of_owner + (sum >> 16);
}

/* ---- sums ------------------------------------------------------------------------------------------------------------ */

/* Starts copying the block's rows of the base to `sums`; without one the sums start from +0. Rows of the last line that are not there
 * stay as they are. */
__device__ __forceinline__ void load_lines(const buckets &s, uint32_t bucket, uint32_t first_place, float *sums)
{
    if (!s.base) {
        for (uint32_t p = 4 * threadIdx.x; p < s.places; p += 4 * THREADS)
            tl_store4(sums + p, make_float4(0.0f, 0.0f, 0.0f, 0.0f));
        return;
    }
    for (uint32_t p = 4 * threadIdx.x; p < s.places; p += 4 * THREADS) {
        const uint32_t row = s.row_at(first_place + p, bucket);
        if (s.aligned && row + 3 < s.rows) {
            tl_copy_async<16>(sums + p, s.base + row, true);
        } else {
            TL_UNROLL_FOR (uint32_t i = 0; i < 4; i++)
                if (row + i < s.rows) tl_copy_async<4>(sums + p + i, s.base + row + i, true);
        }
    }
    tl_copy_commit();
}

/* sum + the values of the lanes in `left`, in order of lanes. All lanes must call, and one must have some. */
__device__ __forceinline__ float add_left(float sum, uint32_t left, float value)
{
    if (__any_sync(~0u, __popc(left) > FEW_TOGETHER)) {
        TL_UNROLL_FOR (int i = 0; i < 32; i += 8) {
            float v[8]; /* -0 changes no sum */
            TL_UNROLL_FOR (int u = 0; u < 8; u++) {
                v[u] = __shfl_sync(~0u, value, i + u);
                v[u] = left >> (i + u) & 1 ? v[u] : -0.0f;
            }
            TL_UNROLL_FOR (int u = 0; u < 8; u++)
                sum += v[u];
        }
        return sum;
    }
    do {
        const float v = __shfl_sync(~0u, value, __ffs((int)left) - 1); /* of any lane where none is left */
        if (left) sum += v;
        left &= left - 1;
    } while (__any_sync(~0u, left != 0));
    return sum;
}

/* The warp adds a value for each lane that has a row, those of one row in order of lanes, to the sums. `together` has the lanes of
 * the same row. */
__device__ __forceinline__ void add_lanes(float *sums, uint32_t row, uint32_t together, float value)
{
    const uint32_t lane = threadIdx.x % 32, below = (1u << lane) - 1;
    const bool adds = row != NONE && (together & below) == 0;
    float sum = adds ? sums[row] + value : 0.0f; /* the first of the row has all of its sum */
    const uint32_t left = adds ? together & (together - 1) : 0;
    if (__any_sync(~0u, left != 0)) sum = add_left(sum, left, value);
    if (adds) sums[row] = sum;
    __syncwarp();
}

/* The same for all lanes, each of which has the word of a sum in shared memory. Which lanes have one row is found in the place of its
 * sum: each leaves its bit there, one of which remains, and where all find their own, nobody shares a row. */
__device__ __forceinline__ void add_near_lanes(uint32_t *word, float value)
{
    const uint32_t lane = threadIdx.x % 32, self = 1u << lane;
    float sum = __uint_as_float(*word) + value;
    __syncwarp();
    *word = self;
    __syncwarp();
    const bool lost = *word != self;
    bool adds = true;
    if (__any_sync(~0u, lost)) {
        if (lost) atomicOr(word, self);
        __syncwarp();
        const uint32_t together = *word;
        adds = (together & (self - 1)) == 0;
        sum = add_left(sum, adds ? together & (together - 1) : 0, value);
    }
    __syncwarp();
    if (adds) *word = __float_as_uint(sum);
    __syncwarp();
}

/* ---- lines ----------------------------------------------------------------------------------------------------------- */

/* The first blocks have a heavy row each, those behind them own a part of a bucket: s.places of its rows, whose sums are in shared
 * memory meanwhile. A warp owns every OWNERS-th place, in each 32 of them one further, so that its sums are in all banks. */
template <int ADDING> __global__ void __launch_bounds__(THREADS, ADDING) add_lines_kernel(buckets s)
{
    TL_DYNAMIC_SHARED(float,
                      sums); /* s.places of them, then the hits of a window: value and place; or the stage and pieces of
                                       a heavy row */
    __shared__ window_marks marks;
    __shared__ uint32_t counts[WARPS][OWNERS], of_warps[2 * WARPS];
    __shared__ float spare[THREADS]; /* what lanes add to that have no hit */
    __shared__ tl_long_room heavy_room;
    __shared__ heavy_places heavy;
    float *const values = sums + s.places;
    uint16_t *const places = reinterpret_cast<uint16_t *>(values + WINDOW);
    /* Pieces have the room of the values, and are listed again for every window. */
    static_assert(sizeof(window_pieces) <= WINDOW * sizeof(float));
    window_pieces &pieces = *reinterpret_cast<window_pieces *>(values);
    tl_wait_for_earlier(TL_BESIDE);
    const uint32_t lane = threadIdx.x % 32;
    if (blockIdx.x < s.heavies) {
        tl_wait_at_end(TL_BESIDE);
        piece_list &list = *reinterpret_cast<piece_list *>(sums + sizeof(tl_long_values) / sizeof(float));
        add_lone_row(s, list, of_warps, *reinterpret_cast<tl_long_values *>(sums), heavy_room);
        return;
    }
    uint32_t bucket;
    const uint32_t first_place = s.count.divmod(blockIdx.x - s.heavies, &bucket) * s.places;
    const auto owner_of = [](uint32_t place) { return place + place / 32; }; /* modulo OWNERS */
    spare[threadIdx.x] = 0.0f;
    load_lines(s, bucket, first_place, sums);
    tl_wait_at_end(TL_BESIDE); /* from here on for the hits */
    for (uint32_t chunk = 0, from = 0; chunk < s.chunks;) {
        const uint32_t hits = list_window(s, bucket, chunk, from, pieces.at, marks, of_warps);
        __syncthreads();
        dealt_window w;
        w.load_marked(s.hits, pieces.at, marks, min(hits - from, WINDOW), NONE);
        if (chunk + from == 0) heavy.list(s, bucket); /* while the hits are on their way */
        /* Of other parts, and NONE: not below s.places. */
        const auto is_own = [&](uint32_t &place) { return (place -= first_place) < s.places; };
        const uint32_t total = w.rank(is_own, owner_of);
        tl_copy_wait<0>(); /* the barriers below let all see them */
        uint32_t at, end;
        const uint32_t begin = place_owners(total, counts, at, end);
        TL_UNROLL_FOR (uint32_t i = 0; i < WINDOW_ITEMS; i++) {
            if (i % 4 == 0 && i >= w.rounds) break;
            const uint32_t to = w.to(i, begin, owner_of(w.place[i]));
            if (!w.has(i)) continue;
            places[to] = (uint16_t)w.place_of(i), values[to] = __uint_as_float(w.value[i]);
        }
        __syncthreads();
        /* The next are on their way while these are added. */
        uint32_t place = 0;
        float value = 0.0f;
        const auto take = [&](uint32_t hit) {
            if (hit < end) place = places[hit];
            value = hit < end ? values[hit] : 0.0f;
        };
        take(at += lane);
        for (; at - lane < end; at += 32) {
            float *const sum = at < end ? sums + place : spare + threadIdx.x;
            const float added = value;
            take(at + 32);
            add_near_lanes(reinterpret_cast<uint32_t *>(sum), added);
        }
        __syncthreads();
        from += WINDOW;
        if (from >= hits) from = 0, chunk += PIECES;
    }
    for (uint32_t p = 4 * threadIdx.x; p < s.places; p += 4 * THREADS) {
        const uint32_t place = first_place + p, row = s.row_at(place, bucket);
        if (s.aligned && row + 3 < s.rows && !heavy.hold(place, 4)) {
            tl_store4(s.out + row, tl_load4(sums + p));
        } else {
            TL_UNROLL_FOR (uint32_t i = 0; i < 4; i++)
                if (row + i < s.rows && !heavy.hold(place + i)) s.out[row + i] = sums[p + i];
        }
    }
}

/* The same where the output is the base already, and its rows are the sums. Warp w owns the places p with p % WARPS == w: the hits of
 * a window are dealt to the warps, which add 32 of them at a time. */
__global__ void __launch_bounds__(THREADS, FAR_ADDING) add_far_kernel(buckets s)
{
    TL_DYNAMIC_SHARED(
        uint4, room); /* the pieces of a window, then its hits, row and value; or the stage and pieces of a heavy row */
    __shared__ window_marks marks;
    __shared__ uint32_t counts[WARPS][OWNERS], of_warps[2 * WARPS];
    __shared__ tl_long_room heavy_room;
    uint2 *const dealt = reinterpret_cast<uint2 *>(room);
    window_pieces &pieces = *reinterpret_cast<window_pieces *>(room);
    tl_wait_for_earlier();
    const uint32_t lane = threadIdx.x % 32, count = s.count.divisor;
    if (blockIdx.x < s.heavies) {
        piece_list &list = *reinterpret_cast<piece_list *>(room + sizeof(tl_long_values) / sizeof(uint4));
        add_lone_row(s, list, of_warps, *reinterpret_cast<tl_long_values *>(room), heavy_room);
        return;
    }
    const uint32_t bucket = blockIdx.x - s.heavies;
    for (uint32_t chunk = 0; chunk < s.chunks; chunk += PIECES) {
        for (uint32_t from = 0, hits = 1; from < hits; from += WINDOW) {
            hits = list_window(s, bucket, chunk, from, pieces.at, marks, of_warps);
            __syncthreads();
            dealt_window w;
            w.load_marked(s.hits, pieces.at, marks, min(hits - from, WINDOW), NONE);
            TL_UNROLL_FOR (uint32_t i = 0; i < WINDOW_ITEMS; i++)
                if (w.place[i] != NONE) tl_fetch_word_to_l2(s.out + w.place[i] * count + bucket);
            const auto owner_of = [](uint32_t place) { return place; }; /* modulo OWNERS */
            const uint32_t total = w.rank([](uint32_t place) { return place != NONE; }, owner_of);
            uint32_t at, end;
            const uint32_t begin = place_owners(total, counts, at, end);
            TL_UNROLL_FOR (uint32_t i = 0; i < WINDOW_ITEMS; i++) {
                if (i % 4 == 0 && i >= w.rounds) break;
                const uint32_t to = w.to(i, begin, owner_of(w.place[i]));
                if (w.has(i)) dealt[to] = make_uint2(w.place_of(i) * count + bucket, w.value[i]);
            }
            __syncthreads();
            /* The lanes of equal rows are found while those before are still added. */
            const auto hit_at = [&](uint32_t from_hit) {
                return from_hit + lane < end ? dealt[from_hit + lane] : make_uint2(NONE, 0);
            };
            uint2 hit = hit_at(at);
            uint32_t together = __match_any_sync(~0u, hit.x);
            for (; at < end; at += 32) {
                const uint2 next = hit_at(at + 32);
                const uint32_t then = __match_any_sync(~0u, next.x);
                add_lanes(s.out, hit.x, together, __uint_as_float(hit.y));
                hit = next, together = then;
            }
            __syncthreads();
        }
    }
}

} /* namespace tl_buckets */
