"""Checks of a kernel against the specification, or against a reference of the user's own."""

import itertools
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from tlspec import formats, laws
from tlspec.arrays import CANARY, LAYOUTS, Arrays
from tlspec.compare import Comparison
from tlspec.draw.cases import SHAPE, Case, shape_case
from tlspec.formats import Format
from tlspec.judge import altered, kept, repetition
from tlspec.judge.apart import Beside, Ended, Here, Runs, TimedOut, ends_processes, kernels_of, prepare
from tlspec.judge.arithmetic import MIXED, arithmetic
from tlspec.judge.blocks import LARGE, elements_of
from tlspec.judge.choice import (
    drawn_cases,
    far_kind,
    is_long,
    is_wide,
    path_cases,
    seldom_drawn,
    shaped_cases,
    without_refused,
)
from tlspec.judge.contract import Contract, constrained, contract
from tlspec.judge.formulas import further
from tlspec.judge.kernel import MATRICES, Adapter, Kernel
from tlspec.judge.mutants import sensitivity
from tlspec.judge.probe import accumulator_of, word_of
from tlspec.judge.repetition import UNSUPPORTED, Bits, Refused, bits_of, same
from tlspec.judge.report import Finding, Report, Row, name_of, word_for
from tlspec.judge.runner import Answer, Failure, Plain, Raised, Request, load_named
from tlspec.judge.shrink import has_fixed, lengths_of, resized, shrink
from tlspec.judge.subject import subject_of
from tlspec.judge.trial import Trial, quantised, with_results
from tlspec.registry import Op
from tlspec.running import Model

#: the ends of addresses of cases whose arrays lie otherwise than contiguously, and what is said of them
ENDING = {
    "": "", "gaps": ":strided", "rows": ":rows", "transposed": ":transposed", "inner": ":inner", "channels": ":channels",
    "expanded": ":expanded", "offset": ":offset", "backwards": ":backwards", "mixed": ":mixed",
    "gradients": ":gradients",
}  # fmt: skip
FROM = {
    "": "", "gaps": ", from arrays that are not contiguous", "rows": ", from arrays with room behind each row",
    "transposed": ", from arrays whose axes lie in reversed order",
    "inner": ", from arrays in whose memory the second and third axes from the end are exchanged",
    "channels": ", from arrays whose second axis lies last in memory", "expanded": ", from arrays with strides of 0",
    "offset": ", from arrays that begin one element behind an aligned address",
    "backwards": ", from arrays with negative strides", "mixed": ", from arrays that lie in different ways",
    "gradients": ", from arrays that require gradients",
}  # fmt: skip
#: of how many trials the sensitivity is measured
PLANTED = 16
#: seconds of the processor for the search of a smaller case
SHRINK_SECONDS = 15.0
#: seconds of a case with a long axis, by which the same with a longer one would take very long, as in an interpreter
SLOW_SECONDS = 1.0
#: how many cases of which the same axes are long are tried with all other numbers
FAR = 2
#: calls that end the kernel's process, after which a check ends
CRASHES = 3


