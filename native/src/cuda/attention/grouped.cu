/* Attention on CUDA of heads that share keys in groups, of any number of queries and keys, with a window: forward and
 * backward, on the ordinary units. See attention/simt_tiles.cuh for who owns what of a product, attention/backward.cu for
 * the two passes of the gradients.
 *
 * A member of the batch is a head of keys with the queries of its group, one head's after the other's: so keys are read
 * once for a group, and their gradients are sums over all rows of the member, in order. What a row may attend to is found
 * once and lies in shared memory. Rows longer than DP are gone through in chunks, and a block makes one chunk of a result. Of rows
 * of more than 128 elements most is done by attention/grouped_stream.cu.
 *
 * Of few rows the sums of the gradients are cut into parts, each a block's work (blockIdx.z), and the parts joined in
 * order. Where a window leaves few blocks of keys, attention/stored_weights.cu makes their gradients. Those of short rows without a
 * mask are made in registers (attention/narrow_rows.cuh).
 *
 * What flash_attention computes as well, heads of as many queries as keys without a mask, causal or not, goes to its kernels on tensor
 * cores, with the keys and values of a group repeated for each of its heads; their gradients are then added up. Where products with
 * scores in memory between them are faster, attention/products.cu takes over. */
#include "cuda/attention/chain.cuh"
#include "cuda/attention/few_keys.cuh"
#include "cuda/attention/few_rows.cuh"
#include "cuda/attention/grouped_launch.cuh"
#include "cuda/attention/grouped_stream.cuh"
#include "cuda/attention/narrow_rows.cuh"
#include "cuda/attention/products.cuh"
#include "cuda/device/vector.cuh"
#include "generated/attention.h"

