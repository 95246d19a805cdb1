/* Matrix products on CUDA at float32 accuracy on TF32 tensor cores (device/tf32_split.cuh).
 *
 * A block owns a tile of BM x BN results of one product and takes n in steps of STEP, copied two steps ahead. A warp
 * owns 16·M x 8·N of them. For mma q of the four of a step lane 4g+t takes k = 16·(t/2) + 2·(t%2) + 4q and the next,
 * which the mma's columns t and t + 4 of K stand for. From an operand whose rows lie along k (A, or B transposed) it
 * reads them as 8 bytes; of one whose rows lie across k it reads 16 bytes of both rows, four neighbouring columns for as many
 * tiles of 8 (or halves of tiles of A), whose columns are then 4 apart; or of a single tile of A 8 bytes, for both halves.
 *
 * Banks: rows along k are STEP + 4 floats apart, so that the half warp g = 0..3 touches the units of 8 bytes
 * 2g + (0, 1, 8, 9), all different modulo 16. Rows across k have no padding; unit u of 16 bytes of row k lies at
 * u ^ 2·(2·(k/16) + k/2%2), and a quarter of a warp touches the units g ^ 2t. Rows in memory are whole 16 bytes.
 *
 * Each result is a sum of parts of STEP terms in order of k, each part 12 mma: fixed by n alone, not by the tile, the
 * batch or the place of the result. A block that met a value that does not split, or got a result that is not finite,
 * computes its tile again as chains of fused multiply-adds in increasing k: there bits depend on the tile, whose choice stays. */
#include <float.h>

#include "cuda/device/async_copy.cuh"
#include "cuda/device/tf32_split.cuh"
#include "cuda/device/vector.cuh"
#include "cuda/linalg/linalg.cuh"

