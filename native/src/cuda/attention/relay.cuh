/* Attention on tensor cores where rows are few (attention/relay_tiles.cuh). */
#pragma once

#include "cuda/attention/backward.cuh"
#include "cuda/attention/value_scan.cuh"

namespace attention {

/* Whether rows are so few that the kernels below are faster than those of attention/mma_tiles.cuh with one team, whose bits
 * they have. For problems that neither warp group products nor four teams serve. */
bool relay_serves(tl_context *ctx, const Problem &p);
/* Unless it is `scanned`, up to SCAN_ROWS rows, by one of its blocks. */
int32_t forward_relay(tl_context *ctx, const Problem &p, float *out, bool scanned, const ValueScanArgs &scan);
/* Of all three gradients. */
int32_t backward_relay(tl_context *ctx, const BackwardArgs &a);

} /* namespace attention */
