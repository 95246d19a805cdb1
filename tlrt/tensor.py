"""References that a session hands out: to tensors on its tape, and to natural numbers beside it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tlrt._binding import convert
from tlrt._binding.arguments import is_number
from tlrt._operations.methods import Methods
from tlrt._operations.names import missing_attribute
from tlrt._operations.plan import Shape
from tlrt._operations.shaped import AnyBuffer
from tlrt.errors import ArgumentTypeError, CaptureError, refusal

__all__ = ["Arithmetic", "CapturedTensor", "NatRef", "NatVecRef", "TensorRef", "is_number"]

#: the largest numbers of elements of which all are printed, and which are read to print the first and last ones
_SHOWN, _READ = 100, 2**24
#: NumPy's functions and what stands for them here, where the names differ: of each list, what there is
_INSTEAD_OF = {
    "array_split": "chunk", "average": "mean", "clip": "clamp", "concatenate": "Session.concat", "convolve": "conv",
    "copy": "detach", "dot": "matmul", "dstack": "Session.stack", "expand_dims": "reshape", "fft.irfft": "irfft1d_packed",
    "fft.rfft": "rfft1d_packed", "full_like": "Session.full", "hstack": "Session.concat", "inner": "matmul",
    "linalg.matmul": "matmul", "linalg.norm": "norm",
    "moveaxis": "permute", "ones_like": "Session.full", "outer": "matmul",
    "ravel": "flatten", "select": "where", "squeeze": "reshape", "stack": "Session.stack",
    "swapaxes": "permute", "take_along_axis": "take_along", "tensordot": "matmul",
    "transpose": "permute transpose2d", "vdot": "matmul",
    "vstack": "Session.concat", "zeros_like": "Session.zeros",
}  # fmt: skip


class Arithmetic(Methods["TensorRef"]):
    """What tensors and parameters can do: the operators + - * / @ ** < <= > >= with tensors, parameters and numbers, NumPy's
    indexing, and every operation of the session as a method (``x.relu()`` is ``session.relu(x)``).

    A comparison gives a mask of 1 and 0. ``==`` is not one of them: two tensors are equal only if they are the same object, so
    that they serve as keys; ``x.eq(y)`` and ``x.ne(y)`` compare the elements. NumPy's own functions refuse
    them, as their result would have no gradient; ``numpy()`` or ``np.asarray`` gives an array to compute with."""

    __slots__ = ()
    #: makes NumPy's scalars and arrays leave `array * tensor` to the tensor
    __array_ufunc__ = None

    session: Any
    shape: Shape

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def device(self) -> Any:
        """The session's device."""
        return self.session.device

    def numpy(self) -> npt.NDArray[Any]:
        """A copy on the host; waits for the device.

        Returns
        -------
        numpy.ndarray
            In the tensor's shape.
        """
        raise NotImplementedError

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        if copy is False:
            raise refusal(ValueError, type(self).__name__, "copy", "False", "True or None (its memory is a device's)")
        return self.numpy() if dtype is None else self.numpy().astype(dtype, copy=False)

    def __dlpack__(self, *, copy: bool | None = None, **options: Any) -> Any:
        """A copy on the host for ``from_dlpack`` of NumPy, PyTorch and others."""
        if copy is False:
            raise refusal(BufferError, type(self).__name__, "copy", "False", "True or None (its memory is a device's)")
        return self.numpy().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)  # DLPack's number of the host

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Refuses NumPy's functions, whose result would have no gradient; np.shape, np.ndim and np.size tell."""
        name = f"{function.__module__}.{function.__name__}".removeprefix("numpy.")
        if name in ("shape", "ndim", "size") and not args[1:] and not kwargs:
            return getattr(self, name)
        chosen = _INSTEAD_OF.get(name, name).split()
        ours = [n for n in chosen if n.startswith("Session.") or hasattr(Arithmetic, n)][:1]
        got = f"a {type(self).__name__} (the result would have no gradient)"
        expected = "".join(f"{n}, or " for n in ours) + "numpy() of it"
        raise refusal(ArgumentTypeError, f"numpy.{name}", "", got, expected)

    def item(self) -> float:
        """The only element as a number; waits for the device.

        Returns
        -------
        float
            The element.

        Raises
        ------
        ArgumentTypeError
            There are several elements, or none.

        Examples
        --------
        >>> s = tlrt.Session("cpu", seed=1)
        >>> print(s.reduce_sum(s.const([1, 2])).item())
        3.0
        """
        if self.size != 1:
            raise refusal(ArgumentTypeError, "item", "tensor", f"shape {self.shape}", "one element")
        return float(self.numpy().reshape(-1)[0])

    def backward(self, seed: npt.ArrayLike | AnyBuffer | None = None, *, accumulate: bool = False) -> None:
        """The gradients of this tensor by the session's parameters; see :meth:`tlrt.Session.backward`.

        Parameters
        ----------
        seed : array_like or AnyBuffer, optional
            The cotangent in the tensor's shape; 1 unless given, which only one element allows.
        accumulate : bool, default False
            Adds to the gradients of earlier backwards.

        Examples
        --------
        >>> s = tlrt.Session("cpu", seed=1)
        >>> w = s.param([1, 2], "w")
        >>> s.reduce_sum(w * 3).backward()
        >>> print(w.grad.numpy())
        [3. 3.]
        """
        self.session.backward(self, seed, accumulate=accumulate)

    def __add__(self, other: Any) -> TensorRef:
        return self.session.add(self, other)

    def __radd__(self, other: Any) -> TensorRef:
        return self.session.add(other, self)

    def __sub__(self, other: Any) -> TensorRef:
        return self.session.sub(self, other)

    def __rsub__(self, other: Any) -> TensorRef:
        return self.session.sub(other, self)

    def __mul__(self, other: Any) -> TensorRef:
        return self.session.scale(self, float(other)) if is_number(other) else self.session.mul(self, other)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> TensorRef:
        return self.session.div(self, other)

    def __rtruediv__(self, other: Any) -> TensorRef:
        return self.session.div(other, self)

    def __matmul__(self, other: Any) -> TensorRef:
        return self.session.matmul(self, other)

    def __rmatmul__(self, other: Any) -> TensorRef:
        return self.session.matmul(other, self)

    def __neg__(self) -> TensorRef:
        return self.session.neg(self)

    def __pos__(self) -> Any:
        return self

    def __abs__(self) -> TensorRef:
        return self.session.abs(self)

    def __pow__(self, power: Any) -> TensorRef:
        return self.session.square(self) if is_number(power) and power == 2 else self.session.pow(self, power)

    def __rpow__(self, base: Any) -> TensorRef:
        return self.session.pow(base, self)

    def __lt__(self, other: Any) -> TensorRef:
        return self.session.lt(self, other)

    def __le__(self, other: Any) -> TensorRef:
        return self.session.le(self, other)

    def __gt__(self, other: Any) -> TensorRef:
        return self.session.gt(self, other)

    def __ge__(self, other: Any) -> TensorRef:
        return self.session.ge(self, other)

    def __eq__(self, other: object) -> bool:
        if is_number(other) or isinstance(other, (np.ndarray, complex)):
            got = convert.type_name(other)
            raise refusal(ArgumentTypeError, "==", "", f"a tensor and {got}", "numpy() of the tensor or item()")
        return self is other

    __hash__ = object.__hash__

    def __len__(self) -> int:
        if not self.shape:
            raise refusal(ArgumentTypeError, "len", "", "a scalar tensor", "at least one axis (numpy() gives an array)")
        return self.shape[0]

    def __getitem__(self, index: Any) -> TensorRef:
        """x[index] as :meth:`tlrt._operations.slices.SliceOperations.index` has it, a copy."""
        return self.session.index(self, index)

    def __iter__(self) -> Iterator[TensorRef]:
        return (self[i] for i in range(len(self)))

    def __contains__(self, item: object) -> bool:
        raise refusal(ArgumentTypeError, "in", "", "a tensor", "an array: use numpy()")

    def __bool__(self) -> bool:
        raise refusal(ArgumentTypeError, "bool", "", f"a {type(self).__name__}", "a number: use item() or numpy()")

    def __float__(self) -> float:
        return self.item()

    def __int__(self) -> int:
        return int(self.item())

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if spec else str(self)

    def __copy__(self) -> Any:
        return self

    def __reduce__(self) -> Any:
        kind = type(self).__name__
        raise refusal(ArgumentTypeError, kind, "", "one to pickle or copy deeply", "an array: numpy() gives one")

    if not TYPE_CHECKING:  # else every name would be one

        def __getattr__(self, name):
            if hasattr(type(self), name):  # its getter raised an AttributeError, which Python hides
                return object.__getattribute__(self, name)
            raise missing_attribute(self, name)


