/* Rows of more than a leaf, held on chip by a cluster of blocks (sm_90 and later): read once, reduced several times, written.
 *
 * A cluster of C blocks owns a row. The row tree (formula/sum_tree.h) has 1024 lanes per leaf; block b of the cluster
 * owns lanes b·1024/C .. (b + 1)·1024/C - 1 of every leaf, whatever the row's length, so the blocks share the work
 * evenly. A thread owns one lane of every G-th leaf: its elements lie 1024 apart, in shared memory that no other thread
 * touches, and it adds each leaf's in the order of the tree. The lanes' sums are read by every block from the shared
 * memory of all (each folds for itself, which saves a second exchange). Barriers of the cluster stand where another
 * block's memory is read next; each exchange has memory of its own, so none is overwritten while somebody still reads
 * it, and the last barrier keeps a block from leaving before its memory has been read.
 *
 * Machine code of older chips has no clusters: these kernels are empty there and tl_launch_cluster says so. */
#pragma once

#include "cuda/device/row_select.h"
#include "cuda/device/row_tile.cuh"

enum { TL_CLUSTER_SMALL = 6 * TL_SUM_LEAF }; /* up to here two quarters of rows fit a multiprocessor */

/* ---- exchange between the blocks of a cluster -------------------------------------------------------------------- */

/* What every thread of the cluster wrote before is visible to all after. */
static __device__ __forceinline__ void tl_cluster_arrive()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release;" ::: "memory");
#endif
}
/* The same where nothing is to be seen, only a block to stay until the others have read its memory: what they read they have by then.
 * The other waits for all that the thread has written, and fences the whole GPU. */
static __device__ __forceinline__ void tl_cluster_leave()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
#endif
}
static __device__ __forceinline__ void tl_cluster_wait()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#endif
}

/* The value at `p`, an address in this block's shared memory, as block `rank` of the cluster has it. */
static __device__ __forceinline__ float tl_cluster_read(const float *p, int rank)
{
    float v = 0.0f;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    uint32_t at;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(tl_shared_address(p)), "r"(rank));
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(at) : "memory");
#endif
    return v;
}

/* ---- the row ----------------------------------------------------------------------------------------------------- */

