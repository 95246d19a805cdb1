/* Optimiser steps and the global norm on the CPU, over lists of tensors.
 *
 * The tensors of a list, end to end, are one row of elements; task k owns the elements k·TL_SPAN .. of it, whichever
 * tensors they lie in, so that a hundred small tensors are a few tasks and a large one is many. An output may be the
 * input of its index, because each element is read before it is written. */
#include "core/threads.h"
#include "cpu/lists.h"
#include "formula/integer.h"
#include "formula/optim.h"
#include "formula/sum_tree.h"
#include "generated/optim.h"

/* Nine operands of 64 KiB stay within a core's L2 cache and pay for handing the task to a thread. */
enum { TL_SPAN = 16384, MAX_INPUTS = 5, MAX_OUTPUTS = 4 };

typedef struct lists {
    const float *const *in[MAX_INPUTS];
    float *const *out[MAX_OUTPUTS];
    const int64_t *lengths;
    int64_t count, *start; /* start[i]: the elements before tensor i; start[count]: all */
} lists;

/* ---- steps ------------------------------------------------------------------------------------------------------- */

typedef struct tl_step {
    lists lists;
    union {
        tl_sgd sgd;
        tl_momentum momentum;
        tl_adam adam;
        tl_rmsprop rmsprop;
        tl_lion lion;
        float factor;
    } rule;
} tl_step;

static int32_t run(tl_context *ctx, tl_task_fn span, tl_step step)
{
    const int32_t status = tl_find_starts(ctx, step.lists.lengths, step.lists.count, 1, &step.lists.start);
    if (status) return status;
    tl_parallel((step.lists.start[step.lists.count] + TL_SPAN - 1) / TL_SPAN, span, &step);
    tl_pool_free(ctx, step.lists.start);
    return TORCHLEAN_OK;
}

/* Defines name(arg, task, worker): `statement` on element j of every tensor that the task's span meets. It reads the inputs x and writes
 * the outputs y of that element. The loop is over independent elements, which gcc vectorises. */
#define TL_STEP(name, statement)                                                                                 \
    static void name(void *arg, int64_t task, TL_UNUSED int32_t worker)                                          \
    {                                                                                                            \
        const tl_step s = *(const tl_step *)arg;                                                                 \
        const lists l = s.lists;                                                                                 \
        const int64_t end = (task + 1) * TL_SPAN;                                                                \
        for (int64_t i = tl_find_tensor(l.start, l.count, task * TL_SPAN); i < l.count && l.start[i] < end; i++) { \
            const int64_t first = task * TL_SPAN > l.start[i] ? task * TL_SPAN - l.start[i] : 0;                 \
            const int64_t last = end < l.start[i + 1] ? end - l.start[i] : l.lengths[i];                         \
            const float *x[MAX_INPUTS];                                                                          \
            float *y[MAX_OUTPUTS];                                                                               \
            for (int k = 0; k < MAX_INPUTS; k++)                                                                 \
                x[k] = l.in[k] ? l.in[k][i] : NULL;                                                              \
            for (int k = 0; k < MAX_OUTPUTS; k++)                                                                \
                y[k] = l.out[k] ? l.out[k][i] : NULL;                                                            \
            _Pragma("GCC ivdep") for (int64_t j = first; j < last; j++) statement;                               \
        }                                                                                                        \
    }
#define X(k) x[k][j]
#define Y(k) (y[k] + j)

TL_STEP(sgd_span, tl_sgd_element(s.rule.sgd, X(0), X(1), Y(0)))
TL_STEP(momentum_span, tl_momentum_element(s.rule.momentum, X(0), X(1), X(2), Y(0), Y(1)))
TL_STEP(adam_span, tl_adam_element(s.rule.adam, X(0), X(1), X(2), X(3), Y(0), Y(1), Y(2)))
TL_STEP(rmsprop_span, tl_rmsprop_element(s.rule.rmsprop, X(0), X(1), X(2), Y(0), Y(1)))
TL_STEP(rmsprop_momentum_span, tl_rmsprop_momentum_element(s.rule.rmsprop, X(0), X(1), X(2), X(3), Y(0), Y(1), Y(2)))
TL_STEP(rmsprop_centered_span,
        tl_rmsprop_centered_element(s.rule.rmsprop, X(0), X(1), X(2), X(3), X(4), Y(0), Y(1), Y(2), Y(3)))
TL_STEP(lion_span, tl_lion_element(s.rule.lion, X(0), X(1), X(2), Y(0), Y(1)))
TL_STEP(clip_span, *Y(0) = s.rule.factor * X(0))
#undef X
#undef Y

