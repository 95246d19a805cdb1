/* Hopper's warp group products (wgmma, TF32): the instructions, barriers, fences and descriptors, and whether a device has
 * them. Machine code for sm_90a only.
 *
 * Operands in shared memory are K-major: a row of STEP floats = 128 bytes per row of A (column of B). The 16 bytes of
 * chunk c = k / 4 of row i lie at 128·i + 16·(c ^ i % 8), the K-major layout with 128-byte swizzle (PTX ISA, "Shared
 * Memory Matrix Layout"), whose pattern repeats every 8 rows = 1024 bytes. */
#pragma once

#include <stdint.h>

#include <atomic>

#include "cuda/device/async_copy.cuh"
#include "cuda/device/tf32_split.cuh"
#include "cuda/runtime/launch.cuh"

namespace tl_wgmma {

/* Threads of a warp group; K of a stage, and the bytes of its rows. */
constexpr int GROUP = 128, WARPS = GROUP / 32, STEP = TL_DRAIN, ROW = 4 * STEP;
/* Lanes of a warp that arrive at a barrier: one, after all have met. compute-sanitizer's racecheck knows an order from
 * threads that arrive themselves only, so in the build for it (RACECHECK=1 of native/Makefile) every lane does. */
#ifdef TL_RACECHECK
constexpr int ARRIVALS = 32;
#else
constexpr int ARRIVALS = 1;
#endif
static_assert(ROW == 128, "one row is the width of the swizzle");

} /* namespace tl_wgmma */

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

namespace tl_wgmma {

/* ---- instructions ------------------------------------------------------------------------------------------------ */

__device__ __forceinline__ void barrier_init(uint32_t barrier, int arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void barrier_arrive(uint32_t barrier)
{
    asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
/* A warp's arrival: ARRIVALS of the barrier's. */
__device__ __forceinline__ void warp_arrive(uint32_t barrier, int lane)
{
    __syncwarp();
    if (ARRIVALS == 32 || lane == 0) barrier_arrive(barrier);
}
/* One arrival, after which `bytes` of bulk copies are to come before the phase is complete. */
__device__ __forceinline__ void barrier_expect(uint32_t barrier, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}
/* Copies whole units of 16 bytes from global to shared memory, then counts them at the barrier. */
__device__ __forceinline__ void bulk_copy(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
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
/* Barriers of hardware, by number: 0 is __syncthreads', 1 the start of the second consumer, 2 on one for each group. */

/* Waits for the 128 threads of a warp group, and for what they have written. */
__device__ __forceinline__ void group_sync(int group)
{
    asm volatile("barrier.cta.sync %0, 128;" ::"r"(2 + group) : "memory");
}
/* Whether any of them has `mine`. */
__device__ __forceinline__ bool group_any(int group, bool mine)
{
    uint32_t any;
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %2, 0; barrier.cta.red.or.pred p, %1, 128, p; selp.b32 %0, 1, 0, p; }"
                 : "=r"(any)
                 : "r"(2 + group), "r"((uint32_t)mine)
                 : "memory");
    return any != 0;
}
/* The second of two consumer groups starts when the first has done its first product, so that from then on one works on
 * its results while the other keeps the tensor cores busy. The second waits; the first goes on. */
__device__ __forceinline__ void wait_for_first_group() { asm volatile("barrier.cta.sync 1, 256;" ::: "memory"); }
__device__ __forceinline__ void start_second_group() { asm volatile("barrier.cta.arrive 1, 256;" ::: "memory"); }
/* All warps of a group together: gives registers of the 64 Ki to the other groups, or takes them. */
template <int REGISTERS> __device__ __forceinline__ void shrink_registers()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
template <int REGISTERS> __device__ __forceinline__ void grow_registers()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
/* Orders what this thread stored before wgmma's reads, which belong to the asynchronous proxy. */
__device__ __forceinline__ void proxy_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
/* Waits for all; names the accumulators so that nothing that reads them is scheduled before. */
template <int N> __device__ __forceinline__ void wgmma_wait(float (&d)[N])
{
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    TL_UNROLL_FOR (int i = 0; i < N; i++)
        asm volatile("" : "+f"(d[i])::"memory");
}

/* Matrix descriptor: start / 16 in bits 0-13; in bits 32-45 the distance of groups of 8 rows / 16; the distance in
 * bits 16-29 is not used by swizzled K-major layouts; bits 62-63: 1, the 128-byte swizzle (PTX ISA, "Matrix
 * Descriptor Format"). Columns 8q.. of K start 32·q bytes further on: the swizzle acts on the sum's address bits. */
__device__ __forceinline__ uint64_t descriptor(uint32_t address)
{
    return (uint64_t)(address >> 4) | (uint64_t)1 << 16 | (uint64_t)(8 * ROW >> 4) << 32 | (uint64_t)1 << 62;
}

/* The first address from p on where the swizzle's pattern may start. */
__device__ __forceinline__ char *align_to_swizzle(char *p) { return p + (1024 - tl_shared_address(p) % 1024) % 1024; }

/* In wgmma's text the results' places by number, and in its operands 16 sums from d[i] on. */
#define TL_PLACES_0_15 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define TL_PLACES_0_31                                                                                                 \
    TL_PLACES_0_15 ", "                                                                                                \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define TL_PLACES_32_47 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define TL_PLACES_48_63 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define TL_SUMS(d, i)                                                                                                  \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]),          \
        "+f"(d[i + 7]), "+f"(d[i + 8]), "+f"(d[i + 9]), "+f"(d[i + 10]), "+f"(d[i + 11]), "+f"(d[i + 12]),               \
        "+f"(d[i + 13]), "+f"(d[i + 14]), "+f"(d[i + 15])

