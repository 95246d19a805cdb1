/* The exported functions that concern the library as a whole: version and build, the SIMD variant, the number of threads. */
#include <stdio.h>

#include "torchlean_cuda_version.h"
#include "backend.h"
#include "context.h"
#include "dispatch.h"
#include "errors.h"
#include "threads.h"

TL_API uint32_t torchlean_cuda_version(void) { return TORCHLEAN_CUDA_VERSION; }

static char build_info[512];

__attribute__((constructor)) static void write_build_info(void)
{
    const char *cuda = tl_cuda_build();
    snprintf(build_info, sizeof build_info, "version=%d.%d.%d; backend=%s; compiler=%s%s%s; cpu_variants=%s",
             TORCHLEAN_CUDA_VERSION_MAJOR, TORCHLEAN_CUDA_VERSION_MINOR, TORCHLEAN_CUDA_VERSION_PATCH,
             *cuda ? "cpu+cuda" : "cpu",
#if defined(__clang__)
             "clang " __clang_version__,
#else
             "gcc " __VERSION__,
#endif
             *cuda ? "; cuda=" : "", cuda, tl_variant_list());
}

TL_API const char *torchlean_cuda_build_info(void) { return build_info; }
TL_API const char *torchlean_cuda_abi_hash(void) { return TORCHLEAN_CUDA_ABI_HASH; }

/* ---- settings: no call is running while one changes ------------------------------------------------------------------ */

TL_API const char *torchlean_cuda_cpu_variant(void) { return tl_variant_name(); }

TL_API int32_t torchlean_cuda_set_cpu_variant(const char *name)
{
    const struct tl_cpu_kernels *kernels = tl_variant_find("torchlean_cuda_set_cpu_variant: name", name);
    if (!kernels) return TORCHLEAN_UNAVAILABLE;
    const int32_t status = tl_enter_thread(__func__);
    if (status) return status;
    tl_lock_all();
    __atomic_store_n(&tl_cpu, kernels, __ATOMIC_RELAXED);
    tl_unlock_all();
    tl_inside = 0;
    return TORCHLEAN_OK;
}

TL_API uint32_t torchlean_cuda_threads(void) { return (uint32_t)tl_workers(); }

static int32_t set_threads(const char *op, uint32_t threads, tl_run_fn run)
{
    const uint32_t least = run != NULL;
    if (threads < least || threads > TL_MAX_THREADS)
        return tl_fail(TORCHLEAN_ARGUMENT, "%s: threads: got %u, expected %u to %d", op, threads, least,
                       TL_MAX_THREADS);
    const int32_t status = tl_enter_thread(op);
    if (status) return status;
    tl_lock_all();
    tl_threads_set((int32_t)threads, run);
    tl_unlock_all();
    tl_inside = 0;
    return TORCHLEAN_OK;
}

TL_API int32_t torchlean_cuda_set_threads(uint32_t threads)
{
    if (tl_threads_run())
        return tl_fail(TORCHLEAN_ARGUMENT,
                       "%s: threads: got %u while a host's threads do the work, expected their number by set_parallel",
                       __func__, threads);
    return set_threads(__func__, threads, NULL);
}

TL_API int32_t torchlean_cuda_set_parallel(void (*run)(void (*body)(void *), void *data, uint32_t threads,
                                                       uint32_t flags),
                                           uint32_t threads)
{
    if (run && run == tl_threads_run() && threads == (uint32_t)tl_workers()) return TORCHLEAN_OK;
    return set_threads(__func__, threads, run);
}
