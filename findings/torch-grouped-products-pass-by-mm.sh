#!/bin/sh
# Surprise: a kernel that is registered for aten::mm computes no product of grouped_mm, by which transformers multiplies experts:
# of float32 on a CPU grouped_mm calls mm.out, an operator of its own, once for each group. Nothing says that another kernel ran.
#
# Natural guess: mm.out is mm with a place for its result, so whoever replaces, counts or checks mm gets the experts' products as well.
#
# PyTorch 2.13.0, CPU; Python 3.11; 2026-11-29.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m pip install --quiet --no-cache-dir --target "$folder" torch==2.13.0 numpy==2.4.6
cd "$folder"
PYTHONPATH=$folder python3 -W ignore - <<'PROGRAM'
import torch

calls = []


def mm(a, b):
    calls.append("mm")
    return (a.unsqueeze(2) * b.unsqueeze(0)).sum(1)


def mm_out(a, b, *, out):
    calls.append("mm.out")
    return out.copy_((a.unsqueeze(2) * b.unsqueeze(0)).sum(1))


library = torch.library.Library("aten", "IMPL")
library.impl("mm", mm, "CPU")
library.impl("mm.out", mm_out, "CPU")
a, b, ends = torch.ones(8, 16), torch.ones(2, 16, 16), torch.tensor([3, 8], dtype=torch.int32)
products = {
    "a @ b": lambda: a @ b[0],
    "linear": lambda: torch.nn.functional.linear(a, b[0]),
    "grouped_mm of two groups": lambda: torch.nn.functional.grouped_mm(a, b, offs=ends),
}
found = {}
for name, product in products.items():
    calls.clear()
    product()
    found[name] = list(calls)
    print(f"{name}: calls {found[name]}")
assert found["a @ b"] == found["linear"] == ["mm"]
assert found["grouped_mm of two groups"] == ["mm.out"] * 2, "the behaviour has changed"
PROGRAM
