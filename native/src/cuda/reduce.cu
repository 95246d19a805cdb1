/* Reductions on CUDA: sums, means and maxima along one axis or over everything, and their gradients.
 *
 * The reductions themselves are in device/sum_tree.cu. A gradient writes as much as its reduction read, or twice that: sums'
 * gradients are broadcasts (the shape family), a mean's is a broadcast of quotients, and a maximum's counts the winners
 * of each reduction, which is exact in any order, then writes their shares. Counting reads x once and writing reads it
 * again, from cache where one block does both. */
#include "cuda/device/sum_tree.cuh"
#include "cuda/device/vector.cuh"
#include "generated/reduce.h"

#include "formula/count.h"

namespace {

constexpr int THREADS = 256;

/* Any axis: (outer, length, inner). */
struct axis_view {
    int64_t outer, length, inner;
};

axis_view view_axis(const tl_dims *dims, int64_t axis)
{
    axis_view v = {1, dims->d[axis], 1};
    for (int64_t i = 0; i < axis; i++)
        v.outer *= dims->d[i];
    for (int64_t i = axis + 1; i < dims->rank; i++)
        v.inner *= dims->d[i];
    return v;
}

int32_t sum_axis(tl_context *ctx, const float *x, axis_view v, int64_t count, float *out)
{
    return v.inner == 1 ? tl_cuda_row_sums(ctx, x, v.outer, v.length, count, out)
                        : tl_cuda_column_sums(ctx, x, v.outer, v.length, v.inner, count, out);
}

/* ---- means ----------------------------------------------------------------------------------------------------- */

/* inner = 1: out[i] = g[i / length] / length. A thread owns four consecutive elements, mostly of one row, so it divides
 * once or twice. */
__global__ void __launch_bounds__(THREADS)
    mean_bwd_rows(const float *__restrict__ g, tl_fastdiv length, int64_t n, float *__restrict__ gx)
{
    const int64_t i = 4 * ((int64_t)blockIdx.x * THREADS + threadIdx.x);
    if (i >= n) return;
    uint32_t at;
    uint32_t row = length.divmod((uint32_t)i, &at);
    float q[4];
    q[0] = tl_per_count(g[row], length.divisor);
    TL_UNROLL_FOR (int k = 1; k < 4; k++) {
        q[k] = q[k - 1];
        if (++at == length.divisor && i + k < n) {
            at = 0;
            q[k] = tl_per_count(g[++row], length.divisor);
        }
    }
    if (i + 4 <= n)
        tl_store4(gx + i, q);
    else
        for (int k = 0; i + k < n; k++)
            gx[i + k] = q[k];
}

/* inner > 1: a thread owns one column, or four, of a slice for up to MEAN_ROWS steps along the axis, and divides once
 * for all of them. Blocks are (tile of columns, slice times steps). */
constexpr int MEAN_ROWS = 16;

template <int W>
__global__ void __launch_bounds__(THREADS)
    mean_bwd_columns(const float *__restrict__ g, tl_fastdiv vectors, tl_fastdiv parts, int64_t length, int64_t inner,
                     int64_t n, float *__restrict__ gx)
{
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; /* (slice, part, vector) */
    if (i >= n) return;
    uint32_t vector, part;
    const uint32_t slice = parts.divmod(vectors.divmod((uint32_t)i, &vector), &part);
    const int64_t column = (int64_t)vector * W, first = (int64_t)part * MEAN_ROWS;
    float q[W];
    TL_UNROLL_FOR (int k = 0; k < W; k++)
        q[k] = tl_per_count(g[slice * inner + column + k], length);
    float *out = gx + (slice * length + first) * inner + column;
    const int rows = (int)min(length - first, (int64_t)MEAN_ROWS);
    for (int r = 0; r < rows; r++, out += inner) {
        if constexpr (W == 4)
            tl_store4(out, q);
        else
            *out = q[0];
    }
}

/* ---- gradients of maxima ----------------------------------------------------------------------------------------- */

/* What every winner receives; NaN where the maximum is NaN, and then everyone receives it. */
__device__ __forceinline__ float winners_share(float max, float g, int64_t winners)
{
    return max != max ? TL_NAN : tl_per_count(g, winners);
}

__device__ __forceinline__ float share_or_0(float x, float max, float share)
{
    return x == max || max != max ? share : 0.0f;
}

__device__ __forceinline__ int wins4(float4 v, float m) { return (v.x == m) + (v.y == m) + (v.z == m) + (v.w == m); }

/* Elements `from`, from + step, ... of n (quadruples if VECTOR) that equal max. */
template <bool VECTOR> __device__ __forceinline__ int count_equal(const float *x, int from, int step, int n, float max)
{
    int equal = 0;
    if (VECTOR) {
#pragma unroll 4
        for (int i = from; i < n / 4; i += step)
            equal += wins4(tl_load4(x + 4 * i), max);
    } else {
#pragma unroll 4
        for (int i = from; i < n; i += step)
            equal += x[i] == max;
    }
    return equal;
}

template <bool VECTOR>
__device__ __forceinline__ void write_shares(const float *x, int from, int step, int n, float max, float share,
                                             float *gx)
{
    if (VECTOR) {
#pragma unroll 4
        for (int i = from; i < n / 4; i += step) {
            const float4 v = tl_load4(x + 4 * i);
            tl_store4(gx + 4 * i, make_float4(share_or_0(v.x, max, share), share_or_0(v.y, max, share),
                                              share_or_0(v.z, max, share), share_or_0(v.w, max, share)));
        }
    } else {
#pragma unroll 4
        for (int i = from; i < n; i += step)
            gx[i] = share_or_0(x[i], max, share);
    }
}

__device__ __forceinline__ uint32_t sum_block(uint32_t value)
{
    __shared__ uint32_t sums[THREADS / 32];
    value = __reduce_add_sync(0xffffffffu, value);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = value;
    __syncthreads();
    uint32_t total = 0;
    TL_UNROLL_FOR (int w = 0; w < THREADS / 32; w++)
        total += sums[w];
    return total;
}

/* Axis 1, up to 1024 columns: G threads own a row. The second reading comes from the L1 cache. */
template <bool VECTOR, int G>
__global__ void __launch_bounds__(THREADS)
    max_bwd_short(const float *__restrict__ x, const float *__restrict__ max, const float *__restrict__ g, int64_t rows,
                  int cols, float *__restrict__ gx)
{
    const int64_t row = (int64_t)blockIdx.x * (THREADS / G) + threadIdx.x / G;
    const int lane = (int)threadIdx.x % G;
    const float m = row < rows ? max[row] : 0.0f;
    int winners = row < rows ? count_equal<VECTOR>(x + row * cols, lane, G, cols, m) : 0;
    TL_UNROLL_FOR (int s = G / 2; s > 0; s /= 2)
        winners += __shfl_xor_sync(0xffffffffu, winners, s);
    if (row < rows)
        write_shares<VECTOR>(x + row * cols, lane, G, cols, m, winners_share(m, g[row], winners), gx + row * cols);
}

/* Axis 1, up to TL_SUM_LEAF columns: a block owns a row. */
template <bool VECTOR>
__global__ void __launch_bounds__(THREADS) max_bwd_row(const float *__restrict__ x, const float *__restrict__ max,
                                                       const float *__restrict__ g, int cols, float *__restrict__ gx)
{
    const int64_t row = blockIdx.x;
    const float m = max[row];
    const uint32_t winners = sum_block(count_equal<VECTOR>(x + row * cols, (int)threadIdx.x, THREADS, cols, m));
    const float share = winners_share(m, g[row], winners);
    write_shares<VECTOR>(x + row * cols, (int)threadIdx.x, THREADS, cols, m, share, gx + row * cols);
}

/* Axis 1, longer rows, in three launches: a block counts a segment of TL_SUM_LEAF elements, a block adds up a row's
 * segments, a block writes a segment. */
template <bool VECTOR, bool WRITE>
__global__ void __launch_bounds__(THREADS)
    max_bwd_segments(const float *__restrict__ x, const float *__restrict__ max, const float *__restrict__ shares,
                     uint32_t per_row, int64_t cols, int *__restrict__ counts, float *__restrict__ gx)
{
    const uint32_t row = blockIdx.x / per_row;
    const int64_t start = (int64_t)(blockIdx.x - row * per_row) * TL_SUM_LEAF, at = row * cols + start;
    const int n = (int)min(cols - start, (int64_t)TL_SUM_LEAF);
    if (WRITE) {
        write_shares<VECTOR>(x + at, (int)threadIdx.x, THREADS, n, max[row], shares[row], gx + at);
    } else {
        const uint32_t equal = sum_block(count_equal<VECTOR>(x + at, (int)threadIdx.x, THREADS, n, max[row]));
        if (threadIdx.x == 0) counts[blockIdx.x] = (int)equal;
    }
}

__global__ void __launch_bounds__(THREADS)
    row_shares(const int *__restrict__ counts, uint32_t per_row, const float *__restrict__ max,
               const float *__restrict__ g, float *__restrict__ shares)
{
    const int64_t row = blockIdx.x;
    uint32_t winners = 0; /* a row has fewer than 2^32 elements */
    for (uint32_t i = threadIdx.x; i < per_row; i += THREADS)
        winners += (uint32_t)counts[row * per_row + i];
    winners = sum_block(winners);
    if (threadIdx.x == 0) shares[row] = winners_share(max[row], g[row], winners);
}

/* W neighbouring columns of one row. */
template <int W>
__device__ __forceinline__ void write_shares_across(const float *x, const float (&m)[W], const float (&share)[W],
                                                    float *gx)
{
    if constexpr (W == 4) {
        const float4 v = tl_load4(x);
        tl_store4(gx, make_float4(share_or_0(v.x, m[0], share[0]), share_or_0(v.y, m[1], share[1]),
                                  share_or_0(v.z, m[2], share[2]), share_or_0(v.w, m[3], share[3])));
    } else {
        *gx = share_or_0(*x, m[0], share[0]);
    }
}

/* Axis 0. A block of (32, 8) threads owns 32·W columns of a segment of rows; a thread owns W columns of every eighth
 * row. With one segment the block knows all its winners and writes at once; otherwise it leaves the counts (segments,
 * cols) to column_shares and write_columns. */
constexpr int TX = 32, TY = THREADS / TX;

template <int W, bool WHOLE>
__global__ void __launch_bounds__(THREADS)
    max_bwd_columns(const float *__restrict__ x, const float *__restrict__ max, const float *__restrict__ g,
                    int64_t rows, int64_t cols, tl_fastdiv tiles, int64_t segment, int *__restrict__ counts,
                    float *__restrict__ gx)
{
    __shared__ int equal[TY][TX * W];
    uint32_t tile;
    const int64_t part = tiles.divmod(blockIdx.x, &tile), begin = part * segment, end = min(begin + segment, rows);
    const int64_t column = ((int64_t)tile * TX + threadIdx.x) * W;
    const bool inside = column < cols;
    float m[W];
    int n[W];
    TL_UNROLL_FOR (int k = 0; k < W; k++) {
        m[k] = inside ? max[column + k] : 0.0f;
        n[k] = 0;
    }
    if (inside) {
#pragma unroll 8
        for (int64_t r = begin + threadIdx.y; r < end; r += TY) {
            if constexpr (W == 4) {
                const float4 v = tl_load4(x + r * cols + column);
                n[0] += v.x == m[0], n[1] += v.y == m[1], n[2] += v.z == m[2], n[3] += v.w == m[3];
            } else {
                n[0] += x[r * cols + column] == m[0];
            }
        }
    }
    TL_UNROLL_FOR (int k = 0; k < W; k++)
        equal[threadIdx.y][threadIdx.x * W + k] = n[k];
    __syncthreads();
    TL_UNROLL_FOR (int k = 0; k < W; k++) {
        n[k] = 0;
        TL_UNROLL_FOR (int y = 0; y < TY; y++)
            n[k] += equal[y][threadIdx.x * W + k];
    }
    if (!inside) return;
    if constexpr (!WHOLE) {
        if (threadIdx.y == 0) {
            TL_UNROLL_FOR (int k = 0; k < W; k++)
                counts[part * cols + column + k] = n[k];
        }
    } else {
        float share[W];
        TL_UNROLL_FOR (int k = 0; k < W; k++)
            share[k] = winners_share(m[k], g[column + k], (uint32_t)n[k]);
#pragma unroll 4
        for (int64_t r = threadIdx.y; r < rows; r += TY)
            write_shares_across<W>(x + r * cols + column, m, share, gx + r * cols + column);
    }
}

/* A thread owns a column. */
__global__ void __launch_bounds__(THREADS)
    column_shares(const int *__restrict__ counts, int64_t segments, const float *__restrict__ max,
                  const float *__restrict__ g, int64_t cols, float *__restrict__ shares)
{
    const int64_t c = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (c >= cols) return;
    uint32_t winners = 0;
#pragma unroll 8
    for (int64_t s = 0; s < segments; s++)
        winners += (uint32_t)counts[s * cols + c];
    shares[c] = winners_share(max[c], g[c], winners);
}

/* A thread owns W columns of up to WRITE_ROWS rows. */
constexpr int WRITE_ROWS = 8;

template <int W>
__global__ void __launch_bounds__(THREADS)
    write_columns(const float *__restrict__ x, const float *__restrict__ max, const float *__restrict__ shares,
                  int64_t rows, int64_t cols, tl_fastdiv vectors, int64_t n, float *__restrict__ gx)
{
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= n) return;
    uint32_t vector;
    const int64_t first = (int64_t)vectors.divmod((uint32_t)i, &vector) * WRITE_ROWS, column = (int64_t)vector * W;
    float m[W], share[W];
    TL_UNROLL_FOR (int k = 0; k < W; k++)
        m[k] = max[column + k], share[k] = shares[column + k];
    TL_UNROLL_FOR (int r = 0; r < WRITE_ROWS; r++) {
        if (first + r >= rows) return;
        const int64_t at = (first + r) * cols + column;
        write_shares_across<W>(x + at, m, share, gx + at);
    }
}

