/* Steps of recurrent cells on the CPU: task k owns the units k·CELL_SPAN .. of all rows, end to end. */
#include "core/threads.h"
#include "cpu/sum_tree.h"
#include "formula/cell.h"
#include "formula/integer.h"
#include "generated/scan.h"

enum { CELL_SPAN = 512 };

/* Arrays of gates have `gates` rows of units for each row of the others. */
typedef struct cell_call {
    int64_t rows, units, gates;
    const float *in[5];
    float *out[3];
} cell_call;

static int32_t run(tl_task_fn part, cell_call f)
{
    tl_parallel(tl_ceil_div(f.rows * f.units, CELL_SPAN), part, &f);
    return TORCHLEAN_OK;
}

/* Defines name(arg, task, worker): `body` on element j of a row's units, at `at` of arrays of units and at `gate` of arrays of
 * gates. The loop is over independent elements, which gcc vectorises. */
#define CELL_PART(name, ...)                                                                        \
    static void name(void *arg, int64_t task, TL_UNUSED int32_t worker)                             \
    {                                                                                               \
        const cell_call f = *(const cell_call *)arg;                                                \
        const int64_t n = f.units, all = f.rows * n;                                                \
        const int64_t end = (task + 1) * CELL_SPAN < all ? (task + 1) * CELL_SPAN : all;            \
        for (int64_t first = task * CELL_SPAN; first < end;) {                                      \
            const int64_t row = first / n, j0 = first - row * n, left = end - first;                \
            const int64_t j1 = left < n - j0 ? j0 + left : n;                                       \
            _Pragma("GCC ivdep") for (int64_t j = j0; j < j1; j++)                                  \
            {                                                                                       \
                const int64_t at = row * n + j, gate = row * f.gates * n + j;                       \
                __VA_ARGS__                                                                         \
            }                                                                                       \
            first += j1 - j0;                                                                       \
        }                                                                                           \
    }

CELL_PART(lstm_part,
          tl_lstm_unit(f.in[0] + gate, f.in[1] + gate, f.in[2][at], n, f.out[0] + gate, f.out[1] + at, f.out[2] + at);)
CELL_PART(lstm_part_bwd, tl_lstm_unit_bwd(f.in[0] + gate, f.in[1][at], f.in[2][at], f.in[3][at], f.in[4][at], n,
                                          f.out[0] ? f.out[0] + gate : 0, f.out[1] ? f.out[1] + gate : 0,
                                          f.out[2] ? f.out[2] + at : 0);)
CELL_PART(gru_part, tl_gru_unit(f.in[0] + gate, f.in[1] + gate, f.in[2] ? f.in[2] + j : 0, f.in[3][at], n,
                                f.out[0] + gate, f.out[1] + at, f.out[2] + at);)
CELL_PART(gru_part_bwd,
          tl_gru_unit_bwd(f.in[0] + gate, f.in[1][at], f.in[2][at], f.in[3][at], n, f.out[0] ? f.out[0] + gate : 0,
                          f.out[1] ? f.out[1] + gate : 0, f.out[2] ? f.out[2] + at : 0);)

int32_t tl_cpu_lstm_cell(TL_UNUSED tl_context *ctx, const float *x, const float *a, const float *c, int64_t rows,
                         int64_t units, float *gates, float *cell, float *hidden)
{
    return run(lstm_part, (cell_call){rows, units, 4, {x, a, c}, {gates, cell, hidden}});
}

int32_t tl_cpu_lstm_cell_bwd(TL_UNUSED tl_context *ctx, const float *gates, const float *c, const float *cell,
                             const float *g_cell, const float *g_hidden, int64_t rows, int64_t units, float *gx,
                             float *ga, float *gc)
{
    return run(lstm_part_bwd, (cell_call){rows, units, 4, {gates, c, cell, g_cell, g_hidden}, {gx, ga, gc}});
}

int32_t tl_cpu_gru_cell(TL_UNUSED tl_context *ctx, const float *x, const float *a, const float *bias, const float *h,
                        int64_t rows, int64_t units, float *gates, float *inner, float *hidden)
{
    return run(gru_part, (cell_call){rows, units, 3, {x, a, bias, h}, {gates, inner, hidden}});
}

int32_t tl_cpu_gru_cell_bwd(tl_context *ctx, const float *gates, const float *inner, const float *h,
                            const float *g_hidden, int64_t rows, int64_t units, float *gx, float *ga, float *gbias,
                            float *gh)
{
    void *scratch = NULL;
    if (gbias && !ga) {
        const int32_t status = tl_pool_alloc(ctx, (size_t)(3 * rows * units) * sizeof(float), &scratch);
        if (status) return status;
        ga = scratch;
    }
    int32_t status = run(gru_part_bwd, (cell_call){rows, units, 3, {gates, inner, h, g_hidden}, {gx, ga, gh}});
    if (!status && gbias) status = tl_column_sums(ctx, ga, 1, rows, 3 * units, 0, gbias);
    tl_pool_free(ctx, scratch);
    return status;
}
