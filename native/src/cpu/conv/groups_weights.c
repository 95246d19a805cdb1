/* The gradient of the weights of groups of few channels on small images: the lanes of a vector are groups.
 *
 *   task         a chunk of LANES groups
 *   for images   some at a time: their cotangents and what these meet of the source are turned, a vector for each cell;
 *                zeros stand where the source has ended
 *   for sums     of a row, a channel and a lane of direct.c: as many taps as have their sums in registers go through
 *                the lines
 *
 * Order of additions: that of direct.c, whose lanes are arrays of sums here: TL_SUM_FOLD chains of fused multiply-adds
 * for every tap, position x of a line in chain x mod TL_SUM_FOLD, line by line and image by image; the chains are added
 * in halves. */
#include "core/threads.h"
#include "cpu/conv/conv.h"
#include "cpu/sum_tree.h"
#include "cpu/turn.h"

enum {
    FOLD = TL_SUM_FOLD,
    CELLS = 4096,    /* of a group's planes, at most */
    HELD = 1 << 16,  /* floats of the cells of some images, which stay in L2 */
    LEAST_GROUPS = 8 /* that fill half of the widest vector */
};

/* The box of cells of the source that an image's positions meet, `size` of them in each channel; line l of positions
 * begins at line_g[l] in g and line_x[l] in the box. */
typedef struct {
    const conv_view *v;
    const float *g;
    float *gw, *scratch;
    int64_t groups, box, lines, width, step, chains; /* width: positions of a line, step: cells from one to the next */
    int64_t images;                                  /* at a time */
    int64_t length[TL_CONV_RANK];                    /* of the box */
    const int64_t *line_g, *line_x, *offsets;        /* offsets: of taps in the box */
    int64_t plane_floats, cells_floats, sums_floats, worker_floats;
} job_t;

/* Adds chain i of T taps, the products of some images: of g and of the box, a row and a channel each. */
INLINE void add_chain(const int T, const job_t *job, int64_t images, int64_t i, const float *g, const float *x,
                      const int64_t *off, float *sums)
{
    const conv_view *v = job->v;
    const int64_t next_g = v->rows * v->gather.positions * LANES, next_x = v->channels * job->box * LANES;
    const int64_t apart = job->chains * LANES;
    tl_vec s[TAPS];
#pragma GCC unroll 9
    for (int t = 0; t < T; t++)
        s[t] = tl_vec_load(sums + t * apart);
    for (int64_t n = 0; n < images; n++, g += next_g, x += next_x)
        for (int64_t l = 0; l < job->lines; l++)
            for (int64_t p = i; p < job->width; p += FOLD) {
                const tl_vec of_g = tl_vec_load(g + (job->line_g[l] + p) * LANES);
                const float *from = x + (job->line_x[l] + p * job->step) * LANES;
#pragma GCC unroll 9
                for (int t = 0; t < T; t++)
                    s[t] = fma_each(of_g, tl_vec_load(from + off[t]), s[t]);
            }
#pragma GCC unroll 9
    for (int t = 0; t < T; t++)
        tl_vec_store(sums + t * apart, s[t]);
}

typedef void (*add_fn)(const job_t *, int64_t, int64_t, const float *, const float *, const int64_t *, float *);
#define ADD(T)                                                                                                          \
    static void add_chain_##T(const job_t *job, int64_t images, int64_t i, const float *g, const float *x,             \
                              const int64_t *off, float *sums)                                                         \
    {                                                                                                                  \
        add_chain(T, job, images, i, g, x, off, sums);                                                                 \
    }
EACH_COUNT(ADD)
#define NAME(T) add_chain_##T,
static const add_fn add_functions[TAPS + 1] = {0, EACH_COUNT(NAME)};

/* Moves the cells of a turned plane to where they are in the box; what positions do not meet stays away. */
static void fill_box(const job_t *job, const float *plane, float *box)
{
    const tl_conv_gather *g = &job->v->gather;
    const int32_t last = g->rank - 1;
    const int64_t from = tl_imax(g->base[last], 0), to = tl_imin(g->base[last] + job->length[last], g->source[last]);
    int64_t at[TL_CONV_RANK] = {0};
    for (int64_t line = 0; line < g->source_size / g->source[last]; line++, plane += g->source[last] * LANES) {
        int64_t start = 0;
        int inside = from < to;
        for (int32_t d = 0; d < last; d++) {
            const int64_t c = at[d] - g->base[d];
            inside &= c >= 0 && c < job->length[d];
            start = (start + c) * job->length[d + 1];
        }
        if (inside)
            memcpy(box + (start + from - g->base[last]) * LANES, plane + from * LANES,
                   sizeof *box * (size_t)((to - from) * LANES));
        for (int32_t d = last - 1; d >= 0 && ++at[d] == g->source[d]; d--)
            at[d] = 0;
    }
}

