/* What tiles of linalg/mma.cu take, and which of them products have. */
#pragma once

#include <algorithm>

#include "cuda/device/vector.cuh"
#include "cuda/linalg/linalg.cuh"

namespace tl_split_tiles {

/* Results of a side of a small tile; a half one has as many of one side, and half as many of the other. */
constexpr int64_t SMALL = 64, HALF = SMALL / 2;

static inline int64_t tiles(const tl_matrix_product &x, int64_t rows, int64_t columns)
{
    return x.batch * tl_ceil_div(x.m, rows) * tl_ceil_div(x.p, columns);
}
static inline int64_t tiles(const tl_matrix_product &x, int64_t size) { return tiles(x, size, size); }

/* Whether rows of either operand are whole 16 bytes. Both are only where the result's are, too. */
struct WholeRows {
    bool a, b;
    explicit WholeRows(const tl_matrix_product &x)
    {
        a = (x.ta ? x.m : x.n) % 4 == 0 && tl_aligned4(x.A), b = (x.tb ? x.n : x.p) % 4 == 0 && tl_aligned4(x.B);
        if (both() && (x.p % 4 != 0 || !tl_aligned4(x.C))) b = false;
    }
    bool both() const { return a && b; }
};

/* Microseconds of a multiprocessor for a step of a small tile, of which it has three, on an H200; and where rows are no whole 16 bytes. On
 * this depends which kernel serves, and so a result's bits. */
static inline double tile_step(const WholeRows &of) { return of.both() ? 0.7 : 0.95; }

/* Tiles of half as many results have kernels for rows of whole 16 bytes, and for those that fill them and not small ones: one side
 * of C is 32 and the other whole 64s, so that rows across k are whole 16 bytes, and only those along k may not be. */
static inline bool half_serves(const tl_matrix_product &x, const WholeRows &of)
{
    return of.both() || (!x.ta && !of.a && of.b == !x.tb);
}

/* Microseconds of a multiprocessor for a step of all of its tiles, measured on an H200: with one small tile 1, as nothing is done while its
 * warps wait, and with more of them as above; one of half has half the products of tensor cores and three quarters of the operands to
 * split, 0.6 times as many instructions, and of what rows that are no whole 16 bytes add, 0.25, three quarters. */
static inline double small_step(tl_context *ctx, const tl_matrix_product &x, const WholeRows &of)
{
    const int64_t small = tl_ceil_div(tiles(x, SMALL), tl_cuda_sms(ctx));
    return std::max(1.0, tile_step(of) * (double)small);
}
static inline double half_step(tl_context *ctx, const tl_matrix_product &x, const WholeRows &of)
{
    const int64_t fewer = std::min(tiles(x, SMALL, HALF), tiles(x, HALF, SMALL));
    return (of.both() ? 0.42 : 0.6075) * (double)tl_ceil_div(fewer, tl_cuda_sms(ctx));
}

/* Whether these are done sooner by a tenth, or where multiprocessors have several by a fifth. */
static inline bool half_pays(tl_context *ctx, const tl_matrix_product &x, const WholeRows &of)
{
    const double by = tiles(x, SMALL) > 2 * tl_cuda_sms(ctx) ? 1.2 : 1.1;
    return half_serves(x, of) && by * half_step(ctx, x, of) <= small_step(ctx, x, of);
}

} /* namespace tl_split_tiles */
