/* The checker of the exhaustive campaign: a shared library of its own, never part of the main one.
 *
 * It makes the inputs, decides what a correctly rounded result is (rounding.h) and compares results that the library under
 * test has computed, whichever device did. Every function works on one range of samples in the calling thread; callers
 * give ranges to threads. Build (audit/checker.py does it on demand):
 *   cc -std=gnu11 -O2 -ffp-contract=off -fno-math-errno -fno-trapping-math -shared -fPIC checker.c -lquadmath -lm */
#include "../src/formula/random.h"
#include "rounding.h"

#define EXPORT __attribute__((visibility("default")))

/* ---- the functions of one argument ------------------------------------------------------------------------------------ */

struct row {
    const char *name; /* of the entry point */
    struct tl_reference reference;
    float lo, hi; /* the interval walked */
    /* half-width around the reference's zero, in which an absolute error of `floor` is allowed beside the row's ulps (as
     * the row's bound says) */
    double width, floor;
};

#define ROW(name, ref, kind, lo, hi, zero, width, floor) {#name, {d_##ref, q_##ref, kind, zero}, lo, hi, width, floor}
#define EVERYWHERE(name, ref, kind) ROW(name, ref, kind, -INFINITY, INFINITY, 0, 0, 0)
static const struct row table[] = {
    EVERYWHERE(abs, abs, TL_ALGEBRAIC),
    EVERYWHERE(sqrt, sqrt, TL_ALGEBRAIC),
    EVERYWHERE(inv, inv, TL_ALGEBRAIC),
    EVERYWHERE(relu, relu, TL_ALGEBRAIC),
    EVERYWHERE(clamp, clamp, TL_ALGEBRAIC),
    EVERYWHERE(scale, scale, TL_ALGEBRAIC),
    EVERYWHERE(exp, exp, TL_PLAIN),
    EVERYWHERE(log, log, TL_PLAIN),
    ROW(safe_log, safe_log, TL_PLAIN, -INFINITY, INFINITY, 0.54132, 0, 0),
    EVERYWHERE(sigmoid, sigmoid, TL_PLAIN),
    EVERYWHERE(tanh, tanh, TL_PLAIN),
    EVERYWHERE(softplus, softplus, TL_PLAIN),
    EVERYWHERE(silu, silu, TL_STICKY),
    EVERYWHERE(gelu, gelu, TL_STICKY),
    EVERYWHERE(leaky_relu, leaky_relu, TL_ALGEBRAIC),
    EVERYWHERE(sign, sign, TL_ALGEBRAIC),
    EVERYWHERE(floor, floor, TL_ALGEBRAIC),
    EVERYWHERE(round, round, TL_ALGEBRAIC),
    EVERYWHERE(log1p, log1p, TL_PLAIN),
    EVERYWHERE(expm1, expm1, TL_PLAIN),
    EVERYWHERE(erf, erf, TL_PLAIN),
    EVERYWHERE(gelu_erf, gelu_erf, TL_STICKY),
    EVERYWHERE(sin, sin, TL_PLAIN),
    EVERYWHERE(cos, cos, TL_PLAIN),
    EVERYWHERE(pow_scalar, pow_scalar, TL_ALGEBRAIC),
    EVERYWHERE(elu, elu, TL_STICKY_BELOW_0),
    EVERYWHERE(hardswish, hardswish, TL_ALGEBRAIC),
    EVERYWHERE(softsign, softsign, TL_ALGEBRAIC),
    EVERYWHERE(mish, mish, TL_PLAIN),
    EVERYWHERE(inv_bwd, inv_bwd, TL_ALGEBRAIC),
    EVERYWHERE(leaky_relu_bwd, leaky_relu_bwd, TL_ALGEBRAIC),
    EVERYWHERE(log1p_bwd, log1p_bwd, TL_ALGEBRAIC),
    EVERYWHERE(expm1_bwd, exp, TL_PLAIN),
    EVERYWHERE(erf_bwd, erf_bwd, TL_PLAIN),
    ROW(gelu_erf_bwd, gelu_erf_bwd, TL_PLAIN, -INFINITY, INFINITY, -0.75179, 0.01, 0x1p-33),
    EVERYWHERE(sin_bwd, cos, TL_PLAIN),
    EVERYWHERE(cos_bwd, cos_bwd, TL_PLAIN),
    EVERYWHERE(pow_scalar_bwd, pow_scalar_bwd, TL_ALGEBRAIC),
    EVERYWHERE(elu_bwd, elu_bwd, TL_PLAIN),
    EVERYWHERE(hardswish_bwd, hardswish_bwd, TL_ALGEBRAIC),
    EVERYWHERE(softsign_bwd, softsign_bwd, TL_ALGEBRAIC),
    ROW(mish_bwd, mish_bwd, TL_PLAIN, -INFINITY, INFINITY, -1.19246, 0.01, 0x1p-33),
    EVERYWHERE(div_bwd, div_bwd, TL_ALGEBRAIC),
    EVERYWHERE(sqrt_bwd, sqrt_bwd, TL_ALGEBRAIC),
    EVERYWHERE(abs_bwd, abs_bwd, TL_ALGEBRAIC),
    EVERYWHERE(clamp_bwd, clamp_bwd, TL_ALGEBRAIC),
    EVERYWHERE(relu_bwd, relu_bwd, TL_ALGEBRAIC),
    EVERYWHERE(exp_bwd, same, TL_ALGEBRAIC),
    EVERYWHERE(log_bwd, inv, TL_ALGEBRAIC),
    EVERYWHERE(safe_log_bwd, safe_log_bwd, TL_PLAIN),
    ROW(sigmoid_bwd, sigmoid_bwd, TL_ALGEBRAIC, 0.0f, 1.0f, 0, 0, 0),
    ROW(tanh_bwd, tanh_bwd, TL_ALGEBRAIC, -1.0f, 1.0f, 0, 0, 0),
    EVERYWHERE(softplus_bwd, sigmoid, TL_PLAIN),
    ROW(silu_bwd, silu_bwd, TL_PLAIN, -INFINITY, INFINITY, -1.27846, 0.01, 0x1p-32),
    ROW(gelu_bwd, gelu_bwd, TL_PLAIN, -INFINITY, INFINITY, -0.75246, 0.01, 0x1p-31)};
