"""Buffer: a flat float32 array on a device."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

import _cffi_backend
import numpy as np
import numpy.typing as npt

from tlrt import _convert
from tlrt._library import Library, failure, load
from tlrt.errors import ArgumentTypeError, ShapeError, SizeOverflowError, TorchleanError

if TYPE_CHECKING:
    from tlrt.context import Device

__all__ = ["Buffer"]

#: torchlean_cuda_buffer_release, _share and _copy, and the type of a slot for a handle, once a device exists (a buffer
#: cannot exist before)
_release: Any = None
_share: Any = None
_copy: Any = None
_slot: Any = None


#: own(handle, release) is the handle as an object that releases it when it goes. No bytecode runs then, so a signal
#: handler that raises cannot come between. (This is what ``ffi.gc`` calls.)
own = _cffi_backend.gcp
#: new(type) is ``ffi.new`` of a type that ``ffi.typeof`` gave
new = _cffi_backend.newp


def bind(library: Library) -> None:
    """Called with the library before the first buffer is made."""
    global _copy, _release, _share, _slot
    lib = library.lib
    _release, _share, _copy = (
        lib.torchlean_cuda_buffer_release,
        lib.torchlean_cuda_buffer_share,
        lib.torchlean_cuda_buffer_copy,
    )
    _slot = library.ffi.typeof("torchlean_buffer **")


class Buffer:
    """A flat, contiguous float32 array on a device.

    Make one with :meth:`from_numpy`, :meth:`zeros`, :meth:`full` or :meth:`empty` (or ``device.buffer(array)``), or get
    one from an operation of ``tlrt.kernels``. A buffer has a length but no shape: operations take the dimensions as
    arguments, row-major, outermost first.

    The storage returns to the device's pool at :meth:`release`, at the end of a ``with`` block, or when the last
    reference to the object goes. Using a released buffer raises :class:`~tlrt.errors.ReleasedError`.
    """

    __slots__ = ("__weakref__", "_device", "_handle")

    _device: Device
    _handle: Any

    def __init__(self, _handle: Any, _device: Device) -> None:  # for tlrt itself: wraps a handle from `own`
        self._handle = _handle
        self._device = _device

    # ---- making one

    @classmethod
    def from_numpy(cls, array: npt.ArrayLike, device: Device | str = "cpu") -> Buffer:
        """A copy of an array on a device, flattened row-major.

        float32 keeps its bits (NaN payloads and signed zeros included); float64, integers and bool are rounded once to
        float32, values beyond its range to infinities. Lists, strided arrays and either byte order are accepted.

        Raises ArgumentTypeError for any other dtype (float16, complex, object, strings, …), SizeOverflowError for 2^32
        elements or more, OutOfMemoryError.
        """
        device = _device(device, "from_numpy")
        host = _convert.float32("from_numpy", "array", array)
        library = load()
        data = library.ffi.from_buffer("float[]", host)
        upload = library.lib.torchlean_cuda_buffer_upload
        return cls._made("from_numpy", device, upload, device._handle, data, host.size)

    @classmethod
    def zeros(cls, n: int, device: Device | str = "cpu") -> Buffer:
        """n elements of +0."""
        return cls._new("zeros", n, device)

    @classmethod
    def empty(cls, n: int, device: Device | str = "cpu") -> Buffer:
        """n elements of undefined content."""
        return cls._new("empty", n, device)

    @classmethod
    def full(cls, n: int, value: float, device: Device | str = "cpu") -> Buffer:
        """n elements of `value`, rounded once to float32."""
        value = _number("full", "value", value)
        return cls._new("empty", n, device, "full").fill(value)

    @classmethod
    def _new(cls, function: str, n: int, device: Device | str, op: str = "") -> Buffer:
        op = op or function
        device = _device(device, op)
        make = getattr(load().lib, f"torchlean_cuda_buffer_{function}")
        return cls._made(op, device, make, device._handle, _length(op, "n", n))

    @classmethod
    def _made(cls, op: str, device: Device, function: Any, *arguments: Any) -> Buffer:
        """The buffer that a C function makes. Whatever a signal handler raises meanwhile, the handle is not lost:
        releasing one twice does nothing."""
        slot = new(_slot)
        try:
            if not (status := function(*arguments, slot)):
                made = cls(own(slot[0], _release), device)
                recorder = device._recorder  # read once: another thread's capture may end meanwhile
                if recorder is not None:
                    recorder.made(function, arguments, made)
                return made
        except BaseException:
            _release(slot[0])
            raise
        raise failure(status, op)

    # ---- content

    def numpy(self, shape: int | Sequence[int] | None = None) -> npt.NDArray[np.float32]:
        """A new float32 array with the content, in `shape` if given (one entry may be -1), else with one axis.

        Waits for the device. Raises ShapeError where the length does not fit the shape.
        """
        library = load()
        recorder = self._device._recorder
        if recorder is not None:
            recorder.refuse("numpy")
        n = self.length
        host = np.empty(n, dtype=np.float32)
        result: npt.NDArray[np.float32] = host
        if shape is not None:
            try:
                result = host.reshape(shape)
            except ValueError:
                raise ShapeError(f"numpy: shape: got {shape}, expected a shape of {n} elements", op="numpy") from None
            except TypeError:
                got = _convert.type_name(shape)
                raise ArgumentTypeError(f"numpy: shape: got {got}, expected integers", op="numpy") from None
        data = library.ffi.from_buffer("float[]", host, require_writable=True)
        if status := library.lib.torchlean_cuda_buffer_download(self._handle, data, n):
            raise failure(status, "numpy")
        return result

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        if copy is False:
            raise ValueError("Buffer: copy: got False, expected True or None (its memory is a device's)")
        array = self.numpy()
        return array if dtype is None else array.astype(dtype, copy=False)

    def fill(self, value: float) -> Buffer:
        """Sets every element to `value`, rounded once to float32, and returns the buffer itself."""
        if status := load().lib.torchlean_cuda_buffer_fill(self._handle, _number("fill", "value", value)):
            raise failure(status, "fill")
        recorder = self._device._recorder
        if recorder is not None:
            recorder.filled(self, value)
        return self

    def copy(self) -> Buffer:
        """A buffer of the same content with storage of its own."""
        return self._made("copy", self._device, _copy, self._handle)

    def share(self) -> Buffer:
        """A second handle to the same storage. Each is released on its own; the storage goes with the last."""
        return self._made("share", self._device, _share, self._handle)

    # ---- life

    def release(self) -> None:
        """Gives the handle back now; the storage goes to the device's pool with its last handle. May be repeated."""
        if status := _release(self._handle):
            raise failure(status, "release")

    @property
    def released(self) -> bool:
        """Whether the handle was given back (by :meth:`release`, or because its device was closed)."""
        library = load()
        return bool(library.lib.torchlean_cuda_buffer_length(self._handle, library.ffi.new("uint32_t *")) == 90)

    def __enter__(self) -> Buffer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    # ---- what it is

    @property
    def length(self) -> int:
        """Number of elements."""
        library = load()
        n = library.ffi.new("uint32_t *")
        if status := library.lib.torchlean_cuda_buffer_length(self._handle, n):
            raise failure(status, "length")
        return int(n[0])

    def __len__(self) -> int:
        return self.length

    @property
    def device(self) -> Device:
        """The device (and context) it lives on."""
        return self._device

    @property
    def references(self) -> int:
        """Number of live handles to its storage, this one included."""
        recorder = self._device._recorder
        return count_references(self._handle, "references") - (0 if recorder is None else recorder.held(self._handle))

    def __repr__(self) -> str:
        name = getattr(getattr(self, "_device", None), "name", "?")
        try:
            n = self.length
            values = self._head(n).numpy()
            shown = ", ".join(f"{v:.7g}" for v in values[:6].tolist()) + (", ..." if n > 6 else "")
            return f"Buffer(length={n}, device={name!r}, [{shown}])"
        except TorchleanError as error:
            return f"Buffer({'released' if error.status == 90 else f'unreadable: {error}'}, device={name!r})"
        except Exception as error:
            return f"Buffer(unreadable: {type(error).__name__}, device={name!r})"

    def _head(self, n: int) -> Buffer:
        """Itself, or the first elements of a long buffer."""
        if n <= 4096:
            return self
        from tlrt import kernels

        return kernels.slice1d(self, n, 0, 6)

    # ---- a copied handle would be released twice

    def __copy__(self) -> Buffer:
        return self.share()

    def __deepcopy__(self, memo: dict[int, Any]) -> Buffer:
        return self.copy()

    def __reduce__(self) -> Any:
        raise ArgumentTypeError("Buffer: got a buffer to pickle, expected an array: pickle buffer.numpy()")


