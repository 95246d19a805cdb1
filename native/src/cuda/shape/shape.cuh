/* Arrays with their axes in another order on CUDA (shape.cu). */
#pragma once

#include "formula/broadcast_axes.h"
#include "generated/shape.h"

/* Writes x with its axes in order to out, another place; an exchange that is not the last goes to scratch. */
int32_t tl_cuda_order_axes(tl_context *ctx, tl_axis_order order, const float *x, float *out);
