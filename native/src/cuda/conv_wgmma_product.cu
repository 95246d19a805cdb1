/* Forward and data gradient of a convolution by wgmma (conv_wgmma.cuh): target (rows, positions) = w (rows, K)·gathered
 * source (K, positions), positions numbered through the whole batch, one product per phase of a spread
 * (conv_geometry.h).
 *
 * K goes by in blocks of STEP channels, tap after tap within a block, so that a step has one tap: whether a position
 * has it is one test per step, what it reads are STEP elements a channel apart, and all taps of a block of channels
 * read nearly the same bytes soon after one another.
 *
 *   pack_kernel     the weights in the order of wgmma's fragments, NaN for one that does not split, which makes every
 *                   result it has a part in not finite
 *   product_kernel  a thread of a producing group gathers one position of every 128 columns of a stage, so that a warp
 *                   reads 32 neighbouring positions; the packed weights of 64 rows of a stage are one bulk copy
 *
 * Order of additions: the steps' parts in order, the bias last. The batch has no part in it, only in whether these
 * kernels or those of conv_product.cu serve, which depends on how well the tiles fill the device. */
#include <algorithm>

#include "conv_wgmma.cuh"

using namespace tl_conv_wgmma;

namespace {

constexpr int PHASES = 8; /* 2 x 2 x 2 strides */
/* Columns of K that cover the error of a part's cut-off sums, as for products of matrices (linalg_wgmma.cu). */
constexpr int64_t TENSOR_LEAST = 64;

/* One phase on the device: position q of its image is (j0, j1, j2), reads axis d of the source at j·step + base +
 * tap·tap_step, and is the target's element Σ (j·to_step + to_base)·to_stride. */
struct Phase {
    tl_fastdiv positions, count1, count2, taps, taps1, taps2;
    int32_t base[AXES], tap_step;
    uint32_t to_base, to_step[AXES]; /* to_stride is part of both */
    uint32_t first, columns;         /* first tile; positions of the batch */
    uint32_t steps;
    uint32_t kernel_base, kernel_step[AXES]; /* the kernel's element of a tap, with its strides */
    float *packed;                           /* (64 rows, step, q, thread, element of a fragment) */
};

struct Job {
    const float *source, *w, *bias;
    float *target;
    uint32_t channels, rows, source_size, target_size, channel_blocks, row_tiles, row_groups, tiles, phases;
    uint32_t w_row, w_channel; /* strides of w */
    int32_t step[AXES], extent[AXES];
    uint32_t stride[AXES]; /* of the source */
    Phase phase[PHASES];
};

/* blockIdx: block of channels, 64 rows, phase; 512 threads are (q, thread of the group). */
__global__ void __launch_bounds__(512) pack_kernel(const __grid_constant__ Job job)
{
    const Phase &phase = job.phase[blockIdx.z];
    const uint32_t thread = threadIdx.x % 128, q = threadIdx.x / 128, taps = phase.taps.divisor;
    const uint32_t row0 = blockIdx.y * 64 + thread / 32 * 16 + thread % 32 / 4;
    const uint32_t channel0 = blockIdx.x * STEP + 8 * q + thread % 4;
    float4 *to = reinterpret_cast<float4 *>(phase.packed) + (uint64_t)(blockIdx.y * phase.steps) * 512 + threadIdx.x;
    to += (uint64_t)(blockIdx.x * taps) * 512;
#pragma unroll 2
    for (uint32_t t = 0; t < taps; t++) {
        uint32_t t0, t1, t2, kernel = phase.kernel_base;
        t0 = phase.taps1.divmod(phase.taps2.divmod(t, &t2), &t1);
        kernel += t0 * phase.kernel_step[0] + t1 * phase.kernel_step[1] + t2 * phase.kernel_step[2];
        float part[4];
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const uint32_t row = row0 + e % 2 * 8, channel = channel0 + e / 2 * 4;
            const bool real = row < job.rows && channel < job.channels;
            part[e] = real ? job.w[row * job.w_row + channel * job.w_channel + kernel] : 0.0f;
            if (tl_split_unsafe(part[e]))
                part[e] = TL_NAN;
        }
        to[(uint64_t)t * 512] = make_float4(part[0], part[1], part[2], part[3]);
    }
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* Tiles whose targets are kept: the producers fill at most STAGES stages of a later tile while one is being stored, and
 * a tile has at least two. */
constexpr int TARGETS = 4;

/* Where a tile lies. */
struct Place {
    uint32_t phase, row_tile, column0;

