/* Where each hit of a block goes when its hits are put in order of kinds (buckets, or places), stably and in one step: behind those of
 * smaller kinds, of its own kind behind those of earlier warps, and behind those before it in its warp. A block has TL_LONG_THREADS
 * threads. */
#pragma once

#include "cuda/device/unroll.cuh"
#include "cuda/device/warp_sum.cuh"
#include "cuda/index/long_run.cuh"

/* How many hits of every kind (bucket, or place) each warp has had. A warp's are padded to 16 bytes. */
__host__ __device__ __forceinline__ uint32_t tl_tally_stride(uint32_t kinds) { return (kinds + 7) / 8 * 8; }

__device__ __forceinline__ void tl_clear_tallies(uint16_t *tallies, uint32_t kinds)
{
    uint4 *const words = reinterpret_cast<uint4 *>(tallies);
    static_assert(TL_LONG_WARPS * sizeof(uint16_t) == sizeof(uint4));
    for (uint32_t i = threadIdx.x; i < tl_tally_stride(kinds); i += TL_LONG_THREADS)
        words[i] = make_uint4(0, 0, 0, 0);
}

/* Counts the warp's hits, and gives out how many of its kind each has before it: those of items before, then of lower lanes. The
 * lane's item i is of kind kind_of(i), below `kinds`. Items from `rounds` on, the same in the warp, are left out, four at a time. The
 * lanes of a kind follow from one vote for each bit of it, which costs a fraction of an atomic operation on shared memory with as
 * many bank conflicts as lanes of random kinds have. */
template <int ITEMS, class Kind>
__device__ __forceinline__ void tl_rank_hits(uint16_t *of_warp, uint32_t kinds, Kind kind_of, uint32_t rounds,
                                             uint32_t (&rank)[ITEMS])
{
    static_assert(ITEMS % 4 == 0);
    const uint32_t lane = threadIdx.x % 32, below = (1u << lane) - 1;
    TL_UNROLL_FOR (int i = 0; i < ITEMS; i++)
        rank[i] = ~0u; /* first, the lanes of the kind */
    for (uint32_t bit = 1; bit < kinds; bit *= 2) {
        TL_UNROLL_FOR (int i = 0; i < ITEMS; i++) {
            if (i % 4 == 0 && i >= rounds) break;
            const bool set = kind_of(i) & bit;
            const uint32_t with = __ballot_sync(~0u, set);
            rank[i] &= set ? with : ~with;
        }
    }
    TL_UNROLL_FOR (int i = 0; i < ITEMS; i++) {
        if (i % 4 == 0 && i >= rounds) break;
        const uint32_t peers = rank[i], before = of_warp[kind_of(i)];
        __syncwarp();
        if (peers >> lane == 1) of_warp[kind_of(i)] = (uint16_t)(before + __popc(peers));
        __syncwarp();
        rank[i] = before + __popc(peers & below);
    }
}

/* first[i] becomes the sum of those before, for i <= count, where count is at most 4·TL_LONG_THREADS. All threads have written theirs. */
__device__ __forceinline__ void tl_sum_before(uint32_t *first, uint32_t count, uint32_t *of_warps)
{
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    __syncthreads();
    uint32_t v[4], sum = 0;
    TL_UNROLL_FOR (uint32_t i = 0; i < 4; i++) {
        v[i] = 4 * threadIdx.x + i < count ? first[4 * threadIdx.x + i] : 0;
        sum += v[i];
    }
    uint32_t end = tl_sum_to_lane(sum, lane);
    if (lane == 31) of_warps[warp] = end;
    __syncthreads();
    TL_UNROLL_FOR (uint32_t w = 0; w + 1 < TL_LONG_WARPS; w++)
        if (w < warp) end += of_warps[w];
    uint32_t at = end - sum;
    TL_UNROLL_FOR (uint32_t i = 0; i < 4; i++) {
        if (4 * threadIdx.x + i < count) first[4 * threadIdx.x + i] = at;
        at += v[i];
    }
    if (threadIdx.x == TL_LONG_THREADS - 1) first[count] = end;
    __syncthreads();
}

