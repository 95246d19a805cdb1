/* Convolutions as both back ends see them: merged axes, and the gather that turns one into a matrix product.
 *
 * A convolution joins a large array (`in`: the input of conv, the output of conv_transpose) and a small one (`out`): in[j·stride
 * + k·dilation - padding] meets out[j] with kernel offset k. Both directions are products whose right factor is gathered:
 *     correlate   small from large: position j reads large[j·stride + k·dilation - padding]
 *     spread      large from small: position i reads small[(i + padding - k·dilation) / stride] for the k that divide
 * For a spread with strides the positions i and offsets k are split by their residues: i + padding and k·dilation must agree
 * modulo stride on every axis, so each combination of residues (a phase) is a dense product of its own. Offsets of one phase
 * are stride / gcd(stride, dilation) apart. The padding is that before an axis; that after it shows in the sizes alone.
 *
 * The terms of an element are summed channel by channel and, within a channel, offset by offset, row-major; CUDA takes the
 * offsets of large kernels some at a time (cuda/conv/conv.cuh). */
#pragma once

#include "integer.h"

enum { TL_CONV_RANK = 8 };

typedef struct tl_conv_shape {
    int32_t rank;
    int64_t in[TL_CONV_RANK], out[TL_CONV_RANK], kernel[TL_CONV_RANK], stride[TL_CONV_RANK], padding[TL_CONV_RANK];
    int64_t dilation[TL_CONV_RANK];
    int64_t in_size, out_size, taps; /* products */
} tl_conv_shape;

/* Axes on which nothing happens (kernel and stride 1, no padding) are joined with their neighbours of that kind, so a
 * 1×1 convolution has one axis and a run along the last axis is as long as it can be. */
TL_HD tl_conv_shape tl_conv_merge(int32_t rank, const int64_t *in, const int64_t *out, const int64_t *kernel,
                                  const int64_t *stride, const int64_t *padding, const int64_t *dilation)
{
    tl_conv_shape s;
    int plain_before = 0;
    s.rank = 0;
    s.in_size = s.out_size = s.taps = 1;
    for (int32_t d = 0; d < rank; d++) {
        const int plain = kernel[d] == 1 && padding[d] == 0 && in[d] == out[d] && (stride[d] == 1 || in[d] == 1);
        s.in_size *= in[d];
        s.out_size *= out[d];
        s.taps *= kernel[d];
        if (plain && plain_before) {
            s.in[s.rank - 1] *= in[d];
            s.out[s.rank - 1] *= out[d];
            continue;
        }
        s.in[s.rank] = in[d];
        s.out[s.rank] = out[d];
        s.kernel[s.rank] = kernel[d];
        s.stride[s.rank] = plain ? 1 : stride[d];
        s.dilation[s.rank] = kernel[d] == 1 ? 1 : dilation[d];
        s.padding[s.rank++] = padding[d];
        plain_before = plain;
    }
    return s;
}

/* A gather. Position j (row-major over `count`) and tap t (row-major over `taps`) read the source at
 *     j·step + base + t·tap_step   on every axis, 0 outside `source`;
 * tap t is the kernel offset t·kernel_step + kernel_base, and position j the target's element j·to_step + to_base. */
typedef struct tl_conv_gather {
    int32_t rank;
    int64_t positions, taps_size, source_size, target_size;
    int64_t count[TL_CONV_RANK], taps[TL_CONV_RANK], source[TL_CONV_RANK], target[TL_CONV_RANK], kernel[TL_CONV_RANK];
    int64_t step[TL_CONV_RANK], base[TL_CONV_RANK], tap_step[TL_CONV_RANK];
    int64_t kernel_step[TL_CONV_RANK], kernel_base[TL_CONV_RANK], to_step[TL_CONV_RANK], to_base[TL_CONV_RANK];
} tl_conv_gather;

