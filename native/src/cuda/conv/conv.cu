/* Convolutions on CUDA: which product of conv/conv.cuh each result is, and which kernels compute it: groups of few channels
 * by conv/groups.cu and conv/columns.cu, of more at once by conv/chain.cu or one after the other; few rows or terms directly (conv/direct.cu,
 * conv/pointwise.cu, conv/few_terms.cu), spreads of many channels onto few rows through columns (conv/fold.cu), images large enough
 * on Hopper by wgmma (conv/wgmma.cuh), the rest by conv/mma_product.cu and conv/mma_weights.cu.
 *
 *                     conv                                conv_transpose
 *   forward           correlate x with w (o, c)           spread x with w (c, o)
 *   gradient of x     spread g with w (o, c)              correlate g with w (c, o)
 *   gradient of w     g (rows) times gathered x           x (rows) times gathered g
 *
 * The gradient of the bias is a row tree over each image's positions, then a column tree over the batch. */
#include "core/shapes.h"
#include "cuda/conv/chain.cuh"
#include "cuda/conv/columns.cuh"
#include "cuda/conv/conv.cuh"
#include "cuda/conv/few_terms.cuh"
#include "cuda/conv/fold.cuh"
#include "cuda/conv/groups.cuh"
#include "cuda/conv/wgmma.cuh"
#include "cuda/device/sum_tree.cuh"
#include "generated/conv.h"

namespace {

int32_t product_of_one(tl_context *ctx, const tl_conv_shape &s, bool spread, int64_t batch, int64_t channels,
                       int64_t rows, const float *source, const float *w, const float *bias, float *target)
{
    if (spread && tl_cuda_conv_fold_serves(s, batch, channels, rows))
        return tl_cuda_conv_fold(ctx, s, batch, channels, rows, source, w, bias, target);
    if (tl_cuda_conv_direct_serves(s, spread, batch, channels, rows))
        return tl_cuda_conv_direct(ctx, s, spread, batch, channels, rows, source, w, bias, target);
    if (batch > 0 && tl_cuda_conv_one_group_serves(s, spread, channels, rows))
        return tl_cuda_conv_groups_product(ctx, s, spread, batch, 1, channels, rows, source, w, bias, target);
    if (tl_cuda_conv_few_terms_serves(s, spread, batch, channels, rows))
        return tl_cuda_conv_few_terms(ctx, s, spread, batch, channels, rows, source, w, bias, target);
    return tl_conv_wgmma_serves_product(ctx, s, spread, batch, channels, rows)
               ? tl_conv_wgmma_product(ctx, s, spread, batch, channels, rows, source, w, bias, target)
               : tl_cuda_conv_product(ctx, s, spread, batch, channels, rows, source, w, bias, target);
}

int32_t weights_of_one(tl_context *ctx, const tl_conv_shape &s, int64_t batch, int64_t channels, int64_t rows,
                       const float *large, const float *small, float *gw)
{
    if (rows == 0 || channels == 0) return TORCHLEAN_OK;
    if (batch == 0) return tl_cuda_fill(tl_context_cuda(ctx), gw, 0.0f, rows * channels * s.taps);
    return tl_conv_wgmma_serves_weights(ctx, s, batch, channels, rows, small)
               ? tl_conv_wgmma_weights(ctx, s, batch, channels, rows, large, small, gw)
               : tl_cuda_conv_weights(ctx, s, batch, channels, rows, large, small, gw);
}

/* A thread owns one element of one of blockIdx.y images: to[n·to_stride + i] = from[n·from_stride + i] for i < size. */
__global__ void __launch_bounds__(256)
    copy_kernel(const float *__restrict__ from, int64_t from_stride, float *__restrict__ to, int64_t to_stride,
                int64_t size, int64_t images)
{
    const int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x;
    for (int64_t n = blockIdx.y; i < size && n < images; n += gridDim.y)
        to[n * to_stride + i] = from[n * from_stride + i];
}

/* One group of an array (batch, groups, size): where it lies, or, with several images, a copy of it. */
class Group {
  public:
    Group(tl_context *ctx, int64_t batch, int64_t groups, int64_t size)
        : ctx(ctx), batch(batch), stride(groups * size), size(size), copy(ctx)
    {}
    int32_t allocate() { return batch > 1 && stride > size ? copy.allocate(batch * size) : TORCHLEAN_OK; }
    int32_t load(const float *array, int64_t group, const float **part)
    {
        *part = copy ? (const float *)copy : array + group * size;
        return copy ? move(array + group * size, stride, copy, size) : TORCHLEAN_OK;
    }
    float *place(float *array, int64_t group) { return copy ? (float *)copy : array + group * size; }
    int32_t store(float *array, int64_t group)
    {
        return copy ? move(copy, size, array + group * size, stride) : TORCHLEAN_OK;
    }

