/* Cumulative sums on CUDA, in the order of formula/cumsum.h.
 *
 * A tile is 32 chunks of 32 elements, and its total is one of the level two above. A thread owns a chunk. Of columns, and of rows
 * of one chunk, a block owns the tile of up to 32 columns, or several if it has few chunks, so that warps read neighbours, and threads
 * keep their chunks in registers. Else a warp owns it and turns it over in shared memory, so that a lane owns a chunk and memory is read
 * and written in lines; up to 32 tiles of a row, whose totals are one chunk above, are a block's. Longer columns and rows are read
 * twice, for their tiles' totals and for their sums; what stands before the tiles are the cumulative sums of the totals. */
#include "cuda/device/async_copy.cuh"
#include "cuda/device/instructions.cuh"
#include "cuda/device/vector.cuh"
#include "cuda/device/widen.cuh"
#include "cuda/reduce/select.h"
#include "cuda/runtime/launch.cuh"
#include "formula/cumsum.h"
#include "formula/wide.h"
#include "generated/reduce.h"

TL_DYNAMIC_SHARED(float, tl_cumsum_tiles);

namespace {

constexpr int CHUNK = TL_CUMSUM_CHUNK, TILE = TL_CUMSUM_TILE, COLUMNS = 32, WARPS = 4;
static_assert(TILE == CHUNK * CHUNK, "chunks of a chunk");

/* Elements are floats, and sums include theirs, or doubles, and sums leave theirs out. */
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

/* The elements of a chunk that a thread loads at once: all where they are floats, which it then keeps for the second time. */
template <class T> constexpr int AT_ONCE = sizeof(T) == sizeof(float) ? CHUNK : 8;

/* v = the first `n` of elements at x, `step` apart, and zeros behind them, which change no sum. */
template <class T, int N> __device__ __forceinline__ void load_chunk(T (&v)[N], const T *x, int64_t step, int n)
{
    TL_UNROLL_FOR (int i = 0; i < N; i++, x += step)
        v[i] = i < n ? *x : (T)0;
}

/* Blocks of (COLUMNS or all columns if they are fewer, chunks of a tile, units). */
template <class T> __global__ void __launch_bounds__(COLUMNS *CHUNK) cumsum_columns(Cumsum<T> a)
{
    __shared__ double totals[COLUMNS * CHUNK];
    const int64_t unit = (int64_t)blockIdx.x * blockDim.z + threadIdx.z;
    const int64_t tile = unit / a.blocks % a.tiles, slice = unit / a.blocks / a.tiles;
    double *const total = totals + threadIdx.z * blockDim.y * blockDim.x + threadIdx.x;
    const int64_t column = unit % a.blocks * blockDim.x + threadIdx.x;
    const int64_t first = tile * TILE + threadIdx.y * CHUNK, result = (slice * a.tiles + tile) * a.inner + column;
    const bool inside = column < a.inner && unit < a.units * a.blocks;
    const int n = inside ? (int)max((int64_t)0, min(a.length - first, (int64_t)CHUNK)) : 0;
    const int64_t step = a.reverse ? -a.inner : a.inner;
    int64_t at = (slice * a.length + (a.reverse ? a.length - 1 - first : first)) * a.inner + column;
    constexpr int N = AT_ONCE<T>;
    T v[N];
    double sum = 0.0;
#pragma unroll 1
    for (int i = 0; i < n; i += N) {
        load_chunk(v, a.x + at + i * step, step, n - i);
        TL_UNROLL_FOR (int k = 0; k < N; k++)
            sum += (double)v[k];
    }
    total[threadIdx.y * blockDim.x] = sum;
    __syncthreads();
    if (!inside) return;
    const int chunks = a.totals ? (int)blockDim.y : (int)threadIdx.y;
    sum = a.before ? a.before[result] : 0.0;
    for (int y = 0; y < chunks; y++)
        sum += total[y * blockDim.x];
    if (a.totals) {
        if (threadIdx.y == 0) a.totals[result] = sum;
        return;
    }
#pragma unroll 1
    for (int i = 0; i < n; i += N, at += N * step) {
        if constexpr (N < CHUNK) {
            load_chunk(v, a.x + at, step, n - i);
        } else {
            /* lest the compiler keep them as doubles, in twice the registers */
            TL_UNROLL_FOR (int k = 0; k < N; k++)
                tl_forget_origin(v[k]);
        }
        T *to = a.out + at;
        TL_UNROLL_FOR (int k = 0; k < N; k++, to += step)
            if (i + k < n) sum = add_kept(sum, (double)v[k], to);
    }
}

/* ---- rows --------------------------------------------------------------------------------------------------------------- */

/* Rows of `length` elements, summed from their ends on with `reverse`. */
struct Rows {
    const float *x;
    float *out;
    int64_t length;
    int reverse;

