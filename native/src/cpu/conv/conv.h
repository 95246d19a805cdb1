/* The products that convolutions consist of, on the CPU. */
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
    int64_t segment; /* of a product: terms of a chain of fused multiply-adds: all, TL_GEMM_KC or a multiple of it */
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

/* The range of taps *low <= t < *high of axis d with those that position j finds inside the source. */
static inline void tl_conv_live(const tl_conv_gather *g, int32_t d, int64_t j, int64_t *low, int64_t *high)
{
    *low = *high = 0;
    for (int64_t t = 0; t < g->taps[d]; t++) {
        const int64_t c = j * g->step[d] + g->base[d] + t * g->tap_step[d];
        if (c < 0 || c >= g->source[d]) continue;
        if (*high == 0) *low = t;
        *high = t + 1;
    }
}

/* Leaves out of a gather the taps that no position needs, but one of each axis; low: how many before the first. */
static inline void tl_conv_trim(tl_conv_gather *g, int64_t *low)
{
    g->taps_size = 1;
    for (int32_t d = 0; d < g->rank; d++) {
        int64_t first = g->taps[d], end = 0, a, b;
        for (int64_t j = 0; j < g->count[d] && (first > 0 || end < g->taps[d]); j++) {
            tl_conv_live(g, d, j, &a, &b);
            if (a < b) first = tl_imin(first, a), end = tl_imax(end, b);
        }
        if (first >= end) first = 0, end = 1;
        low[d] = first;
        g->base[d] += first * g->tap_step[d];
        g->kernel_base[d] += first * g->kernel_step[d];
        g->taps[d] = end - first;
        g->taps_size *= g->taps[d];
    }
}

#define tl_conv_product_f32 TL_V(tl_conv_product_f32)
#define tl_conv_product_f64 TL_V(tl_conv_product_f64)
#define tl_conv_weights TL_V(tl_conv_weights)
#define tl_conv_weights_reproducible TL_V(tl_conv_weights_reproducible)
#define tl_conv_chain_weights TL_V(tl_conv_chain_weights)
#define tl_conv_direct_weights TL_V(tl_conv_direct_weights)
#define tl_conv_lanes_are_groups TL_V(tl_conv_lanes_are_groups)
#define tl_conv_groups_product TL_V(tl_conv_groups_product)
#define tl_conv_lanes_weigh_groups TL_V(tl_conv_lanes_weigh_groups)
#define tl_conv_groups_weights TL_V(tl_conv_groups_weights)

/* target[n, row, i] = sum over channels c and taps t of w[row*row_stride + c*channel_stride + kernel index of t] times
 * the gathered source, plus bias[row] (NULL: none), for the positions of each of `count` gathers, in this precision.
 * The weights of a group come after those of the one before it, `group_stride` apart. channels, rows and batch >= 1. 0,
 * or the status of tl_pool_alloc. */
int32_t tl_conv_product_f32(tl_context *ctx, const conv_view *views, int64_t count, int64_t groups, const float *w,
                            int64_t group_stride, int64_t row_stride, int64_t channel_stride, const float *bias,
                            float *target);
int32_t tl_conv_product_f64(tl_context *ctx, const conv_view *views, int64_t count, int64_t groups, const float *w,
                            int64_t group_stride, int64_t row_stride, int64_t channel_stride, const float *bias,
                            float *target);
/* gw[row, c, t] = sum over n and positions j of g[n, row, j] times the gathered source; the gather is a correlation.
 * channels, rows and batch >= 1. */
int32_t tl_conv_weights(tl_context *ctx, const conv_view *v, int64_t groups, const float *g, float *gw);
int32_t tl_conv_weights_reproducible(tl_context *ctx, const conv_view *v, int64_t groups, const float *g, float *gw);
/* The same without a matrix product: for groups of few channels (conv/direct.c). */
int32_t tl_conv_direct_weights(tl_context *ctx, const conv_view *v, int64_t groups, const float *g, float *gw);
/* The same in reproducible contexts, gathered (conv/chain.c). */
int32_t tl_conv_chain_weights(tl_context *ctx, const conv_view *v, int64_t groups, const float *g, float *gw);
/* Whether images are so small that products of groups of few channels take groups for the lanes; those products, of all
 * phases (conv/groups.c). */
int tl_conv_lanes_are_groups(const tl_conv_shape *s, int spread, int64_t batch, int64_t groups, int64_t channels,
                             int64_t rows);
int32_t tl_conv_groups_product(tl_context *ctx, const tl_conv_shape *s, int spread, int64_t batch, int64_t groups,
                               int64_t channels, int64_t rows, const float *source, const float *w, int64_t row_stride,
                               int64_t channel_stride, const float *bias, float *target);
/* The same for the gradient of the weights (conv/groups_weights.c). */
int tl_conv_lanes_weigh_groups(const conv_view *v, int64_t groups);
int32_t tl_conv_groups_weights(tl_context *ctx, const conv_view *v, int64_t groups, const float *g, float *gw);
