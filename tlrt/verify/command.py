"""``python -m tlrt verify``: every operation, on every device present, against its specification."""

import argparse
import datetime
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tlrt._terminal import Progress
from tlrt.errors import TorchleanError
from tlrt.verify.documents import format_command, write_document
from tlrt.verify.report import Report, describe_versions, summarise
from tlrt.verify.run import Runtime, device_names
from tlrt.verify.verifier import Settings, Verifier, directions
from tlspec import registry
from tlspec.cases import DATA, PATH, SIZES, Case
from tlspec.registry import Op

#: options that this command had once: what of :mod:`audit` does their work
CAMPAIGNS = {
    **{f"--{name}": name for name in ("exhaustive", "probe", "determinism", "alarms", "hostile", "faults", "soak")},
    "--campaign": "all", "--report": "verify --html FILE.html", "--from": "report FILE... --html FILE.html",
}  # fmt: skip


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tlrt verify",
        description="Checks operations on this machine's devices against their specification.",
        epilog="Exit status: 0 if everything passed, 1 if something failed, 2 if the command line is wrong.",
    )
    add = parser.add_argument
    add("--device", "--devices", dest="devices", metavar="NAMES", help="cpu, cuda, cuda:1 (default: all present)")
    add("--ops", metavar="NAMES", help="operations, families and * patterns, comma-separated (default: all)")
    add("--cases", type=int, default=6, metavar="N", help="cases per operation and data class (default 6)")
    add("--seed", type=int, default=0, help="seed of the first case (default 0); case i has seed + i")
    add("--size", choices=[*SIZES, PATH], help="size of the cases (default: small, medium and edges, and a large one)")
    add("--data", metavar="CLASSES", help=f"data classes: {', '.join(DATA)} (default: the row's)")
    add("--variants", action="store_true", help="also run every SIMD variant, with 1 and 2 threads by turns: same bits")
    add("--inputs", metavar="FILE.npz", help="check on your own arrays, named as the operation names them")
    add("--json", metavar="FILE", help="write the results there; JSON lines to FILE.jsonl")
    add("--trace", action="store_true", help="name every case on stderr before it runs, should one crash")
    add("--list", action="store_true", help="list the operations and stop")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns the exit status."""
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
    if args.json is not None:
        try:
            _try_writing(Path(args.json))
        except OSError as error:
            parser.error(f"--json: {error}")
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
        work = [(row, which, None) for row in rows for which in directions(row)]
    report = start_report(["verify", *given], args.seed, runtimes)
    run_checks(verifier, work, report)
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
        path.unlink()


def start_report(command: Sequence[str], seed: int, runtimes: Mapping[str, Runtime]) -> Report:
    """A report of nothing yet: where and with what the run happens."""
    from tlrt._binding.library import load

    devices = {name: str(r.device.describe()) for name, r in runtimes.items()}
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    words = format_command(["python", "-m", "tlrt", *command])
    return Report(words, seed, now, devices, dict(load().build_info), describe_versions())


def run_checks(verifier: Verifier, work: Sequence[tuple[Op, str, list[Case] | None]], report: Report) -> None:
    """Runs the entry points of `work` into `report`, with a progress bar."""
    start = time.monotonic()
    with Progress(len(work), "entry points") as progress:
        for row, which, cases in work:
            report.results += verifier.check(row, which, cases)
            failed = sum(not r.ok for r in report.results)
            progress.advance(note=report.results[-1].entry + (f", {failed} failed" if failed else ""))
    report.seconds = round(time.monotonic() - start, 3)


def verify_drawn(names: Sequence[str], ops: str | None, cases: int) -> Report:
    """A verify run on these devices with no options but these."""
    runtimes = {name: Runtime(name) for name in names}
    report = start_report(["verify", "--cases", str(cases)], 0, runtimes)
    work = [(row, which, None) for row in registry.ops(ops) for which in directions(row)]
    run_checks(Verifier(runtimes, Settings(cases)), work, report)
    return report


def list_operations(rows: Sequence[Op]) -> str:
    """One line per operation."""
    width = max(len(r.name) for r in rows)
    lines = []
    for r in rows:
        vjp = "no VJP" if r.vjp_rule is None else "VJP"
        lines.append(f"{r.family:<12} {r.name:<{width}} {vjp:<6}  {r.bound.text:<22} {r.text}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
