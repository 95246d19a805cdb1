/* Convolutions on CUDA: which product of conv/conv.cuh each result is, and which kernels compute it: few rows directly
 * (conv/direct.cu), images large enough on Hopper by wgmma (conv/wgmma.cuh), the rest by conv/mma_product.cu and
 * conv/mma_weights.cu.
 *
 *                     conv                                conv_transpose
 *   forward           correlate x with w (o, c)           spread x with w (c, o)
 *   gradient of x     spread g with w (o, c)              correlate g with w (c, o)
 *   gradient of w     g (rows) times gathered x           x (rows) times gathered g
 *
 * The gradient of the bias is a row tree over each image's positions, then a column tree over the batch. */
#include "core/shapes.h"
#include "cuda/conv/conv.cuh"
#include "cuda/conv/wgmma.cuh"
#include "cuda/device/sum_tree.cuh"
#include "generated/conv.h"

namespace {

int32_t product(tl_context *ctx, const tl_conv_shape &s, bool spread, int64_t batch, int64_t channels, int64_t rows,
                const float *source, const float *w, const float *bias, float *target)
{
    if (spread && tl_cuda_conv_direct_serves(s, batch, channels, rows))
        return tl_cuda_conv_direct(ctx, s, batch, channels, rows, source, w, bias, target);
    return tl_conv_wgmma_serves_product(ctx, s, spread, batch, channels, rows)
               ? tl_conv_wgmma_product(ctx, s, spread, batch, channels, rows, source, w, bias, target)
               : tl_cuda_conv_product(ctx, s, spread, batch, channels, rows, source, w, bias, target);
}

int32_t weights(tl_context *ctx, const tl_conv_shape &s, int64_t batch, int64_t channels, int64_t rows,
                const float *large, const float *small, float *gw)
{
    if (rows == 0 || channels == 0) return TORCHLEAN_OK;
    if (batch == 0) return tl_cuda_fill(tl_context_cuda(ctx), gw, 0.0f, rows * channels * s.taps);
    return tl_conv_wgmma_serves_weights(ctx, s, batch, channels, rows, small)
               ? tl_conv_wgmma_weights(ctx, s, batch, channels, rows, large, small, gw)
               : tl_cuda_conv_weights(ctx, s, batch, channels, rows, large, small, gw);
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
                       const tl_dims *padding)
{
    return tl_conv_merge(large->rank, large->d, small->d, kernel->d, stride->d, padding->d);
}

} /* namespace */

extern "C" int32_t tl_cuda_conv(tl_context *ctx, const float *x, const float *w, const float *b, int64_t batch,
                                int64_t in_channels, const tl_dims *spatial, int64_t out_channels,
                                const tl_dims *kernel, const tl_dims *stride, const tl_dims *padding, float *out)
{
    const tl_dims size = tl_conv_out(spatial, kernel, stride, padding);
    const tl_conv_shape s = shape_of(spatial, &size, kernel, stride, padding);
    return product(ctx, s, false, batch, in_channels, out_channels, x, w, b, out);
}

extern "C" int32_t tl_cuda_conv_bwd(tl_context *ctx, const float *x, const float *w, const float *g, int64_t batch,
                                    int64_t in_channels, const tl_dims *spatial, int64_t out_channels,
                                    const tl_dims *kernel, const tl_dims *stride, const tl_dims *padding, float *gx,
                                    float *gw, float *gb)
{
    const tl_dims size = tl_conv_out(spatial, kernel, stride, padding);
    const tl_conv_shape s = shape_of(spatial, &size, kernel, stride, padding);
    if (gx) TL_TRY(product(ctx, s, true, batch, out_channels, in_channels, g, w, nullptr, gx));
    if (gw) TL_TRY(weights(ctx, s, batch, in_channels, out_channels, x, g, gw));
    return gb ? bias_sums(ctx, g, batch, out_channels, s.out_size, gb) : TORCHLEAN_OK;
}

extern "C" int32_t tl_cuda_conv_transpose(tl_context *ctx, const float *x, const float *w, const float *b,
                                          int64_t batch, int64_t in_channels, const tl_dims *spatial,
                                          int64_t out_channels, const tl_dims *kernel, const tl_dims *stride,
                                          const tl_dims *padding, float *out)
{
    const tl_dims size = tl_conv_transpose_out(spatial, kernel, stride, padding);
    const tl_conv_shape s = shape_of(&size, spatial, kernel, stride, padding);
    return product(ctx, s, true, batch, in_channels, out_channels, x, w, b, out);
}

extern "C" int32_t tl_cuda_conv_transpose_bwd(tl_context *ctx, const float *x, const float *w, const float *g,
                                              int64_t batch, int64_t in_channels, const tl_dims *spatial,
                                              int64_t out_channels, const tl_dims *kernel, const tl_dims *stride,
                                              const tl_dims *padding, float *gx, float *gw, float *gb)
{
    const tl_dims size = tl_conv_transpose_out(spatial, kernel, stride, padding);
    const tl_conv_shape s = shape_of(&size, spatial, kernel, stride, padding);
    if (gx) TL_TRY(product(ctx, s, false, batch, out_channels, in_channels, g, w, nullptr, gx));
    if (gw) TL_TRY(weights(ctx, s, batch, out_channels, in_channels, g, x, gw));
    return gb ? bias_sums(ctx, g, batch, out_channels, s.in_size, gb) : TORCHLEAN_OK;
}

/* Two axes: the parameters of the operations, and as lists. */
#define SIZES_2D                                                                                                       \
    int64_t batch, int64_t in_channels, int64_t in_h, int64_t in_w, int64_t out_channels, int64_t kernel_h,            \
        int64_t kernel_w, int64_t stride_h, int64_t stride_w, int64_t padding_h, int64_t padding_w
#define LISTS_2D                                                                                                       \
    const tl_dims in = {2, {in_h, in_w}}, kernel = {2, {kernel_h, kernel_w}}, stride = {2, {stride_h, stride_w}},      \
                  padding = {2, {padding_h, padding_w}}

extern "C" int32_t tl_cuda_conv2d(tl_context *ctx, const float *x, const float *w, const float *b, SIZES_2D, float *out)
{
    LISTS_2D;
    return tl_cuda_conv(ctx, x, w, b, batch, in_channels, &in, out_channels, &kernel, &stride, &padding, out);
}

extern "C" int32_t tl_cuda_conv2d_bwd(tl_context *ctx, const float *x, const float *w, const float *g, SIZES_2D,
                                      float *gx, float *gw, float *gb)
{
    LISTS_2D;
    return tl_cuda_conv_bwd(ctx, x, w, g, batch, in_channels, &in, out_channels, &kernel, &stride, &padding, gx, gw,
                            gb);
}

extern "C" int32_t tl_cuda_conv_transpose2d(tl_context *ctx, const float *x, const float *w, const float *b, SIZES_2D,
                                            float *out)
{
    LISTS_2D;
    return tl_cuda_conv_transpose(ctx, x, w, b, batch, in_channels, &in, out_channels, &kernel, &stride, &padding, out);
}

extern "C" int32_t tl_cuda_conv_transpose2d_bwd(tl_context *ctx, const float *x, const float *w, const float *g,
                                                SIZES_2D, float *gx, float *gw, float *gb)
{
    LISTS_2D;
    return tl_cuda_conv_transpose_bwd(ctx, x, w, g, batch, in_channels, &in, out_channels, &kernel, &stride, &padding,
                                      gx, gw, gb);
}
