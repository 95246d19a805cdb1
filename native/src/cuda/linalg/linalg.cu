/* Matrix products on CUDA, float32 in and out: split over TF32 tensor cores at float32 accuracy (linalg/wgmma.cu on Hopper,
 * linalg/mma.cu); in float64 where that is faster and the shape is large; by kernels that are bound by memory where terms are few
 * (linalg/few_terms.cu), or vectors (linalg/few_vectors.cu), or many products small (linalg/packed.cu) or narrow
 * (linalg/few_columns.cu); for the rest chains of float64 where tensor cores compute them (linalg/chain.cu), else cuBLAS in float32,
 * never TF32.
 *
 * cuBLAS is column-major. A row-major array is its own transpose there, so C = op(A)·op(B) is asked for as Cᵀ = op(B)ᵀ·op(A)ᵀ
 * with the factors exchanged and the arrays as they lie; nothing is transposed in memory. The order of the sums is then cuBLAS'
 * choice: fixed for a shape, a device and a library version, and not the CPU path's.
 *
 * The float64 path widens blocks of the factors into scratch, multiplies and accumulates them with DGEMM and rounds the result to
 * float32 once. On chips whose tensor cores do float64 at the rate of float32 (H100, H200) DGEMM is a fifth faster than SGEMM and
 * the result is almost correctly rounded. The conversions cost 12 bytes per element of the three arrays, which limits the path to
 * products whose three dimensions are all large. */
#include <algorithm>

#include "cuda/device/async_copy.cuh"
#include "cuda/device/sum_tree.cuh"
#include "cuda/device/vector.cuh"
#include "cuda/linalg/chain.cuh"
#include "cuda/linalg/linalg.cuh"
#include "cuda/linalg/split_tiles.cuh"
#include "formula/chain.h"
#include "generated/linalg.h"

