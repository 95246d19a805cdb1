/* The product of a convolution for one precision: included by product.c with REAL, FN and VL set. See product.c. */

#include "cpu/conv/planes_copy.h"
#include "cpu/conv/kernels.h"

KERNELS(rows)

typedef struct {
    const conv_view *v;
    planes planes;
    const conv_product *p;
    int64_t inner, kernel_size, segment; /* terms, kernel offsets, terms of a chain */
    int64_t packed_terms;                /* of a row: `inner`, or where lanes are rows those of the whole kernel */
    int lanes_are_rows;
    int64_t block_count, block_channels; /* channels of a block, at most */
    const int32_t *offsets;              /* of each term, from its block's first channel */
    const int32_t *weights;              /* of each term, among the packed ones of a row, where lanes are rows */
    const int32_t *kernel_index;         /* of each tap */
    int64_t row_tiles, tile_rows, y_tiles, x_tiles, items, items_per_task;
    REAL *packed; /* the weights of a group: strips of the rows (terms, lanes), or panels of them (terms, rows) */
    int64_t packed_group;
    REAL *scratch;
    int64_t planes_elements, tile_elements, worker_elements;
} FN(job);

/* Rows of a panel of `rows`, shared out evenly. */
typedef struct {
    int64_t count, height, taller;
} FN(shares);

static FN(shares) FN(share)(int64_t rows, int64_t most)
{
    const int64_t count = tl_ceil_div(rows, most);
    return (FN(shares)){count, rows / count, rows % count};
}

/* Where the packed weights of a group's row tile begin. */
static REAL *FN(packed_tile)(const FN(job) * job, int64_t group, int64_t row0)
{
    return job->packed + group * job->packed_group + row0 * job->packed_terms;
}

/* A strip is one vector wide where that holds its rows. */
static int64_t FN(strip_width)(int64_t rows) { return rows > VL ? STRIP : VL; }

/* Packs h rows of all weights; dst has `width` >= LANES_F32 or LANES_F64 elements for a term. Weights that are
 * contiguous along terms, or along a channel's, are turned some at a time. */
static void FN(pack_strip)(const FN(job) * job, const float *w, int64_t h, int64_t width, REAL *dst)
{
    enum { PART = 4 * LANES };
    const int64_t channels = job->v->channels, taps = job->kernel_size;
    const int joined = job->p->channel_stride == taps || taps == 1;
    const int64_t runs = joined ? 1 : channels, length = joined ? channels * taps : taps;
    const int64_t step = taps == 1 ? job->p->channel_stride : 1;
    for (int64_t c = 0; c < runs; c++, dst += length * width, w += job->p->channel_stride) {
        for (int64_t k = 0; k < length; k += PART) {
            const int64_t n = tl_imin(length - k, PART);
            for (int64_t r = 0; joined && r < h; r++) /* too many rows for the hardware to see them coming */
                for (int64_t l = 0; l < PART && step == 1; l += 64 / (int64_t)sizeof *w)
                    __builtin_prefetch(w + r * job->p->row_stride + k + PART + l, 0, 2);
            FN(turn)(dst + k * width, width, h, n, w + k * step, job->p->row_stride, step);
        }
    }
}

/* Packs h rows of the weights of the gather's terms, h elements for a term. */
static void FN(pack_panel)(const FN(job) * job, const float *w, int64_t h, REAL *dst)
{
    const int64_t channels = job->v->channels, taps = job->v->gather.taps_size;
    for (int64_t c = 0; c < channels; c++, w += job->p->channel_stride) {
        for (int64_t t = 0; t < taps; t++, dst += h) {
            const float *from = w + job->kernel_index[t];
            for (int64_t r = 0; r < h; r++)
                dst[r] = from[r * job->p->row_stride];
        }
    }
}

