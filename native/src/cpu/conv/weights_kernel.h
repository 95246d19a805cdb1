/* The gradient of a convolution's weights for one precision: included by weights.c with REAL, FN and VL set. See weights.c. */

#include "cpu/conv/kernels.h"

KERNELS(terms)

/* An axis of the box of cells that a tile of positions reads: cells are `spacing` apart in the source, neighbouring positions `step`
 * cells, neighbouring taps `tap_step`. There are `runs` of `length` cells in a row, `apart` in the source: one; or one for each tap, where
 * all that lies between them would be more. */
typedef struct {
    int64_t count, taps, spacing, step, tap_step, first, source, stride, runs, length, apart;
} FN(axis);

typedef struct {
    const conv_view *v;
    const float *g;
    float *gw;
    FN(axis) x, y;
    int32_t outer;
    int64_t groups, inner, positions, slice; /* positions of the batch, and of the last two axes */
    int64_t outer_taps;
    int lanes_are_channels, lanes_are_rows; /* else: taps */
    int64_t slices, tile_y, tile_x,
        tile;                         /* slices, or lines of one, or positions of one line in a tile; its positions */
    int64_t pitch, plane, box;        /* cells of a line, of a slice under one outer tap, of all of them */
    int64_t chain, segments, segment; /* positions that are summed by one chain; of a task */
    int64_t row_tiles, tile_rows, channel_tiles, tile_channels, items, items_per_task;
    int32_t *offsets; /* of a tile's positions, in elements; of those for channels of one vector; of taps, in cells */
    REAL *scratch;
    int64_t panel_elements, box_elements, sums_elements, worker_elements;
    REAL *parts; /* sums of every segment (segments, groups, rows, inner), where there are several, or NULL */
} FN(job);

static FN(axis) FN(open_axis)(const conv_view *v, int32_t d)
{
    const tl_conv_gather *g = &v->gather;
    if (d < 0) return (FN(axis)){.count = 1, .taps = 1, .spacing = 1, .step = 1, .tap_step = 1, .source = 1};
    const int64_t spacing = tl_gcd(g->step[d], g->taps[d] > 1 ? g->tap_step[d] : 0);
    return (FN(axis)){.count = g->count[d],
                      .taps = g->taps[d],
                      .spacing = spacing,
                      .step = g->step[d] / spacing,
                      .tap_step = g->tap_step[d] / spacing,
                      .first = g->base[d],
                      .source = g->source[d],
                      .stride = v->source_stride[d]};
}

/* Lays out the cells of tiles of n positions. */
static void FN(lay_out)(FN(axis) * a, int64_t n)
{
    const int64_t reach = (n - 1) * a->step + (a->taps - 1) * a->tap_step + 1;
    a->runs = 1, a->length = reach, a->apart = 0;
    if (reach <= a->taps * n) return;
    a->runs = a->taps, a->length = n, a->apart = a->tap_step * a->spacing;
    a->spacing *= a->step, a->step = 1, a->tap_step = n;
}

/* Where positions first .. are: the slice (image and coordinates of the outer axes), line and position. */
typedef struct {
    int64_t first, slice, slices, y, lines, x, n;
} FN(tile);

static FN(tile) FN(tile_at)(const FN(job) * job, int64_t position)
{
    const int64_t slice = position / job->slice, rest = position % job->slice;
    FN(tile) t = {.slice = slice, .slices = 1, .y = rest / job->x.count, .x = rest % job->x.count};
    if (job->slices > 1) {
        t.slice = slice / job->slices * job->slices, t.y = t.x = 0;
        t.slices = tl_imin(job->slices, job->positions / job->slice - t.slice);
    }
    t.y = t.y / job->tile_y * job->tile_y, t.x = t.x / job->tile_x * job->tile_x;
    t.lines = tl_imin(job->tile_y, job->y.count - t.y), t.n = tl_imin(job->tile_x, job->x.count - t.x);
    t.first = (t.slice * job->y.count + t.y) * job->x.count + t.x;
    return t;
}

