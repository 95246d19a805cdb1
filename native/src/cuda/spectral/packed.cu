/* Real transforms of powers of two on CUDA in the mode `fast`, of rows that fit shared memory, where cuFFT would take a pass over device
 * memory of its own: its inverse transform overwrites its input, and what is scaled is scaled after the forward one. Here one kernel reads a
 * row once and writes its result once.
 *
 * A row of n numbers is n/2 complex ones. Their transform leaves them in another order, in which the split of its bins reads them; the way
 * back takes them in this order, in which the bins are joined. Neighbouring lanes have neighbouring bins, and find them in different banks
 * (PaddedPowers).
 *
 * A row one of whose numbers is not finite becomes NaN. */
#include "cuda/spectral/in_place.cuh"
#include "cuda/spectral/plan.cuh"

namespace {

using Real = tl_own_real_rows;

/* Two real numbers as a complex one. */
struct Pairs {
    const float2 *from;
    float2 *to;
    int *bad; /* whether the row becomes NaN */

    template <int R> __device__ __forceinline__ bool enter(int i, int span, tl_complex (&a)[R]) const
    {
        bool wrong = false;
        TL_UNROLL_FOR (int j = 0; j < R; j++) {
            a[j] = take(from, i + span * j);
            wrong |= tl_not_finite(a[j].r) || tl_not_finite(a[j].i);
        }
        return !wrong;
    }
    __device__ __forceinline__ void spoil() const { *bad = 1; }
    template <int R> __device__ __forceinline__ void leave(int i, int span, const tl_complex (&a)[R]) const
    {
        const bool poisoned = *bad != 0;
        TL_UNROLL_FOR (int j = 0; j < R; j++)
            to[i + span * j] = poisoned ? make_float2(TL_NAN, TL_NAN) : make_float2(a[j].i, a[j].r);
    }
};

/* A block's rows, and where it finds number k of a row's transform. */
struct Block {
    const tl_own_plan &plan;
    const Real &t;
    int64_t first;
    float2 *memory;
    int *bad;

    __device__ __forceinline__ float2 *number(int row, int k) const
    {
        const int h = plan.direct.n;
        return memory + PaddedPowers::at(row * h + plan.places[k]);
    }
    __device__ __forceinline__ float2 root(int k) const { return reinterpret_cast<const float2 *>(plan.real)[k]; }
    __device__ __forceinline__ Pairs pairs(int row) const
    {
        return Pairs{reinterpret_cast<const float2 *>(t.from + (first + row) * t.n),
                     reinterpret_cast<float2 *>(t.to + (first + row) * t.n), bad + row};
    }

    __device__ __forceinline__ const float2 *spectrum(int row) const
    {
        return reinterpret_cast<const float2 *>(t.from) + (first + row) * t.bins;
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
    /* Joins all bins: a thread reads those of AT_ONCE pairs before it uses them, as they come from device memory. */
    __device__ __forceinline__ void join_all(int rows) const
    {
        constexpr int AT_ONCE = 4;
        const int h = plan.direct.n, total = rows * (h / 2);
        for (int e = (int)threadIdx.x; e < total; e += AT_ONCE * (int)blockDim.x) {
            float2 bins[AT_ONCE], others[AT_ONCE];
            int of[AT_ONCE], at[AT_ONCE];
            TL_UNROLL_FOR (int i = 0; i < AT_ONCE; i++) {
                uint32_t k;
                of[i] = (int)plan.pairs.divmod((uint32_t)min(e + i * (int)blockDim.x, total - 1), &k);
                at[i] = (int)k;
                bins[i] = spectrum(of[i])[k];
                others[i] = spectrum(of[i])[h - (int)k];
            }
            TL_UNROLL_FOR (int i = 0; i < AT_ONCE; i++)
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
        const tl_complex a = take(number(row, k), 0), b = take(number(row, other), 0);
        const float2 w = root(k);
        const float half = 0.5f * (k > 0 ? t.inner : t.edge);
        tl_complex x, y;
        TL_SPLIT(a, b, w.x, w.y, half, x.r, x.i, y.r, y.i);
        if (k == 0) x.i = y.i = 0.0f;
        if (bad[row]) x = y = tl_complex_of(TL_NAN, TL_NAN);
        put(to, k, x);
        put(to, h - k, y);
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
__global__ void __launch_bounds__(MOST_THREADS)
    packed_kernel(const __grid_constant__ tl_own_plan plan, const __grid_constant__ Real t, int count)
{
    TL_DYNAMIC_SHARED(float2, memory);
    __shared__ int bad[MOST_ROWS];
    const int64_t first = (int64_t)blockIdx.x * count;
    const int rows = begin_rows(t.batch, first, count, bad);
    const Block block = {plan, t, first, memory, bad};
    const auto row_of = [&](int row) { return block.pairs(row); };
    if constexpr (INVERSE) {
        block.join_all(rows);
        __syncthreads();
    } else {
        transform<PaddedPowers>(plan.direct, row_of, rows, memory);
    }
    neighbours<PaddedPowers>(plan.direct, rows, memory, [](uint32_t, tl_complex(&)[16]) {});
    if constexpr (INVERSE)
        transform_back<PaddedPowers>(plan.direct, row_of, rows, memory);
    else
        block.split_all(rows);
}

/* Lengths whose halves have a pass of radix 16 and one more, and fit shared memory. */
constexpr int64_t PACKED_LEAST = 2 * LEAST_LENGTH, PACKED_MOST = 32768;

} /* namespace */

bool tl_packed_serves(tl_context *ctx, const tl_own_real_rows &t)
{
    const int64_t most = t.batch < tl_cuda_sms(ctx) ? 2 * BLOCK_NUMBERS : PACKED_MOST;
    return t.n >= PACKED_LEAST && t.n <= most && (t.n & (t.n - 1)) == 0;
}

int32_t tl_packed_real(tl_context *ctx, const tl_own_real_rows &t, bool inverse)
{
    if (t.batch == 0) return TORCHLEAN_OK;
    tl_own_plan plan;
    TL_TRY(tl_packed_find(ctx, t.n / 2, &plan));
    return inverse ? launch_rows<PaddedPowers>(ctx, "packed", packed_kernel<true>, t.n / 2, t.batch, plan, t)
                   : launch_rows<PaddedPowers>(ctx, "packed", packed_kernel<false>, t.n / 2, t.batch, plan, t);
}