def count_references(handle: Any, op: str) -> int:
    """Number of live handles to the storage of a handle, this one included."""
    library = load()
    n = library.ffi.new("uint32_t *")
    if status := library.lib.torchlean_cuda_buffer_references(handle, n):
        raise failure(status, op)
    return int(n[0])


def _device(device: Device | str, op: str) -> Device:
    from tlrt.context import Device
    from tlrt.context import device as by_name

    if isinstance(device, Device):
        return device
    if isinstance(device, str):
        return by_name(device)
    got = _convert.type_name(device)
    raise ArgumentTypeError(f"{op}: device: got {got}, expected a Device or its name, like 'cpu'", op=op)


def _length(op: str, name: str, n: Any) -> int:
    try:
        value = operator.index(n)
    except TypeError:
        raise ArgumentTypeError(f"{op}: {name}: got {_convert.type_name(n)}, expected an integer", op=op) from None
    if not 0 <= value < 2**32:
        error = ShapeError if value < 0 else SizeOverflowError
        raise error(f"{op}: {name}: got {value}, expected 0 <= {name} < 2**32", op=op)
    return value


def _number(op: str, name: str, value: Any) -> float:
    try:
        if isinstance(value, (str, bytes, bytearray)):
            raise TypeError
        return float(value)
    except OverflowError:
        raise ArgumentTypeError(f"{op}: {name}: got an integer beyond float64, expected a number", op=op) from None
    except (TypeError, ValueError):
        raise ArgumentTypeError(f"{op}: {name}: got {_convert.type_name(value)}, expected a number", op=op) from None
