/* Matrix products on CUDA, float32 in and out: what linalg/select.h chooses, and cuBLAS in float32, never TF32.
 *
 * cuBLAS is column-major. A row-major array is its own transpose there, so C = op(A)·op(B) is asked for as Cᵀ = op(B)ᵀ·op(A)ᵀ
 * with the factors exchanged and the arrays as they lie; nothing is transposed in memory. The order of the sums is then cuBLAS'
 * choice: fixed for a shape, a device and a library version, and not the CPU path's. */
#include "cuda/device/sum_tree.cuh"
#include "cuda/linalg/chain.cuh"
#include "cuda/linalg/linalg.cuh"
#include "formula/chain.h"
#include "generated/linalg.h"
#include "generated/shape.h"

namespace {

/* C[m, p] = A·B by DGEMM in cuBLAS' default mode, in which it may use the tensor cores' float64 (IEEE arithmetic like the other
 * units'). */
cublasStatus_t dgemm(cublasHandle_t blas, int64_t m, int64_t n, int64_t p, const double *A, const double *B, double *C)
{
    cublasMath_t mode;
    cublasStatus_t status = cublasGetMathMode(blas, &mode);
    if (status == CUBLAS_STATUS_SUCCESS) status = cublasSetMathMode(blas, CUBLAS_DEFAULT_MATH);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    const double one = 1.0, zero = 0.0;
    status = cublasDgemm_64(blas, CUBLAS_OP_N, CUBLAS_OP_N, p, m, n, &one, B, p, A, n, &zero, C, p);
    const cublasStatus_t restored = cublasSetMathMode(blas, mode);
    return status == CUBLAS_STATUS_SUCCESS ? restored : status;
}

/* The bias as every row of the result. */
int32_t write_bias(tl_context *ctx, const tl_matrix_product &x)
{
    const tl_dims row = {1, {x.p}}, result = {2, {x.batch * x.m, x.p}}, map = {2, {0, 1}};
    return tl_cuda_broadcast_to(ctx, x.bias, &row, &result, &map, x.C);
}

int32_t multiply_cublas(tl_context *ctx, const tl_matrix_product &x)
{
    int32_t status;
    cublasHandle_t blas = tl_cuda_blas(ctx, &status);
    if (!blas) return status;
    const float one = 1.0f, beta = x.bias ? 1.0f : 0.0f;
    const cublasOperation_t a = x.ta ? CUBLAS_OP_T : CUBLAS_OP_N, b = x.tb ? CUBLAS_OP_T : CUBLAS_OP_N;
    const tl_product_strides s = x.layout();
    if (x.bias) /* beta = 1 adds it in the rounding of the last step */
        TL_TRY(write_bias(ctx, x));
    if (x.batch == 1)
        TL_CUBLAS_TRY(ctx, cublasSgemm_64(blas, b, a, x.p, x.m, x.n, &one, x.B, s.ldb, x.A, s.lda, &beta, x.C, x.p));
    else
        TL_CUBLAS_TRY(ctx, cublasSgemmStridedBatched_64(blas, b, a, x.p, x.m, x.n, &one, x.B, s.ldb, s.b_batch, x.A,
                                                        s.lda, s.a_batch, &beta, x.C, x.p, x.m * x.p, x.batch));
    return TORCHLEAN_OK;
}

int32_t multiply_chains(tl_context *ctx, const tl_matrix_product &x)
{
    static_assert(TL_CHAIN_FEW_ROWS == tl_chain_few_rows::BM, "select.h");
    const int64_t length = tl_is_reproducible(ctx) ? 0
                                                   : tl_choose_segment(x.shape(), tl_cuda_sms(ctx),
                                                                       tl_chain_few_rows::BN, tl_chain_segment(x.n));
    return tl_chain_multiply(ctx, tl_chain_product<float>{x.batch, x.m, x.n, x.p, x.A, x.ta, x.B, x.tb, x.bias, x.C,
                                                          x.layout(), length, x.order});
}

int32_t multiply(tl_context *ctx, tl_matrix_product x)
{
    if (!x.strides && (x.m == 1 || x.n == 1)) x.ta = false; /* one row lies as one column does */
    if (!x.strides && (x.n == 1 || x.p == 1)) x.tb = false;
    if (x.batch == 0 || x.m == 0 || x.p == 0) return TORCHLEAN_OK;
    if (x.n == 0) {
        if (x.bias) return write_bias(ctx, x);
        return tl_cuda_fill(tl_context_cuda(ctx), x.C, 0.0f, x.batch * x.m * x.p);
    }
    const bool reproducible = tl_is_reproducible(ctx);
    const tl_product_shape shape = x.shape();
    const int sms = tl_cuda_sms(ctx);
    const bool wgmma = !reproducible && tl_prefer_wgmma(shape, sms) &&
                       tl_wgmma_product_runs(ctx); /* loads its kernels */
    const tl_product_device device = {sms, wgmma, tl_cuda_double_is_fast(ctx) != 0, tl_cuda_chains_are_fast(ctx) != 0};
    switch (tl_select_product(shape, device, reproducible)) {
    case TL_PRODUCT_WGMMA: return tl_wgmma_multiply(ctx, x);
    case TL_PRODUCT_MMA: return tl_mma_multiply(ctx, x);
    case TL_PRODUCT_GEMV: return tl_gemv_multiply(ctx, x);
    case TL_PRODUCT_DIRECT: return tl_direct_multiply(ctx, x);
    case TL_PRODUCT_THIN: return tl_thin_multiply(ctx, x);
    case TL_PRODUCT_CHAIN: return multiply_chains(ctx, x);
    default: return multiply_cublas(ctx, x);
    }
}

} /* namespace */

