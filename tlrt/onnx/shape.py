"""Shapes, slices and gathers."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from tlrt.onnx.graph import HOST, OPERATORS, Host, Run, Tensor, Value, operator


def ints(values: Any) -> list[int]:
    """Integers of an array or a list, in one axis."""
    return [int(v) for v in np.asarray(values).reshape(-1)]


def _gather(run: Run, x: Tensor, places: Host, *, axis: int = 0) -> Tensor:
    return x.take(places, axis=axis)


def _tile(run: Run, x: Tensor, repeats: Host) -> Tensor:
    return x.tile(ints(repeats))


def _expand(run: Run, x: Tensor, shape: Host) -> Tensor:
    return x.broadcast_to(np.broadcast_shapes(x.shape, tuple(ints(shape))))


OPERATORS.update({
    "Gather": _gather, "Tile": _tile, "Expand": _expand,
    "Flatten": lambda run, x, *, axis=1: x.reshape((math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))),
    "Transpose": lambda run, x, *, perm=None: x.permute(range(x.ndim)[::-1] if perm is None else perm),
    "Concat": lambda run, *xs, axis: run.session.concat(xs, axis),
    "EyeLike": lambda run, x, *, dtype=1, k=0: run.session.full(x.shape, 1.0).triu(k).tril(k),
})  # fmt: skip


@operator("Reshape")
def reshape(run: Run, x: Tensor, shape: Host, *, allowzero: int = 0) -> Tensor:
    sizes = [x.shape[k] if n == 0 and not allowzero else n for k, n in enumerate(ints(shape))]
    return x.reshape(sizes)


HOST["Reshape"] = partial(reshape, None)


@operator("Squeeze")
def squeeze(run: Run, x: Tensor, given: Host = None, *, axes: Any = None) -> Tensor:
    chosen = axes if given is None else ints(given)
    drop = {k for k, n in enumerate(x.shape) if n == 1} if chosen is None else {a % x.ndim for a in chosen}
    return x.reshape([n for k, n in enumerate(x.shape) if k not in drop])


@operator("Unsqueeze")
def unsqueeze(run: Run, x: Tensor, given: Host = None, *, axes: Any = None) -> Tensor:
    return x.reshape(np.expand_dims(np.empty(x.shape, bool), tuple(axes if given is None else ints(given))).shape)


@operator("Split")
def split(run: Run, x: Tensor, sizes: Host = None, *, axis: int = 0, num_outputs: int = 1) -> Any:
    return x.split(_parts(x.shape[axis], sizes, num_outputs), axis)


def _parts(n: int, sizes: Host, count: int) -> list[int]:
    """The given lengths of parts, or those of so many parts of which all but the last have the same."""
    if sizes is not None:
        return ints(sizes)
    size = -(-n // count)
    return [max(min(size, n - k * size), 0) for k in range(count)]


def _host_split(x: Host, sizes: Host = None, axis: int = 0, num_outputs: int = 1) -> list[Host]:
    return np.split(x, np.cumsum(_parts(x.shape[axis], sizes, num_outputs))[:-1], axis)


HOST["Split"] = _host_split


@operator("Slice")
def slice_(
    run: Run, x: Tensor, first: Host = None, last: Host = None, along: Host = None, by: Host = None, *,
    starts: Any = None, ends: Any = None, axes: Any = None,
) -> Tensor:  # fmt: skip
    starts, ends = ints(starts or first), ints(ends or last)
    places = ints(along) if along is not None else axes or range(len(starts))
    steps = [1] * len(starts) if by is None else ints(by)
    key = [slice(None)] * x.ndim
    for k, a in enumerate(places):
        n = x.shape[a]
        down = steps[k] < 0
        end = min(max(ends[k] + n if ends[k] < 0 else ends[k], -1 if down else 0), n)
        start = min(max(starts[k] + n if starts[k] < 0 else starts[k], 0), n - down)
        key[a] = slice(start, None if end < 0 else end, steps[k])
    return x[tuple(key)]


@operator("Pad")
def pad(
    run: Run, x: Tensor, widths: Host = None, constant: Tensor = None, places: Host = None, *, mode: Any = "constant",
    pads: Any = None, value: float = 0.0,
) -> Tensor:  # fmt: skip
    given = np.asarray(pads if widths is None else widths).reshape(2, -1)
    axes = ints(places) if places is not None else list(range(x.ndim))
    pairs = np.zeros((x.ndim, 2), np.int64)
    pairs[axes] = given.T
    cut = np.maximum(-pairs, 0)
    x = x[tuple(slice(a, n - b) for n, (a, b) in zip(x.shape, cut.tolist()))] if cut.any() else x
    pairs = np.maximum(pairs, 0)
    if mode == "constant":
        return x.pad(pairs.tolist(), value if constant is None else constant.item())
    for k, (before, after) in enumerate(pairs.tolist()):
        if before or after:
            x = x.take(np.pad(np.arange(x.shape[k]), (before, after), mode=mode), axis=k)
    return x


@operator("ConstantOfShape")
def constant_of_shape(run: Run, shape: Host, *, value: Any = None) -> Value:
    fill = np.zeros(1, np.float32) if value is None else np.asarray(value)
    if fill.dtype == np.float32:
        return run.session.full(ints(shape), float(fill[0]))
    return np.full(ints(shape), fill[0])


@operator("GatherElements")
def gather_elements(run: Run, x: Tensor, places: Host, *, axis: int = 0) -> Tensor:
    key = tuple(slice(None) if k == axis % x.ndim else slice(n) for k, n in enumerate(places.shape))
    return x[key].take_along(places, axis=axis)


@operator("Trilu")
def trilu(run: Run, x: Tensor, k: Host = None, *, upper: int = 1) -> Tensor:
    offset = 0 if k is None else int(k)
    return x.triu(offset) if upper else x.tril(offset)


@operator("CumSum")
def cumsum(run: Run, x: Tensor, axis: Host, *, exclusive: int = 0, reverse: int = 0) -> Tensor:
    found = x.flip(int(axis)).cumsum(int(axis)).flip(int(axis)) if reverse else x.cumsum(int(axis))
    return found - x if exclusive else found


def places_of(shape: Any, index: np.ndarray) -> np.ndarray:
    """The positions of the slices that rows of an index name, in an array whose first axes are one."""
    depth = index.shape[-1]
    within = np.where(index < 0, index + np.asarray(shape[:depth]), index)
    steps = np.asarray([math.prod(shape[k + 1 : depth]) for k in range(depth)], np.int64)
    return (within * steps).sum(axis=-1)


@operator("GatherND")
def gather_nd(run: Run, x: Tensor, index: Host, *, batch_dims: int = 0) -> Tensor:
    if batch_dims:
        before = index.shape[:batch_dims]
        grid = np.stack(np.meshgrid(*(np.arange(n) for n in before), indexing="ij"), -1)
        grid = np.broadcast_to(
            grid.reshape(*before, *[1] * (index.ndim - 1 - batch_dims), batch_dims), (*index.shape[:-1], batch_dims)
        )
        index = np.concatenate([grid, index], axis=-1)
    depth = index.shape[-1]
    return x.reshape((math.prod(x.shape[:depth]), *x.shape[depth:])).take(places_of(x.shape, index), axis=0)


@operator("DepthToSpace")
def depth_to_space(run: Run, x: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    n, c, h, w = x.shape
    b, rest = blocksize, c // blocksize**2
    if mode == "DCR":
        y = x.reshape((n, b, b, rest, h, w)).permute((0, 3, 4, 1, 5, 2))
    else:
        y = x.reshape((n, rest, b, b, h, w)).permute((0, 1, 4, 2, 5, 3))
    return y.reshape((n, rest, h * b, w * b))


@operator("SpaceToDepth")
def space_to_depth(run: Run, x: Tensor, *, blocksize: int) -> Tensor:
    n, c, h, w = x.shape
    b = blocksize
    return x.reshape((n, c, h // b, b, w // b, b)).permute((0, 3, 5, 1, 2, 4)).reshape((n, c * b * b, h // b, w // b))


@operator("OneHot")
def one_hot(run: Run, index: Host, depth: Host, values: Tensor, *, axis: int = -1) -> Tensor:
    n = int(np.asarray(depth).reshape(-1)[0])
    hot = np.moveaxis(np.eye(n, dtype=np.float32)[np.mod(index, n).astype(np.int64)], -1, axis)
    inside = np.expand_dims((index >= -n) & (index < n), axis)
    mask = run.tensor(hot * inside)
    off, on = values[0], values[1]
    return off + mask * (on - off)


@operator("Einsum")
def einsum(run: Run, *xs: Tensor, equation: str) -> Tensor:
    return run.session.einsum(equation.replace(" ", ""), *xs)
