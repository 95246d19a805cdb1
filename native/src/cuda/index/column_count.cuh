/* Divisions by a number of columns that a kernel of a scatter-add finds: those that the host knows are tl_fastdiv's. */
#pragma once

#include "cuda/device/division.cuh"

/* A number of columns, up to 32, that the device finds, by which it divides numbers up to TL_MOST_NUMBERS: what the multiplier is too
 * large by adds less than a divisor's part to a quotient. */
constexpr uint32_t TL_MOST_NUMBERS = 2048;
struct tl_column_count {
    uint32_t divisor, multiplier; /* the last is 2^16 / divisor, rounded up */

    __device__ __forceinline__ explicit tl_column_count(uint32_t d) : divisor(d), multiplier(UINT16_MAX / d + 1)
    {
        static_assert(TL_MOST_NUMBERS * (32 - 1) < 1 << 16);
    }
    __device__ __forceinline__ uint32_t div(uint32_t n) const { return n * multiplier >> 16; }
    __device__ __forceinline__ uint32_t divmod(uint32_t n, uint32_t *rest) const
    {
        const uint32_t q = div(n);
        *rest = n - q * divisor;
        return q;
    }
};
