"""``python -m audit COMMAND...``: the campaigns on the command line, the commands of :data:`OTHERS`, and ``report``."""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from audit import (
    alarms,
    checkpoint_files,
    contention,
    coverage,
    coverage_python,
    determinism,
    environments,
    evidence,
    exhaustive,
    faults,
    hostile,
    interrupts,
    pairs,
    probe,
    soak,
)
from audit.build import BuildError
from audit.checker import BINARY, CheckerError
from audit.environment import commit, describe_run
from audit.figures import plural
from tlrt.distributed.environment import join_started
from tlrt.distributed.group import Group
from tlrt.errors import TorchleanError
from tlrt.verify.command import verify_drawn
from tlrt.verify.documents import format_command, read_document, write_document
from tlrt.verify.report import summarise
from tlrt.verify.run import device_names
from tlspec import registry
from tlspec.registry import MATH

#: commands with arguments of their own: the module of each, and what it does
OTHERS = {
    "mutate": ("audit.mutation.command", "plants defects and scores the tests"),
    "models": ("audit.models.command", "compares models with PyTorch's"),
    "judge": ("audit.judge.defects", "plants defects in kernels and scores the judge"),
    "judge-alarms": ("audit.judge.alarms", "judges kernels without a defect"),
    "league": ("audit.league.runner", "judges other libraries"),
    "thirdparty": ("audit.thirdparty", "judges kernels of other projects"),
    "onnx": ("audit.onnx_nodes.command", "runs the node tests of the onnx package"),
    "exchange": ("audit.exchange", "shares memory with other libraries"),
}
#: what a short run tries, which takes seconds
SHORT: dict[str, Any] = {"cases": 1, "stride": 4099, "pairs": 200_000, "repeats": 5, "comparisons": 2000,
                         "calls": 20_000, "files": 200, "every": 20, "steps": 500,
                         "points": 97, "turns": 12_000, "forks": 10, "drawn": 1}  # fmt: skip
#: of the hostile calls one in a hundred is left out, as its work would be unbounded
FULL: dict[str, Any] = {"cases": 6, "stride": 1, "pairs": 10**9, "repeats": 100, "comparisons": 100_000,
                        "calls": 10_200_000, "files": 10_000, "every": 1, "steps": 10**6,
                        "points": 1, "turns": 1_200_000, "forks": 1000, "drawn": 24}  # fmt: skip
#: campaigns whose work ranks share: verify and determinism by entry point, alarms by case, exhaustive by input
SHARED = ("verify", "exhaustive", "determinism", "alarms")
#: the least that an option may ask for
LEAST = {"pairs": 0, "files": 0}


@dataclass
class Outcome:
    """What a campaign found: its document, or those of its runs one by one; whether nothing failed; its tables."""

    document: dict[str, Any] | list[dict[str, Any]]
    ok: bool
    table: str


