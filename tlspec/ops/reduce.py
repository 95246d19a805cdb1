"""Reductions: sums, means and maxima along one axis or over everything.

Sums follow the trees of ``native/src/formula/sum_tree.h`` and their bounds the heights of :mod:`tlspec.bounds`. An axis
is seen as the middle one of (outer, length, inner): with inner = 1 its elements are contiguous and summed by the row
tree, otherwise by the column tree.
"""

import math
from collections.abc import Sequence

import numpy as np

from tlspec.bounds import COLUMN_CHUNK, axis_height, exact, tree, ulp
from tlspec.classes import Classes, Lengths
from tlspec.laws import adjoint, equation, homogeneous, linear
from tlspec.registry import check, op
from tlspec.shapes import drop, keep
from tlspec.synonyms import synonym

_AXIS = check("axis", "axis < rank(dims)", say="axis < rank(dims)")


def _axis_height(dims: Sequence[int], axis: int) -> int:
    return axis_height(dims[axis], int(np.prod(dims[axis + 1 :], dtype=object)))


def _insert_map(dims: Sequence[int], axis: int) -> list[int]:
    """The axis map that broadcasts ``drop(dims, axis)`` to `dims`."""
    return [0 if i == axis else i + (i < axis) for i in range(len(dims))]


AXIS: Classes = {
    "the last axis": lambda dims, axis: axis == len(dims) - 1 and len(dims) > 1,
    "the first axis": lambda dims, axis: axis == 0 and len(dims) > 1,
    "an axis between others": lambda dims, axis: 0 < axis < len(dims) - 1,
}
AXIS_LENGTHS: Lengths = {
    "of the axis": lambda dims, axis: dims[axis],
    "inner": lambda dims, axis: math.prod(dims[axis + 1 :]),
}


@op("x[*dims]; axis: u32 -> out[*drop(dims, axis)]",
    classes=AXIS, lengths=AXIS_LENGTHS, bound=tree(_axis_height), checks=[_AXIS], laws=[linear("x"), adjoint("x"), homogeneous("x")],
    paths=[{"dims": [COLUMN_CHUNK**2 + 1, 3], "axis": 0}, {"dims": [3001, 5], "axis": 1}],  # chunks of chunks, many short rows
    source="native/src/formula/sum_tree.h")  # fmt: skip
def reduce_sum_axis(x, axis):
    """Sum along one axis, which is dropped.

    out[..., ...] = Σ_k x[..., k, ...], by the row tree where the elements of the axis are contiguous (the axes after it
    have one element), otherwise by the column tree.

    Shapes: x (*dims), out (*dims without axis).
    Special values: IEEE 754. A sum over an empty axis is 0; a sum is never -0.
    Errors: ARGUMENT if axis >= rank(dims)."""
    return x.sum(axis=axis)


@reduce_sum_axis.vjp("g -> gx", bound=exact(), via=lambda k, g, dims, axis: k.broadcast_to(
    g, in_dims=drop(dims, axis), out_dims=dims, axis_map=_insert_map(dims, axis)))  # fmt: skip
def reduce_sum_axis_vjp(g, dims, axis):
    """gx[..., k, ...] = g[..., ...]."""
    return np.broadcast_to(np.expand_dims(g, axis), dims)


@synonym(reduce_sum_axis, "x[n] -> out[1]", "dims=[n], axis=0")
def reduce_sum():
    """Sum over all elements."""


@synonym(reduce_sum_axis, "x[rows, cols] -> out[cols]", "dims=[rows, cols], axis=0")
def reduce_sum_axis0():
    """Sum down the rows of a matrix, one for each column."""


@synonym(reduce_sum_axis, "x[rows, cols] -> out[rows]", "dims=[rows, cols], axis=1")
def reduce_sum_axis1():
    """Sum across the columns of a matrix, one for each row."""


