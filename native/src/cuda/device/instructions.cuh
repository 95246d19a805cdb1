/* Instructions that CUDA C++ has no name for, and that all chips have that the library is compiled for, or can do
 * without. */
#pragma once

#include <cuda_runtime.h>
#include <stdint.h>

/* a·b + c modulo 2^32, one instruction whatever stands beside it. */
static __device__ __forceinline__ uint32_t tl_mad_low(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t y;
    asm("mad.lo.u32 %0, %1, %2, %3;" : "=r"(y) : "r"(a), "r"(b), "r"(c));
    return y;
}

/* The greater of both; NaN where one is. */
static __device__ __forceinline__ float tl_max_or_nan(float a, float b)
{
    float y;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
    return y;
}

/* x, which the compiler cannot know any more: what it was computed from cannot take its place. */
static __device__ __forceinline__ void tl_forget_origin(float &x) { asm volatile("" : "+f"(x)); }
static __device__ __forceinline__ void tl_forget_origin(int &x) { asm volatile("" : "+r"(x)); }

/* Stores neighbouring floats to global memory at once, at an address that is a multiple of their size: the compiler stores them one by
 * one where it cannot tell that nothing comes between them. */
static __device__ __forceinline__ void tl_store_at_once(float *to, const float (&y)[2])
{
    asm volatile("st.global.v2.f32 [%0], {%1, %2};" ::"l"(__cvta_generic_to_global(to)), "f"(y[0]), "f"(y[1])
                 : "memory");
}
static __device__ __forceinline__ void tl_store_at_once(float *to, const float (&y)[4])
{
    asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)), "f"(y[0]), "f"(y[1]),
                 "f"(y[2]), "f"(y[3])
                 : "memory");
}

/* d += a b for one 16x8 tile over 8 columns of K. Lane 4g+t holds a: (g,t) (g+8,t) (g,t+4) (g+8,t+4); b: (t,g) (t+4,g);
 * d: (g,2t) (g,2t+1) (g+8,2t) (g+8,2t+1) (PTX ISA, "Matrix Fragments for mma.m16n8k8 with .tf32"). */
static __device__ __forceinline__ void tl_mma_tf32(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])
{
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
