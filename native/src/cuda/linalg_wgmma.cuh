/* Matrix products at float32 accuracy by Hopper's warp group products (wgmma) on TF32 tensor cores. Machine code for
 * sm_90a only; elsewhere the kernel is empty (linalg_wgmma.cu asks first).
 *
 * A block owns tiles of BM x BN results of op(A)·op(B), one after the other, and takes n in steps of STEP. Two warp
 * groups produce, in turns: each reads both operands of every other step from global memory and stores them K-major,
 * B split into two TF32 (split_mma.cuh). Two warp groups multiply, each its 64 rows of the tile, and split A in
 * registers.
 *
 * Shared memory: a stage holds A, B.hi, B.lo, each a row of STEP floats = 128 bytes per row of A (column of
 * op(B)) in the swizzled layout of wgmma.cuh. A quarter of a producing warp stores either the eight chunks of one row
 * or four chunks of two rows four apart, both without bank conflicts.
 *
 * Each result is a sum of parts of STEP terms, each part one chain of wgmma.cuh, in order of k. All is fixed by n
 * alone. Per warp group, a tile in which a value does not split or a result is not finite is computed again as chains
 * of fused multiply-adds in increasing k. */
#ifndef TL_LINALG_WGMMA_CUH
#define TL_LINALG_WGMMA_CUH

#include "wgmma.cuh"

constexpr int TL_WGMMA_ROWS = 128; /* of a tile */

/* C[batch, m, p] = op(A)·op(B) + bias as in linalg.cuh, with rows of A, B and C that are whole and aligned 16 bytes;
 * batch·rows·columns tiles, fewer than 2^31. */
struct tl_wgmma_args {
    const float *A, *B, *bias;
    float *C;
    int64_t m, n, p;
    uint32_t rows, columns, tiles;
};

namespace tl_wgmma_detail {

constexpr int BM = TL_WGMMA_ROWS;

template <int BN> struct Layout {
    static constexpr int STAGES = BN == 128 ? 4 : 6;
    static constexpr int B_HI = BM * ROW, B_LO = B_HI + BN * ROW, STAGE = B_LO + BN * ROW;
    static constexpr int BYTES = STAGES * STAGE + 1024; /* the swizzle's pattern starts on 1024 bytes */
};

} /* namespace tl_wgmma_detail */

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

