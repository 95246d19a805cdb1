"""Lines and branches of tlrt and tlspec that verify and the tests reach, counted by coverage.py (the extra ``coverage``).

Every process counts that a run starts, and every fork. Tests that change rows work in copies of the tree; of those the one file
counts that only the generator uses.
"""

import fnmatch
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from audit.build import BuildError
from audit.coverage import run_step
from audit.environment import ROOT, processors
from tlrt import devices
from tlrt._terminal import format_table

SOURCES = ("tlrt", "tlspec")
#: the share of branches that runs must reach, exceptions apart
LEAST = 0.97
#: what is counted of a file
COUNTS = ("lines", "lines_reached", "branches", "branches_reached", "excepted")
#: the tests that call the two packages; one rings an alarm more often than a traced handler can return
TESTS = ("tests/runtime", "tests/spec", "tests/kernels", "tests/verify", "tests/repo/test_generated.py",
         "tests/repo/test_codegen_refusals.py",
         *(f"tests/audit/test_{name}.py" for name in ("onnx", "ranks", "league", "judge_corpus", "models")),
         "--deselect", "tests/runtime/test_process.py::test_interrupts_leak_nothing")  # fmt: skip
#: the arguments of Python, run by run
STEPS = (
    ("-m", "tlrt", "verify"),
    ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", str(processors()), "--dist", "worksteal", *TESTS),
)
GPU = "only with a CUDA library or a GPU: bench.gpu"
FAULT = "only where C refuses memory: audit faults"
THREAD = "only where another thread comes at one moment: audit contention"
#: (files, a part of the line's text, why no run here reaches all of its branches)
EXCEPTIONS: tuple[tuple[str, str, str], ...] = (
    ("tlrt/_capture/replay.py", "capture_begin(", GPU),
    ("tlrt/_capture/replay.py", "capture_end(", GPU),
    ("tlrt/_capture/replay.py", "if begun and slot", GPU),
    ("tlrt/_capture/replay.py", "UnavailableError", GPU),
    ("tlrt/doctor.py", "if driver:", GPU),
    ("tlrt/doctor.py", "cuDriverGetVersion", GPU),
    ("tlrt/doctor.py", "if len(context.devices()) == 1:", GPU),
    ("tlrt/doctor.py", "if buffer.numpy().tolist()", "of a device that computes wrongly"),
    ("tlrt/_binding/handles.py", "if status := complete_call(", FAULT),
    ("tlrt/_binding/handles.py", "if status := _release(self._handle):", FAULT),
    ("tlrt/_binding/handles.py", "device_describe(", FAULT),
    ("tlrt/_binding/handles.py", "if not _finalizing():", "at the interpreter's end, after the count"),
    ("tlrt/_capture/record.py", "if status:", FAULT),
    ("tlrt/_capture/record.py", "if status := complete_call(", FAULT),
    ("tlrt/capture.py", "if status", FAULT),
    ("tlrt/_capture/inputs.py", "if status", FAULT),
    ("tlrt/capture.py", "(status := place.storage.copy(", FAULT),
    ("tlrt/_optimizer.py", "if status", FAULT),
    ("tlrt/session.py", "if self._owns_device and status:", FAULT),
    ("tlrt/_capture/record.py", "if not status:", THREAD),
    ("tlrt/_capture/record.py", "if is_empty:", THREAD),
    ("tlrt/_capture/aliases.py", "if before ==", THREAD),
    ("tlrt/_binding/library.py", "if _loaded is None:", THREAD),
    ("tlrt/session.py", "if id >= len(nodes):", THREAD),
    ("tlrt/session.py", "if leaves[parameter] is leaf:", THREAD),
    ("tlrt/session.py", "if self.epoch != epoch:", THREAD),
    ("tlrt/tape.py", "if self._undone is undone:", THREAD),
    ("tlrt/tape.py", "self.nodes is n", THREAD),
    ("tlrt/tape.py", "if len(grads) > len(nodes):", THREAD),
    ("tlrt/_binding/capsules.py", "if device.is_cuda and stream", GPU),
    ("tlrt/_binding/capsules.py", "if stream is not None and (", GPU),
    ("tlrt/_binding/capsules.py", "if not device.is_cuda:", GPU),
    ("tlrt/_binding/capsules.py", "buffer_lend", FAULT),
    ("tlrt/distributed/nccl.py", "if link.device.is_cuda:", GPU),
    ("tlrt/torch/memory.py", "if not device.is_cuda:", GPU),
    ("tlrt/verify/verifier.py", "if runtime is next(iter(", GPU),
    ("tlrt/tape.py", "if operator.index(p) >= size:", THREAD),
    ("*.py", "if not TYPE_CHECKING:", "of a type checker, for which nothing runs"),
    ("*.py", 'if __name__ == "__main__":', "of a process that the tests do not start"),
)

