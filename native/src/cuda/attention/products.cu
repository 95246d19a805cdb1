/* Attention on CUDA as matrix products with scores in memory between them: S = Q·Kᵀ, a kernel that makes weights P of scores in
 * their place, out = P·V; backward S and dP = g·Vᵀ, a kernel that makes P and dS of them, gQ = dS·K, gK = dSᵀ·Q, gV = Pᵀ·g.
 *
 * A pair of a row and a key then goes through memory, 16 bytes of traffic forward and 40 backward, but every product is the
 * library's own, on its fastest tensor cores and with tiles for its own sizes; and a score is made once, where the two passes
 * of a gradient in registers make it twice. Scores are at most 256 MiB at a time: members go in groups, or parts of one member's
 * rows one after the other, whose gradients of keys and values are then added in order.
 *
 * In the kernel between the products a warp owns a row of up to 1024 scores, in registers, and a block a longer one, which it reads
 * twice. Each lane has every 32nd element, or every 256th, in order, and sums end in trees of lanes. */
#include "cuda/attention/engines.cuh"
#include "cuda/attention/partial.cuh"
#include "cuda/attention/select.h"
#include "generated/linalg.h"

namespace attention {
namespace {

constexpr const char *NAME = "attention_products";
constexpr int THREADS = 256, WARPS = THREADS / 32, MAX_WARP_KEYS = 1024;

struct Args : Geometry {
    const float *out, *g;
    float *scores;              /* of the group's members: S, then P */
    float *products;            /* dP, then dS; NULL where neither gQ nor gK is asked for */
    int64_t first, from, count; /* the group's first member, and the rows from .. from + count - 1 of each */
    uint32_t blocks;            /* of a member */
};

/* A row of the kernels below. */
struct Row {
    const float *g, *out;
    float *scores, *products;
    int r;    /* of the block */
    int keys; /* of these the thread has thread, thread + TEAM, ... */

