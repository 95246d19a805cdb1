/* Real transforms of powers of two on CUDA in the mode `fast`, of rows that fit shared memory, where cuFFT would take a pass over device
 * memory of its own: its inverse transform overwrites its input, and what is scaled is scaled after the forward one. Here one kernel
 * reads a row once and writes its result once.
 *
 * A row of n numbers is n/2 complex ones. Passes in place transform them: they leave the numbers in another order, in which the split
 * of the bins reads them; the way back joins the bins in this order, and its passes run backwards: an inverse transform as a forward
 * one of exchanged parts, so that both have the same roots. Radices are 16 but for the first pass of the transform, which takes
 * numbers from device memory, and the last one of the way back, which leaves them there. The last pass of the one, whose sixteen
 * numbers are neighbours, and the first one of the other are alike.
 *
 * A row one of whose numbers is not finite becomes NaN. */
#include <algorithm>
#include <type_traits>

#include "cuda/spectral/spectral.cuh"

namespace {

/* Numbers of a block of several rows: of as many butterflies of radix 16 as a block of 256 threads has at a time. */
constexpr int BLOCK_NUMBERS = 4096, MAX_ROWS = 2 * BLOCK_NUMBERS / TL_PACKED_MIN;
/* Threads of a block: butterflies of radix 16 in 64 registers let an SM have 1024, of one block or of two. */
constexpr int MAX_THREADS = 1024;
/* Shared memory of a block of which an SM has two. */
constexpr int64_t TWO_BLOCKS_BYTES = 112 << 10;

using Real = tl_own_real_rows;

/* ---- passes ------------------------------------------------------------------------------------------------------ */

/* Where number i lies: sixteen that are neighbours, and those 256 or 4096 apart, lie in other banks. Neighbouring lanes have
 * neighbouring bins, and find them in different banks, too. */
__host__ __device__ constexpr int place(int i) { return i + i / 16 + i / 256 + i / 4096; }

__device__ __forceinline__ tl_complex turned(tl_complex a, tl_complex w)
{
    return tl_complex_of(fmaf(a.r, w.r, -(a.i * w.i)), fmaf(a.r, w.i, a.i * w.r));
}

/* a[0..15] becomes its transform: four of four numbers, turned, and four of four again. */
__device__ __forceinline__ void butterfly_16(tl_complex *a)
{
    constexpr float HALF_ROOT = 0.70710678118654752440f, COS = 0.92387953251128675613f, SIN = 0.38268343236508977173f;
    tl_complex part[4][4];
    TL_UNROLL_FOR (int b = 0; b < 4; b++) {
        TL_UNROLL_FOR (int j = 0; j < 4; j++)
            part[b][j] = a[4 * j + b];
        tl_butterfly_4(part[b]);
    }
    auto eighth = [](tl_complex v) { return tl_complex_of((v.r + v.i) * HALF_ROOT, (v.i - v.r) * HALF_ROOT); };
    part[1][1] = turned(part[1][1], tl_complex_of(COS, -SIN));
    part[1][2] = eighth(part[1][2]);
    part[1][3] = turned(part[1][3], tl_complex_of(SIN, -COS));
    part[2][1] = eighth(part[2][1]);
    part[2][2] = tl_minus_i(part[2][2]);
    part[2][3] = tl_minus_i(eighth(part[2][3]));
    part[3][1] = turned(part[3][1], tl_complex_of(SIN, -COS));
    part[3][2] = tl_minus_i(eighth(part[3][2]));
    part[3][3] = turned(part[3][3], tl_complex_of(-COS, SIN));
    TL_UNROLL_FOR (int k = 0; k < 4; k++) {
        tl_complex of[4] = {part[0][k], part[1][k], part[2][k], part[3][k]};
        tl_butterfly_4(of);
        TL_UNROLL_FOR (int j = 0; j < 4; j++)
            a[k + 4 * j] = of[j];
    }
}

template <int R> __device__ __forceinline__ void butterfly(tl_complex (&a)[R])
{
    if constexpr (R == 16)
        butterfly_16(a);
    else
        tl_butterfly(a, R);
}

/* Turns the numbers of butterfly p, number j by the root to the power p·j; w: tables of `span` roots (tl_packed_power). */
template <int R> __device__ __forceinline__ void turn(tl_complex (&a)[R], const float2 *w, int span, int p)
{
    if constexpr (R % 4 == 0) {
        tl_complex low[4];
        TL_UNROLL_FOR (int j = 1; j < 4; j++)
            low[j] = tl_take(w, (j - 1) * span + p), a[j] = turned(a[j], low[j]);
        TL_UNROLL_FOR (int b = 1; b < R / 4; b++) {
            const tl_complex high = tl_take(w, (b + 2) * span + p);
            a[4 * b] = turned(a[4 * b], high);
            TL_UNROLL_FOR (int j = 1; j < 4; j++)
                a[4 * b + j] = turned(a[4 * b + j], turned(low[j], high));
        }
    } else {
        TL_UNROLL_FOR (int j = 1; j < R; j++)
            a[j] = turned(a[j], tl_take(w, (j - 1) * span + p));
    }
}

/* call(radix) of the first pass, a constant there. */
template <class Call> __device__ __forceinline__ void with_radix(int radix, const Call &call)
{
    switch (radix) {
    case 2: return call(std::integral_constant<int, 2>());
    case 4: return call(std::integral_constant<int, 4>());
    case 8: return call(std::integral_constant<int, 8>());
    default: return call(std::integral_constant<int, 16>());
    }
}

/* A pass between the first and the last one, of the transform or of the way back, and a barrier; w: its roots. */
template <bool BACK>
__device__ __forceinline__ void inner_pass(const tl_own_direct &d, int stage, const float2 *w, int rows, float2 *x)
{
    const tl_fastdiv &span = d.span[stage];
    const int apart = place((int)span.divisor);
    for (uint32_t e = threadIdx.x; e < rows * d.each[stage].divisor; e += blockDim.x) {
        uint32_t p;
        const uint32_t of = span.divmod(e, &p);
        float2 *const from = x + place((int)(of * span.divisor * 16 + p));
        tl_complex a[16];
        TL_UNROLL_FOR (int j = 0; j < 16; j++)
            a[j] = tl_take(from, apart * j);
        if (BACK) turn(a, w, (int)span.divisor, (int)p);
        butterfly(a);
        if (!BACK) turn(a, w, (int)span.divisor, (int)p);
        TL_UNROLL_FOR (int j = 0; j < 16; j++)
            tl_put(from, apart * j, a[j]);
    }
    __syncthreads();
}

/* The last pass, or the first one of the way back, and a barrier. */
__device__ __forceinline__ void pass_neighbours(const tl_own_direct &d, int rows, float2 *x)
{
    for (uint32_t e = threadIdx.x; e < rows * d.each[0].divisor; e += blockDim.x) {
        float2 *const from = x + place((int)(16 * e));
        tl_complex a[16];
        TL_UNROLL_FOR (int j = 0; j < 16; j++)
            a[j] = tl_take(from, j);
        butterfly(a);
        TL_UNROLL_FOR (int j = 0; j < 16; j++)
            tl_put(from, j, a[j]);
    }
    __syncthreads();
}

/* The roots of a pass but the last one's: those of shorter spans come before. */
__device__ __forceinline__ const float2 *roots_of(const tl_own_direct &d, int stage)
{
    const float2 *w = d.twiddle;
    for (int i = 1; i < stage; i++)
        w += tl_packed_roots(d.radix[i]) * (int)d.span[i].divisor;
    return w;
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

/* A block's rows; bad: whether one becomes NaN. */
struct Block {
    const tl_own_plan &plan;
    const Real &t;
    int64_t first;
    float2 *memory;
    int *bad;

    /* Number k of a row's transform. */
    __device__ __forceinline__ float2 *number(int row, int k) const
    {
        return memory + place(row * plan.direct.n + plan.places[k]);
    }
    __device__ __forceinline__ float2 root(int k) const { return reinterpret_cast<const float2 *>(plan.real)[k]; }
    /* Two real numbers as a complex one. */
    __device__ __forceinline__ const float2 *pairs(int row) const
    {
        return reinterpret_cast<const float2 *>(t.from + (first + row) * t.n);
    }
    __device__ __forceinline__ const float2 *spectrum(int row) const
    {
        return reinterpret_cast<const float2 *>(t.from) + (first + row) * t.bins;
    }

    /* All passes of the transform but the last one, and a barrier. */
    __device__ __forceinline__ void transform(int rows) const
    {
        const tl_own_direct &d = plan.direct;
        const int top = d.stages - 1;
        const float2 *const w = roots_of(d, top);
        const tl_fastdiv &each = d.each[top];
        const int span = (int)each.divisor, apart = place(span);
        with_radix(d.radix[top], [&](auto radix) {
            /* Of a small radix several butterflies at a time, eight numbers: they come from device memory. */
            constexpr int R = decltype(radix)::value, PER_STEP = R < 8 ? 8 / R : 1;
            const uint32_t total = rows * each.divisor;
            for (uint32_t e = threadIdx.x; e < total; e += PER_STEP * blockDim.x) {
                tl_complex a[PER_STEP][R];
                int row[PER_STEP], at[PER_STEP];
                TL_UNROLL_FOR (int b = 0; b < PER_STEP; b++) {
                    uint32_t p;
                    row[b] = (int)each.divmod(min(e + b * blockDim.x, total - 1), &p), at[b] = (int)p;
                    bool finite = true;
                    TL_UNROLL_FOR (int j = 0; j < R; j++) {
                        a[b][j] = tl_take(pairs(row[b]), at[b] + span * j);
                        finite &= !tl_not_finite(a[b][j].r) && !tl_not_finite(a[b][j].i);
                    }
                    if (!finite) bad[row[b]] = 1;
                }
                TL_UNROLL_FOR (int b = 0; b < PER_STEP; b++) {
                    if (e + b * blockDim.x >= total) break;
                    butterfly(a[b]);
                    turn(a[b], w, span, at[b]);
                    float2 *const to = memory + place(row[b] * d.n + at[b]);
                    TL_UNROLL_FOR (int j = 0; j < R; j++)
                        tl_put(to, apart * j, a[b][j]);
                }
            }
        });
        __syncthreads();
        for (int i = top - 1; i > 0; i--)
            inner_pass<false>(d, i, roots_of(d, i), rows, memory);
    }

    /* All passes of the way back but the first one. */
    __device__ __forceinline__ void transform_back(int rows) const
    {
        const tl_own_direct &d = plan.direct;
        const int top = d.stages - 1;
        const float2 *const w = roots_of(d, top);
        for (int i = 1; i < top; i++)
            inner_pass<true>(d, i, roots_of(d, i), rows, memory);
        const tl_fastdiv &each = d.each[top];
        const int span = (int)each.divisor, apart = place(span);
        with_radix(d.radix[top], [&](auto radix) {
            constexpr int R = decltype(radix)::value;
            for (uint32_t e = threadIdx.x; e < rows * each.divisor; e += blockDim.x) {
                uint32_t p;
                const int row = (int)each.divmod(e, &p);
                const float2 *const from = memory + place(row * d.n + (int)p);
                float2 *const to = reinterpret_cast<float2 *>(t.to + (first + row) * t.n) + p;
                tl_complex a[R];
                TL_UNROLL_FOR (int j = 0; j < R; j++)
                    a[j] = tl_take(from, apart * j);
                turn(a, w, span, (int)p);
                butterfly(a);
                const bool poisoned = bad[row] != 0;
                TL_UNROLL_FOR (int j = 0; j < R; j++)
                    to[span * j] = poisoned ? make_float2(TL_NAN, TL_NAN) : make_float2(a[j].i, a[j].r);
            }
        });
    }

    /* A bin as it is joined; `end`: one whose imaginary part is idle. */
    __device__ __forceinline__ tl_complex weighted(float2 v, bool end, int row) const
    {
        const float factor = end ? t.edge : t.inner, i = end ? 0.0f : v.y;
        if (tl_not_finite(v.x) || tl_not_finite(i)) bad[row] = 1;
        return tl_complex_of(v.x * factor, i * factor);
    }
    /* Bins k and n/2 - k become these numbers of the transform, the parts exchanged. */
    __device__ __forceinline__ void join(int row, int k, float2 bin, float2 other) const
    {
        const int h = plan.direct.n;
        const tl_complex a = weighted(bin, k == 0, row), b = weighted(other, k == 0, row);
        const float2 w = root(k);
        tl_complex z, y;
        TL_JOIN(a, b, w.x, w.y, z.r, z.i, y.r, y.i);
        *number(row, k) = make_float2(z.i, z.r);
        if (k > 0) *number(row, h - k) = make_float2(y.i, y.r);
    }
    /* Joins all bins: a thread reads those of PER_STEP pairs before it uses them, as they come from device memory. */
    __device__ __forceinline__ void join_all(int rows) const
    {
        constexpr int PER_STEP = 4;
        const int h = plan.direct.n, total = rows * (h / 2);
        for (int e = (int)threadIdx.x; e < total; e += PER_STEP * (int)blockDim.x) {
            float2 bins[PER_STEP], others[PER_STEP];
            int of[PER_STEP], at[PER_STEP];
            TL_UNROLL_FOR (int i = 0; i < PER_STEP; i++) {
                uint32_t k;
                of[i] = (int)plan.pairs.divmod((uint32_t)min(e + i * (int)blockDim.x, total - 1), &k);
                at[i] = (int)k;
                bins[i] = spectrum(of[i])[k];
                others[i] = spectrum(of[i])[h - (int)k];
            }
            TL_UNROLL_FOR (int i = 0; i < PER_STEP; i++)
                if (e + i * (int)blockDim.x < total) join(of[i], at[i], bins[i], others[i]);
        }
        for (int c = (int)threadIdx.x; c < rows; c += (int)blockDim.x)
            join(c, h / 2, spectrum(c)[h / 2], spectrum(c)[h / 2]);
    }
    /* The way back. */
    __device__ __forceinline__ void split(int row, int k) const
    {
        float2 *const to = reinterpret_cast<float2 *>(t.to) + (first + row) * t.bins;
        const int h = plan.direct.n, other = k > 0 ? h - k : 0;
        const tl_complex a = tl_take(number(row, k), 0), b = tl_take(number(row, other), 0);
        const float2 w = root(k);
        const float half = 0.5f * (k > 0 ? t.inner : t.edge);
        tl_complex x, y;
        TL_SPLIT(a, b, w.x, w.y, half, x.r, x.i, y.r, y.i);
        if (k == 0) x.i = y.i = 0.0f;
        if (bad[row]) x = y = tl_complex_of(TL_NAN, TL_NAN);
        tl_put(to, k, x);
        tl_put(to, h - k, y);
    }
    __device__ __forceinline__ void split_all(int rows) const
    {
        const int h = plan.direct.n;
#pragma unroll 4
        for (int e = (int)threadIdx.x; e < rows * (h / 2); e += (int)blockDim.x) {
            uint32_t k;
            const int row = (int)plan.pairs.divmod((uint32_t)e, &k);
            split(row, (int)k);
        }
        for (int c = (int)threadIdx.x; c < rows; c += (int)blockDim.x)
            split(c, h / 2);
    }
};

/* A block owns `count` rows. */
template <bool INVERSE>
__global__ void __launch_bounds__(MAX_THREADS)
    packed_kernel(const __grid_constant__ tl_own_plan plan, const __grid_constant__ Real t, int count)
{
    TL_DYNAMIC_SHARED(float2, memory);
    __shared__ int bad[MAX_ROWS];
    const int64_t first = (int64_t)blockIdx.x * count;
    const int rows = (int)(t.batch - first < count ? t.batch - first : count);
    for (int c = threadIdx.x; c < rows; c += (int)blockDim.x)
        bad[c] = 0;
    __syncthreads();
    const Block block = {plan, t, first, memory, bad};
    if constexpr (INVERSE) {
        block.join_all(rows);
        __syncthreads();
    } else {
        block.transform(rows);
    }
    pass_neighbours(plan.direct, rows, memory);
    if constexpr (INVERSE)
        block.transform_back(rows);
    else
        block.split_all(rows);
}

template <bool INVERSE> int32_t launch(tl_context *ctx, const tl_own_plan &plan, const Real &t)
{
    int64_t count = std::max<int64_t>(1, BLOCK_NUMBERS / plan.n);
    while (count > 1 && tl_ceil_div(t.batch, count) < 2 * tl_cuda_sms(ctx))
        count = (count + 1) / 2;
    const int64_t bytes = tl_packed_bytes(count * plan.n), butterflies = count * plan.n / 16;
    const int64_t steps = tl_ceil_div(butterflies, bytes > TWO_BLOCKS_BYTES ? MAX_THREADS : MAX_THREADS / 2);
    const int64_t threads = tl_ceil_div(tl_ceil_div(butterflies, steps), 32) * 32;
    TL_TRY(tl_allow_shared(ctx, packed_kernel<INVERSE>, (size_t)bytes));
    return tl_launch_dynamic(ctx, "packed", packed_kernel<INVERSE>, tl_grid(t.batch, count), (unsigned)threads,
                             (size_t)bytes, plan, t, (int)count);
}

} /* namespace */

int32_t tl_packed_real(tl_context *ctx, const tl_own_real_rows &t, bool inverse)
{
    tl_own_plan plan;
    TL_TRY(tl_own_find(ctx, t.n / 2, true, &plan));
    return inverse ? launch<true>(ctx, plan, t) : launch<false>(ctx, plan, t);
}
