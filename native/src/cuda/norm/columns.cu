/* The gradients of layer_norm and rms_norm on CUDA, with those of gamma and beta: sums of g·xhat and g down the columns.
 *
 * They follow the column tree (formula/sum_tree.h): a chunk of 128 rows is four chains, chain c of the rows c, c + 4, ... in
 * this order. So whoever owns a chain can finish one row after the other and add each to the chain's running sums:
 *
 *   up to 512 columns     a warp owns a chain, a block a chunk (chunk_warps)
 *   up to 12288           a block owns a chain (chain_blocks)
 *   else                  rows first (norm/norm.cu), then the columns from x, g and the rows' statistics (columns_again)
 *
 * A chain takes its 32 rows one after the other, each of which waits for its folds. So few chains, which leave most of the chip
 * idle, and narrow rows, which leave a warp with little to load, go the third way too: the work is chosen, not the order.
 * The first two read x and g once. While rows are being finished the next ones are on their way to shared memory, so a
 * multiprocessor has at least 64 KiB of loads in flight, and registers hold the running sums. What is left, a sum per
 * chunk or chain and column, is 1/128 or 1/32 of the data. */
#include "cuda/norm/norm.cuh"

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
template <tl_norm_kind KIND, class Row>
__device__ __forceinline__ void finish_chain(const columns_grad &p, int64_t first, int64_t end, float *stage,
                                             float (&sum_gamma)[Row::N], float (&sum_beta)[Row::N])
{
    constexpr int PER_ARRAY = Row::N * Row::BLOCK_THREADS;
    TL_UNROLL_FOR (int i = 0; i < Row::N; i++)
        sum_gamma[i] = sum_beta[i] = 0.0f;
    const auto request = [&](int64_t row, int buffer) {
        const Row next(tl_given(), row, row < end ? (int)p.cols : 0);
        const int64_t at = (row < end ? row : first) * p.cols;
        next.request(stage + 2 * buffer * PER_ARRAY, p.x + at);
        next.request(stage + (2 * buffer + 1) * PER_ARRAY, p.g + at);
        tl_copy_commit();
    };
    if (first >= end) return;
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
        TL_UNROLL_FOR (int k = 0; k < Row::K; k++) {
            Row::fetch(x, k, xhat);
            v.put(k, xhat);
        }
        tl_row_statistics<KIND>(r, v, p.cols, p.eps, &mean, &istd);
        typename Row::terms terms_a, terms_ax;
        TL_UNROLL_FOR (int i = 0; i < Row::K; i++) {
            const int k = Row::order(i);
            v.get(k, xhat);
            Row::fetch(g, k, a);
            r.piece(p.gamma, k, gamma);
            TL_UNROLL_FOR (int j = 0; j < Row::W; j++) {
                xhat[j] = r.inside(k * Row::W + j) ? xhat[j] * istd : 0.0f;
                sum_gamma[k * Row::W + j] += a[j] * xhat[j];
                if (KIND != TL_NORM_RMS) sum_beta[k * Row::W + j] += a[j];
                a[j] *= gamma[j];
                ax[j] = a[j] * xhat[j];
            }
            if (KIND != TL_NORM_RMS) terms_a.add(i, a);
            terms_ax.add(i, ax);
            v.put(k, xhat);
        }
        if (!p.gx) continue;
        float sum_a = 0.0f, sum_ax;
        if constexpr (KIND == TL_NORM_RMS)
            sum_ax = terms_ax.sum();
        else
            Row::sum2(terms_a, terms_ax, &sum_a, &sum_ax);
        const float mean_a = tl_per_count(sum_a, p.cols), mean_ax = tl_per_count(sum_ax, p.cols);
        TL_UNROLL_FOR (int k = 0; k < Row::K; k++) {
            v.get(k, xhat);
            Row::fetch(g, k, a);
            r.piece(p.gamma, k, gamma);
            TL_UNROLL_FOR (int j = 0; j < Row::W; j++)
                a[j] = tl_norm_grad(a[j] * gamma[j], xhat[j], mean_a, mean_ax, istd);
            r.store(p.gx + row * p.cols, k, a);
        }
    }
    tl_copy_wait<0>();
}

