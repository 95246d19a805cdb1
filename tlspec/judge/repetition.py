"""What a single call does not show: results that depend on earlier calls, on chance, or on what else stands in the batch."""

import itertools
import math
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial, wraps
from typing import Any, Protocol

import numpy as np

from tlspec.compare import Comparison
from tlspec.draw.cases import Case, data_classes, draw_case, free_sizes, is_empty
from tlspec.formats import Format
from tlspec.judge import altered, kept
from tlspec.judge.apart import Ended, Runs
from tlspec.judge.blocks import ELEMENTS, independent_dimensions, part_of
from tlspec.judge.kernel import Kernel
from tlspec.judge.report import Finding, Report
from tlspec.judge.runner import Answer, Failure, Plain, Request
from tlspec.judge.shrink import lengths_of, resized
from tlspec.judge.trial import Trial
from tlspec.registry import Op

#: the bit patterns of results
Bits = list[np.ndarray]
#: small cases that are called often, and how often by default: as many calls as a draw says, in no more seconds
OFTEN, OFTEN_CALLS, OFTEN_SECONDS = 3, (5000, 6000), 1.0
#: the seconds and the bytes of results of the calls that are made by one message
BATCH_SECONDS, BATCH_BYTES = 0.1, 2**24
#: seconds that loading a kernel may take for it to be loaded once more
LOADING_SECONDS = 0.5
#: the least root of the largest number of a format that has more than a few binades
FEW = 2.0**32
#: what a kernel's NotImplementedError is
UNSUPPORTED = "unsupported"
#: families whose kernels may add and subtract rows of a batch (Strassen's product, two real transforms as a complex one)
PRODUCTS = ("linalg", "conv", "attention", "spectral", "user")
#: calls with either content of other rows that must agree with the first: if a call has some bits with a chance q, all agree and
#: the contents differ with a chance of at most (q(1 - q))^8 < 2^-16
TURNS = 8
#: calls of a case in which no order of additions matters, and the bytes within which places in memory are told apart
WAVERS, ALIGNED = 64, 64
#: data classes in which what else stands in an array may choose how an element is computed
SPECIAL = ("special", "wide", "huge")
TIES = "numbers of which many are equal"
MASKED = "-inf in the first half of the longest axis"
HALVED = "other numbers in arrays of these shapes"
#: what is said of further calls with arrays of the same shapes
OTHERS: dict[str, Callable[[Case], Case]] = {
    HALVED: altered.halved, "a few other numbers in arrays of these shapes": altered.touched,
    "the same numbers in another order": altered.permuted,
}  # fmt: skip
#: and of normal numbers besides
ORDERED: dict[str, Callable[[Case], Case]] = {
    "the same numbers in falling order": altered.falling, TIES: altered.tied,
    "numbers of which one is a little larger": altered.nudged,
}  # fmt: skip
#: and of long arrays
LONG: dict[str, Callable[[Case], Case]] = {
    TIES: altered.tied, "negative numbers alone": altered.negative, "one number far above the others": altered.outdone,
    "numbers behind far larger ones": altered.steep, "two numbers beside zeros": altered.sparse,
    "rows that differ in one number each": altered.alike,
}  # fmt: skip
#: by place of :func:`altered.filled`
FILLED = ("the least whole number alone", "the greatest whole number alone", "the whole number below the middle alone",
          "the whole number above the middle alone")  # fmt: skip
PARAMETERS, SHARED = "the same arrays with other parameters", "the same array as several arguments"
WITHOUT = "the same arrays without the optional ones"
NEARLY = "the same arrays with parameters that are larger by one part in 1024"
UNEVEN = "the same numbers beside far larger ones"


class Judge(Protocol):
    """What of a :class:`tlspec.judge.checking.Check` is used here."""

    op: Op
    which: str
    format: Format
    out: Format
    function: Runs
    report: Report
    trials: list[Trial]

    def in_format(self, case: Case) -> Case: ...
    def trial(self, case: Case) -> tuple[Trial, Kernel]: ...
    def problems(
        self, trial: Trial, kernel: Kernel, *, layout: str = "", shared: bool = False, again: bool = False,
        reuse: bool = False,
    ) -> Iterator[tuple[str, str]]: ...  # fmt: skip
    def called(self, case: Case, *, hold: bool = False) -> tuple[Request, Answer]: ...
    def results(self, case: Case) -> list[Plain]: ...
    def bits(self, case: Case) -> Bits: ...
    def compared(self, trial: Trial, kernel: Kernel, results: Sequence[Plain]) -> list[Comparison]: ...
    def add(self, failure: Failure, case: Case) -> None: ...
    def line(self, case: Case, layout: str = "") -> str: ...


