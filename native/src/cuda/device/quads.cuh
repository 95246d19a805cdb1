/* Results that threads write four at a time. */
#pragma once

#include "cuda/device/vector.cuh"
#include "cuda/runtime/launch.cuh"

constexpr int TL_QUADS_THREADS = 256, TL_QUADS = 4;

/* A block owns consecutive elements of out, a thread TL_QUADS quadruples of them, TL_QUADS_THREADS apart: `make` gives the one from an
 * element on, all before the first is stored. */
template <class Make> static __device__ __forceinline__ void tl_write_quads(float *out, int64_t n, Make make)
{
    const int64_t own = (int64_t)blockIdx.x * (TL_QUADS_THREADS * TL_QUADS * 4) + threadIdx.x * 4;
    float v[TL_QUADS][4];
    TL_UNROLL_FOR (int k = 0; k < TL_QUADS; k++) {
        const int64_t first = own + k * TL_QUADS_THREADS * 4;
        if (first >= n) break;
        make(first, v[k]);
    }
    TL_UNROLL_FOR (int k = 0; k < TL_QUADS; k++) {
        const int64_t first = own + k * TL_QUADS_THREADS * 4;
        tl_store4(out + first, v[k], n - first);
    }
}
static inline unsigned tl_quads_grid(int64_t n) { return tl_grid(n, TL_QUADS_THREADS * TL_QUADS * 4); }
