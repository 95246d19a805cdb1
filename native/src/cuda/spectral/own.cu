/* Real transforms in the mode `reproducible` on CUDA: the arithmetic of cpu/spectral/fft.c and spectral.c, number by number. Rows
 * that fit shared memory are transformed there (spectral/own_rows.cu).
 *
 * Longer ones are four steps through device memory: a block transforms COLUMNS columns of the matrix, or as many of its rows, so
 * that both read and write runs of memory; Bluestein's convolution is two of these between products. A row whose result is not
 * finite though all of it is finite is transformed again, scaled by 2^-64, by kernels that all other rows leave at once. */
#include <algorithm>

#include "cuda/spectral/own_passes.cuh"

namespace {

constexpr int THREADS = 256, COLUMNS = 16;
/* Shared memory of a block of columns. */
constexpr size_t COLUMNS_BYTES = 96 << 10;
/* Scratch of long transforms at a time. */
constexpr int64_t CHUNK_BYTES = (int64_t)256 << 20;

/* ---- four steps through device memory ---------------------------------------------------------------------------- */

/* Complex numbers of rows `apart` floats apart; of a real array the imaginary parts are 0. */
struct Source {
    const float *at;
    int64_t apart;
    bool real, swap;
    float scale;
    __device__ __forceinline__ tl_complex get(int64_t row, int64_t i) const
    {
        const float *const x = at + row * apart;
        if (real) return tl_complex_of(x[i] * scale, 0.0f * scale);
        const float r = x[2 * i + swap] * scale, m = x[2 * i + 1 - swap] * scale;
        return tl_complex_of(r, m);
    }
};

struct Target {
    float *at;
    int64_t apart;
    bool swap;
    __device__ __forceinline__ void put(int64_t row, int64_t i, tl_complex v) const
    {
        float *const x = at + row * apart;
        x[2 * i + swap] = v.r;
        x[2 * i + 1 - swap] = v.i;
    }
};

/* A block owns `count` columns of a row's matrix: transforms them and turns each number by its root. `only`: rows that are 0 there
 * are left alone. */
__global__ void __launch_bounds__(THREADS)
    columns_kernel(const __grid_constant__ tl_own_plan plan, Source from, float2 *matrix, int count, int64_t groups,
                   const uint8_t *only)
{
    TL_DYNAMIC_SHARED(float2, memory);
    const int64_t row = blockIdx.x / groups, at = blockIdx.x % groups * count;
    if (only && !only[row]) return;
    const int n1 = plan.direct.n, n2 = plan.rows.n, apart = pitch(n1);
    const int lanes = (int)(n2 - at < count ? n2 - at : count);
    for (int e = threadIdx.x; e < n1 * count; e += THREADS) {
        const int i = e / count, c = e % count;
        if (c < lanes) save(memory + c * apart, i, from.get(row, (int64_t)i * n2 + at + c));
    }
    __syncthreads();
    const float2 *const z = direct(plan.direct, memory, memory + count * apart, lanes, apart);
    float2 *const to = matrix + row * ((int64_t)n1 * n2);
    for (int e = threadIdx.x; e < n1 * count; e += THREADS) {
        const int k = e / count, c = e % count;
        if (c >= lanes) continue;
        const tl_complex v = turned(plan, load(z + c * apart, k), k, at + c);
        to[(int64_t)k * n2 + at + c] = make_float2(v.r, v.i);
    }
}

/* A block owns `count` rows k1 of a row's matrix; number k2 of one is number k1 + n1·k2 of the result. */
__global__ void __launch_bounds__(THREADS)
    matrix_rows_kernel(const __grid_constant__ tl_own_plan plan, const float2 *matrix, Target to, int count,
                       int64_t groups, const uint8_t *only)
{
    TL_DYNAMIC_SHARED(float2, memory);
    const int64_t row = blockIdx.x / groups, at = blockIdx.x % groups * count;
    if (only && !only[row]) return;
    const int n1 = plan.direct.n, n2 = plan.rows.n, apart = pitch(n2);
    const int lanes = (int)(n1 - at < count ? n1 - at : count);
    const float2 *const from = matrix + row * ((int64_t)n1 * n2) + at * n2;
    for (int c = 0; c < lanes; c++)
        for (int i = threadIdx.x; i < n2; i += THREADS)
            memory[c * apart + pad(i)] = from[(int64_t)c * n2 + i];
    __syncthreads();
    const float2 *const z = direct(plan.rows, memory, memory + count * apart, lanes, apart);
    for (int e = threadIdx.x; e < n2 * count; e += THREADS) {
        const int k = e / count, c = e % count;
        if (c < lanes) to.put(row, at + c + (int64_t)n1 * k, load(z + c * apart, k));
    }
}

/* Blocks of up to COLUMNS transforms of n numbers, `width` of them in a row. */
template <class Kernel, class From, class To>
int32_t columns(tl_context *ctx, const char *name, Kernel kernel, int n, int64_t width, int64_t rows,
                const tl_own_plan &plan, const From &from, const To &to, const uint8_t *only)
{
    const size_t one = 2 * sizeof(float2) * pitch(n);
    if (one > MOST_BYTES)
        return tl_fail(TORCHLEAN_UNAVAILABLE,
                       "a transform of %lld points: too long for a device in the mode reproducible", (long long)plan.n);
    int count = COLUMNS;
    while (count > 1 && one * count > COLUMNS_BYTES)
        count /= 2;
    const int64_t groups = tl_ceil_div(width, count);
    TL_TRY(tl_allow_shared(ctx, kernel, one * count));
    return tl_launch_dynamic(ctx, name, kernel, tl_grid(rows * groups, 1), THREADS, one * count, plan, from, to, count,
                             groups, only);
}

int32_t four_steps(tl_context *ctx, const tl_own_plan &plan, const Source &from, const Target &to, float2 *matrix,
                   int64_t rows, const uint8_t *only)
{
    const int n1 = plan.direct.n, n2 = plan.rows.n;
    TL_TRY(columns(ctx, "columns", columns_kernel, n1, n2, rows, plan, from, matrix, only));
    return columns(ctx, "matrix_rows", matrix_rows_kernel, n2, n1, rows, plan, (const float2 *)matrix, to, only);
}

/* ---- Bluestein over four steps ----------------------------------------------------------------------------------- */

/* to[k] = from[k]·w[k] for k < n and 0 up to m; a thread owns a number of a row. */
__global__ void __launch_bounds__(THREADS)
    multiply_kernel(Source from, const float *w, Target to, int64_t n, int64_t m, int64_t rows, const uint8_t *only)
{
    const int64_t e = (int64_t)blockIdx.x * THREADS + threadIdx.x, row = e / m, k = e - row * m;
    if (row >= rows || (only && !only[row])) return;
    to.put(row, k, k < n ? tl_times(from.get(row, k), w[2 * k], w[2 * k + 1]) : tl_complex_of(0.0f, 0.0f));
}

int32_t multiply(tl_context *ctx, const Source &from, const float *w, const Target &to, int64_t n, int64_t m,
                 int64_t rows, const uint8_t *only)
{
    return tl_launch(ctx, "multiply", multiply_kernel, tl_grid(rows * m, THREADS), THREADS, from, w, to, n, m, rows,
                     only);
}

/* Rows of plan.n numbers; the scratch of a row is matrix, a and b, m numbers each (a and b for Bluestein alone). */
int32_t transform(tl_context *ctx, const tl_own_plan &plan, Source from, const Target &to, float2 *matrix, float *a,
                  float *b, int64_t rows, const uint8_t *only)
{
    if (!plan.bluestein) return four_steps(ctx, plan, from, to, matrix, rows, only);
    const int64_t m = plan.m;
    TL_TRY(multiply(ctx, from, plan.chirp, Target{a, 2 * m, false}, plan.n, m, rows, only));
    TL_TRY(four_steps(ctx, plan, Source{a, 2 * m, false, false, 1.0f}, Target{b, 2 * m, false}, matrix, rows, only));
    TL_TRY(multiply(ctx, Source{b, 2 * m, false, false, 1.0f}, plan.kernel, Target{a, 2 * m, true}, m, m, rows, only));
    TL_TRY(four_steps(ctx, plan, Source{a, 2 * m, false, false, 1.0f}, Target{b, 2 * m, true}, matrix, rows, only));
    return multiply(ctx, Source{b, 2 * m, false, false, 1.0f}, plan.chirp, to, plan.n, plan.n, rows, only);
}

/* ---- long real rows ---------------------------------------------------------------------------------------------- */

/* The five kernels below: a thread owns a bin, or a pair of bins, of a row. */
__global__ void __launch_bounds__(THREADS) split_kernel(const __grid_constant__ tl_own_plan plan,
                                                        const __grid_constant__ Real t, float *X, const uint8_t *only)
{
    const int64_t h = plan.n, pairs = h / 2 + 1;
    const int64_t e = (int64_t)blockIdx.x * THREADS + threadIdx.x, row = e / pairs, k = e - row * pairs;
    if (row >= t.batch || (only && !only[row])) return;
    float *const x = X + row * 2 * t.bins;
    if (k == 0) {
        const float r = x[0], i = x[1];
        x[0] = (r + i) * t.edge;
        x[2 * h] = (r - i) * t.edge;
        x[1] = x[2 * h + 1] = 0.0f;
        return;
    }
    double c, s;
    tl_root_at(&plan.packed, (uint64_t)k, &c, &s);
    const tl_complex a = tl_complex_of(x[2 * k], x[2 * k + 1]), b = tl_complex_of(x[2 * (h - k)], x[2 * (h - k) + 1]);
    const float half = 0.5f * t.inner;
    TL_SPLIT(a, b, (float)c, (float)s, half, x[2 * k], x[2 * k + 1], x[2 * (h - k)], x[2 * (h - k) + 1]);
}

__global__ void __launch_bounds__(THREADS)
    join_kernel(const __grid_constant__ tl_own_plan plan, const __grid_constant__ Real t, float *Z, float scale,
                const uint8_t *only)
{
    const int64_t h = plan.n, pairs = h / 2 + 1;
    const int64_t e = (int64_t)blockIdx.x * THREADS + threadIdx.x, row = e / pairs, k = e - row * pairs;
    if (row >= t.batch || (only && !only[row])) return;
    const float *const S = t.from + row * 2 * t.bins;
    float *const z = Z + row * 2 * h;
    tl_complex a = bin(t, S, k, 1.0f), b = bin(t, S, h - k, 1.0f);
    a = tl_complex_of(a.r * scale, a.i * scale), b = tl_complex_of(b.r * scale, b.i * scale);
    double c, s;
    tl_root_at(&plan.packed, (uint64_t)k, &c, &s);
    tl_complex x, y;
    TL_JOIN(a, b, (float)c, (float)s, x.r, x.i, y.r, y.i);
    if (k > 0) z[2 * (h - k)] = y.r, z[2 * (h - k) + 1] = y.i;
    z[2 * k] = x.r, z[2 * k + 1] = x.i;
}

/* The whole spectrum of odd rows, and what is kept of a transform of one. */
__global__ void __launch_bounds__(THREADS) spread_kernel(const __grid_constant__ Real t, float *Z, const uint8_t *only)
{
    const int64_t e = (int64_t)blockIdx.x * THREADS + threadIdx.x, row = e / t.bins, k = e - row * t.bins;
    if (row >= t.batch || (only && !only[row])) return;
    const tl_complex s = bin(t, t.from + row * 2 * t.bins, k, 1.0f);
    float *const z = Z + row * 2 * t.n;
    z[2 * k] = s.r, z[2 * k + 1] = s.i;
    if (k > 0) z[2 * (t.n - k)] = s.r, z[2 * (t.n - k) + 1] = -s.i;
}

__global__ void __launch_bounds__(THREADS)
    halve_kernel(const __grid_constant__ Real t, const float *Z, const uint8_t *only)
{
    const int64_t e = (int64_t)blockIdx.x * THREADS + threadIdx.x, row = e / t.bins, k = e - row * t.bins;
    if (row >= t.batch || (only && !only[row])) return;
    const float *const z = Z + row * 2 * t.n;
    float *const x = t.to + row * 2 * t.bins;
    x[2 * k] = k ? z[2 * k] * t.inner : z[0] * t.edge;
    x[2 * k + 1] = k ? z[2 * k + 1] * t.inner : 0.0f;
}

__global__ void __launch_bounds__(THREADS)
    narrow_kernel(const __grid_constant__ Real t, const float *Z, const uint8_t *only)
{
    const int64_t e = (int64_t)blockIdx.x * THREADS + threadIdx.x, row = e / t.n, i = e - row * t.n;
    if (row < t.batch && !(only && !only[row])) t.to[e] = Z[row * 2 * t.n + 2 * i];
}

/* A warp owns a row: one whose bin 0 is not finite becomes NaN. */
__global__ void __launch_bounds__(THREADS) poison_kernel(const __grid_constant__ Real t, const uint8_t *only)
{
    const int64_t row = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / 32;
    if (row >= t.batch || (only && !only[row])) return;
    float *const x = t.to + row * 2 * t.bins;
    const bool poisoned = x[0] - x[0] != 0.0f;
    __syncwarp();
    for (int64_t k = threadIdx.x % 32; poisoned && k < 2 * t.bins; k += 32)
        x[k] = TL_NAN;
}

/* A thread owns a number. flags[row] = `value` where a number of the row counts and is not finite; rows whose flag is `skipped` are
 * passed over. */
__global__ void __launch_bounds__(THREADS) look_kernel(const __grid_constant__ Real t, bool inverse, bool input,
                                                       uint8_t *flags, uint8_t skipped, uint8_t value)
{
    const int64_t length = input == inverse ? 2 * t.bins : t.n;
    const int64_t e = (int64_t)blockIdx.x * THREADS + threadIdx.x, row = e / length, i = e - row * length;
    if (row >= t.batch || flags[row] == skipped) return;
    if ((!input || read_part(t, inverse, i)) && bad((input ? t.from : (const float *)t.to)[e])) flags[row] = value;
}

__global__ void __launch_bounds__(THREADS) raise_kernel(float *x, int64_t length, int64_t total, const uint8_t *only)
{
    const int64_t e = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (e < total && only[e / length]) x[e] *= UP;
}

template <class Kernel, class... Arguments>
int32_t over(tl_context *ctx, const char *name, Kernel kernel, int64_t items, const Arguments &...arguments)
{
    return tl_launch(ctx, name, kernel, tl_grid(items, THREADS), THREADS, arguments...);
}

struct Scratch {
    float2 *matrix;
    float *a, *b, *z, *Z;
    uint8_t *flags;
};

/* All rows, or those of `only`, scaled. */
int32_t attempt(tl_context *ctx, const tl_own_plan &plan, const Real &t, bool inverse, const Scratch &s, float scale,
                const uint8_t *only)
{
    const int64_t h = plan.n, rows = t.batch;
    const bool odd = t.n % 2 != 0;
    auto run = [&](Source from, Target to) { return transform(ctx, plan, from, to, s.matrix, s.a, s.b, rows, only); };
    if (!inverse && !odd) {
        TL_TRY(run(Source{t.from, t.n, false, false, scale}, Target{t.to, 2 * t.bins, false}));
        TL_TRY(over(ctx, "split", split_kernel, rows * (h / 2 + 1), plan, t, t.to, only));
    } else if (!inverse) {
        TL_TRY(run(Source{t.from, t.n, true, false, scale}, Target{s.Z, 2 * h, false}));
        TL_TRY(over(ctx, "halve", halve_kernel, rows * t.bins, t, (const float *)s.Z, only));
    } else if (!odd) {
        TL_TRY(over(ctx, "join", join_kernel, rows * (h / 2 + 1), plan, t, s.z, scale, only));
        return run(Source{s.z, 2 * h, false, true, 1.0f}, Target{t.to, t.n, true});
    } else {
        TL_TRY(over(ctx, "spread", spread_kernel, rows * t.bins, t, s.z, only));
        TL_TRY(run(Source{s.z, 2 * h, false, true, scale}, Target{s.Z, 2 * h, true}));
        return over(ctx, "narrow", narrow_kernel, rows * t.n, t, (const float *)s.Z, only);
    }
    return over(ctx, "poison", poison_kernel, rows * 32, t, only);
}

int32_t long_rows(tl_context *ctx, const tl_own_plan &plan, const Real &t, bool inverse)
{
    const bool odd = t.n % 2 != 0;
    const int64_t z = odd || inverse ? plan.n : 0, Z = odd ? plan.n : 0;
    const int64_t numbers = plan.m * (plan.bluestein ? 3 : 1) + z + Z, row = numbers * (int64_t)sizeof(float2);
    const int64_t count = std::max<int64_t>(1, std::min(t.batch, CHUNK_BYTES / row));
    tl_scratch<char> memory(ctx);
    TL_TRY(memory.allocate(count * (row + 1)));
    Scratch s = {};
    s.matrix = reinterpret_cast<float2 *>((char *)memory);
    s.a = reinterpret_cast<float *>(s.matrix + count * plan.m);
    s.b = s.a + (plan.bluestein ? 2 * count * plan.m : 0);
    s.z = s.b + (plan.bluestein ? 2 * count * plan.m : 0);
    s.Z = s.z + 2 * count * z;
    s.flags = reinterpret_cast<uint8_t *>(s.Z + 2 * count * Z);
    const int64_t in = inverse ? 2 * t.bins : t.n, out = inverse ? t.n : 2 * t.bins;
    for (int64_t first = 0; first < t.batch; first += count) {
        Real part = t;
        part.batch = std::min(count, t.batch - first);
        part.from += first * in, part.to += first * out;
        TL_TRY(attempt(ctx, plan, part, inverse, s, 1.0f, nullptr));
        TL_CUDA_TRY(ctx, cudaMemsetAsync(s.flags, 0, (size_t)part.batch, tl_cuda_stream(ctx)));
        TL_TRY(over(ctx, "look", look_kernel, part.batch * out, part, inverse, false, s.flags, (uint8_t)1, (uint8_t)1));
        TL_TRY(over(ctx, "look", look_kernel, part.batch * in, part, inverse, true, s.flags, (uint8_t)0, (uint8_t)0));
        TL_TRY(attempt(ctx, plan, part, inverse, s, DOWN, s.flags));
        TL_TRY(over(ctx, "raise", raise_kernel, part.batch * out, part.to, out, part.batch * out,
                    (const uint8_t *)s.flags));
    }
    return TORCHLEAN_OK;
}

} /* namespace */

int32_t tl_own_real(tl_context *ctx, const float *from, float *to, int64_t batch, int64_t n, bool inverse, double edge,
                    double inner)
{
    if (batch == 0) return TORCHLEAN_OK;
    tl_own_plan plan;
    TL_TRY(tl_own_find(ctx, n % 2 ? n : n / 2, &plan));
    const Real t = {from, to, batch, n, n / 2 + 1, (float)edge, (float)inner};
    int32_t status = TORCHLEAN_OK;
    return tl_own_few(ctx, plan, t, inverse, &status) || tl_own_rows(ctx, plan, t, inverse, &status)
               ? status
               : long_rows(ctx, plan, t, inverse);
}
