/* Depthwise convolutions of images with a square kernel and a stride of 2 on CUDA, each source plane with `multiplier` target planes:
 * bound by memory.
 *
 *   depthwise_kernel   a block copies what its outputs read, which is one run of memory, to shared memory: some whole planes of small
 *                      images, or a band of rows of one plane. A thread owns `height` neighbouring outputs of a column: it
 *                      has the kernel in registers, reads each row of its elements once, and adds it to up to three outputs.
 *                      Then it may own others, as those of the same elements with another kernel.
 *                      Neighbouring threads have neighbouring columns, whose elements are two apart, which is two of 32
 *                      banks; a thread of several neighbouring outputs of a row would read twice as far apart.
 *
 * conv/direct.cu has one output to a thread, which reads all its elements through the cache: the 25 of a kernel of 5 by 5 are 25
 * requests for one output, where here 13 rows of 5 make five.
 *
 * Order of additions: as in conv/direct.cu, tap by tap, the bias last; in reproducible contexts sums are in float64. */
#include "cuda/conv/direct.cuh"
#include "cuda/device/async_copy.cuh"
#include "cuda/device/unroll.cuh"

using tl_conv_direct_sums::THREADS;
using tl_conv_direct_sums::with;

namespace {

constexpr int STRIDE = 2, HEIGHT_MOST = 8;
/* Floats of a block's elements in shared memory, so that seven blocks fit on a multiprocessor and more; outputs of a column that it
 * has room for at least. */
constexpr int64_t ROOM = 8192, HEIGHT_LEAST = 4;
constexpr int64_t THREADS_WANTED = 512; /* of a multiprocessor, before a thread has more than one output */

struct Job {
    const float *source, *w, *bias;
    float *target;
    uint64_t elements;                    /* of the source */
    uint32_t planes, height, tile_planes; /* of a thread, of a block */
    int32_t source_rows, width, rows;     /* rows of a target's plane */
    int32_t padding_y, padding_x, band;   /* rows of the target that a block has at most */
    uint32_t room;                        /* of the elements */
    tl_fastdiv multiplier, kernels;       /* target planes of one of the source; of one image */
    tl_fastdiv columns, lines, bands;     /* lines: of `height` outputs, in a band; bands of a plane */
    bool aligned;                         /* the source, to 16 bytes */
};

/* shared[0 .. count - 1] = source[first .. first + count - 1]; returns how much further it begins, so that four elements that are
 * aligned in memory are in shared memory too. All threads of the block call this, and wait for their copies. */
__device__ __forceinline__ uint32_t copy_run(const Job &job, uint64_t first, uint32_t count, float *shared)
{
    if (count == 0) return 0;
    const uint32_t lead = job.aligned ? (uint32_t)first % 4 : 0;
    const uint64_t begin = first - lead;
    if (!job.aligned) {
        for (uint32_t i = threadIdx.x; i < count; i += blockDim.x)
            tl_copy_async<4>(shared + i, job.source + begin + i, true);
        return 0;
    }
    for (uint32_t i = threadIdx.x * 4; i < lead + count; i += blockDim.x * 4)
        if (begin + i + 4 <= job.elements)
            tl_copy_async<16>(shared + i, job.source + begin + i, true);
        else
            for (uint32_t e = i; e < lead + count; e++)
                tl_copy_async<4>(shared + e, job.source + begin + e, true);
    return lead;
}

/* Dynamic shared memory: job.room elements, then the kernels of the targets of job.tile_planes planes. */
template <class Sum, int K> __global__ void __launch_bounds__(THREADS) depthwise_kernel(const __grid_constant__ Job job)
{
    constexpr int TAPS = K * K, HEIGHT = HEIGHT_MOST;
    TL_DYNAMIC_SHARED(float, shared);
    float *const kernels = shared + job.room;
    uint32_t band;
    const uint32_t plane0 = job.bands.divmod(blockIdx.x, &band) * job.tile_planes;
    const uint32_t planes = min(job.tile_planes, job.planes - plane0);
    /* the target's rows row0 .. row1 - 1 read those of the source from first to last - 1 */
    const int32_t row0 = (int32_t)band * job.band, row1 = min(row0 + job.band, job.rows);
    const int32_t first = max(row0 * STRIDE - job.padding_y, 0);
    const int32_t last = min((row1 - 1) * STRIDE - job.padding_y + K, job.source_rows), held = max(last - first, 0);
    const uint32_t plane_size = (uint32_t)(job.source_rows * job.width);
    const uint32_t count = job.tile_planes > 1 ? planes * plane_size : (uint32_t)(held * job.width);
    const int32_t origin = job.tile_planes > 1 ? 0 : first;
    const uint64_t run = (uint64_t)plane0 * plane_size + (uint32_t)(origin * job.width);
    const float *const elements = shared + copy_run(job, run, count, shared);
    const uint32_t target0 = plane0 * job.multiplier.divisor, targets = planes * job.multiplier.divisor;
    for (uint32_t i = threadIdx.x; i < targets * TAPS; i += blockDim.x) {
        uint32_t kernel;
        job.kernels.divmod(target0 + i / TAPS, &kernel);
        tl_copy_async<4>(kernels + i, job.w + (kernel * TAPS + i % TAPS), true);
    }
    tl_copy_commit();
    tl_copy_wait<0>();
    __syncthreads();
    const uint32_t items = targets * job.lines.divisor * job.columns.divisor;
    const int32_t reads = ((int32_t)job.height - 1) * STRIDE + K;
#pragma unroll 1
    for (uint32_t item = threadIdx.x; item < items; item += blockDim.x) {
        uint32_t column, line, kernel;
        const uint32_t target = job.lines.divmod(job.columns.divmod(item, &column), &line);
        const int32_t row = row0 + (int32_t)(line * job.height);
        const int32_t x = (int32_t)column * STRIDE - job.padding_x, y = row * STRIDE - job.padding_y;
        float weights[TAPS];
        TL_UNROLL_FOR (int t = 0; t < TAPS; t++)
            weights[t] = kernels[target * TAPS + t];
        bool inside[K];
        TL_UNROLL_FOR (int t = 0; t < K; t++)
            inside[t] = (uint32_t)(x + t) < (uint32_t)job.width;
        const float *from = elements + (int32_t)(job.multiplier.div(target) * plane_size +
                                                 (uint32_t)(y - origin) * (uint32_t)job.width +
                                                 (uint32_t)x); /* of what lies inside; else it is not read */
        Sum sums[HEIGHT] = {};
        TL_UNROLL_FOR (int r = 0; r < (HEIGHT - 1) * STRIDE + K; r++, from += job.width) {
            if (r >= reads) break;
            const bool here = (uint32_t)(y + r - first) < (uint32_t)held;
            float v[K];
            TL_UNROLL_FOR (int t = 0; t < K; t++)
                v[t] = here && inside[t] ? from[t] : 0.0f;
            TL_UNROLL_FOR (int j = 0; j < HEIGHT; j++)
                if (r - STRIDE * j >= 0 && r - STRIDE * j < K)
                    TL_UNROLL_FOR (int t = 0; t < K; t++)
                        sums[j] = with(sums[j], weights[(r - STRIDE * j) * K + t], v[t]);
        }
        job.kernels.divmod(target0 + target, &kernel);
        const float bias = job.bias ? job.bias[kernel] : 0.0f;
        float *to =
            job.target +
            (((uint64_t)(target0 + target) * (uint32_t)job.rows + (uint32_t)row) * job.columns.divisor + column);
        TL_UNROLL_FOR (int j = 0; j < HEIGHT; j++)
            if (j < (int)job.height && row + j < row1)
                to[(uint32_t)j * job.columns.divisor] = (float)(job.bias ? sums[j] + (Sum)bias : sums[j]);
    }
}

template <class Sum> auto kernel_of(int64_t k)
{
    return k == 3 ? depthwise_kernel<Sum, 3> : k == 5 ? depthwise_kernel<Sum, 5> : depthwise_kernel<Sum, 7>;
}

/* Rows of the source that so many of the target read at most. */
int64_t rows_read(int64_t rows, int64_t k) { return (rows - 1) * STRIDE + k; }

} // namespace

