/* What the correctly rounded float32 value of a scalar function is, decided independently of the library's formulas.
 *
 * A reference is written once and compiled twice, in double (the C library's functions) and in __float128 (libquadmath).
 * tl_rounded evaluates it in double; where an error of 2^-42 of the value could move the float32 rounding, which is where
 * the value lies that near to the midpoint of two float32, it evaluates it in __float128. The double functions' own error
 * is below 2^-50. Where even an error of 2^-100 could move the quad value across, the case is counted as undecided: for a
 * transcendental function that is a midpoint itself, which only the ties of the table below can be.
 *
 * x·σ(x) and its gelu form are x/2 plus a positive x² term, for subnormal x too small for any fixed precision next to a tie
 * x/2: below 2^-60 the sum is taken as "a little above x/2" (tl_sticky); so is elu for x < 0, which is α·x plus such a
 * term. Values that are sums and products of few float32 (marked algebraic) are exact in quad or farther than 2^-75 from a
 * midpoint, so that the quad value decides, ties included. */
#pragma once

#include <math.h>
#include <quadmath.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef __float128 quad;

/* parameters of the rows that have some */
#define TL_CHECK_EPS 1e-6f
#define TL_CHECK_SCALE 0.7f
#define TL_CHECK_LO (-0.75f)
#define TL_CHECK_HI 1.5f
#define TL_CHECK_DIVIDEND 1536.0f
#define TL_CHECK_SLOPE 0.01f
#define TL_CHECK_ALPHA 1.6732632f
#define TL_CHECK_POWER 2.5f

/* ---- references: T is the type, P their prefix, M the name of a function of the type's math library ------------------- */

