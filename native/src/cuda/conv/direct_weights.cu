/* The gradients of the weights of groups of few channels (conv/direct.cuh).
 *
 *   weights_kernel   a block owns one channel, one row and one segment of the positions of the batch, its threads every
 *                    THREADS-th of them, some taps in registers
 *   weights_chain    a block owns neighbouring elements of gw, a lane each, and one segment (formula/chain.h) of those positions,
 *                    which its other warps copy to shared memory, tile by tile
 *
 * Order of additions: thread by thread in index order, then the butterfly of the warp, the warps in order, and the segments by the
 * column tree. Segments follow from the shape alone. In reproducible contexts chains of float64 over the positions. */
#include "cuda/conv/direct.cuh"
#include "cuda/device/async_copy.cuh"
#include "cuda/device/sum_tree.cuh"

using namespace tl_conv_direct_sums;

namespace {

/* Taps of a thread of weights_kernel, which share what finding a position costs. Where that leaves multiprocessors idle a thread
 * waits for memory rather than for its turn: it then has one tap, of so many positions at a time. */
constexpr int TAPS_AT_ONCE = 9, POSITIONS_AHEAD = 8;
constexpr int64_t SEGMENT = 16384; /* positions */
/* A block of weights_chain: its chains, of which a term waits for the one before, positions of a tile, tiles in shared memory, and
 * threads that copy for a position, so many that they take less time than the chains. A row of a tile begins PITCH after the one
 * before, so that eight lanes read 16 bytes each from all banks. */
constexpr int CHAINS = 32, TILE = 64, STAGES = 3, PARTS = 2, BATCH = 4, LOADERS = PARTS * TILE, PITCH = TILE + 4;
constexpr int CHAIN_BLOCKS = 6; /* on a multiprocessor, with taps of 3 x 3 */

/* blockIdx.x: segment, and group, row, channel, which is fastest; y: TAPS taps. `source` is the large array,
 * `w` the small one. A thread reads what AHEAD of its positions need before it adds the first. */
template <int TAPS, int AHEAD>
__global__ void __launch_bounds__(THREADS) weights_kernel(const __grid_constant__ Job job)
{
    __shared__ float warps[TAPS][THREADS / 32];
    tl_wait_for_earlier();
    uint32_t pair;
    const uint32_t segment = job.pairs.divmod(blockIdx.x, &pair), row = pair / job.channels,
                   channel = pair - row * job.channels, group = row / job.rows; /* row: of all groups */
    const uint32_t groups = job.group.divisor, tap0 = blockIdx.y * TAPS;
    const int taps = (int)min(job.taps - tap0, (uint32_t)TAPS);
    const uint64_t begin = (uint64_t)segment * SEGMENT, left = job.items - begin;
    const uint32_t count = (uint32_t)(left < SEGMENT ? left : SEGMENT);
    const uint32_t size1 = (uint32_t)job.source_axes[1], size2 = (uint32_t)job.source_axes[2];
    int32_t dz[TAPS], dy[TAPS], dx[TAPS];
    uint32_t offset[TAPS]; /* indices within a plane, modulo 2^32 */
    float sums[TAPS] = {};
    TL_UNROLL_FOR (int i = 0; i < TAPS; i++) {
        const uint32_t t = tap0 + (uint32_t)(i < taps ? i : 0), line = t / (uint32_t)job.kernel[2];
        dx[i] = (int32_t)(t - line * (uint32_t)job.kernel[2]) * job.dilation[2] - job.padding[2];
        dy[i] = (int32_t)(line % (uint32_t)job.kernel[1]) * job.dilation[1] - job.padding[1];
        dz[i] = (int32_t)(line / (uint32_t)job.kernel[1]) * job.dilation[0] - job.padding[0];
        offset[i] = ((uint32_t)dz[i] * size1 + (uint32_t)dy[i]) * size2 + (uint32_t)dx[i];
    }
    const uint64_t small_image = (uint64_t)groups * job.rows * job.lines.divisor;
    const uint64_t large_image = (uint64_t)groups * job.channels * job.source_size;
    const float *const small = job.w + (uint64_t)row * job.lines.divisor;
    const float *const large = job.source + ((uint64_t)group * job.channels + channel) * job.source_size;
    for (uint32_t i0 = threadIdx.x; i0 < count; i0 += AHEAD * THREADS) {
        float g[AHEAD], x[AHEAD][TAPS];
        TL_UNROLL_FOR (int u = 0; u < AHEAD; u++) {
            const uint32_t i = i0 + (uint32_t)(u * THREADS), q = (uint32_t)begin + (i < count ? i : i0);
            const Item item(job, q); /* its plane is the image */
            g[u] = small[item.plane * small_image + (q - item.plane * job.lines.divisor)];
            const float *const plane = large + item.plane * large_image;
            const int32_t z = (int32_t)item.at[0] * job.stride[0], y = (int32_t)item.at[1] * job.stride[1];
            const int32_t x0 = (int32_t)item.at[2] * job.stride[2];
            const uint32_t at = ((uint32_t)z * size1 + (uint32_t)y) * size2 + (uint32_t)x0;
            TL_UNROLL_FOR (int t = 0; t < TAPS; t++) {
                const bool inside = t < taps && (uint32_t)(z + dz[t]) < (uint32_t)job.source_axes[0] &&
                                    (uint32_t)(y + dy[t]) < size1 && (uint32_t)(x0 + dx[t]) < size2;
                x[u][t] = inside ? plane[at + offset[t]] : 0.0f;
            }
        }
        TL_UNROLL_FOR (int u = 0; u < AHEAD; u++)
            if (i0 + (uint32_t)(u * THREADS) < count)
                TL_UNROLL_FOR (int t = 0; t < TAPS; t++)
                    sums[t] = fmaf(g[u], x[u][t], sums[t]);
    }
    TL_UNROLL_FOR (int t = 0; t < TAPS; t++) {
        const float sum = tl_fold_group<tl_sum_op, 32>(sums[t]);
        if (threadIdx.x % 32 == 0) warps[t][threadIdx.x / 32] = sum;
    }
    __syncthreads();
    if ((int)threadIdx.x >= taps) return;
    float sum = warps[threadIdx.x][0];
    TL_UNROLL_FOR (int i = 1; i < THREADS / 32; i++)
        sum += warps[threadIdx.x][i];
    job.target[((uint64_t)segment * job.pairs.divisor + pair) * job.taps + tap0 + threadIdx.x] = sum;
}

/* Elements blockIdx.x · CHAINS .. of gw, one for each lane of the first warp, and segment blockIdx.y, of `length` positions. A thread
 * of the other warps owns a position of a tile and every PARTS-th row of it. It copies STAGES - 1 tiles ahead, and widens g, which
 * several lanes read. What lies outside the source is 0. So is what lies past the segment, which changes no sum, as none is -0.
 * A block has room for `pairs` pairs of channels. `parts` are the segments' sums, or NULL where the only one is gw. */
__global__ void __launch_bounds__(CHAINS + LOADERS, CHAIN_BLOCKS)
    weights_chain_kernel(const __grid_constant__ Job job, int64_t length, uint32_t pairs, double *parts)
{
    TL_DYNAMIC_SHARED(float, x_tiles);                                /* (STAGES, CHAINS, PITCH) */
    float *const g_tiles = x_tiles + STAGES * CHAINS * PITCH;         /* (STAGES, pairs, TILE) */
    double *const wide = (double *)(g_tiles + STAGES * pairs * TILE); /* (2, pairs, TILE + 2) */
    __shared__ int4 taps[CHAINS];                        /* what a chain adds to a position's coordinates, */
    __shared__ int64_t taps_at[CHAINS], rows_at[CHAINS]; /* to its source in bytes; where a row of g begins */
    const uint32_t elements = job.pairs.divisor * job.taps, element = blockIdx.x * CHAINS + threadIdx.x;
    const uint32_t first_pair = blockIdx.x * CHAINS / job.taps;
    const uint32_t rows = (min(blockIdx.x * CHAINS + CHAINS, elements) - 1) / job.taps - first_pair + 1;
    const uint32_t pair = min(element, elements - 1) / job.taps, size1 = (uint32_t)job.source_axes[1];
    if (threadIdx.x < CHAINS) {
        const uint32_t t = min(element, elements - 1) - pair * job.taps, line = t / (uint32_t)job.kernel[2];
        const uint32_t row = pair / job.channels, plane = row / job.rows * job.channels + pair - row * job.channels;
        const int32_t x = (int32_t)(t - line * (uint32_t)job.kernel[2]) * job.dilation[2] - job.padding[2];
        const int32_t y = (int32_t)(line % (uint32_t)job.kernel[1]) * job.dilation[1] - job.padding[1];
        const int32_t z = (int32_t)(line / (uint32_t)job.kernel[1]) * job.dilation[0] - job.padding[0];
        taps[threadIdx.x] = make_int4(z, y, x, 0);
        taps_at[threadIdx.x] = 4 *
                               ((int64_t)plane * job.source_size + ((int64_t)z * size1 + y) * job.source_axes[2] + x);
        rows_at[threadIdx.x] = (int64_t)((first_pair + threadIdx.x) / job.channels) * job.lines.divisor;
    }
    __syncthreads();
    tl_wait_for_earlier();
    const bool loads = threadIdx.x >= CHAINS;
    const uint32_t own = (threadIdx.x - CHAINS) % TILE, part = (threadIdx.x - CHAINS) / TILE;
    const uint64_t begin = (uint64_t)blockIdx.y * length, left = job.items - begin;
    const uint32_t count = (uint32_t)(left < (uint64_t)length ? left : (uint64_t)length);
    const uint32_t tiles = (count + TILE - 1) / TILE, groups = job.group.divisor;
    const auto copy = [&](uint32_t tile) {
        const uint32_t stage = tile % STAGES, at = tile * TILE + own;
        const bool real = at < count;
        const uint32_t q = (uint32_t)begin + (real ? at : 0);
        const Item item(job, q); /* its plane is the image */
        const int32_t z = (int32_t)item.at[0] * job.stride[0], y = (int32_t)item.at[1] * job.stride[1];
        const int32_t x = (int32_t)item.at[2] * job.stride[2], real_z = real ? z : INT32_MIN / 2;
        const float *const from = job.source + (uint64_t)item.plane * groups * job.channels * job.source_size +
                                  ((int64_t)z * size1 + y) * job.source_axes[2] + x;
        const uint32_t to = tl_shared_address(x_tiles + (stage * CHAINS + part) * PITCH + own);
        TL_UNROLL_FOR (uint32_t i = 0; i < CHAINS / PARTS;
                       i += BATCH) { /* shared memory is not read between copies to it */
            int4 tap[BATCH];
            int64_t tap_at[BATCH];
            TL_UNROLL_FOR (uint32_t j = 0; j < BATCH; j++)
                tap[j] = taps[(i + j) * PARTS + part], tap_at[j] = taps_at[(i + j) * PARTS + part];
            TL_UNROLL_FOR (uint32_t j = 0; j < BATCH; j++) {
                bool inside = (uint32_t)(real_z + tap[j].x) < (uint32_t)job.source_axes[0];
                inside &= (uint32_t)(y + tap[j].y) < size1;
                inside &= (uint32_t)(x + tap[j].z) < (uint32_t)job.source_axes[2];
                tl_copy_async<4, false>(to + (i + j) * (PARTS * PITCH * 4), (const char *)from + tap_at[j], inside);
            }
        }
        const float *const g = job.w + (uint64_t)item.plane * (groups * job.rows - 1) * job.lines.divisor + q;
        for (uint32_t r = part; r < rows; r += PARTS)
            tl_copy_async<4, false>(tl_shared_address(g_tiles + (stage * pairs + r) * TILE + own), g + rows_at[r],
                                    real);
    };
    /* Of what the thread itself has copied. */
    const auto widen = [&](uint32_t tile) {
        tl_copy_wait<STAGES - 2>();
        for (uint32_t r = part; r < rows; r += PARTS)
            wide[(tile % 2 * pairs + r) * (TILE + 2) + own] = (double)g_tiles[(tile % STAGES * pairs + r) * TILE + own];
    };
    if (loads) {
        for (uint32_t tile = 0; tile < STAGES - 1; tile++) {
            if (tile < tiles) copy(tile);
            tl_copy_commit();
        }
        widen(0);
    }
    __syncthreads();
    double sum = 0.0;
    for (uint32_t tile = 0; tile < tiles; tile++) {
        if (loads) {
            if (tile + STAGES - 1 < tiles) copy(tile + STAGES - 1); /* where tile - 1 was */
            tl_copy_commit();
            if (tile + 1 < tiles) widen(tile + 1);
        } else {
            const float4 *const x = (const float4 *)(x_tiles + (tile % STAGES * CHAINS + threadIdx.x) * PITCH);
            const double2 *const g = (const double2 *)(wide + (tile % 2 * pairs + pair - first_pair) * (TILE + 2));
            TL_UNROLL_FOR (int i = 0; i < TILE / 4; i++) {
                const float4 four = x[i];
                const double2 g0 = g[2 * i], g1 = g[2 * i + 1];
                sum = fma(g0.x, (double)four.x, sum), sum = fma(g0.y, (double)four.y, sum);
                sum = fma(g1.x, (double)four.z, sum), sum = fma(g1.y, (double)four.w, sum);
            }
        }
        __syncthreads();
    }
    if (loads || element >= elements) return;
    if (parts)
        parts[(uint64_t)blockIdx.y * elements + element] = sum;
    else
        job.target[element] = (float)sum;
}

/* gw[i] = the sum of its segments, in order. */
__global__ void __launch_bounds__(THREADS)
    segments_kernel(const double *parts, int64_t elements, int32_t segments, float *gw)
{
    tl_wait_for_earlier();
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= elements) return;
    double sum = parts[i];
#pragma unroll 8
    for (int32_t s = 1; s < segments; s++)
        sum += parts[s * elements + i];
    gw[i] = (float)sum;
}

