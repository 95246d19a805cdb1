#!/bin/sh
# Surprise: x.sum(axis=1) of one and the same float32 matrix has other bits when the matrix lies in column-major memory. In row-major
# memory each row is added pairwise, by blocks of 128 with eight running sums; in column-major memory NumPy adds column after column,
# one term after the other. For 10,000 columns the error is thirty times as large, without a warning. mean, var and std follow.
#
# Natural guess: the order of additions is a property of the operation and the shape, and "pairwise summation" holds for any axis;
# a reference computed by NumPy does not depend on a transpose before it.
#
# NumPy 2.4.6; Python 3.11; x86-64; 2026-11-28.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m pip install --quiet --target "$folder" numpy==2.4.6
cd "$folder"
PYTHONPATH=$folder python3 - <<'PROGRAM'
import numpy as np

x = np.random.default_rng(0).random((100, 10000), np.float32)
exact = x.astype(np.float64).sum(axis=1)
rows, columns = x.sum(axis=1), np.asfortranarray(x).sum(axis=1)
errors = [float(np.abs(y / exact - 1).max()) for y in (rows, columns)]
print(f"{(rows != columns).sum()} of 100 sums differ; largest error {errors[0]:.1e} row-major, {errors[1]:.1e} column-major")
serial = np.zeros(100, np.float32)
for k in range(x.shape[1]):
    serial += x[:, k]
print("column-major is one term after the other:", np.array_equal(columns, serial))
assert (rows != columns).sum() > 90 and errors[1] > 20 * errors[0] and np.array_equal(columns, serial)
PROGRAM
