/* Convolution in reproducible contexts on CUDA (conv/chain.cu). */
#pragma once

#include "cuda/runtime/launch.cuh"
#include "formula/conv_geometry.h"

/* small (batch, groups, rows, *out) from large (batch, groups, channels, *in) and w (groups, rows, channels, *kernel), plus
 * bias (NULL: none); or, with `spread`, large (batch, groups, rows, *in) from small (batch, groups, channels, *out) and
 * w (groups, channels, rows, *kernel). */
int32_t tl_conv_chain(tl_context *ctx, const tl_conv_shape &s, bool spread, int64_t batch, int64_t groups,
                      int64_t channels, int64_t rows, const float *source, const float *w, const float *bias,
                      float *target);
/* gw (groups, rows, channels, *kernel) from small (batch, groups, rows, *out) and large (batch, groups, channels, *in). */
int32_t tl_conv_chain_weights(tl_context *ctx, const tl_conv_shape &s, int64_t batch, int64_t groups, int64_t channels,
                              int64_t rows, const float *large, const float *small, float *gw);