template <bool VECTOR>
int32_t max_rows_bwd(tl_context *ctx, const float *x, const float *max, const float *g, int64_t rows, int64_t cols,
                     float *gx)
{
    const char *const name = "reduce_max_axis1_bwd";
    const int64_t items = VECTOR ? cols / 4 : cols; /* loads per row */
    const int width = (int)cols;
#define SHORT(G) \
    if (items <= G || G == 32) \
    return tl_launch(ctx, name, max_bwd_short<VECTOR, G>, tl_grid(rows, THREADS / G), THREADS, x, max, g, rows, width, gx)
    if (cols <= TL_SUM_LANES) {
        SHORT(1);
        SHORT(2);
        SHORT(4);
        SHORT(8);
        SHORT(16);
        SHORT(32);
    }
#undef SHORT
    if (cols <= TL_SUM_LEAF)
        return tl_launch(ctx, name, max_bwd_row<VECTOR>, (unsigned)rows, THREADS, x, max, g, width, gx);
    const uint32_t per_row = (uint32_t)tl_ceil_div(cols, TL_SUM_LEAF);
    const unsigned blocks = (unsigned)(rows * per_row);
    tl_scratch<float> shares(ctx);
    TL_TRY(shares.allocate(rows * (per_row + 1)));
    int *const counts = reinterpret_cast<int *>(shares + rows);
    TL_TRY(tl_launch(ctx, name, max_bwd_segments<VECTOR, false>, blocks, THREADS, x, max, nullptr, per_row, cols,
                     counts, nullptr));
    TL_TRY(tl_launch(ctx, name, row_shares, (unsigned)rows, THREADS, counts, per_row, max, g, shares));
    return tl_launch(ctx, name, max_bwd_segments<VECTOR, true>, blocks, THREADS, x, max, shares, per_row, cols, nullptr,
                     gx);
}