class Check:
    """One kernel, one direction, and how it is judged."""

    def __init__(
        self, function: Runs, op: Op, which: str, fmt: Format, out: Format, model: Model | None,
        arguments: str | Adapter | None, report: Report, repeat: Callable[[str], str], contract: Contract | None = None,
        fail_fast: bool = False,
    ):  # fmt: skip
        self.function, self.op, self.which = function, op, which
        self.format, self.out, self.model, self.arguments = fmt, out, model, arguments
        self.report, self.repeat, self.contract = report, repeat, contract or Contract()
        self.trials: list[Trial] = []
        #: seconds that the reference took for the last case
        self.cost = 0.0
        #: for each call, what the outputs hold that it writes: NaN, or numbers, which it may take for a sum that it has begun
        self.seeds = (seed if seed % 2 else None for seed in itertools.count())
        self.garbage: int | None = None
        #: by the name of a formula that the author did not name: whether all wrong results are within its bound
        self.within: dict[str, bool] = {}
        #: whether one finding is enough
        self.fail_fast = fail_fast

    def line(self, case: Case, layout: str = "") -> str:
        """The line of Python that repeats a case."""
        return self.repeat(address_of(case) + ENDING[layout])

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

    def called(self, case: Case, *, hold: bool = False) -> tuple[Request, Answer]:
        """A call of a case whose arrays are in the format. Raises Failure where results have not its shapes."""
        case = with_results(case, self.format)
        kernel = self.kernel(case)
        self.garbage = next(self.seeds)
        request = kernel.prepare(case, self.format, self.out, garbage=self.garbage)
        answer = self.call(case, kernel, request, hold=hold)
        if any(r.patterns is None for r in answer.results):
            raise Failure("a result of another shape")
        return request, answer

    def results(self, case: Case) -> list[Plain]:
        return self.called(case)[1].results

    def bits(self, case: Case) -> Bits:
        return bits_of(self.results(case))

    def problems(
        self, trial: Trial, kernel: Kernel, row: Row | None = None, *, layout: str = "", shared: bool = False,
        again: bool = False, reuse: bool = False,
    ) -> Iterator[tuple[str, str]]:  # fmt: skip
        """What is wrong with the kernel's results on a trial: kinds and texts. With `again` outputs that the kernel writes hold
        before what they held before the last call, with `reuse` the arguments are the arrays of the last call that held them."""
        self.garbage = self.garbage if again else next(self.seeds)
        request = kernel.prepare(trial.case, self.format, self.out, layout=layout, shared=shared, garbage=self.garbage)
        request.reuse = reuse
        try:
            answer = self.call(trial.case, kernel, request)
            outcomes = self.compared(trial, kernel, answer.results)
        except Failure as failure:
            if layout == "gradients" and not isinstance(
                failure, Ended
            ):  # as of what is written over, or shown to NumPy
                return
            if layout in MATRICES and self.op.signature.elementwise and not isinstance(failure, Ended):
                # it takes arrays of one axis alone, which have no other order
                yield from self.problems(trial, kernel, row, layout="gaps", shared=shared, again=True)
                return
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
                yield "value", found.explain(name) + FROM[layout]
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
        found = trial.compare(numbers)
        if not all(c.ok for c in found) and trial.model is not None and self.which == "forward" and not trial.large:
            for name, op in further(self.op, self.format).items():
                again = Trial(replace(trial.case, op=op), trial.format, trial.model).compare(numbers)
                self.within[name] = self.within.get(name, True) and all(c.ok for c in again)
        return found

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
            if trial.case.which == "forward" and result.patterns is not None and end - start < result.patterns.nbytes:
                yield "alias", f"{name}: elements of it share memory"
            for other, x, (first, last) in known[i + 1 :]:
                equal = trial.case.which == "vjp" and same(bits_of([result]), bits_of([x]))
                if start < last and first < end and not equal:
                    yield "alias", f"{name} shares memory with {other}"

    def run(self, case: Case, *, layout: str = "") -> None:
        """One case into the report."""
        trial, kernel = self.trial(altered.laid(case, layout))
        row = self._row(case)
        found = list(self.problems(trial, kernel, row, layout=layout))
        self.cost = trial.cost
        if found and found[0][0] == UNSUPPORTED:
            self.report.unsupported += 1
            if not self.contract.leaves_out(case):
                self._refused(case, layout)
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
            shrinks = first and not layout and kind != TimedOut.kind and case.size != SHAPE
            end = time.process_time() + SHRINK_SECONDS
            smaller = shrink(case, partial(self._has, kind, end)) if shrinks else case
            if smaller is not case:
                again = (t for k, t in self.problems(*self.trial(smaller)) if k == kind)
                text = next(again, text)  # a fault may come and go
            self.report.findings.append(Finding(kind, text, self.line(smaller, layout)))

    def _refused(self, case: Case, layout: str) -> None:
        """A kernel that supports a shape supports all finite numbers in it, or its verdict is about those that it chooses."""
        self.report.undeclared += 1
        given = [x for x in (*case.inputs.values(), *case.cotangents.values()) if x is not None]
        if any(f.kind == Refused.kind for f in self.report.findings) or not all(np.isfinite(x).all() for x in given):
            return
        if not any(kind == UNSUPPORTED for kind, _ in self.problems(*self.trial(altered.plain(case)), layout=layout)):
            text = f"NotImplementedError for these numbers alone ({case.data}); data= names the classes that it is for"
            self.report.findings.append(Finding(Refused.kind, text, self.line(case, layout)))

    @property
    def ended(self) -> bool:
        """Whether so many calls ended the kernel's process that more would tell nothing, or one finding is enough."""
        counts = Counter(f.kind for f in self.report.findings)
        return (self.fail_fast and bool(counts)) or counts[TimedOut.kind] > 0 or counts[Ended.kind] >= CRASHES

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
                elif share > 1 and not repetition.is_steady(self, case):
                    self.report.repeats = False  # sums in another order at each call follow no law exactly
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
        if not has_fixed(self.check.op, case.values):
            raise ValueError(f"{self.name} is checked with fixed={dict(self.check.op.drawing.fixed)}")
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
    reference: Callable[..., Any] | str | None = None, inputs: str | Mapping[str, Any] | None = None,
    dtype: Any = "float32", out_dtype: Any = None, array: str | Arrays = "numpy",
    arguments: str | Adapter | None = None, backward_arguments: str | Adapter | None = None,
    cases: int | Mapping[str, int] | None = None, data: str | Sequence[str] | None = None, empty: bool = True, seed: int = 0,
    case: str | None = None, bound: str = "kernel", sensitive: bool = True,
    accumulate: str = "", height: str | Callable[[int], int] = "any", ulp: str | float | Mapping[str, Any] = "documented",
    products: str = "", intermediate: str = "", flush: bool = False, saturate: bool = False, full_range: bool = False,
    mixed: str = "", shapes: Any = None, layouts: str = "any", refuses: Any = None, fixed: Mapping[str, Any] | None = None,
    formulas: str | Callable[..., Any] | Sequence[str | Callable[..., Any]] = (), progress: Callable[[str], None] | None = None,
    isolate: bool | None = None, timeout: float | None = None, memory: int | None = None, repeats: int | None = None,
    fail_fast: bool = False,
) -> Report:  # fmt: skip
    """Checks a kernel against an operation's row, or against a reference in NumPy.

    The tolerance of each element follows from running error analysis of the reference (:mod:`tlspec.running`) under what is said
    of the kernel's arithmetic (:mod:`tlspec.judge.arithmetic`).

    Parameters
    ----------
    function : callable or str or None
        The kernel, of arrays of the library `array`, or its name, ``"module:function"`` or ``"file.py:function"``, which this
        process then does not import. None checks `backward` alone.
    op : str, optional
        The operation's name (``python -m tlspec list``).
    backward : callable or str, optional
        The gradient's function, of the row's inputs and outputs and the cotangent g, such as ``(out, g)``.
    reference : callable or str, optional
        In place of `op`: the meaning, a function of NumPy arrays, or its name as of `function`, which this process imports.
    inputs : str or mapping, optional
        The arrays and parameters of `reference`, as in ``"x[rows, cols], weight[cols]; eps: float = 1e-6"``
        (:mod:`tlspec.signature`), or arrays by name, whose shapes are taken.
    dtype, out_dtype : str
        The number formats of the arrays and, where it is another, of the results (:mod:`tlspec.formats`).
    array : str
        The library of the arrays and the device, such as ``"torch:cuda"`` (:mod:`tlspec.arrays`).
    arguments, backward_arguments : str or callable, optional
        The order and the keywords of the arguments, as in ``"x, dim=axis"``; or a function of the kernel and a dictionary of the
        arguments that makes the call.
    cases : int or mapping, optional
        How many small cases, or how many of each size: ``{"small": 24, "medium": 6, "edges": 8, "large": 1}``. Sizes that a
        mapping leaves out are not tried, nor are long axes that need them.
    data : str or sequence of str, optional
        The data classes (:mod:`tlspec.data`); by default the operation's.
    empty : bool
        Whether lengths of 0 are tried. Those that `reference` refuses are left out, and the report says so.
    seed : int
        The first seed of the drawn cases.
    case : str, optional
        The one case that the line of a finding names.
    bound : str
        ``"kernel"``, or ``"row"`` for the row's own bound, which holds for this project's float32 kernels.
    sensitive : bool
        Whether defects are planted in the reference's results, to say which of them the cases would catch.
    accumulate, height, ulp, products, intermediate, flush
        Words for the kernel's arithmetic (:mod:`tlspec.judge.arithmetic`).
    saturate : bool
        Whether results beyond the format are its largest number.
    full_range : bool
        Whether nothing may overflow on the way to a result that can be represented.
    mixed : str
        Words for kernels of several formats: ``"bf16"``, ``"fp16"``, ``"fp8"``, ``"int8"``.
    shapes : sequence of mappings, or callable, optional
        Lengths to be tried besides; or a function without arguments whose calls of PyTorch are recorded
        (:mod:`tlspec.judge.recorded`). At large ones a sample of the results is compared.
    layouts : str
        ``"contiguous"`` where the kernel takes no arrays with gaps.
    refuses : str, callable or a sequence of these, optional
        Cases that the kernel may refuse by ValueError, AssertionError or RuntimeError: ``"empty"``, an expression such as
        ``"cols > 1024"``, or a function of dimensions and parameters.
    fixed : mapping, optional
        Parameters or dimensions that have one value.
    formulas : str, callable or a sequence of these
        Other formulas that the kernel may follow, by name or as references in NumPy (:mod:`tlspec.judge.formulas`).
    progress : callable, optional
        Called with a line of text before each case.
    isolate : bool, optional
        Whether the kernel runs in a process of its own, which holds no expected values (:mod:`tlspec.judge.apart`). By default
        it does where it can be sent there, and the report says so; True refuses what cannot, False runs every kernel here.
    timeout : float, optional
        The seconds that one call may take; 300 by default.
    memory : int, optional
        The bytes that the kernel's process may take; by default those of the machine.
    repeats : int, optional
        Further calls of a few small cases, for faults that come and go; by default 5000 to 6000, in at most a second.
    fail_fast : bool
        Whether the first finding ends the check, where the verdict is all that is wanted.

    Returns
    -------
    Report
        The verdict, what was found, and how much the cases could tell.

    Raises
    ------
    ValueError
        For what is no operation, format, library, word or case, and for a kernel that cannot be loaded.
    ImportError
        For a library that is not installed.

    Examples
    --------
    >>> import numpy as np
    >>> report = check(np.exp, "exp", data="normal", cases={"small": 4}, repeats=0)
    >>> report.verdict
    'pass'
    >>> wrong = check(lambda x: np.exp(x) * np.float32(1.001), "exp", data="normal", cases={"small": 4}, isolate=False)
    >>> wrong.verdict, wrong.findings[0].kind
    ('fail', 'value')
    """
    start = time.perf_counter()
    if mixed and mixed not in MIXED:
        raise ValueError(f"mixed={mixed!r}: expected {', '.join(MIXED)}")
    preset = MIXED.get(mixed, {})
    dtype = preset.get("dtype", dtype) if dtype == "float32" else dtype
    out_dtype, accumulate = out_dtype or preset.get("out_dtype"), accumulate or preset.get("accumulate", "")
    products, terms = products or preset.get("products", ""), contract(layouts, refuses)
    fmt = formats.get(dtype)
    if isolate is not False and isinstance(array, str):
        prepare(array)  # while cases are drawn
    meaning = load_named(reference) if isinstance(reference, str) else reference
    row = constrained(subject_of(op, meaning, inputs), fixed, formulas, fmt)
    out = fmt if out_dtype is None else formats.get(out_dtype)
    cases_of = {
        which: list(drawn_cases(row, which, cases, data, empty, seed)) if case is None else []
        for which, f in (("forward", function), ("vjp", backward))
        if f is not None
    }
    functions = {
        which: (f, adapter if callable(adapter) else None)
        for which, f, adapter in (("forward", function, arguments), ("vjp", backward, backward_arguments))
        if f is not None
    }
    if not functions:
        raise ValueError("check: got neither a kernel nor backward=, expected a function")
    found = kernels_of(list(functions.values()), array, isolate, timeout, memory)
    kernels = dict(zip(functions, found, strict=True))
    library = next(iter(kernels.values()))
    if accumulate == "probe" and function is not None:
        known = accumulator_of(lambda c: Kernel(kernels["forward"], None, c, arguments), row, fmt)
        accumulate = word_of(known) if known is not None else ""
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
        isolated=all(k.apart for k in found), process=next((k.reason for k in found if isinstance(k, Here)), ""),
    )  # fmt: skip
    options = {"dtype": fmt.name, "array": library.name, **({"out_dtype": out.name} if out is not fmt else {}), **said,
               "arguments": arguments, "backward_arguments": backward_arguments, "bound": bound,
               "isolate": None if isolate else isolate, "layouts": layouts, "fixed": dict(fixed) if fixed else None,
               "formulas": None if callable(formulas) or not all(isinstance(f, str) for f in formulas) else formulas or None,
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

    special = data is None or "special" in data
    judges = {
        which: Check(kernel, row, which, fmt, out, model, arguments if which == "forward" else backward_arguments, report,
                     repeat, terms, fail_fast)
        for which, kernel in kernels.items()
    }  # fmt: skip
    # in one process
    joined = len(kernels) == 2 and (isinstance(kernels["vjp"], Beside) or not any(k.apart for k in kernels.values()))
    for which, judge in judges.items():
        lawful = which == "forward" and fmt is out and fmt.name == "float32"
        if case is not None:
            layout = next((n for n, e in ENDING.items() if e and case.endswith(e)), "")
            chosen = case_at(row, case.removesuffix(ENDING[layout]))
            if chosen.which == which:
                judge.run(chosen, layout=layout)
                if far_kind(chosen) is not None:
                    repetition.far_apart(judge, chosen, special=special, every=True)
                if chosen.size in ("medium", "large"):
                    repetition.stays(judge, chosen)
                repetition.parameters(judge, chosen)
                repetition.repeats(judge, chosen)
                repetition.batches(judge, chosen)
                if which == "vjp" and joined:
                    repetition.together(judge, judges["forward"], chosen)
                repetition.often(judge, repeats or 0)
                if lawful and chosen.size == "small" and not report.findings:
                    judge.laws([chosen.seed])
                if not report.findings and report.repeats is False:
                    repetition.wavers(judge)
            continue
        drawn = cases_of[which]
        drawn += [
            *seldom_drawn(drawn, empty, cases),
            *path_cases(row, which, cases, data),
            *shaped_cases(row, which, shapes, data, seed),
        ]
        drawn, refused = without_refused(drawn)
        report.notes += [n for n in refused if n not in report.notes]
        repeated, slowest, far, sized = set[str](), 0.0, Counter[Any](), set[str]()
        ways: tuple[str, ...] = (*LAYOUTS, "mixed", *(["gradients"] if library.name.startswith("torch") else []))
        untried = ways
        for i, each in enumerate(drawn):
            if judge.ended:
                why = "with the first finding" if fail_fast else "as the kernel's process did"
                report.notes.append(f"{which}: ended after {i} of {len(drawn)} cases, {why}")
                break
            if progress is not None:
                progress(f"{which}: case {i + 1} of {len(drawn)}")
            beyond = next((n for n in (2**17, 2**16) if is_long(each, n)), 0)
            if beyond and slowest > SLOW_SECONDS / (2 if beyond > 2**16 else 1):
                note = f"lengths beyond {beyond:,} were not tried, as a case took {slowest:.1f} s"
                report.notes += [note] if note not in report.notes else []
                continue
            begun = time.perf_counter()
            others = library.mutable and terms.strided and each.size != SHAPE
            judge.run(each, layout=ways[i // 5 % len(ways)] if others and i % 5 == 4 else "")
            if (kind := far_kind(each)) is not None and elements_of(each) <= LARGE:
                repetition.far_apart(judge, each, special=special, every=far[kind] < FAR)
                far[kind] += 1
            if each.size in ("medium", "large"):
                repetition.stays(judge, each)
            if each.data == "normal" and each.size in ("small", "medium") and each.size not in sized:
                sized.add(each.size)
                repetition.parameters(judge, each)
            took = max(time.perf_counter() - begun, judge.cost)
            slowest = max(slowest, took) if each.size == "shrunk" else slowest
            seldom = each.size in ("large", SHAPE) or not all(each.dims.values())
            if others and untried and not seldom and is_wide(each):
                for way in untried:
                    repetition.laid_otherwise(judge, each, way)
                untried = ()
            if each.data not in repeated and not seldom:  # one of each data class
                repeated.add(each.data)
                repetition.repeats(judge, each)
                repetition.batches(judge, each)
                if which == "vjp" and joined:
                    repetition.together(judge, judges["forward"], each)
                if others:
                    repetition.laid_otherwise(judge, each, ways[len(repeated) % len(ways)])
        if lawful and not judge.ended:
            judge.laws(range(seed, seed + 2))
        if not report.findings:
            repetition.often(judge, repeats)
        if not report.findings and report.repeats is False:
            repetition.wavers(judge)
        if all(f.kind in ("value", "law") for f in report.findings):
            names = [name for name, holds in judge.within.items() if holds]
            report.notes += [
                f"what is wrong is within the bound of another formula: formulas={n!r} allows it" for n in names
            ]
        if sensitive:
            for mutant, (caught, changed) in sensitivity(judge.trials).items():
                report.sensitivity[mutant if which == "forward" else f"{mutant} (vjp)"] = caught, changed
    report.seconds = time.perf_counter() - start
    return report
