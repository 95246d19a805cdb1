/* Tiles of attention on TF32 tensor cores, forward and backward, for members of the batch whose values all keep their
 * precision when split (device/tf32_split.cuh); the others are left to the kernels of attention/simt_tiles.cuh.
 *
 * A warp owns 16·M rows of the block (queries; keys when the gradients of K and V are made) and goes through the other
 * side in tiles of TILE. Lane 4g+t holds rows g and g + 8 of each 16 and of a tile the columns 8n + 2t, 8n + 2t + 1.
 * So a row belongs to four neighbouring lanes, and the columns it holds of a tile of scores are those that it needs as
 * left operand of the next product, once the mma's columns t and t + 4 of K stand for 2t and 2t + 1.
 *
 *   over d      both operands are read along d, 16 bytes at a time: of 32 coordinates lane t takes 8t .. 8t+7, two for
 *               each of four mma
 *   over TILE   the right operand is read across: lane g takes the coordinates 4g .. 4g+3 of 32, one for each of four
 *               mma, of the rows 8k + 2t and 8k + 2t + 1
 *
 * Rows are DP + 4 floats apart, an odd number of 16-byte units: eight lanes that are served together, two g and four t,
 * touch the units g + 2t, which differ modulo 8, in both cases.
 *
 * A sum over d or over the tiles is one of parts of 32 terms, in order, each made by 12 mma; fixed by the shape alone.
 *
 * Weights are kept 2^32 times too large. e^x underflows below 2^-149, so a weight that is not 0 is at least 2^-117: its
 * upper part is normal, and what its lower part may lose below 2^-126 is less than 2^-158 of the largest weight, which
 * is less than the 2^-149 that e^x itself loses. The same goes for a weight times (g·v - D). */
#pragma once

#include "cuda/attention/simt_tiles.cuh"
#include "cuda/device/tf32_split.cuh"
#include "cuda/device/vector.cuh"

