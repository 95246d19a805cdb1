/* Places of the k largest or smallest elements on CUDA. formula/order.h gives every element of a row a rank of its own, so they are
 * the same whatever looks at which part of the row. */
#include "cuda/index/long_top.cuh"
#include "cuda/runtime/launch.cuh"
#include "formula/order.h"
#include "generated/index.h"

namespace {

typedef unsigned long long rank_t;

/* ---- few rows ------------------------------------------------------------------------------------------------------ */

/* The place of an element in the sorted row is the number of elements that come before it, and to count these needs no other block:
 * where rows are few, this keeps all multiprocessors busy, while the sort of one warp is a long program that each runs once, and
 * waits for its instructions. A row of n elements takes n^2 comparisons, of about two instructions each. */
constexpr int COUNT_THREADS = 256, COUNT_WARPS = COUNT_THREADS / 32;
constexpr int64_t COUNTED_ROW = 4096;             /* the longest row that is counted: it stays in shared memory */
constexpr int64_t COMPARISONS = INT64_C(1) << 26; /* of all rows at most: 5 us, half the time of a warp's sort */

/* How many of the 32 orders from `chunk` on come before an element: before(order, place) says whether one does. */
template <class Before> __device__ __forceinline__ int count_before(const uint4 *chunk, Before before)
{
    int count = 0;
    TL_UNROLL_FOR (int i = 0; i < 8; i++) {
        const uint4 o = chunk[i];
        count += before(o.x, 4 * i) + before(o.y, 4 * i + 1) + before(o.z, 4 * i + 2) + before(o.w, 4 * i + 3);
    }
    return count;
}

/* A block owns 32 elements of row blockIdx.y, a lane of every warp one of them; each warp compares them with every 8th chunk of 32. Of
 * equal elements the first comes first. Behind the row stand orders that come before none: the least, at later places. */
__global__ void __launch_bounds__(COUNT_THREADS)
    count_top_kernel(const float *x, int n, int64_t inner, int64_t k, int smallest, uint32_t *out)
{
    __shared__ __align__(16) uint32_t order[COUNTED_ROW];
    __shared__ int before[COUNT_WARPS][32];
    tl_wait_for_earlier();
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int own = (int)blockIdx.x, chunks = (int)gridDim.x, i = 32 * own + lane;
    const int64_t row = blockIdx.y;
    x += row / inner * n * inner + row % inner;
    out += row / inner * k * inner + row % inner;
#pragma unroll 4
    for (int j = (int)threadIdx.x; j < 32 * chunks; j += COUNT_THREADS)
        order[j] = j < n ? (uint32_t)(tl_rank(x[j * inner], (uint32_t)j, smallest, 0) >> 32) : 0;
    __syncthreads();
    const uint32_t mine = order[i];
    int count = 0;
#pragma unroll 1
    for (int c = warp; c < chunks; c += COUNT_WARPS) {
        const uint4 *const chunk = reinterpret_cast<const uint4 *>(order + 32 * c);
        if (c < own)
            count += count_before(chunk, [=](uint32_t o, int) { return o >= mine; });
        else if (c > own)
            count += count_before(chunk, [=](uint32_t o, int) { return o > mine; });
        else
            count += count_before(chunk, [=](uint32_t o, int j) { return j < lane ? o >= mine : o > mine; });
    }
    before[warp][lane] = count;
    __syncthreads();
    if (warp > 0 || i >= n) return;
    TL_UNROLL_FOR (int w = 1; w < COUNT_WARPS; w++)
        count += before[w][lane];
    if (count < k) out[count * inner] = (uint32_t)i;
}

/* ---- many rows ----------------------------------------------------------------------------------------------------- */

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

} /* namespace */

/* ---- the operations ------------------------------------------------------------------------------------------------ */

extern "C" int32_t tl_cuda_topk(tl_context *ctx, const float *x, int64_t outer, int64_t n, int64_t inner, int64_t k,
                                int64_t largest, uint32_t *out)
{
    const int64_t rows = outer * inner;
    const int smallest = !largest;
    if (rows == 0 || k == 0) return TORCHLEAN_OK;
    /* A warp has few instructions for the first few elements, or for short rows. */
    if ((n > 512 || (n > 128 && k > 16)) && n <= COUNTED_ROW && rows <= COMPARISONS / (n * n))
        return tl_launch_ahead(ctx, "topk", count_top_kernel, dim3(tl_grid(n, 32), (unsigned)rows), COUNT_THREADS, 0, x,
                               (int)n, inner, k, smallest, out);
    if (n <= 16) return team_top<2, 8>(ctx, x, rows, n, inner, k, smallest, out);
    if (n <= 32) return team_top<4, 8>(ctx, x, rows, n, inner, k, smallest, out);
    if (n <= 64) return team_top<8, 8>(ctx, x, rows, n, inner, k, smallest, out);
    if (n <= 128) return team_top<8, 16>(ctx, x, rows, n, inner, k, smallest, out);
    if (n <= 256) return team_top<16, 16>(ctx, x, rows, n, inner, k, smallest, out);
    if (n <= 512) return team_top<32, 16>(ctx, x, rows, n, inner, k, smallest, out);
    if (n <= TEAM_ROW) return team_top<32, 32>(ctx, x, rows, n, inner, k, smallest, out);
    return tl_long_top(ctx, x, rows, n, inner, k, smallest, out);
}
