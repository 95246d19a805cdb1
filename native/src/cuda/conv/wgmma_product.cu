/* Forward and data gradient of a convolution by wgmma (device/wgmma_pipeline.cuh): target (rows, positions) = w (rows, K)·gathered
 * source (K, positions), positions numbered through the whole batch, one product per phase of a spread
 * (conv_geometry.h).
 *
 * K goes by in blocks of STEP channels, tap after tap within a block, so that a step has one tap: whether a position
 * has it is one test per step, what it reads are STEP elements a channel apart, and all taps of a block of channels
 * read nearly the same bytes soon after one another.
 *
 *   pack_kernel     the weights in the order of wgmma's fragments, NaN for one that does not split, which makes every result it
 *                   has a part in not finite. A block reads all taps of 16 rows and 32 channels, or eight of a larger
 *                   kernel, which lie in whole lines, and a warp writes what one step takes of eight channels, which is
 *                   512 bytes
 *   product_kernel  a thread of a producing group gathers one position of every 128 columns of a stage, or half the
 *                   channels of one of 64, so that a warp reads 32 neighbouring positions; the packed weights of 64 rows
 *                   of a stage are one bulk copy
 *   add             adds the segments of K where different thread blocks have computed them
 *
 * Order of additions: the steps' parts in order within a segment of K, the segments' sums in order, the bias last.
 * Segments, and whether these kernels or those of conv/mma_product.cu serve, follow from the shape of one image. Who adds
 * the segments (the thread block of a tile, in scratch of its own, or the kernel above where the tiles alone leave
 * multiprocessors idle) changes nothing in it, nor does the tile. The batch has no part in the order; but where a tile's sums do
 * not count and are computed again, all images that share it get the bits of fused multiply-adds. */
#include <algorithm>

#include "cuda/conv/gather.cuh"
#include "cuda/device/wgmma_pipeline.cuh"

using namespace tl_conv_gathers;
using namespace tl_wgmma;

