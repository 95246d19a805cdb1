/* The arithmetic of softmax, normalisation and the losses, one element or one row's statistic at a time. */
#pragma once

#include "activation.h"
#include "base.h"
#include "count.h"
#include "explog.h"

/* tl_exp(x) for x <= 0 or NaN: the factor 2^k has one form, that of tl_exp for negative x. */
TL_HD float tl_exp_at_most_1(float x)
{
    float t;
    float p = tl_exp_mantissa(x, 63.0f, &t);
    float scale = tl_from_bits((tl_bits(t) << 23) + (128u << 23));
    return x < -104.0f ? 0.0f : p * scale * TL_2M64;
}

/* e / s from r = 1/s, s >= 1: the product, and one Newton step on its residual, which fmaf gives exactly (Markstein, IBM J. Res.
 * Dev. 34, 1990). Within 1 ulp, nearly always the correctly rounded quotient, at a quarter of a division's cost. */
TL_HD float tl_quotient(float e, float s, float r)
{
    float q = e * r;
    return fmaf(fmaf(-q, s, e), r, q);
}

/* y (g - s), s = sum of g y. */
TL_HD float tl_softmax_grad(float y, float g, float s) { return y * (g - s); }

/* g - e^y s, s = sum of g. */
TL_HD float tl_log_softmax_grad(float y, float g, float s) { return fmaf(-tl_exp(y), s, g); }

/* The loss ln s - (x - m), scaled, of a row whose exponentials sum to s, with the labelled element x and the maximum m. It is 0
 * or above 2^-24, so neither the scale nor a sum of scaled losses costs a bit. A difference that overflows is taken scaled. */
TL_HD float tl_cross_entropy_row(float x, float m, float log_s)
{
    float at = x - m;
    float near = (log_s - at) * TL_SUM_SCALE;
    float far = log_s * TL_SUM_SCALE - (x * TL_SUM_SCALE - m * TL_SUM_SCALE);
    return at == -TL_INF ? far : near;
}

/* (y - onehot) c. */
TL_HD float tl_cross_entropy_grad(float y, int32_t hit, float c) { return (hit ? y - 1.0f : y) * c; }

/* What a row's loss is made of besides its logits: the weight of its class, 1 - s and s of the smoothing s. */
struct tl_smoothing {
    float keep, share;
};

TL_HD struct tl_smoothing tl_smoothing_of(float s)
{
    struct tl_smoothing h;
    h.keep = 1.0f - s;
    h.share = s;
    return h;
}

/* keep w (ln s - (x - m)) + share spread / cols, spread the sum over the classes of their weights times ln s - (x - m). */
TL_HD float tl_smoothed_loss(float log_s, float x, float m, float w, float spread, int64_t cols, struct tl_smoothing h)
{
    float loss = w * (log_s - (x - m));
    return h.share > 0.0f ? h.keep * loss + h.share * tl_per_count(spread, cols) : loss;
}

/* The sum of a row's targets, keep w + share total / cols, total the sum of the weights. */
TL_HD float tl_smoothed_total(float w, float total, int64_t cols, struct tl_smoothing h)
{
    return h.share > 0.0f ? h.keep * w + h.share * tl_per_count(total, cols) : w;
}

/* (y total - target) g of a class of weight v; w is the weight of the row's class, `hit` whether this is it. */
TL_HD float tl_smoothed_grad(float y, float total, float v, float w, int32_t hit, int64_t cols, float g,
                             struct tl_smoothing h)
{
    float d = y * total;
    if (h.share > 0.0f) d -= tl_per_count(h.share, cols) * v;
    return (hit ? d - h.keep * w : d) * g;
}

/* 1 / sqrt(variance + eps) from the sum of n squares around the mean. */
TL_HD float tl_inverse_deviation(float squares, int64_t n, float eps)
{
    return 1.0f / sqrtf(tl_per_count(squares, n) + eps);
}

TL_HD float tl_normalised(float x, float mean, float istd) { return (x - mean) * istd; }

/* istd ((a - mean(a)) - xhat mean(a xhat)). */
TL_HD float tl_norm_grad(float a, float xhat, float mean_a, float mean_ax, float istd)
{
    return fmaf(-xhat, mean_ax, a - mean_a) * istd;
}

/* Three roundings: no sum is fused. */
TL_HD float tl_channel_affine(float x, float center, float slope, float shift) { return (x - center) * slope + shift; }

TL_HD float tl_square_of_difference(float a, float b)
{
    float d = a - b;
    return d * d;
}

/* g / n in two factors: a small g is raised first, so that the quotient does not underflow before an infinite or large
 * difference meets it. */