/* A block of four warps owns a chunk, a warp a chain of it; the chains meet in shared memory. */
template <tl_norm_kind KIND, class Row> __global__ void __launch_bounds__(128, 3) chunk_warps(columns_grad p)
{
    float *const shared = reinterpret_cast<float *>(tl_dynamic_shared);
    const int64_t chunk = blockIdx.x, from = chunk * TL_COLUMN_CHUNK, end = min(from + TL_COLUMN_CHUNK, p.rows);
    const int chain = (int)threadIdx.x / 32;
    float sums[2][Row::N];
    finish_chain<KIND, Row>(p, from + chain, end, shared, sums[0], sums[1]);
    const Row r(tl_given(), 0, (int)p.cols);
    TL_UNROLL_FOR (int which = 0; which < (KIND == TL_NORM_RMS ? 1 : 2); which++) {
        float *const out = (which == 0 ? p.gamma_parts : p.beta_parts) + chunk * p.cols;
        __syncthreads();
        TL_UNROLL_FOR (int i = 0; i < Row::N; i++)
            if (r.inside(i)) shared[chain * (32 * Row::N) + r.column(i)] = sums[which][i];
        __syncthreads();
        for (int c = (int)threadIdx.x; c < (int)p.cols; c += 128)
            out[c] = (shared[c] + shared[32 * Row::N + c]) +
                     (shared[2 * 32 * Row::N + c] + shared[3 * 32 * Row::N + c]);
    }
}

/* A block owns a chain of a chunk. Thread t has the columns t, t + THREADS, ... of it: LANES lanes of the row tree,
 * THREADS apart, so that the first levels of a fold need nobody else, and the running sums of those columns. ROWS rows
 * of the chain are finished together, which shares the latency of the folds; a column's sums still take them one after
 * the other. Rows arrive in shared memory 16 bytes at a time and are read 4 at a time, neighbours side by side: the g of
 * STAGES groups of rows, all but one on their way, the x of one group less, because that of the current group moves to
 * registers at once. Parts are (chunk, chain, cols). */
template <int THREADS_, int STEPS_, int ROWS_, int STAGES_, int BLOCKS_> struct lane_chain {
    static constexpr int THREADS = THREADS_, STEPS = STEPS_, ROWS = ROWS_, STAGES = STAGES_, BLOCKS = BLOCKS_;
    static constexpr int LANES = TL_SUM_LANES / THREADS, N = STEPS * LANES, ARRAY = STEPS * TL_SUM_LANES;
    static constexpr size_t DYNAMIC = sizeof(float) * ((2 * STAGES - 1) * ROWS + 1) * ARRAY; /* with gamma */
    static constexpr size_t FIXED = sizeof(float) * 2 * ROWS * (THREADS + 1);
};
using chain_1024 = lane_chain<256, 1, 2, 3, 4>;
using chain_2048 = lane_chain<256, 2, 2, 3, 2>;
using chain_4096 = lane_chain<512, 4, 2, 3, 1>;
using chain_8192 = lane_chain<512, 8, 1, 3, 1>;
using chain_12288 = lane_chain<512, 12, 1, 2, 1>;

/* v[i] = the fold of all threads' v[i]: warp i folds it for all. */
template <int THREADS, int V>
__device__ __forceinline__ void fold_lanes(float (&v)[V], float (*lanes)[THREADS], float *folded)
{
    constexpr int WARPS = THREADS / 32;
    static_assert(V <= WARPS, "a warp for each value");
    const int warp = (int)threadIdx.x / 32, t = (int)threadIdx.x % 32;
    TL_UNROLL_FOR (int i = 0; i < V; i++)
        lanes[i][threadIdx.x] = v[i];
    __syncthreads();
    if (warp < V) {
        float w[WARPS];
        TL_UNROLL_FOR (int j = 0; j < WARPS; j++)
            w[j] = lanes[warp][32 * j + t];
        const float sum = tl_fold_group<tl_sum_op, 32>(tl_fold_array<tl_sum_op, WARPS>(w));
        if (t == 0) folded[warp] = sum;
    }
    __syncthreads();
    TL_UNROLL_FOR (int i = 0; i < V; i++)
        v[i] = folded[i];
}

