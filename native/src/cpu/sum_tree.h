/* The summation trees of formula/sum_tree.h on the CPU: one row or one chunk at a time for any family's inner loop
 * (inline), whole arrays on all threads (reduce.c).
 *
 * An accumulator of the tree is one float of a small array in L1, so the loops run over independent elements and gcc
 * vectorises them without changing the order of a single sum. */
#pragma once

#include "core/kernel.h"
#include "formula/sum_tree.h"

/* ---- the row tree ------------------------------------------------------------------------------------------------ */

/* The last four levels: 16 lanes. */
static inline float tl_fold_16(const float *t)
{
    float a[8], b[4];
    for (int l = 0; l < 8; l++)
        a[l] = t[l] + t[l + 8];
    for (int l = 0; l < 4; l++)
        b[l] = a[l] + a[l + 4];
    return (b[0] + b[2]) + (b[1] + b[3]);
}

/* Folds `lanes` lanes in halves, a power of two from 16 to TL_SUM_LANES; t is used up. Every level has a constant
 * length, which makes it a few straight vector instructions. */
static inline float tl_fold_lanes(float *t, int64_t lanes)
{
#define TL_LEVEL(s)                       \
    case 2 * (s):                         \
        for (int l = 0; l < (s); l++)     \
            t[l] += t[l + (s)];           \
        __attribute__((fallthrough));
    switch (lanes) {
        TL_LEVEL(512)
        TL_LEVEL(256)
        TL_LEVEL(128)
        TL_LEVEL(64)
        TL_LEVEL(32)
        TL_LEVEL(16)
    default: return tl_fold_16(t);
    }
#undef TL_LEVEL
}

/* The least power of two >= n, at least 16: lanes past a row's end hold +0, so more of them change nothing. */
static inline int64_t tl_lanes_for(int64_t n)
{
    return n <= TL_SUM_FOLD ? TL_SUM_FOLD : (int64_t)1 << (64 - __builtin_clzll((unsigned long long)n - 1));
}

/* The first n < 16 of 16 elements, the others 0; with masked loads it is one instruction. */
static inline void tl_read_16(float *t, const float *x, int64_t n)
{
    for (int64_t l = 0; l < TL_SUM_FOLD; l++)
        t[l] = l < n ? x[l] : 0.0f;
}

/* The sum of a leaf: 0 <= n <= TL_SUM_LEAF. */
static inline float tl_leaf_sum(const float *x, int64_t n)
{
    _Alignas(64) float t[TL_SUM_LANES], rest[TL_SUM_FOLD];
    if (n < TL_SUM_FOLD) {
        tl_read_16(rest, x, n);
        for (int l = 0; l < TL_SUM_FOLD; l++)
            t[l] = 0.0f + rest[l];
        return tl_fold_16(t);
    }
    if (n <= TL_SUM_LANES) { /* one element per lane: the first level of the fold reads x itself, 16 lanes at a time */
        const int64_t half = tl_lanes_for(n) / 2 > TL_SUM_FOLD ? tl_lanes_for(n) / 2 : TL_SUM_FOLD,
                      whole = (n - half) / TL_SUM_FOLD * TL_SUM_FOLD;
        for (int64_t b = 0; b < whole; b += TL_SUM_FOLD)
            for (int l = 0; l < TL_SUM_FOLD; l++)
                t[b + l] = (0.0f + x[b + l]) + x[half + b + l];
        for (int64_t b = whole; b < half; b += TL_SUM_FOLD)
            for (int l = 0; l < TL_SUM_FOLD; l++)
                t[b + l] = 0.0f + x[b + l];
        if (half + whole < n) {
            tl_read_16(rest, x + half + whole, n - half - whole);
            for (int l = 0; l < TL_SUM_FOLD; l++)
                t[whole + l] += rest[l];
        }
        return tl_fold_lanes(t, half);
    }
    for (int l = 0; l < TL_SUM_LANES; l++)
        t[l] = 0.0f + x[l];
    int64_t i = TL_SUM_LANES;
    for (; i + 3 * TL_SUM_LANES <= n; i += 3 * TL_SUM_LANES) /* three steps per pass over the lanes (15 = 5·3) */
        for (int l = 0; l < TL_SUM_LANES; l++)
            t[l] = ((t[l] + x[i + l]) + x[i + l + TL_SUM_LANES]) + x[i + l + 2 * TL_SUM_LANES];
    for (; i + TL_SUM_LANES <= n; i += TL_SUM_LANES)
        for (int l = 0; l < TL_SUM_LANES; l++)
            t[l] += x[i + l];
    for (int64_t l = 0; l < n - i; l++)
        t[l] += x[i + l];
    return tl_fold_lanes(t, TL_SUM_LANES);
}

/* The sum of a row of up to TL_SUM_LEAF leaves, on the calling thread. No row here is longer: of 64 rows and more none has 2^26
 * elements, and where rows are fewer, a long one is that of its leaves' sums (tl_row_sums, row_phases.h). */
