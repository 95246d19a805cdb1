"""What a verify run found, and how it is shown: results, the progress line, the table and the JSON document."""

from __future__ import annotations

import json
import math
import shlex
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TextIO

import numpy as np

__all__ = ["Failure", "Progress", "Report", "Result", "plain", "table", "told"]


def told(command: Sequence[str]) -> str:
    """A command as documents tell it, without the machine's folders: an absolute path, alone or after ``NAME=``, is its last
    part."""

    def short(word: str) -> str:
        name, _, value = word.partition("=")
        if Path(word).is_absolute():
            return Path(word).name
        return f"{name}={Path(value).name}" if Path(value).is_absolute() else word

    return shlex.join(map(short, command))


@dataclass
class Failure:
    """One case that failed, and the line that repeats it."""

    entry: str
    device: str
    kind: str  # bound, bits, determinism, fault, error, law
    detail: str
    line: str


@dataclass
class Result:
    """One entry point on one device."""

    op: str
    entry: str
    family: str
    which: str
    device: str
    bound: str
    cases: int = 0
    elements: int = 0
    #: worst error as a share of the tolerance, and in float32 spacings of the reference
    share: float = 0.0
    ulp: float = 0.0
    #: the line that repeats the case with that share
    worst_line: str = ""
    #: bits equal to the first device's: None where not compared or not promised
    identical: bool | None = None
    seconds: float = 0.0
    #: the laws of the row that were checked
    laws: int = 0
    failures: list[Failure] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.failures


@dataclass
class Report:
    """A whole run."""

    command: str
    seed: int
    started: str
    devices: dict[str, str]
    build: dict[str, str]
    versions: dict[str, str]
    results: list[Result] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        return bool(self.results) and all(r.ok for r in self.results)

    @property
    def failures(self) -> list[Failure]:
        return [f for r in self.results for f in r.failures]

    def json(self) -> str:
        """The document that ``--json`` writes; infinities become the string "inf"."""
        document = asdict(self)
        document["verdict"] = "pass" if self.ok else "fail"
        document["cases"] = sum(r.cases for r in self.results)
        for d, r in zip(document["results"], self.results, strict=True):
            d["verdict"] = "pass" if r.ok else "fail"
        return json.dumps(plain(document), indent=1, ensure_ascii=False) + "\n"


def plain(x: Any) -> Any:
    """A document JSON can hold: NumPy scalars as numbers, infinities and NaN as text."""
    if isinstance(x, dict):
        return {str(k): plain(v) for k, v in x.items()}
    if isinstance(x, (list, tuple)):
        return [plain(v) for v in x]
    if isinstance(x, np.generic):
        x = x.item()
    return str(x) if isinstance(x, float) and not math.isfinite(x) else x


class Progress:
    """A bar on a terminal; elsewhere a line for every tenth of the work."""

    def __init__(self, total: int, stream: TextIO = sys.stderr):
        self.total, self.done, self.stream = max(total, 1), 0, stream
        self.bar = stream.isatty()
        self.shown = 0.0
        self.start = time.monotonic()

    def step(self, what: str, failed: int) -> None:
        self.done += 1
        now = time.monotonic()
        if self.bar and (now - self.shown > 0.05 or self.done == self.total):
            self.shown = now
            width = max(10, min(40, shutil.get_terminal_size().columns - 50))
            filled = width * self.done // self.total
            text = f"[{'#' * filled}{'.' * (width - filled)}] {self.done}/{self.total} {what}"
            self.stream.write(f"\r{text[:76]:<76}" + (f" {failed} failed" if failed else ""))
            self.stream.flush()
        elif not self.bar and self.done * 10 // self.total > (self.done - 1) * 10 // self.total:
            note = f", {failed} failed" if failed else ""
            self.stream.write(
                f"verify: {self.done * 100 // self.total:3d} % ({now - self.start:.0f} s, {what}{note})\n"
            )
            self.stream.flush()

    def close(self) -> None:
        if self.bar:
            self.stream.write("\r" + " " * 100 + "\r")
            self.stream.flush()


def _number(x: float) -> str:
    if x == 0:
        return "0"
    if not math.isfinite(x) or x >= 1e6:
        return f"{x:.0e}" if math.isfinite(x) else "inf"
    return f"{x:.3f}" if x < 100 else f"{x:.0f}"


def table(results: list[Result]) -> str:
    """The table a run ends with."""
    head = ("op", "device", "cases", "error/bound", "ulp", "same bits", "bound", "verdict")
    rows = [head]
    for r in results:
        bits = {None: "-", True: "yes", False: "NO"}[r.identical]
        rows.append(
            (r.entry, r.device, str(r.cases), _number(r.share), _number(r.ulp), bits, r.bound, "ok" if r.ok else "FAIL")
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    right = {2, 3, 4}

    def text(row: tuple[str, ...]) -> str:
        return "  ".join(
            c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()

    return "\n".join([text(head), "  ".join("-" * w for w in widths), *(text(r) for r in rows[1:])])
