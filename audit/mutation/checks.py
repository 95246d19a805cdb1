"""What may see a mutant: the checks of a source file, the cheapest first, and what each says of a copy of the tree."""

import contextlib
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from audit.scratch import Scratch
from tlspec import registry

#: seconds of one check, and of silence after which it hangs
PATIENCE, SILENCE = 1200.0, 120.0
#: bytes of private memory and of a file that a process may have
MEMORY, FILE = 6 << 30, 3 << 30
#: tests that plant defects or compare generated texts, which every mutant changes
IGNORED = ("tests/audit", "tests/repo", "tests/pages", "tests/bench", "tests/examples")
#: a part of a file's path -> test files of tests/runtime that are about it, besides those of its name
OWN = {
    "core/graph": "capture", "core/errors": "library", "core/pool": "buffer", "core/fork": "process", "core/threads": "process",
    "core/exchange": "exchange", "core/": "core buffer device copies", "cuda/runtime/": "device buffer", "_capture/": "capture",
    "_binding/": "buffer refusals library kernels copies", "_operations/": "refusals tape_errors tape_operations",
    "nn/": "nn nn_layers training", "distributed/": "distributed", "tlrt/torch": "torch_ops torch_mode", "tlrt/onnx": "onnx",
    "tlrt/jax": "jax", "tape": "tape session", "optim": "optim", "ledger": "ledger ledger_audit",
}  # fmt: skip


@dataclass(frozen=True)
class Check:
    """Words after ``python -m``, and the operations that OPS names."""

    words: tuple[str, ...]
    ops: str = ""

    def __str__(self) -> str:
        return " ".join((*self.words, *([f"OPS={self.ops}"] if self.ops else [])))


def family_of(file: str) -> str:
    """The family of a kernel's or specification's file by its folder or name; "" where several use it."""
    parts = () if "/core/" in file or "/nn/" in file else Path(file).with_suffix("").parts
    return next((n for n in (name.split("_")[0] for name in parts[2:]) if n in registry.FAMILIES), "")


def pytest(tree: Scratch, patterns: Sequence[str], ops: str = "", *more: str) -> Iterator[Check]:
    """The check of those test files that are there."""
    found = dict.fromkeys(str(f.relative_to(tree.folder)) for p in patterns for f in sorted(tree.folder.glob(p)))
    if found:
        words = ("pytest", "-x", "-q", "-p", "no:cacheprovider", *(f"--ignore={i}" for i in IGNORED), *found, *more)
        yield Check(words, ops)


def checks(kind: str, file: str, tree: Scratch) -> Iterator[Check]:
    """What may see a change of a file, the cheapest first: the module, tests of its name, verify, all tests."""
    family = family_of(file)
    more = ("-k", "cuda") if kind == "cuda" else ()
    device, stem = "cuda" if kind == "cuda" else "cpu", Path(file).stem.strip("_")
    if kind in ("python", "specification"):
        module = file.removesuffix(".py").removesuffix("/__init__").removesuffix("/__main__").replace("/", ".")
        yield Check(("-c", f"import tlrt, {module}"))
    names = [n for part, words in OWN.items() if part in file for n in words.split()]
    named = [f"tests/{folder}/test_{stem}*.py" for folder in ("spec", "verify", "kernels", "runtime")]
    yield from pytest(tree, [*named, *(f"tests/runtime/test_{n}.py" for n in names)], family, *more)
    verify = ("tlrt", "verify", "--device", device, *(("--ops", family) if family else ()))
    if kind != "python" or "verify/" in file or "_binding/" in file:
        yield Check((*verify, "--cases", "1"))
        yield Check((*verify, "--cases", "1", "--math", "reproducible"))
    if family:
        yield from pytest(tree, ["tests/kernels/*.py", "tests/spec/*.py"], family, *more)
    yield Check(verify)
    for folder in ("spec", "kernels", "verify", "runtime"):
        yield from pytest(tree, [f"tests/{folder}/*.py"], "", *more)


def attempt(tree: Scratch, check: Check, until: float) -> tuple[str, str]:
    """("passed" | "failed" | "hung" | "late", what failed)."""
    command = [sys.executable, *(() if check.words[0] == "-c" else ("-m",)), *check.words]
    status, said = run_limited(tree, command, check.ops, until)
    if status == 0 or (status == 5 and check.words[0] == "pytest"):  # 5: no test fits the operations
        return "passed", ""
    found = re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", said, re.M) or re.findall(r"^(\S+) .* FAIL", said, re.M)
    what = found[0] if found else " ".join(said.split()[-20:])
    return ("late" if time.monotonic() > until else "hung") if status is None else "failed", what


def run_limited(tree: Scratch, command: Sequence[str], ops: str, until: float) -> tuple[int | None, str]:
    """(the status of a command in a copy, None where it hung or the time was up; what it said). Its session ends with it."""
    (temporary := tree.folder / "tmp").mkdir(exist_ok=True)
    path = os.pathsep.join([str(tree.folder), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "OPS": ops, "PYTHONPATH": path, "TORCHLEAN_CUDA_LIBRARY": str(tree.library),
                   "PYTHONUNBUFFERED": "1", "TMPDIR": str(temporary), "OPENBLAS_NUM_THREADS": "1"}  # fmt: skip
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command, cwd=tree.folder, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        start = changed = time.monotonic()
        size = 0
        try:
            with contextlib.suppress(ProcessLookupError):
                if tree.backend == "cpu":  # CUDA reserves what it never touches
                    resource.prlimit(process.pid, resource.RLIMIT_DATA, (MEMORY, MEMORY))
                resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (FILE, FILE))
            while process.poll() is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(0.2)
                now, grown = time.monotonic(), os.fstat(output.fileno()).st_size
                size, changed = grown, now if grown != size else changed
                if now > min(until, start + PATIENCE, changed + SILENCE):
                    break
            status = process.poll()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(max(0, size - (1 << 20)))
        return status, output.read().decode(errors="replace")
