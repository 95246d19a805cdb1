/* CUDA C++ for a C++ compiler: included before every source of src/cuda, it gives the words of the language and the device
 * functions that the kernels use another meaning, so that they run on this processor (block.cpp says how).
 *
 * Arithmetic is that of the processor, which rounds as a device does; fast approximations are computed exactly. Files of
 * src/cuda/device that hold machine instructions have namesakes here, which the compiler finds first. What a source has only for
 * compute capability 9.0 is not compiled: the emulated device is one of 8.0. */
#pragma once

#include <cuda_runtime.h>

#include <math.h>
#include <stdint.h>
#include <string.h>

#include <algorithm>
#include <functional>
#include <tuple>

#if !defined(__x86_64__)
#error "The emulator switches between threads by instructions of x86-64"
#endif

/* ---- words ------------------------------------------------------------------------------------------------------------- */

#undef __global__
#undef __device__
#undef __host__
#undef __shared__
#undef __forceinline__
#undef __launch_bounds__
#undef __noinline__
#define __global__
#define __device__
#define __host__
#define __shared__ static /* blocks run one after the other */
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __noinline__ __attribute__((noinline))
#define __CUDACC_VER_MAJOR__ 0
#define __CUDACC_VER_MINOR__ 0
#define __builtin_assume(condition) ((void)0)

/* ---- blocks and their threads ------------------------------------------------------------------------------------------ */

extern uint3 blockIdx;
extern dim3 blockDim, gridDim;
#define threadIdx (emulator::self->index)

namespace emulator {

constexpr int WARP = 32, WORDS = 8;
constexpr size_t SHARED_BYTES = 227 << 10; /* dynamic shared memory of a block, as of compute capability 9.0 */

enum waiting { NOTHING, ITS_WARP, ITS_BLOCK, THE_NEXT_KERNEL };

/* A thread of the block that runs: where it stands, what it waits for, and what it shows to its warp. */
struct thread {
    void *stack, *top; /* `top` is its stack pointer while another runs */
    uint3 index;
    int lane, warp;
    waiting state;
    uint32_t mask; /* the lanes that it waits for */
    bool shows;    /* and whose values it reads */
    int vote;      /* at the block's barrier */
    uint64_t offered[WORDS], shown[WORDS];
};

extern thread *self, *threads;
extern int votes, all_votes; /* how many threads voted, and whether all did */
extern char dynamic_memory[SHARED_BYTES];

/* Waits for the lanes of `mask`. Where it `shows` them a value, each of them must do so, the caller among them; else those that
 * have ended may be absent. */
void wait_for_warp(uint32_t mask, bool shows);
/* Ends the process: says what the kernel that runs does wrong, of its lanes `lanes`. */
[[noreturn]] void fail(const char *what, uint32_t lanes);
void wait_for_block(int vote);
/* Does the work now, or adds it to the graph where the stream is being captured. */
void queue(cudaStream_t stream, std::function<void()> work);
void run_grid(const char *kernel, dim3 grid, dim3 block, size_t bytes, const std::function<void()> &body);

/* The lanes of `mask` show each other `value`; shown<T>(lane) is then what a lane of the warp has. */
template <class T> T shown(int lane)
{
    T value;
    memcpy(&value, threads[self->warp * WARP + lane].shown, sizeof value);
    return value;
}
template <class T> void show(uint32_t mask, T value)
{
    static_assert(sizeof value <= sizeof(uint64_t) * WORDS, "what a thread shows");
    if (!(mask >> self->lane & 1)) fail("a shuffle or a vote without the caller in its mask, which is", mask);
    memcpy(self->offered, &value, sizeof value);
    wait_for_warp(mask, true);
}

template <class... Parameters, class... Arguments>
cudaError_t launch(const cudaLaunchConfig_t *config, void (*kernel)(Parameters...), const Arguments &...arguments)
{
    const std::tuple<Parameters...> values(static_cast<Parameters>(arguments)...);
    const cudaLaunchConfig_t c = *config;
    const char *const name = __PRETTY_FUNCTION__;
    queue(c.stream,
          [=] { run_grid(name, c.gridDim, c.blockDim, c.dynamicSmemBytes, [&] { std::apply(kernel, values); }); });
    return cudaSuccess;
}

} // namespace emulator

#define cudaLaunchKernelEx emulator::launch

/* The runtime's templates that nvcc alone declares. */
template <class... P> cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *attributes, void (*kernel)(P...))
{
    return cudaFuncGetAttributes(attributes, (const void *)kernel);
}
template <class... P> cudaError_t cudaFuncSetAttribute(void (*kernel)(P...), cudaFuncAttribute attribute, int value)
{
    return cudaFuncSetAttribute((const void *)kernel, attribute, value);
}
template <class... P>
cudaError_t cudaOccupancyMaxActiveClusters(int *clusters, void (*kernel)(P...), const cudaLaunchConfig_t *config)
{
    return cudaOccupancyMaxActiveClusters(clusters, (const void *)kernel, config);
}

/* ---- barriers, votes and shuffles -------------------------------------------------------------------------------------- */

inline void __syncthreads() { emulator::wait_for_block(0); }
inline int __syncthreads_or(int vote)
{
    emulator::wait_for_block(vote);
    return emulator::votes != 0;
}
inline int __syncthreads_count(int vote)
{
    emulator::wait_for_block(vote);
    return emulator::votes;
}
inline int __syncthreads_and(int vote)
{
    emulator::wait_for_block(vote);
    return emulator::all_votes;
}
inline void __syncwarp(uint32_t mask = ~0u) { emulator::wait_for_warp(mask, false); }

