/* Products of a warp in float64 that are chains (formula/chain.h): the tensor cores of compute capability 9.0 add the four terms
 * of an m16n8k4 product one after the other, each fused, and the eight of an m16n8k8 product (tests/kernels/test_chain.py).
 * g is lane / 4, and t is lane % 4. */
#pragma once

#include "cuda/device/unroll.cuh"

/* sum += a·b, a 16 x 8 x 4 product of a warp: the lane has rows g, g + 8 of a and column g of b at k = t, and of the sums rows g
 * and g + 8, columns 2t and 2t + 1. Where tensor cores have none, lanes ask for each other's elements. */
static __device__ __forceinline__ void tl_chain_mma(double (&sum)[4], double a0, double a1, double b)
{
#if __CUDA_ARCH__ >= 900
    asm("mma.sync.aligned.m16n8k4.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+d"(sum[0]), "+d"(sum[1]), "+d"(sum[2]), "+d"(sum[3])
        : "d"(a0), "d"(a1), "d"(b));
#else
    const int lane = (int)threadIdx.x % 32, t = lane % 4;
    TL_UNROLL_FOR (int k = 0; k < 4; k++) {
        const double x0 = __shfl_sync(0xffffffffu, a0, lane - t + k), x1 = __shfl_sync(0xffffffffu, a1, lane - t + k);
        const double y0 = __shfl_sync(0xffffffffu, b, 8 * t + k), y1 = __shfl_sync(0xffffffffu, b, 8 * t + 4 + k);
        sum[0] = fma(x0, y0, sum[0]), sum[1] = fma(x0, y1, sum[1]);
        sum[2] = fma(x1, y0, sum[2]), sum[3] = fma(x1, y1, sum[3]);
    }
#endif
}

/* The same of 16 x 8 x 8: the lane has a0, a1 and b0 at k = t, and a2, a3 and b1 at k = t + 4. */
static __device__ __forceinline__ void tl_chain_mma(double (&sum)[4], double a0, double a1, double a2, double a3,
                                                    double b0, double b1)
{
#if __CUDA_ARCH__ >= 900
    asm("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+d"(sum[0]), "+d"(sum[1]), "+d"(sum[2]), "+d"(sum[3])
        : "d"(a0), "d"(a1), "d"(a2), "d"(a3), "d"(b0), "d"(b1));
#else
    tl_chain_mma(sum, a0, a1, b0);
    tl_chain_mma(sum, a2, a3, b1);
#endif
}
