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

/* sin x and cos x for 0 <= x <= pi/4 in float64, by Taylor's series: what is left out is below 2^-60. Written out, so that roots
 * have the same bits with every C library and on every device. */
TL_HD void tl_sine_cosine(double x, double *sine, double *cosine)
{
    const double z = x * x;
    double s = 1.0 / 355687428096000.0, c = -1.0 / 6402373705728000.0; /* 1/17!, -1/18! */
    s = s * z - 1.0 / 1307674368000.0;
    c = c * z + 1.0 / 20922789888000.0;
    s = s * z + 1.0 / 6227020800.0;
    c = c * z - 1.0 / 87178291200.0;
    s = s * z - 1.0 / 39916800.0;
    c = c * z + 1.0 / 479001600.0;
    s = s * z + 1.0 / 362880.0;
    c = c * z - 1.0 / 3628800.0;
    s = s * z - 1.0 / 5040.0;
    c = c * z + 1.0 / 40320.0;
    s = s * z + 1.0 / 120.0;
    c = c * z - 1.0 / 720.0;
    s = s * z - 1.0 / 6.0;
    c = c * z + 1.0 / 24.0;
    *sine = x + x * (s * z);
    *cosine = 1.0 - z * (0.5 - c * z);
}

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
    double x, y;
    tl_sine_cosine(turn * 0.78539816339744830962, &y, &x); /* pi/4 */
    const double a = steep ? y : x, b = steep ? x : y;
    *c = left ? -a : a;
    *s = below ? -b : b;
}

/* Roots e^(-2·pi·i·k/n) in float64 from two tables of about sqrt(n) entries, coarse (k >> shift) and fine (the rest). */
typedef struct tl_roots {
    uint64_t n;
    int shift;
    double *coarse, *fine;
} tl_roots;

/* Hides where a product comes from. GCC's SLP vectoriser turns the four products of a complex product into fused
 * multiply-add-subtract instructions in spite of -ffp-contract=off (seen with 12.2), which would change bits by variant. */
#if defined(__CUDA_ARCH__)
#define TL_OPAQUE(x) ((void)0)
#elif defined(__x86_64__)
#define TL_OPAQUE(x) __asm__("" : "+x"(x))
#elif defined(__aarch64__)
#define TL_OPAQUE(x) __asm__("" : "+w"(x))
#else
#define TL_OPAQUE(x) ((void)0)
#endif

/* c + i·s = (a[0] + i·a[1])·(b[0] + i·b[1]). */
TL_HD void tl_root_product(const double *a, const double *b, double *c, double *s)
{
    double rr = a[0] * b[0], ii = a[1] * b[1], ri = a[0] * b[1], ir = a[1] * b[0];
    TL_OPAQUE(rr);
    TL_OPAQUE(ii);
    TL_OPAQUE(ri);
    TL_OPAQUE(ir);
    *c = rr - ii;
    *s = ri + ir;
}

/* Root k from two tables of about sqrt(n) roots each, coarse (k >> shift) and fine (the rest). */
TL_HD void tl_root_at(const tl_roots *t, uint64_t k, double *c, double *s)
{
    tl_root_product(t->coarse + 2 * (k >> t->shift), t->fine + 2 * (k & ((UINT64_C(1) << t->shift) - 1)), c, s);
}
