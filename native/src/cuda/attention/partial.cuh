/* Gradients of keys and values that several blocks share in: each computes a part, and the parts are added in their order. */
#pragma once

#include "cuda/device/sum_tree.cuh"
#include "cuda/runtime/launch.cuh"

namespace attention {

/* A gradient of `members` times `size` elements, in `parts` per member. NULL, or one part, needs no sum. */
class PartialGradient {
  public:
    PartialGradient(tl_context *ctx, float *gradient, int64_t members, int64_t parts, int64_t size)
        : ctx(ctx), gradient(gradient), members(members), parts(parts), size(size), scratch(ctx)
    {}
    /* Where the parts of each member go, one behind the other. */
    int32_t open(float **to)
    {
        *to = gradient;
        if (!summed()) return TORCHLEAN_OK;
        TL_TRY(scratch.allocate(members * parts * size));
        *to = scratch;
        return TORCHLEAN_OK;
    }
    /* After the parts: their sums. */
    int32_t close()
    {
        if (!summed() || members * size == 0) return TORCHLEAN_OK;
        return tl_cuda_column_sums(ctx, scratch, members, parts, size, 0, gradient);
    }

  private:
    bool summed() const { return gradient && parts > 1; }

    tl_context *ctx;
    float *gradient;
    int64_t members, parts, size;
    tl_scratch<float> scratch;
};

} // namespace attention