#define TL_REFERENCES(T, P, M)                                                                                    \
    static inline T P##exp(T x) { return M(exp)(x); }                                                                    \
    static inline T P##log(T x) { return M(log)(x); }                                                                    \
    static inline T P##sqrt(T x) { return M(sqrt)(x); }                                                                  \
    static inline T P##inv(T x) { return 1 / x; }                                                                        \
    static inline T P##scale(T x) { return (T)TL_CHECK_SCALE * x; }                                                      \
    static inline T P##abs(T x) { return M(fabs)(x); }                                                                   \
    static inline T P##relu(T x) { return x > 0 ? x : x != x ? x : 0; }                                                  \
    static inline T P##clamp(T x) { return x < TL_CHECK_LO ? TL_CHECK_LO : x > TL_CHECK_HI ? TL_CHECK_HI : x; }          \
    static inline T P##sigmoid(T x) { return x < 0 ? M(exp)(x) / (1 + M(exp)(x)) : 1 / (1 + M(exp)(-x)); }               \
    static inline T P##tanh(T x) { return M(tanh)(x); }                                                                  \
    static inline T P##softplus(T x)                                                                                     \
    {                                                                                                             \
        return x == -INFINITY  ? 0                                                                                \
               : x == INFINITY ? x                                                                                \
                               : (x > 0 ? x : 0 * x) + M(log1p)(M(exp)(-M(fabs)(x)));                             \
    }                                                                                                             \
    static inline T P##safe_log(T x) { return M(log)(P##softplus(x) + (T)TL_CHECK_EPS); }                                \
    static inline T P##silu(T x) { return x == -INFINITY ? (T)-0.0 : x * P##sigmoid(x); }                                \
    static inline T P##gelu_arg(T x, int b)                                                                              \
    {                                                                                                             \
        T c = (T)1.5957691216057307117597842397375274738Q, k = (T)0.044715Q;                                      \
        return c * (x + b * k * x * x * x);                                                                       \
    }                                                                                                             \
    static inline T P##gelu(T x) { return x == -INFINITY ? (T)-0.0 : x * P##sigmoid(P##gelu_arg(x, 1)); }                \
    static inline T P##gate(T w, T v) { return P##sigmoid(v) * (1 + w * P##sigmoid(-v)); }                               \
    static inline T P##log1p(T x) { return M(log1p)(x); }                                                          \
    static inline T P##expm1(T x) { return M(expm1)(x); }                                                          \
    static inline T P##erf(T x) { return M(erf)(x); }                                                              \
    static inline T P##gelu_erf(T x) { return x == -INFINITY ? (T)-0.0 : x * (M(erfc)(-x / M(sqrt)((T)2)) / 2); }  \
    static inline T P##sin(T x) { return M(sin)(x); }                                                              \
    static inline T P##cos(T x) { return M(cos)(x); }                                                              \
    static inline T P##sign(T x) { return x > 0 ? 1 : x < 0 ? -1 : x != x ? x : 0; }                               \
    static inline T P##floor(T x) { return M(floor)(x); }                                                          \
    static inline T P##round(T x) { return M(rint)(x); }                                                           \
    static inline T P##leaky_relu(T x) { return x > 0 ? x : (T)TL_CHECK_SLOPE * x; }                               \
    static inline T P##elu(T x) { return x > 0 ? x : (T)TL_CHECK_ALPHA * M(expm1)(x); }                            \
    static inline T P##hardswish(T x) { return x >= 3 ? x : x <= -3 ? (T)-0.0 : x * (x + 3) / 6; }                 \
    static inline T P##softsign(T x) { return x == INFINITY ? 1 : x == -INFINITY ? -1 : x / (1 + M(fabs)(x)); }    \
    static inline T P##mish_e(T x) { return M(exp)(x > 40 ? 40 : x); }                                             \
    static inline T P##mish(T x)                                                                                   \
    {                                                                                                              \
        T e = P##mish_e(x), n = e * (e + 2);                                                                       \
        return x == -INFINITY ? (T)-0.0 : x * (n / (n + 2));                                                       \
    }                                                                                                              \
    static inline T P##pow_scalar(T x) { return M(pow)(x, (T)TL_CHECK_POWER); }                                    \
    /* gradients, with g = 1 */                                                                                   \
    static inline T P##inv_bwd(T x) { return -1 / x / x; }                                                               \
    static inline T P##div_bwd(T x) { return -(T)TL_CHECK_DIVIDEND / x / x; }                                            \
    static inline T P##sqrt_bwd(T x) { return x > 0 ? 1 / (2 * M(sqrt)(x)) : x != x ? x : 0; }                           \
    static inline T P##abs_bwd(T x) { return x > 0 ? 1 : x < 0 ? -1 : x != x ? x : 0; }                                  \
    static inline T P##clamp_bwd(T x) { return x > TL_CHECK_LO && x < TL_CHECK_HI ? 1 : x != x ? x : 0; }                \
    static inline T P##relu_bwd(T x) { return x > 0 ? 1 : x != x ? x : 0; }                                              \
    static inline T P##same(T y) { return y; }                                                                           \
    static inline T P##safe_log_bwd(T x) { return x == INFINITY ? 0 : P##sigmoid(x) / (P##softplus(x) + (T)TL_CHECK_EPS); } \
    static inline T P##tanh_bwd(T y) { return (1 - y) * (1 + y); }                                                       \
    static inline T P##sigmoid_bwd(T y) { return y * (1 - y); }                                                          \
    static inline T P##silu_bwd(T x) { return x < -1e4 ? (T)-0.0 : x > 1e4 ? 1 : P##gate(x, x); }                         \
    static inline T P##gelu_bwd(T x)                                                                                     \
    {                                                                                                             \
        return x < -1e2 ? (T)-0.0 : x > 1e2 ? 1 : P##gate(P##gelu_arg(x, 3), P##gelu_arg(x, 1));                   \
    } \
    static inline T P##log1p_bwd(T x) { return 1 / (1 + x); }                                                      \
    static inline T P##erf_bwd(T x) { return (T)1.1283791670955125738961589031215451717Q * M(exp)(-x * x); }       \
    static inline T P##gelu_erf_bwd(T x)                                                                           \
    {                                                                                                              \
        T f = (T)0.39894228040143267793994605993438186848Q * M(exp)(-x * x / 2);                                   \
        return x < -40 ? (T)-0.0 : x > 40 ? 1 : M(erfc)(-x / M(sqrt)((T)2)) / 2 + x * f;                           \
    }                                                                                                              \
    static inline T P##cos_bwd(T x) { return -M(sin)(x); }                                                         \
    static inline T P##leaky_relu_bwd(T x) { return x > 0 ? 1 : x != x ? x : (T)TL_CHECK_SLOPE; }                  \
    static inline T P##elu_bwd(T x) { return x > 0 ? 1 : (T)TL_CHECK_ALPHA * M(exp)(x); }                          \
    static inline T P##hardswish_bwd(T x) { return x >= 3 ? 1 : x <= -3 ? 0 : (2 * x + 3) / 6; }                   \
    static inline T P##softsign_bwd(T x) { return 1 / ((1 + M(fabs)(x)) * (1 + M(fabs)(x))); }                     \
    static inline T P##mish_bwd(T x)                                                                               \
    {                                                                                                              \
        T e = P##mish_e(x), n = e * (e + 2);                                                                       \
        return x < -300 ? (T)-0.0 : x > 40 ? 1 : (n * (n + 2) + 4 * x * e * (e + 1)) / ((n + 2) * (n + 2));        \
    }                                                                                                              \
    static inline T P##pow_scalar_bwd(T x) { return (T)TL_CHECK_POWER * M(pow)(x, (T)TL_CHECK_POWER - 1); }

