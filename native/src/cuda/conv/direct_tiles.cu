/* Direct products of one group: sums of fewer terms than tensor cores take, as those of first layers with strides are.
 *
 *   tile_kernel   a block owns POSITIONS positions of the batch and some rows. It gathers what the positions multiply, zeros
 *                 outside, and the weights into shared memory, once; a thread then keeps the sums of ROWS rows of P positions, so
 *                 that P elements and ROWS weights, which all lanes read from the same place, make P·ROWS multiply-adds. The
 *                 lanes of a warp have neighbouring positions and write whole lines
 *
 * The tiles of conv/mma_product.cu would serve these sums as well, but gather and wait for every 16 columns of K again, and pad rows
 * to 64 and K to whole chains.
 *
 * Order of additions: that of conv/direct.cu. */
#include "cuda/conv/gather.cuh"

using namespace tl_conv_gathers;

namespace {

constexpr int THREADS = 128, WARPS = THREADS / 32;
constexpr int POSITIONS = 128, ROWS = 8;
constexpr uint32_t NEVER = UINT32_C(1) << 31; /* the bit of no tap, which no position has */

struct Job {
    const float *source, *w, *bias;
    float *target;
    Arrays arrays;
    Phase phase;
    uint32_t w_row, w_channel;
};

/* A column of K: what it adds to a source index, the bits of its tap on every axis, and its weight in a row; or padding. */
struct Column {
    uint32_t source, bits, weight;
    bool real;

