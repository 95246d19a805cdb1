/* Rows held on chip, for kernels that read a row once, reduce it (several times) and write it: who owns which element,
 * how the row is loaded and stored, and its sums in the order of the row tree (formula/sum_tree.h).
 *
 *   tl_short_row    up to 1024 elements: G threads own a row, in registers
 *   tl_block_row    up to 16384 per leaf: 256 threads own a leaf, in registers or shared memory, a block owns 1 to 3
 *                   leaves
 *
 * Longer rows do not fit. They are cut into leaves, a block each, and read once per reduction (tl_leaf_sums,
 * tl_leaf_map).
 *
 * An element i of a thread's N is column(i) of the row; what lies past the row's end reads 0 and must not change a
 * result (`inside` tells): every lane of the tree starts from +0. Kernels are templates over the row's type;
 * tl_pick_row chooses it. */
#pragma once

#include <type_traits>

#include "cuda/device/async_copy.cuh"
#include "cuda/device/sum_tree.cuh"
#include "cuda/device/vector.cuh"
#include "formula/rows.h"

/* ---- what both rows share ---------------------------------------------------------------------------------------- */

/* T threads per row, or (LEAVES) per leaf of the block's row; thread t of them holds K pieces of W elements, which are
 * consecutive (VECTOR) or T apart. */
template <bool VECTOR_, int T_, int W_, int K_, bool LEAVES_> struct tl_row_layout {
    static constexpr bool VECTOR = VECTOR_;
    static constexpr int T = T_, W = W_, K = K_, N = W * K;
    int64_t row; /* its index */
    int n;       /* its length, 0 for a row past the last */

    static __device__ __forceinline__ int thread() { return (int)threadIdx.x % T; }
    /* Where this thread's elements begin, and how far from there element i lies: a constant. So the place of an element is one
     * addition, which its access has for nothing. */
    static __device__ __forceinline__ int first()
    {
        return (VECTOR ? 4 * thread() : thread()) + (LEAVES_ ? (int)threadIdx.x / T * TL_SUM_LEAF : 0);
    }
    static __device__ __forceinline__ constexpr int beyond(int i) { return VECTOR ? 4 * T * (i / 4) + i % 4 : T * i; }
    __device__ __forceinline__ int column(int i) const { return first() + beyond(i); }
    __device__ __forceinline__ bool inside(int i) const { return beyond(i) < n - first(); }
    /* The pieces that the row, or its leaf, reaches; the same for all threads of either. */
    __device__ __forceinline__ int pieces() const
    {
        const int begin = LEAVES_ ? (int)threadIdx.x / T * TL_SUM_LEAF : 0;
        return min(K, (n - begin + T * W - 1) / (T * W));
    }
    /* One thread of the row's. */
    __device__ __forceinline__ bool leads() const { return (LEAVES_ ? (int)threadIdx.x : thread()) == 0; }

    /* v = the row at `p` (its first element), `absent` past its end. */
    __device__ __forceinline__ void load(const float *__restrict__ p, float (&v)[N], float absent = 0.0f) const
    {
        TL_UNROLL_FOR (int k = 0; k < K; k++) {
            float w[W];
            piece(p, k, w, absent);
            TL_UNROLL_FOR (int j = 0; j < W; j++)
                v[k * W + j] = w[j];
        }
    }

    /* Piece k of the row at `p`, or of a vector the size of the row (gamma), `absent` past its end. */
    __device__ __forceinline__ void piece(const float *__restrict__ p, int k, float (&w)[W], float absent = 0.0f) const
    {
        const float *const from = p + first();
        if constexpr (VECTOR) {
            const float4 q = inside(W * k) ? tl_load4(from + beyond(W * k))
                                           : make_float4(absent, absent, absent, absent);
            w[0] = q.x, w[1] = q.y, w[2] = q.z, w[3] = q.w;
        } else {
            TL_UNROLL_FOR (int j = 0; j < W; j++)
                w[j] = inside(W * k + j) ? from[beyond(W * k + j)] : absent;
        }
    }

    __device__ __forceinline__ void store(float *__restrict__ p, int k, const float (&w)[W]) const
    {
        float *const to = p + first();
        if constexpr (VECTOR) {
            if (inside(W * k)) tl_store4(to + beyond(W * k), make_float4(w[0], w[1], w[2], w[3]));
        } else {
            TL_UNROLL_FOR (int j = 0; j < W; j++)
                if (inside(W * k + j)) to[beyond(W * k + j)] = w[j];
        }
    }

    /* Requests the row at `p` for `shared`, that many pieces per thread of the block; zeros past its end. */
    __device__ __forceinline__ void request(float *shared, const float *p, int pieces = K) const
    {
        constexpr int STEP = VECTOR ? 4 : 1;
        const float *const from = p + first();
#pragma unroll 8
        for (int i = 0; i < W * pieces; i += STEP)
            tl_copy_async<4 * STEP>(slot(shared, i), inside(i) ? from + beyond(i) : p, inside(i));
    }
    /* Where element i (the first of four if VECTOR) of this thread lies: neighbours of a warp side by side, and leaf after leaf, as
     * in the row, so that a last leaf takes no more than it has. */
    static __device__ __forceinline__ float *slot(float *shared, int i)
    {
        if constexpr (LEAVES_) return shared + first() + beyond(i);
        return VECTOR ? shared + 4 * ((i / 4) * (int)blockDim.x + (int)threadIdx.x)
                      : shared + i * (int)blockDim.x + (int)threadIdx.x;
    }
    static __device__ __forceinline__ void keep(float *shared, int k, const float (&w)[W])
    {
        if constexpr (VECTOR) {
            tl_store4(slot(shared, W * k), w);
        } else {
            TL_UNROLL_FOR (int j = 0; j < W; j++)
                *slot(shared, W * k + j) = w[j];
        }
    }
    static __device__ __forceinline__ void fetch(float *shared, int k, float (&w)[W])
    {
        if constexpr (VECTOR) {
            tl_load4(slot(shared, W * k), w);
        } else {
            TL_UNROLL_FOR (int j = 0; j < W; j++)
                w[j] = *slot(shared, W * k + j);
        }
    }
};

