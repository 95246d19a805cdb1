/* The matrix product of the CPU path: C = A·B, optionally plus a bias per column or per row.
 *
 * The value of an element is part of the interface, the same for every SIMD variant and thread count and independent of
 * m, p, batch and the strides. The inner dimension is cut into blocks of TL_GEMM_KC:
 *     s_b = fma(A[i,k], B[k,j], ... fma(A[i,k0], B[k0,j], 0))    over the k of block b, in increasing order
 *     C   = ((s_0 + s_1) + s_2) + ...
 *     C   = C + bias[i*bias_rows + j*bias_columns]               last, if there is a bias
 * so the summation tree has the height n up to TL_GEMM_KC and TL_GEMM_KC + blocks - 1 beyond, plus one for the bias. */
#pragma once

#include "core/kernel.h"

#define TL_GEMM_KC 256

/* `batch` independent products C[m,p] = A[m,n]·B[n,p], advancing A, B and C by sa, sb and sc elements. Element (i,k)
 * of A is A[i*rsa + k*csa], element (k,j) of B is B[k*rsb + j*csb], element (i,j) of C is C[i*rsc + j*csc]. One stride of
 * each is 1, either of them, so a transpose is never materialised. sa or sb may be 0. C overlaps neither input. `bias` is NULL or of
 * the product's type; one of its strides is 1, the other 0. With n = 0 the product is zeros. */
typedef struct tl_gemm_args {
    int64_t batch, m, n, p;
    int64_t rsa, csa, rsb, csb, rsc, csc;
    int64_t sa, sb, sc;
    const void *bias;
    int64_t bias_rows, bias_columns;
} tl_gemm_args;

/* The product transposed, in which A and B change places. */
static inline tl_gemm_args tl_gemm_transposed(const tl_gemm_args *g)
{
    tl_gemm_args t = *g;
    t.m = g->p, t.rsa = g->csb, t.csa = g->rsb, t.sa = g->sb;
    t.p = g->m, t.rsb = g->csa, t.csb = g->rsa, t.sb = g->sa;
    t.rsc = g->csc, t.csc = g->rsc, t.bias_rows = g->bias_columns, t.bias_columns = g->bias_rows;
    return t;
}

#define tl_gemm_f32 TL_V(tl_gemm_f32)

/* 0, or the status of tl_pool_alloc when there is no memory for the packed blocks (C is then incomplete). */
int32_t tl_gemm_f32(tl_context *ctx, const tl_gemm_args *g, const float *A, const float *B, float *C);

/* ---- the parts, for products whose factors are no strided arrays (convolution) -------------------------------------
 * A panel is up to TL_GEMM_MR rows of A, packed step by step; a strip up to TL_GEMM_NR columns of B. */
#if defined(__AVX512F__)
#define TL_GEMM_MR 14
#define TL_GEMM_LANES 16
#elif defined(__AVX2__) && defined(__FMA__)
#define TL_GEMM_MR 6
#define TL_GEMM_LANES 8
#else
#define TL_GEMM_MR 4
#define TL_GEMM_LANES 4
#endif
#define TL_GEMM_NR (2 * TL_GEMM_LANES)

#define tl_gemm_panel_f64 TL_V(tl_gemm_panel_f64)
#define tl_gemm_pack_f32 TL_V(tl_gemm_pack_f32)

/* What a panel's sums become: C, a summand of C, or the next terms of the chains whose sums so far are C. */
enum { TL_GEMM_STORE, TL_GEMM_ADD, TL_GEMM_CONTINUE };

/* C[rows, vectors·LANES] = a·b over kc <= TL_GEMM_KC steps, as `mode` says: the sum s_b above, here in float64, TL_GEMM_LANES / 2
 * lanes to a vector. a has `rows` elements per step, b has rows of vectors·LANES elements (vectors 1 or 2), ldb apart; rows of C are
 * ldc apart. */
void tl_gemm_panel_f64(int64_t rows, int64_t vectors, int64_t kc, const double *a, const double *b, int64_t ldb,
                       double *c, int64_t ldc, int mode);
/* dst[k*width + l] = src[l*lane + k*step] for l < w <= width <= TL_GEMM_NR and k < kc, 0 for the other l. May write
 * LANES - 1 elements past the end. */
void tl_gemm_pack_f32(float *dst, int64_t width, int64_t w, int64_t kc, const float *src, int64_t lane, int64_t step);

/* Tiles of C, at most rows by columns: so many down and across, and where a product is small several products of a batch together. */
typedef struct tl_gemm_tiles {
    int64_t rows, columns, down, across, products;
} tl_gemm_tiles;

#define tl_gemm_cut TL_V(tl_gemm_cut)
/* Halves the tiles in t, down to task_cost of the product's `cost` multiply-adds, panels and strips, while tasks are fewer than
 * `wanted`. Returns the number of tasks. */
int64_t tl_gemm_cut(tl_gemm_tiles *t, int64_t batch, int64_t m, int64_t p, int64_t strip, double cost, double task_cost,
                    int64_t wanted);