def _parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="python -m audit",
        description="Campaigns: what verify tries at greater length, and more. Several commands may be given.",
        epilog="Besides: `report FILE... --html FILE.html` shows files of runs as a page; "
        + "; ".join(f"`{name}` {what}" for name, (_, what) in OTHERS.items())
        + f". Ranks, as those of `python -m tlrt launch -n 4 -m audit exhaustive`, share the work of {', '.join(SHARED)}; rank 0 "
        "reports. Exit status: 0 if nothing failed, 1 if something did, 2 if the command line is wrong.",
    )
    add = p.add_argument
    add(
        "commands",
        nargs="+",
        metavar="COMMAND",
        choices=[*CAMPAIGNS, "all"],
        help=f"{', '.join(CAMPAIGNS)}; all (but coverage)",
    )
    add("--short", action="store_true", help="a few seconds of each campaign")
    add("--device", "--devices", dest="devices", metavar="NAMES", help="cpu, cuda, cuda:1 (default: all present)")
    add("--ops", metavar="NAMES", help="operations, families and * patterns, comma-separated (default: all)")
    add("--out", metavar="DIR", help="write campaign.jsonl there, and the state of the exhaustive campaign")
    add("--json", metavar="FILE", help="write the document there; JSON lines to FILE.jsonl")
    add("--html", metavar="FILE.html", help="write the document as a page for people")
    add("--math", choices=MATH, default="fast", help="how devices compute in verify and determinism (default fast)")
    add("--workers", type=int, metavar="N", help="threads and processes (default: one per processor)")

    def number(group: Any, name: str, what: str) -> None:
        group.add_argument(f"--{name}", type=int, metavar="N", help=f"{what} (default {FULL[name]:,})")

    number(p.add_argument_group("verify"), "cases", "cases per operation and data class")
    e = p.add_argument_group("exhaustive")
    number(e, "stride", "every N-th bit pattern")
    number(e, "pairs", "random pairs for every operation of two arguments")
    e.add_argument("--resume", metavar="FILE", help="the state: continued if it is there, kept up to date")
    e.add_argument(
        "--budget", type=float, metavar="SECONDS", help="start no chunk after this long; says what is missing"
    )
    e.add_argument("--no-gradients", action="store_true", help="forward functions only")
    e.add_argument("--against", metavar="FILE", help="compare the hashes with another machine's document")
    number(p.add_argument_group("determinism"), "repeats", "repetitions of a call")
    number(p.add_argument_group("alarms"), "comparisons", "correct comparisons per device")
    h = p.add_argument_group("hostile")
    number(h, "calls", "calls with sanitizers on the CPU, a tenth on a GPU, a fiftieth from 8 threads")
    number(h, "files", "damaged checkpoint files")
    f = p.add_argument_group("faults")
    number(f, "every", "every N-th allocation fails, and those of every N-th entry point")
    f.add_argument(
        "--modes",
        nargs="+",
        default=list(faults.MODES),
        choices=faults.MODES,
        help="it alone, or all from it on, or those of calls",
    )
    number(p.add_argument_group("interrupts"), "points", "every N-th point is interrupted")
    c = p.add_argument_group("contention")
    number(c, "turns", "turns of eight threads at one object")
    number(c, "forks", "forks beside busy threads")
    number(p.add_argument_group("environments"), "drawn", "cases of every entry point in each floating-point mode")
    number(p.add_argument_group("soak"), "steps", "training steps on every device")
    return p


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the commands; returns the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["report"]:
        return _report(words[1:])
    if words and words[0] in OTHERS:
        main_of: Callable[[Sequence[str]], int] = import_module(OTHERS[words[0]][0]).main
        return main_of(words[1:])
    parser = _parser()
    args = parser.parse_args(words)
    with join_started() as args.group:
        return _run(parser, args, words)


def _run(parser: argparse.ArgumentParser, args: argparse.Namespace, words: Sequence[str]) -> int:
    """Runs the commands on a rank; rank 0 reports."""
    group: Group = args.group
    for name, default in (SHORT if args.short else FULL).items():
        given, least = getattr(args, name), LEAST.get(name, 1)
        if given is None:
            setattr(args, name, default)
        elif given < least:
            parser.error(f"--{name}: got {given}, expected {least} or more")
    if args.workers is not None and args.workers < 1:
        parser.error(f"--workers: got {args.workers}, expected 1 or more")
    if group.size > 1 and (alone := [n for n in args.commands if n not in SHARED]):
        parser.error(f"{alone[0]}: got {group.size} ranks, expected 1 (ranks share {', '.join(SHARED)})")
    try:
        registry.ops(args.ops)
    except KeyError as error:
        parser.error(str(error.args[0]))
    target = Path(args.json) if args.json else Path(args.out) / "campaign.jsonl" if args.out else None
    try:
        for path in (target, Path(args.html) if args.html else None):
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
        args.other = read_document(Path(args.against)) if args.against else None
    except (OSError, ValueError) as error:
        parser.error(str(error))
    try:
        import tlrt

        names = [n.strip() for n in args.devices.split(",")] if args.devices is not None else device_names()
        devices = [tlrt.device(n).name for n in names]
        group.agree("audit", {"devices": devices})
    except TorchleanError as error:
        parser.exit(2, f"audit: {error}\n")

    document: dict[str, Any] = {"command": format_command(["python", "-m", "audit", *words]), **describe_run(devices)}
    # coverage runs most tests in a build of its own, which no device changes
    chosen = [n for n in CAMPAIGNS if n in args.commands or ("all" in args.commands and n != "coverage")]
    failed, start = False, time.monotonic()
    for name in chosen:
        began = time.monotonic()
        try:
            outcome = CAMPAIGNS[name](args, devices)
        except (CheckerError, BuildError, ValueError, TorchleanError) as error:
            print(f"audit: {error}", file=sys.stderr)
            return 1
        if isinstance(outcome.document, dict):
            outcome.document["verdict"] = "pass" if outcome.ok else "fail"
            outcome.document["seconds"] = round(time.monotonic() - began, 1)
        document[name] = outcome.document
        failed = failed or not outcome.ok
        if group.rank:
            continue
        print(f"== {name} ==\n{outcome.table}\n", flush=True)
        if target is not None:
            write_document(target, document)
    if group.rank:
        return int(failed)
    if args.html:
        from audit.report import write_page

        write_page(Path(args.html), [evidence.read("this run", {"commit": commit(12), **document})])
    where, seconds = ", ".join(devices), time.monotonic() - start
    print(f"{'FAILED' if failed else 'nothing failed'}: {', '.join(chosen)} on {where} in {seconds:.1f} s")
    return int(failed)


