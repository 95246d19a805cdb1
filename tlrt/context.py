"""Devices: where buffers live and operations run.

A :class:`Device` is one context of the C library: a device, its stream (CUDA), its memory pool and library handles.
:func:`device` gives one shared Device per name; ``device(name, new=True)`` a separate one. Buffers of different Devices
do not mix in one operation.
"""

from __future__ import annotations

import re
import sys
import threading
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy.typing as npt

from tlrt import buffer as _buffer
from tlrt._convert import type_name
from tlrt._library import Library, failure, load, remedy
from tlrt.buffer import Buffer, _length
from tlrt.errors import ArgumentError, ArgumentTypeError, TorchleanError, UnavailableError

__all__ = [
    "Device", "Memory", "build_info", "cpu_variant", "describe", "device", "devices", "set_cpu_variant", "set_threads",
    "threads",
]  # fmt: skip

_CPU = -1
_NAME = re.compile(r"(cpu)|cuda(?::(0|[1-9]\d{0,8}))?")


@dataclass(frozen=True)
class Memory:
    """Memory of one device object, in bytes and calls since it was made."""

    #: requested by live buffers and scratch, rounded to size classes
    live_bytes: int
    #: highest live_bytes since the start or the last :meth:`Device.reset_peak`
    peak_bytes: int
    #: held by the pool for reuse
    cached_bytes: int
    #: limit on live_bytes + cached_bytes; 0 is no limit
    cap_bytes: int
    #: buffer handles not yet released
    live_buffers: int
    #: requests the pool served
    allocations: int
    #: requests that went to the driver or the operating system
    driver_allocations: int


class Device:
    """A CPU or CUDA device with its own stream and memory pool; see :func:`device`.

    Operations on a CUDA device are asynchronous: only downloads, :meth:`synchronize`, :meth:`elapsed` and pool growth
    wait. :meth:`close` (or the end of a ``with`` block) destroys the context, its pool and every buffer in it.
    """

    __slots__ = ("__weakref__", "_handle", "_library", "_name", "_ordinal", "_recorder")

    _handle: Any
    _library: Library
    #: what is told of the calls on the device while a step is captured (tlrt._record)
    _recorder: Any

    def __init__(self, name: str = "cpu") -> None:
        self._recorder = None
        self._name, self._ordinal = _parse(name, "device")
        library = self._library = load()
        _buffer.bind(library)
        _require_cuda(self._name, self._ordinal, library, "device")
        slot = library.ffi.new("torchlean_context **")
        try:
            status = library.lib.torchlean_cuda_context_create(self._ordinal, slot)
            self._handle = slot[0]
        except BaseException:  # of a signal handler
            library.lib.torchlean_cuda_context_destroy(slot[0])
            raise
        if status:
            raise _unavailable(failure(status, "device"), self._ordinal)

    @classmethod
    def new(cls, name: str = "cpu") -> Device:
        """A Device of its own on the named device, as ``device(name, new=True)``."""
        return cls(name)

    @property
    def name(self) -> str:
        """``"cpu"`` or ``"cuda:0"``."""
        return self._name

    @property
    def is_cuda(self) -> bool:
        return self._ordinal != _CPU

    def describe(self) -> str:
        """One line: processor or GPU, compute capability, memory."""
        return describe(self._name)

    def buffer(self, array: npt.ArrayLike) -> Buffer:
        """A copy of an array on this device; see :meth:`Buffer.from_numpy`."""
        return Buffer.from_numpy(array, self)

    def zeros(self, n: int) -> Buffer:
        """n elements of +0."""
        return Buffer.zeros(n, self)

    def full(self, n: int, value: float) -> Buffer:
        """n elements of `value`, rounded once to float32."""
        return Buffer.full(n, value, self)

    def empty(self, n: int) -> Buffer:
        """n elements of undefined content."""
        return Buffer.empty(n, self)

    # ---- time

    def synchronize(self) -> None:
        """Waits for all work. Raises the error of earlier asynchronous work."""
        self._wait("synchronize", "context_synchronize")

    def mark(self, slot: int = 0) -> None:
        """Records time mark `slot` (0 to 7) in the device's stream."""
        self._wait("mark", "context_mark", _length("mark", "slot", slot))

    def elapsed(self, start: int = 0, stop: int = 1) -> float:
        """Milliseconds between two time marks; waits for the later one."""
        result = self._library.ffi.new("double *")
        start, stop = _length("elapsed", "start", start), _length("elapsed", "stop", stop)
        self._wait("elapsed", "context_elapsed", start, stop, result)
        return float(result[0])

    # ---- memory

    def memory(self) -> Memory:
        """The pool's counters."""
        raw = self._library.ffi.new("torchlean_memory *")
        self._call("memory", "memory_stats", raw)
        return Memory(*(int(getattr(raw, field)) for field in Memory.__dataclass_fields__))

    def reset_peak(self) -> None:
        """Sets ``peak_bytes`` to ``live_bytes``."""
        self._call("reset_peak", "memory_reset_peak")

    def cap(self, limit: int) -> None:
        """Limits live and cached memory to `limit` bytes; 0 lifts the limit. A request beyond it collects once, then
        raises OutOfMemoryError."""
        if isinstance(limit, bool) or not hasattr(limit, "__index__"):
            raise ArgumentTypeError(f"cap: limit: got {type_name(limit)}, expected an integer", op="cap")
        if not 0 <= limit < 2**64:
            raise ArgumentError(f"cap: limit: got {limit}, expected 0 <= limit < 2**64", op="cap")
        self._call("cap", "memory_cap", limit)

    def collect(self) -> None:
        """Returns all cached memory to the driver or the operating system."""
        self._call("collect", "memory_collect")

    # ---- life

    def close(self) -> None:
        """Destroys the context, its pool and every buffer in it. May be called again."""
        with _lock:
            if _shared.get(self._name) is self:
                del _shared[self._name]
        self._call("close", "context_destroy")

    @property
    def closed(self) -> bool:
        number = self._library.ffi.new("int32_t *")
        return bool(self._library.lib.torchlean_cuda_context_device(self._handle, number) == 90)

    def __enter__(self) -> Device:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
        raise ArgumentTypeError("Device: got a device to pickle, expected its name")

    def __repr__(self) -> str:
        try:
            return f"Device({self._name!r}{', closed' if self.closed else ''})"
        except Exception:
            return "Device(?)"

    def _wait(self, op: str, function: str, *arguments: Any) -> None:
        """A call that a captured step cannot hold."""
        recorder = self._recorder
        if recorder is not None:
            recorder.refuse(op)
        self._call(op, function, *arguments)

    def _call(self, op: str, function: str, *arguments: Any) -> None:
        if status := getattr(self._library.lib, f"torchlean_cuda_{function}")(self._handle, *arguments):
            raise failure(status, op)


