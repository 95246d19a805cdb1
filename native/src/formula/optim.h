/* Optimiser steps at one element, and the constants of a step.
 *
 * The constants follow from a call's scalars alone. They are computed in double by the host, for either device, from operations
 * IEEE 754 rounds correctly, and rounded to float once; powers are repeated multiplications, so no library's pow has a say.
 * Elements use fused multiply-adds where a product is added, which is what the bounds of the specification count. */
#pragma once

#include "base.h"
#include "exact.h"

/* g + weight_decay·p; without weight decay g itself, so that an infinite p does not spoil it. */
TL_HD float tl_decayed(float p, float g, float weight_decay)
{
    return weight_decay != 0.0f ? fmaf(weight_decay, p, g) : g;
}

typedef struct tl_sgd {
    float lr, weight_decay;
} tl_sgd;

TL_HD void tl_sgd_element(tl_sgd s, float p, float g, float *p_out)
{
    *p_out = fmaf(-s.lr, tl_decayed(p, g, s.weight_decay), p);
}

typedef struct tl_momentum {
    float lr, weight_decay, momentum, fresh; /* fresh = 1 - dampening */
    int32_t nesterov;
} tl_momentum;

static inline tl_momentum tl_momentum_of(float lr, float momentum, float dampening, float weight_decay,
                                         int64_t nesterov)
{
    tl_momentum s = {lr, weight_decay, momentum, (float)(1.0 - (double)dampening), (int32_t)nesterov};
    return s;
}

TL_HD void tl_momentum_element(tl_momentum s, float p, float g, float v, float *p_out, float *v_out)
{
    const float d = tl_decayed(p, g, s.weight_decay), after = fmaf(s.momentum, v, s.fresh * d);
    const float direction = s.nesterov ? fmaf(s.momentum, after, d) : after;
    *v_out = after;
    *p_out = fmaf(-s.lr, direction, p);
}

typedef struct tl_adam {
    float coupled;       /* weight decay added to the gradient: Adam's */
    float kept;          /* what is left of p before the step: 1 - lr·weight_decay for AdamW, 1 for Adam */
    float beta1, fresh1; /* fresh = 1 - beta */
    float beta2, fresh2;
    float size; /* lr / (1 - beta1^step) */
    float root; /* 1 / √(1 - beta2^step) */
    float eps;
} tl_adam;

/* 1 - beta^step. A power's relative error is at most step·2^-53, and where step is large beta^step is small or beta next
 * to 1; 0 <= beta <= 1 - 2^-24 leaves the result within 2^-29 of itself. */
static inline double tl_bias_correction(float beta, uint64_t step)
{
    double power = 1.0, square = (double)beta;
    for (; step; step >>= 1) {
        if (step & 1) power *= square;
        square *= square;
    }
    return 1.0 - power;
}

static inline tl_adam tl_adam_of(uint64_t step, float lr, float beta1, float beta2, float eps, float coupled,
                                 float decoupled)
{
    tl_adam s;
    s.coupled = coupled;
    s.kept = (float)(1.0 - (double)lr * (double)decoupled);
    s.beta1 = beta1;
    s.fresh1 = (float)(1.0 - (double)beta1);
    s.beta2 = beta2;
    s.fresh2 = (float)(1.0 - (double)beta2);
    s.size = (float)((double)lr / tl_bias_correction(beta1, step));
    s.root = (float)(1.0 / sqrt(tl_bias_correction(beta2, step)));
    s.eps = eps;
    return s;
}

TL_HD void tl_adam_element(tl_adam s, float p, float g, float m, float v, float *p_out, float *m_out, float *v_out)
{
    const float d = tl_decayed(p, g, s.coupled);
    const float first = fmaf(s.beta1, m, s.fresh1 * d), second = fmaf(s.beta2, v, (s.fresh2 * d) * d);
    const float ratio = first / fmaf(sqrtf(second), s.root, s.eps);
    *m_out = first;
    *v_out = second;
    *p_out = fmaf(-s.size, ratio, s.kept * p);
}

typedef struct tl_rmsprop {
    float lr, weight_decay, alpha, fresh, eps, momentum; /* fresh = 1 - alpha */
} tl_rmsprop;

static inline tl_rmsprop tl_rmsprop_of(float lr, float alpha, float eps, float weight_decay, float momentum)
{
    tl_rmsprop s = {lr, weight_decay, alpha, (float)(1.0 - (double)alpha), eps, momentum};
    return s;
}

/* The mean of squares after a step. */
TL_HD float tl_rmsprop_square(tl_rmsprop s, float d, float v) { return fmaf(s.alpha, v, (s.fresh * d) * d); }

TL_HD void tl_rmsprop_element(tl_rmsprop s, float p, float g, float v, float *p_out, float *v_out)
{
    const float d = tl_decayed(p, g, s.weight_decay), square = tl_rmsprop_square(s, d, v);
    *v_out = square;
    *p_out = fmaf(-s.lr, d / (sqrtf(square) + s.eps), p);
}

TL_HD void tl_rmsprop_momentum_element(tl_rmsprop s, float p, float g, float v, float b, float *p_out, float *v_out,
                                       float *b_out)
{
    const float d = tl_decayed(p, g, s.weight_decay), square = tl_rmsprop_square(s, d, v);
    const float after = fmaf(s.momentum, b, d / (sqrtf(square) + s.eps));
    *v_out = square;
    *b_out = after;
    *p_out = fmaf(-s.lr, after, p);
}

/* By the variance of gradients, which rounding may leave below 0; NaN stays. */
TL_HD void tl_rmsprop_centered_element(tl_rmsprop s, float p, float g, float v, float m, float b, float *p_out,
                                       float *v_out, float *m_out, float *b_out)
{
    const float d = tl_decayed(p, g, s.weight_decay), square = tl_rmsprop_square(s, d, v);
    const float mean = fmaf(s.alpha, m, s.fresh * d), variance = fmaf(-mean, mean, square);
    const float after = fmaf(s.momentum, b, d / (sqrtf(variance < 0.0f ? 0.0f : variance) + s.eps));
    *v_out = square;
    *m_out = mean;
    *b_out = after;
    *p_out = fmaf(-s.lr, after, p);
}

typedef struct tl_lion {
    float lr, kept;      /* what is left of p before the step: 1 - lr·weight_decay */
    float beta1, fresh1; /* fresh = 1 - beta */
    float beta2, fresh2;
} tl_lion;

static inline tl_lion tl_lion_of(float lr, float beta1, float beta2, float weight_decay)
{
    tl_lion s = {lr,    (float)(1.0 - (double)lr * (double)weight_decay),
                 beta1, (float)(1.0 - (double)beta1),
                 beta2, (float)(1.0 - (double)beta2)};
    return s;
}

TL_HD void tl_lion_element(tl_lion s, float p, float g, float m, float *p_out, float *m_out)
{
    *p_out = fmaf(-s.lr, tl_sign(fmaf(s.beta1, m, s.fresh1 * g)), s.kept * p);
    *m_out = fmaf(s.beta2, m, s.fresh2 * g);
}

/* min(1, max_norm / (norm + eps)); NaN stays. */
TL_HD float tl_clip_factor(float norm, float max_norm, float eps)
{
    const float factor = max_norm / (norm + eps);
    return factor >= 1.0f ? 1.0f : factor;
}

/* x² without rounding: 48 bits, from 2^-298 to 2^256. */
TL_HD double tl_square(float x) { return (double)x * (double)x; }