    /* Where element i of the row at `slice` lies. */
    __device__ __forceinline__ int64_t place(int64_t slice, int64_t i) const
    {
        return slice + (reverse ? length - 1 - i : i);
    }
    /* From an element to that `count` behind it. */
    __device__ __forceinline__ int step(int count) const { return reverse ? -count : count; }
};

/* Floats from a chunk of a tile to the next in shared memory: with 4 in excess, accesses of 16 bytes along a chunk, and of 4 along the
 * tile, meet each bank once. */
constexpr int PITCH = CHUNK + 4;
constexpr size_t TILE_BYTES = sizeof(float) * CHUNK * PITCH;

/* The warp's tile. */
__device__ __forceinline__ float (*own_tile())
    [PITCH] { return reinterpret_cast<float (*)[PITCH]>(tl_cumsum_tiles) + threadIdx.x / 32 * CHUNK; }

/* The n elements from `first` on to the warp's tile, and zeros behind them. */
__device__ __forceinline__ void load_tile(const Rows &a, int64_t slice, int64_t first, int n, float (*x)[PITCH])
{
    const int lane = (int)threadIdx.x % 32, step = a.step(CHUNK), left = n - lane;
    const float *const from = a.x + a.place(slice, first + lane);
    TL_UNROLL_FOR (int k = 0; k < CHUNK; k++)
        tl_copy_async<4>(&x[k][lane], k * CHUNK < left ? from + k * step : a.x, k * CHUNK < left);
    tl_copy_commit();
    tl_copy_wait<0>();
    __syncwarp();
}

__device__ __forceinline__ void store_tile(const Rows &a, int64_t slice, int64_t first, int n, const float (*x)[PITCH])
{
    const int lane = (int)threadIdx.x % 32, step = a.step(CHUNK), left = n - lane;
    float *const to = a.out + a.place(slice, first + lane);
    __syncwarp();
#pragma unroll 8
    for (int k = 0; k < CHUNK; k++)
        if (k * CHUNK < left) to[k * step] = x[k][lane];
}

/* ---- sums of a chunk --------------------------------------------------------------------------------------------------- */

/* The total of the lane's chunk to chunks[lane], where the warp sees it. Gives out whether all elements are finite: others are
 * converted. */
__device__ __forceinline__ bool total_chunk(const float (*x)[PITCH], double *chunks)
{
    const int lane = (int)threadIdx.x % 32;
    double sum = 0.0;
    float zero = 0.0f; /* as long as all are */
    const auto add = [&](float v) { sum = tl_add_widened(v, sum), zero = fmaf(v, 0.0f, zero); };
    TL_UNROLL_FOR (int k = 0; k < CHUNK; k += 4) {
        const float4 v = tl_load4(&x[lane][k]);
        add(v.x), add(v.y), add(v.z), add(v.w);
    }
    const bool finite = zero == 0.0f;
    if (!finite) {
        sum = 0.0;
#pragma unroll 4
        for (int k = 0; k < CHUNK; k++)
            sum += (double)x[lane][k];
    }
    chunks[lane] = sum;
    __syncwarp();
    return finite;
}

/* Of the tile: all lanes read the same place, which takes less than an exchange. */
__device__ __forceinline__ double total_tile(const double *chunks)
{
    double sum = 0.0;
#pragma unroll 16
    for (int y = 0; y < CHUNK; y++)
        sum += chunks[y];
    return sum;
}

/* The sums of the lane's chunk, which total_chunk called `finite` or not, instead of its elements; `sum` stands before the tile. */
__device__ __forceinline__ void sum_chunk(double sum, const double *chunks, bool finite, float (*x)[PITCH])
{
    const int lane = (int)threadIdx.x % 32;
#pragma unroll 16
    for (int y = 0; y < CHUNK; y++) {
        const double next = sum + chunks[y];
        sum = y < lane ? next : sum;
    }
    if (finite && isfinite(sum)) {
        const auto add = [&](float &v) { sum = tl_add_widened(v, sum), v = (float)sum; };
        TL_UNROLL_FOR (int k = 0; k < CHUNK; k += 4) {
            float4 v = tl_load4(&x[lane][k]);
            add(v.x), add(v.y), add(v.z), add(v.w);
            tl_store4(&x[lane][k], v);
        }
    } else {
#pragma unroll 4
        for (int k = 0; k < CHUNK; k++)
            sum = add_kept(sum, (double)x[lane][k], &x[lane][k]);
    }
}

/* ---- the kernel of rows ----------------------------------------------------------------------------------------------- */

/* A warp owns a tile, a lane a chunk. All tiles of a row are in one block, row after row; of a longer row what stands `before` each of
 * them is known, or only their totals are wanted. */
__global__ void __launch_bounds__(1024)
    cumsum_rows(Rows a, int64_t units, int64_t tiles, const double *before, double *totals)
{
    __shared__ double chunks[32][CHUNK], of_tiles[32];
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const int64_t unit = (int64_t)blockIdx.x * (blockDim.x / 32) + warp, row = unit / tiles, tile = unit - row * tiles;
    const int64_t slice = row * a.length, first = tile * TILE;
    const int n = unit < units ? (int)min(a.length - first, (int64_t)TILE) : 0;
    float (*const x)[PITCH] = own_tile();
    load_tile(a, slice, first, n, x);
    const bool finite = total_chunk(x, chunks[warp]);
    double sum = 0.0;
    if (before) {
        sum = n > 0 ? before[unit] : 0.0;
    } else if (tiles > 1) {
        const double total = total_tile(chunks[warp]);
        if (totals) {
            if (lane == 0 && n > 0) totals[unit] = total;
            return;
        }
        if (lane == 0) of_tiles[warp] = total;
        __syncthreads();
        for (int t = warp - (int)tile; t < warp; t++)
            sum += of_tiles[t];
    }
    sum_chunk(sum, chunks[warp], finite, x);
    store_tile(a, slice, first, n, x);
}

/* ---- the launches ---------------------------------------------------------------------------------------------------- */

template <class T> int32_t launch(tl_context *ctx, const Cumsum<T> &a)
{
    const int64_t columns = tl_imin(COLUMNS, a.inner), chunks = tl_imin(CHUNK, tl_ceil_div(a.length, CHUNK));
    const int64_t units = tl_imin(64, tl_imax(1, 32 * WARPS / (columns * chunks))); /* the most along z */
    const dim3 block((unsigned)columns, (unsigned)chunks, (unsigned)units);
    return tl_launch(ctx, "cumsum", cumsum_columns<T>, tl_grid(a.units * a.blocks, units), block, a);
}

template <class T>
int32_t run_columns(tl_context *ctx, const T *x, int64_t outer, int64_t length, int64_t inner, int reverse, T *out)
{
    Cumsum<T> a = {x, nullptr, nullptr, out, length, inner, tl_ceil_div(length, TILE), tl_ceil_div(inner, COLUMNS),
                   0, reverse};
    a.units = outer * a.tiles;
    if (a.tiles == 1) return launch(ctx, a);
    tl_scratch<double> totals(ctx), before(ctx);
    TL_TRY(totals.allocate(a.units * inner));
    TL_TRY(before.allocate(a.units * inner));
    a.totals = totals;
    TL_TRY(launch(ctx, a));
    TL_TRY(run_columns<double>(ctx, totals, outer, a.tiles, inner, 0, before));
    a.totals = nullptr;
    a.before = before;
    return launch(ctx, a);
}

/* Tiles of rows, all of a row in a block where there are at most 32, several rows where they have few. */
int32_t run_rows(tl_context *ctx, const float *x, int64_t outer, int64_t length, int reverse, float *out)
{
    const Rows a = {x, out, length, reverse};
    const int64_t tiles = tl_ceil_div(length, TILE), units = outer * tiles;
    const int64_t warps = tiles <= CHUNK ? tiles * tl_imax(1, WARPS / tiles) : WARPS;
    const auto launch = [&](const double *before, double *totals) {
        const size_t bytes = (size_t)warps * TILE_BYTES;
        TL_TRY(tl_allow_shared(ctx, cumsum_rows, bytes));
        return tl_launch_dynamic(ctx, "cumsum", cumsum_rows, tl_grid(units, warps), (unsigned)(32 * warps), bytes, a,
                                 units, tiles, before, totals);
    };
    if (tiles <= CHUNK) return launch(nullptr, nullptr);
    tl_scratch<double> totals(ctx), before(ctx);
    TL_TRY(totals.allocate(units));
    TL_TRY(before.allocate(units));
    TL_TRY(launch(nullptr, totals));
    TL_TRY(run_columns<double>(ctx, totals, outer, tiles, 1, 0, before));
    return launch(before, nullptr);
}

} // namespace

int32_t tl_cuda_cumsum(tl_context *ctx, const float *x, const tl_dims *dims, int64_t axis, int64_t reverse, float *out)
{
    int64_t outer = 1, inner = 1;
    const int64_t length = dims->d[axis];
    for (int64_t k = 0; k < dims->rank; k++)
        if (k != axis) (k > axis ? inner : outer) *= dims->d[k];
    if (outer * length * inner == 0) return TORCHLEAN_OK;
    switch (tl_select_cumsum(length, inner)) {
    case TL_CUMSUM_ROWS: return run_rows(ctx, x, outer, length, (int)reverse, out);
    default: return run_columns<float>(ctx, x, outer, length, inner, (int)reverse, out);
    }
}
