"""``python -m bench.beside TREE…``: the benchmark's fixed rows, and the same rows of earlier checkouts, in one run.

It answers whether a change has made a row slower. Each checkout has its library built in its own native/build, and runs in a
process of its own with its own Python packages. Times of different machines, or of one machine on different days, differ by more
than a change does, so the checkouts take turns at every row: the ratio of a row is the median, over the turns, of the earlier
checkout's time over this one's in the same turn.

A row below the limit (``--limit``, .97) is timed again in several new processes of both checkouts, and only those times then
count. As long as a process lives, a short call can cost it half as much again as it costs the next process, by where its memory
lies and its threads run, and for seconds everything can take longer; no change of the code explains either. So the fastest turn
of each checkout stands for it there, and more processes are begun while the row is still below the limit.

With ``--models`` the rows are those of :mod:`bench.models`, in the modes of ``--math``, within ``--seconds``: a few turns each,
and as many again where a row seems to have fallen. It prints each model's figure, and fails where one is below the limit.

With several checkouts a row stands beside the first that has its operation; rows of operations that none has are listed. The exit
status is 1 where a row fell below the limit, a call failed or no row could be compared.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from audit.environment import ROOT, commit, now
from bench import models
from bench.measure import Subject, fixed_subjects
from bench.selection import LARGEST, add_selection
from tlrt._terminal import Progress, format_table
from tlrt.verify.documents import format_command, write_document
from tlspec.registry import MATH

WORKER = Path(__file__).with_name("beside_worker.py")
#: seconds of a sample, and turns of a row: at least so many, and so many seconds of them
SAMPLE, TURNS, SECONDS = 0.03, 3, 0.5
#: new processes of each checkout that time a row that seems to have fallen, at least and at most; seconds of turns in each
LEAST_PROCESSES, MOST_PROCESSES, MORE_SECONDS = 4, 12, 1.0


#: the answers of this checkout and of the other in each turn
Turns = list[tuple[Any, Any]]


class WorkerError(Exception):
    """A checkout's process has no answer; the text says why."""


@dataclass
class Row:
    """A row of the benchmark: milliseconds of both checkouts, how often faster this one is, and how many turns there were."""

    op: str
    size: str
    beside: str
    ms: float
    before_ms: float
    ratio: float
    turns: int


