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
 * u ^ 2·(2·(k/16) + k/2%2), and a quarter of a warp touches the units g ^ 2t.
 *
 * Each result is a sum of parts of STEP terms in order of k, each part 12 mma: fixed by n alone, not by the tile, the
 * batch or the place of the result. A block that met a value that does not split, or got a result that is not finite,
 * computes its tile again as chains of fused multiply-adds in increasing k. */
#include <float.h>

#include <algorithm>

#include "cuda/device/async_copy.cuh"
#include "cuda/device/tf32_split.cuh"
#include "cuda/device/vector.cuh"
#include "cuda/linalg/linalg.cuh"
#include "generated/linalg.h"

namespace {

constexpr int STEP = TL_DRAIN, ALONG = STEP + 4, STAGES = 3;

/* ROWS x COLS warps; BLOCKS: how many shall run on one multiprocessor. */
template <int BM_, int BN_, int ROWS_, int COLS_, int BLOCKS_> struct Tile {
    static constexpr int BM = BM_, BN = BN_, ROWS = ROWS_, COLS = COLS_, BLOCKS = BLOCKS_;
    static constexpr int THREADS = 32 * ROWS * COLS, M = BM / ROWS / 16, N = BN / COLS / 8;
    static constexpr int UNROLL = BLOCKS > 1 && M > 1 ? 2 : 4; /* bound by registers */
    static constexpr int ACROSS = M > 1 ? 4
                                        : 2; /* neighbouring rows that a lane reads of an A whose rows lie across k */
    /* without tensor cores: rows ty + TY·i and columns tx + TX·j */
    static constexpr int TX = 16, TY = THREADS / TX, RM = BM / TY, RN = BN / TX;
    static_assert((M == 1 || M % 2 == 0) && N % 4 == 0, "ownership");
};

struct SplitArgs {
    tl_matrix_product x;
    tl_fastdiv row_tiles, column_tiles;
    bool wide; /* C takes what a lane has side by side at once */
};

using Guard = tl_split_guard;

/* One operand's tiles: WIDTH rows (columns of op(B)) by STEP of k each, TRANSPOSED where its rows lie across k. A thread
 * copies VECTOR elements, of which rows in memory are made, COPIES times, BELOW rows of memory apart, from element (i, k) of a
 * tile on. */
template <class T, int WIDTH, bool TRANSPOSED, int VECTOR> struct Operand {
    static constexpr int SIZE = TRANSPOSED ? STEP * WIDTH : WIDTH * ALONG, COPIES = WIDTH * STEP / VECTOR / T::THREADS;
    static constexpr int UNITS = (TRANSPOSED ? WIDTH : STEP) / VECTOR, BELOW = T::THREADS / UNITS;
    static_assert(WIDTH % 32 == 0 && T::THREADS % UNITS == 0 && (BELOW & (BELOW - 1)) == 0, "ownership");

    const float *array, *from; /* from: where the next tile's first copy starts */
    int64_t length;            /* of a row in memory */
    int i, k, rows, rest;      /* what is left of the other side and of k from (i, k) on */

    /* Elements i0 .. of `width`, k from 0. */
    __device__ __forceinline__ Operand(const float *x, int64_t i0, int64_t width, int64_t n) : array(x)
    {
        i = TRANSPOSED ? threadIdx.x % UNITS * VECTOR : threadIdx.x / UNITS;
        k = TRANSPOSED ? threadIdx.x / UNITS : threadIdx.x % UNITS * VECTOR;
        length = TRANSPOSED ? width : n;
        from = TRANSPOSED ? x + k * length + i0 + i : x + (i0 + i) * length + k;
        rows = (int)(width - i0) - i;
        rest = (int)n - k;
    }

    /* What row k of a tile exchanges: whole units of 16 bytes. */
    static __device__ __forceinline__ int exchange(int k) { return (k / 16 * 4 | k / 2 % 2 * 2) * 4; }
    static __device__ __forceinline__ int at(int i, int k)
    {
        return TRANSPOSED ? k * WIDTH + (i ^ exchange(k)) : i * ALONG + k;
    }
    __device__ __forceinline__ int place(int copy) const
    {
        return TRANSPOSED ? copy * BELOW * WIDTH + (at(i, k) ^ exchange(copy * BELOW))
                          : at(i, k) + copy * BELOW * ALONG;
    }

    /* Starts copying the next tile; what does not exist is 0. */
    __device__ __forceinline__ void copy(float *to)
    {
        TL_UNROLL_FOR (int c = 0; c < COPIES; c++) {
            const bool present = TRANSPOSED ? rows > 0 && rest > c * BELOW : rows > c * BELOW && rest > 0;
            tl_copy_async<4 * VECTOR>(to + place(c), present ? from + c * BELOW * length : array, present);
        }
        from += TRANSPOSED ? STEP * length : STEP;
        rest -= STEP;
    }

    /* Shows the guard 16 bytes at a time of a tile: of those that the thread copied, or where it copied less at a time, of any. */
    static constexpr bool OWN = VECTOR == 4;
    __device__ __forceinline__ void look(const float *tile, Guard &guard) const
    {
        TL_UNROLL_FOR (int c = 0; c < WIDTH * STEP / 4 / T::THREADS; c++) {
            const int unit = threadIdx.x + c * T::THREADS;
            guard.see(tl_load4(tile + (OWN          ? place(c)
                                       : TRANSPOSED ? 4 * unit
                                                    : unit / (STEP / 4) * ALONG + unit % (STEP / 4) * 4)));
        }
    }
};

/* part += A·B over a step for the warp's results. `a`, `b`: the operands from the lane's first element on. */
template <class T, bool TA, bool TB>
__device__ __forceinline__ void multiply_step(float (&part)[T::M][T::N][4], const float *a, const float *b)
{
#pragma unroll(T::UNROLL)
    for (int q = 0; q < 4; q++) {
        uint32_t ahi[T::M][4], alo[T::M][4], bhi[T::N][2], blo[T::N][2];
        const int k = 4 * q;
        if constexpr (TA && T::ACROSS == 2) {
            const float2 x = *reinterpret_cast<const float2 *>(a + k * T::BM);
            const float2 y = *reinterpret_cast<const float2 *>(a + (k + 1) * T::BM);
            tl_split(x.x, ahi[0][0], alo[0][0]);
            tl_split(x.y, ahi[0][1], alo[0][1]);
            tl_split(y.x, ahi[0][2], alo[0][2]);
            tl_split(y.y, ahi[0][3], alo[0][3]);
        } else if constexpr (TA) {
            TL_UNROLL_FOR (int u = 0; u < T::M / 2; u++) {
                const float4 x = tl_load4(a + k * T::BM + 32 * u), y = tl_load4(a + (k + 1) * T::BM + 32 * u);
                tl_split(x.x, ahi[2 * u][0], alo[2 * u][0]);
                tl_split(x.y, ahi[2 * u][1], alo[2 * u][1]);
                tl_split(y.x, ahi[2 * u][2], alo[2 * u][2]);
                tl_split(y.y, ahi[2 * u][3], alo[2 * u][3]);
                tl_split(x.z, ahi[2 * u + 1][0], alo[2 * u + 1][0]);
                tl_split(x.w, ahi[2 * u + 1][1], alo[2 * u + 1][1]);
                tl_split(y.z, ahi[2 * u + 1][2], alo[2 * u + 1][2]);
                tl_split(y.w, ahi[2 * u + 1][3], alo[2 * u + 1][3]);
            }
        } else {
            TL_UNROLL_FOR (int m = 0; m < T::M; m++)
                TL_UNROLL_FOR (int e = 0; e < 2; e++) {
                    const float2 x = *reinterpret_cast<const float2 *>(a + (16 * m + 8 * e) * ALONG + k);
                    tl_split(x.x, ahi[m][e], alo[m][e]);
                    tl_split(x.y, ahi[m][e + 2], alo[m][e + 2]);
                }
        }
        if constexpr (TB) {
            TL_UNROLL_FOR (int n = 0; n < T::N; n++) {
                const float2 y = *reinterpret_cast<const float2 *>(b + 8 * n * ALONG + k);
                tl_split(y.x, bhi[n][0], blo[n][0]);
                tl_split(y.y, bhi[n][1], blo[n][1]);
            }
        } else {
            TL_UNROLL_FOR (int u = 0; u < T::N / 4; u++) {
                const float4 x = tl_load4(b + k * T::BN + 32 * u), y = tl_load4(b + (k + 1) * T::BN + 32 * u);
                tl_split(x.x, bhi[4 * u][0], blo[4 * u][0]);
                tl_split(x.y, bhi[4 * u + 1][0], blo[4 * u + 1][0]);
                tl_split(x.z, bhi[4 * u + 2][0], blo[4 * u + 2][0]);
                tl_split(x.w, bhi[4 * u + 3][0], blo[4 * u + 3][0]);
                tl_split(y.x, bhi[4 * u][1], blo[4 * u][1]);
                tl_split(y.y, bhi[4 * u + 1][1], blo[4 * u + 1][1]);
                tl_split(y.z, bhi[4 * u + 2][1], blo[4 * u + 2][1]);
                tl_split(y.w, bhi[4 * u + 3][1], blo[4 * u + 3][1]);
            }
        }
        tl_mma_split(part, ahi, alo, bhi, blo);
    }
}

/* The tile without tensor cores. */
template <class T, class OpA, class OpB>
__device__ __forceinline__ void plain_tile(const tl_matrix_product &x, const float *A, const float *B, float *C,
                                           int64_t i0, int64_t j0, float *as, float *bs)
{
    const int tx = threadIdx.x % T::TX, ty = threadIdx.x / T::TX;
    OpA a_tiles(A, i0, x.m, x.n);
    OpB b_tiles(B, j0, x.p, x.n);
    float sum[T::RM][T::RN] = {};
    for (int64_t k0 = 0; k0 < x.n; k0 += STEP) {
        __syncthreads();
        a_tiles.copy(as);
        b_tiles.copy(bs);
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
            const int64_t row = i0 + ty + T::TY * i, col = j0 + tx + T::TX * j;
            if (row < x.m && col < x.p) C[row * x.p + col] = x.bias ? sum[i][j] + x.bias[col] : sum[i][j];
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
    static __device__ __forceinline__ void put(float *to, const float (&y)[WIDE])
    {
        if constexpr (TB)
            *reinterpret_cast<float2 *>(to) = make_float2(y[0], y[1]);
        else
            tl_store4(to, y);
    }
};

/* Stores a warp's results, from (i0, j0) on, as its lanes have them: rows of C are whole pieces. */
template <class T, bool TA, bool TB>
__device__ __forceinline__ void store_wide(const tl_matrix_product &x, float *C, const float (&sum)[T::M][T::N][4],
                                           int64_t i0, int64_t j0)
{
    using Own = Owned<T, TA, TB>;
    TL_UNROLL_FOR (int m = 0; m < T::M; m++)
        TL_UNROLL_FOR (int h = 0; h < 2; h++) {
            const int64_t row = i0 + Own::row(m, h);
            if (row >= x.m) continue;
            float *const to = C + row * x.p;
            TL_UNROLL_FOR (int q = 0; q < Own::PIECES; q++) {
                const int64_t col = j0 + Own::column(q);
                if (col >= x.p) continue;
                float y[Own::WIDE];
                TL_UNROLL_FOR (int e = 0; e < Own::WIDE; e++) {
                    y[e] = Own::get(sum, m, h, q, e);
                    if (x.bias) y[e] += x.bias[col + e];
                }
                Own::put(to + col, y);
            }
        }
}

/* How a warp's results lie in shared memory: so far from row to row that lanes which write at once write to different banks. */
template <class T, bool TA, bool TB> struct Rows {
    static constexpr int PITCH = 8 * T::N + (TB ? 8 : 4), SIZE = 16 * T::M * PITCH;
};

/* The same of rows that begin anywhere, of which a lane's neighbours can only be written one by one, each to another sector: they go
 * through shared memory, `own`, so that the warp writes whole rows. */
template <class T, bool TA, bool TB>
__device__ __forceinline__ void store_rows(const tl_matrix_product &x, float *C, const float (&sum)[T::M][T::N][4],
                                           int64_t i0, int64_t j0, float *own)
{
    using Own = Owned<T, TA, TB>;
    constexpr int PITCH = Rows<T, TA, TB>::PITCH;
    static_assert(8 * T::N == 32, "a column for each lane");
    TL_UNROLL_FOR (int m = 0; m < T::M; m++)
        TL_UNROLL_FOR (int h = 0; h < 2; h++)
            TL_UNROLL_FOR (int q = 0; q < Own::PIECES; q++) {
                float y[Own::WIDE];
                TL_UNROLL_FOR (int e = 0; e < Own::WIDE; e++)
                    y[e] = Own::get(sum, m, h, q, e);
                Own::put(own + Own::row(m, h) * PITCH + Own::column(q), y);
            }
    __syncwarp();
    const int lane = (int)threadIdx.x % 32, rows = (int)min(x.m - i0, (int64_t)(16 * T::M));
    const int64_t col = j0 + lane;
    if (col >= x.p) return;
    const float bias = x.bias ? x.bias[col] : -0.0f; /* which changes nothing */
    float *to = C + i0 * x.p + col;
#pragma unroll 8
    for (int r = 0; r < rows; r++, to += x.p)
        *to = own[r * PITCH + lane] + bias;
}

/* VA, VB: elements of a copy of either operand; both 4: C's rows are whole 16 bytes, too. */
template <class T, bool TA, bool TB, int VA, int VB>
__global__ void __launch_bounds__(T::THREADS, T::BLOCKS) split_kernel(const SplitArgs args)
{
    using OpA = Operand<T, T::BM, TA, VA>;
    using OpB = Operand<T, T::BN, !TB, VB>;
    constexpr bool WHOLE = VA == 4 && VB == 4;
    TL_DYNAMIC_SHARED(float, shared);
    const tl_matrix_product &x = args.x;
    uint32_t row_tile, column_tile;
    const uint32_t tile = args.column_tiles.divmod(blockIdx.x, &column_tile);
    const int64_t product = args.row_tiles.divmod(tile, &row_tile);
    const int64_t i0 = (int64_t)row_tile * T::BM, j0 = (int64_t)column_tile * T::BN;
    const float *A = x.A + product * x.m * x.n, *B = x.B + product * x.n * x.p;
    float *C = x.C + product * x.m * x.p, *as = shared, *bs = shared + STAGES * OpA::SIZE;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const int row0 = warp / T::COLS * 16 * T::M, col0 = warp % T::COLS * 8 * T::N;
    const int k = t / 2 * 16 + t % 2 * 2;
    const int a_at = OpA::at(row0 + (TA ? T::ACROSS * g : g), k), b_at = OpB::at(col0 + (TB ? g : 4 * g), k);

    OpA a_tiles(A, i0, x.m, x.n);
    OpB b_tiles(B, j0, x.p, x.n);
    float sum[T::M][T::N][4] = {};
    Guard guard;
    const int steps = (int)tl_ceil_div(x.n, STEP);
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
        if constexpr (OpA::OWN) a_tiles.look(as + now * OpA::SIZE, guard);
        if constexpr (OpB::OWN) b_tiles.look(bs + now * OpB::SIZE, guard);
        __syncthreads();
        if constexpr (!OpA::OWN) a_tiles.look(as + now * OpA::SIZE, guard);
        if constexpr (!OpB::OWN) b_tiles.look(bs + now * OpB::SIZE, guard);
        if (s + STAGES - 1 < steps) {
            a_tiles.copy(as + next * OpA::SIZE);
            b_tiles.copy(bs + next * OpB::SIZE);
        }
        tl_copy_commit();
        float part[T::M][T::N][4] = {};
        multiply_step<T, TA, TB>(part, as + now * OpA::SIZE + a_at, bs + now * OpB::SIZE + b_at);
        TL_UNROLL_FOR (int m = 0; m < T::M; m++)
            TL_UNROLL_FOR (int n = 0; n < T::N; n++)
                TL_UNROLL_FOR (int e = 0; e < 4; e++)
                    sum[m][n][e] += part[m][n][e];
        now = now + 1 == STAGES ? 0 : now + 1;
        next = next + 1 == STAGES ? 0 : next + 1;
    }
    tl_copy_wait<0>();
    bool unsafe = guard.unsafe();
    TL_UNROLL_FOR (int m = 0; m < T::M; m++)
        TL_UNROLL_FOR (int n = 0; n < T::N; n++)
            TL_UNROLL_FOR (int e = 0; e < 4; e++)
                unsafe |= !(fabsf(sum[m][n][e]) <= FLT_MAX);
    if (__syncthreads_or(unsafe)) {
        plain_tile<T, OpA, OpB>(x, A, B, C, i0, j0, as, bs);
        return;
    }
    if (WHOLE || args.wide)
        store_wide<T, TA, TB>(x, C, sum, i0 + row0, j0 + col0);
    else if constexpr (!WHOLE)
        store_rows<T, TA, TB>(x, C, sum, i0 + row0, j0 + col0, shared + warp * Rows<T, TA, TB>::SIZE);
}

template <class T, bool TA, bool TB, int VA, int VB> int32_t launch_split(tl_context *ctx, const tl_matrix_product &x)
{
    const int64_t row_tiles = tl_ceil_div(x.m, T::BM), column_tiles = tl_ceil_div(x.p, T::BN);
    constexpr size_t shared = sizeof(float) * STAGES *
                              (Operand<T, T::BM, TA, VA>::SIZE + Operand<T, T::BN, !TB, VB>::SIZE);
    static_assert(T::THREADS / 32 * Rows<T, TA, TB>::SIZE * sizeof(float) <= shared, "store_rows");
    const SplitArgs args = {x, tl_fastdiv((uint64_t)row_tiles), tl_fastdiv((uint64_t)column_tiles),
                            x.p % (TB ? 2 : 4) == 0 && tl_aligned4(x.C)};
    return tl_launch_shared(ctx, "split_product", split_kernel<T, TA, TB, VA, VB>,
                            (unsigned)(x.batch * row_tiles * column_tiles), T::THREADS, shared, args);
}

template <class T, int VA, int VB> int32_t launch_form(tl_context *ctx, const tl_matrix_product &x)
{
    return x.ta   ? launch_split<T, true, false, VA, VB>(ctx, x)
           : x.tb ? launch_split<T, false, true, VA, VB>(ctx, x)
                  : launch_split<T, false, false, VA, VB>(ctx, x);
}

/* 64 x 32 results to a warp, eight warps to a multiprocessor, bound by registers; 32 x 32 with three blocks of four warps, for
 * products that large tiles would not spread over the device or not fill; and 16 x 32 for those that leave most multiprocessors less
 * than three of these blocks, or many of their rows empty, or columns. */
using Large = Tile<128, 128, 2, 4, 1>;
using Small = Tile<64, 64, 2, 2, 3>; /* also for copies of less than 16 bytes, whose addresses take registers */
using Slim = Tile<32, 64, 2, 2, 4>;
using Narrow = Tile<64, 32, 4, 1, 4>;

int64_t tiles(const tl_matrix_product &x, int64_t rows, int64_t columns)
{
    return x.batch * tl_ceil_div(x.m, rows) * tl_ceil_div(x.p, columns);
}
int64_t tiles(const tl_matrix_product &x, int64_t size) { return tiles(x, size, size); }

/* Elements of a copy of either operand: 4 where its rows are whole 16 bytes, else the same number for both, 2 or 1. Both are 4
 * only where the result's rows are whole 16 bytes, too. */
struct Vectors {
    int a, b;

