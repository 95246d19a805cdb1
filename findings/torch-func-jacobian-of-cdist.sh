#!/bin/sh
# Surprise: torch.func.jacrev of torch.cdist is wrong without an error: the rows of the Jacobian that it computes by vmap over the
# gradient lose their signs and stand in other places, for the distances |1 - 0.5|, |1 - 3|, |2 - 0.5| and |2 - 3| it has 1, 0, 1, 0,
# 1, 0, 1, 0 where the derivatives are 1, 0, -1, 0, 0, 1, 0, -1. torch.autograd.functional.jacobian, also with vectorize=True, is right.
#
# Natural guess: a gradient has the same value under vmap as alone, or there is an error that says it has no rule.
#
# PyTorch 2.14.1, CPU; Python 3.11; 2026-11-29.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m pip install --quiet --no-cache-dir --target "$folder" torch==2.14.1 numpy==2.4.6
cd "$folder"
PYTHONPATH=$folder python3 - <<'PROGRAM'
import torch
from torch.autograd.functional import jacobian
from torch.func import jacrev

a, b = torch.tensor([[1.0], [2.0]]), torch.tensor([[0.5], [3.0]])


def distances(x):
    return torch.cdist(x, b)


found = {
    "one row at a time": jacobian(distances, a),
    "vectorize=True": jacobian(distances, a, vectorize=True),
    "torch.func.jacrev": jacrev(distances)(a),
}
for name, values in found.items():
    print(f"{name}: {values.flatten().tolist()}")
right = [1, 0, -1, 0, 0, 1, 0, -1]
assert found["one row at a time"].flatten().tolist() == right == found["vectorize=True"].flatten().tolist()
assert found["torch.func.jacrev"].flatten().tolist() == [1, 0, 1, 0, 1, 0, 1, 0], "the behaviour has changed"
PROGRAM
