/* The gradients of layer_norm and rms_norm on CUDA, with those of gamma and beta: sums of g·xhat and g down the columns.
 *
 * They follow the column tree (formula/sum_tree.h): a chunk of 128 rows is four chains, chain c of the rows c, c + 4, ... in
 * this order. So whoever owns a chain adds its rows to running sums as they have been finished:
 *
 *   65 to 512 columns     a block owns a chain, its warps finish rows of it side by side, its threads then add them (chain_warps)
 *   up to 12288           a block owns a chain and finishes one or two rows of it at a time (chain_blocks)
 *   else                  rows first (norm/norm.cu), then the columns from x, g and the rows' statistics (columns_again)
 *
 * Only a column's additions are in order, 32 of a chain. That a chain's rows be finished one after the other is not asked for, and
 * takes 32 times the latency of a row, 50 us, however few rows there are. Where rows are so long that a block finishes them one by
 * one, few chains leave most of the chip idle and go the third way, and so do the narrowest rows: a warp has little to load.
 * The first two read x and g once. While rows are being finished the next ones are on their way to shared memory, 16 bytes at a
 * time also where rows begin anywhere, so a multiprocessor has at least 64 KiB of loads in flight, and registers hold the running
 * sums. What is left, a sum per chain and column, is 1/32 of the data. */
#include "cuda/norm/chain_warps.cuh"

