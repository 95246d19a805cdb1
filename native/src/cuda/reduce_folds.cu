/* Folds over any set of axes on CUDA, in the order of formula/fold.h.
 *
 * A team of lanes x columns threads owns a segment of the reduced elements of `columns` results that lie side by side (one where
 * the last axis is reduced); a thread owns one lane of one result, all of whose elements it loads before it takes the first
 * (fold_kernel). So a warp reads whole lines along the kept axis, or whole sectors along the reduced one. Where the last axis is
 * reduced, and for the segments' values, a block owns a row, or up to 256 segments of it, and folds the segments' values too
 * (rows_kernel): most reductions take one or two launches. */
#include <type_traits>

#include "cuda/device/instructions.cuh"
#include "cuda/device/reduce_folds.cuh"

namespace {

constexpr int THREADS = 256, COLUMNS = 32;
constexpr int LANES = TL_FOLD_LANES, TEAMS = THREADS / LANES, SEGMENT = TL_FOLD_SEGMENT, PER_LANE = SEGMENT / LANES;
/* Blocks on a multiprocessor: the compiler, which would load one by one to have more, is told so few. */
constexpr int RESIDENT = 4;

/* Merged axes, the innermost first. */
struct Axes {
    int32_t count;
    tl_fastdiv size[TL_FOLD_RANK];
    int64_t stride[TL_FOLD_RANK];
};

Axes axes_of(int32_t count, const int64_t *size, const int64_t *stride)
{
    Axes axes = {count, {}, {}};
    for (int32_t k = 0; k < count; k++) {
        axes.size[k] = tl_fastdiv((uint64_t)(size[k] > 0 ? size[k] : 1));
        axes.stride[k] = stride[k];
    }
    return axes;
}

/* Where the element i along the axes lies, of which there are COUNT, or any number for 0. */
template <int COUNT = 0> __device__ __forceinline__ int64_t offset_of(const Axes &axes, uint32_t i)
{
    int64_t offset = 0;
    const int32_t count = COUNT > 0 ? COUNT : axes.count;
    for (int32_t k = 0; k + 1 < count; k++) {
        uint32_t place;
        i = axes.size[k].divmod(i, &place);
        offset += place * axes.stride[k];
    }
    return count > 0 ? offset + i * axes.stride[count - 1] : 0;
}

/* ---- a thread's elements ----------------------------------------------------------------------------------------- */

/* y = the elements begin, begin + lanes, ... along the reduced axes, `count` of them, and behind them what changes no sum and no
 * product. DENSE: the innermost reduced axis is the last one. */
template <tl_fold_kind KIND, int REDUCED, bool DENSE, int N>
__device__ __forceinline__ void load_lane(float (&y)[N], const float *x, const Axes &reduced, uint32_t begin, int lanes,
                                          int count)
{
    constexpr float NONE = KIND == TL_FOLD_PRODUCT ? 1.0f : 0.0f;
    if constexpr (REDUCED == 1) {
        const int64_t stride = DENSE ? 1 : reduced.stride[0], step = lanes * stride;
        const float *const at = x + begin * stride;
        TL_UNROLL_FOR (int i = 0; i < N; i++)
            y[i] = i < count ? at[i * step] : NONE;
    } else {
        TL_UNROLL_FOR (int i = 0; i < N; i++)
            y[i] = i < count ? x[offset_of<REDUCED>(reduced, begin + (uint32_t)(i * lanes))] : NONE;
    }
}

/* What tl_fold_take makes of elements for an extreme, in whatever order: the largest of integers that are ordered as they are. */
template <tl_fold_kind KIND> __device__ __forceinline__ uint32_t key_of(float x)
{
    const float y = KIND == TL_FOLD_MIN ? -x : KIND == TL_FOLD_LARGEST ? fabsf(x) : x;
    const uint32_t b = tl_bits(y);
    return y != y ? UINT32_MAX : b >> 31 ? ~b : b | UINT32_C(0x80000000);
}

/* The value of the largest key; 0 is that of no element. */
template <tl_fold_kind KIND> __device__ __forceinline__ double value_of_key(uint32_t key)
{
    if (key == 0) return tl_fold_start(KIND);
    if (key == UINT32_MAX) return (double)TL_NAN;
    const double d = (double)tl_from_bits(key >> 31 ? key & UINT32_C(0x7fffffff) : ~key);
    return KIND == TL_FOLD_LARGEST ? d : tl_fold_ordered(d);
}

/* The product of y on v, which is 1 at first. Where all magnitudes lie in 2^+-30, as they mostly do, that of 32 is one of doubles
 * without over- or underflow, and the power of two is taken out once: it changes no rounding. Else four at a time, 2^-596 to 2^512,
 * and zeros are counted. */
template <int N> __device__ __forceinline__ void multiply(const float (&y)[N], double *v, double *e, double *zeros)
{
    static_assert(N <= 32 && N % 4 == 0, "within 2^+-960");
    float least = fabsf(y[0]), largest = least;
    TL_UNROLL_FOR (int i = 1; i < N; i++) {
        least = fminf(least, fabsf(y[i]));
        largest = fmaxf(largest, fabsf(y[i]));
    }
    if (least >= 0x1p-30f && largest <= 0x1p30f) {
        TL_UNROLL_FOR (int i = 0; i < N; i++)
            *v *= (double)y[i];
        tl_fold_normalize(v, e);
        return;
    }
    TL_UNROLL_FOR (int i = 0; i < N; i++) {
        const bool zero = y[i] == 0.0f;
        *v *= (double)(zero ? copysignf(1.0f, y[i]) : y[i]);
        if (zero) *zeros += 1.0;
        if (i % 4 == 3) tl_fold_normalize(v, e);
    }
}

/* tl_fold_take of the first `count` of y, in this order. */
template <tl_fold_kind KIND, int N>
__device__ __forceinline__ void take_all(tl_folded &f, const float (&y)[N], int count, double m, tl_fold_rule rule)
{
    if constexpr (KIND >= TL_FOLD_MAX && KIND <= TL_FOLD_LARGEST) {
        uint32_t key = 0;
        TL_UNROLL_FOR (int i = 0; i < N; i++)
            key = max(key, i < count ? key_of<KIND>(y[i]) : 0);
        f.v = tl_fold_greater(f.v, value_of_key<KIND>(key));
    } else if constexpr (KIND == TL_FOLD_PRODUCT) {
        multiply(y, &f.v, &f.e, &f.zeros);
    } else {
        constexpr bool NOTHING = KIND == TL_FOLD_SUM || KIND == TL_FOLD_ABS ||
                                 KIND == TL_FOLD_SQUARE; /* is that of 0 */
        TL_UNROLL_FOR (int i = 0; i < N; i++) {
            const double d = tl_fold_value(KIND, y[i], m, rule);
            f.v += NOTHING || i < count ? d : 0.0;
        }
    }
}

/* Lest the compiler keep elements as doubles, in twice the registers. */
template <int N> __device__ __forceinline__ void keep_floats(float (&y)[N])
{
    TL_UNROLL_FOR (int i = 0; i < N; i++)
        tl_forget_origin(y[i]);
}

/* ---- segments side by side ---------------------------------------------------------------------------------------- */

/* A fold of x. What it ends as goes to out, or the segments' values to `to` (planes of results x segments). `centre` are the values
 * of an earlier fold, `centre_out` the results of one; both may be missing. */
struct Fold {
    const float *x;
    const double *centre;
    const float *centre_out;
    double *to;
    float *out;
    Axes kept, reduced;
    int64_t results, length, inner, units;
    tl_fastdiv segments,
        tiles; /* segments of a result; 1 where a team takes all `together` of them, one after the other */
    int lanes, columns, together;
    tl_fold_rule rule;
};

/* The centre of a result's elements. */
template <tl_fold_kind KIND>
__device__ __forceinline__ double centre_of(const double *centre, const float *centre_out, int64_t result)
{
    return tl_fold_centre(KIND, centre ? centre[result] : centre_out ? (double)centre_out[result] : 0.0);
}

/* Folds the lanes of a team of a.lanes x a.columns threads in halves, for lane 0 of each column. All threads must call. */
template <tl_fold_kind KIND>
__device__ __forceinline__ void fold_team(const Fold &a, int lane, tl_folded *f, double (*values)[THREADS])
{
    constexpr bool PRODUCT = KIND == TL_FOLD_PRODUCT;
    const int t = (int)threadIdx.x;
    for (int half = a.lanes / 2; half > 0; half /= 2) {
        values[0][t] = f->v;
        if constexpr (PRODUCT) values[1][t] = f->e, values[2][t] = f->zeros;
        __syncthreads();
        const int other = t + half * a.columns;
        if (lane < half)
            tl_fold_join(KIND, &f->v, &f->e, &f->zeros, values[0][other], PRODUCT ? values[PRODUCT][other] : 0.0,
                         PRODUCT ? values[2 * PRODUCT][other] : 0.0);
        __syncthreads();
    }
}

/* So few segments are folded by one lane above them, one after the other. */
constexpr int TOGETHER = 15;

/* The deviations that a team has of its segments, for each column: their values, sums and counts. */
struct Deviations {
    double value[TOGETHER][THREADS / LANES], sum[TOGETHER][THREADS / LANES];
};

/* REDUCED: 1 where one merged axis is reduced, 0 for any number. N: the elements of a lane that are loaded at once; a lane has more
 * only where they are dear. */
template <tl_fold_kind KIND, int REDUCED, int N>
__global__ void __launch_bounds__(THREADS, N > 16 ? 3 : RESIDENT) fold_kernel(Fold a)
{
    constexpr bool DEAR = KIND == TL_FOLD_EXP || KIND == TL_FOLD_POWER;
    __shared__ double values[KIND == TL_FOLD_PRODUCT ? TL_FOLD_PLANES : 1][THREADS];
    __shared__ std::conditional_t<KIND == TL_FOLD_DEVIATION, Deviations, char> kept;
    const int t = (int)threadIdx.x, team = a.lanes * a.columns, lane = t % team / a.columns;
    const int64_t unit = (int64_t)blockIdx.x * (THREADS / team) + t / team;
    uint32_t own_segment, tile;
    const uint32_t k = a.tiles.divmod(a.segments.divmod((uint32_t)unit, &own_segment), &tile);
    const int64_t column = (int64_t)tile * a.columns + t % a.columns, result = (int64_t)k * a.inner + column;
    const bool inside = unit < a.units && column < a.inner;
    const float *const x = inside ? a.x + offset_of(a.kept, k) + column : a.x;
    const double centre = inside && KIND != TL_FOLD_DEVIATION ? centre_of<KIND>(a.centre, a.centre_out, result) : 0.0;
    tl_folded f, all = {tl_fold_start(KIND), 0.0, 0.0}, sum = {0.0, 0.0, 0.0};
#pragma unroll 1
    for (int part = 0; part < a.together; part++) {
        const uint32_t s = own_segment + part, begin = s * SEGMENT + lane;
        const int n = inside ? (int)min(a.length - s * SEGMENT, (int64_t)SEGMENT) : 0;
        const int count = n > lane ? (n - lane + a.lanes - 1) / a.lanes : 0;
        double m = centre;
        float y[N];
        load_lane<KIND, REDUCED, false>(y, x, a.reduced, begin, a.lanes, count);
        keep_floats(y);
        if constexpr (KIND == TL_FOLD_DEVIATION) {
            sum = {0.0, 0.0, 0.0};
            take_all<TL_FOLD_SUM>(sum, y, count, 0.0, a.rule);
            fold_team<TL_FOLD_SUM>(a, lane, &sum, values);
            if (lane == 0) values[0][t] = sum.v;
            __syncthreads();
            m = values[0][t - lane * a.columns] / (double)n;
            __syncthreads();
            keep_floats(y);
        }
        f = {tl_fold_start(KIND), 0.0, 0.0};
        take_all<KIND>(f, y, count, m, a.rule);
        if constexpr (DEAR)
            for (int done = N; done < count; done += N) {
                load_lane<KIND, REDUCED, false>(y, x, a.reduced, begin + (uint32_t)(done * a.lanes), a.lanes,
                                                count - done);
                take_all<KIND>(f, y, count - done, m, a.rule);
            }
        fold_team<KIND>(a, lane, &f, values);
        if (a.together == 1 || lane > 0) continue;
        if constexpr (KIND == TL_FOLD_DEVIATION) {
            const int place = t / team * a.columns + t % a.columns; /* LANES lanes: nobody else's */
            kept.value[part][place] = f.v, kept.sum[part][place] = sum.v;
            all.e += sum.v;
        } else {
            tl_fold_join(KIND, &all.v, &all.e, &all.zeros, f.v, f.e, f.zeros);
        }
    }
    if (!inside || lane > 0) return;
    if (a.together > 1) {
        if constexpr (KIND == TL_FOLD_DEVIATION) {
            const int place = t / team * a.columns + t % a.columns;
            const double m = all.e / (double)a.length;
            for (int s = 0; s < a.together; s++)
                all.v += tl_fold_around(kept.value[s][place], kept.sum[s][place],
                                        (double)min(a.length - s * SEGMENT, (int64_t)SEGMENT), m);
            sum.v = all.e;
        }
        f = all;
    }
    if (a.out) {
        a.out[result] = tl_fold_end(KIND, f, centre, a.rule);
        return;
    }
    const int64_t segments = a.segments.divisor, plane = a.results * segments;
    double *const to = a.to + result * segments + own_segment;
    to[0] = f.v;
    if constexpr (KIND == TL_FOLD_DEVIATION) to[plane] = sum.v;
    if constexpr (KIND == TL_FOLD_PRODUCT) to[plane] = f.e, to[2 * plane] = f.zeros;
}

template <int REDUCED, int N> auto fold_kernel_of(tl_fold_kind kind) -> void (*)(Fold)
{
    switch (kind) {
    case TL_FOLD_SUM: return fold_kernel<TL_FOLD_SUM, REDUCED, N>;
    case TL_FOLD_ABS: return fold_kernel<TL_FOLD_ABS, REDUCED, N>;
    case TL_FOLD_SQUARE: return fold_kernel<TL_FOLD_SQUARE, REDUCED, N>;
    case TL_FOLD_DEVIATION: return fold_kernel<TL_FOLD_DEVIATION, REDUCED, N>;
    case TL_FOLD_EXP: return fold_kernel<TL_FOLD_EXP, REDUCED, 16>;
    case TL_FOLD_POWER: return fold_kernel<TL_FOLD_POWER, REDUCED, 16>;
    case TL_FOLD_EQUAL: return fold_kernel<TL_FOLD_EQUAL, REDUCED, N>;
    case TL_FOLD_MAX: return fold_kernel<TL_FOLD_MAX, REDUCED, N>;
    case TL_FOLD_MIN: return fold_kernel<TL_FOLD_MIN, REDUCED, N>;
    case TL_FOLD_LARGEST: return fold_kernel<TL_FOLD_LARGEST, REDUCED, N>;
    default: return fold_kernel<TL_FOLD_PRODUCT, REDUCED, N>;
    }
}

/* ---- rows --------------------------------------------------------------------------------------------------------- */

/* A row: up to `extent` consecutive elements of a result whose last axis is reduced, or of the values `from` that an earlier
 * level left, planes of results x length, each of `each` elements. A block owns one row or several. A team of LANES threads owns
 * a segment, every 32nd one of a long row; the segments' values stay in shared memory, where a team folds them. */
constexpr int ROW_SEGMENTS = SEGMENT, ROW = ROW_SEGMENTS * SEGMENT;

struct Rows {
    const float *x;
    const double *from, *centre;
    const float *centre_out;
    double *to;
    float *out;
    Axes kept, reduced;
    int64_t rows, results, length, each, extent;
    tl_fastdiv parts;   /* rows of a result */
    int segments, room; /* of a row at most, and the least power of two that holds them, or TEAMS */
    int lanes, width;   /* lanes that fold a segment, and the segments' values */
    tl_fold_rule rule;
};

/* A thread's row, as its team sees it. */
struct Row {
    int64_t index, result, begin;        /* begin: its first element or value within the result */
    int length, segments, segment, lane; /* segment: the team's first */
    int first;                           /* where the row's values lie in shared memory */
};

/* Folds the first 2^k lanes of each team in halves, for all of its lanes. */
template <tl_fold_kind KIND> __device__ __forceinline__ void fold_lanes(int lanes, tl_folded *f)
{
    constexpr bool PRODUCT = KIND == TL_FOLD_PRODUCT;
    for (int half = lanes / 2; half > 0; half /= 2) {
        const double v = __shfl_down_sync(~0u, f->v, half, LANES);
        const double e = PRODUCT ? __shfl_down_sync(~0u, f->e, half, LANES) : 0.0;
        const double zeros = PRODUCT ? __shfl_down_sync(~0u, f->zeros, half, LANES) : 0.0;
        tl_fold_join(KIND, &f->v, &f->e, &f->zeros, v, e, zeros);
    }
    f->v = __shfl_sync(~0u, f->v, 0, LANES);
    if (PRODUCT) f->e = __shfl_sync(~0u, f->e, 0, LANES), f->zeros = __shfl_sync(~0u, f->zeros, 0, LANES);
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
            tl_fold_join(KIND, &f.v, &f.e, &f.zeros, from[r], KIND == TL_FOLD_PRODUCT ? from[plane + r] : 0.0,
                         KIND == TL_FOLD_PRODUCT ? from[2 * plane + r] : 0.0);
        fold_lanes<KIND>(lanes, &f);
    }
    return f;
}