/* d = a·b, or d += a·b with ADD, over 8 columns of K for 64 rows. Warp w of the group holds rows 16w ..: d[4j + e] of
 * its lane 4g + t is row g + 8·(e / 2), column 8j + 2t + e % 2 (PTX ISA, "Register Fragments for wgmma.mma_async"). */
template <bool ADD> __device__ __forceinline__ void wgmma(float (&d)[16], const uint32_t (&a)[4], uint64_t b)
{
    asm volatile("{ .reg .pred add; setp.ne.b32 add, %21, 0; wgmma.mma_async.sync.aligned.m64n32k8.f32.tf32.tf32 "
                 "{" TL_PLACES_0_15 "}, {%16, %17, %18, %19}, %20, add, 1, 1; }"
                 : TL_SUMS(d, 0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(ADD ? 1 : 0));
}

template <bool ADD> __device__ __forceinline__ void wgmma(float (&d)[32], const uint32_t (&a)[4], uint64_t b)
{
    asm volatile("{ .reg .pred add; setp.ne.b32 add, %37, 0; wgmma.mma_async.sync.aligned.m64n64k8.f32.tf32.tf32 "
                 "{" TL_PLACES_0_31 "}, {%32, %33, %34, %35}, %36, add, 1, 1; }"
                 : TL_SUMS(d, 0), TL_SUMS(d, 16)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(ADD ? 1 : 0));
}

template <bool ADD> __device__ __forceinline__ void wgmma(float (&d)[48], const uint32_t (&a)[4], uint64_t b)
{
    asm volatile("{ .reg .pred add; setp.ne.b32 add, %53, 0; wgmma.mma_async.sync.aligned.m64n96k8.f32.tf32.tf32 "
                 "{" TL_PLACES_0_31 ", " TL_PLACES_32_47 "}, {%48, %49, %50, %51}, %52, add, 1, 1; }"
                 : TL_SUMS(d, 0), TL_SUMS(d, 16), TL_SUMS(d, 32)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(ADD ? 1 : 0));
}

template <bool ADD> __device__ __forceinline__ void wgmma(float (&d)[64], const uint32_t (&a)[4], uint64_t b)
{
    asm volatile("{ .reg .pred add; setp.ne.b32 add, %69, 0; wgmma.mma_async.sync.aligned.m64n128k8.f32.tf32.tf32 "
                 "{" TL_PLACES_0_31 ", " TL_PLACES_32_47 ", " TL_PLACES_48_63
                 "}, {%64, %65, %66, %67}, %68, add, 1, 1; }"
                 : TL_SUMS(d, 0), TL_SUMS(d, 16), TL_SUMS(d, 32), TL_SUMS(d, 48)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(ADD ? 1 : 0));
}
#undef TL_PLACES_0_15
#undef TL_PLACES_0_31
#undef TL_PLACES_32_47
#undef TL_PLACES_48_63
#undef TL_SUMS

/* Starts part = a·b over STEP columns, the small products first: a chain of twelve, the four of lo·hi, the four of
 * hi·lo, the four of hi·hi, so that eight are cut off at the size of the small products. `b` describes B.hi, and B.lo
 * lies B_LO bytes further on. SWAPPED exchanges the two small products, so that a product and its transpose are summed in
 * the same order. */
template <int B_LO, bool SWAPPED = false, int N>
__device__ __forceinline__ void start_chain(float (&part)[N], const uint32_t (&hi)[STEP / 8][4],
                                            const uint32_t (&lo)[STEP / 8][4], uint64_t b)
{
    constexpr int LO = B_LO / 16, K8 = 8 * 4 / 16;
    wgmma_fence();
    wgmma<false>(part, SWAPPED ? hi[0] : lo[0], b + (SWAPPED ? LO : 0));
    TL_UNROLL_FOR (int q = 1; q < STEP / 8; q++)
        wgmma<true>(part, SWAPPED ? hi[q] : lo[q], b + (SWAPPED ? LO : 0) + q * K8);
    TL_UNROLL_FOR (int q = 0; q < STEP / 8; q++)
        wgmma<true>(part, SWAPPED ? lo[q] : hi[q], b + (SWAPPED ? 0 : LO) + q * K8);
    TL_UNROLL_FOR (int q = 0; q < STEP / 8; q++)
        wgmma<true>(part, hi[q], b + q * K8);
    wgmma_commit();
}

/* ---- rings of stages --------------------------------------------------------------------------------------------- */

/* The barriers of a ring's stages, 8 bytes each from these addresses on, with so many arrivals. By one thread, before
 * __syncthreads. */
template <int STAGES>
__device__ __forceinline__ void init_ring(uint32_t full, uint32_t empty, int full_arrivals, int empty_arrivals)
{
    for (int s = 0; s < STAGES; s++) {
        barrier_init(full + 8 * s, full_arrivals);
        barrier_init(empty + 8 * s, empty_arrivals);
    }
}

/* One side's place in a ring of STAGES stages. A producer starts with parity 1, since the stages are empty at first, a
 * consumer with parity 0. At a barrier a warp arrives once, for all its lanes, or with EACH every lane does. */
template <int STAGES, bool EACH = false> struct Ring {
    uint32_t full, empty;
    int stage;
    uint32_t parity;

    __device__ __forceinline__ Ring(uint32_t full_, uint32_t empty_, uint32_t parity_, int stage_ = 0)
        : full(full_), empty(empty_), stage(stage_), parity(parity_)
    {}
    __device__ __forceinline__ Ring(const uint64_t (*barriers)[STAGES], uint32_t parity_)
        : Ring(tl_shared_address(barriers[0]), tl_shared_address(barriers[1]), parity_)
    {}
    __device__ __forceinline__ uint32_t full_barrier() const { return full + 8 * stage; }
    __device__ __forceinline__ void wait_full() const { barrier_wait(full + 8 * stage, parity); }
    __device__ __forceinline__ void wait_empty() const { barrier_wait(empty + 8 * stage, parity); }
    __device__ __forceinline__ void arrive_full(int lane) const { arrive(full + 8 * stage, lane); }
    __device__ __forceinline__ void arrive_empty(int lane) const { arrive(empty + 8 * stage, lane); }
    template <int BY = 1> __device__ __forceinline__ void advance()
    {
        if constexpr (BY == 1) {
            if (++stage == STAGES) {
                stage = 0;
                parity ^= 1;
            }
        } else {
            stage += BY;
            if (stage >= STAGES) {
                stage -= STAGES;
                parity ^= 1;
            }
        }
    }

  private:
    static __device__ __forceinline__ void arrive(uint32_t barrier, int lane)
    {
        if (EACH)
            barrier_arrive(barrier);
        else
            warp_arrive(barrier, lane);
    }
};

} /* namespace tl_wgmma */

