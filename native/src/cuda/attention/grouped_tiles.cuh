/* What the kernels of attention/grouped.cu share: their arguments, the terms of a block's sums, and tiles of scores of rows that
 * lie in shared memory whole or go through it in chunks. See attention/simt_tiles.cuh for who owns what of a product. */
#pragma once

#include "cuda/attention/rows.cuh"

namespace attention {
namespace grouped {

struct Args : Geometry {
    const float *Q, *K, *V, *out, *g;
    float *result, *gQ, *gK, *gV, *base, *inverse, *dot;
    bool wide_d, wide_v;
    const uint8_t *finite_k, *finite_v, *finite_q, *finite_g; /* per GRANULE rows, where limited */
    uint32_t blocks;                                          /* of a member */
    uint32_t chunk;                                           /* the launch's first one */
    int64_t part;                                             /* terms of a block's sums */
    Window open, stored; /* keys that any row may attend to; those whose sums attention/stored_weights.cu has made */
    float *parts; /* of every row of every part of the queries d sums, the greatest score and the sum of weights */
};

__device__ __forceinline__ int64_t first_term(const Args &a) { return blockIdx.z * a.part; }
__device__ __forceinline__ int64_t end_term(const Args &a, int64_t terms)
{
    return first_term(a) + a.part < terms ? first_term(a) + a.part : terms;
}

__device__ __forceinline__ int steps(int64_t width, int64_t from, int most)
{
    return (int)((width - from < most ? width - from : most) + 3) / 4;
}

/* Vectors of a result of `width` coordinates that a thread has, of the chunk that begins at `from`. */
template <class C> __device__ __forceinline__ int groups(int64_t width, int64_t from)
{
    return (int)((width - from < C::DP ? width - from : C::DP) + C::TX * C::VECTOR - 1) / (C::TX * C::VECTOR);
}

/* Starts copying, of a product over `width` coordinates, COLS rows of B (n_b rows) from j on and, where they are `fresh`, ROWS
 * rows of A from i on. Rows that go through shared memory in chunks are copied by scores(). */
template <class C>
__device__ __forceinline__ void start(float *As, const float *A, int64_t i, int64_t n_a, float *Bs, const float *B,
                                      int64_t j, int64_t n_b, int64_t width, bool wide, bool fresh)
{
    if constexpr (!C::MANY) {
        if (fresh) copy<C, C::ROWS>(As, A, i, n_a, width, wide, 0);
        copy<C, C::COLS>(Bs, B, j, n_b, width, wide, 0);
    }
}

/* s = A·Bᵀ of the same rows, which have arrived, or go through shared memory in chunks here. */
template <class C>
__device__ __forceinline__ void scores(float (&s)[C::RM][C::RK], float *As, const float *A, int64_t i, int64_t n_a,
                                       float *Bs, const float *B, int64_t j, int64_t n_b, int64_t width, bool wide)
{
    if constexpr (C::MANY) {
        for (int64_t k = 0; k < width; k += C::DP) {
            __syncthreads(); /* the product before has been made */
            copy<C, C::ROWS>(As, A, i, n_a, width, wide, k);
            copy<C, C::COLS>(Bs, B, j, n_b, width, wide, k);
            arrive();
            product<C>(As, Bs, steps(width, k, C::DP), s);
        }
    } else {
        product<C>(As, Bs, steps(width, 0, C::DP), s);
    }
}

/* The thread's products as scores, where the tile's keys begin at j0; they are the block's own rows if OF_KEYS, else the columns.
 * Bit RK·i + j of the result: a gradient passes. Most tiles have no pair that is blocked: of one look at each query, not of one at
 * each pair, and of code without branches, so that the scores of all pairs are in work at once. */
template <class C, bool OF_KEYS>
__device__ __forceinline__ uint64_t tile_scores(const Args &a, const Rows &limits, int64_t j0, float (&s)[C::RM][C::RK])
{
    static_assert(C::RM * C::RK <= 64, "a bit for each pair");
    const int tx = C::tx(), ty = C::ty();
    bool opens = true;
    TL_UNROLL_FOR (int q = 0; q < (OF_KEYS ? C::RK : C::RM); q++)
        opens &= limits.opens(a, OF_KEYS ? tx + C::TX * q : ty + C::TY * q, j0, j0 + (OF_KEYS ? C::ROWS : C::COLS));
    uint64_t open = opens ? ~(uint64_t)0 : 0;
    if (opens) {
        TL_UNROLL_FOR (int i = 0; i < C::RM; i++)
            TL_UNROLL_FOR (int j = 0; j < C::RK; j++)
                s[i][j] = tl_attention_score(s[i][j], a.scale);
        return open;
    }
    if (a.mode == UNMASKED) { /* two comparisons tell of a pair, without branches */
        constexpr int KEYS = OF_KEYS ? C::ROWS : C::COLS;
        const auto within = [=](int64_t key) { return key < j0 ? 0 : key - j0 < KEYS ? (int)(key - j0) : KEYS; };
        TL_UNROLL_FOR (int q = 0; q < (OF_KEYS ? C::RK : C::RM); q++) {
            const int query = OF_KEYS ? tx + C::TX * q : ty + C::TY * q;
            const int first = within(limits.first[query]), end = within(limits.end[query]);
            TL_UNROLL_FOR (int k = 0; k < (OF_KEYS ? C::RM : C::RK); k++) {
                const int i = OF_KEYS ? k : q, j = OF_KEYS ? q : k, key = OF_KEYS ? ty + C::TY * k : tx + C::TX * k;
                const bool passes = key >= first && key < end;
                s[i][j] = passes ? tl_attention_score(s[i][j], a.scale) : -TL_INF;
                open |= (uint64_t)passes << (C::RK * i + j);
            }
        }
        return open;
    }
    TL_UNROLL_FOR (int i = 0; i < C::RM; i++)
        TL_UNROLL_FOR (int j = 0; j < C::RK; j++) {
            const int row = ty + C::TY * i, column = tx + C::TX * j;
            bool shut;
            s[i][j] = limits.score(a, OF_KEYS ? column : row, j0 + (OF_KEYS ? row : column), s[i][j], &shut);
            open |= (uint64_t)!shut << (C::RK * i + j);
        }
    return open;
}

/* ---- tiles of the pass over keys --------------------------------------------------------------------------------- */

constexpr int STATISTICS = 3; /* of a query: its greatest score, what its weights are multiplied by, and D */

/* Whether the thread sees a row, of its share of the rows from .. to - 1, that counts even for keys that it may not attend to: one
 * of a granule that is not finite, or whose weights are NaN, blocked or not. */
__device__ __forceinline__ bool counts_everywhere(const Args &a, int64_t b, int64_t from, int64_t to)
{
    bool counts = false;
    for (int64_t row = from + (int64_t)threadIdx.x * GRANULE; row < to; row += (int64_t)blockDim.x * GRANULE)
        counts |= !finite_rows<GRANULE>(a.finite_q, a.rows, b, row) ||
                  !finite_rows<GRANULE>(a.finite_g, a.rows, b, row);
#pragma unroll 4
    for (int64_t row = from + threadIdx.x; row < to; row += blockDim.x)
        counts |= isnan(a.inverse[b * a.rows + row]);
    return counts;
}

/* Whether no row of from .. to - 1 counts for the keys j0 .. j1 - 1, as one look at all rows tells of keys that none may attend
 * to; a barrier then. */
__device__ __forceinline__ bool no_row_counts(const Args &a, int64_t b, int64_t from, int64_t to, int64_t j0,
                                              int64_t j1)
{
    return a.limited && !a.open.meets(j0, j1) && !__syncthreads_or(counts_everywhere(a, b, from, to));
}

/* Whether the tile of queries from i0 on counts for the block's keys; a barrier, where limits are. */
template <class C>
__device__ __forceinline__ bool tile_counts(const Args &a, const Rows &limits, int64_t b, int64_t i0, int64_t j0)
{
    if (!a.limited) return true;
    const int64_t end = i0 + C::COLS < a.rows ? i0 + C::COLS : a.rows;
    return __syncthreads_or(limits.meet(C::COLS, j0, j0 + C::ROWS) || counts_everywhere(a, b, i0, end));
}

/* Starts copying what the tile of queries from i0 on needs of the pass before. */
template <class C>
__device__ __forceinline__ void copy_statistics(float *statistics, const Args &a, int64_t b, int64_t i0)
{
    const float *const of_rows[STATISTICS] = {a.base + b * a.rows, a.inverse + b * a.rows, a.dot + b * a.rows};
    for (int q = threadIdx.x; q < C::COLS; q += C::THREADS)
        TL_UNROLL_FOR (int k = 0; k < STATISTICS; k++) {
            const bool exists = i0 + q < a.rows;
            tl_copy_async<4>(statistics + k * C::COLS + q, of_rows[k] + (exists ? i0 + q : 0), exists);
        }
}

/* keep(key, query, P, dS) of the thread's pairs, of scores s, products t = V·g and the bits of the pairs that a gradient passes. */
template <class C, class Keep>
__device__ __forceinline__ void weigh_pairs(const float *statistics, int64_t queries, uint64_t open,
                                            const float (&s)[C::RM][C::RK], const float (&t)[C::RM][C::RK], Keep keep)
{
    TL_UNROLL_FOR (int j = 0; j < C::RK; j++) {
        const int query = C::tx() + C::TX * j;
        const bool exists = query < queries;
        const float *const of_query = statistics + query;
        const float m = of_query[0], over = of_query[C::COLS], D = of_query[2 * C::COLS];
        TL_UNROLL_FOR (int i = 0; i < C::RM; i++) {
            const float weight = tl_attention_weight(s[i][j] - m) * over;
            keep(C::ty() + C::TY * i, query, exists ? weight : 0.0f,
                 exists && (open >> (C::RK * i + j) & 1) ? weight * (t[i][j] - D) : 0.0f);
        }
    }
}

template <class C>
__device__ __forceinline__ void store(float *row, const float (&x)[C::RC], int64_t width, int64_t from)
{
    const bool wide = width % 4 == 0 && tl_aligned4(row);
    TL_UNROLL_FOR (int g = 0; g < C::RC / C::VECTOR; g++) {
        const int64_t c = from + (C::tx() + g * C::TX) * C::VECTOR;
        if constexpr (C::VECTOR == 4)
            if (wide) {
                if (c < width) tl_store4(row + c, x + 4 * g);
                continue;
            }
        TL_UNROLL_FOR (int e = 0; e < C::VECTOR; e++)
            if (c + e < width) row[c + e] = x[C::VECTOR * g + e];
    }
}

} /* namespace grouped */
} /* namespace attention */
