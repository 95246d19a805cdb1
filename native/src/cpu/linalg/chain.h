/* The reproducible matrix product of the CPU path (formula/chain.h): the value of an element follows from its row, its column
 * and the number of terms alone.
 *     s_q = fma(A[i,k], B[k,j], ... fma(A[i,k0], B[k0,j], +0))    in float64, over the k of segment q, in increasing order
 *     C   = ((s_0 + s_1) + s_2) + ... + bias[j]                   in float64, rounded once to the type of C */
#pragma once

#include "cpu/linalg/gemm.h"

#define tl_chain_f32 TL_V(tl_chain_f32)
#define tl_chain_f64 TL_V(tl_chain_f64)

/* The product of gemm.h's arguments: 0, or the status of tl_pool_alloc. */
int32_t tl_chain_f32(tl_context *ctx, const tl_gemm_args *g, const float *A, const float *B, float *C);
int32_t tl_chain_f64(tl_context *ctx, const tl_gemm_args *g, const double *A, const double *B, double *C);
