/* Layer normalisation and the normalisation of channels on CUDA, and their gradients along rows.
 *
 * A row of up to 16384 elements is read once and stays on chip (device/row_tile.cuh) while its mean, its variance around the
 * mean and, for the gradient, the means of a and a·xhat are taken: 8 bytes of traffic per element forward, 12
 * backward. Longer rows are read once per pass (reduce/long_rows.cuh). A channel is a row whose gamma and beta are one number each.
 * The gradients of layer_norm's gamma and beta, sums down the columns, are in norm/columns.cu. */
#include "cuda/device/vector.cuh"
#include "cuda/norm/norm.cuh"

namespace {

/* ---- forward ----------------------------------------------------------------------------------------------------- */

template <class Row, tl_norm_kind KIND>
__global__ void __launch_bounds__(Row::THREADS, Row::BLOCKS)
    norm_rows(const float *__restrict__ x, const float *__restrict__ gamma, const float *__restrict__ beta,
              int64_t rows, int64_t cols, float eps, float *__restrict__ out, tl_kept_statistics kept)
{
    const Row r(rows, cols);
    tl_held<Row, Row::ONE_SHARED> v;
    v.load(r, x + r.row * cols);
    v.wait();
    float mean, istd;
    tl_row_statistics<KIND>(r, v, cols, eps, &mean, &istd);
    const bool live = r.n > 0;
    const float gamma_row = KIND == TL_NORM_CHANNEL && live ? gamma[r.row] : 0.0f,
                beta_row = KIND == TL_NORM_CHANNEL && live ? beta[r.row] : -0.0f;
#pragma unroll(decltype(v)::UNROLL)
    for (int k = 0; k < decltype(v)::pieces(r); k++) {
        float w[Row::W], a[Row::W], b[Row::W];
        v.get(k, w);
        if constexpr (KIND != TL_NORM_CHANNEL) {
            r.piece(gamma, k, a);
            if constexpr (KIND == TL_NORM_LAYER) r.piece(beta, k, b);
        }
        TL_UNROLL_FOR (int j = 0; j < Row::W; j++)
            w[j] =
                fmaf(w[j] * istd, KIND == TL_NORM_CHANNEL ? gamma_row : a[j], KIND == TL_NORM_LAYER ? b[j] : beta_row);
        r.store(out + r.row * cols, k, w);
    }
    kept.keep<KIND>(live && r.leads(), r.row, mean, istd);
}

struct square_term {
    const float *x, *means;
    float mean;
    __device__ void row(int64_t r) { mean = means[r]; }
    __device__ float at(int64_t i, int64_t) const { return tl_square_of_difference(x[i], mean); }
};

/* squares becomes 1/deviation. */
__global__ void invert(float *__restrict__ squares, int64_t rows, int64_t cols, float eps)
{
    const int64_t r = (int64_t)blockIdx.x * 256 + threadIdx.x;
    if (r < rows) squares[r] = tl_inverse_deviation(squares[r], cols, eps);
}

/* The statistics of long rows. */
template <tl_norm_kind KIND>
int32_t long_row_statistics(tl_context *ctx, const char *name, const float *x, int64_t rows, int64_t cols, float eps,
                            float *means, float *istds)
{
    TL_TRY(KIND == TL_NORM_RMS ? tl_cuda_fill(tl_context_cuda(ctx), means, 0.0f, rows)
                               : tl_cuda_row_sums(ctx, x, rows, cols, cols, means));
    TL_TRY(tl_long_row_sums(ctx, name, square_term{x, means, 0.0f}, rows, cols, 0, istds));
    return tl_launch(ctx, name, invert, tl_grid(rows, 256), 256, istds, rows, cols, eps);
}

template <tl_norm_kind KIND> struct norm_element {
    const float *x, *means, *istds, *gamma, *beta;
    float mean, istd;
    int64_t r;
    __device__ void row(int64_t row) { r = row, mean = means[row], istd = istds[row]; }
    __device__ float at(int64_t i, int64_t c) const
    {
        const int64_t which = KIND == TL_NORM_CHANNEL ? r : c;
        return fmaf(tl_normalised(x[i], mean, istd), gamma[which], KIND == TL_NORM_RMS ? -0.0f : beta[which]);
    }
};

template <tl_norm_kind KIND>
int32_t forward(tl_context *ctx, const char *name, const float *x, const float *gamma, const float *beta, int64_t rows,
                int64_t cols, float eps, float *out, tl_kept_statistics kept = {})
{
    if (tl_select_row(cols) == TL_ROW_TILE)
        return tl_pick_row(cols, [&](auto row) {
            using Row = typename decltype(row)::type;
            return tl_launch_rows<Row>(ctx, name, norm_rows<Row, KIND>, rows,
                                       (tl_row_bytes<Row, Row::ONE_SHARED>(cols)), x, gamma, beta, rows, cols, eps, out,
                                       kept);
        });
    tl_scratch<float> own(ctx);
    TL_TRY(own.allocate(2 * rows));
    float *const means = kept.means ? kept.means : own, *const istds = kept.istds ? kept.istds : own + rows;
    TL_TRY(long_row_statistics<KIND>(ctx, name, x, rows, cols, eps, means, istds));
    const norm_element<KIND> element = {x, means, istds, gamma, beta, 0.0f, 0.0f, 0};
    return tl_long_row_map(ctx, name, element, rows, cols, out);
}

/* ---- gradients along rows ---------------------------------------------------------------------------------------- */

/* What a gradient reads and writes; NULL where not wanted. sums_a, sums_ax: a channel's gradients of beta and gamma;
 * means, istds: statistics for the columns. */
struct norm_grad {
    const float *x, *gamma, *g;
    int64_t rows, cols;
    float eps;
    float *gx, *sums_a, *sums_ax, *means, *istds;
    tl_given_statistics given;
};

template <class Row, tl_norm_kind KIND, bool GIVEN>
__global__ void __launch_bounds__(Row::THREADS, Row::BLOCKS_OF_TWO) norm_rows_bwd(norm_grad p)
{
    const Row r(p.rows, p.cols);
    tl_held<Row, Row::SECOND_SHARED, true> second;
    tl_held<Row, false> v;
    second.load(r, p.g + r.row * p.cols);
    v.load(r, p.x + r.row * p.cols);
    float mean, istd;
    tl_row_statistics<KIND, GIVEN>(r, v, p.cols, p.eps, p.given, r.row, &mean, &istd);
    second.wait();
    float sum_a, sum_ax;
    tl_row_gradient_sums<KIND>(r, v, second, p.gamma, istd, &sum_a, &sum_ax);
    if (r.n > 0 && r.leads()) {
        if (p.sums_a) p.sums_a[r.row] = sum_a;
        if (p.sums_ax) p.sums_ax[r.row] = sum_ax;
        if (p.means) {
            p.means[r.row] = mean;
            p.istds[r.row] = istd;
        }
    }
    if (!p.gx) return;
    const float factor = KIND == TL_NORM_CHANNEL && r.n > 0 ? istd * p.gamma[r.row] : istd;
    tl_row_gradient<KIND>(r, v, second, p.gamma, p.cols, sum_a, sum_ax, factor,
                          [&](int k, const float (&a)[Row::W]) { r.store(p.gx + r.row * p.cols, k, a); });
}

/* Terms of long rows: a, or a·xhat. */
template <tl_norm_kind KIND, bool TIMES_XHAT> struct norm_term {
    const float *x, *g, *gamma, *means, *istds;
    float mean, istd;
    __device__ void row(int64_t r) { mean = means[r], istd = istds[r]; }
    __device__ float at(int64_t i, int64_t c) const
    {
        const float a = KIND == TL_NORM_CHANNEL ? g[i] : g[i] * gamma[c];
        return TIMES_XHAT ? a * tl_normalised(x[i], mean, istd) : a;
    }
};

template <tl_norm_kind KIND> struct norm_grad_element {
    const float *x, *g, *gamma, *means, *istds, *sums_a, *sums_ax;
    int64_t cols;
    float mean, istd, mean_a, mean_ax, factor;
    __device__ void row(int64_t r)
    {
        mean = means[r];
        istd = istds[r];
        mean_a = KIND == TL_NORM_RMS ? 0.0f : tl_per_count(sums_a[r], cols);
        mean_ax = tl_per_count(sums_ax[r], cols);
        factor = KIND == TL_NORM_CHANNEL ? istd * gamma[r] : istd;
    }
    __device__ float at(int64_t i, int64_t c) const
    {
        return tl_norm_grad(KIND == TL_NORM_CHANNEL ? g[i] : g[i] * gamma[c], tl_normalised(x[i], mean, istd), mean_a,
                            mean_ax, factor);
    }
};

template <tl_norm_kind KIND> int32_t long_rows_bwd(tl_context *ctx, const char *name, norm_grad p)
{
    tl_scratch<float> own(ctx);
    TL_TRY(own.allocate(4 * p.rows));
    float *const own_means = p.means ? p.means : (float *)own, *const own_istds = p.istds ? p.istds : own + p.rows;
    const float *means = own_means, *istds = own_istds;
    float *sums_a = p.sums_a ? p.sums_a : own + 2 * p.rows, *sums_ax = p.sums_ax ? p.sums_ax : own + 3 * p.rows;
    if (p.given.istds) {
        istds = p.given.istds;
        if (p.given.means)
            means = p.given.means;
        else
            TL_TRY(tl_cuda_fill(tl_context_cuda(ctx), own_means, 0.0f, p.rows));
    } else {
        TL_TRY(long_row_statistics<KIND>(ctx, name, p.x, p.rows, p.cols, p.eps, own_means, own_istds));
    }
    if (KIND != TL_NORM_RMS && (p.gx || p.sums_a))
        TL_TRY(tl_long_row_sums(ctx, name, norm_term<KIND, false>{p.x, p.g, p.gamma, means, istds, 0.0f, 0.0f}, p.rows,
                                p.cols, 0, sums_a));
    if (p.gx || p.sums_ax)
        TL_TRY(tl_long_row_sums(ctx, name, norm_term<KIND, true>{p.x, p.g, p.gamma, means, istds, 0.0f, 0.0f}, p.rows,
                                p.cols, 0, sums_ax));
    const norm_grad_element<KIND> element = {p.x, p.g, p.gamma, means, istds, sums_a, sums_ax, p.cols};
    return p.gx ? tl_long_row_map(ctx, name, element, p.rows, p.cols, p.gx) : TORCHLEAN_OK;
}

template <tl_norm_kind KIND, bool GIVEN = false> int32_t rows_bwd(tl_context *ctx, const char *name, norm_grad p)
{
    if (tl_select_row(p.cols) != TL_ROW_TILE) return long_rows_bwd<KIND>(ctx, name, p);
    return tl_pick_row(p.cols, [&](auto row) {
        using Row = typename decltype(row)::type;
        return tl_launch_rows<Row>(ctx, name, norm_rows_bwd<Row, KIND, GIVEN>, p.rows,
                                   tl_whole_row_bytes<Row, Row::SECOND_SHARED>, p);
    });
}

} // namespace

int32_t tl_norm_rows_bwd(tl_context *ctx, tl_norm_kind kind, const float *x, const float *gamma, const float *g,
                         tl_given_statistics given, int64_t rows, int64_t cols, float eps, float *gx, float *means,
                         float *istds)
{
    const norm_grad p = {x, gamma, g, rows, cols, eps, gx, nullptr, nullptr, means, istds, given};
    if (given.istds)
        return kind == TL_NORM_RMS ? rows_bwd<TL_NORM_RMS, true>(ctx, "rms_norm_stats_bwd", p)
                                   : rows_bwd<TL_NORM_LAYER, true>(ctx, "layer_norm_stats_bwd", p);
    return kind == TL_NORM_RMS ? rows_bwd<TL_NORM_RMS>(ctx, "rms_norm_bwd", p)
                               : rows_bwd<TL_NORM_LAYER>(ctx, "layer_norm_bwd", p);
}

int32_t tl_norm_absent(tl_context *ctx, tl_scratch<float> &scratch, int64_t cols, const float **gamma,
                       const float **beta)
{
    if (*gamma && *beta) return TORCHLEAN_OK;
    const int64_t room = (cols + 3) / 4 * 4; /* both begin at a multiple of 16 bytes */
    TL_TRY(scratch.allocate(2 * room));
    if (!*gamma) {
        TL_TRY(tl_cuda_fill(tl_context_cuda(ctx), scratch, 1.0f, cols));
        *gamma = scratch;
    }
    if (!*beta) {
        TL_TRY(tl_cuda_fill(tl_context_cuda(ctx), scratch + room, -0.0f, cols));
        *beta = scratch + room;
    }
    return TORCHLEAN_OK;
}

