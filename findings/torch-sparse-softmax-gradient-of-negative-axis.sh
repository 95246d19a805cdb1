#!/bin/sh
# Surprise: the gradients of torch.sparse.softmax and torch.sparse.log_softmax are wrong for a negative axis, without an error: those of
# axis -1 of this matrix are off by 0.4 and 3.5, where those of axis 1 have all digits. Results are equal for both names.
#
# Natural guess: axis -1 is axis 1 of a matrix, in the gradient as in the result, as it is for dense tensors.
#
# PyTorch 2.14.1, CPU; Python 3.11; 2026-11-30.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m pip install --quiet --no-cache-dir --target "$folder" torch==2.14.1 numpy==2.4.6
cd "$folder"
PYTHONPATH=$folder python3 - <<'PROGRAM'
import torch

dense = torch.tensor([[0.5, -1.0, 2.0], [1.5, 0.0, -0.5]], dtype=torch.float64)
weights = torch.tensor([[1.0, -2.0, 3.0], [0.5, 0.0, 4.0]], dtype=torch.float64)
errors = {}
for name in ("softmax", "log_softmax"):
    for axis in (0, 1):
        found = {}
        for way in (axis, axis - 2):
            x = dense.to_sparse().requires_grad_()
            y = getattr(torch.sparse, name)(x, way)
            (gradient,) = torch.autograd.grad(y, x, weights.sparse_mask(y.detach().coalesce()))
            found[way] = y.detach().to_dense(), gradient.to_dense()
        assert torch.equal(found[axis][0], found[axis - 2][0])
        exact = dense.masked_fill(dense == 0, -torch.inf).requires_grad_()
        result = torch.where(dense != 0, getattr(torch, name)(exact, axis), 0.0)
        (right,) = torch.autograd.grad((result * weights).sum(), exact)
        for way, (_, gradient) in found.items():
            errors[name, way] = float((gradient - right).abs().max())
            print(f"torch.sparse.{name}, axis {way}: the gradient is off by {errors[name, way]:.1e}")
for (name, way), error in errors.items():
    assert error > 0.1 if way < 0 else error < 1e-14, "the behaviour has changed"
PROGRAM