    __device__ __forceinline__ Place(const Job &job, uint32_t tile, uint32_t columns)
    {
        phase = 0;
        while (phase + 1 < job.phases && tile >= job.phase[phase + 1].first)
            phase++;
        const uint32_t local = tile - job.phase[phase].first, column = local / job.row_tiles;
        row_tile = local - column * job.row_tiles;
        column0 = column * columns;
    }
};

/* A position: coordinates with tap 0, what they and the image add to the source index (modulo 2^32), and the target
 * index in row 0. One past the columns is outside with every tap. */
struct Position {
    int32_t c[AXES];
    uint32_t source, target;

    __device__ __forceinline__ void find(const Job &job, const Phase &phase, uint32_t q)
    {
        uint32_t at, j[AXES];
        const uint32_t image = phase.positions.divmod(q, &at);
        j[0] = phase.count1.divmod(phase.count2.divmod(at, &j[2]), &j[1]);
        source = image * job.channels * job.source_size;
        target = image * job.rows * job.target_size + phase.to_base;
#pragma unroll
        for (int d = 0; d < AXES; d++) {
            c[d] = (int32_t)j[d] * job.step[d] + phase.base[d];
            source += (uint32_t)c[d] * job.stride[d];
            target += j[d] * phase.to_step[d];
        }
        if (q >= phase.columns)
            c[0] = INT32_MIN / 2;
    }
};

/* A tap: what it adds to coordinates and to a source index. */
struct Tap {
    int32_t d[AXES];
    uint32_t source;