/* The fold of segment s of a row, for all lanes of its team; of deviations the sum beside them. y holds the elements, which are
 * loaded if they are not there. */
template <tl_fold_kind KIND, int REDUCED>
__device__ __forceinline__ tl_folded fold_segment(const Rows &a, const Row &row, int s, float (&y)[PER_LANE], bool load,
                                                  double m)
{
    const int n = max(min(row.length - s * SEGMENT, SEGMENT), 0);
    const int64_t begin = row.begin + s * SEGMENT;
    if constexpr (REDUCED < 0) {
        return join_values<KIND>(a.from + row.result * a.length + begin, a.results * a.length, n, a.lanes, row.lane,
                                 a.each, begin * a.each, a.rule);
    } else {
        const int count = (n - row.lane + LANES - 1) / LANES;
        if (load)
            load_lane<KIND, REDUCED, true>(y, a.x + offset_of(a.kept, (uint32_t)row.result), a.reduced,
                                           (uint32_t)begin + row.lane, LANES, count);
        tl_folded sum = {0.0, 0.0, 0.0};
        if constexpr (KIND == TL_FOLD_DEVIATION) {
            keep_floats(y);
            take_all<TL_FOLD_SUM>(sum, y, count, 0.0, a.rule);
            fold_lanes<TL_FOLD_SUM>(LANES, &sum);
            m = sum.v / (double)n;
        }
        tl_folded f = {tl_fold_start(KIND), 0.0, 0.0};
        keep_floats(y);
        take_all<KIND>(f, y, count, m, a.rule);
        fold_lanes<KIND>(LANES, &f);
        if (KIND == TL_FOLD_DEVIATION) f.e = sum.v;
        return f;
    }
}

