/* A matrix times few vectors on CUDA, or few vectors times a matrix: bound by reading the matrix once.
 *
 * The matrix has `rows` rows of `n` terms each, one for each result of a vector; in memory they lie along k or across. Where they
 * lie along k (along_kernel), 1 to 32 lanes own a row, as few as read it at once, and a warp R rows for each group of so many;
 * where rows are few and long, as many of a block's eight warps share them as have terms; of several vectors and many rows, a block
 * has the vectors in shared memory (staged_kernel). Where they lie across k (across_kernel), a block owns 32 rows, which are 128
 * bytes of each k, in vectors of V, and its sixteen warps share out the terms. If that leaves multiprocessors idle, `splits` blocks
 * share out the terms, and a second kernel adds up.
 *
 * Outside reproducible contexts alone, as the order of a sum is the kernel's own: each lane has a chain of float64 fused
 * multiply-adds over its terms, the lanes of a row add up in pairs, then the warps one after the other, then the blocks; a bias
 * joins in float64, and one rounding ends it. Converting an element takes two clocks of a warp, and reading it eight, so float64
 * costs nothing. */
#include <algorithm>

#include "cuda/linalg/linalg.cuh"

namespace {

constexpr int VECTORS_MOST = 4;
constexpr int ALONG_WARPS = 8, ACROSS_WARPS = 16, ACROSS_ROWS = 32;
constexpr int ADD_THREADS = 256;

struct VectorsArgs {
    const float *matrix, *vectors, *bias;
    float *out;
    double *parts; /* of several splits: a plane of results for each split of a product */
    int64_t matrix_size, vectors_size, out_size, rows, n;
    int64_t term, vector;          /* from one element of `vectors` to that of the next term, of the next vector */
    int64_t out_row, out_vector;   /* the same of results */
    int64_t bias_row, bias_vector; /* and of the bias */
    int64_t slice;                 /* terms of a split */
    tl_fastdiv tiles, splits;      /* of a product */
    int chunk;                     /* of staged_kernel: tiles of a block */
    uint32_t items;                /* along k: tiles of all products and splits */
    int lane_bits, sharing_bits;   /* along k: lanes of a row, and warps of a block that share rows, as powers of 2 */
    tl_order order;
};

/* What a block works on, or a warp. */
struct Place {
    uint32_t tile, split;
    int64_t product, begin, end; /* terms */
    __device__ __forceinline__ Place(const VectorsArgs &args, uint32_t item)
    {
        product = args.splits.divmod(args.tiles.divmod(item, &tile), &split);
        begin = split * args.slice, end = min(begin + args.slice, args.n);
    }
};

__device__ __forceinline__ void put(const VectorsArgs &args, int64_t product, int64_t row, int vector, double sum)
{
    if (args.bias) sum += (double)args.bias[row * args.bias_row + vector * args.bias_vector];
    args.out[product * args.out_size + row * args.out_row + vector * args.out_vector] = (float)sum;
}

/* A result, or a split's part of it. */
template <int F>
__device__ __forceinline__ void store(const VectorsArgs &args, const Place &place, int64_t row, int vector, double sum)
{
    if (args.parts)
        args.parts[((place.product * args.splits.divisor + place.split) * args.rows + row) * F + vector] = sum;
    else
        put(args, place.product, row, vector, sum);
}

/* Ends the block's rows, from `first` on, whose sums of every warp are in shared memory: those of the warps in order. All threads must
 * call; every row and vector has one. */
template <int WARPS, int ROWS, int F>
__device__ __forceinline__ void add_warps(const VectorsArgs &args, const Place &place, int64_t first,
                                          const double (&shared)[WARPS][ROWS][F])
{
    static_assert(ROWS * F <= 32 * WARPS, "a thread for each");
    __syncthreads();
    const int r = (int)threadIdx.x / F, f = (int)threadIdx.x % F;
    const int64_t own = first + r;
    if (r < ROWS && own < args.rows) {
        double total = shared[0][r][f];
        TL_UNROLL_FOR (int w = 1; w < WARPS; w++)
            total += shared[w][r][f];
        store<F>(args, place, own, f, total);
    }
}

/* V neighbouring elements; V = 4: of 16 aligned bytes. */
template <int V> __device__ __forceinline__ void load(const float *from, float (&x)[V])
{
    if constexpr (V == 4)
        tl_load4(from, x);
    else
        x[0] = *from;
}

/* The elements of V neighbouring terms of all vectors. */
template <int F, int V>
__device__ __forceinline__ void load_vectors(const VectorsArgs &args, const float *first, float (&y)[F][V])
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
            load<V>(first + f * args.vector, y[f]);
    }
}

