/* Matrix products on the CPU: strides for the packed products of gemm.h and, in reproducible contexts, chain.h, which fix
 * the order of every sum. A transposed factor is read through swapped strides. */
#include "core/threads.h"
#include "cpu/linalg/chain.h"
#include "cpu/sum_tree.h"
#include "generated/linalg.h"

/* C[batch, m, p] = op(A)·op(B) for contiguous row-major arrays. With ta, A is stored (n, m) and read transposed; with
 * tb, B is stored (p, n). */
static tl_gemm_args product(int64_t batch, int64_t m, int64_t n, int64_t p, int ta, int tb)
{
    tl_gemm_args g = {.batch = batch, .m = m, .n = n, .p = p, .rsc = p, .csc = 1, .bias_columns = 1};
    g.sa = m * n, g.sb = n * p, g.sc = m * p;
    g.rsa = ta ? 1 : n, g.csa = ta ? m : 1, g.rsb = tb ? 1 : p, g.csb = tb ? n : 1;
    return g;
}

static int32_t multiply(tl_context *ctx, tl_gemm_args args, const float *A, const float *B, float *C)
{
    return tl_is_reproducible(ctx) ? tl_chain_strided(ctx, &args, A, B, C, 0) : tl_gemm_f32(ctx, &args, A, B, C);
}

int32_t tl_cpu_matmul(tl_context *ctx, const float *A, const float *B, int64_t m, int64_t n, int64_t p, float *out)
{
    return multiply(ctx, product(1, m, n, p, 0, 0), A, B, out);
}

int32_t tl_cpu_matmul_bwd(tl_context *ctx, const float *A, const float *B, const float *g, int64_t m, int64_t n,
                          int64_t p, float *gA, float *gB)
{
    return tl_cpu_bmm_bwd(ctx, A, B, g, 1, m, n, p, gA, gB);
}

int32_t tl_cpu_bmm(tl_context *ctx, const float *A, const float *B, int64_t batch, int64_t m, int64_t n, int64_t p,
                   float *out)
{
    return multiply(ctx, product(batch, m, n, p, 0, 0), A, B, out);
}

int32_t tl_cpu_bmm_bwd(tl_context *ctx, const float *A, const float *B, const float *g, int64_t batch, int64_t m,
                       int64_t n, int64_t p, float *gA, float *gB)
{
    int32_t status = TORCHLEAN_OK;
    if (gA) /* g (m, p) · Bᵀ (p, n) */
        status = multiply(ctx, product(batch, m, p, n, 0, 1), g, B, gA);
    if (gB && !status) /* Aᵀ (n, m) · g (m, p) */
        status = multiply(ctx, product(batch, n, m, p, 1, 0), A, g, gB);
    return status;
}

/* Strides along an axis of length 1 are whatever the caller has; where an operand needs a stride of 1, it is that one. */
int32_t tl_cpu_bmm_strided(tl_context *ctx, const float *A, const float *B, const float *bias, TL_UNUSED int64_t a_size,
                           TL_UNUSED int64_t b_size, int64_t batch, int64_t m, int64_t p, int64_t n, int64_t a_batch,
                           int64_t a_row, int64_t a_col, int64_t b_batch, int64_t b_row, int64_t b_col, float *out)
{
    tl_gemm_args args = product(batch, m, n, p, 0, 0);
    args.sa = a_batch, args.rsa = m == 1 && a_col != 1 ? 1 : a_row, args.csa = n == 1 ? 1 : a_col;
    args.sb = b_batch, args.csb = p == 1 && b_row != 1 ? 1 : b_col, args.rsb = n == 1 ? 1 : b_row;
    args.bias = bias;
    return multiply(ctx, args, A, B, out);
}

int32_t tl_cpu_linear(tl_context *ctx, const float *W, const float *x, const float *b, int64_t outputs, int64_t inputs,
                      int64_t batch, float *y)
{
    tl_gemm_args args = product(1, batch, inputs, outputs, 0, 1);
    args.bias = b;
    return multiply(ctx, args, x, W, y);
}

int32_t tl_cpu_linear_bwd(tl_context *ctx, const float *W, const float *x, const float *g, int64_t outputs,
                          int64_t inputs, int64_t batch, float *gW, float *gx, float *gb)
{
    int32_t status = TORCHLEAN_OK;
    if (gW) /* gᵀ (outputs, batch) · x (batch, inputs) */
        status = multiply(ctx, product(1, outputs, batch, inputs, 1, 0), g, x, gW);
    if (gx && !status) /* g (batch, outputs) · W (outputs, inputs) */
        status = multiply(ctx, product(1, batch, outputs, inputs, 0, 0), g, W, gx);
    if (gb && outputs > 0 && !status) status = tl_column_sums(ctx, g, 1, batch, outputs, 0, gb);
    return status;
}

int32_t tl_cpu_dgemm(tl_context *ctx, const double *A, const double *B, int64_t m, int64_t n, int64_t p, double *out)
{
    tl_gemm_args args = product(1, m, n, p, 0, 0);
    return tl_chain_strided(ctx, &args, A, B, out, 1);
}
