/* Elementwise operations on CUDA.
 *
 * The operations are listed in formula/elementwise.def, one line each, compiled by both back ends to the same bits. Each thread
 * owns four consecutive elements and moves them in 16 bytes. Blocks are small, 512 elements: so many fit a multiprocessor that
 * those which wait for memory cover those which compute, and the last round of blocks, which leaves multiprocessors idle, is
 * short. Formulas bound by instructions take several such groups a thread where there are elements enough: what a thread does
 * once is then shared by more of them. An output may be one of the inputs: a thread reads its elements before it writes them, and
 * no other thread touches them. */
#include "cuda/device/vector.cuh"
#include "cuda/runtime/launch.cuh"
#include "generated/elementwise.h"

#include "formula/activation.h"
#include "formula/erf.h"
#include "formula/exact.h"
#include "formula/explog.h"
#include "formula/trigonometry.h"
#include "formula/wide.h"

/* Groups that a thread takes of formulas bound by instructions: four where an element needs few registers. */
template <class F> constexpr int GROUPS_OF = 1;
#define TL_HEAVY(op, groups) \
    struct op##_formula; \
    template <> constexpr int GROUPS_OF<op##_formula> = groups;
TL_HEAVY(gelu, 4)
TL_HEAVY(gelu_bwd, 2)
TL_HEAVY(gelu_erf, 4)
TL_HEAVY(gelu_erf_bwd, 2)
TL_HEAVY(log, 4)
TL_HEAVY(log1p, 4)
TL_HEAVY(mish, 4)
TL_HEAVY(safe_log, 2)
TL_HEAVY(softplus, 4)
TL_HEAVY(silu, 4)
TL_HEAVY(silu_bwd, 2)
TL_HEAVY(elu, 4)
TL_HEAVY(sin, 2)
TL_HEAVY(cos, 2)
TL_HEAVY(pow, 4)
TL_HEAVY(pow_scalar, 4)

namespace {

constexpr int THREADS = 128, ELEMENTS = 4;

struct Map {
    const float *in[3];
    float *out[2];
    float p, q;
    int64_t n;
};

/* F's value at COUNT elements: x[k][e] is input k of element e, y[k][e] output k. Elements of the rare kind are computed anew after
 * all, so that the branch is one and the others' instructions interleave. */
template <class F, int COUNT, int IN, int OUT>
__device__ __forceinline__ void apply(const float (&x)[IN][COUNT], const Map &m, float (&y)[OUT][COUNT])
{
    bool rare = false;
    TL_UNROLL_FOR (int e = 0; e < COUNT; e++) {
        float arguments[IN], results[OUT];
        TL_UNROLL_FOR (int k = 0; k < IN; k++)
            arguments[k] = x[k][e];
        F::apply(arguments, m.p, m.q, results);
        TL_UNROLL_FOR (int k = 0; k < OUT; k++)
            y[k][e] = results[k];
        rare |= F::is_rare(arguments, m.p);
    }
    if (!rare) return;
    TL_UNROLL_FOR (int e = 0; e < COUNT; e++) {
        float arguments[IN];
        TL_UNROLL_FOR (int k = 0; k < IN; k++)
            arguments[k] = x[k][e];
        if (F::is_rare(arguments, m.p)) y[0][e] = F::mend(arguments, m.p);
    }
}

/* The first `whole` blocks have GROUPS groups a thread, which lie THREADS groups apart and are all loaded before the first is computed;
 * with two, 40 registers do. What is left is dealt to blocks with one group a thread, of which the last may lack elements: these
 * are 1, which is rare in no formula. So the end takes no longer than a block, and what tells both kinds apart is the block. */
template <int IN, int OUT, int GROUPS, class F>
__global__ void __launch_bounds__(THREADS, GROUPS == 2 ? 12 : 0) map_kernel(Map m, unsigned whole)
{
    tl_wait_for_earlier(TL_AFTER, gridDim.x);
    constexpr int APART = THREADS * ELEMENTS;
    if (blockIdx.x < whole) {
        const int64_t i = (int64_t)blockIdx.x * (GROUPS * APART) + threadIdx.x * ELEMENTS;
        float x[GROUPS][IN][ELEMENTS], y[OUT][ELEMENTS];
        TL_UNROLL_FOR (int g = 0; g < GROUPS; g++)
            TL_UNROLL_FOR (int k = 0; k < IN; k++)
                tl_load4(m.in[k] + i + g * APART, x[g][k]);
        TL_UNROLL_FOR (int g = 0; g < GROUPS; g++) {
            apply<F>(x[g], m, y);
            TL_UNROLL_FOR (int k = 0; k < OUT; k++)
                if (OUT == 1 || m.out[k] != nullptr) tl_store4(m.out[k] + i + g * APART, y[k]);
        }
    } else {
        const int64_t i = ((int64_t)whole * (GROUPS - 1) + blockIdx.x) * APART + threadIdx.x * ELEMENTS;
        float x[IN][ELEMENTS], y[OUT][ELEMENTS];
        TL_UNROLL_FOR (int k = 0; k < IN; k++)
            TL_UNROLL_FOR (int e = 0; e < ELEMENTS; e++)
                x[k][e] = i + e < m.n ? m.in[k][i + e] : 1.0f;
        apply<F>(x, m, y);
        TL_UNROLL_FOR (int k = 0; k < OUT; k++)
            TL_UNROLL_FOR (int e = 0; e < ELEMENTS; e++)
                if (i + e < m.n && (OUT == 1 || m.out[k] != nullptr)) m.out[k][i + e] = y[k][e];
    }
}

/* Elements; below, whole blocks would be left to a few multiprocessors. */
constexpr int64_t HEAVY_LEAST = 4 << 20;

template <int GROUPS, int IN, int OUT, class F> int32_t launch(tl_context *ctx, const char *name, const Map &m)
{
    constexpr int64_t APART = THREADS * ELEMENTS;
    const int64_t whole = m.n / (GROUPS * APART);
    const unsigned grid = tl_grid(m.n - whole * (GROUPS - 1) * APART, APART);
    return tl_launch_ahead(ctx, name, map_kernel<IN, OUT, GROUPS, F>, grid, THREADS, 0, m, (unsigned)whole);
}

template <int IN, int OUT, class F> int32_t run(tl_context *ctx, const char *name, const Map &m)
{
    if (GROUPS_OF<F> > 1 && m.n >= HEAVY_LEAST) return launch<GROUPS_OF<F>, IN, OUT, F>(ctx, name, m);
    return launch<1, IN, OUT, F>(ctx, name, m);
}

/* Operations whose elements are all alike. */
struct Alike {
    template <int IN> static __device__ bool is_rare(const float (&)[IN], float) { return false; }
    template <int IN> static __device__ float mend(const float (&)[IN], float) { return 0.0f; }
};

} // namespace

