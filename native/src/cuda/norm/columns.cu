/* The gradients of layer_norm and rms_norm on CUDA, with those of gamma and beta: sums of g·xhat and g down the columns.
 *
 * They follow the column tree (formula/sum_tree.h): a chunk of 128 rows is four chains, chain c of the rows c, c + 4, ... in
 * this order. A block owns a chain where a warp holds a row: its warps finish rows of the chain side by side, its threads then add
 * them (sum_chains). So x and g are read once; while rows are being finished the next ones are on their way to shared memory, and
 * registers hold the running sums. What is left, a sum per chain and column, is 1/32 of the data (join_chains). Other rows, and few
 * rows of many columns, are finished first (norm/norm.cu), then the columns are summed from x, g and the rows' statistics
 * (sum_columns). */
#include "cuda/norm/norm.cuh"
#include "cuda/norm/select.h"

namespace {

struct columns_grad {
    const float *x, *gamma, *g;
    int64_t rows, cols;
    float eps;
    float *gx; /* or NULL */
    float *gamma_parts, *beta_parts;
    tl_given_statistics given;
};

/* A warp finishes a row whose x and g lie in shared memory. */
template <tl_norm_kind KIND, bool GIVEN, class Row>
__device__ __forceinline__ void finish_row(const columns_grad &p, int64_t row, int cols, const float *x, const float *g,
                                           float2 *statistics)
{
    const Row r(tl_given(), row, cols);
    tl_held<Row, false> v, second;
    v.load(r, x);
    float mean, istd;
    tl_row_statistics<KIND, GIVEN>(r, v, cols, p.eps, p.given, row, &mean, &istd);
    if (r.leads()) *statistics = make_float2(mean, istd);
    if (!p.gx) return;
    second.load(r, g);
    float sum_a, sum_ax;
    tl_row_gradient_sums<KIND>(r, v, second, p.gamma, istd, &sum_a, &sum_ax);
    tl_row_gradient<KIND>(r, v, second, p.gamma, cols, sum_a, sum_ax, istd,
                          [&](int k, const float (&a)[Row::W]) { r.store(p.gx + row * p.cols, k, a); });
}

/* A block owns a chain of a chunk. Its SIDE warps finish as many rows of it side by side (Row: a warp's); then all threads add these
 * rows to the chain's sums, each thread for its own columns, in the chain's order, from x, g and the rows' statistics. Meanwhile the
 * next SIDE rows arrive in the other half of the stage. Parts are (chunk, chain, cols). */
template <tl_norm_kind KIND, bool GIVEN, class Row, int SIDE>
__global__ void __launch_bounds__(32 * SIDE, Row::N > 8 ? 3 : 4) sum_chains(columns_grad p)
{
    constexpr int THREADS = 32 * SIDE, STEP = SIDE * TL_COLUMN_CHAINS, OWN = (32 * Row::N + THREADS - 1) / THREADS;
    __shared__ float2 statistics[SIDE];
    float *const stage = reinterpret_cast<float *>(tl_dynamic_shared);
    const int64_t top = (int64_t)(blockIdx.x / TL_COLUMN_CHAINS) * TL_COLUMN_CHUNK; /* rows count from here */
    const int end = (int)min((int64_t)TL_COLUMN_CHUNK, p.rows - top), cols = (int)p.cols;
    __builtin_assume(cols > 0 && cols <= 32 * Row::N);
    const int t = (int)threadIdx.x, warp = t / 32, chain = (int)(blockIdx.x % TL_COLUMN_CHAINS);
    const auto place = [&](int half, int array, int w) { return stage + ((half * 2 + array) * SIDE + w) * cols; };
    const auto request = [&](int row, int half) {
        const int64_t from = (top + row) * p.cols;
        TL_UNROLL_FOR (int k = 0; k < Row::K; k++) {
            const int column = 4 * (32 * k + t % 32);
            if (row < end && column < cols) {
                tl_copy_async<16>(place(half, 0, warp) + column, p.x + from + column, true);
                tl_copy_async<16>(place(half, 1, warp) + column, p.g + from + column, true);
            }
        }
        tl_copy_commit();
    };
    float sum_gamma[OWN] = {}, sum_beta[OWN] = {};
    int row = chain + TL_COLUMN_CHAINS * warp, half = 0; /* the warp's */
    request(row, 0);
    request(row + STEP, 1);
#pragma unroll 1
    for (int first = chain; first < end; first += STEP, row += STEP, half ^= 1) {
        tl_copy_wait<1>();
        __syncwarp();
        if (row < end)
            finish_row<KIND, GIVEN, Row>(p, top + row, cols, place(half, 0, warp), place(half, 1, warp),
                                         &statistics[warp]);
        __syncthreads();
        TL_UNROLL_FOR (int w = 0; w < SIDE; w++) {
            if (first + TL_COLUMN_CHAINS * w >= end) break;
            const float2 s = statistics[w];
            const float *const x = place(half, 0, w) + t, *const g = place(half, 1, w) + t;
            TL_UNROLL_FOR (int i = 0; i < OWN; i++)
                if (t + THREADS * i < cols) {
                    sum_gamma[i] += g[THREADS * i] * tl_normalised(x[THREADS * i], s.x, s.y);
                    if (KIND != TL_NORM_RMS) sum_beta[i] += g[THREADS * i];
                }
        }
        __syncthreads(); /* all have read the half that is filled next */
        request(row + 2 * STEP, half);
    }
    tl_copy_wait<0>();
    const int64_t at = (int64_t)blockIdx.x * p.cols + t;
    TL_UNROLL_FOR (int i = 0; i < OWN; i++)
        if (t + THREADS * i < cols) {
            p.gamma_parts[at + THREADS * i] = sum_gamma[i];
            if (KIND != TL_NORM_RMS) p.beta_parts[at + THREADS * i] = sum_beta[i];
        }
}

/* Parts (gamma or beta, chunk, chain, cols) to chunks, and these, as rows of the column tree, to (chunk of chunks, cols). A block of
 * (64, 4) threads owns 64 columns of a chunk of chunks, thread (., c) chain c of one column. */
__global__ void __launch_bounds__(256)
    join_chains(const float *parts, int64_t cols, int64_t chunks, tl_fastdiv tiles, float *ggamma, float *gbeta)
{
    __shared__ float chains[TL_COLUMN_CHAINS][64];
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
        float part[TOGETHER][TL_COLUMN_CHAINS];
        TL_UNROLL_FOR (int i = 0; i < TOGETHER; i++) {
            const int64_t chunk = first + threadIdx.y + i * TL_COLUMN_CHAINS;
            const float *const at = parts + (blockIdx.y * chunks + chunk) * TL_COLUMN_CHAINS * cols + column;
            TL_UNROLL_FOR (int j = 0; j < TL_COLUMN_CHAINS; j++)
                part[i][j] = chunk < end && column < cols ? at[j * cols] : 0.0f;
        }
        TL_UNROLL_FOR (int i = 0; i < TOGETHER; i++)
            sum += (part[i][0] + part[i][1]) + (part[i][2] + part[i][3]);
    }
    chains[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y > 0 || column >= cols) return;
    out[top * cols + column] = (chains[0][threadIdx.x] + chains[1][threadIdx.x]) +
                               (chains[2][threadIdx.x] + chains[3][threadIdx.x]);
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

/* A block of (TX, 4, TZ) threads owns TX columns of as many chunks. Where these are all, their sums, as rows of the column tree, end
 * as the results (WHOLE); else they are the parts (chunk, cols). */
constexpr int COLUMN_THREADS = 1024;

template <bool WHOLE>
__global__ void __launch_bounds__(COLUMN_THREADS)
    sum_columns(columns_grad p, const float *means, const float *istds, tl_fastdiv tiles)
{
    __shared__ float chains[2][TL_COLUMN_CHAINS][COLUMN_THREADS / TL_COLUMN_CHAINS];
    tl_wait_for_earlier();
    uint32_t tile;
    const int64_t first = (int64_t)tiles.divmod(blockIdx.x, &tile) * blockDim.z, chunk = first + threadIdx.z;
    const int64_t column = (int64_t)tile * blockDim.x + threadIdx.x;
    const unsigned place = threadIdx.z * blockDim.x + threadIdx.x;
    const float2 sums = sum_chain(p, means, istds, first, column);
    chains[0][threadIdx.y][place] = sums.x;
    chains[1][threadIdx.y][place] = sums.y;
    __syncthreads();
    float *const out = threadIdx.y == 0 ? p.gamma_parts : p.beta_parts;
    if (threadIdx.y > 1 || column >= p.cols || !out) return;
    const float (*c)[COLUMN_THREADS / TL_COLUMN_CHAINS] = chains[threadIdx.y];
    const auto chunk_at = [&](unsigned at) { return (c[0][at] + c[1][at]) + (c[2][at] + c[3][at]); };
    if (!WHOLE) {
        if (chunk * TL_COLUMN_CHUNK < p.rows) out[chunk * p.cols + column] = chunk_at(place);
    } else if (threadIdx.z == 0) {
        float chain[TL_COLUMN_CHAINS] = {};
#pragma unroll 1
        for (unsigned z = 0; z < blockDim.z; z += TL_COLUMN_CHAINS)
            TL_UNROLL_FOR (unsigned j = 0; j < TL_COLUMN_CHAINS; j++)
                if (z + j < blockDim.z) chain[j] += chunk_at((z + j) * blockDim.x + threadIdx.x);
        out[column] = (chain[0] + chain[1]) + (chain[2] + chain[3]);
    }
}

/* ---- the launches ------------------------------------------------------------------------------------------------ */

template <tl_norm_kind KIND> constexpr const char *NAME = KIND == TL_NORM_RMS ? "rms_norm_bwd" : "layer_norm_bwd";

/* The chains, and the columns of these. The first level of the tree above them goes to `tops`, or to the results if it is the last. */
template <tl_norm_kind KIND, bool GIVEN>
int32_t chains_then_columns(tl_context *ctx, const columns_grad &p, int64_t chunks, float *tops, float *ggamma,
                            float *gbeta)
{
    const auto launch = [&](auto kernel, unsigned side) {
        const size_t bytes = sizeof(float) * 2 * 2 * side * (size_t)p.cols;
        TL_TRY(tl_allow_shared(ctx, kernel, bytes));
        return tl_launch_dynamic(ctx, NAME<KIND>, kernel, (unsigned)(chunks * TL_COLUMN_CHAINS), 32 * side, bytes, p);
    };
    /* A multiprocessor has room for 96 KiB and more of rows on their way. */
    TL_TRY(p.cols <= 128   ? launch(sum_chains<KIND, GIVEN, tl_short_row<true, 32, 4>, 8>, 8)
           : p.cols <= 256 ? launch(sum_chains<KIND, GIVEN, tl_short_row<true, 32, 8>, 8>, 8)
           : p.cols <= 384 ? launch(sum_chains<KIND, GIVEN, tl_short_row<true, 32, 12>, 8>, 8)
           : p.cols <= 512 ? launch(sum_chains<KIND, GIVEN, tl_short_row<true, 32, 16>, 8>, 8)
           : p.cols <= 768 ? launch(sum_chains<KIND, GIVEN, tl_short_row<true, 32, 24>, 4>, 4)
                           : launch(sum_chains<KIND, GIVEN, tl_short_row<true, 32, 32>, 4>, 4));
    const int64_t tiles = tl_ceil_div(p.cols, 64), groups = tl_ceil_div(chunks, TL_COLUMN_CHUNK);
    const bool last = groups == 1;
    TL_TRY(tl_launch_ahead(ctx, NAME<KIND>, join_chains, dim3((unsigned)(tiles * groups), 2), dim3(64, 4), 0,
                           p.gamma_parts, p.cols, chunks, tl_fastdiv((uint64_t)tiles), last || !ggamma ? ggamma : tops,
                           last || !gbeta ? gbeta : tops + groups * p.cols));
    if (!last && ggamma) TL_TRY(tl_cuda_column_sums(ctx, tops, 1, groups, p.cols, 0, ggamma));
    return !last && gbeta ? tl_cuda_column_sums(ctx, tops + groups * p.cols, 1, groups, p.cols, 0, gbeta)
                          : TORCHLEAN_OK;
}

/* Rows first, then the columns. */
template <tl_norm_kind KIND>
int32_t rows_then_columns(tl_context *ctx, columns_grad p, bool whole, int64_t chunks, float *means, float *ggamma,
                          float *gbeta)
{
    const float *const of_means = p.given.means ? p.given.means : means;
    const float *const of_istds = p.given.istds ? p.given.istds : means + p.rows;
    if (p.gx || !p.given.means)
        TL_TRY(tl_norm_rows_bwd(ctx, KIND, p.x, p.gamma, p.g, p.given, p.rows, p.cols, p.eps, p.gx, means,
                                means + p.rows));
    /* 16 columns side by side are whole sectors of memory, more of them fewer requests: where enough blocks are left. */
    constexpr unsigned MIN_COLUMNS = 16, MAX_COLUMNS = 64;
    const auto wider = [&](unsigned tx) {
        return tx < p.cols && (tx < MIN_COLUMNS ||
                               (tx < MAX_COLUMNS && (!whole || (2 * tx * chunks <= COLUMN_THREADS / TL_COLUMN_CHAINS &&
                                                                p.cols >= (int64_t)(2 * tx) * tl_cuda_sms(ctx)))));
    };
    unsigned tx = 1;
    while (wider(tx))
        tx *= 2;
    const dim3 block(tx, TL_COLUMN_CHAINS, whole ? (unsigned)chunks : MAX_COLUMNS / tx);
    const int64_t tiles = tl_ceil_div(p.cols, tx), stacks = tl_ceil_div(chunks, block.z);
    const size_t bytes = sizeof(float2) *
                         (ahead::ROWS * (size_t)(block.x * block.y * block.z) + (size_t)block.z * TL_COLUMN_CHUNK);
    float *const gamma_parts = p.gamma_parts, *const beta_parts = p.beta_parts;
    p.gamma_parts = !whole && ggamma ? gamma_parts : ggamma, p.beta_parts = !whole && gbeta ? beta_parts : gbeta;
    const auto kernel = whole ? sum_columns<true> : sum_columns<false>;
    TL_TRY(tl_allow_shared(ctx, kernel, bytes));
    TL_TRY(tl_launch_ahead(ctx, NAME<KIND>, kernel, (unsigned)(tiles * stacks), block, bytes, p, of_means, of_istds,
                           tl_fastdiv((uint64_t)tiles)));
    if (whole) return TORCHLEAN_OK;
    if (ggamma) TL_TRY(tl_cuda_column_sums(ctx, gamma_parts, 1, chunks, p.cols, 0, ggamma));
    return gbeta ? tl_cuda_column_sums(ctx, beta_parts, 1, chunks, p.cols, 0, gbeta) : TORCHLEAN_OK;
}

/* Scratch of all kinds lies in one block: what the columns have been summed to, the sums of that, the rows' statistics. */
template <tl_norm_kind KIND, bool GIVEN>
int32_t with_columns(tl_context *ctx, columns_grad p, float *ggamma, float *gbeta)
{
    const auto how = tl_select_norm_columns(p.rows, p.cols);
    const bool by_chain = how == TL_NORM_CHAINS;
    const int64_t chunks = tl_ceil_div(p.rows, TL_COLUMN_CHUNK);
    const int64_t parts = chunks * p.cols * (by_chain ? TL_COLUMN_CHAINS : 1);
    const int64_t above = by_chain ? 2 * tl_ceil_div(chunks, TL_COLUMN_CHUNK) * p.cols : 2 * p.rows;
    tl_scratch<float> scratch(ctx);
    TL_TRY(scratch.allocate(2 * parts + above));
    p.gamma_parts = scratch;
    p.beta_parts = p.gamma_parts + parts;
    float *const rest = p.beta_parts + parts;
    return by_chain ? chains_then_columns<KIND, GIVEN>(ctx, p, chunks, rest, ggamma, gbeta)
                    : rows_then_columns<KIND>(ctx, p, how == TL_NORM_COLUMNS_OF_BLOCK, chunks, rest, ggamma, gbeta);
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
