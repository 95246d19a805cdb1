/* Products of groups of few channels on small images (conv/groups.c). */
#pragma once

#include "cpu/conv/view.h"

#define tl_conv_lanes_are_groups TL_V(tl_conv_lanes_are_groups)
#define tl_conv_groups_product TL_V(tl_conv_groups_product)

/* Whether images are so small that products of groups of few channels take groups for the lanes; those products, of all
 * phases (conv/groups.c). */
int tl_conv_lanes_are_groups(const tl_conv_shape *s, int spread, int64_t batch, int64_t groups, int64_t channels,
                             int64_t rows);
int32_t tl_conv_groups_product(tl_context *ctx, const tl_conv_shape *s, int spread, int64_t batch, int64_t groups,
                               int64_t channels, int64_t rows, const float *source, const float *w, int64_t row_stride,
                               int64_t channel_stride, const float *bias, float *target);
