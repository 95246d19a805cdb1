/* Losses on CUDA, and their gradients.
 *
 * What is a sum over pairs of elements is one row of them, summed by leaves. Cross-entropy is a softmax whose result is one number
 * per row, and those are a row of their own; its gradient is a softmax with another last step. Both hold a row of
 * logits on chip as softmax does (device/row_tile.cuh, device/cluster_row.cuh) and read it once: 4 bytes per element forward, 8
 * backward. */
#include "cuda/device/row_exponentials.cuh"
#include "generated/loss.h"
#include "cuda/device/vector.cuh"

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

/* What a row has at its label; NaN for a label of an index buffer that is out of range, as nobody has looked at it. */
__device__ __forceinline__ float label_value(const float *row, uint32_t label, int64_t cols)
{
    return label < cols ? row[label] : TL_NAN;
}

template <class Row>
__global__ void __launch_bounds__(Row::THREADS, Row::BLOCKS)
    cross_entropy_rows(const float *__restrict__ x, const uint32_t *__restrict__ labels, int64_t rows, int64_t cols,
                       float *__restrict__ losses)
{
    const Row r(rows, cols);
    tl_held<Row, Row::ONE_SHARED> v;
    v.load(r, x + r.row * cols);
    const bool leader = r.n > 0 && r.leads();
    const float labelled = leader ? label_value(x + r.row * cols, labels[r.row], cols) : 0.0f;
    v.wait();
    float m;
    const float sum = tl_row_exponentials<false>(r, v, &m);
    if (leader) losses[r.row] = tl_cross_entropy_row(labelled, m, sum);
}

template <class Row>
__global__ void __launch_bounds__(Row::THREADS, Row::BLOCKS)
    cross_entropy_grad_rows(const float *__restrict__ x, const uint32_t *__restrict__ labels,
                            const float *__restrict__ g, int64_t rows, int64_t cols, float *__restrict__ gx)
{
    const Row r(rows, cols);
    tl_held<Row, Row::ONE_SHARED> v;
    v.load(r, x + r.row * cols);
    const int64_t label = r.n > 0 ? (int64_t)labels[r.row] : -1;
    const float c = tl_per_count(g[0], rows);
    v.wait();
    float m, w[Row::W];
    const float s = tl_row_exponentials<false>(r, v, &m), reciprocal = 1.0f / s;
#pragma unroll(decltype(v)::UNROLL)
    for (int k = 0; k < decltype(v)::pieces(r); k++) {
        v.get(k, w);
        TL_UNROLL_FOR (int j = 0; j < Row::W; j++)
            w[j] = tl_cross_entropy_grad(tl_quotient(w[j], s, reciprocal), r.column(k * Row::W + j) == label, c);
        r.store(gx + r.row * cols, k, w);
    }
}

template <class Row>
__global__ void __launch_bounds__(Row::THREADS, Row::BLOCKS)
    cross_entropy_cluster(const float *__restrict__ x, const uint32_t *__restrict__ labels, int64_t cols,
                          float *__restrict__ losses)
{
#if __CUDA_ARCH__ >= 900
    const Row r(cols);
    r.request(0, x + r.row * cols);
    const bool leader = r.rank == 0 && threadIdx.x == 0;
    const float labelled = leader ? label_value(x + r.row * cols, labels[r.row], cols) : 0.0f;
    tl_copy_wait<0>();
    float m;
    const float sum = tl_cluster_exponentials<false>(r, &m);
    if (leader) losses[r.row] = tl_cross_entropy_row(labelled, m, sum);
    tl_cluster_wait();
#endif
}

template <class Row>
__global__ void __launch_bounds__(Row::THREADS, Row::BLOCKS)
    cross_entropy_grad_cluster(const float *__restrict__ x, const uint32_t *__restrict__ labels,
                               const float *__restrict__ g, int64_t rows, int64_t cols, float *__restrict__ gx)
{
#if __CUDA_ARCH__ >= 900
    const Row r(cols);
    r.request(0, x + r.row * cols);
    const int label = (int)labels[r.row];
    const float c = tl_per_count(g[0], rows);
    tl_copy_wait<0>();
    float m;
    const float s = tl_cluster_exponentials<false>(r, &m), reciprocal = 1.0f / s;
    const float *const v = r.array(0);
    float *const to = gx + r.row * cols;
    r.elements([&](int slot, int column) {
        to[column] = tl_cross_entropy_grad(tl_quotient(v[slot], s, reciprocal), column == label, c);
    });
    tl_cluster_wait();
#endif
}

