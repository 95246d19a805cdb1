/* The kernel of conv/direct.cu, which says what it computes and in which order. */
#pragma once

#include <type_traits>

#include "cuda/conv/conv.cuh"

namespace tl_conv_direct {

constexpr int AXES = 3, WARPS = 8, THREADS = 32 * WARPS;
constexpr int ROOM = 192;   /* weights (of R rows) that a warp has in shared memory, or all of a channel */
constexpr int AT_ONCE = 16; /* sums of a thread that groups exchange at a time */
static_assert(32 * AT_ONCE * sizeof(float) <= ROOM * sizeof(float4), "sums take the place of weights");

struct Job {
    const float *small, *w, *bias;
    float *large;
    uint32_t channels, rows, items, small_size, large_size;
    tl_fastdiv taps; /* of the whole kernel */
    uint32_t kept;   /* taps that are not left out: a box of kernel[d] offsets from kept_from[d] on */
    uint32_t kept_from[AXES];
    tl_fastdiv taps1, taps2;         /* offsets of the whole kernel along the last two axes */
    uint64_t w_channel, w_row;       /* strides of w */
    int64_t w_first, w_step;         /* the element of kernel offset 0, and the way to the next */
    uint32_t groups, group_channels; /* of a part: a power of two; channels of each, the last may have fewer */
    uint32_t parts, part_channels;   /* the same; `large` then has a first axis of parts */
    uint64_t large_elements;         /* of a part */
    uint32_t room, chunk;            /* float4 of a warp in shared memory, and the channels whose weights they hold */
    bool exact; /* the kernel is as long as the form's along the last two axes, and 1 along the first */
    int32_t in[AXES], out[AXES], kernel[AXES], padding[AXES], first[AXES]; /* without what is left out; least j */
    tl_fastdiv stride0, in0, count1, count2; /* of axis 0; groups of P along axis 1, j along axis 2 */
};

/* Offsets T along the second axis for its kernel, as forms have them, and the shortest kernel of a form. */
static constexpr int offsets_of(int S, int kernel)
{
    return S == 1 ? (kernel <= 3 ? 3 : kernel <= 5 ? 5 : 7) : kernel <= 4 ? 2 : kernel <= 6 ? 3 : 4;
}

static constexpr int least_kernel(int S, int T)
{
    int kernel = 1;
    while (offsets_of(S, kernel) < T)
        kernel++;
    return kernel;
}

template <int S_, int T_, int R_, int P_> struct Form {
    static constexpr int S = S_, T = T_, R = R_, P = P_, V = P + T - 1, SUMS = P * S * S * R;
    static_assert(S == 1 || S == 2, "a last offset has all residues, or one");
    static constexpr int LEAST = least_kernel(S, T);
    /* offsets along the third axis whose elements are read together */
    static constexpr int AHEAD = T <= 3 && SUMS + T * V <= 80 ? T : 1;
    static constexpr int TOGETHER =
        R == 4 || SUMS > 32 ? 2 : 4; /* weights that a thread fetches together, as registers allow */
    /* thread blocks on a multiprocessor, as many as leave registers for the inner loop */
    static constexpr int HELD = SUMS + AHEAD * V, RESIDENT = HELD > (AHEAD == 1 ? 56 : 50) ? 2 : HELD > 24 ? 3 : 4;
    static constexpr bool EXACT = AHEAD == T; /* a kernel of T·S offsets along the third axis is read at once */
    /* The rows of a weight in shared memory, which returns 128 bytes a clock, also where all lanes read the same. */
    using Weight = std::conditional_t<R == 1, float, std::conditional_t<R == 2, float2, float4>>;
};

/* The same as an array, what R rows do not fill left away. */
static __device__ __forceinline__ void unpack(float w, float (&x)[1]) { x[0] = w; }
static __device__ __forceinline__ void unpack(float2 w, float (&x)[2]) { x[0] = w.x, x[1] = w.y; }
static __device__ __forceinline__ void unpack(float4 w, float (&x)[3]) { x[0] = w.x, x[1] = w.y, x[2] = w.z; }
static __device__ __forceinline__ void unpack(float4 w, float (&x)[4])
{
    x[0] = w.x, x[1] = w.y, x[2] = w.z, x[3] = w.w;
}
static __device__ __forceinline__ void pack(const float (&x)[1], float &w) { w = x[0]; }
static __device__ __forceinline__ void pack(const float (&x)[2], float2 &w) { w = make_float2(x[0], x[1]); }
static __device__ __forceinline__ void pack(const float (&x)[3], float4 &w) { w = make_float4(x[0], x[1], x[2], 0.0f); }
static __device__ __forceinline__ void pack(const float (&x)[4], float4 &w) { w = make_float4(x[0], x[1], x[2], x[3]); }

/* A thread's item, and where its sums go. */
template <class F> struct Item {
    const Job &job;
    int i0, j0, j1, j2, r0; /* of the first axis: i0 + padding = j0·stride + r0 */
    uint32_t image, row0;
    bool real;

    __device__ __forceinline__ Item(const Job &job, uint32_t item)
        : job(job), row0(blockIdx.y * F::R), real(item < job.items)
    {
        uint32_t at0, at1, at2, rest;
        image = job.in0.divmod(job.count1.divmod(job.count2.divmod(real ? item : 0, &at2), &at1), &at0);
        i0 = (int)at0;
        j0 = (int)job.stride0.divmod(at0 + (uint32_t)job.padding[0], &rest);
        r0 = (int)rest;
        j1 = job.first[1] + (int)at1 * F::P, j2 = job.first[2] + (int)at2;
    }
    /* small[image, channel, j0, j1 - (T - 1), j2], modulo 2^32. */
    __device__ __forceinline__ uint32_t source(uint32_t channel) const
    {
        const uint32_t line = (uint32_t)j0 * (uint32_t)job.out[1] + (uint32_t)(j1 - (F::T - 1));
        return (image * job.channels + channel) * job.small_size + line * (uint32_t)job.out[2] + (uint32_t)j2;
    }
    /* Ends sum number e: (p, residue of the second axis, of the third, row). */
    __device__ __forceinline__ void store(int e, float sum) const
    {
        constexpr int S = F::S, R = F::R;
        const uint32_t row = row0 + (uint32_t)(e % R);
        const int i1 = (j1 + e / (R * S * S)) * S + e / (R * S) % S - job.padding[1];
        const int i2 = j2 * S + e / R % S - job.padding[2];
        if (!real || row >= job.rows || (uint32_t)i1 >= (uint32_t)job.in[1] || (uint32_t)i2 >= (uint32_t)job.in[2])
            return;
        float *const to = job.large +
                          (blockIdx.z * job.large_elements + ((uint64_t)image * job.rows + row) * job.large_size);
        to[((uint32_t)i0 * (uint32_t)job.in[1] + (uint32_t)i1) * (uint32_t)job.in[2] + (uint32_t)i2] =
            job.bias ? sum + job.bias[row] : sum;
    }
};

/* sums += the products of the lines `v` of one offset along the third axis and its weights, `w` the first of them, COUNT residues
 * of that axis. Only offsets along the second axis that not every kernel of the form has are looked at, so that weights can be
 * fetched while others are multiplied. */
template <class F, int COUNT>
static __device__ __forceinline__ void add_taps(const typename F::Weight *w, int kernel1, int kernel2,
                                                const float (&v)[F::V], float (&sum)[F::SUMS])
{
    constexpr int S = F::S, T = F::T, R = F::R;
    TL_UNROLL_FOR (int k1 = 0; k1 < T * S; k1++) {
        if (k1 >= F::LEAST && k1 >= kernel1) continue;
        TL_UNROLL_FOR (int r2 = 0; r2 < COUNT; r2++) {
            float x[R];
            unpack(w[k1 * kernel2 + r2], x);
            TL_UNROLL_FOR (int p = 0; p < F::P; p++)
                TL_UNROLL_FOR (int r = 0; r < R; r++) {
                    float &own = sum[((p * S + k1 % S) * S + r2) * R + r];
                    own = fmaf(x[r], v[p + T - 1 - k1 / S], own);
                }
        }
    }
}

/* Where a tap of the whole kernel lies among the kept ones; one that is left out, where the one that stands for it does. */
struct KeptTap {
    uint32_t at;
    bool kept;

