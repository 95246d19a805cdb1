/* The reproducible matrix product on CUDA (formula/chain.h): each result is chains of float64 fused multiply-adds in order of
 * k, one per segment of the inner dimension, whose totals are added in order; the bias joins in float64, and one rounding
 * ends it. The tensor cores of compute capability 9.0 compute exactly such chains: an m16n8k8 product in float64 adds its
 * eight terms one after the other, each fused (tests/kernels/test_chain.py). Other chips run the same chains on their
 * float64 units.
 *
 * A block owns a tile of BM x BN results and takes k in steps of STEP, copied two steps ahead into shared memory as they
 * lie; elements are widened when they are read. A warp owns 16·M x 8·N of the results. With g = lane / 4 and t = lane % 4 a
 * lane has, of each 16 x 8, rows g and g + 8 of columns 2t and 2t + 1; it reads A at rows g, g + 8 and B at column g, both
 * at k = t and t + 4 of eight.
 *
 * Banks: where an operand's rows lie along k, row i begins 4 elements after a multiple of STEP, so that the 32 floats (g, t) lie
 * in banks 4g + t; where they lie across k, row k begins at 8k, and the floats lie in banks 8t + g. Of doubles, 16 lanes go
 * at a time: 4g + t modulo 16 either way.
 *
 * Where tiles are few and segments several, each segment of a tile is a block's work, and a second kernel adds up; else a
 * block keeps the total of its tile in scratch from one segment to the next. */
#include <algorithm>

#include "cuda/device/async_copy.cuh"
#include "cuda/linalg/chain.cuh"
#include "formula/chain.h"