/* log2 of n, rounded up. */
static constexpr int log2_of(int n) { return n > 1 ? 1 + log2_of((n + 1) / 2) : 0; }

/* A row that is named rather than found from the block. */
struct tl_given {};

/* ---- short rows -------------------------------------------------------------------------------------------------- */

/* G threads (up to a warp) own a row of up to G·N elements, one per lane of the tree, or two where a warp has up to 2048 of them; a
 * block owns neighbouring rows. */
template <bool VECTOR_, int G, int N_>
struct tl_short_row : tl_row_layout<VECTOR_, G, VECTOR_ ? 4 : 1, VECTOR_ ? N_ / 4 : N_, false> {
    static constexpr int N = N_, THREADS = 128, ROWS = THREADS / G;
    /* Blocks per multiprocessor that the compiler leaves registers for: it would interleave all exponentials of a row. */
    static constexpr int BLOCKS = N > 48 ? 5 : N > 16 ? 6 : N > 8 ? 8 : 1, BLOCKS_OF_TWO = N > 16 ? 4 : N > 8 ? 6 : 1;
    static constexpr bool ONE_SHARED = false, SECOND_SHARED = false; /* two arrays fit the registers */

    __device__ __forceinline__ tl_short_row(int64_t rows, int64_t cols)
    {
        this->row = (int64_t)blockIdx.x * ROWS + threadIdx.x / G;
        this->n = this->row < rows ? (int)cols : 0;
    }
    __device__ __forceinline__ tl_short_row(tl_given, int64_t row_, int n_) { this->row = row_, this->n = n_; }

    /* The row's maximum from the threads' own, NaNs passed over. */
    static __device__ __forceinline__ float max(float m) { return tl_fold_group<tl_number_max_op, G>(m); }

