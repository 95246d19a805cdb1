/* Accesses of 16 bytes: four neighbouring floats. */
#pragma once

#include <cuda_runtime.h>
#include <stdint.h>

#include "cuda/device/unroll.cuh"

/* Buffers start on 256 bytes, so element 4·k of a buffer is aligned; check with tl_aligned4 where rows may start
 * anywhere. */
static __host__ __device__ __forceinline__ bool tl_aligned4(const void *p) { return ((uintptr_t)p & 15) == 0; }
static __device__ __forceinline__ float4 tl_load4(const float *p) { return *reinterpret_cast<const float4 *>(p); }
static __device__ __forceinline__ void tl_store4(float *p, float4 v) { *reinterpret_cast<float4 *>(p) = v; }

/* The same with four neighbouring registers. */
static __device__ __forceinline__ void tl_unpack4(float4 q, float *v)
{
    v[0] = q.x, v[1] = q.y, v[2] = q.z, v[3] = q.w;
}
static __device__ __forceinline__ void tl_load4(const float *p, float *v) { tl_unpack4(tl_load4(p), v); }
static __device__ __forceinline__ void tl_store4(float *p, const float *v)
{
    tl_store4(p, make_float4(v[0], v[1], v[2], v[3]));
}

/* The same of the first `count` of them. */
static __device__ __forceinline__ void tl_store4(float *p, const float *v, int64_t count)
{
    if (count >= 4) {
        tl_store4(p, v);
    } else {
        TL_UNROLL_FOR (int e = 0; e < 3; e++)
            if (e < count) p[e] = v[e];
    }
}

/* N neighbouring floats: 4 or 2 at a multiple of their size, or one. */
template <int N> static __device__ __forceinline__ void tl_load(const float *p, float (&v)[N])
{
    static_assert(N == 4 || N == 2 || N == 1, "an access");
    if constexpr (N == 4) {
        tl_load4(p, v);
    } else if constexpr (N == 2) {
        const float2 q = *reinterpret_cast<const float2 *>(p);
        v[0] = q.x, v[1] = q.y;
    } else {
        v[0] = *p;
    }
}
