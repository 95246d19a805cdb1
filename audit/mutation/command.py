"""``python -m audit mutate --random N --seed S``: draws mutants and scores the tests.

A mutant of a CPU kernel is built for one SIMD variant, the first in which its machine code differs, in a library that holds that
variant alone. A check kills that fails or hangs where it passes without the mutant. One with the machine code (in Python: the
compiled code without messages) of the original is equivalent, one that does not build or cannot be imported is invalid; neither
counts. A survivor that ``evidence/mutants-*.jsonl`` lists with the outcome `argued` and a reason counts as equivalent.
"""

import argparse
import math
import os
import re
import subprocess
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from audit.build import BuildError
from audit.environment import commit, describe_run
from audit.mutation.checks import Check, attempt, checks
from audit.mutation.mutants import Mutant, behaviour, read_lines, sample
from audit.scratch import Scratch, scratch
from audit.summary import read_summaries
from tlrt._terminal import Progress, format_table
from tlrt.verify.documents import format_command, read_document, write_document
from tlrt.verify.run import cpu_variants

OUTCOMES = ("killed", "survived", "argued", "equivalent", "invalid", "open")


def argued() -> dict[str, str]:
    """Mutant -> why no caller can see it, for those that the summaries argue about."""
    rows = [r for name, s in read_summaries().items() if name.startswith("mutants-") for r in s["rows"]]
    return {r["mutant"]: r.get("reason", "") for r in rows if r.get("outcome") == "argued"}


class Campaign:
    """Mutants of a seed and what became of them. `target` is the raw document, which is continued. A mutant that no check sees in
    `patience` seconds has survived."""

    def __init__(self, target: Path | None, seed: int, jobs: int, budget: float = math.inf, patience: float = math.inf):
        self.target, self.seed, self.jobs, self.patience = target, seed, jobs, patience
        self.until = time.monotonic() + budget
        self.locks: defaultdict[object, threading.Lock] = defaultdict(threading.Lock)
        self.sound: dict[tuple[str, Check], bool] = {}
        self.clean: dict[str, Scratch] = {}
        self.stack, self.reasons = ExitStack(), argued()
        self.rows: dict[str, dict[str, Any]] = {}
        if target is not None and target.exists():
            found = read_document(target).get("mutants", {})
            if found.get("seed", seed) != seed:
                raise ValueError(f"{target} holds mutants of seed {found['seed']}, expected {seed}")
            self.rows = {r["mutant"]: r for r in found.get("judged", []) if r["outcome"] != "open"}

    def __enter__(self) -> "Campaign":
        self.folder = Path(self.stack.enter_context(tempfile.TemporaryDirectory(prefix="mutate-")))
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    def run(self, kind: str, count: int) -> None:
        """Judges mutants of a kind until `count` are killed or have survived, or the time is up."""
        judged, running = 0, set[Future[str]]()
        with Progress(float(count), f"{kind} mutants") as progress, ThreadPoolExecutor(self.jobs) as pool:
            for mutant in sample(kind, self.seed):
                while running and (len(running) >= self.jobs or judged + len(running) >= count):
                    done, running = wait(running, return_when=FIRST_COMPLETED)
                    counted = sum(future.result() in ("killed", "survived", "open") for future in done)
                    judged += counted
                    progress.advance(float(counted))
                if judged >= count or time.monotonic() > self.until:
                    break
                if mutant.key in self.rows:
                    judged += self.rows[mutant.key]["outcome"] in ("killed", "survived")
                else:
                    running.add(pool.submit(self.judge, mutant))
            for future in running:
                future.result()

    def judge(self, mutant: Mutant) -> str:
        """Judges one mutant and keeps its row; the outcome."""
        if mutant.key in self.reasons:
            outcome, by = "argued", self.reasons[mutant.key]
        else:
            with tempfile.TemporaryDirectory(prefix="mutant-", dir=self.folder) as folder:
                outcome, by = self._try(mutant, Path(folder), min(self.until, time.monotonic() + self.patience))
        row = {
            "mutant": mutant.key,
            "kind": mutant.kind,
            "outcome": outcome,
            "by": by.replace(f"{self.folder}/", "")[-160:],
        }
        with self.locks["rows"]:
            self.rows[mutant.key] = row
            print(f"{outcome:10} line {mutant.line} of {mutant.key}  [{row['by']}]", flush=True)
            if self.target is not None:
                write_document(self.target, self.document())
        return outcome

    def _try(self, mutant: Mutant, folder: Path, until: float) -> tuple[str, str]:
        native = mutant.kind in ("c", "cuda")
        if not native and behaviour(mutant.text()) == behaviour("".join(read_lines(mutant.file))):
            return "equivalent", "the same compiled code"
        variants = (
            [""] if not native or "/core/" in mutant.file else cpu_variants()[::-1] if mutant.kind == "c" else ["cuda"]
        )
        for variant in variants:
            clean = self.unchanged(variant)
            with scratch(folder / (variant or "plain"), clean) as tree:
                (tree.folder / mutant.file).write_text(mutant.text(), encoding="utf-8")
                if native:
                    try:
                        tree.make(tree.backend)
                    except BuildError as error:
                        found = re.search(r"(?:error:|undefined reference|\*\*\* ).*", str(error))
                        return "invalid", found[0] if found else str(error)[-200:]
                    if same_code(tree, clean):
                        continue
                for check in checks(mutant.kind, mutant.file, tree):
                    verdict, by = attempt(tree, check, until)
                    if verdict == "late":
                        return ("open" if time.monotonic() > self.until else "survived"), f"the time is up: {check}"
                    if verdict != "passed" and self._is_sound(variant, check):
                        return "invalid" if check.words[0] == "-c" else "killed", f"{check.words[0]}: {by}"
                return "survived", variant
        return "equivalent", "the same machine code"

    def unchanged(self, variant: str) -> Scratch:
        """The tree without a mutant, built for one SIMD variant alone, with the CUDA path ("cuda"), or with all variants ("")."""
        with self.locks[variant]:
            if variant not in self.clean:
                tree, cuda = self.stack.enter_context(scratch(self.folder / (variant or "plain"))), variant == "cuda"
                one = [f"VARIANTS={cpu_variants()[0] if cuda else variant}", "CFLAGS=-Wno-unused-function"]
                archs = [f"CUDA_ARCHS={os.environ.get('CUDA_ARCHS', 'sm_90a')}", "LINEINFO="]
                tree.backend, tree.options = (
                    "cuda" if cuda else "cpu",
                    [*(one if variant else []), *(archs if cuda else [])],
                )
                tree.make(tree.backend, jobs=self.jobs)
                self.clean[variant] = tree
            return self.clean[variant]

    def _is_sound(self, variant: str, check: Check) -> bool:
        """Whether a check passes without a mutant."""
        with self.locks[variant, check]:
            if (variant, check) not in self.sound:
                self.sound[variant, check] = attempt(self.clean[variant], check, math.inf)[0] == "passed"
            return self.sound[variant, check]

    def counts(self) -> dict[str, dict[str, Any]]:
        """Kind -> how many mutants have which outcome, and the share of those judged that are killed."""
        found = {}
        for kind in sorted({r["kind"] for r in self.rows.values()}):
            n = Counter(r["outcome"] for r in self.rows.values() if r["kind"] == kind)
            judged = n["killed"] + n["survived"]
            found[kind] = {**{o: n[o] for o in OUTCOMES}, "score": round(n["killed"] / judged, 4) if judged else "nan"}
        return found

    def document(self) -> dict[str, Any]:
        """Counts, what survived, and every row."""
        rows = sorted(self.rows.values(), key=lambda r: (r["kind"], r["mutant"]))
        results = [
            {**r, "reason": self.reasons.get(r["mutant"], "")} for r in rows if r["outcome"] in ("survived", "argued")
        ]
        device = "cuda:0" if any(r["kind"] == "cuda" for r in rows) else "cpu"
        return {"commit": commit() or "unknown", "command": format_command(["python", "-m", "audit", "mutate", f"--seed={self.seed}"]),
                **describe_run([device]), "mutants": {"seed": self.seed, "kinds": self.counts(), "results": results, "judged": rows}}  # fmt: skip


