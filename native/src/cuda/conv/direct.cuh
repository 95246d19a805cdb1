/* Direct convolutions of groups of few channels, above all depthwise: bound by memory, so every thread sums the terms of its own
 * elements with fused multiply-adds, and neighbouring threads have neighbouring elements of the last axis. What the kernels of
 * products (conv/direct.cu) and of weight gradients (conv/direct_weights.cu) share. */
#pragma once

#include "cuda/conv/conv.cuh"

namespace tl_conv_direct_sums {

constexpr int THREADS = 128, AXES = TL_CONV_AXES;

/* A shape of lower rank has axes of length 1 before its own. `small` is the array of outputs of conv, `large` that of inputs. */
struct Job {
    const float *source, *w, *bias;
    float *target;
    uint32_t batch, channels, rows, source_size, target_size, taps;
    uint64_t w_group, w_row, w_channel;
    int32_t source_axes[AXES], target_axes[AXES], kernel[AXES], stride[AXES], dilation[AXES], padding[AXES];
    tl_fastdiv by_stride[AXES];
    int32_t step; /* of line_kernel's taps: 1, or -1 where it is a spread */
    uint64_t items;
    tl_fastdiv count1, count2, row, group; /* items along axes 1 and 2; rows, groups */
    tl_fastdiv lines, pairs;               /* items of a plane; pairs of channels of all groups */
};

/* What of a batch an item is: coordinates (at[2] in items), and the plane of the target. */
struct Item {
    uint32_t at[AXES], plane;

    __device__ __forceinline__ Item(const Job &job, uint32_t item)
    {
        uint32_t rest;
        plane = job.lines.divmod(item, &rest);
        at[0] = job.count1.divmod(job.count2.divmod(rest, &at[2]), &at[1]);
    }
};

static __device__ __forceinline__ float with(float sum, float x, float y) { return fmaf(x, y, sum); }
static __device__ __forceinline__ double with(double sum, float x, float y) { return fma((double)x, (double)y, sum); }

static inline Job job_of(const tl_conv_shape &s, bool spread, int64_t groups, int64_t channels, int64_t rows)
{
    Job job = {};
    job.channels = (uint32_t)channels, job.rows = (uint32_t)rows, job.taps = (uint32_t)s.taps;
    job.source_size = (uint32_t)(spread ? s.out_size : s.in_size);
    job.target_size = (uint32_t)(spread ? s.in_size : s.out_size);
    job.w_group = (uint64_t)(rows * channels * s.taps);
    job.w_row = (uint64_t)(spread ? s.taps : channels * s.taps);
    job.w_channel = (uint64_t)(spread ? rows * s.taps : s.taps);
    job.row = tl_fastdiv((uint64_t)rows), job.group = tl_fastdiv((uint64_t)groups);
    for (int d = 0; d < AXES; d++) {
        const int from = d - (AXES - s.rank);
        const bool own = from >= 0;
        job.source_axes[d] = own ? (int32_t)(spread ? s.out[from] : s.in[from]) : 1;
        job.target_axes[d] = own ? (int32_t)(spread ? s.in[from] : s.out[from]) : 1;
        job.kernel[d] = own ? (int32_t)s.kernel[from] : 1;
        job.stride[d] = own ? (int32_t)s.stride[from] : 1;
        job.dilation[d] = own ? (int32_t)s.dilation[from] : 1;
        job.padding[d] = own ? (int32_t)s.padding[from] : 0;
        job.by_stride[d] = tl_fastdiv((uint64_t)job.stride[d]);
    }
    return job;
}

/* Items: `width` neighbouring positions each, of `axes`, in `planes` planes. */
static inline void set_items(Job &job, const int32_t *axes, int64_t planes, int64_t width)
{
    const int64_t last = tl_ceil_div(axes[2], width);
    job.count1 = tl_fastdiv(axes[1]), job.count2 = tl_fastdiv(last);
    job.lines = tl_fastdiv((uint64_t)axes[0] * (uint64_t)axes[1] * (uint64_t)last);
    job.items = (uint64_t)planes * job.lines.divisor;
}

} // namespace tl_conv_direct_sums
