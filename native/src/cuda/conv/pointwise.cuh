/* The products of conv/direct.cu with a kernel of one tap and no strides (conv/pointwise.cu), with the same bits. */
#pragma once

#include "cuda/conv/conv.cuh"

/* large (batch, rows, size) from small (batch, channels, size); channels are cut as in conv/direct.cu. */
struct tl_conv_pointwise {
    const float *small, *w, *bias;
    float *large;
    int64_t batch, channels, rows, size;
    uint64_t w_channel, w_row;       /* strides of w */
    uint32_t groups, group_channels; /* of a part */
    uint32_t parts, part_channels;   /* `large` then has a first axis of parts */
};

/* Whether positions read the source at their own place alone. */
static inline bool tl_conv_is_pointwise(const tl_conv_shape &s)
{
    return s.rank == 1 && s.kernel[0] == 1 && s.stride[0] == 1 && s.padding[0] == 0 && s.in[0] == s.out[0];
}

int32_t tl_cuda_conv_pointwise(tl_context *ctx, const tl_conv_pointwise &product);
