"""Kernels that compute nothing, of every row: zeros, the first input again, an earlier result."""

from collections.abc import Callable
from typing import Any

import numpy as np

from tlspec.judge import check
from tlspec.registry import Op

Kernel = Callable[..., Any]


def zeros(inputs: list[Any], outputs: list[np.ndarray], right: Kernel) -> None:
    for out in outputs:
        out[...] = 0


def first_input(inputs: list[Any], outputs: list[np.ndarray], right: Kernel) -> None:
    """The first input, repeated or cut off where the output has another size."""
    x = next((x for x in inputs if isinstance(x, np.ndarray)), np.zeros(1))
    for out in outputs:
        out[...] = np.resize(x, out.shape) if x.size else 0


def earlier_result() -> Kernel:
    """The result of the call before where that had the shapes of this one, else the right one."""
    kept: dict[str, Any] = {"shapes": None, "results": []}

    def kernel(inputs: list[Any], outputs: list[np.ndarray], right: Kernel) -> None:
        shapes = [np.shape(x) for x in [*inputs, *outputs] if isinstance(x, np.ndarray)]
        with np.errstate(all="ignore"):
            made = right()
        results = list(made) if isinstance(made, tuple) else [made]
        for out, result in zip(outputs, kept["results"] if shapes == kept["shapes"] else results, strict=True):
            out[...] = result
        kept.update(shapes=shapes, results=results)

    return kernel


#: by what they return
KERNELS: dict[str, Callable[[], Kernel]] = {
    "zeros": lambda: zeros, "its first input": lambda: first_input, "an earlier result": earlier_result,
}  # fmt: skip
#: where such a kernel is a right one
RIGHT = {("broadcast_vec_to_rows", "its first input"): "the vector, repeated, is the result"}


def caught(row: Op, name: str) -> bool:
    """Whether the judge fails such a kernel of a row."""
    sig, kernel = row.signature, KERNELS[name]()
    names = [*(a.name for a in sig.inputs), *(p.name for p in sig.params), *(a.name for a in sig.outputs)]

    def run(*given: Any) -> None:
        outputs = list(given[len(given) - len(sig.outputs) :])
        inputs = list(given[: len(given) - len(sig.outputs)])
        kernel(inputs, outputs, lambda: row(*inputs))

    return check(run, row, arguments=", ".join(names), sensitive=False, isolate=False, fail_fast=True).verdict == "fail"
