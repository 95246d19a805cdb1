/* The weights of a convolution's products by wgmma (conv/wgmma_product.cu) in the order of its fragments, NaN for one that does not
 * split, which makes every result it has a part in not finite.
 *
 *   boxes_kernel   kernels of more taps than a sector of memory holds: a block reads all taps of 16 rows and eight channels, which
 *                  lie in whole lines, and a warp writes what one step takes of them, which is one line
 *   pack_kernel    the others */
#include <algorithm>

#include "cuda/conv/wgmma_place.cuh"

using namespace tl_conv_wgmma;

namespace {

constexpr int PARTS = STEP / 8; /* thread blocks that pack a step, eight channels each */

/* The weights of a step that a thread packs: at (row % 16 / 8, channel % 8 / 4) from its first row on, and its first channel of
 * `block`; zeros of a step that is not there. */
struct StepWeights {
    float at[4];

    __device__ __forceinline__ StepWeights(const Job &job, const Phase &phase, uint32_t row0, uint32_t block,
                                           const TapPlace &tap, bool there)
    {
        const uint32_t channel0 = block * STEP + 8 * (blockIdx.x % PARTS) + threadIdx.x % 4, kernel = tap.weight(phase);
        TL_UNROLL_FOR (int e = 0; e < 4; e++) {
            const uint32_t row = row0 + e % 2 * 8, channel = channel0 + e / 2 * 4;
            const bool real = there && row < job.rows && channel < job.channels;
            at[e] = real ? __ldg(job.w + (row * job.w_row + channel * job.w_channel + kernel)) : 0.0f;
        }
    }
    /* Which weights (a bit each) do not split. */
    __device__ __forceinline__ uint32_t unsafe() const
    {
        uint32_t bits = 0;
        TL_UNROLL_FOR (int e = 0; e < 4; e++)
            if (tl_split_unsafe(at[e])) bits |= 1u << e;
        return bits;
    }
};

/* The steps begin .. end - 1 of which a kept one stands for those that are left out: with NaN in place of a weight for one of theirs
 * that does not split a piece is computed again just as if all steps were there. They lie in its segment and its block of channels:
 * behind it up to the next kept one and, if it is the first there, before it. Where a segment has steps of a block but keeps none,
 * its first or its last kept one stands for them. */
struct StandsFor {
    uint32_t step, begin, end;

