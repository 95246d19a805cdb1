/* Folds over any set of axes on CUDA, in the order of formula/fold.h.
 *
 * A team of lanes x columns threads owns a segment of the reduced elements of `columns` results that lie side by side (one where
 * the last axis is reduced); a thread owns one lane of one result, all of whose elements it loads before it takes the first
 * (fold_kernel), in a kernel that has registers for about so many. So a warp reads whole lines along the kept axis, or whole
 * sectors along the reduced one. Where the last axis is reduced, and for the segments' values, a block owns a row, or up to 256
 * segments of it, and folds the segments' values too (reduce_fold_rows.cu), or several blocks do so together: most reductions take
 * one or two launches. */
#include <type_traits>

#include "cuda/device/reduce_fold_lanes.cuh"

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
    tl_fastdiv segments,
        tiles; /* segments of a result; 1 where a team takes all `together` of them, one after the other, or a few teams do */
    int lane_bits, column_bits, columns; /* a team has 2^lane_bits lanes of 2^column_bits = columns columns */
    uint32_t step;                       /* from element to element of a lane along the one reduced axis */
    int together;
    int split_bits; /* log2 of the teams that share the columns: each takes every 2^split_bits-th of the segments */
    tl_fold_rule rule;
    const double *left; /* 0 for the results that are left out, if there are any */
};

/* A thread's values, for its team. */
template <tl_fold_kind KIND> __device__ __forceinline__ void put_lane(const tl_folded &f, double (*values)[THREADS])
{
    values[0][threadIdx.x] = f.v;
    if constexpr (KIND == TL_FOLD_PRODUCT) values[1][threadIdx.x] = f.e, values[2][threadIdx.x] = f.zeros;
}

/* a and b together; products, of which none is above 2^8 here, without taking the power of two out: it changes no rounding. */
template <tl_fold_kind KIND> __device__ __forceinline__ double join(double a, double b)
{
    return KIND == TL_FOLD_PRODUCT ? a * b : tl_fold_is_extreme(KIND) ? tl_fold_greater(a, b) : a + b;
}

/* A plane of the lanes' values, folded in halves; lane 0 put its own at values[first]. */
template <tl_fold_kind KIND>
__device__ __forceinline__ double join_plane(const Fold &a, int first, const double (&values)[THREADS])
{
    double f[LANES];
    TL_UNROLL_FOR (int lane = 0; lane < LANES; lane++) {
        if (lane >> a.lane_bits) continue;
        f[lane] = values[first + lane * a.columns];
    }
    TL_UNROLL_FOR (int half = LANES / 2; half > 0; half /= 2) {
        if (half >> a.lane_bits) continue;
        TL_UNROLL_FOR (int lane = 0; lane < half; lane++)
            f[lane] = join<KIND>(f[lane], f[lane + half]);
    }
    return f[0];
}
template <tl_fold_kind KIND>
__device__ __forceinline__ tl_folded join_lanes(const Fold &a, int first, const double (*values)[THREADS])
{
    tl_folded f = {join_plane<KIND>(a, first, values[0]), 0.0, 0.0};
    if constexpr (KIND == TL_FOLD_PRODUCT) {
        f.e = join_plane<TL_FOLD_SUM>(a, first, values[1]), f.zeros = join_plane<TL_FOLD_SUM>(a, first, values[2]);
        tl_fold_normalize(&f.v, &f.e);
    }
    return f;
}

/* The fold of a team's lanes, of which f is this thread's, for those that `ask`; lane 0 puts its own at values[..][first]. All threads
 * must call. */
template <tl_fold_kind KIND>
__device__ __forceinline__ tl_folded fold_team(const Fold &a, tl_folded f, int first, bool ask,
                                               double (*values)[THREADS])
{
    if (a.lane_bits == 0) return f;
    put_lane<KIND>(f, values);
    __syncthreads();
    return ask ? join_lanes<KIND>(a, first, values) : f;
}

/* So few segments are folded by one lane above them, one after the other. */
constexpr int TOGETHER = 15;

/* The deviations that a team has of its segments, for each column: their values, sums and counts. */
struct Deviations {
    double value[TOGETHER][THREADS / LANES], sum[TOGETHER][THREADS / LANES];
};