@op("x[*dims]; axis: u32 -> out[*drop(dims, axis)]",
    classes=AXIS, lengths=AXIS_LENGTHS, bound=tree(lambda dims, axis: _axis_height(dims, axis) + 1, peak=lambda x, axis: np.abs(x).sum(axis=axis)),
    checks=[_AXIS], laws=[linear("x"), adjoint("x"), homogeneous("x")],
    source="native/src/formula/sum_tree.h, native/src/formula/count.h")  # fmt: skip
def reduce_mean(x, axis):
    """Mean along one axis, which is dropped.

    out[..., ...] = (Σ_k x[..., k, ...]) / dims[axis]: the sum of reduce_sum_axis, then one division.

    Shapes: x (*dims), out (*dims without axis).
    Special values: IEEE 754; a sum beyond the float32 range makes the mean infinite. The mean over an empty axis is
    NaN.
    Errors: ARGUMENT if axis >= rank(dims)."""
    n = x.shape[axis]
    return x.sum(axis=axis) / n if n else np.full(drop(x.shape, axis), np.nan)


@reduce_mean.vjp("g -> gx", bound=exact())
def reduce_mean_vjp(g, dims, axis):
    """gx[..., k, ...] = g[..., ...] / dims[axis], one IEEE division."""
    return np.broadcast_to(np.expand_dims(g, axis) / max(dims[axis], 1), dims)


def maximum(x, axis: int | tuple[int, ...]):
    """IEEE 754-2019 maximum along axes: NaN wins, +0 is above -0."""
    top = x.max(axis=axis)
    plus = ((x == 0) & ~np.signbit(x)).any(axis=axis)
    return np.where(top == 0, np.where(plus, 0.0, -0.0), top)


def _shares(x, out, g, axis: int | tuple[int, ...]):
    """The gradient of an extreme along axes: its winners share g equally; all of them are NaN where the maximum is."""
    out, g = np.expand_dims(out, axis), np.expand_dims(g, axis)
    wins = x == out
    share = g / np.maximum(wins.sum(axis=axis, keepdims=True), 1)
    return np.where(np.isnan(out), np.nan, np.where(wins, share, 0.0))


# ---- any set of axes -------------------------------------------------------------------------------------------------


def axes_of(dims: Sequence[int], axes: int) -> tuple[int, ...]:
    """The axes k where bit k of `axes` is set."""
    return tuple(k for k in range(len(dims)) if axes >> k & 1)


def _reduced(dims: Sequence[int], axes: int) -> int:
    """The number of elements behind one result, 0 where there is no result."""
    return math.prod(dims[k] for k in axes_of(dims, axes)) * (math.prod(keep(dims, axes)) > 0)


def _groups(dims: Sequence[int], axes: int) -> str:
    """K for a run of kept axes larger than 1, R for one of reduced axes."""
    kinds = ["KR"[axes >> k & 1] for k, n in enumerate(dims) if n != 1]
    return "".join(kind for i, kind in enumerate(kinds) if i == 0 or kinds[i - 1] != kind)


def _shaped(test):
    """A class of the groups of axes, of arrays that are not empty."""
    return lambda dims, axes: math.prod(dims) > 0 and test(_groups(dims, axes))


def _draw_axes(d):
    dims = d.dims()
    return {"dims": dims, "axes": d.choice([2 ** len(dims) - 1, d.integer(0, 2 ** len(dims) - 1)])}


#: what a fold adds before it begins again: native/src/formula/fold.h
SEGMENT = 256
AXES: Classes = {
    "nothing reduced": _shaped(lambda groups: "R" not in groups),
    "all reduced": _shaped(lambda groups: groups == "R"),
    "the last axes reduced": _shaped(lambda groups: groups == "KR"),
    "the first axes reduced": _shaped(lambda groups: groups == "RK"),
    "axes between reduced": _shaped(lambda groups: groups == "KRK"),
    "axes apart reduced": _shaped(lambda groups: groups.count("R") > 1),
    "segments of segments": lambda dims, axes: _reduced(dims, axes) > SEGMENT * SEGMENT,
    "wide rows kept": lambda dims, axes: _groups(dims, axes)[-1:] == "K" and dims[-1] > 1000,
}
AXES_LENGTHS: Lengths = {"reduced": _reduced}
_FOLD = "native/src/formula/fold.h"
_AXES = check("axes", "are_axes(dims, axes)", say="bits of axes: axes < 2^rank(dims)")
#: the result is computed in float64, by functions good to 2^-34, and rounded once
_NEARLY = ulp(0.02)


