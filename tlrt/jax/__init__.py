"""The operations inside JAX: ``tlrt.jax.matmul(A, B)`` runs on this package's kernels under ``jax.jit``, ``jax.grad`` and
``jax.vmap``, on the CPU and on CUDA. Needs JAX 0.5 or newer, which `import tlrt` alone does not."""

from typing import Any

from tlrt._foreign import math, set_math
from tlrt.jax.functions import function, functions

__all__ = ["function", "functions", "math", "set_math"]


def __getattr__(name: str) -> Any:
    return function(name)


def __dir__() -> list[str]:
    return [*__all__, *functions()]
