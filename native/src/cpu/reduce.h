/* Extremes along one axis, for reductions over any axes (reduce.c). */
#pragma once

#include "core/kernel.h"

#define tl_extremes TL_V(tl_extremes)

/* out[o,c] = the maximum, or the minimum, over r of x[o,r,c], length >= 1; NaN wins, and -0 is below +0. Fails only for want of
 * scratch. */
int32_t tl_extremes(tl_context *ctx, const float *x, int64_t outer, int64_t length, int64_t inner, int smallest,
                    float *out);
