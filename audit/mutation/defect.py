"""What a defect is: a file, a text it holds exactly once, what becomes of it, what that breaks, and the tests that should see it.

`tests` are words for pytest, tried first; the whole suite follows where they pass. `ops` limits the drawn tests to rows.
A defect with `same` changes no behaviour, for the reason given, and is expected to survive.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Defect"]


@dataclass(frozen=True)
class Defect:
    file: str
    old: str
    new: str
    breaks: str
    ops: str = ""
    tests: str = "tests/kernels"
    same: str = ""
