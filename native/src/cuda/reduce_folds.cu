/* Folds over any set of axes on CUDA, in the order of formula/fold.h.
 *
 * A team of lanes x columns threads owns a segment of the reduced elements of `columns` results that lie side by side (one where
 * the last axis is reduced); a thread owns one lane of one result, all of whose elements it loads before it takes the first
 * (fold_kernel). So a warp reads whole lines along the kept axis, or whole sectors along the reduced one. Where the last axis is
 * reduced, and for the segments' values, a block owns a row, or up to 256 segments of it, and folds the segments' values too
 * (reduce_fold_rows.cu), or several blocks do so together: most reductions take one or two launches. */
#include <type_traits>

#include "cuda/device/reduce_fold_lanes.cuh"

namespace {

using namespace tl_folds;

constexpr int COLUMNS = 32;
/* Blocks on a multiprocessor: the compiler, which would load one by one to have more, is told so few. */
constexpr int RESIDENT = 4;

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
        tiles; /* segments of a result; 1 where a team takes all `together` of them, one after the other, or a few teams do */
    int lane_bits, column_bits; /* a team has 2^lane_bits lanes of 2^column_bits columns */
    int together;
    int split_bits; /* log2 of the teams that share the columns: each takes every 2^split_bits-th of the segments */
    tl_fold_rule rule;
};

/* A thread's values, for its team. */
template <tl_fold_kind KIND> __device__ __forceinline__ void put_lane(const tl_folded &f, double (*values)[THREADS])
{
    values[0][threadIdx.x] = f.v;
    if constexpr (KIND == TL_FOLD_PRODUCT) values[1][threadIdx.x] = f.e, values[2][threadIdx.x] = f.zeros;
}

/* The lanes' values, folded in halves; lane 0 put its own at values[..][first]. */
template <tl_fold_kind KIND>
__device__ __forceinline__ tl_folded join_lanes(const Fold &a, int first, const double (*values)[THREADS])
{
    constexpr bool PRODUCT = KIND == TL_FOLD_PRODUCT;
    tl_folded f[LANES];
    TL_UNROLL_FOR (int lane = 0; lane < LANES; lane++) {
        if (lane >> a.lane_bits) continue;
        const int at = first + (lane << a.column_bits);
        f[lane] = {values[0][at], PRODUCT ? values[PRODUCT][at] : 0.0, PRODUCT ? values[2 * PRODUCT][at] : 0.0};
    }
    TL_UNROLL_FOR (int half = LANES / 2; half > 0; half /= 2) {
        if (half >> a.lane_bits) continue;
        TL_UNROLL_FOR (int lane = 0; lane < half; lane++)
            tl_fold_join(KIND, &f[lane].v, &f[lane].e, &f[lane].zeros, f[lane + half].v, f[lane + half].e,
                         f[lane + half].zeros);
    }
    return f[0];
}

/* So few segments are folded by one lane above them, one after the other. */
constexpr int TOGETHER = 15;

/* The deviations that a team has of its segments, for each column: their values, sums and counts. */
struct Deviations {
    double value[TOGETHER][THREADS / LANES], sum[TOGETHER][THREADS / LANES];
};

/* What a thread takes of a segment: the lane that begins there, after `done` of its `count` elements. */
template <tl_fold_kind KIND, int REDUCED, int N>
__device__ __forceinline__ void load_part(float (&y)[N], const Fold &a, const float *x, uint32_t begin, int count,
                                          int done)
{
    begin += (uint32_t)done << a.lane_bits;
    if constexpr (REDUCED == 1)
        load_lane<KIND>(y, x, a.reduced.stride[0], begin, 1 << a.lane_bits, count - done);
    else
        load_lane<KIND, REDUCED>(y, x, a.reduced, begin, 1 << a.lane_bits, count - done);
}

/* The fold KIND, an extreme or a sum in any order, of all segments of the columns, for all threads of these. `mine`: the number of the
 * team among those that share them. All threads must call. */
