/* Convolutions of groups of channels: of few by kernels of their own (conv/groups.cu), of many group by group. The kernels of
 * products also serve one group of few channels and taps. */
#pragma once

#include "cuda/conv/conv.cuh"

/* Whether the kernels serve groups of so many channels and rows. */
bool tl_cuda_conv_groups_serve(const tl_conv_shape &s, int64_t groups, int64_t channels, int64_t rows);
/* Whether they serve a product of one group: the terms of an element are too few for tensor cores, and the rows for their tiles. */
bool tl_cuda_conv_one_group_serves(const tl_conv_shape &s, bool spread, int64_t channels, int64_t rows);
/* The same as tl_cuda_conv_groups_serve in reproducible contexts, of products or of gradients of weights, beside conv/chain.cu. */
bool tl_cuda_conv_groups_chain(const tl_conv_shape &s, int64_t groups, int64_t channels, int64_t rows, bool weights);
/* tl_cuda_conv_product and tl_cuda_conv_weights with an axis of groups before channels and rows, of arrays and weights. All
 * of batch, groups, channels and rows >= 1. */
int32_t tl_cuda_conv_groups_product(tl_context *ctx, const tl_conv_shape &s, bool spread, int64_t batch, int64_t groups,
                                    int64_t channels, int64_t rows, const float *source, const float *w,
                                    const float *bias, float *target);
int32_t tl_cuda_conv_groups_weights(tl_context *ctx, const tl_conv_shape &s, int64_t batch, int64_t groups,
                                    int64_t channels, int64_t rows, const float *large, const float *small, float *gw);
