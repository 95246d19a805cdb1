/* The hits of a bucket of rows of a scatter-add into a vector, which lie in pieces of chunks of the index list (scatter_bucket.cu): a
 * list of the pieces, windows of the hits, and the row that has most of them. */
#pragma once

#include "cuda/device/division.cuh"
#include "cuda/device/warp_sum.cuh"
#include "cuda/index/long_run.cuh"

#include <type_traits>

namespace tl_buckets {

constexpr int THREADS = TL_LONG_THREADS, WARPS = TL_LONG_WARPS;
/* Bits of a bucket, and of a row in its bucket. */
constexpr uint32_t FIELD = 10;
/* Places are rows of a bucket. One more bucket, or place, is for what is not to be added. */
constexpr uint32_t KINDS = 1 << FIELD, MOST_BUCKETS = KINDS - 1, MOST_PLACES = KINDS - 1;
constexpr uint32_t PIECES = 4 * THREADS; /* of a bucket, from as many chunks, that are listed at a time */
constexpr int WINDOW_ITEMS = 20;         /* hits of a thread in a window of a bucket */
constexpr uint32_t WINDOW = WINDOW_ITEMS * THREADS;
constexpr uint32_t SAMPLES = 2048, AT_ONCE = 8, NONE = UINT32_MAX;
constexpr uint32_t LEAST_LOADED = 1024; /* places of a stage for which no further window of a bucket is loaded */
static_assert(KINDS == 4 * THREADS);
static_assert(SAMPLES == THREADS * AT_ONCE && WINDOW_ITEMS <= 32 && LEAST_LOADED > 0);
static_assert(WINDOW <= UINT16_MAX);

/* A scatter-add. */
struct buckets {
    const float *base; /* NULL for a sum that starts from +0 */
    const float *values;
    float *out;
    const uint32_t *indices;
    uint32_t rows, k;
    uint32_t chunks, span; /* of the list, and indices of a chunk */
    tl_fastdiv count;      /* buckets */
    tl_fastdiv cols;       /* of a row; of more than one, positions in the list are dealt in the place of values */
    uint32_t line_bits;    /* rows that stay side by side, 2^line_bits of them */
    uint32_t places;       /* that a block adds, a part of the bucket's; some are behind the last row */
    uint32_t parts;        /* of a bucket */
    bool aligned;          /* base and output, to 16 bytes */
    uint32_t crowd;        /* hits of a bucket, above which another block adds a row of it */
    uint32_t stride;       /* the chunks, rounded up to four */
    uint16_t *begins;      /* of every bucket, and behind the last, in every chunk: where its piece begins */
    uint2 *hits;           /* place and bits of the value, or position, by chunk, then bucket, then as in the list */

    __device__ __forceinline__ uint32_t place_of(uint32_t row, uint32_t *bucket) const
    {
        return count.divmod(row >> line_bits, bucket) << line_bits | (row & ((1u << line_bits) - 1));
    }
    __device__ __forceinline__ uint32_t row_at(uint32_t place, uint32_t bucket) const
    {
        return ((place >> line_bits) * count.divisor + bucket) << line_bits | (place & ((1u << line_bits) - 1));
    }
};

/* ---- pieces ---------------------------------------------------------------------------------------------------------- */

/* Pieces of a bucket that have hits: hit h of them, in the last piece with before[piece] <= h, is hits[at[piece] + h]. Those behind
 * the last have more before them than there are. */
struct piece_list {
    uint32_t before[PIECES + 32], at[PIECES];