struct tl_loss_slope {
    float c, scale;
};

TL_HD struct tl_loss_slope tl_loss_slope_of(float g, int64_t n)
{
    int small = fabsf(g) < 0x1p-64f;
    struct tl_loss_slope s;
    s.c = tl_per_count(small ? g * 0x1p64f : g, n);
    s.scale = small ? 0x1p-64f : 1.0f;
    return s;
}

/* d g / n. */
TL_HD float tl_slope_times(float d, struct tl_loss_slope s) { return d * s.c * s.scale; }

/* 2 (a - b) g / n. */
TL_HD float tl_mse_grad(float a, float b, struct tl_loss_slope s)
{
    float d = tl_slope_times(a - b, s);
    return d + d;
}

/* max(x, 0) - x t + ln(1 + e^-|x|): where t is 0 or 1 a small loss is not a difference of large ones. */
TL_HD float tl_bce(float x, float t) { return fmaf(-x, t, x > 0.0f ? x : 0.0f) + tl_softplus(-fabsf(x)); }

/* (sigma(x) - t) g / n: what is near 0 is not taken from 1. */
TL_HD float tl_bce_grad(float x, float t, struct tl_loss_slope slope)
{
    float s = tl_sigmoid(-fabsf(x));
    return tl_slope_times(x > 0.0f ? (1.0f - t) - s : s - t, slope);
}

/* Rows of a normalisation that are runs of `run` elements, `run + skip` apart: the channels of a batch, or the groups of a sample,
 * whose runs are its channels. Element i of row r is element i % run of run q = i / run, which begins r*row_stride + q*(run + skip)
 * elements after the array. Of it are number (r % channel_rows)*channels_per_row + q*channel_step of gamma and beta, and number
 * r / rows_per_statistic + q*statistic_step of the statistics that a gradient is given. */
struct tl_norm_runs {
    int64_t rows, cols, run, skip, row_stride;
    int64_t channel_rows, channels_per_row, channel_step;
    int64_t rows_per_statistic, statistic_step;
};

TL_HD int64_t tl_channel_of(const struct tl_norm_runs *a, int64_t row, int64_t q)
{
    return row % a->channel_rows * a->channels_per_row + q * a->channel_step;
}

TL_HD int64_t tl_statistic_of(const struct tl_norm_runs *a, int64_t row, int64_t q)
{
    return row / a->rows_per_statistic + q * a->statistic_step;
}

/* A row is a channel of the whole batch, normalised by statistics of its own, or in its gradients by those of the groups of
 * `channels` neighbours in each sample. */
TL_HD struct tl_norm_runs tl_channel_runs(int64_t batch, int64_t groups, int64_t channels, int64_t positions,
                                          int32_t by_group)
{
    struct tl_norm_runs a;
    a.rows = groups * channels, a.cols = batch * positions;
    a.run = a.row_stride = positions, a.skip = (a.rows - 1) * positions;
    a.channel_rows = a.rows > 0 ? a.rows : 1, a.channels_per_row = 1, a.channel_step = 0;
    a.rows_per_statistic = by_group && channels > 0 ? channels : 1, a.statistic_step = by_group ? groups : 0;
    return a;
}

/* A row is a group of channels of one sample. */
TL_HD struct tl_norm_runs tl_group_runs(int64_t batch, int64_t groups, int64_t channels, int64_t positions)
{
    struct tl_norm_runs a;
    a.rows = batch * groups, a.cols = a.row_stride = channels * positions;
    a.run = positions, a.skip = 0;
    a.channel_rows = groups > 0 ? groups : 1, a.channels_per_row = channels, a.channel_step = 1;
    a.rows_per_statistic = 1, a.statistic_step = 0;
    return a;
}

/* What a leaf of n elements adds to the sum of squares around the mean of the row: from its mean m, its sum of squares around m and
 * its sum of differences from m, which is 0 but for the rounding of m. */
TL_HD float tl_squares_of_leaf(float squares, float differences, float m, float mean, int64_t n)
{
    float d = m - mean;
    return squares + d * fmaf((float)n, d, differences + differences);
}

/* Running statistics move towards those of a batch: kept·running is rounded, the rest is one fused multiply-add. */
struct tl_running {
    float kept, mean, var;
};

static inline struct tl_running tl_running_of(float momentum, float correction)
{
    struct tl_running r = {(float)(1.0 - (double)momentum), momentum, (float)((double)momentum * correction)};
    return r;
}

TL_HD float tl_running_value(float kept, float running, float rate, float value)
{
    return fmaf(rate, value, kept * running);
}
