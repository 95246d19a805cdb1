// Products at float32 accuracy on TF32 tensor cores.
//
// x = hi + lo, both TF32 (11 significant bits): hi is x rounded to nearest, lo the rest, so hi + lo is x to 2^-23.
// a*b is a.hi*b.hi + a.hi*b.lo + a.lo*b.hi; the dropped a.lo*b.lo is at most 2^-22 |ab| and has no preferred sign.
// The tensor core truncates while it accumulates, a bias that grows with the length of the chain. A chain is therefore
// ended after TL_DRAIN columns of K and added to a float32 register by the ordinary, correctly rounded adder.
//
// TF32 keeps float32's exponent range but not its subnormals' precision: an operand that is infinite, NaN, so large that hi would
// overflow or so small that lo would be cut asks for the SIMT path. tl_split_unsafe tells; a thread block that met
// one computes its tile again without tensor cores, so no value is ever hidden.
#pragma once
#include <stdint.h>

// Longest chain in columns of K between two drains.
constexpr int TL_DRAIN = 32;

// Bits of 2^-100 and 2^127.
constexpr uint32_t TL_SPLIT_LEAST = 0x0d800000u, TL_SPLIT_MOST = 0x7f000000u;

// False where 2^-100 <= |x| < 2^127, or x = 0: both parts and all three products keep their precision (the products
// themselves round as any float32 product does).
__device__ __forceinline__ bool tl_split_unsafe(float x)
{
    const uint32_t magnitude = __float_as_uint(x) & 0x7fffffffu;
    return magnitude != 0 && magnitude - TL_SPLIT_LEAST >= TL_SPLIT_MOST - TL_SPLIT_LEAST;
}

// The least 2·bits - 1 and the greatest |x| that a thread saw. A zero counts as the greatest of integers.
struct tl_split_guard {
    uint32_t least = 0xffffffffu;
    float most = 0.0f;

    __device__ __forceinline__ void see(float x)
    {
        least = min(least, 2 * __float_as_uint(x) - 1);
        asm("max.NaN.f32 %0, %0, %1;" : "+f"(most) : "f"(fabsf(x)));
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
        return least < 2 * TL_SPLIT_LEAST - 1 || !(__float_as_uint(most) < TL_SPLIT_MOST);
    }
};

// The two TF32 parts. The tensor core reads the upper 19 bits only; lo has 12 bits, of which cutting one loses as much as
// rounding it would.
__device__ __forceinline__ void tl_split(float x, uint32_t &hi, uint32_t &lo)
{
    hi = (__float_as_uint(x) + 0x1000u) & 0xffffe000u;
    lo = __float_as_uint(x - __uint_as_float(hi));
}

// d += a b for one 16x8 tile over 8 columns of K. Lane 4g+t holds a: (g,t) (g+8,t) (g,t+4) (g+8,t+4); b: (t,g) (t+4,g);
// d: (g,2t) (g,2t+1) (g+8,2t) (g+8,2t+1) (PTX ISA, "Matrix Fragments for mma.m16n8k8 with .tf32").
__device__ __forceinline__ void tl_mma_tf32(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])
{
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
