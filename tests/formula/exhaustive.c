/* Walks all float32 arguments of one scalar formula (or every stride-th) and compares with a double reference.
 *
 *   exhaustive NAME [stride [limit]]
 *
 * NAME is a row of the table below or "all"; "list" prints the names, "sums" one checksum of the results per formula
 * (to compare builds), "time" the ns per element of an in-cache loop.
 *
 * Prints the worst distance from the correctly rounded float32, counted in representable numbers, and where it
 * happens; the number of arguments not correctly rounded; mismatches in NaN, infinity and sign of zero. Exits 1 if
 * the distance exceeds the limit (default: 1, for gradients 2) or if there is a mismatch.
 *
 * The reference is evaluated in double. Where its value lies so near the midpoint of two float32 that an error of
 * 2^-42 could move it across, it is evaluated again in __float128 (libquadmath).
 *
 * Gradients are walked with g = 1 against the derivative at x; those that take the forward's y are given the
 * correctly rounded one, and the reference is the formula in y. Distances within the interval around a zero of the
 * derivative that the table names are left out and reported as an absolute error instead.
 *
 * Build, from the repository root (per SIMD variant; -O3 as in the library):
 *   gcc -std=gnu11 -O3 -ffp-contract=off -fno-math-errno -fno-trapping-math -Wall -Wextra -Werror -Inative/src \
 *       -mavx2 -mfma -mbmi2 tests/formula/exhaustive.c -o exhaustive -lquadmath -lm -lpthread
 */
#define _GNU_SOURCE
#include "formula/activation.h"
#include "formula/exact.h"
#include "../../native/tools/rounding.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define EPS TL_CHECK_EPS
#define CHUNK 4096
#define THREADS 2

/* ---- the formulas as array loops: what is compiled here is what the library's vectorised loops compile to --- */

#define LOOP(name, expr)                                                              \
    static __attribute__((noinline)) void run_##name(const float *restrict in, float *restrict out, int n) \
    {                                                                                 \
        for (int i = 0; i < n; i++) {                                                 \
            float x = in[i];                                                          \
            out[i] = expr;                                                            \
        }                                                                             \
    }

/* ---- references that no row of the registry has; the others are in native/tools/rounding.h ----------------------- */

static double d_log1p(double x) { return log1p(x); }
static quad q_log1p(quad x) { return log1pq(x); }
static double d_div_bwd(double x) { return -(double)(0x1.8p10f) / x / x; }
static quad q_div_bwd(quad x) { return -(quad)(0x1.8p10f) / x / x; }

static double d_cospi2(double u)
{
    double r = u - 0.25 * rint(4 * u);
    double s = sin(2 * M_PI * r), c = cos(2 * M_PI * r);
    int q = (int)rint(4 * u) & 3;
    return (q == 0 ? c : q == 1 ? -s : q == 2 ? -c : s) + 0.0;
}
static double d_sinpi2(double u)
{
    double r = u - 0.25 * rint(4 * u);
    double s = sin(2 * M_PI * r), c = cos(2 * M_PI * r);
    int q = (int)rint(4 * u) & 3;
    return (q == 0 ? s : q == 1 ? c : q == 2 ? -s : -c) + 0.0;
}
static quad q_cospi2(quad u)
{
    quad r = u - 0.25Q * rintq(4 * u);
    quad s = sinq(2 * M_PIq * r), c = cosq(2 * M_PIq * r);
    int q = (int)rintq(4 * u) & 3;
    return (q == 0 ? c : q == 1 ? -s : q == 2 ? -c : s) + 0.0Q;
}
static quad q_sinpi2(quad u)
{
    quad r = u - 0.25Q * rintq(4 * u);
    quad s = sinq(2 * M_PIq * r), c = cosq(2 * M_PIq * r);
    int q = (int)rintq(4 * u) & 3;
    return (q == 0 ? s : q == 1 ? c : q == 2 ? -s : -c) + 0.0Q;
}

TL_HD float div_bwd_b(float x)
{
    float ga, gb;
    tl_div_bwd(0x1.8p10f, x, 1.0f, &ga, &gb);
    return gb;
}

/* name, expression in x, reference, interval of x walked, distance allowed, zero of the function that is a
 * difference (the double reference cancels there: quad is used) and half-width of what is left out around it */
