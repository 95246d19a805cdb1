/* Which algorithm computes a convolution's product on CUDA, as a pure function of its shape, the mode and the device. An
 * algorithm's name is its file's. The batch decides nothing that a product's bits depend on. */
#pragma once

#include "formula/chain.h"
#include "formula/conv_geometry.h"
#include "formula/integer.h"

typedef enum tl_conv_algorithm { TL_CONV_CHAIN, TL_CONV_DIRECT, TL_CONV_MMA, TL_CONV_WGMMA } tl_conv_algorithm;

static inline const char *tl_conv_reason(int algorithm)
{
    static const char *const reasons[] = {
        "chain: float64 tensor cores, the mode reproducible; in fast groups of many channels and small images where float64 is fast",
        "direct: a thread sums the terms of its elements, of groups of few channels and of fewer terms than tensor cores take",
        "mma: split TF32 products, which take every shape",
        "wgmma: split TF32 warp group products, images large enough to fill their tiles",
    };
    return reasons[algorithm];
}

/* What a choice depends on beside the shape. */
typedef struct tl_conv_device {
    int64_t multiprocessors;
    int is_reproducible, has_fast_chains, has_wgmma;
} tl_conv_device;

enum {
    TL_CONV_AXES = 3,       /* of the kernels other than mma and chain */
    TL_CONV_MAX_PHASES = 8, /* of a launch: 2 x 2 x 2 strides */
    /* Extents, paddings, strides and dilated kernels below this keep coordinates in int32. */
    TL_CONV_MAX_EXTENT = 1 << 28,
    /* Columns of the inner dimension from which on tensor cores are used: a chain's errors (the operands' last bits, the dropped
     * product of the low parts, 12 truncated accumulations) stay below 36 roundings, so that from 64 columns on a sum is within
     * the bound of one rounding per column, whose height the rows declare. */
    TL_CONV_MIN_TENSOR = 64,
    TL_CONV_CHUNK = 31, /* taps that a product takes at a time, a bit each beside one more */
};

/* Few enough axes, and not so large that a coordinate overflows. */
TL_HD int tl_conv_is_small(const tl_conv_shape *s)
{
    if (s->rank > TL_CONV_AXES) return 0;
    for (int32_t d = 0; d < s->rank; d++)
        if (s->in[d] >= TL_CONV_MAX_EXTENT || s->out[d] >= TL_CONV_MAX_EXTENT || s->kernel[d] >= TL_CONV_MAX_EXTENT ||
            s->stride[d] >= TL_CONV_MAX_EXTENT || s->dilation[d] >= TL_CONV_MAX_EXTENT / s->kernel[d] ||
            s->padding[d] >= TL_CONV_MAX_EXTENT || s->out[d] * s->stride[d] >= INT64_C(4) * TL_CONV_MAX_EXTENT)
            return 0;
    return 1;
}

/* ---- direct ------------------------------------------------------------------------------------------------------ */

enum {
    TL_CONV_MAX_DIRECT_CHANNELS = 8, /* of a group, and rows: with more, tensor cores are faster */
    TL_CONV_MAX_DIRECT_TAPS = 16384,
    TL_CONV_MAX_DIRECT_COLUMNS = 48, /* of channels and taps, of one group */
    TL_CONV_MAX_DIRECT_ROWS = 65535 * 8,
    TL_CONV_MAX_CHAIN_PAIRS = 4, /* of channels and rows of a group, with chains shorter than a tile takes */
};

/* On no axis both a stride and a dilation. */
TL_HD int tl_conv_direct_runs(const tl_conv_shape *s)
{
    for (int32_t d = 0; d < s->rank; d++)
        if (s->stride[d] > 1 && s->dilation[d] > 1) return 0;
    return tl_conv_is_small(s) && s->taps <= TL_CONV_MAX_DIRECT_TAPS;
}

TL_HD int tl_conv_prefer_direct(const tl_conv_shape *s, int64_t groups, int64_t channels, int64_t rows)
{
    return groups > 1 && channels <= TL_CONV_MAX_DIRECT_CHANNELS && rows <= TL_CONV_MAX_DIRECT_CHANNELS &&
           tl_conv_direct_runs(s);
}

/* One group: a correlation, or a spread of one phase, whose positions are the whole image; a bit for each tap of an axis. */
TL_HD int tl_conv_prefer_direct_tiles(const tl_conv_shape *s, int spread, int64_t channels, int64_t rows)
{
    int64_t bits = TL_CONV_AXES - s->rank;
    for (int32_t d = 0; d < s->rank; d++) {
        if (spread && s->stride[d] > 1) return 0;
        bits += s->kernel[d];
    }
    return tl_conv_is_small(s) && channels * s->taps <= TL_CONV_MAX_DIRECT_COLUMNS && rows <= TL_CONV_MAX_DIRECT_ROWS &&
           s->taps <= TL_CONV_CHUNK && bits <= 31;
}