    __device__ __forceinline__ Tap(const Job &job, const Phase &phase, uint32_t t)
    {
        uint32_t t0, t1, t2;
        t0 = phase.taps1.divmod(phase.taps2.divmod(t, &t2), &t1);
        d[0] = (int32_t)t0 * phase.tap_step;
        d[1] = (int32_t)t1 * phase.tap_step;
        d[2] = (int32_t)t2 * phase.tap_step;
        source = (uint32_t)d[0] * job.stride[0] + (uint32_t)d[1] * job.stride[1] + (uint32_t)d[2] * job.stride[2];
    }
    __device__ __forceinline__ bool inside(const Job &job, const Position &p) const
    {
        return (uint32_t)(p.c[0] + d[0]) < (uint32_t)job.extent[0] &&
               (uint32_t)(p.c[1] + d[1]) < (uint32_t)job.extent[1] &&
               (uint32_t)(p.c[2] + d[2]) < (uint32_t)job.extent[2];
    }
};

template <class T> struct ProductLoader {
    static constexpr int COPIES = T::COLUMNS / GROUP;
    static_assert(T::COLUMNS % GROUP == 0, "a thread has whole columns");

    const Job &job;
    uint32_t (*targets)[T::COLUMNS];
    const int thread;
    Position at[COPIES];
    const Phase *phase;
    const float *weights;
    uint32_t *kept; /* where this tile's targets go */

    __device__ __forceinline__ ProductLoader(const Job &job, uint32_t (*targets)[T::COLUMNS])
        : job(job), targets(targets), thread((int)threadIdx.x % GROUP)
    {
    }
    __device__ __forceinline__ int steps(uint32_t tile) const
    {
        return (int)job.phase[Place(job, tile, T::COLUMNS).phase].steps;
    }
    __device__ __forceinline__ void open(uint32_t tile, uint32_t n)
    {
        const Place place(job, tile, T::COLUMNS);
        phase = &job.phase[place.phase];
        weights = phase->packed + (uint64_t)(place.row_tile * T::WM * phase->steps) * (T::A_GROUP / 4);
        kept = targets[n % TARGETS];
#pragma unroll
        for (int u = 0; u < COPIES; u++)
            at[u].find(job, *phase, place.column0 + (uint32_t)(thread + u * GROUP));
    }
    /* The channels of one position; WHOLE: all STEP of them exist. */
    template <bool WHOLE>
    __device__ __forceinline__ void read(float (&held)[STEP], const float *from, bool inside, int left) const
    {
#pragma unroll
        for (int k = 0; k < STEP; k++) {
            const char *p = reinterpret_cast<const char *>(from) + (uint64_t)job.source_size * (4u * k);
            held[k] = inside && (WHOLE || k < left) ? __ldg(reinterpret_cast<const float *>(p)) : 0.0f;
        }
    }
    /* The stage is empty: its weights may come, and a tile's first step brings the targets. */
    __device__ __forceinline__ void prepare(int s, char *to, uint32_t full) const
    {
        if (thread == 0) {
            barrier_expect(full, T::WM * T::A_GROUP);
#pragma unroll
            for (int h = 0; h < T::WM; h++)
                bulk_copy(shared_address(to) + h * T::A_GROUP,
                          weights + (uint64_t)(h * phase->steps + (uint32_t)s) * (T::A_GROUP / 4), T::A_GROUP, full);
        }
        if (s == 0)
#pragma unroll
            for (int u = 0; u < COPIES; u++)
                kept[thread + u * GROUP] = at[u].target;
    }
    __device__ __forceinline__ void fill(int s, char *to, uint32_t empty, uint32_t parity, uint32_t full, Guard &guard)
    {
        const uint32_t block = phase->taps.div((uint32_t)s);
        const Tap tap(job, *phase, (uint32_t)s - block * phase->taps.divisor);
        const int left = (int)(job.channels - block * STEP);
        const uint32_t offset = tap.source + block * STEP * job.source_size;
#pragma unroll
        for (int u = 0; u < COPIES; u++) {
            float held[STEP];
            const bool inside = tap.inside(job, at[u]);
            const float *from = job.source + (at[u].source + offset);
            if (left >= STEP)
                read<true>(held, from, inside, left);
            else
                read<false>(held, from, inside, left);
            if (u == 0) {
                barrier_wait(empty, parity);
                prepare(s, to, full);
            }
            char *row = to + T::B_HI + (thread + u * GROUP) * ROW;
            const int swizzle = 16 * (thread % 8);
#pragma unroll
            for (int c = 0; c < STEP / 4; c++) {
                const float4 x = make_float4(held[4 * c], held[4 * c + 1], held[4 * c + 2], held[4 * c + 3]);
                char *hi = row + (swizzle ^ 16 * c);
                store_split(hi, hi + (T::B_LO - T::B_HI), x);
                guard.see(x.x);
                guard.see(x.y);
                guard.see(x.z);
                guard.see(x.w);
            }
        }
    }
};

/* Stores a warp group's 64 rows from row0 on, `left` columns; four lanes fill a sector where positions are neighbours.
 */
template <int BN>
__device__ __forceinline__ void store_rows(const Job &job, const uint32_t *targets, int left, uint32_t row0,
                                           const float (&sum)[BN / 2])
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x % GROUP / 32;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const uint32_t row = row0 + (uint32_t)(16 * warp + 8 * h + lane / 4);
        if (row >= job.rows)
            continue;
        const uint32_t base = row * job.target_size;
        const float bias = job.bias ? job.bias[row] : 0.0f;
#pragma unroll
        for (int j = 0; j < BN / 8; j++) {
            const int column = 8 * j + 2 * (lane % 4);
            if (column >= left)
                continue;
            const uint2 at = *reinterpret_cast<const uint2 *>(targets + column);
            float x = sum[4 * j + 2 * h], y = sum[4 * j + 2 * h + 1];
            if (job.bias)
                x += bias, y += bias;
            float *p = job.target + (base + at.x);
            const bool second = column + 1 < left;
            if (second && at.y == at.x + 1 && ((uintptr_t)p & 7) == 0) {
                *reinterpret_cast<float2 *>(p) = make_float2(x, y);
            } else {
                *p = x;
                if (second)
                    job.target[base + at.y] = y;
            }
        }
    }
}