/* ---- a lane's elements ------------------------------------------------------------------------------------------------ */

/* Elements that are visited under one condition, in pieces of 4. */
constexpr int GROUP = 8;
template <int N> using Piece = float[N];
template <int N> __device__ __forceinline__ Piece<N> &piece_of(float *y) { return *reinterpret_cast<Piece<N> *>(y); }

/* Calls visit(piece) for the `count` <= N elements of a lane in their order. The whole groups lie one after the other, and the 4, 2 and 1
 * elements behind them in the place of the last group, which then is not whole: so no instruction is spent on elements that the lane
 * does not have. WHOLE: a lane of N, as nearly all of long results are, is visited without another condition. */
template <bool WHOLE, int N, class Visit>
__device__ __forceinline__ void visit_lane(float (&y)[N], int count, Visit visit)
{
    static_assert(N % GROUP == 0 && GROUP == 8, "groups, and 4, 2 and 1 behind them");
    if (WHOLE && count == N) {
        TL_UNROLL_FOR (int k = 0; k < N; k += 4)
            visit(piece_of<4>(y + k));
        return;
    }
    TL_UNROLL_FOR (int k = 0; k < (WHOLE ? N - GROUP : N); k += GROUP) {
        if (count < k + GROUP) break;
        visit(piece_of<4>(y + k));
        visit(piece_of<4>(y + k + 4));
    }
    float *const rest = y + N - GROUP;
    if (count & 4) visit(piece_of<4>(rest));
    if (count & 2) visit(piece_of<2>(rest + 4));
    if (count & 1) visit(piece_of<1>(rest + 6));
}

/* y = the elements of a lane from the one at `begin` on, for visit_lane. Places along several axes take many instructions, which are
 * not there twice. Powers are taken of all of y, neutral elements too: a piece for each count would take more registers than there are. */
template <tl_fold_kind KIND, int REDUCED, int N>
__device__ __forceinline__ void load_part(float (&y)[N], const Fold &a, const float *x, uint32_t begin, int count)
{
    if constexpr (KIND == TL_FOLD_POWER)
        TL_UNROLL_FOR (float &v : y)
            v = NEUTRAL<KIND>;
    if constexpr (REDUCED == 1) {
        const float *at = x + begin * a.reduced.stride[0];
        visit_lane<true>(y, count, [&](auto &piece) {
            TL_UNROLL_FOR (float &v : piece)
                v = *at, at += a.step;
        });
    } else {
        visit_lane<false>(y, count, [&](auto &piece) {
            TL_UNROLL_FOR (float &v : piece)
                v = x[offset_of(a.reduced, begin)], begin += 1u << a.lane_bits;
        });
    }
}

/* tl_fold_take of a lane of a product, as `multiply` does it: mostly the power of two is taken out once, else after each piece. */
template <int N> __device__ __forceinline__ void multiply_lane(tl_folded &f, float (&y)[N], int count)
{
    double product = f.v;
    bool middling = true;
    visit_lane<true>(y, count, [&](auto &piece) {
        TL_UNROLL_FOR (const float v : piece)
            product *= (double)v;
        middling &= has_middling_exponent(product);
    });
    if (middling) {
        f.v = product;
        tl_fold_normalize(&f.v, &f.e);
        return;
    }
    visit_lane<false>(y, count, [&](auto &piece) {
        float factors[4];
        TL_UNROLL_FOR (int k = 0; k < 4; k++)
            factors[k] = k < (int)(sizeof piece / sizeof piece[0]) ? piece[k] : NEUTRAL<TL_FOLD_PRODUCT>;
        multiply(factors, 4, &f.v, &f.e, &f.zeros);
    });
}

