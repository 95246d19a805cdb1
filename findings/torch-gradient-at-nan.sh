#!/bin/sh
# Surprise: where the input of relu, elu, leaky_relu, hardswish, abs, clamp, maximum or minimum is NaN, the result is NaN, but the
# gradient is an ordinary number: 1 for relu, elu, hardswish and maximum (for both operands), the slope for leaky_relu, 0 for abs and
# clamp. A NaN that arises in a forward pass need not be seen in the gradients, nor in weights after a step.
#
# Natural guess: the derivative at NaN is NaN, as it is for sin, exp, tanh or a product: NaN in gives NaN out. A kernel that keeps
# NaN in its gradient fails beside PyTorch's, and one that hides it passes.
#
# PyTorch 2.13.0, CPU (2.14.1 does the same); Python 3.11; 2026-11-28.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m pip install --quiet --target "$folder" torch==2.13.0 numpy==2.4.6
cd "$folder"
PYTHONPATH=$folder python3 - <<'PROGRAM'
import torch
import torch.nn.functional as F

calls = {
    "relu": (torch.relu, 1.0), "elu": (F.elu, 1.0), "leaky_relu": (lambda x: F.leaky_relu(x, 0.25), 0.25),
    "hardswish": (F.hardswish, 1.0), "abs": (torch.abs, 0.0), "clamp": (lambda x: x.clamp(-1, 1), 0.0),
    "maximum": (lambda x: torch.maximum(x, torch.ones(())), 1.0), "minimum": (lambda x: torch.minimum(x, torch.ones(())), 1.0),
    "tanh": (torch.tanh, float("nan")), "exp": (torch.exp, float("nan")), "sin": (torch.sin, float("nan")),
}
for name, (function, expected) in calls.items():
    x = torch.tensor(float("nan"), requires_grad=True)
    y = function(x)
    y.backward()
    print(f"{name:11} of NaN is {y.item()}, its gradient {x.grad.item()}")
    assert y.isnan() and (x.grad.item() == expected or (expected != expected and x.grad.isnan())), name

b = torch.tensor(0.5, requires_grad=True)
F.relu(b + float("nan")).backward()
print("the bias of a layer whose result is NaN gets", b.grad.item())
assert b.grad.item() == 1.0
PROGRAM
