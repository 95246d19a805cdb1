/* Batches of small matrix products on CUDA: bound by memory where each matrix is read once.
 *
 * The matrices of neighbouring products lie side by side, whatever their rows are: a block owns as many products as give its
 * threads work, reads all their elements as one row of memory for each operand, and writes all their results as another. In
 * shared memory every row of A and every column of B lies along k, whichever way it lay in memory; they begin an odd number of
 * elements apart, so that neighbouring rows lie in different banks, both when elements of one k are written and when they are
 * read. A thread owns R x C results of one product, rows and columns as far apart as others take between: neighbouring threads
 * own neighbouring columns.
 *
 * In terms of one clock of a multiprocessor of an H200: its share of the memory is 16 bytes, so a product takes (mn + np + mp) /
 * 4, and its reads of shared memory, 32 elements at a time, m·n·p·(R + C) / (32·R·C), which is m·n·p / 64 with tiles of 4 x 4;
 * twice that in float64. As long as the second is not much more than the first nothing else counts.
 *
 * Each sum is one chain of fused multiply-adds in increasing k: in float32 that is the order of the CPU path; in float64, rounded
 * once, it is that of formula/chain.h, whose segments are longer than any sum here. */
#include <algorithm>

#include "cuda/linalg/linalg.cuh"

