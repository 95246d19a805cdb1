/* Scatter-adds on CUDA.
 *
 * Every output row has one owner, who reads the row of the input, adds its hits (the positions j with indices[j] =
 * row) in increasing j and writes the row once: no floating-point atomics, so the order of the sum is that of the
 * index list on every device. Lists of up to TL_TILE_INDICES are scatter_tile.cu's or scatter_axis.cu's, those of few wide rows
 * scatter_strip.cu's, longer ones of few narrow rows scatter_few.cu's, of most vectors and rows of up to 128 columns scatter_bucket.cu's.
 * Here a stable sort puts the hits of a row side by side: that of sort.cu, or, of more than TL_SORTED_HITS, CUB's radix sort.
 *
 * An output of which very few rows have a hit is copied, and then these rows are added to.
 *
 * Of many wide rows that have few hits each the owners sort these themselves, and nothing else is sorted.
 *
 * Narrow rows (below 32 columns) are copied, and then every run of equal indices has an owner. Wide rows have a warp for
 * each 128 or 256 columns, which finds the row's run in a table.
 *
 * A row with many hits is a serial sum of any length. Its owner leaves it to a last kernel, which spreads the row over more
 * warps, a long one over blocks, and keeps more loads in flight (sorted_runs.cuh). It runs on the list of such runs that the kernel
 * before leaves in memory. */
#include "cuda/device/division.cuh"
#include "cuda/device/vector.cuh"
#include "cuda/device/warp_sum.cuh"
#include "cuda/index/long_run.cuh"
#include "cuda/index/order.cuh"
#include "cuda/index/scatter.cuh"
#include "cuda/index/sorted_runs.cuh"
#include "cuda/runtime/launch.cuh"
#include "generated/index.h"

#include <cub/device/device_radix_sort.cuh>

namespace {

using namespace tl_sorted;

constexpr int THREADS = 256;
constexpr int AT_ONCE = 4; /* hits of a shorter one of narrow rows that are loaded together */
constexpr int64_t TILED_WIDE = 4096, TILED_VALUES = (int64_t)1 << 22; /* hits, and values, of tiles of wide rows */
constexpr int64_t TILED_VECTOR = 4096;                                /* hits of tiles of a vector of few elements */
/* Hits that a tile sorts and adds in the time of a launch or two, also if all are its own. */
constexpr int64_t TILED_FEW = 1024;
/* Values, of more than which tiles of few columns have so many hits that every tile sorts the list: a tile has about a 264th of
 * them, 8 of each hit. */
constexpr int64_t TILE_SORTS = (int64_t)1 << 19;
/* Values of hits, of no more than which thin tiles of a table that the device holds at a time have no more hits than they sort without
 * counting: such a tile has about an 8448th of all, 32 of each hit. */
constexpr int64_t THIN_VALUES = (int64_t)1 << 21;

/* Sort keys, and positions where they and not the values are sorted; the lists for the last kernel are empty. */
__global__ void __launch_bounds__(THREADS)
    make_keys_kernel(const uint32_t *__restrict__ indices, uint32_t k, uint32_t rows, uint32_t *__restrict__ keys,
                     uint32_t *__restrict__ positions, uint32_t *__restrict__ left)
{
    const int64_t j = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (j < TL_LEFT_COUNTS) left[j] = 0;
    if (j >= k) return;
    keys[j] = min(indices[j], rows);
    if (positions) positions[j] = (uint32_t)j;
}

/* ---- narrow rows ----------------------------------------------------------------------------------------------------- */

/* A thread owns one column of the run that begins at its place, if one does. The output holds the base. */
__global__ void __launch_bounds__(THREADS) scatter_narrow_kernel(Scatter s, tl_fastdiv cols, int64_t units)
{
    tl_wait_for_earlier();
    const int64_t t = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (t >= units) return;
    uint32_t col;
    const uint32_t i = cols.divmod((uint32_t)t, &col), row = s.keys[i];
    if (row >= s.rows || (i > 0 && s.keys[i - 1] == row)) return;
    if ((uint64_t)i + TL_MANY < s.k && s.keys[i + TL_MANY] == row) {
        if (col == 0) s.left.leave(i, (uint64_t)i + TL_LONG < s.k && s.keys[i + TL_LONG] == row);
        return;
    }
    const int64_t element = (int64_t)row * s.cols + col;
    float sum = s.base ? s.base[element] : 0.0f;
    bool more = true;
    for (uint32_t from = i; more; from += AT_ONCE) { /* keys and list are on their way together, then all values */
        uint32_t key[AT_ONCE], word[AT_ONCE];
        float v[AT_ONCE];
        TL_UNROLL_FOR (int e = 0; e < AT_ONCE; e++) {
            const uint32_t at = min(from + e, s.k - 1);
            key[e] = from + e < s.k ? s.keys[at] : s.rows;
            word[e] = s.hits.list[at];
        }
        TL_UNROLL_FOR (int e = 0; e < AT_ONCE; e++)
            if (key[e] == row) v[e] = s.hits.value(word[e], col);
        TL_UNROLL_FOR (int e = 0; e < AT_ONCE; e++)
            if (key[e] == row) sum += v[e];
        more = key[AT_ONCE - 1] == row;
    }
    s.out[element] = sum;
}

/* ---- wide rows ------------------------------------------------------------------------------------------------------- */

/* Begin and end of every row's run of keys; rows without one keep the {0, 0} they were cleared to. */
__global__ void __launch_bounds__(THREADS)
    find_segments_kernel(const uint32_t *keys, uint32_t k, uint32_t rows, uint2 *segments)
{
    tl_wait_for_earlier();
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= k) return;
    const uint32_t key = keys[i];
    if (key >= rows) return;
    if (i == 0 || keys[i - 1] != key) segments[key].x = (uint32_t)i;
    if (i == (int64_t)k - 1 || keys[i + 1] != key) segments[key].y = (uint32_t)i + 1;
}

