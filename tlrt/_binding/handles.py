"""Devices and buffers: the handles of the C library as objects.

A device makes buffers, and a buffer knows its device, so both are here; :mod:`tlrt.context` and :mod:`tlrt.buffer` are their
public places.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import _cffi_backend
import numpy as np
import numpy.typing as npt

from tlrt._binding import capsules, convert
from tlrt._binding.arguments import length, number
from tlrt._binding.convert import type_name
from tlrt._binding.library import Library, complete_call, failure, hold_over_forks, load, remedy
from tlrt._binding.observer import Calls, Observer, watches_calls
from tlrt.errors import (
    ArgumentError,
    ArgumentTypeError,
    ReleasedError,
    ShapeError,
    TorchleanError,
    UnavailableError,
    refusal,
)
from tlspec.registry import MATH

_CPU = -1
_NAME = re.compile(r"(cpu)|cuda(?::(0|[1-9]\d{0,8}))?")

#: own(handle, release) is the handle as an object that releases it when it goes. No bytecode runs then, so a signal
#: handler that raises cannot come between. (This is what ``ffi.gc`` calls.)
own = _cffi_backend.gcp
#: new(type) is ``ffi.new`` of a type that ``ffi.typeof`` gave
new = _cffi_backend.newp

#: torchlean_cuda_buffer_release, _share and _copy, and the type of a slot for a handle, once a device exists (a buffer
#: cannot exist before)
_release: Any = None
_share: Any = None
_copy: Any = None
_slot: Any = None
#: the entry points as operations call them on a device without observers
_calls: Calls


def _bind(library: Library) -> None:
    """Looks the functions up, before the first buffer is made."""
    global _calls, _copy, _release, _share, _slot
    if _slot is not None:
        return
    lib, prefix = library.lib, "torchlean_cuda_"
    _release, _share = lib.torchlean_cuda_buffer_release, lib.torchlean_cuda_buffer_share
    _copy = lib.torchlean_cuda_buffer_copy
    _calls = Calls({name.removeprefix(prefix): getattr(lib, name) for name in dir(lib) if name.startswith(prefix)})
    _slot = library.ffi.typeof("torchlean_buffer **")


class Uncopied:
    """Cannot be copied or pickled: releasing one of two copies would take the memory from the other. Raises
    ArgumentTypeError."""

    __slots__ = ()

    def __reduce__(self) -> Any:
        expected = "the object itself, or a new one: it owns memory"
        raise refusal(ArgumentTypeError, type(self).__name__, "", "one to pickle or copy", expected)


class Buffer:
    """A flat, contiguous float32 array on a device.

    Make one with :meth:`from_numpy`, :meth:`zeros`, :meth:`full` or :meth:`empty` (or ``device.buffer(array)``), or get
    one from an operation of ``tlrt.kernels``. A buffer has a length but no shape: operations take the dimensions as
    arguments, row-major, outermost first.

    The storage returns to the device's pool at :meth:`release`, at the end of a ``with`` block, or when the last
    reference to the object goes. Using a released buffer raises :class:`~tlrt.errors.ReleasedError`.

    Examples
    --------
    >>> import tlrt
    >>> a = tlrt.device("cpu").buffer([[1, 2], [3, 4]])
    >>> tlrt.kernels.bmm(a, a, 1, 2, 2, 2).numpy((2, 2))
    array([[ 7., 10.],
           [15., 22.]], dtype=float32)
    """

    __slots__ = ("__weakref__", "_device", "_handle")

    _device: Device
    _handle: Any
    #: the type of its elements, as NumPy and as cffi have it, and the function that downloads them
    _element: tuple[type[np.generic], str, str] = (np.float32, "float[]", "torchlean_cuda_buffer_download")

    def __init__(self, _handle: Any, _device: Device) -> None:  # for tlrt itself: wraps a handle from `own`
        self._handle = _handle
        self._device = _device

    # ---- making one

    @classmethod
    def from_numpy(cls, array: npt.ArrayLike, device: Device | str = "cpu") -> Buffer:
        """A copy of an array on a device, flattened row-major.

        Parameters
        ----------
        array : array
            float32 keeps its bits (NaN payloads and signed zeros included), float16 and ml_dtypes' bfloat16 their
            values; float64, longdouble, integers and bool are rounded once to float32, values beyond its range to
            infinities. Lists, strided arrays and either byte order are accepted.
        device : Device or str
            Where it goes.

        Returns
        -------
        Buffer
            Of as many elements.

        Raises
        ------
        ArgumentTypeError
            For any other dtype (complex, object, strings, …).
        SizeOverflowError, OutOfMemoryError
            For 2^32 elements or more, and where memory is short.
        """
        device = _find_device(device, "from_numpy")
        host = convert.float32("from_numpy", "array", array)
        library = load()
        data = library.ffi.from_buffer("float[]", host)
        upload = library.lib.torchlean_cuda_buffer_upload
        return cls._create("from_numpy", device, upload, device._handle, data, host.size)

    @classmethod
    def zeros(cls, n: int, device: Device | str = "cpu") -> Buffer:
        """A buffer of zeros.

        Parameters
        ----------
        n : int
            Number of elements.
        device : Device or str
            Where it goes.

        Returns
        -------
        Buffer
            n times +0.
        """
        return cls._new("zeros", n, device)

    @classmethod
    def empty(cls, n: int, device: Device | str = "cpu") -> Buffer:
        """A buffer of undefined content.

        Parameters
        ----------
        n : int
            Number of elements.
        device : Device or str
            Where it goes.

        Returns
        -------
        Buffer
            Of n elements.
        """
        return cls._new("empty", n, device)

    @classmethod
    def full(cls, n: int, value: float, device: Device | str = "cpu") -> Buffer:
        """A buffer of one number.

        Parameters
        ----------
        n : int
            Number of elements.
        value : float
            The number, rounded once to float32.
        device : Device or str
            Where it goes.

        Returns
        -------
        Buffer
            n times the number.
        """
        value = number("full", "value", value)
        return cls._new("empty", n, device, "full").fill(value)

    @classmethod
    def _new(cls, function: str, n: int, device: Device | str, op: str = "") -> Buffer:
        op = op or function
        device = _find_device(device, op)
        make = getattr(load().lib, f"torchlean_cuda_buffer_{function}")
        return cls._create(op, device, make, device._handle, length(op, "n", n))

    @classmethod
    def _create(cls, op: str, device: Device, function: Any, *arguments: Any) -> Buffer:
        """The buffer that a C function makes. Whatever a signal handler raises meanwhile, the handle is not lost:
        releasing one twice does nothing."""
        slot = new(_slot)
        try:
            if not (status := complete_call(function, *arguments, slot)):
                made = cls(own(slot[0], _release), device)
                for observer in device._observers:
                    observer.buffer_made(function, arguments, made)
                return made
        except BaseException:
            _release(slot[0])
            raise
        raise failure(status, op)

    # ---- content

    def numpy(self, shape: int | Sequence[int] | None = None) -> npt.NDArray[np.float32]:
        """A copy of the content on the host; waits for the device.

        Parameters
        ----------
        shape : int or sequence of int, optional
            Of the result, one entry may be -1; one axis unless given.

        Returns
        -------
        array of float32
            New.

        Raises
        ------
        ShapeError
            Where the length does not fit the shape.
        """
        library = load()
        for observer in self._device._observers:
            observer.before_host_access(self._device, "numpy")
        n, (dtype, element, download) = self.length, self._element
        host = np.empty(n, dtype=dtype)
        result: npt.NDArray[Any] = host
        if shape is not None:
            try:
                result = host.reshape(shape)
            except ValueError:
                raise refusal(ShapeError, "numpy", "shape", shape, f"a shape of {n} elements") from None
            except TypeError:
                got = convert.type_name(shape)
                raise refusal(ArgumentTypeError, "numpy", "shape", got, "integers") from None
        data = library.ffi.from_buffer(element, host, require_writable=True)
        if status := complete_call(getattr(library.lib, download), self._handle, data, n):
            raise failure(status, "numpy")
        return result

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        if copy is False:
            raise refusal(ValueError, "Buffer", "copy", "False", "True or None (its memory is a device's)")
        array = self.numpy()
        return array if dtype is None else array.astype(dtype, copy=False)

    def __dlpack__(
        self, *, stream: Any = None, max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None, copy: bool | None = None,
    ) -> Any:  # fmt: skip
        """The buffer's memory for ``from_dlpack`` of NumPy, PyTorch, JAX, CuPy and others: no copy, one axis. What is written
        there is written to the buffer. On CUDA, work that comes to `stream` (DLPack's number; None: the legacy default stream;
        -1: nothing is to wait) waits for the device's work so far; :meth:`Device.order_after` makes the device wait for theirs.

        Raises BufferError for another device, and CaptureError within a captured function."""
        return capsules.lend(self, stream, max_version, dl_device, copy)

    def __dlpack_device__(self) -> tuple[int, int]:
        return capsules.device_of(self._device)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return capsules.cuda_array_interface(self)

    def fill(self, value: float) -> Buffer:
        """Sets every element to a number.

        Parameters
        ----------
        value : float
            The number, rounded once to float32.

        Returns
        -------
        Buffer
            The buffer itself.
        """
        if status := complete_call(load().lib.torchlean_cuda_buffer_fill, self._handle, number("fill", "value", value)):
            raise failure(status, "fill")
        for observer in self._device._observers:
            observer.buffer_filled(self, value)
        return self

    def copy(self) -> Buffer:
        """Copies the content to storage of its own.

        Returns
        -------
        Buffer
            Of the same length.
        """
        return self._create("copy", self._device, _copy, self._handle)

    def share(self) -> Buffer:
        """Makes a second handle to the same storage.

        Returns
        -------
        Buffer
            It is released on its own; the storage goes with the last handle.

        Examples
        --------
        >>> import tlrt
        >>> a = tlrt.device("cpu").zeros(2)
        >>> b = a.share()
        >>> _ = a.fill(3.0)
        >>> b.numpy(), a.references
        (array([3., 3.], dtype=float32), 2)
        """
        return self._create("share", self._device, _share, self._handle)

    # ---- life

    def release(self) -> None:
        """Gives the handle back now; the storage goes to the device's pool with its last handle. May be repeated."""
        if status := _release(self._handle):
            raise failure(status, "release")

    @property
    def released(self) -> bool:
        """Whether the handle was given back (by :meth:`release`, or because its device was closed)."""
        library = load()
        status = library.lib.torchlean_cuda_buffer_length(self._handle, library.ffi.new("uint32_t *"))
        # the text is taken, as a signal handler that asks must not leave one to the failure that it interrupted
        return bool(status and failure(status, "released").status == ReleasedError.status)

    def __enter__(self) -> Buffer:
        return self

    def __exit__(self, *_: object) -> None:
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
        held = sum(observer.count_own_handles(self._handle) for observer in self._device._observers)
        return count_references(self._handle, "references") - held

    def __repr__(self) -> str:
        name, kind = getattr(getattr(self, "_device", None), "name", "?"), type(self).__name__
        try:
            n = self.length
            first = (f"{v:.7g}" if isinstance(v, float) else str(v) for v in self._first(6, n))
            shown = ", ".join(first) + (", ..." if n > 6 else "")
            return f"{kind}(length={n}, device={name!r}, [{shown}])"
        except TorchleanError as error:
            return f"{kind}({'released' if error.status == ReleasedError.status else f'unreadable: {error}'}, device={name!r})"
        except Exception as error:
            return f"{kind}(unreadable: {type(error).__name__}, device={name!r})"

    def _first(self, count: int, n: int) -> list[float]:
        """The first `count` of n elements; no more than these leave the device, unless it has few."""
        if n <= 4096:
            values: list[float] = self.numpy()[:count].tolist()
            return values
        for observer in self._device._observers:
            observer.before_host_access(self._device, "numpy")
        part = new(_slot)
        try:
            if status := complete_call(load().lib.torchlean_cuda_buffer_slice1d, self._handle, n, 0, count, part):
                raise failure(status, "repr")
            values = Buffer(own(part[0], _release), self._device).numpy().tolist()
            return values
        except BaseException:
            _release(part[0])
            raise

    # ---- a copied handle would be released twice

    def __copy__(self) -> Buffer:
        return self.share()

    def __deepcopy__(self, memo: dict[int, Any]) -> Buffer:
        return self.copy()

    def __reduce__(self) -> Any:
        raise refusal(ArgumentTypeError, "Buffer", "", "a buffer to pickle", "an array: pickle buffer.numpy()")


