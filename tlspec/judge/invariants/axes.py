"""What is varied: for each axis pairs of calls, whose results are compared bit by bit."""

import functools
import hashlib
import inspect
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tlspec import arrays as libraries
from tlspec.judge.invariants.again import Again
from tlspec.judge.invariants.report import Axis
from tlspec.judge.invariants.samples import LAYOUTS, NEIGHBOURS, Samples
from tlspec.judge.invariants.subject import Result, Subject, difference, first_part, part_of_batch, results_of
from tlspec.judge.invariants.trace import first_difference

AXES = ("repeat", "batch", "neighbours", "padding", "chunking", "threads", "layout", "device", "restart")
#: sizes of batches, and that in which everything else is tried; kernels are often chosen at powers of two
BATCHES, ONE_BATCH = (2, 4, 7, 8, 16, 32, 64), 7
#: a larger batch holds these samples more than once
DISTINCT = 32
#: positions behind a sample's own
PADDINGS = (1, 5, 16)
#: further lengths of a sequence: a step of decoding, and a product of few rows, for which libraries have kernels of their own
SHORT = (1, 5)
REPEATS = 5
Call = Callable[[], Any]


@dataclass
class Pair:
    """Two ways to compute the same. `part` takes from the other one's results what the first one has."""

    name: str
    one: Sequence[Result]
    other: Sequence[Result]
    part: Callable[..., Any] = first_part
    #: the calls that gave the results, to be watched; and one of the sample alone, where both are parts of larger results
    calls: tuple[Call, Call] | None = None
    alone: Call | None = None


