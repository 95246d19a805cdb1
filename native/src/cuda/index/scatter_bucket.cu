/* Scatter-adds of many hits into a vector on CUDA, in four launches, or three of a short list.
 *
 * Row r belongs to bucket r % buckets, so that rows beside each other, which lists often name most, are in different buckets. The
 * first launch counts the hits of every bucket in every part of the index list, the second adds the counts up, and the third, which
 * also does that where there are few parts, deals the hits, row and value, to their buckets, in the order of the list. A block of the
 * last owns a bucket: it puts a window of its hits in order of rows, stably and in one step, as there are few rows, and adds every
 * row's in shared memory. So a hit is moved once through memory, where a sort of the list moves it once for each digit.
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
constexpr int COUNT_THREADS = 512, COUNTED = 4; /* and the hits of a thread that are counted at a time */
/* Bits of a bucket, and of a row in its bucket. */
constexpr uint32_t FIELD = 10;
/* Places are rows of a bucket. One more bucket, or place, is for what is not to be added. */
constexpr uint32_t KINDS = 1 << FIELD, MOST_BUCKETS = KINDS - 1, MOST_PLACES = KINDS - 1;
/* Hits that a bucket has at least where there are two for every multiprocessor: with those of uneven buckets less than 8 rounds.
 * More buckets than the device adds at once only have fewer hits each of those that are dealt together: these leave in one piece
 * for each bucket, and short pieces are parts of sectors. */
constexpr uint32_t BUCKET_HITS = 1700;
constexpr int ADDING = 3, LINES_ADDING = 2, DEALING = 4; /* blocks of a multiprocessor */
constexpr uint32_t MOST_PARTS = 512;                     /* of the list */
/* Parts, up to which every block that deals adds the counts up for itself, in less than the time of a launch. */
constexpr uint32_t FEW_PARTS = 32, PARTS_AT_ONCE = 8;
constexpr int FEW_DEALT = 8, SOME_DEALT = 12, MANY_DEALT = 16; /* hits of a thread that are dealt at a time */
constexpr int WINDOW_ITEMS = 20;                               /* hits of a thread in a window of a bucket */
constexpr uint32_t WINDOW = WINDOW_ITEMS * THREADS;
constexpr uint32_t ONE_BY_ONE = 256; /* hits of a row that a thread adds; more are a warp's, in chunks of 32·RUN */
constexpr uint32_t LONE = 2048;      /* hits of buckets of one row that a block adds as fast as a warp */
constexpr uint32_t SAMPLES = 2048, AT_ONCE = 8, NONE = UINT32_MAX;
constexpr int RUN = 16;
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
static_assert(SAMPLES % (32 * AT_ONCE) == 0);

struct buckets {
    const float *base; /* NULL for a sum that starts from +0 */
    const float *values;
    float *out;
    const uint32_t *indices;
    uint32_t rows, k;
    uint32_t parts, span;      /* of the list, and indices of a part */
    tl_fastdiv count;          /* buckets */
    uint32_t line_bits;        /* rows that stay side by side, 2^line_bits of them */
    uint32_t places;           /* of a bucket, of which some are behind the last row */
    bool aligned;              /* base and output, to 16 bytes */
    bool placed;               /* the counts are added up before hits are dealt */
    uint32_t crowd;            /* hits of a bucket, above which it has a second block */
    uint32_t *before;          /* of every bucket and part: its hits, then those in the parts before */
    uint32_t *totals, *begins; /* of every bucket; `begins` ends with their sum */
    uint32_t *heavy;           /* the place of the second block's row in every bucket, or NONE */
    uint32_t *crowded;         /* how many buckets have a second block, then which */
    uint2 *hits;               /* place and bits of the value, by bucket, then as in the list */

    __device__ __forceinline__ uint32_t place_of(uint32_t row, uint32_t *bucket) const
    {
        return count.divmod(row >> line_bits, bucket) << line_bits | (row & ((1u << line_bits) - 1));
    }
    __device__ __forceinline__ uint32_t row_at(uint32_t place, uint32_t bucket) const
    {
        return ((place >> line_bits) * count.divisor + bucket) << line_bits | (place & ((1u << line_bits) - 1));
    }
};