    __device__ __forceinline__ KeptTap(const Job &job, uint32_t tap, uint32_t stride) : at(0), kept(true)
    {
        uint32_t of_tap[AXES];
        of_tap[0] = job.taps1.divmod(job.taps2.divmod(tap, &of_tap[2]), &of_tap[1]);
        TL_UNROLL_FOR (int d = 0; d < AXES; d++) {
            const uint32_t step = d == 0 ? job.stride0.divisor : stride, count = (uint32_t)job.kernel[d];
            const uint32_t from = job.kept_from[d], k = of_tap[d];
            uint32_t own = k - from;
            if (own >= count) {
                kept = false;
                own = k < from ? step - 1 - (from - 1 - k) % step : count - step + (own - count) % step;
            }
            at = at * count + own;
        }
    }
};

/* Puts NaN in place of the kept weights of `channels` that stand for one that is left out and not finite. */
template <class F>
static __device__ __noinline__ void mark_left_out(const Job &job, const float *base, uint32_t channels, uint32_t rows,
                                                  typename F::Weight *weights)
{
    const uint32_t taps = job.taps.divisor;
    for (uint32_t i = threadIdx.x % 32; i < channels * taps; i += 32) {
        uint32_t k;
        const uint32_t channel = job.taps.divmod(i, &k);
        const KeptTap tap(job, k, F::S);
        const float *w = base + (channel * job.w_channel + (int64_t)k * job.w_step);
        for (uint32_t r = 0; r < rows && !tap.kept; r++)
            if (!(w[r * job.w_row] * 0.0f == 0.0f))
                reinterpret_cast<float *>(weights + (channel * job.kept + tap.at))[r] = TL_NAN;
    }
}

/* The weights of `channels` channels from `channel0` on to the warp's room; all of a warp call this. */
template <class F>
static __device__ __forceinline__ void stage_weights(const Job &job, uint32_t row0, uint32_t channel0,
                                                     uint32_t channels, typename F::Weight *weights)
{
    constexpr int R = F::R, TOGETHER = F::TOGETHER;
    const uint32_t lane = threadIdx.x % 32, taps = job.taps.divisor, kept = job.kept;
    __syncwarp();
    const uint32_t present_rows = min(job.rows - row0, (uint32_t)R);
    const float *const base = job.w + channel0 * job.w_channel + row0 * job.w_row + job.w_first;
    float left_out = 0.0f; /* NaN if a weight of them is not finite */
#pragma unroll 1
    for (uint32_t i = lane; i < channels * taps; i += 32 * TOGETHER) {
        float x[TOGETHER][R] = {};
        TL_UNROLL_FOR (int u = 0; u < TOGETHER; u++) {
            uint32_t k;
            const uint32_t at = i + 32 * u, channel = job.taps.divmod(at, &k);
            const float *w = base + (channel * job.w_channel + (int64_t)k * job.w_step);
            TL_UNROLL_FOR (uint32_t r = 0; r < (uint32_t)R; r++)
                if (at < channels * taps && r < present_rows) x[u][r] = __ldg(w + r * job.w_row);
        }
        TL_UNROLL_FOR (int u = 0; u < TOGETHER; u++) {
            uint32_t to = i + 32 * u;
            bool stays = to < channels * taps;
            if (kept < taps && stays) {
                uint32_t k;
                const uint32_t channel = job.taps.divmod(to, &k);
                const KeptTap tap(job, k, F::S);
                to = channel * kept + tap.at, stays = tap.kept;
                TL_UNROLL_FOR (int r = 0; r < R; r++)
                    if (!stays) left_out = fmaf(x[u][r], 0.0f, left_out);
            }
            if (stays) pack(x[u], weights[to]);
        }
    }
    __syncwarp();
    if (__any_sync(0xffffffffu, left_out != 0.0f)) {
        mark_left_out<F>(job, base, channels, present_rows, weights);
        __syncwarp();
    }
}

/* sums += what channels begin .. end - 1 add. `weights`: the warp's room; all of a warp call this. */
template <class F>
static __device__ __forceinline__ void add_channels(const Job &job, const Item<F> &item, uint32_t begin, uint32_t end,
                                                    typename F::Weight *weights, float (&sum)[F::SUMS])
{
    constexpr int S = F::S, T = F::T, V = F::V, AHEAD = F::AHEAD;
    const uint32_t kept = job.kept;
    const int width = job.out[2], kernel1 = job.kernel[1], kernel2 = job.kernel[2];
    uint32_t present = 0; /* which of the V lines from j1 - (T - 1) on exist */
    TL_UNROLL_FOR (int m = 0; m < V; m++)
        if (item.real && (uint32_t)(item.j1 - (T - 1) + m) < (uint32_t)job.out[1]) present |= 1u << m;
    uint32_t from = item.source(begin);
#pragma unroll 1
    for (uint32_t channel0 = begin; channel0 < end; channel0 += job.chunk) {
        const uint32_t channels = min(end - channel0, job.chunk);
        stage_weights<F>(job, item.row0, channel0, channels, weights);
#pragma unroll 1
        for (uint32_t channel = 0; channel < channels; channel++, from += job.small_size) {
            uint32_t plane = from;
            int z = item.j0;
#pragma unroll 1
            for (int k0 = item.r0; k0 < job.kernel[0]; k0 += (int)job.stride0.divisor) {
                const bool here = (uint32_t)z < (uint32_t)job.out[0];
                const typename F::Weight *of_plane = weights + channel * kept + (uint32_t)(k0 * kernel1 * kernel2);
#pragma unroll 1
                for (int t0 = 0; t0 * S < kernel2; t0 += AHEAD) {
                    float v[AHEAD][V];
                    TL_UNROLL_FOR (int a = 0; a < AHEAD; a++) {
                        const bool inside = here && (uint32_t)(item.j2 - t0 - a) < (uint32_t)width;
                        TL_UNROLL_FOR (int m = 0; m < V; m++)
                            v[a][m] = inside && (present >> m & 1)
                                          ? __ldg(job.small + (plane - (uint32_t)(t0 + a) + (uint32_t)(m * width)))
                                          : 0.0f;
                    }
                    TL_UNROLL_FOR (int a = 0; a < AHEAD; a++) {
                        const int left = kernel2 - (t0 + a) * S;
                        const typename F::Weight *const w = of_plane + (t0 + a) * S;
                        if (left >= S)
                            add_taps<F, S>(w, kernel1, kernel2, v[a], sum);
                        else if (left == 1)
                            add_taps<F, 1>(w, kernel1, kernel2, v[a], sum);
                    }
                }
                z--;
                plane -= (uint32_t)(job.out[1] * width);
            }
        }
    }
}

/* The same of an exact kernel. Which elements exist is the same in all channels, every weight lies where the form says, and a channel
 * is multiplied while the elements of the next one come. */
template <class F>
static __device__ __forceinline__ void add_channels_exact(const Job &job, const Item<F> &item, uint32_t begin,
                                                          uint32_t end, typename F::Weight *weights,
                                                          float (&sum)[F::SUMS])
{
    constexpr int S = F::S, T = F::T, V = F::V, KERNEL = T * S;
    static_assert(T * V <= 32, "a bit for each element");
    /* where registers allow, of which about 34 hold addresses and weights, and warps are too few to wait for one another's */
    constexpr bool FETCHES = F::RESIDENT < 4 && F::SUMS + 2 * T * V + 34 <= (F::RESIDENT == 2 ? 128 : 80);
    const int width = job.out[2];
    uint32_t present = 0;
    TL_UNROLL_FOR (int a = 0; a < T; a++)
        TL_UNROLL_FOR (int m = 0; m < V; m++)
            if (item.real && (uint32_t)item.j0 < (uint32_t)job.out[0] &&
                (uint32_t)(item.j1 - (T - 1) + m) < (uint32_t)job.out[1] && (uint32_t)(item.j2 - a) < (uint32_t)width)
                present |= 1u << (a * V + m);
    uint32_t from = item.source(begin);
    const auto fetch = [&](float (&v)[T][V]) {
        TL_UNROLL_FOR (int m = 0; m < V; m++)
            TL_UNROLL_FOR (int a = 0; a < T; a++)
                v[a][m] = present >> (a * V + m) & 1 ? __ldg(job.small + (from - (uint32_t)a + (uint32_t)(m * width)))
                                                     : 0.0f;
        from += job.small_size;
    };
    float next[T][V];
    if (FETCHES && begin < end) fetch(next);
#pragma unroll 1
    for (uint32_t channel0 = begin; channel0 < end; channel0 += job.chunk) {
        const uint32_t channels = min(end - channel0, job.chunk);
        stage_weights<F>(job, item.row0, channel0, channels, weights);
        const typename F::Weight *w = weights;
#pragma unroll 1
        for (uint32_t left = end - channel0; left > end - channel0 - channels; left--, w += KERNEL * KERNEL) {
            float v[T][V];
            if constexpr (FETCHES) {
                TL_UNROLL_FOR (int a = 0; a < T; a++)
                    TL_UNROLL_FOR (int m = 0; m < V; m++)
                        v[a][m] = next[a][m];
                if (left > 1) fetch(next);
            } else {
                fetch(v);
            }
            TL_UNROLL_FOR (int a = 0; a < T; a++)
                add_taps<F, S>(w + a * S, KERNEL, KERNEL, v[a], sum);
        }
    }
}

/* WARPS·room float4 of dynamic shared memory: a weight's rows; then each warp's sums. blockIdx: items, rows, part. */
template <class F>
static __global__ void __launch_bounds__(THREADS, F::RESIDENT) direct_kernel(const __grid_constant__ Job job)
{
    TL_DYNAMIC_SHARED(float4, shared);
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = warp & (job.groups - 1);
    const uint32_t leader = warp - group, sets = WARPS / job.groups, set = leader / job.groups;
    const Item<F> item(job, (blockIdx.x * sets + set) * 32 + lane);
    float sum[F::SUMS] = {};
    const uint32_t part = blockIdx.z * job.part_channels, end = min(part + job.part_channels, job.channels);
    const uint32_t begin = min(part + group * job.group_channels, end);
    const uint32_t stop = min(begin + job.group_channels, end);
    auto *const weights = reinterpret_cast<typename F::Weight *>(shared + warp * job.room);
    if constexpr (F::EXACT) {
        if (job.exact)
            add_channels_exact<F>(job, item, begin, stop, weights, sum);
        else
            add_channels<F>(job, item, begin, stop, weights, sum);
    } else {
        add_channels<F>(job, item, begin, stop, weights, sum);
    }
    if (job.groups == 1) {
        TL_UNROLL_FOR (int e = 0; e < F::SUMS; e++)
            item.store(e, sum[e]);
        return;
    }
    /* Warp `group` of those that share items ends every groups-th of their sums. */
    float *const own = reinterpret_cast<float *>(shared + warp * job.room) + lane;
    const float *const first = reinterpret_cast<const float *>(shared + leader * job.room) + lane;
    TL_UNROLL_FOR (int e0 = 0; e0 < F::SUMS; e0 += AT_ONCE) {
        constexpr int NONE = F::SUMS;
        __syncthreads(); /* the last sums, or weights, have been read */
        TL_UNROLL_FOR (int e = e0; e < (e0 + AT_ONCE < NONE ? e0 + AT_ONCE : NONE); e++)
            own[(e - e0) * 32] = sum[e];
        __syncthreads();
#pragma unroll 1
        for (int e = e0 + (int)group; e < min(e0 + AT_ONCE, F::SUMS); e += (int)job.groups) {
            float total = first[(e - e0) * 32];
            for (uint32_t g = 1; g < job.groups; g++)
                total += first[(uint32_t)((e - e0) * 32) + g * job.room * 4];
            item.store(e, total);
        }
    }
}

} // namespace tl_conv_direct
