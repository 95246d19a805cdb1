/* Transforms and cyclic convolutions in shared memory, in place, of the mode `fast`: passes that leave the numbers of a transform where
 * they are, in another order, and passes that take them in this order, backwards: an inverse transform as a forward one of exchanged
 * parts, so that both have the same roots. Of a kernel's file alone.
 *
 * Radices are 16, as far as the length goes, and what is left is one pass or two, so that four passes do for up to 24576 numbers. The
 * transform's first pass takes numbers from where they come from, and the last one of the way back leaves them where they go. The last
 * pass of the one, whose sixteen numbers are neighbours, and the first one of the other are alike; a convolution's are one pass. */
#pragma once

#include <algorithm>
#include <type_traits>

#include "cuda/spectral/own.cuh"
#include "formula/butterfly.h"

namespace {

/* Where numbers lie. The sixteen of a butterfly that are neighbours lie 17 from those of the next one: 16 lanes meet 16 pairs of banks. In
 * the other passes they lie a multiple of 16 apart, and the lanes' side by side. */
struct Padded {
    static constexpr bool POWERS = false;
    static __host__ __device__ constexpr int at(int i) { return i + i / 16; }
};
/* Of powers of two, all of whose radices but the first pass's are 16: numbers 256 or 4096 apart lie in other banks, too. */
struct PaddedPowers {
    static constexpr bool POWERS = true;
    static __host__ __device__ constexpr int at(int i) { return i + i / 16 + i / 256 + i / 4096; }
};

__device__ __forceinline__ tl_complex take(const float2 *x, int at)
{
    const float2 v = x[at];
    return tl_complex_of(v.x, v.y);
}
__device__ __forceinline__ void put(float2 *x, int at, tl_complex v) { x[at] = make_float2(v.r, v.i); }

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

/* a[0..A·B-1] becomes its transform, A and B without a common factor: A of B numbers and B of A, which no root turns in between (Good,
 * "The interaction algorithm and practical Fourier analysis", J. R. Statist. Soc. B 20, 1958). Number B·i + A·j of the one is number
 * (i, j) of a rectangle, and number (i, j) of its transform that number of the other which leaves i modulo A and j modulo B. */
template <int A, int B> __device__ __forceinline__ void butterfly_of_two(tl_complex *a)
{
    constexpr auto inverse = [](int x, int modulus) {
        int y = 1;
        while (x * y % modulus != 1)
            y++;
        return y;
    };
    constexpr int R = A * B, ROW = B * inverse(B, A), COLUMN = A * inverse(A, B);
    tl_complex part[A][B];
    TL_UNROLL_FOR (int i = 0; i < A; i++) {
        TL_UNROLL_FOR (int j = 0; j < B; j++)
            part[i][j] = a[(B * i + A * j) % R];
        tl_butterfly(part[i], B);
    }
    TL_UNROLL_FOR (int j = 0; j < B; j++) {
        tl_complex column[A];
        TL_UNROLL_FOR (int i = 0; i < A; i++)
            column[i] = part[i][j];
        tl_butterfly(column, A);
        TL_UNROLL_FOR (int i = 0; i < A; i++)
            a[(ROW * i + COLUMN * j) % R] = column[i];
    }
}

template <int R> __device__ __forceinline__ void butterfly(tl_complex (&a)[R])
{
    if constexpr (R == 16)
        butterfly_16(a);
    else if constexpr (R == 6 || R == 10)
        butterfly_of_two<2, R / 2>(a);
    else if constexpr (R == 12 || R == 20)
        butterfly_of_two<4, R / 4>(a);
    else if constexpr (R == 15)
        butterfly_of_two<3, 5>(a);
    else
        tl_butterfly(a, R);
}

/* Turns the numbers of butterfly p, number j by the root to the power p·j; w: tables of `span` roots (tl_half_power). */
template <int R> __device__ __forceinline__ void turn(tl_complex (&a)[R], const float2 *w, int span, int p)
{
    if constexpr (R % 4 == 0) {
        tl_complex low[4];
        TL_UNROLL_FOR (int j = 1; j < 4; j++)
            low[j] = take(w, (j - 1) * span + p), a[j] = turned(a[j], low[j]);
        TL_UNROLL_FOR (int b = 1; b < R / 4; b++) {
            const tl_complex high = take(w, (b + 2) * span + p);
            a[4 * b] = turned(a[4 * b], high);
            TL_UNROLL_FOR (int j = 1; j < 4; j++)
                a[4 * b + j] = turned(a[4 * b + j], turned(low[j], high));
        }
    } else {
        TL_UNROLL_FOR (int j = 1; j < R; j++)
            a[j] = turned(a[j], take(w, (j - 1) * span + p));
    }
}

/* call(radix) of the radix, a constant there; INNER: of a pass between the first and the last one, which alone may be of radix 20. */
template <class Pad, bool INNER, class Call> __device__ __forceinline__ void with_radix(int radix, const Call &call)
{
    if constexpr (!Pad::POWERS) {
        switch (radix) {
        case 3: return call(std::integral_constant<int, 3>());
        case 5: return call(std::integral_constant<int, 5>());
        case 6: return call(std::integral_constant<int, 6>());
        case 10: return call(std::integral_constant<int, 10>());
        case 12: return call(std::integral_constant<int, 12>());
        case 15: return call(std::integral_constant<int, 15>());
        default: break;
        }
        if constexpr (INNER)
            if (radix == 20) return call(std::integral_constant<int, 20>());
    }
    switch (radix) {
    case 2: return call(std::integral_constant<int, 2>());
    case 4: return call(std::integral_constant<int, 4>());
    case 8: return call(std::integral_constant<int, 8>());
    default: return call(std::integral_constant<int, 16>());
    }
}

/* A pass between the first and the last one, of the transform or of the way back; w: its roots. */
template <class Pad, int R, bool BACK>
__device__ __forceinline__ void inner_pass(const tl_own_direct &d, int stage, const float2 *w, int rows, float2 *x)
{
    const tl_fastdiv &span = d.span[stage];
    const int apart = Pad::at((int)span.divisor);
    for (uint32_t e = threadIdx.x; e < rows * d.each[stage].divisor; e += blockDim.x) {
        uint32_t p;
        const uint32_t of = span.divmod(e, &p);
        float2 *const from = x + Pad::at((int)(of * span.divisor * R + p));
        tl_complex a[R];
        TL_UNROLL_FOR (int j = 0; j < R; j++)
            a[j] = take(from, apart * j);
        if (BACK) turn(a, w, (int)span.divisor, (int)p);
        butterfly(a);
        if (!BACK) turn(a, w, (int)span.divisor, (int)p);
        TL_UNROLL_FOR (int j = 0; j < R; j++)
            put(from, apart * j, a[j]);
    }
}

/* The rows that a block has which owns `count` from `first` on; none of them is bad yet. All threads must call. */
__device__ __forceinline__ int begin_rows(int64_t batch, int64_t first, int count, int *bad)
{
    const int rows = (int)(batch - first < count ? batch - first : count);
    for (int c = threadIdx.x; c < rows; c += (int)blockDim.x)
        bad[c] = 0;
    __syncthreads();
    return rows;
}

__device__ __forceinline__ int roots_of(const tl_own_direct &d, int stage)
{
    return tl_half_roots(d.radix[stage]) * (int)d.span[stage].divisor;
}

/* In the functions below all threads of a block together transform `rows` rows of d.n numbers in x. What row_of(c) gives has
 * enter(i, span, a): a[j] becomes number i + span·j of row c; whether all are finite,
 * spoil(): one is not,
 * leave(i, span, a): number i + span·j of its result is a[j], the parts exchanged,
 * and, of a convolution, kernel(). */

/* All passes of the transform but the last one, and a barrier. */
template <class Pad, class RowOf>
__device__ __forceinline__ void transform(const tl_own_direct &d, const RowOf &row_of, int rows, float2 *x)
{
    const int top = d.stages - 1;
    const float2 *w = d.twiddle;
    for (int i = 1; i < top; i++)
        w += roots_of(d, i);
    const tl_fastdiv &each = d.each[top];
    const int span = (int)each.divisor, apart = Pad::at(span);
    with_radix<Pad, false>(d.radix[top], [&](auto radix) {
        /* Of a small radix several butterflies at a time, eight numbers: they come from device memory. */
        constexpr int R = decltype(radix)::value, AT_ONCE = R < 8 ? 8 / R : 1;
        const uint32_t total = rows * each.divisor;
        for (uint32_t first = threadIdx.x; first < total; first += AT_ONCE * blockDim.x) {
            tl_complex a[AT_ONCE][R];
            int row[AT_ONCE], at[AT_ONCE];
            bool finite[AT_ONCE];
            TL_UNROLL_FOR (int b = 0; b < AT_ONCE; b++) {
                uint32_t p;
                row[b] = (int)each.divmod(min(first + b * blockDim.x, total - 1), &p), at[b] = (int)p;
                finite[b] = row_of(row[b]).enter(at[b], span, a[b]);
            }
            TL_UNROLL_FOR (int b = 0; b < AT_ONCE; b++) {
                if (first + b * blockDim.x >= total) break;
                if (!finite[b]) row_of(row[b]).spoil();
                butterfly(a[b]);
                turn(a[b], w, span, at[b]);
                float2 *const to = x + Pad::at(row[b] * d.n + at[b]);
                TL_UNROLL_FOR (int j = 0; j < R; j++)
                    put(to, apart * j, a[b][j]);
            }
        }
    });
    __syncthreads();
    for (int i = top - 1; i > 0; i--) {
        w -= roots_of(d, i);
        with_radix<Pad, true>(d.radix[i],
                              [&](auto radix) { inner_pass<Pad, decltype(radix)::value, false>(d, i, w, rows, x); });
        __syncthreads();
    }
}

/* The last pass, or the first one of the way back, and a barrier. between(e, a): what happens to butterfly e. */
template <class Pad, class Between>
__device__ __forceinline__ void neighbours(const tl_own_direct &d, int rows, float2 *x, const Between &between)
{
    for (uint32_t e = threadIdx.x; e < rows * d.each[0].divisor; e += blockDim.x) {
        float2 *const from = x + Pad::at((int)(16 * e));
        tl_complex a[16];
        TL_UNROLL_FOR (int j = 0; j < 16; j++)
            a[j] = take(from, j);
        butterfly(a);
        between(e, a);
        TL_UNROLL_FOR (int j = 0; j < 16; j++)
            put(from, j, a[j]);
    }
    __syncthreads();
}

/* All passes of the way back but the first one. */
template <class Pad, class RowOf>
__device__ __forceinline__ void transform_back(const tl_own_direct &d, const RowOf &row_of, int rows, float2 *x)
{
    const int top = d.stages - 1;
    const float2 *w = d.twiddle;
    for (int i = 1; i < top; i++) {
        with_radix<Pad, true>(d.radix[i],
                              [&](auto radix) { inner_pass<Pad, decltype(radix)::value, true>(d, i, w, rows, x); });
        __syncthreads();
        w += roots_of(d, i);
    }
    const tl_fastdiv &each = d.each[top];
    const int span = (int)each.divisor, apart = Pad::at(span);
    with_radix<Pad, false>(d.radix[top], [&](auto radix) {
        constexpr int R = decltype(radix)::value;
        for (uint32_t e = threadIdx.x; e < rows * each.divisor; e += blockDim.x) {
            uint32_t p;
            const int row = (int)each.divmod(e, &p);
            const float2 *const from = x + Pad::at(row * d.n + (int)p);
            tl_complex a[R];
            TL_UNROLL_FOR (int j = 0; j < R; j++)
                a[j] = take(from, apart * j);
            turn(a, w, span, (int)p);
            butterfly(a);
            row_of(row).leave((int)p, span, a);
        }
    });
}

template <class RowOf>
__device__ __forceinline__ void convolve(const tl_own_direct &d, const RowOf &row_of, int rows, float2 *x)
{
    transform<Padded>(d, row_of, rows, x);
    const tl_fastdiv &each = d.each[0];
    neighbours<Padded>(d, rows, x, [&](uint32_t e, tl_complex(&a)[16]) {
        uint32_t i;
        const int row = (int)each.divmod(e, &i);
        const float2 *const kernel = row_of(row).kernel() + i;
        TL_UNROLL_FOR (int j = 0; j < 16; j++) {
            const tl_complex v = turned(a[j], take(kernel, (int)each.divisor * j));
            a[j] = tl_complex_of(v.i, v.r);
        }
        butterfly(a);
    });
    transform_back<Padded>(d, row_of, rows, x);
}

/* ---- host side --------------------------------------------------------------------------------------------------- */

/* Numbers of a block of several rows: of as many butterflies of radix 16 as a block of 256 threads has at a time. */
constexpr int BLOCK_NUMBERS = 4096, LEAST_LENGTH = 32, MOST_ROWS = BLOCK_NUMBERS / LEAST_LENGTH;
/* Threads of a block: butterflies of radix 16 in 64 registers let an SM have 1024, of one block or of two. */
constexpr int MOST_THREADS = 1024;
/* Shared memory of a block of which an SM has two. */
constexpr size_t TWO_BLOCKS_BYTES = 112 << 10;
/* The longest convolution in one piece: its numbers take 204 KiB, or 68 KiB where a block has less. */
constexpr int WHOLE_MOST = 24576, ANY_MOST = 8192;

/* The longest convolution that this device has shared memory for. */
inline int32_t find_longest_whole(tl_context *ctx, int64_t *longest)
{
    int device, most;
    TL_CUDA_TRY(ctx, cudaGetDevice(&device));
    TL_CUDA_TRY(ctx, cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
    *longest = most >= Padded::at(WHOLE_MOST) * (int)sizeof(float2) + MOST_ROWS * (int)sizeof(int) ? WHOLE_MOST
                                                                                                   : ANY_MOST;
    return TORCHLEAN_OK;
}

/* Launches kernel(arguments..., rows of a block) for `rows` rows of n numbers. */
template <class Pad, class Kernel, class... Arguments>
int32_t launch_rows(tl_context *ctx, const char *name, Kernel kernel, int64_t n, int64_t rows,
                    const Arguments &...arguments)
{
    int64_t count = std::max<int64_t>(1, BLOCK_NUMBERS / n);
    while (count > 1 && tl_ceil_div(rows, count) < 2 * tl_cuda_sms(ctx))
        count = (count + 1) / 2;
    const size_t bytes = (size_t)Pad::at((int)(count * n)) * sizeof(float2);
    const int64_t butterflies = count * n / 16, most = bytes > TWO_BLOCKS_BYTES ? MOST_THREADS : MOST_THREADS / 2;
    const int64_t steps = tl_ceil_div(butterflies, most),
                  threads = tl_ceil_div(tl_ceil_div(butterflies, steps), 32) * 32;
    TL_TRY(tl_allow_shared(ctx, kernel, bytes));
    return tl_launch_dynamic(ctx, name, kernel, tl_grid(rows, count), (unsigned)threads, bytes, arguments...,
                             (int)count);
}

} /* namespace */
