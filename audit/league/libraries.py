"""The libraries of the league: their functions for the rows, as the benchmark calls them (``bench/operations``).

NumPy's calls are also CuPy's and JAX's, with these modules in NumPy's place; PyTorch's are also those that ``torch.compile``
compiles. A call gets its arguments by the row's names.
"""

import importlib
import importlib.metadata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from audit.league import onnx_calls
from audit.league.calls import CALLS, LEFT_OUT
from bench.operations import benchmark_of
from tlspec import arrays
from tlspec.bounds import call_named
from tlspec.registry import Op

Call = Callable[[Mapping[str, Any]], Any]


@dataclass(frozen=True)
class Library:
    """A column of the table."""

    name: str
    #: of :func:`tlspec.arrays.get`
    array: str
    #: the package that has it, and the module that calls get
    package: str
    module: str
    #: number formats
    formats: tuple[str, ...]
    #: which of the benchmark's calls
    calls: str = "numpy"
    compiled: bool = False

    def present(self) -> bool:
        """Whether the library and its device are here."""
        try:
            arrays.get(self.array)
            importlib.import_module(self.module)
        except (ImportError, RuntimeError, ValueError):
            return False
        return True

    @property
    def version(self) -> str:
        return importlib.metadata.version(self.package)

    def call(self, row: Op, which: str) -> Call | None:
        """The library's function for a row, of the arguments by name; None where it has none."""
        if self.calls == "onnx":
            return onnx_calls.call(row) if which == "forward" else None
        name = self.calls if which == "forward" else f"{self.calls}_vjp"
        function = CALLS.get((name, row.name), getattr(benchmark_of(row.name), name, None))
        if function is None or row.name in LEFT_OUT:
            return None
        module = importlib.import_module(self.module)
        if self.compiled:
            return _compiled(module, function)

        def run(values: Mapping[str, Any]) -> Any:
            known = {
                **values,
                "np": _Unpromoted(module),
                "torch": module,
                "device": getattr(arrays.get(self.array), "device", None),
            }
            made = call_named(function, known)
            return made() if callable(made) else made

        return run


class _Unpromoted:
    """NumPy or its like with Python's numbers for float32 constants, which do not promote arrays of narrower numbers."""

    float32 = float

    def __init__(self, module: Any):
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def _compiled(torch: Any, function: Callable[..., Any]) -> Call:
    """PyTorch's call compiled for tensors of any length; what is no tensor is a constant of it."""

    def run(values: Mapping[str, Any]) -> Any:
        tensors = {k: v for k, v in values.items() if isinstance(v, torch.Tensor)}
        others = {k: v for k, v in values.items() if k not in tensors}

        def body(given: Mapping[str, Any]) -> Any:
            made = call_named(function, {**others, **given, "torch": torch, "device": None})
            return made() if callable(made) else made

        return torch.compile(body, dynamic=True)(tensors)

    return run


FLOAT32 = ("float32",)
NARROW = ("float32", "bfloat16", "float16")
LIBRARIES = (
    Library("NumPy", "numpy", "numpy", "numpy", FLOAT32),
    Library("PyTorch CPU", "torch", "torch", "torch", NARROW, "torch"),
    Library("torch.compile CPU", "torch", "torch", "torch", FLOAT32, "torch", compiled=True),
    Library("JAX CPU", "jax:cpu", "jax", "jax.numpy", NARROW),
    Library("ONNX Runtime CPU", "numpy", "onnxruntime", "onnxruntime", FLOAT32, "onnx"),
    Library("PyTorch CUDA", "torch:cuda", "torch", "torch", NARROW, "torch"),
    Library("torch.compile CUDA", "torch:cuda", "torch", "torch", NARROW, "torch", compiled=True),
    Library("JAX CUDA", "jax:cuda", "jax", "jax.numpy", NARROW),
    Library("CuPy", "cupy", "cupy", "cupy", ("float32", "float16")),
)
