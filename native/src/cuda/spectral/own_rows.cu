/* Real transforms whose plan is direct, or Bluestein's over a direct one, in one kernel: several rows to a block, which are read, joined
 * or packed, transformed by passes over shared memory from one buffer to the other, split, and written.
 *
 * A row whose result is not finite though all of it is finite is transformed again, scaled by 2^-64, as on the CPU. */
#include <algorithm>

#include "cuda/spectral/own_passes.cuh"

namespace {

constexpr int THREADS = 256, MAX_ROWS = 256;
/* Shared memory of a block of several rows. */
constexpr size_t ROWS_BYTES = 48 << 10;

/* call(row, j) for the `length` numbers j of every row, blockDim.x apart, without a division for each. */
template <class Call> __device__ __forceinline__ void each_number(int rows, int length, const Call &call)
{
    const int threads = (int)blockDim.x, down = threads / length, right = threads - down * length;
    int row = (int)threadIdx.x / length, j = (int)threadIdx.x - row * length;
#pragma unroll 4
    while (row < rows) {
        call(row, j);
        row += down, j += right;
        if (j >= length) row++, j -= length;
    }
}

/* A block's rows. */
template <bool INVERSE, bool ODD> struct Block {
    const tl_own_plan &plan;
    const Real &t;
    int64_t first;
    int rows, apart; /* numbers between rows */
    bool pairs;      /* both arrays begin with whole 8 bytes */

    __device__ __forceinline__ int length() const { return INVERSE ? (int)(2 * t.bins) : (int)t.n; }
    __device__ __forceinline__ const float *from(int c) const { return t.from + (first + c) * length(); }

    /* Number j of a row that is not a spectrum, times `down`. */
    __device__ __forceinline__ tl_complex number(int c, int j, float down) const
    {
        const float *const x = from(c) + (ODD ? j : 2 * j);
        if (ODD) return tl_complex_of(*x * down, 0.0f);
        const float2 v = pairs ? *reinterpret_cast<const float2 *>(x) : make_float2(x[0], x[1]);
        return tl_complex_of(v.x * down, v.y * down);
    }
    __device__ __forceinline__ void put_pair(float *x, float one, float two) const
    {
        if (pairs)
            *reinterpret_cast<float2 *>(x) = make_float2(one, two);
        else
            x[0] = one, x[1] = two;
    }
    /* What enters the complex transform: Bluestein's chirp turns it. */
    __device__ __forceinline__ void enter(float2 *row, int j, tl_complex z) const
    {
        if (plan.bluestein) z = tl_times(z, plan.chirp[2 * j], plan.chirp[2 * j + 1]);
        save(row, j, z);
    }
    /* Reads the rows, times `down`. */
    __device__ __forceinline__ void read(float2 *x, float down) const
    {
        const int n = (int)plan.n, m = (int)plan.m;
        if constexpr (!INVERSE) {
            each_number(rows, n, [&](int c, int j) { enter(x + c * apart, j, number(c, j, down)); });
        } else {
            each_number(rows, n / 2 + 1, [&](int c, int k) {
                float2 *const row = x + c * apart;
                tl_complex z, y;
                if (ODD) {
                    const tl_complex v = bin(t, from(c), k, down, 1.0f);
                    z = tl_complex_of(v.i, v.r), y = tl_complex_of(-v.i, v.r);
                } else {
                    join_bins(plan, t, from(c), k, down, 1.0f, &z, &y);
                }
                enter(row, k, z);
                if (k > 0 && n - k != k) enter(row, n - k, y);
            });
        }
        if (m > n)
            each_number(rows, m - n, [&](int c, int j) { save(x + c * apart, n + j, tl_complex_of(0.0f, 0.0f)); });
    }
    /* Reads the rows, times `down`, and transforms them; returns where the result lies, x or y, after a barrier. */
    __device__ __forceinline__ float2 *transform(float2 *x, float2 *y, float down) const
    {
        const auto take = [&](uint32_t c, int j) { return number((int)c, j, down); };
        if (!INVERSE && !plan.bluestein && plan.direct.stages > 0) /* the first pass reads the rows */
            return direct(plan.direct, take, x, y, rows, apart);
        read(x, down);
        __syncthreads();
        return direct(plan.direct, Stored{x, apart}, x, y, rows, apart);
    }
    /* Bluestein's convolution of what z, x or y, has the transform of; returns where the result lies. */
    __device__ __forceinline__ float2 *convolve(float2 *z, float2 *x, float2 *y) const
    {
        each_number(rows, (int)plan.m, [&](int c, int k) {
            const tl_complex v = tl_times(load(z + c * apart, k), plan.kernel[2 * k], plan.kernel[2 * k + 1]);
            save(z + c * apart, k, tl_complex_of(v.i, v.r)); /* the next transform is the inverse */
        });
        __syncthreads();
        float2 *const made = direct(plan.direct, Stored{z, apart}, z, z == x ? y : x, rows, apart);
        each_number(rows, (int)plan.n, [&](int c, int k) {
            const tl_complex v = load(made + c * apart, k);
            save(made + c * apart, k, tl_times(tl_complex_of(v.i, v.r), plan.chirp[2 * k], plan.chirp[2 * k + 1]));
        });
        __syncthreads();
        return made;
    }
    /* Writes the rows, times `up`, at the second attempt those that are wrong: a number of them is not finite. */
    __device__ __forceinline__ void write(const float2 *z, float up, int attempt, int *wrong) const
    {
        const int n = (int)plan.n;
        each_number(rows, INVERSE ? n : n / 2 + 1, [&](int c, int k) {
            if (attempt > 0 && !wrong[c]) return;
            const float2 *const row = z + c * apart;
            if constexpr (INVERSE) {
                const tl_complex v = load(row, k);
                const float one = v.i * up, two = v.r * up;
                float *const to = t.to + (first + c) * t.n;
                if (ODD)
                    to[k] = one;
                else
                    put_pair(to + 2 * k, one, two);
                if (bad(one) || (!ODD && bad(two))) wrong[c] = 1;
            } else {
                float *const to = t.to + (first + c) * 2 * t.bins;
                split_bins(
                    plan, t, ODD, k, up, [&](int i) { return load(row, i); },
                    [&](int at, float r, float i) {
                        put_pair(to + 2 * at, r, i);
                        if (bad(r) || bad(i)) wrong[c] = 1;
                    });
            }
        });
    }
    /* wrong[c] becomes 0 where a row that counts is not finite itself. */
    __device__ __forceinline__ void excuse(int *wrong) const
    {
        each_number(rows, length(), [&](int c, int j) {
            if (read_part(t, INVERSE, j) && bad(from(c)[j])) wrong[c] = 0;
        });
    }
    /* After a barrier, and with one. */
    __device__ __forceinline__ bool has_wrong(const int *wrong) const
    {
        bool some = false;
        for (int c = threadIdx.x; c < rows; c += THREADS)
            some |= wrong[c] != 0;
        return __syncthreads_or(some);
    }
};

/* A block owns `count` rows. In 64 registers a thread, an SM has the blocks that its shared memory has room for. */
template <bool INVERSE, bool ODD>
__global__ void __launch_bounds__(THREADS, 4)
    rows_kernel(const __grid_constant__ tl_own_plan plan, const __grid_constant__ Real t, int count)
{
    TL_DYNAMIC_SHARED(float2, memory);
    __shared__ int wrong[MAX_ROWS];
    const int64_t first = (int64_t)blockIdx.x * count;
    const int rows = (int)(t.batch - first < count ? t.batch - first : count), apart = pitch((int)plan.m);
    const bool pairs = ((uintptr_t)t.from | (uintptr_t)t.to) % sizeof(float2) == 0;
    const Block<INVERSE, ODD> block = {plan, t, first, rows, apart, pairs};
    float2 *const x = memory, *const y = memory + count * apart;
    for (int c = threadIdx.x; c < rows; c += THREADS)
        wrong[c] = 0;
    for (int attempt = 0; attempt < 2; attempt++) {
        float2 *z = block.transform(x, y, attempt ? DOWN : 1.0f);
        if (plan.bluestein) z = block.convolve(z, x, y);
        block.write(z, attempt ? UP : 1.0f, attempt, wrong);
        if (attempt == 1) break;
        __syncthreads();
        if (!block.has_wrong(wrong)) break;
        block.excuse(wrong);
        __syncthreads();
        if (!block.has_wrong(wrong)) break;
    }
}

template <bool INVERSE, bool ODD> int32_t launch(tl_context *ctx, const tl_own_plan &plan, const Real &t)
{
    const size_t row = 2 * sizeof(float2) * pitch((int)plan.m);
    int64_t count = std::min<int64_t>(MAX_ROWS, std::max<int64_t>(1, ROWS_BYTES / row));
    while (count > 1 && tl_ceil_div(t.batch, count) < 2 * tl_cuda_sms(ctx))
        count = (count + 1) / 2;
    const auto kernel = rows_kernel<INVERSE, ODD>;
    TL_TRY(tl_allow_shared(ctx, kernel, count * row));
    return tl_launch_dynamic(ctx, "rows", kernel, tl_grid(t.batch, count), THREADS, count * row, plan, t, (int)count);
}

} /* namespace */

int32_t tl_own_rows(tl_context *ctx, const tl_own_plan &plan, const tl_own_real_rows &t, bool inverse)
{
    if (inverse) return t.n % 2 ? launch<true, true>(ctx, plan, t) : launch<true, false>(ctx, plan, t);
    return t.n % 2 ? launch<false, true>(ctx, plan, t) : launch<false, false>(ctx, plan, t);
}
