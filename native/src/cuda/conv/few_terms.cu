/* Convolutions whose elements are sums of fewer terms than tensor cores take, as those of first layers with strides are: fused
 * multiply-adds.
 *
 *   few_terms_kernel   a block owns POSITIONS positions of the batch and some rows. It gathers what the positions multiply, zeros
 *                      outside, and the weights into shared memory, once; a thread then keeps the sums of ROWS rows of P
 *                      positions, so that P elements and ROWS weights, which all lanes read from the same place, make P·ROWS
 *                      multiply-adds. The lanes of a warp have neighbouring positions and write whole lines
 *
 * The tiles of conv/mma_product.cu serve these sums as well, in the same order, but gather and wait for every 16 columns of K again,
 * and pad rows to 64 and K to whole chains.
 *
 * Order of additions: that of conv/mma_product.cu, a chain of fused multiply-adds over CHAIN columns of K, with CHUNK taps of a
 * larger kernel to a chain; then the second chain, and the bias. */
#include "cuda/conv/conv.cuh"
#include "cuda/device/division.cuh"
#include "cuda/device/unroll.cuh"

using tl_conv::CHUNK;

namespace {

constexpr int THREADS = 128, WARPS = THREADS / 32, AXES = TL_CONV_AXES;
constexpr int POSITIONS = 128, ROWS = 8, CHAIN = 32;
constexpr uint32_t NEVER = UINT32_C(1) << 31; /* the bit of no tap, which no position has */

/* A shape of lower rank has axes of length 1 before its own; the numbers are those of tl_conv_gather. */
struct Job {
    const float *source, *w, *bias;
    float *target;
    uint32_t channels, rows, columns, source_size, target_size, taps, w_row, w_channel;
    tl_fastdiv positions, count1, count2;
    int32_t step[AXES], base[AXES], tap_step[AXES], extent[AXES], tap_count[AXES];
    uint32_t stride[AXES]; /* of the source */
    uint32_t kernel_base, kernel_step[AXES];
};

/* A column of K: what it adds to a source index, the bits of its tap on every axis, and its weight in a row; or padding. */
struct Column {
    uint32_t source, bits, weight;
    bool real;

    __device__ __forceinline__ Column(const Job &job, uint32_t k)
    {
        const bool chunks = job.taps > (uint32_t)CHUNK; /* of one channel */
        const uint32_t channel = chunks ? 0 : k / job.taps;
        const uint32_t t = chunks ? k / CHAIN * CHUNK + k % CHAIN : k - channel * job.taps;
        real = channel < job.channels && t < job.taps && !(chunks && k % CHAIN == CHUNK);
        const uint32_t taps1 = (uint32_t)job.tap_count[1], taps2 = (uint32_t)job.tap_count[2];
        const uint32_t line = t / taps2, at[AXES] = {line / taps1, line % taps1, t % taps2};
        source = channel * job.source_size, weight = channel * job.w_channel + job.kernel_base;
        TL_UNROLL_FOR (int d = 0; d < AXES; d++) {
            source += at[d] * (uint32_t)job.tap_step[d] * job.stride[d];
            weight += at[d] * job.kernel_step[d];
        }
        bits = real ? 1u << at[2] | 1u << (taps2 + at[1]) | 1u << (taps2 + taps1 + at[0]) : NEVER;
    }
};

/* A position of the batch: the source index with tap 0 (modulo 2^32, which is exact for what lies inside), the target index in
 * row 0, and the bits of the taps that are inside on their axis. */
struct Position {
    uint32_t source, target, bits;

