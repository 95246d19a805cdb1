/* The spectral convolution on the CPU in the mode `reproducible`: sums of products in float64 (formula/chain.h).
 *     root      e^(-2·pi·i·k·t/n) in float64, each part as the sum of two float32 numbers
 *     X[k, c]   round32(Σ_t root(k·t)·x[t, c]): for every t the first number of the part, then the second
 *     Z[k, o]   round32(a_k/n·Σ_c X[k, c]·(wRe + i·wIm)[k, c, o]), of every c the product of the real parts first
 *     y[t, o]   round32(Σ_k Re root(k·t)·Re Z[k, o] + Im root(k·t)·Im Z[k, o]), in the order of k
 * and the gradients alike (spectral/chain.c). */
#pragma once

#include "core/kernel.h"

#define tl_spectral_chain TL_V(tl_spectral_chain)
#define tl_spectral_chain_bwd TL_V(tl_spectral_chain_bwd)

int32_t tl_spectral_chain(tl_context *ctx, const float *x, const float *wRe, const float *wIm, int64_t grid,
                          int64_t width, int64_t modes, float *y);
/* A gradient that is NULL is left out. */
int32_t tl_spectral_chain_bwd(tl_context *ctx, const float *x, const float *wRe, const float *wIm, const float *g,
                              int64_t grid, int64_t width, int64_t modes, float *gx, float *gwRe, float *gwIm);