namespace {

constexpr int STEP = TL_DRAIN, STAGES = 3;
static_assert(STEP == TL_SPLIT_STEP, "select.h");

/* ROWS x COLS warps; BLOCKS: how many shall run on one multiprocessor. */
template <int BM_, int BN_, int ROWS_, int COLS_, int BLOCKS_> struct Tile {
    static constexpr int BM = BM_, BN = BN_, ROWS = ROWS_, COLS = COLS_, BLOCKS = BLOCKS_;
    static constexpr int THREADS = 32 * ROWS * COLS, M = BM / ROWS / 16, N = BN / COLS / 8;
    static constexpr int UNROLL = BLOCKS > 1 && M > 1 ? 2 : 4; /* bound by registers */
    /* neighbouring rows that a lane reads of an A whose rows lie across k */
    static constexpr int ACROSS = M > 1 ? 4 : 2;
    /* without tensor cores: rows ty + TY·i and columns tx + TX·j */
    static constexpr int TX = 16, TY = THREADS / TX, RM = BM / TY, RN = BN / TX;
    static_assert((M == 1 || M % 2 == 0) && N % 4 == 0, "ownership");
};

struct SplitArgs {
    tl_matrix_product x;
    tl_fastdiv row_tiles, column_tiles;
};

/* Where a block's tile lies. Worked out again where it is needed, as it would take registers all the while. */
template <class T> struct Place {
    const float *A, *B; /* of the tile's product */
    float *C;
    int64_t i0, j0;

    __device__ __forceinline__ explicit Place(const SplitArgs &args)
    {
        const tl_matrix_product &x = args.x;
        int block = (int)blockIdx.x;
        tl_forget_origin(block);
        uint32_t row_tile, column_tile;
        const uint32_t tile = args.column_tiles.divmod((uint32_t)block, &column_tile);
        const int64_t product = args.row_tiles.divmod(tile, &row_tile);
        A = x.A + product * x.m * x.n, B = x.B + product * x.n * x.p, C = x.C + product * x.m * x.p;
        i0 = (int64_t)row_tile * T::BM, j0 = (int64_t)column_tile * T::BN;
    }
};

using Guard = tl_split_guard;

/* An operand's tiles of WIDTH rows (columns of op(B)) by STEP of k, TRANSPOSED where its rows lie across k. A thread copies 16 bytes
 * COPIES times, BELOW rows of memory apart. */
template <class T, int WIDTH, bool TRANSPOSED> struct Operand {
    static constexpr int LENGTH = TRANSPOSED ? WIDTH : STEP, ROWS = TRANSPOSED ? STEP : WIDTH;
    static constexpr int PITCH = TRANSPOSED ? LENGTH : LENGTH + 4, SIZE = ROWS * PITCH;
    static constexpr int UNITS = LENGTH / 4, BELOW = T::THREADS / UNITS, COPIES = ROWS / BELOW;
    static_assert(WIDTH % 32 == 0 && UNITS <= 32 && ROWS % BELOW == 0 && (BELOW & (BELOW - 1)) == 0, "ownership");

    /* What row k of a tile exchanges: whole units of 16 bytes. */
    static __device__ __forceinline__ int exchange(int k) { return (k / 16 * 4 | k / 2 % 2 * 2) * 4; }
    static __device__ __forceinline__ int at(int i, int k)
    {
        return TRANSPOSED ? k * PITCH + (i ^ exchange(k)) : i * PITCH + k;
    }
    static __device__ __forceinline__ int unit() { return (int)threadIdx.x % UNITS * 4; }
    static __device__ __forceinline__ int row() { return (int)threadIdx.x / UNITS; }
    const int own = TRANSPOSED ? at(unit(), row()) : at(row(), unit()); /* where the thread's first copy goes */
    const float *from;                                                  /* where the next tile's first copy starts */
    int64_t length;                                                     /* of a row in memory */
    int others; /* what is left of the other side from the thread's first element on */

    /* Elements i0 .. of `width`, k from 0. */
    __device__ __forceinline__ Operand(const float *x, int64_t i0, int64_t width, int64_t n)
    {
        const int i = TRANSPOSED ? unit() : row(), k = TRANSPOSED ? row() : unit();
        length = TRANSPOSED ? width : n;
        from = TRANSPOSED ? x + k * length + i0 + i : x + (i0 + i) * length + k;
        others = (int)(width - i0) - i;
    }
    /* Where copy c goes. */
    __device__ __forceinline__ int place(int c) const
    {
        return c * BELOW * PITCH + (TRANSPOSED ? own ^ exchange(c * BELOW) : own);
    }

    /* Starts copying the next tile, of `rest` k; what does not exist is 0, and is not read wherever it would lie. */
    __device__ __forceinline__ void copy(float *to, int rest)
    {
        rest -= TRANSPOSED ? row() : unit();
        TL_UNROLL_FOR (int c = 0; c < COPIES; c++) {
            const bool present = TRANSPOSED ? others > 0 && rest > c * BELOW : others > c * BELOW && rest > 0;
            tl_copy_async<16>(to + place(c), from + c * BELOW * length, present);
        }
        from += TRANSPOSED ? STEP * length : STEP;
    }

    /* Reads what the thread copied of a tile. */
    __device__ __forceinline__ void read(const float *tile, float4 (&x)[COPIES]) const
    {
        TL_UNROLL_FOR (int c = 0; c < COPIES; c++)
            x[c] = tl_load4(tile + place(c));
    }
};

/* Shows the guards what the thread's copies have brought of both operands: reads both first, so that a warp waits once. */
template <class OpA, class OpB>
__device__ __forceinline__ void show(const OpA &a, const OpB &b, const float *as, const float *bs, Guard &of_a,
                                     Guard &of_b)
{
    float4 x[OpA::COPIES], y[OpB::COPIES];
    a.read(as, x), b.read(bs, y);
    TL_UNROLL_FOR (int c = 0; c < OpA::COPIES; c++)
        of_a.see(x[c]);
    TL_UNROLL_FOR (int c = 0; c < OpB::COPIES; c++)
        of_b.see(y[c]);
}

/* part += A·B over a step for the warp's results. `a`, `b`: the operands from the lane's first element on, of rows that are a_pitch and
 * b_pitch long. Where `few` terms are left, at most eight, half of the products are of zeros, which change nothing. */
template <class T, bool TA, bool TB, int A_PITCH, int B_PITCH>
__device__ __forceinline__ void multiply_step(float (&part)[T::M][T::N][4], const float *a, const float *b, bool few)
{
#pragma unroll 1
    for (int q0 = 0; q0 < (T::UNROLL == 2 && few ? 2 : 4); q0 += T::UNROLL)
        TL_UNROLL_FOR (int q = q0; q < q0 + T::UNROLL; q++) {
            uint32_t ahi[T::M][4], alo[T::M][4], bhi[T::N][2], blo[T::N][2];
            const int k = 4 * q;
            if constexpr (TA) {
                constexpr int A = T::ACROSS;
                TL_UNROLL_FOR (int u = 0; u < 2 * T::M / A; u++)
                    TL_UNROLL_FOR (int e = 0; e < 2; e++) {
                        float x[A];
                        tl_load(a + (k + e) * A_PITCH + 32 * u, x);
                        TL_UNROLL_FOR (int i = 0; i < A; i++) {
                            const int m = (A * u + i) / 2;
                            tl_split(x[i], ahi[m][2 * e + i % 2], alo[m][2 * e + i % 2]);
                        }
                    }
            } else {
                TL_UNROLL_FOR (int m = 0; m < T::M; m++)
                    TL_UNROLL_FOR (int e = 0; e < 2; e++) {
                        const float2 x = *reinterpret_cast<const float2 *>(a + (16 * m + 8 * e) * A_PITCH + k);
                        tl_split(x.x, ahi[m][e], alo[m][e]);
                        tl_split(x.y, ahi[m][e + 2], alo[m][e + 2]);
                    }
            }
            if constexpr (TB) {
                TL_UNROLL_FOR (int n = 0; n < T::N; n++) {
                    const float2 y = *reinterpret_cast<const float2 *>(b + 8 * n * B_PITCH + k);
                    tl_split(y.x, bhi[n][0], blo[n][0]);
                    tl_split(y.y, bhi[n][1], blo[n][1]);
                }
            } else {
                TL_UNROLL_FOR (int u = 0; u < T::N / 4; u++)
                    TL_UNROLL_FOR (int e = 0; e < 2; e++) {
                        float y[4];
                        tl_load(b + (k + e) * B_PITCH + 32 * u, y);
                        TL_UNROLL_FOR (int i = 0; i < 4; i++)
                            tl_split(y[i], bhi[4 * u + i][e], blo[4 * u + i][e]);
                    }
            }
            tl_mma_split(part, ahi, alo, bhi, blo);
        }
}

/* The tile without tensor cores. */
template <class T, class OpA, class OpB>
__device__ __forceinline__ void plain_tile(const tl_matrix_product &x, const Place<T> &place, float *as, float *bs)
{
    const int tx = threadIdx.x % T::TX, ty = threadIdx.x / T::TX;
    OpA a_tiles(place.A, place.i0, x.m, x.n);
    OpB b_tiles(place.B, place.j0, x.p, x.n);
    float sum[T::RM][T::RN] = {};
    for (int64_t k0 = 0; k0 < x.n; k0 += STEP) {
        __syncthreads();
        a_tiles.copy(as, (int)(x.n - k0));
        b_tiles.copy(bs, (int)(x.n - k0));
        tl_copy_commit();
        tl_copy_wait<0>();
        __syncthreads();
#pragma unroll 1
        for (int k = 0; k < STEP; k++) {
            float a[T::RM], b[T::RN];
            TL_UNROLL_FOR (int i = 0; i < T::RM; i++)
                a[i] = as[OpA::at(ty + T::TY * i, k)];
            TL_UNROLL_FOR (int j = 0; j < T::RN; j++)
                b[j] = bs[OpB::at(tx + T::TX * j, k)];
            TL_UNROLL_FOR (int i = 0; i < T::RM; i++)
                TL_UNROLL_FOR (int j = 0; j < T::RN; j++)
                    sum[i][j] = fmaf(a[i], b[j], sum[i][j]);
        }
    }
    TL_UNROLL_FOR (int i = 0; i < T::RM; i++)
        TL_UNROLL_FOR (int j = 0; j < T::RN; j++) {
            const int64_t row = place.i0 + ty + T::TY * i, col = place.j0 + tx + T::TX * j;
            if (row < x.m && col < x.p) place.C[row * x.p + col] = x.bias ? sum[i][j] + x.bias[col] : sum[i][j];
        }
}

/* Where a warp's results are: element e of piece q of the 16 x 8 tiles m, rows h of each, lies `row` below its first and `column` right
 * of it; a lane has WIDE side by side. */
template <class T, bool TA, bool TB> struct Owned {
    static constexpr int WIDE = TB ? 2 : 4, PIECES = T::N * 2 / WIDE;

    static __device__ __forceinline__ int row(int m, int h)
    {
        const int g = (int)threadIdx.x % 32 / 4;
        return TA ? m / 2 * 32 + T::ACROSS * g + m % 2 * 2 + h : 16 * m + 8 * h + g;
    }
    static __device__ __forceinline__ int column(int q)
    {
        const int t = (int)threadIdx.x % 4;
        return TB ? 8 * q + 2 * t : 32 * (q / 2) + 4 * (2 * t + q % 2);
    }
    static __device__ __forceinline__ float get(const float (&sum)[T::M][T::N][4], int m, int h, int q, int e)
    {
        return TB ? sum[m][q][2 * h + e] : sum[m][q / 2 * 4 + e][2 * h + q % 2];
    }
};

/* Stores a warp's results, from (i0, j0) on, as its lanes have them. */
template <class T, bool TA, bool TB>
__device__ __forceinline__ void store_tile(const tl_matrix_product &x, float *C, const float (&sum)[T::M][T::N][4],
                                           int64_t i0, int64_t j0)
{
    using Own = Owned<T, TA, TB>;
    float bias[Own::PIECES][Own::WIDE];
    TL_UNROLL_FOR (int q = 0; q < Own::PIECES; q++) {
        const int64_t col = j0 + Own::column(q);
        TL_UNROLL_FOR (int e = 0; e < Own::WIDE; e++)
            bias[q][e] = x.bias && col < x.p ? x.bias[col + e] : -0.0f; /* which changes nothing */
    }
    TL_UNROLL_FOR (int m = 0; m < T::M; m++)
        TL_UNROLL_FOR (int h = 0; h < 2; h++) {
            const int64_t row = i0 + Own::row(m, h);
            if (row >= x.m) continue;
            float *const to = C + row * x.p;
            TL_UNROLL_FOR (int q = 0; q < Own::PIECES; q++) {
                const int64_t col = j0 + Own::column(q);
                if (col >= x.p) continue;
                float y[Own::WIDE];
                TL_UNROLL_FOR (int e = 0; e < Own::WIDE; e++)
                    y[e] = Own::get(sum, m, h, q, e) + bias[q][e];
                tl_store_at_once(to + col, y);
            }
        }
}

/* Blocks of a multiprocessor, as many as its shared memory holds: before Hopper three of small tiles. */
template <class T> constexpr int blocks()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
    return T::M > 1 && T::BLOCKS > 3 ? 3 : T::BLOCKS;
#else
    return T::BLOCKS;
#endif
}

