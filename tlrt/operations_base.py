"""The operations of tapes and sessions on elements, axes and indices, and what all operations are made of.

:class:`tlrt.operations.Operations` has these and the layers; see there.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt

from tlrt import _convert
from tlrt.errors import ArgumentError, ArgumentTypeError, IndexOutOfRangeError, ShapeError
from tlrt.plan import Shape

__all__ = ["BaseOperations", "Ref", "indices", "integer", "integers", "whole"]

Ref = TypeVar("Ref")
_P = ParamSpec("_P")
_R = TypeVar("_R")


def whole(method: Callable[Concatenate[Any, _P], _R]) -> Callable[Concatenate[Any, _P], _R]:
    """Makes a method that records several values record none of them when it raises."""

    @functools.wraps(method)
    def run(self: Any, /, *arguments: _P.args, **keywords: _P.kwargs) -> _R:
        mark = self._mark()
        try:
            return method(self, *arguments, **keywords)
        except BaseException:
            self._undo(mark)
            raise

    return run


class BaseOperations(Generic[Ref]):
    """Operations on references to values; a class that inherits them says how one is applied and what a shape is."""

    def _apply(
        self,
        name: str,
        parents: tuple[Ref | None, ...],
        extra: tuple[Any, ...] = (),
        hosts: Mapping[str, Any] | None = None,
    ) -> Ref:
        """Records the registry's operation `name`; `extra` and `hosts` are those of :func:`tlrt.plan.make`."""
        raise NotImplementedError

    def _view(self, x: Ref, shape: Shape, name: str) -> Ref:
        """Records x in another shape of as many elements, sharing its storage."""
        raise NotImplementedError

    def shape(self, x: Ref) -> Shape:
        """The shape of a value."""
        raise NotImplementedError

    def _shape(self, op: str, x: Ref) -> Shape:
        """The shape of an operand of `op`, which a refusal names."""
        return self.shape(x)

    def _named(self, name: str, x: Ref) -> str:
        """An operand in a message: the parameter's name, and what is known of the value."""
        return name

    def _constant(self, array: npt.ArrayLike) -> Ref:
        """Records an array as a value without a gradient."""
        raise NotImplementedError

    def _host(self, x: Ref) -> npt.NDArray[Any]:
        """A copy of a value on the host."""
        raise NotImplementedError

    def _mark(self) -> Any:
        """What :meth:`_undo` takes to forget all values recorded from here on."""
        return None

    def _undo(self, mark: Any) -> None:
        """Forgets the values recorded since the mark, as the operation they belong to was refused."""

    # ---- elementwise

    def _pair(self, name: str, a: Ref, b: Ref) -> Ref:
        """A binary elementwise operation; operands of different shapes are broadcast to their common one."""
        if self._shape(name, a) != self._shape(name, b):
            return self._spread_pair(name, a, b)
        return self._apply(name, (a, b))

    @whole
    def _spread_pair(self, name: str, a: Ref, b: Ref) -> Ref:
        common = _common(name, self._shape(name, a), self._shape(name, b), self._named("b", b))
        return self._apply(name, (self.broadcast_to(a, common), self.broadcast_to(b, common)))

    def add(self, a: Ref, b: Ref) -> Ref:
        """a + b, with NumPy's broadcasting."""
        return self._pair("add", a, b)

    def sub(self, a: Ref, b: Ref) -> Ref:
        """a - b, with NumPy's broadcasting."""
        return self._pair("sub", a, b)

    def mul(self, a: Ref, b: Ref) -> Ref:
        """a · b elementwise, with NumPy's broadcasting."""
        return self._pair("mul", a, b)

    def div(self, a: Ref, b: Ref) -> Ref:
        """a / b by IEEE 754, with NumPy's broadcasting."""
        return self._pair("div", a, b)

    def max(self, a: Ref, b: Ref) -> Ref:
        """The larger one, elementwise, with NumPy's broadcasting; NaN wins, a tie shares the gradient."""
        return self._pair("max", a, b)

    def min(self, a: Ref, b: Ref) -> Ref:
        """The smaller one, elementwise, with NumPy's broadcasting; NaN wins, a tie shares the gradient."""
        return self._pair("min", a, b)

    def axpy(self, a: Ref, b: Ref, c: float) -> Ref:
        """a + c·b in one fused multiply-add; c is rounded to float32 first."""
        return self._apply("axpy", (a, b), (c,))

    def scale(self, x: Ref, c: float) -> Ref:
        """c·x; c is rounded to float32 first."""
        return self._apply("scale", (x,), (c,))

    def neg(self, x: Ref) -> Ref:
        """-x, as scale by -1."""
        return self._apply("scale", (x,), (-1.0,))

    def abs(self, x: Ref) -> Ref:
        """abs(x), with gradient g·sign(x), 0 at 0."""
        return self._apply("abs", (x,))

    def sqrt(self, x: Ref) -> Ref:
        """√x; the gradient is 0 where x <= 0."""
        return self._apply("sqrt", (x,))

    def square(self, x: Ref) -> Ref:
        """x·x."""
        return self._apply("mul", (x, x))

    def clamp(self, x: Ref, lo: float, hi: float) -> Ref:
        """min(hi, max(lo, x)); refused where lo > hi."""
        return self._apply("clamp", (x,), (lo, hi))

    def relu(self, x: Ref) -> Ref:
        """max(x, 0), with relu'(0) = 0."""
        return self._apply("relu", (x,))

    def exp(self, x: Ref) -> Ref:
        """e^x."""
        return self._apply("exp", (x,))

    def log(self, x: Ref) -> Ref:
        """ln x."""
        return self._apply("log", (x,))

    def inv(self, x: Ref) -> Ref:
        """1/x."""
        return self._apply("inv", (x,))

    def safe_log(self, x: Ref, eps: float = 1e-6) -> Ref:
        """ln(softplus(x) + eps)."""
        return self._apply("safe_log", (x,), (eps,))

    def sigmoid(self, x: Ref) -> Ref:
        """1/(1 + e^-x)."""
        return self._apply("sigmoid", (x,))

    def tanh(self, x: Ref) -> Ref:
        """tanh x."""
        return self._apply("tanh", (x,))

    def softplus(self, x: Ref) -> Ref:
        """ln(1 + e^x)."""
        return self._apply("softplus", (x,))

    def silu(self, x: Ref) -> Ref:
        """x·sigmoid(x)."""
        return self._apply("silu", (x,))

    def gelu(self, x: Ref) -> Ref:
        """½x·(1 + tanh(√(2/π)(x + 0.044715x³)))."""
        return self._apply("gelu", (x,))

    # ---- reductions

    @whole
    def reduce_sum(self, x: Ref, axis: int | None = None) -> Ref:
        """The sum over `axis`, which is dropped; over everything, to a scalar, without it."""
        if axis is None:
            return self._apply("reduce_sum", (self._flat("reduce_sum", x),))
        return self._apply("reduce_sum_axis", (x,), (self._axis("reduce_sum", x, axis),))

    @whole
    def reduce_mean(self, x: Ref, axis: int | None = None) -> Ref:
        """The mean over `axis`, which is dropped; over everything, to a scalar, without it. NaN over nothing."""
        if axis is None:
            return self._apply("reduce_mean", (self._flat("reduce_mean", x),), (0,))
        return self._apply("reduce_mean", (x,), (self._axis("reduce_mean", x, axis),))

    def reduce_sum_axis0(self, x: Ref) -> Ref:
        """Column sums of a matrix (rows, cols), to (cols)."""
        return self._apply("reduce_sum_axis0", (x,))

    def reduce_sum_axis1(self, x: Ref) -> Ref:
        """Row sums of a matrix (rows, cols), to (rows)."""
        return self._apply("reduce_sum_axis1", (x,))

    def reduce_max_axis0(self, x: Ref) -> Ref:
        """The largest of each column of a matrix (rows, cols), to (cols); winners share the gradient."""
        return self._apply("reduce_max_axis0", (x,))

    def reduce_max_axis1(self, x: Ref) -> Ref:
        """The largest of each row of a matrix (rows, cols), to (rows); winners share the gradient."""
        return self._apply("reduce_max_axis1", (x,))

    def _axis(self, op: str, x: Ref, axis: int) -> int:
        rank = len(self._shape(op, x))
        place = integer(op, "axis", axis)
        if not -rank <= place < rank:
            raise ArgumentError(f"{op}: axis: got {axis}, expected {-rank} <= axis < {rank}", op=op)
        return place % rank

    # ---- views

    def reshape(self, x: Ref, shape: Sequence[int] | int) -> Ref:
        """The same elements in another shape (one entry may be -1), sharing the storage."""
        entries = (shape,) if hasattr(shape, "__index__") else shape
        wanted = integers("reshape", "shape", entries)
        return self._view(x, _completed(wanted, self._shape("reshape", x)), "reshape")

    def flatten(self, x: Ref) -> Ref:
        """The same elements in one axis, sharing the storage."""
        return self._flat("flatten", x)

    def _flat(self, op: str, x: Ref) -> Ref:
        shape = self._shape(op, x)
        return x if len(shape) == 1 else self._view(x, (math.prod(shape),), "flatten")

    # ---- shapes

    def transpose2d(self, x: Ref) -> Ref:
        """(rows, cols) to (cols, rows)."""
        return self._apply("transpose2d", (x,))

    def swap_adjacent_at_depth(self, x: Ref, depth: int) -> Ref:
        """Exchanges axes `depth` and `depth` + 1; the identity where there are no such axes."""
        op = "swap_adjacent_at_depth"
        shape, place = self._shape(op, x), integer(op, "depth", depth)
        if not 0 <= place < len(shape) - 1:
            return self._view(x, shape, op)
        return self._apply(op, (x,), (place,))

    def transpose3d_bca(self, x: Ref) -> Ref:
        """(a, b, c) to (b, c, a)."""
        return self._apply("transpose3d_bca", (x,))

    def transpose3d_cab(self, x: Ref) -> Ref:
        """(a, b, c) to (c, a, b)."""
        return self._apply("transpose3d_cab", (x,))

    def transpose3d_acb(self, x: Ref) -> Ref:
        """(a, b, c) to (a, c, b)."""
        return self._apply("transpose3d_acb", (x,))

    @whole
    def permute(self, x: Ref, axes: Sequence[int]) -> Ref:
        """Axis i of the result is axis axes[i] of x: a sequence of exchanges of neighbouring axes."""
        order = list(integers("permute", "axes", axes))
        rank = len(self._shape("permute", x))
        if sorted(order) != list(range(rank)):
            text = f"permute: axes: got {tuple(order)}, expected a permutation of 0..{rank - 1}"
            raise ArgumentError(text, op="permute")
        now = list(range(rank))
        for place, axis in enumerate(order):
            for at in range(now.index(axis), place, -1):
                x = self._apply("swap_adjacent_at_depth", (x,), (at - 1,))
                now[at - 1], now[at] = now[at], now[at - 1]
        return x

    def broadcast_to(self, x: Ref, shape: Sequence[int], axis_map: Sequence[int] | None = None) -> Ref:
        """x spread over a larger shape.

        `axis_map` has one entry per axis of the result: 0 inserts it, k reads axis k - 1 of x, whose size is 1 or the
        result's. Left out, the axes are aligned at the right, as NumPy does. The gradient is the sum over what was spread.
        """
        op = "broadcast_to"
        have, target = self._shape(op, x), integers(op, "shape", shape)
        if axis_map is None:
            if have == target:
                return x
            if len(have) > len(target):
                raise ShapeError(f"{op}: shape: got {target}, expected at least {len(have)} axes", op=op)
            places = (0,) * (len(target) - len(have)) + tuple(range(1, len(have) + 1))
        else:
            places = integers(op, "axis_map", axis_map)
        return self._apply(op, (x,), (places, target))

    def broadcast_vec_to_rows(self, vec: Ref, rows: int) -> Ref:
        """(cols) to (rows, cols), the vector in every row."""
        return self._apply("broadcast_vec_to_rows", (vec,), (integer("broadcast_vec_to_rows", "rows", rows),))

    def broadcast_vec_to_cols(self, vec: Ref, cols: int) -> Ref:
        """(rows) to (rows, cols), the vector in every column."""
        return self._apply("broadcast_vec_to_cols", (vec,), (integer("broadcast_vec_to_cols", "cols", cols),))

    def concat1d(self, a: Ref, b: Ref) -> Ref:
        """Two vectors, one after the other."""
        return self._apply("concat1d", (a, b))

    def concat_vectors(self, a: Ref, b: Ref) -> Ref:
        """concat1d by its other name."""
        return self._apply("concat1d", (a, b))

    def slice1d(self, x: Ref, start: int, len: int) -> Ref:
        """x[start : start + len] of a vector."""
        return self._apply("slice1d", (x,), (integer("slice1d", "start", start), integer("slice1d", "len", len)))

    @whole
    def concat_dim0(self, a: Ref, b: Ref) -> Ref:
        """(n, …) and (m, …) to (n + m, …)."""
        op = "concat_dim0"
        first, second = self._shape(op, a), self._shape(op, b)
        if not first or not second or first[1:] != second[1:]:
            wanted = ", ".join(["m", *map(str, first[1:])])
            text = f"{op}: {self._named('b', b)}: got shape {second}, expected ({wanted}) to follow {first}"
            raise ShapeError(text, op=op)
        joined = self._apply("concat1d", (self._flat(op, a), self._flat(op, b)))
        return self._view(joined, (first[0] + second[0], *first[1:]), op) if len(first) > 1 else joined

    @whole
    def slice_range0(self, x: Ref, start: int, len: int) -> Ref:
        """x[start : start + len] along axis 0."""
        op = "slice_range0"
        shape = self._shape(op, x)
        if not shape:
            raise ShapeError(f"{op}: x: got a scalar, expected at least one axis", op=op)
        first, count = integer(op, "start", start), integer(op, "len", len)
        if first < 0 or count < 0 or first + count > shape[0]:
            text = f"{op}: start + len: got {first} + {count}, expected at most {shape[0]}, neither of them negative"
            raise IndexOutOfRangeError(text, op=op)
        inner = math.prod(shape[1:])
        part = self._apply("slice1d", (self._flat(op, x),), (first * inner, count * inner))
        return self._view(part, (count, *shape[1:]), op) if shape[1:] else part

    # ---- indexing

    @whole
    def gather_scalar(self, x: Ref, i: int) -> Ref:
        """x[i] of a vector, a scalar; refused where i is out of range."""
        n = self._sized("gather_scalar", x, 1)[0]
        return self._view(self.slice1d(x, _place("gather_scalar", i, n), 1), (), "gather_scalar")

    @whole
    def gather_row(self, x: Ref, i: int) -> Ref:
        """x[i] of a matrix, a vector; refused where i is out of range."""
        rows, cols = self._sized("gather_row", x, 2)
        return self.slice1d(self._flat("gather_row", x), _place("gather_row", i, rows) * cols, cols)

    @whole
    def gather_scalar_nat(self, x: Ref, i: int) -> Ref:
        """x[i] of a vector, a scalar; 0 without a gradient where i is out of range."""
        hosts = {"indices": indices("gather_scalar_nat", "i", i if isinstance(i, _convert.Live) else [i])}
        return self._view(self._apply("gather_vec", (x,), (), hosts), (), "gather_scalar_nat")

    def gather_vec_nat(self, x: Ref, indices: npt.ArrayLike) -> Ref:
        """x[indices] of a vector; an index out of range reads 0 and receives no gradient."""
        return self._apply("gather_vec", (x,), (), _hosts("gather_vec_nat", indices))

    def gather_rows_nat(self, x: Ref, indices: npt.ArrayLike) -> Ref:
        """The rows x[indices] of a matrix; an index out of range reads a row of 0 and receives no gradient."""
        return self._apply("gather_rows", (x,), (), _hosts("gather_rows_nat", indices))

    @whole
    def embedding(self, table: Ref, indices: npt.ArrayLike) -> Ref:
        """The rows of `table` at indices of any shape: (…) to (…, cols); gather_rows_nat for indices of one axis."""
        places = _convert._array("embedding", "indices", indices, "integers")
        cols = self._sized("embedding", table, 2)[1]
        rows = self._apply("gather_rows", (table,), (), _hosts("embedding", places.reshape(-1)))
        return rows if places.ndim == 1 else self._view(rows, (*places.shape, cols), "embedding")

    @whole
    def scatter_add_vec(self, x: Ref, v: Ref, i: int) -> Ref:
        """x with x[i] + v in place of x[i], v a scalar; refused where i is out of range."""
        op = "scatter_add_vec"
        n = self._sized(op, x, 1)[0]
        one = self._view(v, (1,), "reshape") if self._shape(op, v) != (1,) else v
        return self._apply("scatter_add", (x, one), (), _hosts(op, [_place(op, i, n)]))

    def scatter_add(self, x: Ref, values: Ref, indices: npt.ArrayLike) -> Ref:
        """x with values[j] added at indices[j], in order; an index out of range is ignored."""
        return self._apply("scatter_add", (x, values), (), _hosts("scatter_add", indices))

    def scatter_add_row(self, x: Ref, row: Ref, i: int) -> Ref:
        """The matrix x with `row` added to its row i; refused where i is out of range."""
        rows = self._sized("scatter_add_row", x, 2)[0]
        return self._apply("scatter_add_row", (x, row), (_place("scatter_add_row", i, rows),))

    def scatter_add_rows(self, x: Ref, values: Ref, indices: npt.ArrayLike) -> Ref:
        """The matrix x with values[j] added to row indices[j], in order; an index out of range is ignored."""
        return self._apply("scatter_add_rows", (x, values), (), _hosts("scatter_add_rows", indices))

    def _sized(self, op: str, x: Ref, rank: int, name: str = "x") -> Shape:
        shape = self._shape(op, x)
        if len(shape) != rank:
            raise ShapeError(f"{op}: {self._named(name, x)}: got shape {shape}, expected {rank} axes", op=op)
        return shape


