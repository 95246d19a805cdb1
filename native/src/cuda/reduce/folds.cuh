/* Folds over any set of axes on CUDA (formula/fold.h), for the operations of reduce/axes.cu; and what their kernels share
 * (reduce/folds.cu, reduce/fold_rows.cu): the merged axes, and how a thread loads the elements of a lane and takes them. */
#pragma once

#include <type_traits>

#include "cuda/device/instructions.cuh"
#include "cuda/device/widen.cuh"
#include "cuda/reduce/select.h"
#include "cuda/runtime/launch.cuh"
#include "formula/exact.h"

/* A fold of x. `centre` are the values of an earlier fold of the same geometry, `centre_out` the results of one; both may be
 * missing. */
struct tl_fold_plan {
    const char *name;
    tl_fold_kind kind;
    tl_fold_axes f;
    tl_fold_rule rule;
    const float *x;
    const double *centre;
    const float *centre_out;

    int64_t results() const { return f.outer * f.inner; }
};

/* The numbers that a value is made of: a product's power of two and zeros, the sum beside deviations. */
constexpr __host__ __device__ int tl_fold_planes(tl_fold_kind kind)
{
    return kind == TL_FOLD_PRODUCT ? TL_FOLD_PLANES : kind == TL_FOLD_DEVIATION ? 2 : 1;
}

/* A fold whose values go to `values`, tl_fold_planes of as many as there are results, or what it ends as to out. */
int32_t tl_cuda_fold(tl_context *ctx, const tl_fold_plan &p, double *values, float *out);
/* A fold of the kind `kind` into out, whose centre is the fold p. */
int32_t tl_cuda_fold_twice(tl_context *ctx, tl_fold_plan p, tl_fold_kind kind, float *out);

