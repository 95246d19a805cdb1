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
 * Order of additions: a group's channels, one after the other, and in a channel the kernel offsets of the first axis, of the third,
 * of the second, one fused multiply-add each; then the groups of a part in order, the parts in order (conv/mma_product.cu adds
 * them), and the bias. Groups and parts follow from the shape of one image. */
#include "cuda/conv/pointwise.cuh"

namespace {

constexpr int AXES = 3, WARPS = 8, THREADS = 32 * WARPS;
constexpr int ROOM = 192;          /* weights (of R rows) that a warp has in shared memory, or all of a channel */
constexpr int AT_ONCE = 16;        /* sums of a thread that groups exchange at a time */
constexpr int64_t TAPS_MOST = 256; /* 4 KiB of them for each warp */
constexpr int64_t EXTENT_MOST = INT64_C(1) << 28;
constexpr int64_t ROWS_FEW = 8; /* served whatever the work: half of a tile of 16 rows would be empty */
constexpr int64_t ROWS_MOST = 16, WORK_MOST = INT64_C(1) << 26; /* and with more rows; multiply-adds of an image */
constexpr int64_t CHANNELS_FEW = 8, TERMS_FEW = 63; /* and with any rows; of an element, for a tensor core */
constexpr int64_t GROUP_LEAST = 4;                  /* channels of a group */
/* Thread blocks of one image below which its channels are cut into parts (two for each multiprocessor of an H100: a constant,
 * because parts belong to the result), channels of a group that a part has at least, and the fewest parts that save more time
 * than their addition takes. */
constexpr int64_t BLOCKS_WANTED = 264, PART_LEAST = 8, PARTS_LEAST = 3;
constexpr int64_t SCRATCH_MOST = INT64_C(1) << 26; /* floats of parts: 256 MiB, else some images at a time */
static_assert(32 * AT_ONCE * sizeof(float) <= ROOM * sizeof(float4), "sums take the place of weights");

struct Job {
    const float *small, *w, *bias;
    float *large;
    uint32_t channels, rows, items, small_size, large_size;
    tl_fastdiv taps;
    uint64_t w_channel, w_row;       /* strides of w */
    int64_t w_first, w_step;         /* the element of kernel offset 0, and the way to the next */
    uint32_t groups, group_channels; /* of a part: a power of two; channels of each, the last may have fewer */
    uint32_t parts, part_channels;   /* the same; `large` then has a first axis of parts */
    uint64_t large_elements;         /* of a part */
    uint32_t room, chunk;            /* float4 of a warp in shared memory, and the channels whose weights they hold */
    int32_t in[AXES], out[AXES], kernel[AXES], padding[AXES], first[AXES]; /* least j */
    tl_fastdiv stride0, in0, count1, count2; /* of axis 0; groups of P along axis 1, j along axis 2 */
};

/* Offsets T along the second axis for its kernel, as forms have them, and the shortest kernel of a form. */
constexpr int offsets_of(int S, int kernel)
{
    return S == 1 ? (kernel <= 3 ? 3 : kernel <= 5 ? 5 : 7) : kernel <= 4 ? 2 : kernel <= 6 ? 3 : 4;
}

constexpr int least_kernel(int S, int T)
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
};

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
__device__ __forceinline__ void add_taps(const float4 *w, int kernel1, int kernel2, const float (&v)[F::V],
                                         float (&sum)[F::SUMS])
{
    constexpr int S = F::S, T = F::T, R = F::R;
    TL_UNROLL_FOR (int k1 = 0; k1 < T * S; k1++) {
        if (k1 >= F::LEAST && k1 >= kernel1) continue;
        TL_UNROLL_FOR (int r2 = 0; r2 < COUNT; r2++) {
            const float4 rows = w[k1 * kernel2 + r2];
            const float x[4] = {rows.x, rows.y, rows.z, rows.w};
            TL_UNROLL_FOR (int p = 0; p < F::P; p++)
                TL_UNROLL_FOR (int r = 0; r < R; r++) {
                    float &own = sum[((p * S + k1 % S) * S + r2) * R + r];
                    own = fmaf(x[r], v[p + T - 1 - k1 / S], own);
                }
        }
    }
}