    /* Pieces in the order that the fold of a thread's lanes in halves joins them: those of a power of two with the bits of their
     * index reversed, so that the i-th and the following steps of a binary counter meet their partners, and log2(K) + 1 pieces
     * are alive instead of K. Where K is no power of two, those that are missing are left out, as zeros. Of a row of more than 1024
     * elements the second piece of the same lanes, RUN pieces on, follows the first at once. */
    static constexpr int K = VECTOR_ ? N_ / 4 : N_, RUN = TL_SUM_LANES / (G * (VECTOR_ ? 4 : 1));
    static constexpr int LEVELS = log2_of(K < RUN ? K : RUN);
    static constexpr bool WHOLE = 1 << LEVELS == K;
    static_assert(WHOLE || (LEVELS <= 4 && K <= 16), "places of 4 bits");
    static_assert(K <= 2 * RUN, "at most two elements per lane");
    static __host__ __device__ __forceinline__ constexpr int reversed(int i)
    {
        int k = 0;
        for (int bit = 1; bit < 1 << LEVELS; bit *= 2, i /= 2)
            k = 2 * k + i % 2;
        return k;
    }
    /* The steps of the counter at which there are pieces, 4 bits each, as often as there are. */
    static constexpr uint64_t places()
    {
        uint64_t all = 0;
        for (int place = 0, i = 0; !WHOLE && place < 1 << LEVELS; place++)
            for (int k = reversed(place); k < K; k += RUN)
                all |= (uint64_t)place << 4 * i++;
        return all;
    }
    static constexpr uint64_t PLACES = places();
    static __device__ __forceinline__ constexpr int place(int i) { return WHOLE ? i : (int)(PLACES >> 4 * i & 15); }
    static __device__ __forceinline__ constexpr bool is_second(int i) { return i > 0 && place(i - 1) == place(i); }
    static __device__ __forceinline__ constexpr int order(int i)
    {
        return reversed(place(i)) + (is_second(i) ? RUN : 0);
    }

    /* The terms of a sum as they come, piece order(i) as the i-th. */
    struct terms {
        static constexpr int W = tl_short_row::W;
        float level[LEVELS + 1][W], first[W];
        __device__ __forceinline__ void add(int i, const float (&w)[W])
        {
            float a[W];
            TL_UNROLL_FOR (int j = 0; j < W; j++)
                a[j] = (is_second(i) ? first[j] : 0.0f) + w[j];
            if (i + 1 < K && is_second(i + 1)) {
                TL_UNROLL_FOR (int j = 0; j < W; j++)
                    first[j] = a[j];
                return;
            }
            TL_UNROLL_FOR (int l = 0; l <= LEVELS; l++) {
                if (i + 1 < K && place(i + 1) >> l == place(i) >> l) /* it has found its place further down */
                    continue;
                if ((place(i) >> l) & 1) {
                    TL_UNROLL_FOR (int j = 0; j < W; j++)
                        a[j] = level[l][j] + a[j];
                } else {
                    TL_UNROLL_FOR (int j = 0; j < W; j++)
                        level[l][j] = a[j];
                }
            }
        }
        __device__ __forceinline__ float sum() const
        {
            if constexpr (VECTOR_)
                return tl_fold_group<tl_sum_op, G>(
                    make_float4(level[LEVELS][0], level[LEVELS][1], level[LEVELS][2], level[LEVELS][3]));
            else
                return tl_fold_group<tl_sum_op, G>(level[LEVELS][0]);
        }
    };

    static __device__ __forceinline__ void sum2(const terms &u, const terms &v, float *su, float *sv)
    {
        *su = u.sum();
        *sv = v.sum();
    }
};

/* ---- rows of one to three leaves --------------------------------------------------------------------------------- */

/* A block owns a row, 256 threads a leaf of it: thread t lanes 4t..4t+3 (VECTOR) or t, t+256, t+512, t+768 of each run
 * of 1024 elements. Without VECTOR a piece may be less than such a run, so that the pieces end where a short row does. */
