/* Gradients of maxima along one axis on the CPU: the elements that equal their maximum share its cotangent. */
#include "cpu/reduce_units.h"
#include "cpu/stream.h"
#include "formula/base.h"
#include "formula/count.h"
#include "generated/reduce.h"

/* What every winner of a reduction receives; NaN where the maximum is NaN, and then everyone receives it. */
static inline float winners_share(float max, float g, int64_t winners)
{
    return max != max ? TL_NAN : tl_per_count(g, winners);
}

static int64_t count_equal(const float *x, int64_t n, float value)
{
    int32_t equal = 0; /* n <= TASK */
    for (int64_t i = 0; i < n; i++)
        equal += x[i] == value;
    return equal;
}

static void write_shares(const float *x, int64_t n, float max, float share, float *gx)
{
    if (max != max)
        for (int64_t i = 0; i < n; i++)
            gx[i] = share;
    else
        for (int64_t i = 0; i < n; i++)
            gx[i] = x[i] == max ? share : 0.0f;
}

typedef struct max_bwd_args {
    grain g;
    columns_args cut; /* of axis 0 */
    const float *x, *max, *cotangent;
    int64_t cols, segments;
    int32_t *counts; /* axis 1: (rows, segments); axis 0: (chunks, cols) */
    float *shares;
    float *gx;
} max_bwd_args;

/* Axis 1. A row of up to TASK elements is read twice, the second time from cache; longer ones are cut into segments,
 * counted first and then written. */
static void max_bwd_rows(void *arg, int64_t task, TL_UNUSED int32_t worker)
{
    const max_bwd_args a = *(const max_bwd_args *)arg;
    EACH_UNIT (r, a.g, task) {
        const float *x = a.x + r * a.cols;
        const int64_t winners = count_equal(x, a.cols, a.max[r]);
        write_shares(x, a.cols, a.max[r], winners_share(a.max[r], a.cotangent[r], winners), a.gx + r * a.cols);
    }
}

static void count_segments(void *arg, int64_t task, TL_UNUSED int32_t worker)
{
    const max_bwd_args a = *(const max_bwd_args *)arg;
    EACH_UNIT (u, a.g, task) {
        const int64_t r = u / a.segments, first = u % a.segments * TASK;
        a.counts[u] = (int32_t)count_equal(a.x + r * a.cols + first, tl_imin(a.cols - first, TASK), a.max[r]);
    }
}

static void write_segments(void *arg, int64_t task, TL_UNUSED int32_t worker)
{
    const max_bwd_args a = *(const max_bwd_args *)arg;
    EACH_UNIT (u, a.g, task) {
        const int64_t r = u / a.segments, first = u % a.segments * TASK, at = r * a.cols + first;
        write_shares(a.x + at, tl_imin(a.cols - first, TASK), a.max[r], a.shares[r], a.gx + at);
    }
}

int32_t tl_cpu_reduce_max_axis1_bwd(tl_context *ctx, const float *x, const float *out, const float *g, int64_t rows,
                                    int64_t cols, float *gx)
{
    max_bwd_args a = {.x = x, .max = out, .cotangent = g, .cols = cols, .segments = tl_ceil_div(cols, TASK), .gx = gx};
    if (cols <= TASK) {
        run(max_bwd_rows, &a, &a.g, rows, cols);
        return TORCHLEAN_OK;
    }
    void *scratch;
    int32_t status = tl_pool_alloc(ctx, (size_t)(rows * (a.segments + 1)) * sizeof(float), &scratch);
    if (status) return status;
    a.shares = scratch;
    a.counts = (int32_t *)scratch + rows;
    run(count_segments, &a, &a.g, rows * a.segments, TASK);
    for (int64_t r = 0; r < rows; r++) {
        int64_t winners = 0;
        for (int64_t s = 0; s < a.segments; s++)
            winners += a.counts[r * a.segments + s];
        a.shares[r] = winners_share(out[r], g[r], winners);
    }
    run(write_segments, &a, &a.g, rows * a.segments, TASK);
    tl_pool_free(ctx, scratch);
    return TORCHLEAN_OK;
}