template <int W>
int32_t max_columns_bwd(tl_context *ctx, const float *x, const float *max, const float *g, int64_t rows, int64_t cols,
                        float *gx)
{
    constexpr int64_t SEGMENT = 256, SMALL = 1 << 18;
    const char *const name = "reduce_max_axis0_bwd";
    const int64_t vectors = cols / W, tiles = tl_ceil_div(vectors, TX);
    const tl_fastdiv by_tiles((uint64_t)tiles);
    if (rows * cols <= SMALL || tiles >= 8 * (int64_t)tl_cuda_sms(ctx) || rows <= SEGMENT)
        return tl_launch(ctx, name, max_bwd_columns<W, true>, (unsigned)tiles, dim3(TX, TY), x, max, g, rows, cols,
                         by_tiles, rows, nullptr, gx);
    const int64_t segments = tl_ceil_div(rows, SEGMENT), items = tl_ceil_div(rows, WRITE_ROWS) * vectors;
    tl_scratch<float> shares(ctx);
    TL_TRY(shares.allocate((segments + 1) * cols));
    int *const counts = reinterpret_cast<int *>(shares + cols);
    TL_TRY(tl_launch(ctx, name, max_bwd_columns<W, false>, (unsigned)(tiles * segments), dim3(TX, TY), x, max, g, rows,
                     cols, by_tiles, SEGMENT, counts, gx));
    TL_TRY(
        tl_launch(ctx, name, column_shares, tl_grid(cols, THREADS), THREADS, counts, segments, max, g, cols, shares));
    return tl_launch(ctx, name, write_columns<W>, tl_grid(items, THREADS), THREADS, x, max, shares, rows, cols,
                     tl_fastdiv((uint64_t)vectors), items, gx);
}

} // namespace

