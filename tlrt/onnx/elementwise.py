"""Elementwise operators, comparisons, masks and conversions."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from tlrt.onnx.graph import HOST, OPERATORS, Graph, Host, NotExpressible, Run, Tensor, Value, operator

#: operators without attributes that are one operation of the session
SAME = {
    "Abs": "abs", "Neg": "neg", "Exp": "exp", "Log": "log", "Sqrt": "sqrt", "Reciprocal": "inv", "Floor": "floor",
    "Round": "round", "Sign": "sign", "Sin": "sin", "Cos": "cos", "Tanh": "tanh", "Sigmoid": "sigmoid", "Erf": "erf",
    "Softplus": "softplus", "Softsign": "softsign", "Relu": "relu", "HardSwish": "hardswish", "Mish": "mish",
    "Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div", "Equal": "eq", "Less": "lt", "LessOrEqual": "le",
    "Greater": "gt", "GreaterOrEqual": "ge", "And": "mul", "Or": "max", "Xor": "ne", "Where": "where", "MatMul": "matmul",
}  # fmt: skip


def _identity(run: Run, x: Value) -> Value:
    return x


def _same(method: str) -> Callable[..., Any]:
    return lambda run, *xs: getattr(run.session, method)(*xs)


OPERATORS.update({name: _same(method) for name, method in SAME.items()})
OPERATORS.update({
    "Sum": lambda run, *xs: reduce(run.session.add, xs),
    "Mean": lambda run, *xs: reduce(run.session.add, xs) / len(xs),
    "Max": lambda run, *xs: reduce(run.session.max, xs),
    "Min": lambda run, *xs: reduce(run.session.min, xs),
    "Not": lambda run, x: x.eq(0.0),
    "Pow": lambda run, a, b: a.pow(b),
    "Ceil": lambda run, x: -(-x).floor(),
    "Tan": lambda run, x: x.sin() / x.cos(),
    "Asin": lambda run, x: run.session.atan2(x, ((1 - x) * (1 + x)).sqrt()),
    "Acos": lambda run, x: run.session.atan2(((1 - x) * (1 + x)).sqrt(), x),
    "Atan": lambda run, x: run.session.atan2(x, 1.0),
    "Sinh": lambda run, x: (x.expm1() - (-x).expm1()) * 0.5,
    "Cosh": lambda run, x: (x.exp() + (-x).exp()) * 0.5,
    "Asinh": lambda run, x: x.sign() * (x.abs() + x.square() / (1 + (x.square() + 1).sqrt())).log1p(),
    "Acosh": lambda run, x: (x + ((x - 1) * (x + 1)).sqrt()).log(),
    "Atanh": lambda run, x: (x.log1p() - (-x).log1p()) * 0.5,
    "LeakyRelu": lambda run, x, *, alpha=0.01: x.leaky_relu(alpha),
    "PRelu": lambda run, x, slope: run.session.where(x < 0, x * slope, x),
    "Elu": lambda run, x, *, alpha=1.0: x.elu(alpha),
    "Selu": lambda run, x, *, alpha=1.6732632, gamma=1.0507010: x.elu(alpha) * gamma,
    "Celu": lambda run, x, *, alpha=1.0: (x / alpha).elu(1.0) * alpha,
    "ThresholdedRelu": lambda run, x, *, alpha=1.0: x.masked_fill(x <= alpha, 0.0),
    "HardSigmoid": lambda run, x, *, alpha=0.2, beta=0.5: (x * alpha + beta).clamp(0.0, 1.0),
    "Gelu": lambda run, x, *, approximate="none": x.gelu(approximate=approximate),
    "Swish": lambda run, x, *, alpha=1.0: x * (x * alpha).sigmoid(),
    "SwiGLU": lambda run, gate, x, *, alpha=1.0: gate * (gate * alpha).sigmoid() * x,
    "Shrink": lambda run, x, *, bias=0.0, lambd=0.5: (x - bias) * (x > lambd) + (x + bias) * (x < -lambd),
    "IsInf": lambda run, x, *, detect_negative=1, detect_positive=1: (
        x.eq(math.inf) * float(detect_positive) + x.eq(-math.inf) * float(detect_negative)),
    "Identity": _identity, "IsNaN": lambda run, x: x.ne(x),
    "Shape": lambda run, x, *, start=0, end=None: np.asarray(x.shape[start:end], np.int64),
    "Size": lambda run, x: np.asarray(math.prod(x.shape), np.int64),
})  # fmt: skip


@operator("Clip")
def clip(run: Run, x: Tensor, low: Tensor = None, high: Tensor = None, *, min: Any = None, max: Any = None) -> Tensor:
    x = x if low is None and min is None else x.max(low if min is None else min)
    return x if high is None and max is None else x.min(high if max is None else max)


@operator("Mod")
def mod(run: Run, a: Tensor, b: Tensor, *, fmod: int = 0) -> Tensor:
    """The remainder of the quotient's whole part has the sign of a; that of its floor has the sign of b."""
    whole = (a / b).abs().floor() * (a / b).sign()
    rest = a - (whole * b).masked_fill(whole.eq(0.0), 0.0)
    return rest if fmod else run.session.where(rest * b < 0, rest + b, rest)


