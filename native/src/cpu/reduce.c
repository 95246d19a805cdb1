/* Reductions on the CPU: sums, means and maxima, along one axis or over everything, and their gradients.
 *
 * Any reduction is seen as (outer, length, inner), the axis in the middle. With inner = 1 the elements of a sum are
 * contiguous and a row is the unit (cut into leaves of TL_SUM_LEAF if it is long); otherwise a unit is a chunk of
 * TL_COLUMN_CHUNK rows and a tile of up to TL_COLUMN_TILE columns. What is left of a long axis, one value per leaf or
 * chunk, is the input of the same reduction again. Units and tasks follow from the shape alone.
 *
 * The order of additions is that of formula/sum_tree.h. A maximum has no order, so it takes the same cuts. */
#include "cpu/extreme.h"
#include "cpu/reduce_units.h"
#include "cpu/row_bundle.h"
#include "cpu/stream.h"
#include "cpu/sum_tree.h"
#include "formula/base.h"
#include "formula/count.h"
#include "formula/integer.h"
#include "generated/reduce.h"
#include "generated/shape.h"

enum {
    AHEAD = 1024 /* elements between what is summed and what is fetched: 4 KiB, some 100 ns of a processor's reading */
};

/* ---- extremes ---------------------------------------------------------------------------------------------------- */

PASS range_of_four_rows(const float *const row[4], int64_t width, int32_t *restrict least, int32_t *restrict greatest)
{
    const bits32 *a = (const bits32 *)row[0], *b = (const bits32 *)row[1];
    const bits32 *c = (const bits32 *)row[2], *d = (const bits32 *)row[3];
    for (int64_t j = 0; j < width; j++) {
        const int32_t ka = order_key(a[j]), kb = order_key(b[j]), kc = order_key(c[j]), kd = order_key(d[j]);
        least[j] = lesser(least[j], lesser(lesser(ka, kb), lesser(kc, kd)));
        greatest[j] = greater(greatest[j], greater(greater(ka, kb), greater(kc, kd)));
    }
}