namespace tl_wgmma_detail {

/* ---- producers --------------------------------------------------------------------------------------------------- */

/* One operand's part of a producing group, as rows of four floats in `held`.
 * TURNED, the operand's rows lie across k in memory: blocks of 4 x 4 whose k starts at 4c + 16u, u < BLOCKS, and whose
 * rows start at i; held[4u + e] is k + e, read as 16 bytes of four rows, and what is stored is the block transposed. A
 * quarter of a warp has two neighbouring i and four c, so that it reads whole sectors and stores to different banks.
 * Else chunk c of rows i + u·APART. */
template <int WIDTH, bool TURNED> struct Source {
    static constexpr int COPIES = WIDTH * (STEP / 4) / GROUP, BLOCKS = COPIES / 4, APART = GROUP / 8;
    static_assert(BLOCKS == WIDTH / 64 && (WIDTH == 64 || WIDTH == 128), "ownership");

    const float *from;    /* element (i, 4c) of the step */
    uint32_t length;      /* of a row in memory */
    int i, c, rows, rest; /* what is left of the other side and of k from (i, 4c) on */
    uint32_t place;
    float4 held[COPIES];

    __device__ __forceinline__ explicit Source(int thread)
    {
        if constexpr (TURNED) {
            const int lane = thread % 32, warp = thread / 32;
            i = 4 * (lane % 2 + lane / 8 * 2) + 32 * (warp % (WIDTH / 32));
            c = lane / 2 % 4 + warp / (WIDTH / 32) * 4;
        } else {
            i = thread / 8;
            c = thread % 8;
        }
        place = i * ROW + (c ^ i % 8) * 16;
    }
    /* Rows i0 .. of `width`, columns k0 .. of n. */
    __device__ __forceinline__ void open(const float *x, int64_t i0, int64_t width, int64_t k0, int64_t n)
    {
        const int64_t k = k0 + 4 * c, left = width - i0 - i;
        length = (uint32_t)(TURNED ? width : n);
        from = TURNED ? x + k * width + i0 + i : x + (i0 + i) * n + k;
        rows = left < WIDTH ? (int)left : WIDTH;
        rest = (int)(n - k);
    }
    /* The element `rows` of memory further on: one 32 x 32 + 64 bit multiply-add. */
    __device__ __forceinline__ const float4 *below(int rows) const
    {
        return reinterpret_cast<const float4 *>(reinterpret_cast<const char *>(from) + (uint64_t)length * (4u * rows));
    }
    /* What does not exist is 0. */
    __device__ __forceinline__ void read()
    {
        const int present = TURNED ? (rows > 0 ? rest : 0) : (rest > 0 ? rows : 0);
#pragma unroll
        for (int u = 0; u < COPIES; u++) {
            const int at = TURNED ? 16 * (u / 4) + u % 4 : APART * u;
            held[u] = present > at ? *below(at) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        }
    }
    /* To the group's next step. */
    __device__ __forceinline__ void advance()
    {
        from = TURNED ? reinterpret_cast<const float *>(below(GROUPS * STEP)) : from + GROUPS * STEP;
        rest -= GROUPS * STEP;
    }
    /* Where chunk u goes in a tile, and what it holds. */
    __device__ __forceinline__ uint32_t at(int u) const
    {
        return TURNED ? (place ^ (64 * (u / 4) + 16 * (u % 4))) + ROW * (u % 4) : place + ROW * APART * u;
    }
    __device__ __forceinline__ float4 chunk(int u) const
    {
        if constexpr (!TURNED)
            return held[u];
        const float4 &x = held[u / 4 * 4], &y = held[u / 4 * 4 + 1], &z = held[u / 4 * 4 + 2], &w = held[u / 4 * 4 + 3];
        return u % 4 == 0   ? make_float4(x.x, y.x, z.x, w.x)
               : u % 4 == 1 ? make_float4(x.y, y.y, z.y, w.y)
               : u % 4 == 2 ? make_float4(x.z, y.z, z.z, w.z)
                            : make_float4(x.w, y.w, z.w, w.w);
    }
    __device__ __forceinline__ void write(char *to, Guard &guard) const
    {
#pragma unroll
        for (int u = 0; u < COPIES; u++) {
            *reinterpret_cast<float4 *>(to + at(u)) = chunk(u);
            guard.see(held[u]);
        }
    }
    __device__ __forceinline__ void write_split(char *hi, char *lo, Guard &guard) const
    {
#pragma unroll
        for (int u = 0; u < COPIES; u++) {
            const float4 x = chunk(u);
            store_split(hi + at(u), lo + at(u), x);
            guard.see(x);
        }
    }
};

/* Where a tile lies. */
template <int BN> struct Place {
    int64_t product, i0, j0;

    __device__ __forceinline__ Place(const tl_wgmma_args &x, uint32_t tile)
    {
        const uint32_t row = tile / x.columns;
        j0 = (int64_t)(tile - row * x.columns) * BN;
        product = row / x.rows;
        i0 = (int64_t)(row - (uint32_t)product * x.rows) * BM;
    }
};

/* Of the steps of the block's tiles, one after the other, group 0 serves the even ones and group 1 the odd ones. The
 * reads of the next follow the fence, which might wait for them. */
template <int BN, bool TA, bool TB>
__device__ __forceinline__ void produce(const tl_wgmma_args &x, char *stages, uint32_t full, uint32_t empty,
                                        uint8_t (*unsafe)[WARPS])
{
    using L = Layout<BN>;
    const int thread = threadIdx.x % GROUP, steps = (int)((x.n + STEP - 1) / STEP);
    const int group = __shfl_sync(0xffffffffu, (int)threadIdx.x / GROUP, 0) - GROUPS;
    Source<BM, TA> a(thread);
    Source<BN, !TB> b(thread);
    int stage = group, s = group;
    uint32_t tile = blockIdx.x, parity = 1; /* the stages are empty at first */
    bool first = true;
    while (true) {
        bool next = first;
        first = false;
        for (; s >= steps; s -= steps) {
            if (x.tiles - tile <= gridDim.x)
                return;
            tile += gridDim.x;
            next = true;
        }
        if (next) {
            const Place<BN> at(x, tile);
            a.open(x.A + at.product * x.m * x.n, at.i0, x.m, (int64_t)s * STEP, x.n);
            b.open(x.B + at.product * x.n * x.p, at.j0, x.p, (int64_t)s * STEP, x.n);
        }
        a.read();
        b.read();
        char *to = stages + stage * L::STAGE;
        Guard guard;
        barrier_wait(empty + 8 * stage, parity);
        a.write(to, guard);
        b.write_split(to + L::B_HI, to + L::B_LO, guard);
        const bool any = __any_sync(0xffffffffu, guard.unsafe());
        if (thread % 32 == 0)
            unsafe[stage][thread / 32] = any;
        proxy_fence();
        warp_arrive(full + 8 * stage, thread % 32);
        a.advance();
        b.advance();
        s += GROUPS;
        stage += GROUPS;
        if (stage >= L::STAGES) {
            stage -= L::STAGES;
            parity ^= 1;
        }
    }
}

/* ---- consumers --------------------------------------------------------------------------------------------------- */

/* Rows i0 .. of the group's 64 x BN results without tensor cores: thread (ty, tx) owns rows ty + 8r and columns
 * tx + 16c. Places past the arrays read the last element and are not stored. */
template <int BN, bool TA, bool TB>
__device__ __forceinline__ void plain_rows(const tl_wgmma_args &x, const float *A, const float *B, float *C, int64_t i0,
                                           int64_t j0)
{
    const int tx = threadIdx.x % 16, ty = threadIdx.x % GROUP / 16;
    const int64_t down = TA ? x.m : 1, across = TB ? 1 : x.p;
    float sum[8][BN / 16] = {};
    const float *a[8];
#pragma unroll
    for (int r = 0; r < 8; r++) {
        const int64_t i = min(i0 + ty + 8 * r, x.m - 1);
        a[r] = A + (TA ? i : i * x.n);
    }
    uint32_t b[BN / 16]; /* a product's B has fewer than 2^32 elements */
#pragma unroll
    for (int c = 0; c < BN / 16; c++) {
        const int64_t j = min(j0 + tx + 16 * c, x.p - 1);
        b[c] = (uint32_t)(TB ? j * x.n : j);
    }
#pragma unroll 1
    for (int64_t k = 0; k < x.n; k++) {
        float y[BN / 16];
#pragma unroll
        for (int c = 0; c < BN / 16; c++)
            y[c] = B[b[c]];
#pragma unroll
        for (int r = 0; r < 8; r++) {
            const float v = *a[r];
#pragma unroll
            for (int c = 0; c < BN / 16; c++)
                sum[r][c] = fmaf(v, y[c], sum[r][c]);
            a[r] += down;
        }
        B += across;
    }
#pragma unroll
    for (int r = 0; r < 8; r++)
#pragma unroll
        for (int c = 0; c < BN / 16; c++) {
            const int64_t i = i0 + ty + 8 * r, j = j0 + tx + 16 * c;
            if (i < x.m && j < x.p)
                C[i * x.p + j] = x.bias ? sum[r][c] + x.bias[j] : sum[r][c];
        }
}

/* Stores the group's results; four lanes fill a sector of 32 bytes. p is even. */
template <int BN>
__device__ __forceinline__ void store_rows(const tl_wgmma_args &x, float *C, const float (&sum)[BN / 2], int64_t i0,
                                           int64_t j0)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x % GROUP / 32;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int64_t row = i0 + 16 * warp + 8 * h + lane / 4;
        const int columns = (int)min(x.p - j0, (int64_t)BN) - 2 * (lane % 4);
        if (row >= x.m)
            continue;
        float *to = C + row * x.p + j0 + 2 * (lane % 4);
        const float *bias = x.bias + j0 + 2 * (lane % 4);
#pragma unroll
        for (int j = 0; j < BN / 8; j++) {
            if (8 * j >= columns)
                continue;
            float2 y = make_float2(sum[4 * j + 2 * h], sum[4 * j + 2 * h + 1]);
            if (x.bias)
                y = make_float2(y.x + bias[8 * j], y.y + bias[8 * j + 1]);
            *reinterpret_cast<float2 *>(to + 8 * j) = y;
        }
    }
}