namespace {

constexpr int THREADS = 256;

/* ---- rows of a bias, and conversions ----------------------------------------------------------------------------- */

/* A thread owns four of the output's vectors, THREADS apart. `cols` counts vectors. */
template <class Vector>
__global__ void __launch_bounds__(THREADS)
    repeat_row_kernel(const Vector *__restrict__ row, Vector *__restrict__ out, tl_fastdiv cols, int64_t total)
{
    const int64_t first = (int64_t)blockIdx.x * (4 * THREADS) + threadIdx.x;
    TL_UNROLL_FOR (int u = 0; u < 4; u++) {
        const int64_t t = first + u * THREADS;
        if (t < total) {
            uint32_t col;
            cols.divmod((uint32_t)t, &col);
            out[t] = row[col];
        }
    }
}

/* A block of a matrix, rows `stride` elements apart, to a dense float64 one. A thread owns V consecutive elements of a
 * row, four times, THREADS groups apart; `groups` is cols / V. */
template <int V>
__global__ void __launch_bounds__(THREADS) widen_kernel(const float *__restrict__ from, int64_t stride,
                                                        double *__restrict__ to, tl_fastdiv groups, int64_t total)
{
    const int64_t first = (int64_t)blockIdx.x * (4 * THREADS) + threadIdx.x;
    float v[4][V];
    TL_UNROLL_FOR (int u = 0; u < 4; u++) {
        const int64_t t = first + u * THREADS;
        if (t < total) {
            uint32_t group;
            const float *at = from + groups.divmod((uint32_t)t, &group) * stride + (int64_t)group * V;
            if constexpr (V == 4)
                tl_load4(at, v[u]);
            else
                v[u][0] = *at;
        }
    }
    TL_UNROLL_FOR (int u = 0; u < 4; u++) {
        const int64_t t = first + u * THREADS;
        if (t < total) {
            if constexpr (V == 4) {
                double2 *at = reinterpret_cast<double2 *>(to + t * 4);
                at[0] = make_double2(v[u][0], v[u][1]);
                at[1] = make_double2(v[u][2], v[u][3]);
            } else {
                to[t] = v[u][0];
            }
        }
    }
}

/* The way back, plus a bias per column (NULL: none), rounded once. Ownership as in widen_kernel. */
template <int V>
__global__ void __launch_bounds__(THREADS)
    narrow_kernel(const double *__restrict__ from, const float *__restrict__ bias, float *__restrict__ to,
                  int64_t stride, tl_fastdiv groups, int64_t total)
{
    const int64_t first = (int64_t)blockIdx.x * (4 * THREADS) + threadIdx.x;
    double v[4][V];
    TL_UNROLL_FOR (int u = 0; u < 4; u++) {
        const int64_t t = first + u * THREADS;
        if (t < total) {
            if constexpr (V == 4) {
                const double2 *at = reinterpret_cast<const double2 *>(from + t * 4);
                const double2 x = at[0], y = at[1];
                v[u][0] = x.x, v[u][1] = x.y, v[u][2] = y.x, v[u][3] = y.y;
            } else {
                v[u][0] = from[t];
            }
        }
    }
    TL_UNROLL_FOR (int u = 0; u < 4; u++) {
        const int64_t t = first + u * THREADS;
        if (t < total) {
            uint32_t group;
            float *at = to + groups.divmod((uint32_t)t, &group) * stride + (int64_t)group * V;
            if (bias)
                TL_UNROLL_FOR (int e = 0; e < V; e++)
                    v[u][e] += bias[group * V + e];
            if constexpr (V == 4)
                tl_store4(at, make_float4((float)v[u][0], (float)v[u][1], (float)v[u][2], (float)v[u][3]));
            else
                *at = (float)v[u][0];
        }
    }
}

int32_t repeat_row(tl_context *ctx, const float *row, int64_t rows, int64_t cols, float *out)
{
    const bool by_four = cols % 4 == 0 && tl_aligned4(row) && tl_aligned4(out);
    const int64_t vectors = by_four ? cols / 4 : cols, total = rows * vectors;
    const unsigned grid = tl_grid(total, 4 * THREADS);
    return by_four ? tl_launch(ctx, "repeat_row", repeat_row_kernel<float4>, grid, THREADS, (const float4 *)row,
                               (float4 *)out, tl_fastdiv(vectors), total)
                   : tl_launch(ctx, "repeat_row", repeat_row_kernel<float>, grid, THREADS, row, out,
                               tl_fastdiv(vectors), total);
}

int32_t widen(tl_context *ctx, const float *from, int64_t stride, int64_t rows, int64_t cols, double *to)
{
    const bool by_four = cols % 4 == 0 && stride % 4 == 0 && tl_aligned4(from);
    const int64_t groups = by_four ? cols / 4 : cols, total = rows * groups;
    return tl_launch(ctx, "widen", by_four ? widen_kernel<4> : widen_kernel<1>, tl_grid(total, 4 * THREADS), THREADS,
                     from, stride, to, tl_fastdiv(groups), total);
}

int32_t narrow(tl_context *ctx, const double *from, const float *bias, int64_t rows, int64_t cols, float *to,
               int64_t stride)
{
    const bool by_four = cols % 4 == 0 && stride % 4 == 0 && tl_aligned4(to);
    const int64_t groups = by_four ? cols / 4 : cols, total = rows * groups;
    return tl_launch(ctx, "narrow", by_four ? narrow_kernel<4> : narrow_kernel<1>, tl_grid(total, 4 * THREADS), THREADS,
                     from, bias, to, stride, tl_fastdiv(groups), total);
}

/* ---- the float64 path -------------------------------------------------------------------------------------------- */

/* Blocks of the float64 path. Scratch is at most 8·(OUTER·INNER·2 + OUTER·OUTER) bytes = 1 GiB; within a block the
 * conversions are 2 % of the product's time. */
constexpr int64_t OUTER = 8192, INNER = 4096;

/* The float64 path wins where what it saves, n·m·p·2·(1/50.7e12 - 1/62e12) s, exceeds its conversions, 12·(mn + np +
 * mp) bytes at 4.3e12 B/s (rates measured on an H200): 1/m + 1/n + 1/p below 1/390. */
bool float64_pays(int64_t m, int64_t n, int64_t p)
{
    return 1.0 / (double)m + 1.0 / (double)n + 1.0 / (double)p <= 1.0 / 400;
}

/* Length of the blocks that cut n into equal parts of at most `most`, in multiples of 64. */
int64_t block_length(int64_t n, int64_t most)
{
    const int64_t length = tl_ceil_div(tl_ceil_div(n, tl_ceil_div(n, most)), 64) * 64;
    return length < n ? length : n;
}

/* DGEMM in cuBLAS' default mode, in which it may use the tensor cores' float64 (IEEE arithmetic like the other
 * units'). */
cublasStatus_t dgemm(cublasHandle_t blas, bool ta, bool tb, int64_t m, int64_t n, int64_t p, const double *A,
                     int64_t lda, const double *B, int64_t ldb, double beta, double *C, int64_t ldc)
{
    cublasMath_t mode;
    cublasStatus_t status = cublasGetMathMode(blas, &mode);
    if (status == CUBLAS_STATUS_SUCCESS) status = cublasSetMathMode(blas, CUBLAS_DEFAULT_MATH);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    const double one = 1.0;
    status = cublasDgemm_64(blas, tb ? CUBLAS_OP_T : CUBLAS_OP_N, ta ? CUBLAS_OP_T : CUBLAS_OP_N, p, m, n, &one, B, ldb,
                            A, lda, &beta, C, ldc);
    const cublasStatus_t restored = cublasSetMathMode(blas, mode);
    return status == CUBLAS_STATUS_SUCCESS ? restored : status;
}

/* One product of the batch. a, b and c hold the widened blocks. */
int32_t multiply_float64(tl_context *ctx, cublasHandle_t blas, const tl_matrix_product &x, const float *A,
                         const float *B, float *C, int64_t mb, int64_t nb, int64_t pb, double *a, double *b, double *c)
{
    for (int64_t j = 0; j < x.p; j += pb)
        for (int64_t i = 0; i < x.m; i += mb) {
            const int64_t rows = x.m - i < mb ? x.m - i : mb, cols = x.p - j < pb ? x.p - j : pb;
            for (int64_t k = 0; k < x.n; k += nb) {
                const int64_t inner = x.n - k < nb ? x.n - k : nb;
                if (x.ta)
                    TL_TRY(widen(ctx, A + k * x.m + i, x.m, inner, rows, a));
                else
                    TL_TRY(widen(ctx, A + i * x.n + k, x.n, rows, inner, a));
                if (i == 0 || x.n > nb) { /* with one block along n, b serves all rows */
                    if (x.tb)
                        TL_TRY(widen(ctx, B + j * x.n + k, x.n, cols, inner, b));
                    else
                        TL_TRY(widen(ctx, B + k * x.p + j, x.p, inner, cols, b));
                }
                TL_CUBLAS_TRY(ctx, dgemm(blas, x.ta, x.tb, rows, inner, cols, a, x.ta ? rows : inner, b,
                                         x.tb ? inner : cols, k > 0 ? 1.0 : 0.0, c, cols));
            }
            TL_TRY(narrow(ctx, c, x.bias ? x.bias + j : nullptr, rows, cols, C + i * x.p + j, x.p));
        }
    return TORCHLEAN_OK;
}

/* ---- many small products ----------------------------------------------------------------------------------------- */

constexpr int TILE = 64, SMALL_THREADS = 64, PAD = 4;

/* C = A·B for contiguous (batch, m, n) and (batch, n, p), n and p multiples of 4. A block owns a TILE x TILE tile of
 * one product and takes n in steps of TILE; six blocks fit a multiprocessor, so some load while others multiply.
 * Thread (ty, tx) owns rows ty + 8r and columns 4·tx .. + 3 and 32 + 4·tx .. + 3: 64 sums for 16 shared 16-byte loads
 * per four k, without bank conflicts (four rows of A per warp, padded apart; 128 contiguous bytes of B). Each sum is
 * one chain of fused multiply-adds in increasing k; elements past the arrays are zeros and add nothing. */
__global__ void __launch_bounds__(SMALL_THREADS)
    small_products_kernel(const float *__restrict__ A, const float *__restrict__ B, float *__restrict__ C, int m, int n,
                          int p, tl_fastdiv row_tiles, tl_fastdiv column_tiles)
{
    __shared__ __align__(16) float a[TILE][TILE + PAD];
    __shared__ __align__(16) float b[TILE][TILE];
    uint32_t row_tile, column_tile;
    const uint32_t tile = column_tiles.divmod(blockIdx.x, &column_tile);
    const int64_t product = row_tiles.divmod(tile, &row_tile);
    const int i0 = (int)row_tile * TILE, j0 = (int)column_tile * TILE, tx = threadIdx.x % 8, ty = threadIdx.x / 8;
    A += product * m * n;
    B += product * n * p;
    C += product * m * p;

    float sum[8][8] = {};
    for (int k0 = 0; k0 < n; k0 += TILE) {
        if (k0 > 0) __syncthreads();
        TL_UNROLL_FOR (int v = 0; v < TILE * TILE / 4 / SMALL_THREADS; v++) {
            const int row = v * (SMALL_THREADS / 16) + threadIdx.x / 16, col = threadIdx.x % 16 * 4;
            const bool in_a = i0 + row < m && k0 + col < n, in_b = k0 + row < n && j0 + col < p;
            tl_copy_async<16>(&a[row][col], in_a ? A + (int64_t)(i0 + row) * n + k0 + col : A, in_a);
            tl_copy_async<16>(&b[row][col], in_b ? B + (int64_t)(k0 + row) * p + j0 + col : B, in_b);
        }
        tl_copy_commit();
        tl_copy_wait<0>();
        __syncthreads();
        const int inner = min(n - k0, TILE);
        for (int k = 0; k < inner; k += 4) {
            float x[8][4];
            TL_UNROLL_FOR (int r = 0; r < 8; r++)
                tl_load4(&a[ty + 8 * r][k], x[r]);
            TL_UNROLL_FOR (int e = 0; e < 4; e++) {
                const float4 lo = tl_load4(&b[k + e][4 * tx]), hi = tl_load4(&b[k + e][32 + 4 * tx]);
                const float y[8] = {lo.x, lo.y, lo.z, lo.w, hi.x, hi.y, hi.z, hi.w};
                TL_UNROLL_FOR (int r = 0; r < 8; r++)
                    TL_UNROLL_FOR (int c = 0; c < 8; c++)
                        sum[r][c] = fmaf(x[r][e], y[c], sum[r][c]);
            }
        }
    }
    TL_UNROLL_FOR (int r = 0; r < 8; r++) {
        const int i = i0 + ty + 8 * r, j = j0 + 4 * tx;
        if (i < m && j < p) tl_store4(C + (int64_t)i * p + j, sum[r]);
        if (i < m && j + 32 < p) tl_store4(C + (int64_t)i * p + j + 32, sum[r] + 4);
    }
}

/* Whether the kernel above takes a product that the tensor cores do not: enough blocks to fill the device, tiles at
 * least half full. */
bool small_products(const tl_matrix_product &x)
{
    const int64_t tiles = tl_ceil_div(x.m, TILE) * tl_ceil_div(x.p, TILE);
    return !x.ta && !x.tb && !x.bias && x.m <= 128 && x.n <= 128 && x.p <= 128 && x.n % 4 == 0 && x.p % 4 == 0 &&
           x.batch * tiles >= 1024 && x.m * x.p * 2 >= tiles * TILE * TILE && tl_aligned4(x.A) && tl_aligned4(x.B) &&
           tl_aligned4(x.C);
}

int32_t multiply_small(tl_context *ctx, const tl_matrix_product &x)
{
    const int64_t row_tiles = tl_ceil_div(x.m, TILE), column_tiles = tl_ceil_div(x.p, TILE);
    return tl_launch(ctx, "small_products", small_products_kernel, (unsigned)(x.batch * row_tiles * column_tiles),
                     SMALL_THREADS, x.A, x.B, x.C, (int)x.m, (int)x.n, (int)x.p, tl_fastdiv(row_tiles),
                     tl_fastdiv(column_tiles));
}

/* C = A·B for contiguous (batch, m, n) and (batch, n, p) with m <= M: bound by reading B. A thread owns a column of a product, so
 * that neighbouring ones read neighbouring elements, UNROLL of them on their way; A is the same for nearly all of a warp. Each
 * sum is one chain of fused multiply-adds in increasing k. */
constexpr int FEW_THREADS = 128;
template <int M>
__global__ void __launch_bounds__(FEW_THREADS)
    few_rows_kernel(const float *__restrict__ A, const float *__restrict__ B, float *__restrict__ C, int m, int n,
                    tl_fastdiv columns, uint32_t total)
{
    constexpr int UNROLL = 16;
    const uint32_t item = blockIdx.x * FEW_THREADS + threadIdx.x, p = columns.divisor;
    if (item >= total) return;
    uint32_t column;
    const int64_t product = columns.divmod(item, &column);
    const float *b = B + product * n * p + column, *a[M];
    TL_UNROLL_FOR (int r = 0; r < M; r++) /* rows that do not exist are the last one again, and not stored */
        a[r] = A + (product * m + min(r, m - 1)) * n;
    float sum[M] = {};
    int k = 0;
#pragma unroll 1
    for (; k + UNROLL <= n; k += UNROLL) {
        float y[UNROLL];
        TL_UNROLL_FOR (int u = 0; u < UNROLL; u++)
            y[u] = b[(int64_t)(k + u) * p];
        TL_UNROLL_FOR (int u = 0; u < UNROLL; u++)
            TL_UNROLL_FOR (int r = 0; r < M; r++)
                sum[r] = fmaf(a[r][k + u], y[u], sum[r]);
    }
#pragma unroll 4
    for (; k < n; k++)
        TL_UNROLL_FOR (int r = 0; r < M; r++)
            sum[r] = fmaf(a[r][k], b[(int64_t)k * p], sum[r]);
    TL_UNROLL_FOR (int r = 0; r < M; r++)
        if (r < m) C[(product * m + r) * p + column] = sum[r];
}

/* Columns from which on warps read whole stretches of B, so that nothing is gained by a copy in shared memory. */
constexpr int64_t LONG_ROW = 32;

/* Whether the kernel above takes a product: of a batch, or of few terms, with threads enough to fill the device; of one or two rows of many
 * terms, with so many that their loads keep the memory busy. */
bool few_rows(tl_context *ctx, const tl_matrix_product &x)
{
    constexpr int64_t ROWS_MOST = 4, COLUMNS_LEAST = 16384, MANY_TERMS = 256, BUSY = 1024;
    const int64_t terms_most = x.batch > 1 ? 1024 : 64;
    if (x.m <= 2 && x.n >= MANY_TERMS && x.batch * x.p < BUSY * tl_cuda_sms(ctx) && tl_few_vectors_serves(ctx, x))
        return false;
    return !x.ta && !x.tb && !x.bias && x.m <= ROWS_MOST && x.n <= terms_most && x.batch * x.p >= COLUMNS_LEAST &&
           x.batch * x.p < INT32_MAX;
}

int32_t multiply_few_rows(tl_context *ctx, const tl_matrix_product &x)
{
    const int64_t total = x.batch * x.p;
    const auto kernel = x.m == 1 ? few_rows_kernel<1> : x.m == 2 ? few_rows_kernel<2> : few_rows_kernel<4>;
    return tl_launch(ctx, "few_rows", kernel, tl_grid(total, FEW_THREADS), FEW_THREADS, x.A, x.B, x.C, (int)x.m,
                     (int)x.n, tl_fastdiv((uint64_t)x.p), (uint32_t)total);
}

/* ---- any product ------------------------------------------------------------------------------------------------- */

int32_t multiply_float32(tl_context *ctx, cublasHandle_t blas, const tl_matrix_product &x)
{
    const float one = 1.0f, beta = x.bias ? 1.0f : 0.0f;
    const cublasOperation_t a = x.ta ? CUBLAS_OP_T : CUBLAS_OP_N, b = x.tb ? CUBLAS_OP_T : CUBLAS_OP_N;
    const tl_product_strides s = x.layout();
    if (x.bias) /* beta = 1 adds it in the rounding of the last step */
        TL_TRY(repeat_row(ctx, x.bias, x.batch * x.m, x.p, x.C));
    if (x.batch == 1)
        TL_CUBLAS_TRY(ctx, cublasSgemm_64(blas, b, a, x.p, x.m, x.n, &one, x.B, s.ldb, x.A, s.lda, &beta, x.C, x.p));
    else
        TL_CUBLAS_TRY(ctx, cublasSgemmStridedBatched_64(blas, b, a, x.p, x.m, x.n, &one, x.B, s.ldb, s.b_batch, x.A,
                                                        s.lda, s.a_batch, &beta, x.C, x.p, x.m * x.p, x.batch));
    return TORCHLEAN_OK;
}

/* Whether a product goes to chains rather than to cuBLAS: not one of many results of so few terms that most of a step of k is
 * nothing, unless it has a bias, for which cuBLAS has the results go through memory twice more, and more terms than
 * linalg/few_terms.cu takes; and not many rows or columns that each would leave most of a tile empty. */
bool chains_pay(tl_context *ctx, const tl_matrix_product &x)
{
    constexpr int64_t FEW_TERMS = 64, MANY_RESULTS = 1 << 20, FEW_ROWS = 4;
    return tl_cuda_chains_are_fast(ctx) &&
           (x.n >= FEW_TERMS || x.batch * x.m * x.p < MANY_RESULTS || (x.bias && x.n > TL_FEW_TERMS)) &&
           (x.batch == 1 || (x.m > FEW_ROWS && x.p > FEW_ROWS));
}

/* Whether few columns go to linalg/few_columns.cu rather than to linalg/few_vectors.cu: rows along k that are shorter than what a
 * warp there has on its way, 16 terms in each lane. */
bool few_columns_pay(tl_context *ctx, const tl_matrix_product &x)
{
    constexpr int64_t WARP_TERMS = 16 * 32;
    return tl_cuda_chains_are_fast(ctx) && tl_few_columns_serves(ctx, x) &&
           (x.n <= WARP_TERMS || !tl_few_vectors_serves(ctx, x));
}

/* The segments of chains outside reproducible contexts, 0 for those of formula/chain.h: of few rows or columns so short, down to LEAST
 * terms, that long sums are shared by the whole device. */
int64_t segment_length(tl_context *ctx, const tl_matrix_product &x)
{
    constexpr int64_t LEAST = 256;
    if (std::min(x.m, x.p) > tl_chain_few_rows::BM) return TL_CHAIN_FREE;
    const int64_t tiles = x.batch * tl_ceil_div(std::max(x.m, x.p), tl_chain_few_rows::BN);
    const int64_t wanted = 2 * tl_cuda_sms(ctx) / tiles;
    if (x.n < 4 * LEAST || wanted < 2) return 0;
    const int64_t length = tl_ceil_div(tl_ceil_div(x.n, wanted), LEAST) * LEAST;
    return length < tl_chain_segment(x.n) ? length : 0;
}

tl_chain_product<float> as_chains(tl_context *ctx, const tl_matrix_product &x)
{
    const int64_t length = tl_is_reproducible(ctx) ? 0 : segment_length(ctx, x);
    return {x.batch, x.m, x.n, x.p, x.A, x.ta, x.B, x.tb, x.bias, x.C, x.layout(), length, x.order};
}

int32_t multiply_chains(tl_context *ctx, const tl_matrix_product &x)
{
    return tl_chain_multiply(ctx, as_chains(ctx, x));
}

/* Whether chains in segments are done sooner than tiles of linalg/mma.cu, by a tenth: of sums so long, and tiles so few, that some
 * multiprocessors have one more than others. */
bool chains_end_sooner(tl_context *ctx, const tl_matrix_product &x)
{
    constexpr int64_t LEAST_TERMS = 1024, MOST_TILES = 2;
    if (!tl_cuda_chains_are_fast(ctx) || x.n < LEAST_TERMS || std::min(x.m, x.p) <= tl_chain_few_rows::BM) return false;
    return tl_split_tiles::tiles(x, tl_split_tiles::SMALL) < MOST_TILES * tl_cuda_sms(ctx) &&
           1.1 * tl_chain_product_seconds(ctx, as_chains(ctx, x)) < tl_split_seconds_of_rounds(ctx, x);
}

/* A product of factors that are not contiguous: on the tensor cores, by chains, or by cuBLAS, whose rows do not overlap. */
int32_t multiply_strided(tl_context *ctx, const tl_matrix_product &x)
{
    if (tl_is_reproducible(ctx)) return multiply_chains(ctx, x);
    int32_t status = TORCHLEAN_NO_MEMORY;
    if (tl_wgmma_serves(ctx, x)) status = tl_wgmma_multiply(ctx, x);
    if (status != TORCHLEAN_NO_MEMORY) return status;
    const bool overlap = x.strides->lda < (x.ta ? x.m : x.n) || x.strides->ldb < (x.tb ? x.n : x.p);
    if (overlap || (chains_pay(ctx, x) && !(x.ta && x.tb && x.bias))) return multiply_chains(ctx, x);
    cublasHandle_t blas = tl_cuda_blas(ctx, &status);
    return blas ? multiply_float32(ctx, blas, x) : status;
}

int32_t multiply(tl_context *ctx, tl_matrix_product x)
{
    if (!x.strides && (x.m == 1 || x.n == 1)) x.ta = false; /* one row lies as one column does */
    if (!x.strides && (x.n == 1 || x.p == 1)) x.tb = false;
    if (x.batch == 0 || x.m == 0 || x.p == 0) return TORCHLEAN_OK;
    if (x.n == 0) {
        if (x.bias) return repeat_row(ctx, x.bias, x.batch * x.m, x.p, x.C);
        return tl_cuda_fill(tl_context_cuda(ctx), x.C, 0.0f, x.batch * x.m * x.p);
    }
    if (tl_is_reproducible(ctx) && tl_is_direct(ctx, x)) return tl_direct_multiply(ctx, x);
    if (x.strides) return multiply_strided(ctx, x);
    if (tl_is_reproducible(ctx)) {
        if (tl_few_columns_serves(ctx, x)) return tl_few_columns_multiply(ctx, x);
        if (tl_packed_products_serve(ctx, x, true)) return tl_packed_products_multiply(ctx, x, true);
        return tl_few_terms_serves(x, true) ? tl_few_terms_multiply(ctx, x, true) : multiply_chains(ctx, x);
    }
    /* Hopper's TF32 products take 0.58 of float64's time and have a fifth of a float32 chain's error; who wants the
     * correctly rounded product has dgemm. */
    if (tl_wgmma_serves(ctx, x)) {
        const int32_t status = tl_wgmma_multiply(ctx, x);
        if (status != TORCHLEAN_NO_MEMORY) return status;
    }
    const bool float64 = float64_pays(x.m, x.n, x.p) && tl_cuda_double_is_fast(ctx);
    if (!float64 && tl_split_serves(ctx, x) && !chains_end_sooner(ctx, x)) return tl_split_multiply(ctx, x);
    if (small_products(x)) return multiply_small(ctx, x);
    const bool chains = !float64 && chains_pay(ctx, x), packed = tl_packed_products_serve(ctx, x, chains);
    if (few_columns_pay(ctx, x)) return tl_few_columns_multiply(ctx, x);
    if (x.batch > 1 && few_rows(ctx, x) && (x.p >= LONG_ROW || !packed)) return multiply_few_rows(ctx, x);
    if (packed && !tl_few_vectors_pay(ctx, x)) return tl_packed_products_multiply(ctx, x, chains);
    if (tl_few_terms_serves(x, chains)) return tl_few_terms_multiply(ctx, x, chains);
    if (tl_few_vectors_serves(ctx, x)) return tl_few_vectors_multiply(ctx, x);
    if (few_rows(ctx, x)) return multiply_few_rows(ctx, x);
    if (chains) return multiply_chains(ctx, x);
    int32_t status;
    cublasHandle_t blas = tl_cuda_blas(ctx, &status);
    if (!blas) return status;
    if (!float64) return multiply_float32(ctx, blas, x);

    const int64_t mb = block_length(x.m, OUTER), nb = block_length(x.n, INNER), pb = block_length(x.p, OUTER);
    const int64_t a = tl_ceil_div(mb * nb, 32) * 32, b = tl_ceil_div(nb * pb, 32) * 32; /* keep 256-byte alignment */
    tl_scratch<double> scratch(ctx);
    status = scratch.allocate(a + b + mb * pb);
    if (status == TORCHLEAN_NO_MEMORY) return multiply_float32(ctx, blas, x);
    for (int64_t q = 0; q < x.batch && !status; q++)
        status = multiply_float64(ctx, blas, x, x.A + q * x.m * x.n, x.B + q * x.n * x.p, x.C + q * x.m * x.p, mb, nb,
                                  pb, scratch, scratch + a, scratch + a + b);
    return status;
}

} /* namespace */

