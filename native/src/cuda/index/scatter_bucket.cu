/* Scatter-adds of many hits into a vector, or into rows of up to 128 columns, on CUDA, in two launches, beside which a third finds heavy
 * rows.
 *
 * Row r belongs to bucket r % buckets, so that rows beside each other, which lists often name most, are in different buckets. A block
 * of the first launch puts the hits of a chunk of the index list, row and value, in order of buckets, stably, and writes where each
 * bucket's piece of the chunk begins. A block of the second owns a bucket, whose hits are its pieces in order of chunks: it puts a
 * window of them in order of rows, stably and in one step, as there are few rows, and adds every row's in shared memory. So a hit is
 * moved once through memory, where a sort of the list moves it once for each digit, and nothing has to be counted before.
 *
 * Of so many rows that a bucket has thousands nothing is put in order of rows: a block deals the hits of a window to its warps by row,
 * and a warp adds them as they come to the sums. Where most rows have a hit, or a few, lines of rows share a bucket, which is copied in
 * whole lines to shared memory, where the sums are. Where most have none, further blocks of the first launch copy the base to the
 * output meanwhile, where the sums are then, of which caches hold those that are added to often.
 *
 * A heavy row, which has hits for a block of its own, is a kind beside the buckets. Samples of the list say which rows are: any row
 * may be, as the sums do not depend on it.
 *
 * Of rows of several columns the positions in the list are dealt, by which the second launch reads the values: a thread owns elements of
 * narrow rows (bucket_rows.cuh), a warp a wide one (bucket_wide.cuh), and beside either a launch of their own adds heavy rows.
 * The second launches of many rows are in bucket_lines.cuh. */
#include "cuda/device/division.cuh"
#include "cuda/device/instructions.cuh"
#include "cuda/device/vector.cuh"
#include "cuda/device/warp_sum.cuh"
#include "cuda/index/bucket.cuh"
#include "cuda/index/bucket_lines.cuh"
#include "cuda/index/bucket_rows.cuh"
#include "cuda/index/bucket_wide.cuh"
#include "cuda/index/long_run.cuh"
#include "cuda/index/order.cuh"
#include "cuda/index/rank.cuh"
#include "cuda/index/scatter.cuh"
#include "cuda/runtime/launch.cuh"

#include <algorithm>

