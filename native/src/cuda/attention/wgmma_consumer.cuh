/* Attention by wgmma: the warp groups that multiply. See attention/wgmma_tiles.cuh. */
#pragma once

#include "cuda/attention/wgmma_tiles.cuh"
#include "cuda/device/vector.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

namespace attention {
namespace warp_groups {

/* e^(score - base) in WEIGHT_UNIT, score <= base. What underflows is 2^-150, far below the error of a sum; where it
 * must be 0, it is made 0 afterwards. The weight is 2^-118 or more, so that 2^k is added to its exponent. The score is
 * rounded before base, one of the scores, is taken off: the largest weight is 1 however large they are. */
__device__ __forceinline__ float weight_of(float score, float base)
{
    const float rounder = TL_ROUNDER + 32.0f;
    const float x = fmaxf(score - base, -104.0f);
    const float t = fmaf(x, TL_LOG2E, rounder), k = t - rounder;
    float r = fmaf(k, -TL_LN2_HI, x);
    r = fmaf(k, -TL_LN2_LO, r);
    const float r2 = r * r, p = 1.0f + fmaf(r2, tl_exp_tail(r, r2), r);
    return tl_from_bits(tl_bits(p) + (tl_bits(t) << 23));
}

/* x / y from 1 / y: one step of Newton's method leaves the quotient rounded to nearest or next to it. */
__device__ __forceinline__ float quotient(float x, float y, float inverse)
{
    const float q = x * inverse;
    return fmaf(fmaf(-q, y, x), inverse, q);
}

/* The softmax of the lane's two queries, kept up to date. */
struct Rows {
    float top[2], chain[2], factor[2]; /* chain: this lane's share of the sum, in WEIGHT_UNIT */

    __device__ __forceinline__ Rows() : top{-TL_INF, -TL_INF}, chain{0.0f, 0.0f}, factor{1.0f, 1.0f} {}

    /* Takes the products of a tile in, turns them into weights and leaves in factor[] what multiplies earlier sums. */
    __device__ __forceinline__ void step(float (&s)[32], float scale)
    {
        TL_UNROLL_FOR (int r = 0; r < 2; r++) {
            float most = fmaxf(s[2 * r], s[2 * r + 1]);
            TL_UNROLL_FOR (int j = 1; j < 8; j++)
                most = fmaxf(most, fmaxf(s[4 * j + 2 * r], s[4 * j + 2 * r + 1]));
            most = fmaxf(top[r], tl_fold_group<tl_number_max_op, 4>(most) * scale);
            factor[r] = most > top[r] ? tl_attention_weight(top[r] - most) : 1.0f;
            top[r] = most;
            const float base = most == -TL_INF ? 0.0f : most;
            float sum = 0.0f;
            TL_UNROLL_FOR (int j = 0; j < 8; j++)
                TL_UNROLL_FOR (int e = 0; e < 2; e++) {
                    float &x = s[4 * j + 2 * r + e];
                    x = weight_of(x * scale, base);
                    sum += x;
                }
            chain[r] = fmaf(chain[r], factor[r], sum);
        }
    }

