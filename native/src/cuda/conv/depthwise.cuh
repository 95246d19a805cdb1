/* Depthwise convolutions of images with a stride of 2 (conv/depthwise.cu), with the bits of conv/groups.cu. */
#pragma once

#include "cuda/conv/conv.cuh"

/* Whether the kernel serves products of groups of so many channels, and the product of groups of one channel and `multiplier`
 * rows. */
bool tl_cuda_conv_depthwise_serves(const tl_conv_shape &s, bool spread, int64_t channels);
int32_t tl_cuda_conv_depthwise(tl_context *ctx, const tl_conv_shape &s, int64_t batch, int64_t groups,
                               int64_t multiplier, const float *source, const float *w, const float *bias,
                               float *target);
