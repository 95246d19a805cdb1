/* Which engine computes attention on CUDA: functions of a shape and of what the device can. Plain C. An engine's name
 * is its file's. */
#pragma once

#include <math.h>
#include <stdint.h>

enum tl_attention_engine {
    TL_ATTENTION_CHAIN,
    TL_ATTENTION_WGMMA,
    TL_ATTENTION_PRODUCTS,
    TL_ATTENTION_SIMT,
};

static inline const char *tl_attention_reason(int algorithm)
{
    static const char *const reasons[] = {
        "chain: float64 products of warps, the mode reproducible; in fast what is left",
        "wgmma: Hopper's warp group products, nothing of size n x n in memory, self-attention of 65 queries or more",
        "products: matrix products with scores in memory between them, rows of more than 128 elements, and others where float64 is slow",
        "simt: float32 units, keys in parts that are several blocks' work, few queries",
    };
    return reasons[algorithm];
}

struct tl_attention_shape {
    int64_t members, rows, keys; /* heads of keys of all samples; the queries of all heads that share one; its keys */
    int64_t d, v;                /* elements of a key, of a value */
    double open;                 /* pairs of a row and a key that the window leaves, of all members */
    float scale;
    int self; /* as many queries as keys, values as long as keys, no limit but a causal one, no mask but one that blocks pairs */
    int wide; /* all rows begin with whole 16 bytes and are made of them */
};

struct tl_attention_device {
    int reproducible, wgmma, chains_are_fast;
};

/* Query q of a head, one of `group` that share keys, attends to the keys q + offset - before .. q + offset + after. */
struct tl_attention_window {
    int64_t group, queries, keys, before, after, offset;
};

/* The sum of x, x + 1, ... x + n - 1, each cut to 0 .. most. */
static inline double tl_attention_sum_of_cut(int64_t x, int64_t n, int64_t most)
{
    int64_t from = x < 0 ? -x : 0, to = most - x; /* between them nothing is cut */
    from = from < n ? from : n;
    to = to > from ? to : from;
    to = to < n ? to : n;
    return (double)(to - from) * ((double)(x + from) + (double)(x + to - 1)) / 2.0 + (double)(n - to) * (double)most;
}

/* `members` heads of keys with d elements, and v of their values; `plain`: without a mask, or with a pair of its own for each of theirs,
 * which it blocks. The pairs that a window leaves open are, of each query, the keys up to its last one without those before its first. */
static inline struct tl_attention_shape tl_attention_shape_of(struct tl_attention_window on, int64_t members, int64_t d,
                                                              int64_t v, int limited, int plain, float scale, int wide)
{
    const double pairs = tl_attention_sum_of_cut(on.offset + on.after + 1, on.queries, on.keys) -
                         tl_attention_sum_of_cut(on.offset - on.before, on.queries, on.keys);
    const int causal = on.before >= on.keys && on.after == 0 && on.offset == 0;
    const double open = (double)members * (double)on.group * pairs;
    const int self = on.queries == on.keys && d == v && plain && (!limited || causal);
    const struct tl_attention_shape shape = {members, on.group * on.queries, on.keys, d, v, open, scale,
                                             self,    wide && d % 4 == 0};
    return shape;
}

/* Seconds of a launch that waits for the one before. */
#define TL_ATTENTION_LAUNCH 4e-6
/* Elements of a row from which on a split sum is within the bound of one of float32, and up to which registers hold a row's sums. */
#define TL_ATTENTION_MIN_SPLIT 64
#define TL_ATTENTION_MAX_SPLIT 192
/* Keys from which on the same holds of the sums over keys. */
#define TL_ATTENTION_MIN_KEYS 65
/* Elements of rows that chains have in registers, in one block; longer ones are wide. */
#define TL_ATTENTION_MAX_CHAIN 128
/* Rows of a block of simt, which reads keys once for them; of wide rows two such blocks are faster than others. */
#define TL_ATTENTION_SIMT_ROWS 16
/* Elements of a row of Q, which lies in shared memory. */
#define TL_ATTENTION_SIMT_WIDTH 1024
/* Keys of a part. */
#define TL_ATTENTION_SIMT_PART 256
/* Rows, and keys, up to which tiles of products are not full. */
#define TL_ATTENTION_FULL_TILE 32
/* Scores that are in memory at once: 256 MiB. */
#define TL_ATTENTION_PAIRS ((int64_t)1 << 26)

static inline int64_t tl_attention_blocks(int64_t n, int64_t of) { return n / of + (n % of != 0); }

static inline double tl_attention_up(int64_t n)
{
    return (double)(tl_attention_blocks(n, TL_ATTENTION_FULL_TILE) * TL_ATTENTION_FULL_TILE);
}

static inline int tl_attention_is_wide_row(const struct tl_attention_shape *x)
{
    return x->d > TL_ATTENTION_MAX_CHAIN || x->v > TL_ATTENTION_MAX_CHAIN;
}

/* Whether warp group products take the shape. Neither the batch nor the number of multiprocessors has a part in it: a member has the
 * same bits in every batch. */
