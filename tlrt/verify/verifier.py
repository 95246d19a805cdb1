"""Checks operations against their specification, on several devices at once.

Each operation and each VJP runs on drawn cases (:mod:`tlspec.draw`): several data classes, special values and the exact
integer mode among them. The float64 reference and the derived bound decide (:mod:`tlspec.compare`); besides, every call is
repeated into a poisoned output and must give the same bits, must leave its inputs and its neighbours alone, and where the
row promises it must give the same bits on CUDA as on the CPU. A failure comes with the line that repeats it alone.
"""

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import NamedTuple

import numpy as np

from tlrt.verify.edges import with_edges
from tlrt.verify.report import Failure, Result, describe_inputs
from tlrt.verify.run import Fault, Runtime, cpu_settings, cpu_variants
from tlspec import laws
from tlspec.compare import compare_outputs, reproduction, same_bits
from tlspec.draw.cases import EDGES, PATH, Case, class_aimed_at, data_classes, draw_case, draw_cases
from tlspec.registry import Op

#: sizes of the cases of one data class, in turn
ROTATION = ("medium", EDGES, "small", EDGES, "small", EDGES)
#: the share of its tolerance that an output's worst error must reach over a whole plan: a bound further away could not fail
NEAR = 0.1

#: further seeds whose cases are tried before an output that did not come near counts as one that cannot
FURTHER = 16

#: cases that are aimed at a geometry class before it counts as one that is not reached
TRIES = 4


@dataclass(frozen=True)
class Settings:
    """What a verify run draws."""

    cases: int = 6
    seed: int = 0
    size: str | None = None  # None: ROTATION, and one large case and the row's paths for each entry point
    data: tuple[str, ...] | None = None
    variants: bool = False
    trace: bool = False  # name every case on stderr before it runs
    math: str = "fast"  # how the devices compute, which decides what rows promise

    @property
    def covering(self) -> bool:
        """Whether the cases must reach every geometry class.

        Returns
        -------
        bool
            True where neither size nor data class was chosen.
        """
        return self.size is None and self.data is None

    @property
    def whole(self) -> bool:
        """Whether every entry point is tried in all sizes, on its paths too, and must come near every bound.

        Returns
        -------
        bool
            True where no size was chosen and there are cases of each.
        """
        return self.size is None and self.cases >= len(ROTATION)


class Repetition(NamedTuple):
    """A call that must give the bits of the first one."""

    label: str
    run: Callable[[], list[np.ndarray | None]]
    option: tuple[str, ...] = ()  # what the command line needs to make it


def directions(op: Op) -> tuple[str, ...]:
    """The entry points of a row.

    Parameters
    ----------
    op : Op
        The row.

    Returns
    -------
    tuple of str
        "forward", and "vjp" where it has one.
    """
    return ("forward", "vjp") if op.vjp_rule is not None else ("forward",)


def plan_cases(op: Op, which: str, settings: Settings) -> Iterator[tuple[int, str, str]]:
    """The cases of one entry point.

    Parameters
    ----------
    op : Op
        The row.
    which : str
        "forward" or "vjp".
    settings : Settings
        What a run draws.

    Returns
    -------
    iterator of (int, str, str)
        Seed, data class and size.
    """
    classes = data_classes(op, which)
    chosen = classes if settings.data is None else settings.data
    for data in chosen:
        for i in range(settings.cases):
            yield settings.seed + i, data, settings.size or ROTATION[i % len(ROTATION)]
    if settings.whole:
        yield settings.seed, chosen[0], "large"
        for i in range(len(op.drawing.paths)):
            yield i, chosen[i % len(chosen)], PATH


def far_outputs(results: Mapping[str, Result]) -> dict[str, float]:
    """The outputs of an entry point that come near their bound on no device, and their worst shares; none without the CPU, as
    a GPU alone may be exacter than it has to be."""
    if "cpu" not in results:
        return {}
    names = next(iter(results.values())).shares
    worst = {name: max(r.shares.get(name, 0.0) for r in results.values()) for name in names}
    return {name: share for name, share in worst.items() if share < NEAR}


