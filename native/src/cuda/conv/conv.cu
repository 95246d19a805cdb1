/* Convolutions on CUDA: which product each result is; conv/select.h says which kernels compute it.
 *
 *                     conv                                conv_transpose
 *   forward           correlate x with w (o, c)           spread x with w (c, o)
 *   gradient of x     spread g with w (o, c)              correlate g with w (c, o)
 *   gradient of w     g (rows) times gathered x           x (rows) times gathered g
 *
 * The gradient of the bias is a row tree over each image's positions, then a column tree over the batch. */
#include "core/shapes.h"
#include "cuda/conv/chain.cuh"
#include "cuda/conv/conv.cuh"
#include "cuda/conv/direct.cuh"
#include "cuda/conv/select.h"
#include "cuda/conv/wgmma.cuh"
#include "cuda/device/sum_tree.cuh"
#include "cuda/device/vector.cuh"
#include "generated/conv.h"
#include "generated/shape.h"

namespace {

tl_conv_device device_of(tl_context *ctx, bool has_wgmma)
{
    return {tl_cuda_sms(ctx), tl_is_reproducible(ctx), tl_cuda_chains_are_fast(ctx), has_wgmma};
}

/* small (batch, groups, rows, *out) from large (batch, groups, channels, *in) and w (groups, rows, channels, *kernel), plus bias
 * (NULL: none); or, with `spread`, large (batch, groups, rows, *in) from small (batch, groups, channels, *out) and
 * w (groups, channels, rows, *kernel). */
int32_t product(tl_context *ctx, const tl_conv_shape &s, bool spread, int64_t batch, int64_t groups, int64_t channels,
                int64_t rows, const float *source, const float *w, const float *bias, float *target)
{
    if (batch == 0 || groups * rows == 0) return TORCHLEAN_OK;
    if (channels == 0) /* the bias is all there is */
        return tl_cuda_conv_fill(ctx, bias, batch, groups * rows, spread ? s.in_size : s.out_size, target);
    const tl_conv_device device = device_of(ctx, tl_conv_wgmma_has_product(ctx));
    switch (tl_conv_select_product(&s, spread, batch, groups, channels, rows, device)) {
    case TL_CONV_CHAIN: return tl_conv_chain(ctx, s, spread, batch, groups, channels, rows, source, w, bias, target);
    case TL_CONV_DIRECT: return tl_conv_direct(ctx, s, spread, batch, groups, channels, rows, source, w, bias, target);
    case TL_CONV_FEW_TERMS: return tl_conv_few_terms(ctx, s, spread, batch, channels, rows, source, w, bias, target);
    case TL_CONV_WGMMA: return tl_conv_wgmma_product(ctx, s, spread, batch, channels, rows, source, w, bias, target);
    default: return tl_conv_mma_product(ctx, s, spread, batch, channels, rows, source, w, bias, target);
    }
}

/* gw (groups, rows, channels, *kernel) from small (batch, groups, rows, *out) and large (batch, groups, channels, *in). */
int32_t weights(tl_context *ctx, const tl_conv_shape &s, int64_t batch, int64_t groups, int64_t channels, int64_t rows,
                const float *large, const float *small, float *gw)
{
    if (groups * rows * channels == 0) return TORCHLEAN_OK;
    if (batch == 0) return tl_cuda_fill(tl_context_cuda(ctx), gw, 0.0f, groups * rows * channels * s.taps);
    const tl_conv_device device = device_of(ctx, tl_conv_wgmma_has_weights(ctx));
    switch (tl_conv_select_weights(&s, batch, groups, channels, rows, tl_aligned4(small), device)) {
    case TL_CONV_CHAIN: return tl_conv_chain_weights(ctx, s, batch, groups, channels, rows, large, small, gw);
    case TL_CONV_DIRECT: return tl_conv_direct_weights(ctx, s, batch, groups, channels, rows, large, small, gw);
    case TL_CONV_WGMMA: return tl_conv_wgmma_weights(ctx, s, batch, channels, rows, large, small, gw);
    default: return tl_conv_mma_weights(ctx, s, batch, channels, rows, large, small, gw);
    }
}

/* gb[o] = sum over n and j of g[n,o,j]. */
int32_t bias_sums(tl_context *ctx, const float *g, int64_t batch, int64_t channels, int64_t size, float *gb)
{
    if (channels == 0) return TORCHLEAN_OK;
    if (batch == 1) return tl_cuda_row_sums(ctx, g, channels, size, 0, gb);
    tl_scratch<float> images(ctx);
    TL_TRY(images.allocate(batch * channels));
    if (batch > 0) TL_TRY(tl_cuda_row_sums(ctx, g, batch * channels, size, 0, images));
    return tl_cuda_column_sums(ctx, images, 1, batch, channels, 0, gb);
}

tl_conv_shape shape_of(const tl_dims *large, const tl_dims *small, const tl_dims *kernel, const tl_dims *stride,
                       const tl_dims *dilation, const tl_dims *padding)
{
    return tl_conv_merge(large->rank, large->d, small->d, kernel->d, stride->d, padding->d,
                         dilation ? dilation->d : nullptr);
}

/* The gradients of conv, or of conv_transpose, whose x is the small array. */
int32_t gradients(tl_context *ctx, const tl_conv_shape &s, bool transposed, int64_t batch, int64_t groups,
                  int64_t in_channels, int64_t out_channels, const float *x, const float *w, const float *g, float *gx,
                  float *gw, float *gb)
{
    if (gx) TL_TRY(product(ctx, s, !transposed, batch, groups, out_channels, in_channels, g, w, nullptr, gx));
    if (gw)
        TL_TRY(transposed ? weights(ctx, s, batch, groups, out_channels, in_channels, g, x, gw)
                          : weights(ctx, s, batch, groups, in_channels, out_channels, x, g, gw));
    return gb ? bias_sums(ctx, g, batch, groups * out_channels, transposed ? s.in_size : s.out_size, gb) : TORCHLEAN_OK;
}

} /* namespace */