namespace {

using namespace tl_buckets;

/* Hits that a bucket has at least where there are two for every multiprocessor: with those of uneven buckets less than 8 rounds.
 * More buckets than the device adds at once only have fewer hits each of those that are dealt together: short pieces are parts of
 * sectors. Buckets of lines have WINDOW_HITS, mostly one window, or twice as many where the device adds so many buckets at once: then
 * pieces are longer, and the first launch has fewer of them to tell where they begin. */
constexpr uint32_t BUCKET_HITS = 1700, WINDOW_HITS = 4096;
constexpr int ADDING = 3, DEALING = 4;                         /* blocks of a multiprocessor */
constexpr int FEW_DEALT = 8, SOME_DEALT = 12, MANY_DEALT = 16; /* hits of a thread, and of THREADS of them a chunk */
constexpr uint32_t ONE_BY_ONE = 256; /* hits of a row that a thread adds; more are a warp's, in chunks of 32·RUN */
constexpr int RUN = 16, CHUNK = 16 * RUN / 4;
constexpr int64_t LONE = 2048; /* hits of each of so few rows that each is a block's */
/* Hits of a heavy row, of about as long a chain as all else takes, as many as a bucket has where its rows are put in order, and
 * samples, of fewer of which it would be chance. */
constexpr int64_t HEAVY_HITS = 1024, LEAST_SAMPLES = 6;
/* Blocks of heavy rows, of a column each: about one on every multiprocessor, and more only where two rows have more columns. */
constexpr int64_t HEAVY_BLOCKS = 132;
/* Of rows of several columns as many chains as let the next launch run beside them: on a part of the multiprocessors
 * (tl_wait_for_earlier). */
constexpr int64_t BESIDE_PART = 4;
/* Rows for each hit: of more, single ones are far apart, and lines are more than what is added to. Hits of each row, of fewer of which
 * lines cost less than to put the hits of many rows in order, with so many counts to clear and to sum up. */
constexpr int64_t FEW_OF_ROWS = 32, SOME_OF_ROW = 8, PLACED_ROWS = 1 << 17;
/* Hits, of more of which all blocks have so many that putting them in order of rows takes longer than to add them to lines, if these are
 * not so few that many hits go to the same row (measured on an H200: 146 against 165 us of 8.5 million hits of 500,000 rows). */
constexpr int64_t MANY_HITS = 1 << 21, FEW_LINED = 1 << 16;
/* Lines are of 128 bytes, or, of fewer rows than DENSE for each hit, of 32, a sector: then rows beside each other, which uneven lists
 * name most, are in more buckets. A bucket of MOST_LINED rows has its sums, of 66 KiB, and a window of hits, of 30 KiB, in shared
 * memory: chips with 99 KiB for a block have room. So many that the buckets hold 2^24 rows; of more a block has a part of a bucket's,
 * and of so many that each bucket's hits were read by more than FEW_PARTS blocks the sums are in the output. */
constexpr int LINE_BITS = 5, DENSE_BITS = 3;
constexpr int64_t DENSE = 4;
constexpr uint32_t MOST_LINED = 528 << LINE_BITS;
constexpr int64_t FEW_PARTS = 4;
/* The rows of a bucket whose sums are in the output, the upper bits of a word. */
constexpr int64_t MOST_FAR = (int64_t)1 << (32 - FIELD), MOST_ROWS = INT32_MAX;
/* Of blocks that copy and those that deal one of 2^SPREAD deals, while there are any: dealing waits for memory and shared memory while
 * the others keep memory busy. Only where so many copy, as they do but for tables that are too large for lines and have many hits. */
constexpr uint32_t SPREAD = 2;
/* Rows of several columns, and hits of them. Tiles of fewer hits sort those of one tile in about the time of a launch, and, of more
 * columns than a warp has lanes, of a list that a block holds. */
constexpr int64_t LEAST_ROWS = 1024, LEAST_ROW_HITS = 4096;
constexpr int64_t SOME_ROWS = 512,
                  MANY_ROW_HITS = 1 << 15; /* of fewer rows scatter_few.cu sorts so many hits for longer */
/* Of more columns, which else have a sort of five launches: about a bucket for each. */
constexpr int64_t LEAST_WIDE_ROWS = 256;
/* Of which all pieces of a bucket are listed at once. */
constexpr int64_t MOST_WIDE_HITS = (int64_t)PIECES * FEW_DEALT * THREADS;
/* Hits of a row on average where narrow rows are fewer still, and scatter_few.cu does not sort so many: in its bucket a row of as many
 * takes one window. */
constexpr int64_t MEAN_ROW_HITS = 4096;
static_assert(MEAN_ROW_HITS <= WINDOW);
static_assert((int64_t)MOST_BUCKETS * MOST_LINED >= (int64_t)1 << 24 && MOST_PLACES <= MOST_LINED &&
              MOST_LINED <= UINT16_MAX + 1 && FEW_PARTS * MOST_LINED <= MOST_FAR);
static_assert(MOST_BUCKETS * MOST_FAR >= MOST_ROWS);
static_assert(MOST_BUCKETS + HEAVIES < KINDS && MOST_BUCKETS * MOST_PLACES * MOST_WIDE <= UINT32_MAX);
static_assert(MANY_DEALT * THREADS <= UINT16_MAX);

/* A block puts the hits of a chunk, ITEMS·THREADS of the list, in order of buckets in shared memory, from where they leave side by
 * side; POSITIONS: with their positions in the list in the place of values. A warp has 32·ITEMS neighbours of the list. Where a block
 * deals two chunks one after the other, it writes where the pieces of both begin at once: each such store takes a sector. Other blocks
 * copy a tile each. */
template <int ITEMS, bool POSITIONS = false>
__global__ void __launch_bounds__(THREADS, DEALING) deal_hits_kernel(buckets s)
{
    static_assert(ITEMS % 4 == 0);
    TL_DYNAMIC_SHARED(uint4, room); /* tallies, then hits: place and value; last those that are not added */
    __shared__ __align__(16) uint32_t first[KINDS + 1];
    __shared__ uint16_t earlier[KINDS]; /* of the first chunk of two */
    __shared__ uint32_t of_warps[WARPS];
    __shared__ heavy_table heavy;
    uint16_t *const tallies = reinterpret_cast<uint16_t *>(room);
    uint2 *const staged = reinterpret_cast<uint2 *>(room);
    const tl_order order = s.heavies ? TL_BESIDE : TL_FIRST;
    tl_wait_for_earlier(order);
    const uint32_t dealer = blockIdx.x >> s.spread;
    if (dealer << s.spread != blockIdx.x || dealer >= s.dealers) {
        copy_tile(s, s.rows, blockIdx.x - min(dealer + 1, s.dealers));
        tl_wait_at_end(order);
        return;
    }
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint32_t none = s.count.divisor + s.heavies, kinds = none + 1;
    uint16_t *const of_warp = tallies + warp * tl_tally_stride(kinds);
    /* The lines of what the warp takes from a list in a chunk, which wait in L2 until then. */
    const auto fetch = [&](const void *list, uint32_t of_chunk) {
        const uint32_t line = of_chunk * (ITEMS * THREADS) + (warp * ITEMS + lane) * 32;
        if (lane < ITEMS && line < s.k) tl_fetch_word_to_l2(static_cast<const float *>(list) + line);
    };
    bool some_heavy = false;
    const uint32_t end = min((dealer + 1) * s.each, s.chunks);
    for (uint32_t chunk = dealer * s.each; chunk < end; chunk++) {
        const bool again = chunk % s.each != 0; /* of two */
        const uint32_t from = chunk * (ITEMS * THREADS) + warp * ITEMS * 32 + lane;
        const uint32_t left = from < s.k ? s.k - from : 0;
        uint32_t word[ITEMS], to[ITEMS];
        float value[ITEMS];
        const auto load_values = [&] {
            int here = (int)left; /* compared anew, as sixteen answers have no room until then */
            tl_forget_origin(here);
            const float *const values = s.values + from;
            TL_UNROLL_FOR (uint32_t i = 0; i < ITEMS; i++)
                value[i] = POSITIONS ? __uint_as_float(from + i * 32) : i * 32 < (uint32_t)here ? values[i * 32] : 0.0f;
        };
        const uint32_t *const rows = s.indices + from;
        TL_UNROLL_FOR (uint32_t i = 0; i < ITEMS; i++)
            word[i] = i * 32 < left ? rows[i * 32] : UINT32_MAX;
        if (ITEMS == FEW_DEALT)
            load_values(); /* registers have room for them meanwhile */
        else
            fetch(s.values, chunk);
        tl_clear_tallies(tallies, kinds);
        if (!again) {
            tl_wait_at_end(order); /* for the heavy rows */
            some_heavy = s.heavies && s.heavy[0] != NONE;
            if (some_heavy) heavy.fill(s);
        }
        const auto set_words = [&](auto find_heavy) {
            TL_UNROLL_FOR (uint32_t i = 0; i < ITEMS; i++) {
                uint32_t bucket;
                const uint32_t place = s.place_of(word[i], &bucket), is_heavy = find_heavy(word[i]);
                word[i] = word[i] >= s.rows  ? none
                          : is_heavy != NONE ? s.count.divisor + is_heavy
                                             : place << FIELD | bucket;
            }
        };
        if (some_heavy)
            set_words([&](uint32_t row) { return heavy.find(row); });
        else
            set_words([](uint32_t) { return NONE; });
        if (ITEMS > FEW_DEALT) { /* for what is dealt here next, while there is nothing to ask for */
            const uint32_t next = chunk + 1 < end ? chunk + 1 : chunk + 1 + (s.together - 1) * s.each;
            fetch(s.indices, next);
            fetch(s.values, next);
        }
        __syncthreads();
        tl_count_hits(of_warp, kinds, [&](int i) { return word[i] % KINDS; }, to);
        __syncthreads();
        tl_place_kinds(tallies, kinds, first, of_warps);
        TL_UNROLL_FOR (uint32_t i = 0; i < ITEMS; i++)
            to[i] += of_warp[word[i] % KINDS];
        if (ITEMS > FEW_DEALT) load_values();
        /* They are on their way with the values, where the block would wait for them at its end. */
#pragma unroll 1
        for (uint32_t kind = threadIdx.x; kind < kinds; kind += THREADS) {
            uint16_t *const begin = s.begins + kind * s.stride + chunk;
            if (again)
                *reinterpret_cast<uint32_t *>(begin - 1) = earlier[kind] | first[kind] << 16;
            else if (chunk + 1 < end)
                earlier[kind] = (uint16_t)first[kind];
            else
                *begin = (uint16_t)first[kind];
        }
        __syncthreads(); /* the room was the tallies' */
        TL_UNROLL_FOR (uint32_t i = 0; i < ITEMS; i++)
            staged[to[i]] = make_uint2(word[i] >> FIELD, __float_as_uint(value[i]));
        __syncthreads();
        uint4 *const out = reinterpret_cast<uint4 *>(s.hits + (int64_t)chunk * (ITEMS * THREADS));
        TL_UNROLL_FOR (uint32_t i = 0; i < ITEMS / 2; i++) {
            const uint32_t pair = i * THREADS + threadIdx.x;
            if (2 * pair < first[none]) out[pair] = room[pair];
        }
        if (chunk + 1 < end) __syncthreads(); /* the room becomes the tallies' */
    }
}

/* ---- buckets --------------------------------------------------------------------------------------------------------- */

/* The first blocks have a heavy row each, those behind them own all other rows of a bucket. */
__global__ void __launch_bounds__(THREADS, ADDING) add_buckets_kernel(buckets s)
{
    /* Tallies, then the values of a window in order of rows, and behind these the warps' chunks; or the stage of a heavy row. */
    TL_DYNAMIC_SHARED(uint4, room);
    __shared__ __align__(16) uint32_t first[MOST_PLACES + 2];
    __shared__ float sums[MOST_PLACES];
    __shared__ tl_long_room heavy_room;
    __shared__ heavy_places heavy;
    __shared__ uint32_t left[WINDOW / ONE_BY_ONE], of_warps[2 * WARPS], many;
    __shared__ piece_list pieces;
    __shared__ window_marks marks;
    uint16_t *const tallies = reinterpret_cast<uint16_t *>(room);
    float *const values = reinterpret_cast<float *>(room);
    float4 *const chunk_of_warp = reinterpret_cast<float4 *>(values + WINDOW + 4) + threadIdx.x / 32 * CHUNK;
    tl_wait_for_earlier();
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, count = s.count.divisor;
    if (blockIdx.x < s.heavies || s.places == 1) {
        add_lone_row(s, pieces, of_warps, *reinterpret_cast<tl_long_values *>(room), heavy_room);
        return;
    }
    const uint32_t bucket = blockIdx.x - s.heavies, places = (s.rows - bucket - 1) / count + 1;
    float base[4]; /* on their way with the list of pieces */
    static_assert(MOST_PLACES <= 4 * THREADS);
    TL_UNROLL_FOR (uint32_t i = 0; i < 4; i++) {
        const uint32_t p = i * THREADS + threadIdx.x;
        base[i] = s.base && p < places ? s.base[p * count + bucket] : 0.0f;
    }
    for (uint32_t chunk = 0; chunk < s.chunks; chunk += PIECES) {
        for (uint32_t from = 0, hits = 1; from < hits; from += WINDOW) {
            hits = list_window(s, bucket, chunk, from, pieces.at, marks, of_warps);
            __syncthreads();
            window w;
            w.load_marked(s.hits, pieces.at, marks, min(hits - from, WINDOW), places);
            if (chunk + from == 0) { /* while the hits are on their way */
                heavy.list(s, bucket);
                TL_UNROLL_FOR (uint32_t i = 0; i < 4; i++)
                    if (i * THREADS + threadIdx.x < places) sums[i * THREADS + threadIdx.x] = base[i];
            }
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
                const float sum = tl_add_run<RUN>(list, first[p], first[p + 1], 0, sums[p], chunk_of_warp);
                if (lane == 0) sums[p] = sum;
            }
            __syncthreads();
        }
    }
    for (uint32_t p = threadIdx.x; p < places; p += THREADS)
        if (!heavy.hold(p)) s.out[p * count + bucket] = sums[p];
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

/* Shared memory of a block of lines: sums, and the hits of a window. */
int64_t lines_shared(uint32_t places)
{
    return WINDOW * (sizeof(float) + sizeof(uint16_t)) + (int64_t)places * sizeof(float);
}

/* Of so many lines the blocks for each bucket, of as many buckets as there can be. */
int64_t parts_of(int64_t rows) { return tl_ceil_div(rows, (int64_t)MOST_BUCKETS * MOST_LINED); }

/* Blocks of lines that a multiprocessor holds at a time: as many as its registers have room for, or its shared memory, which is a KiB
 * more than a block's. A block of some of the rows needs 4 KiB besides its sums and hits. */
int64_t lines_adding(tl_context *ctx, int64_t rows)
{
    constexpr int64_t LEAST_ADDING = 2, BESIDES = 4 << 10;
    int most = 0;
    if (cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, tl_context_ordinal(ctx)) != cudaSuccess)
        return LEAST_ADDING;
    int64_t blocks = LINES_ADDING;
    const auto shared = [&] {
        const int64_t buckets = std::min(blocks * tl_cuda_sms(ctx) - HEAVIES, (int64_t)MOST_BUCKETS) * parts_of(rows);
        return lines_shared((uint32_t)tl_ceil_div(rows, buckets)) + BESIDES;
    };
    while (blocks > LEAST_ADDING && blocks * shared() > most + (1 << 10))
        blocks--;
    return blocks;
}