class Checkout:
    """A checkout and its process."""

    def __init__(self, tree: Path, device: str) -> None:
        self.name = commit(tree=tree) or tree.name  # an unpacked archive has no commit
        library = tree / f"native/build/{'cuda' if device.startswith('cuda') else 'cpu'}/libtorchlean_cuda.so"
        if not library.exists():
            raise FileNotFoundError(f"{library}: build the library of that checkout first (make -C {tree / 'native'})")
        others = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p and Path(p).resolve() != ROOT]
        environment = {
            **os.environ,
            "TORCHLEAN_CUDA_LIBRARY": str(library),
            "PYTHONPATH": os.pathsep.join([str(tree), *others]),
        }
        self.command = partial(
            subprocess.Popen[str], [sys.executable, "-P", str(WORKER), device], cwd=tree, env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        self.process = self.command()

    def __enter__(self) -> "Checkout":
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()

    def restart(self) -> None:
        """Goes on in a new process, where nothing is prepared."""
        self.end()
        self.process = self.command()

    def ask(self, name: str, *arguments: Any) -> None:
        """Sends a request; `answer` gets its reply."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps([name, *arguments]) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # answer says that the process has ended

    def answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise WorkerError(f"the process of {self.name} ended with status {self.process.wait()}")
        reply = json.loads(line)
        if "error" in reply:
            raise WorkerError(f"{self.name}: {reply['error']}")
        return reply["result"]

    def call(self, name: str, *arguments: Any) -> Any:
        self.ask(name, *arguments)
        return self.answer()


def take_turns(here: Checkout, other: Checkout, seconds: float, *request: Any) -> Turns:
    """This checkout's and the other's answers in each turn; every second turn begins with the other."""
    found: Turns = []
    end = time.monotonic() + seconds
    while len(found) < TURNS or time.monotonic() < end:
        order = (here, other) if len(found) % 2 == 0 else (other, here)
        answers = {checkout: checkout.call(*request) for checkout in order}
        found.append((answers[here], answers[other]))
    return found


def summarise(op: str, size: str, beside: str, turns: Sequence[tuple[float, float]]) -> Row:
    """The row of turns in the same two processes."""
    ours, theirs = (statistics.median(times) for times in zip(*turns, strict=True))
    return Row(op, size, beside, ours, theirs, statistics.median(b / a for a, b in turns), len(turns))


def summarise_fastest(op: str, size: str, beside: str, turns: Sequence[tuple[float, float]]) -> Row:
    """The row of turns in several processes, by the fastest turn of each checkout."""
    ours, theirs = (min(times) for times in zip(*turns, strict=True))
    return Row(op, size, beside, ours, theirs, theirs / ours, len(turns))


def compare_turns(
    here: Checkout, other: Checkout, limit: float, rows_of: Callable[[Turns, Callable[..., Row]], list[Row]],
    prepare: Sequence[Any] | None, *request: Any,
) -> list[Row]:  # fmt: skip
    """The rows that `rows_of` makes of turns at a request; of turns in new processes, each prepared first, if one has fallen."""

    def fallen() -> bool:
        return min(row.ratio for row in rows) < limit

    rows = rows_of(take_turns(here, other, SECONDS, *request), summarise)
    if not fallen():
        return rows
    turns: Turns = []
    for process in range(MOST_PROCESSES):
        order = (here, other) if process % 2 == 0 else (other, here)
        for checkout in order:
            checkout.restart()
        for checkout in order:
            if prepare is not None:
                checkout.call(*prepare)
        turns += take_turns(here, other, MORE_SECONDS, *request)
        rows = rows_of(turns, summarise_fastest)
        if process + 1 >= LEAST_PROCESSES and not fallen():
            break
    return rows


def compare(subject: Subject, here: Checkout, others: Sequence[Checkout], limit: float) -> Row | None:
    """Times one row in this checkout and in the first of the others that has its operation; None where none has."""
    prepare = ("prepare", subject.op.name, subject.which, subject.size)
    here.ask(*prepare)
    try:
        beside = next((other for other in others if other.call(*prepare)), None)
    finally:
        here.answer()
    if beside is None:
        return None
    entry, name = subject.op.entry(subject.which), beside.name

    def rows_of(turns: Turns, summary: Callable[..., Row]) -> list[Row]:
        return [summary(entry, subject.label, name, turns)]

    (row,) = compare_turns(here, beside, limit, rows_of, prepare, "time", SAMPLE)
    return row


def compare_core(here: Checkout, other: Checkout, limit: float) -> list[Row]:
    """The rows of transfers and of the cost of one call, which are timed together."""

    def rows_of(turns: Turns, summary: Callable[..., Row]) -> list[Row]:
        return [
            summary(op, size, other.name, [(mine[i][2], theirs[i][2]) for mine, theirs in turns])
            for i, (op, size, _) in enumerate(turns[0][0])
        ]

    return compare_turns(here, other, limit, rows_of, None, "core")


def compare_all(
    subjects: Sequence[Subject], checkouts: Sequence[Checkout], limit: float, rows: list[Row], added: list[str],
    failed: dict[str, str],
) -> None:  # fmt: skip
    """Appends each subject's row, or its name to those of added operations, or enters why it has none; shows the progress."""
    here, *others = checkouts
    with Progress(len(subjects), "rows") as progress:
        for subject in subjects:
            entry = f"{subject.op.entry(subject.which)} {subject.label}"
            try:
                row = compare(subject, here, others, limit)
                if row is None:
                    added.append(entry)
                else:
                    rows.append(row)
            except WorkerError as error:  # one row that cannot run must not cost the others
                if any(c.process.poll() is not None for c in checkouts):
                    raise
                failed[entry] = str(error)
            progress.advance(note=entry)


@dataclass
class TimedRow:
    """A row of models in one mode: its number, and milliseconds of both checkouts."""

    row: int
    op: str
    size: str
    math: str
    ms: float
    before_ms: float
    ratio: float
    turns: int


def time_models_row(
    number: int, row: models.ModelRow, here: Checkout, other: Checkout, math: str, limit: float
) -> list[TimedRow]:
    """One row in each mode; none where the other checkout has no such function."""
    subject = row.subject
    modes = models.modes_of(subject, math)
    prepare = ("prepare_model", models.plan_of(subject), list(modes))
    here.ask(*prepare)
    try:
        known = other.call(*prepare)
    finally:
        once = here.answer()
    if known is None or once is None:
        return []
    count, turns = models.TURNS[max(once, known) > models.LONG], []
    for again in (False, True):
        for turn in range(count):
            order = (here, other) if turn % 2 == 0 else (other, here)
            answers = {checkout: checkout.call("time_model") for checkout in order}
            turns.append((answers[here], answers[other]))
        rows = []
        for i, mode in enumerate(modes):
            of_mode = [(mine[i], before[i]) for mine, before in turns]
            found = summarise(subject.op.entry(subject.which), subject.label, other.name, of_mode)
            rows.append(
                TimedRow(number, found.op, found.size, mode, found.ms, found.before_ms, found.ratio, found.turns)
            )
        if again or min(r.ratio for r in rows) >= limit:
            break
    return rows


def compare_models(args: argparse.Namespace, here: Checkout, other: Checkout) -> dict[str, Any]:
    """Times the rows of models, prints, and gives the document."""
    table = models.load()
    names = models.names_of(args.models, table.models)
    choice = models.choose(table, names, args.batches, args.device.startswith("cuda"))
    rows: list[TimedRow] = []
    added: list[str] = []
    failed: dict[str, str] = {}
    end = time.monotonic() + args.seconds
    with Progress(len(choice.rows), "rows") as progress:
        for number in choice.rows:
            if time.monotonic() > end:
                break
            row = table.rows[number]
            try:
                found = time_models_row(number, row, here, other, args.math, args.limit)
                rows += found
                if not found:
                    added.append(f"{row.op} {row.which} {row.subject.label}")
            except WorkerError as error:  # one row that cannot run must not cost the others
                if here.process.poll() is not None or other.process.poll() is not None:
                    raise
                failed[f"{row.op} {row.which} {row.subject.label}"] = str(error)
            progress.advance(note=row.op)
    times = models.times_of(rows, args.math, "ms", "before_ms")
    summary = models.summarise(table, choice, times)
    models.show(table, choice, times, summary, ("the earlier checkout", "times faster than the earlier checkout"))
    return {**summary, "rows": [asdict(r) for r in rows], "skipped": choice.skipped, "added": added, "failed": failed}


def run_models(args: argparse.Namespace, argv: list[str] | None) -> int:
    """The command with ``--models``; 1 where a model's figure is below the limit, or a call failed."""
    with ExitStack() as stack:
        here, other = [stack.enter_context(Checkout(t.resolve(), args.device)) for t in (ROOT, args.trees[0])]
        about = {**here.call("describe"), "beside": {other.name: other.call("describe")["build"]}}
        found = compare_models(args, here, other)
    if args.json:
        command = f"python -m bench.beside {format_command(sys.argv[1:] if argv is None else argv)}"
        write_document(args.json, {"date": now(), "commit": here.name, **about, "limit": args.limit, "command": command,
                                   **found})  # fmt: skip
    fallen = [f for f in found["models"] if f["ratio"] < args.limit]
    for f in fallen:
        print(f"FALLEN {f['model']}, batch {f['batch']}, {f['math']}: {f['ratio']:.3f}")
    for entry, reason in found["failed"].items():
        print(f"FAILED {entry}: {reason}")
    return int(bool(fallen or found["failed"] or not found["rows"]))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.beside", description=(__doc__ or "").split("\n\n")[0])
    add = parser.add_argument
    add("trees", metavar="TREE", type=Path, nargs="+", help="earlier checkouts, each with its library built")
    add("--device", default="cuda", help="cpu, cuda, cuda:1 (default cuda)")
    add_selection(parser)
    add("--limit", type=float, default=0.97, help="the ratio below which a row has fallen (default .97)")
    add("--json", type=Path, help="write all figures to a file")
    add("--math", choices=(*MATH, "both"), default="both", help="how contexts compute models' rows (default both)")
    models.add_arguments(parser)
    args = parser.parse_args(argv)
    if args.models is not None:
        return run_models(args, argv)
    subjects = list(fixed_subjects(args.ops.names, args.max_bytes or LARGEST[args.device.startswith("cuda")]))
    rows: list[Row] = []
    added: list[str] = []
    failed: dict[str, str] = {}
    with ExitStack() as stack:
        here, *others = [stack.enter_context(Checkout(t.resolve(), args.device)) for t in (ROOT, *args.trees)]
        about = {**here.call("describe"), "beside": {o.name: o.call("describe")["build"] for o in others}}
        try:
            if args.ops.core:
                rows += compare_core(here, others[0], args.limit)
            compare_all(subjects, (here, *others), args.limit, rows, added, failed)
        finally:
            if args.json:  # what an interruption leaves, too
                write_document(args.json, {
                    "date": now(), "commit": here.name, **about, "limit": args.limit,
                    "command": f"python -m bench.beside {format_command(sys.argv[1:] if argv is None else argv)}",
                    "rows": [asdict(r) for r in rows], "added": added, "failed": failed,
                })  # fmt: skip
    fallen = [r for r in rows if r.ratio < args.limit]
    for entry, reason in failed.items():
        print(f"FAILED {entry}: {reason}")
    ordered = sorted(rows, key=lambda r: r.ratio)
    if ordered:
        print(format_table(
            ("operation", "size", "ms", "before", "times faster", "turns"),
            [(r.op, r.size, f"{r.ms:.4g}", f"{r.before_ms:.4g}", f"{r.ratio:.3f}", r.turns) for r in ordered[:15]],
        ))  # fmt: skip
        median = statistics.median(r.ratio for r in rows)
        print(
            f"{len(rows)} rows, median {median:.2f} times faster; {len(fallen)} below {args.limit:g}; {len(added)} added since"
        )
    return int(bool(fallen or failed or not rows))


if __name__ == "__main__":
    sys.exit(main())
