/* Scatter-adds on CUDA.
 *
 * Every output row has one owner, who reads the row of the input, adds its hits (the positions j with indices[j] =
 * row) in increasing j and writes the row once: no floating-point atomics, so the order of the sum is that of the
 * index list on every device. An owner learns its hits in one of three ways, chosen by shape; the sums do not depend
 * on it:
 *
 *   SCAN      few indices: the owner reads the whole list.
 *   RECORDS   up to some 10^5 indices into at least a quarter as many wide rows: integer atomics append j to a record
 *             of 15 slots per row. Their order varies from run to run, so the owner sorts its record; for a row with
 *             more than 15 hits the list is scanned.
 *   SEGMENTS  otherwise: a stable radix sort (CUB) puts the hits of a row side by side, in order. One block sorts what it can hold;
 *             narrow rows are then copied, and every run of equal indices has an owner of its own.
 *
 * A row with many hits is a serial sum of any length. Its owner leaves it to a second kernel, which spreads the row
 * over more warps and keeps more loads in flight. It runs on the list of such rows that the first kernel leaves in
 * memory. */
#include "cuda/device/division.cuh"
#include "cuda/device/vector.cuh"
#include "cuda/runtime/launch.cuh"
#include "generated/index.h"

#include <cub/block/block_radix_sort.cuh>
#include <cub/device/device_radix_sort.cuh>

int32_t tl_scatter_rows(tl_context *ctx, const char *name, const float *base, const float *values,
                        const uint32_t *indices, int64_t rows, int64_t cols, int64_t k, float *out);

namespace {

constexpr int THREADS = 256;

/* ---- scatter-add: what the kernels share ------------------------------------------------------------------------- */

enum Mode { SCAN, RECORDS, SEGMENTS };

constexpr int SLOTS = 15; /* hits per record; with the count a record is 64 bytes, two sectors */
constexpr int RECORD = SLOTS + 1;
constexpr int MANY_WIDE = SLOTS; /* rows with more hits go to the second kernel */
constexpr int MANY_NARROW = 32;
constexpr int LIST = 16; /* many[0] is the number of rows with many hits, many[LIST + i] are the rows */
constexpr int64_t SCAN_INDICES = 512, SCAN_WORK = (int64_t)1 << 26, RECORD_INDICES = (int64_t)1 << 17;

struct Scatter {
    const float *base; /* NULL for a sum that starts from +0 */
    const float *values;
    float *out;
    const uint32_t *indices; /* SCAN, RECORDS */
    const uint32_t *records; /* RECORDS: per row the number of hits, then the positions of the first SLOTS to arrive */
    const uint2 *segments;   /* SEGMENTS: per row the begin and end of its hits in order or sorted */
    const uint32_t *order;   /* SEGMENTS: positions grouped by row */
    const float *sorted;     /* SEGMENTS with one column: the values themselves, grouped by row */
    uint32_t *many;
    uint32_t rows, cols, k;
};

__device__ __forceinline__ void leave_to_second_kernel(const Scatter &s, uint32_t row)
{
    s.many[LIST + atomicAdd(s.many, 1u)] = row;
}

__global__ void __launch_bounds__(THREADS)
    fill_records_kernel(const uint32_t *__restrict__ indices, uint32_t k, uint32_t rows, uint32_t *records)
{
    const uint32_t j = blockIdx.x * THREADS + threadIdx.x;
    if (j >= k) return;
    const uint32_t row = indices[j];
    if (row >= rows) return;
    uint32_t *record = records + (int64_t)row * RECORD;
    const uint32_t place = atomicAdd(record, 1u);
    if (place < SLOTS) record[1 + place] = j;
}

/* Sort keys: the row, or `rows` for an index to ignore. */
__global__ void __launch_bounds__(THREADS)
    make_keys_kernel(const uint32_t *__restrict__ indices, uint32_t k, uint32_t rows, uint32_t *__restrict__ keys,
                     uint32_t *__restrict__ positions)
{
    const int64_t j = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (j >= k) return;
    keys[j] = min(indices[j], rows);
    if (positions) positions[j] = (uint32_t)j;
}

constexpr int SORT_THREADS = 1024, SORT_MOST = 8 * SORT_THREADS; /* indices that one block sorts */

/* Both of the above and the sort, by one block; thread t has the positions ITEMS·t .. before, and every SORT_THREADS-th after. */
template <int ITEMS>
__global__ void __launch_bounds__(SORT_THREADS)
    sort_kernel(const uint32_t *__restrict__ indices, uint32_t k, uint32_t rows, int bits, uint32_t *__restrict__ keys,
                uint32_t *__restrict__ positions)
{
    using Sort = cub::BlockRadixSort<uint32_t, SORT_THREADS, ITEMS, uint32_t>;
    __shared__ typename Sort::TempStorage storage;
    uint32_t key[ITEMS], position[ITEMS];
    TL_UNROLL_FOR (int i = 0; i < ITEMS; i++) {
        position[i] = threadIdx.x * ITEMS + i;
        key[i] = position[i] < k ? min(indices[position[i]], rows) : rows;
    }
    Sort(storage).SortBlockedToStriped(key, position, 0, bits);
    TL_UNROLL_FOR (int i = 0; i < ITEMS; i++) {
        const uint32_t to = i * SORT_THREADS + threadIdx.x;
        if (to < k) keys[to] = key[i], positions[to] = position[i];
    }
}

/* Begin and end of every row's run of keys; rows without one keep the {0, 0} they were cleared to. */
__global__ void __launch_bounds__(THREADS)
    find_segments_kernel(const uint32_t *__restrict__ keys, uint32_t k, uint32_t rows, uint2 *segments)
{
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= k) return;
    const uint32_t key = keys[i];
    if (key >= rows) return;
    if (i == 0 || keys[i - 1] != key) segments[key].x = (uint32_t)i;
    if (i == (int64_t)k - 1 || keys[i + 1] != key) segments[key].y = (uint32_t)i + 1;
}

