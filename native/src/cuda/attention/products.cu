/* Attention on CUDA as matrix products with scores in memory between them: S = Q·Kᵀ, a kernel that makes weights P of scores in
 * their place, out = P·V; backward S and dP = g·Vᵀ, a kernel that makes P and dS of them, gQ = dS·K, gK = dSᵀ·Q, gV = Pᵀ·g.
 *
 * A pair of a row and a key then goes through memory, 16 bytes of traffic forward and 40 backward, but every product is the
 * library's own, on its fastest tensor cores and with tiles for its own sizes; and a score is made once, where the two passes
 * of a gradient in registers make it twice. So it pays where rows are long. Scores are at most 256 MiB at a time: members go in
 * groups, or parts of one member's rows one after the other, whose gradients of keys and values are then added in order.
 *
 * Of the kernel between the products TEAM threads own a row, each its elements thread, thread + TEAM, ... in registers. Sums of
 * weights and of D = g·out have LANES partial sums, of the elements lane, lane + LANES, ..., and end in trees of lanes; a thread
 * has every TEAM-th lane. So a warp can have a row that a block has where rows are longer, and need not wait for others. All is
 * summed in an order that the shape alone decides. */
#include "cuda/attention/products.cuh"
#include "cuda/attention/few_rows.cuh"
#include "cuda/attention/partial.cuh"
#include "cuda/device/sum_tree.cuh"
#include "generated/linalg.h"

#include <type_traits>

