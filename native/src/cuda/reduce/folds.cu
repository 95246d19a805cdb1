/* Folds over any set of axes on CUDA, in the order of formula/fold.h.
 *
 * Where the last axis is kept, a team of lanes x columns threads owns a segment of the reduced elements of `columns` results that lie
 * side by side; a thread owns one lane of one result, all of whose elements it loads before it takes the first. So a warp reads
 * whole lines along the kept axis. Where the last axis is reduced, and for the segments' values, a block owns a row, or up to 256
 * segments of it, and folds the segments' values too (reduce/fold_rows.cu): most reductions take one or two launches. */
#include <type_traits>

#include "cuda/reduce/folds.cuh"

namespace {

using namespace tl_folds;

constexpr int COLUMNS = 32;
/* Blocks on a multiprocessor of threads that load n elements at once: as many as have registers for them. The compiler, which would load
 * one by one to have more, is told so few. */
template <tl_fold_kind KIND> constexpr int resident(int n) { return DEAR<KIND> || n > 24 ? 3 : n > 8 ? 4 : 5; }

/* A fold of x. What it ends as goes to out, or the segments' values to `to` (planes of results x segments). `centre` are the values
 * of an earlier fold, `centre_out` the results of one; both may be missing. */
struct Fold {
    const float *x;
    const double *centre;
    const float *centre_out;
    double *to;
    float *out;
    Axes kept, reduced;
    int64_t results;
    uint32_t length, inner, units; /* an array has fewer than 2^32 elements */
    tl_fastdiv segments, tiles;
    int lane_bits, column_bits; /* a team has 2^lane_bits lanes of 2^column_bits columns */
    tl_fold_rule rule;
};

/* The fold of a team's lanes in halves, of which f is this thread's, for lane 0. All threads must call. */
template <tl_fold_kind KIND>
__device__ __forceinline__ tl_folded fold_team(const Fold &a, tl_folded f, int lane, double (*values)[THREADS])
{
    constexpr bool PRODUCT = KIND == TL_FOLD_PRODUCT;
    for (int half = 1 << a.lane_bits >> 1; half > 0; half /= 2) {
        const int other = (int)threadIdx.x + (half << a.column_bits);
        values[0][threadIdx.x] = f.v;
        if constexpr (PRODUCT) values[1][threadIdx.x] = f.e, values[2][threadIdx.x] = f.zeros;
        __syncthreads();
        if (lane < half)
            tl_fold_join(KIND, &f.v, &f.e, &f.zeros, values[0][other], PRODUCT ? values[PRODUCT][other] : 0.0,
                         PRODUCT ? values[2 * PRODUCT][other] : 0.0);
        __syncthreads();
    }
    return f;
}

/* REDUCED: 1 where one merged axis is reduced, 0 for any number. N: the elements of a lane that are loaded at once; a lane has more
 * only where they are dear. */
template <tl_fold_kind KIND, int REDUCED, int N>
__global__ void __launch_bounds__(THREADS, resident<KIND>(N)) fold_kernel(Fold a)
{
    __shared__ double values[KIND == TL_FOLD_PRODUCT ? TL_FOLD_PLANES : 1][THREADS];
    __shared__ std::conditional_t<KIND == TL_FOLD_DEVIATION, double[THREADS], char> sums; /* of the teams' columns */
    tl_wait_for_earlier(TL_AFTER, gridDim.x);
    const int t = (int)threadIdx.x, lanes = 1 << a.lane_bits, columns = 1 << a.column_bits;
    const int own_column = t & (columns - 1), lane = t >> a.column_bits & (lanes - 1);
    const int team_bits = a.column_bits + a.lane_bits, team = t >> team_bits;
    const uint32_t first = blockIdx.x * (THREADS >> team_bits); /* unit of the block */
    uint32_t segment, tile;
    const uint32_t k = a.tiles.divmod(a.segments.divmod(first + team, &segment), &tile);
    const uint32_t column = (tile << a.column_bits) + own_column, result = k * a.inner + column;
    const bool inside = team < a.units - first && column < a.inner;
    const float *const x = inside ? a.x + offset_of(a.kept, k) + column : a.x;
    const uint32_t begin = segment * SEGMENT, rest = begin < a.length ? a.length - begin : 0;
    const int n = inside ? (int)min(rest, (uint32_t)SEGMENT) : 0;
    const int count = n > lane ? ((n - lane - 1) >> a.lane_bits) + 1 : 0; /* of the lane's elements */
    float y[N];
    const auto load = [&](int done) {
        const uint32_t at = begin + lane + ((uint32_t)done << a.lane_bits);
        if constexpr (REDUCED == 1)
            load_lane<KIND>(y, x, a.reduced.stride[0], at, lanes, count - done);
        else
            load_lane<KIND, 0>(y, x, a.reduced, at, lanes, count - done);
        keep_floats(y);
    };
    tl_folded f = {tl_fold_start(KIND), 0.0, 0.0}, sum = {0.0, 0.0, 0.0};
    double m = 0.0;
    if constexpr (KIND == TL_FOLD_DEVIATION) {
        load(0);
        take_all<TL_FOLD_SUM>(sum, y, count, 0.0, a.rule);
        sum = fold_team<TL_FOLD_SUM>(a, sum, lane, values);
        sums[t] = sum.v;
        __syncthreads();
        sum.v = sums[t - (lane << a.column_bits)];
        m = mean_of_segment(sum.v, n);
        keep_floats(y);
        take_all<KIND>(f, y, count, m, a.rule);
    } else {
        if (inside) m = centre_of<KIND>(a.centre, a.centre_out, result);
#pragma unroll 1
        for (int done = 0; done < count; done += N) {
            load(done);
            take_all<KIND>(f, y, count - done, m, a.rule);
        }
    }
    f = fold_team<KIND>(a, f, lane, values);
    if (!inside || lane > 0) return;
    if (a.out) {
        a.out[result] = tl_fold_end(KIND, f, m, a.rule);
        return;
    }
    const int64_t plane = a.results * a.segments.divisor;
    double *const to = a.to + (int64_t)result * a.segments.divisor + segment;
    to[0] = f.v;
    if constexpr (KIND == TL_FOLD_DEVIATION) to[plane] = sum.v;
    if constexpr (KIND == TL_FOLD_PRODUCT) to[plane] = f.e, to[2 * plane] = f.zeros;
}

template <int REDUCED, int N> auto fold_kernel_of(tl_fold_kind kind) -> void (*)(Fold)
{
    return for_kind<void (*)(Fold)>(kind, [](auto k) {
        constexpr tl_fold_kind KIND = decltype(k)::value;
        return fold_kernel < KIND, REDUCED, DEAR<KIND> ? 8 : N > ;
    });
}

/* ---- the launches ------------------------------------------------------------------------------------------------- */

/* The values: no more than a block's teams fold at once. */
int64_t extent_of_values(int64_t length) { return length > TEAMS * SEGMENT ? SEGMENT : TL_FOLD_ROW; }

/* The segments of x, whose values or ends go to `to` or out. */
int32_t run_segments(tl_context *ctx, const tl_fold_plan &p, int64_t segments, double *to, float *out)
{
    Fold a = {p.x, p.centre, p.centre_out, to, out};
    a.kept = axes_of(p.f.kept, p.f.kept_size, p.f.kept_stride);
    a.reduced = axes_of(p.f.reduced, p.f.reduced_size, p.f.reduced_stride);
    a.results = p.results(), a.length = (uint32_t)p.f.length, a.inner = (uint32_t)p.f.inner, a.rule = p.rule;
    while (1 << a.column_bits < COLUMNS && 1u << a.column_bits < a.inner)
        a.column_bits++;
    const int64_t tiles = tl_ceil_div(a.inner, (int64_t)1 << a.column_bits), lanes = tl_fold_width(a.length);
    while (1 << a.lane_bits < lanes)
        a.lane_bits++;
    a.segments = tl_fastdiv((uint64_t)segments), a.tiles = tl_fastdiv((uint64_t)tiles);
    a.units = (uint32_t)(p.f.outer * tiles * segments);
    const auto kernel = a.reduced.count != 1     ? fold_kernel_of<0, PER_LANE>(p.kind)
                        : a.length <= 8 * lanes  ? fold_kernel_of<1, 8>(p.kind)
                        : a.length <= 16 * lanes ? fold_kernel_of<1, 16>(p.kind)
                                                 : fold_kernel_of<1, PER_LANE>(p.kind);
    return tl_launch_ahead(ctx, p.name, kernel, tl_grid(a.units, THREADS >> (a.lane_bits + a.column_bits)), THREADS, 0,
                           a);
}

} // namespace

