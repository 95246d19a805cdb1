#!/bin/sh
# Surprise: an operator that is registered from Python by torch.library does not get an argument that equals its default. PyTorch leaves
# trailing arguments out where they compare equal to the schema's default, and Python fills the default in. -0.0 equals 0.0, so a
# kernel that pads, fills or multiplies by the value it is given gives +0.0 for -0.0, and the sign of infinity may follow.
#
# Natural guess: a kernel gets the arguments of the call, bit for bit, as functions of Python and kernels from C++ do.
#
# PyTorch 2.13.0, CPU (2.14.1 does the same); Python 3.11; 2026-11-28.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m pip install --quiet --target "$folder" torch==2.13.0 numpy==2.4.6
cd "$folder"
PYTHONPATH=$folder python3 - <<'PROGRAM'
import math

import torch

library = torch.library.Library("zeros", "DEF")
library.define("filled(Tensor x, float value=0.0) -> Tensor")
library.define("demanded(Tensor x, float value) -> Tensor")
for name in ("filled", "demanded"):
    library.impl(name, lambda x, value=0.0: torch.full_like(x, value), "CPU")

x = torch.ones(1)
signs = {}
for name in ("filled", "demanded"):
    y = getattr(torch.ops.zeros, name)(x, -0.0)
    signs[name] = math.copysign(1, y.item())
    print(f"{name}(x, -0.0) is {y.item()}, and 1 divided by it {(1 / y).item()}")
assert signs == {"filled": 1.0, "demanded": -1.0}
PROGRAM