/* The fold of a row, for all of its threads. All threads must call, once for each KIND. */
template <tl_fold_kind KIND, int REDUCED>
__device__ __forceinline__ tl_folded fold_row(const Rows &a, const Row &row, float (&y)[PER_LANE], bool load, double m)
{
    constexpr int PLANES = tl_fold_planes(KIND);
    __shared__ double values[PLANES][ROW_SEGMENTS];
    tl_folded f;
#pragma unroll 1
    for (int above = 0; above < a.segments; above += TEAMS) {
        const int s = above + row.segment;
        f = fold_segment<KIND, REDUCED>(a, row, s, y, load || a.segments > TEAMS, m);
        if (row.lane == 0 && s < row.segments) {
            values[0][row.first + s] = f.v;
            if constexpr (PLANES > 1) values[1][row.first + s] = f.e;
            if constexpr (PLANES > 2) values[2][row.first + s] = f.zeros;
        }
    }
    if (a.segments == 1) return f;
    __syncthreads();
    const int64_t each = SEGMENT * a.each;
    return join_values<KIND>(&values[0][row.first], ROW_SEGMENTS, row.segments, a.width, row.lane, each,
                             row.begin * a.each, a.rule);
}

/* KIND's centre is a fold CENTRE, or it has none, or an earlier one. */
template <tl_fold_kind KIND, tl_fold_kind CENTRE, int REDUCED>
__global__ void __launch_bounds__(THREADS, 3) rows_kernel(Rows a)
{
    const int team = (int)threadIdx.x / LANES;
    Row row;
    uint32_t part;
    row.index = (int64_t)blockIdx.x * (TEAMS / a.room) + team / a.room;
    row.result = a.parts.divmod((uint32_t)row.index, &part);
    row.begin = (int64_t)part * a.extent;
    row.length = row.index < a.rows ? (int)min(a.length - row.begin, a.extent) : 0;
    row.segments = (row.length + SEGMENT - 1) / SEGMENT;
    row.segment = team % a.room, row.first = team - row.segment, row.lane = (int)threadIdx.x % LANES;
    if (row.length == 0) row.result = row.begin = 0; /* of which nothing is read */
    float y[PER_LANE];
    double m = 0.0;
    if constexpr (KIND != CENTRE)
        m = tl_fold_centre(KIND, fold_row<CENTRE, REDUCED>(a, row, y, true, 0.0).v);
    else if constexpr (REDUCED >= 0)
        m = centre_of<KIND>(a.centre, a.centre_out, row.result);
    const tl_folded f = fold_row<KIND, REDUCED>(a, row, y, KIND == CENTRE, m);
    if (row.lane > 0 || row.segment > 0 || row.length == 0) return;
    if (a.out) {
        if (REDUCED < 0) m = centre_of<KIND>(a.centre, a.centre_out, row.result);
        a.out[row.index] = tl_fold_end(KIND, f, m, a.rule);
        return;
    }
    a.to[row.index] = f.v;
    if constexpr (tl_fold_planes(KIND) > 1) a.to[a.rows + row.index] = f.e;
    if constexpr (tl_fold_planes(KIND) > 2) a.to[2 * a.rows + row.index] = f.zeros;
}

