#!/bin/sh
# Surprise: torch.sqrt on a CPU is not the correctly rounded root. In float32 about 18 % of the results are the neighbour below or above,
# in float64 about 1.2 %, for one number as for many. NumPy on the same machine rounds correctly, and so does PyTorch on a GPU.
# PyTorch passes roots to the vector functions of MKL, which promise less than one unit in the last place. So a root, a norm, a
# standard deviation and a step of Adam have other bits on a CPU than on a GPU.
#
# Natural guess: a square root is one operation of IEEE 754, and rounds once everywhere.
#
# PyTorch 2.14.1, NumPy 2.4.6, CPU (AMD EPYC, AVX2); Python 3.11; 2026-11-30.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m pip install --quiet --no-cache-dir --target "$folder" torch==2.14.1 numpy==2.4.6
cd "$folder"
PYTHONPATH=$folder python3 - <<'PROGRAM'
from fractions import Fraction

import numpy as np
import torch


def distance(root, of):
    """From the real root in units of the last place, by rational numbers: |r^2 - x| / (2r)."""
    r = Fraction(float(root))
    return float(abs(r * r - Fraction(float(of))) / (2 * r) / Fraction(float(np.spacing(root))))


for kind in (np.float32, np.float64):
    x = (np.random.default_rng(1).random(100_000) + 0.5).astype(kind)
    roots, numpys = torch.from_numpy(x).sqrt().numpy(), np.sqrt(x)
    differ = np.flatnonzero(roots != numpys)
    print(f"{len(differ)} of {len(x)} roots of {x.dtype} are not NumPy's")
    worst = max(distance(roots[i], x[i]) for i in differ[:200])
    best = max(distance(numpys[i], x[i]) for i in differ[:200])
    print(f"among them PyTorch's are up to {worst:.3f} units in the last place off, NumPy's up to {best:.3f}")
    one = differ[0]
    alone = torch.from_numpy(x[one : one + 1]).sqrt().item()
    print(f"alone, too: of {float(x[one]).hex()} it is {alone.hex()}, correctly rounded {float(numpys[one]).hex()}")
    assert len(differ) > 100 and worst > 0.5 > best and alone != numpys[one]
PROGRAM
