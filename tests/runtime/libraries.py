"""Arrays of other libraries that share memory with buffers, and what exchanges leave behind."""

import gc
import resource
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

import tlrt

#: exchanges of the count, those before it, numbers in an array, and KiB that a process may grow by
EXCHANGES, WARM, SIZE, GROWTH = 10_000, 500, 5000, 8 << 10


class Library:
    """Another library's arrays on a device. `version` is the library's. Raises :class:`Missing` where it has no such device."""

    #: the module that has it
    module = ""
    #: whether its arrays may be written to, so that buffers share their memory
    is_mutable = True

    def __init__(self, device: str) -> None:
        if find_spec(self.module) is None:
            raise Missing(f"{self.module} is not installed")
        self.package = import_module(self.module)
        self.version: str = self.package.__version__
        self.device = device.partition(":")[0]
        if not self.present():
            raise Missing(f"{self.module} has no {self.device}")

    def present(self) -> bool:
        """Whether the library works on the device."""
        raise NotImplementedError

    def array(self, x: np.ndarray) -> Any:
        """An array of the library's own with these numbers."""
        raise NotImplementedError

    def view(self, buffer: Any) -> Any:
        """The library's array over a buffer's memory."""
        return self.package.from_dlpack(buffer)

    def numpy(self, x: Any) -> np.ndarray:
        """The numbers of an array of the library's."""
        return np.asarray(x)

    def address(self, x: Any) -> int:
        """Where an array of the library's begins."""
        raise NotImplementedError


class Missing(Exception):
    """A library is not here, or not for the device."""


class NumPy(Library):
    module = "numpy"

    def present(self) -> bool:
        return self.device == "cpu"

    def array(self, x: np.ndarray) -> np.ndarray:
        return aligned(x)

    def address(self, x: np.ndarray) -> int:
        return x.ctypes.data


class Torch(Library):
    module = "torch"

    def present(self) -> bool:
        return self.device == "cpu" or bool(self.package.cuda.is_available())

    def array(self, x: np.ndarray) -> Any:
        return self.package.tensor(x, device=self.device)

    def numpy(self, x: Any) -> np.ndarray:
        return np.asarray(x.cpu())

    def address(self, x: Any) -> int:
        return int(x.data_ptr())


class Jax(Library):
    module = "jax"
    is_mutable = False

    def present(self) -> bool:
        return any(d.platform == ("cpu" if self.device == "cpu" else "gpu") for d in self.package.devices())

    def array(self, x: np.ndarray) -> Any:
        return self.package.device_put(x, self.package.devices("cpu" if self.device == "cpu" else "gpu")[0])

    def view(self, buffer: Any) -> Any:
        return self.package.numpy.from_dlpack(buffer)

    def address(self, x: Any) -> int:
        return int(x.unsafe_buffer_pointer())


class CuPy(Library):
    module = "cupy"

    def present(self) -> bool:
        return self.device == "cuda"

    def array(self, x: np.ndarray) -> Any:
        return self.package.array(x)

    def numpy(self, x: Any) -> np.ndarray:
        return np.asarray(x.get())

    def address(self, x: Any) -> int:
        return int(x.data.ptr)


LIBRARIES: Mapping[str, type[Library]] = {"NumPy": NumPy, "PyTorch": Torch, "JAX": Jax, "CuPy": CuPy}


def aligned(x: np.ndarray) -> np.ndarray:
    """A copy of an array that begins at a multiple of 64 bytes."""
    raw = np.empty(x.nbytes + 64, np.uint8)
    made = raw[(start := -raw.ctypes.data % 64) : start + x.nbytes].view(x.dtype).reshape(x.shape)
    made[...] = x
    return made


def leak(library: Library, device: str, times: int = EXCHANGES) -> dict[str, int]:
    """Buffers and bytes of the device, and KiB of the process, that exchanges leave behind."""
    d, numbers = tlrt.device(device), np.ones(SIZE, np.float32)

    def exchange(count: int) -> None:
        for _ in range(count):
            buffer = tlrt.from_dlpack(library.array(numbers))
            view = library.view(buffer)
            del buffer, view
        d.synchronize()

    exchange(WARM)
    gc.collect()
    before, resident = d.memory(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    exchange(times)
    gc.collect()
    after = d.memory()
    return {
        "exchanges": times, "buffers_left": after.live_buffers - before.live_buffers,
        "bytes_left": after.live_bytes - before.live_bytes,
        "grown_kib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - resident,
    }  # fmt: skip
