/* Ranges between two numbers. */
#include <ATen/ATen.h>
#include <ATen/Operators.h>
#include <torch/library.h>

#include "call.h"

namespace tlrt {
namespace {

/* From whichever end is nearer, as PyTorch counts; each operation rounds. */
at::Tensor &linspace(c10::DispatchKeySet keys, const at::Scalar &start, const at::Scalar &end, int64_t steps,
                     at::Tensor &out)
{
    Block *const block = is_plain(out) ? current() : nullptr;
    if (!block || steps < 2 || !at::isFloatingType(out.scalar_type()) || start.isComplex() || end.isComplex()) {
        if (block && steps > 1) block->leave("aten::linspace", steps);
        return at::_ops::linspace_out::redispatch(after(keys), start, end, steps, out);
    }
    const bool is_double = out.scalar_type() == at::kDouble;
    const auto rounded = [&](double x) { return is_double ? x : (double)(float)x; };
    const double from = rounded(start.toDouble()), to = rounded(end.toDouble());
    const double step = rounded(rounded(to - from) / (double)(steps - 1));
    block->add("aten::linspace", true, steps);
    const c10::impl::ExcludeDispatchKeyGuard guard(KEY);
    const at::Tensor i = at::arange(steps, out.options().dtype(at::kLong));
    const auto times = [&](const at::Tensor &n) { return n.to(is_double ? at::kDouble : at::kFloat).mul(step); };
    const at::Tensor y = at::where(i.lt(steps / 2), times(i).add(from), times(i.neg().add(steps - 1)).neg().add(to));
    if (out.numel() != steps) out.resize_({steps});
    return out.copy_(y.view(out.sizes()));
}

/* Powers of a number at the places of linspace. */
at::Tensor &logspace(c10::DispatchKeySet keys, const at::Scalar &start, const at::Scalar &end, int64_t steps,
                     double base, at::Tensor &out)
{
    Block *const block = is_plain(out) ? current() : nullptr;
    const at::ScalarType type = out.scalar_type();
    if (!block || steps < 1 || !at::isFloatingType(type) || start.isComplex() || end.isComplex()) {
        if (block && steps > 0) block->leave("aten::logspace", steps);
        return at::_ops::logspace_out::redispatch(after(keys), start, end, steps, base, out);
    }
    block->add("aten::logspace", true, steps);
    const at::Tensor y =
        at::pow(base, at::linspace(start, end, steps, out.options().dtype(type == at::kDouble ? type : at::kFloat)));
    if (out.numel() != steps) out.resize_({steps});
    return out.copy_(y.view(out.sizes()));
}

TORCH_LIBRARY_IMPL(aten, CustomRNGKeyId, m)
{
    m.impl("linspace.out", TORCH_FN(linspace));
    m.impl("logspace.out", TORCH_FN(logspace));
}

} // namespace
} // namespace tlrt
