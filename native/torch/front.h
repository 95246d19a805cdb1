/* Kernels above autograd, for composite operators that PyTorch takes apart in other ways on other devices. */
#pragma once

#include <ATen/autocast_mode.h>
#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "block.h"

namespace tlrt {

/* Whether one has a tangent of forward-mode differentiation, which kernels above autograd have no rule for. */
inline bool have_tangents(at::TensorList tensors)
{
    for (const at::Tensor &t : tensors)
        if (t.defined() && t._fw_grad(0).defined()) return true;
    return false;
}

/* Whether a transform of torch.func has the call, and no tracer: then it is made of operators that have batches and kernels. */
inline bool is_transformed()
{
    return current() && c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::FuncTorchDynamicLayerFrontMode) &&
           !c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::Python);
}

/* Whether a call is the block's to take apart: no transform of torch.func and no tracer has it, and no tangent unless the caller
 * has a rule for it. Memory with the negative bit holds other numbers, which PyTorch resolves only below. It is asked first: a
 * nested tensor has no sizes. */
inline bool is_ours(at::TensorList tensors, bool takes_tangents = false)
{
    if (!current() || c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::FuncTorchDynamicLayerFrontMode) ||
        c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::Python))
        return false;
    for (const at::Tensor &t : tensors)
        if (t.defined() && (!is_plain(t) || t.is_neg() || t.key_set().has(c10::DispatchKey::Python) || t.is_nested() ||
                            t.layout() != at::kStrided || !at::isFloatingType(t.scalar_type())))
            return false;
    return takes_tangents || !have_tangents(tensors);
}

/* Calls the operator as if FRONT had no kernel for it. */
template <class Op, class... A> decltype(auto) as_without(A &&...arguments)
{
    const c10::impl::ExcludeDispatchKeyGuard guard(FRONT);
    return Op::call(std::forward<A>(arguments)...);
}

/* The type that autocast gives the operands of a product, where it is on. */
inline at::Tensor autocast(const at::Tensor &t)
{
    const auto device = t.device().type();
    if (!t.defined() || !at::autocast::is_autocast_enabled(device)) return t;
    return at::autocast::cached_cast(at::autocast::get_autocast_dtype(device), t, device);
}

} // namespace tlrt