class Verifier:
    """Checks cases on a set of devices and gathers one :class:`Result` per entry point and device.

    Parameters
    ----------
    runtimes : mapping of str to Runtime
        The devices.
    settings : Settings, optional
        What is drawn.
    """

    def __init__(self, runtimes: Mapping[str, Runtime], settings: Settings | None = None):
        self.runtimes = dict(runtimes)
        self.settings = settings or Settings()
        self.variants = cpu_variants() if self.settings.variants else []
        #: the words with which a command repeats the mode of this run
        self._mode = "" if self.settings.math == "fast" else f" --math {self.settings.math}"

    def check(
        self, op: Op, which: str | None = None, cases: Iterator[Case] | Sequence[Case] | None = None
    ) -> list[Result]:
        """Runs one entry point, or all of the row's.

        Parameters
        ----------
        op : Op
            The row.
        which : str, optional
            "forward" or "vjp"; both unless given.
        cases : iterable of Case, optional
            Those of :func:`plan_cases` unless given, then cases that aim at the geometry classes which these did not
            reach.

        Returns
        -------
        list of Result
            One per entry point and device.
        """
        op = with_edges(op.in_math(self.settings.math))
        entries = directions(op) if which is None else (which,)
        found = {w: self._start(op, w) for w in entries}
        if cases is None and "forward" in found:
            self.check_laws(op, found["forward"])
        for case in cases if cases is not None else self._draw(op, found):
            self.check_case(case, found[case.which])
        if cases is None and self.settings.covering:
            for results in found.values():
                if self.settings.whole:
                    self._come_near(op, results)
                    self.check_slack(results)
                for result in results.values():
                    self._check_coverage(op, result)
        return [r for results in found.values() for r in results.values()]

    def _start(self, op: Op, which: str) -> dict[str, Result]:
        """What is found of an entry point on each device: nothing yet."""
        entry, bound = op.entry(which), op.bound_of(which).text
        results = {d: Result(op.name, entry, op.family, which, d, bound) for d in self.runtimes}
        for result in results.values():
            result.classes = dict.fromkeys(op.drawing.classes, 0)
        return results

    def _draw(self, op: Op, found: Mapping[str, Mapping[str, Result]]) -> Iterator[Case]:
        """The planned cases of some entry points, each draw for all that plan it; then what reaches the remaining classes."""
        plans = {which: dict.fromkeys(plan_cases(op, which, self.settings)) for which in found}
        for seed, data, size in {key: None for plan in plans.values() for key in plan}:
            yield from draw_cases(op, seed, data, size, [w for w, plan in plans.items() if (seed, data, size) in plan])
        if not self.settings.covering:
            return
        first, count = self.settings.seed, 2 * len(op.drawing.classes)
        for which, results in found.items():
            for name in op.drawing.classes:
                aims = ((seed, data) for seed in range(first, first + TRIES * count, 2) for data in data_classes(op, which)
                        if class_aimed_at(op, seed, data) == name)  # fmt: skip
                for seed, data in islice(aims, TRIES):
                    if all(r.classes[name] for r in results.values()):
                        break
                    yield draw_case(op, seed, data, EDGES, which)

    def _come_near(self, op: Op, results: Mapping[str, Result]) -> None:
        """Tries cases of further seeds while an output stays away from its bound: the few that are planned may miss it."""
        seed = self.settings.seed + self.settings.cases
        which = next(iter(results.values())).which
        for k in range(seed, seed + FURTHER):
            for data in data_classes(op, which):
                if not far_outputs(results):
                    return
                self.check_case(draw_case(op, k, data, ROTATION[k % len(ROTATION)], which), results)

    def check_slack(self, results: Mapping[str, Result]) -> None:
        """Demands that each output comes near its bound on one of the devices.

        Parameters
        ----------
        results : mapping of str to Result
            By device; the first gets the failures.
        """
        first = next(iter(results.values()))
        for name, share in far_outputs(results).items():
            detail = f"{name}: the worst error is {share:.3g} of its bound, expected {NEAR} or more: {first.bound}"
            line = (
                f"python -m tlrt verify --ops {first.op} --seed {self.settings.seed} --cases {self.settings.cases}"
                + self._mode
            )
            first.failures.append(Failure(first.entry, first.device, "slack", detail, line))

    def _check_coverage(self, op: Op, result: Result) -> None:
        """Enters a failure for each geometry class of the row that no case of a run with default settings was of."""
        for name in (n for n, count in result.classes.items() if count == 0):
            line = (
                f"python -m tlrt verify --ops {op.name} --seed {self.settings.seed} --device {result.device}"
                + self._mode
            )
            text = f"no case of {result.cases} was of the geometry class {name!r}: mend the row's draw, or the class"
            result.failures.append(Failure(result.entry, result.device, "coverage", text, line))

    def check_laws(self, op: Op, results: Mapping[str, Result]) -> None:
        """Checks the laws that the row names, on the reference and on every device.

        Parameters
        ----------
        op : Op
            The row.
        results : mapping of str to Result
            By device; they get the failures.
        """
        for law in op.contract.laws:
            for data in law.data:
                case = draw_case(op, self.settings.seed, data, "small")
                for device, runtime in self.runtimes.items():
                    result = results[device]
                    result.laws += 1
                    worlds: list[laws.World] = [laws.Device(device, runtime.run)]
                    if runtime is next(iter(self.runtimes.values())):
                        worlds.append(laws.Spec())
                    for world in worlds:
                        place = f"{law} on the {'reference' if world.name == 'spec' else 'device'}"
                        try:
                            share, where = laws.check(law, world, case)
                        except Exception as error:  # as for cases: a finding, not the end of the run
                            self._add_failure(result, case, runtime, "law", f"{place}: {type(error).__name__}: {error}")
                            continue
                        if share > 1:
                            self._add_failure(result, case, runtime, "law", f"{place}: {where}")

    def check_case(self, case: Case, results: Mapping[str, Result]) -> None:
        """Checks one case on every device.

        Parameters
        ----------
        case : Case
            The case.
        results : mapping of str to Result
            By device; they get the outcome.
        """
        first: list[np.ndarray | None] | None = None
        for device, runtime in self.runtimes.items():
            result, start = results[device], time.perf_counter()
            outs = self._run_case(case, runtime, result)
            if outs is not None and first is not None and case.op.contract.same_bits:
                result.identical = result.identical is not False
                for a, left, right in zip(case.signature.outputs, first, outs, strict=True):
                    assert left is not None and right is not None
                    c = same_bits(right, left)
                    if not c.ok:
                        result.identical = False
                        other = next(iter(self.runtimes))
                        self._add_failure(
                            result, case, runtime, "bits", f"{c.explain(a.name)} between {device} and {other}"
                        )
            if first is None:
                first = outs
            result.seconds += time.perf_counter() - start

    def _add_failure(
        self, result: Result, case: Case, runtime: Runtime, kind: str, detail: str, option: tuple[str, ...] = ()
    ) -> None:
        device = f"{next(iter(self.runtimes))},{runtime.name}" if kind == "bits" else runtime.name
        where = ", ".join(f"{k}={v}" for k, v in case.values.items() if k not in case.arguments)
        line = self._line(case, device, option)
        detail = f"{detail} [{where}]" if where else detail
        result.failures.append(Failure(result.entry, device, kind, detail, line, describe_inputs(case.arguments)))

    def _line(self, case: Case, device: str, option: tuple[str, ...] = ()) -> str:
        """The command that repeats a case."""
        return reproduction(case, device, *option) + self._mode

    def _run_case(self, case: Case, runtime: Runtime, result: Result) -> list[np.ndarray | None] | None:
        if self.settings.trace:
            print(self._line(case, runtime.name), case.which, case.dims, file=sys.stderr, flush=True)
        expected = case.expected_on(runtime.name)
        option: tuple[str, ...] = ()
        result.cases += 1
        result.elements += sum(o.size for o in expected.outputs)
        for name in case.classes:
            result.classes[name] = result.classes.get(name, 0) + 1
        try:
            outs = runtime.run(case)
            found = compare_outputs(expected, outs)
            for a, c, tolerance in zip(case.signature.outputs, found, expected.tolerances, strict=True):
                if c is None:
                    raise Fault(f"{a.name} was not computed")
                if tolerance.any():
                    result.shares[a.name] = max(result.shares.get(a.name, 0.0), c.share)
                if c.share > result.share:
                    result.worst_line = self._line(case, runtime.name)
                result.share, result.ulp = max(result.share, c.share), max(result.ulp, c.ulp)
                if not c.ok:
                    self._add_failure(result, case, runtime, "bound", c.explain(a.name))
            for repetition in self._repetitions(case, runtime):
                option = repetition.option
                for a, one, two in zip(case.signature.outputs, outs, repetition.run(), strict=True):
                    if two is not None and one is not None and not (c := same_bits(two, one)).ok:
                        detail = f"{c.explain(a.name)} {repetition.label}"
                        self._add_failure(result, case, runtime, "determinism", detail, option)
        except Fault as fault:
            self._add_failure(result, case, runtime, "fault", str(fault), option)
            return None
        except Exception as error:  # an operation that raises on a legal case is a finding, not the end of the run
            self._add_failure(result, case, runtime, "error", f"{type(error).__name__}: {error}", option)
            return None
        return outs

    def _repetitions(self, case: Case, runtime: Runtime) -> Iterator[Repetition]:
        """The same call again, in every way that must not change a bit."""
        yield Repetition("when repeated into a filled output", partial(runtime.run, case, poison=True))
        if any(a.listed for a in case.signature.outputs):
            yield Repetition("in place", partial(runtime.run, case, in_place=True))
        if any(a.kind == "u32" for a in case.signature.inputs):
            yield Repetition("with indices on the device", partial(runtime.run, case, indexed=True, poison=True))
        rule = case.op.vjp_rule
        if case.which == "vjp" and rule is not None and rule.via is None and len(rule.gives) > 1:
            names = [a.name for a in case.signature.outputs]
            pick = [n for i, n in enumerate(names) if (case.seed >> i) & 1] or names[-1:]
            if len(pick) < len(names):
                run = partial(runtime.run, case, poison=True, want=pick)
                yield Repetition(f"when only {', '.join(pick)} is wanted", run)
            for i, suffix in enumerate(rule.each):
                yield Repetition(f"from {case.name}_{suffix}", partial(runtime.run_single, case, suffix, i))
        if self.variants and runtime.name == "cpu":
            for i, variant in enumerate(self.variants):
                threads = 2 - (case.seed + i) % 2  # by turns: a row's cases try each variant with both
                run = partial(_run_with, runtime, case, variant, threads)
                yield Repetition(f"with {variant} and {threads} threads", run, ("--variants",))


def _run_with(runtime: Runtime, case: Case, variant: str, threads: int) -> list[np.ndarray | None]:
    with cpu_settings(variant, threads):
        return runtime.run(case)
