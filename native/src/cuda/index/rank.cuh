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
 * lanes of a kind follow from one vote for each bit of it. */
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

/* Of fewer kinds votes cost less than atomic operations: of 128 kinds 32 hits have three or four kinds with more than one hit, each of
 * which takes as many instructions as two or three bits. */
constexpr uint32_t TL_VOTED_KINDS = 128;

/* The same of all items, with an atomic operation for each. Of many kinds mostly one lane of an item is of a kind, and has before it
 * what was counted before. Where a lane was not the first of its kind to be counted, several are, which were counted in any order: a
 * vote for each such kind finds them. No item waits for the one before, as the counts that votes make in turn do. */
template <int ITEMS, class Kind>
__device__ __forceinline__ void tl_count_hits(uint16_t *of_warp, uint32_t kinds, Kind kind_of, uint32_t (&rank)[ITEMS])
{
    static_assert(ITEMS % 4 == 0);
    const uint32_t lane = threadIdx.x % 32, below = (1u << lane) - 1;
    if (kinds <= TL_VOTED_KINDS) {
        tl_rank_hits(of_warp, kinds, kind_of, ITEMS, rank);
        return;
    }
    uint32_t *const words = reinterpret_cast<uint32_t *>(of_warp); /* of two kinds each */
    TL_UNROLL_FOR (int first = 0; first < ITEMS; first += 4) {
        uint32_t before[4], then[4]; /* the four are on their way together */
        TL_UNROLL_FOR (int u = 0; u < 4; u++) {
            const uint32_t kind = kind_of(first + u);
            before[u] = words[kind / 2];
            __syncwarp();
            then[u] = atomicAdd(words + kind / 2, kind % 2 ? 1u << 16 : 1u);
            __syncwarp();
        }
        TL_UNROLL_FOR (int u = 0; u < 4; u++) {
            const uint32_t kind = kind_of(first + u), of_kind = kind % 2 ? ~0u << 16 : UINT16_MAX;
            const uint32_t counted = kind % 2 ? before[u] >> 16 : before[u] & UINT16_MAX;
            rank[first + u] = counted;
            uint32_t late = __ballot_sync(~0u, ((then[u] ^ before[u]) & of_kind) != 0);
            while (late) {
                const uint32_t same = __ballot_sync(~0u, kind == __shfl_sync(~0u, kind, 31 - __clz((int)late)));
                if (same >> lane & 1) rank[first + u] = counted + __popc(same & below);
                late &= ~same;
            }
        }
    }
}

/* Of every kind: first[kind] is where its hits begin among those of all, first[kinds] where the last ends, and the hits of each warp
 * become where its own begin. A thread has four kinds, of which two share a word; there are 4·TL_LONG_THREADS at most. All threads
 * have counted theirs. */
__device__ __forceinline__ void tl_place_kinds(uint16_t *tallies, uint32_t kinds, uint32_t *first, uint32_t *of_warps)
{
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, kind = 4 * threadIdx.x;
    const uint32_t stride = tl_tally_stride(kinds) / 4;
    uint2 *const mine = reinterpret_cast<uint2 *>(tallies) + threadIdx.x;
    uint2 sum = make_uint2(0, 0);
    if (kind < kinds) {
        TL_UNROLL_FOR (uint32_t w = 0; w < TL_LONG_WARPS; w++)
            sum.x += mine[w * stride].x, sum.y += mine[w * stride].y;
    }
    const uint32_t hits[4] = {sum.x & UINT16_MAX, sum.x >> 16, sum.y & UINT16_MAX, sum.y >> 16};
    const uint32_t all = hits[0] + hits[1] + hits[2] + hits[3];
    uint32_t end = tl_sum_to_lane(all, lane);
    if (lane == 31) of_warps[warp] = end;
    __syncthreads();
    TL_UNROLL_FOR (uint32_t w = 0; w + 1 < TL_LONG_WARPS; w++)
        if (w < warp) end += of_warps[w];
    if (kind < kinds) {
        uint32_t at[4] = {end - all};
        TL_UNROLL_FOR (uint32_t i = 1; i < 4; i++)
            at[i] = at[i - 1] + hits[i - 1];
        TL_UNROLL_FOR (uint32_t i = 0; i < 4; i++)
            if (kind + i < kinds) first[kind + i] = at[i];
        uint2 begin = make_uint2(at[0] | at[1] << 16, at[2] | at[3] << 16);
        TL_UNROLL_FOR (uint32_t w = 0; w < TL_LONG_WARPS; w++) {
            const uint2 of_this = mine[w * stride];
            mine[w * stride] = begin;
            begin.x += of_this.x, begin.y += of_this.y;
        }
    }
    if (threadIdx.x == TL_LONG_THREADS - 1) first[kinds] = end;
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
