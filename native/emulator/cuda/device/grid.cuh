/* How many chunks of a result are the blocks of one launch, on the emulated device: so few that rows of some hundred elements take
 * several launches, as those of millions do elsewhere. */
#pragma once

#include <stdint.h>

constexpr int64_t TL_CHUNKS_MOST = 2;
