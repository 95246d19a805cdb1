"""Reductions: sums, means and maxima along one axis or over everything.

Sums follow the trees of ``native/src/formula/sum_tree.h`` and their bounds the heights of :mod:`tlspec.bounds`. An axis
is seen as the middle one of (outer, length, inner): with inner = 1 its elements are contiguous and summed by the row
tree, otherwise by the column tree.
"""

import math
from collections.abc import Sequence

import numpy as np

from tlspec.bounds import axis_height, exact, tree, tree_height
from tlspec.classes import Classes, boundary, tiles
from tlspec.laws import adjoint, homogeneous, linear
from tlspec.registry import check, op
from tlspec.shapes import drop

_AXIS = check("axis", "axis < rank(dims)", say="axis < rank(dims)")


def _axis_height(dims: Sequence[int], axis: int) -> int:
    return axis_height(dims[axis], int(np.prod(dims[axis + 1 :], dtype=object)))


def _insert_map(dims: Sequence[int], axis: int) -> list[int]:
    """The axis map that broadcasts ``drop(dims, axis)`` to `dims`."""
    return [0 if i == axis else i + (i < axis) for i in range(len(dims))]


LEAF, LANES, CHUNK = (boundary("reduce", f"TL_{n}") for n in ("SUM_LEAF", "SUM_LANES", "COLUMN_CHUNK"))
VECTOR: Classes = {**tiles("elements", lambda n: n, LEAF), **tiles("elements", lambda n: n, LANES)}
ROWS: Classes = {
    **tiles("columns", lambda rows, cols: cols * (rows > 0), LEAF),
    **tiles("columns", lambda rows, cols: cols * (rows > 0), LANES),
    "several tasks": lambda rows, cols: rows > 1 and rows * cols > boundary("reduce", "TASK"),
    "many short rows": lambda rows, cols: rows > boundary("reduce", "MANY") and 0 < cols < boundary("reduce", "MANY"),
}
COLUMNS: Classes = {
    **tiles("rows", lambda rows, cols: rows * (cols > 0), CHUNK),
    **tiles("columns", lambda rows, cols: cols * (rows > 0), boundary("reduce", "TL_COLUMN_TILE")),
    "several tasks": lambda rows, cols: rows * cols > boundary("reduce", "TASK"),
    "chunks of chunks": lambda rows, cols: cols > 0 and rows > CHUNK * CHUNK,
}
AXIS: Classes = {
    "the last axis": lambda dims, axis: axis == len(dims) - 1 and len(dims) > 1,
    "the first axis": lambda dims, axis: axis == 0 and len(dims) > 1,
    "an axis between others": lambda dims, axis: 0 < axis < len(dims) - 1,
    **tiles("sum over", lambda dims, axis: dims[axis] * (math.prod(dims) > 0), CHUNK),
    "several tasks": lambda dims: math.prod(dims) > boundary("reduce", "TASK"),
}


@op("x[n] -> out[1]",
    classes=VECTOR, bound=tree(lambda n: tree_height(n)), laws=[linear("x"), adjoint("x"), homogeneous("x")],
    source="native/src/formula/sum_tree.h")  # fmt: skip
def reduce_sum(x):
    """Sum over all elements.

    out[0] = Σ_i x[i], by the row tree: the order of additions depends on n alone.

    Shapes: x (n), out (1).
    Special values: IEEE 754 (inf + -inf is NaN). A sum over nothing is 0; a sum is never -0."""
    return x.sum(keepdims=True)


@reduce_sum.vjp("g -> gx",
    bound=exact(), via=lambda k, g, n: k.broadcast_to(g, in_dims=[1], out_dims=[n], axis_map=[1]))  # fmt: skip
def reduce_sum_vjp(g, n):
    """gx[i] = g[0]."""
    return np.broadcast_to(g, (n,))


@op("x[rows, cols] -> out[cols]",
    classes=COLUMNS, bound=tree(lambda rows, cols: axis_height(rows, cols)), laws=[linear("x"), adjoint("x"), homogeneous("x")],
    source="native/src/formula/sum_tree.h")  # fmt: skip
def reduce_sum_axis0(x):
    """Sum down the rows of a matrix, one for each column.

    out[j] = Σ_i x[i, j], by the column tree (by the row tree where cols = 1).

    Shapes: x (rows, cols), out (cols).
    Special values: IEEE 754. With rows = 0 every sum is 0; a sum is never -0."""
    return x.sum(axis=0)


