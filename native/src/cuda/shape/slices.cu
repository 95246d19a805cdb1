/* Slices of any rank on CUDA, strided copies (formula/strided.h), padding, and concatenation.
 *
 * A thread owns GROUPS elements of the dense array, THREADS apart, so that a warp's accesses to it are one line; where runs, strides
 * and pointers allow it an element is four floats. Element i of the dense array lies where one fast division per merged axis says;
 * an index fits 32 bits, as a buffer has fewer than 2^32 elements. */
#include "cuda/device/division.cuh"
#include "cuda/shape/shape.cuh"

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

/* AXES = 0: any number of merged axes. */
template <class T, int AXES> __global__ void __launch_bounds__(THREADS) copy_kernel(Copy<T> c)
{
    const int64_t block = (int64_t)blockIdx.x * (THREADS * GROUPS);
    T v[GROUPS];
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
        v[k] = c.x[at + q * c.stride[0]];
    }
    TL_UNROLL_FOR (int k = 0; k < GROUPS; k++) {
        const int64_t i = block + k * THREADS + threadIdx.x;
        if (i < c.n) c.y[i] = v[k];
    }
}

template <class T> int32_t launch(tl_context *ctx, const char *name, const tl_strided &s, const float *x, float *y)
{
    constexpr int WIDTH = sizeof(T) / sizeof(float);
    Copy<T> c = {reinterpret_cast<const T *>(x), reinterpret_cast<T *>(y), s.n / WIDTH, s.count, {}, {}};
    for (int k = 0; k < s.count; k++) {
        const bool last = k == s.count - 1;
        c.size[k] = tl_fastdiv((uint64_t)(last ? s.size[k] / WIDTH : s.size[k]));
        c.stride[k] = last || WIDTH == 1 ? s.stride[k] : s.stride[k] / WIDTH;
    }
    const auto kernel = s.count == 1   ? copy_kernel<T, 1>
                        : s.count == 2 ? copy_kernel<T, 2>
                        : s.count == 3 ? copy_kernel<T, 3>
                        : s.count == 4 ? copy_kernel<T, 4>
                                       : copy_kernel<T, 0>;
    return tl_launch(ctx, name, kernel, tl_grid(c.n, THREADS * GROUPS), THREADS, c);
}

/* ---- padding ----------------------------------------------------------------------------------------------------- */

/* An array of merged axes in a larger one: index i of an axis of y holds index (i - start)/step of x, or (start - i)/step of an axis
 * that runs `back`, where that is one of `length`. */
struct Pad {
    const float *x;
    float *y;
    int64_t total;
    float value;
    int32_t count;
    tl_fastdiv size[TL_STRIDED_RANK], step[TL_STRIDED_RANK]; /* size: of y */
    uint32_t start[TL_STRIDED_RANK], length[TL_STRIDED_RANK];
    bool back[TL_STRIDED_RANK];
    int64_t stride[TL_STRIDED_RANK]; /* of x */

    /* Axis k of the larger array, outside those that are there, of which the inner one may be whole: then it is joined to it. */
    void add(int64_t whole, int64_t part, int64_t first, int64_t apart, bool backwards)
    {
        if (whole == 1) return;
        const int inner = count - 1;
        if (count > 0 && apart == 1 && !backwards && !back[inner] && start[inner] == 0 &&
            length[inner] == size[inner].divisor) {
            start[inner] = (uint32_t)(first * length[inner]);
            size[inner] = tl_fastdiv((uint64_t)(whole * length[inner]));
            length[inner] = (uint32_t)(part * length[inner]);
            return;
        }
        stride[count] = count > 0 ? stride[inner] * length[inner] : 1;
        size[count] = tl_fastdiv((uint64_t)whole);
        step[count] = tl_fastdiv((uint64_t)apart);
        start[count] = (uint32_t)first;
        length[count] = (uint32_t)part;
        back[count++] = backwards;
    }

    /* Whether index i of axis k holds one of x, then which. */
    __device__ __forceinline__ bool find(int k, uint32_t i, uint32_t *index) const
    {
        const bool after = back[k] ? i <= start[k] : i >= start[k];
        uint32_t rest;
        *index = step[k].divmod(back[k] ? start[k] - i : i - start[k], &rest);
        return after && rest == 0 && *index < length[k];
    }
};

