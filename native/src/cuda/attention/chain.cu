/* Attention in the mode `reproducible` on CUDA: a pass over queries, which gives the result, or gQ and what the pass over keys
 * needs, and a pass over keys (attention/chain_tiles.cuh). */
#include "cuda/attention/chain.cuh"

#include "cuda/attention/chain_keys.cuh"

#include <algorithm>

namespace attention {
namespace {

/* ---- the pass over queries: the result, or gQ and what the pass over keys needs ------------------------------------- */

template <class C, bool BACKWARD> constexpr size_t query_shared()
{
    return sizeof(Span) +
           sizeof(float) * (size_t)(Rows::FLOATS * C::ROWS + C::ROWS * (C::Keys::LD + (BACKWARD ? C::Values::LD : 0)) +
                                    C::STAGES * TILE * (C::Keys::LD + C::Values::LD));
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
    using D = typename C::Keys;
    using W = typename C::Values;
    using R = std::conditional_t<BACKWARD, D, W>; /* of the result, or of gQ */
    TL_DYNAMIC_SHARED(float, shared);
    Rows limits(shared, C::ROWS);
    Span *const span = reinterpret_cast<Span *>(shared + Rows::FLOATS * C::ROWS); /* there for want of registers */
    float *Qs = reinterpret_cast<float *>(span + 1), *Gs = Qs + C::ROWS * D::LD;
    float *Ks = Gs + (BACKWARD ? C::ROWS * W::LD : 0), *Vs = Ks + C::STAGES * TILE * D::LD;
    const Lane<R> lane;
    const int64_t b = blockIdx.x / a.blocks, i0 = blockIdx.x % a.blocks * C::ROWS;
    const int64_t from = C::MANY ? (int64_t)(a.chunk + blockIdx.y) * C::DP : 0;
    const float *Q = a.Q + b * a.rows * a.d, *K = a.K + b * a.keys * a.d, *V = a.V + b * a.keys * a.v;
    const float *G = BACKWARD ? a.g + b * a.rows * a.v : nullptr;
    const bool gradient = BACKWARD && a.gQ;
    const uint8_t *const finite = BACKWARD ? a.finite_k : a.finite_v;

    static_assert(C::OTHERS == TILE, "the tiles of keys");
    limits.find(a, b, i0, C::ROWS);
    if (!C::MANY) {
        copy_rows<D, C::ROWS>(Qs, Q, i0, a.rows, a.d, a.of_d);
        if (BACKWARD) copy_rows<W, C::ROWS>(Gs, G, i0, a.rows, a.v, a.of_v);
        clear_ends<D>(Qs, C::ROWS, a.d);
        clear_ends<D>(Ks, C::STAGES * TILE, a.d);
        clear_ends<W>(Vs, C::STAGES * TILE, a.v);
        if (BACKWARD) clear_ends<W>(Gs, C::ROWS, a.v);
    }
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
        copy_rows<D, TILE>(Ks + stage * TILE * D::LD, K, j, a.keys, a.d, a.of_d);
        if (!BACKWARD || gradient) copy_rows<W, TILE>(Vs + stage * TILE * W::LD, V, j, a.keys, a.v, a.of_v);
        tl_copy_commit();
    };