/* Kinds with a centre of their own take both folds at once where CENTRED. */
template <int REDUCED, bool CENTRED> auto rows_kernel_of(tl_fold_kind kind) -> void (*)(Rows)
{
    switch (kind) {
    case TL_FOLD_SUM: return rows_kernel<TL_FOLD_SUM, TL_FOLD_SUM, REDUCED>;
    case TL_FOLD_ABS: return rows_kernel<TL_FOLD_ABS, TL_FOLD_ABS, REDUCED>;
    case TL_FOLD_SQUARE: return rows_kernel<TL_FOLD_SQUARE, TL_FOLD_SQUARE, REDUCED>;
    case TL_FOLD_DEVIATION: return rows_kernel<TL_FOLD_DEVIATION, TL_FOLD_DEVIATION, REDUCED>;
    case TL_FOLD_EXP: return rows_kernel < TL_FOLD_EXP, CENTRED ? TL_FOLD_MAX : TL_FOLD_EXP, REDUCED > ;
    case TL_FOLD_POWER: return rows_kernel < TL_FOLD_POWER, CENTRED ? TL_FOLD_LARGEST : TL_FOLD_POWER, REDUCED > ;
    case TL_FOLD_EQUAL: return rows_kernel<TL_FOLD_EQUAL, TL_FOLD_EQUAL, REDUCED>;
    case TL_FOLD_MAX: return rows_kernel<TL_FOLD_MAX, TL_FOLD_MAX, REDUCED>;
    case TL_FOLD_MIN: return rows_kernel<TL_FOLD_MIN, TL_FOLD_MIN, REDUCED>;
    case TL_FOLD_LARGEST: return rows_kernel<TL_FOLD_LARGEST, TL_FOLD_LARGEST, REDUCED>;
    default: return rows_kernel<TL_FOLD_PRODUCT, TL_FOLD_PRODUCT, REDUCED>;
    }
}

