/* Pooling on CUDA, forward.
 *
 * Two kernels:
 *
 *   strips   maxima and means over two axes, square windows of 2 or 3 cells 1 or 2 apart, rows of a multiple of 4 cells: a thread owns
 *            four neighbouring outputs of two rows and holds all cells they meet in registers. Loads are of 16 bytes, what
 *            windows share is read once, everything is in flight before the first use
 *   each     anything else: a thread owns one output and reads its window, which its neighbours' reads leave in L1
 *
 * Both visit a window's cells in row-major order. */
#include "cuda/device/vector.cuh"
#include "cuda/pool/pool.cuh"
#include "generated/pool.h"

namespace {

constexpr int THREADS = 256;

/* ---- any window -------------------------------------------------------------------------------------------------- */

template <int KIND, int R>
__global__ void __launch_bounds__(THREADS)
    each(const float *__restrict__ x, tl_pool_shape v, int64_t n, float *__restrict__ out)
{
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= n) return;
    uint32_t at[R ? R : 8];
    const float *plane = x + tl_pool_window<R>(v, (uint32_t)i, at) * v.plane;
    float result;
    if constexpr (KIND == TL_POOL_MAX) {
        float a = -TL_INF;
        tl_pool_cells<R>(v, at, plane, [&](float value, uint32_t) { a = tl_max(a, value); });
        result = a;
    } else if constexpr (KIND == TL_POOL_MEAN) {
        float a = 0.0f;
        tl_pool_cells<R>(v, at, plane, [&](float value, uint32_t) { a += value; });
        result = tl_per_count(a, v.kernel);
    } else {
        float p;
        const float total = tl_pool_weigh(v, [&](auto visit) { return tl_pool_cells<R>(v, at, plane, visit); }, &p);
        result = tl_pool_smooth(total, p, v.beta);
    }
    out[i] = result;
}

template <int KIND> int32_t launch_windows(tl_context *ctx, const float *x, const tl_pool_shape &v, float *out)
{
    const int64_t n = v.channels * v.windows;
    const auto kernel = v.rank == 2 ? each<KIND, 2> : v.rank == 3 ? each<KIND, 3> : each<KIND, 0>;
    return tl_launch(ctx, "pool", kernel, tl_grid(n, THREADS), THREADS, x, v, n, out);
}

/* ---- small square windows of two axes ---------------------------------------------------------------------------- */

struct strip_shape {
    int64_t plane, windows;
    int h, w, out_h, out_w;
    tl_fastdiv across, down; /* threads per row of outputs, pairs of rows per channel */
    int64_t threads;
    int aligned; /* rows of outputs begin on 16 bytes */
};

/* Windows of K by K cells, S apart, P cells of padding (0 or 1). Thread (c, pair, q) owns outputs 4q..4q+3 of the rows
 * 2·pair and 2·pair + 1 of channel c. Its cells are the columns 4·S·q - P onwards: S quadruples that lie on 16 bytes, P
 * cells before them and K - S - P after. Outside the axes the cells hold what changes nothing: an infinity, or +0 in
 * a sum that begins with +0. Where rows of outputs do not begin on 16 bytes the four are stored one by one. */
