/* The problem of conv/wgmma_product.cu and conv/wgmma_pack.cu on the device, and where its pieces, sums, positions and taps lie. */
#pragma once

#include "cuda/conv/wgmma.cuh"

namespace tl_conv_wgmma {

constexpr int PHASES = 8; /* 2 x 2 x 2 strides */

/* One phase on the device: position q of its image is (j0, j1, j2), reads axis d of the source at j·step + base +
 * tap·tap_step, and is the target's element Σ (j·to_step + to_base)·to_stride. */
struct Phase {
    tl_fastdiv positions, count1, count2, taps, taps1, taps2;
    int32_t base[AXES], tap_step[AXES];
    uint32_t to_base, to_step[AXES]; /* to_stride is part of both */
    uint32_t first, columns;         /* first tile; positions of the batch */
    uint32_t steps;
    /* Taps that lie inside for some position, a box: how many, along the last axes, the first ones; steps of these alone. */
    tl_fastdiv kept, kept1, kept2;
    uint32_t kept_from[AXES], kept_steps;
    uint32_t kernel_base, kernel_step[AXES]; /* the kernel's element of a tap, with its strides */
    float *packed;                           /* (64 rows, kept step, q, thread, element of a fragment) */
};

struct Job {
    const float *source, *w, *bias;
    float *target;
    float *partial; /* (segment, the target's elements), or NULL */
    float *total;   /* (thread block, warp group, float4 of a thread, thread of the group, 4), or NULL */
    uint64_t target_elements;
    tl_fastdiv segments;
    uint32_t pieces, run; /* segments of all tiles; neighbouring ones that a thread block gets at a time */
    uint32_t channels, rows, source_size, target_size, channel_blocks, row_tiles, row_groups, phases;
    uint32_t w_row, w_channel; /* strides of w */
    int32_t step[AXES], extent[AXES];
    uint32_t stride[AXES]; /* of the source */
    Phase phase[PHASES];
};

/* A tap, and what its weight adds to an index. */
struct TapPlace {
    uint32_t at[AXES];

