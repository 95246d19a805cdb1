/* Cumulative sums on CUDA, in the order of formula/cumsum.h.
 *
 * Short slices, of rows or of few columns, lie one behind the other in memory: a block copies some of them to shared memory and back
 * as they lie, and a thread owns a chunk of one column of one of them, so that no lane is without work whatever their length.
 * Of more columns of at most a chunk each thread owns one.
 *
 * A tile is 32 chunks of 32 elements, and its total is one of the level two above. A thread owns a chunk. Where columns lie side by
 * side a block owns the tile of 32 columns, so that warps read lines, and threads keep their chunks in registers: an axis of at most
 * 1024 elements takes one launch, a longer one three and those of its totals. Else a warp owns it and turns it over in shared memory.
 * Up to 32 tiles of a row, whose totals are one chunk above, are a block's. Of a longer row a block has some tiles, and takes the
 * totals before them from the blocks that run beside it. So a row is read once, in one launch, before which another clears the totals.
 * Tiles are in device/cumsum_tile.cuh. */
#include "cuda/device/async_copy.cuh"
#include "cuda/device/cumsum_tile.cuh"
#include "cuda/device/instructions.cuh"
#include "cuda/device/vector.cuh"
#include "cuda/runtime/launch.cuh"
#include "formula/cumsum.h"
#include "formula/integer.h"
#include "formula/wide.h"
#include "generated/reduce.h"

