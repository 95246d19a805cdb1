/* Attention on CUDA of many rows to few keys: what takes time is to read the rows once, so the rows of a member are cut
 * into parts of PART, each a block's work, and all keys and values of the member lie in shared memory. How rows are cut
 * depends on their number alone, so that no result depends on the batch.
 *
 * SUBS threads share R rows and read them side by side, each its elements of Q, g and out: a key that is read of shared
 * memory serves R rows, and the partial products of a row end in a tree of SUBS. The sums over keys are chains in order
 * of keys.
 *
 * Forward a warp has 32 rows, which change hands twice, through shared memory: their products end in single lanes, then
 * a lane has a row and makes its weights, which so are made once, then neighbouring lanes have neighbouring elements of
 * the result.
 *
 * Backward D has the order of g·v, so that the two are equal where a saturated softmax gives a value. Then, for the
 * gradients of keys and values, a thread owns a column of Q or of g and goes through the part's rows in order, with a
 * sum for each key; the rows were just read and still lie near. The sums of several parts are added by the column tree
 * of formula/sum_tree.h. */
#include "cuda/attention/few_keys.cuh"
#include "cuda/attention/partial.cuh"
#include "cuda/device/sum_tree.cuh"
#include "cuda/device/vector.cuh"

namespace attention {
namespace few_keys {

constexpr const char *NAME = "attention_few_keys";
constexpr int THREADS = 256, SUBS = 8, PART = 128, ROW_GROUPS = THREADS / SUBS, KEYS_MOST = 32;
constexpr int64_t WIDTHS_MOST = 1024; /* of a key and its value together, which lie in shared memory */

struct Args : Geometry {
    const float *Q, *K, *V, *out, *g;
    float *result, *gQ, *gK, *gV; /* gK, gV: the gradients, or those of every part, a member's one after the other */
    tl_fastdiv parts;
    bool wide_d, wide_v; /* rows of Q and gQ, of g, out and the result, may be accessed 16 bytes at a time */
};

__host__ __device__ constexpr int64_t whole(int64_t n) { return (n + 3) / 4 * 4; }

template <int VECTOR> __device__ __forceinline__ void load(const float *p, float (&x)[VECTOR])
{
    if constexpr (VECTOR == 4)
        tl_load4(p, x);
    else
        x[0] = *p;
}

/* The thread's share of sum[r][j] = x_r·y_j and, with DOT, of dot[r] = x_r·o_r. */
template <int VECTOR, bool DOT, int KEYS, int R>
__device__ __forceinline__ void multiply(const float *const (&x)[R], const float *const (&o)[R], const float *Y,
                                         int width, float (&sum)[R][KEYS], float (&dot)[R])
{
#pragma unroll 2
    for (int c = (int)threadIdx.x % SUBS * VECTOR; c < width; c += SUBS * VECTOR) {
        float a[R][VECTOR], b[R][VECTOR];
        TL_UNROLL_FOR (int r = 0; r < R; r++) {
            load<VECTOR>(x[r] + c, a[r]);
            if constexpr (DOT) load<VECTOR>(o[r] + c, b[r]);
        }
        TL_UNROLL_FOR (int j = 0; j < KEYS; j++) {
            float y[VECTOR];
            load<VECTOR>(Y + j * width + c, y);
            TL_UNROLL_FOR (int r = 0; r < R; r++)
                TL_UNROLL_FOR (int e = 0; e < VECTOR; e++)
                    sum[r][j] = fmaf(a[r][e], y[e], sum[r][j]);
        }
        if constexpr (DOT)
            TL_UNROLL_FOR (int r = 0; r < R; r++)
                TL_UNROLL_FOR (int e = 0; e < VECTOR; e++)
                    dot[r] = fmaf(a[r][e], b[r][e], dot[r]);
    }
}

/* Row r of `to` = end(r, Σ_j w[r][j] y_j), the thread's elements, for rows below `rows`. */
template <int VECTOR, int KEYS, int R, class End>
__device__ __forceinline__ void combine(const float (&w)[R][KEYS], const float *Y, int width, int rows, float *to,
                                        End end)
{
#pragma unroll 1
    for (int c = (int)threadIdx.x % SUBS * VECTOR; c < width; c += SUBS * VECTOR) {
        float sum[R][VECTOR] = {};
        TL_UNROLL_FOR (int j = 0; j < KEYS; j++) {
            float y[VECTOR];
            load<VECTOR>(Y + j * width + c, y);
            TL_UNROLL_FOR (int r = 0; r < R; r++)
                TL_UNROLL_FOR (int e = 0; e < VECTOR; e++)
                    sum[r][e] = fmaf(w[r][j], y[e], sum[r][e]);
        }
        TL_UNROLL_FOR (int r = 0; r < R; r++) {
            if (r >= rows) break;
            TL_UNROLL_FOR (int e = 0; e < VECTOR; e++)
                sum[r][e] = end(r, sum[r][e]);
            if constexpr (VECTOR == 4)
                tl_store4(to + r * width + c, sum[r]);
            else
                to[r * width + c] = sum[r][0];
        }
    }
}

/* Turns a row's products with all keys into weights; `open`: a bit for each key that a gradient passes to. Returns
 * what their sums are divided by. */
template <int KEYS>
__device__ __forceinline__ float weigh(const Args &a, const Rows &limits, int row, float (&s)[KEYS], uint32_t *open)
{
    float top = -TL_INF, sum = 0.0f;
    *open = 0;
    TL_UNROLL_FOR (int j = 0; j < KEYS; j++) {
        bool shut; /* as are keys that do not exist */
        s[j] = limits.score(a, row, j, s[j], &shut);
        *open |= (uint32_t)!shut << j;
        top = fmaxf(top, s[j]);
    }
    const float base = top == -TL_INF ? 0.0f : top;
    TL_UNROLL_FOR (int j = 0; j < KEYS; j++) {
        s[j] = tl_attention_weight(s[j] - base);
        sum += s[j];
    }
    return softmax_total(top, sum);
}

/* Copies a member's `keys` rows of `width` elements; rows up to KEYS that do not exist are 0. */
template <int KEYS, int COUNT = THREADS>
__device__ __forceinline__ void copy_all(float *to, const float *from, int64_t keys, int64_t width)
{
    for (int i = threadIdx.x; i < KEYS * width; i += COUNT)
        to[i] = i < keys * width ? from[i] : 0.0f;
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

/* Rows of a part are as many as a block has threads. R: rows of SUBS lanes at once, as many as registers hold sums for.
 * Rows of products are PITCH apart, an odd number of 16-byte units. */
template <int KEYS> struct Forward {
    static constexpr int R = KEYS <= 4 ? 8 : 32 / KEYS, PITCH = KEYS <= 4 ? KEYS : KEYS + 4;
    static constexpr int BLOCKS = KEYS <= 16 ? 4 : 3;
    static_assert(32 % (32 / SUBS * R) == 0 && R * KEYS % SUBS == 0, "ownership");
};

/* The sums of x[i] over S·2 neighbouring lanes, by the tree of tl_fold_group: a lane keeps the half of the array that its
 * bit names and sends the other. Returns the index of the sum that x[0] is then, of COUNT / (2·S) in order. */
template <int S, int COUNT, int N> __device__ __forceinline__ int fold_apart(float (&x)[N])
{
    if constexpr (S == 0) {
        return 0;
    } else {
        const bool upper = (threadIdx.x & S) != 0;
        TL_UNROLL_FOR (int i = 0; i < COUNT / 2; i++) {
            const float sent = upper ? x[i] : x[i + COUNT / 2], kept = upper ? x[i + COUNT / 2] : x[i];
            x[i] = kept + __shfl_xor_sync(0xffffffffu, sent, S);
        }
        return (upper ? COUNT / 2 : 0) + fold_apart<S / 2, COUNT / 2>(x);
    }
}

/* The lane's share of sum[r·KEYS + j] = row r of Q, which begins at at[r], times row j of K. Loads of several steps are on their
 * way at once. */
template <int VECTOR, int KEYS, int R>
__device__ __forceinline__ void multiply_rows(const float *Q, const int (&at)[R], const float *Ks, int d,
                                              float (&sum)[R * KEYS])
{
    constexpr int AHEAD = 4 / VECTOR, STEP = SUBS * VECTOR;
#pragma unroll 1
    for (int c = (int)threadIdx.x % SUBS * VECTOR; c < d; c += AHEAD * STEP) {
        float x[AHEAD][R][VECTOR];
        TL_UNROLL_FOR (int e = 0; e < AHEAD; e++)
            if (c + e * STEP < d)
                TL_UNROLL_FOR (int r = 0; r < R; r++)
                    load<VECTOR>(Q + at[r] + c + e * STEP, x[e][r]);
        TL_UNROLL_FOR (int e = 0; e < AHEAD; e++) {
            if (c + e * STEP >= d) break;
            TL_UNROLL_FOR (int j = 0; j < KEYS; j++) {
                float y[VECTOR];
                load<VECTOR>(Ks + j * d + c + e * STEP, y);
                TL_UNROLL_FOR (int r = 0; r < R; r++)
                    TL_UNROLL_FOR (int k = 0; k < VECTOR; k++)
                        sum[r * KEYS + j] = fmaf(x[e][r][k], y[k], sum[r * KEYS + j]);
            }
        }
    }
}

/* Divides a row's elements by its total. */
template <int VECTOR> __device__ __forceinline__ void divide_all(float (&x)[VECTOR], float total, float inverse)
{
    float least = fabsf(x[0]), most = least;
    TL_UNROLL_FOR (int k = 1; k < VECTOR; k++) {
        least = fminf(least, fabsf(x[k]));
        most = fmaxf(most, fabsf(x[k]));
    }
    const bool quick = least > 0x1p-100f && most < 0x1p100f && total <= (float)KEYS_MOST;
    if (quick) {
        TL_UNROLL_FOR (int k = 0; k < VECTOR; k++)
            x[k] = divide_by_total(x[k], total, inverse);
    } else {
        TL_UNROLL_FOR (int k = 0; k < VECTOR; k++)
            x[k] = x[k] / total;
    }
}

/* Writes `rows` rows of the result, at most 32, from their weights and totals: `lanes` lanes share a row, each has four at
 * once. */
template <int VECTOR, int KEYS>
__device__ __forceinline__ void combine_rows(const float *weights, const float *totals, const float *inverses,
                                             const float *Vs, int v, int rows, float *to)
{
    constexpr int PITCH = Forward<KEYS>::PITCH, R = 4, STEP = KEYS % 4 == 0 ? 4 : 1;
    const int units = v / VECTOR, lane = (int)threadIdx.x % 32;
    const int shift = units > 16 ? 5 : 32 - __clz(units - 1), lanes = 1 << shift, apart = 32 >> shift;
#pragma unroll 1
    for (int first = lane >> shift; first < 32; first += R * apart) {
        const float *w[R];
        TL_UNROLL_FOR (int r = 0; r < R; r++)
            w[r] = weights + (first + r * apart) % 32 * PITCH;
#pragma unroll 1
        for (int c = (lane & (lanes - 1)) * VECTOR; c < v; c += lanes * VECTOR) {
            float sum[R][VECTOR] = {};
            TL_UNROLL_FOR (int j = 0; j < KEYS; j += STEP) {
                float f[R][STEP];
                TL_UNROLL_FOR (int r = 0; r < R; r++)
                    load<STEP>(w[r] + j, f[r]);
                TL_UNROLL_FOR (int e = 0; e < STEP; e++) {
                    float y[VECTOR];
                    load<VECTOR>(Vs + (j + e) * v + c, y);
                    TL_UNROLL_FOR (int r = 0; r < R; r++)
                        TL_UNROLL_FOR (int k = 0; k < VECTOR; k++)
                            sum[r][k] = fmaf(f[r][e], y[k], sum[r][k]);
                }
            }
            TL_UNROLL_FOR (int r = 0; r < R; r++) {
                const int row = first + r * apart;
                if (row >= rows) break;
                if constexpr (KEYS == 8) /* as behind the last key where more than 8 have a place */
                    TL_UNROLL_FOR (int k = 0; k < VECTOR; k++)
                        sum[r][k] += 0.0f;
                divide_all<VECTOR>(sum[r], totals[row], inverses[row]);
                if constexpr (VECTOR == 4)
                    tl_store4(to + row * v + c, sum[r]);
                else
                    to[row * v + c] = sum[r][0];
            }
        }
    }
}

template <int KEYS> constexpr size_t forward_shared(int64_t d, int64_t v)
{
    const int64_t rows = PART * (Rows::FLOATS + Forward<KEYS>::PITCH + 2);
    return sizeof(float) * (size_t)(rows + whole(KEYS * d) + whole(KEYS * v));
}

/* KEYS: as many as a member has, or more. */
template <int KEYS>
__global__ void __launch_bounds__(PART, Forward<KEYS>::BLOCKS) forward_kernel(const __grid_constant__ Args a)
{
    constexpr int R = Forward<KEYS>::R, PITCH = Forward<KEYS>::PITCH, SUMS = R * KEYS;
    TL_DYNAMIC_SHARED(float, shared);
    Rows limits(shared, PART);
    float *const Ss = shared + Rows::FLOATS * PART, *const totals = Ss +
                                                                    PART * PITCH; /* [row][key]: products, weights */
    float *const inverses = totals + PART, *const Ks = inverses + PART, *const Vs = Ks + whole(KEYS * a.d);
    uint32_t part;
    const int64_t b = a.parts.divmod(blockIdx.x, &part), i0 = (int64_t)part * PART, at = b * a.rows + i0;
    const int count = (int)(a.rows - i0 < PART ? a.rows - i0 : PART), d = (int)a.d, v = (int)a.v;
    const float *const Q = a.Q + at * d;

    limits.find(a, b, i0, PART);
    copy_all<KEYS, PART>(Ks, a.K + b * a.keys * d, a.keys, d);
    copy_all<KEYS, PART>(Vs, a.V + b * a.keys * v, a.keys, v);
    __syncthreads();
    const int lane = (int)threadIdx.x % 32, own = (int)threadIdx.x - lane;
    if (own >= count) return;
#pragma unroll 1
    for (int first = own + lane / SUBS * R; first < own + 32; first += 32 / SUBS * R) {
        int from[R];
        TL_UNROLL_FOR (int r = 0; r < R; r++) /* what does not exist reads the last row, and is dropped */
            from[r] = (first + r < count ? first + r : count - 1) * d;
        float s[SUMS] = {};
        if (a.wide_d)
            multiply_rows<4, KEYS, R>(Q, from, Ks, d, s);
        else
            multiply_rows<1, KEYS, R>(Q, from, Ks, d, s);
        const int index = fold_apart<SUBS / 2, SUMS>(s);
        float *const to = Ss + (first + index / KEYS) * PITCH + index % KEYS;
        if constexpr (SUMS / SUBS % 4 == 0)
            TL_UNROLL_FOR (int i = 0; i < SUMS / SUBS; i += 4)
                tl_store4(to + i, s + i);
        else
            TL_UNROLL_FOR (int i = 0; i < SUMS / SUBS; i++)
                to[i] = s[i];
    }
    __syncwarp();
    {
        const int row = (int)threadIdx.x;
        float s[KEYS];
        uint32_t open;
        TL_UNROLL_FOR (int j = 0; j < KEYS; j++)
            s[j] = Ss[row * PITCH + j];
        totals[row] = weigh<KEYS>(a, limits, row, s, &open);
        inverses[row] = 1.0f / totals[row];
        TL_UNROLL_FOR (int j = 0; j < KEYS; j++)
            Ss[row * PITCH + j] = s[j];
    }
    __syncwarp();
    float *const to = a.result + (at + own) * v;
    const int rows = count - own < 32 ? count - own : 32;
    if (a.wide_v)
        combine_rows<4, KEYS>(Ss + own * PITCH, totals + own, inverses + own, Vs, v, rows, to);
    else
        combine_rows<1, KEYS>(Ss + own * PITCH, totals + own, inverses + own, Vs, v, rows, to);
}

template <int KEYS> static int32_t forward(tl_context *ctx, const Args &a)
{
    const size_t bytes = forward_shared<KEYS>(a.d, a.v);
    TL_TRY(tl_allow_shared(ctx, forward_kernel<KEYS>, bytes));
    return tl_launch_dynamic(ctx, NAME, forward_kernel<KEYS>, (unsigned)(a.members * a.parts.divisor), PART, bytes, a);
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

template <int KEYS> constexpr size_t shared_bytes(int64_t d, int64_t v)
{
    return sizeof(float) * (size_t)(Rows::FLOATS * PART + whole(KEYS * d) + whole(KEYS * v) + 2 * PART * KEYS);
}

template <int KEYS, int R> __global__ void __launch_bounds__(THREADS, 2) rows_kernel(const __grid_constant__ Args a)
{
    static_assert(PART % (ROW_GROUPS * R) == 0 && KEYS <= 32, "ownership");
    TL_DYNAMIC_SHARED(float, shared);
    Rows limits(shared, PART);
    float *const Ks = shared + Rows::FLOATS * PART, *const Vs = Ks + whole(KEYS * a.d);
    float *const Ps = Vs + whole(KEYS * a.v), *const Ws = Ps + PART * KEYS; /* [row][key]: P and dS */
    uint32_t part;
    const int64_t b = a.parts.divmod(blockIdx.x, &part), i0 = (int64_t)part * PART, at = b * a.rows + i0;
    const int count = (int)(a.rows - i0 < PART ? a.rows - i0 : PART), d = (int)a.d, v = (int)a.v;
    const float *const Q = a.Q + at * d, *const g = a.g + at * v, *const out = a.out + at * v;

    limits.find(a, b, i0, PART);
    copy_all<KEYS>(Ks, a.K + b * a.keys * d, a.keys, d);
    copy_all<KEYS>(Vs, a.V + b * a.keys * v, a.keys, v);
    __syncthreads();
#pragma unroll 1
    for (int first = 0; first < count; first += ROW_GROUPS * R) {
        const int row0 = first + (int)threadIdx.x / SUBS * R, rows = count - row0;
        const float *x[R], *y[R], *z[R];
        TL_UNROLL_FOR (int r = 0; r < R; r++) { /* what does not exist reads the last row, and is dropped */
            const int64_t row = row0 + r < count ? row0 + r : count - 1;
            x[r] = Q + row * d;
            y[r] = g + row * v;
            z[r] = out + row * v;
        }
        float s[R][KEYS] = {}, none[R], total[R];
        uint32_t open[R];
        if (a.wide_d)
            multiply<4, false>(x, x, Ks, d, s, none);
        else
            multiply<1, false>(x, x, Ks, d, s, none);
        TL_UNROLL_FOR (int r = 0; r < R; r++) {
            TL_UNROLL_FOR (int j = 0; j < KEYS; j++)
                s[r][j] = tl_fold_group<tl_sum_op, SUBS>(s[r][j]);
            total[r] = weigh<KEYS>(a, limits, row0 + r, s[r], &open[r]);
        }
        float t[R][KEYS] = {}, dot[R] = {};
        if (a.wide_v)
            multiply<4, true>(y, z, Vs, v, t, dot);
        else
            multiply<1, true>(y, z, Vs, v, t, dot);
        TL_UNROLL_FOR (int r = 0; r < R; r++) {
            const float inverse = 1.0f / total[r], D = tl_fold_group<tl_sum_op, SUBS>(dot[r]);
            TL_UNROLL_FOR (int j = 0; j < KEYS; j++) {
                const float weight = s[r][j] * inverse, product = tl_fold_group<tl_sum_op, SUBS>(t[r][j]);
                t[r][j] = open[r] >> j & 1 ? weight * (product - D) : 0.0f;
                if ((int)threadIdx.x % SUBS == j % SUBS) {
                    Ps[(row0 + r) * KEYS + j] = weight;
                    Ws[(row0 + r) * KEYS + j] = t[r][j];
                }
            }
        }
        if (a.gQ) {
            float *const to = a.gQ + (at + row0) * d;
            const float scale = a.scale;
            const auto end = [=](int, float sum) { return sum * scale; };
            if (a.wide_d)
                combine<4>(t, Ks, d, rows, to, end);
            else
                combine<1>(t, Ks, d, rows, to, end);
        }
    }
    __syncthreads();
    for (int c = threadIdx.x; c < d + v; c += THREADS) {
        const bool of_keys = c < d;
        float *const gradient = of_keys ? a.gK : a.gV;
        if (!gradient) continue;
        const int width = of_keys ? d : v, column = of_keys ? c : c - d;
        const float *const x = (of_keys ? Q : g) + column, *const w = of_keys ? Ws : Ps;
        float sum[KEYS] = {};
#pragma unroll 4
        for (int r = 0; r < count; r++) {
            const float y = x[r * width];
            if constexpr (KEYS % 4 == 0) {
                TL_UNROLL_FOR (int j = 0; j < KEYS; j += 4) {
                    float f[4];
                    tl_load4(w + r * KEYS + j, f);
                    TL_UNROLL_FOR (int e = 0; e < 4; e++)
                        sum[j + e] = fmaf(f[e], y, sum[j + e]);
                }
            } else {
                TL_UNROLL_FOR (int j = 0; j < KEYS; j++)
                    sum[j] = fmaf(w[r * KEYS + j], y, sum[j]);
            }
        }
        float *const to = gradient + (int64_t)blockIdx.x * a.keys * width + column;
        TL_UNROLL_FOR (int j = 0; j < KEYS; j++)
            if (j < a.keys) to[j * width] = of_keys ? sum[j] * a.scale : sum[j];
    }
}

template <int KEYS, int R> static int32_t backward(tl_context *ctx, const Args &a)
{
    const size_t bytes = shared_bytes<KEYS>(a.d, a.v);
    const auto kernel = rows_kernel<KEYS, R>;
    TL_TRY(tl_allow_shared(ctx, kernel, bytes));
    return tl_launch_dynamic(ctx, NAME, kernel, (unsigned)(a.members * a.parts.divisor), THREADS, bytes, a);
}

static Args make_args(const Geometry &of, const float *Q, const float *K, const float *V)
{
    Args a = {};
    static_cast<Geometry &>(a) = of;
    a.Q = Q, a.K = K, a.V = V;
    a.parts = tl_fastdiv((uint64_t)tl_ceil_div(a.rows, PART));
    a.wide_d = a.d % 4 == 0 && tl_aligned4(Q);
    a.wide_v = a.v % 4 == 0;
    return a;
}

/* Shared memory of a block of the forward or backward kernel, whichever has more. */
template <int KEYS> constexpr size_t most_shared(int64_t d, int64_t v)
{
    return forward_shared<KEYS>(d, v) > shared_bytes<KEYS>(d, v) ? forward_shared<KEYS>(d, v)
                                                                 : shared_bytes<KEYS>(d, v);
}

} /* namespace few_keys */

bool few_keys_serve(tl_context *ctx, const Geometry &of)
{
    using namespace few_keys;
    if (tl_is_reproducible(ctx) || of.keys <= 0 || of.keys > KEYS_MOST || of.members <= 0 || of.rows <= 0 ||
        of.d <= 0 || of.v <= 0 || of.d + of.v > WIDTHS_MOST || of.members * tl_ceil_div(of.rows, PART) >= INT32_MAX)
        return false;
    const auto attribute = cudaDevAttrMaxSharedMemoryPerBlockOptin;
    const size_t bytes = of.keys <= 16 ? most_shared<16>(of.d, of.v) : most_shared<KEYS_MOST>(of.d, of.v);
    int most = 0;
    return cudaDeviceGetAttribute(&most, attribute, tl_context_ordinal(ctx)) == cudaSuccess && bytes <= (size_t)most;
}

int32_t few_keys_forward(tl_context *ctx, const Geometry &of, const float *Q, const float *K, const float *V,
                         float *out)
{
    using namespace few_keys;
    Args a = make_args(of, Q, K, V);
    a.result = out;
    a.wide_v = a.wide_v && tl_aligned4(out);
    return a.keys == 1    ? forward<1>(ctx, a)
           : a.keys <= 4  ? forward<4>(ctx, a)
           : a.keys <= 8  ? forward<8>(ctx, a)
           : a.keys <= 16 ? forward<16>(ctx, a)
                          : forward<KEYS_MOST>(ctx, a);
}

int32_t few_keys_backward(tl_context *ctx, const Geometry &of, const float *Q, const float *K, const float *V,
                          const float *out, const float *g, float *gQ, float *gK, float *gV)
{
    using namespace few_keys;
    Args a = make_args(of, Q, K, V);
    a.out = out, a.g = g, a.gQ = gQ;
    a.wide_d = a.wide_d && (!gQ || tl_aligned4(gQ));
    a.wide_v = a.wide_v && tl_aligned4(out) && tl_aligned4(g);
    const int64_t parts = a.parts.divisor;
    PartialGradient part_k(ctx, gK, a.members, parts, a.keys * a.d), part_v(ctx, gV, a.members, parts, a.keys * a.v);
    TL_TRY(part_k.open(&a.gK));
    TL_TRY(part_v.open(&a.gV));
    /* As many rows at once as registers hold sums for. */
    TL_TRY((a.keys == 1    ? backward<1, 4>(ctx, a)
            : a.keys <= 4  ? backward<4, 4>(ctx, a)
            : a.keys <= 16 ? backward<16, 2>(ctx, a)
                           : backward<KEYS_MOST, 1>(ctx, a)));
    TL_TRY(part_k.close());
    return part_v.close();
}

} /* namespace attention */
