/* Attention by Hopper's warp group products (wgmma) on TF32 tensor cores: the passes, the layout of shared memory and the
 * ring of panels of attention/wgmma.cu. Rings, chains and barriers are those of device/wgmma.cuh. Machine code for sm_90a
 * only.
 *
 * A block owns ROWS rows of a member of the batch (queries; keys when the gradients of K and V are made), 64 to each of
 * two warp groups, or to one where there are so few rows that multiprocessors would be left idle, and goes through the
 * other side in tiles of COLS. One more warp group produces right operands: panels of 64 x 32 elements, split into two
 * TF32 (device/tf32_split.cuh), in a ring of stages. All groups use every panel.
 *
 *   over d      S and dP: a panel holds 64 rows of the tile and 32 coordinates of each, as they are
 *   over COLS   results: a panel holds 64 coordinates and 32 rows of the tile, transposed; of the last only 32 coordinates
 *               count where rows have up to 96
 *
 * Shared memory: a panel is two arrays, hi and lo, with a row of 32 floats = 128 bytes to each of the 64. The 16 bytes
 * of chunk c of row i lie at 128·i + 16·(c ^ i % 8): the K-major layout with 128-byte swizzle (PTX ISA, "Shared Memory
 * Matrix Layout"), whose pattern repeats every 8 rows = 1024 bytes. The block's own rows lie 32 coordinates after 32,
 * not split: a warp splits its left operand as it reads it. Coordinate 4m + t of a row is element m % 4 of chunk
 * 2t + m / 4, so that a lane reads the eight it needs in two accesses; chunks are swizzled as in panels, which keeps
 * the eight lanes that are served together in different banks.
 *
 * A lane 4g + t holds of its warp's 16 rows g and g + 8, and of a tile of scores the columns 8j + 2t and 8j + 2t + 1.
 * These are what it needs as left operand of the next product, once the columns t and t + 4 of each 8 stand for 2t and
 * 2t + 1: so transposed panels hold the tile's rows in the order 0 2 4 6 1 3 5 7 of each 8.
 *
 * A sum over d or over the tiles is one of parts of 32 terms, in order, each made by 12 wgmma, the small products
 * first; fixed by the shape alone.
 *
 * Weights are kept 2^32 times too large. e^x underflows below 2^-149, so a weight that is not 0 is at least 2^-117: its
 * upper part is normal, and what its lower part may lose below 2^-126 is less than 2^-158 of the largest weight, which
 * is less than the 2^-149 that e^x itself loses. The same goes for a weight times (g·v - D). */
#pragma once

#include "cuda/attention/wgmma.cuh"
#include "cuda/device/sum_tree.cuh"
#include "cuda/device/wgmma.cuh"
#include "formula/attention.h"