/* ---- the operations ---------------------------------------------------------------------------------------------- */

extern "C" int32_t tl_cuda_matmul(tl_context *ctx, const float *A, const float *B, int64_t m, int64_t n, int64_t p,
                                  float *out)
{
    return multiply(ctx, tl_matrix_product{1, m, n, p, A, false, B, false, nullptr, out});
}

extern "C" int32_t tl_cuda_matmul_bwd(tl_context *ctx, const float *A, const float *B, const float *g, int64_t m,
                                      int64_t n, int64_t p, float *gA, float *gB)
{
    return tl_cuda_bmm_bwd(ctx, A, B, g, 1, m, n, p, gA, gB);
}

extern "C" int32_t tl_cuda_bmm(tl_context *ctx, const float *A, const float *B, int64_t batch, int64_t m, int64_t n,
                               int64_t p, float *out)
{
    return multiply(ctx, tl_matrix_product{batch, m, n, p, A, false, B, false, nullptr, out});
}

extern "C" int32_t tl_cuda_bmm_bwd(tl_context *ctx, const float *A, const float *B, const float *g, int64_t batch,
                                   int64_t m, int64_t n, int64_t p, float *gA, float *gB)
{
    if (gA) /* g (m, p) · Bᵀ (p, n) */
        TL_TRY(multiply(ctx, tl_matrix_product{batch, m, p, n, g, false, B, true, nullptr, gA}));
    if (gB) /* Aᵀ (n, m) · g (m, p) */
        TL_TRY(multiply(ctx, tl_matrix_product{batch, n, m, p, A, true, g, false, nullptr, gB}));
    return TORCHLEAN_OK;
}

/* Products of one B whose rows of A are equally far apart are one product, and one whose factors are contiguous is like any. What
 * lies between rows or products of which there is one is what it would be in contiguous factors. */