static inline float tl_row_sum(const float *x, int64_t n)
{
    if (n <= TL_SUM_LEAF) return tl_leaf_sum(x, n);
    float t[TL_SUM_LANES] = {0};
    for (int64_t leaf = 0; leaf * TL_SUM_LEAF < n; leaf++) {
        const int64_t left = n - leaf * TL_SUM_LEAF;
        t[leaf % TL_SUM_LANES] += tl_leaf_sum(x + leaf * TL_SUM_LEAF, left < TL_SUM_LEAF ? left : TL_SUM_LEAF);
    }
    return tl_fold_lanes(t, TL_SUM_LANES);
}

/* ---- the column tree --------------------------------------------------------------------------------------------- */

/* Columns a chunk is summed over at once: four chains of this many floats are 15 KiB of L1, and of the stack. */
enum { TL_COLUMN_TILE = 960, TL_COLUMN_NARROW = 8 /* columns whose chains fit the registers */ };

/* The whole steps of a chunk whose rows of `width` elements lie side by side; with a constant width the chains stay in
 * registers, where a row is too narrow to hide that they are read and written. */
static inline __attribute__((always_inline)) void tl_add_narrow_rows(const float *x, int64_t steps, int64_t width,
                                                                     float *chains)
{
    float chain[TL_COLUMN_CHAINS * TL_COLUMN_NARROW];
    for (int64_t i = 0; i < TL_COLUMN_CHAINS * width; i++)
        chain[i] = chains[i];
    for (int64_t s = 0; s < steps; s++)
        for (int64_t i = 0; i < TL_COLUMN_CHAINS * width; i++)
            chain[i] += x[s * TL_COLUMN_CHAINS * width + i];
    for (int64_t i = 0; i < TL_COLUMN_CHAINS * width; i++)
        chains[i] = chain[i];
}

static inline void tl_add_narrow(const float *x, int64_t steps, int64_t width, float *chains)
{
#define TL_NARROW(w) \
    case w: tl_add_narrow_rows(x, steps, w, chains); break;
    switch (width) {
        TL_NARROW(1)
        TL_NARROW(2)
        TL_NARROW(3)
        TL_NARROW(4)
        TL_NARROW(5)
        TL_NARROW(6)
        TL_NARROW(7)
        TL_NARROW(8)
    default: break;
    }
#undef TL_NARROW
}

/* Sums of one chunk: rows 1..TL_COLUMN_CHUNK, `width` <= TL_COLUMN_TILE columns, `stride` elements from row to row. The
 * chains lie side by side, so where the rows do too (stride == width) a step of all chains is one contiguous run,
 * however narrow the rows are. */
static inline void tl_column_chunk_sum(const float *x, int64_t rows, int64_t stride, int64_t width, float *out)
{
    _Alignas(64) float chains[TL_COLUMN_CHAINS * TL_COLUMN_TILE];
    const int64_t run = stride == width ? TL_COLUMN_CHAINS * width : width; /* contiguous elements of a step */
    const int64_t step = TL_COLUMN_CHAINS * stride;
    for (int64_t i = 0; i < TL_COLUMN_CHAINS * width; i++)
        chains[i] = 0.0f;
    int64_t r = 0;
    if (stride == width && width <= TL_COLUMN_NARROW) {
        r = rows / TL_COLUMN_CHAINS * TL_COLUMN_CHAINS;
        tl_add_narrow(x, rows / TL_COLUMN_CHAINS, width, chains);
    }
    for (; r + 2 * TL_COLUMN_CHAINS <= rows; r += 2 * TL_COLUMN_CHAINS) /* two steps per pass over the chains */
        for (int64_t c = 0; c * run < TL_COLUMN_CHAINS * width; c++) {
            const float *row = x + (r + c) * stride;
            float *chain = chains + c * run;
            for (int64_t i = 0; i < run; i++)
                chain[i] = (chain[i] + row[i]) + row[i + step];
        }
    for (; r < rows; r++) {
        float *chain = chains + r % TL_COLUMN_CHAINS * width;
        for (int64_t j = 0; j < width; j++)
            chain[j] += x[r * stride + j];
    }
    for (int64_t j = 0; j < width; j++)
        out[j] = (chains[j] + chains[width + j]) + (chains[2 * width + j] + chains[3 * width + j]);
}

/* ---- whole arrays, on all threads (reduce.c) --------------------------------------------------------------------- */

#define tl_row_sums TL_V(tl_row_sums)
#define tl_column_sums TL_V(tl_column_sums)

/* out[r] = sum over c of x[r,c] by the row tree, ended by tl_end_sum with `count`. cols = 0 gives 0. Fails only for want of
 * scratch. */
int32_t tl_row_sums(tl_context *ctx, const float *x, int64_t rows, int64_t cols, int64_t count, float *out);
/* out[o,c] = sum over r of x[o,r,c] by the column tree; with count > 0 divided by it. rows = 0 gives 0. */
int32_t tl_column_sums(tl_context *ctx, const float *x, int64_t outer, int64_t rows, int64_t cols, int64_t count,
                       float *out);
