/* Top-k of long rows on CUDA: `rows` of n elements each, which lie `inner` apart, 0 < k <= n. */
#pragma once

#include "cuda/runtime/launch.cuh"

/* long_top.cu: a k whose list fits shared memory. */
int32_t tl_long_top(tl_context *ctx, const float *x, int64_t rows, int64_t n, int64_t inner, int64_t k, int smallest,
                    uint32_t *out);
/* sorted_top.cu: any k. */
int32_t tl_sorted_top(tl_context *ctx, const float *x, int64_t outer, int64_t n, int64_t inner, int64_t k, int smallest,
                      uint32_t *out);
