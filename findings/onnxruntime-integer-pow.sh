#!/bin/sh
# Surprise: Pow of two int64 goes through float64 in onnxruntime: 7 to the 20th comes out 1 too small, though the result fits
# easily and the type of base, power and result is int64. Mul of the same integers is exact. onnx's reference evaluator is right.
# The natural guess: an operator whose operands and result are int64 computes in int64.
# onnx 1.23.2, onnxruntime 1.32.0, numpy 2.4.6; 2026-11-28.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m pip install -q --target "$folder" onnx==1.23.2 onnxruntime==1.32.0 numpy==2.4.6 2>/dev/null
PYTHONPATH=$folder python3 - <<'PY'
import numpy as np
import onnxruntime
from onnx import parser
from onnx.reference import ReferenceEvaluator

pow_ = parser.parse_model('<ir_version: 9, opset_import: ["" : 15]> g (int64[3] a, int64[3] b) => (int64[3] y) { y = Pow(a, b) }')
mul = parser.parse_model('<ir_version: 9, opset_import: ["" : 15]> g (int64[3] a, int64[3] b) => (int64[3] y) { y = Mul(a, b) }')
run = lambda m, a, b: onnxruntime.InferenceSession(m.SerializeToString()).run(None, {"a": a, "b": b})[0].tolist()
a, b = np.array([7, 3, 5]), np.array([20, 39, 27])
exact = [int(x) ** int(y) for x, y in zip(a, b)]
runtime, reference = run(pow_, a, b), ReferenceEvaluator(pow_).run(None, {"a": a, "b": b})[0].tolist()
print("exact       ", exact)
print("onnxruntime ", runtime, "of type int64")
print("reference   ", reference)
print("onnxruntime, 7^10 * 7^10 by Mul:", run(mul, a**10, a**10)[0])
assert reference == exact and run(mul, a**10, a**10)[0] == exact[0], "the behaviour has changed"
assert runtime != exact and all(r == int(float(e)) for r, e in zip(runtime, exact)), "the behaviour has changed"
PY
