/* The product of a convolution (conv/product.c). */
#pragma once

#include "cpu/conv/view.h"

#define tl_conv_product_f32 TL_V(tl_conv_product_f32)
#define tl_conv_product_f64 TL_V(tl_conv_product_f64)

/* target[n, row, i] = sum over channels c and taps t of w[row*row_stride + c*channel_stride + kernel index of t] times
 * the gathered source, plus bias[row] (NULL: none), for the positions of each of `count` gathers, in this precision.
 * The weights of a group come after those of the one before it, `group_stride` apart. channels, rows and batch >= 1. 0,
 * or the status of tl_pool_alloc. */
int32_t tl_conv_product_f32(tl_context *ctx, const conv_view *views, int64_t count, int64_t groups, const float *w,
                            int64_t group_stride, int64_t row_stride, int64_t channel_stride, const float *bias,
                            float *target);
int32_t tl_conv_product_f64(tl_context *ctx, const conv_view *views, int64_t count, int64_t groups, const float *w,
                            int64_t group_stride, int64_t row_stride, int64_t channel_stride, const float *bias,
                            float *target);