template <tl_norm_kind KIND, class Chain, bool VECTOR>
__global__ void __launch_bounds__(Chain::THREADS, Chain::BLOCKS) chain_blocks(columns_grad p)
{
    constexpr int LANES = Chain::LANES, N = Chain::N, ROWS = Chain::ROWS, THREADS = Chain::THREADS;
    constexpr int ARRAY = Chain::ARRAY, STAGES = Chain::STAGES, AHEAD = ROWS * TL_COLUMN_CHAINS;
    __shared__ float lanes[2 * ROWS][THREADS], folded[2 * ROWS];
    float *const scales = reinterpret_cast<float *>(tl_dynamic_shared), *const g_stages = scales + ARRAY;
    float *const x_stages = g_stages + STAGES * ROWS * ARRAY;
    const int64_t top = (int64_t)(blockIdx.x / TL_COLUMN_CHAINS) * TL_COLUMN_CHUNK; /* rows count from here */
    const int end = (int)min((int64_t)TL_COLUMN_CHUNK, p.rows - top);
    const int t = (int)threadIdx.x, cols = (int)p.cols;
    __builtin_assume(cols > 0 && cols <= ARRAY);
    const int n = cols - t; /* element i of this thread is in the row if i * THREADS < n */
    const float *const gamma = scales + t;
    float sum_gamma[N], sum_beta[N];
    TL_UNROLL_FOR (int i = 0; i < N; i++)
        sum_gamma[i] = sum_beta[i] = 0.0f;
    /* Nothing is read past `most`: zeros arrive past the end of a row and of the chain. */
    const auto request_array = [&](float *to, const float *from, int most) {
        constexpr int STEP = VECTOR ? 4 : 1;
#pragma unroll 6
        for (int c = STEP * t, i = 0; i < ARRAY / (STEP * THREADS); i++, c += STEP * THREADS)
            tl_copy_async<4 * STEP>(to + c, from + c, c < most);
    };
    const auto request = [&](float *to, const float *from, int first) {
        TL_UNROLL_FOR (int q = 0; q < ROWS; q++) {
            const int row = first + q * TL_COLUMN_CHAINS;
            request_array(to + q * ARRAY, from + (top + (row < end ? row : 0)) * cols, row < end ? cols : 0);
        }
        tl_copy_commit();
    };
    int first = (int)(blockIdx.x % TL_COLUMN_CHAINS), g_slot = 0, x_slot = 0;
    request_array(scales, p.gamma, cols);
    TL_UNROLL_FOR (int s = 0; s + 1 < STAGES; s++) {
        request(g_stages + s * ROWS * ARRAY, p.g, first + s * AHEAD);
        request(x_stages + s * ROWS * ARRAY, p.x, first + s * AHEAD);
    }
#pragma unroll 1
    for (; first < end; first += AHEAD) {
        tl_copy_wait<2 * (STAGES - 2)>();
        __syncthreads(); /* all have what they requested, and are done with the rows before */
        const float *const g = g_stages + g_slot * ROWS * ARRAY + t;
        float *const x_stage = x_stages + x_slot * ROWS * ARRAY;
        request(g_stages + (g_slot == 0 ? STAGES - 1 : g_slot - 1) * ROWS * ARRAY, p.g, first + (STAGES - 1) * AHEAD);
        g_slot = g_slot + 1 == STAGES ? 0 : g_slot + 1;
        x_slot = x_slot + 2 == STAGES ? 0 : x_slot + 1;
        float x[ROWS][N], mean[ROWS], istd[ROWS], both[2 * ROWS];
        TL_UNROLL_FOR (int q = 0; q < ROWS; q++) {
            float sum[LANES] = {};
            TL_UNROLL_FOR (int i = 0; i < N; i++) {
                x[q][i] = x_stage[t + q * ARRAY + i * THREADS];
                sum[i % LANES] += x[q][i];
            }
            mean[q] = KIND == TL_NORM_RMS ? 0.0f : tl_fold_array<tl_sum_op, LANES>(sum);
        }
        if constexpr (KIND == TL_NORM_RMS)
            __syncthreads();
        else
            fold_lanes<THREADS>(mean, lanes, folded);
        request(x_stage, p.x, first + (STAGES - 1) * AHEAD); /* a barrier follows everybody's reads */
        TL_UNROLL_FOR (int q = 0; q < ROWS; q++) {
            float sum[LANES] = {};
            mean[q] = tl_per_count(mean[q], cols);
            TL_UNROLL_FOR (int i = 0; i < N; i++) {
                x[q][i] = i * THREADS < n ? x[q][i] - mean[q] : 0.0f;
                sum[i % LANES] += x[q][i] * x[q][i];
            }
            istd[q] = tl_fold_array<tl_sum_op, LANES>(sum);
        }
        fold_lanes<THREADS>(istd, lanes, folded);
        float sum_a[ROWS][LANES] = {}, sum_ax[ROWS][LANES] = {};
        TL_UNROLL_FOR (int q = 0; q < ROWS; q++)
            istd[q] = tl_inverse_deviation(istd[q], cols, p.eps);
        TL_UNROLL_FOR (int i = 0; i < N; i++) {
            const float scale = gamma[i * THREADS];
            TL_UNROLL_FOR (int q = 0; q < ROWS; q++) {
                const bool live = q == 0 || first + q * TL_COLUMN_CHAINS < end;
                const float gi = g[q * ARRAY + i * THREADS], a = gi * scale;
                const float xhat = live && i * THREADS < n ? x[q][i] * istd[q] : 0.0f;
                x[q][i] = xhat;
                sum_gamma[i] += gi * xhat;
                if (KIND != TL_NORM_RMS) sum_beta[i] += gi;
                sum_a[q][i % LANES] += a;
                sum_ax[q][i % LANES] += a * xhat;
            }
        }
        if (!p.gx) continue;
        TL_UNROLL_FOR (int q = 0; q < ROWS; q++) {
            both[2 * q] = tl_fold_array<tl_sum_op, LANES>(sum_a[q]);
            both[2 * q + 1] = tl_fold_array<tl_sum_op, LANES>(sum_ax[q]);
        }
        fold_lanes<THREADS>(both, lanes, folded);
        TL_UNROLL_FOR (int q = 0; q < ROWS; q++) {
            const int row = first + q * TL_COLUMN_CHAINS;
            const float mean_a = KIND == TL_NORM_RMS ? 0.0f : tl_per_count(both[2 * q], cols),
                        mean_ax = tl_per_count(both[2 * q + 1], cols);
            float *const to = p.gx + (top + row) * cols + t;
            if (q == 0 || row < end)
                TL_UNROLL_FOR (int i = 0; i < N; i++)
                    if (i * THREADS < n)
                        to[i * THREADS] = tl_norm_grad(g[q * ARRAY + i * THREADS] * gamma[i * THREADS], x[q][i], mean_a,
                                                       mean_ax, istd[q]);
        }
    }
    tl_copy_wait<0>();
    const int64_t at = (int64_t)blockIdx.x * p.cols + t;
    TL_UNROLL_FOR (int i = 0; i < N; i++)
        if (i * THREADS < n) {
            p.gamma_parts[at + i * THREADS] = sum_gamma[i];
            if (KIND != TL_NORM_RMS) p.beta_parts[at + i * THREADS] = sum_beta[i];
        }
}

