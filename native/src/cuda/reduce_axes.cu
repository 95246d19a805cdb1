/* Reductions over any set of axes on CUDA, and their gradients, in the order of formula/fold.h.
 *
 * A team of lanes x columns threads owns a segment of the reduced elements of `columns` results that lie side by side (one where
 * the last axis is reduced); a thread owns one lane of one result. So a warp reads whole lines along the kept axis, or whole
 * sectors along the reduced one. The lanes meet in shared memory, the segments' values in further launches, of 1/256 of the
 * elements. Short rows take one launch (rows_kernel). Doubles cost nothing here: the kernels wait for memory. */
#include "cuda/runtime/launch.cuh"
#include "formula/fold.h"
#include "generated/reduce.h"

namespace {

constexpr int THREADS = 256, COLUMNS = 32, GROUPS = 4;
constexpr int FLIGHT = 16; /* elements that a thread loads before it takes the first */
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

/* A fold of x, or of the values `from` of an earlier level. What it ends as goes to out, or its values to `to` (planes of
 * results x segments). `centre` are the values of an earlier fold, `centre_out` the results of one; both may be missing. */
struct Fold {
    const float *x;
    const double *from, *centre;
    const float *centre_out;
    double *to;
    float *out;
    Axes kept, reduced;
    int64_t results, length, inner, units;
    tl_fastdiv segments, tiles;
    int lanes, columns;
    tl_fold_rule rule;
};

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

/* tl_fold_take of those of y[0], y[1], ... that are there. A product of four floats, 2^-596 to 2^512, is one of doubles without
 * over- or underflow, where a power of two changes no rounding: so it is normalized once for four. */
template <tl_fold_kind KIND, int N>
__device__ __forceinline__ void take_all(const float (&y)[N], const bool (&there)[N], double *v, double *e,
                                         double *zeros, double m, tl_fold_rule rule)
{
    uint32_t key = 0;
    TL_UNROLL_FOR (int i = 0; i < N; i++) {
        if constexpr (KIND >= TL_FOLD_MAX && KIND <= TL_FOLD_LARGEST) {
            if (there[i]) key = max(key, key_of<KIND>(y[i]));
        } else if constexpr (KIND == TL_FOLD_PRODUCT) {
            const bool zero = y[i] == 0.0f;
            if (there[i]) *v *= (double)(zero ? copysignf(1.0f, y[i]) : y[i]);
            if (there[i] && zero) *zeros += 1.0;
            if (i % 4 == 3) tl_fold_normalize(v, e);
        } else {
            if (there[i]) tl_fold_take(KIND, v, e, zeros, y[i], m, rule);
        }
    }
    if constexpr (KIND >= TL_FOLD_MAX && KIND <= TL_FOLD_LARGEST)
        tl_fold_join(KIND, v, e, zeros, value_of_key<KIND>(key), 0.0, 0.0);
}

/* REDUCED: how many merged axes are reduced, 0 for any number; -1 for values of an earlier level. */
template <tl_fold_kind KIND, int REDUCED> __global__ void __launch_bounds__(THREADS, RESIDENT) fold_kernel(Fold a)
{
    constexpr bool FIRST = REDUCED >= 0;
    constexpr int PLANES = KIND == TL_FOLD_PRODUCT ? TL_FOLD_PLANES : 1;
    __shared__ double values[PLANES][THREADS];
    const int t = (int)threadIdx.x, team = a.lanes * a.columns, lane = t % team / a.columns;
    const int64_t unit = (int64_t)blockIdx.x * (THREADS / team) + t / team;
    uint32_t s, tile;
    const uint32_t k = a.tiles.divmod(a.segments.divmod((uint32_t)unit, &s), &tile);
    const int64_t column = (int64_t)tile * a.columns + t % a.columns, result = (int64_t)k * a.inner + column;
    const bool inside = unit < a.units && column < a.inner;
    double v = tl_fold_start(KIND), e = 0.0, zeros = 0.0, m = 0.0;
    if (inside) {
        const uint32_t begin = s * TL_FOLD_SEGMENT;
        const int n = (int)min(a.length - begin, (int64_t)TL_FOLD_SEGMENT);
        m = a.centre ? a.centre[result] : a.centre_out ? (double)a.centre_out[result] : 0.0;
        m = tl_fold_centre(KIND, m, a.rule);
        if constexpr (FIRST) {
            const float *const x = a.x + offset_of(a.kept, k) + column;
            for (int r = lane; r < n; r += FLIGHT * a.lanes) {
                float y[FLIGHT];
                bool there[FLIGHT];
                TL_UNROLL_FOR (int i = 0; i < FLIGHT; i++) {
                    there[i] = r + i * a.lanes < n;
                    y[i] = x[offset_of<REDUCED>(a.reduced, begin + (uint32_t)min(r + i * a.lanes, n - 1))];
                }
                take_all<KIND>(y, there, &v, &e, &zeros, m, a.rule);
            }
        } else {
            const double *const from = a.from + result * a.length + begin;
            const int64_t plane = PLANES > 1 ? a.results * a.length : 0;
            constexpr int N = PLANES > 1 ? FLIGHT / 2 : FLIGHT;
            for (int r = lane; r < n; r += N * a.lanes) {
                double w[PLANES][N];
                TL_UNROLL_FOR (int i = 0; i < N; i++)
                    TL_UNROLL_FOR (int p = 0; p < PLANES; p++)
                        w[p][i] = from[p * plane + min(r + i * a.lanes, n - 1)];
                TL_UNROLL_FOR (int i = 0; i < N; i++)
                    if (r + i * a.lanes < n)
                        tl_fold_join(KIND, &v, &e, &zeros, w[0][i], w[PLANES / 2][i], w[PLANES - 1][i]);
            }
        }
    }
    for (int half = a.lanes / 2; half > 0; half /= 2) {
        values[0][t] = v;
        if constexpr (PLANES > 1) values[1][t] = e, values[2][t] = zeros;
        __syncthreads();
        const int other = t + half * a.columns;
        if (lane < half) {
            const double e2 = PLANES > 1 ? values[PLANES / 2][other] : 0.0;
            tl_fold_join(KIND, &v, &e, &zeros, values[0][other], e2, PLANES > 1 ? values[PLANES - 1][other] : 0.0);
        }
        __syncthreads();
    }
    if (!inside || lane > 0) return;
    if (a.out) {
        const tl_folded value = {v, e, zeros};
        a.out[result] = tl_fold_end(KIND, value, m, a.rule);
        return;
    }
    const int64_t segments = a.segments.divisor, plane = a.results * segments;
    double *const to = a.to + result * segments + s;
    to[0] = v;
    if constexpr (PLANES > 1) to[plane] = e, to[2 * plane] = zeros;
}

template <int REDUCED> auto kernel_of(tl_fold_kind kind) -> void (*)(Fold)
{
    switch (kind) {
    case TL_FOLD_SUM: return fold_kernel<TL_FOLD_SUM, REDUCED>;
    case TL_FOLD_ABS: return fold_kernel<TL_FOLD_ABS, REDUCED>;
    case TL_FOLD_SQUARE: return fold_kernel<TL_FOLD_SQUARE, REDUCED>;
    case TL_FOLD_DEVIATION: return fold_kernel<TL_FOLD_DEVIATION, REDUCED>;
    case TL_FOLD_EXP: return fold_kernel<TL_FOLD_EXP, REDUCED>;
    case TL_FOLD_POWER: return fold_kernel<TL_FOLD_POWER, REDUCED>;
    case TL_FOLD_EQUAL: return fold_kernel<TL_FOLD_EQUAL, REDUCED>;
    case TL_FOLD_MAX: return fold_kernel<TL_FOLD_MAX, REDUCED>;
    case TL_FOLD_MIN: return fold_kernel<TL_FOLD_MIN, REDUCED>;
    case TL_FOLD_LARGEST: return fold_kernel<TL_FOLD_LARGEST, REDUCED>;
    default: return fold_kernel<TL_FOLD_PRODUCT, REDUCED>;
    }
}

/* A fold of x whose values go to `values`, or what it ends as to `out`. */
struct Plan {
    const char *name;
    tl_fold_kind kind;
    tl_fold_axes f;
    tl_fold_rule rule;
    const float *x;
    const double *centre;
    const float *centre_out;

