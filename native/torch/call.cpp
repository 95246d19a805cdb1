/* Contexts on PyTorch's streams and memory, and errors. */
#include "call.h"

#include <ATen/Parallel.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>

#include <array>

namespace tlrt {
namespace {

thread_local int64_t cost = -1;

using Run = void (*)(void (*)(void *), void *, unsigned, unsigned);

/* GNU OpenMP's function that runs a team, of the very library whose threads PyTorch uses; NULL where it has other threads. */
Run team()
{
    Dl_info torch;
    if (!dladdr(reinterpret_cast<const void *>(&at::get_num_threads), &torch)) return nullptr;
    void *const library = dlopen(torch.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    return library ? reinterpret_cast<Run>(dlsym(library, "GOMP_parallel")) : nullptr; /* or of what it depends on */
}

/* The work of CPU contexts is done by PyTorch's threads, as many as it uses now: two pools whose idle threads spin would take each
 * other's processors. */
std::mutex sharing;
uint32_t own = 0; /* the library's threads before a block shared PyTorch's, 0: it has its own */

void share_threads()
{
    static const Run run = team();
    if (!run) return;
    const std::lock_guard<std::mutex> guard(sharing);
    if (!own) own = torchlean_cuda_threads();
    check(torchlean_cuda_set_parallel(run, (uint32_t)at::get_num_threads()));
}

void *allocate(void *, uint64_t bytes)
{
    try {
        return c10::GetAllocator(c10::DeviceType::CUDA)->raw_allocate(bytes);
    } catch (const c10::Error &) { /* the library says what it asked for */
        return nullptr;
    }
}

void release(void *, void *memory) { c10::GetAllocator(c10::DeviceType::CUDA)->raw_deallocate(memory); }

/* The contexts of a thread: a call is then never between another thread's choice of a stream and its work. */
struct Contexts {
    torchlean_context *cpu = nullptr;
    std::array<torchlean_context *, 64> cuda{};
    ~Contexts()
    {
        torchlean_cuda_context_destroy(cpu);
        for (torchlean_context *c : cuda)
            torchlean_cuda_context_destroy(c);
    }
};

torchlean_context *created(int32_t device)
{
    torchlean_context *context = nullptr;
    check(torchlean_cuda_context_create(device, &context));
    check(torchlean_cuda_context_set_math(context, TORCHLEAN_REPRODUCIBLE));
    return context;
}

} // namespace

void keep_own_threads()
{
    const std::lock_guard<std::mutex> guard(sharing);
    if (own) torchlean_cuda_set_parallel(nullptr, own);
    own = 0;
}

void costs(int64_t operations) { cost = operations; }

int64_t take_cost(int64_t restore)
{
    const int64_t found = cost;
    cost = restore;
    return found;
}

void check(int32_t status)
{
    if (status == TORCHLEAN_OK) return;
    const char *const text = torchlean_cuda_last_error();
    switch (status / 10 * 10) {
    case TORCHLEAN_INDEX: TORCH_CHECK_INDEX(false, text);
    case TORCHLEAN_SHAPE:
    case TORCHLEAN_OVERFLOW:
    case TORCHLEAN_ARGUMENT: TORCH_CHECK_VALUE(false, text);
    case TORCHLEAN_NO_MEMORY: TORCH_CHECK_WITH(OutOfMemoryError, false, text);
    default: TORCH_CHECK(false, text);
    }
}

torchlean_context *context_of(const at::Tensor &t)
{
    static thread_local Contexts contexts;
    const c10::Device device = t.device();
    if (device.is_cpu()) {
        if (!contexts.cpu) contexts.cpu = created(TORCHLEAN_CPU);
        share_threads();
        return contexts.cpu;
    }
    torchlean_context *&context = contexts.cuda.at((size_t)device.index());
    if (!context) context = created(device.index());
    const c10::impl::VirtualGuardImpl guard(c10::DeviceType::CUDA);
    check(torchlean_cuda_context_adopt(context, (uint64_t)(uintptr_t)guard.getStream(device).native_handle(), allocate,
                                       release, nullptr));
    return context;
}

at::Tensor plain(const at::Tensor &t)
{
    if (!t.is_contiguous()) return t.contiguous();
    return (uintptr_t)t.const_data_ptr() % 16 ? t.clone() : t;
}

Buffer::Buffer(torchlean_context *context, const at::Tensor &t, uint32_t n, Content content)
{
    if (!t.defined()) return;
    TORCH_INTERNAL_ASSERT(t.element_size() == 4 && (content == AS_INDEX) != t.is_floating_point());
    check(torchlean_cuda_buffer_wrap(context, const_cast<void *>(t.const_data_ptr()), n, content == AS_INDEX, &handle));
}

} // namespace tlrt

/* The allocator for contexts that Python makes. */
extern "C" __attribute__((visibility("default"))) void *tlrt_torch_allocate(void *user, uint64_t bytes)
{
    return tlrt::allocate(user, bytes);
}
extern "C" __attribute__((visibility("default"))) void tlrt_torch_release(void *user, void *memory)
{
    tlrt::release(user, memory);
}
