#!/bin/sh
# Surprise: torch.polygamma(1, x) has 10 right digits in float64, where polygamma(2, x) and polygamma(3, x) have 15. PyTorch ends the
# asymptotic series of the first early, at arguments of 6, and computes the others by Hurwitz' zeta function. It is the derivative of
# digamma, so gradients of gradients of lgamma (Beta, Dirichlet and Student's t likelihoods, their Newton steps and Fisher information)
# carry an error of 5e-10 in double precision. A reference for float32 is right; one for float64 is not.
#
# Natural guess: a function of float64 is right to float64, and the first derivative is no worse than the second.
#
# PyTorch 2.14.1, SciPy 1.17.0, NumPy 2.4.6, CPU; Python 3.11; 2026-11-30.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m pip install --quiet --no-cache-dir --target "$folder" torch==2.14.1 numpy==2.4.6 scipy==1.17.0
cd "$folder"
PYTHONPATH=$folder python3 - <<'PROGRAM'
import math

import numpy as np
import torch
from scipy.special import polygamma

x = np.linspace(0.5, 30, 600)
worst = {}
for n in (1, 2, 3):
    exact = polygamma(n, x)
    found = torch.polygamma(n, torch.from_numpy(x)).numpy()
    worst[n] = float(np.max(np.abs(found - exact) / np.abs(exact)))
    print(f"polygamma({n}, x) for x from 0.5 to 30: relative error up to {worst[n]:.1e}")
one = torch.polygamma(1, torch.ones((), dtype=torch.float64)).item()
zeta = torch.special.zeta(torch.tensor(2.0).double(), torch.tensor(1.0).double()).item()
print(f"polygamma(1, 1) = {one!r}, torch.special.zeta(2, 1) = {zeta!r}, pi^2 / 6 = {math.pi**2 / 6!r}")
leaf = torch.ones((), dtype=torch.float64, requires_grad=True)
(slope,) = torch.autograd.grad(torch.lgamma(leaf), leaf, create_graph=True)
(second,) = torch.autograd.grad(slope, leaf)
print(f"second derivative of lgamma at 1 by autograd: {second.item()!r}")
assert 1e-10 < worst[1] < 1e-8 and max(worst[2], worst[3]) < 1e-13
assert abs(zeta - math.pi**2 / 6) < 1e-14 and second.item() == one and abs(one - zeta) > 1e-10
PROGRAM