    explicit Vectors(const tl_matrix_product &x)
    {
        const int64_t a_length = x.ta ? x.m : x.n, b_length = x.tb ? x.n : x.p;
        const bool a_whole = a_length % 4 == 0 && tl_aligned4(x.A), b_whole = b_length % 4 == 0 && tl_aligned4(x.B);
        const bool pairs = (a_whole || (a_length % 2 == 0 && tl_aligned4(x.A))) &&
                           (b_whole || (b_length % 2 == 0 && tl_aligned4(x.B)));
        a = a_whole ? 4 : pairs ? 2 : 1, b = b_whole ? 4 : pairs ? 2 : 1;
        if (whole() && (x.p % 4 != 0 || !tl_aligned4(x.C))) b = 2;
    }
    bool whole() const { return a == 4 && b == 4; }
};

} /* namespace */

/* From n = 64 on 7.5·√n·u, the bound of a sum of n terms, covers what a split product and its parts lose: 4u for the
 * product of the lower parts and twice 2u for the last bit of a lower part; below 4u, cut off in the alignment and in
 * the result, for each of the ten mma of a part whose sum is not small; the sum of the parts. The tiles must be at least
 * half full and fill half of the device; or, where copies are of less than 16 bytes and need other blocks to multiply
 * meanwhile, be two for each multiprocessor. */
