/* Matrix products on CUDA: what linalg/linalg.cu, linalg/mma.cu and linalg/wgmma.cu share. */
#pragma once

#include "cuda/runtime/launch.cuh"

/* C[batch, m, p] = op(A)·op(B) + bias, row-major and contiguous. With ta, A is stored (n, m) and read transposed; with
 * tb, B is stored (p, n). bias is NULL or p elements, added to every row. */
struct tl_matrix_product {
    int64_t batch, m, n, p;
    const float *A;
    bool ta;
    const float *B;
    bool tb;
    const float *bias;
    float *C;
};

/* Whether linalg/mma.cu serves a product, and better than cuBLAS. */
bool tl_split_serves(tl_context *ctx, const tl_matrix_product &x);
int32_t tl_split_multiply(tl_context *ctx, const tl_matrix_product &x);

/* Whether linalg/wgmma.cu serves a product, and better than either. */
bool tl_wgmma_serves(tl_context *ctx, const tl_matrix_product &x);
int32_t tl_wgmma_multiply(tl_context *ctx, const tl_matrix_product &x);
