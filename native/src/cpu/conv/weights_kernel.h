/* The gradient of a convolution's weights for one precision: included by weights.c with REAL, FN and VL set. See weights.c. */

#include "cpu/conv/planes_copy.h"
#include "cpu/conv/kernels.h"

KERNELS(terms)

typedef struct {
    const conv_view *v;
    const float *g;
    float *gw;
    planes planes;
    int64_t groups, inner, positions, slice; /* positions of the batch, and of the last two axes */
    int lanes_are_channels, lanes_are_rows;  /* else: taps */
    int64_t slices, tile, apart; /* slices in a tile, or 1; its positions; cells from slice to slice of a channel */
    int64_t chain, segments, segment; /* positions that are summed by one chain; of a task */
    int64_t row_tiles, tile_rows, channel_tiles, tile_channels, items, items_per_task;
    int32_t *offsets; /* of a tile's positions, in elements; of those for channels of one vector; of taps, in cells */
    REAL *scratch;
    int64_t panel_elements, box_elements, sums_elements, worker_elements;
    REAL *parts; /* sums of every segment (segments, groups, rows, inner), where there are several, or NULL */
} FN(job);

/* Where positions first .. are: the slice (image and coordinates of the outer axes), line and position. */
typedef struct {
    int64_t first, slice, slices, y, lines, x, n;
} FN(tile);

static FN(tile) FN(tile_at)(const FN(job) * job, int64_t position)
{
    const planes *p = &job->planes;
    const int64_t slice = position / job->slice, rest = position % job->slice;
    FN(tile) t = {.slice = slice, .slices = 1, .y = rest / p->x.count, .x = rest % p->x.count};
    if (job->slices > 1) {
        t.slice = slice / job->slices * job->slices, t.y = t.x = 0;
        t.slices = tl_imin(job->slices, job->positions / job->slice - t.slice);
    }
    t.y = t.y / p->tile_y * p->tile_y, t.x = t.x / p->tile_x * p->tile_x;
    t.lines = tl_imin(p->tile_y, p->y.count - t.y), t.n = tl_imin(p->tile_x, p->x.count - t.x);
    t.first = (t.slice * p->y.count + t.y) * p->x.count + t.x;
    return t;
}

