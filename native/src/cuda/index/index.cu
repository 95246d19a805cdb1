/* Gathers and the addition of one row on CUDA, and the entry points of the index family. The scatter-adds themselves
 * are in scatter.cu, scatter_tile.cu and scatter_axis.cu. */
#include "cuda/device/division.cuh"
#include "cuda/device/vector.cuh"
#include "cuda/index/scatter.cuh"
#include "cuda/runtime/launch.cuh"
#include "generated/index.h"

namespace {

constexpr int THREADS = 256;

/* ---- gather ------------------------------------------------------------------------------------------------------ */

/* Thread t of a block owns the output's vectors (V floats) t, t + THREADS, ... of the block's 4·THREADS; all index
 * loads, then all table loads are in flight together. `cols` and `total` count vectors. A result too large for L2 is
 * written past it, which leaves the room to rows that are read again. */
template <class Vector>
__global__ void __launch_bounds__(THREADS)
    gather_kernel(const Vector *__restrict__ table, const uint32_t *__restrict__ indices, Vector *__restrict__ out,
                  uint32_t rows, tl_fastdiv cols, int64_t total, bool streaming)
{
    const int64_t first = (int64_t)blockIdx.x * (4 * THREADS) + threadIdx.x;
    uint32_t row[4], col[4];
    Vector v[4];
    TL_UNROLL_FOR (int u = 0; u < 4; u++) {
        const int64_t t = first + u * THREADS;
        row[u] = rows;
        if (t < total) row[u] = indices[cols.divmod((uint32_t)t, &col[u])];
    }
    TL_UNROLL_FOR (int u = 0; u < 4; u++) {
        v[u] = Vector{};
        if (row[u] < rows) v[u] = table[(int64_t)row[u] * cols.divisor + col[u]];
    }
    TL_UNROLL_FOR (int u = 0; u < 4; u++) {
        const int64_t t = first + u * THREADS;
        if (t < total) {
            if (streaming)
                __stcs(out + t, v[u]);
            else
                out[t] = v[u];
        }
    }
}

int32_t gather(tl_context *ctx, const char *name, const float *table, const uint32_t *indices, int64_t rows,
               int64_t cols, int64_t k, float *out)
{
    tl_scratch<uint32_t> list(ctx);
    TL_TRY(list.stage(indices, k));
    const bool streaming = k * cols >= (int64_t)1 << 23;
    if (cols % 4 == 0 && tl_aligned4(table) && tl_aligned4(out)) {
        const int64_t total = k * cols / 4;
        return tl_launch(ctx, name, gather_kernel<float4>, tl_grid(total, 4 * THREADS), THREADS, (const float4 *)table,
                         list, (float4 *)out, (uint32_t)rows, tl_fastdiv(cols / 4), total, streaming);
    }
    return tl_launch(ctx, name, gather_kernel<float>, tl_grid(k * cols, 4 * THREADS), THREADS, table, list, out,
                     (uint32_t)rows, tl_fastdiv(cols), k * cols, streaming);
}

/* ---- along an axis ------------------------------------------------------------------------------------------- */

/* Indices (io, k, ii) of an array seen as (outer, n, inner). */
struct axis_indices {
    const uint32_t *at;
    tl_fastdiv inner, k;
    uint32_t n;
    bool by_outer, by_column; /* else shared */