/* The innermost axis is axis 0. AXES = 0: any number of axes. */
template <int AXES> __global__ void __launch_bounds__(TL_QUADS_THREADS) pad_kernel(const __grid_constant__ Pad p)
{
    const auto find_row = [&](uint32_t row, int64_t *at) {
        bool inside = true;
        *at = 0;
        TL_UNROLL_FOR (int k = 1; k < (AXES ? AXES : p.count); k++) {
            uint32_t i = row, index;
            if (k < (AXES ? AXES : p.count) - 1) row = p.size[k].divmod(row, &i);
            inside &= p.find(k, i, &index);
            *at += index * p.stride[k];
        }
        return inside;
    };
    tl_write_quads(p.y, p.total, [&](int64_t i, float (&v)[4]) {
        uint32_t column, index;
        uint32_t row = p.size[0].divmod((uint32_t)i, &column);
        int64_t at;
        bool inside = find_row(row, &at);
        TL_UNROLL_FOR (int e = 0; e < 4; e++) {
            v[e] = p.find(0, column, &index) && inside && i + e < p.total ? p.x[at + index] : p.value;
            if (e < 3 && ++column == p.size[0].divisor) {
                column = 0;
                inside = find_row(++row, &at);
            }
        }
    });
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

/* A thread reads at once what lies in one row of one side on 16 bytes, else one by one. */
__global__ void __launch_bounds__(TL_QUADS_THREADS) concat_kernel(Concat c)
{
    tl_write_quads(c.out, c.total, [&](int64_t i, float (&v)[4]) {
        uint32_t column;
        uint32_t row = c.width.divmod((uint32_t)i, &column);
        const float *const from = c.at(row, column);
        const uint32_t end = column < c.n ? c.n : c.width.divisor;
        if (column + 4 <= end && tl_aligned4(from)) {
            tl_load4(from, v);
        } else if (column + 4 <= end) {
            TL_UNROLL_FOR (int e = 0; e < 4; e++)
                v[e] = from[e];
        } else {
            TL_UNROLL_FOR (int e = 0; e < 4; e++) {
                v[e] = i + e < c.total ? *c.at(row, column) : 0.0f;
                if (++column == c.width.divisor) column = 0, row++;
            }
        }
    });
}

} // namespace

int32_t tl_cuda_copy_strided(tl_context *ctx, const char *name, const tl_strided &s, const float *x, float *y)
{
    x += s.base;
    const int last = s.count - 1;
    bool wide = s.stride[last] == 1 && s.size[last] % 4 == 0 && tl_aligned4(x) && tl_aligned4(y);
    for (int k = 0; k < last; k++)
        wide = wide && s.stride[k] % 4 == 0;
    return wide ? launch<float4>(ctx, name, s, x, y) : launch<float>(ctx, name, s, x, y);
}

extern "C" int32_t tl_cuda_slice_axes(tl_context *ctx, const float *x, const tl_dims *in_dims, const tl_dims *out_dims,
                                      const tl_dims *starts, const tl_dims *steps, int64_t reversed, float *out)
{
    const tl_strided s = tl_slice_strides(in_dims->rank, in_dims->d, out_dims->d, starts->d, steps->d, reversed);
    return tl_cuda_copy_strided(ctx, "tl_cuda_slice_axes", s, x, out);
}

extern "C" int32_t tl_cuda_pad_axes(tl_context *ctx, const float *x, const tl_dims *in_dims, const tl_dims *out_dims,
                                    const tl_dims *starts, const tl_dims *steps, int64_t reversed, float value,
                                    float *out)
{
    const int64_t n = (int64_t)tl_dims_product(in_dims), total = (int64_t)tl_dims_product(out_dims);
    if (n == 0) return total > 0 ? tl_cuda_fill(tl_context_cuda(ctx), out, value, total) : (int32_t)TORCHLEAN_OK;
    Pad p = {};
    p.x = x, p.y = out, p.total = total, p.value = value;
    for (int32_t k = in_dims->rank - 1; k >= 0; k--)
        p.add(out_dims->d[k], in_dims->d[k], starts->d[k], steps->d[k], reversed >> k & 1);
    if (p.count == 0) p.count = 1, p.size[0] = p.step[0] = tl_fastdiv(1), p.length[0] = 1;
    const auto kernel = p.count == 1   ? pad_kernel<1>
                        : p.count == 2 ? pad_kernel<2>
                        : p.count == 3 ? pad_kernel<3>
                                       : pad_kernel<0>;
    return tl_launch(ctx, "tl_cuda_pad_axes", kernel, tl_quads_grid(total), TL_QUADS_THREADS, p);
}

extern "C" int32_t tl_cuda_slice1d(tl_context *ctx, const float *x, int64_t n, int64_t start, int64_t len, float *out)
{
    const tl_dims whole = {1, {n}}, part = {1, {len}}, starts = {1, {start}}, steps = {1, {1}};
    return tl_cuda_slice_axes(ctx, x, &whole, &part, &starts, &steps, 0, out);
}

extern "C" int32_t tl_cuda_slice1d_bwd(tl_context *ctx, const float *g, int64_t n, int64_t start, int64_t len,
                                       float *gx)
{
    const tl_dims whole = {1, {n}}, part = {1, {len}}, starts = {1, {start}}, steps = {1, {1}};
    return tl_cuda_pad_axes(ctx, g, &part, &whole, &starts, &steps, 0, 0.0f, gx);
}

extern "C" int32_t tl_cuda_concat_rows(tl_context *ctx, const float *a, const float *b, int64_t rows, int64_t n,
                                       int64_t m, float *out)
{
    if (rows * (n + m) == 0) return TORCHLEAN_OK;
    const Concat c = {a, b, out, rows * (n + m), tl_fastdiv((uint64_t)(n + m)), (uint32_t)n, (uint32_t)m};
    return tl_launch(ctx, "tl_cuda_concat_rows", concat_kernel, tl_quads_grid(c.total), TL_QUADS_THREADS, c);
}
