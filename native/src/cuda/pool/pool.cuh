/* The geometry of pooling on CUDA, shared by the forward kernels (pool/pool.cu) and the gradients (pool/vjp.cu). */
#pragma once

#include "cuda/device/division.cuh"
#include "cuda/runtime/launch.cuh"
#include "formula/count.h"
#include "formula/pool.h"

enum tl_pool_kind { TL_POOL_MAX, TL_POOL_MEAN, TL_POOL_SMOOTH };

/* Spatial axes, at least two (a single one is preceded by an axis of one cell), and what a thread needs to find its way;
 * passed by value. Coordinates are 64-bit, indices of cells and windows fit 32 bits. */
struct tl_pool_shape {
    int rank;
    int64_t channels, plane, windows, kernel;
    int64_t n[8], k[8], s[8], p[8], o[8], step[8], out_step[8];
    tl_fastdiv by_n[8], by_o[8], by_s[8];
    float beta;
};

static inline tl_pool_shape tl_pool_view(int64_t channels, const tl_dims *spatial, const tl_dims *kernel,
                                         const tl_dims *stride, const tl_dims *padding, float beta)
{
    tl_pool_shape v = {};
    const int more = spatial->rank == 1;
    v.rank = spatial->rank + more;
    v.channels = channels;
    v.plane = v.windows = v.kernel = 1;
    v.beta = beta;
    for (int i = v.rank - 1; i >= 0; i--) {
        v.n[i] = i < more ? 1 : spatial->d[i - more];
        v.k[i] = i < more ? 1 : kernel->d[i - more];
        v.s[i] = i < more ? 1 : stride->d[i - more];
        v.p[i] = i < more ? 0 : padding->d[i - more];
        v.o[i] = (v.n[i] + 2 * v.p[i] - v.k[i]) / v.s[i] + 1;
        v.step[i] = v.plane;
        v.out_step[i] = v.windows;
        v.plane *= v.n[i];
        v.windows *= v.o[i];
        v.kernel *= v.k[i];
        v.by_n[i] = tl_fastdiv((uint64_t)v.n[i]);
        v.by_o[i] = tl_fastdiv((uint64_t)v.o[i]);
        v.by_s[i] = tl_fastdiv((uint64_t)v.s[i]);
    }
    return v;
}

/* Parameters of the operations, and their geometry. */
#define ND \
    int64_t channels, const tl_dims *spatial, const tl_dims *kernel, const tl_dims *stride, const tl_dims *padding
#define VIEW(beta) tl_pool_view(channels, spatial, kernel, stride, padding, beta)

/* ---- one window, read from wherever its cells lie --------------------------------------------------------------- */

/* Visits the places of a box, low to high on each axis, in row-major order; `step` apart on all axes but the last. R is the rank where
 * it is 2 or 3, else 0. */
template <int R, class Index, class Visit>
static __device__ __forceinline__ void tl_pool_walk(int rank, const Index *low, const Index *high, const int64_t *step,
                                                    int64_t base, Visit visit)
{
    const int last = (R ? R : rank) - 1;
    Index c[R ? R : 8];
    TL_UNROLL_FOR (int i = 0; i < (R ? R : 8); i++)
        if (i < last) c[i] = low[i], base += low[i] * step[i];
    for (bool more = true; more;) {
        for (Index j = low[last]; j < high[last]; j++)
            visit(base + j);
        more = false;
        TL_UNROLL_FOR (int i = (R ? R : 8) - 2; i >= 0; i--)
            if (!more && i < last) {
                base += step[i];
                more = ++c[i] < high[i];
                if (!more) {
                    base -= (int64_t)(high[i] - low[i]) * step[i];
                    c[i] = low[i];
                }
            }
    }
}

/* The cells of window `at` (coordinates) in row-major order: visit(value, cell), where cell is the offset in the plane.
 * Returns their number, 0 for a window of padding alone. */
template <int R, class Visit>
static __device__ __forceinline__ int64_t tl_pool_cells(const tl_pool_shape &v, const uint32_t *at, const float *x,
                                                        Visit visit)
{
    const int rank = R ? R : v.rank;
    int64_t low[R ? R : 8], high[R ? R : 8], cells = 1;
    TL_UNROLL_FOR (int i = 0; i < (R ? R : 8); i++)
        if (i < rank) {
            const int64_t start = (int64_t)at[i] * v.s[i] - v.p[i];
            low[i] = max(start, (int64_t)0);
            high[i] = min(start + v.k[i], v.n[i]);
            cells *= max(high[i] - low[i], (int64_t)0);
        }
    if (cells > 0) tl_pool_walk<R>(rank, low, high, v.step, 0, [&](int64_t cell) { visit(x[cell], (uint32_t)cell); });
    return cells;
}

/* The extreme p of a window and the total of its weights; visit_cells(visit) is tl_pool_cells, or another, of its cells. */
template <class Shape, class Cells>
static __device__ __forceinline__ float tl_pool_weigh(const Shape &v, Cells visit_cells, float *extreme)
{
    const bool up = v.beta > 0.0f;
    float p = up ? -TL_INF : TL_INF, sum = 0.0f;
    const auto cells = visit_cells([&](float value, uint32_t) { p = up ? tl_max(p, value) : tl_min(p, value); });
    const float padded = tl_pool_padded(v.kernel, cells);
    if (padded > 0.0f) p = up ? tl_max(p, 0.0f) : tl_min(p, 0.0f);
    visit_cells([&](float value, uint32_t) { sum += tl_pool_weight(value, p, v.beta); });
    *extreme = p;
    return tl_pool_total(sum, padded, p, v.beta);
}

/* Coordinates of window `index` of the channel returned. */
template <int R>
static __device__ __forceinline__ uint32_t tl_pool_window(const tl_pool_shape &v, uint32_t index, uint32_t *at)
{
    const int rank = R ? R : v.rank;
    TL_UNROLL_FOR (int i = (R ? R : 8) - 1; i >= 0; i--)
        if (i < rank) index = v.by_o[i].divmod(index, &at[i]);
    return index;
}
