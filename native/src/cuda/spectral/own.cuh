/* Transforms on CUDA in the mode `reproducible`: those of the CPU, to the bit (cpu/spectral/fft.h), by the same plans, whose
 * tables a context keeps on the device (spectral/own_plan.cu). */
#pragma once

#include "cuda/device/division.cuh"
#include "cuda/runtime/launch.cuh"
#include "formula/fft_plan.h"

/* A direct transform: passes over shared memory. */
struct tl_own_direct {
    enum { STAGES = 16 };
    int n, stages;
    int radix[STAGES];
    tl_fastdiv each[STAGES], span[STAGES]; /* by n/radix, and by the product of the radices before */
    /* Of every pass: for j = 1..radix-1 the roots e^(-2·pi·i·p·j/(m·radix)) of all p < m, so that neighbouring lanes read neighbours. */
    const float2 *twiddle;
};

/* Real rows and their half spectra, and the factors of bin 0 and the middle one, and of the others. */
struct tl_own_real_rows {
    const float *from;
    float *to;
    int64_t batch, n, bins;
    float edge, inner;
};

/* A plan with tables on the device. direct: of the length, of Bluestein's convolution, or of the columns of four steps; rows: of
 * the rows of four steps. */
struct tl_own_plan {
    int64_t n, m; /* m: of the convolution, else n */
    bool in_shared, bluestein, four_step;
    tl_own_direct direct, rows;
    const float *chirp, *kernel, *real; /* real: what splits a packed transform, where in_shared */
    tl_roots roots, packed;
    const double *lane_roots;
};

/* The plan of n complex numbers, kept by the context. */
int32_t tl_own_find(tl_context *ctx, int64_t n, tl_own_plan *plan);

/* Odd lengths that spectral/odd.cu transforms: products of at least two of its radices, 3, 5, 7, 9, 11, 13, 15 and at most one of the
 * primes 17 to 31, up to ODD_MOST. Their radices, the largest first; 0 for other lengths. */
int tl_odd_radices(int64_t n, int *radix);
/* The plan of such a length, kept by the context: its passes alone, for the inverse in the opposite order. */
int32_t tl_odd_find(tl_context *ctx, int64_t n, bool inverse, tl_own_plan *plan);
/* Real transforms of these lengths in the mode `fast`. */
int32_t tl_odd_real(tl_context *ctx, const tl_own_real_rows &t, bool inverse);

/* Real transforms as in cpu/spectral/spectral.c. */
int32_t tl_own_real(tl_context *ctx, const float *from, float *to, int64_t batch, int64_t n, bool inverse, double edge,
                    double inner);