/* The same without tensor cores: thread (ty, tx) owns rows ty + 8r and columns tx + 16c, one column after the other. */
template <int BN>
__device__ __forceinline__ void plain_rows(const Job &job, const Phase &phase, uint32_t row0, uint32_t column0)
{
    const uint32_t tx = threadIdx.x % 16, ty = threadIdx.x % GROUP / 16;
#pragma unroll 1
    for (uint32_t q = column0 + tx; q < column0 + BN && q < phase.columns; q += 16) {
        Position at;
        at.find(job, phase, q);
        float sum[8] = {};
#pragma unroll 1
        for (uint32_t block = 0; block < job.channels; block += STEP)
#pragma unroll 1
            for (uint32_t t = 0; t < phase.taps.divisor; t++) {
                const Tap tap(job, phase, t);
                const bool has = tap.inside(job, at);
                uint32_t t0, t1, t2;
                t0 = phase.taps1.divmod(phase.taps2.divmod(t, &t2), &t1);
                const uint32_t kernel = phase.kernel_base + t0 * phase.kernel_step[0] + t1 * phase.kernel_step[1] +
                                        t2 * phase.kernel_step[2];
                const uint32_t last = min(block + STEP, job.channels);
#pragma unroll 1
                for (uint32_t channel = block; channel < last; channel++) {
                    const float v = has ? job.source[at.source + tap.source + channel * job.source_size] : 0.0f;
#pragma unroll
                    for (int r = 0; r < 8; r++) {
                        const uint32_t row = min(row0 + ty + 8 * r, job.rows - 1);
                        sum[r] = fmaf(job.w[row * job.w_row + channel * job.w_channel + kernel], v, sum[r]);
                    }
                }
            }
#pragma unroll
        for (int r = 0; r < 8; r++) {
            const uint32_t row = row0 + ty + 8 * r;
            if (row < job.rows)
                job.target[row * job.target_size + at.target] = job.bias ? sum[r] + job.bias[row] : sum[r];
        }
    }
}

#endif

/* T::BYTES of dynamic shared memory, at most one block per tile. */
template <class T> __global__ void __launch_bounds__(THREADS, 1) product_kernel(const __grid_constant__ Job job)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ char dynamic[];
    __shared__ uint64_t barriers[2][T::STAGES];
    __shared__ alignas(4) uint8_t unsafe[T::STAGES][WARPS];
    __shared__ alignas(8) uint32_t targets[TARGETS][T::COLUMNS];
    static_assert(T::STAGES <= 2 * (TARGETS - 1), "a tile's targets are stored before they are replaced");
    const Stages<T> stages = open_stages<T, 1>(dynamic, barriers, unsafe);
    const int group = __shfl_sync(0xffffffffu, (int)threadIdx.x / GROUP, 0);
    if (threadIdx.x >= GROUPS * GROUP) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(PRODUCER_REGISTERS));
        ProductLoader<T> loader(job, targets);
        produce(stages, loader, job.tiles, group - GROUPS);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(CONSUMER_REGISTERS));
        const int column = T::WM == 2 ? 0 : group * T::BN;
        consume<T, true>(
            stages, job.tiles, group,
            [&](uint32_t tile) { return (int)job.phase[Place(job, tile, T::COLUMNS).phase].steps; },
            [&](uint32_t tile, uint32_t n, bool redo, const float(&sum)[T::BN / 2]) {
                const Place place(job, tile, T::COLUMNS);
                const Phase &phase = job.phase[place.phase];
                const uint32_t row0 = (place.row_tile * T::WM + (T::WM == 2 ? group : 0)) * 64;
                const uint32_t column0 = place.column0 + column;
                if (redo)
                    plain_rows<T::BN>(job, phase, row0, column0);
                else
                    store_rows<T::BN>(job, targets[n % TARGETS] + column,
                                      phase.columns > column0 ? (int)min(phase.columns - column0, (uint32_t)T::BN) : 0,
                                      row0, sum);
            });
    }
#endif
}

using Large = Tile<2, 128>; /* 128 x 128 */
using Low = Tile<1, 128>;   /* 64 x 256 */