/* ---- the operations ---------------------------------------------------------------------------------------------- */

int32_t tl_cuda_reduce_sum(tl_context *ctx, const float *x, int64_t n, float *out)
{
    return tl_cuda_row_sums(ctx, x, 1, n, 0, out);
}

int32_t tl_cuda_reduce_sum_axis0(tl_context *ctx, const float *x, int64_t rows, int64_t cols, float *out)
{
    return sum_axis(ctx, x, axis_view{1, rows, cols}, 0, out);
}

int32_t tl_cuda_reduce_sum_axis1(tl_context *ctx, const float *x, int64_t rows, int64_t cols, float *out)
{
    return tl_cuda_row_sums(ctx, x, rows, cols, 0, out);
}

int32_t tl_cuda_reduce_sum_axis(tl_context *ctx, const float *x, const tl_dims *dims, int64_t axis, float *out)
{
    return sum_axis(ctx, x, view_axis(dims, axis), 0, out);
}

int32_t tl_cuda_reduce_mean(tl_context *ctx, const float *x, const tl_dims *dims, int64_t axis, float *out)
{
    const axis_view v = view_axis(dims, axis);
    if (v.length > 0) return sum_axis(ctx, x, v, v.length, out);
    return tl_cuda_fill(tl_context_cuda(ctx), out, TL_NAN, v.outer * v.inner);
}

