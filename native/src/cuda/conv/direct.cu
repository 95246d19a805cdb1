/* Direct convolution: a spread (conv/conv.cuh) onto few channels, as the data gradient of a first layer is. It makes large
 * (batch, rows, *in) from small (batch, channels, *out) and w (channels, rows, *kernel), rows <= 4. As a matrix product it
 * would leave most rows of a tensor core's tile empty, so it runs on fused multiply-adds.
 *
 * i + padding = j·S + r and k = t·S + r, r < S, on both axes: the large elements of one j read the same small elements
 * j - t. A thread owns P neighbouring j of the first axis, all S·S residues and all rows: per channel and t of the
 * second axis it reads P + T - 1 small elements, and every weight, which shared memory broadcasts, meets P of them.
 * Neighbouring threads have neighbouring j of the second axis.
 *
 * Order of additions: channel by channel, t of the second axis, t of the first, one fused multiply-add each. */
#include "cuda/conv/conv.cuh"

namespace {

constexpr int THREADS = 128, CHANNELS = 8; /* whose weights shared memory holds */
constexpr int64_t TAPS_MOST = 256;         /* 32 KiB of them */
constexpr int64_t EXTENT_MOST = INT64_C(1) << 28;
constexpr int64_t POSITIONS_LEAST = 256; /* of an image: 16 or 32 threads */

struct Job {
    const float *small, *w, *bias;
    float *large;
    uint32_t channels, rows, items, small_size, large_size;
    int32_t in[2], out[2], kernel[2], padding[2], first[2]; /* least j */
    tl_fastdiv count1, count2;                              /* groups of P along the first axis, j along the second */
};

template <int S_, int T_, int R_> struct Form {
    static constexpr int S = S_, T = T_, R = R_, P = S == 1 ? 8 : 4;
    /* thread blocks on a multiprocessor, without spills */
    static constexpr int RESIDENT = R == 4 ? 5 : S == 2 && T == 3 && R == 3 ? 6 : 7;
};

/* CHANNELS·taps float4 of dynamic shared memory: a weight's rows. */
template <class F>
__global__ void __launch_bounds__(THREADS, F::RESIDENT) direct_kernel(const __grid_constant__ Job job)
{
    constexpr int S = F::S, T = F::T, R = F::R, P = F::P, V = P + T - 1;
    extern __shared__ float4 weights[];
    const uint32_t item = blockIdx.x * THREADS + threadIdx.x, taps = (uint32_t)(job.kernel[0] * job.kernel[1]);
    uint32_t at1, at2;
    const uint32_t image = job.count1.divmod(job.count2.divmod(item, &at2), &at1);
    const int j1 = job.first[0] + (int)at1 * P, j2 = job.first[1] + (int)at2, width = job.out[1];
    /* small[image, 0, j1 - (T - 1), j2], modulo 2^32, and which of the V rows from there on exist */
    uint32_t from = image * job.channels * job.small_size + (uint32_t)((j1 - (T - 1)) * width + j2);
    uint32_t present = 0;
    TL_UNROLL_FOR (int m = 0; m < V; m++)
        if (item < job.items && (uint32_t)(j1 - (T - 1) + m) < (uint32_t)job.out[0]) present |= 1u << m;
    float sum[P][S][S][R] = {};
    for (uint32_t channel0 = 0; channel0 < job.channels; channel0 += CHANNELS) {
        const uint32_t channels = min(job.channels - channel0, (uint32_t)CHANNELS);
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < channels * taps; i += THREADS) {
            const uint32_t channel = i / taps, k = i - channel * taps;
            const float *w = job.w + (uint64_t)(channel0 + channel) * job.rows * taps + k;
            float x[4] = {};
            TL_UNROLL_FOR (uint32_t r = 0; r < (uint32_t)R; r++)
                x[r] = r < job.rows ? w[r * taps] : 0.0f;
            weights[i] = make_float4(x[0], x[1], x[2], x[3]);
        }
        __syncthreads();
#pragma unroll 1
        for (uint32_t channel = 0; channel < channels; channel++, from += job.small_size) {
            const float4 *of_channel = weights + channel * taps;
#pragma unroll 1
            for (int t2 = 0; t2 * S < job.kernel[1]; t2++) {
                const bool inside = (uint32_t)(j2 - t2) < (uint32_t)width;
                float v[V];
                TL_UNROLL_FOR (int m = 0; m < V; m++)
                    v[m] = inside && (present >> m & 1)
                               ? __ldg(job.small + (from - (uint32_t)t2 + (uint32_t)(m * width)))
                               : 0.0f;
                TL_UNROLL_FOR (int t1 = 0; t1 < T; t1++)
                    TL_UNROLL_FOR (int r1 = 0; r1 < S; r1++) {
                        if (t1 * S + r1 >= job.kernel[0]) continue;
                        const float4 *w = of_channel + (t1 * S + r1) * job.kernel[1] + t2 * S;
                        TL_UNROLL_FOR (int r2 = 0; r2 < S; r2++) {
                            if (t2 * S + r2 >= job.kernel[1]) continue;
                            const float4 rows = w[r2];
                            const float x[4] = {rows.x, rows.y, rows.z, rows.w};
                            TL_UNROLL_FOR (int p = 0; p < P; p++)
                                TL_UNROLL_FOR (int r = 0; r < R; r++)
                                    sum[p][r1][r2][r] = fmaf(x[r], v[p + T - 1 - t1], sum[p][r1][r2][r]);
                        }
                    }
            }
        }
    }
    if (item >= job.items) return;
    TL_UNROLL_FOR (int r = 0; r < R; r++) {
        if ((uint32_t)r >= job.rows) continue;
        const float bias = job.bias ? job.bias[r] : 0.0f;
        float *to = job.large + (uint64_t)(image * job.rows + (uint32_t)r) * job.large_size;
        TL_UNROLL_FOR (int p = 0; p < P; p++)
            TL_UNROLL_FOR (int r1 = 0; r1 < S; r1++)
                TL_UNROLL_FOR (int r2 = 0; r2 < S; r2++) {
                    const int i1 = (j1 + p) * S + r1 - job.padding[0], i2 = j2 * S + r2 - job.padding[1];
                    const float x = sum[p][r1][r2][r];
                    if ((uint32_t)i1 < (uint32_t)job.in[0] && (uint32_t)i2 < (uint32_t)job.in[1])
                        to[(uint32_t)i1 * (uint32_t)job.in[1] + (uint32_t)i2] = job.bias ? x + bias : x;
                }
    }
}