    __device__ __forceinline__ Row(const Args &a, int64_t row, int r_) : r(r_), keys((int)a.keys)
    {
        const int64_t member = blockIdx.x / a.blocks, at = (member * a.count + row) * a.keys;
        const int64_t of_all = (a.first + member) * a.rows + a.from + row;
        g = a.g + of_all * a.v, out = a.out + of_all * a.v;
        scores = a.scores + at, products = a.products ? a.products + at : nullptr;
    }
    /* The thread's share of D, of TEAM threads. */
    template <int TEAM> __device__ __forceinline__ float dot(const Args &a) const
    {
        float sum = 0.0f;
#pragma unroll 4
        for (int c = (int)threadIdx.x % TEAM; c < (int)a.v; c += TEAM)
            sum = fmaf(g[c], out[c], sum);
        return sum;
    }
    /* Leaves the weight of key j and, with BACKWARD, its slope. */
    template <bool BACKWARD>
    __device__ __forceinline__ void keep(const Args &a, int j, float weight, float product, float D, bool shut) const
    {
        scores[j] = weight;
        if (BACKWARD && products) products[j] = shut ? 0.0f : weight * (product - D) * a.scale;
    }
};

/* Up to 32·EACH keys to a row. */
template <int EACH, bool BACKWARD>
__global__ void __launch_bounds__(THREADS, 2) weights_kernel(const __grid_constant__ Args a)
{
    /* Elements of dP in registers at once: all, where they leave room for warps enough, else read when needed. */
    constexpr int TOGETHER = EACH > 16 ? 8 : EACH;
    __shared__ __align__(16) float memory[Rows::FLOATS * WARPS];
    Rows limits(memory, WARPS);
    const int64_t b = a.first + blockIdx.x / a.blocks, i0 = blockIdx.x % a.blocks * WARPS;
    const int lane = (int)threadIdx.x % 32;
    limits.find(a, b, a.from + i0, WARPS);
    __syncthreads();
    const Row row(a, i0 + threadIdx.x / 32, (int)threadIdx.x / 32);
    if (i0 + row.r >= a.count) return;

    const bool slopes = BACKWARD && row.products;
    float x[EACH], y[TOGETHER], most = -TL_INF, sum = 0.0f;
    TL_UNROLL_FOR (int e = 0; e < EACH; e++) {
        const int j = lane + 32 * e;
        x[e] = j < row.keys ? row.scores[j] : 0.0f;
        if constexpr (BACKWARD && TOGETHER == EACH) y[e] = slopes && j < row.keys ? row.products[j] : 0.0f;
    }
    const float D = slopes ? tl_fold_group<tl_sum_op, 32>(row.template dot<32>(a)) : 0.0f;
    uint32_t shut = 0;
    if (limits.opens(a, row.r, 0, row.keys)) {
        TL_UNROLL_FOR (int e = 0; e < EACH; e++) {
            if (32 * e >= row.keys) break;
            x[e] = lane + 32 * e < row.keys ? tl_attention_score(x[e], a.scale) : -TL_INF;
            most = fmaxf(most, x[e]);
        }
    } else {
        TL_UNROLL_FOR (int e = 0; e < EACH; e++) {
            if (32 * e >= row.keys) break;
            const int j = lane + 32 * e;
            bool blocked = true;
            x[e] = j < row.keys ? limits.score(a, row.r, j, x[e], &blocked) : -TL_INF;
            shut |= (uint32_t)blocked << e;
            most = fmaxf(most, x[e]);
        }
    }
    most = tl_fold_group<tl_number_max_op, 32>(most);
    const float base = most == -TL_INF ? 0.0f : most;
    TL_UNROLL_FOR (int e = 0; e < EACH; e++) {
        if (32 * e >= row.keys) break;
        x[e] = tl_attention_weight(x[e] - base); /* 0 of keys that do not exist */
        sum += x[e];
    }
    const float inverse = 1.0f / softmax_total(most, tl_fold_group<tl_sum_op, 32>(sum));
    TL_UNROLL_FOR (int first = 0; first < EACH; first += TOGETHER) {
        if (32 * first >= row.keys) break;
        if constexpr (BACKWARD && TOGETHER < EACH) {
            TL_UNROLL_FOR (int e = 0; e < TOGETHER; e++) {
                const int j = lane + 32 * (first + e);
                y[e] = slopes && j < row.keys ? row.products[j] : 0.0f;
            }
        }
        TL_UNROLL_FOR (int e = 0; e < TOGETHER; e++) {
            const int j = lane + 32 * (first + e);
            if (j < row.keys) row.keep<BACKWARD>(a, j, x[first + e] * inverse, y[e], D, shut >> (first + e) & 1);
        }
    }
}

/* The fold of a block's threads, in all of them; `between`: a float for each warp, that no fold before used. */
template <class Op> __device__ __forceinline__ float fold_block(float x, float *between)
{
    x = tl_fold_group<Op, 32>(x);
    if (threadIdx.x % 32 == 0) between[threadIdx.x / 32] = x;
    __syncthreads();
    return tl_fold_group<Op, WARPS>(between[threadIdx.x % WARPS]);
}

/* Any number of keys to a row. First the greatest score and the sum of weights, which each thread keeps up to date. */
template <bool BACKWARD> __global__ void __launch_bounds__(THREADS) long_weights_kernel(const __grid_constant__ Args a)
{
    __shared__ __align__(16) float memory[Rows::FLOATS];
    __shared__ float between[3][WARPS];
    Rows limits(memory, 1);
    const int64_t b = a.first + blockIdx.x / a.blocks, i = blockIdx.x % a.blocks;
    limits.find(a, b, a.from + i, 1);
    __syncthreads();
    const Row row(a, i, 0);
    const bool slopes = BACKWARD && row.products;
    const float D = slopes ? fold_block<tl_sum_op>(row.template dot<THREADS>(a), between[0]) : 0.0f;
    float own = -TL_INF, sum = 0.0f;
    bool blocked;
#pragma unroll 4
    for (int j = (int)threadIdx.x; j < row.keys; j += THREADS) {
        const float x = limits.score(a, 0, j, row.scores[j], &blocked), before = own;
        own = fmaxf(own, x);
        const float base = own == -TL_INF ? 0.0f : own;
        if (own > before) sum *= tl_attention_weight(before - base);
        sum += tl_attention_weight(x - base);
    }
    const float most = fold_block<tl_number_max_op>(own, between[1]), base = most == -TL_INF ? 0.0f : most;
    if (most > own) sum *= tl_attention_weight(own - base);
    const float inverse = 1.0f / softmax_total(most, fold_block<tl_sum_op>(sum, between[2]));
#pragma unroll 4
    for (int j = (int)threadIdx.x; j < row.keys; j += THREADS) {
        const float x = limits.score(a, 0, j, row.scores[j], &blocked);
        const float weight = tl_attention_weight(x - base) * inverse;
        row.keep<BACKWARD>(a, j, weight, slopes ? row.products[j] : 0.0f, D, blocked);
    }
}

template <bool BACKWARD> int32_t make_weights(tl_context *ctx, Args &a, int64_t members)
{
    a.blocks = (uint32_t)(a.keys <= MAX_WARP_KEYS ? tl_ceil_div(a.count, WARPS) : a.count);
    const auto kernel = a.keys <= 32 * 4          ? weights_kernel<4, BACKWARD>
                        : a.keys <= 32 * 16       ? weights_kernel<16, BACKWARD>
                        : a.keys <= MAX_WARP_KEYS ? weights_kernel<32, BACKWARD>
                                                  : long_weights_kernel<BACKWARD>;
    return tl_launch(ctx, NAME, kernel, (unsigned)(members * a.blocks), THREADS, a);
}

/* Members of a group, and parts of the rows of a member, of which several make a group of one: so that all are about as large. */
struct Groups {
    static constexpr int64_t MAX_PAIRS = TL_ATTENTION_PAIRS;
    int64_t members, parts, rows;

