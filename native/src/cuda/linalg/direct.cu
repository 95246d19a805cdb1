/* Matrix products of few terms and few results on CUDA: bound by a launch and by the latency of one load.
 *
 * A thread owns one result, and neighbouring threads neighbouring columns. It reads its row of A and its column of B where they lie,
 * whatever their strides, and waits once, for all of them. Rows that lie along k are read in as many sectors as lanes; so few
 * threads a multiprocessor as MAX_RESULTS leaves wait for these no longer than for memory.
 *
 * Each sum is one chain of fused multiply-adds in float64 in increasing k, that of formula/chain.h, whose segments are longer; the bias
 * joins in float64. Terms from n on are zeros, and a chain that began with +0 keeps its value. */
#include "cuda/device/division.cuh"
#include "cuda/linalg/linalg.cuh"

namespace {

constexpr int THREADS = 64, MAX_TERMS = 16;
constexpr int64_t MAX_RESULTS = 512; /* per multiprocessor */

struct DirectArgs {
    const float *A, *B, *bias;
    float *C;
    int64_t a_batch, b_batch;
    uint32_t a_row, a_column, b_row, b_column;
    tl_fastdiv rows, columns;
    uint32_t total, terms;
    tl_order order;
};

template <int TERMS>
__global__ void __launch_bounds__(THREADS, MAX_RESULTS / THREADS) direct_kernel(const __grid_constant__ DirectArgs args)
{
    const uint32_t cell = blockIdx.x * THREADS + threadIdx.x;
    tl_wait_for_earlier(args.order);
    if (cell < args.total) {
        uint32_t row, column;
        const int64_t product = args.rows.divmod(args.columns.divmod(cell, &column), &row);
        const float *const a = args.A + product * args.a_batch + (uint64_t)row * args.a_row;
        const float *const b = args.B + product * args.b_batch + (uint64_t)column * args.b_column;
        float x[TERMS], y[TERMS];
        /* without branches, behind which a load would wait for the one before */
        TL_UNROLL_FOR (int k = 0; k < TERMS; k++) {
            const uint32_t near = min((uint32_t)k, args.terms - 1);
            x[k] = a[(uint64_t)near * args.a_column], y[k] = b[(uint64_t)near * args.b_row];
        }
        const double bias = args.bias ? (double)args.bias[column] : 0.0;
        double sum = 0.0;
        TL_UNROLL_FOR (int k = 0; k < TERMS; k++)
            sum = k < args.terms ? fma((double)x[k], (double)y[k], sum) : sum;
        args.C[cell] = (float)(args.bias ? sum + bias : sum);
    }
    tl_wait_at_end(args.order);
}

} /* namespace */

bool tl_is_direct(tl_context *ctx, const tl_matrix_product &x)
{
    const int64_t results = MAX_RESULTS * tl_cuda_sms(ctx);
    return x.n <= MAX_TERMS && x.batch <= results && x.m <= results && x.p <= results && x.m * x.p <= results &&
           x.batch * (x.m * x.p) <= results;
}

int32_t tl_direct_multiply(tl_context *ctx, const tl_matrix_product &x)
{
    const tl_product_strides s = x.layout();
    const int64_t total = x.batch * x.m * x.p;
    DirectArgs args = {x.A, x.B, x.bias, x.C};
    args.a_batch = s.a_batch, args.b_batch = s.b_batch;
    args.a_row = x.ta ? 1 : (uint32_t)s.lda, args.a_column = x.ta ? (uint32_t)s.lda : 1;
    args.b_row = x.tb ? 1 : (uint32_t)s.ldb, args.b_column = x.tb ? (uint32_t)s.ldb : 1;
    args.rows = tl_fastdiv((uint64_t)x.m), args.columns = tl_fastdiv((uint64_t)x.p);
    args.total = (uint32_t)total, args.terms = (uint32_t)x.n;
    args.order = x.order;
    const auto kernel = x.n <= 4 ? direct_kernel<4> : direct_kernel<MAX_TERMS>;
    return tl_launch_ahead(ctx, "direct_product", kernel, tl_grid(total, THREADS), THREADS, 0, args);
}
