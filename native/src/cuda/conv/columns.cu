/* Convolutions of groups with few rows on CUDA, with strides of 1 along all axes and a kernel of K by K along the last two.
 *
 *   columns_kernel   a block owns some positions of ROWS target planes of one group, and has their weights in shared memory. A
 *                    thread owns HEIGHT neighbouring positions of a column of each: it reads each element of its K columns once
 *                    and adds it to up to K of a plane's sums. Neighbouring threads have neighbouring columns, so that a warp's
 *                    read is one line.
 *
 * A tile of tensor cores has 16 rows and takes 64 terms at a time, most of them zeros where a group has one row or few terms.
 * Here an element of float64 takes a conversion, at a quarter of the rate of fused multiply-adds: the sums share it.
 *
 * Order of additions: as in conv/groups.cu, channel by channel and tap by tap, the bias last. A spread reads the source backwards,
 * so that its taps come in their order, too. In float64 that is the one segment of conv/chain.cu. */
#include "cuda/conv/columns.cuh"
#include "cuda/conv/groups.cuh"
#include "formula/chain.h"

namespace {

constexpr int THREADS = 128, HEIGHT = 4, AXES = 3;
constexpr int64_t EXTENT_MOST = INT64_C(1) << 28;
/* Threads for each multiprocessor, as many as hide the latency of a channel's loads, which do not wait for each other. */
constexpr int64_t THREADS_LEAST = 64;
/* Planes of a thread at most, whose sums, weights and elements registers hold, with sums in float64; conv/groups.cu has other kernels for
 * those in float32. What weights take of shared memory without asking. Threads for each multiprocessor that leave it busy where a
 * thread has several planes: half of those whose registers it has room for. */
constexpr int rows_most(int64_t k) { return k == 3 ? 4 : k == 5 ? 2 : 1; }
constexpr int64_t SHARED_MOST = 48 << 10, THREADS_ENOUGH = 256;
/* The conversions of what planes share take as long as the multiply-adds of so many planes: K·(K + HEIGHT - 1) to HEIGHT·K·K, at a
 * quarter of the rate. */
constexpr int64_t CONVERSIONS = 2;
/* A tile's rows and terms (device/chain.cuh), and the steps of so many terms that it takes as long as to begin and to end: of few terms
 * it waits for memory above all. A step takes 3/4 of the time that the kernel takes for as many products of planes and conversions. */
constexpr int64_t TILE_ROWS = 16, TILE_TERMS = 64, TILE_BEGIN = 2;

struct Job {
    const float *source, *w, *bias;
    float *target;
    uint32_t channels, rows, taps, kernel_z, items; /* items: of a plane, HEIGHT positions each */
    uint32_t source_size, target_size;
    uint64_t w_group, w_row, w_channel;
    int32_t step; /* of taps in the source: 1, or -1 of a spread */
    int32_t source_axes[AXES], target_rows, dilation_z, padding[AXES];
    tl_fastdiv parts, row, group; /* blocks of a plane; ROWS rows of a group each, groups */
    tl_fastdiv lines, width;      /* items along axis 1, and along axis 2 */
};

__device__ __forceinline__ float with(float sum, float x, float y) { return fmaf(x, y, sum); }
__device__ __forceinline__ double with(double sum, double x, double y) { return fma(x, y, sum); }

/* Dynamic shared memory: the weights of all channels and taps of ROWS rows, which are fastest, as Sum. A row that is not there is a
 * copy of one that is. */
template <class Sum, int K, int ROWS>
__global__ void __launch_bounds__(THREADS) columns_kernel(const __grid_constant__ Job job)
{
    TL_DYNAMIC_SHARED(double, shared);
    Sum *const weights = reinterpret_cast<Sum *>(shared);
    tl_wait_for_earlier();
    uint32_t part, row_part, group;
    const uint32_t of_image = job.row.divmod(job.parts.divmod(blockIdx.x, &part), &row_part);
    job.group.divmod(of_image, &group);
    const uint32_t row = row_part * ROWS, last_row = min(job.rows - row, (uint32_t)ROWS) - 1;
    const float *const w = job.w + group * job.w_group + row * job.w_row;
    for (uint32_t c = 0; c < job.channels; c++)
        for (uint32_t t = threadIdx.x; t < job.taps; t += blockDim.x)
            TL_UNROLL_FOR (uint32_t m = 0; m < ROWS; m++)
                weights[(c * job.taps + t) * ROWS + m] = (Sum)w[min(m, last_row) * job.w_row + c * job.w_channel + t];
    __syncthreads();
    const uint32_t item = part * blockDim.x + threadIdx.x;
    if (item >= job.items) return;
    uint32_t x, line;
    const int32_t z = (int32_t)job.lines.divmod(job.width.divmod(item, &x), &line), y = (int32_t)line * HEIGHT;
    const int32_t step = job.step, height = job.source_axes[1], width = job.source_axes[2];
    /* what the first position in the order of rows, and the column, read with the first tap */
    const int32_t first = step > 0 ? y - job.padding[1] : y + HEIGHT - 1 + job.padding[1];
    const int32_t column = (int32_t)x - step * job.padding[2];
    bool inside[K];
    TL_UNROLL_FOR (int t = 0; t < K; t++)
        inside[t] = (uint32_t)(column + step * t) < (uint32_t)width;
    const float *source = job.source + (uint64_t)of_image * job.channels * job.source_size;
    const Sum *own = weights;
    Sum sums[ROWS][HEIGHT] = {};
#pragma unroll 1
    for (uint32_t c = 0; c < job.channels; c++, source += job.source_size)
#pragma unroll 1
        for (uint32_t a = 0; a < job.kernel_z; a++, own += K * K * ROWS) {
            const int32_t from_z = z + step * ((int32_t)a * job.dilation_z - job.padding[0]);
            const bool there = (uint32_t)from_z < (uint32_t)job.source_axes[0];
            float v[HEIGHT + K - 1][K];
            TL_UNROLL_FOR (int r = 0; r < HEIGHT + K - 1; r++) {
                const int32_t from_y = first + step * r;
                const bool here = there && (uint32_t)from_y < (uint32_t)height;
                const float *const from = source + ((int64_t)from_z * height + from_y) * width + column;
                TL_UNROLL_FOR (int t = 0; t < K; t++)
                    v[r][t] = here && inside[t] ? from[step * t] : 0.0f;
            }
            TL_UNROLL_FOR (int r = 0; r < HEIGHT + K - 1; r++)
                TL_UNROLL_FOR (int t = 0; t < K; t++) {
                    const Sum value = (Sum)v[r][t];
                    /* a sum takes its taps in order, as r and t grow */
                    TL_UNROLL_FOR (int j = 0; j < HEIGHT; j++)
                        TL_UNROLL_FOR (int m = 0; m < ROWS; m++)
                            if (r - j >= 0 && r - j < K)
                                sums[m][j] = with(sums[m][j], own[((r - j) * K + t) * ROWS + m], value);
                }
        }
    TL_UNROLL_FOR (int m = 0; m < ROWS; m++) {
        if ((uint32_t)m > last_row) break;
        const float bias = job.bias ? job.bias[group * job.rows + row + (uint32_t)m] : 0.0f;
        const uint64_t plane = (uint64_t)of_image * job.rows + row + (uint32_t)m;
        float *const to = job.target + plane * job.target_size + (uint64_t)z * job.target_rows * job.width.divisor;
        TL_UNROLL_FOR (int j = 0; j < HEIGHT; j++) {
            const int32_t at = y + (step > 0 ? j : HEIGHT - 1 - j);
            if (at < job.target_rows)
                to[(uint64_t)at * job.width.divisor + x] = (float)(job.bias ? sums[m][j] + (Sum)bias : sums[m][j]);
        }
    }
}

using Kernel = void (*)(const Job);

template <int K> Kernel exact_kernel(int64_t at_once)
{
    if constexpr (rows_most(K) >= 4)
        if (at_once == 4) return columns_kernel<double, K, 4>;
    if constexpr (rows_most(K) >= 2)
        if (at_once == 2) return columns_kernel<double, K, 2>;
    return columns_kernel<double, K, 1>;
}

Kernel kernel_of(int64_t k, bool exact, int64_t at_once)
{
    if (exact) return k == 3 ? exact_kernel<3>(at_once) : k == 5 ? exact_kernel<5>(at_once) : exact_kernel<7>(at_once);
    return k == 3 ? columns_kernel<float, 3, 1> : k == 5 ? columns_kernel<float, 5, 1> : columns_kernel<float, 7, 1>;
}

/* The time of all rows, in that of the multiply-adds of one. */
int64_t rows_time(int64_t rows, int64_t at_once) { return tl_ceil_div(rows, at_once) * (at_once + CONVERSIONS); }

/* Rows of a thread with sums in float64, a power of two: those that take the least time and leave threads enough, of which there are
 * `threads` for each row. No order depends on it. */
int64_t rows_at_once(int64_t k, int64_t rows, int64_t terms, int64_t threads, int64_t sms)
{
    int64_t best = 1;
    for (int64_t n = 2; n <= rows_most(k); n *= 2)
        if (rows_time(rows, n) < rows_time(rows, best) && (int64_t)sizeof(double) * n * terms <= SHARED_MOST &&
            tl_ceil_div(rows, n) * threads >= THREADS_ENOUGH * sms)
            best = n;
    return best;
}

/* Items of a target plane, of these axes. */
int64_t items_of(const int64_t *axes, int32_t rank)
{
    return (rank == AXES ? axes[0] : 1) * tl_ceil_div(axes[rank - 2], HEIGHT) * axes[rank - 1];
}

} // namespace

