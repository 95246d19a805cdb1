/* Pooling on CUDA, forward.
 *
 * Three kernels:
 *
 *   strips   two axes, square windows of 2 or 3 cells 1 or 2 apart, rows of a multiple of 4 cells: a thread owns four
 *            neighbouring outputs of two rows and holds all cells they meet in registers. Loads are of 16 bytes, what
 *            windows share is read once, everything is in flight before the first use
 *   small    other windows of 2 or 3 cells along each of two or three axes, of maxima and means: a thread owns one output and
 *            loads its whole window before the first use
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

/* ---- small windows ----------------------------------------------------------------------------------------------- */

/* Windows of K cells along each of R axes. Outside the axes the cells hold what changes nothing: an infinity, or +0 in a sum that
 * begins with +0. */
template <int KIND, int R, int K>
__global__ void __launch_bounds__(THREADS)
    small(const float *__restrict__ x, tl_pool_shape v, int64_t n, float *__restrict__ out)
{
    constexpr int DEEP = R == 3 ? K : 1;
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= n) return;
    uint32_t at[R];
    const float *window = x + tl_pool_window<R>(v, (uint32_t)i, at) * v.plane;
    const float none = KIND == TL_POOL_MEAN ? 0.0f : -TL_INF;
    bool inside[R][K];
    TL_UNROLL_FOR (int a = 0; a < R; a++) {
        const int first = (int)at[a] * (int)v.s[a] - (int)v.p[a];
        window += first * v.step[a];
        TL_UNROLL_FOR (int k = 0; k < K; k++)
            inside[a][k] = first + k >= 0 && first + k < (int)v.n[a];
    }
    float c[DEEP][K][K];
    TL_UNROLL_FOR (int z = 0; z < DEEP; z++)
        TL_UNROLL_FOR (int y = 0; y < K; y++) {
            const bool met = inside[R - 2][y] && (R == 2 || inside[0][z]);
            const float *const row = window + (z * v.step[0] + y * v.step[R - 2]);
            TL_UNROLL_FOR (int j = 0; j < K; j++)
                c[z][y][j] = met && inside[R - 1][j] ? row[j] : none;
        }
    float a = none;
    TL_UNROLL_FOR (int z = 0; z < DEEP; z++)
        TL_UNROLL_FOR (int y = 0; y < K; y++)
            TL_UNROLL_FOR (int j = 0; j < K; j++)
                a = KIND == TL_POOL_MAX ? tl_max(a, c[z][y][j]) : a + c[z][y][j];
    out[i] = KIND == TL_POOL_MEAN ? tl_per_count(a, DEEP * K * K) : a;
}

/* The kernel of small for these windows; null if there is none. */
template <int KIND> auto pick_small(const tl_pool_shape &v) -> void (*)(const float *, tl_pool_shape, int64_t, float *)
{
    constexpr int64_t MOST = 1 << 29;
    const int64_t K = v.k[0];
    bool serves = v.rank <= 3;
    for (int a = 0; a < v.rank; a++)
        serves = serves && v.k[a] == K && v.n[a] < MOST && v.p[a] < MOST;
    if constexpr (KIND != TL_POOL_SMOOTH) {
        if (serves && K == 2) return v.rank == 2 ? small<KIND, 2, 2> : small<KIND, 3, 2>;
        if (serves && K == 3) return v.rank == 2 ? small<KIND, 2, 3> : small<KIND, 3, 3>;
    }
    return nullptr;
}

template <int KIND> int32_t launch_windows(tl_context *ctx, const float *x, const tl_pool_shape &v, float *out)
{
    const int64_t n = v.channels * v.windows;
    auto kernel = pick_small<KIND>(v);
    if (!kernel) kernel = v.rank == 2 ? each<KIND, 2> : v.rank == 3 ? each<KIND, 3> : each<KIND, 0>;
    return tl_launch(ctx, "pool", kernel, tl_grid(n, THREADS), THREADS, x, v, n, out);
}

/* ---- small square windows of two axes ---------------------------------------------------------------------------- */

struct strip_shape {
    int64_t plane, windows;
    int h, w, out_h, out_w;
    tl_fastdiv across, down; /* threads per row of outputs, pairs of rows per channel */
    int64_t threads;
    float beta;
    int aligned; /* rows of outputs begin on 16 bytes */
};

/* A beta with which a thread has one reciprocal for its divisions. */
static bool is_middling(float beta) { return fabsf(beta) >= 0x1p-100f && fabsf(beta) <= 0x1p100f; }