#define COUNT ((int)(sizeof table / sizeof table[0]))

EXPORT const char *tl_check_name(int i) { return i >= 0 && i < COUNT ? table[i].name : NULL; }

/* What a range of samples gave. Distances are counted in float32 from the correctly rounded result. */
struct tally {
    uint64_t seen, misrounded, mismatches, over, precise, undecided;
    int64_t worst;
    uint32_t worst_at, worst_got, worst_want, mismatch_at, mismatch_got, mismatch_want, over_at, over_got, over_want;
    uint32_t near_at;
    double near_error;
};

/* Different bits, any NaN being equal to any NaN. */
static int differs(float a, float b) { return tl_bits(a) != tl_bits(b) && !(a != a && b != b); }

/* The float32 of `n` consecutive samples: bit patterns first, first + stride, ... */
EXPORT void tl_check_inputs(uint64_t first, uint64_t stride, uint64_t n, float *out)
{
    for (uint64_t i = 0; i < n; i++)
        out[i] = tl_from_bits((uint32_t)(first + i * stride));
}

static void enter(struct tally *t, const struct row *f, float x, float got, int64_t limit)
{
    struct tl_decisions decisions = {0, 0};
    float want = tl_rounded(&f->reference, x, &decisions);
    t->seen++;
    t->precise += decisions.precise;
    t->undecided += decisions.undecided;
    if (tl_bits(got) == tl_bits(want)) return;
    int bad = (got != got) != (want != want) || (isinf(got) && isinf(want)) || (got == 0.0f && want == 0.0f);
    if (bad) {
        if (!t->mismatches++) {
            t->mismatch_at = tl_bits(x);
            t->mismatch_got = tl_bits(got);
            t->mismatch_want = tl_bits(want);
        }
    }
    if (got != got || want != want) return;
    int64_t distance = llabs(tl_rank(got) - tl_rank(want));
    int over = distance > limit;
    if (f->width > 0 && fabs(x - f->reference.zero) < f->width) {
        double error = (double)fabsq((quad)got - f->reference.precise((quad)x));
        if (error > t->near_error) {
            t->near_error = error;
            t->near_at = tl_bits(x);
        }
        double unit = (double)(nextafterf(fabsf(want), INFINITY) - fabsf(want));
        over = error > f->floor + ((double)limit + 0.5) * unit;
    } else {
        t->misrounded += distance != 0;
        if (distance > t->worst) {
            t->worst = distance;
            t->worst_at = tl_bits(x);
            t->worst_got = tl_bits(got);
            t->worst_want = tl_bits(want);
        }
    }
    if (over && !t->over++) {
        t->over_at = tl_bits(x);
        t->over_got = tl_bits(got);
        t->over_want = tl_bits(want);
    }
}

/* Compares the results of function `i` on the samples first, first + stride, ...; adds to `t`. */
EXPORT int tl_check_unary(int i, uint64_t first, uint64_t stride, uint64_t n, const float *got, int64_t limit,
                          struct tally *t)
{
    if (i < 0 || i >= COUNT) return -1;
    const struct row *f = &table[i];
    for (uint64_t k = 0; k < n; k++) {
        float x = tl_from_bits((uint32_t)(first + k * stride));
        if (x < f->lo || x > f->hi || (x == 0.0f && f->lo == 0.0f && signbit(x))) continue;
        enter(t, f, x, got[k], limit);
    }
    return 0;
}

/* The correctly rounded result of function `i` at one input. */
EXPORT float tl_check_want(int i, float x)
{
    struct tl_decisions decisions = {0, 0};
    return i >= 0 && i < COUNT ? tl_rounded(&table[i].reference, x, &decisions) : NAN;
}

/* ---- comparison across devices and machines --------------------------------------------------------------------------- */

/* One 64-bit hash per block of results, every NaN hashed as the same one. Four interleaved chains, folded in order. */
EXPORT void tl_check_hash(const float *x, uint64_t n, uint64_t block, uint64_t *out)
{
    for (uint64_t b = 0; b * block < n; b++) {
        uint64_t h[4] = {1, 2, 3, 4}, end = (b + 1) * block < n ? (b + 1) * block : n;
        for (uint64_t i = b * block; i < end; i++) {
            uint64_t *s = &h[i & 3];
            *s = (*s ^ (x[i] != x[i] ? 0x7fc00000u : tl_bits(x[i]))) * 0x9e3779b97f4a7c15u;
            *s ^= *s >> 29;
        }
        uint64_t all = 0;
        for (int c = 0; c < 4; c++) {
            all = (all ^ h[c]) * 0x9e3779b97f4a7c15u;
            all ^= all >> 32;
        }
        out[b] = all;
    }
}

/* Number of samples where two results differ; `at` is the first of them. */
EXPORT uint64_t tl_check_differ(const float *a, const float *b, uint64_t n, uint64_t *at)
{
    uint64_t count = 0;
    if (memcmp(a, b, n * sizeof *a) == 0) return 0;
    for (uint64_t i = 0; i < n; i++)
        if (differs(a[i], b[i]) && !count++) *at = i;
    return count;
}
