/* The weights of a convolution's products by wgmma (conv/wgmma_product.cu) in the order of its fragments, NaN for one that does not
 * split, which makes every result it has a part in not finite.
 *
 *   pack_kernel   a block reads all taps of 16 rows and 32 channels, or eight of a larger kernel, which lie in whole lines, and a
 *                 warp writes what one step takes of eight channels, which is 512 bytes */
#include "cuda/conv/wgmma.cuh"

using namespace tl_conv_wgmma;

namespace {

constexpr int PARTS = STEP / 8; /* of a step, eight channels each */
constexpr int ROWS = 16, THREADS_OF_BLOCK = 256, WARPS_OF_BLOCK = THREADS_OF_BLOCK / 32;
constexpr uint32_t MAX_STEP_TAPS = 8; /* of which a block has all parts of a step */

/* Where the weights of a block lie: in runs of memory, `apart` from each other, of `inner` times all taps. In shared memory the taps
 * of one row and channel begin `pitch` apart, an odd number, and runs `line`, so that eight rows by four channels lie in different
 * banks. */
struct Box {
    tl_fastdiv taps;
    uint32_t rows, channels, parts; /* of all weights; of a block */
    uint32_t inner, outer, apart, pitch, line;
    bool rows_inner; /* as of a spread, whose weights are (channel, row, tap) */
};

/* blockIdx: some parts of a block of channels; 16 rows. */
__global__ void __launch_bounds__(THREADS_OF_BLOCK)
    pack_kernel(const __grid_constant__ Weights job, const __grid_constant__ Box box)
{
    TL_DYNAMIC_SHARED(float, held);
    const uint32_t row0 = blockIdx.y * ROWS, channel0 = blockIdx.x * box.parts * 8, taps = box.taps.divisor;
    const uint32_t rows = row0 < box.rows ? min(box.rows - row0, (uint32_t)ROWS) : 0;
    const uint32_t channels = channel0 < box.channels ? min(box.channels - channel0, box.parts * 8) : 0;
    const uint32_t real = (box.rows_inner ? rows : channels) * taps, real_outer = box.rows_inner ? channels : rows;
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const float *const from = job.w + (row0 * job.w_row + channel0 * job.w_channel);
    for (uint32_t o = warp; o < box.outer; o += WARPS_OF_BLOCK)
#pragma unroll 8
        for (uint32_t j = lane; j < box.inner * taps; j += 32) {
            uint32_t tap;
            const uint32_t i = box.taps.divmod(j, &tap);
            held[o * box.line + i * box.pitch + tap] = o < real_outer && j < real ? from[o * box.apart + j] : 0.0f;
        }
    __syncthreads();
    /* The lane's four weights of a part of a step: at (row % 16 / 8, channel % 8 / 4). */
    const uint32_t row_pitch = box.rows_inner ? box.pitch : box.line;
    const uint32_t channel_pitch = box.rows_inner ? box.line : box.pitch;
    const float *const own = held + (lane / 4 * row_pitch + lane % 4 * channel_pitch);
    const uint32_t first_part = blockIdx.x * box.parts, block = first_part / PARTS, group = blockIdx.y / 4;
    const uint32_t place = first_part % PARTS * GROUP + blockIdx.y % 4 * 32 + lane;
    uint32_t turn = warp; /* the warps take turns at the parts of the steps of all phases */
    for (uint32_t p = 0; p < job.phases; p++) {
        const Phase &phase = job.phase[p];
        const uint32_t turns = phase.taps.divisor * box.parts;
        float4 *const to = reinterpret_cast<float4 *>(phase.packed) +
                           (uint64_t)(group * phase.steps + block * phase.taps.divisor) * (PARTS * GROUP) + place;
        for (; turn < turns; turn += WARPS_OF_BLOCK) {
            uint32_t t;
            const uint32_t part = phase.taps.divmod(turn, &t);
            const float *const at = own + (part * 8 * channel_pitch + TapPlace(phase, t).weight(phase));
            float four[4];
            TL_UNROLL_FOR (int e = 0; e < 4; e++) {
                const float x = at[e % 2 * 8 * row_pitch + e / 2 * 4 * channel_pitch];
                four[e] = tl_split_unsafe(x) ? TL_NAN : x;
            }
            to[(uint64_t)(t * PARTS + part) * GROUP] = make_float4(four[0], four[1], four[2], four[3]);
        }
        turn -= turns;
    }
}

} // namespace

int32_t tl_conv_wgmma_pack(tl_context *ctx, const Weights &weights, uint32_t rows, uint32_t channels, uint32_t taps)
{
    Box box = {tl_fastdiv((uint64_t)taps), rows, channels, taps <= MAX_STEP_TAPS ? PARTS : 1u};
    const uint32_t block_channels = box.parts * 8;
    box.rows_inner = weights.w_row == taps;
    box.inner = box.rows_inner ? ROWS : block_channels, box.outer = box.rows_inner ? block_channels : ROWS;
    box.apart = box.rows_inner ? weights.w_channel : weights.w_row;
    box.pitch = taps | 1, box.line = (box.inner + (box.rows_inner ? 8 : 4)) * box.pitch;
    const dim3 grid(weights.channel_blocks * (PARTS / box.parts), weights.row_groups * (64 / ROWS));
    const size_t bytes = sizeof(float) * box.outer * box.line;
    TL_TRY(tl_allow_shared(ctx, pack_kernel, bytes));
    return tl_launch_dynamic(ctx, "conv_pack", pack_kernel, grid, THREADS_OF_BLOCK, bytes, weights, box);
}
