"""Checks of a kernel against the specification, or against a reference of the user's own."""

import itertools
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from tlspec import formats, laws
from tlspec.arrays import CANARY, Arrays
from tlspec.bounds import call_named
from tlspec.compare import Comparison
from tlspec.draw.cases import (
    EDGE_WORK,
    EDGES,
    SHAPE,
    SIZES,
    Case,
    data_classes,
    free_sizes,
    is_empty,
    long_lengths,
    shape_case,
    shape_of,
    stretched,
)
from tlspec.formats import Format
from tlspec.judge import kept, repetition
from tlspec.judge.apart import Apart, Ended, Here, TimedOut, ends_processes, kernel_of
from tlspec.judge.arithmetic import MIXED, arithmetic
from tlspec.judge.contract import Contract, constrained, contract
from tlspec.judge.kernel import Adapter, Kernel
from tlspec.judge.mutants import sensitivity
from tlspec.judge.probe import accumulator_of, word_of
from tlspec.judge.recorded import shapes_of
from tlspec.judge.repetition import Bits, bits_of, same
from tlspec.judge.report import Finding, Report, Row, name_of, word_for
from tlspec.judge.runner import Answer, Failure, Plain, Raised, Request
from tlspec.judge.shrink import lengths_of, resized, shrink
from tlspec.judge.subject import subject_of
from tlspec.judge.trial import Trial, quantised
from tlspec.registry import Op
from tlspec.running import Model

#: cases of each size and direction, by default
CASES = {"small": 24, "medium": 6, EDGES: 8, "large": 1}
#: multiply-adds of the reference in a large case, of a row that counts them
LARGE_WORK = 2**26
#: what a kernel's NotImplementedError is
UNSUPPORTED = "unsupported"
#: the end of a case's address whose arrays are not contiguous
STRIDED = ":strided"
#: of how many trials the sensitivity is measured
PLANTED = 16
#: the lengths of cases whose lengths are all equal: beyond a tile of 32, and no multiple of 4; and those of tiles
EQUAL = (33, 16, 64, 128)
#: how many axes and how many choices of whole numbers are tried with a long axis
LONGER = 4
#: seconds of the processor for the search of a smaller case
SHRINK_SECONDS = 15.0
#: calls that end the kernel's process, after which a check ends
CRASHES = 3