    __device__ __forceinline__ StandsFor(const Job &job, const Phase &phase, uint32_t kept)
        : step(kept_step_of(phase, kept))
    {
        const uint32_t steps = phase.steps, segment = ((step + 1) * job.segments.divisor - 1) / steps;
        const uint32_t first = job.segments.div(segment * steps), stop = job.segments.div((segment + 1) * steps);
        uint32_t tap;
        phase.taps.divmod(step, &tap);
        const uint32_t block = step - tap, block_end = block + phase.taps.divisor;
        const uint32_t before = kept == 0 ? 0 : kept_step_of(phase, kept - 1);
        const uint32_t after = kept + 1 == phase.kept_steps ? steps : kept_step_of(phase, kept + 1);
        begin = kept == 0 || before < first ? first : before < block ? block : step + 1;
        end = after >= stop ? stop : min(after, block_end);
    }
};

/* Which of a kept step's weights (a bit each) stand for one that does not split. */
__device__ __forceinline__ uint32_t unsafe_left_out(const Job &job, const Phase &phase, uint32_t row0, uint32_t kept)
{
    constexpr int AT_ONCE = 4; /* steps whose weights are on their way together */
    const StandsFor range(job, phase, kept);
    uint32_t t, unsafe = 0;
#pragma unroll 1
    for (uint32_t s = range.begin; s < range.end; s += AT_ONCE)
        TL_UNROLL_FOR (uint32_t u = 0; u < AT_ONCE; u++) {
            const uint32_t block = phase.taps.divmod(s + u, &t);
            const bool there = s + u < range.end && s + u != range.step;
            unsafe |= StepWeights(job, phase, row0, block, tap_of(phase, t), there).unsafe();
        }
    return unsafe;
}

/* blockIdx: a run of kept steps and, fastest, one of PARTS; 64 rows; phase. What a thread reads lies in sectors of its own, which
 * a multiprocessor takes one after the other: small blocks spread them over all. */
__global__ void __launch_bounds__(GROUP) pack_kernel(const __grid_constant__ Job job)
{
    constexpr int AT_ONCE = 2;
    const Phase &phase = job.phase[blockIdx.z];
    const uint32_t row0 = blockIdx.y * 64 + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
    const uint32_t runs = gridDim.x / PARTS, run = (phase.kept_steps + runs - 1) / runs;
    const uint32_t begin = blockIdx.x / PARTS * run, end = min(begin + run, phase.kept_steps);
    float4 *to = reinterpret_cast<float4 *>(phase.packed) + (blockIdx.x % PARTS * GROUP + threadIdx.x);
    to += (uint64_t)(blockIdx.y * phase.kept_steps) * (PARTS * GROUP);
#pragma unroll 1
    for (uint32_t first = begin; first < end; first += AT_ONCE) {
        float part[AT_ONCE][4];
        uint32_t unsafe = 0; /* four bits of each step */
        TL_UNROLL_FOR (int u = 0; u < AT_ONCE; u++) {
            uint32_t t;
            const uint32_t block = phase.kept.divmod(first + u, &t);
            const StepWeights weights(job, phase, row0, block, kept_tap_of(phase, t), first + u < end);
            TL_UNROLL_FOR (int e = 0; e < 4; e++)
                part[u][e] = weights.at[e];
        }
        if (phase.kept_steps < phase.steps)
#pragma unroll 1
            for (uint32_t u = 0; u < min(end - first, (uint32_t)AT_ONCE); u++)
                unsafe |= unsafe_left_out(job, phase, row0, first + u) << 4 * u;
        TL_UNROLL_FOR (int u = 0; u < AT_ONCE; u++) {
            if (first + u >= end) break;
            TL_UNROLL_FOR (int e = 0; e < 4; e++)
                if ((unsafe >> (4 * u + e) & 1) || tl_split_unsafe(part[u][e])) part[u][e] = TL_NAN;
            to[(uint64_t)(first + u) * (PARTS * GROUP)] = make_float4(part[u][0], part[u][1], part[u][2], part[u][3]);
        }
    }
}

/* Rows and channels of a block of boxes_kernel: those of a warp, and of a part of a step. */
constexpr int BOX_ROWS = 16, BOX_CHANNELS = 8, BOX_THREADS = 256, BOX_WARPS = BOX_THREADS / 32;
/* Taps of the kernel: more than a sector has floats, and no more than shared memory has room for without a kernel's asking. */
constexpr int64_t BOX_TAPS_LEAST = 9, BOX_TAPS_MOST = 95;

/* Where the weights of a box lie: in `outer` runs of memory, `apart` from each other, of `inner` times all taps. In shared memory
 * the taps of one row and channel begin `pitch` apart, an odd number, so that rows or channels lie in different banks. */
struct Box {
    tl_fastdiv taps;
    uint32_t pitch;
    bool rows_inner; /* as of a spread, whose weights are (channel, row, tap) */
};

/* blockIdx: a part of a block of channels; 16 rows. */
__global__ void __launch_bounds__(BOX_THREADS)
    boxes_kernel(const __grid_constant__ Job job, const __grid_constant__ Box box)
{
    TL_DYNAMIC_SHARED(float, held);
    const uint32_t row0 = blockIdx.y * BOX_ROWS, channel0 = blockIdx.x * BOX_CHANNELS, taps = box.taps.divisor;
    const uint32_t rows = row0 < job.rows ? min(job.rows - row0, (uint32_t)BOX_ROWS) : 0;
    const uint32_t channels = channel0 < job.channels ? min(job.channels - channel0, (uint32_t)BOX_CHANNELS) : 0;
    const uint32_t inner = box.rows_inner ? BOX_ROWS : BOX_CHANNELS, outer = BOX_ROWS * BOX_CHANNELS / inner;
    const uint32_t real = (box.rows_inner ? rows : channels) * taps, real_outer = box.rows_inner ? channels : rows;
    const uint32_t apart = box.rows_inner ? job.w_channel : job.w_row, line = inner * box.pitch;
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const float *const from = job.w + (row0 * job.w_row + channel0 * job.w_channel);
    for (uint32_t o = warp; o < outer; o += BOX_WARPS)
#pragma unroll 8
        for (uint32_t j = lane; j < inner * taps; j += 32) {
            uint32_t tap;
            const uint32_t i = box.taps.divmod(j, &tap);
            held[o * line + i * box.pitch + tap] = o < real_outer && j < real ? from[o * apart + j] : 0.0f;
        }
    __syncthreads();
    /* The lane's four weights of a step: at (row % 16 / 8, channel % 8 / 4). */
    uint32_t at[4];
    TL_UNROLL_FOR (uint32_t e = 0; e < 4; e++) {
        const uint32_t row = lane / 4 + e % 2 * 8, channel = lane % 4 + e / 2 * 4;
        at[e] = box.rows_inner ? channel * line + row * box.pitch : row * line + channel * box.pitch;
    }
    const uint32_t block = blockIdx.x / PARTS, group = blockIdx.y / 4;
    const uint32_t place = blockIdx.x % PARTS * GROUP + blockIdx.y % 4 * 32 + lane;
    uint32_t turn = warp; /* the warps take turns at the steps of all phases */
    for (uint32_t p = 0; p < job.phases; p++) {
        const Phase &phase = job.phase[p];
        const uint32_t kept = phase.kept.divisor;
        float4 *const to = reinterpret_cast<float4 *>(phase.packed) +
                           (uint64_t)(group * phase.kept_steps + block * kept) * (PARTS * GROUP) + place;
        for (; turn < kept; turn += BOX_WARPS) {
            const float *const tap = held + kept_tap_of(phase, turn).weight(phase);
            float part[4];
            TL_UNROLL_FOR (int e = 0; e < 4; e++)
                part[e] = tl_split_unsafe(tap[at[e]]) ? TL_NAN : tap[at[e]];
            if (phase.kept_steps < phase.steps) {
                const StandsFor range(job, phase, block * kept + turn);
#pragma unroll 1
                for (uint32_t s = range.begin; s < range.end; s++) {
                    uint32_t t;
                    const uint32_t of_block = phase.taps.divmod(s, &t);
                    const TapPlace other = tap_of(phase, t);
                    if (of_block == block) {
                        TL_UNROLL_FOR (int e = 0; e < 4; e++)
                            if (tl_split_unsafe(held[other.weight(phase) + at[e]])) part[e] = TL_NAN;
                    } else {
                        const uint32_t unsafe =
                            StepWeights(job, phase, row0 + lane / 4, of_block, other, true).unsafe();
                        TL_UNROLL_FOR (int e = 0; e < 4; e++)
                            if (unsafe >> e & 1) part[e] = TL_NAN;
                    }
                }
            }
            to[(uint64_t)turn * (PARTS * GROUP)] = make_float4(part[0], part[1], part[2], part[3]);
        }
        turn -= kept;
    }
}

} // namespace

int32_t tl_conv_wgmma_pack(tl_context *ctx, const Job &job, uint32_t taps, uint32_t most_steps)
{
    if (taps >= BOX_TAPS_LEAST && taps <= BOX_TAPS_MOST) {
        const Box box = {tl_fastdiv((uint64_t)taps), taps | 1, job.w_row == taps};
        const dim3 grid(job.channel_blocks * PARTS, job.row_groups * (64 / BOX_ROWS));
        const size_t bytes = sizeof(float) * BOX_ROWS * BOX_CHANNELS * box.pitch;
        return tl_launch_dynamic(ctx, "conv_pack", boxes_kernel, grid, BOX_THREADS, bytes, job, box);
    }
    /* Runs of steps as long as leaves each multiprocessor two blocks of a part: neighbouring taps, in the same sectors of memory. */
    const unsigned runs = tl_grid(2 * tl_cuda_sms(ctx), job.row_groups * job.phases, most_steps);
    const dim3 grid(PARTS * std::max(runs, std::min(job.channel_blocks, most_steps)), job.row_groups, job.phases);
    return tl_launch(ctx, "conv_pack", pack_kernel, grid, GROUP, job);
}
