/* The gradient of a convolution's weights by wgmma (device/wgmma_pipeline.cuh): gw (rows, channels·taps) = small (rows, batch·
 * positions)·gathered large (batch·positions, channels·taps), the positions numbered through the whole batch.
 *
 * Columns go by in units of UNIT channels of one tap, tap after tap within a block of channels: the reads of a unit at
 * one position are UNIT elements a channel apart, under one test, and the units of a tile read nearly the same bytes.
 *
 *   weights_kernel  a block owns a tile over one segment of the positions. In a producing group, a thread reads 16
 *                   bytes = 4 positions of each of some rows; a warp reads 32 neighbouring positions of each column of
 *                   some units
 *   gather_kernel   adds the segments' sums and puts them in the order of the weights
 *
 * Order of additions: the steps' parts in order within a segment, the segments' sums as by the column tree of
 * formula/sum_tree.h, of which they are at most one chunk. Segments follow from the shape alone. */
#include <algorithm>

#include "cuda/conv/gather.cuh"
#include "cuda/device/vector.cuh"
#include "cuda/device/wgmma_pipeline.cuh"
#include "formula/sum_tree.h"

using namespace tl_conv_gathers;
using namespace tl_wgmma;

namespace {

constexpr int UNIT = TL_CONV_UNIT;
static_assert((int)TL_CONV_MAX_SEGMENTS <= (int)TL_COLUMN_CHUNK, "the segments are one chunk of the column tree");

struct Job {
    Arrays arrays; /* of `large` and `small` */
    Phase phase;
    const float *large, *small;
    float *sums; /* (segment, rows, unit, UNIT) */
    float *gw;
    uint32_t segment, segments, units, row_tiles, column_tiles, tiles;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* Where a tile lies: row tiles fastest, then columns, so that blocks which run together read the same positions. */
struct Place {
    uint32_t row_tile, column_tile, segment, begin, length;

    __device__ __forceinline__ Place(const Job &job, uint32_t tile)
    {
        const uint32_t column = tile / job.row_tiles;
        row_tile = tile - column * job.row_tiles;
        segment = column / job.column_tiles;
        column_tile = column - segment * job.column_tiles;
        begin = segment * job.segment;
        length = min(job.segment, job.phase.columns - begin);
    }
    __device__ __forceinline__ int steps() const { return (int)((length + STEP - 1) / STEP); }
};

/* A unit: its tap's place in the kernel (bits 0-7, 8-15, 16-23) and the channels it has (from bit 24 on); what its
 * tap and first channel add to an index in `large`. */
struct Unit {
    uint32_t tap, large;

