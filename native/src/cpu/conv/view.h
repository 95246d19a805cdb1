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