class Refused(Failure):
    """The refusal of numbers in a shape that the kernel supports."""

    kind = "refused"


def bits_of(results: Sequence[Plain]) -> Bits:
    return [r.patterns for r in results if r.patterns is not None]


def same(a: Bits, b: Bits) -> bool:
    return all(np.array_equal(x.ravel(), y.ravel()) for x, y in zip(a, b, strict=True))


def told(function: Callable[[Judge, Case], None]) -> Callable[[Judge, Case], None]:
    """The function; a call that fails in it is a finding, and what the kernel does not support ends it."""

    @wraps(function)
    def run(check: Judge, case: Case) -> None:
        try:
            function(check, check.in_format(case))
        except NotImplementedError:
            return
        except Failure as failure:
            check.add(failure, case)

    return run


@told
def repeats(check: Judge, case: Case) -> None:
    """Whether the same call gives the same bits again, and leaves an earlier result alone; and whether calls with other
    numbers, and with a few other numbers, in arrays of the same shapes have results of their own."""
    texts = []
    _held(check, case)
    other = kept.derived(case, HALVED, partial(altered.halved, case))
    filled = _wrong_value(check, other, reuse=True)
    if filled and not _wrong_value(check, other):
        texts.append(f"from other numbers in the arrays of the call before: {filled}")
    first, arguments = _held(check, case)
    for key, other in _others(case):
        if altered.is_same(check.in_format(other), case):  # once it is rounded
            continue
        problems = check.problems(*check.trial(other), shared=key == SHARED)
        kind, found = next(((k, t) for k, t in problems if k in ("value", UNSUPPORTED)), ("", ""))
        kept.weigh(check.in_format(other))
        if kind == UNSUPPORTED and key in OTHERS and case.data == "normal":
            check.add(Refused(f"NotImplementedError from {key}, after a call that it supported"), case)
        if kind != "value":
            continue
        said = f"from {key}: {found}"
        if key != SHARED and _is_stale(check, first, other, parameters=other.values != case.values):
            texts.append(said)
        elif not any(f.kind == "value" for f in check.report.findings):
            check.report.findings.append(Finding("value", said, check.line(case)))
        first, arguments = _held(check, case)
    shapes = [x.shape for x in (*first, *arguments)]
    later = bits_of(check.function.held(shapes))
    again = check.bits(case)
    wrong = _wrong_value(check, case)
    if not same(first, later[: len(first)]):
        texts.append("a later call changed an earlier result")
    elif not same(arguments, later[len(first) :]):
        texts.append("a later call changed an argument of an earlier one")
    if wrong and not any(f.kind == "value" for f in check.report.findings):
        texts.append(f"in a further call with the same numbers, after the earlier results were overwritten: {wrong}")
    check.report.findings += [Finding("stale", text, check.line(case)) for text in texts[:1]]
    check.report.repeats = same(first, again) and check.report.repeats is not False


def _others(case: Case) -> Iterator[tuple[str, Case]]:
    """Cases with arrays of the same shapes, and what is said of them."""
    for key, make in (OTHERS | ORDERED | _zeroed(case) if case.data == "normal" else OTHERS).items():
        yield key, kept.derived(case, key, partial(make, case))
    for place, said in enumerate(FILLED if case.data == "normal" else ()):
        if (made := altered.filled(case, place)) is not None:
            yield said, kept.derived(case, said, partial(altered.filled, case, place))  # type: ignore[arg-type]
    if (made := altered.without(case)) is not None:
        yield WITHOUT, kept.derived(case, WITHOUT, partial(altered.without, case))  # type: ignore[arg-type]
    if (made := altered.otherwise(case)) is not None:
        yield PARAMETERS, made
    if case.data == "normal" and (made := altered.nearly(case)) is not None:
        yield NEARLY, made
    if case.data == "normal" and (dim := _batch_of(case)) not in (None, ELEMENTS):
        yield UNEVEN, kept.derived(case, UNEVEN, partial(altered.uneven, case, dim))
    if (made := altered.shared(case)) is not None:
        yield SHARED, kept.derived(case, SHARED, partial(altered.shared, case))  # type: ignore[arg-type]


