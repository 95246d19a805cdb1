/* Short rows, TL_BUNDLE side by side: element k of row r of a bundle stands at k*TL_BUNDLE + r, so a loop over the rows of a bundle
 * is a vector, however short the rows are, and what a row needs of its sum stands in a lane. The sums are those of the row tree
 * (formula/sum_tree.h), level by level: lanes run across rows and change no order. */
#pragma once

#include "cpu/blocks.h"
#include "cpu/sum_tree.h"

enum {
    TL_BUNDLE = 16,      /* rows: a vector of the widest variant */
    TL_BUNDLE_LEAST = 8, /* rows of a last bundle that are worth the time of a whole one */
    TL_BUNDLE_COLS = 64, /* elements of a row: two arrays and the sums' levels are 10 KiB of L1, and of the stack */
};

/* A bundle of rows and one number for each of its rows. */
typedef float tl_bundle[TL_BUNDLE_COLS * TL_BUNDLE] __attribute__((aligned(64)));
typedef float tl_bundle_stat[TL_BUNDLE] __attribute__((aligned(64)));

/* The length of a short row, as a number of which the compiler knows the range. */
static inline int64_t tl_short(int64_t cols)
{
    if (cols < 1 || cols > TL_BUNDLE_COLS) __builtin_unreachable();
    return cols;
}

/* statement for every row r of a bundle. */
#define TL_BUNDLE_ROWS(...)                                                                      \
    do {                                                                                         \
        _Pragma("GCC ivdep") for (int32_t r = 0; r < TL_BUNDLE; r++)                             \
        {                                                                                        \
            __VA_ARGS__;                                                                         \
        }                                                                                        \
    } while (0)

/* statement for every element k of every row r, which stands at i. */
#define TL_BUNDLE_EACH(n_, ...)                                                                  \
    do {                                                                                         \
        const int64_t all_ = (n_);                                                               \
        for (int64_t k = 0; k < all_; k++)                                                       \
            TL_BUNDLE_ROWS(const int64_t i = k * TL_BUNDLE + r; __VA_ARGS__);                    \
    } while (0)

/* sum[r] = the sum over k = 0..n-1 of f, an expression in i, k and r that may store at i, by the row tree: 1 <= n <=
 * TL_BUNDLE_COLS. The lanes that the tree has past the end of a row hold +0 and are left out. */
#define TL_BUNDLE_SUM(sum_, n_, f)                                                               \
    do {                                                                                         \
        _Alignas(64) float level_[TL_BUNDLE_COLS / 2 * TL_BUNDLE];                               \
        const int64_t all_ = (n_);                                                               \
        int64_t half_ = 1;                                                                       \
        while (2 * half_ < all_)                                                                 \
            half_ *= 2;                                                                          \
        for (int64_t at_ = 0; at_ < half_; at_++) {                                              \
            float *const to_ = level_ + at_ * TL_BUNDLE;                                         \
            {                                                                                    \
                const int64_t k = at_;                                                           \
                TL_BUNDLE_ROWS(const int64_t i = k * TL_BUNDLE + r; (void)i; to_[r] = 0.0f + (f)); \
            }                                                                                    \
            if (at_ + half_ < all_) {                                                            \
                const int64_t k = at_ + half_;                                                   \
                TL_BUNDLE_ROWS(const int64_t i = k * TL_BUNDLE + r; (void)i; to_[r] += (f));     \
            }                                                                                    \
        }                                                                                        \
        for (half_ /= 2; half_ > 0; half_ /= 2)                                                  \
            for (int64_t at_ = 0; at_ < half_ * TL_BUNDLE; at_ += TL_BUNDLE)                     \
                TL_BUNDLE_ROWS(level_[at_ + r] += level_[at_ + half_ * TL_BUNDLE + r]);          \
        TL_BUNDLE_ROWS((sum_)[r] = level_[r]);                                                   \
    } while (0)

/* The first `rows` <= TL_BUNDLE rows of x as a bundle; the last of them stands for those that are missing. */
static inline void tl_read_bundle(const float *x, int64_t rows, int64_t cols, float *t)
{
    if (rows == TL_BUNDLE && cols == 1) {
        memcpy(t, x, TL_BUNDLE * sizeof(float));
        return;
    }
    if (rows == TL_BUNDLE && cols == 2) {
        for (int32_t r = 0; r < TL_BUNDLE; r++)
            t[r] = x[2 * r], t[TL_BUNDLE + r] = x[2 * r + 1];
        return;
    }
    if (rows < TL_BUNDLE || cols < 4) {
        for (int64_t r = 0; r < TL_BUNDLE; r++)
            for (int64_t k = 0; k < cols; k++)
                t[k * TL_BUNDLE + r] = x[(r < rows ? r : rows - 1) * cols + k];
        return;
    }
    tl_transpose(x, cols, t, TL_BUNDLE, TL_BUNDLE, cols);
}

/* The first `rows` rows of a bundle, to out. */
static inline void tl_write_bundle(float *out, int64_t rows, int64_t cols, const float *t)
{
    if (cols == 1) {
        memcpy(out, t, (size_t)rows * sizeof(float));
        return;
    }
    if (rows < TL_BUNDLE || cols < 4) {
        for (int64_t r = 0; r < rows; r++)
            for (int64_t k = 0; k < cols; k++)
                out[r * cols + k] = t[k * TL_BUNDLE + r];
        return;
    }
    tl_transpose(t, TL_BUNDLE, out, cols, cols, TL_BUNDLE);
}
