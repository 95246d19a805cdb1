"""What a row of the benchmark is: the sizes of an operation, its floating-point operations, and its baselines' calls."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """How one operation is timed, and against what."""

    #: dictionaries of dimensions and parameters ("n" for elementwise operations); an input's name with an interval (low, high)
    #: makes that input uniform where N(0, 1) would not do
    sizes: Sequence[dict[str, Any]] = ()
    #: why an operation without sizes is not timed
    reason: str = ""
    #: floating-point operations of one call, f(dimensions by name), where they and not the bytes may set the floor
    flops: Callable[..., float] | None = None
    #: the same computation in NumPy and PyTorch: called with those arguments it names out of np or torch, device, the inputs,
    #: dimensions and parameters; torch_vjp gets the cotangent g, and which gradients are wanted, as well. A function that returns
    #: a function has prepared what a model keeps between calls, and what it returned is timed
    numpy: Callable[..., Any] | None = None
    torch: Callable[..., Any] | None = None
    torch_vjp: Callable[..., Any] | None = None
    #: bytes that PyTorch's call may write out besides its results, f(dimensions by name), where they can be far more than those
    torch_bytes: Callable[..., float] | None = None
