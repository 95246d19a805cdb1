"""Shapes and slices of floats."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tlrt.onnx.control import converted
from tlrt.onnx.graph import OPERATORS, Host, Run, Tensor, Value, operator
from tlrt.onnx.host import depth_steps, hot, ints, pad_widths, parts, sizes_of, slices, space_steps


def _tile(run: Run, x: Tensor, repeats: Host) -> Tensor:
    return x.tile(ints(repeats))


def _expand(run: Run, x: Tensor, shape: Host) -> Tensor:
    return x.broadcast_to(np.broadcast_shapes(x.shape, tuple(ints(shape))))


def _reshape(run: Run, x: Tensor, shape: Host, *, allowzero: int = 0) -> Tensor:
    return x.reshape(sizes_of(x.shape, shape, allowzero))


def _squeeze(run: Run, x: Tensor, axes: Host = None) -> Tensor:
    drop = {k for k, n in enumerate(x.shape) if n == 1} if axes is None else {a % x.ndim for a in ints(axes)}
    return x.reshape([n for k, n in enumerate(x.shape) if k not in drop])


def _unsqueeze(run: Run, x: Tensor, axes: Host) -> Tensor:
    return x.reshape(np.expand_dims(np.empty(x.shape, bool), tuple(ints(axes))).shape)


def _split(run: Run, x: Tensor, sizes: Host = None, *, axis: int = 0, num_outputs: int = 1) -> Any:
    return x.split(parts(x.shape[axis], sizes, num_outputs), axis)


def _slice(run: Run, x: Tensor, starts: Host, ends: Host, axes: Host = None, steps: Host = None) -> Tensor:
    return x[slices(x.shape, starts, ends, axes, steps)]


def _trilu(run: Run, x: Tensor, k: Host = None, *, upper: int = 1) -> Tensor:
    offset = 0 if k is None else ints(k)[0]
    return x.triu(offset) if upper else x.tril(offset)


def _depth_to_space(run: Run, x: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    before, order, after = depth_steps(x.shape, blocksize, mode)
    return x.reshape(before).permute(order).reshape(after)


def _space_to_depth(run: Run, x: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    before, order, after = space_steps(x.shape, blocksize, mode)
    return x.reshape(before).permute(order).reshape(after)


def _einsum(run: Run, *xs: Tensor, equation: str) -> Tensor:
    return run.session.einsum(equation.replace(" ", ""), *xs)


OPERATORS.update({
    "Tile": _tile, "Expand": _expand, "Reshape": _reshape, "Squeeze": _squeeze, "Unsqueeze": _unsqueeze, "Split": _split,
    "Slice": _slice, "Trilu": _trilu, "DepthToSpace": _depth_to_space, "SpaceToDepth": _space_to_depth, "Einsum": _einsum,
    "Flatten": lambda run, x, *, axis=1: x.reshape((math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))),
    "Transpose": lambda run, x, *, perm=None: x.permute(range(x.ndim)[::-1] if perm is None else perm),
    "Concat": lambda run, *xs, axis: run.session.concat(xs, axis),
})  # fmt: skip


@operator("Pad")
def pad(run: Run, x: Tensor, widths: Host, fill: Host = None, axes: Host = None, *, mode: str = "constant") -> Tensor:
    pairs = pad_widths(x.ndim, widths, axes)
    cut = np.maximum(-pairs, 0)
    x = x[tuple(slice(a, n - b) for n, (a, b) in zip(x.shape, cut.tolist()))] if cut.any() else x
    pairs = np.maximum(pairs, 0)
    if mode == "constant":
        return x.pad(pairs.tolist(), 0.0 if fill is None else float(fill.reshape(-1)[0]))
    for k, (before, after) in enumerate(pairs.tolist()):
        if before or after:
            places: Any = np.pad(np.arange(x.shape[k]), (before, after), mode)  # type: ignore[call-overload]
            x = x.take(places, axis=k)
    return x


def _running(x: Tensor, axis: Host, name: str, first: float, exclusive: int, reverse: int) -> Tensor:
    """Running results; exclusive ones begin with the first and leave out the last."""
    place = ints(axis)[0] % x.ndim
    turned = x.flip(place) if reverse else x
    if exclusive and x.shape[place]:
        widths = [(int(k == place), 0) for k in range(x.ndim)]
        kept = tuple(slice(n - 1) if k == place else slice(None) for k, n in enumerate(x.shape))
        turned = turned[kept].pad(widths, first)
    found = getattr(turned, name)(place)
    return found.flip(place) if reverse else found


@operator("CumSum")
def cumsum(run: Run, x: Tensor, axis: Host, *, exclusive: int = 0, reverse: int = 0) -> Tensor:
    return _running(x, axis, "cumsum", 0.0, exclusive, reverse)


@operator("CumProd")
def cumprod(run: Run, x: Tensor, axis: Host, *, exclusive: int = 0, reverse: int = 0) -> Tensor:
    return _running(x, axis, "cumprod", 1.0, exclusive, reverse)


@operator("Range")
def range_(run: Run, start: Tensor, limit: Tensor, delta: Tensor) -> Tensor:
    """start + k delta; how many there are is decided on the host, in float64."""
    first, last, step = (float(run.host(v).reshape(-1)[0]) for v in (start, limit, delta))
    count = max(math.ceil((last - first) / step), 0)
    return start.reshape(()) + run.tensor(np.arange(count)) * delta.reshape(())


@operator("OneHot")
def one_hot(run: Run, index: Host, depth: Host, values: Value, *, axis: int = -1) -> Value:
    ones = hot(index, depth, axis)
    if isinstance(values, np.ndarray):
        return np.where(ones, values[1], values[0])
    values = converted(run, values, np.dtype(np.float32))
    return run.session.where(run.tensor(ones), values[1], values[0])
