"""Checks of a kernel against the specification, or against a reference of the user's own."""

import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from tlspec import arrays, formats, laws
from tlspec.arrays import Arrays
from tlspec.bounds import call_named
from tlspec.drawn import EDGES, SIZES, Case, data_classes
from tlspec.formats import Format
from tlspec.judge import kept
from tlspec.judge.arithmetic import arithmetic
from tlspec.judge.blocks import ELEMENTS, elements_of, independent_dimensions, part_of
from tlspec.judge.kernel import Adapter, Call, Failure, Kernel
from tlspec.judge.mutants import sensitivity
from tlspec.judge.probe import accumulator_of, word_of
from tlspec.judge.report import Finding, Report, Row
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
#: the lengths of a case whose lengths are all equal: beyond a tile of 32, and no multiple of 4
EQUAL = 33


class Check:
    """One kernel, one direction, and how it is judged."""

    def __init__(
        self, function: Callable[..., Any], op: Op, which: str, library: Arrays, fmt: Format, out: Format, model: Model | None,
        arguments: str | Adapter | None, report: Report, repeat: Callable[[str], str],
    ):  # fmt: skip
        self.function, self.op, self.which, self.library = function, op, which, library
        self.format, self.out, self.model, self.arguments = fmt, out, model, arguments
        self.report, self.repeat = report, repeat
        self.trials: list[Trial] = []

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
        return Kernel(self.function, self.library, case, self.arguments)

    def results(self, case: Case) -> list[Any]:
        """The results of a case that is in the format."""
        kernel = self.kernel(case)
        return kernel(kernel.prepare(case, self.format, self.out))

    def bits(self, case: Case) -> list[np.ndarray]:
        """The bits of a case's results."""
        return [self.library.bits(r) for r in self.results(case)]

    def hashes(self, case: Case) -> tuple[list[Any], list[bytes]]:
        """The results of a case, and a hash of the bits of each, which large results need less memory for."""
        results = self.results(case)
        return results, [self.library.digest(r) for r in results]

    def problems(
        self, trial: Trial, kernel: Kernel, row: Row | None = None, *, strided: bool = False
    ) -> Iterator[tuple[str, str]]:
        """What is wrong with the kernel's results on a trial: kinds and texts."""
        call = kernel.prepare(trial.case, self.format, self.out, strided=strided)
        before = {n: self.library.digest(x) for n, x in call.values.items() if _is_array(x)}
        try:
            results = kernel(call)
            self.library.synchronize(*results)
            places = zip(trial.names, results, trial.shapes, strict=True)
            numbers = [kernel.numbers(n, r, s, self.out) for n, r, s in places]
        except Failure as failure:
            yield "result", str(failure)
            return
        except NotImplementedError:
            yield UNSUPPORTED, "the kernel does not support the case"
            return
        except Exception as error:
            yield "error", f"{type(error).__name__}: {error}"
            return
        for name, found in zip(trial.names, trial.compare(numbers), strict=True):
            if row is not None and found.ok:
                row.share, row.ulp = max(row.share, found.share), max(row.ulp, found.ulp)
                row.elements += found.count
            if not found.ok:
                yield "value", found.explain(name) + (", from arrays that are not contiguous" if strided else "")
        for name, intact in call.unchanged.items():
            if not intact():
                yield "canary", f"{name}: memory beside the output was written"
        for name, bits in before.items():
            if bits != self.library.digest(call.values[name]):
                yield "inputs", f"{name}: the kernel changed its input"
        yield from self._aliases(trial, call, results)

    def _aliases(self, trial: Trial, call: Call, results: Sequence[Any]) -> Iterator[tuple[str, str]]:
        """Results that share memory with each other or with inputs, but for those that are equal anyway."""
        outputs = [None] * len(results) if trial.large else trial.outputs
        arrays: list[tuple[str, Any, Any]] = list(zip(trial.names, results, outputs, strict=True))
        inputs = {} if trial.large else trial.case.wide
        arrays += [(n, x, inputs.get(n)) for n, x in call.values.items() if _is_array(x)]
        known = [(n, r, v) for n, x, v in arrays if (r := self.library.pointer_range(x)) is not None]
        for i, (name, (start, end), value) in enumerate(known):
            if name not in trial.names:
                break
            for other, (first, last), same in known[i + 1 :]:
                known_both = value is not None and same is not None and value.size == same.size
                moved = known_both and np.array_equal(value.ravel(), same.ravel(), equal_nan=True)
                if start < last and first < end and not moved and trial.case.bound.kind != "moved":
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
        if len(self.trials) < PLANTED and not trial.empty and not trial.blind and not trial.large:
            self.trials.append(trial)
        for kind, text in found:
            first = not any(f.kind == kind for f in self.report.findings)
            smaller = shrink(case, partial(self._has, kind)) if first and not strided else case
            if smaller is not case:
                again = (t for k, t in self.problems(*self.trial(smaller)) if k == kind)
                text = next(again, text)  # a fault may come and go
            self.report.findings.append(Finding(kind, text, self.repeat(address_of(smaller) + STRIDED * strided)))

    def _has(self, kind: str, case: Case) -> bool:
        """Whether a case has a problem of a kind; no case has that the reference refuses."""
        try:
            trial, kernel = self.trial(case)
            return any(k == kind for k, _ in self.problems(trial, kernel))
        except (IndexError, TypeError, ValueError):
            return False

    def repeats(self, case: Case) -> None:
        """Whether the same call gives the same bits again, and leaves an earlier result alone; and whether a call with other
        numbers in arrays of the same shapes has a result of its own."""
        case = self.in_format(case)
        other = kept.derived(case, "other", lambda: _other(case))
        try:
            first, known = self.hashes(case)
            wrong = [text for kind, text in self.problems(*self.trial(other)) if kind == "value"]
            kept.weigh(self.in_format(other))
            later = [self.library.digest(r) for r in first]
            del first
            again = self.hashes(case)[1]
        except Exception:  # a call that raises is a finding already
            return
        if any(f.kind == "value" for f in self.report.findings):
            wrong = []
        texts = [f"from other numbers in arrays of these shapes: {text}" for text in wrong[:1]]
        if known != later:
            texts.append("a later call changed an earlier result")
        self.report.findings += [Finding("stale", text, self.repeat(address_of(case))) for text in texts]
        self.report.repeats = known == again and self.report.repeats is not False

    def batches(self, case: Case) -> None:
        """Whether a part of the batch alone has the bits that it has in the whole."""
        case = self.in_format(case)
        dim = next(
            (d for d in independent_dimensions(case.op, case.which) if d == ELEMENTS or case.values[d] > 1), None
        )
        if dim is None:
            return
        n = case.shape(case.signature.outputs[0])[0] if dim == ELEMENTS else case.values[dim]
        try:
            whole, part = (self.bits(c) for c in (case, part_of(case, dim, n // 2, n)))
        except Exception:
            return
        if any(a.size != math.prod(case.shape(o)) for o, a in zip(case.signature.outputs, whole, strict=True)):
            return  # a finding already
        for array, a, b in zip(case.signature.outputs, whole, part, strict=True):
            kept = a.reshape(case.shape(array)).take(range(n // 2, n), array.dims.index(dim))
            same = np.array_equal(kept, b.reshape(kept.shape))
            self.report.batches = same and self.report.batches is not False

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
                    self.report.findings.append(Finding("law", text, self.repeat(address_of(case))))
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
        trial, kernel = self.check.trial(case)
        results = kernel(kernel.prepare(trial.case, self.check.format, self.check.out))
        numbers = [
            kernel.numbers(n, r, s, self.check.out) for n, r, s in zip(trial.names, results, trial.shapes, strict=True)
        ]
        return [x.astype(np.float32) for x in numbers]

    def tolerances(self, case: Case) -> list[np.ndarray]:
        trial, _ = self.check.trial(case)
        return [
            np.maximum(t, self.check.out.spacing(o) / 2) for o, t in zip(trial.outputs, trial.tolerances, strict=True)
        ]


def _is_array(x: Any) -> bool:
    return x is not None and not isinstance(x, (int, float, list, str))


def _other(case: Case) -> Case:
    """A case of the same shapes with other numbers."""
    inputs, cotangents = ({n: _halved(x) for n, x in group.items()} for group in (case.inputs, case.cotangents))
    return replace(case, inputs=inputs, cotangents=cotangents, given=None)


def _halved(x: Any) -> Any:
    """Other numbers of the same kind: halves in reversed order. Sums do not see the order alone, nor ratios the halving alone."""
    if x is None or x.dtype.kind != "f":
        return x
    return np.asarray(x / 2) if x.ndim == 0 else np.divide(x[..., ::-1], 2, order="C")


def address_of(case: Case) -> str:
    """A case in a few words: direction, seed, data class, size, and lengths where it was made smaller."""
    lengths = f"; {', '.join(f'{k}={v}' for k, v in lengths_of(case).items())}" if case.size == "shrunk" else ""
    size = case.command if case.size == "shrunk" else case.size
    return f"{case.which}:{case.seed}:{case.data}:{size}{lengths}".replace("forward:", "")


def case_at(op: Op, address: str) -> Case:
    """The case that a line of a report names: ``[vjp:]SEED:DATA:SIZE[; rows=2, cols=3]``. Raises ValueError."""
    first, _, lengths = address.partition(";")
    parts = first.strip().split(":")
    which = parts.pop(0) if parts[0] in ("vjp", "forward") else "forward"
    if len(parts) != 3 or not parts[0].isdigit():
        raise ValueError(f"case={address!r}: expected SEED:DATA:SIZE, as in 3:normal:small")
    case = kept.drawn(op, int(parts[0]), parts[1], parts[2], which)
    if not lengths.strip():
        return case
    known = lengths_of(case)
    given = dict(item.split("=", 1) for item in re.sub(r"\[[^]]*\]|\s", "", lengths).split(",") if "=" in item)
    if unknown := sorted(set(given) - set(known)):
        raise ValueError(f"case={address!r}: {op.name} has no {unknown[0]}; it has {', '.join(known)}")
    lists = {k: [int(n) for n in v.split(",") if n.strip()] for k, v in re.findall(r"(\w+)=\[([^]]*)\]", lengths)}
    numbers = {k: type(known[k])(v) for k, v in given.items() if v and isinstance(known[k], (int, float))}
    found = resized(case, {**known, **lists, **numbers})
    if found is None:
        raise ValueError(f"case={address!r}: {op.name} refuses these lengths")
    return found


def check(
    function: Callable[..., Any] | None, op: str | Op | None = None, *, backward: Callable[..., Any] | None = None,
    reference: Callable[..., Any] | None = None, inputs: str | Mapping[str, Any] | None = None,
    dtype: Any = "float32", out_dtype: Any = None, array: str | Arrays = "numpy",
    arguments: str | Adapter | None = None, backward_arguments: str | Adapter | None = None,
    cases: int | Mapping[str, int] | None = None, data: str | Sequence[str] | None = None, empty: bool = True, seed: int = 0,
    case: str | None = None, bound: str = "kernel", sensitive: bool = True,
    accumulate: str = "", height: str | Callable[[int], int] = "any", ulp: str | float | Mapping[str, Any] = "documented",
    products: str = "", intermediate: str = "", flush: bool = False,
    progress: Callable[[str], None] | None = None,
) -> Report:  # fmt: skip
    """Checks a kernel against an operation's row, or against a reference in NumPy, and returns a :class:`Report`.

    `function` takes and returns arrays of the library that `array` names (:mod:`tlspec.arrays`); `arguments` says their order
    where it is not the row's (:mod:`tlspec.judge.kernel`). None checks `backward` alone, which is the gradient's function, of the
    row's inputs and outputs and the cotangent g. `dtype` is the number format of the arrays, `out_dtype` that of the results.

    The tolerance of each element comes from running error analysis of the reference (:mod:`tlspec.running`) under what
    `accumulate`, `height`, `ulp`, `products`, `intermediate` and `flush` say of the kernel's arithmetic
    (:mod:`tlspec.judge.arithmetic`); ``bound="row"`` takes the row's own, which holds for this project's float32 kernels.

    `cases` is the number of small cases, or one number for each size; `data` the data classes (:mod:`tlspec.data`);
    ``empty=False`` leaves sizes of 0 out; `case` is one case of a report's line. ``sensitive=False`` plants no
    defects.

    Raises ValueError for what is no operation, format, library or word, ImportError for a library that is not installed."""
    start = time.perf_counter()
    row = subject_of(op, reference, inputs)
    fmt, library = formats.get(dtype), arrays.get(array)
    out = fmt if out_dtype is None else formats.get(out_dtype)
    if accumulate == "probe" and function is not None:
        found = accumulator_of(lambda c: Kernel(function, library, c, arguments), row, fmt)
        accumulate = word_of(found) if found is not None else ""
    model = None if bound == "row" else arithmetic(
        fmt, accumulate=accumulate, height=height, ulp=ulp, products=products, intermediate=intermediate, flush=flush
    )  # fmt: skip
    subject = backward if function is None else function
    name = getattr(subject, "__name__", type(subject).__name__)
    words = {"accumulate": accumulate, "height": height if height != "any" else "", "ulp": ulp if ulp != "documented" else "",
             "products": products, "intermediate": intermediate, "flush": flush}  # fmt: skip
    said = {k: v for k, v in words.items() if v}
    words_said = ", ".join(f"{k}={v}" for k, v in said.items()) or "any order of sums"
    assumptions = "the row's own bound" if model is None else words_said
    report = Report(name, row.name, fmt.name + (f" -> {out.name}" if out is not fmt else ""), library.name, assumptions)
    options = {"dtype": fmt.name, "array": library.name, **({"out_dtype": out.name} if out is not fmt else {}), **said}
    plain = {"dtype": "float32", "array": "numpy"}

    def repeat(address: str) -> str:
        more = "".join(f", {k}={v!r}" for k, v in options.items() if plain.get(k) != v)
        how = f'"{row.name}"' if row.family != "user" else f"reference={row.name}, inputs={row.text!r}"
        return f"tlspec.check({name}, {how}{more}, case={address!r})"

    for which, kernel in (("forward", function), ("vjp", backward)):
        if kernel is None:
            continue
        rule = arguments if which == "forward" else backward_arguments
        judge = Check(kernel, row, which, library, fmt, out, model, rule, report, repeat)
        if case is not None:
            chosen = case_at(row, case.removesuffix(STRIDED))
            if chosen.which == which:
                judge.run(chosen, strided=case.endswith(STRIDED))
                judge.repeats(chosen)
            continue
        drawn = list(drawn_cases(row, which, cases, data, empty, seed))
        drawn += seldom_drawn(drawn, empty)
        repeated = set[str]()
        for i, each in enumerate(drawn):
            judge.run(each, strided=i % 5 == 4 and library.mutable)
            if each.data not in repeated and each.size != "large" and all(each.dims.values()):  # one of each data class
                repeated.add(each.data)
                judge.repeats(each)
                judge.batches(each)
            if progress is not None:
                progress(f"{which}: case {i + 1} of {len(drawn)}")
        if which == "forward" and fmt is out and fmt.name == "float32":
            judge.laws(range(seed, seed + 2))
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
            if empty or not has_empty(each):
                made += 1
                yield each


def has_empty(case: Case) -> bool:
    """Whether a length of the case is 0."""
    return any(0 in (n if isinstance(n, list | tuple) else (n,)) for n in case.dims.values())


def seldom_drawn(drawn: Sequence[Case], empty: bool) -> list[Case]:
    """Of the first small case, one with each length alone 1 and, where `empty` cases are wanted, 0; and one with all lengths
    equal, in which exchanged axes go unnoticed by shape. Draws seldom have the former, and never the latter, as their lengths
    are distinct. What the row refuses is left out."""
    small = (c for c in drawn if c.size == "small" and not has_empty(c))
    case = next(small, None)
    if case is None or case.op.signature.lists:
        return []
    known, sig = lengths_of(case), case.op.signature
    names = ["n"] if sig.elementwise else [n for d in sig.dims if (n := d.lstrip("*")) in known]
    chosen: list[dict[str, Any]] = []
    for length in (1, 0) if empty else (1,):
        for name in names:
            value = known[name]
            if isinstance(value, (list, tuple)):
                chosen += [{name: [*value[:i], length, *value[i + 1 :]]} for i in range(len(value))]
            elif value != length:
                chosen.append({name: length})
    if len(names) > 1:
        chosen.append({n: EQUAL for n in names if isinstance(known[n], int)})
    made = (resized(case, {**known, **lengths}) for lengths in chosen)
    return [c for c in made if c is not None and elements_of(c) <= SIZES[EDGES]]
