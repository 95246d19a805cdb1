/* Reductions on the CPU: sums, means and maxima, along one axis or over everything, and their gradients.
 *
 * Any reduction is seen as (outer, length, inner), the axis in the middle. With inner = 1 the elements of a sum are
 * contiguous and a row is the unit (cut into leaves of TL_SUM_LEAF if it is long); otherwise a unit is a chunk of
 * TL_COLUMN_CHUNK rows and a tile of up to TL_COLUMN_TILE columns. What is left of a long axis, one value per leaf or
 * chunk, is the input of the same reduction again. Units and tasks follow from the shape alone.
 *
 * The order of additions is that of formula/sum_tree.h. A maximum has no order, so it takes the same cuts. */
#include "core/threads.h"
#include "cpu/reduce.h"
#include "cpu/row_bundle.h"
#include "cpu/stream.h"
#include "cpu/sum_tree.h"
#include "formula/base.h"
#include "formula/count.h"
#include "formula/integer.h"
#include "generated/reduce.h"

enum {
    TASK = 65536, /* elements per task: 256 KiB, which pays for handing a task to a thread */
};

/* Runs fn over `units` units of about `size` elements each, several to a task if they are small. The argument starts
 * with a `grain`: fn handles units task*units .. of its task. */
typedef struct grain {
    int64_t units, per_task;
} grain;

static void run(tl_task_fn fn, void *arg, grain *g, int64_t units, int64_t size)
{
    g->units = units;
    g->per_task = size < TASK ? TASK / (size > 0 ? size : 1) : 1;
    tl_parallel(tl_ceil_div(units, g->per_task), fn, arg);
}

#define EACH_UNIT(u, g, task) \
    for (int64_t u = (task) * (g).per_task, u##_end = tl_imin((g).units, u + (g).per_task); u < u##_end; u++)

/* ---- extremes ---------------------------------------------------------------------------------------------------- */

/* A row of floats read as their bit patterns. */
typedef uint32_t __attribute__((may_alias)) bits32;

/* A float as an integer of the same order, -0 below +0. NaNs land beyond the infinities, at the end their sign says, so
 * the least and the greatest key together tell the maximum and whether there was a NaN. */
static inline int32_t order_key(uint32_t bits)
{
    return (int32_t)(bits ^ ((uint32_t)((int32_t)bits >> 31) & 0x7fffffffu));
}

static inline int32_t greater(int32_t a, int32_t b) { return a > b ? a : b; }
static inline int32_t lesser(int32_t a, int32_t b) { return a < b ? a : b; }

static inline float from_keys(int32_t least, int32_t greatest, int smallest)
{
    const int nan = greatest > order_key(0x7f800000u) || least < order_key(0xff800000u);
    return nan ? TL_NAN : tl_from_bits((uint32_t)order_key((uint32_t)(smallest ? least : greatest)));
}

/* The extreme of n >= 1 elements. Integers may be compared in any order, so gcc keeps as many lanes as it likes. */
static float leaf_extreme(const float *x, int64_t n, int smallest)
{
    const bits32 *bits = (const bits32 *)x;
    int32_t least = INT32_MAX, greatest = INT32_MIN;
    for (int64_t i = 0; i < n; i++) {
        const int32_t key = order_key(bits[i]);
        least = lesser(least, key);
        greatest = greater(greatest, key);
    }
    return from_keys(least, greatest, smallest);
}

/* One pass over the columns of a tile is a function of its own: left in a loop over rows, gcc 12 unrolls the outer loop
 * into the inner one and then cannot vectorise it. */
#define PASS static __attribute__((noinline)) void

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
    float *out;
} rows_args;

/* A unit is one row. The tree of a row of a few steps over the lanes takes lines that are far apart, of which the processor does not
 * foresee the next: those of the row that follows are fetched meanwhile. */