/* What many wide rows with few hits have in the place of a sorted list: hits that arrive at a row take its slots in any order, and
 * the row's owner sorts them. Those that find none are late. A launch beside that of the owners puts late rows in order: its shared
 * memory would take the cache that the owners stream through. It has blocks for a quarter of the multiprocessors of an H100, and
 * leaves the others room (tl_wait_for_earlier). */
constexpr uint32_t SLOTS = 32; /* of a row: those of a warp */
constexpr uint32_t SLOT_HITS = 1 << 16, LATE_BLOCKS = 33, LATE_THREADS = 1024, LATE_TOGETHER = 8, AT_ONCE_LATE = 8;
/* Elements that are read and written in the time of a launch or two; and rows for each hit, of more than which slots of rows of few
 * columns are mostly empty. */
constexpr int64_t SLOT_VALUES = (int64_t)1 << 22, SLOT_ROWS = 4;

struct row_slots {
    uint32_t *late; /* late hits, late rows, places of the list that are taken: three counts, then those of every row */
    uint32_t *slots;  /* SLOTS of every row */
    uint2 *late_hits; /* row and position */
    uint32_t *late_rows;
    uint2 *segments; /* of late rows: begin and end in the list */
    uint32_t *list;

    __device__ __forceinline__ uint32_t *counts() const { return late + TL_LEFT_LISTS; }
};

/* A warp's hits of one row arrive together, in their order. */
__global__ void __launch_bounds__(THREADS)
    fill_slots_kernel(row_slots s, const uint32_t *indices, uint32_t k, uint32_t rows)
{
    const uint32_t j = blockIdx.x * THREADS + threadIdx.x, lane = threadIdx.x % 32, below = (1u << lane) - 1;
    const uint32_t row = j < k ? min(indices[j], rows) : rows, peers = __match_any_sync(~0u, row);
    const int leader = __ffs((int)peers) - 1;
    uint32_t place = 0;
    if (row < rows && (int)lane == leader) place = atomicAdd(s.counts() + row, (uint32_t)__popc(peers));
    place = __shfl_sync(~0u, place, leader) + __popc(peers & below);
    const bool late = row < rows && place >= SLOTS;
    if (row < rows && !late) s.slots[(int64_t)row * SLOTS + place] = j;
    const uint32_t together = __ballot_sync(~0u, late);
    if (together == 0) return;
    const int first = __ffs((int)together) - 1;
    uint32_t at = 0;
    if ((int)lane == first) at = atomicAdd(s.late, (uint32_t)__popc(together));
    at = __shfl_sync(~0u, at, first) + __popc(together & below);
    if (late) s.late_hits[at] = make_uint2(row, j);
    if (late && place == SLOTS) s.late_rows[atomicAdd(s.late + 1, 1u)] = row;
}