/* Long rows: a thread owns a row's loss. */
__global__ void __launch_bounds__(THREADS)
    long_losses(const float *__restrict__ x, const uint32_t *__restrict__ labels, const float *__restrict__ maximum,
                const float *__restrict__ sum, int64_t rows, int64_t cols, float *__restrict__ losses)
{
    const int64_t r = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (r < rows) losses[r] = tl_cross_entropy_row(label_value(x + r * cols, labels[r], cols), maximum[r], sum[r]);
}

struct grad_element {
    const float *x, *maximum, *sum, *g;
    const uint32_t *labels;
    int64_t rows, label;
    float m, s, reciprocal, c;
    __device__ void row(int64_t r)
    {
        m = maximum[r];
        s = sum[r];
        reciprocal = 1.0f / s;
        label = labels[r];
        c = tl_per_count(g[0], rows);
    }
    __device__ float at(int64_t i, int64_t column) const
    {
        return tl_cross_entropy_grad(tl_quotient(tl_exp(x[i] - m), s, reciprocal), column == label, c);
    }
};

/* losses: one per row, scaled; work: maximum and sum of each row, for long rows. */
int32_t row_losses(tl_context *ctx, const float *x, const uint32_t *labels, int64_t rows, int64_t cols, float *losses,
                   float *work)
{
    const char *const name = "cross_entropy";
    if (cols <= TL_ROW_FITS)
        return tl_pick_row(cols, [&](auto row) {
            using Row = typename decltype(row)::type;
            return tl_launch_rows<Row>(ctx, name, cross_entropy_rows<Row>, rows,
                                       (tl_row_bytes<Row, Row::ONE_SHARED>(cols)), x, labels, rows, cols, losses);
        });
    int32_t status;
    if (cols <= TL_CLUSTER_FITS && tl_pick_cluster<1>(cols, [&](auto row) {
            using Row = typename decltype(row)::type;
            return tl_launch_cluster<Row>(ctx, name, cross_entropy_cluster<Row>, rows, cols, &status, x, labels, cols,
                                          losses);
        }))
        return status;
    TL_TRY(tl_long_row_exponentials(ctx, name, x, rows, cols, work, work + rows));
    return tl_launch(ctx, name, long_losses, tl_grid(rows, THREADS), THREADS, x, labels, work, work + rows, rows, cols,
                     losses);
}

int32_t row_grads(tl_context *ctx, const float *x, const uint32_t *labels, const float *g, int64_t rows, int64_t cols,
                  float *gx, float *work)
{
    const char *const name = "cross_entropy_bwd";
    if (cols <= TL_ROW_FITS)
        return tl_pick_row(cols, [&](auto row) {
            using Row = typename decltype(row)::type;
            return tl_launch_rows<Row>(ctx, name, cross_entropy_grad_rows<Row>, rows,
                                       (tl_row_bytes<Row, Row::ONE_SHARED>(cols)), x, labels, g, rows, cols, gx);
        });
    int32_t status;
    if (cols <= TL_CLUSTER_FITS && tl_pick_cluster<1>(cols, [&](auto row) {
            using Row = typename decltype(row)::type;
            return tl_launch_cluster<Row>(ctx, name, cross_entropy_grad_cluster<Row>, rows, cols, &status, x, labels, g,
                                          rows, cols, gx);
        }))
        return status;
    TL_TRY(tl_long_row_exponentials(ctx, name, x, rows, cols, work, work + rows));
    const grad_element element = {x, work, work + rows, g, labels, rows, 0, 0.0f, 0.0f, 0.0f, 0.0f};
    return tl_long_row_map(ctx, name, element, rows, cols, gx);
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
    TL_TRY(losses.allocate(3 * rows));
    TL_TRY(row_losses(ctx, logits, staged, rows, cols, losses, losses + rows));
    return tl_cuda_row_sums(ctx, losses, 1, rows, -rows, out);
}

int32_t tl_cuda_cross_entropy_bwd(tl_context *ctx, const float *logits, const uint32_t *labels, const float *g,
                                  int64_t rows, int64_t cols, float *glogits)
{
    tl_scratch<uint32_t> staged(ctx);
    tl_scratch<float> work(ctx);
    TL_TRY(staged.stage(labels, rows));
    TL_TRY(work.allocate(2 * rows));
    return row_grads(ctx, logits, staged, g, rows, cols, glogits, work);
}