    /* The index of element t of (outer, k, inner), and where that element is. */
    __device__ __forceinline__ uint32_t of(uint32_t t, uint32_t *outer, uint32_t *column) const
    {
        uint32_t j;
        *outer = k.divmod(inner.divmod(t, column), &j);
        const int64_t row = by_outer ? (int64_t)*outer * k.divisor + j : j;
        return at[by_column ? row * inner.divisor + *column : row];
    }
};

/* Thread t of a block owns the output's vectors t, t + THREADS, ... of the block's 4·THREADS; `inner` and `total` count
 * vectors, of more than one float where columns share their indices. */
template <class Vector>
__global__ void __launch_bounds__(THREADS)
    take_axis_kernel(const Vector *__restrict__ x, axis_indices indices, Vector *__restrict__ out, int64_t total)
{
    const int64_t first = (int64_t)blockIdx.x * (4 * THREADS) + threadIdx.x;
    uint32_t index[4], outer[4], column[4];
    Vector v[4];
    TL_UNROLL_FOR (int u = 0; u < 4; u++) {
        const int64_t t = first + u * THREADS;
        index[u] = indices.n;
        if (t < total) index[u] = indices.of((uint32_t)t, &outer[u], &column[u]);
    }
    TL_UNROLL_FOR (int u = 0; u < 4; u++) {
        v[u] = Vector{};
        if (index[u] < indices.n)
            v[u] = x[((int64_t)outer[u] * indices.n + index[u]) * indices.inner.divisor + column[u]];
    }
    TL_UNROLL_FOR (int u = 0; u < 4; u++) {
        const int64_t t = first + u * THREADS;
        if (t < total) out[t] = v[u];
    }
}

axis_indices make_axis_indices(const uint32_t *at, int64_t n, int64_t inner, int64_t io, int64_t k, int64_t ii)
{
    return {at, tl_fastdiv(inner), tl_fastdiv(k), (uint32_t)n, io > 1, ii > 1};
}

/* A thread owns one (outer, column) of the output, which holds the base, and adds its k values one after the other, AT_ONCE of them
 * together: of those that meet in one element each goes on from the one before. AHEAD are on their way while as many are added. */
constexpr int AT_ONCE = 8, FAR_AHEAD = 32;

template <int AHEAD>
__global__ void __launch_bounds__(THREADS)
    add_columns_kernel(const float *__restrict__ values, axis_indices indices, float *out, int64_t columns)
{
    static_assert(AHEAD % AT_ONCE == 0);
    const int64_t t = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (t >= columns) return;
    uint32_t c;
    const uint32_t o = indices.inner.divmod((uint32_t)t, &c), inner = indices.inner.divisor, k = indices.k.divisor;
    const int64_t step = indices.by_column ? inner : 1, above = (int64_t)o * k;
    const uint32_t *const at = indices.at + (indices.by_outer ? above * step : 0) + (indices.by_column ? c : 0);
    const float *const from = values + above * inner + c;
    float *const column = out + (int64_t)o * indices.n * inner + c;
    uint32_t next_index[AHEAD];
    float next[AHEAD];
    const auto fetch = [&](uint32_t j) {
        TL_UNROLL_FOR (int i = 0; i < AHEAD; i++) {
            next_index[i] = j + i < k ? at[(j + i) * step] : indices.n;
            next[i] = j + i < k ? from[(int64_t)(j + i) * inner] : 0.0f;
        }
    };
    fetch(0);
    for (uint32_t j = 0; j < k; j += AHEAD) {
        uint32_t index[AHEAD];
        float v[AHEAD];
        TL_UNROLL_FOR (int i = 0; i < AHEAD; i++)
            index[i] = next_index[i], v[i] = next[i];
        if (j + AHEAD < k) fetch(j + AHEAD);
        TL_UNROLL_FOR (int first = 0; first < AHEAD; first += AT_ONCE) {
            if (j + first >= k) break;
            float sum[AT_ONCE];
            TL_UNROLL_FOR (int i = 0; i < AT_ONCE; i++)
                sum[i] = index[first + i] < indices.n ? column[(int64_t)index[first + i] * inner] : 0.0f;
            TL_UNROLL_FOR (int i = 0; i < AT_ONCE; i++) {
                TL_UNROLL_FOR (int before = 0; before < AT_ONCE; before++)
                    if (before < i && index[first + before] == index[first + i]) sum[i] = sum[before];
                sum[i] += v[first + i];
            }
            TL_UNROLL_FOR (int i = 0; i < AT_ONCE; i++)
                if (index[first + i] < indices.n) column[(int64_t)index[first + i] * inner] = sum[i];
        }
    }
}

/* The place in the whole array that each value goes to; UINT32_MAX, which no array has, for none. */
__global__ void __launch_bounds__(THREADS)
    find_places_kernel(axis_indices indices, uint32_t *__restrict__ places, int64_t total)
{
    const int64_t t = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (t >= total) return;
    uint32_t o, c;
    const uint32_t index = indices.of((uint32_t)t, &o, &c);
    places[t] = index < indices.n ? (o * indices.n + index) * indices.inner.divisor + c : UINT32_MAX;
}

constexpr int64_t FEW_VALUES = 256; /* to add one after the other; also few beside n, as sorting costs memory for n */
constexpr int64_t WHOLE_ROW = 32;   /* elements of a row that share an index: those from here on move as one */
/* Tiles for each multiprocessor, from which on to copy all arrays and to add hits that are loaded at once in a launch behind is
 * faster. Three tiles at a time wait about a microsecond for indices and values, when they have copied: in four turns longer than
 * that launch takes. */
constexpr int64_t MANY_TILES = 4 * 3;

int32_t add_along(tl_context *ctx, const char *name, const float *base, const float *values, const uint32_t *indices,
                  int64_t outer, int64_t n, int64_t inner, int64_t io, int64_t k, int64_t ii, float *out)
{
    if (k == 0 || (outer == 1 && ii == 1))
        return tl_scatter_rows(ctx, name, base, values, indices, outer * n, inner, k, out);
    const bool by_row = ii == 1 && inner >= WHOLE_ROW;
    if (io == 1 && ii == 1 && tl_axis_serves(outer, n, inner, k))
        return tl_scatter_axis(ctx, name, base, values, indices, outer, n, inner, k, out);
    if (by_row && io == 1) return tl_scatter_shared(ctx, name, base, values, indices, outer, n, inner, k, out);
    if (by_row && tl_strips_serve(outer, n, inner, k))
        return tl_scatter_strips(ctx, name, base, values, indices, outer, n, inner, k, true, out);
    const bool one_by_one = !by_row && k <= AT_ONCE &&
                            outer * tl_ceil_div(n * inner, TL_TILE) >= MANY_TILES * tl_cuda_sms(ctx);
    if (ii == 1 && k <= TL_TILE_INDICES && (by_row || n * inner >= TL_LARGE_ARRAY) && !one_by_one)
        return tl_scatter_tiles(ctx, name, base, values, indices, outer, n, inner, k, io > 1, out);
    const axis_indices at = make_axis_indices(indices, n, by_row ? 1 : inner, io, k, ii);
    if (one_by_one || (!by_row && (k <= FEW_VALUES || k < n / 64))) {
        const int64_t total = outer * n * inner;
        if (base)
            TL_TRY(tl_cuda_copy(tl_context_cuda(ctx), out, base, (size_t)total * sizeof *out));
        else
            TL_TRY(tl_cuda_fill(tl_context_cuda(ctx), out, 0.0f, total));
        const int64_t columns = outer * inner;
        const auto kernel = k <= AT_ONCE ? add_columns_kernel<AT_ONCE> : add_columns_kernel<FAR_AHEAD>;
        return tl_launch(ctx, name, kernel, tl_grid(columns, THREADS), THREADS, values, at, out, columns);
    }
    /* The values, or rows of them, in their order, as a list: that of a column is that of its j. */
    const int64_t count = outer * k * at.inner.divisor, cols = by_row ? inner : 1;
    tl_scratch<uint32_t> places(ctx);
    TL_TRY(places.allocate(count));
    TL_TRY(tl_launch(ctx, name, find_places_kernel, tl_grid(count, THREADS), THREADS, at, (uint32_t *)places, count));
    return tl_scatter_rows(ctx, name, base, values, places, outer * n * inner / cols, cols, count, out);
}

/* ---- one row ----------------------------------------------------------------------------------------------------- */

/* A thread owns the output's elements 4t .. 4t+3 for four t, THREADS apart; `from` .. `to`-1 are the elements of row
 * i. */
__global__ void __launch_bounds__(THREADS)
    scatter_row_kernel(const float *__restrict__ mat, const float *__restrict__ row, float *__restrict__ out,
                       int64_t total, int64_t from, int64_t to)
{
    const int64_t first = ((int64_t)blockIdx.x * (4 * THREADS) + threadIdx.x) * 4;
    float v[4][4];
    TL_UNROLL_FOR (int u = 0; u < 4; u++) {
        const int64_t e = first + u * (4 * THREADS);
        if (e + 4 <= total) {
            tl_load4(mat + e, v[u]);
        } else {
            TL_UNROLL_FOR (int j = 0; j < 4; j++)
                v[u][j] = e + j < total ? mat[e + j] : 0.0f;
        }
    }
    TL_UNROLL_FOR (int u = 0; u < 4; u++) {
        const int64_t e = first + u * (4 * THREADS);
        if (e + 4 > from && e < to) {
            TL_UNROLL_FOR (int j = 0; j < 4; j++)
                if (e + j >= from && e + j < to) v[u][j] += row[e + j - from];
        }
        if (e + 4 <= total) {
            tl_store4(out + e, v[u]);
        } else {
            TL_UNROLL_FOR (int j = 0; j < 4; j++)
                if (e + j < total) out[e + j] = v[u][j];
        }
    }
}

} /* namespace */

