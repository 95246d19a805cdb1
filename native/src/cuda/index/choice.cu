/* Places of the k largest or smallest elements on CUDA: of short rows lanes of a warp sort all; of long ones a
 * block keeps a list of candidates (long_top.cu), and for a long list all are sorted (sorted_top.cu). formula/order.h gives every
 * element of a row a rank of its own, so they are the same whatever looks at which part of the row. */
#include "cuda/index/long_top.cuh"
#include "cuda/index/select.h"
#include "cuda/runtime/launch.cuh"
#include "formula/order.h"
#include "generated/index.h"

namespace {

typedef unsigned long long rank_t;

/* Ranks are distinct, so there is one list of the k largest, falling, and every network of comparisons gives it. Absent
 * elements have the rank 0, below that of every element. */

constexpr int TEAM_THREADS = 128;

__device__ __forceinline__ void exchange(rank_t &first, rank_t &second)
{
    const rank_t larger = max(first, second);
    second = min(first, second);
    first = larger;
}

/* Every `size` neighbours of v, which are bitonic, fall. */
template <int E> __device__ __forceinline__ void order_bitonic(rank_t (&v)[E], int size)
{
    TL_UNROLL_FOR (int step = size / 2; step > 0; step /= 2)
        TL_UNROLL_FOR (int e = 0; e < E; e++)
            if (!(e & step)) exchange(v[e], v[e + step]);
}

/* W lanes sort their W·E ranks: lane l ends with those at E·l .. E·l + E - 1 of the falling list. */
template <int W, int E> __device__ __forceinline__ void sort_team(rank_t (&v)[E])
{
    const uint32_t lane = threadIdx.x % W;
    TL_UNROLL_FOR (int run = 2; run <= E;
                   run *= 2) { /* bitonic merges: of two falling lists, the second read backwards */
        TL_UNROLL_FOR (int e = 0; e < E; e++)
            if ((e & (run - 1)) < run / 2) exchange(v[e], v[e ^ (run - 1)]);
        order_bitonic(v, run / 2);
    }
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
        order_bitonic(v, E);
    }
}

/* W neighbouring lanes own a row of up to W·E elements, which lie `inner` apart, and sort them. They hold neighbours of the list: written
 * through shared memory, neighbouring lanes write them. */
template <int W, int E>
__global__ void __launch_bounds__(TEAM_THREADS)
    team_top_kernel(const float *__restrict__ x, int64_t rows, int64_t n, int64_t inner, int64_t k, int smallest,
                    uint32_t *__restrict__ out)
{
    __shared__ uint32_t places[TEAM_THREADS * (E + 1)];
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
    sort_team<W, E>(v);
    TL_UNROLL_FOR (int e = 0; e < E; e++)
        places[threadIdx.x * (E + 1) + e] = tl_rank_place(v[e]);
    __syncwarp();
    if (own >= rows) return;
    for (uint32_t j = lane; j < k; j += W)
        out[j * inner] = places[(threadIdx.x - lane + j / E) * (E + 1) + j % E];
}

template <int W, int E>
int32_t team_top(tl_context *ctx, const float *x, int64_t rows, int64_t n, int64_t inner, int64_t k, int smallest,
                 uint32_t *out)
{
    return tl_launch(ctx, "topk", team_top_kernel<W, E>, tl_grid(rows, TEAM_THREADS / W), TEAM_THREADS, x, rows, n,
                     inner, k, smallest, out);
}

} /* namespace */

/* ---- the operations ------------------------------------------------------------------------------------------------ */

extern "C" int32_t tl_cuda_topk(tl_context *ctx, const float *x, int64_t outer, int64_t n, int64_t inner, int64_t k,
                                int64_t largest, uint32_t *out)
{
    const int64_t rows = outer * inner;
    const int smallest = !largest;
    if (rows == 0 || k == 0) return TORCHLEAN_OK;
    switch (tl_select_top(n, k)) {
    case TL_TOP_LISTED: return tl_long_top(ctx, x, rows, n, inner, k, smallest, out);
    case TL_TOP_SORTED: return tl_sorted_top(ctx, x, outer, n, inner, k, smallest, out);
    case TL_TOP_LANES: break;
    }
    if (n <= 16) return team_top<2, 8>(ctx, x, rows, n, inner, k, smallest, out);
    if (n <= 32) return team_top<4, 8>(ctx, x, rows, n, inner, k, smallest, out);
    if (n <= 64) return team_top<8, 8>(ctx, x, rows, n, inner, k, smallest, out);
    if (n <= 128) return team_top<8, 16>(ctx, x, rows, n, inner, k, smallest, out);
    if (n <= 256) return team_top<16, 16>(ctx, x, rows, n, inner, k, smallest, out);
    if (n <= 512) return team_top<32, 16>(ctx, x, rows, n, inner, k, smallest, out);
    return team_top<32, 32>(ctx, x, rows, n, inner, k, smallest, out);
}
