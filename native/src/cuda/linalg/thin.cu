/* Matrix products of few terms on CUDA: bound by writing the result, or where results are few, by a launch and the latency of one load.
 *
 * Each sum is one chain of float64 fused multiply-adds in increasing k, that of formula/chain.h, whose segments are longer; a bias
 * joins in float64, and one rounding ends it. Terms from n on are zeros, and a chain that began with +0 keeps its value.
 *
 * thin_kernel. A lane owns four columns of C, which it keeps of B in registers, and goes down `turns` rows, whose elements of A it
 * reads from shared memory, where most lanes of a warp read the same one. Where rows of C are whole 16 bytes it writes them at once
 * (QUADS); else its columns are as many apart as a row has lanes, so that what they write lies side by side wherever a row starts.
 * A multiprocessor of an H200 has about 120 issue slots while its share of the memory takes the 16 bytes of each lane of a warp, 32
 * clocks: 16 terms of four columns take little more time than writing does. */
#include <algorithm>

#include "cuda/linalg/linalg.cuh"

namespace {

constexpr int THREADS = 128, MAX_LANES = 32, MAX_TURNS = 32;
constexpr int64_t MAX_SHARED = 32 << 10; /* for the rows of A: so that four blocks fit and more */

struct ThinArgs {
    tl_matrix_product x;
    tl_product_strides strides;
    tl_fastdiv row_tiles, column_tiles, lanes; /* lanes of a row in a tile, of four columns each */
    int groups, turns;                         /* rows of a tile side by side, and one after the other */

