/* The reduction trees of formula/sum_tree.h on CUDA: the folds a kernel of any family ends its own sums with (device
 * functions), and whole arrays in one call (host functions, defined in reduce/trees.cu).
 *
 * An operation is a struct with identity() and join(a, b). Sum follows the trees to the letter; extremes have no order
 * and take the same path. join is commutative, so the butterflies below, where both partners of an exchange compute
 * the same join with its sides swapped, give every thread the bits of the tree. */
#pragma once

#include "cuda/runtime/launch.cuh"
#include "formula/exact.h"
#include "formula/sum_tree.h"

struct tl_sum_op {
    static __device__ __forceinline__ float identity() { return 0.0f; }
    template <class T> static __device__ __forceinline__ T join(T a, T b) { return a + b; }
};

struct tl_max_op {
    static __device__ __forceinline__ float identity() { return -TL_INF; }
    static __device__ __forceinline__ float join(float a, float b) { return tl_max(a, b); }
};

struct tl_min_op {
    static __device__ __forceinline__ float identity() { return TL_INF; }
    static __device__ __forceinline__ float join(float a, float b) { return tl_min(a, b); }
};

/* Maximum that passes NaN over. */
struct tl_number_max_op {
    static __device__ __forceinline__ float join(float a, float b) { return fmaxf(a, b); }
};

template <class Op, class T> static __device__ __forceinline__ T tl_join(T a, T b) { return Op::join(a, b); }
template <class Op> static __device__ __forceinline__ float4 tl_join(float4 a, float4 b)
{
    return make_float4(Op::join(a.x, b.x), Op::join(a.y, b.y), Op::join(a.z, b.z), Op::join(a.w, b.w));
}

template <class Op> static __device__ __forceinline__ float4 tl_identity4()
{
    return make_float4(Op::identity(), Op::identity(), Op::identity(), Op::identity());
}

/* ---- folds of lanes in halves ---------------------------------------------------------------------------------------
 * All 32 threads of the warp must call these; every thread of a group gets the group's result. Blocks are wide in x:
 * a warp is 32 neighbouring threadIdx.x. */

/* G consecutive threads (a power of two up to 32), thread g of the group holding lane g. */
template <class Op, int G, class T> static __device__ __forceinline__ T tl_fold_group(T a)
{
    TL_UNROLL_FOR (int s = G / 2; s > 0; s /= 2)
        a = Op::join(a, __shfl_xor_sync(0xffffffffu, a, s));
    return a;
}

/* G consecutive threads, thread g holding lanes 4g..4g+3. In the first two exchanges a thread keeps half of what it has
 * and sends the other half, so 8 shuffles do for a warp instead of 20: afterwards it holds one of the four residues,
 * selected by the top two bits of g, and the two residue levels of the fold come last as the tree wants them. */
template <class Op, int G> static __device__ __forceinline__ float tl_fold_group(float4 v)
{
    constexpr unsigned ALL = 0xffffffffu;
    if (G == 1) return Op::join(Op::join(v.x, v.z), Op::join(v.y, v.w));
    const int g = (int)threadIdx.x;
    const bool upper = (g & (G / 2)) != 0;
    float a = upper ? v.z : v.x, b = upper ? v.w : v.y;
    a = Op::join(a, __shfl_xor_sync(ALL, upper ? v.x : v.z, G / 2));
    b = Op::join(b, __shfl_xor_sync(ALL, upper ? v.y : v.w, G / 2));
    if (G == 2) {
        a = Op::join(a, __shfl_xor_sync(ALL, a, 1));
        b = Op::join(b, __shfl_xor_sync(ALL, b, 1));
        return Op::join(a, b);
    }
    const bool odd = (g & (G / 4)) != 0;
    a = Op::join(odd ? b : a, __shfl_xor_sync(ALL, odd ? a : b, G / 4));
    TL_UNROLL_FOR (int s = G / 8; s > 0; s /= 2)
        a = Op::join(a, __shfl_xor_sync(ALL, a, s));
    a = Op::join(a, __shfl_xor_sync(ALL, a, G / 2));
    return Op::join(a, __shfl_xor_sync(ALL, a, G / 4));
}

