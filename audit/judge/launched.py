"""The kernels of :mod:`audit.judge.triton_kernels`, which need a GPU, and what is wrong with each of them."""

import functools
import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

from audit.judge.kernels import Native

NEEDS = "which need a GPU of NVIDIA's, PyTorch and Triton"
ALL, NARROW, SINGLE = ("float32", "bfloat16", "float16"), ("bfloat16", "float16"), ("float32",)

#: operation -> what is wrong and the formats in which it is, in the order of the kernels' numbers, which begin at 1
DEFECTS: dict[str, tuple[tuple[str, tuple[str, ...]], ...]] = {
    "add": (("the store has no mask", ALL), ("the last block is dropped", ALL), ("strides are ignored", ALL)),
    "gelu": (("the store has no mask", ALL), ("the last block is dropped", ALL), ("the quick form", ALL)),
    "softmax": (("what a mask hides is 0", ALL), ("no maximum is subtracted", ALL),
                ("exponentials are rounded before the sum", NARROW), ("the grid is one too small", ALL),
                ("strides are ignored", ALL)),
    "layer_norm": (("eps is outside the root", ALL), ("what a mask hides counts in the variance", ALL),
                   ("the divisor is a padded length", ALL)),
    "reduce_sum_axis1": (("the load has no mask", ALL), ("the sum is kept in the format of the results", NARROW),
                         ("the last block is dropped", ALL)),
    "matmul": (("inputs in TF32", SINGLE), ("the last block of the sum is left out", ALL),
               ("the sum is kept in the format of the results", NARROW), ("what a mask hides is 1", ALL),
               ("the grid is one too small", ALL), ("strides are ignored", ALL)),
}  # fmt: skip
#: what is said of the exponential of Triton
EXPONENTIAL = {"ulp": "fast", "flush": True}


def present() -> bool:
    """Whether Triton and a GPU are here."""
    if any(importlib.util.find_spec(name) is None for name in ("torch", "triton")):
        return False
    return bool(importlib.import_module("torch").cuda.is_available())


def _kernel(op: str, number: int, dtype: str) -> Callable[..., Any]:
    """The function that launches a kernel; Triton compiles it for the tensors' format."""
    function = getattr(importlib.import_module("audit.judge.triton_kernels"), op)
    return functools.partial(function, defect=number)


def kernels() -> list[Native]:
    """Every kernel in Triton, the right ones first; none without a GPU."""
    if not present():
        return []

    def made(op: str, name: str, number: int, formats: tuple[str, ...]) -> Native:
        options = EXPONENTIAL if op in ("gelu", "softmax") else {}
        return Native("Triton", op, name, functools.partial(_kernel, op, number), None, "torch:cuda", options, formats)

    right = [made(op, "", 0, ALL) for op in DEFECTS]
    wrong = [made(op, name, i, formats) for op, found in DEFECTS.items() for i, (name, formats) in enumerate(found, 1)]
    return [*right, *wrong]
