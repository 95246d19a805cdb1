/* The products that convolutions consist of, on CUDA: what conv_product.cu and conv_weights.cu share.
 *
 * Which taps of a position fall inside the source is one bit per tap, worked out once per position; a load is then an
 * addition, a bit test and a copy that fills in zeros. Taps are taken CHUNK at a time so that the bits fit one word;
 * bit CHUNK is never set and stands for padding. Within a chunk the order is channel by channel, tap by tap, so with
 * at most CHUNK taps it is the order of formula/conv_geometry.h. */
#ifndef TL_CONV_CUH
#define TL_CONV_CUH

#include "../formula/conv_geometry.h"
#include "common.cuh"

namespace tl_conv {

constexpr int CHUNK = 63;
/* Steps of the inner dimension whose sums form one chain of fused multiply-adds; the blocks are added in order. */
constexpr int BLOCK = 256;
/* Steps a pipeline stage holds, and stages: three in flight while one is used. */
constexpr int STEPS = 8, STAGES = 4;

static __device__ __forceinline__ uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* Copies one float to shared memory, or writes 0. */
static __device__ __forceinline__ void copy_or_zero(uint32_t to, const float *from, bool copy)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(copy ? 4 : 0) : "memory");
}

static __device__ __forceinline__ void copy_16(uint32_t to, const float *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

static __device__ __forceinline__ void stage_end() { asm volatile("cp.async.commit_group;" ::: "memory"); }

/* All stages but the newest STAGES - 2 have arrived (this thread's part of them). */
static __device__ __forceinline__ void stage_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
}

/* A block's tile of a product, BM x BN. A warp has 8·TM rows by 32 columns, its lanes 8 x 4, a thread TM x 8: the rows
 * lane / 4 · 4 + 0..3 (and 32 further on with TM = 8), the columns lane % 4 · 4 + 0..3 and 16 further on. A step's
 * 16-byte reads of shared memory then touch 128 and 64 consecutive bytes, without bank conflicts. */
template <int BM_, int BN_> struct Tile {
    static constexpr int BM = BM_, BN = BN_, TM = BM >= 64 ? 8 : 4, WARP_ROWS = 8 * TM;
    static constexpr int WARPS_M = BM / WARP_ROWS, THREADS = WARPS_M * (BN / 32) * 32;

    static __device__ __forceinline__ int row(int r)
    {
        return (int)threadIdx.x / 32 % WARPS_M * WARP_ROWS + (int)threadIdx.x % 32 / 4 * 4 + r / 4 * 32 + r % 4;
    }
    static __device__ __forceinline__ int column(int c)
    {
        return (int)threadIdx.x / 32 / WARPS_M * 32 + (int)threadIdx.x % 4 * 4 + c / 4 * 16 + c % 4;
    }

    /* sum += one stage; LA, LB: floats from step to step. */
    template <int LA, int LB>
    static __device__ __forceinline__ void multiply(const float *a, const float *b, float (&sum)[TM][8])
    {
        const float *from_a = a + row(0), *from_b = b + column(0);
#pragma unroll
        for (int k = 0; k < STEPS; k++) {
            float x[TM], y[8];
#pragma unroll
            for (int r = 0; r < TM; r += 4) {
                const float4 v = tl_load4(from_a + k * LA + r * 8);
                x[r] = v.x, x[r + 1] = v.y, x[r + 2] = v.z, x[r + 3] = v.w;
            }
#pragma unroll
            for (int c = 0; c < 8; c += 4) {
                const float4 v = tl_load4(from_b + k * LB + c * 4);
                y[c] = v.x, y[c + 1] = v.y, y[c + 2] = v.z, y[c + 3] = v.w;
            }
#pragma unroll
            for (int r = 0; r < TM; r++)
#pragma unroll
                for (int c = 0; c < 8; c++)
                    sum[r][c] = fmaf(x[r], y[c], sum[r][c]);
        }
    }
};

