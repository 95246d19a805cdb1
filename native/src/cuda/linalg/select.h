/* Which algorithm computes a matrix product on CUDA, and on which tiles: functions of its shape and of the device alone, in plain C,
 * so that tests call them without either. A time is in the steps of a tile on an H200, and only compared with another. */
#pragma once

#include <stdbool.h>

#include "formula/integer.h"

/* C[batch, m, p] = op(A)·op(B) + bias. ta: A is stored (n, m); tb: B is stored (p, n). */
typedef struct {
    int64_t batch, m, n, p;
    bool ta, tb, bias;
    bool contiguous;                /* A and B have no gaps */
    bool overlaps;                  /* rows of A, or of B, share elements */
    bool a_whole, b_whole, c_whole; /* rows in memory are whole and aligned 16 bytes */
} tl_product_shape;

typedef struct {
    int sms;            /* multiprocessors */
    bool wgmma;         /* runs the kernels of wgmma.cu */
    bool fast_double;   /* float64 at half the rate of float32 or better */
    bool double_tensor; /* chains run on float64 tensor cores, at the rate of float32 */
} tl_product_device;

typedef enum {
    TL_PRODUCT_WGMMA,
    TL_PRODUCT_MMA,
    TL_PRODUCT_GEMV,
    TL_PRODUCT_DIRECT, /* thin.cu */
    TL_PRODUCT_THIN,
    TL_PRODUCT_CHAIN,
    TL_PRODUCT_CUBLAS,
} tl_product_algorithm;

static inline const char *tl_product_reason(int algorithm)
{
    static const char *const reasons[] = {
        "wgmma: TF32 warp group products, whose tiles fill half of the device and are filled",
        "mma: TF32 tensor cores, where neither warp group products nor float64 tensor cores are",
        "gemv: a matrix and at most four vectors, which is read once",
        "direct: at most 16 terms and few results, where only latency counts",
        "thin: at most 16 terms, which take no longer than writing the result",
        "chain: float64 sums in the order of the terms, the definition of the mode reproducible; in fast also results too few for other tiles",
        "cublas: SGEMM, where no other algorithm is faster",
    };
    return reasons[algorithm];
}

enum {
    TL_WGMMA_ROWS = 128, /* of a tile of wgmma.cu, of TL_WGMMA_WIDE columns or of TL_WGMMA_NARROW */
    TL_WGMMA_WIDE = 128,
    TL_WGMMA_NARROW = 64,
    TL_MMA_SIDE = 64,            /* of a small tile of mma.cu */
    TL_SPLIT_STEP = 32,          /* terms of a part of a split sum */
    TL_SPLIT_MIN_TERMS = 64,     /* from here on 7.5·√n·u covers the error of split sums (mma.cu) */
    TL_GEMV_MAX_VECTORS = 4,     /* rows or columns */
    TL_THIN_MAX_TERMS = 16,      /* whose products take no longer than writing the result, in float64 */
    TL_DIRECT_MAX_RESULTS = 512, /* a multiprocessor: more wait longer for rows along k than for memory */
    TL_CHAIN_FEW_ROWS = 16,      /* or columns: tiles that wait for memory alone */
};

TL_HD int64_t tl_product_tiles(tl_product_shape x, int64_t rows, int64_t columns)
{
    return x.batch * tl_ceil_div(x.m, rows) * tl_ceil_div(x.p, columns);
}

/* Whether `tiles` tiles are filled to `quarters` quarters. */
TL_HD bool tl_product_fills(tl_product_shape x, int64_t tiles, int64_t rows, int64_t columns, int quarters)
{
    return 4 * x.batch * x.m * x.p >= quarters * tiles * rows * columns;
}

/* Columns of a tile of wgmma.cu: a narrow one takes three fifths of the time of a wide one. */
TL_HD int tl_choose_wgmma_columns(tl_product_shape x, int sms)
{
    const int64_t wide = tl_ceil_div(tl_product_tiles(x, TL_WGMMA_ROWS, TL_WGMMA_WIDE), sms);
    const int64_t narrow = tl_ceil_div(tl_product_tiles(x, TL_WGMMA_ROWS, TL_WGMMA_NARROW), sms);
    return 5 * wide <= 3 * narrow ? TL_WGMMA_WIDE : TL_WGMMA_NARROW;
}

/* What both forms on TF32 tensor cores take: one factor transposed at most, and terms enough. */
TL_HD bool tl_fits_split(tl_product_shape x)
{
    return x.n >= TL_SPLIT_MIN_TERMS && x.n < (int64_t)1 << 30 && !(x.ta && x.tb);
}

/* Steps of n: the terms of a part of a split sum. */
TL_HD double tl_split_steps(tl_product_shape x) { return (double)tl_ceil_div(x.n, TL_SPLIT_STEP); }

