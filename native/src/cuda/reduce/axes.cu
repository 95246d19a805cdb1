/* Reductions over any set of axes on CUDA, and their gradients: the folds of reduce/folds.cu, in the order of formula/fold.h.
 *
 * Extremes have no order: along one axis they are those of reduce/trees.cu. A gradient folds again where it needs the values,
 * turns those of each result into coefficients, and spreads them over the elements. */
#include "cuda/device/sum_tree.cuh"
#include "cuda/reduce/folds.cuh"
#include "generated/reduce.h"

namespace {

constexpr int THREADS = 256, GROUPS = 4;
/* Blocks on a multiprocessor: the compiler, which would load one by one to have more, is told so few. */
constexpr int RESIDENT = 4;

/* ---- forward ----------------------------------------------------------------------------------------------------- */

/* Extremes along one axis, or neighbours, are those of reduce/trees.cu. */
int32_t run_extreme(tl_context *ctx, const tl_fold_plan &p, float *out)
{
    const tl_fold_axes &f = p.f;
    const bool least = p.kind == TL_FOLD_MIN;
    if (f.reduced > 1 || p.results() * f.length == 0) return tl_cuda_fold(ctx, p, nullptr, out);
    return f.inner == 1 ? tl_cuda_row_extremes(ctx, p.x, f.outer, f.length, least, out)
                        : tl_cuda_column_extremes(ctx, p.x, f.outer, f.length, f.inner, least, out);
}

tl_fold_plan plan_of(const char *name, tl_fold_kind kind, const float *x, const tl_dims *dims, int64_t axes,
                     double p = 0.0, int64_t root = 0)
{
    tl_fold_plan plan = {name, kind, tl_fold_of(dims->rank, dims->d, axes), {}, x, nullptr, nullptr};
    plan.rule = {plan.f.length, p, (int32_t)root};
    return plan;
}

/* ---- gradients ------------------------------------------------------------------------------------------------- */

/* A thread owns a result; the coefficients take the place of its values. */
__global__ void __launch_bounds__(THREADS)
    coefficients_kernel(tl_fold_kind kind, const float *__restrict__ out, const float *__restrict__ g, int64_t results,
                        int64_t planes, tl_fold_rule rule, double *__restrict__ values)
{
    const int64_t o = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (o >= results) return;
    const tl_folded value = {planes > 0 ? values[o] : 0.0, planes > 1 ? values[results + o] : 0.0,
                             planes > 1 ? values[2 * results + o] : 0.0};
    const tl_folded c = tl_fold_coefficients(kind, out ? out[o] : 0.0f, g[o], value, rule);
    values[o] = c.v, values[results + o] = c.e, values[2 * results + o] = c.zeros;
}

/* A thread owns GROUPS elements, THREADS apart; the result of one follows from its index along the kept axes. */
struct Spread {
    const float *x;
    const double *coefficients;
    float *gx;
    int64_t n, results;
    int32_t kept;
    tl_fastdiv inner, size[TL_FOLD_RANK], stride[TL_FOLD_RANK];
    tl_fold_rule rule;
};

template <tl_fold_kind KIND> __global__ void __launch_bounds__(THREADS, RESIDENT) spread_kernel(Spread a)
{
    const double *__restrict__ c = a.coefficients;
    const int64_t first = (int64_t)blockIdx.x * (GROUPS * THREADS) + threadIdx.x;
    float x[GROUPS];
    tl_folded at[GROUPS];
    TL_UNROLL_FOR (int group = 0; group < GROUPS; group++)
        x[group] = a.x[min(first + group * THREADS, a.n - 1)];
    TL_UNROLL_FOR (int group = 0; group < GROUPS; group++) {
        const uint32_t i = (uint32_t)min(first + group * THREADS, a.n - 1);
        uint32_t result, place, size = a.inner.divisor;
        a.inner.divmod(i, &result);
        for (int32_t k = 0; k < a.kept; k++) {
            a.size[k].divmod(a.stride[k].div(i), &place);
            result += place * size;
            size *= a.size[k].divisor;
        }
        at[group] = {c[result], c[a.results + result], c[2 * a.results + result]};
    }
    TL_UNROLL_FOR (int group = 0; group < GROUPS; group++) {
        const int64_t i = first + group * THREADS;
        if (i < a.n) a.gx[i] = tl_fold_slope(KIND, x[group], at[group], a.rule);
    }
}

auto spread_of(tl_fold_kind kind) -> void (*)(Spread)
{
    return tl_folds::for_kind<void (*)(Spread)>(kind, [](auto k) { return spread_kernel<decltype(k)::value>; });
}

/* gx of the kind `slope`, from the fold p (not run where its values are not read) and the results. */
int32_t run_spread(tl_context *ctx, const tl_fold_plan &p, bool folds, tl_fold_kind slope, const float *out,
                   const float *g, float *gx)
{
    const int64_t results = p.results(), n = results * p.f.length;
    if (n == 0) return TORCHLEAN_OK;
    tl_scratch<double> values(ctx);
    TL_TRY(values.allocate(TL_FOLD_PLANES * results));
    if (folds) TL_TRY(tl_cuda_fold(ctx, p, values, nullptr));
    TL_TRY(tl_launch(ctx, p.name, coefficients_kernel, tl_grid(results, THREADS), THREADS, slope, out, g, results,
                     folds ? tl_fold_planes(p.kind) : 0, p.rule, values));
    Spread a = {p.x, values, gx, n, results, p.f.kept, tl_fastdiv((uint64_t)p.f.inner), {}, {}, p.rule};
    for (int32_t k = 0; k < p.f.kept; k++) {
        a.size[k] = tl_fastdiv((uint64_t)p.f.kept_size[k]);
        a.stride[k] = tl_fastdiv((uint64_t)p.f.kept_stride[k]);
    }
    return tl_launch(ctx, p.name, spread_of(slope), tl_grid(n, GROUPS * THREADS), THREADS, a);
}

tl_fold_kind norm_kind(float p) { return p == 1.0f ? TL_FOLD_ABS : p == 2.0f ? TL_FOLD_SQUARE : TL_FOLD_POWER; }

} // namespace