class Check:
    """One kernel, one direction, and how it is judged."""

    def __init__(
        self, function: Apart | Here, op: Op, which: str, fmt: Format, out: Format, model: Model | None,
        arguments: str | Adapter | None, report: Report, repeat: Callable[[str], str], contract: Contract | None = None,
    ):  # fmt: skip
        self.function, self.op, self.which = function, op, which
        self.format, self.out, self.model, self.arguments = fmt, out, model, arguments
        self.report, self.repeat, self.contract = report, repeat, contract or Contract()
        self.trials: list[Trial] = []
        #: for each call, what the outputs hold that it writes: NaN, or numbers, which it may take for a sum that it has begun
        self.seeds = (seed if seed % 2 else None for seed in itertools.count())
        self.garbage: int | None = None

    def line(self, case: Case, ending: str = "") -> str:
        """The line of Python that repeats a case."""
        return self.repeat(address_of(case) + ending)

    def trial(self, case: Case) -> tuple[Trial, Kernel]:
        """The case in the kernel's format, and the kernel."""
        case = self.in_format(case)
        kernel = self.kernel(case)
        taken = frozenset(kernel.taken) if case.which == "vjp" and kernel.adapter is None else None
        known = kept.found_of(case, (self.out.name, self.model, taken))
        return Trial(case, self.out, self.model, taken, known), kernel

    def in_format(self, case: Case) -> Case:
        """The case with its arrays rounded to the format."""
        return kept.derived(case, self.format.name, lambda: quantised(case, self.format))

    def kernel(self, case: Case) -> Kernel:
        return Kernel(self.function, None, case, self.arguments)

    def call(self, case: Case, kernel: Kernel, request: Request, *, hold: bool = False) -> Answer:
        """One call. Raises Failure, or NotImplementedError also where the kernel refuses what the contract lets it refuse."""
        try:
            return kernel(request, hold=hold)
        except Raised as error:
            if self.contract.may_refuse(case, error):
                raise NotImplementedError from None
            raise

    def results(self, case: Case, *, hold: bool = False) -> list[Plain]:
        """The results of a case that is in the format. Raises Failure where they have not its shapes."""
        kernel = self.kernel(case)
        self.garbage = next(self.seeds)
        request = kernel.prepare(case, self.format, self.out, garbage=self.garbage)
        results = self.call(case, kernel, request, hold=hold).results
        if any(r.patterns is None for r in results):
            raise Failure("a result of another shape")
        return results

    def bits(self, case: Case, *, hold: bool = False) -> Bits:
        return bits_of(self.results(case, hold=hold))

    def problems(
        self, trial: Trial, kernel: Kernel, row: Row | None = None, *, strided: bool = False, again: bool = False
    ) -> Iterator[tuple[str, str]]:
        """What is wrong with the kernel's results on a trial: kinds and texts. With `again` outputs that the kernel writes hold
        before what they held before the last call."""
        self.garbage = self.garbage if again else next(self.seeds)
        request = kernel.prepare(trial.case, self.format, self.out, strided=strided, garbage=self.garbage)
        try:
            answer = self.call(trial.case, kernel, request)
            outcomes = self.compared(trial, kernel, answer.results)
        except Failure as failure:
            yield failure.kind, str(failure)
            return
        except NotImplementedError:
            yield UNSUPPORTED, "the kernel does not support the case"
            return
        for name, found in zip(trial.names, outcomes, strict=True):
            if row is not None and found.ok:
                row.share, row.ulp = max(row.share, found.share), max(row.ulp, found.ulp)
                row.elements += found.count
            if not found.ok:
                yield "value", found.explain(name) + (", from arrays that are not contiguous" if strided else "")
        for name, canary in answer.canaries.items():
            if (canary != CANARY).any():
                yield "canary", f"{name}: memory beside the output was written"
        for name, (_, before) in request.arrays.items():
            if name not in kernel.over.values() and not np.array_equal(before, answer.arrays[name].patterns):  # type: ignore[arg-type]
                yield "inputs", f"{name}: the kernel changed its input"
        yield from self._aliases(trial, kernel, answer)

    def compared(self, trial: Trial, kernel: Kernel, results: Sequence[Plain]) -> list[Comparison]:
        """The results beside the reference. Raises Failure for another format or shape."""
        places = zip(trial.names, results, trial.shapes, strict=True)
        numbers = [kernel.numbers(n, r, s, self.out) for n, r, s in places]
        self.report.calls += not trial.empty
        return trial.compare(numbers)

    def _aliases(self, trial: Trial, kernel: Kernel, answer: Answer) -> Iterator[tuple[str, str]]:
        """Results that share memory with each other or with inputs, but for an input that the operation overwrites. What is moved
        only may share it, and a gradient may where the elements are equal."""
        if trial.case.bound.kind == "moved":
            return
        inputs = {n: x for n, x in answer.arrays.items() if n not in kernel.over.values()}
        arrays = [*zip(trial.names, answer.results, strict=True), *inputs.items()]
        known = [(n, x, x.place) for n, x in arrays if x.place is not None]
        for i, (name, result, (start, end)) in enumerate(known):
            if name not in trial.names:
                break
            for other, x, (first, last) in known[i + 1 :]:
                equal = trial.case.which == "vjp" and same(bits_of([result]), bits_of([x]))
                if start < last and first < end and not equal:
                    yield "alias", f"{name} shares memory with {other}"

    def run(self, case: Case, *, strided: bool = False) -> None:
        """One case into the report."""
        trial, kernel = self.trial(case)
        row = self._row(case)
        found = list(self.problems(trial, kernel, row, strided=strided))
        if found and found[0][0] == UNSUPPORTED:
            self.report.unsupported += 1
            return
        row.cases += 1
        row.empty += trial.empty
        row.blind += trial.blind and not trial.empty
        row.failed += bool(found)
        kept.weigh(trial.case)
        if case.size == SHAPE:
            sizes = case.dims or {"n": lengths_of(case)["n"]}
            total, lengths = sum(map(math.prod, trial.shapes)), ", ".join(f"{k}={v}" for k, v in sizes.items())
            share = f"{trial.sampled / total:.2%} of {total} results in {trial.seconds:.2f} s"
            told = share if trial.large else "all results"
            self.report.sampled.append(f"{lengths}, {case.data}: {told}")
        if len(self.trials) < PLANTED and not trial.empty and not trial.blind and not trial.large:
            self.trials.append(trial)
        for kind, text in found:
            first = not any(f.kind == kind for f in self.report.findings)
            shrinks = first and not strided and kind != TimedOut.kind and case.size != SHAPE
            end = time.process_time() + SHRINK_SECONDS
            smaller = shrink(case, partial(self._has, kind, end)) if shrinks else case
            if smaller is not case:
                again = (t for k, t in self.problems(*self.trial(smaller)) if k == kind)
                text = next(again, text)  # a fault may come and go
            self.report.findings.append(Finding(kind, text, self.line(smaller, STRIDED * strided)))

    @property
    def ended(self) -> bool:
        """Whether so many calls ended the kernel's process that more would tell nothing."""
        counts = Counter(f.kind for f in self.report.findings)
        return counts[TimedOut.kind] > 0 or counts[Ended.kind] >= CRASHES

    def _has(self, kind: str, end: float, case: Case) -> bool:
        """Whether a case has a problem of a kind; no case has that the reference refuses, nor one after the end of the search."""
        try:
            if time.process_time() > end:
                return False
            trial, kernel = self.trial(case)
            return any(k == kind for k, _ in self.problems(trial, kernel))
        except (IndexError, TypeError, ValueError):
            return False

    def add(self, failure: Failure, case: Case) -> None:
        """A failure that no finding tells yet."""
        if all(f.kind != failure.kind for f in self.report.findings):
            self.report.findings.append(Finding(failure.kind, str(failure), self.line(case)))

    def laws(self, seeds: Sequence[int]) -> None:
        """The row's laws. One that says bits of another part of the result is about batches."""
        world = _World(self)
        for law in self.op.contract.laws:
            # one needs the gradient, the other says bits of two rows, which is a promise of this project's kernels alone
            if law.name == "adjoint" or re.search(r"= \w+ of ", law.text):
                continue
            for seed in seeds:
                case = kept.drawn(self.op, seed, law.data[seed % len(law.data)], "small", "forward")
                try:
                    share, where = laws.check(law, world, case, signed_zeros=self.op.bound.kind == "moved")
                except Exception:
                    continue
                if share > 1 and "does not depend on the others" in law.text:
                    self.report.batches = False
                elif share > 1:
                    text = f"{law.text} does not hold: {where}"
                    self.report.findings.append(Finding("law", text, self.line(case)))
                    break

    def _row(self, case: Case) -> Row:
        for row in self.report.rows:
            if (row.which, row.data) == (case.which, case.data):
                return row
        self.report.rows.append(Row(case.which, case.data))
        return self.report.rows[-1]


