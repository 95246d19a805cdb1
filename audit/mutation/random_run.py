"""Runs random mutants (:mod:`audit.mutation.random_mutants`) against checks of growing cost, until one sees the change.

A mutant of a CPU kernel is built for one SIMD variant, the first in which its object code differs, in a library that holds that
variant alone, so that the unchanged code of the others cannot give it away. A mutant is killed by a check that fails, crashes or hangs where the
same one passes without the mutant. Every mutant has a line in a file as soon as it is judged, and one that the time did not
suffice for a line with the checks that it has passed, so that a run goes on where another ended.
"""

import json
import math
import os
import queue
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from audit.build import BuildError
from audit.environment import commit, describe_run
from audit.mutation.checks import Check, attempt, checks
from audit.mutation.random_mutants import (
    Mutant,
    behaviour,
    changes_unrolling_alone,
    ends_its_loop,
    find_line,
    read_lines,
    sample,
)
from audit.mutation.reach import Reach
from audit.mutation.reasons import REASONS
from audit.mutation.suite import OutOfTimeError, Turn, run_limited
from audit.mutation.syntax import Reader, first_error
from audit.scratch import Scratch, scratch
from tlrt._terminal import Progress, format_table
from tlrt.verify.documents import format_command, read_document, write_document
from tlrt.verify.run import cpu_variants

OUTCOMES = ("killed", "survived", "open", "equivalent", "argued", "invalid")
#: seconds for a build
BUILD = 900.0
#: what gives a function of a SIMD variant its name: only where there are several can one be missing
NAMES_OF_VARIANTS = "TL_V("
#: characters of what saw a mutant
LONGEST = 160


