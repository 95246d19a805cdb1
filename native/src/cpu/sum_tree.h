/* The summation trees of formula/sum_tree.h on the CPU: one row or one chunk at a time for any family's inner loop
 * (inline), whole arrays on all threads (reduce.c).
 *
 * An accumulator of the tree is one float of a small array in L1, so the loops run over independent elements and gcc
 * vectorises them without changing the order of a single sum. */
#pragma once

#include <string.h>

#include "core/kernel.h"
#include "cpu/vector.h"
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

/* Folds TL_SUM_LANES lanes in halves; t is used up. Every level has a constant length, which makes it a few straight vector
 * instructions. */
static inline float tl_fold_lanes(float *t)
{
#define TL_LEVEL(s)                 \
    for (int l = 0; l < (s); l++)   \
        t[l] += t[l + (s)];
    TL_LEVEL(512)
    TL_LEVEL(256)
    TL_LEVEL(128)
    TL_LEVEL(64)
    TL_LEVEL(32)
    TL_LEVEL(16)
#undef TL_LEVEL
    return tl_fold_16(t);
}

/* Sixteen lanes, in as many registers as a variant needs for them: a vector wider than a register would go through memory. */
enum { TL_LINE_PARTS = TL_SUM_FOLD / TL_LANES };
typedef struct tl_line {
    tl_vec part[TL_LINE_PARTS];
} tl_line;

TL_INLINE tl_line tl_read_line(const float *x)
{
    tl_line line;
#pragma GCC unroll 4
    for (int32_t p = 0; p < TL_LINE_PARTS; p++)
        line.part[p] = tl_vec_load(x + p * TL_LANES);
    return line;
}

TL_INLINE tl_line tl_add_lines(tl_line a, tl_line b)
{
#pragma GCC unroll 4
    for (int32_t p = 0; p < TL_LINE_PARTS; p++)
        a.part[p] += b.part[p];
    return a;
}

TL_INLINE float tl_fold_line(tl_line t)
{
    float lane[TL_SUM_FOLD];
    memcpy(lane, &t, sizeof t);
    return tl_fold_16(lane);
}

/* A whole line of f. The lanes of a part are made by a loop, which is one vector. */
#define TL_WHOLE_LINE(line, number, f)                                                           \
    _Pragma("GCC unroll 4") for (int32_t p_ = 0; p_ < TL_LINE_PARTS; p_++)                       \
    {                                                                                            \
        _Alignas(64) float lane_[TL_LANES];                                                      \
        _Pragma("GCC ivdep") for (int32_t l_ = 0; l_ < TL_LANES; l_++)                           \
        {                                                                                        \
            const int64_t i = (number)*TL_SUM_FOLD + p_ * TL_LANES + l_;                         \
            lane_[l_] = (f);                                                                     \
        }                                                                                        \
        (line).part[p_] = tl_vec_load(lane_);                                                    \
    }

/* A line of f where its number is below that of the rest, the rest, or none. */
#define TL_ANY_LINE(line, number, f)                                                             \
    if ((number) < whole_)                                                                       \
        TL_WHOLE_LINE(line, number, f)                                                           \
    else                                                                                         \
        line = (number) == whole_ ? rest_ : none_;

/* The sum of the lines numbered near and far, and of those and two more. */
#define TL_TWO_LINES(result, NEAR_LINE, near, far, f)                                            \
    do {                                                                                         \
        tl_line near_, far_;                                                                     \
        NEAR_LINE(near_, near, f)                                                                \
        TL_ANY_LINE(far_, far, f)                                                                \
        (result) = tl_add_lines(near_, far_);                                                    \
    } while (0)
#define TL_FOUR_LINES(result, NEAR_LINE, first, apart, f)                                        \
    do {                                                                                         \
        tl_line even_, odd_;                                                                     \
        TL_TWO_LINES(even_, NEAR_LINE, (first), (first) + 4 * (apart), f);                       \
        TL_TWO_LINES(odd_, NEAR_LINE, (first) + 2 * (apart), (first) + 6 * (apart), f);          \
        (result) = tl_add_lines(even_, odd_);                                                    \
    } while (0)

