/* Attention on tensor cores where rows are few, forward and backward: see attention/relay_tiles.cuh. */
#include "cuda/attention/backward_tiles.cuh"
#include "cuda/attention/relay_tiles.cuh"

#include <type_traits>

namespace attention {
namespace relay {

/* Of a block of queries: where it is, and the keys that it may attend to. */
template <class C> struct Queries {
    int64_t b, i0, rows, end, member;
    __device__ __forceinline__ explicit Queries(const Problem &p)
    {
        b = blockIdx.x / p.blocks;
        const int64_t rank = blockIdx.x % p.blocks;
        i0 = (p.mode == CAUSAL ? p.blocks - 1 - rank : rank) * C::ROWS;
        rows = p.n - i0;
        end = p.mode == CAUSAL && i0 + C::ROWS < p.n ? i0 + C::ROWS : p.n;
        member = b * p.n * p.d;
    }
};

/* ---- forward ----------------------------------------------------------------------------------------------------- */

struct ForwardArgs {
    Problem p;
    float *out;
    bool scanned; /* of each member is known whether tensor cores take it; else one of its blocks finds that out */
    ValueScanArgs scan;
};

/* Whether a team owns a group of the sums. */
template <class C> constexpr bool BY_GROUPS = C::GROUPS == C::SPLIT;

/* Floats that the teams leave of a turn for each other. */
template <class C> constexpr int LEFT_OF = BY_GROUPS<C> ? WEIGHTS_OF<C> : 2 * PARTS_OF<C>;

template <class C> constexpr size_t forward_shared()
{
    return sizeof(float) * (size_t)((C::ROWS + 2 * C::TILES) * C::LD + LEFT_OF<C> + 2 * C::ROWS * C::SPLIT) +
           sizeof(Turn<C>);
}

/* Whether a thread of the block with a member's last rows sees a value that tensor cores do not take: of the queries that other
 * blocks have, in memory, and of what it copied itself, which takes no barrier. */
template <class C>
__device__ __forceinline__ bool sees_unsafe(const Problem &p, const Queries<C> &of, const float *Qs, const float *Ks,
                                            const float *Vs)
{
    constexpr int AHEAD = 2048 / C::THREADS; /* 64 rows at once */
    tl_split_guard guard;
    see_all<C::THREADS, AHEAD>(guard, p.Q + of.member, of.i0 * p.d, (int)threadIdx.x);
    see_copied<C, C::ROWS>(guard, Qs, p);
    see_copied<C, C::TILES>(guard, Ks, p);
    see_copied<C, C::TILES>(guard, Vs, p);
    return is_unsafe(guard, true);
}

template <class C>
__global__ void __launch_bounds__(C::THREADS, 1) forward_kernel(const __grid_constant__ ForwardArgs a)
{
    TL_DYNAMIC_SHARED(float, shared);
    const Problem &p = a.p;
    const Queries<C> of(p);
    tl_wait_for_earlier();
    if (a.scanned && p.unsafe[of.b]) return;
    const float *Q = p.Q + of.member, *K = p.K + of.member, *V = p.V + of.member;
    float *Qs = shared, *Ks = Qs + C::ROWS * C::LD, *Vs = Ks + C::TILES * C::LD, *left = Vs + C::TILES * C::LD;
    Turn<C> &turn = *reinterpret_cast<Turn<C> *>(left + LEFT_OF<C>);
    uint32_t *const bits = reinterpret_cast<uint32_t *>(&turn + 1);
    const Lane lane = BY_GROUPS<C> ? spread_lane<C>() : Lane(C());
    const int d = (int)p.d;

    std::conditional_t<BY_GROUPS<C>, GroupOwner<C>, QueryOwner<C>> owner;
    TensorSoftmax<C> softmax;
    int64_t j0 = next_tile<C>(0, of.end, bits, p, of.b, of.i0, softmax, lane);
    copy_rows<C, C::ROWS>(Qs, Q, of.i0, p, 0);
    if (j0 < of.end) copy_rows<C, C::TILES>(Ks, K, j0, p, 0);
    tl_copy_commit();
    if (j0 < of.end) copy_rows<C, C::TILES>(Vs, V, j0, p, 0);
    tl_copy_commit();
    static_assert(C::TILES >= SCAN_ROWS, "a block that scans has all keys in its first turn");
    /* The block with the last rows, which are the fewest, finds out what the kernels of other members are to know. What the
     * others leave where it finds something is written again by those. Rows of up to 64 elements are scanned before. */
    const bool scans = BY_GROUPS<C> && !a.scanned && of.rows <= C::ROWS;
    bool safe = false;
    for (int stage = 0, side = 0; j0 < of.end; stage ^= 1) {
        tl_copy_wait<1>();
        __syncthreads(); /* K is there */
        const int64_t j1 =
            next_tile<C>(j0 + C::TILES, of.end, bits + (stage ^ 1) * C::ROWS * C::SPLIT, p, of.b, of.i0, softmax, lane);
        const uint32_t *const words = bits + (stage * C::SPLIT + lane.team) * C::ROWS;
        const int64_t j = j0 + lane.team * TILE;
        const int at = lane.team * TILE * C::LD;
        const Cover cover = query_cover<C>(words, p, of.i0, j, lane);
        const bool counts = j < of.end && lane.first < of.rows &&
                            (cover != NOTHING || (p.mode == FILL && softmax.fill_counts(of.rows, lane)));
        float s[1][4][4] = {};
        if (counts) {
            if (BY_GROUPS<C> && is_half(p.n - j))
                tile_product<C, false, 2>(s, Qs, Ks + at, d, lane);
            else
                tile_product<C, false>(s, Qs, Ks + at, d, lane);
            tensor_scores<C>(s, p, cover, words, of.i0, j, lane);
        }
        leave_most<C>(turn, s, counts, lane);
        tl_copy_wait<0>();
        if (!scans)
            __syncthreads(); /* V and the maxima are there, K has been used */
        else if (!(safe = !__syncthreads_or(sees_unsafe<C>(p, of, Qs, Ks, Vs))))
            break;
        if (j1 < of.end) copy_rows<C, C::TILES>(Ks, K, j1, p, 0);
        tl_copy_commit();
        weigh<C>(s, softmax, turn, counts, lane);
        if (threadIdx.x % 32 == 0) turn.counts[lane.team][lane.first / 16] = counts;
        if constexpr (BY_GROUPS<C>) {
            if (counts) leave_weights<C>(left, s, lane);
            __syncthreads(); /* the weights are there */
            if (32 * lane.team < d) owner.add(left, Vs, p.n - j0, turn, softmax, lane);
            if (j1 < of.end) __syncthreads(); /* V has been used */
        } else {
            const Weights<C> weights(s);
            each_part<C>(weights, Vs + at, d, counts, left, side, lane,
                         [&](int group, const float *from) { owner.add(group, from, turn); });
        }
        if (j1 < of.end) copy_rows<C, C::TILES>(Vs, V, j1, p, 0);
        tl_copy_commit();
        j0 = j1;
    }
    tl_copy_wait<0>();
    if (scans) { /* what found something, or has copied nothing, looks further */
        if (!safe && scan_member(a.scan, of.b, true)) return;
        if (safe && threadIdx.x == 0) a.scan.unsafe[of.b] = 0;
    }
    float *const out = a.out + of.member + of.i0 * p.d;
    if constexpr (BY_GROUPS<C>) {
        if (32 * lane.team < d)
            TL_UNROLL_FOR (int r = 0; r < 2; r++) {
                const float total = softmax.total(r);
                if (lane.row(r) >= of.rows) continue;
                TL_UNROLL_FOR (int e = 0; e < 2; e++) {
                    const auto sum = [&](int j) { return owner.sums[0][j][2 * r + e] / total; };
                    store_quad(out + lane.row(r) * p.d, 32 * lane.team + 4 * (2 * lane.t + e),
                               make_float4(sum(0), sum(1), sum(2), sum(3)), p);
                }
            }
    } else {
        const float total = owner.total();
        if (owner.row < of.rows)
            store<C>(out + owner.row * p.d, owner.sums, owner.quad, p, [=](float x) { return x / total; });
    }
}

/* ---- the pass over queries --------------------------------------------------------------------------------------- */

template <class C> constexpr size_t query_shared()
{
    return sizeof(float) * (size_t)(2 * (C::ROWS + C::TILES) * C::LD + 2 * PARTS_OF<C> + 2 * C::ROWS * C::SPLIT) +
           sizeof(Turn<C>);
}

template <class C> __global__ void __launch_bounds__(C::THREADS, 1) query_kernel(const BackwardArgs a)
{
    TL_DYNAMIC_SHARED(float, shared);
    const Problem &p = a.p;
    const Queries<C> of(p);
    if (p.unsafe[of.b]) return;
    const float *K = p.K + of.member, *V = p.V + of.member;
    float *Qs = shared, *Gs = Qs + C::ROWS * C::LD, *Ks = Gs + C::ROWS * C::LD, *Vs = Ks + C::TILES * C::LD;
    float *parts = Vs + C::TILES * C::LD;
    Turn<C> &turn = *reinterpret_cast<Turn<C> *>(parts + 2 * PARTS_OF<C>);
    uint32_t *const bits = reinterpret_cast<uint32_t *>(&turn + 1);
    const Lane lane((C()));
    const int d = (int)p.d;

    QueryOwner<C> owner;
    TensorSoftmax<C> softmax;
    int64_t j0 = next_tile<C>(0, of.end, bits, p, of.b, of.i0, softmax, lane);
    copy_rows<C, C::ROWS>(Gs, a.g + of.member, of.i0, p, 0);
    if (j0 < of.end) copy_rows<C, C::TILES>(Vs, V, j0, p, 0);
    tl_copy_commit();
    copy_rows<C, C::ROWS>(Qs, p.Q + of.member, of.i0, p, 0);
    if (j0 < of.end) copy_rows<C, C::TILES>(Ks, K, j0, p, 0);
    tl_copy_commit();
    float dot[C::R];
    dot_products<C>(dot, a.g + of.member, a.out + of.member, of.i0, p, lane);
    for (int stage = 0, side = 0; j0 < of.end; stage ^= 1) {
        tl_copy_wait<1>();
        __syncthreads(); /* V is there */
        const int64_t j1 =
            next_tile<C>(j0 + C::TILES, of.end, bits + (stage ^ 1) * C::ROWS * C::SPLIT, p, of.b, of.i0, softmax, lane);
        const uint32_t *const words = bits + (stage * C::SPLIT + lane.team) * C::ROWS;
        const int64_t j = j0 + lane.team * TILE;
        const int at = lane.team * TILE * C::LD;
        const Cover cover = query_cover<C>(words, p, of.i0, j, lane);
        const bool counts = j < of.end && (cover != NOTHING || (p.mode == FILL && softmax.fill_counts(of.rows, lane)));
        float s[1][4][4] = {}, t[1][4][4];
        if (counts) tile_product<C, false>(t, Gs, Vs + at, d, lane);
        tl_copy_wait<0>();
        __syncthreads(); /* K is there */
        if (counts) {
            tile_product<C, false>(s, Qs, Ks + at, d, lane);
            tensor_scores<C>(s, p, cover, words, of.i0, j, lane);
        }
        leave_most<C>(turn, s, counts, lane);
        __syncthreads(); /* the maxima are there, V has been used */
        if (j1 < of.end) copy_rows<C, C::TILES>(Vs, V, j1, p, 0);
        tl_copy_commit();
        weigh<C>(s, softmax, turn, counts, lane);
        if (threadIdx.x % 32 == 0) turn.counts[lane.team][lane.first / 16] = counts;
        if (counts) {
            TL_UNROLL_FOR (int n = 0; n < 4; n++)
                TL_UNROLL_FOR (int e = 0; e < 4; e++)
                    s[0][n][e] *= t[0][n][e] - dot[e / 2];
            if (p.mode == FILL && cover != ALL) clear_blocked<C>(s, words, lane);
        }
        const Weights<C> weights(s);
        each_part<C>(weights, Ks + at, d, counts, parts, side, lane,
                     [&](int group, const float *from) { owner.add(group, from, turn); });
        if (j1 < of.end) copy_rows<C, C::TILES>(Ks, K, j1, p, 0);
        tl_copy_commit();
        j0 = j1;
    }
    tl_copy_wait<0>();
    if (lane.team == 0 && lane.t == 0)
        TL_UNROLL_FOR (int r = 0; r < 2; r++)
            if (lane.row(r) < of.rows) a.dot[of.b * p.n + of.i0 + lane.row(r)] = dot[r];
    const float total = owner.total();
    if (owner.row >= of.rows) return;
    const int64_t row = of.i0 + owner.row, at = of.b * p.n + row;
    if (owner.quad == 0) {
        a.base[at] = owner.top == -TL_INF ? 0.0f : owner.top;
        a.inverse[at] = 1.0f / (total * (1.0f / WEIGHT_UNIT));
    }
    const float scale = p.scale;
    store<C>(a.gQ + of.member + row * p.d, owner.sums, owner.quad, p, [=](float x) { return x / total * scale; });
}

/* ---- the pass over keys ------------------------------------------------------------------------------------------ */

template <class C> constexpr size_t key_shared()
{
    return sizeof(float) * (size_t)(2 * (C::ROWS + C::TILES) * C::LD + 2 * PARTS_OF<C> + 3 * C::TILES +
                                    2 * C::ROWS * C::SPLIT + C::WARPS);
}

template <class C> __global__ void __launch_bounds__(C::THREADS, 1) key_kernel(const BackwardArgs a)
{
    TL_DYNAMIC_SHARED(float, shared);
    const Problem &p = a.p;
    const int64_t b = blockIdx.x / p.blocks, j0 = blockIdx.x % p.blocks * C::ROWS, member = b * p.n * p.d;
    if (p.unsafe[b]) return;
    const float *Q = p.Q + member, *g = a.g + member;
    float *Ks = shared, *Vs = Ks + C::ROWS * C::LD, *Qs = Vs + C::ROWS * C::LD, *Gs = Qs + C::TILES * C::LD;
    float *parts = Gs + C::TILES * C::LD, *statistics = parts + 2 * PARTS_OF<C>; /* base, inverse, dot of queries */
    uint32_t *const bits = reinterpret_cast<uint32_t *>(statistics + 3 * C::TILES);
    uint32_t *const counting = bits + 2 * C::ROWS * C::SPLIT; /* whether a warp has parts */
    const Lane lane((C()));
    const Owner<C> owner;
    const int d = (int)p.d;
    const bool stored = p.mode == FILL || p.mode == HARD;

    float4 gK[C::GROUPS], gV[C::GROUPS];
    TL_UNROLL_FOR (int group = 0; group < C::GROUPS; group++)
        gK[group] = gV[group] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    const auto add = [&](float4 &sum, const float *from) {
        TL_UNROLL_FOR (int team = 0; team < C::SPLIT; team++) {
            if (!counting[team * (C::ROWS / 16) + owner.row / 16]) continue;
            const float4 x = owner.part(from, team);
            sum = make_float4(sum.x + x.x, sum.y + x.y, sum.z + x.z, sum.w + x.w);
        }
    };
    const auto next = [&](int64_t i, uint32_t *words) {
        return stored ? next_queries<C>(i, words, a, b, j0, lane) : i;
    };
    const auto copy_g = [&](int64_t i) {
        copy_rows<C, C::TILES>(Gs, g, i, p, 0);
        for (int t = threadIdx.x; t < 3 * C::TILES; t += C::THREADS) {
            const float *const from = t < C::TILES ? a.base : t < 2 * C::TILES ? a.inverse : a.dot;
            const int64_t row = i + t % C::TILES;
            const bool present = row < p.n;
            tl_copy_async<4>(statistics + t, present ? from + b * p.n + row : from, present);
        }
    };

    int64_t i0 = next(p.mode == CAUSAL ? j0 : 0, bits);
    copy_rows<C, C::ROWS>(Vs, p.V + member, j0, p, 0);
    if (i0 < p.n) copy_g(i0);
    tl_copy_commit();
    copy_rows<C, C::ROWS>(Ks, p.K + member, j0, p, 0);
    if (i0 < p.n) copy_rows<C, C::TILES>(Qs, Q, i0, p, 0);
    tl_copy_commit();
    for (int stage = 0, side = 0; i0 < p.n; stage ^= 1) {
        tl_copy_wait<1>();
        __syncthreads(); /* g is there */
        const int64_t i1 = next(i0 + C::TILES, bits + (stage ^ 1) * C::ROWS * C::SPLIT);
        /* A warp whose keys come after all queries of the tile has nothing to do under a causal mask. */
        const int64_t i = i0 + lane.team * TILE;
        const int ahead = p.mode == CAUSAL ? (int)(j0 - i) + lane.first : 0, at = lane.team * TILE * C::LD;
        const bool counts = i < p.n && ahead < TILE;
        float s[1][4][4] = {}, t[1][4][4] = {};
        if (counts) tile_product<C, true>(t, Vs, Gs + at, d, lane);
        if (threadIdx.x % 32 == 0) counting[lane.team * (C::ROWS / 16) + lane.first / 16] = counts;
        tl_copy_wait<0>();
        __syncthreads(); /* Q is there */
        if (counts) {
            const uint32_t *const team_bits = bits + (stage * C::SPLIT + lane.team) * C::ROWS;
            tile_product<C, true>(s, Ks, Qs + at, d, lane);
            key_weights<C>(s, p, statistics + lane.team * TILE, team_bits, ahead, lane);
            key_slopes<C>(t, s, p, statistics + lane.team * TILE, team_bits, lane);
        }
        const Weights<C> weights(s);
        each_part<C>(weights, Gs + at, d, counts, parts, side, lane,
                     [&](int group, const float *from) { add(gV[group], from); });
        if (i1 < p.n) copy_g(i1);
        tl_copy_commit();
        const Weights<C> slopes(t);
        each_part<C>(slopes, Qs + at, d, counts, parts, side, lane,
                     [&](int group, const float *from) { add(gK[group], from); });
        if (i1 < p.n) copy_rows<C, C::TILES>(Qs, Q, i1, p, 0);
        tl_copy_commit();
        i0 = i1;
    }
    tl_copy_wait<0>();
    const int64_t row = j0 + owner.row, at = member + row * p.d;
    if (row >= p.n) return;
    const float scale = p.scale;
    store<C>(a.gK + at, gK, owner.quad, p, [=](float x) { return x * (1.0f / WEIGHT_UNIT) * scale; });
    store<C>(a.gV + at, gV, owner.quad, p, [=](float x) { return x * (1.0f / WEIGHT_UNIT); });
}

/* ---- host side --------------------------------------------------------------------------------------------------- */

template <class C> int32_t forward(tl_context *ctx, ForwardArgs a)
{
    const dim3 grid = pass_grid<C>(a.p);
    constexpr size_t bytes = forward_shared<C>();
    TL_TRY(tl_allow_shared(ctx, forward_kernel<C>, bytes));
    return tl_launch_ahead(ctx, "flash_attention", forward_kernel<C>, grid, C::THREADS, bytes, a);
}

template <class C> int32_t backward(tl_context *ctx, BackwardArgs a)
{
    const dim3 grid = pass_grid<C>(a.p);
    TL_TRY(tl_launch_shared(ctx, NAME, query_kernel<C>, grid, C::THREADS, query_shared<C>(), a));
    return tl_launch_shared(ctx, NAME, key_kernel<C>, grid, C::THREADS, key_shared<C>(), a);
}

} /* namespace relay */

/* Most of a block's shared memory, which not every device has. */
static bool fits(tl_context *ctx, size_t bytes)
{
    int most = 0;
    const auto attribute = cudaDevAttrMaxSharedMemoryPerBlockOptin;
    return cudaDeviceGetAttribute(&most, attribute, tl_context_ordinal(ctx)) == cudaSuccess && bytes <= (size_t)most;
}
template <class C> static bool fits(tl_context *ctx)
{
    using namespace relay;
    constexpr size_t backward = query_shared<C>() > key_shared<C>() ? query_shared<C>() : key_shared<C>();
    return fits(ctx, backward > forward_shared<C>() ? backward : forward_shared<C>());
}

template <class C> static int64_t blocks(const Problem &p) { return p.batch * tl_ceil_div(p.n, C::ROWS); }

/* A turn of four tiles of a block takes about as long as the eight warps of a multiprocessor take for a tile of their 128
 * rows: rounds of blocks of 32 rows are compared with a round of those. Up to 64 coordinates a block there has 64 rows,
 * and while it has a multiprocessor alone four warps, which take little more than half as long. */
bool relay_serves(tl_context *ctx, const Problem &p)
{
    return blocks<relay::Relay<64>>(p) <= (p.d > 64 ? 2 : 1) * (int64_t)tl_cuda_sms(ctx) &&
           (p.d > 64 ? fits<relay::Relay<128>>(ctx) : fits<relay::Relay<64>>(ctx));
}

/* Whether one round of blocks of 64 rows serves where blocks of 32 take two, each of which copies all keys and values: the
 * second half of the warps hides the latencies of the first. Either gives a row the same bits. */
static bool tall_blocks_serve(tl_context *ctx, const Problem &p)
{
    using Tall = relay::Relay<128, 16>;
    const int64_t sms = tl_cuda_sms(ctx);
    return blocks<relay::Relay<128>>(p) > sms && blocks<Tall>(p) <= sms && fits(ctx, relay::forward_shared<Tall>());
}

int32_t forward_relay(tl_context *ctx, const Problem &p, float *out, bool scanned, const ValueScanArgs &scan)
{
    const relay::ForwardArgs a = {p, out, scanned, scan};
    return p.d <= 64                   ? relay::forward<relay::Relay<64>>(ctx, a)
           : tall_blocks_serve(ctx, p) ? relay::forward<relay::Relay<128, 16>>(ctx, a)
                                       : relay::forward<relay::Relay<128>>(ctx, a);
}

int32_t backward_relay(tl_context *ctx, const BackwardArgs &a)
{
    return a.p.d <= 64 ? relay::backward<relay::Relay<64>>(ctx, a) : relay::backward<relay::Relay<128>>(ctx, a);
}

} /* namespace attention */
