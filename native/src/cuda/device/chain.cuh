/* Reproducible sums of products on CUDA (formula/chain.h): each result is chains of float64 fused multiply-adds in order of
 * k, one per segment of the inner dimension, whose totals are added in order; a bias joins in float64, and one rounding
 * ends it. The tensor cores of compute capability 9.0 compute exactly such chains (device/chain_mma.cuh); other chips run
 * them on their float64 units.
 *
 * A block owns a tile of BM x BN results and takes k in steps of STEP, copied STAGES - 1 steps ahead into shared memory as they
 * lie; elements are widened when they are read, TERMS k at a time, while the tensor cores multiply those before. A warp
 * owns 16·M x 8·N of the results, or 8 x 8·N. With g = lane / 4 and t = lane % 4 a lane has, of each 16 x 8, rows g and
 * g + 8 of columns 2t and 2t + 1; it reads A at rows g, g + 8 and B at column g, both at k = t of four.
 *
 * Banks: where an operand's rows lie along k, row i begins 4 elements after a multiple of STEP, so that the 32 floats (g, t) lie
 * in banks 4g + t; where they lie across k, row k begins at 8k, and the floats lie in banks 8t + g. Of doubles, 16 lanes go
 * at a time: 4g + t modulo 16 either way.
 *
 * Where tiles are few and segments several, each segment of a tile is a block's work, and a second kernel adds up; else a
 * block keeps the total of its tile in scratch from one segment to the next. */
#pragma once

#include <algorithm>

#include "cuda/device/async_copy.cuh"
#include "cuda/device/chain_mma.cuh"
#include "cuda/device/division.cuh"
#include "cuda/runtime/launch.cuh"
#include "formula/chain.h"

/* ROWS x COLS warps; BLOCKS: how many shall run on one multiprocessor; STEP in floats, half of it in doubles. TERMS is the k of
 * one product of tensor cores, 4 or 8; with 8, elements are read two products ahead instead of one. HEIGHT is 1 where a warp
 * owns eight rows, so that a lane has row g alone. */
template <int BM_, int BN_, int ROWS_, int COLS_, int BLOCKS_, int STEP_ = 32, int STAGES_ = 3, int TERMS_ = 4>
struct tl_chain_tile {
    static constexpr int BM = BM_, BN = BN_, ROWS = ROWS_, COLS = COLS_, BLOCKS = BLOCKS_, STEP = STEP_;
    static constexpr int STAGES = STAGES_, TERMS = TERMS_, WARPS = ROWS * COLS, THREADS = 32 * WARPS;
    static constexpr int HEIGHT = BM / ROWS < 16 ? 1 : 2, M = BM / ROWS / (8 * HEIGHT), N = BN / COLS / 8;
    static constexpr int SUMS = 4 * M * N;
};

/* How an operand's tiles of WIDTH rows (columns of B) by STEP of k lie in shared memory: ALONG k or across. A thread copies
 * VECTOR elements COPIES times, BELOW rows apart, from element (i, k) of a tile on. */
template <class T, class Real, int WIDTH, bool ALONG, int VECTOR> struct tl_chain_layout {
    static constexpr int STEP = T::STEP * 4 / (int)sizeof(Real);
    static constexpr int PITCH = ALONG ? STEP + 4 : WIDTH + (sizeof(Real) == 8 ? 4 : WIDTH % 16 == 0 ? 8 : 16);
    static constexpr int SIZE = (ALONG ? WIDTH : STEP) * PITCH, UNITS = (ALONG ? STEP : WIDTH) / VECTOR;
    static constexpr int BELOW = T::THREADS / UNITS, COPIES = (ALONG ? WIDTH : STEP) / BELOW;
    static constexpr int COPY_CLOCKS = 8; /* instructions for each (counted in machine code for sm_90a) */
    static_assert(T::THREADS % UNITS == 0 && (ALONG ? WIDTH : STEP) % BELOW == 0, "ownership");

    static __device__ __forceinline__ int at(int i, int k) { return ALONG ? i * PITCH + k : k * PITCH + i; }
    static __device__ __forceinline__ int unit() { return (int)threadIdx.x % UNITS * VECTOR; }
    static __device__ __forceinline__ int row() { return (int)threadIdx.x / UNITS; }
    static __device__ __forceinline__ int own_i() { return ALONG ? row() : unit(); }
    static __device__ __forceinline__ int own_k() { return ALONG ? unit() : row(); }
    /* Where the thread's copy c goes. */
    static __device__ __forceinline__ uint32_t place(Real *tile, int c)
    {
        return tl_shared_address(tile + at(own_i(), own_k()) + c * BELOW * PITCH);
    }
    /* How far behind its place element (i, k) of a tile lies. */
    static __device__ __forceinline__ int shift(int, int) { return 0; }
};