/* ---- rows along k ---------------------------------------------------------------------------------------------------- */

/* Blocks of a multiprocessor, which limit registers. */
template <int F, int V, int R>
constexpr int ALONG_BLOCKS = F == 1 && R == 2   ? (V == 4 ? 3 : 4)
                             : F == 1 || R == 2 ? 2
                                                : 1;

/* F vectors. A lane has U vectors of V elements of R rows on their way. With q lanes of a row (LANES, or where rows have one turn of
 * one vector, args.lane_bits), a warp's rows are those from its first on whose distance divided by 32/q is 0 .. R - 1. A warp has
 * tiles of its own, of whatever product, or all of a block one. */
template <int F, int V, int R, int U, int LANES>
__global__ void __launch_bounds__(32 * ALONG_WARPS, ALONG_BLOCKS<F, V, R>)
    along_kernel(const __grid_constant__ VectorsArgs args)
{
    static_assert(LANES == 0 ? U == 1 : LANES == 8 || LANES == 16 || LANES == 32, "lanes of a row");
    __shared__ double shared[ALONG_WARPS][R][F];
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int lane_bits = LANES == 32 ? 5 : LANES == 16 ? 4 : LANES == 8 ? 3 : args.lane_bits;
    const int lanes = 1 << lane_bits, side = 32 >> lane_bits; /* side: rows that a warp reads side by side */
    const int sharing_bits = LANES == 32 ? args.sharing_bits : 0, sharing = 1 << sharing_bits;
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
                if (u * apart < left) load<V>(from[r] + u * apart, x[r][u]);
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
    if (sharing == 1) {
        if ((lane & (lanes - 1)) == 0 && item < args.items)
            TL_UNROLL_FOR (int r = 0; r < R; r++)
                TL_UNROLL_FOR (int f = 0; f < F; f++)
                    if (row0 + r * side < args.rows) store<F>(args, place, row0 + r * side, f, sum[r][f]);
    } else { /* rows of whole warps: the first of those that share them adds up in order, a lane for each row and vector */
        if (lane == 0)
            TL_UNROLL_FOR (int r = 0; r < R; r++)
                TL_UNROLL_FOR (int f = 0; f < F; f++)
                    shared[warp][r][f] = sum[r][f];
        __syncthreads();
        const int r = lane / F, f = lane % F;
        if (part == 0 && r < R && row0 + r < args.rows && item < args.items) {
            double total = shared[warp][r][f];
            for (int w = 1; w < sharing; w++)
                total += shared[warp + w][r][f];
            store<F>(args, place, row0 + r, f, total);
        }
    }
    tl_wait_at_end(args.order);
}

/* ---- many rows along k, and several vectors ---------------------------------------------------------------------------- */

/* Rows of a warp, and what a lane has of each on its way. */
constexpr int STAGED_ROWS = 4, STAGED_TURN = 256;
template <int V> constexpr int STAGED_AHEAD = STAGED_TURN / (32 * V);
constexpr int STAGED_BYTES = 64 << 10; /* of the vectors, so that two blocks fit */

/* Where the vectors' terms lie that 32 lanes read at once: for each vector side by side, in units of 16 bytes. */
template <int F, int V> struct Staged {
    static constexpr int APART = 32 * V, UNIT = V == 4 ? 2 : 1, UNITS = V / UNIT;
    /* A lane's unit of a vector, `k` a multiple of APART and the lane's V terms on. */
    static __device__ __forceinline__ int at(int k, int f, int unit)
    {
        const uint32_t turn = (uint32_t)k / APART, lane = (uint32_t)k % APART / V;
        return (int)(((turn * F + f) * UNITS + unit) * (32 * UNIT) + lane * UNIT);
    }
};

/* Adds up COUNT values of each lane over the lanes that differ in DISTANCE and lower bits, in pairs, the most distant first, as
 * along_kernel does; but of an even number of values each of a pair goes on with half of them alone, the upper lane with the upper. */
