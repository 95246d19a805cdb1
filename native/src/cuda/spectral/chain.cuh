/* The spectral convolution on CUDA in the mode `reproducible` (spectral/chain.cu): the sums of cpu/spectral/chain.h. */
#pragma once

#include "cuda/runtime/launch.cuh"

/* modes > 0, width > 0. */
int32_t tl_spectral_chain(tl_context *ctx, const float *x, const float *wRe, const float *wIm, int64_t grid,
                          int64_t width, int64_t modes, float *y);
/* A gradient that is NULL is left out. */
int32_t tl_spectral_chain_bwd(tl_context *ctx, const float *x, const float *wRe, const float *wIm, const float *g,
                              int64_t grid, int64_t width, int64_t modes, float *gx, float *gwRe, float *gwIm);