#define TABLE(ROW)                                                                 \
    ROW(abs, tl_abs(x), abs, -TL_INF, TL_INF, 0, 0, 0)                             \
    ROW(sqrt, tl_sqrt(x), sqrt, -TL_INF, TL_INF, 0, 0, 0)                          \
    ROW(inv, tl_inv(x), inv, -TL_INF, TL_INF, 0, 0, 0)                             \
    ROW(relu, tl_relu(x), relu, -TL_INF, TL_INF, 0, 0, 0)                          \
    ROW(exp, tl_exp(x), exp, -TL_INF, TL_INF, 1, 0, 0)                             \
    ROW(log, tl_log(x), log, -TL_INF, TL_INF, 1, 0, 0)                             \
    ROW(log1p, tl_log1p(x), log1p, -TL_INF, TL_INF, 1, 0, 0)                       \
    ROW(sigmoid, tl_sigmoid(x), sigmoid, -TL_INF, TL_INF, 1, 0, 0)                 \
    ROW(tanh, tl_tanh(x), tanh, -TL_INF, TL_INF, 1, 0, 0)                          \
    ROW(softplus, tl_softplus(x), softplus, -TL_INF    , TL_INF, 1, 0, 0)          \
    ROW(safe_log, tl_safe_log(x, EPS), safe_log, -TL_INF, TL_INF, 1, 0.54132, 0)   \
    ROW(silu, tl_silu(x), silu, -TL_INF, TL_INF, 1, 0, 0)                          \
    ROW(gelu, tl_gelu(x), gelu, -TL_INF, TL_INF, 1, 0, 0)                          \
    ROW(cospi2, tl_cospi2(x), cospi2, 0.0f, 0x1.fffffep-1f, 1, 0, 0)               \
    ROW(sinpi2, tl_sinpi2(x), sinpi2, 0.0f, 0x1.fffffep-1f, 1, 0, 0)               \
    ROW(inv_bwd, tl_inv_bwd(x, 1.0f), inv_bwd, -TL_INF, TL_INF, 2, 0, 0)           \
    ROW(div_bwd, div_bwd_b(x), div_bwd, -TL_INF, TL_INF, 2, 0, 0)                  \
    ROW(tanh_bwd, tl_tanh_bwd(x, 1.0f), tanh_bwd, -1.0f, 1.0f, 1, 0, 0)              \
    ROW(sigmoid_bwd, tl_sigmoid_bwd(x, 1.0f), sigmoid_bwd, 0.0f, 1.0f, 1, 0, 0)      \
    ROW(softplus_bwd, tl_softplus_bwd(x, 1.0f), sigmoid, -TL_INF, TL_INF, 1, 0, 0) \
    ROW(safe_log_bwd, tl_safe_log_bwd(x, EPS, 1.0f), safe_log_bwd, -TL_INF, TL_INF, 2, 0, 0) \
    ROW(silu_bwd, tl_silu_bwd(x, 1.0f), silu_bwd, -TL_INF, TL_INF, 2, -1.27846, 0.01) \
    ROW(gelu_bwd, tl_gelu_bwd(x, 1.0f), gelu_bwd, -TL_INF, TL_INF, 2, -0.75246, 0.01)

#define AS_LOOP(name, expr, ref, lo, hi, limit, zero, width) LOOP(name, expr)
TABLE(AS_LOOP)

struct formula {
    const char *name;
    void (*run)(const float *restrict, float *restrict, int);
    double (*reference)(double);
    quad (*exact)(quad);
    float lo, hi;
    long limit;
    double zero, width;
};