template <int DISTANCE, int COUNT> __device__ __forceinline__ void add_lanes(double *v)
{
    if constexpr (DISTANCE > 0 && COUNT % 2 == 0) {
        constexpr int HALF = COUNT / 2;
        const bool upper = (threadIdx.x & DISTANCE) != 0;
        TL_UNROLL_FOR (int i = 0; i < HALF; i++) {
            const double given = upper ? v[i] : v[HALF + i], kept = upper ? v[HALF + i] : v[i];
            v[i] = kept + __shfl_xor_sync(0xffffffffu, given, DISTANCE);
        }
        add_lanes<DISTANCE / 2, HALF>(v);
    } else if constexpr (DISTANCE > 0) {
        TL_UNROLL_FOR (int i = 0; i < COUNT; i++)
            v[i] += __shfl_xor_sync(0xffffffffu, v[i], DISTANCE);
        add_lanes<DISTANCE / 2, COUNT>(v);
    }
}

/* along_kernel's sums where a product has many rows: a block has `chunk` tiles of STAGED_ROWS rows, one or several for each warp, and
 * its vectors in shared memory, widened, `slice` terms at a time. Read for each pair of rows, four vectors whose elements lie side by
 * side would take eight times as much of the cache's time as the rows, and twice as many conversions. */