int32_t tl_cuda_fold(tl_context *ctx, const tl_fold_plan &p, double *values, float *out)
{
    if (p.results() == 0) return TORCHLEAN_OK;
    const bool by_rows = tl_select_fold(&p.f) == TL_FOLD_ROWS;
    /* fewer than 2^32 elements have at most 256^3 segments */
    tl_scratch<double> parts[] = {tl_scratch<double>(ctx), tl_scratch<double>(ctx), tl_scratch<double>(ctx)};
    const double *from = nullptr;
    int64_t length = p.f.length, each = 1;
    for (int level = 0;; level++) {
        const bool rows = level > 0 || by_rows;
        const int64_t extent = level > 0 ? extent_of_values(length)
                               : rows    ? tl_fold_extent(&p.f, tl_cuda_sms(ctx))
                                         : SEGMENT;
        const int64_t left = tl_imax(1, tl_ceil_div(length, extent));
        if (left > 1) TL_TRY(parts[level].allocate(tl_fold_planes(p.kind) * p.results() * left));
        double *const to = left > 1 ? (double *)parts[level] : values;
        float *const end = left > 1 ? nullptr : out;
        TL_TRY(rows ? run_rows(ctx, p, from, length, extent, each, to, end) : run_segments(ctx, p, left, to, end));
        if (left == 1) return TORCHLEAN_OK;
        from = to, length = left, each *= extent;
    }
}

int32_t tl_cuda_fold_twice(tl_context *ctx, tl_fold_plan p, tl_fold_kind kind, float *out)
{
    tl_scratch<double> values(ctx);
    TL_TRY(values.allocate(p.results()));
    TL_TRY(tl_cuda_fold(ctx, p, values, nullptr));
    p.centre = values, p.kind = kind;
    return tl_cuda_fold(ctx, p, nullptr, out);
}