namespace attention {
namespace grouped {

template <int DP, int ROWS, int COLS, int TY, int TX, int BLOCKS, bool MANY = false>
using Tiles = Paired<Config<DP, ROWS, COLS, TY, TX, BLOCKS, MANY>>;

/* ---- forward ----------------------------------------------------------------------------------------------------- */

template <class C> constexpr size_t forward_shared()
{
    return sizeof(float) * (size_t)(Rows::FLOATS * C::ROWS + (C::ROWS + 2 * C::COLS) * C::LD + C::ROWS * C::LP);
}

template <class C> __global__ void __launch_bounds__(C::THREADS, C::BLOCKS) forward_kernel(const Args a)
{
    TL_DYNAMIC_SHARED(float, shared);
    Rows limits(shared, C::ROWS);
    float *Qs = shared + Rows::FLOATS * C::ROWS, *Ks = Qs + C::ROWS * C::LD, *Vs = Ks + C::COLS * C::LD;
    float *Ps = Vs + C::COLS * C::LD;
    const int tx = C::tx(), ty = C::ty();
    const int64_t b = blockIdx.x / a.blocks, i0 = blockIdx.x % a.blocks * C::ROWS;
    const float *Q = a.Q + b * a.rows * a.d, *K = a.K + b * a.keys * a.d, *V = a.V + b * a.keys * a.v;

    limits.find(a, b, i0, C::ROWS);
    __syncthreads();
    float sums[C::RM][C::RC] = {};
    Softmax<C> softmax;
    bool fresh = true;
    int64_t j0 = 0, keys_end = a.keys;
    if (a.limited) cut_to_window<C::COLS>(a, limits, C::ROWS, a.finite_v, b, &j0, &keys_end);
    for (; j0 < keys_end; j0 += C::COLS) {
        if (a.limited && !__syncthreads_or(limits.meet(C::ROWS, j0, j0 + C::COLS) ||
                                           !finite_rows<C::COLS>(a.finite_v, a.keys, b, j0)))
            continue;
        copy<C, C::COLS>(Vs, V, j0, a.keys, a.v, a.wide_v, 0);
        start<C>(Qs, Q, i0, a.rows, Ks, K, j0, a.keys, a.d, a.wide_d, fresh);
        arrive();
        float s[C::RM][C::RK] = {};
        scores<C>(s, Qs, Q, i0, a.rows, Ks, K, j0, a.keys, a.d, a.wide_d);
        fresh = false;
        tile_scores<C, false>(a, limits, j0, s);
        TL_UNROLL_FOR (int i = 0; i < C::RM; i++) {
            const float factor = softmax.step(i, s[i]);
            TL_UNROLL_FOR (int c = 0; c < C::RC; c++)
                sums[i][c] *= factor;
            TL_UNROLL_FOR (int j = 0; j < C::RK; j++)
                Ps[(ty + C::TY * i) * C::LP + tx + C::TX * j] = s[i][j];
        }
        arrive();
        accumulate<C>(Ps, Vs, sums, groups<C>(a.v, 0));
        __syncthreads();
    }
    TL_UNROLL_FOR (int i = 0; i < C::RM; i++) {
        const float total = softmax.total(i);
        const int64_t row = i0 + ty + C::TY * i;
        TL_UNROLL_FOR (int c = 0; c < C::RC; c++)
            sums[i][c] = sums[i][c] / total;
        if (row < a.rows) store<C>(a.result + (b * a.rows + row) * a.v, sums[i], a.v, 0);
    }
}

/* ---- the pass over queries --------------------------------------------------------------------------------------- */

template <class C> constexpr size_t query_shared()
{
    return sizeof(float) * (size_t)(Rows::FLOATS * C::ROWS + 2 * (C::ROWS + C::COLS) * C::LD + C::ROWS * C::LP);
}

template <class C> __global__ void __launch_bounds__(C::THREADS, C::BLOCKS) query_kernel(const Args a)
{
    TL_DYNAMIC_SHARED(float, shared);
    Rows limits(shared, C::ROWS);
    float *Qs = shared + Rows::FLOATS * C::ROWS, *Gs = Qs + C::ROWS * C::LD, *Ks = Gs + C::ROWS * C::LD;
    float *Vs = Ks + C::COLS * C::LD, *Ws = Vs + C::COLS * C::LD;
    const int tx = C::tx(), ty = C::ty();
    const int64_t b = blockIdx.x / a.blocks, i0 = blockIdx.x % a.blocks * C::ROWS;
    const int64_t from = C::MANY ? (int64_t)(a.chunk + blockIdx.y) * C::DP : 0;
    const float *Q = a.Q + b * a.rows * a.d, *K = a.K + b * a.keys * a.d, *V = a.V + b * a.keys * a.v;
    const float *g = a.g + b * a.rows * a.v, *out = a.out + b * a.rows * a.v;
    const bool gradient = a.gQ != nullptr;

    limits.find(a, b, i0, C::ROWS);
    __syncthreads();
    float sums[C::RM][C::RC] = {}, dot[C::RM];
    Softmax<C> softmax;
    /* D: in each of the row's lanes the chain that g·v_j is, so that the two are equal where a saturated softmax gives v_j. */
    TL_UNROLL_FOR (int i = 0; i < C::RM; i++) {
        const int64_t row = i0 + ty + C::TY * i;
        dot[i] = 0.0f;
#pragma unroll 8
        for (int64_t c = 0; c < a.v && row < a.rows; c++)
            dot[i] = fmaf(g[row * a.v + c], out[row * a.v + c], dot[i]);
    }
    bool fresh = true;
    int64_t j0 = first_term(a), keys_end = end_term(a, a.keys);
    if (a.limited) cut_to_window<C::COLS>(a, limits, C::ROWS, a.finite_k, b, &j0, &keys_end);
    for (; j0 < keys_end; j0 += C::COLS) {
        if (a.limited && !__syncthreads_or(limits.meet(C::ROWS, j0, j0 + C::COLS) ||
                                           !finite_rows<C::COLS>(a.finite_k, a.keys, b, j0)))
            continue;
        float s[C::RM][C::RK] = {}, t[C::RM][C::RK] = {};
        start<C>(Qs, Q, i0, a.rows, Ks, K, j0, a.keys, a.d, a.wide_d, fresh);
        if (gradient) start<C>(Gs, g, i0, a.rows, Vs, V, j0, a.keys, a.v, a.wide_v, fresh);
        if (!C::MANY) arrive();
        scores<C>(s, Qs, Q, i0, a.rows, Ks, K, j0, a.keys, a.d, a.wide_d);
        if (gradient) scores<C>(t, Gs, g, i0, a.rows, Vs, V, j0, a.keys, a.v, a.wide_v);
        fresh = false;
        if (C::MANY && gradient) {
            __syncthreads();
            copy<C, C::COLS>(Ks, K, j0, a.keys, a.d, a.wide_d, from);
        }
        const uint64_t open = tile_scores<C, false>(a, limits, j0, s);
        TL_UNROLL_FOR (int i = 0; i < C::RM; i++) {
            const float factor = softmax.step(i, s[i]);
            TL_UNROLL_FOR (int c = 0; c < C::RC; c++)
                sums[i][c] *= factor;
            TL_UNROLL_FOR (int j = 0; j < C::RK; j++)
                Ws[(ty + C::TY * i) * C::LP + tx + C::TX * j] =
                    open >> (C::RK * i + j) & 1 ? s[i][j] * (t[i][j] - dot[i]) : 0.0f;
        }
        arrive();
        if (gradient) accumulate<C>(Ws, Ks, sums, groups<C>(a.d, from));
        __syncthreads();
    }
    TL_UNROLL_FOR (int i = 0; i < C::RM; i++) {
        const float total = a.parts ? softmax.sum(i) : softmax.total(i);
        const int64_t row = i0 + ty + C::TY * i, at = b * a.rows + row;
        if (row >= a.rows) continue;
        if (a.parts) {
            const int64_t width = gradient ? a.d : 0;
            float *const to = a.parts + (blockIdx.z * a.members * a.rows + at) * (width + 2);
            if (gradient) store<C>(to, sums[i], a.d, from);
            if (tx == 0 && from == 0) {
                to[width] = softmax.top[i], to[width + 1] = total;
                if (blockIdx.z == 0) a.dot[at] = dot[i];
            }
            continue;
        }
        if (tx == 0 && from == 0) softmax.keep(i, total, dot[i], at, a);
        if (gradient) {
            TL_UNROLL_FOR (int c = 0; c < C::RC; c++)
                sums[i][c] = sums[i][c] / total * a.scale;
            store<C>(a.gQ + at * a.d, sums[i], a.d, from);
        }
    }
}

/* Joins the parts of the queries, in order. A block owns a query, a thread every 128th element of its gradient. */
__global__ void __launch_bounds__(128) join_kernel(const Args a, int parts)
{
    const int64_t at = blockIdx.x, width = a.gQ ? a.d : 0, pitch = a.members * a.rows * (width + 2);
    const float *const row = a.parts + at * (width + 2);
    float top = -TL_INF, sum = 0.0f;
    for (int p = 0; p < parts; p++)
        top = fmaxf(top, row[p * pitch + width]);
    const auto factor = [&](int p) {
        const float before = row[p * pitch + width];
        return top > before ? tl_attention_weight(before - top) : 1.0f;
    };
    for (int p = 0; p < parts; p++)
        sum = fmaf(row[p * pitch + width + 1], factor(p), sum);
    const float total = softmax_total(top, sum);
    if (threadIdx.x == 0) {
        a.base[at] = top == -TL_INF ? 0.0f : top;
        a.inverse[at] = 1.0f / total;
    }
    for (int64_t c = threadIdx.x; c < width; c += 128) {
        float x = 0.0f;
#pragma unroll 4
        for (int p = 0; p < parts; p++)
            x = fmaf(row[p * pitch + c], factor(p), x);
        a.gQ[at * a.d + c] = x / total * a.scale;
    }
}

/* ---- the pass over keys ------------------------------------------------------------------------------------------ */

template <class C> constexpr size_t key_shared()
{
    return sizeof(float) *
           (size_t)((Rows::FLOATS + STATISTICS) * C::COLS + 2 * (C::ROWS + C::COLS) * C::LD + 2 * C::ROWS * C::LP);
}

template <class C> __global__ void __launch_bounds__(C::THREADS, C::BLOCKS) key_kernel(const Args a)
{
    TL_DYNAMIC_SHARED(float, shared);
    Rows limits(shared, C::COLS);
    float *Ks = shared + Rows::FLOATS * C::COLS, *Vs = Ks + C::ROWS * C::LD, *Qs = Vs + C::ROWS * C::LD;
    float *Gs = Qs + C::COLS * C::LD, *Ps = Gs + C::COLS * C::LD, *Ws = Ps + C::ROWS * C::LP;
    float *const statistics = Ws + C::ROWS * C::LP;
    const int tx = C::tx(), ty = C::ty();
    const int64_t b = blockIdx.x / a.blocks;
    const int64_t from = C::MANY ? (int64_t)(a.chunk + blockIdx.y) * C::DP : 0;
    int64_t j0 = blockIdx.x % a.blocks * C::ROWS;
    constexpr bool LONG = C::COLS == STORED_TILE; /* of few queries that would not pay */
    if (LONG && j0 >= a.stored.first) j0 += a.stored.end - a.stored.first;
    const float *Q = a.Q + b * a.rows * a.d, *K = a.K + b * a.keys * a.d, *V = a.V + b * a.keys * a.v;
    const float *g = a.g + b * a.rows * a.v;
    /* Of long rows the block's chunk may lie beyond those of one gradient; that of V needs no dP. */
    const bool want_k = a.gK && (!C::MANY || from < a.d), want_v = a.gV && (!C::MANY || from < a.v);

    float gK[C::RM][C::RC] = {}, gV[C::RM][C::RC] = {};
    bool fresh = true, counted = false;
    int64_t i0 = first_term(a);
    const int64_t rows_end = end_term(a, a.rows);
    if (LONG && no_row_counts(a, b, i0, rows_end, j0, j0 + C::ROWS)) i0 = rows_end;
    for (; i0 < rows_end; i0 += C::COLS) {
        limits.find(a, b, i0, C::COLS);
        __syncthreads();
        if (!tile_counts<C>(a, limits, b, i0, j0)) continue;
        copy_statistics<C>(statistics, a, b, i0);
        start<C>(Ks, K, j0, a.keys, Qs, Q, i0, a.rows, a.d, a.wide_d, fresh);
        start<C>(Vs, V, j0, a.keys, Gs, g, i0, a.rows, a.v, a.wide_v, fresh);
        if (!C::MANY || a.d == 0) arrive(); /* else with the first chunk */
        float s[C::RM][C::RK] = {}, t[C::RM][C::RK] = {};
        scores<C>(s, Ks, K, j0, a.keys, Qs, Q, i0, a.rows, a.d, a.wide_d);
        if (!C::MANY || want_k) scores<C>(t, Vs, V, j0, a.keys, Gs, g, i0, a.rows, a.v, a.wide_v);
        fresh = false;
        if (C::MANY) {
            __syncthreads();
            if (want_k) copy<C, C::COLS>(Qs, Q, i0, a.rows, a.d, a.wide_d, from);
            if (want_v) copy<C, C::COLS>(Gs, g, i0, a.rows, a.v, a.wide_v, from);
        }
        const uint64_t open = tile_scores<C, true>(a, limits, j0, s);
        weigh_pairs<C>(statistics, a.rows - i0, open, s, t, [=](int key, int query, float weight, float product) {
            Ps[key * C::LP + query] = weight;
            Ws[key * C::LP + query] = product;
        });
        arrive();
        if (want_v) accumulate<C>(Ps, Gs, gV, groups<C>(a.v, from));
        if (want_k) accumulate<C>(Ws, Qs, gK, groups<C>(a.d, from));
        counted = true;
        __syncthreads();
    }
    auto keep = [&](int64_t c0, bool of_k, bool of_v) {
        TL_UNROLL_FOR (int i = 0; i < C::RM; i++) {
            const int64_t row = j0 + ty + C::TY * i, at = (b * gridDim.z + blockIdx.z) * a.keys + row;
            if (row >= a.keys) continue;
            /* No -0, which a row that is passed over, or does not exist, would make +0: so signs do not depend on the tile. */
            TL_UNROLL_FOR (int c = 0; c < C::RC; c++) {
                gK[i][c] = (gK[i][c] + 0.0f) * a.scale;
                gV[i][c] += 0.0f;
            }
            if (of_k) store<C>(a.gK + at * a.d, gK[i], a.d, c0);
            if (of_v) store<C>(a.gV + at * a.v, gV[i], a.v, c0);
        }
    };
    keep(from, want_k, want_v);
    if constexpr (C::MANY) { /* the other chunks, of the weights that are still there */
        const int64_t width = gridDim.y > 1 || a.chunk > 0 ? 0 : a.d > a.v ? a.d : a.v;
        for (int64_t c0 = C::DP; c0 < width; c0 += C::DP) {
            const bool of_k = a.gK && c0 < a.d, of_v = a.gV && c0 < a.v;
            TL_UNROLL_FOR (int i = 0; i < C::RM; i++)
                TL_UNROLL_FOR (int c = 0; c < C::RC; c++)
                    gK[i][c] = gV[i][c] = 0.0f;
            if (counted) {
                if (of_k) copy<C, C::COLS>(Qs, Q, 0, a.rows, a.d, a.wide_d, c0);
                if (of_v) copy<C, C::COLS>(Gs, g, 0, a.rows, a.v, a.wide_v, c0);
                arrive();
                if (of_v) accumulate<C>(Ps, Gs, gV, groups<C>(a.v, c0));
                if (of_k) accumulate<C>(Ws, Qs, gK, groups<C>(a.d, c0));
                __syncthreads();
            }
            keep(c0, of_k, of_v);
        }
    }
}

/* ---- as flash_attention ------------------------------------------------------------------------------------------ */

/* Rows and sequences from here on have the bound of split sums within that of grouped_attention (tlspec/ops/attention.py). */
constexpr int64_t SPLIT_LEAST = 64;

static bool is_square(tl_context *ctx, const Geometry &of)
{
    const bool causal = of.before >= of.keys && of.after == 0 && of.offset == 0;
    return !tl_is_reproducible(ctx) && of.members > 0 && of.rows > 0 && of.mode == UNMASKED && of.queries == of.keys &&
           of.d == of.v && of.d >= SPLIT_LEAST && of.d <= TENSOR_WIDTH && of.keys >= SPLIT_LEAST &&
           (!of.limited || causal) && fabsf(of.scale) <= 0x1p60f;
}

static int64_t flash_mode(const Geometry &of) { return of.limited ? CAUSAL : NO_MASK; }

/* A thread owns one vector of an array of each member, and writes it for every head of the group. */
template <class Vector>
__global__ void __launch_bounds__(256) repeat_kernel(const Vector *__restrict__ from, int64_t size, int64_t members,
                                                     int64_t group, Vector *__restrict__ to)
{
    const int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x;
    for (int64_t m = blockIdx.y; i < size && m < members; m += gridDim.y) {
        const Vector x = from[m * size + i];
        for (int64_t g = 0; g < group; g++)
            to[(m * group + g) * size + i] = x;
    }
}

/* Keys or values as flash_attention has them: where they lie, or, of several heads to a group, repeated in scratch. */
static int32_t repeat(tl_context *ctx, const Geometry &of, const float *from, tl_scratch<float> &scratch,
                      const float **repeated)
{
    *repeated = from;
    if (of.group == 1) return TORCHLEAN_OK;
    const int64_t size = of.keys * of.d;
    TL_TRY(scratch.allocate(of.members * of.group * size));
    *repeated = scratch;
    const bool wide = size % 4 == 0 && tl_aligned4(from);
    const dim3 grid(tl_grid(wide ? size / 4 : size, 256), (unsigned)(of.members < 65535 ? of.members : 65535));
    if (wide)
        return tl_launch(ctx, GROUPED, repeat_kernel<float4>, grid, 256, (const float4 *)from, size / 4, of.members,
                         of.group, (float4 *)(float *)scratch);
    return tl_launch(ctx, GROUPED, repeat_kernel<float>, grid, 256, from, size, of.members, of.group, (float *)scratch);
}

static int32_t square_forward(tl_context *ctx, const Geometry &of, const float *Q, const float *K, const float *V,
                              float *out)
{
    tl_scratch<float> keys(ctx), values(ctx);
    TL_TRY(repeat(ctx, of, K, keys, &K));
    TL_TRY(repeat(ctx, of, V, values, &V));
    return tl_cuda_flash_attention(ctx, Q, K, V, nullptr, of.members * of.group, of.keys, of.d, flash_mode(of),
                                   of.scale, out);
}

static int32_t square_backward(tl_context *ctx, const Geometry &of, const float *Q, const float *K, const float *V,
                               const float *out, const float *g, float *gQ, float *gK, float *gV)
{
    const int64_t heads = of.members * of.group, size = of.keys * of.d;
    tl_scratch<float> keys(ctx), values(ctx);
    PartialGradient part_k(ctx, gK, of.members, of.group, size), part_v(ctx, gV, of.members, of.group, size);
    float *own_k, *own_v;
    TL_TRY(repeat(ctx, of, K, keys, &K));
    TL_TRY(repeat(ctx, of, V, values, &V));
    TL_TRY(part_k.open(&own_k));
    TL_TRY(part_v.open(&own_v));
    TL_TRY(tl_cuda_flash_attention_bwd(ctx, Q, K, V, nullptr, out, g, heads, of.keys, of.d, flash_mode(of), of.scale,
                                       gQ, own_k, own_v));
    TL_TRY(part_k.close());
    return part_v.close();
}

/* ---- the operation ----------------------------------------------------------------------------------------------- */

template <class C> static int32_t forward(tl_context *ctx, Args &a)
{
    return launch<C>(ctx, forward_kernel<C>, a, forward_shared<C>(), a.rows, a.v, 1);
}

template <class LARGE, class SMALL> static int32_t forward(tl_context *ctx, Args &a)
{
    return few_blocks<LARGE, SMALL>(ctx, a, 1) ? forward<SMALL>(ctx, a) : forward<LARGE>(ctx, a);
}

int32_t join_parts(tl_context *ctx, const Args &a, int64_t parts)
{
    if (a.members * a.rows == 0) return TORCHLEAN_OK;
    return tl_launch(ctx, GROUPED, join_kernel, (unsigned)(a.members * a.rows), 128, a, (int)parts);
}

template <class C> static int32_t query_pass(tl_context *ctx, Args &a)
{
    return query_parts(ctx, a, [&](int64_t width, int64_t parts) {
        if constexpr (C::DP <= NARROW && C::ROWS == NarrowQueries<C::DP>::ROWS) {
            using N = NarrowQueries<C::DP>; /* half as many threads, so of more blocks than run at once */
            if (a.mode == UNMASKED && a.members * tl_ceil_div(a.rows, C::ROWS) * parts > C::BLOCKS * tl_cuda_sms(ctx))
                return launch<N>(ctx, narrow_query_kernel<N>, a, narrow_query_shared<N>(), a.rows, width, parts);
        }
        return launch<C>(ctx, query_kernel<C>, a, query_shared<C>(), a.rows, width, parts);
    });
}

/* Of few queries, as when a model writes one token after the other, SMALL: where LARGE would be empty by three quarters, or
 * one small tile holds all. COLS and TX decide the order of sums of this pass, ROWS does not. */
template <class LARGE, class SMALL> static int32_t query_pass(tl_context *ctx, Args &a)
{
    static_assert(LARGE::COLS == SMALL::COLS && LARGE::TX == SMALL::TX, "the order of sums");
    constexpr int FEW = LARGE::ROWS / 4 > SMALL::ROWS ? LARGE::ROWS / 4 : SMALL::ROWS;
    return a.rows <= FEW ? query_pass<SMALL>(ctx, a) : query_pass<LARGE>(ctx, a);
}

template <class C> static int32_t key_pass(tl_context *ctx, Args &a)
{
    /* A block makes all chunks where weights of all rows lie in one tile and the keys alone fill the device. */
    const bool all = a.rows <= C::COLS && a.members * tl_ceil_div(a.keys, C::ROWS) >= C::BLOCKS * tl_cuda_sms(ctx);
    const int64_t width = all ? 0 : a.d > a.v ? a.d : a.v;
    if constexpr (C::DP <= NARROW && C::COLS == STORED_TILE) {
        using N = NarrowKeys<C::DP>;
        static_assert(N::ROWS == C::ROWS, "keys of a block");
        if (a.mode == UNMASKED)
            return key_parts<C>(ctx, a, 2, [&](int64_t parts) {
                return launch_keys<N>(ctx, narrow_key_kernel<N>, a, narrow_key_shared<N>(), width, parts);
            });
    }
    return key_parts<C>(
        ctx, a, 1, [&](int64_t parts) { return launch_keys<C>(ctx, key_kernel<C>, a, key_shared<C>(), width, parts); });
}

/* Of few queries SMALL, of fewer COLS: the sums of this pass are chains in the order of the queries, whatever the tile. */
template <class LARGE, class SMALL> static int32_t key_pass(tl_context *ctx, Args &a)
{
    return a.rows <= LARGE::COLS / 2 ? key_pass<SMALL>(ctx, a) : key_pass<LARGE>(ctx, a);
}

static Args make_args(const Geometry &of, const float *Q, const float *K, const float *V)
{
    Args a = {};
    static_cast<Geometry &>(a) = of;
    a.Q = Q, a.K = K, a.V = V;
    a.wide_d = a.d % 4 == 0 && tl_aligned4(Q) && tl_aligned4(K);
    a.wide_v = a.v % 4 == 0 && tl_aligned4(V);
    return a;
}

} /* namespace grouped */
} /* namespace attention */

