/* Spreads with strides or dilated kernels of many channels onto few, as the last layer of a decoder is: a product without a gather,
 * then a fold.
 *
 *   product       columns (batch, rows·taps, positions) = w (channels, rows·taps) times small (batch, channels, positions): what each
 *                 position gives to the elements that its taps reach, by the tiles of a convolution of one tap
 *   fold_kernel   a thread owns one element of large (batch, rows, *in) and adds what the taps of its phase give to it;
 *                 neighbouring threads have neighbouring elements, whose taps a stride apart lie in other columns
 *
 * As a product for each phase (conv/mma_product.cu) the elements are gathered once for every tap, for tiles whose rows are mostly
 * empty, and conv/direct.cu has no tensor cores. Here a position is read once, the rows of all taps fill the tiles, and the columns,
 * of which so many images are made at a time as stay in the cache, cost a write and a read of rows·taps floats for channels·rows·taps
 * multiply-adds.
 *
 * Order of additions: the channels in the order of a product with one tap, then the taps of the element's phase, row-major, and the
 * bias. The shape of one image decides whether this way serves. */
#include "cuda/conv/fold.cuh"
#include "cuda/conv/wgmma.cuh"
#include "cuda/device/unroll.cuh"

namespace {

constexpr int THREADS = 256, AXES = 3;
constexpr int64_t EXTENT_MOST = INT64_C(1) << 28;
/* With more rows the tiles of a product for each phase are filled; with fewer channels this product has no tensor cores; with less
 * work of an image (multiply-adds) the launches take as long. */
constexpr int64_t ROWS_MOST = 16, CHANNELS_LEAST = 64, WORK_LEAST = INT64_C(1) << 22;
/* What a microsecond makes on an H200: multiply-adds of tiles of TILE_ROWS and columns that are written and read, somewhat fewer than
 * its convolutions of one tap and its copies reach; beside them, as measured, multiply-adds of conv/direct.cu, and elements that
 * conv/mma_product.cu gathers for a tile of 16 rows or, about, 32. */
constexpr int64_t TILE_ROWS = 64, TILE_ROWS_FEW = 32;
constexpr double TENSOR = 30e6, COLUMNS = 0.375e6, DIRECT = 8.5e6, GATHERED = 0.8e6;
constexpr double GAIN_LEAST = 1.5;                    /* times faster, to be worth three launches */
constexpr int64_t TAPS_MOST = 8;                      /* of a phase, along the last axis */
constexpr int64_t COLUMNS_AT_ONCE = INT64_C(1) << 23; /* floats: 32 MiB, which the cache holds beside what is read */
constexpr int64_t COLUMNS_MOST = INT64_C(1) << 26;    /* of an image */

struct Job {
    const float *columns, *w, *bias;
    float *large;
    uint32_t elements, channels, rows, taps, positions;
    tl_fastdiv row, in0, in1, in2, stride[AXES];
    int32_t out[AXES], kernel[AXES], padding[AXES], dilation[AXES];
};

/* What the taps of an element read along one axis, of which the stride or the dilation is 1: kernel offset k + t·stride at position
 * j - t·dilation. */
struct Axis {
    int32_t k, j, stride, dilation, kernel, out;

