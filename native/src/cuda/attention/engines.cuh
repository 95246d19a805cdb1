/* The engines of attention on CUDA beside warp group products (attention/wgmma.cuh); attention/select.h says which takes a call. */
#pragma once

#include "cuda/attention/geometry.cuh"

namespace attention {

/* By chains of float64, of all shapes. Arrays lie as `at` says; NULL: they are contiguous. Rows of what is read are near each other
 * (is_near). Of `only` (scan_unsafe), for self-attention, the members whose flag is 0 are left out, and no row counts as
 * finite. A gradient that is NULL is left out. */
int32_t chain_forward(tl_context *ctx, const Geometry &of, const float *Q, const float *K, const float *V, float *out,
                      const Layouts *at = nullptr, const uint8_t *only = nullptr);
int32_t chain_backward(tl_context *ctx, const Geometry &of, const float *Q, const float *K, const float *V,
                       const float *out, const float *g, float *gQ, float *gK, float *gV, const Layouts *at = nullptr,
                       const uint8_t *only = nullptr);

/* Whether rows are so near each other that those of a block begin within 2^31 elements. */
inline bool is_near(int64_t pitch) { return pitch < (int64_t)1 << 23; }

/* By products with scores in memory between them, of no empty array. */
int32_t products_forward(tl_context *ctx, const Geometry &of, const float *Q, const float *K, const float *V,
                         float *out);
int32_t products_backward(tl_context *ctx, const Geometry &of, const float *Q, const float *K, const float *V,
                          const float *out, const float *g, float *gQ, float *gK, float *gV);

/* By the float32 units, keys in parts. */
int32_t simt_forward(tl_context *ctx, const Geometry &of, const float *Q, const float *K, const float *V, float *out);

/* Whether chains compute a call, which take arrays as they lie. */
bool is_for_chain(tl_context *ctx, const Geometry &of, bool backward);
/* The operation, by the engine that is chosen. */
int32_t forward(tl_context *ctx, const Geometry &of, const float *Q, const float *K, const float *V, float *out);
int32_t backward(tl_context *ctx, const Geometry &of, const float *Q, const float *K, const float *V, const float *out,
                 const float *g, float *gQ, float *gK, float *gV);

} /* namespace attention */
