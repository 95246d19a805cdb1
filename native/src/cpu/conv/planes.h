/* The part of the source that a tile of positions reads, copied so that every tap finds neighbouring positions side by side: zeros
 * stand where the source has ended, and with steps above 1 the cells are sorted by their residues. A term of the product is then
 * a constant offset from where the tile begins, and its value at the next position is the next element. Each cell is copied
 * once, where a gathered matrix holds it once for each tap.
 *
 * Two axes, y and x, are copied as lines of `pitch` cells. A tap along the other axes, the outer ones, has planes of its own.
 *     channel, tap of the outer axes, residue of y, residue of x, line, cell
 * Where a tile is shorter than the way from tap to tap, as with a large dilation, each tap has cells of its own instead of
 * each residue */
#pragma once

#include "cpu/conv/view.h"
#include "cpu/conv/lanes.h"
#include "formula/integer.h"

enum { SHORT = 7 }; /* positions of a line that leave lanes or panels half empty */

/* Position j and tap t of an axis meet the source at first + j*step + t*tap_step, first being the least of tap 0 and the last. */
typedef struct {
    int64_t count, taps, step, tap_step, first, low, source, stride;
    int64_t cells;            /* from a position to the next; above 1 `step` is a fraction of their distance */
    int64_t taps_after;       /* taps of all axes after this one */
    int64_t to_step, to_base; /* of positions in the target, in elements */
    int64_t phases, reach; /* kinds of taps with cells of their own; cells that they reach beyond those of the first */
    int apart;             /* each tap is a kind: a tile is shorter than from one tap to the next */
} plane_axis;

typedef struct {
    plane_axis x, y;
    int32_t outer, outer_axis[TL_CONV_RANK]; /* the axes beside x and y */
    int64_t outer_taps;                      /* products over them */
    int64_t tile_x, tile_y;                  /* the largest tile */
    int64_t pitch, slot, channel;            /* elements of a line, of the lines of a residue, of a channel */
} planes;

static plane_axis open_axis(const conv_view *v, int32_t d)
{
    const tl_conv_gather *g = &v->gather;
    if (d < 0) return (plane_axis){.count = 1, .taps = 1, .step = 1, .source = 1, .cells = 1, .taps_after = 1};
    plane_axis a = {.count = g->count[d], .taps = g->taps[d], .step = g->step[d], .tap_step = g->tap_step[d]};
    a.cells = 1;
    a.low = a.tap_step < 0 ? (a.taps - 1) * a.tap_step : 0;
    a.first = g->base[d] + a.low;
    a.source = g->source[d];
    a.stride = v->source_stride[d];
    a.to_step = g->to_step[d] * v->target_stride[d];
    a.to_base = g->to_base[d] * v->target_stride[d];
    a.taps_after = 1;
    for (int32_t i = d + 1; i < g->rank; i++)
        a.taps_after *= g->taps[i];
    return a;
}

/* The cells of a residue, or of a tap, that a tile of `length` positions reads. */
INLINE int64_t cells_of(const plane_axis *a, int64_t length) { return (length - 1) * a->cells + 1 + a->reach; }

/* What taps need of an axis for tiles of `length` positions: the cells of each residue, once, or of each tap. */
static void reach_taps(plane_axis *a, int64_t length)
{
    const int64_t apart = a->tap_step < 0 ? -a->tap_step : a->tap_step;
    a->phases = tl_imin(a->taps, a->step / tl_gcd(a->step, apart));
    a->reach = (a->taps - 1) * apart / a->step;
    a->apart |= a->taps * length < a->phases * cells_of(a, length);
    if (a->apart) a->phases = a->taps, a->reach = 0;
}

/* How far the cells of a kind of taps are from those of the first, in the source. */
INLINE int64_t shift_of(const plane_axis *a, int64_t kind)
{
    return a->apart ? kind * a->tap_step - a->low : kind ? kind * a->tap_step % a->step : 0;
}

/* The cells by which tap t is beyond the first of its kind. */
INLINE int64_t advance_of(const plane_axis *a, int64_t t)
{
    return a->apart ? 0 : (t * a->tap_step - a->low) / a->step;
}

/* The planes of tiles of at most tile_y lines of tile_x positions. */
static void shape_planes(planes *p, int64_t tile_y, int64_t tile_x)
{
    reach_taps(&p->x, tile_x);
    reach_taps(&p->y, tile_y);
    p->tile_x = tile_x, p->tile_y = tile_y;
    p->pitch = cells_of(&p->x, tile_x);
    p->slot = tl_ceil_div(cells_of(&p->y, tile_y) * p->pitch, LANES) * LANES + LANES; /* the last vector may run over */
    const int64_t lines = p->outer_taps * p->y.phases * p->x.phases * p->slot / LANES;
    p->channel = (lines | 1) * LANES; /* an odd number of cache lines, which do not compete for one set */
}

/* Planes of the axes x and y, either -1 where there is none; the others are the outer ones, in order. */
static planes open_planes(const conv_view *v, int32_t x, int32_t y)
{
    planes p = {.x = open_axis(v, x), .y = open_axis(v, y), .outer_taps = 1};
    for (int32_t d = 0; d < v->gather.rank; d++)
        if (d != x && d != y) {
            p.outer_axis[p.outer++] = d;
            p.outer_taps *= v->gather.taps[d];
        }
    return p;
}

/* The axis for lines: the last one, whose positions are contiguous, or where it is short the longest of them; `other` is taken
 * already. */
INLINE int32_t choose_axis(const conv_view *v, int32_t other)
{
    const tl_conv_gather *g = &v->gather;
    int32_t best = g->rank - 1 == other ? g->rank - 2 : g->rank - 1;
    for (int32_t d = best - 1; d >= 0; d--)
        if (d != other && g->count[best] < SHORT && g->count[d] > g->count[best]) best = d;
    return best;
}

/* Where tap t of the gather is from where a position is, in a channel. */
static int64_t tap_offset(const conv_view *v, const planes *p, int64_t t)
{
    int64_t outer = 0;
    for (int32_t i = 0, d = 0, after; i < p->outer; i++) {
        int64_t rest = t;
        for (d = p->outer_axis[i], after = v->gather.rank - 1; after > d; after--)
            rest /= v->gather.taps[after];
        outer = outer * v->gather.taps[d] + rest % v->gather.taps[d];
    }
    const int64_t tx = t / p->x.taps_after % p->x.taps, ty = t / p->y.taps_after % p->y.taps;
    const int64_t slot = (outer * p->y.phases + ty % p->y.phases) * p->x.phases + tx % p->x.phases;
    return slot * p->slot + advance_of(&p->y, ty) * p->pitch + advance_of(&p->x, tx);
}

/* Slice `slice` of the batch, an image at coordinates `at` of the outer axes, which are the first ones: its source, from `channel` on. */
static inline const float *slice_at(const conv_view *v, const planes *p, int64_t slice, int64_t channel, int64_t *at)
{
    for (int32_t d = p->outer - 1; d >= 0; d--)
        at[d] = slice % v->gather.count[d], slice /= v->gather.count[d];
    return v->source + (slice * v->source_channels + channel) * v->gather.source_size;
}