class _World:
    """A kernel as the laws see it."""

    def __init__(self, check: Check):
        self.check, self.name = check, check.report.name

    def results(self, case: Case) -> list[np.ndarray]:
        if case.op.name != self.check.op.name:  # of a law about two operations, whose shapes may agree
            raise TypeError(f"{self.name} is no kernel of {case.op.name}")
        trial, kernel = self.check.trial(case)
        results = kernel(kernel.prepare(trial.case, self.check.format, self.check.out)).results
        numbers = [
            kernel.numbers(n, r, s, self.check.out) for n, r, s in zip(trial.names, results, trial.shapes, strict=True)
        ]
        return [x.astype(np.float32) for x in numbers]

    def tolerances(self, case: Case) -> list[np.ndarray]:
        trial, _ = self.check.trial(case)
        return [
            np.maximum(t, self.check.out.spacing(o) / 2) for o, t in zip(trial.outputs, trial.tolerances, strict=True)
        ]


def address_of(case: Case) -> str:
    """A case in a few words: direction, seed, data class, size, and lengths where it was made smaller."""
    words = ", ".join(f"{k}={v}" for k, v in lengths_of(case).items())
    lengths = f"; {words}" if case.size in ("shrunk", SHAPE) else ""
    size = case.command if case.size == "shrunk" else case.size
    return f"{case.which}:{case.seed}:{case.data}:{size}{lengths}".replace("forward:", "")