@operator("Dropout")
def dropout(run: Run, x: Tensor, p: Host = None, training: Host = None, *, seed: int = 0, ratio: float = 0.5) -> Any:
    """Not in training, or with nothing dropped: the random numbers of the test are NumPy's."""
    if training is not None and bool(training) and (p is None or float(p) > 0):
        raise NotExpressible("the random numbers of Dropout")
    return x, run.session.full(x.shape, 1.0)


#: the numbers of ONNX's types, as NumPy's
TYPES: dict[int, Any] = {1: np.float32, 6: np.int32, 7: np.int64, 9: np.bool_}


@operator("Cast")
def cast(run: Run, x: Value, *, to: int, saturate: int = 1) -> Value:
    """Masks are floats already; floats become integers on the host."""
    if to not in TYPES:
        raise NotExpressible(f"type number {to}")
    if to == 1:
        return run.tensor(x)
    if isinstance(x, np.ndarray):
        return x.astype(TYPES[to])
    return x.ne(0.0) if to == 9 else x.numpy().astype(TYPES[to])


@operator("CastLike")
def cast_like(run: Run, x: Value, like: Value, *, saturate: int = 1) -> Value:
    return cast(run, x, to={"i": 7, "b": 9}[like.dtype.kind]) if isinstance(like, np.ndarray) else run.tensor(x)


@operator("Constant")
def constant(run: Run, *, value: Any = None, value_float: Any = None, value_floats: Any = None, value_int: Any = None,
             value_ints: Any = None) -> Value:  # fmt: skip
    floats, ints = (a if b is None else b for a, b in ((value_float, value_floats), (value_int, value_ints)))
    return run.enter(
        np.asarray(floats, np.float32) if floats is not None else np.asarray(ints if value is None else value)
    )


@operator("If")
def branch(run: Run, condition: Host, *, then_branch: Graph, else_branch: Graph) -> Any:
    return run.graph(then_branch if bool(condition) else else_branch, ())


@operator("Scan")
def scan(run: Run, *operands: Tensor, body: Graph, num_scan_inputs: int, scan_input_axes: Any = (),
         scan_output_axes: Any = (), scan_input_directions: Any = (), scan_output_directions: Any = ()) -> Any:  # fmt: skip
    count = len(operands) - num_scan_inputs
    state, inputs = list(operands[:count]), operands[count:]
    axes = scan_input_axes or [0] * num_scan_inputs
    backward = scan_input_directions or [0] * num_scan_inputs
    length, collected = inputs[0].shape[axes[0]], []
    for k in range(length):
        parts = [x.take(np.asarray(length - 1 - k if b else k), axis=a) for x, a, b in zip(inputs, axes, backward)]
        outputs = run.graph(body, (*state, *parts))
        state = outputs[:count]
        collected.append(outputs[count:])
    columns = list(zip(*collected))
    axes, backward = scan_output_axes or [0] * len(columns), scan_output_directions or [0] * len(columns)
    return *state, *(run.session.stack(c[::-1] if b else c, axis=a) for c, a, b in zip(columns, axes, backward))


# ---- among host arrays: shapes, axes, indices and masks known before the run


def _axes(given: Any) -> tuple[int, ...] | None:
    return None if given is None else tuple(np.asarray(given, np.int64).reshape(-1).tolist()) or None