/* ---- the operations ---------------------------------------------------------------------------------------------- */

extern "C" int32_t tl_cuda_matmul(tl_context *ctx, const float *A, const float *B, int64_t m, int64_t n, int64_t p,
                                  float *out)
{
    return multiply(ctx, tl_matrix_product{1, m, n, p, A, false, B, false, nullptr, out});
}

extern "C" int32_t tl_cuda_matmul_bwd(tl_context *ctx, const float *A, const float *B, const float *g, int64_t m,
                                      int64_t n, int64_t p, float *gA, float *gB)
{
    return tl_cuda_bmm_bwd(ctx, A, B, g, 1, m, n, p, gA, gB);
}

extern "C" int32_t tl_cuda_bmm(tl_context *ctx, const float *A, const float *B, int64_t batch, int64_t m, int64_t n,
                               int64_t p, float *out)
{
    return multiply(ctx, tl_matrix_product{batch, m, n, p, A, false, B, false, nullptr, out});
}

extern "C" int32_t tl_cuda_bmm_bwd(tl_context *ctx, const float *A, const float *B, const float *g, int64_t batch,
                                   int64_t m, int64_t n, int64_t p, float *gA, float *gB)
{
    if (gA) /* g (m, p) · Bᵀ (p, n) */
        TL_TRY(multiply(ctx, tl_matrix_product{batch, m, p, n, g, false, B, true, nullptr, gA}));
    if (gB) /* Aᵀ (n, m) · g (m, p) */
        TL_TRY(multiply(ctx, tl_matrix_product{batch, n, m, p, A, true, g, false, nullptr, gB}));
    return TORCHLEAN_OK;
}

