/* Who attends to whom: sizes, masks and limits of attention on the CPU. */
#pragma once

#include "core/kernel.h"
#include "cpu/vector.h"
#include "formula/attention.h"
#include "formula/integer.h"

enum { NO_MASK = 0, FILL = 1, HARD = 2, CAUSAL = 3, ADDITIVE = 3 }; /* the last of grouped attention */

/* A member of the batch is a head of keys with the queries of its group of heads, one head's after the other's. */
typedef struct geometry {
    int64_t batch, rows, keys, d, v; /* members, queries of one, keys of one, elements of a key, of a value */
    int64_t kv_heads, group, queries;
    int64_t before, after, offset; /* query q of a head attends to the keys q + offset - before .. q + offset + after */
    int64_t mask_batch, mask_heads, mask_queries, mode;
    float scale;
    const float *mask;
    int masked;   /* whether anything may be blocked */
    int limited;  /* whether the limits may */
    float blocks; /* what blocks in the mask */
} geometry;

/* How far apart samples, heads and rows of an array lie, in elements. */
typedef struct layout {
    int64_t batch, head, row;
} layout;

/* Those of (batch, heads, rows, width), or of (batch, rows, heads, width). */
static inline layout contiguous_layout(int64_t heads, int64_t rows, int64_t width, int64_t by_rows)
{
    const layout l = {heads * rows * width, by_rows ? width : rows * width, by_rows ? heads * width : width};
    return l;
}

/* The place of row i of a member among the queries of its head. */
TL_INLINE int64_t query_of(const geometry *g, int64_t i) { return g->group == 1 ? i : i % g->queries; }

/* Where row i of member b begins in an array of queries, or key j in one of keys. */
TL_INLINE int64_t query_place(const geometry *g, const layout *l, int64_t b, int64_t i)
{
    const int64_t head = b % g->kv_heads * g->group + (g->group == 1 ? 0 : i / g->queries);
    return b / g->kv_heads * l->batch + head * l->head + query_of(g, i) * l->row;
}
TL_INLINE int64_t key_place(const geometry *g, const layout *l, int64_t b, int64_t j)
{
    return b / g->kv_heads * l->batch + b % g->kv_heads * l->head + j * l->row;
}

/* The keys that row i may attend to, relative to key j0: from first to end - 1, both within 0 .. keys. */
typedef struct span {
    int64_t first, end;
} span;

TL_INLINE span open_keys(const geometry *g, int64_t i, int64_t j0, int64_t keys)
{
    const int64_t at = query_of(g, i) + g->offset - j0, first = at - g->before, end = at + g->after + 1;
    const span open = {first < 0 ? 0 : tl_imin(first, keys), end < 0 ? 0 : tl_imin(end, keys)};
    return open;
}

/* Whether the limits let rows i0..i1-1 attend to all keys j0..j0+keys-1. */
static inline int all_open(const geometry *g, int64_t i0, int64_t i1, int64_t j0, int64_t keys)
{
    if (!g->limited) return 1;
    int64_t low = query_of(g, i0), high = query_of(g, i1 - 1);
    if (high - low != i1 - 1 - i0) low = 0, high = g->queries - 1; /* of several heads */
    return high + g->offset - g->before <= j0 && low + g->offset + g->after + 1 >= j0 + keys;
}

/* The mask of row i of member b from key j0 on, NULL without one. */
TL_INLINE const float *mask_row(const geometry *g, int64_t b, int64_t i, int64_t j0)
{
    if (!g->mask) return NULL;
    const int64_t head = b % g->kv_heads * g->group + (g->group == 1 ? 0 : i / g->queries);
    const int64_t outer = g->mask_batch > 1 ? b / g->kv_heads : 0, inner = g->mask_heads > 1 ? head : 0;
    const int64_t query = g->mask_queries > 1 ? query_of(g, i) : 0;
    return g->mask + ((outer * g->mask_heads + inner) * g->mask_queries + query) * g->keys + j0;
}

/* Whether every pair of queries i0..i1-1 and keys j0..j1-1 is blocked. */
static inline int all_blocked(const geometry *g, int64_t b, int64_t i0, int64_t i1, int64_t j0, int64_t j1)
{
    if (!g->masked) return 0;
    for (int64_t i = i0; i < i1; i++) {
        const span open = open_keys(g, i, j0, j1 - j0);
        const float *row = mask_row(g, b, i, j0);
        int32_t any = !row && open.first < open.end;
        for (int64_t j = open.first; row && j < open.end; j++)
            any |= !(row[j] == g->blocks);
        if (any) return 0;
    }
    return 1;
}

/* Turns the products of one query with a tile of keys, of which `keys` exist, into scores in place; -inf where blocked. `mask` is the
 * row's from the tile's first key on. */