class IndexBuffer(Buffer):
    """A flat, contiguous uint32 array of indices on a device.

    Operations named ``..._indexed`` take one, and so does any that takes host indices. It has the methods of
    :class:`Buffer`; where one of the two is expected the other is refused.

    Examples
    --------
    >>> import tlrt
    >>> cpu = tlrt.device("cpu")
    >>> tlrt.kernels.gather_vec_indexed(cpu.buffer([5, 6, 7]), cpu.indices([2, 0]), 3).numpy()
    array([7., 5.], dtype=float32)
    """

    __slots__ = ()

    _element = (np.uint32, "uint32_t[]", "torchlean_cuda_index_download")

    @classmethod
    def from_numpy(cls, array: npt.ArrayLike, device: Device | str = "cpu") -> IndexBuffer:
        """A copy of integers on a device, flattened row-major.

        Parameters
        ----------
        array : array of integers
            0 to 2^32 - 1.
        device : Device or str
            Where it goes.

        Returns
        -------
        IndexBuffer
            Of as many indices.

        Raises
        ------
        ArgumentTypeError, IndexOutOfRangeError
            For what are no integers, or integers that 32 bits do not hold.
        SizeOverflowError, OutOfMemoryError
            For 2^32 elements or more, and where memory is short.
        """
        device = _find_device(device, "from_numpy")
        host = convert.uint32(
            "from_numpy", "array", convert.host_array("from_numpy", "array", array, "integers").reshape(-1)
        )
        library = load()
        data = library.ffi.from_buffer("uint32_t[]", host)
        made = cls._create(
            "from_numpy", device, library.lib.torchlean_cuda_index_upload, device._handle, data, host.size
        )
        assert isinstance(made, IndexBuffer)
        return made

    @classmethod
    def _new(cls, function: str, n: int, device: Device | str, op: str = "") -> Buffer:
        raise refusal(ArgumentTypeError, op or function, "", "an IndexBuffer to make", "IndexBuffer.from_numpy")

    @property
    def size(self) -> int:
        """Number of indices."""
        return self.length

    def _first(self, count: int, n: int) -> list[float]:
        values: list[float] = self.numpy()[:count].tolist()
        return values


