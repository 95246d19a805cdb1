/* The passes of attention/grouped.cu backward of rows of at most 16 elements without a mask. Such rows fit into registers: so a
 * thread owns queries, or a key, and makes whole scores and whole rows of gradients. What it reads of the other side all lanes of
 * a warp read at once, and no weight goes through shared memory, which takes most of the time in tiles of products.
 *
 * Both have the bits of the kernels of attention/grouped.cu: their chains are the same. */
#pragma once

#include "cuda/attention/grouped_tiles.cuh"

namespace attention {
namespace grouped {

constexpr int NARROW = 16; /* elements of a row */

/* x·y after `sum`, of four coordinates. */
__device__ __forceinline__ float add_products(float4 x, float4 y, float sum)
{
    return fmaf(x.w, y.w, fmaf(x.z, y.z, fmaf(x.y, y.y, fmaf(x.x, y.x, sum))));
}

/* Starts copying COUNT rows from `first` on of x (n, width), if there are any elements; what does not exist is 0. */
template <class C, int COUNT>
__device__ __forceinline__ void copy_narrow(float *to, const float *x, int64_t first, int64_t n, int64_t width,
                                            bool wide)
{
    Problem p = {};
    p.n = n, p.d = width, p.wide = wide;
    copy_rows<C, COUNT>(to, x, first, p, 0);
}

/* ---- the pass over queries --------------------------------------------------------------------------------------- */

/* A warp has 32·R neighbouring queries, a lane every 32nd of them: a key that is read serves R. Tiles are those of the other
 * kernel, because the order of its sums of weights is that of its TX = LANES lanes, and a tile that is passed over leaves the
 * sign of a zero as it is. */
template <int DP_> struct NarrowQueries {
    static constexpr int DP = DP_, THREADS = 64, ROWS = 128, COLS = 32, LD = DP + 4, LANES = 8, R = ROWS / THREADS;
    static constexpr int BLOCKS = 6, OWN = LANES + 2, GROUP = 4;
    static constexpr bool MANY = false;
};

template <class C> constexpr size_t narrow_query_shared()
{
    return sizeof(float) * (size_t)((Rows::FLOATS + C::OWN) * C::ROWS + 2 * (C::ROWS + C::COLS) * C::LD);
}

/* Bit j: the row may attend to key j0 + j, of the tile's keys. */
template <class C> __device__ __forceinline__ uint32_t open_keys(const Rows &limits, int r, int64_t j0)
{
    static_assert(C::COLS == 32, "a bit for each key");
    const int64_t first = limits.first[r] - j0, end = limits.end[r] - j0;
    const uint32_t from = first <= 0 ? ~0u : first < 32 ? ~0u << first : 0u;
    return from & (end >= 32 ? ~0u : end > 0 ? (1u << end) - 1 : 0u);
}

template <class C> __global__ void __launch_bounds__(C::THREADS, C::BLOCKS) narrow_query_kernel(const Args a)
{
    constexpr int DP = C::DP, R = C::R, LD = C::LD, COLS = C::COLS, LANES = C::LANES, GROUP = C::GROUP;
    TL_DYNAMIC_SHARED(float, shared);
    Rows limits(shared, C::ROWS);
    float *const Qs = shared + Rows::FLOATS * C::ROWS, *const Gs = Qs + C::ROWS * LD, *const Ks = Gs + C::ROWS * LD;
    float *const Vs = Ks + COLS * LD;
    /* What a thread alone needs, and seldom, of each row: LANES sums of weights, the greatest score and D. */
    float *const chains = Vs + COLS * LD + threadIdx.x, *const tops = chains + R * LANES * C::THREADS;
    float *const dots = tops + R * C::THREADS;
    const int own = (int)threadIdx.x / 32 * 32 * R + (int)threadIdx.x % 32; /* and every 32nd further row */
    const int64_t b = blockIdx.x / a.blocks, i0 = blockIdx.x % a.blocks * C::ROWS;
    const float *const K = a.K + b * a.keys * a.d, *const V = a.V + b * a.keys * a.v;
    const bool gradient = a.gQ != nullptr;
    const int steps_d = steps(a.d, 0, DP), steps_v = steps(a.v, 0, DP);

    limits.find(a, b, i0, C::ROWS);
    copy_narrow<C, C::ROWS>(Qs, a.out + b * a.rows * a.v, i0, a.rows, a.v, a.wide_v); /* Q comes in its place */
    copy_narrow<C, C::ROWS>(Gs, a.g + b * a.rows * a.v, i0, a.rows, a.v, a.wide_v);
    arrive();
    float sums[R][DP] = {};
    TL_UNROLL_FOR (int i = 0; i < R; i++) {
        float dot = 0.0f;
        for (int c = 0; c < (int)a.v; c++)
            dot = fmaf(Gs[(own + 32 * i) * LD + c], Qs[(own + 32 * i) * LD + c], dot);
        TL_UNROLL_FOR (int l = 0; l < LANES; l++)
            chains[(LANES * i + l) * C::THREADS] = 0.0f;
        tops[i * C::THREADS] = -TL_INF;
        dots[i * C::THREADS] = dot;
    }
    __syncthreads();
    copy_narrow<C, C::ROWS>(Qs, a.Q + b * a.rows * a.d, i0, a.rows, a.d, a.wide_d);

    int64_t first_key = first_term(a), end_key = end_term(a, a.keys);
    if (a.limited) cut_to_window<COLS>(a, limits, C::ROWS, a.finite_k, b, &first_key, &end_key);
    const int tiles = (int)((end_key + COLS - 1) / COLS);
    for (int tile = (int)(first_key / COLS); tile < tiles; tile++) {
        const int64_t j0 = (int64_t)tile * COLS;
        if (a.limited &&
            !__syncthreads_or(limits.meet(C::ROWS, j0, j0 + COLS) || !finite_rows<COLS>(a.finite_k, a.keys, b, j0)))
            continue;
        copy_narrow<C, COLS>(Ks, K, j0, a.keys, a.d, a.wide_d);
        if (gradient) copy_narrow<C, COLS>(Vs, V, j0, a.keys, a.v, a.wide_v);
        arrive();
        /* Keys go in groups of LANES, of which those that hold none are passed over. */
        const int count = a.keys - j0 < COLS ? (int)(a.keys - j0) : COLS;
        float s[R][COLS] = {};
#pragma unroll 1
        for (int k = 0; k < steps_d; k++) {
            float4 q[R];
            TL_UNROLL_FOR (int i = 0; i < R; i++)
                q[i] = tl_load4(Qs + (own + 32 * i) * LD + 4 * k);
            TL_UNROLL_FOR (int j = 0; j < COLS; j++) {
                if (j % LANES == 0 && j >= count) break;
                const float4 y = tl_load4(Ks + j * LD + 4 * k);
                TL_UNROLL_FOR (int i = 0; i < R; i++)
                    s[i][j] = add_products(q[i], y, s[i][j]);
            }
        }
        uint32_t open[R];
        TL_UNROLL_FOR (int i = 0; i < R; i++) {
            open[i] = open_keys<C>(limits, own + 32 * i, j0);
            const float before = tops[i * C::THREADS];
            float most = before;
            TL_UNROLL_FOR (int j = 0; j < COLS; j++)
                s[i][j] = tl_attention_score(s[i][j], a.scale);
            if (!__all_sync(~0u, open[i] == ~0u))
                TL_UNROLL_FOR (int j = 0; j < COLS; j++)
                    s[i][j] = open[i] >> j & 1 ? s[i][j] : -TL_INF;
            TL_UNROLL_FOR (int j = 0; j < COLS; j++)
                most = fmaxf(most, s[i][j]);
            const float factor = most > before ? tl_attention_weight(before - most) : 1.0f;
            const float base = most == -TL_INF ? 0.0f : most;
            tops[i * C::THREADS] = most;
            float of_lane[LANES] = {};
            TL_UNROLL_FOR (int j = 0; j < COLS; j++) {
                if (j % LANES == 0 && j >= count) break;
                s[i][j] = tl_attention_weight(s[i][j] - base);
                of_lane[j % LANES] += s[i][j];
            }
            TL_UNROLL_FOR (int l = 0; l < LANES; l++) {
                float *const chain = chains + (LANES * i + l) * C::THREADS;
                *chain = fmaf(*chain, factor, of_lane[l]);
            }
            TL_UNROLL_FOR (int c = 0; c < DP; c++)
                sums[i][c] *= factor;
        }
        TL_UNROLL_FOR (int first = 0; first < COLS; first += GROUP) {
            if (!gradient || first >= count) break;
            float t[R][GROUP] = {};
#pragma unroll 1
            for (int k = 0; k < steps_v; k++) {
                float4 g[R];
                TL_UNROLL_FOR (int i = 0; i < R; i++)
                    g[i] = tl_load4(Gs + (own + 32 * i) * LD + 4 * k);
                TL_UNROLL_FOR (int j = 0; j < GROUP; j++) {
                    const float4 y = tl_load4(Vs + (first + j) * LD + 4 * k);
                    TL_UNROLL_FOR (int i = 0; i < R; i++)
                        t[i][j] = add_products(g[i], y, t[i][j]);
                }
            }
            TL_UNROLL_FOR (int i = 0; i < R; i++) {
                const float dot = dots[i * C::THREADS];
                TL_UNROLL_FOR (int j = 0; j < GROUP; j++)
                    t[i][j] = open[i] >> (first + j) & 1 ? s[i][first + j] * (t[i][j] - dot) : 0.0f;
            }
            TL_UNROLL_FOR (int c = 0; c < DP; c += 4) {
                if (c >= (int)a.d) break;
                TL_UNROLL_FOR (int j = 0; j < GROUP; j++) {
                    float y[4];
                    tl_load4(Ks + (first + j) * LD + c, y);
                    TL_UNROLL_FOR (int i = 0; i < R; i++)
                        TL_UNROLL_FOR (int e = 0; e < 4; e++)
                            sums[i][c + e] = fmaf(t[i][j], y[e], sums[i][c + e]);
                }
            }
        }
        if (count < COLS) /* as keys that do not exist add */
            TL_UNROLL_FOR (int i = 0; i < R; i++)
                TL_UNROLL_FOR (int c = 0; c < DP; c++)
                    sums[i][c] += 0.0f;
        __syncthreads();
    }

    arrive(); /* Q, where no tile has waited for it, or it would come over what its place holds now */
    const int64_t row0 = b * a.rows + i0, pitch = a.parts ? (gradient ? a.d : 0) + 2 : a.d;
    float *const to = a.parts    ? a.parts + (blockIdx.z * a.members * a.rows + row0) * pitch
                      : gradient ? a.gQ + row0 * pitch
                                 : nullptr;
    TL_UNROLL_FOR (int i = 0; i < R; i++) {
        const int row = own + 32 * i;
        float chain[LANES];
        TL_UNROLL_FOR (int l = 0; l < LANES; l++)
            chain[l] = chains[(LANES * i + l) * C::THREADS];
        const float top = tops[i * C::THREADS], dot = dots[i * C::THREADS];
        const float sum = tl_fold_array<tl_sum_op, LANES>(chain), total = softmax_total(top, sum);
        TL_UNROLL_FOR (int c = 0; c < DP; c++)
            sums[i][c] = a.parts ? sums[i][c] : sums[i][c] / total * a.scale;
        TL_UNROLL_FOR (int c = 0; c < DP; c += 4)
            tl_store4(Qs + row * LD + c, sums[i] + c);
        if (i0 + row >= a.rows) continue;
        if (a.parts) to[row * pitch + pitch - 2] = top, to[row * pitch + pitch - 1] = sum;
        if (a.parts && blockIdx.z == 0) a.dot[row0 + row] = dot;
        if (a.parts) continue;
        a.base[row0 + row] = top == -TL_INF ? 0.0f : top;
        a.inverse[row0 + row] = 1.0f / total;
        a.dot[row0 + row] = dot;
    }
    __syncthreads();
    constexpr int APART = C::THREADS / DP;
    const int c = (int)threadIdx.x % DP, row = (int)threadIdx.x / DP;
    const int rows = a.rows - i0 < C::ROWS ? (int)(a.rows - i0) : C::ROWS;
    if (!gradient || c >= (int)a.d) return;
    const float *from = Qs + row * LD + c;
    float *target = to + row * pitch + c;
#pragma unroll 4
    for (int r = row; r < rows; r += APART, from += APART * LD, target += APART * pitch)
        *target = *from;
}

/* ---- the pass over keys ------------------------------------------------------------------------------------------ */

/* A thread has a key and its value, and both their gradients, and goes through tiles of COLS queries, AHEAD of them at once. */
template <int DP_> struct NarrowKeys {
    static constexpr int DP = DP_, THREADS = 64, ROWS = THREADS, COLS = 64, LD = DP, AHEAD = 4, STAGES = 2;
    static constexpr int STAGE = (2 * LD + 4 + Rows::FLOATS) * COLS; /* floats: Q, g, statistics, limits */
    static constexpr int BLOCKS = DP <= 8 ? 6 : 4;
    static constexpr bool MANY = false;
};

template <class C> constexpr size_t narrow_key_shared() { return sizeof(float) * (size_t)(C::STAGES * C::STAGE); }

/* The thread's key in a stage of queries. Unless WHOLE not all of them may attend to it, or some that are looked at do not exist, whose
 * scores are NaN where the scale or the key is not finite. */
template <class C, bool WHOLE>
__device__ __forceinline__ void add_queries(const float *stage, const Rows &limits, int queries, int64_t key,
                                            float scale, const float4 (&K)[C::DP / 4], const float4 (&V)[C::DP / 4],
                                            float (&gK)[C::DP], float (&gV)[C::DP])
{
    constexpr int DP = C::DP, AHEAD = C::AHEAD, LD = C::LD;
    const float *Q = stage, *g = Q + C::COLS * LD, *statistics = g + C::COLS * LD;
#pragma unroll 1
    for (int r = 0; r < queries; r += AHEAD, Q += AHEAD * LD, g += AHEAD * LD, statistics += 4 * AHEAD) {
        float q[AHEAD][DP], x[AHEAD][DP], s[AHEAD] = {}, t[AHEAD] = {};
        TL_UNROLL_FOR (int c = 0; c < DP; c += 4)
            TL_UNROLL_FOR (int u = 0; u < AHEAD; u++) {
                const float4 of_q = tl_load4(Q + u * LD + c), of_g = tl_load4(g + u * LD + c);
                s[u] = add_products(K[c / 4], of_q, s[u]);
                t[u] = add_products(V[c / 4], of_g, t[u]);
                tl_unpack4(of_q, q[u] + c);
                tl_unpack4(of_g, x[u] + c);
            }
        TL_UNROLL_FOR (int u = 0; u < AHEAD; u++) {
            const float4 of_query = tl_load4(statistics + 4 * u);
            const bool shut = !WHOLE && (key < limits.first[r + u] || key >= limits.end[r + u]);
            const float score = shut ? -TL_INF : tl_attention_score(s[u], scale);
            s[u] = tl_attention_weight(score - of_query.x) * of_query.y;
            t[u] = shut ? 0.0f : s[u] * (t[u] - of_query.z);
        }
        TL_UNROLL_FOR (int u = 0; u < AHEAD; u++)
            TL_UNROLL_FOR (int c = 0; c < DP; c++) {
                gV[c] = fmaf(s[u], x[u][c], gV[c]);
                gK[c] = fmaf(t[u], q[u][c], gK[c]);
            }
    }
}

template <class C> __global__ void __launch_bounds__(C::THREADS, C::BLOCKS) narrow_key_kernel(const Args a)
{
    constexpr int DP = C::DP, COLS = C::COLS;
    TL_DYNAMIC_SHARED(float, shared);
    const int64_t b = blockIdx.x / a.blocks;
    int64_t j0 = blockIdx.x % a.blocks * C::ROWS;
    if (j0 >= a.stored.first) j0 += a.stored.end - a.stored.first;
    const int64_t j1 = j0 + C::ROWS < a.keys ? j0 + C::ROWS : a.keys, key = j0 + threadIdx.x;
    const float *const Q = a.Q + b * a.rows * a.d, *const g = a.g + b * a.rows * a.v;

    const auto limits_of = [=](int stage) { return Rows(shared + stage * C::STAGE + (2 * C::LD + 4) * COLS, COLS); };
    int64_t i0 = first_term(a);
    const int64_t rows_end = end_term(a, a.rows);
    /* The tile of queries from i on, or behind it, that counts for the block's keys, and whether all its queries may attend to all
     * of them and no step of AHEAD goes beyond the end. A thread looks at one query, whose limits it has found itself. */
    const auto next = [=](int64_t i, int stage, bool *whole) {
        const bool even = a.rows % C::AHEAD == 0;
        *whole = even || i + COLS <= a.rows;
        if (!a.limited) return i;
        Rows limits = limits_of(stage);
        const int t = (int)threadIdx.x;
        for (; i < rows_end; i += COLS) {
            const int64_t end = i + COLS < a.rows ? i + COLS : a.rows;
            limits.find(a, b, i, COLS);
            *whole = __syncthreads_and((even && i + t >= a.rows) || limits.opens(a, t, j0, j1));
            if (*whole || __syncthreads_or(limits.meet(COLS, j0, j1)) ||
                __syncthreads_or(counts_everywhere(a, b, i, end)))
                break;
        }
        return i;
    };
    const auto start = [=](int64_t i, int stage) {
        float *const Qs = shared + stage * C::STAGE, *const Gs = Qs + COLS * C::LD,
                     *const statistics = Gs + COLS * C::LD;
        copy_narrow<C, COLS>(Qs, Q, i, a.rows, a.d, a.wide_d);
        copy_narrow<C, COLS>(Gs, g, i, a.rows, a.v, a.wide_v);
        const float *const of_rows[STATISTICS] = {a.base, a.inverse, a.dot};
        const int64_t row = i + threadIdx.x;
        TL_UNROLL_FOR (int k = 0; k < STATISTICS; k++)
            tl_copy_async<4>(statistics + 4 * threadIdx.x + k, of_rows[k] + b * a.rows + (row < a.rows ? row : 0),
                             row < a.rows);
        tl_copy_commit();
    };

    /* Rows without elements stay 0. */
    for (int i = threadIdx.x; i < C::STAGES * C::STAGE; i += C::THREADS)
        shared[i] = 0.0f;
    if (!a.limited) { /* the limits of the last tile, which alone may need them, in whichever stage it comes */
        __syncthreads();
        for (int stage = 0; stage < C::STAGES; stage++)
            limits_of(stage).find(a, b, a.rows / COLS * COLS, COLS);
    }
    float4 K[DP / 4], V[DP / 4];
    TL_UNROLL_FOR (int c = 0; c < DP; c += 4) {
        float x[4], y[4];
        TL_UNROLL_FOR (int e = 0; e < 4; e++) {
            x[e] = key < j1 && c + e < a.d ? a.K[(b * a.keys + key) * a.d + c + e] : 0.0f;
            y[e] = key < j1 && c + e < a.v ? a.V[(b * a.keys + key) * a.v + c + e] : 0.0f;
        }
        K[c / 4] = make_float4(x[0], x[1], x[2], x[3]);
        V[c / 4] = make_float4(y[0], y[1], y[2], y[3]);
    }
    __syncthreads();
    float gK[DP] = {}, gV[DP] = {};
    bool whole;
    int stage = 0;
    if (no_row_counts(a, b, i0, rows_end, j0, j1)) i0 = rows_end;
    i0 = next(i0, stage, &whole);
    if (i0 < rows_end) start(i0, stage);
    while (i0 < rows_end) {
        bool whole_after;
        tl_copy_wait<0>();
        __syncthreads(); /* the tile is there, and the one before has been used */
        const int64_t after = next(i0 + COLS, stage ^ 1, &whole_after);
        if (after < rows_end) start(after, stage ^ 1);
        const float *const tile = shared + stage * C::STAGE;
        const int queries = rows_end - i0 < COLS ? (int)(rows_end - i0) : COLS;
        if (whole)
            add_queries<C, true>(tile, limits_of(stage), queries, key, a.scale, K, V, gK, gV);
        else
            add_queries<C, false>(tile, limits_of(stage), queries, key, a.scale, K, V, gK, gV);
        i0 = after, stage ^= 1, whole = whole_after;
    }
    if (key >= j1) return;
    const int64_t at = (b * gridDim.z + blockIdx.z) * a.keys + key;
    TL_UNROLL_FOR (int c = 0; c < DP; c++) { /* no -0, as there */
        if (a.gK && c < a.d) a.gK[at * a.d + c] = (gK[c] + 0.0f) * a.scale;
        if (a.gV && c < a.v) a.gV[at * a.v + c] = gV[c] + 0.0f;
    }
}

} /* namespace grouped */
} /* namespace attention */
