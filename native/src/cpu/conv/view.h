/* Convolutions as the CPU kernels see them: a gather with its arrays, and a product of one or several gathers. */
#pragma once

#include "core/kernel.h"
#include "formula/conv_geometry.h"
#include "formula/integer.h"

/* A gather with its arrays: source (batch, channels, *gather.source), target (batch, rows, *gather.target). They may be one
 * group's part of arrays with `source_channels` and `target_rows` in an image. */
typedef struct conv_view {
    tl_conv_gather gather;
    int64_t batch, channels, rows, source_channels, target_rows;
    int64_t source_stride[TL_CONV_RANK], target_stride[TL_CONV_RANK];
    const float *source;
} conv_view;

static inline conv_view tl_conv_view(const tl_conv_gather *gather, int64_t batch, int64_t groups, int64_t channels,
                                     int64_t rows, const float *source)
{
    conv_view v = {.gather = *gather, .batch = batch, .channels = channels, .rows = rows, .source = source};
    v.source_channels = groups * channels;
    v.target_rows = groups * rows;
    int64_t from = 1, to = 1;
    for (int32_t d = gather->rank - 1; d >= 0; d--) {
        v.source_stride[d] = from;
        v.target_stride[d] = to;
        from *= gather->source[d];
        to *= gather->target[d];
    }
    return v;
}

/* target[n, group, row, i] = sum over channels c and taps of w[group*rows*channels*taps + row*row_stride + c*channel_stride + kernel
 * offset] times the gathered source (batch, groups, channels, …), plus bias[group, row] (NULL: none): of a correlation, or with `spreads`
 * of all phases of a spread. channels, rows and batch >= 1. */
typedef struct conv_product {
    const tl_conv_shape *shape;
    int spreads;
    int64_t batch, groups, channels, rows, row_stride, channel_stride;
    const float *source, *w, *bias;
    float *target;
} conv_product;

static inline int64_t tl_conv_gathers(const conv_product *p) { return p->spreads ? tl_conv_phases(p->shape) : 1; }

static inline conv_view tl_conv_gather_view(const conv_product *p, int64_t i)
{
    const tl_conv_gather gather = p->spreads ? tl_conv_spread(p->shape, i) : tl_conv_correlate(p->shape);
    return tl_conv_view(&gather, p->batch, p->groups, p->channels, p->rows, p->source);
}

/* Groups of so few channels have chains as long as their sums. */
static inline int tl_conv_are_few(int64_t groups, int64_t channels, int64_t rows)
{
    enum { FEW_CHANNELS = 8 };
    return groups > 1 && channels <= FEW_CHANNELS && rows <= FEW_CHANNELS;
}

/* ---- the parts; each returns 0, or the status of tl_pool_alloc ---------------------------------------------------------- */

#define tl_conv_product_f32 TL_V(tl_conv_product_f32)
#define tl_conv_product_f64 TL_V(tl_conv_product_f64)
#define tl_conv_lanes_are_groups TL_V(tl_conv_lanes_are_groups)
#define tl_conv_groups_product TL_V(tl_conv_groups_product)
#define tl_conv_weights TL_V(tl_conv_weights)
#define tl_conv_weights_reproducible TL_V(tl_conv_weights_reproducible)
#define tl_conv_direct_weights TL_V(tl_conv_direct_weights)

/* The product in this precision (conv/product.c). */
int32_t tl_conv_product_f32(tl_context *ctx, const conv_product *p);
int32_t tl_conv_product_f64(tl_context *ctx, const conv_product *p);
/* Whether images are so small that a product takes groups of few channels for the lanes; and that product, in float (conv/groups.c). */
int tl_conv_lanes_are_groups(const conv_product *p);
int32_t tl_conv_groups_product(tl_context *ctx, const conv_product *p);
/* The gradient of the weights: gw[row, c, t] = sum over n and positions j of g[n, row, j] times the gathered source; the gather is a
 * correlation. channels, rows and batch >= 1. As a matrix product (conv/weights.c), and without one, for groups of few channels
 * (conv/direct.c). */
int32_t tl_conv_weights(tl_context *ctx, const conv_view *v, int64_t groups, const float *g, float *gw);
int32_t tl_conv_weights_reproducible(tl_context *ctx, const conv_view *v, int64_t groups, const float *g, float *gw);
int32_t tl_conv_direct_weights(tl_context *ctx, const conv_view *v, int64_t groups, const float *g, float *gw);