/* tl_fold_take of a lane, of which y is filled by load_part. */
template <tl_fold_kind KIND, int N>
__device__ __forceinline__ void take_lane(tl_folded &f, float (&y)[N], int count, double m, tl_fold_rule rule)
{
    if constexpr (KIND == TL_FOLD_PRODUCT) {
        multiply_lane(f, y, count);
    } else if constexpr (KIND >= TL_FOLD_MAX && KIND <= TL_FOLD_LARGEST) {
        float best[] = {NEUTRAL<KIND>};
        visit_lane<true>(y, count, [&](auto &piece) {
            TL_UNROLL_FOR (const float v : piece)
                best[0] = KIND == TL_FOLD_MIN ? tl_min(best[0], v)
                                              : tl_max(best[0], KIND == TL_FOLD_MAX ? v : fabsf(v));
        });
        f.v = tl_fold_greater(f.v, extreme_of<KIND>(best));
    } else if constexpr (KIND == TL_FOLD_POWER) {
        take_all<KIND>(f, y, N, m, rule);
    } else {
        visit_lane<!DEAR<KIND>>(y, count, [&](auto &piece) { take_all<KIND>(f, piece, GROUP, m, rule); });
    }
}

/* The elements of segment s of a result, none behind it, and those of one lane of n elements. */
__device__ __forceinline__ int elements_of(const Fold &a, uint32_t s)
{
    return s * SEGMENT < a.length ? (int)min(a.length - s * SEGMENT, (uint32_t)SEGMENT) : 0;
}
__device__ __forceinline__ int count_of(const Fold &a, int n, int lane)
{
    return n > lane ? ((n - lane - 1) >> a.lane_bits) + 1 : 0;
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
        const int count = inside ? count_of(a, elements_of(a, part), lane) : 0;
#pragma unroll 1
        for (int done = 0; done < count; done += N) {
            float y[N];
            const int some = min(count - done, N);
            load_part<KIND, REDUCED>(y, a, x, (uint32_t)(part * SEGMENT + lane + (done << a.lane_bits)), some);
            keep_floats(y);
            take_lane<KIND>(f, y, some, 0.0, a.rule);
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
                                                uint32_t result, double (*values)[THREADS])
{
    const double s = fold_columns<TL_FOLD_WHOLE_POWER, REDUCED, PER_LANE>(a, x, inside, lane, mine, values);
    const bool ends = inside && lane == 0 && mine == 0;
    float norm = 0.0f;
    if (!__syncthreads_and(!ends || whole_norm(s, a.rule, &norm))) return false;
    if (ends) a.out[result] = norm;
    return true;
}

/* KIND's centre is a fold CENTRE, of which a team takes all segments before it takes them for KIND, when most of x is in cache;
 * or it has none, or an earlier one. REDUCED: 1 where one merged axis is reduced, 0 for any number. N: the elements of a lane
 * that are loaded at once; a lane has more only where they are dear. */
template <tl_fold_kind KIND, tl_fold_kind CENTRE, int REDUCED, int N>
__global__ void __launch_bounds__(THREADS, resident<KIND>(N)) fold_kernel(Fold a)
{
    __shared__ double values[KIND == TL_FOLD_PRODUCT ? TL_FOLD_PLANES : 1][THREADS];
    __shared__ std::conditional_t<KIND == TL_FOLD_DEVIATION, double[1][THREADS], char> sums;
    constexpr bool CENTRED = KIND != CENTRE; /* such kinds alone are shared by teams */
    __shared__ std::conditional_t<KIND == TL_FOLD_DEVIATION, Deviations, char> kept;
    __shared__ std::conditional_t<CENTRED, double[TOGETHER][THREADS / LANES], char> shared;
    constexpr bool SHORT = REDUCED == 1 && N < PER_LANE && !DEAR<KIND>; /* results of one segment */
    tl_wait_for_earlier(TL_AFTER, gridDim.x);
    const int t = (int)threadIdx.x, lanes = 1 << a.lane_bits;
    const int own_column = t & (a.columns - 1), lane = t >> a.column_bits & (lanes - 1);
    const int split_bits = CENTRED ? a.split_bits : 0, unit_bits = a.column_bits + a.lane_bits + split_bits;
    const int team = t >> unit_bits, place = (team << a.column_bits) + own_column;
    const int mine = t >> (a.column_bits + a.lane_bits) & ((1 << split_bits) - 1);
    const int together = SHORT ? 1 : a.together;
    const uint32_t first = blockIdx.x * (THREADS >> unit_bits); /* unit of the block */
    uint32_t own_segment = 0, tile, unit = first + team;
    if constexpr (!SHORT) unit = a.segments.divmod(unit, &own_segment);
    const uint32_t k = a.tiles.divmod(unit, &tile), column = (tile << a.column_bits) + own_column;
    const uint32_t result = k * a.inner + column;
    bool inside = team < a.units - first && column < a.inner;
    if constexpr (LEAVES_OUT<KIND, CENTRE>) {
        if (a.left) {
            inside = inside && a.left[result] != 0.0;
            if (!__syncthreads_or(inside)) return;
        }
    }
    const float *const x = inside ? a.x + offset_of(a.kept, k) + column : a.x;
    double centre = 0.0;
    if constexpr (KIND == TL_FOLD_POWER && CENTRED) {
        if (tl_fold_is_whole(a.rule.p) && end_whole_norms<REDUCED>(a, x, inside, lane, mine, result, values)) return;
    }
    if constexpr (CENTRED)
        centre = tl_fold_centre(KIND, fold_columns<CENTRE, REDUCED, PER_LANE / 2>(a, x, inside, lane, mine, values));
    else if (inside && KIND != TL_FOLD_DEVIATION)
        centre = centre_of<KIND>(a.centre, a.centre_out, result);
    tl_folded f, all = {tl_fold_start(KIND), 0.0, 0.0}, sum = {0.0, 0.0, 0.0};
    float y[N];
    uint32_t begin;
    int n, count; /* of a part: its elements, and the thread's */
    const auto begin_part = [&](int part) {
        const uint32_t segment = own_segment + part;
        begin = segment * SEGMENT + lane;
        n = inside ? elements_of(a, segment) : 0;
        count = count_of(a, n, lane);
        if constexpr (!DEAR<KIND>) load_part<KIND, REDUCED>(y, a, x, begin, count);
    };
    begin_part(mine);
#pragma unroll 1
    for (int part = mine; part - mine < together; part += 1 << split_bits) { /* as often as the other teams */
        double m = centre;
        if constexpr (!DEAR<KIND>) keep_floats(y);
        if constexpr (KIND == TL_FOLD_DEVIATION) {
            sum = {0.0, 0.0, 0.0};
            take_lane<TL_FOLD_SUM>(sum, y, count, 0.0, a.rule);
            sum = fold_team<TL_FOLD_SUM>(a, sum, t - (lane << a.column_bits), true, sums);
            m = mean_of_segment(sum.v, n);
            keep_floats(y);
        }
        f = {tl_fold_start(KIND), 0.0, 0.0};
        if constexpr (DEAR<KIND>) {
#pragma unroll 1
            for (int done = 0; done < count; done += N) {
                const int some = min(count - done, N);
                load_part<KIND, REDUCED>(y, a, x, begin + (uint32_t)(done << a.lane_bits), some);
                take_lane<KIND>(f, y, some, m, a.rule);
            }
        } else {
            take_lane<KIND>(f, y, count, m, a.rule);
        }
        /* The next part is on its way while the team folds this one. */
        if (part - mine + (1 << split_bits) < together) begin_part(part + (1 << split_bits));
        if (part > mine) __syncthreads(); /* the values of the part before are read */
        f = fold_team<KIND>(a, f, t, lane == 0, values);
        if (together == 1 || lane > 0) continue;
        if constexpr (CENTRED) {
            if (part < together) shared[part][place] = f.v;
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
        if (together > 1) __syncthreads();
    }
    if (!inside || lane > 0 || mine > 0) return;
    if (together > 1) {
        if constexpr (CENTRED)
            for (int s = 0; s < together; s++)
                tl_fold_join(KIND, &all.v, &all.e, &all.zeros, shared[s][place], 0.0, 0.0);
        if constexpr (KIND == TL_FOLD_DEVIATION) {
            const double m = all.e / (double)a.length;
            for (int s = 0; s < together; s++)
                all.v += tl_fold_around(kept.value[s][place], kept.sum[s][place], (double)elements_of(a, s), m);
            sum.v = all.e;
        }
        f = all;
    }
    if (a.out) {
        a.out[result] = tl_fold_end(KIND, f, centre, a.rule);
        return;
    }
    const int64_t segments = SHORT ? 1 : a.segments.divisor, plane = a.results * segments;
    double *const to = a.to + result * segments + own_segment;
    to[0] = f.v;
    if constexpr (KIND == TL_FOLD_DEVIATION) to[plane] = sum.v;
    if constexpr (KIND == TL_FOLD_PRODUCT) to[plane] = f.e, to[2 * plane] = f.zeros;
}

/* Kinds with a centre of their own take both folds at once where CENTRED. */
template <int REDUCED, int N, bool CENTRED> auto fold_kernel_of(tl_fold_kind kind) -> void (*)(Fold)
{
    constexpr int EXPS = REDUCED == 1 ? PER_LANE / 2 : GROUP; /* places along several axes take registers too */
    switch (kind) {
    case TL_FOLD_SUM: return fold_kernel<TL_FOLD_SUM, TL_FOLD_SUM, REDUCED, N>;
    case TL_FOLD_ABS: return fold_kernel<TL_FOLD_ABS, TL_FOLD_ABS, REDUCED, N>;
    case TL_FOLD_SQUARE: return fold_kernel<TL_FOLD_SQUARE, TL_FOLD_SQUARE, REDUCED, N>;
    case TL_FOLD_DEVIATION: return fold_kernel<TL_FOLD_DEVIATION, TL_FOLD_DEVIATION, REDUCED, N>;
    case TL_FOLD_EXP: return fold_kernel<TL_FOLD_EXP, (CENTRED ? TL_FOLD_MAX : TL_FOLD_EXP), REDUCED, EXPS>;
    case TL_FOLD_POWER: return fold_kernel<TL_FOLD_POWER, (CENTRED ? TL_FOLD_LARGEST : TL_FOLD_POWER), REDUCED, GROUP>;
    case TL_FOLD_EQUAL: return fold_kernel<TL_FOLD_EQUAL, TL_FOLD_EQUAL, REDUCED, N>;
    case TL_FOLD_MAX: return fold_kernel<TL_FOLD_MAX, TL_FOLD_MAX, REDUCED, N>;
    case TL_FOLD_MIN: return fold_kernel<TL_FOLD_MIN, TL_FOLD_MIN, REDUCED, N>;
    case TL_FOLD_LARGEST: return fold_kernel<TL_FOLD_LARGEST, TL_FOLD_LARGEST, REDUCED, N>;
    case TL_FOLD_WHOLE_POWER: return fold_kernel<TL_FOLD_WHOLE_POWER, TL_FOLD_WHOLE_POWER, REDUCED, N>;
    default: return fold_kernel<TL_FOLD_PRODUCT, TL_FOLD_PRODUCT, REDUCED, N>;
    }
}

/* Ends the norms that their `sums` of products decide, which then are 0, and others 1. */
__global__ void __launch_bounds__(THREADS) decide_kernel(double *sums, int64_t results, tl_fold_rule rule, float *out)
{
    tl_wait_for_earlier();
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    float norm;
    if (i >= results) return;
    const bool decided = whole_norm(sums[i], rule, &norm);
    if (decided) out[i] = norm;
    sums[i] = decided ? 0.0 : 1.0;
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
 * the fold is `centred`, teams share them. Without a centre the next segment is on its way while one is folded: two blocks on each
 * multiprocessor keep memory busy. */
bool together(tl_context *ctx, const tl_fold_axes &f, bool centred)
{
    const int64_t segments = tl_ceil_div(f.length, SEGMENT), blocks = blocks_of(f);
    const int split_bits = centred ? split_bits_of(ctx, segments, blocks) : 0;
    return segments > 1 && segments <= TOGETHER &&
           (segments <= 4 || blocks << split_bits >= (centred ? 4 : 2) * (int64_t)tl_cuda_sms(ctx));
}

/* The segments of x, whose values or ends go to `to` or out: `left` of a result, 1 where they are taken together. */
int32_t run_segments(tl_context *ctx, const tl_fold_plan &p, bool centred, int64_t left, double *to, float *out)
{
    Fold a = {p.x, p.centre, p.centre_out, to, out};
    a.kept = axes_of(p.f.kept, p.f.kept_size, p.f.kept_stride);
    a.reduced = axes_of(p.f.reduced, p.f.reduced_size, p.f.reduced_stride);
    a.results = p.results(), a.length = (uint32_t)p.f.length, a.inner = (uint32_t)p.f.inner, a.rule = p.rule;
    a.left = p.left;
    if (centred) a.split_bits = split_bits_of(ctx, tl_ceil_div(a.length, SEGMENT), blocks_of(p.f));
    a.column_bits = column_bits_of(a.inner, a.split_bits);
    const int64_t tiles = tl_ceil_div(a.inner, (int64_t)1 << a.column_bits), lanes = tl_fold_width(a.length);
    while (1 << a.lane_bits < lanes)
        a.lane_bits++;
    a.columns = 1 << a.column_bits;
    a.step = (uint32_t)(lanes * a.reduced.stride[0]); /* an array has fewer than 2^32 elements */
    a.segments = tl_fastdiv((uint64_t)left), a.tiles = tl_fastdiv((uint64_t)tiles);
    a.together = left > 1 ? 1 : (int)tl_imax(1, tl_ceil_div(a.length, SEGMENT));
    a.units = (uint32_t)(a.results / a.inner * tiles * left);
    const bool one = a.reduced.count == 1;
    const auto kernel = centred ? one ? fold_kernel_of<1, 16, true>(p.kind) : fold_kernel_of<0, PER_LANE, true>(p.kind)
                        : !one  ? fold_kernel_of<0, PER_LANE, false>(p.kind)
                        : a.length <= 8 * lanes  ? fold_kernel_of<1, 8, false>(p.kind)
                        : a.length <= 16 * lanes ? fold_kernel_of<1, 16, false>(p.kind)
                        : a.length <= 24 * lanes ? fold_kernel_of<1, 24, false>(p.kind)
                                                 : fold_kernel_of<1, PER_LANE, false>(p.kind);
    return tl_launch_ahead(ctx, p.name, kernel,
                           tl_grid(a.units, THREADS >> (a.lane_bits + a.column_bits + a.split_bits)), THREADS, 0, a);
}

/* Tickets of one launch. Results that take more have groups enough to be busy, or so many that another launch is nothing beside them. */
constexpr int64_t TICKETS = 4096;

/* The context's tickets, which are 0 between launches; none where launches may run side by side, where there is no memory for them, or,
 * as making them is no part of a graph, while the first are asked for in one. */
uint32_t *find_tickets(tl_context *ctx)
{
    if (tl_cuda_shares_streams(ctx)) return nullptr;
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
    tl_scratch<double> values(ctx), sums(ctx);
    if (p.f.length <= ROW && p.results() > 0 && in_rows(p.f) && extent_of_x(ctx, p.f) == ROW) {
        p.kind = kind;
        return run_rows(ctx, p, true, nullptr, p.f.length, ROW, 1, nullptr, out);
    }
    if (p.results() > 0 && !in_rows(p.f) && (p.f.length <= SEGMENT || together(ctx, p.f, true))) {
        p.kind = kind;
        return run_segments(ctx, p, true, 1, nullptr, out);
    }
    if (p.results() > 0 && kind == TL_FOLD_POWER && tl_fold_is_whole(p.rule.p)) {
        tl_fold_plan powers = p;
        powers.kind = TL_FOLD_WHOLE_POWER;
        TL_TRY(sums.allocate(p.results()));
        TL_TRY(tl_cuda_fold(ctx, powers, sums, nullptr));
        if (p.f.length <= ROW) return end_norms(ctx, p, sums, out);
        TL_TRY(tl_launch_ahead(ctx, p.name, decide_kernel, tl_grid(p.results(), THREADS), THREADS, 0, sums, p.results(),
                               p.rule, out));
        p.left = sums;
    }
    TL_TRY(values.allocate(p.results()));
    TL_TRY(tl_cuda_fold(ctx, p, values, nullptr));
    p.kind = kind;
    p.centre = values;
    return tl_cuda_fold(ctx, p, nullptr, out);
}
