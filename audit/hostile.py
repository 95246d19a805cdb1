"""Hostile calls: random calls of the whole C ABI, valid ones and broken ones, and damaged checkpoint files.

The calls are made by a C program (``tests/native/fuzz_abi.c``), linked with the library under AddressSanitizer and UBSan;
its table of entry points and valid cases is generated from the registry. Every call follows from a seed and a number, so a
failure is one line to run again. ``python -m audit.hostile --calls 10000000`` is the nightly size.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from audit import report

__all__ = ["HostileError", "build", "calls", "checkpoints", "ok", "table"]

ROOT = Path(__file__).resolve().parents[1]
#: what a sanitizer does with a finding: end the process, so that the call at hand is the last one
SANITIZERS = {
    # gcc 13 misaligns 64-byte vectors on the fake stack of detect_stack_use_after_return (GCC bug 110027)
    "ASAN_OPTIONS": "detect_leaks=1:allocator_may_return_null=1:handle_abort=0:detect_stack_use_after_return=0",
    "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
    "TSAN_OPTIONS": "halt_on_error=1:die_after_fork=0:allocator_may_return_null=1",
}
#: calls of one process: short enough that a failure costs little, long enough that starting costs nothing
CHUNK = 250_000


class HostileError(RuntimeError):
    """The driver cannot be built here."""


def make(*goals: str, tree: Path = ROOT, jobs: int | None = None) -> None:
    """``make -C native`` with this interpreter, one at a time, whichever process asks. Raises HostileError with what it said."""
    if not (tree / "native" / "Makefile").exists():
        raise HostileError("the driver's source is part of the source tree, which this is not")
    jobs = report.processors() if jobs is None else jobs
    command = ["make", "-C", str(tree / "native"), f"-j{jobs}", f"PYTHON={sys.executable}", *goals]
    folder = tree / "native" / "build"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "build.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode:
        raise HostileError(f"{' '.join(command)} failed:\n{made.stdout[-2000:]}{made.stderr[-4000:]}")


def build(sanitize: str = "") -> Path:
    """The driver, with the library beside it; `sanitize` is "address,undefined", "thread" or "" for the plain library."""
    make("fuzz", *([f"SANITIZE={sanitize}"] if sanitize else []))
    folder = "tsan" if "thread" in sanitize else "asan" if "address" in sanitize else "cpu"
    return ROOT / "native" / "build" / folder / "fuzz_abi"


def _once(
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


def said(text: str) -> str:
    """The beginning, where the first failure is, and the end."""
    return text if len(text) <= 4000 else f"{text[:2500]}\n[...]\n{text[-1500:]}"


def calls(
    count: int,
    *,
    device: int = -1,
    seed: int = 0,
    workers: int | None = None,
    threads: int = 1,
    shared: bool = False,
    sanitize: str = "address,undefined",
    driver: Path | None = None,
    library: Path | None = None,
    chunk: int = CHUNK,
) -> dict[str, Any]:
    """`count` calls on a device (-1 is the CPU), by `workers` processes of `threads` threads each. `library` is the file to
    try instead of the one the driver was built with. Raises HostileError."""
    driver = driver or build(sanitize)
    workers = report.processors() if workers is None else workers
    extra = ["--device", str(device), "--threads", str(threads), *(["--shared"] if shared else [])]
    per = max(1, min(chunk, -(-count // workers)) // threads)
    starts = list(range(0, -(-count // threads), per))
    meter = report.Meter(float(count), "calls")
    lock = threading.Lock()
    total: dict[str, Any] = {"entries": {}, "statuses": {}, "failures": [], "calls": 0, "accepted": 0}
    slowest: dict[str, Any] = {"seconds": 0.0}

    def work(start: int) -> None:
        nonlocal slowest
        if len(total["failures"]) >= 20:
            return
        got = _once(driver, library, seed, start, min(per, -(-count // threads) - start), extra)
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
                total["failures"].append({"status": got["status"], "again": again, "said": said(got["stderr"])})
        meter.step(float(per * threads), "hostile calls")

    start = time.monotonic()
    report.share_out(starts, workers, lambda: nullcontext(work))
    meter.close()
    return {
        **total, "seed": seed, "device": device, "threads": threads, "shared": shared, "sanitizers": sanitize,
        "slowest": slowest, "seconds": round(time.monotonic() - start, 1),
    }  # fmt: skip


# ---- checkpoint files --------------------------------------------------------------------------------------------------


class _Trainee:
    """A small session whose state can be compared."""

    def __init__(self, device: str = "cpu") -> None:
        from tlrt import Session, optim

        self.session = s = Session(device, seed=3)
        rng = np.random.default_rng(1)
        self.w = s.param(rng.standard_normal((4, 3)), "layer.weight")
        self.b = s.param(np.zeros(4), "layer.bias")
        self.x, self.y = rng.standard_normal((6, 3)), rng.standard_normal((6, 4))
        self.optimizer = optim.AdamW([self.w, self.b], lr=0.01)

    def step(self) -> None:
        s = self.session
        loss = s.mse_loss(s.dropout(s.linear(s.use(self.w), s.use(self.b), s.const(self.x)), 0.3), s.const(self.y))
        s.backward(loss)
        self.optimizer.step()
        s.reset()

    def bits(self) -> tuple[Any, ...]:
        arrays = [p.value for p in self.session.parameters.values()]
        settings, states = self.optimizer.state()
        arrays += list(states.values())
        random_state = (self.session.seed, self.session.counter)
        return ([np.ascontiguousarray(a).tobytes() for a in arrays], repr(settings), random_state)


#: what a number, text, list or table of the description is replaced by
_WRONG: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**32, 2**63, 2**64, -(2**64), 10**400, 0.5, 1e308, -0.0, "", "float32", "spec", [], {},
    [[]], ["layer.weight"], ["layer.weight", "layer.bias"], {"seed": 0}, "NaN", "0",
)  # fmt: skip
#: JSON that Python reads and no checkpoint holds
_RAW = ("NaN", "Infinity", "-Infinity", "1e999", "[" * 3000 + "]" * 3000, '"\\ud800"', "9" * 5000)


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place within a JSON document."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from _places(inner, (*path, key))


def _replaced(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    """The document with another value at a place."""
    if not path:
        return value
    copy = dict(document) if isinstance(document, dict) else list(document)
    copy[path[0]] = _replaced(document[path[0]], path[1:], value)
    return copy


def damaged(content: bytes, rng: random.Random) -> bytes:
    """A checkpoint with something wrong, anywhere from a bit to its description."""
    way = rng.randrange(10)
    length = struct.unpack("<Q", content[:8])[0]
    header, data = content[8 : 8 + length], content[8 + length :]
    if way < 3:  # bytes: flipped, set, or those of the header alone
        raw = bytearray(content)
        for _ in range(rng.choice((1, 1, 2, 8, 64))):
            raw[rng.randrange(8 + length if way == 1 else len(raw))] ^= rng.choice((1, 128, 255, rng.randrange(1, 256)))
        return bytes(raw)
    if way == 3:
        return content[: rng.randrange(len(content))]
    if way == 4:  # something left out, doubled or added
        a, b = sorted(rng.randrange(len(content) + 1) for _ in range(2))
        return content[:a] + rng.choice((b"", content[a:b] * 2, rng.randbytes(rng.randrange(1, 9)))) + content[b:]
    if way == 5:
        edges = (0, 1, length - 1, length + 1, len(content), 2**31, 2**32, 2**63, 2**64 - 1, rng.randrange(2**64))
        return struct.pack("<Q", rng.choice(edges)) + content[8:]
    outer = json.loads(header)
    inner = json.loads(outer["__metadata__"]["tlrt"])
    if way < 9:  # our own description, well-formed
        for _ in range(rng.choice((1, 1, 2))):
            places = list(_places(inner))
            inner = _replaced(inner, rng.choice(places), rng.choice(_WRONG))
        text = json.dumps(inner)
        if rng.randrange(4) == 0:
            numbers = [w for w in ("0.01", "0.9", "0.999", "3", "2", "1") if w in text] or [text]
            text = text.replace(rng.choice(numbers), rng.choice(_RAW), 1)
        outer["__metadata__"]["tlrt"] = text
    else:  # the format's table of tensors
        names = [n for n in outer if n != "__metadata__"]
        name = rng.choice(names)
        entry = dict(outer[name])
        entry[rng.choice(("dtype", "shape", "data_offsets"))] = rng.choice(
            (
                "F64",
                "F16",
                "BF16",
                "I32",
                "BOOL",
                "I64",
                "U8",
                [4, 3],
                [12],
                [2**32, 2**32],
                [0, 0],
                [-1],
                [0, 2**40],
                7,
                None,
                [],
            )
        )
        if rng.randrange(3) == 0:
            outer[rng.choice(names) + rng.choice(("", "x", "/"))] = entry
        else:
            outer[name] = entry
    packed = json.dumps(outer).encode()
    return struct.pack("<Q", len(packed)) + packed + data


def checkpoints(files: int, seed: int = 0, device: str = "cpu") -> dict[str, Any]:
    """`files` damaged checkpoints: each is refused with CheckpointError, and nothing of the session changes, or loads."""
    from tlrt import checkpoint

    run = _Trainee(device)
    for _ in range(3):
        run.step()
    refused = loaded = 0
    failures: list[str] = []
    start = time.monotonic()
    meter = report.Meter(float(files), "files")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.safetensors"
        checkpoint.save(path, run.session, run.optimizer, {"epoch": 3, "place": [1, 2]})
        good, before = path.read_bytes(), run.bits()
        memory = run.session.device.memory().live_buffers if device != "spec" else 0
        for i in range(files):
            path.write_bytes(damaged(good, random.Random(f"{seed}/{i}")))
            try:
                checkpoint.load(path, run.session, run.optimizer)
                loaded += 1
            except checkpoint.CheckpointError:
                refused += 1
                if run.bits() != before:
                    failures.append(f"seed {seed} file {i}: refused, but the session has changed")
            except BaseException as error:
                failures.append(f"seed {seed} file {i}: {type(error).__name__}: {str(error)[:300]}")
                if isinstance(error, KeyboardInterrupt):
                    raise
            if run.bits() != before:
                path.write_bytes(good)
                checkpoint.load(path, run.session, run.optimizer)
                if run.bits() != before:
                    failures.append(f"seed {seed} file {i}: the sound checkpoint no longer loads")
            meter.step(1.0, "checkpoint files")
            if len(failures) >= 20:
                break
        meter.close()
        if device != "spec" and run.session.device.memory().live_buffers > memory:
            failures.append(f"{run.session.device.memory().live_buffers} live buffers, expected at most {memory}")
        run.step()
        run.session.close()
    return {
        "files": refused + loaded + len(failures), "refused": refused, "loaded": loaded, "seed": seed,
        "failures": failures, "seconds": round(time.monotonic() - start, 1),
    }  # fmt: skip


# ---- the campaign ------------------------------------------------------------------------------------------------------


def ok(document: Mapping[str, Any]) -> bool:
    """Whether nothing failed."""
    return not document["failures"] and not document.get("checkpoints", {}).get("failures")


def table(document: Mapping[str, Any]) -> str:
    """One line per entry point, then the failures."""
    rows = [
        (
            name.removeprefix("torchlean_cuda_"),
            r["calls"],
            r["accepted"],
            r["refused"],
            f"{100 * r['accepted'] / r['calls']:.0f} %",
        )
        for name, r in document["entries"].items()
        if r["calls"]
    ]
    text = report.columns(("function", "calls", "accepted", "refused", "accepted share"), rows)
    slow = document["slowest"]
    text += f"\n{document['calls']} calls, {document['accepted']} accepted, {len(document['failures'])} failures, "
    text += f"in {document['seconds']} s; slowest {slow['seconds']:.2f} s ({slow.get('symbol', '')})"
    if "checkpoints" in document:
        c = document["checkpoints"]
        text += f"\n{c['files']} checkpoint files: {c['refused']} refused, {c['loaded']} loaded, {len(c['failures'])} failures"
        text += "".join(f"\nFAIL {line}" for line in c["failures"])
    for f in document["failures"]:
        text += f"\nFAIL {f['again']} (status {f['status']}):\n{f['said']}"
    return text


def main(argv: Sequence[str] | None = None) -> int:
    """The campaign on the command line."""
    p = argparse.ArgumentParser(prog="python -m audit.hostile", description="Hostile calls of the C ABI.")
    p.add_argument("--calls", type=int, default=100_000, metavar="N")
    p.add_argument("--files", type=int, default=5_000, metavar="N", help="damaged checkpoint files")
    p.add_argument("--seed", type=int, default=0, metavar="S")
    p.add_argument("--device", type=int, default=-1, metavar="D", help="CUDA device number; the CPU by default")
    p.add_argument("--library", metavar="FILE", help="the library to try; needed for CUDA, without sanitizers")
    p.add_argument("--threads", type=int, default=1, metavar="T", help="threads of a process")
    p.add_argument("--shared", action="store_true", help="its threads share one context")
    p.add_argument("--sanitize", default="address,undefined", help="address,undefined or thread or nothing")
    p.add_argument("--workers", type=int, metavar="N", help="processes (default: one per processor)")
    p.add_argument("--json", metavar="FILE")
    args = p.parse_args(argv)
    if shutil.which("make") is None:
        p.exit(2, "hostile: no make on PATH\n")
    try:
        library = Path(args.library).resolve() if args.library else None
        document = calls(
            args.calls, device=args.device, seed=args.seed, workers=args.workers, threads=args.threads, shared=args.shared,
            sanitize="" if library else args.sanitize, library=library,
        )  # fmt: skip
        if args.files:
            document["checkpoints"] = checkpoints(args.files, args.seed)
    except HostileError as error:
        p.exit(1, f"hostile: {error}\n")
    return report.finish(document, ok(document), table(document), args.json)


if __name__ == "__main__":
    sys.exit(main())
