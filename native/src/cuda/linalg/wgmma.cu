/* Matrix products by wgmma (linalg/wgmma.cuh): which products, which tiles, the launch. Operands whose rows are no whole 16 bytes
 * are copied to rows that are, or where few tiles need each element, read one element at a time; if that takes less than these tensor
 * cores save. */
#include "cuda/linalg/linalg.cuh"
#include "cuda/linalg/wgmma.cuh"
#include "generated/linalg.h"

namespace {

/* A tile of 128 x 64 takes three fifths of the time of one of 128 x 128 (measured on an H200) and is for products that
 * large tiles would not spread evenly over the device. */
constexpr int WIDE = 128, NARROW = 64;

int64_t tiles(const tl_matrix_product &x, int64_t columns)
{
    return x.batch * tl_ceil_div(x.m, TL_WGMMA_ROWS) * tl_ceil_div(x.p, columns);
}

/* Tiles that a multiprocessor has one after the other. */
int64_t rounds(tl_context *ctx, const tl_matrix_product &x, int columns)
{
    return tl_ceil_div(tiles(x, columns), tl_cuda_sms(ctx));
}

int choose_columns(tl_context *ctx, const tl_matrix_product &x)
{
    return 5 * rounds(ctx, x, WIDE) <= 3 * rounds(ctx, x, NARROW) ? WIDE : NARROW;
}

/* Of a multiprocessor that has several tiles, on an H200: 1.5 µs for a step of a wide one, and half a step to end it. */
double seconds(tl_context *ctx, const tl_matrix_product &x, int columns)
{
    const double steps = (double)tl_ceil_div(x.n, tl_wgmma::STEP) + 0.5;
    return (double)rounds(ctx, x, columns) * steps * (columns == WIDE ? 1.5e-6 : 0.9e-6);
}

template <int BN, bool TA, bool TB> bool prepare()
{
    constexpr int bytes = tl_linalg_wgmma::ProductTile<BN>::BYTES;
    return tl_wgmma_prepare(tl_wgmma_matmul_kernel<BN, TA, TB, true>, bytes) &&
           tl_wgmma_prepare(tl_wgmma_matmul_kernel<BN, TA, TB, false>, bytes);
}

bool runs(tl_context *ctx)
{
    return tl_wgmma_runs(ctx, [] {
        return prepare<WIDE, false, false>() && prepare<WIDE, false, true>() && prepare<WIDE, true, false>() &&
               prepare<NARROW, false, false>() && prepare<NARROW, false, true>() && prepare<NARROW, true, false>();
    });
}

template <int BN, bool TA, bool TB>
int32_t launch(tl_context *ctx, const tl_matrix_product &x, const tl_product_strides &s, bool a_whole, bool b_whole)
{
    const int64_t count = tiles(x, BN);
    const uint32_t rows = (uint32_t)tl_ceil_div(x.m, TL_WGMMA_ROWS), columns = (uint32_t)tl_ceil_div(x.p, BN);
    const bool pairs = x.p % 2 == 0 && tl_aligned4(x.C);
    const tl_wgmma_matmul_args args = {x.A,   x.B,     x.bias,    x.C,       x.m,  x.n,     x.p,
                                       s.lda, s.ldb,   s.a_batch, s.b_batch, rows, columns, (uint32_t)count,
                                       pairs, a_whole, b_whole};
    const auto kernel = a_whole && b_whole ? tl_wgmma_matmul_kernel<BN, TA, TB, true>
                                           : tl_wgmma_matmul_kernel<BN, TA, TB, false>;
    constexpr int bytes = tl_linalg_wgmma::ProductTile<BN>::BYTES;
    const unsigned grid = tl_grid(count, 1, tl_cuda_sms(ctx));
    return tl_launch_dynamic(ctx, "wgmma_product", kernel, grid, tl_wgmma::THREADS, bytes, args);
}

template <int BN>
int32_t launch_form(tl_context *ctx, const tl_matrix_product &x, const tl_product_strides &s, bool a_whole,
                    bool b_whole)
{
    return x.ta   ? launch<BN, true, false>(ctx, x, s, a_whole, b_whole)
           : x.tb ? launch<BN, false, true>(ctx, x, s, a_whole, b_whole)
                  : launch<BN, false, false>(ctx, x, s, a_whole, b_whole);
}

/* A thread owns four of the copy's vectors, THREADS apart: `vectors` in a row, whose end is 0. */
constexpr int THREADS = 256;
__global__ void __launch_bounds__(THREADS) pad_rows_kernel(const float *__restrict__ from, int64_t length,
                                                           float4 *__restrict__ to, tl_fastdiv vectors, int64_t total)
{
    const int64_t first = (int64_t)blockIdx.x * (4 * THREADS) + threadIdx.x;
    float v[4][4];
    TL_UNROLL_FOR (int u = 0; u < 4; u++) {
        const int64_t t = first + u * THREADS;
        uint32_t vector;
        const float *const row = from + vectors.divmod((uint32_t)(t < total ? t : 0), &vector) * length;
        TL_UNROLL_FOR (int e = 0; e < 4; e++) {
            const int64_t k = (int64_t)vector * 4 + e;
            v[u][e] = t < total && k < length ? row[k] : 0.0f;
        }
    }
    TL_UNROLL_FOR (int u = 0; u < 4; u++) {
        const int64_t t = first + u * THREADS;
        if (t < total) to[t] = make_float4(v[u][0], v[u][1], v[u][2], v[u][3]);
    }
}

/* An operand of `rows` rows in each product: as it lies, whole 16 bytes or not, or, of contiguous ones, a copy. */
struct Operand {
    const float *array;
    int64_t batch, rows, length, stride, batch_stride;
    double by_element; /* seconds that reading single elements takes longer */

