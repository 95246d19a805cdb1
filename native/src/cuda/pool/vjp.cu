/* Pooling on CUDA, gradients. A thread owns cells of gx and adds the shares of the windows that meet them in row-major
 * order, so nothing is written twice and no atomics are needed.
 *
 * What a cell takes from a window follows from a note on the window: the winner's cell and its prize (maximum), p and
 * g/Σ (smooth maximum), or g itself (average). Two ways to the notes:
 *
 *   tiles    two axes, windows of 2 or 3 cells a side: a block owns 16 by 64 cells, takes the notes of all
 *            windows that meet them into shared memory and gathers from there; the notes never leave the chip. The
 *            average gathers from g itself
 *   notes, gather    anything else: one kernel writes every window's note to scratch, the next gathers; the average's
 *            notes are g and need no first kernel */
#include "cuda/device/vector.cuh"
#include "cuda/pool/pool.cuh"
#include "generated/pool.h"

namespace {

constexpr int THREADS = 256;
constexpr const char *NAME = "pool gradient";

/* The note on a window with cotangent g, whose cells visit_cells(visit) visits (tl_pool_cells, or another). The winner of padding alone
 * is no cell. */
template <int KIND, class Shape, class Cells>
__device__ __forceinline__ float2 note_of(const Shape &v, Cells visit_cells, float g)
{
    if constexpr (KIND == TL_POOL_MAX) {
        float best = -TL_INF;
        uint32_t winner = UINT32_MAX;
        visit_cells([&](float value, uint32_t cell) {
            const bool take = winner == UINT32_MAX || tl_pool_takes(value, best);
            best = take ? value : best;
            winner = take ? cell : winner;
        });
        return make_float2(__uint_as_float(winner), tl_pool_prize(best, g));
    } else {
        float p;
        const float total = tl_pool_weigh(v, visit_cells, &p);
        return make_float2(p, g / total);
    }
}

/* Adds a window's share to the sum of a cell that holds x. */
template <int KIND>
__device__ __forceinline__ float take_share(float sum, float2 note, uint32_t cell, float x, float beta)
{
    if constexpr (KIND == TL_POOL_MAX)
        return __float_as_uint(note.x) == cell ? sum + note.y : sum;
    else
        return sum + tl_pool_weight(x, note.x, beta) * note.y;
}

/* ---- notes in scratch -------------------------------------------------------------------------------------------- */

template <int KIND, int R>
__global__ void __launch_bounds__(THREADS) notes(const float *__restrict__ x, const float *__restrict__ g,
                                                 tl_pool_shape v, int64_t n, float2 *__restrict__ note)
{
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= n) return;
    uint32_t at[R ? R : 8];
    const float *plane = x + tl_pool_window<R>(v, (uint32_t)i, at) * v.plane;
    note[i] = note_of<KIND>(v, [&](auto visit) { return tl_pool_cells<R>(v, at, plane, visit); }, g[i]);
}

/* n / stride, by multiplication where n fits 32 bits. */
__device__ __forceinline__ int64_t quotient(int64_t n, const tl_pool_shape &v, int i)
{
    return n >> 32 ? n / v.s[i] : (int64_t)v.by_s[i].div((uint32_t)n);
}

/* Windows of axis i that meet cell c: [*from, *to). */
__device__ __forceinline__ void meeting(const tl_pool_shape &v, int i, uint32_t c, uint32_t *from, uint32_t *to)
{
    const int64_t after = (int64_t)c + v.p[i], before = after - v.k[i];
    *from = before < 0 ? 0 : (uint32_t)(quotient(before, v, i) + 1);
    *to = (uint32_t)min(quotient(after, v, i) + 1, v.o[i]);
}

/* The gradient of cell `flat` of x. */
template <int KIND, int R>
__device__ __forceinline__ float gather_cell(const float *x, const float2 *note, const float *g, const tl_pool_shape &v,
                                             uint32_t flat)
{
    const int rank = R ? R : v.rank;
    uint32_t low[R ? R : 8], high[R ? R : 8], channel = flat;
    bool meets = true;
    TL_UNROLL_FOR (int i = (R ? R : 8) - 1; i >= 0; i--)
        if (i < rank) {
            uint32_t at;
            channel = v.by_n[i].divmod(channel, &at);
            meeting(v, i, at, &low[i], &high[i]);
            meets &= low[i] < high[i];
        }
    if (!meets) return 0.0f;
    const uint32_t cell = (uint32_t)(flat - channel * v.plane);
    const float value = KIND == TL_POOL_SMOOTH ? x[flat] : 0.0f;
    float sum = 0.0f;
    tl_pool_walk<R>(rank, low, high, v.out_step, channel * v.windows, [&](int64_t window) {
        if constexpr (KIND == TL_POOL_MEAN)
            sum += g[window];
        else
            sum = take_share<KIND>(sum, note[window], cell, value, v.beta);
    });
    return KIND == TL_POOL_MEAN ? tl_per_count(sum, v.kernel) : sum;
}