/* What the block's (64, 4) threads end a chunk of columns with, thread (., c) holding chain c of one column: the
 * chunk's sum in those of c = 0. */
__device__ __forceinline__ float join_four(float chain, float (*chains)[64])
{
    chains[threadIdx.y][threadIdx.x] = chain;
    __syncthreads();
    return (chains[0][threadIdx.x] + chains[1][threadIdx.x]) + (chains[2][threadIdx.x] + chains[3][threadIdx.x]);
}

/* Parts (gamma or beta, chunk, chain, cols), or with PARTS = 1 (gamma or beta, chunk, cols), to chunks, and these, as rows of
 * the column tree, to (chunk of chunks, cols). A block of (64, 4) threads owns 64 columns of a chunk of chunks, thread (., c)
 * chain c of one column. */
template <int PARTS>
__global__ void __launch_bounds__(256) join_chains(const float *__restrict__ parts, int64_t cols, int64_t chunks,
                                                   tl_fastdiv tiles, float *ggamma, float *gbeta)
{
    __shared__ float chains[4][64];
    float *const out = blockIdx.y == 0 ? ggamma : gbeta;
    if (!out) return;
    uint32_t tile;
    const int64_t top = tiles.divmod(blockIdx.x, &tile), from = top * TL_COLUMN_CHUNK;
    const int64_t end = min(from + TL_COLUMN_CHUNK, chunks), column = (int64_t)tile * 64 + threadIdx.x;
    float sum = 0.0f;
    if (column < cols) {
#pragma unroll 8
        for (int64_t chunk = from + threadIdx.y; chunk < end; chunk += TL_COLUMN_CHAINS) {
            const float *const at = parts + (blockIdx.y * chunks + chunk) * PARTS * cols + column;
            sum += PARTS == 1 ? at[0] : (at[0] + at[cols]) + (at[2 * cols] + at[3 * cols]);
        }
    }
    sum = join_four(sum, chains);
    if (threadIdx.y == 0 && column < cols) out[top * cols + column] = sum;
}

