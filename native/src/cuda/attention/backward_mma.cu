/* Attention on CUDA, backward on tensor cores: the passes of attention/backward.cu. See attention/mma_tiles.cuh for who owns
 * what. A score has the same bits in both passes: the transposed product is summed in the same order. */
#include "cuda/attention/backward_tiles.cuh"
#include "cuda/attention/relay.cuh"

namespace attention {

/* ---- the pass over queries --------------------------------------------------------------------------------------- */

template <class C, bool GRADIENT> constexpr size_t query_tensor_shared()
{
    return sizeof(float) * (size_t)((C::ROWS + 2 * C::TILES) * C::LD * (GRADIENT ? 2 : 1) + 2 * C::ROWS * C::SPLIT);
}

/* Without GRADIENT only m, 1/Σ and D. */
template <class C, bool GRADIENT>
__global__ void __launch_bounds__(C::THREADS, C::BLOCKS) query_tensor_kernel(const BackwardArgs a)
{
    TL_DYNAMIC_SHARED(float, shared);
    const Problem &p = a.p;
    const int64_t b = blockIdx.x / p.blocks, rank = blockIdx.x % p.blocks;
    if (p.unsafe[b]) return;
    const int64_t i0 = (p.mode == CAUSAL ? p.blocks - 1 - rank : rank) * C::ROWS, rows = p.n - i0;
    const int64_t end = p.mode == CAUSAL && i0 + C::ROWS < p.n ? i0 + C::ROWS : p.n, member = b * p.n * p.d;
    const float *K = p.K + member, *V = p.V + member;
    float *Qs = shared, *Ks = Qs + C::ROWS * C::LD, *Gs = Ks + 2 * C::TILES * C::LD, *Vs = Gs + C::ROWS * C::LD;
    uint32_t *bits = (uint32_t *)(GRADIENT ? Vs + 2 * C::TILES * C::LD : Gs);
    const Lane lane((C()));
    const int d = (int)p.d;

    Sums<C> sums = {};
    TensorSoftmax<C> softmax;
    int64_t j0 = next_tile<C>(0, end, bits, p, b, i0, softmax, lane);
    copy_rows<C, C::ROWS>(Qs, p.Q + member, i0, p, 0);
    if (GRADIENT) copy_rows<C, C::ROWS>(Gs, a.g + member, i0, p, 0);
    auto copy_tile = [&](int64_t j, int turn) {
        copy_rows<C, C::TILES>(Ks + turn * C::TILES * C::LD, K, j, p, 0);
        if (GRADIENT) copy_rows<C, C::TILES>(Vs + turn * C::TILES * C::LD, V, j, p, 0);
    };
    if (j0 < end) copy_tile(j0, 0);
    tl_copy_commit();
    float dot[C::R];
    dot_products<C>(dot, a.g + member, a.out + member, i0, p, lane);
    for (int turn = 0; j0 < end; turn ^= 1) {
        tl_copy_wait<0>();
        __syncthreads();
        const int64_t j1 =
            next_tile<C>(j0 + C::TILES, end, bits + (turn ^ 1) * C::ROWS * C::SPLIT, p, b, i0, softmax, lane);
        if (j1 < end) copy_tile(j1, turn ^ 1);
        tl_copy_commit();
        const uint32_t *words = bits + (turn * C::SPLIT + lane.team) * C::ROWS;
        const int64_t j = j0 + lane.team * TILE;
        const float *tile_k = Ks + (turn * C::SPLIT + lane.team) * TILE * C::LD;
        const Cover cover = query_cover<C>(words, p, i0, j, lane);
        if ((C::SPLIT == 1 || j < end) && (cover != NOTHING || (p.mode == FILL && softmax.fill_counts(rows, lane)))) {
            float s[C::M][4][4];
            tile_product<C, false>(s, Qs, tile_k, d, lane);
            tensor_scores<C>(s, p, cover, words, i0, j, lane);
            softmax.step(s);
            if constexpr (GRADIENT) {
                float t[C::M][4][4];
                tile_product<C, false>(t, Gs, Vs + (turn * C::SPLIT + lane.team) * TILE * C::LD, d, lane);
                TL_UNROLL_FOR (int m = 0; m < C::M; m++)
                    TL_UNROLL_FOR (int n = 0; n < 4; n++)
                        TL_UNROLL_FOR (int e = 0; e < 4; e++)
                            s[m][n][e] *= t[m][n][e] - dot[2 * m + e / 2];
                if (p.mode == FILL && cover != ALL) clear_blocked<C>(s, words, lane);
                const Weights<C> weights(s);
                tile_accumulate<C, true>(sums, weights, tile_k, d, softmax.factor, lane);
            }
        }
        j0 = j1;
    }
    tl_copy_wait<0>();
    if (!join_queries<C, GRADIENT>(shared, softmax, sums, lane)) return;
    TL_UNROLL_FOR (int r = 0; r < C::R; r++) {
        const float total = softmax.total(r);
        const int64_t row = i0 + lane.row(r), at = b * p.n + row;
        if (row >= p.n) continue;
        if (lane.t == 0) {
            a.base[at] = softmax.top[r] == -TL_INF ? 0.0f : softmax.top[r];
            a.inverse[at] = 1.0f / (total * (1.0f / WEIGHT_UNIT));
            a.dot[at] = dot[r];
        }
        if constexpr (GRADIENT) {
            TL_UNROLL_FOR (int group = 0; group < C::GROUPS; group++)
                TL_UNROLL_FOR (int j = 0; j < 4; j++)
                    TL_UNROLL_FOR (int e = 0; e < 2; e++) {
                        float &x = sums[r / 2][group][j][r % 2 * 2 + e];
                        x = x / total * p.scale;
                    }
            store_sums<C>(a.gQ + member + row * p.d, sums, r, p, lane);
        }
    }
}

/* ---- the pass over keys ------------------------------------------------------------------------------------------ */

template <class C> constexpr size_t key_tensor_shared()
{
    return sizeof(float) * (size_t)(2 * (C::ROWS + 2 * C::TILES) * C::LD + 2 * 3 * C::TILES + 2 * C::ROWS * C::SPLIT);
}

template <class C> __global__ void __launch_bounds__(C::THREADS, C::BLOCKS) key_tensor_kernel(const BackwardArgs a)
{
    TL_DYNAMIC_SHARED(float, shared);
    const Problem &p = a.p;
    const int64_t b = blockIdx.x / p.blocks, j0 = blockIdx.x % p.blocks * C::ROWS;
    if (p.unsafe[b]) return;
    const int64_t member = b * p.n * p.d;
    const float *Q = p.Q + member, *g = a.g + member;
    float *Ks = shared, *Vs = Ks + C::ROWS * C::LD, *Qs = Vs + C::ROWS * C::LD, *Gs = Qs + 2 * C::TILES * C::LD;
    float *statistics = Gs + 2 * C::TILES * C::LD; /* base, inverse, dot of a turn's queries */
    uint32_t *bits = (uint32_t *)(statistics + 2 * 3 * C::TILES);
    const Lane lane((C()));
    const int d = (int)p.d;
    const bool want_k = a.gK != nullptr, want_v = a.gV != nullptr, stored = p.mode == FILL || p.mode == HARD;

    Sums<C> gK = {}, gV = {};
    const float no_factor[C::R] = {};
    auto next = [&](int64_t i, uint32_t *words) { return stored ? next_queries<C>(i, words, a, b, j0, lane) : i; };
    auto copy_tile = [&](int64_t i, int turn) {
        copy_rows<C, C::TILES>(Qs + turn * C::TILES * C::LD, Q, i, p, 0);
        copy_rows<C, C::TILES>(Gs + turn * C::TILES * C::LD, g, i, p, 0);
        for (int t = threadIdx.x; t < 3 * C::TILES; t += C::THREADS) {
            const float *of = t < C::TILES ? a.base : t < 2 * C::TILES ? a.inverse : a.dot;
            const int64_t row = i + t % C::TILES;
            const bool present = row < p.n;
            tl_copy_async<4>(statistics + turn * 3 * C::TILES + t, present ? of + b * p.n + row : of, present);
        }
    };

    int64_t i0 = next(p.mode == CAUSAL ? j0 : 0, bits);
    copy_rows<C, C::ROWS>(Ks, p.K + member, j0, p, 0);
    copy_rows<C, C::ROWS>(Vs, p.V + member, j0, p, 0);
    if (i0 < p.n) copy_tile(i0, 0);
    tl_copy_commit();
    for (int turn = 0; i0 < p.n; turn ^= 1) {
        tl_copy_wait<0>();
        __syncthreads();
        const int64_t i1 = next(i0 + C::TILES, bits + (turn ^ 1) * C::ROWS * C::SPLIT);
        if (i1 < p.n) copy_tile(i1, turn ^ 1);
        tl_copy_commit();
        /* A warp whose keys come after all queries of the tile has nothing to do under a causal mask. */
        const int64_t i = i0 + lane.team * TILE;
        const int ahead = p.mode == CAUSAL ? (int)(j0 - i) + lane.first : 0;
        if ((C::SPLIT == 1 || i < p.n) && ahead < TILE) {
            const int at = (turn * C::SPLIT + lane.team) * TILE * C::LD;
            const float *tile_q = Qs + at, *tile_g = Gs + at;
            const float *const of_team = statistics + turn * 3 * C::TILES + lane.team * TILE;
            const uint32_t *team_bits = bits + (turn * C::SPLIT + lane.team) * C::ROWS;
            float s[C::M][4][4], t[C::M][4][4];
            tile_product<C, true>(s, Ks, tile_q, d, lane);
            key_weights<C>(s, p, of_team, team_bits, ahead, lane);
            if (want_v) {
                const Weights<C> weights(s);
                tile_accumulate<C, false>(gV, weights, tile_g, d, no_factor, lane);
            }
            if (want_k) {
                tile_product<C, true>(t, Vs, tile_g, d, lane);
                key_slopes<C>(t, s, p, of_team, team_bits, lane);
                const Weights<C> weights(t);
                tile_accumulate<C, false>(gK, weights, tile_q, d, no_factor, lane);
            }
        }
        i0 = i1;
    }
    tl_copy_wait<0>();
    const auto leave = [&](float *to) {
        each_sum<C>(gK, [&](int i, float &sum) { to[i * C::TEAM] = sum; });
        each_sum<C>(gV, [&](int i, float &sum) { to[(SUMS_OF<C> + i) * C::TEAM] = sum; });
    };
    const auto join = [&](const float *from) {
        each_sum<C>(gK, [&](int i, float &sum) { sum += from[i * C::TEAM]; });
        each_sum<C>(gV, [&](int i, float &sum) { sum += from[(SUMS_OF<C> + i) * C::TEAM]; });
    };
    if (!join_teams<C, 2 * SUMS_OF<C>>(shared, lane, leave, join)) return;
    TL_UNROLL_FOR (int r = 0; r < C::R; r++) {
        const int64_t row = j0 + lane.row(r), at = member + row * p.d;
        if (row >= p.n) continue;
        TL_UNROLL_FOR (int group = 0; group < C::GROUPS; group++)
            TL_UNROLL_FOR (int j = 0; j < 4; j++)
                TL_UNROLL_FOR (int e = 0; e < 2; e++) {
                    gK[r / 2][group][j][r % 2 * 2 + e] *= 1.0f / WEIGHT_UNIT;
                    gK[r / 2][group][j][r % 2 * 2 + e] *= p.scale;
                    gV[r / 2][group][j][r % 2 * 2 + e] *= 1.0f / WEIGHT_UNIT;
                }
        if (want_k) store_sums<C>(a.gK + at, gK, r, p, lane);
        if (want_v) store_sums<C>(a.gV + at, gV, r, p, lane);
    }
}

/* ---- host side --------------------------------------------------------------------------------------------------- */

template <class C> static int32_t query_tensor(tl_context *ctx, BackwardArgs a)
{
    const dim3 grid = pass_grid<C>(a.p);
    const auto kernel = a.gQ ? query_tensor_kernel<C, true> : query_tensor_kernel<C, false>;
    const size_t bytes = a.gQ ? query_tensor_shared<C, true>() : query_tensor_shared<C, false>();
    return tl_launch_shared(ctx, NAME, kernel, grid, C::THREADS, bytes, a);
}

template <class C> static int32_t key_tensor(tl_context *ctx, BackwardArgs a)
{
    const dim3 grid = pass_grid<C>(a.p);
    return tl_launch_shared(ctx, NAME, key_tensor_kernel<C>, grid, C::THREADS, key_tensor_shared<C>(), a);
}

int32_t backward_tensor(tl_context *ctx, const BackwardArgs &a)
{
    const int64_t d = a.p.d;
    if (wgmma_serves(ctx, a.p)) return backward_wgmma(ctx, a);
    /* Elsewhere 32 queries to a warp where the registers allow, unless that leaves multiprocessors idle or half of a block's
     * rows empty; two results for the 16 keys of a warp. */
    const bool teams = d <= 64 && a.p.n <= TEAM_ROWS;
    if (!teams && a.gQ && a.gK && a.gV && relay_serves(ctx, a.p)) return backward_relay(ctx, a);
    const bool few = a.p.batch * tl_ceil_div(a.p.n, 128) < tl_cuda_sms(ctx),
               small_teams = teams && (few || a.p.n <= 32);
    const int32_t status = small_teams && d <= 32 ? query_tensor<Tensor<32, 1, 8, 2, 4>>(ctx, a)
                           : small_teams          ? query_tensor<Tensor<64, 1, 8, 1, 4>>(ctx, a)
                           : teams                ? query_tensor<Tensor<64, 2, 8, 1, 4>>(ctx, a)
                           : few && d <= 64       ? query_tensor<Tensor<64, 1, 4, 2>>(ctx, a)
                           : d <= 32              ? query_tensor<Tensor<32, 2, 4, 2>>(ctx, a)
                           : d <= 64              ? query_tensor<Tensor<64, 2, 4, 2>>(ctx, a)
                                                  : query_tensor<Tensor<128, 1, 8, 1>>(ctx, a);
    if (status || (!a.gK && !a.gV)) return status;
    return teams     ? key_tensor<Tensor<64, 1, 8, 1, 4>>(ctx, a)
           : d <= 32 ? key_tensor<Tensor<32, 1, 4, 3>>(ctx, a)
           : d <= 64 ? key_tensor<Tensor<64, 1, 4, 3>>(ctx, a)
                     : key_tensor<Tensor<128, 1, 8, 1>>(ctx, a);
}

} /* namespace attention */
