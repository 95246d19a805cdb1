/* Attention on CUDA as matrix products with scores in memory between them (attention/products.cu): of rows too long for kernels
 * that keep scores in registers, and where those make products slowly. */
#pragma once

#include "cuda/attention/rows.cuh"

namespace attention {

/* Whether that takes less time than the kernels of attention/grouped.cu, attention/chain.cu and attention/few_rows.cu, in the mode
 * `fast`; BACKWARD: with the gradients; square: than those of attention/forward.cu and attention/backward.cu. What a call that fails
 * with TORCHLEAN_NO_MEMORY has written is for another to overwrite. */
template <bool BACKWARD> bool products_serve(tl_context *ctx, const Geometry &of, bool square = false);
/* The same of flash_attention, whose kernels for rows beyond WIDEST elements are those of attention/grouped.cu, with the rates that
 * are known here: narrower ones have a kernel between, and those of a mask leave out the tiles that it blocks, which only it tells. */
template <bool BACKWARD> bool products_serve_square(tl_context *ctx, const Geometry &of)
{
    constexpr int64_t WIDEST = 192;
    return of.d > WIDEST && of.mode == UNMASKED && products_serve<BACKWARD>(ctx, of, true);
}
int32_t products_forward(tl_context *ctx, const Geometry &of, const float *Q, const float *K, const float *V,
                         float *out);
/* A gradient that is NULL is left out. */
int32_t products_backward(tl_context *ctx, const Geometry &of, const float *Q, const float *K, const float *V,
                          const float *out, const float *g, float *gQ, float *gK, float *gV);

} /* namespace attention */
