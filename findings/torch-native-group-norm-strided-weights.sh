#!/bin/sh
# Surprise: in PyTorch 2.11 torch.native_group_norm and its gradient of x read a weight or a bias that is not contiguous as if it were:
# every second element of a vector, as weight, gives the first elements of the vector. Nothing is raised, the numbers are wrong in
# float64 as well. torch.nn.functional.group_norm copies its parameters first, so a layer does not show it. layer_norm and
# batch_norm take the same view rightly.
#
# Natural guess: an ATen operator takes any strides, or refuses what it does not take. So people who write a kernel for group norm
# compare it with native_group_norm, which also gives mean and reciprocal deviation, on operands laid out in several ways.
#
# torch 2.11.0 is wrong, 2.14.1 is right, CPU; Python 3.11; 2026-11-29.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for version in 2.11.0 2.14.1; do
    python3 -m pip install --quiet --target "$folder/$version" torch==$version numpy==2.4.6
    PYTHONPATH=$folder/$version python3 - <<'PROGRAM'
import torch

torch.manual_seed(0)
x, above = torch.randn(2, 2, 4, 5, dtype=torch.float64)  # of 2 images, 4 channels and 5 positions each
weight = torch.arange(1.0, 9.0, dtype=torch.float64)[::2]
sizes = (2, 4, 5, 2)


def both(w):
    """The result with eps 1e-5, and the gradient of x."""
    out, mean, rstd = torch.native_group_norm(x, w, None, *sizes, 1e-5)
    grad, *_ = torch.ops.aten.native_group_norm_backward(above, x, mean, rstd, w, *sizes, [True, True, True])
    return out, grad


errors = [(a - b).abs().max().item() for a, b in zip(both(weight), both(weight.contiguous()))]
first = both(torch.arange(1.0, 5.0, dtype=torch.float64))[0]
print(torch.__version__, "strides", weight.stride(), "errors of the result and of the gradient", errors)
norm = torch.nn.functional.group_norm
assert torch.equal(norm(x, 2, weight), norm(x, 2, weight.contiguous()))
if torch.__version__.startswith("2.11"):
    assert min(errors) > 0.1 and torch.equal(both(weight)[0], first), "2.11 heeds the strides now"
else:
    assert max(errors) == 0
PROGRAM
done
