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
    draws,
    gamma,
    images,
    jacobi,
    lu,
    quantize,
    scatters,
    sparse,
    special,
    triangular,
)
from tlrt.torch.routes.base import (
    ROUTES,
    has_kernel,
    operator_names,
    pass_functions,
    register_kernels,
    sparse_names,
)
from tlrt.torch.routes.determined import DETERMINED, MADE

__all__ = [
    "DETERMINED",
    "ROUTES",
    "bags",
    "boxes",
    "ctc",
    "decompositions",
    "double",
    "double_sums",
    "draws",
    "gamma",
    "images",
    "jacobi",
    "lu",
    "quantize",
    "register",
    "scatters",
    "sparse",
    "special",
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
    for function, *sets in (
        (library.tlrt_torch_determined, DETERMINED),
        (library.tlrt_torch_beside, DETERMINED | MADE, sparse_names()),
    ):
        encoded = [[n.encode() for n in sorted(names)] for names in sets]
        function(*(x for names in encoded for x in ((ctypes.c_char_p * len(names))(*names), len(names))))