def _held(check: Judge, case: Case) -> tuple[Bits, Bits]:
    """The results of a call, which stay in memory, and those arguments that it leaves alone."""
    request, answer = check.called(case, hold=True)
    over = request.over.values()
    return bits_of(answer.results), bits_of([x for n, x in answer.arrays.items() if n not in over])


def _wrong_value(check: Judge, case: Case, *, shared: bool = False, reuse: bool = False) -> str:
    """What a call of a case computes wrongly; "" where nothing."""
    problems = check.problems(*check.trial(case), shared=shared, reuse=reuse)
    return next((text for kind, text in problems if kind == "value"), "")


def _is_stale(check: Judge, first: Bits, case: Case, *, parameters: bool) -> bool:
    """Whether a wrong result comes from an earlier call: in a new process it is right; in this one, it is the earlier one, which
    it may be by right where parameters alone are others."""
    if not check.function.apart:
        return not parameters and same(first, check.bits(check.in_format(case)))
    check.function.close()
    return not any(kind == "value" for kind, _ in check.problems(*check.trial(case), again=True))


def far_apart(check: Judge, case: Case, *, special: bool, every: bool) -> None:
    """A long case with equal numbers, far apart, and with tiles of -inf where special numbers are wanted and the row has them;
    with `every` also with what else of long arrays is seen where all of it counts. Of special numbers zeros beside them."""
    changes: dict[str, Callable[[Case], Case]]
    if case.data == "special":
        changes = _zeroed(case)
    else:
        changes = dict(LONG) if every else {TIES: LONG[TIES]}
        if special and "special" in data_classes(check.op, check.which) and not check.op.signature.elementwise:
            changes[MASKED] = altered.masked
    for said, change in changes.items():
        _altered(check, case, said, kept.derived(case, said, partial(change, case)))


def _arrays_of(case: Case) -> list[str]:
    """The names of the arrays of real numbers."""
    arrays = {**case.inputs, **case.cotangents}
    return [n for n, x in arrays.items() if x is not None and x.dtype.kind == "f" and x.size]


def _zeroed(case: Case) -> dict[str, Callable[[Case], Case]]:
    """Zeros alone in each array of several."""
    names = _arrays_of(case)
    return {f"zeros alone in {n}": partial(altered.zeroed, name=n) for n in names if len(names) > 1}


def parameters(check: Judge, case: Case) -> None:
    """The same arrays with each parameter otherwise, and a function of one number where it changes its way; in a format of few
    binades also numbers whose squares are beyond it."""
    for said, made in altered.parametrised(case):
        _altered(check, case, f"the same arrays with {said}", made)
    root = 2.0 ** math.frexp(math.sqrt(check.format.largest))[1]
    for name in _arrays_of(case) if root < FEW else ():
        _altered(check, case, f"numbers of {name} that are {root:g} times as large", altered.enlarged(case, name, root))
    if (other := altered.turned(case)) is not None:
        _altered(check, case, "numbers at which the function turns", other)


def _altered(check: Judge, case: Case, said: str, made: Case) -> None:
    """Adds what is wrong of a case that was made of another, but for one finding that is known."""
    found = _wrong_value(check, made)
    if found and not any(f.kind == "value" for f in check.report.findings):
        check.report.findings.append(Finding("value", f"from {said}: {found}", check.line(case)))


def together(check: Judge, forward: Judge, case: Case) -> None:
    """Whether a gradient follows from its arguments alone, whatever the forward function was called with before: the same arrays,
    others of their shapes, and arrays into which the gradient's numbers are written; and so the other way round."""
    other = kept.derived(case, HALVED, partial(altered.halved, case))
    mine = kept.derived(case, "forward", lambda: replace(case, which="forward", cotangents={}, given=None))

    def called(each: Case, *, hold: bool = False) -> None:
        """The forward function with a gradient's arrays."""
        forward.called(replace(check.in_format(each), which="forward", cotangents={}, given=None), hold=hold)

    def tried() -> Iterator[tuple[str, Judge, Case, bool]]:
        """What was called before, which function then, with what, and whether in the arrays of the call before."""
        called(case)
        yield "after a forward call with the same arrays", check, case, False
        for said, make in OTHERS.items():
            called(case)
            called(kept.derived(case, said, partial(make, case)))
            yield f"after a forward call with {said}", check, case, False
        called(case, hold=True)
        yield "from other numbers in the arrays of the forward call before", check, other, True
        check.called(check.in_format(other))
        yield "in a forward call after the gradient of other numbers", forward, mine, False

    try:
        for said, judge, each, reuse in tried():
            wrong = _wrong_value(judge, each, reuse=reuse)
            if wrong and check.function.apart:
                check.function.close()
            if wrong and not (check.function.apart and _wrong_value(judge, each)):
                check.report.findings.append(Finding("stale", f"{said}: {wrong}", check.line(case)))
                return
    except Ended as failure:
        check.add(failure, case)
    except (Failure, NotImplementedError):  # of which the check of each function tells
        return


