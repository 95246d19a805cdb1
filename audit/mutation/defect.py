"""What a defect is: a file, a text it holds exactly once, what becomes of it, what that breaks, and the tests that should see it.

`tests` are words for pytest, tried first; the whole suite follows where they pass. `ops` limits the drawn tests to rows.
A defect with `same` changes no behaviour, for the reason given, and is expected to survive.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Defect", "defects"]


@dataclass(frozen=True)
class Defect:
    file: str
    tests: str
    old: str
    new: str
    breaks: str
    ops: str = ""
    same: str = ""


def defects(file: str, rows: Sequence[tuple[str, ...]], tests: str = "tests/kernels") -> list[Defect]:
    """The defects of one file that the same tests should see; a row is `old`, `new`, `breaks` and perhaps `ops` and `same`."""
    return [Defect(file, tests, *row) for row in rows]
