/* The hits of a bucket of rows of a scatter-add, which lie in pieces of chunks of the index list (scatter_bucket.cu): a list of the
 * pieces, windows of the hits, and the heavy rows, each of which has hits for a block of its own. */
#pragma once

#include "cuda/device/async_copy.cuh"
#include "cuda/device/division.cuh"
#include "cuda/device/vector.cuh"
#include "cuda/device/warp_sum.cuh"
#include "cuda/index/long_run.cuh"
#include "cuda/runtime/launch.cuh"

namespace tl_buckets {

constexpr int THREADS = TL_LONG_THREADS, WARPS = TL_LONG_WARPS;
/* Bits of a bucket, and of a row in its bucket. */
constexpr uint32_t FIELD = 10;
/* Heavy rows at most. Each is a kind of its own, behind the buckets. */
constexpr uint32_t HEAVIES = 16;
/* Places are rows of a bucket. One more kind, or place, is for what is not to be added. */
constexpr uint32_t KINDS = 1 << FIELD, MOST_BUCKETS = KINDS - 1 - HEAVIES, MOST_PLACES = KINDS - 1;
constexpr uint32_t PIECES = 4 * THREADS; /* of a bucket, from as many chunks, that are listed at a time */
constexpr int WINDOW_ITEMS = 20;         /* hits of a thread in a window of a bucket */
constexpr uint32_t WINDOW = WINDOW_ITEMS * THREADS;
constexpr uint32_t NONE = UINT32_MAX;
constexpr uint32_t LEAST_LOADED = 1024; /* places of a stage, for fewer of which no further hits are brought */
static_assert(KINDS == 4 * THREADS);
static_assert(WINDOW_ITEMS <= 32 && LEAST_LOADED > 0);
static_assert(WINDOW <= UINT16_MAX);

/* A scatter-add. */
struct buckets {
    const float *base; /* NULL for a sum that starts from +0 */
    const float *values;
    float *out;
    const uint32_t *indices;
    uint32_t rows, k;
    uint32_t chunks, span; /* of the list, and indices of a chunk */
    uint32_t each;         /* chunks that a block deals, one or two */
    uint32_t dealers;      /* blocks that deal */
    uint32_t spread;       /* block 2^spread·i deals chunks, and blocks between copy */
    uint32_t together;     /* chunks that are dealt at a time */
    tl_fastdiv count;      /* buckets */
    tl_fastdiv cols;       /* of a row; of more than one, positions in the list are dealt in the place of values */
    uint32_t line_bits;    /* rows that stay side by side, 2^line_bits of them */
    uint32_t places;       /* that a block adds, a part of the bucket's; some are behind the last row */
    uint32_t parts;        /* of a bucket */
    bool aligned;          /* base and output, to 16 bytes */
    uint32_t heavies;      /* heavy rows at most; 0 where a bucket is a row */
    uint32_t many;         /* samples of a row that is heavy */
    uint32_t *heavy;       /* the heavy rows, then NONE */
    uint32_t stride;       /* the chunks, rounded up to four */
    uint16_t *begins;      /* of every kind, and behind the last, in every chunk: where its piece begins */
    uint2 *hits;           /* place and bits of the value, or position, by chunk, then kind, then as in the list */

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

/* Pieces of a kind that have hits: hit h of them, in the last piece with before[piece] <= h, is hits[at[piece] + h]. Those behind
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
    /* That of hit start + lane, for all lanes, where hit `start` is in piece `first`. Of the pieces behind, all of which have hits, 31
     * at most begin at hits of the other lanes: a bit for each. */
    __device__ __forceinline__ uint32_t piece_near(uint32_t first, uint32_t start, uint32_t lane) const
    {
        const uint32_t next = before[first + 1 + lane] - start;
        const uint32_t starts = __reduce_add_sync(~0u, next < 32 ? 1u << next : 0);
        return first + __popc(starts & ((2u << lane) - 1));
    }
};

/* Of four chunks: where the pieces of a kind begin, and their hits. */
__device__ __forceinline__ void load_pieces(const buckets &s, uint32_t kind, uint32_t chunk, uint32_t (&begin)[4],
                                            uint32_t (&hits)[4])
{
    ushort4 from = make_ushort4(0, 0, 0, 0), to = from;
    if (chunk < s.chunks) {
        const uint16_t *const begins = s.begins + kind * s.stride + chunk;
        from = *reinterpret_cast<const ushort4 *>(begins), to = *reinterpret_cast<const ushort4 *>(begins + s.stride);
    }
    begin[0] = from.x, begin[1] = from.y, begin[2] = from.z, begin[3] = from.w;
    hits[0] = to.x, hits[1] = to.y, hits[2] = to.z, hits[3] = to.w;
    TL_UNROLL_FOR (uint32_t i = 0; i < 4; i++)
        hits[i] = chunk + i < s.chunks ? hits[i] - begin[i] : 0;
}

/* The block lists the pieces of a kind in PIECES chunks from `first` on, and gives out their hits. */
__device__ __forceinline__ uint32_t list_pieces(const buckets &s, uint32_t kind, uint32_t first, piece_list &pieces,
                                                uint32_t *of_warps)
{
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, chunk = first + 4 * threadIdx.x;
    uint32_t begin[4], hits[4], sum = 0, some = 0;
    load_pieces(s, kind, chunk, begin, hits);
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

/* The pieces of a window alone. */
struct window_pieces {
    uint32_t at[PIECES];
};

/* Where in a window its pieces begin, by which the piece of a hit is found without a search. Words stand for 32 hits, and have the
 * piece of the first, and a bit for each hit behind it that begins another. */
struct window_marks {
    uint32_t piece[WINDOW / 32], starts[WINDOW / 32];

    __device__ __forceinline__ uint32_t piece_of(uint32_t word, uint32_t lane) const
    {
        return piece[word] + __popc(starts[word] & ((2u << lane) - 1));
    }
};

/* The block lists the pieces of a kind in PIECES chunks from `first` on for the window of `size` hits from hit `from` of them on, hit h of
 * which is hits[at[piece] + h], and gives out the hits of all windows. Complete behind the next barrier. */
__device__ __forceinline__ uint32_t list_window(const buckets &s, uint32_t kind, uint32_t first, uint32_t from,
                                                uint32_t (&at)[PIECES], window_marks &marks, uint32_t *of_warps,
                                                uint32_t size = WINDOW)
{
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, chunk = first + 4 * threadIdx.x;
    uint32_t begin[4], hits[4], sum = 0, some = 0;
    load_pieces(s, kind, chunk, begin, hits);
    static_assert(WINDOW / 32 <= THREADS);
    if (threadIdx.x < WINDOW / 32) marks.starts[threadIdx.x] = 0;
    TL_UNROLL_FOR (uint32_t i = 0; i < 4; i++)
        sum += hits[i], some += hits[i] > 0;
    uint32_t before = tl_sum_to_lane(sum, lane), piece = tl_sum_to_lane(some, lane), all_hits = 0;
    if (lane == 31) of_warps[warp] = before, of_warps[WARPS + warp] = piece;
    before -= sum, piece -= some;
    __syncthreads();
    TL_UNROLL_FOR (uint32_t w = 0; w < WARPS; w++) {
        if (w < warp) before += of_warps[w], piece += of_warps[WARPS + w];
        all_hits += of_warps[w];
    }
    const uint32_t to = min(all_hits, from + size);
    TL_UNROLL_FOR (uint32_t i = 0; i < 4; i++) {
        const uint32_t next = before + hits[i];
        if (before < next && from < next && before < to) {
            const uint32_t in_window = before - from; /* wraps around where the piece begins before the window */
            at[piece] = (chunk + i) * s.span + begin[i] - in_window;
            if (before > from && in_window % 32) atomicOr(marks.starts + in_window / 32, 1u << in_window % 32);
#pragma unroll 1
            for (uint32_t hit = before > from ? (in_window + 31) / 32 * 32 : 0; hit < min(next, to) - from; hit += 32)
                marks.piece[hit / 32] = piece;
        }
        piece += before < next, before = next;
    }
    return all_hits;
}

/* A thread's hits of a window: a warp has neighbours, as many as the others. Where no hit is, the place is `nowhere`. */
template <int ITEMS> struct window_of {
    uint32_t place[ITEMS], value[ITEMS], rounds;

    __device__ __forceinline__ void load(const uint2 *hits, const piece_list &pieces, uint32_t from, uint32_t to,
                                         uint32_t nowhere)
    {
        rounds = (to - from + THREADS - 1) / THREADS;
        const uint32_t lane = threadIdx.x % 32,
                       begin = from + threadIdx.x / 32 * rounds * 32; /* the warp's first hit */
        const uint32_t found = pieces.piece_of(begin + lane * 32);    /* lane i has that of the first hit of item i */
        TL_UNROLL_FOR (uint32_t i = 0; i < ITEMS; i++)
            place[i] = nowhere, value[i] = 0;
        TL_UNROLL_FOR (uint32_t i = 0; i < ITEMS; i++) {
            if (i % 4 == 0 && i >= rounds) break;
            const uint32_t start = begin + i * 32;
            const uint32_t piece = pieces.piece_near(__shfl_sync(~0u, found, i), start, lane);
            if (i < rounds && start + lane < to) {
                const uint2 hit = hits[pieces.at[piece] + start + lane];
                place[i] = hit.x, value[i] = hit.y;
            }
        }
    }
    /* The same of the first `count` hits of a window that has marks. */
    __device__ __forceinline__ void load_marked(const uint2 *hits, const uint32_t (&at)[PIECES],
                                                const window_marks &marks, uint32_t count, uint32_t nowhere)
    {
        rounds = (count + THREADS - 1) / THREADS;
        const uint32_t lane = threadIdx.x % 32, first = threadIdx.x / 32 * rounds;
        TL_UNROLL_FOR (uint32_t i = 0; i < ITEMS; i++)
            place[i] = nowhere, value[i] = 0;
        TL_UNROLL_FOR (uint32_t i = 0; i < ITEMS; i++) {
            if (i % 4 == 0 && i >= rounds) break;
            const uint32_t word = first + i, hit_of_window = word * 32 + lane;
            if (i < rounds && hit_of_window < count) {
                const uint2 hit = hits[at[marks.piece_of(word, lane)] + hit_of_window];
                place[i] = hit.x, value[i] = hit.y;
            }
        }
    }
};
using window = window_of<WINDOW_ITEMS>;

/* ---- heavy rows ------------------------------------------------------------------------------------------------------ */

/* The samples: as many lie between any two neighbours in the list. Rows that share a slot of the table count as one, and the sample
 * that takes the slot stands for them all, so that no slot has two heavy rows. There are so many slots that few rows share one. */
constexpr uint32_t SAMPLES = 2048, SAMPLING = 1024, OF_THREAD = SAMPLES / SAMPLING, SLOTS = 8192;
/* Of more such rows than there may be heavy ones those with the most samples come first, by powers of two of them. */
constexpr uint32_t MANY_SAMPLES = 8;

/* Multiplicative hashing (Knuth, "The Art of Computer Programming", volume 3, 6.4). */
__device__ __forceinline__ uint32_t slot_of(uint32_t row)
{
    static_assert(SLOTS == 1 << 13);
    return row * 2654435769u >> 19;
}

/* A block finds rows of which the samples hold `many` or more, HEAVIES at most. Counts are words of their own: lanes that add 1 to the
 * same one do so at once, where they would add to a part of a word one after the other. */
__global__ void __launch_bounds__(SAMPLING) find_heavy_kernel(buckets s)
{
    __shared__ uint32_t samples[SLOTS], heavy[HEAVIES], found;
    tl_wait_for_earlier(TL_FIRST);
    uint32_t row[OF_THREAD];
    TL_UNROLL_FOR (uint32_t u = 0; u < OF_THREAD; u++)
        row[u] = s.indices[(uint64_t)s.k * (u * SAMPLING + threadIdx.x) / SAMPLES];
    for (uint32_t i = threadIdx.x; i < SLOTS; i += SAMPLING)
        samples[i] = 0;
    if (threadIdx.x < HEAVIES) heavy[threadIdx.x] = NONE;
    if (threadIdx.x == 0) found = 0;
    __syncthreads();
    TL_UNROLL_FOR (uint32_t u = 0; u < OF_THREAD; u++) {
        if (row[u] < s.rows) atomicAdd(samples + slot_of(row[u]), 1u);
    }
    __syncthreads();
    uint32_t hits[OF_THREAD];
    TL_UNROLL_FOR (uint32_t u = 0; u < OF_THREAD; u++) {
        hits[u] = row[u] < s.rows ? samples[slot_of(row[u])] : 0;
    }
    __syncthreads();
    /* The first of a slot stays. Of a warp one asks, or they would all come one after the other. */
    TL_UNROLL_FOR (uint32_t u = 0; u < OF_THREAD; u++) {
        bool asks = hits[u] >= s.many;
        if (__any_sync(~0u, asks)) {
            const uint32_t same = __match_any_sync(~0u, asks ? slot_of(row[u]) : SLOTS);
            asks &= __ffs((int)same) - 1 == (int)(threadIdx.x % 32);
        }
        if (!asks || atomicAdd(samples + slot_of(row[u]), 1u) != hits[u]) hits[u] = 0;
    }
    for (uint32_t of = MANY_SAMPLES; of; of /= 2) {
        TL_UNROLL_FOR (uint32_t u = 0; u < OF_THREAD; u++) {
            if (hits[u] < of * s.many) continue;
            const uint32_t place = atomicAdd(&found, 1u);
            if (place < s.heavies) heavy[place] = row[u];
            hits[u] = 0;
        }
        __syncthreads();
    }
    if (threadIdx.x < HEAVIES) s.heavy[threadIdx.x] = heavy[threadIdx.x];
}

/* Which of the heavy rows a row is, or NONE. */
struct heavy_table {
    uint32_t rows[HEAVIES];
    __align__(16) uint8_t at[SLOTS]; /* which may be in a slot */

    __device__ __forceinline__ void fill(const buckets &s)
    {
        static_assert(HEAVIES <= UINT8_MAX);
        for (uint32_t i = threadIdx.x; i < SLOTS / sizeof(uint4); i += THREADS)
            reinterpret_cast<uint4 *>(at)[i] = make_uint4(~0u, ~0u, ~0u, ~0u);
        if (threadIdx.x < HEAVIES) rows[threadIdx.x] = s.heavy[threadIdx.x];
        __syncthreads();
        if (threadIdx.x < HEAVIES && rows[threadIdx.x] != NONE) at[slot_of(rows[threadIdx.x])] = (uint8_t)threadIdx.x;
        __syncthreads();
    }
    __device__ __forceinline__ uint32_t find(uint32_t row) const
    {
        const uint32_t i = at[slot_of(row)];
        return i < HEAVIES && rows[i] == row ? i : NONE;
    }
};

/* The heavy rows of a bucket, which other blocks add and write, by their places. Complete behind the next barrier. */
struct heavy_places {
    uint32_t count, place[HEAVIES];

    __device__ __forceinline__ void list(const buckets &s, uint32_t bucket)
    {
        if (threadIdx.x == 0) count = 0;
        __syncthreads();
        if (threadIdx.x >= s.heavies || s.heavy[threadIdx.x] == NONE) return;
        uint32_t of;
        const uint32_t found = s.place_of(s.heavy[threadIdx.x], &of);
        if (of == bucket) place[atomicAdd(&count, 1u)] = found;
    }
    /* In few instructions, where it is asked in many places, of none or one mostly. */
    __device__ __forceinline__ bool hold_one(uint32_t of) const
    {
        bool found = false;
#pragma unroll 1
        for (uint32_t i = 0; i < count; i++)
            found |= place[i] == of;
        return found;
    }
    /* One from `from` on, of `number`. */
    __device__ __forceinline__ bool hold(uint32_t from, uint32_t number = 1) const
    {
        bool found = false;
        for (uint32_t i = 0; i < count; i++)
            found |= place[i] - from < number;
        return found;
    }
};

/* Starts copying the values of hits `from` to `to` of a kind, TL_LONG_ALL at most, to the stage behind the `held` values that it has.
 * POSITIONS: the hits have positions, by which the values of column `col` are read. */
template <bool POSITIONS>
__device__ __forceinline__ void copy_hits(const buckets &s, const piece_list &pieces, uint32_t col, uint32_t from,
                                          uint32_t to, tl_long_values &stage, uint32_t held)
{
    constexpr uint32_t AT_ONCE = 8; /* hits of a thread whose positions are on their way together */
    constexpr uint32_t ITEMS = TL_LONG_ALL / THREADS;
    static_assert(ITEMS == 32 && ITEMS % AT_ONCE == 0);
    const uint32_t lane = threadIdx.x % 32, begin = from + threadIdx.x - lane; /* the warp's first hit */
    const uint32_t found = pieces.piece_of(begin + lane * THREADS); /* lane i has that of the first hit of item i */
    TL_UNROLL_FOR (uint32_t first_item = 0; first_item < ITEMS; first_item += AT_ONCE) {
        if (first_item && from + first_item * THREADS >= to) break;
        const uint2 *hit[AT_ONCE];
        TL_UNROLL_FOR (uint32_t i = 0; i < AT_ONCE; i++) {
            const uint32_t item = first_item + i, start = begin + item * THREADS;
            const uint32_t piece = pieces.piece_near(__shfl_sync(~0u, found, item), start, lane);
            hit[i] = s.hits + (start + lane < to ? pieces.at[piece] + start + lane : 0);
        }
        const void *value[AT_ONCE];
        TL_UNROLL_FOR (uint32_t i = 0; i < AT_ONCE; i++)
            value[i] = POSITIONS ? (const void *)(s.values + ((int64_t)hit[i]->y * s.cols.divisor + col)) : &hit[i]->y;
        TL_UNROLL_FOR (uint32_t i = 0; i < AT_ONCE; i++) {
            const uint32_t at = begin + (first_item + i) * THREADS + lane;
            if (at < to) stage.copy(held + at - from, value[i]);
        }
    }
    tl_copy_commit();
}

/* sum + the values of a kind, all of one row, in order: side by side in the stage, as many as it holds, unless a part of it is left
 * that is not worth another list of pieces. `hits`: those of the first list, where the block has it and there are any. */
template <bool POSITIONS>
__device__ __forceinline__ float add_kind(const buckets &s, uint32_t kind, uint32_t col, float sum, piece_list &pieces,
                                          uint32_t *of_warps, tl_long_values &stage, tl_long_room &room,
                                          uint32_t hits = 0)
{
    uint32_t chunk = hits ? PIECES : 0, from = 0;
    while (from < hits || chunk < s.chunks) {
        uint32_t held = 0;
        while (TL_LONG_ALL - held >= LEAST_LOADED && (from < hits || chunk < s.chunks)) {
            if (from == hits) {
                hits = list_pieces(s, kind, chunk, pieces, of_warps);
                from = 0, chunk += PIECES;
            }
            const uint32_t to = min(hits, from + TL_LONG_ALL - held);
            copy_hits<POSITIONS>(s, pieces, col, from, to, stage, held);
            held += to - from, from = to;
        }
        stage.complete(held);
        sum = tl_add_stage(sum, stage, held, room);
    }
    return sum;
}

/* A block of the second launch for each heavy row, or for each row where there are no others, and of several columns for each; `hits` as
 * in add_kind. A function of its own, so that its registers and those of a window are not allotted together. */
template <bool POSITIONS = false>
__device__ __noinline__ void add_lone_row(buckets s, piece_list &pieces, uint32_t *of_warps, tl_long_values &stage,
                                          tl_long_room &room, uint32_t hits = 0)
{
    uint32_t block = blockIdx.x, col = 0;
    if constexpr (POSITIONS) block = s.cols.divmod(blockIdx.x, &col);
    const uint32_t row = s.heavies ? s.heavy[block] : block, kind = s.heavies ? s.count.divisor + block : block;
    if (row == NONE) return;
    const int64_t at = POSITIONS ? (int64_t)row * s.cols.divisor + col : row;
    const float sum =
        add_kind<POSITIONS>(s, kind, col, s.base ? s.base[at] : 0.0f, pieces, of_warps, stage, room, hits);
    if (threadIdx.x == 0) s.out[at] = sum;
}

/* ---- copies of the base ---------------------------------------------------------------------------------------------- */

/* Vectors of a thread of a block that copies, all of which are on their way at once. */
constexpr uint32_t COPIED = 8, TILE = 4 * COPIED * THREADS;

/* The block copies a tile of the base, of `total` elements, to the output, or clears it. The base is read once; the output stays in the
 * cache for those who add to it. */
__device__ __forceinline__ void copy_tile(const buckets &s, uint32_t total, uint32_t tile)
{
    const uint32_t from = tile * TILE;
    if (s.aligned && total - from >= TILE) {
        const uint32_t at = from + 4 * threadIdx.x;
        float4 quads[COPIED];
        TL_UNROLL_FOR (uint32_t i = 0; i < COPIED; i++)
            quads[i] = s.base ? __ldcs(reinterpret_cast<const float4 *>(s.base + at) + i * THREADS)
                              : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        TL_UNROLL_FOR (uint32_t i = 0; i < COPIED; i++)
            tl_store4(s.out + at + i * 4 * THREADS, quads[i]);
        return;
    }
    const uint32_t end = total - from < TILE ? total : from + TILE;
    for (uint32_t first = from + threadIdx.x; first < end; first += COPIED * THREADS) {
        float values[COPIED];
        TL_UNROLL_FOR (uint32_t i = 0; i < COPIED; i++)
            values[i] = s.base ? s.base[min(first + i * THREADS, end - 1)] : 0.0f;
        TL_UNROLL_FOR (uint32_t i = 0; i < COPIED; i++)
            if (first + i * THREADS < end) s.out[first + i * THREADS] = values[i];
    }
}

} /* namespace tl_buckets */
