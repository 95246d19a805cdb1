/* Convolutions on the CPU: which product each result is.
 *
 *                     conv                                conv_transpose
 *   forward           correlate x with w (o, c)           spread x with w (c, o)
 *   gradient of x     spread g with w (o, c)              correlate g with w (c, o)
 *   gradient of w     g (rows) times gathered x           x (rows) times gathered g
 *
 * The gradient of the bias is a row tree over each image's positions, then a column tree over the batch. */
#include <string.h>

#include "core/shapes.h"
#include "cpu/conv/view.h"
#include "cpu/linalg/gemm.h"
#include "cpu/sum_tree.h"
#include "formula/integer.h"
#include "generated/conv.h"

/* A plain fill of (batch, channels, size): bias[channel], or 0 without a bias. */
static void fill_bias(float *out, int64_t batch, int64_t channels, int64_t size, const float *bias)
{
    for (int64_t i = 0; i < batch * channels; i++) {
        const float b = bias ? bias[i % channels] : 0.0f;
        for (int64_t j = 0; j < size; j++)
            out[i * size + j] = b;
    }
}

/* Whether every position reads its own cell alone, so that an image's target is the weights times its source as they are, and the
 * positions fill the vectors of that product. */
static int is_plain(const conv_product *p)
{
    const tl_conv_shape *s = p->shape;
    const int64_t lanes = tl_ceil_div(s->out_size, TL_GEMM_LANES) * TL_GEMM_LANES;
    return s->rank == 1 && p->groups == 1 && s->taps == 1 && s->stride[0] == 1 && s->padding[0] == 0 &&
           s->in_size == s->out_size && s->out_size >= TL_GEMM_NR && 4 * s->out_size >= 3 * lanes;
}

/* That product; its blocks of terms are those of conv/product.c. */
static int32_t plain_product(tl_context *ctx, const conv_product *p)
{
    const int64_t n = p->shape->out_size;
    tl_gemm_args g = {.batch = p->batch, .m = p->rows, .n = p->channels, .p = n, .bias = p->bias, .bias_rows = 1};
    g.rsa = p->row_stride, g.csa = p->channel_stride;
    g.rsb = g.rsc = n, g.csb = g.csc = 1;
    g.sb = p->channels * n, g.sc = p->rows * n;
    return tl_gemm_f32(ctx, &g, p->w, p->source, p->target);
}

/* small (batch, groups, rows, *out) from large (batch, groups, channels, *in), w (groups, rows, channels, *kernel); or, if it spreads,
 * large (batch, groups, rows, *in) from small (batch, groups, channels, *out), w (groups, channels, rows, *kernel). */
static int32_t convolve(tl_context *ctx, const tl_conv_shape *s, int spreads, int64_t batch, int64_t groups,
                        int64_t channels, int64_t rows, const float *source, const float *w, const float *bias,
                        float *target)
{
    conv_product p = {s, spreads, batch, groups, channels, rows, channels * s->taps, s->taps, source, w, bias, target};
    if (spreads) p.row_stride = s->taps, p.channel_stride = rows * s->taps;
    if (batch == 0 || rows == 0) return TORCHLEAN_OK;
    if (channels > 0 && !tl_is_reproducible(ctx) && tl_conv_lanes_are_groups(&p))
        return tl_conv_groups_product(ctx, &p);
    if (channels == 0 || (spreads && tl_conv_has_gaps(s)))
        fill_bias(target, batch, groups * rows, spreads ? s->in_size : s->out_size, bias);
    if (channels == 0) return TORCHLEAN_OK;
    if (tl_is_reproducible(ctx)) return tl_conv_product_f64(ctx, &p);
    return is_plain(&p) ? plain_product(ctx, &p) : tl_conv_product_f32(ctx, &p);
}

