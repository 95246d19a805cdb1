"""Exceptions.

Each status of the C library has its class, and each class also inherits the builtin that a caller would catch: a
:class:`ShapeError` is a ``ValueError``, an :class:`OutOfMemoryError` a ``MemoryError``. Every message names the
operation, the argument, what it got and what was expected: ``bmm: B: got 12 elements, expected batch*n*p = 15``.
"""

from typing import TypeVar

__all__ = ["AliasError", "ArgumentError", "ArgumentTypeError", "CaptureError", "CublasError", "CudaError", "CufftError",
           "DeviceMismatchError", "IndexOutOfRangeError", "InternalError", "InterruptedCallError", "LibraryNotFoundError",
           "OutOfMemoryError", "ReleasedError", "ShapeError", "SizeOverflowError", "StaleLibraryError", "TorchleanError",
           "UnavailableError", "by_status", "refusal"]  # fmt: skip


class TorchleanError(Exception):
    """Base of all exceptions of this package.

    Parameters
    ----------
    message : str
        "op: argument: got …, expected …".
    op : str
        The operation, "" if none; an attribute.
    status : int, optional
        The C library's status code, an attribute; 0 for a wrong Python type, which never reaches it.

    Examples
    --------
    >>> import tlrt
    >>> s = tlrt.Session("cpu")
    >>> try:
    ...     s.zeros((2, 3)) @ s.zeros((2, 3))
    ... except tlrt.TorchleanError as error:
    ...     print(type(error).__name__, isinstance(error, ValueError), error.op)
    ShapeError True matmul
    """

    status: int = 0
    op: str = ""

    def __init__(self, message: str = "", *, op: str = "", status: int | None = None) -> None:
        super().__init__(message)
        self.op = op
        if status is not None:
            self.status = status


class ShapeError(TorchleanError, ValueError):
    """A length, dimension or rank does not fit."""


class SizeOverflowError(ShapeError, OverflowError):
    """A dimension, or a product of dimensions, needs 2^32 or more."""


class DeviceMismatchError(TorchleanError, ValueError):
    """Buffers of different contexts met in one call."""


class UnavailableError(TorchleanError, RuntimeError):
    """There is no such device, or a CPU-only build was asked for CUDA."""


class IndexOutOfRangeError(TorchleanError, IndexError):
    """An index or label is out of range where the operation refuses it, or does not fit 32 bits."""


class ArgumentError(TorchleanError, ValueError):
    """A scalar or option is outside its domain."""


class AliasError(TorchleanError, ValueError):
    """An output shares storage with an input or another output, and may not."""


class ReleasedError(TorchleanError, ValueError):
    """A buffer or device was used after its release (a ``ValueError``, as for closed files)."""


class OutOfMemoryError(TorchleanError, MemoryError):
    """Device or host memory is exhausted, or the device's cap is reached."""


class CudaError(TorchleanError, RuntimeError):
    """The CUDA runtime or a kernel failed. The device object is unusable from here on; close it and make a new one."""


class CublasError(TorchleanError, RuntimeError):
    """cuBLAS failed."""


class CufftError(TorchleanError, RuntimeError):
    """cuFFT failed."""


class InternalError(TorchleanError, RuntimeError):
    """A broken invariant of the library: please report it."""


class InterruptedCallError(TorchleanError, RuntimeError):
    """A signal, or ``torchlean_cuda_interrupt`` of the C library, ended a call on the CPU.

    Functions of this package make the call again after the handlers of signals have run, and do not raise this.
    """


class ArgumentTypeError(TorchleanError, TypeError):
    """An argument has the wrong Python type, or an array a dtype without a declared float32 form."""


class CaptureError(TorchleanError, RuntimeError):
    """Something that a captured step cannot hold, or that no longer fits it."""


class _LibraryError(TorchleanError, ImportError):
    """``problem`` and ``remedy`` are the two parts of the message."""

    def __init__(self, problem: str = "", remedy: str = "") -> None:
        super().__init__(f"{problem}; {remedy}" if remedy else problem)
        self.problem, self.remedy = problem, remedy


class LibraryNotFoundError(_LibraryError):
    """The C library was not found, or no file that was found can be loaded."""


class StaleLibraryError(_LibraryError):
    """The C library was compiled from other declarations than this package has."""


#: the class of each status code; a null argument (10) is an ArgumentError, whose own status is 70
by_status: dict[int, type[TorchleanError]] = {
    10: ArgumentError, 20: ShapeError, 30: SizeOverflowError, 40: DeviceMismatchError, 50: UnavailableError, 60:
    IndexOutOfRangeError, 70: ArgumentError, 80: AliasError, 90: ReleasedError, 100: OutOfMemoryError, 110:
    CudaError, 120: CublasError, 130: CufftError, 140: InternalError, 150: InterruptedCallError,
}  # fmt: skip
for _status, _kind in by_status.items():
    _kind.status = _status


_E = TypeVar("_E", bound=Exception)


def refusal(kind: type[_E], op: str, argument: object, got: object, expected: object) -> _E:
    """The exception for an argument that an operation does not take: "op: argument: got …, expected …".

    Parameters
    ----------
    kind : type
        The exception's class.
    op : str
        The operation.
    argument : object
        The argument's name; "" leaves it out.
    got, expected : object
        What was given and what is taken, as text.

    Returns
    -------
    Exception
        Of that class; the caller raises it.

    Examples
    --------
    >>> from tlrt.errors import ShapeError, refusal
    >>> refusal(ShapeError, "matmul", "b", (2, 3), "(3, n)")
    ShapeError('matmul: b: got (2, 3), expected (3, n)')
    """
    text = f"{op}: {argument}{': ' if argument else ''}got {got}, expected {expected}"
    made = kind(text)
    if isinstance(made, TorchleanError):
        made.op = op
    return made
