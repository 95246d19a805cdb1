/* Rows held on chip, for kernels that read a row once, reduce it (several times) and write it: who owns which element,
 * how the row is loaded and stored, and its sums in the order of the row tree (formula/sum_tree.h).
 *
 *   tl_short_row    up to 1024 elements: 4 to 32 threads own a row, in registers
 *   tl_block_row    up to 16384, a leaf: a block of 256 threads owns it, in registers or shared memory
 *
 * Longer rows are a cluster's (device/cluster_row.cuh), or are read once per reduction (reduce/long_rows.cuh).
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

/* T threads per row; thread t of them holds K pieces of W elements, which are consecutive (VECTOR) or T apart. */
template <bool VECTOR_, int T_, int W_, int K_> struct tl_row_layout {
    static constexpr bool VECTOR = VECTOR_;
    static constexpr int T = T_, W = W_, K = K_, N = W * K;
    int64_t row; /* its index */
    int n;       /* its length, 0 for a row past the last */

    static __device__ __forceinline__ int thread() { return (int)threadIdx.x % T; }
    /* Where this thread's elements begin, and how far from there element i lies: a constant. So the place of an element is one
     * addition, which its access has for nothing. */
    static __device__ __forceinline__ int first() { return VECTOR ? 4 * thread() : thread(); }
    static __device__ __forceinline__ constexpr int beyond(int i) { return VECTOR ? 4 * T * (i / 4) + i % 4 : T * i; }
    __device__ __forceinline__ int column(int i) const { return first() + beyond(i); }
    __device__ __forceinline__ bool inside(int i) const { return beyond(i) < n - first(); }
    /* The pieces that the row reaches; the same for all its threads. */
    __device__ __forceinline__ int pieces() const { return min(K, (n + T * W - 1) / (T * W)); }
    /* One thread of the row's. */
    __device__ __forceinline__ bool leads() const { return thread() == 0; }

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
    /* Where element i (the first of four if VECTOR) of this thread lies: neighbours of a warp side by side. */
    static __device__ __forceinline__ float *slot(float *shared, int i)
    {
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

/* G threads (up to a warp) own a row of up to G·N elements, one per lane of the tree; a block owns neighbouring rows. */
template <bool VECTOR_, int G, int N_>
struct tl_short_row : tl_row_layout<VECTOR_, G, VECTOR_ ? 4 : 1, VECTOR_ ? N_ / 4 : N_> {
    static constexpr int N = N_, THREADS = 128, ROWS = THREADS / G;
    /* Blocks per multiprocessor that the compiler leaves registers for: it would interleave all exponentials of a row. */
    static constexpr int BLOCKS = N > 16 ? 6 : N > 8 ? 8 : 1, BLOCKS_OF_TWO = N > 16 ? 4 : N > 8 ? 6 : 1;
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
     * are alive instead of K. Where K is no power of two, those that are missing are left out, as zeros. */
    static constexpr int K = VECTOR_ ? N_ / 4 : N_, LEVELS = log2_of(K);
    static constexpr bool WHOLE = 1 << LEVELS == K;
    static_assert(WHOLE || (LEVELS <= 4 && K <= 16), "places of 4 bits");
    static_assert(G * N_ <= TL_SUM_LANES, "one element per lane");
    static __host__ __device__ __forceinline__ constexpr int reversed(int i)
    {
        int k = 0;
        for (int bit = 1; bit < 1 << LEVELS; bit *= 2, i /= 2)
            k = 2 * k + i % 2;
        return k;
    }
    /* The steps of the counter at which there are pieces, 4 bits each. */
    static constexpr uint64_t places()
    {
        uint64_t all = 0;
        for (int place = 0, i = 0; !WHOLE && place < 1 << LEVELS; place++)
            if (reversed(place) < K) all |= (uint64_t)place << 4 * i++;
        return all;
    }
    static constexpr uint64_t PLACES = places();
    static __device__ __forceinline__ constexpr int place(int i) { return WHOLE ? i : (int)(PLACES >> 4 * i & 15); }
    static __device__ __forceinline__ constexpr int order(int i) { return reversed(place(i)); }

    /* The terms of a sum as they come, piece order(i) as the i-th. */
    struct terms {
        static constexpr int W = tl_short_row::W;
        float level[LEVELS + 1][W];
        __device__ __forceinline__ void add(int i, const float (&w)[W])
        {
            float a[W];
            TL_UNROLL_FOR (int j = 0; j < W; j++)
                a[j] = 0.0f + w[j];
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

/* ---- rows of a leaf ---------------------------------------------------------------------------------------------- */

/* A block owns a row: thread t lanes 4t..4t+3 (VECTOR) or t, t+256, t+512, t+768 of each run of 1024 elements. */
template <bool VECTOR_, int STEPS> struct tl_block_row : tl_row_layout<VECTOR_, TL_TREE_THREADS, 4, STEPS> {
    static constexpr int N = 4 * STEPS, THREADS = TL_TREE_THREADS, ROWS = 1;
    /* Where one array, or the second of two, is held, and blocks per multiprocessor: 64 registers or 64 KiB for an array of a whole
     * leaf, and at least 64 KiB of loads in flight. */
    static constexpr bool ONE_SHARED = N > 16, SECOND_SHARED = N > 16;
    static constexpr int BLOCKS = N > 16 ? 3 : 4, BLOCKS_OF_TWO = N > 48 ? 1 + VECTOR_ : N > 24 ? 2 : 3;
    static_assert(STEPS * TL_SUM_LANES <= TL_SUM_LEAF, "a leaf");

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

    using lanes_of_thread = std::conditional_t<VECTOR_, float4, float>; /* a thread's four lanes, or their fold */

    /* Lanes that the threads exchange, array 0 or 1. A kernel that takes one sum and then two has both arrays once. */
    template <int WHICH> static __device__ __forceinline__ lanes_of_thread *lanes_of()
    {
        __shared__ lanes_of_thread shared[THREADS];
        return shared;
    }
    static __device__ __forceinline__ lanes_of_thread own(float4 a)
    {
        if constexpr (VECTOR_)
            return a;
        else
            return (a.x + a.z) + (a.y + a.w);
    }
    /* A warp folds the 1024 lanes. */
    static __device__ __forceinline__ float fold(const lanes_of_thread *shared)
    {
        lanes_of_thread w[8];
        TL_UNROLL_FOR (int j = 0; j < 8; j++)
            w[j] = shared[threadIdx.x % 32 + 32 * j];
        return tl_fold_group<tl_sum_op, 32>(tl_fold_array<tl_sum_op, 8>(w));
    }

    static __device__ __forceinline__ constexpr int order(int i) { return i; }

    /* The terms of a sum as they come, piece by piece: a thread's four lanes. */
    struct terms {
        float4 lanes = {0.0f, 0.0f, 0.0f, 0.0f};
        __device__ __forceinline__ void add(int, const float (&w)[4])
        {
            lanes = tl_join<tl_sum_op>(lanes, make_float4(w[0], w[1], w[2], w[3]));
        }
        __device__ __forceinline__ float sum() const
        {
            __shared__ float total;
            lanes_of<0>()[threadIdx.x] = own(lanes);
            __syncthreads();
            if (threadIdx.x < 32) {
                const float s = fold(lanes_of<0>());
                if (threadIdx.x == 0) total = s;
            }
            __syncthreads();
            return total;
        }
    };

    /* Two sums at once: warp 0 folds one, warp 1 the other. */
    static __device__ __forceinline__ void sum2(const terms &u, const terms &v, float *su, float *sv)
    {
        __shared__ float totals[2];
        const int warp = (int)threadIdx.x / 32;
        lanes_of<0>()[threadIdx.x] = own(u.lanes);
        lanes_of<1>()[threadIdx.x] = own(v.lanes);
        __syncthreads();
        if (warp < 2) {
            const float s = fold(warp == 0 ? lanes_of<0>() : lanes_of<1>());
            if (threadIdx.x % 32 == 0) totals[warp] = s;
        }
        __syncthreads();
        *su = totals[0];
        *sv = totals[1];
    }
};

/* ---- a row held on chip ------------------------------------------------------------------------------------------ */

TL_DYNAMIC_SHARED(float4, tl_dynamic_shared);

/* A row of an array: in registers, `absent` past its end, or in the block's dynamic shared memory (SHARED), 0 past its end. That
 * holds the pieces that the row reaches (tl_row_bytes), so that as many blocks as can be load while others compute, or with WHOLE
 * those of the longest row (tl_whole_row_bytes). Each thread meets only its own elements, so shared memory needs no barrier. */
template <class Row, bool SHARED, bool WHOLE = false> struct tl_held {
    static constexpr bool IS_SHARED = SHARED;
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

template <class Row> struct tl_row_type {
    typedef Row type;
};

#define TL_PICK(most, ...) \
    if (cols <= (most)) return launch(tl_row_type<__VA_ARGS__>())

/* The status of launch(tl_row_type<Row>()) for the row of `cols` <= TL_SUM_LEAF elements, which start on 16 bytes where
 * `cols` is a multiple of 4. A thread has 8 to 32 elements where it can: what threads do for a row rather than for an element,
 * their exchanges above all, is as much for one as for many. And there are steps between the powers of two at the widths of
 * models, since a place past the end of a row takes as long as an element. Elements of other rows arrive 4 bytes at a time: at least
 * four loads per thread are in flight, and several rows per warp. */
template <class Launch> static int32_t tl_pick_row(int64_t cols, Launch launch)
{
    if (cols % 4 == 0) {
        TL_PICK(64, tl_short_row<true, 8, 8>);
        TL_PICK(96, tl_short_row<true, 8, 12>);
        TL_PICK(128, tl_short_row<true, 8, 16>);
        TL_PICK(256, tl_short_row<true, 16, 16>);
        TL_PICK(384, tl_short_row<true, 32, 12>);
        TL_PICK(512, tl_short_row<true, 32, 16>);
        TL_PICK(768, tl_short_row<true, 32, 24>);
        TL_PICK(1024, tl_short_row<true, 32, 32>);
        TL_PICK(2048, tl_block_row<true, 2>);
        TL_PICK(4096, tl_block_row<true, 4>);
        TL_PICK(8192, tl_block_row<true, 8>);
        return launch(tl_row_type<tl_block_row<true, 16>>());
    }
    TL_PICK(16, tl_short_row<false, 4, 4>);
    TL_PICK(64, tl_short_row<false, 16, 4>);
    TL_PICK(256, tl_short_row<false, 32, 8>);
    TL_PICK(1024, tl_short_row<false, 32, 32>);
    TL_PICK(4096, tl_block_row<false, 4>);
    return launch(tl_row_type<tl_block_row<false, 16>>());
}

#undef TL_PICK

/* Launches kernel<Row>(arguments...) with a block, or a part of one, per row and `dynamic` bytes of shared memory. */
template <class Row, class... Parameters, class... Arguments>
static int32_t tl_launch_rows(tl_context *ctx, const char *name, void (*kernel)(Parameters...), int64_t rows,
                              size_t dynamic, Arguments... arguments)
{
    if (dynamic > 0) TL_TRY(tl_allow_shared(ctx, kernel, dynamic));
    return tl_launch_dynamic(ctx, name, kernel, tl_grid(rows, Row::ROWS), Row::THREADS, dynamic, arguments...);
}