    const bool idle = i0 + lane.row0 >= a.rows; /* a warp without rows: it only copies */
    Sums<R> sums;
    Softmax<R> softmax;
    for (int64_t begin = first_term(a); begin < a.keys; begin += a.segment) {
        const int64_t last = begin + a.segment < a.keys ? begin + a.segment : a.keys;
        const Softmax<R> before = softmax;
        softmax = Softmax<R>();
        clear<R>(sums);
        int64_t j0 = span->next(begin, last, a, finite, plain, b);
        int stage = 0;
        if (j0 < last) start(j0, stage);
        while (j0 < last) {
            const int64_t after = span->next(j0 + TILE, last, a, finite, plain, b);
            const float *const k = Ks + stage * TILE * D::LD, *const v = Vs + stage * TILE * W::LD;
            Products<C> s = {};
            uint32_t shut[C::M][2];
            if constexpr (C::MANY) {
                multiply_chunks<C>(s, Qs, Q, i0, a.rows, Ks, K, j0, a.keys, a.d, a.wide_d, lane);
            } else {
                tl_copy_wait<0>();
                __syncthreads();
                if (C::STAGES > 1 && after < last) start(after, stage ^ 1);
                if (C::STAGES > 1 && idle) {
                    stage ^= 1;
                    j0 = after;
                    continue;
                }
                multiply<D>(s, Qs, k, whole(a.d, 0, D::DP), lane);
            }
            softmax.step(s, sums, shut, a, limits, span->open(a, j0, TILE), j0, lane);
            if constexpr (BACKWARD) {
                if (gradient) {
                    Products<C> t = {};
                    if constexpr (C::MANY)
                        multiply_chunks<C>(t, Gs, G, i0, a.rows, Vs, V, j0, a.keys, a.v, a.wide_v, lane);
                    else
                        multiply<W>(t, Gs, v, whole(a.v, 0, W::DP), lane);
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
                if (!BACKWARD) copy<C, TILE>(Vs, V, j0, a.keys, a.v, a.wide_v, from);
                if (BACKWARD) copy<C, TILE>(Ks, K, j0, a.keys, a.d, a.wide_d, from);
                arrive();
            }
            if (!BACKWARD || gradient)
                accumulate<R>(sums, s, BACKWARD ? k : v, (int)((BACKWARD ? a.d : a.v) - from), lane);
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
            join<R>(sums, totals_of<C>(a, 0), begin == 0, last == a.keys, old, part);
        }
    }
    if (a.keys == 0) clear<R>(sums);
    if (a.parts) {
        double *const part = parts_of(a, b, a.rows);
        const int64_t width = a.pitch - (TL_ATTENTION_SUMS + 1);
        store<R>(part, i0, a.rows, width, a.pitch, from, sums, lane);
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
            TL_UNROLL_FOR (int n = 0; n < R::N; n++)
                TL_UNROLL_FOR (int e = 0; e < 2; e++) {
                    /* zeros divide slowly */
                    if (!C::MANY && lane.result(n, e) >= (int)(BACKWARD ? a.d : a.v)) continue;
                    const double x = sums[m][n][2 * h + e] / total;
                    sums[m][n][2 * h + e] = BACKWARD ? x * (double)a.scale : x;
                }
        }
    if (!BACKWARD) store<R>(a.result + b * a.rows * a.v, i0, a.rows, a.v, a.v, from, sums, lane);
    if (gradient) store<R>(a.gQ + b * a.rows * a.d, i0, a.rows, a.d, a.d, from, sums, lane);
}

/* sum += x·y of four elements, in order. */
__device__ __forceinline__ void add_four(const float *x, const float *y, double &sum)
{
    const float4 p = tl_load4(x), q = tl_load4(y);
    sum = fma((double)p.x, (double)q.x, sum);
    sum = fma((double)p.y, (double)q.y, sum);
    sum = fma((double)p.z, (double)q.z, sum);
    sum = fma((double)p.w, (double)q.w, sum);
}

/* D of every query, by a chain like those of g·v. A thread owns a query; what it reads of a row at a time is VECTOR elements. Threads
 * that go through long rows side by side read of more lines at once than the first cache keeps, and so from each line several
 * times: there (STAGED) the block copies 32 columns of its queries at a time into shared memory, whose rows are 36 apart, so that
 * 8 lanes that read four elements each read 32 banks. */
template <int VECTOR, bool STAGED>
__global__ void __launch_bounds__(128)
    dot_kernel(const float *g, const float *out, int64_t rows, int64_t width, double *dot)
{
    constexpr int COLUMNS = 32, PITCH = COLUMNS + 4, UNITS = COLUMNS / VECTOR;
    const int64_t first = (int64_t)blockIdx.x * 128, row = first + threadIdx.x;
    double sum = 0.0;
    if constexpr (STAGED) {
        __shared__ __align__(16) float xs[128 * PITCH], ys[128 * PITCH];
        for (int64_t from = 0; from < width; from += COLUMNS) {
            const int column = (int)threadIdx.x % UNITS * VECTOR;
            __syncthreads(); /* the columns before have been used */
#pragma unroll 8
            for (int r = (int)threadIdx.x / UNITS; r < 128; r += 128 / UNITS) {
                const bool present = first + r < rows && from + column < width;
                const int64_t at = present ? (first + r) * width + from + column : 0;
                tl_copy_async<4 * VECTOR>(xs + r * PITCH + column, g + at, present);
                tl_copy_async<4 * VECTOR>(ys + r * PITCH + column, out + at, present);
            }
            tl_copy_commit();
            tl_copy_wait<0>();
            __syncthreads();
            const float *const x = xs + threadIdx.x * PITCH, *const y = ys + threadIdx.x * PITCH;
            TL_UNROLL_FOR (int c = 0; c < COLUMNS; c += 4) /* zeros behind the last column add nothing */
                add_four(x + c, y + c, sum);
        }
    } else {
        const float *const x = g + row * width, *const y = out + row * width;
#pragma unroll 8
        for (int64_t c = 0; c < width && row < rows; c += VECTOR)
            if constexpr (VECTOR == 4)
                add_four(x + c, y + c, sum);
            else
                sum = fma((double)x[c], (double)y[c], sum);
    }
    if (row < rows) dot[row] = sum;
}

/* ---- segments that were several blocks' work ----------------------------------------------------------------------- */

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
    float *const to = !BACKWARD ? a.result + at * a.v : a.gQ ? a.gQ + at * a.d : nullptr;
    for (int64_t c = threadIdx.x % 32; c < width && to; c += 32) {
        const double x = join(c) / total;
        to[c] = (float)(BACKWARD ? x * (double)a.scale : x) + 0.0f;
    }
}

/* Adds the parts of the keys, in order. A thread owns an element of a gradient, `width` to a key from column `from` of
 * the parts on. */
__global__ void __launch_bounds__(128)
    add_key_kernel(const Args a, int segments, int64_t from, int64_t width, double scale, float *to)
{
    const int64_t i = (int64_t)blockIdx.x * 128 + threadIdx.x, keys = a.members * a.keys;
    if (i >= keys * width) return;
    const double *const part = a.parts + i / width * a.pitch + from + i % width;
    double sum = *part;
#pragma unroll 8
    for (int s = 1; s < segments; s++)
        sum += part[s * keys * a.pitch];
    to[i] = (float)(sum * scale) + 0.0f;
}

/* ---- launches ---------------------------------------------------------------------------------------------------- */

/* The length of a segment of the sums of `rows` rows. */
int64_t segment_of(tl_context *ctx, int64_t rows, int64_t others, int64_t least)
{
    return tl_is_reproducible(ctx) ? tl_chain_segment(others) : terms_of_block(rows, others, least);
}

/* The same of the pass over keys. Where many queries share few keys, blocks that each take their share of them are as many as the
 * device runs at once, or a few more, and where a window opens more queries to some keys than to others most wait for the
 * last: so in the mode `fast` segments are about a quarter as long, but not so short that their sums, which go through memory,
 * would count. */
int64_t segment_of_keys(tl_context *ctx, const Args &a)
{
    constexpr int64_t LEAST = 2048, BLOCKS = 512;
    const int64_t segment = segment_of(ctx, a.keys, a.rows, 256), blocks = tl_ceil_div(a.keys, 64);
    if (tl_is_reproducible(ctx) || segment <= LEAST) return segment;
    const int64_t shorter = tl_ceil_div(tl_ceil_div(a.rows, tl_ceil_div(BLOCKS, blocks)), 128) * 128;
    return std::min(segment, std::max(shorter, LEAST));
}

/* What a pass is about: blocks of C::ROWS of the `rows` of each member, which go through `others`, times the chunks of
 * results of `width` elements, of `arrays` arrays; `pitch` numbers of a row are left where segments are several blocks'
 * work. */
struct Pass {
    int64_t rows, others, width, arrays, pitch;
};

/* Whether the segments of a pass are several blocks' work: where blocks would not fill the device twice. The segments
 * of the mode `reproducible` may be many to a row, and their sums many times as large as the arrays: there where blocks
 * are very few. */
template <class C> bool splits(tl_context *ctx, const Args &a, const Pass &pass)
{
    const int64_t blocks = a.members * tl_ceil_div(pass.rows, C::ROWS), sms = tl_cuda_sms(ctx);
    return pass.others > a.segment && blocks < (tl_is_reproducible(ctx) ? sms : 2 * C::BLOCKS * sms);
}

/* Whether so many rows to a block leave enough blocks, and few of its rows empty. */
template <class C> bool fills(tl_context *ctx, const Args &a, const Pass &pass)
{
    const int64_t segments = splits<C>(ctx, a, pass) ? tl_ceil_div(pass.others, a.segment) : 1;
    return pass.rows > C::ROWS / 2 &&
           a.members * tl_ceil_div(pass.rows, C::ROWS) * segments >= (int64_t)tl_cuda_sms(ctx);
}

/* Then `join` gets the arguments and the number of segments. */
template <class C, class K, class Join>
int32_t launch(tl_context *ctx, const char *name, K kernel, Args a, size_t shared, const Pass &pass, Join join)
{
    a.blocks = (uint32_t)tl_ceil_div(pass.rows, C::ROWS);
    a.of_d = make_walk<typename C::Keys>(a.d, a.wide_d), a.of_v = make_walk<typename C::Values>(a.v, a.wide_v);
    const int64_t chunks = chunks_of<C>(pass.width);
    const int64_t blocks = a.members * a.blocks;
    if (blocks == 0) return TORCHLEAN_OK;
    const bool split = splits<C>(ctx, a, pass);
    const int64_t segments = split ? tl_ceil_div(pass.others, a.segment) : 1;
    tl_scratch<double> scratch(ctx);
    if (split) {
        TL_TRY(scratch.allocate(segments * a.members * pass.rows * pass.pitch));
        a.parts = scratch, a.pitch = pass.pitch;
    } else if (pass.others > a.segment) {
        TL_TRY(scratch.allocate(pass.arrays * blocks * std::min(chunks, TL_CHUNKS_MOST) * C::THREADS * C::SUMS));
        a.totals = scratch;
    }
    TL_TRY(launch_chunks(a.chunk, chunks, dim3((unsigned)blocks, 1, (unsigned)segments),
                         [&](dim3 grid) { return tl_launch_shared(ctx, name, kernel, grid, C::THREADS, shared, a); }));
    return split ? join(a, (int)segments) : (int32_t)TORCHLEAN_OK;
}

/* Fewer rows to a block where there would be too few blocks. */
template <class LARGE, class SMALL, bool BACKWARD> int32_t query_pass(tl_context *ctx, Args a)
{
    const char *const name = BACKWARD ? "attention_chain_bwd" : "attention_chain";
    const int64_t width = !BACKWARD ? a.v : a.gQ ? a.d : 0;
    const Pass pass = {a.rows, a.keys, width, 1, width + TL_ATTENTION_SUMS + 1};
    a.segment = segment_of(ctx, a.rows, a.keys, 512);
    auto join = [&](const Args &a, int segments) {
        return tl_launch(ctx, name, join_query_kernel<BACKWARD>, tl_grid(a.members * a.rows, 4), 128, a, segments);
    };
    if (fills<LARGE>(ctx, a, pass))
        return launch<LARGE>(ctx, name, query_kernel<LARGE, BACKWARD>, a, query_shared<LARGE, BACKWARD>(), pass, join);
    return launch<SMALL>(ctx, name, query_kernel<SMALL, BACKWARD>, a, query_shared<SMALL, BACKWARD>(), pass, join);
}

template <class C, bool KEYS, bool VALUES> int32_t key_pass(tl_context *ctx, Args a, const Pass &both)
{
    const int64_t d = KEYS ? a.d : 0, v = VALUES ? a.v : 0;
    const Pass pass = {both.rows, both.others, d > v ? d : v, (int)KEYS + (int)VALUES, d + v};
    const Window window = window_of(a);
    if (!a.limited || a.members * a.rows == 0 || a.keys - (window.end - window.first) < C::ROWS ||
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
                             (int64_t)0, d, (double)a.scale, a.gK));
        return !VALUES ? (int32_t)TORCHLEAN_OK
                       : tl_launch(ctx, "attention_chain_bwd", add_key_kernel, tl_grid(keys * v, 128), 128, a, segments,
                                   d, v, 1.0, a.gV);
    };
    return launch<C>(ctx, "attention_chain_bwd", key_kernel<C, KEYS, VALUES>, a, key_shared<C>(), pass, add);
}