bool tl_cuda_conv_columns_serve(tl_context *ctx, const tl_conv_shape &s, bool spread, int64_t batch, int64_t groups,
                                int64_t channels, int64_t rows)
{
    if (s.rank < 2 || s.rank > AXES || channels * s.taps > TL_CHAIN_SEGMENT) return false;
    const int64_t k = s.kernel[s.rank - 1];
    if (k != s.kernel[s.rank - 2] || (k != 3 && k != 5 && k != 7)) return false;
    for (int d = 0; d < s.rank; d++)
        if (s.stride[d] != 1 || (s.dilation[d] != 1 && d + 2 >= s.rank) || s.dilation[d] >= EXTENT_MOST / s.kernel[d] ||
            s.in[d] >= EXTENT_MOST || s.out[d] >= EXTENT_MOST || s.padding[d] >= EXTENT_MOST)
            return false;
    const int64_t items = items_of(spread ? s.in : s.out, s.rank), planes = batch * groups * rows;
    return items < INT32_MAX && planes * tl_ceil_div(items, THREADS) < INT32_MAX && s.in_size <= UINT32_MAX &&
           s.out_size <= UINT32_MAX && planes * items >= THREADS_LEAST * tl_cuda_sms(ctx);
}

bool tl_cuda_conv_columns_chain(tl_context *ctx, const tl_conv_shape &s, bool spread, int64_t batch, int64_t groups,
                                int64_t channels, int64_t rows)
{
    const int64_t terms = channels * s.taps;
    if (groups == 1 || terms == 0 || !tl_cuda_conv_columns_serve(ctx, s, spread, batch, groups, channels, rows))
        return false;
    const int64_t threads = batch * groups * items_of(spread ? s.in : s.out, s.rank);
    const int64_t at_once = rows_at_once(s.kernel[s.rank - 1], rows, terms, threads, tl_cuda_sms(ctx));
    const int64_t steps = tl_ceil_div(rows, TILE_ROWS) * (TILE_BEGIN + tl_ceil_div(terms, TILE_TERMS));
    return 4 * rows_time(rows, at_once) * terms <= 3 * steps * (TILE_ROWS * TILE_TERMS);
}