def count_references(handle: Any, op: str) -> int:
    """Number of live handles to the storage of a handle, this one included."""
    library = load()
    n = library.ffi.new("uint32_t *")
    if status := library.lib.torchlean_cuda_buffer_references(handle, n):
        raise failure(status, op)
    return int(n[0])


@dataclass(frozen=True)
class Memory:
    """Memory of one device object, in bytes and calls since it was made.

    Parameters
    ----------
    live_bytes : int
        Bytes that live buffers and scratch requested, rounded to size classes.
    peak_bytes : int
        The highest live_bytes since the start or the last :meth:`Device.reset_peak`.
    cached_bytes : int
        Bytes that the pool holds for reuse.
    cap_bytes : int
        Limit on live_bytes + cached_bytes; 0 is no limit.
    live_buffers : int
        Buffer handles not yet released.
    allocations : int
        Requests the pool served.
    driver_allocations : int
        Requests that went to the driver or the operating system.
    """

    live_bytes: int
    peak_bytes: int
    cached_bytes: int
    cap_bytes: int
    live_buffers: int
    allocations: int
    driver_allocations: int


class Device:
    """A CPU or CUDA device with its own stream and memory pool; see :func:`device`.

    Operations on a CUDA device are asynchronous: only downloads, :meth:`synchronize`, :meth:`elapsed` and pool growth
    wait. :meth:`close` (or the end of a ``with`` block) destroys the context, its pool and every buffer in it.

    Parameters
    ----------
    name : str
        "cpu", "cuda" or "cuda:1".
    math : str, optional
        As :func:`device` has it.

    Examples
    --------
    >>> import tlrt
    >>> with tlrt.Device("cpu") as cpu:
    ...     cpu.buffer([1, 2]).numpy()
    array([1., 2.], dtype=float32)
    """

    __slots__ = ("__weakref__", "_calls", "_handle", "_library", "_math", "_name", "_observers", "_ordinal")

    _handle: Any
    _library: Library
    #: the entry points that operations call, which report to the observers where there are any
    _calls: Calls
    _observers: tuple[Observer, ...]

    def __init__(self, name: str = "cpu", math: str | None = None) -> None:
        self._name, self._ordinal = _parse_name(name, "device")
        wanted = None if math is None else _parse_math(math, "device")
        library = self._library = load()
        _bind(library)
        _require_cuda(self._name, self._ordinal, library, "device")
        slot = library.ffi.new("torchlean_context **")
        try:
            status = library.lib.torchlean_cuda_context_create(self._ordinal, slot)
            self._handle = slot[0]
        except BaseException:  # of a signal handler
            library.lib.torchlean_cuda_context_destroy(slot[0])
            raise
        if status:
            raise _explain_unavailable(failure(status, "device"), self._ordinal)
        number = library.ffi.new("int32_t *")
        if wanted is not None:
            self._call("device", "context_set_math", wanted)
        self._call("device", "context_math", number)
        self._math = MATH[number[0]]
        if self._ordinal == _CPU and threading.current_thread() is threading.main_thread():
            library.lib.torchlean_cuda_watch_signal(signal.SIGINT)  # whose handlers Python runs in this thread alone
        with _lock:
            _open_devices.add(self)
            self._set_observers(tuple(_observers_of_all))

    @classmethod
    def new(cls, name: str = "cpu", math: str | None = None) -> Device:
        """A Device of its own on the named device, as ``device(name, math=math, new=True)``.

        Parameters
        ----------
        name : str
            "cpu", "cuda" or "cuda:1".
        math : str, optional
            "fast" or "reproducible", as :func:`device` has it.

        Returns
        -------
        Device
            With its own stream and memory pool.

        Raises
        ------
        ArgumentError
            For another name or mode.
        UnavailableError
            There is no such device, or the library was built without CUDA.
        """
        return cls(name, math)

    @property
    def name(self) -> str:
        """``"cpu"`` or ``"cuda:0"``."""
        return self._name

    @property
    def is_cuda(self) -> bool:
        return self._ordinal != _CPU

    @property
    def math(self) -> str:
        """How it computes sums of products, ``"fast"`` or ``"reproducible"``; see :func:`device`."""
        return self._math

    def set_math(self, math: str) -> MathScope:
        """Makes the device compute in this mode from here on; as a context manager, until the end of the block.

        Parameters
        ----------
        math : str
            "fast" or "reproducible". Buffers are the same in both modes.

        Returns
        -------
        MathScope
            The context manager.

        Raises
        ------
        ArgumentError
            For another mode.
        CaptureError
            Within a captured function.

        Examples
        --------
        >>> import tlrt
        >>> with tlrt.Device("cpu", math="fast") as cpu:
        ...     with cpu.set_math("reproducible"):
        ...         print(cpu.math)
        ...     print(cpu.math)
        reproducible
        fast
        """
        number = _parse_math(math, "set_math")
        for observer in self._observers:
            observer.before_host_access(self, "set_math")
        before = self._math
        self._call("set_math", "context_set_math", number)
        self._math = math
        return MathScope(self, before)

    def describe(self) -> str:
        """Describes the device.

        Returns
        -------
        str
            One line: processor or GPU, compute capability, memory.
        """
        return describe(self._name)

    def buffer(self, array: npt.ArrayLike) -> Buffer:
        """A copy of an array on this device, flattened row-major; see :meth:`Buffer.from_numpy`.

        Parameters
        ----------
        array : array
            Numbers, or what NumPy makes an array of. What is not float32 is rounded once.

        Returns
        -------
        Buffer
            Of as many elements.

        Raises
        ------
        ArgumentTypeError, SizeOverflowError, OutOfMemoryError
            As :meth:`Buffer.from_numpy`.

        Examples
        --------
        >>> import tlrt
        >>> with tlrt.Device("cpu") as cpu:
        ...     cpu.buffer([[1, 2], [3, 4]]).numpy()
        array([1., 2., 3., 4.], dtype=float32)
        """
        return Buffer.from_numpy(array, self)

    def indices(self, array: npt.ArrayLike) -> IndexBuffer:
        """A copy of integers on this device, flattened row-major; see :meth:`IndexBuffer.from_numpy`.

        Parameters
        ----------
        array : array of integers
            0 to 2^32 - 1.

        Returns
        -------
        IndexBuffer
            Of as many indices.

        Raises
        ------
        ArgumentTypeError, IndexOutOfRangeError, SizeOverflowError, OutOfMemoryError
            As :meth:`IndexBuffer.from_numpy`.
        """
        return IndexBuffer.from_numpy(array, self)

    def zeros(self, n: int) -> Buffer:
        """A buffer of zeros on this device.

        Parameters
        ----------
        n : int
            Number of elements, 0 to 2^32 - 1.

        Returns
        -------
        Buffer
            n times +0.

        Raises
        ------
        ShapeError
            For another number; from 2^32 on its subclass SizeOverflowError.
        OutOfMemoryError
            Where memory is short, or the limit of :meth:`cap` is reached.
        """
        return Buffer.zeros(n, self)

    def full(self, n: int, value: float) -> Buffer:
        """A buffer of one number on this device.

        Parameters
        ----------
        n : int
            Number of elements, 0 to 2^32 - 1.
        value : float
            The number, rounded once to float32.

        Returns
        -------
        Buffer
            n times the number.

        Raises
        ------
        ShapeError
            For another number; from 2^32 on its subclass SizeOverflowError.
        OutOfMemoryError
            Where memory is short, or the limit of :meth:`cap` is reached.

        Examples
        --------
        >>> import tlrt
        >>> with tlrt.Device("cpu") as cpu:
        ...     cpu.full(3, 0.5).numpy()
        array([0.5, 0.5, 0.5], dtype=float32)
        """
        return Buffer.full(n, value, self)

    def empty(self, n: int) -> Buffer:
        """A buffer of undefined content on this device, for an operation's `out`.

        Parameters
        ----------
        n : int
            Number of elements, 0 to 2^32 - 1.

        Returns
        -------
        Buffer
            Of n elements.

        Raises
        ------
        ShapeError
            For another number; from 2^32 on its subclass SizeOverflowError.
        OutOfMemoryError
            Where memory is short, or the limit of :meth:`cap` is reached.
        """
        return Buffer.empty(n, self)

    # ---- time

    def synchronize(self) -> None:
        """Waits for all work. Raises the error of earlier asynchronous work."""
        self._wait("synchronize", "context_synchronize")

    def mark(self, slot: int = 0) -> None:
        """Records a time mark in the device's stream, for :meth:`elapsed`.

        Parameters
        ----------
        slot : int
            Which of the marks 0 to 7; an earlier time of the same slot is overwritten.

        Raises
        ------
        ArgumentError, ShapeError
            For another slot.

        Examples
        --------
        >>> import tlrt
        >>> with tlrt.Device("cpu") as cpu:
        ...     cpu.mark(0)
        ...     x = cpu.zeros(1000)
        ...     cpu.mark(1)
        ...     cpu.elapsed(0, 1) >= 0.0
        True
        """
        self._wait("mark", "context_mark", length("mark", "slot", slot))

    def elapsed(self, start: int = 0, stop: int = 1) -> float:
        """The time between two marks; waits for the later one.

        Parameters
        ----------
        start, stop : int
            Their slots.

        Returns
        -------
        float
            Milliseconds.
        """
        result = self._library.ffi.new("double *")
        start, stop = length("elapsed", "start", start), length("elapsed", "stop", stop)
        self._wait("elapsed", "context_elapsed", start, stop, result)
        return float(result[0])

    # ---- memory

    def memory(self) -> Memory:
        """The pool's counters.

        Returns
        -------
        Memory
            In bytes and calls.

        Examples
        --------
        >>> import tlrt
        >>> with tlrt.Device("cpu") as cpu:
        ...     x = cpu.zeros(1000)
        ...     cpu.memory().live_bytes >= 4000, cpu.memory().live_buffers
        (True, 1)
        """
        raw = self._library.ffi.new("torchlean_memory *")
        self._call("memory", "memory_stats", raw)
        return Memory(*(int(getattr(raw, field)) for field in Memory.__dataclass_fields__))

    def reset_peak(self) -> None:
        """Sets ``peak_bytes`` to ``live_bytes``."""
        self._call("reset_peak", "memory_reset_peak")

    def cap(self, limit: int) -> None:
        """Limits live and cached memory. A request beyond the limit collects once, then raises OutOfMemoryError.

        Parameters
        ----------
        limit : int
            Bytes; 0 lifts the limit.
        """
        if isinstance(limit, bool) or not hasattr(limit, "__index__"):
            raise refusal(ArgumentTypeError, "cap", "limit", type_name(limit), "an integer")
        if not 0 <= limit < 2**64:
            raise refusal(ArgumentError, "cap", "limit", limit, "0 <= limit < 2**64")
        self._call("cap", "memory_cap", limit)

    def collect(self) -> None:
        """Returns all cached memory to the driver or the operating system."""
        self._call("collect", "memory_collect")

    # ---- other libraries' streams

    @property
    def stream(self) -> int:
        """The number of the device's CUDA stream (a cudaStream_t); 0 on the CPU."""
        number = self._library.ffi.new("uint64_t *")
        self._call("stream", "context_stream", number)
        return int(number[0])

    def order_before(self, stream: int) -> None:
        """Work that comes to a CUDA stream waits for the device's work so far. The host does not wait.

        Parameters
        ----------
        stream : int
            The stream's number (a cudaStream_t), as :attr:`stream` and PyTorch's ``cuda_stream`` have it.

        Raises
        ------
        ArgumentTypeError
            For what is no number of a stream.
        UnavailableError
            The device is the CPU.
        """
        self._order("order_before", stream, 0)

    def order_after(self, stream: int) -> None:
        """The device's next work waits for that of a CUDA stream so far. The host does not wait.

        Parameters
        ----------
        stream : int
            The stream's number (a cudaStream_t), as for :meth:`order_before`.

        Raises
        ------
        ArgumentTypeError
            For what is no number of a stream.
        UnavailableError
            The device is the CPU.
        """
        self._order("order_after", stream, 1)

    def _order(self, op: str, stream: int, after: int) -> None:
        if isinstance(stream, bool) or not hasattr(stream, "__index__") or not 0 <= stream.__index__() < 2**64:
            raise refusal(ArgumentTypeError, op, "stream", stream, "the number of a CUDA stream")
        self._wait(op, "context_order", stream, after)

    # ---- observers

    def observe(self, observer: Observer) -> None:
        """Reports what happens on the device to an observer, until :meth:`ignore`.

        Parameters
        ----------
        observer : Observer
            Who is told, after the observers that the device has.
        """
        with _lock:
            self._set_observers((*self._observers, observer))

    def ignore(self, observer: Observer) -> None:
        """Stops the reports to an observer; does nothing if it is none of the device's.

        Parameters
        ----------
        observer : Observer
            Who is told no more.
        """
        with _lock:
            if observer in self._observers:
                self._set_observers(tuple(o for o in self._observers if o is not observer))

    def _set_observers(self, observers: tuple[Observer, ...]) -> None:
        self._observers = observers
        self._calls = _calls.observed(self) if any(map(watches_calls, observers)) else _calls

    # ---- life

    def close(self) -> None:
        """Destroys the context, its pool and every buffer in it. May be called again."""
        with _lock:
            for key in [key for key, shared in _shared.items() if shared is self]:
                del _shared[key]
        self._call("close", "context_destroy")
        with _lock:
            _open_devices.discard(self)

    @property
    def closed(self) -> bool:
        number = self._library.ffi.new("int32_t *")
        return bool(self._library.lib.torchlean_cuda_context_device(self._handle, number) == ReleasedError.status)

    def __enter__(self) -> Device:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self, _finalizing: Any = sys.is_finalizing) -> None:
        # Buffers keep their Device, so none is left here. At interpreter shutdown the process gives everything back,
        # and the CUDA runtime may be gone already.
        try:
            if not _finalizing():
                self._library.lib.torchlean_cuda_context_destroy(self._handle)
        except (AttributeError, TypeError):
            pass

    def __reduce__(self) -> Any:
        raise refusal(ArgumentTypeError, "Device", "", "a device to pickle", "its name")

    def __repr__(self) -> str:
        try:
            mode = "" if self._math == "fast" else f", math={self._math!r}"
            return f"Device({self._name!r}{mode}{', closed' if self.closed else ''})"
        except Exception:
            return "Device(?)"

    def _wait(self, op: str, function: str, *arguments: Any) -> None:
        """A call that waits, or that orders work by time."""
        for observer in self._observers:
            observer.before_host_access(self, op)
        self._call(op, function, *arguments)

    def _call(self, op: str, function: str, *arguments: Any) -> None:
        if status := getattr(self._library.lib, f"torchlean_cuda_{function}")(self._handle, *arguments):
            raise failure(status, op)