#define TL_DOUBLE(f) f
#define TL_QUAD(f) f##q
TL_REFERENCES(double, d_, TL_DOUBLE)
TL_REFERENCES(quad, q_, TL_QUAD)

/* ---- the decision ----------------------------------------------------------------------------------------------------- */

enum { TL_PLAIN = 0, TL_ALGEBRAIC = 1, TL_STICKY = 2, TL_STICKY_BELOW_0 = 3 };

struct tl_reference {
    double (*approximate)(double);
    quad (*precise)(quad);
    int kind;
    /* a zero of the function next to which the double reference loses relative accuracy: quad decides there; 0: none */
    double zero;
};

struct tl_decisions {
    uint64_t precise, undecided;
};

/* What the reference is about times x next to 0, with a positive term far below any float32's spacing; 0: no such term. */
static inline double tl_slope(const struct tl_reference *f, float x)
{
    return f->kind == TL_STICKY ? 0.5 : f->kind == TL_STICKY_BELOW_0 && x < 0.0f ? (double)TL_CHECK_ALPHA : 0.0;
}

/* The float32 next to slope·x + (such a term); the product of two float32 is exact in double. */
static inline float tl_sticky(double slope, float x)
{
    return x == 0.0f ? x : (float)nextafter(slope * (double)x, INFINITY);
}

/* The correctly rounded float32 of the reference at x. */
static inline float tl_rounded(const struct tl_reference *f, float x, struct tl_decisions *count)
{
    const double slope = tl_slope(f, x);
    if (slope != 0.0 && fabsf(x) < 0x1p-60f) return tl_sticky(slope, x);
    double r = f->approximate((double)x);
    double margin = fmax(fabs(r) * 0x1p-42, 0x1p-200);
    if ((float)(r - margin) == (float)(r + margin) && !(f->zero != 0.0 && fabs(r) < 0x1p-5)) return (float)r;
    if (r != r || isinf(r)) return (float)r;
    count->precise++;
    quad q = f->precise((quad)x), slack = fabsq(q) * 0x1p-100Q;
    count->undecided += f->kind != TL_ALGEBRAIC && (float)(q - slack) != (float)(q + slack);
    return (float)q;
}

/* Position of a float among all of them, so that neighbours differ by one and -0 coincides with +0. */
static inline int64_t tl_rank(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u >> 31 ? -(int64_t)(u & 0x7fffffffu) : (int64_t)u;
}
