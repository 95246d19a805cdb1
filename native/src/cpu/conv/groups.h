/* Products of groups of few channels on small images (conv/groups.c). */
#pragma once

#include "cpu/conv/view.h"

#define tl_conv_lanes_are_groups TL_V(tl_conv_lanes_are_groups)
#define tl_conv_groups_product TL_V(tl_conv_groups_product)

/* Whether images are so small that a product takes groups for the lanes; and that product, in float. */
int tl_conv_lanes_are_groups(const conv_product *p);
int32_t tl_conv_groups_product(tl_context *ctx, const conv_product *p);
