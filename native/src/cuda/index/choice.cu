/* Places of the largest and smallest elements on CUDA. formula/order.h gives every element of a row a rank of its own, so the
 * largest one, or the k largest, are the same whatever looks at which part of the row, and integer atomics may gather them. */
#include <algorithm>
#include <type_traits>

#include "cuda/device/division.cuh"
#include "cuda/runtime/launch.cuh"
#include "formula/exact.h"
#include "formula/order.h"
#include "generated/index.h"

namespace {

typedef unsigned long long rank_t;

constexpr int THREADS = 256, AT_ONCE = 8;

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
 * (THREADS / columns)-th element of one of them, so that neighbours read neighbours. It loads AT_ONCE of them together and
 * compares their extreme alone with the best so far; where that stands among them it looks up at the end. */
template <bool SMALLEST>
__global__ void __launch_bounds__(THREADS) columns_kernel(arg_axis a, uint32_t columns, tl_fastdiv groups)
{
    __shared__ rank_t ranks[THREADS];
    uint32_t group;
    const int64_t o = groups.divmod(blockIdx.x, &group);
    const uint32_t deep = THREADS / columns, row = threadIdx.x / columns, own = threadIdx.x % columns;
    const int64_t c = (int64_t)group * columns + own, from = blockIdx.y * a.part, to = min(from + a.part, a.n);
    const bool works = row < deep && c < a.inner;
    rank_t rank = 0;
    if (works && from + row < to) {
        constexpr float NEUTRAL = SMALLEST ? TL_INF : -TL_INF;
        const float *const x = a.x + (o * a.n + from + row) * a.inner + c, *v = x;
        const uint32_t step = (uint32_t)(deep * a.inner); /* an array has fewer than 2^32 elements */
        const int count = (int)((uint32_t)(to - from - row + deep - 1) / deep);
        float best = NEUTRAL;
        int lead = 0; /* the first of those that were loaded with the best */
        for (int i = 0; i < count; i += AT_ONCE) {
            float y[AT_ONCE];
            if (count - i >= AT_ONCE) {
                TL_UNROLL_FOR (int u = 0; u < AT_ONCE; u++, v += step)
                    y[u] = *v;
            } else {
                TL_UNROLL_FOR (int u = 0; u < AT_ONCE; u++, v += step)
                    y[u] = i + u < count ? *v : NEUTRAL;
            }
            float extreme = y[0];
            TL_UNROLL_FOR (int u = 1; u < AT_ONCE; u++)
                extreme = SMALLEST ? tl_min(extreme, y[u]) : tl_max(extreme, y[u]);
            const bool leads = SMALLEST ? tl_takes_lead(-extreme, -best) : tl_takes_lead(extreme, best);
            best = leads ? extreme : best;
            lead = leads ? i : lead;
        }
        int first = lead;
        TL_UNROLL_FOR (int u = AT_ONCE - 1; u >= 0; u--) {
            const int i = min(lead + u, count - 1);
            const float y = x[(uint32_t)i * step];
            if (y == best || (best != best && y != y)) first = i;
        }
        rank = tl_rank(best, (uint32_t)(from + row + (int64_t)first * deep), SMALLEST, 1);
    }
    if (columns == 1) {
        rank = warp_max(rank);
        if (threadIdx.x % 32 == 0) ranks[threadIdx.x / 32] = rank;
        __syncthreads();
        if (threadIdx.x >= 32) return;
        rank = warp_max(threadIdx.x < THREADS / 32 ? ranks[threadIdx.x] : 0);
    } else {
        ranks[threadIdx.x] = rank;
        for (uint32_t s = THREADS / 2; s > 0; s /= 2) {
            __syncthreads();
            if (row < s && row + s < deep)
                ranks[threadIdx.x] = max(ranks[threadIdx.x], ranks[threadIdx.x + s * columns]);
        }
        rank = ranks[threadIdx.x];
    }
    if (row > 0 || !works) return;
    const int64_t at = o * a.inner + c;
    if (a.best)
        a.best[at * a.parts + blockIdx.y] = rank;
    else
        a.out[at] = tl_rank_place(rank);
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
    TL_TRY(tl_launch(ctx, name, smallest ? columns_kernel<true> : columns_kernel<false>,
                     dim3(tl_grid(blocks, 1), (unsigned)a.parts), THREADS, a, columns, tl_fastdiv(groups)));
    if (a.parts == 1) return TORCHLEAN_OK;
    return tl_launch(ctx, name, best_part_kernel, tl_grid(a.rows, THREADS / 32), THREADS, a);
}

/* ---- top-k --------------------------------------------------------------------------------------------------------- */

/* Ranks are distinct, so there is one list of the k largest, falling, and every network of comparisons gives it. Absent
 * elements have the rank 0, below that of every element. */

constexpr int TEAM_THREADS = 128;
constexpr int64_t TEAM_ROW = 1024; /* the longest row that a warp, or some of its lanes, holds in registers */

__device__ __forceinline__ void exchange(rank_t &first, rank_t &second)
{
    const rank_t larger = max(first, second);
    second = min(first, second);
    first = larger;
}

/* A bitonic list of K ranks, from v[0] on, falls. */
template <int K, int E> __device__ __forceinline__ void order_bitonic(rank_t (&v)[E], int from)
{
    TL_UNROLL_FOR (int step = K / 2; step > 0; step /= 2)
        TL_UNROLL_FOR (int e = 0; e < K; e++)
            if (!(e & step)) exchange(v[from + e], v[from + e + step]);
}

/* Every K neighbours of v fall. (Bitonic merges: of two falling lists, the second read backwards.) */
template <int K, int E> __device__ __forceinline__ void sort_runs(rank_t (&v)[E])
{
    TL_UNROLL_FOR (int run = 2; run <= K; run *= 2) {
        TL_UNROLL_FOR (int e = 0; e < E; e++)
            if ((e & (run - 1)) < run / 2) exchange(v[e], v[e ^ (run - 1)]);
        TL_UNROLL_FOR (int step = run / 4; step > 0; step /= 2)
            TL_UNROLL_FOR (int e = 0; e < E; e++)
                if (!(e & step)) exchange(v[e], v[e + step]);
    }
}

/* W lanes sort their W·E ranks: lane l ends with those at E·l .. E·l + E - 1 of the falling list. */
template <int W, int E> __device__ __forceinline__ void sort_team(rank_t (&v)[E])
{
    const uint32_t lane = threadIdx.x % W;
    sort_runs<E>(v);
    TL_UNROLL_FOR (int lanes = 2; lanes <= W; lanes *= 2) {
        const bool first = !(lane & lanes / 2);
        TL_UNROLL_FOR (int e = 0; e < E / 2; e++) { /* with the list of the other lanes, read backwards */
            const rank_t a = __shfl_xor_sync(~0u, v[E - 1 - e], lanes - 1), b = __shfl_xor_sync(~0u, v[e], lanes - 1);
            v[e] = (v[e] > a) == first ? v[e] : a;
            v[E - 1 - e] = (v[E - 1 - e] > b) == first ? v[E - 1 - e] : b;
        }
        TL_UNROLL_FOR (int step = lanes / 4; step > 0; step /= 2) {
            const bool larger = !(lane & step);
            TL_UNROLL_FOR (int e = 0; e < E; e++) {
                const rank_t a = __shfl_xor_sync(~0u, v[e], step);
                v[e] = (v[e] > a) == larger ? v[e] : a;
            }
        }
        order_bitonic<E>(v, 0);
    }
}

/* v[0] .. v[K - 1] of all W lanes become the K largest of their W·E ranks, falling. */
template <int W, int E, int K> __device__ __forceinline__ void keep_largest(rank_t (&v)[E])
{
    sort_runs<K>(v);
    TL_UNROLL_FOR (int span = K; span < E; span *= 2)
        TL_UNROLL_FOR (int from = 0; from < E; from += K) {
            if (from % (2 * span) != 0) continue;
            TL_UNROLL_FOR (int e = 0; e < K; e++)
                v[from + e] = max(v[from + e], v[from + span + K - 1 - e]);
            order_bitonic<K>(v, from);
        }
    TL_UNROLL_FOR (int step = 1; step < W; step *= 2) {
        rank_t other[K];
        TL_UNROLL_FOR (int e = 0; e < K; e++)
            other[e] = __shfl_xor_sync(~0u, v[K - 1 - e], step);
        TL_UNROLL_FOR (int e = 0; e < K; e++)
            v[e] = max(v[e], other[e]);
        order_bitonic<K>(v, 0);
    }
}

/* W neighbouring lanes own a row of up to W·E elements, which lie `inner` apart, and find up to K of them, or with K = 0 sort
 * them all. */
template <int W, int E, int K>
__global__ void __launch_bounds__(TEAM_THREADS)
    team_top_kernel(const float *__restrict__ x, int64_t rows, int64_t n, int64_t inner, int64_t k, int smallest,
                    uint32_t *__restrict__ out)
{
    const uint32_t lane = threadIdx.x % W;
    const int64_t own = (int64_t)blockIdx.x * (TEAM_THREADS / W) + threadIdx.x / W;
    const int64_t row = own < rows ? own : rows - 1; /* all lanes take part in the shuffles */
    x += row / inner * n * inner + row % inner;
    out += row / inner * k * inner + row % inner;
    rank_t v[E];
    TL_UNROLL_FOR (int e = 0; e < E; e++) {
        const uint32_t i = lane + W * e;
        v[e] = i < n ? tl_rank(x[i * inner], i, smallest, 0) : 0;
    }
    if constexpr (K > 0) {
        keep_largest<W, E, K>(v);
        if (own >= rows) return;
        TL_UNROLL_FOR (int e = 0; e < K; e++)
            if (e % W == lane && e < k) out[e * inner] = tl_rank_place(v[e]);
    } else {
        /* Lanes hold neighbours of the list: written through shared memory, neighbouring lanes write them. */
        __shared__ uint32_t places[TEAM_THREADS * (E + 1)];
        sort_team<W, E>(v);
        TL_UNROLL_FOR (int e = 0; e < E; e++)
            places[threadIdx.x * (E + 1) + e] = tl_rank_place(v[e]);
        __syncwarp();
        if (own >= rows) return;
        for (uint32_t j = lane; j < k; j += W)
            out[j * inner] = places[(threadIdx.x - lane + j / E) * (E + 1) + j % E];
    }
}

template <int W, int E>
int32_t team_top(tl_context *ctx, const float *x, int64_t rows, int64_t n, int64_t inner, int64_t k, int smallest,
                 uint32_t *out)
{
    auto kernel = k <= 2 ? team_top_kernel<W, E, 2> : k <= 8 ? team_top_kernel<W, E, 8> : team_top_kernel<W, E, 0>;
    if constexpr (E >= 16)
        if (k > 8 && k <= 16) kernel = team_top_kernel<W, E, 16>;
    return tl_launch(ctx, "topk", kernel, tl_grid(rows, TEAM_THREADS / W), TEAM_THREADS, x, rows, n, inner, k, smallest,
                     out);
}

constexpr int TOP_THREADS = 1024, FEWER_THREADS = 256; /* of a block: for few or long rows; for many short ones */
constexpr int64_t FEWER_ROW = 16384;                   /* the longest of those */
constexpr int DIGIT = 11, DIGITS = 1 << DIGIT;         /* bits of a digit, and its values */
constexpr int64_t SHARED_RANKS = 4096;                 /* the longest list that is sorted in shared memory at once */
constexpr int64_t TOP_PART = 8192, TOP_PARTS = 4;      /* the shortest part of a row, also in k; the fewest parts */

/* Elements, `inner` apart, of which the first is element `first` of its row. */
struct row_of_elements {
    const float *x;
    int64_t inner, first;
    int smallest;