#endif

/* ---- on the host ------------------------------------------------------------------------------------------------- */

/* Lets a kernel have its dynamic shared memory. False where the library has no machine code of it for the device, which
 * shows in its static shared memory, or where the driver refuses. */
template <class Kernel> static bool tl_wgmma_prepare(Kernel kernel, int bytes)
{
    cudaFuncAttributes attributes;
    return cudaFuncGetAttributes(&attributes, kernel) == cudaSuccess && attributes.sharedSizeBytes > 0 &&
           tl_raise_shared_limit(kernel, (size_t)bytes) == cudaSuccess;
}

/* Whether the context's device runs the kernels that `ready` prepares. Asked once per device: each lambda has answers
 * of its own. */
template <class Ready> static bool tl_wgmma_runs(tl_context *ctx, Ready ready)
{
    constexpr int DEVICES = 64;
    static std::atomic<int> known[DEVICES]; /* 0: not asked, 1: no, 2: yes */
    const int32_t device = tl_context_ordinal(ctx);
    if (device < 0 || device >= DEVICES) return false;
    int answer = known[device].load(std::memory_order_relaxed);
    if (answer == 0) {
        const bool yes = ready();
        if (!yes) cudaGetLastError(); /* an old driver's refusal is an answer, not an error */
        answer = yes ? 2 : 1;
        known[device].store(answer, std::memory_order_relaxed);
    }
    return answer == 2;
}