int32_t chains(tl_context *ctx, const Job &job, int64_t elements, float *gw)
{
    const int64_t length = tl_chain_segment((int64_t)job.items), segments = tl_ceil_div((int64_t)job.items, length);
    const int64_t pairs = tl_ceil_div(CHAINS - 1, job.taps) + 1; /* of a block that begins with a pair's last tap */
    const size_t shared = sizeof(float) * STAGES * (CHAINS * PITCH + pairs * TILE) +
                          sizeof(double) * 2 * pairs * (TILE + 2);
    const dim3 grid(tl_grid(elements, CHAINS), (unsigned)segments);
    tl_scratch<double> parts(ctx);
    if (segments > 1) TL_TRY(parts.allocate(segments * elements));
    TL_TRY(tl_allow_shared(ctx, weights_chain_kernel, shared));
    TL_TRY(tl_launch_ahead(ctx, "conv_groups_chain", weights_chain_kernel, grid, CHAINS + LOADERS, shared, job, length,
                           (uint32_t)pairs, (double *)parts));
    if (segments == 1) return TORCHLEAN_OK;
    return tl_launch_ahead(ctx, "conv_groups_chain", segments_kernel, tl_grid(elements, THREADS), THREADS, 0,
                           (const double *)parts, elements, (int32_t)segments, gw);
}

} // namespace

