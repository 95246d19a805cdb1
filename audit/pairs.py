"""Operations of two arguments against this processor's IEEE 754 arithmetic, bit for bit.

All ordered pairs of about two thousand structured values (signed zeros, infinities, NaN, both ends of every binade and their
neighbours, values with few fraction bits), then random pairs: a quarter uniform bit patterns, the others with exponents
within 26 of each other and with the low fraction bits cleared in half of them, where exact results and ties are frequent.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from audit.checker import BINARY, checker, float_text
from audit.environment import processors
from audit.exhaustive import CHUNK
from audit.work import open_runtimes, walk
from tlrt._terminal import format_table
from tlrt.distributed import Group
from tlrt.verify.run import Runtime

#: parameter of axpy, as ``native/tools/rounding.h`` has it
VALUES: Mapping[str, Mapping[str, float]] = {"axpy": {"c": 0.7}}
SEED = 20_240_711


def structured() -> np.ndarray:
    """The structured values, each once."""
    bits = [
        0, 1, 2, 3, 0x7FFFFF, 0x7FFFFE, 0x800000, 0x800001, 0x7F7FFFFF, 0x7F7FFFFE, 0x7F800000, 0x7FC00000, 0x7F800001,
    ]  # fmt: skip
    for exponent in range(0, 255, 3):
        bits += [exponent << 23 | f for f in (0, 1, 0x400000, 0x7FFFFF)]
    for exponent in range(64, 192, 2):
        bits += [exponent << 23 | f for f in (0x000FFF, 0x001000, 0x555555, 0x7FF000, 0x2AAAAB)]
    for exponent in range(100, 154):
        bits += [exponent << 23 | f for f in (0, 1, 0x7FFFFF, 0x200000, 0x600000, 0x7FFFFE)]
    positive = np.unique(np.array(bits, np.uint32))
    return np.concatenate([positive, positive | np.uint32(0x80000000)]).view(np.float32)


class _Chunk(NamedTuple):
    """Pairs of one operation that are computed together."""

    name: str
    kind: str  # "structured" or "random"
    first: int
    n: int


class Pairs:
    """The campaign over pairs: `count` random ones for each operation and device, after the structured ones."""

    def __init__(
        self, devices: Sequence[str], names: Sequence[str] = BINARY, count: int = 10**9, *, seed: int = SEED,
        workers: int | None = None, chunk: int = CHUNK // 4, kernels: Any = None, budget: float | None = None,
        values: np.ndarray | None = None,
    ):  # fmt: skip
        self.devices, self.names, self.count, self.seed = list(devices), list(names), count, seed
        self.values = np.ascontiguousarray(structured() if values is None else values)
        self.chunk, self.kernels, self.budget = chunk, kernels, budget
        self.workers = workers or processors()
        self.check = checker()
        self.rows: dict[tuple[str, str], dict[str, Any]] = {
            (n, d): {"op": n, "device": d, "structured": 0, "random": 0, "different": 0} for n in names for d in devices
        }
        self.differ: dict[str, int] = dict.fromkeys(names, 0)

    def run(self, group: Group | None = None) -> None:
        """Does all pairs, or as many as the budget allows; ranks share them, and each has all results afterwards."""
        group = group or Group()
        square = self.values.size**2
        chunks = [
            _Chunk(name, kind, first, min(self.chunk, total - first))
            for kind, total in (("structured", square), ("random", self.count))
            for name in self.names
            for first in range(0, total, self.chunk)
        ]
        lock = threading.Lock()

        @contextmanager
        def open_worker() -> Iterator[Callable[[_Chunk], str]]:
            with open_runtimes(self.devices, self.kernels) as runtimes:
                yield partial(self._check_chunk, runtimes, lock)

        chunks = group.share(chunks)
        walk(chunks, open_worker, lambda chunk: chunk.n, "pairs", workers=self.workers, budget=self.budget)
        if group.size > 1:
            self._take_over(group.gather([list(self.rows.values()), self.differ]))

    def _take_over(self, found: Sequence[Any]) -> None:
        """What all ranks counted."""
        for place, row in enumerate(self.rows.values()):
            same = [rows[place] for rows, _ in found]
            row.update({f: sum(r[f] for r in same) for f in ("structured", "random", "different")})
            row.update(next(({"case": r["case"]} for r in same if "case" in r), {}))
        self.differ = {name: sum(differ[name] for _, differ in found) for name in self.differ}

    def _check_chunk(self, runtimes: Sequence[Runtime], lock: threading.Lock, chunk: _Chunk) -> str:
        """Computes and compares one chunk on every device; says what it was."""
        name, kind, first, n = chunk
        a, b = np.empty(n, np.float32), np.empty(n, np.float32)
        if kind == "structured":
            self.check.product(self.values, first, a, b)
        else:
            self.check.pairs(self.seed, first, a, b)
        base: np.ndarray | None = None
        for device, runtime in zip(self.devices, runtimes, strict=True):
            with runtime.upload(a) as x, runtime.upload(b) as y:
                out = runtime.call(name, {"a": x, "b": y}, VALUES.get(name, {}))
                got = out.numpy()
                out.release()
            tally = self.check.binary(name, a, b, got)
            with lock:
                row = self.rows[name, device]
                row[kind] += n
                row["different"] += tally["over"]
                if tally["over"] and "case" not in row:
                    fields = {"a": "mismatch_at", "b": "near_at", "got": "over_got", "expected": "over_want"}
                    row["case"] = {k: float_text(tally[f]) for k, f in fields.items()}
                if base is not None:
                    self.differ[name] += self.check.differ(base, got)[0]
            base = got if base is None else base
        return f"{name}, {kind}"

    def document(self) -> dict[str, Any]:
        """The campaign as one dictionary."""
        rows = []
        for row in self.rows.values():
            complete = row["structured"] == self.values.size**2 and row["random"] == self.count
            verdict = "fail" if row["different"] or self.differ[row["op"]] else "pass" if complete else "incomplete"
            rows.append({**row, "devices_differ": self.differ[row["op"]], "verdict": verdict})
        return {"seed": self.seed, "values": int(self.values.size), "pairs": self.count, "operations": rows}

    @property
    def ok(self) -> bool:
        """Whether nothing failed."""
        return all(r["verdict"] != "fail" for r in self.document()["operations"])


def table(document: Mapping[str, Any]) -> str:
    """The table of a document of pairs."""
    rows = [
        (r["op"], r["device"], r["structured"], r["random"], r["different"], r["devices_differ"], r["verdict"])
        for r in document["operations"]
    ]
    text = format_table(
        ("operation", "device", "structured pairs", "random pairs", "not IEEE", "devices differ", "verdict"), rows
    )
    for r in document["operations"]:
        if "case" in r:
            text += f"\nFAIL {r['op']} on {r['device']}: {r['case']}"
    return text
