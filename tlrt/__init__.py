"""tlrt: float32 tensor operations on the CPU and CUDA, checked against a specification.

    import tlrt
    from tlrt import kernels

    cpu = tlrt.device("cpu")
    a = cpu.buffer([1, 2, 3])
    kernels.add(a, a).numpy()      # array([2., 4., 6.], dtype=float32)

A model is written once against a :class:`tlrt.Session` and runs on the specification, the CPU or CUDA:

    with tlrt.Session("cpu") as s:
        w = s.param([[1, 2], [3, 4]], "w")
        loss = (w @ w).tanh().reduce_sum()
        loss.backward()
        w.grad.numpy()

``python -m tlrt doctor`` says what was built and which devices are seen; ``python -m tlrt verify`` checks every
operation on this machine. Importing ``tlrt`` loads neither NumPy nor cffi nor the C library; the first use of a device
or of ``tlrt.kernels`` does.
"""

import importlib
from typing import TYPE_CHECKING, Any

from tlrt import errors
from tlrt.errors import TorchleanError

if TYPE_CHECKING:
    from tlrt import checkpoint, kernels, ledger, nn, optim
    from tlrt.buffer import Buffer
    from tlrt.capture import Captured
    from tlrt.context import (
        Device,
        Memory,
        build_info,
        cpu_variant,
        describe,
        device,
        devices,
        from_dlpack,
        get_include,
        get_library,
        set_cpu_variant,
        set_threads,
        threads,
    )
    from tlrt.differential import compare
    from tlrt.session import Options, Parameter, Session, TensorRef
    from tlrt.tape import AnyBuffer, Indices, Tape

__version__ = "0.1.0"

__all__ = ["AnyBuffer", "Buffer", "Captured", "Device", "Indices", "Memory", "Options", "Parameter", "Session",
           "Tape", "TensorRef", "TorchleanError", "build_info", "checkpoint", "compare", "cpu_variant", "describe",
           "device", "devices", "errors", "from_dlpack", "get_include", "get_library", "kernels", "ledger", "nn", "optim",
           "set_cpu_variant", "set_threads", "threads"]  # fmt: skip

#: where a name comes from, if not from tlrt.context
_HOMES = {"Buffer": "buffer", "AnyBuffer": "tape", "Indices": "tape", "Captured": "capture", "Tape": "tape", "Options": "session",
          "Parameter": "session", "Session": "session", "TensorRef": "session", "compare": "differential"}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in (
        "buffer",
        "capture",
        "checkpoint",
        "context",
        "kernels",
        "ledger",
        "nn",
        "optim",
    ):  # kernels loads the C library
        return importlib.import_module(f"tlrt.{name}")
    if name not in __all__:
        if name.startswith("_"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        raise importlib.import_module("tlrt._operations.names").missing_name("module 'tlrt'", "tlrt", name, __all__)
    module = importlib.import_module(f"tlrt.{_HOMES.get(name, 'context')}")
    value = globals()[name] = getattr(module, name)
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