/* tl_pool_weight for a middling beta. The extreme leaves no exponent above 0, so that the factor 2^k has one form, and e^-104 is 0 as
 * what is below. Infinite numbers equal to the extreme weigh 0 here: with an infinite extreme the result is that, whatever the total
 * is, and with NaN it is NaN. */
static __device__ __forceinline__ float strip_weight(float v, float extreme, float beta)
{
    float t;
    const float p = tl_exp_mantissa(fmaxf(beta * (v - extreme), -104.0f), 191.0f, &t);
    return p * tl_from_bits(tl_bits(t) << 23) * TL_2M64;
}

/* tl_pool_smooth for a middling beta and the total that a window's extreme, 1, and the others have. The quotient is rounded correctly, as
 * the compiler's own division does it, but for the reciprocal. */
static __device__ __forceinline__ float strip_smooth(float total, float p, float beta, float reciprocal)
{
    const float log = tl_log_at_least_1(total);
    float q = log * reciprocal;
    q = fmaf(reciprocal, fmaf(-beta, q, log), q);
    q = fmaf(reciprocal, fmaf(-beta, q, log), q);
    return p + q;
}

/* The smooth maximum of window (y, o) of a strip: K by K of the cells c, of which rows[r] and columns[j] tell
 * whether they lie inside. What lies outside holds `none`, which loses against every cell, and weighs nothing. */
template <int K, int S, int ROWS, int WIDTH>
static __device__ __forceinline__ float smooth_window(const float (&c)[ROWS][WIDTH], const bool (&rows)[ROWS],
                                                      const bool (&columns)[WIDTH], int y, int o, bool padded_at_all,
                                                      float none, float beta, float reciprocal)
{
    const bool up = beta > 0.0f;
    float p = none, sum = 0.0f;
    int high = 0, wide = 0;
    TL_UNROLL_FOR (int r = 0; r < K; r++) {
        high += rows[y * S + r];
        wide += columns[o * S + r];
        TL_UNROLL_FOR (int j = 0; j < K; j++) {
            const float value = c[y * S + r][o * S + j];
            p = up ? tl_max(p, value) : tl_min(p, value);
        }
    }
    const float padded = padded_at_all ? (float)(K * K - high * wide) : 0.0f;
    if (padded_at_all && padded > 0.0f) p = up ? tl_max(p, 0.0f) : tl_min(p, 0.0f);
    TL_UNROLL_FOR (int r = 0; r < K; r++)
        TL_UNROLL_FOR (int j = 0; j < K; j++) {
            const float weight = strip_weight(c[y * S + r][o * S + j], p, beta);
            sum += !padded_at_all || (rows[y * S + r] && columns[o * S + j]) ? weight : 0.0f;
        }
    if (padded_at_all && padded > 0.0f) sum = fmaf(padded, strip_weight(0.0f, p, beta), sum);
    return strip_smooth(sum, p, beta, reciprocal);
}

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
    const float none = KIND == TL_POOL_MEAN ? 0.0f : KIND == TL_POOL_MAX || v.beta > 0.0f ? -TL_INF : TL_INF;
    const float reciprocal = KIND == TL_POOL_SMOOTH ? tl_reciprocal(v.beta) : 0.0f;
    float c[ROWS][WIDTH];
    bool rows[ROWS], columns[WIDTH];
    TL_UNROLL_FOR (int r = 0; r < ROWS; r++)
        rows[r] = top + r >= 0 && top + r < v.h;
    TL_UNROLL_FOR (int j = 0; j < WIDTH; j++)
        columns[j] = left + j >= P && left + j < v.w + P;
    TL_UNROLL_FOR (int r = 0; r < ROWS; r++) {
        const bool inside = rows[r];
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
            if constexpr (KIND == TL_POOL_SMOOTH) {
                a = smooth_window<K, S>(c, rows, columns, y, o, P > 0, none, v.beta, reciprocal);
            } else {
                TL_UNROLL_FOR (int r = 0; r < K; r++)
                    TL_UNROLL_FOR (int j = 0; j < K; j++) {
                        const float value = c[y * S + r][o * S + j];
                        a = KIND == TL_POOL_MAX ? tl_max(a, value) : a + value;
                    }
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
    if (!kernel || !square || (KIND == TL_POOL_SMOOTH && !is_middling(v.beta)) || v.n[1] % 4 != 0 ||
        v.n[0] >= 1 << 29 || v.n[1] >= 1 << 29 || !tl_aligned4(x))
        return launch_windows<KIND>(ctx, x, v, out);
    strip_shape s = {};
    s.plane = v.plane, s.windows = v.windows, s.beta = v.beta;
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
    return pool<TL_POOL_SMOOTH>(ctx, x, VIEW(beta), out);
}