    /* What row r is divided by, in WEIGHT_UNIT; if all was blocked, 1 unit for sums that are 0. */
    __device__ __forceinline__ float total(int r) const
    {
        const float sum = tl_fold_group<tl_sum_op, 4>(chain[r]);
        return top[r] == -TL_INF ? WEIGHT_UNIT : sum;
    }
};

template <class C> struct Consumer {
    using Head = Header<C::OF_KEYS, C::ROWS>;
    const WgmmaArgs &a;
    const Problem &p;
    char *own;
    const Head *headers;
    PanelRing<C, 0> ring;
    Ring<C::HEADERS, true> header_ring;
    uint64_t panel;         /* descriptor of stage 0 */
    int group, g, t, first; /* first: the warp's first row of the block */
    float *dots;            /* of the block's queries */
    Rows rows;
    float by_weights[C::WEIGHTS ? C::HALVES : 1][32], by_slopes[C::SLOPES ? C::HALVES : 1][32];

    __device__ __forceinline__ Consumer(const WgmmaArgs &args, char *own_, const char *stages, const Head *headers_,
                                        const uint64_t (*barriers)[C::STAGES],
                                        const uint64_t (*header_barriers)[C::HEADERS], float *dots_)
        : a(args), p(args.p), own(own_), headers(headers_), ring(barriers), header_ring(header_barriers, 0),
          panel(descriptor(tl_shared_address(stages))), group(__shfl_sync(0xffffffffu, (int)threadIdx.x / GROUP, 0)),
          g(threadIdx.x % 32 / 4), t(threadIdx.x % 4), first((int)threadIdx.x / 32 * 16), dots(dots_)
    {
        TL_UNROLL_FOR (int i = 0; i < 32; i++) {
            TL_UNROLL_FOR (int h = 0; h < (C::WEIGHTS ? C::HALVES : 1); h++)
                by_weights[h][i] = 0.0f;
            TL_UNROLL_FOR (int h = 0; h < (C::SLOPES ? C::HALVES : 1); h++)
                by_slopes[h][i] = 0.0f;
        }
    }

    __device__ __forceinline__ int row(int r) const { return first + 8 * r + g; }
    /* Made anew before and after the tiles: registers are scarce. */
    __device__ __forceinline__ Place<C> place() const
    {
        uint32_t block = blockIdx.x;
        asm volatile("" : "+r"(block));
        return Place<C>(p, block);
    }

    /* Copies the group's rows of x to the array of left operands at `to`. The four of a 16-byte load go to the places
     * of four lanes. */
    __device__ __forceinline__ void copy_own(char *to, const float *x) const
    {
        constexpr int QUADS = 8 << C::HALVES; /* a power of two: as many as there are, or more */
        const int n = (int)p.n, d = (int)p.d, q = threadIdx.x % QUADS;
        const Place<C> at = place();
        const float *const from = x + (at.b * p.n + at.r0) * p.d + 4 * q;
        char *const column = to + q / 8 * C::OPERAND + 4 * (q % 4);
#pragma unroll 8
        for (int k = 0; k < 64 * QUADS / GROUP; k++) {
            const int r = 64 * group + threadIdx.x % GROUP / QUADS + k * (GROUP / QUADS);
            const bool present = at.r0 + r < n && 4 * q < d;
            const float4 v = present ? tl_load4(from + (int64_t)r * d) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (4 * q >= C::DP) continue;
            TL_UNROLL_FOR (int lane = 0; lane < 4; lane++)
                *reinterpret_cast<float *>(column + r * ROW + 16 * ((2 * lane + q % 8 / 4) ^ r % 8)) = lane == 0   ? v.x
                                                                                                       : lane == 1 ? v.y
                                                                                                       : lane == 2
                                                                                                           ? v.z
                                                                                                           : v.w;
        }
    }

    /* The lane's left operand from 32 coordinates at x, split: 4m + t for m = 0 .. 7 of two rows. */
    __device__ __forceinline__ void own_fragments(uint32_t (&hi)[4][4], uint32_t (&lo)[4][4], const char *x) const
    {
        const char *const from = x + row(0) * ROW;
        float4 v[2][2];
        TL_UNROLL_FOR (int h = 0; h < 2; h++)
            TL_UNROLL_FOR (int half = 0; half < 2; half++)
                v[h][half] = tl_load4((const float *)(from + 8 * ROW * h + 16 * ((2 * t + half) ^ g)));
        TL_UNROLL_FOR (int q = 0; q < 4; q++)
            TL_UNROLL_FOR (int e = 0; e < 4; e++) { /* m = 2q + e / 2 */
                const float4 &y = v[e % 2][q / 2];
                tl_split(q % 2 ? (e / 2 ? y.w : y.z) : (e / 2 ? y.y : y.x), hi[q][e], lo[q][e]);
            }
    }

    __device__ __forceinline__ uint64_t stage() const { return panel + ring.stage * (PANEL / 16); }

    __device__ __forceinline__ void release_header()
    {
        header_ring.arrive_empty(threadIdx.x % 32);
        header_ring.advance();
    }

    template <class Work>
    __device__ __forceinline__ void part_of_product(float (&part)[32], const char *x, Work meanwhile)
    {
        uint32_t hi[4][4], lo[4][4];
        if (!C::TIGHT) own_fragments(hi, lo, x);
        ring.wait_full();
        if (C::TIGHT) own_fragments(hi, lo, x); /* not beside what is left of the part before */
        start_part<C::OF_KEYS>(part, hi, lo, stage());
        meanwhile();
        wgmma_wait(part);
        ring.release();
    }

    /* s = the group's rows of x times the tile, over d. `meanwhile` is done while the first part is made. */
    template <class Work> __device__ __forceinline__ void product(float (&s)[32], const char *x, Work meanwhile)
    {
        float part[32];
        part_of_product(part, x, meanwhile);
        TL_UNROLL_FOR (int i = 0; i < 32; i++)
            s[i] = part[i];
        TL_UNROLL_FOR (int c = 1; c < C::CHUNKS; c++) {
            part_of_product(part, x + c * C::OPERAND, [] {});
            TL_UNROLL_FOR (int i = 0; i < 32; i++)
                s[i] += part[i];
        }
    }

    /* Part c of the product below for one half of the coordinates. */
    template <int HALF, class Work>
    __device__ __forceinline__ void accumulate_half(float (&sums)[32], uint32_t (&hi)[4][4], uint32_t (&lo)[4][4],
                                                    int c, Work meanwhile)
    {
        float part[C::sums_of(HALF)];
        ring.wait_full();
        start_part<false>(part, hi, lo, stage());
        meanwhile();
        wgmma_wait(part);
        ring.release();
        TL_UNROLL_FOR (int i = 0; i < C::sums_of(HALF); i++)
            sums[i] = C::OF_KEYS || c == 1 ? sums[i] + part[i] : fmaf(sums[i], rows.factor[i % 4 / 2], part[i]);
    }

    /* The lane's left operand from part c of the tile's weights. */
    static __device__ __forceinline__ void weight_fragments(uint32_t (&hi)[4][4], uint32_t (&lo)[4][4],
                                                            const float (&w)[32], int c)
    {
        TL_UNROLL_FOR (int q = 0; q < 4; q++)
            TL_UNROLL_FOR (int e = 0; e < 4; e++) /* (g, 2t) (g+8, 2t) (g, 2t+1) (g+8, 2t+1) */
                tl_split(w[4 * (4 * c + q) + e % 2 * 2 + e / 2], hi[q][e], lo[q][e]);
    }

    /* sums = factor · sums + w times the tile, over its rows; on the keys' side no factor. `meanwhile` as above. */
    template <class Work>
    __device__ __forceinline__ void accumulate(float (&sums)[C::HALVES][32], const float (&w)[32], Work meanwhile)
    {
        TL_UNROLL_FOR (int c = 0; c < 2; c++) {
            uint32_t hi[4][4], lo[4][4];
            weight_fragments(hi, lo, w, c);
            accumulate_half<0>(sums[0], hi, lo, c, [&] {
                if (c == 0) meanwhile();
            });
            if constexpr (C::HALVES > 1) accumulate_half<1>(sums[1], hi, lo, c, [] {});
            if constexpr (C::HALVES > 2) accumulate_half<2>(sums[2], hi, lo, c, [] {});
        }
    }

    /* The words of what is allowed to row r among the tile's rows 32h .. at j. */
    __device__ __forceinline__ uint32_t allowed(const Head &header, int j, int r, int h) const
    {
        const int before = row(r) - header.ahead - 32 * h;
        uint32_t word = p.mode == HARD ? header.bits[h][row(r)] : 0xffffffffu;
        if (p.mode == CAUSAL) word = C::OF_KEYS ? ~low_bits(before) : low_bits(before + 1);
        return C::OF_KEYS ? word : word & low_bits((int)p.n - j - 32 * h);
    }

    /* Whether some of the tile is blocked to the warp or does not exist. */
    __device__ __forceinline__ bool partial(const Head &header, int j) const
    {
        const int ahead = header.ahead - first;
        if (p.mode == CAUSAL ? (C::OF_KEYS ? ahead < 15 : ahead + COLS > 1) : p.mode == HARD) return true;
        return !C::OF_KEYS && j + COLS > (int)p.n;
    }
    /* `value` where blocked. */
    __device__ __forceinline__ void block(float (&s)[32], const Head &header, int j, float value) const
    {
        TL_UNROLL_FOR (int r = 0; r < 2; r++)
            TL_UNROLL_FOR (int h = 0; h < 2; h++) {
                const uint32_t word = allowed(header, j, r, h) >> 2 * t;
                TL_UNROLL_FOR (int k = 0; k < 4; k++)
                    TL_UNROLL_FOR (int e = 0; e < 2; e++)
                        if (!allows(word, k, e)) s[4 * (4 * h + k) + 2 * r + e] = value;
            }
    }

    /* Products to weights: by the running maximum, or on the keys' side by what the queries' pass left. */
    __device__ __forceinline__ void weigh(float (&s)[32], const Head &header, int j)
    {
        const bool some = partial(header, j);
        if constexpr (C::OF_KEYS) {
            TL_UNROLL_FOR (int k = 0; k < 8; k++)
                TL_UNROLL_FOR (int e = 0; e < 2; e++) {
                    const float base = header.base[8 * k + 2 * t + e], over = header.inverse[8 * k + 2 * t + e];
                    TL_UNROLL_FOR (int r = 0; r < 2; r++) {
                        float &x = s[4 * k + 2 * r + e];
                        /* keys that do not exist may have a score above base; they have no result either */
                        x = weight_of(x * p.scale, base) * over;
                    }
                }
        } else {
            if (some) block(s, header, j, -TL_INF);
            rows.step(s, p.scale);
        }
        if (some) block(s, header, j, 0.0f);
    }

    /* x = weights · (x - D). */
    __device__ __forceinline__ void slopes(float (&x)[32], const float (&weights)[32], const Head &header) const
    {
        TL_UNROLL_FOR (int k = 0; k < 8; k++)
            TL_UNROLL_FOR (int e = 0; e < 2; e++) {
                const float D = C::OF_KEYS ? header.dot[8 * k + 2 * t + e] : 0.0f;
                TL_UNROLL_FOR (int r = 0; r < 2; r++) {
                    const int i = 4 * k + 2 * r + e;
                    x[i] = weights[i] * (x[i] - (C::OF_KEYS ? D : dots[row(r)]));
                }
            }
    }

    __device__ __forceinline__ void tile(const Head &header, int j, bool starting)
    {
        float s[32];
        ring.begin_tile();
        product(s, own, [] {});
        if (C::GROUPS == 2 && starting && group == 0) start_second_group();
        if constexpr (C::SLOPES) {
            float x[32];
            product(x, own + C::CHUNKS * C::OPERAND, [&] { weigh(s, header, j); });
            const auto to_slopes = [&] {
                slopes(x, s, header);
                release_header();
            };
            if constexpr (C::WEIGHTS)
                accumulate(by_weights, s, to_slopes);
            else
                to_slopes();
            accumulate(by_slopes, x, [] {});
        } else {
            weigh(s, header, j);
            release_header();
            if constexpr (C::WEIGHTS) accumulate(by_weights, s, [] {});
        }
    }

    /* Whether the causal rule blocks the tile at j for the whole group. */
    __device__ __forceinline__ bool blocked(const Head &header) const
    {
        const int ahead = header.ahead - 64 * group;
        return p.mode == CAUSAL && (C::OF_KEYS ? ahead + COLS <= 0 : ahead >= 64);
    }

    __device__ __forceinline__ void pass_over()
    {
        release_header();
        ring.begin_tile();
#pragma unroll 1
        for (int k = 0; k < C::PANELS; k++) {
            ring.wait_full();
            ring.release();
        }
    }

    /* Writes row r of a result; four lanes fill a sector of 32 bytes. */
    __device__ __forceinline__ void store(float *to, const float (&sums)[C::HALVES][32], int r) const
    {
        const Place<C> at = place();
        const int i = at.r0 + row(r), column = 2 * t, rest = (int)p.d - column;
        if (i >= (int)p.n) return;
        float *const x = to + (at.b * p.n + i) * p.d + column;
        TL_UNROLL_FOR (int h = 0; h < C::HALVES; h++)
            TL_UNROLL_FOR (int k = 0; k < C::sums_of(h) / 4; k++)
                if (64 * h + 8 * k < rest)
                    *reinterpret_cast<float2 *>(x + 64 * h + 8 * k) =
                        make_float2(sums[h][4 * k + 2 * r], sums[h][4 * k + 2 * r + 1]);
    }

    /* D of the lane's queries: a chain in each of the row's four lanes, then the lanes. */
    __device__ __forceinline__ void dot_products()
    {
        const bool wide = tl_aligned4(a.out);
#pragma unroll 1
        for (int r = 0; r < 2; r++) {
            const Place<C> block = place();
            const int64_t i = block.r0 + row(r), at = (block.b * p.n + i) * p.d;
            const float *const x = a.g + at, *const y = a.out + at;
            float sum = 0.0f;
            if (i < p.n)
#pragma unroll 4
                for (int c = 4 * t; c < (int)p.d; c += 16) {
                    const float4 u = tl_load4(x + c),
                                 v = wide ? tl_load4(y + c) : make_float4(y[c], y[c + 1], y[c + 2], y[c + 3]);
                    sum = fmaf(u.x, v.x, sum);
                    sum = fmaf(u.y, v.y, sum);
                    sum = fmaf(u.z, v.z, sum);
                    sum = fmaf(u.w, v.w, sum);
                }
            sum = tl_fold_group<tl_sum_op, 4>(sum);
            if (t == 0) dots[row(r)] = sum;
        }
        __syncwarp();
    }

    __device__ __forceinline__ void store_all()
    {
        if constexpr (C::OF_KEYS) {
            TL_UNROLL_FOR (int h = 0; h < C::HALVES; h++)
                TL_UNROLL_FOR (int i = 0; i < C::sums_of(h); i++) {
                    if constexpr (C::WEIGHTS) by_weights[h][i] *= 1.0f / WEIGHT_UNIT;
                    if constexpr (C::SLOPES) {
                        by_slopes[h][i] *= 1.0f / WEIGHT_UNIT;
                        by_slopes[h][i] *= p.scale;
                    }
                }
        } else {
            TL_UNROLL_FOR (int r = 0; r < 2; r++) {
                const float total = rows.total(r), inverse = 1.0f / total;
                const Place<C> block = place();
                const int64_t i = block.r0 + row(r), at = block.b * p.n + i;
                if (C::PASS != FORWARD && t == 0 && i < p.n) {
                    a.base[at] = rows.top[r] == -TL_INF ? 0.0f : rows.top[r];
                    a.inverse[at] = 1.0f / (total * (1.0f / WEIGHT_UNIT));
                    a.dot[at] = dots[row(r)];
                }
                TL_UNROLL_FOR (int h = 0; h < C::HALVES; h++)
                    TL_UNROLL_FOR (int k = 0; k < C::sums_of(h) / 4; k++)
                        TL_UNROLL_FOR (int e = 0; e < 2; e++) {
                            const int at_sum = 4 * k + 2 * r + e;
                            if constexpr (C::WEIGHTS)
                                by_weights[h][at_sum] = quotient(by_weights[h][at_sum], total, inverse);
                            if constexpr (C::SLOPES)
                                by_slopes[h][at_sum] = quotient(by_slopes[h][at_sum], total, inverse) * p.scale;
                        }
            }
        }
        TL_UNROLL_FOR (int r = 0; r < 2; r++) {
            if constexpr (C::WEIGHTS) store(a.by_weights, by_weights, r);
            if constexpr (C::SLOPES) store(a.by_slopes, by_slopes, r);
        }
    }

    __device__ __forceinline__ void run()
    {
        copy_own(own, C::OF_KEYS ? p.K : p.Q);
        if constexpr (C::SLOPES) copy_own(own + C::CHUNKS * C::OPERAND, C::OF_KEYS ? p.V : a.g);
        if constexpr (!C::OF_KEYS && C::PASS != FORWARD) dot_products();
        group_sync(group);
        /* The second group starts when the first has its first scores, so that from then on one weighs scores while
         * the other keeps the tensor cores busy. */
        bool starting = true;
#pragma unroll 1
        while (true) {
            header_ring.wait_full();
            const Head &header = headers[header_ring.stage];
            const int j = *(const volatile int *)&header.first;
            if (j < 0) break;
            if (C::GROUPS == 2 && starting && group == 1) wait_for_first_group();
            if (blocked(header)) {
                if (C::GROUPS == 2 && starting && group == 0) start_second_group();
                pass_over();
            } else {
                tile(header, j, starting);
            }
            starting = false;
        }
        store_all();
    }
};

} /* namespace warp_groups */
} /* namespace attention */

#endif
