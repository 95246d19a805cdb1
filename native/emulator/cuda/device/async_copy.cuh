/* Copies to shared memory that the emulated device makes at once. */
#pragma once

#include "cuda/device/shared.cuh"

template <int BYTES, bool ORDERED = true> static inline void tl_copy_async(uint32_t to, const void *from, bool present)
{
    static_assert(BYTES == 16 || BYTES == 8 || BYTES == 4, "what cp.async serves here");
    if (present)
        memcpy(tl_shared_pointer(to), from, BYTES);
    else
        memset(tl_shared_pointer(to), 0, BYTES);
}
template <int BYTES> static inline void tl_copy_async(float *shared, const float *global, bool present)
{
    tl_copy_async<BYTES>(tl_shared_address(shared), global, present);
}
static inline void tl_copy_async_first(uint32_t to, const void *from, int bytes)
{
    char *const shared = (char *)tl_shared_pointer(to);
    memcpy(shared, from, (size_t)bytes);
    memset(shared + bytes, 0, (size_t)(16 - bytes));
}
static inline void tl_copy_async_first(float *shared, const float *global, int bytes)
{
    tl_copy_async_first(tl_shared_address(shared), global, bytes);
}
static inline void tl_copy_commit() {}
template <int PENDING> static inline void tl_copy_wait() {}