class MathScope:
    """What :meth:`Device.set_math` returns: a context manager at whose end the device computes as before."""

    __slots__ = ("_before", "_device")

    def __init__(self, device: Device, before: str) -> None:
        self._device = device
        self._before = before

    def __enter__(self) -> Device:
        return self._device

    def __exit__(self, *_: object) -> None:
        self._device.set_math(self._before)


_lock = hold_over_forks(threading.RLock())
#: by name and mode
_shared: dict[tuple[str, str], Device] = {}
_open_devices: weakref.WeakSet[Device] = weakref.WeakSet()
_observers_of_all: list[Observer] = []


def _parse_name(name: object, op: str) -> tuple[str, int]:
    """The canonical name and the number of a device."""
    if not isinstance(name, str):
        raise refusal(ArgumentTypeError, op, "name", type_name(name), "'cpu', 'cuda' or 'cuda:N'")
    match = _NAME.fullmatch(name)
    if not match:
        raise refusal(ArgumentError, op, "name", f"{name!r}", "'cpu', 'cuda' or 'cuda:N'")
    if match[1]:
        return "cpu", _CPU
    ordinal = int(match[2] or 0)
    return f"cuda:{ordinal}", ordinal


def _parse_math(math: object, op: str) -> int:
    """The number of a mode."""
    if not isinstance(math, str):
        raise refusal(ArgumentTypeError, op, "math", type_name(math), " or ".join(map(repr, MATH)))
    if math not in MATH:
        raise refusal(ArgumentError, op, "math", f"{math!r}", " or ".join(map(repr, MATH)))
    return MATH.index(math)