/* Of every kind: first[kind] is where its hits begin among those of all, and the hits of each warp become where its own begin. A
 * thread has two kinds at a time, whose counts share a word. */
__device__ __forceinline__ void tl_place_kinds(uint16_t *tallies, uint32_t kinds, uint32_t *first, uint32_t *of_warps)
{
    uint32_t *const words = reinterpret_cast<uint32_t *>(tallies);
    const uint32_t stride = tl_tally_stride(kinds) / 2;
    for (uint32_t pair = threadIdx.x; 2 * pair < kinds; pair += TL_LONG_THREADS) {
        uint32_t sum = 0;
        TL_UNROLL_FOR (uint32_t w = 0; w < TL_LONG_WARPS; w++)
            sum += words[w * stride + pair];
        first[2 * pair] = sum & UINT16_MAX;
        if (2 * pair + 1 < kinds) first[2 * pair + 1] = sum >> 16;
    }
    tl_sum_before(first, kinds, of_warps);
    for (uint32_t pair = threadIdx.x; 2 * pair < kinds; pair += TL_LONG_THREADS) {
        uint32_t hits[TL_LONG_WARPS], at = first[2 * pair] | first[2 * pair + 1] << 16;
        TL_UNROLL_FOR (uint32_t w = 0; w < TL_LONG_WARPS; w++)
            hits[w] = words[w * stride + pair];
        TL_UNROLL_FOR (uint32_t w = 0; w < TL_LONG_WARPS; w++) {
            words[w * stride + pair] = at;
            at += hits[w];
        }
    }
    __syncthreads();
}

/* Most bits by which hits are put in order at a time, and the room for it. */
constexpr uint32_t TL_PLACED_BITS = 7;
struct tl_placing {
    uint4 tallies[TL_LONG_WARPS * ((1u << TL_PLACED_BITS) + 8) * sizeof(uint16_t) / sizeof(uint4)];
    uint32_t first[(1u << TL_PLACED_BITS) + 2], of_warps[TL_LONG_WARPS];
};

/* Puts words in order of `bits` of their bits from `shift` on, stably, into the list: `rounds` words of each lane, of which a warp's
 * lie one behind the other. Those that are UINT32_MAX are no hits. */
template <int ITEMS>
__device__ __forceinline__ void tl_place_hits(uint32_t *list, tl_placing &room, const uint32_t (&word)[ITEMS],
                                              uint32_t rounds, uint32_t shift, uint32_t bits)
{
    const uint32_t kinds = (1u << bits) + 1, none = kinds - 1;
    uint16_t *const tallies = reinterpret_cast<uint16_t *>(room.tallies);
    uint16_t *const of_warp = tallies + threadIdx.x / 32 * tl_tally_stride(kinds);
    const auto kind_of = [&](int i) { return word[i] == UINT32_MAX ? none : word[i] >> shift & (none - 1); };
    uint32_t rank[ITEMS];
    tl_clear_tallies(tallies, kinds);
    __syncthreads();
    tl_rank_hits(of_warp, kinds, kind_of, rounds, rank);
    __syncthreads();
    tl_place_kinds(tallies, kinds, room.first, room.of_warps);
    TL_UNROLL_FOR (int i = 0; i < ITEMS; i++)
        if (i < rounds && word[i] != UINT32_MAX) list[of_warp[kind_of(i)] + rank[i]] = word[i];
    __syncthreads();
}

/* A lane's words of the first `hits` of a list, of which a warp has neighbours; UINT32_MAX behind the last. Gives out the rounds. */
template <int ITEMS>
__device__ __forceinline__ uint32_t tl_take_words(const uint32_t *list, uint32_t hits, uint32_t (&word)[ITEMS])
{
    const uint32_t rounds = (hits + TL_LONG_THREADS - 1) / TL_LONG_THREADS;
    const uint32_t from = threadIdx.x / 32 * 32 * rounds + threadIdx.x % 32;
    TL_UNROLL_FOR (int i = 0; i < ITEMS; i++)
        word[i] = i < rounds && from + i * 32 < hits ? list[from + i * 32] : UINT32_MAX;
    return rounds;
}