_lock = threading.RLock()
_shared: dict[str, Device] = {}


def _parse(name: object, op: str) -> tuple[str, int]:
    """The canonical name and the number of a device."""
    if not isinstance(name, str):
        raise ArgumentTypeError(f"{op}: name: got {type_name(name)}, expected 'cpu', 'cuda' or 'cuda:N'", op=op)
    match = _NAME.fullmatch(name)
    if not match:
        raise ArgumentError(f"{op}: name: got {name!r}, expected 'cpu', 'cuda' or 'cuda:N'", op=op)
    if match[1]:
        return "cpu", _CPU
    ordinal = int(match[2] or 0)
    return f"cuda:{ordinal}", ordinal


def _require_cuda(name: str, ordinal: int, library: Library, op: str) -> None:
    """Refuses a CUDA device if the library was built without CUDA."""
    if ordinal != _CPU and "cuda" not in library.build_info.get("backend", ""):
        text = f"{op}: name: got {name!r}, expected 'cpu', as the library is a CPU-only build ({remedy(cuda=True)})"
        raise UnavailableError(text, op=op)


def _unavailable(error: TorchleanError, ordinal: int) -> TorchleanError:
    """Says where to look if a CUDA device is not available; a message about an environment variable says it itself."""
    if not isinstance(error, UnavailableError) or ordinal == _CPU or "TORCHLEAN_" in str(error):
        return error
    return UnavailableError(f"{error} (see `python -m tlrt doctor`)", op=error.op, status=error.status)


def device(name: str = "cpu", *, new: bool = False) -> Device:
    """The device of that name: ``"cpu"``, ``"cuda"`` (the first GPU) or ``"cuda:1"``.

    The same object each time, until it is closed; `new` makes a separate one with its own stream and pool. Raises
    UnavailableError where there is no such device, ArgumentError for any other name.
    """
    canonical, _ = _parse(name, "device")
    if new:
        return Device(canonical)
    with _lock:
        found = _shared.get(canonical)
        if found is None:
            found = _shared[canonical] = Device(canonical)
        return found


def devices() -> tuple[str, ...]:
    """Names of the devices present: ``("cpu", "cuda:0", …)``."""
    count = int(load().lib.torchlean_cuda_device_count())
    return ("cpu", *(f"cuda:{i}" for i in range(count)))


def describe(name: str = "cpu") -> str:
    """One line about a device, without opening it. Raises UnavailableError, with the reason, where there is none."""
    canonical, ordinal = _parse(name, "describe")
    library = load()
    _require_cuda(canonical, ordinal, library, "describe")
    text = library.ffi.new("char[]", 512)
    if status := library.lib.torchlean_cuda_device_describe(ordinal, text, 512):
        raise _unavailable(failure(status, "describe"), ordinal)
    return library.text(text)


def build_info() -> str:
    """What the library was built as, one line of ``key=value`` pairs separated by "; ": version, backend, compiler, CUDA
    toolkit, CPU variants."""
    library = load()
    return library.text(library.lib.torchlean_cuda_build_info())


def threads() -> int:
    """Number of threads of the CPU path. The results have the same bits for every number."""
    return int(load().lib.torchlean_cuda_threads())


def set_threads(n: int) -> None:
    """Sets the number of threads of the CPU path; 0 restores the default (``TORCHLEAN_CPU_THREADS``, else the
    processors this process may use)."""
    if status := load().lib.torchlean_cuda_set_threads(_length("set_threads", "n", n)):
        raise failure(status, "set_threads")


def cpu_variant() -> str:
    """The SIMD variant the CPU path runs: "base", "avx2" or "avx512". All give the same bits."""
    library = load()
    return library.text(library.lib.torchlean_cuda_cpu_variant())


def set_cpu_variant(name: str | None) -> None:
    """Selects a SIMD variant, for tests; None picks the best. Raises UnavailableError if this machine or build has no
    such variant."""
    library = load()
    if not isinstance(name, (str, type(None))):
        got = type_name(name)
        raise ArgumentTypeError(f"set_cpu_variant: name: got {got}, expected a name or None", op="set_cpu_variant")
    text = library.ffi.NULL if name is None else library.ffi.new("char[]", name.encode())
    if status := library.lib.torchlean_cuda_set_cpu_variant(text):
        raise failure(status, "set_cpu_variant")