  private:
    int32_t move(const float *from, int64_t from_stride, float *to, int64_t to_stride)
    {
        const dim3 grid(tl_grid(size, 256), (unsigned)(batch < 65535 ? batch : 65535));
        return tl_launch(ctx, "copy", copy_kernel, grid, 256, from, from_stride, to, to_stride, size, batch);
    }

    tl_context *ctx;
    int64_t batch, stride, size;
    tl_scratch<float> copy;
};

/* Whether the groups' products go into one launch of chains: in the mode `reproducible`, unless conv/groups.cu has chains of its
 * own, and where an image's products of one group take less than the launches and copies of a group. The batch has no say, as
 * the kernels of several groups have other bits. */
bool chain_serves(tl_context *ctx, const tl_conv_shape &s, bool spread, int64_t batch, int64_t groups, int64_t channels,
                  int64_t rows, bool weights)
{
    constexpr double LEAST_WORK = 1 << 25; /* floating-point operations of an image */
    constexpr int64_t PHASES_MOST = 4;     /* of a spread, which has launches of each */
    if (tl_is_reproducible(ctx)) return !(batch > 0 && tl_cuda_conv_groups_chain(s, groups, channels, rows, weights));
    return groups > 1 && tl_cuda_chains_are_fast(ctx) && !tl_cuda_conv_groups_serve(s, groups, channels, rows) &&
           (!spread || tl_conv_phases(&s) <= PHASES_MOST) &&
           2.0 * (double)s.out_size * (double)(channels * rows * s.taps) < LEAST_WORK;
}

int32_t product(tl_context *ctx, const tl_conv_shape &s, bool spread, int64_t batch, int64_t groups, int64_t channels,
                int64_t rows, const float *source, const float *w, const float *bias, float *target)
{
    if (chain_serves(ctx, s, spread, batch, groups, channels, rows, false))
        return tl_cuda_conv_columns_chain(ctx, s, spread, batch, groups, channels, rows)
                   ? tl_cuda_conv_columns(ctx, s, spread, true, batch, groups, channels, rows, source, w, bias, target)
                   : tl_conv_chain(ctx, s, spread, batch, groups, channels, rows, source, w, bias, target);
    if (groups == 1 || batch == 0 || rows == 0 || channels == 0) /* without channels the bias is all there is */
        return product_of_one(ctx, s, spread, batch, channels, groups * rows, source, w, bias, target);
    if (tl_cuda_conv_groups_serve(s, groups, channels, rows))
        return tl_cuda_conv_groups_product(ctx, s, spread, batch, groups, channels, rows, source, w, bias, target);
    Group from(ctx, batch, groups, channels * (spread ? s.out_size : s.in_size));
    Group to(ctx, batch, groups, rows * (spread ? s.in_size : s.out_size));
    TL_TRY(from.allocate());
    TL_TRY(to.allocate());
    for (int64_t i = 0; i < groups; i++) {
        const float *part;
        TL_TRY(from.load(source, i, &part));
        TL_TRY(product_of_one(ctx, s, spread, batch, channels, rows, part, w + i * rows * channels * s.taps,
                              bias ? bias + i * rows : nullptr, to.place(target, i)));
        TL_TRY(to.store(target, i));
    }
    return TORCHLEAN_OK;
}

int32_t weights(tl_context *ctx, const tl_conv_shape &s, int64_t batch, int64_t groups, int64_t channels, int64_t rows,
                const float *large, const float *small, float *gw)
{
    if (chain_serves(ctx, s, false, batch, groups, channels, rows, true))
        return tl_conv_chain_weights(ctx, s, batch, groups, channels, rows, large, small, gw);
    if (groups == 1 || batch == 0 || rows == 0 || channels == 0)
        return weights_of_one(ctx, s, batch, channels, groups * rows, large, small, gw);
    if (tl_cuda_conv_groups_serve(s, groups, channels, rows))
        return tl_cuda_conv_groups_weights(ctx, s, batch, groups, channels, rows, large, small, gw);
    Group from(ctx, batch, groups, channels * s.in_size), to(ctx, batch, groups, rows * s.out_size);
    TL_TRY(from.allocate());
    TL_TRY(to.allocate());
    for (int64_t i = 0; i < groups; i++) {
        const float *large_part, *small_part;
        TL_TRY(from.load(large, i, &large_part));
        TL_TRY(to.load(small, i, &small_part));
        TL_TRY(
            weights_of_one(ctx, s, batch, channels, rows, large_part, small_part, gw + i * rows * channels * s.taps));
    }
    return TORCHLEAN_OK;
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
