"""``python -m audit mutate [--only N,M-P] [--jobs 2] [--json FILE] [--budget SECONDS]``: the score of the tests.

Each defect goes into a copy of the tree with the objects already compiled; what it touches is built again, the tests listed
for it run first, and where they pass the whole suite. A defect is killed by a build that fails, a test that fails and passes
without the defect, or a run that takes too long. Results are kept in FILE as they come, and what is there is not run again.

``--random N --seed S`` draws mutants instead of planting the defects listed: :mod:`audit.mutation.random_run`.
"""

import argparse
import hashlib
import math
import re
import shlex
import signal
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from audit.build import BuildError, make
from audit.environment import ROOT, processors
from audit.mutation.suite import run_pytest
from audit.mutation.table import DEFECTS, Defect
from audit.scratch import Scratch, scratch
from tlrt.verify.documents import read_document, write_document
from tlspec import registry

#: seconds for the tests listed, and for the whole suite
PATIENCE, SUITE_PATIENCE = 900.0, 3600.0
#: random mutants of one kind before the next kind has its turn
TURN = 20


def key(defect: Defect) -> str:
    """What a defect's result is kept under: it is run again when it changes."""
    text = "\0".join((defect.file, defect.old, defect.new))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


class Campaign:
    """Runs defects and keeps their results."""

    def __init__(self, target: Path | None, suite: bool, budget: float | None):
        self.target, self.suite = target, suite
        self.until = None if budget is None else time.monotonic() + budget
        self.lock = threading.Lock()
        self.results: dict[str, Any] = {}
        if target is not None and target.exists():
            self.results = read_document(target)["results"]

    def keep(self, defect: Defect, result: dict[str, Any]) -> None:
        with self.lock:
            self.results[key(defect)] = result
            if self.target is not None:
                write_document(self.target, self.document())

    def document(self) -> dict[str, Any]:
        """Results of the defects in the table, and the score."""
        known = {key(d): d for d in DEFECTS}
        results = {k: r for k, r in self.results.items() if k in known}
        killed = sum(r["outcome"] == "killed" for r in results.values())
        equal = sum(bool(known[k].same) and r["outcome"] == "survived" for k, r in results.items())
        return {"listed": len(DEFECTS), "run": len(results), "killed": killed, "equivalent": equal,
                "survivors": [r["name"] for k, r in results.items() if r["outcome"] != "killed" and not known[k].same],
                "score": f"{killed} of {len(results) - equal}", "results": results}  # fmt: skip

    def run(self, number: int, defect: Defect, clean: Scratch) -> None:
        """One defect, unless its result is there or time is up."""
        with self.lock:
            if key(defect) in self.results or (self.until is not None and time.monotonic() > self.until):
                return
        start = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="mutate-") as folder, scratch(Path(folder)) as tree:
            outcome, by = self._try(defect, tree, clean)
        result = {"number": number, "name": f"{defect.file}: {defect.breaks}", "outcome": outcome, "by": by,
                  "seconds": round(time.monotonic() - start, 1)}  # fmt: skip
        self.keep(defect, result)
        print(f"{number:3} {outcome:9} {result['seconds']:6.0f} s  {result['name']}  [{by}]", flush=True)

    def _try(self, defect: Defect, tree: Scratch, clean: Scratch) -> tuple[str, str]:
        tree.edit(defect.file, defect.old, defect.new)
        if defect.file.startswith("native/"):
            try:
                tree.make("cpu", jobs=1)
            except BuildError as error:
                said = re.search(r"error: .*", str(error))
                return "killed", f"the build: {said[0] if said else str(error)[-200:]}"
        stages = [(shlex.split(defect.tests), defect.ops, PATIENCE)]
        if self.suite:
            stages.append((["tests"], "", SUITE_PATIENCE))
        for words, ops, patience in stages:
            verdict, by = run_pytest(tree, words, ops, patience)
            if verdict in ("hung", "crashed"):
                return "killed", by
            if verdict == "failed":
                again, _ = run_pytest(clean, [by], ops, PATIENCE)
                return ("killed", by) if again == "passed" else ("unsound", f"{by} fails without the defect too")
        return "survived", "the whole suite" if self.suite else "the tests listed"


def numbers(text: str | None) -> list[int]:
    """ "3,10-12" as [3, 10, 11, 12]; everything by default."""
    if not text:
        return list(range(len(DEFECTS)))
    chosen: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        chosen += range(int(first), int(last or first) + 1)
    return [n for n in chosen if 0 <= n < len(DEFECTS)]