template <class T, bool TA, bool TB>
__global__ void __launch_bounds__(T::THREADS, blocks<T>()) split_kernel(const SplitArgs args)
{
    using OpA = Operand<T, T::BM, TA>;
    using OpB = Operand<T, T::BN, !TB>;
    TL_DYNAMIC_SHARED(float, shared);
    const tl_matrix_product &x = args.x;
    float *const as = shared, *const bs = shared + STAGES * OpA::SIZE;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const int row0 = warp / T::COLS * 16 * T::M, col0 = warp % T::COLS * 8 * T::N;
    const int k = t / 2 * 16 + t % 2 * 2;
    const int a_at = OpA::at(row0 + (TA ? T::ACROSS * g : g), k), b_at = OpB::at(col0 + (TB ? g : 4 * g), k);

    const Place<T> begin(args);
    OpA a_tiles(begin.A, begin.i0, x.m, x.n);
    OpB b_tiles(begin.B, begin.j0, x.p, x.n);
    float sum[T::M][T::N][4] = {};
    Guard of_a, of_b;
    const int n = (int)x.n;
    TL_UNROLL_FOR (int s = 0; s < STAGES - 1; s++) {
        if (s * STEP < n) {
            a_tiles.copy(as + s * OpA::SIZE, n - s * STEP);
            b_tiles.copy(bs + s * OpB::SIZE, n - s * STEP);
        }
        tl_copy_commit();
    }
    int now = 0;
#pragma unroll 1
    for (int rest = n; rest > 0; rest -= STEP) {
        tl_copy_wait<STAGES - 2>();
        show(a_tiles, b_tiles, as + now * OpA::SIZE, bs + now * OpB::SIZE, of_a, of_b);
        __syncthreads();
        const int ahead = rest - (STAGES - 1) * STEP, last = now == 0 ? STAGES - 1 : now - 1;
        if (ahead > 0) {
            a_tiles.copy(as + last * OpA::SIZE, ahead);
            b_tiles.copy(bs + last * OpB::SIZE, ahead);
        }
        tl_copy_commit();
        float part[T::M][T::N][4] = {};
        multiply_step<T, TA, TB, OpA::PITCH, OpB::PITCH>(part, as + now * OpA::SIZE + a_at, bs + now * OpB::SIZE + b_at,
                                                         rest <= 8);
        TL_UNROLL_FOR (int m = 0; m < T::M; m++)
            TL_UNROLL_FOR (int n = 0; n < T::N; n++)
                TL_UNROLL_FOR (int e = 0; e < 4; e++)
                    sum[m][n][e] += part[m][n][e];
        now = now + 1 == STAGES ? 0 : now + 1;
    }
    tl_copy_wait<0>();
    bool unsafe = of_a.unsafe() || of_b.unsafe();
    TL_UNROLL_FOR (int m = 0; m < T::M; m++)
        TL_UNROLL_FOR (int n = 0; n < T::N; n++)
            TL_UNROLL_FOR (int e = 0; e < 4; e++)
                unsafe |= !(fabsf(sum[m][n][e]) <= FLT_MAX);
    if (__syncthreads_or(unsafe)) {
        plain_tile<T, OpA, OpB>(x, Place<T>(args), as, bs);
        return;
    }
    const Place<T> end(args);
    store_tile<T, TA, TB>(x, end.C, sum, end.i0 + row0, end.j0 + col0);
}

