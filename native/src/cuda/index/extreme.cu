/* Places of the largest and smallest elements on CUDA, argmax and argmin. formula/order.h gives every element of a row a rank of
 * its own, so the largest one is the same whatever looks at which part of the row, and integer atomics may gather it. */
#include <algorithm>

#include "cuda/device/division.cuh"
#include "cuda/device/instructions.cuh"
#include "cuda/runtime/launch.cuh"
#include "formula/exact.h"
#include "formula/order.h"
#include "generated/index.h"

namespace {

typedef unsigned long long rank_t;

constexpr int THREADS = 256;
constexpr int64_t SHORT_SLICE = 1024;                     /* elements for lanes of one warp */
constexpr int64_t SHORT_COLUMN = 32;                      /* for one thread */
constexpr int64_t NARROW = 16;                            /* columns of which one thread each would read far apart */
constexpr uint32_t MOST_COLUMNS = 32;                     /* of a block: 128 neighbouring bytes */
constexpr int AT_ONCE = 8;                                /* elements that a thread loads at once */
constexpr int64_t BATCH = 2 * (int64_t)THREADS * AT_ONCE; /* elements of a row that a block loads in two turns */
constexpr int64_t ENOUGH = 64, LEAST = 16;  /* elements of a thread that are worth parts of the axis; of a part */
constexpr int64_t LARGE = (int64_t)1 << 24; /* elements that take several blocks' time anyway */
constexpr int64_t WAVE = 8, WAVES = 4; /* blocks that a multiprocessor holds; how often, so that the last are few */
constexpr int64_t MOST_PARTS = 1024;

struct arg_axis {
    const float *x;
    uint32_t *out;
    rank_t *best; /* of every part of every output, where there are several; else NULL */
    int64_t rows, n, inner, part, parts;
    int smallest;
};

/* A thread owns an output. */
__global__ void __launch_bounds__(THREADS) short_columns_kernel(arg_axis a, tl_fastdiv inner)
{
    const int64_t t = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (t >= a.rows) return;
    uint32_t c;
    const int64_t o = inner.divmod((uint32_t)t, &c);
    const float *x = a.x + o * a.n * a.inner + c;
    rank_t best = 0;
    for (int64_t i = 0; i < a.n; i += 8, x += 8 * a.inner) {
        float v[8];
        TL_UNROLL_FOR (int u = 0; u < 8; u++)
            if (i + u < a.n) v[u] = x[u * a.inner];
        TL_UNROLL_FOR (int u = 0; u < 8; u++)
            if (i + u < a.n) best = max(best, (rank_t)tl_rank(v[u], (uint32_t)(i + u), a.smallest, 1));
    }
    a.out[t] = tl_rank_place(best);
}

/* What changes no extreme, and the extreme of two. */
template <bool SMALLEST> constexpr float NEUTRAL = SMALLEST ? TL_INF : -TL_INF;

template <bool SMALLEST> __device__ __forceinline__ float extreme_of(float a, float b)
{
    return SMALLEST ? tl_min(a, b) : tl_max(a, b);
}

/* Lanes that own a slice, 2^lane_bits of a warp: `size` elements, rows of a few columns. The first `used` of the lanes, `deep` whole
 * rows, read it as it lies, so that each stays in its column. */
struct slice_lanes {
    int64_t slices;
    int lane_bits, size, used, deep, reach; /* reach: the power of two that is at least half of deep */
    tl_fastdiv inner;
};

/* A lane takes every deep-th element of a column, N of them loaded at once. */
template <bool SMALLEST, int N> __global__ void __launch_bounds__(THREADS, 5) slices_kernel(arg_axis a, slice_lanes s)
{
    const int lanes = 1 << s.lane_bits, lane = (int)threadIdx.x & (lanes - 1);
    const int64_t slice = ((int64_t)blockIdx.x * THREADS + threadIdx.x) >> s.lane_bits;
    uint32_t column;
    const uint32_t row = s.inner.divmod((uint32_t)lane, &column);
    const int left = slice < s.slices && lane < s.used ? s.size - lane : 0;
    const float *x = a.x + (slice < s.slices ? slice : 0) * s.size + lane;
    uint32_t best = 0, place = 0, i = row; /* the order of a number is above 0 */
    for (int at = 0; at < left; at += N * s.used) {
        const uint32_t step = (uint32_t)s.used;
        float v[N];
        if (left - at > (N - 1) * s.used) {
            TL_UNROLL_FOR (int u = 0; u < N; u++, x += step)
                v[u] = *x;
            TL_UNROLL_FOR (int u = 0; u < N; u++)
                tl_forget_origin(v[u]); /* lest the compiler keep two addresses of each for one load */
        } else {                        /* the last one stands for those behind it */
            TL_UNROLL_FOR (int u = 0; u < N; u++) {
                v[u] = *x;
                x += at + (u + 1) * s.used < left ? step : 0;
            }
        }
        float extreme = v[0];
        TL_UNROLL_FOR (int u = 1; u < N; u++)
            extreme = extreme_of<SMALLEST>(extreme, v[u]);
        const uint32_t order = tl_order_bits(SMALLEST ? -extreme : extreme);
        int first = 0;
        if (extreme == extreme) {
            TL_UNROLL_FOR (int u = N - 1; u >= 0; u--)
                first = v[u] == extreme ? u : first;
        } else {
            TL_UNROLL_FOR (int u = N - 1; u >= 0; u--)
                first = v[u] != v[u] ? u : first;
        }
        place = order > best ? i + (uint32_t)(first * s.deep) : place;
        best = max(order, best);
        i += (uint32_t)(N * s.deep);
    }
    rank_t rank = tl_rank_of(best, place);
    for (int above = s.reach; above > 0; above /= 2) {
        const rank_t other = __shfl_down_sync(~0u, rank, (unsigned)above * s.inner.divisor, lanes);
        if ((int)row + above < s.deep) rank = max(rank, other);
    }
    if (left > 0 && row == 0) a.out[slice * s.inner.divisor + column] = tl_rank_place(rank);
}

/* A thread loads batches of elements and compares the extreme of each with the best so far. Where that stands in its batch is
 * looked up at the end, by those threads alone whose best is the result's and whose batch is the first: elements far apart are
 * sectors of memory of their own, which would be nearly as many as those that are read in order. */
template <bool SMALLEST> struct leader {
    float best = NEUTRAL<SMALLEST>;
    uint32_t batch = 0;

    __device__ __forceinline__ void take(float extreme, uint32_t from)
    {
        const bool leads = SMALLEST ? tl_takes_lead(-extreme, -best) : tl_takes_lead(extreme, best);
        best = leads ? extreme : best;
        batch = leads ? from : batch;
    }
    __device__ __forceinline__ rank_t rank() const { return tl_rank(best, batch, SMALLEST, 1); }
    /* Whether x, of the batch, is the best or as good. */
    __device__ __forceinline__ bool is(float x) const { return x == best || (best != best && x != x); }
};

/* A block owns `columns` neighbouring columns of one outer array, a group, and part blockIdx.y of their axis; a thread has every
 * (THREADS / columns)-th element of one of them, AT_ONCE in a batch, so that neighbours read neighbours. */
template <bool SMALLEST>
__global__ void __launch_bounds__(THREADS) columns_kernel(arg_axis a, uint32_t columns, tl_fastdiv groups)
{
    __shared__ rank_t ranks[THREADS];
    __shared__ uint32_t places[MOST_COLUMNS];
    uint32_t group;
    const int64_t o = groups.divmod(blockIdx.x, &group);
    const uint32_t deep = THREADS / columns, row = threadIdx.x / columns, own = threadIdx.x % columns;
    const int64_t c = (int64_t)group * columns + own, from = blockIdx.y * a.part, to = min(from + a.part, a.n);
    const bool works = row < deep && c < a.inner && from + row < to;
    const float *const x = a.x + (o * a.n + from + row) * a.inner + c;
    const uint32_t step = (uint32_t)(deep * a.inner); /* an array has fewer than 2^32 elements */
    const int count = works ? (int)((uint32_t)(to - from - row + deep - 1) / deep) : 0;
    leader<SMALLEST> lead;
    const float *v = x;
    for (int i = 0; i < count; i += AT_ONCE) {
        float y[AT_ONCE];
        if (count - i >= AT_ONCE) {
            TL_UNROLL_FOR (int u = 0; u < AT_ONCE; u++, v += step)
                y[u] = *v;
        } else {
            TL_UNROLL_FOR (int u = 0; u < AT_ONCE; u++, v += step)
                y[u] = i + u < count ? *v : NEUTRAL<SMALLEST>;
        }
        float extreme = y[0];
        TL_UNROLL_FOR (int u = 1; u < AT_ONCE; u++)
            extreme = extreme_of<SMALLEST>(extreme, y[u]);
        lead.take(extreme, (uint32_t)i);
    }
    const rank_t mine = works ? lead.rank() : 0;
    ranks[threadIdx.x] = mine;
    if (row == 0) places[own] = UINT32_MAX;
    for (uint32_t s = THREADS / 2; s > 0; s /= 2) {
        __syncthreads();
        if (row < s && row + s < deep) ranks[threadIdx.x] = max(ranks[threadIdx.x], ranks[threadIdx.x + s * columns]);
    }
    __syncthreads();
    const rank_t rank = ranks[own];
    if (works && mine == rank) {
        int first = (int)lead.batch;
        TL_UNROLL_FOR (int u = AT_ONCE - 1; u >= 0; u--) {
            const int i = min((int)lead.batch + u, count - 1);
            if (lead.is(x[(uint32_t)i * step])) first = i;
        }
        atomicMin(&places[own], (uint32_t)(from + row + (int64_t)first * deep));
    }
    __syncthreads();
    if (row > 0 || !works) return;
    const int64_t at = o * a.inner + c;
    if (a.best)
        a.best[at * a.parts + blockIdx.y] = tl_rank_of((uint32_t)(rank >> 32), places[own]);
    else
        a.out[at] = places[own];
}

/* A warp owns an output. */
__global__ void __launch_bounds__(THREADS) best_part_kernel(arg_axis a)
{
    tl_wait_for_earlier();
    const int64_t row = (int64_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    if (row >= a.rows) return;
    rank_t best = 0;
#pragma unroll 4
    for (int64_t p = threadIdx.x % 32; p < a.parts; p += 32)
        best = max(best, a.best[row * a.parts + p]);
    for (int s = 16; s > 0; s /= 2)
        best = max(best, __shfl_xor_sync(~0u, best, s));
    if (threadIdx.x % 32 == 0) a.out[row] = tl_rank_place(best);
}

/* Parts of each of `blocks` rows or groups of columns, of which a thread would have `share` elements: as many as fill the device, and
 * of many elements so often that the last blocks are few. */
int64_t parts_of(int64_t blocks, int64_t elements, int64_t share, int64_t resident)
{
    if (share <= ENOUGH) return 1;
    const int64_t parts = (elements < LARGE ? 1 : WAVES) * resident / blocks;
    return std::max<int64_t>(1, std::min(std::min(parts, MOST_PARTS), share / LEAST));
}

/* So few lanes own a slice that each has up to 8 elements, or a whole warp, of which each has 16 at once. */
int32_t launch_slices(tl_context *ctx, const char *name, const arg_axis &a, int64_t outer)
{
    const int inner = (int)a.inner, size = (int)(a.n * a.inner);
    slice_lanes s = {outer, 0, size, 1, 1, 0, tl_fastdiv((uint64_t)inner)};
    const auto spread = [&] { s.deep = (1 << s.lane_bits) / inner, s.used = s.deep * inner; };
    for (spread(); s.lane_bits < 5 && 8 * s.used < size; spread())
        s.lane_bits++;
    for (int reach = 1; reach < s.deep; reach *= 2)
        s.reach = reach;
    const bool few = size <= 8 * s.used;
    const auto kernel = a.smallest ? few ? slices_kernel<true, 8> : slices_kernel<true, 16>
                        : few      ? slices_kernel<false, 8>
                                   : slices_kernel<false, 16>;
    return tl_launch(ctx, name, kernel, tl_grid(outer, THREADS >> s.lane_bits), THREADS, a, s);
}

int32_t argument(tl_context *ctx, const char *name, const float *x, int64_t outer, int64_t n, int64_t inner,
                 int smallest, uint32_t *out)
{
    arg_axis a = {x, out, nullptr, outer * inner, n, inner, n, 1, smallest};
    const uint32_t columns = inner < MOST_COLUMNS ? (uint32_t)inner : MOST_COLUMNS;
    const int64_t groups = tl_ceil_div(inner, columns), blocks = outer * groups, resident = WAVE * tl_cuda_sms(ctx);
    /* a thread takes about as long for SHORT_COLUMN elements as a wave of blocks for their columns */
    const int64_t waves = std::min(std::max<int64_t>((blocks - 1) / resident, 1), WAVES);
    if (n <= SHORT_COLUMN ? inner >= NARROW : inner >= MOST_COLUMNS && n <= SHORT_COLUMN * waves)
        return tl_launch(ctx, name, short_columns_kernel, tl_grid(a.rows, THREADS), THREADS, a, tl_fastdiv(inner));
    /* A warp takes about as long for what a block loads at once as a wave of blocks, which wait for each other as well. */
    const bool is_short = n * inner <= SHORT_SLICE ||
                          (n * inner <= BATCH && n * inner <= BATCH / 2 * ((outer - 1) / resident));
    if (inner < MOST_COLUMNS && is_short) return launch_slices(ctx, name, a, outer);
    const int64_t parts = parts_of(blocks, outer * n * inner, tl_ceil_div(n, THREADS / columns), resident);
    a.part = tl_ceil_div(n, parts);
    a.parts = tl_ceil_div(n, a.part);
    tl_scratch<rank_t> best(ctx);
    if (a.parts > 1) {
        TL_TRY(best.allocate(a.rows * a.parts));
        a.best = best;
    }
    const dim3 grid(tl_grid(blocks, 1), (unsigned)a.parts);
    TL_TRY(tl_launch(ctx, name, smallest ? columns_kernel<true> : columns_kernel<false>, grid, THREADS, a, columns,
                     tl_fastdiv(groups)));
    if (a.parts == 1) return TORCHLEAN_OK;
    return tl_launch_ahead(ctx, name, best_part_kernel, tl_grid(a.rows, THREADS / 32), THREADS, 0, a);
}

} /* namespace */

/* ---- the operations ------------------------------------------------------------------------------------------------ */

extern "C" int32_t tl_cuda_argmax(tl_context *ctx, const float *x, int64_t outer, int64_t n, int64_t inner,
                                  uint32_t *out)
{
    return argument(ctx, "argmax", x, outer, n, inner, 0, out);
}

extern "C" int32_t tl_cuda_argmin(tl_context *ctx, const float *x, int64_t outer, int64_t n, int64_t inner,
                                  uint32_t *out)
{
    return argument(ctx, "argmin", x, outer, n, inner, 1, out);
}
