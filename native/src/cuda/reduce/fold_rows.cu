/* Folds on CUDA of results whose last axis is reduced, and of the values that an earlier level left, in the order of formula/fold.h:
 * a block owns a row, or up to 256 segments of it, and folds the segments' values too. */
#include "cuda/reduce/folds.cuh"

namespace {

using namespace tl_folds;

/* A row: up to `extent` consecutive elements of a result whose last axis is reduced, or of the values `from` that an earlier
 * level left, planes of results x length, each of `each` elements. A block owns one row or several. A team of LANES threads owns
 * a segment, every 32nd one of a long row; the segments' values stay in shared memory, where a team folds them. */
constexpr int ROW_SEGMENTS = SEGMENT;

struct Rows {
    const float *x;
    const double *from, *centre;
    const float *centre_out;
    double *to;
    float *out;
    Axes kept, reduced;
    int64_t rows, results, length, each, extent;
    tl_fastdiv parts;   /* rows of a result */
    int segments, room; /* of a row at most, and the teams that it has: one for each, or all */
    int lanes, width;   /* lanes that fold a segment, and the segments' values */
    tl_fold_rule rule;
};

/* A thread's row, as its team sees it. */
struct Row {
    const float *x;                      /* the result's elements */
    int64_t index, result, begin;        /* begin: its first element or value within the result */
    int length, segments, segment, lane; /* segment: the team's first */
    int first;                           /* where the row's values lie in shared memory */
};

/* a and b together, of products without taking the power of two out of the number: up to 256 numbers below 2 stay below 2^256,
 * and the powers of two change no rounding. */
template <tl_fold_kind KIND> __device__ __forceinline__ void join(tl_folded *a, double v, double e, double zeros)
{
    if constexpr (KIND == TL_FOLD_PRODUCT)
        a->v *= v, a->e += e, a->zeros += zeros;
    else
        tl_fold_join(KIND, &a->v, &a->e, &a->zeros, v, e, zeros);
}

/* Folds the first 2^k lanes of each team in halves, for all of its lanes; products, which are no centres, for lane 0. */
template <tl_fold_kind KIND> __device__ __forceinline__ void fold_lanes(int lanes, tl_folded *f)
{
    constexpr bool PRODUCT = KIND == TL_FOLD_PRODUCT;
    for (int half = lanes / 2; half > 0; half /= 2) {
        const double v = __shfl_down_sync(~0u, f->v, half, LANES);
        const double e = PRODUCT ? __shfl_down_sync(~0u, f->e, half, LANES) : 0.0;
        const double zeros = PRODUCT ? __shfl_down_sync(~0u, f->zeros, half, LANES) : 0.0;
        join<KIND>(f, v, e, zeros);
    }
    if constexpr (PRODUCT)
        tl_fold_normalize(&f->v, &f->e);
    else
        f->v = __shfl_sync(~0u, f->v, 0, LANES);
}

/* The fold of the n values at `from`, in planes, by `lanes` lanes of a team, for all of them. Each value is that of `each`
 * elements of the result, of which `behind` lie before; the last may be one of fewer. */
template <tl_fold_kind KIND>
__device__ __forceinline__ tl_folded join_values(const double *from, int64_t plane, int n, int lanes, int lane,
                                                 int64_t each, int64_t behind, tl_fold_rule rule)
{
    tl_folded f = {tl_fold_start(KIND), 0.0, 0.0};
    const int first = lane < lanes ? lane : n;
    if constexpr (KIND == TL_FOLD_DEVIATION) {
        tl_folded sum = {0.0, 0.0, 0.0};
#pragma unroll 8
        for (int r = first; r < n; r += lanes)
            sum.v += from[plane + r];
        fold_lanes<TL_FOLD_SUM>(lanes, &sum);
        const double m = sum.v / (double)min(n * each, rule.n - behind);
#pragma unroll 4
        for (int r = first; r < n; r += lanes)
            f.v += tl_fold_around(from[r], from[plane + r], (double)min(each, rule.n - behind - r * each), m);
        fold_lanes<KIND>(lanes, &f);
        f.e = sum.v;
    } else {
#pragma unroll 8
        for (int r = first; r < n; r += lanes)
            join<KIND>(&f, from[r], KIND == TL_FOLD_PRODUCT ? from[plane + r] : 0.0,
                       KIND == TL_FOLD_PRODUCT ? from[2 * plane + r] : 0.0);
        fold_lanes<KIND>(lanes, &f);
    }
    return f;
}

/* A fold's value, in planes from `to` on. */
template <tl_fold_kind KIND> __device__ __forceinline__ void put_value(const tl_folded &f, double *to, int64_t plane)
{
    to[0] = f.v;
    if constexpr (tl_fold_planes(KIND) > 1) to[plane] = f.e;
    if constexpr (tl_fold_planes(KIND) > 2) to[2 * plane] = f.zeros;
}

/* The fold of segment s of a row, for all lanes of its team; of deviations the sum beside them. */
template <tl_fold_kind KIND, int REDUCED>
__device__ __forceinline__ tl_folded fold_segment(const Rows &a, const Row &row, int s, double m)
{
    /* Below 1 behind the row. Not raised to 0: of max(min(r, SEGMENT), 0), ptxas 13.0 takes the answer to n == SEGMENT
     * (mean_of_segment) from VIMNMX.RELU's predicate, and short segments had the mean of whole ones. */
    const int n = min(row.length - s * SEGMENT, SEGMENT);
    const int64_t begin = row.begin + s * SEGMENT;
    if constexpr (REDUCED < 0) {
        return join_values<KIND>(a.from + row.result * a.length + begin, a.results * a.length, n, a.lanes, row.lane,
                                 a.each, begin * a.each, a.rule);
    } else {
        tl_folded f = {tl_fold_start(KIND), 0.0, 0.0};
        if (__all_sync(~0u, n < 1)) return f; /* a warp behind the row takes no turns from the others */
        const int count = (n - row.lane + LANES - 1) / LANES;
        float y[PER_LANE];
        if constexpr (REDUCED == 1)
            load_lane<KIND>(y, row.x, 1, (uint32_t)begin + row.lane, LANES, count);
        else
            load_lane<KIND, 2>(y, row.x, a.reduced, (uint32_t)begin + row.lane, LANES, count);
        tl_folded sum = {0.0, 0.0, 0.0};
        if constexpr (KIND == TL_FOLD_DEVIATION) {
            keep_floats(y);
            take_all<TL_FOLD_SUM>(sum, y, count, 0.0, a.rule);
            fold_lanes<TL_FOLD_SUM>(LANES, &sum);
            m = mean_of_segment(sum.v, n);
        }
        keep_floats(y);
        take_all<KIND>(f, y, count, m, a.rule);
        fold_lanes<KIND>(LANES, &f);
        if (KIND == TL_FOLD_DEVIATION) f.e = sum.v;
        return f;
    }
}

/* The fold of a row, for all of its threads. All threads must call. */
template <tl_fold_kind KIND, int REDUCED>
__device__ __forceinline__ tl_folded fold_row(const Rows &a, const Row &row, double m, double (*values)[ROW_SEGMENTS])
{
    tl_folded f;
#pragma unroll 1
    for (int above = 0; above < a.segments; above += TEAMS) {
        const int s = above + row.segment;
        f = fold_segment<KIND, REDUCED>(a, row, s, m);
        if (row.lane == 0 && s < row.segments) put_value<KIND>(f, &values[0][row.first + s], ROW_SEGMENTS);
    }
    if (a.segments == 1) return f;
    __syncthreads();
    return join_values<KIND>(&values[0][row.first], ROW_SEGMENTS, row.segments, a.width, row.lane, SEGMENT * a.each,
                             row.begin * a.each, a.rule);
}

template <tl_fold_kind KIND, int REDUCED>
__global__ void __launch_bounds__(THREADS, resident_rows(KIND, REDUCED)) rows_kernel(Rows a)
{
    tl_wait_for_earlier();
    const int team = (int)threadIdx.x / LANES;
    Row row;
    uint32_t part;
    row.index = (int64_t)blockIdx.x * (TEAMS / a.room) + team / a.room;
    row.result = a.parts.divmod((uint32_t)row.index, &part);
    row.begin = (int64_t)part * a.extent;
    row.length = row.index < a.rows && team < TEAMS / a.room * a.room ? (int)min(a.length - row.begin, a.extent) : 0;
    row.segments = (row.length + SEGMENT - 1) / SEGMENT;
    row.segment = team % a.room, row.first = team - row.segment, row.lane = (int)threadIdx.x % LANES;
    if (row.length == 0) row.result = row.begin = 0; /* of which nothing is read */
    if constexpr (REDUCED >= 0) row.x = a.x + offset_of(a.kept, (uint32_t)row.result);
    double m = REDUCED >= 0 ? centre_of<KIND>(a.centre, a.centre_out, row.result) : 0.0;
    __shared__ double values[tl_fold_planes(KIND)][ROW_SEGMENTS];
    const tl_folded f = fold_row<KIND, REDUCED>(a, row, m, values);
    if (row.lane > 0 || row.segment > 0 || row.length == 0) return;
    if (REDUCED < 0 && a.out) m = centre_of<KIND>(a.centre, a.centre_out, row.result);
    if (a.out)
        a.out[row.index] = tl_fold_end(KIND, f, m, a.rule);
    else
        put_value<KIND>(f, a.to + row.index, a.rows);
}

template <int REDUCED> auto rows_kernel_of(tl_fold_kind kind) -> void (*)(Rows)
{
    return for_kind<void (*)(Rows)>(kind, [](auto k) { return rows_kernel<decltype(k)::value, REDUCED>; });
}

} // namespace

