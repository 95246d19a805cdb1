/* Real transforms of odd lengths on CUDA in the mode `fast`. cuFFT would take a complex row for each real one, between copies
 * (spectral/plan.cu); here one kernel reads the rows, passes over shared memory and writes the result.
 *
 * A block owns `count` rows. The first pass reads device memory and the last one writes it, so that two passes need one buffer. All
 * radices are odd, so a run of butterflies meets every bank without padding. Composite radices 9 and 15 save passes. The largest
 * radix is where a number is real, in the first pass of the forward and the last one of the inverse transform, and there costs half:
 * a prime from 17 to 31 is allowed there alone.
 *
 * Every element is part of the first number of a first butterfly with factor 1: where one is not finite, the row becomes NaN. */
#include <algorithm>
#include <type_traits>

#include "cuda/spectral/own.cuh"
#include "cuda/spectral/plan.cuh"
#include "formula/butterfly.h"

namespace {

constexpr int FEW_THREADS = 128, MANY_THREADS = 256, MOST_ROWS = 128;
/* The longest row, of one or two buffers of 32 KiB; rows from MANY_LEAST numbers on have more threads. */
constexpr int64_t ODD_MOST = 4096, MANY_LEAST = 1024;
/* Shared memory of a block of several rows. */
constexpr int64_t ODD_BYTES = 40 << 10;

using Real = tl_own_real_rows;

/* ---- butterflies ------------------------------------------------------------------------------------------------- */

/* cos and sin of 2·pi·j/R, up to pi by Taylor's series: what is left out is below 2^-60. */
template <int R> struct Turns {
    float c[R], s[R];

    __host__ __device__ constexpr Turns() : c(), s()
    {
        c[0] = 1.0f, s[0] = 0.0f;
        for (int j = 1; j <= R / 2; j++) {
            const double x = 6.28318530717958647693 * j / R;
            double power = 1.0, cosine = 0.0, sine = 0.0;
            for (int k = 0; k < 32; k += 4) {
                cosine += power, power *= x / (k + 1);
                sine += power, power *= x / (k + 2);
                cosine -= power, power *= x / (k + 3);
                sine -= power, power *= x / (k + 4);
            }
            c[j] = c[R - j] = (float)cosine;
            s[j] = (float)sine, s[R - j] = -s[j];
        }
    }
};

/* u += Σ_j plus_j·cos(2·pi·jk/R) and v += Σ_j minus_j·sin(2·pi·jk/R). */
template <int R>
__device__ __forceinline__ void add_turned(const float (&plus)[R / 2], const float (&minus)[R / 2], int k, float &u,
                                           float &v)
{
    constexpr Turns<R> turns;
    TL_UNROLL_FOR (int j = 1; j <= R / 2; j++) {
        const int at = j * k % R; /* may be 0 where R is no prime */
        u = fmaf(plus[j - 1], turns.c[at], u);
        if (at > 0) v = fmaf(minus[j - 1], turns.s[at], v);
    }
}

/* z[0..R-1] becomes its transform. */
template <int R> __device__ __forceinline__ void transform(tl_complex (&z)[R])
{
    float plus_r[R / 2], plus_i[R / 2], minus_r[R / 2], minus_i[R / 2];
    const tl_complex first = z[0];
    TL_UNROLL_FOR (int j = 1; j <= R / 2; j++) {
        plus_r[j - 1] = z[j].r + z[R - j].r, plus_i[j - 1] = z[j].i + z[R - j].i;
        minus_r[j - 1] = z[j].r - z[R - j].r, minus_i[j - 1] = z[j].i - z[R - j].i;
        z[0] = tl_complex_of(z[0].r + plus_r[j - 1], z[0].i + plus_i[j - 1]);
    }
    TL_UNROLL_FOR (int k = 1; k <= R / 2; k++) {
        tl_complex u = first, v = tl_complex_of(0.0f, 0.0f);
        add_turned<R>(plus_r, minus_i, k, u.r, v.i);
        add_turned<R>(plus_i, minus_r, k, u.i, v.r);
        z[k] = tl_complex_of(u.r + v.i, u.i - v.r);
        z[R - k] = tl_complex_of(u.r - v.i, u.i + v.r);
    }
}

/* The transform of real numbers. */
template <int R> __device__ __forceinline__ void transform_real(const float (&x)[R], tl_complex (&z)[R])
{
    float plus[R / 2], minus[R / 2], total = x[0];
    TL_UNROLL_FOR (int j = 1; j <= R / 2; j++) {
        plus[j - 1] = x[j] + x[R - j], minus[j - 1] = x[j] - x[R - j];
        total += plus[j - 1];
    }
    z[0] = tl_complex_of(total, 0.0f);
    TL_UNROLL_FOR (int k = 1; k <= R / 2; k++) {
        float u = x[0], v = 0.0f;
        add_turned<R>(plus, minus, k, u, v);
        z[k] = tl_complex_of(u, -v);
        z[R - k] = tl_complex_of(u, v);
    }
}

/* The real parts of a transform. */
template <int R> __device__ __forceinline__ void transform_to_real(const tl_complex (&z)[R], float (&x)[R])
{
    float plus[R / 2], minus[R / 2], total = z[0].r;
    TL_UNROLL_FOR (int j = 1; j <= R / 2; j++) {
        plus[j - 1] = z[j].r + z[R - j].r, minus[j - 1] = z[j].i - z[R - j].i;
        total += plus[j - 1];
    }
    x[0] = total;
    TL_UNROLL_FOR (int k = 1; k <= R / 2; k++) {
        float u = z[0].r, v = 0.0f;
        add_turned<R>(plus, minus, k, u, v);
        x[k] = u + v;
        x[R - k] = u - v;
    }
}

/* ---- passes ------------------------------------------------------------------------------------------------------ */

/* What a pass needs to know; w: `roots` roots for each number of a butterfly but the first. */
struct Pass {
    tl_fastdiv each, span;
    const float2 *w;
    int roots;
};

/* The block's rows. */
struct Block {
    const Real &t;
    int64_t first;
    int rows, n;
    int *bad; /* of each row, whether it becomes NaN */
};

/* Turns the numbers of butterfly p and saves them. */
template <int R>
__device__ __forceinline__ void leave(tl_complex (&z)[R], const Pass &pass, uint32_t p, uint32_t q, float2 *to)
{
    const uint32_t base = q + pass.span.divisor * R * p;
    to[base] = make_float2(z[0].r, z[0].i);
    TL_UNROLL_FOR (int j = 1; j < R; j++) {
        const float2 root = pass.w[(j - 1) * pass.roots + p];
        to[base + pass.span.divisor * j] =
            make_float2(fmaf(z[j].r, root.x, -(z[j].i * root.y)), fmaf(z[j].r, root.y, z[j].i * root.x));
    }
}

/* Number k of the conjugate of a row's whole spectrum, from its half. */
__device__ __forceinline__ tl_complex whole(const Real &t, const float2 *half, int k)
{
    const bool upper = k >= (int)t.bins;
    const float2 v = half[upper ? (int)t.n - k : k];
    const float factor = k == 0 ? t.edge : t.inner, imaginary = k == 0 ? 0.0f : v.y * factor;
    return tl_complex_of(v.x * factor, upper ? imaginary : -imaginary);
}

template <int R, bool INVERSE>
__device__ __forceinline__ void first_pass(const Block &block, const Pass &pass, float2 *y)
{
    const uint32_t each = pass.each.divisor;
    for (uint32_t e = threadIdx.x; e < block.rows * each; e += blockDim.x) {
        uint32_t i;
        const uint32_t c = pass.each.divmod(e, &i);
        tl_complex z[R];
        if constexpr (INVERSE) {
            const float2 *const half = reinterpret_cast<const float2 *>(block.t.from) +
                                       (block.first + c) * block.t.bins;
            TL_UNROLL_FOR (int j = 0; j < R; j++)
                z[j] = whole(block.t, half, (int)(i + each * j));
            transform(z);
        } else {
            const float *const from = block.t.from + (block.first + c) * block.n + i;
            float x[R];
            TL_UNROLL_FOR (int j = 0; j < R; j++)
                x[j] = from[each * j];
            transform_real(x, z);
        }
        if (tl_not_finite(z[0].r) || tl_not_finite(z[0].i)) block.bad[c] = 1;
        leave(z, pass, i, 0, y + c * block.n);
    }
}

template <int R>
__device__ __forceinline__ void middle_pass(const Block &block, const Pass &pass, const float2 *x, float2 *y)
{
    const uint32_t each = pass.each.divisor;
    for (uint32_t e = threadIdx.x; e < block.rows * each; e += blockDim.x) {
        uint32_t i, q;
        const uint32_t c = pass.each.divmod(e, &i), p = pass.span.divmod(i, &q);
        const float2 *const from = x + c * block.n + i;
        tl_complex z[R];
        TL_UNROLL_FOR (int j = 0; j < R; j++)
            z[j] = tl_complex_of(from[each * j].x, from[each * j].y);
        transform(z);
        leave(z, pass, p, q, y + c * block.n);
    }
}

template <int R, bool INVERSE>
__device__ __forceinline__ void last_pass(const Block &block, const Pass &pass, const float2 *x)
{
    const Real &t = block.t;
    const uint32_t each = pass.each.divisor;
    for (uint32_t e = threadIdx.x; e < block.rows * each; e += blockDim.x) {
        uint32_t i;
        const uint32_t c = pass.each.divmod(e, &i);
        const float2 *const from = x + c * block.n + i;
        const bool bad = block.bad[c];
        tl_complex z[R];
        TL_UNROLL_FOR (int j = 0; j < R; j++)
            z[j] = tl_complex_of(from[each * j].x, from[each * j].y);
        if constexpr (INVERSE) {
            float *const to = t.to + (block.first + c) * block.n + i;
            float real[R];
            transform_to_real(z, real);
            TL_UNROLL_FOR (int j = 0; j < R; j++)
                to[each * j] = bad ? TL_NAN : real[j];
        } else {
            float2 *const to = reinterpret_cast<float2 *>(t.to) + (block.first + c) * t.bins;
            transform(z);
            TL_UNROLL_FOR (int j = 0; j <= R / 2; j++) {
                const int k = (int)(i + each * j);
                const float factor = k ? t.inner : t.edge;
                if (k < (int)t.bins)
                    to[k] = bad ? make_float2(TL_NAN, TL_NAN)
                                : make_float2(z[j].r * factor, k ? z[j].i * factor : 0.0f);
            }
        }
    }
}

/* call(radix) of the radix, a constant there. */
template <bool LARGE, class Call> __device__ __forceinline__ void with_radix(int radix, const Call &call)
{
    if constexpr (LARGE) {
        switch (radix) {
        case 17: return call(std::integral_constant<int, 17>());
        case 19: return call(std::integral_constant<int, 19>());
        case 23: return call(std::integral_constant<int, 23>());
        case 29: return call(std::integral_constant<int, 29>());
        case 31: return call(std::integral_constant<int, 31>());
        default: break;
        }
    }
    switch (radix) {
    case 3: return call(std::integral_constant<int, 3>());
    case 5: return call(std::integral_constant<int, 5>());
    case 7: return call(std::integral_constant<int, 7>());
    case 9: return call(std::integral_constant<int, 9>());
    case 11: return call(std::integral_constant<int, 11>());
    case 13: return call(std::integral_constant<int, 13>());
    default: return call(std::integral_constant<int, 15>());
    }
}

template <bool INVERSE>
__global__ void __launch_bounds__(MANY_THREADS, 2)
    odd_kernel(const __grid_constant__ tl_own_direct d, const __grid_constant__ Real t, int count)
{
    TL_DYNAMIC_SHARED(float2, memory);
    __shared__ int bad[MOST_ROWS];
    const int64_t first = (int64_t)blockIdx.x * count;
    const int rows = (int)(t.batch - first < count ? t.batch - first : count);
    const Block block = {t, first, rows, d.n, bad};
    for (int c = threadIdx.x; c < rows; c += (int)blockDim.x)
        bad[c] = 0;
    __syncthreads();
    float2 *x = memory, *y = memory + count * d.n;
    Pass pass = {d.each[0], d.span[0], d.twiddle, (int)d.each[0].divisor};
    with_radix<!INVERSE>(d.radix[0], [&](auto radix) { first_pass<decltype(radix)::value, INVERSE>(block, pass, x); });
    __syncthreads();
    for (int i = 1; i < d.stages; i++) {
        pass.w += pass.roots * (d.radix[i - 1] - 1);
        pass.each = d.each[i], pass.span = d.span[i], pass.roots = (int)(pass.each.divisor / pass.span.divisor);
        if (i == d.stages - 1) {
            with_radix<INVERSE>(d.radix[i],
                                [&](auto radix) { last_pass<decltype(radix)::value, INVERSE>(block, pass, x); });
            break;
        }
        with_radix<false>(d.radix[i], [&](auto radix) { middle_pass<decltype(radix)::value>(block, pass, x, y); });
        __syncthreads();
        float2 *const free = x;
        x = y;
        y = free;
    }
}

/* ---- host side --------------------------------------------------------------------------------------------------- */

/* The rows of a block for which its threads are idle least: steps of all passes, in numbers, for each row. */
int rows_of_block(const tl_own_direct &d, int threads, int most)
{
    int best = 1;
    double least = 0.0;
    for (int count = 1; count <= most; count++) {
        int64_t steps = 0;
        for (int i = 0; i < d.stages; i++)
            steps += tl_ceil_div(count * (int64_t)d.each[i].divisor, threads) * d.radix[i];
        const double of_row = (double)steps / count;
        if (count == 1 || of_row < least) best = count, least = of_row;
    }
    return best;
}

template <bool INVERSE> int32_t launch(tl_context *ctx, const tl_own_direct &d, const Real &t)
{
    const int threads = d.n >= MANY_LEAST ? MANY_THREADS : FEW_THREADS;
    const int64_t row = (d.stages > 2 ? 2 : 1) * d.n * (int64_t)sizeof(float2);
    int count = rows_of_block(d, threads, (int)std::max<int64_t>(1, std::min<int64_t>(ODD_BYTES / row, MOST_ROWS)));
    while (count > 1 && tl_ceil_div(t.batch, count) < 2 * tl_cuda_sms(ctx))
        count = (count + 1) / 2;
    const size_t bytes = (size_t)(count * row);
    TL_TRY(tl_allow_shared(ctx, odd_kernel<INVERSE>, bytes));
    return tl_launch_dynamic(ctx, "odd transform", odd_kernel<INVERSE>, tl_grid(t.batch, count), threads, bytes, d, t,
                             count);
}

} /* namespace */