/* Copies a line of n cells from x on of `channels` planes side by side: to[cell*width + channel]. */
static void FN(turn_line)(const FN(job) * job, const float *from, int64_t x, int64_t n, int64_t channels, int64_t width,
                          REAL *to)
{
    const int64_t plane = job->v->gather.source_size, spacing = job->x.spacing;
    int64_t a, b;
    cells_inside(x, spacing, job->x.source, n, &a, &b);
    memset(to, 0, sizeof(REAL) * (size_t)(a * width));
    from += x;
    if (spacing == 1)
        FN(turn)(to + a * width, width, channels, b - a, from + a, plane, 1);
    else
        for (int64_t k = a; k < b; k++)
            for (int64_t l = 0; l < width; l++)
                to[k * width + l] = l < channels ? from[l * plane + k * spacing] : 0;
    memset(to + b * width, 0, sizeof(REAL) * (size_t)((n - b) * width));
}

/* The same of one plane, cells side by side. */
static void FN(copy_line)(const FN(job) * job, const float *from, int64_t x, int64_t n, REAL *restrict to)
{
    const int64_t spacing = job->x.spacing;
    int64_t a, b;
    cells_inside(x, spacing, job->x.source, n, &a, &b);
    from += x;
    for (int64_t i = 0; i < a; i++)
        to[i] = 0;
    if (spacing == 1)
        for (int64_t i = a; i < b; i++)
            to[i] = from[i];
    else
        for (int64_t i = a; i < b; i++)
            to[i] = from[i * spacing];
    for (int64_t i = b; i < n; i++)
        to[i] = 0;
}

/* Copies what a tile reads of `channels` channels from `channel` on: a box for each of them, or one with all side by side. */
static void FN(copy_box)(const FN(job) * job, const FN(tile) * t, int64_t channel, int64_t channels, int64_t width,
                         REAL *to)
{
    const conv_view *v = job->v;
    const tl_conv_gather *g = &v->gather;
    const int64_t n = job->x.length, x = job->x.first + t->x * job->x.step * job->x.spacing;
    for (int64_t s = 0; s < t->slices; s++) {
        int64_t rest = t->slice + s, at[TL_CONV_RANK], tap[TL_CONV_RANK] = {0};
        for (int32_t d = job->outer - 1; d >= 0; d--)
            at[d] = rest % g->count[d], rest /= g->count[d];
        const float *image = v->source + (rest * v->source_channels + channel) * g->source_size;
        for (int64_t o = 0; o < job->outer_taps; o++) {
            int64_t start = 0;
            int outside = 0;
            for (int32_t d = 0; d < job->outer; d++) {
                const int64_t c = at[d] * g->step[d] + g->base[d] + tap[d] * g->tap_step[d];
                outside |= c < 0 || c >= g->source[d];
                start += c * v->source_stride[d];
            }
            for (int64_t i = 0; i < job->y.runs; i++)
                for (int64_t j = 0; j < job->y.length; j++) {
                    const int64_t y = job->y.first + i * job->y.apart + (t->y * job->y.step + j) * job->y.spacing;
                    const float *line = image + start + y * job->y.stride;
                    const int none = outside || y < 0 || y >= job->y.source;
                    for (int64_t run = 0; run < job->x.runs; run++, to += n * width)
                        for (int64_t c = 0; c < (width > 1 ? 1 : channels); c++) {
                            if (none)
                                memset(to + c * job->box, 0, sizeof(REAL) * (size_t)(n * width));
                            else if (width > 1)
                                FN(turn_line)(job, line, x + run * job->x.apart, n, channels, width, to);
                            else
                                FN(copy_line)(job, line + c * g->source_size, x + run * job->x.apart, n,
                                              to + c * job->box);
                        }
                }
            for (int32_t d = job->outer - 1; d >= 0 && ++tap[d] == g->taps[d]; d--)
                tap[d] = 0;
        }
    }
}

/* Packs h rows of the cotangent from row on, at positions q .. q + n - 1 of the batch, `width` elements to each; an
 * image is contiguous. */
static void FN(pack_cotangent)(const FN(job) * job, REAL *panel, int64_t row, int64_t h, int64_t width, int64_t q,
                               int64_t n)
{
    const int64_t size = job->v->gather.positions;
    for (int64_t k = 0; k < n;) {
        const int64_t image = (q + k) / size, at = (q + k) % size, here = tl_imin(n - k, size - at);
        const float *from = job->g + (image * job->v->target_rows + row) * size + at;
        FN(turn)(panel + k * width, width, h, here, from, size, 1);
        k += here;
    }
}

