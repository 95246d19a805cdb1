"""Samples: what a function is called with, made sample by sample, so that one sample has the same values in every batch."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tlspec.arrays import Arrays
from tlspec.draw.data import generator
from tlspec.expressions import evaluate
from tlspec.formats import FORMATS, Format
from tlspec.signature import Param, split_list
from tlspec.signature import Signature as Grammar

#: the names of the axes that a text of inputs may vary
BATCH, SEQUENCE = "batch", "seq"
#: the length of a named axis of which nothing is said, and of the sequence
LENGTH, STEPS = 96, 48
#: what stands in the samples beside the one that is looked at
NEIGHBOURS = ("copies", "other", "zeros", "large", "nan")


@dataclass(frozen=True)
class Slot:
    """One array of a call. `batch` and `sequence` are the axes that vary, or -1."""

    name: str
    shape: tuple[int, ...]
    kind: str  # float, index, bool
    batch: int
    sequence: int
    #: indices are below this
    high: int = 2
    #: the number format of a float array; None is that of the call
    format: Format | None = None


def slots_of(text: str, lengths: Mapping[str, int]) -> tuple[list[Slot], dict[str, Any]]:
    """The arrays and the parameters of a text such as ``"tokens: index[batch, seq] < 1000, x[batch, seq, 64], w[64, 32]"``.

    Axes called `batch` and `seq` are varied; those of other names have `lengths`, or 96. Kinds are f32 (or none), index and bool.
    Raises ValueError."""
    arrays, _, params = text.partition(";")
    slots = []
    for item in split_list(arrays):
        found = re.fullmatch(r"\s*(\w+)\s*(?::\s*(\w+))?\s*\[(.*)\]\s*(?:<\s*(.+))?", item)
        if found is None:
            raise ValueError(f"inputs: got {item!r}, expected NAME[AXES], NAME: index[AXES] < N or NAME: bool[AXES]")
        name, kind, axes, high = found.groups()
        kinds = {None: "float", "f32": "float", "index": "index", "u32": "index", "bool": "bool"}
        if kind not in kinds:
            raise ValueError(f"inputs: {name}: got the kind {kind}, expected f32, index or bool")
        if kinds[kind] == "index" and high is None:
            raise ValueError(f"inputs: {name}: got no limit, expected {name}: index[{axes}] < N")
        names = list(split_list(axes))
        known = {SEQUENCE: lengths.get(SEQUENCE, STEPS), BATCH: 1, **lengths}
        shape = [
            1 if a == BATCH else known.get(a, LENGTH) if a.isidentifier() else int(evaluate(a, known)) for a in names
        ]
        batch, sequence = (names.index(a) if a in names else -1 for a in (BATCH, SEQUENCE))
        slots.append(Slot(name, tuple(shape), kinds[kind], batch, sequence, int(evaluate(high, known)) if high else 2))
    if not any(s.batch >= 0 for s in slots):
        raise ValueError(f"inputs={text!r}: got no axis called batch, expected one, as in x[batch, 64]")
    values: dict[str, Any] = {}
    for p in Grammar.parse(f"x[1];{params} -> out[1]").params if params.strip() else ():
        values[p.name] = _default(p)
    return slots, values


def _default(p: Param) -> Any:
    if p.default is None:
        raise ValueError(f"inputs: {p.name}: got no value, expected {p.name}: {p.kind} = VALUE")
    return float(p.default) if p.kind == "float" else int(p.default)


def slots_like(arrays: Sequence[Any], library: Arrays, sequence: int | None = None) -> list[Slot]:
    """The arrays of an example call: the first axis is the batch of all whose first length is that of the first array.
    `sequence` is the axis of the sequence in these."""
    slots: list[Slot] = []
    length = library.shape(arrays[0])[0] if library.shape(arrays[0]) else 0
    for i, x in enumerate(arrays):
        shape, dtype = library.shape(x), library._adopt(x)[2]
        batch = 0 if shape and shape[0] == length else -1
        kind = "float" if dtype in FORMATS else "bool" if dtype == "bool" else "index"
        high = int(library.values(x).max(initial=0)) + 1 if kind == "index" else 2
        along = sequence if batch == 0 and sequence is not None and len(shape) > sequence else -1
        slots.append(
            Slot(f"x{i}", (1, *shape[1:]) if batch == 0 else shape, kind, batch, along, high, FORMATS.get(dtype))
        )
    return slots


@dataclass(frozen=True)
class Samples:
    """The arrays of calls, as numbers in host memory."""

    slots: Sequence[Slot]
    seed: int

    @property
    def length(self) -> int:
        """The length of the sequence; 0 where there is none."""
        return next((s.shape[s.sequence] for s in self.slots if s.sequence >= 0), 0)

    def of_length(self, length: int) -> "Samples":
        """The same with sequences of another length."""
        slots = [s if s.sequence < 0 else replace(s, shape=tuple(length if a == s.sequence else n for a, n in enumerate(s.shape)))
                 for s in self.slots]  # fmt: skip
        return replace(self, slots=slots)

    def values(self, ids: Sequence[int], content: str = "own", kept: int = -1) -> list[np.ndarray]:
        """The arrays of a batch of these samples. All but the sample at place `kept` have another `content`."""
        made = []
        for slot in self.slots:
            if slot.batch < 0:
                made.append(self._draw(slot, "shared"))
                continue
            drawn = [ids[kept]] * len(ids) if content == "copies" else ids
            parts = [self._draw(slot, i, "own" if place == kept else content) for place, i in enumerate(drawn)]
            made.append(np.concatenate(parts, axis=slot.batch))
        return made

    def _draw(self, slot: Slot, sample: object, content: str = "own") -> np.ndarray:
        rng = generator("sample", self.seed, slot.name, sample, content if content == "other" else "")
        if slot.kind == "bool":
            return np.ones(slot.shape, np.bool_)
        if slot.kind == "index":
            drawn = rng.integers(0, slot.high, slot.shape)
            return np.zeros_like(drawn) if content == "zeros" else drawn
        x = rng.standard_normal(slot.shape)
        return {"zeros": np.zeros_like(x), "large": x * 2.0**12, "nan": np.full_like(x, np.nan)}.get(content, x)

    def padded(self, sample: int, more: int, content: str) -> list[np.ndarray]:
        """A sample alone with `more` positions behind its own, which a mask leaves out."""
        made = []
        for slot, x in zip(self.slots, self.values([sample]), strict=True):
            if slot.sequence >= 0:
                behind = replace(slot, shape=tuple(more if a == slot.sequence else n for a, n in enumerate(slot.shape)))
                pad = self._draw(behind, (sample, "behind"), content)
                x = np.concatenate([x, np.zeros_like(pad) if slot.kind == "bool" else pad], axis=slot.sequence)
            made.append(x)
        return made

    def piece(self, values: Sequence[np.ndarray], start: int, stop: int) -> list[np.ndarray]:
        """A part of the sequence."""
        return [
            x if s.sequence < 0 else x.take(range(start, stop), s.sequence)
            for s, x in zip(self.slots, values, strict=True)
        ]


#: how an array may lie in memory, and the axes that it has at least
LAYOUTS = {"every second element": 1, "last axes exchanged": 2, "channels last": 3, "one element further": 1}


def laid_out(library: Arrays, x: np.ndarray, format: Format, layout: str) -> Any:
    """An array of the library with these numbers and this layout; contiguous where the layout has no meaning for its axes."""
    if layout == "every second element" and x.ndim:
        return library.make(x, format, strided=True)
    if layout == "last axes exchanged" and x.ndim > 1:
        return library.make(np.ascontiguousarray(x.swapaxes(-1, -2)), format).swapaxes(-1, -2)
    if layout == "channels last" and x.ndim > 2:
        made = library.make(np.ascontiguousarray(np.moveaxis(x, 1, -1)), format)
        for axis in range(x.ndim - 1, 1, -1):
            made = made.swapaxes(axis - 1, axis)
        return made
    if layout == "one element further" and x.ndim:
        return library.make(np.append(0.0, x), format)[1:].reshape(x.shape)
    return library.make(x, format)
