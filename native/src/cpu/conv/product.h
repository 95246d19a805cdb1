/* The product of a convolution (conv/product.c). */
#pragma once

#include "cpu/conv/view.h"

#define tl_conv_product_f32 TL_V(tl_conv_product_f32)
#define tl_conv_product_f64 TL_V(tl_conv_product_f64)

/* In this precision. 0, or the status of tl_pool_alloc. */
int32_t tl_conv_product_f32(tl_context *ctx, const conv_product *p);
int32_t tl_conv_product_f64(tl_context *ctx, const conv_product *p);
