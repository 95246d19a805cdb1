#!/bin/sh
# Surprise: on the CPU a number that is added to a bfloat16 or float16 tensor is rounded to the tensor's type first, and one that
# multiplies or divides it is not. 1 + 257 is 256 in bfloat16, although 258 is a bfloat16 number: 257 became 256 before the addition.
# Also eps of AdamW is rounded before it is added. A GPU adds the number itself (PyTorch's CUDA kernel takes it in float32), so bfloat16
# weights part between the two devices after some steps, with equal gradients.
#
# Natural guess: arithmetic with a number follows one rule: both sides are float32, and the result is rounded once.
#
# PyTorch 2.13.0, CPU (2.11.0 and 2.14.1 do the same); Python 3.11; 2026-11-28.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m pip install --quiet --target "$folder" torch==2.13.0 numpy==2.4.6
cd "$folder"
PYTHONPATH=$folder python3 - <<'PROGRAM'
import torch

one = torch.ones(8, dtype=torch.bfloat16)
print("bfloat16: 1 + 257 =", float((one + 257)[0]), "but float32 and one rounding give", float((one.float() + 257).bfloat16()[0]))
assert float((one + 257)[0]) == 256 and float((one.float() + 257).bfloat16()[0]) == 258
n = 0.1234567
for dtype in (torch.bfloat16, torch.float16):
    x = torch.exp2(torch.linspace(-10, 4, 4096)).to(dtype)
    rounded = float(torch.tensor(n).to(dtype))
    for name, f in {"x + n": lambda x, n: x + n, "x - n": lambda x, n: x - n, "n - x": lambda x, n: n - x,
                    "x * n": lambda x, n: x * n, "x / n": lambda x, n: x / n}.items():
        found, once, twice = f(x, n), f(x.float(), n).to(dtype), f(x.float(), rounded).to(dtype)
        print(f"{dtype} {name}: {int((found != once).sum()):4} of 4096 are not the float32 result rounded once")
        adds = name not in ("x * n", "x / n")
        assert torch.equal(found, twice if adds else once) and not torch.equal(once, twice), name
PROGRAM