    __device__ __forceinline__ Position(const Job &job, uint32_t q)
    {
        uint32_t at, j[AXES];
        const uint32_t image = job.positions.divmod(q, &at);
        j[0] = job.count1.divmod(job.count2.divmod(at, &j[2]), &j[1]);
        source = image * job.channels * job.source_size, target = image * job.rows * job.target_size + at;
        bits = 0;
        uint32_t bit = 1;
        TL_UNROLL_FOR (int d = AXES - 1; d >= 0; d--) {
            int32_t c = (int32_t)j[d] * job.step[d] + job.base[d];
            source += (uint32_t)c * job.stride[d];
            for (int32_t t = 0; t < job.tap_count[d]; t++, c += job.tap_step[d], bit <<= 1)
                if ((uint32_t)c < (uint32_t)job.extent[d]) bits |= bit;
        }
    }
};

/* Warps that share positions have P of them to a thread each, and ROWS rows of their own. */
template <int COLUMNS, int P>
__global__ void __launch_bounds__(THREADS) few_terms_kernel(const __grid_constant__ Job job)
{
    constexpr int TILE_ROWS = ROWS * P, PITCH = TILE_ROWS + 4, CHAINS = (COLUMNS + CHAIN - 1) / CHAIN;
    static_assert(COLUMNS % 4 == 0 && COLUMNS <= TL_CONV_MAX_FEW_COLUMNS && COLUMNS <= THREADS &&
                      POSITIONS == THREADS && WARPS % P == 0,
                  "a thread has a position to gather and a column to describe");
    __shared__ __align__(16) float elements[COLUMNS][POSITIONS];
    __shared__ __align__(16) float weights[COLUMNS][PITCH];
    __shared__ __align__(16) uint2 table[COLUMNS];
    __shared__ uint32_t places[COLUMNS], targets[POSITIONS];
    if (threadIdx.x < COLUMNS) {
        const Column column(job, threadIdx.x);
        table[threadIdx.x] = make_uint2(column.real ? column.source : 0, column.bits);
        places[threadIdx.x] = column.weight;
    }
    const uint32_t first = blockIdx.x * POSITIONS, left = job.columns - first, row0 = blockIdx.y * TILE_ROWS;
    const Position position(job, first + min(threadIdx.x, left - 1));
    targets[threadIdx.x] = position.target;
    __syncthreads();
#pragma unroll 4
    for (uint32_t i = threadIdx.x; i < COLUMNS * TILE_ROWS; i += THREADS) {
        const uint32_t row = i / COLUMNS, k = i % COLUMNS;
        const bool real = row0 + row < job.rows && table[k].y != NEVER;
        weights[k][row] = real ? __ldg(job.w + (row0 + row) * job.w_row + places[k]) : 0.0f;
    }
    TL_UNROLL_FOR (int k = 0; k < COLUMNS; k += 2) {
        const uint4 two = *reinterpret_cast<const uint4 *>(table + k);
        const bool inside0 = (position.bits & two.y) == two.y, inside1 = (position.bits & two.w) == two.w;
        elements[k][threadIdx.x] = inside0 ? __ldg(job.source + (position.source + two.x)) : 0.0f;
        elements[k + 1][threadIdx.x] = inside1 ? __ldg(job.source + (position.source + two.z)) : 0.0f;
    }
    __syncthreads();
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint32_t own_row = warp % P * ROWS, own = warp / P * (32 * P) + lane;
    if (row0 + own_row >= job.rows) return;
    float sum[ROWS][P] = {};
    TL_UNROLL_FOR (int c = 0; c < CHAINS; c++) {
        float chain[ROWS][P] = {};
#pragma unroll 4
        for (int k = c * CHAIN; k < (c + 1 < CHAINS ? (c + 1) * CHAIN : COLUMNS); k++) {
            float x[P], w[ROWS];
            TL_UNROLL_FOR (int p = 0; p < P; p++)
                x[p] = elements[k][own + 32 * p];
            TL_UNROLL_FOR (int r = 0; r < ROWS; r += 4) {
                const float4 four = *reinterpret_cast<const float4 *>(weights[k] + own_row + r);
                w[r] = four.x, w[r + 1] = four.y, w[r + 2] = four.z, w[r + 3] = four.w;
            }
            TL_UNROLL_FOR (int r = 0; r < ROWS; r++)
                TL_UNROLL_FOR (int p = 0; p < P; p++)
                    chain[r][p] = fmaf(w[r], x[p], chain[r][p]);
        }
        TL_UNROLL_FOR (int r = 0; r < ROWS; r++)
            TL_UNROLL_FOR (int p = 0; p < P; p++)
                sum[r][p] += chain[r][p]; /* also the first: a product that underflows may have left -0 */
    }
    TL_UNROLL_FOR (int p = 0; p < P; p++) {
        if (own + 32 * p >= left) break;
        float *const to = job.target + targets[own + 32 * p];
        TL_UNROLL_FOR (int r = 0; r < ROWS; r++) {
            const uint32_t row = row0 + own_row + r;
            if (row >= job.rows) break;
            to[row * job.target_size] = job.bias ? sum[r][p] + __ldg(job.bias + row) : sum[r][p];
        }
    }
}

template <int COLUMNS, int P> int32_t launch_tiles(tl_context *ctx, const Job &job)
{
    const dim3 grid((unsigned)tl_ceil_div(job.columns, POSITIONS), (unsigned)tl_ceil_div(job.rows, ROWS * P));
    return tl_launch(ctx, "conv_few_terms", few_terms_kernel<COLUMNS, P>, grid, THREADS, job);
}

template <int COLUMNS> int32_t launch(tl_context *ctx, const Job &job)
{
    return job.rows > 2 * ROWS ? launch_tiles<COLUMNS, 4>(ctx, job)
           : job.rows > ROWS   ? launch_tiles<COLUMNS, 2>(ctx, job)
                               : launch_tiles<COLUMNS, 1>(ctx, job);
}

} // namespace

