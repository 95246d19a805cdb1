"""Views, and operations that move elements to other places."""

import math
from collections.abc import Sequence

from tlrt._binding.arguments import integer, integers
from tlrt._operations.base import Ref, atomic
from tlrt._operations.plan import Shape
from tlrt._operations.rows import RowOperations
from tlrt.errors import ArgumentError, IndexOutOfRangeError, ShapeError, refusal


class ShapeOperations(RowOperations[Ref]):
    """Operations on shapes."""

    def reshape(self, x: Ref, shape: Sequence[int] | int) -> Ref:
        """The same elements in another shape, sharing the storage.

        Parameters
        ----------
        x : tensor
            Any shape.
        shape : int or sequence of int
            As many elements; one entry may be -1.

        Returns
        -------
        tensor
            The new shape.

        Raises
        ------
        ShapeError
            The shape holds another number of elements.

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> x = s.const([[1, 2, 3], [4, 5, 6]])
        >>> print(s.reshape(x, (3, -1)).shape)
        (3, 2)
        """
        entries = (shape,) if hasattr(shape, "__index__") else shape
        wanted = integers("reshape", "shape", entries)
        return self._view(x, complete_shape(wanted, self._shape("reshape", x)), "reshape")

    def flatten(self, x: Ref) -> Ref:
        """The same elements in one axis, sharing the storage.

        Parameters
        ----------
        x : tensor
            Any shape.

        Returns
        -------
        tensor
            One axis.

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> x = s.const([[1, 2, 3], [4, 5, 6]])
        >>> print(s.flatten(x).shape)
        (6,)
        """
        return self._flatten("flatten", x)

    def swap_adjacent_at_depth(self, x: Ref, depth: int) -> Ref:
        """Exchanges two neighbouring axes.

        Parameters
        ----------
        x : tensor
            Any shape.
        depth : int
            The first of the two; where there are no such axes x stays as it is.

        Returns
        -------
        tensor
            The two sizes exchanged.

        See Also
        --------
        tlrt.kernels.swap_adjacent_at_depth : The function of buffers, with special values.

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> x = s.const([[1, 2, 3], [4, 5, 6]])
        >>> print(s.swap_adjacent_at_depth(x, 0).shape)
        (3, 2)
        """
        op = "swap_adjacent_at_depth"
        shape, place = self._shape(op, x), integer(op, "depth", depth)
        if not 0 <= place < len(shape) - 1:
            return self._view(x, shape, op)
        return self._apply(op, (x,), (place,))

    @atomic
    def permute(self, x: Ref, axes: Sequence[int]) -> Ref:
        """Reorders axes: axis i of the result is axis axes[i] of x.

        A view where only axes of size 1 move.

        Parameters
        ----------
        x : tensor
            Any shape.
        axes : sequence of int
            A permutation of the axes.

        Returns
        -------
        tensor
            The sizes in the new order.

        Raises
        ------
        ArgumentError
            `axes` is no permutation.

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> x = s.zeros((2, 3, 4))
        >>> print(s.permute(x, (2, 0, 1)).shape)
        (4, 2, 3)
        """
        order = list(integers("permute", "axes", axes))
        shape = self._shape("permute", x)
        if sorted(order) != list(range(len(shape))):
            raise refusal(ArgumentError, "permute", "axes", tuple(order), f"a permutation of 0..{len(shape) - 1}")
        moved = [k for k in order if shape[k] != 1]
        if moved == sorted(moved):
            return self._view(x, tuple(shape[k] for k in order), "reshape")
        return self._apply("permute", (x,), (tuple(order),))

    def broadcast_to(self, x: Ref, shape: Sequence[int], axis_map: Sequence[int] | None = None) -> Ref:
        """Repeats x over a larger shape; the gradient is the sum over what was repeated.

        Parameters
        ----------
        x : tensor
            Any shape.
        shape : sequence of int
            The result's shape.
        axis_map : sequence of int, optional
            An entry for each axis of the result: 0 inserts it, k reads axis k - 1 of x, whose size is 1 or the
            result's. Left out, axes are aligned at the right, as NumPy does.

        Returns
        -------
        tensor
            The shape given.

        Raises
        ------
        ShapeError
            x does not broadcast to the shape.

        See Also
        --------
        tlrt.kernels.broadcast_to : The function of buffers, with special values.

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> x = s.const([1, 2, 3])
        >>> print(s.broadcast_to(x, (2, 3)).numpy())
        [[1. 2. 3.]
         [1. 2. 3.]]
        """
        op = "broadcast_to"
        have, target = self._shape(op, x), integers(op, "shape", shape)
        if axis_map is None:
            if have == target:
                return x
            if len(have) > len(target):
                raise refusal(ShapeError, op, "shape", target, f"at least {len(have)} axes")
            places = (0,) * (len(target) - len(have)) + tuple(range(1, len(have) + 1))
        else:
            places = integers(op, "axis_map", axis_map)
        return self._apply(op, (x,), (places, target))

    def concat_vectors(self, a: Ref, b: Ref) -> Ref:
        """concat1d under its other name.

        Parameters
        ----------
        a : tensor
            One axis.
        b : tensor
            One axis.

        Returns
        -------
        tensor
            One axis, a before b.

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> x = s.const([1, 2, 3])
        >>> print(s.concat_vectors(x, x).numpy())
        [1. 2. 3. 1. 2. 3.]
        """
        return self._apply("concat1d", (a, b))

    @atomic
    def concat_dim0(self, a: Ref, b: Ref) -> Ref:
        """Two tensors, one after the other along axis 0.

        Parameters
        ----------
        a : tensor
            Shape (n, …).
        b : tensor
            Shape (m, …).

        Returns
        -------
        tensor
            Shape (n + m, …).

        Raises
        ------
        ShapeError
            The axes after the first differ.

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> x = s.const([[1, 2, 3], [4, 5, 6]])
        >>> print(s.concat_dim0(x, x).shape)
        (4, 3)
        """
        op = "concat_dim0"
        first, second = self._shape(op, a), self._shape(op, b)
        if not first or not second or first[1:] != second[1:]:
            wanted = ", ".join(["m", *map(str, first[1:])])
            raise refusal(ShapeError, op, self._named("b", b), f"shape {second}", f"({wanted}) to follow {first}")
        joined = self._apply("concat1d", (self._flatten(op, a), self._flatten(op, b)))
        return self._view(joined, (first[0] + second[0], *first[1:]), op) if len(first) > 1 else joined

    @atomic
    def slice_range0(self, x: Ref, start: int, len: int) -> Ref:
        """The part x[start : start + len] along axis 0.

        Parameters
        ----------
        x : tensor
            At least one axis.
        start : int
            First index.
        len : int
            Number of indices.

        Returns
        -------
        tensor
            Shape (len, …).

        Raises
        ------
        IndexOutOfRangeError
            The part ends beyond x.

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> x = s.const([[1, 2, 3], [4, 5, 6]])
        >>> print(s.slice_range0(x, 1, 1).numpy())
        [[4. 5. 6.]]
        """
        op = "slice_range0"
        shape = self._shape(op, x)
        if not shape:
            raise refusal(ShapeError, op, "x", "a scalar", "at least one axis")
        first, count = integer(op, "start", start), integer(op, "len", len)
        if first < 0 or count < 0 or first + count > shape[0]:
            expected = f"at most {shape[0]}, neither of them negative"
            raise refusal(IndexOutOfRangeError, op, "start + len", f"{first} + {count}", expected)
        inner = math.prod(shape[1:])
        part = self._apply("slice1d", (self._flatten(op, x),), (first * inner, count * inner))
        return self._view(part, (count, *shape[1:]), op) if shape[1:] else part


def complete_shape(shape: Shape, have: Shape) -> Shape:
    """The shape with the size that -1 leaves open."""
    if -1 not in shape:
        return shape
    known = math.prod(d for d in shape if d != -1)
    if shape.count(-1) > 1 or known <= 0 or math.prod(have) % known:
        raise refusal(ShapeError, "reshape", "shape", shape, f"one that holds {math.prod(have)} elements")
    return tuple(math.prod(have) // known if d == -1 else d for d in shape)