/* A thread's sums of one block go to base[row·row_stride + targets[column]], added to what is there with `add`, then
 * plus bias[row] (NULL: none), for rows below `rows` and columns below `left`. Four columns that are neighbours in
 * memory are one access. Indices are below 2^32 and computed modulo 2^32. */
template <class T>
static __device__ __forceinline__ void store_block(float *base, uint32_t row_stride, const uint32_t *targets, int left,
                                                   uint32_t row0, uint32_t rows, bool add, const float *bias,
                                                   float (&sum)[T::TM][8])
{
#pragma unroll
    for (int c = 0; c < 8; c += 4) {
        const int column = T::column(c);
        if (column >= left)
            continue;
        const uint32_t at = targets[column];
        const bool four = column + 3 < left && targets[column + 1] == at + 1 && targets[column + 2] == at + 2 &&
                          targets[column + 3] == at + 3;
#pragma unroll
        for (int r = 0; r < T::TM; r++) {
            const uint32_t row = row0 + T::row(r);
            if (row >= rows)
                continue;
            const float b = bias ? bias[row] : 0.0f;
            float *to = base + (uint32_t)(row * row_stride + at);
            if (four && tl_aligned4(to)) {
                float4 v = make_float4(sum[r][c], sum[r][c + 1], sum[r][c + 2], sum[r][c + 3]);
                if (add) {
                    const float4 o = tl_load4(to);
                    v = make_float4(o.x + v.x, o.y + v.y, o.z + v.z, o.w + v.w);
                }
                if (bias)
                    v = make_float4(v.x + b, v.y + b, v.z + b, v.w + b);
                tl_store4(to, v);
            } else {
#pragma unroll
                for (int e = 0; e < 4; e++)
                    if (column + e < left) {
                        float *one = base + (uint32_t)(row * row_stride + targets[column + e]);
                        float v = sum[r][c + e];
                        if (add)
                            v = *one + v;
                        *one = bias ? v + b : v;
                    }
            }
        }
    }
}

/* Bits of taps first .. first + n - 1 (n <= CHUNK) along one axis, whose coordinate with tap 0 is c; `inner` is the
 * number of taps of the axes after it. */
static __device__ __forceinline__ uint64_t axis_bits(const tl_conv_gather &g, int d, int64_t c, int64_t inner,
                                                     int64_t first, int n)
{
    const int64_t taps = g.taps[d], size = g.source[d], step = g.tap_step[d], end = c + (taps - 1) * step;
    if (c >= 0 && c < size && end >= 0 && end < size)
        return ~UINT64_C(0);
    uint64_t bits = 0;
    int64_t run = first % inner, tap = first / inner % taps;
    for (int t = 0; t < n; t++) {
        const int64_t at = c + tap * step;
        if (at >= 0 && at < size)
            bits |= UINT64_C(1) << t;
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
    uint32_t source, target;
    uint64_t inside;
};

/* A call: it is rare, and its registers are not worth those of a product's sums. */
static __device__ __noinline__ Position position_of(const tl_conv_gather &g, uint32_t at, int64_t first, int n)
{
    Position p = {0, 0, (UINT64_C(1) << n) - 1};
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

/* small (batch, rows, *out) from large (batch, channels, *in) and w (rows, channels, *kernel), plus bias (NULL: none);
 * or, with `spread`, large (batch, rows, *in) from small (batch, channels, *out) and w (channels, rows, *kernel). */
int32_t tl_cuda_conv_product(tl_context *ctx, const tl_conv_shape &s, bool spread, int64_t batch, int64_t channels,
                             int64_t rows, const float *source, const float *w, const float *bias, float *target);
/* gw (rows, channels, *kernel) from small (batch, rows, *out) and large (batch, channels, *in). All >= 1. */
int32_t tl_cuda_conv_weights(tl_context *ctx, const tl_conv_shape &s, int64_t batch, int64_t channels, int64_t rows,
                             const float *large, const float *small, float *gw);

#endif
