/* layer_norm's gradient on CUDA, with those of gamma and beta: sums of g·xhat and g down the columns.
 *
 * They follow the column tree (formula/sum_tree.h): a chunk of 128 rows is four chains, chain c of the rows c, c + 4, ... in
 * this order. So whoever owns a chain can finish one row after the other and add each to the chain's running sums:
 *
 *   up to 1024 columns    a warp owns a chain, a block a chunk (chunk_warps)
 *   up to 12288           a block owns a chain (chain_blocks)
 *   beyond                rows first (norm.cu), then the columns from x, g and the rows' statistics (columns_again)
 *
 * The first two read x and g once. While a row is being finished the next one is on its way to shared memory, so a
 * multiprocessor has at least 64 KiB of loads in flight, and registers hold the running sums. What is left, a sum
 * per chunk and column, is 1/128 of the data. */
#include "norm.cuh"

namespace {

struct columns_grad {
    const float *x, *gamma, *g;
    int64_t rows, cols;
    float eps;
    float *gx; /* or NULL */
    float *gamma_parts, *beta_parts;
};

/* One chain: `row` = first, first + 4, ... below `end`. stage: four rows' worth of shared memory for this thread, x and g of
 * the current row and of the next. */
template <class Row>
__device__ __forceinline__ void finish_chain(const columns_grad &p, int64_t first, int64_t end, float *stage,
                                             float (&sum_gamma)[Row::N], float (&sum_beta)[Row::N])
{
    constexpr int PER_ARRAY = Row::N * Row::BLOCK_THREADS;
#pragma unroll
    for (int i = 0; i < Row::N; i++)
        sum_gamma[i] = sum_beta[i] = 0.0f;
    const auto request = [&](int64_t row, int buffer) {
        const Row next(tl_given(), row, row < end ? (int)p.cols : 0);
        const int64_t at = (row < end ? row : first) * p.cols;
        next.request(stage + 2 * buffer * PER_ARRAY, p.x + at);
        next.request(stage + (2 * buffer + 1) * PER_ARRAY, p.g + at);
        tl_copy_commit();
    };
    if (first >= end)
        return;
    request(first, 0);
    int buffer = 0;
#pragma unroll 1
    for (int64_t row = first; row < end; row += TL_COLUMN_CHAINS, buffer ^= 1) {
        const Row r(tl_given(), row, (int)p.cols);
        request(row + TL_COLUMN_CHAINS, buffer ^ 1);
        tl_copy_wait<1>();
        float *const x = stage + 2 * buffer * PER_ARRAY, *const g = x + PER_ARRAY;
        tl_held<Row, false> v;
        float xhat[Row::W], a[Row::W], gamma[Row::W], ax[Row::W], mean, istd;
#pragma unroll
        for (int k = 0; k < Row::K; k++) {
            Row::fetch(x, k, xhat);
            v.put(k, xhat);
        }
        tl_row_statistics(r, v, p.cols, p.eps, &mean, &istd);
        typename Row::terms terms_a, terms_ax;
#pragma unroll
        for (int i = 0; i < Row::K; i++) {
            const int k = Row::order(i);
            v.get(k, xhat);
            Row::fetch(g, k, a);
            r.piece(p.gamma, k, gamma);
#pragma unroll
            for (int j = 0; j < Row::W; j++) {
                xhat[j] = r.inside(k * Row::W + j) ? xhat[j] * istd : 0.0f;
                sum_gamma[k * Row::W + j] += a[j] * xhat[j];
                sum_beta[k * Row::W + j] += a[j];
                a[j] *= gamma[j];
                ax[j] = a[j] * xhat[j];
            }
            terms_a.add(i, a);
            terms_ax.add(i, ax);
            v.put(k, xhat);
        }
        if (!p.gx)
            continue;
        float sum_a, sum_ax;
        Row::sum2(terms_a, terms_ax, &sum_a, &sum_ax);
        const float mean_a = tl_per_count(sum_a, p.cols), mean_ax = tl_per_count(sum_ax, p.cols);
#pragma unroll
        for (int k = 0; k < Row::K; k++) {
            v.get(k, xhat);
            Row::fetch(g, k, a);
            r.piece(p.gamma, k, gamma);
#pragma unroll
            for (int j = 0; j < Row::W; j++)
                a[j] = tl_norm_grad(a[j] * gamma[j], xhat[j], mean_a, mean_ax, istd);
            r.store(p.gx + row * p.cols, k, a);
        }
    }
    tl_copy_wait<0>();
}

/* A block of four warps owns a chunk, a warp a chain of it; the chains meet in shared memory. */
template <class Row> __global__ void __launch_bounds__(128, 3) chunk_warps(columns_grad p)
{
    float *const shared = reinterpret_cast<float *>(tl_dynamic_shared);
    const int64_t chunk = blockIdx.x, from = chunk * TL_COLUMN_CHUNK, end = min(from + TL_COLUMN_CHUNK, p.rows);
    const int chain = (int)threadIdx.x / 32;
    float sums[2][Row::N];
    finish_chain<Row>(p, from + chain, end, shared, sums[0], sums[1]);
    const Row r(tl_given(), 0, (int)p.cols);
#pragma unroll
    for (int which = 0; which < 2; which++) {
        float *const out = (which == 0 ? p.gamma_parts : p.beta_parts) + chunk * p.cols;
        __syncthreads();
#pragma unroll
        for (int i = 0; i < Row::N; i++)
            if (r.inside(i))
                shared[chain * (32 * Row::N) + r.column(i)] = sums[which][i];
        __syncthreads();
        for (int c = (int)threadIdx.x; c < (int)p.cols; c += 128)
            out[c] = (shared[c] + shared[32 * Row::N + c]) + (shared[2 * 32 * Row::N + c] + shared[3 * 32 * Row::N + c]);
    }
}

/* A block of 1024 threads owns a chain of a chunk, thread t the columns t, t + 1024, ...: lane t of the row tree,
 * and the running sums of those columns. ROWS rows of the chain are finished together, which shares the latency of
 * the folds; a column's sums still take them one after the other. Every thread meets only its own elements of the
 * stage. Parts are (chunk, chain, cols). */
template <int STEPS_, int ROWS_> struct lane_chain {
    static constexpr int STEPS = STEPS_, ROWS = ROWS_, THREADS = TL_SUM_LANES, ARRAY = STEPS * THREADS;
    /* x and g of ROWS rows, of these and of the next ones. */
    static constexpr size_t DYNAMIC = sizeof(float) * 2 * 2 * ROWS * ARRAY;
};

/* v[i] = the fold of all threads' v[i], a lane each. In the first half warp w joins the 32 lanes that are w modulo
 * 32 (a word of padding per 32 keeps them in different banks), in the second every warp joins the 32 results for
 * itself. */
template <int V>
__device__ __forceinline__ void fold_lanes(float (&v)[V], float (*lanes)[TL_SUM_LANES + 32], float (*folded)[32])
{
    const int t = (int)threadIdx.x, w = t / 32, j = t % 32;
#pragma unroll
    for (int i = 0; i < V; i++)
        lanes[i][t + w] = v[i];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < V; i++)
        v[i] = tl_fold_group<tl_sum_op, 32>(lanes[i][w + 33 * j]);
    if (j == 0)
#pragma unroll
        for (int i = 0; i < V; i++)
            folded[i][w] = v[i];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < V; i++)
        v[i] = tl_fold_group<tl_sum_op, 32>(folded[i][j]);
}

