/* Matrix products on CUDA: what the files of linalg share. */
#pragma once

#include "cuda/device/vector.cuh"
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
    const tl_product_strides *strides =
        nullptr; /* NULL: A and B are contiguous; else for linalg/chain.cu, direct.cu and wgmma.cu alone */
    tl_order order =
        TL_AFTER; /* of linalg/chain.cu, direct.cu, few_columns.cu, few_terms.cu and few_vectors.cu alone */

    tl_product_strides layout() const
    {
        return strides ? *strides : tl_product_strides{ta ? m : n, tb ? n : p, m * n, n * p};
    }
};

/* What both forms on tensor cores ask of a product: at most one factor transposed, and n from where 7.5·√n·u, the bound of a
 * sum of n terms, covers the error of split sums (linalg/mma.cu). */
static inline bool tl_terms_fit_tensor_cores(const tl_matrix_product &x)
{
    return x.n >= 64 && x.n < (int64_t)1 << 30 && !(x.ta && x.tb);
}

/* Whether linalg/mma.cu serves a product, and better than cuBLAS. */
bool tl_split_serves(tl_context *ctx, const tl_matrix_product &x);
int32_t tl_split_multiply(tl_context *ctx, const tl_matrix_product &x);
/* What its smaller tiles then take on an H200, if there are several for each multiprocessor. */
double tl_split_seconds(tl_context *ctx, const tl_matrix_product &x);
/* What they take in whole rounds of all multiprocessors. */
double tl_split_seconds_of_rounds(tl_context *ctx, const tl_matrix_product &x);

/* Whether linalg/wgmma.cu serves a product, and better than either. It needs scratch for operands whose rows are no whole
 * 16 bytes. */
bool tl_wgmma_serves(tl_context *ctx, const tl_matrix_product &x);
int32_t tl_wgmma_multiply(tl_context *ctx, const tl_matrix_product &x);

/* Whether linalg/direct.cu is for a product: so few terms and results that nothing but latency counts. Its sums are those of
 * linalg/chain.cu. */
bool tl_is_direct(tl_context *ctx, const tl_matrix_product &x);
int32_t tl_direct_multiply(tl_context *ctx, const tl_matrix_product &x);

/* Whether linalg/few_terms.cu serves a product, with sums in float64 or in float32: of at most TL_FEW_TERMS terms, or half as
 * many. Its sums in float64 are those of linalg/chain.cu. */
constexpr int64_t TL_FEW_TERMS = 32;
bool tl_few_terms_serves(const tl_matrix_product &x, bool float64);
int32_t tl_few_terms_multiply(tl_context *ctx, const tl_matrix_product &x, bool float64);

/* Whether linalg/row_tiles.cu serves one of those, in float32 and of rows longer than 32 that are no whole 16 bytes, better. */
bool tl_row_tiles_serve(tl_context *ctx, const tl_matrix_product &x);
int32_t tl_row_tiles_multiply(tl_context *ctx, const tl_matrix_product &x);

/* Whether linalg/packed.cu serves a product, with sums in float64 or in float32: those of a batch of small ones. Its sums in
 * float64 are those of linalg/chain.cu. */
bool tl_packed_products_serve(tl_context *ctx, const tl_matrix_product &x, bool float64);
int32_t tl_packed_products_multiply(tl_context *ctx, const tl_matrix_product &x, bool float64);

/* Whether linalg/few_columns.cu serves a product with sums in float64, which are those of linalg/chain.cu: few rows or columns, and
 * many of the other side. */
bool tl_few_columns_serves(tl_context *ctx, const tl_matrix_product &x);
int32_t tl_few_columns_multiply(tl_context *ctx, const tl_matrix_product &x);

/* Whether linalg/few_vectors.cu serves a product in contexts that are not reproducible: at most four rows or columns. */
bool tl_few_vectors_serves(tl_context *ctx, const tl_matrix_product &x);
/* Whether it then serves a batch better than linalg/packed.cu. */
bool tl_few_vectors_pay(tl_context *ctx, const tl_matrix_product &x);
int32_t tl_few_vectors_multiply(tl_context *ctx, const tl_matrix_product &x);
