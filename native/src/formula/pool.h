/* The scalar pieces of pooling. A window's sums run over its cells in row-major order; a cell's gradients over the
 * windows that meet it, in row-major order too. */
#pragma once

#include "exact.h"
#include "explog.h"

/* Whether v takes the lead from the best cell so far: it is larger, or it is the first NaN. Zeros of both signs tie. */
TL_HD int32_t tl_pool_takes(float v, float best) { return (best == best) & !(v <= best); }

/* What a winner receives of its window's g. */
TL_HD float tl_pool_prize(float v, float g) { return v != v ? TL_NAN : g; }

/* e^(beta (v - p)), p the extreme of v's window; 1 for v = p, infinite or not. A difference that overflows is taken of halves. */
TL_HD float tl_pool_weight(float v, float p, float beta)
{
    float d = v - p, half = fmaf(0.5f, v, -0.5f * p);
    float a = fabsf(d) < TL_INF ? beta * d : (beta + beta) * half;
    return tl_exp(v == p ? 0.0f : a);
}

/* The padded cells of a window of `size` that has `cells` others: infinity for a window of padding alone. */
TL_HD float tl_pool_padded(int64_t size, int64_t cells) { return cells > 0 ? (float)(size - cells) : TL_INF; }

/* The window's sum of weights: `sum` over its cells, and `padded` cells of value 0; 1 for padding alone, which so gives 0. */
TL_HD float tl_pool_total(float sum, float padded, float p, float beta)
{
    float all = fmaf(padded, tl_pool_weight(0.0f, p, beta), sum);
    return padded == TL_INF ? 1.0f : padded > 0.0f ? all : sum;
}

/* p + ln(total)/beta; 2^-32 of both where a small beta takes the quotient beyond the range, from which p may bring it back. */
TL_HD float tl_pool_smooth(float total, float p, float beta)
{
    float log = tl_log(total), q = log / beta;
    float far = (p * 0x1p-32f + log * 0x1p-32f / beta) * 0x1p32f;
    return fabsf(q) < TL_INF ? p + q : far;
}