__global__ void __launch_bounds__(COUNT_THREADS, DEALING) count_hits_kernel(buckets s)
{
    __shared__ uint32_t counts[MOST_BUCKETS];
    tl_wait_for_earlier();
    const uint32_t begin = blockIdx.x * s.span, end = min(begin + s.span, s.k), count = s.count.divisor;
    if (blockIdx.x == 0 && threadIdx.x == 0) *s.crowded = 0;
    for (uint32_t b = threadIdx.x; b < count; b += COUNT_THREADS)
        counts[b] = 0;
    __syncthreads();
    for (uint32_t from = begin + threadIdx.x; from < end; from += COUNTED * COUNT_THREADS) {
        uint32_t index[COUNTED], bucket;
        TL_UNROLL_FOR (uint32_t u = 0; u < COUNTED; u++)
            index[u] = from + u * COUNT_THREADS < end ? s.indices[from + u * COUNT_THREADS] : UINT32_MAX;
        TL_UNROLL_FOR (uint32_t u = 0; u < COUNTED; u++) {
            s.place_of(index[u], &bucket);
            if (index[u] < s.rows) atomicAdd(counts + bucket, 1u);
        }
    }
    __syncthreads();
    for (uint32_t b = threadIdx.x; b < count; b += COUNT_THREADS)
        s.before[b * s.parts + blockIdx.x] = counts[b];
}

/* A row of the bucket that has more than half of its hits, if one has, by samples of the list: votes for one row and for others
 * cancel (Boyer and Moore, "MJRTY: A Fast Majority Vote Algorithm", 1981). */
__device__ __forceinline__ uint32_t find_majority(const buckets &s, uint32_t bucket)
{
    const uint32_t lane = threadIdx.x % 32;
    uint32_t place = NONE, votes = 0;
    for (uint32_t i = 0; i < SAMPLES; i += 32 * AT_ONCE) {
        uint32_t index[AT_ONCE], of;
        TL_UNROLL_FOR (uint32_t u = 0; u < AT_ONCE; u++)
            index[u] = s.indices[(uint64_t)s.k * (i + 32 * u + lane) / SAMPLES];
        TL_UNROLL_FOR (uint32_t u = 0; u < AT_ONCE; u++) {
            const uint32_t found = s.place_of(index[u], &of);
            if (index[u] >= s.rows || of != bucket) continue;
            if (votes == 0) place = found;
            votes += found == place ? 1 : -1;
        }
    }
    TL_UNROLL_FOR (int d = 16; d; d /= 2) {
        const uint32_t other = __shfl_down_sync(~0u, place, d), others = __shfl_down_sync(~0u, votes, d);
        if (other == place) {
            votes += others;
        } else {
            if (others > votes) place = other;
            votes = others > votes ? others - votes : votes - others;
        }
    }
    return __shfl_sync(~0u, place, 0);
}

/* The warp says whether a bucket of `hits` hits has a second block, and for which row. */
__device__ __forceinline__ void choose_heavy(const buckets &s, uint32_t bucket, uint32_t hits)
{
    uint32_t heavy = NONE;
    if (s.places == 1) {
        if (hits > LONE) heavy = 0;
    } else if (hits > s.crowd) {
        heavy = find_majority(s, bucket);
    }
    if (threadIdx.x % 32 > 0) return;
    s.heavy[bucket] = heavy;
    if (heavy != NONE) s.crowded[1 + atomicAdd(s.crowded, 1u)] = bucket;
}

/* A warp owns a bucket. */
__global__ void __launch_bounds__(THREADS) place_parts_kernel(buckets s)
{
    tl_wait_for_earlier();
    const uint32_t lane = threadIdx.x % 32, bucket = blockIdx.x * WARPS + threadIdx.x / 32;
    if (bucket >= s.count.divisor) return;
    uint32_t *const before = s.before + bucket * s.parts;
    uint32_t hits[MOST_PARTS / 32], sum = 0;
    TL_UNROLL_FOR (uint32_t i = 0; i < MOST_PARTS / 32; i++)
        hits[i] = i * 32 + lane < s.parts ? before[i * 32 + lane] : 0;
    TL_UNROLL_FOR (uint32_t i = 0; i < MOST_PARTS / 32; i++) {
        if (i * 32 >= s.parts) break;
        const uint32_t end = tl_sum_to_lane(hits[i], lane);
        if (i * 32 + lane < s.parts) before[i * 32 + lane] = sum + end - hits[i];
        sum += __shfl_sync(~0u, end, 31);
    }
    if (lane == 0) s.totals[bucket] = sum;
    choose_heavy(s, bucket, sum);
}

