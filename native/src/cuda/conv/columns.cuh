/* Convolutions of groups with few rows, with strides of 1 and a square kernel (conv/columns.cu): the gradients of depthwise layers
 * with several outputs to a channel, above all. */
#pragma once

#include "cuda/conv/conv.cuh"

/* Whether the kernels serve such a product, and leave multiprocessors busy. */
bool tl_cuda_conv_columns_serve(tl_context *ctx, const tl_conv_shape &s, bool spread, int64_t batch, int64_t groups,
                                int64_t channels, int64_t rows);
/* Whether tiles of a chain (device/chain.cuh) would be so empty that the kernels compute the same chains in less time. */
bool tl_cuda_conv_columns_chain(tl_context *ctx, const tl_conv_shape &s, bool spread, int64_t batch, int64_t groups,
                                int64_t channels, int64_t rows);
/* tl_cuda_conv_groups_product (conv/groups.cuh), its sums in float64 if `exact`. */
int32_t tl_cuda_conv_columns(tl_context *ctx, const tl_conv_shape &s, bool spread, bool exact, int64_t batch,
                             int64_t groups, int64_t channels, int64_t rows, const float *source, const float *w,
                             const float *bias, float *target);
