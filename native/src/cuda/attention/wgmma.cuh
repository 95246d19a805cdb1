/* Attention by Hopper's warp group products (attention/wgmma.cu), of as many queries as keys. */
#pragma once

#include "cuda/runtime/launch.cuh"

namespace attention {

/* HARD: pairs where the mask is 0 are blocked. */
enum Mode { NO_MASK, HARD, CAUSAL };

struct Problem {
    const float *Q, *K, *V; /* (batch, n, d), rows of whole 16 bytes */
    const float *mask;      /* (batch, n, n), where HARD */
    int64_t batch, n, d;
    Mode mode;
    float scale;           /* above 0 */
    const uint8_t *unsafe; /* members of the batch that are left out */
    uint32_t blocks;       /* of a member */
};

/* Members with values of this magnitude or more are left out: so scores are finite, below 2^51·2^60, and so is the product of four
 * factors, one of them the unit of weights, 2^(32 + 52 + 22). */
constexpr float MAX_SPLIT_VALUE = 0x1p22f;

bool wgmma_runs(tl_context *ctx);
int32_t wgmma_forward(tl_context *ctx, const Problem &p, float *out);
/* A gradient that is NULL is left out. */
int32_t wgmma_backward(tl_context *ctx, const Problem &p, const float *out, const float *g, float *gQ, float *gK,
                       float *gV);

} /* namespace attention */
