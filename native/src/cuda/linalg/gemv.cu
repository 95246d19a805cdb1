/* A matrix times at most four vectors on CUDA, or such vectors times a matrix: bound by reading the matrix once.
 *
 * The matrix has `rows` rows of `n` terms each, one for each result of a vector; in memory they lie along k or across. Where they
 * lie along k (along_kernel), 1 to 32 lanes own a row, as few as read it at once, and a warp R rows for each group of so many;
 * where rows are few and long, as many of a block's eight warps share them as have terms. Where they lie across k (across_kernel), a
 * block owns 32 rows, which are 128 bytes of each k, in vectors of V, and its sixteen warps share out the terms. If that leaves
 * multiprocessors idle, `splits` blocks share out the terms, and a second kernel adds up.
 *
 * Outside reproducible contexts alone, as the order of a sum is the kernel's own: each lane has a chain of float64 fused
 * multiply-adds over its terms, the lanes of a row add up in pairs, then the warps one after the other, then the blocks; a bias
 * joins in float64, and one rounding ends it. Converting an element takes two clocks of a warp, and reading it eight, so float64
 * costs nothing. */
#include <algorithm>

#include "cuda/linalg/linalg.cuh"

namespace {

constexpr int ALONG_WARPS = 8, ACROSS_WARPS = 16, ACROSS_ROWS = 32, ADD_THREADS = 256;

struct GemvArgs {
    const float *matrix, *vectors, *bias;
    float *out;
    double *parts; /* of several splits: a plane of results for each split of a product */
    int64_t matrix_size, vectors_size, out_size, rows, n;
    int64_t term, vector;          /* from one element of `vectors` to that of the next term, of the next vector */
    int64_t out_row, out_vector;   /* the same of results */
    int64_t bias_row, bias_vector; /* and of the bias */
    int64_t slice;                 /* terms of a split */
    tl_fastdiv tiles, splits;      /* of a product */
    uint32_t items;                /* along k: tiles of all products and splits */
    int lane_bits, sharing_bits;   /* along k: lanes of a row, and warps of a block that share rows, as powers of 2 */
    tl_order order;
};

/* What a block works on, or a warp. */
struct Place {
    uint32_t tile, split;
    int64_t product, begin, end; /* terms */
    __device__ __forceinline__ Place(const GemvArgs &args, uint32_t item)
    {
        product = args.splits.divmod(args.tiles.divmod(item, &tile), &split);
        begin = split * args.slice, end = min(begin + args.slice, args.n);
    }
};

__device__ __forceinline__ void put(const GemvArgs &args, int64_t product, int64_t row, int vector, double sum)
{
    if (args.bias) sum += (double)args.bias[row * args.bias_row + vector * args.bias_vector];
    args.out[product * args.out_size + row * args.out_row + vector * args.out_vector] = (float)sum;
}

/* A result, or a split's part of it. */
template <int F>
__device__ __forceinline__ void store(const GemvArgs &args, const Place &place, int64_t row, int vector, double sum)
{
    if (args.parts)
        args.parts[((place.product * args.splits.divisor + place.split) * args.rows + row) * F + vector] = sum;
    else
        put(args, place.product, row, vector, sum);
}

/* Stores the sums of rows that `count` warps from the w-th on have each a part of, in the order of the warps; `own` of them is the
 * thread's. */
template <int ROWS, int F>
__device__ __forceinline__ void add_warps(const GemvArgs &args, const Place &place, int64_t first, int own,
                                          double (*shared)[ROWS][F], int count)
{
    const int r = own / F, f = own % F;
    if (r >= ROWS || first + r >= args.rows) return;
    double total = shared[0][r][f];
    for (int w = 1; w < count; w++)
        total += shared[w][r][f];
    store<F>(args, place, first + r, f, total);
}

/* The elements of V neighbouring terms of all vectors. */
template <int F, int V>
__device__ __forceinline__ void load_vectors(const GemvArgs &args, const float *first, float (&y)[F][V])
{
    if (F > 1 && V == 4 && args.vector == 1) {
        float both[F * V];
        TL_UNROLL_FOR (int f = 0; f < F; f++)
            tl_load4(first + 4 * f, both + 4 * f);
        TL_UNROLL_FOR (int f = 0; f < F; f++)
            TL_UNROLL_FOR (int e = 0; e < V; e++)
                y[f][e] = both[e * F + f];
    } else {
        TL_UNROLL_FOR (int f = 0; f < F; f++)
            tl_load(first + f * args.vector, y[f]);
    }
}

/* ---- rows along k ---------------------------------------------------------------------------------------------------- */

/* Blocks of a multiprocessor, which limit registers. */
template <int F, int V, int R>
constexpr int ALONG_BLOCKS = F == 1 && R == 2   ? (V == 4 ? 3 : 4)
                             : F == 1 || R == 2 ? 2
                                                : 1;

/* Vectors of each row that a lane has on their way: of rows of one turn one. */
template <int V, int R> constexpr int ALONG_AHEAD = R == 8 ? 1 : V == 4 ? 4 : 8;

/* F vectors. A lane has ALONG_AHEAD vectors of V elements of R rows on their way. With q lanes of a row (32, or where rows have one
 * turn of one vector, R = 8, as args.lane_bits say), a warp's rows are those from its first on whose distance divided by 32/q is
 * 0 .. R - 1. A warp has tiles of its own, of whatever product, or several of a block share one. */
template <int F, int V, int R>
__global__ void __launch_bounds__(32 * ALONG_WARPS, ALONG_BLOCKS<F, V, R>)
    along_kernel(const __grid_constant__ GemvArgs args)
{
    constexpr int U = ALONG_AHEAD<V, R>;
    __shared__ double shared[ALONG_WARPS][R][F];
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int lane_bits = R == 8 ? args.lane_bits : 5, lanes = 1 << lane_bits;
    const int side = 32 >> lane_bits; /* rows that a warp reads side by side */
    const int sharing_bits = R == 8 ? 0 : args.sharing_bits, sharing = 1 << sharing_bits;
    const int part = warp & (sharing - 1); /* of the warps that share rows */
    const uint32_t item = (blockIdx.x * ALONG_WARPS + warp) >> sharing_bits;
    Place place(args, min(item, args.items - 1));
    const int64_t row0 = (int64_t)place.tile * (R * side) + (lane >> lane_bits);
    const int apart = lanes * V, turn = U * apart;
    int64_t k = place.begin + part * turn + (lane & (lanes - 1)) * V;
    const float *from[R];
    TL_UNROLL_FOR (int r = 0; r < R; r++) /* what does not exist is the last, and not stored */
        from[r] = args.matrix + place.product * args.matrix_size + min(row0 + r * side, args.rows - 1) * args.n + k;
    const int64_t term = F == 1 ? 1 : args.term;
    const float *vectors = args.vectors + place.product * args.vectors_size + k * term;
    tl_wait_for_earlier(args.order);

    double sum[R][F] = {};
#pragma unroll 1
    while (k < place.end) {
        const int left = (int)min(place.end - k, (int64_t)turn);
        float x[R][U][V];
        TL_UNROLL_FOR (int u = 0; u < U; u++)
            TL_UNROLL_FOR (int r = 0; r < R; r++) {
                TL_UNROLL_FOR (int e = 0; e < V; e++)
                    x[r][u][e] = 0.0f;
                if (u * apart < left) tl_load(from[r] + u * apart, x[r][u]);
            }
        TL_UNROLL_FOR (int u = 0; u < U; u++) {
            float y[F][V] = {};
            if (u * apart < left) load_vectors(args, vectors + u * apart * term, y);
            TL_UNROLL_FOR (int e = 0; e < V; e++)
                TL_UNROLL_FOR (int r = 0; r < R; r++)
                    TL_UNROLL_FOR (int f = 0; f < F; f++)
                        sum[r][f] = fma((double)x[r][u][e], (double)y[f][e], sum[r][f]);
        }
        const int64_t step = (int64_t)sharing * turn;
        TL_UNROLL_FOR (int r = 0; r < R; r++)
            from[r] += step;
        vectors += step * term, k += step;
    }
    for (int distance = lanes / 2; distance > 0; distance /= 2)
        TL_UNROLL_FOR (int r = 0; r < R; r++)
            TL_UNROLL_FOR (int f = 0; f < F; f++)
                sum[r][f] += __shfl_xor_sync(0xffffffffu, sum[r][f], distance);
    const bool first_lane = (lane & (lanes - 1)) == 0;
    if (sharing == 1) {
        if (first_lane && item < args.items)
            TL_UNROLL_FOR (int r = 0; r < R; r++)
                TL_UNROLL_FOR (int f = 0; f < F; f++)
                    if (row0 + r * side < args.rows) store<F>(args, place, row0 + r * side, f, sum[r][f]);
    } else { /* rows of whole warps: the first of those that share them adds up */
        if (first_lane)
            TL_UNROLL_FOR (int r = 0; r < R; r++)
                TL_UNROLL_FOR (int f = 0; f < F; f++)
                    shared[warp][r][f] = sum[r][f];
        __syncthreads();
        if (part == 0 && item < args.items) add_warps<R, F>(args, place, row0, lane, shared + warp, sharing);
    }
    tl_wait_at_end(args.order);
}

/* ---- rows across k ---------------------------------------------------------------------------------------------------- */

/* Steps whose elements of the matrix a lane has on their way, and of how many of them it then has the vectors' elements at once, which
 * are in the cache. Blocks of a multiprocessor, which limit registers. */
template <int F, int V> constexpr int ACROSS_AHEAD = V == 1 ? (F == 1 ? 8 : 10) : F == 1 ? 8 : 4;
template <int F, int V> constexpr int ACROSS_VECTORS = V == 1 ? (F == 1 ? 8 : 2) : ACROSS_AHEAD<F, V>;
template <int F, int V> constexpr int ACROSS_BLOCKS = V == 1 || F <= 2 ? 2 : 1;

/* A lane owns V neighbouring rows, at one of the terms that its warp reads side by side, with those of ACROSS_AHEAD steps on
 * their way. */
template <int F, int V>
__global__ void __launch_bounds__(32 * ACROSS_WARPS, ACROSS_BLOCKS<F, V>)
    across_kernel(const __grid_constant__ GemvArgs args)
{
    constexpr int U = ACROSS_AHEAD<F, V>, W = ACROSS_VECTORS<F, V>, LANES = ACROSS_ROWS / V, SIDE = 32 / LANES,
                  STEP = ACROSS_WARPS * SIDE;
    __shared__ double shared[ACROSS_WARPS][ACROSS_ROWS][F];
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    Place place(args, blockIdx.x);
    const int64_t row = (int64_t)place.tile * ACROSS_ROWS + lane % LANES * V; /* with V = 4, rows are whole fours */
    const bool exists = row < args.rows;
    const float *const matrix = args.matrix + place.product * args.matrix_size + (exists ? row : 0);
    const float *const vectors = args.vectors + place.product * args.vectors_size;
    tl_wait_for_earlier(args.order);

    double sum[V][F] = {};
#pragma unroll 1
    for (int64_t k = place.begin + warp * SIDE + lane / LANES; k < place.end; k += U * STEP) {
        const int left = (int)min(place.end - k, (int64_t)U * STEP);
        const float *from = matrix + k * args.rows;
        float x[U][V];
        TL_UNROLL_FOR (int u = 0; u < U; u++, from += STEP * args.rows) {
            TL_UNROLL_FOR (int e = 0; e < V; e++)
                x[u][e] = 0.0f;
            if (u * STEP < left) tl_load(from, x[u]);
        }
        const float *of = vectors + k * args.term;
        TL_UNROLL_FOR (int u0 = 0; u0 < U; u0 += W) {
            float y[W][F];
            TL_UNROLL_FOR (int w = 0; w < W; w++, of += STEP * args.term)
                TL_UNROLL_FOR (int f = 0; f < F; f++)
                    y[w][f] = (u0 + w) * STEP < left ? of[f * args.vector] : 0.0f;
            TL_UNROLL_FOR (int w = 0; w < W; w++)
                TL_UNROLL_FOR (int e = 0; e < V; e++)
                    TL_UNROLL_FOR (int f = 0; f < F; f++)
                        sum[e][f] = fma((double)x[u0 + w][e], (double)y[w][f], sum[e][f]);
        }
    }
    TL_UNROLL_FOR (int distance = LANES; distance < 32; distance *= 2)
        TL_UNROLL_FOR (int e = 0; e < V; e++)
            TL_UNROLL_FOR (int f = 0; f < F; f++)
                sum[e][f] += __shfl_xor_sync(0xffffffffu, sum[e][f], distance);
    if (lane < LANES)
        TL_UNROLL_FOR (int e = 0; e < V; e++)
            TL_UNROLL_FOR (int f = 0; f < F; f++)
                shared[warp][lane * V + e][f] = sum[e][f];
    static_assert(ACROSS_ROWS * F <= 32 * ACROSS_WARPS, "a thread for each");
    __syncthreads();
    add_warps<ACROSS_ROWS, F>(args, place, (int64_t)place.tile * ACROSS_ROWS, (int)threadIdx.x, shared, ACROSS_WARPS);
    tl_wait_at_end(args.order);
}

/* A thread owns a result, and adds up its splits. */
__global__ void __launch_bounds__(ADD_THREADS)
    add_kernel(const __grid_constant__ GemvArgs args, tl_fastdiv plane, tl_fastdiv vectors, uint32_t total)
{
    tl_wait_for_earlier();
    const uint32_t item = blockIdx.x * ADD_THREADS + threadIdx.x;
    if (item >= total) return;
    uint32_t at, f;
    const uint32_t product = plane.divmod(item, &at), row = vectors.divmod(at, &f), splits = args.splits.divisor;
    const double *const from = args.parts + (int64_t)product * splits * plane.divisor + at;
    double sum = *from;
#pragma unroll 8
    for (uint32_t s = 1; s < splits; s++)
        sum += from[(int64_t)s * plane.divisor];
    put(args, product, row, (int)f, sum);
}

/* ---- launches ---------------------------------------------------------------------------------------------------------- */

/* How rows along k are shared out in vectors of V: 8 rows to a warp for each row that it reads side by side where a vector for each
 * lane has all of a row, else 2; and 1 << lane_bits lanes to a row. Where these leave too few warps to keep the memory busy, as many of
 * a block share rows as have a turn of its loop. */
struct Along {
    int rows, lane_bits = 5, sharing_bits = 0;
    int64_t turn; /* terms that a warp of 32 lanes has on their way */