template <class T> bool prepare_kernel() { return tl_wgmma_prepare(product_kernel<T>, T::BYTES); }

bool runs(tl_context *ctx)
{
    return tl_wgmma_runs(ctx, [] { return prepare_kernel<Large>() && prepare_kernel<Low>(); });
}

/* The phases that have positions, those with the most taps first; how many. */
int phases_of(const tl_conv_shape &s, bool spread, tl_conv_gather *gathers)
{
    const int64_t all = spread ? tl_conv_phases(&s) : 1;
    int n = 0;
    for (int64_t p = 0; p < all; p++) {
        gathers[n] = spread ? tl_conv_spread(&s, p) : tl_conv_correlate(&s);
        if (gathers[n].positions > 0)
            n++;
    }
    std::stable_sort(gathers, gathers + n, [](const tl_conv_gather &a, const tl_conv_gather &b) {
        return a.taps_size > b.taps_size;
    });
    return n;
}

template <class T>
int64_t tiles_of(const tl_conv_gather *gathers, int phases, int64_t batch, int64_t rows)
{
    int64_t tiles = 0;
    for (int p = 0; p < phases; p++)
        tiles += tl_ceil_div(batch * gathers[p].positions, T::COLUMNS) * tl_ceil_div(rows, T::ROWS);
    return tiles;
}

template <class T> int32_t launch(tl_context *ctx, Job &job, const tl_conv_gather *gathers, int64_t batch)
{
    job.row_tiles = (uint32_t)tl_ceil_div(job.rows, T::ROWS);
    uint32_t tiles = 0;
    for (uint32_t p = 0; p < job.phases; p++) {
        job.phase[p].first = tiles;
        tiles += (uint32_t)(tl_ceil_div(batch * gathers[p].positions, T::COLUMNS) * job.row_tiles);
    }
    job.tiles = tiles;
    product_kernel<T><<<tl_grid(tiles, 1, tl_cuda_sms(ctx)), THREADS, T::BYTES, tl_cuda_stream(ctx)>>>(job);
    return tl_cuda_launched(ctx, "conv_wgmma_product");
}

void set_phase(const tl_conv_gather &g, int64_t batch, uint32_t channel_blocks, Phase *phase)
{
    const int skip = AXES - g.rank;
    int64_t count[AXES] = {1, 1, 1}, taps[AXES] = {1, 1, 1}, to = 1, kernel = 1;
    for (int d = 0; d < skip; d++)
        phase->base[d] = 0, phase->to_step[d] = phase->kernel_step[d] = 0;
    phase->to_base = phase->kernel_base = 0;
    for (int d = g.rank - 1; d >= 0; d--) {
        count[skip + d] = g.count[d];
        taps[skip + d] = g.taps[d];
        phase->base[skip + d] = (int32_t)g.base[d];
        phase->to_base += (uint32_t)(g.to_base[d] * to);
        phase->to_step[skip + d] = (uint32_t)(g.to_step[d] * to);
        phase->kernel_base += (uint32_t)(g.kernel_base[d] * kernel);
        phase->kernel_step[skip + d] = (uint32_t)(g.kernel_step[d] * kernel);
        to *= g.target[d];
        kernel *= g.kernel[d];
    }
    phase->tap_step = g.rank > 0 ? (int32_t)g.tap_step[0] : 1;
    phase->positions = tl_fastdiv(g.positions);
    phase->count1 = tl_fastdiv(count[1]);
    phase->count2 = tl_fastdiv(count[2]);
    phase->taps = tl_fastdiv(g.taps_size);
    phase->taps1 = tl_fastdiv(taps[1]);
    phase->taps2 = tl_fastdiv(taps[2]);
    phase->columns = (uint32_t)(batch * g.positions);
    phase->steps = channel_blocks * (uint32_t)g.taps_size;
}

} // namespace