class Trials:
    """The pairs of calls of each axis."""

    def __init__(self, subject: Subject, samples: Samples, causal: bool, step: Callable[..., Any] | None, again: Again):
        self.subject, self.samples, self.causal, self.step, self.again = subject, samples, causal, step, again
        self.batch_values = samples.values(range(ONE_BATCH))
        self.lengths = [samples, *(samples.of_length(n) for n in SHORT if samples.length > n)]
        self.kept: dict[tuple[int, int], list[Result]] = {}

    def axis(self, name: str) -> Axis:
        """The outcome of one axis."""
        axis = Axis(name)
        for pair in getattr(self, name)(axis):
            text, compared = difference(pair.one, pair.other, pair.part)
            axis.trials += bool(compared)
            axis.differing += bool(text)
            if text and not axis.first:
                axis.first, axis.operation = f"{pair.name}: {text}", self._operation(pair)
        if not axis.trials and not axis.left_out:
            axis.left_out = "no result has an axis of the batch"
        return axis

    def _operation(self, pair: Pair) -> str:
        """The first operator that differs, seen by calling again: a fault that comes and goes may stay away."""
        if self.subject.torch is None or pair.calls is None:
            return ""
        for _ in range(3):
            if found := first_difference(*pair.calls, pair.part, self.subject.function, pair.alone):
                return found
        return "none while all operators are watched"

    def _pair(
        self, name: str, one: Call, other: Call, part: Callable[..., Any] = first_part, kept: list[Result] | None = None
    ) -> Pair:
        first = kept if kept is not None else self._results(one)
        return Pair(name, first, self._results(other), part, (one, other))

    def _results(self, call: Call) -> list[Result]:
        return results_of(self.subject.library, call())

    def _alone(self, sample: int, samples: Samples | None = None) -> tuple[Call, list[Result]]:
        of = samples or self.samples
        call = self.subject.call(of.values([sample]))
        if (sample, of.length) not in self.kept:
            self.kept[sample, of.length] = self._results(call)
        return call, self.kept[sample, of.length]

    # ---- the axes

    def repeat(self, axis: Axis) -> Iterator[Pair]:
        call = self.subject.call(self.batch_values)
        kept = self._results(call)
        for i in range(REPEATS):
            if i == 2:  # after a call on other numbers
                self._results(self.subject.call(self.samples.values(range(100, 100 + ONE_BATCH))))
            yield self._pair(f"call {i + 2} of the same", call, call, kept=kept)

    def batch(self, axis: Axis) -> Iterator[Pair]:
        for samples, (i, size) in itertools.product(self.lengths, enumerate(BATCHES)):
            ids = [k % DISTINCT for k in range(size)][:: -1 if i % 2 else 1]  # every second size backwards
            whole = self.subject.call(samples.values(ids))
            results, steps = self._results(whole), f", {samples.length} positions" if samples.length else ""
            for place, sample in enumerate(ids):
                call, kept = self._alone(sample, samples)
                yield Pair(
                    f"a sample alone and at place {place} of {size}{steps}",
                    kept,
                    results,
                    part_of_batch(place),
                    (call, whole),
                )

    def neighbours(self, axis: Axis) -> Iterator[Pair]:
        floats = any(s.kind == "float" and s.batch >= 0 for s in self.samples.slots)
        before = self.subject.call(self.batch_values)
        kept, (single, alone) = self._results(before), self._alone(0)
        for content, place in itertools.product(NEIGHBOURS if floats else NEIGHBOURS[:3], (0, 3, 6)):
            after = self.subject.call(self.samples.values(range(ONE_BATCH), content, place))
            own = part_of_batch(place)
            one, other = (_parts(alone, results, own) for results in (kept, self._results(after)))
            yield Pair(
                f"sample {place} of {ONE_BATCH}, beside other samples and beside {content}",
                one,
                other,
                own,
                (before, after),
                single,
            )

    def padding(self, axis: Axis) -> Iterator[Pair]:
        slots = [s for s in self.samples.slots if s.sequence >= 0]
        if not slots or not (self.causal or any(s.kind == "bool" for s in slots)):
            why = "no mask: give one (mask: bool[batch, seq]), or causal=True"
            axis.left_out = why if slots else "no array has an axis called seq"
            return
        for sample, more, content in itertools.product(range(3), PADDINGS, NEIGHBOURS[1:4]):
            call, kept = self._alone(sample)
            padded = self.subject.call(self.samples.padded(sample, more, content))
            yield self._pair(
                f"sample {sample} as it is, and with {more} positions of {content} behind", call, padded, kept=kept
            )

    def chunking(self, axis: Axis) -> Iterator[Pair]:
        step = self.step or _cached(self.subject.function)
        slot = next((s for s in self.samples.slots if s.sequence >= 0), None)
        if step is None or slot is None:
            axis.left_out = "no step= and no past_key_values" if step is None else "no array has an axis called seq"
            return
        length = slot.shape[slot.sequence]
        ways = {f"in two, cut at {n}": [n] for n in (1, length // 2, length - 1)} | {
            "one position at a time": list(range(1, length))
        }
        for sample in range(2):
            values = self.samples.values([sample])
            whole = self._in_pieces(step, values, [0, length], slot.sequence)
            for name, cuts in ways.items():
                pieces = self._in_pieces(step, values, [0, *cuts, length], slot.sequence)
                yield Pair(f"sample {sample} in one piece and {name}", whole, pieces)

    def _in_pieces(
        self, step: Callable[..., Any], values: Sequence[np.ndarray], cuts: Sequence[int], sequence: int
    ) -> list[Result]:
        """The results of the parts of a sequence, joined along the axis that has a part's length: that of the sequence, if
        several have."""
        state, parts = None, []
        for start, stop in itertools.pairwise(cuts):
            given = self.subject.arrays(self.samples.piece(values, start, stop))
            returned, state = self.subject.inside(functools.partial(step, *given, state, **self.subject.params))
            parts.append(results_of(self.subject.library, returned))
        lengths = [b - a for a, b in itertools.pairwise(cuts)]
        joined = []
        for group in zip(*parts, strict=True):
            shapes = [r.patterns.shape for r in group]
            axes = [a for a in range(len(shapes[0])) if [s[a] for s in shapes] == lengths]
            if not axes:
                raise ValueError(
                    f"chunking: {group[0].name}: got a result of shape {shapes[0]}, expected an axis of {lengths[0]} positions"
                )
            axis = sequence if sequence in axes else axes[0]
            joined.append(Result(group[0].name, np.concatenate([r.patterns for r in group], axis), group[0].format))
        return joined

    def threads(self, axis: Axis) -> Iterator[Pair]:
        torch = self.subject.torch
        if torch is None:
            axis.left_out = "the library sets them when a process starts: see restart"
            return
        usual = torch.get_num_threads()

        def run(call: Call, n: int) -> Call:
            def threaded() -> Any:
                torch.set_num_threads(n)
                try:
                    return call()
                finally:
                    torch.set_num_threads(usual)

            return threaded

        for samples, n in itertools.product(self.lengths, sorted({2, 3, usual, os.cpu_count() or 1} - {1})):
            call = self.subject.call(samples.values(range(ONE_BATCH)))
            yield self._pair(f"1 thread and {n}", run(call, 1), run(call, n))

    def layout(self, axis: Axis) -> Iterator[Pair]:
        if not self.subject.library.mutable:
            axis.left_out = f"{self.subject.library.library} has no strides"
            return
        call, rank = self.subject.call(self.batch_values), max(x.ndim for x in self.batch_values)
        kept = self._results(call)
        for layout, least in LAYOUTS.items():
            if rank < least:
                continue
            other = self.subject.call(self.batch_values, layout)
            try:
                yield self._pair(layout, call, other, kept=kept)
            except Exception as error:  # a kernel may refuse a layout
                axis.left_out = f"{layout}: {type(error).__name__}: {error}"

    def device(self, axis: Axis) -> Iterator[Pair]:
        torch = self.subject.torch
        if torch is None or not torch.cuda.is_available():
            axis.left_out = "there is one device"
            return
        both = [self.subject.on(libraries.get(name)) for name in ("torch:cpu", "torch:cuda")]
        for ids in (range(1), range(ONE_BATCH), range(32)):
            one, other = (s.call(self.samples.values(ids)) for s in both)
            yield self._pair(f"the CPU and the GPU, batch of {len(ids)}", one, other)

    def restart(self, axis: Axis) -> Iterator[Pair]:
        """Other processes, each with its own hash seed or number of threads."""
        if self.again.why:
            axis.left_out = self.again.why
            return
        names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
        ways = [{"PYTHONHASHSEED": str(k), **dict.fromkeys(names, str(k))} for k in (1, 2, 3)]
        kept = self._results(self.subject.call(self.batch_values))
        for way in ways:
            try:
                yield Pair(
                    f"another process, {', '.join(f'{k}={v}' for k, v in way.items())}",
                    hashed(kept),
                    self.again.hashed(way),
                )
            except RuntimeError as error:
                axis.left_out = f"the new process failed: {error}"
                return


def hashed(results: Sequence[Result]) -> list[Result]:
    """A hash of each array's bits, as an array."""
    return [
        Result(r.name, np.frombuffer(hashlib.blake2b(r.patterns.tobytes(), digest_size=8).digest(), np.uint8), None)
        for r in results
    ]


def _parts(alone: Sequence[Result], whole: Sequence[Result], part: Callable[..., Any]) -> list[Result]:
    """What belongs to one sample of the results that have a batch."""
    cut = [Result(r.name, part(a.patterns.shape, r.patterns), r.format) for a, r in zip(alone, whole, strict=True)]
    return [r for r in cut if r.patterns is not None]


def _cached(module: Any) -> Callable[..., Any] | None:
    """The step of a module that keeps keys and values; None where it has none."""
    forward = getattr(module, "forward", None)
    names = inspect.signature(forward).parameters if forward is not None else {}
    if "past_key_values" not in names or "use_cache" not in names:
        return None

    def step(*given: Any) -> tuple[Any, Any]:
        *values, state = given
        made = module(*values, past_key_values=state, use_cache=True)
        first = getattr(made, "logits", getattr(made, "last_hidden_state", None))
        return (made[0] if first is None else first), made.past_key_values

    return step
