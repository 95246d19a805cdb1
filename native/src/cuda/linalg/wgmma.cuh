/* Matrix products at float32 accuracy by Hopper's warp group products (wgmma) on TF32 tensor cores: what the pipeline of
 * device/wgmma_pipeline.cuh needs of op(A)·op(B). Machine code for sm_90a only; elsewhere the kernel is empty
 * (linalg/wgmma.cu asks first).
 *
 * A block owns tiles of 128 x BN results, one after the other. Its producing groups read both operands of every other
 * step from global memory and store them K-major. A quarter of a producing warp stores either the eight chunks of one
 * row or four chunks of two rows four apart, both without bank conflicts.
 *
 * Each result is a sum of parts in order of k, fixed by n alone. Where the pipeline finds that a group's sums do not
 * count, its rows are computed again as chains of fused multiply-adds in increasing k. */
#pragma once

#include "cuda/device/wgmma_pipeline.cuh"
#include "cuda/linalg/select.h"

/* C[batch, m, p] = op(A)·op(B) + bias as in linalg/linalg.cuh, with rows of A and B in memory lda and ldb elements apart
 * and those of a product and the next a_batch and b_batch, whole and aligned 16 bytes all of them, and 0 past the end of a row;
 * batch·rows·columns tiles, fewer than 2^31. */
struct tl_wgmma_matmul_args {
    const float *A, *B, *bias;
    float *C;
    int64_t m, n, p, lda, ldb, a_batch, b_batch;
    uint32_t rows, columns, tiles;
    bool pairs; /* C takes two columns at once */
};

namespace tl_linalg_wgmma {

using namespace tl_wgmma;

constexpr int BM = TL_WGMMA_ROWS;
template <int BN> using ProductTile = Tile<2, BN, BN == 128 ? 4 : 6>;

} /* namespace tl_linalg_wgmma */

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

