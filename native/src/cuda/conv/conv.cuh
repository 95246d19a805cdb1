/* The products that convolutions consist of, on CUDA: positions and taps as mma_product.cu and mma_weights.cu see them.
 *
 * Which taps of a position fall inside the source is one bit per tap, worked out once per position; a load is then an
 * addition, a bit test and a copy that fills in zeros. Taps are taken CHUNK at a time so that the bits fit one word. Within
 * a chunk the order is channel by channel, tap by tap: with at most CHUNK taps that of formula/conv_geometry.h. */
#pragma once

#include "cuda/conv/select.h"
#include "cuda/device/division.cuh"
#include "cuda/runtime/launch.cuh"

namespace tl_conv {

constexpr int CHUNK = TL_CONV_CHUNK;

/* Bits of taps first .. first + n - 1 (n <= CHUNK) along one axis, whose coordinate with tap 0 is c; `inner` is the
 * number of taps of the axes after it. Taps move by one distance, so those inside are a run. */
static __device__ __forceinline__ uint32_t axis_bits(const tl_conv_gather &g, int d, int64_t c, int64_t inner,
                                                     int64_t first, int n)
{
    const int64_t taps = g.taps[d], room = g.source[d] - c, move = g.tap_step[d] > 0 ? g.tap_step[d] : -g.tap_step[d];
    int64_t begin = g.tap_step[d] > 0 ? -c : 1 - room, stop = g.tap_step[d] > 0 ? room : c + 1;
    if (move > 1) {
        begin = begin > 0 ? tl_ceil_div(begin, move) : 0;
        stop = stop > 0 ? tl_ceil_div(stop, move) : 0;
    }
    const int64_t low = begin > 0 ? begin : 0, high = stop < taps ? stop : taps;
    if (low >= high) return 0;
    if (high - low == taps) return ~0u;
    /* one run in every period of taps·inner bits, of which the first begins before the chunk or with it */
    const int64_t period = taps * inner, from = low * inner, to = high * inner;
    uint32_t bits = 0;
    for (int64_t at = -(int64_t)((uint32_t)first % (uint32_t)period); at < n; at += period) {
        const int64_t left = at + from > 0 ? at + from : 0, right = at + to < n ? at + to : n;
        if (left < right) bits |= (1u << (int)right) - (1u << (int)left);
    }
    return bits;
}

/* What a position reads: the source index with tap 0 (modulo 2^32, which is exact for what lies inside), the bits of a
 * chunk's taps, and the target index of channel 0. */
struct Position {
    uint32_t source, target, inside;
};

/* What a product's column (channel and tap, or padding) adds to a position: the source offset, and the tap's bit. */
static __device__ __forceinline__ uint2 column_entry(bool real, uint32_t offset, uint32_t tap)
{
    return real ? make_uint2(offset, 1u << tap) : make_uint2(0, 0);
}

/* A call: it is rare, and its registers are not worth those of a product's sums. */
static __device__ __noinline__ Position position_of(const tl_conv_gather &g, uint32_t at, int64_t first, int n)
{
    Position p = {0, 0, (1u << n) - 1};
    int64_t from = 1, to = 1, inner = 1;
    for (int d = g.rank - 1; d >= 0; d--) {
        const uint32_t count = (uint32_t)g.count[d], rest = at / count, j = at - rest * count;
        const int64_t c = (int64_t)j * g.step[d] + g.base[d];
        p.source += (uint32_t)(c * from);
        p.target += (uint32_t)(((int64_t)j * g.to_step[d] + g.to_base[d]) * to);
        p.inside &= axis_bits(g, d, c, inner, first, n);
        from *= g.source[d];
        to *= g.target[d];
        inner *= g.taps[d];
        at = rest;
    }
    return p;
}

/* The target index of a position alone. */
static __device__ __forceinline__ uint32_t target_of(const tl_conv_gather &g, uint32_t at)
{
    uint32_t target = 0, to = 1;
    for (int d = g.rank - 1; d >= 0; d--) {
        const uint32_t count = (uint32_t)g.count[d], rest = at / count, j = at - rest * count;
        target += (j * (uint32_t)g.to_step[d] + (uint32_t)g.to_base[d]) * to;
        to *= (uint32_t)g.target[d];
        at = rest;
    }
    return target;
}

/* What a tap adds to a source index, modulo 2^32, and its row-major kernel offset. */
struct TapOffsets {
    uint32_t source;
    int64_t kernel;