/* ---- the operations ---------------------------------------------------------------------------------------------- */

extern "C" int32_t tl_cuda_gather_vec(tl_context *ctx, const float *vec, const uint32_t *indices, int64_t n, int64_t k,
                                      float *out)
{
    return gather(ctx, "gather_vec", vec, indices, n, 1, k, out);
}

extern "C" int32_t tl_cuda_gather_vec_bwd(tl_context *ctx, const uint32_t *indices, const float *g, int64_t n,
                                          int64_t k, float *gvec)
{
    return tl_scatter_rows(ctx, "gather_vec_bwd", nullptr, g, indices, n, 1, k, gvec);
}

extern "C" int32_t tl_cuda_gather_rows(tl_context *ctx, const float *mat, const uint32_t *indices, int64_t rows,
                                       int64_t cols, int64_t k, float *out)
{
    return gather(ctx, "gather_rows", mat, indices, rows, cols, k, out);
}

extern "C" int32_t tl_cuda_gather_rows_bwd(tl_context *ctx, const uint32_t *indices, const float *g, int64_t rows,
                                           int64_t cols, int64_t k, float *gmat)
{
    return tl_scatter_rows(ctx, "gather_rows_bwd", nullptr, g, indices, rows, cols, k, gmat);
}

extern "C" int32_t tl_cuda_scatter_add(tl_context *ctx, const float *x, const float *values, const uint32_t *indices,
                                       int64_t n, int64_t k, float *out)
{
    return tl_scatter_rows(ctx, "scatter_add", x, values, indices, n, 1, k, out);
}

