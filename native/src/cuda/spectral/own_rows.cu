/* Real transforms whose rows fit shared memory, in one kernel: a row is read, joined or packed, transformed by passes from one buffer
 * to the other, split, and written. Direct ones (up to TL_FFT_DIRECT, and Bluestein's over one) have several rows to a block,
 * four steps one.
 *
 * A row whose result is not finite though all of it is finite is transformed again, scaled by 2^-64, as on the CPU. */
#include <algorithm>

#include "cuda/spectral/own_passes.cuh"

namespace {

constexpr int THREADS = 256, MATRIX_THREADS = 512;
/* Shared memory of a block of several rows. */
constexpr size_t ROWS_BYTES = 48 << 10;
/* The longest transform that may fit. */
constexpr int64_t MATRIX_MOST = MOST_BYTES / (2 * sizeof(float2));

constexpr int MOST_ROWS = 256;

/* Where the numbers of a row lie: one after the other, or, of four steps, column by column before the transform and afterwards
 * number k1 + n1·k2 in row k1 of the matrix. */
template <bool MATRIX> struct Places {
    tl_fastdiv by_n1, by_n2;
    int size; /* numbers of a row's buffer */

    explicit Places(const tl_own_plan &plan) : by_n1(), by_n2(), size(pitch((int)plan.m))
    {
        if (!MATRIX) return;
        const int n1 = plan.direct.n, n2 = plan.rows.n;
        by_n1 = tl_fastdiv((uint64_t)n1), by_n2 = tl_fastdiv((uint64_t)n2);
        size = std::max(n2 * pitch(n1), n1 * pitch(n2));
    }
    __device__ __forceinline__ int before(int i) const
    {
        if (!MATRIX) return pad(i);
        uint32_t column;
        const int at = (int)by_n2.divmod((uint32_t)i, &column);
        return (int)column * pitch((int)by_n1.divisor) + pad(at);
    }
    __device__ __forceinline__ int after(int k) const
    {
        if (!MATRIX) return pad(k);
        uint32_t k1;
        const int k2 = (int)by_n1.divmod((uint32_t)k, &k1);
        return (int)k1 * pitch((int)by_n2.divisor) + pad(k2);
    }
};

/* Transforms `rows` rows in x, after a barrier; returns where they lie, x or y, after one. */
template <bool MATRIX>
__device__ float2 *transform(const tl_own_plan &plan, const Places<MATRIX> &places, float2 *x, float2 *y, int rows)
{
    if (!MATRIX) return direct(plan.direct, x, y, rows, places.size);
    const int n1 = plan.direct.n, n2 = plan.rows.n;
    float2 *const columns = direct(plan.direct, x, y, n2, pitch(n1)), *const free = columns == x ? y : x;
    for (int e = threadIdx.x; e < n1 * n2; e += blockDim.x) {
        uint32_t column;
        const int k = (int)places.by_n2.divmod((uint32_t)e, &column);
        put(free, k * pitch(n2) + pad((int)column),
            turned(plan, take(columns, (int)column * pitch(n1) + pad(k)), k, column));
    }
    __syncthreads();
    return direct(plan.rows, free, columns, n1, pitch(n2));
}

/* The root that splits bin k of a packed transform, or joins it. */
template <bool MATRIX> __device__ __forceinline__ float2 packed_root(const tl_own_plan &plan, int k)
{
    if (!MATRIX) return make_float2(plan.real[2 * k], plan.real[2 * k + 1]);
    double c, s;
    tl_root_at(&plan.packed, (uint64_t)k, &c, &s);
    return make_float2((float)c, (float)s);
}

/* Bin k as a row enters its transform; of long rows the factor comes before the scale. */
template <bool MATRIX>
__device__ __forceinline__ tl_complex entering(const Real &t, const float *S, int64_t k, float down)
{
    if (!MATRIX) return bin(t, S, k, down);
    const tl_complex v = bin(t, S, k, 1.0f);
    return tl_complex_of(v.r * down, v.i * down);
}

/* A block owns `count` rows. */
template <bool INVERSE, bool ODD, bool MATRIX>
__global__ void __launch_bounds__(MATRIX ? MATRIX_THREADS : THREADS)
    rows_kernel(const __grid_constant__ tl_own_plan plan, const __grid_constant__ Real t,
                const __grid_constant__ Places<MATRIX> places, int count)
{
    TL_DYNAMIC_SHARED(float2, memory);
    __shared__ float down[MOST_ROWS], up[MOST_ROWS];
    __shared__ int again[MOST_ROWS];
    const int n = (int)plan.n, m = (int)plan.m, apart = places.size, bins = (int)t.bins, threads = (int)blockDim.x;
    const int64_t first = (int64_t)blockIdx.x * count;
    const int rows = (int)(t.batch - first < count ? t.batch - first : count);
    const int64_t in = INVERSE ? 2 * t.bins : t.n, out = INVERSE ? t.n : 2 * t.bins;
    float2 *const x = memory, *const y = memory + count * apart;
    for (int c = threadIdx.x; c < rows; c += threads)
        down[c] = up[c] = 1.0f, again[c] = 1;
    __syncthreads();
    for (int attempt = 0; attempt < 2; attempt++) {
        /* what enters the complex transform: Bluestein's chirp turns it */
        auto enter = [&](float2 *row, int j, tl_complex z) {
            if (plan.bluestein) z = tl_times(z, plan.chirp[2 * j], plan.chirp[2 * j + 1]);
            put(row, places.before(j), z);
        };
        for (int c = 0; c < rows; c++) {
            const float *const from = t.from + (first + c) * in;
            float2 *const row = x + c * apart;
            const float d = down[c];
            if (!INVERSE) {
                for (int j = threadIdx.x; j < n; j += threads)
                    enter(row, j,
                          ODD ? tl_complex_of(from[j] * d, 0.0f) : tl_complex_of(from[2 * j] * d, from[2 * j + 1] * d));
            } else if (ODD) {
                for (int k = threadIdx.x; k < bins; k += threads) {
                    const tl_complex b = entering<MATRIX>(t, from, k, d);
                    enter(row, k, tl_complex_of(b.i, b.r));
                    if (k > 0) enter(row, n - k, tl_complex_of(-b.i, b.r));
                }
            } else {
                for (int k = threadIdx.x; k <= n / 2; k += threads) {
                    const tl_complex a = entering<MATRIX>(t, from, k, d), b = entering<MATRIX>(t, from, n - k, d);
                    const float2 root = packed_root<MATRIX>(plan, k);
                    tl_complex z, w;
                    TL_JOIN(a, b, root.x, root.y, z.r, z.i, w.r, w.i);
                    if (k > 0 && n - k != k) enter(row, n - k, tl_complex_of(w.i, w.r));
                    enter(row, k, tl_complex_of(z.i, z.r));
                }
            }
            for (int j = n + threadIdx.x; j < m; j += threads)
                put(row, places.before(j), tl_complex_of(0.0f, 0.0f));
        }
        __syncthreads();
        float2 *z = transform(plan, places, x, y, rows);
        if (plan.bluestein) {
            for (int c = 0; c < rows; c++)
                for (int k = threadIdx.x; k < m; k += threads) {
                    const tl_complex v =
                        tl_times(take(z + c * apart, places.after(k)), plan.kernel[2 * k], plan.kernel[2 * k + 1]);
                    /* the next transform is the inverse; of four steps, other threads' numbers lie in the way */
                    put((MATRIX ? (z == x ? y : x) : z) + c * apart, places.before(k), tl_complex_of(v.i, v.r));
                }
            __syncthreads();
            if (MATRIX) z = z == x ? y : x;
            z = transform(plan, places, z, z == x ? y : x, rows);
            for (int c = 0; c < rows; c++)
                for (int k = threadIdx.x; k < n; k += threads) {
                    float2 *const number = z + c * apart + places.after(k);
                    const tl_complex v = take(number, 0);
                    put(number, 0, tl_times(tl_complex_of(v.i, v.r), plan.chirp[2 * k], plan.chirp[2 * k + 1]));
                }
            __syncthreads();
        }
        bool scaled = false;
        for (int c = 0; c < rows; c++) {
            if (!again[c]) continue; /* all threads alike */
            const float2 *const row = z + c * apart;
            float *const to = t.to + (first + c) * out;
            const float u = up[c];
            bool wrong = false;
            if (INVERSE) {
                for (int j = threadIdx.x; j < n; j += threads) {
                    const tl_complex v = take(row, places.after(j));
                    const float one = v.i * u, two = v.r * u;
                    wrong |= bad(one) || (!ODD && bad(two));
                    if (ODD) {
                        to[j] = one;
                    } else {
                        to[2 * j] = one;
                        to[2 * j + 1] = two;
                    }
                }
            } else {
                const tl_complex zero = take(row, 0);
                const float x0 = (ODD ? zero.r : zero.r + zero.i) * t.edge;
                const bool poisoned = x0 - x0 != 0.0f;
                auto write = [&](int k, float r, float i) {
                    r = poisoned ? TL_NAN : r * u;
                    i = poisoned ? TL_NAN : i * u;
                    wrong |= bad(r) || bad(i);
                    to[2 * k] = r;
                    to[2 * k + 1] = i;
                };
                if (ODD) {
                    for (int k = threadIdx.x; k < bins; k += threads) {
                        const tl_complex v = take(row, places.after(k));
                        write(k, k ? v.r * t.inner : x0, k ? v.i * t.inner : 0.0f);
                    }
                } else {
                    const float half = 0.5f * t.inner;
                    for (int k = threadIdx.x; k <= n / 2; k += threads) {
                        if (k == 0) {
                            write(0, x0, 0.0f);
                            write(n, (zero.r - zero.i) * t.edge, 0.0f);
                            continue;
                        }
                        const tl_complex a = take(row, places.after(k)), b = take(row, places.after(n - k));
                        const float2 root = packed_root<MATRIX>(plan, k);
                        float xr, xi, yr, yi;
                        TL_SPLIT(a, b, root.x, root.y, half, xr, xi, yr, yi);
                        if (n - k != k) write(k, xr, xi);
                        write(n - k, yr, yi);
                    }
                }
            }
            wrong = __syncthreads_or(wrong);
            if (wrong && attempt == 0) {
                const float *const from = t.from + (first + c) * in;
                bool infinite = false;
                for (int64_t j = threadIdx.x; j < in; j += threads)
                    infinite |= read_part(t, INVERSE, j) && bad(from[j]);
                wrong = !__syncthreads_or(infinite);
            }
            if (threadIdx.x == 0) {
                again[c] = wrong;
                down[c] = wrong ? DOWN : 1.0f;
                up[c] = wrong ? UP : 1.0f;
            }
            scaled |= wrong;
        }
        __syncthreads();
        if (!scaled) break;
    }
}

template <bool INVERSE, bool ODD, bool MATRIX>
int32_t in_shared(tl_context *ctx, const tl_own_plan &plan, const Real &t)
{
    const Places<MATRIX> places(plan);
    const size_t row = 2 * sizeof(float2) * places.size;
    int64_t count = (int64_t)(ROWS_BYTES / row);
    count = count < 1 || MATRIX ? 1 : count > MOST_ROWS ? MOST_ROWS : count;
    while (count > 1 && tl_ceil_div(t.batch, count) < 2 * tl_cuda_sms(ctx))
        count = (count + 1) / 2;
    const size_t bytes = (size_t)count * row;
    const auto kernel = rows_kernel<INVERSE, ODD, MATRIX>;
    TL_TRY(tl_allow_shared(ctx, kernel, bytes));
    return tl_launch_dynamic(ctx, "rows", kernel, tl_grid(t.batch, count), MATRIX ? MATRIX_THREADS : THREADS, bytes,
                             plan, t, places, (int)count);
}

template <bool MATRIX> int32_t in_shared(tl_context *ctx, const tl_own_plan &plan, const Real &t, bool inverse)
{
    if (inverse)
        return t.n % 2 ? in_shared<true, true, MATRIX>(ctx, plan, t) : in_shared<true, false, MATRIX>(ctx, plan, t);
    return t.n % 2 ? in_shared<false, true, MATRIX>(ctx, plan, t) : in_shared<false, false, MATRIX>(ctx, plan, t);
}

} /* namespace */

bool tl_own_rows(tl_context *ctx, const tl_own_plan &plan, const tl_own_real_rows &t, bool inverse, int32_t *status)
{
    if (plan.in_shared) {
        *status = in_shared<false>(ctx, plan, t, inverse);
        return true;
    }
    if (plan.m > MATRIX_MOST || 2 * sizeof(float2) * Places<true>(plan).size > MOST_BYTES) return false;
    *status = in_shared<true>(ctx, plan, t, inverse);
    return true;
}