/* A block of (TX, 4, 64 / TX) threads owns TX columns of as many chunks, thread (., c, z) chain c of one column of chunk z. */
__global__ void __launch_bounds__(256)
    columns_again(columns_grad p, const float *__restrict__ means, const float *__restrict__ istds, tl_fastdiv tiles)
{
    __shared__ float chains[2][4][64];
    uint32_t tile;
    const int64_t chunk = (int64_t)tiles.divmod(blockIdx.x, &tile) * blockDim.z + threadIdx.z;
    const int64_t from = chunk * TL_COLUMN_CHUNK, end = min(from + TL_COLUMN_CHUNK, p.rows);
    const int64_t column = (int64_t)tile * blockDim.x + threadIdx.x;
    const unsigned place = threadIdx.z * blockDim.x + threadIdx.x;
    float sum_gamma = 0.0f, sum_beta = 0.0f;
    if (column < p.cols) {
#pragma unroll 8
        for (int64_t row = from + threadIdx.y; row < end; row += TL_COLUMN_CHAINS) {
            const float g = p.g[row * p.cols + column];
            sum_gamma += g * tl_normalised(p.x[row * p.cols + column], means[row], istds[row]);
            sum_beta += g;
        }
    }
    chains[0][threadIdx.y][place] = sum_gamma;
    chains[1][threadIdx.y][place] = sum_beta;
    __syncthreads();
    if (threadIdx.y < 2 && from < p.rows && column < p.cols) {
        const float (*c)[64] = chains[threadIdx.y];
        float *out = threadIdx.y == 0 ? p.gamma_parts : p.beta_parts;
        if (out) out[chunk * p.cols + column] = (c[0][place] + c[1][place]) + (c[2][place] + c[3][place]);
    }
}

/* ---- the launches ------------------------------------------------------------------------------------------------ */

/* tl_short_row of a warp, with the four warps of the block that shared memory is laid out for. */
template <class Row> struct warp_row : Row {
    static constexpr int BLOCK_THREADS = 128;
    using Row::Row;
};

/* The longest row whose chains are summed by blocks, 0 for none: it depends on the chip's shared memory. */
int64_t chain_fits()
{
    int device = 0, most = 0;
    if (cudaGetDevice(&device) != cudaSuccess ||
        cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) != cudaSuccess)
        return 0;
    const auto fits = [&](auto chain) { return chain.DYNAMIC + chain.FIXED <= (size_t)most; };
    return fits(chain_12288())  ? 12288
           : fits(chain_8192()) ? 8192
           : fits(chain_4096()) ? 4096
           : fits(chain_2048()) ? 2048
           : fits(chain_1024()) ? 1024
                                : 0;
}

template <tl_norm_kind KIND> constexpr const char *NAME = KIND == TL_NORM_RMS ? "rms_norm_bwd" : "layer_norm_bwd";