extern "C" int32_t tl_cuda_scatter_add_rows(tl_context *ctx, const float *mat, const float *values,
                                            const uint32_t *indices, int64_t rows, int64_t cols, int64_t k, float *out)
{
    return tl_scatter_rows(ctx, "scatter_add_rows", mat, values, indices, rows, cols, k, out);
}

extern "C" int32_t tl_cuda_take_axis(tl_context *ctx, const float *x, const uint32_t *indices, int64_t outer, int64_t n,
                                     int64_t inner, int64_t io, int64_t k, int64_t ii, float *out)
{
    if (ii == 1 && inner % 4 == 0 && tl_aligned4(x) && tl_aligned4(out)) {
        const int64_t total = outer * k * (inner / 4);
        return tl_launch(ctx, "take_axis", take_axis_kernel<float4>, tl_grid(total, 4 * THREADS), THREADS,
                         (const float4 *)x, make_axis_indices(indices, n, inner / 4, io, k, 1), (float4 *)out, total);
    }
    const int64_t total = outer * k * inner;
    return tl_launch(ctx, "take_axis", take_axis_kernel<float>, tl_grid(total, 4 * THREADS), THREADS, x,
                     make_axis_indices(indices, n, inner, io, k, ii), out, total);
}

extern "C" int32_t tl_cuda_take_axis_bwd(tl_context *ctx, const uint32_t *indices, const float *g, int64_t outer,
                                         int64_t n, int64_t inner, int64_t io, int64_t k, int64_t ii, float *gx)
{
    return add_along(ctx, "take_axis_bwd", nullptr, g, indices, outer, n, inner, io, k, ii, gx);
}

extern "C" int32_t tl_cuda_scatter_add_axis(tl_context *ctx, const float *x, const float *values,
                                            const uint32_t *indices, int64_t outer, int64_t n, int64_t inner, int64_t k,
                                            int64_t io, int64_t ii, float *out)
{
    return add_along(ctx, "scatter_add_axis", x, values, indices, outer, n, inner, io, k, ii, out);
}

extern "C" int32_t tl_cuda_scatter_add_row(tl_context *ctx, const float *mat, const float *row, int64_t rows,
                                           int64_t cols, int64_t i, float *out)
{
    const int64_t total = rows * cols;
    return tl_launch(ctx, "scatter_add_row", scatter_row_kernel, tl_grid(total, 16 * THREADS), THREADS, mat, row, out,
                     total, i * cols, (i + 1) * cols);
}