    __device__ __forceinline__ Column(const Job &job, uint32_t k)
    {
        uint32_t t;
        const uint32_t channel = job.phase.taps.divmod(k, &t);
        const uint32_t taps1 = job.phase.taps1.divisor, taps2 = job.phase.taps2.divisor;
        const TapPlace tap(job.phase, t);
        real = channel < job.arrays.channels;
        source = channel * job.arrays.source_size + tap.source(job.arrays, job.phase);
        weight = channel * job.w_channel + tap.weight(job.phase);
        bits = real ? 1u << tap.at[2] | 1u << (taps2 + tap.at[1]) | 1u << (taps2 + taps1 + tap.at[0]) : NEVER;
    }
};

/* The bits of the taps that are inside on their axis. */
__device__ __forceinline__ uint32_t bits_of(const Job &job, const Position &position)
{
    const uint32_t taps1 = job.phase.taps1.divisor, taps2 = job.phase.taps2.divisor;
    const uint32_t counts[AXES] = {job.phase.taps.divisor / (taps1 * taps2), taps1, taps2};
    uint32_t bits = 0, bit = 1;
    TL_UNROLL_FOR (int d = AXES - 1; d >= 0; d--) {
        int32_t c = position.c[d];
        for (uint32_t t = 0; t < counts[d]; t++, c += job.phase.tap_step[d], bit <<= 1)
            if ((uint32_t)c < (uint32_t)job.arrays.extent[d]) bits |= bit;
    }
    return bits;
}

/* Warps that share positions have P of them to a thread each, and ROWS rows of their own. */
template <int COLUMNS, int P> __global__ void __launch_bounds__(THREADS) tile_kernel(const __grid_constant__ Job job)
{
    constexpr int TILE_ROWS = ROWS * P, PITCH = TILE_ROWS + 4;
    static_assert(COLUMNS % 4 == 0 && COLUMNS <= TL_CONV_MAX_DIRECT_COLUMNS && COLUMNS <= THREADS &&
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
    const uint32_t first = blockIdx.x * POSITIONS, left = job.phase.columns - first, row0 = blockIdx.y * TILE_ROWS;
    Position position;
    position.find(job.arrays, job.phase, first + min(threadIdx.x, left - 1));
    const uint32_t bits = bits_of(job, position), rows = job.arrays.rows;
    targets[threadIdx.x] = position.target;
    __syncthreads();
#pragma unroll 4
    for (uint32_t i = threadIdx.x; i < COLUMNS * TILE_ROWS; i += THREADS) {
        const uint32_t row = i / COLUMNS, k = i % COLUMNS;
        const bool real = row0 + row < rows && table[k].y != NEVER;
        weights[k][row] = real ? __ldg(job.w + (row0 + row) * job.w_row + places[k]) : 0.0f;
    }
    TL_UNROLL_FOR (int k = 0; k < COLUMNS; k += 2) {
        const uint4 two = *reinterpret_cast<const uint4 *>(table + k);
        const bool inside0 = (bits & two.y) == two.y, inside1 = (bits & two.w) == two.w;
        elements[k][threadIdx.x] = inside0 ? __ldg(job.source + (position.source + two.x)) : 0.0f;
        elements[k + 1][threadIdx.x] = inside1 ? __ldg(job.source + (position.source + two.z)) : 0.0f;
    }
    __syncthreads();
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint32_t own_row = warp % P * ROWS, own = warp / P * (32 * P) + lane;
    if (row0 + own_row >= rows) return;
    float sum[ROWS][P] = {};
#pragma unroll 4
    for (int k = 0; k < COLUMNS; k++) {
        float x[P], w[ROWS];
        TL_UNROLL_FOR (int p = 0; p < P; p++)
            x[p] = elements[k][own + 32 * p];
        TL_UNROLL_FOR (int r = 0; r < ROWS; r += 4) {
            const float4 four = *reinterpret_cast<const float4 *>(weights[k] + own_row + r);
            w[r] = four.x, w[r + 1] = four.y, w[r + 2] = four.z, w[r + 3] = four.w;
        }
        TL_UNROLL_FOR (int r = 0; r < ROWS; r++)
            TL_UNROLL_FOR (int p = 0; p < P; p++)
                sum[r][p] = fmaf(w[r], x[p], sum[r][p]);
    }
    TL_UNROLL_FOR (int p = 0; p < P; p++) {
        if (own + 32 * p >= left) break;
        float *const to = job.target + targets[own + 32 * p];
        TL_UNROLL_FOR (int r = 0; r < ROWS; r++) {
            const uint32_t row = row0 + own_row + r;
            if (row >= rows) break;
            to[row * job.arrays.target_size] = job.bias ? sum[r][p] + __ldg(job.bias + row) : sum[r][p];
        }
    }
}

template <int COLUMNS, int P> int32_t launch_tiles(tl_context *ctx, const Job &job)
{
    const dim3 grid((unsigned)tl_ceil_div(job.phase.columns, POSITIONS),
                    (unsigned)tl_ceil_div(job.arrays.rows, ROWS * P));
    return tl_launch(ctx, "conv_direct_tiles", tile_kernel<COLUMNS, P>, grid, THREADS, job);
}

template <int COLUMNS> int32_t launch(tl_context *ctx, const Job &job)
{
    return job.arrays.rows > 2 * ROWS ? launch_tiles<COLUMNS, 4>(ctx, job)
           : job.arrays.rows > ROWS   ? launch_tiles<COLUMNS, 2>(ctx, job)
                                      : launch_tiles<COLUMNS, 1>(ctx, job);
}

} // namespace

int32_t tl_conv_direct_tiles(tl_context *ctx, const tl_conv_product &p)
{
    const tl_conv_gather g = p.phase(0);
    const Job job = {p.source,
                     p.w,
                     p.bias,
                     p.target,
                     arrays_of(g, p.channels, p.rows),
                     phase_of(g, p.batch, 1),
                     (uint32_t)p.row_stride(),
                     (uint32_t)p.channel_stride()};
    const int64_t columns = p.channels * p.s.taps;
    /* those of first layers: 27 and 48 of three channels */
    const auto launch_columns = columns <= 4    ? launch<4>
                                : columns <= 8  ? launch<8>
                                : columns <= 12 ? launch<12>
                                : columns <= 16 ? launch<16>
                                : columns <= 28 ? launch<28>
                                : columns <= 32 ? launch<32>
                                                : launch<48>;
    return launch_columns(ctx, job);
}