template <int BN, bool TA, bool TB>
__device__ __forceinline__ void consume(const tl_wgmma_args &x, const char *stages, uint32_t full, uint32_t empty,
                                        const uint8_t (*unsafe)[WARPS])
{
    using L = Layout<BN>;
    const int group = __shfl_sync(0xffffffffu, (int)threadIdx.x / GROUP, 0), steps = (int)((x.n + STEP - 1) / STEP);
    const int lane = threadIdx.x % 32, swizzle = 16 * (lane / 4);
    const char *a = stages + (threadIdx.x / 32 * 16 + lane / 4) * ROW + 4 * (lane % 4);
    const uint64_t b = descriptor(shared_address(stages) + L::B_HI);
    float part[BN / 2] = {}, sum[BN / 2];
    int stage = 0;
    uint32_t parity = 0;
    /* The second group starts when the first has done its first stage, so that from then on one adds up its part while
     * the other keeps the tensor cores busy. */
    bool starting = true;
    for (uint32_t tile = blockIdx.x; tile < x.tiles; tile += gridDim.x) {
        bool redo = false;
#pragma unroll
        for (int r = 0; r < BN / 2; r++)
            sum[r] = 0.0f;
#pragma unroll 1
        for (int s = 0; s < steps; s++) {
            barrier_wait(full + 8 * stage, parity);
            if (starting && group == 1)
                asm volatile("barrier.cta.sync 1, 256;" ::: "memory");
            Fragments fragments;
            fragments.read(a + stage * L::STAGE, swizzle);
            multiply_stage<L::B_LO - L::B_HI>(part, fragments, b + stage * (L::STAGE / 16));
            if (starting && group == 0)
                asm volatile("barrier.cta.arrive 1, 256;" ::: "memory");
            starting = false;
            redo |= *reinterpret_cast<const volatile uint32_t *>(unsafe[stage]) != 0;
            warp_arrive(empty + 8 * stage, threadIdx.x % 32);
#pragma unroll
            for (int r = 0; r < BN / 2; r++)
                sum[r] += part[r];
            if (++stage == L::STAGES) {
                stage = 0;
                parity ^= 1;
            }
        }
#pragma unroll
        for (int r = 0; r < BN / 2; r++)
            redo |= !(fabsf(sum[r]) <= FLT_MAX);
        const Place<BN> at(x, tile);
        float *C = x.C + at.product * x.m * x.p;
        const int64_t i0 = at.i0 + 64 * group;
        if (group_any(group, redo))
            plain_rows<BN, TA, TB>(x, x.A + at.product * x.m * x.n, x.B + at.product * x.n * x.p, C, i0, at.j0);
        else
            store_rows<BN>(x, C, sum, i0, at.j0);
    }
}

} /* namespace tl_wgmma_detail */

