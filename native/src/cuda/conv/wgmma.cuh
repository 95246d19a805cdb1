/* Convolutions' products by Hopper's wgmma (device/wgmma_pipeline.cuh): what the kernel of the forward pass and the data
 * gradient (conv/wgmma_product.cu) and that of the weight gradient (conv/wgmma_weights.cu) share.
 *
 * Where the pipeline finds that a tile's sums do not count, it is computed again as chains of fused multiply-adds. */
#pragma once

#include "cuda/conv/conv.cuh"
#include "cuda/device/wgmma_pipeline.cuh"
#include "generated/conv.h"

/* Whether the kernels serve these arguments of tl_cuda_conv_product and tl_cuda_conv_weights, and the products. */
bool tl_conv_wgmma_serves_product(tl_context *ctx, const tl_conv_shape &s, bool spread, int64_t batch, int64_t channels,
                                  int64_t rows);
int32_t tl_conv_wgmma_product(tl_context *ctx, const tl_conv_shape &s, bool spread, int64_t batch, int64_t channels,
                              int64_t rows, const float *source, const float *w, const float *bias, float *target);
bool tl_conv_wgmma_serves_weights(tl_context *ctx, const tl_conv_shape &s, int64_t batch, int64_t channels,
                                  int64_t rows, const float *small);
int32_t tl_conv_wgmma_weights(tl_context *ctx, const tl_conv_shape &s, int64_t batch, int64_t channels, int64_t rows,
                              const float *large, const float *small, float *gw);

namespace tl_conv_wgmma {

using namespace tl_wgmma;

/* Axes; a shape of lower rank has axes of length 1 before its own. */
constexpr int AXES = 3;
/* Extents, paddings, strides and dilated kernels below this keep coordinates within int32. */
constexpr int64_t EXTENT_MOST = INT64_C(1) << 28;

/* Multiprocessors of an H100 or H200. */
constexpr int64_t WAVE = 132;

/* Few enough, and not so large that a coordinate overflows. */
static inline bool small_enough(const tl_conv_shape &s)
{
    if (s.rank > AXES) return false;
    for (int d = 0; d < s.rank; d++)
        if (s.in[d] >= EXTENT_MOST || s.out[d] >= EXTENT_MOST || s.kernel[d] >= EXTENT_MOST ||
            s.stride[d] >= EXTENT_MOST || s.dilation[d] >= EXTENT_MOST / s.kernel[d] || s.padding[d] >= EXTENT_MOST ||
            s.out[d] * s.stride[d] >= 4 * EXTENT_MOST)
            return false;
    return true;
}

} /* namespace tl_conv_wgmma */