def _report(argv: Sequence[str]) -> int:
    """Writes the page of evidence files; the exit status says whether anything in them failed."""
    p = argparse.ArgumentParser(prog="python -m audit report", description="Files of runs as one page for people.")
    p.add_argument("files", nargs="+", metavar="FILE", help="documents of runs, as JSON or JSON lines")
    p.add_argument("--html", required=True, metavar="FILE.html", help="the page")
    args = p.parse_args(argv)
    from audit.report import write_page

    try:
        sources = [evidence.load(Path(f)) for f in args.files]
        write_page(Path(args.html), sources)
    except (evidence.EvidenceError, OSError) as error:
        p.error(str(error))
    found = evidence.Evidence(sources).findings
    print(f"{args.html}: {plural(len(found), 'failure')} in {plural(len(args.files), 'file')}")
    return 1 if found else 0


def _verify(args: argparse.Namespace, devices: Sequence[str]) -> Outcome:
    found = verify_drawn(devices, args.ops, args.cases, args.math, args.group)
    return Outcome(found.document(), found.ok, summarise(found))


def _exhaustive(args: argparse.Namespace, devices: Sequence[str]) -> Outcome:
    state = Path(args.resume) if args.resume else Path(args.out) / "exhaustive.state.json" if args.out else None
    functions = exhaustive.entries(args.ops, gradients=not args.no_gradients)
    start = time.monotonic()
    run = exhaustive.Exhaustive(
        devices, functions, stride=args.stride, state=state, budget=args.budget, workers=args.workers, group=args.group
    )
    run.run()
    document, ok = run.document(), run.ok
    text = exhaustive.table(document)
    chosen = {r.name for r in registry.ops(args.ops)}
    if binary := [n for n in BINARY if n in chosen]:
        left = None if args.budget is None else max(args.budget - (time.monotonic() - start), 0.0)
        both = pairs.Pairs(devices, binary, args.pairs, workers=args.workers, budget=left)
        both.run(args.group)
        document["pairs"] = both.document()
        ok = ok and both.ok
        text += "\n\n" + pairs.table(document["pairs"])
    if args.other is not None:
        lines = exhaustive.compare_hashes(document, args.other.get("exhaustive", args.other))
        document["against"] = lines or ["every hash is equal"]
        ok = ok and not any("FAIL" in line for line in lines)
        text += "\n\nagainst the other document: " + "\n".join(document["against"])
    return Outcome(document, ok, text)


def _outcome(campaign: Any, document: dict[str, Any]) -> Outcome:
    """What a campaign's module says of its document."""
    return Outcome(document, campaign.ok(document), campaign.table(document))