/* Shared memory for x and g of two rows per warp: at least what the chains' meeting takes. */
template <tl_norm_kind KIND, class Row> int32_t launch_warps(tl_context *ctx, int64_t chunks, const columns_grad &p)
{
    constexpr size_t dynamic = sizeof(float) * 4 * Row::N * Row::BLOCK_THREADS;
    return tl_launch_shared(ctx, NAME<KIND>, chunk_warps<KIND, Row>, (unsigned)chunks, Row::BLOCK_THREADS, dynamic, p);
}

template <tl_norm_kind KIND, class Chain> int32_t launch_chains(tl_context *ctx, int64_t chunks, const columns_grad &p)
{
    return tl_launch_shared(ctx, NAME<KIND>,
                            p.cols % 4 == 0 ? chain_blocks<KIND, Chain, true> : chain_blocks<KIND, Chain, false>,
                            (unsigned)(chunks * TL_COLUMN_CHAINS), Chain::THREADS, Chain::DYNAMIC, p);
}

template <tl_norm_kind KIND, bool VECTOR> int32_t fused(tl_context *ctx, int64_t chunks, const columns_grad &p)
{
    return p.cols <= 128   ? launch_warps<KIND, warp_row<tl_short_row<VECTOR, 32, 4>>>(ctx, chunks, p)
           : p.cols <= 256 ? launch_warps<KIND, warp_row<tl_short_row<VECTOR, 32, 8>>>(ctx, chunks, p)
                           : launch_warps<KIND, warp_row<tl_short_row<VECTOR, 32, 16>>>(ctx, chunks, p);
}

template <tl_norm_kind KIND> int32_t chains(tl_context *ctx, int64_t chunks, const columns_grad &p)
{
    return p.cols <= 1024   ? launch_chains<KIND, chain_1024>(ctx, chunks, p)
           : p.cols <= 2048 ? launch_chains<KIND, chain_2048>(ctx, chunks, p)
           : p.cols <= 4096 ? launch_chains<KIND, chain_4096>(ctx, chunks, p)
           : p.cols <= 8192 ? launch_chains<KIND, chain_8192>(ctx, chunks, p)
                            : launch_chains<KIND, chain_12288>(ctx, chunks, p);
}

/* The columns of `chunks` parts, chunks' sums or (PARTS = 4) their chains': (gamma or beta, chunk, chain, cols). The first
 * level of the tree above them goes to `tops`, or to the results if it is the last. */
template <tl_norm_kind KIND, int PARTS>
int32_t sum_chains(tl_context *ctx, const float *parts, int64_t cols, int64_t chunks, float *tops, float *ggamma,
                   float *gbeta)
{
    const int64_t tiles = tl_ceil_div(cols, 64), groups = tl_ceil_div(chunks, TL_COLUMN_CHUNK);
    const bool last = groups == 1;
    TL_TRY(tl_launch(ctx, NAME<KIND>, join_chains<PARTS>, dim3((unsigned)(tiles * groups), 2), dim3(64, 4), parts, cols,
                     chunks, tl_fastdiv((uint64_t)tiles), last || !ggamma ? ggamma : tops,
                     last || !gbeta ? gbeta : tops + groups * cols));
    if (!last && ggamma) TL_TRY(tl_cuda_column_sums(ctx, tops, 1, groups, cols, 0, ggamma));
    return !last && gbeta ? tl_cuda_column_sums(ctx, tops + groups * cols, 1, groups, cols, 0, gbeta) : TORCHLEAN_OK;
}

/* Rows first, then the columns; one chunk's sums are the results. */
template <tl_norm_kind KIND>
int32_t rows_then_columns(tl_context *ctx, columns_grad p, int64_t chunks, float *means, float *tops, float *ggamma,
                          float *gbeta)
{
    float *const istds = means + p.rows;
    unsigned tx = 1;
    while (tx < 64 && tx < p.cols)
        tx *= 2;
    const int64_t tiles = tl_ceil_div(p.cols, tx), stacks = tl_ceil_div(chunks, 64 / tx);
    const float *const parts = p.gamma_parts;
    if (chunks == 1) p.gamma_parts = ggamma, p.beta_parts = gbeta;
    TL_TRY(tl_norm_rows_bwd(ctx, KIND, p.x, p.gamma, p.g, p.rows, p.cols, p.eps, p.gx, means, istds));
    TL_TRY(tl_launch(ctx, NAME<KIND>, columns_again, (unsigned)(tiles * stacks), dim3(tx, 4, 64 / tx), p, means, istds,
                     tl_fastdiv((uint64_t)tiles)));
    return chunks == 1 ? TORCHLEAN_OK : sum_chains<KIND, 1>(ctx, parts, p.cols, chunks, tops, ggamma, gbeta);
}