bool tl_conv_is_depthwise(const tl_conv_shape &s, bool spread, int64_t channels)
{
    if (spread || channels != 1 || s.rank != 2) return false;
    const int64_t k = s.kernel[0];
    for (int d = 0; d < s.rank; d++)
        if (s.kernel[d] != k || s.stride[d] != STRIDE || s.dilation[d] > 1) return false;
    return (k == 3 || k == 5 || k == 7) && rows_read(HEIGHT_LEAST, k) * s.in[1] <= ROOM;
}

int32_t tl_conv_depthwise(tl_context *ctx, const tl_conv_shape &s, int64_t batch, int64_t groups, int64_t multiplier,
                          const float *source, const float *w, const float *bias, float *target)
{
    const int64_t k = s.kernel[0], planes = batch * groups, rows = s.out[0], columns = s.out[1], width = s.in[1];
    Job job = {};
    job.source = source, job.w = w, job.bias = bias, job.target = target;
    job.elements = (uint64_t)(planes * s.in_size);
    job.planes = (uint32_t)planes;
    job.source_rows = (int32_t)s.in[0], job.width = (int32_t)width, job.rows = (int32_t)rows;
    job.padding_y = (int32_t)s.padding[0], job.padding_x = (int32_t)s.padding[1];
    job.multiplier = tl_fastdiv((uint64_t)multiplier), job.kernels = tl_fastdiv((uint64_t)(groups * multiplier));
    job.columns = tl_fastdiv((uint64_t)columns);
    job.aligned = ((uintptr_t)source & 15) == 0;
    /* outputs of a thread: those that leave threads enough, share out the rows evenly, and fit */
    int64_t height = planes * multiplier * s.out_size / (THREADS_WANTED * (int64_t)tl_cuda_sms(ctx));
    const int64_t fitting = (ROOM / width - k) / STRIDE + 1;
    if (height > HEIGHT_MOST) height = HEIGHT_MOST;
    if (height > fitting) height = fitting;
    if (height < 1) height = 1;
    const int64_t all_lines = tl_ceil_div(rows, height);
    height = tl_ceil_div(rows, all_lines);
    job.height = (uint32_t)height;
    /* where a thread has one output alone, the targets of a plane have threads of their own */
    const int64_t together = height == 1 ? multiplier : 1;
    int64_t lines = all_lines, tile_planes = 1;
    if (all_lines * columns <= THREADS && s.in_size <= ROOM) {
        tile_planes = THREADS / (all_lines * columns * together);
        const int64_t most = ROOM / (s.in_size + s.taps * multiplier);
        if (tile_planes > most) tile_planes = most;
        if (tile_planes > planes) tile_planes = planes;
        if (tile_planes < 1) tile_planes = 1;
    } else {
        lines = THREADS / (columns * together);
        if (lines > all_lines) lines = all_lines;
        while (lines > 1 && rows_read(lines * height, k) * width > ROOM)
            lines--;
        if (lines < 1) lines = 1;
    }
    job.tile_planes = (uint32_t)tile_planes;
    job.band = (int32_t)(lines * height);
    job.lines = tl_fastdiv((uint64_t)lines);
    const int64_t bands = tl_ceil_div(all_lines, lines);
    job.bands = tl_fastdiv((uint64_t)bands);
    const int64_t reads = rows_read(lines * height, k), band_rows = reads < s.in[0] ? reads : s.in[0];
    const int64_t held = tile_planes > 1 ? tile_planes * s.in_size : band_rows * width;
    job.room = (uint32_t)(tl_ceil_div(held + 3, 4) * 4);
    const int64_t items = tile_planes * multiplier * lines * columns,
                  warps = tl_ceil_div(items < THREADS ? items : THREADS, 32);
    const size_t bytes = sizeof(float) * (size_t)(job.room + tile_planes * multiplier * k * k);
    return tl_launch_dynamic(ctx, "conv_depthwise",
                             tl_is_reproducible(ctx) ? kernel_of<double>(k) : kernel_of<float>(k),
                             (unsigned)(tl_ceil_div(planes, tile_planes) * bands), (unsigned)(32 * warps), bytes, job);
}
