#!/bin/sh
# Surprise: where an added mask blocks a whole row of attention by a large finite number (-1e9, or finfo.min, which transformers' padding
# masks hold), the CPU's fused kernel gives the right result, the mean of the values, and a gradient of the values that is as many
# times too large as there are keys. What it keeps for the gradient is the row's greatest score plus the logarithm of the sum of its
# weights; beside -1e9 the logarithm is lost by rounding, so each weight is 1 again. From -1e4 on it begins to show.
#
# Natural guess: forward and gradient use the same weights, whichever kernel is taken; the plain formulas ("math") do.
#
# PyTorch 2.14.1, CPU; Python 3.11; 2026-11-29.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m pip install --quiet --no-cache-dir --target "$folder" torch==2.14.1 numpy==2.4.6
cd "$folder"
PYTHONPATH=$folder python3 - <<'PROGRAM'
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

found = {}
for keys in (5, 64):
    for name, fill in (("-1e4", -1e4), ("-1e9", -1e9), ("finfo.min", torch.finfo(torch.float32).min)):
        for kernel in (SDPBackend.FLASH_ATTENTION, SDPBackend.MATH):
            q, k = torch.zeros(1, 1, 1, 8), torch.zeros(1, 1, keys, 8)
            v = torch.ones(1, 1, keys, 8, requires_grad=True)
            with sdpa_kernel(kernel):
                y = F.scaled_dot_product_attention(q, k, v, torch.full((1, keys), fill))
                y.sum().backward()
            assert (y == 1).all()
            found[keys, name, kernel] = v.grad[0, 0, 0, 0].item()
            print(f"{keys} keys masked by {name}, {kernel.name}: weight in the gradient {found[keys, name, kernel]:.6g}, "
                  f"expected {1 / keys:.6g}")
for keys in (5, 64):
    for name in ("-1e4", "-1e9", "finfo.min"):
        assert abs(found[keys, name, SDPBackend.MATH] - 1 / keys) < 1e-7
    for name in ("-1e9", "finfo.min"):
        assert found[keys, name, SDPBackend.FLASH_ATTENTION] == 1, "the behaviour has changed"
    assert 1e-6 < abs(found[keys, "-1e4", SDPBackend.FLASH_ATTENTION] - 1 / keys) < 1e-4, "the behaviour has changed"
PROGRAM