/* An operand that is a matrix: rows of `length` elements, ALONG k in memory or across. */
template <class T, class Real, int WIDTH, bool ALONG, int VECTOR>
struct tl_chain_matrix : tl_chain_layout<T, Real, WIDTH, ALONG, VECTOR> {
    using Layout = tl_chain_layout<T, Real, WIDTH, ALONG, VECTOR>;
    const Real *array, *from; /* from: where the next tile's first copy starts */
    int64_t length;           /* of a row in memory */
    int rows, rest;           /* what is left of the other side and of the segment from the thread's first element on */

    /* Rows i0 .. of `width`, whose rows in memory are `length` long, k0 .. k0 + terms - 1. */
    __device__ __forceinline__ tl_chain_matrix(const Real *p, int64_t i0, int64_t width, int64_t length_, int64_t k0,
                                               int terms)
        : array(p), length(length_)
    {
        const int i = Layout::own_i(), k = Layout::own_k();
        from = ALONG ? p + (i0 + i) * length + k0 + k : p + (k0 + k) * length + i0 + i;
        rows = (int)min(width - i0, (int64_t)WIDTH) - i;
        rest = terms - k;
    }

    /* Starts copying the next tile; what does not exist is 0. */
    __device__ __forceinline__ void copy(Real *to)
    {
        constexpr int BELOW = Layout::BELOW;
        TL_UNROLL_FOR (int c = 0; c < Layout::COPIES; c++) {
            const bool present = ALONG ? rows > c * BELOW && rest > 0 : rows > 0 && rest > c * BELOW;
            tl_copy_async<VECTOR *(int)sizeof(Real)>(Layout::place(to, c), present ? from + c * BELOW * length : array,
                                                     present);
        }
        from += ALONG ? Layout::STEP : Layout::STEP * length;
        rest -= Layout::STEP;
    }
};

/* The same of rows that begin anywhere: copied in pieces of 16 bytes from the whole 16 bytes on in which a tile's row begins, so that
 * it lies behind its place as far as it begins within them. What comes before it is never read; it lies in the array's memory, which
 * begins with whole 16 bytes. Rows four apart begin alike, which are all that a lane reads, and all that a thread copies. A row
 * that does not begin with its first piece ends in one piece more, for which PITCH leaves room, copied by the thread that has the
 * first. Terms that do not exist are 0; rows and columns that do not exist are left out, as their results are. */
template <class T, class Real, int WIDTH, bool ALONG>
struct tl_chain_unaligned : tl_chain_layout<T, Real, WIDTH, ALONG, 16 / (int)sizeof(Real)> {
    static constexpr int VECTOR = 16 / (int)sizeof(Real);
    using Layout = tl_chain_layout<T, Real, WIDTH, ALONG, VECTOR>;
    static constexpr int LENGTH = Layout::UNITS * VECTOR; /* of a tile's row */
    static constexpr int COPY_CLOCKS = 10;                /* of last pieces, too, where all is there */
    static_assert(Layout::BELOW % 4 == 0 && Layout::STEP % 4 == 0 && LENGTH + VECTOR <= Layout::PITCH, "shifts");
    const Real *from; /* where the next tile's first copy starts */
    int64_t length;   /* of a row in memory */
    uint32_t first;   /* where the tile's first row begins, in elements */
    int rows, rest;   /* what is left of the other side and of the segment from where the first copy starts on */
    bool more;        /* whether the thread copies last pieces, too */

    /* As tl_chain_matrix. */
    __device__ __forceinline__ tl_chain_unaligned(const Real *p, int64_t i0, int64_t width, int64_t length_, int64_t k0,
                                                  int terms)
        : length(length_)
    {
        const Real *const tile = ALONG ? p + i0 * length + k0 : p + k0 * length + i0;
        first = (uint32_t)((uintptr_t)tile / sizeof(Real));
        const int row = Layout::row(), behind = shift(row, row), unit = Layout::unit() - behind;
        from = tile + row * length + unit;
        rows = (int)min(width - i0, (int64_t)(WIDTH + VECTOR)) - (ALONG ? row : unit);
        rest = terms - (ALONG ? unit : row);
        more = Layout::unit() == 0 && behind > 0;
    }
    __device__ __forceinline__ int shift(int i, int k) const
    {
        return (int)((first + (uint32_t)(ALONG ? i : k) % 4 * (uint32_t)length) % VECTOR);
    }

    /* Starts copying the next tile. */
    __device__ __forceinline__ void copy(Real *to)
    {
        const int left = ALONG ? rest : rows, below = ALONG ? rows : rest;
        if (left >= (more ? LENGTH + VECTOR : VECTOR) &&
            below > (Layout::COPIES - 1) * Layout::BELOW) { /* nearly always */
            copy_whole(to, from);
            if (more) copy_whole(to + LENGTH, from + LENGTH);
        } else {
            copy_pieces(to, from, left);
            if (more) copy_pieces(to + LENGTH, from + LENGTH, left - LENGTH);
        }
        from += ALONG ? Layout::STEP : Layout::STEP * length;
        rest -= Layout::STEP;
    }
    __device__ __forceinline__ void copy_whole(Real *to, const Real *at) const
    {
        constexpr int BELOW = Layout::BELOW;
        TL_UNROLL_FOR (int c = 0; c < Layout::COPIES; c++)
            tl_copy_async<16>(Layout::place(to, c), at + c * BELOW * length, true);
    }
    /* Where nothing is left a copy of no bytes reads nothing, wherever it starts. */
    __device__ __forceinline__ void copy_pieces(Real *to, const Real *at, int left) const
    {
        constexpr int BELOW = Layout::BELOW;
        const int bytes = min(max(left, 0), VECTOR) * (int)sizeof(Real);
        const uint32_t place = Layout::place(to, 0);
        TL_UNROLL_FOR (int c = 0; c < Layout::COPIES; c++)
            if (ALONG ? rows > c * BELOW : bytes > 0)
                tl_copy_async_first(place + c * BELOW * Layout::PITCH * (int)sizeof(Real), at + c * BELOW * length,
                                    ALONG || rest > c * BELOW ? bytes : 0);
    }
};

