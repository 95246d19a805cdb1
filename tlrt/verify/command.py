"""``python -m tlrt verify``: every operation, on every device present, against its specification."""

import argparse
import datetime
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict
from pathlib import Path

from tlrt._terminal import Progress, program_name
from tlrt.distributed.environment import join_started
from tlrt.distributed.group import Group, GroupError
from tlrt.errors import TorchleanError
from tlrt.verify.documents import format_command, write_document
from tlrt.verify.report import Report, Result, describe_versions, summarise
from tlrt.verify.run import Runtime, device_names
from tlrt.verify.verifier import Settings, Verifier, directions
from tlspec import registry
from tlspec.draw.cases import DATA, PATH, SIZES, Case
from tlspec.registry import MATH, Op

#: options that this command had once: what of :mod:`audit` does their work
CAMPAIGNS = {
    **{f"--{name}": name for name in ("exhaustive", "probe", "determinism", "alarms", "hostile", "faults", "soak")},
    "--campaign": "all", "--report": "verify --html FILE.html", "--from": "report FILE... --html FILE.html",
}  # fmt: skip
#: one entry point to check, and its cases if they are not to be drawn
Work = tuple[Op, str, list[Case] | None]
#: processes that a run of the whole registry takes at most, if no number is given: each holds its own large cases
MOST_JOBS = 8
#: how many threads NumPy's matrix products take
NUMPY_THREADS = "OPENBLAS_NUM_THREADS"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=program_name("verify"),
        description="Checks operations on this machine's devices against their specification.",
        epilog="Exit status: 0 if everything passed, 1 if something failed, 2 if the command line is wrong. Ranks, as those of "
        "`python -m tlrt launch -n 4 -m tlrt verify`, share the operations, and rank 0 reports.",
    )
    add = parser.add_argument
    add("--device", "--devices", dest="devices", metavar="NAMES", help="cpu, cuda, cuda:1 (default: all present)")
    add("--ops", metavar="NAMES", help="operations, families and * patterns, comma-separated (default: all)")
    add("--math", choices=MATH, default="fast", help="how the devices compute (default fast)")
    count = "cases per operation and data class (default %(default)s)"
    add("--cases", type=int, default=Settings.cases, metavar="N", help=count)
    add("--seed", type=int, default=0, help="seed of the first case (default 0); case i has seed + i")
    add("--size", choices=[*SIZES, PATH], help="size of the cases (default: small, medium and edges, and a large one)")
    add("--data", metavar="CLASSES", help=f"data classes: {', '.join(DATA)} (default: the row's)")
    add("--variants", action="store_true", help="also run every SIMD variant, with 1 and 2 threads by turns: same bits")
    add("--jobs", type=int, metavar="N", help="processes (default: one per core for all operations, else 1)")
    add("--inputs", metavar="FILE.npz", help="check on your own arrays, named as the operation names them")
    add("--json", metavar="FILE", help="write the results there; JSON lines to FILE.jsonl")
    add("--trace", action="store_true", help="name every case on stderr before it runs, should one crash")
    add("--list", action="store_true", help="list the operations and stop")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """The command ``python -m tlrt verify``.

    Parameters
    ----------
    argv : sequence of str, optional
        Its arguments; those of the process unless given.

    Returns
    -------
    int
        0 if everything passed, 1 if something failed, 2 for wrong arguments.
    """
    given = list(sys.argv[1:] if argv is None else argv)
    parser = _parser()
    for word in given:
        if command := CAMPAIGNS.get(word.partition("=")[0]):
            parser.error(f"{word}: campaigns need the source tree; run `python -m audit {command}` there")
    args = parser.parse_args(given)
    try:
        rows = registry.ops(args.ops)
    except KeyError as error:
        parser.error(str(error.args[0]))
    if args.list:
        print(list_operations(rows))
        return 0
    data = tuple(d.strip() for d in args.data.split(",")) if args.data is not None else None
    if data and (bad := [d for d in data if d not in DATA]):
        parser.error(f"no data class {bad[0]!r}; there are {', '.join(DATA)}")
    if args.cases < 1:
        parser.error("--cases: expected 1 or more")
    if args.jobs is not None and args.jobs < 1:
        parser.error("--jobs: expected 1 or more")
    if args.json is not None:
        try:
            _try_writing(Path(args.json))
        except OSError as error:
            parser.error(f"--json: {error}")
    try:
        with join_started() as group:
            return _run(args, parser, given, rows, data, group)
    except GroupError as error:
        parser.exit(1, f"verify: {error}\n")