/* ---- wgmma ------------------------------------------------------------------------------------------------------- */

enum {
    TL_CONV_STEP = 32,          /* channels of a product's step, positions of a weight gradient's */
    TL_CONV_UNIT = 16,          /* channels that a weight gradient gathers together */
    TL_CONV_MIN_POSITIONS = 16, /* of an image */
    TL_CONV_MIN_WORK = 1 << 23, /* multiply-adds of an image */
    TL_CONV_MIN_ROWS = 33,      /* with fewer, tiles of 64 rows are half empty */
    TL_CONV_MIN_SEGMENT = 512,  /* positions of a weight gradient's segment: its sums are written and read once more */
    TL_CONV_MAX_WAVES = 12,     /* of segments' tiles */
    TL_CONV_MAX_SEGMENTS = 128, /* TL_COLUMN_CHUNK */
    TL_CONV_MAX_TAPS = 256,     /* 197 KiB of shared memory to pack; 8 bits of an axis */
    TL_CONV_MAX_TILES = 1 << 23,
    TL_CONV_MAX_ROWS = 1 << 20, /* of a product: blocks of 16 of them along a grid's y */
};

/* There must be rows enough, channels at least five eighths of what steps have room for, and an image large enough. */
TL_HD int tl_conv_wgmma_takes_product(const tl_conv_shape *s, int spread, int64_t batch, int64_t channels, int64_t rows)
{
    const int64_t blocks = tl_ceil_div(channels, TL_CONV_STEP), row_groups = tl_ceil_div(rows, 64);
    const int64_t phases = spread ? tl_conv_phases(s) : 1;
    int64_t positions = 0, work = 0;
    if (!tl_conv_is_small(s) || (spread && tl_conv_has_gaps(s)) || phases > TL_CONV_MAX_PHASES ||
        s->taps > TL_CONV_MAX_TAPS || rows < TL_CONV_MIN_ROWS || 8 * channels < 5 * blocks * TL_CONV_STEP)
        return 0;
    for (int64_t p = 0; p < phases; p++) {
        const tl_conv_gather g = spread ? tl_conv_spread(s, p) : tl_conv_correlate(s);
        if (g.positions == 0) continue;
        if (channels * g.taps_size < TL_CONV_MIN_TENSOR || blocks * g.taps_size >= INT32_MAX / 512 ||
            row_groups * blocks * g.taps_size >= INT32_MAX || batch * g.positions > INT32_MAX)
            return 0;
        positions += g.positions;
        work += g.positions * rows * channels * g.taps_size;
    }
    return positions >= TL_CONV_MIN_POSITIONS && work >= TL_CONV_MIN_WORK &&
           (tl_ceil_div(batch * positions, 256) + phases) * row_groups < TL_CONV_MAX_TILES;
}

/* Tiles of a weight gradient, rows by columns of units. */
typedef enum tl_conv_form { TL_CONV_128X128, TL_CONV_64X256, TL_CONV_64X192 } tl_conv_form;

TL_HD int64_t tl_conv_units(const tl_conv_shape *s, int64_t channels)
{
    return tl_ceil_div(channels, TL_CONV_UNIT) * s->taps;
}

TL_HD int64_t tl_conv_form_tiles(tl_conv_form form, int64_t rows, int64_t units)
{
    const int64_t columns = form == TL_CONV_128X128 ? 128 : form == TL_CONV_64X256 ? 256 : 192;
    return tl_ceil_div(rows, form == TL_CONV_128X128 ? 128 : 64) * tl_ceil_div(units * TL_CONV_UNIT, columns);
}

/* The form whose tiles take the least time: one of 64 x 192 takes as long as one of 128 x 128 (measured on an H200), and one of
 * 64 x 256 in proportion to it. */
TL_HD tl_conv_form tl_conv_select_form(int64_t rows, int64_t units)
{
    const int64_t large = 3 * tl_conv_form_tiles(TL_CONV_128X128, rows, units);
    const int64_t low = 4 * tl_conv_form_tiles(TL_CONV_64X256, rows, units);
    const int64_t slim = 3 * tl_conv_form_tiles(TL_CONV_64X192, rows, units);
    return large <= low && large <= slim ? TL_CONV_128X128 : low <= slim ? TL_CONV_64X256 : TL_CONV_64X192;
}

/* Into how many segments, at most `most`, the sums of a weight gradient's `tiles` are cut: the number that fills whole waves
 * of `wave` blocks best, the smallest of those within 1/32 of the best. */
TL_HD int64_t tl_conv_segments(int64_t tiles, int64_t most, int64_t wave)
{
    int64_t segments = 1;
    double best = 0;
    for (int64_t n = 1; n <= most; n++) {
        const double filled = (double)(tiles * n) / (double)(tl_ceil_div(tiles * n, wave) * wave);
        if (filled > best * (1 + 1.0 / 32)) best = filled, segments = n;
    }
    return segments;
}