def case_at(op: Op, address: str) -> Case:
    """The case that a line of a report names: ``[vjp:]SEED:DATA:SIZE[; rows=2, cols=3]``. Raises ValueError."""
    first, _, lengths = address.partition(";")
    parts = first.strip().split(":")
    which = parts.pop(0) if parts[0] in ("vjp", "forward") else "forward"
    if len(parts) != 3 or not parts[0].isdigit():
        raise ValueError(f"case={address!r}: expected SEED:DATA:SIZE, as in 3:normal:small")
    shaped = parts[2] == SHAPE
    case = kept.drawn(op, int(parts[0]), parts[1], "small" if shaped else parts[2], which)
    if not lengths.strip():
        return case
    known = lengths_of(case)
    given = dict(item.split("=", 1) for item in re.sub(r"\[[^]]*\]|\s", "", lengths).split(",") if "=" in item)
    if unknown := sorted(set(given) - set(known)):
        raise ValueError(f"case={address!r}: {op.name} has no {unknown[0]}; it has {', '.join(known)}")
    lists = {k: [int(n) for n in v.split(",") if n.strip()] for k, v in re.findall(r"(\w+)=\[([^]]*)\]", lengths)}
    numbers = {k: type(known[k])(v) for k, v in given.items() if v and isinstance(known[k], (int, float))}
    values = {**known, **lists, **numbers}
    found = shape_case(op, which, values, int(parts[0]), parts[1]) if shaped else resized(case, values)
    if found is None:
        raise ValueError(f"case={address!r}: {op.name} refuses these lengths")
    return found


