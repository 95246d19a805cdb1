/* Roots of unity with exactly reduced angles, and the truncated transform's shape, shared by both back ends.
 *
 * The truncated transform cuts the grid into tiles of TL_DFT_TILE rows, the last one padded with zeros. About the
 * middle of a tile that starts at t0, its rows t0 + HALF - 1 - j and t0 + HALF + j lie at -(j + 1/2) and j + 1/2, so
 * sums of the pairs meet cosines, differences sines, and half the products of a plain sum remain:
 *     even = sum over j of (after[j] + before[j])·cos(pi·k·(2j+1)/n),  odd with the differences and sines,
 *     the tile's share of bin k = (even - i·odd)·e^(-i·pi·k·(2·t0 + TILE - 1)/n).
 * Each chain starts at +0 and runs over j = 0..HALF-1. The CPU path adds the shares of TL_DFT_TILES tiles in order, and
 * those sums by the column tree of sum_tree.h. */
#pragma once

#include "base.h"

enum { TL_DFT_TILE = 64, TL_DFT_HALF = 32, TL_DFT_TILES = 64 };

/* (cos, sin) of 2·pi·k/n for 0 <= k < n < 2^60 in float64: the angle is folded into the first octant in integers, so that
 * multiples of a quarter turn are exact and each component, rounded to float32, is within half an ulp and 2^-28 of one. */
TL_HD void tl_root(uint64_t k, uint64_t n, double *c, double *s)
{
    uint64_t q = 8 * k;
    const int below = q > 4 * n;
    q = below ? 8 * n - q : q;
    const int left = q > 2 * n;
    q = left ? 4 * n - q : q;
    const int steep = q > n;
    q = steep ? 2 * n - q : q;
    const double turn = (double)q / (double)n; /* in eighths of a turn */
#ifdef __CUDA_ARCH__
    double x, y;
    sincospi(turn * 0.25, &y, &x);
#else
    const double x = cos(turn * 0.78539816339744830962), y = sin(turn * 0.78539816339744830962); /* pi/4 */
#endif
    const double a = steep ? y : x, b = steep ? x : y;
    *c = left ? -a : a;
    *s = below ? -b : b;
}
