/* Sums, maxima and minima of rows and columns on CUDA, in the order of formula/sum_tree.h.
 *
 * All are bound by memory: x is read once, 16 bytes at a time where rows start on 16 bytes, with at least 64 bytes in
 * flight per thread before the first addition. What shape of block reads a row or a column may depend on the device;
 * which values are added in which order does not.
 *
 *   rows up to 1024     a group of 1 to 32 threads owns a row (short_rows), one lane per element: no shared memory
 *   longer rows         a block owns a leaf of up to 16384 elements (leaves); rows of several leaves take a second,
 *                       much smaller pass over the leaves' results
 *   columns of few rows a thread owns several whole columns (short_columns), where there are many
 *   other columns       a thread owns one column, or four, of one chain of a chunk (columns); chunks take a second
 *                       pass, or are finished by the same block while everything is small */
#include <type_traits>

#include "cuda/device/sum_tree.cuh"
#include "cuda/device/vector.cuh"
#include "cuda/reduce/select.h"

#include "formula/count.h"

namespace {

/* Out of line: the division in float64 it may need would cost every caller registers. */
__device__ __noinline__ float divide_by_count(float s, int64_t n) { return tl_end_sum(s, n); }

__device__ __forceinline__ float finish(float s, int64_t count) { return count ? divide_by_count(s, count) : s; }

/* What a thread reads and joins at once: a float, or a float4 of neighbouring elements. */
template <class Op> struct one_element {
    typedef float type;
    static constexpr int WIDTH = 1;
    static __device__ __forceinline__ float identity() { return Op::identity(); }
    static __device__ __forceinline__ float load(const float *p) { return *p; }
    static __device__ __forceinline__ float join(float a, float b) { return Op::join(a, b); }
    static __device__ __forceinline__ void store(float *p, float v, int64_t count) { *p = finish(v, count); }
};

template <class Op> struct four_elements {
    typedef float4 type;
    static constexpr int WIDTH = 4;
    static __device__ __forceinline__ float4 identity() { return tl_identity4<Op>(); }
    static __device__ __forceinline__ float4 load(const float *p) { return tl_load4(p); }
    static __device__ __forceinline__ float4 join(float4 a, float4 b) { return tl_join<Op>(a, b); }
    static __device__ __forceinline__ void store(float *p, float4 v, int64_t count)
    {
        tl_store4(p, make_float4(finish(v.x, count), finish(v.y, count), finish(v.z, count), finish(v.w, count)));
    }
};

template <class Op, bool VECTOR> using unit = std::conditional_t<VECTOR, four_elements<Op>, one_element<Op>>;

/* ---- rows of up to 1024 elements --------------------------------------------------------------------------------- */

constexpr int SHORT_THREADS = 128;

/* Rows a group takes at once, so that 4 vectors or 8 scalars are in flight per thread even where a row is one load. */
template <bool VECTOR, int V> constexpr int ROWS_AT_ONCE = VECTOR ? (V < 4 ? 4 / V : 1) : (V < 8 ? 8 / V : 1);

/* G threads per row, each holding V elements or (VECTOR) V quadruples, element j of thread g being lane g + G·j:
 * together the row's lanes, the next power of two. Neighbouring groups own neighbouring rows, so a warp reads one
 * contiguous piece. */
template <class Op, bool VECTOR, int G, int V>
__global__ void __launch_bounds__(SHORT_THREADS)
    short_rows(const float *x, int64_t rows, int cols, int64_t count, float *out)
{
    tl_wait_for_earlier();
    constexpr int R = ROWS_AT_ONCE<VECTOR, V>, GROUPS = SHORT_THREADS / G;
    const int g = (int)threadIdx.x % G;
    const int64_t first = (int64_t)blockIdx.x * (GROUPS * R) + threadIdx.x / G;
    using C = unit<Op, VECTOR>;
    typename C::type v[R][V];
    TL_UNROLL_FOR (int r = 0; r < R; r++)
        TL_UNROLL_FOR (int j = 0; j < V; j++) {
            const int64_t row = first + r * GROUPS;
            const int c = C::WIDTH * (g + G * j);
            v[r][j] = row < rows && c < cols ? C::load(x + row * cols + c) : C::identity();
        }
    TL_UNROLL_FOR (int r = 0; r < R; r++) {
        TL_UNROLL_FOR (int j = 0; j < V; j++)
            v[r][j] = C::join(C::identity(), v[r][j]);
        const float s = tl_fold_group<Op, G>(tl_fold_array<Op, V>(v[r]));
        const int64_t row = first + r * GROUPS;
        if (g == 0 && row < rows) out[row] = finish(s, count);
    }
}

/* ---- leaves ------------------------------------------------------------------------------------------------------ */

/* A block of 256 threads owns one leaf: thread t lanes 4t..4t+3 (VECTOR) or t, t+256, t+512, t+768, of each of up to
 * STEPS runs of 1024 elements. All of them are requested before the first is added: 64 KiB per block at 16 steps, and
 * three blocks per multiprocessor, several times what the latency of device memory asks for. */
template <class Op, bool VECTOR, int STEPS>
__global__ void __launch_bounds__(TL_TREE_THREADS, STEPS > 4 ? 3 : 6)
    leaves(const float *x, uint32_t per_row, int64_t cols, int64_t count, float *out)
{
    using C = unit<Op, VECTOR>;
    constexpr int PIECES = 4 / C::WIDTH; /* of a thread in a run */
    __shared__ typename C::type shared[TL_TREE_THREADS];
    tl_wait_for_earlier();
    const int t = (int)threadIdx.x;
    const uint32_t row = blockIdx.x / per_row;
    const int64_t start = (int64_t)(blockIdx.x - row * per_row) * TL_SUM_LEAF;
    const int n = (int)min(cols - start, (int64_t)TL_SUM_LEAF);
    const float *leaf = x + row * cols + start;
    typename C::type v[STEPS][PIECES], lanes[PIECES];
    TL_UNROLL_FOR (int k = 0; k < STEPS; k++)
        TL_UNROLL_FOR (int j = 0; j < PIECES; j++) {
            const int i = k * TL_SUM_LANES + C::WIDTH * (j * TL_TREE_THREADS + t);
            v[k][j] = i + C::WIDTH <= n ? C::load(leaf + i) : C::identity();
        }
    TL_UNROLL_FOR (int j = 0; j < PIECES; j++) {
        lanes[j] = C::identity();
        TL_UNROLL_FOR (int k = 0; k < STEPS; k++)
            lanes[j] = C::join(lanes[j], v[k][j]);
    }
    if constexpr (VECTOR)
        if ((n & 3) && t == (n & (TL_SUM_LANES - 1)) / 4) { /* an incomplete quadruple is its thread's last */
            const float *rest = leaf + (n & ~3);
            lanes[0].x = Op::join(lanes[0].x, rest[0]);
            if ((n & 3) > 1) lanes[0].y = Op::join(lanes[0].y, rest[1]);
            if ((n & 3) > 2) lanes[0].z = Op::join(lanes[0].z, rest[2]);
        }
    const float result = tl_fold_block<Op>(tl_fold_array<Op, PIECES>(lanes), shared);
    if (t == 0) out[blockIdx.x] = finish(result, count);
}

/* ---- rows: the launches ------------------------------------------------------------------------------------------ */

constexpr const char *ROWS = "row reduction", *COLUMNS = "column reduction";

template <class Op, bool VECTOR, int G, int V>
int32_t launch_short(tl_context *ctx, const float *x, int64_t rows, int64_t cols, int64_t count, float *out)
{
    constexpr int per_block = SHORT_THREADS / G * ROWS_AT_ONCE<VECTOR, V>;
    return tl_launch_ahead(ctx, ROWS, short_rows<Op, VECTOR, G, V>, tl_grid(rows, per_block), SHORT_THREADS, 0, x, rows,
                           (int)cols, count, out);
}

template <class Op>
int32_t pick_short(tl_context *ctx, bool vector, const float *x, int64_t rows, int64_t cols, int64_t count, float *out)
{
#define SHORT(lanes, vector, g, v)                                      \
    if (cols <= (lanes))                                                \
    return launch_short<Op, vector, g, v>(ctx, x, rows, cols, count, out)
    if (vector) {
        SHORT(4, true, 1, 1);
        SHORT(16, true, 4, 1);
        SHORT(64, true, 16, 1);
        SHORT(128, true, 32, 1);
        SHORT(256, true, 32, 2);
        SHORT(512, true, 32, 4);
        SHORT(1024, true, 32, 8);
    }
    SHORT(4, false, 4, 1);
    SHORT(16, false, 16, 1);
    SHORT(32, false, 32, 1);
    SHORT(64, false, 32, 2);
    SHORT(128, false, 32, 4);
    SHORT(256, false, 32, 8);
    SHORT(512, false, 32, 16);
    return launch_short<Op, false, 32, 32>(ctx, x, rows, cols, count, out);
#undef SHORT
}

template <class Op>
int32_t pick_leaves(tl_context *ctx, bool vector, const float *x, int64_t rows, int64_t cols, int64_t count, float *out)
{
    const uint32_t per_row = (uint32_t)tl_ceil_div(cols, TL_SUM_LEAF);
    const unsigned blocks = (unsigned)(rows * per_row); /* fewer than 2^32 / 1024 */
    const bool few = cols <= 4 * TL_SUM_LANES;
    const auto kernel = vector ? few ? leaves<Op, true, 4> : leaves<Op, true, 16>
                        : few  ? leaves<Op, false, 4>
                               : leaves<Op, false, 16>;
    return tl_launch_ahead(ctx, ROWS, kernel, blocks, TL_TREE_THREADS, 0, x, per_row, cols, count, out);
}

template <class Op>
int32_t reduce_rows(tl_context *ctx, const float *x, int64_t rows, int64_t cols, int64_t count, float *out)
{
    /* One row may end anywhere; the leaf kernel adds an incomplete quadruple by itself. */
    const bool vector = tl_aligned4(x) && (cols % 4 == 0 || (rows == 1 && cols > TL_SUM_LANES));
    const int64_t per_row = tl_ceil_div(cols, TL_SUM_LEAF);
    if (per_row <= 1)
        return cols <= TL_SUM_LANES ? pick_short<Op>(ctx, vector, x, rows, cols, count, out)
                                    : pick_leaves<Op>(ctx, vector, x, rows, cols, count, out);
    tl_scratch<float> partial(ctx);
    TL_TRY(partial.allocate(rows * per_row));
    TL_TRY(pick_leaves<Op>(ctx, vector, x, rows, cols, 0, partial));
    return reduce_rows<Op>(ctx, partial, rows, per_row, count, out);
}

/* ---- columns ----------------------------------------------------------------------------------------------------- */

/* One chain: the rows 0, CHAINS, 2·CHAINS, ... of the `rows` that begin at p, in this order; eight are in flight. */
template <class C> __device__ __forceinline__ typename C::type sum_chain(const float *p, int64_t rows, int64_t cols)
{
    constexpr int FLIGHT = 8, STEPS = TL_COLUMN_CHUNK / TL_COLUMN_CHAINS;
    const int64_t step = TL_COLUMN_CHAINS * cols;
    typename C::type s = C::identity(), v[FLIGHT];
    const int n = (int)((rows + TL_COLUMN_CHAINS - 1) / TL_COLUMN_CHAINS); /* rows <= 0 gives 0 */
    if (n == STEPS) {
#pragma unroll 1
        for (int k = 0; k < STEPS; k += FLIGHT, p += FLIGHT * step) {
            TL_UNROLL_FOR (int i = 0; i < FLIGHT; i++)
                v[i] = C::load(p + i * step);
            TL_UNROLL_FOR (int i = 0; i < FLIGHT; i++)
                s = C::join(s, v[i]);
        }
        return s;
    }
#pragma unroll 1
    for (int k = 0; k < n; k += FLIGHT, p += FLIGHT * step) {
        TL_UNROLL_FOR (int i = 0; i < FLIGHT; i++)
            v[i] = k + i < n ? C::load(p + i * step) : C::identity();
        TL_UNROLL_FOR (int i = 0; i < FLIGHT; i++)
            s = C::join(s, v[i]);
    }
    return s;
}

struct column_shape {
    int64_t rows, cols;
    uint32_t units;    /* outer slices times chunks */
    tl_fastdiv chunks; /* of TL_COLUMN_CHUNK rows, per slice */
    tl_fastdiv tiles;  /* blocks side by side */
    int64_t count;
    tl_order order;
};

/* (s of thread y = 0 + that of 1) + (2 + 3), for thread y = 0; `chains` is the block's, s in the place of its thread. All threads
 * must call. */
template <class C> __device__ __forceinline__ typename C::type join_chains(typename C::type s, typename C::type *chains)
{
    chains += threadIdx.z * TL_COLUMN_CHAINS * blockDim.x + threadIdx.x;
    chains[threadIdx.y * blockDim.x] = s;
    __syncthreads();
    if (threadIdx.y > 0) return s;
    return C::join(C::join(s, chains[blockDim.x]), C::join(chains[2 * blockDim.x], chains[3 * blockDim.x]));
}

/* The sum of a chunk of a slice whose column of interest starts at p, for thread y = 0, of threads that are `inside`. */
template <class C>
__device__ __forceinline__ typename C::type sum_chunk(const float *p, uint32_t chunk, int64_t rows, int64_t cols,
                                                      bool inside, typename C::type *chains)
{
    const int64_t first = (int64_t)chunk * TL_COLUMN_CHUNK + threadIdx.y;
    const int64_t below = min(rows - first, (int64_t)TL_COLUMN_CHUNK - threadIdx.y);
    return join_chains<C>(inside ? sum_chain<C>(p + first * cols, below, cols) : C::identity(), chains);
}

/* A block of (TX, 4, TZ) threads owns TX·WIDTH columns of TZ chunks of one slice or several: thread (tx, c, z) chain c of its columns in
 * chunk z; neighbouring tx are neighbouring columns, so a row of the tile is one contiguous read, and blocks that run at the same
 * time lie side by side. The four chains meet in shared memory. WHOLE: a block goes down all chunks of a slice, TZ at a time, and then
 * sums their sums, which stay in shared memory: both levels of the tree in one launch. */
constexpr int WHOLE_TX = 8;

template <class C, bool WHOLE>
__global__ void __launch_bounds__(256, WHOLE ? 1 : 4) columns(const float *x, column_shape shape, float *out)
{
    __shared__ typename C::type chains[256], sums[WHOLE ? TL_COLUMN_BLOCK_CHUNKS * WHOLE_TX : 1];
    tl_wait_for_earlier(shape.order);
    uint32_t tile, chunk = threadIdx.z;
    const uint32_t unit = shape.tiles.divmod(blockIdx.x, &tile) * (WHOLE ? 1 : blockDim.z) + (WHOLE ? 0 : threadIdx.z);
    const uint32_t slice = WHOLE ? unit : shape.chunks.divmod(unit, &chunk), count = shape.chunks.divisor;
    const int64_t column = ((int64_t)tile * blockDim.x + threadIdx.x) * C::WIDTH;
    const bool inside = column < shape.cols && unit < shape.units;
    const float *const p = x + slice * shape.rows * shape.cols + column;
    typename C::type s;
    if constexpr (WHOLE) {
        for (uint32_t above = 0; above < count; above += blockDim.z, chunk += blockDim.z) {
            s = sum_chunk<C>(p, chunk, shape.rows, shape.cols, inside && chunk < count, chains);
            if (threadIdx.y == 0 && chunk < count) sums[chunk * blockDim.x + threadIdx.x] = s;
            __syncthreads();
        }
        s = C::identity();
        for (chunk = threadIdx.y; chunk < count; chunk += TL_COLUMN_CHAINS)
            s = C::join(s, sums[chunk * blockDim.x + threadIdx.x]);
        s = join_chains<C>(s, chains);
    } else {
        s = sum_chunk<C>(p, chunk, shape.rows, shape.cols, inside, chains);
    }
    if (inside && threadIdx.y == 0 && (!WHOLE || threadIdx.z == 0))
        C::store(out + (int64_t)unit * shape.cols + column, s, shape.count);
    tl_wait_at_end(shape.order);
}

/* A thread owns COLUMNS_AT_ONCE columns of up to ROWS rows, of all slices side by side, a block apart: it has at least eight loads under way
 * where the columns are that long, and no other threads to wait for. The chains are those of the kernels above. */
template <int ROWS> constexpr int COLUMNS_AT_ONCE = ROWS < 8 ? 8 / ROWS : 1;

template <class C, int ROWS>
__global__ void __launch_bounds__(TL_TREE_THREADS)
    short_columns(const float *x, uint32_t units, tl_fastdiv per_slice, column_shape shape, float *out)
{
    tl_wait_for_earlier(shape.order);
    constexpr int K = COLUMNS_AT_ONCE<ROWS>;
    const uint32_t first = blockIdx.x * (K * TL_TREE_THREADS) + threadIdx.x;
    typename C::type v[K][ROWS];
    TL_UNROLL_FOR (int k = 0; k < K; k++) {
        const uint32_t unit = first + k * TL_TREE_THREADS;
        uint32_t place;
        const uint32_t outer = per_slice.divmod(unit, &place);
        const float *const column = x + outer * shape.rows * shape.cols + (int64_t)place * C::WIDTH;
        TL_UNROLL_FOR (int r = 0; r < ROWS; r++)
            v[k][r] = unit < units && r < shape.rows ? C::load(column + r * shape.cols) : C::identity();
    }
    TL_UNROLL_FOR (int k = 0; k < K; k++) {
        const uint32_t unit = first + k * TL_TREE_THREADS;
        typename C::type s[TL_COLUMN_CHAINS];
        TL_UNROLL_FOR (int c = 0; c < TL_COLUMN_CHAINS; c++) {
            s[c] = C::identity();
            TL_UNROLL_FOR (int r = c; r < ROWS; r += TL_COLUMN_CHAINS)
                s[c] = C::join(s[c], v[k][r]);
        }
        if (unit < units)
            C::store(out + (int64_t)unit * C::WIDTH, C::join(C::join(s[0], s[1]), C::join(s[2], s[3])), shape.count);
    }
    tl_wait_at_end(shape.order);
}

unsigned power_of_two(int64_t n, unsigned most)
{
    unsigned p = 1;
    while (p < most && p < n)
        p *= 2;
    return p;
}

/* One pass: `whole`, a block sums all chunks of its columns; else `out` gets the chunks' sums (outer, chunks, cols). Up to 64 threads
 * side by side (1 KiB of a row), fewer where the blocks would not keep every multiprocessor busy. */
template <class C>
int32_t launch_columns(tl_context *ctx, const float *x, int64_t outer, column_shape shape, float *out, bool whole)
{
    const int64_t vectors = tl_ceil_div(shape.cols, C::WIDTH), busy = 4 * (int64_t)tl_cuda_sms(ctx);
    const auto is_idle = [&](unsigned tx) { return shape.units * tl_ceil_div(vectors, tx) < busy; };
    unsigned tx = power_of_two(vectors, whole ? WHOLE_TX : 64);
    while (tx > WHOLE_TX && is_idle(tx))
        tx /= 2;
    const unsigned tz = whole         ? power_of_two(shape.chunks.divisor, 64 / tx)
                        : is_idle(tx) ? 1
                                      : power_of_two(shape.units, 64 / tx);
    shape.tiles = tl_fastdiv((uint64_t)tl_ceil_div(vectors, tx));
    const unsigned blocks = (unsigned)(shape.tiles.divisor * (whole ? outer : tl_ceil_div(shape.units, tz)));
    const auto kernel = whole ? columns<C, true> : columns<C, false>;
    return tl_launch_ahead(ctx, COLUMNS, kernel, blocks, dim3(tx, 4, tz), 0, x, shape, out);
}

template <class C, int ROWS>
int32_t launch_short_columns(tl_context *ctx, const float *x, int64_t outer, const column_shape &shape, float *out)
{
    const int64_t per_slice = shape.cols / C::WIDTH, units = outer * per_slice;
    return tl_launch_ahead(ctx, COLUMNS, short_columns<C, ROWS>,
                           tl_grid(units, COLUMNS_AT_ONCE<ROWS> * TL_TREE_THREADS), TL_TREE_THREADS, 0, x,
                           (uint32_t)units, tl_fastdiv((uint64_t)per_slice), shape, out);
}

template <class C>
int32_t pick_short_columns(tl_context *ctx, const float *x, int64_t outer, const column_shape &shape, float *out)
{
    const auto launch = shape.rows <= 2   ? launch_short_columns<C, 2>
                        : shape.rows <= 4 ? launch_short_columns<C, 4>
                        : shape.rows <= 8 ? launch_short_columns<C, 8>
                                          : launch_short_columns<C, TL_COLUMN_THREAD_ROWS>;
    return launch(ctx, x, outer, shape, out);
}

template <class Op>
int32_t reduce_columns(tl_context *ctx, const float *x, int64_t outer, int64_t rows, int64_t cols, int64_t count,
                       float *out, tl_order order = TL_AFTER)
{
    const bool by_four = cols % 4 == 0 && tl_aligned4(x) && tl_aligned4(out);
    const auto how = tl_select_columns(outer, rows, cols, by_four ? 4 : 1, tl_cuda_sms(ctx));
    const int64_t chunks = rows > TL_COLUMN_CHUNK ? tl_ceil_div(rows, TL_COLUMN_CHUNK) : 1;
    const bool last = chunks == 1 || how == TL_COLUMNS_OF_BLOCK;
    tl_scratch<float> partial(ctx);
    if (!last) TL_TRY(partial.allocate(outer * chunks * cols));
    column_shape shape = {rows, cols, (uint32_t)(outer * chunks), tl_fastdiv((uint64_t)chunks), tl_fastdiv(1)};
    shape.count = last ? count : 0, shape.order = last ? order : TL_AFTER;
    if (how == TL_COLUMNS_OF_THREAD)
        return (by_four ? pick_short_columns<unit<Op, true>> : pick_short_columns<unit<Op, false>>)(ctx, x, outer,
                                                                                                    shape, out);
    const auto launch = by_four ? launch_columns<unit<Op, true>> : launch_columns<unit<Op, false>>;
    TL_TRY(launch(ctx, x, outer, shape, last ? out : (float *)partial, how == TL_COLUMNS_OF_BLOCK));
    return last ? TORCHLEAN_OK : reduce_columns<Op>(ctx, partial, outer, chunks, cols, count, out);
}

} // namespace

int32_t tl_cuda_row_sums(tl_context *ctx, const float *x, int64_t rows, int64_t cols, int64_t count, float *out)
{
    return reduce_rows<tl_sum_op>(ctx, x, rows, cols, count, out);
}

int32_t tl_cuda_column_sums(tl_context *ctx, const float *x, int64_t outer, int64_t rows, int64_t cols, int64_t count,
                            float *out, tl_order order)
{
    return reduce_columns<tl_sum_op>(ctx, x, outer, rows, cols, count, out, order);
}

int32_t tl_cuda_row_extremes(tl_context *ctx, const float *x, int64_t rows, int64_t cols, bool least, float *out)
{
    return (least ? reduce_rows<tl_min_op> : reduce_rows<tl_max_op>)(ctx, x, rows, cols, 0, out);
}

int32_t tl_cuda_column_extremes(tl_context *ctx, const float *x, int64_t outer, int64_t rows, int64_t cols, bool least,
                                float *out)
{
    return (least ? reduce_columns<tl_min_op> : reduce_columns<tl_max_op>)(ctx, x, outer, rows, cols, 0, out, TL_AFTER);
}
