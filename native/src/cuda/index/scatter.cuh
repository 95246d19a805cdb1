/* Scatter-adds, which several operations of the family share. Both give out = base (NULL: +0) plus values[j] at row indices[j], in
 * the order of j; `name` is the operation. */
#pragma once

#include "cuda/runtime/launch.cuh"

/* scatter.cu: any indices, from the host or the device. */
int32_t tl_scatter_rows(tl_context *ctx, const char *name, const float *base, const float *values,
                        const uint32_t *indices, int64_t rows, int64_t cols, int64_t k, float *out);

/* scatter_tile.cu: `outer` arrays, one behind the other in base, values and out, of up to TL_TILE_INDICES indices, which lie
 * on the device and are of each array's own (`by_outer`) or shared; or one of up to TL_BINNED_INDICES. */
constexpr int64_t TL_TILE_INDICES = 8192, TL_BINNED_INDICES = 1 << 17;
constexpr int64_t TL_SMALL_TABLE = 1 << 21; /* elements: smaller ones have tiles of few columns */
int32_t tl_scatter_tiles(tl_context *ctx, const char *name, const float *base, const float *values,
                         const uint32_t *indices, int64_t outer, int64_t rows, int64_t cols, int64_t k, bool by_outer,
                         float *out);