/* Which kernel the second launch is. */
enum form { PLACES, LINES, FAR, ROWS, WIDE };

form form_of(int64_t rows, int64_t cols, int64_t k)
{
    if (cols > 1) return cols > TL_NARROW_COLUMNS ? WIDE : ROWS;
    if (rows > FEW_OF_ROWS * k) return FAR;
    const bool many = k > MANY_HITS && rows > FEW_LINED;
    if (!many && rows <= (k > SOME_OF_ROW * rows ? (int64_t)MOST_BUCKETS * MOST_PLACES : PLACED_ROWS)) return PLACES;
    return parts_of(rows) > FEW_PARTS ? FAR : LINES;
}

} /* namespace */

bool tl_buckets_serve_rows(int64_t rows, int64_t cols, int64_t k)
{
    if (cols < 2 || rows > (int64_t)MOST_BUCKETS * MOST_PLACES) return false;
    if (cols > TL_NARROW_COLUMNS) {
        return cols <= MOST_WIDE && rows > LEAST_WIDE_ROWS && k > TL_TILE_INDICES && k <= MOST_WIDE_HITS;
    }
    const int64_t some = k > MANY_ROW_HITS ? SOME_ROWS : LEAST_ROWS;
    const int64_t least = k > TL_SORTED_HITS ? std::min(k / MEAN_ROW_HITS, some) : some;
    return rows > least && k > LEAST_ROW_HITS && k <= INT32_MAX;
}

