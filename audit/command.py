"""``python -m audit COMMAND...``: the campaigns on the command line, and the commands of :data:`OTHERS`."""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from audit import contention, determinism, exhaustive, faults, hostile, interrupts, probe
from audit.build import BuildError
from audit.checker import CheckerError
from audit.environment import commit, describe_run
from audit.summary import summary_text, write_summaries
from tlrt.errors import TorchleanError
from tlrt.verify.command import verify_drawn
from tlrt.verify.documents import format_command, read_document, write_document
from tlrt.verify.report import summarise
from tlrt.verify.run import device_names
from tlspec import registry
from tlspec.registry import MATH

Document = dict[str, Any]
#: commands with arguments of their own: the module of each, and what it does
OTHERS = {
    "mutate": ("audit.mutation.command", "draws defects and scores the tests"),
    "judge": ("audit.judge.defects", "plants defects in kernels and scores the judge"),
    "judge-alarms": ("audit.judge.alarms", "judges kernels without a defect"),
}
#: option -> campaign, help, default, default of --short
OPTIONS: dict[str, tuple[str, str, int, int]] = {
    "cases": ("verify", "cases per operation and data class", 6, 1),
    "stride": ("exhaustive", "every N-th bit pattern", 1, 4099),
    "repeats": ("determinism", "repetitions of a call", 100, 5),
    "calls": (
        "hostile",
        "calls with sanitizers on the CPU, a tenth on a GPU, a fiftieth from 8 threads",
        10_200_000,
        20_000,
    ),
    "every": ("faults", "allocations of every N-th entry point fail", 1, 20),
    "points": ("interrupts", "every N-th point is interrupted", 1, 97),
    "turns": ("contention", "turns of eight threads at one object", 1_200_000, 12_000),
    "forks": ("contention", "forks beside busy threads", 1000, 10),
}


def _parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="python -m audit",
        description="Campaigns: what verify tries at greater length, and more. Several commands may be given.",
        epilog="Besides: " + "; ".join(f"`{name}` {what}" for name, (_, what) in OTHERS.items())
        + ". Exit status: 0 if nothing failed, 1 if something did, 2 if the command line is wrong.",
    )  # fmt: skip
    add = p.add_argument
    add("commands", nargs="+", metavar="COMMAND", choices=[*CAMPAIGNS, "all"], help=f"{', '.join(CAMPAIGNS)}, all")
    add("--short", action="store_true", help="a few seconds of each campaign")
    add("--device", "--devices", dest="devices", metavar="NAMES", help="cpu, cuda, cuda:1 (default: all present)")
    add("--ops", metavar="NAMES", help="operations, families and * patterns, comma-separated (default: all)")
    add("--out", metavar="DIR", help="write campaign.jsonl and the summaries there, for instance out/runs/today")
    add("--json", metavar="FILE", help="write the raw document there; JSON lines to FILE.jsonl")
    add("--math", choices=MATH, default="fast", help="how devices compute in verify and determinism (default fast)")
    add("--workers", type=int, metavar="N", help="threads and processes (default: one per processor)")
    add("--no-gradients", action="store_true", help="exhaustive: forward functions only")
    add("--against", metavar="FILE", help="exhaustive: compare the hashes with another machine's document")
    for name, (campaign, what, default, _) in OPTIONS.items():
        add(f"--{name}", type=int, metavar="N", help=f"{campaign}: {what} (default {default:,})")
    return p


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the commands; returns the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words and words[0] in OTHERS:
        main_of: Callable[[Sequence[str]], int] = import_module(OTHERS[words[0]][0]).main
        return main_of(words[1:])
    parser = _parser()
    args = parser.parse_args(words)
    for name, (_, _, default, short) in OPTIONS.items():
        given = getattr(args, name)
        if given is None:
            setattr(args, name, short if args.short else default)
        elif given < 1:
            parser.error(f"--{name}: got {given}, expected 1 or more")
    if args.workers is not None and args.workers < 1:
        parser.error(f"--workers: got {args.workers}, expected 1 or more")
    target = Path(args.json) if args.json else Path(args.out) / "campaign.jsonl" if args.out else None
    try:
        registry.ops(args.ops)
        if target is not None:
            target.parent.mkdir(parents=True, exist_ok=True)
        args.other = read_document(Path(args.against)) if args.against else None
    except KeyError as error:
        parser.error(str(error.args[0]))
    except (OSError, ValueError) as error:
        parser.error(str(error))
    try:
        import tlrt

        names = [n.strip() for n in args.devices.split(",")] if args.devices is not None else device_names()
        devices = [tlrt.device(n).name for n in names]
    except TorchleanError as error:
        parser.exit(2, f"audit: {error}\n")
    return _run(args, devices, words, target)


