/* Elementwise operations on CUDA.
 *
 * The operations are listed in formula/elementwise.def, one line each, compiled by both back ends to the same bits. The
 * kernel is bound by memory: each thread owns VECTORS groups of four consecutive elements, 256 groups apart, and loads all
 * of them (16 bytes each) before it computes, so enough bytes are in flight to cover the latency of device memory. An
 * output may be one of the inputs: a thread reads its elements before it writes them, and no other thread touches them. */
#include "cuda/device/vector.cuh"
#include "cuda/runtime/launch.cuh"
#include "generated/elementwise.h"

#include "formula/activation.h"
#include "formula/erf.h"
#include "formula/exact.h"
#include "formula/explog.h"
#include "formula/trigonometry.h"
#include "formula/wide.h"

namespace {

constexpr int THREADS = 256;

struct Map {
    const float *in[3];
    float *out[2];
    float p, q;
    int64_t n;
};

template <int IN, int OUT, int VECTORS, class F> __global__ void __launch_bounds__(THREADS) map_kernel(Map m)
{
    const int64_t block = (int64_t)blockIdx.x * (THREADS * VECTORS * 4);
    float x[VECTORS][IN][4];
    if (block + THREADS * VECTORS * 4 <= m.n) {
        TL_UNROLL_FOR (int v = 0; v < VECTORS; v++)
            TL_UNROLL_FOR (int k = 0; k < IN; k++)
                tl_unpack4(reinterpret_cast<const float4 *>(m.in[k] + block)[v * THREADS + threadIdx.x], x[v][k]);
        TL_UNROLL_FOR (int v = 0; v < VECTORS; v++) {
            float y[OUT][4];
            TL_UNROLL_FOR (int e = 0; e < 4; e++) {
                float arguments[IN], results[OUT];
                TL_UNROLL_FOR (int k = 0; k < IN; k++)
                    arguments[k] = x[v][k][e];
                F::apply(arguments, m.p, m.q, results);
                TL_UNROLL_FOR (int k = 0; k < OUT; k++)
                    y[k][e] = results[k];
            }
            TL_UNROLL_FOR (int k = 0; k < OUT; k++)
                if (OUT == 1 || m.out[k] != nullptr)
                    reinterpret_cast<float4 *>(m.out[k] + block)[v * THREADS + threadIdx.x] =
                        make_float4(y[k][0], y[k][1], y[k][2], y[k][3]);
        }
    } else { /* the last block: single elements */
        for (int64_t i = block + threadIdx.x; i < m.n; i += THREADS) {
            float arguments[IN], results[OUT];
            TL_UNROLL_FOR (int k = 0; k < IN; k++)
                arguments[k] = m.in[k][i];
            F::apply(arguments, m.p, m.q, results);
            TL_UNROLL_FOR (int k = 0; k < OUT; k++)
                if (OUT == 1 || m.out[k] != nullptr) m.out[k][i] = results[k];
        }
    }
}

/* Below SMALL elements the grid would leave multiprocessors idle at four vectors a thread, so each thread takes one. */
constexpr int64_t SMALL = (int64_t)1 << 21;

template <int IN, int OUT, class F> int32_t run(tl_context *ctx, const char *name, const Map &m)
{
    constexpr int LARGE = IN == 1 ? 4 : 2;
    if (m.n <= SMALL) return tl_launch(ctx, name, map_kernel<IN, OUT, 1, F>, tl_grid(m.n, THREADS * 4), THREADS, m);
    return tl_launch(ctx, name, map_kernel<IN, OUT, LARGE, F>, tl_grid(m.n, THREADS * LARGE * 4), THREADS, m);
}

} // namespace

/* The expressions' vocabulary. */
#define A (x[0])
#define B (x[1])
#define C (x[2])
#define P (p)
#define Q (q)

#define TL_ONE(op, inputs, expression)                                                         \
    struct op##_formula {                                                                      \
        static __device__ __forceinline__ void apply(const float (&x)[inputs], float p, float q, float (&y)[1]) \
        {                                                                                        \
            (void)p, (void)q;                                                                    \
            y[0] = expression;                                                                   \
        }                                                                                        \
    };
#define TL_UNARY(op, expression)                                                               \
    TL_ONE(op, 1, expression)                                                                  \
    extern "C" int32_t tl_cuda_##op(tl_context *ctx, const float *a, int64_t n, float *y)                \
    {                                                                                            \
        return run<1, 1, op##_formula>(ctx, "tl_cuda_" #op, Map{{a, 0, 0}, {y, 0}, 0, 0, n});           \
    }
#define TL_UNARY_P(op, expression)                                                             \
    TL_ONE(op, 1, expression)                                                                  \
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
/* Two ways by the magnitude of the first argument: a branch, as neighbouring elements mostly agree. */
#define TL_EITHER(near, far) (fabsf(A) < TL_FAR_ANGLE ? near : far)
#define TL_UNARY_FAR(op, near, far) TL_UNARY(op, TL_EITHER(near, far))
#define TL_BINARY_FAR(op, near, far) TL_BINARY(op, TL_EITHER(near, far))
#define TL_TERNARY(op, expression)                                                             \
    TL_ONE(op, 3, expression)                                                                  \
    extern "C" int32_t tl_cuda_##op(tl_context *ctx, const float *a, const float *b, const float *c, int64_t n, float *y) \
    {                                                                                            \
        return run<3, 1, op##_formula>(ctx, "tl_cuda_" #op, Map{{a, b, c}, {y, 0}, 0, 0, n});           \
    }
#define TL_SELECT_VJP(op, statement)                                                           \
    struct op##_formula {                                                                      \
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
    struct op##_formula {                                                                      \
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
