/* The reproducible matrix product on CUDA (linalg/chain.cu). */
#pragma once

#include "cuda/device/chain.cuh"
#include "cuda/linalg/linalg.cuh"

/* C[batch, m, p] = op(A)·op(B) + bias, as tl_matrix_product (linalg/linalg.cuh) of either type; n > 0, not both of ta and tb with
 * a bias (of double none), and a result that is not empty. */
template <class Real> struct tl_chain_product {
    int64_t batch, m, n, p;
    const Real *A;
    bool ta;
    const Real *B;
    bool tb;
    const Real *bias;
    Real *C;
    tl_product_strides strides;
    int64_t length = 0; /* of a segment, or TL_CHAIN_FREE (tl_chain_sizes) */
    tl_order order = TL_AFTER;
};

int32_t tl_chain_multiply(tl_context *ctx, const tl_chain_product<float> &x);
int32_t tl_chain_multiply(tl_context *ctx, const tl_chain_product<double> &x);