/* A block deals a part of the list, ITEMS·THREADS hits at a time: it puts them in order of buckets in shared memory, from where
 * neighbours go to neighbours. A warp has 32·ITEMS neighbours of the list; the next indices are on their way while hits leave. */
template <int ITEMS> __global__ void __launch_bounds__(THREADS, DEALING) deal_hits_kernel(buckets s)
{
    static_assert(ITEMS % 4 == 0);
    TL_DYNAMIC_SHARED(uint4, room); /* tallies, then hits: place and bucket, and value; last those that are not added */
    __shared__ __align__(16) uint32_t first[MOST_BUCKETS + 2];
    __shared__ uint32_t next[MOST_BUCKETS + 1], of_warps[WARPS];
    uint16_t *const tallies = reinterpret_cast<uint16_t *>(room);
    uint2 *const staged = reinterpret_cast<uint2 *>(room);
    tl_wait_for_earlier();
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, count = s.count.divisor;
    const uint32_t begin = blockIdx.x * s.span, end = min(begin + s.span, s.k);
    uint16_t *const of_warp = tallies + warp * tl_tally_stride(count + 1);
    uint32_t index[ITEMS];
    const auto load_indices = [&](uint32_t from) {
        TL_UNROLL_FOR (uint32_t i = 0; i < ITEMS; i++) {
            const uint32_t j = from + (warp * ITEMS + i) * 32 + lane;
            index[i] = j < end ? s.indices[j] : UINT32_MAX;
        }
    };
    load_indices(begin);
    const bool placed = ITEMS > FEW_DEALT || s.placed; /* few parts have few hits */
    for (uint32_t b = threadIdx.x; b < count; b += THREADS) {
        if (placed) {
            first[b] = s.totals[b], next[b] = s.before[b * s.parts + blockIdx.x];
            continue;
        }
        uint32_t all = 0, earlier = 0;
        for (uint32_t part = 0; part < s.parts; part += PARTS_AT_ONCE) {
            uint32_t hits[PARTS_AT_ONCE];
            TL_UNROLL_FOR (uint32_t u = 0; u < PARTS_AT_ONCE; u++)
                hits[u] = part + u < s.parts ? s.before[b * s.parts + part + u] : 0;
            TL_UNROLL_FOR (uint32_t u = 0; u < PARTS_AT_ONCE; u++) {
                all += hits[u];
                if (part + u < blockIdx.x) earlier += hits[u];
            }
        }
        first[b] = all, next[b] = earlier;
    }
    tl_sum_before(first, count, of_warps);
    for (uint32_t b = threadIdx.x; b <= count; b += THREADS) {
        if (blockIdx.x == 0) s.begins[b] = first[b];
        if (b < count) next[b] += first[b];
    }
    if (!placed && blockIdx.x == gridDim.x - 1)
        for (uint32_t b = warp; b < count; b += WARPS)
            choose_heavy(s, b, first[b + 1] - first[b]);
    for (uint32_t from = begin; from < end; from += ITEMS * THREADS) {
        tl_clear_tallies(tallies, count + 1);
        uint32_t word[ITEMS], to[ITEMS];
        TL_UNROLL_FOR (uint32_t i = 0; i < ITEMS; i++) {
            uint32_t bucket;
            const uint32_t place = s.place_of(index[i], &bucket);
            word[i] = index[i] < s.rows ? place << FIELD | bucket : count;
        }
        __syncthreads(); /* tallies are clear, and `first` was read */
        tl_rank_hits(of_warp, count + 1, [&](int i) { return word[i] % KINDS; }, ITEMS, to);
        __syncthreads();
        tl_place_kinds(tallies, count + 1, first, of_warps);
        TL_UNROLL_FOR (uint32_t i = 0; i < ITEMS; i++)
            to[i] += of_warp[word[i] % KINDS];
        for (uint32_t b = threadIdx.x; b < count; b += THREADS)
            next[b] -= first[b]; /* what leads from a place here to that in memory */
        __syncthreads();
        float value[ITEMS];
        TL_UNROLL_FOR (uint32_t i = 0; i < ITEMS; i++)
            value[i] = s.values[min(from + (warp * ITEMS + i) * 32 + lane, s.k - 1)];
        TL_UNROLL_FOR (uint32_t i = 0; i < ITEMS; i++)
            staged[to[i]] = make_uint2(word[i], __float_as_uint(value[i]));
        load_indices(from + min(ITEMS * THREADS, end - from));
        __syncthreads();
        const uint32_t hits = first[count];
        for (uint32_t i = threadIdx.x; i < hits; i += 4 * THREADS) {
            uint2 hit[4];
            TL_UNROLL_FOR (uint32_t u = 0; u < 4; u++)
                hit[u] = staged[i + u * THREADS];
            TL_UNROLL_FOR (uint32_t u = 0; u < 4; u++) {
                const uint32_t at = i + u * THREADS;
                if (at < hits) s.hits[next[hit[u].x % KINDS] + at] = make_uint2(hit[u].x >> FIELD, hit[u].y);
            }
        }
        __syncthreads();
        for (uint32_t b = threadIdx.x; b < count; b += THREADS)
            next[b] += first[b + 1];
    }
}