    __device__ __forceinline__ void find(const Job &job, uint32_t unit)
    {
        const Arrays &a = job.arrays;
        uint32_t t;
        const uint32_t channel = job.phase.taps.divmod(unit, &t) * UNIT;
        const TapPlace place(job.phase, t);
        tap = place.at[0] | place.at[1] << 8 | place.at[2] << 16 |
              (unit < job.units ? min(a.channels - channel, (uint32_t)UNIT) : 0) << 24;
        large = channel * a.source_size + place.source(a, job.phase);
    }
    __device__ __forceinline__ int left() const { return (int)(tap >> 24); }
    __device__ __forceinline__ bool inside(const Job &job, const Position &p) const
    {
        const Arrays &a = job.arrays;
        const uint32_t *const step = reinterpret_cast<const uint32_t *>(job.phase.tap_step);
        return (uint32_t)p.c[0] + tap % 256 * step[0] < (uint32_t)a.extent[0] &&
               (uint32_t)p.c[1] + (tap >> 8) % 256 * step[1] < (uint32_t)a.extent[1] &&
               (uint32_t)p.c[2] + (tap >> 16) % 256 * step[2] < (uint32_t)a.extent[2];
    }
};

template <class T> struct WeightsLoader {
    /* units of a warp; rows of a thread, APART apart */
    static constexpr int UNITS = T::COLUMNS / UNIT / WARPS, APART = GROUP / 8, COPIES = T::ROWS / APART;
    static_assert(T::COLUMNS % (UNIT * WARPS) == 0, "a warp has whole units");

    const Job &job;
    const int lane, warp, row, chunk;
    uint32_t begin, end, row0; /* the segment; the tile */
    Unit unit[UNITS];

    __device__ __forceinline__ explicit WeightsLoader(const Job &job)
        : job(job), lane((int)threadIdx.x % 32), warp((int)threadIdx.x % GROUP / 32), row((int)threadIdx.x % GROUP / 8),
          chunk((int)threadIdx.x % 8)
    {}
    __device__ __forceinline__ int steps(uint32_t tile) const { return Place(job, tile).steps(); }
    __device__ __forceinline__ void open(uint32_t tile, uint32_t, int)
    {
        const Place place(job, tile);
        begin = place.begin;
        end = place.begin + place.length;
        row0 = place.row_tile * T::ROWS;
        TL_UNROLL_FOR (int u = 0; u < UNITS; u++)
            unit[u].find(job, place.column_tile * (T::COLUMNS / UNIT) + (uint32_t)(warp * UNITS + u));
    }
    /* Positions q .. q + 3 of the thread's rows; they belong to one image. */
    __device__ __forceinline__ void read_rows(float4 (&held)[COPIES], uint32_t q) const
    {
        uint32_t at;
        const uint32_t image = job.phase.positions.divmod(q, &at);
        const float *from = job.small +
                            (uint32_t)((image * job.arrays.rows + row0 + (uint32_t)row) * job.arrays.target_size + at);
        const int left = q < end ? (int)min(job.arrays.rows - row0, (uint32_t)T::ROWS) - row : 0;
        TL_UNROLL_FOR (int u = 0; u < COPIES; u++) {
            const char *p = reinterpret_cast<const char *>(from) + (uint64_t)job.arrays.target_size * (4u * APART * u);
            held[u] = left > APART * u ? __ldg(reinterpret_cast<const float4 *>(p))
                                       : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        }
    }
    __device__ __forceinline__ void write_rows(const float4 (&held)[COPIES], char *to, Guard &guard) const
    {
        to += row * ROW + 16 * (chunk ^ row % 8);
        TL_UNROLL_FOR (int u = 0; u < COPIES; u++) {
            *reinterpret_cast<float4 *>(to + u * APART * ROW) = held[u];
            guard.see(held[u]);
        }
    }
    __device__ __forceinline__ void read_unit(float (&held)[UNIT], const Unit &unit, const Position &at,
                                              bool used) const
    {
        const float *from = job.large + (at.source + unit.large);
        const bool has = used && unit.inside(job, at);
        if (unit.left() == UNIT) {
            TL_UNROLL_FOR (int j = 0; j < UNIT; j++)
                held[j] = has ? __ldg(below(from, j)) : 0.0f;
        } else {
            TL_UNROLL_FOR (int j = 0; j < UNIT; j++)
                held[j] = has && j < unit.left() ? __ldg(below(from, j)) : 0.0f;
        }
    }
    __device__ __forceinline__ const float *below(const float *from, int channels) const
    {
        return reinterpret_cast<const float *>(reinterpret_cast<const char *>(from) +
                                               (uint64_t)job.arrays.source_size * (4u * channels));
    }
    /* A warp's 32 stores of one column fill a row of 128 bytes. */
    __device__ __forceinline__ void write_unit(const float (&held)[UNIT], char *hi, Guard &guard) const
    {
        TL_UNROLL_FOR (int j = 0; j < UNIT; j++) {
            uint32_t high, low;
            tl_split(held[j], high, low);
            char *to = hi + j * ROW + (4 * lane ^ 16 * (j % 8));
            *reinterpret_cast<uint32_t *>(to) = high;
            *reinterpret_cast<uint32_t *>(to + (T::B_LO - T::B_HI)) = low;
            guard.see(held[j]);
        }
    }
    /* A unit is being read while the one before it is split and stored. */
    __device__ __forceinline__ void fill(int s, char *to, const Ring<T::STAGES> &ring, Guard &guard)
    {
        const uint32_t q0 = begin + (uint32_t)(s * STEP), q = q0 + (uint32_t)lane;
        const bool used = q < end;
        char *columns = to + T::B_HI + warp * UNITS * UNIT * ROW;
        float4 rows[COPIES];
        float held[2][UNIT];
        Position at;
        at.find(job.arrays, job.phase, used ? q : begin);
        read_rows(rows, q0 + 4u * (uint32_t)chunk);
        read_unit(held[0], unit[0], at, used);
        ring.wait_empty();
        write_rows(rows, to, guard);
        TL_UNROLL_FOR (int u = 0; u < UNITS; u++) {
            if (u + 1 < UNITS) read_unit(held[(u + 1) % 2], unit[u + 1 < UNITS ? u + 1 : 0], at, used);
            write_unit(held[u % 2], columns + u * UNIT * ROW, guard);
        }
    }
};

/* A group's 64 rows from row0 on and its columns from column0 on, into the segment's sums. */
template <int BN>
__device__ __forceinline__ void store_rows(const Job &job, uint32_t segment, uint32_t row0, uint32_t column0,
                                           const float (&sum)[BN / 2])
{
    const uint32_t width = job.units * UNIT, lane = threadIdx.x % 32, warp = threadIdx.x % GROUP / 32;
    TL_UNROLL_FOR (int h = 0; h < 2; h++) {
        const uint32_t row = row0 + 16 * warp + 8 * h + lane / 4;
        if (row >= job.arrays.rows) continue;
        float *to = job.sums + ((uint64_t)segment * job.arrays.rows + row) * width + column0 + 2 * (lane % 4);
        TL_UNROLL_FOR (int j = 0; j < BN / 8; j++)
            if (column0 + 8 * j < width)
                *reinterpret_cast<float2 *>(to + 8 * j) = make_float2(sum[4 * j + 2 * h], sum[4 * j + 2 * h + 1]);
    }
}

/* A thread's sums of a tile without tensor cores, in order of positions, as chains of fused multiply-adds: a unit after the other, of
 * which it has four columns. */
template <int BN>
__device__ __forceinline__ void plain_sums(const Job &job, const Place &place, uint32_t row0, uint32_t column0,
                                           float (&sum)[BN / 2])
{
    const uint32_t lane = threadIdx.x % 32, row = row0 + threadIdx.x % GROUP / 32 * 16 + lane / 4;
    const uint32_t row_a = min(row, job.arrays.rows - 1) * job.arrays.target_size;
    const uint32_t row_b = min(row + 8, job.arrays.rows - 1) * job.arrays.target_size;
    TL_UNROLL_FOR (int u = 0; u < BN / UNIT; u++) {
        Unit unit;
        unit.find(job, column0 / UNIT + (uint32_t)u);
        float *const own = sum + 8 * u;
        TL_UNROLL_FOR (int r = 0; r < 8; r++)
            own[r] = 0.0f;
#pragma unroll 1
        for (uint32_t q = place.begin; q < place.begin + place.length; q++) {
            Position at;
            at.find(job.arrays, job.phase, q);
            const bool inside = unit.inside(job, at);
            const float x0 = job.small[at.target + row_a], x1 = job.small[at.target + row_b];
            TL_UNROLL_FOR (int i = 0; i < 4; i++) {
                const int channel = i / 2 * 8 + 2 * (int)(lane % 4) + i % 2, to = i / 2 * 4 + i % 2;
                const bool has = inside && channel < unit.left();
                const float v = has ? job.large[at.source + unit.large + channel * job.arrays.source_size] : 0.0f;
                own[to] = fmaf(x0, v, own[to]), own[to + 2] = fmaf(x1, v, own[to + 2]);
            }
        }
    }
}

#endif

/* T::BYTES of dynamic shared memory, at most one block per tile. */
template <class T> __global__ void __launch_bounds__(THREADS, 1) weights_kernel(const __grid_constant__ Job job)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    TL_DYNAMIC_SHARED(char, dynamic);
    __shared__ uint64_t barriers[2][T::STAGES];
    __shared__ __align__(4) uint8_t unsafe[T::STAGES][WARPS];
    const Stages<T> stages = open_stages<T, 0>(dynamic, barriers, unsafe);
    const int group = __shfl_sync(0xffffffffu, (int)threadIdx.x / GROUP, 0);
    if (threadIdx.x >= GROUPS * GROUP) {
        shrink_registers<PRODUCER_REGISTERS>();
        WeightsLoader<T> loader(job);
        produce(stages, loader, AlternatingSchedule{job.tiles, 1}, group - GROUPS);
    } else {
        grow_registers<CONSUMER_REGISTERS>();
        consume<T, false>(
            stages, AlternatingSchedule{job.tiles, 1}, group, [&](uint32_t tile) { return Place(job, tile).steps(); },
            [&](uint32_t tile, uint32_t, bool redo, float (&sum)[T::BN / 2]) {
                const Place place(job, tile);
                const uint32_t row0 = place.row_tile * T::ROWS + (T::WM == 2 ? 64 * group : 0);
                const uint32_t column0 = place.column_tile * T::COLUMNS + (T::WM == 2 ? 0 : group * T::BN);
                if (redo) plain_sums<T::BN>(job, place, row0, column0, sum);
                store_rows<T::BN>(job, place.segment, row0, column0, sum);
            });
    }
#endif
}

/* blockIdx: block of UNIT channels, row. A thread adds every 128th column of the block's, then all store them in the
 * order of the weights, (channel, tap). */
__global__ void __launch_bounds__(128) gather_kernel(const __grid_constant__ Job job)
{
    TL_DYNAMIC_SHARED(float, column);
    const uint32_t taps = job.phase.taps.divisor, n = UNIT * taps, row = blockIdx.y, channel0 = blockIdx.x * UNIT;
    const uint64_t width = job.units * UNIT, apart = job.arrays.rows * width;
    const float *from = job.sums + row * width + (uint64_t)blockIdx.x * n;
    for (uint32_t i = threadIdx.x; i < n; i += 128) {
        float chain[TL_COLUMN_CHAINS] = {};
        uint32_t segment = 0;
        for (; segment + TL_COLUMN_CHAINS <= job.segments; segment += TL_COLUMN_CHAINS)
            TL_UNROLL_FOR (int c = 0; c < TL_COLUMN_CHAINS; c++)
                chain[c] += from[(segment + c) * apart + i];
        TL_UNROLL_FOR (int c = 0; c < TL_COLUMN_CHAINS; c++)
            if (segment + c < job.segments) chain[c] += from[(segment + c) * apart + i];
        static_assert(TL_COLUMN_CHAINS == 4, "the fold of a chunk");
        column[i % UNIT * taps + i / UNIT] = (chain[0] + chain[1]) + (chain[2] + chain[3]);
    }
    __syncthreads();
    const uint32_t left = min(job.arrays.channels - channel0, (uint32_t)UNIT) * taps;
    float *to = job.gw + ((uint64_t)row * job.arrays.channels + channel0) * taps;
    for (uint32_t i = threadIdx.x; i < left; i += 128)
        to[i] = column[i];
}

using Large = Tile<2, 128>; /* 128 x 128 */
using Low = Tile<1, 128>;   /* 64 x 256 */
using Slim = Tile<1, 96>;   /* 64 x 192 */

template <class T> bool prepare_kernel() { return tl_wgmma_prepare(weights_kernel<T>, T::BYTES); }

template <class T> int32_t launch(tl_context *ctx, Job &job, tl_conv_form form)
{
    const int64_t tiles = tl_conv_form_tiles(form, job.arrays.rows, job.units), total = job.phase.columns;
    int64_t segments = tl_conv_wgmma_segments(tiles, total, tl_cuda_sms(ctx));
    job.segment = (uint32_t)(tl_ceil_div(tl_ceil_div(total, segments), STEP) * STEP);
    segments = tl_ceil_div(total, (int64_t)job.segment);
    job.segments = (uint32_t)segments;
    job.row_tiles = (uint32_t)tl_ceil_div(job.arrays.rows, T::ROWS);
    job.column_tiles = (uint32_t)tl_ceil_div((int64_t)job.units * UNIT, T::COLUMNS);
    job.tiles = (uint32_t)(tiles * segments);
    tl_scratch<float> sums(ctx);
    TL_TRY(sums.allocate(segments * job.arrays.rows * (int64_t)(job.units * UNIT)));
    job.sums = sums;
    TL_TRY(tl_launch_dynamic(ctx, "conv_wgmma_weights", weights_kernel<T>, tl_grid(job.tiles, 1, tl_cuda_sms(ctx)),
                             THREADS, T::BYTES, job));
    const dim3 grid((unsigned)tl_ceil_div(job.arrays.channels, UNIT), job.arrays.rows);
    return tl_launch_dynamic(ctx, "conv_gather", gather_kernel, grid, 128,
                             sizeof(float) * UNIT * job.phase.taps.divisor, job);
}

} // namespace

bool tl_conv_wgmma_has_weights(tl_context *ctx)
{
    return tl_wgmma_runs(ctx,
                         [] { return prepare_kernel<Large>() && prepare_kernel<Low>() && prepare_kernel<Slim>(); });
}

int32_t tl_conv_wgmma_weights(tl_context *ctx, const tl_conv_gradient &p)
{
    const tl_conv_gather g = tl_conv_correlate(&p.s);
    Job job = {};
    job.arrays = arrays_of(g, p.channels, p.rows);
    job.phase = phase_of(g, p.batch, tl_ceil_div(p.channels, UNIT));
    job.large = p.large, job.small = p.small, job.gw = p.gw;
    job.units = job.phase.steps; /* blocks of channels times taps */
    const tl_conv_form form = tl_conv_select_form(p.rows, job.units);
    return form == TL_CONV_128X128  ? launch<Large>(ctx, job, form)
           : form == TL_CONV_64X256 ? launch<Low>(ctx, job, form)
                                    : launch<Slim>(ctx, job, form);
}
