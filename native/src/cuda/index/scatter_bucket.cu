/* Scatter-adds of many hits into a vector on CUDA, in two launches.
 *
 * Row r belongs to bucket r % buckets, so that rows beside each other, which lists often name most, are in different buckets. A block
 * of the first launch puts the hits of a chunk of the index list, row and value, in order of buckets, stably, and writes where each
 * bucket's piece of the chunk begins. A block of the second owns a bucket, whose hits are its pieces in order of chunks: it puts a
 * window of them in order of rows, stably and in one step, as there are few rows, and adds every row's in shared memory. So a hit is
 * moved once through memory, where a sort of the list moves it once for each digit, and nothing has to be counted before.
 *
 * Of so many rows that a bucket has thousands, lines of rows share a bucket, which is copied in whole lines. The hits of a window then
 * are dealt to warps by row, and nothing is put in order of rows: a warp adds its hits as they come to the sums in shared memory.
 *
 * A bucket with far more hits than others has a second block. That adds the row which seems to have most of them, from the hits as
 * they lie, in which those of other rows count as -0: it changes no sum. The other block leaves the row out. */
#include "cuda/device/division.cuh"
#include "cuda/device/vector.cuh"
#include "cuda/device/warp_sum.cuh"
#include "cuda/index/long_run.cuh"
#include "cuda/index/order.cuh"
#include "cuda/index/rank.cuh"
#include "cuda/index/scatter.cuh"
#include "cuda/runtime/launch.cuh"

namespace {

constexpr int THREADS = TL_LONG_THREADS, WARPS = TL_LONG_WARPS;
/* Bits of a bucket, and of a row in its bucket. */
constexpr uint32_t FIELD = 10;
/* Places are rows of a bucket. One more bucket, or place, is for what is not to be added. */
constexpr uint32_t KINDS = 1 << FIELD, MOST_BUCKETS = KINDS - 1, MOST_PLACES = KINDS - 1;
/* Hits that a bucket has at least where there are two for every multiprocessor: with those of uneven buckets less than 8 rounds.
 * More buckets than the device adds at once only have fewer hits each of those that are dealt together: short pieces are parts of
 * sectors. */
constexpr uint32_t BUCKET_HITS = 1700;
constexpr int ADDING = 3, LINES_ADDING = 2, DEALING = 4;       /* blocks of a multiprocessor */
constexpr int FEW_DEALT = 8, SOME_DEALT = 12, MANY_DEALT = 16; /* hits of a thread, and of THREADS of them a chunk */
constexpr uint32_t PIECES = 4 * THREADS; /* of a bucket, from as many chunks, that are listed at a time */
constexpr int WINDOW_ITEMS = 20;         /* hits of a thread in a window of a bucket */
constexpr uint32_t WINDOW = WINDOW_ITEMS * THREADS;
constexpr uint32_t ONE_BY_ONE = 256; /* hits of a row that a thread adds; more are a warp's, in chunks of 32·RUN */
constexpr uint32_t LONE = 2048;      /* hits of buckets of one row that a block adds as fast as a warp */
constexpr uint32_t SAMPLES = 2048, AT_ONCE = 8, NONE = UINT32_MAX;
constexpr int RUN = 16, PAIRS_AT_ONCE = 8;
/* Rows for each hit, of more than which the blocks of the last launch mostly copy rows, whose words are far apart, and a sort that
 * copies them in order beside its own work is faster. */
constexpr int64_t FEW_OF_ROWS = 16, FEW_OF_LINED = 256; /* the latter of lines, which are copied in order too */
/* More rows than MOST_BUCKETS·MOST_PLACES are dealt in lines of 128 bytes. A bucket of MOST_LINED has its sums, of 66 KiB, and a
 * window of hits, of 30 KiB, in shared memory: chips with 99 KiB for a block have room. So many that the buckets hold 2^24 rows. */
constexpr int LINE_BITS = 5;
constexpr uint32_t LINED_BITS = 15, MOST_LINED = 528 << LINE_BITS, QUADS_AT_ONCE = 8;
static_assert((int64_t)MOST_BUCKETS * MOST_LINED >= (int64_t)1 << 24 && MOST_LINED <= 1 << LINED_BITS);
static_assert(MOST_LINED <= UINT16_MAX + 1 && MOST_PLACES <= MOST_LINED && LINED_BITS + FIELD <= 32);
static_assert(KINDS == 4 * THREADS);
static_assert(WINDOW <= UINT16_MAX && MANY_DEALT * THREADS <= UINT16_MAX);
static_assert(SAMPLES == THREADS * AT_ONCE && TL_LONG_HITS % (2 * PAIRS_AT_ONCE) == 0 && WINDOW_ITEMS <= 32);

struct buckets {
    const float *base; /* NULL for a sum that starts from +0 */
    const float *values;
    float *out;
    const uint32_t *indices;
    uint32_t rows, k;
    uint32_t chunks, span; /* of the list, and indices of a chunk */
    tl_fastdiv count;      /* buckets */
    uint32_t line_bits;    /* rows that stay side by side, 2^line_bits of them */
    uint32_t places;       /* of a bucket, of which some are behind the last row */
    bool aligned;          /* base and output, to 16 bytes */
    uint32_t crowd;        /* hits of a bucket, above which it has a second block */
    uint32_t stride;       /* the chunks, rounded up to four */
    uint16_t *begins;      /* of every bucket, and behind the last, in every chunk: where its piece begins */
    uint2 *hits;           /* place and bits of the value, by chunk, then bucket, then as in the list */