static void sum_rows(void *arg, int64_t task, TL_UNUSED int32_t worker)
{
    const rows_args a = *(const rows_args *)arg;
    int64_t row = task * a.g.per_task;
    const int64_t last = tl_imin(a.g.units, row + a.g.per_task);
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
        for (int64_t i = a.cols; far && row + 1 < last && i < 2 * a.cols; i += TL_LINE)
            __builtin_prefetch(x + i, 0, 2);
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

typedef struct columns_args {
    grain g;
    const float *x;
    int64_t rows, cols;           /* of each outer slice */
    int64_t chunks, tiles, width; /* units of a slice; columns per tile */
    int64_t count;
    int smallest; /* of extremes */
    float *out;   /* (outer, chunks, cols) */
} columns_args;

/* The unit's corner: slice o, rows from r0, columns from c0. */
typedef struct corner {
    int64_t o, chunk, r0, rows, c0, cols;
} corner;

static inline corner find_corner(const columns_args *a, int64_t unit)
{
    corner p;
    p.c0 = unit % a->tiles * a->width;
    p.chunk = unit / a->tiles % a->chunks;
    p.o = unit / a->tiles / a->chunks;
    p.r0 = p.chunk * TL_COLUMN_CHUNK;
    p.rows = tl_imin(a->rows - p.r0, TL_COLUMN_CHUNK);
    p.cols = tl_imin(a->cols - p.c0, a->width);
    return p;
}

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

/* Tiles of equal width, whole cache lines except for the last; none is empty, as a full tile is whole lines. */
static void cut_columns(columns_args *a)
{
    a->chunks = a->rows > TL_COLUMN_CHUNK ? tl_ceil_div(a->rows, TL_COLUMN_CHUNK) : 1;
    a->tiles = tl_ceil_div(a->cols, TL_COLUMN_TILE);
    a->width = a->tiles > 1 ? tl_ceil_div(tl_ceil_div(a->cols, a->tiles), 16) * 16 : a->cols;
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
    return v.inner == 1 ? tl_row_sums(ctx, x, v.outer, v.length, count, out)
                        : tl_column_sums(ctx, x, v.outer, v.length, v.inner, count, out);
}

int32_t tl_cpu_reduce_sum(tl_context *ctx, const float *x, int64_t n, float *out)
{
    return tl_row_sums(ctx, x, 1, n, 0, out);
}

int32_t tl_cpu_reduce_sum_axis0(tl_context *ctx, const float *x, int64_t rows, int64_t cols, float *out)
{
    return sum_axis(ctx, x, (axis_view){1, rows, cols}, 0, out);
}

int32_t tl_cpu_reduce_sum_axis1(tl_context *ctx, const float *x, int64_t rows, int64_t cols, float *out)
{
    return tl_row_sums(ctx, x, rows, cols, 0, out);
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

int32_t tl_cpu_reduce_max_axis0(tl_context *ctx, const float *x, int64_t rows, int64_t cols, float *out)
{
    return tl_extremes(ctx, x, 1, rows, cols, 0, out);
}

int32_t tl_cpu_reduce_max_axis1(tl_context *ctx, const float *x, int64_t rows, int64_t cols, float *out)
{
    return tl_extremes(ctx, x, rows, cols, 1, 0, out);
}

/* ---- gradients --------------------------------------------------------------------------------------------------- */

/* gx[o,l,i] = g[o,i] / length. A unit is a tile of a slice's columns and a chunk of its length: the quotients are
 * formed once, then copied. Narrow tiles are first repeated to a longer pattern, since their rows lie side by side. */
static void mean_bwd_units(void *arg, int64_t task, TL_UNUSED int32_t worker)
{
    const columns_args a = *(const columns_args *)arg; /* x is g (outer, cols), out is gx (outer, rows, cols) */
    EACH_UNIT (u, a.g, task) {
        const corner p = find_corner(&a, u);
        float q[TL_COLUMN_TILE];
        const int64_t repeat = p.cols == a.cols ? tl_imin(TL_COLUMN_TILE / p.cols, p.rows) : 1;
        for (int64_t j = 0; j < p.cols; j++)
            q[j] = tl_per_count(a.x[p.o * a.cols + p.c0 + j], a.rows);
        for (int64_t j = p.cols; j < repeat * p.cols; j++)
            q[j] = q[j - p.cols];
        float *out = a.out + (p.o * a.rows + p.r0) * a.cols + p.c0;
        for (int64_t r = 0; r < p.rows; r += repeat)
            memcpy(out + r * a.cols, q, (size_t)(tl_imin(repeat, p.rows - r) * p.cols) * sizeof(float));
    }
}

int32_t tl_cpu_reduce_mean_bwd(TL_UNUSED tl_context *ctx, const float *g, const tl_dims *dims, int64_t axis, float *gx)
{
    const axis_view v = view_axis(dims, axis);
    columns_args a = {.x = g, .rows = v.length, .cols = v.inner, .out = gx};
    cut_columns(&a);
    run(mean_bwd_units, &a, &a.g, v.outer * a.chunks * a.tiles, tl_imin(a.rows, TL_COLUMN_CHUNK) * a.width);
    return TORCHLEAN_OK;
}

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
