"""The campaigns on the command line: ``python -m tlrt verify`` with ``--exhaustive``, ``--probe`` and their like."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from audit import alarms, determinism, exhaustive, faults, hostile, html, pairs, probe, report, soak
from audit.checker import BINARY, CheckerError
from tlrt.errors import TorchleanError
from tlrt.verify.command import drawn
from tlrt.verify.report import told
from tlrt.verify.run import device_names
from tlspec import registry

__all__ = ["main"]

#: what a short run tries; the whole of it takes seconds
SHORT: dict[str, Any] = {
    "stride": 4099, "pairs": 200_000, "repeats": 5, "alarms": 2000, "hostile": 20_000, "files": 200, "every": 20, "soak": 500,
}  # fmt: skip
#: of the hostile calls one in a hundred is left out, as its work would be unbounded
FULL: dict[str, Any] = {
    "stride": 1, "pairs": 10**9, "repeats": 100, "alarms": 100_000, "hostile": 10_200_000, "files": 10_000, "every": 1,
    "soak": 10**6,
}  # fmt: skip

#: a part's document, or those of its runs one by one; whether nothing failed; its tables
Outcome = tuple[dict[str, Any] | list[dict[str, Any]], bool, str]


def _parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="python -m tlrt verify",
        description="Campaigns: what verify tries at greater length. Several may be asked for in one run.",
        epilog="Exit status: 0 if nothing failed, 1 if something did, 2 if the command line is wrong.",
    )
    which = p.add_argument_group("what to do")
    which.add_argument(
        "--exhaustive", action="store_true", help="all 2^32 inputs of every function of one argument; pairs"
    )
    which.add_argument(
        "--probe", action="store_true", help="the order of every sum against the height its bound assumes"
    )
    which.add_argument(
        "--determinism", action="store_true", help="the same bits over repetitions, threads, batches, trims"
    )
    which.add_argument("--alarms", type=int, metavar="N", help="N correct comparisons per device through the bounds")
    which.add_argument(
        "--hostile",
        type=int,
        metavar="N",
        help="N hostile calls of the C ABI, with sanitizers on the CPU, a tenth on a GPU; from 8 threads; damaged files",
    )
    which.add_argument("--faults", action="store_true", help="every allocation of a training step fails in turn")
    which.add_argument("--soak", type=int, metavar="N", help="N small training steps in flat memory on every device")
    which.add_argument("--campaign", action="store_true", help="all of them")
    p.add_argument("--short", action="store_true", help="a few seconds of each instead of the whole")
    p.add_argument(
        "--device", "--devices", dest="devices", metavar="NAMES", help="cpu, cuda, cuda:1 (default: all present)"
    )
    p.add_argument("--ops", metavar="NAMES", help="operations, families and * patterns, comma-separated (default: all)")
    p.add_argument("--out", metavar="DIR", help="write campaign.json there, and the state of the exhaustive part")
    p.add_argument("--json", metavar="FILE", help="write the document there")
    p.add_argument("--report", metavar="FILE.html", help="draw cases as well, and write all of it as a page for people")
    p.add_argument(
        "--workers", type=int, metavar="N", help="threads and processes that work (default: one per processor)"
    )
    e = p.add_argument_group("exhaustive")
    e.add_argument("--stride", type=int, metavar="N", help="every N-th bit pattern (default 1)")
    e.add_argument("--resume", metavar="FILE", help="the state: continued if it is there, kept up to date")
    e.add_argument(
        "--budget", type=float, metavar="SECONDS", help="stop starting chunks after this long; says what is missing"
    )
    e.add_argument(
        "--pairs", type=int, metavar="N", help="random pairs for every operation of two arguments (default 10^9)"
    )
    e.add_argument("--no-gradients", action="store_true", help="forward functions only")
    e.add_argument("--against", metavar="FILE", help="compare the hashes with another machine's document")
    d = p.add_argument_group("determinism")
    d.add_argument("--repeats", type=int, metavar="N", help="repetitions of a call (default 100)")
    return p


def main(argv: Sequence[str]) -> int:
    """Runs the campaigns asked for; returns the exit status."""
    parser = _parser()
    args = parser.parse_args(argv)
    size = SHORT if args.short else FULL
    for name, least in (
        ("stride", 1), ("pairs", 0), ("repeats", 1), ("alarms", 1), ("hostile", 1), ("soak", 1),
    ):  # fmt: skip
        given = getattr(args, name)
        if given is not None and given < least:
            parser.error(f"--{name}: got {given}, expected {least} or more")
        if given is None and (args.campaign or name not in ("alarms", "hostile", "soak")):
            setattr(args, name, size[name])
    if args.workers is not None and args.workers < 1:
        parser.error(f"--workers: got {args.workers}, expected 1 or more")
    try:
        chosen = [r.name for r in registry.ops(args.ops)]
    except KeyError as error:
        parser.error(str(error.args[0]))
    target = Path(args.json) if args.json else Path(args.out) / "campaign.json" if args.out else None
    try:
        for place in (target, Path(args.report) if args.report else None):
            if place is not None:
                place.parent.mkdir(parents=True, exist_ok=True)
        other = json.loads(Path(args.against).read_text(encoding="utf-8")) if args.against else None
    except (OSError, ValueError) as error:
        parser.error(str(error))
    try:
        import tlrt

        names = [n.strip() for n in args.devices.split(",")] if args.devices is not None else device_names()
        devices = [tlrt.device(n).name for n in names]
    except TorchleanError as error:
        parser.exit(2, f"verify: {error}\n")

    document: dict[str, Any] = {"command": told(["python", "-m", "tlrt", "verify", *argv]), **report.head(devices)}
    parts: list[tuple[str, Callable[[], Outcome]]] = []
    if args.exhaustive or args.campaign:
        parts.append(("exhaustive", lambda: _exhaustive(args, devices, chosen, other)))
    if args.probe or args.campaign:
        parts.append(("probe", lambda: _probe(args, devices, chosen)))
    if args.determinism or args.campaign:
        parts.append(("determinism", lambda: _determinism(args, devices)))
    if args.alarms is not None:
        parts.append(("alarms", lambda: _alarms(args, devices)))
    if args.hostile is not None:
        parts.append(("hostile", lambda: _hostile(args, devices, size["files"])))
    if args.faults or args.campaign:
        parts.append(("faults", lambda: _faults(devices, size["every"])))
    if args.soak is not None:
        parts.append(("soak", lambda: _soak(args, devices)))
    good, tables, start = True, [], time.monotonic()
    checked = None
    if args.report:
        checked = drawn(devices, args.ops, 1 if args.short else 6)
        good = checked.ok
    try:
        for name, part in parts:
            began = time.monotonic()
            found, fine, text = part()
            if isinstance(found, dict):
                found |= {"verdict": "pass" if fine else "fail", "seconds": round(time.monotonic() - began, 1)}
            document[name] = found
            good = good and fine
            tables.append(f"== {name} ==\n{text}")
            if target is not None:
                report.write(target, document)
    except (CheckerError, hostile.HostileError, ValueError, TorchleanError) as error:
        print("\n\n".join(tables))
        print(f"verify: {error}", file=sys.stderr)
        return 1
    print("\n\n".join(tables))
    if checked is not None:
        both = {"campaign": document, "verify": json.loads(checked.json())}
        html.write(Path(args.report), [html.made_here(name, part) for name, part in both.items()])
    done, where = ", ".join(n for n, _ in parts), ", ".join(devices)
    print(f"\n{'nothing failed' if good else 'FAILED'}: {done} on {where} in {time.monotonic() - start:.1f} s")
    return 0 if good else 1


def _exhaustive(args: argparse.Namespace, devices: Sequence[str], chosen: Sequence[str], other: Any) -> Outcome:
    state = Path(args.resume) if args.resume else Path(args.out) / "exhaustive.state.json" if args.out else None
    functions = exhaustive.entries(args.ops, gradients=not args.no_gradients)
    start = time.monotonic()
    run = exhaustive.Exhaustive(
        devices, functions, stride=args.stride, state=state, budget=args.budget, workers=args.workers
    )
    run.run()
    document, fine = run.document(), run.ok
    text = exhaustive.table(document)
    binary = [n for n in BINARY if n in chosen]
    if binary:
        left = None if args.budget is None else max(args.budget - (time.monotonic() - start), 0.0)
        both = pairs.Pairs(devices, binary, args.pairs, workers=args.workers, budget=left)
        both.run()
        document["pairs"] = both.document()
        fine = fine and both.ok
        text += "\n\n" + pairs.table(document["pairs"])
    if other is not None:
        lines = exhaustive.against(document, other.get("exhaustive", other))
        document["against"] = lines or ["every hash is equal"]
        fine = fine and not any("FAIL" in line for line in lines)
        text += "\n\nagainst the other document: " + "\n".join(document["against"])
    return document, fine, text


def _probe(args: argparse.Namespace, devices: Sequence[str], chosen: Sequence[str]) -> Outcome:
    document = probe.probe(devices, chosen, probe.SHORT if args.short else probe.FULL)
    return document, probe.ok(document), probe.table(document)


def _determinism(args: argparse.Namespace, devices: Sequence[str]) -> Outcome:
    run = determinism.Determinism(devices, args.repeats)
    run.run(args.ops)
    document = run.document()
    return document, run.ok, determinism.table(document)


def _alarms(args: argparse.Namespace, devices: Sequence[str]) -> Outcome:
    document = alarms.alarms(devices, args.alarms, args.ops, workers=args.workers)
    return document, alarms.ok(document), alarms.table(document)


def _hostile(args: argparse.Namespace, devices: Sequence[str], files: int) -> Outcome:
    """The CPU under address and undefined-behaviour sanitizers, and from eight threads under the thread sanitizer; each CUDA
    device with the library in use. Threads have a context each in one run and share one in another."""
    from tlrt._binding.library import load

    runs: list[dict[str, Any]] = []
    for device in devices:
        if device == "cpu":
            several: dict[str, Any] = {"sanitize": "thread", "workers": 1}
            runs.append(hostile.calls(args.hostile, workers=args.workers))
            runs[0]["checkpoints"] = hostile.checkpoints(files)
        else:
            several = {"sanitize": "", "device": int(device.partition(":")[2] or 0), "library": Path(load().path)}
            runs.append(hostile.calls(max(args.hostile // 10, 1), workers=args.workers, **several))
        for shared in (False, True):
            runs.append(
                hostile.calls(max(args.hostile // 50, 1), threads=8, shared=shared, **{"workers": 1, **several})
            )
    for run in runs:
        run["verdict"] = "pass" if hostile.ok(run) else "fail"
    return runs, all(map(hostile.ok, runs)), "\n\n".join(map(hostile.table, runs))


def _faults(devices: Sequence[str], every: int) -> Outcome:
    document = faults.campaign(devices, every)
    faults.use_up(document)
    return document, faults.ok(document), faults.table(document)


def _soak(args: argparse.Namespace, devices: Sequence[str]) -> Outcome:
    runs = [soak.soak(device, args.soak) for device in devices]
    for run in runs:
        run["verdict"] = "pass" if soak.ok(run) else "fail"
    return runs, all(map(soak.ok, runs)), "\n\n".join(map(soak.table, runs))
