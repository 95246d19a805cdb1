/* The spectral convolution on the CPU in the mode `reproducible`: sums of products in float64 (formula/chain.h).
 *     root      e^(-2·pi·i·k·t/n) in float64, each part as the sum of two float32 numbers
 *     X[k, c]   round32(Σ_t root(k·t)·x[t, c]): for every t the first number of the part, then the second
 *     Z[k, o]   round32(a_k/n·Σ_c X[k, c]·(wRe + i·wIm)[k, c, o]), of every c the product of the real parts first
 *     y[t, o]   round32(Σ_k Re root(k·t)·Re Z[k, o] + Im root(k·t)·Im Z[k, o]), in the order of k
 * and the gradients alike (spectral/chain.c). */
#pragma once

#include "core/kernel.h"
#include "core/threads.h"
#include "formula/spectral_chain.h"

/* A call. Small spectra have a row of parts re and one of im for every mode, 2·modes rows of `width`. */
typedef struct tl_mix {
    int64_t n, width, modes; /* n: of the grid */
    const float *wRe, *wIm;
    float *X, *Z, *D;     /* of x; Z, or dZ; dX */
    float *gr, *gi;       /* gwRe, gwIm, or NULL */
    tl_root_parts *roots; /* of a reproducible context, n of them */
} tl_mix;

#define tl_mix_roots TL_V(tl_mix_roots)
#define tl_mix_analyse TL_V(tl_mix_analyse)
#define tl_mix_synthesise TL_V(tl_mix_synthesise)

void tl_mix_roots(tl_mix *m, tl_root_parts *roots);
int32_t tl_mix_analyse(tl_context *ctx, const tl_mix *m, const float *x, float *X);
int32_t tl_mix_synthesise(tl_context *ctx, const tl_mix *m, const float *Z, float *y);