/* Both gradients at once where a thread's registers hold their sums. */
template <class C, bool BOTH> int32_t key_passes(tl_context *ctx, const Args &a, const Pass &pass)
{
    if constexpr (BOTH)
        if (a.gK && a.gV) return key_pass<C, true, true>(ctx, a, pass);
    if (a.gK) TL_TRY((key_pass<C, true, false>(ctx, a, pass)));
    return a.gV ? key_pass<C, false, true>(ctx, a, pass) : (int32_t)TORCHLEAN_OK;
}

template <class LARGE, class SMALL, bool BOTH> int32_t key_passes(tl_context *ctx, Args a)
{
    const Pass pass = {a.keys, a.rows, 0, 0, 0};
    a.segment = segment_of_keys(ctx, a);
    return fills<LARGE>(ctx, a, pass) ? key_passes<LARGE, BOTH>(ctx, a, pass) : key_passes<SMALL, BOTH>(ctx, a, pass);
}

/* Both passes of all three gradients, of keys and values of unlike lengths. */
template <class QUERIES, class FEW_QUERIES, class KEYS, class FEW_KEYS> int32_t pair_passes(tl_context *ctx, Args a)
{
    TL_TRY((query_pass<QUERIES, FEW_QUERIES, true>(ctx, a)));
    const Pass pass = {a.keys, a.rows, 0, 0, 0};
    a.segment = segment_of_keys(ctx, a);
    return fills<KEYS>(ctx, a, pass) ? key_pass<KEYS, true, true>(ctx, a, pass)
                                     : key_pass<FEW_KEYS, true, true>(ctx, a, pass);
}