namespace attention {

/* What a kernel makes: the forward; m, 1/Σ and D alone, or with the gradient of Q; those of K and V, or one of them. */
enum Pass { FORWARD, STATISTICS, QUERIES, KEYS, KEYS_K, KEYS_V };

struct WgmmaArgs {
    Problem p;
    const float *out, *g;
    float *by_weights, *by_slopes; /* results: products of P, and of dS */
    float *base, *inverse, *dot;
};

namespace warp_groups {

using tl_wgmma::GROUP, tl_wgmma::ROW, tl_wgmma::WARPS;

constexpr float WEIGHT_UNIT = 0x1p32f;

constexpr int COLS = 64, CHUNK = TL_DRAIN;
constexpr int PANEL_LO = 64 * ROW, PANEL = 2 * PANEL_LO;      /* bytes; of 32 coordinates */
constexpr int SHARED_MOST = 227 * 1024, SHARED_STATIC = 2048; /* static: for each header */
static_assert(ROW == 4 * CHUNK, "one row is a chunk of coordinates");

/* Of rows of up to DP elements. GROUPS multiply; one more produces. */
template <Pass PASS_, int DP_, int GROUPS_> struct Shape {
    static constexpr Pass PASS = PASS_;
    static constexpr int GROUPS = GROUPS_, THREADS = (GROUPS + 1) * GROUP, ROWS = 64 * GROUPS;
    static constexpr int DP = DP_, CHUNKS = DP / CHUNK, HALVES = (DP + 63) / 64;
    static constexpr int OPERAND = ROWS * ROW; /* bytes; of 32 coordinates */
    static constexpr bool OF_KEYS = PASS == KEYS || PASS == KEYS_K || PASS == KEYS_V;
    static constexpr bool SLOPES = PASS == QUERIES || PASS == KEYS || PASS == KEYS_K;      /* dS and its product */
    static constexpr bool WEIGHTS = PASS == FORWARD || PASS == KEYS || PASS == KEYS_V;     /* the product of P */
    static constexpr int PANELS = CHUNKS * (1 + SLOPES) + 2 * HALVES * (WEIGHTS + SLOPES); /* of a tile */
    static constexpr int OPERANDS = (1 + SLOPES) * CHUNKS * OPERAND;
    static constexpr int HEADERS = DP == 64 || PASS == STATISTICS ? 2 : 1;
    static constexpr int STAGES = SLOPES && DP == 128 ? 6 : 8;
    /* How often a tile goes round the ring where that is known and helps: with QUERIES it costs registers. */
    static constexpr int TURNS = PANELS % STAGES == 0 && PASS != QUERIES ? PANELS / STAGES : 0;
    static constexpr int BYTES = OPERANDS + STAGES * PANEL + 1024; /* the swizzle's pattern starts on 1024 bytes */
    /* 65536 registers: with two groups 168 per thread to begin with, then these. Six arrays of 32 are all that a consumer can
     * hold: sums, those of scores and slopes, a part and a left operand. Where three are sums (TIGHT), what costs little is found
     * again instead of held. */
    static constexpr bool TIGHT = GROUPS == 2 && HALVES == 3;
    static constexpr bool FULL = TIGHT || (SLOPES && HALVES + WEIGHTS == 2);
    static constexpr int PRODUCER_REGISTERS = FULL ? 88 : 104, CONSUMER_REGISTERS = FULL ? 208 : 200;
    static_assert(GROUP * (PRODUCER_REGISTERS + GROUPS * CONSUMER_REGISTERS) <= 65536, "register file");
    static_assert(GROUPS == 1 || GROUPS == 2, "one starts the other");
    static_assert(BYTES + HEADERS * SHARED_STATIC <= SHARED_MOST, "shared memory");
    /* A lane's sums of a half, of 64 coordinates or of the 32 that are left: each of two rows has two in 8. */
    static constexpr __device__ int sums_of(int half) { return DP - 64 * half < 64 ? 16 : 32; }
};

/* What the producers say of a tile before its panels. */
template <bool OF_KEYS, int ROWS> struct Header {
    int first, ahead;       /* its first row, negative: there is none; how far that is after the block's first */
    uint32_t bits[2][ROWS]; /* with a mask in memory: 32 of its rows, for each row of the block; 1 where allowed */
    float base[OF_KEYS ? COLS : 1], inverse[OF_KEYS ? COLS : 1], dot[OF_KEYS ? COLS : 1];
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

using namespace tl_wgmma; /* GROUP, WARPS and ROW are those of device/wgmma.cuh */

/* Whether column 8n + 2t + e of a row is allowed; `word` is shifted right by 2t. */
__device__ __forceinline__ bool allows(uint32_t word, int n, int e) { return word >> (8 * n + e) & 1; }

/* The lowest `count` bits. */
__device__ __forceinline__ uint32_t low_bits(int count)
{
    return count >= 32 ? 0xffffffffu : count > 0 ? (1u << count) - 1 : 0;
}

/* Starts part = a·b over a panel, b its descriptor. */
template <bool SWAPPED, int N>
__device__ __forceinline__ void start_part(float (&part)[N], uint32_t (&hi)[4][4], uint32_t (&lo)[4][4], uint64_t b)
{
    /* all registers are ready before the chain's fence, which need not be repeated then */
    TL_UNROLL_FOR (int q = 0; q < 4; q++)
        TL_UNROLL_FOR (int e = 0; e < 4; e++)
            asm volatile("" : "+r"(hi[q][e]), "+r"(lo[q][e]));
    start_chain<PANEL_LO, SWAPPED>(part, hi, lo, b);
}

/* The ring of panels, of which it may be known how often a tile goes round (Shape::TURNS): where a tile begins the place
 * is a constant then. FIRST_PARITY: that of the side at the start. */
template <class C, uint32_t FIRST_PARITY> struct PanelRing : Ring<C::STAGES> {
    __device__ __forceinline__ explicit PanelRing(const uint64_t (*barriers)[C::STAGES])
        : Ring<C::STAGES>(barriers, FIRST_PARITY)
    {}
    __device__ __forceinline__ void begin_tile()
    {
        if (C::TURNS > 0) this->stage = 0;
        if (C::TURNS > 0 && C::TURNS % 2 == 0) this->parity = FIRST_PARITY;
    }
    __device__ __forceinline__ void publish()
    {
        this->arrive_full(threadIdx.x % 32);
        this->advance();
    }
    __device__ __forceinline__ void release()
    {
        this->arrive_empty(threadIdx.x % 32);
        this->advance();
    }
};

/* ---- blocks ------------------------------------------------------------------------------------------------------ */

/* Which rows a block owns. */
template <class C> struct Place {
    int64_t b;
    int r0;

    /* under a causal mask the rows with the most to do start first */
    __device__ __forceinline__ Place(const Problem &p, uint32_t block) : b(block / p.blocks)
    {
        const uint32_t rank = block - (uint32_t)b * p.blocks;
        r0 = (int)(p.mode == CAUSAL && !C::OF_KEYS ? p.blocks - 1 - rank : rank) * C::ROWS;
    }
};

#endif

} /* namespace warp_groups */

} /* namespace attention */
