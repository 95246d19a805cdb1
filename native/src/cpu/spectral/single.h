/* Real transforms of one row in vectors along the transform (spectral/single.c). */
#pragma once

#include "cpu/spectral/fft.h"

#define tl_single_serves TL_V(tl_single_serves)
#define tl_single_scratch TL_V(tl_single_scratch)
#define tl_single_forward TL_V(tl_single_forward)
#define tl_single_inverse TL_V(tl_single_inverse)

/* Whether a plan of lanes is long enough; the floats that a row takes. */
int tl_single_serves(const tl_fft *f);
int64_t tl_single_scratch(const tl_fft *f);
/* A real row to packed bins, and back. It enters times `down`, the result leaves times `up`; returns whether that is
 * finite. */
int tl_single_forward(const tl_real *t, const float *x, float *X, float *scratch, float down, float up);
int tl_single_inverse(const tl_real *t, const float *S, float *x, float *scratch, float down, float up);