template <class Chain> __global__ void __launch_bounds__(Chain::THREADS, 1) chain_blocks(columns_grad p)
{
    constexpr int STEPS = Chain::STEPS, ROWS = Chain::ROWS, THREADS = Chain::THREADS, ARRAY = Chain::ARRAY;
    __shared__ float lanes[2 * ROWS][TL_SUM_LANES + 32], folded[2 * ROWS][32];
    float *const stage = reinterpret_cast<float *>(tl_dynamic_shared);
    const int64_t top = (int64_t)(blockIdx.x / TL_COLUMN_CHAINS) * TL_COLUMN_CHUNK; /* rows count from here */
    const int end = (int)min((int64_t)TL_COLUMN_CHUNK, p.rows - top);
    const int t = (int)threadIdx.x, cols = (int)p.cols;
    __builtin_assume(cols > 0 && cols <= ARRAY);
    const int n = cols - t; /* element s of this thread is in the row if s * THREADS < n */
    float gamma[STEPS], sum_gamma[STEPS], sum_beta[STEPS];
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
        gamma[s] = s * THREADS < n ? p.gamma[t + s * THREADS] : 0.0f;
        sum_gamma[s] = sum_beta[s] = 0.0f;
    }
    /* A row past the end arrives as zeros. */
    const auto request = [&](int first, float *to) {
#pragma unroll
        for (int q = 0; q < ROWS; q++) {
            const int row = first + q * TL_COLUMN_CHAINS;
            const int64_t at = (top + (row < end ? row : 0)) * cols + t;
            const int most = row < end ? n : 0;
            const float *const x = p.x + at, *const g = p.g + at; /* nothing is read past `most` */
#pragma unroll
            for (int s = 0; s < STEPS; s++) {
                tl_copy_async<4>(to + (2 * q) * ARRAY + s * THREADS, x + s * THREADS, s * THREADS < most);
                tl_copy_async<4>(to + (2 * q + 1) * ARRAY + s * THREADS, g + s * THREADS, s * THREADS < most);
            }
        }
        tl_copy_commit();
    };
    int first = (int)(blockIdx.x % TL_COLUMN_CHAINS), buffer = 0;
    if (first < end)
        request(first, stage + t);