/* Copies what a tile reads of `channels` channels from `channel` on: cells for each of them, or with all side by side. */
static void FN(copy_tile)(const FN(job) * job, const FN(tile) * t, int64_t channel, int64_t channels, int64_t width,
                          REAL *to)
{
    for (int64_t s = 0; s < t->slices; s++) {
        int64_t at[TL_CONV_RANK];
        const float *source = slice_at(job->v, &job->planes, t->slice + s, channel, at);
        FN(copy_planes)(job->v, &job->planes, source, channels, width, at, t->y, t->lines, t->x, t->n,
                        to + s * job->apart * width);
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
    const planes *p = &job->planes;
    const int64_t taps = job->v->gather.taps_size;
    const int32_t *cells = job->offsets + 2 * job->tile;
    if (job->lanes_are_channels)
        return (FN(column)){cells[i] * width, VL, width / VL, channel * taps + i, channels, VL * taps, taps};
    const int64_t chunks = tl_ceil_div(p->x.taps, VL), groups = tl_ceil_div(p->y.taps, LINES);
    const int64_t lines = tl_ceil_div(p->y.taps, groups), c = i / chunks / groups / p->outer_taps;
    const int64_t x = i % chunks * VL, y = i / chunks % groups * lines, o = i / chunks / groups % p->outer_taps;
    const int64_t tap = (o * p->y.taps + y) * p->x.taps + x;
    FN(column) to = {.offset = c * p->channel + cells[tap], .vectors = tl_imin(p->y.taps - y, lines)};
    if (to.vectors > 1) to.ld = cells[tap + p->x.taps] - cells[tap];
    to.first = (channel + c) * taps + tap;
    to.lanes = tl_imin(p->x.taps - x, VL), to.next = p->x.taps, to.step = 1;
    return to;
}

static int64_t FN(columns_of)(const FN(job) * job, int64_t channels)
{
    if (job->lanes_are_channels) return job->v->gather.taps_size;
    const planes *p = &job->planes;
    return channels * p->outer_taps * tl_ceil_div(p->y.taps, LINES) * tl_ceil_div(p->x.taps, VL);
}

/* Panels of at most `most` rows, by the vectors of their columns. */
INLINE int64_t FN(most_rows)(const FN(job) * job)
{
    if (job->lanes_are_rows) return STRIP;
    const int64_t vectors = job->lanes_are_channels ? (job->v->channels > VL ? 2 : 1) : job->planes.y.taps;
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
        kernel(next - k, a + (k - q) * a_step, b + (k - q) * b_step, ld, off + (k - q), other, own, 0, mode);
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
    if (t) FN(copy_tile)(job, t, of->group * v->channels + of->channel0, of->channels, 1, box);
    for (int64_t i = 0; i < of->rows; i += STRIP) {
        const int64_t lanes = tl_imin(of->rows - i, STRIP), width = lanes > VL ? STRIP : VL;
        if (t) FN(pack_cotangent)(job, packed, of->group * v->rows + of->row0 + i, lanes, width, q, end - q);
        for (int64_t p = 0, e = 0, h; p < panels; p++, e += h, sum += MR * STRIP) {
            h = height + (p < taller);
            int32_t tap[TALLER * MR];
            for (int64_t r = 0; t && r < h; r++)
                tap[r] = (int32_t)((e + r) / taps * job->planes.channel) + job->offsets[2 * job->tile + (e + r) % taps];
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
        if (t) FN(copy_tile)(job, t, of->group * v->channels + of->channel0 + c, channels, width, box);
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
    const plane_axis *X = &job->planes.x;
    const double channels = (double)job->v->channels, x = (double)X->taps;
    const double of_channels = channels / (double)(tl_ceil_div(job->v->channels, VL) * VL);
    const double of_taps = !X->apart && X->tap_step == X->step ? x / (double)(tl_ceil_div(X->taps, VL) * VL) : 0;
    const double best = of_channels >= of_taps ? of_channels : of_taps;
    job->lanes_are_rows = best < LEAST_SHARE && job->v->rows >= LEAST_ROWS;
    job->lanes_are_channels = !job->lanes_are_rows && of_channels >= of_taps;
}

static void FN(open_job)(FN(job) * job, const conv_view *v, int64_t groups, const float *g, float *gw)
{
    *job = (FN(job)){.v = v, .g = g, .gw = gw, .groups = groups};
    job->planes = open_planes(v, v->gather.rank - 1, v->gather.rank - 2);
    planes *p = &job->planes;
    job->inner = v->channels * v->gather.taps_size;
    job->positions = v->batch * v->gather.positions;
    job->slice = p->x.count * p->y.count;
    const int64_t x = p->x.count, y = p->y.count, tile_x = tl_ceil_div(x, tl_ceil_div(x, TILE_POSITIONS));
    const int64_t tile_y = tile_x < x ? 1 : tl_ceil_div(y, tl_ceil_div(y, tl_imax(TILE_POSITIONS / x, 1)));
    job->slices = job->slice <= TILE_POSITIONS / 2 ? TILE_POSITIONS / job->slice : 1;
    job->tile = job->slices * tile_y * tile_x;
    join_taps(&p->x, tile_x), join_taps(&p->y, tile_y);
    shape_planes(p, tile_y, tile_x);
    p->slot = cells_of(&p->y, tile_y) * p->pitch; /* cells that run over are written again by the next slot or slice */
    job->apart = p->outer_taps * p->y.phases * p->x.phases * p->slot;
    p->channel = (job->slices * job->apart / LANES | 1) * LANES + 2 * LANES;
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
    job->box_elements = job->planes.channel * (job->lanes_are_channels ? STRIP : channels) + 4 * STRIP * LANES;
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
    const planes *p = &job->planes;
    for (int64_t i = 0; i < job->tile; i++) {
        const int64_t x = i % p->tile_x, y = i / p->tile_x % p->tile_y, s = i / p->tile_x / p->tile_y;
        const int64_t cell = s * job->apart + y * p->y.cells * p->pitch + x * p->x.cells;
        job->offsets[i] = (int32_t)(cell * (job->lanes_are_channels ? STRIP : 1));
        job->offsets[job->tile + i] = (int32_t)(cell * VL);
    }
    for (int64_t i = 0; i < taps; i++)
        job->offsets[2 * job->tile + i] = (int32_t)tap_offset(v, p, i);
    tl_parallel(tasks, FN(multiply_task), job);
    tl_pool_free(ctx, memory);
    return TORCHLEAN_OK;
}