static inline int tl_attention_takes_wgmma(const struct tl_attention_shape *x, const struct tl_attention_device *on)
{
    return on->wgmma && x->members > 0 && x->self && x->wide && x->d >= TL_ATTENTION_MIN_SPLIT &&
           x->d <= TL_ATTENTION_MAX_SPLIT && x->keys >= TL_ATTENTION_MIN_KEYS && x->keys < (int64_t)1 << 30 &&
           x->scale > 0.0f && x->scale <= 0x1p60f;
}

static inline int tl_attention_takes_simt(const struct tl_attention_shape *x)
{
    const int64_t parts = tl_attention_blocks(x->keys, TL_ATTENTION_SIMT_PART);
    const int wide = tl_attention_is_wide_row(x);
    return x->d <= TL_ATTENTION_SIMT_WIDTH && x->members * (parts > 0 ? parts : 1) < INT32_MAX &&
           x->members * x->rows < INT32_MAX && x->rows <= (int64_t)1 << 16 &&
           (x->rows <= TL_ATTENTION_SIMT_ROWS ||
            (wide && (x->rows <= 2 * TL_ATTENTION_SIMT_ROWS || x->keys <= TL_ATTENTION_FULL_TILE)));
}

/* Seconds of chains, by rates of an H200. Where rows are wide tiles of few rows are not full, and each chunk of a result makes all scores
 * again. Devices whose float64 is slow have less than a sixteenth of the rate. */
static inline double tl_attention_chain_seconds(const struct tl_attention_shape *x,
                                                const struct tl_attention_device *on, int backward)
{
    const double d = (double)x->d, v = (double)x->v, flops = 2.0 * (on->chains_are_fast ? 1.0 : 16.0) * x->open;
    const double d_chunks = (double)tl_attention_blocks(x->d, 64), v_chunks = (double)tl_attention_blocks(x->v, 64);
    const double full = tl_attention_up(x->rows) / (double)(x->rows > 0 ? x->rows : 1);
    if (!tl_attention_is_wide_row(x)) return flops * (backward ? (4.0 * d + 3.0 * v) / 1.6e13 : (d + v) / 3.1e13);
    if (!backward) return flops * full * (double)tl_attention_blocks(x->v, 128) * (d + 128.0) / 2.5e13;
    return flops * full * (2.0 * d_chunks * (d + v + 64.0) + v_chunks * (d + 64.0)) / 1.2e13;
}

/* Seconds of products, whose tiles are multiples of 32 and which copy rows that are no whole 16 bytes element by element, and of
 * scores, which go through memory. Few rows leave keys, values and their gradients. */
static inline double tl_attention_products_seconds(const struct tl_attention_shape *x, int backward)
{
    const int aligned = x->keys % 4 == 0 && x->d % 4 == 0 && x->v % 4 == 0;
    const double d = tl_attention_up(x->d), v = tl_attention_up(x->v);
    const double terms = backward ? 3.0 * d + 2.0 * v : d + v, bytes = backward ? 40.0 : 16.0;
    const double groups = ceil((double)x->members * (double)x->rows * (double)x->keys / (double)TL_ATTENTION_PAIRS);
    const double launches = (backward ? 7.0 : 3.0) * groups * TL_ATTENTION_LAUNCH;
    if (backward && x->rows <= TL_ATTENTION_FULL_TILE)
        return launches +
               (double)(x->members * x->keys) * (4.0 * (double)(3 * x->d + 2 * x->v) + bytes * (double)x->rows) / 2e12;
    return launches + (double)x->members * tl_attention_up(x->rows) * tl_attention_up(x->keys) *
                          (2.0 * terms / (aligned ? 6e13 : 3.5e13) + bytes / 3.5e12);
}

/* Products must be clearly faster. Where chains are fast, those of wide rows alone are. */
static inline int tl_attention_prefers_products(const struct tl_attention_shape *x,
                                                const struct tl_attention_device *on, int backward)
{
    const double launches = (backward ? 5.0 : 1.0) * TL_ATTENTION_LAUNCH;
    if (x->members == 0 || x->rows == 0 || x->keys == 0 || x->d == 0 || x->v == 0 || x->keys > TL_ATTENTION_PAIRS)
        return 0;
    if (on->chains_are_fast && !tl_attention_is_wide_row(x)) return 0;
    return 1.25 * tl_attention_products_seconds(x, backward) < tl_attention_chain_seconds(x, on, backward) + launches;
}

static inline enum tl_attention_engine tl_attention_forward_engine(const struct tl_attention_shape *x,
                                                                   const struct tl_attention_device *on)
{
    if (on->reproducible) return TL_ATTENTION_CHAIN;
    if (tl_attention_takes_wgmma(x, on)) return TL_ATTENTION_WGMMA;
    if (tl_attention_takes_simt(x)) return TL_ATTENTION_SIMT;
    return tl_attention_prefers_products(x, on, 0) ? TL_ATTENTION_PRODUCTS : TL_ATTENTION_CHAIN;
}

static inline enum tl_attention_engine tl_attention_backward_engine(const struct tl_attention_shape *x,
                                                                    const struct tl_attention_device *on)
{
    if (on->reproducible) return TL_ATTENTION_CHAIN;
    if (tl_attention_takes_wgmma(x, on)) return TL_ATTENTION_WGMMA;
    return tl_attention_prefers_products(x, on, 1) ? TL_ATTENTION_PRODUCTS : TL_ATTENTION_CHAIN;
}
