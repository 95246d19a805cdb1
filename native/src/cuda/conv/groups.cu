/* Convolution of groups of few channels on CUDA, above all depthwise: bound by memory, so every thread sums the terms of its
 * own elements with fused multiply-adds, and neighbouring threads have neighbouring elements of the last axis.
 *
 *   line_kernel      depthwise, a stride of 1 along the last axis, K taps of it in a row: a thread owns WIDTH neighbouring
 *                    positions, so that of the K + WIDTH - 1 elements of a line each is read once
 *   element_kernel   anything else but what conv/depthwise.cu and conv/columns.cu serve: a thread owns one position of some rows and images,
 *                    which share what finding taps costs, the rows what is read and the images the weights. A spread takes the
 *                    kernel offsets of its position's phase
 *   weights_kernel   a block owns one channel, some rows and one segment of the positions of the batch, its threads every
 *                    THREADS-th of them, some taps in registers; its rows share what the taps read
 *   weights_chain    a block owns neighbouring elements of gw, a lane each, and one segment (formula/chain.h) of those positions,
 *                    which its other warps copy to shared memory, tile by tile
 *
 * Order of additions: a product's channel by channel and tap by tap, the bias last; a weight's thread by thread in index
 * order, then the butterfly of the warp, the warps in order, and the segments by the column tree. Segments follow from the
 * shape alone. In reproducible contexts sums are in float64, and those of weights chains over the positions. */
#include "cuda/conv/columns.cuh"
#include "cuda/conv/depthwise.cuh"
#include "cuda/conv/groups.cuh"
#include "cuda/device/async_copy.cuh"
#include "cuda/device/sum_tree.cuh"
#include "formula/chain.h"

namespace {

constexpr int THREADS = 128, AXES = 3, WIDTH = 4;
/* Taps of a thread of weights_kernel, which share what finding a position costs. Where that leaves multiprocessors idle a thread
 * waits for memory rather than for its turn: it then has one tap, of so many positions at a time, whose rows share it. */
constexpr int TAPS_AT_ONCE = 9, POSITIONS_AHEAD = 8;
/* Rows and images of a thread at most, where so many threads are left for each multiprocessor: half of what it holds. A block of
 * weights_kernel has as many rows, or two, where so many blocks are left, which hide a load's latency from each other. */
constexpr int ROWS_AT_ONCE = 4, IMAGES_AT_ONCE = 4;
constexpr int64_t THREADS_LEAST = 1024, BLOCKS_LEAST = 4;
constexpr int64_t DIRECT_MOST = 8; /* channels of a group: with more, matrix products are faster */
constexpr int64_t TERMS_FEW = 63;  /* of an element of one group: fewer than tensor cores take */
constexpr int64_t EXTENT_MOST = INT64_C(1) << 28, TAPS_MOST = 16384;
constexpr int64_t SEGMENT = 16384; /* positions */
/* Pairs of channels of a group whose chains are shorter than a tile of a product (device/chain.cuh) takes. */
constexpr int64_t CHAIN_PAIRS_MOST = 4;
/* A block of weights_chain: its chains, of which a term waits for the one before, positions of a tile, tiles in shared memory, and
 * threads that copy for a position, so many that they take less time than the chains. A row of a tile begins PITCH after the one
 * before, so that eight lanes read 16 bytes each from all banks. */
constexpr int CHAINS = 32, TILE = 64, STAGES = 3, PARTS = 2, BATCH = 4, LOADERS = PARTS * TILE, PITCH = TILE + 4;
constexpr int CHAIN_BLOCKS = 6; /* on a multiprocessor, with taps of 3 x 3 */

/* A shape of lower rank has axes of length 1 before its own. `small` is the array of outputs of conv, `large` that of inputs. */
struct Job {
    const float *source, *w, *bias;
    float *target;
    uint32_t channels, rows, source_size, target_size, taps;
    uint32_t batch, row_parts; /* row_parts: of element_kernel and weights_kernel, of so many rows of a group at once */
    uint64_t w_group, w_row, w_channel;
    int32_t source_axes[AXES], target_axes[AXES], kernel[AXES], stride[AXES], dilation[AXES], padding[AXES];
    int32_t period[AXES],
        back[AXES]; /* of a spread: offsets between taps of a phase, and what one moves the source by */
    tl_fastdiv by_stride[AXES];
    int32_t step; /* of line_kernel's taps: 1, or -1 where it is a spread; 0 of element_kernel */
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

/* The row and group of a plane of the target; the planes of the source that it reads come first at `first`. */
struct Plane {
    uint32_t row, group;
    uint64_t first;