/* ---- scatter-add: wide rows -------------------------------------------------------------------------------------- */

/* A group is 128 columns from `first` on, four per lane: consecutive ones and one 16-byte access where rows are
 * aligned (VECTORS), else 32 apart, so that a warp's accesses stay contiguous. Columns past the row read as 0 and
 * are not written. */
template <bool VECTORS> __device__ __forceinline__ float4 load_group(const float *row, uint32_t first, uint32_t cols)
{
    const uint32_t lane = threadIdx.x % 32;
    float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if constexpr (VECTORS) {
        const uint32_t c = first + 4 * lane;
        if (c < cols) v = tl_load4(row + c);
    } else {
        const uint32_t c = first + lane;
        if (c < cols) v.x = row[c];
        if (c + 32 < cols) v.y = row[c + 32];
        if (c + 64 < cols) v.z = row[c + 64];
        if (c + 96 < cols) v.w = row[c + 96];
    }
    return v;
}

template <bool VECTORS> __device__ __forceinline__ void store_group(float *row, uint32_t first, uint32_t cols, float4 v)
{
    const uint32_t lane = threadIdx.x % 32;
    if constexpr (VECTORS) {
        const uint32_t c = first + 4 * lane;
        if (c < cols) tl_store4(row + c, v);
    } else {
        const uint32_t c = first + lane;
        if (c < cols) row[c] = v.x;
        if (c + 32 < cols) row[c + 32] = v.y;
        if (c + 64 < cols) row[c + 64] = v.z;
        if (c + 96 < cols) row[c + 96] = v.w;
    }
}

/* Adds the hits at p[0], p[1], ... p[n-1], n <= N, in this order; their loads are in flight together. */
template <bool VECTORS, int GROUPS, int N>
__device__ __forceinline__ void add_hits(float4 (&sum)[GROUPS], const Scatter &s, const uint32_t (&p)[N], uint32_t n,
                                         uint32_t first)
{
    float4 v[N][GROUPS];
    TL_UNROLL_FOR (int i = 0; i < N; i++)
        if (i < n)
            TL_UNROLL_FOR (int q = 0; q < GROUPS; q++)
                v[i][q] = load_group<VECTORS>(s.values + (int64_t)p[i] * s.cols, first + 128 * q, s.cols);
    TL_UNROLL_FOR (int i = 0; i < N; i++)
        if (i < n)
            TL_UNROLL_FOR (int q = 0; q < GROUPS; q++) {
                sum[q].x += v[i][q].x;
                sum[q].y += v[i][q].y;
                sum[q].z += v[i][q].z;
                sum[q].w += v[i][q].w;
            }
}

