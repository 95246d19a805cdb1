/* What the two halves of attention's backward pass share: attention/backward.cu and attention/backward_mma.cu. */
#pragma once

#include "cuda/attention/simt_tiles.cuh"

namespace attention {

constexpr const char *NAME = "flash_attention_bwd";

struct BackwardArgs {
    Problem p;
    const float *out, *g;
    float *gQ, *gK, *gV;
    float *base, *inverse, *dot;                   /* m, 1/Σ, D of every query */
    const uint8_t *finite_k, *finite_q, *finite_g; /* with a mask */
};

/* Both passes for the members of the batch that tensor cores take. */
int32_t backward_tensor(tl_context *ctx, const BackwardArgs &a);
/* The same by Hopper's warp group products, for problems that they serve. */
int32_t backward_wgmma(tl_context *ctx, const BackwardArgs &a);

} /* namespace attention */
