"""Kernels that compute nothing, of every row: zeros, the first input again, and the result of the call before."""

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


class Before:
    """The result of the call before where that had the shapes of this one, else the right one."""

    def __init__(self) -> None:
        self.shapes: list[tuple[int, ...]] = []
        self.kept: list[np.ndarray] = []

    def __call__(self, inputs: list[Any], outputs: list[np.ndarray], right: Kernel) -> None:
        shapes = [np.shape(x) for x in [*inputs, *outputs] if isinstance(x, np.ndarray)]
        with np.errstate(all="ignore"):
            made = right()
        results = [
            np.broadcast_to(m, o.shape)
            for m, o in zip(made if isinstance(made, tuple) else (made,), outputs, strict=True)
        ]
        for out, result in zip(outputs, self.kept if shapes == self.shapes else results, strict=True):
            out[...] = result
        self.shapes, self.kept = shapes, [r.copy() for r in results]


#: by what they return
KERNELS: dict[str, Callable[[], Kernel]] = {
    "zeros": lambda: zeros, "the first input": lambda: first_input, "the call before": Before,
}  # fmt: skip
#: where such a kernel is a right one
RIGHT = {("broadcast_vec_to_rows", "the first input"): "the vector, repeated, is the result"}


def caught(row: Op, name: str) -> bool:
    """Whether the judge fails such a kernel of a row."""
    sig, kernel = row.signature, KERNELS[name]()
    names = [*(a.name for a in sig.inputs), *(p.name for p in sig.params), *(a.name for a in sig.outputs)]

    def run(*given: Any) -> None:
        outputs = list(given[len(given) - len(sig.outputs) :])
        inputs = list(given[: len(given) - len(sig.outputs)])
        kernel(inputs, outputs, lambda: row(*inputs))

    return check(run, row, arguments=", ".join(names), sensitive=False).verdict == "fail"
