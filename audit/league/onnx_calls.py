"""ONNX Runtime's operators for the rows: models of one node, built once for each number of axes and each set of attributes."""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from tlspec.registry import Op

#: row -> operator, inputs in the operator's order, and its attributes from the arguments
OPERATORS: dict[str, tuple[str, tuple[str, ...], Callable[[Mapping[str, Any]], dict[str, Any]]]] = {
    **{row: (name, ("x",), lambda v: {}) for row, name in {
        "exp": "Exp", "log": "Log", "sqrt": "Sqrt", "abs": "Abs", "relu": "Relu", "sigmoid": "Sigmoid", "tanh": "Tanh",
        "softplus": "Softplus", "erf": "Erf", "sin": "Sin", "cos": "Cos", "sign": "Sign", "floor": "Floor", "round": "Round",
        "inv": "Reciprocal", "softsign": "Softsign", "hardswish": "HardSwish", "mish": "Mish",
    }.items()},
    **{row: (name, ("a", "b"), lambda v: {}) for row, name in {
        "add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "pow": "Pow", "max": "Max", "min": "Min",
    }.items()},
    "gelu": ("Gelu", ("x",), lambda v: {"approximate": "tanh"}),
    "gelu_erf": ("Gelu", ("x",), lambda v: {"approximate": "none"}),
    "elu": ("Elu", ("x",), lambda v: {"alpha": float(v["alpha"])}),
    "leaky_relu": ("LeakyRelu", ("x",), lambda v: {"alpha": float(v["slope"])}),
    "softmax": ("Softmax", ("x",), lambda v: {"axis": 1}),
    "log_softmax": ("LogSoftmax", ("x",), lambda v: {"axis": 1}),
    "layer_norm": ("LayerNormalization", ("x", "gamma", "beta"), lambda v: {"axis": -1, "epsilon": float(v["eps"])}),
    "matmul": ("MatMul", ("A", "B"), lambda v: {}),
    "bmm": ("MatMul", ("A", "B"), lambda v: {}),
    "linear": ("Gemm", ("x", "W", "b"), lambda v: {"transB": 1}),
    "conv": ("Conv", ("x", "w", "b"), lambda v: {"strides": list(v["stride"]), "pads": list(v["padding"]) * 2}),
    "transpose2d": ("Transpose", ("x",), lambda v: {"perm": [1, 0]}),
}  # fmt: skip


@lru_cache(maxsize=512)
def _session(operator: str, inputs: tuple[tuple[str, int], ...], attributes: tuple[tuple[str, Any], ...]) -> Any:
    import onnx
    import onnxruntime

    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    plain = {k: list(v) if isinstance(v, tuple) else v for k, v in attributes}
    node = helper.make_node(operator, [n for n, _ in inputs], ["out"], **plain)
    given = [helper.make_tensor_value_info(n, kind, [None] * rank) for n, rank in inputs]
    graph = helper.make_graph([node], operator, given, [helper.make_tensor_value_info("out", kind, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def call(row: Op) -> Callable[[Mapping[str, Any]], Any] | None:
    """The operator of a row; None where none is its counterpart."""
    if row.name not in OPERATORS:
        return None
    operator, names, attributes = OPERATORS[row.name]

    def run(values: Mapping[str, Any]) -> Any:
        found = {k: tuple(v) if isinstance(v, list) else v for k, v in attributes(values).items()}
        feeds = {n: values[n] for n in names}
        session = _session(operator, tuple((n, x.ndim) for n, x in feeds.items()), tuple(sorted(found.items())))
        return session.run(None, feeds)[0]

    return run
