/* What the kernels of the shape family share. */
#pragma once

#include "cuda/device/quads.cuh"
#include "formula/broadcast_axes.h"
#include "formula/strided.h"
#include "generated/shape.h"

/* shape.cu: writes x with its axes in order to out, another place; an exchange that is not the last goes to scratch. */
int32_t tl_cuda_order_axes(tl_context *ctx, tl_axis_order order, const float *x, float *out);
/* slices.cu: from the strided array x to the dense y. */
int32_t tl_cuda_copy_strided(tl_context *ctx, const char *name, const tl_strided &s, const float *x, float *y);
