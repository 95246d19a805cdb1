"""The kernels of ``kernels.c``, compiled for a number format when they are asked for, and what is wrong with each of them."""

import ctypes
import functools
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from audit.judge.kernels import Native
from tlspec import registry

SOURCE = Path(__file__).with_name("kernels.c")
#: the format that the source is compiled for
FORMATS = {"float32": 32, "float16": 16, "bfloat16": 8}
NEEDS = "which need a C compiler"
STRIDES = "strides are ignored"

#: operation -> what is wrong, in the order of the source's numbers, which begin at 1
DEFECTS: dict[str, tuple[str, ...]] = {
    "add": ("the tail of vectors of 8 is not written", "one element beyond the output is written", "lengths have 16 bits",
            "every fifth call the last element is that of the call before"),
    "gelu": ("results are written over the input, too", "the tail of vectors of 8 has the other form"),
    "softmax": ("the tail of vectors of 32 is no part of the sum", "no maximum is subtracted",
                "the sum goes on from the row before", "one row too many is written", "the maximum is that of the first tile",
                "the edges of tiles count twice", "the sum is kept in a narrow format"),
    "layer_norm": ("eps is outside the root", "an unbiased variance", "the divisor is a padded length",
                   "the variance in one pass", "the sum is kept in a narrow format"),
    "matmul": ("the last tile of the sum is left out", "the stride of B is that of A", "what is in the output is added to",
               "inputs in TF32", "the sum is kept in a narrow format", "an empty sum is not written",
               "the edges of tiles count twice", "a square B is read transposed"),
    "reduce_sum": ("lengths have 16 bits", "the sum begins with what a call left"),
    "reduce_sum_axis1": ("the sum of an empty row is not initialised", "the tail of vectors of 32 is no part of the sum",
                         "the sum is kept in a narrow format", "one element beyond the output is written"),
    "cross_entropy_rows": ("no maximum is subtracted", "labels have 8 bits", "no smoothing", "a label out of range is clamped"),
    "conv2d": ("one stride serves both axes", "the mask of the padding is off by one", "the kernel is flipped",
               "the bias of the first channel", "the sum is kept in a narrow format"),
    "max_pool2d": ("padding counts as 0", "it begins at -1e30", "the last column of a window is left out"),
    "cumsum": ("never reversed", "starts anew every 64", "exclusive", "the sum is kept in a narrow format"),
    "gather_rows": ("an index out of range is clamped", "places have 16 bits"),
}  # fmt: skip
#: defects that the rounding of narrower formats hides: of coarse numbers a cancellation, of few bits TF32, and -1e30 is -inf
FINE = {("layer_norm", "the variance in one pass"), ("matmul", "inputs in TF32"), ("max_pool2d", "it begins at -1e30")}


def compiler() -> str | None:
    """The C compiler; None where there is none."""
    return shutil.which("gcc") or shutil.which("cc")


@functools.cache
def library(dtype: str) -> ctypes.CDLL:
    """The source compiled for a format, without the contractions and reorderings that a compiler may make."""
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/kernels.so"
        words = [
            "-O2",
            "-ffp-contract=off",
            "-shared",
            "-fPIC",
            f"-DFORMAT={FORMATS[dtype]}",
            "-o",
            path,
            str(SOURCE),
            "-lm",
        ]
        subprocess.run([str(compiler()), *words], check=True)
        return ctypes.CDLL(path)


def kernel(op: str, number: int, dtype: str, *, dense: bool = True) -> Callable[..., None]:
    """A function of the library: inputs, outputs, dimensions, parameters; of an elementwise row the number of elements."""
    function = getattr(library(dtype), op)
    elementwise = registry.get(op).signature.elementwise

    def run(*given: Any) -> None:
        passed, alive = list[Any](), list[np.ndarray]()
        for x in given:
            if isinstance(x, (np.ndarray, list)):
                alive.append(np.ascontiguousarray(x) if dense else np.asarray(x))
                passed += [
                    ctypes.c_void_p(alive[-1].ctypes.data),
                    *([ctypes.c_long(len(x))] if isinstance(x, list) else []),
                ]
            else:
                passed.append(None if x is None else (ctypes.c_float if isinstance(x, float) else ctypes.c_long)(x))
        function(*passed, *([ctypes.c_long(given[-1].size)] if elementwise else []), ctypes.c_int(number))

    return run


def kernels() -> list[Native]:
    """Every kernel in C, the right ones first; none without a compiler."""
    if compiler() is None:
        return []

    def made(op: str, name: str, number: int, **words: Any) -> Native:
        sig = registry.get(op).signature
        own = [
            *(a.name for a in (*sig.inputs, *sig.outputs)),
            *(d.lstrip("*") for d in sig.dims),
            *(p.name for p in sig.params),
        ]
        formats = ("float32",) if (op, name) in FINE else tuple(FORMATS)
        return Native("C", op, name, lambda dtype: kernel(op, number, dtype, **words), ", ".join(own), formats=formats)

    right = [made(op, "", 0) for op in DEFECTS]
    wrong = [made(op, name, i) for op, names in DEFECTS.items() for i, name in enumerate(names, 1)]
    return [*right, *wrong, *(made(op, STRIDES, 0, dense=False) for op in ("add", "softmax", "matmul"))]