/* A thread owns four consecutive cells. */
template <int KIND, int R>
__global__ void __launch_bounds__(THREADS)
    gather(const float *__restrict__ x, const float2 *__restrict__ note, const float *__restrict__ g, tl_pool_shape v,
           int64_t n, float *__restrict__ gx)
{
    const int64_t i = 4 * ((int64_t)blockIdx.x * THREADS + threadIdx.x);
    if (i >= n) return;
    float sum[4];
    TL_UNROLL_FOR (int e = 0; e < 4; e++)
        sum[e] = i + e < n ? gather_cell<KIND, R>(x, note, g, v, (uint32_t)(i + e)) : 0.0f;
    tl_store4(gx + i, sum, n - i);
}

template <int KIND, int R>
int32_t two_kernels(tl_context *ctx, const float *x, const float *g, const tl_pool_shape &v, float *gx)
{
    const int64_t n = v.channels * v.plane, windows = v.channels * v.windows;
    tl_scratch<float2> note(ctx);
    if constexpr (KIND != TL_POOL_MEAN) {
        TL_TRY(note.allocate(windows));
        TL_TRY(tl_launch(ctx, NAME, notes<KIND, R>, tl_grid(windows, THREADS), THREADS, x, g, v, windows, note));
    }
    return tl_launch(ctx, NAME, gather<KIND, R>, tl_grid(n, 4 * THREADS), THREADS, x, note, g, v, n, gx);
}

/* ---- notes in shared memory -------------------------------------------------------------------------------------- */

constexpr int TILE_H = 16, TILE_W = 64;

/* Windows of K cells, S apart, that can meet `cells` neighbouring cells. */
template <int K, int S> __host__ __device__ constexpr int windows_over(int cells)
{
    return (cells - 1 + K - 1) / S + 1;
}

/* All sizes fit 31 bits with room for a tile. */
struct tile_shape {
    int h, w, out_h, out_w, p_h, p_w;
    int64_t plane, windows, kernel;
    tl_fastdiv across, down; /* tiles of a plane */
    float beta;
};

/* First window that meets cell c of an axis, and the one after the last. */
template <int K, int S> __device__ __forceinline__ int first_meeting(int c, int p)
{
    const int before = c + p - K;
    return before < 0 ? 0 : 1 + (int)((unsigned)before / S);
}
template <int S> __device__ __forceinline__ int last_meeting(int c, int p, int out)
{
    return min(1 + (int)((unsigned)(c + p) / S), out);
}

/* Visits the cells of the window whose first cell is (y, x), padded ones left out, and returns their number: they are read at once and
 * visited afterwards. */
template <int K, class Visit>
__device__ __forceinline__ int visit_cells(const tile_shape &v, int y, int x, const float *plane, Visit visit)
{
    const int y0 = max(y, 0), x0 = max(x, 0), y1 = min(y + K, v.h), x1 = min(x + K, v.w);
    float value[K][K];
    TL_UNROLL_FOR (int a = 0; a < K; a++)
        TL_UNROLL_FOR (int b = 0; b < K; b++)
            value[a][b] =
                y + a >= y0 && y + a < y1 && x + b >= x0 && x + b < x1 ? plane[(int64_t)(y + a) * v.w + (x + b)] : 0.0f;
    TL_UNROLL_FOR (int a = 0; a < K; a++)
        TL_UNROLL_FOR (int b = 0; b < K; b++)
            if (y + a >= y0 && y + a < y1 && x + b >= x0 && x + b < x1) visit(value[a][b], (y + a) * v.w + (x + b));
    return (y1 - y0) * (x1 - x0);
}

/* Block (channel, ty, tx) of 256 threads; thread t owns the cells of row t/16, columns 4·(t%16) to 4·(t%16) + 3 of the
 * tile, and every 256th window. */