/* Where lanes are rows a task is a strip of a group's rows, else a row tile of them. */
static void FN(pack_task)(void *arg, int64_t task, TL_UNUSED int32_t worker)
{
    const FN(job) *job = arg;
    const int64_t most = job->lanes_are_rows ? STRIP : job->tile_rows, tasks = tl_ceil_div(job->v->rows, most);
    const int64_t group = task / tasks, row0 = task % tasks * most, rows = tl_imin(most, job->v->rows - row0);
    const float *w = job->p->w + group * job->v->rows * job->v->channels * job->kernel_size + row0 * job->p->row_stride;
    REAL *to = FN(packed_tile)(job, group, row0);
    if (job->lanes_are_rows) {
        FN(pack_strip)(job, w, rows, FN(strip_width)(rows), to);
        return;
    }
    const FN(shares) panels = FN(share)(rows, MR);
    for (int64_t q = 0, i = 0; q < panels.count; q++) {
        const int64_t h = panels.height + (q < panels.taller);
        FN(pack_panel)(job, w + i * job->p->row_stride, h, to);
        to += h * job->inner;
        i += h;
    }
}

/* A tile: `lines` lines from y0 and n positions from x0, rows row0 .. row0 + rows - 1 of a group. */
typedef struct {
    int64_t row, rows, group, y0, lines, x0, n, at[TL_CONV_RANK]; /* at: of the outer axes */
    float *target; /* of the group's first row and the tile's first position */
} FN(tile);

/* How a block's sums meet those before it. Segments of one block are added; longer ones have sums of their own, in `part`. */
typedef struct {
    int mode, finish, close; /* close: the part is a segment's total */
} FN(step);

/* Ends a panel of h positions by `width` rows: the bias, one rounding, and rows of positions. */
static void FN(finish_rows)(const FN(job) * job, const FN(tile) * t, REAL *sums, int64_t h, int64_t width, int64_t row,
                            int64_t rows, float *to)
{
    const tl_conv_gather *g = &job->v->gather;
    const int64_t step = job->planes.x.to_step;
    _Alignas(64) float panel[MR * NR + LANES], turned[NR * MR + LANES];
    const float *bias = job->p->bias ? job->p->bias + t->group * job->v->rows + row : NULL;
    const int64_t n = h * width;
    if (bias) {
        _Alignas(64) REAL add[STRIP] = {0};
        for (int64_t l = 0; l < rows; l++)
            add[l] = bias[l];
        for (int64_t i = 0; i < n; i += width)
            for (int64_t l = 0; l < width; l += VL)
                FN(store)(sums + i + l, FN(load)(sums + i + l) + FN(load)(add + l));
    }
    const float *const rounded = FN(rounded)(sums, n, panel);
    tl_gemm_pack_f32(turned, h, h, width, rounded, width, 1);
    for (int64_t l = 0; l < rows; l++, to += g->target_size) {
        const float *from = turned + l * h;
        if (step == 1)
            for (int64_t r = 0; r < h; r += LANES)
                tl_store_first(to + r, tl_vec_load(from + r), tl_imin(h - r, LANES));
        else
            for (int64_t r = 0; r < h; r++)
                to[r * step] = from[r];
    }
}

/* Ends a strip of positions from q on, by h rows. */
static void FN(finish_positions)(const FN(job) * job, const FN(tile) * t, const REAL *sums, int64_t h, int64_t width,
                                 int64_t row, int64_t q)
{
    const conv_view *v = job->v;
    const tl_conv_gather *g = &v->gather;
    const int64_t step = job->planes.x.to_step, line = job->planes.y.to_step;
    const int64_t pitch = job->planes.pitch;
    int64_t y = q / pitch, x = q % pitch;
    for (int64_t l = 0; l < width && y < t->lines; l += pitch - x, x = 0, y++) {
        const int64_t n = tl_imin(t->n - x, width - l);
        for (int64_t r = 0; r < h && n > 0; r++) {
            const REAL *from = sums + r * width + l;
            float *to = t->target + (row + r) * g->target_size + y * line + x * step;
            const REAL bias = job->p->bias ? job->p->bias[t->group * v->rows + row + r] : 0,
                       *add = job->p->bias ? &bias : NULL;
            if (step == 1) {
                for (int64_t i = 0; i < n; i += LANES)
                    tl_store_first(to + i, FN(narrow)(from + i, add), tl_imin(n - i, LANES));
            } else {
                for (int64_t i = 0; i < n; i++)
                    to[i * step] = (float)(add ? from[i] + bias : from[i]);
            }
        }
    }
}

