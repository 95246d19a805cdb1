#!/bin/sh
# Surprise: the gradient of torch.clamp where an element equals a bound changed between two releases: 1 in PyTorch 2.13, 0 in 2.14,
# and in 2.14 1/2 where the same bound is given as a tensor. hardtanh and relu6, which are the same functions, have 0 in both
# releases, and maximum and minimum 1/2. A seed, a model and data that are the same train to other weights, without a warning:
# ReLU-like clamps meet their bound exactly at every zero of the input.
#
# Natural guess: clamp(x, lo, hi) has one gradient at a bound, whether the bound is a number or a tensor, and keeps it.
#
# PyTorch 2.13.0 and 2.14.1, CPU; Python 3.11; 2026-11-28. Both releases are installed: several GB where the wheels bring CUDA.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for release in 2.13.0 2.14.1; do
    python3 -m pip install --quiet --no-cache-dir --target "$folder/$release" "torch==$release" numpy==2.4.6
done
cd "$folder"
cat >program.py <<'PROGRAM'
import sys

import torch
import torch.nn.functional as F

calls = {
    "clamp(-1, 1)": lambda x: x.clamp(-1, 1),
    "clamp of tensors": lambda x: torch.clamp(x, torch.tensor(-1.0), torch.tensor(1.0)),
    "clamp(min=-1)": lambda x: x.clamp(min=-1),
    "hardtanh": F.hardtanh,
    "maximum, minimum": lambda x: torch.minimum(torch.maximum(x, torch.tensor(-1.0)), torch.tensor(1.0)),
}
found = []
for name, function in calls.items():
    x = torch.tensor([-1.0, 0.5], requires_grad=True)
    y = function(x)
    y.sum().backward()
    assert y.tolist() == [-1.0, 0.5] and x.grad[1] == 1
    found.append(x.grad[0].item())
    print(f"PyTorch {torch.__version__}: the gradient of {name} at -1 is {found[-1]}")
assert found == {"2.13": [1, 1, 1, 0, 0.5], "2.14": [0, 0.5, 0, 0, 0.5]}[sys.argv[1]]
PROGRAM
PYTHONPATH=$folder/2.13.0 python3 program.py 2.13
PYTHONPATH=$folder/2.14.1 python3 program.py 2.14