/* The expressions' vocabulary. */
#define A (x[0])
#define B (x[1])
#define C (x[2])
#define P (p)
#define Q (q)

#define TL_ONE(op, inputs, expression)                                                         \
    struct op##_formula : Alike {                                                              \
        static __device__ __forceinline__ void apply(const float (&x)[inputs], float p, float q, float (&y)[1]) \
        {                                                                                        \
            (void)p, (void)q;                                                                    \
            y[0] = expression;                                                                   \
        }                                                                                        \
    };
#define TL_RARE(op, inputs, condition, others, value)                                          \
    struct op##_formula {                                                                      \
        static __device__ __forceinline__ void apply(const float (&x)[inputs], float p, float, float (&y)[1]) \
        {                                                                                        \
            (void)p;                                                                             \
            y[0] = others;                                                                       \
        }                                                                                        \
        static __device__ __forceinline__ bool is_rare(const float (&x)[inputs], float p) { return (void)p, condition; } \
        static __device__ __forceinline__ float mend(const float (&x)[inputs], float p) { return (void)p, value; } \
    };
#define TL_UNARY(op, expression)                                                               \
    TL_ONE(op, 1, expression)                                                                  \
    TL_UNARY_FUNCTION(op)
#define TL_UNARY_RARE(op, condition, others, value)                                            \
    TL_RARE(op, 1, condition, others, value)                                                   \
    TL_UNARY_FUNCTION(op)
#define TL_UNARY_FUNCTION(op)                                                                  \
    extern "C" int32_t tl_cuda_##op(tl_context *ctx, const float *a, int64_t n, float *y)                \
    {                                                                                            \
        return run<1, 1, op##_formula>(ctx, "tl_cuda_" #op, Map{{a, 0, 0}, {y, 0}, 0, 0, n});           \
    }
#define TL_UNARY_P(op, expression)                                                             \
    TL_ONE(op, 1, expression)                                                                  \
    TL_UNARY_P_FUNCTION(op)