TL_INLINE void row_scores(float *restrict s, int64_t tile, const geometry *g, const float *mask, int64_t keys,
                          span open)
{
    if (g->mode == ADDITIVE) {
        for (int64_t j = 0; j < keys; j++)
            s[j] = tl_attention_biased(s[j], g->scale, mask[j]);
    } else {
        for (int64_t j = 0; j < tile; j++)
            s[j] = tl_attention_score(s[j], g->scale);
    }
    if (g->mode == FILL || g->mode == HARD) {
        const float blocked = g->mode == FILL ? TL_FILL_SCORE : -TL_INF;
        for (int64_t j = 0; j < keys; j++)
            s[j] = mask[j] == 0.0f ? blocked : s[j];
    }
    for (int64_t j = 0; j < open.first; j++)
        s[j] = -TL_INF;
    for (int64_t j = open.end; j < tile; j++)
        s[j] = -TL_INF;
}

/* Biases of row i of member b with keys from j0 on: -inf blocks, another number is added to the score, or takes its place in the
 * mode FILL. */
static inline void bias_row(const geometry *g, int64_t b, int64_t i, int64_t j0, int64_t keys, float *restrict to)
{
    const span open = open_keys(g, i, j0, keys);
    const float *mask = mask_row(g, b, i, j0), blocked = g->mode == FILL ? TL_FILL_SCORE : -TL_INF;
    const int32_t first = (int32_t)open.first, end = (int32_t)open.end, additive = g->mode == ADDITIVE;
    for (int32_t j = 0; j < (int32_t)keys; j++) {
        const float bias = !mask ? 0.0f : additive ? mask[j] : mask[j] == 0.0f ? blocked : 0.0f;
        to[j] = j < first || j >= end ? -TL_INF : bias;
    }
}

/* Whether `count` numbers hold no infinity and no NaN. */
TL_INLINE int all_finite(const float *x, int64_t count)
{
    int32_t odd = 0;
    for (int64_t i = 0; i < count; i++)
        odd |= !(fabsf(x[i]) <= FLT_MAX);
    return !odd;
}

/* The geometry with what follows from its mode and limits. */
static inline geometry with_limits(geometry g)
{
    g.limited = g.before < UINT32_MAX || g.after < UINT32_MAX;
    g.masked = g.mode != NO_MASK || g.limited;
    g.blocks = g.mode == ADDITIVE ? -TL_INF : 0.0f;
    return g;
}

static inline geometry grouped_geometry(int64_t batch, int64_t heads, int64_t queries, int64_t d, int64_t kv_heads,
                                        int64_t keys, int64_t width, int64_t mask_mode, int64_t mask_batch,
                                        int64_t mask_heads, int64_t mask_queries, int64_t before, int64_t after,
                                        int64_t offset, float scale, const float *mask)
{
    static const int64_t modes[] = {NO_MASK, HARD, ADDITIVE};
    const int64_t group = heads / kv_heads, unlimited = INT64_MAX / 4;
    geometry g = {.batch = batch * kv_heads,
                  .rows = group * queries,
                  .keys = keys,
                  .d = d,
                  .v = width,
                  .kv_heads = kv_heads,
                  .group = group,
                  .queries = queries,
                  .before = before < UINT32_MAX ? before : unlimited,
                  .after = after < UINT32_MAX ? after : unlimited,
                  .offset = offset,
                  .mask_batch = mask_batch,
                  .mask_heads = mask_heads,
                  .mask_queries = mask_queries,
                  .mode = modes[mask_mode],
                  .scale = scale,
                  .mask = mask_mode ? mask : NULL};
    return with_limits(g);
}

/* The geometry of flash_attention: one head, as many queries as keys. */
static inline geometry square_geometry(int64_t batch, int64_t n, int64_t d, int64_t mode, float scale,
                                       const float *mask)
{
    const int64_t after = mode == CAUSAL ? 0 : UINT32_MAX;
    geometry g = grouped_geometry(batch, 1, n, d, 1, n, d, 0, batch, 1, n, UINT32_MAX, after, 0, scale, NULL);
    g.mode = mode == CAUSAL ? NO_MASK : mode;
    g.mask = g.mode == NO_MASK ? NULL : mask;
    return with_limits(g);
}

#define tl_attention_few_serves TL_V(tl_attention_few_serves)
#define tl_attention_few TL_V(tl_attention_few)

/* Attention of few queries to many keys (attention/few.c), and whether it is that. */
int tl_attention_few_serves(const geometry *of);
int32_t tl_attention_few(tl_context *ctx, const geometry *of, const float *Q, const float *K, const float *V,
                         float *out);