    __device__ __forceinline__ uint32_t place_of(uint32_t row, uint32_t *bucket) const
    {
        return count.divmod(row >> line_bits, bucket) << line_bits | (row & ((1u << line_bits) - 1));
    }
    __device__ __forceinline__ uint32_t row_at(uint32_t place, uint32_t bucket) const
    {
        return ((place >> line_bits) * count.divisor + bucket) << line_bits | (place & ((1u << line_bits) - 1));
    }
};

/* A block puts the hits of a chunk, ITEMS·THREADS of the list, in order of buckets in shared memory, from where they leave side by
 * side. A warp has 32·ITEMS neighbours of the list. */
template <int ITEMS> __global__ void __launch_bounds__(THREADS, DEALING) deal_hits_kernel(buckets s)
{
    static_assert(ITEMS % 4 == 0);
    TL_DYNAMIC_SHARED(uint4, room); /* tallies, then hits: place and value; last those that are not added */
    __shared__ __align__(16) uint32_t first[MOST_BUCKETS + 2];
    __shared__ uint32_t of_warps[WARPS];
    uint16_t *const tallies = reinterpret_cast<uint16_t *>(room);
    uint2 *const staged = reinterpret_cast<uint2 *>(room);
    tl_wait_for_earlier();
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, count = s.count.divisor;
    const uint32_t from = blockIdx.x * (ITEMS * THREADS) + warp * ITEMS * 32 + lane;
    uint16_t *const of_warp = tallies + warp * tl_tally_stride(count + 1);
    uint32_t word[ITEMS], to[ITEMS];
    float value[ITEMS];
    const auto load_values = [&] {
        TL_UNROLL_FOR (uint32_t i = 0; i < ITEMS; i++)
            value[i] = s.values[min(from + i * 32, s.k - 1)];
    };
    TL_UNROLL_FOR (uint32_t i = 0; i < ITEMS; i++)
        word[i] = from + i * 32 < s.k ? s.indices[from + i * 32] : UINT32_MAX;
    if (ITEMS == FEW_DEALT) load_values(); /* registers have room for them meanwhile */
    tl_clear_tallies(tallies, count + 1);
    TL_UNROLL_FOR (uint32_t i = 0; i < ITEMS; i++) {
        uint32_t bucket;
        const uint32_t place = s.place_of(word[i], &bucket);
        word[i] = word[i] < s.rows ? place << FIELD | bucket : count;
    }
    __syncthreads();
    tl_rank_hits(of_warp, count + 1, [&](int i) { return word[i] % KINDS; }, ITEMS, to);
    __syncthreads();
    tl_place_kinds(tallies, count + 1, first, of_warps);
    for (uint32_t b = threadIdx.x; b <= count; b += THREADS)
        s.begins[b * s.stride + blockIdx.x] = (uint16_t)first[b];
    if (ITEMS > FEW_DEALT) load_values();
    TL_UNROLL_FOR (uint32_t i = 0; i < ITEMS; i++)
        to[i] += of_warp[word[i] % KINDS];
    __syncthreads(); /* the room was the tallies' */
    TL_UNROLL_FOR (uint32_t i = 0; i < ITEMS; i++)
        staged[to[i]] = make_uint2(word[i] >> FIELD, __float_as_uint(value[i]));
    __syncthreads();
    uint4 *const out = reinterpret_cast<uint4 *>(s.hits + (int64_t)blockIdx.x * (ITEMS * THREADS));
    TL_UNROLL_FOR (uint32_t i = 0; i < ITEMS / 2; i++) {
        const uint32_t pair = i * THREADS + threadIdx.x;
        if (2 * pair < first[count]) out[pair] = room[pair];
    }
}

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

/* The block counts the bucket's hits in all chunks. */
__device__ __forceinline__ uint32_t count_hits(const buckets &s, uint32_t bucket, uint32_t *of_warps)
{
    uint32_t sum = 0;
    for (uint32_t chunk = 4 * threadIdx.x; chunk < s.chunks; chunk += PIECES) {
        uint32_t begin[4], hits[4];
        load_pieces(s, bucket, chunk, begin, hits);
        sum += hits[0] + hits[1] + hits[2] + hits[3];
    }
    sum = tl_sum_to_lane(sum, threadIdx.x % 32);
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
    if (s.places == 1) return hits > LONE ? 0 : NONE;
    return hits > s.crowd ? find_majority(s, bucket, of_warps) : NONE;
}

/* What a hit adds to the row at a place. */
__device__ __forceinline__ float value_of(uint2 hit, uint32_t place)
{
    return hit.x == place ? __uint_as_float(hit.y) : -0.0f;
}

/* A thread's hits, two by two; the first lies ODD hits behind a multiple of 16 bytes. */
template <int ODD>
__device__ __forceinline__ void load_heavy(const uint2 *hits, uint32_t place, float (&v)[TL_LONG_HITS])
{
    const uint4 *const pairs = reinterpret_cast<const uint4 *>(hits - ODD);
    TL_UNROLL_FOR (int i = 0; i < TL_LONG_HITS; i += 2 * PAIRS_AT_ONCE) {
        uint4 pair[PAIRS_AT_ONCE];
        TL_UNROLL_FOR (int u = 0; u < PAIRS_AT_ONCE; u++)
            pair[u] = pairs[i / 2 + u];
        TL_UNROLL_FOR (int u = 0; u < PAIRS_AT_ONCE; u++) {
            const int j = i + 2 * u - ODD;
            if (j >= 0) v[j] = value_of(make_uint2(pair[u].x, pair[u].y), place);
            v[j + 1] = value_of(make_uint2(pair[u].z, pair[u].w), place);
        }
    }
    if (ODD) v[TL_LONG_HITS - 1] = value_of(hits[TL_LONG_HITS - 1], place);
}

/* The block adds the hits of one place of a bucket, as tl_add_long_run does. */
__device__ __forceinline__ float add_heavy(const buckets &s, uint32_t bucket, uint32_t place, float sum,
                                           piece_list &pieces, uint32_t *of_warps, tl_long_room &room)
{
    for (uint32_t first = 0; first < s.chunks; first += PIECES) {
        const uint32_t hits = list_pieces(s, bucket, first, pieces, of_warps);
        for (uint32_t from = 0; from < hits; from += TL_LONG_THREADS * TL_LONG_HITS) {
            const uint32_t at = from + threadIdx.x * TL_LONG_HITS;
            uint32_t piece = pieces.piece_of(at), origin = pieces.at[piece], next = pieces.before[piece + 1];
            float v[TL_LONG_HITS];
            if (at + TL_LONG_HITS <=
                min(next, hits)) { /* as most are, since half of the list's hits are this bucket's */
                const uint2 *const from = s.hits + (origin + at);
                if ((origin + at) % 2)
                    load_heavy<1>(from, place, v);
                else
                    load_heavy<0>(from, place, v);
            } else {
                TL_UNROLL_FOR (uint32_t i = 0; i < TL_LONG_HITS; i++) {
                    const uint32_t j = at + i;
                    if (j == next) piece++, origin = pieces.at[piece], next = pieces.before[piece + 1];
                    v[i] = j < hits ? value_of(s.hits[origin + j], place) : -0.0f;
                }
            }
            sum = tl_add_block(sum, v, room);
        }
    }
    return sum;
}

/* Blocks take the heavy rows in turns. */
__device__ __forceinline__ void add_heavy_rows(const buckets &s, uint32_t blocks, piece_list &pieces,
                                               uint32_t *of_warps, tl_long_room &room)
{
    for (uint32_t bucket = blockIdx.x; bucket < s.count.divisor; bucket += blocks) {
        const uint32_t place = choose_heavy(s, bucket, count_hits(s, bucket, of_warps), of_warps);
        if (place == NONE) continue;
        const uint32_t row = s.row_at(place, bucket);
        const float sum = add_heavy(s, bucket, place, s.base ? s.base[row] : 0.0f, pieces, of_warps, room);
        if (threadIdx.x == 0) s.out[row] = sum;
    }
}

/* ---- buckets --------------------------------------------------------------------------------------------------------- */

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

/* The first blocks take the heavy rows, each of those behind them owns all other rows of a bucket. */
__global__ void __launch_bounds__(THREADS, ADDING) add_buckets_kernel(buckets s)
{
    TL_DYNAMIC_SHARED(uint4, room); /* tallies, then the values of a window in order of rows */
    __shared__ __align__(16) uint32_t first[MOST_PLACES + 2];
    __shared__ float sums[MOST_PLACES];
    __shared__ float4 chunks[WARPS][16 * RUN / 4];
    __shared__ tl_long_room heavy_room;
    __shared__ uint32_t left[WINDOW / ONE_BY_ONE], of_warps[2 * WARPS], many;
    __shared__ piece_list pieces;
    uint16_t *const tallies = reinterpret_cast<uint16_t *>(room);
    float *const values = reinterpret_cast<float *>(room);
    tl_wait_for_earlier();
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, count = s.count.divisor;
    const uint32_t first_blocks = gridDim.x - count;
    if (blockIdx.x < first_blocks) {
        add_heavy_rows(s, first_blocks, pieces, of_warps, heavy_room);
        return;
    }
    const uint32_t bucket = blockIdx.x - first_blocks, places = (s.rows - bucket - 1) / count + 1;
    float base[4]; /* on their way with the list of pieces */
    static_assert(MOST_PLACES <= 4 * THREADS);
    TL_UNROLL_FOR (uint32_t i = 0; i < 4; i++) {
        const uint32_t p = i * THREADS + threadIdx.x;
        base[i] = s.base && p < places ? s.base[p * count + bucket] : 0.0f;
    }
    uint32_t hits = list_pieces(s, bucket, 0, pieces, of_warps);
    const uint32_t heavy =
        choose_heavy(s, bucket, s.chunks > PIECES ? count_hits(s, bucket, of_warps) : hits, of_warps);
    if (places == 1 && heavy != NONE) return;
    TL_UNROLL_FOR (uint32_t i = 0; i < 4; i++)
        if (i * THREADS + threadIdx.x < places) sums[i * THREADS + threadIdx.x] = base[i];
    for (uint32_t chunk = 0; chunk < s.chunks; chunk += PIECES) {
        if (chunk > 0) hits = list_pieces(s, bucket, chunk, pieces, of_warps);
        for (uint32_t from = 0; from < hits; from += WINDOW) {
            window w;
            w.load(s.hits, pieces, from, min(hits, from + WINDOW), heavy, places);
            tl_clear_tallies(tallies, places + 1);
            if (threadIdx.x == 0) many = 0;
            __syncthreads();
            uint16_t *const of_warp = tallies + warp * tl_tally_stride(places + 1);
            uint32_t to[WINDOW_ITEMS];
            tl_rank_hits(of_warp, places + 1, [&](int i) { return w.place[i]; }, w.rounds, to);
            __syncthreads();
            tl_place_kinds(tallies, places + 1, first, of_warps);
            TL_UNROLL_FOR (uint32_t i = 0; i < WINDOW_ITEMS; i++)
                to[i] += of_warp[w.place[i]];
            __syncthreads();
            TL_UNROLL_FOR (uint32_t i = 0; i < WINDOW_ITEMS; i++)
                if (i < w.rounds) values[to[i]] = __uint_as_float(w.value[i]);
            __syncthreads();
            for (uint32_t p = threadIdx.x; p < places; p += THREADS) {
                uint32_t at = first[p];
                const uint32_t stop = first[p + 1];
                if (stop - at > ONE_BY_ONE) {
                    left[atomicAdd(&many, 1u)] = p;
                    continue;
                }
                float sum = sums[p];
                for (; at + 4 <= stop; at += 4) {
                    float v[4];
                    TL_UNROLL_FOR (int i = 0; i < 4; i++)
                        v[i] = values[at + i];
                    TL_UNROLL_FOR (int i = 0; i < 4; i++)
                        sum += v[i];
                }
                for (; at < stop; at++)
                    sum += values[at];
                sums[p] = sum;
            }
            __syncthreads();
            const tl_hits list = {reinterpret_cast<const uint32_t *>(values), UINT32_MAX, nullptr, 1};
            for (uint32_t unit = warp; unit < many; unit += WARPS) {
                const uint32_t p = left[unit];
                const float sum = tl_add_run<RUN>(list, first[p], first[p + 1], 0, sums[p], chunks[warp]);
                if (lane == 0) sums[p] = sum;
            }
            __syncthreads();
        }
    }
    for (uint32_t p = threadIdx.x; p < places; p += THREADS)
        if (p != heavy) s.out[p * count + bucket] = sums[p];
}

/* Four rows of the base, from one that is a multiple of four on, as far as there are so many. */
__device__ __forceinline__ void load_quad(const buckets &s, uint32_t row, float4 &v)
{
    if (s.aligned && row + 3 < s.rows) {
        v = tl_load4(s.base + row);
    } else {
        if (row < s.rows) v.x = s.base[row];
        if (row + 1 < s.rows) v.y = s.base[row + 1];
        if (row + 2 < s.rows) v.z = s.base[row + 2];
        if (row + 3 < s.rows) v.w = s.base[row + 3];
    }
}

/* The same of buckets of many rows, in lines. Warp w owns the places p with p % WARPS == w: the hits of a window are dealt to the
 * warps, which add 32 of them at a time to the sums in shared memory. Of those in one place the first lane adds all. */
__global__ void __launch_bounds__(THREADS, LINES_ADDING) add_lines_kernel(buckets s)
{
    TL_DYNAMIC_SHARED(float, sums);                        /* and the hits of a window */
    constexpr uint32_t OWNERS = WARPS, STRIDE = 2 * WARPS; /* and one owner of what is not to be added */
    __shared__ __align__(16) uint16_t tallies[WARPS * STRIDE];
    __shared__ uint32_t first[OWNERS + 2], of_warps[2 * WARPS];
    __shared__ tl_long_room heavy_room;
    float *const values = sums + s.places;
    uint16_t *const places = reinterpret_cast<uint16_t *>(values + WINDOW);
    /* Pieces have the room of the values, and are listed again for every window. */
    static_assert(sizeof(piece_list) <= WINDOW * sizeof(float));
    piece_list &pieces = *reinterpret_cast<piece_list *>(values);
    tl_wait_for_earlier();
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint32_t first_blocks = gridDim.x - s.count.divisor;
    if (blockIdx.x < first_blocks) {
        add_heavy_rows(s, first_blocks, pieces, of_warps, heavy_room);
        return;
    }
    const uint32_t bucket = blockIdx.x - first_blocks;
    uint32_t hits = list_pieces(s, bucket, 0, pieces, of_warps);
    const uint32_t heavy =
        choose_heavy(s, bucket, s.chunks > PIECES ? count_hits(s, bucket, of_warps) : hits, of_warps);
    window w; /* its hits are on their way with the rows */
    w.load(s.hits, pieces, 0, min(hits, WINDOW), heavy, NONE);
    for (uint32_t p = 4 * threadIdx.x; p < s.places; p += 4 * QUADS_AT_ONCE * THREADS) {
        float4 v[QUADS_AT_ONCE];
        TL_UNROLL_FOR (uint32_t u = 0; u < QUADS_AT_ONCE; u++) {
            const uint32_t place = p + 4 * u * THREADS;
            v[u] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (s.base && place < s.places) load_quad(s, s.row_at(place, bucket), v[u]);
        }
        TL_UNROLL_FOR (uint32_t u = 0; u < QUADS_AT_ONCE; u++)
            if (p + 4 * u * THREADS < s.places) tl_store4(sums + p + 4 * u * THREADS, v[u]);
    }
    for (uint32_t chunk = 0; chunk < s.chunks; chunk += PIECES) {
        for (uint32_t from = 0; from == 0 || from < hits; from += WINDOW) {
            if (chunk + from > 0) {
                hits = list_pieces(s, bucket, chunk, pieces, of_warps);
                w.load(s.hits, pieces, from, min(hits, from + WINDOW), heavy, NONE);
            }
            tl_clear_tallies(tallies, OWNERS + 1);
            __syncthreads();
            const auto owner = [&](int i) { return w.place[i] == NONE ? OWNERS : w.place[i] % OWNERS; };
            uint32_t to[WINDOW_ITEMS];
            tl_rank_hits(tallies + warp * STRIDE, OWNERS + 1, owner, w.rounds, to);
            __syncthreads();
            tl_place_kinds(tallies, OWNERS + 1, first, of_warps);
            TL_UNROLL_FOR (uint32_t i = 0; i < WINDOW_ITEMS; i++) {
                if (w.place[i] == NONE) continue;
                const uint32_t at = tallies[warp * STRIDE + owner(i)] + to[i];
                places[at] = (uint16_t)w.place[i], values[at] = __uint_as_float(w.value[i]);
            }
            __syncthreads();
            for (uint32_t at = first[warp]; at < first[warp + 1]; at += 32) {
                const bool here = at + lane < first[warp + 1];
                const uint32_t place = here ? places[at + lane] : NONE;
                const float value = here ? values[at + lane] : 0.0f;
                const uint32_t together = __match_any_sync(~0u, place);
                const bool adds = here && (together & ((1u << lane) - 1)) == 0;
                float sum = adds ? sums[place] : 0.0f;
                for (uint32_t left = adds ? together : 0; __any_sync(~0u, left != 0); left &= left - 1) {
                    const float v = __shfl_sync(~0u, value, left ? __ffs((int)left) - 1 : 0);
                    if (left) sum += v;
                }
                if (adds) sums[place] = sum;
                __syncwarp();
            }
            __syncthreads();
        }
    }
    __syncthreads();
    for (uint32_t p = 4 * threadIdx.x; p < s.places; p += 4 * THREADS) {
        const uint32_t row = s.row_at(p, bucket);
        if (s.aligned && row + 3 < s.rows && p != (heavy & ~3u)) {
            tl_store4(s.out + row, tl_load4(sums + p));
        } else {
            TL_UNROLL_FOR (uint32_t i = 0; i < 4; i++)
                if (row + i < s.rows && p + i != heavy) s.out[row + i] = sums[p + i];
        }
    }
}

size_t at_least(size_t bytes, uint32_t kinds)
{
    const size_t of_tallies = WARPS * sizeof(uint16_t) * tl_tally_stride(kinds);
    return bytes < of_tallies ? of_tallies : bytes;
}

int32_t launch(tl_context *ctx, const char *name, void (*kernel)(buckets), int64_t blocks, size_t shared,
               const buckets &s)
{
    TL_TRY(tl_allow_shared(ctx, kernel, shared));
    return tl_launch_ahead(ctx, name, kernel, (unsigned)blocks, THREADS, shared, s);
}

} /* namespace */