    __host__ __device__ int rows() const { return groups * turns; }
    __host__ __device__ int columns() const { return 4 * (int)lanes.divisor; }
};

/* Elements from one row of A in shared memory to the next: 16 bytes times an odd number, from eight on, so that four k of eight
 * rows lie in different banks. */
template <int TERMS> constexpr int PITCH = TERMS == 4 ? 4 : TERMS + 2;

/* Calls put(i, k, element) for the vectors i < count of an operand and k < TERMS; `exist` of them have elements, n of each, the rest is
 * 0. A thread owns a k, of every APART-th vector: ALONG k in memory, `stride` elements from one vector to the next, neighbouring
 * threads own neighbouring k; across, eight vectors of four k, which are whole sectors. AHEAD elements are on their way at once; a load
 * behind a branch would wait for the one before, so what does not exist is read from the nearest that does. */
template <int TERMS, bool ALONG, class Put>
__device__ __forceinline__ void stage(const float *from, int64_t stride, int n, int exist, int count, const Put &put)
{
    constexpr int APART = THREADS / TERMS, AHEAD = 8;
    const int thread = (int)threadIdx.x;
    const int k = ALONG ? thread % TERMS : thread / 32 % (TERMS / 4) * 4 + thread % 32 / 8;
    const float *const own = ALONG ? from + min(k, n - 1) : from + min(k, n - 1) * stride;
    int i = ALONG ? thread / TERMS : thread / (8 * TERMS) * 8 + thread % 8;
#pragma unroll 1
    for (; i < count; i += AHEAD * APART) {
        float v[AHEAD];
        TL_UNROLL_FOR (int u = 0; u < AHEAD; u++) {
            const int near = min(i + u * APART, exist - 1);
            const float y = own[ALONG ? near * stride : near];
            v[u] = near == i + u * APART && k < n ? y : 0.0f;
        }
        TL_UNROLL_FOR (int u = 0; u < AHEAD; u++)
            if (i + u * APART < count) put(i + u * APART, k, v[u]);
    }
}

/* Blocks of a multiprocessor, which limit registers: a lane's columns of B take eight for each term. */
template <int TERMS> constexpr int BLOCKS = TERMS == 16 ? 3 : TERMS == 8 ? 4 : 5;

template <int TERMS, bool QUADS>
__global__ void __launch_bounds__(THREADS, BLOCKS<TERMS>) thin_kernel(const __grid_constant__ ThinArgs args)
{
    TL_DYNAMIC_SHARED(double, as);
    constexpr int ROW = PITCH<TERMS>;
    const tl_matrix_product &x = args.x;
    const int n = (int)x.n, lanes = (int)args.lanes.divisor, width = args.columns(), pitch = width + 4;
    float *const bs = reinterpret_cast<float *>(as + args.rows() * ROW);
    uint32_t column_tile, row_tile;
    const int64_t product = args.row_tiles.divmod(args.column_tiles.divmod(blockIdx.x, &column_tile), &row_tile);
    const int64_t row0 = (int64_t)row_tile * args.rows(), col0 = (int64_t)column_tile * width;
    const int rows = (int)min(x.m - row0, (int64_t)args.rows()), columns = (int)min(x.p - col0, (int64_t)width);
    const float *const A = x.A + product * args.strides.a_batch, *const B = x.B + product * args.strides.b_batch;
    tl_wait_for_earlier(x.order);

    const auto put_a = [&](int i, int k, float v) { as[i * ROW + k] = (double)v; };
    const auto put_b = [&](int j, int k, float v) { bs[k * pitch + j] = v; };
    if (x.ta)
        stage<TERMS, false>(A + row0, args.strides.lda, n, rows, rows, put_a);
    else
        stage<TERMS, true>(A + row0 * args.strides.lda, args.strides.lda, n, rows, rows, put_a);
    if (x.tb)
        stage<TERMS, true>(B + col0 * args.strides.ldb, args.strides.ldb, n, columns, width, put_b);
    else
        stage<TERMS, false>(B + col0, args.strides.ldb, n, columns, width, put_b);
    __syncthreads();

    uint32_t lane;
    const int group = (int)args.lanes.divmod(threadIdx.x, &lane);
    const int first = QUADS ? 4 * (int)lane : (int)lane, apart = QUADS ? 1 : lanes; /* of the lane's columns */
    if (group < args.groups && first < columns) {
        double b[TERMS][4], bias[4]; /* -0 is the bias that changes nothing */
        TL_UNROLL_FOR (int e = 0; e < 4; e++)
            bias[e] = x.bias && first + e * apart < columns ? (double)x.bias[col0 + first + e * apart] : -0.0;
        TL_UNROLL_FOR (int k = 0; k < TERMS; k++) {
            float v[4];
            if constexpr (QUADS)
                tl_load4(bs + k * pitch + first, v);
            else
                TL_UNROLL_FOR (int e = 0; e < 4; e++)
                    v[e] = bs[k * pitch + first + e * apart];
            TL_UNROLL_FOR (int e = 0; e < 4; e++)
                b[k][e] = (double)v[e];
        }
        float *to = x.C + (product * x.m + row0 + group) * x.p + col0 + first;
        const double *a = as + group * ROW;
#pragma unroll(TERMS < 8 ? 2 : 1)
        for (int row = group; row < rows; row += args.groups, a += args.groups * ROW, to += args.groups * x.p) {
            double sum[4] = {};
            TL_UNROLL_FOR (int k = 0; k < TERMS; k += 2) {
                const double2 v = *reinterpret_cast<const double2 *>(a + k);
                TL_UNROLL_FOR (int e = 0; e < 4; e++)
                    sum[e] = fma(v.y, b[k + 1][e], fma(v.x, b[k][e], sum[e]));
            }
            float y[4];
            TL_UNROLL_FOR (int e = 0; e < 4; e++)
                y[e] = (float)(sum[e] + bias[e]);
            if constexpr (QUADS)
                tl_store4(to, y);
            else
                TL_UNROLL_FOR (int e = 0; e < 4; e++)
                    if (first + e * apart < columns) to[e * apart] = y[e];
        }
    }
    tl_wait_at_end(x.order);
}

template <int TERMS> int32_t launch(tl_context *ctx, const tl_matrix_product &x)
{
    const bool quads = x.p % 4 == 0 && tl_aligned4(x.C);
    const int64_t all = tl_ceil_div(x.p, 4), column_tiles = tl_ceil_div(all, MAX_LANES);
    const int64_t lanes = tl_ceil_div(all, column_tiles), groups = std::min(THREADS / lanes, x.m);
    /* Turns: a dozen blocks for each multiprocessor, of which some read while others write; then fewer that read each less often,
     * as long as the rows of A have room; and the same for all blocks. */
    constexpr int64_t ROW = PITCH<TERMS> * sizeof(double);
    const int64_t blocks = tl_ceil_div(x.batch * x.m * all, 12 * (int64_t)tl_cuda_sms(ctx) * THREADS);
    const int64_t max_turns = std::min<int64_t>({blocks, MAX_SHARED / ROW / groups, MAX_TURNS});
    const int64_t row_tiles = tl_ceil_div(x.m, groups * max_turns), turns = tl_ceil_div(x.m, groups * row_tiles);
    const ThinArgs args = {x,
                           x.layout(),
                           tl_fastdiv((uint64_t)row_tiles),
                           tl_fastdiv((uint64_t)column_tiles),
                           tl_fastdiv((uint64_t)lanes),
                           (int)groups,
                           (int)turns};
    const size_t shared = (size_t)(args.rows() * ROW + TERMS * (args.columns() + 4) * (int64_t)sizeof(float));
    const auto kernel = quads ? thin_kernel<TERMS, true> : thin_kernel<TERMS, false>;
    TL_TRY(tl_allow_shared(ctx, kernel, shared));
    return tl_launch_ahead(ctx, "thin_product", kernel, (unsigned)(x.batch * row_tiles * column_tiles), THREADS, shared,
                           args);
}

/* ---- few results ------------------------------------------------------------------------------------------------------ */

constexpr int DIRECT_THREADS = 64;

struct DirectArgs {
    const float *A, *B, *bias;
    float *C;
    int64_t a_batch, b_batch;
    uint32_t a_row, a_column, b_row, b_column;
    tl_fastdiv rows, columns;
    uint32_t total, terms;
    tl_order order;
};

/* A thread owns one result, and neighbouring threads neighbouring columns. It reads its row of A and its column of B where they lie and
 * waits once, for all of them. */
template <int TERMS>
__global__ void __launch_bounds__(DIRECT_THREADS, TL_DIRECT_MAX_RESULTS / DIRECT_THREADS)
    direct_kernel(const __grid_constant__ DirectArgs args)
{
    const uint32_t cell = blockIdx.x * DIRECT_THREADS + threadIdx.x;
    tl_wait_for_earlier(args.order);
    if (cell < args.total) {
        uint32_t row, column;
        const int64_t product = args.rows.divmod(args.columns.divmod(cell, &column), &row);
        const float *const a = args.A + product * args.a_batch + (uint64_t)row * args.a_row;
        const float *const b = args.B + product * args.b_batch + (uint64_t)column * args.b_column;
        float x[TERMS], y[TERMS];
        /* without branches, behind which a load would wait for the one before */
        TL_UNROLL_FOR (int k = 0; k < TERMS; k++) {
            const uint32_t near = min((uint32_t)k, args.terms - 1);
            x[k] = a[(uint64_t)near * args.a_column], y[k] = b[(uint64_t)near * args.b_row];
        }
        const double bias = args.bias ? (double)args.bias[column] : 0.0;
        double sum = 0.0;
        TL_UNROLL_FOR (int k = 0; k < TERMS; k++)
            sum = k < args.terms ? fma((double)x[k], (double)y[k], sum) : sum;
        args.C[cell] = (float)(args.bias ? sum + bias : sum);
    }
    tl_wait_at_end(args.order);
}

} /* namespace */

