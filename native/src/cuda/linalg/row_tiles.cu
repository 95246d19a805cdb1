/* Batches of matrix products of few terms whose rows are no whole quads, on CUDA, in float32: tiles of C in registers.
 *
 * What shared memory returns to a multiprocessor is 128 bytes a clock, also where lanes read the same: 16 bytes for each lane of a
 * warp take 4 clocks. A warp that keeps columns of B in registers (linalg/few_terms.cu) reads four terms of a row of A in 4 clocks
 * and multiplies them by three columns of each lane in 3, so reads bound it. Here a lane owns ROWS rows of COLUMNS columns: four
 * terms of them are read in 4·(ROWS + COLUMNS) clocks and multiplied in ROWS·COLUMNS.
 *
 * Lanes own single columns, as many apart as a row has lanes (8, 16 or 32), so that what they write of a row lies side by side
 * wherever it starts. A block has four warps, below or beside one another, and one tile, whose rows of A and columns of B it has in
 * shared memory. Three blocks fit, of which one reads while others multiply or write.
 *
 * Each sum is the chain of linalg/few_terms.cu: fused multiply-adds in increasing k, the bias joins last. Terms from n to a multiple of
 * four are zeros, and a chain that began with +0 keeps its value. */
#include <algorithm>

#include "cuda/device/async_copy.cuh"
#include "cuda/linalg/linalg.cuh"

namespace {

constexpr int THREADS = 128, WARPS = THREADS / 32, ROWS = 16, COLUMNS_LEAST = 4, COLUMNS_MOST = 7, BLOCKS = 3;

/* Elements from one row of A in shared memory to the next, and further after ROWS of them: 16 bytes times an odd number, so that
 * the rows which lanes of a warp read at once, ROWS apart, lie in different banks, as do four k of eight rows. */
constexpr int PITCH = TL_FEW_TERMS + 4, FURTHER = 4;
constexpr int SHARED_MOST = 72 << 10; /* a third of what a multiprocessor has */
constexpr int64_t MOST_ROWS = 64;

struct RowTilesArgs {
    tl_matrix_product x;
    tl_fastdiv row_tiles, column_tiles;
    int columns;   /* of a lane */
    int lane_bits; /* lanes of a row, 8, 16 or 32, as a power of 2 */
    int down_bits; /* warps below one another, likewise */
    int terms;     /* n, to a multiple of four */
    int64_t a_size, b_size, c_size;

