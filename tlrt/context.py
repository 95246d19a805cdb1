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
    """Names of the devices present.

    Returns
    -------
    tuple of str
        ``("cpu", "cuda:0", …)``.

    Examples
    --------
    >>> import tlrt
    >>> tlrt.devices()[0]
    'cpu'

    Source: torch.cuda.device_count.
    """
    count = int(load().lib.torchlean_cuda_device_count())
    return ("cpu", *(f"cuda:{i}" for i in range(count)))


def build_info() -> str:
    """What the library was built as.

    Returns
    -------
    str
        One line of ``key=value`` pairs separated by "; ": version, backend, compiler, CUDA toolkit, CPU variants.

    Examples
    --------
    >>> import tlrt
    >>> dict(pair.split("=", 1) for pair in tlrt.build_info().split("; "))["version"] == tlrt.__version__
    True
    """
    library = load()
    return library.text(library.lib.torchlean_cuda_build_info())


def get_include() -> str:
    """The folder of the C headers, for ``cc -I``.

    Returns
    -------
    str
        Its path.

    Examples
    --------
    >>> import os, tlrt
    >>> os.path.exists(os.path.join(tlrt.get_include(), "torchlean_cuda.h"))
    True
    """
    return str(include_folder())


def get_library() -> str:
    """The C library that is loaded, for ``cc`` and ``dlopen``.

    Returns
    -------
    str
        Its path.

    Raises
    ------
    LibraryNotFoundError, StaleLibraryError
        Where none can be loaded.

    Examples
    --------
    >>> import os, tlrt
    >>> os.path.exists(tlrt.get_library())
    True
    """
    return str(load().path)


def from_dlpack(array: Any, device: Device | str | None = None, copy: bool | None = None) -> Buffer:
    """A buffer over the memory of an array of another library (PyTorch, NumPy, JAX, CuPy).

    The buffer and the array share the memory: what is written to one is written to the other. The array's memory is
    kept as long as a buffer, a tape or a captured step has it. On CUDA the device's next work waits for the array's;
    :meth:`Device.order_before` makes its library wait for what is computed here.

    Parameters
    ----------
    array : object with ``__dlpack__``
        Of float32, or of uint32, which gives an IndexBuffer. A row-major, writable array without gaps that begins at a
        multiple of 16 bytes is shared; of another one its own library makes a copy.
    device : Device or str, optional
        The shared one where the array is, unless given.
    copy : bool, optional
        False: refuse what cannot be shared. True: copy every array.

    Returns
    -------
    Buffer or IndexBuffer
        Flat, of as many elements.

    Raises
    ------
    ArgumentTypeError
        For an object without the protocol.
    ArgumentError
        For another type, or with copy=False.
    DeviceMismatchError
        Where array and device differ.
    CaptureError
        Within a captured function.

    Examples
    --------
    >>> import numpy as np, tlrt
    >>> a = np.arange(3, dtype=np.float32)
    >>> b = tlrt.from_dlpack(a)
    >>> tlrt.kernels.add(b, b).numpy()
    array([0., 2., 4.], dtype=float32)
    """
    return borrow(array, device, copy)


def threads() -> int:
    """Number of threads of the CPU path. The results have the same bits for every number.

    Returns
    -------
    int
        1 or more.

    Examples
    --------
    >>> import tlrt
    >>> tlrt.set_threads(2)
    >>> tlrt.threads()
    2
    >>> tlrt.set_threads(0)

    Source: torch.get_num_threads.
    """
    return int(load().lib.torchlean_cuda_threads())


def set_threads(n: int) -> None:
    """Sets the number of threads of the CPU path.

    Parameters
    ----------
    n : int
        0 restores the default: ``TORCHLEAN_CPU_THREADS``, else the processors that this process may use.

    Raises
    ------
    ArgumentTypeError, ShapeError
        For what is no number of threads.

    Source: torch.set_num_threads.
    """
    if status := load().lib.torchlean_cuda_set_threads(length("set_threads", "n", n)):
        raise failure(status, "set_threads")


def cpu_variant() -> str:
    """The SIMD variant that the CPU path runs. All give the same bits.

    Returns
    -------
    str
        "base", "avx2" or "avx512".

    Examples
    --------
    >>> import tlrt
    >>> tlrt.set_cpu_variant("base")
    >>> tlrt.cpu_variant()
    'base'
    >>> tlrt.set_cpu_variant(None)
    """
    library = load()
    return library.text(library.lib.torchlean_cuda_cpu_variant())


def set_cpu_variant(name: str | None) -> None:
    """Selects a SIMD variant, for tests.

    Parameters
    ----------
    name : str or None
        One of :func:`cpu_variant`; None picks the best.

    Raises
    ------
    UnavailableError
        If this machine or build has no such variant.
    ArgumentTypeError
        For what is no name.
    """
    library = load()
    if not isinstance(name, (str, type(None))):
        got = type_name(name)
        raise refusal(ArgumentTypeError, "set_cpu_variant", "name", got, "a name or None")
    text = library.ffi.NULL if name is None else library.ffi.new("char[]", name.encode())
    if status := library.lib.torchlean_cuda_set_cpu_variant(text):
        raise failure(status, "set_cpu_variant")
