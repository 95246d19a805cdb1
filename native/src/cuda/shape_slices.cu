/* Slices of any rank and their adjoint on CUDA, strided copies (formula/strided.h), and concatenation.
 *
 * A thread owns GROUPS elements of the dense array, THREADS apart, so that a warp's accesses to it are one line; where runs, strides
 * and pointers allow it an element is four floats. Element i of the dense array lies where one fast division per merged axis says;
 * an index fits 32 bits, as a buffer has fewer than 2^32 elements. */
#include "cuda/device/division.cuh"
#include "cuda/device/vector.cuh"
#include "cuda/runtime/launch.cuh"
#include "formula/strided.h"
#include "generated/shape.h"

namespace {

constexpr int THREADS = 256, GROUPS = 4;

template <class T> struct Copy {
    const T *x;
    T *y;
    int64_t n;
    int32_t count;
    tl_fastdiv size[TL_STRIDED_RANK];
    int64_t stride[TL_STRIDED_RANK];
};

/* AXES = 0: any number of merged axes. TAKE: from the strided array to the dense one, else back. */
template <class T, int AXES, bool TAKE> __global__ void __launch_bounds__(THREADS) copy_kernel(Copy<T> c)
{
    const int64_t block = (int64_t)blockIdx.x * (THREADS * GROUPS);
    T v[GROUPS];
    int64_t place[GROUPS];
    TL_UNROLL_FOR (int k = 0; k < GROUPS; k++) {
        const int64_t i = block + k * THREADS + threadIdx.x;
        if (i >= c.n) break;
        uint32_t q = (uint32_t)i;
        int64_t at = 0;
        TL_UNROLL_FOR (int j = (AXES ? AXES : c.count) - 1; j > 0; j--) {
            uint32_t rest;
            q = c.size[j].divmod(q, &rest);
            at += rest * c.stride[j];
        }
        place[k] = at + q * c.stride[0];
        v[k] = c.x[TAKE ? place[k] : i];
    }
    TL_UNROLL_FOR (int k = 0; k < GROUPS; k++) {
        const int64_t i = block + k * THREADS + threadIdx.x;
        if (i < c.n) c.y[TAKE ? i : place[k]] = v[k];
    }
}

template <class T, bool TAKE>
int32_t launch(tl_context *ctx, const char *name, const tl_strided &s, const float *x, float *y)
{
    constexpr int WIDTH = sizeof(T) / sizeof(float);
    Copy<T> c = {reinterpret_cast<const T *>(x), reinterpret_cast<T *>(y), s.n / WIDTH, s.count, {}, {}};
    for (int k = 0; k < s.count; k++) {
        const bool last = k == s.count - 1;
        c.size[k] = tl_fastdiv((uint64_t)(last ? s.size[k] / WIDTH : s.size[k]));
        c.stride[k] = last || WIDTH == 1 ? s.stride[k] : s.stride[k] / WIDTH;
    }
    const auto kernel = s.count == 1   ? copy_kernel<T, 1, TAKE>
                        : s.count == 2 ? copy_kernel<T, 2, TAKE>
                        : s.count == 3 ? copy_kernel<T, 3, TAKE>
                                       : copy_kernel<T, 0, TAKE>;
    return tl_launch(ctx, name, kernel, tl_grid(c.n, THREADS * GROUPS), THREADS, c);
}

/* From the strided array x to the dense y, or from the dense x to the strided y. */
template <bool TAKE> int32_t copy(tl_context *ctx, const char *name, const tl_strided &s, const float *x, float *y)
{
    x += TAKE ? s.base : 0;
    y += TAKE ? 0 : s.base;
    const int last = s.count - 1;
    bool wide = s.stride[last] == 1 && s.size[last] % 4 == 0 && tl_aligned4(x) && tl_aligned4(y);
    for (int k = 0; k < last; k++)
        wide = wide && s.stride[k] % 4 == 0;
    return wide ? launch<float4, TAKE>(ctx, name, s, x, y) : launch<float, TAKE>(ctx, name, s, x, y);
}

/* ---- concatenation ----------------------------------------------------------------------------------------------- */

struct Concat {
    const float *a, *b;
    float *out;
    int64_t total;
    tl_fastdiv width; /* of a row of out */
    uint32_t n, m;

