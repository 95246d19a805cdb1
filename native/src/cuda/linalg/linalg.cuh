/* Matrix products on CUDA: what linalg/linalg.cu, linalg/mma.cu and linalg/wgmma.cu share. */
#pragma once

#include "cuda/device/vector.cuh"
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

/* What both forms on tensor cores ask of a product: rows that are whole and aligned 16 bytes, at most one factor transposed,
 * and n from where 7.5·√n·u, the bound of a sum of n terms, covers the error of split sums (linalg/mma.cu). */
static inline bool tl_fits_tensor_cores(const tl_matrix_product &x)
{
    return x.p % 4 == 0 && (x.ta ? x.m : x.n) % 4 == 0 && (!x.tb || x.n % 4 == 0) && tl_aligned4(x.A) &&
           tl_aligned4(x.B) && tl_aligned4(x.C) && x.n >= 64 && x.n < (int64_t)1 << 30 && !(x.ta && x.tb);
}

/* Whether linalg/mma.cu serves a product, and better than cuBLAS. */
bool tl_split_serves(tl_context *ctx, const tl_matrix_product &x);
int32_t tl_split_multiply(tl_context *ctx, const tl_matrix_product &x);

/* Whether linalg/wgmma.cu serves a product, and better than either. */
bool tl_wgmma_serves(tl_context *ctx, const tl_matrix_product &x);
int32_t tl_wgmma_multiply(tl_context *ctx, const tl_matrix_product &x);
