"""``python -m audit mutate [--only N,M-P] [--jobs 2] [--json FILE] [--budget SECONDS]``: the score of the tests.

Each defect goes into a copy of the tree with the objects already compiled; what it touches is built again, the tests listed
for it run first, and where they pass the whole suite. A defect is killed by a build that fails, a test that fails and passes
without the defect, or a run that takes too long. Results are kept in FILE as they come, and what is there is not run again.
"""

import argparse
import hashlib
import os
import re
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from audit.build import BuildError, make
from audit.environment import ROOT
from audit.mutation.table import DEFECTS, Defect
from audit.scratch import Scratch, scratch
from tlrt.verify.documents import read_document, write_document
from tlspec import registry

#: tests that say that a listed text has changed, which every defect does; those that plant defects of their own are left out by
#: name
IGNORED = ("tests/audit/test_mutation.py", "tests/repo/test_generated.py", "tests/bench/test_trust.py")
#: seconds for the tests listed, and for the whole suite
PATIENCE, SUITE_PATIENCE = 900.0, 3600.0


def key(defect: Defect) -> str:
    """What a defect's result is kept under: it is run again when it changes."""
    text = "\0".join((defect.file, defect.old, defect.new))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def pytest(tree: Scratch, words: Sequence[str], ops: str, patience: float) -> tuple[str, str]:
    """("passed" | "failed" | "crashed" | "hung" | "empty", the first test that failed or the end of the output)."""
    ignored = [f"--ignore={i}" for i in IGNORED]
    plugins = ["-p", "no:cacheprovider", "-p", "no:randomly"]
    command = [sys.executable, "-m", "pytest", "-x", "-q", *plugins, *ignored, *words]
    environment = {
        **os.environ, "OPS": ops, "PYTHONPATH": os.pathsep.join([str(tree.folder), os.environ.get("PYTHONPATH", "")]),
        "TORCHLEAN_CUDA_LIBRARY": str(tree.library), "PYTHONDONTWRITEBYTECODE": "1",
    }  # fmt: skip
    try:
        done = subprocess.run(
            command, cwd=tree.folder, env=environment, capture_output=True, text=True, timeout=patience, check=False
        )
    except subprocess.TimeoutExpired:
        return "hung", f"longer than {patience:.0f} s"
    found = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", done.stdout, re.M)
    if done.returncode == 0:
        return "passed", ""
    if done.returncode == 5:
        return "empty", ""
    if not found and done.returncode not in (1, 2):
        return "crashed", f"the process ended with status {done.returncode}"
    return "failed", found[1] if found else (done.stdout + done.stderr)[-400:]


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
            verdict, by = pytest(tree, words, ops, patience)
            if verdict in ("hung", "crashed"):
                return "killed", by
            if verdict == "failed":
                again, _ = pytest(clean, [by], ops, PATIENCE)
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


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns the exit status."""
    p = argparse.ArgumentParser(
        prog="python -m audit mutate", description="Planted defects, and whether the tests see them."
    )
    p.add_argument("--only", metavar="N,M-P", help="these of the table; --list numbers them")
    p.add_argument("--jobs", type=int, default=2, metavar="N")
    p.add_argument("--json", metavar="FILE", help="results, kept as they come and continued")
    p.add_argument("--budget", type=float, metavar="SECONDS", help="start no defect after this long")
    p.add_argument("--no-suite", action="store_true", help="the tests listed alone")
    p.add_argument("--list", action="store_true")
    p.add_argument("--check", action="store_true", help="whether every defect's text is there once")
    args = p.parse_args(argv)
    if args.list:
        for i, d in enumerate(DEFECTS):
            print(f"{i:3}  {d.file}: {d.breaks}" + (f" (same: {d.same})" if d.same else ""))
        return 0
    if args.check:
        return check()
    make("cpu", tree=ROOT)
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
