/* Gradients that will be differentiated: those of a function of PyTorch's operators. */
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

namespace tlrt {

/* The gradients of compute(inputs) along `above` by each input that wants one, the others undefined. Every input is a place of its
 * own: it may be the tensor of another one, or computed from it. */
template <class Compute>
torch::autograd::variable_list differentiable(const torch::autograd::variable_list &inputs,
                                              const torch::autograd::variable_list &above, Compute compute)
{
    torch::autograd::variable_list own, wanted, outputs, along, found(inputs.size());
    for (const at::Tensor &t : inputs) {
        const bool wants = t.defined() && t.requires_grad();
        own.push_back(wants ? t.view_as(t) : t);
        if (wants) wanted.push_back(own.back());
    }
    const torch::autograd::variable_list made = compute(own);
    for (size_t i = 0; i < above.size(); i++)
        if (above[i].defined()) {
            outputs.push_back(made[i]);
            along.push_back(above[i]);
        }
    const auto grads = torch::autograd::grad(outputs, wanted, along, std::nullopt, /*create_graph=*/true, true);
    for (size_t i = 0, next = 0; i < inputs.size(); i++)
        if (inputs[i].defined() && inputs[i].requires_grad()) found[i] = grads[next++];
    return found;
}

} // namespace tlrt
