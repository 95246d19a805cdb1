/* Top-k of long rows on CUDA.
 *
 * A block reads its row once, chunk by chunk, and keeps the elements that may be among the k first in a list in shared memory: those
 * above a limit, a rank that at least k of the elements seen so far reach. Of a row in any order, the limit of the first 1/s of it
 * lets k·s elements pass, and it is raised whenever twice as many elements have been seen, so that each doubling adds about k
 * elements to the list. In the worst order, a rising row, all pass: the list fills with every second chunk and is then cut to
 * its k first by radix.
 *
 * formula/order.h gives every element of a row a rank of its own, so the k largest ranks are the same whatever looks at which
 * part of the row, and integer atomics may gather them. */
#include <algorithm>

#include "cuda/device/vector.cuh"
#include "cuda/device/warp_sum.cuh"
#include "cuda/index/long_top.cuh"
#include "formula/exact.h"
#include "formula/order.h"

namespace {

typedef unsigned long long rank_t;

constexpr int DIGIT = 11, DIGITS = 1 << DIGIT; /* bits of a digit, and its values */
constexpr int64_t TOP_PART = 8192;             /* the shortest part of a row, also in k */
constexpr int64_t SECOND_LAUNCH = 32768;       /* elements that a block reads in the time that it takes: 4 us */

/* ---- selection by radix ---------------------------------------------------------------------------------------------- */

struct top_state {
    uint32_t count[DIGITS]; /* zeros between the rounds */
    uint32_t warps[32];
    rank_t found;    /* the digits so far */
    uint32_t wanted; /* how many of the elements that have them */
    int filled;
    int done;
};

/* The k-th rank of a list of n > k, or a smaller number that is above the next one. Digit by digit from the highest: among the
 * ranks that have all digits so far the block counts those of each digit. The places of a row are below 2^place_bits: the bits
 * between them and the elements' order are ones in every rank, and are passed over. */
__device__ __forceinline__ rank_t least_of_top(const rank_t *list, int n, int k, int place_bits, top_state &s)
{
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, each = DIGITS / blockDim.x;
    rank_t prefix = 0;
    uint32_t wanted = (uint32_t)k;
    for (int top = 64;;) {
        const int low = max(top - DIGIT, top > 32 ? 32 : 0);
        const uint32_t digit_bits = (1u << (top - low)) - 1;
#pragma unroll 4
        for (int i = (int)threadIdx.x; i < n; i += (int)blockDim.x)
            if (top == 64 || (list[i] ^ prefix) >> top == 0)
                atomicAdd(&s.count[(uint32_t)(list[i] >> low) & digit_bits], 1u);
        __syncthreads();
        /* Thread t has `each` values of the digit, the first thread the highest ones. */
        uint32_t *const count = s.count + (DIGITS - each * (threadIdx.x + 1));
        uint32_t own = 0;
        for (uint32_t d = 0; d < each; d++)
            own += count[d];
        uint32_t above = tl_sum_to_lane(own, lane); /* elements of the threads up to this one */
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

/* Adds to the list, of *filled ranks, those of the warp's ranks that are above the limit. The number of ranks then, for a warp that
 * adds some; else 0. */
__device__ __forceinline__ int append(rank_t rank, rank_t limit, rank_t *list, int *filled)
{
    const uint32_t hits = __ballot_sync(~0u, rank > limit), lane = threadIdx.x % 32;
    if (hits == 0) return 0;
    int at = 0;
    if (lane == 0) at = atomicAdd(filled, __popc(hits));
    at = __shfl_sync(~0u, at, 0);
    if (rank > limit) list[at + __popc(hits & ((1u << lane) - 1))] = rank;
    return at + __popc(hits);
}

/* Sorts `list`, of a power of two of ranks, falling, by the bitonic network; all threads see it then. Where steps are 32 and less, the
 * 32 pairs of a warp are 64 neighbours, and no warp waits for another. */
__device__ __forceinline__ void sort_list(rank_t *list, int size)
{
    for (int run = 2; run <= size; run *= 2)
        for (int step = run / 2; step >= 1; step /= 2) {
            for (int p = (int)threadIdx.x; p < size / 2; p += (int)blockDim.x) {
                const int i = 2 * p - (p & (step - 1)), j = i + step;
                const rank_t a = list[i], b = list[j];
                if ((a < b) == ((i & run) == 0)) {
                    list[i] = b;
                    list[j] = a;
                }
            }
            if (step > 32 || (step == 1 && run >= 64))
                __syncthreads();
            else
                __syncwarp();
        }
    __syncthreads();
}

/* ---- one pass over a row --------------------------------------------------------------------------------------------- */

constexpr int STREAM_THREADS = 256;
constexpr int EACH = 16;     /* elements of a thread in a chunk */
constexpr int AT_ONCE = 256; /* ranks that are sorted in the time that finding the k-th of them takes */

constexpr int RESIDENT = 3; /* blocks that a multiprocessor has room for, by the shared memory for lists of k <= 364 */

/* Of the positions of a chunk, those that the row has, and the place in the whole row of position 0. */
struct window {
    int begin, end;
    uint32_t first;

    __device__ __forceinline__ bool has(int i) const { return (uint32_t)(i - begin) < (uint32_t)(end - begin); }
};

/* n elements, `inner` apart, of which the first is element `first` of its row. A thread has groups of four neighbouring positions,
 * which are 16 aligned bytes where `inner` is 1: there the row begins at position `before` of the first group. */
struct streamed_elements {
    typedef float value;
    static constexpr int CHUNK = EACH * STREAM_THREADS;

    const float *x; /* position 0 */
    int64_t inner;
    uint32_t first, chunks;
    int smallest, before, rest; /* `rest` positions of the last chunk */
    float low, high;            /* what lies between cannot be among the k first of the row */

    __device__ __forceinline__ streamed_elements(const float *row, int64_t n, int64_t inner, int64_t first,
                                                 int smallest)
        : inner(inner), smallest(smallest), low(TL_INF), high(-TL_INF)
    {
        before = inner == 1 ? (int)((uintptr_t)row / sizeof(float) % 4) : 0;
        x = row - before;
        this->first = (uint32_t)(first - before);
        chunks = (uint32_t)((n + before - 1) / CHUNK) + 1;
        rest = (int)(n + before - (int64_t)(chunks - 1) * CHUNK);
    }
    __device__ __forceinline__ window at(uint32_t chunk) const
    {
        return {chunk == 0 ? before : 0, chunk + 1 == chunks ? rest : CHUNK, first + chunk * CHUNK};
    }
    static __device__ __forceinline__ int position(int e) { return 4 * (e / 4 * STREAM_THREADS + threadIdx.x) + e % 4; }
    __device__ __forceinline__ void load(uint32_t chunk, value (&v)[EACH]) const
    {
        const float *const from = x + (int64_t)chunk * CHUNK * inner;
        if (inner == 1 && chunk > 0 && chunk + 1 < chunks) {
            TL_UNROLL_FOR (int e = 0; e < EACH; e += 4)
                tl_load4(from + position(e), v + e);
            return;
        }
        const window w = at(chunk);
        TL_UNROLL_FOR (int e = 0; e < EACH; e += 4) {
            const int i = position(e);
            if (inner == 1 && w.has(i) && w.has(i + 3))
                tl_load4(from + i, v + e);
            else
                TL_UNROLL_FOR (int c = 0; c < 4; c++)
                    v[e + c] = w.has(i + c) ? from[(i + c) * inner] : 0.0f;
        }
    }
    /* 0 beyond the row's ends */
    __device__ __forceinline__ rank_t rank(value v, const window &w, int e) const
    {
        return w.has(position(e)) ? tl_rank(v, w.first + position(e), smallest, 0) : 0;
    }
    /* What has at most this order, as once k elements of it or above have been seen: places rise from chunk to chunk, so that an
     * element comes behind those of its number in the chunks before. */
    __device__ __forceinline__ void pass_over(uint32_t order)
    {
        const float number = tl_order_number(smallest ? ~order : order);
        low = smallest ? number : -TL_INF;
        high = smallest ? TL_INF : number;
    }
    /* Also where an end of the interval is no number. */
    __device__ __forceinline__ bool may_pass(value v) const { return !(v <= high) | !(low <= v); }
};

struct streamed_ranks {
    typedef rank_t value;

    const rank_t *ranks;
    int64_t n;
    uint32_t chunks;

    __device__ __forceinline__ streamed_ranks(const rank_t *ranks, int64_t n)
        : ranks(ranks), n(n), chunks((uint32_t)((n - 1) / (EACH * STREAM_THREADS)) + 1)
    {}
    __device__ __forceinline__ window at(uint32_t) const { return {}; }
    __device__ __forceinline__ void load(uint32_t chunk, value (&v)[EACH]) const
    {
        TL_UNROLL_FOR (int e = 0; e < EACH; e++) {
            const int64_t i = ((int64_t)chunk * EACH + e) * STREAM_THREADS + threadIdx.x;
            v[e] = i < n ? ranks[i] : 0;
        }
    }
    __device__ __forceinline__ rank_t rank(value v, const window &, int) const { return v; }
    __device__ __forceinline__ void pass_over(uint32_t) {}
    __device__ __forceinline__ bool may_pass(value) const { return true; }
};

/* A number that the `order` of at least k threads reaches, or 0: the largest one or, where few bits tell them apart, one that at most
 * k / 4 others reach. */
__device__ __forceinline__ uint32_t about_kth(uint32_t order, int k)
{
    uint32_t found = 0;
#pragma unroll 1
    for (uint32_t bit = UINT32_C(1) << 31; bit; bit /= 2) {
        const int count = __syncthreads_count(order >= (found | bit));
        if (count < k) continue;
        found |= bit;
        if (count <= k + k / 4) break;
    }
    return found;
}

/* Leaves the k largest of the list's s.filled > k ranks. A limit that they are above, and no other. */
__device__ __forceinline__ rank_t keep_top(rank_t *list, int k, int place_bits, top_state &s)
{
    const int n = s.filled;
    const rank_t limit = least_of_top(list, n, k, place_bits, s) - 1;
    if (threadIdx.x == 0) s.filled = 0;
    for (int from = 0; from < n; from += blockDim.x) {
        const rank_t rank = from + (int)threadIdx.x < n ? list[from + threadIdx.x] : 0;
        __syncthreads(); /* only what has been read is overwritten */
        append(rank, limit, list, &s.filled);
    }
    __syncthreads();
    return limit;
}

/* The k largest ranks of a row become the list, of s.filled ranks, in any order, and perhaps some more, but no more than
 * `at_end`; all threads see it then. The list has room for a chunk more than `most` ranks, and the limit is raised where it has more
 * than these or, when the elements seen have doubled, more than `enough`. */
template <class Row>
__device__ __forceinline__ void gather_stream(Row row, int k, int enough, int most, int at_end, int place_bits,
                                              top_state &s, rank_t *list)
{
    rank_t limit = 0; /* what is not above it is not among the k first */
    typename Row::value v[EACH], next[EACH];
    row.load(0, v);
#pragma unroll 1
    for (uint32_t chunk = 0;; chunk++) {
        const bool last = chunk + 1 == row.chunks;
        if (!last) row.load(chunk + 1, next);
        const window w = row.at(chunk);
        /* The k-th of the threads' largest orders: while k is no more than 3/4 of them, few other elements lie above it. */
        if (chunk == 0 && 4 * k <= 3 * STREAM_THREADS) {
            rank_t best = 0;
            TL_UNROLL_FOR (int e = 0; e < EACH; e++)
                best = max(best, row.rank(v[e], w, e));
            const uint32_t order = about_kth((uint32_t)(best >> 32), k);
            limit = (rank_t)order << 32;
            if (order > 1) row.pass_over(order - 2); /* one less may be that of -0, which compares as 0 does */
        }
        int filled = 0;
        TL_UNROLL_FOR (int e = 0; e < EACH; e += 4) {
            bool any = false;
            TL_UNROLL_FOR (int c = 0; c < 4; c++)
                any |= row.may_pass(v[e + c]);
            if (!__any_sync(~0u, any)) continue;
            TL_UNROLL_FOR (int c = 0; c < 4; c++) { /* mostly one of them */
                const bool may = row.may_pass(v[e + c]);
                if (!__any_sync(~0u, may)) continue;
                const rank_t rank = may ? row.rank(v[e + c], w, e + c) : 0;
                filled = max(filled, append(rank, limit, list, &s.filled));
            }
        }
        const bool doubled = (chunk & (chunk + 1)) == 0;
        if (__syncthreads_or(last || filled > (doubled ? enough : most))) {
            const int ranks = s.filled;
            if (last && ranks <= at_end) return;
            if (!last && ranks <= STREAM_THREADS) { /* the list stays as it is: it has room */
                const uint32_t order = threadIdx.x < ranks ? (uint32_t)(list[threadIdx.x] >> 32) : 0;
                limit = max(limit, (rank_t)about_kth(order, k) << 32);
            } else {
                limit = keep_top(list, k, place_bits, s);
            }
            if (last) return;
            row.pass_over((uint32_t)(limit >> 32));
        } else if (chunk == 0) {
            row.pass_over((uint32_t)(limit >> 32));
        }
        TL_UNROLL_FOR (int e = 0; e < EACH; e++)
            v[e] = next[e];
    }
}

/* A block owns part blockIdx.y of rows blockIdx.x, + gridDim.x, ..., of n elements of x or of n ranks. The k first of a row
 * (`size`, rounded up to a power of two) are sorted in shared memory and written; those of a part become candidates of the
 * row, in any order, with zeros where it has fewer. */
template <bool RANKS>
__global__ void __launch_bounds__(STREAM_THREADS, RANKS ? 1 : RESIDENT)
    stream_kernel(const float *x, const rank_t *ranks, int64_t rows, int64_t n, int64_t inner, int k, int size,
                  int64_t part, int enough, int most, int place_bits, int smallest, rank_t *__restrict__ candidates,
                  uint32_t *__restrict__ out)
{
    TL_DYNAMIC_SHARED(rank_t, list);
    __shared__ top_state s;
    for (int d = threadIdx.x; d < DIGITS; d += blockDim.x)
        s.count[d] = 0;
    const int64_t first = blockIdx.y * part, length = min(part, n - first);
    const int own = (int)min((int64_t)k, length), at_end = candidates ? own : max(size, AT_ONCE);
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
        if (threadIdx.x == 0) s.filled = 0;
        __syncthreads();
        if constexpr (RANKS)
            gather_stream(streamed_ranks(ranks + row * n, n), k, enough, most, at_end, place_bits, s, list);
        else
            gather_stream(
                streamed_elements(x + (row / inner * n + first) * inner + row % inner, length, inner, first, smallest),
                own, enough, most, at_end, place_bits, s, list);
        if (candidates) {
            rank_t *const to = candidates + (row * gridDim.y + blockIdx.y) * k;
            for (int i = threadIdx.x; i < k; i += blockDim.x)
                to[i] = i < own ? list[i] : 0;
        } else {
            int runs = 2;
            while (runs < s.filled)
                runs *= 2;
            for (int i = s.filled + threadIdx.x; i < runs; i += blockDim.x)
                list[i] = 0;
            __syncthreads();
            sort_list(list, runs);
            for (int i = threadIdx.x; i < k; i += blockDim.x)
                out[(row / inner * k + i) * inner + row % inner] = tl_rank_place(list[i]);
        }
        __syncthreads();
    }
}

/* Its launch. */
template <bool RANKS>
int32_t stream(tl_context *ctx, const float *x, const rank_t *ranks, int64_t rows, int64_t n, int64_t inner, int64_t k,
               int64_t part, int place_bits, int smallest, rank_t *candidates, uint32_t *out)
{
    /* Room for k ranks and two chunks, so that every other chunk finds room even if all of it passes; or for the whole part. */
    const int64_t chunk = EACH * STREAM_THREADS;
    const bool whole = part <= k + 2 * chunk;
    int size = 2;
    while (size < k)
        size *= 2;
    const int64_t room = std::max({whole ? part : k + 2 * chunk, (int64_t)size, (int64_t)AT_ONCE});
    const dim3 grid(tl_grid(rows, 1), (unsigned)tl_ceil_div(n, part));
    const auto kernel = stream_kernel<RANKS>;
    TL_TRY(tl_allow_shared(ctx, kernel, room * sizeof(rank_t)));
    return tl_launch_dynamic(ctx, "topk", kernel, grid, STREAM_THREADS, room * sizeof(rank_t), x, ranks, rows, n, inner,
                             (int)k, size, part, (int)(whole ? part : k + k / 2), (int)(whole ? part : k + chunk),
                             place_bits, smallest, candidates, out);
}

} /* namespace */

/* Where rows are fewer than multiprocessors, and k is small beside them, many blocks search the parts of a row, if that spares
 * more than a second launch takes: it costs the time of some elements of a row. */
int32_t tl_long_top(tl_context *ctx, const float *x, int64_t rows, int64_t n, int64_t inner, int64_t k, int smallest,
                    uint32_t *out)
{
    int place_bits = 1;
    while (place_bits < 32 && (int64_t)1 << place_bits < n)
        place_bits++;
    const int64_t sms = tl_cuda_sms(ctx), resident = RESIDENT * sms;
    const int64_t shortest = std::max(TOP_PART, 8 * k), parts = std::min(resident / rows, n / shortest);
    const bool in_parts = parts > 1 && n * (sms - rows) >= SECOND_LAUNCH * sms;
    const int64_t part = in_parts ? tl_ceil_div(n, parts) : n, whole = tl_ceil_div(n, part);
    tl_scratch<rank_t> candidates(ctx);
    if (in_parts) TL_TRY(candidates.allocate(rows * whole * k));
    TL_TRY(stream<false>(ctx, x, nullptr, rows, n, inner, k, part, place_bits, smallest, candidates, out));
    if (!in_parts) return TORCHLEAN_OK;
    return stream<true>(ctx, nullptr, candidates, rows, whole * k, inner, k, whole * k, place_bits, smallest, nullptr,
                        out);
}
