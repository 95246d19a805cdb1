/* The products that convolutions consist of, on CUDA: positions and taps as conv/mma_product.cu and conv/mma_weights.cu see
 * them.
 *
 * Which taps of a position fall inside the source is one bit per tap, worked out once per position; a load is then an
 * addition, a bit test and a copy that fills in zeros. Taps are taken CHUNK at a time so that the bits fit one word.
 * Within a chunk the order is channel by channel, tap by tap, so with
 * at most CHUNK taps it is the order of formula/conv_geometry.h. */
#pragma once

#include "cuda/device/division.cuh"
#include "cuda/runtime/launch.cuh"
#include "formula/conv_geometry.h"

namespace tl_conv {

constexpr int CHUNK = 31;

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
    uint32_t bits = 0;
    if (g.taps_size <= CHUNK) { /* one run in every period of taps·inner bits */
        bits = (1u << (int)(high * inner)) - (1u << (int)(low * inner));
        for (int period = (int)(taps * inner); period < n; period *= 2)
            bits |= bits << period;
        return bits;
    }
    int64_t run = first % inner, tap = first / inner % taps;
    for (int t = 0; t < n; t++) {
        if (tap >= low && tap < high) bits |= 1u << t;
        if (++run == inner) {
            run = 0;
            tap = tap + 1 == taps ? 0 : tap + 1;
        }
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

/* The source index that tap t adds, modulo 2^32. */
static __device__ __forceinline__ uint32_t tap_offset(const tl_conv_gather &g, int64_t t)
{
    int64_t offset = 0, from = 1;
    for (int d = g.rank - 1; d >= 0; d--) {
        offset += t % g.taps[d] * g.tap_step[d] * from;
        from *= g.source[d];
        t /= g.taps[d];
    }
    return (uint32_t)offset;
}

} // namespace tl_conv

/* Into how many segments, at most `most`, the sums of a weight gradient's `tiles` are cut: the number that fills whole waves
 * of `wave` blocks best, the smallest of those within 1/32 of the best. */
static inline int64_t tl_conv_segments(int64_t tiles, int64_t most, int64_t wave)
{
    int64_t segments = 1;
    double best = 0;
    for (int64_t n = 1; n <= most; n++) {
        const double filled = (double)(tiles * n) / (double)(tl_ceil_div(tiles * n, wave) * wave);
        if (filled > best * (1 + 1.0 / 32)) best = filled, segments = n;
    }
    return segments;
}

/* small (batch, rows, *out) from large (batch, channels, *in) and w (rows, channels, *kernel), plus bias (NULL: none);
 * or, with `spread`, large (batch, rows, *in) from small (batch, channels, *out) and w (channels, rows, *kernel). */
int32_t tl_cuda_conv_product(tl_context *ctx, const tl_conv_shape &s, bool spread, int64_t batch, int64_t channels,
                             int64_t rows, const float *source, const float *w, const float *bias, float *target);
/* target (batch, rows, size) of n elements: the sums of partial (blocks, n) in order, plus bias (NULL: none). */
int32_t tl_cuda_conv_add(tl_context *ctx, const float *partial, int64_t blocks, int64_t n, const float *bias,
                         int64_t size, int64_t rows, float *target);
/* out (batch, rows, size) = bias[row], or 0 without a bias. */
int32_t tl_cuda_conv_fill(tl_context *ctx, const float *bias, int64_t batch, int64_t rows, int64_t size, float *out);
/* Whether conv/direct.cu serves such a product of few rows or terms, and that product. */
bool tl_cuda_conv_direct_serves(const tl_conv_shape &s, bool spread, int64_t batch, int64_t channels, int64_t rows);
int32_t tl_cuda_conv_direct(tl_context *ctx, const tl_conv_shape &s, bool spread, int64_t batch, int64_t channels,
                            int64_t rows, const float *source, const float *w, const float *bias, float *target);
/* gw (rows, channels, *kernel) from small (batch, rows, *out) and large (batch, channels, *in). All >= 1. */
int32_t tl_cuda_conv_weights(tl_context *ctx, const tl_conv_shape &s, int64_t batch, int64_t channels, int64_t rows,
                             const float *large, const float *small, float *gw);