    __device__ __forceinline__ float load(int64_t i) const { return x[i * inner]; }
    __device__ __forceinline__ rank_t rank(float v, int64_t i) const
    {
        return tl_rank(v, (uint32_t)(first + i), smallest, 0);
    }
};

struct row_of_ranks {
    const rank_t *ranks;

    __device__ __forceinline__ rank_t load(int64_t i) const { return ranks[i]; }
    __device__ __forceinline__ rank_t rank(rank_t v, int64_t) const { return v; }
};

/* visit(rank, exists) for every element, by whole warps; four loads of a thread are in flight. */
template <class Row, class Visit> __device__ __forceinline__ void visit_row(const Row &row, int64_t n, Visit visit)
{
    for (int64_t first = threadIdx.x; first - threadIdx.x % 32 < n; first += 4 * blockDim.x) {
        decltype(row.load(0)) v[4] = {};
        TL_UNROLL_FOR (int u = 0; u < 4; u++)
            if (first + u * blockDim.x < n) v[u] = row.load(first + u * blockDim.x);
        TL_UNROLL_FOR (int u = 0; u < 4; u++) {
            const int64_t i = first + u * blockDim.x;
            visit(row.rank(v[u], i), i < n);
        }
    }
}

struct top_state {
    uint32_t count[DIGITS]; /* zeros between the rounds */
    uint32_t warps[32];
    rank_t found;    /* the digits so far */
    uint32_t wanted; /* how many of the elements that have them */
    uint32_t filled;
    int done;
};

/* The k-th rank of a row of n > k elements, or a smaller number that is above the next one. Digit by digit from the highest:
 * among the elements that have all digits so far the block counts those of each digit. The places of a row are below
 * 2^place_bits: the bits between them and the elements' order are ones in every rank, and are passed over. */
template <class Row>
__device__ __forceinline__ rank_t least_of_top(const Row &row, int64_t n, int64_t k, int place_bits, top_state &s)
{
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, each = DIGITS / blockDim.x;
    rank_t prefix = 0;
    uint32_t wanted = (uint32_t)k;
    for (int top = 64;;) {
        const int low = max(top - DIGIT, top > 32 ? 32 : 0);
        const uint32_t digit_bits = (1u << (top - low)) - 1;
        visit_row(row, n, [&](rank_t rank, bool exists) {
            if (exists && (top == 64 || (rank ^ prefix) >> top == 0))
                atomicAdd(&s.count[(uint32_t)(rank >> low) & digit_bits], 1u);
        });
        __syncthreads();
        /* Thread t has `each` values of the digit, the first thread the highest ones. */
        uint32_t *const count = s.count + (DIGITS - each * (threadIdx.x + 1));
        uint32_t own = 0;
        for (uint32_t d = 0; d < each; d++)
            own += count[d];
        uint32_t above = own; /* elements of the threads up to this one */
        TL_UNROLL_FOR (int d = 1; d < 32; d *= 2) {
            const uint32_t before = __shfl_up_sync(~0u, above, d);
            if (lane >= d) above += before;
        }
        if (lane == 31) s.warps[warp] = above;
        __syncthreads();
        uint32_t before = lane < warp ? s.warps[lane] : 0;
        TL_UNROLL_FOR (int d = 16; d > 0; d /= 2)
            before += __shfl_xor_sync(~0u, before, d);
        above += before - own;
        if (above < wanted && wanted <= above + own) {
            uint32_t d = each - 1, left = wanted - above;
            for (; count[d] < left; d--)
                left -= count[d];
            s.found = prefix | (rank_t)(uint32_t)(count + d - s.count) << low;
            s.done = count[d] == left; /* all of them: the digits below are zeros */
            s.wanted = left;
        }
        for (uint32_t d = 0; d < each; d++)
            count[d] = 0;
        __syncthreads();
        prefix = s.found;
        wanted = s.wanted;
        if (s.done) return prefix;
        top = low;
        if (top == 32) {
            top = place_bits;
            prefix |= ((rank_t)1 << 32) - ((rank_t)1 << top);
        }
    }
}

/* The k largest ranks of a row of n >= k elements, in any order. */
template <class Row>
__device__ __forceinline__ void gather_top(const Row &row, int64_t n, int64_t k, int place_bits, top_state &s,
                                           rank_t *list)
{
    if (threadIdx.x == 0) s.filled = 0; /* nobody has looked at it since the barrier before */
    const rank_t least = k < n ? least_of_top(row, n, k, place_bits, s) : 0;
    __syncthreads();
    const uint32_t lane = threadIdx.x % 32;
    visit_row(row, n, [&](rank_t rank, bool exists) {
        const uint32_t hits = __ballot_sync(~0u, exists && rank >= least);
        if (hits == 0) return;
        uint32_t at = 0;
        if (lane == 0) at = atomicAdd(&s.filled, (uint32_t)__popc(hits));
        at = __shfl_sync(~0u, at, 0) + __popc(hits & ((1u << lane) - 1));
        if (hits >> lane & 1) list[at] = rank;
    });
}

/* Steps from, from / 2 ... to of the bitonic network that makes runs of `run` of the `size` ranks at `list`, which begins at
 * `offset` of a longer list. Where steps are 32 and less, the 32 pairs of a warp are 64 neighbours, and no warp waits for another. */
__device__ __forceinline__ void sort_steps(rank_t *list, int64_t size, int64_t offset, int64_t run, int64_t from,
                                           int64_t to)
{
    for (int64_t step = from; step >= to; step /= 2) {
        for (int64_t p = threadIdx.x; p < size / 2; p += blockDim.x) {
            const int64_t i = 2 * p - (p & (step - 1)), j = i + step;
            const rank_t a = list[i], b = list[j];
            if ((a < b) == (((offset + i) & run) == 0)) {
                list[i] = b;
                list[j] = a;
            }
        }
        if (step > 32 || (step == 1 && run >= 64))
            __syncthreads();
        else
            __syncwarp();
    }
}

/* Sorts `list`, of a power of two of ranks, falling; all threads see it then. A list longer than `room`, in shared memory for
 * SHARED_RANKS, moves there in pieces for the steps within a piece. */
__device__ __forceinline__ void sort_list(rank_t *list, int64_t size, rank_t *room)
{
    if (size <= SHARED_RANKS) {
        for (int64_t run = 2; run <= size; run *= 2)
            sort_steps(list, size, 0, run, run / 2, 1);
        __syncthreads();
        return;
    }
    for (int64_t run = SHARED_RANKS; run <= size; run *= 2) {
        for (int64_t step = run / 2; step >= SHARED_RANKS; step /= 2)
            sort_steps(list, size, 0, run, step, step);
        for (int64_t piece = 0; piece < size; piece += SHARED_RANKS) {
            for (int64_t i = threadIdx.x; i < SHARED_RANKS; i += blockDim.x)
                room[i] = list[piece + i];
            __syncthreads();
            if (run == SHARED_RANKS)
                for (int64_t shorter = 2; shorter < run; shorter *= 2)
                    sort_steps(room, SHARED_RANKS, piece, shorter, shorter / 2, 1);
            sort_steps(room, SHARED_RANKS, piece, run, SHARED_RANKS / 2, 1);
            for (int64_t i = threadIdx.x; i < SHARED_RANKS; i += blockDim.x)
                list[piece + i] = room[i];
            __syncthreads();
        }
    }
}

/* A block owns part blockIdx.y of row blockIdx.x, and the k largest ranks of it become candidates of the row, in any order. */
__global__ void __launch_bounds__(TOP_THREADS, 1)
    top_part_kernel(const float *__restrict__ x, int64_t n, int64_t inner, int64_t k, int64_t part, int place_bits,
                    int smallest, rank_t *__restrict__ candidates)
{
    __shared__ top_state s;
    for (int d = threadIdx.x; d < DIGITS; d += blockDim.x)
        s.count[d] = 0;
    __syncthreads();
    const int64_t row = blockIdx.x, first = blockIdx.y * part, length = min(part, n - first), own = min(k, length);
    const row_of_elements v = {x + (row / inner * n + first) * inner + row % inner, inner, first, smallest};
    rank_t *const list = candidates + (row * gridDim.y + blockIdx.y) * k;
    gather_top(v, length, own, place_bits, s, list);
    for (int64_t i = own + threadIdx.x; i < k; i += blockDim.x)
        list[i] = 0;
}

/* A block owns a row, or rows blockIdx.x, + gridDim.x, ..., of n elements of x or, if there are any, of its candidates. It gathers
 * the k first of them and sorts these in shared memory or, where `size`, k rounded up to a power of two, is above SHARED_RANKS, in
 * the block's part of `lists`. */
template <class Row>
__global__ void __launch_bounds__(TOP_THREADS, 1)
    top_kernel(const float *x, const rank_t *candidates, int64_t rows, int64_t n, int64_t inner, int64_t k,
               int64_t size, int place_bits, int smallest, rank_t *lists, uint32_t *__restrict__ out)
{
    TL_DYNAMIC_SHARED(rank_t, shared);
    __shared__ top_state s;
    for (int d = threadIdx.x; d < DIGITS; d += blockDim.x)
        s.count[d] = 0;
    __syncthreads();
    rank_t *const list = size > SHARED_RANKS ? lists + blockIdx.x * size : shared;
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
        Row v;
        if constexpr (std::is_same_v<Row, row_of_ranks>)
            v = {candidates + row * n};
        else
            v = {x + row / inner * n * inner + row % inner, inner, 0, smallest};
        for (int64_t i = k + threadIdx.x; i < size; i += blockDim.x)
            list[i] = 0;
        gather_top(v, n, k, place_bits, s, list);
        __syncthreads();
        sort_list(list, size, shared);
        for (int64_t i = threadIdx.x; i < k; i += blockDim.x)
            out[(row / inner * k + i) * inner + row % inner] = tl_rank_place(list[i]);
        __syncthreads();
    }
}

