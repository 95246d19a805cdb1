/* Matrix products with few columns, or few rows, on CUDA: chains of float64 on tensor cores (device/chain.cuh), bound by reading the
 * long factor once.
 *
 * Few rows are few columns of the transposed product, so that below A is the long factor and B the narrow one. A warp owns tiles of
 * ROWS rows of A and all columns. It copies a tile, all terms of it, to a part of shared memory that is its own, and where a block
 * has more tiles than warps, its next one while it multiplies this one: a warp waits for others only once, for B, which the block
 * widens to float64 in the order in which lanes read it. A block has tiles of one product, or of small ones several products.
 *
 * Of each 16 x 8 x 4 the lane 4g + t reads rows g and g + 8 of A at k = t. Where A's rows lie along k in memory they begin 4 times
 * an odd number of floats apart in shared memory, so that these 32 floats lie in banks 4g + t; where they lie across k, the two
 * halves of the 16 rows change places at every other pair of k, and the floats lie in banks 8t + g in another order. Terms from n on are
 * zeros; rows and columns that do not exist are whatever shared memory holds, which no other row or column sees.
 *
 * In terms of one clock of a multiprocessor of an H200: its share of the memory is four elements, so that a tile's four terms take
 * 16. The tensor cores take four for each eight columns, and widening A four: up to 32 columns nothing but memory counts. */
#include <algorithm>

#include "cuda/device/chain.cuh"
#include "cuda/linalg/linalg.cuh"

namespace {

constexpr int WARPS_MOST = 4, ROWS = 16, COLUMNS = 8; /* of a tile, and of a product of tensor cores */
constexpr int AHEAD = 16;                             /* elements of B that a thread has on their way at once */
constexpr int64_t COLUMNS_MOST = 32, TERMS_LEAST = 64;
constexpr int64_t COLUMNS_ALONG = 2, COLUMNS_ACROSS = 5; /* the least, of long rows along k or across */
constexpr int64_t SHARED_MOST = 112 << 10;               /* so that two blocks fit */
constexpr int64_t LONG_MOST = 1 << 20;                   /* an offset in a tile, or in B, has 32 bits */

struct FewColumnsArgs {
    const float *A, *B, *bias;
    float *C;
    int64_t a_size, b_size, c_size, batch;
    int m, n, p, row_stride, column_stride; /* strides: of C */
    int bias_row, bias_column;              /* and of the bias */
    int vector;                             /* elements of a copy, of which rows of A in memory are made */
    int tiles, chunk, products, stages;     /* tiles: of a product; chunk: those of a block; stages: of a warp */
    tl_fastdiv splits, chunk_div, vectors;  /* blocks of a product; by chunk; vectors of a row of A that lies along k */
    bool along_b, pairs;                    /* B's columns lie along k; C takes two columns at once */
    tl_order order;