/* The tree of eight lines, `first` and those that are multiples of `apart` behind it, two at a time, so that few wait in registers;
 * NEAR_LINE makes the four nearest. */
#define TL_EIGHT_LINES(result, NEAR_LINE, first, apart, f)                                       \
    do {                                                                                         \
        tl_line low_, high_;                                                                     \
        TL_FOUR_LINES(low_, NEAR_LINE, (first), (apart), f);                                     \
        TL_FOUR_LINES(high_, NEAR_LINE, (first) + (apart), (apart), f);                          \
        (result) = tl_add_lines(low_, high_);                                                    \
    } while (0)

/* The sum of f, an expression in i that may store, over i = 0..n-1 <= TL_SUM_LANES, one for each lane. Lines of 16 lanes are folded
 * in halves until one is left: those whose numbers differ by less than `apart_` wait for the last levels, and eight that are
 * multiples of it apart, of which the four nearest are whole, are a tree in registers. Lanes past the end hold +0. A line of sums
 * of numbers that are all -0 becomes +0 at the end, which is where it matters. */
#define TL_SUM_OF_LINES(result, n, f)                                                            \
    do {                                                                                         \
        const int64_t all_ = (n), whole_ = all_ / TL_SUM_FOLD, begun_ = whole_ * TL_SUM_FOLD;    \
        const int32_t left_ = (int32_t)(all_ - begun_);                                          \
        const tl_line none_ = {{{0}}};                                                           \
        tl_line rest_ = none_, last_;                                                            \
        if (left_ > 0) {                                                                         \
            _Alignas(64) float lane_[TL_SUM_FOLD];                                               \
            _Pragma("GCC ivdep") _Pragma("GCC unroll 1")                                         \
            for (int32_t l_ = 0; l_ < TL_SUM_FOLD; l_++)                                         \
            {                                                                                    \
                const int64_t i = begun_ + l_;                                                   \
                lane_[l_] = l_ < left_ ? (f) : 0.0f;                                             \
            }                                                                                    \
            rest_ = tl_read_line(lane_);                                                         \
        }                                                                                        \
        if (all_ <= 8 * TL_SUM_FOLD) {                                                           \
            TL_EIGHT_LINES(last_, TL_ANY_LINE, 0, 1, f);                                         \
        } else {                                                                                 \
            tl_line sum_[8];                                                                     \
            int64_t apart_ = 2;                                                                  \
            while (8 * apart_ * TL_SUM_FOLD < all_)                                              \
                apart_ *= 2;                                                                     \
            for (int64_t group_ = 0; group_ < apart_; group_++)                                  \
                TL_EIGHT_LINES(sum_[group_], TL_WHOLE_LINE, group_, apart_, f);                  \
            for (apart_ /= 2; apart_ > 0; apart_ /= 2)                                           \
                for (int64_t group_ = 0; group_ < apart_; group_++)                              \
                    sum_[group_] = tl_add_lines(sum_[group_], sum_[group_ + apart_]);            \
            last_ = sum_[0];                                                                     \
        }                                                                                        \
        (result) = tl_fold_line(last_) + 0.0f;                                                   \
    } while (0)

/* Line i of a leaf, and the one `apart` lines behind it: one of `far` whole ones, or behind these the rest. */
TL_INLINE tl_line tl_pair_of_lines(const float *x, int64_t i, int64_t apart, int64_t far, tl_line rest)
{
    const tl_line near = tl_read_line(x);
    if (i < far) return tl_add_lines(near, tl_read_line(x + apart * TL_SUM_FOLD));
    return i == far ? tl_add_lines(near, rest) : near;
}

