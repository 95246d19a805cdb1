/* Softmax and log-softmax on CUDA, and their gradients.
 *
 * A row of up to 16384 elements is read once and stays on chip (device/row_tile.cuh): in the registers of 4 to 32 threads, or
 * in the registers or shared memory of a block; one of up to 262144 elements (half of that backward) in the shared memory of a
 * cluster of blocks where the chip has clusters (device/cluster_row.cuh). The traffic is the floor, 8 bytes per element forward and
 * 12 backward. Longer rows are read once per pass (reduce/long_rows.cuh): three forward, two backward. */
#include "cuda/device/row_exponentials.cuh"
#include "cuda/reduce/long_rows.cuh"
#include "generated/softmax.h"

namespace {

/* ---- forward ----------------------------------------------------------------------------------------------------- */

/* Blocks of a multiprocessor. A block waits for memory, for its maximum and for its sum. As many as have 16 registers a thread
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
    if (tl_select_row(cols) == TL_ROW_TILE)
        return tl_pick_row(cols, [&](auto row) {
            using Row = typename decltype(row)::type;
            return tl_launch_rows<Row>(ctx, name, softmax_rows<Row, LOG>, rows,
                                       (tl_row_bytes<Row, Row::ONE_SHARED>(cols)), x, rows, cols, out);
        });
    if (tl_select_row(cols) == TL_ROW_CLUSTER && tl_pick_cluster<1>(cols, [&](auto row) {
            using Row = typename decltype(row)::type;
            return tl_launch_cluster<Row>(ctx, name, softmax_cluster<Row, LOG>, rows, cols, &status, x, cols, out);
        }))
        return status;
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

template <class Row, bool LOG>
__global__ void __launch_bounds__(Row::THREADS, Row::BLOCKS_OF_TWO)
    softmax_rows_bwd(const float *__restrict__ y, const float *__restrict__ g, int64_t rows, int64_t cols,
                     float *__restrict__ gx)
{
    const Row r(rows, cols);
    tl_held<Row, Row::SECOND_SHARED, true> second;
    tl_held<Row, false> first;
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
    if (tl_select_row(cols) == TL_ROW_TILE)
        return tl_pick_row(cols, [&](auto row) {
            using Row = typename decltype(row)::type;
            return tl_launch_rows<Row>(ctx, name, softmax_rows_bwd<Row, LOG>, rows,
                                       tl_whole_row_bytes<Row, Row::SECOND_SHARED>, y, g, rows, cols, gx);
        });
    if (tl_select_row(cols) == TL_ROW_CLUSTER &&
        tl_launch_cluster<Cluster>(ctx, name, softmax_cluster_bwd<Cluster, LOG>, rows, cols, &status, y, g, cols, gx))
        return status;
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
