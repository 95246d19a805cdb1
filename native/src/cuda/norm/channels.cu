/* Affine maps of channels on CUDA, and their gradients.
 *
 * Forward 8 bytes of traffic per element. Backward a row is one channel of one sample, held on chip up to 16384 elements
 * (device/row_tile.cuh): with its sums of g and g·(x - center) from the same read, 12. Longer rows are read once per pass. The
 * rows' sums go down the batch by the column tree. */
#include "cuda/device/quads.cuh"
#include "cuda/norm/norm.cuh"

namespace {

struct affine {
    const float *x, *g, *center, *slope, *shift;
    int64_t rows, cols, channels;
    float *out;               /* or gx; NULL if it is not wanted */
    float *sums, *sums_times; /* per row of g, and of g (x - center); NULL if not wanted */
};

/* The n results. */
__global__ void __launch_bounds__(TL_QUADS_THREADS)
    affine_values(affine p, tl_fastdiv positions, tl_fastdiv channels, int64_t n)
{
    tl_write_quads(p.out, n, [&](int64_t first, float (&v)[4]) {
        if (first + 4 <= n) tl_load4(p.x + first, v);
        TL_UNROLL_FOR (int e = 0; e < 4; e++) {
            if (first + e >= n) break;
            uint32_t c;
            channels.divmod(positions.div((uint32_t)(first + e)), &c);
            v[e] = tl_channel_affine(first + 4 <= n ? v[e] : p.x[first + e], p.center[c], p.slope[c], p.shift[c]);
        }
    });
}

template <class Row> __global__ void __launch_bounds__(Row::THREADS, Row::BLOCKS_OF_TWO) affine_rows_bwd(affine p)
{
    const Row r(p.rows, p.cols);
    tl_held<Row, Row::SECOND_SHARED, true> second;
    tl_held<Row, false> v;
    second.load(r, p.g + r.row * p.cols);
    v.load(r, p.x + r.row * p.cols);
    second.wait();
    const int64_t c = r.n > 0 ? r.row % p.channels : 0;
    const float center = p.center[c], slope = p.slope[c];
    typename Row::terms terms, terms_times;
    TL_UNROLL_FOR (int i = 0; i < Row::K; i++) {
        const int k = Row::order(i);
        float g[Row::W], x[Row::W];
        v.get(k, x);
        second.get(k, g);
        TL_UNROLL_FOR (int j = 0; j < Row::W; j++)
            x[j] = r.inside(k * Row::W + j) ? g[j] * (x[j] - center) : 0.0f;
        terms.add(i, g);
        terms_times.add(i, x);
        TL_UNROLL_FOR (int j = 0; j < Row::W; j++)
            g[j] *= slope;
        if (p.out) r.store(p.out + r.row * p.cols, k, g);
    }
    if (!p.sums && !p.sums_times) return;
    float sum, sum_times;
    Row::sum2(terms, terms_times, &sum, &sum_times);
    if (r.n > 0 && r.leads()) {
        if (p.sums) p.sums[r.row] = sum;
        if (p.sums_times) p.sums_times[r.row] = sum_times;
    }
}

/* ---- long rows --------------------------------------------------------------------------------------------------- */

/* A term of the sums of g (x - center), or the gradient. */
template <bool TERM> struct affine_element {
    affine p;
    float center, slope;
    __device__ void row(int64_t r)
    {
        const int64_t c = r % p.channels;
        center = p.center[c];
        slope = p.slope[c];
    }
    __device__ float at(int64_t i, int64_t) const { return p.g[i] * (TERM ? p.x[i] - center : slope); }
};

int32_t rows_bwd(tl_context *ctx, const affine &p)
{
    const char *const name = "channel_affine_bwd";
    if (tl_select_row(p.cols) == TL_ROW_TILE)
        return tl_pick_row(p.cols, [&](auto row) {
            using Row = typename decltype(row)::type;
            return tl_launch_rows<Row>(ctx, name, affine_rows_bwd<Row>, p.rows,
                                       tl_whole_row_bytes<Row, Row::SECOND_SHARED>, p);
        });
    if (p.sums) TL_TRY(tl_cuda_row_sums(ctx, p.g, p.rows, p.cols, 0, p.sums));
    if (p.sums_times) TL_TRY(tl_long_row_sums(ctx, name, affine_element<true>{p}, p.rows, p.cols, 0, p.sums_times));
    return p.out ? tl_long_row_map(ctx, name, affine_element<false>{p}, p.rows, p.cols, p.out) : TORCHLEAN_OK;
}

/* gcenter = -slope gshift. */
__global__ void __launch_bounds__(256)
    center_grads(const float *__restrict__ slope, const float *__restrict__ gshift, int64_t n, float *__restrict__ out)
{
    const int64_t c = (int64_t)blockIdx.x * 256 + threadIdx.x;
    if (c < n) out[c] = -(slope[c] * gshift[c]);
}

} // namespace