/* gw (groups, rows, channels, *kernel) from small (batch, groups, rows, *out) and large (batch, groups, channels, *in). */
static int32_t weights(tl_context *ctx, const tl_conv_shape *s, int64_t batch, int64_t groups, int64_t channels,
                       int64_t rows, const float *large, const float *small, float *gw)
{
    if (rows == 0 || channels == 0) return TORCHLEAN_OK;
    if (batch == 0) {
        memset(gw, 0, sizeof(float) * (size_t)(groups * rows * channels * s->taps));
        return TORCHLEAN_OK;
    }
    const tl_conv_gather gather = tl_conv_correlate(s);
    const conv_view v = tl_conv_view(&gather, batch, groups, channels, rows, large);
    if (tl_is_reproducible(ctx)) return tl_conv_weights_reproducible(ctx, &v, groups, small, gw);
    if (!tl_conv_are_few(groups, channels, rows)) return tl_conv_weights(ctx, &v, groups, small, gw);
    return tl_conv_direct_weights(ctx, &v, groups, small, gw);
}

/* gb[o] = sum over n and j of g[n,o,j]. */
static int32_t bias_sums(tl_context *ctx, const float *g, int64_t batch, int64_t channels, int64_t size, float *gb)
{
    if (channels == 0) return TORCHLEAN_OK;
    void *images;
    int32_t status = tl_pool_alloc(ctx, sizeof(float) * (size_t)(batch * channels), &images);
    if (status) return status;
    if (batch > 0) status = tl_row_sums(ctx, g, batch * channels, size, 0, images);
    if (!status) status = tl_column_sums(ctx, images, 1, batch, channels, 0, gb);
    tl_pool_free(ctx, images);
    return status;
}

/* The gradients of conv, or of conv_transpose, whose x is the small array. */
static int32_t gradients(tl_context *ctx, const tl_conv_shape *s, int transposed, int64_t batch, int64_t groups,
                         int64_t in_channels, int64_t out_channels, const float *x, const float *w, const float *g,
                         float *gx, float *gw, float *gb)
{
    int32_t status = TORCHLEAN_OK;
    if (gx) status = convolve(ctx, s, !transposed, batch, groups, out_channels, in_channels, g, w, NULL, gx);
    if (gw && !status)
        status = transposed ? weights(ctx, s, batch, groups, out_channels, in_channels, g, x, gw)
                            : weights(ctx, s, batch, groups, in_channels, out_channels, x, g, gw);
    if (gb && !status)
        status = bias_sums(ctx, g, batch, groups * out_channels, transposed ? s->in_size : s->out_size, gb);
    return status;
}

int32_t tl_cpu_conv(tl_context *ctx, const float *x, const float *w, const float *b, int64_t batch, int64_t in_channels,
                    const tl_dims *spatial, int64_t out_channels, const tl_dims *kernel, const tl_dims *stride,
                    const tl_dims *padding, float *out)
{
    return tl_cpu_conv_grouped(ctx, x, w, b, batch, 1, in_channels, spatial, out_channels, kernel, stride,
                               &tl_dims_ones, padding, padding, out);
}

int32_t tl_cpu_conv_bwd(tl_context *ctx, const float *x, const float *w, const float *g, int64_t batch,
                        int64_t in_channels, const tl_dims *spatial, int64_t out_channels, const tl_dims *kernel,
                        const tl_dims *stride, const tl_dims *padding, float *gx, float *gw, float *gb)
{
    return tl_cpu_conv_grouped_bwd(ctx, x, w, g, batch, 1, in_channels, spatial, out_channels, kernel, stride,
                                   &tl_dims_ones, padding, padding, gx, gw, gb);
}

int32_t tl_cpu_conv_transpose(tl_context *ctx, const float *x, const float *w, const float *b, int64_t batch,
                              int64_t in_channels, const tl_dims *spatial, int64_t out_channels, const tl_dims *kernel,
                              const tl_dims *stride, const tl_dims *padding, float *out)
{
    return tl_cpu_conv_transpose_grouped(ctx, x, w, b, batch, 1, in_channels, spatial, out_channels, kernel, stride,
                                         &tl_dims_ones, padding, padding, &tl_dims_zeros, out);
}