namespace {

constexpr int STAGES = 3;

/* ROWS x COLS warps; BLOCKS: how many shall run on one multiprocessor. */
template <int BM_, int BN_, int ROWS_, int COLS_, int BLOCKS_> struct Tile {
    static constexpr int BM = BM_, BN = BN_, ROWS = ROWS_, COLS = COLS_, BLOCKS = BLOCKS_;
    static constexpr int THREADS = 32 * ROWS * COLS, M = BM / ROWS / 16, N = BN / COLS / 8, SUMS = 4 * M * N;
};

template <class Real> struct Args {
    tl_chain_product<Real> x;
    int64_t row_tiles, column_tiles, tiles, items, segment, segments;
    double *parts;  /* where segments are items: their sums, per product of the batch */
    double *totals; /* SUMS for each thread of the grid */
};

/* One operand's tiles: WIDTH rows (columns of op(B)) by STEP of k each, ALONG k in memory or across. A thread copies VECTOR
 * elements COPIES times, BELOW rows of memory apart, from element (i, k) of a tile on. */
template <class T, class Real, int WIDTH, int STEP, bool ALONG, int VECTOR> struct Operand {
    static constexpr int PITCH = ALONG ? STEP + 4 : WIDTH + (sizeof(Real) == 4 ? 8 : 4);
    static constexpr int SIZE = (ALONG ? WIDTH : STEP) * PITCH, UNITS = (ALONG ? STEP : WIDTH) / VECTOR;
    static constexpr int BELOW = T::THREADS / UNITS, COPIES = (ALONG ? WIDTH : STEP) / BELOW;
    static_assert(T::THREADS % UNITS == 0 && (ALONG ? WIDTH : STEP) % BELOW == 0, "ownership");

    const Real *array, *from; /* from: where the next tile's first copy starts */
    int64_t length;           /* of a row in memory */
    int i, k, rows;           /* rows: what is left of the other side from i on */
    int64_t rest;             /* what is left of k */

    __device__ __forceinline__ Operand(const Real *p, int64_t i0, int64_t width, int64_t n, int64_t k0, int64_t k1)
        : array(p)
    {
        const int unit = (int)threadIdx.x % UNITS * VECTOR, row = (int)threadIdx.x / UNITS;
        i = ALONG ? row : unit;
        k = ALONG ? unit : row;
        length = ALONG ? n : width;
        from = ALONG ? p + (i0 + i) * n + k0 + k : p + (k0 + k) * width + i0 + i;
        rows = (int)min(width - i0, (int64_t)WIDTH) - i;
        rest = k1 - k0 - k;
    }
    static __device__ __forceinline__ int at(int i, int k) { return ALONG ? i * PITCH + k : k * PITCH + i; }

    /* Starts copying the next tile; what does not exist is 0. */
    __device__ __forceinline__ void copy(Real *to)
    {
        TL_UNROLL_FOR (int c = 0; c < COPIES; c++) {
            const bool present = ALONG ? rows > c * BELOW && rest > 0 : rows > 0 && rest > c * BELOW;
            tl_copy_async<VECTOR *(int)sizeof(Real)>(tl_shared_address(to + at(i, k) + c * BELOW * PITCH),
                                                     present ? from + c * BELOW * length : array, present);
        }
        from += ALONG ? STEP : STEP * length;
        rest -= STEP;
    }
};

/* sum += A·B over eight k for a warp's results; `a` and `b` are the operands from the warp's first row and column on. */
template <class T, class OpA, class OpB, class Real>
__device__ __forceinline__ void multiply_eight(double (&sum)[T::M][T::N][4], const Real *a, const Real *b)
{
    const int g = (int)threadIdx.x % 32 / 4, t = (int)threadIdx.x % 4;
#if __CUDA_ARCH__ >= 900
    double x[T::M][4], y[T::N][2];
    TL_UNROLL_FOR (int m = 0; m < T::M; m++)
        TL_UNROLL_FOR (int e = 0; e < 4; e++)
            x[m][e] = (double)a[OpA::at(16 * m + g + e % 2 * 8, t + e / 2 * 4)];
    TL_UNROLL_FOR (int n = 0; n < T::N; n++)
        TL_UNROLL_FOR (int e = 0; e < 2; e++)
            y[n][e] = (double)b[OpB::at(8 * n + g, t + 4 * e)];
    TL_UNROLL_FOR (int m = 0; m < T::M; m++)
        TL_UNROLL_FOR (int n = 0; n < T::N; n++)
            asm("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                "{%0, %1, %2, %3};"
                : "+d"(sum[m][n][0]), "+d"(sum[m][n][1]), "+d"(sum[m][n][2]), "+d"(sum[m][n][3])
                : "d"(x[m][0]), "d"(x[m][1]), "d"(x[m][2]), "d"(x[m][3]), "d"(y[n][0]), "d"(y[n][1]));
#else
#pragma unroll 1
    for (int k = 0; k < 8; k++)
        TL_UNROLL_FOR (int m = 0; m < T::M; m++)
            TL_UNROLL_FOR (int n = 0; n < T::N; n++)
                TL_UNROLL_FOR (int e = 0; e < 4; e++)
                    sum[m][n][e] = fma((double)a[OpA::at(16 * m + g + e / 2 * 8, k)],
                                       (double)b[OpB::at(8 * n + 2 * t + e % 2, k)], sum[m][n][e]);
#endif
}

/* Where a block's item lies: eight rows of tiles at a time, column by column, so that blocks which run together read the same
 * rows and columns. */
struct Place {
    int64_t product, segment, i0, j0;
    template <class T, class Real> static __device__ __forceinline__ Place of(const Args<Real> &args, int64_t item)
    {
        Place p;
        const int64_t whole = item / args.tiles, tile = item % args.tiles;
        p.segment = args.parts ? whole % args.segments : 0;
        p.product = args.parts ? whole / args.segments : whole;
        const int64_t band = tile / (8 * args.column_tiles), in_band = tile % (8 * args.column_tiles);
        const int64_t height = min((int64_t)8, args.row_tiles - 8 * band);
        p.i0 = (8 * band + in_band % height) * T::BM;
        p.j0 = in_band / height * T::BN;
        return p;
    }
};

template <class T, class Real, int STEP, bool TA, bool TB, int VECTOR>
__global__ void __launch_bounds__(T::THREADS, T::BLOCKS) chain_kernel(const Args<Real> args)
{
    using OpA = Operand<T, Real, T::BM, STEP, !TA, VECTOR>;
    using OpB = Operand<T, Real, T::BN, STEP, TB, VECTOR>;
    extern __shared__ __align__(16) unsigned char shared[];
    Real *const as = reinterpret_cast<Real *>(shared), *const bs = as + STAGES * OpA::SIZE;
    const tl_chain_product<Real> &x = args.x;
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int row0 = warp / T::COLS * 16 * T::M, col0 = warp % T::COLS * 8 * T::N;
    double *const total = args.totals + (int64_t)blockIdx.x * (T::SUMS * T::THREADS) + threadIdx.x;

#pragma unroll 1
    for (int64_t item = blockIdx.x; item < args.items; item += gridDim.x) {
        const Place place = Place::of<T>(args, item);
        const Real *const A = x.A + place.product * x.m * x.n, *const B = x.B + place.product * x.n * x.p;
        const int64_t last = args.parts ? place.segment : args.segments - 1;
        double sum[T::M][T::N][4];
#pragma unroll 1
        for (int64_t segment = place.segment; segment <= last; segment++) {
            const int64_t k0 = segment * args.segment, k1 = min(x.n, k0 + args.segment);
            OpA a_tiles(A, place.i0, x.m, x.n, k0, k1);
            OpB b_tiles(B, place.j0, x.p, x.n, k0, k1);
            const int steps = (int)((k1 - k0 + STEP - 1) / STEP);
            TL_UNROLL_FOR (int m = 0; m < T::M; m++)
                TL_UNROLL_FOR (int n = 0; n < T::N; n++)
                    TL_UNROLL_FOR (int e = 0; e < 4; e++)
                        sum[m][n][e] = 0.0;
            __syncthreads(); /* the stages of the last segment have been read */
            TL_UNROLL_FOR (int s = 0; s < STAGES - 1; s++) {
                if (s < steps) {
                    a_tiles.copy(as + s * OpA::SIZE);
                    b_tiles.copy(bs + s * OpB::SIZE);
                }
                tl_copy_commit();
            }
            int now = 0, next = STAGES - 1;
#pragma unroll 1
            for (int s = 0; s < steps; s++) {
                tl_copy_wait<STAGES - 2>();
                __syncthreads();
                if (s + STAGES - 1 < steps) {
                    a_tiles.copy(as + next * OpA::SIZE);
                    b_tiles.copy(bs + next * OpB::SIZE);
                }
                tl_copy_commit();
                const Real *const a = as + now * OpA::SIZE + OpA::at(row0, 0);
                const Real *const b = bs + now * OpB::SIZE + OpB::at(col0, 0);
                TL_UNROLL_FOR (int k = 0; k < STEP; k += 8)
                    multiply_eight<T, OpA, OpB>(sum, a + OpA::at(0, k), b + OpB::at(0, k));
                now = now + 1 == STAGES ? 0 : now + 1;
                next = next + 1 == STAGES ? 0 : next + 1;
            }
            tl_copy_wait<0>();
            if (args.parts || args.segments == 1) continue;
            TL_UNROLL_FOR (int m = 0; m < T::M; m++)
                TL_UNROLL_FOR (int n = 0; n < T::N; n++)
                    TL_UNROLL_FOR (int e = 0; e < 4; e++) {
                        double *const own = total + ((m * T::N + n) * 4 + e) * T::THREADS;
                        if (segment > 0) sum[m][n][e] = *own + sum[m][n][e];
                        if (segment < last) *own = sum[m][n][e];
                    }
        }
        const int g = lane / 4, t = lane % 4;
        const int64_t plane = args.parts ? place.product * args.segments + place.segment : place.product;
        TL_UNROLL_FOR (int m = 0; m < T::M; m++)
            TL_UNROLL_FOR (int n = 0; n < T::N; n++)
                TL_UNROLL_FOR (int e = 0; e < 4; e++) {
                    const int64_t row = place.i0 + row0 + 16 * m + g + e / 2 * 8;
                    const int64_t col = place.j0 + col0 + 8 * n + 2 * t + e % 2;
                    if (row >= x.m || col >= x.p) continue;
                    const int64_t cell = (plane * x.m + row) * x.p + col;
                    if (args.parts)
                        args.parts[cell] = sum[m][n][e];
                    else
                        x.C[cell] = (Real)(x.bias ? sum[m][n][e] + (double)x.bias[col] : sum[m][n][e]);
                }
    }
}

/* A thread owns an element of the result, and adds up its segments. */
template <class Real>
__global__ void __launch_bounds__(256)
    add_segments_kernel(const double *__restrict__ parts, const Real *__restrict__ bias, Real *__restrict__ out,
                        int64_t plane, int64_t cols, int64_t segments, int64_t total)
{
    const int64_t cell = (int64_t)blockIdx.x * 256 + threadIdx.x;
    if (cell >= total) return;
    const int64_t product = cell / plane, at = cell % plane;
    double sum = parts[product * segments * plane + at];
    for (int64_t s = 1; s < segments; s++)
        sum += parts[(product * segments + s) * plane + at];
    out[cell] = (Real)(bias ? sum + (double)bias[at % cols] : sum);
}

template <class T, class Real> int64_t tiles_of(const tl_chain_product<Real> &x)
{
    return tl_ceil_div(x.m, T::BM) * tl_ceil_div(x.p, T::BN);
}

template <class T, class Real, bool TA, bool TB, int VECTOR>
int32_t launch(tl_context *ctx, const tl_chain_product<Real> &x, bool split)
{
    constexpr int STEP = 128 / sizeof(Real);
    constexpr size_t shared =
        sizeof(Real) * STAGES *
        (Operand<T, Real, T::BM, STEP, !TA, VECTOR>::SIZE + Operand<T, Real, T::BN, STEP, TB, VECTOR>::SIZE);
    Args<Real> args = {};
    args.x = x;
    args.row_tiles = tl_ceil_div(x.m, T::BM), args.column_tiles = tl_ceil_div(x.p, T::BN);
    args.tiles = args.row_tiles * args.column_tiles;
    args.segment = tl_chain_segment(x.n), args.segments = tl_ceil_div(x.n, args.segment);
    args.items = x.batch * args.tiles * (split ? args.segments : 1);
    const bool totals = !split && args.segments > 1;
    const int64_t grid = std::min<int64_t>(args.items, totals ? tl_cuda_sms(ctx) * T::BLOCKS : INT32_MAX);
    tl_scratch<double> scratch(ctx);
    if (split) TL_TRY(scratch.allocate(x.batch * args.segments * x.m * x.p));
    if (totals) TL_TRY(scratch.allocate(grid * T::THREADS * T::SUMS));
    args.parts = split ? (double *)scratch : nullptr;
    args.totals = scratch;
    TL_TRY(tl_launch_shared(ctx, "chain_product", chain_kernel<T, Real, STEP, TA, TB, VECTOR>, (unsigned)grid,
                            T::THREADS, shared, args));
    if (!split) return TORCHLEAN_OK;
    const int64_t total = x.batch * x.m * x.p;
    return tl_launch(ctx, "add_segments", add_segments_kernel<Real>, tl_grid(total, 256), 256, args.parts, x.bias, x.C,
                     x.m * x.p, x.p, args.segments, total);
}

template <class T, class Real, int VECTOR>
int32_t launch_form(tl_context *ctx, const tl_chain_product<Real> &x, bool split)
{
    return x.ta   ? launch<T, Real, true, false, VECTOR>(ctx, x, split)
           : x.tb ? launch<T, Real, false, true, VECTOR>(ctx, x, split)
                  : launch<T, Real, false, false, VECTOR>(ctx, x, split);
}

using Large = Tile<128, 128, 2, 4, 1>;
using Medium = Tile<128, 64, 4, 2, 2>;
using Small = Tile<64, 64, 2, 2, 4>;
using Tiny = Tile<32, 32, 2, 2, 8>;

/* Tiles as large as still give the multiprocessors enough of them. */
template <class Real, int VECTOR> int32_t multiply(tl_context *ctx, const tl_chain_product<Real> &x)
{
    const int64_t sms = tl_cuda_sms(ctx), segments = tl_ceil_div(x.n, tl_chain_segment(x.n));
    const bool split = segments > 1 && x.batch * tiles_of<Medium>(x) < sms;
    const int64_t parts = x.batch * (split ? segments : 1);
    if constexpr (sizeof(Real) == 4 && VECTOR > 1) {
        if (parts * tiles_of<Large>(x) >= 2 * sms) return launch_form<Large, Real, VECTOR>(ctx, x, split);
        if (10 * parts * tiles_of<Medium>(x) >= 9 * sms) return launch_form<Medium, Real, VECTOR>(ctx, x, split);
    }
    if (2 * parts * tiles_of<Small>(x) >= sms) return launch_form<Small, Real, VECTOR>(ctx, x, split);
    return launch_form<Tiny, Real, VECTOR>(ctx, x, split);
}

/* Copies of 16 bytes where rows are made of them. */
template <class Real> int32_t multiply_any(tl_context *ctx, const tl_chain_product<Real> &x)
{
    constexpr int VECTOR = 16 / sizeof(Real);
    const bool vectors = (x.ta ? x.m : x.n) % VECTOR == 0 && (x.tb ? x.n : x.p) % VECTOR == 0 && tl_aligned4(x.A) &&
                         tl_aligned4(x.B);
    return vectors ? multiply<Real, VECTOR>(ctx, x) : multiply<Real, 1>(ctx, x);
}

} /* namespace */

int32_t tl_chain_multiply(tl_context *ctx, const tl_chain_product<float> &x) { return multiply_any(ctx, x); }
int32_t tl_chain_multiply(tl_context *ctx, const tl_chain_product<double> &x) { return multiply_any(ctx, x); }
