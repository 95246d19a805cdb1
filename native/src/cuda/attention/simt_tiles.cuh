/* Tiles of attention on CUDA without tensor cores, forward and backward: for rows of more than 128 elements that warp group
 * products do not take, and for members of the batch with values that do not split (attention/mma_tiles.cuh,
 * attention/wgmma_tiles.cuh).
 *
 * A block owns ROWS rows of one member of the batch (queries; keys when the gradients of K and V are made) and goes
 * through the other side in tiles of COLS. TY x TX threads; thread (ty, tx) owns rows ty + TY·i of the block and
 *   of a product over d, the columns tx + TX·j of the tile: both operands are read along d, 4 coordinates in a 16-byte
 *   access of a result, the coordinates 4·tx .. 4·tx+3 and every 4·TX further; of rows of less than 4·TX, one or two
 * so that a step of 4 costs 16 shared reads for 256 fused multiply-adds with 8 x 8 results to a thread, and a row
 * belongs to TX neighbouring lanes. Rows are DP + 4 floats apart in shared memory: the quarter of a warp that reads 16
 * bytes each from 8 rows touches every bank once.
 *
 * Each result is one chain of fused multiply-adds over d, or over the keys (queries) in order: fixed by the shape
 * alone. */
#pragma once

#include "cuda/device/async_copy.cuh"
#include "cuda/device/division.cuh"
#include "cuda/device/grid.cuh"
#include "cuda/device/sum_tree.cuh"
#include "cuda/device/vector.cuh"
#include "cuda/runtime/launch.cuh"
#include "formula/attention.h"
#include "generated/attention.h"

namespace attention {

enum Mode { NO_MASK = 0, FILL = 1, HARD = 2, CAUSAL = 3 };
/* Rows to a flag that says that they hold no infinity and no NaN. */
constexpr int GRANULE = 32;

/* BLOCKS: how many shall run on one multiprocessor. With MANY, d is longer than DP and is gone through in chunks of DP;
 * a block then makes chunk blockIdx.y of the result. */
template <int DP_, int ROWS_, int COLS_, int TY_, int TX_, int BLOCKS_, bool MANY_ = false> struct Config {
    static constexpr int DP = DP_, ROWS = ROWS_, COLS = COLS_, TY = TY_, TX = TX_, BLOCKS = BLOCKS_;
    static constexpr bool MANY = MANY_;
    static constexpr int THREADS = TY * TX, LD = DP + 4, LP = COLS + 4;
    static constexpr int RM = ROWS / TY, RK = COLS / TX, RC = DP / TX;
    static constexpr int VECTOR = RC < 4 ? RC : 4; /* coordinates of a result that lie side by side */
    static_assert(RC % VECTOR == 0 && COLS % TX == 0 && COLS % 4 == 0 && ROWS % TY == 0 && TX <= 32, "ownership");

    static constexpr int STRIDE = 1; /* lanes from one column to the next */
    static __device__ __forceinline__ int tx() { return (int)threadIdx.x % TX; }
    static __device__ __forceinline__ int ty() { return (int)threadIdx.x / TX; }
};

/* The same with neighbouring lanes in different rows. Two of them then read the same part of the other side, and lanes two apart
 * the same part of a row: shared memory gives 16 bytes to all lanes in two cycles where such pairs read the same, else in four. */
template <class C> struct Paired : C {
    static constexpr int STRIDE = 2;
    static_assert(C::TX <= 16 && C::TY % 2 == 0, "pairs of rows in a warp");
    static __device__ __forceinline__ int tx() { return (int)threadIdx.x / 2 % C::TX; }
    static __device__ __forceinline__ int ty() { return (int)threadIdx.x / (2 * C::TX) * 2 + (int)threadIdx.x % 2; }
};

/* The tree of tl_fold_group over the lanes of a row. */
template <class Op, class C> __device__ __forceinline__ float fold_row(float a)
{
    TL_UNROLL_FOR (int s = C::TX / 2; s > 0; s /= 2)
        a = Op::join(a, __shfl_xor_sync(0xffffffffu, a, s * C::STRIDE));
    return a;
}

struct Problem {
    const float *Q, *K, *V, *mask;
    int64_t batch, n, d;
    int mode;
    float scale;
    bool wide; /* rows may be read 16 bytes at a time */
    int64_t granules;
    uint32_t blocks; /* per member of the batch */
    uint32_t chunk;  /* the launch's first one */
    /* Members of the batch that the tensor cores would not serve; NULL: all of them. The kernels below take these,
     * attention/mma_tiles.cuh the others. */
    const uint8_t *unsafe;