int32_t tl_thin_multiply(tl_context *ctx, const tl_matrix_product &x)
{
    static_assert(TL_THIN_MAX_TERMS == 16, "select.h");
    return x.n <= 4 ? launch<4>(ctx, x) : x.n <= 8 ? launch<8>(ctx, x) : launch<TL_THIN_MAX_TERMS>(ctx, x);
}

int32_t tl_direct_multiply(tl_context *ctx, const tl_matrix_product &x)
{
    const tl_product_strides s = x.layout();
    const int64_t total = x.batch * x.m * x.p;
    DirectArgs args = {x.A, x.B, x.bias, x.C};
    args.a_batch = s.a_batch, args.b_batch = s.b_batch;
    args.a_row = x.ta ? 1 : (uint32_t)s.lda, args.a_column = x.ta ? (uint32_t)s.lda : 1;
    args.b_row = x.tb ? 1 : (uint32_t)s.ldb, args.b_column = x.tb ? (uint32_t)s.ldb : 1;
    args.rows = tl_fastdiv((uint64_t)x.m), args.columns = tl_fastdiv((uint64_t)x.p);
    args.total = (uint32_t)total, args.terms = (uint32_t)x.n;
    args.order = x.order;
    const auto kernel = x.n <= 4 ? direct_kernel<4> : direct_kernel<TL_THIN_MAX_TERMS>;
    return tl_launch_ahead(ctx, "direct_product", kernel, tl_grid(total, DIRECT_THREADS), DIRECT_THREADS, 0, args);
}