class TensorRef(Arithmetic):
    """A tensor on a session's tape: valid until the session's next reset.

    Operations give it; nobody else makes one. It has every operation of the session as a method (``x.relu()`` is
    ``session.relu(x)``), the operators + - * / @ ** with tensors, parameters and numbers, and NumPy's indexing; see
    :class:`Arithmetic`.

    Parameters
    ----------
    session : Session
        Whose tape.
    id : int
        The node.
    shape : tuple of int
        The node's shape.
    epoch : int
        Which of the session's tapes, counted by resets.

    Examples
    --------
    >>> s = tlrt.Session("cpu", seed=1)
    >>> x = s.const([[1, 2], [3, 4]])
    >>> print((x @ x + 1).relu()[0].numpy())
    [ 8. 11.]
    """

    __slots__ = ("epoch", "id", "session", "shape")

    session: Any

    def __init__(self, session: Any, id: int, shape: Shape, epoch: int) -> None:
        self.session = session
        #: the node on the session's tape
        self.id = id
        self.shape = shape
        #: which of the session's tapes, counted by resets
        self.epoch = epoch

    @property
    def requires_grad(self) -> bool:
        """Whether backward propagates to it."""
        return self.session._node(self, "requires_grad").requires_grad

    @property
    def value(self) -> AnyBuffer:
        """The device buffer; the tape keeps the ownership."""
        return self.session._node(self, "value").value

    def numpy(self) -> npt.NDArray[Any]:
        """A copy on the host; waits for the device.

        Returns
        -------
        numpy.ndarray
            In the tensor's shape.

        Examples
        --------
        >>> s = tlrt.Session("cpu", seed=1)
        >>> print(s.const([1, 2]).numpy())
        [1. 2.]
        """
        return self.session._read(self, "numpy")

    @property
    def grad(self) -> AnyBuffer | None:
        """The gradient of the last backward pass, for an input that requires one; else None."""
        return self.session._leaf_gradient(self)

    def detach(self) -> TensorRef:
        """The same value with no gradient to this tensor.

        Returns
        -------
        tensor
            Shares the storage.

        Examples
        --------
        >>> s = tlrt.Session("cpu", seed=1)
        >>> x = s.input([1, 2], requires_grad=True)
        >>> print(x.detach().requires_grad)
        False
        """
        return self.session.detach(self)

    def dropout(self, p: float) -> TensorRef:
        """Drops each element with a probability and scales the others by 1/(1 - p).

        Parameters
        ----------
        p : float
            Probability, from 0 to below 1.

        Returns
        -------
        tensor
            The same shape.

        Examples
        --------
        >>> s = tlrt.Session("cpu", seed=1)
        >>> print(s.full(6, 1).dropout(0.5).numpy())
        [2. 2. 0. 0. 2. 0.]
        """
        return self.session.dropout(self, p)

    def __repr__(self) -> str:
        head = f"shape={self.shape}, device={self.session.device.name!r}"
        try:
            node = self.session._node(self, "repr")
            flags = f"op={node.name!r}" + (", requires_grad" if node.requires_grad else "")
            if self.size > _READ:
                return f"TensorRef({head}, {flags})"
            body = np.array2string(self.numpy(), prefix="TensorRef(", separator=", ", threshold=_SHOWN)
        except Exception as error:
            ended = self.session._closed or self.epoch != self.session.epoch
            return f"TensorRef({head}, {'of an earlier step' if ended else f'unreadable: {error}'})"
        return f"TensorRef({body}, {head}, {flags})"


