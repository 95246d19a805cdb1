"""``python -m bench.beside TREE…``: the benchmark's fixed rows, and the same rows of earlier checkouts, in one run.

It answers whether a change has made a row slower. Each checkout has its library built in its own native/build, and runs in a
process of its own with its own Python packages. Times of different machines, or of one machine on different days, differ by more
than a change does, so the checkouts take turns at every row: the ratio of a row is the median, over the turns, of the earlier
checkout's time over this one's in the same turn.

A row below the limit (``--limit``, .97) is timed again in several new processes of both checkouts, and only those times then
count. As long as a process lives, a short call can cost it half as much again as it costs the next process, by where its memory
lies and its threads run; no change of the code explains that. So the process in which a checkout is fastest stands for it: the
least, over the processes, of the median of a process's turns.

With several checkouts a row stands beside the first that has its operation; rows of operations that none has are listed. The exit
status is 1 where a row fell below the limit, a call failed or no row could be compared.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from audit.environment import ROOT, commit, now
from bench.measure import Subject, fixed_subjects
from tlrt._terminal import Progress, format_table
from tlrt.verify.documents import format_command, write_document

WORKER = Path(__file__).with_name("beside_worker.py")
#: turns of every row, and seconds of a sample in each
TURNS, SAMPLE = 3, 0.08
#: of a row that seems to have fallen: new processes of each checkout, with TURNS in each, and seconds of a sample
PROCESSES, LONG_SAMPLE = 6, 0.2


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


def take_turns(here: Checkout, other: Checkout, turns: int, *request: Any) -> Turns:
    """This checkout's and the other's answers in each turn; every second turn begins with the other."""
    found: Turns = []
    for turn in range(turns):
        order = (here, other) if turn % 2 == 0 else (other, here)
        answers = {checkout: checkout.call(*request) for checkout in order}
        found.append((answers[here], answers[other]))
    return found


def take_turns_anew(here: Checkout, other: Checkout, prepare: Sequence[Any] | None, *request: Any) -> list[Turns]:
    """As `take_turns` in new processes, for each of which the call is prepared first."""
    found = []
    for process in range(PROCESSES):
        order = (here, other) if process % 2 == 0 else (other, here)
        for checkout in order:
            checkout.restart()
        for checkout in order:
            if prepare is not None:
                checkout.call(*prepare)
        found.append(take_turns(here, other, TURNS, *request))
    return found


def middle(turns: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """The medians of both checkouts' times."""
    ours, theirs = (statistics.median(times) for times in zip(*turns, strict=True))
    return ours, theirs


def summarise(op: str, size: str, beside: str, turns: Sequence[tuple[float, float]]) -> Row:
    """The row of turns in the same two processes."""
    return Row(op, size, beside, *middle(turns), statistics.median(b / a for a, b in turns), len(turns))


def summarise_best(op: str, size: str, beside: str, processes: Sequence[Sequence[tuple[float, float]]]) -> Row:
    """The row of turns in several processes: that in which a checkout is fastest stands for it."""
    ours, theirs = (min(times) for times in zip(*map(middle, processes), strict=True))
    return Row(op, size, beside, ours, theirs, theirs / ours, sum(map(len, processes)))


def compare(subject: Subject, here: Checkout, others: Sequence[Checkout], limit: float) -> Row | None:
    """Times one row in this checkout and in the first of the others that has its operation; None where none has."""
    request = ("prepare", subject.op.name, subject.which, subject.size)
    here.ask(*request)
    try:
        beside = next((other for other in others if other.call(*request)), None)
    finally:
        here.answer()
    if beside is None:
        return None
    entry = subject.op.entry(subject.which)
    row = summarise(entry, subject.label, beside.name, take_turns(here, beside, TURNS, "time", SAMPLE))
    if row.ratio < limit:
        processes = take_turns_anew(here, beside, request, "time", LONG_SAMPLE)
        row = summarise_best(entry, subject.label, beside.name, processes)
    return row


def compare_core(here: Checkout, other: Checkout, limit: float) -> list[Row]:
    """The rows of transfers and of the cost of one call, which are timed together."""
    turns = take_turns(here, other, TURNS, "core")
    names = [(op, size) for op, size, _ in turns[0][0]]

    def times(turns: Turns, i: int) -> list[tuple[float, float]]:
        return [(mine[i][2], theirs[i][2]) for mine, theirs in turns]

    rows = [summarise(*name, other.name, times(turns, i)) for i, name in enumerate(names)]
    if min(row.ratio for row in rows) < limit:
        processes = take_turns_anew(here, other, None, "core")
        rows = [summarise_best(*name, other.name, [times(p, i) for p in processes]) for i, name in enumerate(names)]
    return rows


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


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.beside", description=(__doc__ or "").split("\n\n")[0])
    add = parser.add_argument
    add("trees", metavar="TREE", type=Path, nargs="+", help="earlier checkouts, each with its library built")
    add("--device", default="cuda", help="cpu, cuda, cuda:1 (default cuda)")
    add("--ops", help="operations, families or patterns, comma-separated; 'core' is transfers and call cost")
    add("--limit", type=float, default=0.97, help="the ratio below which a row has fallen (default .97)")
    add("--max-bytes", type=float, default=None, help="skip larger sizes (default 1e9 on the CPU, 2e10 on CUDA)")
    add("--json", type=Path, help="write all figures to a file")
    args = parser.parse_args(argv)
    names = None if args.ops is None else [n.strip() for n in args.ops.split(",")]
    subjects = list(fixed_subjects(None if names is None else [n for n in names if n != "core"],
                                   args.max_bytes or (2e10 if args.device.startswith("cuda") else 1e9)))  # fmt: skip
    rows: list[Row] = []
    added: list[str] = []
    failed: dict[str, str] = {}
    with ExitStack() as stack:
        here, *others = [stack.enter_context(Checkout(t.resolve(), args.device)) for t in (ROOT, *args.trees)]
        about = {**here.call("describe"), "beside": {o.name: o.call("describe")["build"] for o in others}}
        try:
            if names is None or "core" in names:
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