int32_t tl_cuda_conv_columns(tl_context *ctx, const tl_conv_shape &s, bool spread, bool exact, int64_t batch,
                             int64_t groups, int64_t channels, int64_t rows, const float *source, const float *w,
                             const float *bias, float *target)
{
    Job job = {};
    job.source = source, job.w = w, job.bias = bias, job.target = target;
    tl_conv_set_group_sizes(job, s, spread, groups, channels, rows);
    job.step = spread ? -1 : 1;
    const int64_t *const from = spread ? s.out : s.in, *const to = spread ? s.in : s.out;
    const int skip = AXES - s.rank;
    job.source_axes[0] = 1, job.kernel_z = 1;
    if (skip == 0) job.kernel_z = (uint32_t)s.kernel[0], job.dilation_z = (int32_t)s.dilation[0];
    for (int d = 0; d < s.rank; d++)
        job.source_axes[skip + d] = (int32_t)from[d], job.padding[skip + d] = (int32_t)s.padding[d];
    job.target_rows = (int32_t)to[s.rank - 2];
    job.lines = tl_fastdiv((uint64_t)tl_ceil_div(to[s.rank - 2], HEIGHT));
    job.width = tl_fastdiv((uint64_t)to[s.rank - 1]);
    const int64_t k = s.kernel[s.rank - 1], items = items_of(to, s.rank), parts = tl_ceil_div(items, THREADS);
    const int64_t terms = channels * s.taps;
    const int64_t at_once = exact ? rows_at_once(k, rows, terms, batch * groups * items, tl_cuda_sms(ctx)) : 1;
    const int64_t row_parts = tl_ceil_div(rows, at_once), planes = batch * groups * row_parts;
    job.row = tl_fastdiv((uint64_t)row_parts);
    const int64_t warps = tl_ceil_div(tl_ceil_div(items, parts), 32); /* the parts of a plane are even */
    job.items = (uint32_t)items, job.parts = tl_fastdiv((uint64_t)parts);
    const size_t bytes = (exact ? sizeof(double) : sizeof(float)) * (size_t)(at_once * terms);
    const Kernel kernel = kernel_of(k, exact, at_once);
    return tl_launch_ahead(ctx, "conv_columns", kernel, (unsigned)(planes * parts), (unsigned)(32 * warps), bytes, job);
}
