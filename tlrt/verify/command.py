"""``python -m tlrt verify``: every operation, on every device present, against its specification.

Each operation and each VJP runs on drawn cases (:mod:`tlspec.cases`): several data classes, special values and the exact
integer mode among them. The float64 reference and the derived bound decide (:mod:`tlspec.compare`); besides, every call is
repeated into a poisoned output and must give the same bits, must leave its inputs and its neighbours alone, and where the
row promises it must give the same bits on CUDA as on the CPU. A failure comes with the line that repeats it alone.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tlrt.errors import TorchleanError
from tlrt.verify.report import Failure, Progress, Report, Result, table, told
from tlrt.verify.run import Fault, Runtime, cpu_settings, cpu_variants, device_names
from tlspec import laws, registry
from tlspec.cases import DATA, PATH, SIZES, Case, data_classes, draw_case
from tlspec.compare import compare, reproduction, same_bits
from tlspec.registry import Op

__all__ = ["Settings", "Verifier", "main", "plan", "whiches"]

#: options that make the run a campaign (:mod:`audit.command`)
CAMPAIGNS = (
    "--exhaustive", "--probe", "--determinism", "--alarms", "--hostile", "--faults", "--soak", "--campaign",
)  # fmt: skip
#: sizes of the cases of one data class, in turn
ROTATION = ("medium", "small", "small", "medium", "small", "small")


@dataclass(frozen=True)
class Settings:
    """What a verify run draws."""

    cases: int = 6
    seed: int = 0
    size: str | None = None  # None: ROTATION, and one large case and the row's paths for each entry point
    data: tuple[str, ...] | None = None
    variants: bool = False
    trace: bool = False  # name every case on stderr before it runs


class Again(NamedTuple):
    """A call that must give the bits of the first one."""

    label: str
    run: Callable[[], list[np.ndarray | None]]
    option: tuple[str, ...] = ()  # what the command line needs to make it


def whiches(op: Op) -> tuple[str, ...]:
    """What there is to check of a row: "forward", and "vjp" where it has one."""
    return ("forward", "vjp") if op.vjp_rule is not None else ("forward",)


def plan(op: Op, which: str, settings: Settings) -> Iterator[tuple[int, str, str]]:
    """The (seed, data class, size) of the cases of one entry point."""
    classes = data_classes(op, which)
    chosen = classes if settings.data is None else settings.data
    for data in chosen:
        for i in range(settings.cases):
            yield settings.seed + i, data, settings.size or ROTATION[i % len(ROTATION)]
    if settings.size is None and settings.cases >= len(ROTATION):
        yield settings.seed, chosen[0], "large"
        for i in range(len(op.paths)):
            yield i, chosen[i % len(chosen)], PATH


class Verifier:
    """Checks cases on a set of devices and gathers one :class:`Result` per entry point and device."""

    def __init__(self, runtimes: Mapping[str, Runtime], settings: Settings | None = None):
        self.runtimes = dict(runtimes)
        self.settings = settings or Settings()
        self.variants = cpu_variants() if self.settings.variants else []

    def entry(self, op: Op, which: str, cases: Iterator[Case] | Sequence[Case] | None = None) -> list[Result]:
        """Runs one entry point; one result per device. Without `cases` those of :func:`plan` are drawn."""
        results = {d: self._blank(op, which, d) for d in self.runtimes}
        if cases is None:
            cases = (draw_case(op, seed, data, size, which) for seed, data, size in plan(op, which, self.settings))
            if which == "forward":
                self.laws(op, results)
        for case in cases:
            self.case(case, results)
        return list(results.values())

    def laws(self, op: Op, results: Mapping[str, Result]) -> None:
        """Checks the laws that the row names, on the reference and on every device."""
        for law in op.laws:
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
                            self._fail(result, case, runtime, "law", f"{place}: {type(error).__name__}: {error}")
                            continue
                        if share > 1:
                            self._fail(result, case, runtime, "law", f"{place}: {where}")

    def _blank(self, op: Op, which: str, device: str) -> Result:
        return Result(op.name, op.entry(which), op.family, which, device, op.bound_of(which).text)

    def case(self, case: Case, results: Mapping[str, Result]) -> None:
        """Checks one case on every device and enters the outcome into `results`."""
        first: list[np.ndarray | None] | None = None
        for device, runtime in self.runtimes.items():
            result, start = results[device], time.perf_counter()
            outs = self._checked(case, runtime, result)
            if outs is not None and first is not None and case.op.same_bits:
                result.identical = result.identical is not False
                for a, left, right in zip(case.signature.outputs, first, outs, strict=True):
                    assert left is not None and right is not None
                    c = same_bits(right, left)
                    if not c.ok:
                        result.identical = False
                        other = next(iter(self.runtimes))
                        self._fail(result, case, runtime, "bits", f"{c.explain(a.name)} between {device} and {other}")
            if first is None:
                first = outs
            result.seconds += time.perf_counter() - start

    def _fail(
        self, result: Result, case: Case, runtime: Runtime, kind: str, detail: str, option: tuple[str, ...] = ()
    ) -> None:
        device = f"{next(iter(self.runtimes))},{runtime.name}" if kind == "bits" else runtime.name
        where = ", ".join(f"{k}={v}" for k, v in case.values.items() if k not in case.arguments)
        line = reproduction(case, device, *option)
        result.failures.append(Failure(result.entry, device, kind, f"{detail} [{where}]" if where else detail, line))

    def _checked(self, case: Case, runtime: Runtime, result: Result) -> list[np.ndarray | None] | None:
        if self.settings.trace:
            print(reproduction(case, runtime.name), case.which, case.dims, file=sys.stderr, flush=True)
        expected = case.expected
        option: tuple[str, ...] = ()
        result.cases += 1
        result.elements += sum(o.size for o in expected.outputs)
        try:
            outs = runtime.run(case)
            for a, got, ref, tol, bits in zip(
                case.signature.outputs, outs, expected.outputs, expected.tolerances, expected.bits, strict=True
            ):
                if got is None:
                    raise Fault(f"{a.name} was not computed")
                c = compare(got, ref, tol, signed_zeros=expected.signed_zeros, bits=bits)
                if c.share > result.share:
                    result.worst_line = reproduction(case, runtime.name)
                result.share, result.ulp = max(result.share, c.share), max(result.ulp, c.ulp)
                if not c.ok:
                    self._fail(result, case, runtime, "bound", c.explain(a.name))
            for again in self._repetitions(case, runtime):
                option = again.option
                for a, one, two in zip(case.signature.outputs, outs, again.run(), strict=True):
                    if two is not None and one is not None and not (c := same_bits(two, one)).ok:
                        detail = f"{c.explain(a.name)} {again.label}"
                        self._fail(result, case, runtime, "determinism", detail, option)
        except Fault as fault:
            self._fail(result, case, runtime, "fault", str(fault), option)
            return None
        except Exception as error:  # an operation that raises on a legal case is a finding, not the end of the run
            self._fail(result, case, runtime, "error", f"{type(error).__name__}: {error}", option)
            return None
        return outs

    def _repetitions(self, case: Case, runtime: Runtime) -> Iterator[Again]:
        """The same call again, in every way that must not change a bit."""
        yield Again("when repeated into a filled output", partial(runtime.run, case, poison=True))
        if any(a.listed for a in case.signature.outputs):
            yield Again("in place", partial(runtime.run, case, in_place=True))
        rule = case.op.vjp_rule
        if case.which == "vjp" and rule is not None and rule.via is None and len(rule.gives) > 1:
            names = [a.name for a in case.signature.outputs]
            pick = [n for i, n in enumerate(names) if (case.seed >> i) & 1] or names[-1:]
            if len(pick) < len(names):
                run = partial(runtime.run, case, poison=True, want=pick)
                yield Again(f"when only {', '.join(pick)} is wanted", run)
            for i, suffix in enumerate(rule.each):
                yield Again(f"from {case.name}_{suffix}", partial(runtime.run_single, case, suffix, i))
        if self.variants and runtime.name == "cpu":
            for variant in self.variants:
                for threads in (1, 2):
                    run = partial(_set, runtime, case, variant, threads)
                    yield Again(f"with {variant} and {threads} threads", run, ("--variants",))


def _set(runtime: Runtime, case: Case, variant: str, threads: int) -> list[np.ndarray | None]:
    with cpu_settings(variant, threads):
        return runtime.run(case)


def versions() -> dict[str, str]:
    """Versions a report records."""
    return {"python": platform.python_version(), "numpy": np.__version__, "system": platform.platform()}


def _describe(runtimes: Mapping[str, Runtime]) -> tuple[dict[str, str], dict[str, str]]:
    from tlrt._binding.library import load

    return {name: str(r.device.describe()) for name, r in runtimes.items()}, dict(load().build_info)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tlrt verify",
        description="Checks operations on this machine's devices against their specification.",
        epilog="Campaigns, with options of their own (add --help): --exhaustive, --probe, --determinism, --alarms N, "
        "--hostile N, --faults, --soak N, "
        "--campaign. Exit status: 0 if everything passed, 1 if something failed, 2 if the command line is wrong.",
    )
    parser.add_argument(
        "--device", "--devices", dest="devices", metavar="NAMES", help="cpu, cuda, cuda:1 (default: all present)"
    )
    parser.add_argument(
        "--ops", metavar="NAMES", help="operations, families and * patterns, comma-separated (default: all)"
    )
    parser.add_argument(
        "--cases", type=int, default=6, metavar="N", help="cases per operation and data class (default 6)"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the first case (default 0); case i has seed + i")
    parser.add_argument(
        "--size", choices=[*SIZES, PATH], help="size of the cases (default: small and medium, and a large one)"
    )
    parser.add_argument("--data", metavar="CLASSES", help=f"data classes: {', '.join(DATA)} (default: the row's)")
    parser.add_argument(
        "--variants", action="store_true", help="also run every SIMD variant and 1 and 2 threads: same bits"
    )
    parser.add_argument(
        "--inputs", metavar="FILE.npz", help="check on your own arrays, named as the operation names them"
    )
    parser.add_argument("--json", metavar="FILE", help="write the results there")
    parser.add_argument("--report", metavar="FILE.html", help="write the results there as a page for people")
    parser.add_argument(
        "--from", nargs="+", metavar="FILE.json", dest="files", help="run nothing: the report of these evidence files"
    )
    parser.add_argument(
        "--trace", action="store_true", help="name every case on stderr before it runs, should one crash"
    )
    parser.add_argument("--list", action="store_true", help="list the operations and stop")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns the exit status."""
    given = list(sys.argv[1:] if argv is None else argv)
    words = [word.partition("=")[0] for word in given]
    if any(word in CAMPAIGNS for word in words) and "--from" not in words:
        from audit import command

        return command.main(given)
    parser = _parser()
    args = parser.parse_args(argv)
    if args.files is not None:
        return _from_files(parser, args.files, args.report)
    try:
        rows = registry.ops(args.ops)
    except KeyError as error:
        parser.error(str(error.args[0]))
    if args.list:
        print(listing(rows))
        return 0
    data = tuple(d.strip() for d in args.data.split(",")) if args.data is not None else None
    if data and (bad := [d for d in data if d not in DATA]):
        parser.error(f"no data class {bad[0]!r}; there are {', '.join(DATA)}")
    if args.cases < 1:
        parser.error("--cases: expected 1 or more")
    for option, target in (("--json", args.json), ("--report", args.report)):
        try:
            if target is not None:
                _try_writing(Path(target))
        except OSError as error:
            parser.error(f"{option}: {error}")
    try:
        names = [n.strip() for n in args.devices.split(",")] if args.devices is not None else device_names()
        runtimes = {name: Runtime(name) for name in names}
    except TorchleanError as error:
        parser.exit(2, f"verify: {error}\n")
    verifier = Verifier(runtimes, Settings(args.cases, args.seed, args.size, data, args.variants, args.trace))
    work: list[tuple[Op, str, list[Case] | None]]
    if args.inputs is not None:
        from tlrt.verify.inputs import InputError, cases_of

        try:
            work = list(cases_of(Path(args.inputs), rows, named=args.ops is not None, seed=args.seed))
        except InputError as error:
            parser.error(f"--inputs: {error}")
    else:
        work = [(row, which, None) for row in rows for which in whiches(row)]
    report = start_report(["verify", *(argv if argv is not None else sys.argv[1:])], args.seed, runtimes)
    run(verifier, work, report)
    print(summary(report))
    if args.json is not None:
        Path(args.json).write_text(report.json(), encoding="utf-8")
    if args.report is not None:
        from audit import html

        html.write(Path(args.report), [html.made_here("verify", json.loads(report.json()))])
    return 0 if report.ok else 1


