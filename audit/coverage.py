"""Lines and branches of the CPU library that verify and the tests reach, counted by gcov.

The build with ``COVERAGE=1`` inlines nothing, so the branches of a line are those of its source and not of what becomes of it in
one caller or another. What is reached in one SIMD variant, or through one of the files that include a header, is reached. Copies
of a line that have different numbers of branches hold different code (``#if``), and count apart. An if without an else has two
branches, and so has each operand of ``&&``; what gcc knows, or chooses without a jump, has none.

Allocations fail in a build of their own (``FAULTS=1``), whose lines have the same branches.
"""

import fnmatch
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from audit import faults
from audit.build import BuildError, make
from audit.environment import ROOT, processors
from tlrt._terminal import format_table
from tlrt.verify.run import cpu_variants

NATIVE = ROOT / "native"
BUILD = NATIVE / "build" / "coverage"
FAULTS = BUILD / "faults"
#: the share of branches that runs must reach, exceptions apart
LEAST = 0.98
#: the folders that must reach it, and those that are shown
JUDGED = ("src/core", "src/cpu", "src/formula")
FOLDERS = (*JUDGED, "generated")
#: measures time, of which the counting build takes more
SLOW = "tests/runtime/test_interrupts.py::test_ctrl_c_ends_long_calls_soon"
#: what is counted of a file
COUNTS = ("lines", "lines_reached", "branches", "branches_reached", "excepted")

_GPU = "needs a GPU"
_SYSTEM = "needs a system call that fails without a shortage"
_PROCESSOR = "needs another processor"
_MANY = "needs 2^28 objects at a time"
_PLANS = "needs more plans of transforms in use at a time than the cache holds"
_KINDS = "has a case for every kind that there is"
_INTERRUPT = "needs an interrupt within this loop, of which the tests have one per kind of kernel"
#: (files, a part of the line's text, why no run here reaches all of its branches)
EXCEPTIONS: tuple[tuple[str, str, str], ...] = (
    ("src/core/graph.c", "", _GPU),
    ("src/core/*", "cuda", _GPU),
    ("src/core/*", "capture", _GPU),
    ("src/core/*", "graph", _GPU),
    ("src/core/call.c", "&& !status; i++)", _GPU),
    ("src/core/device.c", "fgets(", _SYSTEM),
    ("src/core/device.c", "if (!file) return;", _SYSTEM),
    ("src/core/device.c", "colon", _SYSTEM),
    ("src/core/pool.c", "if (!(status = tl_pool_trim(pool)))", _GPU),
    ("src/core/errors.c", "snprintf(last->text", _SYSTEM),
    ("src/core/threads.c", "sched_getaffinity", _SYSTEM),
    ("src/core/threads.c", "n < 1", _SYSTEM),
    ("src/core/dispatch.c", "__builtin_cpu_supports", _PROCESSOR),
    ("src/core/dispatch.c", ".supported()", _PROCESSOR),
    ("src/core/dispatch.c", "chosen ?", _PROCESSOR),
    ("src/core/handles.c", "table->used <= TL_INDEX_MAX", _MANY),
    ("src/core/interrupt.c", "sigaction(watched", _SYSTEM),
    ("src/cpu/spectral/plan.c", "oldest < 0", _PLANS),
    ("src/cpu/spectral/plan.c", "i < CACHED_PLANS; i++)", _PLANS),
    ("src/cpu/spectral/plan.c", "drop", _PLANS),
    ("src/cpu/reduce_axes.c", "switch (kind)", _KINDS),
    ("src/cpu/*", "tl_interrupted()", _INTERRUPT),
)


@dataclass
class Line:
    """A line of a source: how often it ran, and how often each branch did, for every number of branches that copies have."""

    count: int = 0
    branches: dict[int, tuple[int, ...]] = field(default_factory=dict)

    def add(self, count: int, taken: Sequence[int]) -> None:
        """Enters a copy."""
        self.count += count
        if taken:
            before = self.branches.get(len(taken), (0,) * len(taken))
            self.branches[len(taken)] = tuple(a + b for a, b in zip(before, taken, strict=True))


Lines = dict[str, dict[int, Line]]


