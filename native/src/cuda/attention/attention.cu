/* Attention on CUDA: the choice of an engine (attention/select.h), and self-attention by warp group products, for which the keys and
 * values of a group are repeated for each of its heads; their gradients are then added up. Members with values that do not split
 * for tensor cores are left to chains. */
#include "cuda/attention/engines.cuh"
#include "cuda/attention/partial.cuh"
#include "cuda/attention/select.h"
#include "cuda/attention/wgmma.cuh"
#include "generated/attention.h"

namespace attention {
namespace {

tl_attention_shape shape_of(const Geometry &of, bool wide)
{
    const bool blocks = of.mode == ZEROS_BLOCK && of.kv_heads == 1 && of.group == 1 && of.mask_batch == of.members &&
                        of.mask_queries == of.queries && !of.limited;
    return tl_attention_shape_of({of.group, of.queries, of.keys, of.before, of.after, of.offset}, of.members, of.d,
                                 of.v, of.limited, of.mode == UNMASKED || blocks, of.scale, wide);
}

tl_attention_device device_of(tl_context *ctx)
{
    const bool reproducible = tl_is_reproducible(ctx);
    return {reproducible, !reproducible && wgmma_runs(ctx), tl_cuda_chains_are_fast(ctx)};
}

/* A thread owns 16 bytes of an array of each member, and writes them for every head of the group. */
__global__ void __launch_bounds__(256) repeat_kernel(const float4 *__restrict__ from, int64_t size, int64_t members,
                                                     int64_t group, float4 *__restrict__ to)
{
    const int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x;
    for (int64_t m = blockIdx.y; i < size && m < members; m += gridDim.y) {
        const float4 x = from[m * size + i];
        for (int64_t g = 0; g < group; g++)
            to[(m * group + g) * size + i] = x;
    }
}

/* Keys or values for every head: where they lie, or, of several heads to a group, repeated in scratch. */
int32_t repeat(tl_context *ctx, const Geometry &of, const float *from, tl_scratch<float> &scratch,
               const float **repeated)
{
    *repeated = from;
    if (of.group == 1) return TORCHLEAN_OK;
    const int64_t size = of.keys * of.d;
    TL_TRY(scratch.allocate(of.members * of.group * size));
    *repeated = scratch;
    const dim3 grid(tl_grid(size / 4, 256), (unsigned)(of.members < 65535 ? of.members : 65535));
    return tl_launch(ctx, "grouped_attention", repeat_kernel, grid, 256, (const float4 *)from, size / 4, of.members,
                     of.group, (float4 *)(float *)scratch);
}

/* Self-attention of heads, each with its own keys and values. */
struct Heads {
    Geometry of;
    Problem p;
    tl_scratch<float> keys, values;
    tl_scratch<uint8_t> unsafe;

    explicit Heads(tl_context *ctx) : of(), p(), keys(ctx), values(ctx), unsafe(ctx) {}