#define AS_ENTRY(name, expr, ref, lo, hi, limit, zero, width) \
    {#name, run_##name, d_##ref, q_##ref, lo, hi, limit, zero, width},
static const struct formula table[] = {TABLE(AS_ENTRY)};
#define COUNT (sizeof table / sizeof table[0])

/* ---- the walk ------------------------------------------------------------------------------------------------- */

struct part {
    const struct formula *f;
    uint64_t begin, end, stride;
    long worst;
    float at;
    uint64_t seen, misrounded, mismatches;
    float mismatch_at;
    double near_zero;
    uint64_t sum;
    struct tl_decisions decisions;
};

static int kind_of(const struct formula *f)
{
    if (f->exact == q_silu || f->exact == q_gelu)
        return TL_STICKY;
    return f->exact == q_inv || f->exact == q_inv_bwd || f->exact == q_div_bwd || f->exact == q_tanh_bwd ||
                   f->exact == q_sigmoid_bwd
               ? TL_ALGEBRAIC
               : TL_PLAIN;
}

static void compare(struct part *p, float x, float got)
{
    const struct formula *f = p->f;
    struct tl_reference reference = {f->reference, f->exact, kind_of(f), f->zero};
    float want = tl_rounded(&reference, x, &p->decisions);
    p->seen++;
    int bad = (got != got) != (want != want) || (isinf(got) && isinf(want) && got != want) ||
              (got == 0.0f && want == 0.0f && signbit(got) != signbit(want));
    if (bad) {
        p->mismatches++;
        p->mismatch_at = x;
    }
    if (got != got || want != want)
        return;
    if (f->width > 0 && fabs(x - f->zero) < f->width) {
        double error = (double)fabsq((quad)got - f->exact((quad)x));
        if (error > p->near_zero)
            p->near_zero = error;
        return;
    }
    long distance = labs((long)(tl_rank(got) - tl_rank(want)));
    p->misrounded += distance != 0;
    if (distance > p->worst) {
        p->worst = distance;
        p->at = x;
    }
}

static void *walk(void *arg)
{
    struct part *p = arg;
    float in[CHUNK], out[CHUNK];
    for (uint64_t u = p->begin; u < p->end;) {
        int n = 0;
        for (; n < CHUNK && u < p->end; u += p->stride) {
            float x = tl_from_bits((uint32_t)u);
            if (x < p->f->lo || x > p->f->hi || (x == 0.0f && p->f->lo == 0.0f && signbit(x)))
                continue;
            in[n++] = x;
        }
        p->f->run(in, out, n);
        for (int i = 0; i < n; i++) {
            uint32_t bits = out[i] != out[i] ? 0x7fc00000u : tl_bits(out[i]);
            p->sum = (p->sum ^ bits) * 0x9e3779b97f4a7c15u;
            p->sum ^= p->sum >> 29;
            if (p->f->reference)
                compare(p, in[i], out[i]);
        }
    }
    return NULL;
}

static struct part walk_all(const struct formula *f, uint64_t stride, int compared)
{
    struct formula only_bits = *f;
    only_bits.reference = NULL;
    struct part parts[THREADS];
    pthread_t threads[THREADS];
    /* Interleaved starts, so that both threads get the same share of cheap and expensive arguments. */
    for (int i = 0; i < THREADS; i++) {
        parts[i] = (struct part){.f = compared ? f : &only_bits, .begin = stride * (uint64_t)i, .end = 1ull << 32,
                                 .stride = stride * THREADS};
        if (pthread_create(&threads[i], NULL, walk, &parts[i]) != 0)
            abort();
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    struct part all = parts[0];
    for (int i = 1; i < THREADS; i++) {
        struct part *p = &parts[i];
        if (p->worst > all.worst) {
            all.worst = p->worst;
            all.at = p->at;
        }
        if (p->mismatches)
            all.mismatch_at = p->mismatch_at;
        all.seen += p->seen;
        all.misrounded += p->misrounded;
        all.mismatches += p->mismatches;
        all.decisions.undecided += p->decisions.undecided;
        all.near_zero = fmax(all.near_zero, p->near_zero);
        all.sum = all.sum * 31 + p->sum;
    }
    return all;
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Best of many short repetitions over 16 KiB in and 16 KiB out, ordinary arguments. */
static double ns_per_element(const struct formula *f)
{
    static float in[CHUNK], out[CHUNK];
    for (int i = 0; i < CHUNK; i++)
        in[i] = f->lo == 0.0f ? (float)i / CHUNK : (float)(i + 1) * 0.002f - (f->lo < 0.0f ? 4.0f : 0.0f);
    double best = 1e9;
    for (int rep = 0; rep < 300; rep++) {
        double start = seconds();
        for (int i = 0; i < 40; i++)
            f->run(in, out, CHUNK);
        best = fmin(best, seconds() - start);
    }
    return best / (40.0 * CHUNK) * 1e9;
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "list";
    uint64_t stride = argc > 2 ? strtoull(argv[2], NULL, 0) : 1;
    if (stride == 0 || stride > 1u << 31) {
        fprintf(stderr, "exhaustive: stride: got %s, expected 1 to 2^31\n", argv[2]);
        return 2;
    }
    int found = 0, failed = 0;
    for (size_t i = 0; i < COUNT; i++) {
        const struct formula *f = &table[i];
        if (strcmp(name, "list") == 0) {
            printf("%s\n", f->name);
        } else if (strcmp(name, "time") == 0) {
            printf("%-13s %.3f ns\n", f->name, ns_per_element(f));
        } else if (strcmp(name, "sums") == 0) {
            printf("%-13s %016llx\n", f->name, (unsigned long long)walk_all(f, stride, 0).sum);
        } else if (strcmp(name, f->name) == 0 || strcmp(name, "all") == 0) {
            long limit = argc > 3 ? strtol(argv[3], NULL, 0) : f->limit;
            struct part all = walk_all(f, stride, 1);
            printf("%-13s worst %ld ulp at %a (%.9g), misrounded %llu of %llu (%.4f %%), mismatches %llu", f->name,
                   all.worst, (double)all.at, (double)all.at, (unsigned long long)all.misrounded,
                   (unsigned long long)all.seen, 100.0 * (double)all.misrounded / (double)all.seen,
                   (unsigned long long)all.mismatches);
            if (all.mismatches)
                printf(" (one at %a)", (double)all.mismatch_at);
            if (f->width > 0)
                printf(", within %g of %g absolute error %.3g = 2^%.2f", f->width, f->zero, all.near_zero,
                       log2(all.near_zero));
            printf("\n");
            fflush(stdout);
            if (all.decisions.undecided)
                printf("%-13s undecided: %llu\n", f->name, (unsigned long long)all.decisions.undecided);
            failed |= all.worst > limit || all.mismatches != 0 || all.decisions.undecided != 0;
        } else {
            continue;
        }
        found = 1;
    }
    if (!found) {
        fprintf(stderr, "exhaustive: name: got %s, expected one of the names that \"exhaustive list\" prints\n", name);
        return 2;
    }
    return failed;
}