int32_t tl_cpu_conv_transpose_bwd(tl_context *ctx, const float *x, const float *w, const float *g, int64_t batch,
                                  int64_t in_channels, const tl_dims *spatial, int64_t out_channels,
                                  const tl_dims *kernel, const tl_dims *stride, const tl_dims *padding, float *gx,
                                  float *gw, float *gb)
{
    return tl_cpu_conv_transpose_grouped_bwd(ctx, x, w, g, batch, 1, in_channels, spatial, out_channels, kernel, stride,
                                             &tl_dims_ones, padding, padding, &tl_dims_zeros, gx, gw, gb);
}

int32_t tl_cpu_conv_grouped(tl_context *ctx, const float *x, const float *w, const float *b, int64_t batch,
                            int64_t groups, int64_t in_channels, const tl_dims *spatial, int64_t out_channels,
                            const tl_dims *kernel, const tl_dims *stride, const tl_dims *dilation,
                            const tl_dims *padding_low, const tl_dims *padding_high, float *out)
{
    const tl_dims size = tl_conv_grouped_out(spatial, kernel, stride, dilation, padding_low, padding_high);
    const tl_conv_shape s =
        tl_conv_merge(spatial->rank, spatial->d, size.d, kernel->d, stride->d, padding_low->d, dilation->d);
    return convolve(ctx, &s, 0, batch, groups, in_channels, out_channels, x, w, b, out);
}

int32_t tl_cpu_conv_grouped_bwd(tl_context *ctx, const float *x, const float *w, const float *g, int64_t batch,
                                int64_t groups, int64_t in_channels, const tl_dims *spatial, int64_t out_channels,
                                const tl_dims *kernel, const tl_dims *stride, const tl_dims *dilation,
                                const tl_dims *padding_low, const tl_dims *padding_high, float *gx, float *gw,
                                float *gb)
{
    const tl_dims size = tl_conv_grouped_out(spatial, kernel, stride, dilation, padding_low, padding_high);
    const tl_conv_shape s =
        tl_conv_merge(spatial->rank, spatial->d, size.d, kernel->d, stride->d, padding_low->d, dilation->d);
    return gradients(ctx, &s, 0, batch, groups, in_channels, out_channels, x, w, g, gx, gw, gb);
}

int32_t tl_cpu_conv_transpose_grouped(tl_context *ctx, const float *x, const float *w, const float *b, int64_t batch,
                                      int64_t groups, int64_t in_channels, const tl_dims *spatial, int64_t out_channels,
                                      const tl_dims *kernel, const tl_dims *stride, const tl_dims *dilation,
                                      const tl_dims *padding_low, const tl_dims *padding_high,
                                      const tl_dims *output_padding, float *out)
{
    const tl_dims size =
        tl_conv_transpose_grouped_out(spatial, kernel, stride, dilation, padding_low, padding_high, output_padding);
    const tl_conv_shape s =
        tl_conv_merge(size.rank, size.d, spatial->d, kernel->d, stride->d, padding_low->d, dilation->d);
    return convolve(ctx, &s, 1, batch, groups, in_channels, out_channels, x, w, b, out);
}

int32_t tl_cpu_conv_transpose_grouped_bwd(tl_context *ctx, const float *x, const float *w, const float *g,
                                          int64_t batch, int64_t groups, int64_t in_channels, const tl_dims *spatial,
                                          int64_t out_channels, const tl_dims *kernel, const tl_dims *stride,
                                          const tl_dims *dilation, const tl_dims *padding_low,
                                          const tl_dims *padding_high, const tl_dims *output_padding, float *gx,
                                          float *gw, float *gb)
{
    const tl_dims size =
        tl_conv_transpose_grouped_out(spatial, kernel, stride, dilation, padding_low, padding_high, output_padding);
    const tl_conv_shape s =
        tl_conv_merge(size.rank, size.d, spatial->d, kernel->d, stride->d, padding_low->d, dilation->d);
    return gradients(ctx, &s, 1, batch, groups, in_channels, out_channels, x, w, g, gx, gw, gb);
}
