"""Host values on their way in: what becomes float32, which integers are indices, which lists are dimensions.

Everything here refuses with the operation, the argument, what it got and what was expected.
"""

import math
import operator
import struct
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tlrt._binding.library import complete_call, failure, load
from tlrt.errors import (
    AliasError,
    ArgumentTypeError,
    IndexOutOfRangeError,
    ShapeError,
    SizeOverflowError,
    TorchleanError,
    refusal,
)

_LIMIT = 2**32
_UINT32 = np.dtype(np.uint32)


def type_name(value: object) -> str:
    """What the value is, for a message: ``ndarray of float16``, ``list``, ``None``."""
    if value is None:
        return "None"
    dtype = getattr(value, "dtype", None)
    return type(value).__name__ + (f" of {dtype}" if isinstance(value, np.ndarray) else "")


class Live:
    """A host array whose content changes while its place stays: an argument of a captured step."""

    def naturals(self, op: str, name: str, expected: str) -> "Naturals":
        """Its content, to be read in place. Raises CaptureError unless integers are expected."""
        raise NotImplementedError

    def require_below(self, limit: int) -> None:
        """Its content is refused from now on where an integer is not below `limit`."""
        raise NotImplementedError

    def share(self, session: Any) -> Any:
        """A handle to the buffer that holds its content, for a session's tape. Raises CaptureError."""
        raise NotImplementedError


class Naturals(np.ndarray[Any, np.dtype[np.uint32]]):
    """What a :class:`Live` array holds; a function that takes indices reads this memory, and makes no copy."""


def host_array(op: str, name: str, value: Any, expected: str) -> npt.NDArray[Any]:
    if isinstance(value, Live):
        return value.naturals(op, name, expected)
    # who has a masked array has imported the module; an import here could be under way in another thread while the process forks
    if isinstance(value, getattr(sys.modules.get("numpy.ma"), "MaskedArray", ())):
        raise refusal(ArgumentTypeError, op, name, "a masked array", f"{expected} (fill the masked elements first)")
    if isinstance(value, (str, bytes, bytearray, set, frozenset, dict)) or value is None:
        raise refusal(ArgumentTypeError, op, name, type_name(value), expected)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):  # what NumPy has no type or no bit for
        value = value.resolve_neg()
        value = value.float() if value.dtype == torch.bfloat16 else value
    try:
        return np.asarray(value)
    except TorchleanError:
        raise
    except (TypeError, ValueError) as error:
        raise refusal(ArgumentTypeError, op, name, f"{type_name(value)} that is no array ({error})", expected) from None


#: what :func:`is_real` takes, for messages
_OTHERS = "float16, bfloat16, longdouble, integers or bool"
REAL = f"float32, float64, {_OTHERS}"


def is_real(dtype: np.dtype[Any]) -> bool:
    """Whether arrays of the type are converted: NumPy's floats, bfloat16 of the package ml_dtypes, integers and bool."""
    return dtype.char in "fdeg" or dtype.kind in "iub" or dtype.name == "bfloat16"