bool tl_split_serves(tl_context *ctx, const tl_matrix_product &x)
{
    const int64_t small = tiles(x, 64), blocks = tl_cuda_sms(ctx) * (Vectors(x).whole() ? 1 : 4);
    return tl_terms_fit_tensor_cores(x) && 2 * small >= blocks && small < INT32_MAX &&
           2 * x.batch * x.m * x.p >= small * 64 * 64;
}

/* A multiprocessor has three blocks, which take 0.7 µs for a step of each; up to 0.95 where copies are of less than 16 bytes. */
double tl_split_seconds(tl_context *ctx, const tl_matrix_product &x)
{
    const double steps = (double)tiles(x, 64) / tl_cuda_sms(ctx) * (double)tl_ceil_div(x.n, STEP);
    return steps * (Vectors(x).whole() ? 0.7e-6 : 0.95e-6);
}

/* Tiles of half as many results have kernels for rows of whole 16 bytes, and for those that fill them and not small ones: one side of
 * C is 32 and the other whole 64s, so that rows across k are whole 16 bytes, and only those along k may not be. */
static bool half_serves(const tl_matrix_product &x, const Vectors &of)
{
    return of.whole() || (!x.ta && of.a < 4 && of.b == (x.tb ? of.a : 4));
}
template <class T> static int32_t launch_half(tl_context *ctx, const tl_matrix_product &x, const Vectors &of)
{
    if (of.whole()) return launch_form<T, 4, 4>(ctx, x);
    if (x.tb)
        return of.a == 2 ? launch_split<T, false, true, 2, 2>(ctx, x) : launch_split<T, false, true, 1, 1>(ctx, x);
    return of.a == 2 ? launch_split<T, false, false, 2, 4>(ctx, x) : launch_split<T, false, false, 1, 4>(ctx, x);
}