#if __CUDA_ARCH__ >= 900
/* The k that a warp multiplies at once, and a lane's columns of each eight of B. */
template <class T> constexpr int TL_CHAIN_TERMS = T::TERMS;
constexpr int TL_CHAIN_EACH = 1;
#else
template <class T> constexpr int TL_CHAIN_TERMS = 1;
constexpr int TL_CHAIN_EACH = 2;
#endif

/* A lane's elements of the next TERMS k: what a product of tensor cores takes of them, at k = t of each of its QUADS; or the rows
 * and columns of the lane's own results. */
template <class T, class Number> struct tl_chain_fragments {
    static constexpr int TERMS = TL_CHAIN_TERMS<T>, QUADS = (TERMS + 3) / 4;
    Number a[T::M][QUADS][T::HEIGHT], b[T::N][QUADS][TL_CHAIN_EACH];

    /* From the operands' first row and column of the warp, and from k of a step on. */
    template <class A, class B>
    __device__ __forceinline__ void load(const A &a_tiles, const Number *as, const B &b_tiles, const Number *bs, int k)
    {
        const int g = (int)threadIdx.x % 32 / 4, t = (int)threadIdx.x % 4;
        TL_UNROLL_FOR (int q = 0; q < QUADS; q++) {
            const int at = TERMS > 1 ? k + 4 * q + t : k;
            TL_UNROLL_FOR (int m = 0; m < T::M; m++)
                TL_UNROLL_FOR (int e = 0; e < T::HEIGHT; e++) {
                    const int i = 16 * m + 8 * e + g;
                    a[m][q][e] = as[A::at(i, at) + a_tiles.shift(i, at)];
                }
            TL_UNROLL_FOR (int n = 0; n < T::N; n++)
                TL_UNROLL_FOR (int e = 0; e < TL_CHAIN_EACH; e++) {
                    const int j = TERMS > 1 ? 8 * n + g : 8 * n + 2 * t + e;
                    b[n][q][e] = bs[B::at(j, at) + b_tiles.shift(j, at)];
                }
        }
    }

    template <class Real> __device__ __forceinline__ void widen(const tl_chain_fragments<T, Real> &from)
    {
        TL_UNROLL_FOR (int q = 0; q < QUADS; q++) {
            TL_UNROLL_FOR (int m = 0; m < T::M; m++)
                TL_UNROLL_FOR (int e = 0; e < T::HEIGHT; e++)
                    a[m][q][e] = (Number)from.a[m][q][e];
            TL_UNROLL_FOR (int n = 0; n < T::N; n++)
                TL_UNROLL_FOR (int e = 0; e < TL_CHAIN_EACH; e++)
                    b[n][q][e] = (Number)from.b[n][q][e];
        }
    }

    /* sum += a·b */
    __device__ __forceinline__ void multiply(double (&sum)[T::M][T::N][4]) const
    {
        TL_UNROLL_FOR (int m = 0; m < T::M; m++)
            TL_UNROLL_FOR (int n = 0; n < T::N; n++) {
#if __CUDA_ARCH__ >= 900
                constexpr int LAST = QUADS - 1, BELOW = T::HEIGHT - 1;
                const double below = BELOW ? a[m][0][BELOW] : 0.0, last_below = BELOW ? a[m][LAST][BELOW] : 0.0;
                if constexpr (QUADS == 1)
                    tl_chain_mma(sum[m][n], a[m][0][0], below, b[n][0][0]);
                else
                    tl_chain_mma(sum[m][n], a[m][0][0], below, a[m][LAST][0], last_below, b[n][0][0], b[n][LAST][0]);
#else
                TL_UNROLL_FOR (int e = 0; e < 2 * T::HEIGHT; e++)
                    sum[m][n][e] = fma(a[m][0][e / 2], b[n][0][e % 2], sum[m][n][e]);
#endif
            }
    }
};

/* ---- the kernel -------------------------------------------------------------------------------------------------- */

struct tl_chain_args {
    int64_t m, n, p, segment;
    uint32_t row_tiles, column_tiles, items, segments;
    tl_fastdiv tiles, segment_div, band; /* by tiles of a product, by segments, by tiles of eight rows of tiles */
    double *parts;                       /* where segments are items: their sums, per product of the batch */
    double *totals;                      /* SUMS for each thread of the grid */
    tl_order order;
};

