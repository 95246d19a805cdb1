/* Convolutions of groups of channels: of few by kernels of their own (conv/groups.cu), of many group by group. The kernels of
 * products also serve one group of few channels and taps. */
#pragma once

#include "cuda/conv/conv.cuh"

/* Whether the kernels serve groups of so many channels and rows. */
bool tl_cuda_conv_groups_serve(const tl_conv_shape &s, int64_t groups, int64_t channels, int64_t rows);
/* Whether they serve a product of one group: the terms of an element are too few for tensor cores, and the rows for their tiles. */
bool tl_cuda_conv_one_group_serves(const tl_conv_shape &s, bool spread, int64_t channels, int64_t rows);
/* The same as tl_cuda_conv_groups_serve in reproducible contexts, of products or of gradients of weights, beside conv/chain.cu. */
bool tl_cuda_conv_groups_chain(const tl_conv_shape &s, int64_t groups, int64_t channels, int64_t rows, bool weights);
/* tl_cuda_conv_product and tl_cuda_conv_weights with an axis of groups before channels and rows, of arrays and weights. All
 * of batch, groups, channels and rows >= 1. */
int32_t tl_cuda_conv_groups_product(tl_context *ctx, const tl_conv_shape &s, bool spread, int64_t batch, int64_t groups,
                                    int64_t channels, int64_t rows, const float *source, const float *w,
                                    const float *bias, float *target);
int32_t tl_cuda_conv_groups_weights(tl_context *ctx, const tl_conv_shape &s, int64_t batch, int64_t groups,
                                    int64_t channels, int64_t rows, const float *large, const float *small, float *gw);

/* What the jobs of kernels of such products have in common: their sizes, and how far apart a group's weights lie. */
template <class Job>
void tl_conv_set_group_sizes(Job &job, const tl_conv_shape &s, bool spread, int64_t groups, int64_t channels,
                             int64_t rows)
{
    job.channels = (uint32_t)channels, job.rows = (uint32_t)rows, job.taps = (uint32_t)s.taps;
    job.source_size = (uint32_t)(spread ? s.out_size : s.in_size);
    job.target_size = (uint32_t)(spread ? s.in_size : s.out_size);
    job.w_group = (uint64_t)(rows * channels * s.taps);
    job.w_row = (uint64_t)(spread ? s.taps : channels * s.taps);
    job.w_channel = (uint64_t)(spread ? rows * s.taps : s.taps);
    job.row = tl_fastdiv((uint64_t)rows), job.group = tl_fastdiv((uint64_t)groups);
}