int32_t tl_cuda_reduce_mean_bwd(tl_context *ctx, const float *g, const tl_dims *dims, int64_t axis, float *gx)
{
    const char *const name = "reduce_mean_bwd";
    const axis_view v = view_axis(dims, axis);
    if (v.inner == 1) {
        const int64_t n = v.outer * v.length;
        return tl_launch(ctx, name, mean_bwd_rows, tl_grid(n, 4 * THREADS), THREADS, g, tl_fastdiv(v.length), n, gx);
    }
    const bool by_four = v.inner % 4 == 0;
    const int64_t parts = tl_ceil_div(v.length, MEAN_ROWS), vectors = by_four ? v.inner / 4 : v.inner;
    const int64_t n = v.outer * parts * vectors;
    return tl_launch(ctx, name, by_four ? mean_bwd_columns<4> : mean_bwd_columns<1>, tl_grid(n, THREADS), THREADS, g,
                     tl_fastdiv((uint64_t)vectors), tl_fastdiv((uint64_t)parts), v.length, v.inner, n, gx);
}

int32_t tl_cuda_reduce_max_axis0(tl_context *ctx, const float *x, int64_t rows, int64_t cols, float *out)
{
    return cols == 1 ? tl_cuda_row_maxima(ctx, x, 1, rows, out) : tl_cuda_column_maxima(ctx, x, 1, rows, cols, out);
}

int32_t tl_cuda_reduce_max_axis0_bwd(tl_context *ctx, const float *x, const float *out, const float *g, int64_t rows,
                                     int64_t cols, float *gx)
{
    if (cols == 1) return tl_cuda_reduce_max_axis1_bwd(ctx, x, out, g, 1, rows, gx);
    return cols % 4 == 0 ? max_columns_bwd<4>(ctx, x, out, g, rows, cols, gx)
                         : max_columns_bwd<1>(ctx, x, out, g, rows, cols, gx);
}

int32_t tl_cuda_reduce_max_axis1(tl_context *ctx, const float *x, int64_t rows, int64_t cols, float *out)
{
    return tl_cuda_row_maxima(ctx, x, rows, cols, out);
}

int32_t tl_cuda_reduce_max_axis1_bwd(tl_context *ctx, const float *x, const float *out, const float *g, int64_t rows,
                                     int64_t cols, float *gx)
{
    return cols % 4 == 0 ? max_rows_bwd<true>(ctx, x, out, g, rows, cols, gx)
                         : max_rows_bwd<false>(ctx, x, out, g, rows, cols, gx);
}
