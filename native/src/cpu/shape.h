/* Arrays with their axes in another order, and copies of strided ones, on the CPU (shape.c, shape_slices.c). */
#pragma once

#include "formula/broadcast_axes.h"
#include "formula/strided.h"
#include "generated/shape.h"

#define tl_order_axes TL_V(tl_order_axes)
/* Writes x with its axes in order to out, another place; an exchange that is not the last goes to scratch. */
int32_t tl_order_axes(tl_context *ctx, tl_axis_order order, const float *x, float *out);

#define tl_copy_strided TL_V(tl_copy_strided)
/* Copies the strided array x to y, a dense one, if it is to `take`; else the dense x to y, the strided one. */
void tl_copy_strided(const float *x, tl_strided s, int take, float *y);
