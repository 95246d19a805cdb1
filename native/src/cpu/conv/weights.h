/* The gradient of a convolution's weights: gw[row, c, t] = sum over n and positions j of g[n, row, j] times the gathered source; the
 * gather is a correlation. channels, rows and batch >= 1. 0, or the status of tl_pool_alloc. */
#pragma once

#include "cpu/conv/view.h"

#define tl_conv_weights TL_V(tl_conv_weights)
#define tl_conv_weights_reproducible TL_V(tl_conv_weights_reproducible)
#define tl_conv_direct_weights TL_V(tl_conv_direct_weights)

/* As a matrix product (conv/weights.c). */
int32_t tl_conv_weights(tl_context *ctx, const conv_view *v, int64_t groups, const float *g, float *gw);
int32_t tl_conv_weights_reproducible(tl_context *ctx, const conv_view *v, int64_t groups, const float *g, float *gw);
/* Without one, for groups of few channels (conv/direct.c). */
int32_t tl_conv_direct_weights(tl_context *ctx, const conv_view *v, int64_t groups, const float *g, float *gw);