/* Extremes of a chunk's columns; four rows per pass over the tile's running ranges. */
static void chunk_extremes(const float *x, int64_t rows, int64_t stride, int64_t width, int smallest, float *out)
{
    _Alignas(64) int32_t least[TL_COLUMN_TILE], greatest[TL_COLUMN_TILE];
    for (int64_t j = 0; j < width; j++) {
        least[j] = INT32_MAX;
        greatest[j] = INT32_MIN;
    }
    for (int64_t r = 0; r < rows; r += 4) {
        const float *row[4];
        for (int64_t i = 0; i < 4; i++)
            row[i] = x + tl_imin(r + i, rows - 1) * stride; /* past the end the last row counts again */
        range_of_four_rows(row, width, least, greatest);
    }
    for (int64_t j = 0; j < width; j++)
        out[j] = from_keys(least[j], greatest[j], smallest);
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

typedef struct rows_args {
    grain g;
    const float *x;
    int64_t cols, leaves, count;
    int smallest; /* of extremes */
    float start;  /* of sums of one element */
    float *out;
} rows_args;

/* A unit is one row. The tree of a row of a few steps over the lanes takes lines that are far apart, of which the processor does not
 * foresee the next: lines are fetched ahead in the order of memory. */
static void sum_rows(void *arg, int64_t task, TL_UNUSED int32_t worker)
{
    const rows_args a = *(const rows_args *)arg;
    int64_t row = task * a.g.per_task;
    const int64_t last = tl_imin(a.g.units, row + a.g.per_task);
    for (; a.cols == 1 && row < last; row++)
        a.out[row] = tl_end_sum(a.x[row] + a.start, a.count);
    for (; a.cols > 0 && a.cols <= TL_BUNDLE_COLS / 2 && row + TL_BUNDLE <= last; row += TL_BUNDLE) {
        tl_bundle x;
        tl_bundle_stat sum;
        tl_read_bundle(a.x + row * a.cols, TL_BUNDLE, tl_short(a.cols), x);
        TL_BUNDLE_SUM(sum, tl_short(a.cols), x[i]);
        for (int32_t r = 0; r < TL_BUNDLE; r++)
            a.out[row + r] = tl_end_sum(sum[r], a.count);
    }
    const int far = a.g.units * a.cols >= TL_FETCH_FROM && a.cols <= TL_SUM_FEW;
    for (; row < last; row++) {
        const float *const x = a.x + row * a.cols;
        for (int64_t i = 0; far && i < a.cols; i += TL_LINE)
            __builtin_prefetch(x + AHEAD + i, 0, 3);
        a.out[row] = tl_end_sum(tl_row_sum(x, a.cols), a.count);
    }
}

/* Rows of so few elements that a constant number of them is a few straight instructions. */
static inline __attribute__((always_inline)) void narrow_extremes(const float *restrict x, int64_t rows, int64_t cols,
                                                                  int smallest, float *restrict out)
{
    for (int64_t r = 0; r < rows; r++) {
        int32_t least = INT32_MAX, greatest = INT32_MIN;
        for (int64_t i = 0; i < cols; i++) {
            const int32_t key = order_key(tl_bits(x[r * cols + i]));
            least = lesser(least, key);
            greatest = greater(greatest, key);
        }
        out[r] = from_keys(least, greatest, smallest);
    }
}

static void extreme_rows(void *arg, int64_t task, TL_UNUSED int32_t worker)
{
    const rows_args a = *(const rows_args *)arg;
    const int64_t first = task * a.g.per_task, rows = tl_imin(a.g.units - first, a.g.per_task);
    const float *x = a.x + first * a.cols;
    float *out = a.out + first;
#define NARROW(width) \
    case width: narrow_extremes(x, rows, width, a.smallest, out); break;
    switch (a.cols) {
        NARROW(1)
        NARROW(2)
        NARROW(3)
        NARROW(4)
        NARROW(5)
        NARROW(6)
        NARROW(7)
        NARROW(8)
    default:
        for (int64_t r = 0; r < rows; r++)
            out[r] = leaf_extreme(x + r * a.cols, a.cols, a.smallest);
    }
#undef NARROW
}

/* A unit is one leaf of a row. */
static void sum_leaves(void *arg, int64_t task, TL_UNUSED int32_t worker)
{
    const rows_args a = *(const rows_args *)arg;
    EACH_UNIT (u, a.g, task) {
        const int64_t first = u % a.leaves * TL_SUM_LEAF;
        a.out[u] = tl_leaf_sum(a.x + u / a.leaves * a.cols + first, tl_imin(a.cols - first, TL_SUM_LEAF));
    }
}

static void extreme_leaves(void *arg, int64_t task, TL_UNUSED int32_t worker)
{
    const rows_args a = *(const rows_args *)arg;
    EACH_UNIT (u, a.g, task) {
        const int64_t first = u % a.leaves * TL_SUM_LEAF;
        const float *leaf = a.x + u / a.leaves * a.cols + first;
        a.out[u] = leaf_extreme(leaf, tl_imin(a.cols - first, TL_SUM_LEAF), a.smallest);
    }
}

/* Rows as they are, or, where they are too few to occupy the threads, leaves first and then the rows of their results. */
static int32_t reduce_rows(tl_context *ctx, tl_task_fn by_row, tl_task_fn by_leaf, rows_args a, int64_t rows)
{
    enum { MANY = 64 };
    if (rows >= MANY || a.cols <= TASK) {
        run(by_row, &a, &a.g, rows, a.cols);
        return TORCHLEAN_OK;
    }
    float *const out = a.out;
    void *scratch;
    a.leaves = tl_ceil_div(a.cols, TL_SUM_LEAF);
    int32_t status = tl_pool_alloc(ctx, (size_t)(rows * a.leaves) * sizeof(float), &scratch);
    if (status) return status;
    a.out = scratch;
    run(by_leaf, &a, &a.g, rows * a.leaves, TL_SUM_LEAF);
    a.x = scratch;
    a.cols = a.leaves;
    a.out = out;
    run(by_row, &a, &a.g, rows, a.cols);
    tl_pool_free(ctx, scratch);
    return TORCHLEAN_OK;
}

int32_t tl_row_sums(tl_context *ctx, const float *x, int64_t rows, int64_t cols, int64_t count, float *out)
{
    return reduce_rows(ctx, sum_rows, sum_leaves, (rows_args){.x = x, .cols = cols, .count = count, .out = out}, rows);
}

/* ---- columns ----------------------------------------------------------------------------------------------------- */

static void sum_columns(void *arg, int64_t task, TL_UNUSED int32_t worker)
{
    const columns_args a = *(const columns_args *)arg;
    EACH_UNIT (u, a.g, task) {
        const corner p = find_corner(&a, u);
        float *out = a.out + (p.o * a.chunks + p.chunk) * a.cols + p.c0;
        tl_column_chunk_sum(a.x + (p.o * a.rows + p.r0) * a.cols + p.c0, p.rows, a.cols, p.cols, out);
        if (a.chunks == 1 && a.count > 0)
            for (int64_t j = 0; j < p.cols; j++)
                out[j] = tl_per_count(out[j], a.count);
    }
}

static void extreme_columns(void *arg, int64_t task, TL_UNUSED int32_t worker)
{
    const columns_args a = *(const columns_args *)arg;
    EACH_UNIT (u, a.g, task) {
        const corner p = find_corner(&a, u);
        chunk_extremes(a.x + (p.o * a.rows + p.r0) * a.cols + p.c0, p.rows, a.cols, p.cols, a.smallest,
                       a.out + (p.o * a.chunks + p.chunk) * a.cols + p.c0);
    }
}

static int32_t reduce_columns(tl_context *ctx, tl_task_fn fn, columns_args a, int64_t outer)
{
    float *const out = a.out;
    void *scratch = NULL;
    for (;;) {
        void *partial = NULL;
        cut_columns(&a);
        if (a.chunks > 1) {
            int32_t status = tl_pool_alloc(ctx, (size_t)(outer * a.chunks * a.cols) * sizeof(float), &partial);
            if (status) {
                tl_pool_free(ctx, scratch);
                return status;
            }
        }
        a.out = a.chunks > 1 ? partial : out;
        run(fn, &a, &a.g, outer * a.chunks * a.tiles, tl_imin(a.rows, TL_COLUMN_CHUNK) * a.width);
        tl_pool_free(ctx, scratch);
        if (a.chunks == 1) return TORCHLEAN_OK;
        scratch = partial;
        a.x = scratch;
        a.rows = a.chunks;
    }
}

int32_t tl_column_sums(tl_context *ctx, const float *x, int64_t outer, int64_t rows, int64_t cols, int64_t count,
                       float *out)
{
    const columns_args a = {.x = x, .rows = rows, .cols = cols, .count = count, .out = out};
    return reduce_columns(ctx, sum_columns, a, outer);
}

int32_t tl_extremes(tl_context *ctx, const float *x, int64_t outer, int64_t length, int64_t inner, int smallest,
                    float *out)
{
    const rows_args r = {.x = x, .cols = length, .smallest = smallest, .out = out};
    const columns_args c = {.x = x, .rows = length, .cols = inner, .smallest = smallest, .out = out};
    return inner == 1 ? reduce_rows(ctx, extreme_rows, extreme_leaves, r, outer)
                      : reduce_columns(ctx, extreme_columns, c, outer);
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

/* Any axis: (outer, length, inner). */
typedef struct axis_view {
    int64_t outer, length, inner;
} axis_view;

static axis_view view_axis(const tl_dims *dims, int64_t axis)
{
    axis_view v = {1, dims->d[axis], 1};
    for (int64_t i = 0; i < axis; i++)
        v.outer *= dims->d[i];
    for (int64_t i = axis + 1; i < dims->rank; i++)
        v.inner *= dims->d[i];
    return v;
}

static int32_t sum_axis(tl_context *ctx, const float *x, axis_view v, int64_t count, float *out)
{
    if (v.length == 1) v = (axis_view){v.outer * v.inner, 1, 1}, count = 0; /* rows of one element */
    return v.inner == 1 ? tl_row_sums(ctx, x, v.outer, v.length, count, out)
                        : tl_column_sums(ctx, x, v.outer, v.length, v.inner, count, out);
}

int32_t tl_cpu_reduce_sum_axis(tl_context *ctx, const float *x, const tl_dims *dims, int64_t axis, float *out)
{
    return sum_axis(ctx, x, view_axis(dims, axis), 0, out);
}

int32_t tl_cpu_reduce_mean(tl_context *ctx, const float *x, const tl_dims *dims, int64_t axis, float *out)
{
    const axis_view v = view_axis(dims, axis);
    if (v.length > 0) return sum_axis(ctx, x, v, v.length, out);
    for (int64_t i = 0; i < v.outer * v.inner; i++)
        out[i] = TL_NAN;
    return TORCHLEAN_OK;
}

/* ---- gradients --------------------------------------------------------------------------------------------------- */

/* gx[o,l,i] = g[o,i] / length: the quotients, each written `length` times. */
int32_t tl_cpu_reduce_mean_bwd(tl_context *ctx, const float *g, const tl_dims *dims, int64_t axis, float *gx)
{
    const axis_view v = view_axis(dims, axis);
    const tl_dims in = {2, {v.outer, v.inner}}, out = {3, {v.outer, v.length, v.inner}}, map = {3, {1, 0, 2}};
    void *scratch;
    int32_t status = tl_pool_alloc(ctx, (size_t)(v.outer * v.inner) * sizeof(float), &scratch);
    if (status) return status;
    rows_args a = {{v.outer * v.inner, TASK}, g, .cols = 1, .count = v.length, .start = -0.0f, .out = scratch};
    tl_parallel(tl_ceil_div(a.g.units, TASK), sum_rows, &a);
    status = tl_cpu_broadcast_to(ctx, scratch, &in, &out, &map, gx);
    tl_pool_free(ctx, scratch);
    return status;
}