_NONE_EMPTY = check(
    "axes", "none_empty(dims, axes)", "SHAPE", say="no empty axis, since it has no maximum and no minimum"
)


@op("x[*dims]; axes: u32 -> out[*keep(dims, axes)]",
    classes=AXES, lengths=AXES_LENGTHS, bound=exact(), draw=_draw_axes, laws=[homogeneous("x")], checks=[_AXES, _NONE_EMPTY],
    source="IEEE 754-2019, 9.6 (maximum)")  # fmt: skip
def amax(x, axes):
    """Maximum over any set of axes, which are dropped: axis k where bit k of axes is set.

    out[kept] = max over the reduced axes of x

    Shapes: x (*dims), out (*dims without the axes).
    Special values: a NaN among the elements makes the maximum NaN; +0 is above -0.
    Errors: ARGUMENT if axes >= 2^rank(dims), SHAPE if a reduced axis is empty."""
    return maximum(x, axes_of(x.shape, axes))


@amax.vjp("x, out, g -> gx", bound=exact())
def amax_vjp(x, out, g, dims, axes):
    """gx = g / (number of winners of the maximum) where x equals it, else 0; one IEEE division.

    Where the maximum is NaN all of its elements are NaN. +0 and -0 win together."""
    return _shares(x, out, g, axes_of(dims, axes))


@synonym(amax, "x[rows, cols] -> out[cols]", "dims=[rows, cols], axes=1",
    checks=[check("rows", "rows > 0", "SHAPE", say="rows > 0, since an empty axis has no maximum")])  # fmt: skip
def reduce_max_axis0():
    """Maximum down the rows of a matrix, one for each column."""


@synonym(amax, "x[rows, cols] -> out[rows]", "dims=[rows, cols], axes=2",
    checks=[check("cols", "cols > 0", "SHAPE", say="cols > 0, since an empty axis has no maximum")])  # fmt: skip
def reduce_max_axis1():
    """Maximum across the columns of a matrix, one for each row."""


@op("x[*dims]; axes: u32 -> out[*keep(dims, axes)]",
    classes=AXES, lengths=AXES_LENGTHS, bound=exact(), draw=_draw_axes, laws=[homogeneous("x")], checks=[_AXES, _NONE_EMPTY],
    source="IEEE 754-2019, 9.6 (minimum)")  # fmt: skip
def amin(x, axes):
    """Minimum over any set of axes, which are dropped: axis k where bit k of axes is set.

    out[kept] = min over the reduced axes of x

    Shapes: x (*dims), out (*dims without the axes), as for amax.
    Special values: a NaN among the elements makes the minimum NaN; -0 is below +0.
    Errors: as for amax."""
    return -maximum(-x, axes_of(x.shape, axes))


@amin.vjp("x, out, g -> gx", bound=exact())
def amin_vjp(x, out, g, dims, axes):
    """gx = g / (number of winners of the minimum) where x equals it, else 0, as for amax."""
    return _shares(x, out, g, axes_of(dims, axes))


