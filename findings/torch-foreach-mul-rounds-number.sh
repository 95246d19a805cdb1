#!/bin/sh
# Surprise: torch._foreach_mul_([t], 0.9) and t.mul_(0.9) give other numbers for a bfloat16 or float16 tensor on the CPU. The list form
# rounds 0.9 to the tensor's type first (0.8984375 in bfloat16), the tensor form multiplies by 0.9 in float32. One rounding becomes
# two. The other list forms (add, div, lerp, addcmul) agree with the tensor forms. Optimisers with foreach=True multiply momentum
# and weight decay in this way.
#
# Natural guess: a list form is a loop over the tensor form, and foreach=True changes speed alone.
#
# PyTorch 2.13.0, CPU (2.14.1 does the same); Python 3.11; 2026-11-28.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m pip install --quiet --target "$folder" torch==2.13.0 numpy==2.4.6
cd "$folder"
PYTHONPATH=$folder python3 - <<'PROGRAM'
import torch

for dtype in (torch.bfloat16, torch.float16):
    x = torch.arange(1, 1001, dtype=torch.float32).div(7).to(dtype)
    alone, listed = x.clone().mul_(0.9), x.clone()
    torch._foreach_mul_([listed], 0.9)
    once = (x.float() * 0.9).to(dtype)
    twice = (x.float() * float(torch.tensor(0.9).to(dtype))).to(dtype)
    print(f"{dtype}: {(alone != listed).sum().item()} of 1000 differ; mul_ multiplies by 0.9: {torch.equal(alone, once)},")
    print(f"    _foreach_mul_ by {float(torch.tensor(0.9).to(dtype))}: {torch.equal(listed, twice)}")
    assert torch.equal(alone, once) and torch.equal(listed, twice) and not torch.equal(alone, listed)

def trained(foreach):
    w = torch.linspace(-1, 1, 64).to(torch.bfloat16).requires_grad_()
    optimizer = torch.optim.SGD([w], lr=0.1, momentum=0.9, foreach=foreach)
    for _ in range(5):
        w.grad = w.detach() * 2
        optimizer.step()
    return w.detach()

loop, lists = trained(False), trained(True)
print(f"SGD with momentum 0.9, 5 steps: {(loop != lists).sum().item()} of 64 weights differ between foreach=False and True")
assert not torch.equal(loop, lists)
PROGRAM
