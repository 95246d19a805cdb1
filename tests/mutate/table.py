"""All the defects, numbered by their place."""

from __future__ import annotations

from tests.mutate.defect import Defect
from tests.mutate.kernels import FORMULA, KERNELS
from tests.mutate.runtime import ENTRY, PYTHON, SPEC

__all__ = ["DEFECTS", "Defect"]

DEFECTS = [*FORMULA, *KERNELS, *ENTRY, *SPEC, *PYTHON]
