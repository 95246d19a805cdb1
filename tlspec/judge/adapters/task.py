"""A task: inputs, a reference in PyTorch, a kernel; and what it is to judge one."""

import importlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tlspec import arrays as libraries
from tlspec.compare import Comparison, compare
from tlspec.draw.data import generator
from tlspec.formats import FORMATS, Format
from tlspec.judge.adapters.estimate import estimated
from tlspec.judge.adapters.submission import GIVEN, Loaded, Unsent, called, loaded, named, packed
from tlspec.judge.adapters.tracked import Tracked, UnknownOperator, leaves, tracked
from tlspec.judge.apart import SECONDS, Apart, NotSent, TimedOut
from tlspec.judge.arithmetic import arithmetic
from tlspec.judge.report import Finding, Report, Row
from tlspec.judge.runner import Failure, Plain, Request, text_of
from tlspec.running import Model

#: what the floating-point inputs of a case hold: what the task makes; the same with drawn signs; whole numbers, whose sums are
#: exact; what the task makes for its first case and OFFSET more, where exponentials overflow and squares cancel
DATA = ("own", "signs", "integers", "offset")
OFFSET = 128
#: numbers of the inputs of a case beyond which the analysis would take too much memory
MOST = 2**23


@dataclass
class Task:
    """What a file of a known format says.

    Parameters
    ----------
    name : str
        Of the task.
    format : str
        Of the file.
    make : callable
        make(i) gives the arguments of case i.
    reference : callable
        Takes them.
    kernel : callable or mapping
        Takes them, where it is; or the recipe of a submission (:mod:`tlspec.judge.adapters.submission`), which runs in a process
        of its own.
    cases : int
        Number of cases.
    modules : sequence
        The reference's modules, which are widened to float64 for the time that it is analysed.
    repeat : str
        What the command needs to be repeated.
    notes : list of str
        What else a reader should know.
    returns_inputs : bool
        Whether arrays for the results are among the inputs.
    device : str
        Of the kernel.
    """

    name: str
    format: str
    make: Callable[[int], Sequence[Any]]
    reference: Callable[..., Any]
    kernel: Callable[..., Any] | Mapping[str, Any]
    cases: int = 1
    #: the reference's modules, which are widened to float64 for the time that it is analysed
    modules: Sequence[Any] = ()
    #: what the command needs to be repeated
    repeat: str = ""
    notes: list[str] = field(default_factory=list)
    #: whether arrays for the results are among the inputs
    returns_inputs: bool = False
    device: str = "cpu"


def judged(
    task: Task, *, data: Sequence[str] = DATA, cases: int | None = None, case: str | None = None, progress: Callable[[str],
        None] | None = None,
    isolate: bool | None = None, timeout: float | None = None, memory: int | None = None, **words: Any,
) -> Report:  # fmt: skip
    """Holds a task's kernel to its reference.

    The tolerance of each element comes from running error analysis of the reference in float64
    (:mod:`tlspec.judge.adapters.tracked`). Where the reference calls an operator that the analysis does not know, it is
    an estimate (:mod:`tlspec.judge.adapters.estimate`), and the report says so.

    Parameters
    ----------
    task : Task
        The task.
    data : str or sequence of str, default ('own', 'signs', 'integers', 'offset')
        Data classes: the task's inputs, the same with drawn signs, whole numbers, the task's inputs and 128 more.
    cases : int, optional
        How many of the task's cases; all unless given.
    case : str, optional
        One of a report's lines: ``INDEX:DATA``.
    progress : callable, optional
        Called with a line now and then.
    isolate : bool, optional
        As of :func:`tlspec.check`: by default a submission runs in a process of its own, where its arguments can be sent there.
    timeout, memory : optional
        The seconds that one call may take, and the bytes of the process.
    **words : object
        Words of :mod:`tlspec.judge.arithmetic`.

    Returns
    -------
    Report
        As of :func:`tlspec.check`.

    Raises
    ------
    ValueError
        Data classes that are not known, inputs that are too large, or a reference that fails.
    """
    data = [data] if isinstance(data, str) else data
    if unknown := [d for d in data if d not in DATA]:
        raise ValueError(f"{task.name}: data: got {unknown[0]!r}, expected {', '.join(DATA)}")
    start = time.perf_counter()
    judge = _Judge(task, words, isolate, timeout, memory)
    count = max(task.cases, 1) if cases is None else cases
    chosen = [(i, d) for i in range(count) for d in data if i == 0 or d != "offset"]
    if case is not None:
        number, _, kind = case.partition(":")
        if not number.isdigit() or kind not in DATA:
            raise ValueError(f"{task.name}: case: got {case!r}, expected INDEX:DATA, as in 0:own")
        chosen = [(int(number), kind)]
    try:
        for index, kind in chosen:
            if progress is not None:
                progress(f"case {index}, {kind}")
            judge.run(index, kind)
            if any(f.kind == TimedOut.kind for f in judge.report.findings):
                break
    finally:
        judge.close()
    judge.report.assumptions = "; ".join([judge.report.assumptions, *dict.fromkeys(task.notes)])
    judge.report.seconds = time.perf_counter() - start
    return judge.report


