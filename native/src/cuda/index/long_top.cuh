/* The places of the k first elements of rows that no warp holds, for top-k. */
#pragma once

#include "cuda/runtime/launch.cuh"

/* long_top.cu: of `rows` rows of n elements, which lie `inner` apart: largest first, or with `smallest` smallest first. */
int32_t tl_long_top(tl_context *ctx, const float *x, int64_t rows, int64_t n, int64_t inner, int64_t k, int smallest,
                    uint32_t *out);