@told
def stays(check: Judge, case: Case) -> None:
    """Whether a result stays as it is in a later call with arrays of its shapes, which may share memory from a size on; and but
    for large ones whether arrays whose last numbers alone are others, in the memory of the call before, have their own result."""
    first, _ = _held(check, case)
    check.called(kept.derived(case, HALVED, partial(altered.halved, case)))
    later = bits_of(check.function.held([x.shape for x in first]))
    texts = [] if same(first, later) else ["a later call changed an earlier result"]
    if case.size != "large":  # of which the reference takes long
        _held(check, case)
        other = kept.derived(case, "late", partial(altered.late, case))
        if wrong := _wrong_value(check, other, reuse=True):
            said = f"from other last numbers in the arrays of the call before: {wrong}"
            # other arrays may lie where those of an earlier call did
            if not _wrong_value(check, other) or _is_stale(check, first, other, parameters=False):
                texts.append(said)
            elif not any(f.kind == "value" for f in check.report.findings):
                check.report.findings.append(Finding("value", said, check.line(case)))
    if all(f.kind != "stale" for f in check.report.findings):
        check.report.findings += [Finding("stale", text, check.line(case)) for text in texts[:1]]


def laid_otherwise(check: Judge, case: Case, layout: str) -> None:
    """The case in arrays that lie otherwise in memory, after calls with arrays of these shapes that did not."""
    for kind, text in check.problems(*check.trial(altered.laid(case, layout)), layout=layout):
        if kind != UNSUPPORTED and all(f.kind != kind for f in check.report.findings):
            check.report.findings.append(Finding(kind, text, check.line(case, layout)))


def often(check: Judge, wanted: int | None) -> None:
    """Calls of a few small cases in turn, for faults that come and go or begin late, as many as are wanted or drawn. What has
    other bits than the first call had is held to the tolerance."""
    calls = secrets.choice(range(*OFTEN_CALLS)) if wanted is None else wanted
    end = time.perf_counter() + (OFTEN_SECONDS if wanted is None else math.inf)
    known: dict[int, Bits] = {}
    small = [t.case for t in check.trials if t.case.size in ("small", "shrunk")][:OFTEN]
    few = [c for case in small for c in (case, altered.touched(case))]
    if wanted is None:  # what nobody has seen: a kernel may know the default cases
        drawn = (draw_case(check.op, secrets.randbits(31), c.data, "small", c.which) for c in small)
        few += [c for c in drawn if not is_empty(c)]
    cases = [(check.line(c), *check.trial(c)) for c in few]
    requests, results, held = dict[int, Request](), dict[int, list[Plain]](), Bits()
    made = 0
    for i, (line, trial, kernel) in enumerate(cases[:calls]):
        made += 1
        try:
            requests[i], answer = check.called(trial.case, hold=not i)
            results[i], known[i] = answer.results, bits_of(answer.results)
            held = held if i else known[i]
            wrong = _wrong_values(check, trial, kernel, answer.results)
        except NotImplementedError:
            continue
        except Failure as failure:
            wrong = [(failure.kind, str(failure))]
        if wrong:
            _found_in(check, wrong, made, calls, line)
            return
    for i, got in _in_turn(check, requests, results, calls - made, end):
        made += 1
        line, trial, kernel = cases[i]
        if isinstance(got, bytes):
            if got == b"".join(x.tobytes() for x in known[i]):
                check.report.calls += 1
                continue
            check.report.repeats = False
            wrong = _wrong_values(check, trial, kernel, _as_results(got, results[i]))
        else:
            wrong = [(got.kind, str(got))]
        if wrong:
            _found_in(check, wrong, made, calls, line)
            return
    try:
        if held and not same(held, bits_of(check.function.held([x.shape for x in held]))):
            check.report.findings.append(Finding("stale", "a later call changed an earlier result", cases[0][0]))
    except Failure as failure:
        check.report.findings.append(Finding(failure.kind, str(failure), cases[0][0]))
    if cases and wanted is None:
        _in_another_process(check, cases, known)