    /* Rows and columns of a tile. */
    __host__ __device__ int rows() const { return ROWS * (32 >> lane_bits) << down_bits; }
    __host__ __device__ int width() const { return columns * (WARPS >> down_bits) << lane_bits; }
    /* Elements from one k to the next of B in shared memory, odd, so that neighbouring k of a column lie in different banks. */
    __host__ __device__ int pitch() const { return width() + 1; }
    /* Elements of A in shared memory, and of both. */
    __host__ __device__ int a_held() const { return rows() * PITCH + rows() / ROWS * FURTHER; }
    __host__ __device__ int held() const { return a_held() + terms * pitch(); }
};

__device__ __forceinline__ int row_in_shared(int row) { return row * PITCH + row / ROWS * FURTHER; }

/* Starts copying `rows` rows of A; terms from n on are 0. A warp has neighbouring k of one or two rows, or eight rows of four k where
 * rows lie across k in memory, which are whole sectors. */
template <bool TA>
__device__ __forceinline__ void copy_rows(const tl_matrix_product &x, const float *A, int terms, int rows, float *as)
{
    const int n = (int)x.n, warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    if constexpr (TA) {
        for (int i = 8 * warp + lane % 8; i < rows; i += 8 * WARPS)
            for (int k = lane / 8; k < terms; k += 4)
                tl_copy_async<4>(as + row_in_shared(i) + k, A + min(k, n - 1) * x.m + i, k < n);
    } else {
        const int bits = terms <= 16 ? 4 : 5, k = (int)threadIdx.x & ((1 << bits) - 1);
        if (k >= terms) return;
        const float *const from = A + min(k, n - 1);
#pragma unroll 4
        for (int i = (int)threadIdx.x >> bits; i < rows; i += THREADS >> bits)
            tl_copy_async<4>(as + row_in_shared(i) + k, from + i * n, k < n);
    }
}

/* Starts copying `columns` columns of B, likewise, k by k, as many at once as a lane multiplies. */
template <int AT_ONCE, bool TB>
__device__ __forceinline__ void copy_columns(const tl_matrix_product &x, const float *B, int terms, int columns,
                                             int pitch, float *bs)
{
    const int n = (int)x.n, warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    if constexpr (TB) {
        if (lane >= terms) return;
        const float *const from = B + min(lane, n - 1);
#pragma unroll 4
        for (int i = warp; i < columns; i += WARPS)
            tl_copy_async<4>(bs + lane * pitch + i, from + i * n, lane < n);
    } else {
        for (int i0 = lane; i0 < columns; i0 += 32 * AT_ONCE)
#pragma unroll 1
            for (int k = warp; k < terms; k += WARPS) {
                const float *const from = B + min(k, n - 1) * x.p + i0;
                float *const to = bs + k * pitch + i0;
                TL_UNROLL_FOR (int c = 0; c < AT_ONCE; c++)
                    if (i0 + 32 * c < columns) tl_copy_async<4>(to + 32 * c, from + 32 * c, k < n);
            }
    }
}

/* Rows and columns that do not exist are not read, and what is made of them is not written. */
template <int COLUMNS>
__global__ void __launch_bounds__(THREADS, BLOCKS) row_tiles_kernel(const __grid_constant__ RowTilesArgs args)
{
    TL_DYNAMIC_SHARED(float, row_tiles_shared);
    const tl_matrix_product &x = args.x;
    float *const as = row_tiles_shared, *const bs = as + args.a_held();
    uint32_t column_tile, row_tile;
    const int64_t product = args.row_tiles.divmod(args.column_tiles.divmod(blockIdx.x, &column_tile), &row_tile);
    const int rows = args.rows(), width = args.width(), pitch = args.pitch();
    const int64_t row0 = (int64_t)row_tile * rows, col0 = (int64_t)column_tile * width;
    const int rows_exist = (int)min(x.m - row0, (int64_t)rows), columns_exist = (int)min(x.p - col0, (int64_t)width);
    const float *const A = x.A + product * args.a_size + row0 * (x.ta ? 1 : x.n);
    const float *const B = x.B + product * args.b_size + col0 * (x.tb ? x.n : 1);
    tl_wait_for_earlier(x.order);

    if (x.ta)
        copy_rows<true>(x, A, args.terms, rows_exist, as);
    else
        copy_rows<false>(x, A, args.terms, rows_exist, as);
    if (x.tb)
        copy_columns<COLUMNS, true>(x, B, args.terms, columns_exist, pitch, bs);
    else
        copy_columns<COLUMNS, false>(x, B, args.terms, columns_exist, pitch, bs);
    tl_copy_commit();
    tl_copy_wait<0>();
    __syncthreads();

    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, lanes = 1 << args.lane_bits;
    const int down = warp & ((1 << args.down_bits) - 1), across = warp >> args.down_bits;
    const int first = ROWS * ((down << (5 - args.lane_bits)) + (lane >> args.lane_bits));
    const int col = across * COLUMNS * lanes + (lane & (lanes - 1));
    const float *a = as + row_in_shared(first), *b = bs + col;
    float sum[ROWS][COLUMNS] = {};
#pragma unroll 1
    for (int k0 = 0; k0 < args.terms; k0 += 4, a += 4) {
        float w[4][COLUMNS];
        TL_UNROLL_FOR (int k = 0; k < 4; k++, b += pitch)
            TL_UNROLL_FOR (int c = 0; c < COLUMNS; c++)
                w[k][c] = b[c * lanes];
        TL_UNROLL_FOR (int r = 0; r < ROWS; r++) {
            float v[4];
            tl_load4(a + r * PITCH, v);
            TL_UNROLL_FOR (int k = 0; k < 4; k++)
                TL_UNROLL_FOR (int c = 0; c < COLUMNS; c++)
                    sum[r][c] = fmaf(v[k], w[k][c], sum[r][c]);
        }
    }

    float bias[COLUMNS]; /* -0 changes nothing */
    TL_UNROLL_FOR (int c = 0; c < COLUMNS; c++)
        bias[c] = x.bias && col + c * lanes < columns_exist ? x.bias[col0 + col + c * lanes] : -0.0f;
    float *to = x.C + product * args.c_size + (row0 + first) * x.p + col0 + col;
    TL_UNROLL_FOR (int r = 0; r < ROWS; r++, to += x.p)
        TL_UNROLL_FOR (int c = 0; c < COLUMNS; c++)
            if (first + r < rows_exist && col + c * lanes < columns_exist) to[c * lanes] = sum[r][c] + bias[c];
    tl_wait_at_end(x.order);
}

/* Clocks of a multiprocessor for four terms of a tile: multiply-adds of its warps, or what they read from shared memory, and about
 * eight for each 32 elements that come there. */
int clocks_of(const RowTilesArgs &tiles)
{
    const int multiply = ROWS * tiles.columns, read = 4 * (ROWS + tiles.columns);
    return WARPS * std::max(multiply, read) + (tiles.rows() + tiles.width());
}

/* The tiles that take the fewest clocks; among equal ones the widest. */
RowTilesArgs choose(const tl_matrix_product &x)
{
    RowTilesArgs best = {};
    best.x = x, best.terms = (int)tl_ceil_div(x.n, 4) * 4;
    best.a_size = x.m * x.n, best.b_size = x.n * x.p, best.c_size = x.m * x.p;
    double least = 0.0;
    for (int lane_bits = 5; lane_bits >= 3; lane_bits--)
        for (int columns = COLUMNS_MOST; columns >= COLUMNS_LEAST; columns--)
            for (int down_bits = 0; 1 << down_bits <= WARPS; down_bits++) {
                RowTilesArgs tiles = best;
                tiles.columns = columns, tiles.lane_bits = lane_bits, tiles.down_bits = down_bits;
                if (tiles.held() * (int)sizeof(float) > SHARED_MOST) continue;
                const int64_t down = tl_ceil_div(x.m, tiles.rows()), across = tl_ceil_div(x.p, tiles.width());
                const double clocks = (double)(down * across) * clocks_of(tiles);
                if (least != 0.0 && clocks >= least) continue;
                tiles.row_tiles = tl_fastdiv((uint64_t)down), tiles.column_tiles = tl_fastdiv((uint64_t)across);
                least = clocks, best = tiles;
            }
    return best;
}

int64_t blocks_of(const RowTilesArgs &args)
{
    return args.x.batch * args.row_tiles.divisor * args.column_tiles.divisor;
}

template <int COLUMNS> int32_t launch(tl_context *ctx, const RowTilesArgs &args)
{
    const size_t shared = (size_t)args.held() * sizeof(float);
    const auto kernel = row_tiles_kernel<COLUMNS>;
    TL_TRY(tl_allow_shared(ctx, kernel, shared));
    return tl_launch_ahead(ctx, "row_tiles", kernel, (unsigned)blocks_of(args), THREADS, shared, args);
}

} /* namespace */

/* Results that fill most of the tiles, and blocks enough for every multiprocessor to have two. Of more rows than MOST_ROWS a block of
 * linalg/few_terms.cu keeps its columns of B for many turns, which pays for them: 768 rows took it 30 us, and tiles 38. */
bool tl_row_tiles_serve(tl_context *ctx, const tl_matrix_product &x)
{
    if (x.m > MOST_ROWS) return false;
    const RowTilesArgs args = choose(x);
    const int64_t blocks = blocks_of(args);
    const double covered = (double)blocks * args.rows() * args.width();
    return blocks >= 2 * (int64_t)tl_cuda_sms(ctx) && 3 * (double)(x.batch * x.m * x.p) >= 2 * covered;
}

int32_t tl_row_tiles_multiply(tl_context *ctx, const tl_matrix_product &x)
{
    const RowTilesArgs args = choose(x);
    switch (args.columns) {
    case 4: return launch<4>(ctx, args);
    case 5: return launch<5>(ctx, args);
    case 6: return launch<6>(ctx, args);
    default: return launch<7>(ctx, args);
    }
}