def _gcov(note: Path) -> list[dict[str, Any]]:
    words = ["gcov", "--branch-probabilities", "--json-format", "--stdout", str(note)]
    done = subprocess.run(words, cwd=note.parent, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError(f"{' '.join(words)} failed:\n{done.stderr[-2000:]}")
    return [f for line in done.stdout.splitlines() for f in json.loads(line)["files"]]


def read(build: Path = BUILD) -> Lines:
    """What the runs since :func:`clear` have counted, by file below native/ and by line."""
    found: Lines = {}
    notes = sorted(build.rglob("*.gcno"))
    with ThreadPoolExecutor(processors()) as pool:
        for files in pool.map(_gcov, notes):
            for file in files:
                if not file["file"].startswith(FOLDERS):
                    continue
                lines = found.setdefault(file["file"], {})
                for x in file["lines"]:
                    lines.setdefault(x["line_number"], Line()).add(x["count"], [b["count"] for b in x["branches"]])
    return found


def clear(build: Path = BUILD) -> None:
    """Forgets what was counted."""
    for file in build.rglob("*.gcda"):
        file.unlink()


def run() -> list[str]:
    """Verify and the tests that concern the library, in the counting builds; what failed."""
    for goals in (("cpu",), ("cpu", "FAULTS=1"), ("build/coverage/core_test",)):
        make(*goals, "COVERAGE=1", jobs=processors())
    clear()
    with ThreadPoolExecutor() as pool:
        return [said for said in pool.map(lambda step: _failure(*step), steps()) if said]


def _failure(words: tuple[str, ...], build: Path, threads: str, variant: str = "") -> str:
    environment = {
        **os.environ,
        "TORCHLEAN_CUDA_LIBRARY": str(build / "libtorchlean_cuda.so"),
        "TORCHLEAN_CPU_THREADS": threads,
        "TORCHLEAN_CPU_VARIANT": variant,
    }
    environment = {k: v for k, v in environment.items() if v}
    return run_step(words, environment, variant)


def run_step(words: Sequence[str], environment: Mapping[str, str], what: str = "") -> str:
    """Runs a command in the tree, and says on stderr when it has ended; what failed, or an empty text."""
    start = time.monotonic()
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    name = " ".join(Path(w).name if w.startswith("/") else w for w in (*words[:4], what))
    print(f"coverage: {name}: status {done.returncode} after {time.monotonic() - start:.0f} s", file=sys.stderr)
    if done.returncode == 0:
        return ""
    return f"{' '.join(words)}: status {done.returncode}: {done.stdout[-1500:]}{done.stderr[-500:]}"


def steps() -> list[tuple[Any, ...]]:
    """What runs, side by side, as the counts of processes add up: a command, the folder of its library, its threads ("" for one
    per processor), and the SIMD variant."""
    python = sys.executable
    verify = (python, "-m", "tlrt", "verify", "--device", "cpu")
    tests = (python, "-m", "pytest", "-q", "-n", str(processors()), "--dist", "worksteal",
             "tests/kernels", "tests/runtime", "--deselect", SLOW)  # fmt: skip
    parts = max(processors() // 4, 1)  # of the trials of allocations that fail
    return [
        ((str(BUILD / "core_test"),), BUILD, ""),
        *((verify, BUILD, "1", variant) for variant in cpu_variants()),
        (tests, BUILD, ""),
        *(
            ((python, "-m", "audit.faults", "cpu", f"{parts}+{k + 1}", *faults.MODES), FAULTS, "3")
            for k in range(parts)
        ),
    ]


def exception(file: str, text: str) -> tuple[str, str, str]:
    """Why branches of a line need not be reached: an entry of EXCEPTIONS, or three empty texts."""
    fitting = (e for e in EXCEPTIONS if fnmatch.fnmatch(file, e[0]) and e[1] in text)
    return next(fitting, ("", "", ""))


def judge(found: Lines, sources: Path = NATIVE) -> dict[str, Any]:
    """What was reached of every file, what was not, and the exceptions that are none any more."""
    files: list[dict[str, Any]] = []
    missed: list[dict[str, Any]] = []
    used: set[tuple[str, str, str]] = set()
    for name, lines in sorted(found.items()):
        text = (sources / name).read_text(encoding="utf-8").splitlines()
        row = dict.fromkeys(COUNTS, 0)
        for number, line in sorted(lines.items()):
            source = text[number - 1].strip()
            branches = [b for copy in line.branches.values() for b in copy]
            left, why = branches.count(0), ""
            if left:
                used.add(reason := exception(name, source))
                why = reason[2]
                missed.append(
                    {"file": name, "line": number, "left": left, "of": len(branches), "text": source, "why": why}
                )
            row["lines"] += 1
            row["lines_reached"] += line.count > 0
            row["branches"] += len(branches)
            row["branches_reached"] += len(branches) - left
            row["excepted"] += left if why else 0
        files.append({"file": name, **row})
    stale = [f"no branch is left of the exception {e[0]}: {e[1]}" for e in EXCEPTIONS if e not in used]
    failures = [
        f"{r['name']}: {r['share']:.2%} of the branches are reached, expected {LEAST:.0%}"
        for r in folders(files)
        if r["name"] in JUDGED and r["branches"] and r["share"] < LEAST
    ]
    return {"files": files, "missed": missed, "failures": stale + failures}


def folders(files: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The sums over folders; a branch that is an exception is no branch of `share`."""
    out = []
    for name in FOLDERS:
        rows = [f for f in files if f["file"].startswith(name + "/")]
        row: dict[str, Any] = {k: sum(r[k] for r in rows) for k in COUNTS}
        row["share"] = row["branches_reached"] / max(row["branches"] - row["excepted"], 1)
        out.append({"name": name, **row})
    return out


def campaign() -> dict[str, Any]:
    """Builds, runs and judges. Raises BuildError where there is no gcov."""
    if shutil.which("gcov") is None:
        raise BuildError("no gcov on PATH; it comes with gcc")
    failed = run()
    document = judge(read())
    document["failures"] = failed + document["failures"]
    return document


def ok(document: Mapping[str, Any]) -> bool:
    """Whether every run passed and enough is reached."""
    return not document["failures"]


def table(document: Mapping[str, Any]) -> str:
    """One line per folder and per file with something left, then the branches that no run reaches and no reason excuses."""
    rows = [
        (r.get("name") or r["file"], *(f"{r[f'{k}_reached']}/{r[k]}" for k in ("lines", "branches")), r["excepted"])
        for r in [*folders(document["files"]), *document["files"]]
    ]
    text = format_table(("", "lines", "branches", "excepted"), rows)
    for m in document["missed"]:
        if not m["why"]:
            text += f"\n{m['file']}:{m['line']}: {m['left']} of {m['of']} branches: {m['text']}"
    return text + "".join(f"\nFAIL {f}" for f in document["failures"])
