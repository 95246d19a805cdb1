/* Which kernel an entry point runs: that of the call's device, and on the CPU that of the chosen SIMD variant. */
#pragma once

#include "backend.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One function pointer per kernel, family by family (generated/cpu_kernels.h); tl_cpu points to the chosen variant's. */
struct tl_cpu_kernels;
extern const struct tl_cpu_kernels *tl_cpu;
extern const struct tl_cpu_kernels tl_cpu_kernels_base;
#if defined(__x86_64__)
extern const struct tl_cpu_kernels tl_cpu_kernels_avx2, tl_cpu_kernels_avx512;
#endif

/* TL_KERNEL(&call, linalg, bmm)(call.ctx, ...) runs the kernel on the call's device. */
#ifdef TL_WITH_CUDA
#define TL_KERNEL(call, family, op) \
    (tl_context_ordinal((call)->ctx) == TORCHLEAN_CPU ? tl_cpu->family->op : tl_cuda_##op)
#else
#define TL_KERNEL(call, family, op) (tl_cpu->family->op)
#endif

/* "base", "avx2" or "avx512" */
const char *tl_variant_name(void);
/* "base,avx2,avx512": what this build holds */
const char *tl_variant_list(void);
/* The table of a variant that this processor has; NULL picks the best. NULL if there is none, with a message by `op`. */
const struct tl_cpu_kernels *tl_variant_find(const char *op, const char *name);
/* UNAVAILABLE if TORCHLEAN_CPU_VARIANT names none. It is read when the library loads, where nothing can be reported:
 * context_create asks. */
int32_t tl_variant_environment(void);

#ifdef __cplusplus
}
#endif