@ends_processes
def check(
    function: Callable[..., Any] | str | None, op: str | Op | None = None, *, backward: Callable[..., Any] | str | None = None,
    reference: Callable[..., Any] | None = None, inputs: str | Mapping[str, Any] | None = None,
    dtype: Any = "float32", out_dtype: Any = None, array: str | Arrays = "numpy",
    arguments: str | Adapter | None = None, backward_arguments: str | Adapter | None = None,
    cases: int | Mapping[str, int] | None = None, data: str | Sequence[str] | None = None, empty: bool = True, seed: int = 0,
    case: str | None = None, bound: str = "kernel", sensitive: bool = True,
    accumulate: str = "", height: str | Callable[[int], int] = "any", ulp: str | float | Mapping[str, Any] = "documented",
    products: str = "", intermediate: str = "", flush: bool = False, saturate: bool = False, full_range: bool = False,
    mixed: str = "", shapes: Any = None, layouts: str = "any", refuses: Any = None, fixed: Mapping[str, Any] | None = None,
    formulas: Sequence[Callable[..., Any]] = (), progress: Callable[[str], None] | None = None,
    isolate: bool | None = None, timeout: float | None = None, memory: int | None = None, repeats: int | None = None,
) -> Report:  # fmt: skip
    """Checks a kernel against an operation's row, or against a reference in NumPy.

    The tolerance of each element comes from running error analysis of the reference (:mod:`tlspec.running`) under what
    the words of :mod:`tlspec.judge.arithmetic` say of the kernel's arithmetic. The kernel runs in a process of its own
    that holds no expected values (:mod:`tlspec.judge.apart`). What cannot be sent there runs in this process, and the
    report says so.

    Parameters
    ----------
    function : callable, str or None
        Takes and returns arrays; or its name, "module:function" or "file.py:function", which this process then does not
        import. None checks `backward` alone.
    op : str or Op, optional
        The operation, where there is no `reference`.
    backward : callable or str, optional
        The gradient's function, of the row's inputs and outputs and the cotangent g.
    reference : callable, optional
        A reference in NumPy, in place of a row's.
    inputs : str or mapping, optional
        The signature of the `reference`; see :mod:`tlspec.judge.subject`.
    dtype : str, default 'float32'
        The number format of the arrays.
    out_dtype : str, optional
        That of the results.
    array : str, default 'numpy'
        The library of the arrays (:mod:`tlspec.arrays`).
    arguments : str or Adapter, optional
        The order of the arguments where it is not the row's (:mod:`tlspec.judge.kernel`).
    backward_arguments : str or Adapter, optional
        The same of `backward`.
    cases : int or mapping of str to int, optional
        The number of small cases, or one number for each size.
    data : str or sequence of str, optional
        The data classes (:mod:`tlspec.data`).
    empty : bool, default True
        Whether sizes of 0 are tried.
    seed : int, default 0
        Of the drawn cases.
    case : str, optional
        One case of a report's line.
    bound : str, default 'kernel'
        "kernel": by running error analysis; "row" takes the row's own tolerance, which holds for this project's float32
        kernels.
    sensitive : bool, default True
        Whether defects are planted, to see that the cases would catch them.
    accumulate : str, default ''
        The format in which sums are accumulated.
    height : str or callable, default 'any'
        The height of a sum's tree.
    ulp : str, float or mapping, default 'documented'
        Largest errors of elementary functions, in ulp.
    products : str, default ''
        The format to which operands of matrix products are rounded first.
    intermediate : str, default ''
        The format of all other intermediate results.
    flush : bool, default False
        Subnormal float32 numbers may count as zero.
    saturate : bool, default False
        Results beyond the largest number are that number.
    full_range : bool, default False
        Nothing overflows on the way to a result that can be represented.
    mixed : str, default ''
        Words for kernels of several formats.
    shapes : callable or sequence of mapping, optional
        Lengths to try besides: dictionaries of dimensions, or a function without arguments whose calls of PyTorch are
        recorded (:mod:`tlspec.judge.recorded`). At large ones a sample of the results is compared.
    layouts : str, default 'any'
        "contiguous": arrays have no gaps.
    refuses : str, callable or list, optional
        Cases that it may refuse by ValueError, AssertionError or RuntimeError: "empty", an expression such as "cols >
        1024", or a function of dimensions and parameters.
    fixed : mapping, optional
        Parameters or dimensions of one value.
    formulas : sequence of callable, default ()
        Further references in NumPy of what it computes: it may have the errors of one of them.
    progress : callable, optional
        Called with a line now and then.
    isolate : bool, optional
        True refuses what cannot run in a process of its own, False runs every kernel in this one.
    timeout : float, optional
        Seconds that one call may take; 300 unless given.
    memory : int, optional
        Bytes of the process; those of the machine unless given.
    repeats : int, optional
        Further calls of a few small cases, for faults that come and go; 500 to 1000, of at most a second, unless given.

    Returns
    -------
    Report
        The verdict, with a table as its text.

    Raises
    ------
    ValueError
        What is no operation, format, library or word.
    ImportError
        A library that is not installed.
    """
    start = time.perf_counter()
    row = constrained(subject_of(op, reference, inputs), fixed, formulas)
    if mixed and mixed not in MIXED:
        raise ValueError(f"mixed={mixed!r}: expected {', '.join(MIXED)}")
    preset = MIXED.get(mixed, {})
    dtype = preset.get("dtype", dtype) if dtype == "float32" else dtype
    out_dtype, accumulate = out_dtype or preset.get("out_dtype"), accumulate or preset.get("accumulate", "")
    products, terms = products or preset.get("products", ""), contract(layouts, refuses)
    fmt = formats.get(dtype)
    out = fmt if out_dtype is None else formats.get(out_dtype)
    kernels = {
        which: kernel_of(f, adapter if callable(adapter) else None, array, isolate, timeout, memory)
        for which, f, adapter in (("forward", function, arguments), ("vjp", backward, backward_arguments))
        if f is not None
    }
    if not kernels:
        raise ValueError("check: got neither a kernel nor backward=, expected a function")
    library = next(iter(kernels.values()))
    if accumulate == "probe" and function is not None:
        found = accumulator_of(lambda c: Kernel(kernels["forward"], None, c, arguments), row, fmt)
        accumulate = word_of(found) if found is not None else ""
    model = None if bound == "row" else arithmetic(
        fmt, accumulate=accumulate, height=height, ulp=ulp, products=products, intermediate=intermediate, flush=flush,
        saturate=saturate, full_range=full_range,
    )  # fmt: skip
    subject = backward if function is None else function
    name, text = word_for(subject, "kernel"), name_of(subject)
    words = {"accumulate": accumulate, "height": height if height != "any" else "", "ulp": ulp if ulp != "documented" else "",
             "products": products, "intermediate": intermediate, "flush": flush, "saturate": saturate,
             "full_range": full_range}  # fmt: skip
    said = {k: v for k, v in words.items() if v}
    words_said = ", ".join(f"{k}={v}" for k, v in said.items()) or "any order of sums"
    assumptions = "the row's own bound" if model is None else words_said
    report = Report(
        text, row.name, fmt.name + (f" -> {out.name}" if out is not fmt else ""), library.name, assumptions,
        isolated=library.apart, process=getattr(library, "reason", ""),
    )  # fmt: skip
    options = {"dtype": fmt.name, "array": library.name, **({"out_dtype": out.name} if out is not fmt else {}), **said,
               "arguments": arguments, "backward_arguments": backward_arguments, "bound": bound,
               "isolate": None if isolate else isolate, "layouts": layouts, "fixed": dict(fixed) if fixed else None,
               "refuses": None if callable(refuses) else refuses}  # fmt: skip
    plain = {"dtype": "float32", "array": "numpy", "bound": "kernel", "layouts": "any"}

    def repeat(address: str) -> str:
        given = {k: k if callable(v) else repr(v) for k, v in options.items() if plain.get(k) != v}
        if address.startswith("vjp:"):
            given = {"backward": word_for(backward, "backward"), **given}
        more = "".join(
            f", {k}={v}" for k, v in given.items() if address.startswith("vjp:") or not k.startswith("backward")
        )
        how = (
            f'"{row.name}"'
            if row.family != "user"
            else f"reference={word_for(reference, 'reference')}, inputs={row.text!r}"
        )
        return f"tlspec.check({'None' if function is None else name}, {how}{more}, case={address!r})"

    for which, kernel in kernels.items():
        rule = arguments if which == "forward" else backward_arguments
        judge = Check(kernel, row, which, fmt, out, model, rule, report, repeat, terms)
        if case is not None:
            chosen = case_at(row, case.removesuffix(STRIDED))
            if chosen.which == which:
                judge.run(chosen, strided=case.endswith(STRIDED))
                repetition.repeats(judge, chosen)
                repetition.batches(judge, chosen)
                repetition.often(judge, repeats or 0)
            continue
        drawn = list(drawn_cases(row, which, cases, data, empty, seed))
        drawn += [*seldom_drawn(drawn, empty), *_shaped(row, which, shapes, data, seed)]
        repeated = set[str]()
        for i, each in enumerate(drawn):
            if judge.ended:
                report.notes.append(f"{which}: ended after {i} of {len(drawn)} cases, as the kernel's process did")
                break
            judge.run(each, strided=i % 5 == 4 and library.mutable and terms.strided and each.size != SHAPE)
            seldom = each.size in ("large", SHAPE) or not all(each.dims.values())
            if each.data not in repeated and not seldom:  # one of each data class
                repeated.add(each.data)
                repetition.repeats(judge, each)
                repetition.batches(judge, each)
            if progress is not None:
                progress(f"{which}: case {i + 1} of {len(drawn)}")
        if which == "forward" and fmt is out and fmt.name == "float32" and not judge.ended:
            judge.laws(range(seed, seed + 2))
        if not report.findings:
            repetition.often(judge, repeats)
        if sensitive:
            for mutant, (caught, changed) in sensitivity(judge.trials).items():
                report.sensitivity[mutant if which == "forward" else f"{mutant} (vjp)"] = caught, changed
    report.seconds = time.perf_counter() - start
    return report


