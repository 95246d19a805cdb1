"""Operations that read or write at indices."""

from typing import Any

import numpy.typing as npt

from tlrt._binding import convert
from tlrt._binding.arguments import integer
from tlrt._operations.base import Ref, atomic, indices
from tlrt._operations.slices import SliceOperations
from tlrt.errors import IndexOutOfRangeError, refusal


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

    def gather_vec_nat(self, x: Ref, indices: npt.ArrayLike) -> Ref:
        """x[indices] of a vector; an index out of range reads 0 and receives no gradient."""
        return self._apply("gather_vec", (x,), (), self._index_inputs("gather_vec_nat", indices, x))

    def gather_rows_nat(self, x: Ref, indices: npt.ArrayLike) -> Ref:
        """The rows x[indices] of a matrix; an index out of range reads a row of 0 and receives no gradient."""
        return self._apply("gather_rows", (x,), (), self._index_inputs("gather_rows_nat", indices, x))

    @atomic
    def embedding(self, table: Ref, indices: npt.ArrayLike) -> Ref:
        """The rows of `table` at indices of any shape: (…) to (…, cols); gather_rows_nat for indices of one axis."""
        places = convert.host_array("embedding", "indices", indices, "integers")
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

    def scatter_add(self, x: Ref, values: Ref, indices: npt.ArrayLike) -> Ref:
        """x with values[j] added at indices[j], in order; an index out of range is ignored."""
        return self._apply("scatter_add", (x, values), (), self._index_inputs("scatter_add", indices, x))

    def scatter_add_row(self, x: Ref, row: Ref, i: int) -> Ref:
        """The matrix x with `row` added to its row i; refused where i is out of range."""
        rows = self._require_rank("scatter_add_row", x, 2)[0]
        return self._apply("scatter_add_row", (x, row), (_checked_index("scatter_add_row", i, rows),))

    def scatter_add_rows(self, x: Ref, values: Ref, indices: npt.ArrayLike) -> Ref:
        """The matrix x with values[j] added to row indices[j], in order; an index out of range is ignored."""
        return self._apply("scatter_add_rows", (x, values), (), self._index_inputs("scatter_add_rows", indices, x))

    def _index_inputs(
        self, op: str, values: npt.ArrayLike, x: Ref, given: npt.ArrayLike | None = None
    ) -> dict[str, Any]:
        """Indices along axis 0 of x as a host argument. `given` is what they were read from, where they are another object."""
        shape = self._shape(op, x) if self._checks_indices else ()
        below = shape[0] if shape else None
        if below is not None and isinstance(given, convert.Live):
            given.require_below(below)
            below = None
        return {"indices": indices(op, "indices", values, below)}


def _checked_index(op: str, i: int, n: int) -> int:
    place = integer(op, "i", i)
    if not 0 <= place < n:
        raise refusal(IndexOutOfRangeError, op, "i", place, f"0 <= i < {n}")
    return place