/* A column of lanes: where its cells are from a position's, how its vectors follow, and what weights they are of. */
typedef struct {
    int64_t offset, ld, vectors;
    int64_t first, lanes, next,
        step; /* weight of lane 0; lanes in use of each vector; weights from vector to vector, lane to lane */
} FN(column);

/* Column i of the channels copied from `channel` on. Lanes that are channels: a tap of them. Lanes that are taps: taps side by side of
 * several lines of one channel. */
static FN(column) FN(column_at)(const FN(job) * job, int64_t i, int64_t channel, int64_t channels, int64_t width)
{
    const int64_t taps = job->v->gather.taps_size;
    if (job->lanes_are_channels) {
        const int64_t x = i % job->x.taps, y = i / job->x.taps % job->y.taps, o = i / job->x.taps / job->y.taps;
        const int64_t cell = o * job->plane + y * job->y.tap_step * job->pitch + x * job->x.tap_step;
        return (FN(column)){cell * width, VL, width / VL, channel * taps + i, channels, VL * taps, taps};
    }
    const int64_t chunks = tl_ceil_div(job->x.taps, VL), groups = tl_ceil_div(job->y.taps, LINES);
    const int64_t lines = tl_ceil_div(job->y.taps, groups);
    const int64_t x = i % chunks * VL, y = i / chunks % groups * lines, o = i / chunks / groups % job->outer_taps;
    const int64_t c = i / chunks / groups / job->outer_taps;
    FN(column) to = {.ld = job->y.tap_step * job->pitch, .vectors = tl_imin(job->y.taps - y, lines)};
    to.offset = c * job->box + o * job->plane + y * to.ld + x;
    to.first = (channel + c) * taps + (o * job->y.taps + y) * job->x.taps + x;
    to.lanes = tl_imin(job->x.taps - x, VL), to.next = job->x.taps, to.step = 1;
    return to;
}

static int64_t FN(columns_of)(const FN(job) * job, int64_t channels)
{
    if (job->lanes_are_channels) return job->v->gather.taps_size;
    return channels * job->outer_taps * tl_ceil_div(job->y.taps, LINES) * tl_ceil_div(job->x.taps, VL);
}

/* Panels of at most `most` rows, by the vectors of their columns. */
INLINE int64_t FN(most_rows)(const FN(job) * job)
{
    if (job->lanes_are_rows) return STRIP;
    const int64_t vectors = job->lanes_are_channels ? (job->v->channels > VL ? 2 : 1) : job->y.taps;
    return vectors == 1 ? TALLER * MR : vectors > 2 ? WIDE : MR;
}

/* Rows row0 .. of a group and channels channel0 .. of it, over positions from .. to - 1; REAL sums go to `part`, others to gw. */
typedef struct {
    int64_t group, row0, rows, channel0, channels, from, to;
    float *gw;
    REAL *part;
} FN(item);

/* Adds positions q .. end - 1 of an item, `a_step` and `b_step` elements apart in a and b, to n sums. A chain after the first that is
 * cut by a tile has sums of its own, which are added where it ends. */
INLINE void FN(add_positions)(const FN(job) * job, const FN(item) * of, FN(kernel) kernel, int64_t q, int64_t end,
                              const REAL *a, int64_t a_step, const REAL *b, int64_t b_step, int64_t ld,
                              const int32_t *off, const int32_t *other, REAL *sum, int64_t n)
{
    for (int64_t k = q, next; k < end; k = next) {
        const int64_t chain = (k - of->from) / job->chain, start = of->from + chain * job->chain;
        const int64_t stop = tl_imin(start + job->chain, of->to);
        next = tl_imin(end, stop);
        const int whole = k == start && next == stop, apart = chain > 0 && !whole;
        const int mode = k > start ? TL_GEMM_CONTINUE : chain > 0 && whole ? TL_GEMM_ADD : TL_GEMM_STORE;
        REAL *const own = sum + (apart ? job->sums_elements : 0);
        kernel(next - k, a + (k - q) * a_step, b + (k - q) * b_step, ld, off + (k - q), other, own, mode);
        for (int64_t e = 0; apart && next == stop && e < n; e++)
            sum[e] += own[e];
    }
}

/* Adds positions q .. end - 1, a tile's or the last ones of it, where lanes are rows: each panel of channels and taps meets all strips
 * of rows. Without `t` stores the sums. */
