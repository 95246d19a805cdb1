/* Convolution as an implicit matrix product: target (rows, positions) = w (rows, K)·gathered source (K, positions), K =
 * channels·taps, positions numbered through the whole batch; a spread has one such product per phase (conv_geometry.h).
 *
 *   plan_kernel     a phase's gather, the weights transposed to (K, rows) and padded to whole tiles, and for every k
 *                   the offset it adds to a source index and its tap's bit
 *   product_kernel  a block owns a tile of BM rows by BN positions, a thread TM x 8 of its sums in registers. Stages of
 *                   STEPS steps arrive asynchronously: weights in 16-byte pieces, the source element by element with
 *                   zeros outside. Neighbouring threads copy neighbouring positions; a thread keeps its one position's
 *                   index and bits, the offsets lie in shared memory
 *   add_kernel      adds the blocks of K in order where different thread blocks have computed them
 *
 * Order of additions: a chain of fused multiply-adds per BLOCK steps, the blocks' sums added in order, the bias last:
 * with at most CHUNK taps the CPU path's order. Who adds the blocks (the block of threads itself, or add_kernel where
 * the target alone gives too few of them to fill the device) changes nothing in it, and the batch has no part in it. */
#include "conv.cuh"

using namespace tl_conv;

namespace {

constexpr int TABLE = 512; /* offsets in shared memory at a time */
constexpr int64_t PHASES_AT_ONCE = 256;
constexpr int64_t SCRATCH_MOST = INT64_C(1) << 26; /* floats of separately kept blocks: 256 MiB */

/* One phase on the device. K runs chunk by chunk; every chunk is padded to whole stages. */
struct Phase {
    tl_conv_gather gather;
    int64_t chunk_steps, steps; /* of a full chunk, of all */
};

struct Job {
    tl_conv_shape shape;
    bool spread;
    int64_t batch, channels, rows;
    const float *source, *w, *bias;
    float *target;
    Phase *phases;
    float *packed;   /* (phase, steps, padded_rows) */
    uint2 *offsets;  /* (phase, steps): source offset, tap bit */
    float *partial;  /* (block of K, the target's elements), or NULL */
    int64_t first_phase, most_steps, padded_rows, row_tiles, target_elements;
    int32_t phase_count, blocks_each; /* blocks of K per blockIdx.z */
};

TL_HD int64_t padded(int64_t n) { return (n + STEPS - 1) / STEPS * STEPS; }

TL_HD int64_t chunk_steps(const tl_conv_gather &g, int64_t channels)
{
    return padded(channels * (g.taps_size < CHUNK ? g.taps_size : CHUNK));
}

TL_HD int64_t all_steps(const tl_conv_gather &g, int64_t channels)
{
    const int64_t full = (g.taps_size - 1) / CHUNK;
    return full * chunk_steps(g, channels) + padded(channels * (g.taps_size - full * CHUNK));
}

/* blockIdx.y: phase. A thread writes one row of a packed step; the first thread of a row its offset too. */
__global__ void __launch_bounds__(256) plan_kernel(const Job job)
{
    __shared__ Phase phase;
    if (threadIdx.x == 0 && threadIdx.y == 0) {
        phase.gather = job.spread ? tl_conv_spread(&job.shape, job.first_phase + blockIdx.y)
                                  : tl_conv_correlate(&job.shape);
        phase.chunk_steps = chunk_steps(phase.gather, job.channels);
        phase.steps = all_steps(phase.gather, job.channels);
        if (blockIdx.x == 0)
            job.phases[blockIdx.y] = phase;
    }
    __syncthreads();
    const tl_conv_gather &g = phase.gather;
    const int64_t kernel = job.shape.taps;
    const int64_t row_stride = job.spread ? kernel : job.channels * kernel;
    const int64_t channel_stride = job.spread ? job.rows * kernel : kernel;
    for (int64_t k = (int64_t)blockIdx.x * blockDim.y + threadIdx.y; k < phase.steps;
         k += (int64_t)gridDim.x * blockDim.y) {
        const int64_t chunk = k / phase.chunk_steps, rest = k % phase.chunk_steps, left = g.taps_size - chunk * CHUNK;
        const int64_t taps = left < CHUNK ? left : CHUNK, channel = rest / taps, t = chunk * CHUNK + rest % taps;
        const bool real = channel < job.channels;
        const float *from = job.w + channel * channel_stride + (real ? tl_conv_kernel_index(&g, t) : 0);
        float *to = job.packed + ((int64_t)blockIdx.y * job.most_steps + k) * job.padded_rows;
        for (int64_t m = threadIdx.x; m < job.padded_rows; m += blockDim.x)
            to[m] = real && m < job.rows ? from[m * row_stride] : 0.0f;
        if (threadIdx.x == 0)
            job.offsets[(int64_t)blockIdx.y * job.most_steps + k] =
                real ? make_uint2((uint32_t)(channel * g.source_size) + tap_offset(g, t), (uint32_t)(rest % taps))
                     : make_uint2(0, CHUNK);
    }
}

template <int BM, int BN>
__global__ void __launch_bounds__(256, 2) product_kernel(const __grid_constant__ Job job)
{
    using T = Tile<BM, BN>;
    constexpr int THREADS = T::THREADS, EACH = STEPS * BN / THREADS, GROUPS = THREADS / BN;
    constexpr int SLICES_PER_BLOCK = BLOCK / STEPS;
    static_assert(THREADS == 256 && GROUPS >= 1 && TABLE % STEPS == 0, "a thread copies one position");
    __shared__ __align__(16) float a[STAGES][STEPS][BM], b[STAGES][STEPS][BN];
    __shared__ uint2 table[TABLE];
    __shared__ uint32_t targets[BN];
    /* Values needed once per block of K or per chunk, kept out of the registers that the sums need. */
    __shared__ struct {
        int left, blocks, steps, slices_per_chunk;
    } rare;

    /* row tiles fastest, so that blocks which gather the same positions run together; then phases, then positions */
    const uint32_t row_tile = blockIdx.x % (uint32_t)job.row_tiles, tile = blockIdx.x / (uint32_t)job.row_tiles;
    const uint32_t phase_index = tile % (uint32_t)job.phase_count;
    const Phase &phase = job.phases[phase_index];
    const tl_conv_gather &g = phase.gather;
    const int64_t columns = job.batch * g.positions, q0 = (int64_t)(tile / (uint32_t)job.phase_count) * BN;
    const uint32_t row0 = row_tile * BM;
    const int steps = (int)phase.steps, slices = steps / STEPS, blocks = (steps + BLOCK - 1) / BLOCK;
    const int first_block = (int)blockIdx.z * job.blocks_each, first = first_block * SLICES_PER_BLOCK;
    if (q0 >= columns || first_block >= blocks)
        return;
    const int last = min(slices, first + job.blocks_each * SLICES_PER_BLOCK);

    const int column = (int)threadIdx.x % BN, group = (int)threadIdx.x / BN;
    const bool used = q0 + column < columns;
    const uint32_t q = used ? (uint32_t)(q0 + column) : 0;
    if (threadIdx.x == 0) {
        rare.left = (int)(columns - q0 < BN ? columns - q0 : BN);
        rare.blocks = blocks, rare.steps = steps, rare.slices_per_chunk = (int)(phase.chunk_steps / STEPS);
    }
    __syncthreads();
    int chunk_end = first / rare.slices_per_chunk * rare.slices_per_chunk; /* the slice that starts the next chunk */
    uint32_t source;
    uint64_t inside;
    auto enter_chunk = [&](bool tell) {
        const uint32_t image = q / (uint32_t)g.positions;
        const int64_t tap = (int64_t)(chunk_end / rare.slices_per_chunk) * CHUNK, left = g.taps_size - tap;
        chunk_end += rare.slices_per_chunk;
        const Position p = position_of(g, q - image * (uint32_t)g.positions, tap, (int)(left < CHUNK ? left : CHUNK));
        source = p.source + image * (uint32_t)(job.channels * g.source_size);
        inside = used ? p.inside : 0;
        if (tell && group == 0)
            targets[column] = p.target + image * (uint32_t)(job.rows * g.target_size);
    };
    enter_chunk(true);

    /* what this thread copies of the weights: four rows of one step */
    constexpr int PIECES = STEPS * BM / 4;
    const int piece_step = (int)threadIdx.x / (BM / 4), piece_row = (int)threadIdx.x % (BM / 4) * 4;
    const float *weights = job.packed + row0 + piece_row +
                           ((int64_t)phase_index * job.most_steps + first * STEPS + piece_step) * job.padded_rows;
    const int64_t weights_stride = STEPS * job.padded_rows;
    const uint2 *offsets = job.offsets + (int64_t)phase_index * job.most_steps;
    int next = first;  /* slice to fetch */
    int table_end = 0; /* the table holds the offsets of the TABLE / STEPS slices before this one */
    auto fetch = [&]() {
        if (next < last) {
            if (next >= table_end) { /* uniform; all threads are past the barrier that ends the use of the old table */
                for (int i = (int)threadIdx.x; i < TABLE; i += THREADS)
                    if (next * STEPS + i < rare.steps)
                        table[i] = offsets[next * STEPS + i];
                table_end = next + TABLE / STEPS;
                __syncthreads();
            }
            if (next == chunk_end)
                enter_chunk(false);
            const int stage = next % STAGES;
            if (PIECES >= THREADS || (int)threadIdx.x < PIECES)
                copy_16(shared_address(&a[stage][piece_step][piece_row]), weights);
            weights += weights_stride;
            const uint2 *entries = table + TABLE + (next - table_end) * STEPS;
#pragma unroll
            for (int i = 0; i < EACH; i++) {
                const int k = group + i * GROUPS;
                const uint2 entry = entries[k];
                const bool real = (uint32_t)(inside >> entry.y) & 1;
                copy_or_zero(shared_address(&b[stage][k][column]), job.source + (real ? source + entry.x : 0), real);
            }
        }
        stage_end();
        next++;
    };

    float sum[T::TM][8] = {};
#pragma unroll 1
    for (int s = 0; s < STAGES - 1; s++)
        fetch();
#pragma unroll 1
    while (next < last + STAGES - 1) {
        const int slice = next - (STAGES - 1), stage = slice % STAGES;
        stage_wait();
        __syncthreads();
        fetch();
        T::template multiply<BM, BN>(&a[stage][0][0], &b[stage][0][0], sum);
        if ((slice + 1) % SLICES_PER_BLOCK == 0 || slice + 1 == last) {
            const int block = slice / SLICES_PER_BLOCK;
            const uint32_t size = (uint32_t)(job.spread ? job.shape.in_size : job.shape.out_size);
            float *to = job.partial ? job.partial + block * job.target_elements : job.target;
            const bool finish = !job.partial && job.bias && block + 1 == rare.blocks;
            store_block<T>(to, size, targets, rare.left, row0, (uint32_t)job.rows, !job.partial && block > 0,
                           finish ? job.bias : nullptr, sum);
#pragma unroll
            for (int r = 0; r < T::TM; r++)
#pragma unroll
                for (int c = 0; c < 8; c++)
                    sum[r][c] = 0.0f;
        }
    }
}

/* A thread owns one element: its blocks' sums in order, then the bias. */
__global__ void __launch_bounds__(256) add_kernel(const float *__restrict__ partial, int64_t blocks, int64_t n,
                                                  const float *__restrict__ bias, tl_fastdiv size, tl_fastdiv rows,
                                                  float *__restrict__ out)
{
    const int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x;
    if (i >= n)
        return;
    float sum = partial[i];
#pragma unroll 4
    for (int64_t block = 1; block < blocks; block++)
        sum = sum + partial[block * n + i];
    if (bias) {
        uint32_t row;
        rows.divmod(size.div((uint32_t)i), &row);
        sum = sum + bias[row];
    }
    out[i] = sum;
}

/* out[n, row, i] = bias[row], or 0. */
__global__ void __launch_bounds__(256) fill_kernel(const float *__restrict__ bias, int64_t n, tl_fastdiv size,
                                                   tl_fastdiv rows, float *__restrict__ out)
{
    const int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x;
    if (i >= n)
        return;
    uint32_t row = 0;
    if (bias)
        rows.divmod(size.div((uint32_t)i), &row);
    out[i] = bias ? bias[row] : 0.0f;
}

int32_t fill(tl_context *ctx, const float *bias, int64_t batch, int64_t rows, int64_t size, float *out)
{
    const int64_t n = batch * rows * size;
    fill_kernel<<<tl_grid(n, 256), 256, 0, tl_cuda_stream(ctx)>>>(bias, n, tl_fastdiv(size), tl_fastdiv(rows), out);
    return tl_cuda_launched(ctx, "fill");
}

/* Most positions and steps a phase of the spread can have; those of a correlation. */
void most_of(const Job &job, int64_t *positions, int64_t *steps)
{
    tl_conv_gather g = tl_conv_correlate(&job.shape);
    if (job.spread) {
        g.positions = g.taps_size = 1;
        for (int d = 0; d < job.shape.rank; d++) {
            g.positions *= tl_ceil_div(job.shape.in[d], job.shape.stride[d]);
            g.taps_size *= tl_ceil_div(job.shape.kernel[d], job.shape.stride[d]);
        }
    }
    *positions = g.positions;
    *steps = all_steps(g, job.channels);
}

template <int BM, int BN> int32_t launch(tl_context *ctx, Job &job, int64_t positions, int64_t phases)
{
    const int64_t tiles = tl_ceil_div(job.batch * positions, BN) * job.row_tiles;
    const int64_t blocks = tl_ceil_div(job.most_steps, BLOCK);
    /* Too few tiles for the device: the blocks of K go to different thread blocks, which only a single phase allows,
     * since the phases' targets interleave and their numbers of blocks differ. */
    const int64_t fill = 2 * (int64_t)tl_cuda_sms(ctx);
    void *partial = nullptr;
    job.blocks_each = (int32_t)blocks;
    if (phases == 1 && blocks > 1 && 2 * tiles <= fill && !(job.spread && tl_conv_has_gaps(&job.shape)) &&
        blocks * job.target_elements <= SCRATCH_MOST) {
        job.blocks_each = (int32_t)tl_ceil_div(blocks * tiles, fill);
        TL_TRY(tl_pool_alloc(ctx, sizeof(float) * (size_t)(blocks * job.target_elements), &partial));
    }
    job.partial = (float *)partial;
    int32_t status = TORCHLEAN_OK;
    for (job.first_phase = 0; job.first_phase < phases && !status; job.first_phase += PHASES_AT_ONCE) {
        const int64_t left = phases - job.first_phase;
        job.phase_count = (int32_t)(left < PHASES_AT_ONCE ? left : PHASES_AT_ONCE);
        const dim3 plan_grid(tl_grid(job.most_steps, 4, 1024), (unsigned)job.phase_count);
        plan_kernel<<<plan_grid, dim3(64, 4), 0, tl_cuda_stream(ctx)>>>(job);
        status = tl_cuda_launched(ctx, "plan");
        if (status)
            break;
        const dim3 grid((unsigned)(tiles * job.phase_count), 1, (unsigned)tl_ceil_div(blocks, job.blocks_each));
        product_kernel<BM, BN><<<grid, Tile<BM, BN>::THREADS, 0, tl_cuda_stream(ctx)>>>(job);
        status = tl_cuda_launched(ctx, "conv_product");
    }
    if (partial && !status) {
        const int64_t size = job.spread ? job.shape.in_size : job.shape.out_size;
        add_kernel<<<tl_grid(job.target_elements, 256), 256, 0, tl_cuda_stream(ctx)>>>(
            job.partial, blocks, job.target_elements, job.bias, tl_fastdiv(size), tl_fastdiv(job.rows), job.target);
        status = tl_cuda_launched(ctx, "add");
    }
    tl_pool_free(ctx, partial);
    return status;
}

} // namespace

