"""Cases of earlier checks, and what was computed of them.

Kernels of one operation are checked one after another, on the same cases: arrays, references and tolerances depend on the case,
the format and the model alone. What was used last stays in memory, up to :data:`MOST` bytes; whoever uses it changes nothing."""

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from threading import RLock
from typing import Any

import numpy as np

from tlspec.draw.cases import Case, Expected, draw_case
from tlspec.registry import Op

#: bytes that are kept: somewhat more than those of the default cases of an operation and of its gradient
MOST = 2**29
#: what a case takes beside its arrays, roughly
ALONE = 2**13


@dataclass(eq=False)
class _Entry:
    key: Hashable
    case: Case
    #: the case from which it is derived, which may share arrays with it
    origin: Case | None = None
    #: what was computed of the case, by what it depends on besides
    found: dict[Hashable, dict[str, Any]] = field(default_factory=dict)
    bytes: int = 0


class _Kept:
    """Entries by their keys and by the identities of their cases, those used last at the end. Threads may check kernels at the
    same time: of two that make the same case at once the second uses that of the first."""

    def __init__(self) -> None:
        self.entries: dict[Hashable, _Entry] = {}
        self.of_case: dict[int, _Entry] = {}
        self.bytes = 0
        self.lock = RLock()

    def get(self, key: Hashable, origin: Case | None, make: Callable[[], Case]) -> Case:
        made = make() if key not in self.entries else None  # outside of the lock, as it takes long
        with self.lock:
            entry = self.entries.pop(key, None)
            if entry is None:  # let go of meanwhile where nothing was made
                entry = _Entry(key, make() if made is None else made, origin)
                self.of_case[id(entry.case)] = entry
            self.entries[key] = entry
            if not entry.bytes:
                self.weigh(entry)
            return entry.case

    def weigh(self, entry: _Entry) -> None:
        """Counts what an entry holds, and lets go of those that were not used for longest where there is too much."""
        shared = {id(x) for x in _arrays(entry.origin)}
        own = {id(x): x.nbytes for x in _arrays((entry.case, entry.found)) if id(x) not in shared}
        with self.lock:
            if self.entries.get(entry.key) is not entry:
                return  # let go of meanwhile, with what it held
            before, entry.bytes = entry.bytes, sum(own.values()) + ALONE
            self.bytes += entry.bytes - before
            for old in list(self.entries.values()) if self.bytes > MOST else ():
                del self.entries[old.key]
                self.of_case.pop(id(old.case), None)  # a case may be derived from itself, and have two entries
                self.bytes -= old.bytes
                if self.bytes <= MOST:
                    break


_kept = _Kept()


def drawn(op: Op, seed: int, data: str, size: str, which: str) -> Case:
    """As :func:`tlspec.drawn.draw_case`; a row that was made for one check is not kept."""
    if op.family == "user":
        return draw_case(op, seed, data, size, which)
    return _kept.get((op, seed, data, size, which), None, lambda: draw_case(op, seed, data, size, which))


def derived(case: Case, key: Hashable, make: Callable[[], Case]) -> Case:
    """What `make` makes of a case and of nothing else but what the key tells."""
    entry = _kept.of_case.get(id(case))
    return make() if entry is None else _kept.get((entry.key, key), case, make)


def found_of(case: Case, key: Hashable) -> dict[str, Any] | None:
    """Where to keep what follows from a case and the key; None where the case itself is not kept."""
    entry = _kept.of_case.get(id(case))
    return None if entry is None else entry.found.setdefault(key, {})


def weigh(case: Case) -> None:
    """Counts what has been found of a case."""
    if (entry := _kept.of_case.get(id(case))) is not None:
        _kept.weigh(entry)


def _arrays(x: Any) -> Iterator[np.ndarray]:
    """The arrays in cases, expectations and collections of these."""
    if isinstance(x, np.ndarray):
        yield x
    elif isinstance(x, Case):
        yield from _arrays((x.inputs, x.cotangents, x.given))
    elif isinstance(x, Expected):
        yield from _arrays((x.outputs, x.tolerances, x.bits))
    elif isinstance(x, (dict, list, tuple)):
        for part in x.values() if isinstance(x, dict) else x:
            yield from _arrays(part)