extern "C" int32_t tl_cuda_grouped_attention(tl_context *ctx, const float *Q, const float *K, const float *V,
                                             const float *mask, int64_t batch, int64_t heads, int64_t queries,
                                             int64_t d, int64_t kv_heads, int64_t keys, int64_t width,
                                             int64_t mask_mode, int64_t mask_batch, int64_t mask_heads,
                                             int64_t mask_queries, int64_t before, int64_t after, int64_t offset,
                                             float scale, float *out)
{
    using namespace attention;
    using namespace attention::grouped;
    const Geometry of = grouped_geometry(batch, heads, queries, d, kv_heads, keys, width, mask_mode, mask_batch,
                                         mask_heads, mask_queries, before, after, offset, scale, mask);
    if (is_square(ctx, of)) {
        const int32_t status = square_forward(ctx, of, Q, K, V, out);
        if (status != TORCHLEAN_NO_MEMORY) return status;
    }
    if (of.rows > of.keys && few_keys_serve(ctx, of)) return few_keys_forward(ctx, of, Q, K, V, out);
    if (products_serve<false>(ctx, of)) {
        const int32_t status = products_forward(ctx, of, Q, K, V, out);
        if (status != TORCHLEAN_NO_MEMORY) return status;
    }
    if (few_rows_serve(ctx, of)) return few_rows_forward(ctx, of, Q, K, V, out);
    if (chain_serves(ctx, of)) return chain_forward(ctx, of, Q, K, V, out);
    Args a = make_args(of, Q, K, V);
    a.result = out;
    if (a.members * a.rows == 0 || width == 0) return TORCHLEAN_OK;
    tl_scratch<uint8_t> finite(ctx);
    if (a.limited) {
        TL_TRY(finite.allocate(a.members * tl_ceil_div(keys, GRANULE)));
        TL_TRY(scan(ctx, a, V, keys, width, finite));
        a.finite_v = finite;
    }
    const int64_t most = d > width ? d : width;
    return most <= 8     ? forward<Tiles<8, 128, 64, 16, 8, 2>, Tiles<8, 32, 64, 32, 8, 2>>(ctx, a)
           : most <= 16  ? forward<Tiles<16, 128, 64, 16, 8, 2>, Tiles<16, 32, 64, 32, 8, 2>>(ctx, a)
           : most <= 32  ? forward<Tiles<32, 128, 64, 16, 8, 2>, Tiles<32, 32, 64, 32, 8, 2>>(ctx, a)
           : most <= 64  ? forward<Tiles<64, 128, 64, 16, 8, 2>, Tiles<64, 32, 64, 32, 8, 2>>(ctx, a)
           : most <= 128 ? forward<Tiles<128, 128, 64, 16, 16, 1>, Tiles<128, 32, 64, 16, 16, 2>>(ctx, a)
                         : stream_forward(ctx, a);
}