/* LATE_BLOCKS blocks take the late rows in turns, LATE_TOGETHER at a time, for which they look through the late hits once. Of a bit
 * for every position of the index list those of a row's hits are set; thread t then writes the positions in the t-th part of the bits,
 * behind those in earlier parts. */
__global__ void __launch_bounds__(LATE_THREADS, 1) order_late_kernel(Scatter s, row_slots t)
{
    constexpr uint32_t WORDS = SLOT_HITS / 32 / LATE_THREADS; /* of a thread */
    TL_DYNAMIC_SHARED(uint32_t, all_bits);
    uint32_t (*const bits)[WORDS * LATE_THREADS] = reinterpret_cast<uint32_t (*)[WORDS * LATE_THREADS]>(all_bits);
    __shared__ uint32_t counts[LATE_THREADS / 32], begin;
    tl_wait_for_earlier(TL_FIRST);
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, late_hits = t.late[0], late_rows = t.late[1];
    const auto set = [&](uint32_t i, uint32_t j) { atomicOr(bits[i] + j / 32, 1u << j % 32); };
    for (uint32_t first = blockIdx.x; first < late_rows; first += LATE_TOGETHER * LATE_BLOCKS) {
        uint32_t row[LATE_TOGETHER]; /* UINT32_MAX for none */
        TL_UNROLL_FOR (uint32_t i = 0; i < LATE_TOGETHER; i++) {
            const uint32_t r = first + i * LATE_BLOCKS;
            row[i] = r < late_rows ? t.late_rows[r] : UINT32_MAX;
            for (uint32_t w = threadIdx.x; w < WORDS * LATE_THREADS; w += LATE_THREADS)
                bits[i][w] = 0;
        }
        __syncthreads();
        TL_UNROLL_FOR (uint32_t i = 0; i < LATE_TOGETHER; i++)
            if (threadIdx.x < SLOTS && row[i] != UINT32_MAX) set(i, t.slots[(int64_t)row[i] * SLOTS + threadIdx.x]);
        for (uint32_t h = threadIdx.x; h < late_hits; h += AT_ONCE_LATE * LATE_THREADS) {
            uint2 hit[AT_ONCE_LATE];
            TL_UNROLL_FOR (uint32_t u = 0; u < AT_ONCE_LATE; u++)
                hit[u] = t.late_hits[min(h + u * LATE_THREADS, late_hits - 1)];
            TL_UNROLL_FOR (uint32_t u = 0; u < AT_ONCE_LATE; u++)
                TL_UNROLL_FOR (uint32_t i = 0; i < LATE_TOGETHER; i++)
                    if (hit[u].x == row[i] && h + u * LATE_THREADS < late_hits) set(i, hit[u].y);
        }
        __syncthreads();
        TL_UNROLL_FOR (uint32_t i = 0; i < LATE_TOGETHER; i++) {
            if (row[i] == UINT32_MAX) break;
            const uint32_t hits = t.counts()[row[i]];
            uint32_t mine = 0;
            TL_UNROLL_FOR (uint32_t w = 0; w < WORDS; w++)
                mine += __popc(bits[i][threadIdx.x * WORDS + w]);
            uint32_t place = tl_sum_to_lane(mine, lane);
            if (lane == 31) counts[warp] = place;
            if (threadIdx.x == 0) begin = atomicAdd(t.late + 2, hits);
            __syncthreads();
            place += begin - mine;
            for (uint32_t w = 0; w < warp; w++)
                place += counts[w];
            for (uint32_t w = 0; w < WORDS; w++)
                for (uint32_t left = bits[i][threadIdx.x * WORDS + w]; left; left &= left - 1)
                    t.list[place++] = (threadIdx.x * WORDS + w) * 32 + __ffs((int)left) - 1;
            if (threadIdx.x == 0) {
                t.segments[row[i]] = make_uint2(begin, begin + hits);
                leave_wide(s, row[i], hits);
            }
            __syncthreads();
        }
    }
}

