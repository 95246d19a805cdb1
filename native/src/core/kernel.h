/* What a kernel of either back end may use of the core. A kernel gets a locked, healthy context and arguments that are
 * already checked; it may take scratch, fail with a message, and, on the CPU, spread over threads (threads.h). */
#ifndef TL_KERNEL_H
#define TL_KERNEL_H

#include "api.h"
#include "dims.h"
#include "errors.h"
#include "scratch.h"

/* Per-variant names: every file in cpu/ is compiled once per SIMD variant with -DTL_VARIANT=_base, _avx2 or _avx512. */
#define TL_V2(name, variant) name##variant
#define TL_V1(name, variant) TL_V2(name, variant)
#ifdef TL_VARIANT
#define TL_V(name) TL_V1(name, TL_VARIANT)
#endif

#endif