int32_t tl_cuda_conv_product(tl_context *ctx, const tl_conv_shape &s, bool spread, int64_t batch, int64_t channels,
                             int64_t rows, const float *source, const float *w, const float *bias, float *target)
{
    const int64_t size = spread ? s.in_size : s.out_size;
    if (batch == 0 || rows == 0)
        return TORCHLEAN_OK;
    if (channels == 0)
        return fill(ctx, bias, batch, rows, size, target);
    if (spread && tl_conv_has_gaps(&s))
        TL_TRY(fill(ctx, bias, batch, rows, size, target));
    Job job = {};
    job.shape = s;
    job.spread = spread;
    job.batch = batch, job.channels = channels, job.rows = rows;
    job.source = source, job.w = w, job.bias = bias, job.target = target;
    job.target_elements = batch * rows * size;
    int64_t positions;
    most_of(job, &positions, &job.most_steps);
    const int64_t phases = spread ? tl_conv_phases(&s) : 1, kept = phases < PHASES_AT_ONCE ? phases : PHASES_AT_ONCE;
    const int64_t tile_rows = rows <= 32 ? 32 : rows <= 64 ? 64 : 128;
    job.row_tiles = tl_ceil_div(rows, tile_rows);
    job.padded_rows = job.row_tiles * tile_rows;
    /* one allocation, each part on 256 bytes */
    const size_t phase_bytes = (sizeof(Phase) * (size_t)kept + 255) / 256 * 256;
    const size_t offset_bytes = (sizeof(uint2) * (size_t)(kept * job.most_steps) + 255) / 256 * 256;
    const size_t packed_bytes = sizeof(float) * (size_t)(kept * job.most_steps * job.padded_rows);
    void *scratch;
    TL_TRY(tl_pool_alloc(ctx, phase_bytes + offset_bytes + packed_bytes, &scratch));
    job.phases = (Phase *)scratch;
    job.offsets = (uint2 *)((char *)scratch + phase_bytes);
    job.packed = (float *)((char *)scratch + phase_bytes + offset_bytes);
    const int32_t status = tile_rows == 32   ? launch<32, 256>(ctx, job, positions, phases)
                           : tile_rows == 64 ? launch<64, 256>(ctx, job, positions, phases)
                                             : launch<128, 128>(ctx, job, positions, phases);
    tl_pool_free(ctx, scratch);
    return status;
}