def _require_cuda(name: str, ordinal: int, library: Library, op: str) -> None:
    """Refuses a CUDA device if the library was built without CUDA."""
    if ordinal != _CPU and "cuda" not in library.build_info.get("backend", ""):
        expected = f"'cpu', as the library is a CPU-only build ({remedy(cuda=True)})"
        raise refusal(UnavailableError, op, "name", f"{name!r}", expected)


def _explain_unavailable(error: TorchleanError, ordinal: int) -> TorchleanError:
    """Says where to look if a CUDA device is not available; a message about an environment variable says it itself."""
    if not isinstance(error, UnavailableError) or ordinal == _CPU or "TORCHLEAN_" in str(error):
        return error
    return UnavailableError(f"{error} (see `python -m tlrt doctor`)", op=error.op, status=error.status)


def device(name: str = "cpu", *, math: str | None = None, new: bool = False) -> Device:
    """The device of that name.

    Parameters
    ----------
    name : str
        ``"cpu"``, ``"cuda"`` (the first GPU) or ``"cuda:1"``.
    math : str, optional
        How sums of products are computed: ``"fast"``, as is fastest there, or ``"reproducible"``, as is defined, with
        the same bits on every device and for every batch. Left out, it is ``TORCHLEAN_MATH`` of the environment, or
        fast.
    new : bool
        True: a separate one with its own stream and pool.

    Returns
    -------
    Device
        Without `new`, the same object each time for a name and a mode, until it is closed.

    Raises
    ------
    UnavailableError
        Where there is no such device.
    ArgumentError
        For any other name or mode.

    Examples
    --------
    >>> import tlrt
    >>> tlrt.device("cpu") is tlrt.device("cpu")
    True
    >>> tlrt.device("gpu")
    Traceback (most recent call last):
        ...
    tlrt.errors.ArgumentError: device: name: got 'gpu', expected 'cpu', 'cuda' or 'cuda:N'

    Source: torch.device.
    """
    canonical, _ = _parse_name(name, "device")
    if math is not None:
        _parse_math(math, "device")
    if new:
        return Device(canonical, math)
    key = canonical, math or os.environ.get("TORCHLEAN_MATH") or MATH[0]
    with _lock:
        found = _shared.get(key)
        if found is None:
            found = _shared[key] = Device(canonical, math)
        return found


