/* Tiles of attention in the mode `reproducible` on CUDA (attention/chain.cu): the sums of cpu/attention/chain.h, to the bit, as
 * products of warps in float64 (device/chain.cuh).
 *
 * A block owns ROWS rows of one member of the batch (queries; keys when the gradients of K and V are made), 16·M to a warp, and
 * goes through the other side in tiles of TILE rows. Both lie in shared memory as float32 and are widened when they are read.
 * Of a product with a tile a lane gets, of each 8 of its rows, numbers t and t + 4 (t = lane % 4): what it takes as the left
 * operand of the next product, in which the tile's rows are summed over. So weights never leave their lanes. Columns of
 * that product are numbered so that 32 lanes read 32 banks: result n of a lane's group g has column 4n + g % 4 + 16·(g / 4)
 * of every 32; of rows of 8 elements, 12 floats apart, column g, and two lanes share a bank.
 *
 * Rows of more than DP elements are gone through in chunks (MANY), and a block makes one chunk of a result. */
#pragma once

#include "cuda/attention/geometry.cuh"
#include "cuda/device/chain.cuh"
#include "formula/attention_chain.h"

namespace attention {
namespace chain {

constexpr int TILE = TL_ATTENTION_TILE;
static_assert(TILE == GRANULE, "a tile has one flag");

/* M: 16 rows each of a warp. BLOCKS: how many shall run on one multiprocessor. STAGES: tiles on their way or in use. */
template <int DP_, int M_, int WARPS_, int BLOCKS_, int STAGES_, bool MANY_ = false> struct Tiles {
    static constexpr int DP = DP_, M = M_, WARPS = WARPS_, BLOCKS = BLOCKS_, STAGES = STAGES_;
    static constexpr int P = TILE / 8; /* products of a tile */
    static constexpr bool MANY = MANY_;
    static_assert(DP == 8 || DP % 32 == 0, "ownership");
    static constexpr int ROWS = 16 * M * WARPS, THREADS = 32 * WARPS, LD = DP + 4, N = DP / 8, SUMS = 4 * M * N;
};

/* How a block goes through rows that are `pitch` apart in memory: every THREADS-th unit, of four elements where rows are wide.
 * From one to the next `columns` units and `offset` floats of shared memory further, or `step` of memory, and `wrap` or `jump` floats
 * more where that is beyond the end of a row. */
struct Walk {
    tl_fastdiv units; /* of a row */
    int columns, offset, wrap, step, jump, pitch;
    bool wide;
};

template <class C> Walk make_walk(int64_t width, bool wide, int64_t pitch)
{
    const int each = wide ? 4 : 1, units = width > 0 && !C::MANY ? (int)width / each : 1, columns = C::THREADS % units;
    const int rows = C::THREADS / units, ld = C::LD, apart = C::MANY ? 0 : (int)pitch;
    return {tl_fastdiv((uint64_t)units),
            columns,
            rows * ld + columns * each,
            ld - units * each,
            rows * apart + columns * each,
            apart - units * each,
            apart,
            wide};
}

struct Args : Geometry {
    const float *Q, *K, *V, *out, *g;
    float *result, *gQ, *gK, *gV;
    double *reference, *inverse, *dot; /* of every query: of its weights, 1/Σ of them, D */
    int64_t segment;                   /* of the sums of a pass */
    /* Where there are several segments. Where they are one block's work: SUMS of every thread for each array that is
     * summed. Where each is a block's (blockIdx.z): of every row of every segment the sums of each array, and of the
     * pass over queries what Softmax::keep_part leaves, `pitch` in all. */
    double *totals, *parts;
    int64_t pitch;
    bool wide_d, wide_v;
    Walk of_q, of_k, of_v, of_g; /* through rows of these */
    Layout at_q, at_k, at_v, at_out, at_g, at_gq, at_gk, at_gv;
    const uint8_t *finite_k, *finite_v, *finite_g; /* per tile, where limited */
    uint8_t *finite_q;   /* the same, of rows of Q whose weights are numbers, too, after the pass over queries */
    uint32_t blocks;     /* of a member */
    uint32_t chunk;      /* the launch's first one */
    uint8_t *settled;    /* of the pass over keys, per block: whether it has nothing left to do */
    const uint8_t *only; /* members whose flag is 0 are left out; NULL: none are */

