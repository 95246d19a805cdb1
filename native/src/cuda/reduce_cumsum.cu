/* Cumulative sums on CUDA, in the order of formula/cumsum.h.
 *
 * A tile is 32 chunks of 32 elements, and its total is one of the level two above: so an axis of at most 1024 elements takes one
 * launch, a longer one three and those of its totals. A thread owns a chunk. Where columns lie side by side a block owns the
 * tile of 32 columns, so that warps read lines, the second time from L2; else a warp owns it and turns it over in shared memory,
 * and up to 32 tiles of a row, whose totals are one chunk above, are a block's, which reads them once and takes one launch. */
#include <type_traits>

#include "cuda/runtime/launch.cuh"
#include "formula/cumsum.h"
#include "formula/integer.h"
#include "generated/reduce.h"

namespace {

constexpr int CHUNK = TL_CUMSUM_CHUNK, TILE = CHUNK * CHUNK, COLUMNS = 32, WARPS = 4;

/* The sums of x behind `before` (what stands before each tile; none for 0) to out, or only the tiles' totals. Elements are float
 * and sums include theirs, or double and sums leave theirs out. */
template <class T> struct Cumsum {
    const T *x;
    const double *before;
    double *totals;
    T *out;
    int64_t length, inner, tiles, blocks, units;
    int reverse;
};

__device__ __forceinline__ double add_kept(double sum, double x, float *out)
{
    *out = (float)(sum + x);
    return sum + x;
}

__device__ __forceinline__ double add_kept(double sum, double x, double *out)
{
    *out = sum;
    return sum + x;
}

/* Blocks of (COLUMNS, chunks of a tile). */
template <class T> __global__ void __launch_bounds__(COLUMNS *CHUNK) cumsum_columns(Cumsum<T> a)
{
    __shared__ double total[CHUNK][COLUMNS];
    const int64_t unit = blockIdx.x, tile = unit / a.blocks % a.tiles, slice = unit / a.blocks / a.tiles;
    const int64_t column = unit % a.blocks * COLUMNS + threadIdx.x;
    const int64_t first = tile * TILE + threadIdx.y * CHUNK, result = (slice * a.tiles + tile) * a.inner + column;
    const bool inside = column < a.inner;
    const int n = inside ? (int)max((int64_t)0, min(a.length - first, (int64_t)CHUNK)) : 0;
    const int64_t step = a.reverse ? -a.inner : a.inner;
    int64_t at = (slice * a.length + (a.reverse ? a.length - 1 - first : first)) * a.inner + column;
    double sum = 0.0;
#pragma unroll 8
    for (int i = 0; i < n; i++)
        sum += (double)a.x[at + i * step];
    total[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (!inside) return;
    const int chunks = a.totals ? (int)blockDim.y : (int)threadIdx.y;
    sum = a.before ? a.before[result] : 0.0;
    for (int y = 0; y < chunks; y++)
        sum += total[y][threadIdx.x];
    if (a.totals) {
        if (threadIdx.y == 0) a.totals[result] = sum;
        return;
    }
#pragma unroll 8
    for (int i = 0; i < n; i++, at += step)
        sum = add_kept(sum, (double)a.x[at], a.out + at);
}

TL_DYNAMIC_SHARED(float, tl_cumsum_tiles);

constexpr size_t TILE_BYTES = sizeof(float) * CHUNK * (CHUNK + 1);

/* inner = 1: a warp owns a tile, a lane a chunk. JOINED: all tiles of a row are in one block, row after row. */
template <bool JOINED> __global__ void __launch_bounds__(1024) cumsum_rows(Cumsum<float> a)
{
    __shared__ double totals[32];
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    float (*const x)[CHUNK + 1] = reinterpret_cast<float (*)[CHUNK + 1]>(tl_cumsum_tiles) + warp * CHUNK;
    const int64_t unit = (int64_t)blockIdx.x * (blockDim.x / 32) + warp;
    if (!JOINED && unit >= a.units) return;
    const int64_t tile = unit % a.tiles, slice = unit / a.tiles * a.length, first = tile * TILE;
    const int n = unit < a.units ? (int)min(a.length - first, (int64_t)TILE) : 0;
    const int64_t base = slice + (a.reverse ? a.length - 1 - first : first), step = a.reverse ? -1 : 1;
#pragma unroll 8
    for (int k = 0; k < CHUNK; k++)
        x[k][lane] = k * CHUNK + lane < n ? a.x[base + step * (k * CHUNK + lane)] : 0.0f;
    __syncwarp();
    double mine = 0.0, sum = a.before ? a.before[unit] : 0.0;
#pragma unroll 8
    for (int k = 0; k < CHUNK; k++)
        mine += (double)x[lane][k];
    if (JOINED || a.totals) {
        double total = 0.0;
        for (int y = 0; y < CHUNK; y++)
            total += __shfl_sync(0xffffffffu, mine, y);
        if (lane == 0) (JOINED ? totals + warp : a.totals + unit)[0] = total;
        if (!JOINED) return;
        __syncthreads();
        for (int t = warp - (int)tile; t < warp; t++)
            sum += totals[t];
    }
    for (int y = 0; y < CHUNK; y++) {
        const double other = __shfl_sync(0xffffffffu, mine, y);
        if (y < lane) sum += other;
    }
#pragma unroll 8
    for (int k = 0; k < CHUNK; k++)
        sum = add_kept(sum, (double)x[lane][k], &x[lane][k]);
    __syncwarp();
#pragma unroll 8
    for (int k = 0; k < CHUNK; k++)
        if (k * CHUNK + lane < n) a.out[base + step * (k * CHUNK + lane)] = x[k][lane];
}

/* All tiles of each row, of at most 32, and several rows where they have few. */
int32_t launch_joined(tl_context *ctx, const Cumsum<float> &a)
{
    const int64_t warps = a.tiles * tl_imax(1, WARPS / a.tiles);
    const size_t bytes = (size_t)warps * TILE_BYTES;
    if (bytes > 48 * 1024) TL_TRY(tl_allow_shared(ctx, cumsum_rows<true>, bytes));
    return tl_launch_dynamic(ctx, "cumsum", cumsum_rows<true>, tl_grid(a.units, warps), (unsigned)(32 * warps), bytes,
                             a);
}

template <class T> int32_t launch(tl_context *ctx, const Cumsum<T> &a)
{
    const dim3 block(COLUMNS, (unsigned)tl_imin(CHUNK, tl_ceil_div(a.length, CHUNK)));
    return tl_launch(ctx, "cumsum", cumsum_columns<T>, (unsigned)(a.units * a.blocks), block, a);
}

template <> int32_t launch<float>(tl_context *ctx, const Cumsum<float> &a)
{
    const dim3 block(COLUMNS, (unsigned)tl_imin(CHUNK, tl_ceil_div(a.length, CHUNK)));
    if (a.inner > 1) return tl_launch(ctx, "cumsum", cumsum_columns<float>, (unsigned)(a.units * a.blocks), block, a);
    return tl_launch_dynamic(ctx, "cumsum", cumsum_rows<false>, tl_grid(a.units, WARPS), 32 * WARPS, WARPS * TILE_BYTES,
                             a);
}

template <class T>
int32_t run(tl_context *ctx, const T *x, int64_t outer, int64_t length, int64_t inner, int reverse, T *out)
{
    Cumsum<T> a = {x, nullptr, nullptr, out, length, inner, tl_ceil_div(length, TILE), tl_ceil_div(inner, COLUMNS),
                   0, reverse};
    a.units = outer * a.tiles;
    if (outer * length * inner == 0) return TORCHLEAN_OK;
    if (a.tiles == 1) return launch(ctx, a);
    if constexpr (std::is_same_v<T, float>) /* many rows: at least three blocks per multiprocessor */
        if (inner == 1 && a.tiles <= (outer <= tl_cuda_sms(ctx) ? 32 : 16)) return launch_joined(ctx, a);
    tl_scratch<double> totals(ctx), before(ctx);
    TL_TRY(totals.allocate(a.units * inner));
    TL_TRY(before.allocate(a.units * inner));
    a.totals = totals;
    TL_TRY(launch(ctx, a));
    TL_TRY(run<double>(ctx, totals, outer, a.tiles, inner, 0, before));
    a.totals = nullptr;
    a.before = before;
    return launch(ctx, a);
}

} // namespace

int32_t tl_cuda_cumsum(tl_context *ctx, const float *x, const tl_dims *dims, int64_t axis, int64_t reverse, float *out)
{
    int64_t outer = 1, inner = 1;
    for (int64_t k = 0; k < dims->rank; k++)
        if (k != axis) (k > axis ? inner : outer) *= dims->d[k];
    return run<float>(ctx, x, outer, dims->d[axis], inner, (int)reverse, out);
}
