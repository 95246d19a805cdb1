/* Attention on CUDA of few rows to many keys (attention/few_rows.cu), as when a model writes one token after the other. */
#pragma once

#include "cuda/attention/rows.cuh"

namespace attention {

/* Whether the rows of a member are few enough, in the mode `fast`. */
bool few_rows_serve(tl_context *ctx, const Geometry &of);
int32_t few_rows_forward(tl_context *ctx, const Geometry &of, const float *Q, const float *K, const float *V,
                         float *out);

} /* namespace attention */
