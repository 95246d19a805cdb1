/* Spreads of many channels onto few (conv/fold.cu). */
#pragma once

#include "cuda/conv/conv.cuh"

/* Whether this way serves a spread, and large (batch, rows, *in) from small (batch, channels, *out) and w (channels, rows, *kernel),
 * plus bias (NULL: none). */
bool tl_cuda_conv_fold_serves(const tl_conv_shape &s, int64_t batch, int64_t channels, int64_t rows);
int32_t tl_cuda_conv_fold(tl_context *ctx, const tl_conv_shape &s, int64_t batch, int64_t channels, int64_t rows,
                          const float *small, const float *w, const float *bias, float *large);