bool tl_buckets_serve(int64_t rows, int64_t cols, int64_t k)
{
    return cols == 1 && k > TL_TILE_INDICES && k <= INT32_MAX &&
           (rows <= (int64_t)MOST_BUCKETS * MOST_PLACES
                ? rows <= FEW_OF_ROWS * k
                : rows <= (int64_t)MOST_BUCKETS * MOST_LINED && rows <= FEW_OF_LINED * k);
}

int32_t tl_scatter_buckets(tl_context *ctx, const char *name, const float *base, const float *values,
                           const uint32_t *indices, int64_t rows, int64_t k, float *out)
{
    const bool lined = rows > (int64_t)MOST_BUCKETS * MOST_PLACES;
    const int64_t line = lined ? 1 << LINE_BITS : 1, lines = tl_ceil_div(rows, line);
    const int64_t most_lines = (lined ? MOST_LINED : MOST_PLACES) / line,
                  adding = (lined ? LINES_ADDING : ADDING) * tl_cuda_sms(ctx), dealing = DEALING * tl_cuda_sms(ctx);
    int64_t count = tl_ceil_div(k, BUCKET_HITS);
    count = count < 2 * tl_cuda_sms(ctx) ? 2 * tl_cuda_sms(ctx) : count;
    const int64_t most = adding < MOST_BUCKETS ? adding : MOST_BUCKETS;
    count = count > most ? most : count;
    count = count * most_lines < lines ? tl_ceil_div(lines, most_lines) : count;
    count = count > lines ? lines : count;
    /* As few rounds of the blocks as there can be, and then as few hits in each. */
    const int64_t rounds = tl_ceil_div(k, dealing * MANY_DEALT * THREADS);
    const int64_t items = tl_ceil_div(k, rounds * dealing * THREADS);
    const int dealt = items <= FEW_DEALT ? FEW_DEALT : items <= SOME_DEALT ? SOME_DEALT : MANY_DEALT;
    const int64_t span = dealt * THREADS, chunks = tl_ceil_div(k, span), stride = tl_ceil_div(chunks, 4) * 4,
                  crowd = 2 * k / count;

    tl_scratch<uint16_t> begins(ctx);
    tl_scratch<uint2> hits(ctx);
    TL_TRY(begins.allocate((count + 1) * stride));
    TL_TRY(hits.allocate(chunks * span));
    buckets s = {base, values, out, indices, (uint32_t)rows, (uint32_t)k, (uint32_t)chunks, (uint32_t)span};
    s.count = tl_fastdiv(count), s.line_bits = lined ? LINE_BITS : 0;
    s.places = (uint32_t)(tl_ceil_div(lines, count) * line), s.crowd = crowd < WINDOW ? WINDOW : (uint32_t)crowd;
    s.aligned = tl_aligned4(base) && tl_aligned4(out);
    s.stride = (uint32_t)stride, s.begins = begins, s.hits = hits;
    const size_t of_dealt = at_least((size_t)span * sizeof(uint2), (uint32_t)count + 1);
    const auto deal = dealt == FEW_DEALT    ? deal_hits_kernel<FEW_DEALT>
                      : dealt == SOME_DEALT ? deal_hits_kernel<SOME_DEALT>
                                            : deal_hits_kernel<MANY_DEALT>;
    TL_TRY(launch(ctx, name, deal, chunks, of_dealt, s));
    const size_t of_window = lined ? WINDOW * (sizeof(float) + sizeof(uint16_t)) + s.places * sizeof(float)
                                   : at_least((WINDOW + 4) * sizeof(float), s.places + 1);
    return launch(ctx, name, lined ? add_lines_kernel : add_buckets_kernel, count + (count < adding ? count : adding),
                  of_window, s);
}