int32_t tl_folds::run_rows(tl_context *ctx, const tl_fold_plan &p, const double *from, int64_t length, int64_t extent,
                           int64_t each, double *to, float *out)
{
    Rows a = {p.x, from, p.centre, p.centre_out, to, out};
    const int64_t segments = tl_ceil_div(length, SEGMENT);
    a.kept = axes_of(p.f.kept, p.f.kept_size, p.f.kept_stride);
    a.reduced = axes_of(p.f.reduced, p.f.reduced_size, p.f.reduced_stride);
    a.parts = tl_fastdiv((uint64_t)tl_ceil_div(length, extent));
    a.results = p.results(), a.rows = a.results * a.parts.divisor, a.length = length, a.each = each, a.extent = extent;
    a.segments = (int)tl_imin(segments, extent / SEGMENT);
    a.lanes = (int)tl_fold_width(length), a.width = (int)tl_fold_width(segments);
    a.room = (int)tl_imin(a.segments, TEAMS);
    a.rule = p.rule;
    const auto kernel = from                   ? rows_kernel_of<-1>(p.kind)
                        : a.reduced.count == 1 ? rows_kernel_of<1>(p.kind)
                                               : rows_kernel_of<2>(p.kind);
    return tl_launch_ahead(ctx, p.name, kernel, tl_grid(a.rows, TEAMS / a.room), THREADS, 0, a);
}