int32_t tl_cpu_sgd_step(tl_context *ctx, const float *const *ps, const float *const *gs, int64_t count,
                        const int64_t *lengths, float lr, float weight_decay, float *const *ps_out)
{
    return run(ctx, sgd_span, (tl_step){{{ps, gs}, {ps_out}, lengths, count, NULL}, {.sgd = {lr, weight_decay}}});
}

int32_t tl_cpu_momentum_step(tl_context *ctx, const float *const *ps, const float *const *gs, const float *const *vs,
                             int64_t count, const int64_t *lengths, float lr, float momentum, float dampening,
                             float weight_decay, int64_t nesterov, float *const *ps_out, float *const *vs_out)
{
    const tl_momentum s = tl_momentum_of(lr, momentum, dampening, weight_decay, nesterov);
    return run(ctx, momentum_span, (tl_step){{{ps, gs, vs}, {ps_out, vs_out}, lengths, count, NULL}, {.momentum = s}});
}

int32_t tl_cpu_adam_step(tl_context *ctx, const float *const *ps, const float *const *gs, const float *const *ms,
                         const float *const *vs, int64_t count, const int64_t *lengths, uint64_t step, float lr,
                         float beta1, float beta2, float eps, float weight_decay, float *const *ps_out,
                         float *const *ms_out, float *const *vs_out)
{
    const tl_adam s = tl_adam_of(step, lr, beta1, beta2, eps, weight_decay, 0.0f);
    return run(ctx, adam_span,
               (tl_step){{{ps, gs, ms, vs}, {ps_out, ms_out, vs_out}, lengths, count, NULL}, {.adam = s}});
}

int32_t tl_cpu_adamw_step(tl_context *ctx, const float *const *ps, const float *const *gs, const float *const *ms,
                          const float *const *vs, int64_t count, const int64_t *lengths, uint64_t step, float lr,
                          float beta1, float beta2, float eps, float weight_decay, float *const *ps_out,
                          float *const *ms_out, float *const *vs_out)
{
    const tl_adam s = tl_adam_of(step, lr, beta1, beta2, eps, 0.0f, weight_decay);
    return run(ctx, adam_span,
               (tl_step){{{ps, gs, ms, vs}, {ps_out, ms_out, vs_out}, lengths, count, NULL}, {.adam = s}});
}

int32_t tl_cpu_rmsprop_step(tl_context *ctx, const float *const *ps, const float *const *gs, const float *const *vs,
                            int64_t count, const int64_t *lengths, float lr, float alpha, float eps, float weight_decay,
                            float *const *ps_out, float *const *vs_out)
{
    const tl_rmsprop s = tl_rmsprop_of(lr, alpha, eps, weight_decay, 0.0f);
    return run(ctx, rmsprop_span, (tl_step){{{ps, gs, vs}, {ps_out, vs_out}, lengths, count, NULL}, {.rmsprop = s}});
}

int32_t tl_cpu_rmsprop_momentum_step(tl_context *ctx, const float *const *ps, const float *const *gs,
                                     const float *const *vs, const float *const *bs, int64_t count,
                                     const int64_t *lengths, float lr, float alpha, float eps, float weight_decay,
                                     float momentum, float *const *ps_out, float *const *vs_out, float *const *bs_out)
{
    const tl_rmsprop s = tl_rmsprop_of(lr, alpha, eps, weight_decay, momentum);
    return run(ctx, rmsprop_momentum_span,
               (tl_step){{{ps, gs, vs, bs}, {ps_out, vs_out, bs_out}, lengths, count, NULL}, {.rmsprop = s}});
}

int32_t tl_cpu_rmsprop_centered_step(tl_context *ctx, const float *const *ps, const float *const *gs,
                                     const float *const *vs, const float *const *ms, const float *const *bs,
                                     int64_t count, const int64_t *lengths, float lr, float alpha, float eps,
                                     float weight_decay, float momentum, float *const *ps_out, float *const *vs_out,
                                     float *const *ms_out, float *const *bs_out)
{
    const tl_rmsprop s = tl_rmsprop_of(lr, alpha, eps, weight_decay, momentum);
    const lists l = {{ps, gs, vs, ms, bs}, {ps_out, vs_out, ms_out, bs_out}, lengths, count, NULL};
    return run(ctx, rmsprop_centered_span, (tl_step){l, {.rmsprop = s}});
}

int32_t tl_cpu_lion_step(tl_context *ctx, const float *const *ps, const float *const *gs, const float *const *ms,
                         int64_t count, const int64_t *lengths, float lr, float beta1, float beta2, float weight_decay,
                         float *const *ps_out, float *const *ms_out)
{
    const tl_lion s = tl_lion_of(lr, beta1, beta2, weight_decay);
    return run(ctx, lion_span, (tl_step){{{ps, gs, ms}, {ps_out, ms_out}, lengths, count, NULL}, {.lion = s}});
}