namespace {

/* Steps that a segment has at least, and in phases beside a longer one, of images of so few tiles (an eighth of a device), a piece. */
constexpr int64_t MIN_SEGMENT = 9, MIN_PIECE = 2, FEW_TILES = 8;
constexpr int64_t MAX_SCRATCH = INT64_C(1) << 26; /* floats of separately kept segments: 256 MiB */

static_assert(STEP == TL_CONV_STEP, "as conv/select.h counts");

struct Job {
    Arrays arrays;
    const float *source, *w, *bias;
    float *target;
    uint32_t w_row, w_channel; /* strides of w */
    uint32_t channel_blocks, row_groups, phases;
    Phase phase[TL_CONV_MAX_PHASES];
    float *packed;  /* (phase, 64 rows, step, q, thread, element of a fragment) */
    float *partial; /* (segment, the target's elements), or NULL */
    float *total;   /* (thread block, warp group, float4 of a thread, thread of the group, 4), or NULL */
    uint64_t target_elements;
    tl_fastdiv segments;
    uint32_t pieces, run; /* segments of all tiles; neighbouring ones that a thread block gets at a time */
    uint32_t row_tiles;
};

/* ---- the weights --------------------------------------------------------------------------------------------------- */

constexpr int PARTS = STEP / 8; /* of a step, eight channels each */
constexpr int ROWS = 16, THREADS_TO_PACK = 256, WARPS_TO_PACK = THREADS_TO_PACK / 32;
constexpr uint32_t MAX_STEP_TAPS = 8; /* of which a block has all parts of a step */

/* Where the weights of a block lie: in runs of memory, `apart` from each other, of `inner` times all taps. In shared memory the taps
 * of one row and channel begin `pitch` apart, an odd number, and runs `line`, so that eight rows by four channels lie in different
 * banks. */
struct Box {
    tl_fastdiv taps; /* of all phases */
    uint32_t parts;  /* of a block */
    uint32_t inner, outer, apart, pitch, line;
    bool rows_inner; /* as of a spread, whose weights are (channel, row, tap) */
};

/* blockIdx: some parts of a block of channels; 16 rows. */
__global__ void __launch_bounds__(THREADS_TO_PACK)
    pack_kernel(const __grid_constant__ Job job, const __grid_constant__ Box box)
{
    TL_DYNAMIC_SHARED(float, held);
    const uint32_t row0 = blockIdx.y * ROWS, channel0 = blockIdx.x * box.parts * 8, taps = box.taps.divisor;
    const uint32_t rows = row0 < job.arrays.rows ? min(job.arrays.rows - row0, (uint32_t)ROWS) : 0;
    const uint32_t channels = channel0 < job.arrays.channels ? min(job.arrays.channels - channel0, box.parts * 8) : 0;
    const uint32_t real = (box.rows_inner ? rows : channels) * taps, real_outer = box.rows_inner ? channels : rows;
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const float *const from = job.w + (row0 * job.w_row + channel0 * job.w_channel);
    for (uint32_t o = warp; o < box.outer; o += WARPS_TO_PACK)
#pragma unroll 8
        for (uint32_t j = lane; j < box.inner * taps; j += 32) {
            uint32_t tap;
            const uint32_t i = box.taps.divmod(j, &tap);
            held[o * box.line + i * box.pitch + tap] = o < real_outer && j < real ? from[o * box.apart + j] : 0.0f;
        }
    __syncthreads();
    /* The lane's four weights of a part of a step: at (row % 16 / 8, channel % 8 / 4). */
    const uint32_t row_pitch = box.rows_inner ? box.pitch : box.line;
    const uint32_t channel_pitch = box.rows_inner ? box.line : box.pitch;
    const float *const own = held + (lane / 4 * row_pitch + lane % 4 * channel_pitch);
    const uint32_t first_part = blockIdx.x * box.parts, block = first_part / PARTS, group = blockIdx.y / 4;
    const uint32_t place = first_part % PARTS * GROUP + blockIdx.y % 4 * 32 + lane;
    uint32_t turn = warp; /* the warps take turns at the parts of the steps of all phases */
    for (uint32_t p = 0; p < job.phases; p++) {
        const Phase &phase = job.phase[p];
        const uint32_t turns = phase.taps.divisor * box.parts;
        const uint64_t step = phase.first_step * job.row_groups + group * phase.steps + block * phase.taps.divisor;
        float4 *const to = reinterpret_cast<float4 *>(job.packed) + step * (PARTS * GROUP) + place;
        for (; turn < turns; turn += WARPS_TO_PACK) {
            uint32_t t;
            const uint32_t part = phase.taps.divmod(turn, &t);
            const float *const at = own + (part * 8 * channel_pitch + TapPlace(phase, t).weight(phase));
            float four[4];
            TL_UNROLL_FOR (int e = 0; e < 4; e++) {
                const float x = at[e % 2 * 8 * row_pitch + e / 2 * 4 * channel_pitch];
                four[e] = tl_split_unsafe(x) ? TL_NAN : x;
            }
            to[(uint64_t)(t * PARTS + part) * GROUP] = make_float4(four[0], four[1], four[2], four[3]);
        }
        turn -= turns;
    }
}

int32_t pack(tl_context *ctx, const Job &job, uint32_t taps)
{
    Box box = {tl_fastdiv((uint64_t)taps), taps <= MAX_STEP_TAPS ? PARTS : 1u};
    const uint32_t block_channels = box.parts * 8;
    box.rows_inner = job.w_row == taps;
    box.inner = box.rows_inner ? ROWS : block_channels, box.outer = box.rows_inner ? block_channels : ROWS;
    box.apart = box.rows_inner ? job.w_channel : job.w_row;
    box.pitch = taps | 1, box.line = (box.inner + (box.rows_inner ? 8 : 4)) * box.pitch;
    const dim3 grid(job.channel_blocks * (PARTS / box.parts), job.row_groups * (64 / ROWS));
    const size_t bytes = sizeof(float) * box.outer * box.line;
    TL_TRY(tl_allow_shared(ctx, pack_kernel, bytes));
    return tl_launch_dynamic(ctx, "conv_pack", pack_kernel, grid, THREADS_TO_PACK, bytes, job, box);
}

/* ---- the product ---------------------------------------------------------------------------------------------------- */

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* Where a piece lies: a segment of a tile. */
struct Place {
    uint32_t phase, row_tile, column0, segment;

