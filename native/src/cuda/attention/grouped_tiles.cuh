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
    int64_t part;                                             /* terms of a block's sums */
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
    const int tx = threadIdx.x % C::TX, ty = threadIdx.x / C::TX;
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
    TL_UNROLL_FOR (int i = 0; i < C::RM; i++)
        TL_UNROLL_FOR (int j = 0; j < C::RK; j++) {
            const int row = ty + C::TY * i, column = tx + C::TX * j;
            bool shut;
            s[i][j] = limits.score(a, OF_KEYS ? column : row, j0 + (OF_KEYS ? row : column), s[i][j], &shut);
            open |= (uint64_t)!shut << (C::RK * i + j);
        }
    return open;
}

template <class C>
__device__ __forceinline__ void store(float *row, const float (&x)[C::RC], int64_t width, int64_t from)
{
    TL_UNROLL_FOR (int g = 0; g < C::RC / C::VECTOR; g++) {
        const int64_t c = from + (threadIdx.x % C::TX + g * C::TX) * C::VECTOR;
        TL_UNROLL_FOR (int e = 0; e < C::VECTOR; e++)
            if (c + e < width) row[c + e] = x[C::VECTOR * g + e];
    }
}

} /* namespace grouped */
} /* namespace attention */
