/* Losses on CUDA, and their gradients.
 *
 * What is a sum over pairs of elements is one row of them, summed by leaves. Cross-entropy, its mean over rows or that of each row, with
 * weights of classes, smoothed labels and ignored rows, is a softmax whose result is one number per row; the gradient is a softmax with
 * another last step. A row of logits is held on
 * chip as softmax does (device/row_tile.cuh, device/cluster_row.cuh) and read once: 4 bytes per element forward, 8 backward. Smoothing
 * takes one more sum of what is held. */
#include "cuda/device/row_exponentials.cuh"
#include "cuda/device/vector.cuh"
#include "cuda/reduce/long_rows.cuh"
#include "generated/loss.h"

namespace {

constexpr int THREADS = 256;

/* ---- sums over pairs of elements --------------------------------------------------------------------------------- */

/* A loss of a pair and its gradients to both. */
struct squared_error {
    static __device__ float of(float a, float b) { return tl_square_of_difference(a, b); }
    static __device__ float first(float a, float b, tl_loss_slope s) { return tl_mse_grad(a, b, s); }
    static __device__ float second(float a, float b, tl_loss_slope s) { return -tl_mse_grad(a, b, s); }
};

struct binary_entropy {
    static __device__ float of(float a, float b) { return tl_bce(a, b); }
    static __device__ float first(float a, float b, tl_loss_slope s) { return tl_bce_grad(a, b, s); }
    static __device__ float second(float a, float, tl_loss_slope s) { return tl_slope_times(-a, s); }
};

template <class Loss> struct term {
    const float *a, *b;
    __device__ void row(int64_t) {}
    __device__ float at(int64_t i, int64_t) const { return Loss::of(a[i], b[i]); }
};

/* A thread owns four consecutive elements. */
template <class Loss>
__global__ void __launch_bounds__(THREADS)
    pair_grad(const float *a, const float *b, const float *g, int64_t n, int64_t count, float *ga, float *gb)
{
    tl_wait_for_earlier();
    const int64_t i = 4 * ((int64_t)blockIdx.x * THREADS + threadIdx.x);
    const tl_loss_slope s = tl_loss_slope_of(g[0], count);
    if (i + 4 <= n) {
        const float4 x = tl_load4(a + i), y = tl_load4(b + i);
        if (ga)
            tl_store4(ga + i, make_float4(Loss::first(x.x, y.x, s), Loss::first(x.y, y.y, s), Loss::first(x.z, y.z, s),
                                          Loss::first(x.w, y.w, s)));
        if (gb)
            tl_store4(gb + i, make_float4(Loss::second(x.x, y.x, s), Loss::second(x.y, y.y, s),
                                          Loss::second(x.z, y.z, s), Loss::second(x.w, y.w, s)));
        return;
    }
    for (int64_t k = i; k < n; k++) {
        if (ga) ga[k] = Loss::first(a[k], b[k], s);
        if (gb) gb[k] = Loss::second(a[k], b[k], s);
    }
}

template <class Loss>
int32_t pair_sum(tl_context *ctx, const char *name, const float *a, const float *b, int64_t n, bool mean, float *out)
{
    if (n == 0) return tl_cuda_fill(tl_context_cuda(ctx), out, mean ? TL_NAN : 0.0f, 1);
    return tl_long_row_sums(ctx, name, term<Loss>{a, b}, 1, n, mean ? n : 0, out);
}

/* ---- cross-entropy ----------------------------------------------------------------------------------------------- */

struct entropy {
    const float *x;
    const uint32_t *labels;
    const float *weights, *total, *g; /* weights NULL: all are 1; total: their sum; g: of each row, or of the mean */
    int64_t rows, cols;
    tl_smoothing h;
    float *out;
};

/* The mean over rows: losses are scaled (tl_cross_entropy_row). */
struct mean_loss : entropy {
    static constexpr bool SMOOTHS = false;
    int64_t label;
    float factor;
    __device__ float weight(int64_t) const { return 1.0f; }
    /* What a row has at its label; NaN for a label of an index buffer that is out of range, as nobody has looked at it. */
    __device__ float labelled(int64_t row) const { return labels[row] < cols ? x[row * cols + labels[row]] : TL_NAN; }
    __device__ void put(int64_t row, float at_label, float m, float sum, float) const
    {
        out[row] = tl_cross_entropy_row(at_label, m, tl_log(sum));
    }
    __device__ void begin_grad(int64_t row) { label = labels[row], factor = tl_per_count(g[0], rows); }
    __device__ float grad(float y, int64_t column) const { return tl_cross_entropy_grad(y, column == label, factor); }
};

/* Each row's loss; 0 where the label is no class. */
struct row_loss : entropy {
    static constexpr bool SMOOTHS = true;
    int64_t label;
    float own, all, factor;
    __device__ float weight(int64_t c) const { return weights ? weights[c] : 1.0f; }
    __device__ float labelled(int64_t row) const { return labels[row] < cols ? x[row * cols + labels[row]] : 0.0f; }
    __device__ void put(int64_t row, float at_label, float m, float sum, float spread) const
    {
        out[row] = labels[row] < cols ? tl_smoothed_loss(tl_log(sum), at_label, m, weight(labels[row]), spread, cols, h)
                                      : 0.0f;
    }
    __device__ void begin_grad(int64_t row)
    {
        label = labels[row] < cols ? (int64_t)labels[row] : -1;
        factor = g[row];
        own = label < 0 ? 0.0f : weight(label);
        all = label < 0 ? 0.0f : tl_smoothed_total(own, weights ? *total : (float)cols, cols, h);
    }
    __device__ float grad(float y, int64_t column) const
    {
        return label < 0 ? 0.0f : tl_smoothed_grad(y, all, weight(column), own, column == label, cols, factor, h);
    }
};

template <class Loss, class Row>
__global__ void __launch_bounds__(Row::THREADS, Row::BLOCKS) loss_rows(const entropy job)
{
    const Loss p = {job};
    const Row r(p.rows, p.cols);
    tl_held<Row, Row::ONE_SHARED> v;
    v.load(r, p.x + r.row * p.cols);
    const bool leader = r.n > 0 && r.leads();
    const float labelled = leader ? p.labelled(r.row) : 0.0f;
    v.wait();
    float m, w[Row::W], spread = 0.0f;
    const float sum = tl_row_exponentials<true>(r, v, &m);
    if (Loss::SMOOTHS && p.h.share > 0.0f) {
        const float log_s = tl_log(sum);
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
    if (leader) p.put(r.row, labelled, m, sum, spread);
}

template <class Loss, class Row>
__global__ void __launch_bounds__(Row::THREADS, Row::BLOCKS) grad_rows(const entropy job)
{
    Loss p = {job};
    const Row r(p.rows, p.cols);
    tl_held<Row, Row::ONE_SHARED> v;
    v.load(r, p.x + r.row * p.cols);
    p.begin_grad(r.n > 0 ? r.row : 0);
    v.wait();
    float m, w[Row::W];
    const float s = tl_row_exponentials<false>(r, v, &m), reciprocal = 1.0f / s;
#pragma unroll(decltype(v)::UNROLL)
    for (int k = 0; k < decltype(v)::pieces(r); k++) {
        v.get(k, w);
        TL_UNROLL_FOR (int j = 0; j < Row::W; j++) {
            const int i = k * Row::W + j;
            w[j] = r.inside(i) ? p.grad(tl_quotient(w[j], s, reciprocal), r.column(i)) : 0.0f;
        }
        r.store(p.out + r.row * p.cols, k, w);
    }
}

template <class Loss, class Row>
__global__ void __launch_bounds__(Row::THREADS, Row::BLOCKS) loss_cluster(const entropy job)
{
#if __CUDA_ARCH__ >= 900
    const Loss p = {job};
    const Row r(p.cols);
    r.request(0, p.x + r.row * p.cols);
    const bool leader = r.rank == 0 && threadIdx.x == 0;
    const float labelled = leader ? p.labelled(r.row) : 0.0f;
    tl_copy_wait<0>();
    float m, spread = 0.0f;
    const float sum = tl_cluster_exponentials<true>(r, &m);
    if constexpr (Loss::SMOOTHS) {
        tl_cluster_wait();
        if (p.h.share > 0.0f) {
            const float log_s = tl_log(sum), *const v = r.array(0);
            spread = r.sum(1, [&](int slot, int column) { return p.weight(column) * (log_s - v[slot]); });
        }
        tl_cluster_arrive(); /* no block leaves before its lanes have been read */
    }
    if (leader) p.put(r.row, labelled, m, sum, spread);
    tl_cluster_wait();
#endif
}

template <class Loss, class Row>
__global__ void __launch_bounds__(Row::THREADS, Row::BLOCKS) grad_cluster(const entropy job)
{
#if __CUDA_ARCH__ >= 900
    Loss p = {job};
    const Row r(p.cols);
    r.request(0, p.x + r.row * p.cols);
    p.begin_grad(r.row);
    tl_copy_wait<0>();
    float m;
    const float s = tl_cluster_exponentials<false>(r, &m), reciprocal = 1.0f / s;
    const float *const v = r.array(0);
    float *const to = p.out + r.row * p.cols;
    r.elements([&](int slot, int column) { to[column] = p.grad(tl_quotient(v[slot], s, reciprocal), column); });
    tl_cluster_wait();
#endif
}

/* ---- long rows --------------------------------------------------------------------------------------------------- */

struct spread_term {
    entropy p;
    const float *maximum, *sum;
    float m, log_s;
    __device__ void row(int64_t r) { m = maximum[r], log_s = tl_log(sum[r]); }
    __device__ float at(int64_t i, int64_t column) const
    {
        return (p.weights ? p.weights[column] : 1.0f) * (log_s - (p.x[i] - m));
    }
};

/* A thread owns a row's loss. */
template <class Loss>
__global__ void __launch_bounds__(THREADS) long_losses(const entropy job, const float *__restrict__ maximum,
                                                       const float *__restrict__ sum, const float *__restrict__ spread)
{
    const Loss p = {job};
    const int64_t r = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (r < p.rows) p.put(r, p.labelled(r), maximum[r], sum[r], p.h.share > 0.0f ? spread[r] : 0.0f);
}

template <class Loss> struct grad_element {
    Loss p;
    const float *maximum, *sum;
    float m, s, reciprocal;
    __device__ void row(int64_t r)
    {
        p.begin_grad(r);
        m = maximum[r], s = sum[r];
        reciprocal = 1.0f / s;
    }
    __device__ float at(int64_t i, int64_t column) const
    {
        return p.grad(tl_quotient(tl_exp(p.x[i] - m), s, reciprocal), column);
    }
};

/* ---- the launches ------------------------------------------------------------------------------------------------ */

template <class Loss> int32_t run_losses(tl_context *ctx, const char *name, const entropy &p)
{
    if (tl_select_row(p.cols) == TL_ROW_TILE)
        return tl_pick_row(p.cols, [&](auto row) {
            using Row = typename decltype(row)::type;
            return tl_launch_rows<Row>(ctx, name, loss_rows<Loss, Row>, p.rows,
                                       (tl_row_bytes<Row, Row::ONE_SHARED>(p.cols)), p);
        });
    int32_t status;
    if (tl_select_row(p.cols) == TL_ROW_CLUSTER && tl_pick_cluster<1 + Loss::SMOOTHS>(p.cols, [&](auto row) {
            using Row = typename decltype(row)::type;
            return tl_launch_cluster<Row>(ctx, name, loss_cluster<Loss, Row>, p.rows, p.cols, &status, p);
        }))
        return status;
    tl_scratch<float> work(ctx);
    TL_TRY(work.allocate(3 * p.rows));
    float *const maximum = work, *const sum = maximum + p.rows, *const spread = sum + p.rows;
    TL_TRY(tl_long_row_exponentials(ctx, name, p.x, p.rows, p.cols, maximum, sum));
    if (p.h.share > 0.0f)
        TL_TRY(tl_long_row_sums(ctx, name, spread_term{p, maximum, sum, 0.0f, 0.0f}, p.rows, p.cols, 0, spread));
    return tl_launch(ctx, name, long_losses<Loss>, tl_grid(p.rows, THREADS), THREADS, p, maximum, sum, spread);
}

template <class Loss> int32_t run_grads(tl_context *ctx, const char *name, const entropy &p)
{
    if (tl_select_row(p.cols) == TL_ROW_TILE)
        return tl_pick_row(p.cols, [&](auto row) {
            using Row = typename decltype(row)::type;
            return tl_launch_rows<Row>(ctx, name, grad_rows<Loss, Row>, p.rows,
                                       (tl_row_bytes<Row, Row::ONE_SHARED>(p.cols)), p);
        });
    int32_t status;
    if (tl_select_row(p.cols) == TL_ROW_CLUSTER && tl_pick_cluster<1>(p.cols, [&](auto row) {
            using Row = typename decltype(row)::type;
            return tl_launch_cluster<Row>(ctx, name, grad_cluster<Loss, Row>, p.rows, p.cols, &status, p);
        }))
        return status;
    tl_scratch<float> work(ctx);
    TL_TRY(work.allocate(2 * p.rows));
    float *const maximum = work, *const sum = maximum + p.rows;
    TL_TRY(tl_long_row_exponentials(ctx, name, p.x, p.rows, p.cols, maximum, sum));
    return tl_long_row_map(ctx, name, grad_element<Loss>{{p}, maximum, sum, 0.0f, 0.0f, 0.0f}, p.rows, p.cols, p.out);
}

} // namespace

/* ---- the operations ---------------------------------------------------------------------------------------------- */

int32_t tl_cuda_mse_loss(tl_context *ctx, const float *yhat, const float *target, int64_t n, float *out)
{
    return pair_sum<squared_error>(ctx, "mse_loss", yhat, target, n, true, out);
}

int32_t tl_cuda_mse_loss_bwd(tl_context *ctx, const float *yhat, const float *target, const float *g, int64_t n,
                             float *gyhat, float *gtarget)
{
    return tl_launch_ahead(ctx, "mse_loss_bwd", pair_grad<squared_error>, tl_grid(n, 4 * THREADS), THREADS, 0, yhat,
                           target, g, n, n, gyhat, gtarget);
}

int32_t tl_cuda_bce_with_logits(tl_context *ctx, const float *x, const float *target, int64_t n, int64_t mean,
                                float *out)
{
    return pair_sum<binary_entropy>(ctx, "bce_with_logits", x, target, n, mean != 0, out);
}

int32_t tl_cuda_bce_with_logits_bwd(tl_context *ctx, const float *x, const float *target, const float *g, int64_t n,
                                    int64_t mean, float *gx, float *gtarget)
{
    return tl_launch_ahead(ctx, "bce_with_logits_bwd", pair_grad<binary_entropy>, tl_grid(n, 4 * THREADS), THREADS, 0,
                           x, target, g, n, mean ? n : (int64_t)1, gx, gtarget);
}

int32_t tl_cuda_cross_entropy(tl_context *ctx, const float *logits, const uint32_t *labels, int64_t rows, int64_t cols,
                              float *out)
{
    if (rows == 0) return tl_cuda_fill(tl_context_cuda(ctx), out, TL_NAN, 1);
    tl_scratch<uint32_t> staged(ctx);
    tl_scratch<float> losses(ctx);
    TL_TRY(staged.stage(labels, rows));
    TL_TRY(losses.allocate(rows));
    const entropy p = {logits, staged, nullptr, nullptr, nullptr, rows, cols, tl_smoothing_of(0.0f), losses};
    TL_TRY(run_losses<mean_loss>(ctx, "cross_entropy", p));
    return tl_cuda_row_sums(ctx, losses, 1, rows, -rows, out);
}

int32_t tl_cuda_cross_entropy_bwd(tl_context *ctx, const float *logits, const uint32_t *labels, const float *g,
                                  int64_t rows, int64_t cols, float *glogits)
{
    tl_scratch<uint32_t> staged(ctx);
    TL_TRY(staged.stage(labels, rows));
    const entropy p = {logits, staged, nullptr, nullptr, g, rows, cols, tl_smoothing_of(0.0f), glogits};
    return run_grads<mean_loss>(ctx, "cross_entropy_bwd", p);
}

int32_t tl_cuda_cross_entropy_rows(tl_context *ctx, const float *logits, const uint32_t *labels, const float *weights,
                                   int64_t rows, int64_t cols, float smoothing, float *out)
{
    if (cols == 0) return tl_cuda_fill(tl_context_cuda(ctx), out, 0.0f, rows); /* no label is a class */
    tl_scratch<uint32_t> staged(ctx);
    TL_TRY(staged.stage(labels, rows));
    const entropy p = {logits, staged, weights, nullptr, nullptr, rows, cols, tl_smoothing_of(smoothing), out};
    return run_losses<row_loss>(ctx, "cross_entropy_rows", p);
}

int32_t tl_cuda_cross_entropy_rows_bwd(tl_context *ctx, const float *logits, const uint32_t *labels,
                                       const float *weights, const float *g, int64_t rows, int64_t cols,
                                       float smoothing, float *glogits)
{
    tl_scratch<uint32_t> staged(ctx);
    tl_scratch<float> total(ctx);
    TL_TRY(staged.stage(labels, rows));
    TL_TRY(total.allocate(1));
    if (weights) TL_TRY(tl_cuda_row_sums(ctx, weights, 1, cols, 0, total));
    const entropy p = {logits, staged, weights, total, g, rows, cols, tl_smoothing_of(smoothing), glogits};
    return run_grads<row_loss>(ctx, "cross_entropy_rows_bwd", p);
}