namespace attention {
namespace products {

constexpr const char *NAME = "attention_products";
constexpr int THREADS = 256;

struct Args : Geometry {
    const float *out, *g;
    float *scores;              /* of the group's members: S, then P */
    float *products;            /* dP, then dS; NULL where neither gQ nor gK is asked for */
    int64_t first, from, count; /* the group's first member, and the rows from .. from + count - 1 of each */
    uint32_t blocks;            /* of a member */
};

/* The fold of the lanes of TEAM neighbouring threads, in all of them; `between`: a float for each warp, that no fold before used. */
template <class Op, int TEAM, int PARTS> __device__ __forceinline__ float fold(float (&x)[PARTS], float *between)
{
    static_assert(PARTS == 1 || TEAM == 32, "lanes of a warp, or of a block");
    TL_UNROLL_FOR (int k = 0; k < PARTS; k++)
        x[k] = tl_fold_group<Op, 32>(x[k]);
    if constexpr (TEAM == 32) return tl_fold_array<Op, PARTS>(x);
    if (threadIdx.x % 32 == 0) between[threadIdx.x / 32] = x[0];
    __syncthreads();
    return tl_fold_group<Op, TEAM / 32>(between[threadIdx.x % (TEAM / 32)]);
}

/* Up to EACH keys to a thread. */
template <int LANES, int TEAM, int EACH, bool BACKWARD>
__global__ void __launch_bounds__(THREADS, EACH > 16 && TEAM > 32 ? 1 : 2)
    weights_kernel(const __grid_constant__ Args a)
{
    constexpr int ROWS = THREADS / TEAM, PARTS = LANES / TEAM;
    /* Of dP so many elements are in registers at once: all, where they leave room for warps enough, else read when needed. */
    constexpr int TOGETHER = EACH > 16 ? 8 : EACH;
    using Bits = std::conditional_t<(EACH > 32), uint64_t, uint32_t>;
    static_assert(TEAM == 32 || TEAM == THREADS, "whole warps or blocks");
    __shared__ __align__(16) float memory[Rows::FLOATS * ROWS];
    __shared__ float between[3][THREADS / 32];
    Rows limits(memory, ROWS);
    const int64_t member = blockIdx.x / a.blocks, b = a.first + member, i0 = blockIdx.x % a.blocks * ROWS;
    const int r = (int)threadIdx.x / TEAM, lane = (int)threadIdx.x % TEAM, keys = (int)a.keys;
    const int64_t row = i0 + r, of_all = b * a.rows + a.from + row;
    limits.find(a, b, a.from + i0, ROWS);
    __syncthreads();
    if (row >= a.count) return; /* a whole warp, of blocks of several rows */

    const int64_t at = (member * a.count + row) * a.keys;
    float *const s = a.scores + at, *const t = BACKWARD && a.products ? a.products + at : nullptr;
    float x[EACH], y[TOGETHER], top[1] = {-TL_INF}, sum[PARTS] = {}, dots[PARTS] = {}, dot = 0.0f;
    TL_UNROLL_FOR (int e = 0; e < EACH; e++) {
        const int j = lane + TEAM * e;
        x[e] = j < keys ? s[j] : 0.0f;
        if constexpr (BACKWARD && TOGETHER == EACH) y[e] = t && j < keys ? t[j] : 0.0f;
    }
    if (t) {
        const float *const g = a.g + of_all * a.v, *const out = a.out + of_all * a.v;
        TL_UNROLL_FOR (int k = 0; k < PARTS; k++)
#pragma unroll 4
            for (int c = lane + TEAM * k; c < (int)a.v; c += LANES)
                dots[k] = fmaf(g[c], out[c], dots[k]);
        dot = fold<tl_sum_op, TEAM>(dots, between[0]);
    }
    Bits open = ~(Bits)0;
    if (limits.opens(a, r, 0, keys)) {
        TL_UNROLL_FOR (int e = 0; e < EACH; e++) {
            if (TEAM * e >= keys) break;
            x[e] = lane + TEAM * e < keys ? tl_attention_score(x[e], a.scale) : -TL_INF;
            top[0] = fmaxf(top[0], x[e]);
        }
    } else {
        open = 0;
        TL_UNROLL_FOR (int e = 0; e < EACH; e++) {
            if (TEAM * e >= keys) break;
            const int j = lane + TEAM * e;
            bool shut = true;
            x[e] = j < keys ? limits.score(a, r, j, x[e], &shut) : -TL_INF;
            open |= (Bits)!shut << e;
            top[0] = fmaxf(top[0], x[e]);
        }
    }
    const float most = fold<tl_number_max_op, TEAM>(top, between[1]), base = most == -TL_INF ? 0.0f : most;
    TL_UNROLL_FOR (int e = 0; e < EACH; e++) {
        if (TEAM * e >= keys) break;
        x[e] = tl_attention_weight(x[e] - base); /* 0 of keys that do not exist */
        sum[e % PARTS] += x[e];
    }
    const float inverse = 1.0f / softmax_total(most, fold<tl_sum_op, TEAM>(sum, between[2]));
    TL_UNROLL_FOR (int first = 0; first < EACH; first += TOGETHER) {
        if (TEAM * first >= keys) break;
        if constexpr (BACKWARD && TOGETHER < EACH) {
            TL_UNROLL_FOR (int e = 0; e < TOGETHER; e++) {
                const int j = lane + TEAM * (first + e);
                y[e] = t && j < keys ? t[j] : 0.0f;
            }
        }
        TL_UNROLL_FOR (int e = 0; e < TOGETHER; e++) {
            const int j = lane + TEAM * (first + e);
            if (TEAM * (first + e) >= keys) break;
            const float weight = x[first + e] * inverse;
            if (j < keys) s[j] = weight;
            if constexpr (BACKWARD)
                if (t && j < keys) t[j] = open >> (first + e) & 1 ? weight * (y[e] - dot) * a.scale : 0.0f;
        }
    }
}

template <int LANES, int TEAM, int EACH, bool BACKWARD> static int32_t launch(tl_context *ctx, Args &a, int64_t members)
{
    a.blocks = (uint32_t)tl_ceil_div(a.count, THREADS / TEAM);
    return tl_launch(ctx, NAME, weights_kernel<LANES, TEAM, EACH, BACKWARD>, (unsigned)(members * a.blocks), THREADS,
                     a);
}

template <bool BACKWARD> static int32_t make_weights(tl_context *ctx, Args &a, int64_t members)
{
    return a.keys <= 32 * 4         ? launch<32, 32, 4, BACKWARD>(ctx, a, members)
           : a.keys <= 32 * 16      ? launch<32, 32, 16, BACKWARD>(ctx, a, members)
           : a.keys <= 32 * 32      ? launch<THREADS, 32, 32, BACKWARD>(ctx, a, members)
           : a.keys <= THREADS * 8  ? launch<THREADS, THREADS, 8, BACKWARD>(ctx, a, members)
           : a.keys <= THREADS * 16 ? launch<THREADS, THREADS, 16, BACKWARD>(ctx, a, members)
           : a.keys <= THREADS * 32 ? launch<THREADS, THREADS, 32, BACKWARD>(ctx, a, members)
                                    : launch<THREADS, THREADS, 64, BACKWARD>(ctx, a, members);
}

/* The sum of x, x + 1, ... x + n - 1, each cut to 0 .. most. */
static double sum_of_cut(int64_t x, int64_t n, int64_t most)
{
    int64_t from = x < 0 ? -x : 0, to = most - x; /* between them nothing is cut */
    from = from < n ? from : n;
    to = to > from ? to : from;
    to = to < n ? to : n;
    return (double)(to - from) * ((double)(x + from) + (double)(x + to - 1)) / 2.0 + (double)(n - to) * (double)most;
}

/* Pairs of a row and a key that the window leaves open: of each query the keys up to its last one without those before its first. */
static double open_pairs(const Geometry &of)
{
    const double heads = (double)of.members * (double)of.group;
    return heads * (sum_of_cut(of.offset + of.after + 1, of.queries, of.keys) -
                    sum_of_cut(of.offset - of.before, of.queries, of.keys));
}

/* Members of a group, and parts of the rows of a member, of which several make a group of one: so that all are about as large. */
struct Groups {
    static constexpr int64_t PAIRS_MOST = (int64_t)1 << 26; /* 256 MiB of scores */
    int64_t members, parts, rows;