/* Rows that no warp holds. Where they are few, and k is small beside them, many blocks search the parts of a row. */
int32_t long_top(tl_context *ctx, const float *x, int64_t rows, int64_t n, int64_t inner, int64_t k, int smallest,
                 uint32_t *out)
{
    int64_t size = 2;
    while (size < k)
        size *= 2;
    int place_bits = 1;
    while (place_bits < 32 && (int64_t)1 << place_bits < n)
        place_bits++;
    const int64_t resident = 2 * tl_cuda_sms(ctx);
    const int64_t shortest = TOP_PART > 8 * k ? TOP_PART : 8 * k, parts = std::min(resident / rows, n / shortest);
    const bool in_parts = parts >= TOP_PARTS;
    tl_scratch<rank_t> lists(ctx), candidates(ctx);
    if (in_parts) {
        const int64_t part = tl_ceil_div(n, parts), whole = tl_ceil_div(n, part);
        TL_TRY(candidates.allocate(rows * whole * k));
        TL_TRY(tl_launch(ctx, "topk", top_part_kernel, dim3((unsigned)rows, (unsigned)whole), TOP_THREADS, x, n, inner,
                         k, part, place_bits, smallest, (rank_t *)candidates));
        n = whole * k;
    }
    const bool in_shared = size <= SHARED_RANKS;
    const unsigned grid = tl_grid(rows, 1, in_shared ? INT32_MAX : resident);
    if (!in_shared) TL_TRY(lists.allocate(grid * size));
    const int threads = rows >= resident && n <= FEWER_ROW ? FEWER_THREADS : TOP_THREADS;
    return tl_launch_dynamic(ctx, "topk", in_parts ? top_kernel<row_of_ranks> : top_kernel<row_of_elements>, grid,
                             threads, (size_t)(in_shared ? size : SHARED_RANKS) * sizeof(rank_t), x,
                             (rank_t *)candidates, rows, n, inner, k, size, place_bits, smallest, (rank_t *)lists, out);
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
    const int smallest = !largest;
    if (rows == 0 || k == 0) return TORCHLEAN_OK;
    if (n <= 16) return team_top<2, 8>(ctx, x, rows, n, inner, k, smallest, out);
    if (n <= 32) return team_top<4, 8>(ctx, x, rows, n, inner, k, smallest, out);
    if (n <= 64) return team_top<8, 8>(ctx, x, rows, n, inner, k, smallest, out);
    if (n <= 128) return team_top<8, 16>(ctx, x, rows, n, inner, k, smallest, out);
    if (n <= 256) return team_top<16, 16>(ctx, x, rows, n, inner, k, smallest, out);
    if (n <= 512) return team_top<32, 16>(ctx, x, rows, n, inner, k, smallest, out);
    if (n <= TEAM_ROW) return team_top<32, 32>(ctx, x, rows, n, inner, k, smallest, out);
    return long_top(ctx, x, rows, n, inner, k, smallest, out);
}