template <bool VECTOR_, int STEPS, int LEAVES, int W_ = 4>
struct tl_block_row : tl_row_layout<VECTOR_, 256, W_, STEPS, (LEAVES > 1)> {
    static constexpr int N = W_ * STEPS, THREADS = 256 * LEAVES, ROWS = 1;
    static_assert(4 % W_ == 0 && (W_ == 4 || (!VECTOR_ && N <= 16)), "a run, or part of one held in registers");
    /* Where one array, or the second of two, is held, and blocks per multiprocessor: 64 registers or 64 KiB for an
     * array of a whole leaf, and at least 64 KiB of loads in flight. Two leaves, if the second is short, leave room for another
     * block, which loads while this one computes. */
    static constexpr bool ONE_SHARED = N > 16, SECOND_SHARED = N > 16;
    static constexpr int BLOCKS = LEAVES > 2 ? 1 : LEAVES > 1 ? 2 : N > 16 ? 3 : 4;
    static constexpr int BLOCKS_OF_TWO = LEAVES > 1 ? 1 : N > 48 ? 1 + VECTOR_ : N > 24 ? 2 : 3;
    static_assert(LEAVES == 1 || 4 * 256 * STEPS == TL_SUM_LEAF, "a leaf per 256 threads");

    __device__ __forceinline__ tl_block_row(int64_t, int64_t cols) { this->row = blockIdx.x, this->n = (int)cols; }
    __device__ __forceinline__ tl_block_row(tl_given, int64_t row_, int n_) { this->row = row_, this->n = n_; }

    static __device__ __forceinline__ float max(float m)
    {
        __shared__ float warps[THREADS / 32];
        m = tl_fold_group<tl_number_max_op, 32>(m);
        if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = m;
        __syncthreads();
        TL_UNROLL_FOR (int w = 0; w < THREADS / 32; w++)
            m = fmaxf(m, warps[w]);
        return m;
    }

    /* Lanes that the threads of a leaf exchange, array 0 or 1. A kernel that takes one sum and then two has both arrays once:
     * three leaves of a row leave 35 KiB of a multiprocessor's shared memory. */
    template <int WHICH> static __device__ __forceinline__ float4 *lanes_of(int leaf)
    {
        __shared__ float4 shared[LEAVES][256];
        return shared[leaf];
    }
    /* A warp folds the 1024 lanes of a leaf. */
    static __device__ __forceinline__ float fold(const float4 *shared)
    {
        using T = std::conditional_t<VECTOR_, float4, float>; /* a thread's four lanes, or their fold */
        const int t = (int)threadIdx.x % 32;
        T w[8];
        TL_UNROLL_FOR (int j = 0; j < 8; j++)
            w[j] = reinterpret_cast<const T *>(shared)[t + 32 * j];
        return tl_fold_group<tl_sum_op, 32>(tl_fold_array<tl_sum_op, 8>(w));
    }
    static __device__ __forceinline__ void put(float4 *shared, float4 a)
    {
        const int t = (int)threadIdx.x % 256;
        if constexpr (VECTOR_)
            shared[t] = a;
        else
            reinterpret_cast<float *>(shared)[t] = (a.x + a.z) + (a.y + a.w);
    }
    /* The leaves' sums are a row of LEAVES elements. */
    static __device__ __forceinline__ float join(const float *leaf)
    {
        if constexpr (LEAVES == 1)
            return leaf[0];
        else if constexpr (LEAVES == 2)
            return leaf[0] + leaf[1];
        else
            return (leaf[0] + leaf[2]) + leaf[1];
    }

    static __device__ __forceinline__ constexpr int order(int i) { return i; }

    /* The terms of a sum as they come, piece by piece: a thread's four lanes. */
    struct terms {
        float4 lanes = {0.0f, 0.0f, 0.0f, 0.0f};
        __device__ __forceinline__ void add(int i, const float (&w)[W_])
        {
            if constexpr (W_ == 4) {
                lanes = tl_join<tl_sum_op>(lanes, make_float4(w[0], w[1], w[2], w[3]));
            } else {
                float *const lane[4] = {&lanes.x, &lanes.y, &lanes.z, &lanes.w};
                TL_UNROLL_FOR (int j = 0; j < W_; j++)
                    *lane[(W_ * i + j) % 4] += w[j];
            }
        }
        __device__ __forceinline__ float sum() const
        {
            __shared__ float leaf[LEAVES];
            const int l = LEAVES == 1 ? 0 : (int)threadIdx.x / 256;
            put(lanes_of<0>(l), lanes);
            __syncthreads();
            if (threadIdx.x % 256 < 32) {
                const float s = fold(lanes_of<0>(l));
                if (threadIdx.x % 32 == 0) leaf[l] = s;
            }
            __syncthreads();
            return join(leaf);
        }
    };

