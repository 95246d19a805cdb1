/* Convolution as an implicit matrix product: target (rows, positions) = w (rows, K)·gathered source (K, positions), K =
 * channels·taps, positions numbered through the whole batch; a spread has one such product per phase (conv_geometry.h).
 *
 *   plan_kernel     a phase's gather; the weights split into their TF32 parts, in the order of mma's fragments and
 *                   padded to whole tiles; and for every k the offset it adds to a source index, or in a patch, and its tap's bit
 *   product_kernel  a block owns a tile of BM rows by BN positions, its warps fragments of the sums in registers.
 *                   Slices arrive asynchronously: weights in 16-byte pieces, the source as patches (conv/mma_patch.cuh) or,
 *                   where these would be no fewer copies, element by element with zeros outside: neighbouring threads copy
 *                   neighbouring positions, a thread keeps its one position's index and bits, the offsets lie in shared memory
 *   add_blocks      adds the blocks of K in order where different thread blocks have computed them. What a warp keeps of one row are
 *                   neighbours: in the target the positions of a phase lie strides apart, and each is a sector of its own
 *
 * Order of additions: chains of CHAIN columns added in order (conv/mma_tile.cuh) within a block of K, the blocks' sums
 * added in order, the bias last. Blocks follow from the shape of one image; who adds them (the block of threads itself,
 * or add_blocks where the target alone gives too few of them to fill the device) changes nothing in it, nor do the
 * tile and what feeds it. The batch has no part in the order; but where the guard finds a value in a tile, all images that share the tile
 * get the bits of fused multiply-adds. */
#include <algorithm>
#include <type_traits>

#include "cuda/conv/mma_patch.cuh"
#include "cuda/device/vector.cuh"

using namespace tl_conv;

