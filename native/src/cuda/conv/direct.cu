/* Direct products of groups of few channels (conv/direct.cuh).
 *
 *   line_kernel      depthwise, a stride of 1 along the last axis, K taps of it in a row: a thread owns WIDTH neighbouring
 *                    positions, so that of the K + WIDTH - 1 elements of a line each is read once
 *   column_kernel    depthwise, images with strides of 2 and a kernel of K by K: a thread owns HEIGHT neighbouring positions of a
 *                    column, so that each row of its elements is read once, and added to up to three of them. Its neighbours
 *                    have neighbouring columns, whose elements are two apart; of a thread of several neighbouring positions
 *                    of a row they would be twice as far apart
 *   element_kernel   anything else: a thread owns one position of some images, which share the weights and what finding taps costs.
 *                    A spread takes the kernel offsets of its position's phase
 *
 * Order of additions: channel by channel and tap by tap, the bias last; in reproducible contexts sums are in float64. */
#include "cuda/conv/direct.cuh"

using namespace tl_conv_direct_sums;

namespace {

constexpr int WIDTH = 4, IMAGES_AT_ONCE = 4;
/* Threads that are left for each multiprocessor where a thread has several images, half of what it holds, or positions. */
constexpr int64_t THREADS_LEAST = 1024, COLUMN_THREADS = 512;

/* The row and group of a plane of the target. */
struct Plane {
    uint32_t row, group, image;

