/* Forward and data gradient of a convolution by wgmma (conv/wgmma.cuh): target (rows, positions) = w (rows, K)·gathered
 * source (K, positions), positions numbered through the whole batch, one product per phase of a spread
 * (conv_geometry.h).
 *
 * K goes by in blocks of STEP channels, tap after tap within a block, so that a step has one tap: whether a position
 * has it is one test per step, what it reads are STEP elements a channel apart, and all taps of a block of channels
 * read nearly the same bytes soon after one another.
 *
 *   pack            (conv/wgmma_pack.cu) the weights in the order of wgmma's fragments
 *   product_kernel  a thread of a producing group gathers one position of every 128 columns of a stage, or half the
 *                   channels of one of 64, so that a warp reads 32 neighbouring positions; the packed weights of 64 rows
 *                   of a stage are one bulk copy
 *   add             adds the segments of K where different thread blocks have computed them
 *
 * Order of additions: the steps' parts in order within a segment of K, the segments' sums in order, the bias last.
 * Segments, and whether these kernels or those of conv/mma_product.cu serve, follow from the shape of one image. Who adds
 * the segments (the thread block of a tile, in scratch of its own, or the kernel above where the tiles alone leave
 * multiprocessors idle) changes nothing in it, nor does the tile. The batch has no part in the order; but where a tile
 * is computed again (conv/wgmma.cuh), all images that share it get the bits of fused multiply-adds. */
#include <algorithm>

#include "cuda/conv/wgmma.cuh"

using namespace tl_conv_wgmma;

namespace {

/* Steps that a segment has at least, and in phases beside a longer one, of images of so few tiles (an eighth of a device), a piece. */
constexpr int64_t MIN_SEGMENT = 9, MIN_PIECE = 2, FEW_TILES = 8;
constexpr int64_t MAX_SCRATCH = INT64_C(1) << 26; /* floats of separately kept segments: 256 MiB */

struct Job : Weights {
    Arrays arrays;
    const float *source, *bias;
    float *target;
    float *partial; /* (segment, the target's elements), or NULL */
    float *total;   /* (thread block, warp group, float4 of a thread, thread of the group, 4), or NULL */
    uint64_t target_elements;
    tl_fastdiv segments;
    uint32_t pieces, run; /* segments of all tiles; neighbouring ones that a thread block gets at a time */
    uint32_t row_tiles;
};

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

/* Where a tile's sums go, or a piece's that are kept separately, and what is added to them. */
struct Sink {
    float *to;
    const float *bias;

    __device__ __forceinline__ Sink(const Job &job, uint32_t segment)
        : to(job.partial ? job.partial + segment * job.target_elements : job.target),
          bias(job.partial ? nullptr : job.bias)
    {}
};

/* A tap: what it adds to coordinates and to a source index. */
struct Tap {
    int32_t d[AXES];
    uint32_t source;

