/* Direct convolution: a spread (conv/conv.cuh) onto few channels, as the data gradient of a first layer is, or onto a few more of
 * an image that is little work, or of so few channels that its sums are too short for tensor cores. It makes large (batch, rows,
 * *in) from small (batch, channels, *out) and w (channels, rows, *kernel). As a matrix product it would leave most rows of a
 * tensor core's tile or most of a chain empty and, with strides, have a product for each phase; here it is one launch of fused
 * multiply-adds. A correlation without strides is a spread whose kernel is turned around, with w (rows, channels, *kernel).
 *
 * A tile of 16 rows costs the same for one row as for 16: gathering and splitting the elements of an image takes longer than the
 * tensor cores take. Here the time grows with the rows, and an element is read once for all taps along the second axis.
 *
 * A shape has three axes, those of lower rank before its own with length 1. On the last two i + padding = j·S + r and k = t·S + r,
 * r < S: the large elements of one j read the same small elements j - t. A thread owns one i of the first axis, P neighbouring j
 * of the second, a j of the third, all S·S residues of these and up to R rows (blockIdx.y: which): per channel and kernel offsets
 * along the first and third axis it reads P + T - 1 small elements, and every weight, which shared memory broadcasts, meets P of
 * them. Neighbouring threads have neighbouring j of the third axis. With many channels `groups` warps of a block share the
 * channels of the same 32 items, so that small images have warps enough; P is small where items are few. With many channels of an
 * image of few items the channels are cut into parts too, each for thread blocks of its own.
 *
 * Kernel offsets that meet no small element from any large one, as most do beside an axis of length 1 or 2, are left out: they would
 * add zeros. Only a weight that is not finite makes NaN of a zero; a kept offset of the same residues stands for it.
 *
 * Order of additions: a group's channels, one after the other, and in a channel the kernel offsets of the first axis, of the third,
 * of the second, one fused multiply-add each; then the groups of a part in order, the parts in order (conv/mma_product.cu adds
 * them), and the bias. Groups and parts follow from the shape of one image. */
#include <algorithm>

#include "cuda/conv/direct.cuh"
#include "cuda/conv/pointwise.cuh"

using namespace tl_conv_direct;