int32_t tl_cpu_clip_scale(tl_context *ctx, const float *const *gs, const float *norm, int64_t count,
                          const int64_t *lengths, float max_norm, float eps, float *const *gs_out)
{
    const float factor = tl_clip_factor(norm[0], max_norm, eps);
    int64_t left = factor == 1.0f ? 0 : count; /* in place a factor of 1 has nothing to do */
    for (int64_t i = 0; i < count; i++)
        left += gs[i] != gs_out[i];
    return left == 0 ? TORCHLEAN_OK
                     : run(ctx, clip_span, (tl_step){{{gs}, {gs_out}, lengths, count, NULL}, {.factor = factor}});
}

/* ---- the global norm: the row tree of formula/sum_tree.h in double ----------------------------------------------- */

/* Folds 1024 lanes in halves; t is used up. Lanes past a row's end hold +0. */
static double fold_lanes(double *t)
{
    for (int64_t s = TL_SUM_LANES / 2; s > 0; s /= 2)
        for (int64_t k = 0; k < s; k++)
            t[k] += t[k + s];
    return t[0];
}

/* Defines name(x, n): the sum of a leaf's values, of `value` for k < n <= TL_SUM_LEAF. */
#define TL_LEAF(name, type, value)                                                                                    \
    static double name(const type *x, int64_t n)                                                                      \
    {                                                                                                                 \
        double t[TL_SUM_LANES] = {0};                                                                                 \
        for (int64_t first = 0; first < n; first += TL_SUM_LANES)                                                     \
            for (int64_t k = first; k < tl_imin(first + TL_SUM_LANES, n); k++)                                        \
                t[k - first] += value;                                                                                \
        return fold_lanes(t);                                                                                         \
    }
TL_LEAF(leaf_of_squares, float, tl_square(x[k]))
TL_LEAF(leaf_of_sums, double, x[k])

/* The tree over a row of sums, in their place: x is used up. */
static double sum_row(double *x, int64_t n)
{
    if (n == 0) return 0.0;
    while (n > 1) {
        const int64_t leaves = tl_ceil_div(n, TL_SUM_LEAF);
        for (int64_t k = 0; k < leaves; k++) {
            const int64_t left = n - k * TL_SUM_LEAF;
            x[k] = leaf_of_sums(x + k * TL_SUM_LEAF, left < TL_SUM_LEAF ? left : TL_SUM_LEAF);
        }
        n = leaves;
    }
    return x[0];
}

typedef struct tl_squares {
    const float *const *gs;
    const int64_t *lengths, *start;
    int64_t count;
    double *sums; /* of every leaf, tensor after tensor */
} tl_squares;

/* Leaves of a task: 256 KiB of large tensors. */
enum { TL_LEAVES = 4 };

static void square_leaves(void *arg, int64_t task, TL_UNUSED int32_t worker)
{
    const tl_squares s = *(const tl_squares *)arg;
    const int64_t last = (task + 1) * TL_LEAVES < s.start[s.count] ? (task + 1) * TL_LEAVES : s.start[s.count];
    int64_t i = tl_find_tensor(s.start, s.count, task * TL_LEAVES);
    for (int64_t leaf = task * TL_LEAVES; leaf < last; leaf++) {
        while (leaf >= s.start[i + 1])
            i++;
        const int64_t first = (leaf - s.start[i]) * TL_SUM_LEAF, left = s.lengths[i] - first;
        s.sums[leaf] = leaf_of_squares(s.gs[i] + first, left < TL_SUM_LEAF ? left : TL_SUM_LEAF);
    }
}

int32_t tl_cpu_global_norm(tl_context *ctx, const float *const *gs, int64_t count, const int64_t *lengths, float *out)
{
    int64_t *start;
    void *sums;
    int32_t status = tl_find_starts(ctx, lengths, count, TL_SUM_LEAF, &start);
    if (status) return status;
    status = tl_pool_alloc(ctx, (size_t)start[count] * sizeof(double), &sums);
    if (!status) {
        tl_squares s = {gs, lengths, start, count, sums};
        tl_parallel((start[count] + TL_LEAVES - 1) / TL_LEAVES, square_leaves, &s);
        for (int64_t i = 0; i < count; i++)
            s.sums[i] = sum_row(s.sums + start[i], start[i + 1] - start[i]);
        out[0] = (float)sqrt(sum_row(s.sums, count));
    }
    tl_pool_free(ctx, status ? NULL : sums);
    tl_pool_free(ctx, start);
    return status;
}