/* ---- the launches ------------------------------------------------------------------------------------------------- */

/* Whether blocks own rows of x: not long ones where a few of them would read it alone. */
bool in_rows(tl_context *ctx, const tl_fold_axes &f)
{
    return f.inner == 1 && (f.reduced == 1 || f.reduced == 2) && tl_fold_width(f.length) == LANES &&
           (f.length <= 4 * TEAMS * SEGMENT || f.outer * tl_ceil_div(f.length, ROW) >= 2 * (int64_t)tl_cuda_sms(ctx));
}

/* The elements of x, or the values, that a row of run_rows has: of values no more than a block's teams fold at once. */
int64_t extent_of(bool values, int64_t length) { return values && length > TEAMS * SEGMENT ? SEGMENT : ROW; }

/* Rows of x, or of values of `each` elements, `length` of either for a result. */
int32_t run_rows(tl_context *ctx, const tl_fold_plan &p, bool centred, const double *from, int64_t length, int64_t each,
                 double *to, float *out)
{
    Rows a = {p.x, from, p.centre, p.centre_out, to, out};
    const int64_t segments = tl_ceil_div(length, SEGMENT);
    a.extent = extent_of(from, length);
    a.kept = axes_of(p.f.kept, p.f.kept_size, p.f.kept_stride);
    a.reduced = axes_of(p.f.reduced, p.f.reduced_size, p.f.reduced_stride);
    a.parts = tl_fastdiv((uint64_t)tl_ceil_div(length, a.extent));
    a.results = p.results(), a.rows = a.results * a.parts.divisor, a.length = length, a.each = each, a.rule = p.rule;
    a.segments = (int)tl_imin(segments, a.extent / SEGMENT);
    a.lanes = (int)tl_fold_width(length), a.width = (int)tl_fold_width(segments);
    for (a.room = 1; a.room < a.segments && a.room < TEAMS;)
        a.room *= 2;
    const bool one = a.reduced.count == 1;
    const auto kernel = from      ? rows_kernel_of<-1, false>(p.kind)
                        : centred ? one ? rows_kernel_of<1, true>(p.kind) : rows_kernel_of<2, true>(p.kind)
                        : one     ? rows_kernel_of<1, false>(p.kind)
                                  : rows_kernel_of<2, false>(p.kind);
    return tl_launch(ctx, p.name, kernel, tl_grid(a.rows, TEAMS / a.room), THREADS, a);
}