    __device__ __forceinline__ bool leaves_out(int64_t b) const { return only && !only[b]; }
};

/* Where a lane stands. */
template <class C> struct Lane {
    int g, t, row0, key, column;
    __device__ __forceinline__ Lane()
        : g((int)threadIdx.x % 32 / 4), t((int)threadIdx.x % 4), row0((int)threadIdx.x / 32 * 16 * C::M),
          key(g / 2 + g % 2 * 4), column(C::N < 4 ? g : g % 4 + g / 4 * 16)
    {}
    __device__ __forceinline__ int row(int m, int h) const { return row0 + 16 * m + 8 * h + g; }
    /* The tile's row of element e of product n. */
    __device__ __forceinline__ int other(int n, int e) const { return 8 * n + t + 4 * e; }
    /* The column of element e of result n. */
    __device__ __forceinline__ int result(int n, int e) const
    {
        const int x = 2 * t + e;
        return C::N < 4 ? 8 * n + x : n / 4 * 32 + n % 4 * 4 + x % 4 + x / 4 * 16;
    }
};

/* The block's member once more, of which the compiler does not know that it is: what follows from it is computed anew where results
 * are stored, rather than kept in registers meanwhile. */
__device__ __forceinline__ int64_t again(int64_t b)
{
    uint32_t same = (uint32_t)b;
    asm volatile("" : "+r"(same));
    return same;
}

/* Where what a block goes through begins; in shared memory, for want of registers. */
struct alignas(16) Sources {
    const float *first, *second;
};

template <class C> using Products = double[C::M][C::P][4];
template <class C> using Sums = double[C::M][C::N][4];

template <class C> __device__ __forceinline__ void clear(Sums<C> &sums)
{
    TL_UNROLL_FOR (int m = 0; m < C::M; m++)
        TL_UNROLL_FOR (int n = 0; n < C::N; n++)
            TL_UNROLL_FOR (int i = 0; i < 4; i++)
                sums[m][n][i] = 0.0;
}

/* `present` of COUNT rows; the place in shared memory, whose rows are LD floats long, tells the row. */
template <class C, int COUNT, int VECTOR>
__device__ __forceinline__ void copy_units(float *to, const float *from, int present, const Walk &walk)
{
    uint32_t column;
    const int row = (int)walk.units.divmod(threadIdx.x, &column), own = (int)column * VECTOR;
    int at = row * C::LD + own, source = row * walk.pitch + own, c = (int)column;
#pragma unroll 4
    while (at < COUNT * C::LD) {
        const bool exists = at < present * C::LD;
        tl_copy_async<4 * VECTOR>(to + at, from + (exists ? source : 0), exists);
        c += walk.columns, at += walk.offset, source += walk.step;
        if (c >= (int)walk.units.divisor) c -= (int)walk.units.divisor, at += walk.wrap, source += walk.jump;
    }
}

/* Starts copying rows first .. first+COUNT-1 of n, up to DP elements each; rows that do not exist are 0. */
template <class C, int COUNT>
__device__ __forceinline__ void copy_rows(float *to, const float *x, int64_t first, int64_t n, int64_t width,
                                          const Walk &walk)
{
    if (width <= 0) return;
    constexpr int UNITS = C::DP / 4, STEP = C::THREADS / UNITS;
    const int rows = n - first < COUNT ? (int)(n - first) : COUNT;
    const float *const from = x + first * walk.pitch;
    if (STEP <= COUNT && walk.wide && width == C::DP && rows == COUNT) { /* nearly always */
        const int row = (int)threadIdx.x / UNITS, column = (int)threadIdx.x % UNITS * 4;
        const float *const own = from + row * walk.pitch + column;
        TL_UNROLL_FOR (int r = 0; r < COUNT; r += STEP)
            tl_copy_async<16>(to + (row + r) * C::LD + column, own + r * walk.pitch, true);
    } else if (walk.wide) {
        copy_units<C, COUNT, 4>(to, from, rows, walk);
    } else {
        copy_units<C, COUNT, 1>(to, from, rows, walk);
    }
}

/* Clears what lies between the ends of `count` rows and the next multiple of 4 elements, which is multiplied too. */
template <class C> __device__ __forceinline__ void clear_ends(float *rows, int count, int64_t width)
{
    for (int64_t c = width; c < (width + 3) / 4 * 4; c++)
        for (int r = threadIdx.x; r < count; r += C::THREADS)
            rows[r * C::LD + c] = 0.0f;
}

/* s += A·Bᵀ over `width` coordinates, for the warp's rows of A and the rows of a tile. */
template <class C>
__device__ __forceinline__ void multiply(Products<C> &s, const float *A, const float *B, int width, const Lane<C> &lane)
{
    const float *a = A + (lane.row0 + lane.g) * C::LD + lane.t, *b = B + lane.key * C::LD + lane.t;
#pragma unroll 4
    for (int k = 0; k < width; k += 4) {
        double x[C::M][2], y[C::P];
        TL_UNROLL_FOR (int m = 0; m < C::M; m++)
            TL_UNROLL_FOR (int h = 0; h < 2; h++)
                x[m][h] = (double)a[(16 * m + 8 * h) * C::LD + k];
        TL_UNROLL_FOR (int n = 0; n < C::P; n++)
            y[n] = (double)b[8 * n * C::LD + k];
        TL_UNROLL_FOR (int m = 0; m < C::M; m++)
            TL_UNROLL_FOR (int n = 0; n < C::P; n++)
                tl_chain_mma(s[m][n], x[m][0], x[m][1], y[n]);
    }
}

/* sums += W·B over the rows of a tile, for results FIRST .. END - 1 of the warp. */
template <class C, int FIRST, int END>
__device__ __forceinline__ void accumulate_some(Sums<C> &sums, const Products<C> &w, const float *b)
{
    TL_UNROLL_FOR (int q = 0; q < TILE / 4; q++)
        TL_UNROLL_FOR (int n = FIRST; n < END && n < C::N; n++) {
            const double y = (double)b[4 * q * C::LD + n / 4 * 32 + n % 4 * 4];
            TL_UNROLL_FOR (int m = 0; m < C::M; m++)
                tl_chain_mma(sums[m][n], w[m][q / 2][q % 2], w[m][q / 2][2 + q % 2], y);
        }
}

/* The same up to column `width`: 32 columns at a time, of which the first 8 are those of two results, and others of all. What is
 * left out is of columns that do not exist. */
template <class C, int CHUNK = 0>
__device__ __forceinline__ void accumulate(Sums<C> &sums, const Products<C> &w, const float *B, int width,
                                           const Lane<C> &lane)
{
    if constexpr (4 * CHUNK < C::N) {
        const float *const b = B + lane.t * C::LD + lane.column;
        if (!C::MANY && C::N >= 4 && width <= 32 * CHUNK + 8)
            accumulate_some<C, 4 * CHUNK, 4 * CHUNK + 2>(sums, w, b);
        else
            accumulate_some<C, 4 * CHUNK, 4 * CHUNK + 4>(sums, w, b);
        if (width > 32 * CHUNK + 32) accumulate<C, CHUNK + 1>(sums, w, B, width, lane);
    }
}

__device__ __forceinline__ int whole(int64_t width, int64_t from, int most)
{
    return (int)((width - from < most ? width - from : most) + 3) / 4 * 4;
}

/* Starts copying rows first .. first+COUNT-1 of x (n, width), which are `pitch` apart, coordinates from .. from+DP-1, those that exist and 0 up
 * to the next multiple of 4; rows that do not exist are 0. What is further right in shared memory stays as it is: it
 * only joins sums of columns that do not exist. */
template <class C, int COUNT>
__device__ __forceinline__ void copy_chunk(float *to, const float *x, int64_t first, int64_t n, int64_t width,
                                           bool wide, int64_t from, int64_t pitch)
{
    const float *source = x + first * pitch + from;
    const int64_t rows = n - first, rest = width - from;
    if (wide) {
#pragma unroll 4
        for (int t = threadIdx.x; t < COUNT * (C::DP / 4); t += C::THREADS) {
            const int r = t / (C::DP / 4), c = t % (C::DP / 4) * 4;
            if (c >= rest) continue;
            tl_copy_async<16>(to + r * C::LD + c, r < rows ? source + r * pitch + c : x, r < rows);
        }
        return;
    }
    const int end = (int)(rest < C::DP ? (rest + 3) / 4 * 4 : C::DP);
    auto start = [&](int r, int c) {
        const bool present = r < rows && c < rest;
        tl_copy_async<4>(to + r * C::LD + c, present ? source + r * pitch + c : x, present);
    };
    if constexpr (C::DP <= 32) { /* a thread copies elements of one column */
        const int c = (int)threadIdx.x % C::DP;
        if (c >= end) return;
#pragma unroll 4
        for (int r = (int)threadIdx.x / C::DP; r < COUNT; r += C::THREADS / C::DP)
            start(r, c);
    } else { /* a warp copies a row */
#pragma unroll 4
        for (int r = (int)threadIdx.x / 32; r < COUNT; r += C::THREADS / 32)
            for (int c = (int)threadIdx.x % 32; c < end; c += 32)
                start(r, c);
    }
}

/* Waits for all copies of the block. */
__device__ __forceinline__ void arrive()
{
    tl_copy_commit();
    tl_copy_wait<0>();
    __syncthreads();
}

/* s = A·Bᵀ for ROWS rows of A from i on and a tile of B from j on, which go through shared memory in chunks. */
template <class C>
__device__ __forceinline__ void multiply_chunks(Products<C> &s, float *As, const float *A, int64_t i, int64_t n_a,
                                                int64_t a_pitch, float *Bs, const float *B, int64_t j, int64_t n_b,
                                                int64_t b_pitch, int64_t width, bool wide, const Lane<C> &lane)
{
    for (int64_t k = 0; k < width; k += C::DP) {
        __syncthreads(); /* what was there has been used */
        copy_chunk<C, C::ROWS>(As, A, i, n_a, width, wide, k, a_pitch);
        copy_chunk<C, TILE>(Bs, B, j, n_b, width, wide, k, b_pitch);
        arrive();
        multiply<C>(s, As, Bs, whole(width, k, C::DP), lane);
    }
}

/* Columns `from` on of the block's rows, `width` of them in each of n rows of a result, which are `pitch` apart. */
template <class C, class Real>
__device__ __forceinline__ void store(Real *to, int64_t i0, int64_t n, int64_t width, int64_t pitch, int64_t from,
                                      const Sums<C> &x, const Lane<C> &lane)
{
    TL_UNROLL_FOR (int m = 0; m < C::M; m++)
        TL_UNROLL_FOR (int h = 0; h < 2; h++) {
            const int64_t row = i0 + lane.row(m, h);
            if (row >= n) continue;
            TL_UNROLL_FOR (int k = 0; k < C::N; k++)
                TL_UNROLL_FOR (int e = 0; e < 2; e++) {
                    const int64_t c = from + lane.result(k, e);
                    if (c < width) to[row * pitch + c] = (Real)x[m][k][2 * h + e] + (Real)0; /* no -0 */
                }
        }
}

/* Rows of the block's segment, of which member b has `rows`. */
__device__ __forceinline__ double *parts_of(const Args &a, int64_t b, int64_t rows)
{
    return a.parts + (blockIdx.z * a.members + b) * rows * a.pitch;
}

/* Where the block's segment begins, or the first of all. */
__device__ __forceinline__ int64_t first_term(const Args &a) { return a.parts ? blockIdx.z * a.segment : 0; }

/* The thread's numbers of array `which`, in scratch. */
template <class C> __device__ __forceinline__ double *totals_of(const Args &a, int which)
{
    const int64_t block = blockIdx.x + (int64_t)gridDim.x * blockIdx.y, blocks = (int64_t)gridDim.x * gridDim.y;
    return a.totals + (which * blocks + block) * (C::SUMS * C::THREADS) + threadIdx.x;
}

/* sums = those of the segments before, times `old`, + sums times `part`; kept unless they are the last. */
template <class C>
__device__ __forceinline__ void join(Sums<C> &sums, double *total, bool first, bool last, const double (&old)[C::M][2],
                                     const double (&part)[C::M][2])
{
    TL_UNROLL_FOR (int m = 0; m < C::M; m++)
        TL_UNROLL_FOR (int n = 0; n < C::N; n++)
            TL_UNROLL_FOR (int i = 0; i < 4; i++) {
                double *const own = total + ((m * C::N + n) * 4 + i) * C::THREADS;
                if (!first) sums[m][n][i] = *own * old[m][i / 2] + sums[m][n][i] * part[m][i / 2];
                if (!last) *own = sums[m][n][i];
            }
}

/* A lane's raw products x as scores, -inf where the pair of row(i) and key(i) is blocked, and the bits of those that no gradient
 * passes: EACH at a time, so that what they read of a mask is on its way together. */
template <int EACH, int COUNT, class Row, class Key>
__device__ __forceinline__ uint32_t limit_scores(float (&x)[COUNT], const Args &a, const Rows &limits, Row row, Key key)
{
    uint32_t shut = 0;
    TL_UNROLL_FOR (int from = 0; from < COUNT; from += EACH) {
        TL_UNROLL_FOR (int i = from; i < from + EACH; i++)
            shut |= (uint32_t)(key(i) < limits.first[row(i)] || key(i) >= limits.end[row(i)]) << i;
        if (a.mode == UNMASKED) {
            TL_UNROLL_FOR (int i = from; i < from + EACH; i++)
                x[i] = shut >> i & 1 ? -TL_INF : tl_attention_score(x[i], a.scale);
            continue;
        }
        float masks[EACH];
        TL_UNROLL_FOR (int e = 0; e < EACH; e++) {
            const int i = from + e;
            masks[e] = shut >> i & 1 ? 0.0f : a.mask[limits.mask[row(i)] + key(i)];
        }
        TL_UNROLL_FOR (int e = 0; e < EACH; e++) {
            const int i = from + e;
            const bool beyond = shut >> i & 1, added = a.mode == ADDED;
            const bool blocked = added ? masks[e] == -TL_INF : masks[e] == 0.0f;
            const float open = added ? tl_attention_biased(x[i], a.scale, masks[e]) : tl_attention_score(x[i], a.scale);
            x[i] = beyond || (blocked && a.mode != ZEROS_FILL) ? -TL_INF : blocked ? TL_FILL_SCORE : open;
            shut |= (uint32_t)blocked << i;
        }
    }
    return shut;
}

/* Weights of scores x, each relative to reference(i), EACH at a time without a branch between them, so that their chains overlap.
 * Few scores take the second way. */
template <int EACH, int COUNT, class Reference>
__device__ __forceinline__ void weigh(double (&w)[COUNT], const float (&x)[COUNT], Reference reference)
{
    TL_UNROLL_FOR (int from = 0; from < COUNT; from += EACH) {
        bool quick = true;
        TL_UNROLL_FOR (int i = from; i < from + EACH; i++) {
            w[i] = tl_weight_quick(x[i], tl_quick_reference(reference(i)));
            quick &= tl_is_quick(x[i]) != 0;
        }
        if (quick) continue;
        TL_UNROLL_FOR (int i = from; i < from + EACH; i++)
            if (!tl_is_quick(x[i])) w[i] = tl_weight_large(x[i], reference(i));
    }
}

/* ---- the running softmax of a lane's rows ------------------------------------------------------------------------ */

template <class C> struct Softmax {
    float top[C::M][2];
    double sum[C::M][2]; /* of every fourth weight */

    __device__ __forceinline__ Softmax()
    {
        TL_UNROLL_FOR (int m = 0; m < C::M; m++)
            TL_UNROLL_FOR (int h = 0; h < 2; h++)
                top[m][h] = -TL_INF, sum[m][h] = 0.0;
    }

    /* Turns products of the rows with the keys of a tile from j0 on into weights, and scales what was accumulated before. */
    __device__ __forceinline__ void step(Products<C> &s, Sums<C> &sums, uint32_t (&shut)[C::M][2], const Args &a,
                                         const Rows &limits, bool open, int64_t j0, const Lane<C> &lane)
    {
        TL_UNROLL_FOR (int m = 0; m < C::M; m++)
            TL_UNROLL_FOR (int h = 0; h < 2; h++) {
                constexpr int EACH = C::MANY ? 1 : 8; /* as many as registers hold */
                float x[8], most = top[m][h];
                shut[m][h] = 0;
                TL_UNROLL_FOR (int i = 0; i < 8; i++)
                    x[i] = (float)s[m][i / 2][2 * h + i % 2];
                if (open) {
                    TL_UNROLL_FOR (int i = 0; i < 8; i++)
                        x[i] = tl_attention_score(x[i], a.scale);
                } else {
                    shut[m][h] = limit_scores<EACH>(
                        x, a, limits, [&](int) { return lane.row(m, h); },
                        [&](int i) { return j0 + lane.other(i / 2, i % 2); });
                }
                TL_UNROLL_FOR (int i = 0; i < 8; i++)
                    most = x[i] > most ? x[i] : most;
                TL_UNROLL_FOR (int offset = 1; offset < 4; offset *= 2) {
                    const float other = __shfl_xor_sync(0xffffffffu, most, offset);
                    most = other > most ? other : most;
                }
                /* MANY has no registers for a reference meanwhile */
                const bool moved = C::MANY ? most != top[m][h]
                                           : tl_weight_reference(most) != tl_weight_reference(top[m][h]);
                if (__any_sync(0xffffffffu, moved)) {
                    const double factor = tl_weight_rescale(top[m][h], most);
                    TL_UNROLL_FOR (int n = 0; n < C::N; n++)
                        TL_UNROLL_FOR (int e = 0; e < 2; e++)
                            sums[m][n][2 * h + e] *= factor;
                    sum[m][h] *= factor;
                    top[m][h] = most;
                } else if (!C::MANY) {
                    top[m][h] = most;
                }
                const double reference = tl_weight_reference(most);
                double w[8];
                weigh<EACH>(w, x, [&](int) { return reference; });
                TL_UNROLL_FOR (int i = 0; i < 8; i++) {
                    s[m][i / 2][2 * h + i % 2] = w[i];
                    sum[m][h] += w[i];
                }
            }
    }

    /* Adds this to the rows of the segments before; the factors of both. */
    __device__ __forceinline__ void join(const Softmax &before, double (&old)[C::M][2], double (&part)[C::M][2])
    {
        TL_UNROLL_FOR (int m = 0; m < C::M; m++)
            TL_UNROLL_FOR (int h = 0; h < 2; h++) {
                const float most = top[m][h] > before.top[m][h] ? top[m][h] : before.top[m][h];
                old[m][h] = tl_weight_rescale(before.top[m][h], most);
                part[m][h] = tl_weight_rescale(top[m][h], most);
                sum[m][h] = before.sum[m][h] * old[m][h] + sum[m][h] * part[m][h];
                top[m][h] = most;
            }
    }

    /* Leaves the sums of weights and the greatest score of row (m, h) of a segment. */
    __device__ __forceinline__ void keep_part(int m, int h, const Lane<C> &lane, double *to) const
    {
        to[lane.t] = sum[m][h];
        if (lane.t == 0) to[TL_ATTENTION_SUMS] = (double)top[m][h];
    }

    /* What the sums of a row are divided by. */
    __device__ __forceinline__ double total(int m, int h) const
    {
        double x = sum[m][h];
        x += __shfl_xor_sync(0xffffffffu, x, 2);
        x += __shfl_xor_sync(0xffffffffu, x, 1);
        return tl_weight_total(top[m][h], x);
    }
};

/* The keys that any, and that each, of the rows i .. i + count - 1, which exist, may attend to, as far as limits go. They are those of
 * one head, or of its end and the begin of what follows; of whole heads between, all queries. */
struct Span {
    int64_t first, end, each_first, each_end;
    __device__ __forceinline__ Span(const Args &a, int64_t i, int64_t count)
        : first(INT64_MAX), end(0), each_first(0), each_end(a.keys)
    {
        if (!a.limited) {
            first = 0, end = a.keys;
            return;
        }
        const int64_t head = i < a.queries ? 0 : divide(i, a.queries), at = i - head * a.queries;
        const int64_t behind = count - (a.queries - at);
        add(a, at, behind > 0 ? a.queries : at + count);
        if (behind > 0) add(a, 0, behind < a.queries ? behind : a.queries);
    }
    /* Of the queries q .. to - 1 of a head, of which each may attend to one key more at either end than the one before. */
    __device__ __forceinline__ void add(const Args &a, int64_t q, int64_t to)
    {
        const int64_t low = q + a.offset - a.before, high = to + a.offset + a.after;
        const int64_t each_low = to - 1 + a.offset - a.before, each_high = q + 1 + a.offset + a.after;
        each_first = each_low > each_first ? each_low : each_first;
        each_end = each_high < each_end ? each_high : each_end;
        const int64_t from = low > 0 ? low : 0, until = high < a.keys ? high : a.keys;
        if (from >= until) return;
        first = from < first ? from : first;
        end = until > end ? until : end;
    }
    __device__ __forceinline__ bool meets(int64_t j, int64_t count) const { return j + count > first && j < end; }
    /* Whether the rows attend to all `count` keys from j on, and no mask says otherwise. */
    __device__ __forceinline__ bool open(const Args &a, int64_t j, int64_t count) const
    {
        return a.mode == UNMASKED && j >= each_first && j + count <= each_end;
    }
    /* The first tile from j on, up to `last`, that has open keys or values which are not finite; `plain`: all are finite. */
    __device__ __forceinline__ int64_t next(int64_t j, int64_t last, const Args &a, const uint8_t *finite, bool plain,
                                            int64_t b) const
    {
        if (!a.limited) return j;
        if (plain) {
            if (j + TILE <= first) j += (first - j) / TILE * TILE;
            return j < end ? j : last;
        }
        while (j < last && !meets(j, TILE) && finite_rows<TILE>(finite, a.keys, b, j))
            j += TILE;
        return j;
    }
};

/* The thread's share of whether all of the rows of tiles from .. to - 1, of the n of member b, are finite, as far as flags tell. */
template <class C>
__device__ __forceinline__ bool all_finite(const uint8_t *finite, int64_t n, int64_t b, int64_t from, int64_t to)
{
    bool yes = true;
    for (int64_t t = from + threadIdx.x; t < to; t += C::THREADS)
        yes &= finite_rows<TILE>(finite, n, b, t * TILE);
    return yes;
}

/* The passes, each compiled by itself: over queries (attention/chain_queries.cu), for the result, or for gQ and what the pass over keys
 * needs, and over keys (attention/chain_keys.cu), for gK and gV. */
int32_t query_pass(tl_context *ctx, const Args &a);
int32_t query_pass_bwd(tl_context *ctx, const Args &a);
int32_t key_pass(tl_context *ctx, const Args &a);

} /* namespace chain */
} /* namespace attention */
