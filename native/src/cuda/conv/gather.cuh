/* A gather of at most three axes (formula/conv_geometry.h) as kernels read it: what direct_tiles.cu, wgmma_product.cu and
 * wgmma_weights.cu share. */
#pragma once

#include "cuda/conv/conv.cuh"
#include "cuda/device/unroll.cuh"

namespace tl_conv_gathers {

constexpr int AXES = TL_CONV_AXES; /* a shape of lower rank has axes of length 1 before its own */

/* What a gather reads: channels of `source_size` elements, axes of `extent` elements `stride` apart; position j begins at j·step +
 * base (of its phase). */
struct Arrays {
    uint32_t channels, rows, source_size, target_size;
    int32_t step[AXES], extent[AXES];
    uint32_t stride[AXES];
};

/* One phase on the device: position q of its image is (j0, j1, j2), reads axis d of the source at j·step + base +
 * tap·tap_step, and is the target's element Σ (j·to_step + to_base)·to_stride. */
struct Phase {
    tl_fastdiv positions, count1, count2, taps, taps1, taps2;
    int32_t base[AXES], tap_step[AXES];
    uint32_t to_base, to_step[AXES];         /* to_stride is part of both */
    uint32_t columns, steps;                 /* positions of the batch; blocks of channels times taps */
    uint32_t kernel_base, kernel_step[AXES]; /* the kernel's element of a tap, with its strides */
    uint32_t first, first_step;              /* tile; step of all phases, both of wgmma_product.cu */
};

/* A tap, and what it adds to a source index and its weight to an index of the weights. */
struct TapPlace {
    uint32_t at[AXES];

    __device__ __forceinline__ TapPlace(const Phase &phase, uint32_t t)
    {
        at[0] = phase.taps1.divmod(phase.taps2.divmod(t, &at[2]), &at[1]);
    }
    __device__ __forceinline__ uint32_t source(const Arrays &arrays, const Phase &phase) const
    {
        uint32_t sum = 0;
        TL_UNROLL_FOR (int d = 0; d < AXES; d++)
            sum += at[d] * (uint32_t)phase.tap_step[d] * arrays.stride[d];
        return sum;
    }
    __device__ __forceinline__ uint32_t weight(const Phase &phase) const
    {
        return phase.kernel_base + at[0] * phase.kernel_step[0] + at[1] * phase.kernel_step[1] +
               at[2] * phase.kernel_step[2];
    }
};

/* A position: coordinates with tap 0, what they and the image add to the source index (modulo 2^32), and the target
 * index in row 0. One past the columns is outside with every tap. */
struct Position {
    int32_t c[AXES];
    uint32_t source, target;

    __device__ __forceinline__ void find(const Arrays &arrays, const Phase &phase, uint32_t q)
    {
        uint32_t at, j[AXES];
        const uint32_t image = phase.positions.divmod(q, &at);
        j[0] = phase.count1.divmod(phase.count2.divmod(at, &j[2]), &j[1]);
        source = image * arrays.channels * arrays.source_size;
        target = image * arrays.rows * arrays.target_size + phase.to_base;
        TL_UNROLL_FOR (int d = 0; d < AXES; d++) {
            c[d] = (int32_t)j[d] * arrays.step[d] + phase.base[d];
            source += (uint32_t)c[d] * arrays.stride[d];
            target += j[d] * phase.to_step[d];
        }
        if (q >= phase.columns) c[0] = INT32_MIN / 2;
    }
};

static inline Arrays arrays_of(const tl_conv_gather &g, int64_t channels, int64_t rows)
{
    Arrays a = {};
    a.channels = (uint32_t)channels, a.rows = (uint32_t)rows;
    a.source_size = (uint32_t)g.source_size, a.target_size = (uint32_t)g.target_size;
    int64_t stride = 1;
    for (int d = AXES - 1; d >= 0; d--) {
        const int from = d - (AXES - g.rank);
        a.extent[d] = from < 0 ? 1 : (int32_t)g.source[from];
        if (from < 0) continue;
        a.step[d] = (int32_t)g.step[from], a.stride[d] = (uint32_t)stride;
        stride *= g.source[from];
    }
    return a;
}

/* `channel_blocks`: those of which a step takes one. */
static inline Phase phase_of(const tl_conv_gather &g, int64_t batch, int64_t channel_blocks)
{
    Phase phase = {};
    const int skip = AXES - g.rank;
    int64_t count[AXES] = {1, 1, 1}, taps[AXES] = {1, 1, 1}, to = 1, kernel = 1;
    for (int d = g.rank - 1; d >= 0; d--) {
        count[skip + d] = g.count[d];
        taps[skip + d] = g.taps[d];
        phase.base[skip + d] = (int32_t)g.base[d];
        phase.tap_step[skip + d] = (int32_t)g.tap_step[d];
        phase.to_base += (uint32_t)(g.to_base[d] * to);
        phase.to_step[skip + d] = (uint32_t)(g.to_step[d] * to);
        phase.kernel_base += (uint32_t)(g.kernel_base[d] * kernel);
        phase.kernel_step[skip + d] = (uint32_t)(g.kernel_step[d] * kernel);
        to *= g.target[d];
        kernel *= g.kernel[d];
    }
    phase.positions = tl_fastdiv(g.positions);
    phase.count1 = tl_fastdiv(count[1]), phase.count2 = tl_fastdiv(count[2]);
    phase.taps = tl_fastdiv(g.taps_size), phase.taps1 = tl_fastdiv(taps[1]), phase.taps2 = tl_fastdiv(taps[2]);
    phase.columns = (uint32_t)(batch * g.positions);
    phase.steps = (uint32_t)(channel_blocks * g.taps_size);
    return phase;
}

} // namespace tl_conv_gathers