    __host__ __device__ int steps() const { return (n + 3) / 4; }
    __host__ __device__ int pitch() const { return 4 * (steps() | 1); }
};

/* Floats of a tile of A in shared memory. */
template <bool ACROSS> __host__ __device__ __forceinline__ int tile_size(const FewColumnsArgs &args)
{
    return ROWS * (ACROSS ? 4 * args.steps() : args.pitch());
}

/* Starts a warp's copy of a tile: of rows that lie along k, and so behind each other, one vector after the other. */
template <bool ACROSS, int V>
__device__ __forceinline__ void copy_tile(const FewColumnsArgs &args, const float *A, int tile, float *to)
{
    const int lane = (int)threadIdx.x % 32, rows = min(ROWS, args.m - tile * ROWS);
    const uint32_t shared = tl_shared_address(to);
    if constexpr (ACROSS) {
        constexpr int UNITS = ROWS / V;
        const int unit = lane % UNITS * V;
        if (unit >= rows) return;
        const float *const from = A + tile * ROWS + unit;
#pragma unroll 4
        for (int k = lane / UNITS; k < args.n; k += 32 / UNITS)
            tl_copy_async<4 * V>(shared + 4 * (ROWS * k + (unit ^ k / 2 % 2 * 8)), from + (int64_t)k * args.m, true);
    } else {
        const int length = (int)args.vectors.divisor, count = rows * length, pitch = args.pitch();
        const int step = 32 % length, step_at = 32 / length * pitch + step * V, next_row = pitch - length * V;
        const float *const from = A + (int64_t)tile * ROWS * args.n;
        uint32_t column;
        const uint32_t row = args.vectors.divmod((uint32_t)lane, &column);
        int col = (int)column, at = (int)row * pitch + col * V;
#pragma unroll 4
        for (int e = lane; e < count; e += 32) {
            tl_copy_async<4 * V>(shared + 4 * at, from + e * V, true);
            col += step, at += step_at;
            if (col >= length) col -= length, at += next_row;
        }
    }
}
template <bool ACROSS>
__device__ __forceinline__ void copy_tile(const FewColumnsArgs &args, const float *A, int tile, float *to)
{
    switch (args.vector) {
    case 4: return copy_tile<ACROSS, 4>(args, A, tile, to);
    case 2: return copy_tile<ACROSS, 2>(args, A, tile, to);
    default: return copy_tile<ACROSS, 1>(args, A, tile, to);
    }
}

/* What lies from n on up to whole steps of a tile is 0, and no copy changes it. */
template <bool ACROSS> __device__ __forceinline__ void clear_end(const FewColumnsArgs &args, float *tile)
{
    const int more = 4 * args.steps() - args.n;
    for (int e = (int)threadIdx.x % 32; e < more * ROWS; e += 32) {
        const int k = args.n + e / ROWS;
        tile[ACROSS ? k * ROWS + e % ROWS : e % ROWS * args.pitch() + k] = 0.0f;
    }
}

/* Of a product's B, for lane 4g + t of column tile j and step s column 8j + g at k = 4s + t: for every warp AHEAD of these 32, as
 * many apart as a block has warps. */
template <int N>
__device__ __forceinline__ void load_columns(const FewColumnsArgs &args, const float *B, int first, float (&v)[AHEAD])
{
    const int lane = (int)threadIdx.x % 32, warps = (int)blockDim.x / 32;
    TL_UNROLL_FOR (int u = 0; u < AHEAD; u++) {
        const int e = first + u * warps, k = e / N * 4 + lane % 4, j = e % N * COLUMNS + lane / 4;
        v[u] = k < args.n && j < args.p ? B[args.along_b ? j * args.n + k : k * args.p + j] : 0.0f;
    }
}

/* Blocks of a multiprocessor, which limit registers: to no fewer than N tiles of columns need (device/chain.cuh says why none is
 * spilled). */
template <int N> constexpr int BLOCKS = N > 1 ? 5 : 8;

/* N: tiles of eight columns; ACROSS: how A's rows lie. */
template <int N, bool ACROSS>
__global__ void __launch_bounds__(32 * WARPS_MOST, BLOCKS<N>)
    few_columns_kernel(const __grid_constant__ FewColumnsArgs args)
{
    TL_DYNAMIC_SHARED(double, few_columns_shared);
    const int lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int warp = (int)threadIdx.x / 32, warps = (int)blockDim.x / 32, steps = args.steps();
    uint32_t split;
    const int64_t first = (int64_t)args.splits.divmod(blockIdx.x, &split) * args.products;
    const int products = (int)min((int64_t)args.products, args.batch - first);
    const int tile0 = (int)split * args.chunk, chunk = min(args.chunk, args.tiles - tile0), items = products * chunk;
    const int b_step = N * 32, b_size = steps * b_step, size = tile_size<ACROSS>(args);
    double *const bs = few_columns_shared;
    float *const as = reinterpret_cast<float *>(bs + args.products * b_size) + warp * args.stages * size;
    tl_wait_for_earlier(args.order);

    /* The product of the block that an item is of, and its tile. */
    const auto locate = [&](int item, int *tile) {
        uint32_t rest = (uint32_t)item;
        const int product = args.products > 1 ? (int)args.chunk_div.divmod((uint32_t)item, &rest) : 0;
        *tile = tile0 + (int)rest;
        return product;
    };
    const auto copy = [&](int item, int stage) {
        int tile;
        const int product = locate(item, &tile);
        copy_tile<ACROSS>(args, args.A + (first + product) * args.a_size, tile, as + stage * size);
    };
    float v[AHEAD];
    const float *B = args.B + first * args.b_size;
    load_columns<N>(args, B, warp, v); /* ahead of the tile, behind whose bytes it would wait */
    if (warp < items) copy(warp, 0);
    tl_copy_commit();
    for (int stage = 0; stage < args.stages; stage++)
        clear_end<ACROSS>(args, as + stage * size);
#pragma unroll 1
    for (int product = 0; product < products; product++, B += args.b_size) {
#pragma unroll 1
        for (int e = warp; e < steps * N; e += AHEAD * warps) {
            if (product > 0 || e > warp) load_columns<N>(args, B, e, v);
            TL_UNROLL_FOR (int u = 0; u < AHEAD; u++)
                if (e + u * warps < steps * N) bs[product * b_size + 32 * (e + u * warps) + lane] = (double)v[u];
        }
    }
    __syncthreads();

    /* rows g and g + 8 at k = t, and four k on */
    const int a_at = ACROSS ? ROWS * t + (g ^ t / 2 * 8) : g * args.pitch() + t, a_step = ACROSS ? 4 * ROWS : 4;
    const int below = ACROSS ? t / 2 ? -8 : 8 : 8 * args.pitch();
    int stage = 0;
#pragma unroll 1
    for (int item = warp; item < items; item += warps) {
        if (item + warps < items) copy(item + warps, stage ^ 1);
        tl_copy_commit();
        tl_copy_wait<1>();
        __syncwarp();
        int tile;
        const int product = locate(item, &tile);
        const float *const a = as + stage * size + a_at;
        const double *const b = bs + product * b_size + lane;
        double sum[N][4] = {};
#pragma unroll 4
        for (int s = 0; s < steps; s++) {
            const double upper = (double)a[s * a_step], lower = (double)a[s * a_step + below];
            TL_UNROLL_FOR (int j = 0; j < N; j++)
                tl_chain_mma(sum[j], upper, lower, b[s * b_step + 32 * j]);
        }
        const int row = tile * ROWS + g;
        float *const to = args.C + (first + product) * args.c_size;
        TL_UNROLL_FOR (int h = 0; h < 2; h++) {
            if (row + 8 * h >= args.m) continue;
            float *const own = to + (int64_t)(row + 8 * h) * args.row_stride;
            TL_UNROLL_FOR (int j = 0; j < N; j++) {
                const int col = j * COLUMNS + 2 * t;
                float y[2];
                TL_UNROLL_FOR (int e = 0; e < 2; e++) {
                    double total = sum[j][2 * h + e];
                    if (args.bias && col + e < args.p)
                        total += (double)args.bias[(row + 8 * h) * args.bias_row + (col + e) * args.bias_column];
                    y[e] = (float)total;
                }
                if (args.pairs) {
                    if (col < args.p) *reinterpret_cast<float2 *>(own + col) = make_float2(y[0], y[1]);
                } else {
                    TL_UNROLL_FOR (int e = 0; e < 2; e++)
                        if (col + e < args.p) own[(int64_t)(col + e) * args.column_stride] = y[e];
                }
            }
        }
        __syncwarp(); /* the next copy but one goes where this tile lies */
        stage ^= 1;
    }
    tl_wait_at_end(args.order);
}

/* How blocks share out the work, and what a launch needs. */
struct Plan {
    FewColumnsArgs args;
    bool across;
    int warps;
    int64_t blocks, bytes;