    __device__ __forceinline__ Place(const Job &job, uint32_t piece, uint32_t columns)
    {
        const uint32_t tile = job.segments.divmod(piece, &segment);
        phase = 0;
        while (phase + 1 < job.phases && tile >= job.phase[phase + 1].first)
            phase++;
        const uint32_t local = tile - job.phase[phase].first, column = local / job.row_tiles;
        row_tile = local - column * job.row_tiles;
        column0 = column * columns;
    }
    /* The first step of the segment, or with NEXT of the one after it. */
    template <int NEXT> __device__ __forceinline__ uint32_t first(const Job &job) const
    {
        return job.segments.div((segment + NEXT) * job.phase[phase].steps);
    }
    __device__ __forceinline__ int steps(const Job &job) const { return (int)(first<1>(job) - first<0>(job)); }
};

/* A tap: what it adds to coordinates and to a source index. */
struct Tap {
    int32_t d[AXES];
    uint32_t source;

    __device__ __forceinline__ Tap(const Job &job, const Phase &phase, const TapPlace &place)
        : source(place.source(job.arrays, phase))
    {
        TL_UNROLL_FOR (int i = 0; i < AXES; i++)
            d[i] = (int32_t)place.at[i] * phase.tap_step[i];
    }
    __device__ __forceinline__ bool inside(const Job &job, const Position &p) const
    {
        return (uint32_t)(p.c[0] + d[0]) < (uint32_t)job.arrays.extent[0] &&
               (uint32_t)(p.c[1] + d[1]) < (uint32_t)job.arrays.extent[1] &&
               (uint32_t)(p.c[2] + d[2]) < (uint32_t)job.arrays.extent[2];
    }
};

/* Pieces whose targets are kept: the producers fill at most STAGES stages of a later piece while one is being stored,
 * and a piece has at least MIN_PIECE. */
constexpr int TARGETS = 4;

template <class T> struct ProductLoader {
    /* Threads of a column, columns of a thread, channels of either. */
    static constexpr int SHARE = T::COLUMNS < GROUP ? GROUP / T::COLUMNS : 1;
    static constexpr int COPIES = T::COLUMNS * SHARE / GROUP, CHANNELS = STEP / SHARE;
    static_assert(COPIES * GROUP == T::COLUMNS * SHARE && CHANNELS % 4 == 0 && T::COLUMNS % 32 == 0, "ownership");

    const Job &job;
    uint32_t (*targets)[T::COLUMNS];
    const int thread, column, channel0;
    Position at[COPIES];
    const Phase *phase;
    const float *weights;
    uint32_t first; /* step */
    uint32_t *kept; /* where this piece's targets go */

    __device__ __forceinline__ ProductLoader(const Job &job, uint32_t (*targets)[T::COLUMNS])
        : job(job), targets(targets), thread((int)threadIdx.x % GROUP), column(thread % T::COLUMNS),
          channel0(thread / T::COLUMNS * CHANNELS)
    {}
    __device__ __forceinline__ int steps(uint32_t piece) const { return Place(job, piece, T::COLUMNS).steps(job); }
    __device__ __forceinline__ void open(uint32_t piece, uint32_t n, int)
    {
        const Place place(job, piece, T::COLUMNS);
        phase = &job.phase[place.phase];
        first = place.first<0>(job);
        const uint32_t step = phase->first_step * job.row_groups + place.row_tile * T::WM * phase->steps;
        weights = job.packed + (uint64_t)step * (T::A_GROUP / 4);
        kept = targets[n % TARGETS];
        TL_UNROLL_FOR (int u = 0; u < COPIES; u++)
            at[u].find(job.arrays, *phase, place.column0 + (uint32_t)(column + u * GROUP));
    }
    /* The thread's channels of one position; WHOLE: all of them exist. */
    template <bool WHOLE>
    __device__ __forceinline__ void read(float (&held)[CHANNELS], const float *from, bool inside, int left) const
    {
        TL_UNROLL_FOR (int k = 0; k < CHANNELS; k++) {
            const char *p = reinterpret_cast<const char *>(from) + (uint64_t)job.arrays.source_size * (4u * k);
            held[k] = inside && (WHOLE || k < left) ? __ldg(reinterpret_cast<const float *>(p)) : 0.0f;
        }
    }
    /* The stage is empty: its weights may come, and a piece's first step brings the targets. */
    __device__ __forceinline__ void prepare(int s, char *to, uint32_t full) const
    {
        if (thread == 0) {
            barrier_expect(full, T::WM * T::A_GROUP);
            TL_UNROLL_FOR (int h = 0; h < T::WM; h++)
                bulk_copy(tl_shared_address(to) + h * T::A_GROUP,
                          weights + (uint64_t)(h * phase->steps + first + (uint32_t)s) * (T::A_GROUP / 4), T::A_GROUP,
                          full);
        }
        if (s == 0)
            TL_UNROLL_FOR (int u = 0; u < COPIES; u++)
                if (channel0 == 0) kept[column + u * GROUP] = at[u].target;
    }
    __device__ __forceinline__ void fill(int s, char *to, const Ring<T::STAGES> &ring, Guard &guard)
    {
        uint32_t t;
        const uint32_t block = phase->taps.divmod(first + (uint32_t)s, &t);
        const Tap tap(job, *phase, TapPlace(*phase, t));
        const uint32_t channel = block * STEP + (uint32_t)channel0;
        const int left = (int)(job.arrays.channels - channel);
        const uint32_t offset = tap.source + channel * job.arrays.source_size;
        TL_UNROLL_FOR (int u = 0; u < COPIES; u++) {
            float held[CHANNELS];
            const bool inside = tap.inside(job, at[u]);
            const float *from = job.source + (at[u].source + offset);
            if (left >= CHANNELS)
                read<true>(held, from, inside, left);
            else
                read<false>(held, from, inside, left);
            if (u == 0) {
                ring.wait_empty();
                prepare(s, to, ring.full_barrier());
            }
            char *row = to + T::B_HI + (column + u * GROUP) * ROW;
            const int swizzle = 16 * ((column % 8) ^ (channel0 / 4));
            TL_UNROLL_FOR (int c = 0; c < CHANNELS / 4; c++) {
                const float4 x = make_float4(held[4 * c], held[4 * c + 1], held[4 * c + 2], held[4 * c + 3]);
                char *hi = row + (swizzle ^ 16 * c);
                store_split(hi, hi + (T::B_LO - T::B_HI), x);
                guard.see(x);
            }
        }
    }
};

/* Stores a warp group's 64 rows from row0 on, `left` columns; four lanes fill a sector where positions are neighbours. */
template <int BN>
__device__ __forceinline__ void store_rows(const Job &job, uint32_t segment, const uint32_t *targets, int left,
                                           uint32_t row0, const float (&sum)[BN / 2])
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x % GROUP / 32;
    float *const to = job.partial ? job.partial + segment * job.target_elements : job.target;
    const bool has_bias = !job.partial && job.bias;
    TL_UNROLL_FOR (int h = 0; h < 2; h++) {
        const uint32_t row = row0 + (uint32_t)(16 * warp + 8 * h + lane / 4);
        if (row >= job.arrays.rows) continue;
        const uint32_t base = row * job.arrays.target_size;
        const float bias = has_bias ? job.bias[row] : 0.0f;
        TL_UNROLL_FOR (int j = 0; j < BN / 8; j++) {
            const int column = 8 * j + 2 * (lane % 4);
            if (column >= left) continue;
            const uint2 at = *reinterpret_cast<const uint2 *>(targets + column);
            float x = sum[4 * j + 2 * h], y = sum[4 * j + 2 * h + 1];
            if (has_bias) x += bias, y += bias;
            float *p = to + (base + at.x);
            const bool second = column + 1 < left;
            if (second && at.y == at.x + 1 && ((uintptr_t)p & 7) == 0) {
                *reinterpret_cast<float2 *>(p) = make_float2(x, y);
            } else {
                *p = x;
                if (second) to[base + at.y] = y;
            }
        }
    }
}

