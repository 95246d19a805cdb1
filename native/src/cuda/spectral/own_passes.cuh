/* What own transforms share on CUDA: passes over shared memory, and real rows (spectral/own.cuh). Of a kernel's file alone.
 *
 * Numbers of a buffer lie pad(i) apart: 16 lanes that write 8 apart then meet 16 different pairs of banks. */
#pragma once

#include "cuda/spectral/own.cuh"
#include "cuda/spectral/plan.cuh"
#include "formula/butterfly.h"

namespace {

/* What scales a row that is transformed again, and its result. */
constexpr float DOWN = 0x1p-64f, UP = 0x1p64f;
/* Shared memory of any block. */
constexpr size_t MOST_BYTES = 224 << 10;

__host__ __device__ constexpr int pad(int i) { return i + i / 16; }
__host__ __device__ constexpr int pitch(int n) { return pad(n) + 1; }

__device__ __forceinline__ bool bad(float x) { return tl_not_finite(x); }

__device__ __forceinline__ tl_complex take(const float2 *x, int at)
{
    const float2 v = x[at];
    return tl_complex_of(v.x, v.y);
}
__device__ __forceinline__ void put(float2 *x, int at, tl_complex v) { x[at] = make_float2(v.r, v.i); }
__device__ __forceinline__ tl_complex load(const float2 *x, int i) { return take(x, pad(i)); }
__device__ __forceinline__ void save(float2 *x, int i, tl_complex v) { put(x, pad(i), v); }

/* ---- direct transforms ------------------------------------------------------------------------------------------- */

/* One self-sorting pass of `count` transforms of n numbers, `apart` apart, from x to y; w: `roots` roots for each number of a
 * butterfly but the first. */
template <int R>
__device__ __forceinline__ void pass(const float2 *x, float2 *y, int count, int apart, const tl_fastdiv &each,
                                     const tl_fastdiv &span, const float2 *w, int roots)
{
    for (uint32_t e = threadIdx.x; e < count * each.divisor; e += blockDim.x) {
        uint32_t i, q;
        const uint32_t c = each.divmod(e, &i), p = span.divmod(i, &q);
        const float2 *const from = x + c * apart;
        float2 *const to = y + c * apart;
        tl_complex a[R];
        TL_UNROLL_FOR (int j = 0; j < R; j++)
            a[j] = load(from, (int)(i + each.divisor * j));
        tl_butterfly(a, R);
        const uint32_t base = q + span.divisor * R * p;
        save(to, (int)base, a[0]);
        TL_UNROLL_FOR (int j = 1; j < R; j++) {
            const float2 root = w[(j - 1) * roots + (int)p];
            save(to, (int)(base + span.divisor * j), p == 0 ? a[j] : tl_times(a[j], root.x, root.y));
        }
    }
}

/* Transforms what lies in x, after a barrier; returns where the result lies, x or y, after one. */
static __device__ float2 *direct(const tl_own_direct &d, float2 *x, float2 *y, int count, int apart)
{
    const float2 *w = d.twiddle;
    for (int i = 0; i < d.stages; i++) {
        const tl_fastdiv each = d.each[i], span = d.span[i];
        const int roots = (int)(each.divisor / span.divisor);
        switch (d.radix[i]) {
        case 2: pass<2>(x, y, count, apart, each, span, w, roots); break;
        case 3: pass<3>(x, y, count, apart, each, span, w, roots); break;
        case 4: pass<4>(x, y, count, apart, each, span, w, roots); break;
        case 5: pass<5>(x, y, count, apart, each, span, w, roots); break;
        case 7: pass<7>(x, y, count, apart, each, span, w, roots); break;
        case 8: pass<8>(x, y, count, apart, each, span, w, roots); break;
        case 11: pass<11>(x, y, count, apart, each, span, w, roots); break;
        default: pass<13>(x, y, count, apart, each, span, w, roots);
        }
        w += roots * (d.radix[i] - 1);
        float2 *const t = x;
        x = y;
        y = t;
        __syncthreads();
    }
    return x;
}

/* Number k of a column after its transform, turned by the root of n to the power k·column. */
__device__ __forceinline__ tl_complex turned(const tl_own_plan &plan, tl_complex v, int64_t k, int64_t column)
{
    const int64_t within = column % TL_FFT_COLUMNS;
    double co, si;
    tl_root_at(&plan.roots, (uint64_t)(k * (column - within)), &co, &si);
    const double lc = plan.lane_roots[k * 2 * TL_FFT_COLUMNS + within];
    const double ls = plan.lane_roots[(k * 2 + 1) * TL_FFT_COLUMNS + within];
    const float wr = (float)(lc * co - ls * si), wi = (float)(lc * si + ls * co);
    return tl_complex_of(v.r * wr - v.i * wi, v.r * wi + v.i * wr);
}

/* ---- real rows --------------------------------------------------------------------------------------------------- */

using Real = tl_own_real_rows;

/* Bin k of the half spectrum times its factor; both parts NaN if one is not finite. `down` scales what is read. */
__device__ __forceinline__ tl_complex bin(const Real &t, const float *S, int64_t k, float down)
{
    const bool edge = k == 0 || 2 * k == t.n;
    const float r = S[2 * k] * down, i = edge ? 0.0f : S[2 * k + 1] * down, poison = (r - r) + (i - i);
    const float factor = edge ? t.edge : t.inner;
    return tl_complex_of(r * factor + poison, i * factor + poison);
}

/* Part `at` of a row that a transform reads, whether it is one that the result depends on. */
__device__ __forceinline__ bool read_part(const Real &t, bool inverse, int64_t at)
{
    return !inverse || at == 0 || (at >= 2 && (t.n % 2 || at != 2 * t.bins - 1));
}

} /* namespace */

/* Transforms of few numbers, into *status; false where they are more (spectral/few.cu). */
bool tl_own_few(tl_context *ctx, const tl_own_plan &plan, const tl_own_real_rows &t, bool inverse, int32_t *status);
/* Transforms whose rows fit shared memory, into *status; false where they do not (spectral/own_rows.cu). */
bool tl_own_rows(tl_context *ctx, const tl_own_plan &plan, const tl_own_real_rows &t, bool inverse, int32_t *status);
