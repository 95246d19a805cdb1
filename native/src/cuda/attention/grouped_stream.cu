/* Kernels of attention/grouped.cu for rows of more than 128 elements, which with all that a tile needs leave a multiprocessor room
 * for one block, whose products then wait for copies. Here both sides of a product, and the rows that weights are multiplied by,
 * go through shared memory in chunks, of which the next is under way while one is used; so several blocks fit, rows may be of any
 * length, and a thread has results of 8 rows, for which it reads half as much from shared memory as for those of 4.
 *
 * Every result is the same chain as there. Rows and keys are counted by int: more would not fit into any memory. */
#include "cuda/attention/grouped_stream.cuh"
#include "cuda/attention/grouped_launch.cuh"

namespace attention {
namespace grouped {

/* DP: columns of a result that a block makes. */
template <int DP_, int ROWS_, int COLS_, int BLOCKS_>
struct Stream : Paired<Config<DP_, ROWS_, COLS_, 8, 16, BLOCKS_, true>> {
    using Product = Paired<Config<32, ROWS_, COLS_, 8, 16, BLOCKS_, true>>; /* a chunk of both sides */
    using Columns = Config<DP_, ROWS_, COLS_, 8, 16, BLOCKS_>;              /* of rows that weights are multiplied by */
    static constexpr int STAGE = (ROWS_ + COLS_) * Product::LD, TERMS = STAGE < 16 * Columns::LD ? 8 : 16;
    static_assert(TERMS * Columns::LD <= STAGE && COLS_ % TERMS == 0, "a chunk");
};

/* Rows in memory, and the member's first one. */
struct Array {
    const float *x;
    Problem of; /* as copy_rows() takes it */

