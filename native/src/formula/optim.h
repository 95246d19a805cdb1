/* Optimiser steps at one element, and the constants of a step.
 *
 * The constants follow from a call's scalars alone. They are computed in double by the host, for either device, from operations
 * IEEE 754 rounds correctly, and rounded to float once; powers are repeated multiplications, so no library's pow has a say.
 * Elements use fused multiply-adds where a product is added, which is what the bounds of the specification count. */
#pragma once

#include "base.h"

/* g + weight_decay·p; without weight decay g itself, so that an infinite p does not spoil it. */
TL_HD float tl_decayed(float p, float g, float weight_decay)
{
    return weight_decay != 0.0f ? fmaf(weight_decay, p, g) : g;
}

typedef struct tl_sgd {
    float lr, weight_decay;
} tl_sgd;

TL_HD float tl_sgd_element(tl_sgd s, float p, float g) { return fmaf(-s.lr, tl_decayed(p, g, s.weight_decay), p); }

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

/* min(1, max_norm / (norm + eps)); NaN stays. */
TL_HD float tl_clip_factor(float norm, float max_norm, float eps)
{
    const float factor = max_norm / (norm + eps);
    return factor >= 1.0f ? 1.0f : factor;
}

/* x² without rounding: 48 bits, from 2^-298 to 2^256. */
TL_HD double tl_square(float x) { return (double)x * (double)x; }