def _from_files(parser: argparse.ArgumentParser, files: Sequence[str], target: str | None) -> int:
    """Writes the report of evidence files; the exit status says whether anything in them failed."""
    from audit import evidence, html

    if target is None:
        parser.error("--from: give --report FILE.html as well")
    try:
        sources = [evidence.load(Path(f)) for f in files]
        html.write(Path(target), sources)
    except (evidence.EvidenceError, OSError) as error:
        parser.error(f"--from: {error}")
    found = evidence.Evidence(sources).findings
    print(f"{target}: {html.plural(len(found), 'failure')} in {html.plural(len(files), 'file')}")
    return 1 if found else 0


def drawn(names: Sequence[str], ops: str | None, cases: int) -> Report:
    """A verify run with no options but these, its summary printed: what a campaign's report begins with."""
    runtimes = {name: Runtime(name) for name in names}
    report = start_report(["verify", "--cases", str(cases)], 0, runtimes)
    work = [(row, which, None) for row in registry.ops(ops) for which in whiches(row)]
    run(Verifier(runtimes, Settings(cases)), work, report)
    print(summary(report))
    return report


def _try_writing(path: Path) -> None:
    """Raises OSError where the file cannot be written; a file that is there keeps its content."""
    new = not path.exists()
    with path.open("a", encoding="utf-8"):
        pass
    if new:
        path.unlink()


