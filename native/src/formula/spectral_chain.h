/* What the reproducible spectral convolution multiplies by, on both devices: cpu/spectral/chain.h has the sums. */
#pragma once

#include "dft_tile.h"

/* (cos, -sin) of 2·pi·k/n, each as the sum of two float32 numbers. */
typedef struct tl_root_parts {
    float part[2][2];
} tl_root_parts;

TL_HD tl_root_parts tl_split_root(uint64_t k, uint64_t n)
{
    double c, s;
    tl_root(k, n, &c, &s);
    tl_root_parts r;
    r.part[0][0] = (float)c;
    r.part[0][1] = (float)(c - (double)r.part[0][0]);
    r.part[1][0] = (float)-s;
    r.part[1][1] = (float)(-s - (double)r.part[1][0]);
    return r;
}

/* a_k/n: bin k of the half spectrum stands for itself, or for itself and its conjugate. */
TL_HD double tl_bin_weight(int64_t k, int64_t n) { return (k == 0 || 2 * k == n ? 1.0 : 2.0) / (double)n; }

/* Both parts of a bin as the synthesis takes them: without the imaginary part that the result ignores, NaN where one is not
 * finite. */
TL_HD void tl_bin_prepare(int64_t k, int64_t n, float *re, float *im)
{
    const float i = k == 0 || 2 * k == n ? 0.0f : *im, poison = (*re - *re) + (i - i);
    *re += poison;
    *im = i + poison;
}
