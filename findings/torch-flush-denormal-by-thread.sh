#!/bin/sh
# Surprise: torch.set_flush_denormal(True) reaches the calling thread, and threads that are made later. Worker threads that an
# earlier operator has made go on without it, so that in one result of one operator the part that the calling thread computed has
# its subnormal numbers flushed to 0, and the other parts have not. What is flushed depends on whether a large operator ran before.
#
# Natural guess: the setting is the process's, as its name and documentation suggest: all elements of a tensor are flushed, or none.
# Whoever compares a kernel's subnormal numbers with PyTorch's sees both behaviours in one tensor.
#
# PyTorch 2.13.0, CPU, x86-64 with two threads or more (2.14.1 does the same); Python 3.11; 2026-11-28.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m pip install --quiet --target "$folder" torch==2.13.0 numpy==2.4.6
cd "$folder"
cat > program.py <<'PROGRAM'
import sys

import torch

torch.set_num_threads(2)
if sys.argv[1] == "late":
    torch.ones(1_000_000)  # makes the second thread
assert torch.set_flush_denormal(True)
x = torch.full((1_000_000,), 2.0**-126)  # the smallest normal number: its half is subnormal
flushed = x.mul(0.5).view(torch.int32).eq(0)
print(f"set {sys.argv[1]}: {int(flushed.sum())} of {len(x)} halves are 0; the first {bool(flushed[0])}, the last {bool(flushed[-1])}")
assert flushed[0]
assert flushed.sum() == {"early": len(x), "late": len(x) // 2}[sys.argv[1]]
PROGRAM
PYTHONPATH=$folder python3 program.py early
PYTHONPATH=$folder python3 program.py late
