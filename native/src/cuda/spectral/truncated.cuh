/* The truncated transform on CUDA (formula/dft_tile.h has its arithmetic): what spectral/conv.cu and spectral/narrow.cu share. */
#pragma once

#include "cuda/runtime/launch.cuh"
#include "formula/dft_tile.h"

/* Blocks that share the grid in one pass over it: four for each multiprocessor of an H200. */
constexpr int64_t SHARES = 528;

/* (cos, sin) of pi·mode·twice/n, the product reduced exactly: of a mode at half of `twice` numbers from where its angle is 0. */
static __device__ __forceinline__ float2 half_root(int64_t mode, int64_t twice, int64_t n)
{
    const uint64_t whole = 2 * (uint64_t)n;
    double c, s;
    tl_root((uint64_t)mode * (uint64_t)twice % whole, whole, &c, &s);
    return make_float2((float)c, (float)s);
}

/* Tiles of a block, a multiple of `together`, such that about SHARES blocks share the grid. */
static inline int64_t tiles_of_block(int64_t tiles, int64_t others, int64_t together)
{
    const int64_t blocks = SHARES / others > 1 ? SHARES / others : 1;
    return tl_ceil_div(tl_ceil_div(tiles, blocks), together) * together;
}

/* Few channels (spectral/narrow.cu): the tiles that lie side by side where others have a tile's channels; 1: as others do. */
int64_t tl_narrow_analysis_tiles(int64_t n, int64_t width, int64_t modes);
int64_t tl_narrow_synthesis_tiles(int64_t n, int64_t width);
/* Blocks' shares of the small spectrum, [block][mode][re, im][width], of *parts blocks. */
int32_t tl_narrow_analysis(tl_context *ctx, const float *x, int64_t n, int64_t width, int64_t modes,
                           tl_scratch<float> &shares, int64_t *parts);
int32_t tl_narrow_synthesis(tl_context *ctx, const float *re, const float *im, int64_t n, int64_t width, int64_t modes,
                            float *y);