/* Where a block's item lies: eight rows of tiles at a time, column by column, so that blocks which run together read the same
 * rows and columns. */
struct tl_chain_place {
    uint32_t product, segment;
    int64_t i0, j0;
    template <class T> static __device__ __forceinline__ tl_chain_place of(const tl_chain_args &args, uint32_t item)
    {
        tl_chain_place p;
        uint32_t tile, in_band;
        const uint32_t whole = args.tiles.divmod(item, &tile), band = args.band.divmod(tile, &in_band);
        p.product = whole, p.segment = 0;
        if (args.parts) p.product = args.segment_div.divmod(whole, &p.segment);
        const uint32_t height = min(8u, args.row_tiles - 8 * band);
        p.i0 = (int64_t)(8 * band + in_band % height) * T::BM;
        p.j0 = (int64_t)(in_band / height) * T::BN;
        return p;
    }
};

/* A problem P has the type Real of its elements, the operands P::A<T> and P::B<T>, made of (problem, args, place, k0, terms)
 * for a segment's terms, whose copy(tile) starts copying the next step, and
 *     store<T>(args, place, row, col, rows, cols, sums, shared)
 *                                    ends sums: sums[m][n][e] of the element 16m + e / 2·8 rows and 8n + e % 2 columns from
 *                                    (row, col) on, those below rows and cols; all threads call it, and after a barrier it may
 *                                    write to `shared`, where the stages were
 *     put(product, row, col, sum)    the same for one element */
template <class T, class P>
__global__ void __launch_bounds__(T::THREADS, T::BLOCKS)
    tl_chain_kernel(const __grid_constant__ tl_chain_args args, const __grid_constant__ P problem)
{
    using Real = typename P::Real;
    using A = typename P::template A<T>;
    using B = typename P::template B<T>;
    using Fragments = tl_chain_fragments<T, double>;
    constexpr int STEP = A::Layout::STEP, STAGES = T::STAGES, TERMS = Fragments::TERMS;
    constexpr int AHEAD = T::TERMS / 4 * TERMS; /* from the elements of a product to those that are read */
    constexpr int COPY_B = T::TERMS > 4 ? STEP / 4
                                        : 0; /* k at which copies of B start: a chain has time for half of all */
    static_assert(COPY_B % TERMS == 0 && COPY_B < STEP - AHEAD, "copies start before the next step is waited for");
    TL_DYNAMIC_SHARED(unsigned char, tl_chain_shared);
    Real *const as = reinterpret_cast<Real *>(tl_chain_shared), *const bs = as + STAGES * A::SIZE;
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int row0 = warp / T::COLS * (T::BM / T::ROWS), col0 = warp % T::COLS * 8 * T::N;
    const int a_at = A::at(row0, 0), b_at = B::at(col0, 0);
    tl_wait_for_earlier(args.order);

#pragma unroll 1
    for (uint64_t item = blockIdx.x; item < args.items; item += gridDim.x) { /* their sum may leave 32 bits */
        const tl_chain_place place = tl_chain_place::of<T>(args, (uint32_t)item);
        const uint32_t last = args.parts ? place.segment : args.segments - 1;
        double sum[T::M][T::N][4];
#pragma unroll 1
        for (uint32_t segment = place.segment; segment <= last; segment++) {
            const int64_t k0 = segment * args.segment;
            const int terms = (int)min(args.n - k0, args.segment), steps = (terms + STEP - 1) / STEP;
            TL_UNROLL_FOR (int m = 0; m < T::M; m++)
                TL_UNROLL_FOR (int n = 0; n < T::N; n++)
                    TL_UNROLL_FOR (int e = 0; e < 4; e++)
                        sum[m][n][e] = 0.0;
            __syncthreads(); /* the stages of the last segment have been read */
            A a_tiles(problem, args, place, k0, terms);
            B b_tiles(problem, args, place, k0, terms);
            TL_UNROLL_FOR (int s = 0; s < STAGES - 1; s++) {
                if (s < steps) {
                    a_tiles.copy(as + s * A::SIZE);
                    b_tiles.copy(bs + s * B::SIZE);
                }
                tl_copy_commit();
            }
            tl_chain_fragments<T, Real> read;
            Fragments now, next;
            int stage = 0, free = STAGES - 1;
            tl_copy_wait<STAGES - 2>();
            __syncthreads();
            read.load(a_tiles, as + a_at, b_tiles, bs + b_at, 0);
            now.widen(read);
            if (AHEAD > TERMS) read.load(a_tiles, as + a_at, b_tiles, bs + b_at, TERMS);
#pragma unroll 1
            for (int s = 0; s < steps; s++) {
                TL_UNROLL_FOR (int k = 0; k < STEP; k += TERMS) {
                    if (AHEAD > TERMS) next.widen(read);
                    if (k + AHEAD == STEP) { /* the next step's first elements */
                        tl_copy_wait<STAGES - 2>();
                        __syncthreads();
                        stage = stage + 1 == STAGES ? 0 : stage + 1;
                    }
                    const int ahead = (k + AHEAD) % STEP;
                    read.load(a_tiles, as + stage * A::SIZE + a_at, b_tiles, bs + stage * B::SIZE + b_at, ahead);
                    if (AHEAD == TERMS) next.widen(read);
                    /* into the stage that all warps had read when they came here */
                    if (k == 0 && s + STAGES - 1 < steps) a_tiles.copy(as + free * A::SIZE);
                    if (k == COPY_B) {
                        if (s + STAGES - 1 < steps) b_tiles.copy(bs + free * B::SIZE);
                        tl_copy_commit();
                        free = free + 1 == STAGES ? 0 : free + 1;
                    }
                    now.multiply(sum);
                    now = next;
                }
            }
            tl_copy_wait<0>();
            if (args.parts || args.segments == 1) continue;
            double *const total = args.totals + (int64_t)blockIdx.x * (T::SUMS * T::THREADS) + threadIdx.x;
            TL_UNROLL_FOR (int m = 0; m < T::M; m++)
                TL_UNROLL_FOR (int n = 0; n < T::N; n++)
                    TL_UNROLL_FOR (int e = 0; e < 4; e++) {
                        double *const own = total + ((m * T::N + n) * 4 + e) * T::THREADS;
                        if (segment > 0) sum[m][n][e] = *own + sum[m][n][e];
                        if (segment < last) *own = sum[m][n][e];
                    }
        }
        const int64_t row = place.i0 + row0 + lane / 4, col = place.j0 + col0 + 2 * (lane % 4);
        const int64_t rows = (T::HEIGHT > 1 ? args.m : min(args.m, place.i0 + T::BM)) - row, cols = args.p - col;
        if (args.parts) {
            const int64_t plane = (int64_t)place.product * args.segments + place.segment;
            double *const to = args.parts + (plane * args.m + row) * args.p + col;
            TL_UNROLL_FOR (int m = 0; m < T::M; m++)
                TL_UNROLL_FOR (int n = 0; n < T::N; n++)
                    TL_UNROLL_FOR (int e = 0; e < 4; e++)
                        if (16 * m + e / 2 * 8 < rows && 8 * n + e % 2 < cols)
                            to[(16 * m + e / 2 * 8) * args.p + 8 * n + e % 2] = sum[m][n][e];
        } else {
            problem.template store<T>(args, place, row, col, rows, cols, sum, as);
        }
    }
    tl_wait_at_end(args.order);
}