    __device__ __forceinline__ Tap(const Job &job, const Phase &phase, const TapPlace &place)
    {
        TL_UNROLL_FOR (int i = 0; i < AXES; i++)
            d[i] = (int32_t)place.at[i] * phase.tap_step[i];
        source = (uint32_t)d[0] * job.arrays.stride[0] + (uint32_t)d[1] * job.arrays.stride[1] +
                 (uint32_t)d[2] * job.arrays.stride[2];
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
        weights = phase->packed + (uint64_t)(place.row_tile * T::WM * phase->steps) * (T::A_GROUP / 4);
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
__device__ __forceinline__ void store_rows(const Job &job, const Sink &sink, const uint32_t *targets, int left,
                                           uint32_t row0, const float (&sum)[BN / 2])
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x % GROUP / 32;
    TL_UNROLL_FOR (int h = 0; h < 2; h++) {
        const uint32_t row = row0 + (uint32_t)(16 * warp + 8 * h + lane / 4);
        if (row >= job.arrays.rows) continue;
        const uint32_t base = row * job.arrays.target_size;
        const float bias = sink.bias ? sink.bias[row] : 0.0f;
        TL_UNROLL_FOR (int j = 0; j < BN / 8; j++) {
            const int column = 8 * j + 2 * (lane % 4);
            if (column >= left) continue;
            const uint2 at = *reinterpret_cast<const uint2 *>(targets + column);
            float x = sum[4 * j + 2 * h], y = sum[4 * j + 2 * h + 1];
            if (sink.bias) x += bias, y += bias;
            float *p = sink.to + (base + at.x);
            const bool second = column + 1 < left;
            if (second && at.y == at.x + 1 && ((uintptr_t)p & 7) == 0) {
                *reinterpret_cast<float2 *>(p) = make_float2(x, y);
            } else {
                *p = x;
                if (second) sink.to[base + at.y] = y;
            }
        }
    }
}

/* A warp group's running total of a tile whose segments one thread block adds: float4 number j of thread t of the
 * group, at [j·GROUP + t], is sum[4j .. 4j + 3], so that a warp's reads and writes are whole lines, and all reads of a
 * thread are on their way before one is waited for. A thread reads and writes its own places; only plain_rows reads
 * and writes those of others, after group_any of the same piece (consume in device/wgmma_pipeline.cuh) and before group_sync or
 * that of the next. Rows and columns that do not exist hold anything. */
template <int BN> struct Total {
    float *group; /* NULL: pieces are tiles, or kept separately */

    __device__ __forceinline__ Total(const Job &job, int index)
        : group(job.total ? job.total + (blockIdx.x * GROUPS + (uint32_t)index) * (64u * BN) : nullptr)
    {}
    __device__ __forceinline__ float4 *own() const { return reinterpret_cast<float4 *>(group) + threadIdx.x % GROUP; }

    __device__ __forceinline__ void read(float (&sum)[BN / 2]) const
    {
        const float4 *from = own();
        TL_UNROLL_FOR (int j = 0; j < BN / 8; j++) {
            const float4 x = from[j * GROUP];
            sum[4 * j] = x.x, sum[4 * j + 1] = x.y, sum[4 * j + 2] = x.z, sum[4 * j + 3] = x.w;
        }
    }
    __device__ __forceinline__ void write(const float (&sum)[BN / 2]) const
    {
        float4 *to = own();
        TL_UNROLL_FOR (int j = 0; j < BN / 8; j++)
            to[j * GROUP] = make_float4(sum[4 * j], sum[4 * j + 1], sum[4 * j + 2], sum[4 * j + 3]);
    }
    /* sum = total + sum */
    __device__ __forceinline__ void add_to(float (&sum)[BN / 2]) const
    {
        float old[BN / 2];
        read(old);
        TL_UNROLL_FOR (int r = 0; r < BN / 2; r++)
            sum[r] = old[r] + sum[r];
    }
    /* The place of row ty + 8r and a column: with lane 4·ty + column % 8 / 2 of warp r / 2 (wgmma). */
    __device__ __forceinline__ float *place(uint32_t ty, uint32_t r, uint32_t column) const
    {
        const uint32_t thread = 32 * (r / 2) + 4 * ty + column % 8 / 2;
        return group + 4 * (column / 8 * GROUP + thread) + 2 * (r % 2) + column % 2;
    }
};

/* The same without tensor cores, into the target or, where there is one, the total: thread (ty, tx) owns rows ty + 8r
 * and columns tx + 16c, one column after the other. */
template <int BN>
__device__ __forceinline__ void plain_rows(const Job &job, const Sink &sink, const Total<BN> &total, const Place &place,
                                           uint32_t row0, uint32_t column0)
{
    const Phase &phase = job.phase[place.phase];
    const uint32_t tx = threadIdx.x % 16, ty = threadIdx.x % GROUP / 16;
    const uint32_t begin = place.first<0>(job), end = place.first<1>(job);
#pragma unroll 1
    for (uint32_t q = column0 + tx; q < column0 + BN && q < phase.columns; q += 16) {
        Position at;
        at.find(job.arrays, phase, q);
        float sum[8] = {};
#pragma unroll 1
        for (uint32_t step = begin; step < end; step++) {
            uint32_t t;
            const uint32_t block = phase.taps.divmod(step, &t) * STEP, last = min(block + STEP, job.arrays.channels);
            const TapPlace tap_place(phase, t);
            const Tap tap(job, phase, tap_place);
            const bool has = tap.inside(job, at);
            const uint32_t kernel = tap_place.weight(phase);
#pragma unroll 1
            for (uint32_t channel = block; channel < last; channel++) {
                const float v = has ? job.source[at.source + tap.source + channel * job.arrays.source_size] : 0.0f;
                TL_UNROLL_FOR (int r = 0; r < 8; r++) {
                    const uint32_t row = min(row0 + ty + 8 * r, job.arrays.rows - 1);
                    sum[r] = fmaf(job.w[row * job.w_row + channel * job.w_channel + kernel], v, sum[r]);
                }
            }
        }
        TL_UNROLL_FOR (int r = 0; r < 8; r++) {
            const uint32_t row = row0 + ty + 8 * r;
            if (row >= job.arrays.rows) continue;
            if (total.group) {
                float *const p = total.place(ty, (uint32_t)r, q - column0);
                *p = place.segment > 0 ? *p + sum[r] : sum[r];
            } else {
                sink.to[row * job.arrays.target_size + at.target] = sink.bias ? sum[r] + sink.bias[row] : sum[r];
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
                const Sink sink(job, place.segment);
                const Total<T::BN> total(job, group);
                const bool last = place.segment + 1 == job.segments.divisor;
                const uint32_t row0 = (place.row_tile * T::WM + (T::WM == 2 ? group : 0)) * 64;
                const uint32_t column0 = place.column0 + column, columns = job.phase[place.phase].columns;
                if (redo) {
                    plain_rows<T::BN>(job, sink, total, place, row0, column0);
                    if (!total.group || !last) return;
                    group_sync(group);
                    total.read(sum);
                } else if (total.group) {
                    if (place.segment > 0) total.add_to(sum);
                    if (!last) {
                        total.write(sum);
                        return;
                    }
                }
                store_rows<T::BN>(job, sink, targets[n % TARGETS] + column,
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

template <class T> bool prepare_kernel() { return tl_wgmma_prepare(product_kernel<T>, T::BYTES); }

/* The phases that have positions, those with the most taps first; how many. */
int phases_of(const tl_conv_shape &s, bool spread, tl_conv_gather *gathers)
{
    const int64_t all = spread ? tl_conv_phases(&s) : 1;
    int n = 0;
    for (int64_t p = 0; p < all; p++) {
        gathers[n] = spread ? tl_conv_spread(&s, p) : tl_conv_correlate(&s);
        if (gathers[n].positions > 0) n++;
    }
    std::stable_sort(gathers, gathers + n,
                     [](const tl_conv_gather &a, const tl_conv_gather &b) { return a.taps_size > b.taps_size; });
    return n;
}

template <class T> int64_t tiles_of(const tl_conv_gather *gathers, int phases, int64_t batch, int64_t rows)
{
    int64_t tiles = 0;
    for (int p = 0; p < phases; p++)
        tiles += tl_ceil_div(batch * gathers[p].positions, T::COLUMNS) * tl_ceil_div(rows, T::ROWS);
    return tiles;
}

/* Into how many segments K is cut: as many as fill the device with the tiles of one image. The first phase has the most taps, and the
 * tiles that take longest; of few tiles the last one's segments may be short. */
int64_t segments_of(const tl_conv_gather *gathers, int phases, int64_t channel_blocks, int64_t rows, int64_t sms)
{
    const int64_t longest = channel_blocks * gathers[0].taps_size, tiles = tiles_of<Low>(gathers, phases, 1, rows);
    const int64_t shortest = channel_blocks * gathers[phases - 1].taps_size;
    const int64_t piece = tiles <= sms / FEW_TILES ? MIN_PIECE : MIN_SEGMENT;
    return std::max(std::min({sms / tiles, longest / MIN_SEGMENT, shortest / piece}), INT64_C(1));
}

/* The time of a segment of a tile, in fifths of a large one's. A low one takes seven (measured on an H200). The smaller ones have
 * half and a quarter of the large one's products and stores, but all or half of its gathering. */
template <class T> constexpr int64_t FIFTHS = T::COLUMNS == 64 ? 3 : T::COLUMNS == 128 ? 3 + T::WM : 7;
static_assert(FIFTHS<Large> == 5 && FIFTHS<Low> == 7 && FIFTHS<Narrow> == 4 && FIFTHS<Small> == 3, "tiles");

/* A launch with tiles T, and its time. */
template <class T> struct Plan {
    int64_t tiles, cost;
    bool apart; /* the segments of a tile: separately, and added afterwards, which takes as long as two fifths */

    Plan(const tl_conv_gather *gathers, int phases, int64_t batch, int64_t rows, int64_t segments, bool fits,
         int64_t sms)
        : tiles(tiles_of<T>(gathers, phases, batch, rows))
    {
        const int64_t alone = FIFTHS<T> * tl_ceil_div(tiles * segments, sms) + 2;
        cost = FIFTHS<T> * tl_ceil_div(tiles, sms) * segments;
        apart = segments > 1 && fits && tiles <= sms && alone < cost;
        if (apart) cost = alone;
    }
    int32_t launch(tl_context *ctx, Job &job, const tl_conv_gather *gathers, int64_t batch) const
    {
        job.row_tiles = (uint32_t)tl_ceil_div(job.arrays.rows, T::ROWS);
        uint32_t first = 0;
        for (uint32_t p = 0; p < job.phases; p++) {
            job.phase[p].first = first;
            first += (uint32_t)(tl_ceil_div(batch * gathers[p].positions, T::COLUMNS) * job.row_tiles);
        }
        job.pieces = (uint32_t)tiles * job.segments.divisor;
        job.run = apart ? 1 : job.segments.divisor;
        const unsigned grid = tl_grid(job.pieces / job.run, 1, tl_cuda_sms(ctx));
        tl_scratch<float> scratch(ctx);
        if (job.segments.divisor > 1) {
            TL_TRY(scratch.allocate(apart ? (int64_t)(job.segments.divisor * job.target_elements)
                                          : (int64_t)grid * (T::ROWS * T::COLUMNS)));
            (apart ? job.partial : job.total) = scratch;
        }
        TL_TRY(tl_launch_dynamic(ctx, "conv_wgmma_product", product_kernel<T>, grid, THREADS, T::BYTES, job));
        if (!apart) return TORCHLEAN_OK;
        const int64_t elements = (int64_t)job.target_elements;
        return tl_launch_ahead(ctx, "add", add_kernel, tl_grid(elements, 256), 256, 0, (const float *)job.partial,
                               (int64_t)job.segments.divisor, elements, job.bias,
                               tl_fastdiv((uint64_t)job.arrays.target_size), tl_fastdiv((uint64_t)job.arrays.rows),
                               job.target);
    }
};

} // namespace

bool tl_conv_wgmma_has_product(tl_context *ctx)
{
    return tl_wgmma_runs(ctx, [] {
        return prepare_kernel<Large>() && prepare_kernel<Low>() && prepare_kernel<Narrow>() && prepare_kernel<Small>();
    });
}

int32_t tl_conv_wgmma_product(tl_context *ctx, const tl_conv_shape &s, bool spread, int64_t batch, int64_t channels,
                              int64_t rows, const float *source, const float *w, const float *bias, float *target)
{
    tl_conv_gather gathers[TL_CONV_MAX_PHASES];
    Job job = {};
    const int n = phases_of(s, spread, gathers);
    const int64_t channel_blocks = tl_ceil_div(channels, STEP), sms = tl_cuda_sms(ctx);
    const int64_t segments = segments_of(gathers, n, channel_blocks, rows, sms);
    job.arrays = arrays_of(gathers[0], channels, rows);
    job.source = source, job.w = w, job.bias = bias, job.target = target;
    job.phases = (uint32_t)n, job.channel_blocks = (uint32_t)channel_blocks;
    job.row_groups = (uint32_t)tl_ceil_div(rows, 128) * 2; /* whole tiles of either form */
    job.w_row = (uint32_t)(spread ? s.taps : channels * s.taps);
    job.w_channel = (uint32_t)(spread ? rows * s.taps : s.taps);
    job.segments = tl_fastdiv((uint64_t)segments);
    uint32_t steps = 0;
    for (int p = 0; p < n; p++) {
        job.phase[p] = phase_of(gathers[p], batch, channel_blocks);
        steps += job.phase[p].steps;
    }
    tl_scratch<float> packed(ctx);
    TL_TRY(packed.allocate((int64_t)(Large::A_GROUP / 4) * steps * job.row_groups));
    float *next = packed;
    for (int p = 0; p < n; p++) {
        job.phase[p].packed = next;
        next += (size_t)(Large::A_GROUP / 4) * job.phase[p].steps * job.row_groups;
    }
    TL_TRY(tl_conv_wgmma_pack(ctx, job, (uint32_t)rows, (uint32_t)channels, (uint32_t)s.taps));
    job.target_elements = (uint64_t)(batch * rows) * job.arrays.target_size;
    const bool fits = job.target_elements * (uint64_t)segments <= (uint64_t)MAX_SCRATCH;
    const Plan<Large> large(gathers, n, batch, rows, segments, fits, sms);
    const Plan<Low> low(gathers, n, batch, rows, segments, fits, sms);
    const Plan<Narrow> narrow(gathers, n, batch, rows, segments, fits, sms);
    const Plan<Small> small(gathers, n, batch, rows, segments, fits, sms);
    const int64_t least = std::min({large.cost, low.cost, narrow.cost, small.cost});
    return large.cost == least    ? large.launch(ctx, job, gathers, batch)
           : low.cost == least    ? low.launch(ctx, job, gathers, batch)
           : narrow.cost == least ? narrow.launch(ctx, job, gathers, batch)
                                  : small.launch(ctx, job, gathers, batch);
}