    explicit Groups(const Geometry &of)
        : members(1), parts(tl_ceil_div(of.rows, MAX_PAIRS / of.keys)), rows(tl_ceil_div(of.rows, parts))
    {
        if (parts == 1) members = tl_ceil_div(of.members, tl_ceil_div(of.members, MAX_PAIRS / (of.rows * of.keys)));
    }
    int64_t pairs(const Geometry &of) const { return members * rows * of.keys; }
};

/* each(members) for the members a.first .. and the rows a.from .., a.count of them, of every group. */
template <class Each> int32_t for_groups(Args &a, const Groups &groups, Each each)
{
    for (a.first = 0; a.first < a.members; a.first += groups.members)
        for (a.from = 0; a.from < a.rows; a.from += groups.rows) {
            a.count = a.rows - a.from < groups.rows ? a.rows - a.from : groups.rows;
            TL_TRY(each(a.members - a.first < groups.members ? a.members - a.first : groups.members));
        }
    return TORCHLEAN_OK;
}

} /* namespace */

int32_t products_forward(tl_context *ctx, const Geometry &of, const float *Q, const float *K, const float *V,
                         float *out)
{
    const int64_t keys = of.keys, d = of.d, v = of.v;
    const Groups groups(of);
    Args a = {};
    static_cast<Geometry &>(a) = of;
    tl_scratch<float> scores(ctx);
    TL_TRY(scores.allocate(groups.pairs(of)));
    a.scores = scores;
    return for_groups(a, groups, [&](int64_t members) {
        const int64_t b = a.first, row = b * a.rows + a.from;
        TL_TRY(
            tl_cuda_bmm_bwd(ctx, nullptr, K + b * keys * d, Q + row * d, members, a.count, keys, d, a.scores, nullptr));
        TL_TRY(make_weights<false>(ctx, a, members));
        return tl_cuda_bmm(ctx, a.scores, V + b * keys * v, members, a.count, keys, v, out + row * v);
    });
}

int32_t products_backward(tl_context *ctx, const Geometry &of, const float *Q, const float *K, const float *V,
                          const float *out, const float *g, float *gQ, float *gK, float *gV)
{
    const int64_t keys = of.keys, d = of.d, v = of.v;
    const Groups groups(of);
    Args a = {};
    static_cast<Geometry &>(a) = of;
    a.out = out, a.g = g;
    tl_scratch<float> scores(ctx), products(ctx);
    PartialGradient part_k(ctx, gK, of.members, groups.parts, keys * d),
        part_v(ctx, gV, of.members, groups.parts, keys * v);
    TL_TRY(scores.allocate(groups.pairs(of)));
    if (gQ || gK) TL_TRY(products.allocate(groups.pairs(of)));
    TL_TRY(part_k.open(&gK));
    TL_TRY(part_v.open(&gV));
    a.scores = scores, a.products = gQ || gK ? (float *)products : nullptr;
    TL_TRY(for_groups(a, groups, [&](int64_t members) {
        const int64_t b = a.first, row = b * a.rows + a.from, rows = a.count;
        const int64_t part = (b * groups.parts + a.from / groups.rows) * keys;
        const float *const q = Q + row * d, *const k = K + b * keys * d, *const of_g = g + row * v;
        TL_TRY(tl_cuda_bmm_bwd(ctx, nullptr, k, q, members, rows, keys, d, a.scores, nullptr));
        if (a.products)
            TL_TRY(tl_cuda_bmm_bwd(ctx, nullptr, V + b * keys * v, of_g, members, rows, keys, v, a.products, nullptr));
        TL_TRY(make_weights<true>(ctx, a, members));
        if (gV) TL_TRY(tl_cuda_bmm_bwd(ctx, a.scores, nullptr, of_g, members, rows, keys, v, nullptr, gV + part * v));
        if (gQ) TL_TRY(tl_cuda_bmm(ctx, a.products, k, members, rows, keys, d, gQ + row * d));
        if (!gK) return (int32_t)TORCHLEAN_OK;
        return tl_cuda_bmm_bwd(ctx, a.products, nullptr, q, members, rows, keys, d, nullptr, gK + part * d);
    }));
    TL_TRY(part_k.close());
    return part_v.close();
}

} /* namespace attention */