/* The tree of such pairs, of those numbered i, i + step, .. of the first `apart`. */
#define TL_TREE_OF_PAIRS(count, half)                                                            \
    TL_INLINE tl_line tl_tree_of_##count(const float *x, int64_t i, int64_t step, int64_t apart, int64_t far, tl_line rest) \
    {                                                                                            \
        const tl_line even = half(x, i, 2 * step, apart, far, rest);                             \
        return tl_add_lines(even, half(x + step * TL_SUM_FOLD, i + step, 2 * step, apart, far, rest)); \
    }
TL_INLINE tl_line tl_tree_of_1(const float *x, int64_t i, int64_t step, int64_t apart, int64_t far, tl_line rest)
{
    (void)step;
    return tl_pair_of_lines(x, i, apart, far, rest);
}
TL_TREE_OF_PAIRS(2, tl_tree_of_1)
TL_TREE_OF_PAIRS(4, tl_tree_of_2)
TL_TREE_OF_PAIRS(8, tl_tree_of_4)

/* The tree of 8 `groups` pairs, a constant: eight at a time in registers. */
TL_INLINE tl_line tl_tree_of_groups(const float *x, int64_t groups, int64_t far, tl_line rest)
{
    tl_line sum[4];
    for (int64_t g = 0; g < groups; g++)
        sum[g] = tl_tree_of_8(x + g * TL_SUM_FOLD, g, groups, 8 * groups, far, rest);
    for (int64_t half = groups / 2; half > 0; half /= 2)
        for (int64_t g = 0; g < half; g++)
            sum[g] = tl_add_lines(sum[g], sum[g + half]);
    return sum[0];
}

/* The sum of a leaf that is read, TL_SUM_FOLD <= n <= TL_SUM_LANES, as TL_SUM_OF_LINES has it: the number of pairs is a constant in
 * each of its cases. */
static inline float tl_sum_of_elements(const float *x, int64_t n)
{
    const int64_t whole = n / TL_SUM_FOLD, left = n % TL_SUM_FOLD;
    tl_line rest = {{{0}}}, sum;
    if (left > 0) {
        _Alignas(64) float lane[TL_SUM_FOLD];
        const float *const end = x + n - left;
#pragma GCC ivdep
#pragma GCC unroll 1
        for (int32_t l = 0; l < TL_SUM_FOLD; l++)
            lane[l] = l < (int32_t)left ? end[l] : 0.0f;
        rest = tl_read_line(lane);
    }
    if (n <= 2 * TL_SUM_FOLD)
        sum = tl_tree_of_1(x, 0, 1, 1, whole - 1, rest);
    else if (n <= 4 * TL_SUM_FOLD)
        sum = tl_tree_of_2(x, 0, 1, 2, whole - 2, rest);
    else if (n <= 8 * TL_SUM_FOLD)
        sum = tl_tree_of_4(x, 0, 1, 4, whole - 4, rest);
    else if (n <= 16 * TL_SUM_FOLD)
        sum = tl_tree_of_8(x, 0, 1, 8, whole - 8, rest);
    else if (n <= 32 * TL_SUM_FOLD)
        sum = tl_tree_of_groups(x, 2, whole - 16, rest);
    else
        sum = tl_tree_of_groups(x, 4, whole - 32, rest);
    return tl_fold_line(sum) + 0.0f;
}

/* The sum of a leaf of a few steps over the lanes, whose lines stay in registers through them: TL_SUM_LANES < n <= TL_SUM_FEW. Eight
 * lines, eight apart, are a tree in registers, as in TL_SUM_OF_LINES. */
enum { TL_SUM_FEW = 4 * TL_SUM_LANES };