    Along(int64_t all_rows, int64_t n, int v, int64_t batch, int64_t min_blocks)
    {
        rows = n <= 32 * v ? 8 : 2, turn = 32 * (v == 4 ? 16 : 8);
        while (rows == 8 && lane_bits > 0 && v << (lane_bits - 1) >= n)
            lane_bits--;
        if (rows == 8 || batch * tl_ceil_div(all_rows, ALONG_WARPS * rows) >= min_blocks) return;
        while (1 << sharing_bits < ALONG_WARPS && turn << sharing_bits < n)
            sharing_bits++;
    }
    /* Rows of a warp, or of those that share them. */
    int64_t tile() const { return rows * (32 >> lane_bits); }
};

using Kernel = void (*)(GemvArgs);

template <int F> Kernel kernel_for(bool along, int rows, int v)
{
    if (!along) return v == 4 ? across_kernel<F, 4> : across_kernel<F, 1>;
    if (rows == 8) return v == 4 ? along_kernel<F, 4, 8> : along_kernel<F, 1, 8>;
    return v == 4 ? along_kernel<F, 4, 2> : along_kernel<F, 1, 2>;
}

} /* namespace */

int32_t tl_gemv_multiply(tl_context *ctx, const tl_matrix_product &x)
{
    const bool a = tl_gemv_matrix_is_a(x.shape()), is_along = a ? !x.ta : x.tb;
    const bool across_vectors = a ? !x.tb : x.ta; /* terms of a vector do not lie side by side */
    const int64_t rows = a ? x.m : x.p, vectors = a ? x.p : x.m;
    GemvArgs args = {};
    args.matrix = a ? x.A : x.B, args.vectors = a ? x.B : x.A, args.bias = x.bias, args.out = x.C;
    args.matrix_size = rows * x.n, args.vectors_size = vectors * x.n, args.out_size = x.m * x.p;
    args.rows = rows, args.n = x.n;
    args.term = across_vectors ? vectors : 1, args.vector = across_vectors ? 1 : x.n;
    args.out_row = a ? x.p : 1, args.out_vector = a ? 1 : x.p;
    args.bias_row = a ? 0 : 1, args.bias_vector = a ? 1 : 0;
    const bool fours = (is_along ? x.n : rows) % 4 == 0 && tl_aligned4(args.matrix) &&
                       (!is_along || tl_aligned4(args.vectors));
    const int v = fours ? 4 : 1;

    /* Three times eight warps to a multiprocessor along k, twice sixteen across, keep the memory busy; with fewer blocks the terms are
     * shared out, as long as each warp has a turn of its loop. */
    const int64_t min_blocks = (is_along ? 3 : 2) * (int64_t)tl_cuda_sms(ctx);
    const Along along(rows, x.n, v, x.batch, min_blocks);
    const int64_t tiles = tl_ceil_div(rows, is_along ? along.tile() : ACROSS_ROWS);
    const bool shared_by_all = 1 << along.sharing_bits == ALONG_WARPS;
    const int64_t turn = !is_along ? 8 * ACROSS_WARPS * v : shared_by_all ? ALONG_WARPS * along.turn : x.n;
    const int64_t splits = std::max<int64_t>(1, std::min(min_blocks / (x.batch * tiles), x.n / turn));
    args.slice = tl_ceil_div(tl_ceil_div(x.n, splits), 4) * 4;
    args.tiles = tl_fastdiv((uint64_t)tiles), args.splits = tl_fastdiv((uint64_t)splits);

    const int64_t plane = rows * vectors, items = x.batch * splits * tiles, total = x.batch * plane;
    tl_scratch<double> parts(ctx);
    if (splits > 1) TL_TRY(parts.allocate(splits * total));
    args.parts = parts;
    args.order = x.order == TL_BESIDE && splits > 1 ? TL_AFTER : x.order;
    args.items = (uint32_t)items, args.lane_bits = along.lane_bits, args.sharing_bits = along.sharing_bits;
    const auto kernel = vectors == 1   ? kernel_for<1>(is_along, along.rows, v)
                        : vectors == 2 ? kernel_for<2>(is_along, along.rows, v)
                        : vectors == 3 ? kernel_for<3>(is_along, along.rows, v)
                                       : kernel_for<4>(is_along, along.rows, v);
    const unsigned grid = tl_grid(items, is_along ? ALONG_WARPS >> along.sharing_bits : 1);
    TL_TRY(tl_launch_ahead(ctx, "gemv", kernel, grid, 32 * (is_along ? ALONG_WARPS : ACROSS_WARPS), 0, args));
    if (splits == 1) return TORCHLEAN_OK;
    return tl_launch_ahead(ctx, "gemv", add_kernel, tl_grid(total, ADD_THREADS), ADD_THREADS, 0, args,
                           tl_fastdiv((uint64_t)plane), tl_fastdiv((uint64_t)vectors), (uint32_t)total);
}