static void FN(multiply_rows)(const FN(job) * job, const FN(item) * of, const FN(tile) * t, int64_t q, int64_t end,
                              REAL *packed)
{
    const conv_view *v = job->v;
    REAL *const box = packed + job->panel_elements, *sum = box + job->box_elements;
    const int64_t taps = v->gather.taps_size, terms = of->channels * taps;
    const int64_t panels = tl_ceil_div(terms, of->rows <= VL ? TALLER * MR : MR), height = terms / panels,
                  taller = terms % panels;
    if (t) FN(copy_box)(job, t, of->group * v->channels + of->channel0, of->channels, 1, box);
    for (int64_t i = 0; i < of->rows; i += STRIP) {
        const int64_t lanes = tl_imin(of->rows - i, STRIP), width = lanes > VL ? STRIP : VL;
        if (t) FN(pack_cotangent)(job, packed, of->group * v->rows + of->row0 + i, lanes, width, q, end - q);
        for (int64_t p = 0, e = 0, h; p < panels; p++, e += h, sum += MR * STRIP) {
            h = height + (p < taller);
            int32_t tap[TALLER * MR];
            for (int64_t r = 0; t && r < h; r++)
                tap[r] = (int32_t)((e + r) / taps * job->box) + job->offsets[2 * job->tile + (e + r) % taps];
            if (t)
                FN(add_positions)(job, of, FN(terms_kernels)[h][width / VL - 1], q, end, box, 0, packed, width, 0,
                                  job->offsets + q - t->first, tap, sum, h * width);
            for (int64_t l = 0; !t && l < lanes; l++)
                for (int64_t r = 0; r < h; r++) {
                    const int64_t to_weight = (of->row0 + i + l) * job->inner + of->channel0 * taps + e + r;
                    if (of->part)
                        of->part[to_weight] = sum[r * width + l];
                    else
                        of->gw[to_weight] = (float)sum[r * width + l];
                }
        }
    }
}

/* The same where lanes are channels or taps: each column of them meets all panels of rows. */
static void FN(multiply_columns)(const FN(job) * job, const FN(item) * of, const FN(tile) * t, int64_t q, int64_t end,
                                 REAL *packed)
{
    const conv_view *v = job->v;
    REAL *const box = packed + job->panel_elements, *sum = box + job->box_elements, *panel = packed;
    REAL *const part = of->part;
    float *const gw = of->gw;
    const int64_t strip = job->lanes_are_channels ? STRIP : of->channels, most = FN(most_rows)(job);
    const int64_t panels = tl_ceil_div(of->rows, most), height = of->rows / panels, taller = of->rows % panels;
    for (int64_t p = 0, row = of->group * v->rows + of->row0, h; t && p < panels;
         p++, row += h, panel += h * (end - q)) {
        h = height + (p < taller);
        FN(pack_cotangent)(job, panel, row, h, h, q, end - q);
    }
    for (int64_t c = 0; c < of->channels; c += strip) {
        const int64_t channels = tl_imin(of->channels - c, strip);
        const int64_t width = !job->lanes_are_channels ? 1 : channels > VL ? STRIP : VL;
        if (t) FN(copy_box)(job, t, of->group * v->channels + of->channel0 + c, channels, width, box);
        for (int64_t i = 0, columns = FN(columns_of)(job, channels); i < columns; i++) {
            const FN(column) to = FN(column_at)(job, i, of->channel0 + c, channels, width);
            panel = packed;
            for (int64_t p = 0, row = of->row0, h; p < panels; p++, row += h, sum += MR * STRIP) {
                h = height + (p < taller);
                if (t)
                    FN(add_positions)(job, of, FN(side_kernel)(h, to.vectors), q, end, panel, h, box + to.offset, 0,
                                      to.ld, job->offsets + (width == VL ? job->tile : 0) + q - t->first, NULL, sum,
                                      h * to.vectors * VL);
                panel += h * (end - q);
                for (int64_t r = 0; !t && r < h; r++)
                    for (int64_t u = 0; u < to.vectors; u++)
                        for (int64_t l = 0, left = to.lanes - (job->lanes_are_channels ? u * VL : 0);
                             l < tl_imin(left, VL); l++) {
                            const int64_t e = (row + r) * job->inner + to.first + u * to.next + l * to.step;
                            const REAL x = sum[(r * to.vectors + u) * VL + l];
                            if (part)
                                part[e] = x;
                            else
                                gw[e] = (float)x;
                        }
            }
        }
    }
}