def start_report(command: Sequence[str], seed: int, runtimes: Mapping[str, Runtime]) -> Report:
    """A report of nothing yet: where and with what the run happens."""
    devices, build = _describe(runtimes)
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return Report(told(["python", "-m", "tlrt", *command]), seed, now, devices, build, versions())


def run(verifier: Verifier, work: Sequence[tuple[Op, str, list[Case] | None]], report: Report) -> None:
    """Runs the entry points of `work` into `report`, with a progress bar."""
    start, progress = time.monotonic(), Progress(len(work))
    for row, which, cases in work:
        report.results += verifier.entry(row, which, cases)
        progress.step(report.results[-1].entry, sum(not r.ok for r in report.results))
    progress.close()
    report.seconds = round(time.monotonic() - start, 3)


def summary(report: Report, shown: int = 3) -> str:
    """The table, the failures (at most `shown` per entry point) and the verdict."""
    lines = [table(report.results), ""]
    for r in report.results:
        for f in r.failures[:shown]:
            lines += [f"FAIL {f.entry} on {f.device} ({f.kind}): {f.detail}", f"     {f.line}"]
        if len(r.failures) > shown:
            lines.append(f"     ... and {len(r.failures) - shown} more failures of {r.entry} on {r.device}")
    bad = sum(not r.ok for r in report.results)
    total = sum(r.cases for r in report.results)
    verdict = (
        f"{bad} of {len(report.results)} entry points FAILED" if bad else f"all {len(report.results)} entry points pass"
    )
    lines.append(
        f"{verdict}: {total} cases on {', '.join(report.devices)} in {report.seconds:.1f} s, seed {report.seed}"
    )
    return "\n".join(lines)


def listing(rows: Sequence[Op]) -> str:
    """One line per operation."""
    width = max(len(r.name) for r in rows)
    lines = []
    for r in rows:
        vjp = "no VJP" if r.vjp_rule is None else "VJP"
        lines.append(f"{r.family:<12} {r.name:<{width}} {vjp:<6}  {r.bound.text:<22} {r.text}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