/* Whether tiles of wgmma.cu, however full, are done a sixth sooner than those of mma.cu, half full: half a step ends one. */
TL_HD bool tl_wgmma_ends_sooner(tl_product_shape x, int sms)
{
    const int columns = tl_choose_wgmma_columns(x, sms);
    const int64_t rounds = tl_ceil_div(tl_product_tiles(x, TL_WGMMA_ROWS, columns), sms);
    const double time = (double)rounds * (tl_split_steps(x) + 0.5) * (columns == TL_WGMMA_WIDE ? 1.5 : 0.9);
    const int64_t small = tl_product_tiles(x, TL_MMA_SIDE, TL_MMA_SIDE);
    const double other = (double)small / sms * tl_split_steps(x) * 0.7;
    return tl_product_fills(x, small, TL_MMA_SIDE, TL_MMA_SIDE, 2) && 1.2 * time <= other;
}

/* Tiles that fill half of the device and are three quarters full; or that end sooner and are so many, or of so many terms, that the
 * first copies of a tile and its last stores count for little. Copies of operands whose rows are no whole 16 bytes take less than half of what these tensor cores save: a
 * launch as long as 3e8 multiplications, an element as 230. */
TL_HD bool tl_prefer_wgmma(tl_product_shape x, int sms)
{
    const double launch = 3e8, element = 230.0;
    const int64_t tiles = tl_product_tiles(x, TL_WGMMA_ROWS, TL_WGMMA_NARROW);
    const double a = x.a_whole ? 0.0 : launch + element * (double)(x.batch * x.m) * (double)x.n;
    const double b = x.b_whole ? 0.0 : launch + element * (double)(x.batch * x.p) * (double)x.n;
    if (!tl_fits_split(x) || 2 * tiles < sms || tiles >= INT32_MAX) return false;
    if (x.p * (x.n + 3) > UINT32_MAX) return false; /* an index in B, or in its copy, has 32 bits */
    if ((double)(x.batch * x.m) * (double)x.n * (double)x.p < a + b) return false;
    return tl_product_fills(x, tiles, TL_WGMMA_ROWS, TL_WGMMA_NARROW, 3) ||
           ((x.n > 8 * TL_SPLIT_STEP || tiles >= 4 * (int64_t)sms) && tl_wgmma_ends_sooner(x, sms));
}

typedef enum { TL_MMA_LARGE, TL_MMA_SMALL, TL_MMA_FLAT, TL_MMA_TALL } tl_mma_tile;

/* Large tiles: two for each multiprocessor, three quarters full. Halves of small ones: where all multiprocessors are done sooner by a
 * tenth, or with several tiles each by a fifth. A step of a small tile takes 0.7 where a multiprocessor has several, and 1 alone,
 * as nothing is done while its warps wait; one of a half 0.42. */
TL_HD tl_mma_tile tl_choose_mma_tile(tl_product_shape x, int sms)
{
    const int64_t large = tl_product_tiles(x, 2 * TL_MMA_SIDE, 2 * TL_MMA_SIDE);
    const int64_t small = tl_product_tiles(x, TL_MMA_SIDE, TL_MMA_SIDE);
    const int64_t flat = tl_product_tiles(x, TL_MMA_SIDE / 2, TL_MMA_SIDE);
    const int64_t tall = tl_product_tiles(x, TL_MMA_SIDE, TL_MMA_SIDE / 2);
    if (large >= 2 * (int64_t)sms && tl_product_fills(x, large, 2 * TL_MMA_SIDE, 2 * TL_MMA_SIDE, 3))
        return TL_MMA_LARGE;
    const double rounds = 0.7 * (double)tl_ceil_div(small, sms), by = small > 2 * (int64_t)sms ? 1.2 : 1.1;
    if (by * 0.42 * (double)tl_ceil_div(tl_imin(flat, tall), sms) > (rounds > 1.0 ? rounds : 1.0)) return TL_MMA_SMALL;
    return tall < flat ? TL_MMA_TALL : TL_MMA_FLAT;
}

/* Tiles that fill half of the device and are half full, where chains are slower. */
TL_HD bool tl_prefer_mma(tl_product_shape x, tl_product_device device)
{
    const int64_t tiles = tl_product_tiles(x, TL_MMA_SIDE, TL_MMA_SIDE);
    return !device.double_tensor && x.contiguous && x.a_whole && x.b_whole && x.c_whole && tl_fits_split(x) &&
           2 * tiles >= device.sms && tiles < INT32_MAX && tl_product_fills(x, tiles, TL_MMA_SIDE, TL_MMA_SIDE, 2);
}

/* With A transposed wgmma.cu is slower. Where its tiles leave a quarter of the multiprocessors idle, chains end sooner, which
 * share out the terms of few results. */
TL_HD bool tl_chains_end_sooner(tl_product_shape x, tl_product_device device)
{
    return device.double_tensor && x.ta && 4 * tl_product_tiles(x, TL_WGMMA_ROWS, TL_WGMMA_NARROW) < 3 * device.sms;
}