def widened_bfloat16(bits: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    """The float32 numbers of bfloat16 numbers with these bits."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def _widened(array: npt.NDArray[Any], dtype: type[np.floating[Any]]) -> npt.NDArray[Any]:
    """float16 and bfloat16 as float32, which holds them, and longdouble as float64, rounded to `dtype` in one step with what
    follows: on the way to float32 a float64 that is not exact gets an odd last bit, so that it is no tie that the longdouble
    was not. Source: Boldo and Melquiond, IEEE Trans. Computers 57, 2008. No step depends on the floating-point mode."""
    flat = array.reshape(-1)
    if array.dtype.name == "bfloat16":
        return widened_bfloat16(flat.view(np.uint16))
    with np.errstate(all="ignore"):
        if array.dtype.char == "e":
            return flat.astype(np.float32)
        near = flat.astype(np.float64)
        if dtype != np.float32:
            return near
        bits, lost = near.view(np.int64), flat - near
        even = (bits % 2 == 0) & (np.abs(lost) > 0)
        return (bits + even * np.where(np.abs(flat) > np.abs(near), 1, -1)).view(np.float64)


#: what C calls the types that it converts (torchlean_cuda.h, TORCHLEAN_FLOAT32 and so on)
_TYPES = {np.dtype(t): i for i, t in enumerate((np.float32, np.float64, np.int64, np.uint64))}


def _aligned(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The array, or a copy of it where its elements lie at odd addresses, which C may not read."""
    return array if array.flags.aligned else array.copy()


def _converted(op: str, array: npt.NDArray[Any], dtype: type[np.floating[Any]]) -> npt.NDArray[Any]:
    """The elements as a C-contiguous, aligned array of float32 or float64. Where bits change C rounds them: NumPy would do it
    in the thread's floating-point mode, and signal what `numpy.errstate` asks for."""
    if array.dtype.char not in "fd" and array.dtype.kind not in "iub":
        array = _widened(array, dtype)
    kind, size = array.dtype.kind, array.dtype.itemsize
    known = array.dtype.newbyteorder("=") if kind == "f" else np.dtype(np.uint64 if kind == "u" else np.int64)
    if kind != "f" and size <= 2:  # any float holds these
        known = np.dtype(dtype)
    host = _aligned(np.ascontiguousarray(array, dtype=known).reshape(-1))
    if known == dtype:
        return host
    result = np.empty(host.size, dtype=dtype)
    library = load()
    source, target = library.ffi.from_buffer(host), library.ffi.from_buffer(result)
    arguments = (source, _TYPES[known], host.size, target, _TYPES[result.dtype])
    if status := complete_call(library.lib.torchlean_cuda_convert, *arguments):
        raise failure(status, op)
    return result


def float32(op: str, name: str, value: Any) -> npt.NDArray[np.float32]:
    """A C-contiguous float32 array in native byte order; float32 keeps its bits, float16 and bfloat16 their values; float64,
    longdouble, integers and bool are rounded once (beyond float32's range to an infinity), anything else is refused."""
    array = host_array(op, name, value, REAL)
    if not is_real(array.dtype):
        raise refusal(ArgumentTypeError, op, name, f"dtype {array.dtype}", REAL)
    if array.size >= _LIMIT:
        raise refusal(SizeOverflowError, op, name, f"{array.size} elements", "fewer than 2**32")
    return _converted(op, array, np.float32)


def uint32(op: str, name: str, value: Any, dims: Sequence[int] | None = None) -> npt.NDArray[np.uint32]:
    """A C-contiguous uint32 array from any integers. `dims` is the shape it must hold; None wants one axis, of any
    length."""
    if type(value) is np.ndarray:
        if value.dtype is _UINT32 and value.ndim == 1:  # what needs nothing
            wanted = len(value) if dims is None else math.prod(dims)
            if len(value) == wanted < _LIMIT and value.flags.carray:
                return value
        array: npt.NDArray[Any] = value
    else:
        array = host_array(op, name, value, "integers")
    if array.size == 0 and not isinstance(value, np.ndarray):
        array = array.astype(np.uint32)
    if array.dtype.kind == "O" or (array.dtype.kind == "f" and not isinstance(value, np.ndarray)):
        array = _integers(op, name, np.asarray(value, dtype=object))  # NumPy makes floats of [2**63, -1]
    if array.dtype.kind not in "iu" and array.dtype.kind != "O":
        raise refusal(ArgumentTypeError, op, name, f"dtype {array.dtype}", "integers")
    _fits(op, name, array, dims)
    if array.dtype == _UINT32 or not array.size:
        return _aligned(np.ascontiguousarray(array, dtype=np.uint32).reshape(-1))
    flat = array.reshape(-1)
    # below 0 where one of the integers is, and with each bit that one of them has
    if not 0 <= int(np.bitwise_or.reduce(flat)) < _LIMIT:
        where = int(((flat < 0) | (flat >= _LIMIT)).argmax())
        got = int(flat[where])
        limit = "expected 0 or more" if got < 0 else "expected below 2**32"
        raise IndexOutOfRangeError(f"{op}: {name}: got {got} at position {where}, {limit}", op=op)
    return flat.astype(np.uint32)


def places(op: str, name: str, value: Any) -> npt.NDArray[np.uint32]:
    """What :func:`uint32` gives of one axis, with 2^32 - 1, a place that no array has, for every integer below 0."""
    try:
        return uint32(op, name, value)
    except IndexOutOfRangeError:
        array = np.asarray(value)
        if array.dtype.kind == "i":
            return uint32(op, name, np.where(array < 0, _LIMIT - 1, array.astype(np.int64)))
        array = _integers(op, name, np.asarray(value, dtype=object))
        return uint32(op, name, np.where(array < 0, _LIMIT - 1, array))


def naturals(op: str, name: str, value: Any) -> npt.NDArray[Any]:
    """What :func:`uint32` gives, or where an integer needs more bits than that, an array of Python's integers. Raises
    IndexOutOfRangeError below 0."""
    try:
        return uint32(op, name, value)
    except IndexOutOfRangeError:
        array = _integers(op, name, np.asarray(value, dtype=object))
        uint32(op, name, np.minimum(array, 0))
        return array


def _integers(op: str, name: str, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The elements of an object array as Python integers; refuses the first that is none."""
    out = np.empty(array.size, dtype=object)
    for i, item in enumerate(array.reshape(-1)):
        try:
            out[i] = operator.index(item)
        except TypeError:
            got = f"{type(item).__name__} {item!r} at position {i}"
            raise refusal(ArgumentTypeError, op, name, got, "integers") from None
    return out.reshape(array.shape)


def _fits(op: str, name: str, array: npt.NDArray[Any], dims: Sequence[int] | None) -> None:
    if dims is None:
        if array.ndim != 1:
            raise refusal(ShapeError, op, name, f"shape {array.shape}", "one axis")
        wanted = array.size
    else:
        wanted = 1
        for d in dims:
            wanted *= d
    if wanted >= _LIMIT:
        raise refusal(SizeOverflowError, op, name, f"{wanted} elements", "fewer than 2**32")
    if array.size != wanted or (dims is not None and array.ndim > 1 and array.shape != tuple(dims)):
        raise refusal(ShapeError, op, name, f"shape {array.shape}", tuple(dims or ()))


def float64(op: str, name: str, value: Any, dims: Sequence[int] | None = None) -> npt.NDArray[np.float64]:
    """A C-contiguous float64 array; other floats, integers and bool are rounded once, anything else is refused."""
    if type(value) is np.ndarray and value.dtype == np.float64 and value.shape == dims and value.size < _LIMIT:
        flags = value.flags
        if flags.c_contiguous and flags.aligned:
            return value
    expected = f"float64, float32, {_OTHERS}"
    array = host_array(op, name, value, expected)
    if not is_real(array.dtype):
        raise refusal(ArgumentTypeError, op, name, f"dtype {array.dtype}", expected)
    _fits(op, name, array, dims)
    return _converted(op, array, np.float64)


def float64_out(
    op: str, name: str, out: Any, dims: Sequence[int], inputs: Sequence[npt.NDArray[Any]]
) -> npt.NDArray[np.float64]:
    """The array a float64 result goes to: `out` checked, or a new one of shape `dims`."""
    size = 1
    for d in dims:
        size *= d
    if size >= _LIMIT:
        raise refusal(SizeOverflowError, op, name, f"{size} elements", "fewer than 2**32")
    if out is None:
        return np.empty(tuple(dims), dtype=np.float64)
    if not isinstance(out, np.ndarray) or out.dtype != np.float64 or not out.dtype.isnative:
        raise refusal(ArgumentTypeError, op, "out", type_name(out), "ndarray of float64")
    if out.shape != tuple(dims):
        raise refusal(ShapeError, op, "out", f"shape {out.shape}", tuple(dims))
    if not out.flags.carray:
        got, expected = "a strided, unaligned or read-only array", "a C-contiguous, aligned and writeable one"
        raise refusal(ArgumentTypeError, op, "out", got, expected)
    if any(np.may_share_memory(out, a) for a in inputs):
        raise refusal(AliasError, op, "out", "memory of an input", "memory of its own")
    return out


def is_list(value: object) -> bool:
    """Whether the value can be read as a list, any number of times: no text, no unordered collection, no iterator."""
    return hasattr(value, "__iter__") and not isinstance(value, (str, bytes, set, frozenset, dict, Iterator))


#: by the length of a dimension list, what makes its bytes; it takes integers that fit alone
_BYTES = [struct.Struct(f"{rank}I").pack for rank in range(9)]
#: dimension lists as C takes them, by their bytes, and how many are kept
_lists: dict[bytes, Any] = {}
_MOST_LISTS = 4096


def uint32_list(values: Sequence[int]) -> Any:
    """A dimension list as a ``uint32_t[]``, which nobody changes; TypeError unless all are integers, OverflowError where one does
    not fit 32 bits."""
    if type(values) is tuple or type(values) is list:
        try:
            return _lists[_BYTES[len(values)](*values)]
        except (LookupError, struct.error):
            pass
    elif not is_list(values):
        raise TypeError("not a sequence")
    numbers = [*map(operator.index, values)]
    made = load().ffi.new("uint32_t[]", numbers)
    if len(numbers) < len(_BYTES):
        if len(_lists) >= _MOST_LISTS:
            _lists.clear()
        _lists[_BYTES[len(numbers)](*numbers)] = made
    return made
