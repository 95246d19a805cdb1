/* A stable sort of up to TL_SORTED_HITS indices by row on CUDA, in two launches.
 *
 * Blocks of the first sort chunks of the list. The second cuts the rows at splitters, which are regular samples of the sorted
 * chunks in order, so that about as many hits lie between two of them wherever the rows crowd (Shi and Schaeffer, "Parallel Sorting
 * by Regular Sampling", 1992). A block owns the rows from one splitter to the next. It searches every chunk for its first row, which
 * also says how many hits lie before in the sorted list, and sorts its hits. A row that holds several splitters is no block's
 * alone: its hits lie in order in the chunks, and the blocks of these splitters copy them.
 *
 * A list of one chunk takes one launch. Further blocks of the first launch copy an array. */
#include "cuda/device/vector.cuh"
#include "cuda/device/warp_sum.cuh"
#include "cuda/index/scatter.cuh"
#include "cuda/runtime/launch.cuh"

#include <cub/block/block_radix_sort.cuh>

namespace {

constexpr int THREADS = 256;
constexpr int POSITION_BITS = 17; /* of a word: the row, then the position */
constexpr uint32_t CHUNK = 2048, MAX_CHUNKS = TL_SORTED_HITS / CHUNK, CHUNK_ITEMS = CHUNK / THREADS;
constexpr uint32_t GAP = 64; /* from a sample of a chunk to the next */
constexpr uint32_t CHUNK_SAMPLES = CHUNK / GAP, SAMPLE_ITEMS = MAX_CHUNKS * CHUNK_SAMPLES / THREADS;
constexpr uint32_t STEP = 8; /* samples from a splitter to the next: 512 hits, if no chunk is unlike the others */
constexpr uint32_t TILES = MAX_CHUNKS * CHUNK_SAMPLES / STEP; /* blocks of the second launch */
constexpr int FEW_ITEMS = 4, MAX_ITEMS = 20;                  /* hits of a thread of a tile */
constexpr uint32_t COPIED = 32 * THREADS;                     /* elements of the base that a block copies */
static_assert(TL_SORTED_HITS == 1 << POSITION_BITS && TILES <= THREADS && 3 * MAX_CHUNKS <= THREADS &&
              MAX_CHUNKS == 2 * 32);
/* Between two splitters that differ lie 2·STEP - 1 samples at most, those that equal the first among them, and in every chunk the
 * hits of a gap for each, and of one more. */
static_assert((2 * STEP - 1) * GAP + MAX_CHUNKS * (GAP - 1) <= MAX_ITEMS * THREADS);

__device__ __forceinline__ uint32_t row_of(uint64_t word) { return (uint32_t)(word >> POSITION_BITS); }

/* The block's share of the copied array. */
__device__ __forceinline__ void copy_share(const tl_hit_sort &s, uint32_t share)
{
    const int64_t from = (int64_t)share * COPIED;
    if (tl_aligned4(s.base) && tl_aligned4(s.out) && from + COPIED <= s.copied) {
        float4 v[COPIED / (4 * THREADS)] = {};
        TL_UNROLL_FOR (uint32_t u = 0; u < COPIED / (4 * THREADS); u++)
            if (s.base) v[u] = tl_load4(s.base + from + 4 * (u * THREADS + threadIdx.x));
        TL_UNROLL_FOR (uint32_t u = 0; u < COPIED / (4 * THREADS); u++)
            tl_store4(s.out + from + 4 * (u * THREADS + threadIdx.x), v[u]);
        return;
    }
    for (uint32_t i = threadIdx.x; i < COPIED; i += THREADS)
        if (from + i < s.copied) s.out[from + i] = s.base ? s.base[from + i] : 0.0f;
}

/* Writes a hit to its place in the sorted list. */
__device__ __forceinline__ void write_hit(const tl_hit_sort &s, uint32_t place, uint64_t word)
{
    if (place >= s.k) return; /* behind the list */
    s.keys[place] = row_of(word);
    s.positions[place] = (uint32_t)word & ((1u << POSITION_BITS) - 1);
}

/* An index to ignore has the row `rows`; so have the places behind the list, whose positions are the greatest. The first sample of
 * a chunk is one hit further in every chunk: chunks that are alike have samples in different rows. */
__global__ void __launch_bounds__(THREADS)
    sort_chunks_kernel(tl_hit_sort s, uint32_t bits, uint32_t chunks, uint64_t *words, uint32_t *samples)
{
    tl_wait_for_earlier();
    if (blockIdx.x >= chunks) {
        copy_share(s, blockIdx.x - chunks);
        return;
    }
    using Sort = cub::BlockRadixSort<uint64_t, THREADS, CHUNK_ITEMS>;
    __shared__ typename Sort::TempStorage storage;
    const uint32_t from = blockIdx.x * CHUNK;
    if (blockIdx.x == 0 && threadIdx.x == 0) *s.cleared = 0;
    uint64_t word[CHUNK_ITEMS];
    TL_UNROLL_FOR (uint32_t i = 0; i < CHUNK_ITEMS; i++) {
        const uint32_t position = from + threadIdx.x * CHUNK_ITEMS + i;
        word[i] = (uint64_t)(position < s.k ? min(s.indices[position], s.rows) : s.rows) << POSITION_BITS | position;
    }
    Sort(storage).SortBlockedToStriped(word, POSITION_BITS, POSITION_BITS + bits);
    TL_UNROLL_FOR (uint32_t i = 0; i < CHUNK_ITEMS; i++) {
        const uint32_t place = i * THREADS + threadIdx.x;
        if (chunks == 1) {
            write_hit(s, place, word[i]);
            continue;
        }
        words[from + place] = word[i];
        if (place % GAP == blockIdx.x % GAP) samples[blockIdx.x * CHUNK_SAMPLES + place / GAP] = row_of(word[i]);
    }
}

/* The first place of a sorted chunk whose row is not below `row`. The samples leave fewer than GAP places, of which WAYS - 1 are
 * looked at together. */
__device__ __forceinline__ uint32_t first_of_row(const uint64_t *words, const uint32_t *samples, uint32_t chunk,
                                                 uint32_t row)
{
    constexpr uint32_t WAYS = 8;
    static_assert(WAYS * WAYS == GAP);
    uint32_t below = 0; /* samples of smaller rows */
    TL_UNROLL_FOR (uint32_t step = CHUNK_SAMPLES; step; step /= 2)
        if (below + step <= CHUNK_SAMPLES && samples[below + step - 1] < row) below += step;
    uint32_t from = below ? (below - 1) * GAP + chunk % GAP + 1 : 0;
    const uint32_t to = below < CHUNK_SAMPLES ? below * GAP + chunk % GAP : CHUNK;
    TL_UNROLL_FOR (uint32_t step = WAYS; step; step /= WAYS) {
        uint32_t found[WAYS - 1], parts = 0; /* places of smaller rows, one in `step` */
        TL_UNROLL_FOR (uint32_t i = 0; i < WAYS - 1; i++) {
            const uint32_t place = from + i * step + step - 1;
            found[i] = place < to ? row_of(words[place]) : UINT32_MAX;
        }
        TL_UNROLL_FOR (uint32_t i = 0; i < WAYS - 1; i++)
            parts += found[i] < row;
        from += parts * step;
    }
    return from;
}

/* What a block of the second launch shares, but for the room to sort. */
struct tile {
    uint32_t splitters[TILES + 1];
    uint32_t first, last; /* of the splitters that equal the block's */
    /* In every chunk: where the row of the splitter, the rows of the block alone and the rows behind begin. */
    uint32_t begin[3][MAX_CHUNKS];
    uint32_t before;                     /* hits of smaller rows */
    uint32_t shared_before[MAX_CHUNKS];  /* hits of the row of several splitters in earlier chunks */
    uint32_t own_before[MAX_CHUNKS + 1]; /* hits of the block's own rows in earlier chunks */
    uint32_t own_place;                  /* of the first of these in the sorted list */
};

/* Sorts the block's own hits, of rows from `first` to before `end`. */
template <int ITEMS>
__device__ __forceinline__ void sort_own(const tl_hit_sort &s, const tile &t, const uint64_t *words, uint32_t chunks,
                                         uint32_t first, uint32_t end, char *room)
{
    using Sort = cub::BlockRadixSort<uint64_t, THREADS, ITEMS>;
    const uint32_t hits = t.own_before[chunks];
    const uint64_t origin = (uint64_t)first << POSITION_BITS;
    uint32_t chunk = 0, at[ITEMS];
    for (uint32_t step = MAX_CHUNKS / 2; step; step /= 2) /* the last chunk with no more hits before it */
        if (chunk + step < chunks && t.own_before[chunk + step] <= threadIdx.x * ITEMS) chunk += step;
    TL_UNROLL_FOR (int i = 0; i < ITEMS; i++) {
        const uint32_t hit = threadIdx.x * ITEMS + i;
        while (hit < hits && hit >= t.own_before[chunk + 1])
            chunk++;
        at[i] = hit < hits ? chunk * CHUNK + t.begin[1][chunk] + (hit - t.own_before[chunk]) : UINT32_MAX;
    }
    uint64_t word[ITEMS];
    TL_UNROLL_FOR (int i = 0; i < ITEMS; i++) {
        word[i] = (uint64_t)(end - first) << POSITION_BITS;
        if (at[i] != UINT32_MAX) word[i] = words[at[i]] - origin;
    }
    Sort(*reinterpret_cast<typename Sort::TempStorage *>(room))
        .SortBlockedToStriped(word, POSITION_BITS, POSITION_BITS + 32 - __clz((int)(end - first)));
    TL_UNROLL_FOR (int i = 0; i < ITEMS; i++) {
        const uint32_t j = i * THREADS + threadIdx.x;
        if (j < hits) write_hit(s, t.own_place + j, word[i] + origin);
    }
}

__global__ void __launch_bounds__(THREADS)
    sort_tiles_kernel(tl_hit_sort s, uint32_t bits, uint32_t chunks, const uint64_t *words, const uint32_t *samples)
{
    using SampleSort = cub::BlockRadixSort<uint32_t, THREADS, SAMPLE_ITEMS>;
    using FewSort = cub::BlockRadixSort<uint64_t, THREADS, FEW_ITEMS>;
    using LargeSort = cub::BlockRadixSort<uint64_t, THREADS, MAX_ITEMS>;
    union storage {
        typename SampleSort::TempStorage samples;
        typename FewSort::TempStorage few;
        typename LargeSort::TempStorage large;
    };
    /* The samples as they come stay behind the room to sort them until all chunks have been searched. */
    static_assert(sizeof(typename SampleSort::TempStorage) % sizeof(uint32_t) == 0 &&
                  sizeof(storage) >= sizeof(typename SampleSort::TempStorage) + TILES * STEP * sizeof(uint32_t));
    __shared__ __align__(16) char room[sizeof(storage)];
    uint32_t *const in_chunks = reinterpret_cast<uint32_t *>(room + sizeof(typename SampleSort::TempStorage));
    __shared__ tile t;
    tl_wait_for_earlier();
    const uint32_t tiles = chunks * CHUNK_SAMPLES / STEP, count = chunks * CHUNK_SAMPLES;
    uint32_t sample[SAMPLE_ITEMS];
    TL_UNROLL_FOR (uint32_t i = 0; i < SAMPLE_ITEMS; i++) {
        const uint32_t j = threadIdx.x * SAMPLE_ITEMS + i;
        sample[i] = j < count ? samples[j] : UINT32_MAX;
        in_chunks[j] = sample[i];
    }
    SampleSort(*reinterpret_cast<typename SampleSort::TempStorage *>(room)).SortBlockedToStriped(sample, 0, (int)bits);
    TL_UNROLL_FOR (uint32_t i = 0; i < SAMPLE_ITEMS; i++) {
        const uint32_t j = i * THREADS + threadIdx.x;
        if (j % STEP == 0 && j < count) t.splitters[j / STEP] = j ? sample[i] : 0;
    }
    if (threadIdx.x == 0) t.splitters[tiles] = s.rows + 1;
    __syncthreads();
    const uint32_t low = t.splitters[blockIdx.x], high = t.splitters[blockIdx.x + 1];
    if (threadIdx.x < tiles && t.splitters[threadIdx.x] == low) {
        if (threadIdx.x == 0 || t.splitters[threadIdx.x - 1] != low) t.first = threadIdx.x;
        if (t.splitters[threadIdx.x + 1] != low) t.last = threadIdx.x;
    }
    __syncthreads();
    const uint32_t first = t.first, last = t.last, own = first < last ? low + 1 : low;

    if (threadIdx.x < 3 * chunks) {
        const uint32_t bound = threadIdx.x / chunks, chunk = threadIdx.x % chunks;
        const uint32_t row = bound == 0 ? low : bound == 1 ? own : max(high, own);
        t.begin[bound][chunk] = first_of_row(words + chunk * CHUNK, in_chunks + chunk * CHUNK_SAMPLES, chunk, row);
    }
    __syncthreads();
    if (threadIdx.x < 32) { /* a lane has two chunks */
        const uint32_t chunk = 2 * threadIdx.x;
        uint32_t before = 0, shared[2] = {0, 0}, mine[2] = {0, 0};
        TL_UNROLL_FOR (int i = 0; i < 2; i++)
            if (chunk + i < chunks) {
                before += t.begin[0][chunk + i];
                shared[i] = t.begin[1][chunk + i] - t.begin[0][chunk + i];
                mine[i] = t.begin[2][chunk + i] - t.begin[1][chunk + i];
            }
        const uint32_t all_shared = tl_sum_to_lane(shared[0] + shared[1], threadIdx.x);
        const uint32_t all_mine = tl_sum_to_lane(mine[0] + mine[1], threadIdx.x);
        before = tl_sum_to_lane(before, threadIdx.x); /* of all chunks for the last lane */
        t.shared_before[chunk] = all_shared - shared[1] - shared[0];
        t.shared_before[chunk + 1] = all_shared - shared[1];
        if (chunk == 0) t.own_before[0] = 0;
        t.own_before[chunk + 1] = all_mine - mine[1];
        t.own_before[chunk + 2] = all_mine;
        if (threadIdx.x == 31) t.before = before, t.own_place = before + all_shared;
    }
    __syncthreads();

    for (uint32_t chunk = blockIdx.x - first; first < last && chunk < chunks; chunk += last - first + 1) {
        const uint32_t from = t.begin[0][chunk], hits = t.begin[1][chunk] - from;
        for (uint32_t i = threadIdx.x; i < hits; i += THREADS)
            write_hit(s, t.before + t.shared_before[chunk] + i, words[chunk * CHUNK + from + i]);
    }
    if (blockIdx.x != last || t.own_before[chunks] == 0) return;
    if (t.own_before[chunks] <= FEW_ITEMS * THREADS)
        sort_own<FEW_ITEMS>(s, t, words, chunks, own, high, room);
    else
        sort_own<MAX_ITEMS>(s, t, words, chunks, own, high, room);
}

} /* namespace */

int32_t tl_sort_hits(tl_context *ctx, const char *name, const tl_hit_sort &s)
{
    const int64_t chunks = tl_ceil_div(s.k, CHUNK);
    const uint32_t bits = 32 - (uint32_t)__builtin_clz(s.rows);
    tl_scratch<uint64_t> words(ctx);
    tl_scratch<uint32_t> samples(ctx);
    TL_TRY(words.allocate(chunks * CHUNK));
    TL_TRY(samples.allocate(chunks * CHUNK_SAMPLES));
    TL_TRY(tl_launch_ahead(ctx, name, sort_chunks_kernel, (unsigned)(chunks + tl_ceil_div(s.copied, COPIED)), THREADS,
                           0, s, bits, (uint32_t)chunks, (uint64_t *)words, (uint32_t *)samples));
    if (chunks == 1) return TORCHLEAN_OK;
    return tl_launch_ahead(ctx, name, sort_tiles_kernel, (unsigned)(chunks * CHUNK_SAMPLES / STEP), THREADS, 0, s, bits,
                           (uint32_t)chunks, (const uint64_t *)words, (const uint32_t *)samples);
}
