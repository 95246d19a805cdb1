/* The block of tlrt.torch.reproducible as PyTorch's dispatcher sees it.
 *
 * A block is a dispatch key that is included for the threads in it: KEY stands below autograd and above the back ends, so an
 * operator with a kernel there runs on this library, whatever brought the call about: a module, a composite operator, inference
 * mode, or an autograd thread, which inherits the key and the block from the thread that called backward. Outside of blocks
 * nobody has the key, and nothing is slower. FRONT stands above autograd: for composite operators that PyTorch takes apart in
 * other ways on other devices. DOUBLE is in no set of keys: kernels of float64 and of sparse tensors are found there. */
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <map>
#include <mutex>
#include <string>

namespace tlrt {

/* Keys that PyTorch keeps for experiments and that no other kernel of its own uses. */
constexpr c10::DispatchKey KEY = c10::DispatchKey::CustomRNGKeyId;
constexpr c10::DispatchKey FRONT = c10::DispatchKey::TESTING_ONLY_GenericMode;
constexpr c10::DispatchKey DOUBLE = c10::DispatchKey::TESTING_ONLY_GenericWrapper;

/* What a block has computed: calls and work of each operator, here or left to PyTorch. */
class Block : public c10::DebugInfoBase {
  public:
    explicit Block(bool strict) : strict(strict) {}
    void add(const char *op, bool here, int64_t work);
    /* Notes an operator that PyTorch computes; with `strict` an error. */
    void leave(const char *op, int64_t work);
    /* How many it has noted. */
    int64_t calls();
    /* One line for each operator: name, "here" or "left", calls, work. */
    std::string text();
    const bool strict;

  private:
    struct Count {
        int64_t calls = 0, work = 0;
    };
    std::mutex lock;
    std::map<std::pair<std::string, bool>, Count> counts;
};

/* What an operator costs, by its operands and the elements of its results. */
int64_t work_of(const std::string &name, c10::ArrayRef<c10::IValue> arguments, int64_t results);

/* The innermost block of the calling thread, or NULL. */
Block *current();

/* The library's threads are its own again: when the last block of the process ends. */
void keep_own_threads();

/* The keys below the block's. */
inline c10::DispatchKeySet after(c10::DispatchKeySet keys)
{
    return keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, KEY);
}

/* Whether a tensor is memory of the CPU or of a CUDA device: not one of a tracer, of another device, or without memory. */
inline bool is_plain(const at::Tensor &t)
{
    /* A fake tensor has the keys of the device that it stands for; while its shape is computed the thread has Meta's. */
    if (c10::impl::tls_local_dispatch_key_set().included_.has_backend(c10::BackendComponent::MetaBit)) return false;
    const auto backend = t.key_set().highestBackendKey();
    return backend == c10::BackendComponent::CPUBit || backend == c10::BackendComponent::CUDABit;
}

} // namespace tlrt