/* Columns of a tile, a power of two. */
int columns_of(int64_t inner)
{
    int columns = 1;
    while (columns < COLUMNS && columns < inner)
        columns *= 2;
    return columns;
}

/* Whether a team takes all segments of its columns: they are few, and so are the launches, or the columns are many. */
bool together(tl_context *ctx, const tl_fold_axes &f)
{
    const int64_t segments = tl_ceil_div(f.length, SEGMENT);
    const int64_t tiles = f.outer * tl_ceil_div(f.inner, columns_of(f.inner));
    const int64_t blocks = tiles * columns_of(f.inner) / (THREADS / LANES);
    return segments > 1 && segments <= TOGETHER && (segments <= 4 || blocks >= 4 * (int64_t)tl_cuda_sms(ctx));
}

/* The segments of x, whose values or ends go to `to` or out: `left` of a result, 1 where they are taken together. */
int32_t run_segments(tl_context *ctx, const tl_fold_plan &p, int64_t left, double *to, float *out)
{
    Fold a = {p.x, p.centre, p.centre_out, to, out};
    a.kept = axes_of(p.f.kept, p.f.kept_size, p.f.kept_stride);
    a.reduced = axes_of(p.f.reduced, p.f.reduced_size, p.f.reduced_stride);
    a.results = p.results(), a.length = p.f.length, a.inner = p.f.inner, a.rule = p.rule;
    a.columns = columns_of(a.inner);
    const int64_t tiles = tl_ceil_div(a.inner, a.columns);
    a.lanes = (int)tl_fold_width(a.length);
    a.segments = tl_fastdiv((uint64_t)left), a.tiles = tl_fastdiv((uint64_t)tiles);
    a.together = left > 1 ? 1 : (int)tl_imax(1, tl_ceil_div(a.length, SEGMENT));
    a.units = a.results / a.inner * tiles * left;
    const auto kernel = a.reduced.count != 1       ? fold_kernel_of<0, PER_LANE>(p.kind)
                        : a.length <= 16 * a.lanes ? fold_kernel_of<1, 16>(p.kind)
                                                   : fold_kernel_of<1, PER_LANE>(p.kind);
    return tl_launch(ctx, p.name, kernel, tl_grid(a.units, THREADS / (a.lanes * a.columns)), THREADS, a);
}

} // namespace

