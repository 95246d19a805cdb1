/* Matrix products at float32 accuracy by Hopper's warp group products (wgmma) on TF32 tensor cores. Machine code for
 * sm_90a only; elsewhere the kernel is empty (linalg_wgmma.cu asks first).
 *
 * A block owns tiles of BM x BN results of op(A)·op(B), one after the other, and takes n in steps of STEP. Two warp
 * groups produce, in turns: each reads both operands of every other step from global memory, splits each float32 into
 * two TF32 (split_mma.cuh) and stores them K-major. Two warp groups multiply, each its 64 rows of the tile.
 *
 * Shared memory: a stage holds A.hi, A.lo, B.hi, B.lo, each a row of STEP floats = 128 bytes per row of A (column of
 * op(B)). The 16 bytes of chunk c = k / 4 of row i lie at 128·i + 16·(c ^ i % 8): the K-major layout with 128-byte
 * swizzle (PTX ISA, "Shared Memory Matrix Layout"), whose pattern repeats every 8 rows = 1024 bytes. A quarter of a
 * producing warp stores either the eight chunks of one row or one chunk of eight rows, both without bank conflicts.
 *
 * Each result is a sum of parts of STEP terms in order of k. A part is a chain of twelve wgmma: the four of lo·hi, the
 * four of hi·lo, the four of hi·hi, so that eight are cut off at the size of the small products. All is fixed by n
 * alone. Per warp group, a tile in which a value does not split or a result is not finite is computed again as chains
 * of fused multiply-adds in increasing k. */
#ifndef TL_LINALG_WGMMA_CUH
#define TL_LINALG_WGMMA_CUH

#include <float.h>
#include <stdint.h>

#include "split_mma.cuh"

constexpr int TL_WGMMA_ROWS = 128; /* of a tile */

/* C[batch, m, p] = op(A)·op(B) + bias as in linalg.cuh; batch·rows·columns tiles, fewer than 2^31. */
struct tl_wgmma_args {
    const float *A, *B, *bias;
    float *C;
    int64_t m, n, p;
    uint32_t rows, columns, tiles;
};

namespace tl_wgmma_detail {

constexpr int BM = TL_WGMMA_ROWS, STEP = TL_DRAIN, ROW = 4 * STEP;
/* Two warp groups that multiply, two that produce. */
constexpr int GROUP = 128, WARPS = GROUP / 32, GROUPS = 2, THREADS = 2 * GROUPS * GROUP;
/* 65536 registers: 128 per thread to begin with, then these. */
constexpr int PRODUCER_REGISTERS = 104, CONSUMER_REGISTERS = 152;
static_assert(ROW == 128, "one row is the width of the swizzle");
static_assert(GROUPS * GROUP * (PRODUCER_REGISTERS + CONSUMER_REGISTERS) <= 65536, "register file");

template <int BN> struct Layout {
    static constexpr int STAGES = BN == 128 ? 3 : 4;
    static constexpr int A_LO = BM * ROW, B_HI = 2 * BM * ROW, B_LO = B_HI + BN * ROW, STAGE = B_HI + 2 * BN * ROW;
    static constexpr int BYTES = STAGES * STAGE + 1024; /* the swizzle's pattern starts on 1024 bytes */
};

} /* namespace tl_wgmma_detail */

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

namespace tl_wgmma_detail {

/* ---- instructions ------------------------------------------------------------------------------------------------ */

__device__ __forceinline__ uint32_t shared_address(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }

__device__ __forceinline__ void barrier_init(uint32_t barrier, int arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void barrier_arrive(uint32_t barrier)
{
    asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
/* Waits until the phase of this parity is complete. */
__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity)
{
    uint32_t done;
    do {
        asm volatile("{ .reg .pred done; mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 done, [%1], %2; "
                     "selp.b32 %0, 1, 0, done; }"
                     : "=r"(done)
                     : "r"(barrier), "r"(parity)
                     : "memory");
    } while (!done);
}
/* Any of the 128 threads of a warp group. */
__device__ __forceinline__ bool group_any(int group, bool mine)
{
    uint32_t any;
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %2, 0; barrier.cta.red.or.pred p, %1, 128, p; selp.b32 %0, 1, 0, p; }"
                 : "=r"(any)
                 : "r"(2 + group), "r"((uint32_t)mine)
                 : "memory");
    return any != 0;
}
/* Orders what this thread stored before wgmma's reads, which belong to the asynchronous proxy. */
__device__ __forceinline__ void proxy_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
/* Waits for all; names the accumulators so that nothing that reads them is scheduled before. */
template <int N> __device__ __forceinline__ void wgmma_wait(float (&d)[N])
{
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+f"(d[i])::"memory");
}

