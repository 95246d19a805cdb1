/* Asynchronous copies from global to shared memory, past the registers (PTX cp.async). A thread collects its copies in
 * groups and waits for its own groups only; what other threads copied is there after a barrier. */
#pragma once

#include "cuda/device/shared.cuh"

/* Starts copying BYTES (16, 8 or 4, both ends aligned to that); if not `present`, writes zeros and reads nothing. With
 * ORDERED the compiler moves no access to memory across it. Without, it may: for loops whose barriers already order the
 * accesses to a stage. */
template <int BYTES, bool ORDERED = true>
static __device__ __forceinline__ void tl_copy_async(uint32_t to, const void *from, bool present)
{
    static_assert(BYTES == 16 || BYTES == 8 || BYTES == 4, "what cp.async serves here");
    const int size = present ? BYTES : 0;
    if constexpr (BYTES == 16 && ORDERED)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(size) : "memory");
    else if constexpr (BYTES == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(size));
    else if constexpr (ORDERED)
        asm volatile("cp.async.ca.shared.global [%0], [%1], %3, %2;" ::"r"(to), "l"(from), "r"(size), "n"(BYTES)
                     : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %3, %2;" ::"r"(to), "l"(from), "r"(size), "n"(BYTES));
}
template <int BYTES>
static __device__ __forceinline__ void tl_copy_async(float *shared, const float *global, bool present)
{
    tl_copy_async<BYTES>(tl_shared_address(shared), global, present);
}
/* Starts copying the first `bytes` (0 to 16) of 16, both ends aligned to 16; zeros are written for the others. */
static __device__ __forceinline__ void tl_copy_async_first(uint32_t to, const void *from, int bytes)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
static __device__ __forceinline__ void tl_copy_async_first(float *shared, const float *global, int bytes)
{
    tl_copy_async_first(tl_shared_address(shared), global, bytes);
}

/* Ends the thread's group of copies. */
static __device__ __forceinline__ void tl_copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

/* Waits until at most PENDING of the thread's newest groups are under way. */
template <int PENDING> static __device__ __forceinline__ void tl_copy_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}
