#!/bin/sh
# Surprise: two normalisations of onnx's reference evaluator are not what the standard defines, and no node test sees it.
# LRN loops over as many channels as there are samples in the batch: the others are not normalised at all (their sum of squares
# stays 0), so that a result depends on the batch around it. LpNormalization with p = 1 divides by the sum, not by the sum of absolute
# values: the norm may be negative, and nearly opposite elements explode.
# The natural guess: the package that defines the operators evaluates them as it defines them. onnxruntime does.
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

def both(text, x):
    model = parser.parse_model('<ir_version: 9, opset_import: ["" : 18]> ' + text)
    return (ReferenceEvaluator(model).run(None, {"x": x})[0],
            onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})[0])

text = "g (float[N, 3, 1, 1] x) => (float[N, 3, 1, 1] y) { y = LRN<size = 1, alpha = 1.0, beta = 1.0, bias = 1.0>(x) }"
x = np.ones((3, 3, 1, 1), np.float32)  # 1 / (1 + 1) everywhere
for n in (1, 2, 3):
    reference, runtime = both(text, x[:n])
    print(f"LRN of ones, the first of {n} samples: reference {reference[0].ravel()}, onnxruntime {runtime[0].ravel()}")
    assert reference[0].ravel().tolist() == [0.5] * n + [1.0] * (3 - n) and (runtime == 0.5).all(), "the behaviour has changed"
reference, runtime = both("g (float[4] x) => (float[4] y) { y = LpNormalization<p = 1>(x) }", np.array([3, -1, -1, -2], np.float32))
print("LpNormalization, p = 1, of 3 -1 -1 -2: reference", reference, "onnxruntime", runtime)
assert np.array_equal(reference, np.float32([-3, 1, 1, 2])) and np.allclose(np.abs(runtime).sum(), 1), "the behaviour has changed"
PY
