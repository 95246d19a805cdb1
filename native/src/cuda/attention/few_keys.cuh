/* Attention on CUDA of many rows to few keys (attention/few_keys.cu), as of queries to a handful of learnt or pooled
 * keys. */
#pragma once

#include "cuda/attention/rows.cuh"

namespace attention {

/* Whether the keys of a member are few enough, in the mode `fast`. */
bool few_keys_serve(tl_context *ctx, const Geometry &of);
int32_t few_keys_forward(tl_context *ctx, const Geometry &of, const float *Q, const float *K, const float *V,
                         float *out);
/* A gradient that is NULL is left out. */
int32_t few_keys_backward(tl_context *ctx, const Geometry &of, const float *Q, const float *K, const float *V,
                          const float *out, const float *g, float *gQ, float *gK, float *gV);

} /* namespace attention */
