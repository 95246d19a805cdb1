/* Direct products of groups of few channels (conv/direct.cuh).
 *
 *   line_kernel      depthwise, a stride of 1 along the last axis, K taps of it in a row: a thread owns WIDTH neighbouring
 *                    positions, so that of the K + WIDTH - 1 elements of a line each is read once
 *   element_kernel   anything else but what conv/depthwise.cu serves: a thread owns one position of some rows and images, which share
 *                    what finding taps costs, the rows what is read and the images the weights. A spread takes the kernel offsets of
 *                    its position's phase
 *
 * Order of additions: channel by channel and tap by tap, the bias last; in reproducible contexts sums are in float64. */
#include "cuda/conv/direct.cuh"

using namespace tl_conv_direct_sums;

namespace {

constexpr int WIDTH = 4;
/* Threads that are left for each multiprocessor where a thread has several rows or images: half of what it holds. */
constexpr int64_t THREADS_LEAST = 1024;

/* The row and group of a plane of the target; the planes of the source that it reads come first at `first`. */
struct Plane {
    uint32_t row, group;
    uint64_t first;

    __device__ __forceinline__ Plane(const Job &job, uint32_t plane)
    {
        const uint32_t part = job.row.divmod(plane, &row);
        job.group.divmod(part, &group);
        first = (uint64_t)part * job.channels;
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
    const float *w = job.w + plane.group * job.w_group + plane.row * job.w_row;
    const float *source = job.source + plane.first * job.source_size;
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

/* The first kernel offset of an element's phase along an axis, and what it reads; no offset where none divides. */
template <bool SPREAD> struct Axis {
    int32_t first, step, at, move;

    __device__ __forceinline__ Axis(const Job &job, int d, int32_t i)
    {
        if (!SPREAD) {
            first = 0, step = 1, at = i * job.stride[d] - job.padding[d], move = job.dilation[d];
            return;
        }
        const int32_t padded = i + job.padding[d], stride = job.stride[d];
        step = job.period[d], move = -job.back[d];
        if (job.dilation[d] == 1) {
            uint32_t rest;
            at = (int32_t)job.by_stride[d].divmod((uint32_t)padded, &rest);
            first = min((int32_t)rest, job.kernel[d]);
            return;
        }
        first = 0;
        if (stride > 1)
            while (first < job.kernel[d] && first < step && (padded - first * job.dilation[d]) % stride != 0)
                first++;
        if (first >= step) first = job.kernel[d];
        at = first < job.kernel[d] ? (padded - first * job.dilation[d]) / stride : 0;
    }
};

/* A plane of an item: ROWS rows, or what is left of a group's, of IMAGES images. What is not there is a copy of what is. */
template <class Sum, bool SPREAD, int ROWS, int IMAGES>
__global__ void __launch_bounds__(THREADS) element_kernel(const __grid_constant__ Job job)
{
    tl_wait_for_earlier();
    const uint64_t index = (uint64_t)blockIdx.x * THREADS + threadIdx.x;
    if (index >= job.items) return;
    const Item item(job, (uint32_t)index);
    uint32_t part, group;
    const uint32_t image = job.group.divmod(job.row.divmod(item.plane, &part), &group) * IMAGES, row = part * ROWS;
    const uint32_t rows = min(job.rows - row, (uint32_t)ROWS), images = min(job.batch - image, (uint32_t)IMAGES);
    const Axis<SPREAD> z(job, 0, (int32_t)item.at[0]), y(job, 1, (int32_t)item.at[1]), x(job, 2, (int32_t)item.at[2]);
    const uint32_t groups = job.group.divisor;
    const float *weights = job.w + group * job.w_group + row * job.w_row;
    const float *sources[IMAGES];
    uint32_t weights_at[ROWS];
    Sum sums[ROWS][IMAGES] = {};
    TL_UNROLL_FOR (int n = 0; n < IMAGES; n++) {
        const uint64_t from = (uint64_t)(image + ((uint32_t)n < images ? (uint32_t)n : 0)) * groups + group;
        sources[n] = job.source + from * job.channels * job.source_size;
    }
    TL_UNROLL_FOR (int r = 0; r < ROWS; r++)
        weights_at[r] = (uint32_t)r < rows ? (uint32_t)r * (uint32_t)job.w_row : 0;
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
                    TL_UNROLL_FOR (int r = 0; r < ROWS; r++) {
                        const float weight = w[weights_at[r] + (uint32_t)t];
                        TL_UNROLL_FOR (int n = 0; n < IMAGES; n++)
                            sums[r][n] = with(sums[r][n], weight, value[n]);
                    }
                }
            }
        }
        TL_UNROLL_FOR (int n = 0; n < IMAGES; n++)
            sources[n] += job.source_size;
    }
    const bool none = z.first >= job.kernel[0] || y.first >= job.kernel[1] || x.first >= job.kernel[2];
    const uint64_t at = index - (uint64_t)item.plane * job.lines.divisor;
    TL_UNROLL_FOR (int r = 0; r < ROWS; r++) {
        if ((uint32_t)r >= rows) break;
        const uint32_t channel = group * job.rows + row + (uint32_t)r;
        const float bias = job.bias ? job.bias[channel] : 0.0f;
        TL_UNROLL_FOR (int n = 0; n < IMAGES; n++) {
            if ((uint32_t)n >= images) break;
            const uint64_t plane = (uint64_t)(image + (uint32_t)n) * groups * job.rows + channel;
            const float sum = (float)(job.bias ? sums[r][n] + (Sum)bias : sums[r][n]);
            job.target[plane * job.target_size + at] = none ? bias : sum;
        }
    }
}

