/* Attention of rows that are no whole 16 bytes by kernels that read 16 bytes at a time (attention/padded.cu). */
#pragma once

#include "cuda/attention/backward.cuh"

namespace attention {

/* Problems that warp group products take, but for their alignment. */
int32_t forward_padded(tl_context *ctx, const Problem &p, float *out);
int32_t backward_padded(tl_context *ctx, const BackwardArgs &a);

} /* namespace attention */
