/* The gradient of the weights of groups of few channels, above all depthwise: sums of so few rows that a matrix product would
 * gather more than it multiplies.
 *
 *   task        all taps of one channel, with all rows of its group
 *   for tile    lines of an image, in the order of the batch; what they read of the source is copied once (planes.h)
 *   for taps    as many as have their sums in registers: a vector of g meets one of the source for each tap
 *
 * Order of additions: TL_SUM_FOLD lanes of sums run along the lines of g, a chain of fused multiply-adds each, line by line and
 * image by image; the lanes' sums are added in halves. */
#include "core/threads.h"
#include "cpu/conv/planes.h"
#include "cpu/sum_tree.h"

enum {
    FOLD = TL_SUM_FOLD,
    VECTORS = FOLD / LANES,
    TILE_CELLS = 8192, /* a tile's copy stays in L1 or close */
    LINE = 4096        /* of a tile; a multiple of FOLD */
};

#define REAL float
#define FN(name) name##_f32
#include "cpu/conv/planes_copy.h"

typedef struct {
    const conv_view *v;
    planes planes;
    const float *g;
    float *gw, *scratch;
    int64_t *offsets; /* of taps */
    int64_t copied, worker_floats;
} job_t;

/* Adds a tile's products to the sums of T taps: lines of n positions, `line` apart in g and `pitch` in the source. */
INLINE void add_products(const int T, const float *g, int64_t line, const float *x, int64_t pitch, const int64_t *off,
                         int64_t lines, int64_t n, float *sums)
{
    tl_vec s[TAPS][VECTORS];
#pragma GCC unroll 9
    for (int t = 0; t < T; t++)
#pragma GCC unroll 4
        for (int u = 0; u < VECTORS; u++)
            s[t][u] = tl_vec_load(sums + t * FOLD + u * LANES);
    for (int64_t y = 0; y < lines; y++, g += line, x += pitch) {
        int64_t i = 0;
        for (; i + FOLD <= n; i += FOLD)
#pragma GCC unroll 4
            for (int u = 0; u < VECTORS; u++) {
                const tl_vec of_g = tl_vec_load(g + i + u * LANES);
#pragma GCC unroll 9
                for (int t = 0; t < T; t++)
                    s[t][u] = fma_each(of_g, tl_vec_load(x + off[t] + i + u * LANES), s[t][u]);
            }
        if (i == n) continue;
#pragma GCC unroll 4
        for (int u = 0; u < VECTORS; u++) {
            const int64_t lanes = tl_imax(tl_imin(n - i - u * LANES, LANES), 0);
            const tl_vec of_g = tl_load_first(g + i + u * LANES, lanes);
#pragma GCC unroll 9
            for (int t = 0; t < T; t++)
                s[t][u] = fma_each(of_g, tl_load_first(x + off[t] + i + u * LANES, lanes), s[t][u]);
        }
    }
#pragma GCC unroll 9
    for (int t = 0; t < T; t++)
#pragma GCC unroll 4
        for (int u = 0; u < VECTORS; u++)
            tl_vec_store(sums + t * FOLD + u * LANES, s[t][u]);
}

typedef void (*add_fn)(const float *, int64_t, const float *, int64_t, const int64_t *, int64_t, int64_t, float *);
#define ADD(T)                                                                                                          \
    static void add_products_##T(const float *g, int64_t line, const float *x, int64_t pitch, const int64_t *off,      \
                                 int64_t lines, int64_t n, float *sums)                                                \
    {                                                                                                                  \
        add_products(T, g, line, x, pitch, off, lines, n, sums);                                                       \
    }
EACH_COUNT(ADD)
#define NAME(T) add_products_##T,
static const add_fn add_functions[TAPS + 1] = {0, EACH_COUNT(NAME)};

/* Task: a channel of a group. */
static void multiply_planes(void *arg, int64_t task, int32_t worker)
{
    const job_t *job = arg;
    const conv_view *v = job->v;
    const planes *p = &job->planes;
    const tl_conv_gather *g = &v->gather;
    const int64_t group = task / v->channels, taps = g->taps_size, chunks = tl_ceil_div(taps, TAPS);
    const int64_t slices = g->positions / (p->x.count * p->y.count);
    float *copy = job->scratch + worker * job->worker_floats, *sums = copy + job->copied;
    memset(sums, 0, sizeof(float) * (size_t)(v->rows * taps * FOLD));
    for (int64_t n = 0; n < v->batch * slices && !tl_interrupted(); n++) {
        int64_t at[TL_CONV_RANK];
        const float *source = slice_at(v, p, n, task, at);
        for (int64_t y = 0; y < p->y.count; y += p->tile_y)
            for (int64_t x = 0; x < p->x.count; x += p->tile_x) {
                const int64_t lines = tl_imin(p->tile_y, p->y.count - y), length = tl_imin(p->tile_x, p->x.count - x);
                const int64_t first = (n % slices * p->y.count + y) * p->x.count + x;
                copy_planes_f32(v, p, source, 1, 1, at, y, lines, x, length, copy);
                for (int64_t row = 0; row < v->rows; row++) {
                    const float *of_g = job->g + (n / slices * v->target_rows + group * v->rows + row) * g->positions +
                                        first;
                    for (int64_t i = 0, t = 0; i < chunks; i++) {
                        const int64_t count = taps / chunks + (i < taps % chunks);
                        add_functions[count](of_g, p->x.count, copy, p->pitch, job->offsets + t, lines, length,
                                             sums + (row * taps + t) * FOLD);
                        t += count;
                    }
                }
            }
    }
    for (int64_t row = 0; row < v->rows; row++)
        for (int64_t t = 0; t < taps; t++)
            job->gw[((group * v->rows + row) * v->channels + task % v->channels) * taps + t] =
                tl_fold_16(sums + (row * taps + t) * FOLD);
}

int32_t tl_conv_direct_weights(tl_context *ctx, const conv_view *v, int64_t groups, const float *g, float *gw)
{
    job_t job = {.v = v, .planes = open_planes(v, v->gather.rank - 1, v->gather.rank - 2), .g = g, .gw = gw};
    planes *p = &job.planes;
    const int64_t x = tl_imin(p->x.count, LINE), y = tl_imin(p->y.count, tl_imax(TILE_CELLS / x, 1));
    shape_planes(p, x < p->x.count ? 1 : y, x);
    const int64_t taps = v->gather.taps_size;
    job.copied = p->channel + 4 * FOLD; /* vectors past the last cell */
    job.worker_floats = job.copied + v->rows * taps * FOLD;
    void *memory;
    const size_t floats = (size_t)(tl_workers() * job.worker_floats);
    const int32_t status = tl_pool_alloc(ctx, sizeof(float) * floats + sizeof(int64_t) * (size_t)taps, &memory);
    if (status) return status;
    job.offsets = memory;
    job.scratch = (float *)(job.offsets + taps);
    for (int64_t t = 0; t < taps; t++)
        job.offsets[t] = tap_offset(v, p, t);
    tl_parallel(groups * v->channels, multiply_planes, &job);
    tl_pool_free(ctx, memory);
    return TORCHLEAN_OK;
}