namespace {

/* A block owns a chain of a chunk. Thread t has the columns t, t + THREADS, ... of it: LANES lanes of the row tree,
 * THREADS apart, so that the first levels of a fold need nobody else, and the running sums of those columns. ROWS rows
 * of the chain are finished together, which shares the latency of the folds; a column's sums still take them one after
 * the other. Rows arrive in shared memory 16 bytes at a time and are read 4 at a time, neighbours side by side: the g of
 * STAGES groups of rows, all but one on their way, the x of one group less, because that of the current group moves to
 * registers at once. Parts are (chunk, chain, cols). */
template <int THREADS_, int STEPS_, int ROWS_, int STAGES_, int BLOCKS_> struct lane_chain {
    static constexpr int THREADS = THREADS_, STEPS = STEPS_, ROWS = ROWS_, STAGES = STAGES_, BLOCKS = BLOCKS_;
    static constexpr int LANES = TL_SUM_LANES / THREADS, N = STEPS * LANES;
    static constexpr int ARRAY = STEPS * TL_SUM_LANES + 4; /* a row begins anywhere in its first quadruple */
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

template <tl_norm_kind KIND, bool GIVEN, class Chain, bool VECTOR>
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
    int first = (int)(blockIdx.x % TL_COLUMN_CHAINS), g_slot = 0, x_slot = 0;
    const int shift = VECTOR ? 0 : first * cols % 4;
    const auto request_array = [&](float *to, const float *from, int behind, int length) {
#pragma unroll 6
        for (int i = 0; i < ARRAY / (4 * THREADS); i++)
            request_quad<VECTOR>(to, from, behind, length, t + i * THREADS);
        if (!VECTOR && t == 0) request_quad<VECTOR>(to, from, behind, length, ARRAY / 4 - 1);
    };
    /* Zeros arrive in place of rows past the chain's end. */
    const auto request = [&](float *to, const float *from, int top_row) {
        TL_UNROLL_FOR (int q = 0; q < ROWS; q++) {
            const int row = top_row + q * TL_COLUMN_CHAINS;
            request_array(to + q * ARRAY, from + (row < end ? (top + row) * cols : shift), shift,
                          row < end ? cols : -shift);
        }
        tl_copy_commit();
    };
    request_array(scales, p.gamma, 0, cols);
    TL_UNROLL_FOR (int s = 0; s + 1 < STAGES; s++) {
        request(g_stages + s * ROWS * ARRAY, p.g, first + s * AHEAD);
        request(x_stages + s * ROWS * ARRAY, p.x, first + s * AHEAD);
    }
#pragma unroll 1
    for (; first < end; first += AHEAD) {
        tl_copy_wait<2 * (STAGES - 2)>();
        __syncthreads(); /* all have what they requested, and are done with the rows before */
        const float *const g = g_stages + g_slot * ROWS * ARRAY + shift + t;
        float *const x_stage = x_stages + x_slot * ROWS * ARRAY;
        request(g_stages + (g_slot == 0 ? STAGES - 1 : g_slot - 1) * ROWS * ARRAY, p.g, first + (STAGES - 1) * AHEAD);
        g_slot = g_slot + 1 == STAGES ? 0 : g_slot + 1;
        x_slot = x_slot + 2 == STAGES ? 0 : x_slot + 1;
        float x[ROWS][N], mean[ROWS], istd[ROWS], both[2 * ROWS];
        TL_UNROLL_FOR (int q = 0; q < ROWS; q++) {
            float sum[LANES] = {};
            TL_UNROLL_FOR (int i = 0; i < N; i++) {
                x[q][i] = x_stage[shift + t + q * ARRAY + i * THREADS];
                sum[i % LANES] += x[q][i];
            }
            mean[q] = KIND == TL_NORM_RMS ? 0.0f : tl_fold_array<tl_sum_op, LANES>(sum);
        }
        if constexpr (KIND == TL_NORM_RMS || GIVEN)
            __syncthreads();
        else
            fold_lanes<THREADS>(mean, lanes, folded);
        request(x_stage, p.x, first + (STAGES - 1) * AHEAD); /* a barrier follows everybody's reads */
        TL_UNROLL_FOR (int q = 0; q < ROWS; q++) {
            float sum[LANES] = {};
            const int row = first + q * TL_COLUMN_CHAINS;
            if (GIVEN)
                mean[q] = row < end ? p.given.mean(top + row) : 0.0f;
            else
                mean[q] = tl_per_count(mean[q], cols);
            TL_UNROLL_FOR (int i = 0; i < N; i++) {
                x[q][i] = i * THREADS < n ? x[q][i] - mean[q] : 0.0f;
                sum[i % LANES] += x[q][i] * x[q][i];
            }
            istd[q] = tl_fold_array<tl_sum_op, LANES>(sum);
        }
        if constexpr (!GIVEN) fold_lanes<THREADS>(istd, lanes, folded);
        float sum_a[ROWS][LANES] = {}, sum_ax[ROWS][LANES] = {};
        TL_UNROLL_FOR (int q = 0; q < ROWS; q++)
            istd[q] = !GIVEN                               ? tl_inverse_deviation(istd[q], cols, p.eps)
                      : first + q * TL_COLUMN_CHAINS < end ? p.given.istds[top + first + q * TL_COLUMN_CHAINS]
                                                           : 0.0f;
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
__global__ void __launch_bounds__(256)
    join_chains(const float *parts, int64_t cols, int64_t chunks, tl_fastdiv tiles, float *ggamma, float *gbeta)
{
    __shared__ float chains[4][64];
    tl_wait_for_earlier();
    float *const out = blockIdx.y == 0 ? ggamma : gbeta;
    if (!out) return;
    uint32_t tile;
    const int64_t top = tiles.divmod(blockIdx.x, &tile), from = top * TL_COLUMN_CHUNK;
    const int64_t end = min(from + TL_COLUMN_CHUNK, chunks), column = (int64_t)tile * 64 + threadIdx.x;
    constexpr int TOGETHER = 8; /* chunks that are loaded before the first is added */
    float sum = 0.0f;
#pragma unroll 1
    for (int64_t first = from; first < end; first += TOGETHER * TL_COLUMN_CHAINS) {
        float part[TOGETHER][PARTS];
        TL_UNROLL_FOR (int i = 0; i < TOGETHER; i++) {
            const int64_t chunk = first + threadIdx.y + i * TL_COLUMN_CHAINS;
            const float *const at = parts + (blockIdx.y * chunks + chunk) * PARTS * cols + column;
            TL_UNROLL_FOR (int j = 0; j < PARTS; j++)
                part[i][j] = chunk < end && column < cols ? at[j * cols] : 0.0f;
        }
        TL_UNROLL_FOR (int i = 0; i < TOGETHER; i++)
            sum += PARTS == 1 ? part[i][0]
                              : (part[i][0] + part[i][PARTS / 4]) + (part[i][PARTS / 2] + part[i][PARTS - 1]);
    }
    sum = join_four(sum, chains);
    if (threadIdx.y == 0 && column < cols) out[top * cols + column] = sum;
}

/* The columns of `blockDim.z` chunks from chunk `first` on, from x, g and the rows' statistics: thread (., c, z) sums chain c of
 * chunk z in its column, gamma's gradient and beta's. A thread has ahead::ROWS rows on their way to its own places in shared memory:
 * the compiler moves loads to registers down to their sums, two or three at a time, with the latency of memory between them. */
struct ahead {
    static constexpr int GROUP = 2, GROUPS = 4, ROWS = GROUP * GROUPS;
};
__device__ __forceinline__ float2 sum_chain(const columns_grad &p, const float *means, const float *istds,
                                            int64_t first, int64_t column)
{
    constexpr int GROUP = ahead::GROUP, GROUPS = ahead::GROUPS;
    const unsigned threads = blockDim.x * blockDim.y * blockDim.z;
    const unsigned t = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    const int64_t top = first * TL_COLUMN_CHUNK; /* rows count from here */
    const int rows = (int)min((int64_t)blockDim.z * TL_COLUMN_CHUNK, p.rows - top);
    const int from = (int)threadIdx.z * TL_COLUMN_CHUNK, end = column < p.cols ? min(from + TL_COLUMN_CHUNK, rows) : 0;
    float *const stage = reinterpret_cast<float *>(tl_dynamic_shared) + t;
    float2 *const statistics = reinterpret_cast<float2 *>(tl_dynamic_shared) + ahead::ROWS * threads;
    const auto place = [&](int slot, int i, int array) { return stage + ((slot * GROUP + i) * 2 + array) * threads; };
    const auto request = [&](int next, int slot) {
        TL_UNROLL_FOR (int i = 0; i < GROUP; i++) {
            const int row = next + i * TL_COLUMN_CHAINS;
            const int64_t at = row < end ? (top + row) * p.cols + column : 0;
            tl_copy_async<4>(place(slot, i, 0), p.x + at, row < end);
            tl_copy_async<4>(place(slot, i, 1), p.g + at, row < end);
        }
        tl_copy_commit();
    };
    int row = from + (int)threadIdx.y, slot = 0;
    TL_UNROLL_FOR (int s = 0; s < GROUPS; s++)
        request(row + s * GROUP * TL_COLUMN_CHAINS, s);
    for (int i = (int)t; i < rows; i += (int)threads)
        statistics[i] = make_float2(means[top + i], istds[top + i]);
    __syncthreads();
    float2 sums = make_float2(0.0f, 0.0f);
#pragma unroll 1
    for (; row < end; row += GROUP * TL_COLUMN_CHAINS, slot = (slot + 1) % GROUPS) {
        tl_copy_wait<GROUPS - 1>();
        TL_UNROLL_FOR (int i = 0; i < GROUP; i++) {
            if (row + i * TL_COLUMN_CHAINS >= end) break;
            const float2 s = statistics[row + i * TL_COLUMN_CHAINS];
            const float g = *place(slot, i, 1);
            sums.x += g * tl_normalised(*place(slot, i, 0), s.x, s.y);
            sums.y += g;
        }
        request(row + ahead::ROWS * TL_COLUMN_CHAINS, slot);
    }
    tl_copy_wait<0>();
    return sums;
}
size_t chain_bytes(unsigned threads, int64_t chunks)
{
    return sizeof(float2) * (ahead::ROWS * threads + (size_t)chunks * TL_COLUMN_CHUNK);
}

/* A block of (TX, 4, 64 / TX) threads owns TX columns of as many chunks. */
__global__ void __launch_bounds__(256)
    columns_again(columns_grad p, const float *means, const float *istds, tl_fastdiv tiles)
{
    __shared__ float chains[2][4][64];
    tl_wait_for_earlier();
    uint32_t tile;
    const int64_t first = (int64_t)tiles.divmod(blockIdx.x, &tile) * blockDim.z, chunk = first + threadIdx.z;
    const int64_t column = (int64_t)tile * blockDim.x + threadIdx.x;
    const unsigned place = threadIdx.z * blockDim.x + threadIdx.x;
    const float2 sums = sum_chain(p, means, istds, first, column);
    chains[0][threadIdx.y][place] = sums.x;
    chains[1][threadIdx.y][place] = sums.y;
    __syncthreads();
    if (threadIdx.y < 2 && chunk * TL_COLUMN_CHUNK < p.rows && column < p.cols) {
        const float (*c)[64] = chains[threadIdx.y];
        float *out = threadIdx.y == 0 ? p.gamma_parts : p.beta_parts;
        if (out) out[chunk * p.cols + column] = (c[0][place] + c[1][place]) + (c[2][place] + c[3][place]);
    }
}

/* Few chunks: a block of (TX, 4, chunks) threads owns TX columns of them all. Their sums, as rows of the column tree, end as the
 * results: no launch is left to join them. */
struct at_once {
    static constexpr int CHUNKS = 16, THREADS = 1024;
};
__global__ void __launch_bounds__(at_once::THREADS)
    columns_at_once(columns_grad p, const float *means, const float *istds)
{
    __shared__ float chains[2][4][at_once::THREADS / TL_COLUMN_CHAINS];
    tl_wait_for_earlier();
    const int64_t column = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    const unsigned place = threadIdx.z * blockDim.x + threadIdx.x;
    const float2 sums = sum_chain(p, means, istds, 0, column);
    chains[0][threadIdx.y][place] = sums.x;
    chains[1][threadIdx.y][place] = sums.y;
    __syncthreads();
    float *const out = threadIdx.y == 0 ? p.gamma_parts : p.beta_parts;
    if (threadIdx.z > 0 || threadIdx.y > 1 || column >= p.cols || !out) return;
    const float (*c)[at_once::THREADS / TL_COLUMN_CHAINS] = chains[threadIdx.y];
    float chain[TL_COLUMN_CHAINS] = {};
#pragma unroll 1
    for (unsigned z = 0; z < blockDim.z; z += TL_COLUMN_CHAINS)
        TL_UNROLL_FOR (unsigned j = 0; j < TL_COLUMN_CHAINS; j++) {
            const unsigned at = (z + j) * blockDim.x + threadIdx.x;
            if (z + j < blockDim.z) chain[j] += (c[0][at] + c[1][at]) + (c[2][at] + c[3][at]);
        }
    out[column] = (chain[0] + chain[1]) + (chain[2] + chain[3]);
}

/* ---- the launches ------------------------------------------------------------------------------------------------ */

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

/* Shared memory for x and g of two groups of rows, which begin and end within quadruples. */
template <tl_norm_kind KIND, bool GIVEN, class Row>
int32_t launch_warps(tl_context *ctx, int64_t chunks, const columns_grad &p)
{
    const int pitch = 4 * (int)tl_ceil_div(p.cols + (Row::VECTOR ? 0 : 3), 4);
    const size_t dynamic = sizeof(float) * 2 * 2 * side_by_side::ROWS * (size_t)pitch;
    TL_TRY(tl_allow_shared(ctx, chain_warps<KIND, GIVEN, Row>, dynamic));
    return tl_launch_dynamic(ctx, NAME<KIND>, chain_warps<KIND, GIVEN, Row>, (unsigned)(chunks * TL_COLUMN_CHAINS),
                             side_by_side::THREADS, dynamic, p, pitch);
}

template <tl_norm_kind KIND, bool GIVEN, class Chain>
int32_t launch_chains(tl_context *ctx, int64_t chunks, const columns_grad &p)
{
    return tl_launch_shared(ctx, NAME<KIND>,
                            p.cols % 4 == 0 ? chain_blocks<KIND, GIVEN, Chain, true>
                                            : chain_blocks<KIND, GIVEN, Chain, false>,
                            (unsigned)(chunks * TL_COLUMN_CHAINS), Chain::THREADS, Chain::DYNAMIC, p);
}

template <tl_norm_kind KIND, bool GIVEN, bool VECTOR>
int32_t warps(tl_context *ctx, int64_t chunks, const columns_grad &p)
{
    return p.cols <= 128   ? launch_warps<KIND, GIVEN, tl_short_row<VECTOR, 32, 4>>(ctx, chunks, p)
           : p.cols <= 256 ? launch_warps<KIND, GIVEN, tl_short_row<VECTOR, 32, 8>>(ctx, chunks, p)
           : p.cols <= 384 ? launch_warps<KIND, GIVEN, tl_short_row<VECTOR, 32, 12>>(ctx, chunks, p)
                           : launch_warps<KIND, GIVEN, tl_short_row<VECTOR, 32, 16>>(ctx, chunks, p);
}

template <tl_norm_kind KIND, bool GIVEN> int32_t chains(tl_context *ctx, int64_t chunks, const columns_grad &p)
{
    return p.cols <= 1024   ? launch_chains<KIND, GIVEN, chain_1024>(ctx, chunks, p)
           : p.cols <= 2048 ? launch_chains<KIND, GIVEN, chain_2048>(ctx, chunks, p)
           : p.cols <= 4096 ? launch_chains<KIND, GIVEN, chain_4096>(ctx, chunks, p)
           : p.cols <= 8192 ? launch_chains<KIND, GIVEN, chain_8192>(ctx, chunks, p)
                            : launch_chains<KIND, GIVEN, chain_12288>(ctx, chunks, p);
}

/* The columns of `chunks` parts, chunks' sums or (PARTS = 4) their chains': (gamma or beta, chunk, chain, cols). The first
 * level of the tree above them goes to `tops`, or to the results if it is the last. */
template <tl_norm_kind KIND, int PARTS>
int32_t sum_chains(tl_context *ctx, const float *parts, int64_t cols, int64_t chunks, float *tops, float *ggamma,
                   float *gbeta)
{
    const int64_t tiles = tl_ceil_div(cols, 64), groups = tl_ceil_div(chunks, TL_COLUMN_CHUNK);
    const bool last = groups == 1;
    TL_TRY(tl_launch_ahead(ctx, NAME<KIND>, join_chains<PARTS>, dim3((unsigned)(tiles * groups), 2), dim3(64, 4), 0,
                           parts, cols, chunks, tl_fastdiv((uint64_t)tiles), last || !ggamma ? ggamma : tops,
                           last || !gbeta ? gbeta : tops + groups * cols));
    if (!last && ggamma) TL_TRY(tl_cuda_column_sums(ctx, tops, 1, groups, cols, 0, ggamma));
    return !last && gbeta ? tl_cuda_column_sums(ctx, tops + groups * cols, 1, groups, cols, 0, gbeta) : TORCHLEAN_OK;
}

/* Rows first, then the columns. */
template <tl_norm_kind KIND>
int32_t rows_then_columns(tl_context *ctx, columns_grad p, int64_t chunks, float *means, float *tops, float *ggamma,
                          float *gbeta)
{
    const float *const of_means = p.given.means ? p.given.means : means;
    const float *const of_istds = p.given.istds ? p.given.istds : means + p.rows;
    if (p.gx || !p.given.means)
        TL_TRY(tl_norm_rows_bwd(ctx, KIND, p.x, p.gamma, p.g, p.given, p.rows, p.cols, p.eps, p.gx, means,
                                means + p.rows));
    /* 16 columns side by side are whole sectors of memory, more of them fewer requests: where enough blocks are left. */
    constexpr unsigned LEAST = 16, MOST = 64;
    const bool few = chunks <= at_once::CHUNKS;
    const auto wider = [&](unsigned tx) {
        return tx < p.cols &&
               (tx < LEAST || (tx < MOST && (!few || (2 * tx * chunks <= at_once::THREADS / TL_COLUMN_CHAINS &&
                                                      p.cols >= (int64_t)(2 * tx) * tl_cuda_sms(ctx)))));
    };
    unsigned tx = 1;
    while (wider(tx))
        tx *= 2;
    const dim3 block(tx, TL_COLUMN_CHAINS, few ? (unsigned)chunks : MOST / tx);
    const size_t bytes = chain_bytes(block.x * block.y * block.z, block.z);
    if (few) {
        p.gamma_parts = ggamma, p.beta_parts = gbeta;
        TL_TRY(tl_allow_shared(ctx, columns_at_once, bytes));
        return tl_launch_ahead(ctx, NAME<KIND>, columns_at_once, tl_grid(p.cols, tx), block, bytes, p, of_means,
                               of_istds);
    }
    const int64_t tiles = tl_ceil_div(p.cols, tx), stacks = tl_ceil_div(chunks, block.z);
    TL_TRY(tl_allow_shared(ctx, columns_again, bytes));
    TL_TRY(tl_launch_ahead(ctx, NAME<KIND>, columns_again, (unsigned)(tiles * stacks), block, bytes, p, of_means,
                           of_istds, tl_fastdiv((uint64_t)tiles)));
    return sum_chains<KIND, 1>(ctx, p.gamma_parts, p.cols, chunks, tops, ggamma, gbeta);
}

/* Scratch of all kinds lies in one block: what the columns have been summed to, the sums of that, the rows' statistics. */
template <tl_norm_kind KIND, bool GIVEN>
int32_t with_columns(tl_context *ctx, columns_grad p, float *ggamma, float *gbeta)
{
    constexpr int64_t WARP_COLUMNS = 512, NARROW = 64;
    const int64_t chunks = tl_ceil_div(p.rows, TL_COLUMN_CHUNK);
    const bool by_warp = p.cols <= WARP_COLUMNS && p.cols > NARROW && chunks > 1;
    /* A chain of more columns has a multiprocessor to itself, and a second round of few chains takes as long as one of many. */
    constexpr int64_t SHARED_COLUMNS = 2048;
    const int64_t sms = tl_cuda_sms(ctx), tasks = chunks * TL_COLUMN_CHAINS;
    const bool fills = 4 * tasks >= 3 * sms && (p.cols <= SHARED_COLUMNS || tasks <= sms || 3 * tasks > 4 * sms);
    const bool by_chain = p.cols > WARP_COLUMNS && p.cols <= chain_fits() && fills;
    const int64_t parts = chunks * p.cols * (by_warp || by_chain ? TL_COLUMN_CHAINS : 1);
    const int64_t tops = 2 * tl_ceil_div(chunks, TL_COLUMN_CHUNK) * p.cols;
    tl_scratch<float> scratch(ctx);
    TL_TRY(scratch.allocate(2 * (parts + tops / 2 + (by_warp || by_chain ? 0 : p.rows))));
    p.gamma_parts = scratch;
    p.beta_parts = p.gamma_parts + parts;
    float *const above = p.beta_parts + parts;
    if (!by_warp && !by_chain) return rows_then_columns<KIND>(ctx, p, chunks, above + tops, above, ggamma, gbeta);
    TL_TRY((by_chain          ? chains<KIND, GIVEN>(ctx, chunks, p)
            : p.cols % 4 == 0 ? warps<KIND, GIVEN, true>(ctx, chunks, p)
                              : warps<KIND, GIVEN, false>(ctx, chunks, p)));
    return sum_chains<KIND, TL_COLUMN_CHAINS>(ctx, p.gamma_parts, p.cols, chunks, above, ggamma, gbeta);
}

template <tl_norm_kind KIND> int32_t norm_bwd(tl_context *ctx, const columns_grad &p, float *ggamma, float *gbeta)
{
    if (p.rows == 0) {
        if (ggamma) TL_TRY(tl_cuda_fill(tl_context_cuda(ctx), ggamma, 0.0f, p.cols));
        return gbeta ? tl_cuda_fill(tl_context_cuda(ctx), gbeta, 0.0f, p.cols) : TORCHLEAN_OK;
    }
    if (!ggamma && !gbeta)
        return tl_norm_rows_bwd(ctx, KIND, p.x, p.gamma, p.g, p.given, p.rows, p.cols, p.eps, p.gx, nullptr, nullptr);
    return p.given.istds ? with_columns<KIND, true>(ctx, p, ggamma, gbeta)
                         : with_columns<KIND, false>(ctx, p, ggamma, gbeta);
}

} // namespace

int32_t tl_cuda_layer_norm_bwd(tl_context *ctx, const float *x, const float *gamma, const float *g, int64_t rows,
                               int64_t cols, float eps, float *gx, float *ggamma, float *gbeta)
{
    return norm_bwd<TL_NORM_LAYER>(ctx, columns_grad{x, gamma, g, rows, cols, eps, gx, nullptr, nullptr, {}}, ggamma,
                                   gbeta);
}

int32_t tl_cuda_rms_norm_bwd(tl_context *ctx, const float *x, const float *gamma, const float *g, int64_t rows,
                             int64_t cols, float eps, float *gx, float *ggamma)
{
    return norm_bwd<TL_NORM_RMS>(ctx, columns_grad{x, gamma, g, rows, cols, eps, gx, nullptr, nullptr, {}}, ggamma,
                                 nullptr);
}

int32_t tl_cuda_layer_norm_stats_bwd(tl_context *ctx, const float *x, const float *gamma, const float *mean,
                                     const float *istd, const float *g_out, int64_t rows, int64_t cols, float eps,
                                     float *gx, float *ggamma, float *gbeta)
{
    const float *beta = x; /* which is not read */
    tl_scratch<float> scratch(ctx);
    if (cols == 0) return TORCHLEAN_OK;
    TL_TRY(tl_norm_absent(ctx, scratch, cols, &gamma, &beta));
    const columns_grad p = {x, gamma, g_out, rows, cols, eps, gx, nullptr, nullptr, {mean, istd}};
    return norm_bwd<TL_NORM_LAYER>(ctx, p, ggamma, gbeta);
}

int32_t tl_cuda_rms_norm_stats_bwd(tl_context *ctx, const float *x, const float *gamma, const float *istd,
                                   const float *g_out, int64_t rows, int64_t cols, float eps, float *gx, float *ggamma)
{
    const float *beta = x; /* which is not read */
    tl_scratch<float> scratch(ctx);
    if (cols == 0) return TORCHLEAN_OK;
    TL_TRY(tl_norm_absent(ctx, scratch, cols, &gamma, &beta));
    const columns_grad p = {x, gamma, g_out, rows, cols, eps, gx, nullptr, nullptr, {nullptr, istd}};
    return norm_bwd<TL_NORM_RMS>(ctx, p, ggamma, nullptr);
}