template <class F> int32_t launch(tl_context *ctx, Job job, int64_t batch)
{
    int64_t count[2];
    for (int d = 0; d < 2; d++) {
        job.first[d] = job.padding[d] / F::S;
        count[d] = (job.in[d] - 1 + job.padding[d]) / F::S - job.first[d] + 1;
    }
    count[0] = tl_ceil_div(count[0], F::P);
    job.count1 = tl_fastdiv(count[0]);
    job.count2 = tl_fastdiv(count[1]);
    job.items = (uint32_t)(batch * count[0] * count[1]);
    const size_t bytes = sizeof(float4) * CHANNELS * (size_t)(job.kernel[0] * job.kernel[1]);
    return tl_launch_dynamic(ctx, "conv_direct", direct_kernel<F>, tl_grid(job.items, THREADS), THREADS, bytes, job);
}

template <int S, int T> int32_t launch_rows(tl_context *ctx, const Job &job, int64_t batch)
{
    return job.rows == 1  ? launch<Form<S, T, 1>>(ctx, job, batch)
           : job.rows < 4 ? launch<Form<S, T, 3>>(ctx, job, batch)
                          : launch<Form<S, T, 4>>(ctx, job, batch);
}

/* The stride that all axes of more than one element share, or 0. */
int64_t common_stride(const tl_conv_shape &s)
{
    int64_t stride = 0;
    for (int d = 0; d < s.rank; d++) {
        const bool free = s.in[d] == 1 && s.out[d] == 1 && s.kernel[d] == 1 && s.padding[d] == 0;
        if (!free && stride && s.stride[d] != stride) return 0;
        if (!free) stride = s.stride[d];
    }
    return stride;
}

} // namespace

bool tl_cuda_conv_direct_serves(const tl_conv_shape &s, int64_t batch, int64_t channels, int64_t rows)
{
    if (batch == 0 || channels == 0 || rows == 0 || rows > 4 || s.rank > 2 || s.taps > TAPS_MOST ||
        (s.rank == 2 && s.in[0] > EXTENT_MOST))
        return false;
    for (int d = 0; d < s.rank; d++)
        if (s.in[d] >= EXTENT_MOST || s.padding[d] >= EXTENT_MOST || s.out[d] >= EXTENT_MOST || s.dilation[d] > 1)
            return false;
    const int64_t stride = common_stride(s), first = s.rank == 2 ? s.kernel[0] : 1;
    if (stride != 1 && stride != 2) return false;
    /* as the order of additions is another than that of conv/mma_product.cu, the batch has no say */
    return first <= (stride == 1 ? 7 : 8) && s.in_size >= POSITIONS_LEAST && batch * s.in_size < INT64_C(1) << 31;
}

int32_t tl_cuda_conv_direct(tl_context *ctx, const tl_conv_shape &s, int64_t batch, int64_t channels, int64_t rows,
                            const float *small, const float *w, const float *bias, float *large)
{
    Job job = {};
    job.small = small, job.w = w, job.bias = bias, job.large = large;
    job.channels = (uint32_t)channels, job.rows = (uint32_t)rows;
    job.small_size = (uint32_t)s.out_size, job.large_size = (uint32_t)s.in_size;
    for (int d = 0; d < 2; d++) {
        const int from = d - (2 - s.rank);
        job.in[d] = from < 0 ? 1 : (int32_t)s.in[from];
        job.out[d] = from < 0 ? 1 : (int32_t)s.out[from];
        job.kernel[d] = from < 0 ? 1 : (int32_t)s.kernel[from];
        job.padding[d] = from < 0 ? 0 : (int32_t)s.padding[from];
    }
    const int k = job.kernel[0];
    if (common_stride(s) == 1)
        return k <= 3   ? launch_rows<1, 3>(ctx, job, batch)
               : k <= 5 ? launch_rows<1, 5>(ctx, job, batch)
                        : launch_rows<1, 7>(ctx, job, batch);
    return k <= 4   ? launch_rows<2, 2>(ctx, job, batch)
           : k <= 6 ? launch_rows<2, 3>(ctx, job, batch)
                    : launch_rows<2, 4>(ctx, job, batch);
}