#pragma unroll 1
    for (; first < end; first += ROWS * TL_COLUMN_CHAINS, buffer ^= 1) {
        float *const current = stage + buffer * (2 * ROWS * ARRAY) + t;
        request(first + ROWS * TL_COLUMN_CHAINS, stage + (buffer ^ 1) * (2 * ROWS * ARRAY) + t);
        tl_copy_wait<1>();
        float mean[ROWS], istd[ROWS], both[2 * ROWS];
#pragma unroll
        for (int q = 0; q < ROWS; q++) {
            mean[q] = 0.0f;
#pragma unroll 4
            for (int s = 0; s < STEPS; s++)
                mean[q] += current[2 * q * ARRAY + s * THREADS];
        }
        fold_lanes(mean, lanes, folded);
#pragma unroll
        for (int q = 0; q < ROWS; q++) {
            mean[q] = tl_per_count(mean[q], cols);
            istd[q] = 0.0f;
#pragma unroll 4
            for (int s = 0; s < STEPS; s++) {
                float *const x = current + 2 * q * ARRAY + s * THREADS;
                const float d = s * THREADS < n ? *x - mean[q] : 0.0f;
                *x = d;
                istd[q] += d * d;
            }
        }
        fold_lanes(istd, lanes, folded);
#pragma unroll
        for (int q = 0; q < ROWS; q++) {
            const bool live = q == 0 || first + q * TL_COLUMN_CHAINS < end;
            istd[q] = tl_inverse_deviation(istd[q], cols, p.eps);
            both[2 * q] = both[2 * q + 1] = 0.0f;
#pragma unroll
            for (int s = 0; s < STEPS; s++) {
                float *const x = current + 2 * q * ARRAY + s * THREADS;
                const float g = x[ARRAY], xhat = live && s * THREADS < n ? *x * istd[q] : 0.0f, a = g * gamma[s];
                *x = xhat;
                sum_gamma[s] += g * xhat;
                sum_beta[s] += g;
                both[2 * q] += a;
                both[2 * q + 1] += a * xhat;
            }
        }
        if (p.gx) {
            fold_lanes(both, lanes, folded);
#pragma unroll
            for (int q = 0; q < ROWS; q++) {
                const int row = first + q * TL_COLUMN_CHAINS;
                const float mean_a = tl_per_count(both[2 * q], cols), mean_ax = tl_per_count(both[2 * q + 1], cols);
                float *const to = p.gx + (top + row) * cols + t;
                const float *const x = current + 2 * q * ARRAY;
                if (q == 0 || row < end)
#pragma unroll
                    for (int s = 0; s < STEPS; s++)
                        if (s * THREADS < n)
                            to[s * THREADS] = tl_norm_grad(x[ARRAY + s * THREADS] * gamma[s], x[s * THREADS], mean_a,
                                                           mean_ax, istd[q]);
            }
        }
    }
    tl_copy_wait<0>();
    const int64_t at = (int64_t)blockIdx.x * p.cols + t;
#pragma unroll
    for (int s = 0; s < STEPS; s++)
        if (s * THREADS < n) {
            p.gamma_parts[at + s * THREADS] = sum_gamma[s];
            p.beta_parts[at + s * THREADS] = sum_beta[s];
        }
}

/* (chunk, chain, cols) to (chunk, cols). A thread owns a column of a chunk. */
__global__ void __launch_bounds__(256)
join_chains(const float *__restrict__ chains, int64_t cols, tl_fastdiv divide, int64_t n, float *__restrict__ out)
{
    const int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x;
    if (i >= n)
        return;
    uint32_t column;
    const float *at = chains + (int64_t)divide.divmod((uint32_t)i, &column) * TL_COLUMN_CHAINS * cols;
    at += column;
    out[i] = (at[0] + at[cols]) + (at[2 * cols] + at[3 * cols]);
}