/* The matrix of gemv.cu is A where there are few columns, else op(B)'s columns are its rows. */
TL_HD bool tl_gemv_matrix_is_a(tl_product_shape x)
{
    return x.p <= TL_GEMV_MAX_VECTORS && (x.p <= x.m || x.m > TL_GEMV_MAX_VECTORS);
}

/* Sums in float64 must cost nothing. Rows that lie along k are read well however short they are of one matrix; those that lie across
 * have terms for all warps of a block, and of a batch, where blocks do not run all at once, many. */
TL_HD bool tl_prefer_gemv(tl_product_shape x, tl_product_device device)
{
    const int64_t min_terms = 64, many_terms = 1024, rows_of_block = 32, vectors = tl_imin(x.m, x.p);
    const int64_t blocks = x.batch * tl_ceil_div(tl_imax(x.m, x.p), rows_of_block);
    const bool along = tl_gemv_matrix_is_a(x) ? !x.ta : x.tb;
    return device.fast_double && x.contiguous && vectors <= TL_GEMV_MAX_VECTORS &&
           (x.n >= min_terms || (along && x.batch == 1)) &&
           (x.batch == 1 || along || x.n >= many_terms || blocks <= 2 * device.sms) && x.batch * x.m * x.p < INT32_MAX;
}

/* So few terms and results that nothing but latency counts. */
TL_HD bool tl_prefer_direct(tl_product_shape x, int sms)
{
    const int64_t results = (int64_t)TL_DIRECT_MAX_RESULTS * sms;
    return x.n <= TL_THIN_MAX_TERMS && x.batch <= results && x.m <= results && x.p <= results && x.m * x.p <= results &&
           x.batch * (x.m * x.p) <= results;
}

/* Few terms, rows and columns for whole threads, and of a batch products that fill a block. */
TL_HD bool tl_prefer_thin(tl_product_shape x)
{
    const int64_t block_results = 512;
    return x.n <= TL_THIN_MAX_TERMS && x.m >= 4 && x.p >= 4 && (x.batch == 1 || x.m * x.p >= block_results) &&
           !(x.ta && x.tb);
}

/* Chains rather than cuBLAS: terms that fill a step of k, or results so few that a launch counts, or a bias, for which cuBLAS has the
 * results go through memory twice more; of a batch no products of few rows or columns, unless all their tiles run at once. */
TL_HD bool tl_prefer_chain(tl_product_shape x, tl_product_device device)
{
    const int64_t step = 64, many_results = 1 << 20, few_rows = 4, few_rows_tile = 64;
    return device.double_tensor && !(x.ta && x.tb && x.bias) &&
           (x.n >= step || x.batch * x.m * x.p < many_results || x.bias) &&
           (x.batch == 1 || tl_imin(x.m, x.p) > TL_CHAIN_FEW_ROWS ||
            (tl_imin(x.m, x.p) > few_rows &&
             x.batch * tl_ceil_div(tl_imax(x.m, x.p), few_rows_tile) <= 2 * device.sms));
}

/* Of a product that is not empty, with terms. */
TL_HD tl_product_algorithm tl_select_product(tl_product_shape x, tl_product_device device, bool reproducible)
{
    const bool doubles = device.fast_double || reproducible;
    if (doubles && tl_prefer_direct(x, device.sms)) return TL_PRODUCT_DIRECT;
    if (!reproducible) {
        if (device.wgmma && tl_prefer_wgmma(x, device.sms) && !tl_chains_end_sooner(x, device)) return TL_PRODUCT_WGMMA;
        if (tl_prefer_mma(x, device)) return TL_PRODUCT_MMA;
    }
    if (doubles && tl_prefer_thin(x)) return TL_PRODUCT_THIN;
    if (!reproducible && tl_prefer_gemv(x, device)) return TL_PRODUCT_GEMV;
    if (doubles && x.n <= TL_THIN_MAX_TERMS) return TL_PRODUCT_DIRECT;
    if (reproducible) return TL_PRODUCT_CHAIN;
    return x.overlaps || tl_prefer_chain(x, device) ? TL_PRODUCT_CHAIN : TL_PRODUCT_CUBLAS;
}

/* Terms of a segment of chains outside reproducible contexts: 0 for those of formula/chain.h, or TL_CHAIN_FREE where chain.cuh chooses
 * them. Sums of few rows or columns are shared by the whole device, in segments of at least 256 terms. */
TL_HD int64_t tl_choose_segment(tl_product_shape x, int sms, int64_t columns, int64_t longest)
{
    const int64_t least = 256, tiles = x.batch * tl_ceil_div(tl_imax(x.m, x.p), columns);
    const int64_t wanted = 2 * (int64_t)sms / tiles;
    if (tl_imin(x.m, x.p) > TL_CHAIN_FEW_ROWS) return -1;
    if (x.n < 4 * least || wanted < 2) return 0;
    const int64_t length = tl_ceil_div(tl_ceil_div(x.n, wanted), least) * least;
    return length < longest ? length : 0;
}