namespace attention {

/* Columns of a tile: the longest part of a sum. */
constexpr int TILE = TL_DRAIN;
constexpr float WEIGHT_UNIT = 0x1p32f;

/* Rows of a member up to which four teams share the rows of a block (SPLIT below). It decides the order of sums, so the
 * batch has no part in it. */
constexpr int64_t TEAM_ROWS = 512;

/* BLOCKS: how many shall run on one multiprocessor. SPLIT: teams of warps that have the same rows and take the other
 * side's tiles in turn; their sums are joined in the order of the teams. */
template <int DP_, int M_, int WARPS_, int BLOCKS_, int SPLIT_ = 1> struct Tensor {
    static constexpr int DP = DP_, M = M_, WARPS = WARPS_, BLOCKS = BLOCKS_, SPLIT = SPLIT_;
    static constexpr int THREADS = 32 * WARPS, TEAM = THREADS / SPLIT, LD = DP + 4, ROWS = 16 * M * WARPS / SPLIT;
    static constexpr int GROUPS = DP / 32, R = 2 * M, TILES = TILE * SPLIT; /* columns of a turn of all teams */
    static constexpr bool MANY = false;
    static_assert(DP % 32 == 0, "ownership");
};

/* Where a lane stands: g and t of the above, the first of its warp's rows in the block, and its warp's team. */
struct Lane {
    int g, t, first, team;
    template <class C>
    __device__ __forceinline__ explicit Lane(C)
        : g(threadIdx.x % 32 / 4), t(threadIdx.x % 4), first((int)threadIdx.x % C::TEAM / 32 * (16 * C::M)),
          team(C::SPLIT == 1 ? 0 : (int)threadIdx.x / C::TEAM)
    {}
    /* of the block, for index r = 2m + h of the lane's rows */
    __device__ __forceinline__ int row(int r) const { return first + 8 * r + g; }
};

/* ---- products ---------------------------------------------------------------------------------------------------- */

/* s = the warp's rows of A times the TILE rows of B, of which the first 8·N count, over the coordinates below d. SWAPPED as in
 * tl_mma_split: with it S and its transpose have the same bits. */
template <class C, bool SWAPPED, int N = 4>
__device__ __forceinline__ void tile_product(float (&s)[C::M][4][4], const float *A, const float *B, int d,
                                             const Lane &lane)
{
    const float *a = A + (lane.first + lane.g) * C::LD + 8 * lane.t, *b = B + lane.g * C::LD + 8 * lane.t;
    TL_UNROLL_FOR (int m = 0; m < C::M; m++)
        TL_UNROLL_FOR (int n = 0; n < 4; n++)
            TL_UNROLL_FOR (int e = 0; e < 4; e++)
                s[m][n][e] = 0.0f;
#pragma unroll 1
    for (int c = 0; c < d; c += 32, a += 32, b += 32) {
        float part[C::M][N][4] = {};
        TL_UNROLL_FOR (int half = 0; half < 2; half++) {
            float4 x[C::M][2], y[N];
            TL_UNROLL_FOR (int m = 0; m < C::M; m++) {
                x[m][0] = tl_load4(a + 16 * m * C::LD + 4 * half);
                x[m][1] = tl_load4(a + (16 * m + 8) * C::LD + 4 * half);
            }
            TL_UNROLL_FOR (int n = 0; n < N; n++)
                y[n] = tl_load4(b + 8 * n * C::LD + 4 * half);
            TL_UNROLL_FOR (int k = 0; k < 2; k++) {
                uint32_t ahi[C::M][4], alo[C::M][4], bhi[N][2], blo[N][2];
                TL_UNROLL_FOR (int m = 0; m < C::M; m++)
                    TL_UNROLL_FOR (int h = 0; h < 2; h++) {
                        tl_split(k ? x[m][h].z : x[m][h].x, ahi[m][h], alo[m][h]);
                        tl_split(k ? x[m][h].w : x[m][h].y, ahi[m][h + 2], alo[m][h + 2]);
                    }
                TL_UNROLL_FOR (int n = 0; n < N; n++) {
                    tl_split(k ? y[n].z : y[n].x, bhi[n][0], blo[n][0]);
                    tl_split(k ? y[n].w : y[n].y, bhi[n][1], blo[n][1]);
                }
                tl_mma_split<SWAPPED>(part, ahi, alo, bhi, blo);
            }
        }
        TL_UNROLL_FOR (int m = 0; m < C::M; m++)
            TL_UNROLL_FOR (int n = 0; n < N; n++)
                TL_UNROLL_FOR (int e = 0; e < 4; e++)
                    s[m][n][e] += part[m][n][e];
    }
}

/* Weights as left operand. */
template <class C> struct Weights {
    uint32_t hi[4][C::M][4], lo[4][C::M][4];

    __device__ __forceinline__ explicit Weights(const float (&w)[C::M][4][4])
    {
        TL_UNROLL_FOR (int m = 0; m < C::M; m++)
            TL_UNROLL_FOR (int k = 0; k < 4; k++)
                TL_UNROLL_FOR (int e = 0; e < 4; e++) /* (g, 2t) (g+8, 2t) (g, 2t+1) (g+8, 2t+1) */
                    tl_split(w[m][k][e % 2 * 2 + e / 2], hi[k][m][e], lo[k][m][e]);
    }
};

/* The warp's rows of a result: of the 32 coordinates of a group, [j][2h + e] is 4·(2t + e) + j of row g + 8h. */
template <class C> using Sums = float[C::M][C::GROUPS][4][4];

/* Adds to part the weights times the TILE rows of X, of which it takes the coordinates of a group; the weights of others than
 * the first 8·K rows are 0. */
template <class C, int K = 4>
__device__ __forceinline__ void group_product(float (&part)[C::M][4][4], const Weights<C> &w, const float *X, int group,
                                              const Lane &lane)
{
    const float *x = X + 2 * lane.t * C::LD + 4 * lane.g + 32 * group;
    TL_UNROLL_FOR (int k = 0; k < K; k++) {
        const float4 y = tl_load4(x + 8 * k * C::LD);
        const float4 z = tl_load4(x + (8 * k + 1) * C::LD);
        uint32_t bhi[4][2], blo[4][2];
        tl_split(y.x, bhi[0][0], blo[0][0]);
        tl_split(z.x, bhi[0][1], blo[0][1]);
        tl_split(y.y, bhi[1][0], blo[1][0]);
        tl_split(z.y, bhi[1][1], blo[1][1]);
        tl_split(y.z, bhi[2][0], blo[2][0]);
        tl_split(z.z, bhi[2][1], blo[2][1]);
        tl_split(y.w, bhi[3][0], blo[3][0]);
        tl_split(z.w, bhi[3][1], blo[3][1]);
        tl_mma_split(part, w.hi[k], w.lo[k], bhi, blo);
    }
}

/* sums = factor · sums + weights times the TILE rows of X. Without RESCALE every factor is 1. */
template <class C, bool RESCALE>
__device__ __forceinline__ void tile_accumulate(Sums<C> &sums, const Weights<C> &w, const float *X, int d,
                                                const float (&factor)[C::R], const Lane &lane)
{
    TL_UNROLL_FOR (int group = 0; group < C::GROUPS; group++) {
        if (group > 0 && 32 * group >= d) break;
        float part[C::M][4][4] = {};
        group_product<C>(part, w, X, group, lane);
        TL_UNROLL_FOR (int m = 0; m < C::M; m++)
            TL_UNROLL_FOR (int j = 0; j < 4; j++)
                TL_UNROLL_FOR (int e = 0; e < 4; e++) {
                    float &sum = sums[m][group][j][e];
                    sum = RESCALE ? fmaf(sum, factor[2 * m + e / 2], part[m][j][e]) : sum + part[m][j][e];
                }
    }
}

/* Writes index r of the lane's rows to `row`, d elements. */
template <class C>
__device__ __forceinline__ void store_sums(float *row, const Sums<C> &sums, int r, const Problem &p, const Lane &lane)
{
    TL_UNROLL_FOR (int group = 0; group < C::GROUPS; group++)
        TL_UNROLL_FOR (int e = 0; e < 2; e++) {
            const int c = 32 * group + 4 * (2 * lane.t + e), at = r % 2 * 2 + e;
            const float (&v)[4][4] = sums[r / 2][group];
            if (p.wide) {
                if (c < p.d) tl_store4(row + c, make_float4(v[0][at], v[1][at], v[2][at], v[3][at]));
            } else {
                TL_UNROLL_FOR (int j = 0; j < 4; j++)
                    if (c + j < p.d) row[c + j] = v[j][at];
            }
        }
}

/* ---- weights and masks ------------------------------------------------------------------------------------------- */

/* WEIGHT_UNIT · tl_attention_weight(x), exactly where that does not underflow. x <= 0. */
__device__ __forceinline__ float scaled_weight(float x)
{
    const float rounder = TL_ROUNDER + 159.0f; /* 2^32 and the bias of the exponent */
    const float t = fmaf(x, TL_LOG2E, rounder), k = t - rounder;
    float r = fmaf(k, -TL_LN2_HI, x);
    r = fmaf(k, -TL_LN2_LO, r);
    const float r2 = r * r;
    const float p = 1.0f + fmaf(r2, tl_exp_tail(r, r2), r);
    return x < -104.0f ? 0.0f : p * tl_from_bits(tl_bits(t) << 23);
}

/* The mask of a tile for the lane's rows: 1 where it allows. */
template <class C> using Words = uint32_t[C::R];

/* Whether column 8n + 2t + e of a row is allowed; `word` is shifted right by 2t. */
__device__ __forceinline__ bool allows(uint32_t word, int n, int e) { return word >> (8 * n + e) & 1; }

/* The lowest `count` bits. */
__device__ __forceinline__ uint32_t low_bits(int count)
{
    return count >= 32 ? 0xffffffffu : count > 0 ? (1u << count) - 1 : 0;
}

/* ---- the softmax of the lane's queries, kept up to date ---------------------------------------------------------- */

template <class C> struct TensorSoftmax {
    float top[C::R], chain[C::R], factor[C::R]; /* chain: this lane's share of the sum, in WEIGHT_UNIT */

    __device__ __forceinline__ TensorSoftmax()
    {
        TL_UNROLL_FOR (int r = 0; r < C::R; r++) {
            top[r] = -TL_INF;
            chain[r] = 0.0f;
        }
    }

    /* Takes the scores of a tile in, turns them into weights and leaves in factor[] what multiplies earlier sums. */
    __device__ __forceinline__ void step(float (&s)[C::M][4][4])
    {
        TL_UNROLL_FOR (int r = 0; r < C::R; r++) {
            float most = top[r];
            TL_UNROLL_FOR (int n = 0; n < 4; n++)
                most = fmaxf(most, fmaxf(s[r / 2][n][r % 2 * 2], s[r / 2][n][r % 2 * 2 + 1]));
            most = tl_fold_group<tl_number_max_op, 4>(most);
            factor[r] = most > top[r] ? tl_attention_weight(top[r] - most) : 1.0f;
            top[r] = most;
        }
        TL_UNROLL_FOR (int r = 0; r < C::R; r++) {
            const float base = top[r] == -TL_INF ? 0.0f : top[r];
            float sum = 0.0f;
            TL_UNROLL_FOR (int n = 0; n < 4; n++)
                TL_UNROLL_FOR (int e = 0; e < 2; e++) {
                    float &x = s[r / 2][n][r % 2 * 2 + e];
                    x = scaled_weight(x - base);
                    sum += x;
                }
            chain[r] = fmaf(chain[r], factor[r], sum);
        }
    }

    /* What row r is divided by, in WEIGHT_UNIT; if all was blocked, 1 unit for sums that are 0. */
    __device__ __forceinline__ float total(int r)
    {
        const float sum = tl_fold_group<tl_sum_op, 4>(chain[r]);
        return top[r] == -TL_INF ? WEIGHT_UNIT : sum;
    }

    /* Whether one of the warp's rows that exist (of `rows` in the block) still gives weight to filled scores. */
    __device__ __forceinline__ bool fill_counts(int64_t rows, const Lane &lane)
    {
        bool any = false;
        TL_UNROLL_FOR (int r = 0; r < C::R; r++)
            any |= lane.row(r) < rows && !(top[r] > TL_FILL_VANISHES);
        return __any_sync(0xffffffffu, any);
    }
};

/* ---- teams ------------------------------------------------------------------------------------------------------- */

/* Team after team, visit(from) in the threads of team 0 with what the same thread of the other left by leave(to): COUNT
 * floats, TEAM apart, in the block's shared memory. True in team 0. */
template <class C, int COUNT, class Leave, class Visit>
__device__ __forceinline__ bool join_teams(float *shared, const Lane &lane, Leave leave, Visit visit)
{
    if constexpr (C::SPLIT > 1) {
        float *const place = shared + threadIdx.x % C::TEAM;
        __syncthreads();
        if (lane.team > 0) leave(place + (lane.team - 1) * (COUNT * C::TEAM));
        __syncthreads();
        if (lane.team > 0) return false;
#pragma unroll 1
        for (int other = 0; other < C::SPLIT - 1; other++)
            visit(place + other * (COUNT * C::TEAM));
    }
    return true;
}

/* visit(index, sum) for all of the lane's sums. */
template <class C, class Visit> __device__ __forceinline__ void each_sum(Sums<C> &sums, Visit visit)
{
    TL_UNROLL_FOR (int m = 0; m < C::M; m++)
        TL_UNROLL_FOR (int group = 0; group < C::GROUPS; group++)
            TL_UNROLL_FOR (int j = 0; j < 4; j++)
                TL_UNROLL_FOR (int e = 0; e < 4; e++)
                    visit(((m * C::GROUPS + group) * 4 + j) * 4 + e, sums[m][group][j][e]);
}
template <class C> constexpr int SUMS_OF = C::M * C::GROUPS * 16;

/* The softmax and (SUMS) the sums of all teams, in team 0's threads; true there. */
template <class C, bool SUMS>
__device__ __forceinline__ bool join_queries(float *shared, TensorSoftmax<C> &softmax, Sums<C> &sums, const Lane &lane)
{
    const auto leave = [&](float *to) {
        TL_UNROLL_FOR (int r = 0; r < C::R; r++) {
            to[2 * r * C::TEAM] = softmax.top[r];
            to[(2 * r + 1) * C::TEAM] = softmax.chain[r];
        }
        if constexpr (SUMS) each_sum<C>(sums, [&](int i, float &sum) { to[(2 * C::R + i) * C::TEAM] = sum; });
    };
    const auto join = [&](const float *from) {
        float other[C::R];
        TL_UNROLL_FOR (int r = 0; r < C::R; r++) {
            const float top = from[2 * r * C::TEAM], most = fmaxf(softmax.top[r], top);
            softmax.factor[r] = softmax.top[r] < most ? tl_attention_weight(softmax.top[r] - most) : 1.0f;
            other[r] = top < most ? tl_attention_weight(top - most) : 1.0f;
            softmax.top[r] = most;
            softmax.chain[r] = fmaf(softmax.chain[r], softmax.factor[r], from[(2 * r + 1) * C::TEAM] * other[r]);
        }
        if constexpr (SUMS)
            each_sum<C>(sums, [&](int i, float &sum) {
                const int r = i / (16 * C::GROUPS) * 2 + i % 4 / 2;
                sum = fmaf(sum, softmax.factor[r], from[(2 * C::R + i) * C::TEAM] * other[r]);
            });
    };
    return join_teams<C, 2 * C::R + (SUMS ? SUMS_OF<C> : 0)>(shared, lane, leave, join);
}

/* ---- masks of queries -------------------------------------------------------------------------------------------- */

/* Reads the mask of the warp's queries, i0 the block's first, and keys j0 .. j0+TILE-1, to a word for each row of the
 * block. Returns whether any is allowed. */
template <class C>
__device__ __forceinline__ bool read_words(uint32_t *bits, const Problem &p, int64_t b, int64_t i0, int64_t j0,
                                           const Lane &lane)
{
    const int64_t j = j0 + threadIdx.x % 32, first = i0 + lane.first;
    const float *from = p.mask + (b * p.n + first) * p.n + j;
    uint32_t any = 0;
#pragma unroll 1
    for (int r = 0; r < 16 * C::M; r += 16) {
        float x[16];
        TL_UNROLL_FOR (int i = 0; i < 16; i++)
            x[i] = j < p.n && first + r + i < p.n ? from[(r + i) * p.n] : 0.0f;
        TL_UNROLL_FOR (int i = 0; i < 16; i++) {
            const uint32_t word = __ballot_sync(0xffffffffu, !(x[i] == 0.0f));
            if (threadIdx.x % 32 == 0) bits[lane.first + r + i] = word;
            any |= word;
        }
    }
    return any != 0;
}

/* The words of the lane's queries, from bits[] or by the causal rule. */
template <class C>
__device__ __forceinline__ void query_words(Words<C> &words, const uint32_t *bits, const Problem &p, int64_t i0,
                                            int64_t j0, const Lane &lane)
{
    if (p.mode == CAUSAL) {
        const int least = (int)(i0 - j0) + 1; /* at most TILE off either side where it matters */
        TL_UNROLL_FOR (int r = 0; r < C::R; r++)
            words[r] = low_bits(least + lane.row(r));
    } else {
        TL_UNROLL_FOR (int r = 0; r < C::R; r++)
            words[r] = bits[lane.row(r)];
    }
}

enum Cover { NOTHING, SOME, ALL };

/* How much of a tile the mask leaves to the warp. */
template <class C>
__device__ __forceinline__ Cover query_cover(const uint32_t *bits, const Problem &p, int64_t i0, int64_t j0,
                                             const Lane &lane)
{
    if (p.mode == NO_MASK) return ALL;
    Words<C> words;
    query_words<C>(words, bits, p, i0, j0, lane);
    uint32_t any = 0, all = 0xffffffffu;
    TL_UNROLL_FOR (int r = 0; r < C::R; r++) {
        any |= words[r];
        all &= words[r];
    }
    return !__any_sync(0xffffffffu, any != 0) ? NOTHING : __all_sync(0xffffffffu, all == 0xffffffffu) ? ALL : SOME;
}

/* Raw products of the lane's queries and keys as scores: all are finite. */
template <class C>
__device__ __forceinline__ void tensor_scores(float (&s)[C::M][4][4], const Problem &p, Cover cover,
                                              const uint32_t *bits, int64_t i0, int64_t j0, const Lane &lane)
{
    TL_UNROLL_FOR (int m = 0; m < C::M; m++)
        TL_UNROLL_FOR (int n = 0; n < 4; n++)
            TL_UNROLL_FOR (int e = 0; e < 4; e++)
                s[m][n][e] *= p.scale;
    if (cover != ALL) {
        Words<C> words;
        query_words<C>(words, bits, p, i0, j0, lane);
        const float blocked = p.mode == FILL ? TL_FILL_SCORE : -TL_INF;
        TL_UNROLL_FOR (int r = 0; r < C::R; r++)
            TL_UNROLL_FOR (int n = 0; n < 4; n++)
                TL_UNROLL_FOR (int e = 0; e < 2; e++)
                    if (!allows(words[r] >> 2 * lane.t, n, e)) s[r / 2][n][r % 2 * 2 + e] = blocked;
    }
    if (p.n - j0 < TILE) {
        const int keys = (int)(p.n - j0);
        TL_UNROLL_FOR (int m = 0; m < C::M; m++)
            TL_UNROLL_FOR (int n = 0; n < 4; n++)
                TL_UNROLL_FOR (int e = 0; e < 4; e++)
                    if (8 * n + 2 * lane.t + e % 2 >= keys) s[m][n][e] = -TL_INF;
    }
}

/* 0 where the words of the lane's rows block. */
template <class C>
__device__ __forceinline__ void clear_blocked(float (&x)[C::M][4][4], const uint32_t *bits, const Lane &lane)
{
    TL_UNROLL_FOR (int r = 0; r < C::R; r++) {
        const uint32_t word = bits[lane.row(r)] >> 2 * lane.t;
        TL_UNROLL_FOR (int n = 0; n < 4; n++)
            TL_UNROLL_FOR (int e = 0; e < 2; e++)
                if (!allows(word, n, e)) x[r / 2][n][r % 2 * 2 + e] = 0.0f;
    }
}

/* The first key from j on with a tile that counts for the block; the mask of each team's tile is then in its part of
 * bits[]. With a mask in memory it is a barrier, or several. */
template <class C>
__device__ __forceinline__ int64_t next_tile(int64_t j, int64_t end, uint32_t *bits, const Problem &p, int64_t b,
                                             int64_t i0, TensorSoftmax<C> &softmax, const Lane &lane)
{
    if (p.mode == FILL || p.mode == HARD)
        for (; j < end; j += C::TILES)
            if (__syncthreads_or(read_words<C>(bits + lane.team * C::ROWS, p, b, i0, j + lane.team * TILE, lane) ||
                                 (p.mode == FILL && softmax.fill_counts(p.n - i0, lane))))
                break;
    return j;
}

} /* namespace attention */
