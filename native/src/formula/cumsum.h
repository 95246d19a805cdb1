/* The order of cumulative sums, shared by both back ends; a function of the length alone.
 *
 * Elements are doubles in chunks of TL_CUMSUM_CHUNK. A chunk's total is added from +0 on, element by element. What stands before a
 * chunk is the cumulative sum of the chunks' totals before it, by the same rule: chunks of totals, and so on. Within a chunk
 * the elements are added one after the other to what stands before it; each sum is rounded to float32 once. */
#pragma once

enum { TL_CUMSUM_CHUNK = 32 };