namespace tl_folds {

constexpr int THREADS = 256;
constexpr int LANES = TL_FOLD_LANES, TEAMS = TL_FOLD_TEAMS, SEGMENT = TL_FOLD_SEGMENT, PER_LANE = SEGMENT / LANES;
/* Merged axes, the innermost first. */
struct Axes {
    int32_t count;
    tl_fastdiv size[TL_FOLD_RANK];
    int64_t stride[TL_FOLD_RANK];
};

inline Axes axes_of(int32_t count, const int64_t *size, const int64_t *stride)
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

/* Kinds whose elements take many registers each. */
template <tl_fold_kind KIND> constexpr bool DEAR = KIND == TL_FOLD_EXP || KIND == TL_FOLD_POWER;

/* What changes no extreme, no product and no sum; deviations and equal elements leave it out. */
template <tl_fold_kind KIND>
constexpr float NEUTRAL = KIND == TL_FOLD_PRODUCT                      ? 1.0f
                          : KIND == TL_FOLD_MAX || KIND == TL_FOLD_EXP ? -TL_INF
                          : KIND == TL_FOLD_MIN                        ? TL_INF
                                                                       : 0.0f;

/* y = the elements begin, begin + lanes, ... along one reduced axis, `count` of them, and behind them neutral ones. A whole lane,
 * which nearly all are, is loaded without a condition. */
template <tl_fold_kind KIND, int N>
__device__ __forceinline__ void load_lane(float (&y)[N], const float *x, int64_t stride, uint32_t begin, int lanes,
                                          int count)
{
    const float *at = x + begin * stride;
    const uint32_t step = (uint32_t)(lanes * stride); /* an array has fewer than 2^32 elements */
    if (count >= N) {
        TL_UNROLL_FOR (int i = 0; i < N; i++, at += step)
            y[i] = *at;
    } else {
        TL_UNROLL_FOR (int i = 0; i < N; i++, at += step)
            y[i] = i < count ? *at : NEUTRAL<KIND>;
    }
}

/* The same along COUNT axes, or any number for 0. */
template <tl_fold_kind KIND, int COUNT, int N>
__device__ __forceinline__ void load_lane(float (&y)[N], const float *x, const Axes &reduced, uint32_t begin, int lanes,
                                          int count)
{
    TL_UNROLL_FOR (int i = 0; i < N; i++)
        y[i] = i < count ? x[offset_of<COUNT>(reduced, begin + (uint32_t)(i * lanes))] : NEUTRAL<KIND>;
}

/* The largest of y as a fold values it: of the negatives for the smallest, of the magnitudes for the largest one. */
template <tl_fold_kind KIND, int N> __device__ __forceinline__ double extreme_of(const float (&y)[N])
{
    constexpr bool LEAST = KIND == TL_FOLD_MIN, LARGEST = KIND == TL_FOLD_LARGEST;
    float best = NEUTRAL<KIND>;
    TL_UNROLL_FOR (int i = 0; i < N; i++)
        best = LEAST ? tl_min(best, y[i]) : tl_max(best, LARGEST ? fabsf(y[i]) : y[i]);
    if (best != best) return (double)TL_NAN;
    const double d = (double)(LEAST ? -best : best);
    return LARGEST ? d : tl_fold_ordered(d);
}

/* Whether 2^-400 <= |v| < 2^400. */
__device__ __forceinline__ bool has_middling_exponent(double v)
{
    const uint32_t high = (uint32_t)(tl_bits64(v) >> 32);
    return (high << 1) - ((1023u - 400) << 21) < 800u << 21;
}

/* The product of y on v, which is 1 at first. Four elements without a zero change it by 2^-596 to 2^512. So where it stands within
 * 2^+-400 after each four, as it mostly does, it has not left the range of doubles, and the power of two is taken out once: it
 * changes no rounding. Else it is taken out after each four, and zeros are counted. */
template <int N> __device__ __forceinline__ void multiply(const float (&y)[N], double *v, double *e, double *zeros)
{
    static_assert(N % 4 == 0, "by four");
    double product = *v;
    bool middling = true;
    TL_UNROLL_FOR (int i = 0; i < N; i++) {
        product *= (double)y[i];
        if (i % 4 == 3) middling &= has_middling_exponent(product);
    }
    if (middling) {
        *v = product;
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

/* t <= 0, held near that -T of whose upper word `least` is, by its own upper word alone. Without a sign the words of negative numbers
 * are above all others, and the larger, the further they are from 0. */
__device__ __forceinline__ double hold_below_0(double t, uint32_t least)
{
    const uint64_t bits = tl_bits64(t);
    const uint32_t held = min(max((uint32_t)(bits >> 32), UINT32_C(0x80000000)), least);
    return tl_from_bits64((uint64_t)held << 32 | (uint32_t)bits);
}

/* tl_fold_value of exponentials and of a norm's elements where the centre m is finite; elsewhere the values are not read
 * (tl_fold_end). So the elements are numbers that give no exponent above 0 but for a rounding. It is held at -700 or -1000 or a
 * little below, where a value is too small to matter beside that of the largest element, 1, and so may be that of no element. */
__device__ __forceinline__ double exponential_of(float x, double m)
{
    return tl_exp64(hold_below_0((double)x - m, UINT32_C(0xc085e000)));
}

/* The same of a norm's element, and of one that is neither 0 nor subnormal. */
__device__ __forceinline__ double power_of(double t) { return tl_exp2_64(hold_below_0(t, UINT32_C(0xc08f4000))); }
__device__ __forceinline__ double any_power(float x, double m, double p)
{
    const double t = p * (tl_log2_finite(x) - m);
    return power_of(x == 0.0f ? -(double)TL_INF : t);
}
__device__ __forceinline__ double normal_power(float x, double m, double p)
{
    return power_of(p * (tl_log2_normal(fabsf(x), 0) - m));
}

/* tl_fold_value of the other sums. */
template <tl_fold_kind KIND> __device__ __forceinline__ double cheap_value(float x, double m, tl_fold_rule rule)
{
    if constexpr (KIND == TL_FOLD_DEVIATION) {
        const double d = tl_add_widened(x, -m);
        return d * d;
    } else {
        return tl_fold_value(KIND, x, m, rule);
    }
}

/* tl_fold_take of the first `count` of y, in this order; m as of mean_of_segment for deviations. */
template <tl_fold_kind KIND, int N>
__device__ __forceinline__ void take_all(tl_folded &f, const float (&y)[N], int count, double m, tl_fold_rule rule)
{
    if constexpr (KIND >= TL_FOLD_MAX && KIND <= TL_FOLD_LARGEST) {
        f.v = tl_fold_greater(f.v, extreme_of<KIND>(y));
    } else if constexpr (KIND == TL_FOLD_PRODUCT) {
        multiply(y, &f.v, &f.e, &f.zeros);
    } else if constexpr (KIND == TL_FOLD_SQUARE) {
        /* squares of float32 are exact in float64: fused, the sum has the same bits */
        TL_UNROLL_FOR (int i = 0; i < N; i++)
            f.v = fma((double)y[i], (double)y[i], f.v);
    } else if constexpr (KIND == TL_FOLD_EXP) {
        TL_UNROLL_FOR (int i = 0; i < N; i++)
            f.v += exponential_of(y[i], m);
    } else if constexpr (KIND == TL_FOLD_POWER) {
        bool normal = true;
        TL_UNROLL_FOR (int i = 0; i < N; i++)
            normal &= fabsf(y[i]) >= 0x1p-126f;
        if (normal) {
            TL_UNROLL_FOR (int i = 0; i < N; i++)
                f.v += normal_power(y[i], m, rule.p);
        } else {
            TL_UNROLL_FOR (int i = 0; i < N; i++)
                f.v += any_power(y[i], m, rule.p);
        }
    } else {
        constexpr bool NOTHING = KIND == TL_FOLD_SUM || KIND == TL_FOLD_ABS; /* is the value of 0 */
        if (NOTHING || count >= N) {
            TL_UNROLL_FOR (int i = 0; i < N; i++)
                f.v += cheap_value<KIND>(y[i], m, rule);
        } else {
            TL_UNROLL_FOR (int i = 0; i < N; i++) {
                const double d = cheap_value<KIND>(y[i], m, rule);
                f.v += i < count ? d : 0.0;
            }
        }
    }
}

/* sum / n, which for a whole segment is a product; NaN unless all elements are finite, as then is a deviation. */
__device__ __forceinline__ double mean_of_segment(double sum, int n)
{
    const double m = n == SEGMENT ? sum * (1.0 / SEGMENT) : sum / (double)n;
    return m + (m - m);
}

/* Lest the compiler keep elements as doubles, in twice the registers. */
template <int N> __device__ __forceinline__ void keep_floats(float (&y)[N])
{
    TL_UNROLL_FOR (int i = 0; i < N; i++)
        tl_forget_origin(y[i]);
}

/* The centre of a result's elements. */
template <tl_fold_kind KIND>
__device__ __forceinline__ double centre_of(const double *centre, const float *centre_out, int64_t result)
{
    return tl_fold_centre(KIND, centre ? centre[result] : centre_out ? (double)centre_out[result] : 0.0);
}

/* ---- rows (reduce/fold_rows.cu) --------------------------------------------------------------------------------------- */

/* Blocks of run_rows on a multiprocessor, which take `reduced` axes, or values for less than one: all that their registers leave room
 * for. */
constexpr __host__ __device__ int resident_rows(tl_fold_kind kind, int reduced)
{
    const bool few = kind != TL_FOLD_DEVIATION && kind != TL_FOLD_EXP && kind != TL_FOLD_POWER;
    return few && reduced == 1 ? 4 : 3;
}

/* Rows of x, or of values of `each` elements, `length` of either for a result, cut into rows of `extent`. */
int32_t run_rows(tl_context *ctx, const tl_fold_plan &p, const double *from, int64_t length, int64_t extent,
                 int64_t each, double *to, float *out);

/* call(kind), a constant there. */
template <class Result, class Call> Result for_kind(tl_fold_kind kind, const Call &call)
{
    switch (kind) {
    case TL_FOLD_SUM: return call(std::integral_constant<tl_fold_kind, TL_FOLD_SUM>());
    case TL_FOLD_ABS: return call(std::integral_constant<tl_fold_kind, TL_FOLD_ABS>());
    case TL_FOLD_SQUARE: return call(std::integral_constant<tl_fold_kind, TL_FOLD_SQUARE>());
    case TL_FOLD_DEVIATION: return call(std::integral_constant<tl_fold_kind, TL_FOLD_DEVIATION>());
    case TL_FOLD_EXP: return call(std::integral_constant<tl_fold_kind, TL_FOLD_EXP>());
    case TL_FOLD_POWER: return call(std::integral_constant<tl_fold_kind, TL_FOLD_POWER>());
    case TL_FOLD_EQUAL: return call(std::integral_constant<tl_fold_kind, TL_FOLD_EQUAL>());
    case TL_FOLD_MAX: return call(std::integral_constant<tl_fold_kind, TL_FOLD_MAX>());
    case TL_FOLD_MIN: return call(std::integral_constant<tl_fold_kind, TL_FOLD_MIN>());
    case TL_FOLD_LARGEST: return call(std::integral_constant<tl_fold_kind, TL_FOLD_LARGEST>());
    default: return call(std::integral_constant<tl_fold_kind, TL_FOLD_PRODUCT>());
    }
}

} // namespace tl_folds
