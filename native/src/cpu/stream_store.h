/* Stores past the cache, for results too large to stay in it: the processor then writes whole lines and does not read
 * them first, which saves a third of a copy's traffic and half of a fill's.
 *
 * TL_STREAM(p, v) stores a vector of TL_STREAM_WIDTH floats to p, aligned to it. Such stores should come in whole,
 * aligned lines, and nothing orders them but tl_stream_end, which a task calls before it returns. */
#pragma once

#include <stdint.h>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define TL_STREAM_WIDTH 16
#define TL_STREAM(p, v) _mm512_stream_ps(p, (__m512)(v))
#elif defined(__AVX2__)
#define TL_STREAM_WIDTH 8
#define TL_STREAM(p, v) _mm256_stream_ps(p, (__m256)(v))
#elif defined(__SSE2__)
#define TL_STREAM_WIDTH 4
#define TL_STREAM(p, v) _mm_stream_ps(p, (__m128)(v))
#else
#define TL_STREAM_WIDTH 4
#define TL_STREAM(p, v) (*(tl_stream_vector *)(p) = (v))
#endif

typedef float tl_stream_vector __attribute__((vector_size(4 * TL_STREAM_WIDTH), aligned(4), may_alias));

static inline void tl_stream_end(void)
{
#if defined(__SSE2__)
    _mm_sfence();
#endif
}