template <tl_fold_kind KIND, int REDUCED, int N>
__device__ __forceinline__ double fold_columns(const Fold &a, const float *x, bool inside, int lane, int mine,
                                               double (*values)[THREADS])
{
    tl_folded f = {tl_fold_start(KIND), 0.0, 0.0};
#pragma unroll 1
    for (int part = mine; part < a.together; part += 1 << a.split_bits) {
        const int n = inside ? (int)min(a.length - part * SEGMENT, (int64_t)SEGMENT) : 0;
        const int count = n > lane ? (n - lane + (1 << a.lane_bits) - 1) >> a.lane_bits : 0;
#pragma unroll 1
        for (int done = 0; done < count; done += N) {
            float y[N];
            load_part<KIND, REDUCED>(y, a, x, (uint32_t)(part * SEGMENT + lane), count, done);
            keep_floats(y);
            take_all<KIND>(f, y, count - done, 0.0, a.rule);
        }
    }
    put_lane<KIND>(f, values);
    __syncthreads();
    const int team_bits = a.column_bits + a.lane_bits;
    const int first = (int)threadIdx.x - (lane << a.column_bits) - (mine << team_bits);
    f = join_lanes<KIND>(a, first, values);
    for (int other = 1; other < 1 << a.split_bits; other++) {
        const tl_folded g = join_lanes<KIND>(a, first + (other << team_bits), values);
        tl_fold_join(KIND, &f.v, &f.e, &f.zeros, g.v, g.e, g.zeros);
    }
    __syncthreads();
    return f.v;
}

/* Ends the columns' norms of a whole p by a sum of products, which takes a tenth of the instructions of powers and reads the elements
 * once; false where that does not decide all bits of all of a block's, and then nothing is written. All threads must call. */
template <int REDUCED>
__device__ __forceinline__ bool end_whole_norms(const Fold &a, const float *x, bool inside, int lane, int mine,
                                                int64_t result, double (*values)[THREADS])
{
    const double s = fold_columns<TL_FOLD_WHOLE_POWER, REDUCED, PER_LANE>(a, x, inside, lane, mine, values);
    const bool ends = inside && lane == 0 && mine == 0;
    float norm = 0.0f;
    if (!__syncthreads_and(!ends || tl_fold_whole_norm(s, a.rule.p, &norm))) return false;
    if (ends) a.out[result] = norm;
    return true;
}

/* KIND's centre is a fold CENTRE, of which a team takes all segments before it takes them for KIND, when most of x is in cache;
 * or it has none, or an earlier one. REDUCED: 1 where one merged axis is reduced, 0 for any number. N: the elements of a lane
 * that are loaded at once; a lane has more only where they are dear. */