def drawn_cases(op: Op, which: str, cases: Any, data: Any, empty: bool, seed: int) -> Iterator[Case]:
    """The cases of a check: sizes and data classes in turn."""
    wanted = {"small": cases, "medium": cases // 4, EDGES: cases // 3} if isinstance(cases, int) else cases or {}
    counts = {**({} if isinstance(cases, Mapping) else CASES), **wanted}
    if unknown := sorted(set(counts) - set(SIZES)):
        raise ValueError(f"cases={cases!r}: no size {unknown[0]!r}; there are {', '.join(SIZES)}")
    further = ("offset", "spread") if op.bound_of(which).kind not in ("exact", "moved") else ()
    classes = [data] if isinstance(data, str) else [*data_classes(op, which), *further] if data is None else list(data)
    for size, count in counts.items():
        made = tried = 0
        # of large cases those with exact sums first, so that no bound hides what is left out
        turns = sorted(classes, key=lambda c: c != "integers") if size == "large" else classes
        while made < count and tried < 4 * count + 8:
            each = kept.drawn(op, seed + tried // len(turns), turns[tried % len(turns)], size, which)
            tried += 1
            work = op.drawing.work
            if size == "large" and work is not None and call_named(work, each.values) > LARGE_WORK:
                continue
            if empty or not is_empty(each):
                made += 1
                yield each


def _shaped(op: Op, which: str, shapes: Any, data: Any, seed: int) -> Iterator[Case]:
    """The cases of given shapes, of the data classes that are wanted, else of normal numbers and, where their sums are exact, of
    integers."""
    classes = [data] if isinstance(data, str) else [c for c in ("normal", "integers") if c in data_classes(op, which)]
    classes = list(data) if data is not None and not isinstance(data, str) else classes
    for given in shapes_of(shapes, op):
        yield from (shape_case(op, which, given, seed, each) for each in classes)


def seldom_drawn(drawn: Sequence[Case], empty: bool) -> list[Case]:
    """Of small cases, one with each length alone 1 and, where `empty` cases are wanted, 0; with all lengths equal, in which
    exchanged axes go unnoticed by shape, odd ones and those of whole tiles; and with each axis long. Draws have these seldom or
    by chance. What the row refuses is left out."""
    small = [c for c in drawn if c.size == "small" and not is_empty(c)]
    if not small or small[0].op.signature.lists:
        return []
    case, sig = small[0], small[0].op.signature
    known = lengths_of(case)
    names = [n for n in free_sizes(case.op) if n in known]
    chosen: list[tuple[Case, dict[str, Any]]] = []
    for length in (1, 0) if empty else (1,):
        for name in names:
            value = known[name]
            if isinstance(value, (list, tuple)):
                chosen += [(case, {name: [*value[:i], length, *value[i + 1 :]]}) for i in range(len(value))]
            elif value != length:
                chosen.append((case, {name: length}))
    square = next((c for c in small if all(np.size(c.values.get(n, 0)) in (1, 2) for n in names)), case)
    for equal in EQUAL:
        values = {n: v for n, v in lengths_of(square).items() if n in names}
        own = {n: [equal] * len(v) if isinstance(v, (list, tuple)) else equal for n, v in values.items()}
        chosen.append((square, own))
        if len(names) > 2 and isinstance(known[names[0]], int):  # tiles of a batch, which all together are too large
            chosen.append((square, {**own, names[0]: 3}))
    # whole numbers choose an axis or a direction: of each choice that was drawn one case
    whole = [p.name for p in sig.params if p.kind == "u32"]
    several = list({tuple(c.values[n] for n in whole): c for c in reversed(small)}.values())[-LONGER:]
    for each in several:
        values = {n: v for n, v in lengths_of(each).items() if n in names}
        places = sum(len(v) if isinstance(v, (list, tuple)) else 1 for v in values.values())
        lengths = long_lengths(each.op, SIZES[EDGES])
        wide = bool(sig.indices) or any(a.kind == "u32" for a in sig.inputs)
        lengths = sorted({*lengths[:1], *lengths[-1:]}) if wide else lengths[:1]  # of indices all bits
        chosen += [(each, stretched(values, names, i, n)) for n in lengths for i in range(min(places, LONGER))]
    wanted = ((of, {**lengths_of(of), **lengths}) for of, lengths in chosen)
    made = (resized(of, values) for of, values in wanted if _cheap(of.op, values))
    return [c for c in made if c is not None]


def _cheap(op: Op, values: Mapping[str, Any]) -> bool:
    """Whether a case of these values, which the row may refuse, is small."""
    try:
        size = sum(math.prod(shape_of(a, values)) for a in (*op.signature.inputs, *op.signature.outputs))
        work = 0 if op.drawing.work is None else call_named(op.drawing.work, values)
    except (IndexError, KeyError, TypeError, ValueError):
        return False
    return size <= SIZES[EDGES] and work <= EDGE_WORK