namespace {

constexpr int64_t PHASES_AT_ONCE = 256;
constexpr int PHASES_PASSED = 8;                   /* that the host works out: 2 x 2 x 2 strides */
constexpr int64_t SCRATCH_MOST = INT64_C(1) << 26; /* floats of separately kept blocks: 256 MiB */
/* Tiles of one image below which K is divided into blocks, a constant because blocks are part of the result (the
 * multiprocessors of an H100), and columns that a block has at least. */
constexpr int64_t TILES_WANTED = 132, BLOCK_LEAST = 128;
/* Slices whose offsets shared memory holds: those being fetched, and as many of the next. */
constexpr int TABLE = 8;
static_assert(TABLE >= 2 * IN_FLIGHT && (TABLE & (TABLE - 1)) == 0, "a slot is free before it is filled");

/* One phase on the device. K runs chunk by chunk; every chunk is padded to whole chains. */
struct Phase {
    tl_conv_gather gather;
    int64_t chunk_steps, steps; /* of a full chunk, of all */
    Patch patch;
};

struct Job {
    tl_conv_shape shape;
    bool spread;
    int64_t batch, channels, rows;
    const float *source, *w, *bias;
    float *target;
    Phase *phases;
    float *packed;  /* (phase, slice, 16 rows, step of mma, part, lane, register) */
    uint2 *offsets; /* (phase, steps): source offset, or that in a patch's ring, and tap bit */
    float *partial; /* (block of K, phase, row, kept_columns), or NULL */
    int64_t first_phase, most_steps, padded_rows, row_tiles, kept_columns; /* kept_columns: of whole tiles */
    int32_t phase_count, blocks;                                           /* of K, in each phase */
    bool passed;                                                           /* the host has worked out the phases */
    int32_t width;                                                         /* of the patches' pieces; 0: no patches */
    Phase phase[PHASES_PASSED];
};

TL_HD int64_t padded(int64_t n) { return (n + CHAIN - 1) / CHAIN * CHAIN; }

TL_HD int64_t chunk_steps(const tl_conv_gather &g, int64_t channels)
{
    return padded(channels * (g.taps_size < CHUNK ? g.taps_size : CHUNK));
}

TL_HD int64_t all_steps(const tl_conv_gather &g, int64_t channels)
{
    const int64_t full = (g.taps_size - 1) / CHUNK;
    return full * chunk_steps(g, channels) + padded(channels * (g.taps_size - full * CHUNK));
}

TL_HD void make_phase(const tl_conv_shape *shape, bool spread, int64_t index, int64_t channels, Phase *phase)
{
    phase->gather = spread ? tl_conv_spread(shape, index) : tl_conv_correlate(shape);
    phase->chunk_steps = chunk_steps(phase->gather, channels);
    phase->steps = all_steps(phase->gather, channels);
}

/* Slices of each of `blocks` blocks of K: whole chains; the last blocks may have fewer or none. */
TL_HD int block_of(int slices, int blocks) { return (slices / 2 + blocks - 1) / blocks * 2; }

/* A call by one thread, whose registers the others need not have. */
static __device__ __noinline__ void make_phase_here(const Job &job, Phase *phase)
{
    make_phase(&job.shape, job.spread, job.first_phase + blockIdx.y, job.channels, phase);
}

/* A weight's two parts; (NaN, x) where the tensor core would not keep its precision. */
__device__ __forceinline__ void pack(float x, float &hi, float &lo)
{
    const uint32_t magnitude = __float_as_uint(x) & 0x7fffffffu;
    uint32_t h, l;
    tl_split_dekker(x, h, l);
    const bool kept = magnitude == 0 || magnitude - TL_SPLIT_LEAST < TL_SPLIT_DEKKER_MOST - TL_SPLIT_LEAST;
    hi = kept ? __uint_as_float(h) : TL_NAN;
    lo = kept ? __uint_as_float(l) : x;
}

constexpr int PLAN_WARPS = 8;

/* Warps of plan_kernel that share a step, a power of two: as many as there are 16 rows for, at most all. */
TL_HD int warps_of_step(int64_t row_groups)
{
    int warps = 1;
    while (warps < PLAN_WARPS && warps < row_groups)
        warps *= 2;
    return warps;
}

/* blockIdx.y: phase. A block takes 8 columns of K, one step of mma, or some of them where few rows would leave warps idle; a warp 16
 * rows of a step at a time, its lane the fragment's elements (row lane / 4, column lane % 4) and 8 rows and 4 columns further. */
__global__ void __launch_bounds__(256, 3) plan_kernel(const __grid_constant__ Job job)
{
    constexpr int WORDS = sizeof(Phase) / sizeof(uint32_t);
    __shared__ Phase phase;
    tl_wait_for_earlier();
    uint32_t *words = reinterpret_cast<uint32_t *>(&phase);
    uint32_t *to_all = reinterpret_cast<uint32_t *>(job.phases + blockIdx.y);
    const int lane = (int)threadIdx.x, warp = (int)threadIdx.y, thread = warp * 32 + lane;
    if (job.passed)
        for (int i = thread; i < WORDS; i += 256)
            words[i] = reinterpret_cast<const uint32_t *>(&job.phase[blockIdx.y])[i];
    else if (thread == 0)
        make_phase_here(job, &phase);
    __syncthreads();
    if (blockIdx.x == 0)
        for (int i = thread; i < WORDS; i += 256)
            to_all[i] = words[i];
    const tl_conv_gather &g = phase.gather;
    const int64_t kernel = job.shape.taps, row_stride = job.spread ? kernel : job.channels * kernel;
    const int64_t channel_stride = job.spread ? job.rows * kernel : kernel, row_groups = job.padded_rows / 16;
    const int sharing = warps_of_step(row_groups), own_group = warp & (sharing - 1);
    const uint32_t steps_here = (uint32_t)(PLAN_WARPS / sharing), own_step = (uint32_t)(warp / sharing);
    for (uint32_t step = blockIdx.x * steps_here + own_step; step < (uint32_t)phase.steps / 8;
         step += gridDim.x * steps_here) {
        const uint32_t k = step * 8 + (uint32_t)lane % 8, steps = (uint32_t)phase.chunk_steps, chunk = k / steps;
        const int64_t left = g.taps_size - (int64_t)chunk * CHUNK;
        const uint32_t taps = (uint32_t)(left < CHUNK ? left : CHUNK), channel = k % steps / taps;
        const uint32_t bit = k % steps % taps;
        const int64_t t = (int64_t)chunk * CHUNK + bit;
        const bool real = channel < job.channels;
        const TapOffsets tap(g, t);
        const int64_t at = real ? channel * channel_stride + tap.kernel : -1;
        if (own_group == 0 && lane < 8) {
            uint2 *const entries = job.offsets + (int64_t)blockIdx.y * job.most_steps;
            if (job.width)
                entries[patch_entry(k)] =
                    column_entry(real, patch_offset(phase.patch, g, job.width, channel, bit), bit);
            else
                entries[k] = column_entry(real, (uint32_t)(channel * g.source_size) + tap.source, bit);
        }
        const int64_t columns[2] = {__shfl_sync(0xffffffffu, at, lane % 4), __shfl_sync(0xffffffffu, at, lane % 4 + 4)};
        for (int64_t group = own_group; group < row_groups; group += sharing) {
            float part[2][4];
            TL_UNROLL_FOR (int e = 0; e < 4; e++) {
                const int64_t row = group * 16 + lane / 4 + e % 2 * 8, column = columns[e / 2];
                const float x = column >= 0 && row < job.rows ? job.w[row * row_stride + column] : 0.0f;
                pack(x, part[0][e], part[1][e]);
            }
            const int64_t slice = (int64_t)blockIdx.y * (job.most_steps / SLICE) + step / 2;
            float *to = job.packed + (slice * row_groups + group) * PACK + step % 2 * (PACK / 2) + lane * 4;
            tl_store4(to, part[0]);
            tl_store4(to + PACK / 4, part[1]);
        }
    }
}

/* Slice % TABLE, step. */
struct OffsetTable {
    __align__(16) uint2 entries[TABLE * SLICE];
};

/* Feeds product_kernel's tile (run_slices) tap by tap. A stage: the packed weights of BM rows, then SLICE rows of BN gathered
 * elements, 8 floats longer than the tile so that a warp's reads of 4 rows fall into 32 different banks. */
template <class T_> struct ProductLoader {
    using T = T_;
    static constexpr int STAGES = IN_FLIGHT + 1, BM = T::BM, BN = T::BN, THREADS = T::THREADS;
    static constexpr int A = BM / 16 * PACK, LB = BN + 8, STAGE = A + SLICE * LB;
    static constexpr int GROUPS = THREADS / BN, EACH = SLICE / GROUPS, PIECES = A / 4 / THREADS;
    static_assert(BN % 32 == 0 && GROUPS >= 1 && EACH % 2 == 0 && PIECES >= 1, "a warp copies 32 positions of one k");

    const Job &job;
    const tl_conv_gather &g;
    const uint2 *offsets;
    const float *weights, *from; /* of this phase and row tile: all of them; the next slice's */
    uint2 *table;                /* OffsetTable */
    const uint32_t q;
    const bool used;
    const int last, slices_per_chunk;
    const int real;      /* columns of K, without those that pad it, where there is one chunk */
    int next, chunk_end; /* slice to fetch; the first of the next chunk */
    uint32_t source, inside;

    /* The position's target index. */
    __device__ __forceinline__ uint32_t enter_chunk(int chunk)
    {
        const uint32_t image = q / (uint32_t)g.positions;
        const int64_t tap = (int64_t)chunk * CHUNK, left = g.taps_size - tap;
        const Position p = position_of(g, q - image * (uint32_t)g.positions, tap, (int)(left < CHUNK ? left : CHUNK));
        chunk_end = (chunk + 1) * slices_per_chunk;
        source = p.source + image * (uint32_t)(job.channels * g.source_size);
        inside = used ? p.inside : 0;
        return p.target + image * (uint32_t)(job.rows * g.target_size);
    }

    __device__ __forceinline__ uint32_t enter_tile(const Patch &, uint32_t, uint32_t, bool) { return enter_chunk(0); }

    /* Ends with a barrier, and finds the table unused. */
    __device__ __forceinline__ void seek(int slice)
    {
        next = slice;
        from = weights + slice * (job.padded_rows / 16 * PACK) + (int)threadIdx.x * 4;
        if (slice >= chunk_end || slice < chunk_end - slices_per_chunk) enter_chunk(slice / slices_per_chunk);
        for (int i = (int)threadIdx.x; i < min(IN_FLIGHT, last - slice) * SLICE; i += THREADS)
            table[(slice * SLICE + i) % (TABLE * SLICE)] = offsets[slice * SLICE + i];
        __syncthreads();
    }

    __device__ __forceinline__ void fetch(float *stage)
    {
        if (next < last) {
            const int ahead = next + IN_FLIGHT;
            if ((int)threadIdx.x < SLICE / 2 && ahead < last)
                tl_copy_async<16, false>(tl_shared_address(table + ahead % TABLE * SLICE + (int)threadIdx.x * 2),
                                         offsets + ahead * SLICE + (int)threadIdx.x * 2, true);
            if (next == chunk_end) enter_chunk(next / slices_per_chunk);
            const int column = (int)threadIdx.x % BN, k = (int)threadIdx.x / BN * EACH;
            /* all before the first copy, above which the compiler moves no load: they are on their way together */
            const uint4 *entries = reinterpret_cast<const uint4 *>(table + next % TABLE * SLICE + k);
            uint4 two[EACH / 2];
            TL_UNROLL_FOR (int i = 0; i < EACH / 2; i++)
                two[i] = entries[i];
            const uint32_t to = tl_shared_address(stage), to_b = to + 4 * (A + k * LB + column);
            TL_UNROLL_FOR (int i = 0; i < PIECES; i++)
                tl_copy_async<16, false>(to + 16 * ((int)threadIdx.x + i * THREADS), from + 4 * i * THREADS, true);
            from += job.padded_rows / 16 * PACK;
            TL_UNROLL_FOR (int i = 0; i < EACH; i += 2) {
                const uint4 &both = two[i / 2];
                tl_copy_async<4, false>(to_b + 4 * i * LB, job.source + (source + both.x), (inside & both.y) != 0);
                tl_copy_async<4, false>(to_b + 4 * (i + 1) * LB, job.source + (source + both.z),
                                        (inside & both.w) != 0);
            }
        }
        tl_copy_commit();
        next++;
    }

    template <int HALF>
    static __device__ __forceinline__ void tensor(const float *stage, typename T::Sums &chain, uint32_t &least)
    {
        const float *b = stage + A + (HALF * 8 + T::lane() % 4) * LB + T::warp_n() * T::NT * 8 + T::lane() / 4;
        uint32_t bh[T::NT][2], bl[T::NT][2];
        TL_UNROLL_FOR (int i = 0; i < 2 * T::NT; i++) {
            const float x = b[i % 2 * 4 * LB + i / 2 * 8];
            tl_split_keep_least(least, x);
            tl_split_dekker(x, bh[i / 2][i % 2], bl[i / 2][i % 2]);
        }
        multiply_packed<T, HALF>(stage, bh, bl, chain);
    }

    /* What pads K is 0 on both sides and adds nothing. */
    __device__ __forceinline__ void plain(const float *stage, int slice, typename T::Sums &chain) const
    {
        const float *b = stage + A + T::column(0, 0);
        const int columns = min(SLICE, real - slice * SLICE);
#pragma unroll 1
        for (int k = 0; k < columns; k++) {
            float y[T::NT][2];
            TL_UNROLL_FOR (int nt = 0; nt < T::NT; nt++) {
                const float2 v = *reinterpret_cast<const float2 *>(b + k * LB + nt * 8);
                y[nt][0] = v.x, y[nt][1] = v.y;
            }
            fused_packed<T>(stage, k, y, chain);
        }
    }
};

/* Row 0 of what is kept of a block of K of a phase. */
__device__ __forceinline__ float *kept_block(const Job &job, int64_t block, uint32_t phase)
{
    return job.partial + (block * job.phase_count + phase) * (job.rows * job.kept_columns);
}

template <class T, bool PATCHED>
__global__ void __launch_bounds__(T::THREADS, T::RESIDENT) product_kernel(const __grid_constant__ Job job)
{
    TL_DYNAMIC_SHARED(float, stages);
    __shared__ std::conditional_t<PATCHED, PatchPlaces<T>, OffsetTable> kept;
    __shared__ uint32_t targets[T::BN];

    tl_wait_for_earlier();
    /* row tiles fastest, so that blocks which gather the same positions run together; then phases, then positions */
    const uint32_t row_tile = blockIdx.x % (uint32_t)job.row_tiles, tile = blockIdx.x / (uint32_t)job.row_tiles;
    const uint32_t phase_index = tile % (uint32_t)job.phase_count;
    const Phase &phase = job.phases[phase_index];
    const tl_conv_gather &g = phase.gather;
    const int64_t columns = job.batch * g.positions, q0 = (int64_t)(tile / (uint32_t)job.phase_count) * T::BN;
    const int slices = (int)(phase.steps / SLICE), block = block_of(slices, job.blocks);
    const int first = (int)blockIdx.z * block;
    if (q0 >= columns) return;
    const int last = job.partial ? min(slices, first + block) : slices, column = (int)threadIdx.x % T::BN;
    const int left = columns - q0 < T::BN ? (int)(columns - q0) : T::BN;
    const bool used = column < left;
    const uint32_t q = used ? (uint32_t)(q0 + column) : 0;
    const uint32_t offsets = phase_index * (uint32_t)job.most_steps;
    const int64_t slice0 = (int64_t)phase_index * (job.most_steps / SLICE);
    const float *const weights = job.packed + (slice0 * (job.padded_rows / 16) + row_tile * (T::BM / 16)) * PACK;
    auto loader = [&] {
        if constexpr (PATCHED)
            return PatchLoader<T, Job>(job, g, phase.patch, offsets, weights, stages, kept, last);
        else
            return ProductLoader<T>{job,
                                    g,
                                    job.offsets + offsets,
                                    weights,
                                    nullptr,
                                    kept.entries,
                                    q,
                                    used,
                                    last,
                                    (int)(phase.chunk_steps / SLICE),
                                    g.taps_size <= CHUNK ? (int)(job.channels * g.taps_size) : INT32_MAX};
    }();
    const uint32_t target = loader.enter_tile(phase.patch, (uint32_t)q0, q, used);
    if ((int)threadIdx.x < T::BN) targets[column] = job.partial ? (uint32_t)q0 + (uint32_t)column : target;
    typename T::Sums total; /* of the blocks of K so far */
    const typename T::Sums &all = total;
    auto store = [&](int index, const typename T::Sums &sums) {
        const int64_t size = job.spread ? job.shape.in_size : job.shape.out_size;
        /* As long as registers have room, they hold the sums of earlier blocks; otherwise the target does. */
        constexpr bool TOTAL = PATCHED && T::MT * T::NT <= 8;
        const bool ends = (index + 1) * block >= slices;
        if constexpr (TOTAL) {
            if (job.partial || index == 0)
                T::copy(total, sums);
            else
                T::add(total, sums);
            if (!job.partial && !ends) return;
        }
        T::store(job.partial ? kept_block(job, index, phase_index) : job.target,
                 (uint32_t)(job.partial ? job.kept_columns : size), targets, left, row_tile * T::BM, (uint32_t)job.rows,
                 !TOTAL && !job.partial && index > 0, ends && !job.partial ? job.bias : nullptr, TOTAL ? all : sums);
    };
    if (first < slices) {
        run_slices(loader, stages, first, last, block, job.channels * g.taps_size < TENSOR_LEAST, store);
    } else { /* a block that a phase of fewer slices has not */
        __syncthreads();
        typename T::Sums none;
        T::clear(none);
        store((int)blockIdx.z, none);
    }
}

/* blockIdx.x: ADD_ROWS rows of 256 columns, which are fastest; y: phase. A thread owns a column of them, whose target they share: the
 * blocks' sums in order, then the bias. It asks for the sums before it knows whether the phase has the column. */
constexpr int ADD_ROWS = 4, ADD_COLUMNS = 256;

__global__ void __launch_bounds__(ADD_COLUMNS) add_blocks_kernel(const __grid_constant__ Job job)
{
    tl_wait_for_earlier();
    const uint32_t tiles = (uint32_t)tl_ceil_div(job.kept_columns, ADD_COLUMNS), group = blockIdx.x / tiles;
    const uint32_t q = (blockIdx.x - group * tiles) * ADD_COLUMNS + threadIdx.x, row0 = group * ADD_ROWS;
    if (q >= job.kept_columns) return;
    const int rows = (int)min((uint32_t)job.rows - row0, (uint32_t)ADD_ROWS);
    const int64_t block_size = job.phase_count * job.rows * job.kept_columns;
    const float *from = kept_block(job, 0, blockIdx.y) + (row0 * job.kept_columns + q);
    float sums[ADD_ROWS] = {};
    TL_UNROLL_FOR (int r = 0; r < ADD_ROWS; r++)
        if (r < rows) sums[r] = from[r * job.kept_columns];
#pragma unroll 4
    for (int32_t block = 1; block < job.blocks; block++) {
        from += block_size;
        TL_UNROLL_FOR (int r = 0; r < ADD_ROWS; r++)
            if (r < rows) sums[r] = sums[r] + from[r * job.kept_columns];
    }
    const tl_conv_gather &g = job.phases[blockIdx.y].gather;
    if (q >= job.batch * g.positions) return;
    const uint32_t image = q / (uint32_t)g.positions, at = q - image * (uint32_t)g.positions;
    float *const target = job.target + ((image * job.rows + row0) * g.target_size + target_of(g, at));
    TL_UNROLL_FOR (int r = 0; r < ADD_ROWS; r++)
        if (r < rows) target[r * g.target_size] = job.bias ? sums[r] + job.bias[row0 + (uint32_t)r] : sums[r];
}

/* A thread owns one element: its blocks' sums in order, then the bias. */
__global__ void __launch_bounds__(256) add_kernel(const float *partial, int64_t blocks, int64_t n, const float *bias,
                                                  tl_fastdiv size, tl_fastdiv rows, float *out)
{
    tl_wait_for_earlier();
    const int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
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
__global__ void __launch_bounds__(256)
    fill_kernel(const float *__restrict__ bias, int64_t n, tl_fastdiv size, tl_fastdiv rows, float *__restrict__ out)
{
    const int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    uint32_t row = 0;
    if (bias) rows.divmod(size.div((uint32_t)i), &row);
    out[i] = bias ? bias[row] : 0.0f;
}

/* Most positions and steps a phase can have; those of the phase that is alone. */
void most_of(const Job &job, int64_t phases, int64_t *positions, int64_t *steps)
{
    tl_conv_gather g = job.phase[0].gather;
    if (phases > 1) {
        g.positions = g.taps_size = 1;
        for (int d = 0; d < job.shape.rank; d++) {
            g.positions *= tl_ceil_div(job.shape.in[d], job.shape.stride[d]);
            int64_t back;
            g.taps_size *= tl_ceil_div(job.shape.kernel[d], tl_conv_period(&job.shape, d, &back));
        }
    }
    *positions = g.positions;
    *steps = all_steps(g, job.channels);
}

/* Rows of a tile: 64 but where fewer take no more tiles. */
int64_t rows_of_tile(int64_t rows)
{
    if (rows <= 32) return rows <= 16 ? 16 : 32;
    return tl_ceil_div(rows, 48) == tl_ceil_div(rows, 64) ? 48 : 64;
}

/* Whether tiles of few rows end earlier where different thread blocks compute the blocks of K, counted in slices: such tiles wait
 * for memory, and take as long alone as beside as many as a multiprocessor holds. The addition takes a launch and the way of the
 * sums to memory and back; and the last blocks of a wave do gain from an emptier device, hence the fifth. */
bool apart_is_faster(int64_t elements, int64_t tile_rows, int64_t tiles, int64_t slices, int64_t blocks, int64_t sms)
{
    constexpr int64_t LAUNCH = 4, ELEMENTS = 1 << 19; /* slices that take as long: as a launch, as so many sums */
    const int64_t held = sms * (tile_rows == 16 ? Tile<1, 4, 1>::RESIDENT : Tile<2, 4, 1>::RESIDENT);
    const int64_t together = tl_ceil_div(tiles, held) * slices;
    const int64_t apart = tl_ceil_div(tiles * blocks, held) * block_of((int)slices, (int)blocks) + LAUNCH +
                          blocks * elements / ELEMENTS;
    return 5 * apart <= 4 * together;
}

/* The patches of all phases, where a tile's copies are at most half as many as tap by tap, and as many tiles but one, or two, fit a
 * multiprocessor of Hopper, and one a block here; returns their bytes, or 0: the tiles gather. No order depends on it. */
template <class T> size_t make_patches(Job &job, int64_t phases)
{
    using Loader = PatchLoader<T, Job>;
    job.width = 0;
    if (!job.passed) return 0;
    const int width = (uintptr_t)job.source % 16 == 0 && job.phase[0].gather.source_size % 4 == 0 ? 4 : 1;
    int64_t pieces = 0, elements = 0, most = 0;
    for (int64_t i = 0; i < phases; i++) {
        const tl_conv_gather &g = job.phase[i].gather;
        Patch &patch = job.phase[i].patch;
        if (g.positions == 0) { /* its columns of K are packed all the same */
            patch.inner = 1, patch.slots = tl_fastdiv(1);
            continue;
        }
        if (g.taps_size > CHUNK || !make_patch(g, job.batch, T::BN, width, &patch)) return 0;
        pieces += patch.pieces, elements += g.taps_size * T::BN;
        most = std::max(most, patch_bytes(patch));
    }
    const int64_t tile = (int64_t)sizeof(float) * Loader::STAGES * Loader::STAGE + most;
    if (2 * pieces > elements || std::max(T::RESIDENT - 1, 2) * (tile + BLOCK) > MULTIPROCESSOR) return 0;
    if (!tl_shared_fits(product_kernel<T, true>, (size_t)tile)) return 0;
    job.width = width;
    return (size_t)tile;
}

template <class T> int32_t launch(tl_context *ctx, const Job &job, int64_t tiles, int64_t blocks, size_t patches)
{
    constexpr size_t bytes = sizeof(float) * ProductLoader<T>::STAGES * ProductLoader<T>::STAGE;
    const dim3 grid((unsigned)(tiles * job.phase_count), 1, (unsigned)(job.partial ? blocks : 1));
    return patches ? launch_tiles(ctx, "conv_product", product_kernel<T, true>, grid, T::THREADS, patches, job)
                   : launch_tiles(ctx, "conv_product", product_kernel<T, false>, grid, T::THREADS, bytes, job);
}

/* Calls what(tile) with a tile of so many rows. */
template <class What> auto with_tile(int64_t rows, bool narrow, const What &what)
{
    return rows == 16   ? what(Tile<1, 4, 1>())
           : rows == 32 ? what(Tile<2, 4, 1>())
           : rows == 48 ? (narrow ? what(Tile<3, 2, 1>()) : what(Tile<3, 4, 1>()))
           : narrow     ? what(Tile<4, 2, 1>())
                        : what(Tile<4, 4, 1>());
}

/* Everything but the gaps of a spread; scratch holds the phases, offsets and packed weights. */
int32_t product(tl_context *ctx, Job &job, int64_t positions, int64_t phases)
{
    const int64_t columns = job.batch * positions, row_blocks = tl_ceil_div(job.rows, 64), sms = tl_cuda_sms(ctx);
    /* Few tiles in an image: K is divided into blocks, the same number in each phase; not where gaps leave elements that no phase
     * writes. Few in the batch: different thread blocks compute them. */
    const int64_t image_tiles = tl_ceil_div(positions, 128) * row_blocks * phases, slices = job.most_steps / SLICE;
    int64_t blocks = 1;
    if (phases <= PHASES_AT_ONCE && !(job.spread && tl_conv_has_gaps(&job.shape))) {
        blocks = tl_ceil_div(TILES_WANTED, image_tiles);
        if (blocks > job.most_steps / BLOCK_LEAST) blocks = job.most_steps / BLOCK_LEAST;
        if (blocks < 1) blocks = 1;
    }
    blocks = tl_ceil_div(slices, block_of((int)slices, (int)blocks));
    job.blocks = (int32_t)blocks;
    const int64_t wide_tiles = tl_ceil_div(columns, 128) * row_blocks * phases;
    const int64_t tile_rows = rows_of_tile(job.rows), elements = columns * job.rows * phases;
    job.kept_columns = tl_ceil_div(columns, 128) * 128;
    const int64_t kept = blocks * phases * job.rows * job.kept_columns;
    const bool apart = blocks > 1 && kept <= SCRATCH_MOST &&
                       (wide_tiles <= sms ||
                        (job.rows <= 32 && apart_is_faster(elements, tile_rows, wide_tiles, slices, blocks, sms)));
    const bool narrow = job.rows > 32 && wide_tiles * (apart ? blocks : 1) <= sms;
    job.row_tiles = job.padded_rows / tile_rows;
    const int64_t tiles = tl_ceil_div(columns, narrow ? 64 : 128) * job.row_tiles;
    tl_scratch<float> partial(ctx);
    if (apart) TL_TRY(partial.allocate(kept));
    job.partial = partial;
    const size_t patches =
        with_tile(tile_rows, narrow, [&](auto tile) { return make_patches<decltype(tile)>(job, phases); });
    for (job.first_phase = 0; job.first_phase < phases; job.first_phase += PHASES_AT_ONCE) {
        const int64_t left = phases - job.first_phase;
        job.phase_count = (int32_t)(left < PHASES_AT_ONCE ? left : PHASES_AT_ONCE);
        const int64_t steps_at_once = PLAN_WARPS / warps_of_step(job.padded_rows / 16);
        const dim3 plan_grid(tl_grid(job.most_steps, 8 * steps_at_once, 4096), (unsigned)job.phase_count);
        TL_TRY(tl_launch_ahead(ctx, "plan", plan_kernel, plan_grid, dim3(32, PLAN_WARPS), 0, job));
        TL_TRY(with_tile(tile_rows, narrow,
                         [&](auto tile) { return launch<decltype(tile)>(ctx, job, tiles, blocks, patches); }));
    }
    if (!partial) return TORCHLEAN_OK;
    const int64_t add_tiles = tl_ceil_div(job.kept_columns, ADD_COLUMNS) * tl_ceil_div(job.rows, ADD_ROWS);
    const dim3 add_grid((unsigned)add_tiles, (unsigned)phases);
    return tl_launch_ahead(ctx, "add", add_blocks_kernel, add_grid, ADD_COLUMNS, 0, job);
}

} // namespace

int32_t tl_cuda_conv_fill(tl_context *ctx, const float *bias, int64_t batch, int64_t rows, int64_t size, float *out)
{
    const int64_t n = batch * rows * size;
    return tl_launch(ctx, "fill", fill_kernel, tl_grid(n, 256), 256, bias, n, tl_fastdiv(size), tl_fastdiv(rows), out);
}

int32_t tl_cuda_conv_add(tl_context *ctx, const float *partial, int64_t blocks, int64_t n, const float *bias,
                         int64_t size, int64_t rows, float *target)
{
    return tl_launch_ahead(ctx, "add", add_kernel, tl_grid(n, 256), 256, 0, partial, blocks, n, bias, tl_fastdiv(size),
                           tl_fastdiv(rows), target);
}

int32_t tl_cuda_conv_product(tl_context *ctx, const tl_conv_shape &s, bool spread, int64_t batch, int64_t channels,
                             int64_t rows, const float *source, const float *w, const float *bias, float *target)
{
    const int64_t size = spread ? s.in_size : s.out_size;
    if (batch == 0 || rows == 0) return TORCHLEAN_OK;
    if (channels == 0) return tl_cuda_conv_fill(ctx, bias, batch, rows, size, target);
    if (spread && tl_conv_has_gaps(&s)) TL_TRY(tl_cuda_conv_fill(ctx, bias, batch, rows, size, target));
    Job job = {};
    job.shape = s;
    job.spread = spread;
    job.batch = batch, job.channels = channels, job.rows = rows;
    job.source = source, job.w = w, job.bias = bias, job.target = target;
    const int64_t phases = spread ? tl_conv_phases(&s) : 1;
    job.passed = phases <= PHASES_PASSED;
    for (int64_t i = 0; job.passed && i < phases; i++)
        make_phase(&s, spread, i, channels, &job.phase[i]);
    int64_t positions;
    most_of(job, phases, &positions, &job.most_steps);
    if (positions == 0) /* the padding cuts off all that a stride above the kernel leaves */
        return TORCHLEAN_OK;
    const int64_t kept = phases < PHASES_AT_ONCE ? phases : PHASES_AT_ONCE;
    const int64_t tile_rows = rows_of_tile(rows);
    job.padded_rows = tl_ceil_div(rows, tile_rows) * tile_rows;
    /* one allocation, each part on 256 bytes */
    const size_t phase_bytes = (sizeof(Phase) * (size_t)kept + 255) / 256 * 256;
    const size_t offset_bytes = (sizeof(uint2) * (size_t)(kept * job.most_steps) + 255) / 256 * 256;
    const size_t packed_bytes = 2 * sizeof(float) * (size_t)(kept * job.most_steps * job.padded_rows);
    tl_scratch<char> scratch(ctx);
    TL_TRY(scratch.allocate((int64_t)(phase_bytes + offset_bytes + packed_bytes)));
    job.phases = reinterpret_cast<Phase *>((char *)scratch);
    job.offsets = reinterpret_cast<uint2 *>(scratch + phase_bytes);
    job.packed = reinterpret_cast<float *>(scratch + phase_bytes + offset_bytes);
    return product(ctx, job, positions, phases);
}