def _run(
    args: argparse.Namespace, parser: argparse.ArgumentParser, given: list[str], rows: Sequence[Op],
    data: tuple[str, ...] | None, group: Group,
) -> int:  # fmt: skip
    """Checks this rank's share of the operations; rank 0 reports all."""
    try:
        names = [n.strip() for n in args.devices.split(",")] if args.devices is not None else device_names()
        group.agree("verify", {"devices": names})
        runtimes = {name: Runtime(name, math=args.math) for name in names}
    except TorchleanError as error:
        parser.exit(2, f"verify: {error}\n")
    verifier = Verifier(
        runtimes, Settings(args.cases, args.seed, args.size, data, args.variants, args.trace, args.math)
    )
    work: list[Work]
    if args.inputs is not None:
        from tlrt.verify.inputs import InputError, cases_of

        try:
            work = list(cases_of(Path(args.inputs), rows, named=args.ops is not None, seed=args.seed))
        except InputError as error:
            parser.error(f"--inputs: {error}")
    else:
        work = [(row, which, None) for row in rows for which in directions(row)]
    report = start_report(["verify", *given], args.seed, runtimes)
    alone = args.ops is not None or args.inputs is not None or args.trace
    jobs = args.jobs or (1 if alone else max(min(len(os.sched_getaffinity(0)) // group.size, MOST_JOBS), 1))
    try:
        run_checks(verifier, work, report, 1 if args.inputs is not None else jobs, group)
    except BrokenProcessPool as error:
        parser.exit(1, f"verify: {error}\n")
    if group.rank:
        return 0 if report.ok else 1
    print(summarise(report))
    if args.json is not None:
        write_document(Path(args.json), report.document())
    return 0 if report.ok else 1


def _try_writing(path: Path) -> None:
    """Raises OSError where the file cannot be written; a file that is there keeps its content."""
    new = not path.exists()
    with path.open("a", encoding="utf-8"):
        pass
    if new:
        path.unlink(missing_ok=True)  # another rank tries the same file


def start_report(command: Sequence[str], seed: int, runtimes: Mapping[str, Runtime]) -> Report:
    """A report of nothing yet: where and with what the run happens.

    Parameters
    ----------
    command : sequence of str
        The words after ``python -m tlrt``.
    seed : int
        Of the first case.
    runtimes : mapping of str to Runtime
        The devices.

    Returns
    -------
    Report
        Without results.
    """
    from tlrt._binding.library import load

    devices = {name: str(r.device.describe()) for name, r in runtimes.items()}
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    words = format_command(["python", "-m", "tlrt", *command])
    return Report(words, seed, now, devices, dict(load().build_info), describe_versions())


def run_checks(
    verifier: Verifier, work: Sequence[Work], report: Report, jobs: int = 1, group: Group | None = None
) -> None:
    """Checks entry points into a report, with a progress bar.

    Parameters
    ----------
    verifier : Verifier
        What checks.
    work : sequence of (Op, str, list of Case or None)
        The entry points; cases that are not given are drawn.
    report : Report
        It gets the results.
    jobs : int
        Processes.
    group : Group, optional
        The ranks that share the work; each has the whole report afterwards.

    Raises
    ------
    BrokenProcessPool
        With the entry points that were checked when a process ended.
    """
    group = group or Group()
    start = time.monotonic()
    own = [item for of_row in group.share(_by_row(work)) for item in of_row]
    places, work = [i for i, _ in own], [item for _, item in own]
    found: dict[int, list[Result]] = {}
    failed = 0
    with Progress(len(work), "entry points") as progress:
        checks: Iterator[tuple[int, list[Result]]] = iter(())
        if work:
            checks = _check_in_processes(verifier, work, jobs) if jobs > 1 else _check_here(verifier, work)
        for i, results in checks:
            found[places[i]] = results
            failed += sum(not r.ok for r in results)
            progress.advance(note=results[-1].entry + (f", {failed} failed" if failed else ""))
    if group.size > 1:
        shared = group.gather([[i, list(map(asdict, results))] for i, results in found.items()])
        found = {i: list(map(Result.of, r)) for part in shared for i, r in part}
    report.results += [r for i in sorted(found) for r in found[i]]
    report.seconds = round(time.monotonic() - start, 3)


def _by_row(work: Sequence[Work]) -> list[list[tuple[int, Work]]]:
    """The work with its places, in groups: the entry points of a row whose cases are to be drawn share the draws."""
    groups: dict[object, list[tuple[int, Work]]] = {}
    for i, (row, which, cases) in enumerate(work):
        groups.setdefault(i if cases is not None else row.name, []).append((i, (row, which, cases)))
    return list(groups.values())


def _check_here(verifier: Verifier, work: Sequence[Work]) -> Iterator[tuple[int, list[Result]]]:
    for group in _by_row(work):
        row, which, cases = group[0][1]
        results = verifier.check(row, which if len(group) == 1 else None, cases)
        yield from ((i, [r for r in results if r.which == w]) for i, (_, w, _) in group)


def _check_in_processes(verifier: Verifier, work: Sequence[Work], jobs: int) -> Iterator[tuple[int, list[Result]]]:
    """The results with the place of their work, as they come. Processes start anew: a fork would share a GPU's context."""
    context = multiprocessing.get_context("spawn")
    given = tuple(verifier.runtimes), verifier.settings
    with ProcessPoolExecutor(min(jobs, len(work)), context, _start_process, given) as pool:
        threads = os.environ.get(NUMPY_THREADS)
        os.environ[NUMPY_THREADS] = "1"  # for the new processes, whose products would wait for each other's threads
        waiting = {}
        for group in _by_row(work):
            row, which, _ = group[0][1]
            waiting[pool.submit(_check_one, row.name, which if len(group) == 1 else None)] = group
        del os.environ[NUMPY_THREADS]
        if threads is not None:
            os.environ[NUMPY_THREADS] = threads
        left = dict(enumerate(work))
        for future in as_completed(waiting):
            try:
                results = future.result()
            except BrokenProcessPool:
                names = ",".join(dict.fromkeys(row.name for row, _, _ in list(left.values())[: jobs + 1]))
                text = f"a process ended while it checked one of {names}; `--ops {names} --trace` names each case"
                raise BrokenProcessPool(text) from None
            for i, (_, which, _) in waiting[future]:
                del left[i]
                yield i, [r for r in results if r.which == which]


_verifier: Verifier | None = None


def _start_process(names: Sequence[str], settings: Settings) -> None:
    """Makes what a process checks with. An interrupt from the terminal ends it without a word."""
    global _verifier
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    _verifier = Verifier({name: Runtime(name, math=settings.math) for name in names}, settings)


def _check_one(name: str, which: str | None) -> list[Result]:
    assert _verifier is not None
    return _verifier.check(registry.get(name), which)


def verify_drawn(
    names: Sequence[str], ops: str | None, cases: int, math: str = "fast", group: Group | None = None
) -> Report:
    """Checks operations on devices, with default settings.

    Parameters
    ----------
    names : sequence of str
        Devices.
    ops : str or None
        Operations, families and * patterns, comma-separated; None: all.
    cases : int
        Cases per operation and data class.
    math : str
        "fast" or "reproducible".
    group : Group, optional
        The ranks that share the work.

    Returns
    -------
    Report
        What was found.

    Examples
    --------
    >>> from tlrt.verify.command import verify_drawn
    >>> report = verify_drawn(["cpu"], "relu", cases=1)
    >>> report.ok, [result.entry for result in report.results]
    (True, ['relu', 'relu_bwd'])
    """
    runtimes = {name: Runtime(name, math=math) for name in names}
    report = start_report(["verify", "--cases", str(cases), "--math", math], 0, runtimes)
    work = [(row, which, None) for row in registry.ops(ops) for which in directions(row)]
    run_checks(Verifier(runtimes, Settings(cases, math=math)), work, report, group=group)
    return report


def list_operations(rows: Sequence[Op]) -> str:
    """A table of operations.

    Parameters
    ----------
    rows : sequence of Op
        The operations.

    Returns
    -------
    str
        One line each: family, name, VJP, bound, signature.
    """
    width = max(len(r.name) for r in rows)
    lines = []
    for r in rows:
        vjp = "no VJP" if r.vjp_rule is None else "VJP"
        lines.append(f"{r.family:<12} {r.name:<{width}} {vjp:<6}  {r.bound.text:<22} {r.text}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
