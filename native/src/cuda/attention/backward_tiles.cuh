/* What the backward passes on tensor cores share: attention/backward_mma.cu and attention/relay.cu. */
#pragma once

#include "cuda/attention/backward.cuh"
#include "cuda/attention/mma_tiles.cuh"

namespace attention {

/* D of the lane's queries: a chain in each of the row's four lanes, then the lanes. */
template <class C>
__device__ __forceinline__ void dot_products(float (&dot)[C::R], const float *g, const float *out, int64_t i0,
                                             const Problem &p, const Lane &lane)
{
    TL_UNROLL_FOR (int r = 0; r < C::R; r++) {
        const int64_t row = i0 + lane.row(r);
        const float *x = g + row * p.d, *y = out + row * p.d;
        float sum = 0.0f;
        if (row < p.n)
#pragma unroll 4
            for (int c = lane.t; c < (int)p.d; c += 4)
                sum = fmaf(x[c], y[c], sum);
        dot[r] = tl_fold_group<tl_sum_op, 4>(sum);
    }
}

/* Reads the mask of queries i0 .. i0+TILE-1 and the warp's 16 keys, j0 the block's first, to a word of queries for each
 * key of the block: two queries at a time, each 16 lanes that share a line. Returns whether any is allowed. */
template <class C>
__device__ __forceinline__ bool read_key_words(uint32_t *bits, const Problem &p, int64_t b, int64_t i0, int64_t j0,
                                               const Lane &lane)
{
    static_assert(C::M == 1, "16 keys to a warp");
    const int upper = threadIdx.x / 16 % 2, key = threadIdx.x % 16;
    const int64_t i = i0 + upper, j = j0 + lane.first + key;
    const float *from = p.mask + (b * p.n + i) * p.n + j;
    uint32_t word = 0, any = 0;
    TL_UNROLL_FOR (int half = 0; half < 2; half++) {
        float x[8];
        TL_UNROLL_FOR (int q = 0; q < 8; q++) {
            const int k = 16 * half + 2 * q;
            x[q] = j < p.n && i + k < p.n ? from[k * p.n] : 0.0f;
        }
        TL_UNROLL_FOR (int q = 0; q < 8; q++) {
            const uint32_t two = __ballot_sync(0xffffffffu, !(x[q] == 0.0f));
            word |= ((two >> key & 1) | (two >> (16 + key) & 1) << 1) << (16 * half + 2 * q);
            any |= two;
        }
    }
    if (upper == 0) bits[lane.first + key] = word;
    return any != 0;
}

/* The first query from i on with a tile that counts for the block's keys; the mask of each team's tile, which lies in
 * memory, is then in its part of words[]. It is a barrier, or several. */
template <class C>
__device__ __forceinline__ int64_t next_queries(int64_t i, uint32_t *words, const BackwardArgs &a, int64_t b,
                                                int64_t j0, const Lane &lane)
{
    const Problem &p = a.p;
    for (; i < p.n; i += C::TILES) {
        const int64_t of_team = i + lane.team * TILE, row = of_team + threadIdx.x % 32;
        const bool filled = p.mode == FILL && row < p.n && !(a.base[b * p.n + row] > TL_FILL_VANISHES);
        if (__syncthreads_or(read_key_words<C>(words + lane.team * C::ROWS, p, b, of_team, j0, lane) || filled)) break;
    }
    return i;
}

/* Products of the lane's keys and a tile of queries to weights. `statistics`: m of the tile's queries, TILES further 1/Σ
 * and TILES further D; `bits`: words of queries for each key; `ahead`: how far the warp's first key is after the first
 * query, under a causal mask. */
template <class C>
__device__ __forceinline__ void key_weights(float (&s)[C::M][4][4], const Problem &p, const float *statistics,
                                            const uint32_t *bits, int ahead, const Lane &lane)
{
    const float *const base = statistics + 2 * lane.t;
    const float blocked = p.mode == FILL ? TL_FILL_SCORE : -TL_INF;
    Words<C> words;
    TL_UNROLL_FOR (int r = 0; r < C::R; r++)
        words[r] = p.mode == FILL || p.mode == HARD ? bits[lane.row(r)]
                   : p.mode == CAUSAL               ? ~low_bits(ahead + lane.row(r) - lane.first)
                                                    : 0xffffffffu;
    TL_UNROLL_FOR (int n = 0; n < 4; n++)
        TL_UNROLL_FOR (int e = 0; e < 2; e++) {
            const float most = base[8 * n + e], over = base[C::TILES + 8 * n + e];
            TL_UNROLL_FOR (int r = 0; r < C::R; r++) {
                float &x = s[r / 2][n][r % 2 * 2 + e];
                x = allows(words[r] >> 2 * lane.t, n, e) ? x * p.scale : blocked;
                /* no query's maximum is below its scores, but rows that do not exist have none */
                x = scaled_weight(fminf(x - most, 0.0f)) * over;
            }
        }
}

/* t = s · (t - D), 0 where a fill blocks. */
template <class C>
__device__ __forceinline__ void key_slopes(float (&t)[C::M][4][4], const float (&s)[C::M][4][4], const Problem &p,
                                           const float *statistics, const uint32_t *bits, const Lane &lane)
{
    const float *const dots = statistics + 2 * C::TILES + 2 * lane.t;
    TL_UNROLL_FOR (int n = 0; n < 4; n++)
        TL_UNROLL_FOR (int e = 0; e < 2; e++) {
            const float dot = dots[8 * n + e];
            TL_UNROLL_FOR (int r = 0; r < C::R; r++) {
                const int at = r % 2 * 2 + e;
                t[r / 2][n][at] = s[r / 2][n][at] * (t[r / 2][n][at] - dot);
            }
        }
    if (p.mode == FILL) clear_blocked<C>(t, bits, lane);
}

} /* namespace attention */