class _Judge:
    def __init__(
        self, task: Task, words: dict[str, Any], isolate: bool | None, timeout: float | None, memory: int | None
    ):  # fmt: skip
        self.task, self.words = task, {k: v for k, v in words.items() if v}
        self.torch = importlib.import_module("torch")
        self.library = libraries.get("torch")
        self.estimated: str = ""
        said = ", ".join(f"{k}={v}" for k, v in self.words.items()) or "any order of sums"
        self.report = Report(task.name, task.format, "", "torch", said, process="isolate=False")
        self.runs: Apart | None = None
        #: the results of the last call that its process holds
        self.earlier: list[Any] = []
        self.isolate = isolate
        self.kernel: Callable[..., Any] = called
        if callable(task.kernel):
            self.kernel, self.report.process = task.kernel, "it runs beside its reference"
        elif isolate is False:
            self._bring_here("isolate=False")
        else:
            array = "torch" if task.device == "cpu" else f"torch:{task.device}"
            try:
                self.runs = Apart(task.kernel, None, array, seconds=timeout or SECONDS, memory=memory)
            except NotSent as error:
                raise ValueError(f"{task.name}: the submission cannot be loaded: {error}") from None
            self._note(self.runs.notes)
            self.report.isolated = True

    def _bring_here(self, reason: str) -> None:
        """From now on the submission runs in this process."""
        assert not callable(self.task.kernel)
        self.close()
        self.kernel, notes = loaded(self.task.kernel)
        self._note(notes)
        self.report.isolated, self.report.process, self.runs = False, reason, None

    def _note(self, notes: Sequence[str]) -> None:
        """What loading the submission said. One with parameters of its own cannot be loaded with the reference's."""
        self.task.notes += [n for n in notes if n not in self.task.notes]
        if notes and isinstance(self.task.reference, Loaded):
            self.task.reference = Loaded(self.task.reference.model, {})

    def close(self) -> None:
        if self.runs is not None:
            self.runs.close()

    def run(self, index: int, kind: str) -> None:
        """One case into the report."""
        given = self._filled(self._made(index), index, kind)
        fmt = self._format(given)
        self.report.format = self.report.format or fmt.name
        model = arithmetic(fmt, **self.words)
        kept, again = self._copied(given), self._copied(given)
        row = next((r for r in self.report.rows if r.data == kind), None)
        if row is None:
            row = Row("forward", kind)
            self.report.rows.append(row)
        row.cases += 1
        found = list(self._problems(given, kept, again, model, row, index == 0))
        row.failed += bool(found)
        anew = index and not self.report.findings and getattr(self.task.reference, "states", None)
        for kind_of, text in found:
            where = "" if kind == "own" else f", on {kind}, which the task's own inputs are not"
            where += ", with parameters that were loaded after the first call: read them at each call" if anew else ""
            alone = "" if kind_of == "stale" else f" --case {index}:{kind}"  # which needs the cases before
            self.report.findings.append(Finding(kind_of, text + where, self.task.repeat + alone))

    def _made(self, index: int) -> Sequence[Any]:
        try:
            given = self.task.make(index)
        except Exception as error:
            raise ValueError(f"{self.task.name}: its inputs: {text_of(error)}") from error
        size = sum(x.numel() for x in leaves(self.torch, given))
        if size > MOST:
            raise ValueError(too_large(self.task.name, size))
        return given

    def _filled(self, given: Any, index: int, kind: str) -> Any:
        """The arguments with other numbers in their floating-point tensors."""
        torch, at = self.torch, iter(range(10**6))
        if kind == "own":
            return given

        def fill(x: Any) -> Any:
            if not isinstance(x, torch.Tensor) or not x.is_floating_point():
                return x
            needed, x = x.requires_grad, x.detach()
            rng = generator("task", self.task.name, index, next(at))
            if kind == "integers":
                made = torch.from_numpy(rng.integers(-4, 4, tuple(x.shape), endpoint=True).astype(np.float32)).to(
                    x.device, x.dtype
                )
            elif kind == "offset":
                made = x + OFFSET
            else:
                made = x * torch.from_numpy(rng.choice(np.array([-1, 1], np.float32), tuple(x.shape))).to(
                    x.device, torch.float32
                ).to(x.dtype)
            copied = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device).copy_(made)
            return copied.requires_grad_(needed)

        return _mapped(given, fill)

    def _copied(self, given: Any) -> Any:
        """Copies that lie in memory as the originals do."""
        torch = self.torch
        return _mapped(
            given, lambda x: x.detach().clone().requires_grad_(x.requires_grad) if isinstance(x, torch.Tensor) else x
        )

    def _format(self, given: Any) -> Format:
        """The narrowest floating-point format of the arguments and of the reference's parameters."""
        tensors = [*leaves(self.torch, given), *(p for m in self.task.modules for p in m.parameters())]
        names = {str(x.dtype).removeprefix("torch.") for x in tensors if x.is_floating_point()}
        known = [FORMATS[n] for n in names if n in FORMATS]
        if unknown := sorted(names - FORMATS.keys()):
            raise ValueError(f"{self.task.name}: inputs: got {unknown[0]}, expected one of {', '.join(FORMATS)}")
        return min(known, key=lambda f: f.precision) if known else FORMATS["float32"]

    def _problems(
        self, given: Any, kept: Any, again: Any, model: Model, row: Row, first: bool
    ) -> Iterator[tuple[str, str]]:
        torch = self.torch
        before, plain = self._copied(kept), self._copied(kept)
        try:
            with torch.no_grad():
                own = self._named(self._called(self.task.reference, plain))
        except Exception as error:
            raise ValueError(f"{self.task.name}: the reference: {text_of(error)}") from error
        changed = [not _same(a, b) for a, b in zip(leaves(torch, before), leaves(torch, plain), strict=True)]
        own = {name: x.detach().clone() for name, x in own.items()}
        try:
            repeated = self._results(again, own, filling=True)[0]
            stale = self._changed()
            results, after, filled = self._results(given, own)
        except NotImplementedError:
            self.report.unsupported += 1
            row.cases -= 1
            return
        except Failure as failure:
            yield failure.kind, str(failure)
            return
        except Exception as error:
            yield "error", text_of(error)
            return
        if len(results) != len(own):
            yield "result", f"returned {len(results)} tensors, expected {len(own)}"
            return
        expected, blind = self.expected(kept, model), list[bool]()
        for got, (name, reference), known in zip(results, own.items(), expected, strict=True):
            problem = _unlike(name, got, reference, {x.dtype for x in leaves(torch, kept)})
            if problem:
                yield "result", problem
                continue
            found = self.compared(got, known, model)
            row.elements += found.count
            blind.append(self._hides(got, known, model))
            if found.ok:
                row.share, row.ulp = max(row.share, found.share), max(row.ulp, found.ulp)
            else:
                yield "value", found.explain(name)
            if first and not self.compared(reference, known, model).ok:
                note = f"the task's own reference is beyond the tolerance: {self.compared(reference, known, model).explain(name)}"
                self.task.notes.append(note)
        row.blind += 2 * sum(blind) > len(blind)
        for x, y, allowed in zip(leaves(torch, before), after, changed, strict=True):
            result = any(y is f for f in filled) and not any(changed)
            if not allowed and not result and not _same(x, y):
                yield "inputs", f"the kernel changed an input of shape {tuple(x.shape)}"
        if stale:
            yield "stale", "a later call changed an earlier result"
        same = all(_same(a, b) for a, b in zip(results, repeated, strict=False))
        for got, (name, reference), known in zip(repeated, own.items(), expected, strict=False) if not same else ():
            wrong = not _unlike(name, got, reference, {got.dtype}) and not self.compared(got, known, model).ok
            if wrong and all(self.compared(x, k, model).ok for x, k in zip(results, expected, strict=True)):
                yield (
                    "stale",
                    f"{name}: wrong from these numbers in the arrays of the call before, right from new arrays",
                )
        self.report.repeats = same and self.report.repeats is not False

    def _changed(self) -> bool:
        """Whether the results that the kernel's process holds are others by now."""
        if self.runs is None or not self.earlier:
            return False
        later = self.runs.held([x.shape for x in self.earlier])
        return not all(_same(x, self._tensor(y)) for x, y in zip(self.earlier, later, strict=True))

    def _named(self, returned: Any) -> dict[str, Any]:
        """The tensors of what the reference returned, by the names that a report gives them."""
        if isinstance(returned, dict) and all(isinstance(x, self.torch.Tensor) for x in returned.values()):
            return {str(name): x for name, x in returned.items()}
        return named(self.torch, returned)

    def _results(
        self, given: Any, own: Mapping[str, Any], *, filling: bool = False
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """The results of a call of the kernel, its tensors afterwards, and those of them that hold results. A process of
        its own keeps results and arguments; with `filling` it does not, and the arguments are the arrays that it kept. Raises
        Failure, or what a kernel raises that runs here."""
        torch = self.torch
        if self.runs is not None:
            try:
                return self._results_apart(self.runs, given, own, filling)
            except Unsent as error:
                if self.isolate:
                    raise ValueError(
                        f"{self.task.name}: the submission cannot run in a process of its own: {error}"
                    ) from None
                self._bring_here(f"{error}, which cannot be sent to another")
        with torch.no_grad():
            results = leaves(torch, self._called(self.kernel, given))
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        after = list(leaves(torch, given))
        storages = {x.untyped_storage().data_ptr() for x in results} if self.task.returns_inputs else set()
        filled = [x for x in after if x.untyped_storage().data_ptr() in storages]
        return [x.detach().clone() for x in results], after, filled

    def _results_apart(
        self, runs: Apart, given: Any, own: Mapping[str, Any], filling: bool
    ) -> tuple[list[Any], list[Any], list[Any]]:
        template, tensors = packed(self.torch, given)
        arrays = {}
        for name, x in tensors.items():
            try:
                bits, dtype = self.library.read(x.detach().cpu())
            except TypeError as error:
                raise Unsent(str(error)) from None
            arrays[name] = dtype, bits.reshape(tuple(x.shape))
        shapes = {name: tuple(x.shape) for name, x in own.items()}
        answer = runs.call(Request(arrays, {GIVEN: template}, shapes, hold=not filling, reuse=filling))
        results, after = ([self._tensor(p) for p in x] for x in (answer.results, answer.arrays.values()))
        places = [p.place for p in answer.results if p.place is not None]
        inputs = zip(after, answer.arrays.values(), strict=True)
        filled = [x for x, p in inputs if p.place and any(a < p.place[1] and p.place[0] < b for a, b in places)]
        if not filling:  # what lies in an argument changes with it
            self.earlier = [] if filled else results
        return results, after, filled if self.task.returns_inputs else []

    def _tensor(self, plain: Plain) -> Any:
        """The tensor of these bits; of another shape than was expected without them."""
        if plain.patterns is None:
            return self.torch.empty(plain.shape, dtype=getattr(self.torch, plain.dtype), device="meta")
        return self.library.put(plain.patterns, plain.dtype)

    def _called(self, function: Callable[..., Any], given: Any) -> Any:
        self.torch.manual_seed(0)
        return function(*given)

    def expected(self, given: Any, model: Model) -> list[Tracked]:
        """The reference's results in float64 with bounds on a kernel's errors."""
        torch = self.torch
        wide = _mapped(given, lambda x: _widened(torch, x))
        states = [{k: v.detach().clone() for k, v in m.state_dict().items()} for m in self.task.modules]
        formats = [next((p.dtype for p in m.parameters()), torch.float32) for m in self.task.modules]
        devices = [next((p.device for p in m.parameters()), torch.device("cpu")) for m in self.task.modules]
        try:
            for m in self.task.modules:
                m.to("cpu", torch.float64)
            if not self.estimated:
                try:
                    returned, tracker = tracked(model, lambda: self._called(self.task.reference, wide))
                    return [tracker.result(x) for x in leaves(torch, returned)]
                except UnknownOperator as error:
                    self.estimated = str(error)
                    self.report.assumptions = f"estimated, as {error}; {self.report.assumptions}"
            return estimated(torch, self.task, given, model, self._called)
        finally:
            for m, state, dtype, device in zip(self.task.modules, states, formats, devices, strict=True):
                m.to(device, dtype)
                m.load_state_dict(state)

    def tolerance(self, got: Any, known: Tracked, model: Model) -> np.ndarray:
        """The error that is allowed, with half a spacing of the results' format, which a conversion of the reference's own at its
        end is not counted beside."""
        if not got.is_floating_point():
            return np.where(known.error > 0, np.inf, 0.0)
        out = FORMATS[str(got.dtype).removeprefix("torch.")]
        error = known.before if known.format is out else known.error
        if model.precision > 24:  # the reference computes in the kernel's own numbers
            return 2 * error
        if out.precision >= model.precision:
            return error
        finite = np.where(np.isfinite(error), error, 0.0)
        return np.where(error > 0, error + out.spacing(np.abs(known.value) + finite) / 2, 0.0)

    def _hides(self, got: Any, known: Tracked, model: Model) -> bool:
        """Whether the tolerance exceeds the answer for most elements, so that zeros would pass."""
        tolerance, size = self.tolerance(got, known, model), np.abs(known.value)
        least = FORMATS[str(got.dtype).removeprefix("torch.")].least_normal if got.is_floating_point() else 1.0
        told = np.isfinite(known.value) & ((size > 0) | (tolerance >= least))
        return bool(2 * np.count_nonzero(told & (tolerance >= size)) > np.count_nonzero(told))

    def compared(self, got: Any, known: Tracked, model: Model) -> Comparison:
        whole = not got.is_floating_point()
        numbers = self.library.values(got.cpu()).reshape(tuple(got.shape))
        format = FORMATS["float64"] if whole else FORMATS[str(got.dtype).removeprefix("torch.")]
        return compare(
            numbers,
            known.value.astype(np.float64),
            self.tolerance(got, known, model),
            signed_zeros=False,
            format=format,
        )


def too_large(name: str, size: int) -> str:
    return f"{name}: inputs: got {size} numbers, expected at most {MOST}: set smaller sizes, as in --set batch_size=2"


def _mapped(x: Any, f: Callable[[Any], Any]) -> Any:
    if isinstance(x, dict):
        return {k: _mapped(v, f) for k, v in x.items()}
    return type(x)(_mapped(v, f) for v in x) if isinstance(x, (tuple, list)) else f(x)


def _widened(torch: Any, x: Any) -> Any:
    """A tensor in float64 on the CPU, with its strides."""
    if not isinstance(x, torch.Tensor):
        return x
    dtype = torch.float64 if x.is_floating_point() else x.dtype
    made = (
        torch.empty_strided(x.shape, x.stride(), dtype=dtype) if not _overlaps(x) else torch.empty(x.shape, dtype=dtype)
    )
    return made.copy_(x.detach()).requires_grad_(x.requires_grad)


def _overlaps(x: Any) -> bool:
    return any(s == 0 and n > 1 for n, s in zip(x.shape, x.stride(), strict=True))


def _same(a: Any, b: Any) -> bool:
    """Whether two tensors have the same bits."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.is_meta or b.is_meta:  # of a wrong shape, whose numbers were not sent
        return True
    library = libraries.get("torch")
    return bool(np.array_equal(library.bits(a.detach()), library.bits(b.detach())))


def _unlike(name: str, got: Any, expected: Any, taken: set[Any]) -> str:
    """What is wrong with a result besides its numbers. Where the reference computes in float64 for its own accuracy, a format of
    the inputs will do."""
    own = got.dtype == expected.dtype or (str(expected.dtype) == "torch.float64" and got.dtype in taken)
    if got.is_floating_point() != expected.is_floating_point() or (got.is_floating_point() and not own):
        found, wanted = (str(x.dtype).removeprefix("torch.") for x in (got, expected))
        return f"{name}: a result in {found}, expected {wanted}"
    if got.shape != expected.shape:
        return f"{name}: a result of shape {tuple(got.shape)}, expected {tuple(expected.shape)}"
    return ""
