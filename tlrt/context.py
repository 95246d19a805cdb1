"""Devices: where buffers live and operations run.

A :class:`Device` is one context of the C library: a device, its stream (CUDA), its memory pool and library handles.
:func:`device` gives one shared Device per name; ``device(name, new=True)`` a separate one. Buffers of different Devices
do not mix in one operation.
"""

from typing import Any

from tlrt._binding.arguments import length
from tlrt._binding.convert import type_name
from tlrt._binding.exchange import borrow
from tlrt._binding.handles import Buffer, Device, Memory, describe, device
from tlrt._binding.library import failure, include_folder, load
from tlrt._binding.observer import Observer
from tlrt.errors import ArgumentTypeError, refusal

__all__ = ["Device", "Memory", "Observer", "build_info", "cpu_variant", "describe", "device", "devices",
           "from_dlpack", "get_include", "get_library", "set_cpu_variant", "set_threads", "threads"]  # fmt: skip


def devices() -> tuple[str, ...]:
    """Names of the devices present: ``("cpu", "cuda:0", …)``."""
    count = int(load().lib.torchlean_cuda_device_count())
    return ("cpu", *(f"cuda:{i}" for i in range(count)))


def build_info() -> str:
    """What the library was built as, one line of ``key=value`` pairs separated by "; ": version, backend, compiler, CUDA
    toolkit, CPU variants."""
    library = load()
    return library.text(library.lib.torchlean_cuda_build_info())


def get_include() -> str:
    """The folder of the C headers, for ``cc -I``."""
    return str(include_folder())


def get_library() -> str:
    """The path of the C library that is loaded, for ``cc`` and ``dlopen``."""
    return str(load().path)


def from_dlpack(array: Any, device: Device | str | None = None, copy: bool | None = None) -> Buffer:
    """A buffer over the memory of an array of another library: any object with ``__dlpack__`` (PyTorch, NumPy, JAX, CuPy).

    The buffer and the array share the memory: what is written to one is written to the other. The array's memory is kept as
    long as a buffer, a tape or a captured step has it. The type is float32, or uint32, which gives an IndexBuffer; the array is
    row-major without gaps, writable, and begins at a multiple of 16 bytes. Of another array a copy is made, by its own library;
    with ``copy=False`` it is refused, with ``copy=True`` every array is copied. On CUDA the device's next work waits for the
    array's; :meth:`Device.order_before` makes its library wait for what is computed here.

    The device is the shared one where the array is, or `device`. Raises ArgumentTypeError for an
    object without the protocol, ArgumentError for another type, DeviceMismatchError where array and device differ, and
    CaptureError within a captured function."""
    return borrow(array, device, copy)


def threads() -> int:
    """Number of threads of the CPU path. The results have the same bits for every number."""
    return int(load().lib.torchlean_cuda_threads())


def set_threads(n: int) -> None:
    """Sets the number of threads of the CPU path; 0 restores the default (``TORCHLEAN_CPU_THREADS``, else the
    processors this process may use)."""
    if status := load().lib.torchlean_cuda_set_threads(length("set_threads", "n", n)):
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
        raise refusal(ArgumentTypeError, "set_cpu_variant", "name", got, "a name or None")
    text = library.ffi.NULL if name is None else library.ffi.new("char[]", name.encode())
    if status := library.lib.torchlean_cuda_set_cpu_variant(text):
        raise failure(status, "set_cpu_variant")