def check() -> int:
    """Says which defects no longer fit the sources."""
    wrong = []
    for i, d in enumerate(DEFECTS):
        count = (ROOT / d.file).read_text(encoding="utf-8").count(d.old)
        if count != 1 or d.new == d.old or not d.breaks:
            wrong.append(f"{i}: {d.file} holds {d.old!r} {count} times, expected once")
        if d.ops:
            registry.ops(d.ops)
    if len({key(d) for d in DEFECTS}) != len(DEFECTS):
        wrong.append("a defect is listed twice")
    print("\n".join([*wrong, f"{len(DEFECTS)} defects, {len(wrong)} do not fit"]))
    return 1 if wrong else 0


def random_mutants(args: argparse.Namespace) -> int:
    """``--random``: the table of outcomes and the survivors; 1 where one has no reason."""
    from audit.mutation import reach
    from audit.mutation.random_run import RandomCampaign  # universalmutator, which only this needs

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    target, limits = Path(args.json) if args.json else None, (args.budget or math.inf, args.patience)
    with RandomCampaign(target, args.seed, args.jobs, *limits, args.again, args.commit) as campaign:
        campaign.sift = args.sift
        if args.reach:
            folder = Path(args.reach).resolve()
            if not reach.is_counted(folder):
                reach.count(campaign.unchanged(""), folder, processors())
            campaign.reach = reach.Reach(folder)
        for count in (*range(TURN, args.random, TURN), args.random):
            for kind in args.kinds.split(","):
                campaign.run(kind, count)
        print(campaign.table())
        results = campaign.document()["mutants"]["results"]
    return int(any(r["outcome"] == "survived" and not r["reason"] for r in results))


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns the exit status."""
    p = argparse.ArgumentParser(
        prog="python -m audit mutate", description="Planted defects, and whether the tests see them."
    )
    p.add_argument("--only", metavar="N,M-P", help="these of the table; --list numbers them")
    p.add_argument("--jobs", type=int, default=2, metavar="N")
    p.add_argument("--json", metavar="FILE", help="results, kept as they come and continued")
    p.add_argument(
        "--budget", type=float, metavar="SECONDS", help="start no defect after this long; end random mutants"
    )
    p.add_argument("--no-suite", action="store_true", help="the tests listed alone")
    p.add_argument("--list", action="store_true")
    p.add_argument("--random", type=int, metavar="N", help="instead, N random mutants of each kind")
    p.add_argument("--seed", type=int, default=0, metavar="S", help="the order of random mutants (default 0)")
    p.add_argument(
        "--kinds", default="c,python,specification", metavar="NAMES", help="and cuda, on a machine with a GPU"
    )
    p.add_argument(
        "--patience",
        type=float,
        default=math.inf,
        metavar="SECONDS",
        help="a random mutant has survived that no check sees this long",
    )
    p.add_argument(
        "--reach",
        metavar="FOLDER",
        help="which tests run a line of Python, counted when the folder does not say (minutes): they try its mutants first",
    )
    p.add_argument(
        "--sift", action="store_true", help="leave open what the compiler takes: for kinds that are run elsewhere"
    )
    p.add_argument("--again", action="store_true", help="judge random mutants that survived once more")
    p.add_argument("--commit", default="", help="the commit to record where git cannot tell")
    p.add_argument("--check", action="store_true", help="whether every defect's text is there once")
    args = p.parse_args(argv)
    if args.list:
        for i, d in enumerate(DEFECTS):
            print(f"{i:3}  {d.file}: {d.breaks}" + (f" (same: {d.same})" if d.same else ""))
        return 0
    if args.check:
        return check()
    make("cpu", tree=ROOT)
    if args.random:
        return random_mutants(args)
    campaign = Campaign(Path(args.json) if args.json else None, not args.no_suite, args.budget)
    with (
        tempfile.TemporaryDirectory(prefix="mutate-") as folder,
        scratch(Path(folder)) as clean,
        ThreadPoolExecutor(args.jobs) as pool,
    ):
        for waiting in [pool.submit(campaign.run, i, DEFECTS[i], clean) for i in numbers(args.only)]:
            waiting.result()
    document = campaign.document()
    print(
        f"\n{document['killed']} killed, {document['equivalent']} equivalent, {document['run']} run of {document['listed']}"
    )
    for name in document["survivors"]:
        print(f"SURVIVED {name}")
    return 1 if document["survivors"] else 0