    __device__ __forceinline__ Plane(const Job &job, uint32_t plane)
    {
        const uint32_t part = job.row.divmod(plane, &row);
        job.group.divmod(part, &group);
        first = (uint64_t)part * job.channels;
    }
    template <class Sum> __device__ __forceinline__ float ended(const Job &job, Sum sum) const
    {
        return (float)(job.bias ? sum + (Sum)job.bias[group * job.rows + row] : sum);
    }
};

__device__ __forceinline__ float with(float sum, float x, float y) { return fmaf(x, y, sum); }
__device__ __forceinline__ double with(double sum, float x, float y) { return fma((double)x, (double)y, sum); }

template <class Sum, int K> __global__ void __launch_bounds__(THREADS) line_kernel(const __grid_constant__ Job job)
{
    tl_wait_for_earlier();
    const uint64_t index = (uint64_t)blockIdx.x * THREADS + threadIdx.x;
    if (index >= job.items) return;
    const Item item(job, (uint32_t)index);
    const Plane plane(job, item.plane);
    const int32_t x0 = (int32_t)item.at[2] * WIDTH;
    /* the leftmost element that the line's taps read; with a step of -1 tap 0 reads the rightmost */
    const int32_t left = job.step > 0 ? x0 - job.padding[2] : x0 + job.padding[2] - (K - 1);
    const float *w = job.w + plane.group * job.w_group + plane.row * job.w_row;
    const float *source = job.source + plane.first * job.source_size;
    Sum sums[WIDTH] = {};
    for (int32_t a = 0; a < job.kernel[0]; a++)
        for (int32_t b = 0; b < job.kernel[1]; b++, w += K) {
            const int32_t z = (int32_t)item.at[0] + job.step * (a * job.dilation[0] - job.padding[0]);
            const int32_t y = (int32_t)item.at[1] + job.step * (b * job.dilation[1] - job.padding[1]);
            const bool inside = (uint32_t)z < (uint32_t)job.source_axes[0] &&
                                (uint32_t)y < (uint32_t)job.source_axes[1];
            const float *line = source + ((int64_t)z * job.source_axes[1] + y) * job.source_axes[2];
            float x[K + WIDTH - 1], weight[K];
            TL_UNROLL_FOR (int i = 0; i < K + WIDTH - 1; i++)
                x[i] = inside && (uint32_t)(left + i) < (uint32_t)job.source_axes[2] ? line[left + i] : 0.0f;
            TL_UNROLL_FOR (int t = 0; t < K; t++)
                weight[t] = w[t];
            if (job.step > 0) {
                TL_UNROLL_FOR (int t = 0; t < K; t++)
                    TL_UNROLL_FOR (int i = 0; i < WIDTH; i++)
                        sums[i] = with(sums[i], weight[t], x[i + t]);
            } else {
                TL_UNROLL_FOR (int t = 0; t < K; t++)
                    TL_UNROLL_FOR (int i = 0; i < WIDTH; i++)
                        sums[i] = with(sums[i], weight[t], x[i + K - 1 - t]);
            }
        }
    float *to = job.target + (uint64_t)item.plane * job.target_size +
                ((uint64_t)item.at[0] * (uint32_t)job.target_axes[1] + item.at[1]) * (uint32_t)job.target_axes[2];
    TL_UNROLL_FOR (int i = 0; i < WIDTH; i++)
        if (x0 + i < job.target_axes[2]) to[x0 + i] = plane.ended(job, sums[i]);
}

/* The first kernel offset of an element's phase along an axis, and what it reads; no offset where none divides. */
template <bool SPREAD> struct Axis {
    int32_t first, step, at, move;

    __device__ __forceinline__ Axis(const Job &job, int d, int32_t i)
    {
        if (!SPREAD) {
            first = 0, step = 1, at = i * job.stride[d] - job.padding[d], move = job.dilation[d];
            return;
        }
        const int32_t padded = i + job.padding[d], stride = job.stride[d];
        step = job.period[d], move = -job.back[d];
        if (job.dilation[d] == 1) {
            uint32_t rest;
            at = (int32_t)job.by_stride[d].divmod((uint32_t)padded, &rest);
            first = min((int32_t)rest, job.kernel[d]);
            return;
        }
        first = 0;
        if (stride > 1)
            while (first < job.kernel[d] && first < step && (padded - first * job.dilation[d]) % stride != 0)
                first++;
        if (first >= step) first = job.kernel[d];
        at = first < job.kernel[d] ? (padded - first * job.dilation[d]) / stride : 0;
    }
};

/* A plane of an item: ROWS rows, or what is left of a group's, of IMAGES images. What is not there is a copy of what is. */
template <class Sum, bool SPREAD, int ROWS, int IMAGES>
__global__ void __launch_bounds__(THREADS) element_kernel(const __grid_constant__ Job job)
{
    tl_wait_for_earlier();
    const uint64_t index = (uint64_t)blockIdx.x * THREADS + threadIdx.x;
    if (index >= job.items) return;
    const Item item(job, (uint32_t)index);
    uint32_t part, group;
    const uint32_t image = job.group.divmod(job.row.divmod(item.plane, &part), &group) * IMAGES, row = part * ROWS;
    const uint32_t rows = min(job.rows - row, (uint32_t)ROWS), images = min(job.batch - image, (uint32_t)IMAGES);
    const Axis<SPREAD> z(job, 0, (int32_t)item.at[0]), y(job, 1, (int32_t)item.at[1]), x(job, 2, (int32_t)item.at[2]);
    const uint32_t groups = job.group.divisor;
    const float *weights = job.w + group * job.w_group + row * job.w_row;
    const float *sources[IMAGES];
    uint32_t weights_at[ROWS];
    Sum sums[ROWS][IMAGES] = {};
    TL_UNROLL_FOR (int n = 0; n < IMAGES; n++) {
        const uint64_t from = (uint64_t)(image + ((uint32_t)n < images ? (uint32_t)n : 0)) * groups + group;
        sources[n] = job.source + from * job.channels * job.source_size;
    }
    TL_UNROLL_FOR (int r = 0; r < ROWS; r++)
        weights_at[r] = (uint32_t)r < rows ? (uint32_t)r * (uint32_t)job.w_row : 0;
    for (uint32_t c = 0; c < job.channels; c++, weights += job.w_channel) {
        int32_t cz = z.at;
        for (int32_t a = z.first; a < job.kernel[0]; a += z.step, cz += z.move) {
            int32_t cy = y.at;
            for (int32_t b = y.first; b < job.kernel[1]; b += y.step, cy += y.move) {
                const bool inside = (uint32_t)cz < (uint32_t)job.source_axes[0] &&
                                    (uint32_t)cy < (uint32_t)job.source_axes[1];
                const int64_t line = ((int64_t)cz * job.source_axes[1] + cy) * job.source_axes[2];
                const float *w = weights + (a * job.kernel[1] + b) * job.kernel[2];
                int32_t cx = x.at;
                for (int32_t t = x.first; t < job.kernel[2]; t += x.step, cx += x.move) {
                    const bool reads = inside && (uint32_t)cx < (uint32_t)job.source_axes[2];
                    float value[IMAGES];
                    TL_UNROLL_FOR (int n = 0; n < IMAGES; n++)
                        value[n] = reads ? sources[n][line + cx] : 0.0f;
                    TL_UNROLL_FOR (int r = 0; r < ROWS; r++) {
                        const float weight = w[weights_at[r] + (uint32_t)t];
                        TL_UNROLL_FOR (int n = 0; n < IMAGES; n++)
                            sums[r][n] = with(sums[r][n], weight, value[n]);
                    }
                }
            }
        }
        TL_UNROLL_FOR (int n = 0; n < IMAGES; n++)
            sources[n] += job.source_size;
    }
    const bool none = z.first >= job.kernel[0] || y.first >= job.kernel[1] || x.first >= job.kernel[2];
    const uint64_t at = index - (uint64_t)item.plane * job.lines.divisor;
    TL_UNROLL_FOR (int r = 0; r < ROWS; r++) {
        if ((uint32_t)r >= rows) break;
        const uint32_t channel = group * job.rows + row + (uint32_t)r;
        const float bias = job.bias ? job.bias[channel] : 0.0f;
        TL_UNROLL_FOR (int n = 0; n < IMAGES; n++) {
            if ((uint32_t)n >= images) break;
            const uint64_t plane = (uint64_t)(image + (uint32_t)n) * groups * job.rows + channel;
            const float sum = (float)(job.bias ? sums[r][n] + (Sum)bias : sums[r][n]);
            job.target[plane * job.target_size + at] = none ? bias : sum;
        }
    }
}

/* blockIdx.x: segment, and group, part of its rows, channel, which is fastest; y: TAPS taps. `source` is the large array,
 * `w` the small one. A thread reads what AHEAD of its positions need before it adds the first. */
template <int TAPS, int AHEAD, int ROWS>
__global__ void __launch_bounds__(THREADS) weights_kernel(const __grid_constant__ Job job)
{
    __shared__ float warps[ROWS * TAPS][THREADS / 32];
    tl_wait_for_earlier();
    uint32_t pair;
    const uint32_t segment = job.pairs.divmod(blockIdx.x, &pair), part = pair / job.channels,
                   channel = pair - part * job.channels;
    const uint32_t group = part / job.row_parts, groups = job.group.divisor, tap0 = blockIdx.y * TAPS;
    const uint32_t of_group = (part - group * job.row_parts) * ROWS, row = group * job.rows + of_group;
    const uint32_t rows = min(job.rows - of_group, (uint32_t)ROWS);
    const int taps = (int)min(job.taps - tap0, (uint32_t)TAPS);
    const uint64_t begin = (uint64_t)segment * SEGMENT, left = job.items - begin;
    const uint32_t count = (uint32_t)(left < SEGMENT ? left : SEGMENT);
    const uint32_t size1 = (uint32_t)job.source_axes[1], size2 = (uint32_t)job.source_axes[2];
    int32_t dz[TAPS], dy[TAPS], dx[TAPS];
    uint32_t offset[TAPS]; /* indices within a plane, modulo 2^32 */
    float sums[ROWS][TAPS] = {};
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
    uint32_t small_at[ROWS]; /* a row that is not there is a copy of the first */
    TL_UNROLL_FOR (int r = 0; r < ROWS; r++)
        small_at[r] = (uint32_t)r < rows ? (uint32_t)r : 0;
    const float *const large = job.source + ((uint64_t)group * job.channels + channel) * job.source_size;
    for (uint32_t i0 = threadIdx.x; i0 < count; i0 += AHEAD * THREADS) {
        float g[AHEAD][ROWS], x[AHEAD][TAPS];
        TL_UNROLL_FOR (int u = 0; u < AHEAD; u++) {
            const uint32_t i = i0 + (uint32_t)(u * THREADS), q = (uint32_t)begin + (i < count ? i : i0);
            const Item item(job, q); /* its plane is the image */
            const float *const first = small + item.plane * small_image + (q - item.plane * job.lines.divisor);
            TL_UNROLL_FOR (int r = 0; r < ROWS; r++)
                g[u][r] = first[(uint64_t)small_at[r] * job.lines.divisor];
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
                TL_UNROLL_FOR (int r = 0; r < ROWS; r++)
                    TL_UNROLL_FOR (int t = 0; t < TAPS; t++)
                        sums[r][t] = fmaf(g[u][r], x[u][t], sums[r][t]);
    }
    TL_UNROLL_FOR (int r = 0; r < ROWS; r++)
        TL_UNROLL_FOR (int t = 0; t < TAPS; t++) {
            const float sum = tl_fold_group<tl_sum_op, 32>(sums[r][t]);
            if (threadIdx.x % 32 == 0) warps[r * TAPS + t][threadIdx.x / 32] = sum;
        }
    __syncthreads();
    const uint32_t r = threadIdx.x / TAPS, t = threadIdx.x % TAPS;
    if (r >= rows || (int)t >= taps) return;
    float sum = warps[threadIdx.x][0];
    TL_UNROLL_FOR (int i = 1; i < THREADS / 32; i++)
        sum += warps[threadIdx.x][i];
    const uint64_t pairs = (uint64_t)groups * job.rows * job.channels;
    const uint64_t to = segment * pairs + (uint64_t)(row + r) * job.channels + channel;
    job.target[to * job.taps + tap0 + t] = sum;
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

Job job_of(const tl_conv_shape &s, bool spread, int64_t groups, int64_t channels, int64_t rows)
{
    Job job = {};
    tl_conv_set_group_sizes(job, s, spread, groups, channels, rows);
    for (int d = 0; d < AXES; d++) {
        const int from = d - (AXES - s.rank);
        const bool own = from >= 0;
        int64_t back = 1;
        job.source_axes[d] = own ? (int32_t)(spread ? s.out[from] : s.in[from]) : 1;
        job.target_axes[d] = own ? (int32_t)(spread ? s.in[from] : s.out[from]) : 1;
        job.kernel[d] = own ? (int32_t)s.kernel[from] : 1;
        job.stride[d] = own ? (int32_t)s.stride[from] : 1;
        job.dilation[d] = own ? (int32_t)s.dilation[from] : 1;
        job.padding[d] = own ? (int32_t)s.padding[from] : 0;
        job.period[d] = own ? (int32_t)tl_conv_period(&s, from, &back) : 1;
        job.back[d] = (int32_t)back;
        job.by_stride[d] = tl_fastdiv((uint64_t)job.stride[d]);
    }
    return job;
}

/* Items: `width` neighbouring positions each, of `axes`, in `planes` planes. */
void set_items(Job &job, const int32_t *axes, int64_t planes, int64_t width)
{
    const int64_t last = tl_ceil_div(axes[2], width);
    job.count1 = tl_fastdiv(axes[1]), job.count2 = tl_fastdiv(last);
    job.lines = tl_fastdiv((uint64_t)axes[0] * (uint64_t)axes[1] * (uint64_t)last);
    job.items = (uint64_t)planes * job.lines.divisor;
}

} // namespace

namespace {

/* Whether the kernels run on groups of these. */
bool runs(const tl_conv_shape &s, int64_t channels, int64_t rows)
{
    if (channels < 1 || rows < 1 || channels > DIRECT_MOST || rows > DIRECT_MOST || s.rank > AXES || s.taps > TAPS_MOST)
        return false;
    for (int d = 0; d < s.rank; d++) {
        const int64_t span = s.kernel[d] * s.dilation[d];
        if (s.in[d] >= EXTENT_MOST || s.out[d] >= EXTENT_MOST || s.padding[d] >= EXTENT_MOST || span >= EXTENT_MOST ||
            s.stride[d] >= EXTENT_MOST || s.out[d] * s.stride[d] >= 4 * EXTENT_MOST)
            return false;
    }
    return true;
}

} // namespace

bool tl_cuda_conv_groups_serve(const tl_conv_shape &s, int64_t groups, int64_t channels, int64_t rows)
{
    return groups > 1 && runs(s, channels, rows);
}

bool tl_cuda_conv_one_group_serves(const tl_conv_shape &s, bool spread, int64_t channels, int64_t rows)
{
    int64_t terms = channels;
    for (int d = 0; d < s.rank; d++)
        terms *= spread ? tl_ceil_div(s.kernel[d], s.stride[d]) : s.kernel[d];
    return terms <= TERMS_FEW && runs(s, channels, rows);
}

bool tl_cuda_conv_groups_chain(const tl_conv_shape &s, int64_t groups, int64_t channels, int64_t rows, bool weights)
{
    return tl_cuda_conv_groups_serve(s, groups, channels, rows) &&
           (weights ? channels * rows <= CHAIN_PAIRS_MOST && groups * channels * rows * s.taps < (INT64_C(1) << 31)
                    : channels * s.taps <= TL_CHAIN_SEGMENT);
}

namespace {

using Kernel = void (*)(const Job);

template <class Sum> Kernel lines_of(int k)
{
    return k == 3 ? line_kernel<Sum, 3> : k == 5 ? line_kernel<Sum, 5> : line_kernel<Sum, 7>;
}

/* In reproducible contexts of one row: another of several would wait for float64, not for what they share. */
template <bool SPREAD, int IMAGES> Kernel elements_of(bool exact, int64_t rows)
{
    return exact       ? element_kernel<double, SPREAD, 1, IMAGES>
           : rows == 1 ? element_kernel<float, SPREAD, 1, IMAGES>
           : rows == 2 ? element_kernel<float, SPREAD, 2, IMAGES>
           : rows == 3 ? element_kernel<float, SPREAD, 3, IMAGES>
                       : element_kernel<float, SPREAD, ROWS_AT_ONCE, IMAGES>;
}

/* The items of element_kernel, and which of them: of as many rows and images as leave enough threads; no order depends on it. */
Kernel elements(tl_context *ctx, Job &job, bool spread, int64_t batch, int64_t groups, int64_t rows)
{
    const bool exact = tl_is_reproducible(ctx);
    const int64_t most = THREADS_LEAST * tl_cuda_sms(ctx), shared = exact ? rows : tl_ceil_div(rows, ROWS_AT_ONCE);
    const int64_t threads = groups * shared * job.target_size;
    const int64_t parts = batch * threads >= most ? shared : rows;
    const bool several = batch >= IMAGES_AT_ONCE && tl_ceil_div(batch, IMAGES_AT_ONCE) * threads >= most;
    const int64_t at_once = tl_ceil_div(rows, parts);
    job.row_parts = (uint32_t)tl_ceil_div(rows, at_once), job.row = tl_fastdiv(job.row_parts);
    set_items(job, job.target_axes, tl_ceil_div(batch, several ? IMAGES_AT_ONCE : 1) * groups * job.row_parts, 1);
    if (several)
        return spread ? elements_of<true, IMAGES_AT_ONCE>(exact, at_once)
                      : elements_of<false, IMAGES_AT_ONCE>(exact, at_once);
    return spread ? elements_of<true, 1>(exact, at_once) : elements_of<false, 1>(exact, at_once);
}

template <int TAPS, int AHEAD> Kernel weights_of(int64_t rows)
{
    return rows == 1   ? weights_kernel<TAPS, AHEAD, 1>
           : rows == 2 ? weights_kernel<TAPS, AHEAD, 2>
                       : weights_kernel<TAPS, AHEAD, ROWS_AT_ONCE>;
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

int32_t tl_cuda_conv_groups_product(tl_context *ctx, const tl_conv_shape &s, bool spread, int64_t batch, int64_t groups,
                                    int64_t channels, int64_t rows, const float *source, const float *w,
                                    const float *bias, float *target)
{
    if (tl_cuda_conv_depthwise_serves(s, spread, channels))
        return tl_cuda_conv_depthwise(ctx, s, batch, groups, rows, source, w, bias, target);
    /* several rows share in element_kernel what is read */
    if (rows == 1 && channels > 1 && tl_cuda_conv_columns_serve(ctx, s, spread, batch, groups, channels, rows))
        return tl_cuda_conv_columns(ctx, s, spread, tl_is_reproducible(ctx), batch, groups, channels, rows, source, w,
                                    bias, target);
    Job job = job_of(s, spread, groups, channels, rows);
    job.source = source, job.w = w, job.bias = bias, job.target = target;
    const int k = job.kernel[2];
    const bool in_lines = channels == 1 && job.stride[0] == 1 && job.stride[1] == 1 && job.stride[2] == 1 &&
                          job.dilation[2] == 1 && (k == 3 || k == 5 || k == 7);
    job.step = !in_lines ? 0 : spread ? -1 : 1;
    job.batch = (uint32_t)batch;
    if (in_lines) set_items(job, job.target_axes, batch * groups * rows, WIDTH);
    const Kernel kernel = !in_lines                 ? elements(ctx, job, spread, batch, groups, rows)
                          : tl_is_reproducible(ctx) ? lines_of<double>(k)
                                                    : lines_of<float>(k);
    if (job.items == 0) return TORCHLEAN_OK;
    return tl_launch_ahead(ctx, "conv_groups", kernel, tl_grid((int64_t)job.items, THREADS), THREADS, 0, job);
}

int32_t tl_cuda_conv_groups_weights(tl_context *ctx, const tl_conv_shape &s, int64_t batch, int64_t groups,
                                    int64_t channels, int64_t rows, const float *large, const float *small, float *gw)
{
    Job job = job_of(s, false, groups, channels, rows);
    set_items(job, job.target_axes, batch, 1);
    const int64_t pairs = groups * rows * channels, elements = pairs * s.taps;
    job.source = large, job.w = small, job.target = gw, job.pairs = tl_fastdiv(pairs);
    if (tl_is_reproducible(ctx)) return chains(ctx, job, elements, gw);
    const int64_t segments = tl_ceil_div((int64_t)job.items, SEGMENT);
    tl_scratch<float> sums(ctx);
    if (segments > 1) TL_TRY(sums.allocate(segments * elements));
    if (sums) job.target = sums;
    /* which block has a tap or a row is part of no order */
    int64_t tap_parts = tl_ceil_div(s.taps, TAPS_AT_ONCE);
    const bool few = groups * channels * segments * tap_parts * rows < tl_cuda_sms(ctx);
    if (few) tap_parts = s.taps;
    const int64_t blocks = groups * channels * segments * tap_parts;
    const int64_t blocks_least = (few ? 1 : BLOCKS_LEAST) * tl_cuda_sms(ctx);
    int64_t at_once = rows > 2 ? ROWS_AT_ONCE : rows;
    while (at_once > 1 && blocks * tl_ceil_div(rows, at_once) < blocks_least)
        at_once /= 2;
    job.row_parts = (uint32_t)tl_ceil_div(rows, at_once);
    job.pairs = tl_fastdiv(groups * job.row_parts * channels);
    const dim3 grid((unsigned)(job.pairs.divisor * segments), (unsigned)tap_parts);
    const Kernel kernel = few ? weights_of<1, POSITIONS_AHEAD>(at_once) : weights_of<TAPS_AT_ONCE, 1>(at_once);
    TL_TRY(tl_launch_ahead(ctx, "conv_groups_weights", kernel, grid, THREADS, 0, job));
    return sums ? tl_cuda_column_sums(ctx, sums, 1, segments, elements, 0, gw) : TORCHLEAN_OK;
}