int tl_odd_radices(int64_t n, int *radix)
{
    static constexpr int LARGE[] = {31, 29, 23, 19, 17}, SMALL[] = {15, 13, 11, 9, 7, 5, 3};
    if (n % 2 == 0 || n > ODD_MOST) return 0;
    int count = 0;
    for (int r : LARGE)
        if (count == 0 && n % r == 0) radix[count++] = r, n /= r;
    /* A 15 where it saves a pass: it takes the 3 that is left over from the nines. */
    int threes = 0;
    for (int64_t m = n; m % 3 == 0; m /= 3)
        threes++;
    bool fifteen = threes % 2 == 1 && n % 5 == 0;
    for (int r : SMALL) {
        for (; n % r == 0 && (r != 15 || fifteen); n /= r) {
            radix[count++] = r;
            fifteen = fifteen && r != 15;
        }
    }
    return n == 1 && count > 1 ? count : 0;
}

int32_t tl_odd_real(tl_context *ctx, const tl_own_real_rows &t, bool inverse)
{
    if (t.batch == 0) return TORCHLEAN_OK;
    tl_own_plan plan;
    TL_TRY(tl_odd_find(ctx, t.n, inverse, &plan));
    return inverse ? launch<true>(ctx, plan.direct, t) : launch<false>(ctx, plan.direct, t);
}