TL_HD tl_conv_gather tl_conv_correlate(const tl_conv_shape *s)
{
    tl_conv_gather g;
    g.rank = s->rank;
    g.positions = g.target_size = s->out_size;
    g.taps_size = s->taps;
    g.source_size = s->in_size;
    for (int32_t d = 0; d < s->rank; d++) {
        g.count[d] = g.target[d] = s->out[d];
        g.taps[d] = g.kernel[d] = s->kernel[d];
        g.source[d] = s->in[d];
        g.step[d] = s->stride[d];
        g.base[d] = -s->padding[d];
        g.tap_step[d] = s->dilation[d];
        g.kernel_step[d] = g.to_step[d] = 1;
        g.kernel_base[d] = g.to_base[d] = 0;
    }
    return g;
}

/* The steps of a position and of a kernel offset after which their residues come again, along one axis: stride and dilation
 * without their common factor. */
TL_HD int64_t tl_conv_period(const tl_conv_shape *s, int32_t d, int64_t *positions)
{
    const int64_t common = tl_gcd(s->stride[d], s->dilation[d]);
    *positions = s->dilation[d] / common;
    return s->stride[d] / common;
}

/* The residues of kernel offsets along one axis, a phase each. */
TL_HD int64_t tl_conv_residues(const tl_conv_shape *s, int32_t d)
{
    int64_t unused;
    const int64_t period = tl_conv_period(s, d, &unused);
    return period < s->kernel[d] ? period : s->kernel[d];
}

/* Phases of a spread that have a kernel offset. */
TL_HD int64_t tl_conv_phases(const tl_conv_shape *s)
{
    int64_t phases = 1;
    for (int32_t d = 0; d < s->rank; d++)
        phases *= tl_conv_residues(s, d);
    return phases;
}

/* Whether the phases leave elements of the large array without any term (as with a stride above the kernel). */
TL_HD int tl_conv_has_gaps(const tl_conv_shape *s)
{
    for (int32_t d = 0; d < s->rank; d++)
        if (s->stride[d] > tl_conv_residues(s, d)) return 1;
    return 0;
}

/* The gather of one phase; its positions may be 0. */
TL_HD tl_conv_gather tl_conv_spread(const tl_conv_shape *s, int64_t phase)
{
    tl_conv_gather g;
    g.rank = s->rank;
    g.positions = g.taps_size = 1;
    g.source_size = s->out_size;
    g.target_size = s->in_size;
    for (int32_t d = s->rank - 1; d >= 0; d--) {
        int64_t back;
        const int64_t stride = s->stride[d], residues = tl_conv_residues(s, d), period = tl_conv_period(s, d, &back);
        const int64_t k = phase % residues, r = k * s->dilation[d];
        const int64_t first = ((r - s->padding[d]) % stride + stride) % stride; /* least i with i + padding ≡ r */
        phase /= residues;
        g.count[d] = first < s->in[d] ? (s->in[d] - first + stride - 1) / stride : 0;
        g.taps[d] = (s->kernel[d] - k + period - 1) / period;
        g.target[d] = s->in[d];
        g.source[d] = s->out[d];
        g.kernel[d] = s->kernel[d];
        g.step[d] = 1;
        g.base[d] = (first + s->padding[d] - r) / stride;
        g.tap_step[d] = -back;
        g.kernel_step[d] = period;
        g.to_step[d] = stride;
        g.kernel_base[d] = k;
        g.to_base[d] = first;
        g.positions *= g.count[d];
        g.taps_size *= g.taps[d];
    }
    return g;
}

/* The row-major kernel offset of tap t. */
TL_HD int64_t tl_conv_kernel_index(const tl_conv_gather *g, int64_t t)
{
    int64_t index = 0, stride = 1;
    for (int32_t d = g->rank - 1; d >= 0; d--) {
        index += (t % g->taps[d] * g->kernel_step[d] + g->kernel_base[d]) * stride;
        stride *= g->kernel[d];
        t /= g->taps[d];
    }
    return index;
}