namespace {

constexpr int64_t TAPS_MOST = 256; /* 4 KiB of them for each warp */
constexpr int64_t EXTENT_MOST = INT64_C(1) << 28;
constexpr int64_t ROWS_FEW = 8; /* served whatever the work: half of a tile of 16 rows would be empty */
constexpr int64_t ROWS_MOST = 16, WORK_MOST = INT64_C(1) << 24; /* and with more rows; multiply-adds of an image */
constexpr int64_t CHANNELS_FEW = 8, TERMS_FEW = 63; /* and with any rows; of an element, for a tensor core */
constexpr int64_t GROUP_LEAST = 4;                  /* channels of a group */
/* Thread blocks of one image below which its channels are cut into parts (two for each multiprocessor of an H100: a constant,
 * because parts belong to the result), channels of a group that a part has at least, and the fewest parts that save more time
 * than their addition takes. */
constexpr int64_t BLOCKS_WANTED = 264, PART_LEAST = 8, PARTS_LEAST = 3;
constexpr int64_t SCRATCH_MOST = INT64_C(1) << 26; /* floats of parts: 256 MiB, else some images at a time */

/* Items with P elements of the second axis each. */
int64_t items_of(const Job &job, const int64_t *count, int64_t batch, int64_t P)
{
    return batch * job.in[0] * tl_ceil_div(count[1], P) * count[2];
}

template <class F> int32_t launch(tl_context *ctx, Job job, const int64_t *count, int64_t batch)
{
    job.count1 = tl_fastdiv((uint64_t)tl_ceil_div(count[1], F::P));
    job.count2 = tl_fastdiv((uint64_t)count[2]);
    job.items = (uint32_t)items_of(job, count, batch, F::P);
    job.exact = job.kernel[0] == 1 && job.stride0.divisor == 1 && job.kernel[1] == F::T * F::S &&
                job.kernel[2] == F::T * F::S;
    const dim3 grid(tl_grid(job.items, THREADS / (int64_t)job.groups), (unsigned)tl_ceil_div(job.rows, F::R),
                    job.parts);
    const size_t bytes = sizeof(float4) * WARPS * job.room; /* less than any kernel may have */
    return tl_launch_dynamic(ctx, "conv_direct", direct_kernel<F>, grid, THREADS, bytes, job);
}

constexpr int few_positions(int64_t stride) { return stride == 1 ? 2 : 1; }
constexpr int many_positions(int64_t stride) { return stride == 1 ? 8 : 4; }

/* P is part of no order of additions: as many as leave the device full and few lines beyond the last. */
template <int S, int T, int R>
int32_t launch_items(tl_context *ctx, const Job &job, const int64_t *count, int64_t batch)
{
    constexpr int MANY = many_positions(S), FEW = few_positions(S);
    constexpr int64_t WARPS_LEAST = 16; /* of a multiprocessor */
    const int64_t warps = items_of(job, count, batch, MANY) / 32 * (int64_t)(job.groups * job.parts) *
                          tl_ceil_div(job.rows, R);
    const bool many = 2 * count[1] > MANY && warps >= WARPS_LEAST * tl_cuda_sms(ctx);
    return many ? launch<Form<S, T, R, MANY>>(ctx, job, count, batch)
                : launch<Form<S, T, R, FEW>>(ctx, job, count, batch);
}

/* Rows of a thread: those that leave the fewest empty. */
int64_t rows_at_once(int64_t rows)
{
    if (rows <= 2) return rows;
    return rows == 3 || tl_ceil_div(rows, 3) * 3 < tl_ceil_div(rows, 4) * 4 ? 3 : 4;
}

template <int S, int T> int32_t launch_rows(tl_context *ctx, const Job &job, const int64_t *count, int64_t batch)
{
    const int64_t rows = rows_at_once(job.rows);
    return rows == 1   ? launch_items<S, T, 1>(ctx, job, count, batch)
           : rows == 2 ? launch_items<S, T, 2>(ctx, job, count, batch)
           : rows == 3 ? launch_items<S, T, 3>(ctx, job, count, batch)
                       : launch_items<S, T, 4>(ctx, job, count, batch);
}

/* The first j along each axis, and how many. */
void place_items(Job &job, int64_t stride, int64_t *count)
{
    for (int d = 0; d < AXES; d++) {
        job.first[d] = (int32_t)(job.padding[d] / stride);
        count[d] = (job.in[d] - 1 + job.padding[d]) / stride - job.first[d] + 1;
    }
}

/* Leaves out what comes along an axis before the first kernel offset that meets a small element and after the last, but one of each
 * residue, and the padding with it. */
void leave_out_taps(Job &job, int64_t stride)
{
    job.kept = 1;
    for (int d = 0; d < AXES; d++) {
        const int64_t step = d == 0 ? (int64_t)job.stride0.divisor : stride, kernel = job.kernel[d];
        const int64_t least = step < kernel ? step : kernel, padding = job.padding[d];
        const int64_t first = std::max(padding - (job.out[d] - 1) * step, INT64_C(0));
        const int64_t from = std::min(first, kernel - least);
        const int64_t stop = std::min(std::max(padding + job.in[d], from + least), kernel);
        job.kept_from[d] = (uint32_t)from;
        job.kernel[d] = (int32_t)(stop - from), job.padding[d] = (int32_t)(padding - from);
        job.kept *= (uint32_t)job.kernel[d];
    }
}

/* Cuts the channels into parts and groups. */
void cut_channels(Job &job, int64_t image_items)
{
    const int64_t items = THREADS / (int64_t)job.groups, row_groups = tl_ceil_div(job.rows, rows_at_once(job.rows));
    int64_t parts = BLOCKS_WANTED / (tl_ceil_div(image_items, items) * row_groups);
    const int64_t most = job.groups == WARPS ? job.channels / (WARPS * PART_LEAST) : 1;
    if (parts > most) parts = most;
    if (parts < PARTS_LEAST) parts = 1;
    job.part_channels = (uint32_t)tl_ceil_div(job.channels, parts);
    job.parts = (uint32_t)tl_ceil_div(job.channels, (int64_t)job.part_channels);
    job.group_channels = (uint32_t)tl_ceil_div(job.part_channels, (int64_t)job.groups);
}

/* `job` of so many images; `s` is its spread. */
int32_t launch_any(tl_context *ctx, const tl_conv_shape &s, const Job &job, int64_t stride, const int64_t *count,
                   int64_t batch)
{
    if (tl_conv_is_pointwise(s))
        return tl_cuda_conv_pointwise(ctx, {job.small, job.w, job.bias, job.large, batch, job.channels, job.rows,
                                            s.in_size, job.w_channel, job.w_row, job.groups, job.group_channels,
                                            job.parts, job.part_channels});
    const int offsets = offsets_of((int)stride, job.kernel[1]);
    if (stride == 1)
        return offsets == 3   ? launch_rows<1, 3>(ctx, job, count, batch)
               : offsets == 5 ? launch_rows<1, 5>(ctx, job, count, batch)
                              : launch_rows<1, 7>(ctx, job, count, batch);
    return offsets == 2   ? launch_rows<2, 2>(ctx, job, count, batch)
           : offsets == 3 ? launch_rows<2, 3>(ctx, job, count, batch)
                          : launch_rows<2, 4>(ctx, job, count, batch);
}

/* The stride that the last two axes share, as far as one matters to them, else 1; 0 if they have different ones. */
int64_t common_stride(const tl_conv_shape &s)
{
    int64_t stride = 0;
    for (int d = s.rank > 2 ? s.rank - 2 : 0; d < s.rank; d++) {
        const bool free = s.in[d] == 1 && s.out[d] == 1 && s.kernel[d] == 1 && s.padding[d] == 0;
        if (!free && stride && s.stride[d] != stride) return 0;
        if (!free) stride = s.stride[d];
    }
    return stride ? stride : 1;
}

/* The spread that a correlation without strides is: it reads i + k - padding, which is i + (kernel - 1 - padding) - k' with k' =
 * kernel - 1 - k. */
tl_conv_shape turned(const tl_conv_shape &s)
{
    tl_conv_shape t = s;
    for (int d = 0; d < s.rank; d++)
        t.in[d] = s.out[d], t.out[d] = s.in[d], t.padding[d] = s.kernel[d] - 1 - s.padding[d];
    t.in_size = s.out_size, t.out_size = s.in_size;
    return t;
}

/* Whether the kernel runs on a spread at all. */
bool runs(const tl_conv_shape &s, int64_t batch, int64_t rows)
{
    if (s.rank > AXES || s.taps > TAPS_MOST || rows > INT16_MAX) return false;
    for (int d = 0; d < s.rank; d++)
        if (s.in[d] >= EXTENT_MOST || s.padding[d] < 0 || s.padding[d] >= EXTENT_MOST || s.out[d] >= EXTENT_MOST ||
            s.stride[d] >= EXTENT_MOST || s.dilation[d] > 1)
            return false;
    const int64_t stride = common_stride(s), second = s.rank >= 2 ? s.kernel[s.rank - 2] : 1;
    return (stride == 1 || stride == 2) && second <= (stride == 1 ? 7 : 8) && batch * s.in_size < INT64_C(1) << 31;
}

/* With one tap along the second or the third axis most of what a thread reads there would meet no weight. */
bool has_wide_kernel(const tl_conv_shape &s)
{
    return s.rank >= 2 && s.kernel[s.rank - 2] >= 2 && s.kernel[s.rank - 1] >= 2;
}

/* Few channels, and terms of an element, of one phase. */
bool few_terms(const tl_conv_shape &s, int64_t channels)
{
    int64_t terms = channels;
    for (int d = 0; d < s.rank; d++)
        terms *= tl_ceil_div(s.kernel[d], s.stride[d]);
    return channels <= CHANNELS_FEW && terms <= TERMS_FEW;
}

} // namespace

