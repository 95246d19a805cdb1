#!/bin/sh
# Surprise: with align_corners, where along an axis of one element does a grid of samples begin? The standard's function and its
# reference evaluator say at -1, the first corner. onnxruntime says at 1, the last one. PyTorch, whose function it was, says at 0,
# the middle. So an exported spatial transformer that samples one row reads the upper edge, the lower edge or the centre.
# The natural guess: as without align_corners, everybody takes the middle.
# onnx 1.23.2, onnxruntime 1.32.0, torch 2.13.0, numpy 2.4.6; 2026-11-29.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m pip install -q --target "$folder" onnx==1.23.2 onnxruntime==1.32.0 torch==2.13.0 numpy==2.4.6 2>/dev/null
PYTHONPATH=$folder python3 - <<'PY'
import numpy as np
import onnxruntime
import torch
from onnx import parser
from onnx.reference import ReferenceEvaluator

theta = np.eye(2, 3, dtype=np.float32)[None]  # a place is its own image
model = parser.parse_model("""
<ir_version: 9, opset_import: ["" : 20]>
g (float[1, 2, 3] theta) => (float[1, 1, 3, 2] grid)
<int64[4] size = {1, 1, 1, 3}> { grid = AffineGrid<align_corners=1>(theta, size) }""")
session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
found = {
    "onnx.reference": ReferenceEvaluator(model).run(None, {"theta": theta})[0],
    "onnxruntime": session.run(None, {"theta": theta})[0],
    "torch": torch.nn.functional.affine_grid(torch.from_numpy(theta), [1, 1, 1, 3], align_corners=True).numpy(),
}
for name, grid in found.items():
    print(f"{name}: the only row is at {grid[0, 0, 0, 1]}, the columns at {grid[0, 0, :, 0].tolist()}")
expected = {"onnx.reference": -1.0, "onnxruntime": 1.0, "torch": 0.0}
assert {n: float(g[0, 0, 0, 1]) for n, g in found.items()} == expected, "the behaviour has changed"
PY