/* C blocks, each of G threads per lane. ARRAYS rows (x; or x and g) are held, SUMS sums are taken. */
template <int C_, int G_, int ARRAYS_, int SUMS_> struct tl_cluster_row {
    static constexpr int C = C_, G = G_, LANES = TL_SUM_LANES / C, THREADS = LANES * G, WARPS = THREADS / 32;
    static constexpr int STEPS = TL_SUM_LEAF / TL_SUM_LANES, BLOCKS = 1024 / THREADS;
    static_assert(LANES % 32 == 0 && THREADS <= 1024, "whole warps of a leaf");

    int64_t row;
    int n, rank, lane, first;

    __device__ __forceinline__ explicit tl_cluster_row(int64_t cols)
        : row(blockIdx.x / C), n((int)cols), rank((int)(blockIdx.x % C)), lane((int)threadIdx.x % LANES),
          first((int)threadIdx.x / LANES)
    {}

    static __host__ __device__ __forceinline__ int leaves(int64_t n)
    {
        return (int)((n + TL_SUM_LEAF - 1) / TL_SUM_LEAF);
    }
    static __host__ __device__ __forceinline__ int room(int64_t n)
    {
        return (int)((n + TL_SUM_LANES - 1) / TL_SUM_LANES) * LANES;
    }
    /* Dynamic shared memory: the arrays, the lanes of each sum, the leaves of the last one, the warps' maxima. */
    static size_t bytes(int64_t n)
    {
        return sizeof(float) * (size_t)(ARRAYS_ * room(n) + SUMS_ * leaves(n) * LANES + TL_CLUSTER_LEAVES + WARPS);
    }
    __device__ __forceinline__ float *array(int which) const
    {
        return reinterpret_cast<float *>(tl_dynamic_shared) + which * room(n);
    }
    __device__ __forceinline__ float *lanes(int which) const { return array(ARRAYS_) + which * leaves(n) * LANES; }
    __device__ __forceinline__ float *leaf_sums() const { return lanes(SUMS_); }
    __device__ __forceinline__ float *maxima() const { return leaf_sums() + TL_CLUSTER_LEAVES; }

    /* visit(slot, column) for this thread's elements of a leaf, in order: `slot` is where an array holds it. */
    template <class Visit> __device__ __forceinline__ void leaf_elements(int leaf, Visit visit) const
    {
        const int column = leaf * TL_SUM_LEAF + rank * LANES + lane, slot = leaf * STEPS * LANES + lane;
        if ((leaf + 1) * TL_SUM_LEAF <= n) {
#pragma unroll 8
            for (int k = 0; k < STEPS; k++)
                visit(slot + k * LANES, column + k * TL_SUM_LANES);
        } else {
#pragma unroll 1
            for (int k = 0; k < STEPS && column + k * TL_SUM_LANES < n; k++)
                visit(slot + k * LANES, column + k * TL_SUM_LANES);
        }
    }
    template <class Visit> __device__ __forceinline__ void elements(Visit visit) const
    {
#pragma unroll 1
        for (int leaf = first; leaf * TL_SUM_LEAF < n; leaf += G)
            leaf_elements(leaf, visit);
    }

    /* Requests the row that begins at `p` for array `which`. A whole leaf's copies differ by constants from one address: computed
     * from the column of each, they take twice the instructions. */
    __device__ __forceinline__ void request(int which, const float *p) const
    {
        float *const held = array(which);
#pragma unroll 1
        for (int leaf = first; leaf * TL_SUM_LEAF < n; leaf += G) {
            if ((leaf + 1) * TL_SUM_LEAF <= n) {
                const float *const from = p + (leaf * TL_SUM_LEAF + rank * LANES + lane);
                float *const to = held + leaf * STEPS * LANES + lane;
                TL_UNROLL_FOR (int k = 0; k < STEPS; k++)
                    tl_copy_async<4>(to + k * LANES, from + k * TL_SUM_LANES, true);
            } else {
                leaf_elements(leaf, [&](int slot, int column) { tl_copy_async<4>(held + slot, p + column, true); });
            }
        }
        tl_copy_commit();
    }

    /* The row's sum of term(slot, column); `which` counts the sums of a kernel from 0. */
    template <class Term> __device__ __forceinline__ float sum(int which, Term term) const
    {
        float *const own = lanes(which), *const sums = leaf_sums();
#pragma unroll 1
        for (int leaf = first; leaf * TL_SUM_LEAF < n; leaf += G) {
            float a = 0.0f;
            leaf_elements(leaf, [&](int slot, int column) { a += term(slot, column); });
            own[leaf * LANES + lane] = a;
        }
        tl_cluster_arrive();
        tl_cluster_wait();
        const int t = (int)threadIdx.x % 32, count = leaves(n);
#pragma unroll 1
        for (int leaf = (int)threadIdx.x / 32; leaf < count; leaf += WARPS) {
            float v[LANES / 32];
            TL_UNROLL_FOR (int j = 0; j < LANES / 32; j++) {
                float a[C];
                TL_UNROLL_FOR (int b = 0; b < C; b++)
                    a[b] = tl_cluster_read(own + leaf * LANES + 32 * j + t, b);
                v[j] = tl_fold_array<tl_sum_op, C>(a);
            }
            const float s = tl_fold_group<tl_sum_op, 32>(tl_fold_array<tl_sum_op, LANES / 32>(v));
            if (t == 0) sums[leaf] = 0.0f + s;
        }
        __syncthreads();
        /* the next sum's leaves go to the same place, after a barrier that follows this read */
        const float s = t % TL_CLUSTER_LEAVES < count ? sums[t % TL_CLUSTER_LEAVES] : 0.0f;
        return tl_fold_group<tl_sum_op, TL_CLUSTER_LEAVES>(s);
    }

    /* The row's maximum from the threads' own, NaNs passed over. Once per kernel. */
    __device__ __forceinline__ float max(float m) const
    {
        float *const own = maxima();
        const int t = (int)threadIdx.x % 32;
        m = tl_fold_group<tl_number_max_op, 32>(m);
        if (t == 0) own[threadIdx.x / 32] = m;
        tl_cluster_arrive();
        tl_cluster_wait();
        TL_UNROLL_FOR (int i = t; i < C * WARPS; i += 32)
            m = fmaxf(m, tl_cluster_read(own + i % WARPS, i / WARPS));
        return tl_fold_group<tl_number_max_op, 32>(m);
    }
};

/* ---- launching --------------------------------------------------------------------------------------------------- */

/* Calls launch(tl_row_type<Row>()) for the cluster that holds a row of `cols` elements. */
template <int SUMS, class Launch> static bool tl_pick_cluster(int64_t cols, Launch launch)
{
    return cols <= TL_CLUSTER_SMALL ? launch(tl_row_type<tl_cluster_row<4, 1, 1, SUMS>>())
                                    : launch(tl_row_type<tl_cluster_row<8, 4, 1, SUMS>>());
}

/* Launches kernel<Row>(arguments...) with a cluster per row of `cols` elements. False if it does not run here: where the shared memory
 * is too small, or the kernel is an empty shell, which the machine code that was loaded decides, not the chip. */
template <class Row, class... Parameters, class... Arguments>
static bool tl_launch_cluster(tl_context *ctx, const char *name, void (*kernel)(Parameters...), int64_t rows,
                              int64_t cols, int32_t *status, Arguments... arguments)
{
    const size_t dynamic = Row::bytes(cols);
    cudaFuncAttributes attributes;
    if (cudaFuncGetAttributes(&attributes, kernel) != cudaSuccess || attributes.ptxVersion < 90 ||
        !tl_shared_fits(attributes, dynamic))
        return false;
    *status = tl_allow_shared(ctx, kernel, dynamic);
    if (*status) return true;
    cudaLaunchAttribute cluster = {};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = Row::C;
    cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    const cudaError_t error = tl_start_with(&cluster, tl_cuda_stream(ctx), kernel, (unsigned)(rows * Row::C),
                                            Row::THREADS, dynamic, arguments...);
    *status = error == cudaSuccess ? tl_cuda_launched(ctx, name) : tl_cuda_failed(ctx, error, name);
    return true;
}