    __device__ __forceinline__ Array(const float *all, int64_t b, int64_t n, int64_t width, bool wide)
        : x(all + b * n * width), of()
    {
        of.n = n, of.d = width, of.wide = wide;
    }
};

/* The two chunks in shared memory: the one that free() names is copied to, the one that arrive() gave is used. */
template <class C> struct Chunks {
    static constexpr int FLOATS = 2 * C::STAGE;
    float *memory;
    int stage;

    __device__ __forceinline__ float *free() const { return memory + stage * C::STAGE; }
    /* Waits for what was copied last. A barrier: all have used the chunk before, to whose place copies go now. */
    __device__ __forceinline__ float *arrive()
    {
        float *const chunk = free();
        attention::arrive();
        stage ^= 1;
        return chunk;
    }
    __device__ __forceinline__ void start_product(const Array &A, int i, const Array &B, int j, int k) const
    {
        asm volatile("" : "+r"(i), "+r"(j)); /* addresses that are made ahead of the loop have no registers to lie in */
        copy_rows<typename C::Product, C::ROWS>(free(), A.x, i, A.of, k);
        copy_rows<typename C::Product, C::COLS>(free() + C::ROWS * C::Product::LD, B.x, j, B.of, k);
    }
    __device__ __forceinline__ void start_terms(const Array &X, int first, int from) const
    {
        copy_rows<typename C::Columns, C::TERMS>(free(), X.x, first, X.of, from);
    }

    /* s += A·Bᵀ of the rows from i and from j on, whose first chunk is under way; then() starts what comes behind the last. */
    template <class Then>
    __device__ __forceinline__ void product(float (&s)[C::RM][C::RK], const Array &A, int64_t i, const Array &B,
                                            int64_t j, Then then)
    {
        constexpr int WIDTH = C::Product::DP;
        bool more = true;
        for (int k = 0; more; k += WIDTH) {
            const float *const As = arrive();
            more = k + WIDTH < A.of.d;
            if (more)
                start_product(A, i, B, j, k + WIDTH);
            else
                then();
            attention::product<typename C::Product>(As, As + C::ROWS * C::Product::LD, steps(A.of.d, k, WIDTH), s);
        }
    }

    /* sums += W·X of the COLS rows of X from `first` on, whose first chunk is under way. */
    __device__ __forceinline__ void accumulate(const float *W, float (&sums)[C::RM][C::RC], const Array &X,
                                               int64_t first, int64_t from)
    {
        const int present = X.of.n - first < C::COLS ? (int)(X.of.n - first) : C::COLS;
        for (int k = 0; k < present; k += C::TERMS) {
            const float *const Xs = arrive();
            if (k + C::TERMS < present) start_terms(X, first + k + C::TERMS, from);
            attention::accumulate<C, C::TERMS>(W + k, Xs, sums, groups<C>(X.of.d, from));
        }
        if (present + C::TERMS > C::COLS) return;
        /* what whole chunks of rows that do not exist would add */
        TL_UNROLL_FOR (int i = 0; i < C::RM; i++)
            TL_UNROLL_FOR (int c = 0; c < C::RC; c++)
                sums[i][c] += 0.0f;
    }
};

template <class C> constexpr size_t stream_shared()
{
    constexpr int of_rows = (Rows::FLOATS + STATISTICS) * (C::ROWS > C::COLS ? C::ROWS : C::COLS);
    return sizeof(float) * (size_t)(of_rows + C::ROWS * C::LP + Chunks<C>::FLOATS);
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

/* Divides the thread's elements of a row by its total: of the divisions all take the short way or none does. A column that does not
 * exist is +0, for which division itself would take the long one. */
template <int RC> __device__ __forceinline__ void divide_row(float (&x)[RC], float total)
{
    bool quick = total <= 0x1p20f;
    TL_UNROLL_FOR (int c = 0; c < RC; c++)
        quick &= (tl_bits(x[c]) == 0) | ((fabsf(x[c]) > 0x1p-100f) & (fabsf(x[c]) < 0x1p100f));
    if (quick) {
        const float inverse = 1.0f / total;
        TL_UNROLL_FOR (int c = 0; c < RC; c++)
            x[c] = divide_by_total(x[c], total, inverse);
    } else {
        TL_UNROLL_FOR (int c = 0; c < RC; c++)
            x[c] = x[c] / total;
    }
}

template <class C> __global__ void __launch_bounds__(C::THREADS, C::BLOCKS) stream_forward_kernel(const Args a)
{
    TL_DYNAMIC_SHARED(float, shared);
    Rows limits(shared, C::ROWS);
    float *const Ps = shared + Rows::FLOATS * C::ROWS;
    Chunks<C> chunks = {Ps + C::ROWS * C::LP, 0};
    const int tx = C::tx(), ty = C::ty();
    const int64_t b = blockIdx.x / a.blocks;
    const int i0 = (int)(blockIdx.x % a.blocks) * C::ROWS, from = (int)(a.chunk + blockIdx.y) * C::DP;
    const Array Q(a.Q, b, a.rows, a.d, a.wide_d), K(a.K, b, a.keys, a.d, a.wide_d), V(a.V, b, a.keys, a.v, a.wide_v);

    limits.find(a, b, i0, C::ROWS);
    __syncthreads();
    int64_t first = 0, last = a.keys;
    if (a.limited) cut_to_window<C::COLS>(a, limits, C::ROWS, a.finite_v, b, &first, &last);
    float sums[C::RM][C::RC] = {};
    Softmax<C> softmax;
    for (int j0 = (int)first; j0 < (int)last; j0 += C::COLS) {
        if (a.limited && !__syncthreads_or(limits.meet(C::ROWS, j0, j0 + C::COLS) ||
                                           !finite_rows<C::COLS>(a.finite_v, a.keys, b, j0)))
            continue;
        float s[C::RM][C::RK] = {};
        chunks.start_product(Q, i0, K, j0, 0);
        chunks.product(s, Q, i0, K, j0, [&] { chunks.start_terms(V, j0, from); });
        tile_scores<C, false>(a, limits, j0, s);
        TL_UNROLL_FOR (int i = 0; i < C::RM; i++) {
            const float factor = softmax.step(i, s[i]);
            TL_UNROLL_FOR (int c = 0; c < C::RC; c++)
                sums[i][c] *= factor;
            TL_UNROLL_FOR (int j = 0; j < C::RK; j++)
                Ps[(ty + C::TY * i) * C::LP + tx + C::TX * j] = s[i][j];
        }
        __syncwarp(); /* a row is a warp's own */
        chunks.accumulate(Ps, sums, V, j0, from);
        __syncwarp();
    }
    TL_UNROLL_FOR (int i = 0; i < C::RM; i++) {
        const float total = softmax.total(i);
        const int64_t row = i0 + ty + C::TY * i;
        divide_row(sums[i], total);
        if (row < a.rows) store<C>(a.result + (b * a.rows + row) * a.v, sums[i], a.v, from);
    }
}

/* ---- the pass over queries --------------------------------------------------------------------------------------- */

/* D of every row of every member, the chain over its elements in order, as g·v_j is one. A block has 32 rows, which it copies a
 * chunk at a time, and a lane of its first warp a row. */
struct Dots {
    static constexpr int ROWS = 32, WIDTH = 64;
    using C = Config<WIDTH, ROWS, 64, 8, 16, 1, true>;
};
static __global__ void __launch_bounds__(Dots::C::THREADS) dots_kernel(const Args a)
{
    using C = Dots::C;
    __shared__ __align__(16) float memory[2][2][Dots::ROWS * C::LD];
    const int64_t all = a.members * a.rows, first = (int64_t)blockIdx.x * Dots::ROWS;
    const Array g(a.g, 0, all, a.v, a.wide_v), out(a.out, 0, all, a.v, a.wide_v && tl_aligned4(a.out));
    const auto start = [&](int stage, int64_t from) {
        copy_rows<C, Dots::ROWS>(memory[stage][0], g.x, first, g.of, from);
        copy_rows<C, Dots::ROWS>(memory[stage][1], out.x, first, out.of, from);
    };
    float dot = 0.0f;
    int stage = 0;
    start(stage, 0);
    for (int64_t from = 0; from < a.v; from += Dots::WIDTH, stage ^= 1) {
        arrive();
        if (from + Dots::WIDTH < a.v) start(stage ^ 1, from + Dots::WIDTH);
        if (threadIdx.x >= Dots::ROWS) continue;
        const float *const x = memory[stage][0] + threadIdx.x * C::LD, *const y = memory[stage][1] +
                                                                                  threadIdx.x * C::LD;
        const int count = a.v - from < Dots::WIDTH ? (int)(a.v - from) : Dots::WIDTH;
#pragma unroll 4
        for (int c = 0; c + 4 <= count; c += 4) {
            const float4 p = tl_load4(x + c), q = tl_load4(y + c);
            dot = fmaf(p.w, q.w, fmaf(p.z, q.z, fmaf(p.y, q.y, fmaf(p.x, q.x, dot))));
        }
        for (int c = count / 4 * 4; c < count; c++)
            dot = fmaf(x[c], y[c], dot);
    }
    if (threadIdx.x < Dots::ROWS && first + threadIdx.x < all) a.dot[first + threadIdx.x] = dot;
}

template <class C> __global__ void __launch_bounds__(C::THREADS, C::BLOCKS) stream_query_kernel(const Args a)
{
    TL_DYNAMIC_SHARED(float, shared);
    Rows limits(shared, C::ROWS);
    float *const dots = shared + Rows::FLOATS * C::ROWS, *const Ws = dots + C::ROWS;
    Chunks<C> chunks = {Ws + C::ROWS * C::LP, 0};
    const int tx = C::tx(), ty = C::ty();
    const int64_t b = blockIdx.x / a.blocks;
    const int i0 = (int)(blockIdx.x % a.blocks) * C::ROWS, from = (int)(a.chunk + blockIdx.y) * C::DP;
    const Array Q(a.Q, b, a.rows, a.d, a.wide_d), K(a.K, b, a.keys, a.d, a.wide_d);
    const Array g(a.g, b, a.rows, a.v, a.wide_v), V(a.V, b, a.keys, a.v, a.wide_v);
    const bool gradient = a.gQ != nullptr;

    limits.find(a, b, i0, C::ROWS);
    for (int r = (int)threadIdx.x; r < C::ROWS; r += C::THREADS)
        dots[r] = i0 + r < a.rows ? a.dot[b * a.rows + i0 + r] : 0.0f;
    __syncthreads();
    int64_t first = first_term(a), last = end_term(a, a.keys);
    if (a.limited) cut_to_window<C::COLS>(a, limits, C::ROWS, a.finite_k, b, &first, &last);
    float sums[C::RM][C::RC] = {};
    Softmax<C> softmax;
    for (int j0 = (int)first; j0 < (int)last; j0 += C::COLS) {
        if (a.limited && !__syncthreads_or(limits.meet(C::ROWS, j0, j0 + C::COLS) ||
                                           !finite_rows<C::COLS>(a.finite_k, a.keys, b, j0)))
            continue;
        float s[C::RM][C::RK] = {}, t[C::RM][C::RK] = {};
        chunks.start_product(Q, i0, K, j0, 0);
        chunks.product(s, Q, i0, K, j0, [&] {
            if (gradient) chunks.start_product(g, i0, V, j0, 0);
        });
        if (gradient) chunks.product(t, g, i0, V, j0, [&] { chunks.start_terms(K, j0, from); });
        const uint64_t open = tile_scores<C, false>(a, limits, j0, s);
        TL_UNROLL_FOR (int i = 0; i < C::RM; i++) {
            const float factor = softmax.step(i, s[i]), dot = dots[ty + C::TY * i];
            TL_UNROLL_FOR (int c = 0; c < C::RC; c++)
                sums[i][c] *= factor;
            TL_UNROLL_FOR (int j = 0; j < C::RK; j++)
                Ws[(ty + C::TY * i) * C::LP + tx + C::TX * j] = open >> (C::RK * i + j) & 1 ? s[i][j] * (t[i][j] - dot)
                                                                                            : 0.0f;
        }
        __syncwarp(); /* a row is a warp's own */
        if (gradient) chunks.accumulate(Ws, sums, K, j0, from);
        __syncwarp();
    }
    TL_UNROLL_FOR (int i = 0; i < C::RM; i++) {
        const float total = a.parts ? softmax.sum(i) : softmax.total(i);
        const int64_t row = i0 + ty + C::TY * i, at = b * a.rows + row;
        if (row >= a.rows) continue;
        if (a.parts) {
            const int64_t width = gradient ? a.d : 0;
            float *const to = a.parts + (blockIdx.z * a.members * a.rows + at) * (width + 2);
            if (gradient) store<C>(to, sums[i], a.d, from);
            if (tx == 0 && from == 0) to[width] = softmax.top[i], to[width + 1] = total;
            continue;
        }
        if (tx == 0 && from == 0) softmax.keep(i, total, at, a);
        if (gradient) {
            TL_UNROLL_FOR (int c = 0; c < C::RC; c++)
                sums[i][c] = sums[i][c] / total * a.scale;
            store<C>(a.gQ + at * a.d, sums[i], a.d, from);
        }
    }
}

/* ---- the pass over keys ------------------------------------------------------------------------------------------ */

/* A block makes a chunk of one of the gradients of its keys, gK's first. */
template <class C> __global__ void __launch_bounds__(C::THREADS, C::BLOCKS) stream_key_kernel(const Args a)
{
    static_assert(C::COLS == STORED_TILE && STORED_TILE % C::ROWS == 0, "tiles of attention/stored_weights.cu");
    TL_DYNAMIC_SHARED(float, shared);
    Rows limits(shared, C::COLS);
    float *const statistics = shared + Rows::FLOATS * C::COLS, *const Ws = statistics + STATISTICS * C::COLS;
    Chunks<C> chunks = {Ws + C::ROWS * C::LP, 0};
    const int chunks_k = a.gK ? (int)((a.d + C::DP - 1) / C::DP) : 0;
    const int chunk = (int)(a.chunk + blockIdx.y);
    const bool of_keys = chunk < chunks_k;
    const int64_t b = blockIdx.x / a.blocks;
    const int from = (chunk - (of_keys ? 0 : chunks_k)) * C::DP;
    int j0 = (int)(blockIdx.x % a.blocks) * C::ROWS;
    if (j0 >= a.stored.first) j0 += (int)(a.stored.end - a.stored.first);
    const Array Q(a.Q, b, a.rows, a.d, a.wide_d), K(a.K, b, a.keys, a.d, a.wide_d);
    const Array g(a.g, b, a.rows, a.v, a.wide_v), V(a.V, b, a.keys, a.v, a.wide_v);
    const Array X(of_keys ? a.Q : a.g, b, a.rows, of_keys ? a.d : a.v, of_keys ? a.wide_d : a.wide_v);

    float sums[C::RM][C::RC] = {};
    int i0 = (int)first_term(a);
    const int rows_end = (int)end_term(a, a.rows);
    if (no_row_counts(a, b, i0, rows_end, j0, j0 + C::ROWS)) i0 = rows_end;
    for (; i0 < rows_end; i0 += C::COLS) {
        limits.find(a, b, i0, C::COLS);
        __syncthreads();
        if (!tile_counts<C>(a, limits, b, i0, j0)) continue;
        copy_statistics<C>(statistics, a, b, i0);
        float s[C::RM][C::RK] = {}, t[C::RM][C::RK] = {};
        chunks.start_product(K, j0, Q, i0, 0);
        chunks.product(s, K, j0, Q, i0, [&] {
            if (of_keys)
                chunks.start_product(V, j0, g, i0, 0);
            else
                chunks.start_terms(X, i0, from);
        });
        if (of_keys) chunks.product(t, V, j0, g, i0, [&] { chunks.start_terms(X, i0, from); });
        const uint64_t open = tile_scores<C, true>(a, limits, j0, s);
        weigh_pairs<C>(statistics, a.rows - i0, open, s, t, [=](int key, int query, float weight, float product) {
            Ws[key * C::LP + query] = of_keys ? product : weight;
        });
        __syncwarp(); /* a key is a warp's own */
        chunks.accumulate(Ws, sums, X, i0, from);
        __syncwarp();
    }
    TL_UNROLL_FOR (int i = 0; i < C::RM; i++) {
        const int64_t row = j0 + C::ty() + C::TY * i, at = (b * gridDim.z + blockIdx.z) * a.keys + row;
        if (row >= a.keys) continue;
        /* No -0, which a row that is passed over, or does not exist, would make +0: so signs do not depend on the tile. */
        TL_UNROLL_FOR (int c = 0; c < C::RC; c++)
            sums[i][c] = of_keys ? (sums[i][c] + 0.0f) * a.scale : sums[i][c] + 0.0f;
        if (of_keys)
            store<C>(a.gK + at * a.d, sums[i], a.d, from);
        else
            store<C>(a.gV + at * a.v, sums[i], a.v, from);
    }
}

/* ---- launches ---------------------------------------------------------------------------------------------------- */

template <class C> static int32_t forward(tl_context *ctx, Args &a)
{
    return launch<C>(ctx, stream_forward_kernel<C>, a, stream_shared<C>(), a.rows, a.v, 1);
}

int32_t stream_forward(tl_context *ctx, Args &a)
{
    using LARGE = Stream<256, 64, 64, 2>;
    using SMALL = Stream<256, 32, 64, 3>;
    using SHORT = Stream<192, 32, 64, 4>;
    /* Of SHORT twice as many blocks, of half the rows, run at once: fewer multiprocessors have no work at the end, which decides as
     * long as LARGE makes less than two rounds. */
    if (a.v <= SHORT::DP && a.members * tl_ceil_div(a.rows, LARGE::ROWS) < 2 * LARGE::BLOCKS * tl_cuda_sms(ctx))
        return forward<SHORT>(ctx, a);
    return few_blocks<LARGE, SMALL>(ctx, a, tl_ceil_div(a.v, SMALL::DP)) ? forward<SMALL>(ctx, a)
                                                                         : forward<LARGE>(ctx, a);
}

template <class LARGE, class SMALL> static int32_t query_pass(tl_context *ctx, Args &a)
{
    const int64_t all = a.members * a.rows;
    if (all == 0) return TORCHLEAN_OK;
    TL_TRY(tl_launch(ctx, GROUPED, dots_kernel, (unsigned)tl_ceil_div(all, Dots::ROWS), Dots::C::THREADS, a));
    return query_parts(ctx, a, [&](int64_t width, int64_t parts) {
        /* of the parts only those with keys that a row may attend to */
        const Window window = window_of(a);
        const int64_t open = tl_ceil_div(window.end, a.part) - window.first / a.part;
        const int64_t chunks = width > 0 ? tl_ceil_div(width, LARGE::DP) : 1;
        return few_blocks<LARGE, SMALL>(ctx, a, chunks * open)
                   ? launch<SMALL>(ctx, stream_query_kernel<SMALL>, a, stream_shared<SMALL>(), a.rows, width, parts)
                   : launch<LARGE>(ctx, stream_query_kernel<LARGE>, a, stream_shared<LARGE>(), a.rows, width, parts);
    });
}

int32_t stream_query_pass(tl_context *ctx, Args &a)
{
    if (a.d > 256 || a.v > 256) return query_pass<Stream<128, 64, 64, 2>, Stream<128, 32, 64, 3>>(ctx, a);
    return query_pass<Stream<256, 32, 32, 3>, Stream<256, 32, 32, 3>>(ctx, a);
}

template <class C> static int32_t key_pass(tl_context *ctx, Args &a)
{
    const int64_t chunks = (a.gK ? tl_ceil_div(a.d, C::DP) : 0) + (a.gV ? tl_ceil_div(a.v, C::DP) : 0);
    return key_parts<C>(ctx, a, 1, [&](int64_t parts) {
        if (chunks == 0) return (int32_t)TORCHLEAN_OK;
        return launch_keys<C>(ctx, stream_key_kernel<C>, a, stream_shared<C>(), chunks * C::DP, parts);
    });
}

int32_t stream_key_pass(tl_context *ctx, Args &a)
{
    return a.d > 256 || a.v > 256 ? key_pass<Stream<128, 64, 64, 2>>(ctx, a) : key_pass<Stream<256, 32, 64, 2>>(ctx, a);
}

} /* namespace grouped */
} /* namespace attention */