namespace {

using namespace tl_cumsum;

constexpr int COLUMNS = 32, WARPS = 4;

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

/* Blocks of (COLUMNS or all columns if they are fewer, chunks of a tile). */
template <class T> __global__ void __launch_bounds__(COLUMNS *CHUNK) cumsum_columns(Cumsum<T> a)
{
    __shared__ double total[CHUNK][COLUMNS];
    const int64_t unit = blockIdx.x, tile = unit / a.blocks % a.tiles, slice = unit / a.blocks / a.tiles;
    const int64_t column = unit % a.blocks * blockDim.x + threadIdx.x;
    const int64_t first = tile * TILE + threadIdx.y * CHUNK, result = (slice * a.tiles + tile) * a.inner + column;
    const bool inside = column < a.inner;
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

/* ---- short columns ----------------------------------------------------------------------------------------------------- */

constexpr int COLUMN_THREADS = 128;

/* Columns of at most a chunk, `units` of them in slices of `inner`. */
struct Columns {
    const float *x;
    float *out;
    uint32_t units;
    int length, reverse;
    tl_fastdiv inner;
};

/* A thread owns a column of at most N elements, which it loads all before it adds the first. Nothing stands before its one chunk, so
 * no thread waits for another. */
template <int N> __global__ void __launch_bounds__(COLUMN_THREADS) cumsum_short_columns(Columns a)
{
    const uint32_t unit = blockIdx.x * COLUMN_THREADS + threadIdx.x;
    if (unit >= a.units) return;
    uint32_t column;
    const int64_t slice = a.inner.divmod(unit, &column), inner = a.inner.divisor;
    const int64_t step = a.reverse ? -inner : inner;
    const int64_t at = (slice * a.length + (a.reverse ? a.length - 1 : 0)) * inner + column;
    float v[N];
    load_chunk(v, a.x + at, step, a.length);
    double sum = 0.0;
    float *to = a.out + at;
    TL_UNROLL_FOR (int k = 0; k < N; k++, to += step)
        if (k < a.length) sum = add_kept(sum, (double)v[k], to);
}

/* ---- short slices ------------------------------------------------------------------------------------------------------ */

/* Threads of a block, and elements of one. */
constexpr int SLICE_THREADS = 128, SLICE_FLOATS = SLICE_THREADS * CHUNK;

/* Slices of `length` x `inner` elements, of which a block has `together`. Where columns have several chunks, each thread has one. */
struct Slices {
    const float *x;
    float *out;
    int64_t outer;
    int length, inner, chunks, together, pad, reverse;
    tl_fastdiv columns, units; /* of a chunk: inner; of a slice: chunks x inner */

    /* Where the block's element i lies in shared memory. Words left free after each 32 keep the lanes of a warp, which are a chunk
     * or a slice apart, from the same bank. */
    __device__ __forceinline__ int place(int i) const { return i + (int)((uint32_t)i / 32) * pad; }
};

/* Three free words where one would bring slices a multiple of the 32 banks apart. */
int pad_of(int64_t slice) { return (slice + slice / 32 + 1) % 32 < 3 ? 3 : 1; }

/* N elements of a chunk at most. A thread owns a chunk of one column: neighbours own neighbouring columns, then the next chunk of
 * them, then the next slice. */
template <int N> __global__ void __launch_bounds__(SLICE_THREADS, 7) cumsum_slices(Slices a)
{
    __shared__ double totals[SLICE_THREADS];
    const int t = (int)threadIdx.x, size = a.length * a.inner;
    const int64_t first = (int64_t)blockIdx.x * a.together;
    const int slices = (int)min(a.outer - first, (int64_t)a.together), count = slices * size;
    const int units = slices * (int)a.units.divisor;
    const float *const x = a.x + first * size;
    float *const out = a.out + first * size, *const held = tl_cumsum_tiles;
#pragma unroll 8
    for (int i = t; i < count; i += SLICE_THREADS)
        tl_copy_async<4>(held + a.place(i), x + i, true);
    tl_copy_commit();
    tl_copy_wait<0>();
    __syncthreads();
#pragma unroll 1
    for (int u = t; u - t < units; u += SLICE_THREADS) { /* as often as the other threads */
        uint32_t unit, column;
        const int slice = (int)a.units.divmod((uint32_t)u, &unit), chunk = (int)a.columns.divmod(unit, &column);
        const int begin = chunk * CHUNK;
        int n = u < units ? min(a.length - begin, N) : 0;
        const int step = a.reverse ? -a.inner : a.inner;
        const int at = n > 0 ? slice * size + (a.reverse ? a.length - 1 - begin : begin) * a.inner + (int)column : 0;
        float v[N];
        TL_UNROLL_FOR (int k = 0, i = at; k < N; k++) {
            const float x = held[a.place(i)];
            v[k] = k < n ? x : 0.0f;
            i += k + 1 < n ? step : 0;
        }
        double sum = 0.0;
        if (N == CHUNK && a.chunks > 1) {
            TL_UNROLL_FOR (int k = 0; k < N; k++)
                sum += (double)v[k];
            totals[u] = sum;
            __syncthreads();
            sum = 0.0;
#pragma unroll 4
            for (int before = u - (n > 0 ? chunk * a.inner : 0); before < u; before += a.inner)
                sum += totals[before];
            /* lest the compiler keep them as doubles, in twice the registers */
            TL_UNROLL_FOR (int k = 0; k < N; k++)
                tl_forget_origin(v[k]);
        }
        if (n < 1) continue;
        tl_forget_origin(n); /* lest it keep all places, which take as many registers again */
        /* zeros behind the chunk change no sum: its last one is stored again */
        TL_UNROLL_FOR (int k = 0, i = at; k < N; k++) {
            sum = add_kept(sum, (double)v[k], &v[k]);
            held[a.place(i)] = v[k];
            i += k + 1 < n ? step : 0;
        }
    }
    __syncthreads();
#pragma unroll 8
    for (int i = t; i < count; i += SLICE_THREADS)
        out[i] = held[a.place(i)];
}

/* ---- rows of up to 32 tiles -------------------------------------------------------------------------------------------- */

/* A warp owns a tile, a lane a chunk. All tiles of a row are in one block, row after row. */
template <bool VECTOR> __global__ void __launch_bounds__(1024) cumsum_rows(Rows a, int64_t units, int tiles)
{
    __shared__ double chunks[32][CHUNK], totals[32];
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const int64_t unit = (int64_t)blockIdx.x * (blockDim.x / 32) + warp;
    const int tile = (int)(unit % tiles);
    const int64_t slice = unit / tiles * a.length, first = (int64_t)tile * TILE;
    const int n = unit < units ? (int)min(a.length - first, (int64_t)TILE) : 0;
    float (*const x)[PITCH] = own_tile();
    load_tile<VECTOR>(a, slice, first, n, x);
    const bool finite = total_chunk(x, chunks[warp]);
    double sum = 0.0;
    if (tiles > 1) {
        const double total = total_tile(chunks[warp]);
        if (lane == 0) totals[warp] = total;
        __syncthreads();
        for (int t = warp - tile; t < warp; t++)
            sum += totals[t];
    }
    sum_chunk(sum, chunks[warp], finite, x);
    store_tile<VECTOR>(a, slice, first, n, x);
}

/* ---- longer rows ------------------------------------------------------------------------------------------------------- */

/* A group of GROUP tiles is a block's; the levels of totals are those of tiles, of 32 tiles, of 32 of these, and so on. */
constexpr int GROUP = 8, LEVELS = 5; /* 2^32 elements have 2^22 tiles */
static_assert(CHUNK % GROUP == 0, "a group's tiles are of one chunk of totals");

typedef unsigned long long total_bits;
constexpr total_bits ABSENT = ~0ull; /* of a total that is not known yet: a NaN that no sum of float32 gives */

/* `totals` are those of level l of row r from offset[l] + r * count[l] on, and all ABSENT at first; `turns` is UINT32_MAX at first. */
struct LongRows {
    Rows rows;
    total_bits *totals;
    uint32_t *turns;
    int64_t offset[LEVELS];
    uint32_t count[LEVELS];
    int levels;
    tl_fastdiv groups; /* of a row */
};

/* The totals and the turns, `words` of them, to what they are at first. So few blocks that those of the next launch come meanwhile, which
 * they do not beside a memset. */
__global__ void __launch_bounds__(32 * GROUP) clear_totals(total_bits *totals, int64_t words)
{
    tl_wait_for_earlier();
    const int64_t step = (int64_t)gridDim.x * blockDim.x;
#pragma unroll 4
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < words; i += step)
        totals[i] = ABSENT;
}

/* A total is its own sign that it is there: written and read at once, it needs no order among other accesses. */
__device__ __forceinline__ void publish(total_bits *at, double total)
{
    const total_bits bits = tl_bits64(total);
    *(volatile total_bits *)at = bits == ABSENT ? tl_bits64((double)TL_NAN) : bits;
}

/* What stands before the tile `tile` of a row, the first of a group, whose totals are `own`: for all lanes of a warp, which takes
 * the totals before from `a` as soon as they are there, and gives it those of the levels above that end with the group. It
 * waits for blocks of earlier turns alone, which run or have run, and these give away their tiles' totals before they wait. */
__device__ __forceinline__ double stand_before(const LongRows &a, uint32_t row, uint32_t tile, const double *own,
                                               double (*seen)[CHUNK])
{
    const uint32_t lane = threadIdx.x % 32;
    const auto at = [&](int level, uint32_t index) {
        return a.totals + (a.offset[level] + (int64_t)row * a.count[level] + index);
    };
    total_bits bits[LEVELS]; /* of the chunk that holds the group, at each level: asked for together */
    TL_UNROLL_FOR (int level = 0; level < LEVELS; level++) {
        const uint32_t index = tile >> 5 * level;
        bits[level] = 0;
        if (level < a.levels && lane < index % CHUNK)
            bits[level] = *(const volatile total_bits *)at(level, index / CHUNK * CHUNK + lane);
    }
    bool ends = true; /* the chunk with the group */
    double total = 0.0;
    TL_UNROLL_FOR (int level = 0; level < LEVELS; level++) {
        if (level >= a.levels) continue;
        const uint32_t index = tile >> 5 * level, place = index % CHUNK;
        while (lane < place && bits[level] == ABSENT)
            bits[level] = *(const volatile total_bits *)at(level, index / CHUNK * CHUNK + lane);
        double value = tl_from_bits64(bits[level]);
        if (level == 0 && lane >= place && lane < place + GROUP) value = own[lane - place];
        if (level > 0 && lane == place) value = total;
        seen[level][lane] = value;
        __syncwarp();
        ends = ends && place == (uint32_t)(level == 0 ? CHUNK - GROUP : CHUNK - 1);
        if (!ends || level + 1 >= a.levels) continue;
        total = 0.0;
#pragma unroll 16
        for (int j = 0; j < CHUNK; j++)
            total += seen[level][j];
        if (lane == 0) publish(at(level + 1, index / CHUNK), total);
    }
    double sum = 0.0;
    for (int level = a.levels - 1; level >= 0; level--) {
        const int place = (int)(tile >> 5 * level) % CHUNK;
#pragma unroll 8
        for (int j = 0; j < place; j++)
            sum += seen[level][j];
    }
    return sum;
}

/* A block owns a group, a warp a tile of it, a lane a chunk. Blocks take turns as they begin to run, so that those of earlier
 * groups do not wait for a place of this one's. While a block waits, others load: four of them have 128 KiB on their way. */
template <bool VECTOR> __global__ void __launch_bounds__(32 * GROUP, 4) cumsum_long_rows(LongRows a)
{
    __shared__ double chunks[GROUP][CHUNK], tiles[GROUP], seen[LEVELS][CHUNK], before;
    __shared__ uint32_t turn;
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    tl_wait_for_earlier();
    if (threadIdx.x == 0) turn = atomicAdd(a.turns, 1u) + 1;
    __syncthreads();
    uint32_t group;
    const uint32_t row = a.groups.divmod(turn, &group), tile = group * GROUP + warp;
    const int64_t slice = row * a.rows.length, first = (int64_t)tile * TILE;
    const int n = tile < a.count[0] ? (int)min(a.rows.length - first, (int64_t)TILE) : 0;
    float (*const x)[PITCH] = own_tile();
    load_tile<VECTOR>(a.rows, slice, first, n, x);
    const bool finite = total_chunk(x, chunks[warp]);
    const double total = total_tile(chunks[warp]);
    if (lane == 0) {
        tiles[warp] = total;
        if (n > 0) publish(a.totals + (a.offset[0] + (int64_t)row * a.count[0] + tile), total);
    }
    __syncthreads();
    if (warp == 0) {
        const double sum = stand_before(a, row, tile, tiles, seen);
        if (lane == 0) before = sum;
    }
    __syncthreads();
    double sum = before;
    for (int w = 0; w < warp; w++)
        sum += tiles[w];
    sum_chunk(sum, chunks[warp], finite, x);
    store_tile<VECTOR>(a.rows, slice, first, n, x);
}

/* ---- the launches ---------------------------------------------------------------------------------------------------- */

/* Whether a block holds slices that would leave lanes of a tile without work: those of fewer columns than two warps have, and rows of
 * fewer elements than half a tile or, if they begin anywhere, than a whole one. */
bool are_short(int64_t length, int64_t inner, bool vector)
{
    const int64_t chunks = tl_ceil_div(length, CHUNK);
    if (inner == 1 && vector) return length <= TILE / 2;
    return inner < 2 * COLUMNS && length <= TILE && chunks * inner <= SLICE_THREADS;
}

/* Of few slices a block has those of one warp, or so many more that each multiprocessor still has four blocks; of many as many as
 * its shared memory and, where columns have several chunks, its threads take. */
int32_t launch_slices(tl_context *ctx, const float *x, int64_t outer, int64_t length, int64_t inner, int reverse,
                      float *out)
{
    const int64_t chunks = tl_ceil_div(length, CHUNK), size = length * inner, units = chunks * inner;
    const int64_t most = chunks > 1 ? SLICE_THREADS / units : SLICE_FLOATS / size;
    const int64_t even = tl_ceil_div(outer, 4 * (int64_t)tl_cuda_sms(ctx));
    const int64_t together = tl_imin(most, tl_imax(even, tl_ceil_div(32, units)));
    const Slices a = {x,
                      out,
                      outer,
                      (int)length,
                      (int)inner,
                      (int)chunks,
                      (int)together,
                      pad_of(size),
                      reverse,
                      tl_fastdiv((uint64_t)inner),
                      tl_fastdiv((uint64_t)units)};
    const int64_t floats = together * size;
    return tl_launch_dynamic(ctx, "cumsum", length <= 8 ? cumsum_slices<8> : cumsum_slices<CHUNK>,
                             tl_grid(outer, together), SLICE_THREADS,
                             sizeof(float) * (size_t)(floats + floats / 32 * a.pad), a);
}

/* All tiles of each row, of at most 32, and several rows where they have few. */
int32_t launch_rows(tl_context *ctx, const Rows &a, int64_t units, int64_t tiles, bool vector)
{
    const int64_t warps = tiles * tl_imax(1, WARPS / tiles);
    const size_t bytes = (size_t)warps * TILE_BYTES;
    const auto kernel = vector ? cumsum_rows<true> : cumsum_rows<false>;
    if (bytes > 32 * 1024) TL_TRY(tl_allow_shared(ctx, kernel, bytes));
    return tl_launch_dynamic(ctx, "cumsum", kernel, tl_grid(units, warps), (unsigned)(32 * warps), bytes, a, units,
                             (int)tiles);
}

int32_t launch_long_rows(tl_context *ctx, const Rows &rows, int64_t outer, int64_t tiles, bool vector)
{
    LongRows a = {rows, nullptr, nullptr, {}, {}, 0, tl_fastdiv((uint64_t)tl_ceil_div(tiles, GROUP))};
    int64_t all = 0;
    for (int64_t count = tiles; count > 1; count = tl_ceil_div(count, CHUNK)) {
        a.offset[a.levels] = all, a.count[a.levels++] = (uint32_t)count;
        all += outer * count;
    }
    tl_scratch<total_bits> totals(ctx);
    TL_TRY(totals.allocate(all + 1));
    a.totals = totals, a.turns = reinterpret_cast<uint32_t *>(a.totals + all);
    TL_TRY(tl_launch_ahead(ctx, "cumsum", clear_totals, tl_grid(all + 1, 32 * GROUP, tl_imax(1, tl_cuda_sms(ctx) / 4)),
                           32 * GROUP, 0, a.totals, all + 1));
    const auto kernel = vector ? cumsum_long_rows<true> : cumsum_long_rows<false>;
    return tl_launch_ahead(ctx, "cumsum", kernel, (unsigned)(outer * a.groups.divisor), 32 * GROUP, GROUP * TILE_BYTES,
                           a);
}

int32_t run_rows(tl_context *ctx, const float *x, int64_t outer, int64_t length, int reverse, float *out)
{
    const Rows a = {x, out, length, reverse};
    const int64_t tiles = tl_ceil_div(length, TILE);
    const bool vector = length % 4 == 0 || (outer == 1 && !reverse);
    if (are_short(length, 1, vector)) return launch_slices(ctx, x, outer, length, 1, reverse, out);
    /* many rows: at least three blocks per multiprocessor */
    if (tiles <= (outer <= tl_cuda_sms(ctx) ? 32 : 16)) return launch_rows(ctx, a, outer * tiles, tiles, vector);
    return launch_long_rows(ctx, a, outer, tiles, vector);
}

int32_t launch_short_columns(tl_context *ctx, const float *x, int64_t units, int64_t length, int64_t inner, int reverse,
                             float *out)
{
    const Columns a = {x, out, (uint32_t)units, (int)length, reverse, tl_fastdiv((uint64_t)inner)};
    const auto kernel = length <= 4    ? cumsum_short_columns<4>
                        : length <= 8  ? cumsum_short_columns<8>
                        : length <= 16 ? cumsum_short_columns<16>
                                       : cumsum_short_columns<CHUNK>;
    return tl_launch(ctx, "cumsum", kernel, tl_grid(units, COLUMN_THREADS), COLUMN_THREADS, a);
}

template <class T> int32_t launch(tl_context *ctx, const Cumsum<T> &a)
{
    const dim3 block((unsigned)tl_imin(COLUMNS, a.inner), (unsigned)tl_imin(CHUNK, tl_ceil_div(a.length, CHUNK)));
    return tl_launch(ctx, "cumsum", cumsum_columns<T>, (unsigned)(a.units * a.blocks), block, a);
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

} // namespace

int32_t tl_cuda_cumsum(tl_context *ctx, const float *x, const tl_dims *dims, int64_t axis, int64_t reverse, float *out)
{
    int64_t outer = 1, inner = 1;
    const int64_t length = dims->d[axis];
    for (int64_t k = 0; k < dims->rank; k++)
        if (k != axis) (k > axis ? inner : outer) *= dims->d[k];
    if (outer * length * inner == 0) return TORCHLEAN_OK;
    if (inner == 1) return run_rows(ctx, x, outer, length, (int)reverse, out);
    if (are_short(length, inner, false)) return launch_slices(ctx, x, outer, length, inner, (int)reverse, out);
    if (length <= CHUNK && outer * inner <= UINT32_MAX)
        return launch_short_columns(ctx, x, outer * inner, length, inner, (int)reverse, out);
    return run_columns<float>(ctx, x, outer, length, inner, (int)reverse, out);
}