template <class T, bool TA, bool TB>
constexpr size_t shared_bytes = 4 * STAGES * (Operand<T, T::BM, TA>::SIZE + Operand<T, T::BN, !TB>::SIZE);

template <class T, bool TA, bool TB> int32_t launch_form(tl_context *ctx, const tl_matrix_product &x)
{
    const int64_t row_tiles = tl_ceil_div(x.m, T::BM), column_tiles = tl_ceil_div(x.p, T::BN);
    const SplitArgs args = {x, tl_fastdiv((uint64_t)row_tiles), tl_fastdiv((uint64_t)column_tiles)};
    const unsigned grid = (unsigned)(x.batch * row_tiles * column_tiles);
    return tl_launch_shared(ctx, "split_product", split_kernel<T, TA, TB>, grid, T::THREADS, shared_bytes<T, TA, TB>,
                            args);
}

template <class T> int32_t launch(tl_context *ctx, const tl_matrix_product &x)
{
    return x.ta   ? launch_form<T, true, false>(ctx, x)
           : x.tb ? launch_form<T, false, true>(ctx, x)
                  : launch_form<T, false, false>(ctx, x);
}

/* 64 x 32 results to a warp, eight warps to a multiprocessor, bound by registers; 32 x 32 with four blocks of four warps, for
 * products that large tiles would not spread over the device or not fill; and 16 x 32 for those that leave most multiprocessors less
 * than three of these blocks, or many of their rows empty, or columns. */