/* sums += what channels begin .. end - 1 add. `weights`: the warp's room; all of a warp call this. */
template <class F>
__device__ __forceinline__ void add_channels(const Job &job, const Item<F> &item, uint32_t begin, uint32_t end,
                                             float4 *weights, float (&sum)[F::SUMS])
{
    constexpr int S = F::S, T = F::T, R = F::R, V = F::V, AHEAD = F::AHEAD, TOGETHER = F::TOGETHER;
    const uint32_t lane = threadIdx.x % 32, taps = job.taps.divisor;
    const int width = job.out[2], kernel1 = job.kernel[1], kernel2 = job.kernel[2];
    uint32_t present = 0; /* which of the V lines from j1 - (T - 1) on exist */
    TL_UNROLL_FOR (int m = 0; m < V; m++)
        if (item.real && (uint32_t)(item.j1 - (T - 1) + m) < (uint32_t)job.out[1]) present |= 1u << m;
    uint32_t from = item.source(begin);
#pragma unroll 1
    for (uint32_t channel0 = begin; channel0 < end; channel0 += job.chunk) {
        const uint32_t channels = min(end - channel0, job.chunk);
        __syncwarp();
        const uint32_t present_rows = min(job.rows - item.row0, (uint32_t)R);
        const float *const base = job.w + channel0 * job.w_channel + item.row0 * job.w_row + job.w_first;
#pragma unroll 1
        for (uint32_t i = lane; i < channels * taps; i += 32 * TOGETHER) {
            float x[TOGETHER][4] = {};
            TL_UNROLL_FOR (int u = 0; u < TOGETHER; u++) {
                uint32_t k;
                const uint32_t at = i + 32 * u, channel = job.taps.divmod(at, &k);
                const float *w = base + (channel * job.w_channel + (int64_t)k * job.w_step);
                TL_UNROLL_FOR (uint32_t r = 0; r < (uint32_t)R; r++)
                    if (at < channels * taps && r < present_rows) x[u][r] = __ldg(w + r * job.w_row);
            }
            TL_UNROLL_FOR (int u = 0; u < TOGETHER; u++)
                if (i + 32 * u < channels * taps) weights[i + 32 * u] = make_float4(x[u][0], x[u][1], x[u][2], x[u][3]);
        }
        __syncwarp();
#pragma unroll 1
        for (uint32_t channel = 0; channel < channels; channel++, from += job.small_size) {
            uint32_t plane = from;
            int z = item.j0;
#pragma unroll 1
            for (int k0 = item.r0; k0 < job.kernel[0]; k0 += (int)job.stride0.divisor) {
                const bool here = (uint32_t)z < (uint32_t)job.out[0];
                const float4 *of_plane = weights + channel * taps + (uint32_t)(k0 * kernel1 * kernel2);
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
                        const float4 *const w = of_plane + (t0 + a) * S;
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

/* WARPS·room float4 of dynamic shared memory: a weight's rows; then each warp's sums. blockIdx: items, rows, part. */
template <class F>
__global__ void __launch_bounds__(THREADS, F::RESIDENT) direct_kernel(const __grid_constant__ Job job)
{
    TL_DYNAMIC_SHARED(float4, shared);
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = warp & (job.groups - 1);
    const uint32_t leader = warp - group, sets = WARPS / job.groups, set = leader / job.groups;
    const Item<F> item(job, (blockIdx.x * sets + set) * 32 + lane);
    float sum[F::SUMS] = {};
    const uint32_t part = blockIdx.z * job.part_channels, end = min(part + job.part_channels, job.channels);
    const uint32_t begin = min(part + group * job.group_channels, end);
    add_channels<F>(job, item, begin, min(begin + job.group_channels, end), shared + warp * job.room, sum);
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
    if (rows == 1) return 1;
    return rows < 4 || tl_ceil_div(rows, 3) * 3 < tl_ceil_div(rows, 4) * 4 ? 3 : 4;
}

template <int S, int T> int32_t launch_rows(tl_context *ctx, const Job &job, const int64_t *count, int64_t batch)
{
    const int64_t rows = rows_at_once(job.rows);
    return rows == 1   ? launch_items<S, T, 1>(ctx, job, count, batch)
           : rows == 3 ? launch_items<S, T, 3>(ctx, job, count, batch)
                       : launch_items<S, T, 4>(ctx, job, count, batch);
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
    const int64_t stride = common_stride(s), at_once = rows_at_once(rows);
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
    job.room = job.taps.divisor > ROOM ? job.taps.divisor : ROOM;
    job.chunk = job.room / job.taps.divisor;
    const int64_t stride = common_stride(s);
    int64_t count[AXES];
    for (int d = 0; d < AXES; d++) {
        const int from = d - (AXES - s.rank);
        job.in[d] = from < 0 ? 1 : (int32_t)s.in[from];
        job.out[d] = from < 0 ? 1 : (int32_t)s.out[from];
        job.kernel[d] = from < 0 ? 1 : (int32_t)s.kernel[from];
        job.padding[d] = from < 0 ? 0 : (int32_t)s.padding[from];
        job.first[d] = (int32_t)(job.padding[d] / stride);
        count[d] = (job.in[d] - 1 + job.padding[d]) / stride - job.first[d] + 1;
    }
    job.stride0 = tl_fastdiv(s.rank == AXES ? (uint64_t)s.stride[0] : 1);
    job.in0 = tl_fastdiv((uint64_t)job.in[0]);
    cut_channels(job, items_of(job, count, 1, few_positions(stride)));
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