/* A warp group's running total of a tile whose segments one thread block adds: float4 number j of thread t of the
 * group, at [j·GROUP + t], is sum[4j .. 4j + 3], so that a warp's reads and writes are whole lines, and all reads of a
 * thread are on their way before one is waited for. */
template <int BN> __device__ __forceinline__ float4 *own_total(const Job &job, int group)
{
    float *const total = job.total + (blockIdx.x * GROUPS + (uint32_t)group) * (64u * BN);
    return reinterpret_cast<float4 *>(total) + threadIdx.x % GROUP;
}

/* sum = total + sum */
template <int BN> __device__ __forceinline__ void add_total(const float4 *total, float (&sum)[BN / 2])
{
    float4 old[BN / 8];
    TL_UNROLL_FOR (int j = 0; j < BN / 8; j++)
        old[j] = total[j * GROUP];
    TL_UNROLL_FOR (int j = 0; j < BN / 8; j++) {
        sum[4 * j] = old[j].x + sum[4 * j], sum[4 * j + 1] = old[j].y + sum[4 * j + 1];
        sum[4 * j + 2] = old[j].z + sum[4 * j + 2], sum[4 * j + 3] = old[j].w + sum[4 * j + 3];
    }
}

/* A thread's sums of a piece without tensor cores, two columns after the other. */
template <int BN>
__device__ __forceinline__ void plain_sums(const Job &job, const Place &place, uint32_t row0, uint32_t column0,
                                           float (&sum)[BN / 2])
{
    const Phase &phase = job.phase[place.phase];
    const uint32_t lane = threadIdx.x % 32, row = row0 + threadIdx.x % GROUP / 32 * 16 + lane / 4;
    const uint32_t w0 = min(row, job.arrays.rows - 1) * job.w_row, w1 = min(row + 8, job.arrays.rows - 1) * job.w_row;
    const uint32_t begin = place.first<0>(job), end = place.first<1>(job), size = job.arrays.source_size;
    TL_UNROLL_FOR (int j = 0; j < BN / 8; j++) {
        Position at[2];
        TL_UNROLL_FOR (int e = 0; e < 2; e++)
            at[e].find(job.arrays, phase, column0 + (uint32_t)(8 * j + e) + 2 * (lane % 4));
        TL_UNROLL_FOR (int r = 0; r < 4; r++)
            sum[4 * j + r] = 0.0f;
#pragma unroll 1
        for (uint32_t step = begin; step < end; step++) {
            uint32_t t;
            const uint32_t block = phase.taps.divmod(step, &t) * STEP, last = min(block + STEP, job.arrays.channels);
            const TapPlace tap_place(phase, t);
            const Tap tap(job, phase, tap_place);
            const bool inside[2] = {tap.inside(job, at[0]), tap.inside(job, at[1])};
            const float *const w = job.w + tap_place.weight(phase);
#pragma unroll 1
            for (uint32_t channel = block; channel < last; channel++) {
                const float x0 = w[w0 + channel * job.w_channel], x1 = w[w1 + channel * job.w_channel];
                TL_UNROLL_FOR (int e = 0; e < 2; e++) {
                    const float v = inside[e] ? job.source[at[e].source + tap.source + channel * size] : 0.0f;
                    sum[4 * j + e] = fmaf(x0, v, sum[4 * j + e]);
                    sum[4 * j + 2 + e] = fmaf(x1, v, sum[4 * j + 2 + e]);
                }
            }
        }
    }
}