/* Products of one B whose rows of A are equally far apart are one product, and one whose factors are contiguous is like any. What
 * lies between rows or products of which there is one is what it would be in contiguous factors. */
extern "C" int32_t tl_cuda_bmm_strided(tl_context *ctx, const float *A, const float *B, const float *bias,
                                       int64_t a_size, int64_t b_size, int64_t batch, int64_t m, int64_t p, int64_t n,
                                       int64_t a_batch, int64_t a_row, int64_t a_col, int64_t b_batch, int64_t b_row,
                                       int64_t b_col, float *out)
{
    (void)a_size, (void)b_size;
    if (m == 1 && (n == 1 || a_col == 1)) a_row = a_batch;
    if (b_batch == 0 && a_batch == m * a_row) m *= batch, batch = 1;
    const bool ta = n > 1 && a_col != 1, tb = p > 1 && b_col != 1;
    tl_matrix_product x = {batch, m, n, p, A, ta, B, tb, bias, out};
    const tl_product_strides dense = x.layout();
    tl_product_strides s = dense;
    if ((ta ? n : m) > 1) s.lda = ta ? a_col : a_row;
    if ((tb ? p : n) > 1) s.ldb = tb ? b_col : b_row;
    if (batch > 1) s.a_batch = a_batch, s.b_batch = b_batch;
    const bool contiguous = s.lda == dense.lda && s.ldb == dense.ldb && s.a_batch == dense.a_batch &&
                            s.b_batch == dense.b_batch;
    if (!contiguous) x.strides = &s;
    return multiply(ctx, x);
}