SETTINGS = """
[run]
branch = true
parallel = true
data_file = {folder}/data
include =
    {root}/tlrt/*
    {root}/tlspec/*
    */tlspec/validation.py
patch =
    subprocess
    _exit
    fork
[paths]
sources =
    {root}/tlspec
    */tlspec
"""


def run(folder: Path) -> list[str]:
    """Verify and the tests, counted in the folder; what failed."""
    settings = folder / "settings"
    settings.write_text(SETTINGS.format(folder=folder, root=ROOT), encoding="utf-8")
    environment = {**os.environ, "COVERAGE_PROCESS_START": str(settings)}

    with ThreadPoolExecutor() as pool:
        steps = pool.map(lambda words: run_step((sys.executable, *words), environment, "(Python)"), STEPS)
        return [said for said in steps if said]


def read(folder: Path) -> dict[str, Any]:
    """What was counted in a folder, by file: coverage.py's report."""
    for words in (["combine", "--keep", "-q"], ["json", "-q", "--ignore-errors", "-o", str(folder / "report.json")]):
        command = [sys.executable, "-m", "coverage", *words, f"--rcfile={folder / 'settings'}"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            raise BuildError(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return dict(json.loads((folder / "report.json").read_text(encoding="utf-8"))["files"])


def judge(report: Mapping[str, Any], sources: Path = ROOT) -> dict[str, Any]:
    """What was reached of every file, what was not, and the exceptions that are none any more."""
    files: list[dict[str, Any]] = []
    missed: list[dict[str, Any]] = []
    used: set[tuple[str, str, str]] = set()
    for path in sorted(p for source in SOURCES for p in (sources / source).rglob("*.py")):
        name, text = path.relative_to(sources).as_posix(), path.read_text(encoding="utf-8").splitlines()
        if name not in report:
            files.append({"file": name, **dict.fromkeys(COUNTS, 0), "branches": len(text)})  # no run imports it
            continue
        found = report[name]
        row: dict[str, Any] = {"file": name, **dict.fromkeys(COUNTS, 0)}
        row["lines"] = len(found["executed_lines"]) + len(found["missing_lines"])
        row["lines_reached"] = len(found["executed_lines"])
        row["branches_reached"] = len(found["executed_branches"])
        row["branches"] = row["branches_reached"] + len(found["missing_branches"])
        for line in sorted({start for start, _ in found["missing_branches"]}):
            ends = [end for start, end in found["missing_branches"] if start == line]
            source = text[line - 1].strip()
            known = next((e for e in EXCEPTIONS if fnmatch.fnmatch(name, e[0]) and e[1] in source), None)
            if known is not None:
                used.add(known)
                row["excepted"] += len(ends)
            missed.append({"file": name, "line": line, "to": ends, "text": source, "why": known[2] if known else ""})
        files.append(row)
    chance = {THREAD, GPU if len(devices()) > 1 else THREAD}  # what a run may reach
    stale = [e for e in EXCEPTIONS if e not in used and e[2] not in chance]
    failures = [f"no branch is left of the exception {e[0]}: {e[1]}" for e in stale]
    share = share_of(files)
    if share < LEAST:
        failures.append(f"{share:.2%} of the branches are reached, expected {LEAST:.0%}")
    return {"files": files, "missed": missed, "share": round(share, 4), "failures": failures}


def share_of(files: list[dict[str, Any]]) -> float:
    """The share of the branches that are reached; one that is an exception is no branch."""
    reached, all_, excepted = (sum(f[k] for f in files) for k in ("branches_reached", "branches", "excepted"))
    return reached / max(all_ - excepted, 1)


def campaign() -> dict[str, Any]:
    """Runs and judges. Raises BuildError where coverage.py is not installed."""
    if importlib.util.find_spec("coverage") is None:
        raise BuildError("coverage.py is not installed (pip install torchlean-cuda[coverage])")
    with tempfile.TemporaryDirectory() as name:
        failed = run(Path(name))
        document = judge(read(Path(name)))
    document["failures"] = failed + document["failures"]
    return document


def ok(document: Mapping[str, Any]) -> bool:
    """Whether every run passed and enough is reached."""
    return not document["failures"]


def table(document: Mapping[str, Any]) -> str:
    """One line per file with something left, then the branches that no run reaches and no reason excuses."""
    rows = [
        (f["file"], *(f"{f[f'{k}_reached']}/{f[k]}" for k in ("lines", "branches")), f["excepted"])
        for f in document["files"]
        if f["branches_reached"] < f["branches"]
    ]
    text = format_table(("", "lines", "branches", "excepted"), rows)
    for m in document["missed"]:
        if not m["why"]:
            text += f"\n{m['file']}:{m['line']}: to {', '.join(map(str, m['to']))}: {m['text']}"
    return f"{text}\n{document['share']:.2%} of the branches" + "".join(f"\nFAIL {f}" for f in document["failures"])
