#!/bin/sh
# Surprise: where interpolate is given a scale_factor and an axis keeps its length (1.3 times 3 is 3) or doubles it (2.1 times 5 is 10),
# the gradient goes to other elements than the forward pass read. mode="nearest" in one dimension, and in three unless the memory is
# channels last, reads element floor(i / scale_factor) and sends the gradient to element i. In two dimensions it reads element i as well.
# mode="bilinear" and "bicubic" with antialias=True copy an axis that keeps its length and give the gradient of a resampled one.
#
# Natural guess: one formula chooses the elements in every rank and layout, and the gradient is that of the forward pass.
#
# PyTorch 2.13.0, CPU, float64 (2.14.1 does the same); Python 3.11; 2026-11-28.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m pip install --quiet --target "$folder" torch==2.13.0 numpy==2.4.6
cd "$folder"
PYTHONPATH=$folder python3 - <<'PROGRAM'
import torch
from torch.nn.functional import interpolate


def share(x, **how):
    """The largest difference between the gradient and the forward pass, which is linear, as matrices."""
    forward = torch.stack([interpolate(e.view_as(x), **how).flatten() for e in torch.eye(x.numel(), dtype=x.dtype)], 1)
    x = x.clone().requires_grad_()
    y = interpolate(x, **how)
    rows = [torch.autograd.grad(y, x, e.view_as(y), retain_graph=True)[0].flatten() for e in torch.eye(y.numel(), dtype=x.dtype)]
    return float((torch.stack(rows) - forward).abs().max())


def chosen(x, **how):
    return interpolate(x, **how).flatten().int().tolist()


row = torch.arange(3.0, dtype=torch.float64)
print("nearest, scale_factor=1.3 of [0, 1, 2] in 1-D:", chosen(row.view(1, 1, 3), scale_factor=1.3))
print("                               as 2-D (1 x 3):", chosen(row.view(1, 1, 1, 3), scale_factor=(1.0, 1.3)))
assert chosen(row.view(1, 1, 3), scale_factor=1.3) == [0, 0, 1]
assert chosen(row.view(1, 1, 1, 3), scale_factor=(1.0, 1.3)) == [0, 1, 2]
found = {}
for name, x, how in (
    ("nearest 1-D, 1.3 of 3", torch.zeros(1, 1, 3), {"scale_factor": 1.3}),
    ("nearest 2-D, 1.3 of 3", torch.zeros(1, 1, 3, 3), {"scale_factor": 1.3}),
    ("nearest 3-D, 2.1 of 5", torch.zeros(1, 1, 1, 1, 5), {"scale_factor": (1.0, 1.0, 2.1)}),
    ("bilinear 2-D, 1.1 of 5", torch.zeros(1, 1, 5, 5), {"scale_factor": 1.1, "mode": "bilinear"}),
    ("bilinear antialias, 1.1 of 5", torch.zeros(1, 1, 5, 5), {"scale_factor": 1.1, "mode": "bilinear", "antialias": True}),
    ("bicubic antialias, 1.1 of 5", torch.zeros(1, 1, 5, 5), {"scale_factor": 1.1, "mode": "bicubic", "antialias": True}),
):
    found[name] = share(x.double(), **how)
    print(f"{name}: the gradient is off by {found[name]:.3f}")
wrong = [name for name, off in found.items() if off > 1e-6]
assert wrong == ["nearest 1-D, 1.3 of 3", "nearest 3-D, 2.1 of 5", "bilinear antialias, 1.1 of 5", "bicubic antialias, 1.1 of 5"], wrong
PROGRAM