template <int F, int V>
__global__ void __launch_bounds__(32 * ALONG_WARPS, 2) staged_kernel(const __grid_constant__ VectorsArgs args)
{
    constexpr int R = STAGED_ROWS, U = STAGED_AHEAD<V>, APART = 32 * V;
    constexpr int STAGING = 4 / V; /* of what a thread stages, on its way at once */
    using S = Staged<F, V>;
    TL_DYNAMIC_SHARED(double, staged);
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, n = (int)args.n, slice = (int)args.slice;
    const Place place(args, blockIdx.x);
    const int begin = (int)place.tile * args.chunk * R, end = min(begin + args.chunk * R, (int)args.rows);
    const float *const vectors = args.vectors + place.product * args.vectors_size;
    tl_wait_for_earlier(args.order);

#pragma unroll 1
    for (int first = begin; first < end; first += ALONG_WARPS * R) {
        const int row = first + warp * R, rows = min(end - row, R); /* none: it comes for the barriers */
        double sum[R * F] = {};
#pragma unroll 1
        for (int k0 = 0; k0 < n; k0 += slice) {
            const int terms = min(n - k0, slice);
            if (first == begin || slice < n) {
                __syncthreads(); /* what was there has been read */
#pragma unroll STAGING
                for (int k = (int)threadIdx.x * V; k < slice; k += 32 * ALONG_WARPS * V) {
                    float y[F][V] = {};
                    if (k < terms) load_vectors(args, vectors + (int64_t)(k0 + k) * args.term, y);
                    TL_UNROLL_FOR (int f = 0; f < F; f++)
                        TL_UNROLL_FOR (int e = 0; e < V; e++)
                            staged[S::at(k, f, e / S::UNIT) + e % S::UNIT] = (double)y[f][e];
                }
                __syncthreads();
            }
            if (rows <= 0) continue;
            const float *const matrix = args.matrix + place.product * args.matrix_size + k0 + lane * V, *from[R];
            TL_UNROLL_FOR (int r = 0; r < R; r++) /* what does not exist is the last, and not stored */
                from[r] = matrix + (int64_t)(row + min(r, rows - 1)) * n;
            const double *of = staged + lane * S::UNIT;
#pragma unroll 1
            for (int left = terms - lane * V; left > 0; left -= STAGED_TURN) {
                float x[R][U][V];
                TL_UNROLL_FOR (int u = 0; u < U; u++)
                    TL_UNROLL_FOR (int r = 0; r < R; r++) {
                        TL_UNROLL_FOR (int e = 0; e < V; e++)
                            x[r][u][e] = 0.0f;
                        if (u * APART < left) load<V>(from[r] + u * APART, x[r][u]);
                    }
                TL_UNROLL_FOR (int u = 0; u < U; u++)
                    TL_UNROLL_FOR (int unit = 0; unit < S::UNITS; unit++) {
                        double y[F][S::UNIT];
                        TL_UNROLL_FOR (int f = 0; f < F; f++) {
                            const double *const own = of + S::at(u * APART, f, unit);
                            if constexpr (S::UNIT == 2) {
                                const double2 pair = *reinterpret_cast<const double2 *>(own);
                                y[f][0] = pair.x, y[f][1] = pair.y;
                            } else {
                                y[f][0] = *own;
                            }
                        }
                        TL_UNROLL_FOR (int e = 0; e < S::UNIT; e++)
                            TL_UNROLL_FOR (int r = 0; r < R; r++) {
                                const double wide = (double)x[r][u][unit * S::UNIT + e];
                                TL_UNROLL_FOR (int f = 0; f < F; f++)
                                    sum[r * F + f] = fma(wide, y[f][e], sum[r * F + f]);
                            }
                    }
                TL_UNROLL_FOR (int r = 0; r < R; r++)
                    from[r] += STAGED_TURN;
                of += S::at(STAGED_TURN, 0, 0);
            }
        }
        /* add_lanes leaves SIDE neighbouring lanes the same COUNT sums, which follow those of the lanes before */
        constexpr int BITS = R * F % 16 == 0 ? 4 : R * F % 8 == 0 ? 3 : 2, COUNT = R * F >> BITS, SIDE = 32 >> BITS;
        static_assert(R * F % 4 == 0 && R * F <= 16, "sums");
        add_lanes<16, R * F>(sum);
        TL_UNROLL_FOR (int i = 0; i < COUNT; i++) {
            const int own = lane / SIDE * COUNT + i;
            if (lane % SIDE == 0 && own / F < rows) put(args, place.product, row + own / F, own % F, sum[i]);
        }
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
    across_kernel(const __grid_constant__ VectorsArgs args)
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
            if (u * STEP < left) load<V>(from, x[u]);
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
    add_warps(args, place, (int64_t)place.tile * ACROSS_ROWS, shared);
    tl_wait_at_end(args.order);
}

/* A thread owns a result, and adds up its splits. */
__global__ void __launch_bounds__(ADD_THREADS)
    add_kernel(const __grid_constant__ VectorsArgs args, tl_fastdiv plane, tl_fastdiv vectors, uint32_t total)
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

/* The matrix is A where there are few columns, else op(B)'s columns are its rows. */
struct Sides {
    int64_t rows, vectors;
    bool matrix_is_a, along;
    explicit Sides(const tl_matrix_product &x)
    {
        matrix_is_a = x.p <= VECTORS_MOST && (x.p <= x.m || x.m > VECTORS_MOST);
        rows = matrix_is_a ? x.m : x.p, vectors = matrix_is_a ? x.p : x.m;
        along = matrix_is_a ? !x.ta : x.tb;
    }
    /* Elements of a load. */
    int wide(const tl_matrix_product &x) const
    {
        const bool fours = (along ? x.n : rows) % 4 == 0 && tl_aligned4(matrix_is_a ? x.A : x.B) &&
                           (!along || tl_aligned4(matrix_is_a ? x.B : x.A));
        return fours ? 4 : 1;
    }
};

/* Three times eight warps to a multiprocessor along k, twice sixteen across, keep the memory busy; with fewer blocks the terms are
 * shared out, as long as each warp has a turn of its loop. */
int64_t blocks_wanted(tl_context *ctx, const Sides &sides) { return (sides.along ? 3 : 2) * (int64_t)tl_cuda_sms(ctx); }

/* How warps share out rows along k in vectors of `wide` elements: eight times as many rows as a warp reads side by side where a
 * vector for each lane has all of a row, else twice as many. Of single elements a lane has eight of a row then, and lanes are so few
 * that they need no more, as lanes without elements, and sums over many lanes, cost more than memory; unless that leaves too few
 * warps. Where rows are too few for warps of their own, as many of a block share them as have a turn of its loop. */
struct Along {
    int lane_bits = 5, rows, sharing_bits = 0;

    Along(const Sides &sides, int64_t batch, int64_t n, int wide, int64_t blocks_wanted)
    {
        constexpr int SINGLES = 8;
        rows = n <= 32 * wide ? 8 : 2;
        const auto blocks = [&] { return batch * tl_ceil_div(sides.rows, ALONG_WARPS * tile()); };
        if (rows == 8 || wide == 1) narrow(n, rows == 8 ? wide : SINGLES);
        if (rows == 8 || blocks() >= blocks_wanted) return;
        lane_bits = 5;
        if (blocks() >= blocks_wanted) return;
        while (1 << sharing_bits < ALONG_WARPS && turn(wide) << sharing_bits < n)
            sharing_bits++;
    }
    /* Terms that a warp of 32 lanes has on their way. */
    static int64_t turn(int wide) { return 32 * (wide == 4 ? 16 : 8); }
    /* Rows of a warp, or of those that share them. */
    int64_t tile() const { return rows * (32 >> lane_bits); }

  private:
    void narrow(int64_t n, int64_t each)
    {
        while (lane_bits > 0 && each << (lane_bits - 1) >= n)
            lane_bits--;
    }
};

using Kernel = void (*)(VectorsArgs);

template <int F> Kernel kernel_for(const Along &along, bool fours)
{
    if (along.rows == 8) return fours ? along_kernel<F, 4, 8, 1, 0> : along_kernel<F, 1, 8, 1, 0>;
    if (fours) return along_kernel<F, 4, 2, 4, 32>;
    return along.lane_bits == 3   ? along_kernel<F, 1, 2, 8, 8>
           : along.lane_bits == 4 ? along_kernel<F, 1, 2, 8, 16>
                                  : along_kernel<F, 1, 2, 8, 32>;
}

/* How blocks share out rows where the vectors are staged: as many to a block as leave each multiprocessor a few in turn, for the last to
 * end at about the same time; where all terms are not there at once, no more than its warps have at once. */
struct Sharing {
    int64_t chunk, slice, blocks; /* blocks: of a product */

    Sharing(tl_context *ctx, const Sides &sides, int64_t batch, int64_t n)
    {
        constexpr int64_t TURNS = 8;
        const int64_t rounds = tl_ceil_div(sides.rows, STAGED_ROWS * ALONG_WARPS);
        const int64_t most = STAGED_BYTES / (int64_t)sizeof(double) / sides.vectors / STAGED_TURN * STAGED_TURN;
        const int64_t slices = tl_ceil_div(n, most), together = batch * rounds / (TURNS * tl_cuda_sms(ctx));
        slice = tl_ceil_div(tl_ceil_div(n, slices), STAGED_TURN) * STAGED_TURN;
        blocks = tl_ceil_div(rounds, slices > 1 ? 1 : std::max<int64_t>(1, together));
        chunk = tl_ceil_div(rounds, blocks) * ALONG_WARPS;
        blocks = tl_ceil_div(rounds * ALONG_WARPS, chunk);
    }
    size_t bytes(const Sides &sides) const { return (size_t)(slice * sides.vectors) * sizeof(double); }
};

/* Several vectors, for which a warp of along_kernel has a row all to itself; rows that fill most of a block's warps, and enough of them
 * to keep all multiprocessors busy for more than one round. The sums are the same. */
bool staging_pays(tl_context *ctx, const Sides &sides, const Along &along, int64_t batch, int64_t splits)
{
    constexpr int64_t ROWS = STAGED_ROWS * ALONG_WARPS;
    return sides.along && sides.vectors > 1 && along.rows == 2 && along.lane_bits == 5 && along.sharing_bits == 0 &&
           splits == 1 && sides.rows >= 2 * ROWS && batch * tl_ceil_div(sides.rows, ROWS) >= 4 * tl_cuda_sms(ctx);
}

template <int F>
int32_t launch_staged(tl_context *ctx, const Sides &sides, const Sharing &sharing, int64_t batch, bool fours,
                      VectorsArgs args)
{
    args.tiles = tl_fastdiv((uint64_t)sharing.blocks), args.splits = tl_fastdiv(1);
    args.chunk = (int)sharing.chunk, args.slice = sharing.slice;
    const auto kernel = fours ? staged_kernel<F, 4> : staged_kernel<F, 1>;
    TL_TRY(tl_allow_shared(ctx, kernel, sharing.bytes(sides)));
    return tl_launch_ahead(ctx, "few_vectors", kernel, (unsigned)(batch * sharing.blocks), 32 * ALONG_WARPS,
                           sharing.bytes(sides), args);
}

template <int F> Kernel kernel_for(const Sides &sides, const Along &along, bool fours)
{
    if (sides.along) return kernel_for<F>(along, fours);
    return fours ? across_kernel<F, 4> : across_kernel<F, 1>;
}

} /* namespace */

