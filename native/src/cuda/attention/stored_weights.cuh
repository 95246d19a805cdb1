/* The pass over keys of attention/grouped.cu with weights in memory, where a window leaves few blocks of keys
 * (attention/stored_weights.cu). */
#pragma once

#include "cuda/attention/grouped_tiles.cuh"

namespace attention {
namespace grouped {

constexpr int STORED_TILE = 64; /* of rows */

/* Whether that takes less time for the keys a.open than `blocks` blocks do that go through a.part rows each. */
bool stored_weights_serve(tl_context *ctx, const Args &a, int64_t blocks);
/* The gradients of the keys that are then a.stored, or, of several parts, a.gK and a.gV of each part. */
int32_t stored_weights_backward(tl_context *ctx, Args &a);

} /* namespace grouped */
} /* namespace attention */