/* Adds a segment's own sums to those before it. */
INLINE void FN(close_part)(REAL *total, int64_t part, int64_t n, FN(step) s)
{
    if (s.close && part)
        for (int64_t i = 0; i < n; i++)
            total[i] += total[part + i];
}

/* One block of a tile, lanes being rows: each strip, which stays in L1, meets all panels of the lines' positions, of which a term
 * takes fewer bytes. */
static void FN(multiply_rows)(const FN(job) * job, const FN(tile) * t, const conv_block *b, const REAL *source,
                              REAL *sums, int64_t part, FN(step) s)
{
    const conv_view *v = job->v;
    const tl_conv_gather *g = &v->gather;
    const int64_t step = job->planes.x.to_step, line = job->planes.y.to_step;
    const REAL *strip = FN(packed_tile)(job, t->group, t->row);
    const FN(shares) panels = FN(share)(t->n, t->rows <= VL ? TALLER * MR : MR);
    const int only = job->block_count == 1;
    for (int64_t i = 0; i < t->rows; i += STRIP) {
        const int64_t rows = tl_imin(t->rows - i, STRIP), width = FN(strip_width)(rows);
        for (int64_t y = 0; y < t->lines; y++) {
            for (int64_t q = 0, x = 0; q < panels.count; q++) {
                const int64_t h = panels.height + (q < panels.taller);
                float *const to = t->target + (t->row + i) * g->target_size + y * line + x * step;
                for (int64_t l = 0; s.finish && l < rows; l++)
                    __builtin_prefetch(to + l * g->target_size, 1);
                FN(rows_kernels)
                [h][width / VL - 1](b->count, source + y *job->planes.pitch + x, strip, 0, job->offsets + b->first,
                                    job->weights + b->first, sums + part, 0, s.mode);
                FN(close_part)(sums, part, h * width, s);
                if (s.finish) FN(finish_rows)(job, t, sums, h, width, t->row + i, rows, to);
                if (!only) sums += MR * STRIP;
                x += h;
            }
        }
        strip += width * job->packed_terms;
    }
}

/* The same, lanes being positions: a strip of them, lines and what separates them, meets all panels of rows. */
static void FN(multiply_positions)(const FN(job) * job, const FN(tile) * t, const conv_block *b, const REAL *source,
                                   REAL *sums, int64_t part, FN(step) s)
{
    const int64_t k0 = b->first, kc = b->count;
    const int64_t positions = (t->lines - 1) * job->planes.pitch + t->n;
    const FN(shares) panels = FN(share)(t->rows, MR);
    const int wide = panels.height + (panels.taller > 0) <= WIDE;
    const int only = job->block_count == 1;
    for (int64_t q = 0; q < positions;) {
        const int64_t width = wide && positions - q > STRIP ? 2 * STRIP : STRIP;
        const REAL *panel = FN(packed_tile)(job, t->group, t->row);
        for (int64_t p = 0, row = t->row; p < panels.count; p++) {
            const int64_t h = panels.height + (p < panels.taller);
            for (int64_t r = 0; s.finish && job->planes.x.to_step == 1 && r < h;
                 r++) /* dense results, or close to them */
                __builtin_prefetch(t->target + (row + r) * job->v->gather.target_size + q, 1);
            FN(side_kernel)(h, width / VL)(kc, panel + k0 * h, source + q, VL, job->offsets + k0, NULL, sums + part, 0,
                                           s.mode);
            FN(close_part)(sums, part, h * width, s);
            if (s.finish) FN(finish_positions)(job, t, sums, h, width, row, q);
            panel += h * job->inner;
            row += h;
            if (!only) sums += MR * STRIP;
        }
        q += width;
    }
}