/* The hit of the lane's rank among those of the first `hits` lanes, which differ. */
__device__ __forceinline__ uint32_t sort_hits(uint32_t mine, uint32_t hits)
{
    uint32_t rank = 0, sorted = mine;
    if (hits < 2) return mine;
    for (uint32_t l = 0; l < hits; l++)
        rank += __shfl_sync(~0u, mine, l) < mine;
    for (uint32_t l = 0; l < hits; l++) {
        const uint32_t hit = __shfl_sync(~0u, mine, l);
        if (__shfl_sync(~0u, rank, l) == threadIdx.x % 32) sorted = hit;
    }
    return sorted;
}

/* A warp owns 128·GROUPS columns of one row of an array; consecutive warps own consecutive pieces of the output. The row of the
 * input is on its way while the warp finds its hits. Up to TL_MANY of them end up one per lane, in order. N hits at
 * a time are loaded: most rows have one or two, and fewer registers leave room for more warps. */
template <bool VECTORS, int GROUPS, bool BY_SLOTS>
__device__ __forceinline__ void own_wide(const Scatter &s, const row_slots &t, const tl_fastdiv &pieces,
                                         const tl_fastdiv &rows, int64_t unit)
{
    const uint32_t lane = threadIdx.x % 32;
    uint32_t piece, row;
    const uint32_t outer_row = pieces.divmod((uint32_t)unit, &piece), first = piece * (128 * GROUPS);
    const uint32_t o = rows.divmod(outer_row, &row);
    const int64_t at = (int64_t)outer_row * s.cols;
    const uint2 segment = BY_SLOTS ? make_uint2(0, t.counts()[row]) : s.segments[row];
    float4 sum[GROUPS];
    TL_UNROLL_FOR (int q = 0; q < GROUPS; q++) {
        sum[q] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (s.base) sum[q] = tl_load_group<VECTORS>(s.base + at, first + 128 * q, s.cols);
    }
    const uint32_t hits = segment.y - segment.x;
    if (hits > (BY_SLOTS ? SLOTS : TL_MANY)) {
        if (!BY_SLOTS && piece == 0 && o == 0 && lane == 0) leave_wide(s, row, hits);
        return;
    }
    const uint32_t *const list = BY_SLOTS ? t.slots + (int64_t)row * SLOTS : s.hits.list + segment.x;
    uint32_t mine = lane < hits ? list[lane] : UINT32_MAX;
    if constexpr (BY_SLOTS) mine = sort_hits(mine, hits);
    const float *const values = s.hits.values + (int64_t)o * s.k * s.cols;
    constexpr int N = GROUPS == 1 ? 4 : 2;
    for (uint32_t i = 0; i < hits; i += N) {
        uint32_t p[N];
        TL_UNROLL_FOR (int e = 0; e < N; e++)
            p[e] = __shfl_sync(~0u, mine, i + e);
        tl_add_hits<VECTORS>(sum, values, s.cols, p, min(hits - i, (uint32_t)N), first, s.cols);
    }
    TL_UNROLL_FOR (int q = 0; q < GROUPS; q++)
        tl_store_group<VECTORS>(s.out + at, first + 128 * q, s.cols, sum[q]);
}

/* Blocks of a multiprocessor, by the registers that their loads take. */
constexpr int wide_blocks(bool vectors, int groups) { return groups > 2 ? 4 : vectors ? 6 : 5; }

