#!/bin/sh
# Surprise: torch.linalg.solve of two systems of 160 equations is wrong on two threads, most often without an error; so are inv, det and
# lu_factor. For other matrices, such as the identity, MKL prints "Parameter 6 was incorrect on entry to DLASWP", or PyTorch says
# that the matrix is singular. One matrix, one thread, or 100 equations are right. The threads of the batch call MKL's dgetrf at
# once (https://github.com/pytorch/pytorch/issues/142815).
#
# Natural guess: the number of threads changes the last bits at most.
#
# PyTorch 2.14.1 and 2.11.0, CPU (AMD EPYC, 2 processors); Python 3.11; 2026-11-30.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m pip install --quiet --no-cache-dir --target "$folder" torch==2.14.1 numpy==2.4.6
cd "$folder"
PYTHONPATH=$folder python3 - <<'PROGRAM'
import torch


def residual(batch, n, threads):
    torch.set_num_threads(threads)
    a = torch.randn(batch, n, n, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    try:
        found = torch.linalg.solve(a + 20 * torch.eye(n), a)
    except RuntimeError:
        return torch.inf
    return float(((a + 20 * torch.eye(n)) @ found - a).abs().max())


for batch, n, threads in ((2, 160, 1), (1, 160, 2), (2, 100, 2), (2, 160, 2)):
    print(f"{batch} matrices of {n} rows, {threads} threads: residual {residual(batch, n, threads):.2g}")
assert max(residual(2, 160, 1), residual(1, 160, 2), residual(2, 100, 2)) < 1e-9
assert residual(2, 160, 2) > 1e-3, "the behaviour has changed"
PROGRAM
