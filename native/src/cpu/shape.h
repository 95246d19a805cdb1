/* Arrays with their axes in another order on the CPU (shape.c). */
#pragma once

#include "formula/broadcast_axes.h"
#include "generated/shape.h"

#define tl_order_axes TL_V(tl_order_axes)
/* Writes x with its axes in order to out, another place; an exchange that is not the last goes to scratch. */
int32_t tl_order_axes(tl_context *ctx, tl_axis_order order, const float *x, float *out);
