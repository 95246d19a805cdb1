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
    const float2 *turns; /* of tl_half_find, four_step: by which the columns' numbers are turned, as they lie */
    /* Of tl_packed_find: where passes in place leave number k, and n/2. */
    const uint16_t *places;
    tl_fastdiv pairs;
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

/* The tables of roots of a pass in place, and the powers that they hold, of a first power for each butterfly: all but 0, or of a radix
 * divisible by 4 those of which the others are products of two. */
__host__ __device__ constexpr int tl_half_roots(int radix) { return radix % 4 == 0 ? radix / 4 + 2 : radix - 1; }
__host__ __device__ constexpr int tl_half_power(int radix, int table)
{
    return radix % 4 == 0 && table > 2 ? 4 * (table - 2) : table + 1;
}

/* Lengths that spectral/chirp.cu transforms: those with a large prime. */
bool tl_half_serves(int64_t n);
/* The plan of such a length, kept by the context: the passes of its convolution (spectral/in_place.cuh), direct for all of it, or of a
 * matrix for its columns, and rows for its rows. The kernel lies as the passes leave a transform, the numbers of a butterfly of the
 * last pass of a row a sixteenth of the row apart. */
int32_t tl_half_find(tl_context *ctx, int64_t n, bool matrix, tl_own_plan *plan);
/* The plan of n complex numbers by a convolution that leaves all of them, kept by the context: as above, and what splits real rows
 * of twice as many numbers. */
int32_t tl_full_find(tl_context *ctx, int64_t n, tl_own_plan *plan);
/* Real transforms of these lengths in the mode `fast`. */
int32_t tl_half_real(tl_context *ctx, const tl_own_real_rows &t, bool inverse);

/* Those that spectral/short.cu transforms: odd ones, so short that sums of products take less time. */
bool tl_short_serves(int64_t n);
int32_t tl_short_real(tl_context *ctx, const tl_own_real_rows &t, bool inverse);
/* Those of even length that spectral/even.cu transforms, into *serves: rows whose convolutions fit shared memory, enough of them. */
int32_t tl_even_serves(tl_context *ctx, const tl_own_real_rows &t, bool *serves);
int32_t tl_even_real(tl_context *ctx, const tl_own_real_rows &t, bool inverse);

/* Rows that spectral/packed.cu transforms: of powers of two, and, where one takes a block long, enough for all SMs. */
bool tl_packed_serves(tl_context *ctx, const tl_own_real_rows &t);
/* The plan of n complex numbers, half as many, kept by the context: passes in place, the one of a radix below 16 first. */
int32_t tl_packed_find(tl_context *ctx, int64_t n, tl_own_plan *plan);
/* Real transforms of these lengths in the mode `fast`. */
int32_t tl_packed_real(tl_context *ctx, const tl_own_real_rows &t, bool inverse);

/* Real transforms as in cpu/spectral/spectral.c. */
int32_t tl_own_real(tl_context *ctx, const float *from, float *to, int64_t batch, int64_t n, bool inverse, double edge,
                    double inner);
