/* The pass over queries of attention by chains of float64 (attention/chain_tiles.cuh): the result, or gQ and what the pass over keys
 * needs. */
#include "cuda/attention/chain_launch.cuh"

namespace attention {
namespace chain {
namespace {

template <class C, bool BACKWARD> constexpr size_t query_shared()
{
    return sizeof(Span) + sizeof(Sources) +
           sizeof(float) *
               (size_t)(Rows::FLOATS * C::ROWS + C::ROWS * (BACKWARD ? 2 : 1) * C::LD + C::STAGES * TILE * 2 * C::LD);
}

/* What the pass over keys needs of a row. The weights of one that is NaN are NaN, blocked or not: its tile is then none that may be
 * passed over. */
__device__ __forceinline__ void keep_row(const Args &a, int64_t b, int64_t row, float top, double total)
{
    const double inverse = 1.0 / total;
    a.reference[b * a.rows + row] = tl_weight_reference(top);
    a.inverse[b * a.rows + row] = inverse;
    if (a.limited && isnan(inverse)) a.finite_q[b * ((a.rows + TILE - 1) / TILE) + row / TILE] = 0;
}

template <class C, bool BACKWARD> __global__ void __launch_bounds__(C::THREADS, C::BLOCKS) query_kernel(const Args a)
{
    TL_DYNAMIC_SHARED(float, shared);
    Rows limits(shared, C::ROWS);
    Span *const span = reinterpret_cast<Span *>(shared + Rows::FLOATS * C::ROWS); /* there for want of registers */
    Sources *const sources = reinterpret_cast<Sources *>(span + 1);               /* K and V, but of chunks */
    float *Qs = reinterpret_cast<float *>(sources + 1), *Gs = Qs + C::ROWS * C::LD;
    float *Ks = Gs + (BACKWARD ? C::ROWS * C::LD : 0), *Vs = Ks + C::STAGES * TILE * C::LD;
    const Lane<C> lane;
    const int64_t b = blockIdx.x / a.blocks, i0 = blockIdx.x % a.blocks * C::ROWS;
    if (a.leaves_out(b)) return;
    const int64_t from = C::MANY ? (int64_t)(a.chunk + blockIdx.y) * C::DP : 0;
    const float *Q = a.Q + a.at_q.member(a, b), *K = a.K + a.at_k.member(a, b), *V = a.V + a.at_v.member(a, b);
    const float *G = BACKWARD ? a.g + a.at_g.member(a, b) : nullptr;
    const bool gradient = BACKWARD && a.gQ;
    const uint8_t *const finite = BACKWARD ? a.finite_k : a.finite_v;

    limits.find(a, b, i0, C::ROWS);
    if (!C::MANY) {
        copy_rows<C, C::ROWS>(Qs, Q, i0, a.rows, a.d, a.of_q);
        if (BACKWARD) copy_rows<C, C::ROWS>(Gs, G, i0, a.rows, a.v, a.of_g);
        clear_ends<C>(Qs, C::ROWS, a.d);
        clear_ends<C>(Ks, C::STAGES * TILE, a.d);
        clear_ends<C>(Vs, C::STAGES * TILE, a.v);
        if (BACKWARD) clear_ends<C>(Gs, C::ROWS, a.v);
    }
    if (threadIdx.x == 0) *sources = {K, V};
    if (threadIdx.x == 0) *span = Span(a, i0, a.rows - i0 < C::ROWS ? a.rows - i0 : (int64_t)C::ROWS);
    const bool plain = __syncthreads_and(!a.limited || all_finite<C>(finite, a.keys, b, 0, (a.keys + TILE - 1) / TILE));
    double dot[C::M][2];
    TL_UNROLL_FOR (int m = 0; m < C::M; m++)
        TL_UNROLL_FOR (int h = 0; h < 2; h++) {
            const int64_t row = i0 + lane.row(m, h);
            dot[m][h] = BACKWARD && row < a.rows ? a.dot[b * a.rows + row] : 0.0;
        }
    /* Starts copying the tile from j on. */
    auto start = [&](int64_t j, int stage) {
        if (C::MANY) return;
        copy_rows<C, TILE>(Ks + stage * TILE * C::LD, sources->first, j, a.keys, a.d, a.of_k);
        if (!BACKWARD || gradient)
            copy_rows<C, TILE>(Vs + stage * TILE * C::LD, sources->second, j, a.keys, a.v, a.of_v);
        tl_copy_commit();
    };

    const bool idle = i0 + lane.row0 >= a.rows; /* a warp without rows: it only copies */
    Sums<C> sums;
    Softmax<C> softmax;
    for (int64_t begin = first_term(a); begin < a.keys; begin += a.segment) {
        const int64_t last = begin + a.segment < a.keys ? begin + a.segment : a.keys;
        const Softmax<C> before = softmax;
        softmax = Softmax<C>();
        clear<C>(sums);
        int64_t j0 = span->next(begin, last, a, finite, plain, b);
        int stage = 0;
        if (j0 < last) start(j0, stage);
        while (j0 < last) {
            const int64_t after = span->next(j0 + TILE, last, a, finite, plain, b);
            const float *const k = Ks + stage * TILE * C::LD, *const v = Vs + stage * TILE * C::LD;
            Products<C> s = {};
            uint32_t shut[C::M][2];
            if constexpr (C::MANY) {
                multiply_chunks<C>(s, Qs, Q, i0, a.rows, a.at_q.row, Ks, K, j0, a.keys, a.at_k.row, a.d, a.wide_d,
                                   lane);
            } else {
                tl_copy_wait<0>();
                __syncthreads();
                if (C::STAGES > 1 && after < last) start(after, stage ^ 1);
                if (C::STAGES > 1 && idle) {
                    stage ^= 1;
                    j0 = after;
                    continue;
                }
                multiply<C>(s, Qs, k, whole(a.d, 0, C::DP), lane);
            }
            softmax.step(s, sums, shut, a, limits, span->open(a, j0, TILE), j0, lane);
            if constexpr (BACKWARD) {
                if (gradient) {
                    Products<C> t = {};
                    if constexpr (C::MANY)
                        multiply_chunks<C>(t, Gs, G, i0, a.rows, a.at_g.row, Vs, V, j0, a.keys, a.at_v.row, a.v,
                                           a.wide_v, lane);
                    else
                        multiply<C>(t, Gs, v, whole(a.v, 0, C::DP), lane);
                    TL_UNROLL_FOR (int m = 0; m < C::M; m++)
                        TL_UNROLL_FOR (int n = 0; n < 4; n++)
                            TL_UNROLL_FOR (int i = 0; i < 4; i++) {
                                const bool blocked = shut[m][i / 2] >> (2 * n + i % 2) & 1;
                                const double ds = tl_round_24(s[m][n][i] * (t[m][n][i] - dot[m][i / 2]));
                                s[m][n][i] = blocked ? 0.0 : ds;
                            }
                }
            }
            if constexpr (C::MANY) {
                __syncthreads();
                if (!BACKWARD) copy_chunk<C, TILE>(Vs, V, j0, a.keys, a.v, a.wide_v, from, a.at_v.row);
                if (BACKWARD) copy_chunk<C, TILE>(Ks, K, j0, a.keys, a.d, a.wide_d, from, a.at_k.row);
                arrive();
            }
            if (!BACKWARD || gradient)
                accumulate<C>(sums, s, BACKWARD ? k : v, (int)((BACKWARD ? a.d : a.v) - from), lane);
            if (C::STAGES > 1) {
                stage ^= 1;
            } else if (!C::MANY) {
                __syncthreads();
                if (after < last) start(after, 0);
            }
            j0 = after;
        }
        if (a.parts) break;
        __syncthreads(); /* the last tile has been used */
        if (a.totals) {
            double old[C::M][2], part[C::M][2];
            softmax.join(before, old, part);
            join<C>(sums, totals_of<C>(a, 0), begin == 0, last == a.keys, old, part);
        }
    }
    if (a.keys == 0) clear<C>(sums);
    if (a.parts) {
        double *const part = parts_of(a, b, a.rows);
        const int64_t width = a.pitch - (TL_ATTENTION_SUMS + 1);
        store<C>(part, i0, a.rows, width, a.pitch, from, sums, lane);
        TL_UNROLL_FOR (int m = 0; m < C::M; m++)
            TL_UNROLL_FOR (int h = 0; h < 2; h++) {
                const int64_t row = i0 + lane.row(m, h);
                if (from == 0 && row < a.rows) softmax.keep_part(m, h, lane, part + row * a.pitch + width);
            }
        return;
    }
    TL_UNROLL_FOR (int m = 0; m < C::M; m++)
        TL_UNROLL_FOR (int h = 0; h < 2; h++) {
            const double total = softmax.total(m, h);
            const int64_t row = i0 + lane.row(m, h);
            if (BACKWARD && lane.t == 0 && from == 0 && row < a.rows) keep_row(a, b, row, softmax.top[m][h], total);
            TL_UNROLL_FOR (int n = 0; n < C::N; n++)
                TL_UNROLL_FOR (int e = 0; e < 2; e++) {
                    /* zeros divide slowly */
                    if (!C::MANY && lane.result(n, e) >= (int)(BACKWARD ? a.d : a.v)) continue;
                    const double x = sums[m][n][2 * h + e] / total;
                    sums[m][n][2 * h + e] = BACKWARD ? x * (double)a.scale : x;
                }
        }
    if (!BACKWARD) store<C>(a.result + a.at_out.member(a, again(b)), i0, a.rows, a.v, a.at_out.row, from, sums, lane);
    if (gradient) store<C>(a.gQ + a.at_gq.member(a, again(b)), i0, a.rows, a.d, a.at_gq.row, from, sums, lane);
}

/* Joins the parts of the queries, in order, as Softmax::join does. A warp owns a query, a lane every 32nd sum. */
template <bool BACKWARD> __global__ void __launch_bounds__(128) join_query_kernel(const Args a, int segments)
{
    const int64_t at = (int64_t)blockIdx.x * 4 + threadIdx.x / 32, all = a.members * a.rows;
    if (at >= all) return;
    const int64_t width = a.pitch - (TL_ATTENTION_SUMS + 1);
    const double *const row = a.parts + at * a.pitch;
    float top = -TL_INF;
    auto join = [&](int64_t c) {
        double sum = row[c];
        top = (float)row[a.pitch - 1];
        for (int s = 1; s < segments; s++) {
            const double *const part = row + s * all * a.pitch;
            const float other = (float)part[a.pitch - 1];
            double more = part[c];
            if (other > top) {
                sum *= tl_weight_rescale(top, other);
                top = other;
            } else {
                more *= tl_weight_rescale(other, top);
            }
            sum += more;
        }
        return sum;
    };
    double sums[TL_ATTENTION_SUMS];
    TL_UNROLL_FOR (int l = 0; l < TL_ATTENTION_SUMS; l++)
        sums[l] = join(width + l);
    const double total = tl_weight_total(top, (sums[0] + sums[2]) + (sums[1] + sums[3]));
    if (BACKWARD && threadIdx.x % 32 == 0) keep_row(a, at / a.rows, at % a.rows, top, total);
    const Layout &of = BACKWARD ? a.at_gq : a.at_out;
    const int64_t b = at / a.rows, place = of.member(a, b) + (at - b * a.rows) * of.row;
    float *const to = !BACKWARD ? a.result + place : a.gQ ? a.gQ + place : nullptr;
    for (int64_t c = threadIdx.x % 32; c < width && to; c += 32) {
        const double x = join(c) / total;
        to[c] = (float)(BACKWARD ? x * (double)a.scale : x) + 0.0f;
    }
}

/* ---- launches ---------------------------------------------------------------------------------------------------- */

/* Fewer rows to a block where there would be too few blocks. */
template <class LARGE, class SMALL, bool BACKWARD> int32_t pass_over_queries(tl_context *ctx, Args a)
{
    const char *const name = BACKWARD ? "attention_chain_bwd" : "attention_chain";
    const int64_t width = !BACKWARD ? a.v : a.gQ ? a.d : 0;
    const Pass pass = {a.rows, a.keys, width, 1, width + TL_ATTENTION_SUMS + 1};
    a.segment = segment_of(ctx, a, a.rows, a.keys, 512);
    auto join = [&](const Args &a, int segments) {
        return tl_launch(ctx, name, join_query_kernel<BACKWARD>, tl_grid(a.members * a.rows, 4), 128, a, segments);
    };
    if (fills<LARGE>(ctx, a, pass))
        return launch<LARGE>(ctx, name, query_kernel<LARGE, BACKWARD>, a, query_shared<LARGE, BACKWARD>(), pass, join);
    return launch<SMALL>(ctx, name, query_kernel<SMALL, BACKWARD>, a, query_shared<SMALL, BACKWARD>(), pass, join);
}

} /* namespace */

int32_t query_pass(tl_context *ctx, const Args &a)
{
    const int64_t most = a.d > a.v ? a.d : a.v;
    return most <= 32    ? pass_over_queries<Tiles<32, 1, 4, 3, 2>, Tiles<32, 1, 2, 6, 2>, false>(ctx, a)
           : most <= 64  ? pass_over_queries<Tiles<64, 1, 4, 3, 2>, Tiles<64, 1, 2, 5, 2>, false>(ctx, a)
           : most <= 128 ? pass_over_queries<Tiles<128, 1, 4, 2, 2>, Tiles<128, 1, 2, 2, 2>, false>(ctx, a)
                         : pass_over_queries<Tiles<128, 1, 4, 2, 1, true>, Tiles<128, 1, 4, 2, 1, true>, false>(ctx, a);
}

int32_t query_pass_bwd(tl_context *ctx, const Args &a)
{
    const int64_t most = a.d > a.v ? a.d : a.v;
    return most <= 8     ? pass_over_queries<Tiles<8, 1, 4, 3, 2>, Tiles<8, 1, 2, 6, 2>, true>(ctx, a)
           : most <= 32  ? pass_over_queries<Tiles<32, 1, 4, 3, 2>, Tiles<32, 1, 2, 6, 2>, true>(ctx, a)
           : most <= 64  ? pass_over_queries<Tiles<64, 1, 4, 2, 2>, Tiles<64, 1, 2, 4, 2>, true>(ctx, a)
           : most <= 128 ? pass_over_queries<Tiles<128, 1, 4, 2, 1>, Tiles<128, 1, 2, 2, 2>, true>(ctx, a)
                         : pass_over_queries<Tiles<64, 1, 4, 1, 1, true>, Tiles<64, 1, 4, 1, 1, true>, true>(ctx, a);
}

} /* namespace chain */
} /* namespace attention */
