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
        """One element x[i] of a vector.

        Parameters
        ----------
        x : tensor
            One axis.
        i : int
            Counts from 0.

        Returns
        -------
        tensor
            A scalar.

        Raises
        ------
        IndexOutOfRangeError
            The index is out of range.

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> x = s.const([1, 2, 3])
        >>> print(s.gather_scalar(x, 1).numpy())
        2.0
        """
        n = self._require_rank("gather_scalar", x, 1)[0]
        return self._view(self.slice1d(x, _checked_index("gather_scalar", i, n), 1), (), "gather_scalar")

    @atomic
    def gather_row(self, x: Ref, i: int) -> Ref:
        """One row x[i] of a matrix.

        Parameters
        ----------
        x : tensor
            A matrix.
        i : int
            Counts from 0.

        Returns
        -------
        tensor
            One axis.

        Raises
        ------
        IndexOutOfRangeError
            The index is out of range.

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> x = s.const([[1, 2, 3], [4, 5, 6]])
        >>> print(s.gather_row(x, 1).numpy())
        [4. 5. 6.]
        """
        rows, cols = self._require_rank("gather_row", x, 2)
        return self.slice1d(self._flatten("gather_row", x), _checked_index("gather_row", i, rows) * cols, cols)

    @atomic
    def gather_scalar_nat(self, x: Ref, i: int) -> Ref:
        """One element x[i] of a vector; 0 without a gradient where i is out of range.

        Parameters
        ----------
        x : tensor
            One axis.
        i : int or NatRef
            Counts from 0.

        Returns
        -------
        tensor
            A scalar.

        See Also
        --------
        tlrt.kernels.gather_vec : The function of buffers, with special values.

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> x = s.const([1, 2, 3])
        >>> print(s.gather_scalar_nat(x, 7).numpy())
        0.0
        """
        n, given = self._require_rank("gather_scalar_nat", x, 1)[0], i if isinstance(i, convert.Live) else [i]
        hosts = {"indices": indices("gather_scalar_nat", "i", given, n if self._checks_indices else None)}
        return self._view(self._apply("gather_vec", (x,), (), hosts), (), "gather_scalar_nat")

    def gather_vec_nat(self, x: Ref, indices: npt.ArrayLike | Indices) -> Ref:
        """Elements x[indices] of a vector; an index out of range reads 0 and receives no gradient.

        Parameters
        ----------
        x : tensor
            One axis.
        indices : array_like of int or Indices
            Count from 0.

        Returns
        -------
        tensor
            The length of the indices.

        See Also
        --------
        tlrt.kernels.gather_vec : The function of buffers, with special values.

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> x = s.const([1, 2, 3])
        >>> print(s.gather_vec_nat(x, [2, 0, 7]).numpy())
        [3. 1. 0.]
        """
        return self._apply("gather_vec", (x,), (), self._index_inputs("gather_vec_nat", indices, x))

    def gather_rows_nat(self, x: Ref, indices: npt.ArrayLike | Indices) -> Ref:
        """Rows x[indices] of a matrix; an index out of range reads zeros and receives no gradient.

        Parameters
        ----------
        x : tensor
            A matrix.
        indices : array_like of int or Indices
            Count from 0.

        Returns
        -------
        tensor
            A row for each index.

        See Also
        --------
        tlrt.kernels.gather_rows : The function of buffers, with special values.

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> x = s.const([[1, 2, 3], [4, 5, 6]])
        >>> print(s.gather_rows_nat(x, [1, 7]).numpy())
        [[4. 5. 6.]
         [0. 0. 0.]]
        """
        return self._apply("gather_rows", (x,), (), self._index_inputs("gather_rows_nat", indices, x))

    @atomic
    def embedding(self, table: Ref, indices: npt.ArrayLike | Indices) -> Ref:
        """Rows of a table at indices of any shape.

        Parameters
        ----------
        table : tensor
            Shape (rows, cols).
        indices : array_like of int or Indices
            Count from 0.

        Returns
        -------
        tensor
            The shape of the indices, and cols after it.

        See Also
        --------
        tlrt.kernels.gather_rows : The function of buffers, with special values.

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> x = s.const([[1, 2, 3], [4, 5, 6]])
        >>> print(s.embedding(x, [[1], [0]]).shape)
        (2, 1, 3)
        """
        places = read_indices("embedding", "indices", indices)
        cols = self._require_rank("embedding", table, 2)[1]
        rows = self._apply(
            "gather_rows", (table,), (), self._index_inputs("embedding", places.reshape(-1), table, indices)
        )
        return rows if places.ndim == 1 else self._view(rows, (*places.shape, cols), "embedding")

    @atomic
    def scatter_add_vec(self, x: Ref, v: Ref, i: int) -> Ref:
        """A vector with a scalar added to one of its elements.

        Parameters
        ----------
        x : tensor
            One axis.
        v : tensor
            A scalar.
        i : int
            Counts from 0.

        Returns
        -------
        tensor
            The shape of x.

        Raises
        ------
        IndexOutOfRangeError
            The index is out of range.

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> x = s.const([1, 2, 3])
        >>> print(s.scatter_add_vec(x, s.const(10), 1).numpy())
        [ 1. 12.  3.]
        """
        op = "scatter_add_vec"
        n = self._require_rank(op, x, 1)[0]
        one = self._view(v, (1,), "reshape") if self._shape(op, v) != (1,) else v
        return self._apply("scatter_add", (x, one), (), {"indices": indices(op, "i", [_checked_index(op, i, n)])})

    def scatter_add(self, x: Ref, values: Ref, indices: npt.ArrayLike | Indices) -> Ref:
        """A vector with values added at indices, in order; an index out of range is ignored.

        Parameters
        ----------
        x : tensor
            One axis.
        values : tensor
            The length of the indices.
        indices : array_like of int or Indices
            Count from 0.

        Returns
        -------
        tensor
            The shape of x.

        See Also
        --------
        tlrt.kernels.scatter_add : The function of buffers, with special values.

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> x = s.const([1, 2, 3])
        >>> print(s.scatter_add(x, s.const([10, 20]), [2, 2]).numpy())
        [ 1.  2. 33.]
        """
        return self._apply("scatter_add", (x, values), (), self._index_inputs("scatter_add", indices, x))

    def scatter_add_row(self, x: Ref, row: Ref, i: int) -> Ref:
        """A matrix with a vector added to one of its rows.

        Parameters
        ----------
        x : tensor
            A matrix.
        row : tensor
            Shape (cols,).
        i : int
            Counts from 0.

        Returns
        -------
        tensor
            The shape of x.

        Raises
        ------
        IndexOutOfRangeError
            The index is out of range.

        See Also
        --------
        tlrt.kernels.scatter_add_row : The function of buffers, with special values.

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> x = s.const([[1, 2, 3], [4, 5, 6]])
        >>> print(s.scatter_add_row(x, s.const([1, 1, 1]), 1).numpy())
        [[1. 2. 3.]
         [5. 6. 7.]]
        """
        rows = self._require_rank("scatter_add_row", x, 2)[0]
        return self._apply("scatter_add_row", (x, row), (_checked_index("scatter_add_row", i, rows),))

    def scatter_add_rows(self, x: Ref, values: Ref, indices: npt.ArrayLike | Indices) -> Ref:
        """A matrix with rows added at indices, in order; an index out of range is ignored.

        Parameters
        ----------
        x : tensor
            A matrix.
        values : tensor
            A row for each index.
        indices : array_like of int or Indices
            Count from 0.

        Returns
        -------
        tensor
            The shape of x.

        See Also
        --------
        tlrt.kernels.scatter_add_rows : The function of buffers, with special values.

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> x = s.const([[1, 2, 3], [4, 5, 6]])
        >>> print(s.scatter_add_rows(x, s.const([[1, 1, 1]]), [1]).numpy())
        [[1. 2. 3.]
         [5. 6. 7.]]
        """
        return self._apply("scatter_add_rows", (x, values), (), self._index_inputs("scatter_add_rows", indices, x))

    # ---- indices on the device

    def indices(self, values: npt.ArrayLike) -> Indices:
        """A copy of integers on the device: what every operation takes in place of host integers.

        Parameters
        ----------
        values : array_like of int
            From 0 to 2**32 - 1; any shape.

        Returns
        -------
        Indices
            In the shape of the values.

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> print(s.indices([[1], [0]]).shape)
        (2, 1)
        """
        places = convert.host_array("indices", "values", values, "integers")
        return Indices.of(places.shape, self.device.indices(places))

    def argmax(self, x: Ref, axis: int | None = None, keepdims: bool = False) -> Indices:
        """Place of the first largest element, as numpy.argmax; the first NaN wins.

        Parameters
        ----------
        x : tensor
            Any shape.
        axis : int or None, default None
            The axis; None for the flattened x.
        keepdims : bool, default False
            Keeps the reduced axes with size 1.

        Returns
        -------
        Indices
            Without the axis, or with size 1 there.

        Raises
        ------
        ArgumentError
            An axis that x does not have.

        See Also
        --------
        tlrt.kernels.argmax : The function of buffers, with special values.

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> x = s.const([[1, 2, 3], [4, 5, 6]])
        >>> print(s.argmax(x, 1).numpy())
        [2 2]
        """
        return self._extreme_indices("argmax", x, axis, keepdims)

    def argmin(self, x: Ref, axis: int | None = None, keepdims: bool = False) -> Indices:
        """Place of the first smallest element, as numpy.argmin; the first NaN wins.

        Parameters
        ----------
        x : tensor
            Any shape.
        axis : int or None, default None
            The axis; None for the flattened x.
        keepdims : bool, default False
            Keeps the reduced axes with size 1.

        Returns
        -------
        Indices
            Without the axis, or with size 1 there.

        Raises
        ------
        ArgumentError
            An axis that x does not have.

        See Also
        --------
        tlrt.kernels.argmin : The function of buffers, with special values.

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> x = s.const([[1, 2, 3], [4, 5, 6]])
        >>> print(s.argmin(x, 1).numpy())
        [0 0]
        """
        return self._extreme_indices("argmin", x, axis, keepdims)

    @atomic
    def topk(self, x: Ref, k: int, axis: int = -1, largest: bool = True) -> tuple[Ref, Indices]:
        """The k largest elements along an axis, falling, and their places, as torch.topk.

        Of equal elements the first comes first, and NaN is larger than any number.

        Parameters
        ----------
        x : tensor
            Any shape.
        k : int
            How many.
        axis : int, default -1
            The axis.
        largest : bool, default True
            False for the smallest, rising.

        Returns
        -------
        tensor
            The elements; they have gradients.
        Indices
            Their places.

        Raises
        ------
        ShapeError
            k is larger than the axis.

        See Also
        --------
        tlrt.kernels.topk : The function of buffers, with special values.

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> x = s.const([1, 2, 3])
        >>> values, places = s.topk(x, 2)
        >>> print(values.numpy(), places.numpy())
        [3. 2.] [2 1]
        """
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
        """Elements at indices along an axis, as numpy.take.

        Parameters
        ----------
        x : tensor
            Any shape.
        indices : array_like of int or Indices
            Any shape. A host index counts from the end where it is negative; one on the device reads 0 out of range.
        axis : int, default 0
            The axis.

        Returns
        -------
        tensor
            The shape of the indices in place of the axis.

        Raises
        ------
        IndexOutOfRangeError
            The index is out of range.

        See Also
        --------
        tlrt.kernels.take_axis : The function of buffers, with special values.

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> x = s.const([[1, 2, 3], [4, 5, 6]])
        >>> print(s.take(x, [2, 0], 1).numpy())
        [[3. 1.]
         [6. 4.]]
        """
        shape = self._shape("take", x)
        place = axis_of("take", axis, len(shape))
        at = self._on_device("take", indices, shape[place])
        out = (*shape[:place], *at.shape, *shape[place + 1 :])
        return self._take_axis("take", x, at, place, out, shared=True)

    def index(self, x: Ref, key: Any) -> Ref:
        """x[key], as NumPy has it: always a copy, never a view.

        Parameters
        ----------
        x : tensor
            Any shape.
        key : int, slice, ..., None, a tuple of them, or an array
            An array of integers picks along axis 0, one of booleans over the leading axes.

        Returns
        -------
        tensor
            As NumPy's.

        Raises
        ------
        IndexOutOfRangeError
            An index is out of range.

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> x = s.const([[1, 2, 3], [4, 5, 6]])
        >>> print(s.index(x, (slice(None), 1)).numpy(), x[:, 1].numpy())
        [2. 5.] [2. 5.]
        """
        return self.take(x, key) if isinstance(key, Indices) else super().index(x, key)

    @atomic
    def take_along(self, x: Ref, indices: npt.ArrayLike | Indices, axis: int = -1) -> Ref:
        """Elements at indices along an axis, as numpy.take_along_axis and torch.gather.

        Parameters
        ----------
        x : tensor
            Any shape.
        indices : array_like of int or Indices
            The other axes are those of x; as for take.
        axis : int, default -1
            The axis.

        Returns
        -------
        tensor
            The shape of the indices.

        Raises
        ------
        IndexOutOfRangeError
            The index is out of range.

        See Also
        --------
        tlrt.kernels.take_axis : The function of buffers, with special values.

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> x = s.const([[1, 2, 3], [4, 5, 6]])
        >>> print(s.take_along(x, [[2], [0]]).numpy())
        [[3.]
         [4.]]
        """
        shape = self._shape("take_along", x)
        place = axis_of("take_along", axis, len(shape))
        at = self._on_device("take_along", indices, shape[place])
        _require_beside("take_along", at.shape, shape, place)
        return self._take_axis("take_along", x, at, place, at.shape)

    @atomic
    def scatter_add_along(self, x: Ref, values: Ref, indices: npt.ArrayLike | Indices, axis: int = -1) -> Ref:
        """x with values added at indices along an axis, in order, as torch.scatter_add.

        Parameters
        ----------
        x : tensor
            Any shape.
        values : tensor
            The shape of the indices.
        indices : array_like of int or Indices
            The other axes are those of x. A host index as for take; one on the device is ignored out of range.
        axis : int, default -1
            The axis.

        Returns
        -------
        tensor
            The shape of x.

        Raises
        ------
        IndexOutOfRangeError
            The index is out of range.

        See Also
        --------
        tlrt.kernels.scatter_add_axis : The function of buffers, with special values.

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> x = s.const([[1, 2, 3], [4, 5, 6]])
        >>> print(s.scatter_add_along(x, s.const([[10], [20]]), [[2], [0]]).numpy())
        [[ 1.  2. 13.]
         [24.  5.  6.]]
        """
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
        """1 at each index of a new last axis, 0 elsewhere.

        Parameters
        ----------
        indices : array_like of int or Indices
            Any shape; zeros for one on the device that is out of range.
        n : int
            Size of the new axis.

        Returns
        -------
        tensor
            The shape of the indices, and n after it.

        Raises
        ------
        IndexOutOfRangeError
            The index is out of range.

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> print(s.one_hot([1, 0], 3).numpy())
        [[0. 1. 0.]
         [1. 0. 0.]]
        """
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
