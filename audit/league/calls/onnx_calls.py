"""The calls of ONNX Runtime on the CPU: models of one node, or of a few where the row has more, with free lengths."""

from functools import lru_cache
from typing import Any

import numpy as np

from audit.league.calls.numpy_calls import over

#: the operator set that the nodes are of
OPSET = 21

COMPOSED = frozenset({"axpy", "mse_loss", "linear", "eq", "lt", "le"})

ENDS_THE_PROCESS: frozenset[str] = frozenset()
IN_PLACE: frozenset[tuple[str, str]] = frozenset()
FLOAT32: frozenset[str] = frozenset()

LEFT_OUT = {
    "scale": "the number is a tensor, so it is rounded to the format of the other",
    "gather, scatter_add": "Gather refuses indices out of range, which rows read as 0",
    "cross_entropy, attention, topk": "operators of other definitions, or of none that the runtime has on the CPU",
    "dgemm": "of float64 alone, which the league does not run",
}


@lru_cache(maxsize=64)
def _session(nodes: tuple[Any, ...], kinds: tuple[tuple[str, int], ...], out: str, rank: int) -> Any:
    import onnxruntime
    from onnx import TensorProto, helper

    def value(name: str, kind: str, rank: int) -> Any:
        element = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
        return helper.make_tensor_value_info(name, element, [f"{name}{k}" for k in range(rank)])

    made = []
    for op, inputs, output, attributes in nodes:
        plain: dict[str, Any] = {k: list(v) if isinstance(v, tuple) else v for k, v in attributes}
        if op == "Cast":
            plain = {"to": getattr(TensorProto, plain["to"].upper())}
        made.append(helper.make_node(op, list(inputs), [output], **plain))
    inputs = [value(f"x{i}", kind, rank) for i, (kind, rank) in enumerate(kinds)]
    graph = helper.make_graph(made, "graph", inputs, [value("y", out, rank)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def graph(nodes: Any, *arrays: Any, rank: int, out: str = "") -> Any:
    """Runs nodes, each an operator, names of inputs, the name of its output and attributes, on x0, x1, ... to y."""
    arrays = tuple(
        np.ascontiguousarray(a) if np.ndim(a) else a for a in arrays
    )  # the runtime takes contiguous arrays alone
    fixed = tuple((op, tuple(i), o, tuple(sorted((k, tuple(v) if isinstance(v, list) else v) for k, v in at.items())))
                  for op, i, o, at in nodes)  # fmt: skip
    kinds = tuple((str(a.dtype), a.ndim) for a in arrays)
    session = _session(fixed, kinds, out or kinds[0][0], rank)
    return session.run(None, {f"x{i}": a for i, a in enumerate(arrays)})[0]


def node(op: str, *arrays: Any, rank: int | None = None, out: str = "", **attributes: Any) -> Any:
    """Runs one node. None stands for an optional input that is not given."""
    names: list[str] = []
    given: list[Any] = []
    for a in arrays:
        names.append("" if a is None else f"x{len(given)}")
        given += [] if a is None else [a]
    return graph([(op, names, "y", attributes)], *given, rank=given[0].ndim if rank is None else rank, out=out)


def _unary(op: str) -> Any:
    return lambda x: node(op, x)


def _binary(op: str) -> Any:
    return lambda a, b: node(op, a, b)


def _compare(op: str) -> Any:
    def run(a: Any, b: Any) -> Any:
        kind = {"float32": "float", "float16": "float16"}[str(a.dtype)]
        return graph([(op, ["x0", "x1"], "t", {}), ("Cast", ["t"], "y", {"to": kind})], a, b, rank=a.ndim)

    return run


def _reduce(op: str, x: Any, axes: tuple[int, ...]) -> Any:
    """A reduction that keeps nothing of its axes; of no axis, as of a new one."""
    if not axes:
        x, axes = x[..., None], (x.ndim,)
    return node(op, x, np.array(axes, np.int64), rank=x.ndim - len(axes), keepdims=0)


def _pool(op: str, x: Any, kernel: Any, stride: Any, padding: Any) -> Any:
    more: dict[str, Any] = {"count_include_pad": 1} if op == "AveragePool" else {}
    return node(op, x[None], kernel_shape=list(kernel), strides=list(stride), pads=[*padding, *padding], **more)[0]


def _conv(op: str, x: Any, w: Any, b: Any, stride: Any, padding: Any) -> Any:
    return node(op, x, w, b, strides=list(stride), pads=[*padding, *padding])


def _conv_grouped(
    x: Any, w: Any, b: Any = None, *, stride: Any, dilation: Any, padding_low: Any, padding_high: Any
) -> Any:
    n, groups, *_ = x.shape
    y = node("Conv", x.reshape(n, -1, *x.shape[3:]), w.reshape(-1, *w.shape[2:]), None if b is None else b.reshape(-1),
             strides=list(stride), dilations=list(dilation), pads=[*padding_low, *padding_high], group=groups)  # fmt: skip
    return y.reshape(n, groups, -1, *y.shape[2:])


def _cumsum(x: Any, axis: int, reverse: int) -> Any:
    return node("CumSum", x, np.array(axis, np.int64), reverse=int(reverse))


def _norm(x: Any, gamma: Any, beta: Any, eps: float) -> Any:
    return node("LayerNormalization", x, gamma, beta, axis=1, epsilon=eps)


def _number(x: Any, value: float) -> Any:
    return np.asarray(value, x.dtype)


def calls() -> dict[str, Any]:
    """The calls by row."""
    two = {"add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "max": "Max", "min": "Min", "pow": "Pow"}
    one = {
        "inv": "Reciprocal", "sqrt": "Sqrt", "abs": "Abs", "relu": "Relu", "sign": "Sign", "floor": "Floor", "round": "Round",
        "exp": "Exp", "log": "Log", "sigmoid": "Sigmoid", "tanh": "Tanh", "softplus": "Softplus", "gelu_erf": "Gelu",
        "erf": "Erf", "sin": "Sin", "cos": "Cos", "hardswish": "HardSwish", "softsign": "Softsign", "mish": "Mish",
    }  # fmt: skip
    return {
        **{name: _binary(op) for name, op in two.items()}, **{name: _unary(op) for name, op in one.items()},
        "matmul": lambda A, B: node("MatMul", A, B), "bmm": lambda A, B: node("MatMul", A, B),
        "eq": _compare("Equal"), "lt": _compare("Less"), "le": _compare("LessOrEqual"),
        "clamp": lambda x, lo, hi: node("Clip", x, _number(x, lo), _number(x, hi)),
        "gelu": lambda x: node("Gelu", x, approximate="tanh"), "elu": lambda x, alpha: node("Elu", x, alpha=alpha),
        "leaky_relu": lambda x, slope: node("LeakyRelu", x, alpha=slope),
        "pow_scalar": lambda x, p: node("Pow", x, _number(x, p)),
        "where": lambda mask, a, b: node("Where", mask != 0, a, b, rank=a.ndim, out=str(a.dtype)),
        "masked_fill": lambda x, mask, value: node("Where", mask != 0, _number(x, value), x, rank=x.ndim, out=str(x.dtype)),
        "reduce_sum": lambda x: _reduce("ReduceSum", x, (0,)), "reduce_sum_axis0": lambda x: _reduce("ReduceSum", x, (0,)),
        "reduce_sum_axis1": lambda x: _reduce("ReduceSum", x, (1,)),
        "reduce_sum_axis": lambda x, axis: _reduce("ReduceSum", x, (axis,)),
        "reduce_mean": lambda x, axis: _reduce("ReduceMean", x, (axis,)),
        "reduce_max_axis0": lambda x: _reduce("ReduceMax", x, (0,)), "reduce_max_axis1": lambda x: _reduce("ReduceMax", x, (1,)),
        "amax": lambda x, axes: _reduce("ReduceMax", x, over(axes)), "amin": lambda x, axes: _reduce("ReduceMin", x, over(axes)),
        "prod": lambda x, axes: _reduce("ReduceProd", x, over(axes)),
        "logsumexp": lambda x, axes: _reduce("ReduceLogSumExp", x, over(axes)), "cumsum": _cumsum,
        "concat1d": lambda a, b: node("Concat", a, b, axis=0), "concat_rows": lambda a, b: node("Concat", a, b, axis=1),
        "slice1d": lambda x, start, len: node("Slice", x, np.array([start]), np.array([start + len])),
        "transpose2d": lambda x: node("Transpose", x, perm=[1, 0]),
        "transpose3d_bca": lambda x: node("Transpose", x, perm=[1, 2, 0]),
        "transpose3d_cab": lambda x: node("Transpose", x, perm=[2, 0, 1]),
        "transpose3d_acb": lambda x: node("Transpose", x, perm=[0, 2, 1]),
        "broadcast_vec_to_rows": lambda vec, rows, cols: node("Expand", vec, np.array([rows, cols]), rank=2),
        "broadcast_vec_to_cols": lambda vec, rows, cols: node("Expand", vec[:, None], np.array([rows, cols])),
        "argmax": lambda x: node("ArgMax", x, axis=1, keepdims=0, rank=2, out="int64"),
        "argmin": lambda x: node("ArgMin", x, axis=1, keepdims=0, rank=2, out="int64"),
        "linear": lambda W, x, b: node("Gemm", x, W, b, transB=1), "softmax": lambda x: node("Softmax", x, axis=1),
        "log_softmax": lambda x: node("LogSoftmax", x, axis=1), "layer_norm": _norm,
        "conv": lambda x, w, b, stride, padding: _conv("Conv", x, w, b, stride, padding),
        "conv_transpose": lambda x, w, b, stride, padding: _conv("ConvTranspose", x, w, b, stride, padding),
        "conv2d": lambda x, w, b, stride_h, stride_w, padding_h, padding_w: _conv(
            "Conv", x, w, b, (stride_h, stride_w), (padding_h, padding_w)),
        "conv_transpose2d": lambda x, w, b, stride_h, stride_w, padding_h, padding_w: _conv(
            "ConvTranspose", x, w, b, (stride_h, stride_w), (padding_h, padding_w)),
        "conv_grouped": _conv_grouped,
        "max_pool": lambda x, kernel, stride, padding: _pool("MaxPool", x, kernel, stride, padding),
        "avg_pool": lambda x, kernel, stride, padding: _pool("AveragePool", x, kernel, stride, padding),
        "max_pool2d": lambda x, kernel_h, kernel_w, stride_h, stride_w, padding_h, padding_w: _pool(
            "MaxPool", x, (kernel_h, kernel_w), (stride_h, stride_w), (padding_h, padding_w)),
        "avg_pool2d": lambda x, kernel_h, kernel_w, stride_h, stride_w, padding_h, padding_w: _pool(
            "AveragePool", x, (kernel_h, kernel_w), (stride_h, stride_w), (padding_h, padding_w)),
    }  # fmt: skip