int32_t tl_conv_direct_weights(tl_context *ctx, const tl_conv_gradient &p)
{
    Job job = job_of(p.s, false, p.groups, p.channels, p.rows);
    set_items(job, job.target_axes, p.batch, 1);
    const int64_t pairs = p.groups * p.rows * p.channels, elements = pairs * p.s.taps;
    job.source = p.large, job.w = p.small, job.target = p.gw, job.pairs = tl_fastdiv(pairs);
    if (tl_is_reproducible(ctx)) return chains(ctx, job, elements, p.gw);
    const int64_t segments = tl_ceil_div((int64_t)job.items, SEGMENT), tap_parts = tl_ceil_div(p.s.taps, TAPS_AT_ONCE);
    tl_scratch<float> sums(ctx);
    if (segments > 1) TL_TRY(sums.allocate(segments * elements));
    if (sums) job.target = sums;
    /* which block has a tap is part of no order */
    const bool few = pairs * segments * tap_parts < tl_cuda_sms(ctx);
    const dim3 grid((unsigned)(pairs * segments), (unsigned)(few ? p.s.taps : tap_parts));
    const auto kernel = few ? weights_kernel<1, POSITIONS_AHEAD> : weights_kernel<TAPS_AT_ONCE, 1>;
    TL_TRY(tl_launch_ahead(ctx, "conv_groups_weights", kernel, grid, THREADS, 0, job));
    return sums ? tl_cuda_column_sums(ctx, sums, 1, segments, elements, 0, p.gw) : TORCHLEAN_OK;
}
