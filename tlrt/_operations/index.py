"""Operations that read or write at indices."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from tlrt._binding import convert
from tlrt._binding.arguments import boolean, integer
from tlrt._operations.base import Ref, atomic, indices, read_indices
from tlrt._operations.plan import Shape
from tlrt._operations.shaped import Indices, kernels_of
from tlrt._operations.slices import SliceOperations, axis_of
from tlrt.errors import ArgumentError, IndexOutOfRangeError, ShapeError, refusal


class IndexOperations(SliceOperations[Ref]):
    """Gathers and scatters. An index out of range, below 0 or too large, reads 0 and is not written to, and gives no gradient;
    where the session has ``check_indices`` it is refused. One of 2^32 or more is refused always."""

    #: whether indices out of range are refused
    _checks_indices = False

    @atomic
    def gather_scalar(self, x: Ref, i: int) -> Ref:
        """x[i] of a vector, a scalar; refused where i is out of range."""
        n = self._require_rank("gather_scalar", x, 1)[0]
        return self._view(self.slice1d(x, _checked_index("gather_scalar", i, n), 1), (), "gather_scalar")

    @atomic
    def gather_row(self, x: Ref, i: int) -> Ref:
        """x[i] of a matrix, a vector; refused where i is out of range."""
        rows, cols = self._require_rank("gather_row", x, 2)
        return self.slice1d(self._flatten("gather_row", x), _checked_index("gather_row", i, rows) * cols, cols)

    @atomic
    def gather_scalar_nat(self, x: Ref, i: int) -> Ref:
        """x[i] of a vector, a scalar; 0 without a gradient where i is out of range."""
        n, given = self._require_rank("gather_scalar_nat", x, 1)[0], i if isinstance(i, convert.Live) else [i]
        hosts = {"indices": indices("gather_scalar_nat", "i", given, n if self._checks_indices else None)}
        return self._view(self._apply("gather_vec", (x,), (), hosts), (), "gather_scalar_nat")

    def gather_vec_nat(self, x: Ref, indices: npt.ArrayLike | Indices) -> Ref:
        """x[indices] of a vector; an index out of range reads 0 and receives no gradient."""
        return self._apply("gather_vec", (x,), (), self._index_inputs("gather_vec_nat", indices, x))

    def gather_rows_nat(self, x: Ref, indices: npt.ArrayLike | Indices) -> Ref:
        """The rows x[indices] of a matrix; an index out of range reads a row of 0 and receives no gradient."""
        return self._apply("gather_rows", (x,), (), self._index_inputs("gather_rows_nat", indices, x))

    @atomic
    def embedding(self, table: Ref, indices: npt.ArrayLike | Indices) -> Ref:
        """The rows of `table` at indices of any shape: (…) to (…, cols); gather_rows_nat for indices of one axis."""
        places = read_indices("embedding", "indices", indices)
        cols = self._require_rank("embedding", table, 2)[1]
        rows = self._apply(
            "gather_rows", (table,), (), self._index_inputs("embedding", places.reshape(-1), table, indices)
        )
        return rows if places.ndim == 1 else self._view(rows, (*places.shape, cols), "embedding")

    @atomic
    def scatter_add_vec(self, x: Ref, v: Ref, i: int) -> Ref:
        """x with x[i] + v in place of x[i], v a scalar; refused where i is out of range."""
        op = "scatter_add_vec"
        n = self._require_rank(op, x, 1)[0]
        one = self._view(v, (1,), "reshape") if self._shape(op, v) != (1,) else v
        return self._apply("scatter_add", (x, one), (), {"indices": indices(op, "i", [_checked_index(op, i, n)])})

    def scatter_add(self, x: Ref, values: Ref, indices: npt.ArrayLike | Indices) -> Ref:
        """x with values[j] added at indices[j], in order; an index out of range is ignored."""
        return self._apply("scatter_add", (x, values), (), self._index_inputs("scatter_add", indices, x))

    def scatter_add_row(self, x: Ref, row: Ref, i: int) -> Ref:
        """The matrix x with `row` added to its row i; refused where i is out of range."""
        rows = self._require_rank("scatter_add_row", x, 2)[0]
        return self._apply("scatter_add_row", (x, row), (_checked_index("scatter_add_row", i, rows),))

    def scatter_add_rows(self, x: Ref, values: Ref, indices: npt.ArrayLike | Indices) -> Ref:
        """The matrix x with values[j] added to row indices[j], in order; an index out of range is ignored."""
        return self._apply("scatter_add_rows", (x, values), (), self._index_inputs("scatter_add_rows", indices, x))

    # ---- indices on the device

    def indices(self, values: npt.ArrayLike) -> Indices:
        """A copy of integers on the device, in their shape: what every operation takes in place of host integers."""
        places = convert.host_array("indices", "values", values, "integers")
        return Indices.of(places.shape, self.device.indices(places))

    def argmax(self, x: Ref, axis: int | None = None, keepdims: bool = False) -> Indices:
        """The place of the first largest element along an axis, of the flattened x without one; the first NaN wins:
        numpy.argmax."""
        return self._extreme_indices("argmax", x, axis, keepdims)

    def argmin(self, x: Ref, axis: int | None = None, keepdims: bool = False) -> Indices:
        """The place of the first smallest element along an axis, of the flattened x without one; the first NaN wins:
        numpy.argmin."""
        return self._extreme_indices("argmin", x, axis, keepdims)

    @atomic
    def topk(self, x: Ref, k: int, axis: int = -1, largest: bool = True) -> tuple[Ref, Indices]:
        """The k largest elements along an axis, falling, and their places; the smallest, rising, where `largest` is False. Of
        equal elements the first comes first, and NaN is larger than any number: torch.topk. The elements have gradients."""
        shape = self._shape("topk", x)
        place, count = axis_of("topk", axis, len(shape)), integer("topk", "k", k)
        if not 0 <= count <= shape[place]:
            raise refusal(ArgumentError, "topk", "k", count, f"0 <= k <= {shape[place]}")
        sizes, value = _around(shape, place), self._buffer("topk", x)
        found = kernels_of(value.device).topk(value.buffer, *sizes, count, int(boolean("topk", "largest", largest)))
        places = Indices.of((*shape[:place], count, *shape[place + 1 :]), found)
        try:
            return self._take_axis("topk", x, places, place, places.shape), places
        except BaseException:
            places.release()
            raise

    @atomic
    def take(self, x: Ref, indices: npt.ArrayLike | Indices, axis: int = 0) -> Ref:
        """x with the places `indices`, of any shape, in place of an axis: numpy.take. A host index counts from the end where it
        is negative and is refused out of range; one on the device reads 0 out of range."""
        shape = self._shape("take", x)
        place = axis_of("take", axis, len(shape))
        at = self._on_device("take", indices, shape[place])
        out = (*shape[:place], *at.shape, *shape[place + 1 :])
        return self._take_axis("take", x, at, place, out, shared=True)

    def index(self, x: Ref, key: Any) -> Ref:
        """x[key] as NumPy has it: integers, slices, ... and None, together; or one array of integers along axis 0, on the host or
        the device; or one of booleans over the leading axes, on the host. A copy, never a view."""
        return self.take(x, key) if isinstance(key, Indices) else super().index(x, key)

    @atomic
    def take_along(self, x: Ref, indices: npt.ArrayLike | Indices, axis: int = -1) -> Ref:
        """The elements at indices along an axis, the other axes of x and of the indices being the same: numpy.take_along_axis,
        torch.gather. Indices as for :meth:`take`."""
        shape = self._shape("take_along", x)
        place = axis_of("take_along", axis, len(shape))
        at = self._on_device("take_along", indices, shape[place])
        _require_beside("take_along", at.shape, shape, place)
        return self._take_axis("take_along", x, at, place, at.shape)

    @atomic
    def scatter_add_along(self, x: Ref, values: Ref, indices: npt.ArrayLike | Indices, axis: int = -1) -> Ref:
        """x with the values added at indices along an axis, in order, the other axes of all being the same: torch.scatter_add. A
        host index as for :meth:`take`; one on the device is ignored out of range."""
        op = "scatter_add_along"
        shape, given = self._shape(op, x), self._shape(op, values)
        place = axis_of(op, axis, len(shape))
        at = self._on_device(op, indices, shape[place])
        _require_beside(op, at.shape, shape, place)
        if given != at.shape:
            raise refusal(ShapeError, op, self._named("values", values), f"shape {given}", f"{at.shape} of the indices")
        outer, n, inner = sizes = _around(shape, place)
        k = at.shape[place]
        parts = (self._view(x, sizes, op), self._view(values, (outer, k, inner), op))
        hosts = {"indices": self._checked(op, at, n)}
        return self._view(self._apply("scatter_add_axis", parts, (outer, inner), hosts), shape, op)

    @atomic
    def one_hot(self, indices: npt.ArrayLike | Indices, n: int) -> Ref:
        """1 at each index of a new last axis of n places and 0 elsewhere; zeros for an index out of range on the device."""
        size = integer("one_hot", "n", n)
        if size < 0:
            raise refusal(ArgumentError, "one_hot", "n", size, "0 or more")
        at = self._on_device("one_hot", indices, size)
        zeros = self._full((*at.shape, size), 0.0)
        ones = self._full((*at.shape, 1), 1.0)
        return self.scatter_add_along(zeros, ones, Indices.of((*at.shape, 1), at.buffer))

    @atomic
    def _extreme_indices(self, op: str, x: Ref, axis: int | None, keepdims: bool) -> Indices:
        shape, kept = self._shape(op, x), boolean(op, "keepdims", keepdims)
        place = None if axis is None else axis_of(op, axis, len(shape))
        sizes = (1, math.prod(shape), 1) if place is None else _around(shape, place)
        if sizes[1] == 0:
            raise refusal(ShapeError, op, self._named("x", x), f"shape {shape}", "an axis that is not empty")
        value = self._buffer(op, x)
        found = getattr(kernels_of(value.device), op)(value.buffer, *sizes)
        dropped = [k for k in range(len(shape)) if place is None or k == place]
        left = tuple(1 if k in dropped else n for k, n in enumerate(shape) if kept or k not in dropped)
        return Indices.of(left, found)

    def _take_axis(self, op: str, x: Ref, at: Indices, axis: int, shape: Shape, shared: bool = False) -> Ref:
        outer, n, inner = sizes = _around(self._shape(op, x), axis)
        io, ii = (1, 1) if shared else (outer, inner)
        k = at.size if shared else at.shape[axis]
        hosts = {"indices": self._checked(op, at, n)}
        return self._view(self._apply("take_axis", (self._view(x, sizes, op),), (io, k, ii), hosts), shape, op)

    def _checked(self, op: str, at: Indices, n: int) -> Any:
        return indices(op, "indices", Indices.of((at.size,), at.buffer), n if self._checks_indices else None)

    def _on_device(self, op: str, values: npt.ArrayLike | Indices, n: int | None = None) -> Indices:
        """Indices on the device; those of the host into an axis of n places are counted from the end below 0."""
        if isinstance(values, Indices):
            return values
        places = convert.host_array(op, "indices", values, "integers")
        if n is not None and not isinstance(values, convert.Live) and places.dtype.kind in "iu":
            wrong = (places < -n) | (places >= n)
            if wrong.any():
                raise refusal(IndexOutOfRangeError, op, "indices", int(places[wrong][0]), f"{-n} <= index < {n}")
            places = np.where(places < 0, places + n, places)
        made = Indices.of(places.shape, self.device.indices(places))
        self._hold(made, op)
        return made

    def _index_inputs(
        self, op: str, values: npt.ArrayLike | Indices, x: Ref, given: npt.ArrayLike | Indices | None = None
    ) -> dict[str, Any]:
        """Indices along axis 0 of x as a host argument. `given` is what they were read from, where they are another object."""
        shape = self._shape(op, x) if self._checks_indices else ()
        below = shape[0] if shape else None
        if below is not None and isinstance(given, convert.Live):
            given.require_below(below)
            below = None
        return {"indices": indices(op, "indices", values, below)}


def _around(shape: Shape, axis: int) -> tuple[int, int, int]:
    """The elements before an axis, along it and behind it."""
    return math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])


def _require_beside(op: str, got: Shape, shape: Shape, axis: int) -> None:
    if len(got) != len(shape) or (*got[:axis], *got[axis + 1 :]) != (*shape[:axis], *shape[axis + 1 :]):
        raise refusal(ShapeError, op, "indices", f"shape {got}", f"{shape} but for axis {axis}")


def _checked_index(op: str, i: int, n: int) -> int:
    place = integer(op, "i", i)
    if not 0 <= place < n:
        raise refusal(IndexOutOfRangeError, op, "i", place, f"0 <= i < {n}")
    return place