/* An item: a tile over all terms. Row tiles are fastest, then x, y, the outer axes, groups and images. */
static void FN(multiply_tile)(const FN(job) * job, int64_t item, REAL *source, int64_t *held)
{
    const conv_view *v = job->v;
    const tl_conv_gather *g = &v->gather;
    const planes *p = &job->planes;
    REAL *sums = source + job->planes_elements;
    const int64_t tile = item / job->row_tiles;
    int64_t rest = tile;
    FN(tile) t = {.row = item % job->row_tiles * job->tile_rows};
    t.rows = tl_imin(job->tile_rows, v->rows - t.row);
    t.x0 = rest % job->x_tiles * p->tile_x, rest /= job->x_tiles;
    t.y0 = rest % job->y_tiles * p->tile_y, rest /= job->y_tiles;
    t.n = tl_imin(p->tile_x, p->x.count - t.x0), t.lines = tl_imin(p->tile_y, p->y.count - t.y0);
    int64_t to = t.x0 * p->x.to_step + p->x.to_base + t.y0 * p->y.to_step + p->y.to_base;
    for (int32_t i = p->outer - 1; i >= 0; i--) {
        const int32_t d = p->outer_axis[i];
        t.at[d] = rest % g->count[d], rest /= g->count[d];
        to += (t.at[d] * g->to_step[d] + g->to_base[d]) * v->target_stride[d];
    }
    t.group = rest % job->p->groups, rest /= job->p->groups;
    t.target = job->p->target + (rest * v->target_rows + t.group * v->rows) * g->target_size + to;
    const float *from = v->source + (rest * v->source_channels + t.group * v->channels) * g->source_size;
    for (int64_t i = 0; i < job->block_count && !(i && tl_interrupted()); i++) {
        const conv_block b = block_of(i, job->inner, g->taps_size);
        if (*held != tile || job->block_count > 1)
            FN(copy_planes)(v, p, from + b.channel * g->source_size, b.channels, 1, t.at, t.y0, t.lines, t.x0, t.n,
                            source);
        *held = tile;
        const int is_later = b.first >= job->segment, ends = i + 1 == job->block_count;
        FN(step) s = {.mode = b.first % job->segment == 0 ? TL_GEMM_STORE : TL_GEMM_CONTINUE, .finish = ends};
        s.close = ends || (b.first + KC) % job->segment == 0;
        if (is_later && job->segment == KC) s.mode = TL_GEMM_ADD;
        const int64_t part = is_later && job->segment > KC ? job->tile_elements : 0;
        (job->lanes_are_rows ? FN(multiply_rows) : FN(multiply_positions))(job, &t, &b, source, sums, part, s);
    }
}

static void FN(multiply_task)(void *arg, int64_t task, int32_t worker)
{
    const FN(job) *job = arg;
    const int64_t first = task * job->items_per_task, last = tl_imin(first + job->items_per_task, job->items);
    int64_t held = -1;
    for (int64_t item = first; item < last && !(item > first && tl_interrupted()); item++)
        FN(multiply_tile)(job, item, job->scratch + worker * job->worker_elements, &held);
}