    Plan(tl_context *ctx, const tl_matrix_product &x)
    {
        const bool transposed = x.p > x.m;
        const int64_t m = transposed ? x.p : x.m, p = transposed ? x.m : x.p;
        across = transposed ? !x.tb : x.ta;
        args = {};
        args.A = transposed ? x.B : x.A, args.B = transposed ? x.A : x.B, args.C = x.C;
        args.a_size = m * x.n, args.b_size = x.n * p, args.c_size = m * p, args.batch = x.batch;
        args.m = (int)m, args.n = (int)x.n, args.p = (int)p;
        args.row_stride = transposed ? 1 : (int)p, args.column_stride = transposed ? (int)m : 1;
        args.bias = x.bias, args.bias_row = transposed, args.bias_column = !transposed;
        args.order = x.order;
        args.along_b = transposed ? !x.ta : x.tb;
        args.pairs = !transposed && p % 2 == 0 && tl_aligned4(x.C);
        const int64_t length = across ? m : x.n;
        args.vector = !tl_aligned4(args.A) ? 1 : length % 4 == 0 ? 4 : length % 2 == 0 ? 2 : 1;
        args.vectors = tl_fastdiv((uint64_t)(x.n / args.vector));

        const int64_t tiles = tl_ceil_div(m, ROWS);
        args.tiles = (int)tiles;
        args.products = tiles <= WARPS_MOST / 2 ? (int)(WARPS_MOST / tiles) : 1;
        /* enough blocks for each multiprocessor to have some that read while others multiply */
        const int64_t blocks_wanted = 8 * (int64_t)tl_cuda_sms(ctx);
        const int64_t most = tl_ceil_div(tiles, WARPS_MOST),
                      splits = std::min(most, tl_ceil_div(blocks_wanted, x.batch));
        share(std::min(tiles, tl_ceil_div(tl_ceil_div(tiles, splits), WARPS_MOST) * WARPS_MOST));
        /* or one tile for each warp: of so many columns that others would add up the same chains */
        if (bytes > SHARED_MOST && args.chunk > WARPS_MOST && p >= COLUMNS_ACROSS) share(WARPS_MOST);
    }

