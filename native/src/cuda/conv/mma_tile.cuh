/* A thread block's tile of a convolution's product at float32 accuracy, and the pipeline that feeds it.
 *
 * The inner dimension goes by in slices of SLICE columns through a ring of stages in shared memory. Two slices are a
 * chain: three TF32 products per column (device/tf32_split.cuh) on tensor cores, whose sums are then added to float32
 * registers by ordinary additions, chain after chain. That is the order of additions.
 *
 * The guard. Infinities, NaN and magnitudes from 2^114 on give a NaN in tl_split_dekker or in the packed weights and with it a
 * result that is not finite; a magnitude below 2^-100 other than 0 is seen where it is split. Either makes the thread
 * block compute the same columns again, from the same stages, with chains of fused multiply-adds. */
#pragma once

#include "cuda/device/async_copy.cuh"
#include "cuda/device/tf32_split.cuh"
#include "cuda/runtime/launch.cuh"

namespace tl_conv {

/* Columns of a slice; a chain is two of them. */
constexpr int SLICE = 16, CHAIN = 2 * SLICE;
static_assert(CHAIN == TL_DRAIN, "a chain ends where device/tf32_split.cuh wants it");
/* ---- tiles ------------------------------------------------------------------------------------------------------- */

/* BM x BN elements; a warp has MT·16 rows by NT·8 columns of it, a thread those of mma's accumulator: rows lane / 4 and
 * 8 further, columns lane % 4 · 2 and the next one. */
template <int MT_, int NT_, int WARPS_M_> struct Tile {
    static constexpr int MT = MT_, NT = NT_, WARPS_M = WARPS_M_, WARPS_N = 4 / WARPS_M, THREADS = 128;
    static constexpr int BM = 16 * MT * WARPS_M, BN = 8 * NT * WARPS_N;
    /* Thread blocks that share a multiprocessor: their registers hold the sums twice, and the operands. */
    static constexpr int RESIDENT = MT * NT >= 12 ? 2 : MT * NT >= 6 ? 3 : 4;
    using Sums = float[MT][NT][4];

    static __device__ __forceinline__ int lane() { return (int)(threadIdx.x % 32); }
    static __device__ __forceinline__ int warp_m() { return (int)(threadIdx.x / 32 % WARPS_M); }
    static __device__ __forceinline__ int warp_n() { return (int)(threadIdx.x / 32 / WARPS_M); }
    /* Where element e of sums[mt][nt] belongs. */
    static __device__ __forceinline__ int row(int mt, int e)
    {
        return (warp_m() * MT + mt) * 16 + lane() / 4 + e / 2 * 8;
    }
    static __device__ __forceinline__ int column(int nt, int e)
    {
        return (warp_n() * NT + nt) * 8 + lane() % 4 * 2 + e % 2;
    }

    static __device__ __forceinline__ void clear(Sums &sums)
    {
        TL_UNROLL_FOR (int i = 0; i < MT * NT * 4; i++)
            sums[i / 4 / NT][i / 4 % NT][i % 4] = 0.0f;
    }
    static __device__ __forceinline__ void add(Sums &sums, const Sums &more)
    {
        TL_UNROLL_FOR (int i = 0; i < MT * NT * 4; i++)
            sums[i / 4 / NT][i / 4 % NT][i % 4] += more[i / 4 / NT][i / 4 % NT][i % 4];
    }
    static __device__ __forceinline__ bool finite(const Sums &sums)
    {
        float zero = 0.0f;
        TL_UNROLL_FOR (int i = 0; i < MT * NT * 4; i++)
            zero = fmaf(sums[i / 4 / NT][i / 4 % NT][i % 4], 0.0f, zero);
        return zero == 0.0f;
    }

    /* Sums of 16 rows += a b over 8 columns, small products first; NT accumulators take turns. */
    static __device__ __forceinline__ void multiply(float (&sums)[NT][4], const uint32_t (&ah)[4],
                                                    const uint32_t (&al)[4], const uint32_t (&bh)[NT][2],
                                                    const uint32_t (&bl)[NT][2])
    {
        tl_mma_tf32(sums, al, bh);
        tl_mma_tf32(sums, ah, bl);
        tl_mma_tf32(sums, ah, bh);
    }

    /* The same for one column by fused multiply-adds: x of both rows, y of a thread's columns. */
    static __device__ __forceinline__ void fused(float (&sums)[NT][4], const float (&x)[2], const float (&y)[NT][2])
    {
        TL_UNROLL_FOR (int i = 0; i < NT * 4; i++)
            sums[i / 4][i % 4] = fmaf(x[i % 4 / 2], y[i / 4][i % 2], sums[i / 4][i % 4]);
    }

    /* Sums go to base[row·row_stride + targets[column]], added to what is there with `add`, then plus bias[row] (NULL:
     * none), for rows below `rows` and columns below `left`. Two columns that are neighbours in memory are one access. What
     * is there in two columns of all rows is on its way before one is waited for. Indices are below 2^32 and computed modulo
     * 2^32. */
    static __device__ __forceinline__ void store(float *base, uint32_t row_stride, const uint32_t *targets, int left,
                                                 uint32_t row0, uint32_t rows, bool add, const float *bias,
                                                 const Sums &sums)
    {
        TL_UNROLL_FOR (int nt = 0; nt < NT; nt++) {
            const int at = column(nt, 0);
            if (at >= left) continue;
            const bool second = at + 1 < left;
            const uint32_t to0 = targets[at], to1 = targets[at + 1];
            float2 old[2 * MT];
            if (add)
                TL_UNROLL_FOR (int half = 0; half < 2 * MT; half++) {
                    const uint32_t r = row0 + row(half / 2, half % 2 * 2);
                    if (r >= rows) continue;
                    const float *p = base + (uint32_t)(r * row_stride + to0),
                                *q = base + (uint32_t)(r * row_stride + to1);
                    if (second && q == p + 1 && ((uintptr_t)p & 7) == 0)
                        old[half] = *reinterpret_cast<const float2 *>(p);
                    else
                        old[half].x = *p, old[half].y = second ? *q : 0.0f;
                }
            TL_UNROLL_FOR (int half = 0; half < 2 * MT; half++) {
                const uint32_t r = row0 + row(half / 2, half % 2 * 2);
                if (r >= rows) continue;
                float x = sums[half / 2][nt][half % 2 * 2], y = sums[half / 2][nt][half % 2 * 2 + 1];
                const float b = bias ? bias[r] : 0.0f;
                float *p = base + (uint32_t)(r * row_stride + to0), *q = base + (uint32_t)(r * row_stride + to1);
                if (add) x = old[half].x + x, y = old[half].y + y;
                if (second && q == p + 1 && ((uintptr_t)p & 7) == 0) {
                    *reinterpret_cast<float2 *>(p) = bias ? make_float2(x + b, y + b) : make_float2(x, y);
                } else {
                    *p = bias ? x + b : x;
                    if (second) *q = bias ? y + b : y;
                }
            }
        }
    }
};

/* Launches a kernel of such tiles, which begins with tl_wait_for_earlier(). */
template <class Job>
static int32_t launch_tiles(tl_context *ctx, const char *name, void (*kernel)(Job), dim3 grid, int threads,
                            size_t bytes, const Job &job)
{
    TL_TRY(tl_allow_shared(ctx, kernel, bytes));
    return tl_launch_ahead(ctx, name, kernel, grid, threads, bytes, job);
}

/* ---- the pipeline ------------------------------------------------------------------------------------------------ */

/* Slices first .. last - 1 (whole chains) in blocks of `block` slices, whose sums go to store(block index, sums). The
 * loader provides
 *     T, STAGES, STAGE    tile, stages and a stage's floats
 *     seek(slice)         the next slice to copy; nothing is being read
 *     fetch(stage)        copy it, if there is one, into a stage, and end the stage
 *     tensor<half>(stage, chain, least)  chain += 8 columns of the slice in a stage, on tensor cores
 *     plain(stage, slice, chain)          chain += the slice, by fused multiply-adds
 * A thread copies between the halves, when its warp's products are on their way.
 * All threads of the block call this. */
template <class Loader, class Store>
static __device__ __forceinline__ void run_slices(Loader &loader, float *stages, int first, int last, int block,
                                                  bool only_plain, const Store &store)
{
    using T = typename Loader::T;
    constexpr int STAGES = Loader::STAGES;
    auto stage_of = [&](int slice) { return stages + (uint32_t)slice % STAGES * Loader::STAGE; };
    auto restart = [&](int slice) {
        loader.seek(slice);
#pragma unroll 1
        for (int s = slice; s < slice + STAGES - 1; s++)
            loader.fetch(stage_of(s));
    };
    restart(first);
    bool plain = only_plain;
    int slice = first;
#pragma unroll 1
    for (int begin = first; begin < last;) {
        const int end = min(begin + block, last);
        typename T::Sums sums;
        T::clear(sums);
        uint32_t least = UINT32_MAX;
#pragma unroll 1
        while (slice < end) {
            typename T::Sums chain;
            T::clear(chain);
            if (!plain) {
                TL_UNROLL_FOR (int half = 0; half < 2; half++, slice++) {
                    tl_copy_wait<STAGES - 2>();
                    __syncthreads();
                    loader.template tensor<0>(stage_of(slice), chain, least);
                    loader.fetch(stage_of(slice + STAGES - 1));
                    loader.template tensor<1>(stage_of(slice), chain, least);
                }
            } else {
#pragma unroll 1
                for (int half = 0; half < 2; half++, slice++) {
                    tl_copy_wait<STAGES - 2>();
                    __syncthreads();
                    loader.fetch(stage_of(slice + STAGES - 1));
                    loader.plain(stage_of(slice), slice, chain);
                }
            }
            T::add(sums, chain);
        }
        if (!plain && __syncthreads_or(tl_split_too_small(least) || !T::finite(sums))) {
            plain = true;
            slice = begin;
            tl_copy_wait<0>();
            __syncthreads();
            restart(begin);
            continue;
        }
        store(begin / block, sums);
        plain = only_plain;
        begin = end;
    }
}

} // namespace tl_conv