extern "C" int32_t tl_cuda_linear(tl_context *ctx, const float *W, const float *x, const float *b, int64_t outputs,
                                  int64_t inputs, int64_t batch, float *y)
{
    return multiply(ctx, tl_matrix_product{1, batch, inputs, outputs, x, false, W, true, b, y});
}

extern "C" int32_t tl_cuda_linear_bwd(tl_context *ctx, const float *W, const float *x, const float *g, int64_t outputs,
                                      int64_t inputs, int64_t batch, float *gW, float *gx, float *gb)
{
    /* None of the three reads what another writes. But a product without elements is not launched, and one without terms is a fill,
     * which does not wait for what came before it: nothing is beside these. */
    tl_order order = TL_FIRST;
    if (gW) { /* gᵀ (outputs, batch) · x (batch, inputs) */
        TL_TRY(multiply(ctx,
                        tl_matrix_product{1, outputs, batch, inputs, g, true, x, false, nullptr, gW, nullptr, order}));
        if (outputs * inputs * batch > 0) order = TL_BESIDE;
    }
    if (gx) { /* g (batch, outputs) · W (outputs, inputs) */
        TL_TRY(multiply(ctx,
                        tl_matrix_product{1, batch, outputs, inputs, g, false, W, false, nullptr, gx, nullptr, order}));
        if (batch * inputs * outputs > 0) order = TL_BESIDE;
    }
    if (gb && outputs > 0) TL_TRY(tl_cuda_column_sums(ctx, g, 1, batch, outputs, 0, gb, order));
    return TORCHLEAN_OK;
}

