/* The products that convolutions consist of, on the CPU. */
#pragma once

#include "core/kernel.h"
#include "formula/conv_geometry.h"

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

#define tl_conv_product_f32 TL_V(tl_conv_product_f32)
#define tl_conv_product_f64 TL_V(tl_conv_product_f64)
#define tl_conv_weights TL_V(tl_conv_weights)
#define tl_conv_weights_reproducible TL_V(tl_conv_weights_reproducible)
#define tl_conv_chain_weights TL_V(tl_conv_chain_weights)
#define tl_conv_direct_weights TL_V(tl_conv_direct_weights)

/* target[n, row, i] = sum over channels c and taps t of w[row*row_stride + c*channel_stride + kernel index of t] times
 * the gathered source, plus bias[row] (NULL: none), for the gather's positions, in this precision. The weights of a group come
 * after those of the one before it, `group_stride` apart. A chain of fused multiply-adds is `segment` terms long: all of them,
 * TL_GEMM_KC or a multiple of it. channels, rows and batch >= 1. 0, or the status of tl_pool_alloc. */
int32_t tl_conv_product_f32(tl_context *ctx, const conv_view *v, int64_t groups, const float *w, int64_t group_stride,
                            int64_t row_stride, int64_t channel_stride, const float *bias, int64_t segment,
                            float *target);
int32_t tl_conv_product_f64(tl_context *ctx, const conv_view *v, int64_t groups, const float *w, int64_t group_stride,
                            int64_t row_stride, int64_t channel_stride, const float *bias, int64_t segment,
                            float *target);
/* gw[row, c, t] = sum over n and positions j of g[n, row, j] times the gathered source; the gather is a correlation.
 * channels, rows and batch >= 1. */
int32_t tl_conv_weights(tl_context *ctx, const conv_view *v, int64_t groups, const float *g, float *gw);
int32_t tl_conv_weights_reproducible(tl_context *ctx, const conv_view *v, int64_t groups, const float *g, float *gw);
/* The same without a matrix product: for groups of few channels (conv/direct.c). */
int32_t tl_conv_direct_weights(tl_context *ctx, const conv_view *v, int64_t groups, const float *g, float *gw);
/* The same in reproducible contexts, gathered (conv/chain.c). */
int32_t tl_conv_chain_weights(tl_context *ctx, const conv_view *v, int64_t groups, const float *g, float *gw);
