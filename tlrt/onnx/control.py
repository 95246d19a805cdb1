"""Constants, conversions between types, and graphs within graphs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tlrt.onnx.graph import OPERATORS, Graph, Host, Mask, Node, NotExpressible, Run, Tensor, Value, is_float, operator
from tlrt.onnx.host import ints


def type_of(number: int) -> np.dtype[Any]:
    """NumPy's type for the number of one of ONNX's; raises NotExpressible where tlrt has none."""
    from tlrt.onnx.reader import onnx

    kind: np.dtype[Any] = onnx().helper.tensor_dtype_to_np_dtype(number)
    if not is_known(kind):
        raise NotExpressible(f"type {kind}")
    return kind


def is_known(kind: Any) -> bool:
    """Whether tensors of a type can be computed: float32 on the device, integers of 8 bits and more and booleans on the host."""
    return kind == np.float32 or (isinstance(kind, np.dtype) and kind.kind in "iub" and kind.isbuiltin == 1)


def converted(run: Run, x: Value, kind: np.dtype[Any]) -> Value:
    """A value in another type; floats become integers on the host, towards zero."""
    if kind == np.float32:
        return run.tensor(x)
    if kind == np.bool_ and is_float(x):
        return Mask(x.ne(0.0))
    if kind == np.bool_ and isinstance(x, Mask):
        return x
    with np.errstate(all="ignore"):
        return run.host(x).astype(kind)


@operator("Cast")
def cast(run: Run, x: Value, *, to: int, saturate: int = 1, round_mode: str = "up") -> Value:
    return converted(run, x, type_of(to))


@operator("CastLike")
def cast_like(run: Run, x: Value, like: Value, *, saturate: int = 1, round_mode: str = "up") -> Value:
    return converted(run, x, np.dtype(np.float32) if is_float(like) else like.dtype)


@operator("Constant")
def constant(
    run: Run, *, value: Any = None, value_float: Any = None, value_floats: Any = None, value_int: Any = None,
    value_ints: Any = None, sparse_value: Any = None,
) -> Value:  # fmt: skip
    floats, whole = (a if b is None else b for a, b in ((value_float, value_floats), (value_int, value_ints)))
    if floats is not None:
        return run.enter(np.asarray(floats, np.float32))
    if whole is not None:
        return np.asarray(whole, np.int64)
    return run.enter(np.asarray(sparse_value if value is None else value))


@operator("ConstantOfShape")
def constant_of_shape(run: Run, shape: Host, *, value: Any = None) -> Value:
    fill = np.zeros(1, np.float32) if value is None else np.asarray(value).reshape(-1)
    return run.enter(np.full(ints(shape), fill[0]))


@operator("EyeLike")
def eye_like(run: Run, x: Value, *, dtype: int | None = None, k: int = 0) -> Value:
    kind = type_of(dtype) if dtype is not None else np.dtype(np.float32) if is_float(x) else x.dtype
    rows, cols = x.shape
    return run.enter(np.eye(rows, cols, k=k, dtype=kind))


def _mask_or_same(run: Run, x: Value) -> Value:
    return x


def _shape(run: Run, x: Value, *, start: int = 0, end: int | None = None) -> Host:
    return np.asarray(tuple(x.shape)[start:end], np.int64)


def _size(run: Run, x: Value) -> Host:
    return np.asarray(math.prod(x.shape), np.int64)


OPERATORS.update({"Identity": _mask_or_same, "Shape": _shape, "Size": _size})


@operator("If")
def branch(run: Run, condition: Host, *, then_branch: Graph, else_branch: Graph) -> Any:
    return run.graph(then_branch if condition.any() else else_branch, ())


def _stacked(run: Run, values: Sequence[Value], axis: int) -> Value:
    """Values of one type, on a new axis."""
    if all(isinstance(v, Mask) for v in values):
        return Mask(run.session.stack([v.tensor for v in values], axis))
    if is_float(values[0]):
        return run.session.stack(values, axis)
    return np.stack([run.host(v) for v in values], axis)


@operator("Loop")
def loop(run: Run, count: Host, condition: Host, *carried: Value, body: Graph) -> Any:
    """Runs the body until its condition is false, at most so many times."""
    limit = None if count is None else ints(count)[0]
    state, collected, go = list(carried), [], condition is None or bool(condition.any())
    for k in itertools.count():
        if not go or (limit is not None and k >= limit):
            break
        again, *outputs = run.graph(body, (np.asarray(k, np.int64), np.asarray(True), *state))
        state, go = outputs[: len(state)], bool(run.host(again).any())
        collected.append(outputs[len(state) :])
    if not collected and len(body.outputs) - 1 > len(state):
        raise NotExpressible("Loop: what a body that never ran would have collected")
    return *state, *(_stacked(run, column, 0) for column in zip(*collected))


@operator("Scan")
def scan(run: Run, *operands: Value, body: Graph, num_scan_inputs: int, scan_input_axes: Any = (),
         scan_output_axes: Any = (), scan_input_directions: Any = (), scan_output_directions: Any = ()) -> Any:  # fmt: skip
    count = len(operands) - num_scan_inputs
    state, inputs = list(operands[:count]), operands[count:]
    axes = scan_input_axes or [0] * num_scan_inputs
    backward = scan_input_directions or [0] * num_scan_inputs
    length, collected = inputs[0].shape[axes[0]], []
    for k in range(length):
        at = [np.asarray(length - 1 - k if b else k) for b in backward]
        elements = [run.call(Node("Gather", "", "", {"axis": a}), (x, i))[0] for x, a, i in zip(inputs, axes, at)]
        outputs = run.graph(body, (*state, *elements))
        state = outputs[:count]
        collected.append(outputs[count:])
    columns = list(zip(*collected))
    axes, backward = scan_output_axes or [0] * len(columns), scan_output_directions or [0] * len(columns)
    return *state, *(_stacked(run, c[::-1] if b else c, a) for c, a, b in zip(columns, axes, backward))


@operator("Dropout")
def dropout(run: Run, x: Tensor, p: Host = None, training: Host = None, *, seed: int = 0, ratio: float = 0.5) -> Any:
    """Not in training, or with nothing dropped: what random numbers drop is not written down."""
    if training is not None and bool(training.any()) and (p is None or float(p.reshape(-1)[0]) > 0):
        raise NotExpressible("the random numbers of Dropout")
    return x, np.ones(x.shape, np.bool_)