def same_code(tree: Scratch, clean: Scratch) -> bool:
    """Whether the objects of two libraries are the same without what is there for debuggers."""
    for name in {"cpu", tree.backend}:
        own, other = (t.folder / "native/build" / name / "obj" for t in (tree, clean))
        for file in own.rglob("*.o"):
            twin = other / file.relative_to(own)
            if file.stat().st_mtime_ns != twin.stat().st_mtime_ns and stripped(file) != stripped(twin):
                return False
    return True


def stripped(file: Path) -> bytes:
    """An object without what a debugger reads, and without the hash of its CUDA source in the names of its functions."""
    with tempfile.NamedTemporaryFile() as out:
        subprocess.run(["objcopy", "--strip-debug", str(file), out.name], check=True)
        return re.sub(rb"_[0-9a-f]{8}(_\d+_\w+?_cu_[0-9a-f]{8})", rb"\1", Path(out.name).read_bytes())


def turns(kinds: Sequence[str], count: int) -> Iterator[tuple[str, int]]:
    """The kinds in turn, twenty mutants more each time."""
    for target in (*range(20, count, 20), count):
        yield from ((kind, target) for kind in kinds)


def main(argv: Sequence[str] | None = None) -> int:
    """The command; the exit status is 1 where a mutant survived."""
    p = argparse.ArgumentParser(prog="python -m audit mutate", description=(__doc__ or "").partition("\n")[0])
    p.add_argument("--random", type=int, default=100, metavar="N", help="mutants of each kind (default 100)")
    p.add_argument("--seed", type=int, default=0, metavar="S", help="the order of mutants (default 0)")
    p.add_argument(
        "--kinds", default="c,python,specification", metavar="NAMES", help="and cuda, on a machine with a GPU"
    )
    p.add_argument("--jobs", type=int, default=2, metavar="N")
    p.add_argument("--json", type=Path, metavar="FILE", help="the raw document, kept as it grows and continued")
    p.add_argument("--budget", type=float, default=math.inf, metavar="SECONDS", help="start no mutant after this long")
    p.add_argument(
        "--patience", type=float, default=math.inf, metavar="SECONDS", help="a mutant that lives this long survives"
    )
    args = p.parse_args(argv)
    with Campaign(args.json, args.seed, args.jobs, args.budget, args.patience) as campaign:
        for kind, count in turns(args.kinds.split(","), args.random):
            campaign.run(kind, count)
        print(
            format_table(("kind", *OUTCOMES, "score"), [(kind, *n.values()) for kind, n in campaign.counts().items()])
        )
        left = [r["mutant"] for r in campaign.rows.values() if r["outcome"] == "survived"]
    print("".join(f"SURVIVED {key}\n" for key in left), end="")
    return int(bool(left))