    __device__ __forceinline__ Axis(const Job &job, int d, uint32_t i)
        : stride((int32_t)job.stride[d].divisor), dilation(job.dilation[d]), kernel(job.kernel[d]), out(job.out[d])
    {
        uint32_t rest;
        j = (int32_t)job.stride[d].divmod(i + (uint32_t)job.padding[d], &rest);
        k = (int32_t)rest;
    }
    __device__ __forceinline__ bool has(int t) const { return k + t * stride < kernel; }
    __device__ __forceinline__ bool inside(int t) const { return (uint32_t)(j - t * dilation) < (uint32_t)out; }
    /* The nearest position. */
    __device__ __forceinline__ uint32_t nearest(int t) const
    {
        return (uint32_t)min(max(j - t * dilation, 0), out - 1);
    }
};

/* What a tap gives from outside: zeros take part, so NaN where one of its weights is not finite. */
__device__ __noinline__ float outside_sum(const Job &job, uint32_t column)
{
    float sum = 0.0f;
    for (uint32_t c = 0; c < job.channels; c++)
        sum = fmaf(job.w[(uint64_t)c * job.rows * job.taps + column], 0.0f, sum);
    return sum;
}

/* T: taps of a phase along the last axis, at most; what they and one more line of taps read is on its way together. */
template <int T> __global__ void __launch_bounds__(THREADS) fold_kernel(const __grid_constant__ Job job)
{
    tl_wait_for_earlier();
    const uint32_t index = blockIdx.x * THREADS + threadIdx.x;
    if (index >= job.elements) return;
    uint32_t i0, i1, i2, row;
    const uint32_t plane = job.in0.divmod(job.in1.divmod(job.in2.divmod(index, &i2), &i1), &i0);
    job.row.divmod(plane, &row);
    const Axis z(job, 0, i0), y(job, 1, i1), x(job, 2, i2);
    const float *const columns = job.columns + (uint64_t)plane * job.taps * job.positions;
    constexpr int LINES = T == 1 ? 1 : 2;
    float sum = 0.0f;
#pragma unroll 1
    for (int t0 = 0; z.has(t0); t0++)
#pragma unroll 1
        for (int first = 0; y.has(first); first += LINES) {
            float held[LINES][T];
            uint32_t tap[LINES];
            TL_UNROLL_FOR (int u = 0; u < LINES; u++) {
                const int t1 = first + u;
                const int32_t line = (z.k + t0 * z.stride) * y.kernel + y.k + t1 * y.stride;
                const uint32_t at = (z.nearest(t0) * (uint32_t)y.out + y.nearest(t1)) * (uint32_t)x.out;
                tap[u] = (uint32_t)(line * x.kernel + x.k);
                TL_UNROLL_FOR (int t2 = 0; t2 < T; t2++) {
                    const uint32_t column = (tap[u] + (uint32_t)(t2 * x.stride)) * job.positions;
                    held[u][t2] = y.has(t1) && x.has(t2) ? columns[column + at + x.nearest(t2)] : 0.0f;
                }
            }
            TL_UNROLL_FOR (int u = 0; u < LINES; u++)
                TL_UNROLL_FOR (int t2 = 0; t2 < T; t2++) {
                    /* A weight that is not finite leaves no position of its column finite, the nearest neither. */
                    if (z.inside(t0) && y.inside(first + u) && x.inside(t2))
                        sum += held[u][t2];
                    else if (!isfinite(held[u][t2]))
                        sum += outside_sum(job, row * job.taps + tap[u] + (uint32_t)(t2 * x.stride));
                }
        }
    job.large[index] = job.bias ? sum + job.bias[row] : sum;
}

/* Taps of a phase along the last axis, at most. */
int64_t last_taps(const tl_conv_shape &s) { return tl_ceil_div(s.kernel[s.rank - 1], s.stride[s.rank - 1]); }

/* Microseconds of an image by this way, and by the one that would serve without it. */
double time_of(const tl_conv_shape &s, int64_t channels, int64_t rows)
{
    const int64_t columns = rows * s.taps, padded = tl_ceil_div(columns, TILE_ROWS) * TILE_ROWS;
    const double product = columns <= TILE_ROWS_FEW ? (double)channels / GATHERED
                                                    : (double)(channels * padded) / TENSOR;
    return (double)s.out_size * (product + (double)columns / COLUMNS);
}

double time_without(const tl_conv_shape &s, int64_t channels, int64_t rows)
{
    return tl_cuda_conv_direct_serves(s, true, 1, channels, rows)
               ? tl_cuda_conv_direct_work(s, channels, rows) / DIRECT
               : (double)s.out_size * (double)(channels * s.taps) / GATHERED;
}

/* The product that makes the columns. */
tl_conv_shape columns_shape(const tl_conv_shape &s)
{
    tl_conv_shape c = {};
    c.rank = 1;
    c.in[0] = c.out[0] = c.in_size = c.out_size = s.out_size;
    c.kernel[0] = c.stride[0] = c.dilation[0] = c.taps = 1;
    return c;
}

} // namespace