class CapturedTensor(Arithmetic):
    """What a captured step gives: the value of its last run, until the step is closed; see
    :meth:`tlrt.Session.capture`.

    It outlives :meth:`tlrt.Session.reset`, and in operations it is a constant with the value it has then.

    Parameters
    ----------
    session : Session
        Whose step.
    value : AnyBuffer
        The step's own.
    """

    __slots__ = ("_value", "session", "shape")

    session: Any

    def __init__(self, session: Any, value: AnyBuffer) -> None:
        self.session = session
        self.shape = value.shape
        self._value = value

    @property
    def value(self) -> AnyBuffer:
        """The device buffer; the captured step keeps the ownership."""
        return self._value

    def numpy(self) -> npt.NDArray[Any]:
        """A copy on the host; waits for the device.

        Returns
        -------
        numpy.ndarray
            In the tensor's shape.

        Raises
        ------
        ReleasedError
            The step is closed.
        """
        return self._value.numpy()

    def __repr__(self) -> str:
        try:
            body = np.array2string(self.numpy(), prefix="CapturedTensor(", separator=", ", threshold=_SHOWN)
        except Exception as error:
            body = f"unreadable: {error}"
        return f"CapturedTensor({body}, shape={self.shape}, device={self.session.device.name!r})"


class NatRef:
    """A natural number in a session's environment, for indices that change between steps; valid until reset.

    Parameters
    ----------
    session : Session
        Whose environment.
    id : int
        Its place there.
    epoch : int
        The step, counted by resets.
    """

    __slots__ = ("epoch", "id", "session")

    def __init__(self, session: Any, id: int, epoch: int) -> None:
        self.session = session
        self.id = id
        self.epoch = epoch

    def __index__(self) -> int:
        return self.session.get_nat(self)

    def __reduce__(self) -> Any:
        raise refusal(ArgumentTypeError, type(self).__name__, "", "one to pickle or copy", "a number or an array")

    def __repr__(self) -> str:
        session = self.session
        if self.epoch != session.epoch or not 0 <= self.id < len(session._nats):
            return f"{type(self).__name__}(of an earlier step)"
        return f"{type(self).__name__}({session._nats[self.id]})"


class NatVecRef(NatRef):
    """A vector of natural numbers in a session's environment; valid until reset.

    Parameters
    ----------
    session : Session
        Whose environment.
    id : int
        Its place there.
    epoch : int
        The step, counted by resets.
    """

    __slots__ = ()

    def __index__(self) -> int:
        raise refusal(ArgumentTypeError, "index", "", "a vector of naturals", "one (Session.nat)")

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        if copy is False:
            raise refusal(ValueError, "NatVecRef", "copy", "False", "True or None (the environment keeps its own)")
        array = self.session.get_nat_vec(self)
        return array if dtype is None else array.astype(dtype, copy=False)


def naturals(op: str, values: npt.ArrayLike) -> npt.NDArray[Any]:
    """A copy of one axis, as uint32 where all fit, else as Python's integers, which the operations that take indices refuse;
    raises IndexOutOfRangeError below 0."""
    if isinstance(values, convert.Live):
        expected = "it where the operation takes indices"
        raise refusal(CaptureError, op, "values", "an argument of a captured function", expected)
    return convert.naturals(op, "values", values).copy()
