/* Floats as terms of float64 sums, without a conversion. */
#pragma once

#include <cuda_runtime.h>
#include <stdint.h>

#include "formula/base.h"
#include "formula/wide.h"

/* (double)x + y with one rounding, where x is finite or y is NaN. The bits of a float in the places of a double's are x 2^-896, of a
 * subnormal number too: three instructions of integers and a fused one, as a multiprocessor converts no more than a quarter as many
 * numbers to float64 as it adds. */
static __device__ __forceinline__ double tl_add_widened(float x, double y)
{
    const uint32_t bits = tl_bits(x), high = (uint32_t)((int32_t)bits >> 3) & UINT32_C(0x8fffffff);
    return fma(tl_from_bits64((uint64_t)high << 32 | bits << 29), 0x1p896, y);
}