#endif

/* T::BYTES of dynamic shared memory, at most one block per run of pieces. */
template <class T> __global__ void __launch_bounds__(THREADS, 1) product_kernel(const __grid_constant__ Job job)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    TL_DYNAMIC_SHARED(char, dynamic);
    __shared__ uint64_t barriers[2][T::STAGES];
    __shared__ __align__(4) uint8_t unsafe[T::STAGES][WARPS];
    __shared__ __align__(8) uint32_t targets[TARGETS][T::COLUMNS];
    static_assert(T::STAGES <= MIN_PIECE * (TARGETS - 1), "a piece's targets are stored before they are replaced");
    const Stages<T> stages = open_stages<T, 1>(dynamic, barriers, unsafe);
    const int group = __shfl_sync(0xffffffffu, (int)threadIdx.x / GROUP, 0);
    if (threadIdx.x >= GROUPS * GROUP) {
        shrink_registers<PRODUCER_REGISTERS>();
        ProductLoader<T> loader(job, targets);
        produce(stages, loader, AlternatingSchedule{job.pieces, job.run}, group - GROUPS);
    } else {
        grow_registers<CONSUMER_REGISTERS>();
        const int column = T::WM == 2 ? 0 : group * T::BN;
        consume<T, true>(
            stages, AlternatingSchedule{job.pieces, job.run}, group,
            [&](uint32_t piece) { return Place(job, piece, T::COLUMNS).steps(job); },
            [&](uint32_t piece, uint32_t n, bool any, float (&sum)[T::BN / 2]) {
                /* The vote tells the compiler that a warp stays together; else it keeps what is the same for all
                 * threads, stages and their addresses, in registers that the main loop does not have. */
                const bool redo = __any_sync(0xffffffffu, any);
                const Place place(job, piece, T::COLUMNS);
                const uint32_t row0 = (place.row_tile * T::WM + (T::WM == 2 ? group : 0)) * 64;
                const uint32_t column0 = place.column0 + column, columns = job.phase[place.phase].columns;
                if (redo) plain_sums<T::BN>(job, place, row0, column0, sum);
                if (job.total) {
                    float4 *const total = own_total<T::BN>(job, group);
                    if (place.segment > 0) add_total<T::BN>(total, sum);
                    if (place.segment + 1 < job.segments.divisor) {
                        TL_UNROLL_FOR (int j = 0; j < T::BN / 8; j++)
                            total[j * GROUP] = make_float4(sum[4 * j], sum[4 * j + 1], sum[4 * j + 2], sum[4 * j + 3]);
                        return;
                    }
                }
                store_rows<T::BN>(job, place.segment, targets[n % TARGETS] + column,
                                  columns > column0 ? (int)min(columns - column0, (uint32_t)T::BN) : 0, row0, sum);
            });
    }