    bool contiguous() const { return stride == length && (batch == 1 || batch_stride == rows * length); }
    bool lies_well() const { return (length | stride | batch_stride) % 4 == 0 && tl_aligned4(array); }
    /* Seconds: both ways through memory, and a launch (measured on an H200). */
    double copying() const { return 8.0 * (double)(batch * rows * length) / 3.5e12 + 3e-6; }
    bool copied() const { return contiguous() && !lies_well() && 2.0 * by_element > copying(); }
    bool whole() const { return lies_well() || copied(); }
    int64_t row() const { return copied() ? tl_ceil_div(length, 4) * 4 : stride; }
    int64_t next() const { return copied() ? rows * row() : batch_stride; }
    double cost() const { return lies_well() ? 0.0 : copied() ? copying() : by_element; }
    int32_t copy(tl_context *ctx, tl_scratch<float> &scratch, const float **out) const
    {
        *out = array;
        if (!copied()) return TORCHLEAN_OK;
        TL_TRY(scratch.allocate(batch * rows * row()));
        const int64_t total = batch * rows * (row() / 4);
        TL_TRY(tl_launch(ctx, "pad_rows", pad_rows_kernel, tl_grid(total, 4 * THREADS), THREADS, array, length,
                         reinterpret_cast<float4 *>((float *)scratch), tl_fastdiv((uint64_t)row() / 4), total));
        *out = scratch;
        return TORCHLEAN_OK;
    }
};

/* Four times as many loads for a sixth of a step's time in one operand, if they do not hide behind the tensor cores at all. */
struct Operands {
    Operand a, b;

    Operands(tl_context *ctx, const tl_matrix_product &x)
    {
        const double by_element = seconds(ctx, x, choose_columns(ctx, x)) / 6;
        const tl_product_strides s = x.layout();
        a = {x.A, x.batch, x.ta ? x.n : x.m, x.ta ? x.m : x.n, s.lda, s.a_batch, by_element};
        b = {x.B, x.batch, x.tb ? x.p : x.n, x.tb ? x.n : x.p, s.ldb, s.b_batch, by_element};
    }
    double cost() const { return a.cost() + b.cost(); }
};

/* Whether copies take less than half of what these tensor cores save against float64 or cuBLAS, a second for 1e14 operations
 * (measured on an H200), of tiles at least three quarters full. */
bool beats_float64(const tl_matrix_product &x, const Operands &operands)
{
    const double saved = 2.0 * (double)(x.batch * x.m) * (double)x.n * (double)x.p * 1e-14;
    return 4 * x.batch * x.m * x.p >= 3 * tiles(x, NARROW) * TL_WGMMA_ROWS * NARROW && 2.0 * operands.cost() <= saved;
}

/* Whether tiles, however full, are done a sixth sooner than the smaller ones of linalg/mma.cu. */
bool ends_sooner(tl_context *ctx, const tl_matrix_product &x, const Operands &operands)
{
    return tl_split_serves(ctx, x) &&
           1.2 * (seconds(ctx, x, choose_columns(ctx, x)) + operands.cost()) <= tl_split_seconds(ctx, x);
}

/* That where each multiprocessor has several tiles; or, of sums so long that the first copies and the last stores of a tile count for
 * little, where it holds for each product of the batch by itself. */
bool beats_split(tl_context *ctx, const tl_matrix_product &x, const Operands &operands)
{
    constexpr int64_t LONG_SUM = 8 * tl_wgmma::STEP;
    if (tiles(x, NARROW) >= 4 * (int64_t)tl_cuda_sms(ctx)) return ends_sooner(ctx, x, operands);
    tl_matrix_product one = x;
    one.batch = 1;
    return x.n > LONG_SUM && ends_sooner(ctx, one, Operands(ctx, one));
}

} /* namespace */

/* The tiles must fill half of the device. */
bool tl_wgmma_serves(tl_context *ctx, const tl_matrix_product &x)
{
    const int64_t narrow = tiles(x, NARROW);
    if (!tl_terms_fit_tensor_cores(x) || 2 * narrow < tl_cuda_sms(ctx) || narrow >= INT32_MAX) return false;
    const Operands operands(ctx, x);
    return operands.b.rows * operands.b.row() <= UINT32_MAX &&
           (beats_float64(x, operands) || beats_split(ctx, x, operands)) && runs(ctx);
}

int32_t tl_wgmma_multiply(tl_context *ctx, const tl_matrix_product &x)
{
    const Operands operands(ctx, x);
    const Operand &a = operands.a, &b = operands.b;
    tl_scratch<float> a_copy(ctx), b_copy(ctx);
    tl_matrix_product y = x;
    TL_TRY(a.copy(ctx, a_copy, &y.A));
    TL_TRY(b.copy(ctx, b_copy, &y.B));
    const tl_product_strides s = {a.row(), b.row(), a.next(), b.next()};
    return choose_columns(ctx, y) == WIDE ? launch_form<WIDE>(ctx, y, s, a.whole(), b.whole())
                                          : launch_form<NARROW>(ctx, y, s, a.whole(), b.whole());
}