int32_t tl_cuda_conv_fill(tl_context *ctx, const float *bias, int64_t batch, int64_t rows, int64_t size, float *out)
{
    const tl_dims row = {1, {rows}}, result = {3, {batch, rows, size}}, map = {3, {0, 1, 0}};
    return bias ? tl_cuda_broadcast_to(ctx, bias, &row, &result, &map, out)
                : tl_cuda_fill(tl_context_cuda(ctx), out, 0.0f, batch * rows * size);
}

extern "C" int32_t tl_cuda_conv(tl_context *ctx, const float *x, const float *w, const float *b, int64_t batch,
                                int64_t in_channels, const tl_dims *spatial, int64_t out_channels,
                                const tl_dims *kernel, const tl_dims *stride, const tl_dims *padding, float *out)
{
    const tl_dims size = tl_conv_out(spatial, kernel, stride, padding);
    const tl_conv_shape s = shape_of(spatial, &size, kernel, stride, nullptr, padding);
    return product(ctx, s, false, batch, 1, in_channels, out_channels, x, w, b, out);
}

extern "C" int32_t tl_cuda_conv_bwd(tl_context *ctx, const float *x, const float *w, const float *g, int64_t batch,
                                    int64_t in_channels, const tl_dims *spatial, int64_t out_channels,
                                    const tl_dims *kernel, const tl_dims *stride, const tl_dims *padding, float *gx,
                                    float *gw, float *gb)
{
    const tl_dims size = tl_conv_out(spatial, kernel, stride, padding);
    const tl_conv_shape s = shape_of(spatial, &size, kernel, stride, nullptr, padding);
    return gradients(ctx, s, false, batch, 1, in_channels, out_channels, x, w, g, gx, gw, gb);
}

extern "C" int32_t tl_cuda_conv_transpose(tl_context *ctx, const float *x, const float *w, const float *b,
                                          int64_t batch, int64_t in_channels, const tl_dims *spatial,
                                          int64_t out_channels, const tl_dims *kernel, const tl_dims *stride,
                                          const tl_dims *padding, float *out)
{
    const tl_dims size = tl_conv_transpose_out(spatial, kernel, stride, padding);
    const tl_conv_shape s = shape_of(&size, spatial, kernel, stride, nullptr, padding);
    return product(ctx, s, true, batch, 1, in_channels, out_channels, x, w, b, out);
}

