/* Operators that write into tensors that they are given, by their twins that make new ones. */
#include "block.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <algorithm>

namespace tlrt {
namespace {

using Tensors = std::vector<at::Tensor>;

void collect(const c10::IValue &v, Tensors *found)
{
    if (v.isTensor() && v.toTensor().defined()) found->push_back(v.toTensor());
    if (v.isList())
        for (const c10::IValue &item : v.toListRef())
            collect(item, found);
}

bool is_among(const at::Tensor &t, const Tensors &others)
{
    return std::any_of(others.begin(), others.end(), [&](const at::Tensor &o) { return o.is_alias_of(t); });
}

/* Whether PyTorch would take a target for a result as it is: it then has nothing to resize, to convert or to refuse. */
bool fits(const at::Tensor &target, const at::Tensor &made, const Tensors &operands)
{
    return target.scalar_type() == made.scalar_type() && target.device() == made.device() &&
           target.sizes() == made.sizes() && target.is_non_overlapping_and_dense() && !target.is_neg() &&
           !target.is_conj() && !is_among(target, operands);
}

class Writing final : public c10::OperatorKernel {
  public:
    explicit Writing(const c10::OperatorHandle &twin) : twin(twin) {}

    void operator()(const c10::OperatorHandle &op, c10::DispatchKeySet keys, torch::jit::Stack *stack) const
    {
        const auto &arguments = op.schema().arguments();
        const auto passed = torch::jit::last(*stack, arguments.size());
        const torch::jit::Stack given(passed.begin(), passed.end());
        torch::jit::Stack made;
        Tensors targets, operands;
        for (size_t i = 0; i < given.size(); i++) {
            if (arguments[i].is_out()) {
                targets.push_back(given[i].toTensor());
            } else {
                made.push_back(given[i]);
                collect(given[i], &operands);
            }
        }
        const bool into = !targets.empty(), draws = op.hasTag(at::Tag::nondeterministic_seeded);
        if (!into) targets.push_back(given[0].toTensor());
        const auto plain = [](const Tensors &all) { return std::all_of(all.begin(), all.end(), is_plain); };
        if (!plain(operands) || !plain(targets)) return op.redispatchBoxed(after(keys), stack);
        const at::Tensor &first = targets[0];
        const bool whole = into && !at::isFloatingType(first.scalar_type()) && !first.is_complex();
        const bool typed = whole && set_type(first.scalar_type(), &made);
        {
            const c10::impl::ExcludeDispatchKeyGuard guard(c10::autocast_dispatch_keyset);
            twin.callBoxed(&made);
        }
        bool ready = into ? draws : first.is_floating_point();
        if (into && !ready && !typed) {
            ready = true;
            for (size_t i = 0; i < targets.size(); i++) {
                ready = ready && fits(targets[i], made[i].toTensor(), operands);
                operands.push_back(targets[i]);
            }
        }
        if (!ready) { /* PyTorch resizes the targets, or refuses them, and writes what is not read */
            for (c10::IValue &m : made)
                if (is_among(m.toTensor(), operands)) m = m.toTensor().clone();
            torch::jit::Stack theirs = given;
            const c10::impl::ExcludeDispatchKeyGuard guard(KEY);
            op.redispatchBoxed(after(keys), &theirs);
        }
        torch::jit::drop(*stack, arguments.size());
        for (size_t i = 0; i < targets.size(); i++) {
            const at::Tensor &result = made[i].toTensor();
            if (into && targets[i].sizes() != result.sizes()) targets[i].resize_(result.sizes());
            targets[i].copy_(result);
            stack->emplace_back(targets[i]);
        }
    }

  private:
    /* A sum into integers is one of integers; whether it is asked for so. */
    bool set_type(at::ScalarType type, torch::jit::Stack *arguments) const
    {
        const auto place = twin.schema().argumentIndexWithName("dtype");
        if (!place || !(*arguments)[(size_t)*place].isNone()) return false;
        (*arguments)[(size_t)*place] = (int64_t)type;
        return true;
    }

    const c10::OperatorHandle twin;
};

c10::OperatorHandle operator_named(const std::string &name)
{
    const size_t dot = name.find('.');
    return c10::Dispatcher::singleton().findSchemaOrThrow(name.substr(0, dot).c_str(),
                                                          dot == name.npos ? "" : name.substr(dot + 1).c_str());
}

} // namespace
} // namespace tlrt

/* Registers operators that write, each followed by its twin: 2 * count names, such as "aten::mm.out" and "aten::mm". */
extern "C" __attribute__((visibility("default"))) void tlrt_torch_writing(const char *const *names, uint64_t count)
{
    static torch::Library library(torch::Library::IMPL, "aten", tlrt::KEY, __FILE__, __LINE__);
    for (uint64_t i = 0; i < count; i++)
        library.impl(names[2 * i], torch::CppFunction::makeFromBoxedFunctor(
                                       std::make_unique<tlrt::Writing>(tlrt::operator_named(names[2 * i + 1]))));
}
