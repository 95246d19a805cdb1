/* torch.set_flush_denormal makes PyTorch's own operators on the CPU take subnormal numbers for 0. In a block they keep them, as a
 * GPU does: in the thread that enters it and in the OpenMP threads that work for it. */
#include <ATen/Context.h>

#include <dlfcn.h>

#include <cfloat>

namespace {

bool flushes()
{
    volatile float least = FLT_MIN;
    return least * 0.5f == 0;
}

/* What a thread did before the block: threads that PyTorch made before the setting do not follow it. */
thread_local bool flushed = false;

void keep(void *)
{
    flushed = flushes();
    at::globalContext().setFlushDenormal(false);
}
void restore(void *) { at::globalContext().setFlushDenormal(flushed); }

/* Runs a function in each thread of the team that PyTorch's operators called from this thread use. The runtime is the one that
 * PyTorch brings along, which a second one would not reach; without it the team is this thread. */
void everywhere(void (*function)(void *))
{
    using Parallel = void (*)(void (*)(void *), void *, unsigned, unsigned);
    static const Parallel parallel = [] {
        void *const torch = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
        return torch ? reinterpret_cast<Parallel>(dlsym(torch, "GOMP_parallel")) : nullptr;
    }();
    if (parallel)
        parallel(function, nullptr, 0, 0);
    else
        function(nullptr);
}

} // namespace

/* Subnormal numbers are kept from here on; 1 where the calling thread took them for 0. */
extern "C" __attribute__((visibility("default"))) int tlrt_torch_keep_subnormals(void)
{
    if (!flushes()) return 0;
    everywhere(keep);
    return 1;
}

/* Undoes tlrt_torch_keep_subnormals where it said 1. */
extern "C" __attribute__((visibility("default"))) void tlrt_torch_flush_subnormals(void) { everywhere(restore); }