namespace tl_linalg_wgmma {

/* ---- producers --------------------------------------------------------------------------------------------------- */

/* One operand's part of a producing group, as rows of four floats in `held`.
 * TRANSPOSED, the operand's rows lie across k in memory: blocks of 4 x 4 whose k starts at 4c + 16u, u < BLOCKS, and whose
 * rows start at i; held[4u + e] is k + e, read as 16 bytes of four rows, and what is stored is the block transposed. A
 * quarter of a warp has two neighbouring i and four c, so that it reads whole sectors and stores to different banks.
 * Else chunk c of rows i + u·APART. */
template <int WIDTH, bool TRANSPOSED> struct Source {
    static constexpr int COPIES = WIDTH * (STEP / 4) / GROUP, BLOCKS = COPIES / 4, APART = GROUP / 8;
    static_assert(BLOCKS == WIDTH / 64 && (WIDTH == 64 || WIDTH == 128), "ownership");

    const float *from;    /* element (i, 4c) of the step */
    uint32_t length;      /* of a row in memory */
    int i, c, rows, rest; /* what is left of the other side and of k from (i, 4c) on */
    uint32_t place;
    float4 held[COPIES];

    __device__ __forceinline__ explicit Source(int thread)
    {
        if constexpr (TRANSPOSED) {
            const int lane = thread % 32, warp = thread / 32;
            i = 4 * (lane % 2 + lane / 8 * 2) + 32 * (warp % (WIDTH / 32));
            c = lane / 2 % 4 + warp / (WIDTH / 32) * 4;
        } else {
            i = thread / 8;
            c = thread % 8;
        }
        place = i * ROW + (c ^ i % 8) * 16;
    }
    /* Rows i0 .. of `width`, columns k0 .. of n; `row` is the length of a row in memory. */
    __device__ __forceinline__ void open(const float *x, int64_t i0, int64_t width, int64_t k0, int64_t n, int64_t row)
    {
        const int64_t k = k0 + 4 * c, left = width - i0 - i;
        length = (uint32_t)row;
        from = TRANSPOSED ? x + k * row + i0 + i : x + (i0 + i) * row + k;
        rows = left < WIDTH ? (int)left : WIDTH;
        rest = (int)(n - k);
    }
    /* The element `rows` of memory further on: one 32 x 32 + 64 bit multiply-add. */
    __device__ __forceinline__ const float *below(int rows) const
    {
        return reinterpret_cast<const float *>(reinterpret_cast<const char *>(from) + (uint64_t)length * (4u * rows));
    }
    /* What does not exist is 0. */
    __device__ __forceinline__ void read()
    {
        const int present = TRANSPOSED ? (rows > 0 ? rest : 0) : (rest > 0 ? rows : 0);
        TL_UNROLL_FOR (int u = 0; u < COPIES; u++) {
            const int at = TRANSPOSED ? 16 * (u / 4) + u % 4 : APART * u;
            held[u] = present > at ? *reinterpret_cast<const float4 *>(below(at)) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        }
    }
    /* To the group's next step. */
    __device__ __forceinline__ void advance()
    {
        from = TRANSPOSED ? reinterpret_cast<const float *>(below(GROUPS * STEP)) : from + GROUPS * STEP;
        rest -= GROUPS * STEP;
    }
    /* Where chunk u goes in a tile, and what it holds. */
    __device__ __forceinline__ uint32_t at(int u) const
    {
        return TRANSPOSED ? (place ^ (64 * (u / 4) + 16 * (u % 4))) + ROW * (u % 4) : place + ROW * APART * u;
    }
    __device__ __forceinline__ float4 chunk(int u) const
    {
        if constexpr (!TRANSPOSED) return held[u];
        const float4 &x = held[u / 4 * 4], &y = held[u / 4 * 4 + 1], &z = held[u / 4 * 4 + 2], &w = held[u / 4 * 4 + 3];
        return u % 4 == 0   ? make_float4(x.x, y.x, z.x, w.x)
               : u % 4 == 1 ? make_float4(x.y, y.y, z.y, w.y)
               : u % 4 == 2 ? make_float4(x.z, y.z, z.z, w.z)
                            : make_float4(x.w, y.w, z.w, w.w);
    }
    __device__ __forceinline__ void write(char *to, Guard &guard) const
    {
        TL_UNROLL_FOR (int u = 0; u < COPIES; u++) {
            *reinterpret_cast<float4 *>(to + at(u)) = chunk(u);
            guard.see(held[u]);
        }
    }
    __device__ __forceinline__ void write_split(char *hi, char *lo, Guard &guard) const
    {
        TL_UNROLL_FOR (int u = 0; u < COPIES; u++) {
            const float4 x = chunk(u);
            store_split(hi + at(u), lo + at(u), x);
            guard.see(x);
        }
    }
};

/* Where a tile lies. */
template <int BN> struct Place {
    int64_t product, i0, j0;

    __device__ __forceinline__ Place(const tl_wgmma_matmul_args &x, uint32_t tile)
    {
        const uint32_t row = tile / x.columns;
        j0 = (int64_t)(tile - row * x.columns) * BN;
        product = row / x.rows;
        i0 = (int64_t)(row - (uint32_t)product * x.rows) * BM;
    }
};

/* Both operands. The reads of the next step follow the fence of the pipeline, which might wait for them. */
template <int BN, bool TA, bool TB> struct ProductLoader {
    using T = ProductTile<BN>;
    const tl_wgmma_matmul_args &x;
    Source<BM, TA> a;
    Source<BN, !TB> b;

    __device__ __forceinline__ explicit ProductLoader(const tl_wgmma_matmul_args &args)
        : x(args), a(threadIdx.x % GROUP), b(threadIdx.x % GROUP)
    {}
    __device__ __forceinline__ int steps(uint32_t) const { return (int)((x.n + STEP - 1) / STEP); }
    __device__ __forceinline__ void open(uint32_t tile, uint32_t, int s)
    {
        const Place<BN> at(x, tile);
        a.open(x.A + at.product * x.a_batch, at.i0, x.m, (int64_t)s * STEP, x.n, x.lda);
        b.open(x.B + at.product * x.b_batch, at.j0, x.p, (int64_t)s * STEP, x.n, x.ldb);
    }
    __device__ __forceinline__ void fill(int, char *to, const Ring<T::STAGES> &ring, Guard &guard)
    {
        a.read();
        b.read();
        a.advance();
        b.advance();
        ring.wait_empty();
        a.write(to, guard);
        b.write_split(to + T::B_HI, to + T::B_LO, guard);
    }
};

/* ---- consumers --------------------------------------------------------------------------------------------------- */

/* Rows i0 .. of the group's 64 x BN results without tensor cores: thread (ty, tx) owns rows ty + 8r and columns
 * tx + 16c. Places past the arrays read the last element and are not stored. */
template <int BN, bool TA, bool TB>
__device__ __forceinline__ void plain_rows(const tl_wgmma_matmul_args &x, const float *A, const float *B, float *C,
                                           int64_t i0, int64_t j0)
{
    const int tx = threadIdx.x % 16, ty = threadIdx.x % GROUP / 16;
    const int64_t down = TA ? x.lda : 1, across = TB ? 1 : x.ldb;
    float sum[8][BN / 16] = {};
    const float *a[8];
    TL_UNROLL_FOR (int r = 0; r < 8; r++) {
        const int64_t i = min(i0 + ty + 8 * r, x.m - 1);
        a[r] = A + (TA ? i : i * x.lda);
    }
    uint32_t b[BN / 16]; /* a product's B has fewer than 2^32 elements */
    TL_UNROLL_FOR (int c = 0; c < BN / 16; c++) {
        const int64_t j = min(j0 + tx + 16 * c, x.p - 1);
        b[c] = (uint32_t)(TB ? j * x.ldb : j);
    }
#pragma unroll 1
    for (int64_t k = 0; k < x.n; k++) {
        float y[BN / 16];
        TL_UNROLL_FOR (int c = 0; c < BN / 16; c++)
            y[c] = B[b[c]];
        TL_UNROLL_FOR (int r = 0; r < 8; r++) {
            const float v = *a[r];
            TL_UNROLL_FOR (int c = 0; c < BN / 16; c++)
                sum[r][c] = fmaf(v, y[c], sum[r][c]);
            a[r] += down;
        }
        B += across;
    }
    TL_UNROLL_FOR (int r = 0; r < 8; r++)
        TL_UNROLL_FOR (int c = 0; c < BN / 16; c++) {
            const int64_t i = i0 + ty + 8 * r, j = j0 + tx + 16 * c;
            if (i < x.m && j < x.p) C[i * x.p + j] = x.bias ? sum[r][c] + x.bias[j] : sum[r][c];
        }
}

/* Stores the group's results, rows of whole pairs; four lanes fill a sector of 32 bytes. The bias is read ahead of all stores, which its
 * loads would have to follow one by one. */
template <int BN>
__device__ __forceinline__ void store_pairs(const tl_wgmma_matmul_args &x, float *C, const float (&sum)[BN / 2],
                                            int64_t i0, int64_t j0)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x % GROUP / 32;
    const int columns = (int)min(x.p - j0, (int64_t)BN) - 2 * (lane % 4);
    const float *const from = x.bias + j0 + 2 * (lane % 4);
    float bias[BN / 8][2]; /* -0 changes nothing */
    TL_UNROLL_FOR (int j = 0; j < BN / 8; j++)
        TL_UNROLL_FOR (int e = 0; e < 2; e++)
            bias[j][e] = x.bias && 8 * j < columns ? from[8 * j + e] : -0.0f;
    TL_UNROLL_FOR (int h = 0; h < 2; h++) {
        const int64_t row = i0 + 16 * warp + 8 * h + lane / 4;
        if (row >= x.m) continue;
        float *to = C + row * x.p + j0 + 2 * (lane % 4);
        TL_UNROLL_FOR (int j = 0; j < BN / 8; j++)
            if (8 * j < columns)
                *reinterpret_cast<float2 *>(to + 8 * j) =
                    make_float2(sum[4 * j + 2 * h] + bias[j][0], sum[4 * j + 2 * h + 1] + bias[j][1]);
    }
}

