/* Direct products of kernels of one tap (conv/direct.cu): bound by memory, so that a thread reads what it multiplies once, four
 * positions at a time.
 *
 *   few_channels_kernel   a block owns THREADS times four positions of the batch and some rows, whose weights it has in shared
 *                         memory. A thread keeps all channels of its positions in registers and writes row after row
 *   few_rows_kernel       a warp owns 32 times four positions and the channels of a group; it keeps the sums of ROWS rows and
 *                         reads channel after channel, AHEAD of them at a time. Warps of a block add their groups' sums
 *
 * The four positions of a thread are neighbours, and one access, where images are aligned (VECTOR = 4); else they are as far apart
 * as neighbouring threads leave room for.
 *
 * The forms of conv/direct.cu would read lines and columns for taps that this kernel does not have, and read all of them again for
 * every four rows.
 *
 * Order of additions: that of conv/direct.cu, channel by channel in a group, one fused multiply-add each, then the groups of a part
 * in order, and the bias. */
#include "cuda/conv/pointwise.cuh"
#include "cuda/device/division.cuh"
#include "cuda/device/unroll.cuh"
#include "cuda/device/vector.cuh"

namespace {

constexpr int THREADS = 256, WARPS = THREADS / 32, POSITIONS = 4;
constexpr int CHANNELS_MOST = 8;                     /* of few_channels_kernel: two groups of four, or one */
constexpr int BLOCK_ROWS = 64, BLOCK_ROWS_LEAST = 8; /* of one of its blocks */
constexpr int CHUNK = 32, AHEAD = 4; /* channels whose weights a warp holds; and whose elements it reads at once */
constexpr int ROWS_AT_ONCE = 4;      /* whose sums groups exchange */

struct Job {
    const float *small, *w, *bias;
    float *large;
    uint32_t channels, rows, size, block_rows, items; /* an item is VECTOR neighbouring positions */
    tl_fastdiv image_items;
    uint64_t w_channel, w_row, part_elements;
    uint32_t groups, group_channels, part_channels;
};

/* POSITIONS of a thread: where they are in a plane, and which exist. */
template <int VECTOR> struct Places {
    static constexpr int ITEMS = POSITIONS / VECTOR;
    uint64_t image[ITEMS];
    uint32_t at[ITEMS];
    bool real[ITEMS];

    /* Item number `first`, and others `apart` items further on. */
    __device__ __forceinline__ Places(const Job &job, uint32_t first, uint32_t apart)
    {
        TL_UNROLL_FOR (int u = 0; u < ITEMS; u++) {
            const uint32_t item = first + (uint32_t)u * apart;
            real[u] = item < job.items;
            image[u] = job.image_items.divmod(real[u] ? item : 0, &at[u]);
            at[u] *= VECTOR;
        }
    }
    /* The positions in plane `plane` of `planes` for each image; those that do not exist read the first one, for no use. */
    __device__ __forceinline__ void read(const Job &job, uint32_t planes, uint32_t plane, float *x) const
    {
        TL_UNROLL_FOR (int u = 0; u < ITEMS; u++) {
            const float *const from = job.small + ((image[u] * planes + plane) * job.size + at[u]);
            if (VECTOR == 4)
                tl_unpack4(__ldg(reinterpret_cast<const float4 *>(from)), x);
            else
                x[u] = __ldg(from);
        }
    }
    __device__ __forceinline__ void write(const Job &job, float *large, uint32_t row, const float *sum) const
    {
        const float bias = job.bias ? __ldg(job.bias + row) : 0.0f;
        TL_UNROLL_FOR (int u = 0; u < ITEMS; u++) {
            if (!real[u]) continue;
            float ended[VECTOR];
            TL_UNROLL_FOR (int v = 0; v < VECTOR; v++)
                ended[v] = job.bias ? sum[u * VECTOR + v] + bias : sum[u * VECTOR + v];
            float *const to = large + ((image[u] * job.rows + row) * job.size + at[u]);
            if (VECTOR == 4)
                tl_store4(to, ended);
            else
                *to = ended[0];
        }
    }
};

/* blockIdx: positions, rows. */
template <int CHANNELS, int VECTOR>
__global__ void __launch_bounds__(THREADS) few_channels_kernel(const __grid_constant__ Job job)
{
    constexpr int PITCH = (CHANNELS + 3) / 4 * 4, GROUP = CHANNELS == CHANNELS_MOST ? CHANNELS / 2 : CHANNELS;
    __shared__ __align__(16) float weights[BLOCK_ROWS * PITCH];
    const uint32_t row0 = blockIdx.y * job.block_rows, rows = min(job.rows - row0, job.block_rows);
    for (uint32_t i = threadIdx.x; i < rows * PITCH; i += THREADS) {
        const uint32_t row = row0 + i / PITCH, channel = i % PITCH;
        weights[i] = channel < CHANNELS ? __ldg(job.w + (row * job.w_row + channel * job.w_channel)) : 0.0f;
    }
    const uint32_t first = blockIdx.x * (THREADS * Places<VECTOR>::ITEMS) + threadIdx.x;
    const Places<VECTOR> places(job, first, THREADS);
    float x[CHANNELS][POSITIONS];
    TL_UNROLL_FOR (int c = 0; c < CHANNELS; c++)
        places.read(job, CHANNELS, (uint32_t)c, x[c]);
    __syncthreads();
#pragma unroll 2
    for (uint32_t r = 0; r < rows; r++) {
        float w[PITCH], total[POSITIONS];
        TL_UNROLL_FOR (int c = 0; c < PITCH; c += 4)
            tl_load4(weights + r * PITCH + c, w + c);
        TL_UNROLL_FOR (int begin = 0; begin < CHANNELS; begin += GROUP)
            TL_UNROLL_FOR (int p = 0; p < POSITIONS; p++) {
                float sum = 0.0f;
                TL_UNROLL_FOR (int c = begin; c < begin + GROUP; c++)
                    sum = fmaf(w[c], x[c][p], sum);
                total[p] = begin > 0 ? total[p] + sum : sum;
            }
        places.write(job, job.large, row0 + r, total);
    }
}

/* blockIdx: positions, ROWS rows, part. */
template <int ROWS, int VECTOR>
__global__ void __launch_bounds__(THREADS, ROWS == 16 ? 2 : 3) few_rows_kernel(const __grid_constant__ Job job)
{
    __shared__ __align__(16) float held[WARPS][CHUNK][ROWS];
    __shared__ float4 sums[WARPS][ROWS_AT_ONCE][32];
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = warp & (job.groups - 1);
    const uint32_t leader = warp - group, sets = WARPS / job.groups, set = leader / job.groups;
    const uint32_t first = (blockIdx.x * sets + set) * (32 * Places<VECTOR>::ITEMS) + lane, row0 = blockIdx.y * ROWS;
    const Places<VECTOR> places(job, first, 32);
    const uint32_t part = blockIdx.z * job.part_channels, stop = min(part + job.part_channels, job.channels);
    const uint32_t begin = min(part + group * job.group_channels, stop), end = min(begin + job.group_channels, stop);
    float (&weights)[CHUNK][ROWS] = held[warp];
    float sum[ROWS][POSITIONS] = {};
    auto add = [&](uint32_t c, const float *x) {
        float w[ROWS];
        TL_UNROLL_FOR (int r = 0; r < ROWS; r += 4)
            tl_load4(weights[c] + r, w + r);
        TL_UNROLL_FOR (int r = 0; r < ROWS; r++)
            TL_UNROLL_FOR (int p = 0; p < POSITIONS; p++)
                sum[r][p] = fmaf(w[r], x[p], sum[r][p]);
    };
#pragma unroll 1
    for (uint32_t channel0 = begin; channel0 < end; channel0 += CHUNK) {
        const uint32_t count = min(end - channel0, (uint32_t)CHUNK);
        __syncwarp();
        TL_UNROLL_FOR (uint32_t r = 0; r < (uint32_t)ROWS; r++) {
            const bool real = lane < count && row0 + r < job.rows;
            weights[lane][r] = real ? __ldg(job.w + ((channel0 + lane) * job.w_channel + (row0 + r) * job.w_row))
                                    : 0.0f;
        }
        __syncwarp();
        uint32_t c = 0;
#pragma unroll 1
        for (; c + AHEAD <= count; c += AHEAD) {
            float x[AHEAD][POSITIONS];
            TL_UNROLL_FOR (int u = 0; u < AHEAD; u++)
                places.read(job, job.channels, channel0 + c + (uint32_t)u, x[u]);
            TL_UNROLL_FOR (int u = 0; u < AHEAD; u++)
                add(c + (uint32_t)u, x[u]);
        }
#pragma unroll 1
        for (; c < count; c++) {
            float x[POSITIONS];
            places.read(job, job.channels, channel0 + c, x);
            add(c, x);
        }
    }
    /* Warp `group` of those that share positions ends every groups-th of their rows. */
    float *const large = job.large + blockIdx.z * job.part_elements;
    TL_UNROLL_FOR (int r0 = 0; r0 < ROWS; r0 += ROWS_AT_ONCE) {
        __syncthreads(); /* the last sums have been read */
        TL_UNROLL_FOR (int r = 0; r < ROWS_AT_ONCE; r++)
            sums[warp][r][lane] = make_float4(sum[r0 + r][0], sum[r0 + r][1], sum[r0 + r][2], sum[r0 + r][3]);
        __syncthreads();
        for (uint32_t r = group; r < (uint32_t)ROWS_AT_ONCE; r += job.groups) {
            if (row0 + r0 + r >= job.rows) break;
            float total[POSITIONS];
            tl_unpack4(sums[leader][r][lane], total);
            for (uint32_t g = 1; g < job.groups; g++) {
                float more[POSITIONS];
                tl_unpack4(sums[leader + g][r][lane], more);
                TL_UNROLL_FOR (int p = 0; p < POSITIONS; p++)
                    total[p] += more[p];
            }
            places.write(job, large, row0 + (uint32_t)r0 + r, total);
        }
    }
}

template <int VECTOR> int32_t launch_channels(tl_context *ctx, Job &job)
{
    const unsigned columns = tl_grid(job.items, THREADS * Places<VECTOR>::ITEMS);
    /* fewer rows to a block where that leaves blocks enough for each multiprocessor to have some */
    const int64_t wanted = 4 * (int64_t)tl_cuda_sms(ctx);
    job.block_rows = BLOCK_ROWS;
    while (job.block_rows > BLOCK_ROWS_LEAST && columns * tl_ceil_div(job.rows, job.block_rows) < wanted)
        job.block_rows /= 2;
    const dim3 grid(columns, (unsigned)tl_ceil_div(job.rows, job.block_rows));
    void (*const kernels[CHANNELS_MOST])(Job) = {few_channels_kernel<1, VECTOR>, few_channels_kernel<2, VECTOR>,
                                                 few_channels_kernel<3, VECTOR>, few_channels_kernel<4, VECTOR>,
                                                 few_channels_kernel<5, VECTOR>, few_channels_kernel<6, VECTOR>,
                                                 few_channels_kernel<7, VECTOR>, few_channels_kernel<8, VECTOR>};
    return tl_launch(ctx, "conv_pointwise", kernels[job.channels - 1], grid, THREADS, job);
}

template <int VECTOR> int32_t launch_rows(tl_context *ctx, const Job &job, uint32_t parts)
{
    const int64_t rows = job.rows <= 4 ? 4 : job.rows <= 8 ? 8 : 16;
    const dim3 grid(tl_grid(job.items, THREADS / (int64_t)job.groups * Places<VECTOR>::ITEMS),
                    (unsigned)tl_ceil_div(job.rows, rows), parts);
    const auto kernel = rows == 4   ? few_rows_kernel<4, VECTOR>
                        : rows == 8 ? few_rows_kernel<8, VECTOR>
                                    : few_rows_kernel<16, VECTOR>;
    return tl_launch(ctx, "conv_pointwise", kernel, grid, THREADS, job);
}

template <int VECTOR> int32_t launch(tl_context *ctx, Job &job, const tl_conv_pointwise &p)
{
    job.image_items = tl_fastdiv((uint64_t)(p.size / VECTOR));
    job.items = (uint32_t)(p.batch * (p.size / VECTOR));
    return p.channels <= CHANNELS_MOST ? launch_channels<VECTOR>(ctx, job) : launch_rows<VECTOR>(ctx, job, p.parts);
}

} // namespace

int32_t tl_cuda_conv_pointwise(tl_context *ctx, const tl_conv_pointwise &p)
{
    Job job = {};
    job.small = p.small, job.w = p.w, job.bias = p.bias, job.large = p.large;
    job.channels = (uint32_t)p.channels, job.rows = (uint32_t)p.rows, job.size = (uint32_t)p.size;
    job.w_channel = p.w_channel, job.w_row = p.w_row;
    job.groups = p.groups, job.group_channels = p.group_channels, job.part_channels = p.part_channels;
    job.part_elements = (uint64_t)(p.batch * p.rows * p.size);
    const bool aligned = p.size % 4 == 0 && tl_aligned4(p.small) && tl_aligned4(p.large);
    return aligned ? launch<4>(ctx, job, p) : launch<1>(ctx, job, p);
}