/* The block adds the hits of one place among first .. end-1, as tl_add_long_run does. */
__device__ __forceinline__ float add_heavy(const uint2 *hits, uint32_t place, uint32_t first, uint32_t end, float sum,
                                           tl_long_room &room)
{
    for (uint32_t chunk = first & ~1u; chunk < end; chunk += TL_LONG_THREADS * TL_LONG_HITS) {
        const uint32_t at = chunk + threadIdx.x * TL_LONG_HITS;
        float v[TL_LONG_HITS];
        TL_UNROLL_FOR (uint32_t i = 0; i < TL_LONG_HITS; i += 2) {
            uint4 two = make_uint4(NONE, 0, NONE, 0);
            if (at + i < end) two = *reinterpret_cast<const uint4 *>(hits + at + i);
            v[i] = at + i >= first && two.x == place ? __uint_as_float(two.y) : -0.0f;
            v[i + 1] = at + i + 1 < end && two.z == place ? __uint_as_float(two.w) : -0.0f;
        }
        sum = tl_add_block(sum, v, room);
    }
    return sum;
}

/* Blocks take the heavy rows in turns. */
__device__ __forceinline__ void add_heavy_rows(const buckets &s, uint32_t blocks, tl_long_room &room)
{
    const uint32_t crowded = *s.crowded;
    for (uint32_t i = blockIdx.x; i < crowded; i += blocks) {
        const uint32_t bucket = s.crowded[1 + i], place = s.heavy[bucket], row = s.row_at(place, bucket);
        const float before = s.base ? s.base[row] : 0.0f;
        const float sum = add_heavy(s.hits, place, s.begins[bucket], s.begins[bucket + 1], before, room);
        if (threadIdx.x == 0) s.out[row] = sum;
    }
}

/* A thread's hits of a window: a warp has neighbours, as many as the others. Those of the heavy place, and where no hit is, become
 * hits of the place `nowhere`. */
struct window {
    uint32_t place[WINDOW_ITEMS], value[WINDOW_ITEMS], rounds;