/* A thread owns an element of a result, and adds up its segments. */
template <class P>
__global__ void __launch_bounds__(256)
    tl_chain_add_kernel(const double *parts, const __grid_constant__ P problem, tl_fastdiv plane, tl_fastdiv cols,
                        uint32_t segments, int64_t total)
{
    tl_wait_for_earlier();
    const int64_t cell = (int64_t)blockIdx.x * 256 + threadIdx.x;
    if (cell >= total) return;
    uint32_t at, col;
    const uint32_t product = plane.divmod((uint32_t)cell, &at), row = cols.divmod(at, &col);
    const double *from = parts + (int64_t)product * segments * plane.divisor + at;
    double sum = *from;
#pragma unroll 8
    for (uint32_t s = 1; s < segments; s++)
        sum += from[(int64_t)s * plane.divisor];
    problem.put(product, row, col, sum);
}

/* ---- launches ---------------------------------------------------------------------------------------------------- */

/* BLOCKS leaves so many registers that none is spilled: where ptxas 13.0 spills part of a tensor core's result it reads that before
 * the result is there, now and then. */
using tl_chain_large = tl_chain_tile<128, 128, 2, 4, 1>;
using tl_chain_medium = tl_chain_tile<128, 64, 4, 2, 1>;
using tl_chain_small = tl_chain_tile<64, 64, 2, 2, 2>;
/* The same of twice as many warps, which each read more for what they multiply: where a multiprocessor has no other one meanwhile. */
using tl_chain_single = tl_chain_tile<64, 64, 2, 4, 2>;
using tl_chain_tiny = tl_chain_tile<32, 32, 2, 2, 4>;
/* Half of a small tile, with warps like those of it. */
using tl_chain_narrow = tl_chain_tile<64, 32, 2, 1, 4>;
using tl_chain_flat = tl_chain_tile<32, 64, 1, 2, 4>;
/* Few rows: what counts is how much of B is on its way. */
using tl_chain_few_rows = tl_chain_tile<16, 64, 1, 4, 2, 64, 5, 8>;
/* Few columns, too: of the tile above most copies would be of what is not there, and its blocks leave room for fewer. Also products of
 * which a multiprocessor gets at most TL_CHAIN_FEW_BLOCKS such blocks: larger tiles have too few copies on their way there. */
using tl_chain_few = tl_chain_tile<16, 16, 1, 2, 4, 64, 5, 8>;
constexpr int64_t TL_CHAIN_FEW_BLOCKS = 3;
/* So few results that all blocks run at once: what counts is the latency of one chain. Tensor cores add eight terms in some 44 clocks;
 * meanwhile a warp widens those of eight rows and eight columns, in 32. */
