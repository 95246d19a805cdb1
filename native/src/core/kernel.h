/* What a kernel of either back end may use of the core. A kernel gets a locked, healthy context and may take scratch, fail
 * with a message, and, on the CPU, spread over threads (threads.h). It returns a status: TORCHLEAN_OK or what tl_fail returned.
 *
 * Its arguments are checked: lengths fit, lists are valid, and outputs do not alias inputs except in elementwise operations,
 * where an output may be an input. A NULL output is one that the caller does not want. A kernel is not called when every wanted
 * output is empty. A list is an array of `count` data pointers; element i has lengths[i] elements (both may be 0), and an
 * output's element may be an input's of the same index. */
#pragma once

#include "api.h"
#include "backend.h"
#include "dims.h"
#include "errors.h"
#include "scratch.h"

/* Per-variant names: every file in cpu/ is compiled once per SIMD variant with -DTL_VARIANT=_base, _avx2 or _avx512. */
#define TL_V2(name, variant) name##variant
#define TL_V1(name, variant) TL_V2(name, variant)
#ifdef TL_VARIANT
#define TL_V(name) TL_V1(name, TL_VARIANT)
#endif
