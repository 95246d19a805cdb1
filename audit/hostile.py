"""Hostile calls: random calls of the whole C ABI, valid ones and broken ones.

The calls are made by a C program (``tests/native/fuzz_abi.c``), linked with the library under AddressSanitizer and UBSan;
its table of entry points and valid cases is generated from the registry. Every call follows from a seed and a number, so a
failure is one line to run again.
"""

import json
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from audit.build import make
from audit.environment import ROOT, processors
from audit.work import run_in_threads
from tlrt._terminal import Progress

#: what a sanitizer does with a finding: end the process, so that the call at hand is the last one
SANITIZERS = {
    # gcc 13 misaligns 64-byte vectors on the fake stack of detect_stack_use_after_return (GCC bug 110027)
    "ASAN_OPTIONS": "detect_leaks=1:allocator_may_return_null=1:handle_abort=0:detect_stack_use_after_return=0",
    "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
    "TSAN_OPTIONS": "halt_on_error=1:die_after_fork=0:allocator_may_return_null=1",
}
#: calls of one process: short enough that a failure costs little, long enough that starting costs nothing
CHUNK = 250_000


def build(sanitize: str = "") -> Path:
    """The driver, with the library beside it; `sanitize` is "address,undefined", "thread" or "" for the plain library."""
    make("fuzz", *([f"SANITIZE={sanitize}"] if sanitize else []))
    folder = "tsan" if "thread" in sanitize else "asan" if "address" in sanitize else "cpu"
    return ROOT / "native" / "build" / folder / "fuzz_abi"


def _run_driver(
    driver: Path, library: Path | None, seed: int, start: int, count: int, extra: Sequence[str]
) -> dict[str, Any]:
    """One process of the driver; its document, with "stderr" and "status" added."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "calls.json"
        command = [str(driver), "--seed", str(seed), "--from", str(start), "--calls", str(count), "--json", str(target)]
        where = {"LD_LIBRARY_PATH": str(library.parent)} if library else {}
        done = subprocess.run(
            [*command, *extra], capture_output=True, text=True, check=False, env={**os.environ, **SANITIZERS, **where}
        )
        document = json.loads(target.read_text()) if target.exists() and target.stat().st_size else {}
    return {**document, "status": done.returncode, "stderr": done.stderr}


def said_of(got: Mapping[str, Any]) -> str:
    """What a process said, or how it ended where damaged memory let it say nothing."""
    return shorten(got["stderr"]) or f"the process ended with status {got['status']} and said nothing"


def shorten(text: str) -> str:
    """The beginning of a text, where the first failure is, and its end."""
    return text if len(text) <= 4000 else f"{text[:2500]}\n[...]\n{text[-1500:]}"


def calls(
    count: int, *, device: int = -1, seed: int = 0, workers: int | None = None, threads: int = 1, shared: bool = False,
    sanitize: str = "address,undefined", driver: Path | None = None, library: Path | None = None, chunk: int = CHUNK,
) -> dict[str, Any]:  # fmt: skip
    """`count` calls on a device (-1 is the CPU), by `workers` processes of `threads` threads each. `library` is the file to
    try instead of the one the driver was built with. Raises BuildError."""
    driver = driver or build(sanitize)
    workers = processors() if workers is None else workers
    extra = ["--device", str(device), "--threads", str(threads), *(["--shared"] if shared else [])]
    per = max(1, min(chunk, -(-count // workers)) // threads)
    starts = list(range(0, -(-count // threads), per))
    progress = Progress(float(count), "calls")
    lock = threading.Lock()
    total: dict[str, Any] = {"entries": {}, "statuses": {}, "failures": [], "calls": 0, "accepted": 0}
    slowest: dict[str, Any] = {"seconds": 0.0}

    def work(start: int) -> None:
        nonlocal slowest
        if len(total["failures"]) >= 20:
            return
        got = _run_driver(driver, library, seed, start, min(per, -(-count // threads) - start), extra)
        with lock:
            for name, row in got.get("entries", {}).items():
                into = total["entries"].setdefault(name, dict.fromkeys(row, 0))
                for key, value in row.items():
                    into[key] += value
            for name, value in got.get("statuses", {}).items():
                total["statuses"][name] = total["statuses"].get(name, 0) + value
            for key in ("calls", "accepted"):
                total[key] += got.get(key, 0)
            slowest = max(slowest, got.get("slowest", slowest), key=lambda s: s["seconds"])
            if got["status"]:
                again = f"fuzz_abi --seed {seed} --from {start} --calls {per} {' '.join(extra)}"
                total["failures"].append({"status": got["status"], "again": again, "said": said_of(got)})
        progress.advance(float(per * threads), "hostile calls")

    start = time.monotonic()
    run_in_threads(starts, workers, lambda: nullcontext(work))
    progress.close()
    return {**total, "seed": seed, "device": device, "threads": threads, "shared": shared, "sanitizers": sanitize,
            "slowest": slowest, "seconds": round(time.monotonic() - start, 1)}  # fmt: skip