/* Where the shorter of the two has at most 32 elements and the longer one more, up to 128: one pass over keys then makes both
 * gradients. */
int32_t pair_passes(tl_context *ctx, const Args &a)
{
    constexpr int S = 32, HALF = 16; /* tiles of 16 queries where sums take most of the registers */
    if (a.v > 64)
        return pair_passes<Pair<S, 128, 4, 3, 1>, Pair<S, 128, 2, 5, 1>, Pair<S, 128, 4, 2, 2, HALF>,
                           Pair<S, 128, 2, 4, 1, HALF>>(ctx, a);
    if (a.d > 64)
        return pair_passes<Pair<128, S, 4, 2, 1>, Pair<128, S, 2, 3, 2>, Pair<128, S, 4, 2, 2, HALF>,
                           Pair<128, S, 2, 4, 1, HALF>>(ctx, a);
    if (a.v > S)
        return pair_passes<Pair<S, 64, 4, 3, 2>, Pair<S, 64, 2, 6, 1>, Pair<S, 64, 4, 2, 2>, Pair<S, 64, 2, 4, 1>>(ctx,
                                                                                                                   a);
    return pair_passes<Pair<64, S, 4, 2, 2>, Pair<64, S, 2, 4, 2>, Pair<64, S, 4, 2, 2>, Pair<64, S, 2, 4, 1>>(ctx, a);
}