    __device__ __forceinline__ uint32_t piece_of(uint32_t hit) const
    {
        uint32_t piece = 0;
        TL_UNROLL_FOR (uint32_t step = PIECES / 2; step; step /= 2)
            if (before[piece + step] <= hit) piece += step;
        return piece;
    }
};

/* Of four chunks: where the bucket's pieces begin, and their hits. */
__device__ __forceinline__ void load_pieces(const buckets &s, uint32_t bucket, uint32_t chunk, uint32_t (&begin)[4],
                                            uint32_t (&hits)[4])
{
    ushort4 from = make_ushort4(0, 0, 0, 0), to = from;
    if (chunk < s.chunks) {
        const uint16_t *const begins = s.begins + bucket * s.stride + chunk;
        from = *reinterpret_cast<const ushort4 *>(begins), to = *reinterpret_cast<const ushort4 *>(begins + s.stride);
    }
    begin[0] = from.x, begin[1] = from.y, begin[2] = from.z, begin[3] = from.w;
    hits[0] = to.x, hits[1] = to.y, hits[2] = to.z, hits[3] = to.w;
    TL_UNROLL_FOR (uint32_t i = 0; i < 4; i++)
        hits[i] = chunk + i < s.chunks ? hits[i] - begin[i] : 0;
}

/* Hits of a bucket in every `step`-th four chunks from `chunk` on. */
__device__ __forceinline__ uint32_t count_some(const buckets &s, uint32_t bucket, uint32_t chunk, uint32_t step)
{
    uint32_t sum = 0;
    for (; chunk < s.chunks; chunk += 4 * step) {
        uint32_t begin[4], hits[4];
        load_pieces(s, bucket, chunk, begin, hits);
        sum += hits[0] + hits[1] + hits[2] + hits[3];
    }
    return sum;
}

/* The warp counts the bucket's hits in all chunks. */
__device__ __forceinline__ uint32_t count_hits_in_warp(const buckets &s, uint32_t bucket)
{
    return __reduce_add_sync(~0u, count_some(s, bucket, 4 * (threadIdx.x % 32), 32));
}

/* The block does. */
__device__ __forceinline__ uint32_t count_hits(const buckets &s, uint32_t bucket, uint32_t *of_warps)
{
    uint32_t sum = __reduce_add_sync(~0u, count_some(s, bucket, 4 * threadIdx.x, THREADS));
    if (threadIdx.x % 32 == 31) of_warps[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0;
    TL_UNROLL_FOR (uint32_t w = 0; w < WARPS; w++)
        sum += of_warps[w];
    __syncthreads();
    return sum;
}

/* The block lists the bucket's pieces in PIECES chunks from `first` on, and gives out their hits. */
__device__ __forceinline__ uint32_t list_pieces(const buckets &s, uint32_t bucket, uint32_t first, piece_list &pieces,
                                                uint32_t *of_warps)
{
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, chunk = first + 4 * threadIdx.x;
    uint32_t begin[4], hits[4], sum = 0, some = 0;
    load_pieces(s, bucket, chunk, begin, hits);
    TL_UNROLL_FOR (uint32_t i = 0; i < 4; i++)
        sum += hits[i], some += hits[i] > 0;
    uint32_t before = tl_sum_to_lane(sum, lane), piece = tl_sum_to_lane(some, lane), all_hits = 0, all = 0;
    if (lane == 31) of_warps[warp] = before, of_warps[WARPS + warp] = piece;
    before -= sum, piece -= some;
    __syncthreads(); /* the list was read, too */
    TL_UNROLL_FOR (uint32_t w = 0; w < WARPS; w++) {
        if (w < warp) before += of_warps[w], piece += of_warps[WARPS + w];
        all_hits += of_warps[w], all += of_warps[WARPS + w];
    }
    TL_UNROLL_FOR (uint32_t i = 0; i < 4; i++) {
        if (hits[i] == 0) continue;
        pieces.before[piece] = before, pieces.at[piece] = (chunk + i) * s.span + begin[i] - before;
        before += hits[i], piece++;
    }
    for (uint32_t i = all + threadIdx.x; i < PIECES + 32; i += THREADS)
        pieces.before[i] = UINT32_MAX;
    __syncthreads();
    return all_hits;
}

/* A thread's hits of a window: a warp has neighbours, as many as the others. Those of the heavy place, and where no hit is, become
 * hits of the place `nowhere`. */
struct window {
    uint32_t place[WINDOW_ITEMS], value[WINDOW_ITEMS], rounds;

    __device__ __forceinline__ void load(const uint2 *hits, const piece_list &pieces, uint32_t from, uint32_t to,
                                         uint32_t heavy, uint32_t nowhere)
    {
        rounds = (to - from + THREADS - 1) / THREADS;
        const uint32_t lane = threadIdx.x % 32, begin = from + threadIdx.x / 32 * rounds * 32;
        const uint32_t found = pieces.piece_of(begin + lane * 32); /* lane i has that of the first hit of item i */
        TL_UNROLL_FOR (uint32_t i = 0; i < WINDOW_ITEMS; i++)
            place[i] = heavy, value[i] = 0;
        TL_UNROLL_FOR (uint32_t i = 0; i < WINDOW_ITEMS; i++) {
            if (i % 4 == 0 && i >= rounds) break;
            /* Of the pieces behind, all of which have hits, 31 at most begin at hits of this item: a bit for each. */
            const uint32_t start = begin + i * 32, first = __shfl_sync(~0u, found, i);
            const uint32_t next = pieces.before[first + 1 + lane] - start;
            const uint32_t starts = __reduce_add_sync(~0u, next < 32 ? 1u << next : 0);
            const uint32_t piece = first + __popc(starts & ((2u << lane) - 1));
            if (i < rounds && start + lane < to) {
                const uint2 hit = hits[pieces.at[piece] + start + lane];
                place[i] = hit.x, value[i] = hit.y;
            }
        }
        TL_UNROLL_FOR (uint32_t i = 0; i < WINDOW_ITEMS; i++)
            if (place[i] == heavy) place[i] = nowhere;
    }
};

/* ---- heavy rows ------------------------------------------------------------------------------------------------------ */

/* A row of the bucket that has more than half of its hits, if one has, by samples of the list: votes for one row and for others
 * cancel (Boyer and Moore, "MJRTY: A Fast Majority Vote Algorithm", 1981). */
__device__ __forceinline__ uint32_t find_majority(const buckets &s, uint32_t bucket, uint32_t *of_warps)
{
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    uint32_t index[AT_ONCE], place = NONE, votes = 0;
    TL_UNROLL_FOR (uint32_t u = 0; u < AT_ONCE; u++)
        index[u] = s.indices[(uint64_t)s.k * (u * THREADS + threadIdx.x) / SAMPLES];
    TL_UNROLL_FOR (uint32_t u = 0; u < AT_ONCE; u++) {
        uint32_t of;
        const uint32_t found = s.place_of(index[u], &of);
        if (index[u] >= s.rows || of != bucket) continue;
        if (votes == 0) place = found;
        votes += found == place ? 1 : -1;
    }
    const auto meet = [&](uint32_t other, uint32_t others) {
        if (other == place) {
            votes += others;
        } else {
            if (others > votes) place = other;
            votes = others > votes ? others - votes : votes - others;
        }
    };
    TL_UNROLL_FOR (int d = 16; d; d /= 2) {
        const uint32_t other = __shfl_down_sync(~0u, place, d), others = __shfl_down_sync(~0u, votes, d);
        meet(other, others);
    }
    if (lane == 0) of_warps[warp] = place, of_warps[WARPS + warp] = votes;
    __syncthreads();
    place = of_warps[0], votes = of_warps[WARPS];
    TL_UNROLL_FOR (uint32_t w = 1; w < WARPS; w++)
        meet(of_warps[w], of_warps[WARPS + w]);
    __syncthreads();
    return place;
}

/* The place of the row that the second block of a bucket of `hits` hits adds, or NONE. Both blocks find the same. */
__device__ __forceinline__ uint32_t choose_heavy(const buckets &s, uint32_t bucket, uint32_t hits, uint32_t *of_warps)
{
    if (hits <= s.crowd) return NONE;
    return s.places == 1 ? 0 : find_majority(s, bucket, of_warps);
}

/* The block adds the hits of one place of a bucket, side by side in the stage, as many as it holds at a time: windows of the bucket
 * follow one another until a part of it is left that is not worth another. POSITIONS: the hits have positions, by which the values of
 * column `col` are read. */
template <bool POSITIONS>
__device__ __forceinline__ float add_heavy(const buckets &s, uint32_t bucket, uint32_t place, uint32_t col, float sum,
                                           piece_list &pieces, uint32_t *of_warps, tl_long_values &stage,
                                           tl_long_room &room)
{
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, below = (1u << lane) - 1;
    uint32_t held = 0;
    const auto add_held = [&] {
        for (uint32_t i = held + threadIdx.x; i < TL_LONG_ALL; i += THREADS)
            stage.value(i) = -0.0f; /* changes no sum */
        __syncthreads();
        sum = tl_add_values(sum, stage, held, room);
        held = 0;
    };
    for (uint32_t chunk = 0; chunk < s.chunks; chunk += PIECES) {
        const uint32_t hits = list_pieces(s, bucket, chunk, pieces, of_warps);
        for (uint32_t from = 0; from < hits;) {
            const uint32_t to = min(hits, from + min(WINDOW, TL_LONG_ALL - held));
            window w;
            w.load(s.hits, pieces, from, to, NONE, NONE);
            from = to;
            if constexpr (POSITIONS) {
                TL_UNROLL_FOR (uint32_t i = 0; i < WINDOW_ITEMS; i++) /* all are on their way together */
                    if (w.place[i] == place)
                        w.value[i] = __float_as_uint(s.values[(int64_t)w.value[i] * s.cols.divisor + col]);
            }
            uint32_t own = 0;
            TL_UNROLL_FOR (uint32_t i = 0; i < WINDOW_ITEMS; i++) {
                if (i % 4 == 0 && i >= w.rounds) break;
                own += __popc(__ballot_sync(~0u, w.place[i] == place));
            }
            if (lane == 0) of_warps[warp] = own;
            __syncthreads();
            uint32_t at = held;
            TL_UNROLL_FOR (uint32_t other = 0; other < WARPS; other++) {
                if (other < warp) at += of_warps[other];
                held += of_warps[other];
            }
            TL_UNROLL_FOR (uint32_t i = 0; i < WINDOW_ITEMS; i++) {
                if (i % 4 == 0 && i >= w.rounds) break;
                const uint32_t peers = __ballot_sync(~0u, w.place[i] == place);
                if (w.place[i] == place) stage.value(at + __popc(peers & below)) = __uint_as_float(w.value[i]);
                at += __popc(peers);
            }
            if (TL_LONG_ALL - held < LEAST_LOADED)
                add_held();
            else
                __syncthreads();
        }
    }
    if (held) add_held();
    return sum;
}

/* Blocks take the buckets in turns, and count the hits of as many at once as they have warps. POSITIONS: a block for each column of
 * what else were a block's. */
template <bool POSITIONS = false>
__device__ __forceinline__ void add_heavy_rows(const buckets &s, uint32_t blocks, piece_list &pieces,
                                               uint32_t *of_warps, tl_long_values &stage, tl_long_room &room)
{
    __shared__ uint32_t hits[WARPS];
    const uint32_t count = s.count.divisor;
    uint32_t block = blockIdx.x, col = 0;
    if constexpr (POSITIONS) block = s.cols.divmod(blockIdx.x, &col);
    for (uint32_t first = block; first < count; first += WARPS * blocks) {
        const uint32_t own = first + threadIdx.x / 32 * blocks;
        const uint32_t found = own < count ? count_hits_in_warp(s, own) : 0;
        if (threadIdx.x % 32 == 0) hits[threadIdx.x / 32] = found;
        __syncthreads();
        for (uint32_t w = 0; w < WARPS; w++) {
            const uint32_t bucket = first + w * blocks;
            if (hits[w] <= s.crowd) continue;
            const uint32_t place = choose_heavy(s, bucket, hits[w], of_warps);
            if (place == NONE) continue;
            std::conditional_t<POSITIONS, int64_t, uint32_t> at = s.row_at(place, bucket);
            if constexpr (POSITIONS) at = at * s.cols.divisor + col;
            const float sum =
                add_heavy<POSITIONS>(s, bucket, place, col, s.base ? s.base[at] : 0.0f, pieces, of_warps, stage, room);
            if (threadIdx.x == 0) s.out[at] = sum;
        }
        __syncthreads();
    }
}

} /* namespace tl_buckets */