extern "C" int32_t tl_cuda_bmm_strided(tl_context *ctx, const float *A, const float *B, const float *bias,
                                       int64_t a_size, int64_t b_size, int64_t batch, int64_t m, int64_t p, int64_t n,
                                       int64_t a_batch, int64_t a_row, int64_t a_col, int64_t b_batch, int64_t b_row,
                                       int64_t b_col, float *out)
{
    (void)a_size, (void)b_size;
    if (m == 1 && (n == 1 || a_col == 1)) a_row = a_batch;
    if (b_batch == 0 && a_batch == m * a_row) m *= batch, batch = 1;
    const bool ta = n > 1 && a_col != 1, tb = p > 1 && b_col != 1;
    tl_matrix_product x = {batch, m, n, p, A, ta, B, tb, bias, out};
    const tl_product_strides dense = x.layout();
    tl_product_strides s = dense;
    if ((ta ? n : m) > 1) s.lda = ta ? a_col : a_row;
    if ((tb ? p : n) > 1) s.ldb = tb ? b_col : b_row;
    if (batch > 1) s.a_batch = a_batch, s.b_batch = b_batch;
    const bool contiguous = s.lda == dense.lda && s.ldb == dense.ldb && s.a_batch == dense.a_batch &&
                            s.b_batch == dense.b_batch;
    if (!contiguous) x.strides = &s;
    return multiply(ctx, x);
}

extern "C" int32_t tl_cuda_linear(tl_context *ctx, const float *W, const float *x, const float *b, int64_t outputs,
                                  int64_t inputs, int64_t batch, float *y)
{
    return multiply(ctx, tl_matrix_product{1, batch, inputs, outputs, x, false, W, true, b, y});
}

extern "C" int32_t tl_cuda_linear_bwd(tl_context *ctx, const float *W, const float *x, const float *g, int64_t outputs,
                                      int64_t inputs, int64_t batch, float *gW, float *gx, float *gb)
{
    /* None of the three reads what another writes. But a product without elements is not launched, and one without terms is a fill,
     * which does not wait for what came before it: nothing is beside these. */
    tl_order order = TL_FIRST;
    if (gW) { /* gᵀ (outputs, batch) · x (batch, inputs) */
        TL_TRY(multiply(ctx,
                        tl_matrix_product{1, outputs, batch, inputs, g, true, x, false, nullptr, gW, nullptr, order}));
        if (outputs * inputs * batch > 0) order = TL_BESIDE;
    }
    if (gx) { /* g (batch, outputs) · W (outputs, inputs) */
        TL_TRY(multiply(ctx,
                        tl_matrix_product{1, batch, outputs, inputs, g, false, W, false, nullptr, gx, nullptr, order}));
        if (batch * inputs * outputs > 0) order = TL_BESIDE;
    }
    if (gb && outputs > 0) TL_TRY(tl_cuda_column_sums(ctx, g, 1, batch, outputs, 0, gb, order));
    return TORCHLEAN_OK;
}

extern "C" int32_t tl_cuda_dgemm(tl_context *ctx, const double *A, const double *B, int64_t m, int64_t n, int64_t p,
                                 double *out)
{
    const int64_t a = tl_ceil_div(m * n, 32) * 32, b = tl_ceil_div(n * p, 32) * 32; /* 256-byte alignment for each */
    if (m == 0 || p == 0) return TORCHLEAN_OK;
    if (n == 0) {
        for (int64_t i = 0; i < m * p; i++)
            out[i] = 0.0;
        return TORCHLEAN_OK;
    }
    struct tl_cuda_state *state = tl_context_cuda(ctx);
    tl_scratch<double> factors(ctx);
    TL_TRY(factors.allocate(a + b + m * p));
    double *const product = factors + a + b;
    TL_TRY(tl_cuda_upload(state, factors, A, (size_t)(m * n) * sizeof *A));
    TL_TRY(tl_cuda_upload(state, factors + a, B, (size_t)(n * p) * sizeof *B));
    if (tl_is_reproducible(ctx)) {
        TL_TRY(tl_chain_multiply(
            ctx, tl_chain_product<double>{1, m, n, p, factors, false, factors + a, false, nullptr, product, {n, p}}));
    } else {
        int32_t status;
        cublasHandle_t blas = tl_cuda_blas(ctx, &status);
        if (!blas) return status;
        TL_CUBLAS_TRY(ctx, dgemm(blas, m, n, p, factors, factors + a, product));
    }
    return tl_cuda_download(state, out, product, (size_t)(m * p) * sizeof *out);
}
