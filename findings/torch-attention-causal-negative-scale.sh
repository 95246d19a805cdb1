#!/bin/sh
# Surprise: on the CPU scaled_dot_product_attention with is_causal=True and a negative scale gives NaN, for finite and ordinary
# inputs, and NaN gradients of all queries and keys. The causal mask is filled in as -inf before the scores are multiplied by the
# scale, which makes +inf of it. The same mask given as booleans, or as floats, and the "math" backend give the right numbers.
#
# Natural guess: softmax(scale * q k^T + mask) v for any finite scale, however the mask is said; so says the documentation. Who
# draws the scale of a test from both signs finds a kernel "wrong" that is right.
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
from torch.nn.attention import SDPBackend, sdpa_kernel

torch.manual_seed(0)
q, k, v = (torch.randn(1, 2, 5, 16, requires_grad=True) for _ in range(3))
causal = torch.ones(5, 5, dtype=torch.bool).tril()
scores = torch.where(causal, -0.25 * (q.double() @ k.double().mT), -torch.inf)
exact = torch.softmax(scores, -1) @ v.double()


def show(name, y):
    gradients = torch.autograd.grad(y.sum(), (q, k, v))
    error = (y - exact).abs().max().item()
    print(f"{name:22} error {error:.1e}, rows of NaN {int(y.isnan().any(-1).sum())} of 10,",
          "NaN gradients", [bool(g.isnan().any()) for g in gradients])
    return error, [bool(g.isnan().any()) for g in gradients]


flag = show("is_causal=True", F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=-0.25))
mask = show("the mask as booleans", F.scaled_dot_product_attention(q, k, v, attn_mask=causal, scale=-0.25))
with sdpa_kernel(SDPBackend.MATH):
    math = show("is_causal, math", F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=-0.25))
positive = F.scaled_dot_product_attention(-q, k, v, is_causal=True, scale=0.25)
print(f"{'-q and scale 0.25':22} error {(positive - exact).abs().max().item():.1e}")
assert flag[0] != flag[0] and any(flag[1]), "is_causal with a negative scale is no longer NaN"
assert mask[0] < 1e-5 and math[0] < 1e-5 and not any(mask[1]) and not any(math[1])
PROGRAM