def _found_in(check: Judge, wrong: Sequence[tuple[str, str]], made: int, calls: int, line: str) -> None:
    text = f"in call {made} of {calls} on a few cases: {wrong[0][1]}"
    check.report.findings.append(Finding(wrong[0][0], text, line))


def _in_turn(
    check: Judge, requests: Mapping[int, Request], results: Mapping[int, list[Plain]], calls: int, end: float
) -> Iterator[tuple[int, bytes | Failure]]:
    """Which request was called, and the bits of its results or what failed, until a time. Calls are made many at once, by a
    message that the kernel's process answers, as most of the time of a short call is that of its message."""
    order = list(results)
    most = BATCH_BYTES // max([1, *(sum(x.nbytes for x in bits_of(r)) for r in results.values())])
    count = 1  # at first, as one call alone may take the time that a message may
    while order and calls > 0 and (start := time.perf_counter()) < end:
        kinds = [[(r.dtype, r.shape) for r in results[i]] for i in order]
        try:
            found, error = check.function.turns([requests[i] for i in order], kinds, min(count, calls))
        except Failure as failure:
            found, error = [], failure
        yield from zip(itertools.cycle(order), found, strict=False)
        next_up = len(found) % len(order)
        order = [*order[next_up:], *order[:next_up]]
        if isinstance(error, Failure):
            yield order[0], error
        if error is not None:
            return
        calls -= len(found)
        each = (time.perf_counter() - start) / len(found)
        count = max(min(int(BATCH_SECONDS / each), 2 * count, most), 1)


def _as_results(got: bytes, like: Sequence[Plain]) -> list[Plain]:
    """A call's results from their bits, of the types and shapes of an earlier one's."""
    found, start = [], 0
    for plain in like:
        assert plain.patterns is not None
        data = got[start : start + plain.patterns.nbytes]
        start += len(data)
        found.append(replace(plain, patterns=np.frombuffer(data, plain.patterns.dtype).reshape(plain.patterns.shape)))
    return found


def _wrong_values(check: Judge, trial: Trial, kernel: Kernel, results: list[Plain]) -> list[tuple[str, str]]:
    """The findings of results that lie beyond their tolerances."""
    outcomes = zip(trial.names, check.compared(trial, kernel, results), strict=True)
    return [("value", c.explain(name)) for name, c in outcomes if not c.ok]


def _in_another_process(check: Judge, cases: Sequence[tuple[str, Trial, Kernel]], known: dict[int, Bits]) -> None:
    """The same cases in a process of their own: a fault may be in one process of several, as the choice of a program is that a
    process makes by its first measurements."""
    if not check.function.apart or check.function.seconds_to_load > LOADING_SECONDS:
        return
    check.function.close()
    other = "in another process results have other bits"
    for i, (line, trial, kernel) in enumerate(cases):
        try:
            results = check.results(trial.case)
            if i not in known or same(known[i], bits_of(results)):
                continue
            check.report.notes += [other] if other not in check.report.notes else []
            wrong = _wrong_values(check, trial, kernel, results)
        except NotImplementedError:
            continue
        except Failure as failure:
            wrong = [(failure.kind, str(failure))]
        if wrong:
            text = f"in another process: {wrong[0][1]}"
            check.report.findings.append(Finding(wrong[0][0], text, line))
            return


def is_steady(check: Judge, case: Case) -> bool:
    """Whether repeated calls of a case give the same bits."""
    case = check.in_format(case)
    try:
        first = check.bits(case)
        return all(same(first, check.bits(case)) for _ in range(TURNS))
    except (Failure, NotImplementedError):
        return False