  private:
    /* Gives blocks `chunk` tiles. */
    void share(int64_t chunk)
    {
        args.chunk = (int)chunk;
        args.splits = tl_fastdiv((uint64_t)tl_ceil_div(args.tiles, chunk));
        args.chunk_div = tl_fastdiv((uint64_t)chunk);
        const int64_t items = args.products * chunk;
        warps = (int)std::min<int64_t>(items, WARPS_MOST);
        args.stages = items > warps ? 2 : 1;
        blocks = tl_ceil_div(args.batch, args.products) * args.splits.divisor;
        const int64_t b_bytes = (int64_t)args.products * args.steps() * tl_ceil_div(args.p, COLUMNS) * 32 * 8;
        bytes = b_bytes + (int64_t)warps * args.stages * (across ? tile_size<true>(args) : tile_size<false>(args)) * 4;
    }
};

template <int N> int32_t launch(tl_context *ctx, const Plan &plan)
{
    const auto kernel = plan.across ? few_columns_kernel<N, true> : few_columns_kernel<N, false>;
    TL_TRY(tl_allow_shared(ctx, kernel, (size_t)plan.bytes));
    return tl_launch_ahead(ctx, "few_columns", kernel, (unsigned)plan.blocks, (unsigned)(32 * plan.warps),
                           (size_t)plan.bytes, plan.args);
}

} /* namespace */

/* Terms so many that a block reads much more than it is long in coming and going, and not so many that two blocks do not fit; a
 * tile for each of the four warps of a block of each multiprocessor. Fewer columns than half a product of tensor cores has only of
 * rows along k: others' neighbours lie side by side, and a thread can have one to itself. Where tensor cores have no float64, those
 * alone that linalg/packed.cu does not take. */
bool tl_few_columns_serves(tl_context *ctx, const tl_matrix_product &x)
{
    const int64_t rows = std::max(x.m, x.p), columns = std::min(x.m, x.p);
    const bool along = x.p > x.m ? x.tb : !x.ta;
    if (x.batch >= 1 << 28 || columns < (along ? COLUMNS_ALONG : COLUMNS_ACROSS) || columns > COLUMNS_MOST ||
        rows < ROWS || rows > LONG_MOST || x.n < TERMS_LEAST || x.n > TL_CHAIN_SEGMENT ||
        x.batch * tl_ceil_div(rows, ROWS) < WARPS_MOST * (int64_t)tl_cuda_sms(ctx))
        return false;
    const Plan plan(ctx, x);
    return plan.bytes <= SHARED_MOST && plan.blocks < INT32_MAX &&
           (tl_cuda_chains_are_fast(ctx) || !tl_packed_products_serve(ctx, x, true));
}

int32_t tl_few_columns_multiply(tl_context *ctx, const tl_matrix_product &x)
{
    const Plan plan(ctx, x);
    switch (tl_ceil_div(plan.args.p, COLUMNS)) {
    case 1: return launch<1>(ctx, plan);
    case 2: return launch<2>(ctx, plan);
    case 3: return launch<3>(ctx, plan);
    default: return launch<4>(ctx, plan);
    }
}