#endif
}

/* A thread owns one element: its segments' sums in order, then the bias. */
__global__ void __launch_bounds__(256) add_kernel(const float *partial, int64_t segments, int64_t n, const float *bias,
                                                  tl_fastdiv size, tl_fastdiv rows, float *out)
{
    tl_wait_for_earlier();
    const int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    float sum = partial[i];
#pragma unroll 4
    for (int64_t segment = 1; segment < segments; segment++)
        sum = sum + partial[segment * n + i];
    if (bias) {
        uint32_t row;
        rows.divmod(size.div((uint32_t)i), &row);
        sum = sum + bias[row];
    }
    out[i] = sum;
}

using Large = Tile<2, 128>; /* 128 x 128 */
using Low = Tile<1, 128>;   /* 64 x 256 */
/* Where tiles are few: 64 x 128 and, with no more stages than pieces' targets allow (TARGETS), 64 x 64. */
using Narrow = Tile<1, 64>;
using Small = Tile<1, 32, 6>;

/* A kind of tiles, and the time of a segment of one, in fifths of a large one's. A low one takes seven (measured on an H200). The
 * smaller ones have half and a quarter of the large one's products and stores, but all or half of its gathering. */
struct Form {
    int64_t rows, columns, fifths;
    int32_t (*launch)(tl_context *, const Job &, unsigned grid);
};

template <class T> int32_t launch(tl_context *ctx, const Job &job, unsigned grid)
{
    return tl_launch_dynamic(ctx, "conv_wgmma_product", product_kernel<T>, grid, THREADS, T::BYTES, job);
}
template <class T> constexpr Form form_of(int64_t fifths) { return {T::ROWS, T::COLUMNS, fifths, launch<T>}; }
template <class T> bool prepare_kernel() { return tl_wgmma_prepare(product_kernel<T>, T::BYTES); }

const Form LARGE = form_of<Large>(5), LOW = form_of<Low>(7), NARROW = form_of<Narrow>(4), SMALL = form_of<Small>(3);

/* The phases that have positions, those with the most taps first; how many. */
int phases_of(const tl_conv_product &p, tl_conv_gather *gathers)
{
    int n = 0;
    for (int64_t i = 0; i < p.phases(); i++) {
        gathers[n] = p.phase(i);
        if (gathers[n].positions > 0) n++;
    }
    std::stable_sort(gathers, gathers + n,
                     [](const tl_conv_gather &a, const tl_conv_gather &b) { return a.taps_size > b.taps_size; });
    return n;
}

int64_t tiles_of(const Form &form, const tl_conv_gather *gathers, int phases, int64_t batch, int64_t rows)
{
    int64_t tiles = 0;
    for (int p = 0; p < phases; p++)
        tiles += tl_ceil_div(batch * gathers[p].positions, form.columns) * tl_ceil_div(rows, form.rows);
    return tiles;
}

/* Into how many segments K is cut: as many as fill the device with the tiles of one image. The first phase has the most taps, and the
 * tiles that take longest; of few tiles the last one's segments may be short. */
int64_t segments_of(const tl_conv_gather *gathers, int phases, int64_t channel_blocks, int64_t rows, int64_t sms)
{
    const int64_t longest = channel_blocks * gathers[0].taps_size, tiles = tiles_of(LOW, gathers, phases, 1, rows);
    const int64_t shortest = channel_blocks * gathers[phases - 1].taps_size;
    const int64_t piece = tiles <= sms / FEW_TILES ? MIN_PIECE : MIN_SEGMENT;
    return std::max(std::min({sms / tiles, longest / MIN_SEGMENT, shortest / piece}), INT64_C(1));
}

/* A launch with a kind of tiles, and its time. `apart`: the segments of a tile separately, and added afterwards, which takes as long
 * as two fifths. */