template <bool VECTORS, int GROUPS, bool BY_SLOTS>
__global__ void __launch_bounds__(THREADS, wide_blocks(VECTORS, GROUPS))
    scatter_wide_kernel(Scatter s, row_slots t, tl_fastdiv pieces, tl_fastdiv rows, int64_t units)
{
    constexpr tl_order ORDER = BY_SLOTS ? TL_BESIDE : TL_AFTER; /* beside the late rows */
    tl_wait_for_earlier(ORDER);
    const int64_t unit = (int64_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    if (unit < units) own_wide<VECTORS, GROUPS, BY_SLOTS>(s, t, pieces, rows, unit);
    tl_wait_at_end(ORDER);
}

/* ---- rare hits ------------------------------------------------------------------------------------------------------- */

/* Of an output whose copy, of more than 130 us, is faster by more than a launch as one of the driver than in tiles: hits that a warp
 * sees at once, and rows for each of them. */
constexpr int64_t RARE_HITS = 32, RARE_ROWS = 64, RARE_COPY = (int64_t)1 << 26;
constexpr int RARE_AT_ONCE = 8;

/* The output holds the base. Blocks of the first hit of a row add all of the row's, a thread for each column. */
__global__ void __launch_bounds__(THREADS) add_rare_kernel(Scatter s, const uint32_t *indices, tl_fastdiv pieces)
{
    tl_wait_for_earlier();
    const uint32_t lane = threadIdx.x % 32, index = lane < s.k ? indices[lane] : UINT32_MAX;
    uint32_t piece;
    const uint32_t j = pieces.divmod(blockIdx.x, &piece), row = __shfl_sync(~0u, index, j);
    const uint32_t col = piece * THREADS + threadIdx.x;
    uint32_t left = __ballot_sync(~0u, index == row);
    if (row >= s.rows || (left & ((1u << j) - 1)) || col >= s.cols) return;
    const int64_t element = (int64_t)row * s.cols + col;
    float sum = s.out[element];
    while (left) {
        float v[RARE_AT_ONCE]; /* -0 changes no sum */
        TL_UNROLL_FOR (int e = 0; e < RARE_AT_ONCE; e++) {
            v[e] = -0.0f;
            if (left) v[e] = s.hits.value(__ffs((int)left) - 1, col);
            left &= left - 1;
        }
        TL_UNROLL_FOR (int e = 0; e < RARE_AT_ONCE; e++)
            sum += v[e];
    }
    s.out[element] = sum;
}

/* ---- launching ------------------------------------------------------------------------------------------------------- */

template <bool VECTORS, int GROUPS, bool BY_SLOTS>
int32_t launch_wide(tl_context *ctx, const char *name, const Scatter &s, const row_slots &t)
{
    const int64_t pieces = tl_ceil_div(s.cols, 128 * GROUPS), units = (int64_t)s.outer * s.rows * pieces;
    return tl_launch_ahead(ctx, name, scatter_wide_kernel<VECTORS, GROUPS, BY_SLOTS>, tl_grid(units, THREADS / 32),
                           THREADS, 0, s, t, tl_fastdiv(pieces), tl_fastdiv(s.rows), units);
}

/* The owners of wide rows, and behind them the runs that they leave. */
template <bool BY_SLOTS> int32_t launch_owners(tl_context *ctx, const char *name, const Scatter &s, const row_slots &t)
{
    const bool vectors = s.cols % 4 == 0 && tl_aligned4(s.base) && tl_aligned4(s.hits.values) && tl_aligned4(s.out);
    /* Pieces of three groups where they leave fewer columns of the last piece empty. */
    const bool three = 3 * tl_ceil_div(s.cols, 384) < 2 * tl_ceil_div(s.cols, 256);
    const auto launch = s.cols <= 128 ? vectors ? launch_wide<true, 1, BY_SLOTS> : launch_wide<false, 1, BY_SLOTS>
                        : three       ? vectors ? launch_wide<true, 3, BY_SLOTS> : launch_wide<false, 3, BY_SLOTS>
                        : vectors     ? launch_wide<true, 2, BY_SLOTS>
                                      : launch_wide<false, 2, BY_SLOTS>;
    TL_TRY(launch(ctx, name, s, t));
    return tl_launch_ahead(ctx, name, add_wide_runs_kernel, WIDE_BLOCKS, TL_LONG_THREADS, 0, s);
}

bool slots_serve(int64_t outer, int64_t rows, int64_t cols, int64_t k)
{
    if (cols < 32 || rows >= UINT32_MAX) return false;
    /* Of rows that a warp does not fill, lists that tiles sort as fast are theirs, and slots would take more memory than many rows. */
    if (cols < 128 && (k <= TL_TILE_INDICES || rows > SLOT_ROWS * k)) return false;
    if (k >= rows && k > TILED_FEW && k <= TL_TILE_INDICES)
        return k <= rows * (SLOTS / 4) || (k <= rows * (SLOTS / 2) && outer * k * cols >= TILE_SORTS);
    /* Tiles copy rows without a hit faster, and of few hits no row has many. */
    if (k <= TILED_FEW && 4 * k < rows) return false;
    const int64_t total = outer * rows * cols;
    if (k <= TILED_WIDE && total >= TL_SMALL_TABLE && total < SLOT_VALUES && outer * k * cols <= THIN_VALUES)
        return false;
    return k <= SLOT_HITS && k <= rows * (SLOTS / 4) && outer * (k + 2 * rows) * cols >= SLOT_VALUES;
}

int32_t scatter_by_slots(tl_context *ctx, const char *name, const float *base, const float *values,
                         const uint32_t *indices, int64_t outer, int64_t rows, int64_t cols, int64_t k, float *out)
{
    /* Scratch: what is cleared, the lists of the last launch and the counts; then slots and all that is for late hits. */
    const int64_t most_late = k / SLOTS + 1, lists = tl_ceil_div(TL_LEFT_LISTS + most_late, 64) * 64,
                  counts = tl_ceil_div(TL_LEFT_LISTS + rows, 64) * 64;
    tl_scratch<uint32_t> scratch(ctx);
    TL_TRY(scratch.allocate(lists + counts + rows * (SLOTS + 2) + 3 * k + most_late));
    TL_CUDA_TRY(ctx, cudaMemsetAsync(scratch, 0, (size_t)(lists + counts) * sizeof(uint32_t), tl_cuda_stream(ctx)));
    row_slots t = {scratch + lists};
    t.slots = t.late + counts;
    t.segments = reinterpret_cast<uint2 *>(t.slots + rows * SLOTS);
    t.late_hits = t.segments + rows;
    t.list = reinterpret_cast<uint32_t *>(t.late_hits + k);
    t.late_rows = t.list + k;
    Scatter s = {};
    s.base = base, s.out = out, s.segments = t.segments;
    s.hits = {t.list, UINT32_MAX, values, (uint32_t)cols};
    s.left = {scratch, scratch + lists};
    s.rows = (uint32_t)rows, s.cols = (uint32_t)cols, s.k = (uint32_t)k, s.outer = (uint32_t)outer;
    constexpr size_t late_bits = LATE_TOGETHER * SLOT_HITS / 8;
    TL_TRY(tl_launch(ctx, name, fill_slots_kernel, tl_grid(k, THREADS), THREADS, t, indices, s.k, s.rows));
    TL_TRY(tl_allow_shared(ctx, order_late_kernel, late_bits));
    TL_TRY(tl_launch_ahead(ctx, name, order_late_kernel, LATE_BLOCKS, LATE_THREADS, late_bits, s, t));
    return launch_owners<true>(ctx, name, s, t);
}

int index_bits(uint32_t rows)
{
    int bits = 0;
    while (bits < 32 && rows >> bits)
        bits++;
    return bits;
}

/* The result of no hit: the input, or 0. */
int32_t copy_base(tl_context *ctx, const float *base, int64_t total, float *out)
{
    return base ? tl_cuda_copy(tl_context_cuda(ctx), out, base, (size_t)total * sizeof *out)
                : tl_cuda_fill(tl_context_cuda(ctx), out, 0.0f, total);
}

/* Scratch: the lists, the table of a wide row's runs, then k words each of keys and of what is sorted with them, before (for CUB)
 * and after, then CUB's own. With one column the values themselves are sorted: the sort is stable, so they arrive in index order,
 * side by side. */
int32_t scatter_sorted(tl_context *ctx, const char *name, const float *base, const float *values,
                       const uint32_t *indices, int64_t outer, int64_t rows, int64_t cols, int64_t k, float *out)
{
    cudaStream_t stream = tl_cuda_stream(ctx);
    const bool by_value = cols == 1, wide = cols >= 32, few = k <= TL_SORTED_HITS && rows < UINT32_MAX;
    const int64_t lists = tl_ceil_div(tl_left_runs::words(k), 64) * 64,
                  table = wide ? tl_ceil_div(rows * 2, 64) * 64 : 0;
    const int64_t run = tl_ceil_div(k, 64) * 64, words = lists + table + run * (few ? 2 : by_value ? 3 : 4);
    const int bits = index_bits((uint32_t)rows);
    size_t own = 0;
    const uint32_t *none = nullptr;
    uint32_t *nowhere = nullptr;
    if (!few)
        TL_CUDA_TRY(ctx, cub::DeviceRadixSort::SortPairs(nullptr, own, none, nowhere, none, nowhere, (uint32_t)k, 0,
                                                         bits, stream));
    tl_scratch<uint32_t> scratch(ctx);
    TL_TRY(scratch.allocate(words + (int64_t)((own + sizeof(uint32_t) - 1) / sizeof(uint32_t))));
    uint2 *const segments = reinterpret_cast<uint2 *>(scratch + lists);
    uint32_t *const sorted_keys = scratch + lists + table, *const grouped = sorted_keys + run;
    Scatter s = {};
    s.base = base, s.out = out, s.keys = sorted_keys, s.segments = segments;
    s.hits = {grouped, UINT32_MAX, by_value ? nullptr : values, (uint32_t)cols};
    s.left = {scratch, scratch + lists};
    s.rows = (uint32_t)rows, s.cols = (uint32_t)cols, s.k = (uint32_t)k, s.outer = (uint32_t)outer;

    const unsigned grid = tl_grid(k, THREADS);
    if (few) { /* the same launches clear the table, or copy narrow rows */
        tl_hit_sort sort = {indices, s.k, s.rows, sorted_keys, grouped, by_value ? values : nullptr, s.left};
        sort.base = wide ? nullptr : base, sort.out = wide ? reinterpret_cast<float *>(segments) : out;
        sort.copied = wide ? table : rows * cols;
        sort.aligned = tl_aligned4(sort.base) && tl_aligned4(sort.out);
        TL_TRY(tl_sort_hits(ctx, name, sort));
    } else {
        uint32_t *const keys = grouped + run, *const positions = by_value ? nullptr : keys + run;
        TL_TRY(
            tl_launch(ctx, name, make_keys_kernel, grid, THREADS, indices, s.k, s.rows, keys, positions, s.left.front));
        TL_CUDA_TRY(ctx, cub::DeviceRadixSort::SortPairs(scratch + words, own, (const uint32_t *)keys, sorted_keys,
                                                         by_value ? (const uint32_t *)values : positions, grouped, s.k,
                                                         0, bits, stream));
        if (wide)
            TL_CUDA_TRY(ctx, cudaMemsetAsync(segments, 0, (size_t)table * sizeof(uint32_t), stream));
        else
            TL_TRY(copy_base(ctx, base, rows * cols, out));
    }
    if (wide) {
        TL_TRY(tl_launch_ahead(ctx, name, find_segments_kernel, grid, THREADS, 0, sorted_keys, s.k, s.rows, segments));
        return launch_owners<false>(ctx, name, s, {});
    }
    if (!(few && by_value)) /* else the sort has added them */
        TL_TRY(tl_launch_ahead(ctx, name, scatter_narrow_kernel, tl_grid(k * cols, THREADS), THREADS, 0, s,
                               tl_fastdiv(cols), k * cols));
    return tl_launch_ahead(ctx, name, add_narrow_runs_kernel, NARROW_BLOCKS, TL_LONG_THREADS, 0, s);
}

int32_t scatter_rare(tl_context *ctx, const char *name, const float *base, const float *values, const uint32_t *indices,
                     int64_t rows, int64_t cols, int64_t k, float *out)
{
    Scatter s = {};
    s.out = out, s.hits = {nullptr, UINT32_MAX, values, (uint32_t)cols};
    s.rows = (uint32_t)rows, s.cols = (uint32_t)cols, s.k = (uint32_t)k;
    const int64_t pieces = tl_ceil_div(cols, THREADS);
    TL_TRY(copy_base(ctx, base, rows * cols, out));
    return tl_launch_ahead(ctx, name, add_rare_kernel, (unsigned)(k * pieces), THREADS, 0, s, indices,
                           tl_fastdiv(pieces));
}

/* Tiles of wide rows serve one long run after the other, and wait for one value after the other. */
bool tiles_serve(int64_t outer, int64_t rows, int64_t cols, int64_t k)
{
    const bool narrow_tiles = cols <= 8 || outer * rows * cols < TL_SMALL_TABLE;
    return k <= (narrow_tiles || cols < 32 ? TL_TILE_INDICES : TILED_WIDE) &&
           (cols < 32 || outer * k * cols <= TILED_VALUES);
}

} /* namespace */

