/* Convolutions' products of fewer terms than tensor cores take (conv/few_terms.cu), with the bits of conv/mma_product.cu. */
#pragma once

#include "cuda/conv/conv.cuh"

/* Whether the kernel serves these arguments of tl_cuda_conv_product, and the product. */
bool tl_cuda_conv_few_terms_serves(const tl_conv_shape &s, bool spread, int64_t batch, int64_t channels, int64_t rows);
int32_t tl_cuda_conv_few_terms(tl_context *ctx, const tl_conv_shape &s, bool spread, int64_t batch, int64_t channels,
                               int64_t rows, const float *source, const float *w, const float *bias, float *target);
