/* The pass over keys of attention by chains of float64 (attention/chain.cu): the gradients of keys and values. */
#pragma once

#include "cuda/attention/chain_tiles.cuh"

namespace attention {
namespace {

/* In shared memory, of a tile of queries. */
template <class C> struct Statistics {
    double reference[C::OTHERS], inverse[C::OTHERS], dot[C::OTHERS];
};

template <class C> constexpr size_t key_shared()
{
    return C::STAGES * (sizeof(Statistics<C>) + sizeof(float) * (size_t)(Rows::FLOATS * C::OTHERS)) +
           sizeof(float) * (size_t)(2 * (C::ROWS + C::STAGES * C::OTHERS) * C::LD);
}

/* gV with VALUES, gK with KEYS. With two stages a tile of queries is copied while the one before is multiplied: where the
 * registers hold that too, for none may be spilled (device/chain.cuh). */
template <class C, bool KEYS, bool VALUES>
__global__ void __launch_bounds__(C::THREADS, C::BLOCKS) key_kernel(const Args a)
{
    TL_DYNAMIC_SHARED(float, shared);
    constexpr int OTHERS = C::OTHERS;
    Statistics<C> *const statistics = reinterpret_cast<Statistics<C> *>(shared);
    float *const rest = shared + C::STAGES * sizeof(Statistics<C>) / sizeof(float);
    float *Ks = rest + C::STAGES * Rows::FLOATS * OTHERS, *Vs = Ks + C::ROWS * C::LD, *Qs = Vs + C::ROWS * C::LD;
    float *Gs = Qs + C::STAGES * OTHERS * C::LD;
    const Lane<C> lane;
    const int64_t b = blockIdx.x / a.blocks, j0 = blockIdx.x % a.blocks * C::ROWS;
    const int64_t from = C::MANY ? (int64_t)blockIdx.y * C::DP : 0;
    const float *Q = a.Q + b * a.rows * a.d, *K = a.K + b * a.keys * a.d, *V = a.V + b * a.keys * a.v;
    const float *G = a.g + b * a.rows * a.v;

    if (!C::MANY) {
        copy_rows<C, C::ROWS>(Ks, K, j0, a.keys, a.d, a.of_d);
        clear_ends<C>(Ks, C::ROWS, a.d);
        clear_ends<C>(Qs, C::STAGES * OTHERS, a.d);
        if (KEYS) {
            copy_rows<C, C::ROWS>(Vs, V, j0, a.keys, a.v, a.of_v);
            clear_ends<C>(Vs, C::ROWS, a.v);
            clear_ends<C>(Gs, C::STAGES * OTHERS, a.v);
        }
    }
    const bool unlimited = !a.limited && a.mode == UNMASKED && j0 + C::ROWS <= a.keys;
    auto limits_of = [&](int stage) { return Rows(rest + stage * Rows::FLOATS * OTHERS, OTHERS); };
    /* The first tile from number `tile` on, up to `last`, that counts, and the limits of its queries; `open`: whether the block's
     * keys are open to all of them. */
    auto next = [&](int tile, int last, int stage, bool *open) {
        Rows limits = limits_of(stage);
        for (; tile < last; tile++) {
            const int64_t i = (int64_t)tile * OTHERS;
            /* Where there is nothing to find out the barrier of the loop does for all; for the first tile of a segment, which takes
             * the first stage, that of the last iteration before, as whole segments have pairs of tiles (terms_of_block,
             * tl_chain_segment). */
            static_assert(C::STAGES == 1 || 128 % (2 * OTHERS) == 0, "a segment ends in the other stage");
            const bool plain = unlimited && i + OTHERS <= a.rows;
            if (C::STAGES == 1 || !plain) __syncthreads(); /* what was there has been used */
            *open = true;
            if (plain) break;
            limits.find(a, b, i, OTHERS);
            bool counts = limits.meet(OTHERS, j0, j0 + C::ROWS), each = a.mode == UNMASKED;
            for (int r = threadIdx.x; r < OTHERS; r += C::THREADS) {
                each &= limits.first[r] <= j0 && limits.end[r] >= j0 + C::ROWS;
                /* the weights of a row that is NaN are NaN, blocked or not */
                if (a.limited && i + r < a.rows) counts |= isnan(a.inverse[b * a.rows + i + r]);
            }
            if (a.limited)
                counts |= !finite_rows<OTHERS>(a.finite_q, a.rows, b, i) ||
                          !finite_rows<OTHERS>(a.finite_g, a.rows, b, i);
            if (a.limited && !__syncthreads_or(counts)) continue;
            *open = __syncthreads_and(each);
            break;
        }
        return tile;
    };
    /* Starts copying a tile. */
    auto start = [&](int tile, int stage) {
        const int64_t i = (int64_t)tile * OTHERS;
        double *const to = reinterpret_cast<double *>(statistics + stage);
        for (int t = threadIdx.x; t < 3 * OTHERS; t += C::THREADS) {
            const double *const of = t < OTHERS ? a.reference : t < 2 * OTHERS ? a.inverse : a.dot;
            const int64_t row = i + t % OTHERS;
            tl_copy_async<8>(tl_shared_address(to + t), row < a.rows ? of + b * a.rows + row : of, row < a.rows);
        }
        if (!C::MANY) {
            copy_rows<C, OTHERS>(Qs + stage * OTHERS * C::LD, Q, i, a.rows, a.d, a.of_d);
            copy_rows<C, OTHERS>(Gs + stage * OTHERS * C::LD, G, i, a.rows, a.v, a.of_v);
        }
        tl_copy_commit();
    };

    Sums<C> gK, gV;
    for (int64_t begin = first_term(a); begin < a.rows; begin += a.segment) {
        const int64_t last = begin + a.segment < a.rows ? begin + a.segment : a.rows;
        if (KEYS) clear<C>(gK);
        if (VALUES) clear<C>(gV);
        const int end = (int)((last + OTHERS - 1) / OTHERS);
        int stage = 0, tile = (int)(begin / OTHERS);
        bool open = false;
        if (C::STAGES > 1) {
            tile = next(tile, end, stage, &open);
            if (tile < end) start(tile, stage);
        }
        for (int after; tile < end; tile = after) {
            bool open_after = false;
            if (C::STAGES > 1) {
                after = next(tile + 1, end, stage ^ 1, &open_after);
            } else {
                tile = next(tile, end, stage, &open);
                if (tile >= end) break;
                start(tile, stage);
                after = tile + 1;
            }
            tl_copy_wait<0>();
            __syncthreads();
            if (C::STAGES > 1 && after < end) start(after, stage ^ 1);
            const int64_t i0 = (int64_t)tile * OTHERS;
            const Statistics<C> &of = statistics[stage];
            const Rows limits = limits_of(stage);
            float *const q = Qs + stage * OTHERS * C::LD, *const g = Gs + stage * OTHERS * C::LD;
            Products<C> p = {};
            if constexpr (C::MANY) {
                multiply_chunks<C>(p, Ks, K, j0, a.keys, q, Q, i0, a.rows, a.d, a.wide_d, lane);
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
                if (open) {
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
                    multiply_chunks<C>(t, Vs, V, j0, a.keys, g, G, i0, a.rows, a.v, a.wide_v, lane);
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
                    copy<C, OTHERS>(q, Q, i0, a.rows, a.d, a.wide_d, from);
                    arrive();
                }
                accumulate<C>(gK, t, q, (int)(a.d - from), lane);
            }
            if constexpr (VALUES) {
                if constexpr (C::MANY) {
                    __syncthreads();
                    copy<C, OTHERS>(g, G, i0, a.rows, a.v, a.wide_v, from);
                    arrive();
                }
                accumulate<C>(gV, p, g, (int)(a.v - from), lane);
            }
            if (C::STAGES > 1) stage ^= 1, open = open_after;
        }
        if (a.parts) break;
        if (a.totals) {
            double one[C::M][2];
            TL_UNROLL_FOR (int m = 0; m < C::M; m++)
                one[m][0] = one[m][1] = 1.0;
            if (KEYS) join<C>(gK, totals_of<C>(a, 0), begin == 0, last == a.rows, one, one);
            if (VALUES) join<C>(gV, totals_of<C>(a, KEYS ? 1 : 0), begin == 0, last == a.rows, one, one);
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
        store<C>(a.gK + b * a.keys * a.d, j0, a.keys, a.d, a.d, from, gK, lane);
    }
    if constexpr (VALUES) {
        if (a.rows == 0) clear<C>(gV);
        store<C>(a.gV + b * a.keys * a.v, j0, a.keys, a.v, a.v, from, gV, lane);
    }
}

} /* namespace */
} /* namespace attention */
