"""One call of a kernel, in a number format: its arguments, the reference, and how far from it the result may be."""

import itertools
import math
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from tlspec.bounds import F64, call_reference
from tlspec.case import as_tuple
from tlspec.compare import Comparison, compare, joined
from tlspec.draw.cases import Case, Expected
from tlspec.formats import FORMATS, Format
from tlspec.judge.blocks import LARGE, blocks_of, elements_of
from tlspec.judge.kept import MOST
from tlspec.judge.runner import place_of
from tlspec.running import ErrorArray, Model, error_of, track_call, value_of
from tlspec.signature import WHOLE

#: numbers in which the reference of a float64 kernel is computed
WIDE = np.longdouble
#: blocks of a large case whose reference is computed at once
THREADS = min(os.cpu_count() or 1, 4)
#: numbers of an array of which equal ones are counted
ALIKE = 4096
#: numbers that are rounded to a format at once
PIECE = 2**21
#: rows of which a part follows from parameters alone: of its errors running analysis sees none, the row's bound does
OF_PARAMETERS = frozenset({"rotary", "sinusoidal", "rand_normal"})


class Trial:
    """A case in a number format, and what its results are held to: a kernel within `model`, or, without one, the row's own bound
    for float32. `out` is the format of the results. `taken` are the names that a gradient's function takes: what the row's rule
    reads besides, it computes itself, with its own errors. `kept` has what an equal trial computed, and gets what this does."""

    def __init__(
        self, case: Case, out: Format, model: Model | None, taken: Collection[str] | None = None,
        kept: dict[str, Any] | None = None,
    ):  # fmt: skip
        self.case, self.format, self.model, self.taken, self.kept = case, out, model, taken, kept
        self.names = tuple(a.name for a in case.signature.outputs)
        self.shapes = tuple(case.shape(a) for a in case.signature.outputs)
        self.empty = not any(math.prod(s) for s in self.shapes)
        self.large = elements_of(case) > LARGE
        #: whether the row has other formulas, and whether a block needed them
        self._formulas = model is not None and bool(case.op.formulas[case.which])
        self._every = False
        #: elements of which something was to be told, and those whose bound exceeds the answer; counted as they are compared
        self._counted = self._unseen = 0
        #: results that a case of given shape was compared with, and the seconds that took
        self.sampled, self.seconds = 0, 0.0

    @cached_property
    def expected(self) -> Expected:
        """The reference and the tolerances, of which the largest of all formulas. Computed once."""
        return self._once("whole", lambda: self._expected(self.case, every=True))

    @cached_property
    def narrow(self) -> Expected:
        """The same with the tolerances of the reference alone. What lies within them needs no other formula."""
        return self._once("narrow", lambda: self._expected(self.case)) if self._formulas else self.expected

    def _once(self, key: str, make: Callable[[], Expected]) -> Expected:
        if self.kept is None:
            return make()
        if key not in self.kept:
            start = time.perf_counter()
            self.kept[key] = make()
            self.kept["cost"] = self.cost + time.perf_counter() - start
        found: Expected = self.kept[key]
        return found

    @property
    def cost(self) -> float:
        """The seconds that the reference took, here or in an earlier check."""
        return 0.0 if self.kept is None else float(self.kept.get("cost", 0.0))

    @property
    def tracked(self) -> bool:
        """Whether running analysis knows the reference; it is evaluated, whatever was before."""
        assert self.model is not None
        _tracked_results(self.case, self.format, self.model, self.taken)
        return True

    @property
    def outputs(self) -> tuple[F64, ...]:
        return self.narrow.outputs

    @property
    def tolerances(self) -> tuple[F64, ...]:
        return self.expected.tolerances

    @property
    def blind(self) -> bool:
        """Whether the bound that was met exceeds the answer for most elements, so that the case tells nothing."""
        if not self._counted and not self.large:
            self._count(self.narrow)
        return 2 * self._unseen > self._counted

    @property
    def open(self) -> bool:
        """Whether the bound of all formulas exceeds the answer for most elements, whatever bound the kernel met."""
        counted, unseen = self._seen(self.expected)
        return 2 * unseen > counted

    def _count(self, expected: Expected) -> None:
        counted, unseen = self._seen(expected)
        self._counted, self._unseen = self._counted + counted, self._unseen + unseen

    def _seen(self, expected: Expected) -> tuple[int, int]:
        """The elements of which something is told, and those of them whose bound exceeds the answer."""
        counted = unseen = 0
        for r, t in zip(expected.outputs, expected.tolerances, strict=True):
            told = np.isfinite(r) & ((r != 0) | (t >= self.format.least_normal))
            counted += int(np.count_nonzero(told))
            unseen += int(np.count_nonzero(told & (t >= np.abs(r))))
        return counted, unseen

    def compare(self, numbers: Sequence[np.ndarray]) -> list[Comparison]:
        """The results' numbers, in their own type or as float64, with the reference; of a large case block by block."""
        if not self.large:
            return self._outcomes(self.narrow, numbers) or self._outcomes(self.expected, numbers, final=True)
        found: list[list[Comparison]] = [[] for _ in numbers]
        start = time.perf_counter()
        for block in self._blocks():
            parts = [got[place] for got, place in zip(numbers, block.places, strict=True)]
            outcomes = self._outcomes(block.expected, parts, final=block.every)
            if not outcomes:  # so it will be with the blocks that follow
                self._every = block.every = True
                block.expected = self._expected(block.case, every=True)
                outcomes = self._outcomes(block.expected, parts, final=True)
            self._count(block.expected)
            for i, (outcome, place) in enumerate(zip(outcomes, block.places, strict=True)):
                found[i].append(_at(outcome, place))
            self.sampled += sum(o.size for o in block.expected.outputs)
        self.seconds = time.perf_counter() - start
        return [joined(each) for each in found]

    def _outcomes(self, expected: Expected, numbers: Sequence[np.ndarray], *, final: bool = False) -> list[Comparison]:
        """Of each output; none where one is wrong and other formulas, of which `expected` knows nothing, have a say."""
        found = [self._compared(expected, i, got) for i, got in enumerate(numbers)]
        return found if final or not self._formulas or all(c.ok for c in found) else []

    def _blocks(self) -> Iterator["_Block"]:
        """A large case in blocks: a few at a time are in memory, or all from the second time on that the case is used."""
        blocks = (_Block(*each) for each in blocks_of(self.case))
        known = None if self.kept is None else self.kept.get("blocks")
        if known is not None:
            for i, block in enumerate(blocks):
                block.expected, block.every = known[i]
                yield block
                known[i] = block.expected, block.every
            return
        made = []
        again = self.kept is not None and self.kept.setdefault("times", itertools.count()).__next__() > 0
        lasting = again and 16 * sum(map(math.prod, self.shapes)) <= MOST // 2
        with ThreadPoolExecutor(THREADS) as pool:  # NumPy lets go of Python's lock
            while turn := list(itertools.islice(blocks, THREADS)):
                for block in pool.map(self._with_expected, turn):
                    yield block
                    if lasting:
                        made.append((block.expected, block.every))
        if self.kept is not None and lasting:
            self.kept["blocks"] = made

    def _with_expected(self, block: "_Block") -> "_Block":
        block.every = self._every or not self._formulas
        with np.errstate(all="ignore"):  # which a thread has for itself
            block.expected = self._expected(block.case, every=block.every)
        return block

    def _compared(self, expected: Expected, i: int, got: np.ndarray) -> Comparison:
        array = self.case.signature.outputs[i]
        format = FORMATS["float64"] if array.kind in ("index", *WHOLE) else array.format(self.format)
        if isinstance(expected, Either):
            got = expected.settled(i, got, format)
        args = got, expected.outputs[i], expected.tolerances[i]
        if expected.bits[i] is not None and self.format.name == "float32":
            return compare(got.astype(np.float32), *args[1:], signed_zeros=expected.signed_zeros, bits=expected.bits[i])
        return compare(*args, signed_zeros=expected.signed_zeros, format=format)

    def _expected(self, case: Case, *, every: bool = False) -> Expected:
        if self.model is not None:
            try:
                return _tracked_results(case, self.format, self.model, self.taken, every)
            except (AttributeError, TypeError):
                if case.op.family == "user":  # whose reference can be written otherwise
                    raise
        return case.expected