int32_t tl_cuda_fold(tl_context *ctx, const tl_fold_plan &p, double *values, float *out)
{
    if (p.results() == 0) return TORCHLEAN_OK;
    /* fewer than 2^32 elements have at most 256^3 segments */
    tl_scratch<double> parts[] = {tl_scratch<double>(ctx), tl_scratch<double>(ctx), tl_scratch<double>(ctx)};
    const double *from = nullptr;
    int64_t length = p.f.length, each = 1;
    for (int level = 0;; level++) {
        const bool rows = level > 0 || in_rows(ctx, p.f);
        const int64_t extent = rows ? extent_of(level > 0, length) : together(ctx, p.f) ? length : SEGMENT;
        const int64_t left = tl_imax(1, tl_ceil_div(length, extent));
        if (left > 1) TL_TRY(parts[level].allocate(tl_fold_planes(p.kind) * p.results() * left));
        double *const to = left > 1 ? (double *)parts[level] : values;
        float *const end = left > 1 ? nullptr : out;
        TL_TRY(rows ? run_rows(ctx, p, false, from, length, each, to, end) : run_segments(ctx, p, left, to, end));
        if (left == 1) return TORCHLEAN_OK;
        from = to, length = left, each *= extent;
    }
}

int32_t tl_cuda_fold_twice(tl_context *ctx, tl_fold_plan p, tl_fold_kind kind, float *out)
{
    tl_scratch<double> values(ctx);
    if (p.f.length <= ROW && p.results() > 0 && in_rows(ctx, p.f)) {
        p.kind = kind;
        return run_rows(ctx, p, true, nullptr, p.f.length, 1, nullptr, out);
    }
    TL_TRY(values.allocate(p.results()));
    TL_TRY(tl_cuda_fold(ctx, p, values, nullptr));
    p.kind = kind;
    p.centre = values;
    return tl_cuda_fold(ctx, p, nullptr, out);
}