class RandomCampaign:
    """Mutants of a seed and what became of them. `target` is the file of the results, which is continued; a mutant whose line the
    sources have no more is left out. A mutant has survived that no check has seen for `patience` seconds."""

    def __init__(
        self, target: Path | None, seed: int = 0, jobs: int = 1, budget: float = math.inf, patience: float = math.inf,
        again: bool = False, revision: str = "",
    ):  # fmt: skip
        self.target, self.seed, self.jobs, self.patience, self.revision = target, seed, jobs, patience, revision
        self.reach: Reach | None = None
        self.sift = False
        self.lock = threading.Lock()
        self.locks: defaultdict[object, threading.Lock] = defaultdict(threading.Lock)
        self.sound: dict[object, bool] = {}
        self.broken: set[str] = set()  # tests that fail without a mutant
        self.clean: dict[str, Scratch] = {}
        self.readers: dict[str, Reader] = {}
        self.samples: dict[str, tuple[list[Mutant], Iterator[Mutant]]] = {}
        self.stack = ExitStack()
        known = [r for r in (read_rows(target, seed) if target and target.exists() else ()) if find_line(r["mutant"])]
        #: mutants that had survived when they were judged before: tests have been added since
        self.late = {r["mutant"] for r in known if r.get("first") or (again and r["outcome"] == "survived")}
        self.rows = {r["mutant"]: r for r in known if not (again and r["outcome"] == "survived")}
        self.keep()
        cores = sorted(os.sched_getaffinity(0))
        self.whole = Turn(cores, time.monotonic() + budget)
        share = max(2, len(cores) // jobs)
        places = [[cores[(i * len(cores) // jobs + k) % len(cores)] for k in range(share)] for i in range(jobs)]
        self.turns = [Turn(place) for place in places]
        self.free: queue.SimpleQueue[Turn] = queue.SimpleQueue()
        for turn in self.turns:
            self.free.put(turn)

    def __enter__(self) -> "RandomCampaign":
        self.folder = Path(self.stack.enter_context(tempfile.TemporaryDirectory(prefix="mutate-")))
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self.keep()
        self.stack.close()

    def stop(self) -> None:
        """Ends what is running."""
        for turn in (self.whole, *self.turns):
            turn.until = 0.0

    def unchanged(self, name: str) -> Scratch:
        """The tree without a mutant, built for one variant alone or ("cuda") with the CUDA path; ("") with all variants."""
        with self.locks[name]:
            if name not in self.clean:
                tree = self.stack.enter_context(scratch(self.folder / (name or "plain")))
                variant = cpu_variants()[0] if name == "cuda" else name  # what both paths share is in the first
                tree.options = [f"VARIANTS={variant}", "CFLAGS=-Wno-unused-function"] if name else []
                if name == "cuda":
                    tree.backend = "cuda"
                    tree.options += [f"CUDA_ARCHS={os.environ.get('CUDA_ARCHS', 'sm_90a')}", "LINEINFO="]
                build(tree, self.whole, *{"": ["check", "fuzz"], "cuda": []}.get(name, ["fuzz"]))
                if name not in ("", "cuda"):
                    build(tree.sanitized(), self.whole)
                packages = ["tlspec", "tlrt", "audit", "tests", "codegen"]
                subprocess.run([sys.executable, "-m", "compileall", "-q", *packages], cwd=tree.folder, check=True)
                self.clean[name] = tree
            return self.clean[name]

    def keep(self) -> None:
        """Writes the file as a whole: one line a mutant, in the order of their names."""
        if self.target is not None:
            write_document(self.target, self.document())

    def run(self, kind: str, count: int) -> None:
        """Judges mutants of a kind until `count` are killed, have survived or are left open, or time is up."""
        judged, running = 0, set[Future[bool]]()
        with Progress(count, f"{kind} mutants") as progress, ThreadPoolExecutor(self.jobs) as pool:
            try:
                for mutant in self.drawn(kind):
                    while running and (len(running) >= self.jobs or judged + len(running) >= count):
                        done, running = wait(running, return_when=FIRST_COMPLETED)
                        for future in done:
                            judged += future.result()
                            progress.advance(float(future.result()))
                    if judged >= count or time.monotonic() > self.whole.until:
                        break
                    known = self.rows.get(mutant.key, {"outcome": "open"})["outcome"]
                    if known == "open":
                        running.add(pool.submit(self.judge, mutant))
                    elif known in ("killed", "survived"):
                        judged += 1
                        progress.advance()
                for future in running:
                    future.result()
            except BaseException:
                self.stop()
                raise

    def drawn(self, kind: str) -> Iterator[Mutant]:
        """The sample of a kind, of which no mutant is made twice."""
        made, more = self.samples.setdefault(kind, ([], sample(kind, self.seed)))
        yield from made
        for mutant in more:
            made.append(mutant)
            yield mutant

    def judge(self, mutant: Mutant) -> bool:
        """Judges one mutant and keeps the result; whether it counts."""
        turn, start = self.free.get(), time.monotonic()
        turn.until = min(self.whole.until, start + self.patience)
        passed = list(self.rows.get(mutant.key, {}).get("passed", []))
        times: defaultdict[str, float] = defaultdict(float)  # seconds of builds and of checks
        try:
            if is_argued(mutant.key):
                outcome, by = "survived", "an argument instead of checks"
            else:
                with tempfile.TemporaryDirectory(prefix="mutant-", dir=self.folder) as folder:
                    outcome, by = self._try(mutant, Path(folder), turn, passed, times)
        except OutOfTimeError:
            whole = time.monotonic() >= self.whole.until
            outcome, by = ("open", "out of time") if whole else ("survived", f"{self.patience:.0f} s of checks")
        finally:
            self.free.put(turn)
        by = by.replace(f"{self.folder}/", "")[-LONGEST:]
        row: dict[str, Any] = {"mutant": mutant.key, "kind": mutant.kind, "outcome": outcome, "by": by}
        if outcome == "killed" and mutant.key in self.late:
            row["first"] = "survived"
        if outcome == "open":
            row["passed"] = passed
        with self.lock:
            self.rows[mutant.key] = row
            if self.target is not None:
                with self.target.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"at": "mutants.judged[]", **row}, ensure_ascii=False) + "\n")
            parts = ", ".join(f"{name} {seconds:.1f}" for name, seconds in times.items())
            seconds = time.monotonic() - start
            print(f"{outcome:10} {seconds:6.1f} s ({parts})  line {mutant.line} of {mutant.key}  [{by}]", flush=True)
        return outcome in ("killed", "survived", "open")

    def _try(
        self, mutant: Mutant, folder: Path, turn: Turn, passed: list[str], times: defaultdict[str, float]
    ) -> tuple[str, str]:
        native = mutant.kind in ("c", "cuda")
        if not native and behaviour(mutant.text()) == behaviour("".join(read_lines(mutant.file))):
            return "equivalent", "the same compiled code"
        if native and ends_its_loop(mutant):
            return "equivalent", "the end of a loop"
        if native and changes_unrolling_alone(mutant):
            return "equivalent", "how often a loop is unrolled"
        names = {"c": cpu_variants()[::-1], "cuda": ["cuda"]}.get(mutant.kind, [""])
        for name in [""] if "/core/" in mutant.file or NAMES_OF_VARIANTS in mutant.before else names:
            start = time.monotonic()
            clean = self.unchanged(name)  # its build is no check of this mutant's
            turn.until = min(self.whole.until, turn.until + time.monotonic() - start)
            with measured(times, "syntax"):
                error = self.reader(name).error(mutant.file, mutant.text(), turn) if native else ""
            if error:
                return "invalid", error
            if self.sift and native:
                return "open", "nothing but its syntax is looked at"
            with scratch(folder / (name or "plain"), clean) as tree:
                (tree.folder / mutant.file).write_text(mutant.text(), encoding="utf-8")
                if native:
                    built = times["build"]  # building is no check
                    try:
                        with measured(times, "build"):
                            build(tree, turn)
                    except BuildError as refused:
                        return "invalid", str(refused)
                    finally:
                        turn.until = min(self.whole.until, turn.until + times["build"] - built)
                    if same_code(tree, clean):
                        continue
                reached = self.reach.parts(clean.folder / mutant.file, mutant.file, mutant.line) if self.reach else ()
                for check in checks(mutant.kind, mutant.file, tree, reached):
                    if check.tool == "import" and not self._is_sound(clean, check, turn):
                        return "open", "a package that it imports is not installed"
                    if str(check) not in passed:
                        with measured(times, check.tool):
                            by = self._failure(tree, clean, check, turn)
                        if by is not None:
                            return "invalid" if check.tool == "import" else "killed", f"{check.tool}: {by}"
                        passed.append(str(check))
                return "survived", name
        return "equivalent", "the same machine code"

    def reader(self, name: str) -> Reader:
        """What reads mutants of the sources of an unchanged tree."""
        with self.lock:
            if name not in self.readers:
                self.readers[name] = Reader(self.clean[name])
            return self.readers[name]

    def _is_sound(self, clean: Scratch, check: Check, turn: Turn) -> bool:
        """Whether a check passes without a mutant."""
        key = (clean.folder, check)
        with self.locks[key]:
            if key not in self.sound:
                self.sound[key] = attempt(clean, check, Turn(turn.cores, self.whole.until))[0] == "passed"
            return self.sound[key]

    def _failure(self, tree: Scratch, clean: Scratch, check: Check, turn: Turn) -> str | None:
        """What in a check fails, also alone, and passes without the mutant."""
        unsteady: set[str] = set()
        while True:
            left_out = self.broken | unsteady if check.tool == "pytest" else set()
            whole = replace(check, words=(*check.words, *(f"--deselect={test}" for test in sorted(left_out))))
            verdict, by = attempt(tree, whole, turn)
            if verdict in ("passed", "empty"):
                return None
            test = by if check.tool == "pytest" and by.startswith("tests/") else ""
            alone = replace(check, words=(test,)) if test else whole
            if self._is_sound(clean, alone, turn):
                if not test or verdict != "failed" or attempt(tree, alone, turn)[0] != "passed":
                    return f"{by} {verdict}" if verdict in ("crashed", "hung") else by
                unsteady.add(test)
            else:
                print(f"fails without a mutant too: {alone}", flush=True)
                if not test or (function := test.partition("[")[0]) in self.broken:
                    return None
                self.broken.add(function)

    def counts(self) -> dict[str, dict[str, Any]]:
        """Kind -> how many mutants have which outcome; the score counts those argued equivalent as equivalent. `first` is the score
        of the tests that there were when mutants were judged for the first time."""
        found: dict[str, dict[str, Any]] = {}
        for kind in sorted({r["kind"] for r in self.rows.values()}):
            n = Counter(final_outcome(r) for r in self.rows.values() if r["kind"] == kind)
            judged = n["killed"] + n["survived"]
            late = sum(r["kind"] == kind and "first" in r for r in self.rows.values())
            scores = {"first": n["killed"] - late, "score": n["killed"]}
            found[kind] = {**{o: n[o] for o in OUTCOMES},
                           **{name: round(k / judged, 4) if judged else "nan" for name, k in scores.items()}}  # fmt: skip
        return found

    def document(self) -> dict[str, Any]:
        """Counts, a line for every mutant that survived, with its reason, and one for every mutant."""
        rows = sorted(self.rows.values(), key=lambda r: (r["kind"], r["mutant"]))
        results = [{"mutant": r["mutant"], "kind": r["kind"], "line": find_line(r["mutant"]), "outcome": final_outcome(r),
                    "reason": REASONS.get(r["mutant"], "")} for r in rows if r["outcome"] == "survived"]  # fmt: skip
        kinds = self.counts()
        return {"commit": self.revision or commit() or "unknown", "command": format_command(["python", "-m", "audit", *sys.argv[1:]]),
                **describe_run(["cuda:0" if "cuda" in kinds else "cpu"]),
                "mutants": {"seed": self.seed, "kinds": kinds, "results": results, "judged": rows}}  # fmt: skip

    def table(self) -> str:
        """The counts and the survivors as text."""
        rows = [(kind, *n.values()) for kind, n in self.counts().items()]
        left = [f"{r['kind']}, line {find_line(r['mutant'])} of {r['mutant']}\n    {REASONS.get(r['mutant'], 'no reason given')}"
                for r in self.rows.values() if final_outcome(r) == "survived"]  # fmt: skip
        return "\n".join([format_table(("kind", *OUTCOMES, "first", "score"), rows), "", *left])


@contextmanager
def measured(times: defaultdict[str, float], name: str) -> Iterator[None]:
    """Adds the seconds of a block."""
    start = time.monotonic()
    try:
        yield
    finally:
        times[name] += time.monotonic() - start


def read_rows(target: Path, seed: int) -> list[dict[str, Any]]:
    """The mutants of a file, as they were last judged. A line that an interruption has torn, the last, goes. Raises ValueError for
    a file of another seed."""
    text = target.read_text(encoding="utf-8")
    if not text.endswith("\n"):
        target.write_text(text[: text.rfind("\n") + 1], encoding="utf-8")
    found = read_document(target).get("mutants", {})
    if found.get("seed", seed) != seed:
        raise ValueError(f"{target} holds mutants of seed {found['seed']}, expected {seed}")
    return list(found.get("judged", []))


def final_outcome(row: dict[str, Any]) -> str:
    """The outcome; "argued" where a reason says that a survivor is equivalent."""
    return "argued" if row["outcome"] == "survived" and is_argued(row["mutant"]) else str(row["outcome"])


def is_argued(key: str) -> bool:
    """Whether a reason says that a mutant is equivalent."""
    return REASONS.get(key, "").startswith("equivalent: ")


def build(tree: Scratch, turn: Turn, *goals: str) -> None:
    """Raises BuildError with the first error."""
    goals = ("cuda" if tree.backend == "cuda" else "cpu", *goals)
    words = ["make", "-C", "native", f"-j{len(turn.cores)}", f"PYTHON={sys.executable}", *goals]
    status, said = run_limited(tree, words, patience=BUILD, turn=turn)
    if status != 0:
        raise BuildError(first_error(said) or said[-200:])


def same_code(tree: Scratch, clean: Scratch) -> bool:
    """Whether the objects of two libraries are the same without what is there for debuggers."""
    for name in {"cpu", tree.backend}:
        own, other = (t.folder / "native/build" / name / "obj" for t in (tree, clean))
        for file in own.rglob("*.o"):
            twin = other / file.relative_to(own)
            if file.stat().st_mtime_ns != twin.stat().st_mtime_ns and _stripped(file) != _stripped(twin):
                return False
    return True


def _stripped(file: Path) -> bytes:
    """An object without what a debugger reads, and without the hash of its CUDA source in the names of its functions."""
    with tempfile.NamedTemporaryFile() as out:
        subprocess.run(["objcopy", "--strip-debug", str(file), out.name], check=True)
        return re.sub(rb"_[0-9a-f]{8}(_\d+_\w+?_cu_[0-9a-f]{8})", rb"\1", Path(out.name).read_bytes())