/* Items: channel tiles are fastest, then row tiles, groups, segments. */
static void FN(multiply_task)(void *arg, int64_t task, int32_t worker)
{
    const FN(job) *job = arg;
    void (*const multiply)(const FN(job) *, const FN(item) *, const FN(tile) *, int64_t, int64_t, REAL *) =
        job->lanes_are_rows ? FN(multiply_rows) : FN(multiply_columns);
    REAL *const packed = job->scratch + worker * job->worker_elements;
    const int64_t last = tl_imin((task + 1) * job->items_per_task, job->items), weights = job->v->rows * job->inner;
    for (int64_t item = task * job->items_per_task; item < last; item++) {
        const int64_t tile = item / job->channel_tiles, segment = tile / job->row_tiles / job->groups;
        FN(item)
        of = {.channel0 = item % job->channel_tiles * job->tile_channels,
              .row0 = tile % job->row_tiles * job->tile_rows,
              .group = tile / job->row_tiles % job->groups,
              .from = segment * job->segment};
        of.to = tl_imin(of.from + job->segment, job->positions);
        of.rows = tl_imin(job->tile_rows, job->v->rows - of.row0);
        of.channels = tl_imin(job->tile_channels, job->v->channels - of.channel0);
        of.gw = job->gw + of.group * weights;
        of.part = job->parts ? job->parts + (segment * job->groups + of.group) * weights : NULL;
        for (int64_t q = of.from, end; q < of.to && !(q > of.from && tl_interrupted()); q = end) {
            const FN(tile) t = FN(tile_at)(job, q);
            end = tl_imin(of.to, t.first + t.slices * t.lines * t.n);
            multiply(job, &of, &t, q, end, packed);
        }
        multiply(job, &of, NULL, 0, 0, packed);
    }
}

/* What a vector's lanes are: where those of channels and of taps are mostly empty, rows. */
static void FN(choose_lanes)(FN(job) * job)
{
    const double channels = (double)job->v->channels, x = (double)job->x.taps;
    const double of_channels = channels / (double)(tl_ceil_div(job->v->channels, VL) * VL);
    const double of_taps = job->x.tap_step == 1 ? x / (double)(tl_ceil_div(job->x.taps, VL) * VL) : 0;
    const double best = of_channels >= of_taps ? of_channels : of_taps;
    job->lanes_are_rows = best < LEAST_SHARE && job->v->rows >= LEAST_ROWS;
    job->lanes_are_channels = !job->lanes_are_rows && of_channels >= of_taps;
}

static void FN(open_job)(FN(job) * job, const conv_view *v, int64_t groups, const float *g, float *gw)
{
    const tl_conv_gather *gather = &v->gather;
    *job = (FN(job)){.v = v, .g = g, .gw = gw, .groups = groups, .outer_taps = 1};
    job->x = FN(open_axis)(v, gather->rank - 1), job->y = FN(open_axis)(v, gather->rank - 2);
    job->outer = gather->rank > 2 ? gather->rank - 2 : 0;
    for (int32_t d = 0; d < job->outer; d++)
        job->outer_taps *= gather->taps[d];
    job->inner = v->channels * gather->taps_size;
    job->positions = v->batch * gather->positions;
    job->slice = job->x.count * job->y.count;
    const int64_t x = job->x.count, y = job->y.count;
    job->tile_x = tl_ceil_div(x, tl_ceil_div(x, TILE_POSITIONS));
    job->tile_y = job->tile_x < x ? 1 : tl_ceil_div(y, tl_ceil_div(y, tl_imax(TILE_POSITIONS / x, 1)));
    job->slices = job->slice <= TILE_POSITIONS / 2 ? TILE_POSITIONS / job->slice : 1;
    job->tile = job->slices * job->tile_y * job->tile_x;
    FN(lay_out)(&job->x, job->tile_x);
    FN(lay_out)(&job->y, job->tile_y);
    job->pitch = job->x.runs * job->x.length;
    job->plane = job->y.runs * job->y.length * job->pitch;
    job->box = (job->slices * job->outer_taps * job->plane / LANES | 1) * LANES + 2 * LANES;
    FN(choose_lanes)(job);
}

