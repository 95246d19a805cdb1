/* Attention on CUDA by chains of float64 (attention/chain.cu), for flash_attention and grouped_attention: in the mode
 * `reproducible`, and in the mode `fast` where float64 tensor cores outrun the float32 units. */
#pragma once

#include "cuda/attention/rows.cuh"
#include "formula/chain.h"

namespace attention {

/* Whether what TF32 tensor cores do not take is computed here: where chains are fast, rows not so long that their scores are
 * computed several times, and sums of several segments, which lie in memory meanwhile, not many times as large as the arrays. */
inline bool chain_serves(tl_context *ctx, const Geometry &of)
{
    const int64_t most = of.d > of.v ? of.d : of.v, terms = of.keys > of.rows ? of.keys : of.rows;
    return tl_is_reproducible(ctx) ||
           (tl_cuda_chains_are_fast(ctx) && most <= 128 && (most >= 16 || terms <= TL_CHAIN_SEGMENT));
}

/* Of Q, K, V, the result, its cotangent, and the gradients. */
struct Layouts {
    Layout q, k, v, out, g, gq, gk, gv;

    static Layouts contiguous(const Geometry &of)
    {
        const auto lay = [&](int64_t rows, int64_t width) {
            return Layout{of.kv_heads * rows * width, rows * width, width};
        };
        const Layout q = lay(of.rows, of.d), k = lay(of.keys, of.d), out = lay(of.rows, of.v), v = lay(of.keys, of.v);
        return {q, k, v, out, out, q, k, v};
    }
};

/* Arrays lie as `at` says; NULL: they are contiguous. Rows of what is read are near each other (is_near, attention/chain_tiles.cuh). */
int32_t chain_forward(tl_context *ctx, const Geometry &of, const float *Q, const float *K, const float *V, float *out,
                      const Layouts *at = nullptr);
/* A gradient that is NULL is left out. */
int32_t chain_backward(tl_context *ctx, const Geometry &of, const float *Q, const float *K, const float *V,
                       const float *out, const float *g, float *gQ, float *gK, float *gV, const Layouts *at = nullptr);

} /* namespace attention */
