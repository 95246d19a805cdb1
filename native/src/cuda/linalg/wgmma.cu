/* Matrix products by wgmma (linalg/wgmma.cuh): which products, which tiles, the launch. Operands whose rows are no whole 16 bytes
 * are copied to rows that are, where that takes less than these tensor cores save. */
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

/* Time of a launch in thirds of a narrow tile's. */
int64_t cost(tl_context *ctx, const tl_matrix_product &x, int columns)
{
    return tl_ceil_div(tiles(x, columns), tl_cuda_sms(ctx)) * (columns == WIDE ? 5 : 3);
}

template <int BN, bool TA, bool TB> bool prepare()
{
    return tl_wgmma_prepare(tl_wgmma_matmul_kernel<BN, TA, TB>, tl_linalg_wgmma::ProductTile<BN>::BYTES);
}

bool runs(tl_context *ctx)
{
    return tl_wgmma_runs(ctx, [] {
        return prepare<WIDE, false, false>() && prepare<WIDE, false, true>() && prepare<WIDE, true, false>() &&
               prepare<NARROW, false, false>() && prepare<NARROW, false, true>() && prepare<NARROW, true, false>();
    });
}

template <int BN, bool TA, bool TB> int32_t launch(tl_context *ctx, const tl_matrix_product &x)
{
    const int64_t count = tiles(x, BN);
    const uint32_t rows = (uint32_t)tl_ceil_div(x.m, TL_WGMMA_ROWS), columns = (uint32_t)tl_ceil_div(x.p, BN);
    const bool pairs = x.p % 2 == 0 && tl_aligned4(x.C);
    const tl_wgmma_matmul_args args = {x.A,  x.B,     x.bias,          x.C,  x.m, x.n, x.p, x.lda, x.ldb,
                                       rows, columns, (uint32_t)count, pairs};
    constexpr int bytes = tl_linalg_wgmma::ProductTile<BN>::BYTES;
    const unsigned grid = tl_grid(count, 1, tl_cuda_sms(ctx));
    return tl_launch_dynamic(ctx, "wgmma_product", tl_wgmma_matmul_kernel<BN, TA, TB>, grid, tl_wgmma::THREADS, bytes,
                             args);
}

template <int BN> int32_t launch_form(tl_context *ctx, const tl_matrix_product &x)
{
    return x.ta   ? launch<BN, true, false>(ctx, x)
           : x.tb ? launch<BN, false, true>(ctx, x)
                  : launch<BN, false, false>(ctx, x);
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

/* An operand of `rows` rows in all: as it lies, or a copy. */
struct Operand {
    const float *array;
    int64_t rows, length;

    bool lies_well() const { return length % 4 == 0 && tl_aligned4(array); }
    int64_t row() const { return tl_ceil_div(length, 4) * 4; }
    /* Seconds: both ways through memory, and a launch (measured on an H200). */
    double cost() const { return lies_well() ? 0.0 : 8.0 * (double)(rows * length) / 3.5e12 + 3e-6; }
    int32_t copy(tl_context *ctx, tl_scratch<float> &scratch)
    {
        if (lies_well()) return TORCHLEAN_OK;
        TL_TRY(scratch.allocate(rows * row()));
        const int64_t total = rows * (row() / 4);
        TL_TRY(tl_launch(ctx, "pad_rows", pad_rows_kernel, tl_grid(total, 4 * THREADS), THREADS, array, length,
                         reinterpret_cast<float4 *>((float *)scratch), tl_fastdiv((uint64_t)row() / 4), total));
        array = scratch;
        return TORCHLEAN_OK;
    }
};

Operand operand_a(const tl_matrix_product &x) { return {x.A, x.batch * (x.ta ? x.n : x.m), x.ta ? x.m : x.n}; }
Operand operand_b(const tl_matrix_product &x) { return {x.B, x.batch * (x.tb ? x.p : x.n), x.tb ? x.n : x.p}; }

} /* namespace */

/* The tiles must be at least three quarters full and fill half of the device; copies must take less than half of what these
 * tensor cores save against float64 or cuBLAS, a second for 1e14 operations (measured on an H200). */
bool tl_wgmma_serves(tl_context *ctx, const tl_matrix_product &x)
{
    const int64_t narrow = tiles(x, NARROW);
    const double saved = 2.0 * (double)(x.batch * x.m) * (double)x.n * (double)x.p * 1e-14;
    const Operand a = operand_a(x), b = operand_b(x);
    return tl_terms_fit_tensor_cores(x) && 2 * narrow >= tl_cuda_sms(ctx) && narrow < INT32_MAX &&
           4 * x.batch * x.m * x.p >= 3 * narrow * TL_WGMMA_ROWS * NARROW && b.rows / x.batch * b.row() <= UINT32_MAX &&
           2.0 * (a.cost() + b.cost()) <= saved && runs(ctx);
}

int32_t tl_wgmma_multiply(tl_context *ctx, const tl_matrix_product &x)
{
    Operand a = operand_a(x), b = operand_b(x);
    tl_scratch<float> a_copy(ctx), b_copy(ctx);
    TL_TRY(a.copy(ctx, a_copy));
    TL_TRY(b.copy(ctx, b_copy));
    tl_matrix_product y = x;
    y.A = a.array, y.B = b.array, y.lda = a.row(), y.ldb = b.row();
    return cost(ctx, y, WIDE) <= cost(ctx, y, NARROW) ? launch_form<WIDE>(ctx, y) : launch_form<NARROW>(ctx, y);
}