int32_t tl_scatter_rows(tl_context *ctx, const char *name, const float *base, const float *values,
                        const uint32_t *indices, int64_t rows, int64_t cols, int64_t k, float *out)
{
    if (k == 0 || rows * cols == 0) return copy_base(ctx, base, rows * cols, out);
    tl_scratch<uint32_t> staged(ctx);
    TL_TRY(staged.stage(indices, k));
    if (base && k <= RARE_HITS && rows >= RARE_ROWS * k && rows * cols >= RARE_COPY)
        return scatter_rare(ctx, name, base, values, staged, rows, cols, k, out);
    if (tl_strips_serve(1, rows, cols, k))
        return tl_scatter_strips(ctx, name, base, values, staged, 1, rows, cols, k, false, out);
    /* Slots are five launches, which take longer to launch than so few values to add. */
    const bool slots = slots_serve(1, rows, cols, k);
    if (slots && tl_axis_holds(1, rows, cols, k) && tl_few_wide(1, rows, cols, k))
        return tl_scatter_axis(ctx, name, base, values, staged, 1, rows, cols, k, out);
    if (tl_buckets_serve_rows(rows, cols, k))
        return tl_scatter_buckets(ctx, name, base, values, staged, rows, cols, k, out);
    if (tl_axis_serves(1, rows, cols, k) || (tl_rare_wide(1, rows, cols, k) && tl_axis_holds(1, rows, cols, k)))
        return tl_scatter_axis(ctx, name, base, values, staged, 1, rows, cols, k, out);
    /* Of a vector each of many tiles would look through a long list. */
    const bool few = cols == 1 && k > TILED_VECTOR && tl_few_serve(rows, cols, k);
    if (!slots && !few && tiles_serve(1, rows, cols, k))
        return tl_scatter_tiles(ctx, name, base, values, staged, 1, rows, cols, k, false, out);
    if (slots) return scatter_by_slots(ctx, name, base, values, staged, 1, rows, cols, k, out);
    if (tl_few_serve(rows, cols, k) && !tl_lone_rows(rows, cols, k))
        return tl_scatter_few(ctx, name, base, values, staged, rows, cols, k, out);
    if (tl_buckets_serve(rows, cols, k)) return tl_scatter_buckets(ctx, name, base, values, staged, rows, cols, k, out);
    return tl_axis_holds(1, rows, cols, k) ? tl_scatter_axis(ctx, name, base, values, staged, 1, rows, cols, k, out)
                                           : scatter_sorted(ctx, name, base, values, staged, 1, rows, cols, k, out);
}