/* V lanes or quadruples of lanes in registers, V a power of two: element j is G·j lanes after element 0. */
template <class Op, int V, class T, int N> static __device__ __forceinline__ T tl_fold_array(T (&v)[N])
{
    if constexpr (V > 1) {
        TL_UNROLL_FOR (int j = 0; j < V / 2; j++)
            v[j] = tl_join<Op>(v[j], v[j + V / 2]);
        return tl_fold_array<Op, V / 2>(v);
    } else {
        return v[0];
    }
}

/* A block of TL_TREE_THREADS = 256 threads (x only) holds the 1024 lanes of a leaf: thread t lanes 4t..4t+3, which are v, or
 * t, t+256, t+512, t+768, which is how scalar loads coalesce, and v is their fold. The first three levels that are left join
 * warps, through shared memory: warp 0 reads v of t, t+32, ..., t+224. The result is valid in warp 0. `shared` may be used
 * again after the next __syncthreads(). */
enum { TL_TREE_THREADS = 256 };

template <class Op, class T> static __device__ __forceinline__ auto tl_fold_block(T v, T *shared)
{
    shared[threadIdx.x] = v;
    __syncthreads();
    decltype(tl_fold_group<Op, 32>(v)) result = Op::identity();
    if (threadIdx.x < 32) {
        T w[8];
        TL_UNROLL_FOR (int j = 0; j < 8; j++)
            w[j] = shared[threadIdx.x + 32 * j];
        result = tl_fold_group<Op, 32>(tl_fold_array<Op, 8>(w));
    }
    return result;
}

/* The sum of n terms f(i), floats or doubles, by the row tree, for all threads of a block of TL_TREE_THREADS: leaf after leaf, whose
 * sums go to the lanes of the level above, at most 2^28 terms in all. */
template <class T, class F> static __device__ __forceinline__ T tl_sum_row(int64_t n, F f)
{
    __shared__ T shared[TL_TREE_THREADS], result;
    T above[4] = {};
    for (int64_t first = 0, leaf = 0; first < n; first += TL_SUM_LEAF, leaf++) {
        const int left = (int)min(n - first, (int64_t)TL_SUM_LEAF);
        T lanes[4] = {};
        for (int l = (int)threadIdx.x; l < left; l += TL_SUM_LANES)
            TL_UNROLL_FOR (int j = 0; j < 4; j++)
                if (l + j * TL_TREE_THREADS < left) lanes[j] += f(first + l + j * TL_TREE_THREADS);
        __syncthreads();
        const T sum = tl_fold_block<tl_sum_op>(tl_fold_array<tl_sum_op, 4>(lanes), shared);
        if (threadIdx.x == 0) result = sum;
        __syncthreads();
        if (n <= TL_SUM_LEAF) return result;
        TL_UNROLL_FOR (int j = 0; j < 4; j++)
            if (leaf % TL_SUM_LANES == j * TL_TREE_THREADS + (int)threadIdx.x) above[j] += result;
    }
    __syncthreads();
    const T sum = tl_fold_block<tl_sum_op>(tl_fold_array<tl_sum_op, 4>(above), shared);
    if (threadIdx.x == 0) result = sum;
    __syncthreads();
    return result;
}

/* ---- whole arrays (reduce/trees.cu) ----------------------------------------------------------------------------- */

/* out[r] = sum over c of x[r,c] by the row tree, ended by tl_end_sum with `count`. cols = 0 gives 0. rows >= 1. */
int32_t tl_cuda_row_sums(tl_context *ctx, const float *x, int64_t rows, int64_t cols, int64_t count, float *out);
/* out[o,c] = sum over r of x[o,r,c] by the column tree; with count > 0 divided by it. rows = 0 gives 0. outer, cols >=
 * 1. */
int32_t tl_cuda_column_sums(tl_context *ctx, const float *x, int64_t outer, int64_t rows, int64_t cols, int64_t count,
                            float *out, tl_order order = TL_AFTER);
/* The maxima, or the `least`; cols or rows >= 1. */
int32_t tl_cuda_row_extremes(tl_context *ctx, const float *x, int64_t rows, int64_t cols, bool least, float *out);
int32_t tl_cuda_column_extremes(tl_context *ctx, const float *x, int64_t outer, int64_t rows, int64_t cols, bool least,
                                float *out);
