"""What a single call does not show: results that depend on earlier calls, on chance, or on what else stands in the batch."""

import math
import secrets
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Protocol

import numpy as np

from tlspec.compare import Comparison
from tlspec.draw.cases import Case
from tlspec.judge import altered, kept
from tlspec.judge.apart import Apart, Here
from tlspec.judge.blocks import ELEMENTS, independent_dimensions, part_of
from tlspec.judge.kernel import Kernel
from tlspec.judge.report import Finding, Report
from tlspec.judge.runner import Failure, Plain
from tlspec.judge.trial import Trial
from tlspec.registry import Op

#: the bit patterns of results
Bits = list[np.ndarray]
#: small cases that are called often, and how often by default: as many calls as a draw says, in no more seconds
OFTEN, OFTEN_CALLS, OFTEN_SECONDS = 3, (500, 1000), 1.0
#: families whose kernels may add and subtract rows of a batch (Strassen's product, two real transforms as a complex one)
PRODUCTS = ("linalg", "conv", "attention", "spectral", "user")
#: data classes in which what else stands in an array may choose how an element is computed
SPECIAL = ("special", "wide", "huge")


class Judge(Protocol):
    """What of a :class:`tlspec.judge.checking.Check` is used here."""

    op: Op
    which: str
    function: Apart | Here
    report: Report
    trials: list[Trial]

    def in_format(self, case: Case) -> Case: ...
    def trial(self, case: Case) -> tuple[Trial, Kernel]: ...
    def problems(self, trial: Trial, kernel: Kernel, *, again: bool = False) -> Iterator[tuple[str, str]]: ...
    def results(self, case: Case) -> list[Plain]: ...
    def bits(self, case: Case, *, hold: bool = False) -> Bits: ...
    def compared(self, trial: Trial, kernel: Kernel, results: Sequence[Plain]) -> list[Comparison]: ...
    def add(self, failure: Failure, case: Case) -> None: ...
    def line(self, case: Case) -> str: ...


def bits_of(results: Sequence[Plain]) -> Bits:
    return [r.patterns for r in results if r.patterns is not None]


def same(a: Bits, b: Bits) -> bool:
    return all(np.array_equal(x.ravel(), y.ravel()) for x, y in zip(a, b, strict=True))


def repeats(check: Judge, case: Case) -> None:
    """Whether the same call gives the same bits again, and leaves an earlier result alone; and whether calls with other
    numbers, and with a few other numbers, in arrays of the same shapes have results of their own."""
    case = check.in_format(case)
    texts = []
    try:
        first = check.bits(case, hold=True)
        for key, make in (("other", altered.halved), ("a few other", altered.touched)):
            other = kept.derived(case, key, partial(make, case))
            found = next((text for kind, text in check.problems(*check.trial(other)) if kind == "value"), None)
            kept.weigh(check.in_format(other))
            if found is None:
                continue
            said = f"from {key} numbers in arrays of these shapes: {found}"
            if _is_stale(check, first, other):
                texts.append(said)
            elif not any(f.kind == "value" for f in check.report.findings):
                check.report.findings.append(Finding("value", said, check.line(case)))
            first = check.bits(case, hold=True)
        later = bits_of(check.function.held([x.shape for x in first]))
        again = check.bits(case)
    except NotImplementedError:
        return
    except Failure as failure:
        check.add(failure, case)
        return
    if not same(first, later):
        texts.append("a later call changed an earlier result")
    check.report.findings += [Finding("stale", text, check.line(case)) for text in texts[:1]]
    check.report.repeats = same(first, again) and check.report.repeats is not False


def _is_stale(check: Judge, first: Bits, case: Case) -> bool:
    """Whether a wrong result comes from an earlier call: in a new process it is right; in this one, it is the earlier one."""
    if not check.function.apart:
        return same(first, check.bits(check.in_format(case)))
    check.function.close()
    return not any(kind == "value" for kind, _ in check.problems(*check.trial(case), again=True))


def often(check: Judge, wanted: int | None) -> None:
    """Calls of a few small cases in turn, for faults that come and go, as many as are wanted or drawn. What has other bits
    than the first call had is held to the tolerance."""
    calls = secrets.choice(range(*OFTEN_CALLS)) if wanted is None else wanted
    seconds = OFTEN_SECONDS if wanted is None else math.inf
    known: dict[int, Bits] = {}
    small = [t.case for t in check.trials if t.case.size in ("small", "shrunk")][:OFTEN]
    cases = [check.trial(c) for case in small for c in (case, altered.touched(case))]
    start = time.perf_counter()
    for i in range(calls if cases else 0):
        if time.perf_counter() - start > seconds:
            return
        trial, kernel = cases[i % len(cases)]
        try:
            results = check.results(trial.case)
            bits = bits_of(results)
            first = known.setdefault(i % len(cases), bits)
            if first is not bits:
                if same(first, bits):
                    check.report.calls += 1
                    continue
                check.report.repeats = False
            outcomes = zip(trial.names, check.compared(trial, kernel, results), strict=True)
            wrong = [("value", c.explain(name)) for name, c in outcomes if not c.ok]
        except NotImplementedError:
            continue
        except Failure as failure:
            wrong = [(failure.kind, str(failure))]
        if wrong:
            text = f"in call {i + 1} of {calls} on a few cases: {wrong[0][1]}"
            check.report.findings.append(Finding(wrong[0][0], text, check.line(trial.case)))
            return


def batches(check: Judge, case: Case) -> None:
    """Whether a part of the batch has the bits alone that it has in the whole, and the same whatever the rest holds."""
    case = check.in_format(case)
    independent = independent_dimensions(case.op, case.which)
    dim = next((d for d in independent if d == ELEMENTS or case.values[d] > 1), None)
    if dim is None:
        return
    n = case.shape(case.signature.outputs[0])[0] if dim == ELEMENTS else case.values[dim]
    others = case if case.data in SPECIAL else altered.beside(case, dim, n // 2)
    try:
        whole, part, beside = (check.bits(c) for c in (case, part_of(case, dim, n // 2, n), others))
    except NotImplementedError:
        return
    except Failure as failure:
        check.add(failure, case)
        return
    for array, *bits in zip(case.signature.outputs, whole, part, beside, strict=True):
        axis = array.dims.index(dim)
        a, b, c = (x.take(range(x.shape[axis] - (n - n // 2), x.shape[axis]), axis) for x in bits)
        check.report.batches = bool(np.array_equal(a, b)) and check.report.batches is not False
        if others is case or (a == c).all():
            if others is not case:
                check.report.neighbours = check.report.neighbours is not False
            continue
        check.report.neighbours = False
        mixes = case.op.family in PRODUCTS or any(f.kind in ("value", "batch", "stale") for f in check.report.findings)
        if not mixes and all(same(whole, check.bits(case)) for _ in range(3)):
            name = "elements" if dim == ELEMENTS else dim
            text = f"{array.name}: depends on what other {name} hold: {np.count_nonzero(a != c)} of {a.size} elements change"
            check.report.findings.append(Finding("batch", text, check.line(case)))
