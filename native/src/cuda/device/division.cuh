/* Integer division: rounded up, and by a divisor that is the same for a whole launch. */
#pragma once

#include <cuda_runtime.h>
#include <stdint.h>

#include "formula/integer.h"

/* n / d for every uint32_t n and every d from 1 to 2^32 - 1, exactly, by one high multiplication and two shifts
 * (Granlund and Montgomery, "Division by Invariant Integers using Multiplication", PLDI 1994, figure 4.1). */
struct tl_fastdiv {
    uint32_t divisor, multiplier, shift1, shift2;

    tl_fastdiv() = default;
    __host__ explicit tl_fastdiv(uint64_t d) : divisor((uint32_t)d)
    {
        uint32_t log2_up = 0;
        while (log2_up < 32 && (UINT64_C(1) << log2_up) < d)
            log2_up++;
        /* floor(2^32 (2^l - d) / d) + 1; 2^l - d < d, so the numerator stays below 2^64 */
        multiplier = (uint32_t)(((((UINT64_C(1) << log2_up) - d) << 32) / d) + 1);
        shift1 = log2_up < 1 ? log2_up : 1;
        shift2 = log2_up < 1 ? 0 : log2_up - 1;
    }

    __host__ __device__ __forceinline__ uint32_t div(uint32_t n) const
    {
#ifdef __CUDA_ARCH__
        uint32_t t = __umulhi(multiplier, n);
#else
        uint32_t t = (uint32_t)((uint64_t)multiplier * n >> 32);
#endif
        return (t + ((n - t) >> shift1)) >> shift2;
    }

    /* Quotient, and the remainder through *rest. */
    __host__ __device__ __forceinline__ uint32_t divmod(uint32_t n, uint32_t *rest) const
    {
        uint32_t q = div(n);
        *rest = n - q * divisor;
        return q;
    }
};