    __device__ __forceinline__ void load(const uint2 *hits, uint32_t from, uint32_t to, uint32_t heavy,
                                         uint32_t nowhere)
    {
        rounds = (to - from + THREADS - 1) / THREADS;
        TL_UNROLL_FOR (uint32_t i = 0; i < WINDOW_ITEMS; i++) {
            const uint32_t j = from + (threadIdx.x / 32 * rounds + i) * 32 + threadIdx.x % 32;
            uint2 hit = make_uint2(heavy, 0);
            if (i < rounds && j < to) hit = hits[j];
            place[i] = hit.x == heavy ? nowhere : hit.x, value[i] = hit.y;
        }
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
    __shared__ uint32_t left[WINDOW / ONE_BY_ONE], of_warps[WARPS], many;
    uint16_t *const tallies = reinterpret_cast<uint16_t *>(room);
    float *const values = reinterpret_cast<float *>(room);
    tl_wait_for_earlier();
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, count = s.count.divisor;
    const uint32_t first_blocks = gridDim.x - count;
    if (blockIdx.x < first_blocks) {
        add_heavy_rows(s, first_blocks, heavy_room);
        return;
    }
    const uint32_t bucket = blockIdx.x - first_blocks, heavy = s.heavy[bucket],
                   places = (s.rows - bucket - 1) / count + 1;
    const uint32_t begin = s.begins[bucket], end = s.begins[bucket + 1];
    if (places == 1 && heavy != NONE) return;
    for (uint32_t p = threadIdx.x; p < places; p += THREADS)
        sums[p] = s.base ? s.base[p * count + bucket] : 0.0f;
    for (uint32_t from = begin; from < end; from += WINDOW) {
        window w;
        w.load(s.hits, from, min(end, from + WINDOW), heavy, places);
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
        const tl_hits hits = {reinterpret_cast<const uint32_t *>(values), UINT32_MAX, nullptr, 1};
        for (uint32_t unit = warp; unit < many; unit += WARPS) {
            const uint32_t p = left[unit];
            const float sum = tl_add_run<RUN>(hits, first[p], first[p + 1], 0, sums[p], chunks[warp]);
            if (lane == 0) sums[p] = sum;
        }
        __syncthreads();
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
    __shared__ uint32_t first[OWNERS + 2], of_warps[WARPS];
    __shared__ tl_long_room heavy_room;
    float *const values = sums + s.places;
    uint16_t *const places = reinterpret_cast<uint16_t *>(values + WINDOW);
    tl_wait_for_earlier();
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint32_t first_blocks = gridDim.x - s.count.divisor;
    if (blockIdx.x < first_blocks) {
        add_heavy_rows(s, first_blocks, heavy_room);
        return;
    }
    const uint32_t bucket = blockIdx.x - first_blocks, heavy = s.heavy[bucket];
    const uint32_t begin = s.begins[bucket], end = s.begins[bucket + 1];
    window w; /* its hits are on their way with the rows */
    w.load(s.hits, begin, min(end, begin + WINDOW), heavy, NONE);
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
    for (uint32_t from = begin; from < end; from += WINDOW) {
        if (from > begin) w.load(s.hits, from, min(end, from + WINDOW), heavy, NONE);
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
    /* Of more than a round of few for every block all parts are as long: in whole rounds some would have one more than others. */
    const int64_t most_parts = dealing < MOST_PARTS ? dealing : MOST_PARTS, few = FEW_DEALT * THREADS;
    const int64_t span = k <= most_parts * few ? few : tl_ceil_div(tl_ceil_div(k, most_parts), 32) * 32;
    const int64_t parts = tl_ceil_div(k, span), crowd = 2 * k / count;
    /* As few rounds as there can be, and then as few hits in each. */
    const int64_t rounds = tl_ceil_div(span, MANY_DEALT * THREADS), items = tl_ceil_div(span, rounds * THREADS);
    const int dealt = items <= FEW_DEALT ? FEW_DEALT : items <= SOME_DEALT ? SOME_DEALT : MANY_DEALT;

    tl_scratch<uint32_t> counts(ctx);
    tl_scratch<uint2> hits(ctx);
    TL_TRY(counts.allocate(count * parts + 4 * count + 2));
    TL_TRY(hits.allocate(k + 1));
    buckets s = {base, values, out, indices, (uint32_t)rows, (uint32_t)k, (uint32_t)parts, (uint32_t)span};
    s.count = tl_fastdiv(count), s.line_bits = lined ? LINE_BITS : 0;
    s.places = (uint32_t)(tl_ceil_div(lines, count) * line), s.crowd = crowd < WINDOW ? WINDOW : (uint32_t)crowd;
    s.aligned = tl_aligned4(base) && tl_aligned4(out), s.placed = parts > FEW_PARTS;
    s.before = counts, s.totals = counts + count * parts, s.heavy = s.totals + count, s.begins = s.heavy + count;
    s.crowded = s.begins + count + 1, s.hits = hits;
    TL_TRY(tl_launch_ahead(ctx, name, count_hits_kernel, (unsigned)parts, COUNT_THREADS, 0, s));
    if (s.placed) TL_TRY(tl_launch_ahead(ctx, name, place_parts_kernel, tl_grid(count, WARPS), THREADS, 0, s));
    const size_t of_dealt = at_least((size_t)dealt * THREADS * sizeof(uint2), (uint32_t)count + 1);
    const auto deal = dealt == FEW_DEALT    ? deal_hits_kernel<FEW_DEALT>
                      : dealt == SOME_DEALT ? deal_hits_kernel<SOME_DEALT>
                                            : deal_hits_kernel<MANY_DEALT>;
    TL_TRY(launch(ctx, name, deal, parts, of_dealt, s));
    const size_t of_window = lined ? WINDOW * (sizeof(float) + sizeof(uint16_t)) + s.places * sizeof(float)
                                   : at_least((WINDOW + 4) * sizeof(float), s.places + 1);
    return launch(ctx, name, lined ? add_lines_kernel : add_buckets_kernel, count + (count < adding ? count : adding),
                  of_window, s);
}