static inline float tl_sum_few_steps(const float *x, int64_t n)
{
    const int64_t apart = 8 * TL_SUM_FOLD;
    const int64_t steps = n / TL_SUM_LANES, whole = n % TL_SUM_LANES / TL_SUM_FOLD, left = n % TL_SUM_FOLD;
    const float *const end = x + steps * TL_SUM_LANES;
    _Alignas(64) float rest[TL_SUM_FOLD];
    tl_line sum[8];
    for (int32_t l = 0; l < TL_SUM_FOLD; l++)
        rest[l] = l < left ? end[whole * TL_SUM_FOLD + l] : 0.0f;
    for (int32_t g = 0; g < 8; g++)
#pragma GCC unroll 4
        for (int32_t p = 0; p < TL_LINE_PARTS; p++) {
            const int64_t from = g * TL_SUM_FOLD + p * TL_LANES;
            tl_vec line[8];
#pragma GCC unroll 8
            for (int32_t k = 0; k < 8; k++)
                line[k] = tl_vec_load(x + from + k * apart);
            for (const float *at = x + TL_SUM_LANES + from; at < end; at += TL_SUM_LANES) {
#pragma GCC unroll 8
                for (int32_t k = 0; k < 8; k++)
                    line[k] += tl_vec_load(at + k * apart);
            }
#pragma GCC unroll 8
            for (int32_t k = 0; k < 8; k++) {
                if (g + 8 * k > whole) continue;
                line[k] += tl_vec_load(g + 8 * k < whole ? end + from + k * apart : rest + p * TL_LANES);
            }
            sum[g].part[p] = ((line[0] + line[4]) + (line[2] + line[6])) + ((line[1] + line[5]) + (line[3] + line[7]));
        }
    for (int32_t half = 4; half > 0; half /= 2)
        for (int32_t g = 0; g < half; g++)
            sum[g] = tl_add_lines(sum[g], sum[g + half]);
    return tl_fold_line(sum[0]) + 0.0f;
}

/* Vectors of the lanes of a longer leaf that stay in registers through all steps. */
enum { TL_SUM_TOGETHER = 8 };

/* The sum of a leaf: 0 <= n <= TL_SUM_LEAF. */
static inline float tl_leaf_sum(const float *x, int64_t n)
{
    if (n >= TL_SUM_FOLD && n <= TL_SUM_LANES) return tl_sum_of_elements(x, n);
    if (n <= TL_SUM_LANES) {
        float sum;
        TL_SUM_OF_LINES(sum, n, x[i]);
        return sum;
    }
    if (n <= TL_SUM_FEW) return tl_sum_few_steps(x, n);
    _Alignas(64) float t[TL_SUM_LANES];
    const int64_t i = n / TL_SUM_LANES * TL_SUM_LANES;
    for (int64_t l = 0; l < TL_SUM_LANES; l += TL_SUM_TOGETHER * TL_LANES) {
        tl_vec sum[TL_SUM_TOGETHER];
#pragma GCC unroll 8
        for (int32_t k = 0; k < TL_SUM_TOGETHER; k++)
            sum[k] = tl_vec_zero();
        for (int64_t s = l; s < i; s += TL_SUM_LANES) {
#pragma GCC unroll 8
            for (int32_t k = 0; k < TL_SUM_TOGETHER; k++)
                sum[k] += tl_vec_load(x + s + k * TL_LANES);
        }
        memcpy(t + l, sum, sizeof sum);
    }
    for (int64_t l = 0; l < n - i; l++)
        t[l] += x[i + l];
    return tl_fold_lanes(t);
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
    return tl_fold_lanes(t);
}

/* ---- the column tree --------------------------------------------------------------------------------------------- */

/* Columns a chunk is summed over at once: four chains of this many floats are 15 KiB of L1, and of the stack. */
enum { TL_COLUMN_TILE = 960 };

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

#define tl_extremes TL_V(tl_extremes)

/* out[o,c] = the maximum, or the minimum, over r of x[o,r,c], length >= 1; NaN wins, and -0 is below +0. Fails only for want of
 * scratch. */
int32_t tl_extremes(tl_context *ctx, const float *x, int64_t outer, int64_t length, int64_t inner, int smallest,
                    float *out);