#endif

/* Layout<BN>::BYTES of dynamic shared memory, THREADS threads, at most one block per tile. Has static shared memory
 * exactly where it is more than empty. */
template <int BN, bool TA, bool TB>
__global__ void __launch_bounds__(tl_wgmma_detail::THREADS, 1) tl_wgmma_kernel(const __grid_constant__ tl_wgmma_args x)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    using namespace tl_wgmma_detail;
    using L = Layout<BN>;
    extern __shared__ char dynamic[];
    __shared__ uint64_t barriers[2][L::STAGES];
    __shared__ alignas(4) uint8_t unsafe[L::STAGES][WARPS]; /* a producing warp met a value that does not split */
    static_assert(WARPS == 4, "read as 4 bytes");
    char *stages = dynamic + (1024 - shared_address(dynamic) % 1024) % 1024;
    const uint32_t full = shared_address(barriers[0]), empty = shared_address(barriers[1]);
    if (threadIdx.x == 0)
        for (int s = 0; s < L::STAGES; s++) {
            barrier_init(full + 8 * s, WARPS * ARRIVALS);
            barrier_init(empty + 8 * s, GROUPS * WARPS * ARRIVALS);
        }
    __syncthreads();
    if (threadIdx.x >= GROUPS * GROUP) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(PRODUCER_REGISTERS));
        produce<BN, TA, TB>(x, stages, full, empty, unsafe);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(CONSUMER_REGISTERS));
        consume<BN, TA, TB>(x, stages, full, empty, unsafe);
    }
#endif
}

#endif
