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
    float *X, *Z, *D; /* of x; Z, or dZ; dX */
    float *gr, *gi;   /* gwRe, gwIm, or NULL */
    void *table;
} tl_mix;

/* What computes it. Tasks own a mode of a tl_mix. */
typedef struct tl_mix_way {
    int64_t table_bytes; /* of what begin() makes, for each number of the grid */
    void (*begin)(const tl_mix *m);
    /* A channel that is not finite has a spectrum of NaN. */
    int32_t (*analyse)(tl_context *ctx, const tl_mix *m, const float *x, float *X);
    int32_t (*synthesise)(tl_context *ctx, const tl_mix *m, const float *Z, float *y);
    tl_task_fn mix, mix_bwd, weights;
    double (*weight)(int64_t k, int64_t n);
} tl_mix_way;

#define tl_chain_way TL_V(tl_chain_way)

extern const tl_mix_way tl_chain_way;
