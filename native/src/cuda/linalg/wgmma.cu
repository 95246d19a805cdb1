/* Matrix products by wgmma (linalg/wgmma.cuh): which products, which tiles, the launch. */
#include "cuda/device/vector.cuh"
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
    return tl_wgmma_prepare(tl_wgmma_kernel<BN, TA, TB>, tl_linalg_wgmma::ProductTile<BN>::BYTES);
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
    const tl_wgmma_args args = {x.A,
                                x.B,
                                x.bias,
                                x.C,
                                x.m,
                                x.n,
                                x.p,
                                (uint32_t)tl_ceil_div(x.m, TL_WGMMA_ROWS),
                                (uint32_t)tl_ceil_div(x.p, BN),
                                (uint32_t)count};
    tl_wgmma_kernel<BN, TA, TB><<<tl_grid(count, 1, tl_cuda_sms(ctx)), tl_wgmma::THREADS,
                                  tl_linalg_wgmma::ProductTile<BN>::BYTES, tl_cuda_stream(ctx)>>>(args);
    return tl_cuda_launched(ctx, "wgmma_product");
}

template <int BN> int32_t launch_form(tl_context *ctx, const tl_matrix_product &x)
{
    return x.ta   ? launch<BN, true, false>(ctx, x)
           : x.tb ? launch<BN, false, true>(ctx, x)
                  : launch<BN, false, false>(ctx, x);
}

} /* namespace */

/* As for the split products (linalg/mma.cu) 7.5·√n·u covers the error from n = 64 on. The tiles must be at least
 * three quarters full and fill half of the device. */
bool tl_wgmma_serves(tl_context *ctx, const tl_matrix_product &x)
{
    const int64_t narrow = tiles(x, NARROW);
    const bool aligned = x.p % 4 == 0 && (x.ta ? x.m : x.n) % 4 == 0 && (x.tb ? x.n % 4 == 0 : true) &&
                         tl_aligned4(x.A) && tl_aligned4(x.B) && tl_aligned4(x.C);
    return aligned && x.n >= 64 && x.n < (int64_t)1 << 30 && !(x.ta && x.tb) && 2 * narrow >= tl_cuda_sms(ctx) &&
           narrow < INT32_MAX && 4 * x.batch * x.m * x.p >= 3 * narrow * TL_WGMMA_ROWS * NARROW && runs(ctx);
}

int32_t tl_wgmma_multiply(tl_context *ctx, const tl_matrix_product &x)
{
    return cost(ctx, x, WIDE) <= cost(ctx, x, NARROW) ? launch_form<WIDE>(ctx, x) : launch_form<NARROW>(ctx, x);
}