    __device__ __forceinline__ bool left_to_tensor_cores(int64_t b) const { return unsafe && !unsafe[b]; }
};

/* ---- copies to shared memory ------------------------------------------------------------------------------------- */

/* What a thread copies of rows, BYTES at a time: one column of EACH floats, or several in turn, LANES apart, of every APART-th
 * row, so that from one to the next only constants are added. */
template <class C, int BYTES> struct CopyPlace {
    static constexpr int EACH = BYTES / 4, UNITS = C::DP / EACH, PART = UNITS & -UNITS, LANES = PART < 32 ? PART : 32;
    static constexpr int APART = C::THREADS / LANES;
};

/* Starts copying rows first .. first+COUNT-1 of x (n, d), coordinates from .. from+DP-1. */
template <class C, int COUNT, int BYTES>
__device__ __forceinline__ void copy_columns(float *to, const float *x, int64_t first, const Problem &p, int64_t from)
{
    using Place = CopyPlace<C, BYTES>;
    constexpr int EACH = Place::EACH, UNITS = Place::UNITS, LANES = Place::LANES, APART = Place::APART;
    const int row = (int)threadIdx.x / LANES, width = p.d - from < C::DP ? (int)(p.d - from) : C::DP;
    const int rows = p.n - first < COUNT ? (int)(p.n - first) : COUNT;
    const int64_t apart = APART * p.d;
    TL_UNROLL_FOR (int u = 0; u < UNITS; u += LANES) {
        const int c = (u + (int)threadIdx.x % LANES) * EACH;
        if (!C::MANY && u * EACH >= width) break; /* these columns join sums of columns that do not exist */
        const float *source = x + (first + row) * p.d + from + c;
        float *const target = to + row * C::LD + c;
#pragma unroll 8
        for (int r = 0; r < COUNT; r += APART, source += apart) {
            if (COUNT % APART != 0 && row + r >= COUNT) break;
            const bool present = row + r < rows && c < width;
            tl_copy_async<BYTES>(target + r * C::LD, present ? source : x, present);
        }
    }
}

/* The same; what does not exist is 0, up to the next multiple of 32 coordinates, with MANY of DP. */
template <class C, int COUNT>
__device__ __forceinline__ void copy_rows(float *to, const float *x, int64_t first, const Problem &p, int64_t from)
{
    if (p.wide)
        copy_columns<C, COUNT, 16>(to, x, first, p, from);
    else
        copy_columns<C, COUNT, 4>(to, x, first, p, from);
}

/* ---- products of registers --------------------------------------------------------------------------------------- */

/* s[i][j] += row ty + TY·i of A times row tx + TX·j of B, over the first 4·steps coordinates. */
template <class C>
__device__ __forceinline__ void product(const float *A, const float *B, int steps, float (&s)[C::RM][C::RK])
{
    const float *a = A + C::ty() * C::LD, *b = B + C::tx() * C::LD;
#pragma unroll 1
    for (int k = 0; k < steps; k++, a += 4, b += 4) {
        float4 x[C::RM];
        TL_UNROLL_FOR (int i = 0; i < C::RM; i++)
            x[i] = tl_load4(a + i * C::TY * C::LD);
        TL_UNROLL_FOR (int j = 0; j < C::RK; j++) {
            const float4 y = tl_load4(b + j * C::TX * C::LD);
            TL_UNROLL_FOR (int i = 0; i < C::RM; i++)
                s[i][j] = fmaf(x[i].x, y.x, s[i][j]);
            TL_UNROLL_FOR (int i = 0; i < C::RM; i++)
                s[i][j] = fmaf(x[i].y, y.y, s[i][j]);
            TL_UNROLL_FOR (int i = 0; i < C::RM; i++)
                s[i][j] = fmaf(x[i].z, y.z, s[i][j]);
            TL_UNROLL_FOR (int i = 0; i < C::RM; i++)
                s[i][j] = fmaf(x[i].w, y.w, s[i][j]);
        }
    }
}

/* sum[i][..] += Σ over the first TERMS of the tile's columns of W[row ty + TY·i][column] times row `column` of X, of whose
 * coordinates only the first `groups` of TX·VECTOR exist. */
template <class C, int TERMS = C::COLS>
__device__ __forceinline__ void accumulate(const float *W, const float *X, float (&sum)[C::RM][C::RC],
                                           int groups = C::RC / C::VECTOR)
{
    constexpr int VECTOR = C::VECTOR;
    const float *w = W + C::ty() * C::LP, *x = X + C::tx() * VECTOR;
#pragma unroll 1
    for (int k = 0; k < TERMS; k += 4, w += 4, x += 4 * C::LD) {
        float4 a[C::RM];
        TL_UNROLL_FOR (int i = 0; i < C::RM; i++)
            a[i] = tl_load4(w + i * C::TY * C::LP);
        TL_UNROLL_FOR (int g = 0; g < C::RC / VECTOR; g++) {
            if (g > 0 && g >= groups) break;
            TL_UNROLL_FOR (int e = 0; e < 4; e++) {
                float y[VECTOR];
                if constexpr (VECTOR == 4)
                    tl_load4(x + e * C::LD + g * 4 * C::TX, y);
                else
                    TL_UNROLL_FOR (int c = 0; c < VECTOR; c++)
                        y[c] = x[e * C::LD + c];
                TL_UNROLL_FOR (int i = 0; i < C::RM; i++) {
                    const float f = e == 0 ? a[i].x : e == 1 ? a[i].y : e == 2 ? a[i].z : a[i].w;
                    TL_UNROLL_FOR (int c = 0; c < VECTOR; c++)
                        sum[i][VECTOR * g + c] = fmaf(f, y[c], sum[i][VECTOR * g + c]);
                }
            }
        }
    }
}

/* Writes the thread's part of a row of the result, coordinates `from` on. */
template <class C>
__device__ __forceinline__ void store_row(float *row, const float (&v)[C::RC], const Problem &p, int64_t from)
{
    constexpr int VECTOR = C::VECTOR;
    TL_UNROLL_FOR (int g = 0; g < C::RC / VECTOR; g++) {
        const int64_t c = from + (C::tx() + g * C::TX) * VECTOR;
        if (VECTOR == 4 && p.wide) {
            if (c < p.d) tl_store4(row + c, v + 4 * g);
        } else {
            TL_UNROLL_FOR (int e = 0; e < VECTOR; e++)
                if (c + e < p.d) row[c + e] = v[VECTOR * g + e];
        }
    }
}

/* ---- scores and their mask --------------------------------------------------------------------------------------- */

/* The mask of queries i0 .. i0+QUERIES-1 and keys j0 .. j0+KEYS-1 as bits, a word for 32 keys of a query: 1 where both
 * exist and the mask allows. Returns whether the thread saw a 1. The next barrier publishes the words. */
template <class C, int QUERIES, int KEYS>
__device__ __forceinline__ bool read_mask(uint32_t *bits, const Problem &p, int64_t b, int64_t i0, int64_t j0)
{
    static_assert(KEYS % 32 == 0, "whole words");
    constexpr int WORDS = KEYS / 32;
    bool any = false;
    if (p.mode == CAUSAL) {
        for (int t = threadIdx.x; t < QUERIES * WORDS; t += C::THREADS) {
            const int64_t i = i0 + t / WORDS, j = j0 + t % WORDS * 32;
            const int64_t last = i < p.n - 1 ? i : p.n - 1, count = i < p.n ? last + 1 - j : 0;
            const uint32_t word = count >= 32 ? 0xffffffffu : count > 0 ? (1u << count) - 1 : 0;
            bits[t] = word;
            any |= word != 0;
        }
        return any;
    }
    const int lane = threadIdx.x % 32;
#pragma unroll 8
    for (int t = threadIdx.x / 32; t < QUERIES * WORDS; t += C::THREADS / 32) {
        const int64_t i = i0 + t / WORDS, j = j0 + t % WORDS * 32 + lane;
        const bool allowed = i < p.n && j < p.n && !(p.mask[(b * p.n + i) * p.n + j] == 0.0f);
        const uint32_t word = __ballot_sync(0xffffffffu, allowed);
        if (lane == 0) bits[t] = word;
        any |= word != 0;
    }
    return any;
}

/* Whether the COUNT rows from `first` on of member b are all finite. */
template <int COUNT>
__device__ __forceinline__ bool all_finite(const uint8_t *finite, const Problem &p, int64_t b, int64_t first)
{
    bool yes = true;
    TL_UNROLL_FOR (int g = 0; g < COUNT / GRANULE; g++)
        yes &= first / GRANULE + g >= p.granules || finite[b * p.granules + first / GRANULE + g] != 0;
    return yes;
}

/* ---- the softmax of the thread's rows, kept up to date ----------------------------------------------------------- */

/* What a row is divided by, of its greatest score and its sum of weights: 1 if all was blocked, NaN if all scores were
 * -inf or one was NaN. */
__device__ __forceinline__ float softmax_total(float top, float sum)
{
    return top == -TL_INF ? 1.0f + sum : top == TL_INFINITE_SCORE ? TL_NAN : sum;
}

/* x / total, the bits of the division, of a total and its reciprocal as division rounds it: the steps that it takes itself
 * once it has that (Markstein, IBM J. Res. Dev. 34, 1990), for an x of which no remainder underflows. Totals are sums of
 * weights, of which the greatest is 1. */
__device__ __forceinline__ float divide_by_total(float x, float total, float inverse)
{
    float q = x * inverse;
    q = fmaf(fmaf(-q, total, x), inverse, q);
    return fmaf(fmaf(-q, total, x), inverse, q);
}

template <class C> struct Softmax {
    float top[C::RM], chain[C::RM]; /* chain: this lane's share of the sum */

    __device__ __forceinline__ Softmax()
    {
        TL_UNROLL_FOR (int i = 0; i < C::RM; i++) {
            top[i] = -TL_INF;
            chain[i] = 0.0f;
        }
    }

    /* Takes the scores of row i in, turns them into weights and returns the factor for what was accumulated before. NaN
     * is passed over by the maximum and gives NaN weights. */
    __device__ __forceinline__ float step(int i, float (&s)[C::RK])
    {
        float most = s[0];
        TL_UNROLL_FOR (int j = 1; j < C::RK; j++)
            most = fmaxf(most, s[j]);
        most = fmaxf(top[i], fold_row<tl_number_max_op, C>(most));
        const float factor = most > top[i] ? tl_attention_weight(top[i] - most) : 1.0f;
        const float base = most == -TL_INF ? 0.0f : most;
        float sum = 0.0f;
        TL_UNROLL_FOR (int j = 0; j < C::RK; j++) {
            s[j] = tl_attention_weight(s[j] - base);
            sum += s[j];
        }
        chain[i] = fmaf(chain[i], factor, sum);
        top[i] = most;
        return factor;
    }

    __device__ __forceinline__ float sum(int i) const { return fold_row<tl_sum_op, C>(chain[i]); }
    __device__ __forceinline__ float total(int i) const { return softmax_total(top[i], sum(i)); }

    /* Leaves what the pass over keys reads of row i, query `at`: m, 1/Σ and, unless it is there already, D. */
    template <class Args> __device__ __forceinline__ void keep(int i, float total, int64_t at, const Args &a) const
    {
        a.base[at] = top[i] == -TL_INF ? 0.0f : top[i];
        a.inverse[at] = 1.0f / total;
    }
    template <class Args>
    __device__ __forceinline__ void keep(int i, float total, float dot, int64_t at, const Args &a) const
    {
        keep(i, total, at, a);
        a.dot[at] = dot;
    }

    /* Whether a row that exists (of `rows`) still gives weight to filled scores. */
    __device__ __forceinline__ bool fill_counts(int64_t rows)
    {
        bool any = false;
        TL_UNROLL_FOR (int i = 0; i < C::RM; i++)
            any |= C::ty() + C::TY * i < rows && !(top[i] > TL_FILL_VANISHES);
        return any;
    }
};

/* Raw products of the thread's rows (queries) and columns (keys) as scores. */
template <class C>
__device__ __forceinline__ void query_scores(float (&s)[C::RM][C::RK], const Problem &p, const uint32_t *bits,
                                             int64_t j0)
{
    const int tx = C::tx(), ty = C::ty();
    const int keys = p.n - j0 < C::COLS ? (int)(p.n - j0) : C::COLS;
    TL_UNROLL_FOR (int i = 0; i < C::RM; i++)
        TL_UNROLL_FOR (int j = 0; j < C::RK; j++) {
            const int key = tx + C::TX * j;
            float x = tl_attention_score(s[i][j], p.scale);
            if (p.mode != NO_MASK) {
                const uint32_t word = bits[(ty + C::TY * i) * (C::COLS / 32) + key / 32];
                x = word >> key % 32 & 1 ? x : p.mode == FILL ? TL_FILL_SCORE : -TL_INF;
            }
            s[i][j] = key < keys ? x : -TL_INF;
        }
}

/* The first key from j on whose tile counts for queries i0 .. i0+ROWS-1: its mask, then in words[], allows something,
 * or its values are not all `finite`, which a weight of 0 does not silence, or the fill still has weight. */
template <class C>
__device__ __forceinline__ int64_t next_keys(int64_t j, uint32_t *words, const Problem &p, int64_t b, int64_t i0,
                                             const uint8_t *finite, Softmax<C> &softmax)
{
    for (; j < p.n && p.mode != NO_MASK; j += C::COLS) {
        bool counts = read_mask<C, C::ROWS, C::COLS>(words, p, b, i0, j);
        counts |= !all_finite<C::COLS>(finite, p, b, j) || (p.mode == FILL && softmax.fill_counts(p.n - i0));
        if (__syncthreads_or(counts)) break;
    }
    return j;
}

/* ---- host side --------------------------------------------------------------------------------------------------- */

/* What the kernels of attention/mma_tiles.cuh take: rows and sequences long enough for the error of split sums
 * (tlspec/ops/attention.py), up to TENSOR_WIDTH elements to a row, in members of the batch whose values are below
 * TENSOR_MOST. Scores are then finite, below 2^51·2^60, and so is the product of four factors, one of them the unit of
 * weights, 2^(32 + 52 + 22). */
constexpr int64_t TENSOR_LEAST_WIDTH = 16, TENSOR_WIDTH = 128, TENSOR_LEAST_ROWS = 32, TENSOR_ROWS = (int64_t)1 << 30;
constexpr float TENSOR_MOST = 0x1p22f, TENSOR_SCALE = 0x1p60f;

inline bool tensor_takes(const Problem &p)
{
    return p.d >= TENSOR_LEAST_WIDTH && p.d <= TENSOR_WIDTH && p.n >= TENSOR_LEAST_ROWS && p.n < TENSOR_ROWS &&
           fabsf(p.scale) <= TENSOR_SCALE;
}

/* What a scan finds out about an array (batch, n, d) before the products. */
struct ValueScan {
    const float *x;
    uint8_t *finite; /* [b][granule]: no infinity and no NaN; or NULL */
    bool split;      /* the array is split for tensor cores, so that values may not be too small either */
};

/* Runs up to 5 scans and, where `unsafe` is given, sets unsafe[b] for the members that tensor cores are not to
 * take; of the others it makes it 0. Defined in attention/forward.cu. */
int32_t scan_values(tl_context *ctx, const Problem &p, const ValueScan *scans, int count, uint8_t *unsafe);

/* Whether the context's device has Hopper's warp group products and they take the problem, up to WGMMA_WIDTH elements to a
 * row, if need be from copies whose rows begin at whole 16 bytes (attention/padded.cuh); whether they do without; the forward
 * by them, into `out`. Defined in attention/wgmma.cu. */
constexpr int64_t WGMMA_WIDTH = 192;
bool wgmma_takes(tl_context *ctx, const Problem &p);
bool wgmma_serves(tl_context *ctx, const Problem &p);
int32_t forward_wgmma(tl_context *ctx, const Problem &p, float *out);

/* Chunks of C::DP elements of a result of `width`, of which a block makes one. */
template <class C> int64_t chunks_of(int64_t width) { return C::MANY && width > 0 ? tl_ceil_div(width, C::DP) : 1; }

/* launched(grid) for as many chunks at a time as a grid has, blockIdx.y those of a launch and `chunk` its first one; `grid` is that of
 * one chunk. A width that ordinary memory holds is one launch, whose blocks add a zero. */
template <class Launch> int32_t launch_chunks(uint32_t &chunk, int64_t chunks, dim3 grid, Launch launched)
{
    static_assert(TL_CHUNKS_MOST > 1, "a launch of one chunk is of a result of one");
    for (int64_t first = 0; first < chunks; first += TL_CHUNKS_MOST) {
        chunk = (uint32_t)first;
        grid.y = (unsigned)(chunks - first < TL_CHUNKS_MOST ? chunks - first : TL_CHUNKS_MOST);
        TL_TRY(launched(grid));
    }
    return TORCHLEAN_OK;
}

/* The grid of a pass, of one chunk: blocks of ROWS rows for each member. */
template <class C> dim3 pass_grid(Problem &p)
{
    p.blocks = (uint32_t)tl_ceil_div(p.n, C::ROWS);
    return dim3((unsigned)(p.batch * p.blocks));
}

} /* namespace attention */
