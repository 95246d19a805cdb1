/* Which terms the product of a convolution goes through (product.c), and in what blocks.
 *
 * A tap outside the source multiplies a 0. Taps that no position needs are left out of the gather, axis by axis; and
 * where the lanes are rows, a line of positions leaves out those that it does not need itself, by a list. Terms are
 * numbered as if none were left out, and their numbers cut the chains into blocks, so that the sums have the same bits;
 * but for an infinite weight or a NaN, with which product.c leaves out nothing. */
#pragma once

#include "cpu/conv/planes.h"

enum {
    RANGES = 16,      /* of live taps on an axis, at most */
    LISTED = 1 << 17, /* terms in all lists, at most */
};

/* Where a position finds the term, from where it is itself; the number of its weight among the packed ones of a row. */
typedef struct {
    int32_t source, weight;
} conv_term;

/* Terms first .. first + count - 1 that are left, of channels channel .. channel + channels - 1. start, close: the
 * first and last block of a segment; later: of one after the first; finish: the last of all. */
typedef struct {
    int64_t first, count, channel, channels;
    int start, close, later, finish;
} conv_block;

/* number[t]: the number among `full` taps of tap t of those that tl_conv_trim left. */
static void number_taps(const tl_conv_gather *g, const tl_conv_gather *full, const int64_t *low, int32_t *number)
{
    for (int64_t t = 0; t < g->taps_size; t++) {
        int64_t sum = 0, stride = 1, rest = t;
        for (int32_t d = g->rank - 1; d >= 0; d--) {
            sum += (rest % g->taps[d] + low[d]) * stride;
            rest /= g->taps[d];
            stride *= full->taps[d];
        }
        number[t] = (int32_t)sum;
    }
}

/* How many of the terms that are left have numbers below n; a channel has `full` numbers. */
static int64_t terms_below(int64_t n, int64_t full, const int32_t *number, int64_t taps)
{
    int64_t a = 0, b = taps;
    while (a < b) {
        const int64_t middle = (a + b) / 2;
        if (number[middle] < n % full)
            a = middle + 1;
        else
            b = middle;
    }
    return n / full * taps + a;
}

/* Cuts the terms at every multiple of `length`; blocks without any are none. Returns how many there are. */
static int64_t cut_blocks(int64_t channels, int64_t full, const int32_t *number, int64_t taps, int64_t length,
                          int64_t segment, conv_block *blocks)
{
    int64_t count = 0, before = -1;
    for (int64_t n = 0; n < channels * full; n += length) {
        const int64_t first = terms_below(n, full, number, taps);
        const int64_t end = terms_below(tl_imin(n + length, channels * full), full, number, taps), of = n / segment;
        if (first == end) continue;
        conv_block *b = &blocks[count++];
        *b = (conv_block){.first = first, .count = end - first, .channel = first / taps, .start = of != before};
        b->channels = (end - 1) / taps - b->channel + 1;
        b->later = count > 1 && (b->start || b[-1].later);
        if (count > 1 && b->start) b[-1].close = 1;
        before = of;
    }
    blocks[count - 1].close = blocks[count - 1].finish = 1;
    return count;
}

/* Lines of the same live taps on all axes but x have the same list. A position's range of axis d is id[d][position], 0
 * without ids; the list of a line is the sum of its ranges' numbers times `radix`. */
typedef struct {
    int64_t lists, radix[TL_CONV_RANK], ranges[TL_CONV_RANK];
    int64_t low[TL_CONV_RANK][RANGES], high[TL_CONV_RANK][RANGES];
    int32_t *id[TL_CONV_RANK];
    double share; /* of the terms that a line has, on average */
} conv_lists;

/* The positions of all axes but x. */
static int64_t count_ids(const tl_conv_gather *g, int32_t x)
{
    int64_t ids = 0;
    for (int32_t d = 0; d < g->rank; d++)
        ids += d == x ? 0 : g->count[d];
    return ids;
}

/* Finds the ranges; one list of all terms where they are too many, or `all`. */
static conv_lists find_lists(const conv_view *v, int32_t x, int all, int32_t *ids)
{
    const tl_conv_gather *g = &v->gather;
    conv_lists s = {.lists = 1, .share = 1.0};
    for (int32_t d = g->rank - 1; d >= 0; d--) {
        if (d == x) continue;
        int64_t ranges = 0, live = 0;
        s.id[d] = ids;
        s.radix[d] = s.lists;
        for (int64_t j = 0; j < g->count[d] && !all; j++) {
            int64_t low, high, r = 0;
            tl_conv_live(g, d, j, &low, &high);
            while (r < ranges && (s.low[d][r] != low || s.high[d][r] != high))
                r++;
            all = r == RANGES;
            if (all) break;
            s.low[d][r] = low, s.high[d][r] = high;
            ranges = tl_imax(ranges, r + 1);
            live += high - low;
            *ids++ = (int32_t)r;
        }
        s.ranges[d] = ranges;
        s.lists *= ranges;
        s.share *= (double)live / (double)(g->count[d] * g->taps[d]);
        all |= s.lists * v->channels * g->taps_size > LISTED;
    }
    return all ? (conv_lists){.lists = 1, .share = 1.0} : s;
}

/* Fills the lists, and where each block of each list begins: starts[list*(blocks + 1) + block]; `live` has room for
 * three numbers of each tap. */
static void fill_lists(const conv_view *v, const planes *p, const conv_lists *s, const conv_block *blocks,
                       int64_t block_count, int64_t kernel_size, int32_t *live, conv_term *terms, int32_t *starts)
{
    const tl_conv_gather *g = &v->gather;
    const int64_t taps = g->taps_size;
    int32_t end = 0;
    for (int64_t list = 0; list < s->lists; list++, starts += block_count + 1) {
        int64_t count = 0, i = 0;
        for (int64_t t = 0; t < taps; t++) {
            int64_t rest = t;
            int here = 1;
            for (int32_t d = g->rank - 1; d >= 0; d--) {
                const int64_t at = rest % g->taps[d];
                rest /= g->taps[d];
                if (!s->id[d]) continue;
                const int64_t r = list / s->radix[d] % s->ranges[d];
                here &= s->low[d][r] <= at && at < s->high[d][r];
            }
            if (!here) continue;
            live[3 * count] = (int32_t)t;
            live[3 * count + 1] = (int32_t)tap_offset(v, p, t);
            live[3 * count++ + 2] = (int32_t)tl_conv_kernel_index(g, t);
        }
        starts[0] = end;
        for (int64_t c = 0; c < v->channels; c++)
            for (int64_t m = 0; m < count; m++) {
                while (c * taps + live[3 * m] >= blocks[i].first + blocks[i].count)
                    starts[++i] = end;
                terms[end++] = (conv_term){(int32_t)((c - blocks[i].channel) * p->channel) + live[3 * m + 1],
                                           (int32_t)(c * kernel_size) + live[3 * m + 2]};
            }
        while (i < block_count)
            starts[++i] = end;
    }
}

/* The list of the line with these coordinates; x's is of no matter. */
static int64_t list_of(const conv_lists *s, int32_t rank, const int64_t *at)
{
    int64_t list = 0;
    for (int32_t d = 0; d < rank; d++)
        if (s->id[d]) list += s->id[d][at[d]] * s->radix[d];
    return list;
}