def _host_slice(x: Host, starts: Host, ends: Host, axes: Host = None, steps: Host = None) -> Host:
    key = [slice(None)] * x.ndim
    for i, (start, end) in enumerate(zip(starts.tolist(), ends.tolist())):
        key[i if axes is None else int(axes[i])] = slice(start, end, 1 if steps is None else int(steps[i]))
    return x[tuple(key)]


def _host_pad(x: Host, widths: Host, value: Host = None, axes: Host = None, mode: Any = "constant") -> Host:
    pairs = np.zeros((x.ndim, 2), np.int64)
    pairs[slice(None) if axes is None else axes] = widths.reshape(2, -1).T
    x = x[tuple(slice(max(-a, 0), n - max(-b, 0)) for n, (a, b) in zip(x.shape, pairs.tolist()))]
    constant = {} if value is None or mode != "constant" else {"constant_values": _number(value)}
    return np.pad(x, np.maximum(pairs, 0), mode, **constant)


def _host_reduce(function: Any) -> Any:
    def call(x: Host, axes: Host = None, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Host:
        chosen = _axes(axes) or (() if noop_with_empty_axes else None)
        return np.asarray(function(x, axis=chosen, keepdims=bool(keepdims)))

    return call


def _number(x: Host) -> int:
    return int(np.asarray(x).reshape(-1)[0])


def _host_cumsum(x: Host, axis: int, exclusive: int, reverse: int) -> Host:
    turned = np.flip(x, axis) if reverse else x
    found = np.cumsum(turned, axis, dtype=x.dtype) - (turned if exclusive else 0)
    return np.flip(found, axis) if reverse else found


def _host_gather_nd(x: Host, index: Host, batch_dims: int) -> Host:
    if batch_dims:
        raise NotExpressible("batch_dims of GatherND on the host")
    return x[tuple(np.moveaxis(index, -1, 0))]


HOST.update({
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Neg": np.negative, "Abs": np.abs,
    "Div": lambda a, b: np.trunc(a / b).astype(a.dtype),
    "Equal": np.equal, "Less": np.less, "LessOrEqual": np.less_equal, "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal, "And": np.logical_and, "Or": np.logical_or, "Not": np.logical_not,
    "Xor": np.logical_xor, "Where": np.where, "Concat": lambda *xs, axis: np.concatenate(xs, axis),
    "Gather": lambda x, i, axis=0: np.take(x, i, axis), "Max": lambda *xs: reduce(np.maximum, xs),
    "Min": lambda *xs: reduce(np.minimum, xs), "Mod": np.mod,
    "Range": lambda *ends: np.arange(*map(_number, ends)), "Slice": _host_slice,
    "Squeeze": lambda x, axes=None: x.squeeze(_axes(axes)),
    "Unsqueeze": lambda x, axes: np.expand_dims(x, _axes(axes) or ()), "Transpose": lambda x, perm=None: np.transpose(x, perm),
    "Expand": lambda x, s: x * np.ones(s, x.dtype) if x.dtype != bool else x & np.ones(s, bool),
    "ReduceSum": _host_reduce(np.sum), "ReduceMax": _host_reduce(np.max), "ReduceMin": _host_reduce(np.min),
    "ReduceProd": _host_reduce(np.prod), "Identity": lambda x: x, "Size": lambda x: np.asarray(x.size, np.int64),
    "Flatten": lambda x, axis=1: x.reshape(math.prod(x.shape[:axis]), -1),
    "Tile": np.tile, "Sign": np.sign, "Clip": lambda x, low=None, high=None: np.clip(x, low, high),
    "CumSum": lambda x, axis, exclusive=0, reverse=0: _host_cumsum(x, _number(axis), exclusive, reverse),
    "Trilu": lambda x, k=0, upper=1: (np.triu if upper else np.tril)(x, _number(k)),
    "NonZero": lambda x: np.asarray(np.nonzero(x)),
    "GatherElements": lambda x, i, axis=0: np.take_along_axis(x, i, axis),
    "GatherND": lambda x, i, batch_dims=0: _host_gather_nd(x, i, batch_dims),
    "Pad": _host_pad,
})  # fmt: skip