def _product(x, axes: int):
    """The product of the elements that are not 0, as a number and an exponent of 2, with the sign of all, and the number of zeros."""
    over = axes_of(x.shape, axes)
    rows = np.moveaxis(x, over, range(len(over)))
    rows = rows.reshape(math.prod(rows.shape[: len(over)]), *keep(x.shape, axes))
    zero = rows == 0
    v, e = np.frexp(np.where(zero, np.copysign(1.0, rows), rows))
    e = e.astype(np.float64)
    while len(v) > 1:
        half = -(-len(v) // 2)
        v[: len(v) - half], more = np.frexp(v[: len(v) - half] * v[half:])
        e[: len(v) - half] += e[half:] + more
        v, e = v[:half], e[:half]
    if not len(v):
        return np.ones(v.shape[1:]), np.zeros(v.shape[1:]), zero.sum(axis=0)
    return v[0], e[0], zero.sum(axis=0)


def _scaled(v, e):
    """v·2^e, for |v| within 2^±300 as one rounding to float32 sees it."""
    return np.ldexp(v, np.clip(e, -450, 450).astype(int))


@op("x[*dims]; axes: u32 -> out[*keep(dims, axes)]",
    classes=AXES, lengths=AXES_LENGTHS, bound=_NEARLY, draw=_draw_axes, checks=[_AXES], source=_FOLD)  # fmt: skip
def prod(x, axes):
    """Product over any set of axes, which are dropped: axis k where bit k of axes is set.

    out[kept] = Π over the reduced axes of x, computed in float64 beside a power of two and rounded once

    Shapes: x (*dims), out (*dims without the axes).
    Special values: nothing over- or underflows on the way; 0·inf is NaN. A product of nothing is 1.
    Errors: ARGUMENT if axes >= 2^rank(dims)."""
    v, e, zeros = _product(x, axes)
    return _scaled(np.where(zeros > 0, v * 0, v), e)


@prod.formula()
def _plain_prod(x, axes):
    return np.prod(x, axis=axes_of(x.shape, axes))


@prod.vjp("x, g -> gx")
def prod_vjp(x, g, dims, axes):
    """gx = g · (the product of the other elements): with two zeros among the elements 0, with one zero g·Π there and 0 elsewhere.

    The gradient of an infinite element is NaN, or with a zero among the others 0 times the product of those that are not 0."""
    over = axes_of(dims, axes)
    v, e, zeros = (np.expand_dims(part, over) for part in _product(x, axes))
    g = np.expand_dims(g, over)
    others = np.where(x == 0, v * g * np.copysign(1.0, x), v * g / np.where(x == 0, 1.0, x))
    return _scaled(np.where((zeros == 0) | ((zeros == 1) & (x == 0)), others, v * g * 0), e)


def _moments(x, axes: int, correction: float):
    """The mean, and the degrees of freedom, at least 0."""
    over = axes_of(x.shape, axes)
    n = math.prod(x.shape[k] for k in over)
    return x.sum(axis=over, keepdims=True) / np.float64(n), np.float64(max(n - correction, 0.0))


@op("x[*dims]; axes: u32, correction: float, root: u32 -> out[*keep(dims, axes)]",
    classes=AXES, lengths=AXES_LENGTHS, bound=_NEARLY, source=_FOLD,
    draw=lambda d: {**_draw_axes(d), "correction": d.choice([0.0, 1.0, 0.5, 3.0]), "root": d.integer(0, 1)},
    checks=[_AXES, check("correction", "correction >= 0"), check("root", "root < 2", say="0 for the variance, 1 for its root")],
    laws=[equation("f(x + 3) = f(x)", lambda f: [(f(), f({"x": f.inputs["x"] + 3}))], exact=False)])  # fmt: skip
def var(x, axes, correction, root):
    """Variance, or standard deviation where root is 1, over any set of axes, which are dropped: axis k where bit k of axes is set.

    out[kept] = Σ(x − μ)² / max(n − correction, 0), μ = Σx / n over the n reduced elements; with root its square root

    Two passes in float64: the mean, then the deviations; one rounding.

    Shapes: x (*dims), out (*dims without the axes).
    Special values: NaN where n = 0, 0/0 with a single element and correction 1, and where an element is infinite.
    Errors: ARGUMENT if axes >= 2^rank(dims), correction < 0 or root > 1."""
    mean, freedom = _moments(x, axes, correction)
    variance = ((x - mean) ** 2).sum(axis=axes_of(x.shape, axes)) / freedom
    return np.sqrt(variance) if root else variance


def _var_slope(x, out, g, axes, correction, root):
    """The deviations and their factor."""
    over = axes_of(x.shape, axes)
    mean, freedom = _moments(x, axes, correction)
    out, g = np.expand_dims(out, over), np.expand_dims(g, over)
    return x - mean, np.where(out == 0, 0.0, g / (freedom * out)) if root else 2 * g / freedom


def _mean_error(x, axes):
    """A bound on the mean's error in float64."""
    return 2.0**-46 * np.abs(x).max(axis=axes_of(x.shape, axes), keepdims=True, initial=0.0)


def _var_floor(x, out, g, axes, correction, root):
    """What the mean's error costs where the deviation cancels."""
    return _mean_error(x, axes) * np.abs(_var_slope(x, out, g, axes, correction, root)[1])


def _var_sign_open(x, out, g, axes, correction, root):
    """Where the mean's error decides the sign of an infinite product."""
    deviation, slope = _var_slope(x, out, g, axes, correction, root)
    return np.isinf(slope) & (np.abs(deviation) <= _mean_error(x, axes))


@var.vjp("x, out, g -> gx", bound=ulp(0.02, floor=_var_floor, free=_var_sign_open))
def var_vjp(x, out, g, axes, correction, root):
    """gx = 2g(x − μ) / max(n − correction, 0); with root g(x − μ) / (max(n − correction, 0)·out), 0 where out = 0."""
    deviation, slope = _var_slope(x, out, g, axes, correction, root)
    return deviation * slope


@op("x[*dims]; axes: u32 -> out[*keep(dims, axes)]",
    classes=AXES, lengths=AXES_LENGTHS, bound=ulp(0.02, floor=lambda: 2.0**-32), draw=_draw_axes, checks=[_AXES], source=_FOLD)  # fmt: skip
def logsumexp(x, axes):
    """Logarithm of the sum of exponentials over any set of axes, which are dropped: axis k where bit k of axes is set.

    out[kept] = m + ln Σ e^(x − m), m the maximum of the reduced elements, in float64 and rounded once

    Shapes: x (*dims), out (*dims without the axes).
    Special values: -inf where all elements are -inf and over nothing; inf where one is inf; NaN where one is NaN.
    Errors: ARGUMENT if axes >= 2^rank(dims)."""
    over = axes_of(x.shape, axes)
    top = x.max(axis=over, keepdims=True, initial=-np.inf)
    total = np.exp(x - np.where(np.isfinite(top), top, 0)).sum(axis=over)
    top = top.reshape(keep(x.shape, axes))
    return np.where(np.isfinite(top), top + np.log(np.where(np.isfinite(top), total, 1)), top)


@logsumexp.vjp("x, out, g -> gx", bound=_NEARLY)
def logsumexp_vjp(x, out, g, dims, axes):
    """gx = g · e^(x − out), 0 where all elements are -inf."""
    over = axes_of(dims, axes)
    out = np.expand_dims(np.where(out == -np.inf, 0.0, out), over)
    power = np.where(x - out == -np.inf, 0.0, np.exp(np.clip(x - out, -700, 700)))
    return np.expand_dims(g, over) * power


@op("x[*dims]; axes: u32, p: float = 2.0 -> out[*keep(dims, axes)]",
    classes=AXES, lengths=AXES_LENGTHS, bound=_NEARLY, source=_FOLD, draw=lambda d: {**_draw_axes(d), "p": d.choice([300.0, *[d.written(2.0, 1, 8)] * 6])},
    checks=[_AXES, check("p", "p >= 1 and p < 3.4028234663852886e38", say="p finite and at least 1")],
    arguments={"p": "1 or more"})  # fmt: skip
def vector_norm(x, axes, p):
    """The p-norm over any set of axes, which are dropped: axis k where bit k of axes is set.

    out[kept] = (Σ |x|ᵖ)^(1/p), in float64 and rounded once

    Shapes: x (*dims), out (*dims without the axes).
    Special values: nothing over- or underflows on the way; a norm of nothing is 0; NaN where an element is NaN.
    Errors: ARGUMENT if axes >= 2^rank(dims), p < 1 or p is infinite."""
    over = axes_of(x.shape, axes)
    top = np.abs(x).max(axis=over, keepdims=True, initial=0.0)
    total = (np.abs(x) / np.where(np.isfinite(top) & (top > 0), top, 1.0)) ** p
    top = top.reshape(keep(x.shape, axes))
    return np.where(np.isfinite(top), total.sum(axis=over) ** (1 / p) * top, top)


def _norm_slope(x, out, g, axes, p):
    over = axes_of(x.shape, axes)
    out, g = np.expand_dims(out, over), np.expand_dims(g, over)
    if p == 1:
        return g * np.sign(x)
    if p == 2:
        return x * np.where(out == 0, 0.0, g / out)
    ratio = np.maximum((np.abs(x) / np.where(out == 0, 1.0, out)) ** (p - 1), 2.0**-1000)
    return np.where(out == 0, 0.0, g) * np.sign(x) * np.where(x == 0, 0.0, ratio)


@vector_norm.formula()
def _plain_norm(x, axes, p):
    if p in (0, 1, 2) or not np.isfinite(p):
        return vector_norm.reference(x, axes, p)
    return np.sum(np.abs(x) ** p, axis=axes_of(x.shape, axes)) ** (1 / p)


@vector_norm.vjp("x, out, g -> gx",
    bound=ulp(0.02, floor=lambda x, out, g, axes, p: 2.0**-37 * p * np.abs(_norm_slope(x, out, g, axes, p))))  # fmt: skip
def vector_norm_vjp(x, out, g, axes, p):
    """gx = g · sign(x) · (|x| / out)^(p − 1); 0 where out = 0 and p > 1."""
    return _norm_slope(x, out, g, axes, p)


# ---- cumulative sums -------------------------------------------------------------------------------------------------


def _cumsum_floor(x, axis):
    """What the additions in float64 lose, here one after the other and in the kernels by chunks of 32, of at most 7 levels."""
    return (x.shape[axis] + 7 * 32) * 2.0**-53 * np.abs(x).cumsum(axis=axis)


def _cumsum_back_floor(g, axis, reverse):
    return np.flip(_cumsum_floor(np.flip(g, axis), axis), axis) if not reverse else _cumsum_floor(g, axis)


@op("x[*dims]; axis: u32, reverse: u32 -> out[*dims]",
    classes={
        "columns": lambda dims, axis: math.prod(dims) > 0 and math.prod(dims[axis + 1 :]) > 1,
        "one column": lambda dims, axis: math.prod(dims) > 0 and math.prod(dims[axis + 1 :]) == 1,
        "backwards": lambda dims, reverse: math.prod(dims) > 1 and reverse == 1,
        "chunks of chunks": lambda dims, axis: math.prod(dims) > 0 and dims[axis] > 32**2},
    lengths={"summed": lambda dims, axis: dims[axis]},
    bound=ulp(0.02, floor=lambda x, axis, reverse: _cumsum_back_floor(x, axis, not reverse)),
    draw=lambda d: {"reverse": d.integer(0, 1)}, laws=[adjoint("x")],
    checks=[_AXIS, check("reverse", "reverse < 2", say="0, or 1 to add from the end")], source="native/src/formula/cumsum.h")  # fmt: skip
def cumsum(x, axis, reverse):
    """Cumulative sum along one axis; with reverse from its end on.

    out[..., k, ...] = Σ_{i ≤ k} x[..., i, ...], or over i ≥ k; in float64, each sum rounded once

    Shapes: x and out (*dims). An empty axis gives an empty buffer.
    Special values: IEEE 754; nothing overflows on the way, and a sum is never -0.
    Errors: ARGUMENT if axis >= rank(dims) or reverse > 1."""
    return (np.flip(np.flip(x, axis).cumsum(axis=axis), axis) if reverse else x.cumsum(axis=axis)) + 0.0


@cumsum.vjp("g -> gx",
    bound=ulp(0.02, floor=_cumsum_back_floor),
    via=lambda k, g, dims, axis, reverse: k.cumsum(g, dims=dims, axis=axis, reverse=1 - reverse))  # fmt: skip
def cumsum_vjp(g, axis, reverse):
    """gx = cumsum of g in the other direction."""
    return g.cumsum(axis=axis) if reverse else np.flip(np.flip(g, axis).cumsum(axis=axis), axis)