    __device__ __forceinline__ TapOffsets(const tl_conv_gather &g, int64_t t) : source(0), kernel(0)
    {
        uint32_t left = (uint32_t)t, from = 1;
        int64_t stride = 1;
        for (int d = g.rank - 1; d >= 0; d--) {
            const uint32_t taps = (uint32_t)g.taps[d], rest = left / taps, at = left - rest * taps;
            source += at * (uint32_t)g.tap_step[d] * from;
            kernel += (at * g.kernel_step[d] + g.kernel_base[d]) * stride;
            from *= (uint32_t)g.source[d];
            stride *= g.kernel[d];
            left = rest;
        }
    }
};

} // namespace tl_conv

/* Whether every position reads its own place alone; such axes are joined. */
static inline bool tl_conv_is_plain(const tl_conv_shape &s)
{
    return s.rank == 1 && s.taps == 1 && s.stride[0] == 1 && s.padding[0] == 0 && s.in[0] == s.out[0];
}

/* small (batch, groups, rows, *out) from large (batch, groups, channels, *in) and w (groups, rows, channels, *kernel), plus bias
 * (NULL: none); or, with `spread`, large (batch, groups, rows, *in) from small (batch, groups, channels, *out) and
 * w (groups, channels, rows, *kernel). */
struct tl_conv_product {
    tl_conv_shape s;
    bool spread;
    int64_t batch, groups, channels, rows;
    const float *source, *w, *bias;
    float *target;

    int64_t target_size() const { return spread ? s.in_size : s.out_size; }
    /* Strides of w. */
    int64_t row_stride() const { return spread ? s.taps : channels * s.taps; }
    int64_t channel_stride() const { return spread ? rows * s.taps : s.taps; }
    /* Phases, and the gather of one, whose positions may be 0; whether they leave elements of the target out. */
    int64_t phases() const { return spread ? tl_conv_phases(&s) : 1; }
    tl_conv_gather phase(int64_t i) const { return spread ? tl_conv_spread(&s, i) : tl_conv_correlate(&s); }
    bool has_gaps() const { return spread && tl_conv_has_gaps(&s); }
};

/* gw (groups, rows, channels, *kernel) from small (batch, groups, rows, *out) and large (batch, groups, channels, *in). */
struct tl_conv_gradient {
    tl_conv_shape s;
    int64_t batch, groups, channels, rows;
    const float *large, *small;
    float *gw;
};

/* By each algorithm of conv/select.h. All of batch, groups, channels and rows >= 1; those without groups take one. */
int32_t tl_conv_chain(tl_context *ctx, const tl_conv_product &p);
int32_t tl_conv_direct(tl_context *ctx, const tl_conv_product &p);
int32_t tl_conv_direct_tiles(tl_context *ctx, const tl_conv_product &p);
int32_t tl_conv_mma(tl_context *ctx, const tl_conv_product &p);
int32_t tl_conv_wgmma(tl_context *ctx, const tl_conv_product &p);
int32_t tl_conv_chain_weights(tl_context *ctx, const tl_conv_gradient &p);
int32_t tl_conv_direct_weights(tl_context *ctx, const tl_conv_gradient &p);
int32_t tl_conv_mma_weights(tl_context *ctx, const tl_conv_gradient &p);
int32_t tl_conv_wgmma_weights(tl_context *ctx, const tl_conv_gradient &p);
/* Whether the device runs the kernels of wgmma. */
bool tl_conv_wgmma_has_product(tl_context *ctx);
bool tl_conv_wgmma_has_weights(tl_context *ctx);
/* target = bias of its row, or 0 without a bias. */
int32_t tl_conv_fill(tl_context *ctx, const tl_conv_product &p);
