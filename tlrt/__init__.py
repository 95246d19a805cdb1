"""tlrt: float32 tensor operations on the CPU and CUDA, checked against a specification.

    import tlrt
    from tlrt import kernels

    cpu = tlrt.device("cpu")
    a = cpu.buffer([1, 2, 3])
    kernels.add(a, a).numpy()      # array([2., 4., 6.], dtype=float32)

``python -m tlrt doctor`` says what was built and which devices are seen; ``python -m tlrt verify`` checks every
operation on this machine. Importing ``tlrt`` needs no C library; the first use of a device or of ``tlrt.kernels`` loads
it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tlrt import errors
from tlrt.buffer import Buffer
from tlrt.context import (
    Device,
    Memory,
    build_info,
    cpu_variant,
    describe,
    device,
    devices,
    set_cpu_variant,
    set_threads,
    threads,
)
from tlrt.errors import TorchleanError

if TYPE_CHECKING:
    from tlrt import kernels

__version__ = "0.1.0"

__all__ = [
    "Buffer", "Device", "Memory", "TorchleanError", "build_info", "cpu_variant", "describe", "device", "devices",
    "errors", "kernels", "set_cpu_variant", "set_threads", "threads",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "kernels":  # loads the C library
        return importlib.import_module("tlrt.kernels")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), "kernels"])