/* The tiles must be at least three quarters full and fill half of the device. */
bool tl_conv_wgmma_serves_product(tl_context *ctx, const tl_conv_shape &s, bool spread, int64_t batch, int64_t channels,
                                  int64_t rows)
{
    if (batch == 0 || rows == 0 || channels == 0 || !small_enough(s) || (spread && tl_conv_has_gaps(&s)) ||
        (spread && tl_conv_phases(&s) > PHASES))
        return false;
    tl_conv_gather gathers[PHASES];
    const int phases = phases_of(s, spread, gathers);
    const int64_t blocks = tl_ceil_div(channels, STEP), groups = tl_ceil_div(rows, 64);
    if (phases == 0 || 4 * channels < 3 * blocks * STEP || 4 * rows < 3 * groups * 64)
        return false;
    for (int p = 0; p < phases; p++)
        if (channels * gathers[p].taps_size < TENSOR_LEAST || blocks * gathers[p].taps_size >= INT32_MAX / 512 ||
            groups * blocks * gathers[p].taps_size >= INT32_MAX || batch * gathers[p].positions > INT32_MAX)
            return false;
    const int64_t tiles = tiles_of<Low>(gathers, phases, batch, rows);
    return 2 * tiles >= tl_cuda_sms(ctx) && tiles < INT32_MAX && runs(ctx);
}

int32_t tl_conv_wgmma_product(tl_context *ctx, const tl_conv_shape &s, bool spread, int64_t batch, int64_t channels,
                              int64_t rows, const float *source, const float *w, const float *bias, float *target)
{
    tl_conv_gather gathers[PHASES];
    Job job = {};
    job.phases = (uint32_t)phases_of(s, spread, gathers);
    job.source = source, job.w = w, job.bias = bias, job.target = target;
    job.channels = (uint32_t)channels, job.rows = (uint32_t)rows;
    job.source_size = (uint32_t)gathers[0].source_size, job.target_size = (uint32_t)gathers[0].target_size;
    job.channel_blocks = (uint32_t)tl_ceil_div(channels, STEP);
    job.row_groups = (uint32_t)tl_ceil_div(rows, 128) * 2; /* whole tiles of either form */
    job.w_row = (uint32_t)(spread ? s.taps : channels * s.taps);
    job.w_channel = (uint32_t)(spread ? rows * s.taps : s.taps);
    const int skip = AXES - s.rank;
    for (int d = 0; d < skip; d++)
        job.step[d] = 0, job.extent[d] = 1, job.stride[d] = 0;
    int64_t stride = 1, steps = 0;
    for (int d = s.rank - 1; d >= 0; d--) {
        job.step[skip + d] = (int32_t)gathers[0].step[d];
        job.extent[skip + d] = (int32_t)gathers[0].source[d];
        job.stride[skip + d] = (uint32_t)stride;
        stride *= gathers[0].source[d];
    }
    for (uint32_t p = 0; p < job.phases; p++) {
        set_phase(gathers[p], batch, job.channel_blocks, &job.phase[p]);
        steps += job.phase[p].steps;
    }
    void *packed;
    TL_TRY(tl_pool_alloc(ctx, (size_t)Large::A_GROUP * (size_t)(steps * job.row_groups), &packed));
    float *next = (float *)packed;
    for (uint32_t p = 0; p < job.phases; p++) {
        job.phase[p].packed = next;
        next += (size_t)(Large::A_GROUP / 4) * job.phase[p].steps * job.row_groups;
    }
    pack_kernel<<<dim3(job.channel_blocks, job.row_groups, job.phases), 512, 0, tl_cuda_stream(ctx)>>>(job);
    int32_t status = tl_cuda_launched(ctx, "conv_pack");
    if (!status) {
        /* Time of a launch in fifths of a large tile's; a low one takes seven (measured on an H200). */
        const int64_t sms = tl_cuda_sms(ctx), phases = job.phases;
        const int64_t large = tl_ceil_div(tiles_of<Large>(gathers, (int)phases, batch, rows), sms);
        const int64_t low = tl_ceil_div(tiles_of<Low>(gathers, (int)phases, batch, rows), sms);
        status = 5 * large <= 7 * low ? launch<Large>(ctx, job, gathers, batch) : launch<Low>(ctx, job, gathers, batch);
    }
    tl_pool_free(ctx, packed);
    return status;
}