TL_HD int64_t tl_conv_wgmma_segments(int64_t tiles, int64_t positions, int64_t multiprocessors)
{
    const int64_t by_waves = TL_CONV_MAX_WAVES * multiprocessors / tiles;
    const int64_t most = tl_imin(tl_imin(positions / TL_CONV_MIN_SEGMENT, by_waves), TL_CONV_MAX_SEGMENTS);
    return tl_conv_segments(tiles, most, multiprocessors);
}

/* Rows and channels must fill three quarters of the tiles and units, and the segments half of the device. `is_aligned`: four
 * neighbouring positions of the small array are one access. */
TL_HD int tl_conv_wgmma_takes_weights(const tl_conv_shape *s, int64_t batch, int64_t channels, int64_t rows,
                                      int is_aligned, int64_t multiprocessors)
{
    const int64_t units = tl_conv_units(s, channels), positions = batch * s->out_size;
    if (!tl_conv_is_small(s) || s->taps > TL_CONV_MAX_TAPS || rows >= 65536 || s->out_size % 4 != 0 || !is_aligned ||
        positions < TL_CONV_MIN_SEGMENT || positions > INT32_MAX || units >= INT32_MAX / TL_CONV_UNIT ||
        4 * rows < 3 * tl_ceil_div(rows, 64) * 64 ||
        4 * channels < 3 * tl_ceil_div(channels, TL_CONV_UNIT) * TL_CONV_UNIT)
        return 0;
    const int64_t tiles = tl_conv_form_tiles(tl_conv_select_form(rows, units), rows, units);
    return tiles < TL_CONV_MAX_TILES &&
           2 * tiles * tl_conv_wgmma_segments(tiles, positions, multiprocessors) >= multiprocessors;
}

/* ---- chain ------------------------------------------------------------------------------------------------------- */

enum {
    TL_CONV_SMALL_IMAGE = 1024,   /* positions */
    TL_CONV_SMALL_WORK = 1 << 24, /* multiply-adds of an image */
};

/* A matrix product of each image, so small that float64 tensor cores end sooner than others. */
TL_HD int tl_conv_prefer_chain(const tl_conv_shape *s, tl_conv_device device)
{
    return device.has_fast_chains && s->taps == 1 && s->in_size == s->out_size && s->out_size <= TL_CONV_SMALL_IMAGE;
}

/* ---- choices ----------------------------------------------------------------------------------------------------- */

/* Groups without kernels of their own. */
TL_HD tl_conv_algorithm tl_conv_select_groups(const tl_conv_shape *s, tl_conv_device device)
{
    return device.is_reproducible || device.has_fast_chains || !tl_conv_direct_runs(s) ? TL_CONV_CHAIN : TL_CONV_DIRECT;
}

/* A correlation or a spread. */
TL_HD tl_conv_algorithm tl_conv_select_product(const tl_conv_shape *s, int spread, int64_t batch, int64_t groups,
                                               int64_t channels, int64_t rows, tl_conv_device device)
{
    const int is_one_chain = channels * s->taps <= TL_CHAIN_SEGMENT;
    if (tl_conv_prefer_direct(s, groups, channels, rows) && (!device.is_reproducible || is_one_chain))
        return TL_CONV_DIRECT;
    if (groups > 1 || device.is_reproducible) return tl_conv_select_groups(s, device);
    if (tl_conv_prefer_chain(s, device) && (double)s->out_size * (double)channels * (double)rows < TL_CONV_SMALL_WORK)
        return TL_CONV_CHAIN;
    if (tl_conv_prefer_direct_tiles(s, spread, channels, rows)) return TL_CONV_DIRECT;
    return device.has_wgmma && tl_conv_wgmma_takes_product(s, spread, batch, channels, rows) ? TL_CONV_WGMMA
                                                                                             : TL_CONV_MMA;
}

/* The gradient of the weights. */
TL_HD tl_conv_algorithm tl_conv_select_weights(const tl_conv_shape *s, int64_t batch, int64_t groups, int64_t channels,
                                               int64_t rows, int is_aligned, tl_conv_device device)
{
    const int is_short = channels * rows <= TL_CONV_MAX_CHAIN_PAIRS && groups * channels * rows * s->taps <= INT32_MAX;
    if (tl_conv_prefer_direct(s, groups, channels, rows) && (!device.is_reproducible || is_short))
        return TL_CONV_DIRECT;
    if (groups > 1 || device.is_reproducible) return tl_conv_select_groups(s, device);
    if (device.has_wgmma && tl_conv_wgmma_takes_weights(s, batch, channels, rows, is_aligned, device.multiprocessors))
        return TL_CONV_WGMMA;
    return tl_conv_prefer_chain(s, device) ? TL_CONV_CHAIN : TL_CONV_MMA;
}