template <tl_fold_kind KIND, tl_fold_kind CENTRE, int REDUCED, int N>
__global__ void __launch_bounds__(THREADS, N > 16 || DEAR<KIND> ? 3 : RESIDENT) fold_kernel(Fold a)
{
    __shared__ double values[KIND == TL_FOLD_PRODUCT ? TL_FOLD_PLANES : 1][THREADS];
    __shared__ std::conditional_t<KIND == TL_FOLD_DEVIATION, double[1][THREADS], char> sums;
    constexpr bool CENTRED = KIND != CENTRE; /* such kinds alone are shared by teams */
    __shared__ std::conditional_t<KIND == TL_FOLD_DEVIATION, Deviations, char> kept;
    __shared__ std::conditional_t<CENTRED, double[TOGETHER][THREADS / LANES], char> shared;
    tl_wait_for_earlier();
    const int t = (int)threadIdx.x, lanes = 1 << a.lane_bits, columns = 1 << a.column_bits;
    const int own_column = t & (columns - 1), lane = t >> a.column_bits & (lanes - 1);
    const int split_bits = CENTRED ? a.split_bits : 0, unit_bits = a.column_bits + a.lane_bits + split_bits;
    const int team = t >> unit_bits, place = (team << a.column_bits) + own_column;
    const int mine = t >> (a.column_bits + a.lane_bits) & ((1 << split_bits) - 1);
    const int64_t unit = (int64_t)blockIdx.x * (THREADS >> unit_bits) + team;
    uint32_t own_segment, tile;
    const uint32_t k = a.tiles.divmod(a.segments.divmod((uint32_t)unit, &own_segment), &tile);
    const int64_t column = ((int64_t)tile << a.column_bits) + own_column, result = (int64_t)k * a.inner + column;
    const bool inside = unit < a.units && column < a.inner;
    const float *const x = inside ? a.x + offset_of(a.kept, k) + column : a.x;
    double centre = 0.0;
    if constexpr (KIND == TL_FOLD_POWER && CENTRED) {
        if (tl_fold_is_whole(a.rule.p) && end_whole_norms<REDUCED>(a, x, inside, lane, mine, result, values)) return;
    }
    if constexpr (CENTRED)
        centre = tl_fold_centre(KIND, fold_columns<CENTRE, REDUCED, N>(a, x, inside, lane, mine, values));
    else if (inside && KIND != TL_FOLD_DEVIATION)
        centre = centre_of<KIND>(a.centre, a.centre_out, result);
    tl_folded f, all = {tl_fold_start(KIND), 0.0, 0.0}, sum = {0.0, 0.0, 0.0};
#pragma unroll 1
    for (int part = mine; part - mine < a.together; part += 1 << split_bits) { /* as often as the other teams */
        const uint32_t s = own_segment + part, begin = s * SEGMENT + lane;
        const int n = inside ? (int)min(a.length - (int64_t)s * SEGMENT, (int64_t)SEGMENT) : 0;
        const int count = n > lane ? (n - lane + lanes - 1) >> a.lane_bits : 0;
        double m = centre;
        float y[N];
        load_part<KIND, REDUCED>(y, a, x, begin, count, 0);
        keep_floats(y);
        if constexpr (KIND == TL_FOLD_DEVIATION) {
            sum = {0.0, 0.0, 0.0};
            take_all<TL_FOLD_SUM>(sum, y, count, 0.0, a.rule);
            put_lane<TL_FOLD_SUM>(sum, sums);
            __syncthreads();
            sum = join_lanes<TL_FOLD_SUM>(a, t - (lane << a.column_bits), sums);
            m = mean_of_segment(sum.v, n);
            keep_floats(y);
        }
        f = {tl_fold_start(KIND), 0.0, 0.0};
        if (!CENTRED || part < a.together) take_all<KIND>(f, y, count, m, a.rule);
        if constexpr (DEAR<KIND>)
            for (int done = N; done < count; done += N) {
                load_part<KIND, REDUCED>(y, a, x, begin, count, done);
                take_all<KIND>(f, y, count - done, m, a.rule);
            }
        if (part > mine) __syncthreads(); /* the values of the part before are read */
        put_lane<KIND>(f, values);
        __syncthreads();
        if (lane == 0) f = join_lanes<KIND>(a, t, values);
        if (a.together == 1 || lane > 0) continue;
        if constexpr (CENTRED) {
            if (part < a.together) shared[part][place] = f.v;
            continue;
        }
        if constexpr (KIND == TL_FOLD_DEVIATION) {
            kept.value[part][place] = f.v, kept.sum[part][place] = sum.v;
            all.e += sum.v;
        } else {
            tl_fold_join(KIND, &all.v, &all.e, &all.zeros, f.v, f.e, f.zeros);
        }
    }
    if constexpr (CENTRED) {
        if (a.together > 1) __syncthreads();
    }
    if (!inside || lane > 0 || mine > 0) return;
    if (a.together > 1) {
        if constexpr (CENTRED)
            for (int s = 0; s < a.together; s++)
                tl_fold_join(KIND, &all.v, &all.e, &all.zeros, shared[s][place], 0.0, 0.0);
        if constexpr (KIND == TL_FOLD_DEVIATION) {
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

/* Kinds with a centre of their own take both folds at once where CENTRED. */
template <int REDUCED, int N, bool CENTRED> auto fold_kernel_of(tl_fold_kind kind) -> void (*)(Fold)
{
    switch (kind) {
    case TL_FOLD_SUM: return fold_kernel<TL_FOLD_SUM, TL_FOLD_SUM, REDUCED, N>;
    case TL_FOLD_ABS: return fold_kernel<TL_FOLD_ABS, TL_FOLD_ABS, REDUCED, N>;
    case TL_FOLD_SQUARE: return fold_kernel<TL_FOLD_SQUARE, TL_FOLD_SQUARE, REDUCED, N>;
    case TL_FOLD_DEVIATION: return fold_kernel<TL_FOLD_DEVIATION, TL_FOLD_DEVIATION, REDUCED, N>;
    case TL_FOLD_EXP: return fold_kernel<TL_FOLD_EXP, (CENTRED ? TL_FOLD_MAX : TL_FOLD_EXP), REDUCED, 16>;
    case TL_FOLD_POWER: return fold_kernel<TL_FOLD_POWER, (CENTRED ? TL_FOLD_LARGEST : TL_FOLD_POWER), REDUCED, 16>;
    case TL_FOLD_EQUAL: return fold_kernel<TL_FOLD_EQUAL, TL_FOLD_EQUAL, REDUCED, N>;
    case TL_FOLD_MAX: return fold_kernel<TL_FOLD_MAX, TL_FOLD_MAX, REDUCED, N>;
    case TL_FOLD_MIN: return fold_kernel<TL_FOLD_MIN, TL_FOLD_MIN, REDUCED, N>;
    case TL_FOLD_LARGEST: return fold_kernel<TL_FOLD_LARGEST, TL_FOLD_LARGEST, REDUCED, N>;
    default: return fold_kernel<TL_FOLD_PRODUCT, TL_FOLD_PRODUCT, REDUCED, N>;
    }
}

/* ---- the launches ------------------------------------------------------------------------------------------------- */

/* Whether blocks own rows of x. */
bool in_rows(const tl_fold_axes &f)
{
    return f.inner == 1 && (f.reduced == 1 || f.reduced == 2) && tl_fold_width(f.length) == LANES;
}

/* The elements of x that a row of run_rows has: one segment of a long result where few blocks would read it alone. */
int64_t extent_of_x(tl_context *ctx, const tl_fold_axes &f)
{
    const bool busy = f.outer * tl_ceil_div(f.length, ROW) >= 2 * (int64_t)tl_cuda_sms(ctx);
    return f.length <= 2 * TEAMS * SEGMENT || busy ? ROW : SEGMENT;
}

/* The values: no more than a block's teams fold at once. */
int64_t extent_of_values(int64_t length) { return length > TEAMS * SEGMENT ? SEGMENT : ROW; }

/* log2 of the columns of a tile, fewer where 2^split_bits teams share them: a block has room for COLUMNS columns of a team of LANES. */
int column_bits_of(int64_t inner, int split_bits)
{
    int bits = 0;
    while (1 << bits < COLUMNS >> split_bits && 1 << bits < inner)
        bits++;
    return bits;
}

/* log2 of the teams that share their columns in a fold with a centre: so many that each multiprocessor has a few blocks, as far as there
 * are segments for them. A team of eight columns still reads whole sectors. */
constexpr int SPLIT_BITS = 2;
int split_bits_of(tl_context *ctx, int64_t segments, int64_t blocks)
{
    int bits = 0;
    while (bits < SPLIT_BITS && 1 << bits < segments && blocks << bits < 4 * (int64_t)tl_cuda_sms(ctx))
        bits++;
    return bits;
}

/* The blocks that take all segments of their columns, whole tiles of them. */
int64_t blocks_of(const tl_fold_axes &f)
{
    const int64_t columns = 1 << column_bits_of(f.inner, 0), tiles = f.outer * tl_ceil_div(f.inner, columns);
    return tiles * columns / (THREADS / LANES);
}

/* Whether all segments of the columns are taken in one launch: they are few, and so are the launches, or the columns are many, or, where
 * the fold is `centred`, teams share them. */
bool together(tl_context *ctx, const tl_fold_axes &f, bool centred)
{
    const int64_t segments = tl_ceil_div(f.length, SEGMENT), blocks = blocks_of(f);
    const int split_bits = centred ? split_bits_of(ctx, segments, blocks) : 0;
    return segments > 1 && segments <= TOGETHER &&
           (segments <= 4 || blocks << split_bits >= 4 * (int64_t)tl_cuda_sms(ctx));
}

/* The segments of x, whose values or ends go to `to` or out: `left` of a result, 1 where they are taken together. */
int32_t run_segments(tl_context *ctx, const tl_fold_plan &p, bool centred, int64_t left, double *to, float *out)
{
    Fold a = {p.x, p.centre, p.centre_out, to, out};
    a.kept = axes_of(p.f.kept, p.f.kept_size, p.f.kept_stride);
    a.reduced = axes_of(p.f.reduced, p.f.reduced_size, p.f.reduced_stride);
    a.results = p.results(), a.length = p.f.length, a.inner = p.f.inner, a.rule = p.rule;
    if (centred) a.split_bits = split_bits_of(ctx, tl_ceil_div(a.length, SEGMENT), blocks_of(p.f));
    a.column_bits = column_bits_of(a.inner, a.split_bits);
    const int64_t tiles = tl_ceil_div(a.inner, (int64_t)1 << a.column_bits), lanes = tl_fold_width(a.length);
    while (1 << a.lane_bits < lanes)
        a.lane_bits++;
    a.segments = tl_fastdiv((uint64_t)left), a.tiles = tl_fastdiv((uint64_t)tiles);
    a.together = left > 1 ? 1 : (int)tl_imax(1, tl_ceil_div(a.length, SEGMENT));
    a.units = a.results / a.inner * tiles * left;
    const bool one = a.reduced.count == 1;
    const auto kernel = centred ? one ? fold_kernel_of<1, 16, true>(p.kind) : fold_kernel_of<0, PER_LANE, true>(p.kind)
                        : !one  ? fold_kernel_of<0, PER_LANE, false>(p.kind)
                        : a.length <= 16 * lanes ? fold_kernel_of<1, 16, false>(p.kind)
                                                 : fold_kernel_of<1, PER_LANE, false>(p.kind);
    return tl_launch_ahead(ctx, p.name, kernel,
                           tl_grid(a.units, THREADS >> (a.lane_bits + a.column_bits + a.split_bits)), THREADS, 0, a);
}

/* Tickets of one launch. Results that take more have groups enough to be busy, or so many that another launch is nothing beside them. */
constexpr int64_t TICKETS = 4096;

/* The context's tickets, which are 0 between launches; none where there is no memory for them, or, as making them is no part of a graph,
 * while the first are asked for in one. */
uint32_t *find_tickets(tl_context *ctx)
{
    void *tickets = tl_cuda_attached(ctx, TL_ATTACH_TICKETS);
    if (tickets || tl_cuda_capturing(ctx)) return static_cast<uint32_t *>(tickets);
    const size_t bytes = TICKETS * sizeof(uint32_t);
    if (cudaMalloc(&tickets, bytes) != cudaSuccess) {
        cudaGetLastError();
        return nullptr;
    }
    if (cudaMemsetAsync(tickets, 0, bytes, tl_cuda_stream(ctx)) != cudaSuccess) {
        cudaFree(tickets);
        return nullptr;
    }
    tl_cuda_attach(ctx, TL_ATTACH_TICKETS, tickets, [](void *object) { cudaFree(object); });
    return static_cast<uint32_t *>(tickets);
}

/* Results of which a block has a part each, as long a one as it can have: to begin a part and to end it a block waits, and memory with
 * it. But two multiprocessors have three parts or more, or some would wait. On an H200 a product of 2^26 takes 79 us in parts of 256
 * segments, 84 of 64 and 89 of 32, one of 9 million 17, 15 and 16. */
int32_t run_together(tl_context *ctx, const tl_fold_plan &p, uint32_t *tickets, double *values, float *out)
{
    const int64_t results = p.results(), segments = tl_ceil_div(p.f.length, SEGMENT);
    const int64_t groups = tl_ceil_div(segments, SEGMENT), planes = tl_fold_planes(p.kind);
    int64_t own = SEGMENT;
    while (own > TEAMS && 2 * results * tl_ceil_div(segments, own) < 3 * (int64_t)tl_cuda_sms(ctx))
        own /= 2;
    tl_scratch<double> parts(ctx);
    TL_TRY(parts.allocate(planes * results * (segments + groups)));
    const Together together = {parts,
                               parts + planes * results * segments,
                               tickets,
                               segments,
                               groups,
                               (int)tl_fold_width(groups),
                               (int)tl_fold_width(tl_ceil_div(groups, SEGMENT))};
    return run_rows(ctx, p, false, nullptr, p.f.length, own * SEGMENT, 1, values, out, together);
}

} // namespace

int32_t tl_cuda_fold(tl_context *ctx, const tl_fold_plan &p, double *values, float *out)
{
    if (p.results() == 0) return TORCHLEAN_OK;
    if (in_rows(p.f) && p.f.length > extent_of_x(ctx, p.f) &&
        p.results() * (tl_ceil_div(p.f.length, ROW) + 1) <= TICKETS) {
        uint32_t *const tickets = find_tickets(ctx);
        if (tickets) return run_together(ctx, p, tickets, values, out);
    }
    /* fewer than 2^32 elements have at most 256^3 segments */
    tl_scratch<double> parts[] = {tl_scratch<double>(ctx), tl_scratch<double>(ctx), tl_scratch<double>(ctx)};
    const double *from = nullptr;
    int64_t length = p.f.length, each = 1;
    for (int level = 0;; level++) {
        const bool rows = level > 0 || in_rows(p.f);
        const int64_t extent = level > 0                   ? extent_of_values(length)
                               : rows                      ? extent_of_x(ctx, p.f)
                               : together(ctx, p.f, false) ? length
                                                           : SEGMENT;
        const int64_t left = tl_imax(1, tl_ceil_div(length, extent));
        if (left > 1) TL_TRY(parts[level].allocate(tl_fold_planes(p.kind) * p.results() * left));
        double *const to = left > 1 ? (double *)parts[level] : values;
        float *const end = left > 1 ? nullptr : out;
        TL_TRY(rows ? run_rows(ctx, p, false, from, length, extent, each, to, end)
                    : run_segments(ctx, p, false, left, to, end));
        if (left == 1) return TORCHLEAN_OK;
        from = to, length = left, each *= extent;
    }
}

int32_t tl_cuda_fold_twice(tl_context *ctx, tl_fold_plan p, tl_fold_kind kind, float *out)
{
    tl_scratch<double> values(ctx);
    if (p.f.length <= ROW && p.results() > 0 && in_rows(p.f) && extent_of_x(ctx, p.f) == ROW) {
        p.kind = kind;
        return run_rows(ctx, p, true, nullptr, p.f.length, ROW, 1, nullptr, out);
    }
    if (p.results() > 0 && !in_rows(p.f) && (p.f.length <= SEGMENT || together(ctx, p.f, true))) {
        p.kind = kind;
        return run_segments(ctx, p, true, 1, nullptr, out);
    }
    TL_TRY(values.allocate(p.results()));
    TL_TRY(tl_cuda_fold(ctx, p, values, nullptr));
    p.kind = kind;
    p.centre = values;
    return tl_cuda_fold(ctx, p, nullptr, out);
}