using tl_chain_thin = tl_chain_tile<8, 16, 1, 2, 4, 64, 5, 8>;
/* Clocks of a term on both, on an H200. */
constexpr double TL_CHAIN_FEW_CLOCKS = 15.0, TL_CHAIN_THIN_CLOCKS = 8.0;

/* `batch` products (m, n) x (n, p), none of them empty; `length` of a segment: 0 for that of formula/chain.h, which reproducible
 * contexts take, or TL_CHAIN_FREE for what takes the least time. */
constexpr int64_t TL_CHAIN_FREE = -1;
struct tl_chain_sizes {
    int64_t batch, m, n, p, length = 0;
    tl_order order = TL_AFTER;
    template <class T> int64_t tiles() const { return tl_ceil_div(m, T::BM) * tl_ceil_div(p, T::BN); }
    int64_t segment() const { return length ? length : tl_chain_segment(n); }
    int64_t segments() const { return tl_ceil_div(n, segment()); }
};

template <class T, class P>
static int32_t tl_chain_launch(tl_context *ctx, const char *name, const P &problem, const tl_chain_sizes &x, bool split)
{
    constexpr size_t shared = sizeof(typename P::Real) * T::STAGES * (P::template A<T>::SIZE + P::template B<T>::SIZE);
    tl_chain_args args = {};
    args.m = x.m, args.n = x.n, args.p = x.p;
    args.segment = x.segment(), args.segments = (uint32_t)x.segments();
    args.row_tiles = (uint32_t)tl_ceil_div(x.m, T::BM), args.column_tiles = (uint32_t)tl_ceil_div(x.p, T::BN);
    args.tiles = tl_fastdiv((uint64_t)x.tiles<T>()), args.band = tl_fastdiv((uint64_t)args.column_tiles * 8);
    args.segment_div = tl_fastdiv(args.segments);
    args.items = (uint32_t)(x.batch * x.tiles<T>() * (split ? args.segments : 1));
    const bool totals = !split && args.segments > 1;
    const int64_t grid = std::min<int64_t>(args.items, totals ? tl_cuda_sms(ctx) * T::BLOCKS : INT32_MAX);
    tl_scratch<double> scratch(ctx);
    if (split) TL_TRY(scratch.allocate(x.batch * args.segments * x.m * x.p));
    if (totals) TL_TRY(scratch.allocate(grid * T::THREADS * T::SUMS));
    args.parts = split ? (double *)scratch : nullptr;
    args.totals = scratch;
    args.order = x.order == TL_BESIDE && scratch ? TL_AFTER : x.order;
    TL_TRY(tl_allow_shared(ctx, tl_chain_kernel<T, P>, shared));
    TL_TRY(tl_launch_ahead(ctx, name, tl_chain_kernel<T, P>, (unsigned)grid, T::THREADS, shared, args, problem));
    if (!split) return TORCHLEAN_OK;
    const int64_t total = x.batch * x.m * x.p;
    return tl_launch_ahead(ctx, name, tl_chain_add_kernel<P>, tl_grid(total, 256), 256, 0, args.parts, problem,
                           tl_fastdiv((uint64_t)(x.m * x.p)), tl_fastdiv((uint64_t)x.p), args.segments, total);
}

/* Multiplications of a multiprocessor in the clocks of tl_chain_clocks. */
constexpr double TL_CHAIN_MULTIPLICATIONS = 2048.0;

/* Clocks of a warp on tiles T for each product of 16 x 8 x 4, of 2048 multiplications: 16 and the instruction, if nothing else takes
 * time. An element of a fragment is read by one instruction, and widened in 8 clocks, half of which pass while tensor cores multiply
 * (large tiles take that on an H200; tiny ones widen an element for each half of a product). A step takes 16 instructions and its
 * copies. */
template <class T, class P> constexpr double tl_chain_clocks()
{
    using A = typename P::template A<T>;
    using B = typename P::template B<T>;
    constexpr int FOURS = A::Layout::STEP / 4, READ = sizeof(typename P::Real) == 4 ? 1 + 8 / 2 : 1;
    constexpr int COPIES = A::COPIES * A::COPY_CLOCKS + B::COPIES * B::COPY_CLOCKS;
    return 17.0 + ((2 * T::M + T::N) * READ + (16.0 + COPIES) / FOURS) / (T::M * T::N);
}

/* A problem's time on tiles T by one multiprocessor, of the parts that it has: all terms of a tile each, or if `split` whole segments and
 * shorter last ones. Fewer than eight warps leave it empty in part, and one part takes its time. */
template <class T, class P> static double tl_chain_time(const tl_chain_sizes &x, bool split, int64_t sms)
{
    const int64_t tiles = x.batch * x.tiles<T>(), segments = x.segments();
    double parts = (double)tl_ceil_div(tiles, sms);
    if (split) {
        const int64_t whole = tl_ceil_div(tiles * (segments - 1), sms), all = tl_ceil_div(tiles * segments, sms);
        const double last = (double)(x.n - (segments - 1) * x.segment()) / (double)x.segment();
        parts = (double)whole + (double)(all - whole) * last;
    }
    return std::max(parts, 8.0 / T::WARPS) * (double)(T::BM * T::BN) * tl_chain_clocks<T, P>();
}

