#!/bin/sh
# Surprise: np.power of float32 arrays with an exponent of exactly 1 in an array changes some numbers by one unit in the last place,
# and with the exponent 2 a fifth of all squares are not x * x. With the exponent as one number both are exact: NumPy then takes a
# copy and a square. This is its vector code for AVX-512; other processors take the C library's powf, which has x to the power 1 right.
#
# Natural guess: x to the power 1 is x, as for C's pow, and the shape of the exponent does not decide bits.
#
# NumPy 2.4.6; Python 3.11; x86-64 with AVX-512; 2026-11-29.
set -eu
grep -q avx512dq /proc/cpuinfo || { echo "needs a processor with AVX-512"; exit 0; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m pip install --quiet --target "$folder" numpy==2.4.6
cd "$folder"
PYTHONPATH=$folder python3 - <<'PROGRAM'
import numpy as np

x = np.linspace(0.5, 1, 1_000_000, dtype=np.float32)
for k, exact in ((1, x), (2, x * x)):
    number, array = np.power(x, np.float32(k)), np.power(x, np.full_like(x, k))
    wrong = array != exact
    print(f"exponent {k}: {wrong.sum()} of {x.size} differ with an array, {(number != exact).sum()} with a number;",
          f"first {x[wrong][0]!r}: got {array[wrong][0]!r}, exact {exact[wrong][0]!r}")
    assert wrong.any() and np.array_equal(number, exact)
    assert (np.abs(array.view(np.int32) - exact.view(np.int32)) <= 1).all()
PROGRAM