/* Which lanes waste less of a tile: vectors of sums for each term, and what a sum costs besides. */
static int FN(choose_lanes)(const FN(job) * job)
{
    const planes *p = &job->planes;
    const double rows = (double)job->v->rows, inner = (double)job->inner;
    const double lines = (double)p->tile_y, n = (double)p->tile_x;
    const double strips = (double)tl_ceil_div((p->tile_y - 1) * p->pitch + p->tile_x, STRIP);
    const double by_rows = (double)tl_ceil_div(job->v->rows, VL) * lines * n * (1 + 14 / inner);
    const double panel = tl_ceil_div(job->v->rows, MR) ? rows / (double)tl_ceil_div(job->v->rows, MR) : rows;
    const double by_positions = rows * strips * 2 * (1 + 5 / inner) * (1.05 + 1.2 / (panel * panel));
    return by_rows < by_positions;
}

/* Cuts the result into tiles, smaller ones where there are few. */
static void FN(plan)(FN(job) * job)
{
    const conv_view *v = job->v;
    planes *p = &job->planes;
    const int64_t x = p->x.count, y = p->y.count;
    const int64_t channels = job->block_channels;
    const int64_t held = channels + (job->block_count > 1 ? tl_imin(v->rows, TILE_ROWS) : 0); /* for each position */
    const int64_t most = tl_imin(tl_imax(TILE_ELEMENTS / held, TILE_POSITIONS), MOST_POSITIONS);
    int64_t tile_x = tl_ceil_div(x, tl_ceil_div(x, most));
    int64_t tile_y = tl_ceil_div(y, tl_ceil_div(y, tl_imax(most / tile_x, 1)));
    const int64_t outer_positions = v->gather.positions / (x * y);
    shape_planes(p, tile_y, tile_x);
    job->lanes_are_rows = FN(choose_lanes)(job);
    const int64_t unit = job->lanes_are_rows ? STRIP : MR;
    job->tile_rows = tl_imin(tl_ceil_div(v->rows, unit), TILE_ROWS / unit) * unit;
    for (;;) {
        job->x_tiles = tl_ceil_div(x, tile_x), job->y_tiles = tl_ceil_div(y, tile_y);
        job->row_tiles = tl_ceil_div(v->rows, job->tile_rows);
        job->items = v->batch * job->p->groups * outer_positions * job->x_tiles * job->y_tiles * job->row_tiles;
        const double cost = (double)tl_imin(job->tile_rows, v->rows) * (double)job->inner * (double)(tile_x * tile_y);
        job->items_per_task = tl_imax(1, (int64_t)(TASK_COST / (cost + 1)));
        if (job->items >= MANY_TASKS || cost < 2 * TASK_COST) break;
        if (tile_y > 1 && tile_x * tile_y >= 8 * MR)
            tile_y = tl_ceil_div(tile_y, 2);
        else if (job->tile_rows > unit)
            job->tile_rows = tl_ceil_div(job->tile_rows / unit, 2) * unit;
        else if (tile_x >= 4 * STRIP)
            tile_x = tl_ceil_div(tile_x, 2 * STRIP) * STRIP;
        else
            break;
    }
    shape_planes(p, tile_y, tile_x);
    const int64_t rows = tl_imin(job->tile_rows, v->rows), strips = tl_ceil_div(rows, STRIP),
                  panels = tl_ceil_div(rows, MR);
    const int64_t sums = job->lanes_are_rows ? tile_y * tl_ceil_div(tile_x, MR) * strips
                                             : tl_ceil_div((tile_y - 1) * p->pitch + tile_x, STRIP) * panels;
    job->tile_elements = (job->block_count > 1 ? sums : 1) * MR * STRIP +
                         LANES; /* a whole vector is read where a line ends */
    job->planes_elements = channels * p->channel + 6 * STRIP;
    job->worker_elements = job->planes_elements +
                           job->tile_elements * (job->inner > job->segment && job->segment > KC ? 2 : 1);
    const int64_t lanes = v->rows / STRIP * STRIP + (v->rows % STRIP ? FN(strip_width)(v->rows % STRIP) : 0);
    job->packed_terms = job->lanes_are_rows ? v->channels * job->kernel_size : job->inner;
    job->packed_group = (job->lanes_are_rows ? lanes : v->rows) * job->packed_terms;
    job->packed_group = tl_ceil_div(job->packed_group, LANES) * LANES;
}