namespace {

constexpr int THREADS = 256;
constexpr int AHEAD = 8;                     /* elements of each operand that a thread has on their way at once */
constexpr int64_t SHARED_MOST = 56 << 10;    /* for one product: so that four blocks fit */
constexpr int64_t SHARED_SEVERAL = 36 << 10; /* for several: six */
constexpr int64_t TERMS_MOST = 256;          /* the CPU path cuts longer sums */
constexpr int64_t RESULTS_MOST = 64 * 64;
constexpr int64_t FEW_RESULTS = 4 * 128; /* below, linalg/few_terms.cu would leave threads of a block without a quad */

/* How a thread walks through an operand's elements, V neighbours each time and THREADS times V on to the next, and where they go:
 * element `at`, the neighbours `apart`. Rows in memory are `length` times V long; across k, every `terms` of them are a
 * product's. */
struct Walk {
    tl_fastdiv length, terms;
    int apart, unit, row, product; /* on for `at`: the next element, V of them, row in memory, product */
    int step, step_row, step_at;   /* THREADS times V on: in the row, of rows in the product, for `at` */
    int next_row, next_product;    /* for `at` too, where that left the row, or the product */
};

/* A's rows, or op(B)'s columns: `width` of each product, of `terms` along k, that begin `pitch` apart in shared memory. */
template <int V> Walk walk(bool along, int64_t width, int64_t terms, int64_t pitch)
{
    const int64_t length = (along ? terms : width) / V, rows = THREADS / length;
    const int64_t products = along ? 0 : rows / terms, step = THREADS % length, step_row = rows - products * terms;
    const int64_t apart = along ? 1 : pitch, row = along ? pitch : 1, product = along ? 0 : width * pitch;
    return {tl_fastdiv((uint64_t)length),
            tl_fastdiv((uint64_t)(along ? INT32_MAX : terms)), /* along k, products follow each other as rows do */
            (int)apart,
            (int)(V * apart),
            (int)row,
            (int)product,
            (int)step,
            (int)step_row,
            (int)(step * V * apart + step_row * row + products * product),
            (int)(row - length * V * apart),
            (int)(along ? 0 : product - terms * row)};
}

struct PackedArgs {
    tl_matrix_product x;
    Walk a, b;
    tl_fastdiv row_groups, column_groups; /* threads of a product */
    uint32_t products;                    /* of a block */
    int pitch;                            /* from one row in shared memory to the next */
};

/* A thread on its way. */
template <class Sum> struct Walker {
    int column, row;
    Sum *at;
    __device__ __forceinline__ Walker(Sum *first, const Walk &w)
    {
        uint32_t c, r;
        const uint32_t product = w.terms.divmod(w.length.divmod(threadIdx.x, &c), &r);
        column = (int)c, row = (int)r, at = first + (int)product * w.product + row * w.row + column * w.unit;
    }
    __device__ __forceinline__ void next(const Walk &w)
    {
        const int length = (int)w.length.divisor, terms = (int)w.terms.divisor;
        column += w.step, row += w.step_row, at += w.step_at;
        if (column >= length) column -= length, row++, at += w.next_row;
        if (row >= terms) row -= terms, at += w.next_product;
    }
};

/* A thread's next AHEAD elements of `count` from `from` on; and then to shared memory. Past the end they are the last ones, as a load
 * behind a branch of its own would wait for the one before; of loads narrower than 16 bytes, which are many, half are left out at a time
 * where none is left. */
template <int V> __device__ __forceinline__ void load(const float *from, int first, int count, float (&v)[AHEAD])
{
    constexpr int LOADS = AHEAD / V, TOGETHER = V == 4 ? LOADS : LOADS / 2;
    TL_UNROLL_FOR (int u0 = 0; u0 < LOADS; u0 += TOGETHER) {
        if (V < 4 && first + u0 * THREADS * V >= count) break;
        TL_UNROLL_FOR (int u = u0; u < u0 + TOGETHER; u++) {
            const float *const at = from + min(first + u * THREADS * V, count - V);
            if constexpr (V == 4) {
                tl_load4(at, v + 4 * u);
            } else if constexpr (V == 2) {
                const float2 pair = *reinterpret_cast<const float2 *>(at);
                v[2 * u] = pair.x, v[2 * u + 1] = pair.y;
            } else {
                v[u] = *at;
            }
        }
    }
}
template <int V, class Sum>
__device__ __forceinline__ void place(const Walk &walk, Walker<Sum> &walker, int first, int count,
                                      const float (&v)[AHEAD])
{
    TL_UNROLL_FOR (int u = 0; u < AHEAD / V; u++) {
        if (V < 4 && first + u * THREADS * V >= count) break;
        if (first + u * THREADS * V < count)
            TL_UNROLL_FOR (int e = 0; e < V; e++)
                walker.at[e * walk.apart] = (Sum)v[u * V + e];
        walker.next(walk);
    }
}

/* Blocks of a multiprocessor, which limit registers: one more of few results whose loads, in pieces below 16 bytes, take long. */
template <class Sum, int RESULTS, int V>
constexpr int BLOCKS = RESULTS * sizeof(Sum) >= 128           ? 3
                       : V == 4 || RESULTS * sizeof(Sum) > 16 ? 4
                                                              : 5;

/* V: 4 or 2, where the rows of both operands are whole 16 or 8 bytes, or 1. */
template <class Sum, int R, int C, int V>
__global__ void __launch_bounds__(THREADS, BLOCKS<Sum, R * C, V>) packed_kernel(const __grid_constant__ PackedArgs args)
{
    TL_DYNAMIC_SHARED(unsigned char, packed_shared);
    const tl_matrix_product &x = args.x;
    const int m = (int)x.m, n = (int)x.n, p = (int)x.p, pitch = args.pitch;
    const int64_t first = (int64_t)blockIdx.x * args.products;
    const int products = (int)min((int64_t)args.products, x.batch - first);
    Sum *const as = reinterpret_cast<Sum *>(packed_shared), *const bs = as + args.products * m * pitch;
    float *const cs = reinterpret_cast<float *>(bs + args.products * p * pitch);
    const float *const A = x.A + first * (m * n), *const B = x.B + first * (n * p);
    const int a_count = products * m * n, b_count = products * n * p;
    tl_wait_for_earlier();

    Walker<Sum> a_walker(as, args.a), b_walker(bs, args.b);
#pragma unroll 1
    for (int e = (int)threadIdx.x * V; e < max(a_count, b_count); e += AHEAD * THREADS) {
        float a[AHEAD] = {}, b[AHEAD] = {};
        load<V>(A, e, a_count, a);
        load<V>(B, e, b_count, b);
        place<V>(args.a, a_walker, e, a_count, a);
        place<V>(args.b, b_walker, e, b_count, b);
    }
    __syncthreads();

    const int row_groups = (int)args.row_groups.divisor, column_groups = (int)args.column_groups.divisor;
    const int items = products * row_groups * column_groups;
#pragma unroll 1
    for (int item = (int)threadIdx.x; item < items; item += THREADS) {
        uint32_t row0, column0;
        const int product = (int)args.row_groups.divmod(args.column_groups.divmod((uint32_t)item, &column0), &row0);
        const Sum *a[R], *b[C]; /* what does not exist is the last, and not stored */
        TL_UNROLL_FOR (int r = 0; r < R; r++)
            a[r] = as + (product * m + min((int)row0 + r * row_groups, m - 1)) * pitch;
        TL_UNROLL_FOR (int c = 0; c < C; c++)
            b[c] = bs + (product * p + min((int)column0 + c * column_groups, p - 1)) * pitch;
        Sum sum[R][C] = {};
#pragma unroll 4
        for (int k = 0; k < n; k++) {
            Sum v[R], w[C];
            TL_UNROLL_FOR (int r = 0; r < R; r++)
                v[r] = a[r][k];
            TL_UNROLL_FOR (int c = 0; c < C; c++)
                w[c] = b[c][k];
            TL_UNROLL_FOR (int r = 0; r < R; r++)
                TL_UNROLL_FOR (int c = 0; c < C; c++) {
                    if constexpr (sizeof(Sum) == 4)
                        sum[r][c] = fmaf(v[r], w[c], sum[r][c]);
                    else
                        sum[r][c] = fma(v[r], w[c], sum[r][c]);
                }
        }
        float *const to = cs + product * (m * p);
        TL_UNROLL_FOR (int r = 0; r < R; r++)
            TL_UNROLL_FOR (int c = 0; c < C; c++) {
                const int i = (int)row0 + r * row_groups, j = (int)column0 + c * column_groups;
                if (i < m && j < p) to[i * p + j] = (float)sum[r][c];
            }
    }
    __syncthreads();
    float *const to = x.C + first * (m * p);
    for (int e = (int)threadIdx.x; e < products * (m * p); e += THREADS)
        to[e] = cs[e];
}

/* Bytes of shared memory for a product: what lies odd elements apart, and the results, of which two take a double's place. */
int64_t shared_bytes(const tl_matrix_product &x, bool float64)
{
    return (x.m + x.p) * (x.n | 1) * (float64 ? 8 : 4) + tl_ceil_div(x.m * x.p, 2) * 8;
}

template <class Sum, int R, int C, int V> int32_t launch(tl_context *ctx, const tl_matrix_product &x)
{
    const int64_t row_groups = tl_ceil_div(x.m, R), column_groups = tl_ceil_div(x.p, C), pitch = x.n | 1;
    const int64_t bytes = shared_bytes(x, sizeof(Sum) == 8);
    /* As many as give each thread work and have room; two blocks for each multiprocessor before there are several to a block. */
    const int64_t busy = THREADS / (row_groups * column_groups), room = SHARED_SEVERAL / bytes;
    const int64_t spread = tl_ceil_div(x.batch, 2 * (int64_t)tl_cuda_sms(ctx));
    const int64_t products = std::max<int64_t>(1, std::min<int64_t>({busy, room, spread}));
    const PackedArgs args = {x,
                             walk<V>(!x.ta, x.m, x.n, pitch),
                             walk<V>(x.tb, x.p, x.n, pitch),
                             tl_fastdiv((uint64_t)row_groups),
                             tl_fastdiv((uint64_t)column_groups),
                             (uint32_t)products,
                             (int)pitch};
    const auto kernel = packed_kernel<Sum, R, C, V>;
    TL_TRY(tl_allow_shared(ctx, kernel, (size_t)(products * bytes)));
    return tl_launch_ahead(ctx, "packed_products", kernel, (unsigned)tl_ceil_div(x.batch, products), THREADS,
                           (size_t)(products * bytes), args);
}

/* Tiles of 4 x 4 where so many results leave enough threads to hide the latency of memory. */
template <class Sum, int V> int32_t multiply(tl_context *ctx, const tl_matrix_product &x)
{
    if (x.m == 1) return launch<Sum, 1, 4, V>(ctx, x);
    if (x.p == 1) return launch<Sum, 4, 1, V>(ctx, x);
    const int64_t many = 16 * 1024 * (int64_t)tl_cuda_sms(ctx);
    return x.batch * x.m * x.p >= many ? launch<Sum, 4, 4, V>(ctx, x) : launch<Sum, 2, 2, V>(ctx, x);
}

template <class Sum> int32_t multiply(tl_context *ctx, const tl_matrix_product &x)
{
    const int64_t lengths = (x.ta ? x.m : x.n) | (x.tb ? x.n : x.p);
    if (lengths % 2 != 0 || !tl_aligned4(x.A) || !tl_aligned4(x.B)) return multiply<Sum, 1>(ctx, x);
    return lengths % 4 == 0 ? multiply<Sum, 4>(ctx, x) : multiply<Sum, 2>(ctx, x);
}

} /* namespace */

