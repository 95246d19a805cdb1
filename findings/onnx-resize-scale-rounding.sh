#!/bin/sh
# Surprise: how many elements a Resize by 0.7 makes of 10 is 6 or 7, depending on whom you ask. The standard says
# floor(length * scale), and the scale is a float32, which is a little less than 0.7: onnx's shape inference and its reference
# evaluator say 6 (float64). onnxruntime multiplies in float32, where the product rounds to 7, as PyTorch's interpolate does; it only
# warns that the shape is not the one that was inferred. The same with 0.9, 1.3 and 2.3.
# The natural guess: the tools of one format agree on the shape of a result.
# onnx 1.23.2, onnxruntime 1.32.0, numpy 2.4.6; 2026-11-28.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m pip install -q --target "$folder" onnx==1.23.2 onnxruntime==1.32.0 numpy==2.4.6 2>/dev/null
PYTHONPATH=$folder python3 - <<'PY'
import numpy as np
import onnxruntime
from onnx import parser, shape_inference
from onnx.reference import ReferenceEvaluator

onnxruntime.set_default_logger_severity(4)
x = {"x": np.arange(10, dtype=np.float32).reshape(1, 1, 10)}
found = {}
for scale in (0.5, 0.7, 0.9, 1.3, 2.3):
    model = parser.parse_model(f"""
    <ir_version: 9, opset_import: ["" : 19]>
    g (float[1, 1, 10] x) => (float[a, b, n] y)
    <float[3] scales = {{1.0, 1.0, {scale}}}> {{ y = Resize<mode="nearest">(x, , scales) }}""")
    inferred = shape_inference.infer_shapes(model, data_prop=True).graph.output[0].type.tensor_type.shape.dim[2]
    reference = ReferenceEvaluator(model).run(None, x)[0].shape[2]
    runtime = onnxruntime.InferenceSession(model.SerializeToString()).run(None, x)[0].shape[2]
    found[scale] = inferred.dim_value or reference, reference, runtime
    print(f"10 elements by {scale}: shape inference {found[scale][0]}, reference {reference}, onnxruntime {runtime}")
expected = {0.5: (5, 5, 5), 0.7: (6, 6, 7), 0.9: (8, 8, 9), 1.3: (12, 12, 13), 2.3: (22, 22, 23)}
assert found == expected, "the behaviour has changed"
PY