    /* Two sums at once: warp 0 folds one, warp 1 the other. */
    static __device__ __forceinline__ void sum2(const terms &u, const terms &v, float *su, float *sv)
    {
        __shared__ float leaf[2][LEAVES];
        const int l = LEAVES == 1 ? 0 : (int)threadIdx.x / 256, w = (int)threadIdx.x % 256 / 32;
        put(lanes_of<0>(l), u.lanes);
        put(lanes_of<1>(l), v.lanes);
        __syncthreads();
        if (w < 2) {
            const float s = fold(w == 0 ? lanes_of<0>(l) : lanes_of<1>(l));
            if (threadIdx.x % 32 == 0) leaf[w][l] = s;
        }
        __syncthreads();
        *su = join(leaf[0]);
        *sv = join(leaf[1]);
    }
};

/* ---- a row held on chip ------------------------------------------------------------------------------------------ */

TL_DYNAMIC_SHARED(float4, tl_dynamic_shared);

/* A row of an array: in registers, `absent` past its end, or in the block's dynamic shared memory (SHARED), 0 past its end. That
 * holds the pieces that the row reaches (tl_row_bytes), so that as many blocks as can be load while others compute, or with WHOLE
 * those of the longest row (tl_whole_row_bytes). Each thread meets only its own elements, so shared memory needs no barrier. */
template <class Row, bool SHARED, bool WHOLE = false> struct tl_held {
    static constexpr int UNROLL = SHARED ? 4 : Row::K; /* registers take no run-time index */
    float v[SHARED ? 1 : Row::N];

    static __device__ __forceinline__ float *shared() { return reinterpret_cast<float *>(tl_dynamic_shared); }
    __device__ __forceinline__ void load(const Row &r, const float *__restrict__ p, float absent = 0.0f)
    {
        if constexpr (SHARED) {
            r.request(shared(), p, pieces(r));
            tl_copy_commit();
        } else {
            r.load(p, v, absent);
        }
    }
    __device__ __forceinline__ void wait()
    {
        if constexpr (SHARED) tl_copy_wait<0>();
    }
    /* Those that may be got and put. */
    static __device__ __forceinline__ int pieces(const Row &r) { return SHARED && !WHOLE ? r.pieces() : Row::K; }
    __device__ __forceinline__ void get(int k, float (&w)[Row::W]) const
    {
        if constexpr (SHARED) {
            Row::fetch(shared(), k, w);
        } else {
            TL_UNROLL_FOR (int j = 0; j < Row::W; j++)
                w[j] = v[k * Row::W + j];
        }
    }
    __device__ __forceinline__ void put(int k, const float (&w)[Row::W])
    {
        if constexpr (SHARED) {
            Row::keep(shared(), k, w);
        } else {
            TL_UNROLL_FOR (int j = 0; j < Row::W; j++)
                v[k * Row::W + j] = w[j];
        }
    }
};

template <class Row, bool SHARED>
constexpr size_t tl_whole_row_bytes = SHARED ? sizeof(float) * Row::THREADS * Row::N : 0;

template <class Row, bool SHARED> static size_t tl_row_bytes(int64_t cols)
{
    constexpr int64_t PIECE = Row::T * Row::W;
    return SHARED ? sizeof(float) * (size_t)(tl_ceil_div(cols, PIECE) * PIECE) : 0;
}

/* ---- choosing ---------------------------------------------------------------------------------------------------- */

enum { TL_ROW_FITS = 3 * TL_SUM_LEAF }; /* the longest row held on chip */

template <class Row> struct tl_row_type {
    typedef Row type;
};