namespace emulator {

/* The value of the lane `source`, or one's own where that is not in the same `width` lanes. */
template <class T> T shuffle(uint32_t mask, T value, int source, int width)
{
    show(mask, value);
    const int from = source / width == self->lane / width && source >= 0 ? source : self->lane;
    if (!(mask >> from & 1)) fail("a shuffle that reads a lane outside of its mask, which is", mask);
    return shown<T>(from);
}

/* of(value, value) over the lanes of the mask */
template <class T, class Of> T over_lanes(uint32_t mask, T value, Of of)
{
    show(mask, value);
    T sum{};
    bool first = true;
    for (int lane = 0; lane < WARP; lane++) {
        if (!(mask >> lane & 1)) continue;
        sum = first ? shown<T>(lane) : of(sum, shown<T>(lane));
        first = false;
    }
    return sum;
}

} // namespace emulator

template <class T> T __shfl_sync(uint32_t mask, T value, int source, int width = 32)
{
    return emulator::shuffle(mask, value, (source & (width - 1)) | (emulator::self->lane & -width), width);
}
template <class T> T __shfl_xor_sync(uint32_t mask, T value, int bits, int width = 32)
{
    return emulator::shuffle(mask, value, emulator::self->lane ^ bits, width);
}
template <class T> T __shfl_down_sync(uint32_t mask, T value, unsigned by, int width = 32)
{
    return emulator::shuffle(mask, value, emulator::self->lane + (int)by, width);
}
template <class T> T __shfl_up_sync(uint32_t mask, T value, unsigned by, int width = 32)
{
    return emulator::shuffle(mask, value, emulator::self->lane - (int)by, width);
}
inline uint32_t __reduce_add_sync(uint32_t mask, uint32_t value)
{
    return emulator::over_lanes(mask, value, std::plus<uint32_t>());
}
inline uint32_t __ballot_sync(uint32_t mask, int vote)
{
    return emulator::over_lanes(mask, vote ? 1u << emulator::self->lane : 0u, std::bit_or<uint32_t>());
}
inline uint32_t __match_any_sync(uint32_t mask, uint32_t value)
{
    uint32_t peers = 0;
    for (int lane = 0; lane < 32; lane++)
        if (mask >> lane & 1 && __shfl_sync(mask, value, lane) == value) peers |= 1u << lane;
    return peers;
}
inline int __any_sync(uint32_t mask, int vote) { return __ballot_sync(mask, vote) != 0; }
inline int __all_sync(uint32_t mask, int vote) { return __ballot_sync(mask, vote) == mask; }

/* ---- memory ------------------------------------------------------------------------------------------------------------ */

template <class T> T __ldg(const T *p) { return *p; }
template <class T> T __ldcv(const T *p) { return *p; }
template <class T> T __ldcs(const T *p) { return *p; }
inline void __threadfence() {} /* one block runs after the other */
template <class T> void __stcs(T *p, T value) { *p = value; }
template <class T, class Value> T atomicAdd(T *p, Value value)
{
    const T before = *p;
    *p = before + (T)value;
    return before;
}
template <class T> T atomicMin(T *p, T value)
{
    const T before = *p;
    *p = value < before ? value : before;
    return before;
}

inline uint32_t atomicOr(uint32_t *p, uint32_t value)
{
    const uint32_t before = *p;
    *p = before | value;
    return before;
}

/* ---- integers and bits ------------------------------------------------------------------------------------------------- */

namespace emulator {
template <class To, class From> To bits(From x)
{
    static_assert(sizeof(To) == sizeof x, "a cast of bits");
    To y;
    memcpy(&y, &x, sizeof y);
    return y;
}
} // namespace emulator

inline uint32_t __float_as_uint(float x) { return emulator::bits<uint32_t>(x); }
inline float __uint_as_float(uint32_t x) { return emulator::bits<float>(x); }
inline float __int_as_float(int x) { return emulator::bits<float>(x); }
inline int __double2hiint(double x) { return (int)(emulator::bits<uint64_t>(x) >> 32); }
inline int __double2loint(double x) { return (int)emulator::bits<uint64_t>(x); }
inline double __hiloint2double(int high, int low)
{
    return emulator::bits<double>((uint64_t)(uint32_t)high << 32 | (uint32_t)low);
}
inline int __popc(uint32_t x) { return __builtin_popcount(x); }
inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline uint32_t __umulhi(uint32_t a, uint32_t b) { return (uint32_t)((uint64_t)a * b >> 32); }
inline uint32_t __funnelshift_r(uint32_t low, uint32_t high, uint32_t by)
{
    return (uint32_t)(((uint64_t)high << 32 | low) >> (by & 31));
}

#define EMULATOR_LEAST_AND_MOST(type) \
    inline type min(type a, type b) { return b < a ? b : a; } \
    inline type max(type a, type b) { return a < b ? b : a; }
EMULATOR_LEAST_AND_MOST(int)
EMULATOR_LEAST_AND_MOST(unsigned)
EMULATOR_LEAST_AND_MOST(long)
EMULATOR_LEAST_AND_MOST(unsigned long)
EMULATOR_LEAST_AND_MOST(long long)
EMULATOR_LEAST_AND_MOST(unsigned long long)
inline unsigned min(int a, unsigned b) { return min((unsigned)a, b); }
inline unsigned min(unsigned a, int b) { return min(a, (unsigned)b); }
inline unsigned max(int a, unsigned b) { return max((unsigned)a, b); }
inline unsigned max(unsigned a, int b) { return max(a, (unsigned)b); }
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }
