/* Normalisation of channels over a batch and of groups of channels on CUDA, with the statistics as results, and the gradients from
 * them.
 *
 * A row's elements lie in runs (tl_norm_runs); its threads own elements of it as device/row_tile.cuh says, and where an element lies
 * takes one multiplication more. A row of one leaf (16384 elements) stays on chip and takes one launch: 8 bytes of traffic per
 * element forward, 12 backward. Of longer rows a block has one leaf. A first launch leaves each leaf's sums, a second reads the
 * leaf again, joins the sums of its row while that is on its way, and writes: 12 bytes forward, 20 backward. It takes the leaves
 * from the last to the first, of which the last are in L2. The gradients of a group norm's gamma and beta, whose sums run
 * across the groups' rows, are those of a channel's row: 8 bytes more. */
#include "cuda/norm/norm.cuh"

namespace {

enum step { WHOLE_ROWS, SUMS_OF_LEAVES, RESULTS };

/* The runs as kernels divide by them: no more than one ends in a leaf where they are longer, however long. */
struct runs {
    static constexpr uint32_t LONG_RUN = 2 * TL_SUM_LEAF;
    tl_norm_runs at;
    tl_fastdiv run;
    int64_t leaves; /* of a row */
    explicit runs(const tl_norm_runs &of)
        : at(of), run((uint64_t)(of.run < 1             ? 1
                                 : of.run < TL_SUM_LEAF ? of.run
                                                        : LONG_RUN)),
          leaves(tl_ceil_div(of.cols, TL_SUM_LEAF))
    {}
};

/* Where a leaf of a row lies. */
struct leaf_place {
    int64_t base, q; /* of its first element, and the run that this is in */
    uint32_t from;   /* its place in that run, or as far from the end of it as a long run's */
    __device__ __forceinline__ leaf_place(const runs &p, int64_t row, int64_t leaf)
    {
        const int64_t first = leaf * TL_SUM_LEAF;
        q = leaf > 0 ? first / p.at.run : 0;
        const int64_t rest = first - q * p.at.run;
        base = row * p.at.row_stride + q * (p.at.run + p.at.skip) + rest;
        from = p.at.run < TL_SUM_LEAF ? (uint32_t)rest
                                      : runs::LONG_RUN - (uint32_t)min(p.at.run - rest, (int64_t)runs::LONG_RUN);
    }
    /* How many runs further element i of the leaf is. */
    __device__ __forceinline__ int64_t further(const runs &p, int i) const { return p.run.div(from + (uint32_t)i); }
    __device__ __forceinline__ int64_t at(const runs &p, int i) const { return base + i + further(p, i) * p.at.skip; }
};

/* The row, or the leaf of a longer one, that a thread has a part of: blocks count leaves, or they hold several rows. */
template <class Row> struct owned {
    int64_t row, leaf;
    Row r;
    leaf_place place;
    static __device__ __forceinline__ int64_t row_of(int64_t block, const runs &p)
    {
        return Row::ROWS > 1 ? block * Row::ROWS + threadIdx.x / Row::T : block / p.leaves;
    }
    static __device__ __forceinline__ int length(int64_t row, int64_t leaf, const runs &p)
    {
        return row < p.at.rows ? (int)min(p.at.cols - leaf * TL_SUM_LEAF, (int64_t)TL_SUM_LEAF) : 0;
    }
    __device__ __forceinline__ owned(const runs &p, int64_t block)
        : row(row_of(block, p)), leaf(Row::ROWS > 1 ? 0 : block - row * p.leaves),
          r(tl_given(), row, length(row, leaf, p)), place(p, row, leaf)
    {}
    __device__ __forceinline__ int64_t part(const runs &p) const { return row * p.leaves + leaf; }

    template <bool SHARED, bool WHOLE>
    __device__ __forceinline__ void load(const runs &p, const float *x, tl_held<Row, SHARED, WHOLE> &v) const
    {
        constexpr int STEP = Row::VECTOR ? 4 : 1;
        if constexpr (SHARED) {
#pragma unroll 4
            for (int i = 0; i < Row::W * v.pieces(r); i += STEP)
                tl_copy_async<4 * STEP>(Row::slot(v.shared(), i), r.inside(i) ? x + place.at(p, r.column(i)) : x,
                                        r.inside(i));
            tl_copy_commit();
        } else {
            TL_UNROLL_FOR (int i = 0; i < Row::N; i += STEP) {
                if constexpr (Row::VECTOR) {
                    const float4 q = r.inside(i) ? tl_load4(x + place.at(p, r.column(i)))
                                                 : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                    v.v[i] = q.x, v.v[i + 1] = q.y, v.v[i + 2] = q.z, v.v[i + 3] = q.w;
                } else {
                    v.v[i] = r.inside(i) ? x[place.at(p, r.column(i))] : 0.0f;
                }
            }
        }
    }

    __device__ __forceinline__ void store(const runs &p, float *out, int k, const float (&w)[Row::W]) const
    {
        if constexpr (Row::VECTOR) {
            if (r.inside(4 * k)) tl_store4(out + place.at(p, r.column(4 * k)), make_float4(w[0], w[1], w[2], w[3]));
        } else {
            TL_UNROLL_FOR (int j = 0; j < Row::W; j++)
                if (r.inside(k * Row::W + j)) out[place.at(p, r.column(k * Row::W + j))] = w[j];
        }
    }

    /* The number of gamma and beta of a piece's element j. */
    __device__ __forceinline__ int64_t channel(const runs &p, int k, int j) const
    {
        const int i = r.column(k * Row::W + (Row::VECTOR ? 0 : j));
        return tl_channel_of(&p.at, row, place.q + (p.at.channel_step ? place.further(p, i) : 0));
    }
};

/* ---- forward ----------------------------------------------------------------------------------------------------- */

struct forward_job {
    runs at;
    const float *x, *gamma, *beta;
    float eps;
    float *out, *means, *vars, *istds;   /* of vars there may be none */
    float *sums, *squares, *differences; /* of each leaf */
};

/* Blocks of a multiprocessor: where elements lie takes registers of rows held in them, without one of which blocks still have bytes
 * enough on their way. */
template <class Row> constexpr bool takes_registers = Row::ROWS == 1 && Row::N > 8 && Row::N <= 16;
template <class Row> constexpr int blocks_of_leaves = takes_registers<Row> ? 3 : Row::BLOCKS;
template <class Row> constexpr int blocks_of_both = takes_registers<Row> ? 2 : Row::BLOCKS_OF_TWO;

template <class Row>
__global__ void __launch_bounds__(Row::THREADS, blocks_of_leaves<Row>) norm_leaves(forward_job p, step what)
{
    const owned<Row> o(p.at, what == RESULTS ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
    const Row &r = o.r;
    const int64_t cols = p.at.at.cols;
    tl_held<Row, Row::ONE_SHARED> v;
    o.load(p.at, p.x, v);
    float mean = 0.0f, squares = 0.0f, shift = 0.0f;
    bool keeps = r.n > 0 && r.leads();
    if (Row::ROWS == 1 && what == RESULTS) {
        const int64_t first = o.row * p.at.leaves;
        mean = tl_per_count(tl_sum_row<float>(p.at.leaves, [&](int64_t l) { return p.sums[first + l]; }), cols);
        squares = tl_sum_row<float>(p.at.leaves, [&](int64_t l) {
            const int64_t n = min(cols - l * TL_SUM_LEAF, (int64_t)TL_SUM_LEAF);
            return tl_squares_of_leaf(p.squares[first + l], p.differences[first + l],
                                      tl_per_count(p.sums[first + l], n), mean, n);
        });
        shift = mean;
        keeps = keeps && o.leaf == 0;
        v.wait();
    } else {
        v.wait();
        float sum;
        squares = tl_row_squares<TL_NORM_CHANNEL>(r, v, r.n, &mean, &sum); /* v is x - mean */
        if (Row::ROWS == 1 && what == SUMS_OF_LEAVES) {
            typename Row::terms terms;
            float w[Row::W];
#pragma unroll(decltype(v)::UNROLL)
            for (int i = 0; i < decltype(v)::pieces(r); i++) {
                v.get(Row::order(i), w);
                terms.add(i, w);
            }
            const float differences = terms.sum();
            if (!keeps) return;
            p.sums[o.part(p.at)] = sum;
            p.squares[o.part(p.at)] = squares;
            p.differences[o.part(p.at)] = differences;
            return;
        }
    }
    const float istd = tl_inverse_deviation(squares, cols, p.eps);
    if (keeps) {
        p.means[o.row] = mean;
        if (p.vars) p.vars[o.row] = tl_per_count(squares, cols);
        p.istds[o.row] = istd;
    }
    const bool same = p.at.at.channel_step == 0; /* one gamma and beta for the row */
    const int64_t channel = tl_channel_of(&p.at.at, o.row, 0);
    const float gamma_row = p.gamma && r.n > 0 ? p.gamma[channel] : 1.0f;
    const float beta_row = p.beta && r.n > 0 ? p.beta[channel] : -0.0f;
#pragma unroll(decltype(v)::UNROLL)
    for (int k = 0; k < decltype(v)::pieces(r); k++) {
        float w[Row::W], gamma = gamma_row, beta = beta_row;
        v.get(k, w);
        TL_UNROLL_FOR (int j = 0; j < Row::W; j++) {
            if (!same && (j == 0 || !Row::VECTOR) && r.inside(k * Row::W + j)) {
                const int64_t c = o.channel(p.at, k, j);
                if (p.gamma) gamma = p.gamma[c];
                if (p.beta) beta = p.beta[c];
            }
            w[j] = fmaf((w[j] - shift) * istd, gamma, beta);
        }
        o.store(p.at, p.out, k, w);
    }
}

/* launch(the type of a row) for a leaf of up to n elements: pieces of four where runs are whole fours. */
template <class Launch> int32_t pick_leaf(const tl_norm_runs &at, Launch launch)
{
    const int64_t n = at.cols < TL_SUM_LEAF ? at.cols : TL_SUM_LEAF;
    const bool fours = at.run % 4 == 0;
    return tl_pick_row(fours || n % 4 != 0 ? n : n - 1, launch);
}

int32_t forward(tl_context *ctx, const char *name, const tl_norm_runs &at, const float *x, const float *gamma,
                const float *beta, float eps, float *out, float *means, float *vars, float *istds)
{
    if (at.rows == 0) return TORCHLEAN_OK;
    if (at.cols == 0) {
        if (vars) TL_TRY(tl_cuda_fill(tl_context_cuda(ctx), vars, NAN, at.rows));
        TL_TRY(tl_cuda_fill(tl_context_cuda(ctx), means, NAN, at.rows));
        return tl_cuda_fill(tl_context_cuda(ctx), istds, NAN, at.rows);
    }
    const runs of(at);
    const int64_t blocks = of.leaves * at.rows;
    tl_scratch<float> parts(ctx);
    if (of.leaves > 1) TL_TRY(parts.allocate(3 * blocks));
    const forward_job p = {of, x, gamma, beta, eps, out, means, vars, istds, parts, parts + blocks, parts + 2 * blocks};
    return pick_leaf(at, [&](auto row) {
        using Row = typename decltype(row)::type;
        const int64_t leaf = at.cols < TL_SUM_LEAF ? at.cols : TL_SUM_LEAF;
        const size_t bytes = tl_row_bytes<Row, Row::ONE_SHARED>(leaf);
        if (of.leaves == 1) return tl_launch_rows<Row>(ctx, name, norm_leaves<Row>, blocks, bytes, p, WHOLE_ROWS);
        TL_TRY(tl_launch_rows<Row>(ctx, name, norm_leaves<Row>, blocks, bytes, p, SUMS_OF_LEAVES));
        return tl_launch_rows<Row>(ctx, name, norm_leaves<Row>, blocks, bytes, p, RESULTS);
    });
}

/* ---- gradients --------------------------------------------------------------------------------------------------- */

struct gradient_job {
    runs at;
    const float *x, *gamma, *g, *means, *istds;
    bool scaled; /* a is g times gamma; else gamma is a factor of the result */
    float *gx;   /* NULL where it is not wanted, as are the sums of a row or, while they are summed, of a leaf */
    float *sums_a, *sums_ax;
    const float *parts_a, *parts_ax; /* of each leaf, for RESULTS */
};

template <class Row>
__global__ void __launch_bounds__(Row::THREADS, blocks_of_both<Row>) gradient_leaves(gradient_job p, step what)
{
    const owned<Row> o(p.at, what == RESULTS ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
    const Row &r = o.r;
    const int64_t cols = p.at.at.cols;
    tl_held<Row, Row::SECOND_SHARED, true> second;
    tl_held<Row, false> v;
    o.load(p.at, p.g, second);
    o.load(p.at, p.x, v);
    float sum_a = 0.0f, sum_ax = 0.0f;
    if (Row::ROWS == 1 && what == RESULTS) {
        const int64_t first = o.row * p.at.leaves;
        sum_a = tl_sum_row<float>(p.at.leaves, [&](int64_t l) { return p.parts_a[first + l]; });
        sum_ax = tl_sum_row<float>(p.at.leaves, [&](int64_t l) { return p.parts_ax[first + l]; });
    }
    const bool live = r.n > 0, apart = p.at.at.statistic_step != 0; /* statistics of each run */
    const int64_t statistic = live ? tl_statistic_of(&p.at.at, o.row, o.place.q) : 0;
    float mean = live ? p.means[statistic] : 0.0f, istd = live ? p.istds[statistic] : 0.0f;
    second.wait();
    typename Row::terms terms_a, terms_ax;
    float xhat[Row::W], a[Row::W];
    TL_UNROLL_FOR (int i = 0; i < Row::K; i++) {
        const int k = Row::order(i);
        float ax[Row::W], gamma = 1.0f;
        v.get(k, xhat);
        second.get(k, a);
        TL_UNROLL_FOR (int j = 0; j < Row::W; j++) {
            const bool inside = r.inside(k * Row::W + j);
            if ((j == 0 || !Row::VECTOR) && inside) {
                if (p.scaled && p.gamma) gamma = p.gamma[o.channel(p.at, k, j)];
                if (apart) {
                    const int64_t s = statistic +
                                      o.place.further(p.at, r.column(k * Row::W + j)) * p.at.at.statistic_step;
                    mean = p.means[s], istd = p.istds[s];
                }
            }
            a[j] *= gamma;
            xhat[j] = inside ? tl_normalised(xhat[j], mean, istd) : 0.0f;
            ax[j] = a[j] * xhat[j];
        }
        terms_a.add(i, a);
        terms_ax.add(i, ax);
        v.put(k, xhat);
        second.put(k, a);
    }
    if (what != RESULTS) Row::sum2(terms_a, terms_ax, &sum_a, &sum_ax);
    if (live && r.leads() && (what != RESULTS || o.leaf == 0)) {
        const int64_t at = what == SUMS_OF_LEAVES ? o.part(p.at) : o.row;
        if (p.sums_a) p.sums_a[at] = sum_a;
        if (p.sums_ax) p.sums_ax[at] = sum_ax;
    }
    if (!p.gx || what == SUMS_OF_LEAVES) return;
    const bool scales = live && !p.scaled && p.gamma;
    const float factor = scales ? istd * p.gamma[tl_channel_of(&p.at.at, o.row, 0)] : istd;
    tl_row_gradient<TL_NORM_CHANNEL>(r, v, second, nullptr, cols, sum_a, sum_ax, factor,
                                     [&](int k, const float (&a)[Row::W]) { o.store(p.at, p.gx, k, a); });
}

/* gx, and the rows' sums of a and a xhat, where they are wanted. */
int32_t backward(tl_context *ctx, const char *name, const tl_norm_runs &at, gradient_job p)
{
    if (at.rows == 0 || (!p.gx && !p.sums_a && !p.sums_ax)) return TORCHLEAN_OK;
    if (at.cols == 0) {
        if (p.sums_a) TL_TRY(tl_cuda_fill(tl_context_cuda(ctx), p.sums_a, 0.0f, at.rows));
        return p.sums_ax ? tl_cuda_fill(tl_context_cuda(ctx), p.sums_ax, 0.0f, at.rows) : TORCHLEAN_OK;
    }
    const int64_t blocks = p.at.leaves * at.rows;
    tl_scratch<float> parts(ctx);
    if (p.at.leaves > 1) TL_TRY(parts.allocate(2 * blocks));
    return pick_leaf(at, [&](auto row) {
        using Row = typename decltype(row)::type;
        constexpr size_t bytes = tl_whole_row_bytes<Row, Row::SECOND_SHARED>;
        if (p.at.leaves == 1) return tl_launch_rows<Row>(ctx, name, gradient_leaves<Row>, blocks, bytes, p, WHOLE_ROWS);
        gradient_job sums = p;
        sums.sums_a = parts, sums.sums_ax = parts + blocks;
        TL_TRY(tl_launch_rows<Row>(ctx, name, gradient_leaves<Row>, blocks, bytes, sums, SUMS_OF_LEAVES));
        p.parts_a = parts, p.parts_ax = parts + blocks;
        if (p.gx) return tl_launch_rows<Row>(ctx, name, gradient_leaves<Row>, blocks, bytes, p, RESULTS);
        if (p.sums_a) TL_TRY(tl_cuda_row_sums(ctx, p.parts_a, at.rows, p.at.leaves, 0, p.sums_a));
        return p.sums_ax ? tl_cuda_row_sums(ctx, p.parts_ax, at.rows, p.at.leaves, 0, p.sums_ax) : TORCHLEAN_OK;
    });
}

} // namespace

int32_t tl_cuda_batch_norm_stats(tl_context *ctx, const float *x, const float *gamma, const float *beta, int64_t batch,
                                 int64_t channels, int64_t positions, float eps, float *out, float *mean, float *var,
                                 float *istd)
{
    return forward(ctx, "batch_norm_stats", tl_channel_runs(batch, 1, channels, positions, 0), x, gamma, beta, eps, out,
                   mean, var, istd);
}

int32_t tl_cuda_group_norm_stats(tl_context *ctx, const float *x, const float *gamma, const float *beta, int64_t batch,
                                 int64_t groups, int64_t channels, int64_t positions, float eps, float *out,
                                 float *mean, float *istd)
{
    return forward(ctx, "group_norm_stats", tl_group_runs(batch, groups, channels, positions), x, gamma, beta, eps, out,
                   mean, nullptr, istd);
}

int32_t tl_cuda_batch_norm_stats_bwd(tl_context *ctx, const float *x, const float *gamma, const float *mean,
                                     const float *istd, const float *g_out, int64_t batch, int64_t channels,
                                     int64_t positions, float, float *gx, float *ggamma, float *gbeta)
{
    const tl_norm_runs at = tl_channel_runs(batch, 1, channels, positions, 0);
    return backward(ctx, "batch_norm_stats_bwd", at,
                    {runs(at), x, gamma, g_out, mean, istd, false, gx, gbeta, ggamma, nullptr, nullptr});
}

int32_t tl_cuda_group_norm_stats_bwd(tl_context *ctx, const float *x, const float *gamma, const float *mean,
                                     const float *istd, const float *g_out, int64_t batch, int64_t groups,
                                     int64_t channels, int64_t positions, float, float *gx, float *ggamma, float *gbeta)
{
    const char *const name = "group_norm_stats_bwd";
    const tl_norm_runs rows = tl_group_runs(batch, groups, channels, positions);
    const tl_norm_runs across = tl_channel_runs(batch, groups, channels, positions, 1);
    TL_TRY(backward(ctx, name, rows,
                    {runs(rows), x, gamma, g_out, mean, istd, true, gx, nullptr, nullptr, nullptr, nullptr}));
    return backward(ctx, name, across,
                    {runs(across), x, nullptr, g_out, mean, istd, false, nullptr, gbeta, ggamma, nullptr, nullptr});
}
