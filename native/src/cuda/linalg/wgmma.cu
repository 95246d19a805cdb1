/* Matrix products by wgmma (linalg/wgmma.cuh): which products, which tiles, the launch. */
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
    const tl_wgmma_matmul_args args = {x.A, x.B, x.bias, x.C, x.m, x.n, x.p, rows, columns, (uint32_t)count};
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

} /* namespace */

/* The tiles must be at least three quarters full and fill half of the device. */
bool tl_wgmma_serves(tl_context *ctx, const tl_matrix_product &x)
{
    const int64_t narrow = tiles(x, NARROW);
    return tl_fits_tensor_cores(x) && 2 * narrow >= tl_cuda_sms(ctx) && narrow < INT32_MAX &&
           4 * x.batch * x.m * x.p >= 3 * narrow * TL_WGMMA_ROWS * NARROW && runs(ctx);
}

int32_t tl_wgmma_multiply(tl_context *ctx, const tl_matrix_product &x)
{
    return cost(ctx, x, WIDE) <= cost(ctx, x, NARROW) ? launch_form<WIDE>(ctx, x) : launch_form<NARROW>(ctx, x);
}