/* Which tiles a problem may take (P::TILES): those for few rows; and small and tiny ones; and with these halves of small ones and
 * single ones, or medium ones; or all. */
enum class tl_chain_choice { FEW_ROWS, SMALL, HALVES, MEDIUM, ALL };

/* The tiles above, and their time (tl_chain_time; of those for few rows 0, which nothing is compared with). */
enum class tl_chain_tiles { THIN, FEW, FEW_ROWS, TINY, NARROW, FLAT, SMALL, SINGLE, MEDIUM, LARGE };
struct tl_chain_plan {
    tl_chain_tiles tiles;
    double time;
};

/* Whether a problem may take thin tiles, too, where all of their blocks run at once. */
template <class P> constexpr bool TL_CHAIN_THIN = P::TILES != tl_chain_choice::MEDIUM;
template <class P> constexpr bool TL_CHAIN_FEW = TL_CHAIN_THIN<P> && P::TILES != tl_chain_choice::FEW_ROWS;

/* How many times as long tiles take as if no multiprocessor were idle in the last round. */
static inline double tl_chain_idle(int64_t tiles, int64_t sms)
{
    return (double)(tl_ceil_div(tiles, sms) * sms) / (double)tiles;
}

/* Whether segments of a tile are work of several blocks: where tiles are fewer than multiprocessors, or leave many idle in their last
 * round, whatever their size. The segments' sums are then in memory at once: 512 MiB at most, of more tiles than multiprocessors. */
static inline bool tl_chain_splits(const tl_chain_sizes &x, int64_t sms)
{
    constexpr double IDLE = 1.2;
    constexpr int64_t MOST = INT64_C(1) << 26;
    const int64_t tiles = x.batch * x.tiles<tl_chain_medium>();
    if (x.segments() == 1 || tiles < sms) return x.segments() > 1;
    const double small = tl_chain_idle(x.batch * x.tiles<tl_chain_small>(), sms);
    return std::min(tl_chain_idle(tiles, sms), small) > IDLE && x.batch * x.m * x.p <= MOST / x.segments();
}

/* The tiles that take a problem the least time. */
template <class P> static tl_chain_plan tl_chain_fastest(const tl_chain_sizes &x, int64_t sms)
{
    constexpr bool ALL = P::TILES == tl_chain_choice::ALL, MEDIUM = ALL || P::TILES == tl_chain_choice::MEDIUM;
    constexpr bool HALVES = ALL || P::TILES == tl_chain_choice::HALVES;
    if (P::TILES == tl_chain_choice::MEDIUM && x.m <= tl_chain_few::BM && x.p <= tl_chain_few::BN)
        return {tl_chain_tiles::FEW, 0.0};
    const int64_t segments = tl_chain_splits(x, sms) ? x.segments() : 1;
    if (TL_CHAIN_THIN<P>) {
        const int64_t blocks = x.batch * x.tiles<tl_chain_thin>() * segments;
        if (blocks <= (x.m <= tl_chain_few_rows::BM ? tl_chain_thin::BLOCKS : 1) * sms)
            return {tl_chain_tiles::THIN, TL_CHAIN_MULTIPLICATIONS * TL_CHAIN_THIN_CLOCKS};
    }
    if (TL_CHAIN_FEW<P> && x.m > tl_chain_few_rows::BM &&
        x.batch * x.tiles<tl_chain_few>() * segments <= TL_CHAIN_FEW_BLOCKS * sms)
        return {tl_chain_tiles::FEW, TL_CHAIN_MULTIPLICATIONS * TL_CHAIN_FEW_CLOCKS};
    if (P::TILES == tl_chain_choice::FEW_ROWS || x.m <= tl_chain_few_rows::BM) return {tl_chain_tiles::FEW_ROWS, 0.0};
    if constexpr (P::TILES != tl_chain_choice::FEW_ROWS) {
        const bool split = tl_chain_splits(x, sms);
        const double small = tl_chain_time<tl_chain_small, P>(x, split, sms);
        const double tiny = tl_chain_time<tl_chain_tiny, P>(x, split, sms);
        const double medium = MEDIUM ? tl_chain_time<tl_chain_medium, P>(x, split, sms) : small;
        const double large = ALL ? tl_chain_time<tl_chain_large, P>(x, split, sms) : small;
        const double single = HALVES ? tl_chain_time<tl_chain_single, P>(x, split, sms) : small;
        const double least = std::min({small, single, tiny, medium, large});
        /* Where halves of small tiles are empty; and by a twentieth of what larger ones take. */
        if constexpr (HALVES) {
            const bool narrow = x.tiles<tl_chain_narrow>() <= x.tiles<tl_chain_flat>();
            const int64_t tiles = narrow ? x.tiles<tl_chain_narrow>() : x.tiles<tl_chain_flat>();
            const double half = narrow ? tl_chain_time<tl_chain_narrow, P>(x, split, sms)
                                       : tl_chain_time<tl_chain_flat, P>(x, split, sms);
            if (tiles < 2 * x.tiles<tl_chain_small>() && half <= tiny &&
                1.05 * half <= std::min({small, single, medium, large}))
                return {narrow ? tl_chain_tiles::NARROW : tl_chain_tiles::FLAT, half};
            if (single == least && single < small) return {tl_chain_tiles::SINGLE, single};
        }
        if (ALL && large == least) return {tl_chain_tiles::LARGE, large};
        if (MEDIUM && medium == least) return {tl_chain_tiles::MEDIUM, medium};
        return {small == least ? tl_chain_tiles::SMALL : tl_chain_tiles::TINY, least};
    }
    return {tl_chain_tiles::FEW_ROWS, 0.0};
}

