/* Convolution as an implicit matrix product: target (rows, positions) = w (rows, K)·gathered source (K, positions), K =
 * channels·taps, positions numbered through the whole batch; a spread has one such product per phase (conv_geometry.h).
 *
 *   plan_kernel     the weights split into their TF32 parts, in the order of mma's fragments and padded to whole tiles; and for every
 *                   k the offset it adds to a source index and its tap's bit
 *   product_kernel  a block owns a tile of BM rows by BN positions, its warps fragments of the sums in registers.
 *                   Slices arrive asynchronously: weights in 16-byte pieces, the source element by element with zeros
 *                   outside: neighbouring threads copy neighbouring positions, a thread keeps its one position's index and
 *                   bits, the offsets lie in shared memory. Without a kernel four neighbouring positions are one copy
 *   add_blocks      adds the blocks of K in order where different thread blocks have computed them. What a warp keeps of one row are
 *                   neighbours: in the target the positions of a phase lie strides apart, and each is a sector of its own
 *
 * Order of additions: chains of CHAIN columns added in order (conv/mma_tile.cuh) within a block of K, the blocks' sums
 * added in order, the bias last. Blocks follow from the shape of one image and the device; who adds them (the block of
 * threads itself, or add_blocks where the target alone gives too few of them to fill the device) changes nothing in it, nor
 * does the tile. The batch has no part in the order; but where the guard finds a value in a tile, all images that share the tile
 * get the bits of fused multiply-adds. */
#include <algorithm>

#include "cuda/conv/conv.cuh"
#include "cuda/conv/mma_tile.cuh"
#include "cuda/device/vector.cuh"

using namespace tl_conv;

namespace {

constexpr int64_t MAX_SCRATCH = INT64_C(1) << 26; /* floats of separately kept blocks: 256 MiB */
constexpr int64_t MIN_BLOCK = 128;                /* columns of a block of K */
constexpr int IN_FLIGHT = 3;                      /* slices */
/* Floats of one slice's packed weights for 16 rows: 2 steps of mma, 2 parts, 32 lanes, 4 registers. */
constexpr int PACK = 512;
/* Slices whose offsets shared memory holds: those being fetched, and as many of the next. */
constexpr int TABLE = 8;
static_assert(TABLE >= 2 * IN_FLIGHT && (TABLE & (TABLE - 1)) == 0, "a slot is free before it is filled");

/* One phase. K runs chunk by chunk; every chunk is padded to whole chains. */
struct Phase {
    tl_conv_gather gather;
    int64_t chunk_steps, steps; /* of a full chunk, of all */
};

/* Up to TL_CONV_MAX_PHASES phases, which have positions. */
struct Job {
    int64_t batch, channels, rows;
    const float *source, *w, *bias;
    float *target;
    int64_t row_stride, channel_stride; /* of w */
    float *packed;                      /* (phase, slice, 16 rows, step of mma, part, lane, register) */
    uint2 *offsets;                     /* (phase, steps): source offset and tap bit */
    float *partial;                     /* (block of K, phase, row, kept_columns), or NULL */
    int64_t most_steps, padded_rows, row_tiles, kept_columns; /* kept_columns: of whole tiles */
    int32_t phases, blocks;                                   /* of K, in each phase */
    int32_t by_four; /* positions read their own place, and four of them are one copy */
    Phase phase[TL_CONV_MAX_PHASES];
};

int64_t padded(int64_t n) { return tl_ceil_div(n, CHAIN) * CHAIN; }

Phase phase_of(const tl_conv_gather &g, int64_t channels)
{
    const int64_t full = (g.taps_size - 1) / CHUNK, steps = padded(channels * tl_imin(g.taps_size, CHUNK));
    return {g, steps, full * steps + padded(channels * (g.taps_size - full * CHUNK))};
}

/* Slices of each of `blocks` blocks of K: whole chains; the last blocks may have fewer or none. */
TL_HD int block_of(int slices, int blocks) { return (slices / 2 + blocks - 1) / blocks * 2; }

__device__ __forceinline__ float unpack(float hi, float lo) { return hi == hi ? hi + lo : lo; }

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
    tl_wait_for_earlier();
    const int lane = (int)threadIdx.x, warp = (int)threadIdx.y;
    const Phase &phase = job.phase[blockIdx.y];
    const tl_conv_gather &g = phase.gather;
    const int64_t row_groups = job.padded_rows / 16;
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
        const int64_t at = real ? channel * job.channel_stride + tap.kernel : -1;
        if (own_group == 0 && lane < 8) {
            uint2 *const entries = job.offsets + (int64_t)blockIdx.y * job.most_steps;
            entries[k] = column_entry(real, (uint32_t)(channel * g.source_size) + tap.source, bit);
        }
        const int64_t columns[2] = {__shfl_sync(0xffffffffu, at, lane % 4), __shfl_sync(0xffffffffu, at, lane % 4 + 4)};
        for (int64_t group = own_group; group < row_groups; group += sharing) {
            float part[2][4];
            TL_UNROLL_FOR (int e = 0; e < 4; e++) {
                const int64_t row = group * 16 + lane / 4 + e % 2 * 8, column = columns[e / 2];
                const float x = column >= 0 && row < job.rows ? job.w[row * job.row_stride + column] : 0.0f;
                pack(x, part[0][e], part[1][e]);
            }
            const int64_t slice = (int64_t)blockIdx.y * (job.most_steps / SLICE) + step / 2;
            float *to = job.packed + (slice * row_groups + group) * PACK + step % 2 * (PACK / 2) + lane * 4;
            tl_store4(to, part[0]);
            tl_store4(to + PACK / 4, part[1]);
        }
    }
}