/* Sums of products by `chain`, over all positions or over segments of them; several segments' sums go to `parts`. */
static int32_t FN(run)(tl_context *ctx, FN(job) * job, int64_t chain, int64_t segment, REAL *parts)
{
    const conv_view *v = job->v;
    job->chain = chain, job->segment = segment, job->parts = parts;
    job->segments = tl_ceil_div(job->positions, segment);
    const int64_t most = FN(most_rows)(job), taps = v->gather.taps_size, strip = job->lanes_are_channels ? STRIP : 1;
    job->tile_rows = tl_imin(tl_ceil_div(v->rows, most), tl_imax(TILE_ROWS / most, 1)) * most;
    job->tile_channels = tl_imin(tl_ceil_div(v->channels, strip), tl_imax(TILE_COLUMNS / taps / strip, 1)) * strip;
    for (;;) {
        job->row_tiles = tl_ceil_div(v->rows, job->tile_rows),
        job->channel_tiles = tl_ceil_div(v->channels, job->tile_channels);
        job->items = job->segments * job->groups * job->row_tiles * job->channel_tiles;
        const double cost = (double)tl_imin(job->tile_rows, v->rows) *
                            (double)tl_imin(job->tile_channels, v->channels) * (double)taps *
                            (double)tl_imin(segment, job->positions);
        job->items_per_task = tl_imax(1, (int64_t)(TASK_COST / (cost + 1)));
        if (job->items >= MANY_TASKS || cost < 2 * TASK_COST) break;
        if (job->tile_channels > strip)
            job->tile_channels = tl_ceil_div(job->tile_channels / strip, 2) * strip;
        else if (job->tile_rows > most)
            job->tile_rows = tl_ceil_div(job->tile_rows / most, 2) * most;
        else
            break;
    }
    const int64_t channels = tl_imin(job->tile_channels, v->channels), rows = tl_imin(job->tile_rows, v->rows);
    const int64_t strips = job->lanes_are_channels ? tl_ceil_div(channels, strip) : 1;
    const int64_t columns = job->lanes_are_rows ? tl_ceil_div(channels * taps, MR) : FN(columns_of)(job, channels);
    const int64_t cells = strips * columns * tl_ceil_div(rows, most), packed = job->lanes_are_rows ? STRIP : rows;
    job->panel_elements = tl_ceil_div(packed * job->tile, LANES) * LANES + LANES;
    job->box_elements = (job->lanes_are_channels ? job->box * STRIP : job->box * channels) + 4 * STRIP * LANES;
    job->sums_elements = cells * MR * STRIP;
    job->worker_elements = job->panel_elements + job->box_elements + 2 * job->sums_elements;
    const int64_t tasks = tl_ceil_div(job->items, job->items_per_task), workers = tasks == 1 ? 1 : tl_workers();
    const size_t bytes = sizeof(REAL) * (size_t)(workers * job->worker_elements) +
                         sizeof(int32_t) * (size_t)(2 * job->tile + taps);
    void *memory;
    const int32_t status = tl_pool_alloc(ctx, bytes, &memory);
    if (status) return status;
    job->scratch = memory;
    job->offsets = (int32_t *)(job->scratch + workers * job->worker_elements);
    for (int64_t i = 0; i < job->tile; i++) {
        const int64_t x = i % job->tile_x, y = i / job->tile_x % job->tile_y, s = i / job->tile_x / job->tile_y;
        const int64_t cell = s * job->outer_taps * job->plane + y * job->y.step * job->pitch + x * job->x.step;
        job->offsets[i] = (int32_t)(cell * (job->lanes_are_channels ? STRIP : 1));
        job->offsets[job->tile + i] = (int32_t)(cell * VL);
    }
    for (int64_t i = 0; i < taps; i++) {
        const int64_t x = i % job->x.taps, y = i / job->x.taps % job->y.taps, o = i / job->x.taps / job->y.taps;
        const int64_t cell = o * job->plane + y * job->y.tap_step * job->pitch + x * job->x.tap_step;
        job->offsets[2 * job->tile + i] = (int32_t)cell;
    }
    tl_parallel(tasks, FN(multiply_task), job);
    tl_pool_free(ctx, memory);
    return TORCHLEAN_OK;
}