/* Axis 0, in three sweeps: winners per chunk, shares per column, then the gradient row by row. */
PASS count_row(const float *x, const float *max, int64_t width, int32_t *restrict equal)
{
    for (int64_t j = 0; j < width; j++)
        equal[j] += x[j] == max[j];
}

PASS write_row(const float *x, const float *max, const float *share, int64_t width, float *restrict gx)
{
    for (int64_t j = 0; j < width; j++)
        gx[j] = (x[j] == max[j]) | (max[j] != max[j]) ? share[j] : 0.0f;
}

static void count_columns(void *arg, int64_t task, TL_UNUSED int32_t worker)
{
    const max_bwd_args a = *(const max_bwd_args *)arg;
    EACH_UNIT (u, a.g, task) {
        const corner p = find_corner(&a.cut, u);
        _Alignas(64) int32_t equal[TL_COLUMN_TILE] = {0};
        const float *max = a.max + p.c0;
        for (int64_t r = p.r0; r < p.r0 + p.rows; r++)
            count_row(a.x + r * a.cols + p.c0, max, p.cols, equal);
        memcpy(a.counts + p.chunk * a.cols + p.c0, equal, (size_t)p.cols * sizeof(int32_t));
    }
}

static void share_columns(void *arg, int64_t task, TL_UNUSED int32_t worker)
{
    const max_bwd_args a = *(const max_bwd_args *)arg;
    EACH_UNIT (tile, a.g, task) {
        const int64_t first = tile * a.cut.width, width = tl_imin(a.cols - first, a.cut.width);
        int64_t winners[TL_COLUMN_TILE] = {0};
        for (int64_t chunk = 0; chunk < a.cut.chunks; chunk++)
            for (int64_t j = 0; j < width; j++)
                winners[j] += a.counts[chunk * a.cols + first + j];
        for (int64_t j = first; j < first + width; j++)
            a.shares[j] = winners_share(a.max[j], a.cotangent[j], winners[j - first]);
    }
}

static void write_columns(void *arg, int64_t task, TL_UNUSED int32_t worker)
{
    const max_bwd_args a = *(const max_bwd_args *)arg;
    EACH_UNIT (u, a.g, task) {
        const corner p = find_corner(&a.cut, u);
        const float *max = a.max + p.c0, *share = a.shares + p.c0;
        for (int64_t r = p.r0; r < p.r0 + p.rows; r++)
            write_row(a.x + r * a.cols + p.c0, max, share, p.cols, a.gx + r * a.cols + p.c0);
    }
}

int32_t tl_cpu_reduce_max_axis0_bwd(tl_context *ctx, const float *x, const float *out, const float *g, int64_t rows,
                                    int64_t cols, float *gx)
{
    if (cols == 1) return tl_cpu_reduce_max_axis1_bwd(ctx, x, out, g, 1, rows, gx);
    max_bwd_args a = {.cut = {.rows = rows, .cols = cols}, .x = x, .max = out, .cotangent = g, .cols = cols, .gx = gx};
    cut_columns(&a.cut);
    const int64_t units = a.cut.chunks * a.cut.tiles, size = tl_imin(rows, TL_COLUMN_CHUNK) * a.cut.width;
    void *scratch;
    int32_t status = tl_pool_alloc(ctx, (size_t)((a.cut.chunks + 1) * cols) * sizeof(float), &scratch);
    if (status) return status;
    a.shares = scratch;
    a.counts = (int32_t *)scratch + cols;
    run(count_columns, &a, &a.g, units, size);
    run(share_columns, &a, &a.g, a.cut.tiles, a.cut.chunks * a.cut.width);
    run(write_columns, &a, &a.g, units, size);
    tl_pool_free(ctx, scratch);
    return TORCHLEAN_OK;
}