/* The seconds that it takes an H200 then, with what adds up the segments: a launch, and 16 bytes of memory for each total. */
template <class P> static double tl_chain_seconds(const tl_chain_sizes &x, int64_t sms)
{
    constexpr double CLOCK = 1.755e9; /* a second */
    const bool split = tl_chain_splits(x, sms);
    const double terms = (double)(split ? x.segment() : x.n);
    const double adding = split ? 2e-6 + 16.0 * (double)(x.batch * x.segments()) * (double)(x.m * x.p) / 3.5e12 : 0.0;
    return tl_chain_fastest<P>(x, sms).time * terms / TL_CHAIN_MULTIPLICATIONS / CLOCK + adding;
}

/* A problem with the length of a segment, of all that are free, that takes the least time: of shorter ones the multiprocessors have more
 * equal shares. The length of formula/chain.h stays where no other is faster by a twentieth. */
template <class P> static tl_chain_sizes tl_chain_free_length(tl_chain_sizes x, int64_t sms)
{
    constexpr int64_t LEAST = 256, UNIT = 64;
    x.length = 0;
    tl_chain_sizes best = x;
    if (x.m <= tl_chain_few_rows::BM || x.batch * x.tiles<tl_chain_medium>() >= sms) return best;
    double least = tl_chain_seconds<P>(x, sms) / 1.05;
    for (const int64_t parts : {2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64}) {
        x.length = tl_ceil_div(tl_ceil_div(x.n, parts), UNIT) * UNIT;
        if (x.length < LEAST) break;
        if (x.length >= tl_chain_segment(x.n)) continue;
        const double seconds = tl_chain_seconds<P>(x, sms);
        if (seconds < least) best = x, least = seconds;
    }
    return best;
}

/* Computes a problem on the tiles that take the least time. */
template <class P> static int32_t tl_chain_run(tl_context *ctx, const char *name, const P &problem, tl_chain_sizes x)
{
    constexpr bool ALL = P::TILES == tl_chain_choice::ALL, MEDIUM = ALL || P::TILES == tl_chain_choice::MEDIUM;
    constexpr bool HALVES = ALL || P::TILES == tl_chain_choice::HALVES;
    const int64_t sms = tl_cuda_sms(ctx);
    if (x.length == TL_CHAIN_FREE) x = tl_chain_free_length<P>(x, sms);
    const bool split = tl_chain_splits(x, sms);
    const tl_chain_tiles tiles = tl_chain_fastest<P>(x, sms).tiles;
    if constexpr (TL_CHAIN_THIN<P>)
        if (tiles == tl_chain_tiles::THIN) return tl_chain_launch<tl_chain_thin>(ctx, name, problem, x, split);
    if constexpr (P::TILES != tl_chain_choice::FEW_ROWS)
        if (tiles == tl_chain_tiles::FEW) return tl_chain_launch<tl_chain_few>(ctx, name, problem, x, split);
    if constexpr (HALVES) {
        if (tiles == tl_chain_tiles::NARROW) return tl_chain_launch<tl_chain_narrow>(ctx, name, problem, x, split);
        if (tiles == tl_chain_tiles::FLAT) return tl_chain_launch<tl_chain_flat>(ctx, name, problem, x, split);
        if (tiles == tl_chain_tiles::SINGLE) return tl_chain_launch<tl_chain_single>(ctx, name, problem, x, split);
    }
    if constexpr (ALL)
        if (tiles == tl_chain_tiles::LARGE) return tl_chain_launch<tl_chain_large>(ctx, name, problem, x, split);
    if constexpr (MEDIUM)
        if (tiles == tl_chain_tiles::MEDIUM) return tl_chain_launch<tl_chain_medium>(ctx, name, problem, x, split);
    if constexpr (P::TILES != tl_chain_choice::FEW_ROWS) {
        if (tiles == tl_chain_tiles::TINY) return tl_chain_launch<tl_chain_tiny>(ctx, name, problem, x, split);
        if (tiles == tl_chain_tiles::SMALL) return tl_chain_launch<tl_chain_small>(ctx, name, problem, x, split);
    }
    return tl_chain_launch<tl_chain_few_rows>(ctx, name, problem, x, split);
}
