/* How many chunks of a result are the blocks of one launch. */
#pragma once

#include <stdint.h>

/* As far as a grid's y reaches. */
constexpr int64_t TL_CHUNKS_MOST = 65535;