/* How many results of few terms make a product one for linalg/few_terms.cu. Where the batch is so long that its blocks take turns, each
 * keeps its place for 1.8 us (measured on an H200) however little it has to do, as it waits for its operands; packed products take as
 * long, in float32 and of at most SHORT terms, from BUSY results of a block there on. A product whose rows repeat, in quads, only
 * after more than a warp's quads has two of its blocks, or more. */
static int64_t few_results(tl_context *ctx, const tl_matrix_product &x, bool float64)
{
    constexpr int64_t BUSY = 6 * 128, TURNS = 8, SHORT = 8;
    if (float64 || x.n > SHORT || x.batch < TURNS * tl_cuda_sms(ctx)) return FEW_RESULTS;
    const int64_t period = x.p * (x.p % 4 == 0 ? 1 : x.p % 2 == 0 ? 2 : 4);
    return period > 4 * 32 ? 2 * BUSY : BUSY;
}

/* A batch of products that fit a block; of those with results enough for linalg/few_terms.cu the ones whose terms are too many for it
 * to be bound by memory, or to give a block whole periods of rows that are no whole quads, and of which there is one for each
 * multiprocessor; and none whose reads of shared memory take a third longer than memory, or half as long again in float64, where
 * chains on tensor cores get ahead. */
bool tl_packed_products_serve(tl_context *ctx, const tl_matrix_product &x, bool float64)
{
    if (x.batch < 2 || x.batch >= INT32_MAX || x.bias || x.n > TERMS_MOST || x.m > RESULTS_MOST || x.p > RESULTS_MOST ||
        x.m * x.p > RESULTS_MOST || shared_bytes(x, float64) > SHARED_MOST)
        return false;
    const int64_t terms = x.p % 4 == 0 ? TL_FEW_TERMS / 2 : float64 ? 4 : 8;
    if (x.m * x.p >= FEW_RESULTS && x.batch < tl_cuda_sms(ctx)) return false;
    if (x.m * x.p >= few_results(ctx, x, float64) && x.n <= terms) return false;
    const double memory = 1.0 / (double)x.m + 1.0 / (double)x.n + 1.0 / (double)x.p; /* · m·n·p / 4 */
    return memory * 16.0 >= (float64 ? 2.0 / 1.5 : 1.0 / 1.33);
}

int32_t tl_packed_products_multiply(tl_context *ctx, const tl_matrix_product &x, bool float64)
{
    return float64 ? multiply<double>(ctx, x) : multiply<float>(ctx, x);
}
