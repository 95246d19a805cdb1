/* The passes of attention/grouped.cu for rows of more than 128 elements (attention/grouped_stream.cu), with the bits of its kernels. */
#pragma once

#include "cuda/attention/grouped_tiles.cuh"

namespace attention {
namespace grouped {

int32_t stream_forward(tl_context *ctx, Args &a);
/* Makes a.dot, too. In tiles of 32 keys up to 256 elements, else of 64: they decide the order of sums. */
int32_t stream_query_pass(tl_context *ctx, Args &a);
int32_t stream_key_pass(tl_context *ctx, Args &a);

} /* namespace grouped */
} /* namespace attention */