/* ---- the operations ---------------------------------------------------------------------------------------------- */

int32_t tl_cuda_layer_norm(tl_context *ctx, const float *x, const float *gamma, const float *beta, int64_t rows,
                           int64_t cols, float eps, float *out)
{
    return forward<TL_NORM_LAYER>(ctx, "layer_norm", x, gamma, beta, rows, cols, eps, out);
}

int32_t tl_cuda_rms_norm(tl_context *ctx, const float *x, const float *gamma, int64_t rows, int64_t cols, float eps,
                         float *out)
{
    return forward<TL_NORM_RMS>(ctx, "rms_norm", x, gamma, nullptr, rows, cols, eps, out);
}

/* Statistics of rows without elements. */
static int32_t no_statistics(tl_context *ctx, tl_kept_statistics kept, int64_t rows)
{
    if (kept.means) TL_TRY(tl_cuda_fill(tl_context_cuda(ctx), kept.means, NAN, rows));
    return tl_cuda_fill(tl_context_cuda(ctx), kept.istds, NAN, rows);
}

int32_t tl_cuda_layer_norm_stats(tl_context *ctx, const float *x, const float *gamma, const float *beta, int64_t rows,
                                 int64_t cols, float eps, float *out, float *mean, float *istd)
{
    if (rows == 0) return TORCHLEAN_OK;
    if (cols == 0) return no_statistics(ctx, {mean, istd}, rows);
    tl_scratch<float> scratch(ctx);
    TL_TRY(tl_norm_absent(ctx, scratch, cols, &gamma, &beta));
    return forward<TL_NORM_LAYER>(ctx, "layer_norm_stats", x, gamma, beta, rows, cols, eps, out, {mean, istd});
}