/* Whether they are done sooner by a tenth, or where multiprocessors have several by a fifth. A multiprocessor with one small tile takes
 * 1 µs for a step of it, as nothing is done while its warps wait (measured on an H200), and with more of them 0.7 µs each; one of half
 * has half the products of tensor cores and three quarters of the operands to split, 0.6 times as many instructions, and of copies of
 * less than 16 bytes, which take 0.25 µs, three quarters. */
template <class T> static bool half_pays(tl_context *ctx, const tl_matrix_product &x, const Vectors &of)
{
    if (!half_serves(x, of)) return false;
    const double copies = of.whole() ? 0.0 : 0.25;
    const int64_t small = tl_ceil_div(tiles(x, 64), tl_cuda_sms(ctx));
    const int64_t half = tl_ceil_div(tiles(x, T::BM, T::BN), tl_cuda_sms(ctx));
    const double small_time = std::max(1.0, (0.7 + copies) * (double)small);
    const double half_time = std::max(0.6, (0.42 + 0.75 * copies) * (double)half);
    return (small < Small::BLOCKS ? 1.1 : 1.2) * half_time <= small_time;
}

int32_t tl_split_multiply(tl_context *ctx, const tl_matrix_product &x)
{
    const bool large = tiles(x, 128) >= 2 * tl_cuda_sms(ctx) &&
                       4 * x.batch * x.m * x.p >= 3 * tiles(x, 128) * 128 * 128;
    const Vectors of(x);
    if (of.whole() && large) return launch_form<Large, 4, 4>(ctx, x);
    const bool fewer = tiles(x, Narrow::BM, Narrow::BN) < tiles(x, Slim::BM, Slim::BN);
    if (fewer && half_pays<Narrow>(ctx, x, of)) return launch_half<Narrow>(ctx, x, of);
    if (!fewer && half_pays<Slim>(ctx, x, of)) return launch_half<Slim>(ctx, x, of);
    if (of.whole()) return launch_form<Small, 4, 4>(ctx, x);
    if (of.a == 4) return of.b == 2 ? launch_form<Small, 4, 2>(ctx, x) : launch_form<Small, 4, 1>(ctx, x);
    if (of.b == 4) return of.a == 2 ? launch_form<Small, 2, 4>(ctx, x) : launch_form<Small, 1, 4>(ctx, x);
    return of.a == 2 ? launch_form<Small, 2, 2>(ctx, x) : launch_form<Small, 1, 1>(ctx, x);
}