/* Matrix descriptor: start / 16 in bits 0-13; in bits 32-45 the distance of groups of 8 rows / 16; the distance in
 * bits 16-29 is not used by swizzled K-major layouts; bits 62-63: 1, the 128-byte swizzle (PTX ISA, "Matrix
 * Descriptor Format"). Columns 8q.. of K start 32·q bytes further on: the swizzle acts on the sum's address bits. */
__device__ __forceinline__ uint64_t descriptor(uint32_t address)
{
    return (uint64_t)(address >> 4) | (uint64_t)1 << 16 | (uint64_t)(8 * ROW >> 4) << 32 | (uint64_t)1 << 62;
}

/* d = a·b, or d += a·b with ADD, over 8 columns of K for 64 rows. Warp w of the group holds rows 16w ..: d[4j + e] of
 * its lane 4g + t is row g + 8·(e / 2), column 8j + 2t + e % 2 (PTX ISA, "Register Fragments for wgmma.mma_async"). */
template <bool ADD> __device__ __forceinline__ void tl_wgmma(float (&d)[32], uint64_t a, uint64_t b)
{
    asm volatile(
        "{ .reg .pred add; setp.ne.b32 add, %34, 0; "
        "wgmma.mma_async.sync.aligned.m64n64k8.f32.tf32.tf32 "
            "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
            "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "%32, %33, add, 1, 1; }"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
              "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
              "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
              "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
            : "l"(a), "l"(b), "n"(ADD ? 1 : 0));
}

template <bool ADD> __device__ __forceinline__ void tl_wgmma(float (&d)[64], uint64_t a, uint64_t b)
{
    asm volatile(
        "{ .reg .pred add; setp.ne.b32 add, %66, 0; "
        "wgmma.mma_async.sync.aligned.m64n128k8.f32.tf32.tf32 "
            "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
            "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
            "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
            "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "%64, %65, add, 1, 1; }"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
              "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
              "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
              "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
              "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
              "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
              "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
              "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
            : "l"(a), "l"(b), "n"(ADD ? 1 : 0));
}

/* ---- producers --------------------------------------------------------------------------------------------------- */

/* The least 2·bits - 1 and the greatest |x| that a thread read. A zero counts as the greatest of integers. */
struct Guard {
    uint32_t least = 0xffffffffu;
    float most = 0.0f;

    __device__ __forceinline__ void see(float x)
    {
        least = min(least, 2 * __float_as_uint(x) - 1);
        asm("max.NaN.f32 %0, %0, %1;" : "+f"(most) : "f"(fabsf(x)));
    }
    __device__ __forceinline__ bool unsafe() const
    {
        return least < 2 * TL_SPLIT_LEAST - 1 || !(__float_as_uint(most) < TL_SPLIT_MOST);
    }
};

/* One operand's part of a producing group: chunk `c` + u·APART of row `i`, u < COPIES, where the operand's rows lie
 * across k in memory (TURNED); else chunk `c` of rows `i` + u·APART. In both cases a warp reads whole sectors. */
