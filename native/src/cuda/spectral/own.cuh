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
    const float *twiddle;
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

/* Real transforms as in cpu/spectral/spectral.c. */
int32_t tl_own_real(tl_context *ctx, const float *from, float *to, int64_t batch, int64_t n, bool inverse, double edge,
                    double inner);
