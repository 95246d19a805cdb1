#!/bin/sh
# Surprise: onnx.inliner forgets the default value of a function's attribute. Where a call of a model-local function leaves the
# attribute out, the inlined node has no such attribute at all, so that the operator's own default stands: a LeakyRelu with the
# function's slope 0.25 becomes one with 0.01, and the model gives other numbers, without a word. onnx's reference evaluator raises
# a TypeError for the same model; onnxruntime uses the default as the standard (FunctionProto.attribute_proto) says.
# The natural guess: putting a function in place of its call changes no result.
# onnx 1.23.2, onnxruntime 1.32.0, numpy 2.4.6; 2026-11-28.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m pip install -q --target "$folder" onnx==1.23.2 onnxruntime==1.32.0 numpy==2.4.6 2>/dev/null
PYTHONPATH=$folder python3 - <<'PY'
import numpy as np
import onnxruntime
from onnx import inliner, parser, printer
from onnx.reference import ReferenceEvaluator

model = parser.parse_model("""
<ir_version: 9, opset_import: ["" : 18, "local" : 1]>
g (float[2] x) => (float[2] y) { y = local.leak(x) }
<domain: "local", opset_import: ["" : 18]>
leak <slope: float = 0.25> (x) => (y) { y = LeakyRelu<alpha: float = @slope>(x) }
""")
x = {"x": np.array([1, -2], np.float32)}
run = lambda m: onnxruntime.InferenceSession(m.SerializeToString()).run(None, x)[0].tolist()
inlined = inliner.inline_local_functions(model)
print("onnxruntime, the model:        ", run(model))
print("onnxruntime, the model inlined:", run(inlined))
print(printer.to_text(inlined.graph))
try:
    print("reference, the model:", ReferenceEvaluator(model).run(None, x))
    raised = False
except TypeError as error:
    print("reference, the model:          TypeError:", str(error)[:70])
    raised = True
assert run(model) == [1.0, -0.5] and run(inlined) == [1.0, -0.019999999552965164] and raised, "the behaviour has changed"
PY
