/* Real transforms of few numbers, on CUDA: those of the CPU, to the bit (cpu/spectral/fft.h), where a thread has a whole row in
 * registers. Its butterflies need no other thread, and what they take is known when they are compiled; so the time is that of the
 * memory's, or of a launch.
 *
 * A warp owns 32 neighbouring rows, which it reads and writes as one piece by way of shared memory: there rows lie an odd number of
 * floats apart, in which 32 threads, each at its own row, meet all banks.
 *
 * A row whose result is not finite though all of it is finite is transformed again, scaled by 2^-64, as on the CPU. */
#include "cuda/spectral/own_passes.cuh"

namespace {

constexpr int THREADS = 128, WARP = 32;

/* How far apart rows of LENGTH floats lie, and where float e of neighbouring ones does. */
template <int LENGTH> constexpr int apart = LENGTH % 2 ? LENGTH : LENGTH + 1;
template <int LENGTH> __device__ __forceinline__ uint32_t place(uint32_t e) { return LENGTH % 2 ? e : e + e / LENGTH; }

template <int LENGTH> __device__ __forceinline__ void read_rows(const float *from, float *shared, int rows)
{
    const uint32_t lane = threadIdx.x % WARP;
    const int left = LENGTH * rows - (int)lane;
    float v[LENGTH];
    from += lane;
    TL_UNROLL_FOR (int i = 0; i < LENGTH; i++)
        v[i] = WARP * i < left ? from[WARP * i] : 0.0f;
    TL_UNROLL_FOR (int i = 0; i < LENGTH; i++)
        shared[place<LENGTH>(lane + WARP * i)] = v[i];
}
template <int LENGTH> __device__ __forceinline__ void write_rows(float *to, const float *shared, int rows)
{
    const uint32_t lane = threadIdx.x % WARP;
    const int left = LENGTH * rows - (int)lane;
    to += lane;
    TL_UNROLL_FOR (int i = 0; i < LENGTH; i++)
        if (WARP * i < left) to[WARP * i] = shared[place<LENGTH>(lane + WARP * i)];
}

/* ---- one transform ----------------------------------------------------------------------------------------------- */

/* The self-sorting passes of spectral/own_passes.cuh of M numbers; w: roots, as there. SPAN: the product of the radices before. */
template <int M, int SPAN> __device__ __forceinline__ void passes(tl_complex (&)[M], const float2 *) {}
template <int M, int SPAN, int R, int... MORE>
__device__ __forceinline__ void passes(tl_complex (&x)[M], const float2 *w)
{
    constexpr int EACH = M / R, ROOTS = EACH / SPAN;
    tl_complex y[M];
    TL_UNROLL_FOR (int i = 0; i < EACH; i++) {
        const int p = i / SPAN, base = i % SPAN + SPAN * R * p;
        tl_complex a[R];
        TL_UNROLL_FOR (int j = 0; j < R; j++)
            a[j] = x[i + EACH * j];
        tl_butterfly(a, R);
        y[base] = a[0];
        TL_UNROLL_FOR (int j = 1; j < R; j++) {
            if (p == 0) {
                y[base + SPAN * j] = a[j];
            } else {
                const float2 root = w[(j - 1) * ROOTS + p];
                y[base + SPAN * j] = tl_times(a[j], root.x, root.y);
            }
        }
    }
    TL_UNROLL_FOR (int i = 0; i < M; i++)
        x[i] = y[i];
    passes<M, SPAN * R, MORE...>(x, w + ROOTS * (R - 1));
}

/* What enters the complex transform of a row, each element times `down`. */
template <bool INVERSE, bool ODD, int M>
__device__ __forceinline__ void enter(const float *real, const Real &t, const float *row, float down,
                                      tl_complex (&z)[M])
{
    if constexpr (!INVERSE) {
        TL_UNROLL_FOR (int j = 0; j < M; j++)
            z[j] = ODD ? tl_complex_of(row[j] * down, 0.0f) : tl_complex_of(row[2 * j] * down, row[2 * j + 1] * down);
    } else if constexpr (ODD) {
        TL_UNROLL_FOR (int k = 0; k <= M / 2; k++) {
            const tl_complex b = bin(t, row, k, down);
            z[k] = tl_complex_of(b.i, b.r);
            if (k > 0) z[M - k] = tl_complex_of(-b.i, b.r);
        }
    } else {
        TL_UNROLL_FOR (int k = 0; k <= M / 2; k++) {
            const tl_complex a = bin(t, row, k, down), b = bin(t, row, M - k, down);
            tl_complex x, y;
            TL_JOIN(a, b, real[2 * k], real[2 * k + 1], x.r, x.i, y.r, y.i);
            if (k > 0) z[M - k] = tl_complex_of(y.i, y.r);
            z[k] = tl_complex_of(x.i, x.r);
        }
    }
}

/* What it leaves, as it is written but for the factor of a row that was scaled. */
template <bool INVERSE, bool ODD, int M, int OUT>
__device__ __forceinline__ void leave(const float *real, const Real &t, const tl_complex (&z)[M], float (&out)[OUT])
{
    if constexpr (INVERSE) {
        TL_UNROLL_FOR (int j = 0; j < M; j++) {
            out[ODD ? j : 2 * j] = z[j].i;
            if (!ODD) out[2 * j + 1] = z[j].r;
        }
    } else {
        out[0] = (ODD ? z[0].r : z[0].r + z[0].i) * t.edge;
        out[1] = 0.0f;
        if constexpr (ODD) {
            TL_UNROLL_FOR (int k = 1; k <= M / 2; k++)
                out[2 * k] = z[k].r * t.inner, out[2 * k + 1] = z[k].i * t.inner;
        } else {
            out[2 * M] = (z[0].r - z[0].i) * t.edge;
            out[2 * M + 1] = 0.0f;
            const float half = 0.5f * t.inner;
            TL_UNROLL_FOR (int k = 1; k <= M / 2; k++)
                TL_SPLIT(z[k], z[M - k], real[2 * k], real[2 * k + 1], half, out[2 * k], out[2 * k + 1],
                         out[2 * (M - k)], out[2 * (M - k) + 1]);
        }
        if (bad(out[0]))
            TL_UNROLL_FOR (int k = 0; k < OUT; k++)
                out[k] = TL_NAN;
    }
}

/* A thread owns a row. RADICES, twiddle, real: the plan's. */
template <bool INVERSE, bool ODD, int... RADICES>
__global__ void __launch_bounds__(THREADS)
    few_kernel(const float2 *__restrict__ twiddle, const float *__restrict__ real, const __grid_constant__ Real t)
{
    constexpr int M = (1 * ... * RADICES), N = ODD ? M : 2 * M, PACKED = 2 * (N / 2 + 1);
    constexpr int IN = INVERSE ? PACKED : N, OUT = INVERSE ? N : PACKED;
    constexpr int FLOATS = WARP * (apart<IN> > apart<OUT> ? apart<IN> : apart<OUT>);
    __shared__ float memory[THREADS / WARP][FLOATS];
    float *const shared = memory[threadIdx.x / WARP];
    const int lane = (int)(threadIdx.x % WARP);
    const int64_t first = (int64_t)blockIdx.x * THREADS + threadIdx.x / WARP * WARP;
    const int rows = (int)(t.batch - first < WARP ? t.batch - first : WARP);
    read_rows<IN>(t.from + first * IN, shared, rows);
    __syncwarp();
    float out[OUT];
    if (lane < rows) {
        const float *const row = shared + lane * apart<IN>;
        float down = 1.0f, up = 1.0f;
#pragma unroll 1
        for (int attempt = 0; attempt < 2; attempt++) {
            tl_complex z[M];
            enter<INVERSE, ODD>(real, t, row, down, z);
            passes<M, 1, RADICES...>(z, twiddle);
            leave<INVERSE, ODD>(real, t, z, out);
            bool wrong = false, infinite = false;
            TL_UNROLL_FOR (int j = 0; j < OUT; j++)
                out[j] *= up, wrong |= bad(out[j]);
            if (!wrong) break;
            TL_UNROLL_FOR (int j = 0; j < IN; j++)
                infinite |= read_part(t, INVERSE, j) && bad(row[j]);
            if (infinite) break;
            down = DOWN, up = UP;
        }
    }
    __syncwarp();
    if (lane < rows)
        TL_UNROLL_FOR (int j = 0; j < OUT; j++)
            shared[lane * apart<OUT> + j] = out[j];
    __syncwarp();
    write_rows<OUT>(t.to + first * OUT, shared, rows);
}

/* ---- host side --------------------------------------------------------------------------------------------------- */

/* Launches the kernel with the plan's radices, if these are RADICES. */
template <bool ODD, int... RADICES>
bool launch(tl_context *ctx, const tl_own_plan &plan, const Real &t, bool inverse, int32_t *status)
{
    constexpr int COUNT = sizeof...(RADICES), radices[COUNT + 1] = {RADICES...};
    if (plan.direct.stages != COUNT) return false;
    for (int i = 0; i < COUNT; i++)
        if (plan.direct.radix[i] != radices[i]) return false;
    *status = tl_launch(ctx, "few", inverse ? few_kernel<true, ODD, RADICES...> : few_kernel<false, ODD, RADICES...>,
                        tl_grid(t.batch, THREADS), THREADS, plan.direct.twiddle, plan.real, t);
    return true;
}

} /* namespace */

