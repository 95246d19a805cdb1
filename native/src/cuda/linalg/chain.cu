/* The reproducible matrix product on CUDA: device/chain.cuh with two matrices as they lie in memory. */
#include "cuda/linalg/chain.cuh"

#include <type_traits>
#include <utility>

namespace {

template <class T, class Real, int WIDTH, bool ALONG, bool ALIGNED>
using Operand = std::conditional_t<ALIGNED, tl_chain_matrix<T, Real, WIDTH, ALONG, 16 / (int)sizeof(Real)>,
                                   tl_chain_unaligned<T, Real, WIDTH, ALONG>>;

/* ALIGNED: rows of the factors are made of whole 16 bytes, and begin with whole ones. */
template <class Element, bool TA, bool TB, bool ALIGNED> struct Product {
    using Real = Element;
    /* both transposed: an exchange for few rows, below */
    static constexpr tl_chain_choice TILES = TA && TB           ? tl_chain_choice::FEW_ROWS
                                             : sizeof(Real) > 4 ? tl_chain_choice::SMALL
                                             : ALIGNED          ? tl_chain_choice::ALL
                                                                : tl_chain_choice::HALVES;
    tl_chain_product<Real> x;
    uint32_t lda, ldb;                 /* of its strides: as numbers of 32 bits they take fewer registers */
    int64_t row_stride, column_stride; /* of C */
    bool pairs;                        /* C takes two columns at once */

    template <class T> struct A : Operand<T, Real, T::BM, !TA, ALIGNED> {
        __device__ __forceinline__ A(const Product &p, const tl_chain_args &args, const tl_chain_place &place,
                                     int64_t k0, int terms)
            : Operand<T, Real, T::BM, !TA, ALIGNED>(p.x.A + place.product * p.x.strides.a_batch, place.i0, args.m,
                                                    (int64_t)p.lda, k0, terms)
        {}
    };
    template <class T> struct B : Operand<T, Real, T::BN, TB, ALIGNED> {
        __device__ __forceinline__ B(const Product &p, const tl_chain_args &args, const tl_chain_place &place,
                                     int64_t k0, int terms)
            : Operand<T, Real, T::BN, TB, ALIGNED>(p.x.B + place.product * p.x.strides.b_batch, place.j0, args.p,
                                                   (int64_t)p.ldb, k0, terms)
        {}
    };

    /* How a warp's results lie in shared memory: so far from row to row that lanes which write at once write to different banks. */
    template <class T> struct Rows {
        static constexpr int WIDTH = 8 * T::N, PITCH = WIDTH + 8, SIZE = 16 * T::M * PITCH, SIDE = 32 / WIDTH;
        static_assert(32 % WIDTH == 0, "a column for each lane");
        static_assert(T::WARPS * SIZE <= T::STAGES * (A<T>::SIZE + B<T>::SIZE), "room");
    };

    static __device__ __forceinline__ void put_pair(Real *to, const Real (&y)[2])
    {
        if constexpr (sizeof(Real) == 4)
            *reinterpret_cast<float2 *>(to) = make_float2(y[0], y[1]);
        else
            *reinterpret_cast<double2 *>(to) = make_double2(y[0], y[1]);
    }

    /* Of rows that begin anywhere a lane's neighbours can only be written one by one, and a warp's so to twice as many sectors, none of
     * them whole: they go through shared memory, so that a warp writes its part of a row at once. */
    template <class T>
    __device__ __forceinline__ void store(const tl_chain_args &args, const tl_chain_place &place, int64_t row,
                                          int64_t col, int64_t rows, int64_t cols, const double (&sum)[T::M][T::N][4],
                                          Real *shared) const
    {
        constexpr int PITCH = Rows<T>::PITCH, WIDTH = Rows<T>::WIDTH, SIDE = Rows<T>::SIDE;
        const int lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4;
        const bool gathered = !pairs && column_stride == 1;
        Real *const product = x.C + place.product * (args.m * args.p);
        Real *const to = product + row * row_stride + col * column_stride;
        Real *const own = shared + (int)threadIdx.x / 32 * Rows<T>::SIZE;
        Real bias[T::N][2] = {}; /* read ahead of all stores, which its loads would have to follow one by one */
        TL_UNROLL_FOR (int n = 0; n < T::N; n++)
            TL_UNROLL_FOR (int e = 0; e < 2; e++)
                if (x.bias && 8 * n + e < cols) bias[n][e] = x.bias[col + 8 * n + e];
        if (gathered) __syncthreads(); /* the stages have been read */
        TL_UNROLL_FOR (int n = 0; n < T::N; n++) {
            TL_UNROLL_FOR (int m = 0; m < T::M; m++)
                TL_UNROLL_FOR (int h = 0; h < 2; h++) {
                    if (16 * m + 8 * h >= rows) continue;
                    Real y[2];
                    TL_UNROLL_FOR (int e = 0; e < 2; e++) {
                        const double s = sum[m][n][2 * h + e];
                        y[e] = (Real)(x.bias ? s + (double)bias[n][e] : s);
                    }
                    Real *const at = to + (16 * m + 8 * h) * row_stride + 8 * n * column_stride;
                    if (gathered) {
                        put_pair(own + (16 * m + 8 * h + g) * PITCH + 8 * n + 2 * t, y);
                    } else if (pairs) {
                        if (8 * n < cols) put_pair(at, y);
                    } else {
                        TL_UNROLL_FOR (int e = 0; e < 2; e++)
                            if (8 * n + e < cols) at[e * column_stride] = y[e];
                    }
                }
        }
        if (!gathered) return;
        __syncwarp();
        const int first = lane / WIDTH, column = lane % WIDTH, end = (int)min(rows + g, (int64_t)(16 * T::M));
        if (column >= cols + 2 * t) return;
        Real *line = product + (row - g + first) * row_stride + (col - 2 * t + column);
#pragma unroll 8
        for (int r = first; r < end; r += SIDE, line += SIDE * row_stride)
            *line = own[r * PITCH + column];
    }

    __device__ __forceinline__ void put(uint32_t product, uint32_t row, uint32_t col, double sum) const
    {
        x.C[product * (x.m * x.p) + row * row_stride + col * column_stride] =
            (Real)(x.bias ? sum + (double)x.bias[col] : sum);
    }
};

template <class Real, bool TA, bool TB, bool ALIGNED>
int32_t run(tl_context *ctx, const tl_chain_product<Real> &x, int64_t row_stride, int64_t column_stride)
{
    const bool pairs = column_stride == 1 && row_stride % 2 == 0 && x.p % 2 == 0 && tl_aligned4(x.C);
    const Product<Real, TA, TB, ALIGNED> problem = {x,          (uint32_t)x.strides.lda, (uint32_t)x.strides.ldb,
                                                    row_stride, column_stride,           pairs};
    return tl_chain_run(ctx, "chain_product", problem, {x.batch, x.m, x.n, x.p, x.length, x.order});
}

template <class Real, bool ALIGNED>
int32_t run_form(tl_context *ctx, const tl_chain_product<Real> &x, int64_t row_stride, int64_t column_stride)
{
    if (x.ta && x.tb) return run<Real, true, true, ALIGNED>(ctx, x, row_stride, column_stride);
    if constexpr (sizeof(Real) == 4) {
        if (x.ta) return run<Real, true, false, ALIGNED>(ctx, x, row_stride, column_stride);
        if (x.tb) return run<Real, false, true, ALIGNED>(ctx, x, row_stride, column_stride);
    }
    return run<Real, false, false, ALIGNED>(ctx, x, row_stride, column_stride);
}

/* Few columns become few rows, and two transposed factors none: Cᵀ = op(B)ᵀ·op(A)ᵀ. */
template <class Real> int32_t multiply(tl_context *ctx, tl_chain_product<Real> x)
{
    constexpr int VECTOR = 16 / sizeof(Real);
    int64_t row_stride = x.p, column_stride = 1;
    const bool few = x.p <= tl_chain_few_rows::BM && x.p < x.m;
    if (!x.bias && (few || (x.ta && x.tb && x.m > tl_chain_few_rows::BM))) {
        const tl_product_strides s = x.strides;
        x = {x.batch,  x.p,    x.n, x.m, x.B, !x.tb, x.A, !x.ta, nullptr, x.C, {s.ldb, s.lda, s.b_batch, s.a_batch},
             x.length, x.order};
        std::swap(row_stride, column_stride);
    }
    const tl_product_strides &s = x.strides;
    const int64_t lengths = (x.ta ? x.m : x.n) | (x.tb ? x.n : x.p) | s.lda | s.ldb | s.a_batch | s.b_batch;
    const bool aligned = lengths % VECTOR == 0 && tl_aligned4(x.A) && tl_aligned4(x.B);
    return aligned ? run_form<Real, true>(ctx, x, row_stride, column_stride)
                   : run_form<Real, false>(ctx, x, row_stride, column_stride);
}

} /* namespace */

int32_t tl_chain_multiply(tl_context *ctx, const tl_chain_product<float> &x) { return multiply(ctx, x); }
int32_t tl_chain_multiply(tl_context *ctx, const tl_chain_product<double> &x) { return multiply(ctx, x); }