int32_t tl_cuda_channel_affine(tl_context *ctx, const float *x, const float *center, const float *slope,
                               const float *shift, int64_t batch, int64_t channels, int64_t positions, float *out)
{
    const affine p = {x, nullptr, center, slope, shift, batch * channels, positions, channels, out, nullptr, nullptr};
    const int64_t n = batch * channels * positions;
    if (n == 0) return TORCHLEAN_OK;
    return tl_launch(ctx, "channel_affine", affine_values, tl_quads_grid(n), TL_QUADS_THREADS, p,
                     tl_fastdiv((uint64_t)positions), tl_fastdiv((uint64_t)channels), n);
}

int32_t tl_cuda_channel_affine_bwd(tl_context *ctx, const float *x, const float *center, const float *slope,
                                   const float *g, int64_t batch, int64_t channels, int64_t positions, float *gx,
                                   float *gcenter, float *gslope, float *gshift)
{
    if (channels == 0) return TORCHLEAN_OK;
    const int64_t samples = positions > 0 ? batch : 0, rows = samples * channels;
    tl_scratch<float> scratch(ctx);
    TL_TRY(scratch.allocate(2 * rows + channels));
    float *const sums = scratch, *const sums_times = sums + rows;
    float *const total = gshift ? gshift : sums_times + rows;
    const bool shifts = gcenter || gshift;
    affine p = {x, g, center, slope, nullptr, rows, positions, channels, gx};
    p.sums = shifts ? sums : nullptr, p.sums_times = gslope ? sums_times : nullptr;
    if (rows > 0) TL_TRY(rows_bwd(ctx, p));
    if (shifts) TL_TRY(tl_cuda_column_sums(ctx, sums, 1, samples, channels, 0, total));
    if (gslope) TL_TRY(tl_cuda_column_sums(ctx, sums_times, 1, samples, channels, 0, gslope));
    if (!gcenter) return TORCHLEAN_OK;
    return tl_launch(ctx, "channel_affine_bwd", center_grads, tl_grid(channels, 256), 256, slope, total, channels,
                     gcenter);
}

/* ---- running statistics ---------------------------------------------------------------------------------------------------- */

namespace {

struct running_job {
    const float *mean, *var, *running_mean, *running_var;
    uint32_t n;
    tl_running r;
    float *mean_out, *var_out;
};

/* A thread owns a channel. */
__global__ void __launch_bounds__(256) running_kernel(const running_job p)
{
    tl_wait_for_earlier();
    const uint32_t i = blockIdx.x * 256 + threadIdx.x;
    if (i >= p.n) return;
    const float mean = tl_running_value(p.r.kept, p.running_mean[i], p.r.mean, p.mean[i]);
    const float var = tl_running_value(p.r.kept, p.running_var[i], p.r.var, p.var[i]);
    p.mean_out[i] = mean, p.var_out[i] = var;
}

} // namespace

int32_t tl_cuda_batch_norm_running(tl_context *ctx, const float *mean, const float *var, const float *running_mean,
                                   const float *running_var, int64_t n, float momentum, float correction,
                                   float *mean_out, float *var_out)
{
    if (n == 0) return TORCHLEAN_OK;
    const running_job p = {
        mean, var, running_mean, running_var, (uint32_t)n, tl_running_of(momentum, correction), mean_out, var_out};
    return tl_launch_ahead(ctx, "batch_norm_running", running_kernel, tl_grid(n, 256), 256, 0, p);
}
