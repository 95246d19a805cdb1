/* A convolution as the CPU kernels see it: a gather with its arrays. */
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
