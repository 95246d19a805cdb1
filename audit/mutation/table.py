"""All the defects, numbered by their place."""

from __future__ import annotations

from audit.mutation.defect import Defect
from audit.mutation.kernels import FORMULA, KERNELS
from audit.mutation.runtime import ENTRY, PYTHON, SPEC

__all__ = ["DEFECTS", "Defect"]

DEFECTS = [*FORMULA, *KERNELS, *ENTRY, *SPEC, *PYTHON]