    explicit Groups(const Geometry &of)
        : members(1), parts(tl_ceil_div(of.rows, PAIRS_MOST / of.keys)), rows(tl_ceil_div(of.rows, parts))
    {
        if (parts == 1) members = tl_ceil_div(of.members, tl_ceil_div(of.members, PAIRS_MOST / (of.rows * of.keys)));
    }
    int64_t count(const Geometry &of) const { return tl_ceil_div(of.members, members) * parts; }
    int64_t pairs(const Geometry &of) const { return members * rows * of.keys; }
};

/* each(members) for the members a.first .. and the rows a.from .., a.count of them, of every group. */
template <class Each> static int32_t for_groups(Args &a, const Groups &groups, Each each)
{
    for (a.first = 0; a.first < a.members; a.first += groups.members)
        for (a.from = 0; a.from < a.rows; a.from += groups.rows) {
            a.count = a.rows - a.from < groups.rows ? a.rows - a.from : groups.rows;
            TL_TRY(each(a.members - a.first < groups.members ? a.members - a.first : groups.members));
        }
    return TORCHLEAN_OK;
}

static double up(int64_t n, int64_t to) { return (double)(tl_ceil_div(n, to) * to); }

/* Terms that the kernels of attention/grouped.cu multiply for a pair of rows beyond 128 elements: of scores d and v, of results
 * whole chunks of DP, of which each makes the scores again. */
template <bool BACKWARD> static double terms_of_wide(const Geometry &of)
{
    const int64_t DP = of.d <= 256 && of.v <= 256 ? 256 : 128, d = tl_ceil_div(of.d, DP), v = tl_ceil_div(of.v, DP);
    if (!BACKWARD) return (double)(v * (of.d + DP));
    return (double)(d * (of.d + of.v + DP) + (d > v ? d : v) * of.d + d * of.v + (d + v) * DP);
}

/* Rows of a member from which on tiles of products are full; with fewer, products are bound by reading and writing what belongs to
 * keys, and kernels in registers have tiles of 16 rows. */
constexpr int64_t FULL_ROWS = 33;

/* Seconds of the kernels that keep scores in registers, which do what a window leaves open: of float32 beyond 128 elements to a
 * row, else of chains. Forward blocks of 64 rows may be few, those of attention/few_rows.cu are not; backward those of
 * attention/backward.cu may be, others cut their sums. */
template <bool BACKWARD> static double seconds_in_registers(tl_context *ctx, const Geometry &of, bool square)
{
    const double d = (double)of.d, v = (double)of.v, pairs = open_pairs(of);
    if (!BACKWARD && few_rows_serve(ctx, of)) return pairs * 2.0 * (d + v) / 1e13;
    if (of.d <= 128 && of.v <= 128) return pairs * 2.0 * (BACKWARD ? (4 * d + 3 * v) / 1.6e13 : (d + v) / 3.1e13);
    const int64_t of_member = !BACKWARD     ? tl_ceil_div(of.rows, 64)
                              : of.d <= 256 ? tl_ceil_div(of.rows, 32)
                                            : tl_ceil_div(of.rows, 64) * tl_ceil_div(of.d, 128);
    const double blocks = (double)(of.members * of_member), sms = (double)tl_cuda_sms(ctx);
    const double whole = pairs * up(of.keys, BACKWARD ? 32 : 64) / (double)of.keys *
                         (of.rows < FULL_ROWS ? up(of.rows, 16) / (double)of.rows : 1.0);
    return whole * 2.0 * terms_of_wide<BACKWARD>(of) / (BACKWARD ? 1e13 : 1.7e13) *
           ((!BACKWARD || square) && blocks < sms ? sms / blocks : 1.0);
}

/* Seconds of the way over memory: of products, whose tiles are multiples of 32 and which copy rows that are no whole 16 bytes
 * element by element, and of scores. Few rows leave keys, values and their gradients, of which the products' kernels move half as
 * many bytes in a second as a copy does, single elements included. */
template <bool BACKWARD> static double seconds_over_memory(const Geometry &of)
{
    const bool aligned = of.keys % 4 == 0 && of.d % 4 == 0 && of.v % 4 == 0;
    const double d = up(of.d, 32), v = up(of.v, 32), terms = BACKWARD ? 3 * d + 2 * v : d + v;
    if (BACKWARD && of.rows < FULL_ROWS)
        return (double)(of.members * of.keys) * (4.0 * (double)(3 * of.d + 2 * of.v) + 40.0 * (double)of.rows) / 2e12;
    return (double)of.members * up(of.rows, 32) * up(of.keys, 32) *
           (2.0 * terms / (aligned ? 6e13 : 3.5e13) + (BACKWARD ? 40.0 : 16.0) / 3.5e12);
}

} /* namespace products */

/* By rates that drawn shapes had on an H200, and what a launch behind others takes. The way over memory must be clearly shorter. Few
 * rows only backward and beyond 128 elements: others have kernels of their own for them. */
template <bool BACKWARD> bool products_serve(tl_context *ctx, const Geometry &of, bool square)
{
    using namespace products;
    constexpr double LAUNCH = 4e-6, CLEARLY = 1.25;
    constexpr int64_t KEYS_MOST = 64 * THREADS; /* of a row, which a block's registers hold */
    const bool few_rows_may = BACKWARD && (of.d > 128 || of.v > 128);
    if (tl_is_reproducible(ctx) || of.members == 0 || of.rows < (few_rows_may ? 1 : FULL_ROWS) || of.keys < FULL_ROWS ||
        of.keys > KEYS_MOST || of.d == 0 || of.v == 0)
        return false;
    const double launches = (BACKWARD ? 7.0 : 3.0) * (double)Groups(of).count(of);
    return CLEARLY * (seconds_over_memory<BACKWARD>(of) + LAUNCH * launches) <
           seconds_in_registers<BACKWARD>(ctx, of, square) + LAUNCH * (BACKWARD ? 5.0 : 1.0);
}
template bool products_serve<false>(tl_context *ctx, const Geometry &of, bool square);
template bool products_serve<true>(tl_context *ctx, const Geometry &of, bool square);

int32_t products_forward(tl_context *ctx, const Geometry &of, const float *Q, const float *K, const float *V,
                         float *out)
{
    using namespace products;
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
    using namespace products;
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