#define TL_PICK(most, ...)     if (cols <= (most))        return launch(tl_row_type<__VA_ARGS__>())

/* The part of tl_pick_row for more than 256 elements. */
template <bool VECTOR, class Launch> static int32_t tl_pick_long_row(int64_t cols, Launch launch)
{
    TL_PICK(384, tl_short_row<VECTOR, 32, 12>);
    TL_PICK(512, tl_short_row<VECTOR, 32, 16>);
    if constexpr (VECTOR) TL_PICK(768, tl_short_row<VECTOR, 32, 24>);
    TL_PICK(1024, tl_short_row<VECTOR, 32, 32>);
    if constexpr (!VECTOR) {
        TL_PICK(1280, tl_block_row<false, 5, 1, 1>);
        TL_PICK(1536, tl_block_row<false, 3, 1, 2>);
    }
    TL_PICK(2048, tl_block_row<VECTOR, 2, 1>);
    if constexpr (!VECTOR) TL_PICK(2560, tl_block_row<false, 5, 1, 2>);
    TL_PICK(3072, tl_block_row<VECTOR, 3, 1>);
    TL_PICK(4096, tl_block_row<VECTOR, 4, 1>);
    TL_PICK(8192, tl_block_row<VECTOR, 8, 1>);
    TL_PICK(12288, tl_block_row<VECTOR, 12, 1>);
    TL_PICK(TL_SUM_LEAF, tl_block_row<VECTOR, 16, 1>);
    TL_PICK(2 * TL_SUM_LEAF, tl_block_row<VECTOR, 16, 2>);
    return launch(tl_row_type<tl_block_row<VECTOR, 16, 3>>());
}

/* The status of launch(tl_row_type<Row>()) for the row of `cols` <= TL_ROW_FITS elements, which start on 16 bytes where
 * `cols` is a multiple of 4. A thread has 8 to 32 elements where it can: what threads do for a row rather than for an element,
 * their exchanges above all, is as much for one as for many. And there are steps between the powers of two, since a place past
 * the end of a row takes as long as an element. */
template <class Launch> static int32_t tl_pick_row(int64_t cols, Launch launch)
{
    if (cols % 4 == 0) {
        TL_PICK(16, tl_short_row<true, 4, 4>);
        TL_PICK(64, tl_short_row<true, 8, 8>);
        TL_PICK(96, tl_short_row<true, 8, 12>);
        TL_PICK(128, tl_short_row<true, 8, 16>);
        TL_PICK(256, tl_short_row<true, 16, 16>);
        return tl_pick_long_row<true>(cols, launch);
    }
    /* Elements arrive 4 bytes at a time: at least four loads per thread are in flight, and several rows per warp. */
    TL_PICK(4, tl_short_row<false, 4, 1>);
    TL_PICK(16, tl_short_row<false, 4, 4>);
    TL_PICK(32, tl_short_row<false, 8, 4>);
    TL_PICK(64, tl_short_row<false, 16, 4>);
    TL_PICK(128, tl_short_row<false, 16, 8>);
    TL_PICK(256, tl_short_row<false, 32, 8>);
    return tl_pick_long_row<false>(cols, launch);
}

#undef TL_PICK

/* tl_pick_row, but a warp has a row of 1028 to 2048 aligned elements where each multiprocessor has eight or more of these: it takes
 * no barriers, and has loads of all its rows in flight where a block's warps wait for the one that folds their sum. Fewer rows are a
 * block's, which is done with one sooner. For kernels that hold one array. */
template <class Launch> static int32_t tl_pick_row_of_many(tl_context *ctx, int64_t rows, int64_t cols, Launch launch)
{
    if (cols % 4 == 0 && cols > TL_SUM_LANES && cols <= 2 * TL_SUM_LANES && rows >= 8 * (int64_t)tl_cuda_sms(ctx))
        return cols <= 1280   ? launch(tl_row_type<tl_short_row<true, 32, 40>>())
               : cols <= 1536 ? launch(tl_row_type<tl_short_row<true, 32, 48>>())
                              : launch(tl_row_type<tl_short_row<true, 32, 64>>());
    return tl_pick_row(cols, launch);
}

