/* The cross-entropy of each row on CUDA, with weights of classes, smoothed labels and ignored rows, and its gradient.
 *
 * A row of logits is held on chip and read once, as in cross_entropy (loss.cu); smoothing takes one more sum of what is held. */
#include "cuda/device/row_exponentials.cuh"
#include "generated/loss.h"

namespace {

constexpr int THREADS = 256;

struct entropy {
    const float *x;
    const uint32_t *labels;
    const float *weights, *total, *g; /* weights NULL: all are 1; total: their sum */
    int64_t rows, cols;
    tl_smoothing h;
    float *out;
    __device__ float weight(int64_t c) const { return weights ? weights[c] : 1.0f; }
    /* The label of a row; -1 if it is no class. */
    __device__ int64_t label(int64_t row) const { return (int64_t)labels[row] < cols ? (int64_t)labels[row] : -1; }
    __device__ void put_loss(int64_t row, float m, float log_s, float spread) const
    {
        const int64_t y = label(row);
        out[row] = y < 0 ? 0.0f : tl_smoothed_loss(log_s, x[row * cols + y], m, weight(y), spread, cols, h);
    }
};

/* The gradient of a row's elements, from their softmax. */
struct row_grad {
    int64_t label;
    float own, total, g;
    __device__ row_grad(const entropy &p, int64_t row) : label(p.label(row)), own(0.0f), total(0.0f), g(p.g[row])
    {
        if (label < 0) return;
        own = p.weight(label);
        total = tl_smoothed_total(own, p.weights ? *p.total : (float)p.cols, p.cols, p.h);
    }
    __device__ float at(const entropy &p, float y, int64_t column) const
    {
        return label < 0 ? 0.0f : tl_smoothed_grad(y, total, p.weight(column), own, column == label, p.cols, g, p.h);
    }
};

template <class Row> __global__ void __launch_bounds__(Row::THREADS, Row::BLOCKS) loss_rows(entropy p)
{
    const Row r(p.rows, p.cols);
    tl_held<Row, Row::ONE_SHARED> v;
    v.load(r, p.x + r.row * p.cols);
    v.wait();
    float m, w[Row::W], spread = 0.0f;
    const float log_s = tl_log(tl_row_exponentials<true>(r, v, &m));
    if (p.h.share > 0.0f) {
        typename Row::terms terms;
#pragma unroll(decltype(v)::UNROLL)
        for (int i = 0; i < decltype(v)::pieces(r); i++) {
            const int k = Row::order(i);
            v.get(k, w);
            TL_UNROLL_FOR (int j = 0; j < Row::W; j++)
                w[j] = r.inside(k * Row::W + j) ? p.weight(r.column(k * Row::W + j)) * (log_s - w[j]) : 0.0f;
            terms.add(i, w);
        }
        spread = terms.sum();
    }
    if (r.n > 0 && r.leads()) p.put_loss(r.row, m, log_s, spread);
}

template <class Row> __global__ void __launch_bounds__(Row::THREADS, Row::BLOCKS) grad_rows(entropy p)
{
    const Row r(p.rows, p.cols);
    tl_held<Row, Row::ONE_SHARED> v;
    v.load(r, p.x + r.row * p.cols);
    v.wait();
    float m, w[Row::W];
    const float s = tl_row_exponentials<false>(r, v, &m), reciprocal = 1.0f / s;
    const row_grad grad(p, r.n > 0 ? r.row : 0);
#pragma unroll(decltype(v)::UNROLL)
    for (int k = 0; k < decltype(v)::pieces(r); k++) {
        v.get(k, w);
        TL_UNROLL_FOR (int j = 0; j < Row::W; j++) {
            const int i = k * Row::W + j;
            w[j] = r.inside(i) ? grad.at(p, tl_quotient(w[j], s, reciprocal), r.column(i)) : 0.0f;
        }
        r.store(p.out + r.row * p.cols, k, w);
    }
}

template <class Row> __global__ void __launch_bounds__(Row::THREADS, Row::BLOCKS) loss_cluster(entropy p)
{
#if __CUDA_ARCH__ >= 900
    const Row r(p.cols);
    r.request(0, p.x + r.row * p.cols);
    tl_copy_wait<0>();
    float m, spread = 0.0f;
    const float log_s = tl_log(tl_cluster_exponentials<true>(r, &m));
    tl_cluster_wait();
    if (p.h.share > 0.0f) {
        const float *const v = r.array(0);
        spread = r.sum(1, [&](int slot, int column) { return p.weight(column) * (log_s - v[slot]); });
    }
    if (r.rank == 0 && threadIdx.x == 0) p.put_loss(r.row, m, log_s, spread);
    tl_cluster_arrive(); /* no block leaves before its lanes have been read */
    tl_cluster_wait();
#endif
}

template <class Row> __global__ void __launch_bounds__(Row::THREADS, Row::BLOCKS) grad_cluster(entropy p)
{
#if __CUDA_ARCH__ >= 900
    const Row r(p.cols);
    r.request(0, p.x + r.row * p.cols);
    tl_copy_wait<0>();
    float m;
    const float s = tl_cluster_exponentials<false>(r, &m), reciprocal = 1.0f / s;
    const row_grad grad(p, r.row);
    const float *const v = r.array(0);
    float *const to = p.out + r.row * p.cols;
    r.elements([&](int slot, int column) { to[column] = grad.at(p, tl_quotient(v[slot], s, reciprocal), column); });
    tl_cluster_wait();
#endif
}

/* ---- long rows --------------------------------------------------------------------------------------------------- */

struct spread_term {
    entropy p;
    const float *maximum, *sum;
    float m, log_s;
    __device__ void row(int64_t r)
    {
        m = maximum[r];
        log_s = tl_log(sum[r]);
    }
    __device__ float at(int64_t i, int64_t column) const { return p.weight(column) * (log_s - (p.x[i] - m)); }
};

/* A thread owns a row's loss. */
__global__ void __launch_bounds__(THREADS) long_losses(entropy p, const float *__restrict__ maximum,
                                                       const float *__restrict__ sum, const float *__restrict__ spread)
{
    const int64_t r = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (r < p.rows) p.put_loss(r, maximum[r], tl_log(sum[r]), p.h.share > 0.0f ? spread[r] : 0.0f);
}

struct grad_element {
    entropy p;
    const float *maximum, *sum;
    float m, s, reciprocal, own, total, g;
    int64_t label;
    __device__ void row(int64_t r)
    {
        const row_grad grad(p, r);
        m = maximum[r];
        s = sum[r];
        reciprocal = 1.0f / s;
        own = grad.own, total = grad.total, g = grad.g, label = grad.label;
    }
    __device__ float at(int64_t i, int64_t column) const
    {
        const float y = tl_quotient(tl_exp(p.x[i] - m), s, reciprocal);
        return label < 0 ? 0.0f : tl_smoothed_grad(y, total, p.weight(column), own, column == label, p.cols, g, p.h);
    }
};

} // namespace

