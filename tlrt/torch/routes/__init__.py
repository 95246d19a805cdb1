"""Operators of PyTorch's in a block, beside those of native/torch: which have a route in Python, and which need none."""

from __future__ import annotations

import ctypes
from functools import cache

from tlrt.torch import shim
from tlrt.torch.routes import (
    bags,
    boxes,
    ctc,
    decompositions,
    double,
    double_sums,
    gamma,
    images,
    jacobi,
    lu,
    quantize,
    scatters,
    triangular,
)
from tlrt.torch.routes.base import ROUTES, has_kernel, operator_names, pass_functions, register_kernels
from tlrt.torch.routes.determined import DETERMINED, MOVED

__all__ = [
    "DETERMINED",
    "ROUTES",
    "bags",
    "boxes",
    "ctc",
    "decompositions",
    "double",
    "double_sums",
    "gamma",
    "images",
    "jacobi",
    "lu",
    "quantize",
    "register",
    "scatters",
    "triangular",
]


@cache
def register() -> None:
    """Gives every operator its place at the block's key, once a process."""
    library = shim.load()
    routed = {
        n.partition(".")[0].removeprefix("aten::") for n in operator_names() if n.startswith("aten::") and has_kernel(n)
    }
    # operators that are made of their own form with an argument `out` keep it
    register_kernels(sorted((routed - DETERMINED) | {"add", "sub", "div", "median", "nanmedian"}))
    pass_functions()
    for function, names in ((library.tlrt_torch_determined, DETERMINED), (library.tlrt_torch_beside, MOVED)):
        function((ctypes.c_char_p * len(names))(*(n.encode() for n in sorted(names))), len(names))