def _run(args: argparse.Namespace, devices: Sequence[str], words: Sequence[str], target: Path | None) -> int:
    """Runs the campaigns in order; the raw document and its summaries are written after each."""
    raw: Document = {
        "command": format_command(["python", "-m", "audit", *words]),
        "commit": commit(),
        **describe_run(devices),
    }
    chosen = [n for n in CAMPAIGNS if n in args.commands or "all" in args.commands]
    failed, start = False, time.monotonic()
    for name in chosen:
        began = time.monotonic()
        try:
            found = CAMPAIGNS[name](args, devices)
        except (CheckerError, BuildError, ValueError, TorchleanError) as error:
            print(f"audit: {error}", file=sys.stderr)
            return 1
        raw[name] = found
        for document in found if isinstance(found, list) else [found]:
            document.setdefault("seconds", round(time.monotonic() - began, 1))
            failed = failed or document["verdict"] == "fail"
        print(f"== {name} ==\n{summary_text({**raw, **{n: None for n in chosen if n != name}})}\n", flush=True)
        if target is not None:
            write_document(target, raw)
            if args.out:
                write_summaries(raw, target.parent)
    where, seconds = ", ".join(devices), time.monotonic() - start
    print(f"{'FAILED' if failed else 'nothing failed'}: {', '.join(chosen)} on {where} in {seconds:.1f} s")
    return int(failed)


def verdict(document: Document, failed: bool) -> Document:
    """The document with its verdict."""
    document["verdict"] = "fail" if failed else "pass"
    return document


def _verify(args: argparse.Namespace, devices: Sequence[str]) -> Document:
    found = verify_drawn(devices, args.ops, args.cases, args.math)
    print(summarise(found))
    return verdict(found.document(), not found.ok)


def _exhaustive(args: argparse.Namespace, devices: Sequence[str]) -> Document:
    functions = exhaustive.entries(args.ops, gradients=not args.no_gradients)
    document = exhaustive.run(devices, functions, stride=args.stride, workers=args.workers)
    if args.other is not None:
        lines = exhaustive.compare_hashes(document, args.other.get("exhaustive", args.other))
        document["against"] = lines or ["every hash is equal"]
    failed = any(f["verdict"] == "fail" for f in document["functions"])
    return verdict(document, failed or any("FAIL" in line for line in document.get("against", ())))


def _probe(args: argparse.Namespace, devices: Sequence[str]) -> Document:
    chosen = None if args.ops is None else [r.name for r in registry.ops(args.ops)]
    document = probe.probe(devices, chosen, probe.SHORT if args.short else probe.FULL)
    return verdict(document, any(r["verdict"] == "fail" for r in document["sums"]))


def _determinism(args: argparse.Namespace, devices: Sequence[str]) -> Document:
    run = determinism.Determinism(devices, args.repeats, math=args.math)
    run.run(args.ops)
    return verdict(run.document(), not run.ok)


def _hostile(args: argparse.Namespace, devices: Sequence[str]) -> list[Document]:
    """The CPU under address and undefined-behaviour sanitizers, and from eight threads under the thread sanitizer; each CUDA
    device with the library in use. Threads have a context each in one run and share one in another."""
    from tlrt._binding.library import load

    runs: list[Document] = []
    for device in devices:
        several: Document = {"sanitize": "thread", "workers": 1}
        if device == "cpu":
            runs.append(hostile.calls(args.calls, workers=args.workers))
        else:
            several = {"sanitize": "", "device": int(device.partition(":")[2] or 0), "library": Path(load().path)}
            runs.append(hostile.calls(max(args.calls // 10, 1), workers=args.workers, **several))
        for shared in (False, True):
            runs.append(hostile.calls(max(args.calls // 50, 1), threads=8, shared=shared, **{"workers": 1, **several}))
    return [verdict(r, bool(r["failures"])) for r in runs]


def _faults(args: argparse.Namespace, devices: Sequence[str]) -> Document:
    document = faults.campaign(devices, args.every)
    return verdict(document, any(r["failures"] or not r["calls"]["trials"] for r in document["devices"]))


def _interrupts(args: argparse.Namespace, devices: Sequence[str]) -> Document:
    document = interrupts.campaign(args.points, workers=args.workers)
    return verdict(document, bool(document["failures"]) or not document["points"])


def _contention(args: argparse.Namespace, devices: Sequence[str]) -> Document:
    document = contention.campaign(args.turns, args.forks)
    return verdict(document, bool(document["failures"]))


CAMPAIGNS: dict[str, Callable[[argparse.Namespace, Sequence[str]], Any]] = {
    "verify": _verify, "exhaustive": _exhaustive, "probe": _probe, "determinism": _determinism,
    "hostile": _hostile, "faults": _faults, "interrupts": _interrupts, "contention": _contention,
}  # fmt: skip