int32_t tl_cuda_cross_entropy_rows(tl_context *ctx, const float *logits, const uint32_t *labels, const float *weights,
                                   int64_t rows, int64_t cols, float smoothing, float *out)
{
    const char *const name = "cross_entropy_rows";
    if (cols == 0) return tl_cuda_fill(tl_context_cuda(ctx), out, 0.0f, rows); /* no label is a class */
    tl_scratch<uint32_t> staged(ctx);
    TL_TRY(staged.stage(labels, rows));
    const entropy p = {logits, staged, weights, nullptr, nullptr, rows, cols, tl_smoothing_of(smoothing), out};
    if (cols <= TL_ROW_FITS)
        return tl_pick_row(cols, [&](auto row) {
            using Row = typename decltype(row)::type;
            return tl_launch_rows<Row>(ctx, name, loss_rows<Row>, rows, (tl_row_bytes<Row, Row::ONE_SHARED>(p.cols)),
                                       p);
        });
    int32_t status;
    if (cols <= TL_CLUSTER_FITS && tl_pick_cluster<2>(cols, [&](auto row) {
            using Row = typename decltype(row)::type;
            return tl_launch_cluster<Row>(ctx, name, loss_cluster<Row>, rows, cols, &status, p);
        }))
        return status;
    tl_scratch<float> work(ctx);
    TL_TRY(work.allocate(3 * rows));
    float *const maximum = work, *const sum = maximum + rows, *const spread = sum + rows;
    TL_TRY(tl_long_row_exponentials(ctx, name, logits, rows, cols, maximum, sum));
    if (smoothing > 0.0f) TL_TRY(tl_long_row_sums(ctx, name, spread_term{p, maximum, sum}, rows, cols, 0, spread));
    return tl_launch(ctx, name, long_losses, tl_grid(rows, THREADS), THREADS, p, maximum, sum, spread);
}

int32_t tl_cuda_cross_entropy_rows_bwd(tl_context *ctx, const float *logits, const uint32_t *labels,
                                       const float *weights, const float *g, int64_t rows, int64_t cols,
                                       float smoothing, float *glogits)
{
    const char *const name = "cross_entropy_rows_bwd";
    tl_scratch<uint32_t> staged(ctx);
    tl_scratch<float> work(ctx);
    TL_TRY(staged.stage(labels, rows));
    TL_TRY(work.allocate(2 * rows + 1));
    float *const total = work, *const maximum = total + 1, *const sum = maximum + rows;
    if (weights) TL_TRY(tl_cuda_row_sums(ctx, weights, 1, cols, 0, total));
    const entropy p = {logits, staged, weights, total, g, rows, cols, tl_smoothing_of(smoothing), glogits};
    if (cols <= TL_ROW_FITS)
        return tl_pick_row(cols, [&](auto row) {
            using Row = typename decltype(row)::type;
            return tl_launch_rows<Row>(ctx, name, grad_rows<Row>, rows, (tl_row_bytes<Row, Row::ONE_SHARED>(p.cols)),
                                       p);
        });
    int32_t status;
    if (cols <= TL_CLUSTER_FITS && tl_pick_cluster<1>(cols, [&](auto row) {
            using Row = typename decltype(row)::type;
            return tl_launch_cluster<Row>(ctx, name, grad_cluster<Row>, rows, cols, &status, p);
        }))
        return status;
    TL_TRY(tl_long_row_exponentials(ctx, name, logits, rows, cols, maximum, sum));
    return tl_long_row_map(ctx, name, grad_element{p, maximum, sum}, rows, cols, glogits);
}
