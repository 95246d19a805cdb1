/* Reproducible sums of products on the CPU (formula/chain.h): the value of an element follows from its row, its column and
 * the number of terms alone.
 *     s_q = fma(A[i,k], B[k,j], ... fma(A[i,k0], B[k0,j], +0))    in float64, over the k of segment q, in increasing order
 *     C   = ((s_0 + s_1) + s_2) + ...                             in float64; then the bias, and one rounding
 * The product of two float32 is exact in float64. */
#pragma once

#include "cpu/linalg/gemm.h"

/* Lanes of a vector of float64, and columns of a strip. */
enum { TL_CHAIN_LANES = TL_GEMM_LANES / 2, TL_CHAIN_STRIP = 2 * TL_CHAIN_LANES };
/* Rows of A that are multiplied at a time by what is not packed. */
enum { TL_CHAIN_DIRECT = 4 };

/* `batch` products C (m, p) = A (m, n)·B (n, p), of which the functions know where the elements are. */
typedef struct tl_chain {
    int64_t batch, m, n, p;
    const void *data; /* of the functions */
    /* dst[k*h + r] = A[row + r, k0 + k] of product q, for r < h and k < kc <= TL_GEMM_KC. */
    void (*pack_rows)(const struct tl_chain *x, double *dst, int64_t q, int64_t row, int64_t h, int64_t k0, int64_t kc);
    /* dst[k*width + c] = B[k0 + k, column + c] for c < w <= width <= TL_CHAIN_STRIP, 0 for the other c. */
    void (*pack_columns)(const struct tl_chain *x, double *dst, int64_t width, int64_t q, int64_t column, int64_t w,
                         int64_t k0, int64_t kc);
    /* Ends the sums of C[row, column + c] for c < columns. */
    void (*finish)(const struct tl_chain *x, const double *sums, int64_t q, int64_t row, int64_t column,
                   int64_t columns);
    /* c[r*ldc + j] = the chains over k0 .. k0 + kc - 1 of h <= TL_CHAIN_DIRECT rows, packed in `a`, and of columns column + j of product
     * q, for j < columns, a multiple of TL_CHAIN_LANES; with `goes_on` from the sums that c has. B is read where it is. NULL where its
     * rows are not contiguous. */
    void (*multiply_rows)(const struct tl_chain *x, int64_t h, const double *a, int64_t q, int64_t column,
                          int64_t columns, int64_t k0, int64_t kc, double *c, int64_t ldc, int goes_on);
} tl_chain;

#define tl_chain_multiply TL_V(tl_chain_multiply)
#define tl_chain_strided TL_V(tl_chain_strided)

/* 0, or the status of tl_pool_alloc. */
int32_t tl_chain_multiply(tl_context *ctx, const tl_chain *x);
/* The product of gemm.h's arguments, of float32, or if it is `wide` of float64. */
int32_t tl_chain_strided(tl_context *ctx, const tl_gemm_args *g, const void *A, const void *B, void *C, int wide);
