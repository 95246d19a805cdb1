/* What own transforms share on CUDA: passes over shared memory, and real rows (spectral/spectral.cuh). Of a kernel's file alone.
 *
 * Numbers of a buffer lie pad(i) apart: 16 lanes that write 8 apart then meet 16 different pairs of banks. */
#pragma once

#include "cuda/spectral/spectral.cuh"

namespace {

/* What scales a row that is transformed again, and its result. */
constexpr float DOWN = 0x1p-64f, UP = 0x1p64f;
__host__ __device__ constexpr int pad(int i) { return i + i / 16; }
__host__ __device__ constexpr int pitch(int n) { return pad(n) + 1; }

__device__ __forceinline__ bool bad(float x) { return tl_not_finite(x); }

__device__ __forceinline__ tl_complex load(const float2 *x, int i) { return tl_take(x, pad(i)); }
__device__ __forceinline__ void save(float2 *x, int i, tl_complex v) { tl_put(x, pad(i), v); }

/* ---- direct transforms ------------------------------------------------------------------------------------------- */

/* Number i of transform c of a buffer, whose transforms are `apart` apart. */
struct Stored {
    const float2 *x;
    int apart;
    __device__ __forceinline__ tl_complex operator()(uint32_t c, int i) const { return load(x + c * apart, i); }
};

/* One self-sorting pass of `count` transforms of n numbers, take(transform, number), to y, where they are `apart` apart; w: `roots`
 * roots for each number of a butterfly but the first. */
template <int R, class Take>
__device__ __forceinline__ void pass(const Take &take, float2 *y, int count, int apart, const tl_fastdiv &each,
                                     const tl_fastdiv &span, const float2 *w, int roots)
{
    for (uint32_t e = threadIdx.x; e < count * each.divisor; e += blockDim.x) {
        uint32_t i, q;
        const uint32_t c = each.divmod(e, &i), p = span.divmod(i, &q);
        float2 *const to = y + c * apart;
        tl_complex a[R];
        TL_UNROLL_FOR (int j = 0; j < R; j++)
            a[j] = take(c, (int)(i + each.divisor * j));
        tl_butterfly(a, R);
        const uint32_t base = q + span.divisor * R * p;
        save(to, (int)base, a[0]);
        TL_UNROLL_FOR (int j = 1; j < R; j++) {
            const float2 root = w[(j - 1) * roots + (int)p];
            save(to, (int)(base + span.divisor * j), p == 0 ? a[j] : tl_times(a[j], root.x, root.y));
        }
    }
}

/* Transforms what first(transform, number) gives, of x or not, after a barrier; returns where the result lies, x or y, after one. */
template <class First>
static __device__ float2 *direct(const tl_own_direct &d, const First &first, float2 *x, float2 *y, int count, int apart)
{
    const float2 *w = d.twiddle;
    const auto run = [&](int i, const auto &take) {
        const tl_fastdiv each = d.each[i], span = d.span[i];
        const int roots = (int)(each.divisor / span.divisor);
        switch (d.radix[i]) {
        case 2: pass<2>(take, y, count, apart, each, span, w, roots); break;
        case 3: pass<3>(take, y, count, apart, each, span, w, roots); break;
        case 4: pass<4>(take, y, count, apart, each, span, w, roots); break;
        case 5: pass<5>(take, y, count, apart, each, span, w, roots); break;
        case 7: pass<7>(take, y, count, apart, each, span, w, roots); break;
        case 8: pass<8>(take, y, count, apart, each, span, w, roots); break;
        case 11: pass<11>(take, y, count, apart, each, span, w, roots); break;
        default: pass<13>(take, y, count, apart, each, span, w, roots);
        }
        w += roots * (d.radix[i] - 1);
        float2 *const t = x;
        x = y, y = t;
        __syncthreads();
    };
    if (d.stages > 0) run(0, first);
    for (int i = 1; i < d.stages; i++)
        run(i, Stored{x, apart});
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

/* Bin k of the half spectrum times its factor; both parts NaN if one is not finite. What is read is scaled by `before`, the
 * bin by `after`. */
__device__ __forceinline__ tl_complex bin(const Real &t, const float *S, int64_t k, float before, float after)
{
    const bool edge = k == 0 || 2 * k == t.n;
    const float r = S[2 * k] * before, i = edge ? 0.0f : S[2 * k + 1] * before, poison = (r - r) + (i - i);
    const float factor = edge ? t.edge : t.inner;
    return tl_complex_of((r * factor + poison) * after, (i * factor + poison) * after);
}

/* The root that splits bin k of a packed transform, or joins it. */
__device__ __forceinline__ float2 split_root(const tl_own_plan &plan, int64_t k)
{
    return reinterpret_cast<const float2 *>(plan.real)[k];
}

/* Numbers k and n - k of what the inverse transform of an even row takes, the parts exchanged, from their bins; whether these are
 * finite, as factors are at most 1. */
__device__ __forceinline__ bool join_bins(const tl_own_plan &plan, const Real &t, const float *S, int64_t k,
                                          float before, float after, tl_complex *number, tl_complex *other)
{
    const tl_complex a = bin(t, S, k, before, after), b = bin(t, S, plan.n - k, before, after);
    const float2 w = split_root(plan, k);
    tl_complex z, y;
    TL_JOIN(a, b, w.x, w.y, z.r, z.i, y.r, y.i);
    *number = tl_complex_of(z.i, z.r);
    *other = tl_complex_of(y.i, y.r);
    return !bad(a.r) && !bad(b.r);
}

/* Bin k of a transformed row, and of an even one bin n - k, scaled by `up`, to put_bin(bin, re, im); take_number(k) is number k of the
 * transform. A row whose bin 0 is not finite becomes NaN. */
template <class Int, class Take, class Put>
__device__ __forceinline__ void split_bins(const tl_own_plan &plan, const Real &t, bool odd, Int k, float up,
                                           const Take &take_number, const Put &put_bin)
{
    const tl_complex zero = take_number(0);
    const float x0 = (odd ? zero.r : zero.r + zero.i) * t.edge;
    const bool poisoned = x0 - x0 != 0.0f;
    auto put_scaled = [&](Int at, float r, float i) {
        put_bin(at, poisoned ? TL_NAN : r * up, poisoned ? TL_NAN : i * up);
    };
    if (k == 0) {
        put_scaled(0, x0, 0.0f);
        if (!odd) put_scaled((Int)plan.n, (zero.r - zero.i) * t.edge, 0.0f);
        return;
    }
    const tl_complex a = take_number(k);
    if (odd) {
        put_scaled(k, a.r * t.inner, a.i * t.inner);
        return;
    }
    const Int across = (Int)plan.n - k;
    const tl_complex b = take_number(across);
    const float2 w = split_root(plan, k);
    const float half = 0.5f * t.inner;
    float xr, xi, yr, yi;
    TL_SPLIT(a, b, w.x, w.y, half, xr, xi, yr, yi);
    if (across != k) put_scaled(k, xr, xi);
    put_scaled(across, yr, yi);
}

/* Part `at` of a row that a transform reads, whether it is one that the result depends on. */
__device__ __forceinline__ bool read_part(const Real &t, bool inverse, int64_t at)
{
    return !inverse || at == 0 || (at >= 2 && (t.n % 2 || at != 2 * t.bins - 1));
}

} /* namespace */

/* Transforms of plans that are in shared memory (spectral/own_rows.cu). */
int32_t tl_own_rows(tl_context *ctx, const tl_own_plan &plan, const tl_own_real_rows &t, bool inverse);
