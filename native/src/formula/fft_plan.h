/* Plans of complex transforms (spectral/fft.h says which algorithm a length gets): what both devices transform by. Every variant
 * makes the same tables. */
#pragma once

#include <stddef.h>

#include "dft_tile.h"

/* The longest direct transform: two buffers of 2048 complex vectors are 512 KiB with 512-bit vectors. */
enum { TL_FFT_DIRECT = 2048, TL_FFT_STAGES = 40 };

/* Columns of a four-step transform whose roots are products with one: of as many lanes as any variant has. */
enum { TL_FFT_COLUMNS = 16 };

typedef struct tl_fft {
    int64_t n;
    int in_lanes; /* direct, or Bluestein over a direct one: tl_fft_lanes transforms it, else tl_fft_large */
    int stages;
    int radix[TL_FFT_STAGES];
    float *twiddle; /* of every pass: for p = 1..m-1 the radix - 1 roots e^(-2·pi·i·p·j/(m·radix)) */
    float *real;    /* e^(-2·pi·i·k/(2n)), k <= n/2: what splits a packed real transform; not of parts of a plan */
    struct tl_fft *first, *second; /* four-step: columns and rows; Bluestein: first is the convolution's transform */
    float *chirp, *kernel;         /* Bluestein: e^(-i·pi·t²/n), and the transform of its conjugate over m */
    tl_roots roots;                /* of n (not Bluestein), or of 2n (TL_FFT_ROOTS) */
    /* four-step: e^(-2·pi·i·k1·l/n), k1 < n1, l < TL_FFT_COLUMNS: the cosines, then the sines */
    double *lane_roots;
    float *turns; /* four-step, not of the longest: the roots by which columns are turned, as the CPU reads them */
    size_t bytes;
    /* the cache's */
    int kind, users;
    uint64_t stamp;
} tl_fft;

/* What tl_fft_get makes: the algorithm of the length; one that tl_fft_lanes transforms, whatever its size; just the roots of 2n. */
enum { TL_FFT_ANY, TL_FFT_IN_LANES, TL_FFT_ROOTS };
