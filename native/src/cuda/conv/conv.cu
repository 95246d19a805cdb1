/* Convolutions on CUDA: which product each result is; conv/select.h says which kernels compute it.
 *
 *                     conv                                conv_transpose
 *   forward           correlate x with w (o, c)           spread x with w (c, o)
 *   gradient of x     spread g with w (o, c)              correlate g with w (c, o)
 *   gradient of w     g (rows) times gathered x           x (rows) times gathered g
 *
 * The gradient of the bias is a row tree over each image's positions, then a column tree over the batch. */
#include "core/shapes.h"
#include "cuda/conv/conv.cuh"
#include "cuda/device/sum_tree.cuh"
#include "cuda/device/vector.cuh"
#include "generated/conv.h"
#include "generated/shape.h"

namespace {

tl_conv_device device_of(tl_context *ctx, bool has_wgmma)
{
    return {tl_cuda_sms(ctx), tl_is_reproducible(ctx), tl_cuda_chains_are_fast(ctx), has_wgmma};
}

int32_t product(tl_context *ctx, const tl_conv_product &p)
{
    if (p.batch == 0 || p.groups * p.rows == 0) return TORCHLEAN_OK;
    if (p.channels == 0) return tl_conv_fill(ctx, p); /* the bias is all there is */
    const tl_conv_device device = device_of(ctx, tl_conv_wgmma_has_product(ctx));
    switch (tl_conv_select_product(&p.s, p.spread, p.batch, p.groups, p.channels, p.rows, device)) {
    case TL_CONV_CHAIN: return tl_conv_chain(ctx, p);
    case TL_CONV_DIRECT: return p.groups == 1 ? tl_conv_direct_tiles(ctx, p) : tl_conv_direct(ctx, p);
    case TL_CONV_WGMMA: return tl_conv_wgmma(ctx, p);
    default: return tl_conv_mma(ctx, p);
    }
}

int32_t weights(tl_context *ctx, const tl_conv_gradient &p)
{
    if (p.groups * p.rows * p.channels == 0) return TORCHLEAN_OK;
    if (p.batch == 0) return tl_cuda_fill(tl_context_cuda(ctx), p.gw, 0.0f, p.groups * p.rows * p.channels * p.s.taps);
    const tl_conv_device device = device_of(ctx, tl_conv_wgmma_has_weights(ctx));
    switch (tl_conv_select_weights(&p.s, p.batch, p.groups, p.channels, p.rows, tl_aligned4(p.small), device)) {
    case TL_CONV_CHAIN: return tl_conv_chain_weights(ctx, p);
    case TL_CONV_DIRECT: return tl_conv_direct_weights(ctx, p);
    case TL_CONV_WGMMA: return tl_conv_wgmma_weights(ctx, p);
    default: return tl_conv_mma_weights(ctx, p);
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

/* The gradients of conv, or of conv_transpose, whose x is the small array. */
int32_t gradients(tl_context *ctx, const tl_conv_shape &s, bool transposed, int64_t batch, int64_t groups,
                  int64_t in_channels, int64_t out_channels, const float *x, const float *w, const float *g, float *gx,
                  float *gw, float *gb)
{
    if (gx) TL_TRY(product(ctx, {s, !transposed, batch, groups, out_channels, in_channels, g, w, nullptr, gx}));
    if (gw)
        TL_TRY(weights(ctx, transposed ? tl_conv_gradient{s, batch, groups, out_channels, in_channels, g, x, gw}
                                       : tl_conv_gradient{s, batch, groups, in_channels, out_channels, x, g, gw}));
    return gb ? bias_sums(ctx, g, batch, groups * out_channels, transposed ? s.in_size : s.out_size, gb) : TORCHLEAN_OK;
}

} /* namespace */

int32_t tl_conv_fill(tl_context *ctx, const tl_conv_product &p)
{
    const int64_t rows = p.groups * p.rows, size = p.target_size();
    const tl_dims row = {1, {rows}}, result = {3, {p.batch, rows, size}}, map = {3, {0, 1, 0}};
    return p.bias ? tl_cuda_broadcast_to(ctx, p.bias, &row, &result, &map, p.target)
                  : tl_cuda_fill(tl_context_cuda(ctx), p.target, 0.0f, p.batch * rows * size);
}

extern "C" int32_t tl_cuda_conv(tl_context *ctx, const float *x, const float *w, const float *b, int64_t batch,
                                int64_t in_channels, const tl_dims *spatial, int64_t out_channels,
                                const tl_dims *kernel, const tl_dims *stride, const tl_dims *padding, float *out)
{
    return tl_cuda_conv_grouped(ctx, x, w, b, batch, 1, in_channels, spatial, out_channels, kernel, stride,
                                &tl_dims_ones, padding, padding, out);
}

extern "C" int32_t tl_cuda_conv_bwd(tl_context *ctx, const float *x, const float *w, const float *g, int64_t batch,
                                    int64_t in_channels, const tl_dims *spatial, int64_t out_channels,
                                    const tl_dims *kernel, const tl_dims *stride, const tl_dims *padding, float *gx,
                                    float *gw, float *gb)
{
    return tl_cuda_conv_grouped_bwd(ctx, x, w, g, batch, 1, in_channels, spatial, out_channels, kernel, stride,
                                    &tl_dims_ones, padding, padding, gx, gw, gb);
}

extern "C" int32_t tl_cuda_conv_transpose(tl_context *ctx, const float *x, const float *w, const float *b,
                                          int64_t batch, int64_t in_channels, const tl_dims *spatial,
                                          int64_t out_channels, const tl_dims *kernel, const tl_dims *stride,
                                          const tl_dims *padding, float *out)
{
    return tl_cuda_conv_transpose_grouped(ctx, x, w, b, batch, 1, in_channels, spatial, out_channels, kernel, stride,
                                          &tl_dims_ones, padding, padding, &tl_dims_zeros, out);
}

extern "C" int32_t tl_cuda_conv_transpose_bwd(tl_context *ctx, const float *x, const float *w, const float *g,
                                              int64_t batch, int64_t in_channels, const tl_dims *spatial,
                                              int64_t out_channels, const tl_dims *kernel, const tl_dims *stride,
                                              const tl_dims *padding, float *gx, float *gw, float *gb)
{
    return tl_cuda_conv_transpose_grouped_bwd(ctx, x, w, g, batch, 1, in_channels, spatial, out_channels, kernel,
                                              stride, &tl_dims_ones, padding, padding, &tl_dims_zeros, gx, gw, gb);
}

extern "C" int32_t tl_cuda_conv_grouped(tl_context *ctx, const float *x, const float *w, const float *b, int64_t batch,
                                        int64_t groups, int64_t in_channels, const tl_dims *spatial,
                                        int64_t out_channels, const tl_dims *kernel, const tl_dims *stride,
                                        const tl_dims *dilation, const tl_dims *padding_low,
                                        const tl_dims *padding_high, float *out)
{
    const tl_dims size = tl_conv_grouped_out(spatial, kernel, stride, dilation, padding_low, padding_high);
    const tl_conv_shape s =
        tl_conv_merge(spatial->rank, spatial->d, size.d, kernel->d, stride->d, padding_low->d, dilation->d);
    return product(ctx, {s, false, batch, groups, in_channels, out_channels, x, w, b, out});
}

extern "C" int32_t tl_cuda_conv_grouped_bwd(tl_context *ctx, const float *x, const float *w, const float *g,
                                            int64_t batch, int64_t groups, int64_t in_channels, const tl_dims *spatial,
                                            int64_t out_channels, const tl_dims *kernel, const tl_dims *stride,
                                            const tl_dims *dilation, const tl_dims *padding_low,
                                            const tl_dims *padding_high, float *gx, float *gw, float *gb)
{
    const tl_dims size = tl_conv_grouped_out(spatial, kernel, stride, dilation, padding_low, padding_high);
    const tl_conv_shape s =
        tl_conv_merge(spatial->rank, spatial->d, size.d, kernel->d, stride->d, padding_low->d, dilation->d);
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
    const tl_conv_shape s =
        tl_conv_merge(size.rank, size.d, spatial->d, kernel->d, stride->d, padding_low->d, dilation->d);
    return product(ctx, {s, true, batch, groups, in_channels, out_channels, x, w, b, out});
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
    const tl_conv_shape s =
        tl_conv_merge(size.rank, size.d, spatial->d, kernel->d, stride->d, padding_low->d, dilation->d);
    return gradients(ctx, s, true, batch, groups, in_channels, out_channels, x, w, g, gx, gw, gb);
}