/* A block of (64, 4) threads owns 64 columns of a chunk, thread (., c) chain c of one column. */
__global__ void __launch_bounds__(256)
columns_again(columns_grad p, const float *__restrict__ means, const float *__restrict__ istds, tl_fastdiv tiles)
{
    __shared__ float chains[2][4][64];
    uint32_t tile;
    const int64_t chunk = tiles.divmod(blockIdx.x, &tile), from = chunk * TL_COLUMN_CHUNK;
    const int64_t end = min(from + TL_COLUMN_CHUNK, p.rows), column = (int64_t)tile * 64 + threadIdx.x;
    float sum_gamma = 0.0f, sum_beta = 0.0f;
    if (column < p.cols) {
#pragma unroll 8
        for (int64_t row = from + threadIdx.y; row < end; row += TL_COLUMN_CHAINS) {
            const float g = p.g[row * p.cols + column];
            sum_gamma += g * tl_normalised(p.x[row * p.cols + column], means[row], istds[row]);
            sum_beta += g;
        }
    }
    chains[0][threadIdx.y][threadIdx.x] = sum_gamma;
    chains[1][threadIdx.y][threadIdx.x] = sum_beta;
    __syncthreads();
    if (threadIdx.y < 2 && column < p.cols) {
        const float(*c)[64] = chains[threadIdx.y];
        float *out = threadIdx.y == 0 ? p.gamma_parts : p.beta_parts;
        out[chunk * p.cols + column] = (c[0][threadIdx.x] + c[1][threadIdx.x]) + (c[2][threadIdx.x] + c[3][threadIdx.x]);
    }
}

/* ---- the launches ------------------------------------------------------------------------------------------------ */

/* tl_short_row of a warp, with the four warps of the block that shared memory is laid out for. */
template <class Row> struct warp_row : Row {
    static constexpr int BLOCK_THREADS = 128;
    using Row::Row;
};

/* The longest row whose chains are summed by blocks: the shared memory of sm_90; other chips have less. */
int64_t chain_fits()
{
    int device = 0, most = 0;
    if (cudaGetDevice(&device) != cudaSuccess ||
        cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) != cudaSuccess)
        return TL_SUM_LANES;
    const auto fits = [&](size_t dynamic, int rows) {
        return dynamic + sizeof(float) * 2 * (size_t)rows * (TL_SUM_LANES + 64) <= (size_t)most;
    };
    return fits(lane_chain<12, 1>::DYNAMIC, 1)  ? 12288
           : fits(lane_chain<4, 2>::DYNAMIC, 2) ? 8192
           : fits(lane_chain<2, 2>::DYNAMIC, 2) ? 2048
                                                : TL_SUM_LANES;
}

int32_t launch(tl_context *ctx, void (*kernel)(columns_grad), int64_t blocks, int threads, size_t dynamic,
               const columns_grad &p)
{
    if (dynamic > 48 * 1024)
        TL_CUDA_TRY(ctx, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)dynamic));
    kernel<<<(unsigned)blocks, threads, dynamic, tl_cuda_stream(ctx)>>>(p);
    return tl_cuda_launched(ctx, "layer_norm_bwd");
}

/* Shared memory for x and g of two rows per warp: at least what the chains' meeting takes. */
template <class Row> int32_t launch_warps(tl_context *ctx, int64_t chunks, const columns_grad &p)
{
    constexpr size_t dynamic = sizeof(float) * 4 * Row::N * Row::BLOCK_THREADS;
    return launch(ctx, chunk_warps<Row>, chunks, Row::BLOCK_THREADS, dynamic, p);
}

template <class Chain> int32_t launch_chains(tl_context *ctx, int64_t chunks, const columns_grad &p)
{
    return launch(ctx, chain_blocks<Chain>, chunks * TL_COLUMN_CHAINS, Chain::THREADS, Chain::DYNAMIC, p);
}

template <bool VECTOR> int32_t fused(tl_context *ctx, int64_t chunks, const columns_grad &p)
{
    if (p.cols <= 128)
        return launch_warps<warp_row<tl_short_row<VECTOR, 32, 4>>>(ctx, chunks, p);
    if (p.cols <= 256)
        return launch_warps<warp_row<tl_short_row<VECTOR, 32, 8>>>(ctx, chunks, p);
    if (p.cols <= 512)
        return launch_warps<warp_row<tl_short_row<VECTOR, 32, 16>>>(ctx, chunks, p);
    return launch_warps<warp_row<tl_short_row<VECTOR, 32, 32>>>(ctx, chunks, p);
}