/* Sums in float64 must cost nothing; terms across k must give each warp of a block some; an index of a result has 32 bits. */
bool tl_few_vectors_serves(tl_context *ctx, const tl_matrix_product &x)
{
    constexpr int64_t TERMS_LEAST = 4 * ACROSS_WARPS;
    const Sides sides(x);
    return tl_cuda_double_is_fast(ctx) && sides.vectors <= VECTORS_MOST && (sides.along || x.n >= TERMS_LEAST) &&
           x.batch * sides.rows * sides.vectors < INT32_MAX;
}

/* Each product's one vector, and rows along k that leave no more than half of a warp without; shorter ones than a warp is wide cost
 * more instructions here. */
bool tl_few_vectors_pay(tl_context *ctx, const tl_matrix_product &x)
{
    const Sides sides(x);
    return sides.vectors == 1 && sides.along && x.n > 32 && tl_few_vectors_serves(ctx, x) &&
           2 * sides.rows >= Along(sides, x.batch, x.n, sides.wide(x), blocks_wanted(ctx, sides)).tile();
}

int32_t tl_few_vectors_multiply(tl_context *ctx, const tl_matrix_product &x)
{
    const Sides sides(x);
    const bool a = sides.matrix_is_a;
    const bool across_vectors = a ? !x.tb : x.ta; /* terms of a vector do not lie side by side */
    VectorsArgs args = {};
    args.matrix = a ? x.A : x.B, args.vectors = a ? x.B : x.A, args.bias = x.bias, args.out = x.C;
    args.matrix_size = sides.rows * x.n, args.vectors_size = sides.vectors * x.n, args.out_size = x.m * x.p;
    args.rows = sides.rows, args.n = x.n;
    args.term = across_vectors ? sides.vectors : 1, args.vector = across_vectors ? 1 : x.n;
    args.out_row = a ? x.p : 1, args.out_vector = a ? 1 : x.p;
    args.bias_row = a ? 0 : 1, args.bias_vector = a ? 1 : 0;
    const int wide = sides.wide(x);
    const bool fours = wide == 4;
    const int64_t wanted = blocks_wanted(ctx, sides);
    const Along along(sides, x.batch, x.n, wide, wanted);
    const int64_t tiles = tl_ceil_div(sides.rows, sides.along ? along.tile() : ACROSS_ROWS);
    const bool shared_by_all = 1 << along.sharing_bits == ALONG_WARPS;
    const int64_t turn = !sides.along ? 8 * ACROSS_WARPS * wide : shared_by_all ? ALONG_WARPS * along.turn(wide) : x.n;
    const int64_t splits = std::max<int64_t>(1, std::min(wanted / (x.batch * tiles), x.n / turn));
    if (staging_pays(ctx, sides, along, x.batch, splits)) {
        const Sharing sharing(ctx, sides, x.batch, x.n);
        args.order = x.order;
        return sides.vectors == 2   ? launch_staged<2>(ctx, sides, sharing, x.batch, fours, args)
               : sides.vectors == 3 ? launch_staged<3>(ctx, sides, sharing, x.batch, fours, args)
                                    : launch_staged<4>(ctx, sides, sharing, x.batch, fours, args);
    }
    args.slice = tl_ceil_div(tl_ceil_div(x.n, splits), 4) * 4;
    args.tiles = tl_fastdiv((uint64_t)tiles), args.splits = tl_fastdiv((uint64_t)splits);

    const int64_t plane = sides.rows * sides.vectors;
    tl_scratch<double> parts(ctx);
    if (splits > 1) TL_TRY(parts.allocate(x.batch * splits * plane));
    args.parts = parts;
    args.order = x.order == TL_BESIDE && splits > 1 ? TL_AFTER : x.order;
    const auto kernel = sides.vectors == 1   ? kernel_for<1>(sides, along, fours)
                        : sides.vectors == 2 ? kernel_for<2>(sides, along, fours)
                        : sides.vectors == 3 ? kernel_for<3>(sides, along, fours)
                                             : kernel_for<4>(sides, along, fours);
    const int64_t items = x.batch * splits * tiles;
    args.items = (uint32_t)items, args.lane_bits = along.lane_bits, args.sharing_bits = along.sharing_bits;
    TL_TRY(tl_launch_ahead(ctx, "few_vectors", kernel,
                           tl_grid(items, sides.along ? ALONG_WARPS >> along.sharing_bits : 1),
                           32 * (sides.along ? ALONG_WARPS : ACROSS_WARPS), 0, args));
    if (splits == 1) return TORCHLEAN_OK;
    const int64_t total = x.batch * plane;
    return tl_launch_ahead(ctx, "few_vectors", add_kernel, tl_grid(total, ADD_THREADS), ADD_THREADS, 0, args,
                           tl_fastdiv((uint64_t)plane), tl_fastdiv((uint64_t)sides.vectors), (uint32_t)total);
}