extern "C" int32_t tl_cuda_grouped_attention_bwd(tl_context *ctx, const float *Q, const float *K, const float *V,
                                                 const float *mask, const float *out, const float *g, int64_t batch,
                                                 int64_t heads, int64_t queries, int64_t d, int64_t kv_heads,
                                                 int64_t keys, int64_t width, int64_t mask_mode, int64_t mask_batch,
                                                 int64_t mask_heads, int64_t mask_queries, int64_t before,
                                                 int64_t after, int64_t offset, float scale, float *gQ, float *gK,
                                                 float *gV)
{
    using namespace attention;
    using namespace attention::grouped;
    const Geometry of = grouped_geometry(batch, heads, queries, d, kv_heads, keys, width, mask_mode, mask_batch,
                                         mask_heads, mask_queries, before, after, offset, scale, mask);
    if (is_square(ctx, of)) {
        const int32_t status = square_backward(ctx, of, Q, K, V, out, g, gQ, gK, gV);
        if (status != TORCHLEAN_NO_MEMORY) return status;
    }
    if (few_keys_serve(ctx, of)) return few_keys_backward(ctx, of, Q, K, V, out, g, gQ, gK, gV);
    if (products_serve<true>(ctx, of)) {
        const int32_t status = products_backward(ctx, of, Q, K, V, out, g, gQ, gK, gV);
        if (status != TORCHLEAN_NO_MEMORY) return status;
    }
    if (chain_serves(ctx, of)) return chain_backward(ctx, of, Q, K, V, out, g, gQ, gK, gV);
    Args a = make_args(of, Q, K, V);
    a.out = out, a.g = g, a.gQ = gQ, a.gK = gK, a.gV = gV;
    a.wide_v = a.wide_v && tl_aligned4(g) && tl_aligned4(out);
    const int64_t all = a.members * a.rows, most = d > width ? d : width;
    const int64_t of_keys = a.members * tl_ceil_div(keys, GRANULE), of_rows = a.members * tl_ceil_div(a.rows, GRANULE);
    tl_scratch<char> scratch(ctx);
    TL_TRY(scratch.allocate((int64_t)sizeof(float) * 3 * all + of_keys + 2 * of_rows));
    a.base = reinterpret_cast<float *>((char *)scratch);
    a.inverse = a.base + all;
    a.dot = a.inverse + all;
    if (a.limited) {
        uint8_t *const finite = reinterpret_cast<uint8_t *>(a.dot + all);
        TL_TRY(scan(ctx, a, K, keys, d, finite));
        TL_TRY(scan(ctx, a, Q, a.rows, d, finite + of_keys));
        TL_TRY(scan(ctx, a, g, a.rows, width, finite + of_keys + of_rows));
        a.finite_k = finite, a.finite_q = finite + of_keys, a.finite_g = finite + of_keys + of_rows;
    }
    if (most == 0) return TORCHLEAN_OK;
    if (d > 0 || gK || gV)
        TL_TRY((most <= 8     ? query_pass<Tiles<8, 128, 32, 16, 8, 2>, Tiles<8, 16, 32, 16, 8, 6>>(ctx, a)
                : most <= 16  ? query_pass<Tiles<16, 128, 32, 16, 8, 2>, Tiles<16, 16, 32, 16, 8, 5>>(ctx, a)
                : most <= 32  ? query_pass<Tiles<32, 128, 32, 16, 8, 2>, Tiles<64, 16, 32, 16, 8, 5>>(ctx, a)
                : most <= 64  ? query_pass<Tiles<64, 128, 32, 16, 8, 2>, Tiles<64, 16, 32, 16, 8, 5>>(ctx, a)
                : most <= 128 ? query_pass<Tiles<128, 64, 64, 16, 16, 1>, Tiles<128, 16, 64, 16, 16, 2>>(ctx, a)
                : a.rows > 16 ? stream_query_pass(ctx, a)
                : most <= 256 ? query_pass<Tiles<256, 16, 32, 16, 16, 2>>(ctx, a)
                              : query_pass<Tiles<128, 16, 64, 16, 16, 2, true>>(ctx, a)));
    if (!gK && !gV) return TORCHLEAN_OK;
    return most <= 8     ? key_pass<Tiles<8, 64, 64, 16, 8, 2>, Tiles<8, 64, 16, 16, 8, 5>>(ctx, a)
           : most <= 16  ? key_pass<Tiles<16, 64, 64, 16, 8, 2>, Tiles<16, 64, 16, 16, 8, 4>>(ctx, a)
           : most <= 32  ? key_pass<Tiles<32, 64, 64, 16, 8, 2>, Tiles<64, 64, 16, 16, 8, 3>>(ctx, a)
           : most <= 64  ? key_pass<Tiles<64, 64, 64, 16, 8, 2>, Tiles<64, 64, 16, 16, 8, 3>>(ctx, a)
           : most <= 128 ? key_pass<Tiles<128, 64, 64, 16, 16, 1>, Tiles<128, 32, 16, 16, 16, 2>>(ctx, a)
           : a.rows > 64 ? stream_key_pass(ctx, a)
           : most <= 256 ? key_pass<Tiles<256, 32, 64, 16, 16, 1>, Tiles<256, 32, 16, 8, 16, 2>>(ctx, a)
                         : key_pass<Tiles<128, 64, 64, 16, 16, 1, true>, Tiles<128, 32, 16, 16, 16, 2, true>>(ctx, a);
}
