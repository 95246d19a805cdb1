/* Matrix products by wgmma (linalg/wgmma.cuh): the launch. Operands whose rows are no whole 16 bytes are copied to rows that are. */
#include "cuda/linalg/linalg.cuh"
#include "cuda/linalg/wgmma.cuh"

namespace {

template <int BN, bool TA, bool TB> int32_t launch(tl_context *ctx, const tl_wgmma_matmul_args &args)
{
    constexpr int bytes = tl_linalg_wgmma::ProductTile<BN>::BYTES;
    return tl_launch_dynamic(ctx, "wgmma_product", tl_wgmma_matmul_kernel<BN, TA, TB>,
                             tl_grid(args.tiles, 1, tl_cuda_sms(ctx)), tl_wgmma::THREADS, bytes, args);
}

template <int BN> int32_t launch(tl_context *ctx, const tl_matrix_product &x, const tl_product_strides &s)
{
    const uint32_t rows = (uint32_t)tl_ceil_div(x.m, TL_WGMMA_ROWS), columns = (uint32_t)tl_ceil_div(x.p, BN);
    const bool pairs = x.p % 2 == 0 && tl_aligned4(x.C);
    const tl_wgmma_matmul_args args = {
        x.A,   x.B,   x.bias,    x.C,       x.m,  x.n,     x.p,
        s.lda, s.ldb, s.a_batch, s.b_batch, rows, columns, (uint32_t)x.batch * rows * columns,
        pairs};
    return x.ta   ? launch<BN, true, false>(ctx, args)
           : x.tb ? launch<BN, false, true>(ctx, args)
                  : launch<BN, false, false>(ctx, args);
}

/* A thread owns four of the copy's vectors, THREADS apart: `vectors` in a row, whose end is 0. Rows of a product lie `stride` apart, and
 * those of the next one `batch_stride` further on. */
constexpr int THREADS = 256;
__global__ void __launch_bounds__(THREADS)
    pad_rows_kernel(const float *__restrict__ from, int64_t length, int64_t stride, int64_t batch_stride,
                    float4 *__restrict__ to, tl_fastdiv vectors, tl_fastdiv rows, int64_t total)
{
    const int64_t first = (int64_t)blockIdx.x * (4 * THREADS) + threadIdx.x;
    float v[4][4];
    TL_UNROLL_FOR (int u = 0; u < 4; u++) {
        const int64_t t = first + u * THREADS;
        uint32_t vector, row;
        const int64_t product = rows.divmod(vectors.divmod((uint32_t)(t < total ? t : 0), &vector), &row);
        const float *const at = from + product * batch_stride + row * stride;
        TL_UNROLL_FOR (int e = 0; e < 4; e++) {
            const int64_t k = (int64_t)vector * 4 + e;
            v[u][e] = t < total && k < length ? at[k] : 0.0f;
        }
    }
    TL_UNROLL_FOR (int u = 0; u < 4; u++) {
        const int64_t t = first + u * THREADS;
        if (t < total) to[t] = make_float4(v[u][0], v[u][1], v[u][2], v[u][3]);
    }
}

/* Copies an operand of `rows` rows of `length` elements in each product, which lie as the strides say; those become the copy's. */
int32_t pad_rows(tl_context *ctx, int64_t batch, int64_t rows, int64_t length, const float **array, int64_t *stride,
                 int64_t *batch_stride, tl_scratch<float> &scratch)
{
    const int64_t vectors = tl_ceil_div(length, 4), total = batch * rows * vectors;
    TL_TRY(scratch.allocate(4 * total));
    TL_TRY(tl_launch(ctx, "pad_rows", pad_rows_kernel, tl_grid(total, 4 * THREADS), THREADS, *array, length, *stride,
                     *batch_stride, reinterpret_cast<float4 *>((float *)scratch), tl_fastdiv((uint64_t)vectors),
                     tl_fastdiv((uint64_t)rows), total));
    *array = scratch, *stride = 4 * vectors, *batch_stride = 4 * rows * vectors;
    return TORCHLEAN_OK;
}

template <int BN, bool TA, bool TB> bool prepare()
{
    return tl_wgmma_prepare(tl_wgmma_matmul_kernel<BN, TA, TB>, tl_linalg_wgmma::ProductTile<BN>::BYTES);
}
template <int BN> bool prepare()
{
    return prepare<BN, false, false>() && prepare<BN, false, true>() && prepare<BN, true, false>();
}

} /* namespace */

bool tl_wgmma_product_runs(tl_context *ctx)
{
    return tl_wgmma_runs(ctx, [] { return prepare<TL_WGMMA_WIDE>() && prepare<TL_WGMMA_NARROW>(); });
}

int32_t tl_wgmma_multiply(tl_context *ctx, const tl_matrix_product &x)
{
    tl_scratch<float> a_copy(ctx), b_copy(ctx);
    tl_matrix_product y = x;
    tl_product_strides s = x.layout();
    const tl_product_shape shape = x.shape();
    if (!shape.a_whole)
        TL_TRY(pad_rows(ctx, x.batch, x.ta ? x.n : x.m, x.ta ? x.m : x.n, &y.A, &s.lda, &s.a_batch, a_copy));
    if (!shape.b_whole)
        TL_TRY(pad_rows(ctx, x.batch, x.tb ? x.p : x.n, x.tb ? x.n : x.p, &y.B, &s.ldb, &s.b_batch, b_copy));
    return tl_choose_wgmma_columns(shape, tl_cuda_sms(ctx)) == TL_WGMMA_WIDE ? launch<TL_WGMMA_WIDE>(ctx, y, s)
                                                                             : launch<TL_WGMMA_NARROW>(ctx, y, s);
}