/* The same of rows that begin anywhere, of which a lane's neighbours can only be written one by one, each with few others of its sector:
 * lanes exchange theirs, so that the warp writes 32 columns of a row at once. Of eight rows lane 4g + t has row g's columns
 * 8j + 2t + e, as y[2j + e]; after three exchanges of halves with other g it has column 8·(g / 2) + 2t + g % 2 of row r, as y[r]. */
template <int BN>
__device__ __forceinline__ void store_singles(const tl_wgmma_matmul_args &x, float *C, const float (&sum)[BN / 2],
                                              int64_t i0, int64_t j0)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x % GROUP / 32, g = lane / 4;
    const int64_t row = i0 + 16 * warp, col = j0 + g / 2 * 8 + lane % 4 * 2 + g % 2;
    const int rows = (int)min(x.m - row, (int64_t)16), columns = (int)min(x.p - col, (int64_t)BN);
    float *const to = C + row * x.p + col;
    float bias[BN / 32]; /* -0 changes nothing */
    TL_UNROLL_FOR (int q = 0; q < BN / 32; q++)
        bias[q] = x.bias && 32 * q < columns ? x.bias[col + 32 * q] : -0.0f;
    TL_UNROLL_FOR (int h = 0; h < 2; h++)
        TL_UNROLL_FOR (int q = 0; q < BN / 32; q++) {
            float y[8];
            TL_UNROLL_FOR (int i = 0; i < 8; i++)
                y[i] = sum[4 * (4 * q + i / 2) + 2 * h + i % 2];
            TL_UNROLL_FOR (int bit = 1; bit < 8; bit *= 2)
                TL_UNROLL_FOR (int i = 0; i < 8; i++) {
                    if (i & bit) continue;
                    float &lower = y[i], &upper = y[i | bit];
                    const float got = __shfl_xor_sync(0xffffffffu, g & bit ? lower : upper, 4 * bit);
                    lower = g & bit ? got : lower;
                    upper = g & bit ? upper : got;
                }
            TL_UNROLL_FOR (int r = 0; r < 8; r++)
                if (8 * h + r < rows && 32 * q < columns) to[(8 * h + r) * x.p + 32 * q] = y[r] + bias[q];
        }
}

} /* namespace tl_linalg_wgmma */

