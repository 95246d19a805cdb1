/* Attention on TF32 tensor cores where rows are few: a block has 32 or 64 of them, and its teams of warps take neighbouring
 * tiles of the other side. The results are those of the kernels of attention/mma_tiles.cuh with one team, to the bit, in
 * which a warp goes through all tiles in order: what a tile adds to a result depends on what comes before by the maximum
 * of the scores alone. So in a turn
 *
 *   scores    a team makes those of its tile and leaves the maximum of each row
 *   parts     the maxima, in order, say what the team's weights refer to; it leaves their product with its tile, a group
 *             of 32 coordinates after the other
 *   sums      eight threads own a row's sums, each a quad of every group, and add the parts of the teams in order
 *
 * or, forward where there are as many groups as teams,
 *
 *   weights   the maxima, in order, say what the team's weights refer to; it leaves them
 *   sums      a team owns a group of all sums and goes through the tiles of all teams in order
 *
 * with barriers between them, at which what was used is free for copies of the next turn. The sum of a row's weights is
 * four chains, as in attention/mma_tiles.cuh, where each belongs to one of the row's four lanes. A tile that the mask
 * blocks whole may be passed over or not: it adds +0 to sums, which are never -0. */
#pragma once

#include "cuda/attention/mma_tiles.cuh"
#include "cuda/attention/relay.cuh"

