"""References of operations that kernels are written for and that this project has no kernel of.

They are rows as those of :mod:`tlspec.ops`, with a signature, drawn cases and a float64 reference, and are checked by their
names: ``tlspec.check(my_swiglu, "swiglu")``. Their tolerances come from running error analysis alone, so that ``bound="row"``
has none.

=============  =======================================================================================================
module         operations
=============  =======================================================================================================
``fused``      add + rms_norm, swiglu, geglu
``grouped``    a product of matrices for each group of rows (experts)
``ragged``     attention over sequences of several lengths, packed or in pages
``quantised``  products of 8-bit numbers with scales by row or by block
``sampling``   top-k and top-p thresholds
=============  =======================================================================================================
"""

import importlib
from functools import cache

from tlspec.registry import _ROWS, Op

__all__ = ["FAMILIES", "find", "references"]

FAMILIES = ("fused", "grouped", "ragged", "quantised", "sampling")


@cache
def references() -> tuple[Op, ...]:
    """All references, in the order of the modules.

    Returns
    -------
    tuple of Op
        Rows as those of the registry.
    """
    modules = [importlib.import_module(f"tlspec.references.{family}") for family in FAMILIES]
    return tuple(row for module in modules for row in vars(module)[_ROWS].values())


def find(name: str) -> Op | None:
    """The reference of a name.

    Parameters
    ----------
    name : str
        As :func:`references` has it.

    Returns
    -------
    Op or None
        None where there is none.
    """
    return next((row for row in references() if row.name == name), None)
