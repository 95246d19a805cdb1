/* When results go past the cache (vector.h), and what is written in whole lines. */
#pragma once

#include <stdint.h>
#include <string.h>

#include "cpu/vector.h"

enum {
    TL_LINE = 16,             /* floats in a line of the cache */
    TL_FETCH_FROM = 1 << 18,  /* elements: 1 MiB, which the cache next to a processor may not hold */
    TL_STREAM_FROM = 6 << 20, /* elements: 24 MiB; with as much read, more than an L3 cache of 32 MiB keeps */
};

/* statement for every i from first_ to end_ - 1, no two of which meet: whole lines, and the rest of one under a mask where there
 * are masks, rather than element by element; unrolled, it would not become a vector. */
#define TL_FOR_LINES(i, first_, end_, ...)                                                       \
    do {                                                                                         \
        const int64_t start_ = (first_), stop_ = (end_);                                         \
        const int64_t whole_ = start_ + (stop_ - start_) / TL_LINE * TL_LINE;                    \
        _Pragma("GCC ivdep") for (int64_t i = start_; i < whole_; i++)                           \
        {                                                                                        \
            __VA_ARGS__                                                                          \
        }                                                                                        \
        if (whole_ < stop_) {                                                                    \
            _Pragma("GCC ivdep") _Pragma("GCC unroll 1")                                         \
            for (int32_t rest_ = 0; rest_ < TL_LINE; rest_++)                                    \
            {                                                                                    \
                const int64_t i = whole_ + rest_;                                                \
                if (i < stop_) {                                                                 \
                    __VA_ARGS__                                                                  \
                }                                                                                \
            }                                                                                    \
        }                                                                                        \
    } while (0)

/* memcpy of n floats. */
static inline void tl_stream_copy(float *to, const float *from, int64_t n)
{
    const int64_t skip = (int64_t)(-((uintptr_t)to / sizeof(float)) % TL_LINE);
    const int64_t head = skip < n ? skip : n;
    memcpy(to, from, (size_t)head * sizeof(float));
    int64_t i = head;
    for (; i + TL_LINE <= n; i += TL_LINE)
        for (int32_t k = 0; k < TL_LINE; k += TL_LANES)
            tl_vec_stream(to + i + k, tl_vec_load(from + i + k));
    memcpy(to + i, from + i, (size_t)(n - i) * sizeof(float));
}
