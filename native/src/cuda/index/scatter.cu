/* Scatter-adds on CUDA.
 *
 * Every output row has one owner, who reads the row of the input, adds its hits (the positions j with indices[j] =
 * row) in increasing j and writes the row once: no floating-point atomics, so the order of the sum is that of the
 * index list on every device. Lists of up to TL_BINNED_INDICES are scatter_tile.cu's. Here a stable radix sort (CUB)
 * puts the hits of a row side by side, in order.
 *
 * Narrow rows (below 32 columns) are copied, and then every run of equal indices has an owner. Wide rows have a warp for
 * each 128 or 256 columns, which finds the row's run in a table.
 *
 * A row with many hits is a serial sum of any length. Its owner leaves it to a last kernel, which spreads the row
 * over more warps, and keeps more loads in flight. It runs on the list of such runs that the kernel before leaves in
 * memory. */
#include "cuda/device/division.cuh"
#include "cuda/device/vector.cuh"
#include "cuda/index/order.cuh"
#include "cuda/index/scatter.cuh"
#include "cuda/runtime/launch.cuh"
#include "generated/index.h"

#include <cub/device/device_radix_sort.cuh>

namespace {

constexpr int THREADS = 256;
constexpr uint32_t MANY = 32, LONG = 256; /* longer runs are left to a warp for 32 columns, or for each column */
constexpr int64_t TILED_WIDE = 4096, TILED_VALUES = (int64_t)1 << 22; /* hits, and values, of tiles of wide rows */
constexpr int LEFT = 16; /* left[0] runs from left[LEFT] on, left[1] long ones from the end back */

struct Scatter {
    const float *base; /* NULL for a sum that starts from +0 */
    float *out;
    const uint32_t *keys;  /* sorted: the row, or `rows` for an index to ignore */
    const uint2 *segments; /* wide rows: begin and end of a row's run */
    tl_hits hits;          /* by place in the sorted list */
    uint32_t *left, *left_end;
    uint32_t rows, cols, k;