    int32_t open(tl_context *ctx, const Geometry &grouped, const float *Q, const float *K, const float *V)
    {
        TL_TRY(repeat(ctx, grouped, K, keys, &p.K));
        TL_TRY(repeat(ctx, grouped, V, values, &p.V));
        of = grouped;
        of.members *= of.group, of.rows = of.queries, of.kv_heads *= of.group, of.group = 1;
        TL_TRY(unsafe.allocate(unsafe_flags(of.members, of.keys)));
        p.Q = Q, p.mask = of.mask, p.batch = of.members, p.n = of.keys, p.d = of.d, p.scale = of.scale;
        p.mode = of.mode == ZEROS_BLOCK ? HARD : of.limited ? CAUSAL : NO_MASK;
        p.unsafe = unsafe;
        return TORCHLEAN_OK;
    }
};

int32_t self_forward(tl_context *ctx, const Geometry &of, const float *Q, const float *K, const float *V, float *out)
{
    Heads heads(ctx);
    TL_TRY(heads.open(ctx, of, Q, K, V));
    const Problem &p = heads.p;
    const Operand operands[3] = {{p.V, true}, {p.Q, true}, {p.K, true}};
    TL_TRY(scan_unsafe(ctx, p.batch, p.n, p.d, operands, 3, heads.unsafe));
    TL_TRY(wgmma_forward(ctx, p, out));
    return chain_forward(ctx, heads.of, p.Q, p.K, p.V, out, nullptr, heads.unsafe);
}

int32_t self_backward(tl_context *ctx, const Geometry &of, const float *Q, const float *K, const float *V,
                      const float *out, const float *g, float *gQ, float *gK, float *gV)
{
    const int64_t size = of.keys * of.d;
    Heads heads(ctx);
    PartialGradient part_k(ctx, gK, of.members, of.group, size), part_v(ctx, gV, of.members, of.group, size);
    TL_TRY(heads.open(ctx, of, Q, K, V));
    TL_TRY(part_k.open(&gK));
    TL_TRY(part_v.open(&gV));
    const Problem &p = heads.p;
    const Operand operands[5] = {{p.K, true}, {p.Q, true}, {g, true}, {p.V, true}, {out, false}};
    TL_TRY(scan_unsafe(ctx, p.batch, p.n, p.d, operands, 5, heads.unsafe));
    TL_TRY(wgmma_backward(ctx, p, out, g, gQ, gK, gV));
    TL_TRY(chain_backward(ctx, heads.of, p.Q, p.K, p.V, out, g, gQ, gK, gV, nullptr, heads.unsafe));
    TL_TRY(part_k.close());
    return part_v.close();
}

} /* namespace */

bool is_for_chain(tl_context *ctx, const Geometry &of, bool backward)
{
    const tl_attention_shape shape = shape_of(of, true);
    const tl_attention_device device = device_of(ctx);
    return (backward ? tl_attention_backward_engine : tl_attention_forward_engine)(&shape, &device) ==
           TL_ATTENTION_CHAIN;
}

int32_t forward(tl_context *ctx, const Geometry &of, const float *Q, const float *K, const float *V, float *out)
{
    const bool wide = tl_aligned4(Q) && tl_aligned4(K) && tl_aligned4(V) && tl_aligned4(out);
    const tl_attention_shape shape = shape_of(of, wide);
    const tl_attention_device device = device_of(ctx);
    switch (tl_attention_forward_engine(&shape, &device)) {
    case TL_ATTENTION_WGMMA: return self_forward(ctx, of, Q, K, V, out);
    case TL_ATTENTION_PRODUCTS: return products_forward(ctx, of, Q, K, V, out);
    case TL_ATTENTION_SIMT: return simt_forward(ctx, of, Q, K, V, out);
    default: return chain_forward(ctx, of, Q, K, V, out);
    }
}

int32_t backward(tl_context *ctx, const Geometry &of, const float *Q, const float *K, const float *V, const float *out,
                 const float *g, float *gQ, float *gK, float *gV)
{
    const bool wide = tl_aligned4(Q) && tl_aligned4(K) && tl_aligned4(V) && tl_aligned4(g) &&
                      (!gQ || tl_aligned4(gQ)) && (!gK || tl_aligned4(gK)) && (!gV || tl_aligned4(gV));
    const tl_attention_shape shape = shape_of(of, wide);
    const tl_attention_device device = device_of(ctx);
    switch (tl_attention_backward_engine(&shape, &device)) {
    case TL_ATTENTION_WGMMA: return self_backward(ctx, of, Q, K, V, out, g, gQ, gK, gV);
    case TL_ATTENTION_PRODUCTS: return products_backward(ctx, of, Q, K, V, out, g, gQ, gK, gV);
    default: return chain_backward(ctx, of, Q, K, V, out, g, gQ, gK, gV);
    }
}

} /* namespace attention */

extern "C" int32_t tl_cuda_flash_attention(tl_context *ctx, const float *Q, const float *K, const float *V,
                                           const float *mask, int64_t batch, int64_t n, int64_t d, int64_t mask_mode,
                                           float scale, float *out)
{
    return attention::forward(ctx, attention::square_geometry(batch, n, d, mask_mode, scale, mask), Q, K, V, out);
}

extern "C" int32_t tl_cuda_flash_attention_bwd(tl_context *ctx, const float *Q, const float *K, const float *V,
                                               const float *mask, const float *out, const float *g, int64_t batch,
                                               int64_t n, int64_t d, int64_t mask_mode, float scale, float *gQ,
                                               float *gK, float *gV)
{
    return attention::backward(ctx, attention::square_geometry(batch, n, d, mask_mode, scale, mask), Q, K, V, out, g,
                               gQ, gK, gV);
}

extern "C" int32_t tl_cuda_grouped_attention(tl_context *ctx, const float *Q, const float *K, const float *V,
                                             const float *mask, int64_t batch, int64_t heads, int64_t queries,
                                             int64_t d, int64_t kv_heads, int64_t keys, int64_t width,
                                             int64_t mask_mode, int64_t mask_batch, int64_t mask_heads,
                                             int64_t mask_queries, int64_t before, int64_t after, int64_t offset,
                                             float scale, float *out)
{
    return attention::forward(ctx,
                              attention::grouped_geometry(batch, heads, queries, d, kv_heads, keys, width, mask_mode,
                                                          mask_batch, mask_heads, mask_queries, before, after, offset,
                                                          scale, mask),
                              Q, K, V, out);
}

extern "C" int32_t tl_cuda_grouped_attention_bwd(tl_context *ctx, const float *Q, const float *K, const float *V,
                                                 const float *mask, const float *out, const float *g, int64_t batch,
                                                 int64_t heads, int64_t queries, int64_t d, int64_t kv_heads,
                                                 int64_t keys, int64_t width, int64_t mask_mode, int64_t mask_batch,
                                                 int64_t mask_heads, int64_t mask_queries, int64_t before,
                                                 int64_t after, int64_t offset, float scale, float *gQ, float *gK,
                                                 float *gV)
{
    return attention::backward(ctx,
                               attention::grouped_geometry(batch, heads, queries, d, kv_heads, keys, width, mask_mode,
                                                           mask_batch, mask_heads, mask_queries, before, after, offset,
                                                           scale, mask),
                               Q, K, V, out, g, gQ, gK, gV);
}
