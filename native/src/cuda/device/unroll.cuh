/* TL_UNROLL_FOR (int k = 0; k < N; k++): a loop that is unrolled in full, so that k is a constant and what it indexes may stay
 * in registers. Where a loop is unrolled in part, or not at all, for speed, `#pragma unroll` says by how much. */
#pragma once

#define TL_UNROLL_FOR(...) _Pragma("unroll") for (__VA_ARGS__)
