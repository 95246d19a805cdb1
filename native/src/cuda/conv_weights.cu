/* The gradient of a convolution's weights as an implicit product: gw (rows, K) = small (rows, batch·positions)·gathered
 * large (batch·positions, K), K = channels·taps, with taps CHUNK at a time.
 *
 * A block owns a tile of BM rows by BN columns of gw over one segment of the positions, a thread TM x 8 of its sums in
 * registers. In a stage of STEPS = 8 positions a thread copies one position's elements: its rows of `small`, and the
 * columns (channel and tap) of `large`, whose offsets and bits lie in shared memory. Eight neighbouring threads have
 * neighbouring positions, 32 bytes of memory, and rows of shared memory are 4 floats longer than the tile, so that a
 * warp's 8 positions of 4 rows fall into 32 different banks.
 *
 * Order of additions: a chain of fused multiply-adds per BLOCK positions, blocks added in order within a segment; the
 * segments' sums by the column tree of formula/sum_tree.h. Segments follow from the shape alone. */
#include "conv.cuh"
#include "sum_tree.cuh"

using namespace tl_conv;

namespace {

/* Thread blocks wanted: two waves of two per SM on the largest chips. A constant, because segments are part of the
 * result; and positions of a segment, at least. */
constexpr int64_t BLOCKS_WANTED = 528, SEGMENT_LEAST = 1024;

struct Job {
    tl_conv_gather gather;
    const float *large, *small;
    float *sums; /* (segment, rows, channels, taps) */
    int64_t rows, channels, elements; /* elements of gw */
    /* per axis: positions per line; position coordinates low .. low + width - 1 have every tap inside; the source index
     * that a step along the axis adds, modulo 2^32 */
    tl_fastdiv count[TL_CONV_RANK], positions;
    uint32_t low[TL_CONV_RANK], width[TL_CONV_RANK], advance[TL_CONV_RANK];
    uint32_t origin, total, segment, row_tiles, chunk_tiles; /* column tiles of a full chunk */
};

/* The bits of a position near an end of the source. A call, because it is rare. */
static __device__ __noinline__ uint64_t border_bits(const tl_conv_gather &g, uint32_t at, int64_t first, int n)
{
    return position_of(g, at, first, n).inside;
}

template <int BM, int BN>
__global__ void __launch_bounds__((Tile<BM, BN>::THREADS), (512 / Tile<BM, BN>::THREADS))
    weights_kernel(const __grid_constant__ Job job)
{
    using T = Tile<BM, BN>;
    constexpr int GROUPS = T::THREADS / STEPS, EACH_A = BM / GROUPS, EACH_B = BN / GROUPS, LA = BM + 4, LB = BN + 4;
    constexpr int SLICES_PER_BLOCK = BLOCK / STEPS;
    __shared__ __align__(16) float a[STAGES][STEPS][LA], b[STAGES][STEPS][LB];
    __shared__ uint32_t targets[BN];
    __shared__ uint2 offsets[BN]; /* source offset, tap bit */
    const tl_conv_gather &g = job.gather;

    const uint32_t row0 = blockIdx.x % job.row_tiles * BM, tile = blockIdx.x / job.row_tiles;
    const int64_t tap0 = (int64_t)(tile / job.chunk_tiles) * CHUNK;
    const int taps = (int)(g.taps_size - tap0 < CHUNK ? g.taps_size - tap0 : CHUNK);
    const int64_t column0 = (int64_t)(tile % job.chunk_tiles) * BN, columns = job.channels * taps;
    const uint32_t begin = blockIdx.y * job.segment;
    const uint32_t length = job.total - begin < job.segment ? job.total - begin : job.segment;
    const int slices = (int)((length - 1) / STEPS) + 1, tail = (int)((length - 1) % STEPS) + 1;

    for (int i = (int)threadIdx.x; i < BN; i += T::THREADS) {
        const int64_t j = column0 + i, channel = j / taps, tap = j % taps;
        const bool real = j < columns;
        offsets[i] = real ? make_uint2((uint32_t)(channel * g.source_size) + tap_offset(g, tap0 + tap), (uint32_t)tap)
                          : make_uint2(0, CHUNK);
        targets[i] = (uint32_t)(channel * g.taps_size + tap0 + tap);
    }
    __syncthreads();
    const int step = (int)threadIdx.x % STEPS, group = (int)threadIdx.x / STEPS;
    const int rows_left = (int)(job.rows - row0 < BM ? job.rows - row0 : BM);
    const uint32_t size = (uint32_t)g.positions, image_rows = (uint32_t)job.rows * size;
    const uint32_t image_source = (uint32_t)(job.channels * g.source_size);

    uint32_t q = begin + step;
    int next = 0;
    auto fetch = [&]() {
        if (next < slices) {
            const int stage = next % STAGES;
            const bool used = next + 1 < slices || step < tail;
            uint32_t at, source = job.origin, from = row0 * size + group * size;
            const uint32_t image = job.positions.divmod(used ? q : begin, &at);
            const uint32_t whole = at;
            bool border = false;
            from += image * image_rows + at;
            source += image * image_source;
#pragma unroll 1
            for (int d = g.rank - 1; d >= 0; d--) {
                uint32_t j = at;
                at = job.count[d].divmod(at, &j);
                source += j * job.advance[d];
                border |= j - job.low[d] >= job.width[d];
            }
            uint64_t inside = (UINT64_C(1) << taps) - 1;
            if (border)
                inside = border_bits(g, whole, tap0, taps);
            if (!used)
                inside = 0;
#pragma unroll
            for (int i = 0; i < EACH_A; i++) {
                const bool real = used && group + i * GROUPS < rows_left;
                copy_or_zero(shared_address(&a[stage][step][group + i * GROUPS]),
                             job.small + (real ? from + i * GROUPS * size : 0), real);
            }
#pragma unroll
            for (int i = 0; i < EACH_B; i++) {
                const uint2 entry = offsets[group + i * GROUPS];
                const bool real = (uint32_t)(inside >> entry.y) & 1;
                copy_or_zero(shared_address(&b[stage][step][group + i * GROUPS]),
                             job.large + (real ? source + entry.x : 0), real);
            }
            q += STEPS;
        }
        stage_end();
        next++;
    };

    float sum[T::TM][8] = {};
#pragma unroll 1
    for (int s = 0; s < STAGES - 1; s++)
        fetch();
#pragma unroll 1
    while (next < slices + STAGES - 1) {
        const int slice = next - (STAGES - 1), stage = slice % STAGES;
        stage_wait();
        __syncthreads();
        fetch();
        T::template multiply<LA, LB>(&a[stage][0][0], &b[stage][0][0], sum);
        if ((slice + 1) % SLICES_PER_BLOCK == 0 || slice + 1 == slices) {
            const int left = (int)(columns - column0 < BN ? columns - column0 : BN);
            store_block<T>(job.sums + blockIdx.y * job.elements, (uint32_t)(job.channels * g.taps_size), targets, left,
                           row0, (uint32_t)job.rows, slice >= SLICES_PER_BLOCK, nullptr, sum);
#pragma unroll
            for (int r = 0; r < T::TM; r++)
#pragma unroll
                for (int c = 0; c < 8; c++)
                    sum[r][c] = 0.0f;
        }
    }
}

template <int BM, int BN> int32_t launch(tl_context *ctx, Job &job, int64_t total, float *gw)
{
    const int64_t taps = job.gather.taps_size, last_taps = (taps - 1) % CHUNK + 1;
    const int64_t full_chunks = (taps - last_taps) / CHUNK, last_tiles = tl_ceil_div(job.channels * last_taps, BN);
    job.row_tiles = (uint32_t)tl_ceil_div(job.rows, BM);
    job.chunk_tiles = (uint32_t)(full_chunks ? tl_ceil_div(job.channels * CHUNK, BN) : last_tiles);
    const int64_t tiles = (full_chunks * job.chunk_tiles + last_tiles) * job.row_tiles;
    int64_t segments = BLOCKS_WANTED / tiles;
    if (segments > total / SEGMENT_LEAST)
        segments = total / SEGMENT_LEAST;
    if (segments < 1)
        segments = 1;
    const int64_t segment = tl_ceil_div(tl_ceil_div(total, segments), BLOCK) * BLOCK;
    segments = tl_ceil_div(total, segment);
    job.segment = (uint32_t)(segment < UINT32_MAX ? segment : UINT32_MAX);
    void *sums = nullptr;
    if (segments > 1)
        TL_TRY(tl_pool_alloc(ctx, sizeof(float) * (size_t)(segments * job.elements), &sums));
    job.sums = sums ? (float *)sums : gw;
    weights_kernel<BM, BN><<<dim3((unsigned)tiles, (unsigned)segments), Tile<BM, BN>::THREADS, 0,
                             tl_cuda_stream(ctx)>>>(job);
    int32_t status = tl_cuda_launched(ctx, "conv_weights");
    if (sums && !status)
        status = tl_cuda_column_sums(ctx, (const float *)sums, 1, segments, job.elements, 0, gw);
    tl_pool_free(ctx, sums);
    return status;
}

} // namespace