/* One gather's product. `packed` holds the weights of strips, of gathers before, or NULL, and then may come to hold them. */
static int32_t FN(multiply_gather)(tl_context *ctx, FN(job) job, void **packed)
{
    const conv_view *v = job.v;
    const tl_conv_gather *const g = &v->gather;
    const int64_t taps = g->taps_size;
    const int32_t x = choose_axis(v, -1);
    job.planes = open_planes(v, x, choose_axis(v, x)); /* the axes of a line and of lines, -1 for none */
    job.inner = v->channels * taps;
    job.block_count = tl_ceil_div(job.inner, KC);
    job.segment = tl_conv_are_few(job.p->groups, v->channels, v->rows) ? job.inner : KC; /* terms of a chain */
    if (sizeof(REAL) == sizeof(double)) job.segment = tl_chain_segment(job.inner);
    for (int64_t i = 0; i < job.block_count; i++)
        job.block_channels = tl_imax(job.block_channels, block_of(i, job.inner, taps).channels);
    FN(plan)(&job);
    const int64_t tasks = tl_ceil_div(job.items, job.items_per_task), workers = tasks == 1 ? 1 : tl_workers();
    const int64_t weights = job.p->groups * job.packed_group + LANES, own = job.lanes_are_rows ? 0 : weights;
    const int have = job.lanes_are_rows && *packed;
    int32_t status = TORCHLEAN_OK;
    if (job.lanes_are_rows && !have) status = tl_pool_alloc(ctx, (size_t)weights * sizeof(REAL), packed);
    if (status) return status;
    void *memory;
    const size_t elements = (size_t)(workers * job.worker_elements + own);
    status = tl_pool_alloc(ctx, elements * sizeof(REAL) + sizeof(int32_t) * (size_t)(2 * (taps + job.inner)), &memory);
    if (status) return status;
    job.scratch = memory;
    REAL *const end = job.scratch + workers * job.worker_elements;
    job.packed = job.lanes_are_rows ? *packed : end;
    int32_t *const kernel_index = (int32_t *)(end + own), *const offset = kernel_index + taps;
    int32_t *const offsets = offset + taps, *const of_row = offsets + job.inner;
    for (int64_t t = 0; t < taps; t++) {
        kernel_index[t] = (int32_t)tl_conv_kernel_index(g, t);
        offset[t] = (int32_t)tap_offset(v, &job.planes, t);
    }
    for (int64_t k = 0; k < job.inner; k++) {
        const int64_t c = k / taps, t = k % taps;
        offsets[k] = (int32_t)((c - k / KC * KC / taps) * job.planes.channel) + offset[t];
        of_row[k] = (int32_t)(c * job.kernel_size) + kernel_index[t];
    }
    job.kernel_index = kernel_index, job.offsets = offsets, job.weights = of_row;
    const int64_t tiles = job.lanes_are_rows ? tl_ceil_div(v->rows, STRIP) : job.row_tiles;
    if (!have) tl_parallel(job.p->groups * tiles, FN(pack_task), &job);
    tl_parallel(tasks, FN(multiply_task), &job);
    tl_pool_free(ctx, memory);
    return TORCHLEAN_OK;
}

int32_t FN(tl_conv_product)(tl_context *ctx, const conv_product *p)
{
    int32_t status = TORCHLEAN_OK;
    void *packed = NULL;
    for (int64_t i = 0; i < tl_conv_gathers(p) && !status; i++) {
        const conv_view v = tl_conv_gather_view(p, i);
        if (v.gather.positions == 0) continue;
        const FN(job) job = {.v = &v, .p = p, .kernel_size = p->shape->taps};
        status = FN(multiply_gather)(ctx, job, &packed);
    }
    tl_pool_free(ctx, packed);
    return status;
}