static void multiply_chunk(void *arg, int64_t chunk, int32_t worker)
{
    const job_t *job = arg;
    const conv_view *v = job->v;
    const int64_t taps = v->gather.taps_size, size = v->gather.positions, kernels = v->rows * v->channels;
    const int64_t group = chunk * LANES, lanes = tl_imin(LANES, job->groups - group), parts = tl_ceil_div(taps, TAPS);
    float *const plane = job->scratch + worker * job->worker_floats, *const cells = plane + job->plane_floats;
    float *const sums = cells + job->cells_floats;
    float *const boxes = cells + job->images * v->rows * size * LANES;
    memset(cells, 0, sizeof *cells * (size_t)(job->cells_floats + job->sums_floats));
    for (int64_t n0 = 0; n0 < v->batch && !tl_interrupted(); n0 += job->images) {
        const int64_t images = tl_imin(job->images, v->batch - n0);
        for (int64_t n = 0; n < images; n++) {
            const int64_t of_group = (n0 + n) * job->groups + group;
            tl_turn_in(cells + n * v->rows * size * LANES, job->g + of_group * v->rows * size, v->rows * size, lanes,
                       v->rows * size);
            const int64_t source = v->channels * v->gather.source_size;
            tl_turn_in(plane, v->source + of_group * source, source, lanes, source);
            for (int64_t c = 0; c < v->channels; c++)
                fill_box(job, plane + c * v->gather.source_size * LANES,
                         boxes + (n * v->channels + c) * job->box * LANES);
        }
        for (int64_t k = 0; k < kernels; k++)
            for (int64_t i = 0; i < job->chains; i++)
                for (int64_t part = 0, t = 0; part < parts; part++) {
                    const int64_t count = taps / parts + (part < taps % parts);
                    add_functions[count](job, images, i, cells + k / v->channels * size * LANES,
                                         boxes + k % v->channels * job->box * LANES, job->offsets + t,
                                         sums + ((k * taps + t) * job->chains + i) * LANES);
                    t += count;
                }
    }
    for (int64_t w = 0; w < kernels * taps; w++) /* in place: the weights before have at least as many chains */
        for (int64_t l = 0; l < LANES; l++) {
            float chain[FOLD] = {0};
            for (int64_t i = 0; i < job->chains; i++)
                chain[i] = sums[(w * job->chains + i) * LANES + l];
            sums[w * LANES + l] = tl_fold_16(chain);
        }
    tl_turn_out(job->gw + group * kernels * taps, sums, kernels * taps, lanes, kernels * taps);
}

int tl_conv_lanes_weigh_groups(const conv_view *v, int64_t groups)
{
    const tl_conv_gather *g = &v->gather;
    int64_t box = 1;
    for (int32_t d = 0; d < g->rank; d++)
        box *= (g->count[d] - 1) * g->step[d] + (g->taps[d] - 1) * g->tap_step[d] + 1;
    return g->count[g->rank - 1] <= FOLD && groups >= LEAST_GROUPS &&
           v->channels * tl_imax(box, g->source_size) + v->rows * g->positions <= CELLS;
}

int32_t tl_conv_groups_weights(tl_context *ctx, const conv_view *v, int64_t groups, const float *g, float *gw)
{
    const tl_conv_gather *of = &v->gather;
    const int32_t last = of->rank - 1;
    const int64_t taps = of->taps_size;
    job_t job = {.v = v, .g = g, .gw = gw, .groups = groups, .box = 1, .width = of->count[last]};
    job.step = of->step[last];
    for (int32_t d = 0; d <= last; d++) {
        job.length[d] = (of->count[d] - 1) * of->step[d] + (of->taps[d] - 1) * of->tap_step[d] + 1;
        job.box *= job.length[d];
    }
    job.lines = of->positions / job.width;
    job.chains = tl_imin(job.width, FOLD);
    const int64_t image = (v->channels * job.box + v->rows * of->positions) * LANES;
    job.images = tl_imin(tl_imax(HELD / image, 1), v->batch);
    job.plane_floats = v->channels * of->source_size * LANES;
    job.cells_floats = job.images * image;
    job.sums_floats = (v->rows * v->channels * taps * job.chains + LANES) * LANES;
    job.worker_floats = job.plane_floats + job.cells_floats + job.sums_floats;
    const int64_t chunks = tl_ceil_div(groups, LANES), workers = chunks == 1 ? 1 : tl_workers();
    void *memory;
    const int32_t status = tl_pool_alloc(
        ctx, sizeof(float) * (size_t)(workers * job.worker_floats) + sizeof(int64_t) * (size_t)(2 * job.lines + taps),
        &memory);
    if (status) return status;
    job.scratch = memory;
    int64_t *const lines = (int64_t *)(job.scratch + workers * job.worker_floats);
    int64_t *const offsets = lines + 2 * job.lines;
    int64_t at[TL_CONV_RANK] = {0}, tap[TL_CONV_RANK] = {0};
    for (int64_t l = 0; l < job.lines; l++) {
        int64_t start = 0;
        for (int32_t d = 0; d < last; d++)
            start = (start + at[d] * of->step[d]) * job.length[d + 1];
        lines[l] = l * job.width;
        lines[job.lines + l] = start;
        for (int32_t d = last - 1; d >= 0 && ++at[d] == of->count[d]; d--)
            at[d] = 0;
    }
    for (int64_t t = 0; t < taps; t++) {
        int64_t cell = 0;
        for (int32_t d = 0; d <= last; d++)
            cell = cell * job.length[d] + tap[d] * of->tap_step[d];
        offsets[t] = cell * LANES;
        for (int32_t d = last; d >= 0 && ++tap[d] == of->taps[d]; d--)
            tap[d] = 0;
    }
    job.line_g = lines, job.line_x = lines + job.lines, job.offsets = offsets;
    if (chunks == 1)
        multiply_chunk(&job, 0, 0);
    else
        tl_parallel(chunks, multiply_chunk, &job);
    tl_pool_free(ctx, memory);
    return TORCHLEAN_OK;
}
