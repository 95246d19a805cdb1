"""Failures that were looked at. Each is a difference of a library from the row, with its reason; a failure without an entry here
makes the league fail. docs/league.md shows the smallest program for each that is a defect."""

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any


@dataclass(frozen=True)
class Explained:
    """Findings of these kinds ("value", "error", ...) of a row of a library, in one direction ("forward", "vjp") and format, ``*``
    for all."""

    library: str
    op: str
    kinds: str
    reason: str
    which: str = "*"
    dtype: str = "*"


EXPLAINED: tuple[Explained, ...] = ()


def explanation(line: Mapping[str, Any]) -> str:
    """Why a line of evidence fails: the reasons of its findings; "" where one has none."""
    reasons: list[str] = []
    for kind in line["kinds"]:
        found = [
            e.reason
            for e in EXPLAINED
            if kind in e.kinds.split()
            and any(fnmatchcase(line["library"], name) for name in e.library.split())
            and line["op"] in e.op.split()
            and fnmatchcase(line["which"], e.which)
            and any(fnmatchcase(line["dtype"], name) for name in e.dtype.split())
        ]
        if not found:
            return ""
        reasons += [r for r in found[:1] if r not in reasons]
    return " ".join(reasons)
