/* The scalar pieces of pooling. A window's sums run over its cells in row-major order; a cell's gradients over the
 * windows that meet it, in row-major order too. */
#pragma once

#include "exact.h"
#include "explog.h"

/* Whether v takes the lead from the best cell so far: it is larger, or it is the first NaN. Zeros of both signs tie. */
TL_HD int32_t tl_pool_takes(float v, float best) { return (best == best) & !(v <= best); }

/* What a winner receives of its window's g. */
TL_HD float tl_pool_prize(float v, float g) { return v != v ? TL_NAN : g; }

/* What scales a difference before beta does: a difference beyond the range counts only where beta is so small that the product is
 * not, and there the difference is taken of halves. */
TL_HD float tl_pool_scale(float beta) { return fabsf(beta) < 0x1p-100f ? 0.5f : 1.0f; }

/* e^(beta (v - p)), p the extreme of v's window; 1 for v = p, infinite or not. */
TL_HD float tl_pool_weight(float v, float p, float beta)
{
    const float scale = tl_pool_scale(beta), rest = scale < 1.0f ? beta + beta : beta;
    return tl_exp(v == p ? 0.0f : rest * fmaf(scale, v, -scale * p));
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
    const float log = tl_log(total), q = log / beta;
    if (tl_pool_scale(beta) < 1.0f && !(fabsf(q) < TL_INF)) return (p * 0x1p-32f + log * 0x1p-32f / beta) * 0x1p32f;
    return p + q;
}
