/* Folds over any set of axes on CUDA (formula/fold.h), for the operations of reduce_axes.cu; defined in reduce_folds.cu and
 * reduce_fold_rows.cu. */
#pragma once

#include "cuda/runtime/launch.cuh"
#include "formula/fold.h"

/* A fold of x. `centre` are the values of an earlier fold of the same geometry, `centre_out` the results of one; both may be
 * missing. Norms of powers are left out, and their largest elements, where `left` is 0. */
struct tl_fold_plan {
    const char *name;
    tl_fold_kind kind;
    tl_fold_axes f;
    tl_fold_rule rule;
    const float *x;
    const double *centre;
    const float *centre_out;
    const double *left = nullptr;

    int64_t results() const { return f.outer * f.inner; }
};

/* The numbers that a value is made of: a product's power of two and zeros, the sum beside deviations. */
constexpr __host__ __device__ int tl_fold_planes(tl_fold_kind kind)
{
    return kind == TL_FOLD_PRODUCT ? TL_FOLD_PLANES : kind == TL_FOLD_DEVIATION ? 2 : 1;
}

/* A fold whose values go to `values`, tl_fold_planes of as many as there are results, or what it ends as to out. */
int32_t tl_cuda_fold(tl_context *ctx, const tl_fold_plan &p, double *values, float *out);
/* A fold of the kind `kind` into out, whose centre is the fold p. */
int32_t tl_cuda_fold_twice(tl_context *ctx, tl_fold_plan p, tl_fold_kind kind, float *out);