/* Scratch of all kinds lies in one block: what the columns have been summed to, the sums of that, the rows' statistics. */
template <tl_norm_kind KIND> int32_t with_columns(tl_context *ctx, columns_grad p, float *ggamma, float *gbeta)
{
    constexpr int64_t WARP_COLUMNS = 512, NARROW = 64,
                      SMALL = INT64_C(1) << 21; /* a chunk of rows takes a block 26 us */
    const int64_t chunks = tl_ceil_div(p.rows, TL_COLUMN_CHUNK);
    const bool by_warp = p.cols <= WARP_COLUMNS && p.cols > NARROW && p.rows * p.cols >= SMALL;
    const bool by_chain = p.cols > WARP_COLUMNS && p.cols <= chain_fits() &&
                          4 * TL_COLUMN_CHAINS * chunks >= 3 * (int64_t)tl_cuda_sms(ctx);
    const int64_t parts = chunks * p.cols * (by_chain ? TL_COLUMN_CHAINS : 1);
    const int64_t tops = 2 * tl_ceil_div(chunks, TL_COLUMN_CHUNK) * p.cols;
    tl_scratch<float> scratch(ctx);
    TL_TRY(scratch.allocate(2 * (parts + tops / 2 + (by_warp || by_chain ? 0 : p.rows))));
    p.gamma_parts = scratch;
    p.beta_parts = p.gamma_parts + parts;
    float *const above = p.beta_parts + parts;
    if (by_chain) {
        TL_TRY(chains<KIND>(ctx, chunks, p));
        return sum_chains<KIND, TL_COLUMN_CHAINS>(ctx, p.gamma_parts, p.cols, chunks, above, ggamma, gbeta);
    }
    if (!by_warp) return rows_then_columns<KIND>(ctx, p, chunks, above + tops, above, ggamma, gbeta);
    TL_TRY((p.cols % 4 == 0 ? fused<KIND, true>(ctx, chunks, p) : fused<KIND, false>(ctx, chunks, p)));
    return sum_chains<KIND, 1>(ctx, p.gamma_parts, p.cols, chunks, above, ggamma, gbeta);
}

template <tl_norm_kind KIND> int32_t norm_bwd(tl_context *ctx, const columns_grad &p, float *ggamma, float *gbeta)
{
    if (p.rows == 0) {
        if (ggamma) TL_TRY(tl_cuda_fill(tl_context_cuda(ctx), ggamma, 0.0f, p.cols));
        return gbeta ? tl_cuda_fill(tl_context_cuda(ctx), gbeta, 0.0f, p.cols) : TORCHLEAN_OK;
    }
    if (!ggamma && !gbeta)
        return tl_norm_rows_bwd(ctx, KIND, p.x, p.gamma, p.g, p.rows, p.cols, p.eps, p.gx, nullptr, nullptr);
    return with_columns<KIND>(ctx, p, ggamma, gbeta);
}

} // namespace

int32_t tl_cuda_layer_norm_bwd(tl_context *ctx, const float *x, const float *gamma, const float *g, int64_t rows,
                               int64_t cols, float eps, float *gx, float *ggamma, float *gbeta)
{
    return norm_bwd<TL_NORM_LAYER>(ctx, columns_grad{x, gamma, g, rows, cols, eps, gx, nullptr, nullptr}, ggamma,
                                   gbeta);
}

int32_t tl_cuda_rms_norm_bwd(tl_context *ctx, const float *x, const float *gamma, const float *g, int64_t rows,
                             int64_t cols, float eps, float *gx, float *ggamma)
{
    return norm_bwd<TL_NORM_RMS>(ctx, columns_grad{x, gamma, g, rows, cols, eps, gx, nullptr, nullptr}, ggamma,
                                 nullptr);
}