    __device__ __forceinline__ Plane(const Job &job, uint32_t plane)
    {
        image = job.group.divmod(job.row.divmod(plane, &row), &group);
    }
    __device__ __forceinline__ const float *weights(const Job &job) const
    {
        return job.w + group * job.w_group + row * job.w_row;
    }
    /* What an image's group reads. */
    __device__ __forceinline__ const float *source(const Job &job, uint32_t of_image) const
    {
        return job.source + ((uint64_t)of_image * job.group.divisor + group) * job.channels * job.source_size;
    }
    template <class Sum> __device__ __forceinline__ float ended(const Job &job, Sum sum) const
    {
        return (float)(job.bias ? sum + (Sum)job.bias[group * job.rows + row] : sum);
    }
};

template <class Sum, int K> __global__ void __launch_bounds__(THREADS) line_kernel(const __grid_constant__ Job job)
{
    tl_wait_for_earlier();
    const uint64_t index = (uint64_t)blockIdx.x * THREADS + threadIdx.x;
    if (index >= job.items) return;
    const Item item(job, (uint32_t)index);
    const Plane plane(job, item.plane);
    const int32_t x0 = (int32_t)item.at[2] * WIDTH;
    /* the leftmost element that the line's taps read; with a step of -1 tap 0 reads the rightmost */
    const int32_t left = job.step > 0 ? x0 - job.padding[2] : x0 + job.padding[2] - (K - 1);
    const float *w = plane.weights(job), *const source = plane.source(job, plane.image);
    Sum sums[WIDTH] = {};
    for (int32_t a = 0; a < job.kernel[0]; a++)
        for (int32_t b = 0; b < job.kernel[1]; b++, w += K) {
            const int32_t z = (int32_t)item.at[0] + job.step * (a * job.dilation[0] - job.padding[0]);
            const int32_t y = (int32_t)item.at[1] + job.step * (b * job.dilation[1] - job.padding[1]);
            const bool inside = (uint32_t)z < (uint32_t)job.source_axes[0] &&
                                (uint32_t)y < (uint32_t)job.source_axes[1];
            const float *line = source + ((int64_t)z * job.source_axes[1] + y) * job.source_axes[2];
            float x[K + WIDTH - 1], weight[K];
            TL_UNROLL_FOR (int i = 0; i < K + WIDTH - 1; i++)
                x[i] = inside && (uint32_t)(left + i) < (uint32_t)job.source_axes[2] ? line[left + i] : 0.0f;
            TL_UNROLL_FOR (int t = 0; t < K; t++)
                weight[t] = w[t];
            if (job.step > 0) {
                TL_UNROLL_FOR (int t = 0; t < K; t++)
                    TL_UNROLL_FOR (int i = 0; i < WIDTH; i++)
                        sums[i] = with(sums[i], weight[t], x[i + t]);
            } else {
                TL_UNROLL_FOR (int t = 0; t < K; t++)
                    TL_UNROLL_FOR (int i = 0; i < WIDTH; i++)
                        sums[i] = with(sums[i], weight[t], x[i + K - 1 - t]);
            }
        }
    float *to = job.target + (uint64_t)item.plane * job.target_size +
                ((uint64_t)item.at[0] * (uint32_t)job.target_axes[1] + item.at[1]) * (uint32_t)job.target_axes[2];
    TL_UNROLL_FOR (int i = 0; i < WIDTH; i++)
        if (x0 + i < job.target_axes[2]) to[x0 + i] = plane.ended(job, sums[i]);
}

template <class Sum, int K, int HEIGHT>
__global__ void __launch_bounds__(THREADS) column_kernel(const __grid_constant__ Job job)
{
    constexpr int STRIDE = 2;
    tl_wait_for_earlier();
    const uint64_t index = (uint64_t)blockIdx.x * THREADS + threadIdx.x;
    if (index >= job.items) return;
    const Item item(job, (uint32_t)index);
    const Plane plane(job, item.plane);
    const int32_t row = (int32_t)item.at[1] * HEIGHT, y = row * STRIDE - job.padding[1];
    const int32_t x = (int32_t)item.at[2] * STRIDE - job.padding[2], width = job.source_axes[2];
    const float *const w = plane.weights(job);
    const float *from = plane.source(job, plane.image) + ((int64_t)y * width + x); /* of what lies inside */
    float weights[K * K];
    bool inside[K];
    Sum sums[HEIGHT] = {};
    TL_UNROLL_FOR (int t = 0; t < K * K; t++)
        weights[t] = w[t];
    TL_UNROLL_FOR (int t = 0; t < K; t++)
        inside[t] = (uint32_t)(x + t) < (uint32_t)width;
    TL_UNROLL_FOR (int r = 0; r < (HEIGHT - 1) * STRIDE + K; r++, from += width) {
        const bool here = (uint32_t)(y + r) < (uint32_t)job.source_axes[1];
        float v[K];
        TL_UNROLL_FOR (int t = 0; t < K; t++)
            v[t] = here && inside[t] ? from[t] : 0.0f;
        TL_UNROLL_FOR (int j = 0; j < HEIGHT; j++)
            if (r - STRIDE * j >= 0 && r - STRIDE * j < K)
                TL_UNROLL_FOR (int t = 0; t < K; t++)
                    sums[j] = with(sums[j], weights[(r - STRIDE * j) * K + t], v[t]);
    }
    const uint32_t columns = (uint32_t)job.target_axes[2];
    float *const to = job.target + (uint64_t)item.plane * job.target_size + ((uint32_t)row * columns + item.at[2]);
    TL_UNROLL_FOR (int j = 0; j < HEIGHT; j++)
        if (row + j < job.target_axes[1]) to[(uint32_t)j * columns] = plane.ended(job, sums[j]);
}

/* The first kernel offset of an element's phase along an axis, and what it reads; no offset where none divides. */
template <bool SPREAD> struct Axis {
    int32_t first, step, at, move;

    __device__ __forceinline__ Axis(const Job &job, int d, int32_t i)
    {
        if (!SPREAD) {
            first = 0, step = 1, at = i * job.stride[d] - job.padding[d], move = job.dilation[d];
            return;
        }
        uint32_t rest; /* the stride or the dilation is 1 */
        at = (int32_t)job.by_stride[d].divmod((uint32_t)(i + job.padding[d]), &rest);
        first = min((int32_t)rest, job.kernel[d]), step = job.stride[d], move = -job.dilation[d];
    }
};

/* An item: a position of IMAGES images. One that is not there is a copy of the first. */
template <class Sum, bool SPREAD, int IMAGES>
__global__ void __launch_bounds__(THREADS) element_kernel(const __grid_constant__ Job job)
{
    tl_wait_for_earlier();
    const uint64_t index = (uint64_t)blockIdx.x * THREADS + threadIdx.x;
    if (index >= job.items) return;
    const Item item(job, (uint32_t)index);
    const Plane plane(job, item.plane);
    const uint32_t image = plane.image * IMAGES, images = min(job.batch - image, (uint32_t)IMAGES);
    const Axis<SPREAD> z(job, 0, (int32_t)item.at[0]), y(job, 1, (int32_t)item.at[1]), x(job, 2, (int32_t)item.at[2]);
    const float *weights = plane.weights(job), *sources[IMAGES];
    Sum sums[IMAGES] = {};
    TL_UNROLL_FOR (int n = 0; n < IMAGES; n++)
        sources[n] = plane.source(job, image + ((uint32_t)n < images ? (uint32_t)n : 0));
    for (uint32_t c = 0; c < job.channels; c++, weights += job.w_channel) {
        int32_t cz = z.at;
        for (int32_t a = z.first; a < job.kernel[0]; a += z.step, cz += z.move) {
            int32_t cy = y.at;
            for (int32_t b = y.first; b < job.kernel[1]; b += y.step, cy += y.move) {
                const bool inside = (uint32_t)cz < (uint32_t)job.source_axes[0] &&
                                    (uint32_t)cy < (uint32_t)job.source_axes[1];
                const int64_t line = ((int64_t)cz * job.source_axes[1] + cy) * job.source_axes[2];
                const float *w = weights + (a * job.kernel[1] + b) * job.kernel[2];
                int32_t cx = x.at;
                for (int32_t t = x.first; t < job.kernel[2]; t += x.step, cx += x.move) {
                    const bool reads = inside && (uint32_t)cx < (uint32_t)job.source_axes[2];
                    float value[IMAGES];
                    TL_UNROLL_FOR (int n = 0; n < IMAGES; n++)
                        value[n] = reads ? sources[n][line + cx] : 0.0f;
                    const float weight = w[t];
                    TL_UNROLL_FOR (int n = 0; n < IMAGES; n++)
                        sums[n] = with(sums[n], weight, value[n]);
                }
            }
        }
        TL_UNROLL_FOR (int n = 0; n < IMAGES; n++)
            sources[n] += job.source_size;
    }
    /* without a tap nothing is added to the bias, which may be -0 */
    const bool none = z.first >= job.kernel[0] || y.first >= job.kernel[1] || x.first >= job.kernel[2];
    const uint32_t channel = plane.group * job.rows + plane.row;
    const uint64_t planes = (uint64_t)job.group.divisor * job.rows,
                   at = index - (uint64_t)item.plane * job.lines.divisor;
    TL_UNROLL_FOR (int n = 0; n < IMAGES; n++) {
        if ((uint32_t)n >= images) break;
        const uint64_t to = (image + (uint32_t)n) * planes + channel;
        job.target[to * job.target_size + at] = !none ? plane.ended(job, sums[n]) : job.bias ? job.bias[channel] : 0.0f;
    }
}

using Kernel = void (*)(const Job);

/* Kernels of K by K whose threads own as many positions as leave enough of them; the images of EfficientNet have multiples of 7. */
template <class Sum, int K> Kernel column_of(Job &job, int64_t planes, int64_t sms)
{
    const int64_t most = planes * job.target_size / (COLUMN_THREADS * sms);
    const int height = most >= 7 ? 7 : most >= 4 ? 4 : most >= 2 ? 2 : 1;
    const int32_t axes[AXES] = {1, (int32_t)tl_ceil_div(job.target_axes[1], height), job.target_axes[2]};
    set_items(job, axes, planes, 1);
    return height == 7   ? column_kernel<Sum, K, 7>
           : height == 4 ? column_kernel<Sum, K, 4>
           : height == 2 ? column_kernel<Sum, K, 2>
                         : column_kernel<Sum, K, 1>;
}

/* The kernel, and its items. */
template <class Sum> Kernel kernel_of(Job &job, const tl_conv_product &p, int64_t sms)
{
    const int k = job.kernel[2];
    const int64_t planes = p.groups * p.rows, quads = tl_ceil_div(p.batch, IMAGES_AT_ONCE);
    if (p.channels == 1 && job.stride[0] == 1 && job.stride[1] == 1 && job.stride[2] == 1 && job.dilation[2] == 1 &&
        (k == 3 || k == 5 || k == 7)) {
        set_items(job, job.target_axes, p.batch * planes, WIDTH);
        return k == 3 ? line_kernel<Sum, 3> : k == 5 ? line_kernel<Sum, 5> : line_kernel<Sum, 7>;
    }
    if (p.channels == 1 && !p.spread && p.s.rank == 2 && job.stride[1] == 2 && job.stride[2] == 2 &&
        job.dilation[1] == 1 && job.dilation[2] == 1 && job.kernel[1] == k && (k == 3 || k == 5))
        return k == 3 ? column_of<Sum, 3>(job, p.batch * planes, sms) : column_of<Sum, 5>(job, p.batch * planes, sms);
    /* several images where that leaves enough threads; no order depends on it */
    const bool several = p.batch >= IMAGES_AT_ONCE && quads * planes * job.target_size >= THREADS_LEAST * sms;
    set_items(job, job.target_axes, (several ? quads : p.batch) * planes, 1);
    if (several)
        return p.spread ? element_kernel<Sum, true, IMAGES_AT_ONCE> : element_kernel<Sum, false, IMAGES_AT_ONCE>;
    return p.spread ? element_kernel<Sum, true, 1> : element_kernel<Sum, false, 1>;
}

} // namespace

int32_t tl_conv_direct(tl_context *ctx, const tl_conv_product &p)
{
    const int64_t sms = tl_cuda_sms(ctx);
    Job job = job_of(p.s, p.spread, p.groups, p.channels, p.rows);
    job.source = p.source, job.w = p.w, job.bias = p.bias, job.target = p.target;
    job.step = p.spread ? -1 : 1, job.batch = (uint32_t)p.batch;
    const Kernel kernel = tl_is_reproducible(ctx) ? kernel_of<double>(job, p, sms) : kernel_of<float>(job, p, sms);
    if (job.items == 0) return TORCHLEAN_OK;
    return tl_launch_ahead(ctx, "conv_groups", kernel, tl_grid((int64_t)job.items, THREADS), THREADS, 0, job);
}