extern "C" int32_t tl_cuda_dgemm(tl_context *ctx, const double *A, const double *B, int64_t m, int64_t n, int64_t p,
                                 double *out)
{
    const int64_t a = tl_ceil_div(m * n, 32) * 32, b = tl_ceil_div(n * p, 32) * 32; /* 256-byte alignment for each */
    if (m == 0 || p == 0) return TORCHLEAN_OK;
    if (n == 0) {
        for (int64_t i = 0; i < m * p; i++)
            out[i] = 0.0;
        return TORCHLEAN_OK;
    }
    struct tl_cuda_state *state = tl_context_cuda(ctx);
    tl_scratch<double> factors(ctx);
    TL_TRY(factors.allocate(a + b + m * p));
    double *const product = factors + a + b;
    TL_TRY(tl_cuda_upload(state, factors, A, (size_t)(m * n) * sizeof *A));
    TL_TRY(tl_cuda_upload(state, factors + a, B, (size_t)(n * p) * sizeof *B));
    if (tl_is_reproducible(ctx)) {
        TL_TRY(tl_chain_multiply(
            ctx, tl_chain_product<double>{1, m, n, p, factors, false, factors + a, false, nullptr, product, {n, p}}));
    } else {
        int32_t status;
        cublasHandle_t blas = tl_cuda_blas(ctx, &status);
        if (!blas) return status;
        TL_CUBLAS_TRY(ctx, dgemm(blas, false, false, m, n, p, factors, n, factors + a, p, 0.0, product, p));
    }
    return tl_cuda_download(state, out, product, (size_t)(m * p) * sizeof *out);
}