template <int KIND, int K, int S, int P>
__global__ void __launch_bounds__(THREADS) strips(const float *__restrict__ x, strip_shape v, float *__restrict__ out)
{
    constexpr int ROWS = S + K, AFTER = K - S - P > 0 ? K - S - P : 0, WIDTH = P + 4 * S + AFTER;
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= v.threads) return;
    uint32_t q, pair;
    const uint32_t channel = v.down.divmod(v.across.divmod((uint32_t)i, &q), &pair);
    const int top = 2 * (int)pair * S - P, left = 4 * S * (int)q;
    const float *plane = x + channel * v.plane;
    const float none = KIND == TL_POOL_MEAN ? 0.0f : -TL_INF;
    float c[ROWS][WIDTH];
    TL_UNROLL_FOR (int r = 0; r < ROWS; r++) {
        const bool inside = top + r >= 0 && top + r < v.h;
        const float *row = plane + (int64_t)(inside ? top + r : 0) * v.w;
        if (P) c[r][0] = inside && left > 0 ? row[left - 1] : none;
        TL_UNROLL_FOR (int j = 0; j < S; j++) {
            float4 f = make_float4(none, none, none, none);
            if (inside && left + 4 * j < v.w) f = tl_load4(row + left + 4 * j);
            c[r][P + 4 * j] = f.x;
            c[r][P + 4 * j + 1] = f.y;
            c[r][P + 4 * j + 2] = f.z;
            c[r][P + 4 * j + 3] = f.w;
        }
        TL_UNROLL_FOR (int j = 0; j < AFTER; j++)
            c[r][P + 4 * S + j] = inside && left + 4 * S + j < v.w ? row[left + 4 * S + j] : none;
    }
    TL_UNROLL_FOR (int y = 0; y < 2; y++) {
        const int row = 2 * (int)pair + y;
        float result[4];
        TL_UNROLL_FOR (int o = 0; o < 4; o++) {
            float a = none;
            TL_UNROLL_FOR (int r = 0; r < K; r++)
                TL_UNROLL_FOR (int j = 0; j < K; j++) {
                    const float value = c[y * S + r][o * S + j];
                    a = KIND == TL_POOL_MAX ? tl_max(a, value) : a + value;
                }
            result[o] = KIND == TL_POOL_MEAN ? tl_per_count(a, K * K) : a;
        }
        if (row >= v.out_h) return;
        float *to = out + channel * v.windows + (int64_t)row * v.out_w + 4 * q;
        if (v.aligned) {
            tl_store4(to, result);
        } else {
            TL_UNROLL_FOR (int o = 0; o < 4; o++)
                if (4 * (int)q + o < v.out_w) to[o] = result[o];
        }
    }
}

/* The kernel of strips for windows of K cells, S apart; null if there is none. */
template <int KIND> auto pick_strips(int64_t K, int64_t S, bool padded)
{
    return K == 2 && S == 2   ? padded ? strips<KIND, 2, 2, 1> : strips<KIND, 2, 2, 0>
           : K == 3 && S == 2 ? padded ? strips<KIND, 3, 2, 1> : strips<KIND, 3, 2, 0>
           : K == 3 && S == 1 ? padded ? strips<KIND, 3, 1, 1> : strips<KIND, 3, 1, 0>
                              : nullptr;
}

template <int KIND> int32_t pool(tl_context *ctx, const float *x, const tl_pool_shape &v, float *out)
{
    const int64_t K = v.k[1], S = v.s[1], P = v.p[1];
    const bool square = v.rank == 2 && v.k[0] == K && v.s[0] == S && v.p[0] == P && P <= 1;
    const auto kernel = pick_strips<KIND>(K, S, P != 0);
    if (!kernel || !square || v.n[1] % 4 != 0 || v.n[0] >= 1 << 29 || v.n[1] >= 1 << 29 || !tl_aligned4(x))
        return launch_windows<KIND>(ctx, x, v, out);
    strip_shape s = {};
    s.plane = v.plane, s.windows = v.windows;
    s.h = (int)v.n[0], s.w = (int)v.n[1], s.out_h = (int)v.o[0], s.out_w = (int)v.o[1];
    s.across = tl_fastdiv((uint64_t)tl_ceil_div(v.o[1], 4));
    s.down = tl_fastdiv((uint64_t)tl_ceil_div(v.o[0], 2));
    s.threads = v.channels * s.across.divisor * (int64_t)s.down.divisor;
    s.aligned = v.o[1] % 4 == 0 && tl_aligned4(out);
    return tl_launch(ctx, "pool", kernel, tl_grid(s.threads, THREADS), THREADS, x, s, out);
}

} // namespace

/* ---- the operations ---------------------------------------------------------------------------------------------- */

int32_t tl_cuda_max_pool(tl_context *ctx, const float *x, ND, float *out)
{
    return pool<TL_POOL_MAX>(ctx, x, VIEW(0.0f), out);
}

int32_t tl_cuda_avg_pool(tl_context *ctx, const float *x, ND, float *out)
{
    return pool<TL_POOL_MEAN>(ctx, x, VIEW(0.0f), out);
}

int32_t tl_cuda_smooth_max_pool(tl_context *ctx, const float *x, ND, float beta, float *out)
{
    return launch_windows<TL_POOL_SMOOTH>(ctx, x, VIEW(beta), out);
}
