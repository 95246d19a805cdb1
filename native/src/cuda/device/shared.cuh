/* Shared memory that a launch gives its blocks, and the addresses that instructions on shared memory take. */
#pragma once

#include <cuda_runtime.h>
#include <stdint.h>

/* Declares `name`, the block's dynamic shared memory as elements of `type`. */
#define TL_DYNAMIC_SHARED(type, name) extern __shared__ __align__(16) type name[]

static __device__ __forceinline__ uint32_t tl_shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}