/* A warp owns 128·GROUPS columns of one row; consecutive warps own consecutive pieces of the output. The row of the
 * input is on its way while the warp finds its hits. Up to MANY_WIDE of them end up one per lane, in order. N hits at
 * a time are loaded: most rows have one or two, and fewer registers leave room for more warps. */
template <bool VECTORS, int GROUPS, Mode MODE>
__global__ void __launch_bounds__(THREADS) scatter_wide_kernel(Scatter s, tl_fastdiv pieces, int64_t units)
{
    const uint32_t lane = threadIdx.x % 32;
    const int64_t unit = (int64_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    if (unit >= units) return;
    uint32_t piece;
    const uint32_t row = pieces.divmod((uint32_t)unit, &piece);
    const uint32_t first = piece * (128 * GROUPS);

    uint32_t mine = 0, hits = 0;
    if constexpr (MODE == RECORDS) mine = s.records[(int64_t)row * RECORD + lane % RECORD];
    float4 sum[GROUPS];
    TL_UNROLL_FOR (int q = 0; q < GROUPS; q++) {
        sum[q] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (s.base) sum[q] = load_group<VECTORS>(s.base + (int64_t)row * s.cols, first + 128 * q, s.cols);
    }

    constexpr int N = GROUPS == 1 ? 4 : 2;
    uint32_t p[N];
    if constexpr (MODE == SCAN) {
        for (uint32_t from = 0; from < s.k; from += 32) {
            uint32_t hit = __ballot_sync(~0u, from + lane < s.k && s.indices[min(from + lane, s.k - 1)] == row);
            while (hit) {
                uint32_t n = 0;
                TL_UNROLL_FOR (int i = 0; i < N; i++)
                    if (hit) {
                        p[i] = from + __ffs((int)hit) - 1;
                        hit &= hit - 1;
                        n++;
                    }
                add_hits<VECTORS>(sum, s, p, n, first);
            }
        }
    } else {
        uint32_t begin = 0;
        if constexpr (MODE == RECORDS) {
            hits = __shfl_sync(~0u, mine, 0);
        } else {
            const uint2 segment = s.segments[row];
            begin = segment.x;
            hits = segment.y - segment.x;
        }
        if (hits > MANY_WIDE) {
            if (piece == 0 && lane == 0) leave_to_second_kernel(s, row);
            return;
        }
        if constexpr (MODE == SEGMENTS) {
            if (lane < hits) mine = s.order[begin + lane];
        } else {
            /* Slot l's hit moves to the lane of its rank. Positions are distinct, and so are ranks. */
            mine = __shfl_sync(~0u, mine, (lane + 1) % RECORD);
            if (hits > 1) {
                uint32_t rank = 0, sorted = 0;
                for (uint32_t l = 0; l < hits; l++)
                    rank += __shfl_sync(~0u, mine, l) < mine;
                for (uint32_t l = 0; l < hits; l++) {
                    const uint32_t position = __shfl_sync(~0u, mine, l);
                    if (__shfl_sync(~0u, rank, l) == lane) sorted = position;
                }
                mine = sorted;
            }
        }
        for (uint32_t i = 0; i < hits; i += N) {
            TL_UNROLL_FOR (int e = 0; e < N; e++)
                p[e] = __shfl_sync(~0u, mine, i + e);
            add_hits<VECTORS>(sum, s, p, min(hits - i, (uint32_t)N), first);
        }
    }
    TL_UNROLL_FOR (int q = 0; q < GROUPS; q++)
        store_group<VECTORS>(s.out + (int64_t)row * s.cols, first + 128 * q, s.cols, sum[q]);
}

/* The second kernel. A warp owns 32 columns of one row, a column per lane, and takes the hits in batches of BATCH,
 * all of whose loads are in flight at once (8 KiB per warp). The warps of a row sit in different blocks, hence on
 * different multiprocessors. */
constexpr int MANY_THREADS = 128, MANY_BLOCKS = 512, BATCH = 64;
constexpr int64_t MANY_WARPS = (int64_t)MANY_BLOCKS * (MANY_THREADS / 32);

__device__ __forceinline__ int64_t first_many_unit() { return (int64_t)(threadIdx.x / 32) * MANY_BLOCKS + blockIdx.x; }

/* Adds queue[0] .. queue[n-1], n <= BATCH, to the lane's column. */
__device__ __forceinline__ float add_batch(const Scatter &s, const uint32_t *queue, uint32_t n, uint32_t col, float sum)
{
    float v[BATCH];
    const uint32_t mine = min(col, s.cols - 1);
    TL_UNROLL_FOR (int i = 0; i < BATCH; i++)
        if (i < n) v[i] = s.values[(int64_t)queue[i] * s.cols + mine];
    TL_UNROLL_FOR (int i = 0; i < BATCH; i++)
        if (i < n) sum += v[i];
    return sum;
}

template <Mode MODE>
__global__ void __launch_bounds__(MANY_THREADS, 4) scatter_wide_many_kernel(Scatter s, tl_fastdiv strips)
{
    __shared__ uint32_t queues[MANY_THREADS / 32][BATCH + 32];
    const uint32_t lane = threadIdx.x % 32;
    uint32_t *queue = queues[threadIdx.x / 32];
    const int64_t units = (int64_t)s.many[0] * strips.divisor;
    for (int64_t unit = first_many_unit(); unit < units; unit += MANY_WARPS) {
        uint32_t strip;
        const uint32_t row = s.many[LIST + strips.divmod((uint32_t)unit, &strip)], col = strip * 32 + lane;
        float sum = 0.0f;
        if (s.base && col < s.cols) sum = s.base[(int64_t)row * s.cols + col];
        if constexpr (MODE == SEGMENTS) {
            const uint2 segment = s.segments[row];
            for (uint32_t i = segment.x; i < segment.y;) {
                const uint32_t n = min(segment.y - i, (uint32_t)BATCH);
                for (uint32_t l = lane; l < n; l += 32)
                    queue[l] = s.order[i + l];
                __syncwarp();
                sum = add_batch(s, queue, n, col, sum);
                __syncwarp();
                i += n;
            }
        } else {
            uint32_t filled = 0; /* below BATCH before each step */
            for (uint32_t from = 0; from < s.k; from += 128) {
                uint32_t index[4];
                TL_UNROLL_FOR (int e = 0; e < 4; e++)
                    index[e] = from + 32 * e + lane < s.k ? s.indices[from + 32 * e + lane] : s.rows;
                TL_UNROLL_FOR (int e = 0; e < 4; e++) {
                    const uint32_t hit = __ballot_sync(~0u, index[e] == row);
                    if (hit == 0) continue;
                    if (index[e] == row) queue[filled + __popc(hit & ((1u << lane) - 1))] = from + 32 * e + lane;
                    filled += __popc(hit);
                    __syncwarp();
                    if (filled >= BATCH) {
                        sum = add_batch(s, queue, BATCH, col, sum);
                        filled -= BATCH;
                        const uint32_t rest = queue[BATCH + lane];
                        __syncwarp();
                        if (lane < filled) queue[lane] = rest;
                        __syncwarp();
                    }
                }
            }
            sum = add_batch(s, queue, filled, col, sum);
            __syncwarp();
        }
        if (col < s.cols) s.out[(int64_t)row * s.cols + col] = sum;
    }
}

/* ---- scatter-add: narrow rows ------------------------------------------------------------------------------------ */

/* The value of the i-th grouped hit in a column. */
__device__ __forceinline__ float grouped(const Scatter &s, uint32_t i, uint32_t col)
{
    return s.sorted ? s.sorted[i] : s.values[(int64_t)s.order[i] * s.cols + col];
}

/* A thread owns one element of the output. */
template <Mode MODE>
__global__ void __launch_bounds__(THREADS) scatter_narrow_kernel(Scatter s, tl_fastdiv cols, int64_t total)
{
    const int64_t t = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (t >= total) return;
    uint32_t col;
    const uint32_t row = cols.divmod((uint32_t)t, &col);
    float sum = s.base ? s.base[t] : 0.0f;
    if constexpr (MODE == SCAN) {
        for (uint32_t j = 0; j < s.k; j++)
            if (s.indices[j] == row) sum += s.values[(int64_t)j * s.cols + col];
    } else {
        const uint2 segment = s.segments[row];
        if (segment.y - segment.x > MANY_NARROW) {
            if (col == 0) leave_to_second_kernel(s, row);
            return;
        }
        for (uint32_t i = segment.x; i < segment.y; i += 4) {
            float v[4];
            TL_UNROLL_FOR (int e = 0; e < 4; e++)
                if (e < segment.y - i) v[e] = grouped(s, i + e, col);
            TL_UNROLL_FOR (int e = 0; e < 4; e++)
                if (e < segment.y - i) sum += v[e];
        }
    }
    s.out[t] = sum;
}

/* A warp owns one element. Lane l loads the hits l, l + 32, ..., a round ahead of the sum, which every lane forms. */
__global__ void __launch_bounds__(MANY_THREADS) scatter_narrow_many_kernel(Scatter s, tl_fastdiv cols)
{
    const uint32_t lane = threadIdx.x % 32;
    const int64_t units = (int64_t)s.many[0] * s.cols;
    for (int64_t unit = first_many_unit(); unit < units; unit += MANY_WARPS) {
        uint32_t col;
        const uint32_t row = s.many[LIST + cols.divmod((uint32_t)unit, &col)];
        const uint2 segment = s.segments[row];
        const int64_t element = (int64_t)row * s.cols + col;
        float sum = s.base ? s.base[element] : 0.0f;
        uint32_t left = segment.y - segment.x;
        float next = lane < left ? grouped(s, segment.x + lane, col) : 0.0f;
        for (uint32_t i = segment.x; left > 0;) {
            const float v = next;
            const uint32_t n = min(left, 32u);
            i += n;
            left -= n;
            next = lane < left ? grouped(s, i + lane, col) : 0.0f;
            if (n == 32) {
                TL_UNROLL_FOR (int l = 0; l < 32; l++)
                    sum += __shfl_sync(~0u, v, l);
            } else {
                for (uint32_t l = 0; l < n; l++)
                    sum += __shfl_sync(~0u, v, l);
            }
        }
        if (lane == 0) s.out[element] = sum;
    }
}

/* A warp owns one column of one run of equal keys, which begins at `first`; lane l loads the hits l, l + 32, ... of it, a round ahead
 * of the sum, which every lane forms. */
__global__ void __launch_bounds__(THREADS)
    scatter_runs_kernel(Scatter s, const uint32_t *keys, tl_fastdiv cols, int64_t units)
{
    const uint32_t lane = threadIdx.x % 32;
    const int64_t unit = (int64_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    if (unit >= units) return;
    uint32_t col;
    const uint32_t first = cols.divmod((uint32_t)unit, &col), row = keys[first];
    if (row >= s.rows || (first > 0 && keys[first - 1] == row)) return;
    const int64_t element = (int64_t)row * s.cols + col;
    float sum = s.base ? s.base[element] : 0.0f, next = 0.0f;
    bool hit = first + lane < s.k && keys[first + lane] == row;
    if (hit) next = s.values[(int64_t)s.order[first + lane] * s.cols + col];
    for (uint32_t i = first;;) {
        const uint32_t n = __popc(__ballot_sync(~0u, hit));
        const float v = next;
        i += 32;
        hit = n == 32 && i + lane < s.k && keys[i + lane] == row;
        if (hit) next = s.values[(int64_t)s.order[i + lane] * s.cols + col];
        if (n == 32) {
            TL_UNROLL_FOR (int l = 0; l < 32; l++)
                sum += __shfl_sync(~0u, v, l);
        } else {
            for (uint32_t l = 0; l < n; l++)
                sum += __shfl_sync(~0u, v, l);
            break;
        }
    }
    if (lane == 0) s.out[element] = sum;
}

/* ---- scatter-add: launching -------------------------------------------------------------------------------------- */

template <bool VECTORS, int GROUPS> int32_t launch_wide(tl_context *ctx, const char *name, const Scatter &s, Mode mode)
{
    const int64_t pieces = tl_ceil_div(s.cols, 128 * GROUPS), units = s.rows * pieces;
    const auto kernel = mode == SCAN      ? scatter_wide_kernel<VECTORS, GROUPS, SCAN>
                        : mode == RECORDS ? scatter_wide_kernel<VECTORS, GROUPS, RECORDS>
                                          : scatter_wide_kernel<VECTORS, GROUPS, SEGMENTS>;
    return tl_launch(ctx, name, kernel, tl_grid(units, THREADS / 32), THREADS, s, tl_fastdiv(pieces), units);
}

/* The first kernel and, except after a scan, the second one. */
int32_t launch_owners(tl_context *ctx, const char *name, const Scatter &s, Mode mode)
{
    if (s.cols < 32) {
        const int64_t total = (int64_t)s.rows * s.cols;
        TL_TRY(tl_launch(ctx, name, mode == SCAN ? scatter_narrow_kernel<SCAN> : scatter_narrow_kernel<SEGMENTS>,
                         tl_grid(total, THREADS), THREADS, s, tl_fastdiv(s.cols), total));
    } else {
        const bool vectors = s.cols % 4 == 0 && tl_aligned4(s.base) && tl_aligned4(s.values) && tl_aligned4(s.out);
        const auto launch = s.cols <= 128 ? vectors ? launch_wide<true, 1> : launch_wide<false, 1>
                            : vectors     ? launch_wide<true, 2>
                                          : launch_wide<false, 2>;
        TL_TRY(launch(ctx, name, s, mode));
    }
    if (mode == SCAN) return TORCHLEAN_OK;
    const auto kernel = s.cols < 32       ? scatter_narrow_many_kernel
                        : mode == RECORDS ? scatter_wide_many_kernel<RECORDS>
                                          : scatter_wide_many_kernel<SEGMENTS>;
    const int64_t strips = s.cols < 32 ? s.cols : tl_ceil_div(s.cols, 32);
    return tl_launch(ctx, name, kernel, MANY_BLOCKS, MANY_THREADS, s, tl_fastdiv(strips));
}

/* Words of the list of rows with many hits, which is cleared with the records or segments behind it. */
size_t list_words(const Scatter &s) { return LIST + (size_t)tl_ceil_div(s.k / SLOTS + 1, 16) * 16; }

int32_t with_records(tl_context *ctx, const char *name, Scatter s)
{
    const size_t list = list_words(s), words = list + (size_t)s.rows * RECORD;
    tl_scratch<uint32_t> many(ctx);
    TL_TRY(many.allocate((int64_t)words));
    uint32_t *const records = many + list;
    s.many = many;
    s.records = records;
    TL_CUDA_TRY(ctx, cudaMemsetAsync(many, 0, words * sizeof(uint32_t), tl_cuda_stream(ctx)));
    TL_TRY(tl_launch(ctx, name, fill_records_kernel, tl_grid(s.k, THREADS), THREADS, s.indices, s.k, s.rows, records));
    return launch_owners(ctx, name, s, RECORDS);
}

int32_t sort_in_block(tl_context *ctx, const char *name, const Scatter &s, int bits, uint32_t *keys,
                      uint32_t *positions)
{
    const auto kernel = s.k <= 2 * SORT_THREADS ? sort_kernel<2> : sort_kernel<SORT_MOST / SORT_THREADS>;
    return tl_launch(ctx, name, kernel, 1, SORT_THREADS, s.indices, s.k, s.rows, bits, keys, positions);
}

int index_bits(const Scatter &s)
{
    int bits = 0;
    while (bits < 32 && s.rows >> bits)
        bits++;
    return bits;
}

/* The result of no hit: the input, or 0. */
int32_t copy_base(tl_context *ctx, const float *base, int64_t total, float *out)
{
    return base ? tl_cuda_copy(tl_context_cuda(ctx), out, base, (size_t)total * sizeof *out)
                : tl_cuda_fill(tl_context_cuda(ctx), out, 0.0f, total);
}

/* The result is the input but for the rows of the runs. */
int32_t with_runs(tl_context *ctx, const char *name, Scatter s)
{
    const int64_t units = (int64_t)s.k * s.cols;
    tl_scratch<uint32_t> sorted(ctx);
    TL_TRY(sorted.allocate(2 * SORT_MOST));
    s.order = sorted + SORT_MOST;
    TL_TRY(sort_in_block(ctx, name, s, index_bits(s), sorted, sorted + SORT_MOST));
    if (s.base != s.out) TL_TRY(copy_base(ctx, s.base, (int64_t)s.rows * s.cols, s.out));
    return tl_launch(ctx, name, scatter_runs_kernel, tl_grid(units, THREADS / 32), THREADS, s, (const uint32_t *)sorted,
                     tl_fastdiv(s.cols), units);
}

/* Scratch: list, segments, then k words each of keys and of what is sorted with them, before and after, then CUB's
 * own. With one column the values themselves are sorted: the sort is stable, so they arrive in index order, side by
 * side. */
int32_t with_segments(tl_context *ctx, const char *name, Scatter s)
{
    cudaStream_t stream = tl_cuda_stream(ctx);
    const bool by_value = s.cols == 1;
    const size_t list = list_words(s), cleared = list + (size_t)tl_ceil_div((int64_t)s.rows * 2, 64) * 64;
    const size_t run = (size_t)tl_ceil_div(s.k, 64) * 64, words = cleared + run * (by_value ? 3 : 4);
    const int bits = index_bits(s);
    const bool in_block = s.k <= SORT_MOST;
    size_t own = 0;
    const uint32_t *none = nullptr;
    uint32_t *nowhere = nullptr;
    if (!in_block)
        TL_CUDA_TRY(ctx,
                    cub::DeviceRadixSort::SortPairs(nullptr, own, none, nowhere, none, nowhere, s.k, 0, bits, stream));
    tl_scratch<uint32_t> many(ctx);
    TL_TRY(many.allocate((int64_t)(words + (own + sizeof(uint32_t) - 1) / sizeof(uint32_t))));
    uint2 *const segments = reinterpret_cast<uint2 *>(many + list);
    uint32_t *keys = many + cleared, *sorted_keys = keys + run, *grouped = sorted_keys + run;
    uint32_t *positions = by_value ? nullptr : grouped + run;
    const uint32_t *sorted = by_value ? (const uint32_t *)s.values : positions;
    s.many = many;
    s.segments = segments;
    s.order = grouped;
    s.sorted = by_value ? (const float *)grouped : nullptr;

    const unsigned grid = tl_grid(s.k, THREADS);
    TL_CUDA_TRY(ctx, cudaMemsetAsync(many, 0, cleared * sizeof(uint32_t), stream));
    if (in_block) {
        TL_TRY(sort_in_block(ctx, name, s, bits, sorted_keys, grouped));
    } else {
        TL_TRY(tl_launch(ctx, name, make_keys_kernel, grid, THREADS, s.indices, s.k, s.rows, keys, positions));
        TL_CUDA_TRY(ctx, cub::DeviceRadixSort::SortPairs(many + words, own, (const uint32_t *)keys, sorted_keys, sorted,
                                                         grouped, s.k, 0, bits, stream));
    }
    TL_TRY(tl_launch(ctx, name, find_segments_kernel, grid, THREADS, sorted_keys, s.k, s.rows, segments));
    return launch_owners(ctx, name, s, SEGMENTS);
}

} /* namespace */

int32_t tl_scatter_rows(tl_context *ctx, const char *name, const float *base, const float *values,
                        const uint32_t *indices, int64_t rows, int64_t cols, int64_t k, float *out)
{
    if (k == 0) return copy_base(ctx, base, rows * cols, out);
    tl_scratch<uint32_t> staged(ctx);
    TL_TRY(staged.stage(indices, k));
    Scatter s = {};
    s.base = base, s.values = values, s.out = out, s.indices = staged;
    s.rows = (uint32_t)rows, s.cols = (uint32_t)cols, s.k = (uint32_t)k;
    if (k <= SCAN_INDICES && (cols >= 32 || rows * cols <= SCAN_WORK / k)) return launch_owners(ctx, name, s, SCAN);
    if (cols < 32 && k <= SORT_MOST) return with_runs(ctx, name, s);
    return cols >= 128 && k <= RECORD_INDICES && k <= 4 * rows ? with_records(ctx, name, s)
                                                               : with_segments(ctx, name, s);
}