bool tl_cuda_conv_direct_serves(const tl_conv_shape &s, bool spread, int64_t batch, int64_t channels, int64_t rows)
{
    if (batch == 0 || channels == 0 || rows == 0) return false;
    /* as the order of additions is another than that of conv/mma_product.cu, the batch has no say */
    if (spread) {
        const double work = (double)s.out_size * (double)(channels * rows * s.taps);
        return runs(s, batch, rows) &&
               (rows <= ROWS_FEW || (rows <= ROWS_MOST && work <= (double)WORK_MOST) || few_terms(s, channels));
    }
    for (int d = 0; d < s.rank; d++)
        if (s.stride[d] > 1) return false;
    return (few_terms(s, channels) || (rows <= ROWS_FEW && has_wide_kernel(s))) && runs(turned(s), batch, rows);
}

double tl_cuda_conv_direct_work(const tl_conv_shape &s, int64_t channels, int64_t rows)
{
    const int64_t stride = common_stride(s);
    const int64_t at_once = rows == 2 ? 3 : rows_at_once(rows); /* as what is chosen by it belongs to results */
    double work = (double)(channels * tl_ceil_div(rows, at_once) * at_once);
    for (int d = 0; d < s.rank; d++) {
        const int axis = AXES - s.rank + d;
        if (axis == 0) {
            work *= (double)(s.in[d] * tl_ceil_div(s.kernel[d], s.stride[d]));
            continue;
        }
        int64_t count = (s.in[d] - 1 + s.padding[d]) / stride - s.padding[d] / stride + 1;
        const int64_t many = many_positions(stride);
        if (axis == 1 && 2 * count > many) count = tl_ceil_div(count, many) * many;
        work *= (double)(count * s.kernel[d]);
    }
    return work;
}

