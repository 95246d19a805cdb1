/* Real transforms on CUDA by the arithmetic of cpu/spectral/fft.c and spectral.c, number by number: of the mode `reproducible`, and of
 * short odd rows. Short rows are transformed in shared memory (spectral/own_rows.cu).
 *
 * Long ones are four steps through device memory: a block transforms COLUMNS columns of the matrix, or as many of its rows, so
 * that both read and write runs of memory; Bluestein's convolution is two of these, which meet the chirp and its kernel where they
 * read and write. The first of them reads real rows, the last one writes them, or what weigh_kernel makes bins of.
 *
 * A row whose result is not finite though all of it is finite is transformed again, scaled by 2^-64, by kernels that all other rows
 * leave at once. */
#include <algorithm>

#include "cuda/spectral/own_passes.cuh"

namespace {

constexpr int THREADS = 256, COLUMNS = 16;
/* Shared memory of a block of columns. */
constexpr size_t COLUMNS_BYTES = 96 << 10;
/* Scratch of long transforms at a time. */
constexpr int64_t CHUNK_BYTES = (int64_t)256 << 20;

/* ---- four steps through device memory ---------------------------------------------------------------------------- */

/* Whether a row and its result have a number that is not finite, and whether rows are transformed again. */
struct Flags {
    uint8_t *in, *out;
    bool again;
    __device__ __forceinline__ bool skips(int64_t row) const { return again && (in[row] || !out[row]); }
};

/* What a transform reads: `count` numbers of every row, each times the one of `before` if given; 0 behind them. */
enum class Reads { COMPLEX, REAL, BINS }; /* BINS: what an inverse transform takes, the parts exchanged */
struct Source {
    Reads kind;
    const float *at;
    int64_t apart, count; /* floats between rows */
    const float *before;
    float scale;
    bool first; /* it is the caller's, and looked at */

    __device__ __forceinline__ tl_complex get(const tl_own_plan &plan, const Real &t, const Flags &flags, int64_t row,
                                              int64_t i) const
    {
        if (i >= count) return tl_complex_of(0.0f, 0.0f);
        const float *const x = at + row * apart;
        tl_complex v;
        if (kind == Reads::BINS)
            v = joined(plan, t, flags, row, x, i);
        else if (kind == Reads::REAL)
            v = tl_complex_of(x[i] * scale, 0.0f);
        else
            v = tl_complex_of(x[2 * i] * scale, x[2 * i + 1] * scale);
        if (first && kind != Reads::BINS && (bad(v.r) || bad(v.i))) flags.in[row] = 1;
        return before ? tl_times(v, before[2 * i], before[2 * i + 1]) : v;
    }
    /* Number i of the whole spectrum, or of even rows of the packed transform. */
    __device__ __forceinline__ tl_complex joined(const tl_own_plan &plan, const Real &t, const Flags &flags,
                                                 int64_t row, const float *S, int64_t i) const
    {
        const int64_t n = plan.n, k = i <= n - i ? i : n - i;
        tl_complex z, y;
        bool finite;
        if (t.n % 2 != 0) {
            const tl_complex v = bin(t, S, k, 1.0f, scale);
            z = tl_complex_of(v.i, v.r), y = tl_complex_of(-v.i, v.r);
            finite = !bad(v.r);
        } else {
            finite = join_bins(plan, t, S, k, 1.0f, scale, &z, &y);
        }
        if (!finite) flags.in[row] = 1;
        return k == i ? z : y;
    }
};

/* Where its first `count` numbers go, each times the one of `after` if given; the parts are exchanged before that, and after it. */
struct Target {
    float *at;
    int64_t apart, count;
    const float *after;
    bool swap, swap_last;
    bool real;  /* the real parts alone */
    bool final; /* they are the result: scaled, and looked at */
    float scale;