int32_t tl_conv_few_terms(tl_context *ctx, const tl_conv_shape &s, bool spread, int64_t batch, int64_t channels,
                          int64_t rows, const float *source, const float *w, const float *bias, float *target)
{
    const tl_conv_gather g = spread ? tl_conv_spread(&s, 0) : tl_conv_correlate(&s);
    Job job = {};
    job.source = source, job.w = w, job.bias = bias, job.target = target;
    job.channels = (uint32_t)channels, job.rows = (uint32_t)rows, job.taps = (uint32_t)s.taps;
    job.columns = (uint32_t)(batch * g.positions);
    job.source_size = (uint32_t)g.source_size, job.target_size = (uint32_t)g.target_size;
    job.w_row = (uint32_t)(spread ? s.taps : channels * s.taps);
    job.w_channel = (uint32_t)(spread ? rows * s.taps : s.taps);
    int64_t count[AXES] = {1, 1, 1}, stride = 1, kernel = 1;
    for (int d = 0; d < AXES; d++)
        job.extent[d] = job.tap_count[d] = 1;
    for (int d = g.rank - 1; d >= 0; d--) {
        const int to = AXES - g.rank + d;
        count[to] = g.count[d];
        job.step[to] = (int32_t)g.step[d], job.base[to] = (int32_t)g.base[d];
        job.tap_step[to] = (int32_t)g.tap_step[d], job.extent[to] = (int32_t)g.source[d];
        job.tap_count[to] = (int32_t)g.taps[d];
        job.stride[to] = (uint32_t)stride;
        job.kernel_base += (uint32_t)(g.kernel_base[d] * kernel);
        job.kernel_step[to] = (uint32_t)(g.kernel_step[d] * kernel);
        stride *= g.source[d];
        kernel *= g.kernel[d];
    }
    job.positions = tl_fastdiv((uint64_t)g.positions);
    job.count1 = tl_fastdiv((uint64_t)count[1]), job.count2 = tl_fastdiv((uint64_t)count[2]);
    const int64_t columns = tl_conv_few_columns(&s, channels);
    /* those of first layers: 27 and 48 of three channels, 49 taps in two chunks */
    const auto launch_columns = columns <= 4    ? launch<4>
                                : columns <= 8  ? launch<8>
                                : columns <= 12 ? launch<12>
                                : columns <= 16 ? launch<16>
                                : columns <= 28 ? launch<28>
                                : columns <= 32 ? launch<32>
                                : columns <= 48 ? launch<48>
                                : columns <= 52 ? launch<52>
                                                : launch<64>;
    return launch_columns(ctx, job);
}