int32_t tl_cuda_rms_norm_stats(tl_context *ctx, const float *x, const float *gamma, int64_t rows, int64_t cols,
                               float eps, float *out, float *istd)
{
    if (rows == 0) return TORCHLEAN_OK;
    if (cols == 0) return no_statistics(ctx, {nullptr, istd}, rows);
    const float *beta = gamma; /* which is not read */
    tl_scratch<float> scratch(ctx);
    TL_TRY(tl_norm_absent(ctx, scratch, cols, &gamma, &beta));
    return forward<TL_NORM_RMS>(ctx, "rms_norm_stats", x, gamma, nullptr, rows, cols, eps, out, {nullptr, istd});
}

int32_t tl_cuda_batchnorm_channel_first(tl_context *ctx, const float *x, const float *gamma, const float *beta,
                                        int64_t channels, int64_t height, int64_t width, float eps, float *out)
{
    return forward<TL_NORM_CHANNEL>(ctx, "batchnorm_channel_first", x, gamma, beta, channels, height * width, eps, out);
}

int32_t tl_cuda_batchnorm_channel_first_bwd(tl_context *ctx, const float *x, const float *gamma, const float *g,
                                            int64_t channels, int64_t height, int64_t width, float eps, float *gx,
                                            float *ggamma, float *gbeta)
{
    if (height * width == 0) {
        if (ggamma) TL_TRY(tl_cuda_fill(tl_context_cuda(ctx), ggamma, 0.0f, channels));
        return gbeta ? tl_cuda_fill(tl_context_cuda(ctx), gbeta, 0.0f, channels) : TORCHLEAN_OK;
    }
    return rows_bwd<TL_NORM_CHANNEL>(
        ctx, "batchnorm_channel_first_bwd",
        norm_grad{x, gamma, g, channels, height * width, eps, gx, gbeta, ggamma, nullptr, nullptr, {}});
}