/* Up to so many queries to a member, as when a model writes one token after the other, tiles of 8: of 32 most would be empty. Keys
 * are then read once, and the sums of a few queries leave room for more blocks. */
constexpr int64_t FEW_QUERIES = 16;
template <int DP, int BLOCKS> using FewQueries = Tiles<DP, 1, 2, BLOCKS, 1, false, 8>;

Args make_args(const Geometry &of, const float *Q, const float *K, const float *V)
{
    Args a = {};
    static_cast<Geometry &>(a) = of;
    a.Q = Q, a.K = K, a.V = V;
    a.wide_d = a.d % 4 == 0 && tl_aligned4(Q) && tl_aligned4(K);
    a.wide_v = a.v % 4 == 0 && tl_aligned4(V);
    return a;
}

} /* namespace */

int32_t chain_forward(tl_context *ctx, const Geometry &of, const float *Q, const float *K, const float *V, float *out)
{
    Args a = make_args(of, Q, K, V);
    a.result = out;
    if (a.members * a.rows == 0 || a.v == 0) return TORCHLEAN_OK;
    tl_scratch<uint8_t> finite(ctx);
    if (a.limited) {
        TL_TRY(finite.allocate(a.members * tl_ceil_div(a.keys, TILE)));
        TL_TRY(scan(ctx, a, V, a.keys, a.v, finite));
        a.finite_v = finite;
    }
    const int64_t most = a.d > a.v ? a.d : a.v;
    return most <= 32    ? query_pass<Tiles<32, 1, 4, 3, 2>, Tiles<32, 1, 2, 6, 2>, false>(ctx, a)
           : most <= 64  ? query_pass<Tiles<64, 1, 4, 3, 2>, Tiles<64, 1, 2, 5, 2>, false>(ctx, a)
           : most <= 128 ? query_pass<Tiles<128, 1, 4, 2, 2>, Tiles<128, 1, 2, 2, 2>, false>(ctx, a)
                         : query_pass<Tiles<128, 1, 4, 2, 1, true>, Tiles<128, 1, 4, 2, 1, true>, false>(ctx, a);
}

