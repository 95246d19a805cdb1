"""What a captured step reads that changes between replays: its arguments, and the places of parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from tlrt._binding import convert
from tlrt._binding.library import failure
from tlrt._operations.plan import Shape
from tlrt._operations.shaped import AnyBuffer
from tlrt.errors import (
    ArgumentTypeError,
    CaptureError,
    DeviceMismatchError,
    IndexOutOfRangeError,
    ReleasedError,
    refusal,
)
from tlrt.parameter import Parameter
from tlrt.tensor import CapturedTensor, NatRef, TensorRef

__all__ = ["Input", "ParameterPlace", "content_of"]


@dataclass(slots=True)
class ParameterPlace:
    """Where a captured step finds the value of a parameter.

    Parameters
    ----------
    parameter : Parameter
        The parameter.
    storage : Storage or None
        What the recorded calls read; None for a parameter made after the capture.
    mirror : Buffer
        The mirror that the parameter had after the last run.
    is_trained : bool
        Whether the parameter was trained when the step was captured.
    writes : list of int
        The number of the storage's writes.
    """

    parameter: Parameter
    #: what the recorded calls read; None for a parameter made after the capture
    storage: Any
    #: the mirror that the parameter had after the last run
    mirror: Any
    #: whether the parameter was trained when the step was captured
    is_trained: bool
    #: the number of the storage's writes, see Parameter
    writes: list[int]

    @property
    def is_moved(self) -> bool:
        """Whether the parameter was given another buffer since the last run.

        Returns
        -------
        bool
            True after an assignment.
        """
        return self.parameter._mirror is not self.mirror

    def write(self) -> None:
        """Notes that a value of the parameter was brought here."""
        self.writes[0] += 1
        self.parameter._writes = self.writes


class Input(convert.Live):
    """An argument of a captured function, as the function sees it: with a shape, but without a content.

    ``s.const(x)`` or ``s.input(x)`` makes a tensor of it, and operations take it as indices or labels. Anything else,
    like ``x + 1``, raises CaptureError.

    Parameters
    ----------
    session : Session
        Whose step is captured.
    recorder : Recorder
        What records the step.
    name : str
        For messages.
    array : array
        The content at the capture.
    """

    __array_ufunc__ = None

    def __init__(self, session: Any, recorder: Any, name: str, array: npt.NDArray[Any]) -> None:
        self.session = session
        self._recorder = recorder
        self.name = name
        self._shape: Shape = array.shape
        self._dtype = array.dtype
        self._integers = array.dtype.kind in "iu"
        self._buffer: Any = None
        self._upload: Any = None
        self._content = array
        #: where operations read indices: one place for all replays
        self._numbers: Any = None
        #: the integers are refused from here on
        self._limit = 2**32
        self._closed = False

    @property
    def shape(self) -> Shape:
        """The shape at every replay.

        Returns
        -------
        tuple of int
            One size per axis.
        """
        return self._shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the content when the step was captured.

        Returns
        -------
        numpy.dtype
            Of the array that was given.
        """
        return self._dtype

    @property
    def ndim(self) -> int:
        """Number of axes.

        Returns
        -------
        int
            0 or more.
        """
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements.

        Returns
        -------
        int
            0 or more.
        """
        return int(self._content.size)

    def __len__(self) -> int:
        if not self.shape:
            raise refusal(ArgumentTypeError, "len", self.name, "a number", "at least one axis")
        return self.shape[0]

    # ---- as a tensor, and as indices

    def share(self, session: Any) -> AnyBuffer:
        """A handle to its buffer, which is uploaded at the first use.

        Parameters
        ----------
        session : Session
            The session of the step.

        Returns
        -------
        AnyBuffer
            Where every replay puts the content.

        Raises
        ------
        DeviceMismatchError, ReleasedError
            For another session, and after the function's end.
        """
        self._require_here(session, "const")
        if self._buffer is None:
            with self._recorder.paused():
                self._buffer = session.device.buffer(self._content)
            self._upload = self._recorder.uploader(self._buffer)
        return AnyBuffer.of(self.shape, self._buffer.share())

    def naturals(self, op: str, name: str, expected: str) -> convert.Naturals:
        """Its content as indices, read in place now and at every replay.

        Parameters
        ----------
        op, name, expected : str
            For the message of a refusal.

        Returns
        -------
        array of uint32
            The place of the content.

        Raises
        ------
        CaptureError
            For floats, or where no indices are taken.
        """
        self._require_here(self.session, op)
        if not self._integers or expected != "integers":
            hint = "where indices are taken, or Session.const of it" if self._integers else "Session.const of it"
            raise refusal(CaptureError, op, name, f"{self.name} of a captured function ({self.dtype})", hint)
        if self._numbers is None:
            numbers = np.empty(self.shape, np.uint32)
            content = _below_limit(self.name, self._content, self._limit)
            numbers[...] = convert.places(op, name, content.reshape(-1)).reshape(content.shape)
            self._recorder.add_changing(numbers)
            self._numbers = numbers
        return self._numbers.view(convert.Naturals)

    def require_below(self, limit: int) -> None:
        """Refuses its content, now and at every replay, where an integer is not in 0 .. limit - 1.

        Parameters
        ----------
        limit : int
            The first integer that is refused.

        Raises
        ------
        IndexOutOfRangeError
            For the present content.
        """
        self._limit = min(self._limit, limit)
        if self._integers:
            _below_limit(self.name, self._content, self._limit)

    def _require_here(self, session: Any, op: str) -> None:
        if session is not self.session:
            got = "an argument of another session's captured function"
            raise refusal(DeviceMismatchError, op, self.name, got, "one of this")
        if not self._recorder.is_active or self._closed:
            raise refusal(ReleasedError, op, self.name, "an argument of a captured function after its end", "it within")

    # ---- at a replay

    def _accepts(self, value: Any) -> npt.NDArray[Any]:
        """The new content, checked."""
        if type(value) is np.ndarray and value.dtype == self._dtype and value.shape == self._shape:
            return value if self._numbers is None else _below_limit(self.name, value, self._limit)
        array = content_of(self.name, value)
        if array.shape != self.shape or (array.dtype.kind in "iu") is not self._integers:
            kind = "integers" if self._integers else "floats or bool"
            expected = f"{kind} of shape {self.shape}, as when it was captured"
            raise refusal(CaptureError, "replay", self.name, f"{array.dtype} of shape {array.shape}", expected)
        return _below_limit(self.name, array, self._limit) if self._numbers is not None else array

    def _take(self, array: npt.NDArray[Any]) -> None:
        """Brings checked content to where the step reads it."""
        if self._numbers is not None:
            self._numbers[...] = (
                array if array.dtype.kind == "u" else np.where(array < 0, 2**32 - 1, array.astype(np.int64))
            )
        if self._upload is not None:
            if array.dtype != np.float32 or not array.flags.c_contiguous:
                array = convert.float32("replay", self.name, array)
            if status := self._upload(array):
                raise failure(status, "replay")

    # ---- what is refused, as the content is not known

    def _opaque(self, *arguments: Any, **keywords: Any) -> NoReturn:
        hint = "(compute with arrays before the call; functools.partial binds what never changes)"
        expected = f"Session.const of it, or its use as indices {hint}"
        raise refusal(CaptureError, self.name, "", "its content asked for within a captured function", expected)

    __array__ = __index__ = __int__ = __float__ = __bool__ = __iter__ = __getitem__ = _opaque
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _opaque
    __floordiv__ = __mod__ = __pow__ = __matmul__ = __rmatmul__ = __neg__ = __abs__ = _opaque
    __lt__ = __le__ = __gt__ = __ge__ = __contains__ = _opaque

    def __eq__(self, other: object) -> bool:
        return self is other or self._opaque()

    __hash__ = object.__hash__

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self._opaque()

    # ---- a copy would not get the content of a replay

    def __copy__(self) -> Input:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Input:
        return self

    def __reduce__(self) -> Any:
        self._opaque()

    def __repr__(self) -> str:
        return f"Input({self.name!r}, shape={self.shape}, dtype={self.dtype})"


def content_of(name: str, value: Any) -> npt.NDArray[Any]:
    """An argument as an array. Raises ArgumentTypeError for one that is none."""
    if isinstance(value, (TensorRef, CapturedTensor, NatRef, Parameter, AnyBuffer, convert.Live)):
        got = convert.type_name(value)
        raise refusal(ArgumentTypeError, "capture", name, got, "an array, a number, None, a Boolean or text")
    array = convert.host_array("capture", name, value, "an array")
    if not convert.is_real(array.dtype):
        raise refusal(ArgumentTypeError, "capture", name, f"dtype {array.dtype}", convert.REAL)
    return array


def _below_limit(name: str, array: npt.NDArray[Any], limit: int) -> npt.NDArray[Any]:
    """Integers that are indices; raises IndexOutOfRangeError from the limit, and below 0 where that is not 2^32."""
    if array.size and (array.dtype != np.uint32 or limit < 2**32):
        low, high = int(array.min()), int(array.max())
        if high >= limit or (low < 0 and limit < 2**32):
            got, expected = (high, f"below {limit}") if high >= limit else (low, f"0 <= index < {limit}")
            raise refusal(IndexOutOfRangeError, "capture", name, got, expected)
    return array
