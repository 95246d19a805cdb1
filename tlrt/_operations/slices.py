"""Joining and cutting arrays along any axis, and indexing as NumPy does."""

import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from tlrt._binding.arguments import integer, integers
from tlrt._binding.convert import is_list, type_name
from tlrt._operations.base import Ref, atomic, indices
from tlrt._operations.plan import Shape
from tlrt._operations.shape import ShapeOperations
from tlrt.errors import ArgumentError, ArgumentTypeError, IndexOutOfRangeError, ShapeError, refusal
from tlspec.shapes import MOST_AXES

Axes = Sequence[int] | int | None


class SliceOperations(ShapeOperations[Ref]):
    """Concatenation, padding, slices and the like."""

    @atomic
    def concat(self, tensors: Sequence[Ref], axis: int = 0) -> Ref:
        """Tensors one after the other along an axis, as numpy.concatenate.

        Parameters
        ----------
        tensors : sequence of tensor
            At least one.
        axis : int, default 0
            The axis; negative ones count from the end.

        Returns
        -------
        tensor
            The sizes of the axis added up.

        Raises
        ------
        ShapeError
            Another axis differs.

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> x = s.const([1, 2, 3])
        >>> print(s.concat([x, x]).numpy())
        [1. 2. 3. 1. 2. 3.]
        """
        parts, shapes, k = self._parts("concat", tensors, axis)
        for i, shape in enumerate(shapes):
            if len(shape) != len(shapes[0]) or shape[:k] + shape[k + 1 :] != shapes[0][:k] + shapes[0][k + 1 :]:
                expected = f"{shapes[0]} but for axis {k}"
                raise refusal(ShapeError, "concat", self._named(f"tensors[{i}]", parts[i]), f"shape {shape}", expected)
        whole = (*shapes[0][:k], sum(s[k] for s in shapes), *shapes[0][k + 1 :])
        return self._view(self._join("concat", parts, math.prod(whole[:k])), whole, "concat")

    @atomic
    def stack(self, tensors: Sequence[Ref], axis: int = 0) -> Ref:
        """Tensors of one shape along a new axis, as numpy.stack.

        Parameters
        ----------
        tensors : sequence of tensor
            At least one.
        axis : int, default 0
            The axis; negative ones count from the end.

        Returns
        -------
        tensor
            One axis more.

        Raises
        ------
        ShapeError
            The shapes differ.

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> x = s.const([1, 2, 3])
        >>> print(s.stack([x, x]).numpy())
        [[1. 2. 3.]
         [1. 2. 3.]]
        """
        parts, shapes, k = self._parts("stack", tensors, axis, 1)
        for i, shape in enumerate(shapes):
            if shape != shapes[0]:
                raise refusal(ShapeError, "stack", self._named(f"tensors[{i}]", parts[i]), f"shape {shape}", shapes[0])
        whole = (*shapes[0][:k], len(parts), *shapes[0][k:])
        return self._view(self._join("stack", parts, math.prod(whole[:k])), whole, "stack")

    def split(self, x: Ref, sizes: Sequence[int] | int, axis: int = 0) -> list[Ref]:
        """Consecutive parts along an axis, as torch.split.

        Parameters
        ----------
        x : tensor
            Any shape.
        sizes : int or sequence of int
            The size of each part, or one for all but the last.
        axis : int, default 0
            The axis; negative ones count from the end.

        Returns
        -------
        list of tensor
            The parts.

        Raises
        ------
        ShapeError
            The sizes are not those of the axis.

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> x = s.const([[1, 2, 3], [4, 5, 6]])
        >>> print([part.shape for part in s.split(x, [1, 2], 1)])
        [(2, 1), (2, 2)]
        """
        return self._cut("split", x, sizes, axis)

    def chunk(self, x: Ref, chunks: int, axis: int = 0) -> list[Ref]:
        """At most so many consecutive parts of one size along an axis, as torch.chunk.

        Parameters
        ----------
        x : tensor
            Any shape.
        chunks : int
            How many; the last part has what is left.
        axis : int, default 0
            The axis; negative ones count from the end.

        Returns
        -------
        list of tensor
            The parts.

        Raises
        ------
        ArgumentError
            `chunks` is below 1.

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> x = s.const([[1, 2, 3], [4, 5, 6]])
        >>> print([part.shape for part in s.chunk(x, 2, 1)])
        [(2, 2), (2, 1)]
        """
        shape, count = self._shape("chunk", x), integer("chunk", "chunks", chunks)
        if count < 1:
            raise refusal(ArgumentError, "chunk", "chunks", count, "at least 1")
        return self._cut("chunk", x, -(-shape[axis_of("chunk", axis, len(shape))] // count) or 1, axis)

    def pad(self, x: Ref, widths: Sequence[Sequence[int]] | Sequence[int] | int, value: float = 0.0) -> Ref:
        """x with a number around it, as numpy.pad.

        Parameters
        ----------
        x : tensor
            Any shape.
        widths : int, pair of int, or sequence of pairs
            (before, after) for each axis, or for all.
        value : float, default 0.0
            The number.

        Returns
        -------
        tensor
            The sizes with the widths.

        See Also
        --------
        tlrt.kernels.pad_axes : The function of buffers, with special values.

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> x = s.const([1, 2, 3])
        >>> print(s.pad(x, (1, 2)).numpy())
        [0. 1. 2. 3. 0. 0.]
        """
        shape = self._shape("pad", x)
        pairs = pad_widths(widths, len(shape))
        out = tuple(n + before + after for n, (before, after) in zip(shape, pairs, strict=True))
        return self._apply("pad_axes", (x,), (tuple(p[0] for p in pairs), (1,) * len(shape), 0, value, out))

    def flip(self, x: Ref, axes: Axes = None) -> Ref:
        """x with its elements in reverse order along axes, as numpy.flip.

        Parameters
        ----------
        x : tensor
            Any shape.
        axes : int, sequence of int or None, default None
            The axes; None for all.

        Returns
        -------
        tensor
            The shape of x.

        Raises
        ------
        ArgumentError
            An axis that x does not have, or one named twice.

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> x = s.const([[1, 2, 3], [4, 5, 6]])
        >>> print(s.flip(x, 1).numpy())
        [[3. 2. 1.]
         [6. 5. 4.]]
        """
        shape = self._shape("flip", x)
        places = axes_of("flip", axes, len(shape), "axes")
        key = tuple(slice(None, None, -1 if k in places else 1) for k in range(len(shape)))
        return self._slice(x, shape, key)

    @atomic
    def roll(self, x: Ref, shift: int, axis: int) -> Ref:
        """x shifted along an axis, as numpy.roll: what passes the end comes in at the start.

        Parameters
        ----------
        x : tensor
            Any shape.
        shift : int
            By how many places.
        axis : int
            The axis.

        Returns
        -------
        tensor
            The shape of x.

        Raises
        ------
        ArgumentError
            An axis that x does not have.

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> x = s.const([[1, 2, 3], [4, 5, 6]])
        >>> print(s.roll(x, 1, 1).numpy())
        [[3. 1. 2.]
         [6. 4. 5.]]
        """
        shape = self._shape("roll", x)
        k, n = axis_of("roll", axis, len(shape)), integer("roll", "shift", shift)
        if shape[k] < 2 or n % shape[k] == 0:
            return x
        return self.concat(self._cut("roll", x, (shape[k] - n % shape[k], n % shape[k]), k)[::-1], k)

    @atomic
    def tile(self, x: Ref, reps: Sequence[int] | int) -> Ref:
        """x repeated along its axes, as numpy.tile.

        Parameters
        ----------
        x : tensor
            Any shape.
        reps : int or sequence of int
            How often along each axis; axes of size 1 come first where there are more.

        Returns
        -------
        tensor
            The sizes times the repetitions.

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> x = s.const([1, 2, 3])
        >>> print(s.tile(x, 2).numpy())
        [1. 2. 3. 1. 2. 3.]
        """
        times = integers("tile", "reps", (reps,) if hasattr(reps, "__index__") else reps)
        shape = self._shape("tile", x)
        if min(times, default=0) < 0:
            raise refusal(ArgumentError, "tile", "reps", times, "none negative")
        sizes = (1,) * (len(times) - len(shape)) + shape
        times = (1,) * (len(sizes) - len(times)) + times
        return self._repeated("tile", x, sizes, [(k, False, t) for k, t in enumerate(times) if t != 1])

    @atomic
    def repeat(self, x: Ref, times: int, axis: int) -> Ref:
        """x with every element several times in a row along an axis, as numpy.repeat.

        Parameters
        ----------
        x : tensor
            Any shape.
        times : int
            How often.
        axis : int
            The axis.

        Returns
        -------
        tensor
            The axis times as long.

        Raises
        ------
        ArgumentError
            An axis that x does not have.

        Examples
        --------
        >>> s = tlrt.Session("cpu")
        >>> x = s.const([1, 2, 3])
        >>> print(s.repeat(x, 2, 0).numpy())
        [1. 1. 2. 2. 3. 3.]
        """
        shape, count = self._shape("repeat", x), integer("repeat", "times", times)
        k = axis_of("repeat", axis, len(shape))
        if count < 0:
            raise refusal(ArgumentError, "repeat", "times", count, "none negative")
        return self._repeated("repeat", x, shape, [(k, True, count)])

    @atomic
    def index(self, x: Ref, key: Any) -> Ref:
        """x[key], as NumPy has it: always a copy, never a view.

        Parameters
        ----------
        x : tensor
            Any shape.
        key : int, slice, ..., None, a tuple of them, or an array
            An array of integers picks along axis 0, one of booleans on the host over the leading axes.

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
        >>> print(x[:, 1].numpy())
        [2. 5.]
        """
        shape = self._shape("index", x)
        if isinstance(key, (list, np.ndarray)) and np.asarray(key).ndim > 0:
            return self._take(x, shape, np.asarray(key))
        entries = list(key) if isinstance(key, tuple) else [key]
        found = [i for i, e in enumerate(entries) if e is Ellipsis]
        named = sum(e is not None and e is not Ellipsis for e in entries)
        if len(found) > 1 or named > len(shape):
            expected = f"at most {len(shape)} indices and one ..."
            raise refusal(IndexOutOfRangeError, "index", "key", f"{named} indices, {len(found)} ...", expected)
        place = found[0] if found else len(entries)
        entries[place : place + 1] = [slice(None)] * (len(shape) - named)
        sizes = iter(enumerate(shape))
        cut, kept = [], list[int]()
        for entry in entries:
            if entry is None:
                kept.append(1)
                continue
            k, n = next(sizes)
            whole = slice_of(k, entry, n)
            cut.append(whole)
            if isinstance(entry, slice):
                kept.append(len(range(*whole.indices(n))))
        part = self._slice(x, shape, tuple(cut))
        return part if self._shape("index", part) == tuple(kept) else self._view(part, tuple(kept), "index")

    def _parts(self, op: str, tensors: Sequence[Ref], axis: int, more: int = 0) -> tuple[list[Ref], list[Shape], int]:
        if not is_list(tensors) and not isinstance(tensors, (list, tuple)):
            raise refusal(ArgumentTypeError, op, "tensors", type_name(tensors), "a list of tensors")
        if not tensors:
            raise refusal(ArgumentError, op, "tensors", "none", "at least one")
        shapes = [self._shape(op, t) for t in tensors]
        return list(tensors), shapes, axis_of(op, axis, len(shapes[0]) + more)

    def _join(self, op: str, parts: list[Ref], rows: int) -> Ref:
        """Joins arrays row by row, by twos: each element is copied as often as a balanced tree is high."""
        joined = [
            self._view(p, (rows, math.prod(self.shape(p)) // rows if rows else 0), op)
            for p in parts
        ]  # fmt: skip
        while len(joined) > 1:
            pairs = [joined[i : i + 2] for i in range(0, len(joined), 2)]
            joined = [self._apply("concat_rows", (p[0], p[1])) if len(p) > 1 else p[0] for p in pairs]
        return joined[0]

    @atomic
    def _cut(self, op: str, x: Ref, sizes: Sequence[int] | int, axis: int) -> list[Ref]:
        shape = self._shape(op, x)
        k = axis_of(op, axis, len(shape))
        if hasattr(sizes, "__index__"):
            size = operator.index(sizes)
            if size < 1:
                raise refusal(ArgumentError, op, "sizes", size, "at least 1")
            counts: Shape = tuple(min(size, shape[k] - at) for at in range(0, max(shape[k], 1), size))
        else:
            counts = integers(op, "sizes", sizes)
        if min(counts, default=0) < 0 or sum(counts) != shape[k]:
            raise refusal(ShapeError, op, "sizes", counts, f"sizes that sum to {shape[k]}, none negative")
        ends = np.cumsum(counts).tolist()
        before = (slice(None),) * k
        return [self._slice(x, shape, (*before, slice(e - n, e))) for n, e in zip(counts, ends, strict=True)]

    def _slice(self, x: Ref, shape: Shape, key: tuple[slice, ...]) -> Ref:
        """x at a slice of every axis, those left out being whole."""
        starts, steps, counts, reversed = [], [], [], 0
        for k, n in enumerate(shape):
            taken = range(n)[key[k]] if k < len(key) else range(n)
            starts.append(taken.start if len(taken) else 0)
            steps.append(abs(taken.step) if len(taken) > 1 else 1)
            counts.append(len(taken))
            reversed |= (len(taken) > 1 and taken.step < 0) << k
        return self._apply("slice_axes", (x,), (tuple(starts), tuple(steps), reversed, tuple(counts)))

    def _repeated(self, op: str, x: Ref, sizes: Shape, new: list[tuple[int, bool, int]]) -> Ref:
        """x, seen as `sizes`, with new axes (beside axis k, after it, of a size) that are then folded into axis k."""
        if len(sizes) + len(new) > MOST_AXES:  # one after the other, with the axes before and after it as one each
            for k, after, count in new:
                seen = math.prod(sizes[:k]), sizes[k], math.prod(sizes[k + 1 :])
                x = self._repeated(op, x, seen, [(1, after, count)])
                sizes = (*sizes[:k], sizes[k] * count, *sizes[k + 1 :])
            return self._view(x, sizes, op)
        folded = list(sizes)
        spread, axis_map = list(sizes), list(range(1, len(sizes) + 1))
        for k, after, count in reversed(new):
            folded[k] *= count
            spread.insert(k + after, count)
            axis_map.insert(k + after, 0)
        view = self._view(x, sizes, op) if self._shape(op, x) != sizes else x
        if not new:
            return view
        return self._view(self.broadcast_to(view, spread, axis_map), tuple(folded), op)

    def _take(self, x: Ref, shape: Shape, key: np.ndarray) -> Ref:
        """x at an array of integers along axis 0, or where an array of booleans over leading axes is true."""
        if key.dtype == bool:
            if key.shape != shape[: key.ndim]:
                raise refusal(ShapeError, "index", "key", f"booleans of shape {key.shape}", shape[: key.ndim])
            places, lead = np.flatnonzero(key), key.ndim
        elif key.dtype.kind in "iu" and shape:
            places, lead = key.astype(np.int64), 1
            wrong = (places < -shape[0]) | (places >= shape[0])
            if wrong.any():
                expected = f"{-shape[0]} <= index < {shape[0]}"
                raise refusal(IndexOutOfRangeError, "index", "key", int(places[wrong][0]), expected)
            places = np.where(places < 0, places + shape[0], places)
        else:
            raise refusal(ArgumentTypeError, "index", "key", f"an array of {key.dtype}", "integers or booleans")
        rows = self._view(x, (math.prod(shape[:lead]), math.prod(shape[lead:])), "index")
        found = self._apply("gather_rows", (rows,), (), {"indices": indices("index", "key", places.reshape(-1))})
        return self._view(found, (*places.shape, *shape[lead:]), "index")


def axis_of(op: str, axis: int, rank: int) -> int:
    """An axis, counted from the end where it is negative."""
    place = integer(op, "axis", axis)
    if not -rank <= place < rank:
        raise refusal(ArgumentError, op, "axis", place, f"{-rank} <= axis < {rank}" if rank else "no axis of a scalar")
    return place % rank


def axes_of(op: str, axis: Axes, rank: int, name: str = "axis") -> tuple[int, ...]:
    """Axes in ascending order; None stands for all."""
    if axis is None:
        return tuple(range(rank))
    given = integers(op, name, (axis,) if hasattr(axis, "__index__") else axis)
    places = sorted(axis_of(op, k, rank) for k in given)
    if len(set(places)) != len(places):
        raise refusal(ArgumentError, op, name, axis, "no axis twice")
    return tuple(places)


def slice_of(axis: int, entry: Any, n: int) -> slice:
    """One entry of an index as a slice of an axis of n elements."""
    if isinstance(entry, slice):
        return entry
    try:
        if isinstance(entry, (bool, np.bool_)):
            raise TypeError
        place = operator.index(entry)
    except TypeError:
        expected = "an integer, a slice, ... or None; an array of integers or booleans comes alone"
        raise refusal(ArgumentTypeError, "index", "key", type_name(entry), expected) from None
    if not -n <= place < n:
        raise refusal(IndexOutOfRangeError, "index", "key", place, f"{-n} <= index < {n} for axis {axis}")
    return slice(place % n, place % n + 1)


def pad_widths(widths: Any, rank: int) -> list[tuple[int, int]]:
    """numpy.pad's widths as (before, after) for every axis."""
    try:
        given = np.broadcast_to(np.asarray(widths), (rank, 2))
    except ValueError:
        given = np.empty((0, 0))
    if given.shape != (rank, 2) or given.dtype.kind not in "iu" or (given < 0).any():
        expected = f"one (before, after) for each of {rank} axes, none negative"
        raise refusal(ArgumentError, "pad", "widths", widths, expected)
    return [(int(before), int(after)) for before, after in given]
