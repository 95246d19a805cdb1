/* The first elements of a long row by the order of formula/order.h: candidates are gathered from the row, and whenever there is no
 * room for more the first k of them are kept, which takes time in proportion to their number and no branch for each. */
#pragma once

#include <stdint.h>

#include "cpu/stream.h"
#include "formula/integer.h"

enum { TL_SORT_FEW = 64 /* that are compared all with all, while a sort of digits would have begun */ };

/* An order as a signed number, which every variant compares by one instruction; and back. */
static inline int32_t tl_signed_order(uint32_t order) { return (int32_t)(order ^ UINT32_C(0x80000000)); }
static inline uint32_t tl_plain_order(int32_t order) { return (uint32_t)order ^ UINT32_C(0x80000000); }

/* The candidates of a row in the order of their places. */
typedef struct {
    int32_t *order;
    uint32_t *place;
    int64_t count;
} tl_candidates;

/* How many orders are above `least`; there are whole lines of them. */
static inline int64_t tl_count_above(const int32_t *order, int64_t count, int32_t least)
{
    int32_t lane[TL_LINE] = {0};
    int64_t sum = 0;
    for (int64_t i = 0; i < count; i += TL_LINE)
        for (int32_t l = 0; l < TL_LINE; l++)
            lane[l] += order[i + l] > least;
    for (int32_t l = 0; l < TL_LINE; l++)
        sum += lane[l];
    return sum;
}

/* Whether one of a line is that, or equal. */
static inline int32_t tl_any_from(const int32_t *order, int32_t least)
{
    int32_t any = 0;
    for (int32_t l = 0; l < TL_LINE; l++)
        any |= order[l] >= least;
    return any;
}

/* Adds those of n orders, whole lines of them, with places from `first` on, that are above `least`. */
static inline void tl_append_above(tl_candidates *c, const int32_t *order, int64_t n, int64_t first, int32_t least)
{
    int64_t count = c->count;
    for (int64_t i = 0; i < n; i += TL_LINE) {
        if (!tl_any_from(order + i, least)) continue;
        for (int32_t l = 0; l < TL_LINE; l++) {
            c->order[count] = order[i + l];
            c->place[count] = (uint32_t)(first + i + l);
            count += order[i + l] > least;
        }
    }
    c->count = count;
}

/* Keeps the first k of more candidates. Their least order is found from the first bit on: a bit is set where at least k orders have
 * all that are set by then. It ends as soon as there are exactly k. Elements behind are among the first k of all only if they are
 * above the number that is returned. */
static inline int32_t tl_keep_first(tl_candidates *c, int64_t k)
{
    uint32_t least = 0;
    int64_t kept = c->count, ties = 0; /* that are kept */
    for (int64_t i = c->count; i % TL_LINE != 0; i++)
        c->order[i] = INT32_MIN;
    for (uint32_t bit = UINT32_C(1) << 31; bit > 0 && kept > k; bit >>= 1) {
        const int64_t above = tl_count_above(c->order, c->count, tl_signed_order((least | bit) - 1));
        if (above < k) continue;
        least |= bit;
        kept = above;
    }
    const int exact = kept > k; /* `least` is the order of the last of the first k, which others have as well */
    const int32_t last = tl_signed_order(exact ? least : least - 1);
    if (exact) ties = k - tl_count_above(c->order, c->count, last);
    int64_t to = 0;
    for (int64_t i = 0; i < c->count; i += TL_LINE) {
        if (!tl_any_from(c->order + i, last)) continue;
        for (int64_t j = i, end = tl_imin(i + TL_LINE, c->count); j < end; j++) {
            const int32_t order = c->order[j], tie = (order == last) & (ties > 0);
            c->order[to] = order;
            c->place[to] = c->place[j];
            ties -= tie;
            to += (order > last) | tie;
        }
    }
    c->count = to;
    return last;
}

/* Where TL_SORT_FEW candidates at most come in the order of all, which is written to `out`: each is compared with those before it, which come
 * first where they are equal. */
static inline void tl_sort_few(const tl_candidates *c, uint32_t *out, int64_t inner)
{
    const int32_t *const orders = c->order;
    int32_t before[TL_SORT_FEW];
    for (int64_t i = 0; i < c->count; i++) {
        const int32_t order = orders[i];
        int32_t first = 0;
        for (int64_t j = 0; j < i; j++) {
            const int32_t comes = orders[j] >= order;
            first += comes;
            before[j] += 1 - comes;
        }
        before[i] = first;
    }
    for (int64_t i = 0; i < c->count; i++)
        out[before[i] * inner] = c->place[i];
}

/* The same for any number: digit by digit from the last, the largest first, equal ones in the order of their places. `other` has room
 * for as many. */
static inline void tl_sort_many(tl_candidates *c, tl_candidates *other, uint32_t *out, int64_t inner)
{
    enum { DIGIT = 8, DIGITS = 32 / DIGIT, VALUES = 1 << DIGIT };
    int64_t at[DIGITS][VALUES] = {{0}};
    for (int64_t i = 0; i < c->count; i++)
        for (int32_t d = 0; d < DIGITS; d++)
            at[d][VALUES - 1 - (tl_plain_order(c->order[i]) >> DIGIT * d) % VALUES]++;
    for (int32_t d = 0; d < DIGITS; d++) {
        int64_t next = 0, most = 0;
        for (int32_t v = 0; v < VALUES; v++) {
            const int64_t count = at[d][v];
            at[d][v] = next;
            next += count;
            most = tl_imax(most, count);
        }
        if (most == c->count) continue; /* all have the same digit */
        for (int64_t i = 0; i < c->count; i++) {
            const uint32_t order = tl_plain_order(c->order[i]);
            const int64_t to = at[d][VALUES - 1 - (order >> DIGIT * d) % VALUES]++;
            other->order[to] = c->order[i];
            other->place[to] = c->place[i];
        }
        const tl_candidates sorted = {other->order, other->place, c->count};
        *other = *c;
        *c = sorted;
    }
    for (int64_t i = 0; i < c->count; i++)
        out[i * inner] = c->place[i];
}
