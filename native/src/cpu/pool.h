/* What the kernels of pooling share on the CPU: the shape, a call, and the kernels whose lanes are channels. */
#pragma once

#include "core/kernel.h"
#include "core/threads.h"
#include "formula/count.h"
#include "formula/pool.h"

/* The spatial axes; a single one is preceded by an axis of one cell, so there is always a leading axis. `step` is the
 * distance of neighbours on an axis. */
typedef struct pool_shape {
    int32_t lead; /* leading axes; axis `lead` is the last */
    int64_t channels, plane, windows, kernel;
    int64_t n[9], k[9], s[9], p[9], o[9], step[9];
} pool_shape;

/* The next coordinates in row-major order between low and high; 0 after the last. */
static inline int next(int64_t *c, const int64_t *low, const int64_t *high, int32_t axes)
{
    for (int32_t i = axes - 1; i >= 0; i--) {
        if (++c[i] < high[i]) return 1;
        c[i] = low[i];
    }
    return 0;
}

static inline int64_t offset(const pool_shape *v, const int64_t *c)
{
    int64_t sum = 0;
    for (int32_t i = 0; i < v->lead; i++)
        sum += c[i] * v->step[i];
    return sum;
}

enum pool_kind { POOL_MAX, POOL_MEAN, POOL_SMOOTH };

typedef struct pool_call {
    pool_shape v;
    enum pool_kind kind;
    float beta;
    const float *x, *g;
    float *out;
    int64_t blocks, units, group; /* blocks of a row of outputs; units in all and per task */
    int64_t span, spans;       /* rows of the first axis (cells of a single axis) a gradient's task owns; per channel */
    int64_t first[9], past[9]; /* the windows that meet a cell, on every axis */
    int32_t met;               /* whether there are such */
} pool_call;

#define tl_pool_lanes_serve TL_V(tl_pool_lanes_serve)
#define tl_pool_rows_serve TL_V(tl_pool_rows_serve)
#define tl_pool_lanes TL_V(tl_pool_lanes)
#define tl_pool_lanes_bwd TL_V(tl_pool_lanes_bwd)

/* Whether rows are so short that lanes are channels; the operations, of maxima and means. 0, or the status of
 * tl_pool_alloc. */
int tl_pool_lanes_serve(const pool_call *f, int gradient);
/* Whether lanes are outputs along the first axis, of which `whole` have whole windows: rows are as short, and channels would leave
 * half of the lanes empty. */
int tl_pool_rows_serve(const pool_call *f, int64_t whole);
int32_t tl_pool_lanes(tl_context *ctx, const pool_call *f);
int32_t tl_pool_lanes_bwd(tl_context *ctx, const pool_call *f);
