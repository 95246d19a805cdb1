/* Places of the largest and smallest elements on CUDA. formula/order.h gives every element of a row a rank of its own, so the
 * largest one, or the k largest, are the same whatever looks at which part of the row, and integer atomics may gather them. */
#include "cuda/device/division.cuh"
#include "cuda/runtime/launch.cuh"
#include "formula/order.h"
#include "generated/index.h"

namespace {

typedef unsigned long long rank_t;

constexpr int THREADS = 256;

/* ---- argmax and argmin --------------------------------------------------------------------------------------------- */

constexpr int64_t SHORT_ROW = 1024;         /* elements for one warp */
constexpr int64_t SHORT_COLUMN = 32;        /* for one thread */
constexpr uint32_t MOST_COLUMNS = 32;       /* of a block: 128 neighbouring bytes */
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

/* The largest rank of the warp's lanes. */
__device__ __forceinline__ rank_t warp_max(rank_t best)
{
    for (int s = 16; s > 0; s /= 2)
        best = max(best, __shfl_xor_sync(~0u, best, s));
    return best;
}

/* A warp owns a row. */
__global__ void __launch_bounds__(THREADS) short_rows_kernel(arg_axis a)
{
    const int64_t row = (int64_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    if (row >= a.rows) return;
    rank_t best = 0;
    for (int64_t i = threadIdx.x % 32; i < a.n; i += 32)
        best = max(best, (rank_t)tl_rank(a.x[row * a.n + i], (uint32_t)i, a.smallest, 1));
    best = warp_max(best);
    if (threadIdx.x % 32 == 0) a.out[row] = tl_rank_place(best);
}

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

/* A block owns `columns` neighbouring columns of one outer array, a group, and part blockIdx.y of their axis; a thread has every
 * (THREADS / columns)-th element of one of them, so that neighbours read neighbours. Eight of its loads are in flight. */
__global__ void __launch_bounds__(THREADS) columns_kernel(arg_axis a, uint32_t columns, tl_fastdiv groups)
{
    __shared__ rank_t ranks[THREADS];
    uint32_t group;
    const int64_t o = groups.divmod(blockIdx.x, &group);
    const uint32_t deep = THREADS / columns, row = threadIdx.x / columns, own = threadIdx.x % columns;
    const int64_t c = (int64_t)group * columns + own, from = blockIdx.y * a.part, to = min(from + a.part, a.n);
    const int64_t step = deep * a.inner;
    const bool works = row < deep && c < a.inner;
    rank_t best = 0;
    if (works) {
        const float *x = a.x + (o * a.n + from + row) * a.inner + c;
        for (int64_t i = from + row; i < to; i += 8 * deep, x += 8 * step) {
            float v[8];
            TL_UNROLL_FOR (int u = 0; u < 8; u++)
                if (i + u * deep < to) v[u] = x[u * step];
            TL_UNROLL_FOR (int u = 0; u < 8; u++)
                if (i + u * deep < to) best = max(best, (rank_t)tl_rank(v[u], (uint32_t)(i + u * deep), a.smallest, 1));
        }
    }
    ranks[threadIdx.x] = best;
    for (uint32_t s = THREADS / 2; s > 0; s /= 2) {
        __syncthreads();
        if (row < s && row + s < deep) ranks[threadIdx.x] = max(ranks[threadIdx.x], ranks[threadIdx.x + s * columns]);
    }
    if (row > 0 || !works) return;
    const int64_t at = o * a.inner + c;
    if (a.best)
        a.best[at * a.parts + blockIdx.y] = ranks[threadIdx.x];
    else
        a.out[at] = tl_rank_place(ranks[threadIdx.x]);
}

/* A warp owns an output. */
__global__ void __launch_bounds__(THREADS) best_part_kernel(arg_axis a)
{
    const int64_t row = (int64_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    if (row >= a.rows) return;
    rank_t best = 0;
#pragma unroll 4
    for (int64_t p = threadIdx.x % 32; p < a.parts; p += 32)
        best = max(best, a.best[row * a.parts + p]);
    best = warp_max(best);
    if (threadIdx.x % 32 == 0) a.out[row] = tl_rank_place(best);
}

int32_t argument(tl_context *ctx, const char *name, const float *x, int64_t outer, int64_t n, int64_t inner,
                 int smallest, uint32_t *out)
{
    arg_axis a = {x, out, nullptr, outer * inner, n, inner, n, 1, smallest};
    if (inner == 1 && n <= SHORT_ROW)
        return tl_launch(ctx, name, short_rows_kernel, tl_grid(a.rows, THREADS / 32), THREADS, a);
    if (inner > 1 && n <= SHORT_COLUMN)
        return tl_launch(ctx, name, short_columns_kernel, tl_grid(a.rows, THREADS), THREADS, a, tl_fastdiv(inner));
    const uint32_t columns = inner < MOST_COLUMNS ? (uint32_t)inner : MOST_COLUMNS;
    const int64_t groups = tl_ceil_div(inner, columns), blocks = outer * groups;
    const int64_t share = tl_ceil_div(n, THREADS / columns), resident = WAVE * tl_cuda_sms(ctx);
    if (share > ENOUGH) { /* parts of the axis: as many as fill the device */
        int64_t parts = outer * n * inner < LARGE ? resident / blocks : tl_ceil_div(WAVES * resident, blocks);
        parts = parts < MOST_PARTS ? parts : MOST_PARTS;
        parts = parts < share / LEAST ? parts : share / LEAST;
        a.part = tl_ceil_div(n, parts > 1 ? parts : 1);
        a.parts = tl_ceil_div(n, a.part);
    }
    tl_scratch<rank_t> best(ctx);
    if (a.parts > 1) {
        TL_TRY(best.allocate(a.rows * a.parts));
        a.best = best;
    }
    TL_TRY(tl_launch(ctx, name, columns_kernel, dim3(tl_grid(blocks, 1), (unsigned)a.parts), THREADS, a, columns,
                     tl_fastdiv(groups)));
    if (a.parts == 1) return TORCHLEAN_OK;
    return tl_launch(ctx, name, best_part_kernel, tl_grid(a.rows, THREADS / 32), THREADS, a);
}

/* ---- top-k --------------------------------------------------------------------------------------------------------- */

constexpr int64_t FEW = 16, FEW_OF = 4096; /* the largest k and n for which a warp looks through the row k times */
constexpr int TOP_THREADS = 1024;
constexpr int64_t SHARED_RANKS = 4096; /* the longest list that is sorted in shared memory */

/* A warp owns a row, whose elements lie `inner` apart: k times the largest rank below the one before. */
__global__ void __launch_bounds__(THREADS) top_few_kernel(const float *__restrict__ x, int64_t rows, int64_t n,
                                                          int64_t inner, int64_t k, int smallest, uint32_t *out)
{
    const int64_t row = (int64_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    if (row >= rows) return;
    x += row / inner * n * inner + row % inner;
    out += row / inner * k * inner + row % inner;
    rank_t before = ~(rank_t)0;
    for (int64_t j = 0; j < k; j++) {
        rank_t best = 0;
        for (int64_t i = threadIdx.x % 32; i < n; i += 32) {
            const rank_t rank = tl_rank(x[i * inner], (uint32_t)i, smallest, 0);
            if (j == 0 || rank < before) best = max(best, rank); /* a NaN that comes first has the rank of `before` */
        }
        for (int s = 16; s > 0; s /= 2)
            best = max(best, __shfl_xor_sync(~0u, best, s));
        before = best;
        if (threadIdx.x % 32 == 0) out[j * inner] = tl_rank_place(best);
    }
}

/* A block owns a row, or rows blockIdx.x, + gridDim.x, ... . Digit by digit from the highest it finds the rank of the k-th
 * element: among the elements that have all digits so far it counts those of each digit. Then it gathers the k elements of no
 * smaller rank, in any order, and sorts them (bitonic, falling), in shared memory or, where `size` is above SHARED_RANKS, in
 * the block's part of `lists`. `size` is k rounded up to a power of two. */
__global__ void __launch_bounds__(TOP_THREADS)
    top_kernel(const float *__restrict__ x, int64_t rows, int64_t n, int64_t inner, int64_t k, int64_t size,
               int smallest, rank_t *lists, uint32_t *__restrict__ out)
{
    TL_DYNAMIC_SHARED(rank_t, shared);
    __shared__ uint32_t count[256];
    __shared__ rank_t found;    /* the digits so far */
    __shared__ uint32_t wanted; /* how many of the elements that have them */
    __shared__ uint32_t filled;
    __shared__ int done;
    rank_t *const list = size > SHARED_RANKS ? lists + blockIdx.x * size : shared;
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
        const float *v = x + row / inner * n * inner + row % inner;
        if (threadIdx.x == 0) {
            found = 0;
            wanted = (uint32_t)k;
            filled = 0;
            done = k == n;
        }
        __syncthreads();
        for (int shift = 56; shift >= 0 && !done; shift -= 8) {
            if (threadIdx.x < 256) count[threadIdx.x] = 0;
            __syncthreads();
            const rank_t prefix = found;
            for (int64_t i = threadIdx.x; i < n; i += TOP_THREADS) {
                const rank_t rank = tl_rank(v[i * inner], (uint32_t)i, smallest, 0);
                if (shift == 56 || rank >> (shift + 8) == prefix >> (shift + 8))
                    atomicAdd(&count[rank >> shift & 255], 1u);
            }
            __syncthreads();
            if (threadIdx.x == 0) {
                int digit = 255;
                uint32_t left = wanted;
                for (; count[digit] < left; digit--)
                    left -= count[digit];
                found = prefix | (rank_t)digit << shift;
                done = count[digit] == left; /* all of them: the digits below are zeros */
                wanted = left;
            }
            __syncthreads();
        }
        const rank_t least = found;
        for (int64_t i = threadIdx.x; i < n; i += TOP_THREADS) {
            const rank_t rank = tl_rank(v[i * inner], (uint32_t)i, smallest, 0);
            if (rank >= least) list[atomicAdd(&filled, 1u)] = rank;
        }
        for (int64_t i = k + threadIdx.x; i < size; i += TOP_THREADS)
            list[i] = 0; /* below every rank */
        __syncthreads();
        for (int64_t run = 2; run <= size; run *= 2) {
            for (int64_t step = run / 2; step > 0; step /= 2) {
                for (int64_t p = threadIdx.x; p < size / 2; p += TOP_THREADS) {
                    const int64_t i = 2 * p - (p & (step - 1)), j = i + step;
                    const rank_t a = list[i], b = list[j];
                    if ((a < b) == ((i & run) == 0)) {
                        list[i] = b;
                        list[j] = a;
                    }
                }
                __syncthreads();
            }
        }
        for (int64_t i = threadIdx.x; i < k; i += TOP_THREADS)
            out[row / inner * k * inner + row % inner + i * inner] = tl_rank_place(list[i]);
        __syncthreads();
    }
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

extern "C" int32_t tl_cuda_topk(tl_context *ctx, const float *x, int64_t outer, int64_t n, int64_t inner, int64_t k,
                                int64_t largest, uint32_t *out)
{
    const int64_t rows = outer * inner;
    if (k <= FEW && n <= FEW_OF)
        return tl_launch(ctx, "topk", top_few_kernel, tl_grid(rows, THREADS / 32), THREADS, x, rows, n, inner, k,
                         (int)!largest, out);
    int64_t size = 2;
    while (size < k)
        size *= 2;
    const bool in_shared = size <= SHARED_RANKS;
    const unsigned grid = tl_grid(rows, 1, tl_cuda_sms(ctx) * 2);
    tl_scratch<rank_t> lists(ctx);
    if (!in_shared) TL_TRY(lists.allocate(grid * size));
    return tl_launch_dynamic(ctx, "topk", top_kernel, grid, TOP_THREADS, in_shared ? (size_t)size * sizeof(rank_t) : 0,
                             x, rows, n, inner, k, size, (int)!largest, (rank_t *)lists, out);
}
