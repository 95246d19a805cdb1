/* Which SIMD variant of the CPU kernels runs: the best this processor has, TORCHLEAN_CPU_VARIANT, or what a test
 * asks for. All give the same bits. */
#include "dispatch.h"

#include <stdlib.h>
#include <string.h>

#include "errors.h"

const struct tl_cpu_kernels *tl_cpu;

typedef struct variant {
    const char *name;
    const struct tl_cpu_kernels *kernels;
    int (*supported)(void);
} variant;

#ifdef TL_HAS_base
static int always(void) { return 1; }
#endif

#if defined(TL_HAS_avx2) || defined(TL_HAS_avx512)
static int has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
}
#endif

#ifdef TL_HAS_avx512
static int has_avx512(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}
#endif

/* Those that the library was built with (VARIANTS in native/Makefile), best first. */
static const variant variants[] = {
#ifdef TL_HAS_avx512
    {"avx512", &tl_cpu_kernels_avx512, has_avx512},
#endif
#ifdef TL_HAS_avx2
    {"avx2", &tl_cpu_kernels_avx2, has_avx2},
#endif
#ifdef TL_HAS_base
    {"base", &tl_cpu_kernels_base, always},
#endif
};
enum { VARIANTS = sizeof variants / sizeof *variants };

static const variant *find(const char *name)
{
    for (int32_t i = 0; i < VARIANTS; i++)
        if (variants[i].supported() && (!name || strcmp(name, variants[i].name) == 0)) return &variants[i];
    return NULL;
}

const struct tl_cpu_kernels *tl_variant_find(const char *op, const char *name)
{
    const variant *found = find(name);
    if (found) return found->kernels;
    tl_fail(TORCHLEAN_UNAVAILABLE, "%s: got \"%.40s\", expected one of %s that this processor has", op, name,
            tl_variant_list());
    return NULL;
}

static const char *asked_for(void)
{
    const char *name = getenv("TORCHLEAN_CPU_VARIANT");
    return name && *name ? name : NULL;
}

__attribute__((constructor)) static void choose(void)
{
#if defined(TL_HAS_avx2) || defined(TL_HAS_avx512)
    __builtin_cpu_init();
#endif
    const variant *chosen = find(asked_for());
    if (!chosen) chosen = find(NULL);
    tl_cpu = (chosen ? chosen : &variants[VARIANTS - 1])->kernels;
}

int32_t tl_variant_environment(void)
{
    return tl_variant_find("TORCHLEAN_CPU_VARIANT", asked_for()) ? TORCHLEAN_OK : TORCHLEAN_UNAVAILABLE;
}

const char *tl_variant_list(void) { return TL_CPU_VARIANTS; }

const char *tl_variant_name(void)
{
    const struct tl_cpu_kernels *kernels = __atomic_load_n(&tl_cpu, __ATOMIC_RELAXED);
    const variant *v = variants;
    while (v->kernels != kernels)
        v++;
    return v->name;
}