bool tl_cuda_conv_fold_serves(const tl_conv_shape &s, int64_t batch, int64_t channels, int64_t rows)
{
    if (batch == 0 || rows == 0 || rows > ROWS_MOST || channels < CHANNELS_LEAST || s.rank > AXES) return false;
    bool steps = false;
    for (int d = 0; d < s.rank; d++) {
        if (s.in[d] >= EXTENT_MOST || s.out[d] >= EXTENT_MOST || s.padding[d] >= EXTENT_MOST ||
            s.stride[d] > s.kernel[d] || s.kernel[d] >= EXTENT_MOST || s.dilation[d] >= EXTENT_MOST / s.kernel[d] ||
            (s.stride[d] > 1 && s.dilation[d] > 1))
            return false;
        steps |= s.stride[d] > 1 || s.dilation[d] > 1;
    }
    const int64_t columns = rows * s.taps;
    return steps && last_taps(s) <= TAPS_MOST && s.taps < COLUMNS_MOST && columns <= COLUMNS_MOST / s.out_size &&
           rows * s.in_size < INT64_C(1) << 31 &&
           (double)(channels * columns) * (double)s.out_size >= (double)WORK_LEAST &&
           GAIN_LEAST * time_of(s, channels, rows) <= time_without(s, channels, rows);
}

int32_t tl_cuda_conv_fold(tl_context *ctx, const tl_conv_shape &s, int64_t batch, int64_t channels, int64_t rows,
                          const float *small, const float *w, const float *bias, float *large)
{
    const tl_conv_shape shape = columns_shape(s);
    const int64_t columns = rows * s.taps, elements = rows * s.in_size;
    /* The batch in equal parts that have no more columns, nor elements than an index reaches. */
    int64_t parts = tl_ceil_div(batch * columns * s.out_size, COLUMNS_AT_ONCE);
    const int64_t least = tl_ceil_div(batch * elements, INT64_C(1) << 31);
    parts = parts < least ? least : parts;
    const int64_t images = tl_ceil_div(batch, parts < batch ? parts : batch);
    tl_scratch<float> held(ctx);
    TL_TRY(held.allocate(images * columns * s.out_size));
    Job job = {};
    job.columns = held, job.w = w, job.bias = bias;
    job.channels = (uint32_t)channels, job.rows = (uint32_t)rows, job.taps = (uint32_t)s.taps;
    job.positions = (uint32_t)s.out_size;
    job.row = tl_fastdiv((uint64_t)rows);
    int64_t in[AXES] = {1, 1, 1};
    for (int d = 0; d < AXES; d++) {
        const int from = d - (AXES - s.rank);
        if (from >= 0) in[d] = s.in[from];
        job.out[d] = from < 0 ? 1 : (int32_t)s.out[from];
        job.kernel[d] = from < 0 ? 1 : (int32_t)s.kernel[from];
        job.padding[d] = from < 0 ? 0 : (int32_t)s.padding[from];
        job.dilation[d] = from < 0 ? 1 : (int32_t)s.dilation[from];
        job.stride[d] = tl_fastdiv(from < 0 ? 1 : (uint64_t)s.stride[from]);
    }
    job.in0 = tl_fastdiv((uint64_t)in[0]), job.in1 = tl_fastdiv((uint64_t)in[1]), job.in2 = tl_fastdiv((uint64_t)in[2]);
    const int64_t taps = last_taps(s);
    const auto kernel = taps == 1   ? fold_kernel<1>
                        : taps == 2 ? fold_kernel<2>
                        : taps <= 4 ? fold_kernel<4>
                                    : fold_kernel<8>;
    for (int64_t first = 0; first < batch; first += images) {
        const int64_t n = batch - first < images ? batch - first : images;
        const float *const from = small + first * channels * s.out_size;
        TL_TRY(tl_conv_wgmma_serves_product(ctx, shape, true, n, channels, columns)
                   ? tl_conv_wgmma_product(ctx, shape, true, n, channels, columns, from, w, nullptr, held)
                   : tl_cuda_conv_product(ctx, shape, true, n, channels, columns, from, w, nullptr, held));
        job.large = large + first * elements;
        job.elements = (uint32_t)(n * elements);
        TL_TRY(tl_launch_ahead(ctx, "conv_fold", kernel, tl_grid(job.elements, THREADS), THREADS, 0, job));
    }
    return TORCHLEAN_OK;
}