    __device__ __forceinline__ const float *at(uint32_t row, uint32_t column) const
    {
        return column < n ? a + (int64_t)row * n + column : b + (int64_t)row * m + (column - n);
    }
};

/* A block owns 4·THREADS·GROUPS consecutive elements of out; a thread owns GROUPS quadruples of them, THREADS apart, which it
 * writes at once. It reads at once what lies in one row of one side on 16 bytes, else one by one. */
__global__ void __launch_bounds__(THREADS) concat_kernel(Concat c)
{
    const int64_t block = (int64_t)blockIdx.x * (THREADS * GROUPS * 4);
    float v[GROUPS][4];
    TL_UNROLL_FOR (int k = 0; k < GROUPS; k++) {
        const int64_t i = block + (k * THREADS + (int)threadIdx.x) * 4;
        if (i >= c.total) break;
        uint32_t column;
        uint32_t row = c.width.divmod((uint32_t)i, &column);
        const float *const from = c.at(row, column);
        const uint32_t end = column < c.n ? c.n : c.width.divisor;
        if (column + 4 <= end && tl_aligned4(from)) {
            tl_load4(from, v[k]);
        } else if (column + 4 <= end) {
            TL_UNROLL_FOR (int e = 0; e < 4; e++)
                v[k][e] = from[e];
        } else {
            TL_UNROLL_FOR (int e = 0; e < 4; e++) {
                v[k][e] = i + e < c.total ? *c.at(row, column) : 0.0f;
                if (++column == c.width.divisor) column = 0, row++;
            }
        }
    }
    TL_UNROLL_FOR (int k = 0; k < GROUPS; k++) {
        const int64_t i = block + (k * THREADS + (int)threadIdx.x) * 4;
        if (i + 4 <= c.total) {
            tl_store4(c.out + i, v[k]);
        } else {
            TL_UNROLL_FOR (int e = 0; e < 3; e++)
                if (i + e < c.total) c.out[i + e] = v[k][e];
        }
    }
}

} // namespace

extern "C" int32_t tl_cuda_slice_axes(tl_context *ctx, const float *x, const tl_dims *in_dims, const tl_dims *out_dims,
                                      const tl_dims *starts, const tl_dims *steps, int64_t reversed, float *out)
{
    return copy<true>(ctx, "tl_cuda_slice_axes",
                      tl_slice_strides(in_dims->rank, in_dims->d, out_dims->d, starts->d, steps->d, reversed), x, out);
}

extern "C" int32_t tl_cuda_pad_axes(tl_context *ctx, const float *x, const tl_dims *in_dims, const tl_dims *out_dims,
                                    const tl_dims *starts, const tl_dims *steps, int64_t reversed, float value,
                                    float *out)
{
    const int64_t n = (int64_t)tl_dims_product(in_dims), total = (int64_t)tl_dims_product(out_dims);
    if (n < total) TL_TRY(tl_cuda_fill(tl_context_cuda(ctx), out, value, total));
    if (n == 0) return TORCHLEAN_OK;
    return copy<false>(ctx, "tl_cuda_pad_axes",
                       tl_slice_strides(out_dims->rank, out_dims->d, in_dims->d, starts->d, steps->d, reversed), x,
                       out);
}

extern "C" int32_t tl_cuda_concat_rows(tl_context *ctx, const float *a, const float *b, int64_t rows, int64_t n,
                                       int64_t m, float *out)
{
    if (rows * (n + m) == 0) return TORCHLEAN_OK;
    const Concat c = {a, b, out, rows * (n + m), tl_fastdiv((uint64_t)(n + m)), (uint32_t)n, (uint32_t)m};
    return tl_launch(ctx, "tl_cuda_concat_rows", concat_kernel, tl_grid(c.total, THREADS * GROUPS * 4), THREADS, c);
}
