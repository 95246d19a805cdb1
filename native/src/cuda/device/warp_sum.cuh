/* Running sums over the lanes of a warp. */
#pragma once

#include <cuda_runtime.h>

#include "cuda/device/unroll.cuh"

/* The sum of x over the lanes up to this one, which is number `lane` of its warp. All lanes must call. Floats add in the same tree every
 * time, in which lanes are not in order. */
template <class T, class Lane> static __device__ __forceinline__ T tl_sum_to_lane(T x, Lane lane)
{
    TL_UNROLL_FOR (int d = 1; d < 32; d *= 2) {
        const T before = __shfl_up_sync(~0u, x, d);
        if (lane >= d) x += before;
    }
    return x;
}