/* ---- the operations ---------------------------------------------------------------------------------------------- */

int32_t tl_cuda_amax(tl_context *ctx, const float *x, const tl_dims *dims, int64_t axes, float *out)
{
    return run_extreme(ctx, plan_of("amax", TL_FOLD_MAX, x, dims, axes), out);
}

int32_t tl_cuda_amax_bwd(tl_context *ctx, const float *x, const float *out, const float *g, const tl_dims *dims,
                         int64_t axes, float *gx)
{
    tl_fold_plan p = plan_of("amax_bwd", TL_FOLD_EQUAL, x, dims, axes);
    p.centre_out = out;
    return run_spread(ctx, p, true, TL_FOLD_EQUAL, out, g, gx);
}

int32_t tl_cuda_amin(tl_context *ctx, const float *x, const tl_dims *dims, int64_t axes, float *out)
{
    return run_extreme(ctx, plan_of("amin", TL_FOLD_MIN, x, dims, axes), out);
}

int32_t tl_cuda_amin_bwd(tl_context *ctx, const float *x, const float *out, const float *g, const tl_dims *dims,
                         int64_t axes, float *gx)
{
    return tl_cuda_amax_bwd(ctx, x, out, g, dims, axes, gx);
}

int32_t tl_cuda_prod(tl_context *ctx, const float *x, const tl_dims *dims, int64_t axes, float *out)
{
    return tl_cuda_fold(ctx, plan_of("prod", TL_FOLD_PRODUCT, x, dims, axes), nullptr, out);
}

int32_t tl_cuda_prod_bwd(tl_context *ctx, const float *x, const float *g, const tl_dims *dims, int64_t axes, float *gx)
{
    const tl_fold_plan p = plan_of("prod_bwd", TL_FOLD_PRODUCT, x, dims, axes);
    return run_spread(ctx, p, true, TL_FOLD_PRODUCT, nullptr, g, gx);
}

int32_t tl_cuda_var(tl_context *ctx, const float *x, const tl_dims *dims, int64_t axes, float correction, int64_t root,
                    float *out)
{
    return tl_cuda_fold(ctx, plan_of("var", TL_FOLD_DEVIATION, x, dims, axes, (double)correction, root), nullptr, out);
}

int32_t tl_cuda_var_bwd(tl_context *ctx, const float *x, const float *out, const float *g, const tl_dims *dims,
                        int64_t axes, float correction, int64_t root, float *gx)
{
    const tl_fold_plan p = plan_of("var_bwd", TL_FOLD_SUM, x, dims, axes, (double)correction, root);
    return run_spread(ctx, p, true, TL_FOLD_DEVIATION, out, g, gx);
}

int32_t tl_cuda_logsumexp(tl_context *ctx, const float *x, const tl_dims *dims, int64_t axes, float *out)
{
    return tl_cuda_fold_twice(ctx, plan_of("logsumexp", TL_FOLD_MAX, x, dims, axes), TL_FOLD_EXP, out);
}

int32_t tl_cuda_logsumexp_bwd(tl_context *ctx, const float *x, const float *out, const float *g, const tl_dims *dims,
                              int64_t axes, float *gx)
{
    const tl_fold_plan p = plan_of("logsumexp_bwd", TL_FOLD_EXP, x, dims, axes);
    return run_spread(ctx, p, false, TL_FOLD_EXP, out, g, gx);
}

int32_t tl_cuda_vector_norm(tl_context *ctx, const float *x, const tl_dims *dims, int64_t axes, float p, float *out)
{
    tl_fold_plan plan = plan_of("vector_norm", norm_kind(p), x, dims, axes, (double)p);
    if (plan.kind != TL_FOLD_POWER) return tl_cuda_fold(ctx, plan, nullptr, out);
    plan.kind = TL_FOLD_LARGEST;
    return tl_cuda_fold_twice(ctx, plan, TL_FOLD_POWER, out);
}

int32_t tl_cuda_vector_norm_bwd(tl_context *ctx, const float *x, const float *out, const float *g, const tl_dims *dims,
                                int64_t axes, float p, float *gx)
{
    const tl_fold_plan plan = plan_of("vector_norm_bwd", norm_kind(p), x, dims, axes, (double)p);
    return run_spread(ctx, plan, false, plan.kind, out, g, gx);
}