#define TL_UNARY_P_RARE(op, condition, others, value)                                          \
    TL_RARE(op, 1, condition, others, value)                                                   \
    TL_UNARY_P_FUNCTION(op)
#define TL_UNARY_P_FUNCTION(op)                                                                \
    extern "C" int32_t tl_cuda_##op(tl_context *ctx, const float *a, int64_t n, float p, float *y)       \
    {                                                                                            \
        return run<1, 1, op##_formula>(ctx, "tl_cuda_" #op, Map{{a, 0, 0}, {y, 0}, p, 0, n});           \
    }
#define TL_UNARY_PQ(op, expression)                                                            \
    TL_ONE(op, 1, expression)                                                                  \
    extern "C" int32_t tl_cuda_##op(tl_context *ctx, const float *a, int64_t n, float p, float q, float *y) \
    {                                                                                            \
        return run<1, 1, op##_formula>(ctx, "tl_cuda_" #op, Map{{a, 0, 0}, {y, 0}, p, q, n});           \
    }
#define TL_BINARY(op, expression)                                                              \
    TL_ONE(op, 2, expression)                                                                  \
    TL_BINARY_FUNCTION(op)
#define TL_BINARY_RARE(op, condition, others, value)                                           \
    TL_RARE(op, 2, condition, others, value)                                                   \
    TL_BINARY_FUNCTION(op)
#define TL_BINARY_FUNCTION(op)                                                                 \
    extern "C" int32_t tl_cuda_##op(tl_context *ctx, const float *a, const float *b, int64_t n, float *y) \
    {                                                                                            \
        return run<2, 1, op##_formula>(ctx, "tl_cuda_" #op, Map{{a, b, 0}, {y, 0}, 0, 0, n});           \
    }
#define TL_BINARY_P(op, expression)                                                            \
    TL_ONE(op, 2, expression)                                                                  \
    extern "C" int32_t tl_cuda_##op(tl_context *ctx, const float *a, const float *b, int64_t n, float p, float *y) \
    {                                                                                            \
        return run<2, 1, op##_formula>(ctx, "tl_cuda_" #op, Map{{a, b, 0}, {y, 0}, p, 0, n});           \
    }
#define TL_BINARY_PQ(op, expression)                                                           \
    TL_ONE(op, 2, expression)                                                                  \
    extern "C" int32_t tl_cuda_##op(tl_context *ctx, const float *a, const float *b, int64_t n, float p, float q, float *y) \
    {                                                                                            \
        return run<2, 1, op##_formula>(ctx, "tl_cuda_" #op, Map{{a, b, 0}, {y, 0}, p, q, n});           \
    }
#define TL_TERNARY(op, expression)                                                             \
    TL_ONE(op, 3, expression)                                                                  \
    extern "C" int32_t tl_cuda_##op(tl_context *ctx, const float *a, const float *b, const float *c, int64_t n, float *y) \
    {                                                                                            \
        return run<3, 1, op##_formula>(ctx, "tl_cuda_" #op, Map{{a, b, c}, {y, 0}, 0, 0, n});           \
    }
#define TL_SELECT_VJP(op, statement)                                                           \
    struct op##_formula : Alike {                                                              \
        static __device__ __forceinline__ void apply(const float (&x)[2], float, float, float (&y)[2]) \
        {                                                                                        \
            float u, v;                                                                          \
            statement y[0] = u, y[1] = v;                                                        \
        }                                                                                        \
    };                                                                                           \
    extern "C" int32_t tl_cuda_##op(tl_context *ctx, const float *a, const float *b, int64_t n, float *y, float *z) \
    {                                                                                            \
        return run<2, 2, op##_formula>(ctx, "tl_cuda_" #op, Map{{a, b, 0}, {y, z}, 0, 0, n});           \
    }
#define TL_BINARY_VJP(op, statement)                                                           \
    struct op##_formula : Alike {                                                              \
        static __device__ __forceinline__ void apply(const float (&x)[3], float, float, float (&y)[2]) \
        {                                                                                        \
            float u, v;                                                                          \
            statement y[0] = u, y[1] = v;                                                        \
        }                                                                                        \
    };                                                                                           \
    extern "C" int32_t tl_cuda_##op(tl_context *ctx, const float *a, const float *b, const float *c, int64_t n, float *y, \
                            float *z)                                                            \
    {                                                                                            \
        return run<3, 2, op##_formula>(ctx, "tl_cuda_" #op, Map{{a, b, c}, {y, z}, 0, 0, n});           \
    }

#include "formula/elementwise.def"