    __device__ __forceinline__ bool in_run(uint32_t i, uint32_t row) const { return i < k && keys[i] == row; }
    /* Leaves the run that begins at i to the last kernel. */
    __device__ __forceinline__ void leave(uint32_t i, bool is_long) const
    {
        if (is_long)
            *(left_end - 1 - atomicAdd(left + 1, 1u)) = i;
        else
            left[LEFT + atomicAdd(left, 1u)] = i;
    }
};

/* Sort keys, and positions where they and not the values are sorted; the lists for the last kernel are empty. */
__global__ void __launch_bounds__(THREADS)
    make_keys_kernel(const uint32_t *__restrict__ indices, uint32_t k, uint32_t rows, uint32_t *__restrict__ keys,
                     uint32_t *__restrict__ positions, uint32_t *__restrict__ left)
{
    const int64_t j = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (j < 2) left[j] = 0;
    if (j >= k) return;
    keys[j] = min(indices[j], rows);
    if (positions) positions[j] = (uint32_t)j;
}

/* ---- narrow rows ----------------------------------------------------------------------------------------------------- */

/* A thread owns one column of the run that begins at its place, if one does. The output holds the base. */
__global__ void __launch_bounds__(THREADS) scatter_narrow_kernel(Scatter s, tl_fastdiv cols, int64_t units)
{
    const int64_t t = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (t >= units) return;
    uint32_t col;
    const uint32_t i = cols.divmod((uint32_t)t, &col), row = s.keys[i];
    if (row >= s.rows || (i > 0 && s.keys[i - 1] == row)) return;
    if ((uint64_t)i + MANY < s.k && s.keys[i + MANY] == row) {
        if (col == 0) s.leave(i, true);
        return;
    }
    const int64_t element = (int64_t)row * s.cols + col;
    float sum = s.base ? s.base[element] : 0.0f;
    for (uint32_t from = i; s.in_run(from, row); from += 4) {
        float v[4];
        bool hit[4];
        TL_UNROLL_FOR (int e = 0; e < 4; e++) {
            hit[e] = s.in_run(from + e, row);
            if (hit[e]) v[e] = s.hits.value(s.hits.list[from + e], col);
        }
        TL_UNROLL_FOR (int e = 0; e < 4; e++)
            if (hit[e]) sum += v[e];
    }
    s.out[element] = sum;
}

/* ---- wide rows ------------------------------------------------------------------------------------------------------- */

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

/* A warp owns 128·GROUPS columns of one row; consecutive warps own consecutive pieces of the output. The row of the
 * input is on its way while the warp finds its hits. Up to MANY of them end up one per lane, in order. N hits at
 * a time are loaded: most rows have one or two, and fewer registers leave room for more warps. */
template <bool VECTORS, int GROUPS>
__global__ void __launch_bounds__(THREADS) scatter_wide_kernel(Scatter s, tl_fastdiv pieces, int64_t units)
{
    const uint32_t lane = threadIdx.x % 32;
    const int64_t unit = (int64_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    if (unit >= units) return;
    uint32_t piece;
    const uint32_t row = pieces.divmod((uint32_t)unit, &piece), first = piece * (128 * GROUPS);
    const int64_t at = (int64_t)row * s.cols;
    const uint2 segment = s.segments[row];
    float4 sum[GROUPS];
    TL_UNROLL_FOR (int q = 0; q < GROUPS; q++) {
        sum[q] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (s.base) sum[q] = tl_load_group<VECTORS>(s.base + at, first + 128 * q, s.cols);
    }
    const uint32_t hits = segment.y - segment.x;
    if (hits > MANY) {
        if (piece == 0 && lane == 0) s.leave(segment.x, hits > LONG);
        return;
    }
    const uint32_t mine = lane < hits ? s.hits.list[segment.x + lane] : 0;
    constexpr int N = GROUPS == 1 ? 4 : 2;
    for (uint32_t i = 0; i < hits; i += N) {
        uint32_t p[N];
        TL_UNROLL_FOR (int e = 0; e < N; e++)
            p[e] = __shfl_sync(~0u, mine, i + e);
        tl_add_hits<VECTORS>(sum, s.hits.values, s.cols, p, min(hits - i, (uint32_t)N), first, s.cols);
    }
    TL_UNROLL_FOR (int q = 0; q < GROUPS; q++)
        tl_store_group<VECTORS>(s.out + at, first + 128 * q, s.cols, sum[q]);
}

/* ---- runs of many hits ----------------------------------------------------------------------------------------------- */

/* A warp owns a column of a long run, or 32 of another. The warps of a run sit in different blocks, hence on different
 * multiprocessors. */
constexpr int MANY_THREADS = 128, MANY_BLOCKS = 528, RUN = 32;

__global__ void __launch_bounds__(MANY_THREADS, 3) scatter_many_kernel(Scatter s)
{
    __shared__ float4 chunks[MANY_THREADS / 32][16 * RUN / 4];
    const uint32_t lane = threadIdx.x % 32;
    const int64_t first = (int64_t)(threadIdx.x / 32) * MANY_BLOCKS + blockIdx.x;
    constexpr int64_t WARPS = (int64_t)MANY_BLOCKS * (MANY_THREADS / 32);
    for (int64_t unit = first; unit < (int64_t)s.left[1] * s.cols; unit += WARPS) {
        const uint32_t i = *(s.left_end - 1 - unit / s.cols), col = (uint32_t)(unit % s.cols), row = s.keys[i];
        const uint32_t end = tl_run_end(i, s.k, [&](uint32_t p) { return s.keys[p] == row; });
        const int64_t element = (int64_t)row * s.cols + col;
        const float sum =
            tl_add_run<RUN>(s.hits, i, end, col, s.base ? s.base[element] : 0.0f, chunks[threadIdx.x / 32]);
        if (lane == 0) s.out[element] = sum;
    }
    const uint32_t strips = (s.cols + 31) / 32;
    for (int64_t unit = first; unit < (int64_t)s.left[0] * strips; unit += WARPS) {
        const uint32_t i = s.left[LEFT + unit / strips], row = s.keys[i];
        const uint32_t col = min((uint32_t)(unit % strips) * 32 + lane, s.cols - 1);
        const uint32_t end = tl_run_end(i, s.k, [&](uint32_t p) { return s.keys[p] == row; });
        const int64_t element = (int64_t)row * s.cols + col;
        s.out[element] = tl_add_walk(s.hits, i, end, col, s.base ? s.base[element] : 0.0f);
    }
}

/* ---- launching ------------------------------------------------------------------------------------------------------- */

template <bool VECTORS, int GROUPS> int32_t launch_wide(tl_context *ctx, const char *name, const Scatter &s)
{
    const int64_t pieces = tl_ceil_div(s.cols, 128 * GROUPS), units = s.rows * pieces;
    return tl_launch(ctx, name, scatter_wide_kernel<VECTORS, GROUPS>, tl_grid(units, THREADS / 32), THREADS, s,
                     tl_fastdiv(pieces), units);
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

} /* namespace */

/* Scratch: the lists, the table of a wide row's runs, then k words each of keys and of what is sorted with them, before and after,
 * then CUB's own. With one column the values themselves are sorted: the sort is stable, so they arrive in index order, side by
 * side. */
int32_t tl_scatter_rows(tl_context *ctx, const char *name, const float *base, const float *values,
                        const uint32_t *indices, int64_t rows, int64_t cols, int64_t k, float *out)
{
    if (k == 0 || rows * cols == 0) return copy_base(ctx, base, rows * cols, out);
    tl_scratch<uint32_t> staged(ctx);
    TL_TRY(staged.stage(indices, k));
    /* Tiles that are wide serve one long run after the other, and wait for one value after the other. */
    const bool narrow_tiles = cols <= 8 || rows * cols < TL_SMALL_TABLE;
    if (k <= (narrow_tiles ? TL_BINNED_INDICES
              : cols < 32  ? TL_TILE_INDICES
                           : TILED_WIDE) &&
        (narrow_tiles || cols < 32 || k * cols <= TILED_VALUES))
        return tl_scatter_tiles(ctx, name, base, values, staged, 1, rows, cols, k, false, out);

    cudaStream_t stream = tl_cuda_stream(ctx);
    const bool by_value = cols == 1, wide = cols >= 32;
    const int64_t lists = tl_ceil_div(LEFT + k / MANY + 1, 64) * 64, table = wide ? tl_ceil_div(rows * 2, 64) * 64 : 0;
    const int64_t run = tl_ceil_div(k, 64) * 64, words = lists + table + run * (by_value ? 3 : 4);
    const int bits = index_bits((uint32_t)rows);
    size_t own = 0;
    const uint32_t *none = nullptr;
    uint32_t *nowhere = nullptr;
    TL_CUDA_TRY(
        ctx, cub::DeviceRadixSort::SortPairs(nullptr, own, none, nowhere, none, nowhere, (uint32_t)k, 0, bits, stream));
    tl_scratch<uint32_t> scratch(ctx);
    TL_TRY(scratch.allocate(words + (int64_t)((own + sizeof(uint32_t) - 1) / sizeof(uint32_t))));
    uint2 *const segments = reinterpret_cast<uint2 *>(scratch + lists);
    uint32_t *keys = scratch + lists + table, *sorted_keys = keys + run, *grouped = sorted_keys + run;
    uint32_t *positions = by_value ? nullptr : grouped + run;
    const uint32_t *with = by_value ? (const uint32_t *)values : positions;
    Scatter s = {};
    s.base = base, s.out = out, s.keys = sorted_keys, s.segments = segments;
    s.hits = {grouped, UINT32_MAX, by_value ? nullptr : values, (uint32_t)cols};
    s.left = scratch, s.left_end = scratch + lists;
    s.rows = (uint32_t)rows, s.cols = (uint32_t)cols, s.k = (uint32_t)k;

    const unsigned grid = tl_grid(k, THREADS);
    TL_TRY(tl_launch(ctx, name, make_keys_kernel, grid, THREADS, (const uint32_t *)staged, s.k, s.rows, keys, positions,
                     s.left));
    TL_CUDA_TRY(ctx, cub::DeviceRadixSort::SortPairs(scratch + words, own, (const uint32_t *)keys, sorted_keys, with,
                                                     grouped, s.k, 0, bits, stream));
    if (wide) {
        TL_CUDA_TRY(ctx, cudaMemsetAsync(segments, 0, (size_t)table * sizeof(uint32_t), stream));
        TL_TRY(tl_launch(ctx, name, find_segments_kernel, grid, THREADS, sorted_keys, s.k, s.rows, segments));
        const bool vectors = cols % 4 == 0 && tl_aligned4(base) && tl_aligned4(values) && tl_aligned4(out);
        const auto launch = cols <= 128 ? vectors ? launch_wide<true, 1> : launch_wide<false, 1>
                            : vectors   ? launch_wide<true, 2>
                                        : launch_wide<false, 2>;
        TL_TRY(launch(ctx, name, s));
    } else {
        TL_TRY(copy_base(ctx, base, rows * cols, out));
        TL_TRY(tl_launch(ctx, name, scatter_narrow_kernel, tl_grid(k * cols, THREADS), THREADS, s, tl_fastdiv(cols),
                         k * cols));
    }
    return tl_launch(ctx, name, scatter_many_kernel, MANY_BLOCKS, MANY_THREADS, s);
}