template <int WIDTH, bool TURNED> struct Source {
    static constexpr int COPIES = WIDTH * (STEP / 4) / GROUP, APART = TURNED ? GROUP / WIDTH : GROUP / 8;
    static_assert(TURNED ? GROUP % WIDTH == 0 : WIDTH % APART == 0, "ownership");

    const float *from;    /* element (i, 4c) of the step */
    uint32_t length;      /* of a row in memory */
    int i, c, rows, rest; /* what is left of the other side and of k from (i, 4c) on */
    uint32_t place;
    float4 held[COPIES];

    __device__ __forceinline__ explicit Source(int thread)
    {
        i = TURNED ? thread % WIDTH : thread / 8;
        c = TURNED ? thread / WIDTH : thread % 8;
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
    __device__ __forceinline__ const float *below(int rows) const
    {
        return reinterpret_cast<const float *>(reinterpret_cast<const char *>(from) + (uint64_t)length * (4u * rows));
    }
    /* What does not exist is 0. */
    __device__ __forceinline__ void read()
    {
        if constexpr (TURNED) {
            const bool whole = rows > 0 && rest >= 4 * APART * (COPIES - 1) + 4;
#pragma unroll
            for (int u = 0; u < COPIES; u++) {
                const int k = 4 * APART * u, left = rows > 0 ? rest - k : 0;
                held[u].x = whole || left > 0 ? *below(k) : 0.0f;
                held[u].y = whole || left > 1 ? *below(k + 1) : 0.0f;
                held[u].z = whole || left > 2 ? *below(k + 2) : 0.0f;
                held[u].w = whole || left > 3 ? *below(k + 3) : 0.0f;
            }
        } else {
            const int present = rest > 0 ? rows : 0;
#pragma unroll
            for (int u = 0; u < COPIES; u++)
                held[u] = present > APART * u ? *reinterpret_cast<const float4 *>(below(APART * u))
                                              : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        }
    }
    /* To the group's next step. */
    __device__ __forceinline__ void advance()
    {
        from = TURNED ? below(GROUPS * STEP) : from + GROUPS * STEP;
        rest -= GROUPS * STEP;
    }
    __device__ __forceinline__ void write(char *hi, char *lo, Guard &guard) const
    {
#pragma unroll
        for (int u = 0; u < COPIES; u++) {
            const uint32_t at = TURNED ? place ^ (16 * APART * u) : place + ROW * APART * u;
            uint4 high, low;
            tl_split(held[u].x, high.x, low.x);
            tl_split(held[u].y, high.y, low.y);
            tl_split(held[u].z, high.z, low.z);
            tl_split(held[u].w, high.w, low.w);
            *reinterpret_cast<uint4 *>(hi + at) = high;
            *reinterpret_cast<uint4 *>(lo + at) = low;
            guard.see(held[u].x);
            guard.see(held[u].y);
            guard.see(held[u].z);
            guard.see(held[u].w);
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
        a.write(to, to + L::A_LO, guard);
        b.write(to + L::B_HI, to + L::B_LO, guard);
        const bool any = __any_sync(0xffffffffu, guard.unsafe());
        if (thread % 32 == 0)
            unsafe[stage][thread / 32] = any;
        proxy_fence();
        __syncwarp();
        if (thread % 32 == 0)
            barrier_arrive(full + 8 * stage);
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

/* part = the product of a stage; a, b: descriptors of the group's rows of A.hi and of B.hi. */
template <int BN> __device__ __forceinline__ void multiply_stage(float (&part)[BN / 2], uint64_t a, uint64_t b)
{
    constexpr int A_LO = Layout<BN>::A_LO / 16, B_LO = (Layout<BN>::B_LO - Layout<BN>::B_HI) / 16, K8 = 8 * 4 / 16;
    wgmma_fence();
    tl_wgmma<false>(part, a + A_LO, b);
#pragma unroll
    for (int q = 1; q < STEP / 8; q++)
        tl_wgmma<true>(part, a + A_LO + q * K8, b + q * K8);
#pragma unroll
    for (int q = 0; q < STEP / 8; q++)
        tl_wgmma<true>(part, a + q * K8, b + B_LO + q * K8);
#pragma unroll
    for (int q = 0; q < STEP / 8; q++)
        tl_wgmma<true>(part, a + q * K8, b + q * K8);
    wgmma_commit();
    wgmma_wait(part);
}

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
    const uint64_t a = descriptor(shared_address(stages) + group * 64 * ROW);
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
            multiply_stage<BN>(part, a + stage * (L::STAGE / 16), b + stage * (L::STAGE / 16));
            if (starting && group == 0)
                asm volatile("barrier.cta.arrive 1, 256;" ::: "memory");
            starting = false;
            redo |= *reinterpret_cast<const volatile uint32_t *>(unsafe[stage]) != 0;
            __syncwarp();
            if (threadIdx.x % 32 == 0)
                barrier_arrive(empty + 8 * stage);
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
            barrier_init(full + 8 * s, WARPS);
            barrier_init(empty + 8 * s, GROUPS * WARPS);
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