using Kernel = void (*)(const Job);

template <class Sum> Kernel lines_of(int k)
{
    return k == 3 ? line_kernel<Sum, 3> : k == 5 ? line_kernel<Sum, 5> : line_kernel<Sum, 7>;
}

/* In reproducible contexts of one row: another of several would wait for float64, not for what they share. */
template <bool SPREAD, int IMAGES> Kernel elements_of(bool exact, int64_t rows)
{
    return exact       ? element_kernel<double, SPREAD, 1, IMAGES>
           : rows == 1 ? element_kernel<float, SPREAD, 1, IMAGES>
           : rows == 2 ? element_kernel<float, SPREAD, 2, IMAGES>
           : rows == 3 ? element_kernel<float, SPREAD, 3, IMAGES>
                       : element_kernel<float, SPREAD, ROWS_AT_ONCE, IMAGES>;
}

/* The items of element_kernel, and which of them: of as many rows and images as leave enough threads; no order depends on it. */
Kernel elements(tl_context *ctx, Job &job, bool spread, int64_t batch, int64_t groups, int64_t rows)
{
    const bool exact = tl_is_reproducible(ctx);
    const int64_t most = THREADS_LEAST * tl_cuda_sms(ctx), shared = exact ? rows : tl_ceil_div(rows, ROWS_AT_ONCE);
    const int64_t threads = groups * shared * job.target_size;
    const int64_t parts = batch * threads >= most ? shared : rows;
    const bool several = batch >= IMAGES_AT_ONCE && tl_ceil_div(batch, IMAGES_AT_ONCE) * threads >= most;
    const int64_t at_once = tl_ceil_div(rows, parts);
    job.row_parts = (uint32_t)tl_ceil_div(rows, at_once), job.row = tl_fastdiv(job.row_parts);
    set_items(job, job.target_axes, tl_ceil_div(batch, several ? IMAGES_AT_ONCE : 1) * groups * job.row_parts, 1);
    if (several)
        return spread ? elements_of<true, IMAGES_AT_ONCE>(exact, at_once)
                      : elements_of<false, IMAGES_AT_ONCE>(exact, at_once);
    return spread ? elements_of<true, 1>(exact, at_once) : elements_of<false, 1>(exact, at_once);
}

} // namespace

int32_t tl_conv_direct(tl_context *ctx, const tl_conv_shape &s, bool spread, int64_t batch, int64_t groups,
                       int64_t channels, int64_t rows, const float *source, const float *w, const float *bias,
                       float *target)
{
    if (tl_conv_is_depthwise(s, spread, channels))
        return tl_conv_depthwise(ctx, s, batch, groups, rows, source, w, bias, target);
    Job job = job_of(s, spread, groups, channels, rows);
    job.source = source, job.w = w, job.bias = bias, job.target = target;
    const int k = job.kernel[2];
    const bool in_lines = channels == 1 && job.stride[0] == 1 && job.stride[1] == 1 && job.stride[2] == 1 &&
                          job.dilation[2] == 1 && (k == 3 || k == 5 || k == 7);
    job.step = !in_lines ? 0 : spread ? -1 : 1;
    job.batch = (uint32_t)batch;
    if (in_lines) set_items(job, job.target_axes, batch * groups * rows, WIDTH);
    const Kernel kernel = !in_lines                 ? elements(ctx, job, spread, batch, groups, rows)
                          : tl_is_reproducible(ctx) ? lines_of<double>(k)
                                                    : lines_of<float>(k);
    if (job.items == 0) return TORCHLEAN_OK;
    return tl_launch_ahead(ctx, "conv_groups", kernel, tl_grid((int64_t)job.items, THREADS), THREADS, 0, job);
}
