/* Softmax and log-softmax on CUDA, and their gradients.
 *
 * A row of up to 49152 elements is read once and stays on chip (device/row_tile.cuh): in the registers of 4 to 32 threads, or
 * in the registers or shared memory of a block, or on its way through both; up to 262144 elements (half of that backward) in the
 * shared memory of a cluster of blocks where the chip has clusters (device/cluster_row.cuh), which also takes rows of more than a
 * leaf that are so few that half of the multiprocessors would be idle (a block takes as long as its row has elements), and rows of
 * nearly a leaf of which some multiprocessors would have two and most one. The traffic is the floor, 8 bytes per element forward and
 * 12 backward. Longer rows are read once per pass: three forward, two backward.
 */
#include "cuda/device/row_exponentials.cuh"
#include "generated/softmax.h"

namespace {

/* Whether clusters take `rows` rows that would fit a block each. The blocks of a row's cluster are spread over all multiprocessors,
 * each of which then has no more than half of a row's elements, where some would have a row and the others none. */
bool are_few(tl_context *ctx, int64_t rows, int64_t cols) { return cols > TL_SUM_LEAF && rows <= tl_cuda_sms(ctx) / 2; }

/* The same of rows of up to a leaf, a few more than there are multiprocessors, some of which would have two whole rows: quarters spread
 * evenly. They are all there at once, and what the last multiprocessor has less of a row is worth the exchanges, which take as long as
 * half a leaf. */
bool are_uneven(tl_context *ctx, int64_t rows, int64_t cols, int blocks)
{
    const int64_t sms = tl_cuda_sms(ctx), quarters = TL_CLUSTER_LEAST * rows;
    const int64_t less = TL_CLUSTER_LEAST * tl_ceil_div(rows, sms) - tl_ceil_div(quarters, sms);
    return cols <= TL_SUM_LEAF && rows > sms && quarters <= blocks * sms &&
           2 * less * cols >= TL_CLUSTER_LEAST * TL_SUM_LEAF;
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

/* Blocks of a multiprocessor. A block waits for memory, for its maximum and for its sum in turn. As many as have 16 registers a thread
 * and 2 per element, which do, cover each other's waits and have enough bytes on their way. */
template <class Row>
constexpr int blocks_of_rows =
    Row::THREADS != 256 || Row::N > 16 ? Row::BLOCKS : 256 / (16 + 2 * (Row::N < 8 ? 8 : Row::N));

template <class Row, bool LOG>
__global__ void __launch_bounds__(Row::THREADS, blocks_of_rows<Row>)
    softmax_rows(const float *__restrict__ x, int64_t rows, int64_t cols, float *__restrict__ out)
{
    const Row r(rows, cols);
    tl_held<Row, Row::ONE_SHARED> v;
    v.load(r, x + r.row * cols, -TL_INF);
    v.wait();
    float m, w[Row::W];
    const float sum = tl_row_exponentials<LOG, !Row::ONE_SHARED>(r, v, &m), s = LOG ? tl_log(sum) : sum,
                reciprocal = 1.0f / s;
#pragma unroll(decltype(v)::UNROLL)
    for (int k = 0; k < decltype(v)::pieces(r); k++) {
        v.get(k, w);
        TL_UNROLL_FOR (int j = 0; j < Row::W; j++)
            w[j] = LOG ? w[j] - s : tl_quotient(w[j], s, reciprocal);
        r.store(out + r.row * cols, k, w);
    }
}

/* Blocks of a multiprocessor that have a part of a row each: 40 registers a thread hold eight elements and what is computed with
 * them. */
template <class Row> constexpr int blocks_of_clusters = Row::BLOCKS * 3 / 2;

template <class Row, bool LOG>
__global__ void __launch_bounds__(Row::THREADS, blocks_of_clusters<Row>)
    softmax_cluster(const float *__restrict__ x, int64_t cols, float *__restrict__ out)
{
#if __CUDA_ARCH__ >= 900
    const Row r(cols);
    r.request(0, x + r.row * cols);
    tl_copy_wait<0>();
    float m;
    const float sum = tl_cluster_exponentials<LOG>(r, &m), s = LOG ? tl_log(sum) : sum, reciprocal = 1.0f / s;
    const float *const v = r.array(0);
    float *const to = out + r.row * cols;
    r.elements([&](int slot, int column) { to[column] = LOG ? v[slot] - s : tl_quotient(v[slot], s, reciprocal); });
    tl_cluster_wait();
#endif
}

/* ---- forward, rows of two and three leaves ------------------------------------------------------------------------ */

/* Such a row fills the shared memory of a multiprocessor, whose one block would wait for it, compute, and wait for the next one. So
 * the block moves it on to registers, PIECES elements a thread, and asks for the next one meanwhile. Thread t owns lane t of all
 * leaves, so that all threads work where the last leaf is short: elements t + 1024 i of the row, which it computes WIDE at a time, as
 * far as the row reaches. A thread has 64 registers, which 40 elements and what is computed with them just fill. */
constexpr int TWO_LEAVES = 2 * TL_SUM_LEAF, LEAVES_MOST = 40 * TL_SUM_LANES, WIDE = 4;
constexpr int LEAF_PIECES = TL_SUM_LEAF / TL_SUM_LANES;

/* visit(i) for pieces begin..end - 1. */
template <class Visit> __device__ __forceinline__ void visit_pieces(int cols, int begin, int end, Visit visit)
{
    TL_UNROLL_FOR (int i = begin; i < end; i += WIDE)
        if (i * TL_SUM_LANES < cols)
            TL_UNROLL_FOR (int j = i; j < i + WIDE; j++)
                visit(j);
}

/* Elements between the last address of 16 bytes and p: as far from the start of shared memory a row begins there, so that all but
 * its ends arrives 16 bytes at a time. */
__device__ __forceinline__ int offset_of(const float *p) { return (int)((uintptr_t)p / sizeof(float) % 4); }

__device__ __forceinline__ void request_row(float *shared, const float *p, int cols)
{
    const int t = (int)threadIdx.x, offset = offset_of(p), before = (4 - offset) % 4, quads = (cols - before) / 4;
    float *const to = shared + offset;
#pragma unroll 1
    for (int i = before + 4 * t; i < before + 4 * quads; i += 4 * TL_SUM_LANES)
        tl_copy_async<16>(to + i, p + i, true);
    const int end = t < before ? t : before + 4 * quads + t - before;
    if (t < before || end < cols) tl_copy_async<4>(to + end, p + end, true);
    tl_copy_commit();
}

/* The sum of lanes r, r + M, r + 2 M, ... of 32, folded in halves; they lie 32 floats apart. */
template <int M> __device__ __forceinline__ float fold_lanes(const float *lanes, int r)
{
    if constexpr (M == 32)
        return lanes[32 * r];
    else
        return fold_lanes<2 * M>(lanes, r) + fold_lanes<2 * M>(lanes, r + M);
}

template <bool LOG, int PIECES>
__global__ void __launch_bounds__(TL_SUM_LANES)
    softmax_leaves(const float *__restrict__ x, int rows, int cols, float *__restrict__ out)
{
    constexpr int LEAVES = (PIECES + LEAF_PIECES - 1) / LEAF_PIECES;
    __shared__ float lanes[LEAVES][TL_SUM_LANES], maxima[32], leaf[LEAVES];
    float *const shared = reinterpret_cast<float *>(tl_dynamic_shared);
    const int t = (int)threadIdx.x, warp = t / 32, lane = t % 32;
    request_row(shared, x + blockIdx.x * (int64_t)cols, cols);
#pragma unroll 1
    for (int row = (int)blockIdx.x; row < rows; row += (int)gridDim.x) {
        const float *const held = shared + offset_of(x + row * (int64_t)cols) + t;
        float v[PIECES], m = -TL_INF;
        tl_copy_wait<0>();
        __syncthreads();
        visit_pieces(cols, 0, PIECES, [&](int i) {
            const int piece = i * TL_SUM_LANES;
            v[i] = piece < cols - t ? held[piece] : -TL_INF;
        });
        __syncthreads();
        if (const int next = row + (int)gridDim.x; next < rows) request_row(shared, x + next * (int64_t)cols, cols);
        visit_pieces(cols, 0, PIECES, [&](int i) { m = fmaxf(m, v[i]); });
        m = tl_fold_group<tl_number_max_op, 32>(m);
        if (lane == 0) maxima[warp] = m;
        __syncthreads();
        m = tl_fold_group<tl_number_max_op, 32>(maxima[lane]);
        TL_UNROLL_FOR (int l = 0; l < LEAVES; l++) {
            float sum = 0.0f;
            visit_pieces(cols, LEAF_PIECES * l, min(LEAF_PIECES * (l + 1), PIECES), [&](int i) {
                const float shifted = v[i] - m, e = tl_exp_at_most_1(shifted);
                sum += e;
                v[i] = LOG ? shifted : e;
            });
            lanes[l][t] = sum;
        }
        __syncthreads();
        if (warp < LEAVES) {
            const float s = tl_fold_group<tl_sum_op, 32>(fold_lanes<1>(lanes[warp] + lane, 0));
            if (lane == 0) leaf[warp] = s;
        }
        __syncthreads();
        const float sum = tl_block_row<false, LEAF_PIECES, LEAVES>::join(leaf), s = LOG ? tl_log(sum) : sum,
                    reciprocal = 1.0f / s;
        float *const to = out + row * (int64_t)cols + t;
        visit_pieces(cols, 0, PIECES, [&](int i) {
            const int piece = i * TL_SUM_LANES;
            if (piece < cols - t) to[piece] = LOG ? v[i] - s : tl_quotient(v[i], s, reciprocal);
        });
    }
}

/* Launches it if a block can have the row, in its registers and before in shared memory. */
template <bool LOG, int PIECES>
bool run_leaves(tl_context *ctx, const char *name, const float *x, int64_t rows, int64_t cols, float *out,
                int32_t *status)
{
    const size_t bytes = sizeof(float4) * (size_t)tl_ceil_div(cols + 3, 4);
    const auto kernel = softmax_leaves<LOG, PIECES>;
    if (cols > PIECES * TL_SUM_LANES || !tl_shared_fits(kernel, bytes)) return false;
    *status = tl_allow_shared(ctx, kernel, bytes);
    if (*status == TORCHLEAN_OK)
        *status = tl_launch_dynamic(ctx, name, kernel, tl_grid(rows, 1, tl_cuda_sms(ctx)), TL_SUM_LANES, bytes, x,
                                    (int)rows, (int)cols, out);
    return true;
}

/* ---- forward, all rows -------------------------------------------------------------------------------------------- */

/* Results of long rows. */
template <bool LOG> struct softmax_element {
    const float *x, *maximum, *sum;
    float m, s, reciprocal;
    __device__ void row(int64_t r)
    {
        m = maximum[r];
        s = LOG ? tl_log(sum[r]) : sum[r];
        reciprocal = 1.0f / s;
    }
    __device__ float at(int64_t i, int64_t) const
    {
        return LOG ? (x[i] - m) - s : tl_quotient(tl_exp(x[i] - m), s, reciprocal);
    }
};

template <bool LOG>
int32_t forward(tl_context *ctx, const char *name, const float *x, int64_t rows, int64_t cols, float *out)
{
    int32_t status;
    const bool fits = cols <= TL_ROW_FITS;
    const auto launch_cluster = [&](auto row) {
        using Row = typename decltype(row)::type;
        const bool takes = !fits || are_few(ctx, rows, cols) || are_uneven(ctx, rows, cols, blocks_of_clusters<Row>);
        return takes && tl_launch_cluster<Row>(ctx, name, softmax_cluster<Row, LOG>, rows, cols, &status, x, cols, out);
    };
    if (cols <= TL_CLUSTER_FITS && tl_pick_cluster<1>(cols, launch_cluster)) return status;
    if (cols > TL_SUM_LEAF && (run_leaves<LOG, TWO_LEAVES / TL_SUM_LANES>(ctx, name, x, rows, cols, out, &status) ||
                               run_leaves<LOG, LEAVES_MOST / TL_SUM_LANES>(ctx, name, x, rows, cols, out, &status)))
        return status;
    if (fits)
        return tl_pick_row_of_many(ctx, rows, cols, [&](auto row) {
            using Row = typename decltype(row)::type;
            return tl_launch_rows<Row>(ctx, name, softmax_rows<Row, LOG>, rows,
                                       (tl_row_bytes<Row, Row::ONE_SHARED>(cols)), x, rows, cols, out);
        });
    tl_scratch<float> maximum(ctx);
    TL_TRY(maximum.allocate(2 * rows));
    float *const sum = maximum + rows;
    TL_TRY(tl_long_row_exponentials(ctx, name, x, rows, cols, maximum, sum));
    return tl_long_row_map(ctx, name, softmax_element<LOG>{x, maximum, sum, 0.0f, 0.0f, 0.0f}, rows, cols, out);
}

/* ---- gradients --------------------------------------------------------------------------------------------------- */

template <bool LOG> __device__ __forceinline__ float term(float y, float g) { return LOG ? g : g * y; }
template <bool LOG> __device__ __forceinline__ float gradient(float y, float g, float s)
{
    return LOG ? tl_log_softmax_grad(y, g, s) : tl_softmax_grad(y, g, s);
}

/* Whether y arrives by way of shared memory where g does not. The sum of log_softmax's gradient has no need of y, and the compiler
 * would load many single elements of it one after the other, each just before its exponential; a copy is on its way with g. */
template <class Row, bool LOG> constexpr bool first_shared = LOG && Row::K > 8 && !Row::SECOND_SHARED;

template <class Row, bool LOG>
__global__ void __launch_bounds__(Row::THREADS, Row::BLOCKS_OF_TWO)
    softmax_rows_bwd(const float *__restrict__ y, const float *__restrict__ g, int64_t rows, int64_t cols,
                     float *__restrict__ gx)
{
    const Row r(rows, cols);
    tl_held<Row, Row::SECOND_SHARED, true> second;
    tl_held<Row, first_shared<Row, LOG>, true> first;
    second.load(r, g + r.row * cols);
    first.load(r, y + r.row * cols);
    second.wait();
    typename Row::terms terms;
    float a[Row::W], b[Row::W];
    TL_UNROLL_FOR (int i = 0; i < Row::K; i++) {
        const int k = Row::order(i);
        if (!LOG) first.get(k, a);
        second.get(k, b);
        TL_UNROLL_FOR (int j = 0; j < Row::W; j++)
            b[j] = LOG ? b[j] : term<LOG>(a[j], b[j]);
        terms.add(i, b);
    }
    const float s = terms.sum();
    first.wait();
    TL_UNROLL_FOR (int k = 0; k < Row::K; k++) {
        first.get(k, a);
        second.get(k, b);
        TL_UNROLL_FOR (int j = 0; j < Row::W; j++)
            b[j] = gradient<LOG>(a[j], b[j], s);
        r.store(gx + r.row * cols, k, b);
    }
}

template <class Row, bool LOG>
__global__ void __launch_bounds__(Row::THREADS, Row::BLOCKS)
    softmax_cluster_bwd(const float *__restrict__ y, const float *__restrict__ g, int64_t cols, float *__restrict__ gx)
{
#if __CUDA_ARCH__ >= 900
    const Row r(cols);
    r.request(0, g + r.row * cols);
    r.request(1, y + r.row * cols);
    const float *const second = r.array(0), *const first = r.array(1);
    if (LOG)
        tl_copy_wait<1>();
    else
        tl_copy_wait<0>();
    const float s = r.sum(0, [&](int slot, int) { return LOG ? second[slot] : term<LOG>(first[slot], second[slot]); });
    tl_cluster_leave();
    tl_copy_wait<0>();
    float *const to = gx + r.row * cols;
    r.elements([&](int slot, int column) { to[column] = gradient<LOG>(first[slot], second[slot], s); });
    tl_cluster_wait();
#endif
}

struct product {
    const float *y, *g;
    __device__ void row(int64_t) {}
    __device__ float at(int64_t i, int64_t) const { return g[i] * y[i]; }
};

template <bool LOG> struct gradient_element {
    const float *y, *g, *sum;
    float s;
    __device__ void row(int64_t r) { s = sum[r]; }
    __device__ float at(int64_t i, int64_t) const { return gradient<LOG>(y[i], g[i], s); }
};

template <bool LOG>
int32_t backward(tl_context *ctx, const char *name, const float *y, const float *g, int64_t rows, int64_t cols,
                 float *gx)
{
    using Cluster = tl_cluster_row<8, 2, 2, 1>;
    int32_t status;
    const bool fits = cols <= TL_ROW_FITS;
    if ((!fits || are_few(ctx, rows, cols)) && cols <= TL_CLUSTER_FITS &&
        tl_launch_cluster<Cluster>(ctx, name, softmax_cluster_bwd<Cluster, LOG>, rows, cols, &status, y, g, cols, gx))
        return status;
    if (fits)
        return tl_pick_row(cols, [&](auto row) {
            using Row = typename decltype(row)::type;
            constexpr bool shared = Row::SECOND_SHARED || first_shared<Row, LOG>;
            return tl_launch_rows<Row>(ctx, name, softmax_rows_bwd<Row, LOG>, rows, tl_whole_row_bytes<Row, shared>, y,
                                       g, rows, cols, gx);
        });
    tl_scratch<float> sum(ctx);
    TL_TRY(sum.allocate(rows));
    TL_TRY(LOG ? tl_cuda_row_sums(ctx, g, rows, cols, 0, sum)
               : tl_long_row_sums(ctx, name, product{y, g}, rows, cols, 0, sum));
    return tl_long_row_map(ctx, name, gradient_element<LOG>{y, g, sum, 0.0f}, rows, cols, gx);
}

} // namespace

/* ---- the operations ---------------------------------------------------------------------------------------------- */

int32_t tl_cuda_softmax(tl_context *ctx, const float *x, int64_t rows, int64_t cols, float *out)
{
    return forward<false>(ctx, "softmax", x, rows, cols, out);
}

int32_t tl_cuda_softmax_bwd(tl_context *ctx, const float *out, const float *g, int64_t rows, int64_t cols, float *gx)
{
    return backward<false>(ctx, "softmax_bwd", out, g, rows, cols, gx);
}

int32_t tl_cuda_log_softmax(tl_context *ctx, const float *x, int64_t rows, int64_t cols, float *out)
{
    return forward<true>(ctx, "log_softmax", x, rows, cols, out);
}

int32_t tl_cuda_log_softmax_bwd(tl_context *ctx, const float *out, const float *g, int64_t rows, int64_t cols,
                                float *gx)
{
    return backward<true>(ctx, "log_softmax_bwd", out, g, rows, cols, gx);
}
