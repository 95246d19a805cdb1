/* The order of a diagonal scan h_k = a_k h_(k-1) + b_k, k = 0..T-1, shared by both back ends: a function of T alone.
 *
 *   1. Cut the steps into chunks of TL_SCAN_CHUNK; the last may be shorter.
 *   2. A chunk begins with the carry H (the first with h_(-1)) and goes h = fmaf(a_k, h, b_k) for its steps: these are
 *      the results.
 *   3. Beside it run the chunk's own affine map h -> P h + s, from P = 1, s = +0: s = fmaf(a_k, s, b_k), P = P a_k. The
 *      next chunk's carry is fmaf(P, H, s). Maps of chunks need no H, so chunks run at the same time; only the carries
 *      are sequential, one fused multiply-add for each chunk.
 *   4. Where P, s or H is not finite the carry is the h that step 2 ended with: P may overflow, and 0 inf is NaN, where
 *      no h does.
 *
 * A constant coefficient has P = a a ... a, multiplied from the left, so that a scan gives the same bits whether its
 * coefficient is stored once or for every step.
 *
 * The gradient is the same scan of the steps in reverse: k = T-1-t, a_k = A_(t+1) (0 for k = 0), b_k = g_t, from +0. Sums
 * over time for the coefficients of a constant scan are the column tree of sum_tree.h over k, whose chunks are these
 * chunks; each chain step is one fmaf. */
#pragma once

#include "base.h"
#include "sum_tree.h"

enum { TL_SCAN_CHUNK = TL_COLUMN_CHUNK };

/* Whether all three are finite: x - x is 0 for finite x and NaN for others. */
TL_HD int32_t tl_scan_finite(float product, float state, float carry)
{
    return (product - product) + (state - state) + (carry - carry) == 0.0f;
}

/* The next chunk's carry; `end` is the h at the end of this one. */
TL_HD float tl_scan_carry(float product, float state, float carry, float end)
{
    float next = fmaf(product, carry, state);
    return tl_scan_finite(product, state, carry) ? next : end;
}