int32_t tl_cuda_conv_weights(tl_context *ctx, const tl_conv_shape &s, int64_t batch, int64_t channels, int64_t rows,
                             const float *large, const float *small, float *gw)
{
    Job job = {};
    job.gather = tl_conv_correlate(&s);
    job.large = large, job.small = small;
    job.rows = rows, job.channels = channels, job.elements = rows * channels * s.taps;
    job.positions = tl_fastdiv(s.out_size);
    job.total = (uint32_t)(batch * s.out_size);
    int64_t stride = 1;
    for (int d = s.rank - 1; d >= 0; d--) {
        /* 0 <= j·stride - padding and j·stride - padding + kernel - 1 < in */
        const int64_t low = tl_ceil_div(s.padding[d], s.stride[d]), room = s.in[d] - s.kernel[d] + s.padding[d];
        const int64_t high = room < 0 ? 0 : room / s.stride[d] + 1;
        job.count[d] = tl_fastdiv(s.out[d]);
        job.low[d] = (uint32_t)low;
        job.width[d] = (uint32_t)(high > low ? high - low : 0);
        job.advance[d] = (uint32_t)(s.stride[d] * stride);
        job.origin -= (uint32_t)(s.padding[d] * stride);
        stride *= s.in[d];
    }
    const int64_t total = batch * s.out_size;
    return rows <= 32   ? launch<32, 128>(ctx, job, total, gw)
           : rows <= 64 ? launch<64, 128>(ctx, job, total, gw)
                        : launch<128, 128>(ctx, job, total, gw);
}
