"""What operations are made of: how a class applies a row of the registry to its values, and what their arguments are.

A method reads the shapes of its operands, so it takes no dimensions: ``matmul(a, b)`` is the registry's ``matmul`` with m, n, p
read off the shapes. :class:`tlrt.tape.Tape` has the operations on node ids, :class:`tlrt.session.Session` on tensor references.
Formulas, special values and errors are those of the operation of the same name in ``tlrt.kernels`` unless said here.
Every method raises ShapeError where shapes do not fit, and records nothing then.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt

from tlrt._binding import convert
from tlrt._binding.arguments import integer, integers
from tlrt._operations.plan import Shape
from tlrt._operations.shaped import AnyBuffer, Indices, size_of
from tlrt.errors import IndexOutOfRangeError, ShapeError, refusal

Ref = TypeVar("Ref")
_P = ParamSpec("_P")
_R = TypeVar("_R")
#: an entry for each axis, or one for all
Sizes = Sequence[int] | int


def atomic(method: Callable[Concatenate[Any, _P], _R]) -> Callable[Concatenate[Any, _P], _R]:
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

    device: Any

    def _apply(
        self, name: str, parents: tuple[Ref | None, ...], extra: tuple[Any, ...] = (),
        hosts: Mapping[str, Any] | None = None,
    ) -> Ref:  # fmt: skip
        """Records the registry's operation `name`; `extra` and `hosts` are those of :func:`tlrt._operations.plan.make_plan`."""
        raise NotImplementedError

    def _view(self, x: Ref, shape: Shape, name: str) -> Ref:
        """Records x in another shape of as many elements, sharing its storage."""
        raise NotImplementedError

    def shape(self, x: Ref) -> Shape:
        """The shape of a value.

        Parameters
        ----------
        x : tensor
            Any.

        Returns
        -------
        tuple of int
            One size for each axis; () for a scalar.
        """
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

    def _hold(self, value: AnyBuffer, name: str) -> Ref:
        """Records a value without a gradient, which goes with the step."""
        raise NotImplementedError

    def _full(self, shape: Shape, value: float) -> Ref:
        """Records a constant that the device fills: nothing is uploaded."""
        return self._hold(AnyBuffer.of(shape, self.device.full(size_of(shape), value)), "full")

    def _host(self, x: Ref) -> npt.NDArray[Any]:
        """A copy of a value on the host."""
        raise NotImplementedError

    def _buffer(self, op: str, x: Ref) -> AnyBuffer:
        """The value on the device."""
        raise NotImplementedError

    def _mark(self) -> Any:
        """What :meth:`_undo` takes to forget all values recorded from here on."""
        return None

    def _undo(self, mark: Any) -> int | None:
        """Forgets the values recorded since the mark, as the operation they belong to was refused."""

    def _pair(self, name: str, a: Ref, b: Ref) -> Ref:
        """A binary elementwise operation; operands of different shapes are broadcast to their common one."""
        raise NotImplementedError

    def _reduce_all(self, name: str, x: Ref, extra: tuple[Any, ...] = ()) -> Ref:
        """A reduction over all elements, to a scalar."""
        mark = self._mark()
        try:
            return self._apply(name, (self._flatten(name, x),), extra)
        except BaseException:
            self._undo(mark)
            raise

    def _flatten(self, op: str, x: Ref) -> Ref:
        shape = self._shape(op, x)
        return x if len(shape) == 1 else self._view(x, (math.prod(shape),), "flatten")

    def _require_rank(self, op: str, x: Ref, rank: int, name: str = "x") -> Shape:
        shape = self._shape(op, x)
        if len(shape) != rank:
            raise refusal(ShapeError, op, self._named(name, x), f"shape {shape}", f"{rank} axes")
        return shape

    def _by_rows(self, name: str, x: Ref, *others: Ref, extra: tuple[Any, ...] = ()) -> Ref:
        """An operation on rows, applied along the last axis."""
        if len(self._shape(name, x)) == 2:
            return self._apply(name, (x, *others), extra)
        return self._by_folded_rows(name, x, others, extra)

    @atomic
    def _by_folded_rows(self, name: str, x: Ref, others: tuple[Ref, ...], extra: tuple[Any, ...]) -> Ref:
        return self._view(self._apply(name, (self._rows(x), *others), extra), self.shape(x), name)

    def _rows(self, x: Ref) -> Ref:
        """x with its leading axes folded into rows."""
        shape = self.shape(x)
        if len(shape) == 2:
            return x
        cols = shape[-1] if shape else 1
        return self._view(x, (math.prod(shape[:-1]), cols), "reshape")


def read_indices(op: str, name: str, values: npt.ArrayLike | Indices) -> Any:
    """Indices of any shape: those of the device as they are, integers of the host as an array."""
    return values if isinstance(values, Indices) else convert.host_array(op, name, values, "integers")


def indices(
    op: str, name: str, values: npt.ArrayLike | Indices, below: int | None = None,
    read: Callable[[str, str, npt.ArrayLike], npt.NDArray[np.uint32]] = convert.places,
) -> Any:  # fmt: skip
    """Host integers in an array of their own that nobody can change, as backward reads it again; the buffer of indices on the
    device. With `below`, raises IndexOutOfRangeError unless all are in 0 .. below - 1."""
    if isinstance(values, Indices):
        if values.ndim != 1:
            raise refusal(ShapeError, op, name, f"shape {values.shape}", "one axis")
        if below is not None:
            _require_below(op, name, held := values.numpy(), below, held)
        return values.buffer
    if isinstance(values, convert.Live):
        if below is not None:
            values.require_below(below)
            below = None
        if not np.shape(values):  # one number
            values = values.naturals(op, name, "integers").reshape(-1)
    made = read(op, name, values)
    if below is not None:
        _require_below(op, name, made, below, values)
    if isinstance(values, (convert.Live, convert.Naturals)):
        return made
    made = made.copy()
    made.flags.writeable = False
    return made


def _require_below(op: str, name: str, held: npt.NDArray[np.uint32], below: int, given: npt.ArrayLike) -> None:
    """Raises IndexOutOfRangeError where an index is not below `below`, and shows it as it was given."""
    if (bad := held >= below).any():
        where = int(bad.argmax())
        got = f"{np.asarray(given)[where]} at position {where}"
        raise refusal(IndexOutOfRangeError, op, name, got, f"0 <= index < {below} (check_indices)")


def per_axis(op: str, name: str, value: Sizes, rank: int) -> tuple[int, ...]:
    """One entry per spatial axis; a single number is the entry of all."""
    single = hasattr(value, "__index__")
    entries = (integer(op, name, value),) * rank if single else integers(op, name, value)
    if len(entries) != rank:
        raise refusal(ShapeError, op, name, f"{len(entries)} entries", rank)
    return entries