bool tl_buckets_serve(int64_t rows, int64_t cols, int64_t k)
{
    return cols == 1 && k > TL_TILE_INDICES && k <= INT32_MAX && rows <= MOST_ROWS;
}

bool tl_lone_rows(int64_t rows, int64_t cols, int64_t k) { return tl_buckets_serve(rows, cols, k) && rows * LONE < k; }

int32_t tl_scatter_buckets(tl_context *ctx, const char *name, const float *base, const float *values,
                           const uint32_t *indices, int64_t rows, int64_t cols, int64_t k, float *out)
{
    const form form = form_of(rows, cols, k);
    const bool lined = form == LINES, far = form == FAR, wide = form == WIDE, of_rows = form == ROWS || wide;
    const int line_bits = !lined ? 0 : rows < DENSE * k ? DENSE_BITS : LINE_BITS;
    const int64_t line = (int64_t)1 << line_bits, lines = tl_ceil_div(rows, line), parts = lined ? parts_of(rows) : 1;
    const int64_t most_lines = lined ? MOST_LINED / line : far ? MOST_FAR : (int64_t)MOST_PLACES;
    const int64_t dealing = DEALING * tl_cuda_sms(ctx);
    const int64_t of_sm = lined ? lines_adding(ctx, rows) : wide ? WIDE_ADDING : of_rows ? ROWS_ADDING : ADDING;
    const int64_t all_adding = of_sm * tl_cuda_sms(ctx);
    /* Some places are left to heavy rows, of which uneven lists have two or more, or buckets would wait for them. */
    const int64_t of_heavies = wide ? SOME_HEAVIES * of_sm * tl_ceil_div(cols, 32)
                                    : std::max(2 * cols, (int64_t)HEAVIES);
    const int64_t adding = all_adding - std::min(of_heavies, all_adding / 4);
    const int64_t of_window = of_sm == LINES_ADDING ? 2 * WINDOW_HITS : WINDOW_HITS; /* hits of lines */
    int64_t count = of_rows ? adding
                    : lined ? std::max(tl_ceil_div(k, of_window), adding)
                            : std::max(tl_ceil_div(k, (int64_t)BUCKET_HITS), far ? adding : 2 * tl_cuda_sms(ctx));
    /* Hits far apart wait for memory, and uneven ones for a warp: of more buckets other blocks go on meanwhile. */
    count = std::min({count, (int64_t)MOST_BUCKETS, far || lined ? (int64_t)MOST_BUCKETS : adding});
    count = std::max(count, tl_ceil_div(lines, parts * most_lines));
    /* As few rounds of the last blocks as there can be, all of which are full. */
    if (lined) count = std::min(tl_ceil_div(count * parts, adding) * adding / parts, (int64_t)MOST_BUCKETS);
    count = std::min(count, lines);
    /* As few rounds of the blocks as there can be, and then as few hits in each. */
    const int64_t rounds = tl_ceil_div(k, dealing * MANY_DEALT * THREADS);
    const int64_t items = tl_ceil_div(k, rounds * dealing * THREADS);
    const int dealt = of_rows || items <= FEW_DEALT ? FEW_DEALT : items <= SOME_DEALT ? SOME_DEALT : MANY_DEALT;
    const int64_t span = dealt * THREADS, chunks = tl_ceil_div(k, span), stride = tl_ceil_div(chunks, 4) * 4,
                  places = tl_ceil_div(lines, count * parts) * line;
    const int64_t beside = of_rows ? tl_cuda_sms(ctx) / BESIDE_PART / tl_ceil_div(cols, 32) : HEAVIES;
    const int64_t heavy_rows = wide ? beside : std::min(beside, HEAVY_BLOCKS / cols);
    const int64_t heavies = places == 1 && !of_rows ? 0 : std::clamp(heavy_rows, (int64_t)2, (int64_t)HEAVIES);

    tl_scratch<uint16_t> begins(ctx);
    tl_scratch<uint2> hits(ctx);
    tl_scratch<uint32_t> heavy(ctx);
    TL_TRY(begins.allocate((count + heavies + 1) * stride));
    TL_TRY(hits.allocate(chunks * span));
    TL_TRY(heavy.allocate(HEAVIES));
    buckets s = {base, values, out, indices, (uint32_t)rows, (uint32_t)k, (uint32_t)chunks, (uint32_t)span};
    s.count = tl_fastdiv(count), s.cols = tl_fastdiv(cols);
    const int64_t tiles = far ? tl_ceil_div(rows, TILE) : 0; /* that blocks of the first launch copy */
    s.line_bits = (uint32_t)line_bits, s.spread = tiles >= ((1 << SPREAD) - 1) * chunks ? SPREAD : 0;
    s.together = (uint32_t)dealing >> s.spread;
    s.places = (uint32_t)places, s.parts = (uint32_t)parts;
    s.heavies = (uint32_t)heavies, s.heavy = heavy;
    s.many = (uint32_t)std::max(
        {LEAST_SAMPLES, (wide ? HEAVY_WIDE : HEAVY_HITS) * SAMPLES / k, lined ? 0 : (int64_t)SAMPLES / count});
    s.aligned = tl_aligned4(base) && tl_aligned4(out);
    s.stride = (uint32_t)stride, s.begins = begins, s.hits = hits;
    /* Two chunks each where the device deals an even number of times as many as at once. */
    s.each = !of_rows && !far && tl_ceil_div(chunks, dealing) % 2 == 0 ? 2 : 1;
    s.dealers = (uint32_t)tl_ceil_div(chunks, (int64_t)s.each);
    const size_t of_dealt = at_least((size_t)span * sizeof(uint2), (uint32_t)(count + heavies + 1));
    const auto deal = of_rows               ? deal_hits_kernel<FEW_DEALT, true>
                      : dealt == FEW_DEALT  ? deal_hits_kernel<FEW_DEALT>
                      : dealt == SOME_DEALT ? deal_hits_kernel<SOME_DEALT>
                                            : deal_hits_kernel<MANY_DEALT>;
    if (heavies) TL_TRY(tl_launch_ahead(ctx, name, find_heavy_kernel, 1, SAMPLING, 0, s));
    TL_TRY(launch(ctx, name, deal, s.dealers + tiles, of_dealt, s));
    const int64_t first_blocks = heavies * cols;
    if (wide) return add_wide(ctx, name, s);
    if (of_rows) return add_rows(ctx, name, s);
    const size_t of_places = at_least((WINDOW + 4) * sizeof(float) + WARPS * CHUNK * sizeof(float4), s.places + 1),
                 of_block = lined ? (size_t)lines_shared(s.places)
                            : far ? WINDOW * sizeof(uint2)
                                  : of_places,
                 of_heavy = sizeof(tl_long_values) + (lined || far ? sizeof(piece_list) : 0);
    return launch(ctx, name,
                  lined ? (of_sm == LINES_ADDING ? add_lines_kernel<LINES_ADDING> : add_lines_kernel<LARGE_ADDING>)
                  : far ? add_far_kernel
                        : add_buckets_kernel,
                  first_blocks + count * parts, std::max(of_block, of_heavy), s);
}