#endif

/* ProductTile<BN>::BYTES of dynamic shared memory, THREADS threads, at most one block per tile. Has static shared memory
 * exactly where it is more than empty. */
template <int BN, bool TA, bool TB>
__global__ void __launch_bounds__(tl_wgmma::THREADS, 1)
    tl_wgmma_matmul_kernel(const __grid_constant__ tl_wgmma_matmul_args x)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    using namespace tl_linalg_wgmma;
    using T = ProductTile<BN>;
    TL_DYNAMIC_SHARED(char, dynamic);
    __shared__ uint64_t barriers[2][T::STAGES];
    __shared__ __align__(4) uint8_t unsafe[T::STAGES][WARPS];
    const Stages<T> stages = open_stages<T, 0>(dynamic, barriers, unsafe);
    const int group = __shfl_sync(0xffffffffu, (int)threadIdx.x / GROUP, 0);
    if (threadIdx.x >= GROUPS * GROUP) {
        shrink_registers<PRODUCER_REGISTERS>();
        ProductLoader<BN, TA, TB> loader(x);
        produce(stages, loader, Schedule{x.tiles}, group - GROUPS);
    } else {
        grow_registers<CONSUMER_REGISTERS>();
        const int steps = (int)((x.n + STEP - 1) / STEP);
        consume<T, false>(
            stages, Schedule{x.tiles}, group, [=](uint32_t) { return steps; },
            [=](uint32_t tile, uint32_t, bool redo, const float (&sum)[BN / 2]) {
                const Place<BN> at(x, tile);
                float *C = x.C + at.product * x.m * x.p;
                const int64_t i0 = at.i0 + 64 * group;
                if (__any_sync(0xffffffffu, redo)) /* the same in all lanes, of which the compiler has to know */
                    plain_rows<BN, TA, TB>(x, x.A + at.product * x.a_batch, x.B + at.product * x.b_batch, C, i0, at.j0);
                else if (x.pairs)
                    store_pairs<BN>(x, C, sum, i0, at.j0);
                else
                    store_singles<BN>(x, C, sum, i0, at.j0);
            });
    }
#endif
}