using Large = Tile<128, 128, 2, 4, 1>;
using Small = Tile<64, 64, 2, 2, 4>;
using Flat = Tile<32, 64, 2, 2, 4>;
using Narrow = Tile<64, 32, 4, 1, 4>;

/* Whether a block can have the shared memory of large tiles here: on some GPUs it has 99 KiB. No form of a product needs more. */
bool large_tiles_fit()
{
    constexpr size_t bytes = shared_bytes<Large, false, true>;
    static_assert(bytes >= shared_bytes<Large, true, false> && bytes >= shared_bytes<Large, false, false>);
    return tl_shared_fits(split_kernel<Large, false, true>, bytes);
}

} /* namespace */

/* From n = 64 on 7.5·√n·u, the bound of a sum of n terms, covers what a split product and its parts lose: 4u for the
 * product of the lower parts and twice 2u for the last bit of a lower part; below 4u, cut off in the alignment and in
 * the result, for each of the ten mma of a part whose sum is not small; the sum of the parts. */
int32_t tl_mma_multiply(tl_context *ctx, const tl_matrix_product &x)
{
    switch (tl_choose_mma_tile(x.shape(), tl_cuda_sms(ctx))) {
    case TL_MMA_LARGE:
        if (large_tiles_fit()) return launch<Large>(ctx, x);
        [[fallthrough]];
    case TL_MMA_SMALL: return launch<Small>(ctx, x);
    case TL_MMA_FLAT: return launch<Flat>(ctx, x);
    default: return launch<Narrow>(ctx, x);
    }
}
