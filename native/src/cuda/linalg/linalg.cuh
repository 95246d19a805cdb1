/* Matrix products on CUDA: what the files of linalg share. */
#pragma once

#include "cuda/device/vector.cuh"
#include "cuda/linalg/select.h"
#include "cuda/runtime/launch.cuh"

/* How far apart the rows of a product's factors lie in memory, and the factors of one product and the next, in elements. */
struct tl_product_strides {
    int64_t lda, ldb, a_batch, b_batch;
};

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
    const tl_product_strides *strides = nullptr; /* NULL: A and B are contiguous, as mma.cu and gemv.cu need them */
    tl_order order = TL_AFTER;                   /* of chain.cu, thin.cu and gemv.cu alone */

    tl_product_strides layout() const
    {
        return strides ? *strides : tl_product_strides{ta ? m : n, tb ? n : p, m * n, n * p};
    }
    tl_product_shape shape() const
    {
        const tl_product_strides s = layout();
        const int64_t a_row = ta ? m : n, b_row = tb ? n : p;
        return {batch,
                m,
                n,
                p,
                ta,
                tb,
                bias != nullptr,
                strides == nullptr,
                s.lda < a_row || s.ldb < b_row,
                (a_row | s.lda | s.a_batch) % 4 == 0 && tl_aligned4(A),
                (b_row | s.ldb | s.b_batch) % 4 == 0 && tl_aligned4(B),
                p % 4 == 0 && tl_aligned4(C)};
    }
};

/* The algorithms of select.h. */
int32_t tl_wgmma_multiply(tl_context *ctx,
                          const tl_matrix_product &x); /* copies operands without whole rows to scratch */
int32_t tl_mma_multiply(tl_context *ctx, const tl_matrix_product &x);
int32_t tl_gemv_multiply(tl_context *ctx, const tl_matrix_product &x);
int32_t tl_direct_multiply(tl_context *ctx, const tl_matrix_product &x); /* these two: with the sums of chain.cu */
int32_t tl_thin_multiply(tl_context *ctx, const tl_matrix_product &x);

/* Whether the context's device runs the kernels of wgmma.cu. */
bool tl_wgmma_product_runs(tl_context *ctx);