    int64_t results() const { return f.outer * f.inner; }
    int64_t planes() const { return kind == TL_FOLD_PRODUCT ? TL_FOLD_PLANES : 1; }
};

int32_t run_fold(tl_context *ctx, const Plan &p, double *values, float *out)
{
    if (p.results() == 0) return TORCHLEAN_OK;
    Fold a = {};
    a.x = p.x, a.centre = p.centre, a.centre_out = p.centre_out, a.rule = p.rule;
    a.kept = axes_of(p.f.kept, p.f.kept_size, p.f.kept_stride);
    a.reduced = axes_of(p.f.reduced, p.f.reduced_size, p.f.reduced_stride);
    a.results = p.results(), a.length = p.f.length, a.inner = p.f.inner;
    for (a.columns = 1; a.columns < COLUMNS && a.columns < a.inner;)
        a.columns *= 2;
    /* fewer than 2^32 elements have at most 256^3 segments */
    tl_scratch<double> parts[] = {tl_scratch<double>(ctx), tl_scratch<double>(ctx), tl_scratch<double>(ctx)};
    for (int level = 0;; level++) {
        const int64_t segments = tl_imax(1, tl_ceil_div(a.length, TL_FOLD_SEGMENT));
        const int64_t tiles = tl_ceil_div(a.inner, a.columns);
        a.lanes = (int)tl_fold_width(a.length);
        a.segments = tl_fastdiv((uint64_t)segments), a.tiles = tl_fastdiv((uint64_t)tiles);
        a.units = a.results / a.inner * tiles * segments;
        a.to = values, a.out = out;
        if (segments > 1) {
            TL_TRY(parts[level].allocate(p.planes() * a.results * segments));
            a.to = parts[level], a.out = nullptr;
        }
        const auto kernel = level > 0              ? kernel_of<-1>(p.kind)
                            : a.reduced.count == 1 ? kernel_of<1>(p.kind)
                            : a.reduced.count == 2 ? kernel_of<2>(p.kind)
                                                   : kernel_of<0>(p.kind);
        TL_TRY(tl_launch(ctx, p.name, kernel, tl_grid(a.units, THREADS / (a.lanes * a.columns)), THREADS, a));
        if (segments == 1) return TORCHLEAN_OK;
        a.from = a.to, a.length = segments, a.inner = 1, a.columns = 1;
    }
}

/* ---- short rows -------------------------------------------------------------------------------------------------- */

/* Rows of the last axis of up to ROW_SEGMENTS segments: a block owns one or several and reads them once, for a centre too. A team
 * of lanes owns a segment, whose elements stay in its registers. */
constexpr int LANES = TL_FOLD_LANES, ROW_SEGMENTS = THREADS / LANES, PER_LANE = TL_FOLD_SEGMENT / LANES;

struct Rows {
    const float *x;
    float *out;
    int64_t rows;
    int length, segments;
    int room, width; /* the least power of two that holds the segments, and the lanes that fold them */
    tl_fold_rule rule;
};

/* Folds the first 2^k lanes of each team in halves, for all of its lanes. */
template <tl_fold_kind KIND> __device__ __forceinline__ void fold_lanes(int lanes, double *v, double *e, double *zeros)
{
    constexpr bool PRODUCT = KIND == TL_FOLD_PRODUCT;
    for (int half = lanes / 2; half > 0; half /= 2) {
        const double v2 = __shfl_down_sync(~0u, *v, half, LANES);
        const double e2 = PRODUCT ? __shfl_down_sync(~0u, *e, half, LANES) : 0.0;
        const double zeros2 = PRODUCT ? __shfl_down_sync(~0u, *zeros, half, LANES) : 0.0;
        tl_fold_join(KIND, v, e, zeros, v2, e2, zeros2);
    }
    *v = __shfl_sync(~0u, *v, 0, LANES);
    if (PRODUCT) *e = __shfl_sync(~0u, *e, 0, LANES), *zeros = __shfl_sync(~0u, *zeros, 0, LANES);
}

/* What a fold of the rows ends as, for all threads of a row: each team folds the segments' values for itself. */
template <tl_fold_kind KIND>
__device__ __forceinline__ tl_folded fold_rows(const Rows &a, const float (&y)[PER_LANE], const bool (&there)[PER_LANE],
                                               double m)
{
    constexpr int PLANES = KIND == TL_FOLD_PRODUCT ? TL_FOLD_PLANES : 1;
    __shared__ double values[PLANES][ROW_SEGMENTS];
    const int team = (int)threadIdx.x / LANES, lane = (int)threadIdx.x % LANES, first = team / a.room * a.room;
    double v = tl_fold_start(KIND), e = 0.0, zeros = 0.0;
    take_all<KIND>(y, there, &v, &e, &zeros, m, a.rule);
    fold_lanes<KIND>(LANES, &v, &e, &zeros);
    if (a.segments > 1) {
        if (lane == 0) {
            values[0][team] = v;
            if constexpr (PLANES > 1) values[1][team] = e, values[2][team] = zeros;
        }
        __syncthreads();
        v = tl_fold_start(KIND), e = zeros = 0.0;
        for (int s = lane; lane < a.width && s < a.segments; s += a.width) {
            const double e2 = PLANES > 1 ? values[PLANES / 2][first + s] : 0.0;
            tl_fold_join(KIND, &v, &e, &zeros, values[0][first + s], e2,
                         PLANES > 1 ? values[PLANES - 1][first + s] : 0.0);
        }
        fold_lanes<KIND>(a.width, &v, &e, &zeros);
    }
    return {v, e, zeros};
}

/* KIND's centre is a fold CENTRE, or it has none. */
template <tl_fold_kind KIND, tl_fold_kind CENTRE = KIND>
__global__ void __launch_bounds__(THREADS, 3) rows_kernel(Rows a)
{
    const int team = (int)threadIdx.x / LANES, lane = (int)threadIdx.x % LANES, segment = team % a.room;
    const int64_t row = (int64_t)blockIdx.x * (ROW_SEGMENTS / a.room) + team / a.room;
    const int n = row < a.rows ? min(a.length - segment * TL_FOLD_SEGMENT, (int)TL_FOLD_SEGMENT) : 0;
    const float *const x = n > 0 ? a.x + row * a.length + segment * TL_FOLD_SEGMENT : a.x;
    float y[PER_LANE];
    bool there[PER_LANE];
    TL_UNROLL_FOR (int i = 0; i < PER_LANE; i++) {
        there[i] = lane + i * LANES < n;
        y[i] = x[max(min(lane + i * LANES, n - 1), 0)];
    }
    double m = 0.0;
    if constexpr (KIND != CENTRE) {
        m = tl_fold_centre(KIND, fold_rows<CENTRE>(a, y, there, 0.0).v, a.rule);
        TL_UNROLL_FOR (int i = 0; i < PER_LANE; i++)
            asm volatile("" : "+f"(y[i])); /* lest the compiler keep the elements as doubles, in twice the registers */
    }
    const tl_folded value = fold_rows<KIND>(a, y, there, m);
    if (lane == 0 && segment == 0 && row < a.rows) a.out[row] = tl_fold_end(KIND, value, m, a.rule);
}

auto rows_kernel_of(tl_fold_kind kind) -> void (*)(Rows)
{
    switch (kind) {
    case TL_FOLD_ABS: return rows_kernel<TL_FOLD_ABS>;
    case TL_FOLD_SQUARE: return rows_kernel<TL_FOLD_SQUARE>;
    case TL_FOLD_DEVIATION: return rows_kernel<TL_FOLD_DEVIATION, TL_FOLD_SUM>;
    case TL_FOLD_EXP: return rows_kernel<TL_FOLD_EXP, TL_FOLD_MAX>;
    case TL_FOLD_POWER: return rows_kernel<TL_FOLD_POWER, TL_FOLD_LARGEST>;
    case TL_FOLD_MAX: return rows_kernel<TL_FOLD_MAX>;
    case TL_FOLD_MIN: return rows_kernel<TL_FOLD_MIN>;
    default: return rows_kernel<TL_FOLD_PRODUCT>;
    }
}

bool in_rows(const tl_fold_axes &f)
{
    return f.inner == 1 && f.reduced == 1 && f.length <= ROW_SEGMENTS * TL_FOLD_SEGMENT &&
           tl_fold_width(f.length) == LANES;
}

int32_t run_rows(tl_context *ctx, const Plan &p, tl_fold_kind kind, float *out)
{
    if (p.results() == 0) return TORCHLEAN_OK;
    const int64_t segments = tl_ceil_div(p.f.length, TL_FOLD_SEGMENT);
    Rows a = {p.x, out, p.results(), (int)p.f.length, (int)segments, 1, (int)tl_fold_width(segments), p.rule};
    while (a.room < a.segments)
        a.room *= 2;
    return tl_launch(ctx, p.name, rows_kernel_of(kind), tl_grid(a.rows, ROW_SEGMENTS / a.room), THREADS, a);
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

/* A fold into out. */
int32_t fold_once(tl_context *ctx, const Plan &p, float *out)
{
    return in_rows(p.f) ? run_rows(ctx, p, p.kind, out) : run_fold(ctx, p, nullptr, out);
}

/* A fold into out, whose centre is an earlier fold. */
int32_t fold_twice(tl_context *ctx, Plan p, tl_fold_kind kind, float *out)
{
    if (in_rows(p.f)) return run_rows(ctx, p, kind, out);
    tl_scratch<double> values(ctx);
    TL_TRY(values.allocate(p.results()));
    TL_TRY(run_fold(ctx, p, values, nullptr));
    p.kind = kind;
    p.centre = values;
    return run_fold(ctx, p, nullptr, out);
}

Plan plan_of(const char *name, tl_fold_kind kind, const float *x, const tl_dims *dims, int64_t axes, double p = 0.0,
             int64_t root = 0)
{
    Plan plan = {name, kind, tl_fold_of(dims->rank, dims->d, axes), {}, x, nullptr, nullptr};
    plan.rule = {plan.f.length, p, (int32_t)root};
    return plan;
}

/* ---- gradients ------------------------------------------------------------------------------------------------- */

/* A thread owns a result; the coefficients take the place of its values. */
__global__ void __launch_bounds__(THREADS)
    coefficients_kernel(tl_fold_kind kind, const float *__restrict__ out, const float *__restrict__ g, int64_t results,
                        int64_t planes, tl_fold_rule rule, double *__restrict__ values)
{
    const int64_t o = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (o >= results) return;
    const tl_folded value = {planes > 0 ? values[o] : 0.0, planes > 1 ? values[results + o] : 0.0,
                             planes > 1 ? values[2 * results + o] : 0.0};
    const tl_folded c = tl_fold_coefficients(kind, out ? out[o] : 0.0f, g[o], value, rule);
    values[o] = c.v, values[results + o] = c.e, values[2 * results + o] = c.zeros;
}

/* A thread owns GROUPS elements, THREADS apart; the result of one follows from its index along the kept axes. */
struct Spread {
    const float *x;
    const double *coefficients;
    float *gx;
    int64_t n, results;
    int32_t kept;
    tl_fastdiv inner, size[TL_FOLD_RANK], stride[TL_FOLD_RANK];
    tl_fold_rule rule;
};

template <tl_fold_kind KIND> __global__ void __launch_bounds__(THREADS, RESIDENT) spread_kernel(Spread a)
{
    const double *__restrict__ c = a.coefficients;
    const int64_t first = (int64_t)blockIdx.x * (GROUPS * THREADS) + threadIdx.x;
    float x[GROUPS];
    tl_folded at[GROUPS];
    TL_UNROLL_FOR (int group = 0; group < GROUPS; group++)
        x[group] = a.x[min(first + group * THREADS, a.n - 1)];
    TL_UNROLL_FOR (int group = 0; group < GROUPS; group++) {
        const uint32_t i = (uint32_t)min(first + group * THREADS, a.n - 1);
        uint32_t result, place, size = a.inner.divisor;
        a.inner.divmod(i, &result);
        for (int32_t k = 0; k < a.kept; k++) {
            a.size[k].divmod(a.stride[k].div(i), &place);
            result += place * size;
            size *= a.size[k].divisor;
        }
        at[group] = {c[result], c[a.results + result], c[2 * a.results + result]};
    }
    TL_UNROLL_FOR (int group = 0; group < GROUPS; group++) {
        const int64_t i = first + group * THREADS;
        if (i < a.n) a.gx[i] = tl_fold_slope(KIND, x[group], at[group], a.rule);
    }
}

auto spread_of(tl_fold_kind kind) -> void (*)(Spread)
{
    switch (kind) {
    case TL_FOLD_ABS: return spread_kernel<TL_FOLD_ABS>;
    case TL_FOLD_SQUARE: return spread_kernel<TL_FOLD_SQUARE>;
    case TL_FOLD_DEVIATION: return spread_kernel<TL_FOLD_DEVIATION>;
    case TL_FOLD_EXP: return spread_kernel<TL_FOLD_EXP>;
    case TL_FOLD_POWER: return spread_kernel<TL_FOLD_POWER>;
    case TL_FOLD_EQUAL: return spread_kernel<TL_FOLD_EQUAL>;
    default: return spread_kernel<TL_FOLD_PRODUCT>;
    }
}

/* gx of the kind `slope`, from the fold p (not run where its values are not read) and the results. */
int32_t run_spread(tl_context *ctx, const Plan &p, bool folds, tl_fold_kind slope, const float *out, const float *g,
                   float *gx)
{
    const int64_t results = p.results(), n = results * p.f.length;
    if (n == 0) return TORCHLEAN_OK;
    tl_scratch<double> values(ctx);
    TL_TRY(values.allocate(TL_FOLD_PLANES * results));
    if (folds) TL_TRY(run_fold(ctx, p, values, nullptr));
    TL_TRY(tl_launch(ctx, p.name, coefficients_kernel, tl_grid(results, THREADS), THREADS, slope, out, g, results,
                     folds ? p.planes() : 0, p.rule, values));
    Spread a = {p.x, values, gx, n, results, p.f.kept, tl_fastdiv((uint64_t)p.f.inner), {}, {}, p.rule};
    for (int32_t k = 0; k < p.f.kept; k++) {
        a.size[k] = tl_fastdiv((uint64_t)p.f.kept_size[k]);
        a.stride[k] = tl_fastdiv((uint64_t)p.f.kept_stride[k]);
    }
    return tl_launch(ctx, p.name, spread_of(slope), tl_grid(n, GROUPS * THREADS), THREADS, a);
}

tl_fold_kind norm_kind(float p) { return p == 1.0f ? TL_FOLD_ABS : p == 2.0f ? TL_FOLD_SQUARE : TL_FOLD_POWER; }

} // namespace

/* ---- the operations ---------------------------------------------------------------------------------------------- */

int32_t tl_cuda_amax(tl_context *ctx, const float *x, const tl_dims *dims, int64_t axes, float *out)
{
    return fold_once(ctx, plan_of("amax", TL_FOLD_MAX, x, dims, axes), out);
}

int32_t tl_cuda_amax_bwd(tl_context *ctx, const float *x, const float *out, const float *g, const tl_dims *dims,
                         int64_t axes, float *gx)
{
    Plan p = plan_of("amax_bwd", TL_FOLD_EQUAL, x, dims, axes);
    p.centre_out = out;
    return run_spread(ctx, p, true, TL_FOLD_EQUAL, out, g, gx);
}

int32_t tl_cuda_amin(tl_context *ctx, const float *x, const tl_dims *dims, int64_t axes, float *out)
{
    return fold_once(ctx, plan_of("amin", TL_FOLD_MIN, x, dims, axes), out);
}

int32_t tl_cuda_amin_bwd(tl_context *ctx, const float *x, const float *out, const float *g, const tl_dims *dims,
                         int64_t axes, float *gx)
{
    return tl_cuda_amax_bwd(ctx, x, out, g, dims, axes, gx);
}

int32_t tl_cuda_prod(tl_context *ctx, const float *x, const tl_dims *dims, int64_t axes, float *out)
{
    return fold_once(ctx, plan_of("prod", TL_FOLD_PRODUCT, x, dims, axes), out);
}

int32_t tl_cuda_prod_bwd(tl_context *ctx, const float *x, const float *g, const tl_dims *dims, int64_t axes, float *gx)
{
    const Plan p = plan_of("prod_bwd", TL_FOLD_PRODUCT, x, dims, axes);
    return run_spread(ctx, p, true, TL_FOLD_PRODUCT, nullptr, g, gx);
}

int32_t tl_cuda_var(tl_context *ctx, const float *x, const tl_dims *dims, int64_t axes, float correction, int64_t root,
                    float *out)
{
    const Plan p = plan_of("var", TL_FOLD_SUM, x, dims, axes, (double)correction, root);
    return fold_twice(ctx, p, TL_FOLD_DEVIATION, out);
}

int32_t tl_cuda_var_bwd(tl_context *ctx, const float *x, const float *out, const float *g, const tl_dims *dims,
                        int64_t axes, float correction, int64_t root, float *gx)
{
    const Plan p = plan_of("var_bwd", TL_FOLD_SUM, x, dims, axes, (double)correction, root);
    return run_spread(ctx, p, true, TL_FOLD_DEVIATION, out, g, gx);
}

int32_t tl_cuda_logsumexp(tl_context *ctx, const float *x, const tl_dims *dims, int64_t axes, float *out)
{
    return fold_twice(ctx, plan_of("logsumexp", TL_FOLD_MAX, x, dims, axes), TL_FOLD_EXP, out);
}

int32_t tl_cuda_logsumexp_bwd(tl_context *ctx, const float *x, const float *out, const float *g, const tl_dims *dims,
                              int64_t axes, float *gx)
{
    const Plan p = plan_of("logsumexp_bwd", TL_FOLD_EXP, x, dims, axes);
    return run_spread(ctx, p, false, TL_FOLD_EXP, out, g, gx);
}

int32_t tl_cuda_vector_norm(tl_context *ctx, const float *x, const tl_dims *dims, int64_t axes, float p, float *out)
{
    Plan plan = plan_of("vector_norm", norm_kind(p), x, dims, axes, (double)p);
    if (plan.kind != TL_FOLD_POWER) return fold_once(ctx, plan, out);
    plan.kind = TL_FOLD_LARGEST;
    return fold_twice(ctx, plan, TL_FOLD_POWER, out);
}

int32_t tl_cuda_vector_norm_bwd(tl_context *ctx, const float *x, const float *out, const float *g, const tl_dims *dims,
                                int64_t axes, float p, float *gx)
{
    const Plan plan = plan_of("vector_norm_bwd", norm_kind(p), x, dims, axes, (double)p);
    return run_spread(ctx, plan, false, plan.kind, out, g, gx);
}
