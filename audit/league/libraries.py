"""The libraries of the league."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

from audit.league.calls import cupy_calls, jax_calls, numpy_calls, onnx_calls, torch_calls


@dataclass(frozen=True)
class Library:
    """A column of the table."""

    title: str
    #: the package that must be there, and the name of its arrays in :mod:`tlspec.arrays`
    package: str
    arrays: str
    module: ModuleType
    formats: tuple[str, ...]
    #: what is assumed of sums of narrow numbers, as a word of ``accumulate=``; "" for what the judge assumes itself
    sums: str = ""
    #: formats of which the library takes subnormal numbers for zero
    flushed: tuple[str, ...] = ()
    #: whether calls are compiled by torch.compile
    compiled: bool = False

    def missing(self) -> str:
        """What is not there; empty where the library can run."""
        try:
            package = importlib.import_module(self.package)
        except ImportError:
            return f"{self.package} is not installed"
        if self.package == "onnxruntime":
            try:
                importlib.import_module("onnx")
            except ImportError:
                return "onnx is not installed"
        if self.arrays == "torch:cuda" and not package.cuda.is_available():
            return "PyTorch sees no GPU"
        return ""

    def version(self) -> str:
        return str(importlib.import_module(self.package).__version__)

    def calls(self) -> dict[str, Callable[..., Any]]:
        return _calls(self.module)

    def prepare(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """The call as the library runs it."""
        if self.module is jax_calls:
            return jax_calls.compiled(call)
        if self.compiled:
            torch = importlib.import_module("torch")
            torch._dynamo.reset()
            torch._dynamo.config.recompile_limit = 1000  # beyond which PyTorch would run the call uncompiled
            return torch.compile(call)
        return call

    def gradient(self, call: Callable[..., Any], wrt: tuple[str, ...]) -> Callable[..., Any] | None:
        """The gradient of a call, where the library derives one."""
        make = getattr(self.module, "gradient", None)
        return None if make is None else make(call if self.module is jax_calls else self.prepare(call), wrt)


@cache
def _calls(module: ModuleType) -> dict[str, Callable[..., Any]]:
    return module.calls(importlib.import_module("numpy")) if module is numpy_calls else module.calls()


_ALL = ("float32", "bfloat16", "float16")
LIBRARIES: dict[str, Library] = {
    "numpy": Library("NumPy", "numpy", "numpy", numpy_calls, ("float32", "float16"), "float16"),
    "torch": Library("PyTorch, CPU", "torch", "torch", torch_calls, _ALL),
    "torch:cuda": Library("PyTorch, CUDA", "torch", "torch:cuda", torch_calls, _ALL),
    "compile": Library("torch.compile, CPU", "torch", "torch", torch_calls, _ALL, compiled=True),
    "compile:cuda": Library("torch.compile, CUDA", "torch", "torch:cuda", torch_calls, _ALL, compiled=True),
    "jax": Library("JAX", "jax", "jax", jax_calls, _ALL, flushed=("float32", "bfloat16")),
    "cupy": Library("CuPy", "cupy", "cupy", cupy_calls, ("float32", "float16"), "float16", ("float32",)),
    "onnx": Library("ONNX Runtime", "onnxruntime", "numpy", onnx_calls, ("float32", "float16")),
}