@dataclass
class _Block:
    """A part of a large case, the places of its outputs, and what they are held to: with `every` in all formulas."""

    case: Case
    places: Sequence[Any]
    expected: Expected = field(init=False)
    every: bool = False


def _at(found: Comparison, place: Sequence[slice]) -> Comparison:
    """A block's outcome with its index in the whole."""
    if found.index is None:
        return found
    return replace(found, index=tuple(i + (s.start or 0) for i, s in zip(found.index, place, strict=True)))


def quantised(case: Case, format: Format) -> Case:
    """The case with its arrays rounded to a format. Data of all binades are moved into the format's binades first."""

    of = {a.name: a.format(format) for a in case.op.signature.inputs}
    common = format

    def fit(x: np.ndarray | None, index: int, format: Format) -> np.ndarray | None:
        if x is None or x.dtype.kind != "f":
            return x
        if format.name == "float32" and x.dtype == np.float32:
            return x
        if x.size > PIECE:
            flat = np.concatenate(
                [fit(part, index, format) for part in np.split(x.reshape(-1), range(PIECE, x.size, PIECE))]
            )
            return flat.reshape(x.shape)
        wide = x.astype(np.float64)
        if format.precision > 24:
            noise = np.random.default_rng((case.seed, index, x.size)).random(x.shape) * 2.0**-25
            full = np.isfinite(wide) & (case.data not in ("integers", "structured", "grid"))
            return np.where(full, wide * (1 + noise), wide)
        if case.data in ("wide", "huge") and format.most_exponent < 127:
            fraction, exponent = np.frexp(wide)
            wide = np.ldexp(fraction, (exponent * (format.most_exponent + 1)) // 128)
            wide = np.clip(wide, -format.largest, format.largest)
        return format.round(wide).astype(np.float32)

    groups = (case.inputs, case.cotangents)
    arrays = [{n: fit(x, i, of.get(n, common)) for i, (n, x) in enumerate(group.items())} for group in groups]
    made = replace(case, inputs=arrays[0], cotangents=arrays[1], given=None)  # type: ignore[arg-type]
    return with_results(made, format)


def with_results(case: Case, format: Format) -> Case:
    """The case, and with it the forward results that its gradient reads, rounded once to the format."""
    if case.which == "forward" or case.given is not None:
        return case
    known: dict[str, Any] = {**case.inputs, **case.cotangents}
    if all(r in known for r in case.op.rule.reads):
        return case
    with np.errstate(all="ignore"):
        outs = as_tuple(call_reference(case.op.reference, case.wide_inputs, case.values))
    for array, out in zip(case.op.signature.outputs, outs, strict=True):
        known[array.name] = format.round(out).astype(np.float64 if format.precision > 24 else np.float32)
    return replace(case, given={r: known[r] for r in case.op.rule.reads})


@dataclass(frozen=True)
class Either(Expected):
    """An expectation where other formulas give an infinity, or NaN, that the reference has not, or something may overflow."""

    #: by output, what each of the other formulas gives, and where it may as well be another that is not finite
    others: tuple[tuple[tuple[F64, np.ndarray], ...], ...] = ()
    #: by output, where something overflows on the way, and what each formula gives with its infinities, with tolerances
    overflows: tuple[tuple[np.ndarray, tuple[tuple[F64, F64], ...]], ...] = ()

    def settled(self, i: int, got: np.ndarray, format: Format) -> np.ndarray:
        """A result with what the reference has where it has what another formula, or an overflow, gives."""
        found, infinite, reference = got, ~np.isfinite(got), format.round(self.outputs[i])
        for other, is_open in self.others[i]:
            same = infinite & ((got == other) | (np.isnan(got) & np.isnan(other)) | is_open)
            found = np.where(same, reference, found)
        for is_open, ways in self.overflows[i : i + 1]:
            with np.errstate(all="ignore"):
                near = [np.abs(got - value) <= tolerance for value, tolerance in ways]
            found = np.where(is_open & np.any([infinite, *near], axis=0), reference, found)
        return found.astype(got.dtype)


def _tracked_results(
    case: Case, out: Format, model: Model, taken: Collection[str] | None, every: bool = True
) -> Expected:
    """Reference and tolerances by running error analysis, with `every` those of all formulas. Raises TypeError or AttributeError
    for what it does not know.

    Where numbers on the way overflow, a result may have what infinities make of it. Another one is held to what the formulas give
    in a wider range."""
    # exact sums are promised of sums alone, not of what is computed by way of them
    model = replace(model, exact=model.exact and case.bound.kind != "custom", alike=_alike(case))
    formulas = [case.reference, *(case.op.formulas[case.which] if every else ())]
    held = _held(case, out, model, _results(case, model, taken, formulas))
    unknown = [np.isfinite(r) & np.isinf(t) for r, t in zip(held.outputs, held.tolerances, strict=True)]
    if model.overflow == math.inf or not any(map(np.any, unknown)):
        return held
    wide, infinite = replace(model, overflow=math.inf), [replace(model, infinite=of) for of in ("may", "must")]
    in_range = _held(case, out, wide, _results(case, wide, taken, formulas))
    made = [(m, results) for m in infinite for results in _results(case, m, taken, formulas)]
    tolerances, overflows = [], []
    for i, (array, t, is_open) in enumerate(zip(case.signature.outputs, held.tolerances, unknown, strict=True)):
        ways = [_bounded(case, out, m, i, *_parts(results[i], case.shape(array))) for m, results in made]
        overflows.append((is_open, tuple((v, np.where(np.isfinite(v) & np.isfinite(e), e, -1.0)) for v, e in ways)))
        tolerances.append(np.where(is_open, in_range.tolerances[i], t))
    others = held.others if isinstance(held, Either) else ((),) * len(overflows)
    return Either(held.outputs, tuple(tolerances), held.signed_zeros, held.bits, others, tuple(overflows))


def _results(
    case: Case, model: Model, taken: Collection[str] | None, formulas: Sequence[Callable[..., Any]]
) -> list[tuple[Any, ...]]:
    """What each formula gives of the case's arrays: the first is the reference."""
    given: Mapping[str, Any] = case.wide
    if model.precision > 24:
        given = {n: a.astype(WIDE) if a is not None and a.dtype.kind == "f" else a for n, a in given.items()}
    arrays = {n: _tracked(a, model) for n, a in given.items()}
    if case.which == "vjp" and taken is not None:
        computed = [a.name for a in case.op.signature.outputs if a.name in arrays and a.name not in taken]
        if computed:
            inputs = {n: _tracked(a, model) for n, a in case.wide_inputs.items()}
            results = track_call(case.op.reference, inputs, case.values)
            named = zip((a.name for a in case.op.signature.outputs), results, strict=True)
            arrays.update({n: x for n, x in named if n in computed})
    return [track_call(formulas[0], arrays, case.values), *(_followed(f, arrays, case) for f in formulas[1:])]


def _held(case: Case, out: Format, model: Model, made: Sequence[tuple[Any, ...]]) -> Expected:
    """The reference's results, and tolerances that those of all formulas lie within."""
    outputs, tolerances, different = [], [], []
    for i, array in enumerate(case.signature.outputs):
        value, error = _parts(made[0][i], case.shape(array))
        different.append(list[tuple[F64, np.ndarray]]())
        for other in made[1:]:
            again, more = _parts(other[i], value.shape)
            infinite = ~np.isfinite(again)
            if not np.array_equal(again[infinite], value[infinite], equal_nan=True):
                is_open = infinite & np.isfinite(value) & (more != 0)
                different[-1].append((np.asarray(again, np.float64), is_open))
            near = np.isfinite(value) & ~infinite
            with np.errstate(invalid="ignore"):
                lost = ~infinite & (np.isinf(more) | ~np.isfinite(value))
                moved = np.where(near, more + np.abs(again - value), np.where(lost, np.inf, 0.0))
            error = np.maximum(error, moved)
        value, error = _bounded(case, out, model, i, value, error)
        outputs.append(value)
        tolerances.append(error)
    # the order of operations decides the sign of a zero, and that of max(-0, +0) is left open by C
    found = tuple(outputs), tuple(tolerances), case.bound.kind == "moved", (None,) * len(outputs)
    return Either(*found, tuple(map(tuple, different))) if any(different) else Expected(*found)


def _bounded(case: Case, out: Format, model: Model, i: int, value: Any, error: Any) -> tuple[F64, F64]:
    """A result and its tolerance once it is rounded to the format of the output."""
    array = case.signature.outputs[i]
    value, error = value.astype(np.float64), np.asarray(error, np.float64)
    error = np.where(np.isnan(error), np.where(np.isfinite(value), np.inf, 0.0), error)
    if case.op.name in OF_PARAMETERS and model.precision <= 24:
        error = np.maximum(error, case.real[1][i])
    own, whole = array.format(out), array.kind in ("index", *WHOLE)
    if own.precision < model.precision and not whole:
        finite = np.where(np.isfinite(error), error, 0.0)
        error = np.where(error > 0, error + own.spacing(np.abs(value) + finite) / 2, 0.0)
    if model.saturate and not whole:  # which is monotone
        most = own.largest
        with np.errstate(all="ignore"):
            ends = [np.abs(np.clip(value + s * error, -most, most) - np.clip(value, -most, most)) for s in (-1, 1)]
        value, error = np.clip(value, -most, most), np.where(np.isnan(error), error, np.maximum(*ends))
    return value, error


def _followed(formula: Callable[..., Any], arrays: Mapping[str, Any], case: Case) -> tuple[Any, ...]:
    """Another formula's results. Raises ValueError where running analysis does not know it."""
    try:
        return track_call(formula, arrays, case.values)
    except (AttributeError, TypeError) as error:
        name, place = getattr(formula, "__name__", type(formula).__name__), place_of(error, installed=False)
        raise ValueError(f"formulas: {name}, for {case.op.name}: {error}" + (f" ({place})" if place else "")) from error


def _alike(case: Case) -> float:
    """The probability that two numbers of an array of the case are equal; of structured data all may be."""
    if case.data == "structured":
        return 1.0
    shares = [0.0]
    for x in (*case.inputs.values(), *case.cotangents.values()):
        if x is not None and x.dtype.kind == "f" and x.size > 1:
            some = x.reshape(-1)[:: -(-x.size // ALIKE)]
            counts = np.unique(some, return_counts=True)[1].astype(np.float64)
            shares.append(float((counts * (counts - 1)).sum()) / (some.size * (some.size - 1)))
    return max(shares)


def _parts(x: Any, shape: tuple[int, ...]) -> tuple[Any, Any]:
    """Value and error of a result, which may be plain."""
    value = np.broadcast_to(value_of(x), shape)
    return value, np.broadcast_to(error_of(x), shape)


def _tracked(x: Any, model: Model) -> Any:
    if x is None or x.dtype.kind != "f":
        return x
    return ErrorArray(x, np.where(np.abs(x) < model.flushed, np.abs(x), 0.0) if model.flushed else 0.0, model)