bool tl_own_few(tl_context *ctx, const tl_own_plan &plan, const tl_own_real_rows &t, bool inverse, int32_t *status)
{
    if (!plan.in_shared || plan.bluestein) return false;
    if (t.n % 2 != 0)
        return launch<true>(ctx, plan, t, inverse, status) || launch<true, 3>(ctx, plan, t, inverse, status) ||
               launch<true, 5>(ctx, plan, t, inverse, status) || launch<true, 7>(ctx, plan, t, inverse, status) ||
               launch<true, 3, 3>(ctx, plan, t, inverse, status) || launch<true, 11>(ctx, plan, t, inverse, status) ||
               launch<true, 13>(ctx, plan, t, inverse, status) || launch<true, 5, 3>(ctx, plan, t, inverse, status);
    return launch<false>(ctx, plan, t, inverse, status) || launch<false, 2>(ctx, plan, t, inverse, status) ||
           launch<false, 3>(ctx, plan, t, inverse, status) || launch<false, 4>(ctx, plan, t, inverse, status) ||
           launch<false, 5>(ctx, plan, t, inverse, status) || launch<false, 3, 2>(ctx, plan, t, inverse, status) ||
           launch<false, 7>(ctx, plan, t, inverse, status) || launch<false, 8>(ctx, plan, t, inverse, status);
}
