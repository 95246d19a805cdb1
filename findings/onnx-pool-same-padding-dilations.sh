#!/bin/sh
# Surprise: a pool with auto_pad=SAME_UPPER and dilations has three meanings. The standard's length is that of the input, ceil(9 / 1).
# onnxruntime pads as if there were no dilation: its result has 7 elements, which is not the shape that it inferred (it warns).
# onnx's reference evaluator has the 9 maxima right; of AveragePool it gives onnxruntime's 7 averages and two zeros behind them. For
# Conv onnxruntime refuses the pair of attributes.
#
# Natural guess: SAME keeps the length, as the padding follows from the dilated window (4 elements, half of them on either side).
#
# onnx 1.23.2, onnxruntime 1.32.0, numpy 2.4.6, CPU; Python 3.11; 2026-11-29.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m pip install --quiet --no-cache-dir --target "$folder" onnx==1.23.2 onnxruntime==1.32.0 numpy==2.4.6
PYTHONPATH=$folder python3 - <<'PROGRAM'
import numpy as np
import onnxruntime
from onnx import parser
from onnx.reference import ReferenceEvaluator

x = np.arange(9, dtype=np.float32).reshape(1, 1, 9)
padded = np.pad(x[0, 0], 2, constant_values=np.nan)
windows = np.stack([padded[k : k + 9] for k in (0, 2, 4)])
right = {"MaxPool": np.nanmax(windows, axis=0).tolist(), "AveragePool": np.nanmean(windows, axis=0).tolist()}
found = {}
for op in right:
    model = parser.parse_model(f"""
<ir_version: 10, opset_import: ["" : 19]>
g (float[1, 1, 9] x) => (float[1, 1, n] y)
{{ y = {op}<auto_pad="SAME_UPPER", dilations=[2], strides=[1], kernel_shape=[3]>(x) }}""")
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    found[op, "onnx.reference"] = ReferenceEvaluator(model).run(None, {"x": x})[0][0, 0].tolist()
    found[op, "onnxruntime"] = session.run(None, {"x": x})[0][0, 0].tolist()
    print(f"{op}, by its definition: {right[op]}")
    for who in ("onnx.reference", "onnxruntime"):
        print(f"{op}, {who}: {found[op, who]}")
assert found["MaxPool", "onnx.reference"] == right["MaxPool"]
assert found["AveragePool", "onnx.reference"] == [2, 2, 3, 4, 5, 6, 6, 0, 0] != right["AveragePool"], "the behaviour has changed"
for op in right:
    assert len(found[op, "onnxruntime"]) == 7, "the behaviour has changed"
PROGRAM