int32_t tl_scatter_shared(tl_context *ctx, const char *name, const float *base, const float *values,
                          const uint32_t *indices, int64_t outer, int64_t rows, int64_t cols, int64_t k, float *out)
{
    if (outer * rows * cols == 0) return TORCHLEAN_OK;
    if (tl_strips_serve(outer, rows, cols, k))
        return tl_scatter_strips(ctx, name, base, values, indices, outer, rows, cols, k, false, out);
    const bool slots = slots_serve(outer, rows, cols, k);
    const bool copied = tl_rare_wide(outer, rows, cols, k) || (!slots && tl_many_wide(outer, rows, cols, k));
    if (copied && tl_axis_holds(outer, rows, cols, k))
        return tl_scatter_axis(ctx, name, base, values, indices, outer, rows, cols, k, out);
    const bool tiles = tiles_serve(outer, rows, cols, k) || (k <= rows && k <= TL_TILE_INDICES);
    if (!slots && tiles) return tl_scatter_tiles(ctx, name, base, values, indices, outer, rows, cols, k, false, out);
    if (slots) return scatter_by_slots(ctx, name, base, values, indices, outer, rows, cols, k, out);
    return tl_axis_holds(outer, rows, cols, k)
               ? tl_scatter_axis(ctx, name, base, values, indices, outer, rows, cols, k, out)
               : scatter_sorted(ctx, name, base, values, indices, outer, rows, cols, k, out);
}