struct Plan {
    const Form *form;
    int64_t tiles, cost;
    bool apart;
};

Plan plan_of(const Form &form, int64_t tiles, int64_t segments, bool fits, int64_t sms)
{
    const int64_t alone = form.fifths * tl_ceil_div(tiles * segments, sms) + 2;
    const int64_t together = form.fifths * tl_ceil_div(tiles, sms) * segments;
    const bool apart = segments > 1 && fits && tiles <= sms && alone < together;
    return {&form, tiles, apart ? alone : together, apart};
}

int32_t run(tl_context *ctx, Job &job, const Plan &plan)
{
    uint32_t first = 0;
    job.row_tiles = (uint32_t)tl_ceil_div(job.arrays.rows, plan.form->rows);
    for (uint32_t p = 0; p < job.phases; p++) {
        job.phase[p].first = first;
        first += (uint32_t)tl_ceil_div(job.phase[p].columns, plan.form->columns) * job.row_tiles;
    }
    const int64_t segments = job.segments.divisor, elements = (int64_t)job.target_elements;
    job.pieces = (uint32_t)(plan.tiles * segments);
    job.run = plan.apart ? 1 : (uint32_t)segments;
    const unsigned grid = tl_grid(job.pieces / job.run, 1, tl_cuda_sms(ctx));
    tl_scratch<float> scratch(ctx);
    if (segments > 1) {
        TL_TRY(scratch.allocate(plan.apart ? segments * elements : grid * plan.form->rows * plan.form->columns));
        (plan.apart ? job.partial : job.total) = scratch;
    }
    TL_TRY(plan.form->launch(ctx, job, grid));
    if (!plan.apart) return TORCHLEAN_OK;
    return tl_launch_ahead(ctx, "add", add_kernel, tl_grid(elements, 256), 256, 0, (const float *)job.partial, segments,
                           elements, job.bias, tl_fastdiv((uint64_t)job.arrays.target_size),
                           tl_fastdiv((uint64_t)job.arrays.rows), job.target);
}

} // namespace

bool tl_conv_wgmma_has_product(tl_context *ctx)
{
    return tl_wgmma_runs(ctx, [] {
        return prepare_kernel<Large>() && prepare_kernel<Low>() && prepare_kernel<Narrow>() && prepare_kernel<Small>();
    });
}

int32_t tl_conv_wgmma(tl_context *ctx, const tl_conv_product &p)
{
    tl_conv_gather gathers[TL_CONV_MAX_PHASES];
    Job job = {};
    const int n = phases_of(p, gathers);
    const int64_t channel_blocks = tl_ceil_div(p.channels, STEP), sms = tl_cuda_sms(ctx);
    const int64_t segments = segments_of(gathers, n, channel_blocks, p.rows, sms);
    job.arrays = arrays_of(gathers[0], p.channels, p.rows);
    job.source = p.source, job.w = p.w, job.bias = p.bias, job.target = p.target;
    job.phases = (uint32_t)n, job.channel_blocks = (uint32_t)channel_blocks;
    job.row_groups = (uint32_t)tl_ceil_div(p.rows, 128) * 2; /* whole tiles of either form */
    job.w_row = (uint32_t)p.row_stride(), job.w_channel = (uint32_t)p.channel_stride();
    job.segments = tl_fastdiv((uint64_t)segments);
    job.target_elements = (uint64_t)(p.batch * p.rows) * job.arrays.target_size;
    uint32_t steps = 0;
    for (int i = 0; i < n; steps += job.phase[i++].steps) {
        job.phase[i] = phase_of(gathers[i], p.batch, channel_blocks);
        job.phase[i].first_step = steps;
    }
    tl_scratch<float> packed(ctx);
    TL_TRY(packed.allocate((int64_t)(Large::A_GROUP / 4) * steps * job.row_groups));
    job.packed = packed;
    TL_TRY(pack(ctx, job, (uint32_t)p.s.taps));
    const bool fits = job.target_elements * (uint64_t)segments <= (uint64_t)MAX_SCRATCH;
    Plan best = {};
    for (const Form *form : {&LARGE, &LOW, &NARROW, &SMALL}) {
        const Plan plan = plan_of(*form, tiles_of(*form, gathers, n, p.batch, p.rows), segments, fits, sms);
        if (!best.form || plan.cost < best.cost) best = plan;
    }
    return run(ctx, job, best);
}