def integer(op: str, name: str, value: Any) -> int:
    """An integer argument; raises ArgumentTypeError for anything else."""
    try:
        return operator.index(value)
    except TypeError:
        raise ArgumentTypeError(f"{op}: {name}: got {_convert.type_name(value)}, expected an integer", op=op) from None


def integers(op: str, name: str, values: Any) -> tuple[int, ...]:
    """A sequence of integers; raises ArgumentTypeError for anything else."""
    try:
        if _convert.is_list(values):
            return tuple([operator.index(v) for v in values])
    except TypeError:
        pass
    got = values if isinstance(values, (tuple, list)) else _convert.type_name(values)
    raise ArgumentTypeError(f"{op}: {name}: got {got}, expected integers", op=op)


def indices(op: str, name: str, values: npt.ArrayLike) -> npt.NDArray[np.uint32]:
    """Host integers in an array of their own that nobody can change, as backward reads it again."""
    if isinstance(values, _convert.Live) and not np.shape(values):  # one number
        values = values.naturals(op, name, "integers").reshape(-1)
    made = _convert.uint32(op, name, values)
    if isinstance(values, (_convert.Live, _convert.Naturals)):
        return made
    made = made.copy()
    made.flags.writeable = False
    return made


def _hosts(op: str, values: npt.ArrayLike) -> dict[str, Any]:
    return {"indices": indices(op, "indices", values)}


def _common(op: str, a: Shape, b: Shape, name: str) -> Shape:
    """The shape two operands broadcast to, axes aligned at the right."""
    rank = max(len(a), len(b))
    long_a, long_b = (1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b
    out = []
    for m, n in zip(long_a, long_b, strict=True):
        if m != n and 1 not in (m, n):
            raise ShapeError(f"{op}: {name}: got shape {b}, expected one that broadcasts with {a}", op=op)
        out.append(n if m == 1 else m)
    return tuple(out)


def _completed(shape: Shape, have: Shape) -> Shape:
    """A shape in which -1 stands for what is left."""
    if -1 not in shape:
        return shape
    known = math.prod(d for d in shape if d != -1)
    if shape.count(-1) > 1 or known <= 0 or math.prod(have) % known:
        raise ShapeError(
            f"reshape: shape: got {shape}, expected one that holds {math.prod(have)} elements", op="reshape"
        )
    return tuple(math.prod(have) // known if d == -1 else d for d in shape)


def _place(op: str, i: int, n: int) -> int:
    place = integer(op, "i", i)
    if not 0 <= place < n:
        raise IndexOutOfRangeError(f"{op}: i: got {place}, expected 0 <= i < {n}", op=op)
    return place
