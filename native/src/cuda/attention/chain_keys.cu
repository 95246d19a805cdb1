/* The pass over keys of attention by chains of float64 (attention/chain_tiles.cuh): the gradients of keys and values. */
#include "cuda/attention/chain_launch.cuh"

namespace attention {
namespace chain {
namespace {

/* In shared memory, of a tile of queries. */
template <class C> struct Statistics {
    double reference[TILE], inverse[TILE], dot[TILE];
    alignas(16) int open; /* whether the block's keys are open to all of them */
};

template <class C> constexpr size_t key_shared()
{
    return sizeof(Sources) + C::STAGES * (sizeof(Statistics<C>) + sizeof(float) * (size_t)(Rows::FLOATS * TILE)) +
           sizeof(float) * (size_t)((C::ROWS + C::STAGES * TILE) * 2 * C::LD);
}

/* Where no row attends to one of the `each` keys of a block of the pass below, and what rows have is finite, its sums are 0: writes
 * the results asked for, and for the pass which of its blocks have nothing left to do. Of a window most are such where queries are
 * few, and they would read keys and values first. By a kernel of its own: the pass has no registers left for it. */
__global__ void __launch_bounds__(128) settle_kernel(const Args a, Window window, int each, float *gK, float *gV)
{
    const int64_t b = blockIdx.x / a.blocks, j0 = blockIdx.x % a.blocks * (int64_t)each;
    const int64_t tiles = (a.rows + TILE - 1) / TILE;
    const int64_t present = a.keys - j0 < each ? a.keys - j0 : (int64_t)each;
    bool finite = !window.meets(j0, j0 + each);
    for (int64_t t = threadIdx.x; t < tiles && finite; t += 128)
        finite = a.finite_q[b * tiles + t] && a.finite_g[b * tiles + t];
    const bool settled = __syncthreads_and(finite);
    if (threadIdx.x == 0) a.settled[blockIdx.x] = settled;
    if (!settled) return;
    const auto fill = [&](float *to, const Layout &of, int64_t width, float value) {
        to += of.member(a, b) + j0 * of.row;
        for (int64_t i = threadIdx.x; i < present * width; i += 128) {
            const int64_t j = divide(i, width);
            to[j * of.row + (i - j * width)] = value;
        }
    };
    if (gK) fill(gK, a.at_gk, a.d, (float)(0.0 * (double)a.scale) + 0.0f);
    if (gV) fill(gV, a.at_gv, a.v, 0.0f);
}

/* gV with VALUES, gK with KEYS. With two stages a tile of queries is copied while the one before is multiplied: where the
 * registers hold that too, for none may be spilled (device/chain.cuh). */
template <class C, bool KEYS, bool VALUES>
__global__ void __launch_bounds__(C::THREADS, C::BLOCKS) key_kernel(const Args a)
{
    TL_DYNAMIC_SHARED(float, shared);
    Sources *const sources = reinterpret_cast<Sources *>(shared); /* Q and g */
    Statistics<C> *const statistics = reinterpret_cast<Statistics<C> *>(sources + 1);
    float *const rest = reinterpret_cast<float *>(statistics + C::STAGES);
    float *Ks = rest + C::STAGES * Rows::FLOATS * TILE, *Vs = Ks + C::ROWS * C::LD, *Qs = Vs + C::ROWS * C::LD;
    float *Gs = Qs + C::STAGES * TILE * C::LD;
    const Lane<C> lane;
    const int b = (int)(blockIdx.x / a.blocks);
    const int64_t j0 = blockIdx.x % a.blocks * (int64_t)C::ROWS;
    const int64_t from = C::MANY ? (int64_t)(a.chunk + blockIdx.y) * C::DP : 0;
    const float *K = a.K + a.at_k.member(a, b), *V = a.V + a.at_v.member(a, b);

    if ((a.settled && a.settled[blockIdx.x]) || a.leaves_out(b)) return;
    if (threadIdx.x == 0) *sources = {a.Q + a.at_q.member(a, b), a.g + a.at_g.member(a, b)};
    if (!C::MANY) {
        copy_rows<C, C::ROWS>(Ks, K, j0, a.keys, a.d, a.of_k);
        clear_ends<C>(Ks, C::ROWS, a.d);
        clear_ends<C>(Qs, C::STAGES * TILE, a.d);
        if (KEYS) {
            copy_rows<C, C::ROWS>(Vs, V, j0, a.keys, a.v, a.of_v);
            clear_ends<C>(Vs, C::ROWS, a.v);
            clear_ends<C>(Gs, C::STAGES * TILE, a.v);
        }
    }
    /* What the block's other rows sum up is dropped. */
    const int present = (int)(a.keys - j0 < C::ROWS ? a.keys - j0 : (int64_t)C::ROWS);
    auto limits_of = [&](int stage) { return Rows(rest + stage * Rows::FLOATS * TILE, TILE); };
    /* The first tile from number `tile` on, up to `last`, that counts; `open`: whether the block's keys are open to all of its
     * queries, of which else the limits are found, for the next barrier to publish. What all threads know decides it: most tiles
     * that do not count are passed over without a barrier and without memory, if the segment is `plain`, without rows that are
     * not finite. */
    auto next = [&](int tile, int last, int stage, bool plain, bool *open) {
        for (; tile < last; tile++) {
            const int64_t i = (int64_t)tile * TILE, count = a.rows - i < TILE ? a.rows - i : (int64_t)TILE;
            const Span span(a, i, count);
            if (a.limited && !span.meets(j0, C::ROWS) &&
                (plain || (finite_rows<TILE>(a.finite_q, a.rows, b, i) && finite_rows<TILE>(a.finite_g, a.rows, b, i))))
                continue;
            *open = count == TILE && span.open(a, j0, present);
            if (C::STAGES == 1 || !*open) __syncthreads(); /* what was there has been used */
            if (!*open) limits_of(stage).find(a, b, i, TILE);
            break;
        }
        return tile;
    };
    /* Starts copying a tile. */
    auto start = [&](int tile, int stage, bool open) {
        const int64_t i = (int64_t)tile * TILE;
        if (threadIdx.x == 0) statistics[stage].open = open;
        double *const to = reinterpret_cast<double *>(statistics + stage);
        for (int t = threadIdx.x; t < 3 * TILE; t += C::THREADS) {
            const double *const of = t < TILE ? a.reference : t < 2 * TILE ? a.inverse : a.dot;
            const int64_t row = i + t % TILE;
            tl_copy_async<8>(tl_shared_address(to + t), row < a.rows ? of + b * a.rows + row : of, row < a.rows);
        }
        if (!C::MANY) {
            copy_rows<C, TILE>(Qs + stage * TILE * C::LD, sources->first, i, a.rows, a.d, a.of_q);
            copy_rows<C, TILE>(Gs + stage * TILE * C::LD, sources->second, i, a.rows, a.v, a.of_g);
        }
        tl_copy_commit();
    };

    Sums<C> gK;
    Sums<C> gV;
    /* In all, and of a segment. */
    const int tiles = (int)((a.rows + TILE - 1) / TILE), each = (int)(a.segment / TILE);
    for (int begin = (int)(first_term(a) / TILE); begin < tiles; begin += each) {
        const int end = begin + each < tiles ? begin + each : tiles;
        const bool plain = __syncthreads_and(
            !a.limited || (all_finite<C>(a.finite_q, a.rows, b, begin, end) &&
                           all_finite<C>(a.finite_g, a.rows, b, begin, end))); /* and what was there has been used */
        if (KEYS) clear<C>(gK);
        if (VALUES) clear<C>(gV);
        int stage = 0, tile = begin;
        if (C::STAGES > 1) {
            bool open = false;
            tile = next(tile, end, stage, plain, &open);
            if (tile < end) start(tile, stage, open);
        }
        for (int after; tile < end; tile = after) {
            bool open = false; /* of the tile that is copied next */
            if (C::STAGES > 1) {
                after = next(tile + 1, end, stage ^ 1, plain, &open);
            } else {
                tile = next(tile, end, stage, plain, &open);
                if (tile >= end) break;
                start(tile, stage, open);
                after = tile + 1;
            }
            tl_copy_wait<0>();
            __syncthreads();
            if (C::STAGES > 1 && after < end) start(after, stage ^ 1, open);
            const int64_t i0 = (int64_t)tile * TILE;
            const Statistics<C> &of = statistics[stage];
            const Rows limits = limits_of(stage);
            float *const q = Qs + stage * TILE * C::LD, *const g = Gs + stage * TILE * C::LD;
            Products<C> p = {};
            if constexpr (C::MANY) {
                multiply_chunks<C>(p, Ks, K, j0, a.keys, a.at_k.row, q, sources->first, i0, a.rows, a.at_q.row, a.d,
                                   a.wide_d, lane);
            } else {
                multiply<C>(p, Ks, q, whole(a.d, 0, C::DP), lane);
            }
            uint32_t shut[C::M] = {};
            TL_UNROLL_FOR (int m = 0; m < C::M; m++) {
                constexpr int COUNT = 4 * C::P;
                const auto query = [&](int i) { return lane.other(i / 4, i % 2); };
                float s[COUNT];
                double w[COUNT];
                TL_UNROLL_FOR (int i = 0; i < COUNT; i++)
                    s[i] = (float)p[m][i / 4][i % 4];
                if (of.open) {
                    TL_UNROLL_FOR (int i = 0; i < COUNT; i++)
                        s[i] = tl_attention_score(s[i], a.scale);
                } else {
                    shut[m] = limit_scores<4>(s, a, limits, query, [&](int i) { return j0 + lane.row(m, i % 4 / 2); });
                }
                weigh<COUNT>(w, s, [&](int i) { return of.reference[query(i)]; });
                TL_UNROLL_FOR (int i = 0; i < COUNT; i++)
                    p[m][i / 4][i % 4] = tl_round_24(w[i] * of.inverse[query(i)]);
            }
            if constexpr (KEYS) {
                Products<C> t = {};
                if constexpr (C::MANY)
                    multiply_chunks<C>(t, Vs, V, j0, a.keys, a.at_v.row, g, sources->second, i0, a.rows, a.at_g.row,
                                       a.v, a.wide_v, lane);
                else
                    multiply<C>(t, Vs, g, whole(a.v, 0, C::DP), lane);
                TL_UNROLL_FOR (int m = 0; m < C::M; m++)
                    TL_UNROLL_FOR (int n = 0; n < C::P; n++)
                        TL_UNROLL_FOR (int i = 0; i < 4; i++) {
                            const double ds = tl_round_24(p[m][n][i] * (t[m][n][i] - of.dot[lane.other(n, i % 2)]));
                            t[m][n][i] = shut[m] >> (4 * n + i) & 1 ? 0.0 : ds;
                        }
                if constexpr (C::MANY) {
                    __syncthreads();
                    copy_chunk<C, TILE>(q, sources->first, i0, a.rows, a.d, a.wide_d, from, a.at_q.row);
                    arrive();
                }
                accumulate<C>(gK, t, q, (int)(a.d - from), lane);
            }
            if constexpr (VALUES) {
                if constexpr (C::MANY) {
                    __syncthreads();
                    copy_chunk<C, TILE>(g, sources->second, i0, a.rows, a.v, a.wide_v, from, a.at_g.row);
                    arrive();
                }
                accumulate<C>(gV, p, g, (int)(a.v - from), lane);
            }
            if (C::STAGES > 1) stage ^= 1;
        }
        if (a.parts) break;
        if (a.totals) {
            double one[C::M][2];
            TL_UNROLL_FOR (int m = 0; m < C::M; m++)
                one[m][0] = one[m][1] = 1.0;
            if (KEYS) join<C>(gK, totals_of<C>(a, 0), begin == 0, end == tiles, one, one);
            if (VALUES) join<C>(gV, totals_of<C>(a, KEYS ? 1 : 0), begin == 0, end == tiles, one, one);
        }
    }
    if (a.parts) { /* gK, then gV */
        double *const part = parts_of(a, b, a.keys);
        if constexpr (KEYS) store<C>(part, j0, a.keys, a.d, a.pitch, from, gK, lane);
        if constexpr (VALUES) store<C>(part + (KEYS ? a.d : 0), j0, a.keys, a.v, a.pitch, from, gV, lane);
        return;
    }
    if constexpr (KEYS) {
        if (a.rows == 0) clear<C>(gK);
        TL_UNROLL_FOR (int m = 0; m < C::M; m++)
            TL_UNROLL_FOR (int n = 0; n < C::N; n++)
                TL_UNROLL_FOR (int i = 0; i < 4; i++)
                    gK[m][n][i] *= (double)a.scale;
        store<C>(a.gK + a.at_gk.member(a, again(b)), j0, a.keys, a.d, a.at_gk.row, from, gK, lane);
    }
    if constexpr (VALUES) {
        if (a.rows == 0) clear<C>(gV);
        store<C>(a.gV + a.at_gv.member(a, again(b)), j0, a.keys, a.v, a.at_gv.row, from, gV, lane);
    }
}

/* Adds the parts of the keys, in order. A thread owns an element of a gradient, `width` to a key from column `from` of
 * the parts on. */
__global__ void __launch_bounds__(128)
    add_key_kernel(const Args a, int segments, int64_t from, int64_t width, double scale, float *to, const Layout of)
{
    const int64_t i = (int64_t)blockIdx.x * 128 + threadIdx.x, keys = a.members * a.keys;
    if (i >= keys * width) return;
    const int64_t key = i / width, column = i - key * width, b = key / a.keys;
    const double *const part = a.parts + key * a.pitch + from + column;
    double sum = *part;
#pragma unroll 8
    for (int s = 1; s < segments; s++)
        sum += part[s * keys * a.pitch];
    to[of.member(a, b) + (key - b * a.keys) * of.row + column] = (float)(sum * scale) + 0.0f;
}

/* ---- launches ---------------------------------------------------------------------------------------------------- */

/* The length of a segment. Where many queries share few keys, blocks that each take their share of them are as many as the
 * device runs at once, or a few more, and where a window opens more queries to some keys than to others most wait for the
 * last: so in the mode `fast` segments are about a quarter as long, but not so short that their sums, which go through memory,
 * would count. */
int64_t segment_of_keys(tl_context *ctx, const Args &a)
{
    constexpr int64_t LEAST = 2048, BLOCKS = 512;
    const int64_t segment = segment_of(ctx, a, a.keys, a.rows, 256), blocks = tl_ceil_div(a.keys, 64);
    if (tl_is_reproducible(ctx) || a.only || segment <= LEAST) return segment;
    const int64_t shorter = tl_ceil_div(tl_ceil_div(a.rows, tl_ceil_div(BLOCKS, blocks)), 128) * 128;
    return std::min(segment, std::max(shorter, LEAST));
}

template <class C, bool KEYS, bool VALUES> int32_t pass_over_keys(tl_context *ctx, Args a, const Pass &both)
{
    const int64_t d = KEYS ? a.d : 0, v = VALUES ? a.v : 0;
    const Pass pass = {both.rows, both.others, d > v ? d : v, (int)KEYS + (int)VALUES, d + v};
    const Window window = window_of(a);
    if (!a.settled || a.members * a.rows == 0 || a.keys - (window.end - window.first) < C::ROWS ||
        splits<C>(ctx, a, pass)) {
        a.settled = nullptr; /* no blocks beyond the window, or such as leave sums to others */
    } else {
        a.blocks = (uint32_t)tl_ceil_div(a.keys, C::ROWS);
        TL_TRY(tl_launch(ctx, "attention_chain_bwd", settle_kernel, (unsigned)(a.members * a.blocks), 128, a, window,
                         (int)C::ROWS, KEYS ? a.gK : nullptr, VALUES ? a.gV : nullptr));
    }
    auto add = [&](const Args &a, int segments) {
        const int64_t keys = a.members * a.keys;
        if (KEYS)
            TL_TRY(tl_launch(ctx, "attention_chain_bwd", add_key_kernel, tl_grid(keys * d, 128), 128, a, segments,
                             (int64_t)0, d, (double)a.scale, a.gK, a.at_gk));
        return !VALUES ? (int32_t)TORCHLEAN_OK
                       : tl_launch(ctx, "attention_chain_bwd", add_key_kernel, tl_grid(keys * v, 128), 128, a, segments,
                                   d, v, 1.0, a.gV, a.at_gv);
    };
    return launch<C>(ctx, "attention_chain_bwd", key_kernel<C, KEYS, VALUES>, a, key_shared<C>(), pass, add);
}

/* Both gradients at once where a thread's registers hold their sums. */
template <class C, bool BOTH> int32_t passes_over_keys(tl_context *ctx, const Args &a, const Pass &pass)
{
    if constexpr (BOTH)
        if (a.gK && a.gV) return pass_over_keys<C, true, true>(ctx, a, pass);
    if (a.gK) TL_TRY((pass_over_keys<C, true, false>(ctx, a, pass)));
    return a.gV ? pass_over_keys<C, false, true>(ctx, a, pass) : (int32_t)TORCHLEAN_OK;
}

template <class LARGE, class SMALL, bool BOTH> int32_t passes_over_keys(tl_context *ctx, Args a)
{
    const Pass pass = {a.keys, a.rows, 0, 0, 0};
    a.segment = segment_of_keys(ctx, a);
    return fills<LARGE>(ctx, a, pass) ? passes_over_keys<LARGE, BOTH>(ctx, a, pass)
                                      : passes_over_keys<SMALL, BOTH>(ctx, a, pass);
}

} /* namespace */

int32_t key_pass(tl_context *ctx, const Args &a)
{
    const int64_t most = a.d > a.v ? a.d : a.v;
    return most <= 8     ? passes_over_keys<Tiles<8, 1, 4, 3, 2>, Tiles<8, 1, 2, 6, 2>, true>(ctx, a)
           : most <= 32  ? passes_over_keys<Tiles<32, 1, 4, 2, 2>, Tiles<32, 1, 2, 4, 2>, true>(ctx, a)
           : most <= 64  ? passes_over_keys<Tiles<64, 1, 4, 2, 1>, Tiles<64, 1, 2, 4, 1>, true>(ctx, a)
           : most <= 128 ? passes_over_keys<Tiles<128, 1, 4, 2, 1>, Tiles<128, 1, 2, 3, 1>, false>(ctx, a)
                         : passes_over_keys<Tiles<64, 1, 4, 1, 1, true>, Tiles<64, 1, 4, 1, 1, true>, false>(ctx, a);
}

} /* namespace chain */
} /* namespace attention */