int32_t chains(tl_context *ctx, int64_t chunks, const columns_grad &p)
{
    if (p.cols <= 2048)
        return launch_chains<lane_chain<2, 2>>(ctx, chunks, p);
    if (p.cols <= 4096)
        return launch_chains<lane_chain<4, 2>>(ctx, chunks, p);
    if (p.cols <= 8192)
        return launch_chains<lane_chain<8, 1>>(ctx, chunks, p);
    return launch_chains<lane_chain<12, 1>>(ctx, chunks, p);
}

/* Scratch of all kinds lies in one block: parts of gamma, parts of beta, then chains or statistics. */
int32_t with_columns(tl_context *ctx, columns_grad p, float *ggamma, float *gbeta)
{
    const int64_t chunks = tl_ceil_div(p.rows, TL_COLUMN_CHUNK), parts = chunks * p.cols;
    const bool by_warp = p.cols <= TL_SUM_LANES, by_chain = !by_warp && p.cols <= chain_fits();
    const bool again = !by_warp && !by_chain;
    void *scratch;
    TL_TRY(tl_pool_alloc(ctx, (size_t)(2 * parts * (by_chain ? 1 + TL_COLUMN_CHAINS : 1) + (again ? 2 * p.rows : 0)) * sizeof(float),
                         &scratch));
    float *const gamma_parts = (float *)scratch, *const beta_parts = gamma_parts + parts, *const rest = beta_parts + parts;
    p.gamma_parts = by_chain ? rest : gamma_parts;
    p.beta_parts = by_chain ? rest + TL_COLUMN_CHAINS * parts : beta_parts;
    int32_t status;
    if (again) {
        float *const means = rest, *const istds = rest + p.rows;
        status = tl_layer_norm_rows_bwd(ctx, p.x, p.gamma, p.g, p.rows, p.cols, p.eps, p.gx, means, istds);
        if (!status) {
            const int64_t tiles = tl_ceil_div(p.cols, 64);
            columns_again<<<(unsigned)(tiles * chunks), dim3(64, 4), 0, tl_cuda_stream(ctx)>>>(p, means, istds,
                                                                                            tl_fastdiv((uint64_t)tiles));
            status = tl_cuda_launched(ctx, "layer_norm_bwd");
        }
    } else if (by_chain) {
        status = chains(ctx, chunks, p);
    } else {
        status = p.cols % 4 == 0 ? fused<true>(ctx, chunks, p) : fused<false>(ctx, chunks, p);
    }
    if (!status && by_chain) {
        const tl_fastdiv divide((uint64_t)p.cols);
        join_chains<<<tl_grid(parts, 256), 256, 0, tl_cuda_stream(ctx)>>>(p.gamma_parts, p.cols, divide, parts, gamma_parts);
        join_chains<<<tl_grid(parts, 256), 256, 0, tl_cuda_stream(ctx)>>>(p.beta_parts, p.cols, divide, parts, beta_parts);
        status = tl_cuda_launched(ctx, "layer_norm_bwd");
    }
    if (!status && ggamma)
        status = tl_cuda_column_sums(ctx, gamma_parts, 1, chunks, p.cols, 0, ggamma);
    if (!status && gbeta)
        status = tl_cuda_column_sums(ctx, beta_parts, 1, chunks, p.cols, 0, gbeta);
    tl_pool_free(ctx, scratch);
    return status;
}

} // namespace

int32_t tl_cuda_layer_norm_bwd(tl_context *ctx, const float *x, const float *gamma, const float *g, int64_t rows, int64_t cols,
                               float eps, float *gx, float *ggamma, float *gbeta)
{
    if (rows == 0) {
        if (ggamma)
            TL_TRY(tl_cuda_fill(tl_context_cuda(ctx), ggamma, 0.0f, cols));
        return gbeta ? tl_cuda_fill(tl_context_cuda(ctx), gbeta, 0.0f, cols) : TORCHLEAN_OK;
    }
    if (!ggamma && !gbeta)
        return tl_layer_norm_rows_bwd(ctx, x, gamma, g, rows, cols, eps, gx, nullptr, nullptr);
    return with_columns(ctx, columns_grad{x, gamma, g, rows, cols, eps, gx, nullptr, nullptr}, ggamma, gbeta);
}