    __device__ __forceinline__ void put(const Flags &flags, int64_t row, int64_t i, tl_complex v) const
    {
        if (i >= count) return;
        float *const x = at + row * apart;
        if (swap) v = tl_complex_of(v.i, v.r);
        if (after) v = tl_times(v, after[2 * i], after[2 * i + 1]);
        if (swap_last) v = tl_complex_of(v.i, v.r);
        if (final) {
            v = tl_complex_of(v.r * scale, v.i * scale);
            if (bad(v.r) || (!real && bad(v.i))) flags.out[row] = 1;
        }
        x[real ? i : 2 * i] = v.r;
        if (!real) x[2 * i + 1] = v.i;
    }
};

/* A block owns `count` columns of a row's matrix: transforms them and turns each number by its root. */
__global__ void __launch_bounds__(THREADS)
    columns_kernel(const __grid_constant__ tl_own_plan plan, const __grid_constant__ Real t, const Source from,
                   float2 *matrix, int count, int64_t groups, const Flags flags)
{
    TL_DYNAMIC_SHARED(float2, memory);
    const int64_t row = blockIdx.x / groups, at = blockIdx.x % groups * count;
    if (flags.skips(row)) return;
    const int n1 = plan.direct.n, n2 = plan.rows.n, apart = pitch(n1);
    const int lanes = (int)(n2 - at < count ? n2 - at : count);
    for (int e = threadIdx.x; e < n1 * count; e += THREADS) {
        const int i = e / count, c = e % count;
        if (c < lanes) save(memory + c * apart, i, from.get(plan, t, flags, row, (int64_t)i * n2 + at + c));
    }
    __syncthreads();
    const float2 *const z = direct(plan.direct, Stored{memory, apart}, memory, memory + count * apart, lanes, apart);
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
    matrix_rows_kernel(const __grid_constant__ tl_own_plan plan, const float2 *matrix, const Target to, int count,
                       int64_t groups, const Flags flags)
{
    TL_DYNAMIC_SHARED(float2, memory);
    const int64_t row = blockIdx.x / groups, at = blockIdx.x % groups * count;
    if (flags.skips(row)) return;
    const int n1 = plan.direct.n, n2 = plan.rows.n, apart = pitch(n2);
    const int lanes = (int)(n1 - at < count ? n1 - at : count);
    const float2 *const from = matrix + row * ((int64_t)n1 * n2) + at * n2;
    for (int c = 0; c < lanes; c++)
        for (int i = threadIdx.x; i < n2; i += THREADS)
            memory[c * apart + pad(i)] = from[(int64_t)c * n2 + i];
    __syncthreads();
    const float2 *const z = direct(plan.rows, Stored{memory, apart}, memory, memory + count * apart, lanes, apart);
    for (int e = threadIdx.x; e < n2 * count; e += THREADS) {
        const int k = e / count, c = e % count;
        if (c < lanes) to.put(flags, row, at + c + (int64_t)n1 * k, load(z + c * apart, k));
    }
}

/* The bins of transformed rows Z: a thread owns one, or of even rows a pair of them. A row whose bin 0 is not finite becomes NaN. */
__global__ void __launch_bounds__(THREADS)
    weigh_kernel(const __grid_constant__ tl_own_plan plan, const __grid_constant__ Real t, const float2 *Z, float scale,
                 const Flags flags)
{
    const int64_t h = plan.n, items = h / 2 + 1;
    const int64_t e = (int64_t)blockIdx.x * THREADS + threadIdx.x, row = e / items, k = e - row * items;
    if (row >= t.batch || flags.skips(row)) return;
    const float2 *const z = Z + row * h;
    float *const x = t.to + row * 2 * t.bins;
    split_bins(
        plan, t, t.n % 2 != 0, k, scale, [&](int64_t i) { return tl_take(z, i); },
        [&](int64_t at, float r, float i) {
            x[2 * at] = r;
            x[2 * at + 1] = i;
            if (bad(r) || bad(i)) flags.out[row] = 1;
        });
}

/* ---- host side --------------------------------------------------------------------------------------------------- */

struct Long {
    tl_context *ctx;
    const tl_spectral_device &device;
    const tl_own_plan &plan;
    Real t;
    Flags flags;
    float2 *matrix, *a, *Z; /* a row's have m numbers each, and n; a: for Bluestein alone, Z: for forward transforms */

    /* Blocks of up to COLUMNS transforms of n numbers, `width` of them in a row. */
    template <class Kernel, class... Arguments>
    int32_t launch(const char *name, Kernel kernel, int n, int64_t width, const Arguments &...arguments) const
    {
        const size_t one = 2 * sizeof(float2) * pitch(n);
        if (one > (size_t)device.block_bytes)
            return tl_fail(TORCHLEAN_UNAVAILABLE,
                           "a transform of %lld points: too long for a device in the mode reproducible",
                           (long long)plan.n);
        int count = COLUMNS;
        while (count > 1 && one * count > COLUMNS_BYTES)
            count /= 2;
        const int64_t groups = tl_ceil_div(width, count);
        TL_TRY(tl_allow_shared(ctx, kernel, one * count));
        return tl_launch_dynamic(ctx, name, kernel, tl_grid(t.batch * groups, 1), THREADS, one * count, plan,
                                 arguments..., count, groups, flags);
    }
    int32_t four_steps(const Source &from, const Target &to) const
    {
        const int n1 = plan.direct.n, n2 = plan.rows.n;
        TL_TRY(launch("columns", columns_kernel, n1, n2, t, from, matrix));
        return launch("matrix rows", matrix_rows_kernel, n2, n1, (const float2 *)matrix, to);
    }
    /* All rows, or those that are transformed again, scaled. */
    int32_t attempt(bool inverse, float down, float up) const
    {
        const bool odd = t.n % 2 != 0;
        const int64_t n = plan.n, m = plan.m;
        float *const numbers = reinterpret_cast<float *>(a);
        Source from = {Reads::COMPLEX, t.from, t.n, n, plan.bluestein ? plan.chirp : nullptr, down, true};
        if (inverse) from.kind = Reads::BINS, from.apart = 2 * t.bins;
        if (!inverse && odd) from.kind = Reads::REAL;
        Target to = {reinterpret_cast<float *>(Z), 2 * n, n, nullptr, false, false, false, false, 1.0f};
        if (inverse) to = {t.to, t.n, n, nullptr, true, false, odd, true, up};
        if (plan.bluestein) {
            /* whose parts are exchanged, as the second one is the inverse */
            TL_TRY(four_steps(from, Target{numbers, 2 * m, m, plan.kernel, false, true, false, false, 1.0f}));
            from = {Reads::COMPLEX, numbers, 2 * m, m, nullptr, 1.0f, false};
            to.after = plan.chirp, to.swap = true, to.swap_last = inverse;
        }
        TL_TRY(four_steps(from, to));
        if (inverse) return TORCHLEAN_OK;
        return tl_launch(ctx, "weigh bins", weigh_kernel, tl_grid(t.batch * (n / 2 + 1), THREADS), THREADS, plan, t,
                         (const float2 *)Z, up, flags);
    }
};

int32_t transform_long(tl_context *ctx, const tl_spectral_device &device, const tl_own_plan &plan, const Real &t,
                       bool inverse)
{
    const int64_t a = plan.bluestein ? plan.m : 0, Z = inverse ? 0 : plan.n;
    const int64_t row = (plan.m + a + Z) * (int64_t)sizeof(float2);
    const int64_t count = std::max<int64_t>(1, std::min(t.batch, CHUNK_BYTES / row));
    tl_scratch<char> memory(ctx);
    TL_TRY(memory.allocate(count * (row + 2)));
    Long part = {ctx, device, plan, t, {}, reinterpret_cast<float2 *>((char *)memory), nullptr, nullptr};
    part.a = part.matrix + count * plan.m;
    part.Z = part.a + count * a;
    part.flags.in = reinterpret_cast<uint8_t *>(part.Z + count * Z);
    part.flags.out = part.flags.in + count;
    for (int64_t first = 0; first < t.batch; first += count) {
        part.t.batch = std::min(count, t.batch - first);
        part.t.from = t.from + first * (inverse ? 2 * t.bins : t.n);
        part.t.to = t.to + first * (inverse ? t.n : 2 * t.bins);
        TL_CUDA_TRY(ctx, cudaMemsetAsync(part.flags.in, 0, (size_t)(2 * count), tl_cuda_stream(ctx)));
        part.flags.again = false;
        TL_TRY(part.attempt(inverse, 1.0f, 1.0f));
        part.flags.again = true;
        TL_TRY(part.attempt(inverse, DOWN, UP));
    }
    return TORCHLEAN_OK;
}

} /* namespace */

int32_t tl_own_real(tl_context *ctx, const tl_spectral_device &device, const tl_own_real_rows &t, bool inverse)
{
    tl_own_plan plan;
    TL_TRY(tl_own_find(ctx, t.n % 2 ? t.n : t.n / 2, false, &plan));
    return plan.in_shared ? tl_own_rows(ctx, plan, t, inverse) : transform_long(ctx, device, plan, t, inverse);
}