/* Launches kernel<Row>(arguments...) with a block, or a part of one, per row and `dynamic` bytes of shared memory. */
template <class Row, class... Parameters, class... Arguments>
static int32_t tl_launch_rows(tl_context *ctx, const char *name, void (*kernel)(Parameters...), int64_t rows,
                              size_t dynamic, Arguments... arguments)
{
    if (dynamic > 0) TL_TRY(tl_allow_shared(ctx, kernel, dynamic));
    return tl_launch_dynamic(ctx, name, kernel, tl_grid(rows, Row::ROWS), Row::THREADS, dynamic, arguments...);
}

/* ---- rows that do not fit ---------------------------------------------------------------------------------------- */

/* A term or a result of a long row is a struct F with `void row(int64_t row)`, which reads the row's statistics once,
 * and `float at(int64_t i, int64_t column)`, element i of the array, in that column of its row. */

/* A block sums one leaf: thread t lanes t, t+256, t+512, t+768. */
template <class F>
__global__ void __launch_bounds__(TL_TREE_THREADS)
    tl_leaf_sums(F f, uint32_t per_row, int64_t cols, int64_t count, float *out)
{
    __shared__ float shared[TL_TREE_THREADS];
    tl_wait_for_earlier();
    const int64_t row = blockIdx.x / per_row, start = (int64_t)(blockIdx.x % per_row) * TL_SUM_LEAF;
    const int n = (int)min(cols - start, (int64_t)TL_SUM_LEAF);
    float lanes[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    f.row(row);
#pragma unroll 4
    for (int k = 0; k < n; k += TL_SUM_LANES)
        TL_UNROLL_FOR (int j = 0; j < 4; j++) {
            const int c = k + j * TL_TREE_THREADS + (int)threadIdx.x;
            lanes[j] += c < n ? f.at(row * cols + start + c, start + c) : 0.0f;
        }
    const float s = tl_fold_block<tl_sum_op>(tl_fold_array<tl_sum_op, 4>(lanes), shared);
    if (threadIdx.x == 0) out[blockIdx.x] = tl_end_sum(s, count);
}

template <class F>
__global__ void __launch_bounds__(TL_TREE_THREADS)
    tl_leaf_map(F f, uint32_t per_row, int64_t cols, float *__restrict__ out)
{
    const int64_t row = blockIdx.x / per_row, start = (int64_t)(blockIdx.x % per_row) * TL_SUM_LEAF;
    const int n = (int)min(cols - start, (int64_t)TL_SUM_LEAF);
    f.row(row);
#pragma unroll 8
    for (int c = (int)threadIdx.x; c < n; c += TL_TREE_THREADS)
        out[row * cols + start + c] = f.at(row * cols + start + c, start + c);
}

/* out[row] = the sum of f over the row; with count > 0 divided by it. */
template <class F>
static int32_t tl_long_row_sums(tl_context *ctx, const char *name, F f, int64_t rows, int64_t cols, int64_t count,
                                float *out)
{
    const int64_t per_row = tl_ceil_div(cols, TL_SUM_LEAF);
    const auto leaves = [&](int64_t last, float *to) {
        return tl_launch_ahead(ctx, name, tl_leaf_sums<F>, (unsigned)(rows * per_row), TL_TREE_THREADS, 0, f,
                               (uint32_t)per_row, cols, last, to);
    };
    if (per_row == 1) return leaves(count, out);
    tl_scratch<float> parts(ctx);
    TL_TRY(parts.allocate(rows * per_row));
    TL_TRY(leaves(0, parts));
    return tl_cuda_row_sums(ctx, parts, rows, per_row, count, out);
}

template <class F>
static int32_t tl_long_row_map(tl_context *ctx, const char *name, F f, int64_t rows, int64_t cols, float *out)
{
    const int64_t per_row = tl_ceil_div(cols, TL_SUM_LEAF);
    return tl_launch(ctx, name, tl_leaf_map<F>, (unsigned)(rows * per_row), TL_TREE_THREADS, f, (uint32_t)per_row, cols,
                     out);
}
