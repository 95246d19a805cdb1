"""Operators among integers and booleans, computed by NumPy in their own type: sums and products wrap as integers do."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, Literal

import numpy as np

from tlrt.onnx.graph import HOST, Host, NotExpressible, host


def ints(values: Any) -> list[int]:
    """Integers of an array or a list, in one axis."""
    return [int(v) for v in np.asarray(values).reshape(-1)]


def axes_of(given: Any) -> tuple[int, ...] | None:
    return None if given is None else tuple(ints(given)) or None


# ---- arithmetic


@host("Div")
def divide(a: Host, b: Host) -> Host:
    """The quotient without its fraction."""
    quotient, rest = np.floor_divide(a, b), np.remainder(a, b)
    return np.asarray(quotient + ((rest != 0) & ((a < 0) != (b < 0))), quotient.dtype)


@host("Mod")
def mod(a: Host, b: Host, *, fmod: int = 0) -> Host:
    return np.fmod(a, b) if fmod else np.mod(a, b)


@host("Pow")
def power(a: Host, b: Host) -> Host:
    """In the type of the base; a negative power of anything but 1 and -1 is a fraction and becomes 0."""
    a, b = np.broadcast_arrays(a, b)
    whole = np.power(a, np.maximum(b, 0).astype(a.dtype))
    if b.dtype.kind == "u":
        return whole
    units = np.where(a == 1, a, np.where(a == -1, 1 - 2 * (b & 1), 0) if a.dtype.kind == "i" else 0)
    return np.where(b < 0, units, whole).astype(a.dtype)


@host("Clip")
def clip(x: Host, low: Host = None, high: Host = None) -> Host:
    x = x if low is None else np.maximum(x, low)
    return x if high is None else np.minimum(x, high)


@host("Gemm")
def gemm(
    a: Host, b: Host, c: Host = None, *, alpha: Literal[1] = 1, beta: Literal[1] = 1, transA: int = 0, transB: int = 0
) -> Host:  # fmt: skip
    y = (a.T if transA else a) @ (b.T if transB else b)
    return y if c is None else y + c


@host("BitShift")
def shift(a: Host, b: Host, *, direction: str) -> Host:
    """NumPy leaves shifts by the width and more to the processor; here they leave 0."""
    bits = a.dtype.itemsize * 8
    found = (np.left_shift if direction == "LEFT" else np.right_shift)(a, np.minimum(b, bits - 1))
    return np.where(b < bits, found, 0).astype(a.dtype)


@host("Range")
def range_(start: Host, limit: Host, delta: Host) -> Host:
    return np.asarray(range(*(ints(v)[0] for v in (start, limit, delta))), start.dtype)


def cumulate(x: Host, axis: Host, function: Any, first: int, exclusive: int, reverse: int) -> Host:
    """Running results; exclusive ones begin with the first and leave out the last."""
    place = ints(axis)[0]
    turned = np.flip(x, place) if reverse else x
    if exclusive:
        start = np.full_like(np.take(turned, [0] if x.shape[place] else [], place), first)
        turned = np.concatenate([start, np.delete(turned, -1, place)], place) if x.shape[place] else turned
    found = function(turned, place, dtype=x.dtype)
    return np.flip(found, place) if reverse else found


@host("CumSum")
def cumsum(x: Host, axis: Host, *, exclusive: int = 0, reverse: int = 0) -> Host:
    return cumulate(x, axis, np.cumsum, 0, exclusive, reverse)


@host("CumProd")
def cumprod(x: Host, axis: Host, *, exclusive: int = 0, reverse: int = 0) -> Host:
    return cumulate(x, axis, np.cumprod, 1, exclusive, reverse)


def whole_einsum(*xs: Host, equation: str) -> Host:
    return np.einsum(equation.replace(" ", ""), *xs)


HOST.update({
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Neg": np.negative, "Abs": np.abs, "Sign": np.sign,
    "Equal": np.equal, "Less": np.less, "LessOrEqual": np.less_equal, "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal, "And": np.logical_and, "Or": np.logical_or, "Not": np.logical_not,
    "Xor": np.logical_xor, "Where": np.where, "Max": lambda *xs: reduce(np.maximum, xs),
    "Min": lambda *xs: reduce(np.minimum, xs), "Relu": lambda x: np.maximum(x, 0).astype(x.dtype),
    "PRelu": lambda x, slope: np.where(x < 0, x * slope, x).astype(x.dtype), "MatMul": np.matmul,
    "BitwiseAnd": np.bitwise_and, "BitwiseOr": np.bitwise_or, "BitwiseXor": np.bitwise_xor, "BitwiseNot": np.invert,
    "Einsum": whole_einsum,
})  # fmt: skip


# ---- reductions


def _mean(x: Host, *, axis: Any, keepdims: bool) -> Host:
    total = np.sum(x, axis=axis, keepdims=keepdims, dtype=x.dtype)
    return divide(total, np.asarray(x.size // max(total.size, 1), x.dtype))


def _root(x: Host, **over: Any) -> Host:
    squares = np.asarray(np.sum(x.astype(object) ** 2, **over))
    roots = [math.isqrt(int(v)) & 0xFFFFFFFFFFFFFFFF for v in squares.reshape(-1)]  # wraps, as a sum does
    return np.asarray(roots, np.uint64).astype(x.dtype).reshape(squares.shape)


def _extreme(name: str, empty: str) -> Callable[..., Host]:
    """Over nothing an extreme is the other end of the type."""

    def call(x: Host, **over: Any) -> Host:
        initial = x.dtype.type(empty == "max") if x.dtype == np.bool_ else getattr(np.iinfo(x.dtype), empty)
        return np.asarray(getattr(np, name)(x, initial=initial, **over), x.dtype)

    return call


def _reduction(function: Callable[..., Any]) -> Callable[..., Host]:
    def call(
        x: Host, given: Host = None, *, axes: Any = None, keepdims: int = 1, noop_with_empty_axes: int = 0
    ) -> Host:
        chosen = axes_of(axes if given is None else given) or (() if noop_with_empty_axes else None)
        return np.asarray(function(x, axis=chosen, keepdims=bool(keepdims))).astype(x.dtype)

    return call


HOST.update({name: _reduction(function) for name, function in {
    "ReduceSum": lambda x, **over: np.sum(x, dtype=x.dtype, **over), "ReduceMax": _extreme("max", "min"),
    "ReduceMin": _extreme("min", "max"), "ReduceProd": lambda x, **over: np.prod(x, dtype=x.dtype, **over),
    "ReduceMean": _mean, "ReduceL1": lambda x, **over: np.sum(np.abs(x), dtype=x.dtype, **over), "ReduceL2": _root,
    "ReduceSumSquare": lambda x, **over: np.sum(x * x, dtype=x.dtype, **over),
}.items()})  # fmt: skip


def _arg(function: Any) -> Callable[..., Host]:
    def call(x: Host, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Host:
        found = function(np.flip(x, axis) if select_last_index else x, axis=axis, keepdims=bool(keepdims))
        return np.asarray(x.shape[axis] - 1 - found if select_last_index else found, np.int64)

    return call


HOST.update(ArgMax=_arg(np.argmax), ArgMin=_arg(np.argmin))


@host("TopK")
def topk(x: Host, k: Host, *, axis: int = -1, largest: int = 1, sorted: int = 1) -> Any:
    """Of equal elements the first comes first."""
    order = np.argsort(np.flip(x, axis) if largest else x, axis, kind="stable")
    order = x.shape[axis] - 1 - np.flip(order, axis) if largest else order
    places = np.take(order, range(ints(k)[0]), axis).astype(np.int64)
    return np.take_along_axis(x, places, axis), places


# ---- what moves and chooses


@host("Slice")
def slice_(x: Host, starts: Host, ends: Host, axes: Host = None, steps: Host = None) -> Host:
    return x[slices(x.shape, starts, ends, axes, steps)]


def slices(shape: Sequence[int], starts: Any, ends: Any, axes: Any, steps: Any) -> tuple[slice, ...]:
    """The key of a Slice. Ends are clamped as the standard has it: a start of a falling one to the last element."""
    key = [slice(None)] * len(shape)
    first, last = ints(starts), ints(ends)
    for k, a in enumerate(range(len(first)) if axes is None else ints(axes)):
        n, step = shape[a], 1 if steps is None else ints(steps)[k]
        down = step < 0
        start = min(max(first[k] + n if first[k] < 0 else first[k], 0), n - down)
        end = min(max(last[k] + n if last[k] < 0 else last[k], -1 if down else 0), n - down)
        key[a] = slice(start, None if end < 0 else end, step) if n else slice(0, 0)
    return tuple(key)


def pad_widths(rank: int, given: Any, axes: Any) -> np.ndarray:
    """The widths before and after each axis."""
    pairs = np.zeros((rank, 2), np.int64)
    pairs[list(range(rank)) if axes is None else ints(axes)] = np.asarray(given).reshape(2, -1).T
    return pairs


@host("Pad")
def pad(x: Host, widths: Host, value: Host = None, axes: Host = None, *, mode: str = "constant") -> Host:
    pairs = pad_widths(x.ndim, widths, axes)
    x = x[tuple(slice(max(-a, 0), n - max(-b, 0)) for n, (a, b) in zip(x.shape, pairs.tolist()))]
    constant = {} if value is None or mode != "constant" else {"constant_values": value.reshape(-1)[0]}
    return np.pad(x, np.maximum(pairs, 0), mode, **constant)  # type: ignore[call-overload]


def parts(n: int, sizes: Host, count: int) -> list[int]:
    """The given lengths of parts, or those of so many parts, all but the last equal."""
    if sizes is not None:
        return ints(sizes)
    size = -(-n // count)
    return [max(min(size, n - k * size), 0) for k in range(count)]


@host("Split")
def split(x: Host, sizes: Host = None, *, axis: int = 0, num_outputs: int = 1) -> list[Host]:
    return np.split(x, np.cumsum(parts(x.shape[axis], sizes, num_outputs))[:-1], axis)


def sizes_of(shape: Sequence[int], wanted: Any, allowzero: int = 0) -> list[int]:
    """The lengths that a Reshape gives: 0 stands for the length that is there, -1 for what is left."""
    sizes = [shape[k] if n == 0 and not allowzero else n for k, n in enumerate(ints(wanted))]
    if -1 in sizes:
        sizes[sizes.index(-1)] = math.prod(shape) // max(-math.prod(sizes), 1)
    return sizes


@host("Reshape")
def reshape(x: Host, shape: Host, *, allowzero: int = 0) -> Host:
    return x.reshape(sizes_of(x.shape, shape, allowzero))


@host("Gather")
def gather(x: Host, places: Host, *, axis: int = 0) -> Host:
    return np.take(x, places, axis)


@host("GatherElements")
def gather_elements(x: Host, places: Host, *, axis: int = 0) -> Host:
    return x.reshape(-1)[element_places(x.shape, places, axis)]


def element_places(shape: Sequence[int], index: Host, axis: int) -> Host:
    """Where in the flattened array the elements are that an index along one axis names."""
    grid = list(np.indices(index.shape, sparse=True))
    grid[axis] = _counted(index, shape[axis])
    return np.asarray(np.ravel_multi_index(np.broadcast_arrays(*grid), tuple(shape)))


def slice_places(shape: Sequence[int], index: Host, batch_dims: int = 0) -> Host:
    """Where the slices are that rows of an index name, in an array whose first axes are one."""
    depth = batch_dims + index.shape[-1]
    grid: list[Any] = list(np.indices(index.shape[:-1], sparse=True))[:batch_dims]
    grid += [_counted(index[..., k], shape[batch_dims + k]) for k in range(index.shape[-1])]
    if not grid:
        return np.zeros(index.shape[:-1], np.int64)
    return np.asarray(np.ravel_multi_index(np.broadcast_arrays(*grid), tuple(shape[:depth])))


def _counted(index: Host, n: int) -> Host:
    """Indices from the end counted from the start; one out of range is refused."""
    if ((index < -n) | (index >= n)).any():
        raise NotExpressible(f"an index out of range: {ints(index)[:8]} of {n}")
    return np.where(index < 0, index + n, index).astype(np.int64)


@host("GatherND")
def gather_nd(x: Host, index: Host, *, batch_dims: int = 0) -> Host:
    depth = batch_dims + index.shape[-1]
    return x.reshape(-1, *x.shape[depth:])[slice_places(x.shape, index, batch_dims)]


#: how Scatter combines what is there with what comes
COMBINE = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def _scatter(x: Host, places: Host, updates: Host, reduction: str) -> Host:
    out = x.copy()
    if reduction == "none":
        out[places] = updates
    else:
        COMBINE[reduction].at(out, places, updates)
    return out


@host("ScatterElements")
def scatter_elements(x: Host, index: Host, updates: Host, *, axis: int = 0, reduction: str = "none") -> Host:
    places = element_places(x.shape, index, axis)
    return _scatter(x.reshape(-1), places.reshape(-1), updates.reshape(-1), reduction).reshape(x.shape)


@host("ScatterND")
def scatter_nd(x: Host, index: Host, updates: Host, *, reduction: str = "none") -> Host:
    rows = x.reshape(-1, *x.shape[index.shape[-1] :])
    places = slice_places(x.shape, index).reshape(-1)
    return _scatter(rows, places, updates.reshape(-1, *rows.shape[1:]), reduction).reshape(x.shape)


@host("Compress")
def compress(x: Host, condition: Host, *, axis: int | None = None) -> Host:
    return np.compress(condition, x, axis)


def unique_parts(x: Host, axis: int | None, sorted: int) -> tuple[Host, Host, Host, Host]:
    """Different elements or slices; the first place of each; which of them stands at each place; how often each is there."""
    found, first, back, count = np.unique(x, True, True, True, axis=axis)
    if not sorted:
        order = np.argsort(first)
        first, count, back = first[order], count[order], np.argsort(order)[back.reshape(-1)]
        found = np.take(found, order, 0 if axis is None else axis)
    return found, first.astype(np.int64), back.reshape(-1).astype(np.int64), count.astype(np.int64)


@host("Unique")
def unique(x: Host, *, axis: int | None = None, sorted: int = 1) -> Any:
    return unique_parts(x, axis, sorted)


@host("OneHot")
def one_hot(index: Host, depth: Host, values: Host, *, axis: int = -1) -> Host:
    return np.where(hot(index, depth, axis), values[1], values[0])


def hot(index: Host, depth: Host, axis: int) -> Host:
    """Where the ones are; an index out of range has none."""
    n = ints(depth)[0]
    places = np.where((index >= -n) & (index < 0), index + n, index)
    return np.moveaxis(places[..., None] == np.arange(n), -1, axis)


@host("ReverseSequence")
def reverse_sequence(x: Host, lengths: Host, *, batch_axis: int = 1, time_axis: int = 0) -> Host:
    return x.reshape(-1)[reversed_places(x.shape, lengths, batch_axis, time_axis)]


def reversed_places(shape: Sequence[int], lengths: Host, batch_axis: int, time_axis: int) -> Host:
    """Where the elements come from when the first so many of each sequence run backwards."""
    grid = list(np.indices(tuple(shape), sparse=True))
    length, time = lengths.reshape(-1)[grid[batch_axis]], grid[time_axis]
    grid[time_axis] = np.where(time < length, length - 1 - time, time)
    return np.asarray(np.ravel_multi_index(np.broadcast_arrays(*grid), tuple(shape)))


@host("DepthToSpace")
def depth_to_space(x: Host, *, blocksize: int, mode: str = "DCR") -> Host:
    before, order, after = depth_steps(x.shape, blocksize, mode)
    return x.reshape(before).transpose(order).reshape(after)


def depth_steps(shape: Sequence[int], b: int, mode: str) -> tuple[Any, Any, Any]:
    n, c, h, w = shape
    rest = c // b**2
    if mode == "DCR":
        return (n, b, b, rest, h, w), (0, 3, 4, 1, 5, 2), (n, rest, h * b, w * b)
    return (n, rest, b, b, h, w), (0, 1, 4, 2, 5, 3), (n, rest, h * b, w * b)


@host("SpaceToDepth")
def space_to_depth(x: Host, *, blocksize: int, mode: str = "DCR") -> Host:
    before, order, after = space_steps(x.shape, blocksize, mode)
    return x.reshape(before).transpose(order).reshape(after)


def space_steps(shape: Sequence[int], b: int, mode: str) -> tuple[Any, Any, Any]:
    n, c, h, w = shape
    order = (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4)
    return (n, c, h // b, b, w // b, b), order, (n, c * b * b, h // b, w // b)


def non_zero(x: Host) -> Host:
    """A row for each axis, so none for a scalar: (0, 1) or (0, 0)."""
    places = np.asarray(np.nonzero(np.atleast_1d(x)), np.int64)
    return places if x.ndim else places[:0]


HOST.update({
    "Concat": lambda *xs, axis: np.concatenate(xs, axis),
    "Squeeze": lambda x, axes=None: x.squeeze(None if axes is None else tuple(ints(axes))),
    "Unsqueeze": lambda x, axes: np.expand_dims(x, axes_of(axes) or ()),
    "Transpose": lambda x, *, perm=None: np.transpose(x, perm),
    "Expand": lambda x, shape: np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(ints(shape)))),
    "Flatten": lambda x, *, axis=1: x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:])),
    "Tile": lambda x, repeats: np.tile(x, ints(repeats)), "NonZero": lambda x: non_zero(x),
    "Trilu": lambda x, k=None, *, upper=1: (np.triu if upper else np.tril)(x, 0 if k is None else ints(k)[0]),
})  # fmt: skip