def _outcome_of_runs(campaign: Any, runs: list[dict[str, Any]]) -> Outcome:
    """The same of several runs, each with a verdict of its own."""
    for run in runs:
        run["verdict"] = "pass" if campaign.ok(run) else "fail"
    return Outcome(list(runs), all(map(campaign.ok, runs)), "\n\n".join(map(campaign.table, runs)))


def _probe(args: argparse.Namespace, devices: Sequence[str]) -> Outcome:
    chosen = [r.name for r in registry.ops(args.ops)]
    return _outcome(probe, probe.probe(devices, chosen, probe.SHORT if args.short else probe.FULL))


def _determinism(args: argparse.Namespace, devices: Sequence[str]) -> Outcome:
    run = determinism.Determinism(devices, args.repeats, math=args.math)
    run.run(args.ops, args.group)
    document = run.document()
    return Outcome(document, run.ok, determinism.table(document))


def _alarms(args: argparse.Namespace, devices: Sequence[str]) -> Outcome:
    return _outcome(alarms, alarms.alarms(devices, args.comparisons, args.ops, workers=args.workers, group=args.group))


def _hostile(args: argparse.Namespace, devices: Sequence[str]) -> Outcome:
    """The CPU under address and undefined-behaviour sanitizers, and from eight threads under the thread sanitizer; each CUDA
    device with the library in use. Threads have a context each in one run and share one in another."""
    from tlrt._binding.library import load

    runs: list[dict[str, Any]] = []
    for device in devices:
        if device == "cpu":
            several: dict[str, Any] = {"sanitize": "thread", "workers": 1}
            runs.append(hostile.calls(args.calls, workers=args.workers))
            if args.files:
                runs[0]["checkpoints"] = checkpoint_files.try_damaged(args.files)
        else:
            several = {"sanitize": "", "device": int(device.partition(":")[2] or 0), "library": Path(load().path)}
            runs.append(hostile.calls(max(args.calls // 10, 1), workers=args.workers, **several))
        for shared in (False, True):
            runs.append(hostile.calls(max(args.calls // 50, 1), threads=8, shared=shared, **{"workers": 1, **several}))
    return _outcome_of_runs(hostile, runs)


def _faults(args: argparse.Namespace, devices: Sequence[str]) -> Outcome:
    document = faults.campaign(devices, args.every, args.modes)
    faults.use_up(document)
    return _outcome(faults, document)


def _interrupts(args: argparse.Namespace, devices: Sequence[str]) -> Outcome:
    return _outcome(interrupts, interrupts.campaign(args.points, workers=args.workers))


def _contention(args: argparse.Namespace, devices: Sequence[str]) -> Outcome:
    return _outcome(contention, contention.campaign(args.turns, args.forks))


def _environments(args: argparse.Namespace, devices: Sequence[str]) -> Outcome:
    return _outcome(environments, environments.campaign(args.drawn))


def _coverage(args: argparse.Namespace, devices: Sequence[str]) -> Outcome:
    """Of the CPU library, as gcov counts nothing on a GPU, and of the two packages."""
    with ThreadPoolExecutor() as pool:
        both = [pool.submit(half.campaign) for half in (coverage, coverage_python)]
        native, python = (half.result() for half in both)
    table = f"{coverage.table(native)}\n\n{coverage_python.table(python)}"
    return Outcome({"native": native, "python": python}, coverage.ok(native) and coverage_python.ok(python), table)


def _soak(args: argparse.Namespace, devices: Sequence[str]) -> Outcome:
    return _outcome_of_runs(soak, [soak.soak(device, args.steps) for device in devices])


CAMPAIGNS: dict[str, Callable[[argparse.Namespace, Sequence[str]], Outcome]] = {
    "verify": _verify, "exhaustive": _exhaustive, "probe": _probe, "determinism": _determinism, "alarms": _alarms,
    "hostile": _hostile, "faults": _faults, "interrupts": _interrupts, "contention": _contention,
    "environments": _environments, "soak": _soak, "coverage": _coverage,
}  # fmt: skip