int32_t chain_backward(tl_context *ctx, const Geometry &of, const float *Q, const float *K, const float *V,
                       const float *out, const float *g, float *gQ, float *gK, float *gV)
{
    Args a = make_args(of, Q, K, V);
    a.out = out, a.g = g, a.gQ = a.d > 0 ? gQ : nullptr, a.gK = a.d > 0 ? gK : nullptr, a.gV = a.v > 0 ? gV : nullptr;
    a.wide_v = a.wide_v && tl_aligned4(g);
    const int64_t all = a.members * a.rows, most = a.d > a.v ? a.d : a.v;
    const int64_t of_keys = a.members * tl_ceil_div(a.keys, TILE), of_rows = a.members * tl_ceil_div(a.rows, TILE);
    tl_scratch<char> scratch(ctx);
    TL_TRY(scratch.allocate((int64_t)sizeof(double) * 3 * all + of_keys + 2 * of_rows));
    a.reference = reinterpret_cast<double *>((char *)scratch);
    a.inverse = a.reference + all;
    a.dot = a.inverse + all;
    if (a.limited) {
        uint8_t *const finite = reinterpret_cast<uint8_t *>(a.dot + all);
        TL_TRY(scan(ctx, a, K, a.keys, a.d, finite));
        TL_TRY(scan(ctx, a, Q, a.rows, a.d, finite + of_keys));
        TL_TRY(scan(ctx, a, g, a.rows, a.v, finite + of_keys + of_rows));
        a.finite_k = finite, a.finite_q = finite + of_keys, a.finite_g = finite + of_keys + of_rows;
        a.settled = finite; /* the flags of keys are for the pass over queries alone */
    }
    /* STAGED beyond two sectors of a line */
    const bool wide = a.v % 4 == 0 && tl_aligned4(g) && tl_aligned4(out);
    const auto dot = a.v > 16 ? (wide ? dot_kernel<4, true> : dot_kernel<1, true>)
                              : (wide ? dot_kernel<4, false> : dot_kernel<1, false>);
    if (all > 0) TL_TRY(tl_launch(ctx, "attention_chain_bwd", dot, tl_grid(all, 128), 128, g, out, all, a.v, a.dot));
    const int64_t least = a.d < a.v ? a.d : a.v;
    if (a.gQ && a.gK && a.gV && a.rows > FEW_QUERIES && least <= 32 && most > 32 && most <= 128)
        return pair_passes(ctx, a);
    TL_TRY((most <= 8     ? query_pass<Tiles<8, 1, 4, 3, 2>, Tiles<8, 1, 2, 6, 2>, true>(ctx, a)
            : most <= 32  ? query_pass<Tiles<32, 1, 4, 3, 2>, Tiles<32, 1, 2, 6, 2>, true>(ctx, a)
            : most <= 64  ? query_pass<Tiles<64, 1, 4, 2, 2>, Tiles<64, 1, 2, 4, 2>, true>(ctx, a)
            : most <= 128 ? query_pass<Tiles<128, 1, 4, 2, 1>, Tiles<128, 1, 2, 2, 2>, true>(ctx, a)
                          : query_pass<Tiles<64, 1, 4, 1, 1, true>, Tiles<64, 1, 4, 1, 1, true>, true>(ctx, a)));
    if (a.rows <= FEW_QUERIES && most <= 128)
        return most <= 8    ? key_passes<FewQueries<8, 10>, FewQueries<8, 10>, true>(ctx, a)
               : most <= 32 ? key_passes<FewQueries<32, 6>, FewQueries<32, 6>, true>(ctx, a)
               : most <= 64 ? key_passes<FewQueries<64, 4>, FewQueries<64, 4>, true>(ctx, a)
                            : key_passes<FewQueries<128, 4>, FewQueries<128, 4>, false>(ctx, a);
    return most <= 8     ? key_passes<Tiles<8, 1, 4, 3, 2>, Tiles<8, 1, 2, 6, 2>, true>(ctx, a)
           : most <= 32  ? key_passes<Tiles<32, 1, 4, 2, 2>, Tiles<32, 1, 2, 4, 2>, true>(ctx, a)
           : most <= 64  ? key_passes<Tiles<64, 1, 4, 2, 1>, Tiles<64, 1, 2, 4, 1>, true>(ctx, a)
           : most <= 128 ? key_passes<Tiles<128, 1, 4, 2, 1>, Tiles<128, 1, 2, 3, 1>, false>(ctx, a)
                         : key_passes<Tiles<64, 1, 4, 1, 1, true>, Tiles<64, 1, 4, 1, 1, true>, false>(ctx, a);
}

} /* namespace attention */