int32_t tl_cuda_conv_direct(tl_context *ctx, const tl_conv_shape &shape, bool spread, int64_t batch, int64_t channels,
                            int64_t rows, const float *small, const float *w, const float *bias, float *large)
{
    const tl_conv_shape s = spread ? shape : turned(shape);
    Job job = {};
    job.small = small, job.w = w, job.bias = bias, job.large = large;
    job.channels = (uint32_t)channels, job.rows = (uint32_t)rows, job.taps = tl_fastdiv((uint64_t)s.taps);
    job.w_channel = (uint64_t)(spread ? rows * s.taps : s.taps);
    job.w_row = (uint64_t)(spread ? s.taps : channels * s.taps);
    job.w_first = spread ? 0 : s.taps - 1, job.w_step = spread ? 1 : -1;
    job.small_size = (uint32_t)s.out_size, job.large_size = (uint32_t)s.in_size;
    job.groups = 1;
    while (job.groups < WARPS && channels >= 2 * GROUP_LEAST * job.groups)
        job.groups *= 2;
    const int64_t stride = common_stride(s);
    int64_t count[AXES];
    for (int d = 0; d < AXES; d++) {
        const int from = d - (AXES - s.rank);
        job.in[d] = from < 0 ? 1 : (int32_t)s.in[from];
        job.out[d] = from < 0 ? 1 : (int32_t)s.out[from];
        job.kernel[d] = from < 0 ? 1 : (int32_t)s.kernel[from];
        job.padding[d] = from < 0 ? 0 : (int32_t)s.padding[from];
    }
    job.stride0 = tl_fastdiv(s.rank == AXES ? (uint64_t)s.stride[0] : 1);
    job.in0 = tl_fastdiv((uint64_t)job.in[0]);
    job.taps1 = tl_fastdiv((uint64_t)job.kernel[1]), job.taps2 = tl_fastdiv((uint64_t)job.kernel[2]);
    place_items(job, stride, count);
    cut_channels(job, items_of(job, count, 1, few_positions(stride))); /* what is left out has no say in it */
    leave_out_taps(job, stride);
    place_items(job, stride, count);
    job.room = job.kept > ROOM ? job.kept : ROOM;
    job.chunk = job.room / job.kept;
    if (job.parts == 1) return launch_any(ctx, s, job, stride, count, batch);
    const int64_t size = job.large_size, most = SCRATCH_MOST / (rows * size * job.parts),
                  images = batch < most ? batch : most;
    tl_scratch<float> partial(ctx);
    TL_TRY(partial.allocate(images * rows * size * job.parts));
    job.large = partial, job.bias = nullptr;
    for (int64_t first = 0; first < batch; first += images) {
        const int64_t n = batch - first < images ? batch - first : images;
        job.small = small + first * channels * job.small_size;
        job.large_elements = (uint64_t)(n * rows * size);
        TL_TRY(launch_any(ctx, s, job, stride, count, n));
        TL_TRY(
            tl_cuda_conv_add(ctx, partial, job.parts, n * rows * size, bias, size, rows, large + first * rows * size));
    }
    return TORCHLEAN_OK;
}
