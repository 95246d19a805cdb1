/* Attention on CUDA in the mode `reproducible` (attention/chain.cu), for flash_attention and grouped_attention. */
#pragma once

#include "cuda/attention/rows.cuh"

namespace attention {

int32_t chain_forward(tl_context *ctx, const Geometry &of, const float *Q, const float *K, const float *V, float *out);
/* A gradient that is NULL is left out. */
int32_t chain_backward(tl_context *ctx, const Geometry &of, const float *Q, const float *K, const float *V,
                       const float *out, const float *g, float *gQ, float *gK, float *gV);

} /* namespace attention */
