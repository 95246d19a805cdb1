/* Steps of recurrent cells on CUDA: a thread owns one unit of one row, and neighbours own neighbouring units. */
#include <algorithm>
#include <initializer_list>

#include "cuda/device/division.cuh"
#include "cuda/device/sum_tree.cuh"
#include "cuda/runtime/launch.cuh"
#include "formula/cell.h"
#include "generated/scan.h"

namespace {

constexpr int THREADS = 256;

struct cell_call {
    uint32_t n; /* units of all rows */
    tl_fastdiv units;
    const float *in[5];
    float *out[3];
};

/* Unit j of a row lies at `at` in arrays of units, and at `gate` in arrays of GATES rows of units for each. */
template <int GATES> struct cell_place {
    uint32_t j;
    int64_t at, gate;
    __device__ __forceinline__ cell_place(const cell_call &f, uint32_t i) : at(i)
    {
        const uint32_t row = f.units.divmod(i, &j);
        gate = (int64_t)row * GATES * f.units.divisor + j;
    }
};

__device__ __forceinline__ float *from(float *p, int64_t at) { return p ? p + at : nullptr; }

template <int GATES, bool BACKWARD> __global__ void __launch_bounds__(THREADS) cell_kernel(const cell_call f)
{
    tl_wait_for_earlier();
    const uint32_t i = blockIdx.x * THREADS + threadIdx.x;
    if (i >= f.n) return;
    const cell_place<GATES> p(f, i);
    const int64_t n = f.units.divisor;
    const float *const first = f.in[0] + p.gate;
    if constexpr (GATES == 4 && !BACKWARD)
        tl_lstm_unit(first, f.in[1] + p.gate, f.in[2][p.at], n, f.out[0] + p.gate, f.out[1] + p.at, f.out[2] + p.at);
    else if constexpr (GATES == 4)
        tl_lstm_unit_bwd(first, f.in[1][p.at], f.in[2][p.at], f.in[3][p.at], f.in[4][p.at], n, from(f.out[0], p.gate),
                         from(f.out[1], p.gate), from(f.out[2], p.at));
    else if constexpr (!BACKWARD)
        tl_gru_unit(first, f.in[1] + p.gate, f.in[2] ? f.in[2] + p.j : nullptr, f.in[3][p.at], n, f.out[0] + p.gate,
                    f.out[1] + p.at, f.out[2] + p.at);
    else
        tl_gru_unit_bwd(first, f.in[1][p.at], f.in[2][p.at], f.in[3][p.at], n, from(f.out[0], p.gate),
                        from(f.out[1], p.gate), from(f.out[2], p.at));
}

template <int GATES, bool BACKWARD>
int32_t run(tl_context *ctx, const char *name, int64_t rows, int64_t units, std::initializer_list<const float *> in,
            std::initializer_list<float *> out)
{
    cell_call f = {};
    std::copy(in.begin(), in.end(), f.in);
    std::copy(out.begin(), out.end(), f.out);
    if (rows * units == 0) return TORCHLEAN_OK;
    f.n = (uint32_t)(rows * units), f.units = tl_fastdiv((uint64_t)units);
    return tl_launch_ahead(ctx, name, cell_kernel<GATES, BACKWARD>, tl_grid(f.n, THREADS), THREADS, 0, f);
}

} // namespace

int32_t tl_cuda_lstm_cell(tl_context *ctx, const float *x, const float *a, const float *c, int64_t rows, int64_t units,
                          float *gates, float *cell, float *hidden)
{
    return run<4, false>(ctx, "lstm_cell", rows, units, {x, a, c}, {gates, cell, hidden});
}

int32_t tl_cuda_lstm_cell_bwd(tl_context *ctx, const float *gates, const float *c, const float *cell,
                              const float *g_cell, const float *g_hidden, int64_t rows, int64_t units, float *gx,
                              float *ga, float *gc)
{
    return run<4, true>(ctx, "lstm_cell_bwd", rows, units, {gates, c, cell, g_cell, g_hidden}, {gx, ga, gc});
}

int32_t tl_cuda_gru_cell(tl_context *ctx, const float *x, const float *a, const float *bias, const float *h,
                         int64_t rows, int64_t units, float *gates, float *inner, float *hidden)
{
    return run<3, false>(ctx, "gru_cell", rows, units, {x, a, bias, h}, {gates, inner, hidden});
}

int32_t tl_cuda_gru_cell_bwd(tl_context *ctx, const float *gates, const float *inner, const float *h,
                             const float *g_hidden, int64_t rows, int64_t units, float *gx, float *ga, float *gbias,
                             float *gh)
{
    tl_scratch<float> scratch(ctx);
    if (gbias && !ga) TL_TRY(scratch.allocate(3 * rows * units));
    float *const sums = ga ? ga : (float *)scratch;
    TL_TRY((run<3, true>(ctx, "gru_cell_bwd", rows, units, {gates, inner, h, g_hidden}, {gx, sums, gh})));
    return gbias ? tl_cuda_column_sums(ctx, sums, 1, rows, 3 * units, 0, gbias) : TORCHLEAN_OK;
}