template <int KIND, int K, int S>
__global__ void __launch_bounds__(THREADS)
    tiles(const float *__restrict__ x, const float *__restrict__ g, tile_shape v, float *__restrict__ gx)
{
    constexpr int PITCH = windows_over<K, S>(TILE_W),
                  NOTES = KIND == TL_POOL_MEAN ? 1 : windows_over<K, S>(TILE_H) * PITCH;
    static_assert(NOTES * S * S <= 2 * TILE_H * TILE_W, "windows across borders, which both tiles compute");
    __shared__ float2 note[NOTES];
    uint32_t tx, ty;
    const int64_t channel = v.down.divmod(v.across.divmod(blockIdx.x, &tx), &ty);
    const int t = (int)threadIdx.x, top = (int)ty * TILE_H, left = (int)tx * TILE_W;
    const int y0 = first_meeting<K, S>(top, v.p_h), x0 = first_meeting<K, S>(left, v.p_w);
    const float *plane = x + channel * v.plane, *cotangent = g + channel * v.windows;
    for (int i = t; KIND != TL_POOL_MEAN && i < NOTES; i += THREADS) {
        const int y = y0 + i / PITCH, b = x0 + i % PITCH;
        const auto cells = [&](auto visit) { return visit_cells<K>(v, y * S - v.p_h, b * S - v.p_w, plane, visit); };
        if (y < v.out_h && b < v.out_w) note[i] = note_of<KIND>(v, cells, cotangent[(int64_t)y * v.out_w + b]);
    }
    __syncthreads();
    const int row = top + t / (TILE_W / 4), column = left + 4 * (t % (TILE_W / 4));
    if (row >= v.h || column >= v.w) return;
    const int from = first_meeting<K, S>(row, v.p_h), to = last_meeting<S>(row, v.p_h, v.out_h);
    const int64_t flat = (int64_t)row * v.w + column;
    float sum[4];
    TL_UNROLL_FOR (int e = 0; e < 4; e++) {
        sum[e] = 0.0f;
        if (column + e >= v.w) continue;
        const int low = first_meeting<K, S>(column + e, v.p_w), end = last_meeting<S>(column + e, v.p_w, v.out_w);
        const float value = KIND == TL_POOL_SMOOTH ? plane[flat + e] : 0.0f;
        for (int a = from; a < to; a++)
            for (int b = low; b < end; b++) {
                if constexpr (KIND == TL_POOL_MEAN)
                    sum[e] += cotangent[(int64_t)a * v.out_w + b];
                else
                    sum[e] = take_share<KIND>(sum[e], note[(a - y0) * PITCH + (b - x0)], (uint32_t)(flat + e), value,
                                              v.beta);
            }
        if (KIND == TL_POOL_MEAN) sum[e] = tl_per_count(sum[e], K * K);
    }
    float *out = gx + channel * v.plane + flat;
    if (v.w % 4 == 0)
        tl_store4(out, sum);
    else
        for (int e = 0; e < 4; e++)
            if (column + e < v.w) out[e] = sum[e];
}

template <int KIND, int K, int S>
int32_t launch_tiles(tl_context *ctx, const float *x, const float *g, const tl_pool_shape &v, float *gx)
{
    tile_shape s = {};
    s.h = (int)v.n[0], s.w = (int)v.n[1], s.out_h = (int)v.o[0], s.out_w = (int)v.o[1];
    s.p_h = (int)v.p[0], s.p_w = (int)v.p[1], s.plane = v.plane, s.windows = v.windows, s.kernel = v.kernel;
    s.beta = v.beta;
    s.across = tl_fastdiv((uint64_t)tl_ceil_div(v.n[1], TILE_W));
    s.down = tl_fastdiv((uint64_t)tl_ceil_div(v.n[0], TILE_H));
    const int64_t blocks = v.channels * s.across.divisor * (int64_t)s.down.divisor;
    return tl_launch(ctx, NAME, tiles<KIND, K, S>, (unsigned)blocks, THREADS, x, g, s, gx);
}

/* Square windows of two axes on planes that fill tiles. Every window of theirs meets a cell. */
bool tiles_pay(const tl_pool_shape &v)
{
    return v.rank == 2 && v.k[0] == v.k[1] && v.s[0] == v.s[1] && v.p[0] < v.k[0] && v.p[1] < v.k[1] &&
           v.n[0] >= TILE_H / 2 && v.n[1] >= TILE_W / 2 && v.plane < 1 << 30;
}

template <int KIND> int32_t gradient(tl_context *ctx, const float *x, const float *g, const tl_pool_shape &v, float *gx)
{
    if (tiles_pay(v)) {
        const int64_t k = v.k[0], s = v.s[0];
        if (k == 2 && s == 2) return launch_tiles<KIND, 2, 2>(ctx, x, g, v, gx);
        if (k == 3 && s == 2) return launch_tiles<KIND, 3, 2>(ctx, x, g, v, gx);
        if (k == 3 && s == 1) return launch_tiles<KIND, 3, 1>(ctx, x, g, v, gx);
    }
    return v.rank == 2   ? two_kernels<KIND, 2>(ctx, x, g, v, gx)
           : v.rank == 3 ? two_kernels<KIND, 3>(ctx, x, g, v, gx)
                         : two_kernels<KIND, 0>(ctx, x, g, v, gx);
}

} // namespace

/* ---- the operations ---------------------------------------------------------------------------------------------- */

int32_t tl_cuda_max_pool_bwd(tl_context *ctx, const float *x, const float *g, ND, float *gx)
{
    return gradient<TL_POOL_MAX>(ctx, x, g, VIEW(0.0f), gx);
}

int32_t tl_cuda_avg_pool_bwd(tl_context *ctx, const float *g, ND, float *gx)
{
    return gradient<TL_POOL_MEAN>(ctx, nullptr, g, VIEW(0.0f), gx);
}

int32_t tl_cuda_smooth_max_pool_bwd(tl_context *ctx, const float *x, const float *g, ND, float beta, float *gx)
{
    return gradient<TL_POOL_SMOOTH>(ctx, x, g, VIEW(beta), gx);
}