namespace attention {
namespace relay {

/* Two warps of 16 rows in each of four teams, or four. */
template <int DP, int WARPS = 8> using Relay = Tensor<DP, 1, WARPS, 1, 4>;

/* Parts of a group: of every team, 32 coordinates of every row, 36 floats apart, so that the eight lanes that are served
 * together touch different banks. There are two, of which one is written while the other is read. */
constexpr int PITCH = 36;
template <class C> constexpr int PARTS_OF = C::SPLIT * C::ROWS * PITCH;

/* What a turn leaves of each team's tile, in shared memory. */
template <class C> struct Turn {
    float most[C::SPLIT][C::ROWS], factor[C::SPLIT][C::ROWS], weights[C::SPLIT][C::ROWS][4];
    int counts[C::SPLIT][C::ROWS / 16]; /* whether a warp has parts */
};

/* The row that a thread owns sums of, and its quad of each group. */
template <class C> struct Owner {
    static constexpr int THREADS = 8;
    static_assert(C::THREADS == THREADS * C::ROWS && C::M == 1, "ownership");
    int row, quad;
    __device__ __forceinline__ Owner() : row((int)threadIdx.x / THREADS), quad((int)threadIdx.x % THREADS) {}
    __device__ __forceinline__ float4 part(const float *parts, int team) const
    {
        return tl_load4(parts + (team * C::ROWS + row) * PITCH + 4 * quad);
    }
};

/* ---- a turn ------------------------------------------------------------------------------------------------------ */

/* Leaves the maxima of the team's tile, of which the warp has scores if it `counts`. */
template <class C>
__device__ __forceinline__ void leave_most(Turn<C> &turn, const float (&s)[1][4][4], bool counts, const Lane &lane)
{
    TL_UNROLL_FOR (int r = 0; r < 2; r++) {
        float most = -TL_INF;
        TL_UNROLL_FOR (int n = 0; n < 4; n++)
            most = fmaxf(most, fmaxf(s[0][n][2 * r], s[0][n][2 * r + 1]));
        most = tl_fold_group<tl_number_max_op, 4>(most);
        if (lane.t == 0) turn.most[lane.team][lane.row(r)] = counts ? most : -TL_INF;
    }
}

/* Takes the maxima of all teams in, turns the scores of the team's tile into weights, and leaves their sums and the
 * factors of what was summed before. */
template <class C>
__device__ __forceinline__ void weigh(float (&s)[1][4][4], TensorSoftmax<C> &softmax, Turn<C> &turn, bool counts,
                                      const Lane &lane)
{
    TL_UNROLL_FOR (int r = 0; r < 2; r++) {
        const int row = lane.row(r);
        float before = softmax.top[r], most = before;
        TL_UNROLL_FOR (int team = 0; team < C::SPLIT; team++) {
            const float x = turn.most[team][row];
            if (team < lane.team) before = fmaxf(before, x);
            if (team <= lane.team) most = fmaxf(most, x);
            softmax.top[r] = fmaxf(softmax.top[r], x);
        }
        if (!counts) continue;
        const float base = most == -TL_INF ? 0.0f : most;
        float sum = 0.0f;
        TL_UNROLL_FOR (int n = 0; n < 4; n++)
            TL_UNROLL_FOR (int e = 0; e < 2; e++) {
                float &x = s[0][n][2 * r + e];
                x = scaled_weight(x - base);
                sum += x;
            }
        turn.weights[lane.team][row][lane.t] = sum;
        if (lane.t == 0) turn.factor[lane.team][row] = most > before ? tl_attention_weight(before - most) : 1.0f;
    }
}

/* For each group of 32 coordinates, visit(group, parts) after all teams left theirs: the products of w and rows of X, where
 * the warp counts. `side` is that of the parts to write next; barriers end the use of X. */
template <class C, class Visit>
__device__ __forceinline__ void each_part(const Weights<C> &w, const float *X, int d, bool counts, float *parts,
                                          int &side, const Lane &lane, Visit visit)
{
    TL_UNROLL_FOR (int group = 0; group < C::GROUPS; group++) {
        if (group > 0 && 32 * group >= d) break;
        float *const to = parts + side * PARTS_OF<C>;
        if (counts) {
            float part[1][4][4] = {};
            group_product<C>(part, w, X, group, lane);
            TL_UNROLL_FOR (int r = 0; r < 2; r++)
                TL_UNROLL_FOR (int e = 0; e < 2; e++) {
                    const int i = 2 * r + e;
                    tl_store4(to + (lane.team * C::ROWS + lane.row(r)) * PITCH + 4 * (2 * lane.t + e),
                              make_float4(part[0][0][i], part[0][1][i], part[0][2][i], part[0][3][i]));
                }
        }
        __syncthreads();
        visit(group, to);
        side ^= 1;
    }
}

/* The sums of a row and what they are divided by, as far as a thread owns them. */
template <class C> struct QueryOwner : Owner<C> {
    float4 sums[C::GROUPS];
    float chain, top; /* chain: of the weights that lane quad % 4 of the row has */

    __device__ __forceinline__ QueryOwner() : chain(0.0f), top(-TL_INF)
    {
        TL_UNROLL_FOR (int group = 0; group < C::GROUPS; group++)
            sums[group] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
    __device__ __forceinline__ void add(int group, const float *parts, const Turn<C> &turn)
    {
        TL_UNROLL_FOR (int team = 0; team < C::SPLIT; team++) {
            if (!turn.counts[team][this->row / 16]) continue;
            const float factor = turn.factor[team][this->row];
            const float4 x = this->part(parts, team);
            float4 &sum = sums[group];
            sum.x = fmaf(sum.x, factor, x.x);
            sum.y = fmaf(sum.y, factor, x.y);
            sum.z = fmaf(sum.z, factor, x.z);
            sum.w = fmaf(sum.w, factor, x.w);
            if (group > 0) continue;
            chain = fmaf(chain, factor, turn.weights[team][this->row][this->quad % 4]);
            top = fmaxf(top, turn.most[team][this->row]);
        }
    }
    /* What the row is divided by, in WEIGHT_UNIT. */
    __device__ __forceinline__ float total() const
    {
        const float sum = tl_fold_group<tl_sum_op, 4>(chain);
        return top == -TL_INF ? WEIGHT_UNIT : sum;
    }
};

/* Where a lane stands if the warps of a team, and those of the same rows, are to be spread over the four quarters of a
 * multiprocessor, which take warps in turn: what some of them need not do is then no quarter's alone. */
template <class C> __device__ __forceinline__ Lane spread_lane()
{
    Lane lane((C()));
    const int warp = (int)threadIdx.x / 32;
    lane.first = warp / C::SPLIT * 16;
    lane.team = (warp + warp / C::SPLIT) % C::SPLIT;
    return lane;
}

/* The weights that a warp left of its rows of a team's tile: 16 floats to a lane, which are those that it needs as left operand
 * (attention/mma_tiles.cuh). */
template <class C> constexpr int WEIGHTS_OF = C::TILES * C::ROWS;
template <class C> __device__ __forceinline__ float *weights_of(float *weights, int team, const Lane &lane)
{
    return weights + ((team * (C::ROWS / 16) + lane.first / 16) * 128 + (int)threadIdx.x % 32) * 4;
}
template <class C>
__device__ __forceinline__ void leave_weights(float *weights, const float (&s)[1][4][4], const Lane &lane)
{
    float *const to = weights_of<C>(weights, lane.team, lane);
    TL_UNROLL_FOR (int n = 0; n < 4; n++)
        tl_store4(to + 128 * n, s[0][n]);
}

/* Whether half of a tile's columns do not exist, if that many from its first on do: their scores are -inf, their weights 0, and
 * products with 0 change no sum. */
__device__ __forceinline__ bool is_half(int64_t columns) { return columns <= TILE / 2; }

/* The sums of the warp's rows, of the group that has its team's number. */
template <class C> struct GroupOwner {
    float sums[1][4][4];

    __device__ __forceinline__ GroupOwner()
    {
        TL_UNROLL_FOR (int j = 0; j < 4; j++)
            TL_UNROLL_FOR (int e = 0; e < 4; e++)
                sums[0][j][e] = 0.0f;
    }
    /* Adds the products of the weights of all teams and their tiles, in order, of a turn with `rows` of X. */
    __device__ __forceinline__ void add(float *weights, const float *X, int64_t rows, const Turn<C> &turn,
                                        TensorSoftmax<C> &softmax, const Lane &lane)
    {
#pragma unroll 1
        for (int team = 0; team < C::SPLIT; team++) {
            if (!turn.counts[team][lane.first / 16]) continue;
            const float *const from = weights_of<C>(weights, team, lane);
            float w[1][4][4], part[1][4][4] = {};
            TL_UNROLL_FOR (int n = 0; n < 4; n++)
                tl_load4(from + 128 * n, w[0][n]);
            const float *const tile = X + team * TILE * C::LD;
            if (is_half(rows - team * TILE))
                group_product<C, 2>(part, Weights<C>(w), tile, lane.team, lane);
            else
                group_product<C>(part, Weights<C>(w), tile, lane.team, lane);
            TL_UNROLL_FOR (int r = 0; r < 2; r++) {
                const float factor = turn.factor[team][lane.row(r)];
                softmax.chain[r] = fmaf(softmax.chain[r], factor, turn.weights[team][lane.row(r)][lane.t]);
                TL_UNROLL_FOR (int j = 0; j < 4; j++)
                    TL_UNROLL_FOR (int e = 2 * r; e < 2 * r + 2; e++)
                        sums[0][j][e] = fmaf(sums[0][j][e], factor, part[0][j][e]);
            }
        }
    }
};

/* Writes to `row`, d elements, the four elements from c on, as far as they exist. */
__device__ __forceinline__ void store_quad(float *row, int c, float4 x, const Problem &p)
{
    if (p.wide) {
        if (c < p.d) tl_store4(row + c, x);
        return;
    }
    const float own[4] = {x.x, x.y, x.z, x.w};
    TL_UNROLL_FOR (int e = 0; e < 4; e++)
        if (c + e < p.d) row[c + e] = own[e];
}

/* Writes to `row`, d elements, each element of the thread's sums that exists after end(element). */
template <class C, class End>
__device__ __forceinline__ void store(float *row, const float4 (&sums)[C::GROUPS], int quad, const Problem &p, End end)
{
    TL_UNROLL_FOR (int group = 0; group < C::GROUPS; group++) {
        const int c = 32 * group + 4 * quad;
        if (c >= p.d) break;
        const float4 x = make_float4(end(sums[group].x), end(sums[group].y), end(sums[group].z), end(sums[group].w));
        if (p.wide) {
            tl_store4(row + c, x);
            continue;
        }
        const float own[4] = {x.x, x.y, x.z, x.w};
        TL_UNROLL_FOR (int e = 0; e < 4; e++)
            if (c + e < p.d) row[c + e] = own[e];
    }
}

} /* namespace relay */
} /* namespace attention */
