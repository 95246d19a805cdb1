/* Real transforms of even lengths with a large prime on CUDA in the mode `fast`, of rows that fit shared memory. A row of n numbers is
 * h = n/2 complex ones, whose transform Bluestein's convolution gives with a chirp w_t = e^(-i·pi·t²/h):
 *     Z[k] = w_k·Σ_t (z_t·w_t)·conj(w_(k-t)),
 * over m >= n - 1 places, where half a spectrum of real numbers takes n + n/2 (spectral/chirp.cu). The split of its bins reads the
 * transform in shared memory; on the way back a bin is joined with the one across it where it enters. Device memory sees a row once,
 * and its result.
 *
 * A row one of whose numbers is not finite becomes NaN. */
#include "cuda/spectral/in_place.cuh"
#include "cuda/spectral/plan.cuh"

namespace {

using Real = tl_own_real_rows;

/* A row of a block. What a thread needs beside the numbers of a butterfly is read AT_ONCE at a time, as registers allow. */
template <bool INVERSE> struct Row {
    static constexpr int AT_ONCE = 4;
    const tl_own_plan &plan;
    const Real &t;
    int64_t row;
    float2 *numbers; /* in shared memory */
    int *bad;        /* whether the row becomes NaN */

    __device__ __forceinline__ int half() const { return (int)plan.n; }
    __device__ __forceinline__ float2 chirp(int k) const { return reinterpret_cast<const float2 *>(plan.chirp)[k]; }
    __device__ __forceinline__ const float2 *kernel() const { return reinterpret_cast<const float2 *>(plan.kernel); }
    __device__ __forceinline__ const float2 *spectrum() const
    {
        return reinterpret_cast<const float2 *>(t.from) + row * t.bins;
    }
    __device__ __forceinline__ const float2 *pairs() const
    {
        return reinterpret_cast<const float2 *>(t.from + row * t.n);
    }

    /* Number k of the transform from its bin and the one across, the parts exchanged. */
    __device__ __forceinline__ tl_complex join(int k, float2 bin, float2 other, bool *wrong) const
    {
        const int across = half() - k;
        const float2 root = reinterpret_cast<const float2 *>(plan.real)[min(k, across)];
        const float factor = k == 0 ? t.edge : t.inner;
        if (k == 0) bin.y = other.y = 0.0f;
        *wrong |= tl_not_finite(bin.x) || tl_not_finite(bin.y) || tl_not_finite(other.x) || tl_not_finite(other.y);
        const tl_complex a = tl_complex_of(bin.x * factor, bin.y * factor);
        const tl_complex b = tl_complex_of(other.x * factor, other.y * factor);
        tl_complex z, y;
        TL_JOIN(a, b, k <= across ? root.x : -root.x, root.y, z.r, z.i, y.r, y.i);
        return tl_complex_of(z.i, z.r);
    }

    /* Number i + span·j of what the convolution takes: one of the row's times the chirp, or 0. */
    template <int R> __device__ __forceinline__ bool enter(int i, int span, tl_complex (&a)[R]) const
    {
        const int h = half();
        bool wrong = false;
        if constexpr (INVERSE)
            wrong = enter_bins(i, span, a);
        else
            TL_UNROLL_FOR (int j = 0; j < R; j++)
                a[j] = i + span * j < h ? take(pairs(), i + span * j) : tl_complex_of(0.0f, 0.0f);
        TL_UNROLL_FOR (int first = 0; first < R; first += AT_ONCE) {
            float2 w[AT_ONCE];
            TL_UNROLL_FOR (int j = first; j < R && j < first + AT_ONCE; j++)
                w[j - first] = i + span * j < h ? chirp(i + span * j) : make_float2(0.0f, 0.0f);
            TL_UNROLL_FOR (int j = first; j < R && j < first + AT_ONCE; j++) {
                if (!INVERSE) wrong |= tl_not_finite(a[j].r) || tl_not_finite(a[j].i);
                a[j] = turned(a[j], tl_complex_of(w[j - first].x, w[j - first].y));
            }
        }
        return !wrong;
    }
    /* Numbers of the transform from their bins; whether one of these is not finite. */
    template <int R> __device__ __forceinline__ bool enter_bins(int i, int span, tl_complex (&a)[R]) const
    {
        const int h = half();
        bool wrong = false;
        TL_UNROLL_FOR (int first = 0; first < R; first += AT_ONCE) {
            float2 bins[AT_ONCE], others[AT_ONCE];
            TL_UNROLL_FOR (int j = first; j < R && j < first + AT_ONCE; j++) {
                const int k = min(i + span * j, h);
                bins[j - first] = spectrum()[k], others[j - first] = spectrum()[h - k];
            }
            TL_UNROLL_FOR (int j = first; j < R && j < first + AT_ONCE; j++) {
                const int k = i + span * j;
                a[j] = k < h ? join(k, bins[j - first], others[j - first], &wrong) : tl_complex_of(0.0f, 0.0f);
            }
        }
        return wrong;
    }
    __device__ __forceinline__ void spoil() const { *bad = 1; }

    /* Numbers of the convolution, the parts exchanged: a thread puts them where it has found them, and on the way back they are the
     * row's. */
    template <int R> __device__ __forceinline__ void leave(int i, int span, const tl_complex (&a)[R]) const
    {
        const int h = half();
        const bool poisoned = INVERSE && *bad != 0;
        float2 *const to = reinterpret_cast<float2 *>(t.to + row * t.n);
        TL_UNROLL_FOR (int j = 0; j < R; j++) {
            const int u = i + span * j;
            if (u >= h) continue;
            const float2 w = chirp(u);
            const tl_complex z = turned(tl_complex_of(a[j].i, a[j].r), tl_complex_of(w.x, w.y));
            if constexpr (INVERSE)
                to[u] = poisoned ? make_float2(TL_NAN, TL_NAN) : make_float2(z.i, z.r);
            else
                put(numbers, Padded::at(u), z);
        }
    }

    /* Bins k and h - k from the transform. */
    __device__ __forceinline__ void split(int k) const
    {
        float2 *const to = reinterpret_cast<float2 *>(t.to) + row * t.bins;
        const int h = half();
        const tl_complex a = take(numbers, Padded::at(k)), b = take(numbers, Padded::at(k > 0 ? h - k : 0));
        const float2 root = reinterpret_cast<const float2 *>(plan.real)[k];
        const float factor = 0.5f * (k > 0 ? t.inner : t.edge);
        tl_complex x, y;
        TL_SPLIT(a, b, root.x, root.y, factor, x.r, x.i, y.r, y.i);
        if (k == 0) x.i = y.i = 0.0f;
        if (*bad) x = y = tl_complex_of(TL_NAN, TL_NAN);
        put(to, k, x);
        put(to, h - k, y);
    }
};

/* A block owns `count` rows. */
template <bool INVERSE>
__global__ void __launch_bounds__(MOST_THREADS)
    even_kernel(const __grid_constant__ tl_own_plan plan, const __grid_constant__ Real t, int count)
{
    TL_DYNAMIC_SHARED(float2, memory);
    __shared__ int bad[MOST_ROWS];
    const int64_t first = (int64_t)blockIdx.x * count;
    const int rows = begin_rows(t.batch, first, count, bad);
    const auto row_of = [&](int c) {
        return Row<INVERSE>{plan, t, first + c, memory + Padded::at(c * plan.direct.n), bad + c};
    };
    convolve(plan.direct, row_of, rows, memory);
    if constexpr (!INVERSE) {
        __syncthreads();
#pragma unroll 2
        for (uint32_t e = threadIdx.x; e < rows * plan.pairs.divisor; e += blockDim.x) {
            uint32_t k;
            const int row = (int)plan.pairs.divmod(e, &k);
            row_of(row).split((int)k);
        }
    }
}

} /* namespace */

/* A convolution of more than BLOCK_NUMBERS takes a block longer than all SMs take for it as a matrix, one of spectral/chirp.cu's that is
 * half as long again, in three kernels; from some quarter of the SMs' number of rows on no longer. */
int32_t tl_even_serves(tl_context *ctx, const tl_own_real_rows &t, bool *serves)
{
    *serves = false;
    if (t.n % 2 != 0) return TORCHLEAN_OK;
    const int64_t numbers = t.n - 1;
    int64_t longest = 0;
    TL_TRY(find_longest_whole(ctx, &longest));
    *serves = numbers <= longest && (numbers <= BLOCK_NUMBERS || 4 * t.batch >= tl_cuda_sms(ctx));
    return TORCHLEAN_OK;
}

int32_t tl_even_real(tl_context *ctx, const tl_own_real_rows &t, bool inverse)
{
    tl_own_plan plan;
    TL_TRY(tl_full_find(ctx, t.n / 2, &plan));
    return inverse ? launch_rows<Padded>(ctx, "even rows", even_kernel<true>, plan.m, t.batch, plan, t)
                   : launch_rows<Padded>(ctx, "even rows", even_kernel<false>, plan.m, t.batch, plan, t);
}
