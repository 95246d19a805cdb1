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
 * u ^ 2·(2·(k/16) + k/2%2), and a quarter of a warp touches the units g ^ 2t. Where rows in memory are no whole 16 bytes, rows across
 * k are padded by a unit, and the upper 16 of them lie four units further: a quarter of a warp touches the units g + 2t modulo 8.
 *
 * Each result is a sum of parts of STEP terms in order of k, each part 12 mma: fixed by n alone, not by the tile, the
 * batch or the place of the result. A block that met a value that does not split, or got a result that is not finite,
 * computes its tile again as chains of fused multiply-adds in increasing k: there bits depend on the tile, whose choice stays. */
#include <float.h>

#include <algorithm>
#include <type_traits>

#include "cuda/device/async_copy.cuh"
#include "cuda/device/tf32_split.cuh"
#include "cuda/device/vector.cuh"
#include "cuda/linalg/linalg.cuh"
#include "cuda/linalg/split_tiles.cuh"
#include "generated/linalg.h"

namespace {

using namespace tl_split_tiles;

constexpr int STEP = TL_DRAIN, STAGES = 3;

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

/* How an operand's tiles of WIDTH rows (columns of op(B)) by STEP of k lie in shared memory, TRANSPOSED where its rows lie across k,
 * WHOLE where rows in memory are whole 16 bytes. A thread copies 16 bytes COPIES times, BELOW rows of memory apart. */
template <class T, int WIDTH, bool TRANSPOSED, bool WHOLE> struct Layout {
    static constexpr int LENGTH = TRANSPOSED ? WIDTH : STEP, ROWS = TRANSPOSED ? STEP : WIDTH;
    static constexpr bool EXCHANGES = TRANSPOSED && WHOLE;
    static constexpr int PITCH = EXCHANGES ? LENGTH : LENGTH + 4, HALF = TRANSPOSED && !WHOLE ? 16 : 0;
    static constexpr int SIZE = ROWS * PITCH + HALF;
    static constexpr int UNITS = LENGTH / 4, BELOW = T::THREADS / UNITS, COPIES = ROWS / BELOW;
    static_assert(WIDTH % 32 == 0 && UNITS <= 32 && ROWS % BELOW == 0 && (BELOW & (BELOW - 1)) == 0 &&
                      (HALF == 0 || BELOW <= 16),
                  "ownership");

    /* What row k of a tile exchanges: whole units of 16 bytes. */
    static __device__ __forceinline__ int exchange(int k) { return (k / 16 * 4 | k / 2 % 2 * 2) * 4; }
    static __device__ __forceinline__ int at(int i, int k)
    {
        return EXCHANGES ? k * PITCH + (i ^ exchange(k)) : TRANSPOSED ? k * PITCH + k / 16 * HALF + i : i * PITCH + k;
    }
    static __device__ __forceinline__ int unit() { return (int)threadIdx.x % UNITS * 4; }
    static __device__ __forceinline__ int row() { return (int)threadIdx.x / UNITS; }
    const int own = TRANSPOSED ? at(unit(), row()) : at(row(), unit()); /* where the thread's first copy goes */
    /* Where copy c goes, of a thread whose first goes to `own`. */
    static __device__ __forceinline__ int place(int own, int c)
    {
        return c * BELOW * PITCH + (EXCHANGES ? own ^ exchange(c * BELOW) : own + c * BELOW / 16 * HALF);
    }
};

template <class T, int WIDTH, bool TRANSPOSED> struct WholeOperand : Layout<T, WIDTH, TRANSPOSED, true> {
    using L = Layout<T, WIDTH, TRANSPOSED, true>;
    const float *from; /* where the next tile's first copy starts */
    int64_t length;    /* of a row in memory */
    int others;        /* what is left of the other side from the thread's first element on */

    /* Elements i0 .. of `width`, k from 0. */
    __device__ __forceinline__ WholeOperand(const float *x, int64_t i0, int64_t width, int64_t n)
    {
        const int i = TRANSPOSED ? L::unit() : L::row(), k = TRANSPOSED ? L::row() : L::unit();
        length = TRANSPOSED ? width : n;
        from = TRANSPOSED ? x + k * length + i0 + i : x + (i0 + i) * length + k;
        others = (int)(width - i0) - i;
    }

    /* Starts copying the next tile, of `rest` k; what does not exist is 0, and is not read wherever it would lie. */
    __device__ __forceinline__ void copy(float *to, int rest)
    {
        constexpr int BELOW = L::BELOW;
        rest -= TRANSPOSED ? L::row() : L::unit();
        TL_UNROLL_FOR (int c = 0; c < L::COPIES; c++) {
            const bool present = TRANSPOSED ? others > 0 && rest > c * BELOW : others > c * BELOW && rest > 0;
            tl_copy_async<16>(to + L::place(L::own, c), from + c * BELOW * length, present);
        }
        from += TRANSPOSED ? STEP * length : STEP;
    }

    /* Reads what the thread copied of a tile; the thread's copies have arrived. */
    __device__ __forceinline__ void read(const float *tile, float (&x)[L::COPIES][4]) const
    {
        TL_UNROLL_FOR (int c = 0; c < L::COPIES; c++)
            tl_load4(tile + L::place(L::own, c), x[c]);
    }

    /* Leaves it as it lies; a barrier follows. */
    __device__ __forceinline__ void settle(float *, const float (&)[L::COPIES][4]) const {}
};

/* The same of rows that begin anywhere: copied in pieces of 16 bytes from the whole 16 bytes on in which a tile's row begins, and one
 * piece more where the row begins behind them, for which there is room. The warp that copied a row shifts it to its place before the
 * others read it. What comes before a row is not read again; it lies in the array's memory, which begins with whole 16 bytes. Rows four
 * apart begin alike, which are all that a thread copies. */
template <class T, int WIDTH, bool TRANSPOSED> struct ShiftedOperand : Layout<T, WIDTH, TRANSPOSED, false> {
    using L = Layout<T, WIDTH, TRANSPOSED, false>;
    static_assert(L::BELOW % 4 == 0 && L::BELOW <= 16 && L::COPIES <= L::UNITS, "shifts");
    const float *from; /* where the next tile's first copy starts */
    int64_t length;    /* of a row in memory */
    int behind;        /* how far the thread's rows begin behind whole 16 bytes */
    int others;        /* what is left of the other side from where the first copy starts on */

    /* As WholeOperand. */
    __device__ __forceinline__ ShiftedOperand(const float *x, int64_t i0, int64_t width, int64_t n)
    {
        length = TRANSPOSED ? width : n;
        const float *const row = (TRANSPOSED ? x + i0 : x + i0 * length) + L::row() * length;
        behind = (int)((uintptr_t)row / 4 % 4);
        from = row + (L::unit() - behind);
        others = (int)(width - i0) - (TRANSPOSED ? L::unit() - behind : L::row());
    }
    static __device__ __forceinline__ int bytes(int left) { return min(max(left, 0), 4) * 4; }

    /* As in WholeOperand. */
    __device__ __forceinline__ void copy(float *to, int rest)
    {
        constexpr int BELOW = L::BELOW;
        int unit = L::unit(), others = this->others;
        tl_forget_origin(unit), tl_forget_origin(others); /* lest what follows from them take registers all the while */
        const int rows = TRANSPOSED ? rest - L::row() : others;
        const int left = TRANSPOSED ? others : rest - (unit - behind);
        const uint32_t shared = tl_shared_address(to);
        TL_UNROLL_FOR (int c = 0; c < L::COPIES; c++)
            tl_copy_async_first(shared + L::place(L::own, c) * 4, from + c * BELOW * length,
                                rows > c * BELOW ? bytes(left) : 0);
        /* Of a row's pieces the first threads have, by the number of the copy, one row's last. */
        const int c = unit / 4, further = L::LENGTH - unit;
        if (behind > 0 && c < L::COPIES)
            tl_copy_async_first(shared + (L::place(L::own, c) + further) * 4, from + (c * BELOW * length + further),
                                rows > c * BELOW ? bytes(left - further) : 0);
        from += TRANSPOSED ? STEP * length : STEP;
    }

    /* As in WholeOperand. */
    __device__ __forceinline__ void read(const float *tile, float (&x)[L::COPIES][4]) const
    {
        int own = L::own;
        tl_forget_origin(own); /* as above */
        const float *const first = tile + own + behind;
        __syncwarp(); /* other lanes' copies */
        TL_UNROLL_FOR (int c = 0; c < L::COPIES; c++)
            TL_UNROLL_FOR (int e = 0; e < 4; e++)
                x[c][e] = first[L::place(0, c) + e];
    }

    /* Shifts what was read to its place; as in WholeOperand. */
    __device__ __forceinline__ void settle(float *tile, const float (&x)[L::COPIES][4]) const
    {
        int own = L::own;
        tl_forget_origin(own);
        __syncwarp(); /* which has read the tile */
        TL_UNROLL_FOR (int c = 0; c < L::COPIES; c++)
            tl_store4(tile + own + L::place(0, c), x[c]);
    }
};

template <class T, int WIDTH, bool TRANSPOSED, bool WHOLE>
using Operand = std::conditional_t<WHOLE, WholeOperand<T, WIDTH, TRANSPOSED>, ShiftedOperand<T, WIDTH, TRANSPOSED>>;

/* Takes tiles of both operands that the thread's copies have brought, and shows them to the guards; a barrier follows. Both are read
 * before either is shifted, so that a warp waits once. */
template <class OpA, class OpB>
__device__ __forceinline__ void receive(const OpA &a, const OpB &b, float *as, float *bs, Guard &of_a, Guard &of_b)
{
    float x[OpA::COPIES][4], y[OpB::COPIES][4];
    a.read(as, x), b.read(bs, y);
    a.settle(as, x), b.settle(bs, y);
    TL_UNROLL_FOR (int c = 0; c < OpA::COPIES; c++)
        of_a.see(make_float4(x[c][0], x[c][1], x[c][2], x[c][3]));
    TL_UNROLL_FOR (int c = 0; c < OpB::COPIES; c++)
        of_b.see(make_float4(y[c][0], y[c][1], y[c][2], y[c][3]));
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
            if constexpr (TA && T::ACROSS == 2) {
                const float2 x = *reinterpret_cast<const float2 *>(a + k * A_PITCH);
                const float2 y = *reinterpret_cast<const float2 *>(a + (k + 1) * A_PITCH);
                tl_split(x.x, ahi[0][0], alo[0][0]);
                tl_split(x.y, ahi[0][1], alo[0][1]);
                tl_split(y.x, ahi[0][2], alo[0][2]);
                tl_split(y.y, ahi[0][3], alo[0][3]);
            } else if constexpr (TA) {
                TL_UNROLL_FOR (int u = 0; u < T::M / 2; u++) {
                    const float4 x = tl_load4(a + k * A_PITCH + 32 * u), y = tl_load4(a + (k + 1) * A_PITCH + 32 * u);
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
                TL_UNROLL_FOR (int u = 0; u < T::N / 4; u++) {
                    const float4 x = tl_load4(b + k * B_PITCH + 32 * u), y = tl_load4(b + (k + 1) * B_PITCH + 32 * u);
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
__device__ __forceinline__ void plain_tile(const tl_matrix_product &x, const Place<T> &place, float *as, float *bs)
{
    const int tx = threadIdx.x % T::TX, ty = threadIdx.x / T::TX;
    OpA a_tiles(place.A, place.i0, x.m, x.n);
    OpB b_tiles(place.B, place.j0, x.p, x.n);
    Guard seen; /* for nothing */
    float sum[T::RM][T::RN] = {};
    for (int64_t k0 = 0; k0 < x.n; k0 += STEP) {
        __syncthreads();
        a_tiles.copy(as, (int)(x.n - k0));
        b_tiles.copy(bs, (int)(x.n - k0));
        tl_copy_commit();
        tl_copy_wait<0>();
        receive(a_tiles, b_tiles, as, bs, seen, seen);
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

/* Blocks of a multiprocessor, as many as its shared memory holds: before Hopper three of small tiles. */
template <class T> constexpr int blocks()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
    return T::M > 1 && T::BLOCKS > 3 ? 3 : T::BLOCKS;
#else
    return T::BLOCKS;
#endif
}

/* WA, WB: whether rows of either operand are whole 16 bytes; both: C's, too. */
template <class T, bool TA, bool TB, bool WA, bool WB>
__global__ void __launch_bounds__(T::THREADS, blocks<T>()) split_kernel(const SplitArgs args)
{
    using OpA = Operand<T, T::BM, TA, WA>;
    using OpB = Operand<T, T::BN, !TB, WB>;
    constexpr bool WHOLE = WA && WB;
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
        receive(a_tiles, b_tiles, as + now * OpA::SIZE, bs + now * OpB::SIZE, of_a, of_b);
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
    const int64_t i0 = end.i0 + row0, j0 = end.j0 + col0;
    if (WHOLE || args.wide)
        store_wide<T, TA, TB>(x, end.C, sum, i0, j0);
    else if constexpr (!WHOLE)
        store_rows<T, TA, TB>(x, end.C, sum, i0, j0, shared + warp * Rows<T, TA, TB>::SIZE);
}

template <class T, bool TA, bool TB, bool WA, bool WB>
constexpr size_t shared_bytes = 4 * STAGES * (Operand<T, T::BM, TA, WA>::SIZE + Operand<T, T::BN, !TB, WB>::SIZE);

template <class T, bool TA, bool TB, bool WA, bool WB> int32_t launch_split(tl_context *ctx, const tl_matrix_product &x)
{
    const int64_t row_tiles = tl_ceil_div(x.m, T::BM), column_tiles = tl_ceil_div(x.p, T::BN);
    static_assert(T::THREADS / 32 * Rows<T, TA, TB>::SIZE * sizeof(float) <= shared_bytes<T, TA, TB, WA, WB>);
    const bool wide = x.p % (TB ? 2 : 4) == 0 && tl_aligned4(x.C);
    const SplitArgs args = {x, tl_fastdiv((uint64_t)row_tiles), tl_fastdiv((uint64_t)column_tiles), wide};
    const unsigned grid = (unsigned)(x.batch * row_tiles * column_tiles);
    return tl_launch_shared(ctx, "split_product", split_kernel<T, TA, TB, WA, WB>, grid, T::THREADS,
                            shared_bytes<T, TA, TB, WA, WB>, args);
}

template <class T, bool WA, bool WB> int32_t launch_form(tl_context *ctx, const tl_matrix_product &x)
{
    return x.ta   ? launch_split<T, true, false, WA, WB>(ctx, x)
           : x.tb ? launch_split<T, false, true, WA, WB>(ctx, x)
                  : launch_split<T, false, false, WA, WB>(ctx, x);
}

/* 64 x 32 results to a warp, eight warps to a multiprocessor, bound by registers; 32 x 32 with four blocks of four warps, for
 * products that large tiles would not spread over the device or not fill; and 16 x 32 for those that leave most multiprocessors less
 * than three of these blocks, or many of their rows empty, or columns. */
using Large = Tile<128, 128, 2, 4, 1>;
using Small = Tile<SMALL, SMALL, 2, 2, 4>; /* also for rows that are no whole 16 bytes, which take registers */
using Slim = Tile<HALF, SMALL, 2, 2, 4>;
using Narrow = Tile<SMALL, HALF, 4, 1, 4>;

/* Whether a block can have the shared memory of such tiles here: on some GPUs it has 99 KiB. No form of a product needs more. */
template <class T> bool fits()
{
    constexpr size_t bytes = shared_bytes<T, false, true, true, true>;
    static_assert(bytes >= shared_bytes<T, true, false, true, true> &&
                  bytes >= shared_bytes<T, false, false, true, true>);
    return tl_shared_fits(split_kernel<T, false, true, true, true>, bytes);
}

} /* namespace */

/* From n = 64 on 7.5·√n·u, the bound of a sum of n terms, covers what a split product and its parts lose: 4u for the
 * product of the lower parts and twice 2u for the last bit of a lower part; below 4u, cut off in the alignment and in
 * the result, for each of the ten mma of a part whose sum is not small; the sum of the parts. The tiles must be at least
 * half full and fill half of the device; or, where rows are no whole 16 bytes and need other blocks to multiply
 * meanwhile, be two for each multiprocessor. */
bool tl_split_serves(tl_context *ctx, const tl_matrix_product &x)
{
    const int64_t small = tiles(x, SMALL), blocks = tl_cuda_sms(ctx) * (WholeRows(x).both() ? 1 : 4);
    return tl_terms_fit_tensor_cores(x) && 2 * small >= blocks && small < INT32_MAX &&
           2 * x.batch * x.m * x.p >= small * SMALL * SMALL;
}

double tl_split_seconds(tl_context *ctx, const tl_matrix_product &x)
{
    const double steps = (double)tiles(x, SMALL) / tl_cuda_sms(ctx) * (double)tl_ceil_div(x.n, STEP);
    return 1e-6 * steps * tile_step(WholeRows(x));
}

template <class T> static int32_t launch_half(tl_context *ctx, const tl_matrix_product &x, const WholeRows &of)
{
    if (of.both()) return launch_form<T, true, true>(ctx, x);
    return x.tb ? launch_split<T, false, true, false, false>(ctx, x)
                : launch_split<T, false, false, false, true>(ctx, x);
}

double tl_split_seconds_of_rounds(tl_context *ctx, const tl_matrix_product &x)
{
    const WholeRows of(x);
    const double step = half_pays(ctx, x, of) ? half_step(ctx, x, of) : small_step(ctx, x, of);
    return 1e-6 * (double)tl_ceil_div(x.n, STEP) * step;
}

int32_t tl_split_multiply(tl_context *ctx, const tl_matrix_product &x)
{
    const bool large = tiles(x, 128) >= 2 * tl_cuda_sms(ctx) &&
                       4 * x.batch * x.m * x.p >= 3 * tiles(x, 128) * 128 * 128;
    const WholeRows of(x);
    if (of.both() && large && fits<Large>()) return launch_form<Large, true, true>(ctx, x);
    if (half_pays(ctx, x, of))
        return tiles(x, Narrow::BM, Narrow::BN) < tiles(x, Slim::BM, Slim::BN) ? launch_half<Narrow>(ctx, x, of)
                                                                               : launch_half<Slim>(ctx, x, of);
    if (of.a) return of.b ? launch_form<Small, true, true>(ctx, x) : launch_form<Small, true, false>(ctx, x);
    return of.b ? launch_form<Small, false, true>(ctx, x) : launch_form<Small, false, false>(ctx, x);
}