@reduce_sum_axis0.vjp("g -> gx",
    bound=exact(), via=lambda k, g, rows, cols: k.broadcast_vec_to_rows(g, rows=rows, cols=cols))  # fmt: skip
def reduce_sum_axis0_vjp(g, rows, cols):
    """gx[i, j] = g[j]."""
    return np.broadcast_to(g, (rows, cols))


@op("x[rows, cols] -> out[rows]",
    classes=ROWS, bound=tree(lambda cols: tree_height(cols)), laws=[linear("x"), adjoint("x"), homogeneous("x")],
    source="native/src/formula/sum_tree.h")  # fmt: skip
def reduce_sum_axis1(x):
    """Sum across the columns of a matrix, one for each row.

    out[i] = Σ_j x[i, j], by the row tree.

    Shapes: x (rows, cols), out (rows).
    Special values: IEEE 754. With cols = 0 every sum is 0; a sum is never -0."""
    return x.sum(axis=1)


@reduce_sum_axis1.vjp("g -> gx",
    bound=exact(), via=lambda k, g, rows, cols: k.broadcast_vec_to_cols(g, rows=rows, cols=cols))  # fmt: skip
def reduce_sum_axis1_vjp(g, rows, cols):
    """gx[i, j] = g[i]."""
    return np.broadcast_to(g[:, None], (rows, cols))


@op("x[*dims]; axis: u32 -> out[*drop(dims, axis)]",
    classes=AXIS, bound=tree(_axis_height), checks=[_AXIS], laws=[linear("x"), adjoint("x"), homogeneous("x")],
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


@op("x[*dims]; axis: u32 -> out[*drop(dims, axis)]",
    classes=AXIS, bound=tree(lambda dims, axis: _axis_height(dims, axis) + 1, peak=lambda x, axis: np.abs(x).sum(axis=axis)),
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


def maximum(x, axis: int):
    """IEEE 754-2019 maximum along an axis: NaN wins, +0 is above -0."""
    top = x.max(axis=axis)
    plus = ((x == 0) & ~np.signbit(x)).any(axis=axis)
    return np.where(top == 0, np.where(plus, 0.0, -0.0), top)


def _shares(x, out, g, axis: int):
    """The gradient of a maximum along `axis`: its winners share g equally; all of them are NaN where the maximum is."""
    out, g = np.expand_dims(out, axis), np.expand_dims(g, axis)
    wins = x == out
    share = g / np.maximum(wins.sum(axis=axis, keepdims=True), 1)
    return np.where(np.isnan(out), np.nan, np.where(wins, share, 0.0))


@op("x[rows, cols] -> out[cols]",
    classes=COLUMNS, bound=exact(), checks=[check("rows", "rows > 0", "SHAPE", say="rows > 0, since an empty axis has no maximum")],
    laws=[homogeneous("x")], source="IEEE 754-2019, 9.6 (maximum)")  # fmt: skip
def reduce_max_axis0(x):
    """Maximum down the rows of a matrix, one for each column.

    out[j] = max_i x[i, j]

    Shapes: x (rows, cols), out (cols).
    Special values: a NaN in a column makes its maximum NaN; +0 is above -0.
    Errors: SHAPE if rows = 0."""
    return maximum(x, 0)


@reduce_max_axis0.vjp("x, out, g -> gx", bound=exact())
def reduce_max_axis0_vjp(x, out, g):
    """gx[i, j] = g[j] / (number of winners of column j) where x[i, j] = out[j], else 0; one IEEE division.

    Where out[j] is NaN the whole column is NaN. +0 and -0 win together."""
    return _shares(x, out, g, 0)


@op("x[rows, cols] -> out[rows]",
    classes=ROWS, bound=exact(), checks=[check("cols", "cols > 0", "SHAPE", say="cols > 0, since an empty axis has no maximum")],
    laws=[homogeneous("x")], source="IEEE 754-2019, 9.6 (maximum)")  # fmt: skip
def reduce_max_axis1(x):
    """Maximum across the columns of a matrix, one for each row.

    out[i] = max_j x[i, j]

    Shapes: x (rows, cols), out (rows).
    Special values: a NaN in a row makes its maximum NaN; +0 is above -0.
    Errors: SHAPE if cols = 0."""
    return maximum(x, 1)


@reduce_max_axis1.vjp("x, out, g -> gx", bound=exact())
def reduce_max_axis1_vjp(x, out, g):
    """gx[i, j] = g[i] / (number of winners of row i) where x[i, j] = out[i], else 0; one IEEE division.

    Where out[i] is NaN the whole row is NaN. +0 and -0 win together."""
    return _shares(x, out, g, 1)