/* Feeds product_kernel's tile (run_slices). A stage: the packed weights of BM rows, then SLICE rows of BN gathered elements, 8 floats
 * longer than the tile so that a warp's reads of 4 rows fall into 32 different banks. */
template <class T_> struct ProductLoader {
    using T = T_;
    static constexpr int STAGES = IN_FLIGHT + 1, BM = T::BM, BN = T::BN, THREADS = T::THREADS;
    static constexpr int A = BM / 16 * PACK, LB = BN + 8, STAGE = A + SLICE * LB;
    static constexpr int GROUPS = THREADS / BN, EACH = SLICE / GROUPS, PIECES = A / 4 / THREADS;
    static constexpr int FOURS = BN / 4,
                         BELOW = THREADS / FOURS; /* copies of four positions; rows of K between a thread's */
    static_assert(BN % 32 == 0 && GROUPS >= 1 && EACH % 2 == 0 && PIECES >= 1, "a warp copies 32 positions of one k");

    const Job &job;
    const Phase &phase;
    const uint2 *offsets;
    const float *weights, *from; /* of this phase and row tile: all of them; the next slice's */
    uint2 *table;                /* (slice % TABLE, step) */
    const uint32_t q;            /* the position that this thread copies, or the first of four */
    const bool used;
    const int last;
    int next, chunk_end; /* slice to fetch; the first of the next chunk */
    uint32_t source, inside;

    __device__ __forceinline__ int slices_per_chunk() const { return (int)(phase.chunk_steps / SLICE); }

    __device__ __forceinline__ void enter_chunk(int chunk)
    {
        const tl_conv_gather &g = phase.gather;
        const uint32_t image = q / (uint32_t)g.positions;
        const int64_t tap = (int64_t)chunk * CHUNK, left = g.taps_size - tap;
        const Position p = position_of(g, q - image * (uint32_t)g.positions, tap, (int)(left < CHUNK ? left : CHUNK));
        chunk_end = (chunk + 1) * slices_per_chunk();
        source = p.source + image * (uint32_t)(job.channels * g.source_size);
        inside = used ? p.inside : 0;
    }

    /* Ends with a barrier, and finds the table unused. */
    __device__ __forceinline__ void seek(int slice)
    {
        next = slice;
        from = weights + slice * (job.padded_rows / 16 * PACK) + (int)threadIdx.x * 4;
        if (slice >= chunk_end || slice < chunk_end - slices_per_chunk()) enter_chunk(slice / slices_per_chunk());
        for (int i = (int)threadIdx.x; i < min(IN_FLIGHT, last - slice) * SLICE; i += THREADS)
            table[(slice * SLICE + i) % (TABLE * SLICE)] = offsets[slice * SLICE + i];
        __syncthreads();
    }

    __device__ __forceinline__ void fetch_weights(uint32_t to)
    {
        TL_UNROLL_FOR (int i = 0; i < PIECES; i++)
            tl_copy_async<16, false>(to + 16 * ((int)threadIdx.x + i * THREADS), from + 4 * i * THREADS, true);
        from += job.padded_rows / 16 * PACK;
    }

    __device__ __forceinline__ void fetch(float *stage)
    {
        if (next < last) {
            const int ahead = next + IN_FLIGHT;
            if ((int)threadIdx.x < SLICE / 2 && ahead < last)
                tl_copy_async<16, false>(tl_shared_address(table + ahead % TABLE * SLICE + (int)threadIdx.x * 2),
                                         offsets + ahead * SLICE + (int)threadIdx.x * 2, true);
            if (next == chunk_end) enter_chunk(next / slices_per_chunk());
            const uint2 *const here = table + next % TABLE * SLICE;
            const uint32_t to = tl_shared_address(stage);
            /* the entries are read before the first copy, above which the compiler moves no load: they are on their way together */
            if (job.by_four) {
                const int k = (int)threadIdx.x / FOURS, column = (int)threadIdx.x % FOURS * 4;
                uint2 entry[SLICE / BELOW];
                TL_UNROLL_FOR (int i = 0; i < SLICE / BELOW; i++)
                    entry[i] = here[k + i * BELOW];
                fetch_weights(to);
                TL_UNROLL_FOR (int i = 0; i < SLICE / BELOW; i++)
                    tl_copy_async<16, false>(to + 4 * (A + (k + i * BELOW) * LB + column),
                                             job.source + (source + entry[i].x), (inside & entry[i].y) != 0);
            } else {
                const int column = (int)threadIdx.x % BN, k = (int)threadIdx.x / BN * EACH;
                const uint32_t to_b = to + 4 * (A + k * LB + column);
                const uint4 *entries = reinterpret_cast<const uint4 *>(here + k);
                uint4 two[EACH / 2];
                TL_UNROLL_FOR (int i = 0; i < EACH / 2; i++)
                    two[i] = entries[i];
                fetch_weights(to);
                TL_UNROLL_FOR (int i = 0; i < EACH; i += 2) {
                    const uint4 &both = two[i / 2];
                    tl_copy_async<4, false>(to_b + 4 * i * LB, job.source + (source + both.x), (inside & both.y) != 0);
                    tl_copy_async<4, false>(to_b + 4 * (i + 1) * LB, job.source + (source + both.z),
                                            (inside & both.w) != 0);
                }
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
        const uint4 *a = reinterpret_cast<const uint4 *>(stage + T::warp_m() * T::MT * PACK) + HALF * (PACK / 8) +
                         T::lane();
        TL_UNROLL_FOR (int mt = 0; mt < T::MT; mt++) {
            const uint4 h = a[mt * (PACK / 4)], l = a[mt * (PACK / 4) + PACK / 16];
            const uint32_t ah[4] = {h.x, h.y, h.z, h.w}, al[4] = {l.x, l.y, l.z, l.w};
            T::multiply(chain[mt], ah, al, bh, bl);
        }
    }

    /* What pads K is 0 on both sides and adds nothing. */
    __device__ __forceinline__ void plain(const float *stage, int slice, typename T::Sums &chain) const
    {
        const float *b = stage + A + T::column(0, 0);
        const int64_t real = phase.gather.taps_size <= CHUNK ? job.channels * phase.gather.taps_size : INT32_MAX;
        const int columns = min(SLICE, (int)real - slice * SLICE);
#pragma unroll 1
        for (int k = 0; k < columns; k++) {
            float y[T::NT][2];
            TL_UNROLL_FOR (int nt = 0; nt < T::NT; nt++) {
                const float2 v = *reinterpret_cast<const float2 *>(b + k * LB + nt * 8);
                y[nt][0] = v.x, y[nt][1] = v.y;
            }
            const float *a = stage + T::warp_m() * T::MT * PACK + k / 8 * (PACK / 2) + (T::lane() / 4 * 4 + k % 4) * 4 +
                             k % 8 / 4 * 2;
            TL_UNROLL_FOR (int mt = 0; mt < T::MT; mt++) {
                const float2 h = *reinterpret_cast<const float2 *>(a + mt * PACK);
                const float2 l = *reinterpret_cast<const float2 *>(a + mt * PACK + PACK / 4);
                const float x[2] = {unpack(h.x, l.x), unpack(h.y, l.y)};
                T::fused(chain[mt], x, y);
            }
        }
    }
};

/* Row 0 of what is kept of a block of K of a phase. */
__device__ __forceinline__ float *kept_block(const Job &job, int64_t block, uint32_t phase)
{
    return job.partial + (block * job.phases + phase) * (job.rows * job.kept_columns);
}

template <class T>
__global__ void __launch_bounds__(T::THREADS, T::RESIDENT) product_kernel(const __grid_constant__ Job job)
{
    using Loader = ProductLoader<T>;
    TL_DYNAMIC_SHARED(float, stages);
    __shared__ __align__(16) uint2 table[TABLE * SLICE];
    __shared__ uint32_t targets[T::BN];

    tl_wait_for_earlier();
    /* row tiles fastest, so that blocks which gather the same positions run together; then phases, then positions */
    const uint32_t row_tile = blockIdx.x % (uint32_t)job.row_tiles, tile = blockIdx.x / (uint32_t)job.row_tiles;
    const uint32_t phase_index = tile % (uint32_t)job.phases;
    const Phase &phase = job.phase[phase_index];
    const tl_conv_gather &g = phase.gather;
    const int64_t columns = job.batch * g.positions, q0 = (int64_t)(tile / (uint32_t)job.phases) * T::BN;
    const int slices = (int)(phase.steps / SLICE), block = block_of(slices, job.blocks);
    const int first = (int)blockIdx.z * block, last = job.partial ? min(slices, first + block) : slices;
    if (q0 >= columns) return;
    const int left = columns - q0 < T::BN ? (int)(columns - q0) : T::BN;
    if ((int)threadIdx.x < T::BN) {
        const uint32_t q = (uint32_t)q0 + threadIdx.x, image = q / (uint32_t)g.positions;
        targets[threadIdx.x] = job.partial ? q
                                           : image * (uint32_t)(job.rows * g.target_size) +
                                                 target_of(g, q - image * (uint32_t)g.positions);
    }
    const int column = job.by_four ? (int)threadIdx.x % Loader::FOURS * 4 : (int)threadIdx.x % T::BN;
    const bool used = column < left;
    const int64_t slice0 = (int64_t)phase_index * (job.most_steps / SLICE);
    const float *const weights = job.packed + (slice0 * (job.padded_rows / 16) + row_tile * (T::BM / 16)) * PACK;
    const uint2 *const offsets = job.offsets + phase_index * (uint32_t)job.most_steps;
    const uint32_t q = used ? (uint32_t)(q0 + column) : 0;
    Loader loader = {job, phase, offsets, weights, nullptr, table, q, used, last};
    loader.enter_chunk(0);
    auto store = [&](int index, const typename T::Sums &sums) {
        const bool ends = !job.partial && (index + 1) * block >= slices;
        T::store(job.partial ? kept_block(job, index, phase_index) : job.target,
                 (uint32_t)(job.partial ? job.kept_columns : g.target_size), targets, left, row_tile * T::BM,
                 (uint32_t)job.rows, !job.partial && index > 0, ends ? job.bias : nullptr, sums);
    };
    if (first < slices) {
        run_slices(loader, stages, first, last, block, job.channels * g.taps_size < TL_CONV_MIN_TENSOR, store);
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
    const int64_t block_size = job.phases * job.rows * job.kept_columns;
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
    const tl_conv_gather &g = job.phase[blockIdx.y].gather;
    if (q >= job.batch * g.positions) return;
    const uint32_t image = q / (uint32_t)g.positions, at = q - image * (uint32_t)g.positions;
    float *const target = job.target + ((image * job.rows + row0) * g.target_size + target_of(g, at));
    TL_UNROLL_FOR (int r = 0; r < ADD_ROWS; r++)
        if (r < rows) target[r * g.target_size] = job.bias ? sums[r] + job.bias[row0 + (uint32_t)r] : sums[r];
}

template <class T> int32_t launch(tl_context *ctx, const Job &job, int64_t tiles)
{
    constexpr size_t bytes = sizeof(float) * ProductLoader<T>::STAGES * ProductLoader<T>::STAGE;
    const dim3 grid((unsigned)(tiles * job.phases), 1, (unsigned)(job.partial ? job.blocks : 1));
    return launch_tiles(ctx, "conv_product", product_kernel<T>, grid, T::THREADS, bytes, job);
}

/* The phases of a job; scratch holds the offsets and packed weights. */
int32_t run(tl_context *ctx, Job &job)
{
    const int64_t sms = tl_cuda_sms(ctx), row_blocks = tl_ceil_div(job.rows, 64);
    const int64_t tile_rows = job.rows <= 16 ? 16 : job.rows <= 32 ? 32 : 64; /* fewer where they take no more tiles */
    int64_t positions = 0;
    for (int p = 0; p < job.phases; p++) {
        positions = std::max(positions, job.phase[p].gather.positions);
        job.most_steps = std::max(job.most_steps, job.phase[p].steps);
    }
    job.padded_rows = tl_ceil_div(job.rows, tile_rows) * tile_rows, job.row_tiles = job.padded_rows / tile_rows;
    const int64_t offset_bytes = tl_ceil_div((int64_t)sizeof(uint2) * job.phases * job.most_steps, 256) * 256;
    const int64_t packed_bytes = 2 * (int64_t)sizeof(float) * job.phases * job.most_steps * job.padded_rows;
    tl_scratch<char> scratch(ctx);
    TL_TRY(scratch.allocate(offset_bytes + packed_bytes));
    job.offsets = reinterpret_cast<uint2 *>((char *)scratch);
    job.packed = reinterpret_cast<float *>(scratch + offset_bytes);
    /* Few tiles in an image: K is divided into blocks, the same number in each phase. Few in the batch: different thread blocks
     * compute them. */
    const int64_t columns = job.batch * positions, slices = job.most_steps / SLICE;
    const int64_t image_tiles = tl_ceil_div(positions, 128) * row_blocks * job.phases;
    const int64_t wide_tiles = tl_ceil_div(columns, 128) * row_blocks * job.phases;
    const int64_t wanted = std::min(tl_ceil_div(sms, image_tiles), job.most_steps / MIN_BLOCK);
    job.blocks = (int32_t)tl_ceil_div(slices, block_of((int)slices, (int)std::max(wanted, INT64_C(1))));
    job.kept_columns = tl_ceil_div(columns, 128) * 128;
    const int64_t kept = job.blocks * job.phases * job.rows * job.kept_columns;
    const bool apart = job.blocks > 1 && kept <= MAX_SCRATCH && wide_tiles <= sms;
    const bool narrow = tile_rows == 64 && wide_tiles * (apart ? job.blocks : 1) <= sms;
    const int64_t tiles = tl_ceil_div(columns, narrow ? 64 : 128) * job.row_tiles;
    tl_scratch<float> partial(ctx);
    if (apart) TL_TRY(partial.allocate(kept));
    job.partial = partial;
    const int64_t steps_at_once = PLAN_WARPS / warps_of_step(job.padded_rows / 16);
    const dim3 plan_grid(tl_grid(job.most_steps, 8 * steps_at_once, 4096), (unsigned)job.phases);
    TL_TRY(tl_launch_ahead(ctx, "plan", plan_kernel, plan_grid, dim3(32, PLAN_WARPS), 0, job));
    const auto launch_tile = tile_rows == 16   ? launch<Tile<1, 4, 1>>
                             : tile_rows == 32 ? launch<Tile<2, 4, 1>>
                             : narrow          ? launch<Tile<4, 2, 1>>
                                               : launch<Tile<4, 4, 1>>;
    TL_TRY(launch_tile(ctx, job, tiles));
    if (!apart) return TORCHLEAN_OK;
    const int64_t add_tiles = tl_ceil_div(job.kept_columns, ADD_COLUMNS) * tl_ceil_div(job.rows, ADD_ROWS);
    const dim3 add_grid((unsigned)add_tiles, (unsigned)job.phases);
    return tl_launch_ahead(ctx, "add", add_blocks_kernel, add_grid, ADD_COLUMNS, 0, job);
}

} // namespace

int32_t tl_conv_mma(tl_context *ctx, const tl_conv_product &p)
{
    if (p.has_gaps()) TL_TRY(tl_conv_fill(ctx, p));
    for (int64_t next = 0; next < p.phases();) {
        Job job = {};
        job.batch = p.batch, job.channels = p.channels, job.rows = p.rows;
        job.source = p.source, job.w = p.w, job.bias = p.bias, job.target = p.target;
        job.row_stride = p.row_stride(), job.channel_stride = p.channel_stride();
        job.by_four = tl_conv_is_plain(p.s) && p.s.in_size % 4 == 0 && tl_aligned4(p.source);
        for (; next < p.phases() && job.phases < TL_CONV_MAX_PHASES; next++) {
            const tl_conv_gather g = p.phase(next);
            if (g.positions > 0) job.phase[job.phases++] = phase_of(g, p.channels);
        }
        if (job.phases > 0) TL_TRY(run(ctx, job));
    }
    return TORCHLEAN_OK;
}