    __device__ __forceinline__ uint32_t weight(const Phase &phase) const
    {
        return phase.kernel_base + at[0] * phase.kernel_step[0] + at[1] * phase.kernel_step[1] +
               at[2] * phase.kernel_step[2];
    }
};

__device__ __forceinline__ TapPlace tap_of(const Phase &phase, uint32_t t)
{
    TapPlace tap;
    tap.at[0] = phase.taps1.divmod(phase.taps2.divmod(t, &tap.at[2]), &tap.at[1]);
    return tap;
}

__device__ __forceinline__ TapPlace kept_tap_of(const Phase &phase, uint32_t t)
{
    TapPlace tap;
    tap.at[0] = phase.kept1.divmod(phase.kept2.divmod(t, &tap.at[2]), &tap.at[1]) + phase.kept_from[0];
    tap.at[1] += phase.kept_from[1], tap.at[2] += phase.kept_from[2];
    return tap;
}

/* The number of a kept step among all of a phase. */
__device__ __forceinline__ uint32_t kept_step_of(const Phase &phase, uint32_t kept)
{
    uint32_t t;
    const uint32_t block = phase.kept.divmod(kept, &t);
    const TapPlace tap = kept_tap_of(phase, t);
    const uint32_t line = tap.at[0] * phase.taps1.divisor + tap.at[1];
    return block * phase.taps.divisor + line * phase.taps2.divisor + tap.at[2];
}

/* How many of a phase's steps before `step` are kept. */
TL_HD uint32_t kept_before(const Phase &phase, uint32_t step)
{
    if (phase.kept_steps == phase.steps) return step;
    uint32_t t, at[AXES], kept = 0;
    const uint32_t block = phase.taps.divmod(step, &t);
    at[0] = phase.taps1.divmod(phase.taps2.divmod(t, &at[2]), &at[1]);
    const uint32_t lines = phase.kept1.divisor * phase.kept2.divisor;
    const uint32_t count[AXES] = {phase.kept.divisor / lines, phase.kept1.divisor, phase.kept2.divisor};
    bool equal = true; /* so far to a kept tap's place */
    for (int d = 0; d < AXES; d++) {
        const uint32_t past = at[d] < phase.kept_from[d] ? 0 : at[d] - phase.kept_from[d];
        kept = kept * count[d] + (!equal ? 0 : past < count[d] ? past : count[d]);
        equal = equal && at[d] >= phase.kept_from[d] && past < count[d];
    }
    return block * phase.kept.divisor + kept;
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* Where a piece lies: a segment of a tile. */
struct Place {
    uint32_t phase, row_tile, column0, segment;

    __device__ __forceinline__ Place(const Job &job, uint32_t piece, uint32_t columns)
    {
        const uint32_t tile = job.segments.divmod(piece, &segment);
        phase = 0;
        while (phase + 1 < job.phases && tile >= job.phase[phase + 1].first)
            phase++;
        const uint32_t local = tile - job.phase[phase].first, column = local / job.row_tiles;
        row_tile = local - column * job.row_tiles;
        column0 = column * columns;
    }
    /* The first step of the segment, or with NEXT of the one after it. */
    template <int NEXT> __device__ __forceinline__ uint32_t first(const Job &job) const
    {
        return job.segments.div((segment + NEXT) * job.phase[phase].steps);
    }
    /* The same among the kept steps. */
    template <int NEXT> __device__ __forceinline__ uint32_t first_kept(const Job &job) const
    {
        return kept_before(job.phase[phase], first<NEXT>(job));
    }
    __device__ __forceinline__ int steps(const Job &job) const
    {
        return (int)(first_kept<1>(job) - first_kept<0>(job));
    }
};

/* Where a tile's sums go, or a piece's that are kept separately, and what is added to them. */
struct Sink {
    float *to;
    const float *bias;

    __device__ __forceinline__ Sink(const Job &job, uint32_t segment)
        : to(job.partial ? job.partial + segment * job.target_elements : job.target),
          bias(job.partial ? nullptr : job.bias)
    {}
};

/* A position: coordinates with tap 0, what they and the image add to the source index (modulo 2^32), and the target
 * index in row 0. One past the columns is outside with every tap. */
struct Position {
    int32_t c[AXES];
    uint32_t source, target;

    __device__ __forceinline__ void find(const Job &job, const Phase &phase, uint32_t q)
    {
        uint32_t at, j[AXES];
        const uint32_t image = phase.positions.divmod(q, &at);
        j[0] = phase.count1.divmod(phase.count2.divmod(at, &j[2]), &j[1]);
        source = image * job.channels * job.source_size;
        target = image * job.rows * job.target_size + phase.to_base;
        TL_UNROLL_FOR (int d = 0; d < AXES; d++) {
            c[d] = (int32_t)j[d] * job.step[d] + phase.base[d];
            source += (uint32_t)c[d] * job.stride[d];
            target += j[d] * phase.to_step[d];
        }
        if (q >= phase.columns) c[0] = INT32_MIN / 2;
    }
};

/* A tap: what it adds to coordinates and to a source index. */
struct Tap {
    int32_t d[AXES];
    uint32_t source;

    __device__ __forceinline__ Tap(const Job &job, const Phase &phase, const TapPlace &place)
    {
        TL_UNROLL_FOR (int i = 0; i < AXES; i++)
            d[i] = (int32_t)place.at[i] * phase.tap_step[i];
        source = (uint32_t)d[0] * job.stride[0] + (uint32_t)d[1] * job.stride[1] + (uint32_t)d[2] * job.stride[2];
    }
    __device__ __forceinline__ bool inside(const Job &job, const Position &p) const
    {
        return (uint32_t)(p.c[0] + d[0]) < (uint32_t)job.extent[0] &&
               (uint32_t)(p.c[1] + d[1]) < (uint32_t)job.extent[1] &&
               (uint32_t)(p.c[2] + d[2]) < (uint32_t)job.extent[2];
    }
};

#endif

} /* namespace tl_conv_wgmma */

/* Writes the weights, of so many taps, where the phases' `packed` says, at most `most_steps` kept steps in each
 * (conv/wgmma_pack.cu). */
int32_t tl_conv_wgmma_pack(tl_context *ctx, const tl_conv_wgmma::Job &job, uint32_t taps, uint32_t most_steps);