def wavers(check: Judge) -> None:
    """Where repeated calls gave other bits: whether they do so where no sum has more than two terms, so that no order of
    additions explains it. Results are compared that lie alike in memory, from arrays that do, as vector code may treat its
    first numbers otherwise."""
    small = [t.case for t in check.trials if t.case.size in ("small", "shrunk")][:OFTEN]
    for case in (one for each in small for one in (each, *_shortened(each))):
        trial, kernel = check.trial(case)
        if not _repeats_in_any_order(trial):
            continue
        known: dict[tuple[int | None, ...], Bits] = {}
        try:
            for _ in range(WAVERS):
                request = kernel.prepare(trial.case, check.format, check.out)
                answer = kernel(request)
                arrays = (*answer.results, *answer.arrays.values())
                key = tuple(None if x.place is None else x.place[0] % ALIGNED for x in arrays)
                bits = bits_of(answer.results)
                if not same(known.setdefault(key, bits), bits):
                    name, a, b = next(
                        (n, a, b)
                        for n, a, b in zip(trial.names, known[key], bits, strict=True)
                        if not np.array_equal(a, b)
                    )
                    text = f"{name}: the same call has other bits in {np.count_nonzero(a != b)} of {a.size} elements"
                    text += ", where no sum has more than two terms, whose order changes nothing"
                    check.report.findings.append(Finding("repeat", text, check.line(case)))
                    return
        except (Failure, NotImplementedError):
            continue


def _shortened(case: Case) -> Iterator[Case]:
    """The case with each length alone 1."""
    known = lengths_of(case)
    if case.op.signature.lists or case.op.signature.elementwise:
        return
    for name in free_sizes(case.op):
        value: Any = known.get(name, ())
        one = [1] if isinstance(value, int) else [[*value[:i], 1, *value[i + 1 :]] for i in range(len(value))]
        for each in one:
            if (made := resized(case, {**known, name: each})) is not None and not is_empty(made):
                yield made


def _repeats_in_any_order(trial: Trial) -> bool:
    """Whether no sum that the analysis of the errors meets has more than two terms."""
    if trial.model is None or trial.case.op.family == "spectral" or trial.empty:
        return False
    most = 0

    def height(terms: int) -> int:
        nonlocal most
        most = max(most, terms)
        return max(terms - 1, 0)

    again = Trial(trial.case, trial.format, replace(trial.model, height=height), trial.taken)
    try:
        return again.tracked and most <= 2
    except (AttributeError, TypeError, ValueError):
        return False


def _batch_of(case: Case) -> str | None:
    """The first dimension whose parts do not depend on each other, and of which there are several."""
    independent = [d for d in independent_dimensions(case.op, case.which) if d not in case.op.drawing.fixed]
    return next((d for d in independent if d == ELEMENTS or case.values[d] > 1), None)


@told
def batches(check: Judge, case: Case) -> None:
    """Whether a part of the batch has the bits alone that it has in the whole, and the same whatever the rest holds."""
    dim = _batch_of(case)
    if dim is None:
        return
    n = case.shape(case.signature.outputs[0])[0] if dim == ELEMENTS else case.values[dim]
    others = case if case.data in SPECIAL else altered.beside(case, dim, n // 2)
    whole, part, beside = (check.bits(c) for c in (case, part_of(case, dim, n // 2, n), others))
    for i, array in enumerate(case.signature.outputs):
        axis = array.dims.index(dim)

        def kept_part(bits: Bits, i: int = i, axis: int = axis) -> np.ndarray:
            return bits[i].take(range(bits[i].shape[axis] - (n - n // 2), bits[i].shape[axis]), axis)

        a, b, c = (kept_part(bits) for bits in (whole, part, beside))
        check.report.batches = bool(np.array_equal(a, b)) and check.report.batches is not False
        if others is case or (a == c).all():
            if others is not case:
                check.report.neighbours = check.report.neighbours is not False
            continue
        check.report.neighbours = False
        if case.op.family in PRODUCTS or any(f.kind in ("value", "batch", "stale") for f in check.report.findings):
            continue
        # of an order of sums that changes from call to call both have now these bits and now those
        turns = [(x, bits) for _ in range(TURNS) for x, bits in ((case, a), (others, c))]
        if all(np.array_equal(kept_part(check.bits(x)), bits) for x, bits in turns):
            name = "elements" if dim == ELEMENTS else dim
            text = f"{array.name}: depends on what other {name} hold: {np.count_nonzero(a != c)} of {a.size} elements change"
            check.report.findings.append(Finding("batch", text, check.line(case)))
        else:
            check.report.repeats = False