extern "C" int32_t tl_cuda_conv_transpose_bwd(tl_context *ctx, const float *x, const float *w, const float *g,
                                              int64_t batch, int64_t in_channels, const tl_dims *spatial,
                                              int64_t out_channels, const tl_dims *kernel, const tl_dims *stride,
                                              const tl_dims *padding, float *gx, float *gw, float *gb)
{
    const tl_dims size = tl_conv_transpose_out(spatial, kernel, stride, padding);
    const tl_conv_shape s = shape_of(&size, spatial, kernel, stride, nullptr, padding);
    return gradients(ctx, s, true, batch, 1, in_channels, out_channels, x, w, g, gx, gw, gb);
}

extern "C" int32_t tl_cuda_conv_grouped(tl_context *ctx, const float *x, const float *w, const float *b, int64_t batch,
                                        int64_t groups, int64_t in_channels, const tl_dims *spatial,
                                        int64_t out_channels, const tl_dims *kernel, const tl_dims *stride,
                                        const tl_dims *dilation, const tl_dims *padding_low,
                                        const tl_dims *padding_high, float *out)
{
    const tl_dims size = tl_conv_grouped_out(spatial, kernel, stride, dilation, padding_low, padding_high);
    const tl_conv_shape s = shape_of(spatial, &size, kernel, stride, dilation, padding_low);
    return product(ctx, s, false, batch, groups, in_channels, out_channels, x, w, b, out);
}

extern "C" int32_t tl_cuda_conv_grouped_bwd(tl_context *ctx, const float *x, const float *w, const float *g,
                                            int64_t batch, int64_t groups, int64_t in_channels, const tl_dims *spatial,
                                            int64_t out_channels, const tl_dims *kernel, const tl_dims *stride,
                                            const tl_dims *dilation, const tl_dims *padding_low,
                                            const tl_dims *padding_high, float *gx, float *gw, float *gb)
{
    const tl_dims size = tl_conv_grouped_out(spatial, kernel, stride, dilation, padding_low, padding_high);
    const tl_conv_shape s = shape_of(spatial, &size, kernel, stride, dilation, padding_low);
    return gradients(ctx, s, false, batch, groups, in_channels, out_channels, x, w, g, gx, gw, gb);
}

extern "C" int32_t tl_cuda_conv_transpose_grouped(tl_context *ctx, const float *x, const float *w, const float *b,
                                                  int64_t batch, int64_t groups, int64_t in_channels,
                                                  const tl_dims *spatial, int64_t out_channels, const tl_dims *kernel,
                                                  const tl_dims *stride, const tl_dims *dilation,
                                                  const tl_dims *padding_low, const tl_dims *padding_high,
                                                  const tl_dims *output_padding, float *out)
{
    const tl_dims size =
        tl_conv_transpose_grouped_out(spatial, kernel, stride, dilation, padding_low, padding_high, output_padding);
    const tl_conv_shape s = shape_of(&size, spatial, kernel, stride, dilation, padding_low);
    return product(ctx, s, true, batch, groups, in_channels, out_channels, x, w, b, out);
}

extern "C" int32_t tl_cuda_conv_transpose_grouped_bwd(tl_context *ctx, const float *x, const float *w, const float *g,
                                                      int64_t batch, int64_t groups, int64_t in_channels,
                                                      const tl_dims *spatial, int64_t out_channels,
                                                      const tl_dims *kernel, const tl_dims *stride,
                                                      const tl_dims *dilation, const tl_dims *padding_low,
                                                      const tl_dims *padding_high, const tl_dims *output_padding,
                                                      float *gx, float *gw, float *gb)
{
    const tl_dims size =
        tl_conv_transpose_grouped_out(spatial, kernel, stride, dilation, padding_low, padding_high, output_padding);
    const tl_conv_shape s = shape_of(&size, spatial, kernel, stride, dilation, padding_low);
    return gradients(ctx, s, true, batch, groups, in_channels, out_channels, x, w, g, gx, gw, gb);
}
