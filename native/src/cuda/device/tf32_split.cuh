/* Products at float32 accuracy on TF32 tensor cores.
 *
 * x = hi + lo, both TF32 (11 significant bits): hi is x rounded to nearest, lo the rest. a·b is then a.hi·b.hi +
 * a.hi·b.lo + a.lo·b.hi; the dropped a.lo·b.lo is at most 2^-22 |ab| and has no preferred sign. The tensor core
 * truncates while it accumulates, a bias that grows with the length of the chain. A chain is therefore ended after
 * TL_DRAIN columns of K and added to a float32 register by the ordinary, correctly rounded adder.
 *
 * TF32 keeps float32's exponent range but not its subnormals' precision. An operand that is infinite, NaN, so large that
 * hi would overflow or so small that lo would be cut needs ordinary arithmetic: a thread block that met one computes its
 * tile again without tensor cores, so no value is ever hidden. */
#pragma once

#include <cuda_runtime.h>
#include <stdint.h>

#include "cuda/device/instructions.cuh"
#include "cuda/device/unroll.cuh"

/* Longest chain in columns of K between two drains. */
constexpr int TL_DRAIN = 32;

/* Bits of 2^-100 and 2^127, and of 2^114, up to which tl_split_dekker keeps its precision. */
constexpr uint32_t TL_SPLIT_LEAST = 0x0d800000u, TL_SPLIT_MOST = 0x7f000000u, TL_SPLIT_DEKKER_MOST = 0x78800000u;

/* False where 2^-100 <= |x| < 2^127, or x = 0: both parts and all three products keep their precision (the products
 * themselves round as any float32 product does). */
__device__ __forceinline__ bool tl_split_unsafe(float x)
{
    const uint32_t magnitude = __float_as_uint(x) & 0x7fffffffu;
    return magnitude != 0 && magnitude - TL_SPLIT_LEAST >= TL_SPLIT_MOST - TL_SPLIT_LEAST;
}

/* Keeps the least magnitude but 0, as 2·bits - 1, which takes a zero to the greatest of integers; and whether one was
 * below 2^-100. */
__device__ __forceinline__ void tl_split_keep_least(uint32_t &least, float x)
{
    least = min(least, 2 * __float_as_uint(x) - 1);
}
__device__ __forceinline__ bool tl_split_too_small(uint32_t least) { return least < 2 * TL_SPLIT_LEAST - 1; }

/* The least and the greatest magnitude that a thread saw. */
struct tl_split_guard {
    uint32_t least = 0xffffffffu;
    float most = 0.0f;

    __device__ __forceinline__ void see(float x)
    {
        tl_split_keep_least(least, x);
        most = tl_max_or_nan(most, fabsf(x));
    }
    __device__ __forceinline__ void see(float4 x)
    {
        see(x.x);
        see(x.y);
        see(x.z);
        see(x.w);
    }
    __device__ __forceinline__ bool unsafe() const
    {
        return tl_split_too_small(least) || !(__float_as_uint(most) < TL_SPLIT_MOST);
    }
};

/* There are two splits because they differ in what follows from a value half way between two TF32 numbers (hi is the
 * one or the other, so the products' last bits differ) and from one that is too large, on which the kernels' guards rest.
 * Results keep their bits only if each family stays with its own. */

/* By the bits of x, halves away from 0, for tl_split_guard: two integer operations and one subtraction. hi + lo is x to
 * 2^-23. The tensor core reads the upper 19 bits only; lo has 12 bits, of which cutting one loses as much as rounding it
 * would. */
__device__ __forceinline__ void tl_split(float x, uint32_t &hi, uint32_t &lo)
{
    hi = (__float_as_uint(x) + 0x1000u) & 0xffffe000u;
    lo = __float_as_uint(x - __uint_as_float(hi));
}

/* By three float32 operations (Dekker, Numerische Mathematik 18, 1971, with the last subtraction fused): hi + lo is x
 * exactly. lo has at most 13 bits; the tensor core cuts them to 11, toward 0, lo having either sign. From about 2^115 on
 * hi is infinite and lo the opposite infinity, or both are NaN: a result that is not finite shows it, and only the least
 * magnitude has to be kept. */
__device__ __forceinline__ void tl_split_dekker(float x, uint32_t &hi, uint32_t &lo)
{
    const float t = x * 8193.0f, high = fmaf(x, -8192.0f, t);
    hi = __float_as_uint(high);
    lo = __float_as_uint(x - high);
}

/* d += a b for N tiles side by side (tl_mma_tf32), which are independent, so that the tensor core need not wait for one. */
template <int N>
__device__ __forceinline__ void tl_mma_tf32(float (&d)[N][4], const uint32_t (&a)[4], const uint32_t (&b)[N][2])
{
    TL_UNROLL_FOR (int n = 0; n < N; n++)
        tl_mma_tf32(d[n], a, b[n]);
}

/* d[m][n] += a[m]·b[n] over 8 columns of K at float32 accuracy, the small products first: lo·hi, hi·lo, hi·hi. SWAPPED
 * exchanges the two small ones, so that a product and its transpose are summed in the same order. */
template <bool SWAPPED = false, int M, int N>
__device__ __forceinline__ void tl_mma_split(float (&d)[M][N][4], const uint32_t (&ahi)[M][4],
                                             const uint32_t (&alo)[M][4], const uint32_t (&bhi)[N][2],
                                             const uint32_t (&blo)[N][2])
{
    TL_UNROLL_FOR (int m = 0; m < M; m++)
        tl_mma_tf32(d[m], SWAPPED ? ahi[m] : alo[m], SWAPPED ? blo : bhi);
    TL_UNROLL_FOR (int m = 0; m < M; m++)
        tl_mma_tf32(d[m], SWAPPED ? alo[m] : ahi[m], SWAPPED ? bhi : blo);
    TL_UNROLL_FOR (int m = 0; m < M; m++)
        tl_mma_tf32(d[m], ahi[m], bhi);
}