def describe(name: str = "cpu") -> str:
    """Describes a device without opening it.

    Parameters
    ----------
    name : str
        ``"cpu"``, ``"cuda"`` or ``"cuda:1"``.

    Returns
    -------
    str
        One line.

    Raises
    ------
    UnavailableError
        With the reason, where there is none.
    """
    canonical, ordinal = _parse_name(name, "describe")
    library = load()
    _require_cuda(canonical, ordinal, library, "describe")
    text = library.ffi.new("char[]", 512)
    if status := library.lib.torchlean_cuda_device_describe(ordinal, text, 512):
        raise _explain_unavailable(failure(status, "describe"), ordinal)
    return library.text(text)


_by_name = device


def _find_device(device: Device | str, op: str) -> Device:
    if isinstance(device, Device):
        return device
    if isinstance(device, str):
        return _by_name(device)
    got = convert.type_name(device)
    raise refusal(ArgumentTypeError, op, "device", got, "a Device or its name, like 'cpu'")


def observe_all(observer: Observer) -> None:
    """Reports what happens on every device, those opened later included, until :func:`ignore_all`."""
    with _lock:
        _observers_of_all.append(observer)
        for each in list(_open_devices):
            each.observe(observer)


def ignore_all(observer: Observer) -> None:
    """Undoes :func:`observe_all`, and what there is of one that an interrupt cut short."""
    with _lock:
        if observer in _observers_of_all:
            _observers_of_all.remove(observer)
        for each in list(_open_devices):
            each.ignore(observer)
